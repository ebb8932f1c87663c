//! Open files: one lock and one state for each node, whatever the number of handles.
//!
//! Rules that hold here
//! * Reading, writing and lengths are in sub-modules; the commit is in
//!   [`crate::vault::durability::commit`].
//! * The contents of the small form are held in plain text, and zeroized when they are dropped.
//!   Those of the large form are held in plain text only during a call.

pub(super) mod block_cache;
pub(super) mod cached;
pub(super) mod guard;
pub(super) mod hash_tree;
mod length;
pub(super) mod mtime;
pub(super) mod phase;
pub(super) mod program_locks;
mod read;
pub(super) mod seal;
mod write;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use zeroize::Zeroizing;

use crate::crypto::{ChunkKeys, Plain, Random, SegmentKey};
use crate::format::header::{Header, Hint, PublicHeader};
use crate::format::layout::{Layout, SEGMENT, SMALL_MAX};
use crate::format::signature::Authorship;
use crate::format::table::{HOLE, Segment, Table};
use crate::store::{File, Stat};
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::file::block_cache::Chunk;
use crate::vault::file::block_cache::{BlockCache, Counted};
use crate::vault::file::cached::Cached;
use crate::vault::file::hash_tree::{Root, Tree};
use crate::vault::file::mtime::{Mtime, now};
use crate::vault::file::phase::{
    Changes, Committed, HeaderBytes, KernelView, Pending, Phase, Tail, Unflushed,
};
use crate::vault::file::program_locks::ProgramLocks;
use crate::vault::keyring::keys::{Epoch, OpenedHeader, ShareKeys};
use crate::vault::types::NodeId;

/// Bytes of pending segments beyond which a file commits before further writes.
pub(crate) const PENDING_MAX: usize = 8 << 20;
/// Maximum number of fresh bytes that are put into a journal record instead of being flushed
/// separately.
pub(crate) const RIDE_MAX: usize = 64 << 10;
/// Number of changed chunks beyond which a file commits before further writes.
pub(crate) const DIRTY_CHUNKS_MAX: usize = 512;

/// The parts of the vault that file operations need.
pub(crate) struct Context<'a> {
    pub keys: &'a ShareKeys,
    pub cache: &'a BlockCache,
    pub random: &'a dyn Random,
    pub caller_caches: bool,
    /// Whether another identity's record may rely on places that count as fresh: then they are
    /// written only once a record of this commit is durable.
    pub foreign_records: bool,
}

/// A chunk that has changed since the last commit.
pub(crate) struct DirtyChunk {
    pub table: Table,
    pub key: SegmentKey,
    /// First 8 bytes of the commitment of the epoch that the table names.
    pub epoch: [u8; 8],
    /// Segments to which the last committed header refers.
    pub live: Box<[bool]>,
    /// Sealed segments that are not in their place yet.
    pub pending: BTreeMap<usize, Bytes>,
}

impl DirtyChunk {
    fn is_under(&self, epoch: &Epoch) -> bool {
        (self.table.epoch, self.epoch) == (epoch.number, epoch.commitment)
    }
}

/// How long after a truncation reads past the new end wait, counted from the truncation. The kernel
/// needs microseconds to process the reply, unless its thread is not scheduled.
const CUT_KNOWN: Duration = Duration::from_millis(200);

/// How [`OpenFile::load`] treats the stored file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// An empty ciphertext is an error.
    Read,
    /// An empty ciphertext is opened, for a program that may truncate it: see [`Phase::Void`].
    Write,
    /// The contents are about to be discarded: nothing is read, and the file counts as empty.
    Truncate,
}

/// Result of [`FileState::summary`].
pub(crate) struct ChunkSummary {
    /// The next chunk that may hold data.
    pub next: u64,
    /// Bytes in the segments of the chunk.
    pub bytes: u64,
    /// Whether they are, or may be, sealed under another epoch than the current one.
    pub older: bool,
}

/// The state of an open file that its lock guards.
pub(crate) struct FileState {
    /// Key of the file's blocks in the cache.
    pub serial: u64,
    pub file_id: [u8; 32],
    /// Keys of the chunks under one epoch, most often the current one.
    chunk_keys: OnceLock<(u32, [u8; 8], ChunkKeys)>,
    /// `None` until the first commit, and between a discard of the contents and the next commit.
    pub committed: Option<Committed>,
    pub phase: Phase,
    pub unflushed: Unflushed,
    /// errno of a failure that persists until the last close.
    pub latched: Option<i32>,
    pub root: Root,
    pub version: u64,
    /// The version that was read from the store, until the rollback database is told that a commit
    /// builds on it.
    pub loaded: Option<u64>,
    pub oldest_epoch: u32,
    pub hint: Hint,
    /// The stored name from which `hint` was last read; empty if it was read from none.
    pub hint_from: Box<[u8]>,
    /// Author and signer that the committed header names, in a signed share.
    pub by: Option<Authorship>,
    /// Plain size.
    pub size: u64,
    /// Contents in the small form.
    pub small: Option<Plain>,
    pub mtime: Mtime,
    pub dirty: BTreeMap<u64, DirtyChunk>,
    /// `None` if there is nothing to commit.
    pub changes: Option<Changes>,
    pub pending: Pending,
    /// Length of the file in the store.
    pub backing_len: u64,
    pub tail: Tail,
    /// The chunk up to which the places of tables and index blocks were reserved.
    pub reserved: u64,
    pub kernel: KernelView,
    /// Memory of the changes, counted for the whole vault.
    counted: Counted,
}

/// The state before [`FileState::shorten`].
pub(crate) struct Unshortened {
    size: u64,
    small: Option<Plain>,
    dirty: BTreeMap<u64, DirtyChunk>,
    /// The segment that was cut, by its chunk and number, in plain text.
    tail: Option<(u64, usize, Zeroizing<[u8; SEGMENT]>)>,
    /// Without `punch`.
    pending: Pending,
    changes: Option<Changes>,
    mtime: Mtime,
}

/// An open file.
pub(crate) struct OpenFile {
    pub node: NodeId,
    /// The file in the store, with device and inode number. Another one takes its place only while
    /// `state` is locked for writing.
    stored: RwLock<(Arc<dyn File>, (u64, u64))>,
    /// The file id when the file was opened, readable without the lock. It may have changed since:
    /// with concurrent openers, or if the open file continues in another file of the store.
    pub file_id: [u8; 32],
    pub state: RwLock<FileState>,
    /// Name or mode have changed, so before its next record the file is flushed by fsync(2), not
    /// fdatasync(2).
    pub inode_changed: AtomicBool,
    /// Whether [`KernelView::astray`] is set.
    pub astray: AtomicBool,
    /// With concurrent openers: the handle that has the guard, if this daemon has it.
    pub guard: Mutex<Option<Arc<dyn File>>>,
    /// With concurrent openers: shows other daemons that `guard` is taken on demand. If this is
    /// `None`, the guard is held from the first open for writing to the last close.
    pub on_demand: Mutex<Option<Arc<dyn File>>>,
    /// With concurrent openers: no daemon has left a chunk half written. This was checked since the
    /// guard was taken.
    pub is_whole: AtomicBool,
    /// With concurrent openers: [`Lease::sleeps`] before the guard was taken, or when it was last
    /// found to be held; `u64::MAX` for `None`.
    ///
    /// [`Lease::sleeps`]: crate::vault::durability::lease::Lease::sleeps
    pub guarded: AtomicU64,
    /// With concurrent openers: the locks of programs.
    pub locks: Mutex<ProgramLocks>,
}

impl OpenFile {
    /// Returns a file that was just created and holds nothing, not even a header.
    pub fn fresh(
        node: NodeId,
        file: Arc<dyn File>,
        inode: (u64, u64),
        context: &Context,
        serial: u64,
        hint: Hint,
    ) -> Arc<Self> {
        let mut file_id = [0; 32];
        context.random.fill(&mut file_id);
        let state = FileState {
            serial,
            file_id,
            chunk_keys: OnceLock::new(),
            committed: None,
            phase: Phase::Fresh { replaces: false },
            unflushed: Unflushed { inode: true, ..Unflushed::default() },
            latched: None,
            root: Root { hash: HOLE, chunks: 0 },
            version: 0,
            loaded: None,
            oldest_epoch: context.keys.current().number,
            hint,
            hint_from: Box::default(),
            by: None,
            size: 0,
            small: Some(Plain::new(Vec::new())),
            mtime: Mtime::default(),
            dirty: BTreeMap::new(),
            changes: Some(Changes { since: Instant::now(), rewritten: true, cut: false }),
            pending: Pending::default(),
            backing_len: 0,
            tail: Tail::Empty,
            reserved: 0,
            kernel: KernelView { opened_second: now().secs, ..KernelView::default() },
            counted: Counted::new(context.cache),
        };
        Self::new(node, file, inode, state)
    }

    fn new(node: NodeId, file: Arc<dyn File>, inode: (u64, u64), state: FileState) -> Arc<Self> {
        Arc::new(OpenFile {
            node,
            stored: RwLock::new((file, inode)),
            file_id: state.file_id,
            state: RwLock::new(state),
            inode_changed: AtomicBool::new(false),
            astray: AtomicBool::new(false),
            guard: Mutex::new(None),
            locks: Mutex::default(),
            on_demand: Mutex::default(),
            is_whole: AtomicBool::new(false),
            guarded: AtomicU64::new(0),
        })
    }

    /// Sets [`OpenFile::guarded`].
    pub fn note_guarded(&self, sleeps: Option<u64>) {
        self.guarded.store(sleeps.unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Opens a stored file as `how` says, with at most one read. An empty ciphertext fails with
    /// [`Corruption::NeverCommitted`] under [`Load::Read`].
    pub fn load(
        node: NodeId,
        file: Arc<dyn File>,
        context: &Context,
        serial: u64,
        how: Load,
    ) -> Inner<Arc<Self>> {
        let layout = context.keys.layout;
        let wanted = if how == Load::Truncate { 0 } else { layout.header() + SMALL_MAX as usize };
        let mut bytes = vec![0; wanted];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        let stat = file.stat()?;
        let backing_len = stat.size;
        let inode = (stat.dev, stat.ino);
        let void = how == Load::Write && read == 0 && backing_len == 0;
        if how == Load::Truncate || void {
            // A file whose contents are discarded need not be authentic to be replaced.
            let hint = Hint { tag: [0; 8], name: Vec::new() };
            let open = Self::fresh(node, file, inode, context, serial, hint);
            open.state.write().load_unread(&stat, void, context.caller_caches);
            return Ok(open);
        }
        if read == 0 {
            return Err(Fault::Corrupt(Corruption::NeverCommitted));
        }
        let OpenedHeader { header, data, by } = context.keys.open_header(&bytes)?;
        let public = &header.public;
        if backing_len < layout.cipher_len(header.size) {
            return Err(Fault::Corrupt(Corruption::Other("is shorter than its header says")));
        }
        let chunks = if public.small.is_some() { 0 } else { layout.chunks(header.size) };
        let state = FileState {
            serial,
            file_id: public.file_id,
            chunk_keys: OnceLock::new(),
            committed: Some(Committed {
                header: HeaderBytes::new(&bytes[..layout.header()]),
                end: layout.header() as u64 + public.small.unwrap_or(0) as u64,
                len: layout.cipher_len(header.size),
                size: header.size,
                is_being_replaced: false,
            }),
            phase: Phase::Durable,
            // An earlier mount or a sync tool may have left it in the page cache only: the store
            // does not show that.
            unflushed: Unflushed { inode: true, ..Unflushed::default() },
            latched: None,
            root: Root { hash: header.root, chunks },
            version: header.version,
            loaded: Some(header.version),
            oldest_epoch: header.oldest_epoch,
            hint: header.hint,
            hint_from: Box::default(),
            by,
            size: header.size,
            small: public.small.map(|_| data),
            mtime: Mtime::loaded(context.caller_caches, stat.mtime),
            dirty: BTreeMap::new(),
            changes: None,
            pending: Pending::default(),
            backing_len,
            tail: Tail::Empty,
            reserved: 0,
            kernel: KernelView { opened_second: stat.mtime.secs, ..KernelView::default() },
            counted: Counted::new(context.cache),
        };
        Ok(Self::new(node, file, inode, state))
    }

    /// Returns whether the guard is taken on demand.
    pub fn is_on_demand(&self) -> bool {
        self.on_demand.lock().is_some()
    }

    /// Returns the file in the store.
    pub fn file(&self) -> Arc<dyn File> {
        self.stored.read().0.clone()
    }

    /// Returns device and inode number of the file in the store.
    pub fn inode(&self) -> (u64, u64) {
        self.stored.read().1
    }

    /// Continues in another file of the store.
    pub fn continue_in(&self, file: Arc<dyn File>, inode: (u64, u64)) {
        *self.stored.write() = (file, inode);
    }

    /// Runs `change`, which changes attributes of the file in the store. No commit replaces that
    /// file meanwhile.
    pub fn with_stored<T>(&self, change: impl FnOnce(&dyn File) -> T) -> T {
        change(&*self.stored.read().0)
    }

    /// Runs `exchange`, which puts another file in place of the one in the store, and continues in
    /// the file that it returns, unless it fails.
    pub fn replace_stored<T, E>(
        &self,
        exchange: impl FnOnce(&dyn File) -> Result<(T, Arc<dyn File>, (u64, u64)), E>,
    ) -> Result<T, E> {
        let mut stored = self.stored.write();
        let (result, file, inode) = exchange(&*stored.0)?;
        *stored = (file, inode);
        Ok(result)
    }

    /// Returns what the kernel caches of this file once it has sent all writes. `None` if that is
    /// unknown, because a change is not committed, was refused, or is being committed now.
    pub fn cached(&self) -> Option<Cached> {
        let state = self.state.try_read()?;
        let is_certain =
            state.changes.is_none() && state.latched.is_none() && state.kernel.astray.is_none();
        let committed = state.committed.as_ref().filter(|_| is_certain);
        committed.map(|committed| Cached::state(state.size, &committed.header.hash()))
    }

    /// Returns how long the kernel may still be unaware of the end of file that a read met. Between
    /// the reply to a truncation and its processing in the kernel, other programs still read up to
    /// the old end. The kernel fills the rest of a short reply with zeros, which such a program
    /// would get (`fuse_short_read` in Linux's `fs/fuse/file.c`). After a delay, it gets the end of
    /// the file.
    pub fn until_cut_is_known(&self) -> Option<Duration> {
        let since = self.state.read().kernel.cut_at?.elapsed();
        CUT_KNOWN.checked_sub(since).filter(|left| !left.is_zero())
    }

    /// Reads up to `buf.len()` plain bytes at `offset`; fewer only at the end of the file.
    pub fn read(&self, context: &Context, offset: u64, buf: &mut [u8]) -> Inner<usize> {
        let state = self.state.read();
        state.check_astray(offset, offset.saturating_add(buf.len() as u64))?;
        state.read(&*self.file(), context, offset, buf)
    }
}

impl FileState {
    /// Fails if the kernel may cache bytes of `offset..end` that were never committed.
    pub fn check_astray(&self, offset: u64, end: u64) -> Inner<()> {
        match self.kernel.astray {
            Some(believed)
                if self.is_lost()
                    || offset < believed && end > self.size && believed > self.size =>
            {
                Err(Fault::Os(
                    self.latched
                        .or(self.kernel.refused.map(|(errno, _)| errno))
                        .unwrap_or(libc::EIO),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether everything that programs have written is on the disk.
    pub fn is_synced(&self) -> bool {
        let is_flushed = self.phase == Phase::Void || !self.phase.is_unflushed();
        self.changes.is_none() && !self.unflushed.data && is_flushed
    }

    /// Returns whether there are changes that will never reach the store.
    pub fn is_lost(&self) -> bool {
        self.changes.is_some() && self.latched.is_some()
    }

    pub fn tree<'a>(&self, file: &'a dyn File, context: &Context<'a>) -> Tree<'a> {
        Tree {
            layout: context.keys.layout,
            suite: context.keys.suite,
            file,
            root: self.root,
            serial: self.serial,
            cache: context.cache,
        }
    }

    /// Fails with the errno of an earlier failure, or if the contents are unknown.
    pub fn check_latched(&self) -> Inner<()> {
        self.check_known()?;
        match self.latched {
            Some(errno) => Err(Fault::Os(errno)),
            None => Ok(()),
        }
    }

    /// Fails if the ciphertext is empty, so that the contents are unknown.
    pub fn check_known(&self) -> Inner<()> {
        match self.phase {
            Phase::Void => Err(Fault::Corrupt(Corruption::NeverCommitted)),
            _ => Ok(()),
        }
    }

    /// Marks the contents of the file as unknown: see [`Phase::Void`].
    pub fn make_void(&mut self) {
        (self.phase, self.changes) = (Phase::Void, None);
    }

    /// Returns the key for the salt of chunk `k`.
    fn segment_key(
        &self,
        file: &dyn File,
        context: &Context,
        k: u64,
        table: &Table,
    ) -> Inner<SegmentKey> {
        let mut epochs = context.keys.numbered(table.epoch);
        let Some(mut epoch) = epochs.next() else {
            return Err(Fault::Corrupt(Corruption::Other(
                "is sealed under an epoch that is unknown in this share",
            )));
        };
        if let Some(other) = epochs.next()
            && let Some(s) = table.segments.iter().position(|segment| segment.len > 0)
        {
            // On both sides of a settled fork an epoch with this number began, and the table does
            // not name the side: the first segment shows it.
            let opens = |epoch: &Epoch| {
                let key = context.keys.chunk_keys(epoch, &self.file_id).derive(&table.salt);
                let mut plain = Zeroizing::new([0; SEGMENT]);
                self.open_one(file, context, k, s, table, &key, None, &mut plain).is_ok()
            };
            epoch = [epoch, other]
                .into_iter()
                .chain(epochs)
                .find(|epoch| opens(epoch))
                .unwrap_or(epoch);
        }
        Ok(self.key_of(context, epoch, &table.salt))
    }

    /// Returns the key of a salt under an epoch.
    fn key_of(&self, context: &Context, epoch: &Epoch, salt: &[u8; 16]) -> SegmentKey {
        let (number, commitment, keys) = self.chunk_keys.get_or_init(|| {
            (epoch.number, epoch.commitment, context.keys.chunk_keys(epoch, &self.file_id))
        });
        if (*number, *commitment) == (epoch.number, epoch.commitment) {
            return keys.derive(salt);
        }
        context.keys.chunk_keys(epoch, &self.file_id).derive(salt)
    }

    fn committed_chunk(
        &self,
        file: &dyn File,
        context: &Context,
        k: u64,
    ) -> Inner<Option<Arc<Chunk>>> {
        self.tree(file, context).chunk(k, |table| self.segment_key(file, context, k, table))
    }

    pub(super) fn new_salt(context: &Context) -> [u8; 16] {
        let mut salt = [0; 16];
        match context.keys.suite {
            crate::crypto::Suite::Aes256Gcm => context.random.fill(&mut salt[..12]),
            crate::crypto::Suite::ChaCha20Poly1305 => context.random.fill(&mut salt),
        }
        salt
    }

    /// Notes a change of the contents.
    pub fn touch(&mut self) {
        self.mtime.touch();
        self.mark().rewritten = true;
    }

    /// See [`Mtime::resolve`].
    pub fn resolve_mtime(&mut self) {
        if self.mtime.resolve() && self.committed.is_some() {
            self.mark(); // commits in between have another time
        }
    }

    /// Notes that the store has refused a write to the file, possibly after part of it.
    pub fn note_refusal(&mut self, file: &dyn File) {
        self.tail = self.tail.max(Tail::Surplus);
        if let Ok(stat) = file.stat_but_times() {
            self.backing_len = stat.size;
        }
    }

    /// Notes that a commit is due.
    pub fn mark(&mut self) -> &mut Changes {
        let none = || Changes { since: Instant::now(), rewritten: false, cut: false };
        self.changes.get_or_insert_with(none)
    }

    /// Returns whether the contents have changed since the last commit.
    pub fn is_rewritten(&self) -> bool {
        self.changes.is_some_and(|changes| changes.rewritten)
    }

    /// Returns whether a record may rely on places that count as fresh.
    pub fn is_relied_on(&self, context: &Context) -> bool {
        self.tail == Tail::ReliedOn || context.foreign_records
    }

    /// Notes whether a record of the file that failed may be in the journal all the same.
    pub fn note_doubt(&mut self, is_doubtful: bool) {
        match is_doubtful {
            true => self.tail = Tail::ReliedOn,
            false => self.tail = self.tail.min(Tail::Surplus),
        }
    }

    /// Latches the state of a file that was opened to be truncated and is not: its release must not
    /// commit an empty file.
    pub fn give_up_truncation(&mut self, errno: i32) {
        if self.committed.is_none() && self.phase.replaces() && self.size == 0 {
            self.latched.get_or_insert(errno);
        }
    }

    /// Makes this the state of a file whose ciphertext is not to be read: it is about to be
    /// replaced, or it is `void`.
    fn load_unread(&mut self, stat: &Stat, void: bool, caller_caches: bool) {
        self.backing_len = stat.size;
        self.mtime = Mtime::loaded(caller_caches, stat.mtime);
        self.phase = match void {
            true => Phase::Void,
            false => Phase::Fresh { replaces: stat.size > 0 },
        };
        if void {
            self.changes = None;
        }
    }

    /// Returns whether the next header is the first one of a file that was just created.
    pub fn is_just_made(&self) -> bool {
        self.committed.is_none()
            && !self.phase.replaces()
            && self.size == 0
            && self.backing_len == 0
    }

    /// Returns whether a commit is needed before further writes.
    pub fn is_full(&self) -> bool {
        self.pending.bytes > PENDING_MAX || self.dirty.len() > DIRTY_CHUNKS_MAX
    }

    /// Counts the memory of the changes. Returns whether the changes of all files exceed the
    /// vault's limit, and this file has some.
    pub fn count(&mut self, context: &Context) -> bool {
        // A changed chunk has its table in memory, in addition to its pending segments.
        let table = context.keys.layout.chunk() as usize / SEGMENT * size_of::<Segment>() + 2048;
        let bytes = self.pending.bytes + self.dirty.len() * table;
        self.counted.set(bytes);
        bytes > 0 && context.cache.has_too_many_changes()
    }

    /// Returns the header that the next commit writes.
    pub fn header(&self, context: &Context, root: Root) -> Header {
        let epoch = context.keys.current();
        Header {
            public: PublicHeader {
                suite: context.keys.suite,
                small: self.small.as_ref().map(|data| data.len() as u16),
                epoch: epoch.number,
                commitment: epoch.commitment,
                file_id: self.file_id,
            },
            size: self.size,
            version: self.version + 1,
            root: root.hash,
            oldest_epoch: self.oldest_epoch,
            hint: self.hint.clone(),
        }
    }

    /// Returns the number of chunks of the file in its present state.
    pub fn chunks(&self, layout: &Layout) -> u64 {
        if self.small.is_some() { 0 } else { layout.chunks(self.size) }
    }
}

/// Changes the length without leaving a copy of the old contents in freed memory.
fn resize_zeroizing(small: &mut Plain, len: usize) {
    if small.capacity() < len {
        let mut larger = Plain::new(Vec::with_capacity(SMALL_MAX as usize));
        larger.extend_from_slice(small);
        *small = larger;
    }
    small.resize(len, 0);
}
