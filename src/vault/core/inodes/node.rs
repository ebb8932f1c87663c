//! The data of one node, as compact as possible: the kernel may hold a million of them.
//!
//! Rules that hold here
//! * A node with one name of usual length is one piece of memory, without another heap allocation.
//! * Fields that few nodes have (the tag of a directory, the last attributes of an object) are
//!   allocated separately.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::crypto::Tag;
use crate::store::{Kind, Stat};
use crate::vault::file::cached::Cached;
use crate::vault::types::NodeId;

/// Identity of an object of the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    dev: u64,
    pub ino: u64,
    /// Birth time; 0 and [`NO_BIRTH`] if the store has none.
    born_secs: i64,
    born_nanos: u32,
    pub kind: Kind,
}

/// No time has this many nanoseconds.
const NO_BIRTH: u32 = u32::MAX;

impl Key {
    /// Returns whether no later object with the same inode number can have this key.
    pub fn is_unique(&self) -> bool {
        self.born_nanos != NO_BIRTH
    }

    pub fn of(stat: &Stat) -> Self {
        let (born_secs, born_nanos) =
            stat.btime.map_or((0, NO_BIRTH), |time| (time.secs, time.nanos));
        Key { dev: stat.dev, ino: stat.ino, born_secs, born_nanos, kind: stat.kind }
    }
}

/// Length in bytes that stored and plain name together rarely exceed.
const USUAL: usize = 48;

/// A name under which a node was seen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub parent: NodeId,
    /// The stored name, followed by the plain name.
    text: SmallVec<[u8; USUAL]>,
    stored_len: u16,
}

impl Clone for Link {
    /// Requests copy names several times each. The derived implementation would copy byte by byte.
    fn clone(&self) -> Self {
        Link { text: SmallVec::from_slice(&self.text), ..*self }
    }
}

impl Link {
    pub fn new(parent: NodeId, stored: &[u8], name: &[u8]) -> Self {
        let stored_len = u16::try_from(stored.len()).expect("no store has names this long");
        let mut text = SmallVec::with_capacity(stored.len() + name.len());
        text.extend_from_slice(stored);
        text.extend_from_slice(name);
        Link { parent, text, stored_len }
    }

    pub fn stored(&self) -> &[u8] {
        &self.text[..self.stored_len as usize]
    }

    pub fn name(&self) -> &[u8] {
        &self.text[self.stored_len as usize..]
    }

    /// Returns whether it is the entry `stored` of `parent`.
    pub fn is(&self, parent: NodeId, stored: &[u8]) -> bool {
        self.parent == parent && self.stored() == stored
    }
}

/// Fields that few nodes have.
#[derive(Default)]
pub(super) struct Rare {
    /// Tag of a directory.
    pub directory: Option<Tag>,
    /// The rollback database's key of a directory, and the move count when it was derived.
    pub place: Option<(u64, [u8; 32])>,
    /// Attributes of the object when its last name was removed, with the link count reduced. They
    /// answer requests about an object that a program still holds without a file being open here: a
    /// directory, a FIFO, an `O_PATH` descriptor.
    pub last: Option<Stat>,
    /// The inode number that programs see, if it is not that of the object.
    pub number: Option<u64>,
}

/// Whether replies to the kernel may contain a size that the file no longer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToldSize {
    /// All contain the present size.
    Present,
    /// Some contain an earlier size, which the kernel's inode no longer has.
    Earlier,
    /// The same, and the kernel has dropped its inode while replies were in flight: it may have
    /// made the next one from an earlier size.
    Crossed,
}

/// The data of one node.
pub(super) struct Node {
    pub id: NodeId,
    pub key: Key,
    pub links: SmallVec<[Link; 1]>,
    /// It has, or had, a name that is not remembered.
    pub forgotten: bool,
    pub lookups: u64,
    pub children: u32,
    pub opens: u32,
    pub cached: Cached,
    /// No open through this node succeeds any more: the store has another state than the kernel's
    /// cache.
    pub retired: bool,
    /// The modification time that the kernel caches, in seconds, cut to 32 bits (0 counts as
    /// unknown). Set if a program has written past the page cache: the kernel does not update its
    /// own time for such writes.
    pub told_second: Option<NonZeroU32>,
    pub told_size: ToldSize,
    /// It stays although nothing holds it, see
    /// [`Nodes::forget_and_linger`](super::Nodes::forget_and_linger).
    pub lingers: bool,
    rare: Option<Box<Rare>>,
}

impl Node {
    /// Returns a node without lookups.
    pub fn new(id: NodeId, key: Key) -> Self {
        Node {
            id,
            key,
            links: SmallVec::new(),
            forgotten: false,
            lookups: 0,
            children: 0,
            opens: 0,
            cached: Cached::NOTHING,
            retired: false,
            told_second: None,
            told_size: ToldSize::Present,
            lingers: false,
            rare: None,
        }
    }

    pub fn kind(&self) -> Kind {
        self.key.kind
    }

    /// Clears what the kernel caches: it holds no inode of this node.
    pub fn clear_cached(&mut self) {
        (self.cached, self.told_second) = (Cached::NOTHING, None);
        self.told_size = ToldSize::Present;
    }

    pub fn directory(&self) -> Option<Tag> {
        self.rare.as_ref().and_then(|rare| rare.directory)
    }

    pub fn place(&self) -> Option<(u64, [u8; 32])> {
        self.rare.as_ref().and_then(|rare| rare.place)
    }

    pub fn last(&self) -> Option<Stat> {
        self.rare.as_ref().and_then(|rare| rare.last)
    }

    pub fn number(&self) -> Option<u64> {
        self.rare.as_ref().and_then(|rare| rare.number)
    }

    pub fn set_number(&mut self, number: Option<u64>) {
        self.set_rare(number.is_some(), |rare| rare.number = number);
    }

    pub fn set_directory(&mut self, directory: Option<Tag>) {
        self.set_rare(directory.is_some(), |rare| (rare.directory, rare.place) = (directory, None));
    }

    pub fn set_place(&mut self, moves: u64, place: [u8; 32]) {
        self.set_rare(true, |rare| rare.place = Some((moves, place)));
    }

    pub fn set_last(&mut self, last: Option<Stat>) {
        self.set_rare(last.is_some(), |rare| rare.last = last);
    }

    fn set_rare(&mut self, needed: bool, set: impl FnOnce(&mut Rare)) {
        if needed || self.rare.is_some() {
            set(self.rare.get_or_insert_default());
        }
        if self.rare.as_ref().is_some_and(|rare| {
            rare.directory.is_none()
                && rare.place.is_none()
                && rare.last.is_none()
                && rare.number.is_none()
        }) {
            self.rare = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_small() {
        // Each was 530 bytes, tables included; listing a directory of a million entries took half a
        // gigabyte.
        assert!(size_of::<Node>() <= 168, "{}", size_of::<Node>());
    }

    #[test]
    fn a_name_comes_back_as_it_was_given() {
        for (stored, name) in [
            ("stored", "name"),
            ("a stored name that is longer than others", "and so is the plain one"),
            ("", "name"),
            ("stored", ""),
            ("", ""),
        ] {
            let link = Link::new(7, stored.as_bytes(), name.as_bytes());
            assert_eq!((link.stored(), link.name()), (stored.as_bytes(), name.as_bytes()));
            assert!(
                link.is(7, stored.as_bytes())
                    && !link.is(8, stored.as_bytes())
                    && !link.is(7, b"another")
            );
        }
    }

    #[test]
    fn what_few_nodes_have_takes_no_room_in_the_others() {
        let time = crate::store::Timestamp { secs: 0, nanos: 0 };
        let (dev, ino, kind, perm, nlink, uid, gid, rdev, size, blocks) =
            (1, 2, Kind::Dir, 0o755, 2, 0, 0, 0, 0, 0);
        let stat = Stat {
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
        };
        let mut node = Node::new(9, Key::of(&stat));
        node.set_last(None);
        node.set_directory(None);
        assert!(node.rare.is_none());
        node.set_directory(Some([1; 8]));
        node.set_last(Some(stat));
        assert_eq!((node.directory(), node.last()), (Some([1; 8]), Some(stat)));
        node.set_directory(None);
        assert_eq!((node.directory(), node.last()), (None, Some(stat)));
        node.set_last(None);
        assert!(node.rare.is_none());
    }
}
