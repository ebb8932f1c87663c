//! The tree that authenticates a file's chunks: loading tables and index blocks, and working out what a commit has to write.
//!
//! Rules that hold here
//! * No table or index block is used before its hash was compared with the one that its parent holds, up to the header's root.
//! * Nothing is written here; [`plan`] gives the blocks, the commit module decides how and when they are written.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cache::BlockCache;
use super::error::{Fault, Inner};
use crate::backing::File;
use crate::crypto::{SegmentKey, Suite};
use crate::format::layout::{FANOUT, INDEX_BLOCK, Layout};
use crate::format::table::{HOLE, Hash, IndexBlock, Table, index_hash, table_hash};

/// A committed chunk: its table and the key of its salt.
pub(crate) struct Chunk {
    pub table: Table,
    pub key: SegmentKey,
}

/// The committed tree of one file.
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
        return Err(Fault::Corrupt("is shorter than its header says"));
    }
    Ok(())
}

impl Tree<'_> {
    fn levels(&self) -> u8 {
        Layout::levels(self.root.chunks)
    }

    /// Hash that the committed tree has for node `j` of `level` (0 are the tables).
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

    /// Where chunk `k` is part of a hole, the first chunk behind the largest subtree of holes that it stands in; else `k`.
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

    /// Index block `j` of `level`; a block of holes where the tree has none.
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
            return Err(Fault::Corrupt("has an index block that cannot be authenticated"));
        }
        let block = Arc::new(IndexBlock::decode(&bytes));
        self.cache.put_block(self.serial, level, j, block.clone());
        Ok(block)
    }

    /// Chunk `k`; `None` for a hole.
    pub fn chunk(&self, k: u64, key: impl FnOnce(&Table) -> Inner<SegmentKey>) -> Inner<Option<Arc<Chunk>>> {
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
            return Err(Fault::Corrupt("has a chunk table that cannot be authenticated"));
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
}

/// What a commit writes besides segments and the header.
pub(crate) struct Plan {
    pub blocks: Vec<PlannedBlock>,
    pub root: Root,
    /// New index blocks, for the cache.
    pub index: Vec<(u8, u64, Arc<IndexBlock>)>,
}

/// Works out tables, index blocks and root of a file that has `chunks` chunks after the commit, `tables` of which have changed.
///
/// Where the file becomes shorter, the right edge of the tree is rebuilt with everything beyond it taken out, so that a later growth
/// finds holes there.
pub(crate) fn plan(tree: &Tree, chunks: u64, tables: &BTreeMap<u64, &Table>) -> Inner<Plan> {
    let layout = &tree.layout;
    let mut plan = Plan { blocks: Vec::new(), root: Root { hash: HOLE, chunks }, index: Vec::new() };
    if chunks == 0 {
        return Ok(plan); // the small form: the old tree ends here
    }
    let mut changed: BTreeMap<u64, Hash> = BTreeMap::new();
    for (&k, table) in tables.range(..chunks) {
        let hash = if table.is_hole() {
            HOLE
        } else {
            let bytes = table.encode(layout);
            let hash = table_hash(&bytes);
            let live = tree.hash(0, k)? != HOLE;
            plan.blocks.push(PlannedBlock { offset: layout.table_offset(k), bytes, live });
            hash
        };
        changed.insert(k, hash);
    }
    let (old_levels, new_levels) = (Layout::levels(tree.root.chunks), Layout::levels(chunks));
    let shorter = chunks < tree.root.chunks;
    let mut width = chunks; // nodes of the present level
    for level in 0..new_levels {
        // The edge of a shortened tree, and the old root of a tree that grows taller, have to reach the new root even when unchanged.
        let edge = if shorter { Some(width - 1) } else { (level == old_levels && tree.root.chunks > 0).then_some(0) };
        if let Some(j) = edge
            && !changed.contains_key(&j)
        {
            changed.insert(j, tree.hash(level, j)?);
        }
        let mut above: BTreeMap<u64, Hash> = BTreeMap::new();
        let mut entries = changed.into_iter().peekable();
        while let Some(&(first, _)) = entries.peek() {
            let parent = first / FANOUT;
            let mut block = IndexBlock(tree.block(level + 1, parent)?.0.clone());
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
                plan.blocks.push(PlannedBlock { offset: layout.index_offset(level + 1, parent), bytes, live });
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
