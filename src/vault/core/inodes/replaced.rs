//! Files that a commit has replaced by new ones: see [`crate::vault::open_files`].
//!
//! Rules that hold here
//! * A program that has a file open compares inode numbers: SQLite refuses to write to a database
//!   whose number has changed. So a node shows the number that it had first. The store may give
//!   that number to another file, which then shows a made-up one.
//! * An operation may have looked at a file just before it was replaced. It still finds the node by
//!   the old object. That needs objects with a birth time, since the store may reuse a number at
//!   once. Birth times are as coarse as a tick of the kernel's clock, so an object that is seen
//!   under another name is another one.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::Ordering;

use super::node::{Key, Link, Node};
use super::{Inside, Nodes};
use crate::store::Stat;
use crate::vault::types::NodeId;

/// Number of replaced objects that are remembered: an operation needs one for as long as it takes
/// from its look at the store to its look at the table.
const RECENT: usize = 256;

/// Marks the numbers that no store gives to a file.
const MADE_UP: u64 = 1 << 63;

#[derive(Default)]
pub(super) struct Replaced {
    recent: VecDeque<(Key, NodeId)>,
    /// Nodes that show another number than that of their object, by this number.
    numbers: HashMap<u64, NodeId>,
    /// The numbers that they show, by those of their objects.
    shown: HashMap<u64, u64>,
}

impl Replaced {
    /// Returns the node of an object that was replaced a short time ago.
    pub fn node(&self, key: &Key) -> Option<NodeId> {
        self.recent.iter().rev().find(|(replaced, _)| replaced == key).map(|(_, id)| *id)
    }

    fn note(&mut self, key: Key, id: NodeId) {
        self.recent.retain(|(replaced, _)| *replaced != key);
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((key, id));
    }

    fn show(&mut self, id: NodeId, ino: u64, number: Option<u64>) {
        if let Some(number) = number {
            self.numbers.insert(number, id);
            self.shown.insert(ino, number);
        }
    }

    fn hide(&mut self, id: NodeId, ino: u64, number: Option<u64>) {
        if let Some(number) = number
            && self.numbers.get(&number) == Some(&id)
        {
            self.numbers.remove(&number);
            self.shown.remove(&ino);
        }
    }

    /// Forgets a node that is removed from the table, with the object `ino`, and the number that it
    /// has shown.
    pub fn forget(&mut self, id: NodeId, ino: u64, number: Option<u64>) {
        if !self.recent.is_empty() {
            self.recent.retain(|(_, of)| *of != id);
        }
        self.hide(id, ino, number);
    }
}

impl Inside {
    /// Gives a new node another number to show if a node shows that of its object.
    pub(super) fn give_number(&mut self, id: NodeId, ino: u64) {
        if self.replaced.numbers.contains_key(&ino)
            && let Some(node) = self.nodes.get_mut(id)
        {
            let number = Some(MADE_UP | ino.rotate_left(32) ^ id);
            node.set_number(number);
            self.replaced.show(id, ino, number);
        }
    }

    /// Returns the node that has the name `link`, if its object was this one a short time ago.
    pub(super) fn just_replaced(&mut self, key: &Key, link: &Link) -> Option<NodeId> {
        let id = self.replaced.node(key)?;
        let has_name = |node: &Node| node.links.iter().any(|it| it.is(link.parent, link.stored()));
        if self.nodes.get(id).is_some_and(has_name) {
            return Some(id);
        }
        self.replaced.recent.retain(|(replaced, _)| replaced != key);
        None
    }

    fn replace(&mut self, id: NodeId, key: Key) {
        let Some(node) = self.nodes.get_mut(id) else { return };
        let old = node.key;
        let number = node.number().unwrap_or(old.ino);
        let (before, shown) = (node.number(), (number != key.ino).then_some(number));
        node.set_number(shown);
        self.replaced.hide(id, old.ino, before);
        self.replaced.show(id, key.ino, shown);
        self.nodes.take_key(id, key);
        self.replaced.note(old, id);
    }
}

impl Nodes {
    /// Returns whether [`Nodes::replace`] can keep track of the object `stat` of a node: the node
    /// must be the only one of that object.
    pub fn may_replace(&self, id: NodeId, stat: &Stat) -> bool {
        let (inside, key) = (self.inside.lock(), Key::of(stat));
        key.is_unique()
            && inside.nodes.by_key(&key) == Some(id)
            && !inside.retired.contains_key(&key)
            && inside.nodes.get(id).is_some_and(|node| !node.retired && node.links.len() == 1)
    }

    /// Runs `exchange`, which puts the object `now` in place of the object of a node. The table is
    /// locked meanwhile, so a lookup that finds the new object finds this node.
    pub fn replace<T>(
        &self,
        id: NodeId,
        now: &Stat,
        exchange: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut inside = self.inside.lock();
        self.any_replaced.store(true, Ordering::Release);
        let done = exchange()?;
        inside.replace(id, Key::of(now));
        Ok(done)
    }

    /// Returns the inode number that a listing shows for an object with this number.
    pub fn listed_number(&self, ino: u64) -> u64 {
        if !self.any_replaced.load(Ordering::Acquire) {
            return ino;
        }
        self.inside.lock().replaced.shown.get(&ino).copied().unwrap_or(ino)
    }

    /// Returns the inode number that programs see of a node, of which the store has `stat`.
    pub fn number(&self, id: NodeId, stat: &Stat) -> u64 {
        if !self.any_replaced.load(Ordering::Acquire) {
            return stat.ino;
        }
        self.inside.lock().nodes.get(id).and_then(|node| node.number()).unwrap_or(stat.ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Kind, Timestamp};
    use crate::vault::types::ROOT;

    fn stat(ino: u64, born: i64, kind: Kind) -> Stat {
        let time = Timestamp { secs: born, nanos: 0 };
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
            btime: Some(time),
        }
    }

    fn link(name: &str) -> Link {
        Link::new(ROOT, name.as_bytes(), name.as_bytes())
    }

    #[test]
    fn a_replaced_file_keeps_its_number_to_itself() {
        let nodes = Nodes::new(&stat(1, 0, Kind::Dir), [0; 8]);
        let (old, new) = (stat(5, 1, Kind::File), stat(6, 2, Kind::File));
        let file = nodes.seen(&old, link("file"));
        assert!(nodes.may_replace(file, &old));
        nodes.replace(file, &new, || Ok(())).unwrap();
        assert_eq!((nodes.number(file, &new), nodes.listed_number(6)), (5, 5));
        assert_eq!(nodes.find(&new), Some(file));
        assert_eq!(nodes.find(&old), Some(file), "an operation may have looked before");
        assert!(nodes.is(file, &old) && nodes.is(file, &new));
        // The store gives the old number to another file.
        let other = stat(5, 3, Kind::File);
        let node = nodes.seen(&other, link("other"));
        assert_ne!(node, file);
        assert!(nodes.number(node, &other) >= MADE_UP);
        assert_eq!(nodes.number(node, &other), nodes.listed_number(5));
        nodes.forget(node, 1);
        // And the first number back to the file.
        nodes.replace(file, &stat(5, 4, Kind::File), || Ok(())).unwrap();
        assert_eq!(nodes.number(file, &stat(5, 4, Kind::File)), 5);
        nodes.forget(file, 1);
        let last = nodes.seen(&stat(5, 5, Kind::File), link("last"));
        assert_eq!(nodes.number(last, &stat(5, 5, Kind::File)), 5);
    }

    #[test]
    fn an_object_with_another_name_is_another_one() {
        // The store gives a number to another file within the tick of the first one's birth.
        let nodes = Nodes::new(&stat(1, 0, Kind::Dir), [0; 8]);
        let (old, new) = (stat(5, 1, Kind::File), stat(6, 2, Kind::File));
        let file = nodes.seen(&old, link("file"));
        nodes.replace(file, &new, || Ok(())).unwrap();
        assert_eq!(nodes.seen(&old, link("file")), file);
        assert_ne!(nodes.seen(&old, link("other")), file);
        assert!(!nodes.is(file, &old));
    }

    #[test]
    fn a_failed_exchange_changes_nothing() {
        let nodes = Nodes::new(&stat(1, 0, Kind::Dir), [0; 8]);
        let (old, new) = (stat(5, 1, Kind::File), stat(6, 2, Kind::File));
        let file = nodes.seen(&old, link("file"));
        let error = || Err::<(), _>(io::Error::from_raw_os_error(libc::EINVAL));
        assert!(nodes.replace(file, &new, error).is_err());
        assert_eq!((nodes.find(&old), nodes.find(&new)), (Some(file), None));
    }
}
