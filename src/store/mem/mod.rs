//! A ciphertext store in memory that can suffer a power cut.
//!
//! It models a journaling filesystem with ordered metadata (ext4 with its default options) on a
//! disk that writes sectors of 512 bytes atomically, and reorders and tears everything else. It is
//! as harsh as the contract of `fsync` allows.
//!
//! Rules that hold here
//! * Directory entries, inodes and attributes change through one journal. A prefix of it survives a
//!   power cut: at least the steps that a sync has made durable. Each step is atomic, including a
//!   rename.
//! * Bytes and lengths of files are not in the journal: a file can be there without its bytes. Each
//!   write since the file's last sync is kept, lost or torn independently, so a later one may
//!   survive although an earlier one is lost.
//! * `fsync` of a directory or file makes the journal durable up to the last step that touches it;
//!   `fdatasync` of a file up to the step that created it. Both make the file's bytes and length
//!   durable.
//! * There is no real clock and no randomness: equal calls produce equal stores, and the caller
//!   makes all random choices at a power cut.

mod attr;
mod choices;
mod content;
mod data;
mod dir;
mod file;
mod state;
mod tree;

pub use choices::Exhaustive;

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use self::dir::MemDir;
use self::state::State;
use self::tree::{Ino, ROOT};
use super::{Call, Dir};

/// A call that is about to change the store or to make it durable. It may still fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which call.
    pub call: Call,
    /// The directory or file that it was made on.
    pub ino: u64,
    /// The entry that it names, if any.
    pub name: Option<Box<[u8]>>,
}

type Hook = Arc<dyn Fn(Event) + Send + Sync>;

/// The store. Clones are handles to the same one; [`MemStore::snapshot`] copies.
#[derive(Clone)]
pub struct MemStore {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    hook: RwLock<Option<Hook>>,
}

impl Shared {
    /// Calls the hook, which may inspect the store: no lock is held.
    fn event(&self, call: Call, ino: Ino, name: Option<&[u8]>) {
        let hook = self.hook.read().clone();
        if let Some(hook) = hook {
            hook(Event { call, ino, name: name.map(Into::into) });
        }
    }
}

impl Default for MemStore {
    fn default() -> Self {
        MemStore::new()
    }
}

impl MemStore {
    /// Creates an empty store without a limit.
    pub fn new() -> MemStore {
        MemStore::from_state(State::new(None))
    }

    /// Creates an empty store whose files take at most `bytes`, in blocks of 4 KiB; beyond that,
    /// calls fail with `ENOSPC`. A write that does not fit is done as far as possible. In a full
    /// store nothing can be created.
    pub fn with_capacity(bytes: u64) -> MemStore {
        MemStore::from_state(State::new(Some(bytes)))
    }

    fn from_state(state: State) -> MemStore {
        MemStore { shared: Arc::new(Shared { state: Mutex::new(state), hook: RwLock::new(None) }) }
    }

    /// Returns the root directory.
    pub fn root(&self) -> Arc<dyn Dir> {
        Arc::new(MemDir::open(&self.shared, ROOT))
    }

    /// Changes the limit of [`MemStore::with_capacity`]; existing data stays.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.state.lock().capacity = bytes;
    }

    /// Models memory pressure: data that failed flushes have lost
    /// ([`FaultPlan::lose_what_is_not_flushed`](super::fault::FaultPlan::lose_what_is_not_flushed))
    /// is not visible any more.
    pub fn evict(&self) {
        self.shared.state.lock().evict();
    }

    /// Shows no birth times from now on, as sshfs does, nor do copies of the store.
    pub fn hide_birth_times(&self) {
        self.shared.state.lock().has_births = false;
    }

    /// Calls `hook` before each call that changes the store or makes it durable, in place of an
    /// earlier hook. The hook may use the store, above all [`MemStore::snapshot`]. (A hook that
    /// owns a clone of this store keeps it alive for ever.)
    pub fn on_event(&self, hook: Box<dyn Fn(Event) + Send + Sync>) {
        *self.shared.hook.write() = Some(hook.into());
    }

    /// Returns a copy of the store with its durable and its pending state: for a power cut at this
    /// point while the original continues. Nothing in the copy is open, so files without a name are
    /// gone from it. The copy is cheap: bytes are shared.
    pub fn snapshot(&self) -> MemStore {
        MemStore::from_state(self.shared.state.lock().snapshot())
    }

    /// Returns a possible state after a power cut at this point; this store is not changed.
    ///
    /// `choice(n)` returns a number less than `n`, and decides everything. It is asked:
    ///
    /// * how many journal steps survive beyond the durable ones;
    /// * then for each file, by inode number: how many changes of its length survive;
    /// * for each pending write or punch of the file: lost (0), torn (1) or kept (2); if torn, for
    ///   each sector: lost (0) or kept (1); for each pending reservation: lost (0) or kept (1).
    ///
    /// So `|_| 0` is the harshest power cut, and `|n| n - 1` the mildest, which loses nothing
    /// pending.
    pub fn crash(&self, choice: &mut dyn FnMut(usize) -> usize) -> MemStore {
        let mut checked = |n| {
            let chosen = choice(n);
            assert!(chosen < n, "choice({n}) gave {chosen}");
            chosen
        };
        MemStore::from_state(self.shared.state.lock().crash(&mut checked))
    }
}

/// Records that a flush of `file` failed and lost its data, if the file is one of a store in
/// memory.
pub(super) fn lose(file: &dyn super::File) {
    if let Some(file) = file.as_any().downcast_ref::<file::MemFile>() {
        file.lose();
    }
}

#[cfg(test)]
mod tests;
