//! The nodes themselves, without gaps, and two indexes: by number and by key.
//!
//! Rules that hold here
//! * Nodes are in one piece of memory, and the last one takes the place of a removed one. So the
//!   memory of a million nodes can be returned to the system when most are gone. Separate
//!   allocations would prevent that where the daemon's memory is locked (`mlockall`): for locked
//!   memory the kernel refuses `MADV_DONTNEED`, by which the allocator returns free memory.
//! * Numbers are unique, and so are the keys of nodes that can be found by key.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use hashbrown::HashTable;

use super::node::{Key, Node};
use crate::vault::types::NodeId;

/// Capacity, in nodes, below which shrinking is not worth it.
pub(super) const ROOM_MIN: usize = 1 << 14;

/// Nodes in one piece of memory, with their indexes.
pub(super) struct Slab {
    nodes: Vec<Node>,
    /// Indexes into `nodes`.
    by_id: HashTable<u32>,
    by_key: HashTable<u32>,
    hasher: RandomState,
}

impl Slab {
    pub fn new() -> Self {
        Slab {
            nodes: Vec::new(),
            by_id: HashTable::new(),
            by_key: HashTable::new(),
            hasher: RandomState::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the capacity in nodes.
    #[cfg(test)]
    pub fn room(&self) -> usize {
        self.nodes.capacity().max(self.by_id.capacity()).max(self.by_key.capacity())
    }

    fn place(&self, id: NodeId) -> Option<usize> {
        self.by_id
            .find(self.hasher.hash_one(id), |at| self.nodes[*at as usize].id == id)
            .map(|at| *at as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter()
    }

    pub fn get(&self, id: NodeId) -> Option<&Node> {
        self.place(id).map(|at| &self.nodes[at])
    }

    pub fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.place(id).map(|at| &mut self.nodes[at])
    }

    /// Returns the node of the object with this key.
    pub fn by_key(&self, key: &Key) -> Option<NodeId> {
        let found =
            self.by_key.find(self.hasher.hash_one(key), |at| self.nodes[*at as usize].key == *key);
        found.map(|at| self.nodes[*at as usize].id)
    }

    /// Inserts a node with a new number; objects with its key map to this node from now on.
    pub fn insert(&mut self, node: Node) {
        let (id, key, at) = (
            node.id,
            node.key,
            u32::try_from(self.nodes.len()).expect("no memory holds this many nodes"),
        );
        self.nodes.push(node);
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        self.by_id
            .insert_unique(hasher.hash_one(id), at, |at| hasher.hash_one(nodes[*at as usize].id));
        self.take_key(id, key);
    }

    pub fn remove(&mut self, id: NodeId) -> Option<Node> {
        let at = self.place(id)?;
        self.leave_key(id);
        if let Ok(entry) =
            self.by_id.find_entry(self.hasher.hash_one(id), |there| *there as usize == at)
        {
            entry.remove();
        }
        let last = self.nodes.len() - 1;
        let node = self.nodes.swap_remove(at);
        if let Some(moved) = self.nodes.get(at) {
            let is_last = |there: &u32| *there as usize == last;
            if let Some(place) = self.by_id.find_mut(self.hasher.hash_one(moved.id), is_last) {
                *place = at as u32;
            }
            // The moved node is not in this index if it has lost its key to another node.
            if let Some(place) = self.by_key.find_mut(self.hasher.hash_one(moved.key), is_last) {
                *place = at as u32;
            }
        }
        self.give_back();
        Some(node)
    }

    /// Maps objects with this key to this node, and to no other.
    pub fn take_key(&mut self, id: NodeId, key: Key) {
        if let Some(other) = self.by_key(&key) {
            self.leave_key(other);
        }
        self.leave_key(id);
        let Some(at) = self.place(id) else { return };
        self.nodes[at].key = key;
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        self.by_key.insert_unique(hasher.hash_one(key), at as u32, |at| {
            hasher.hash_one(nodes[*at as usize].key)
        });
    }

    /// Removes the node's key: no object maps to it any more.
    pub fn leave_key(&mut self, id: NodeId) {
        let Some(at) = self.place(id) else { return };
        if let Ok(entry) = self
            .by_key
            .find_entry(self.hasher.hash_one(self.nodes[at].key), |there| *there as usize == at)
        {
            entry.remove();
        }
    }

    /// Shrinks the memory to twice what is in use, once less than an eighth is in use.
    fn give_back(&mut self) {
        let used = self.nodes.len();
        if self.nodes.capacity() >= ROOM_MIN && used < self.nodes.capacity() / 8 {
            let (id, key) = (
                |at: &u32| self.hasher.hash_one(self.nodes[*at as usize].id),
                |at: &u32| self.hasher.hash_one(self.nodes[*at as usize].key),
            );
            self.by_id.shrink_to(used * 2, id);
            self.by_key.shrink_to(used * 2, key);
            self.nodes.shrink_to(used * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::store::{Kind, Stat, Timestamp};

    fn key(ino: u64) -> Key {
        let time = Timestamp { secs: 0, nanos: 0 };
        let (dev, kind, perm, nlink, uid, gid, rdev, size, blocks) =
            (1, Kind::File, 0o644, 1, 0, 0, 0, 0, 0);
        Key::of(&Stat {
            dev,
            ino,
            kind,
            perm,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks,
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
        })
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert { ino: u64 },
        Remove { nth: usize },
        LeaveKey { nth: usize },
        TakeKey { nth: usize, ino: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..20u64).prop_map(|ino| Step::Insert { ino }),
            2 => (0..40usize).prop_map(|nth| Step::Remove { nth }),
            1 => (0..40usize).prop_map(|nth| Step::LeaveKey { nth }),
            1 => (0..40usize, 0..20u64).prop_map(|(nth, ino)| Step::TakeKey { nth, ino }),
        ]
    }

    proptest! {
        #[test]
        fn it_finds_what_two_maps_would_find(steps in prop::collection::vec(step(), 0..120)) {
            let (mut slab, mut ids, mut keys) = (Slab::new(), HashMap::<NodeId, u64>::new(), HashMap::<u64, NodeId>::new());
            let mut next = 1;
            for step in steps {
                let nth = |nth: usize| (nth as u64) % next.max(1);
                match step {
                    Step::Insert { ino } => {
                        slab.insert(Node::new(next, key(ino)));
                        ids.insert(next, ino);
                        keys.insert(ino, next);
                        next += 1;
                    }
                    Step::Remove { nth: n } => {
                        let id = nth(n);
                        prop_assert_eq!(slab.remove(id).map(|node| node.id), ids.remove(&id).map(|_| id));
                        keys.retain(|_, of| *of != id);
                    }
                    Step::LeaveKey { nth: n } => {
                        slab.leave_key(nth(n));
                        keys.retain(|_, of| *of != nth(n));
                    }
                    Step::TakeKey { nth: n, ino } => {
                        if ids.contains_key(&nth(n)) {
                            slab.take_key(nth(n), key(ino));
                            keys.retain(|_, of| *of != nth(n));
                            keys.insert(ino, nth(n));
                            ids.insert(nth(n), ino);
                        }
                    }
                }
                prop_assert_eq!(slab.len(), ids.len());
                for id in 0..next {
                    prop_assert_eq!(slab.get(id).map(|node| (node.id, node.key == key(ids[&id]))), ids.get(&id).map(|_| (id, true)));
                }
                for ino in 0..20 {
                    prop_assert_eq!(slab.by_key(&key(ino)), keys.get(&ino).copied());
                }
            }
        }
    }
}
