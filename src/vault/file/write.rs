//! Writing to an open file: changed chunks, the segments sealed for them, and where these are kept
//! until the commit.
//!
//! Rules that hold here
//! * Places to which the last committed header refers are not overwritten here: such segments are
//!   kept in memory, sealed, for the commit. This also holds for a file that is not durable yet: a
//!   full store is not a crash.
//! * Fresh places (holes, bytes beyond the end, files that were never committed) are written at
//!   once, unless the record of the next commit can or must contain their bytes: see
//!   [`FileState::place`].
//! * A table entry changes only after its bytes are in place or in memory, so no failed write makes
//!   data unreadable. Bytes that the store refuses are kept for the commit, and the writer gets the
//!   error.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use super::{ChunkSummary, Context, DirtyChunk, FileState, RIDE_MAX, resize_zeroizing};
use crate::crypto::Plain;
use crate::format::layout::{SEGMENT, SIZE_MAX, SMALL_MAX};
use crate::format::table::{SEALS_MAX, Table};
use crate::store::File;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::file::block_cache::Chunk;
use crate::vault::file::seal::{Ready, Sealed, seal};

impl FileState {
    pub(super) fn empty_chunk(&self, context: &Context, live: Box<[bool]>) -> DirtyChunk {
        let epoch = context.keys.current();
        let table = Table::empty(&context.keys.layout, Self::new_salt(context), epoch.number);
        let key = self.key_of(context, epoch, &table.salt);
        DirtyChunk { table, key, epoch: epoch.commitment, live, pending: BTreeMap::new() }
    }

    /// Returns which segments of chunk `k` the last committed header refers to.
    fn live_segments(&self, file: &dyn File, context: &Context, k: u64) -> Inner<Box<[bool]>> {
        match self.dirty.get(&k) {
            Some(dirty) => Ok(dirty.live.clone()),
            None => Ok(live_segments(context, self.committed_chunk(file, context, k)?.as_deref())),
        }
    }

    /// Makes chunk `k` dirty, ready for new segments under its present salt. If that salt is used
    /// up or belongs to another epoch, the whole chunk is sealed again under a new one.
    pub(super) fn make_dirty(&mut self, file: &dyn File, context: &Context, k: u64) -> Inner<()> {
        let current = context.keys.current();
        let (segments, live) = match self.dirty.get(&k) {
            Some(dirty) if dirty.table.seals < SEALS_MAX && dirty.is_under(current) => {
                return Ok(());
            }
            Some(dirty) => (dirty.table.segments.clone(), dirty.live.clone()),
            None => {
                let committed = self.committed_chunk(file, context, k)?;
                let live = live_segments(context, committed.as_deref());
                let Some(chunk) = committed else {
                    let chunk = self.empty_chunk(context, live);
                    self.dirty.insert(k, chunk);
                    return Ok(());
                };
                let table = &chunk.table;
                if table.epoch == current.number
                    && table.seals < SEALS_MAX
                    && context.keys.numbered(table.epoch).count() == 1
                {
                    let (table, epoch) = (table.clone(), current.commitment);
                    let key = self.key_of(context, current, &table.salt);
                    let pending = BTreeMap::new();
                    self.dirty.insert(k, DirtyChunk { table, key, epoch, live, pending });
                    return Ok(());
                }
                (table.segments.clone(), live)
            }
        };
        let mut plain = Plain::new(vec![0; context.keys.layout.chunk() as usize]);
        self.read_chunk(file, context, k, 0, &mut plain)?;
        let mut chunk = self.empty_chunk(context, live);
        for (s, segment) in segments.iter().enumerate().filter(|(_, segment)| segment.len > 0) {
            let at = s * SEGMENT;
            // Refused bytes are in memory now; the commit retries.
            let part = Plain::new(plain[at..at + segment.len as usize].to_vec());
            let _ = self.seal_into(file, context, k, &mut chunk, s, part, false);
        }
        self.replace_dirty(k, chunk);
        Ok(())
    }

    /// Seals dirty chunks of an ended epoch again: nothing new is written under it.
    pub fn renew_dirty(&mut self, file: &dyn File, context: &Context) -> Inner<()> {
        let current = context.keys.current();
        let ended = |(k, chunk): (&u64, &DirtyChunk)| (!chunk.is_under(current)).then_some(*k);
        for k in self.dirty.iter().filter_map(ended).collect::<Vec<u64>>() {
            self.make_dirty(file, context, k)?;
        }
        Ok(())
    }

    /// Returns what chunk `k` holds, without reading its segments.
    pub fn summary(&self, file: &dyn File, context: &Context, k: u64) -> Inner<ChunkSummary> {
        let current = context.keys.current();
        let of = |table: &Table, older: bool| {
            let bytes = table.segments.iter().map(|s| u64::from(s.len)).sum();
            ChunkSummary { next: k + 1, bytes, older }
        };
        if let Some(dirty) = self.dirty.get(&k) {
            return Ok(of(&dirty.table, !dirty.is_under(current)));
        }
        Ok(match self.committed_chunk(file, context, k)? {
            Some(chunk) => {
                let epoch = chunk.table.epoch;
                of(
                    &chunk.table,
                    epoch != current.number || context.keys.numbered(epoch).count() != 1,
                )
            }
            None => {
                ChunkSummary { next: self.after_hole(file, context, k)?, bytes: 0, older: false }
            }
        })
    }

    /// Seals chunk `k` again if it belongs to another epoch than the current one. Returns what it
    /// held before.
    pub fn renew(&mut self, file: &dyn File, context: &Context, k: u64) -> Inner<ChunkSummary> {
        let look = self.summary(file, context, k)?;
        if look.older {
            self.make_dirty(file, context, k)?;
        }
        Ok(look)
    }

    pub(super) fn replace_dirty(&mut self, k: u64, chunk: DirtyChunk) {
        if let Some(old) = self.dirty.insert(k, chunk) {
            self.pending.bytes -=
                old.pending.values().map(|b| b.len()).sum::<usize>().min(self.pending.bytes);
        }
    }

    /// Seals `plain` (whole segments, the last one may be short) from segment `first` on, and
    /// stores the segments; see [`FileState::place`].
    #[allow(clippy::too_many_arguments)]
    pub(super) fn seal_into(
        &mut self,
        file: &dyn File,
        context: &Context,
        k: u64,
        chunk: &mut DirtyChunk,
        first: usize,
        plain: Plain,
        hold: bool,
    ) -> Option<Fault> {
        let sealed = seal(context, &self.file_id, k, chunk.table.epoch, &chunk.key, first, plain);
        self.place(file, context, k, chunk, first, sealed, hold)
    }

    /// Stores sealed segments from number `first` on. A segment for a fresh place is written at
    /// once. It becomes pending in the chunk instead, like one for a live place,
    /// * if it can ride in the record of the next commit: the file is durable, and at most
    ///   [`RIDE_MAX`] fresh bytes wait;
    /// * if it must ride there: an earlier record may rely on the place;
    /// * with `hold`;
    /// * if the store refuses it: the place may contain part of the new bytes.
    ///
    /// Returns the refusal, if any.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn place(
        &mut self,
        file: &dyn File,
        context: &Context,
        k: u64,
        chunk: &mut DirtyChunk,
        first: usize,
        sealed: Sealed,
        hold: bool,
    ) -> Option<Fault> {
        let layout = &context.keys.layout;
        let Sealed { bytes, entries } = sealed;
        let count = entries.len();
        chunk.table.seals = chunk.table.seals.saturating_add(count as u32);
        let guarded_end = self.committed.as_ref().map_or(0, |c| c.end);
        let relied_on = self.is_relied_on(context);
        let rides = !self.phase.is_unflushed()
            && (relied_on || self.pending.riding + bytes.len() <= RIDE_MAX);
        let live = std::mem::take(&mut chunk.live);
        let waits = |s: usize| live[s] || layout.segment_offset(k, s) < guarded_end;
        let mut refused = None;
        let mut s = first;
        while s < first + count {
            let at = (s - first) * SEGMENT;
            if waits(s) || rides || hold || refused.is_some() {
                let sealed = bytes.slice(at..bytes.len().min(at + SEGMENT));
                if !waits(s) {
                    self.pending.riding += sealed.len();
                }
                self.pending.bytes += sealed.len();
                if let Some(old) = chunk.pending.insert(s, sealed) {
                    self.pending.bytes -= old.len();
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
            self.unflushed.data = true;
            if let Err(e) = file.write_at(part, offset) {
                // The store may have taken a part of the bytes, so the length is read back.
                self.note_refusal(file);
                refused = Some(Fault::Io(e));
                continue;
            }
            self.backing_len = self.backing_len.max(offset + part.len() as u64);
            for t in s..run {
                if let Some(old) = chunk.pending.remove(&t) {
                    self.pending.bytes -= old.len();
                }
                let (entry, hash) = entries[t - first];
                chunk.table.set(t, entry, hash);
            }
            s = run;
        }
        chunk.live = live;
        refused
    }

    /// Leaves the small form: its data becomes segment 0 of chunk 0.
    pub(super) fn grow_out_of_small(&mut self, file: &dyn File, context: &Context) -> Inner<()> {
        if self.small.is_none() {
            return Ok(());
        }
        let live = self.live_segments(file, context, 0)?;
        let mut chunk = self.empty_chunk(context, live);
        let small = self.small.take().expect("tested above");
        if !small.is_empty() {
            // Refused bytes are not lost; the commit retries.
            let _ = self.seal_into(file, context, 0, &mut chunk, 0, small, false);
        }
        self.replace_dirty(0, chunk);
        Ok(())
    }

    /// Writes `data` at `offset`.
    pub fn write(
        &mut self,
        file: &dyn File,
        context: &Context,
        offset: u64,
        data: &[u8],
    ) -> Inner<()> {
        self.write_ready(file, context, offset, data, Ready::default())
    }

    /// Writes `data` at `offset`; the chunks in `ready` are already sealed.
    pub fn write_ready(
        &mut self,
        file: &dyn File,
        context: &Context,
        offset: u64,
        data: &[u8],
        mut ready: Ready,
    ) -> Inner<()> {
        self.check_latched()?;
        let end = offset
            .checked_add(data.len() as u64)
            .filter(|end| *end <= SIZE_MAX)
            .ok_or(Fault::Os(libc::EFBIG))?;
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
        if offset == 0 && small.as_ref().is_some_and(|small| small.is_empty()) {
            self.small = None; // the first chunk is made by this write
        }
        self.grow_out_of_small(file, context)?;
        let chunk_size = context.keys.layout.chunk();
        let mut done = 0;
        let mut result = Ok(());
        while done < data.len() {
            let at = offset + done as u64;
            let within = (at % chunk_size) as usize;
            let part = (chunk_size as usize - within).min(data.len() - done);
            match self.write_chunk(
                file,
                context,
                at / chunk_size,
                within,
                &data[done..done + part],
                &mut ready,
            ) {
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
            // The failed write leaves the file in its small form: no header of the large form can
            // contain such a small size.
            self.take_dirty_from(0);
            (self.small, self.size) = (small, size);
            return result;
        }
        // Bytes that were written before a failure are changes of the file, although the caller
        // gets the error.
        if done > 0 {
            self.touch();
        }
        result
    }

    /// Writes within one chunk. `Ok` with a fault: the bytes are in memory, but the store has
    /// refused them.
    pub(super) fn write_chunk(
        &mut self,
        file: &dyn File,
        context: &Context,
        k: u64,
        within: usize,
        data: &[u8],
        ready: &mut Ready,
    ) -> Inner<Option<Fault>> {
        let chunk_start = k * context.keys.layout.chunk();
        let end = within + data.len();
        let covers_all = within == 0
            && chunk_start + end as u64 >= self.size.min(chunk_start + context.keys.layout.chunk());
        if covers_all {
            // Every byte of the chunk is new: a new salt, and no read of the old contents.
            let live = match self.live_segments(file, context, k) {
                // The old table is damaged: the header may refer to any place.
                Err(Fault::Format(_) | Fault::Corrupt(Corruption::Other(_))) => {
                    vec![true; context.keys.layout.segments()].into()
                }
                live => live?,
            };
            let (mut chunk, sealed) = match ready.take(context, &self.file_id, k, data.len()) {
                Some((chunk, sealed)) => (DirtyChunk { live, ..chunk }, sealed),
                None => {
                    let chunk = self.empty_chunk(context, live);
                    let plain = Plain::new(data.to_vec());
                    let sealed =
                        seal(context, &self.file_id, k, chunk.table.epoch, &chunk.key, 0, plain);
                    (chunk, sealed)
                }
            };
            let refused = self.place(file, context, k, &mut chunk, 0, sealed, false);
            self.replace_dirty(k, chunk);
            return Ok(refused);
        }
        self.make_dirty(file, context, k)?;
        let (first, last) = (within / SEGMENT, (end - 1) / SEGMENT);
        let dirty = &self.dirty[&k];
        let old_tail = dirty.table.segments[last].len as usize;
        let tail = (end - last * SEGMENT).max(old_tail);
        let mut plain = Plain::new(vec![0; (last - first) * SEGMENT + tail]);
        let starts_inside = !within.is_multiple_of(SEGMENT);
        let ends_inside = end - last * SEGMENT < old_tail;
        for (s, wanted) in
            [(first, starts_inside), (last, ends_inside && (first != last || !starts_inside))]
        {
            if wanted {
                let mut old = Zeroizing::new([0; SEGMENT]);
                self.open_one(
                    file,
                    context,
                    k,
                    s,
                    &dirty.table,
                    &dirty.key,
                    dirty.pending.get(&s).map(|b| &**b),
                    &mut old,
                )?;
                let at = (s - first) * SEGMENT;
                let len = (plain.len() - at).min(SEGMENT);
                plain[at..at + len].copy_from_slice(&old[..len]);
            }
        }
        let at = within - first * SEGMENT;
        plain[at..at + data.len()].copy_from_slice(data);
        let mut chunk = self.dirty.remove(&k).expect("made dirty above");
        let refused = self.seal_into(file, context, k, &mut chunk, first, plain, false);
        self.dirty.insert(k, chunk);
        Ok(refused)
    }
}

/// Returns which segments of a committed chunk are in use; none if it is a hole.
fn live_segments(context: &Context, committed: Option<&Chunk>) -> Box<[bool]> {
    match committed {
        Some(chunk) => chunk.table.segments.iter().map(|s| s.len != 0).collect(),
        None => vec![false; context.keys.layout.segments()].into(),
    }
}
