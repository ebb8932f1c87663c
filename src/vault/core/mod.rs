//! What an open vault consists of, and how its parts find each other.

pub(super) mod inodes;
pub(super) mod long_copies;
pub(super) mod refresh;
pub(super) mod vacated;
pub(super) mod vault_lock;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lru::LruCache;
use parking_lot::{Mutex, RwLock};

use crate::crypto::Random;
use crate::format::name::DIRECTORY_RECORD;
use crate::format::record::{self, DirectoryRecord, RecordKind};
use crate::store::{Dir, Kind, Stat};
use crate::vault::core::inodes::{Link, Nodes};
use crate::vault::durability::journal::Journal;
use crate::vault::error::{Error, Fault, Inner};
use crate::vault::file::Tools;
use crate::vault::file::block_cache::BlockCache;
use crate::vault::keyring::keys::{DirectoryId, ShareKeys};
use crate::vault::open_files::concurrent::Names;
use crate::vault::open_files::{Open, Shared};
use crate::vault::share::control_files::read_control;
use crate::vault::share::trust::Trust;
use crate::vault::types::{Attr, Handle, NodeId, ROOT};

/// Of a directory whose record names another place.
const MOVED: &str = "is a directory that was moved here by somebody without the key";
/// Directory handles of the store that are kept open.
const DIRS_MAX: usize = 512;
/// Directories below each other that are followed: where the store moves them about, what is
/// remembered of it may go in a circle.
pub(crate) const DEPTH_MAX: usize = 1 << 16;

/// Inodes of which a size is remembered that does not follow from the ciphertext's length.
const SIZES_MAX: usize = 4096;

/// Number of the next open file, whichever share it is of: shares have one cache.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

/// An open vault.
pub(crate) struct Core {
    pub root: Arc<dyn Dir>,
    pub keys: Arc<ShareKeys>,
    pub random: Arc<dyn Random>,
    /// Common to all shares of a vault.
    pub cache: Arc<BlockCache>,
    pub nodes: Nodes,
    pub journal: Journal,
    dirs: Mutex<LruCache<NodeId, Arc<dyn Dir>>>,
    pub files: Mutex<HashMap<NodeId, Shared>>,
    pub handles: RwLock<HashMap<Handle, Open>>,
    /// Inodes whose ciphertext is longer than their authenticated size makes it: that length, and
    /// the size.
    pub sizes: Mutex<LruCache<(u64, u64), (u64, u64)>>,
    pub(super) next_handle: AtomicU64,
    /// Calls of [`Core::write`].
    pub(super) writes: AtomicU64,
    /// Names: taken for reading by what adds or removes one name, for writing by what must see a
    /// directory stand still.
    pub names: Names,
    /// Directories that have another name for a moment.
    pub away: crate::vault::membership::convert::Away,
    /// Stored paths: held for reading by a commit from the moment it puts a path into a journal
    /// record until the record is applied, for writing by what changes a path. Taken after a file's
    /// lock, and no file's lock is taken while it is held for writing.
    pub paths: RwLock<()>,
    /// Long names of which sync tools have made conflict copies.
    pub long_copies: crate::vault::core::long_copies::LongCopies,
    /// Names that were taken from an entry while others claimed them.
    pub vacated: crate::vault::core::vacated::Vacated,
    /// Lists of attributes that were written a short while ago.
    pub young_lists: crate::vault::namespace::overflow::Young,
    /// Removed directories that could not be deleted as yet.
    pub trash: crate::vault::namespace::trash::Trash,
    /// What the roster was made of at the last look.
    pub seen: Mutex<crate::vault::core::refresh::Seen>,
    pub read_only: bool,
    /// False where reading is to leave no trace in the times of access.
    pub access_times: bool,
    /// See [`crate::vault::OpenOptions::caller_caches`].
    pub caller_caches: bool,
    /// Other daemons may have the vault open for writing too.
    pub shared: bool,
    /// Holds the vault's lock as long as it lives.
    pub lock: Mutex<Option<crate::vault::core::vault_lock::VaultLock>>,
    /// What is remembered of other shares.
    pub trust: Trust,
    pub is_root_user: bool,
    /// What this client remembers of the vault, where it does.
    pub memory: std::sync::OnceLock<Arc<crate::vault::rollback::Memory>>,
    pub closed: AtomicBool,
    /// How much room the store has.
    pub room: crate::vault::open_files::space::Room,
    /// Held for each step of a re-sealing pass, none of which is begun once the vault is closed.
    pub passing: Mutex<()>,
}

/// The parts from which [`Core::new`] puts a vault together.
pub(crate) struct Parts {
    pub root: Arc<dyn Dir>,
    pub keys: Arc<ShareKeys>,
    pub random: Arc<dyn Random>,
    pub journal: Journal,
    pub cache: Arc<BlockCache>,
    pub read_only: bool,
    pub access_times: bool,
    pub caller_caches: bool,
    pub shared: bool,
    pub lock: Option<crate::vault::core::vault_lock::VaultLock>,
    pub trust: Trust,
}

impl Core {
    pub fn new(parts: Parts) -> Inner<Self> {
        let directory = parts.keys.root_directory();
        let nodes = Nodes::new(&parts.root.stat_self()?, directory);
        let names = Names::new((parts.shared && !parts.read_only).then(|| parts.root.clone()));
        Ok(Core {
            nodes,
            root: parts.root,
            keys: parts.keys,
            random: parts.random,
            cache: parts.cache,
            journal: parts.journal,
            dirs: Mutex::new(LruCache::new(NonZeroUsize::new(DIRS_MAX).expect("not zero"))),
            files: Mutex::new(HashMap::new()),
            handles: RwLock::new(HashMap::new()),
            sizes: Mutex::new(LruCache::new(NonZeroUsize::new(SIZES_MAX).expect("not zero"))),
            next_handle: AtomicU64::new(1),
            writes: AtomicU64::new(0),
            names,
            away: crate::vault::membership::convert::Away::default(),
            paths: RwLock::new(()),
            long_copies: crate::vault::core::long_copies::LongCopies::new(),
            vacated: crate::vault::core::vacated::Vacated::new(),
            young_lists: crate::vault::namespace::overflow::Young::new(),
            trash: crate::vault::namespace::trash::Trash::default(),
            seen: Mutex::default(),
            read_only: parts.read_only,
            access_times: parts.access_times,
            caller_caches: parts.caller_caches,
            shared: parts.shared,
            lock: Mutex::new(parts.lock),
            trust: parts.trust,
            is_root_user: rustix::process::geteuid().is_root(),
            memory: std::sync::OnceLock::new(),
            closed: AtomicBool::new(false),
            room: crate::vault::open_files::space::Room::new(),
            passing: Mutex::new(()),
        })
    }

    pub fn tools(&self) -> Tools<'_> {
        Tools {
            keys: &self.keys,
            cache: &self.cache,
            random: &*self.random,
            caller_caches: self.caller_caches,
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
        if self.read_only || !self.keys.signing.may_write() {
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
            if let Some(dir) = self.dirs.lock().get(&at) {
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
                self.dirs.lock().put(node, dir.clone());
            }
        }
        Ok(dir)
    }

    /// The handle of a directory that was used before, for one that has no name any more.
    pub fn known_dir(&self, node: NodeId) -> Option<Arc<dyn Dir>> {
        self.dirs.lock().get(&node).cloned()
    }

    /// A directory that somebody has open.
    pub fn listed_dir(&self, node: NodeId) -> Option<Arc<dyn Dir>> {
        self.handles.read().values().find_map(|open| match open {
            Open::Dir { node: listed, dir, .. } if *listed == node => Some(dir.clone()),
            _ => None,
        })
    }

    pub fn forget_dir(&self, node: NodeId) {
        self.dirs.lock().pop(&node);
    }

    /// As [`Core::forget_dir`], of all.
    pub fn forget_dirs(&self) {
        self.dirs.lock().clear();
    }

    /// Id of a directory: the recorded one where it has been renamed, else the one that follows
    /// from its place.
    pub fn directory_id(&self, node: NodeId) -> Inner<DirectoryId> {
        if let Some(id) = self.nodes.directory(node) {
            return Ok(id);
        }
        let link = self.nodes.link(node)?;
        let parent = self.folder(link.parent)?;
        let dir = self.dir(node)?;
        let place = parent.place_name(&link.stored, &link.name)?;
        self.check_boundary(&*dir, &*parent.dir, &parent.id, &place)?;
        let id = match parent.identify(&*dir, &link.stored, &link.name) {
            // Another daemon has renamed it since we looked it up here.
            Err(Fault::Corrupt(MOVED)) if self.shared && !self.stands_at(node, &link) => {
                return Err(Fault::Os(libc::ESTALE));
            }
            identified => identified?.1,
        };
        self.nodes.set_directory(node, Some(id));
        Ok(id)
    }

    /// Whether the store has a node where our table has it.
    fn stands_at(&self, node: NodeId, link: &Link) -> bool {
        let stat = self.dir(link.parent).and_then(|dir| Ok(dir.stat(&link.stored)?));
        stat.is_ok_and(|stat| self.nodes.is(node, &stat))
    }

    /// Id of the directory `dir` that stands at (`parent`, `name`), and its record if it has one.
    pub fn identify(
        &self,
        dir: &dyn Dir,
        parent: &DirectoryId,
        name: &[u8],
    ) -> Inner<(DirectoryId, Option<DirectoryRecord>)> {
        let Some(bytes) = read_control(dir, DIRECTORY_RECORD, 4096)? else {
            return Ok((self.keys.derived_directory(parent, name), None));
        };
        let plain = self.keys.open_record(RecordKind::Directory, b"", &bytes)?;
        let record = DirectoryRecord::decode(&plain)?;
        if !record.is_at(parent, name) {
            return Err(Fault::Corrupt(MOVED));
        }
        Ok((record.id, Some(record)))
    }

    // ---- attributes

    /// Attributes of an object of the store as node `node`. `ESTALE` where the caller caches
    /// another size of this node.
    pub fn attr(&self, node: NodeId, stat: &Stat, dir: Option<(&dyn Dir, &[u8])>) -> Inner<Attr> {
        let mut attr = Attr {
            node,
            ino: stat.ino,
            kind: stat.kind,
            perm: stat.perm,
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            rdev: stat.rdev,
            size: stat.size,
            blocks: stat.blocks,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
        };
        match stat.kind {
            Kind::File => {
                let inode = (stat.dev, stat.ino);
                let open = self.files.lock().get(&node).map(|s| s.file.clone());
                if let Some((len, mtime)) = self.journal.overlaid_stat(inode) {
                    (attr.size, attr.mtime) = (self.shown_size(inode, len), mtime);
                } else {
                    attr.size = self.shown_size(inode, stat.size);
                }
                if let Some(open) = open {
                    if self.shared {
                        // What cannot be read now shows as it was; reading tells.
                        let _ = self.freshen(&open);
                    }
                    let state = open.state.read();
                    attr.size = state.size;
                    if let Some(mtime) = state.mtime.shown() {
                        attr.mtime = mtime;
                        attr.ctime = attr.ctime.max(mtime);
                    }
                } else if self.caller_caches
                    && !self.nodes.tell_size(node, attr.size, attr.mtime)?
                {
                    return Err(self.check_size(node, dir));
                }
            }
            Kind::Symlink => attr.size = self.symlink_size(stat, dir),
            _ => {}
        }
        Ok(attr)
    }

    /// Where an answer would tell another size of a file than the kernel caches: retires the node,
    /// unless `stat` was only from before a commit. The caller looks once more in both cases.
    fn check_size(&self, node: NodeId, place: Option<(&dyn Dir, &[u8])>) -> Fault {
        let files = self.files.lock();
        let told = || {
            let (dir, stored) = place?;
            let stat = dir.stat(stored).ok()?;
            let len =
                self.journal.overlaid_stat((stat.dev, stat.ino)).map_or(stat.size, |(len, _)| len);
            self.nodes.tell_size(node, self.shown_size((stat.dev, stat.ino), len), stat.mtime).ok()
        };
        if !files.contains_key(&node) && told() != Some(true) {
            self.nodes.retire(node);
        }
        Fault::Os(libc::ESTALE)
    }

    /// Plain size of a file that is not open, from the length of its ciphertext.
    pub fn shown_size(&self, inode: (u64, u64), cipher_len: u64) -> u64 {
        match self.sizes.lock().get(&inode) {
            Some(&(len, size)) if len == cipher_len => size,
            _ => self.keys.layout.plain_size(cipher_len),
        }
    }

    /// Plain size of a link from the length of its text; one that overflows into a control file
    /// tells it inside.
    fn symlink_size(&self, stat: &Stat, dir: Option<(&dyn Dir, &[u8])>) -> u64 {
        if stat.size == crate::vault::namespace::symlink::overflow_text_len(self.keys.signed())
            && let Some((dir, stored)) = dir
            && let Ok(target) = self.read_target(dir, stored)
        {
            return target.len() as u64;
        }
        record::link_target_len(stat.size, self.keys.signed())
    }

    /// `stat` of a node by one of its names; where it has none any more by its open file, or as it
    /// was with the last.
    pub fn stat(&self, node: NodeId) -> Inner<Attr> {
        if node == ROOT {
            return self.attr(node, &self.root.stat_self()?, None);
        }
        let place = self.nodes.link(node).and_then(|link| Ok((self.dir(link.parent)?, link)));
        match place {
            Ok((dir, link)) => {
                let is_retired = || self.caller_caches && self.nodes.cached(node).is_err();
                let stat = match dir.stat(&link.stored) {
                    Ok(stat) if self.nodes.is(node, &stat) => stat,
                    // Another daemon, or another program in the store, may have given it another
                    // name.
                    other
                        if (other.is_ok() || is_gone(&other))
                            && self.nodes.kind(node)? == Kind::File =>
                    {
                        let open = self.files.lock().get(&node).map(|s| s.file.clone());
                        return match (open, other) {
                            (Some(open), _) => self.attr(node, &open.file.stat()?, None),
                            // The kernel looks the name of a retired node up once more.
                            (None, Err(e)) if !self.shared && !is_retired() => Err(e.into()),
                            (None, _) => Err(Fault::Os(libc::ESTALE)),
                        };
                    }
                    other if self.shared && (other.is_ok() || is_gone(&other)) => {
                        return Err(Fault::Os(libc::ESTALE));
                    }
                    // Another directory has taken its place, a moment ago; who lists it goes on
                    // with what he has.
                    Ok(_) => {
                        return self.attr(
                            node,
                            &self.listed_dir(node).ok_or(Fault::Os(libc::ESTALE))?.stat_self()?,
                            None,
                        );
                    }
                    Err(e) => return Err(e.into()),
                };
                match self.attr(node, &stat, Some((&*dir, &link.stored))) {
                    Err(Fault::Os(libc::ESTALE)) if stat.kind == Kind::File => {
                        self.attr(node, &dir.stat(&link.stored)?, Some((&*dir, &link.stored)))
                    }
                    other => other,
                }
            }
            // It has no name any more, or stands in a folder whose place another one has taken.
            Err(fault) => {
                let open = self.files.lock().get(&node).map(|s| s.file.clone());
                match open {
                    Some(open) => self.attr(node, &open.file.stat()?, None),
                    None if self.nodes.link(node).is_ok() => Err(fault),
                    None => match (
                        self.known_dir(node).or_else(|| self.listed_dir(node)),
                        self.nodes.last_stat(node),
                    ) {
                        (Some(dir), _) => self.attr(node, &dir.stat_self()?, None),
                        (None, Some(last)) => self.attr(node, &last, None),
                        (None, None) => Err(fault),
                    },
                }
            }
        }
    }
}

fn is_gone<T>(result: &std::io::Result<T>) -> bool {
    matches!(result, Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)))
}
