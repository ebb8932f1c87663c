//! The modification time of an open file: the time to show, and to restore after every deferred
//! write.
//!
//! Rules that hold here
//! * With the writeback cache, the kernel maintains the time. It shows its own time, and sends it
//!   (SETATTR) only if a write has changed it. Within one tick of its clock a write does not change
//!   the time, and then nothing is sent.
//! * Whether a time is still to come is known once the kernel has sent everything, which it does
//!   before each FSYNC, FLUSH and RELEASE. Until then the time of a write is that of its arrival: a
//!   crash must not leave new contents with an old time, on which backups rely. If nothing was sent
//!   by then, the time is again the one that the kernel has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use crate::store::{File, SetTime, Timestamp};
use crate::vault::error::Inner;

/// Returns the present time.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
}

/// The time that the kernel has for a file whose times it maintains.
#[derive(Clone, Copy, Debug)]
struct Kept {
    /// The time that the kernel was told, or has sent, last.
    last: Timestamp,
    /// A write has arrived since, and its time may still be sent.
    pending: bool,
}

impl Kept {
    /// Returns the state of a file that was created or loaded with this time.
    fn new(last: Timestamp) -> Self {
        Kept { last, pending: false }
    }
}

/// The modification time of one open file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mtime {
    /// The time to show, and to restore after every deferred write; `None` if the store's own time
    /// is unchanged.
    shown: Option<Timestamp>,
    /// The caller's state, if the caller maintains the time.
    kept: Option<Kept>,
}

/// The filesystem of the store that was last seen to store a time near the present to the
/// nanosecond, by its device number. Such times of its files need not be read back.
#[derive(Default)]
pub(crate) struct ExactStore(AtomicU64);

impl ExactStore {
    fn is(&self, device: u64) -> bool {
        device != 0 && self.0.load(Ordering::Relaxed) == device
    }
}

impl Mtime {
    /// Returns the state of a file with the stored time `held`; `kept` if the caller maintains the
    /// times.
    pub fn loaded(kept: bool, held: Timestamp) -> Self {
        Mtime { kept: kept.then(|| Kept::new(held)), ..Mtime::default() }
    }

    /// Sets the time of a newly created file whose times the caller maintains.
    pub fn made(&mut self, held: Timestamp) {
        if self.shown.is_none() {
            (self.shown, self.kept) = (Some(held), Some(Kept::new(held)));
        }
    }

    /// Returns the time to show instead of the store's.
    pub fn shown(&self) -> Option<Timestamp> {
        self.shown
    }

    /// Returns the time that a commit has to restore.
    pub fn of(&self, file: &dyn File) -> Inner<Timestamp> {
        Ok(match self.shown {
            Some(shown) => shown,
            None => file.stat()?.mtime,
        })
    }

    /// Freezes the time: later writes to the store do not change it.
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

    /// Notes that the time of a file on `device` was set, as read back from the store, which may
    /// not be able to store every time.
    pub fn note(
        &mut self,
        file: &dyn File,
        set: SetTime,
        device: u64,
        exact: &ExactStore,
    ) -> Inner<()> {
        let held = match set {
            SetTime::Omit => return Ok(()),
            SetTime::At(time) if exact.is(device) && is_near(time) => time,
            _ => {
                let held = file.stat()?.mtime;
                // Some stores have a resolution of a tenth of a microsecond.
                if set == SetTime::At(held) && !held.nanos.is_multiple_of(100) && is_near(held) {
                    exact.0.store(device, Ordering::Relaxed);
                }
                held
            }
        };
        self.shown = Some(held);
        self.kept = self.kept.map(|_| Kept::new(held));
        Ok(())
    }

    /// Notes that the time was set; the commit of the pending changes sets it in the store.
    pub fn defer(&mut self, time: Timestamp) {
        self.shown = Some(time);
        self.kept = self.kept.map(|_| Kept::new(time));
    }

    /// Moves a frozen time by two seconds, the coarsest resolution of a store. The contents are the
    /// same in other bytes of the same length, and sync tools compare no more than length and time.
    pub fn advance(&mut self) {
        if let Some(Timestamp { secs, nanos }) = self.shown {
            self.defer(Timestamp { secs: secs.saturating_add(2), nanos });
        }
    }

    /// Notes that no time will be sent for the writes so far: the time is that of their arrival.
    pub fn keep(&mut self) {
        if let (Some(shown), Some(kept)) = (self.shown, &mut self.kept) {
            *kept = Kept::new(shown);
        }
    }

    /// Called when the caller has sent everything. If it has sent no time for the latest writes,
    /// the previous time holds again. Returns whether there were such writes.
    pub fn resolve(&mut self) -> bool {
        match self.kept {
            Some(Kept { last, pending: true }) => {
                (self.shown, self.kept) = (Some(last), Some(Kept::new(last)));
                true
            }
            _ => false,
        }
    }

    /// Sets the stored file's time to that of its contents, after a deferred write.
    pub fn restore(&self, file: &dyn File) -> Inner<()> {
        self.shown.map_or(Ok(()), |shown| set_mtime(file, shown))
    }
}

/// Returns whether a time is so near to the present that a store which can store the present to the
/// nanosecond can store this one too.
fn is_near(time: Timestamp) -> bool {
    const NEAR: u64 = 24 * 3600;
    time.secs.abs_diff(now().secs) <= NEAR
}

/// Sets a file's modification time to that of its contents. A writer who does not own the file
/// cannot do that; nor can anybody on GlusterFS (`ESTALE`) once the file has lost its name. Then
/// the file keeps the time of the write to the store.
pub(crate) fn set_mtime(file: &dyn File, mtime: Timestamp) -> Inner<()> {
    match file.set_times(SetTime::Omit, SetTime::At(mtime)) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::ESTALE)) => Ok(()),
        other => Ok(other?),
    }
}
