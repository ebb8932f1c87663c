//! The tree that authenticates a file's chunks: loads tables and index blocks, and computes what a
//! commit has to write.
//!
//! Rules that hold here
//! * No table or index block is used before its hash was compared with the one in its parent, up to
//!   the header's root.
//! * Nothing is written here: [`plan`] returns the blocks, and the commit module decides how and
//!   when they are written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use crate::crypto::{SegmentKey, Suite};
use crate::format::layout::{FANOUT, INDEX_BLOCK, Layout};
use crate::format::table::{HOLE, Hash, IndexBlock, Table, index_hash, table_hash};
use crate::store::File;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::file::block_cache::{BlockCache, Chunk};

/// The root of the committed tree of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub hash: Hash,
    /// Chunks that the tree covers; 0 in the small form.
    pub chunks: u64,
}

/// Reads the committed tree of one file.
pub(crate) struct Tree<'a> {
    pub layout: Layout,
    pub suite: Suite,
    pub file: &'a dyn File,
    pub root: Root,
    /// Number of the open file, the key of its blocks in the cache.
    pub serial: u64,
    pub cache: &'a BlockCache,
}

fn read_exact(file: &dyn File, buf: &mut [u8], offset: u64) -> Inner<()> {
    if file.read_at(buf, offset)? != buf.len() {
        return Err(Fault::Corrupt(Corruption::Other("is shorter than its header says")));
    }
    Ok(())
}

impl Tree<'_> {
    fn levels(&self) -> u8 {
        Layout::levels(self.root.chunks)
    }

    /// Returns the hash that the committed tree has for node `j` of `level` (0 are the tables).
    pub fn hash(&self, level: u8, j: u64) -> Inner<Hash> {
        let levels = self.levels();
        if self.root.chunks == 0 || level > levels {
            return Ok(HOLE);
        }
        if level == levels {
            return Ok(if j == 0 { self.root.hash } else { HOLE });
        }
        Ok(self.block(level + 1, j / FANOUT)?.0[(j % FANOUT) as usize])
    }

    /// Returns the first chunk after the largest subtree of holes that contains chunk `k`; `k` if
    /// it is not in a hole, and `u64::MAX` if the tree does not reach it.
    pub fn after_hole(&self, k: u64) -> Inner<u64> {
        if k >= self.root.chunks {
            return Ok(u64::MAX);
        }
        for level in (0..=self.levels()).rev() {
            let span = FANOUT.pow(level as u32);
            if self.hash(level, k / span)? == HOLE {
                return Ok((k / span + 1).saturating_mul(span));
            }
        }
        Ok(k)
    }

    /// Returns index block `j` of `level`; a block of holes if the tree has none.
    pub fn block(&self, level: u8, j: u64) -> Inner<Arc<IndexBlock>> {
        let expected = self.hash(level, j)?;
        if expected == HOLE {
            return Ok(Arc::new(IndexBlock::empty()));
        }
        if let Some(block) = self.cache.block(self.serial, level, j) {
            return Ok(block);
        }
        let mut bytes = [0; INDEX_BLOCK];
        read_exact(self.file, &mut bytes, self.layout.index_offset(level, j))?;
        if index_hash(level, &bytes) != expected {
            return Err(Fault::Corrupt(Corruption::Other(
                "has an index block that cannot be authenticated",
            )));
        }
        let block = Arc::new(IndexBlock::decode(&bytes));
        self.cache.put_block(self.serial, level, j, block.clone());
        Ok(block)
    }

    /// Returns the bytes of the committed table of chunk `k` if they are cached. They only shorten
    /// a record, so they are not read from the store.
    fn table_at_hand(&self, k: u64) -> Option<Vec<u8>> {
        Some(self.cache.chunk(self.serial, k)?.table.encode(&self.layout))
    }

    /// Returns chunk `k`; `None` for a hole.
    pub fn chunk(
        &self,
        k: u64,
        key: impl FnOnce(&Table) -> Inner<SegmentKey>,
    ) -> Inner<Option<Arc<Chunk>>> {
        if k >= self.root.chunks {
            return Ok(None);
        }
        if let Some(chunk) = self.cache.chunk(self.serial, k) {
            return Ok(Some(chunk));
        }
        let expected = self.hash(0, k)?;
        if expected == HOLE {
            return Ok(None);
        }
        let mut bytes = vec![0; self.layout.table_used()];
        read_exact(self.file, &mut bytes, self.layout.table_offset(k))?;
        if table_hash(&bytes) != expected {
            return Err(Fault::Corrupt(Corruption::Other(
                "has a chunk table that cannot be authenticated",
            )));
        }
        let table = Table::decode(&self.layout, self.suite, &bytes)?;
        let key = key(&table)?;
        let chunk = Arc::new(Chunk { table, key });
        self.cache.put_chunk(self.serial, k, chunk.clone());
        Ok(Some(chunk))
    }
}

/// One block that a commit writes.
pub(crate) struct PlannedBlock {
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// The last committed header refers to a block at this place.
    pub live: bool,
    /// Where `bytes` differ from that block, in order; everything if it is not live or not cached.
    pub changed: Vec<Range<usize>>,
}

impl PlannedBlock {
    /// Returns a block for a place at which the committed tree has `old`, as far as known.
    fn new(offset: u64, bytes: Vec<u8>, live: bool, old: Option<&[u8]>) -> Self {
        let changed = match old {
            Some(old) if live && old.len() == bytes.len() => differences(old, &bytes),
            _ => std::iter::once(0..bytes.len()).collect(),
        };
        PlannedBlock { offset, bytes, live, changed }
    }
}

/// Number of equal bytes below which two differences are merged: about the overhead of a patch in a
/// record.
const GAP: usize = 16;

/// Returns where `new` differs from `old`, of the same length, in order; nearby differences are
/// merged.
fn differences(old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    // First by pieces of a fixed length, which take a few instructions each: most of a block is
    // unchanged.
    const PIECE: usize = 64;
    let ((old_pieces, _), (new_pieces, rest)) =
        (old.as_chunks::<PIECE>(), new.as_chunks::<PIECE>());
    let pieces = (0..new_pieces.len())
        .filter(|&n| old_pieces[n] != new_pieces[n])
        .map(|n| n * PIECE..(n + 1) * PIECE);
    let candidates = pieces.chain(std::iter::once(new.len() - rest.len()..new.len())).flatten();
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for at in candidates.filter(|&at| old[at] != new[at]) {
        match ranges.last_mut() {
            Some(last) if at - last.end < GAP => last.end = at + 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

/// The blocks that a commit writes in addition to segments and the header.
pub(crate) struct Plan {
    pub blocks: Vec<PlannedBlock>,
    pub root: Root,
    /// New index blocks, for the cache.
    pub index: Vec<(u8, u64, Arc<IndexBlock>)>,
}

/// Computes tables, index blocks and root of a file with `chunks` chunks after the commit, of which
/// `tables` have changed.
///
/// If the file becomes shorter, the right edge of the tree is rebuilt without everything beyond it,
/// so that a later growth finds holes there.
pub(crate) fn plan(tree: &Tree, chunks: u64, tables: &BTreeMap<u64, &Table>) -> Inner<Plan> {
    let layout = &tree.layout;
    let mut plan =
        Plan { blocks: Vec::new(), root: Root { hash: HOLE, chunks }, index: Vec::new() };
    if chunks == 0 {
        return Ok(plan); // the small form has no tree
    }
    let mut changed = plan_tables(tree, tables.range(..chunks), &mut plan)?;
    let (old_levels, new_levels) = (Layout::levels(tree.root.chunks), Layout::levels(chunks));
    let shorter = chunks < tree.root.chunks;
    let mut width = chunks; // nodes of the present level
    for level in 0..new_levels {
        // The edge of a shortened tree, and the old root of a tree that grows taller, have to reach
        // the new root even if unchanged.
        let edge = if shorter {
            Some(width - 1)
        } else {
            (level == old_levels && tree.root.chunks > 0).then_some(0)
        };
        if let Some(j) = edge
            && !changed.contains_key(&j)
        {
            changed.insert(j, tree.hash(level, j)?);
        }
        let mut above: BTreeMap<u64, Hash> = BTreeMap::new();
        let mut entries = changed.into_iter().peekable();
        while let Some(&(first, _)) = entries.peek() {
            let parent = first / FANOUT;
            let old = tree.block(level + 1, parent)?;
            let mut block = IndexBlock(old.0.clone());
            while let Some((j, hash)) = entries.next_if(|(j, _)| j / FANOUT == parent) {
                block.0[(j % FANOUT) as usize] = hash;
            }
            let inside = (width - parent * FANOUT).min(FANOUT) as usize;
            block.0[inside..].fill(HOLE);
            let hash = if block.is_hole() {
                HOLE
            } else {
                let bytes = block.encode();
                let hash = index_hash(level + 1, &bytes);
                let live = tree.hash(level + 1, parent)? != HOLE;
                plan.blocks.push(PlannedBlock::new(
                    layout.index_offset(level + 1, parent),
                    bytes,
                    live,
                    Some(old.0.as_flattened()),
                ));
                hash
            };
            plan.index.push((level + 1, parent, Arc::new(block)));
            above.insert(parent, hash);
        }
        changed = above;
        width = width.div_ceil(FANOUT);
    }
    plan.root.hash = match changed.get(&0) {
        Some(hash) => *hash,
        None => tree.hash(new_levels, 0)?,
    };
    Ok(plan)
}

/// Adds the tables of changed chunks to the plan, and returns their hashes.
fn plan_tables<'a>(
    tree: &Tree,
    tables: impl Iterator<Item = (&'a u64, &'a &'a Table)>,
    plan: &mut Plan,
) -> Inner<BTreeMap<u64, Hash>> {
    let layout = &tree.layout;
    let mut changed: BTreeMap<u64, Hash> = BTreeMap::new();
    for (&k, table) in tables {
        let hash = if table.is_hole() {
            HOLE
        } else {
            let bytes = table.encode(layout);
            let hash = table_hash(&bytes);
            let old = tree.hash(0, k)?;
            let table = tree.table_at_hand(k);
            debug_assert!(
                old == HOLE || table.as_ref().is_none_or(|table| table_hash(table) == old),
                "the cache has another table"
            );
            plan.blocks.push(PlannedBlock::new(
                layout.table_offset(k),
                bytes,
                old != HOLE,
                table.as_deref(),
            ));
            hash
        };
        changed.insert(k, hash);
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn differences_are_all_that_turns_one_block_into_the_other(
            old in proptest::collection::vec(0..3u8, 0..200),
            changes in proptest::collection::vec((0..200usize, 0..40usize, 0..3u8), 0..6),
        ) {
            let mut new = old.clone();
            for (at, len, byte) in changes {
                let (from, to) = (at.min(new.len()), (at + len).min(new.len()));
                new[from..to].fill(byte);
            }
            let ranges = differences(&old, &new);
            let mut made = old.clone();
            for range in &ranges {
                prop_assert!(old[range.start] != new[range.start] && old[range.end - 1] != new[range.end - 1], "{range:?} is no longer than it has to be");
                made[range.clone()].copy_from_slice(&new[range.clone()]);
            }
            prop_assert_eq!(made, new);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end + GAP <= pair[1].start), "{ranges:?}");
        }
    }
}
