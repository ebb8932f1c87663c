//! The cache of authenticated tables and index blocks, bounded for the whole vault, and the memory
//! accounting of uncommitted changes.
//!
//! Only committed blocks are cached; dirty ones belong to their open file. A file's serial number
//! is never reused, so blocks of a closed file are never found; they age out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::crypto::SegmentKey;
use crate::format::layout::INDEX_BLOCK;
use crate::format::table::{IndexBlock, Table};

/// Minimum limit, in bytes, for uncommitted changes, however small the caches are.
const CHANGES_MIN: usize = 1 << 20;

/// A committed chunk: its table, and the sub-key that follows from the table's salt.
pub(crate) struct Chunk {
    pub table: Table,
    pub key: SegmentKey,
}

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
            Block::Chunk(chunk) => {
                let Table { segments, hashes, .. } = &chunk.table;
                (size_of_val(&**segments) + size_of_val(&**hashes) + 1200) as u64
            }
        }
    }
}

/// The cache of authenticated blocks, and a count of the bytes of uncommitted changes.
pub(crate) struct BlockCache {
    blocks: Cache<(u64, u8, u64), Block, Weight>,
    /// Bytes that the changes of all open files of the vault hold until they are committed.
    pub changes: Arc<AtomicUsize>,
    /// Limit in bytes beyond which a writer commits at once.
    changes_max: usize,
}

/// The part of [`BlockCache::changes`] that belongs to one file.
pub(crate) struct Counted {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl Counted {
    pub fn new(cache: &BlockCache) -> Counted {
        Counted { total: cache.changes.clone(), bytes: 0 }
    }

    /// Sets the file's part to `bytes`.
    pub fn set(&mut self, bytes: usize) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl BlockCache {
    /// Returns a cache of at most `bytes` bytes.
    pub fn new(bytes: usize) -> Self {
        let blocks = Cache::with_weighter((bytes / 3000).max(16), bytes as u64, Weight);
        BlockCache { blocks, changes: Arc::default(), changes_max: bytes.max(CHANGES_MIN) }
    }

    /// Returns whether the vault's open files hold more changes than the limit.
    pub fn has_too_many_changes(&self) -> bool {
        self.changes.load(Ordering::Relaxed) > self.changes_max
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

    /// Drops a chunk that has become dirty or was removed.
    pub fn drop_chunk(&self, serial: u64, k: u64) {
        self.blocks.remove(&(serial, 0, k));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::Suite;
    use crate::format::layout::Layout;

    /// The weight left out the hashes in the tables of a signed share, so the cache took two thirds
    /// more than its limit.
    #[test]
    fn tables_with_hashes_keep_to_the_limit() {
        const LIMIT: usize = 1 << 20;
        for signed in [false, true] {
            let (cache, layout) = (BlockCache::new(LIMIT), Layout::new(18, signed).unwrap());
            for k in 0..2000 {
                let table = Table::empty(&layout, [0; 16], 1);
                let key = SegmentKey::new(Suite::Aes256Gcm, &[0; 32]);
                cache.put_chunk(1, k, Arc::new(Chunk { table, key }));
            }
            let kept = (0..2000).filter_map(|k| cache.chunk(1, k));
            let sizes = kept.map(|it| {
                size_of_val(&*it.table.segments)
                    + size_of_val(&*it.table.hashes)
                    + size_of::<Chunk>()
            });
            let sum: usize = sizes.sum();
            assert!((LIMIT / 2..=LIMIT).contains(&sum), "signed: {signed}, {sum} bytes");
        }
    }
}
