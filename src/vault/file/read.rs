//! Reading an open file: chunks through the tree that authenticates them, segments by their tags,
//! and uncommitted data first.
//!
//! Rules that hold here
//! * In a signed share a segment's ciphertext is compared with its hash before anything else. So
//!   data that is sealed again around a partial write was covered by the file's signature.
//! * A pending segment is read from memory: its place does not have its bytes yet, or only a part
//!   of them.

use std::collections::BTreeMap;

use bytes::Bytes;
use zeroize::Zeroizing;

use super::{Context, FileState};
use crate::crypto::SegmentKey;
use crate::format::layout::SEGMENT;
use crate::format::table::{Table, segment_aad, segment_hash};
use crate::store::{File, Seek};
use crate::vault::error::{Corruption, Fault, Inner};

impl FileState {
    /// Checks that the table of chunk `k` can be read; its segments are not read.
    pub fn is_chunk_readable(&self, file: &dyn File, context: &Context, k: u64) -> Inner<()> {
        if self.small.is_some() || self.dirty.contains_key(&k) {
            Ok(())
        } else {
            self.committed_chunk(file, context, k).map(drop)
        }
    }

    /// Returns the first chunk after `k`, a chunk of holes, that may hold data.
    pub(super) fn after_hole(&self, file: &dyn File, context: &Context, k: u64) -> Inner<u64> {
        let committed = self.tree(file, context).after_hole(k)?;
        let dirty = self.dirty.range(k + 1..).next().map_or(u64::MAX, |(k, _)| *k);
        Ok(committed.min(dirty).max(k + 1))
    }

    /// Reads plain bytes; see [`super::OpenFile::read`].
    pub fn read(
        &self,
        file: &dyn File,
        context: &Context,
        offset: u64,
        buf: &mut [u8],
    ) -> Inner<usize> {
        self.check_known()?;
        if offset >= self.size {
            return Ok(0);
        }
        let len = buf.len().min((self.size - offset).min(usize::MAX as u64) as usize);
        let buf = &mut buf[..len];
        if let Some(small) = &self.small {
            buf.copy_from_slice(&small[offset as usize..offset as usize + len]);
            return Ok(len);
        }
        let chunk_size = context.keys.layout.chunk();
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let k = at / chunk_size;
            let within = (at % chunk_size) as usize;
            let part = (chunk_size as usize - within).min(len - done);
            self.read_chunk(file, context, k, within, &mut buf[done..done + part])?;
            done += part;
        }
        Ok(len)
    }

    pub(super) fn read_chunk(
        &self,
        file: &dyn File,
        context: &Context,
        k: u64,
        within: usize,
        buf: &mut [u8],
    ) -> Inner<()> {
        if let Some(dirty) = self.dirty.get(&k) {
            return self.open_segments(
                file,
                context,
                k,
                &dirty.table,
                &dirty.key,
                Some(&dirty.pending),
                within,
                buf,
            );
        }
        match self.committed_chunk(file, context, k)? {
            Some(chunk) => {
                self.open_segments(file, context, k, &chunk.table, &chunk.key, None, within, buf)
            }
            None => {
                buf.fill(0);
                Ok(())
            }
        }
    }

    /// Opens the segments of a chunk that cover `buf.len()` bytes from byte `within`; each run of
    /// full segments in the store takes one read.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn open_segments(
        &self,
        file: &dyn File,
        context: &Context,
        k: u64,
        table: &Table,
        key: &SegmentKey,
        pending: Option<&BTreeMap<usize, Bytes>>,
        within: usize,
        buf: &mut [u8],
    ) -> Inner<()> {
        let layout = &context.keys.layout;
        let end = within + buf.len();
        let mut s = within / SEGMENT;
        while s * SEGMENT < end {
            let whole = s * SEGMENT >= within && (s + 1) * SEGMENT <= end;
            let waits = pending.and_then(|p| p.get(&s)).map(|b| &**b);
            if !whole || waits.is_some() || table.segments[s].len as usize != SEGMENT {
                // Part of a segment, or one that is pending or not full: through a buffer of its
                // own.
                let mut plain = Zeroizing::new([0; SEGMENT]);
                self.open_one(file, context, k, s, table, key, waits, &mut plain)?;
                let (from, to) = (within.max(s * SEGMENT), end.min((s + 1) * SEGMENT));
                buf[from - within..to - within]
                    .copy_from_slice(&plain[from - s * SEGMENT..to - s * SEGMENT]);
                s += 1;
                continue;
            }
            let in_run = |t: usize| {
                (t + 1) * SEGMENT <= end
                    && table.segments[t].len as usize == SEGMENT
                    && pending.is_none_or(|p| !p.contains_key(&t))
            };
            let mut run = s + 1;
            while run < table.segments.len() && in_run(run) {
                run += 1;
            }
            let part = &mut buf[s * SEGMENT - within..run * SEGMENT - within];
            if file.read_at(part, layout.segment_offset(k, s))? != part.len() {
                return Err(Fault::Corrupt(Corruption::Other("is shorter than its header says")));
            }
            for (sealed, t) in part.chunks_exact_mut(SEGMENT).zip(s..) {
                self.open_in_place(context, k, t, table, key, sealed)?;
            }
            s = run;
        }
        Ok(())
    }

    pub(super) fn open_in_place(
        &self,
        context: &Context,
        k: u64,
        s: usize,
        table: &Table,
        key: &SegmentKey,
        sealed: &mut [u8],
    ) -> Inner<()> {
        let segment = &table.segments[s];
        if let Some(hash) = table.hashes.get(s)
            && segment_hash(sealed) != *hash
        {
            return Err(Fault::Corrupt(Corruption::Other(
                "has a segment that is not the one that was signed",
            )));
        }
        let aad = segment_aad(
            &context.keys.share,
            &self.file_id,
            k,
            s as u32,
            segment.len,
            table.epoch,
            context.keys.suite,
        );
        key.open(&segment.nonce, &aad, sealed, &segment.tag).map_err(|_| {
            Fault::Corrupt(Corruption::Other("has a segment that cannot be authenticated"))
        })
    }

    /// Opens one segment into `plain`, which the caller has zeroed: bytes beyond the sealed length
    /// are left as they are.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn open_one(
        &self,
        file: &dyn File,
        context: &Context,
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
                if file.read_at(&mut plain[..len], context.keys.layout.segment_offset(k, s))? != len
                {
                    return Err(Fault::Corrupt(Corruption::Other(
                        "is shorter than its header says",
                    )));
                }
            }
        }
        self.open_in_place(context, k, s, table, key, &mut plain[..len])
    }

    /// Returns the next data or hole at or after `offset`, by whole segments.
    pub fn seek(&self, file: &dyn File, context: &Context, offset: u64, what: Seek) -> Inner<u64> {
        self.check_known()?;
        if offset >= self.size {
            return Err(Fault::Os(libc::ENXIO));
        }
        let layout = &context.keys.layout;
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
                    committed = self.committed_chunk(file, context, k)?;
                    committed.as_ref().map(|c| &c.table)
                }
            };
            let Some(table) = table else {
                if what == Seek::Hole {
                    return Ok(at);
                }
                at = self.after_hole(file, context, k)?.saturating_mul(layout.chunk());
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
}
