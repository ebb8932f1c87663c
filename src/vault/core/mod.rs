//! What an open share consists of: its parts, and how they find each other.

pub(super) mod away;
pub(super) mod free_space;
pub(super) mod inodes;
pub(super) mod long_copies;
pub(super) mod name_lock;
pub(super) mod open_table;
pub(super) mod overflow;
pub(super) mod refresh;
pub(super) mod trash;
pub(super) mod vacated;
pub(super) mod vault_lock;

use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use lru::LruCache;
use parking_lot::{Mutex, RwLock};

use self::away::Away;
use self::free_space::Room;
use self::inodes::Nodes;
use self::long_copies::LongCopies;
use self::name_lock::NameLock;
use self::open_table::OpenTable;
use self::overflow::Young;
use self::trash::Trash;
use self::vacated::Vacated;
use self::vault_lock::VaultLock;
use crate::crypto::Random;
use crate::store::Dir;
use crate::vault::durability::journal::Journal;
use crate::vault::error::{Error, Fault, Inner};
use crate::vault::file::Context;
use crate::vault::file::block_cache::BlockCache;
use crate::vault::keyring::keys::ShareKeys;
use crate::vault::share::seen::Seen;
use crate::vault::share::trust::Trust;
use crate::vault::types::{NodeId, ROOT};

/// Directory handles of the store that are kept open.
const DIRS_MAX: usize = 512;
/// Directories below each other that are followed: where the store moves them about, what is
/// remembered of it may go in a circle.
pub(crate) const DEPTH_MAX: usize = 1 << 16;

/// Number of the next open file, whichever share it is of: shares have one cache.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

/// A directory that was renamed here: where it was and where it is, each by the directory around it
/// and its plain name there.
pub(crate) struct Move<'a> {
    pub from: (NodeId, &'a [u8]),
    pub to: (NodeId, &'a [u8]),
    /// Its stored path now.
    pub cipher: Vec<u8>,
}

/// The rollback memory, as far as the share tells it of what is done here.
pub(crate) trait Witness: Send + Sync {
    /// Notes that an entry of a directory was made, changed or, where it has `left`, removed;
    /// without a name, that something in the directory was committed.
    fn note(&self, core: &Core, directory: NodeId, name: Option<&[u8]>, left: bool);

    /// Notes that directories have another place.
    fn follow(&self, core: &Core, moves: &[Move]);

    /// Writes down what was noted.
    fn learn_now(&self, core: &Core) -> Inner<()>;
}

/// How a share is open.
#[derive(Clone, Copy)]
pub(crate) struct Mode {
    pub read_only: bool,
    /// False where reading is to leave no trace in the times of access.
    pub access_times: bool,
    /// See [`crate::vault::OpenOptions::caller_caches`].
    pub caller_caches: bool,
    /// Other daemons may have the vault open for writing too.
    pub shared: bool,
    pub is_root_user: bool,
}

/// What is known of names beside the table of nodes, and the locks on them.
pub(crate) struct Namespace {
    dirs: Mutex<LruCache<NodeId, Arc<dyn Dir>>>,
    /// Names: taken for reading by what adds or removes one name, for writing by what must see a
    /// directory stand still.
    pub names: NameLock,
    /// Directories that have another name for a moment.
    pub away: Away,
    /// Stored paths: held for reading by a commit from the moment it puts a path into a journal
    /// record until the record is applied, for writing by what changes a path. Taken after a file's
    /// lock, and no file's lock is taken while it is held for writing.
    pub paths: RwLock<()>,
    /// Long names of which sync tools have made conflict copies.
    pub long_copies: LongCopies,
    /// Names that were taken from an entry while others claimed them.
    pub vacated: Vacated,
    /// Lists of attributes that were written a short while ago.
    pub young_lists: Young,
    /// Removed directories that could not be deleted as yet.
    pub trash: Trash,
}

impl Namespace {
    fn new(names: NameLock) -> Self {
        Namespace {
            dirs: Mutex::new(LruCache::new(NonZeroUsize::new(DIRS_MAX).expect("not zero"))),
            names,
            away: Away::default(),
            paths: RwLock::new(()),
            long_copies: LongCopies::new(),
            vacated: Vacated::new(),
            young_lists: Young::new(),
            trash: Trash::default(),
        }
    }
}

/// What is known of the members, and of other shares.
pub(crate) struct Membership {
    /// What the roster was made of at the last look.
    pub seen: Mutex<Seen>,
    /// What is remembered of other shares.
    pub trust: Trust,
    /// Held for each step of a re-sealing pass, none of which is begun once the vault is closed.
    pub passing: Mutex<()>,
}

/// An open share: its parts.
pub(crate) struct Core {
    pub root: Arc<dyn Dir>,
    pub keys: Arc<ShareKeys>,
    pub random: Arc<dyn Random>,
    /// Common to all shares of a vault.
    pub cache: Arc<BlockCache>,
    pub mode: Mode,
    pub nodes: Nodes,
    pub journal: Journal,
    pub namespace: Namespace,
    pub open: OpenTable,
    pub membership: Membership,
    /// Holds the vault's lock as long as it lives.
    pub lock: Mutex<Option<VaultLock>>,
    /// What this client remembers of the vault, where it does.
    pub memory: OnceLock<Arc<dyn Witness>>,
    pub closed: AtomicBool,
    /// How much room the store has.
    pub room: Room,
}

/// What [`Core::new`] puts a share together from.
pub(crate) struct Parts {
    pub root: Arc<dyn Dir>,
    pub keys: Arc<ShareKeys>,
    pub random: Arc<dyn Random>,
    pub journal: Journal,
    pub cache: Arc<BlockCache>,
    pub mode: Mode,
    pub lock: Option<VaultLock>,
    pub trust: Trust,
}

impl Core {
    pub fn new(parts: Parts) -> Inner<Self> {
        let Parts { root, keys, random, journal, cache, mode, lock, trust } = parts;
        let nodes = Nodes::new(&root.stat_self()?, keys.root_directory());
        let names = NameLock::new((mode.shared && !mode.read_only).then(|| root.clone()));
        Ok(Core {
            root,
            keys,
            random,
            cache,
            mode,
            nodes,
            journal,
            namespace: Namespace::new(names),
            open: OpenTable::new(),
            membership: Membership { seen: Mutex::default(), trust, passing: Mutex::new(()) },
            lock: Mutex::new(lock),
            memory: OnceLock::new(),
            closed: AtomicBool::new(false),
            room: Room::new(),
        })
    }

    pub fn context(&self) -> Context<'_> {
        Context {
            keys: &self.keys,
            cache: &self.cache,
            random: &*self.random,
            caller_caches: self.mode.caller_caches,
            others_wait: self.journal.others_wait(),
        }
    }

    pub fn next_serial(&self) -> u64 {
        NEXT_SERIAL.fetch_add(1, Ordering::Relaxed)
    }

    /// Turns a fault into an error about `node`.
    pub fn explain(&self, op: &'static str, node: NodeId, fault: Fault) -> Error {
        fault.at(op, || self.shown_path(node))
    }

    /// Stored path of a node, for errors and logs: it tells nothing in plain.
    pub fn shown_path(&self, node: NodeId) -> PathBuf {
        let path = self.nodes.stored_path(node).unwrap_or_else(|| b"(unlinked)".to_vec());
        PathBuf::from(std::ffi::OsString::from_vec(if path.is_empty() {
            b".".to_vec()
        } else {
            path
        }))
    }

    pub fn check_writable(&self) -> Inner<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Fault::Os(libc::ESHUTDOWN));
        }
        if self.mode.read_only || !self.keys.signing.may_write() {
            Err(Fault::Os(libc::EROFS))
        } else {
            Ok(())
        }
    }

    // ---- directories

    /// An open handle of the store for a directory.
    pub fn dir(&self, node: NodeId) -> Inner<Arc<dyn Dir>> {
        // Up to the nearest one that is open, and down again: depth is somebody else's choice and
        // must not be that of our stack.
        let (mut at, mut below) = (node, Vec::new());
        let mut dir = loop {
            if at == ROOT {
                break self.root.clone();
            }
            if let Some(dir) = self.namespace.dirs.lock().get(&at) {
                break dir.clone();
            }
            if below.len() >= DEPTH_MAX {
                return Err(Fault::Os(libc::ELOOP));
            }
            let link = self.nodes.link(at)?;
            below.push((at, link.stored));
            at = link.parent;
        };
        // Of a long way, which the table cannot hold, the end and some places at even distances are
        // kept: whoever goes up from there, as the removal of a deep tree does, then opens each
        // directory a second time at the most.
        let distance = below.len().div_ceil(DIRS_MAX / 2);
        while let Some((node, stored)) = below.pop() {
            dir = dir.open_dir(&stored)?;
            if !self.nodes.is(node, &dir.stat_self()?) {
                return Err(Fault::Os(libc::ESTALE));
            }
            if below.len() < distance || below.len().is_multiple_of(distance) {
                self.namespace.dirs.lock().put(node, dir.clone());
            }
        }
        Ok(dir)
    }

    /// The handle of a directory that was used before, for one that has no name any more.
    pub fn known_dir(&self, node: NodeId) -> Option<Arc<dyn Dir>> {
        self.namespace.dirs.lock().get(&node).cloned()
    }

    pub fn forget_dir(&self, node: NodeId) {
        self.namespace.dirs.lock().pop(&node);
    }

    /// As [`Core::forget_dir`], of all.
    pub fn forget_dirs(&self) {
        self.namespace.dirs.lock().clear();
    }

    /// Plain size of a file that is not open, from the length of its ciphertext.
    pub fn shown_size(&self, inode: (u64, u64), cipher_len: u64) -> u64 {
        match self.open.sizes.lock().get(&inode) {
            Some(&(len, size)) if len == cipher_len => size,
            _ => self.keys.layout.plain_size(cipher_len),
        }
    }

    /// Stored path of an entry of a directory.
    pub fn path_in(&self, parent: NodeId, stored: &[u8]) -> Option<Vec<u8>> {
        let dir = self.nodes.stored_path(parent)?;
        Some(if dir.is_empty() { stored.to_vec() } else { [&dir[..], b"/", stored].concat() })
    }

    // ---- what the rollback memory is told

    /// Notes a change of a name for the memory, before it is made.
    pub fn remember_name(&self, directory: NodeId, name: &[u8]) {
        if let Some(memory) = self.memory.get() {
            memory.note(self, directory, Some(name), false);
        }
    }

    /// Notes for the memory that what had a name was removed or renamed, after that was done.
    pub fn remember_left(&self, directory: NodeId, name: &[u8]) {
        if let Some(memory) = self.memory.get() {
            memory.note(self, directory, Some(name), true);
        }
    }

    /// Notes for the memory that directories were renamed that keep their ids.
    pub fn remember_moves(&self, moves: &[Move]) {
        if let Some(memory) = self.memory.get()
            && !moves.is_empty()
        {
            memory.follow(self, moves);
        }
    }

    /// Notes a commit for the memory.
    pub fn remember_commit(&self, node: NodeId) {
        if let Some(memory) = self.memory.get()
            && let Ok(link) = self.nodes.link(node)
        {
            memory.note(self, if node == ROOT { ROOT } else { link.parent }, None, false);
        }
    }
}
