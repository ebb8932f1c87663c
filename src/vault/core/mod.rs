//! The parts of an open share that the other modules use.

pub(super) mod away;
pub(super) mod free_space;
pub(super) mod inodes;
pub(super) mod known_names;
pub(super) mod machine;
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
use self::inodes::{Link, Nodes};
use self::known_names::{Censuses, Evidence, LongNames, Unreadable};
use self::name_lock::{NameLock, NameReadGuard, NameWriteGuard};
use self::open_table::OpenTable;
use self::overflow::Young;
use self::trash::Trash;
use self::vacated::Vacated;
use self::vault_lock::VaultLock;
use crate::crypto::Random;
use crate::store::Dir;
use crate::vault::durability::journal::Journal;
use crate::vault::durability::lease::Lease;
use crate::vault::durability::writers::Writers;
use crate::vault::error::{Error, Fault, Inner};
use crate::vault::file::Context;
use crate::vault::file::block_cache::BlockCache;
use crate::vault::keyring::keys::ShareKeys;
use crate::vault::share::seen::Seen;
use crate::vault::share::trust::Trust;
use crate::vault::types::{Event, Events, NodeId, ROOT, Usage};

/// Maximum number of directory handles of the store that are kept open.
const DIRS_MAX: usize = 512;
/// Maximum depth of directories that are followed: if the store moves directories, remembered links
/// may form a cycle.
pub(crate) const DEPTH_MAX: usize = 1 << 16;

/// Cache key of the next open file. Shares do not count separately, because they have one cache.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

/// A directory that was renamed locally: its old and new place, each given by the parent directory
/// and the plain name.
pub(crate) struct Move<'a> {
    pub from: (NodeId, &'a [u8]),
    pub to: (NodeId, &'a [u8]),
    /// Its stored name before and now.
    pub stored: (&'a [u8], &'a [u8]),
}

/// A local change of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NameChange {
    /// Some change of the name is about to be made.
    Any,
    /// The object with this name was removed or renamed, and nothing has taken the name since.
    Left,
    /// An object was put under the name: by a rename, or by the first commit of a new file.
    /// Contains the id and version of a file, if they are known.
    Taken(Option<([u8; 32], u64)>),
    /// The file with this name is about to be committed. The name stays as it is.
    Written,
}

/// The rollback database, as a share informs it of local changes.
pub(crate) trait Witness: Send + Sync {
    /// Notes a change of a name in a directory.
    fn note(&self, core: &Core, directory: NodeId, name: &[u8], change: NameChange);

    /// Notes a commit of the file with this id: before it with version 0, after it with the version
    /// that was committed.
    fn note_file(&self, id: &[u8; 32], version: u64);

    /// Notes that a commit of the file with this id and name is about to build on `version`, which
    /// was read from the store.
    fn note_base(&self, core: &Core, directory: NodeId, name: &[u8], id: &[u8; 32], version: u64);

    /// Notes whether the commit that [`Witness::note_base`] announced was made under that name.
    fn note_written(&self, core: &Core, directory: NodeId, name: &[u8], is_written: bool);

    /// Moves what was noted along with directories that were renamed.
    fn follow(&self, core: &Core, moves: &[Move]);

    /// Records the noted changes in the database, as the store shows them now.
    fn learn_now(&self, core: &Core) -> Inner<()>;
}

/// How a share is open.
#[derive(Clone, Copy)]
pub(crate) struct Mode {
    pub read_only: bool,
    /// False if reads must not update access times.
    pub access_times: bool,
    /// See [`crate::vault::OpenOptions::caller_caches`].
    pub caller_caches: bool,
    /// Which daemons may have the vault open for writing.
    pub writers: Writers,
    /// A sync tool keeps the store equal on several machines.
    pub synced: bool,
    pub is_root_user: bool,
}

/// What is known of names beside the table of nodes, and the locks on them.
pub(crate) struct Namespace {
    dirs: Mutex<LruCache<NodeId, Arc<dyn Dir>>>,
    /// The lock of names: held for reading while one name is added or removed, for writing by
    /// operations during which a directory must not change. Both are changes under the lease.
    pub names: NameLock,
    /// Counts when directories get and lose temporary names.
    pub away: Away,
    /// The lock of stored paths. Held for writing by changes of a path. Held for reading by checks
    /// of where a file is, and by a commit from before it puts a path into a journal record until
    /// the record is applied. Taken after a file's lock; no file's lock is taken while it is held
    /// for writing.
    pub paths: RwLock<()>,
    pub evidence: Evidence,
    pub long_names: LongNames,
    /// Control files about names that this process may not read.
    pub unreadable: Unreadable,
    pub censuses: Censuses,
    /// Names that were removed from an entry while other entries claimed them.
    pub vacated: Vacated,
    /// Lists of attributes that this process wrote recently.
    pub young_lists: Young,
    /// Removed directories that could not be deleted yet.
    pub trash: Trash,
}

impl Namespace {
    fn new(names: NameLock) -> Self {
        Namespace {
            dirs: Mutex::new(LruCache::new(NonZeroUsize::new(DIRS_MAX).expect("not zero"))),
            names,
            away: Away::default(),
            paths: RwLock::new(()),
            evidence: Evidence::default(),
            long_names: LongNames::default(),
            unreadable: Unreadable::default(),
            censuses: Censuses::default(),
            vacated: Vacated::new(),
            young_lists: Young::new(),
            trash: Trash::default(),
        }
    }
}

/// What is known of the members, and of other shares.
pub(crate) struct Membership {
    /// State of the roster's files at the last refresh.
    pub seen: Mutex<Seen>,
    /// The trust store: what this client knows of other shares.
    pub trust: Trust,
    /// Held during each step of a reseal pass; no step begins once the vault is closed.
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
    /// Who may change the share at the moment, and whether the kernel may cache it.
    pub lease: Arc<Lease>,
    /// Holds the vault's lock as long as it lives.
    pub lock: Mutex<Option<VaultLock>>,
    /// The rollback database, if it is used.
    pub memory: OnceLock<Arc<dyn Witness>>,
    pub closed: AtomicBool,
    /// Free space of the store.
    pub room: Room,
    /// Receives the events that the user may want to know of.
    pub events: Events,
    pub usage: Usage,
}

/// The parts from which [`Core::new`] builds a share.
pub(crate) struct Parts {
    pub root: Arc<dyn Dir>,
    pub keys: Arc<ShareKeys>,
    pub random: Arc<dyn Random>,
    pub journal: Journal,
    pub cache: Arc<BlockCache>,
    pub mode: Mode,
    pub lock: Option<VaultLock>,
    pub trust: Trust,
    pub events: Events,
    pub usage: Usage,
}

impl Core {
    pub fn new(parts: Parts) -> Inner<Self> {
        // Before `parts` is taken apart: if this fails, its fields are dropped in their order, the
        // journal before the lock.
        let nodes = Nodes::new(&parts.root.stat_self()?, parts.keys.root_tag());
        let Parts { root, keys, random, journal, cache, mode, lock, trust, events, usage } = parts;
        let lease = journal.lease.clone();
        let names = NameLock::new(lease.clone());
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
            lease,
            lock: Mutex::new(lock),
            memory: OnceLock::new(),
            closed: AtomicBool::new(false),
            room: Room::new(),
            events,
            usage,
        })
    }

    pub fn context(&self) -> Context<'_> {
        Context {
            keys: &self.keys,
            cache: &self.cache,
            random: &*self.random,
            caller_caches: self.mode.caller_caches,
            foreign_records: self.journal.has_foreign_records(),
        }
    }

    pub fn next_serial(&self) -> u64 {
        NEXT_SERIAL.fetch_add(1, Ordering::Relaxed)
    }

    /// Converts a fault into an error about `node`.
    pub fn explain(&self, op: &'static str, node: NodeId, fault: Fault) -> Error {
        self.tell_if_full(&fault);
        fault.at(op, || self.shown_path(node))
    }

    /// Tells the user if a fault comes from a lack of room in the store.
    pub fn tell_if_full(&self, fault: &Fault) {
        let is_full = match fault.errno() {
            libc::EDQUOT => true,
            libc::ENOSPC => self.room.is_low(&*self.root, self.mode.is_root_user),
            _ => false,
        };
        if is_full {
            self.events.tell(Event::Full);
        }
    }

    /// Returns the stored path of a node, for errors and logs: it contains no plain names.
    pub fn shown_path(&self, node: NodeId) -> PathBuf {
        let path = match self.nodes.stored_path(node) {
            Some(path) if path.is_empty() => b".".to_vec(),
            Some(path) => path,
            None if self.nodes.has_long_path(node) => b"(a path that is too long)".to_vec(),
            None => b"(unlinked)".to_vec(),
        };
        PathBuf::from(std::ffi::OsString::from_vec(path))
    }

    /// Fails with `ESHUTDOWN` once the share is closed, which cancels long operations.
    pub fn check_open(&self) -> Inner<()> {
        if self.closed.load(Ordering::Acquire) { Err(Fault::Os(libc::ESHUTDOWN)) } else { Ok(()) }
    }

    pub fn check_writable(&self) -> Inner<()> {
        self.check_open()?;
        if self.mode.read_only || !self.keys.signing.may_write() {
            Err(Fault::Os(libc::EROFS))
        } else {
            Ok(())
        }
    }

    /// Locks for adding or removing a name: see [`NameLock::read`].
    ///
    /// # Errors
    /// `EROFS` if this identity may not write, or not any more; those of the lock.
    pub fn lock_names(&self) -> Inner<NameReadGuard<'_>> {
        self.check_writable()?;
        let names = self.namespace.names.read()?;
        self.look_for_news();
        self.check_writable()?;
        Ok(names)
    }

    /// Locks all names: see [`NameLock::write`].
    ///
    /// # Errors
    /// Those of [`Core::lock_names`].
    pub fn lock_all_names(&self) -> Inner<NameWriteGuard<'_>> {
        self.check_writable()?;
        let names = self.namespace.names.write()?;
        self.look_for_news();
        self.check_writable()?;
        Ok(names)
    }

    // ---- directories

    /// Returns an open handle of the store for a directory.
    pub fn dir(&self, node: NodeId) -> Inner<Arc<dyn Dir>> {
        // Up to the nearest open directory, and down again: users choose the depth, so this must
        // not recurse.
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
            let above = link.parent;
            below.push((at, link));
            at = above;
        };
        // For a path too long for the cache, the end and some places at even distances are kept. So
        // a later walk upwards, as in the removal of a deep tree, opens each directory at most one
        // more time.
        let distance = below.len().div_ceil(DIRS_MAX / 2);
        while let Some((node, link)) = below.pop() {
            dir = dir.open_dir(link.stored())?;
            if !self.nodes.is(node, &dir.stat_self()?) {
                return Err(Fault::Os(libc::ESTALE));
            }
            if below.len() < distance || below.len().is_multiple_of(distance) {
                self.namespace.dirs.lock().put(node, dir.clone());
            }
        }
        Ok(dir)
    }

    /// Returns the cached handle of a directory, if there is one. A directory that has no name any
    /// more cannot be opened again.
    pub fn known_dir(&self, node: NodeId) -> Option<Arc<dyn Dir>> {
        self.namespace.dirs.lock().get(&node).cloned()
    }

    pub fn forget_dir(&self, node: NodeId) {
        self.namespace.dirs.lock().pop(&node);
    }

    /// Like [`Core::forget_dir`], for all directories.
    pub fn forget_dirs(&self) {
        self.namespace.dirs.lock().clear();
    }

    /// Returns the plain size of a file that is not open: the one that was remembered for a
    /// ciphertext of this length, or else the one that follows from the length.
    pub fn shown_size(&self, inode: (u64, u64), cipher_len: u64) -> u64 {
        match self.open.sizes.lock().get(&inode) {
            Some(&(len, size)) if len == cipher_len => size,
            _ => self.keys.layout.plain_size(cipher_len),
        }
    }

    /// Returns the stored path of an entry of a directory.
    pub fn path_in(&self, parent: NodeId, stored: &[u8]) -> Option<Vec<u8>> {
        let dir = self.nodes.stored_path(parent)?;
        Some(if dir.is_empty() { stored.to_vec() } else { [&dir[..], b"/", stored].concat() })
    }

    // ---- what the rollback database is told

    /// Notes a change of a name, before it is made.
    pub fn remember_name(&self, directory: NodeId, name: &[u8]) {
        if let Some(memory) = self.memory.get() {
            memory.note(self, directory, name, NameChange::Any);
        }
    }

    /// Notes that the object with a name was removed or renamed, after that was done.
    pub fn remember_left(&self, directory: NodeId, name: &[u8]) {
        if let Some(memory) = self.memory.get() {
            memory.note(self, directory, name, NameChange::Left);
        }
    }

    /// Notes that an object was put under a name, after that was done; see [`NameChange::Taken`].
    pub fn remember_taken(&self, directory: NodeId, name: &[u8], file: Option<([u8; 32], u64)>) {
        if let Some(memory) = self.memory.get() {
            memory.note(self, directory, name, NameChange::Taken(file));
        }
    }

    /// Returns whether the rollback database has to know which files are put under names: in a
    /// synced vault, a sync tool can replace them before the database has looked at the store.
    pub fn remembers_taken(&self) -> bool {
        self.mode.synced && self.memory.get().is_some()
    }

    /// Notes renames of directories.
    pub fn remember_moves(&self, moves: &[Move]) {
        if let Some(memory) = self.memory.get()
            && !moves.is_empty()
        {
            memory.follow(self, moves);
        }
    }

    /// Notes a commit of the file with this id, before the commit is made. `base` is the version
    /// that the commit builds on, if that was read from the store since the last commit.
    pub fn remember_commit(&self, node: NodeId, id: &[u8; 32], base: Option<u64>) {
        let Some(memory) = self.memory.get() else { return };
        memory.note_file(id, 0);
        if let Ok(link) = self.nodes.link(node) {
            memory.note(self, link.parent, link.name(), NameChange::Written);
            if let Some(version) = base {
                memory.note_base(self, link.parent, link.name(), id, version);
            }
        }
    }

    /// Notes that the file with this id was committed with this version.
    pub fn remember_version(&self, id: &[u8; 32], version: u64) {
        if let Some(memory) = self.memory.get() {
            memory.note_file(id, version);
        }
    }

    /// Notes whether the commit of the file that had the name `link` was made under that name.
    pub fn remember_written(&self, link: &Link, is_written: bool) {
        if let Some(memory) = self.memory.get() {
            memory.note_written(self, link.parent, link.name(), is_written);
        }
    }
}
