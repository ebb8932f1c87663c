//! The commit: the order in which new headers, tables and index blocks are written to the store.
//! Besides it, only the journal writes them, from its records.
//!
//! Rules that hold here
//! * A file that was never durable, or that durably has no name, is written straight (in place,
//!   without a record): a crash may leave it unreadable, but no program was promised it. Places
//!   that the last committed header refers to are overwritten after all writes that need space, and
//!   the header last: a full store leaves the file as it was.
//! * For any other file, nothing that its last durable header refers to is overwritten before the
//!   redo record is durable. The order is: fresh bytes, `fdatasync`; record, `fdatasync` of the
//!   journal; then in place, header last. The checkpoint flushes that later.
//! * Every deferred write ends by restoring the modification time that the program set or saw.
//! * A failure latches: the file returns its errno until its last close. There are four
//!   exceptions. In each, dirty data stays in memory and the next commit retries:
//!   * a full store, as long as nothing that the last durable header refers to was touched; the
//!     last commit writes what fits (`open_files/space.rs`);
//!   * the limit of open files was reached;
//!   * a share whose head cannot be opened yet, or which is forked: a sync tool may have delivered
//!     the manifest before the slots;
//!   * another program has overwritten the file of a synced vault since the commit began. The caller
//!     keeps the changes elsewhere and commits again.
//! * The blocks that a record will be applied to are allocated before the record is acknowledged.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::format::journal::{JournalRecord, Patch, header_hash};
use crate::format::layout::{DATA_START, Layout};
use crate::format::signature::Authorship;
use crate::format::table::HOLE;
use crate::store::{Allocate, File};
use crate::vault::durability::journal::{Journal, Ticket, birth};
use crate::vault::durability::replacement::Beside;
use crate::vault::durability::writers::Writers;
use crate::vault::error::{Corruption, Fault, Inner, is_no_descriptor, is_no_space};
use crate::vault::file::block_cache::Chunk;
use crate::vault::file::hash_tree::{Plan, PlannedBlock, plan};
use crate::vault::file::mtime::now;
use crate::vault::file::phase::{Committed, HeaderBytes, Pending, Phase, Tail, Unflushed};
use crate::vault::file::{Context, FileState, OpenFile, RIDE_MAX};

/// Maximum number of patches that are written with one call.
const RUN_MAX: usize = 256;

/// Durability that a commit must reach before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Ordered, so that a crash leaves the old or the new state of a durable file; a fresh file may
    /// stay in the page cache.
    Ordered,
    /// On the disk.
    Synced,
}

/// The parts that a commit needs in addition to the file.
pub(crate) struct Committer<'a> {
    pub context: Context<'a>,
    pub journal: &'a Journal,
    /// Returns a new cache key for the blocks of a shortened file: the old ones are never found
    /// again.
    pub next_serial: &'a dyn Fn() -> u64,
    /// Which daemons may write to the vault. If there are others, records contain whole blocks, and
    /// the header is compared again before a record is applied.
    pub writers: Writers,
    /// Where a new file can be put in place of the stored one, if that is wanted: in a synced vault.
    /// There another program may overwrite the stored file at any time, so its header is compared again
    /// before anything is written in place.
    pub beside: Option<&'a dyn Beside>,
}

/// What one commit writes: the blocks above the segments, the header, and the shape of the file.
pub(super) struct Planned {
    /// The changed tables and index blocks, and the root above them.
    tree: Plan,
    /// The header, with the small data behind it if the file has no chunks.
    header: Vec<u8>,
    /// The length of the ciphertext in bytes.
    pub(super) cipher_len: u64,
    /// Offset and length of the places that become holes of the store.
    holes: Vec<(u64, u64)>,
}

impl Planned {
    /// Returns the end of the bytes that the header seals: in the small form with the data.
    fn header_end(&self, state: &FileState, layout: &Layout) -> u64 {
        if state.small.is_some() { self.cipher_len } else { layout.header() as u64 }
    }
}

impl Committer<'_> {
    /// Commits `state` of `open`. `path` returns the stored path, `None` if the file has no name
    /// any more.
    pub fn commit(
        &self,
        state: &mut FileState,
        open: &OpenFile,
        path: &dyn Fn() -> Inner<Option<Vec<u8>>>,
        durability: Durability,
    ) -> Inner<()> {
        if state.phase == Phase::Void {
            // There is nothing to commit; but a successful fsync promises that the file can be
            // read.
            return if durability == Durability::Synced { state.check_known() } else { Ok(()) };
        }
        state.check_latched()?;
        // Becomes true where a failure must latch, whatever its errno.
        let mut latches = false;
        let result = self.commit_unlatched(state, open, path, durability, &mut latches);
        if result.is_err() {
            state.note_refusal(&*open.file());
            state.note_doubt(self.journal.is_doubtful(open.inode()));
        }
        if let Err(fault) = &result
            && (latches || !is_no_space(fault.errno()) && !is_no_descriptor(fault.errno()))
            && !(matches!(fault, Fault::Os(libc::EROFS)) && self.context.keys.signing.waits())
            && !is_overwritten(fault)
        {
            state.latched = Some(fault.errno());
        }
        result
    }

    fn commit_unlatched(
        &self,
        state: &mut FileState,
        open: &OpenFile,
        path: &dyn Fn() -> Inner<Option<Vec<u8>>>,
        durability: Durability,
        latches: &mut bool,
    ) -> Inner<()> {
        let file = &open.file();
        let Some(changes) = state.changes else {
            return match durability {
                Durability::Synced => self.sync_committed(state, open, latches),
                Durability::Ordered => Ok(()),
            };
        };
        if !self.context.keys.signing.may_write() {
            // The right to write was revoked while the file was open, so nobody would accept the
            // signature, or no single head can be read now.
            return Err(Fault::Os(libc::EROFS));
        }
        if state.version == u64::MAX {
            // A member has sealed it so: no file gets there by commits. The next number would be 0,
            // and every machine would take the new contents for older ones.
            return Err(Fault::Os(libc::EOVERFLOW));
        }
        if !changes.cut {
            state.renew_dirty(&**file, &self.context)?; // otherwise done before it was cut
        }
        let planned = self.plan(state, &**file, changes.rewritten)?;
        if self.replace(state, open, &planned, durability, latches)? {
            self.adopt(state, planned);
            return Ok(());
        }
        self.check_not_overwritten(state, file)?;
        let made = match durability == Durability::Ordered && state.is_just_made() {
            true => path().or_else(without_long_path)?,
            false => None,
        };
        let path = if state.phase == Phase::Durable { path()? } else { None };
        if state.phase == Phase::Durable && path.is_none() {
            // No record can name it, so it is written straight, but only once the removal of its
            // name is durable: otherwise a crash could restore the name.
            self.journal.flush_store()?;
            state.phase = Phase::Nameless;
        }
        match path {
            Some(path) => {
                self.journaled(state, open, path, &planned, latches)?;
                if self.journal.is_local() {
                    // A program is told that its data is safe once it is so in the store itself:
                    // if another machine's version takes the place of the file before the journal
                    // is replayed, a sync tool has this version to keep.
                    match durability {
                        Durability::Synced => self.flush(|| file.sync_data(), open, latches)?,
                        Durability::Ordered => state.unflushed.inode = true,
                    }
                }
            }
            None => {
                let mut touched = false;
                let written = self.straight(state, file, &planned, &mut touched);
                // The shortening cannot be reverted any more.
                *latches |= touched && changes.cut;
                written?;
                if let Some(made) = made {
                    self.journal.created(made, state.file_id, &planned.header, now());
                }
                // A record may rely on data written without one only after a flush.
                state.unflushed.inode = true;
                state.phase = state.phase.after_commit_in_place();
                if durability == Durability::Synced {
                    self.sync_all(state, open, latches)?;
                }
            }
        }
        self.adopt(state, planned);
        Ok(())
    }

    /// Computes and seals everything that the commit writes besides the segments.
    fn plan(&self, state: &FileState, file: &dyn File, rewritten: bool) -> Inner<Planned> {
        let layout = self.context.keys.layout;
        let tables = state.dirty.iter().map(|(k, d)| (*k, &d.table)).collect();
        let tree = plan(&state.tree(file, &self.context), state.chunks(&layout), &tables)?;
        let header = state.header(&self.context, tree.root);
        let data: &[u8] = state.small.as_ref().map_or(&[], |d| d);
        let author = state.by.filter(|_| !rewritten).map(|by| by.author);
        let random = self.context.random;
        Ok(Planned {
            header: self.context.keys.seal_header(&header, data, author, random),
            tree,
            cipher_len: layout.cipher_len(state.size),
            holes: state.holes(&layout),
        })
    }

    /// Makes a file durable that has no changes to commit.
    fn sync_committed(
        &self,
        state: &mut FileState,
        open: &OpenFile,
        latches: &mut bool,
    ) -> Inner<()> {
        if state.phase.is_unflushed() || state.unflushed.inode || state.unflushed.mtime {
            // No replay may set the time of an earlier record again.
            self.journal.checkpoint_for(Some(open.inode()))?;
            // Chunks left by a failed write do not have the segments that the header refers to.
            drop(state.take_dirty_from(0));
            state.pending.punch.clear();
            self.sync_all(state, open, latches)?;
        }
        Ok(())
    }

    /// Makes the committed state durable, so that all later changes go through the journal. A
    /// failure latches.
    pub fn make_durable(&self, state: &mut FileState, open: &OpenFile) -> Inner<()> {
        let flushed = self.sync_all(state, open, &mut false);
        if let Err(fault) = &flushed {
            state.latched = Some(fault.errno());
        }
        flushed
    }

    /// Flushes the inode: contents, times, mode, and on common stores its name.
    fn sync_all(&self, state: &mut FileState, open: &OpenFile, latches: &mut bool) -> Inner<()> {
        self.flush(|| open.file().sync_all(), open, latches)?;
        self.journal.created_is_durable(&state.file_id);
        state.phase = state.phase.after_flush();
        state.unflushed = Unflushed::default();
        Ok(())
    }

    /// Flushes once. A failed flush is not retried, whatever the error: the kernel reports lost
    /// writes once, and those of records may be among them.
    pub(super) fn flush(
        &self,
        flush: impl FnOnce() -> std::io::Result<()>,
        open: &OpenFile,
        latches: &mut bool,
    ) -> Inner<()> {
        // The error may have been reported to a checkpoint before, which can run between any two
        // steps of a commit, or to the background flush.
        let flushed = self.journal.flush_all(open.inode(), &open.file(), flush);
        *latches |= flushed.is_err();
        flushed
    }

    /// Writes everything in place, header last, without a promise for crashes.
    pub(super) fn straight(
        &self,
        state: &mut FileState,
        file: &Arc<dyn File>,
        planned: &Planned,
        touched: &mut bool,
    ) -> Inner<()> {
        let layout = self.context.keys.layout;
        let header = &planned.header;
        let (guarded_end, committed_len) =
            state.committed.as_ref().map_or((0, 0), |c| (c.end, c.len));
        // First the writes that need space: if a full store stops the commit there, the committed
        // state is intact.
        let mut guarded: Vec<(u64, &[u8])> = Vec::new();
        let segments = state.dirty.iter().flat_map(|(k, chunk)| {
            chunk
                .pending
                .iter()
                .map(move |(s, sealed)| (chunk.live[*s], layout.segment_offset(*k, *s), &**sealed))
        });
        let blocks =
            planned.tree.blocks.iter().map(|block| (block.live, block.offset, &*block.bytes));
        for (live, offset, bytes) in segments.chain(blocks) {
            if live || offset < guarded_end {
                guarded.push((offset, bytes))
            } else {
                file.write_at(bytes, offset)?
            }
        }
        for (offset, bytes) in &guarded {
            // The last segment of a growing file is longer than its allocated place.
            if offset + bytes.len() as u64 > committed_len {
                reserve(&**file, *offset, bytes.len() as u64)?;
            }
        }
        if state.root.chunks > 0 && header.len() as u64 > DATA_START {
            // Small data may extend over the place of a large file's first table, where nothing is
            // allocated if the table was a hole.
            reserve(&**file, 0, header.len() as u64)?;
        }
        *touched |= state.committed.is_some();
        Committed::begin_next(&mut state.committed);
        for (offset, bytes) in guarded {
            file.write_at(bytes, offset)?;
        }
        // Small data beyond the first block: first the writes that may find no space, so that the
        // existing header stays intact.
        let first = header.len().min(DATA_START as usize);
        if first < header.len() {
            file.write_at(&header[first..], first as u64)?;
        }
        file.write_at(&header[..first], 0)?;
        state.backing_len = state.backing_len.max(header.len() as u64);
        self.finish_in_place(state, file, planned)
    }

    /// Completes both kinds of commit: length, holes, time.
    fn finish_in_place(
        &self,
        state: &FileState,
        file: &Arc<dyn File>,
        planned: &Planned,
    ) -> Inner<()> {
        // Writing blocks may have lengthened the file; the length is set if it can differ.
        let ends = planned.tree.blocks.iter().map(|b| b.offset + b.bytes.len() as u64);
        let reached = ends.max().unwrap_or(0);
        let header_end = planned.header_end(state, &self.context.keys.layout);
        let cipher_len = planned.cipher_len;
        if state.backing_len.max(reached).max(header_end) != cipher_len {
            file.set_len(cipher_len)?;
        }
        for &(offset, len) in &planned.holes {
            let end = (offset + len).min(cipher_len);
            if offset < end {
                match file.allocate(Allocate::PunchHole, offset, end - offset) {
                    // A store without holes keeps the blocks: only space is lost.
                    Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                    other => other?,
                }
            }
        }
        state.mtime.restore(&**file)
    }

    /// Commits through a redo record, then in place.
    fn journaled(
        &self,
        state: &mut FileState,
        open: &OpenFile,
        path: Vec<u8>,
        planned: &Planned,
        latches: &mut bool,
    ) -> Inner<()> {
        let file = &open.file();
        let layout = self.context.keys.layout;
        let Some((base, guarded_end)) = state.committed.as_ref().map(|c| (c.header.hash(), c.end))
        else {
            return Err(Fault::Corrupt(Corruption::Other("is durable but has no header")));
        };
        if state.pending.frees {
            // Places that earlier records write may become free with this commit, and may then be
            // filled without a record.
            self.journal.checkpoint_for(Some(open.inode()))?;
            self.check_not_overwritten(state, file)?; // that took time
        }
        let blocks = &planned.tree.blocks;
        let fresh: usize = blocks.iter().filter(|b| !b.live).map(|b| b.bytes.len()).sum();
        // If fresh bytes have to be flushed anyway, fresh blocks are flushed with them; otherwise a
        // few are put into the record, for a single flush.
        let flush = state.unflushed.data || state.unflushed.inode || fresh > RIDE_MAX;
        let flush_fresh = flush && !state.is_relied_on(&self.context);
        let guarded = |b: &PlannedBlock| b.live || b.offset < guarded_end;
        if flush {
            for block in blocks.iter().filter(|b| flush_fresh && !guarded(b)) {
                file.write_at(&block.bytes, block.offset)?;
            }
            self.flush_before_record(state, open, latches)?;
        }
        let (born, mtime) = (birth(&file.stat_but_times()?), state.mtime.of(&**file)?);
        self.allocate(state, &**file, planned, flush_fresh)?;
        // Moved out while the record borrows from it; nothing returns before it is put back.
        let dirty = std::mem::take(&mut state.dirty);
        let patch = |offset, bytes| Patch { offset, bytes: Cow::Borrowed(bytes) };
        // The parts that are written in place afterwards, and those of them that the record must
        // contain.
        let mut places = Vec::new();
        for (k, chunk) in &dirty {
            let sealed = chunk.pending.iter();
            places.extend(sealed.map(|(s, bytes)| patch(layout.segment_offset(*k, *s), &**bytes)));
        }
        let mut patches = places.clone();
        for block in blocks.iter().filter(|b| guarded(b) || !flush_fresh) {
            places.push(patch(block.offset, &block.bytes));
            patches.extend(self.patches_of(block));
        }
        for all in [&mut places, &mut patches] {
            all.push(patch(0, &planned.header));
        }
        let record = JournalRecord {
            path,
            file_id: state.file_id,
            born,
            base,
            result: header_hash(&planned.header[..layout.header()]),
            cipher_len: planned.cipher_len,
            mtime: (mtime.secs, mtime.nanos),
            patches,
        };
        let appended = self.journal.append(&record, open.inode(), file);
        let applied = appended.and_then(|ticket| {
            *latches = true;
            self.apply(state, file, ticket, &base, &places, planned)
        });
        drop(record);
        state.dirty = dirty;
        state.unflushed.mtime &= applied.is_err();
        applied
    }

    /// Writes `places`, the parts of a durable record, to the file.
    fn apply(
        &self,
        state: &mut FileState,
        file: &Arc<dyn File>,
        ticket: Ticket,
        base: &[u8; 32],
        places: &[Patch<'_>],
        planned: &Planned,
    ) -> Inner<()> {
        if self.writers.check_again_before_applying()
            && self.is_overtaken(file, base).unwrap_or(true)
        {
            // Nothing was written in place, and nothing will be.
            self.journal.applied(ticket);
            return Err(Fault::Os(libc::ESTALE));
        }
        if self.beside.is_some() {
            match self.is_overtaken(file, base) {
                Ok(false) => {}
                Ok(true) => {
                    self.journal.applied(ticket);
                    return Err(Fault::Corrupt(Corruption::Overwritten));
                }
                Err(fault) => {
                    self.journal.not_applied(ticket);
                    return Err(fault);
                }
            }
        }
        Committed::begin_next(&mut state.committed);
        let mut write = || {
            write_runs(&**file, places, &mut state.backing_len)?;
            self.finish_in_place(state, file, planned)
        };
        let mut written = write();
        if written.as_ref().is_err_and(|fault| is_no_space(fault.errno()))
            && self.journal.give_space()
        {
            // A store may need a block even to write to an allocated one; the journal has some that
            // it does not need.
            written = write();
        }
        match &written {
            Ok(()) => self.journal.applied(ticket),
            Err(_) => self.journal.not_applied(ticket),
        }
        written
    }

    /// Returns the parts of a block that a record contains. The rest of a live block is durable in
    /// the store already, or in an earlier record: whatever a crash leaves of the block, a replay
    /// completes it.
    fn patches_of<'a>(&self, block: &'a PlannedBlock) -> Vec<Patch<'a>> {
        let part = |range: Range<usize>| Patch {
            offset: block.offset + range.start as u64,
            bytes: Cow::Borrowed(&block.bytes[range]),
        };
        match self.writers.record_whole_blocks() {
            true => vec![part(0..block.bytes.len())],
            false => block.changed.iter().cloned().map(part).collect(),
        }
    }

    /// Flushes what a record relies on: it is useless if the file that it amends, or its name, can
    /// be lost.
    fn flush_before_record(
        &self,
        state: &mut FileState,
        open: &OpenFile,
        latches: &mut bool,
    ) -> Inner<()> {
        if state.unflushed.inode {
            self.sync_all(state, open, latches)?
        } else {
            self.flush(|| open.file().sync_data(), open, latches)?
        }
        state.unflushed.data = false;
        Ok(())
    }

    /// Returns whether the store has another header than the one this commit is based on.
    fn is_overtaken(&self, file: &Arc<dyn File>, base: &[u8; 32]) -> Inner<bool> {
        let mut bytes = vec![0; self.context.keys.layout.header()];
        let read = file.read_at(&mut bytes, 0)?;
        Ok(header_hash(&bytes[..read]) != *base)
    }

    /// Fails with [`Corruption::Overwritten`] if another program has overwritten a file of a synced
    /// vault.
    fn check_not_overwritten(&self, state: &FileState, file: &Arc<dyn File>) -> Inner<()> {
        match state.committed.as_ref().filter(|it| !it.is_being_replaced) {
            Some(committed)
                if self.beside.is_some()
                    && self.is_overtaken(file, &committed.header.hash())? =>
            {
                Err(Fault::Corrupt(Corruption::Overwritten))
            }
            _ => Ok(()),
        }
    }

    /// Allocates the blocks for fresh places that the record writes: applying it must not need new
    /// space.
    fn allocate(
        &self,
        state: &FileState,
        file: &dyn File,
        planned: &Planned,
        flush_fresh: bool,
    ) -> Inner<()> {
        let committed_len = state.committed.as_ref().map_or(0, |c| c.len);
        let mut fresh: Vec<(u64, u64)> = vec![(0, planned.header.len() as u64)];
        for (k, chunk) in &state.dirty {
            for (s, sealed) in &chunk.pending {
                let (from, len) =
                    (self.context.keys.layout.segment_offset(*k, *s), sealed.len() as u64);
                // The last segment of a growing file is live, and yet longer than its allocated
                // place.
                if !chunk.live[*s] || from + len > committed_len {
                    fresh.push((from, len));
                }
            }
        }
        if !flush_fresh {
            let blocks = planned.tree.blocks.iter().filter(|b| !b.live);
            fresh.extend(blocks.map(|b| (b.offset, b.bytes.len() as u64)));
        }
        fresh.sort_unstable();
        // Places separated by a small gap are allocated with one call.
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (from, len) in fresh {
            match runs.last_mut() {
                Some((_, end)) if from <= *end + DATA_START => *end = (*end).max(from + len),
                _ => runs.push((from, from + len)),
            }
        }
        // The blocks of the header are allocated, unless small data is longer than before, or is at
        // the place of a large file's table that may be a hole.
        let is_there = |end: u64| {
            end <= DATA_START
                || state.root.chunks == 0 && end <= committed_len.next_multiple_of(DATA_START)
        };
        for (from, end) in runs.into_iter().filter(|(from, end)| *from > 0 || !is_there(*end)) {
            reserve(file, from, end - from)?;
        }
        Ok(())
    }

    /// Makes the committed state the base of further changes.
    fn adopt(&self, state: &mut FileState, planned: Planned) {
        let root = planned.tree.root;
        if root.chunks < state.root.chunks {
            state.serial = (self.next_serial)();
        }
        state.root = root;
        state.version += 1;
        if self.context.keys.signed() {
            let own = self.context.keys.signing.own();
            let author = state.by.filter(|_| !state.is_rewritten()).map_or(own, |by| by.author);
            state.by = Some(Authorship { author, signer: own });
        }
        state.committed = Some(Committed {
            header: HeaderBytes::new(&planned.header[..self.context.keys.layout.header()]),
            end: planned.header_end(state, &self.context.keys.layout),
            len: planned.cipher_len,
            size: state.size,
            is_being_replaced: false,
        });
        for (level, j, block) in planned.tree.index {
            self.context.cache.put_block(state.serial, level, j, block);
        }
        for (k, chunk) in std::mem::take(&mut state.dirty) {
            if chunk.table.is_hole() || k >= root.chunks {
                self.context.cache.drop_chunk(state.serial, k);
            } else {
                self.context.cache.put_chunk(
                    state.serial,
                    k,
                    Arc::new(Chunk { table: chunk.table, key: chunk.key }),
                );
            }
        }
        debug_assert!(root.chunks != 0 || root.hash == HOLE);
        state.changes = None;
        state.pending = Pending::default();
        state.tail = Tail::Empty;
        state.backing_len = planned.cipher_len;
    }
}

/// Returns whether a commit failed because another program has overwritten the file.
pub(crate) fn is_overwritten(fault: &Fault) -> bool {
    matches!(fault, Fault::Corrupt(Corruption::Overwritten))
}

/// Writes patches in their order, adjacent ones with one call. Raises `len` to the end of what was
/// written.
fn write_runs(file: &dyn File, patches: &[Patch<'_>], len: &mut u64) -> Inner<()> {
    let mut rest = patches;
    while let Some(first) = rest.first() {
        let mut end = first.offset;
        let run = rest
            .iter()
            .take(RUN_MAX)
            .take_while(|p| (p.offset == end, end += p.bytes.len() as u64).0)
            .count();
        let slices: SmallVec<[&[u8]; 4]> = rest[..run].iter().map(|p| &*p.bytes).collect();
        let written: usize = slices.iter().map(|s| s.len()).sum();
        file.write_vectored_at(&slices, first.offset)?;
        *len = (*len).max(first.offset + written as u64);
        rest = &rest[run..];
    }
    Ok(())
}

/// Allocates the blocks of a place, if the store supports that.
fn reserve(file: &dyn File, offset: u64, len: u64) -> Inner<()> {
    match file.allocate(Allocate::KeepSize, offset, len) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => Ok(()),
        other => Ok(other?),
    }
}

/// Makes `None` of the failure of a path that is too long for a record: such a file is not noted as
/// created. Returns every other failure.
fn without_long_path(fault: Fault) -> Inner<Option<Vec<u8>>> {
    if fault.errno() == libc::ENAMETOOLONG { Ok(None) } else { Err(fault) }
}
