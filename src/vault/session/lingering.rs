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
//! * The number of nodes is limited, and the one that was forgotten least recently is the first to
//!   go. The nodes of all shares count together.

use lru::LruCache;
use parking_lot::Mutex;

use crate::vault::types::NodeId;

/// Bytes of the limit on caches for each node that may linger. A node takes about 300 bytes.
const CACHE_PER_NODE: usize = 4096;

/// The numbers of the nodes that linger. A node that has lost its last name may still be listed.
pub(super) struct Lingering(Mutex<Numbers>);

struct Numbers {
    limit: usize,
    /// Not bounded by itself: it would allocate room for `limit` numbers at once.
    by_age: LruCache<NodeId, ()>,
}

impl Lingering {
    /// Returns a list of which no node lingers, until [`Lingering::begin`].
    pub fn new() -> Lingering {
        Lingering(Mutex::new(Numbers { limit: 0, by_age: LruCache::unbounded() }))
    }

    /// Lets nodes linger: one for each 4 KiB of the limit on caches.
    pub fn begin(&self, cache_bytes: usize) {
        self.0.lock().limit = cache_bytes / CACHE_PER_NODE;
    }

    /// Returns whether nodes may linger.
    pub fn is_begun(&self) -> bool {
        self.0.lock().limit > 0
    }

    /// Adds a node that was forgotten just now. Returns the one that has to go.
    pub fn add(&self, node: NodeId) -> Option<NodeId> {
        let mut numbers = self.0.lock();
        numbers.by_age.put(node, ());
        let is_full = numbers.by_age.len() > numbers.limit;
        if is_full { numbers.by_age.pop_lru().map(|(oldest, ())| oldest) } else { None }
    }
}
