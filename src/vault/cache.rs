//! The cache of authenticated tables and index blocks, bounded for the whole vault.
//!
//! Only committed blocks are in it; what is dirty belongs to its open file. A file's serial number is never used again, so blocks of a
//! closed file are never found, they only age out.

use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::tree::Chunk;
use crate::format::layout::INDEX_BLOCK;
use crate::format::table::IndexBlock;

#[derive(Clone)]
enum Block {
    Index(Arc<IndexBlock>),
    Chunk(Arc<Chunk>),
}

#[derive(Clone)]
struct Weight;

impl Weighter<(u64, u8, u64), Block> for Weight {
    fn weight(&self, _: &(u64, u8, u64), block: &Block) -> u64 {
        match block {
            Block::Index(_) => INDEX_BLOCK as u64 + 96,
            // A key with its schedule and hash powers takes about a kilobyte.
            Block::Chunk(chunk) => chunk.table.segments.len() as u64 * 30 + 1200,
        }
    }
}

/// See the module.
pub(crate) struct BlockCache {
    blocks: Cache<(u64, u8, u64), Block, Weight>,
}

impl BlockCache {
    /// A cache of at most `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        BlockCache { blocks: Cache::with_weighter((bytes / 3000).max(16), bytes as u64, Weight) }
    }

    pub fn block(&self, serial: u64, level: u8, j: u64) -> Option<Arc<IndexBlock>> {
        match self.blocks.get(&(serial, level, j)) {
            Some(Block::Index(block)) => Some(block),
            _ => None,
        }
    }

    pub fn put_block(&self, serial: u64, level: u8, j: u64, block: Arc<IndexBlock>) {
        self.blocks.insert((serial, level, j), Block::Index(block));
    }

    pub fn chunk(&self, serial: u64, k: u64) -> Option<Arc<Chunk>> {
        match self.blocks.get(&(serial, 0, k)) {
            Some(Block::Chunk(chunk)) => Some(chunk),
            _ => None,
        }
    }

    pub fn put_chunk(&self, serial: u64, k: u64, chunk: Arc<Chunk>) {
        self.blocks.insert((serial, 0, k), Block::Chunk(chunk));
    }

    /// Drops a chunk that has become dirty or vanished.
    pub fn drop_chunk(&self, serial: u64, k: u64) {
        self.blocks.remove(&(serial, 0, k));
    }
}
