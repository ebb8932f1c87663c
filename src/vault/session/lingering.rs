//! Nodes that linger: the kernel has forgotten them, but may look them up by their number.
//!
//! A file handle (`name_to_handle_at(2)`, an NFS server) holds the number of a node and nothing else
//! that reaches the daemon. If the kernel has dropped the inode by the time the handle is used, the
//! daemon must still know where the object is. The store cannot tell: a handle of the store's own
//! does not fit into a number, and on ext4 and XFS it leads to a file without a path.
//!
//! Rules that hold here
//! * A node is found by a lookup of one of its names, which does every check of an ordinary lookup.
//!   If no name leads to it any more, the handle is stale.
//! * The number of names of all lingering nodes, in all shares together, is limited. The node that
//!   was forgotten least recently is the first to go.
//! * A node keeps those above it. So these linger too if the kernel does not hold them. They count
//!   as forgotten after the node, which therefore goes before them.

use lru::LruCache;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::vault::types::NodeId;

/// Bytes of the limit on caches for each name of a node that may linger. A node with one name takes
/// about 300 bytes, or 800 if the name is long.
const CACHE_PER_NAME: usize = 4096;

/// The numbers of the nodes that linger. A node that has lost its last name may still be listed.
pub(super) struct Lingering(Mutex<Numbers>);

struct Numbers {
    limit: usize,
    /// Numbers of names. Not bounded by itself: it would allocate room for `limit` nodes at once.
    by_age: LruCache<NodeId, usize>,
    /// The sum of the numbers of names.
    names: usize,
}

impl Lingering {
    /// Returns an empty list. No node lingers before [`Lingering::begin`].
    pub fn new() -> Lingering {
        Lingering(Mutex::new(Numbers { limit: 0, by_age: LruCache::unbounded(), names: 0 }))
    }

    /// Lets nodes linger: one name for each 4 KiB of the limit on caches.
    pub fn begin(&self, cache_bytes: usize) {
        self.0.lock().limit = cache_bytes / CACHE_PER_NAME;
    }

    /// Returns whether nodes may linger.
    pub fn is_begun(&self) -> bool {
        self.0.lock().limit > 0
    }

    /// Adds nodes that were forgotten just now, in this order, each with the number of its names.
    /// Returns those that have to go.
    pub fn add(&self, nodes: impl Iterator<Item = (NodeId, usize)>) -> SmallVec<[NodeId; 1]> {
        let mut numbers = self.0.lock();
        for (node, names) in nodes {
            let before = numbers.by_age.put(node, names).unwrap_or(0);
            numbers.names = numbers.names + names - before;
        }
        let mut ended = SmallVec::new();
        while numbers.names > numbers.limit
            && let Some((oldest, names)) = numbers.by_age.pop_lru()
        {
            numbers.names -= names;
            ended.push(oldest);
        }
        ended
    }
}
