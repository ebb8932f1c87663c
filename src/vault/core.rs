//! What an open vault consists of, and how its parts find each other.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lru::LruCache;
use parking_lot::{Mutex, RwLock};

use super::cache::BlockCache;
use super::commit::{Committer, Durability};
use super::error::{Error, Fault, Inner};
use super::file::{FileState, OpenFile, Tools};
use super::journal::Journal;
use super::keys::{DirectoryId, ShareKeys};
use super::nodes::Nodes;
use super::together::{Names, open_to_lock};
use super::trust::Trust;
use super::types::{Attr, Handle, NodeId, OpenFlags, ROOT};
use crate::backing::{Access, Dir, Kind, Lock, Stat};
use crate::crypto::Random;
use crate::format::name::DIRECTORY_RECORD;
use crate::format::record::{self, DirectoryRecord, RecordKind};
use crate::format::signature::Authorship;

/// Directory handles of the store that are kept open.
const DIRS_MAX: usize = 512;
/// Directories below each other that are followed: where the store moves them about, what is remembered of it may go in a circle.
const DEPTH_MAX: usize = 1 << 16;

/// How long the background waits for its turn with a file that others work on.
const TURN: Duration = Duration::from_secs(1);

/// Inodes of which a size is remembered that does not follow from the ciphertext's length.
const SIZES_MAX: usize = 4096;

/// Number of the next open file, whichever share it is of: shares have one cache.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

/// What a handle stands for.
#[derive(Clone)]
pub(crate) enum Open {
    File {
        file: Arc<OpenFile>,
        flags: OpenFlags,
    },
    /// `unread` is set when a listing came upon an entry whose name cannot be read as yet.
    Dir {
        node: NodeId,
        dir: Arc<dyn Dir>,
        directory: DirectoryId,
        unread: Arc<AtomicBool>,
    },
}

/// An open file and how many handles it has.
pub(crate) struct Shared {
    pub file: Arc<OpenFile>,
    pub handles: usize,
    pub writers: usize,
}

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
    /// Inodes whose ciphertext is longer than their authenticated size makes it: that length, and the size.
    pub sizes: Mutex<LruCache<(u64, u64), (u64, u64)>>,
    next_handle: AtomicU64,
    /// Names: taken for reading by what adds or removes one name, for writing by what must see a directory stand still.
    pub names: Names,
    /// Stored paths: held for reading by a commit from the moment it puts a path into a journal record until the record is applied, for
    /// writing by what changes a path. Taken after a file's lock, and no file's lock is taken while it is held for writing.
    pub paths: RwLock<()>,
    /// Long names of which sync tools have made conflict copies.
    pub long_copies: super::copies::LongCopies,
    /// Lists of attributes that were written a short while ago.
    pub young_lists: super::overflow::Young,
    /// What the roster was made of at the last look.
    pub seen: Mutex<super::refresh::Seen>,
    pub read_only: bool,
    /// False where reading is to leave no trace in the times of access.
    pub access_times: bool,
    /// See [`super::OpenOptions::caller_keeps_times`].
    pub caller_keeps_times: bool,
    /// Other daemons may have the vault open for writing too.
    pub shared: bool,
    /// Holds the vault's lock as long as it lives.
    pub lock: Mutex<Option<super::lock::VaultLock>>,
    /// What is remembered of other shares.
    pub trust: Trust,
    pub is_root_user: bool,
    /// What this client remembers of the vault, where it does.
    pub memory: std::sync::OnceLock<Arc<super::memory::Memory>>,
    pub closed: AtomicBool,
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
    pub caller_keeps_times: bool,
    pub shared: bool,
    pub lock: Option<super::lock::VaultLock>,
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
            names,
            paths: RwLock::new(()),
            long_copies: super::copies::LongCopies::new(),
            young_lists: super::overflow::Young::new(),
            seen: Mutex::default(),
            read_only: parts.read_only,
            access_times: parts.access_times,
            caller_keeps_times: parts.caller_keeps_times,
            shared: parts.shared,
            lock: Mutex::new(parts.lock),
            trust: parts.trust,
            is_root_user: rustix::process::geteuid().is_root(),
            memory: std::sync::OnceLock::new(),
            closed: AtomicBool::new(false),
            passing: Mutex::new(()),
        })
    }

    pub fn tools(&self) -> Tools<'_> {
        Tools { keys: &self.keys, cache: &self.cache, random: &*self.random, caller_keeps_times: self.caller_keeps_times }
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
        PathBuf::from(std::ffi::OsString::from_vec(if path.is_empty() { b".".to_vec() } else { path }))
    }

    pub fn check_writable(&self) -> Inner<()> {
        if self.read_only || !self.keys.signing.may_write() { Err(Fault::Os(libc::EROFS)) } else { Ok(()) }
    }

    // ---- directories

    /// An open handle of the store for a directory.
    pub fn dir(&self, node: NodeId) -> Inner<Arc<dyn Dir>> {
        // Up to the nearest one that is open, and down again: depth is somebody else's choice and must not be that of our stack.
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
        while let Some((node, stored)) = below.pop() {
            dir = dir.open_dir(&stored)?;
            if !self.nodes.is(node, &dir.stat_self()?) {
                return Err(Fault::Os(libc::ESTALE));
            }
            self.dirs.lock().put(node, dir.clone());
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

    /// Id of a directory: the recorded one where it has been renamed, else the one that follows from its place.
    pub fn directory_id(&self, node: NodeId) -> Inner<DirectoryId> {
        if let Some(id) = self.nodes.directory(node) {
            return Ok(id);
        }
        let link = self.nodes.link(node)?;
        let parent = self.directory_id(link.parent)?;
        let place = self.keys.place_name(&parent, &link.stored, &link.name).len();
        let dir = self.dir(node)?;
        self.check_boundary(&*dir, &*self.dir(link.parent)?, &parent, &link.name[..place])?;
        let id = self.identify(&*dir, &parent, &link.name[..place])?.0;
        self.nodes.set_directory(node, Some(id));
        Ok(id)
    }

    /// Id of the directory `dir` that stands at (`parent`, `name`), and its record if it has one.
    pub fn identify(&self, dir: &dyn Dir, parent: &DirectoryId, name: &[u8]) -> Inner<(DirectoryId, Option<DirectoryRecord>)> {
        let Some(bytes) = read_control(dir, DIRECTORY_RECORD, 4096)? else {
            return Ok((self.keys.derived_directory(parent, name), None));
        };
        let plain = self.keys.open_record(RecordKind::Directory, b"", &bytes)?;
        let record = DirectoryRecord::decode(&plain)?;
        if !record.is_at(parent, name) {
            return Err(Fault::Corrupt("is a directory that was moved here by somebody without the key"));
        }
        Ok((record.id, Some(record)))
    }

    // ---- attributes

    /// Attributes of an object of the store as node `node`.
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
                match self.journal.overlaid_stat(inode) {
                    Some((len, mtime)) => (attr.size, attr.mtime) = (self.shown_size(inode, len), mtime),
                    None => attr.size = self.shown_size(inode, stat.size),
                }
                let open = self.files.lock().get(&node).map(|s| s.file.clone());
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
                }
            }
            Kind::Symlink => attr.size = self.symlink_size(stat, dir),
            _ => {}
        }
        Ok(attr)
    }

    /// Plain size of a file that is not open, from the length of its ciphertext.
    pub fn shown_size(&self, inode: (u64, u64), cipher_len: u64) -> u64 {
        match self.sizes.lock().get(&inode) {
            Some(&(len, size)) if len == cipher_len => size,
            _ => self.keys.layout.plain_size(cipher_len),
        }
    }

    /// Plain size of a link from the length of its text; one that overflows into a control file tells it inside.
    fn symlink_size(&self, stat: &Stat, dir: Option<(&dyn Dir, &[u8])>) -> u64 {
        if stat.size == super::symlink::overflow_text_len(self.keys.signed())
            && let Some((dir, stored)) = dir
            && let Ok(target) = self.read_target(dir, stored)
        {
            return target.len() as u64;
        }
        record::link_target_len(stat.size, self.keys.signed())
    }

    /// `stat` of a node by one of its names; where it has none any more by its open file, or as it was with the last.
    pub fn stat(&self, node: NodeId) -> Inner<Attr> {
        if node == ROOT {
            return self.attr(node, &self.root.stat_self()?, None);
        }
        let place = self.nodes.link(node).and_then(|link| Ok((self.dir(link.parent)?, link)));
        match place {
            Ok((dir, link)) => {
                let stat = match dir.stat(&link.stored) {
                    Ok(stat) if self.nodes.is(node, &stat) => stat,
                    // Another daemon may have given it another name.
                    other if self.shared && (other.is_ok() || is_gone(&other)) => {
                        let open = self.files.lock().get(&node).map(|s| s.file.clone());
                        let open = open.ok_or(Fault::Os(libc::ESTALE))?;
                        return self.attr(node, &open.file.stat()?, None);
                    }
                    // Another directory has taken its place, a moment ago; who lists it goes on with what he has.
                    Ok(_) => return self.attr(node, &self.listed_dir(node).ok_or(Fault::Os(libc::ESTALE))?.stat_self()?, None),
                    Err(e) => return Err(e.into()),
                };
                self.attr(node, &stat, Some((&*dir, &link.stored)))
            }
            // It has no name any more, or stands in a folder whose place another one has taken.
            Err(fault) => {
                let open = self.files.lock().get(&node).map(|s| s.file.clone());
                match open {
                    Some(open) => self.attr(node, &open.file.stat()?, None),
                    None if self.nodes.link(node).is_ok() => Err(fault),
                    None => match (self.known_dir(node).or_else(|| self.listed_dir(node)), self.nodes.last_stat(node)) {
                        (Some(dir), _) => self.attr(node, &dir.stat_self()?, None),
                        (None, Some(last)) => self.attr(node, &last, None),
                        (None, None) => Err(fault),
                    },
                }
            }
        }
    }

    // ---- open files

    pub fn put_handle(&self, open: Open) -> Handle {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles.write().insert(handle, open);
        handle
    }

    pub fn handle(&self, handle: Handle) -> Inner<Open> {
        self.handles.read().get(&handle).cloned().ok_or(Fault::Os(libc::EBADF))
    }

    pub fn file_handle(&self, handle: Handle) -> Inner<(Arc<OpenFile>, OpenFlags)> {
        match self.handle(handle)? {
            Open::File { file, flags } => Ok((file, flags)),
            Open::Dir { .. } => Err(Fault::Os(libc::EISDIR)),
        }
    }

    /// The open file of a node, opened now if it is not, with one more handle.
    pub fn acquire(&self, node: NodeId, flags: OpenFlags) -> Inner<Arc<OpenFile>> {
        self.patiently(flags.write, || self.acquire_now(node, flags), node)
    }

    fn acquire_now(&self, node: NodeId, flags: OpenFlags) -> Inner<Arc<OpenFile>> {
        let mut files = self.files.lock();
        if self.nodes.is_moved_away(node) {
            return Err(Fault::Os(libc::ESTALE));
        }
        if let Some(shared) = files.get_mut(&node) {
            if self.shared && flags.write {
                self.guard(&shared.file)?;
            }
            shared.handles += 1;
            shared.writers += usize::from(flags.write);
            let open = shared.file.clone();
            drop(files);
            if self.shared
                && !flags.truncate
                && let Err(fault) = self.freshen(&open)
            {
                let _ = self.release(&open, flags);
                return Err(fault);
            }
            return Ok(open);
        }
        let link = self.nodes.link(node)?;
        let dir = self.dir(link.parent)?;
        // Read-write even for readers: the kernel's cache reads on write-only handles, and a writer may come later.
        let file = match dir.open_file(&link.stored, if self.read_only { Access::Read } else { Access::ReadWrite }) {
            Err(e) if !flags.write && matches!(e.raw_os_error(), Some(libc::EACCES | libc::EROFS | libc::EPERM)) => {
                dir.open_file(&link.stored, Access::Read)?
            }
            other => other?,
        };
        if !self.access_times {
            file.keep_access_time();
        }
        let stat = file.stat()?;
        if !self.nodes.is(node, &stat) {
            return Err(Fault::Os(libc::ESTALE));
        }
        let mut guard = None;
        if self.shared && flags.write {
            let handle = open_to_lock(&*dir, &link.stored)?;
            let its = handle.stat()?;
            if (its.dev, its.ino) != (stat.dev, stat.ino) {
                return Err(Fault::Os(libc::ESTALE));
            }
            if !handle.try_lock(Lock::Exclusive)? {
                return Err(Fault::Os(libc::EBUSY));
            }
            guard = Some(handle);
        }
        if flags.truncate {
            self.journal.suspend_repair((stat.dev, stat.ino));
            // Before it is in the table: what is there is committed by the last close.
            self.journal.settle(Some((stat.dev, stat.ino)))?;
        } else {
            self.journal.repair((stat.dev, stat.ino), &|| self.nodes.stored_path(node))?;
        }
        self.journal.forget_lost((stat.dev, stat.ino));
        let file = self.journal.overlay(file)?;
        let loaded = OpenFile::load(node, file, &self.tools(), self.next_serial(), flags.truncate);
        if loaded.is_err() {
            self.journal.keep_repair((stat.dev, stat.ino));
        }
        let file = loaded?;
        *file.guard.lock() = guard;
        self.insert_open(&mut files, node, file.clone(), flags);
        Ok(file)
    }

    /// Whose contents a file holds, by its committed header.
    pub fn author(&self, node: NodeId) -> Inner<Option<Authorship>> {
        if self.nodes.kind(node)? != Kind::File {
            return Err(Fault::Os(libc::EINVAL));
        }
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let open = self.acquire(node, flags)?;
        let by = open.state.read().by;
        self.release(&open, flags)?;
        Ok(by)
    }

    /// Enters a file that was just opened or created.
    pub fn insert_open(&self, files: &mut HashMap<NodeId, Shared>, node: NodeId, file: Arc<OpenFile>, flags: OpenFlags) {
        self.nodes.opened(node);
        files.insert(node, Shared { file, handles: 1, writers: usize::from(flags.write) });
    }

    /// Commits a file.
    pub fn commit(&self, open: &OpenFile, durability: Durability) -> Inner<()> {
        self.commit_state(open, &mut open.state.write(), durability)
    }

    /// Commits a file whose lock is held.
    pub fn commit_state(&self, open: &OpenFile, state: &mut FileState, durability: Durability) -> Inner<()> {
        if state.changed
            && let Ok(link) = self.nodes.link(open.node)
            && let Some(directory) = self.nodes.directory(link.parent)
        {
            state.hint.directory = directory;
            state.hint.name.clear();
            state.hint.name.extend_from_slice(&link.name);
        }
        let next_serial = || self.next_serial();
        let committer = Committer { tools: self.tools(), journal: &self.journal, next_serial: &next_serial, shared: self.shared };
        if state.changed {
            self.remember_commit(open.node);
        }
        let _paths = self.paths.read();
        state.needs_sync |= open.inode_changed.swap(false, Ordering::AcqRel);
        let _pinned = if self.shared { Some(self.begin_together(open, state)?) } else { None };
        let committed = committer.commit(state, open, &|| self.record_path(open), durability);
        state.count(&self.tools());
        committed?;
        if self.shared { self.end_together(open, state) } else { Ok(()) }
    }

    /// Lets go of one handle of an open file; the last one commits, unless no name leads to the file any more.
    pub fn release(&self, open: &Arc<OpenFile>, flags: OpenFlags) -> Inner<()> {
        let mut committed = None;
        loop {
            let mut files = self.files.lock();
            let Some(shared) = files.get_mut(&open.node) else { break };
            let last_writer = self.shared && flags.write && shared.writers == 1;
            if (shared.handles == 1 || last_writer) && !self.read_only {
                // Whoever opened, wrote and closed while this one committed was not the last, and has left his change to it.
                let Some(changed) = open.state.try_read().map(|state| state.changed && state.latched.is_none()) else {
                    drop(files);
                    drop(open.state.read());
                    continue;
                };
                let due = committed.is_none() || changed && matches!(committed, Some(Ok(())));
                if due && self.has_name(open) {
                    // Committed while still in the table, so that a lookup in between sees the right size.
                    drop(files);
                    committed = Some(self.commit_last(open));
                    continue;
                }
            }
            shared.handles -= 1;
            shared.writers -= usize::from(flags.write);
            if last_writer && open.state.try_read().is_some_and(|state| !state.changed || state.latched.is_some()) {
                self.unguard(open);
            }
            if shared.handles == 0 {
                // What waits for a head that opens stays in the table without a handle, until a later commit has written it.
                let waits = matches!(committed, Some(Err(_))) && self.keys.signing.waits();
                if waits && open.state.try_read().is_some_and(|state| state.changed && state.latched.is_none()) {
                    break;
                }
                self.note_closed(open);
                files.remove(&open.node);
                drop(files);
                self.nodes.closed(open.node);
            }
            break;
        }
        committed.unwrap_or(Ok(()))
    }

    /// Notes in what state a file is closed.
    fn note_closed(&self, open: &OpenFile) {
        let state = open.state.try_read();
        let settled = state.as_ref().filter(|state| !state.changed && state.latched.is_none());
        self.nodes.set_closed_as(open.node, settled.and_then(|state| state_mark(state)));
    }

    /// Whether a file that was just loaded is in the state in which it was closed here: pages of another one, which somebody has put in its
    /// place in the store, the kernel must not show beside those of this one.
    pub fn is_as_closed(&self, open: &OpenFile) -> bool {
        let closed = self.nodes.closed_as(open.node);
        closed.is_some() && closed == state_mark(&open.state.read())
    }

    /// The commit of the last close. A file whose old contents were thrown away is made durable at once: the program has put new ones there,
    /// and either of the two it would like to find after a crash. Nobody waits for it: the kernel closes files in the background.
    fn commit_last(&self, open: &OpenFile) -> Inner<()> {
        let mut state = open.state.write();
        let durability = if state.replaced { Durability::Synced } else { Durability::Ordered };
        self.commit_state(open, &mut state, durability)
    }

    /// The stored path that a record of the file names; `None` where no name leads to it any more. A hard link that nobody has looked up is
    /// searched for: without a record, places would be overwritten that it refers to.
    fn record_path(&self, open: &OpenFile) -> Inner<Option<Vec<u8>>> {
        if let Some(path) = self.nodes.stored_path(open.node)
            && (!self.shared || self.leads_to(&path, open.inode))
        {
            return Ok(Some(path));
        }
        let stat = open.file.stat()?;
        if stat.nlink == 0 {
            return Ok(None);
        }
        let mut left = vec![Vec::new()];
        while let Some(path) = left.pop() {
            let dir =
                path.split(|b| *b == b'/').filter(|name| !name.is_empty()).try_fold(self.root.clone(), |dir, name| dir.open_dir(name));
            let Ok(dir) = dir else { continue };
            for entry in list(&*dir)? {
                let below = || if path.is_empty() { entry.name.to_vec() } else { [&path[..], b"/", &entry.name].concat() };
                let known = entry.kind.or_else(|| dir.stat(&entry.name).ok().map(|stat| stat.kind));
                match known {
                    Some(Kind::Dir) => left.push(below()),
                    Some(Kind::File) if entry.ino == stat.ino && dir.stat(&entry.name).is_ok_and(|there| there.dev == stat.dev) => {
                        return Ok(Some(below()));
                    }
                    _ => {}
                }
            }
        }
        tracing::error!("a hard link of an open file is not found: what was written to it is not committed");
        Err(Fault::Os(libc::EIO))
    }

    /// Whether a name leads to the file: one that is known here, or a hard link that nobody has looked up yet.
    pub fn has_name(&self, open: &OpenFile) -> bool {
        self.nodes.link(open.node).is_ok() || open.file.stat().map_or(true, |stat| stat.nlink > 0)
    }

    /// Commits every open file that has been dirty for `age`.
    pub fn commit_due(&self, age: Duration) {
        let is_due = |s: &FileState| s.changed && s.dirty_since.is_some_and(|since| since.elapsed() >= age);
        let mut busy = Vec::new();
        let files: Vec<_> = self.files.lock().values().map(|s| s.file.clone()).collect();
        for open in files {
            match open.state.try_read().map(|state| is_due(&state)) {
                Some(true) => self.commit_deferred(&open),
                Some(false) => {}
                None => busy.push(open),
            }
        }
        // Those that somebody works on come last, and wait for their turn: else a file that is never idle would never be committed.
        for open in busy {
            if open.state.try_read_for(TURN).is_some_and(|state| is_due(&state)) {
                self.commit_deferred(&open);
            }
        }
    }

    fn commit_deferred(&self, open: &Arc<OpenFile>) {
        if let Err(fault) = self.commit(open, Durability::Ordered) {
            // The error stays with the file: whoever writes, flushes or closes it is told.
            tracing::error!(path = %self.shown_path(open.node).display(), errno = fault.errno(), "deferred commit failed");
        }
        self.drop_unused(open);
    }

    /// Drops a file that has stayed in the table without a handle, once it is written or cannot be any more.
    fn drop_unused(&self, open: &Arc<OpenFile>) {
        let mut files = self.files.lock();
        let unused = files.get(&open.node).is_some_and(|shared| shared.handles == 0 && Arc::ptr_eq(&shared.file, open));
        if unused && open.state.try_read().is_some_and(|state| !state.changed || state.latched.is_some()) {
            files.remove(&open.node);
            drop(files);
            self.nodes.closed(open.node);
        }
    }

    /// Notes that the inode of a node has changed in a way that only a real flush makes durable.
    pub fn inode_changed(&self, node: NodeId) {
        let open = self.files.lock().get(&node).map(|s| s.file.clone());
        if let Some(open) = open {
            open.inode_changed.store(true, Ordering::Release);
        }
    }
}

/// What tells the committed state of a file from another one: the beginning of the header's hash.
fn state_mark(state: &FileState) -> Option<u64> {
    state.committed.as_ref().map(|committed| u64::from_le_bytes(*committed.hash.first_chunk().expect("32 bytes")))
}

fn is_gone<T>(result: &std::io::Result<T>) -> bool {
    matches!(result, Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)))
}

/// What is wrong where a control file holds more than any of its kind.
pub(crate) const CONTROL_TOO_LARGE: &str = "has a control file that is too large";

/// Reads a control file of at most `limit` bytes; `None` where there is none.
pub(crate) fn read_control(dir: &dyn Dir, name: &[u8], limit: usize) -> Inner<Option<Vec<u8>>> {
    let file = match dir.open_file(name, Access::Read) {
        Ok(file) => file,
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let size = file.stat()?.size;
    if size > limit as u64 {
        return Err(Fault::Corrupt(CONTROL_TOO_LARGE));
    }
    let mut bytes = vec![0; size as usize];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

/// Writes a control file under a temporary name, flushes it and renames it into its place: it is there whole or not at all.
pub(crate) fn write_control(dir: &dyn Dir, random: &dyn Random, name: &[u8], bytes: &[u8]) -> Inner<()> {
    let mut suffix = [0; 6];
    random.fill(&mut suffix);
    let hex: String = suffix.iter().map(|b| format!("{b:02x}")).collect();
    let temporary = [b"+tmp-", hex.as_bytes()].concat();
    // other members of a share may be other users of the machine
    let file = dir.create_file(&temporary, 0o600 | dir.stat_self()?.perm & 0o044)?;
    let written = (|| {
        file.write_at(bytes, 0)?;
        file.sync_all()?;
        dir.rename(&temporary, dir, name, crate::backing::RenameMode::Replace)
    })();
    if let Err(e) = written {
        let _ = dir.unlink(&temporary);
        return Err(e.into());
    }
    Ok(())
}

/// Lists all of a directory's entries.
pub(crate) fn list(dir: &dyn Dir) -> Inner<Vec<crate::backing::DirEntry>> {
    Ok(list_at_most(dir, usize::MAX)?.expect("no list is longer than memory"))
}

/// All entries of a directory; `None` where there are more than `max`.
pub(crate) fn list_at_most(dir: &dyn Dir, max: usize) -> Inner<Option<Vec<crate::backing::DirEntry>>> {
    let dir = dir.reopen()?;
    let mut all = Vec::new();
    let mut cookie = 0;
    loop {
        let entries = dir.read(cookie, 1 << 16)?;
        let Some(last) = entries.last() else { return Ok(Some(all)) };
        cookie = last.next;
        all.extend(entries);
        if all.len() > max {
            return Ok(None);
        }
    }
}
