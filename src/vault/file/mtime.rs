//! The time of modification of an open file: the one to show, and to restore after every deferred
//! write.
//!
//! Rules that hold here
//! * The kernel, with its writeback cache, keeps the time itself: it shows its own, and sends it
//!   (SETATTR) only where a write has changed it. Within a tick of its clock a write leaves the
//!   time as it is, and then nothing comes.
//! * Whether something will come is known when the kernel has sent all that it has, which it does
//!   before each FSYNC, FLUSH and RELEASE. Until then the time of a write is that of its arrival,
//!   for a crash must not leave new contents under an old time: backups go by it. If then nothing
//!   has come, the time is again the one that the kernel has.

use std::time::SystemTime;

use crate::store::{File, SetTime, Timestamp};
use crate::vault::error::Inner;

/// The present time, to the nanosecond.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

/// The time that the kernel has of a file whose times it keeps.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// The one that it was told, or has sent, last.
    last: Timestamp,
    /// A write has come since, and perhaps its time is still to come.
    pending: bool,
}

impl Kept {
    /// A file that was made or loaded with this time.
    fn new(last: Timestamp) -> Self {
        Kept { last, pending: false }
    }
}

/// The time of modification of one open file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mtime {
    /// The one to show, and to restore after every deferred write; that of the store where nothing
    /// has changed it.
    shown: Option<Timestamp>,
    /// What the caller has, where it keeps the time.
    kept: Option<Kept>,
    /// The store was seen to hold a time of these days to the nanosecond.
    holds_nanos: bool,
}

impl Mtime {
    /// That of a file which the store has with the time `held`; `kept` where the caller keeps the
    /// times.
    pub fn loaded(kept: bool, held: Timestamp) -> Self {
        Mtime { kept: kept.then(|| Kept::new(held)), ..Mtime::default() }
    }

    /// Notes the time that a file has which was just made, where the caller keeps the times.
    pub fn made(&mut self, held: Timestamp) {
        if self.shown.is_none() {
            (self.shown, self.kept) = (Some(held), Some(Kept::new(held)));
        }
    }

    /// The time to show instead of the store's.
    pub fn shown(&self) -> Option<Timestamp> {
        self.shown
    }

    /// The time that a commit has to leave.
    pub fn of(&self, file: &dyn File) -> Inner<Timestamp> {
        Ok(match self.shown {
            Some(shown) => shown,
            None => file.stat()?.mtime,
        })
    }

    /// Whatever is written from now on, the time stays that of the contents.
    pub fn hold(&mut self, file: &dyn File) -> Inner<()> {
        self.shown = Some(self.of(file)?);
        Ok(())
    }

    /// Notes a change of the contents.
    pub fn touch(&mut self) {
        self.shown = Some(now());
        if let Some(kept) = &mut self.kept {
            kept.pending = true;
        }
    }

    /// Notes that the time was set, as the store has it, which may not be able to hold every time.
    pub fn note(&mut self, file: &dyn File, set: SetTime) -> Inner<()> {
        let held = match set {
            SetTime::Omit => return Ok(()),
            SetTime::At(time) if self.holds_nanos && is_near(time) => time,
            _ => {
                let held = file.stat()?.mtime;
                // Some hold a tenth of a microsecond.
                self.holds_nanos |=
                    set == SetTime::At(held) && !held.nanos.is_multiple_of(100) && is_near(held);
                held
            }
        };
        self.shown = Some(held);
        self.kept = self.kept.map(|_| Kept::new(held));
        Ok(())
    }

    /// Notes that nothing will come for what was written so far: the time is that of its arrival.
    pub fn keep(&mut self) {
        if let (Some(shown), Some(kept)) = (self.shown, &mut self.kept) {
            *kept = Kept::new(shown);
        }
    }

    /// Takes the time of writes back of which the caller, who has sent everything, has sent none:
    /// it has the one of before. Tells whether there was one.
    pub fn settle(&mut self) -> bool {
        match self.kept {
            Some(Kept { last, pending: true }) => {
                (self.shown, self.kept) = (Some(last), Some(Kept::new(last)));
                true
            }
            _ => false,
        }
    }

    /// Gives the file in the store the time that its contents have, after a deferred write.
    pub fn restore(&self, file: &dyn File) -> Inner<()> {
        self.shown.map_or(Ok(()), |shown| set_mtime(file, shown))
    }
}

/// Whether a time is so near to the present that a store which holds that one to the nanosecond
/// holds this one too.
fn is_near(time: Timestamp) -> bool {
    const NEAR: u64 = 24 * 3600;
    time.secs.abs_diff(now().secs) <= NEAR
}

/// Gives a file the time of modification that its contents have. Who may write to it and does not
/// own it cannot do that, and has the time at which the store was written to instead.
pub(crate) fn set_mtime(file: &dyn File, mtime: Timestamp) -> Inner<()> {
    match file.set_times(SetTime::Omit, SetTime::At(mtime)) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => Ok(()),
        other => Ok(other?),
    }
}
