//! A ciphertext store in memory that can lose its power.
//!
//! It is a model of a journaling filesystem with ordered metadata (ext4 as it is usually mounted)
//! on a disk that writes sectors of 512 bytes whole, and reorders and tears everything else, made
//! to be as harsh as the contract of `fsync` allows.
//!
//! Rules that hold here
//! * Directory entries, inodes and attributes change by one global journal. At a power cut a prefix
//!   of it survives, which reaches at least to the last step that a sync made durable. Each step, a
//!   rename too, is atomic.
//! * Bytes and lengths of files are apart from the journal: a file can be there without its bytes.
//!   Each write since the file's last sync is kept, lost or torn by itself; so a later one may be
//!   there and an earlier one not.
//! * `fsync` of a directory or file makes the journal durable up to the last step that touches it;
//!   `fdatasync` of a file up to the step that made it.
//! * There is no real clock and no randomness: equal calls give equal stores, and all chance at a
//!   power cut is the caller's.

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

/// A call that is about to change the store or to make it durable. It may yet fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which call.
    pub call: Call,
    /// The directory or file that it was made on.
    pub ino: u64,
    /// The entry that it names, if it names one.
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
    /// Tells the watcher, which may look at the store: no lock is held.
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
    /// An empty store without a limit.
    pub fn new() -> MemStore {
        MemStore::from_state(State::new(None))
    }

    /// An empty store whose files take at most `bytes`, in blocks of 4 KiB; beyond that `ENOSPC`. A
    /// write that does not fit is done as far as it does. In a full store nothing new can be made.
    pub fn with_capacity(bytes: u64) -> MemStore {
        MemStore::from_state(State::new(Some(bytes)))
    }

    fn from_state(state: State) -> MemStore {
        MemStore { shared: Arc::new(Shared { state: Mutex::new(state), hook: RwLock::new(None) }) }
    }

    /// The root directory.
    pub fn root(&self) -> Arc<dyn Dir> {
        Arc::new(MemDir::open(&self.shared, ROOT))
    }

    /// Changes the limit of [`MemStore::with_capacity`]; what is there stays.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.shared.state.lock().capacity = bytes;
    }

    /// What failed flushes have lost
    /// ([`FaultPlan::lose_what_is_not_flushed`](super::fault::FaultPlan::lose_what_is_not_flushed))
    /// is not seen any more: the kernel has needed the memory.
    pub fn evict(&self) {
        self.shared.state.lock().evict();
    }

    /// Has `hook` called before each call that changes the store or makes it durable, in place of
    /// an earlier hook. It may use the store, above all [`MemStore::snapshot`]. (A hook that owns a
    /// clone of this store keeps it alive for ever.)
    pub fn on_event(&self, hook: Box<dyn Fn(Event) + Send + Sync>) {
        *self.shared.hook.write() = Some(hook.into());
    }

    /// A copy of the store with what is durable in it and what is not yet: for a power cut at this
    /// point while the original goes on. Nothing in the copy is open, so what has no name is gone
    /// from it. Costs little: bytes are shared.
    pub fn snapshot(&self) -> MemStore {
        MemStore::from_state(self.shared.state.lock().snapshot())
    }

    /// What a power cut at this point may leave; this store is not changed.
    ///
    /// `choice(n)` gives a number less than `n`, and decides all: first how many journal steps
    /// survive beyond the durable ones; then for each file, by inode number, which version of its
    /// length, and for each pending write or punch lost (0), torn (1) or kept (2) and, if torn, for
    /// each sector lost (0) or kept (1). So `|_| 0` is the harshest power cut and `|n| n - 1` the
    /// kindest, which loses nothing.
    pub fn crash(&self, choice: &mut dyn FnMut(usize) -> usize) -> MemStore {
        let mut checked = |n| {
            let chosen = choice(n);
            assert!(chosen < n, "choice({n}) gave {chosen}");
            chosen
        };
        MemStore::from_state(self.shared.state.lock().crash(&mut checked))
    }
}

/// A flush of `file` has failed and has lost what it was to flush, where the file is one of a store
/// in memory.
pub(super) fn lose(file: &dyn super::File) {
    if let Some(file) = file.as_any().downcast_ref::<file::MemFile>() {
        file.lose();
    }
}

#[cfg(test)]
mod tests;
