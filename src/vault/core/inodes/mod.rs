//! The node table: numbers for inodes of the store, kept as long as a caller holds them.
//!
//! Rules that hold here
//! * A node has no descriptor of its own. It knows the names under which it was seen; a directory
//!   has at most one.
//! * A node stays while the kernel (or a caller) holds lookups of it, while it has children in the
//!   table, or while it is open. After that it may linger (`session/lingering.rs`).
//! * An inode number alone is no identity: birth time and type are compared, and an object that was
//!   replaced gets a new node.
//! * A file whose size or committed state differs from what the kernel caches gets a new node too,
//!   and the old one is retired. A retired node serves its open handles and no other open, by any
//!   name.

mod node;
mod replaced;
mod slab;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

pub(crate) use self::node::Link;
use self::node::{Key, Node, ToldSize};
use self::replaced::Replaced;
use self::slab::Slab;
use crate::crypto::Tag;
use crate::store::{Kind, SetTime, Stat, Timestamp};
use crate::vault::core::DEPTH_MAX;
use crate::vault::error::{Fault, Inner};
use crate::vault::file::cached::Cached;
use crate::vault::types::{Attr, NodeId, ROOT, SetAttr};

struct Inside {
    nodes: Slab,
    /// Retired nodes of files, by their objects.
    retired: HashMap<Key, SmallVec<[NodeId; 1]>>,
    /// Files that commits have replaced.
    replaced: Replaced,
    next: NodeId,
    /// Counts moves of directories in use, so that values derived from the places above are
    /// recomputed.
    moves: u64,
}

/// The node table of one share.
pub(crate) struct Nodes {
    inside: Mutex<Inside>,
    /// Whether [`Nodes::forget_links`] was ever called.
    any_moved: AtomicBool,
    /// Whether [`Nodes::replace`] was ever called.
    any_replaced: AtomicBool,
}

/// The longest stored path, in bytes, that a record of the journal can contain: its length has 16
/// bits.
const RECORD_PATH_MAX: usize = u16::MAX as usize;

/// Maximum number of names that a node remembers. Further hard links are found again by their own
/// lookups, which `ESTALE` triggers.
const LINKS_MAX: usize = 16;

impl Nodes {
    /// Returns a table that holds the root.
    pub fn new(root: &Stat, directory: Tag) -> Self {
        let mut node = Node::new(ROOT, Key::of(root));
        node.lookups = 1;
        node.set_directory(Some(directory));
        let mut inside = Inside {
            nodes: Slab::new(),
            retired: HashMap::new(),
            replaced: Replaced::default(),
            next: ROOT + 1,
            moves: 0,
        };
        inside.nodes.insert(node);
        Nodes {
            inside: Mutex::new(inside),
            any_moved: AtomicBool::new(false),
            any_replaced: AtomicBool::new(false),
        }
    }

    /// Returns the node of an object that was just seen at `link`, with one more lookup.
    pub fn seen(&self, stat: &Stat, link: Link) -> NodeId {
        let key = Key::of(stat);
        let mut guard = self.inside.lock();
        let inside = &mut *guard;
        let id = inside.nodes.by_key(&key).or_else(|| inside.just_replaced(&key, &link));
        let id = id.unwrap_or_else(|| {
            let id = inside.next;
            inside.next += 1;
            inside.nodes.insert(Node::new(id, key));
            inside.give_number(id, key.ino);
            id
        });
        let node = inside.nodes.get_mut(id).expect("found or inserted");
        if node.lookups == 0 && node.opens == 0 {
            node.clear_cached();
        }
        node.lookups += 1;
        inside.add_link(id, link);
        id
    }

    /// Returns where the kernel knows a directory, if that is not in `parent`.
    pub fn known_outside(&self, stat: &Stat, parent: NodeId) -> Option<(NodeId, Box<[u8]>)> {
        let inside = self.inside.lock();
        let node = inside.nodes.by_key(&Key::of(stat)).and_then(|id| inside.nodes.get(id))?;
        let link = node.links.last().filter(|link| link.parent != parent)?;
        (node.kind() == Kind::Dir && node.lookups > 0).then(|| (link.parent, link.name().into()))
    }

    /// Adds another name to a node.
    pub fn add_link(&self, id: NodeId, link: Link) {
        self.inside.lock().add_link(id, link);
    }

    /// Removes the name (`parent`, `stored`) from the node of an object; `stat` is from before the
    /// removal. Returns the node, if there is one.
    pub fn remove_link(&self, stat: &Stat, parent: NodeId, stored: &[u8]) -> Option<NodeId> {
        self.inside.lock().remove_link(stat, parent, stored)
    }

    /// Renames the name (`parent`, `stored`) to `to`, or removes it, in the retired nodes of an
    /// object; `stat` is from before.
    pub fn retired_follow(&self, stat: &Stat, parent: NodeId, stored: &[u8], to: Option<&Link>) {
        self.inside.lock().retired_follow(stat, parent, stored, to);
    }

    /// Forgets the names of a directory whose place another object has taken: a query of its name
    /// fails, so that the caller looks it up again.
    pub fn forget_links(&self, id: NodeId) {
        let mut inside = self.inside.lock();
        let Some(node) = inside.nodes.get_mut(id) else { return };
        node.forgotten = true;
        node.lingers = false;
        inside.moves += 1;
        let Some(node) = inside.nodes.get_mut(id) else { return };
        self.any_moved.store(true, Ordering::Release);
        let gone = std::mem::take(&mut node.links);
        inside.nodes.leave_key(id);
        gone.into_iter().for_each(|link| inside.release_parent(link.parent));
        inside.collect(id);
    }

    /// Returns whether another object has taken the place of directory `id`, or of a directory
    /// above it.
    pub fn is_moved_away(&self, mut id: NodeId) -> bool {
        if !self.any_moved.load(Ordering::Acquire) {
            return false;
        }
        let inside = self.inside.lock();
        for _ in 0..DEPTH_MAX {
            let Some(node) = inside.nodes.get(id) else { return false };
            match node.links.last() {
                Some(link) => id = link.parent,
                None => return node.forgotten && node.kind() == Kind::Dir,
            }
        }
        false
    }

    /// Returns the node of an object, if it has one.
    pub fn find(&self, stat: &Stat) -> Option<NodeId> {
        self.inside.lock().by_key(&Key::of(stat))
    }

    /// Drops `count` lookups. The kernel drops all at once when it evicts an inode. If some are
    /// left, replies were in flight, and the kernel makes a new inode from one of them, with the
    /// size in that reply. If the file's size has changed meanwhile, it must not be opened by that
    /// inode, so its node is retired; for an open file, at the last close.
    pub fn forget(&self, id: NodeId, count: u64) {
        self.inside.lock().forget(id, count);
    }

    /// Does [`Nodes::forget`], but keeps a node that nothing else keeps: the kernel may look it up
    /// by its number. Returns the nodes that linger since, until [`Nodes::end_linger`], each with
    /// the number of its names: this one, and then those above it that the kernel does not hold.
    pub fn forget_and_linger(&self, id: NodeId, count: u64) -> SmallVec<[(NodeId, usize); 1]> {
        let mut inside = self.inside.lock();
        let lingers = |node: &&mut Node| {
            // Without a birth time a later object could be taken for this one.
            let can_be_found = !node.retired && !node.links.is_empty() && node.key.is_unique();
            node.id != ROOT && node.lookups <= count && can_be_found
        };
        let mut lingering = SmallVec::new();
        let mut above = SmallVec::<[NodeId; 1]>::new();
        if let Some(node) = inside.nodes.get_mut(id).filter(lingers) {
            node.lingers = true;
            above.extend(node.links.iter().map(|link| link.parent));
            lingering.push((id, node.links.len()));
        }
        inside.forget(id, count);
        for mut id in above {
            let is_idle =
                |node: &&mut Node| node.id != ROOT && node.lookups + u64::from(node.opens) == 0;
            // The storage host can let two directories be found in one another.
            for _ in 0..DEPTH_MAX {
                let Some(node) = inside.nodes.get_mut(id).filter(is_idle) else { break };
                node.lingers = true;
                lingering.push((id, 1));
                let Some(link) = node.links.last() else { break };
                id = link.parent;
            }
        }
        lingering
    }

    /// Takes away what keeps a node, and drops it if nothing else does.
    fn let_go(&self, id: NodeId, take: impl FnOnce(&mut Node)) {
        let mut inside = self.inside.lock();
        if let Some(node) = inside.nodes.get_mut(id) {
            take(node);
        }
        inside.collect(id);
    }

    /// Drops a node that lingers, unless something else keeps it.
    pub fn end_linger(&self, id: NodeId) {
        self.let_go(id, |node| node.lingers = false);
    }

    /// Adds one lookup to the root.
    pub fn root_seen(&self) {
        if let Some(root) = self.inside.lock().nodes.get_mut(ROOT) {
            root.lookups += 1;
        }
    }

    /// Drops one lookup that no reply has reported.
    pub fn forget_unsent(&self, id: NodeId) {
        self.let_go(id, |node| node.lookups = node.lookups.saturating_sub(1));
    }

    /// Keeps a node while it is open.
    pub fn opened(&self, id: NodeId) {
        if let Some(node) = self.inside.lock().nodes.get_mut(id) {
            node.opens += 1;
        }
    }

    /// The counterpart of [`Nodes::opened`].
    pub fn closed(&self, id: NodeId) {
        self.let_go(id, |node| node.opens = node.opens.saturating_sub(1));
    }

    /// Records what the kernel caches of a file that was just closed. Retires the node if the
    /// kernel may have made its inode from an earlier reply, see [`Nodes::forget`]. `written_past`
    /// is the second of the earlier modification time if a program has written past the page cache:
    /// the kernel still has that time.
    pub fn set_cached(&self, id: NodeId, cached: Cached, written_past: Option<i64>) {
        let mut inside = self.inside.lock();
        let Some(node) = inside.nodes.get_mut(id) else { return };
        // The first reply has arrived, since the file was opened; replies to further lookups may be
        // in flight.
        if node.told_size == ToldSize::Present
            && node.lookups > 1
            && node.cached != Cached::NOTHING
            && !node.cached.has_size_of(&cached)
        {
            node.told_size = ToldSize::Earlier;
        }
        node.cached = cached;
        node.told_second =
            node.told_second.or(written_past.and_then(|second| NonZeroU32::new(second as u32)));
        if node.told_size == ToldSize::Crossed {
            inside.retire(id);
        }
    }

    /// Returns what the kernel caches of a file; fails with `ESTALE` if the node is retired.
    pub fn cached(&self, id: NodeId) -> Inner<Cached> {
        let inside = self.inside.lock();
        match inside.nodes.get(id) {
            Some(node) if !node.retired => Ok(node.cached),
            _ => Err(Fault::Os(libc::ESTALE)),
        }
    }

    /// Records that a reply contains `size` for a file that is not open. Returns false if the
    /// kernel has another size, or caches another time. Fails with `ESTALE` if the node is retired.
    pub fn tell_size(&self, id: NodeId, size: u64, mtime: Timestamp) -> Inner<bool> {
        let mut inside = self.inside.lock();
        let node =
            inside.nodes.get_mut(id).filter(|node| !node.retired).ok_or(Fault::Os(libc::ESTALE))?;
        if node.cached == Cached::NOTHING {
            node.cached = Cached::size(size);
        }
        // A difference of a second or two does not count: otherwise a file that is written
        // continuously would get one node after the other.
        let is_old =
            node.told_second.is_some_and(|told| (mtime.secs as u32).abs_diff(told.get()) > 2);
        Ok(node.cached.has_size_of(&Cached::size(size)) && !is_old)
    }

    /// Retires a node: the next lookup of the object gets a new one. This one stays for its open
    /// handles.
    pub fn retire(&self, id: NodeId) {
        self.inside.lock().retire(id);
    }

    /// Returns the names under which a node was seen.
    pub fn links(&self, id: NodeId) -> SmallVec<[Link; 1]> {
        self.inside.lock().nodes.get(id).map_or(SmallVec::new(), |node| node.links.clone())
    }

    /// Returns whether a node has a name.
    pub fn has_link(&self, id: NodeId) -> bool {
        self.inside.lock().nodes.get(id).is_some_and(|node| !node.links.is_empty())
    }

    /// Returns whether a node was seen under more than one name.
    pub fn has_several_links(&self, id: NodeId) -> bool {
        self.inside.lock().nodes.get(id).is_some_and(|node| node.links.len() > 1)
    }

    /// Returns whether a node was seen under more names than its object, which has `links`.
    pub fn has_more_names(&self, id: NodeId, links: u32) -> bool {
        self.inside.lock().nodes.get(id).is_some_and(|node| node.links.len() > links as usize)
    }

    /// Forgets a name of a node that has others, because in the store the name leads to another
    /// object.
    pub fn drop_link(&self, id: NodeId, parent: NodeId, stored: &[u8]) {
        let mut inside = self.inside.lock();
        let Some(node) = inside.nodes.get_mut(id).filter(|node| node.links.len() > 1) else {
            return;
        };
        let before = node.links.len();
        node.links.retain(|link| !link.is(parent, stored));
        if node.links.len() < before {
            inside.release_parent(parent);
        }
    }

    /// Records that the open file of a node continues in the object `now`, which another program or
    /// this one has stored in place of the old one. If lookups may find another node for that
    /// object, or found another one for the old object already, this node serves its open handles
    /// only.
    pub fn continue_in(&self, id: NodeId, now: &Stat) {
        let (mut inside, key) = (self.inside.lock(), Key::of(now));
        let is_retired = inside.nodes.get(id).is_none_or(|node| node.retired);
        if is_retired || inside.nodes.by_key(&key).is_some_and(|other| other != id) {
            inside.retire_as(id, key);
        } else {
            inside.nodes.take_key(id, key);
        }
    }

    /// Like [`Nodes::continue_in`], but always retires the node: the kernel may resolve a name that
    /// does not lead to the object `now` to this node.
    pub fn retire_as(&self, id: NodeId, now: &Stat) {
        self.inside.lock().retire_as(id, Key::of(now));
    }

    /// Returns the retired nodes of the object of a node, other than that node.
    pub fn retired_beside(&self, id: NodeId) -> SmallVec<[NodeId; 1]> {
        let inside = self.inside.lock();
        let node = inside.nodes.get(id).filter(|_| !inside.retired.is_empty());
        let mut beside =
            node.and_then(|node| inside.retired.get(&node.key)).cloned().unwrap_or_default();
        beside.retain(|other| *other != id);
        beside
    }

    /// Returns whether programs have the object of `stat` open by another node than this one.
    pub fn is_open_beside(&self, id: NodeId, stat: &Stat) -> bool {
        let (inside, key) = (self.inside.lock(), Key::of(stat));
        let retired = inside.retired.get(&key).map_or(&[][..], |retired| retired);
        retired
            .iter()
            .copied()
            .chain(inside.nodes.by_key(&key))
            .any(|other| other != id && inside.nodes.get(other).is_some_and(|node| node.opens > 0))
    }

    /// Moves the node of object `old` to its replacement `new`, which is equivalent for callers.
    pub fn replaced(&self, old: &Stat, new: &Stat) {
        let mut inside = self.inside.lock();
        if let Some(id) = inside.nodes.by_key(&Key::of(old)) {
            inside.nodes.take_key(id, Key::of(new));
        }
    }

    /// Returns the type of a node.
    pub fn kind(&self, id: NodeId) -> Inner<Kind> {
        self.inside.lock().nodes.get(id).map(|n| n.kind()).ok_or(Fault::Os(libc::ESTALE))
    }

    /// Returns the name of a node that was used last. Fails with `ENOENT` if it has none any more,
    /// and with `ESTALE` if it has only names that are not remembered, or is not in the table.
    /// After `ESTALE` the kernel repeats the path walk with lookups (`retry_estale` in its
    /// `fs/namei.c`), which restores the name.
    pub fn link(&self, id: NodeId) -> Inner<Link> {
        let inside = self.inside.lock();
        let node = inside.nodes.get(id).ok_or(Fault::Os(libc::ESTALE))?;
        node.links.last().cloned().ok_or(Fault::Os(if node.forgotten {
            libc::ESTALE
        } else {
            libc::ENOENT
        }))
    }

    /// Returns the link of a node with the plain name `name` in `parent`: another of its hard links
    /// may have been used since that was seen. Fails with `ENOENT` if there is none.
    pub fn link_in(&self, id: NodeId, parent: NodeId, name: &[u8]) -> Inner<Link> {
        let inside = self.inside.lock();
        let node = inside.nodes.get(id).ok_or(Fault::Os(libc::ESTALE))?;
        let found =
            node.links.iter().rev().find(|link| link.parent == parent && link.name() == name);
        found.cloned().ok_or(Fault::Os(libc::ENOENT))
    }

    /// Returns the attributes in reply to `set` for the node of a file that no longer exists, taken
    /// from the object that its name leads to now, if known. The kernel takes no size from them. If
    /// nothing is known, they allow everything: an open fails, and the kernel then asks for the
    /// actual attributes.
    pub fn attr_of_lost(&self, id: NodeId, set: &SetAttr, now: Option<&Stat>) -> Attr {
        let time = match (set.mtime, now) {
            (SetTime::At(time), _) => time,
            (_, Some(now)) => now.mtime,
            _ => Timestamp { secs: 0, nanos: 0 },
        };
        let (perm, nlink, uid, gid) =
            now.map_or((0o777, 0, 0, 0), |now| (now.perm, now.nlink, now.uid, now.gid));
        let (rdev, size, blocks) = (0, 0, now.map_or(0, |now| now.blocks));
        let ino = self
            .inside
            .lock()
            .nodes
            .get(id)
            .map_or(id, |node| node.number().unwrap_or(node.key.ino));
        Attr {
            node: id,
            ino,
            kind: Kind::File,
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
        }
    }

    /// Returns the attributes of an object when it lost its last name.
    pub fn last_stat(&self, id: NodeId) -> Option<Stat> {
        self.inside.lock().nodes.get(id).and_then(|n| n.last())
    }

    /// Returns the tag of a directory, if it was determined before.
    pub fn directory(&self, id: NodeId) -> Option<Tag> {
        self.inside.lock().nodes.get(id).and_then(|n| n.directory())
    }

    /// Sets or clears the tag of a directory.
    pub fn set_directory(&self, id: NodeId, directory: Option<Tag>) {
        let inside = &mut *self.inside.lock();
        if let Some(node) = inside.nodes.get_mut(id) {
            inside.moves +=
                u64::from(node.directory().is_some_and(|known| Some(known) != directory));
            node.set_directory(directory);
        }
    }

    /// Returns how often a directory in use has moved.
    pub fn moves(&self) -> u64 {
        self.inside.lock().moves
    }

    /// Returns the value set by [`Nodes::set_place`], unless a directory has moved since.
    pub fn place(&self, id: NodeId) -> Option<[u8; 32]> {
        let inside = self.inside.lock();
        inside
            .nodes
            .get(id)?
            .place()
            .filter(|(moves, _)| *moves == inside.moves)
            .map(|(_, place)| place)
    }

    /// Stores the rollback database's key of a directory, derived from the names above it when the
    /// move count was `moves`.
    pub fn set_place(&self, id: NodeId, moves: u64, place: [u8; 32]) {
        if let Some(node) = self.inside.lock().nodes.get_mut(id) {
            node.set_place(moves, place);
        }
    }

    /// Returns whether `stat` is of the node's object, or of the one that a commit has just
    /// replaced.
    pub fn is(&self, id: NodeId, stat: &Stat) -> bool {
        let (inside, key) = (self.inside.lock(), Key::of(stat));
        inside.nodes.get(id).is_some_and(|n| n.key == key) || inside.replaced.node(&key) == Some(id)
    }

    /// Returns the stored path from the root, components joined by `/`; `None` if a name on the way
    /// is gone, or if the path is too long for a record of the journal.
    pub fn stored_path(&self, id: NodeId) -> Option<Vec<u8>> {
        self.path(id, Link::stored)
    }

    /// Returns the plain path from the root, components joined by `/`; `None` in the same cases as
    /// [`Nodes::stored_path`].
    pub fn plain_path(&self, id: NodeId) -> Option<Vec<u8>> {
        self.path(id, Link::name)
    }

    /// Returns whether [`Nodes::is_too_deep`] holds for the last known name of a node.
    pub fn has_long_path(&self, id: NodeId) -> bool {
        self.link(id).is_ok_and(|link| self.is_too_deep(link.parent, link.stored().len()))
    }

    /// Returns whether an entry of `parent` with a stored name of `len` bytes has a stored path
    /// that is too long for a record of the journal.
    pub fn is_too_deep(&self, mut parent: NodeId, mut len: usize) -> bool {
        let inside = self.inside.lock();
        while parent != ROOT && len <= RECORD_PATH_MAX {
            let Some(link) = inside.nodes.get(parent).and_then(|node| node.links.last()) else {
                return false;
            };
            len += link.stored().len() + 1;
            parent = link.parent;
        }
        len > RECORD_PATH_MAX
    }

    fn path(&self, mut id: NodeId, part: impl Fn(&Link) -> &[u8]) -> Option<Vec<u8>> {
        let inside = self.inside.lock();
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut len = 0;
        while id != ROOT {
            let link = inside.nodes.get(id)?.links.last()?;
            parts.push(part(link));
            id = link.parent;
            len += link.stored().len() + 1;
            if len > RECORD_PATH_MAX {
                return None;
            }
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }

    /// Returns whether `id` is `ancestor` or below it.
    pub fn is_below(&self, mut id: NodeId, ancestor: NodeId) -> bool {
        let inside = self.inside.lock();
        for _ in 0..DEPTH_MAX {
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

    /// Returns the capacity of the table in nodes.
    #[cfg(test)]
    fn room(&self) -> usize {
        self.inside.lock().nodes.room()
    }

    /// Returns the nodes that the kernel knows.
    pub fn looked_up(&self) -> Vec<NodeId> {
        let inside = self.inside.lock();
        inside.nodes.iter().filter(|node| node.lookups > 0).map(|node| node.id).collect()
    }

    /// Returns the number of nodes in the table.
    pub fn len(&self) -> usize {
        self.inside.lock().nodes.len()
    }
}

impl Inside {
    /// Returns the node of an object, also if a commit has just replaced the object.
    fn by_key(&self, key: &Key) -> Option<NodeId> {
        self.nodes.by_key(key).or_else(|| self.replaced.node(key))
    }

    fn forget(&mut self, id: NodeId, count: u64) {
        if let Some(node) = self.nodes.get_mut(id) {
            node.lookups = node.lookups.saturating_sub(count);
            if node.lookups > 0 && node.told_size != ToldSize::Present {
                node.told_size = ToldSize::Crossed;
                if node.opens == 0 {
                    self.retire(id);
                }
            }
        }
        self.collect(id);
    }

    fn retire(&mut self, id: NodeId) {
        self.nodes.leave_key(id);
        if let Some(node) = self.nodes.get_mut(id)
            && !std::mem::replace(&mut node.retired, true)
        {
            node.lingers = false;
            self.retired.entry(node.key).or_default().push(id);
        }
    }

    fn retire_as(&mut self, id: NodeId, key: Key) {
        self.retire(id);
        let Some(node) = self.nodes.get_mut(id) else { return };
        let old = std::mem::replace(&mut node.key, key);
        self.unlist_retired(id, old);
        self.retired.entry(key).or_default().push(id);
    }

    fn unlist_retired(&mut self, id: NodeId, key: Key) {
        if let Entry::Occupied(mut of_object) = self.retired.entry(key) {
            of_object.get_mut().retain(|other| *other != id);
            if of_object.get().is_empty() {
                of_object.remove();
            }
        }
    }

    fn add_link(&mut self, id: NodeId, link: Link) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        if id == ROOT {
            return;
        }
        let was_used = node.directory().is_some();
        if let Some(at) = node.links.iter().position(|l| l.is(link.parent, link.stored())) {
            // The name that was used last is most likely to exist still.
            let last = node.links.len() - 1;
            node.links.swap(at, last);
            if node.links[last].name() != link.name() {
                // The same entry now has another name, which another entry had until now.
                node.links[last] = link;
                self.moves += u64::from(was_used);
            }
            return;
        }
        self.moves += u64::from(was_used);
        let mut gone = None;
        if node.kind() == Kind::Dir && !node.links.is_empty() {
            // It was renamed by another program: its tag follows from the new name.
            gone = node.links.pop();
            node.set_directory(None);
        } else if node.links.len() >= LINKS_MAX {
            gone = Some(node.links.remove(0));
            node.forgotten = true;
        }
        let parent = link.parent;
        node.links.push(link);
        node.set_last(None);
        if let Some(parent) = self.nodes.get_mut(parent) {
            parent.children += 1;
        }
        if let Some(gone) = gone {
            self.release_parent(gone.parent);
        }
    }

    fn remove_link(&mut self, stat: &Stat, parent: NodeId, stored: &[u8]) -> Option<NodeId> {
        self.retired_follow(stat, parent, stored, None);
        let id = self.by_key(&Key::of(stat))?;
        self.remove_link_of(id, stat, parent, stored);
        Some(id)
    }

    /// Renames or removes a name in the retired nodes of an object, which the kernel may still use.
    fn retired_follow(&mut self, stat: &Stat, parent: NodeId, stored: &[u8], to: Option<&Link>) {
        let Some(retired) = self.retired.get(&Key::of(stat)).cloned() else { return };
        for id in retired {
            if self
                .nodes
                .get(id)
                .is_some_and(|node| node.links.iter().any(|link| link.is(parent, stored)))
            {
                to.into_iter().for_each(|to| self.add_link(id, to.clone()));
                self.remove_link_of(id, stat, parent, stored);
            }
        }
    }

    fn remove_link_of(&mut self, id: NodeId, stat: &Stat, parent: NodeId, stored: &[u8]) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        // Whether it was the last name of all, remembered or not.
        node.forgotten &= stat.nlink > 1;
        if !node.links.iter().any(|l| l.is(parent, stored)) {
            return;
        }
        node.links.retain(|l| !l.is(parent, stored));
        if node.links.is_empty() && !node.forgotten {
            let nlink = if node.kind() == Kind::Dir { 0 } else { stat.nlink.saturating_sub(1) };
            node.set_last(Some(Stat { nlink, ..*stat }));
        }
        if node.links.is_empty() {
            node.lingers = false;
        }
        if node.links.is_empty() && node.opens == 0 && !node.forgotten {
            // The store may reuse the inode number now; an open node still holds it.
            self.nodes.leave_key(id);
        }
        self.release_parent(parent);
        self.collect(id);
    }

    fn release_parent(&mut self, parent: NodeId) {
        if let Some(node) = self.nodes.get_mut(parent) {
            node.children = node.children.saturating_sub(1);
        }
        self.collect(parent);
    }

    /// Drops the node, and its ancestors kept by it alone, if nothing references it.
    fn collect(&mut self, mut id: NodeId) {
        while id != ROOT {
            let Some(node) = self.nodes.get(id) else { return };
            if node.lookups > 0 || node.children > 0 || node.opens > 0 || node.lingers {
                return;
            }
            let node = self.nodes.remove(id).expect("found above");
            self.replaced.forget(id, node.key.ino, node.number());
            if node.retired {
                self.unlist_retired(id, node.key);
            }
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

    fn stat(ino: u64, kind: Kind) -> Stat {
        let time = Timestamp { secs: 0, nanos: 0 };
        let (dev, perm, nlink, uid, gid, rdev, size, blocks) = (1, 0o644, 1, 0, 0, 0, 0, 0);
        Stat {
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
        }
    }

    #[test]
    fn a_table_gives_its_room_back_when_the_kernel_forgets() {
        // After the listing of a directory of a million entries the daemon kept half a gigabyte for
        // dropped nodes.
        let nodes = Nodes::new(&stat(1, Kind::Dir), [0; 8]);
        let name = |n: u64| {
            let text = n.to_string();
            Link::new(ROOT, text.as_bytes(), text.as_bytes())
        };
        let ids: Vec<NodeId> =
            (2..100_000).map(|n| nodes.seen(&stat(n, Kind::File), name(n))).collect();
        assert!(nodes.room() >= ids.len());
        ids.iter().for_each(|id| nodes.forget(*id, 1));
        assert_eq!(nodes.len(), 1);
        assert!(nodes.room() <= ROOM_MIN, "{}", nodes.room());
        let again = nodes.seen(&stat(7, Kind::File), name(7));
        assert_eq!((nodes.len(), nodes.find(&stat(7, Kind::File))), (2, Some(again)));
    }

    /// The storage host had moved a directory into the one that was in it. The walk from a file in
    /// them to the root went round for ever, and took more and more memory.
    #[test]
    fn directories_that_are_in_one_another_end_a_walk() {
        let nodes = Nodes::new(&stat(1, Kind::Dir), [0; 8]);
        let born =
            |ino, kind| Stat { btime: Some(Timestamp { secs: 1, nanos: 0 }), ..stat(ino, kind) };
        let outer = nodes.seen(&born(2, Kind::Dir), Link::new(ROOT, b"outer", b"outer"));
        let inner = nodes.seen(&born(3, Kind::Dir), Link::new(outer, b"inner", b"inner"));
        let file = nodes.seen(&born(4, Kind::File), Link::new(inner, b"file", b"file"));
        assert_eq!(nodes.seen(&born(2, Kind::Dir), Link::new(inner, b"outer", b"outer")), outer);
        nodes.forget(outer, 2);
        nodes.forget(inner, 1);
        let lingering = nodes.forget_and_linger(file, 1);
        assert_eq!(lingering[..3], [(file, 1), (inner, 1), (outer, 1)]);
    }

    /// Only the first 4,096 directories on the way up counted: a directory could be moved into
    /// itself below them, and what was below a directory that had another object in its place was
    /// not known to be.
    #[test]
    fn a_place_in_a_deep_tree_is_known() {
        let nodes = Nodes::new(&stat(1, Kind::Dir), [0; 8]);
        let mut path = vec![ROOT];
        for n in 2..5000 {
            let link = Link::new(path[path.len() - 1], b"d", b"d");
            path.push(nodes.seen(&stat(n, Kind::Dir), link));
        }
        let (first, deepest) = (path[1], path[path.len() - 1]);
        assert!(nodes.is_below(deepest, first) && !nodes.is_moved_away(deepest));
        nodes.forget_links(first);
        assert!(nodes.is_moved_away(deepest));
    }
}
