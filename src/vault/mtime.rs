//! The time of modification of an open file: the one to show, and to restore after every deferred write.
//!
//! Rules that hold here
//! * The kernel, with its writeback cache, keeps the time itself: it shows its own, and sends it (SETATTR) only where a write has changed
//!   it. Within a tick of its clock a write leaves the time as it is, and then nothing comes.
//! * Whether something will come is known when the kernel has sent all that it has, which it does before each FSYNC, FLUSH and RELEASE.
//!   Until then the time of a write is that of its arrival, for a crash must not leave new contents under an old time: backups go by it.
//!   If then nothing has come, the time is again the one that the kernel has.

use std::time::SystemTime;

use super::error::Inner;
use crate::backing::{File, SetTime, Timestamp};

/// The present time, to the nanosecond.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

/// The time that the kernel has of a file whose times it keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// The one that it was told, or has sent, last.
    pub last: Timestamp,
    /// A write has come since, and perhaps its time is still to come.
    pub pending: bool,
}

impl Kept {
    /// A file that was made or loaded with this time.
    pub fn new(last: Timestamp) -> Self {
        Kept { last, pending: false }
    }
}

/// Whether a time is so near to the present that a store which holds that one to the nanosecond holds this one too.
pub(crate) fn is_near(time: Timestamp) -> bool {
    const NEAR: u64 = 24 * 3600;
    time.secs.abs_diff(now().secs) <= NEAR
}

/// Gives a file the time of modification that its contents have. Who may write to it and does not own it cannot do that, and has the time
/// at which the store was written to instead.
pub(crate) fn set_mtime(file: &dyn File, mtime: Timestamp) -> Inner<()> {
    match file.set_times(SetTime::Omit, SetTime::At(mtime)) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => Ok(()),
        other => Ok(other?),
    }
}
