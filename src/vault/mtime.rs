//! The time of modification of an open file: the one to show, and to restore after every deferred write.
//!
//! Rules that hold here
//! * The kernel, with its writeback cache, keeps the time itself: it shows its own, and sends it (SETATTR) only where a write has changed
//!   it. Within a tick of its clock a write leaves the time as it is, and then nothing comes. So such a write moves no young time here
//!   either, or the file would show another one as soon as the kernel has forgotten it.
//! * An older time is moved: the kernel's will come, and until then a crash must not leave new contents under it, for backups go by it.

use std::time::{Duration, SystemTime};

use super::error::Inner;
use crate::backing::{File, SetTime, Timestamp};

/// A time that is not older than this may be the one that the kernel has. Its clock ticks a hundred times a second at the least, and what it
/// has written comes soon after where somebody waits for it.
const YOUNG: Duration = Duration::from_secs(1);

/// The present time, to the nanosecond.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

/// The time of a file that is written to `now`; `before` is the one that it had, where the caller keeps it.
pub(crate) fn after_write(before: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let nanos = |time: Timestamp| i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
    match before {
        Some(before) if (0..YOUNG.as_nanos() as i128).contains(&(nanos(now) - nanos(before))) => before,
        _ => now,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_moves_every_time_but_a_young_one_that_the_caller_keeps() {
        let at = |secs, nanos| Timestamp { secs, nanos };
        let now = at(1_000, 500_000_000);
        assert_eq!(after_write(None, now), now);
        for (before, moves) in [
            (at(1_000, 500_000_000), false),
            (at(999, 500_000_001), false),
            (at(999, 500_000_000), true),
            (at(1_000, 500_000_001), true),
            (at(-5, 0), true),
            (at(i64::MAX, 0), true),
            (at(i64::MIN, 0), true),
        ] {
            assert_eq!(after_write(Some(before), now), if moves { now } else { before }, "{before:?}");
        }
    }
}
