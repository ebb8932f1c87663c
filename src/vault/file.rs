//! Open files: one lock and one header state for each inode, whatever the number of handles.
//!
//! Rules that hold here
//! * Nothing that the last durable header refers to is overwritten here: such segments wait in memory, sealed, for the commit. Fresh
//!   places (holes, bytes beyond the end, files that were never durable) are written at once.
//! * A table entry changes only after its bytes are where they belong or in memory, so that no failed write makes anything unreadable:
//!   what the store refuses waits for the commit, and the writer is told.
//! * In a signed share a segment's ciphertext is compared with its hash before anything else, so that what is sealed anew around a partial
//!   write was vouched for by whoever signed the file.
//! * Plain text of a small file lives here, zeroized; larger files are never held in plain text.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use zeroize::Zeroizing;

use super::cache::{BlockCache, Counted};
use super::error::{Fault, Inner};
use super::keys::{Epoch, OpenedHeader, ShareKeys};
use super::mtime::Mtime;
use super::seal::{Ready, Sealed, seal};
use super::tree::{Chunk, Root, Tree};
use super::types::NodeId;
use crate::backing::{File, Seek};
use crate::crypto::{ChunkKeys, Random, SegmentKey};
use crate::format::header::{Header, Hint, PublicHeader};
use crate::format::journal::header_hash;
use crate::format::layout::{DATA_START, Layout, SEGMENT, SIZE_MAX, SMALL_MAX};
use crate::format::signature::Authorship;
use crate::format::table::{HOLE, SEALS_MAX, Segment, Table, segment_aad, segment_hash};

/// Sealed bytes of live segments that one file may hold before it commits.
pub(crate) const PENDING_MAX: usize = 8 << 20;
/// Fresh bytes that ride in a journal record instead of being flushed on their own.
pub(crate) const RIDE_MAX: usize = 64 << 10;
/// Changed chunks that one file may hold before it commits.
pub(crate) const DIRTY_CHUNKS_MAX: usize = 512;

/// What the operations on a file need of the vault.
pub(crate) struct Tools<'a> {
    pub keys: &'a ShareKeys,
    pub cache: &'a BlockCache,
    pub random: &'a dyn Random,
    pub caller_keeps_times: bool,
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
    pub root: Root,
    pub version: u64,
    pub oldest_epoch: u32,
    pub hint: Hint,
    /// Whether a crash may leave the committed header behind, so that what it refers to must not be touched.
    pub durable: bool,
    /// Name, mode or contents may have changed since the inode was last flushed for good.
    pub needs_sync: bool,
    /// A program has set the modification time since the inode was last flushed. A record of the journal carries it as well.
    pub mtime_set: bool,
    /// Plain size.
    pub size: u64,
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
    pub mtime: Mtime,
    pub dirty_since: Option<Instant>,
    /// errno of a failure that stays until the last close.
    pub latched: Option<i32>,
    /// Chunks and their segments that become holes of the store once the commit stands, unless they are written again before.
    pub punch: Vec<(u64, Range<usize>)>,
    /// The commit will free places to which the committed header refers.
    pub freed: bool,
    /// Whose contents the committed header says these are, in a signed share.
    pub by: Option<Authorship>,
    /// The contents have changed since, so the next header says that they are ours.
    pub rewritten: bool,
    /// Contents to which a durable header referred were thrown away, and nothing is durable since: the last close makes up for it.
    pub replaced: bool,
    /// The file was shortened, and the commit that goes with it is under way.
    pub cut: bool,
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
    /// The same as in the state, which need not be locked to know it.
    pub file_id: [u8; 32],
    pub state: RwLock<FileState>,
    /// Name or mode have changed; the next commit begins with a real flush.
    pub inode_changed: AtomicBool,
    /// Where several daemons have the vault open: the lock of who has the file open for writing.
    pub guard: Mutex<Option<Arc<dyn File>>>,
}

impl OpenFile {
    /// A file that was just created and holds nothing, not even a header.
    pub fn fresh(node: NodeId, file: Arc<dyn File>, inode: (u64, u64), tools: &Tools, serial: u64, hint: Hint) -> Arc<Self> {
        let mut file_id = [0; 32];
        tools.random.fill(&mut file_id);
        let state = FileState {
            serial,
            file_id,
            chunk_keys: OnceLock::new(),
            committed: None,
            root: Root { hash: HOLE, chunks: 0 },
            version: 0,
            oldest_epoch: tools.keys.current().number,
            hint,
            durable: false,
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
            mtime: Mtime::default(),
            dirty_since: Some(Instant::now()),
            latched: None,
            punch: Vec::new(),
            freed: false,
            by: None,
            rewritten: true,
            replaced: false,
            cut: false,
            counted: Counted::new(tools.cache),
        };
        Arc::new(OpenFile {
            node,
            file,
            inode,
            file_id,
            state: RwLock::new(state),
            inode_changed: AtomicBool::new(false),
            guard: Mutex::new(None),
        })
    }

    /// Opens what stands in the store: one read of header and small data. A file of no bytes was never committed and cannot be read;
    /// with `empty` (it is about to be truncated) it counts as empty.
    pub fn load(node: NodeId, file: Arc<dyn File>, tools: &Tools, serial: u64, empty: bool) -> Inner<Arc<Self>> {
        let layout = tools.keys.layout;
        let mut bytes = vec![0; layout.header() + SMALL_MAX as usize];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        let stat = file.stat()?;
        let backing_len = stat.size;
        let inode = (stat.dev, stat.ino);
        if empty {
            // A file whose contents nobody will see again need not be authentic to be replaced.
            let open = Self::fresh(node, file, inode, tools, serial, Hint { directory: [0; 32], name: Vec::new() });
            let mut state = open.state.write();
            state.backing_len = backing_len;
            state.replaced = backing_len > 0;
            state.mtime = Mtime::loaded(tools.caller_keeps_times, stat.mtime);
            drop(state);
            return Ok(open);
        }
        if read == 0 {
            return Err(Fault::Corrupt("is empty: it was never committed"));
        }
        let OpenedHeader { header, data, by } = tools.keys.open_header(&bytes)?;
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
            committed: Some(Committed { hash: header_hash(&bytes[..layout.header()]), end }),
            root: Root { hash: header.root, chunks },
            version: header.version,
            oldest_epoch: header.oldest_epoch,
            hint: header.hint,
            durable: true,
            // Whoever wrote it, an earlier mount or a sync tool, may have left it in the machine's cache: nothing in the store tells.
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
            mtime: Mtime::loaded(tools.caller_keeps_times, stat.mtime),
            dirty_since: None,
            latched: None,
            punch: Vec::new(),
            freed: false,
            by,
            rewritten: false,
            replaced: false,
            cut: false,
            counted: Counted::new(tools.cache),
        };
        Ok(Arc::new(OpenFile {
            node,
            file,
            inode,
            file_id: state.file_id,
            state: RwLock::new(state),
            inode_changed: AtomicBool::new(false),
            guard: Mutex::new(None),
        }))
    }

    /// Reads up to `buf.len()` plain bytes at `offset`; fewer only at the end of the file.
    pub fn read(&self, tools: &Tools, offset: u64, buf: &mut [u8]) -> Inner<usize> {
        self.state.read().read(&*self.file, tools, offset, buf)
    }
}

impl FileState {
    pub fn tree<'a>(&self, file: &'a dyn File, tools: &Tools<'a>) -> Tree<'a> {
        Tree { layout: tools.keys.layout, suite: tools.keys.suite, file, root: self.root, serial: self.serial, cache: tools.cache }
    }

    /// Fails with the errno of a failure that happened earlier.
    pub fn check_latched(&self) -> Inner<()> {
        match self.latched {
            Some(errno) => Err(Fault::Os(errno)),
            None => Ok(()),
        }
    }

    /// Key of the salt of chunk `k`.
    fn segment_key(&self, file: &dyn File, tools: &Tools, k: u64, table: &Table) -> Inner<SegmentKey> {
        let mut epochs = tools.keys.numbered(table.epoch);
        let Some(mut epoch) = epochs.next() else {
            return Err(Fault::Corrupt("is sealed under an epoch that this share does not have"));
        };
        if let Some(other) = epochs.next()
            && let Some(s) = table.segments.iter().position(|segment| segment.len > 0)
        {
            // On both sides of a settled fork an epoch with this number began, and the table does not say which: the first segment does.
            let opens = |epoch: &Epoch| {
                let key = tools.keys.chunk_keys(epoch, &self.file_id).derive(&table.salt);
                let mut plain = Zeroizing::new([0; SEGMENT]);
                self.open_one(file, tools, k, s, table, &key, None, &mut plain).is_ok()
            };
            epoch = [epoch, other].into_iter().chain(epochs).find(|epoch| opens(epoch)).unwrap_or(epoch);
        }
        Ok(self.key_of(tools, epoch, &table.salt))
    }

    /// Key of a salt under an epoch.
    fn key_of(&self, tools: &Tools, epoch: &Epoch, salt: &[u8; 16]) -> SegmentKey {
        let (number, commitment, keys) =
            self.chunk_keys.get_or_init(|| (epoch.number, epoch.commitment, tools.keys.chunk_keys(epoch, &self.file_id)));
        if (*number, *commitment) == (epoch.number, epoch.commitment) {
            return keys.derive(salt);
        }
        tools.keys.chunk_keys(epoch, &self.file_id).derive(salt)
    }

    fn committed_chunk(&self, file: &dyn File, tools: &Tools, k: u64) -> Inner<Option<Arc<Chunk>>> {
        self.tree(file, tools).chunk(k, |table| self.segment_key(file, tools, k, table))
    }

    /// Whether the table of chunk `k` can be read; its segments are not looked at.
    pub fn is_chunk_readable(&self, file: &dyn File, tools: &Tools, k: u64) -> Inner<()> {
        if self.small.is_some() || self.dirty.contains_key(&k) { Ok(()) } else { self.committed_chunk(file, tools, k).map(drop) }
    }

    /// The first chunk behind `k`, a chunk of holes, that may hold something.
    fn after_hole(&self, file: &dyn File, tools: &Tools, k: u64) -> Inner<u64> {
        let committed = self.tree(file, tools).after_hole(k)?;
        let dirty = self.dirty.range(k + 1..).next().map_or(u64::MAX, |(k, _)| *k);
        Ok(committed.min(dirty).max(k + 1))
    }

    /// Reads plain bytes; see [`OpenFile::read`].
    pub fn read(&self, file: &dyn File, tools: &Tools, offset: u64, buf: &mut [u8]) -> Inner<usize> {
        if offset >= self.size {
            return Ok(0);
        }
        let len = buf.len().min((self.size - offset).min(usize::MAX as u64) as usize);
        let buf = &mut buf[..len];
        if let Some(small) = &self.small {
            buf.copy_from_slice(&small[offset as usize..offset as usize + len]);
            return Ok(len);
        }
        let chunk_size = tools.keys.layout.chunk();
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let k = at / chunk_size;
            let within = (at % chunk_size) as usize;
            let part = (chunk_size as usize - within).min(len - done);
            self.read_chunk(file, tools, k, within, &mut buf[done..done + part])?;
            done += part;
        }
        Ok(len)
    }

    fn read_chunk(&self, file: &dyn File, tools: &Tools, k: u64, within: usize, buf: &mut [u8]) -> Inner<()> {
        if let Some(dirty) = self.dirty.get(&k) {
            return self.open_segments(file, tools, k, &dirty.table, &dirty.key, Some(&dirty.pending), within, buf);
        }
        match self.committed_chunk(file, tools, k)? {
            Some(chunk) => self.open_segments(file, tools, k, &chunk.table, &chunk.key, None, within, buf),
            None => {
                buf.fill(0);
                Ok(())
            }
        }
    }

    /// Opens the segments of a chunk that cover `buf.len()` bytes from byte `within`, runs of segments with one read each.
    #[allow(clippy::too_many_arguments)]
    fn open_segments(
        &self,
        file: &dyn File,
        tools: &Tools,
        k: u64,
        table: &Table,
        key: &SegmentKey,
        pending: Option<&BTreeMap<usize, Bytes>>,
        within: usize,
        buf: &mut [u8],
    ) -> Inner<()> {
        let layout = &tools.keys.layout;
        let end = within + buf.len();
        let mut s = within / SEGMENT;
        while s * SEGMENT < end {
            let whole = s * SEGMENT >= within && (s + 1) * SEGMENT <= end;
            let waits = pending.and_then(|p| p.get(&s)).map(|b| &**b);
            if !whole || waits.is_some() || table.segments[s].len as usize != SEGMENT {
                // Part of a segment, or one that is not at its place or not full: through a buffer of its own.
                let mut plain = Zeroizing::new([0; SEGMENT]);
                self.open_one(file, tools, k, s, table, key, waits, &mut plain)?;
                let (from, to) = (within.max(s * SEGMENT), end.min((s + 1) * SEGMENT));
                buf[from - within..to - within].copy_from_slice(&plain[from - s * SEGMENT..to - s * SEGMENT]);
                s += 1;
                continue;
            }
            let in_run = |t: usize| {
                (t + 1) * SEGMENT <= end && table.segments[t].len as usize == SEGMENT && pending.is_none_or(|p| !p.contains_key(&t))
            };
            let mut run = s + 1;
            while run < table.segments.len() && in_run(run) {
                run += 1;
            }
            let part = &mut buf[s * SEGMENT - within..run * SEGMENT - within];
            if file.read_at(part, layout.segment_offset(k, s))? != part.len() {
                return Err(Fault::Corrupt("is shorter than its header says"));
            }
            for (sealed, t) in part.chunks_exact_mut(SEGMENT).zip(s..) {
                self.open_in_place(tools, k, t, table, key, sealed)?;
            }
            s = run;
        }
        Ok(())
    }

    fn open_in_place(&self, tools: &Tools, k: u64, s: usize, table: &Table, key: &SegmentKey, sealed: &mut [u8]) -> Inner<()> {
        let segment = &table.segments[s];
        if let Some(hash) = table.hashes.get(s)
            && segment_hash(sealed) != *hash
        {
            return Err(Fault::Corrupt("has a segment that is not the one that was signed"));
        }
        let aad = segment_aad(&tools.keys.share, &self.file_id, k, s as u32, segment.len, table.epoch, tools.keys.suite);
        key.open(&segment.nonce, &aad, sealed, &segment.tag).map_err(|_| Fault::Corrupt("has a segment that cannot be authenticated"))
    }

    /// Opens one segment into `plain`, zeros behind its sealed length.
    #[allow(clippy::too_many_arguments)]
    fn open_one(
        &self,
        file: &dyn File,
        tools: &Tools,
        k: u64,
        s: usize,
        table: &Table,
        key: &SegmentKey,
        waits: Option<&[u8]>,
        plain: &mut [u8; SEGMENT],
    ) -> Inner<()> {
        let len = table.segments[s].len as usize;
        if len == 0 {
            return Ok(());
        }
        match waits {
            Some(sealed) => plain[..len].copy_from_slice(sealed),
            None => {
                if file.read_at(&mut plain[..len], tools.keys.layout.segment_offset(k, s))? != len {
                    return Err(Fault::Corrupt("is shorter than its header says"));
                }
            }
        }
        self.open_in_place(tools, k, s, table, key, &mut plain[..len])
    }

    pub(super) fn new_salt(tools: &Tools) -> [u8; 16] {
        let mut salt = [0; 16];
        match tools.keys.suite {
            crate::crypto::Suite::Aes256Gcm => tools.random.fill(&mut salt[..12]),
            crate::crypto::Suite::ChaCha20Poly1305 => tools.random.fill(&mut salt),
        }
        salt
    }

    fn empty_chunk(&self, tools: &Tools, live: Box<[bool]>) -> DirtyChunk {
        let epoch = tools.keys.current();
        let table = Table::empty(&tools.keys.layout, Self::new_salt(tools), epoch.number);
        let key = self.key_of(tools, epoch, &table.salt);
        DirtyChunk { table, key, epoch: epoch.commitment, live, pending: BTreeMap::new() }
    }

    /// Which segments of chunk `k` the last durable header refers to.
    fn live_segments(&self, tools: &Tools, committed: Option<&Chunk>) -> Box<[bool]> {
        match committed {
            Some(chunk) if self.durable => chunk.table.segments.iter().map(|s| s.len != 0).collect(),
            _ => vec![false; tools.keys.layout.segments()].into(),
        }
    }

    /// Takes chunk `k` into the dirty ones, ready for new segments under its present salt, or sealed anew where the salt is worn out or
    /// of an older epoch.
    fn make_dirty(&mut self, file: &dyn File, tools: &Tools, k: u64) -> Inner<()> {
        let current = tools.keys.current();
        if let Some(dirty) = self.dirty.get(&k)
            && dirty.table.seals < SEALS_MAX
            && (dirty.table.epoch, dirty.epoch) == (current.number, current.commitment)
        {
            return Ok(());
        }
        if !self.dirty.contains_key(&k) {
            let committed = self.committed_chunk(file, tools, k)?;
            let live = self.live_segments(tools, committed.as_deref());
            let fits = |t: &Table| t.epoch == current.number && t.seals < SEALS_MAX && tools.keys.numbered(t.epoch).count() == 1;
            match committed {
                None => {
                    let chunk = self.empty_chunk(tools, live);
                    self.dirty.insert(k, chunk);
                    return Ok(());
                }
                Some(chunk) if fits(&chunk.table) => {
                    let key = self.key_of(tools, current, &chunk.table.salt);
                    let table = chunk.table.clone();
                    self.dirty.insert(k, DirtyChunk { table, key, epoch: current.commitment, live, pending: BTreeMap::new() });
                    return Ok(());
                }
                Some(_) => {}
            }
        }
        // No new bytes under an old epoch or a worn-out salt: the whole chunk is sealed anew.
        let mut plain = Zeroizing::new(vec![0; tools.keys.layout.chunk() as usize]);
        self.read_chunk(file, tools, k, 0, &mut plain)?;
        let lens: Vec<u16> = match self.dirty.get(&k) {
            Some(dirty) => dirty.table.segments.iter().map(|s| s.len).collect(),
            None => self.committed_chunk(file, tools, k)?.map_or(Vec::new(), |c| c.table.segments.iter().map(|s| s.len).collect()),
        };
        let live = match self.dirty.get(&k) {
            Some(dirty) => dirty.live.clone(),
            None => self.live_segments(tools, self.committed_chunk(file, tools, k)?.as_deref()),
        };
        let mut chunk = self.empty_chunk(tools, live);
        for (s, len) in lens.into_iter().enumerate().filter(|(_, len)| *len > 0) {
            let at = s * SEGMENT;
            // What is refused is in memory now, and the commit will find it again.
            let part = Zeroizing::new(plain[at..at + len as usize].to_vec());
            let _ = self.seal_into(file, tools, k, &mut chunk, s, part, false);
        }
        self.replace_dirty(k, chunk);
        Ok(())
    }

    /// Seals anew what waits under an epoch that has ended since: nothing new is written under it.
    pub fn renew_dirty(&mut self, file: &dyn File, tools: &Tools) -> Inner<()> {
        let current = tools.keys.current();
        let ended =
            |(k, chunk): (&u64, &DirtyChunk)| ((chunk.table.epoch, chunk.epoch) != (current.number, current.commitment)).then_some(*k);
        for k in self.dirty.iter().filter_map(ended).collect::<Vec<u64>>() {
            self.make_dirty(file, tools, k)?;
        }
        Ok(())
    }

    /// What chunk `k` holds. Its segments are not looked at.
    pub fn look_at(&self, file: &dyn File, tools: &Tools, k: u64) -> Inner<ChunkLook> {
        let current = tools.keys.current();
        let of = |table: &Table, older: bool| {
            let bytes = table.segments.iter().map(|s| u64::from(s.len)).sum();
            ChunkLook { next: k + 1, bytes, older }
        };
        if let Some(dirty) = self.dirty.get(&k) {
            return Ok(of(&dirty.table, (dirty.table.epoch, dirty.epoch) != (current.number, current.commitment)));
        }
        Ok(match self.committed_chunk(file, tools, k)? {
            Some(chunk) => {
                let epoch = chunk.table.epoch;
                of(&chunk.table, epoch != current.number || tools.keys.numbered(epoch).count() != 1)
            }
            None => ChunkLook { next: self.after_hole(file, tools, k)?, bytes: 0, older: false },
        })
    }

    /// Takes chunk `k` into the dirty ones, sealed anew, where it is of another epoch than the current one; tells what it was.
    pub fn renew(&mut self, file: &dyn File, tools: &Tools, k: u64) -> Inner<ChunkLook> {
        let look = self.look_at(file, tools, k)?;
        if look.older {
            self.make_dirty(file, tools, k)?;
        }
        Ok(look)
    }

    fn replace_dirty(&mut self, k: u64, chunk: DirtyChunk) {
        if let Some(old) = self.dirty.insert(k, chunk) {
            self.pending_bytes -= old.pending.values().map(|b| b.len()).sum::<usize>().min(self.pending_bytes);
        }
    }

    /// Seals `plain` (whole segments, the last one may be short) from segment `first` on, and puts the sealed segments where they belong;
    /// see [`FileState::place`].
    #[allow(clippy::too_many_arguments)]
    fn seal_into(
        &mut self,
        file: &dyn File,
        tools: &Tools,
        k: u64,
        chunk: &mut DirtyChunk,
        first: usize,
        plain: Zeroizing<Vec<u8>>,
        hold: bool,
    ) -> Option<Fault> {
        let sealed = seal(tools, &self.file_id, k, chunk.table.epoch, &chunk.key, first, plain);
        self.place(file, tools, k, chunk, first, sealed, hold)
    }

    /// Puts sealed segments, of which the first is `first`, where they belong: into the store where their place is fresh, into the chunk's
    /// pending ones where it is live, or all of them with `hold`. What the store refuses waits with the pending ones, for its place may
    /// hold half of the new bytes; the answer is why.
    #[allow(clippy::too_many_arguments)]
    fn place(
        &mut self,
        file: &dyn File,
        tools: &Tools,
        k: u64,
        chunk: &mut DirtyChunk,
        first: usize,
        sealed: Sealed,
        hold: bool,
    ) -> Option<Fault> {
        let layout = &tools.keys.layout;
        let Sealed { bytes, entries } = sealed;
        let count = entries.len();
        chunk.table.seals = chunk.table.seals.saturating_add(count as u32);
        let guarded_end = if self.durable { self.committed.as_ref().map_or(0, |c| c.end) } else { 0 };
        let rides = self.durable && self.riding_bytes + bytes.len() <= RIDE_MAX;
        let live = std::mem::take(&mut chunk.live);
        let waits = |s: usize| live[s] || layout.segment_offset(k, s) < guarded_end;
        let mut refused = None;
        let mut s = first;
        while s < first + count {
            let at = (s - first) * SEGMENT;
            if waits(s) || rides || hold || refused.is_some() {
                let sealed = bytes.slice(at..bytes.len().min(at + SEGMENT));
                if !waits(s) {
                    self.riding_bytes += sealed.len();
                }
                self.pending_bytes += sealed.len();
                if let Some(old) = chunk.pending.insert(s, sealed) {
                    self.pending_bytes -= old.len();
                }
                let (entry, hash) = entries[s - first];
                chunk.table.set(s, entry, hash);
                s += 1;
                continue;
            }
            let mut run = s + 1;
            while run < first + count && !waits(run) {
                run += 1;
            }
            let part = &bytes[at..bytes.len().min((run - first) * SEGMENT)];
            let offset = layout.segment_offset(k, s);
            // Noted first: a write that fails may have been done in part.
            self.backing_len = self.backing_len.max(offset + part.len() as u64);
            self.unsynced = true;
            if let Err(e) = file.write_at(part, offset) {
                refused = Some(Fault::Io(e));
                continue;
            }
            for t in s..run {
                if let Some(old) = chunk.pending.remove(&t) {
                    self.pending_bytes -= old.len();
                }
                let (entry, hash) = entries[t - first];
                chunk.table.set(t, entry, hash);
            }
            s = run;
        }
        chunk.live = live;
        refused
    }

    /// Leaves the small form: what it holds becomes segment 0 of chunk 0.
    fn grow_out_of_small(&mut self, file: &dyn File, tools: &Tools) -> Inner<()> {
        if self.small.is_none() {
            return Ok(());
        }
        let live = self.live_segments(tools, self.committed_chunk(file, tools, 0)?.as_deref());
        let mut chunk = self.empty_chunk(tools, live);
        let Some(small) = self.small.take() else { return Ok(()) };
        if !small.is_empty() {
            // What is refused is not lost, and the commit will find it again.
            let _ = self.seal_into(file, tools, 0, &mut chunk, 0, small, false);
        }
        self.replace_dirty(0, chunk);
        Ok(())
    }

    /// Writes `data` at `offset`.
    pub fn write(&mut self, file: &dyn File, tools: &Tools, offset: u64, data: &[u8]) -> Inner<()> {
        self.write_ready(file, tools, offset, data, Ready::default())
    }

    /// Writes `data` at `offset`, of which the chunks in `ready` were sealed before.
    pub fn write_ready(&mut self, file: &dyn File, tools: &Tools, offset: u64, data: &[u8], mut ready: Ready) -> Inner<()> {
        self.check_latched()?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= SIZE_MAX).ok_or(Fault::Os(libc::EFBIG))?;
        if data.is_empty() {
            return Ok(());
        }
        if let Some(small) = &mut self.small
            && end <= SMALL_MAX
        {
            if small.len() < end as usize {
                resize_zeroizing(small, end as usize);
            }
            small[offset as usize..end as usize].copy_from_slice(data);
            self.size = small.len() as u64;
            self.touch();
            return Ok(());
        }
        let (small, size) = (self.small.clone(), self.size);
        self.grow_out_of_small(file, tools)?;
        let chunk_size = tools.keys.layout.chunk();
        let mut done = 0;
        let mut result = Ok(());
        while done < data.len() {
            let at = offset + done as u64;
            let within = (at % chunk_size) as usize;
            let part = (chunk_size as usize - within).min(data.len() - done);
            match self.write_chunk(file, tools, at / chunk_size, within, &data[done..done + part], &mut ready) {
                Ok(refused) => {
                    done += part;
                    self.size = self.size.max(at + part as u64);
                    result = refused.map_or(Ok(()), Err);
                }
                Err(fault) => result = Err(fault),
            }
            if result.is_err() {
                break;
            }
        }
        if result.is_err() && self.size <= SMALL_MAX {
            // What was written does not make the file large: without its small form no header could tell its size.
            self.take_dirty_from(0);
            (self.small, self.size) = (small, size);
            return result;
        }
        // What was written before a failure counts: the program may be told of a short write, never of lost bytes.
        if done > 0 {
            self.touch();
        }
        result
    }

    /// Writes within one chunk. `Ok` with a fault: the bytes are in memory, but the store has refused them.
    fn write_chunk(
        &mut self,
        file: &dyn File,
        tools: &Tools,
        k: u64,
        within: usize,
        data: &[u8],
        ready: &mut Ready,
    ) -> Inner<Option<Fault>> {
        let chunk_start = k * tools.keys.layout.chunk();
        let end = within + data.len();
        let covers_all = within == 0 && chunk_start + end as u64 >= self.size.min(chunk_start + tools.keys.layout.chunk());
        if covers_all {
            // Every byte of the chunk is new: a new salt, and no need to read what was there.
            let live = match self.dirty.get(&k) {
                Some(dirty) => dirty.live.clone(),
                None => self.live_segments(tools, self.committed_chunk(file, tools, k)?.as_deref()),
            };
            let (mut chunk, sealed) = match ready.take(tools, k, data.len()) {
                Some((chunk, sealed)) => (DirtyChunk { live, ..chunk }, sealed),
                None => {
                    let chunk = self.empty_chunk(tools, live);
                    let plain = Zeroizing::new(data.to_vec());
                    let sealed = seal(tools, &self.file_id, k, chunk.table.epoch, &chunk.key, 0, plain);
                    (chunk, sealed)
                }
            };
            let refused = self.place(file, tools, k, &mut chunk, 0, sealed, false);
            self.replace_dirty(k, chunk);
            return Ok(refused);
        }
        self.make_dirty(file, tools, k)?;
        let (first, last) = (within / SEGMENT, (end - 1) / SEGMENT);
        let dirty = &self.dirty[&k];
        let old_tail = dirty.table.segments[last].len as usize;
        let tail = (end - last * SEGMENT).max(old_tail);
        let mut plain = Zeroizing::new(vec![0; (last - first) * SEGMENT + tail]);
        let starts_inside = !within.is_multiple_of(SEGMENT);
        let ends_inside = end - last * SEGMENT < old_tail;
        for (s, wanted) in [(first, starts_inside), (last, ends_inside && (first != last || !starts_inside))] {
            if wanted {
                let mut old = Zeroizing::new([0; SEGMENT]);
                self.open_one(file, tools, k, s, &dirty.table, &dirty.key, dirty.pending.get(&s).map(|b| &**b), &mut old)?;
                let at = (s - first) * SEGMENT;
                let len = (plain.len() - at).min(SEGMENT);
                plain[at..at + len].copy_from_slice(&old[..len]);
            }
        }
        let at = within - first * SEGMENT;
        plain[at..at + data.len()].copy_from_slice(data);
        let mut chunk = self.dirty.remove(&k).expect("made dirty above");
        let refused = self.seal_into(file, tools, k, &mut chunk, first, plain, false);
        self.dirty.insert(k, chunk);
        Ok(refused)
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

    /// Notes that a commit is due.
    pub fn mark(&mut self) {
        self.changed = true;
        self.dirty_since.get_or_insert_with(Instant::now);
    }

    /// Lengthens the file with a hole.
    pub fn extend(&mut self, file: &dyn File, tools: &Tools, size: u64) -> Inner<()> {
        debug_assert!(size >= self.size);
        if size > SIZE_MAX {
            return Err(Fault::Os(libc::EFBIG));
        }
        match &mut self.small {
            Some(small) if size <= SMALL_MAX => resize_zeroizing(small, size as usize),
            Some(_) => self.grow_out_of_small(file, tools)?,
            None => {}
        }
        self.size = size;
        self.touch();
        Ok(())
    }

    /// Shortens the file in memory. The caller commits at once: only a commit makes the bytes beyond the end free. Where the store refuses
    /// that, he takes it back with [`FileState::restore`].
    pub fn shorten(&mut self, file: &dyn File, tools: &Tools, size: u64) -> Inner<Longer> {
        debug_assert!(size < self.size);
        // Now, because the commit must not: it would write to places of which what was cut is to be restored.
        self.renew_dirty(file, tools)?;
        let mut longer = Longer {
            size: self.size,
            small: self.small.clone(),
            dirty: BTreeMap::new(),
            tail: None,
            pending_bytes: self.pending_bytes,
            riding_bytes: self.riding_bytes,
            freed: self.freed,
            changed: self.changed,
            rewritten: self.rewritten,
            mtime: self.mtime,
            dirty_since: self.dirty_since,
        };
        if let Some(small) = &mut self.small {
            small.truncate(size as usize);
        } else if size <= SMALL_MAX {
            let mut data = Zeroizing::new(vec![0; size as usize]);
            self.read(file, tools, 0, &mut data)?;
            self.small = Some(data);
            longer.dirty = self.take_dirty_from(0);
        } else {
            let (last, s) = tools.keys.layout.locate(size - 1);
            let len = ((size - 1) % SEGMENT as u64 + 1) as usize;
            self.make_dirty(file, tools, last)?;
            let chunk = &self.dirty[&last];
            let (table, live, pending, epoch) = (chunk.table.clone(), chunk.live.clone(), chunk.pending.clone(), chunk.epoch);
            let sealed_under = tools.keys.numbered(table.epoch).find(|e| e.commitment == epoch).expect("an epoch stays known");
            let mut before = DirtyChunk { key: self.key_of(tools, sealed_under, &table.salt), table, epoch, live, pending };
            let mut tail = None;
            if before.table.segments[s].len as usize > len {
                let mut plain = Zeroizing::new([0; SEGMENT]);
                let waits = before.pending.get(&s).map(|b| &**b);
                self.open_one(file, tools, last, s, &before.table, &before.key, waits, &mut plain)?;
                tail = Some((last, s, plain));
            }
            (longer.pending_bytes, longer.riding_bytes) = (self.pending_bytes, self.riding_bytes);
            let mut chunk = self.dirty.remove(&last).expect("made dirty above");
            if let Some((_, _, plain)) = &tail {
                let kept = Zeroizing::new(plain[..len].to_vec());
                self.seal_into(file, tools, last, &mut chunk, s, kept, true);
            }
            for t in s + 1..chunk.table.segments.len() {
                self.clear_segment(&mut chunk, t);
            }
            before.table.seals = chunk.table.seals;
            self.dirty.insert(last, chunk);
            longer.dirty = self.take_dirty_from(last + 1);
            longer.dirty.insert(last, before);
            longer.tail = tail;
        }
        self.size = size;
        self.freed = true;
        self.cut = true;
        self.touch();
        Ok(longer)
    }

    /// Takes a [`FileState::shorten`] back of which the store has taken nothing in.
    pub fn restore(&mut self, file: &dyn File, tools: &Tools, longer: Longer) {
        self.cut = false;
        self.size = longer.size;
        self.small = longer.small;
        self.dirty.extend(longer.dirty);
        (self.pending_bytes, self.riding_bytes) = (longer.pending_bytes, longer.riding_bytes);
        (self.freed, self.changed, self.rewritten) = (longer.freed, longer.changed, longer.rewritten);
        (self.mtime, self.dirty_since) = (longer.mtime, longer.dirty_since);
        if let Some((k, s, plain)) = longer.tail
            && !self.durable
            && let Some(mut chunk) = self.dirty.remove(&k)
        {
            // A file that is written straight may have the shorter segment at its place by now.
            let len = chunk.table.segments[s].len as usize;
            self.seal_into(file, tools, k, &mut chunk, s, Zeroizing::new(plain[..len].to_vec()), true);
            self.dirty.insert(k, chunk);
            self.mark();
        }
    }

    /// Throws the contents away, committed ones too, under a new number for the blocks. The caller commits at once.
    pub fn discard(&mut self, serial: u64) {
        self.take_dirty_from(0);
        self.serial = serial;
        self.replaced |= self.durable;
        self.durable = false;
        self.committed = None;
        self.root = Root { hash: HOLE, chunks: 0 };
        self.small = Some(Zeroizing::new(Vec::new()));
        self.size = 0;
        self.riding_bytes = 0;
        self.punch.clear();
        self.touch();
    }

    fn clear_segment(&mut self, chunk: &mut DirtyChunk, s: usize) {
        // Records of the small form may have written where the first chunk stands now.
        self.freed |= chunk.live[s] || self.durable && self.committed.as_ref().is_some_and(|c| c.end > DATA_START);
        chunk.table.set(s, Segment::HOLE, None);
        if let Some(old) = chunk.pending.remove(&s) {
            self.pending_bytes -= old.len();
        }
    }

    pub fn take_dirty_from(&mut self, k: u64) -> BTreeMap<u64, DirtyChunk> {
        let taken = self.dirty.split_off(&k);
        let pending: usize = taken.values().flat_map(|chunk| chunk.pending.values()).map(|b| b.len()).sum();
        self.pending_bytes -= pending.min(self.pending_bytes);
        taken
    }

    /// Makes a hole of the bytes `offset..end` (`end` at most the size): whole segments leave the store, the rest becomes zeros. Stops
    /// where a commit is due; gives the offset up to which it is done.
    pub fn punch(&mut self, file: &dyn File, tools: &Tools, offset: u64, end: u64) -> Inner<u64> {
        let until_told = end;
        let end = end.min(self.size);
        if offset >= end {
            return Ok(until_told);
        }
        if let Some(small) = &mut self.small {
            small[offset as usize..end as usize].fill(0);
            self.touch();
            return Ok(until_told);
        }
        const S: u64 = SEGMENT as u64;
        // Behind the end of the file the last segment has nothing, so a range that reaches the end covers it whole.
        let (whole_from, whole_to) = (offset.next_multiple_of(S), if end == self.size { end.next_multiple_of(S) } else { end / S * S });
        if whole_from >= whole_to {
            self.write(file, tools, offset, &vec![0; (end - offset) as usize])?;
            return Ok(until_told);
        }
        if offset < whole_from {
            self.write(file, tools, offset, &vec![0; (whole_from - offset) as usize])?;
        }
        let chunk_size = tools.keys.layout.chunk();
        let mut at = whole_from;
        while at < whole_to {
            if self.is_full() {
                self.touch();
                return Ok(at);
            }
            let k = at / chunk_size;
            if !self.dirty.contains_key(&k) && self.committed_chunk(file, tools, k)?.is_none() {
                at = self.after_hole(file, tools, k)?.saturating_mul(chunk_size);
                continue;
            }
            let until = ((k + 1) * chunk_size).min(whole_to);
            self.make_dirty(file, tools, k)?;
            let mut chunk = self.dirty.remove(&k).expect("made dirty above");
            let segments = ((at % chunk_size) / S) as usize..((until - k * chunk_size).div_ceil(S)) as usize;
            self.punch.push((k, segments.clone()));
            for s in segments {
                self.clear_segment(&mut chunk, s);
            }
            self.dirty.insert(k, chunk);
            at = until;
        }
        if whole_to < end {
            self.write(file, tools, whole_to, &vec![0; (end - whole_to) as usize])?;
        }
        self.touch();
        Ok(until_told)
    }

    /// Bytes that were punched since the last commit, and whose blocks the store still has.
    pub fn punched(&self) -> u64 {
        self.punch.iter().map(|(_, segments)| (segments.len() * SEGMENT) as u64).sum()
    }

    /// Ciphertext ranges that the next commit turns into holes: what was punched and not written since, perhaps while an earlier commit
    /// found no space.
    pub fn holes(&self, layout: &Layout) -> Vec<(u64, u64)> {
        let is_hole = |k: u64, s: usize| self.dirty.get(&k).is_some_and(|chunk| chunk.table.segments[s].len == 0);
        let mut holes: Vec<(u64, u64)> = Vec::new();
        for (k, segments) in &self.punch {
            for s in segments.clone().filter(|s| is_hole(*k, *s)) {
                let at = layout.segment_offset(*k, s);
                match holes.last_mut() {
                    Some((from, len)) if *from + *len == at => *len += SEGMENT as u64,
                    _ => holes.push((at, SEGMENT as u64)),
                }
            }
        }
        holes
    }

    /// The next data or hole at or after `offset`, by whole segments.
    pub fn seek(&self, file: &dyn File, tools: &Tools, offset: u64, what: Seek) -> Inner<u64> {
        if offset >= self.size {
            return Err(Fault::Os(libc::ENXIO));
        }
        let layout = &tools.keys.layout;
        let mut at = offset;
        while at < self.size {
            if self.small.is_some() {
                return Ok(if what == Seek::Data { at } else { self.size });
            }
            let (k, mut s) = layout.locate(at);
            let committed;
            let table = match self.dirty.get(&k) {
                Some(dirty) => Some(&dirty.table),
                None => {
                    committed = self.committed_chunk(file, tools, k)?;
                    committed.as_ref().map(|c| &c.table)
                }
            };
            let Some(table) = table else {
                if what == Seek::Hole {
                    return Ok(at);
                }
                at = self.after_hole(file, tools, k)?.saturating_mul(layout.chunk());
                continue;
            };
            while s < table.segments.len() && at < self.size {
                if (table.segments[s].len != 0) == (what == Seek::Data) {
                    return Ok(at);
                }
                s += 1;
                at = k * layout.chunk() + (s * SEGMENT) as u64;
            }
        }
        if what == Seek::Data { Err(Fault::Os(libc::ENXIO)) } else { Ok(self.size) }
    }

    /// Whether a commit is needed before more is taken in.
    pub fn is_full(&self) -> bool {
        self.pending_bytes > PENDING_MAX || self.dirty.len() > DIRTY_CHUNKS_MAX
    }

    /// Counts what the changes take, and tells whether those of all files are more than the vault may hold, and these a part of it.
    pub fn count(&mut self, tools: &Tools) -> bool {
        // A changed chunk has its table in memory, besides what waits of its segments.
        let table = tools.keys.layout.chunk() as usize / SEGMENT * size_of::<Segment>() + 2048;
        let bytes = self.pending_bytes + self.dirty.len() * table;
        self.counted.set(bytes);
        bytes > 0 && tools.cache.has_too_many_changes()
    }

    /// What the header in the store will say.
    pub fn header(&self, tools: &Tools, root: Root) -> Header {
        let epoch = tools.keys.current();
        Header {
            public: PublicHeader {
                suite: tools.keys.suite,
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
