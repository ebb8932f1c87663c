//! What the background flushes of files that stay open.
//!
//! Rules that hold here
//! * A file that was never durable is committed straight to its places, which a crash in the middle
//!   leaves unreadable as a whole. That is fair to a copy of a second, and not to a recording of
//!   hours: so what stays open is made durable once, and goes by the journal from then on.
//! * The bulk is flushed before the file is locked: who writes to it does not wait for a slow disk,
//!   nor does the commit of another file.
//! * A flush that fails is told as any other: the file gives the error until it is closed. The
//!   kernel tells one of two flushes that are under way at the same time: a commit or a checkpoint,
//!   which may be the other one, waits for this one when its own is done.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::vault::core::Core;
use crate::vault::error::Fault;
use crate::vault::file::{FileState, OpenFile};
use crate::vault::open_files::TURN;

/// What the background has to do for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// Fresh bytes wait for the flush of the next commit.
    Bytes,
    /// It has been committed without a flush for long enough.
    Durable,
}

impl FileState {
    fn flush_due(&self, age: Duration) -> Due {
        // In the middle of a commit that was refused a file is in no state of its own.
        let is_between = !self.durable && self.changed && self.surplus;
        if self.nameless || self.latched.is_some() || is_between {
            Due::Nothing
        } else if !self.durable {
            let is_old = self.committed.is_some()
                && self.straight_since.is_some_and(|since| since.elapsed() >= age * 2);
            if is_old { Due::Durable } else { Due::Nothing }
        } else if self.unsynced
            && self.dirty_since.is_some_and(|since| since.elapsed() >= age / 4 * 3)
        {
            Due::Bytes
        } else {
            Due::Nothing
        }
    }
}

impl Core {
    /// Flushes every open file in which fresh bytes have waited for most of `age`, after which they
    /// are committed, and makes those durable that have been committed without a flush for twice
    /// `age`.
    pub fn flush_due(&self, age: Duration) {
        if self.mode.read_only || self.mode.shared {
            return; // where others have the vault open too, a file is taken for durable at its first commit
        }
        let files: Vec<_> =
            self.open.files.lock().values().map(|shared| shared.file.clone()).collect();
        for open in files {
            let due =
                open.state.try_read_for(TURN).map_or(Due::Nothing, |state| state.flush_due(age));
            if due == Due::Nothing || self.closed.load(Ordering::Acquire) || !self.has_name(&open) {
                continue;
            }
            if let Err(fault) = self.flush_open(&open, due, age) {
                tracing::error!(path = %self.shown_path(open.node).display(), errno = fault.errno(), "deferred flush failed");
            }
        }
    }

    fn flush_open(&self, open: &Arc<OpenFile>, due: Due, age: Duration) -> Result<(), Fault> {
        // Twice where the rest is flushed with the file locked: while the first one takes its
        // seconds, more comes.
        let times = if due == Due::Durable { 2 } else { 1 };
        let flush = || (0..times).try_for_each(|_| open.file.sync_data());
        if let Err(e) = self.journal.flush(open.inode, &open.file, flush) {
            let fault = Fault::from(e);
            open.state.write().latched.get_or_insert(fault.errno());
            return Err(fault);
        }
        if due == Due::Durable {
            let mut state = open.state.write();
            if state.flush_due(age) == Due::Durable {
                return self.make_durable(open, &mut state);
            }
        }
        Ok(())
    }
}
