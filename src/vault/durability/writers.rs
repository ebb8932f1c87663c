//! Which daemons may write to a vault at the same time, and what follows from that.
//!
//! Rules that hold here
//! * Decisions that depend on other daemons are methods of [`Writers`]. Those that need an open
//!   share are in [`crate::vault::open_files`].

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::store::{Dir, File, Lock};
use crate::vault::error::Inner;

/// The daemons that may write to a vault at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writers {
    /// This one alone.
    Exclusive,
    /// Several, which lock files and names in the store; see `docs/SHARED.md`.
    Concurrent,
}

impl Writers {
    /// Returns how the vault's lock is held.
    pub fn vault_lock(self) -> Lock {
        match self {
            Writers::Exclusive => Lock::Exclusive,
            Writers::Concurrent => Lock::Shared,
        }
    }

    /// Returns whether other daemons may change names in the store at any time, so that changes of
    /// names are locked there.
    pub fn share_names(self) -> bool {
        self == Writers::Concurrent
    }

    /// Returns whether this daemon knows all programs that have a file open for writing, so that
    /// the kernel may cache its contents.
    pub fn know_all_opens(self) -> bool {
        self == Writers::Exclusive
    }

    /// Returns whether no other daemon writes to a file that is not open here, or relies on bytes
    /// that a file's header does not count.
    pub fn own_all_bytes(self) -> bool {
        self == Writers::Exclusive
    }

    /// Returns whether a file counts as durable from its first commit on, because other daemons see
    /// its contents.
    pub fn commit_durably(self) -> bool {
        self == Writers::Concurrent
    }

    /// Called for a stored file that was just opened, before it is read.
    pub fn open_to_read(self, file: &dyn File) -> io::Result<()> {
        match self {
            Writers::Exclusive => Ok(()),
            Writers::Concurrent => file.read_from_store(),
        }
    }

    /// Returns whether a record contains whole blocks: the store may have a block of a daemon that
    /// died in a commit, instead of the one that a changed block was derived from.
    pub fn record_whole_blocks(self) -> bool {
        self == Writers::Concurrent
    }

    /// Returns whether the header is checked again once a record is durable: its flush may have
    /// lasted as long as the machine was suspended, and the file's lock may be lost.
    pub fn check_again_before_applying(self) -> bool {
        self == Writers::Concurrent
    }

    /// Locks a journal of concurrent writers. Returns whether another daemon has it locked. Without
    /// concurrent writers a lock on a journal is one of a reader, which does not keep it for long.
    pub(super) fn hold_journal(self, journal: &dyn File, how: Lock) -> Inner<bool> {
        match self {
            Writers::Exclusive => Ok(false),
            Writers::Concurrent => Ok(!journal.try_lock(how)?),
        }
    }

    /// Returns the mode of a new journal in a directory. Daemons of other users that may write
    /// there look whether the journal has records, which are encrypted.
    pub(super) fn journal_perm(self, dir: &dyn Dir) -> io::Result<u32> {
        Ok(match self {
            Writers::Exclusive => 0o600,
            Writers::Concurrent => 0o600 | (dir.stat_self()?.perm & 0o022) << 1,
        })
    }

    /// Returns whether another daemon may be creating a journal that has no head yet.
    pub(super) fn may_create_journal(self, journal: &dyn File) -> Inner<bool> {
        match self {
            Writers::Exclusive => Ok(false),
            Writers::Concurrent => Ok(rested(journal)? < RESTS),
        }
    }

    /// Returns whether a journal that cannot be opened belongs to another user, whose daemon
    /// replays it.
    pub(super) fn leave_journal(self, error: &io::Error) -> bool {
        self == Writers::Concurrent && error.raw_os_error() == Some(libc::EACCES)
    }

    /// Returns whether a commit may put a new file in place of the stored one: no other daemon has
    /// the old one open or locked.
    pub fn may_replace_files(self) -> bool {
        self == Writers::Exclusive
    }

    /// Returns whether the journals may be outside of the store: no other machine replays them.
    pub fn may_keep_journals_local(self) -> bool {
        self == Writers::Exclusive
    }

    /// Returns whether a journal that another identity has left counts as one of a crash, and not
    /// as one in use.
    pub fn leave_journals_only_by_crashes(self) -> bool {
        self == Writers::Exclusive
    }
}

/// How long a journal of another machine must be unchanged before it is removed after its replay:
/// longer than an idle mount there waits before it empties its journal.
pub(super) const RESTS: Duration = Duration::from_secs(120);

/// Returns the time since a change of a file, by this machine's clock: none if the change is in the
/// future, because the clock of the other machine may be fast.
pub(super) fn rested(file: &dyn File) -> Inner<Duration> {
    let changed = UNIX_EPOCH + Duration::from_secs(file.stat()?.mtime.secs.max(0) as u64);
    Ok(SystemTime::now().duration_since(changed).unwrap_or_default())
}
