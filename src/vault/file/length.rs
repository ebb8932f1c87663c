//! Lengths and holes of an open file: extending, shortening, discarding, punching holes.
//!
//! Rules that hold here
//! * Only a commit frees places to which the committed header refers. This module notes that the
//!   next one will ([`Pending::frees`]). A commit that does so by a record begins with a checkpoint.
//! * A shortening can be undone as long as the store has accepted none of it.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use super::phase::{Pending, Phase};
use super::{Context, DirtyChunk, FileState, Unshortened, resize_zeroizing};
use crate::crypto::Plain;
use crate::format::layout::{DATA_START, Layout, SEGMENT, SIZE_MAX, SMALL_MAX};
use crate::format::table::{HOLE, Segment};
use crate::store::File;
use crate::vault::error::{Fault, Inner};
use crate::vault::file::hash_tree::Root;

impl FileState {
    /// Extends the file with a hole.
    pub fn extend(&mut self, file: &dyn File, context: &Context, size: u64) -> Inner<()> {
        debug_assert!(size >= self.size);
        if size > SIZE_MAX {
            return Err(Fault::Os(libc::EFBIG));
        }
        match &mut self.small {
            Some(small) if size <= SMALL_MAX => resize_zeroizing(small, size as usize),
            Some(_) => self.grow_out_of_small(file, context)?,
            None => {}
        }
        self.size = size;
        self.touch();
        Ok(())
    }

    /// Shortens the file in memory. The next commit frees the bytes beyond the end; if the store
    /// accepts none of that commit, [`FileState::restore`] reverts this.
    pub fn shorten(&mut self, file: &dyn File, context: &Context, size: u64) -> Inner<Unshortened> {
        debug_assert!(size < self.size);
        // Done now, because the commit must not do it: it would write to places whose contents may
        // have to be restored.
        self.renew_dirty(file, context)?;
        let mut former = Unshortened {
            size: self.size,
            small: self.small.clone(),
            dirty: BTreeMap::new(),
            tail: None,
            pending: Pending { punch: Vec::new(), ..self.pending.clone() },
            changes: self.changes,
            mtime: self.mtime,
        };
        if let Some(small) = &mut self.small {
            small.truncate(size as usize);
        } else if size <= SMALL_MAX {
            let mut data = Plain::new(vec![0; size as usize]);
            self.read(file, context, 0, &mut data)?;
            self.small = Some(data);
            former.dirty = self.take_dirty_from(0);
        } else {
            let (last, s) = context.keys.layout.locate(size - 1);
            let len = ((size - 1) % SEGMENT as u64 + 1) as usize;
            self.make_dirty(file, context, last)?;
            let chunk = &self.dirty[&last];
            let (table, live, pending, epoch) =
                (chunk.table.clone(), chunk.live.clone(), chunk.pending.clone(), chunk.epoch);
            let sealed_under = context
                .keys
                .numbered(table.epoch)
                .find(|e| e.commitment == epoch)
                .expect("known epochs stay known");
            let mut before = DirtyChunk {
                key: self.key_of(context, sealed_under, &table.salt),
                table,
                epoch,
                live,
                pending,
            };
            let mut tail = None;
            if before.table.segments[s].len as usize > len {
                let mut plain = Zeroizing::new([0; SEGMENT]);
                let waits = before.pending.get(&s).map(|b| &**b);
                self.open_one(
                    file,
                    context,
                    last,
                    s,
                    &before.table,
                    &before.key,
                    waits,
                    &mut plain,
                )?;
                tail = Some((last, s, plain));
            }
            (former.pending.bytes, former.pending.riding) =
                (self.pending.bytes, self.pending.riding);
            let mut chunk = self.dirty.remove(&last).expect("made dirty above");
            if let Some((_, _, plain)) = &tail {
                let kept = Plain::new(plain[..len].to_vec());
                self.seal_into(file, context, last, &mut chunk, s, kept, true);
            }
            for t in s + 1..chunk.table.segments.len() {
                self.clear_segment(&mut chunk, t);
            }
            before.table.seals = chunk.table.seals;
            self.dirty.insert(last, chunk);
            former.dirty = self.take_dirty_from(last + 1);
            former.dirty.insert(last, before);
            former.tail = tail;
        }
        self.size = size;
        self.pending.frees = true;
        self.touch();
        self.mark().cut = true;
        Ok(former)
    }

    /// Reverts a [`FileState::shorten`] of which the store has accepted nothing.
    pub fn restore(&mut self, file: &dyn File, context: &Context, former: Unshortened) {
        self.size = former.size;
        self.small = former.small;
        self.dirty.extend(former.dirty);
        let punch = std::mem::take(&mut self.pending.punch);
        self.pending = Pending { punch, ..former.pending };
        (self.changes, self.mtime) = (former.changes, former.mtime);
        if let Some((k, s, plain)) = former.tail
            && self.phase != Phase::Durable
            && let Some(mut chunk) = self.dirty.remove(&k)
        {
            // In a file that is written in place, the shorter segment may already be stored.
            let len = chunk.table.segments[s].len as usize;
            self.seal_into(
                file,
                context,
                k,
                &mut chunk,
                s,
                Plain::new(plain[..len].to_vec()),
                true,
            );
            self.dirty.insert(k, chunk);
            self.mark();
        }
    }

    /// Discards the contents, committed ones too, and gives the blocks a new cache key. The caller
    /// commits at once.
    pub fn discard(&mut self, serial: u64) {
        self.take_dirty_from(0);
        self.serial = serial;
        self.phase = self.phase.after_discard();
        self.committed = None;
        self.root = Root { hash: HOLE, chunks: 0 };
        self.small = Some(Plain::new(Vec::new()));
        self.size = 0;
        self.pending.riding = 0;
        self.pending.punch.clear();
        self.touch();
    }

    pub(super) fn clear_segment(&mut self, chunk: &mut DirtyChunk, s: usize) {
        // Records of the small form may have written to the place of the first chunk.
        self.pending.frees |=
            chunk.live[s] || self.committed.as_ref().is_some_and(|c| c.end > DATA_START);
        chunk.table.set(s, Segment::HOLE, None);
        if let Some(old) = chunk.pending.remove(&s) {
            self.pending.bytes -= old.len();
        }
    }

    pub fn take_dirty_from(&mut self, k: u64) -> BTreeMap<u64, DirtyChunk> {
        let taken = self.dirty.split_off(&k);
        let pending: usize =
            taken.values().flat_map(|chunk| chunk.pending.values()).map(|b| b.len()).sum();
        self.pending.bytes -= pending.min(self.pending.bytes);
        taken
    }

    /// Makes `offset..end` read as zeros; `end` is at most the size. Whole segments become holes of
    /// the store with the next commit. Stops when a commit is due. Returns the offset up to which
    /// the range was punched.
    pub fn punch(
        &mut self,
        file: &dyn File,
        context: &Context,
        offset: u64,
        end: u64,
    ) -> Inner<u64> {
        if offset >= end {
            return Ok(end);
        }
        if let Some(small) = &mut self.small {
            small[offset as usize..end as usize].fill(0);
            self.touch();
            return Ok(end);
        }
        const S: u64 = SEGMENT as u64;
        // The last segment has no data beyond the end of the file, so a range that reaches the end
        // covers it whole.
        let (whole_from, whole_to) = (
            offset.next_multiple_of(S),
            if end == self.size { end.next_multiple_of(S) } else { end / S * S },
        );
        if whole_from >= whole_to {
            self.write(file, context, offset, &vec![0; (end - offset) as usize])?;
            return Ok(end);
        }
        if offset < whole_from {
            self.write(file, context, offset, &vec![0; (whole_from - offset) as usize])?;
        }
        let chunk_size = context.keys.layout.chunk();
        let mut at = whole_from;
        while at < whole_to {
            if self.is_full() {
                self.touch();
                return Ok(at);
            }
            let k = at / chunk_size;
            if !self.dirty.contains_key(&k) && self.committed_chunk(file, context, k)?.is_none() {
                at = self.after_hole(file, context, k)?.saturating_mul(chunk_size);
                continue;
            }
            let until = ((k + 1) * chunk_size).min(whole_to);
            self.make_dirty(file, context, k)?;
            let mut chunk = self.dirty.remove(&k).expect("made dirty above");
            let segments =
                ((at % chunk_size) / S) as usize..((until - k * chunk_size).div_ceil(S)) as usize;
            self.pending.punch.push((k, segments.clone()));
            for s in segments {
                self.clear_segment(&mut chunk, s);
            }
            self.dirty.insert(k, chunk);
            at = until;
        }
        if whole_to < end {
            self.write(file, context, whole_to, &vec![0; (end - whole_to) as usize])?;
        }
        self.touch();
        Ok(end)
    }

    /// Returns the number of bytes punched since the last commit. The store has their blocks until
    /// the next one.
    pub fn punched(&self) -> u64 {
        self.pending.punch.iter().map(|(_, segments)| (segments.len() * SEGMENT) as u64).sum()
    }

    /// Returns the ciphertext ranges that the next commit turns into holes: punched and not written
    /// since, possibly before an earlier commit that found no space.
    pub fn holes(&self, layout: &Layout) -> Vec<(u64, u64)> {
        let is_hole = |k: u64, s: usize| {
            self.dirty.get(&k).is_some_and(|chunk| chunk.table.segments[s].len == 0)
        };
        let mut holes: Vec<(u64, u64)> = Vec::new();
        for (k, segments) in &self.pending.punch {
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
}
