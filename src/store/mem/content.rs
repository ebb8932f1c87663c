//! Bytes of a file in memory: blocks that may be absent (a hole) or reserved without bytes.
//!
//! Rules that hold here
//! * Blocks are shared between copies and copied on write, so a snapshot copies no bytes.
//! * Bytes of a block beyond the length are zero whenever the length is set ([`Content::cut`]
//!   clears them). In between, [`Content::write`] may put bytes beyond the length: after a power
//!   cut data can be there before the length is.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Unit of allocation, as on ext4.
pub(super) const BLOCK: u64 = 4096;

type Block = [u8; BLOCK as usize];

/// Sparse bytes with a length.
#[derive(Clone, Default)]
pub(super) struct Content {
    /// By block number. `None`: space is reserved, and the bytes are zero.
    blocks: BTreeMap<u64, Option<Arc<Block>>>,
    pub(super) len: u64,
}

/// Splits a range into blocks: block number, range within the block, range relative to `offset`.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let (block, within) = (at / BLOCK, at % BLOCK);
            let count = (BLOCK - within).min(end - at);
            let piece = (
                block,
                within as usize..(within + count) as usize,
                (at - offset) as usize..(at - offset + count) as usize,
            );
            at += count;
            piece
        })
    })
}

impl Content {
    /// Reads up to the length; returns the number of bytes read.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let len = (buf.len() as u64).min(self.len.saturating_sub(offset));
        for (block, within, part) in pieces(offset, len) {
            match self.blocks.get(&block) {
                Some(Some(bytes)) => buf[part].copy_from_slice(&bytes[within]),
                Some(None) | None => buf[part].fill(0),
            }
        }
        len as usize
    }

    /// Writes bytes. The length stays.
    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        for (block, within, part) in pieces(offset, bytes.len() as u64) {
            let block = self
                .blocks
                .entry(block)
                .or_default()
                .get_or_insert_with(|| Arc::new([0; BLOCK as usize]));
            Arc::make_mut(block)[within].copy_from_slice(&bytes[part]);
        }
    }

    /// Makes the range zeros, and holes of its whole blocks.
    pub(super) fn punch(&mut self, offset: u64, len: u64) {
        let (first, last) = (offset.div_ceil(BLOCK), (offset + len) / BLOCK);
        if first < last {
            let gone: Vec<u64> = self.blocks.range(first..last).map(|(&block, _)| block).collect();
            for block in gone {
                self.blocks.remove(&block);
            }
        }
        let edges = if first <= last {
            [(offset, first * BLOCK - offset), (last * BLOCK, offset + len - last * BLOCK)]
        } else {
            [(offset, len), (offset, 0)]
        };
        for (offset, len) in edges {
            for (block, within, _) in pieces(offset, len) {
                if let Some(Some(bytes)) = self.blocks.get_mut(&block) {
                    Arc::make_mut(bytes)[within].fill(0);
                }
            }
        }
    }

    /// Reserves the blocks of the range.
    pub(super) fn reserve(&mut self, offset: u64, len: u64) {
        for (block, _, _) in pieces(offset, len) {
            self.blocks.entry(block).or_default();
        }
    }

    /// Copies the block from `other`.
    pub(super) fn take_block(&mut self, block: u64, other: &Content) {
        match other.blocks.get(&block) {
            Some(bytes) => self.blocks.insert(block, bytes.clone()),
            None => self.blocks.remove(&block),
        };
    }

    /// Sets the length, and clears everything beyond it.
    pub(super) fn cut(&mut self, len: u64) {
        self.len = len;
        drop(self.blocks.split_off(&len.div_ceil(BLOCK)));
        let within = (len % BLOCK) as usize;
        if within != 0
            && let Some(Some(bytes)) = self.blocks.get_mut(&(len / BLOCK))
        {
            Arc::make_mut(bytes)[within..].fill(0);
        }
    }

    /// Drops bytes beyond the length, and keeps blocks that are only reserved.
    pub(super) fn clip(&mut self) {
        let mut beyond = self.blocks.split_off(&self.len.div_ceil(BLOCK));
        beyond.retain(|_, bytes| bytes.is_none());
        self.cut(self.len);
        self.blocks.append(&mut beyond);
    }

    /// Returns the number of blocks that are allocated.
    pub(super) fn allocated(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Returns whether the block at `offset` is allocated.
    pub(super) fn is_allocated(&self, offset: u64) -> bool {
        self.blocks.contains_key(&(offset / BLOCK))
    }

    /// Returns the offset of the first data at or after `offset`, or `None` if only a hole follows.
    pub(super) fn next_data(&self, offset: u64) -> Option<u64> {
        let (&block, _) = self.blocks.range(offset / BLOCK..).find(|(_, bytes)| bytes.is_some())?;
        Some((block * BLOCK).max(offset)).filter(|&at| at < self.len)
    }

    /// Returns the offset of the first hole at or after `offset`; the end of the file counts as
    /// one.
    pub(super) fn next_hole(&self, offset: u64) -> u64 {
        let mut block = offset / BLOCK;
        while matches!(self.blocks.get(&block), Some(Some(_))) {
            block += 1;
        }
        (block * BLOCK).max(offset).min(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_is_the_same_as_a_vector(ops in prop::collection::vec((0..3, 0u64..20_000, 0u64..9_000, any::<u8>()), 0..40)) {
            let (mut content, mut model) = (Content::default(), Vec::new());
            for (op, offset, len, byte) in ops {
                match op {
                    0 => {
                        content.write(&vec![byte; len as usize], offset);
                        if len > 0 && offset + len > content.len {
                            content.len = offset + len;
                            model.resize(content.len as usize, 0);
                        }
                        model[(offset as usize).min(content.len as usize)..].iter_mut().take(len as usize).for_each(|b| *b = byte);
                    }
                    1 => {
                        content.punch(offset, len);
                        model.iter_mut().skip(offset as usize).take(len as usize).for_each(|b| *b = 0);
                    }
                    _ => {
                        content.cut(offset);
                        model.resize(offset as usize, 0);
                    }
                }
                let mut bytes = vec![1; model.len() + 10];
                prop_assert_eq!(content.read(&mut bytes, 0), model.len());
                prop_assert_eq!(&bytes[..model.len()], &model[..]);
                // A byte that is not zero is never in a hole.
                let mut at = 0;
                while at < content.len {
                    let data = content.next_data(at).unwrap_or(content.len);
                    prop_assert!(model[at as usize..data as usize].iter().all(|&b| b == 0));
                    at = content.next_hole(data);
                }
            }
        }
    }
}
