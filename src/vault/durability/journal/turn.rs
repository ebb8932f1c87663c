//! The turn of this daemon to write records to a stored file, beside other daemons.
//!
//! Rules that hold here
//! * Where several daemons have the vault open, records are applied as commits are made: under the
//!   lease, and the header is compared only then. A daemon that finds records of others makes the
//!   header anew before it changes the file, so that they do not match any more
//!   ([`check_whole`](crate::vault::core::Core::check_whole)). One that only has the file open loads
//!   it again before its first change.
//! * The guard of the file is held, too, unless another daemon has it: if the lease is taken over,
//!   because a write takes too long, no daemon begins to change the file.
//! * A thread that has the lock of the journal does not wait for the lease: the thread that gives the
//!   lease up may wait for one that waits for this lock.

use super::Journal;
use crate::store::File;
use crate::vault::error::Inner;
use crate::vault::file::guard::try_guard;

/// When records are applied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Apply {
    /// By a replay, when the vault is opened.
    Replay,
    /// By a later attempt, under the lock of the journal. A flush of the file may have failed, so the
    /// page cache proves nothing about the disk.
    Again,
}

impl Journal {
    /// Returns whether records are applied in stored files that other daemons may have open.
    pub(super) fn is_beside_others(&self) -> bool {
        self.writers.share_names() && self.overlaid.is_none()
    }

    /// Runs `act` when this daemon may write to a file.
    ///
    /// # Errors
    /// `EBUSY` if another daemon does not release the lease; those of `act` and of the store.
    pub(super) fn in_turn<T>(
        &self,
        file: &dyn File,
        when: Apply,
        act: impl FnOnce() -> Inner<T>,
    ) -> Inner<T> {
        if !self.is_beside_others() {
            return act();
        }
        let _change = match when {
            Apply::Replay => self.lease.change()?,
            Apply::Again => self.lease.change_at_once()?,
        };
        // No thread looks after the lease while a vault is opened.
        self.lease.show_life();
        let _guard = try_guard(file)?;
        act()
    }
}
