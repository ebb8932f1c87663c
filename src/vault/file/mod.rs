//! Open files: one lock and one header state for each inode, whatever the number of handles.
//!
//! Rules that hold here
//! * What reading, writing and lengths do with that state stands in modules of their own, below
//!   this one; the commit is [`crate::vault::durability::commit`]'s.
//! * Plain text of a small file lives here, zeroized; larger files are never held in plain text.

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
use crate::vault::error::{Fault, Inner};
use crate::vault::file::block_cache::Chunk;
use crate::vault::file::block_cache::{BlockCache, Counted};
use crate::vault::file::cached::Cached;
use crate::vault::file::hash_tree::{Root, Tree};
use crate::vault::file::mtime::{Mtime, now};
use crate::vault::keyring::keys::{Epoch, OpenedHeader, ShareKeys};
use crate::vault::types::NodeId;

/// What is wrong with a file whose ciphertext has no bytes.
pub(crate) const NEVER_COMMITTED: &str = "is empty: it was never committed, or was cut off";

/// Sealed bytes of live segments that one file may hold before it commits.
pub(crate) const PENDING_MAX: usize = 8 << 20;
/// Fresh bytes that ride in a journal record instead of being flushed on their own.
pub(crate) const RIDE_MAX: usize = 64 << 10;
/// Changed chunks that one file may hold before it commits.
pub(crate) const DIRTY_CHUNKS_MAX: usize = 512;

/// What the operations on a file need of the vault.
pub(crate) struct Context<'a> {
    pub keys: &'a ShareKeys,
    pub cache: &'a BlockCache,
    pub random: &'a dyn Random,
    pub caller_caches: bool,
    /// Whether a record that somebody else has left may rely on places that count as fresh: then
    /// they are written when ours is durable.
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

/// How long after a truncation a read past the new end waits before it is answered. The kernel
/// needs microseconds to take note of the answer, unless its thread gets no processor.
const CUT_KNOWN: Duration = Duration::from_millis(50);

/// How [`OpenFile::load`] takes what stands in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// A file of no bytes cannot be opened.
    Read,
    /// A file of no bytes is opened, for a program that may truncate it: see [`FileState::void`].
    Write,
    /// The contents are about to be thrown away: nothing is read, and the file counts as empty.
    Truncate,
}

/// What [`FileState::look_at`] finds.
pub(crate) struct ChunkLook {
    /// The next chunk that may hold something.
    pub next: u64,
    /// Bytes in its segments.
    pub bytes: u64,
    /// Whether they are sealed under another epoch than the current one.
    pub older: bool,
}

/// The header that stands in the store.
pub(crate) struct Committed {
    /// BLAKE3 of its bytes.
    pub hash: [u8; 32],
    /// End of the bytes that it seals itself: the header, in the small form with the data.
    pub end: u64,
    /// Length of the ciphertext that it tells of.
    pub len: u64,
    /// Size of the contents that it tells of.
    pub size: u64,
}

/// Everything of an open file that its lock guards.
pub(crate) struct FileState {
    /// Key of the file's blocks in the cache.
    pub serial: u64,
    pub file_id: [u8; 32],
    /// Keys of the chunks under one epoch, most often the current one.
    chunk_keys: OnceLock<(u32, [u8; 8], ChunkKeys)>,
    /// `None` while nothing was committed yet.
    pub committed: Option<Committed>,
    /// A commit has begun to write the header and has not ended: a part of it may be in place.
    pub header_under_way: bool,
    pub root: Root,
    pub version: u64,
    pub oldest_epoch: u32,
    pub hint: Hint,
    /// Whether a crash may leave the committed header behind, so that what it refers to must not be
    /// touched.
    pub durable: bool,
    /// When the first commit was made that no flush has followed.
    pub straight_since: Option<Instant>,
    /// It is durable that no name leads to the file any more.
    pub nameless: bool,
    /// Name, mode or contents may have changed since the inode was last flushed for good.
    pub needs_sync: bool,
    /// A program has set the modification time since the inode was last flushed. A record of the
    /// journal carries it as well.
    pub mtime_set: bool,
    /// Plain size.
    pub size: u64,
    /// When a truncation last made it smaller.
    pub cut_at: Option<Instant>,
    /// Contents in the small form.
    pub small: Option<Zeroizing<Vec<u8>>>,
    pub dirty: BTreeMap<u64, DirtyChunk>,
    /// The header has to be written.
    pub changed: bool,
    pub pending_bytes: usize,
    /// Those of the pending bytes whose place is fresh.
    pub riding_bytes: usize,
    /// Fresh bytes were written since the last flush of the file.
    pub unsynced: bool,
    /// Length of the file in the store.
    pub backing_len: u64,
    /// The store has refused something: bytes may stand behind the end that nothing refers to.
    pub surplus: bool,
    /// A record was refused that may be in the journal all the same, and rely on places that count
    /// as fresh: as with [`Tools::others_wait`].
    pub waits: bool,
    pub mtime: Mtime,
    pub dirty_since: Option<Instant>,
    /// The ciphertext has no bytes: the file was never committed, or somebody has cut it off. Reads
    /// and writes fail until a program truncates the file, and a commit has nothing to do.
    pub void: bool,
    /// errno of a failure that stays until the last close.
    pub latched: Option<i32>,
    /// Chunks and their segments that become holes of the store once the commit stands, unless they
    /// are written again before.
    pub punch: Vec<(u64, Range<usize>)>,
    /// The commit will free places to which the committed header refers.
    pub freed: bool,
    /// Whose contents the committed header says these are, in a signed share.
    pub by: Option<Authorship>,
    /// The contents have changed since, so the next header says that they are ours.
    pub rewritten: bool,
    /// Contents to which a durable header referred were thrown away, and nothing is durable since:
    /// the last close makes up for it.
    pub replaced: bool,
    /// The file was shortened, and the commit that goes with it is under way.
    pub cut: bool,
    /// The chunk up to which the places of tables and index blocks were reserved.
    pub reserved: u64,
    /// The kernel may hold pages, or a size, that are not those of this state: the end of the file
    /// as it has it. See `room.rs`.
    pub astray: Option<u64>,
    /// Pages of the kernel were refused for want of room: why, and where the first of them begins.
    /// What is before them may still come.
    pub refused: Option<(i32, u64)>,
    /// It has grown since it was opened.
    pub grew: bool,
    /// A program has written without the kernel's pages, which so has not learnt the time of it.
    pub told_no_time: bool,
    /// Second of the modification time that the file had when it was opened.
    pub opened_second: i64,
    /// What the changes take, counted for the whole vault.
    counted: Counted,
}

/// What [`FileState::shorten`] has changed, as it was before.
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
    /// That of the state when the file was opened, which need not be locked to know it. Where
    /// several have the vault open it may be another one by now.
    pub file_id: [u8; 32],
    pub state: RwLock<FileState>,
    /// Name or mode have changed; the next commit begins with a real flush.
    pub inode_changed: AtomicBool,
    /// Whether [`FileState::astray`] is set.
    pub astray: AtomicBool,
    /// Where several daemons have the vault open: the lock of who has the file open for writing.
    pub guard: Mutex<Option<Arc<dyn File>>>,
}

impl OpenFile {
    /// A file that was just created and holds nothing, not even a header.
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

    /// Opens what stands in the store: one read of header and small data. A file of no bytes was
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
            // A file whose contents nobody will see again need not be authentic to be replaced.
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
            return Err(Fault::Corrupt(NEVER_COMMITTED));
        }
        let OpenedHeader { header, data, by } = context.keys.open_header(&bytes)?;
        let public = &header.public;
        if backing_len < layout.cipher_len(header.size) {
            return Err(Fault::Corrupt("is shorter than its header says"));
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
            // Whoever wrote it, an earlier mount or a sync tool, may have left it in the machine's
            // cache: nothing in the store tells.
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

    /// What a cache above holds of this file once all that was written has reached it: `None` where
    /// that is not known, because something waits to be committed or was refused, or is being
    /// committed now.
    pub fn cached(&self) -> Option<Cached> {
        let state = self.state.try_read()?;
        let is_certain = !state.changed && state.latched.is_none() && state.astray.is_none();
        let committed = state.committed.as_ref().filter(|_| is_certain);
        committed.map(|committed| Cached::state(state.size, &committed.hash))
    }

    /// How long the end of the file that a read met may be one that the kernel does not know of
    /// yet. Between the answer to a truncation and the moment at which the kernel's thread takes
    /// note of it, other programs still read up to the old end. The kernel fills what a short
    /// answer leaves out with zeros, which such a program would get (`fuse_short_read` in Linux's
    /// `fs/fuse/file.c`); answered later, it gets the end of the file.
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
    /// Fails where the kernel believes in bytes of `offset..end` that nobody has committed.
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

    /// Whether there are changes that never reach the store any more.
    pub fn is_lost(&self) -> bool {
        self.changed && self.latched.is_some()
    }

    /// Fails where pages were refused from before `end` on.
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

    /// Fails with the errno of a failure that happened earlier, and where the contents are not
    /// known.
    pub fn check_latched(&self) -> Inner<()> {
        self.check_known()?;
        match self.latched {
            Some(errno) => Err(Fault::Os(errno)),
            None => Ok(()),
        }
    }

    /// Fails where the ciphertext has no bytes, so that nothing tells what the file holds.
    pub fn check_known(&self) -> Inner<()> {
        if self.void { Err(Fault::Corrupt(NEVER_COMMITTED)) } else { Ok(()) }
    }

    /// See [`FileState::void`].
    pub fn make_void(&mut self) {
        (self.void, self.changed, self.dirty_since) = (true, false, None);
    }

    /// Key of the salt of chunk `k`.
    fn segment_key(
        &self,
        file: &dyn File,
        context: &Context,
        k: u64,
        table: &Table,
    ) -> Inner<SegmentKey> {
        let mut epochs = context.keys.numbered(table.epoch);
        let Some(mut epoch) = epochs.next() else {
            return Err(Fault::Corrupt("is sealed under an epoch that this share does not have"));
        };
        if let Some(other) = epochs.next()
            && let Some(s) = table.segments.iter().position(|segment| segment.len > 0)
        {
            // On both sides of a settled fork an epoch with this number began, and the table does
            // not say which: the first segment does.
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

    /// Key of a salt under an epoch.
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
            self.mark(); // those that were committed meanwhile have another one
        }
    }

    /// The store has refused to write to the file, which may have been done in part.
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

    /// Whether a commit is needed before more is taken in.
    pub fn is_full(&self) -> bool {
        self.pending_bytes > PENDING_MAX || self.dirty.len() > DIRTY_CHUNKS_MAX
    }

    /// Counts what the changes take, and tells whether those of all files are more than the vault
    /// may hold, and these a part of it.
    pub fn count(&mut self, context: &Context) -> bool {
        // A changed chunk has its table in memory, besides what waits of its segments.
        let table = context.keys.layout.chunk() as usize / SEGMENT * size_of::<Segment>() + 2048;
        let bytes = self.pending_bytes + self.dirty.len() * table;
        self.counted.set(bytes);
        bytes > 0 && context.cache.has_too_many_changes()
    }

    /// What the header in the store will say.
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

    /// Chunks of the file as it is now.
    pub fn chunks(&self, layout: &Layout) -> u64 {
        if self.small.is_some() { 0 } else { layout.chunks(self.size) }
    }
}

/// Changes the length without leaving a copy of the old contents behind in freed memory.
fn resize_zeroizing(small: &mut Zeroizing<Vec<u8>>, len: usize) {
    if small.capacity() < len {
        let mut larger = Zeroizing::new(Vec::with_capacity(SMALL_MAX as usize));
        larger.extend_from_slice(small);
        *small = larger;
    }
    small.resize(len, 0);
}
