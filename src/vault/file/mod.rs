//! Open files: one lock and one header state for each inode, whatever the number of handles.
//!
//! Rules that hold here
//! * Reading, writing and lengths are in sub-modules; the commit is in
//!   [`crate::vault::durability::commit`].
//! * The plain text of a small file is kept here, zeroized; larger files are never held in plain
//!   text.

pub(super) mod block_cache;
pub(super) mod cached;
pub(super) mod hash_tree;
mod length;
pub(super) mod mtime;
mod read;
pub(super) mod seal;
mod write;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use zeroize::Zeroizing;

use crate::crypto::{ChunkKeys, Random, SegmentKey};
use crate::format::header::{Header, Hint, PublicHeader};
use crate::format::journal::header_hash;
use crate::format::layout::{Layout, SEGMENT, SMALL_MAX};
use crate::format::signature::Authorship;
use crate::format::table::{HOLE, Segment, Table};
use crate::store::File;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::file::block_cache::Chunk;
use crate::vault::file::block_cache::{BlockCache, Counted};
use crate::vault::file::cached::Cached;
use crate::vault::file::hash_tree::{Root, Tree};
use crate::vault::file::mtime::{Mtime, now};
use crate::vault::keyring::keys::{Epoch, OpenedHeader, ShareKeys};
use crate::vault::types::NodeId;

/// Sealed bytes of live segments that one file may hold before it commits.
pub(crate) const PENDING_MAX: usize = 8 << 20;
/// Maximum number of fresh bytes that are put into a journal record instead of being flushed
/// separately.
pub(crate) const RIDE_MAX: usize = 64 << 10;
/// Changed chunks that one file may hold before it commits.
pub(crate) const DIRTY_CHUNKS_MAX: usize = 512;

/// The parts of the vault that file operations need.
pub(crate) struct Context<'a> {
    pub keys: &'a ShareKeys,
    pub cache: &'a BlockCache,
    pub random: &'a dyn Random,
    pub caller_caches: bool,
    /// Whether another identity's record may rely on places that count as fresh: then they are
    /// written only once a record of this commit is durable.
    pub others_wait: bool,
}

/// A chunk that has changed since the last commit.
pub(crate) struct DirtyChunk {
    pub table: Table,
    pub key: SegmentKey,
    /// Commitment of the epoch that the table names.
    pub epoch: [u8; 8],
    /// Segments to which the last durable header refers.
    pub live: Box<[bool]>,
    /// Sealed segments that are not in their place yet.
    pub pending: BTreeMap<usize, Bytes>,
}

/// How long after a truncation a read past the new end is delayed. The kernel needs microseconds to
/// process the reply, unless its thread is not scheduled.
const CUT_KNOWN: Duration = Duration::from_millis(200);

/// How [`OpenFile::load`] treats the stored file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// An empty ciphertext is an error.
    Read,
    /// An empty ciphertext is opened, for a program that may truncate it: see [`FileState::void`].
    Write,
    /// The contents are about to be discarded: nothing is read, and the file counts as empty.
    Truncate,
}

/// Result of [`FileState::look_at`].
pub(crate) struct ChunkLook {
    /// The next chunk that may hold data.
    pub next: u64,
    /// Bytes in its segments.
    pub bytes: u64,
    /// Whether they are sealed under another epoch than the current one.
    pub older: bool,
}

/// The header in the store.
pub(crate) struct Committed {
    /// BLAKE3 hash of its bytes.
    pub hash: [u8; 32],
    /// End of the bytes that the header seals: itself, in the small form with the data.
    pub end: u64,
    /// Length of the ciphertext that it implies.
    pub len: u64,
    /// Size of the contents that it contains.
    pub size: u64,
}

/// The state of an open file that its lock guards.
pub(crate) struct FileState {
    /// Key of the file's blocks in the cache.
    pub serial: u64,
    pub file_id: [u8; 32],
    /// Keys of the chunks under one epoch, most often the current one.
    chunk_keys: OnceLock<(u32, [u8; 8], ChunkKeys)>,
    /// `None` until the first commit.
    pub committed: Option<Committed>,
    /// A commit has begun to write the header and has not ended: part of it may be in place.
    pub header_under_way: bool,
    pub root: Root,
    pub version: u64,
    pub oldest_epoch: u32,
    pub hint: Hint,
    /// Whether the committed header may survive a crash, so that the places it refers to must not
    /// be overwritten.
    pub durable: bool,
    /// When the first commit was made that no flush has followed.
    pub straight_since: Option<Instant>,
    /// It is durable that the file has no name any more.
    pub nameless: bool,
    /// Name, mode or contents may have changed since the inode was last flushed to the disk.
    pub needs_sync: bool,
    /// A program has set the modification time since the inode was last flushed. A journal record
    /// contains it as well.
    pub mtime_set: bool,
    /// Plain size.
    pub size: u64,
    /// When a truncation last reduced the size.
    pub cut_at: Option<Instant>,
    /// Contents in the small form.
    pub small: Option<Zeroizing<Vec<u8>>>,
    pub dirty: BTreeMap<u64, DirtyChunk>,
    /// The header has to be written.
    pub changed: bool,
    pub pending_bytes: usize,
    /// Pending bytes whose place is fresh.
    pub riding_bytes: usize,
    /// Fresh bytes were written since the last flush of the file.
    pub unsynced: bool,
    /// Length of the file in the store.
    pub backing_len: u64,
    /// The store has refused a write: unreferenced bytes may be stored beyond the end.
    pub surplus: bool,
    /// A refused record may be in the journal all the same, and rely on places that count as fresh:
    /// as with [`Context::others_wait`].
    pub waits: bool,
    pub mtime: Mtime,
    pub dirty_since: Option<Instant>,
    /// The ciphertext is empty: the file was never committed, or was truncated by another program.
    /// Reads and writes fail until a program truncates the file, and a commit has nothing to do.
    pub void: bool,
    /// errno of a failure that persists until the last close.
    pub latched: Option<i32>,
    /// Chunks and their segments that become holes of the store after the commit, unless they are
    /// written again before.
    pub punch: Vec<(u64, Range<usize>)>,
    /// The commit will free places to which the committed header refers.
    pub freed: bool,
    /// Author of the contents by the committed header, in a signed share.
    pub by: Option<Authorship>,
    /// The contents have changed since, so the next header names this identity as the author.
    pub rewritten: bool,
    /// Contents to which a durable header referred were discarded, and nothing is durable since:
    /// the last close flushes.
    pub replaced: bool,
    /// The file was shortened, and the commit for it is in progress.
    pub cut: bool,
    /// The chunk up to which the places of tables and index blocks were reserved.
    pub reserved: u64,
    /// The kernel may hold pages, or a size, that differ from this state: the end of the file as
    /// the kernel has it. See `room.rs`.
    pub astray: Option<u64>,
    /// Dirty pages of the kernel were refused for lack of space: the errno, and the offset of the
    /// first of them. Pages before it may still arrive.
    pub refused: Option<(i32, u64)>,
    /// The file has grown since it was opened.
    pub grew: bool,
    /// A program has written past the page cache, so the kernel does not know the time of the
    /// write.
    pub told_no_time: bool,
    /// Second of the modification time that the file had when it was opened.
    pub opened_second: i64,
    /// Memory of the changes, counted for the whole vault.
    counted: Counted,
}

/// The state before [`FileState::shorten`].
pub(crate) struct Longer {
    size: u64,
    small: Option<Zeroizing<Vec<u8>>>,
    dirty: BTreeMap<u64, DirtyChunk>,
    /// The segment that was cut, by its chunk and number, in plain text.
    tail: Option<(u64, usize, Zeroizing<[u8; SEGMENT]>)>,
    pending_bytes: usize,
    riding_bytes: usize,
    freed: bool,
    changed: bool,
    rewritten: bool,
    mtime: Mtime,
    dirty_since: Option<Instant>,
}

/// An open file.
pub(crate) struct OpenFile {
    pub node: NodeId,
    pub file: Arc<dyn File>,
    /// Device and inode number in the store.
    pub inode: (u64, u64),
    /// The file id when the file was opened, readable without the lock. With concurrent openers it
    /// may have changed since.
    pub file_id: [u8; 32],
    pub state: RwLock<FileState>,
    /// Name or mode have changed; the next commit begins with a real flush.
    pub inode_changed: AtomicBool,
    /// Whether [`FileState::astray`] is set.
    pub astray: AtomicBool,
    /// With concurrent openers: the lock of the daemon that has the file open for writing.
    pub guard: Mutex<Option<Arc<dyn File>>>,
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
            header_under_way: false,
            root: Root { hash: HOLE, chunks: 0 },
            version: 0,
            oldest_epoch: context.keys.current().number,
            hint,
            durable: false,
            straight_since: None,
            nameless: false,
            needs_sync: true,
            mtime_set: false,
            size: 0,
            small: Some(Zeroizing::new(Vec::new())),
            dirty: BTreeMap::new(),
            changed: true,
            pending_bytes: 0,
            riding_bytes: 0,
            unsynced: false,
            backing_len: 0,
            surplus: false,
            waits: false,
            mtime: Mtime::default(),
            dirty_since: Some(Instant::now()),
            void: false,
            latched: None,
            cut_at: None,
            punch: Vec::new(),
            freed: false,
            by: None,
            rewritten: true,
            replaced: false,
            cut: false,
            reserved: 0,
            astray: None,
            refused: None,
            grew: false,
            told_no_time: false,
            opened_second: now().secs,
            counted: Counted::new(context.cache),
        };
        Arc::new(OpenFile {
            node,
            file,
            inode,
            file_id,
            state: RwLock::new(state),
            inode_changed: AtomicBool::new(false),
            astray: AtomicBool::new(false),
            guard: Mutex::new(None),
        })
    }

    /// Opens a stored file: one read of header and small data. A file with an empty ciphertext was
    /// never committed and cannot be read.
    pub fn load(
        node: NodeId,
        file: Arc<dyn File>,
        context: &Context,
        serial: u64,
        how: Load,
    ) -> Inner<Arc<Self>> {
        let layout = context.keys.layout;
        let mut bytes = vec![0; layout.header() + SMALL_MAX as usize];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        let stat = file.stat()?;
        let backing_len = stat.size;
        let inode = (stat.dev, stat.ino);
        let void = how == Load::Write && read == 0 && backing_len == 0;
        if how == Load::Truncate || void {
            // A file whose contents are discarded need not be authentic to be replaced.
            let open = Self::fresh(
                node,
                file,
                inode,
                context,
                serial,
                Hint { directory: [0; 32], name: Vec::new() },
            );
            let mut state = open.state.write();
            state.backing_len = backing_len;
            state.replaced = backing_len > 0;
            state.mtime = Mtime::loaded(context.caller_caches, stat.mtime);
            if void {
                state.make_void();
            }
            drop(state);
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
        let end = layout.header() as u64 + public.small.unwrap_or(0) as u64;
        let state = FileState {
            serial,
            file_id: public.file_id,
            chunk_keys: OnceLock::new(),
            committed: Some(Committed {
                hash: header_hash(&bytes[..layout.header()]),
                end,
                len: layout.cipher_len(header.size),
                size: header.size,
            }),
            header_under_way: false,
            root: Root { hash: header.root, chunks },
            version: header.version,
            oldest_epoch: header.oldest_epoch,
            hint: header.hint,
            durable: true,
            straight_since: None,
            nameless: false,
            // An earlier mount or a sync tool may have left it in the page cache only: the store
            // does not show that.
            needs_sync: true,
            mtime_set: false,
            size: header.size,
            small: public.small.map(|_| data),
            dirty: BTreeMap::new(),
            changed: false,
            pending_bytes: 0,
            riding_bytes: 0,
            unsynced: false,
            backing_len,
            surplus: false,
            waits: false,
            mtime: Mtime::loaded(context.caller_caches, stat.mtime),
            dirty_since: None,
            void: false,
            latched: None,
            cut_at: None,
            punch: Vec::new(),
            freed: false,
            by,
            rewritten: false,
            replaced: false,
            cut: false,
            reserved: 0,
            astray: None,
            refused: None,
            grew: false,
            told_no_time: false,
            opened_second: stat.mtime.secs,
            counted: Counted::new(context.cache),
        };
        Ok(Arc::new(OpenFile {
            node,
            file,
            inode,
            file_id: state.file_id,
            state: RwLock::new(state),
            inode_changed: AtomicBool::new(false),
            astray: AtomicBool::new(false),
            guard: Mutex::new(None),
        }))
    }

    /// Returns what the kernel caches of this file once all writes have reached it. `None` if that
    /// is unknown, because a change is not committed, was refused, or is being committed now.
    pub fn cached(&self) -> Option<Cached> {
        let state = self.state.try_read()?;
        let is_certain = !state.changed && state.latched.is_none() && state.astray.is_none();
        let committed = state.committed.as_ref().filter(|_| is_certain);
        committed.map(|committed| Cached::state(state.size, &committed.hash))
    }

    /// Returns how long the kernel may still be unaware of the end of file that a read met. Between
    /// the reply to a truncation and its processing in the kernel, other programs still read up to
    /// the old end. The kernel fills the rest of a short reply with zeros, which such a program
    /// would get (`fuse_short_read` in Linux's `fs/fuse/file.c`). After a delay, it gets the end of
    /// the file.
    pub fn until_cut_is_known(&self) -> Option<Duration> {
        let since = self.state.read().cut_at?.elapsed();
        CUT_KNOWN.checked_sub(since).filter(|left| !left.is_zero())
    }

    /// Reads up to `buf.len()` plain bytes at `offset`; fewer only at the end of the file.
    pub fn read(&self, context: &Context, offset: u64, buf: &mut [u8]) -> Inner<usize> {
        let state = self.state.read();
        state.check_astray(offset, offset.saturating_add(buf.len() as u64))?;
        state.read(&*self.file, context, offset, buf)
    }
}

impl FileState {
    /// Fails if the kernel caches bytes of `offset..end` that were never committed.
    pub fn check_astray(&self, offset: u64, end: u64) -> Inner<()> {
        match self.astray {
            Some(believed)
                if self.is_lost()
                    || offset < believed && end > self.size && believed > self.size =>
            {
                Err(Fault::Os(
                    self.latched.or(self.refused.map(|(errno, _)| errno)).unwrap_or(libc::EIO),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether there are changes that will never reach the store.
    pub fn is_lost(&self) -> bool {
        self.changed && self.latched.is_some()
    }

    /// Fails if pages before `end` were refused.
    pub fn check_refused(&self, end: u64) -> Inner<()> {
        match self.refused {
            Some((errno, from)) if end > from => Err(Fault::Os(errno)),
            _ => Ok(()),
        }
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
        if self.void { Err(Fault::Corrupt(Corruption::NeverCommitted)) } else { Ok(()) }
    }

    /// See [`FileState::void`].
    pub fn make_void(&mut self) {
        (self.void, self.changed, self.dirty_since) = (true, false, None);
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
        self.rewritten = true;
        self.mark();
    }

    /// See [`Mtime::settle`].
    pub fn settle_mtime(&mut self) {
        if self.mtime.settle() && self.committed.is_some() {
            self.mark(); // commits in between have another time
        }
    }

    /// Notes that the store has refused a write to the file, possibly after part of it.
    pub fn note_refusal(&mut self, file: &dyn File) {
        self.surplus = true;
        if let Ok(stat) = file.stat_but_times() {
            self.backing_len = stat.size;
        }
    }

    /// Notes that a commit is due.
    pub fn mark(&mut self) {
        self.changed = true;
        self.dirty_since.get_or_insert_with(Instant::now);
    }

    /// Returns whether a commit is needed before further writes.
    pub fn is_full(&self) -> bool {
        self.pending_bytes > PENDING_MAX || self.dirty.len() > DIRTY_CHUNKS_MAX
    }

    /// Counts the memory of the changes. Returns whether the changes of all files exceed the
    /// vault's limit, and this file has some.
    pub fn count(&mut self, context: &Context) -> bool {
        // A changed chunk has its table in memory, in addition to its pending segments.
        let table = context.keys.layout.chunk() as usize / SEGMENT * size_of::<Segment>() + 2048;
        let bytes = self.pending_bytes + self.dirty.len() * table;
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
fn resize_zeroizing(small: &mut Zeroizing<Vec<u8>>, len: usize) {
    if small.capacity() < len {
        let mut larger = Zeroizing::new(Vec::with_capacity(SMALL_MAX as usize));
        larger.extend_from_slice(small);
        *small = larger;
    }
    small.resize(len, 0);
}
