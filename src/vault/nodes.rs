//! The table of nodes: numbers that stand for inodes of the store, as long as somebody counts on them.
//!
//! Rules that hold here
//! * A node has no descriptor of its own. It knows the names under which it was seen; a directory has exactly one.
//! * A node stays while the kernel (or a caller) counts on it, while it has children in the table, or while it is open.
//! * An inode number alone is no identity: birth time and type are compared, and an object that was replaced gets a new node.

mod node;
mod slab;

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

pub(crate) use self::node::Closed;
use self::node::{Kept, Key, Node};
use self::slab::Slab;
use super::error::{Fault, Inner};
use super::keys::DirectoryId;
use super::types::{NodeId, ROOT};
use crate::backing::{Kind, Stat};

/// A name under which a node was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub parent: NodeId,
    pub stored: Box<[u8]>,
    pub name: Box<[u8]>,
}

struct Inside {
    nodes: Slab,
    next: NodeId,
}

/// See the module.
pub(crate) struct Nodes {
    inside: Mutex<Inside>,
    /// Whether [`Nodes::forget_links`] was ever called.
    any_moved: AtomicBool,
}

/// Names that a node remembers; more hard links than this are found again by their own lookups, for which `ESTALE` asks.
const LINKS_MAX: usize = 16;

impl Nodes {
    /// A table that holds the root.
    pub fn new(root: &Stat, directory: DirectoryId) -> Self {
        let mut node = Node::new(ROOT, Key::of(root));
        node.lookups = 1;
        node.set_directory(Some(directory));
        let mut inside = Inside { nodes: Slab::new(), next: ROOT + 1 };
        inside.nodes.insert(node);
        Nodes { inside: Mutex::new(inside), any_moved: AtomicBool::new(false) }
    }

    /// The node of an object that was just seen at `link`, counted once.
    pub fn seen(&self, stat: &Stat, link: Link) -> NodeId {
        let key = Key::of(stat);
        let mut guard = self.inside.lock();
        let inside = &mut *guard;
        let known = inside.nodes.by_key(&key);
        let refused = known.filter(|id| inside.nodes.get(*id).is_some_and(|node| node.is_refused()));
        if let Some(id) = refused {
            inside.nodes.leave_key(id);
        }
        let id = known.filter(|_| refused.is_none()).unwrap_or_else(|| {
            let id = inside.next;
            inside.next += 1;
            inside.nodes.insert(Node::new(id, key));
            id
        });
        inside.nodes.get_mut(id).expect("found or inserted").lookups += 1;
        inside.add_link(id, link);
        id
    }

    /// Another name of a node.
    pub fn add_link(&self, id: NodeId, link: Link) {
        self.inside.lock().add_link(id, link);
    }

    /// The name (`parent`, `stored`) is no longer one of the object, of which `stat` is from before that; gives its node, if it has one.
    pub fn remove_link(&self, stat: &Stat, parent: NodeId, stored: &[u8]) -> Option<NodeId> {
        self.inside.lock().remove_link(stat, parent, stored)
    }

    /// Another object has taken the place of a directory: who asks for its name is told to look it up again.
    pub fn forget_links(&self, id: NodeId) {
        let mut inside = self.inside.lock();
        let Some(node) = inside.nodes.get_mut(id) else { return };
        node.forgotten = true;
        self.any_moved.store(true, Ordering::Release);
        let gone = std::mem::take(&mut node.links);
        inside.nodes.leave_key(id);
        gone.into_iter().for_each(|link| inside.release_parent(link.parent));
        inside.collect(id);
    }

    /// Whether another object has taken the place of the directory that `id` is, or stands in.
    pub fn is_moved_away(&self, mut id: NodeId) -> bool {
        if !self.any_moved.load(Ordering::Acquire) {
            return false;
        }
        let inside = self.inside.lock();
        for _ in 0..4096 {
            let Some(node) = inside.nodes.get(id) else { return false };
            match node.links.last() {
                Some(link) => id = link.parent,
                None => return node.forgotten && node.kind() == Kind::Dir,
            }
        }
        false
    }

    /// The node of an object, if it has one.
    pub fn find(&self, stat: &Stat) -> Option<NodeId> {
        self.inside.lock().nodes.by_key(&Key::of(stat))
    }

    /// Lets go of `count` lookups.
    pub fn forget(&self, id: NodeId, count: u64) {
        let mut inside = self.inside.lock();
        if let Some(node) = inside.nodes.get_mut(id) {
            node.lookups = node.lookups.saturating_sub(count);
        }
        inside.collect(id);
    }

    /// Keeps a node while it is open.
    pub fn opened(&self, id: NodeId) {
        if let Some(node) = self.inside.lock().nodes.get_mut(id) {
            node.opens += 1;
        }
    }

    /// The counterpart of [`Nodes::opened`].
    pub fn closed(&self, id: NodeId) {
        let mut inside = self.inside.lock();
        if let Some(node) = inside.nodes.get_mut(id) {
            node.opens = node.opens.saturating_sub(1);
        }
        inside.collect(id);
    }

    /// Notes in what state a file was closed.
    pub fn set_closed(&self, id: NodeId, closed: Closed) {
        if let Some(node) = self.inside.lock().nodes.get_mut(id) {
            node.closed = closed;
        }
    }

    /// In what state a file was closed.
    pub fn closed_as(&self, id: NodeId) -> Closed {
        self.inside.lock().nodes.get(id).map_or(Closed::UNKNOWN, |node| node.closed)
    }

    /// [`Nodes::renew`], where it was closed in a state that is not the store's, and nobody has it open. Tells whether that is so.
    pub fn renew_refused(&self, id: NodeId) -> bool {
        let mut inside = self.inside.lock();
        let refused = inside.nodes.get(id).is_some_and(|node| node.is_refused());
        if refused {
            inside.nodes.leave_key(id);
        }
        refused
    }

    /// The next lookup of the object gets a new node; this one stays for those who count on it.
    pub fn renew(&self, id: NodeId) {
        self.inside.lock().nodes.leave_key(id);
    }

    /// The object `old` was replaced by `new`, which is the same to whoever looks at it: its node goes on.
    pub fn replaced(&self, old: &Stat, new: &Stat) {
        let mut inside = self.inside.lock();
        if let Some(id) = inside.nodes.by_key(&Key::of(old)) {
            inside.nodes.take_key(id, Key::of(new));
        }
    }

    /// Type of a node.
    pub fn kind(&self, id: NodeId) -> Inner<Kind> {
        self.inside.lock().nodes.get(id).map(|n| n.kind()).ok_or(Fault::Os(libc::ESTALE))
    }

    /// A name of a node; `ENOENT` where it has none any more, and `ESTALE` where it has others than those that were remembered: the kernel
    /// walks the caller's path once more then, with lookups (`retry_estale` in its `fs/namei.c`), and so the name is learnt again.
    pub fn link(&self, id: NodeId) -> Inner<Link> {
        let inside = self.inside.lock();
        let node = inside.nodes.get(id).ok_or(Fault::Os(libc::ESTALE))?;
        node.links.last().map(Kept::link).ok_or(Fault::Os(if node.forgotten { libc::ESTALE } else { libc::ENOENT }))
    }

    /// The name of a node that was last seen in `parent`: of hard links another one may have been used since.
    pub fn link_in(&self, id: NodeId, parent: NodeId, name: &[u8]) -> Inner<Link> {
        let inside = self.inside.lock();
        let node = inside.nodes.get(id).ok_or(Fault::Os(libc::ESTALE))?;
        let found = node.links.iter().rev().find(|link| link.parent == parent && link.name() == name);
        found.map(Kept::link).ok_or(Fault::Os(libc::ENOENT))
    }

    /// What an object was when it lost its last name.
    pub fn last_stat(&self, id: NodeId) -> Option<Stat> {
        self.inside.lock().nodes.get(id).and_then(|n| n.last())
    }

    /// Id of a directory, where it was worked out before.
    pub fn directory(&self, id: NodeId) -> Option<DirectoryId> {
        self.inside.lock().nodes.get(id).and_then(|n| n.directory())
    }

    /// Notes or forgets the id of a directory.
    pub fn set_directory(&self, id: NodeId, directory: Option<DirectoryId>) {
        if let Some(node) = self.inside.lock().nodes.get_mut(id) {
            node.set_directory(directory);
        }
    }

    /// True where `stat` is of the object that the node stands for.
    pub fn is(&self, id: NodeId, stat: &Stat) -> bool {
        self.inside.lock().nodes.get(id).is_some_and(|n| n.key == Key::of(stat))
    }

    /// Stored path from the root, components joined by `/`; `None` where a name on the way is gone.
    pub fn stored_path(&self, id: NodeId) -> Option<Vec<u8>> {
        self.path(id, Kept::stored)
    }

    /// Plain path from the root, likewise.
    pub fn plain_path(&self, id: NodeId) -> Option<Vec<u8>> {
        self.path(id, Kept::name)
    }

    fn path(&self, mut id: NodeId, part: impl Fn(&Kept) -> &[u8]) -> Option<Vec<u8>> {
        let inside = self.inside.lock();
        let mut parts: Vec<&[u8]> = Vec::new();
        while id != ROOT {
            let link = inside.nodes.get(id)?.links.last()?;
            parts.push(part(link));
            id = link.parent;
            if parts.len() > 4096 {
                return None;
            }
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }

    /// Whether `id` is `ancestor` or stands below it.
    pub fn is_below(&self, mut id: NodeId, ancestor: NodeId) -> bool {
        let inside = self.inside.lock();
        for _ in 0..4096 {
            if id == ancestor {
                return true;
            }
            match inside.nodes.get(id).and_then(|n| n.links.last()) {
                Some(link) => id = link.parent,
                None => return false,
            }
        }
        false
    }

    /// Nodes that the table has room for.
    #[cfg(test)]
    fn room(&self) -> usize {
        self.inside.lock().nodes.room()
    }

    /// Number of nodes in the table.
    pub fn len(&self) -> usize {
        self.inside.lock().nodes.len()
    }
}

impl Inside {
    fn add_link(&mut self, id: NodeId, link: Link) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        if id == ROOT {
            return;
        }
        if let Some(at) = node.links.iter().position(|l| l.is(link.parent, &link.stored)) {
            // The name that was used last is the one most likely to be there still.
            let last = node.links.len() - 1;
            node.links.swap(at, last);
            if node.links[last].name() != &*link.name {
                // The same entry under another name, which another one had until now.
                node.links[last] = link.into();
            }
            return;
        }
        let mut gone = None;
        if node.kind() == Kind::Dir && !node.links.is_empty() {
            // It was moved beneath us: its id follows from the new place or its record.
            gone = node.links.pop();
            node.set_directory(None);
        } else if node.links.len() >= LINKS_MAX {
            gone = Some(node.links.remove(0));
            node.forgotten = true;
        }
        let parent = link.parent;
        node.links.push(link.into());
        node.set_last(None);
        if let Some(parent) = self.nodes.get_mut(parent) {
            parent.children += 1;
        }
        if let Some(gone) = gone {
            self.release_parent(gone.parent);
        }
    }

    fn remove_link(&mut self, stat: &Stat, parent: NodeId, stored: &[u8]) -> Option<NodeId> {
        let id = self.nodes.by_key(&Key::of(stat))?;
        let node = self.nodes.get_mut(id)?;
        // The last name of all, remembered or not.
        node.forgotten &= stat.nlink > 1;
        if !node.links.iter().any(|l| l.is(parent, stored)) {
            return Some(id);
        }
        node.links.retain(|l| !l.is(parent, stored));
        if node.links.is_empty() && !node.forgotten {
            let nlink = if node.kind() == Kind::Dir { 0 } else { stat.nlink.saturating_sub(1) };
            node.set_last(Some(Stat { nlink, ..*stat }));
        }
        if node.links.is_empty() && node.opens == 0 && !node.forgotten {
            // The store may give the inode number to another object now; an open node still holds it.
            self.nodes.leave_key(id);
        }
        self.release_parent(parent);
        self.collect(id);
        Some(id)
    }

    fn release_parent(&mut self, parent: NodeId) {
        if let Some(node) = self.nodes.get_mut(parent) {
            node.children = node.children.saturating_sub(1);
        }
        self.collect(parent);
    }

    /// Drops the node, and those above it that were kept by it alone, where nothing counts on it.
    fn collect(&mut self, mut id: NodeId) {
        while id != ROOT {
            let Some(node) = self.nodes.get(id) else { return };
            if node.lookups > 0 || node.children > 0 || node.opens > 0 {
                return;
            }
            let node = self.nodes.remove(id).expect("found above");
            let mut parents = node.links.into_iter().map(|l| l.parent);
            let first = parents.next();
            for parent in parents {
                self.release_parent(parent);
            }
            let Some(parent) = first else { return };
            if let Some(node) = self.nodes.get_mut(parent) {
                node.children = node.children.saturating_sub(1);
            }
            id = parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::slab::ROOM_MIN;
    use super::*;
    use crate::backing::Timestamp;

    fn stat(ino: u64, kind: Kind) -> Stat {
        let time = Timestamp { secs: 0, nanos: 0 };
        let (dev, perm, nlink, uid, gid, rdev, size, blocks) = (1, 0o644, 1, 0, 0, 0, 0, 0);
        Stat { dev, ino, kind, perm, nlink, uid, gid, rdev, size, blocks, atime: time, mtime: time, ctime: time, btime: None }
    }

    #[test]
    fn a_table_gives_its_room_back_when_the_kernel_forgets() {
        // After a directory of a million entries had been listed the daemon kept half a gigabyte for nodes that were gone.
        let nodes = Nodes::new(&stat(1, Kind::Dir), [0; 32]);
        let name = |n: u64| Link { parent: ROOT, stored: n.to_string().into_bytes().into(), name: n.to_string().into_bytes().into() };
        let ids: Vec<NodeId> = (2..100_000).map(|n| nodes.seen(&stat(n, Kind::File), name(n))).collect();
        assert!(nodes.room() >= ids.len());
        ids.iter().for_each(|id| nodes.forget(*id, 1));
        assert_eq!(nodes.len(), 1);
        assert!(nodes.room() <= ROOM_MIN, "{}", nodes.room());
        let again = nodes.seen(&stat(7, Kind::File), name(7));
        assert_eq!((nodes.len(), nodes.find(&stat(7, Kind::File))), (2, Some(again)));
    }
}
