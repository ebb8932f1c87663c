//! What listings of directories leave with the kernel: nodes, and the listing itself.
//!
//! Rules that hold here
//! * A listing hands out nodes for the first [`NODES_PER_LISTING`] entries of a directory handle; of larger directories the rest is
//!   looked up when it is asked for, so that listing a million files does not keep a million nodes.
//! * The kernel may keep a listing (`FOPEN_CACHE_DIR`), and shows it again (`FOPEN_KEEP_CACHE`) only while the directory of the store is
//!   as it was: others, such as a sync tool, may bring files into it. Its times say so, unless it changed so shortly before that a later
//!   change may bear the same time. Times do not say that names which were there have become readable. Changes by way of the mount need none of this: the kernel drops what it keeps by itself. A stream
//!   whose position is not in what is kept goes on with us (`fuse_readdir_cached`).

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::ops::{Attr, DirCache, NodeId};
use crate::backing::Timestamp;
use crate::vault::Handle;

/// Entries of one directory handle for which a listing hands out nodes.
pub const NODES_PER_LISTING: u32 = 10_000;

/// Directories whose state is remembered. Beyond that all are forgotten, which costs a listing by the daemon each.
const REMEMBERED: usize = 4096;

/// A change of a directory that is at least so old has a time of its own, on every store whose clock ticks at least once a second;
/// FAT, which does not, has two seconds.
const SETTLED: Duration = Duration::from_secs(3);

/// The open directories and the listings that the kernel may keep.
#[derive(Debug, Default)]
pub struct Listed {
    /// Nodes that each handle has handed out.
    nodes: HashMap<Handle, u32>,
    /// Directories whose listing the kernel may keep, as they were when it was told so.
    kept: HashMap<NodeId, State>,
}

/// What of a directory changes with its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    ino: u64,
    mtime: Timestamp,
    ctime: Timestamp,
}

impl Listed {
    /// A directory was opened; `attr` is its state before anything of it was listed, if it is known. What the kernel may do with its
    /// listing.
    pub fn opened(&mut self, node: NodeId, handle: Handle, attr: Option<&Attr>, now: SystemTime) -> DirCache {
        let settled = attr.filter(|attr| settled(attr.ctime, now) && settled(attr.mtime, now));
        let state = settled.map(|attr| State { ino: attr.ino, mtime: attr.mtime, ctime: attr.ctime });
        self.nodes.insert(handle, 0);
        let before = self.kept.remove(&node);
        let Some(state) = state else { return DirCache::No };
        if self.kept.len() >= REMEMBERED {
            self.kept.clear();
        }
        self.kept.insert(node, state);
        if before == Some(state) { DirCache::Keep } else { DirCache::Fill }
    }

    /// Whether a further entry of this handle gets a node; counts it.
    pub fn hand_out(&mut self, handle: Handle) -> bool {
        let Some(nodes) = self.nodes.get_mut(&handle) else { return false };
        let more = *nodes < NODES_PER_LISTING;
        *nodes += u32::from(more);
        more
    }

    /// The handle was closed.
    pub fn closed(&mut self, handle: Handle) {
        self.nodes.remove(&handle);
    }
}

/// Whether a change at `time` is so old that a later one has another time.
fn settled(time: Timestamp, now: SystemTime) -> bool {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
    time.secs.saturating_add(SETTLED.as_secs() as i64) <= now
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::Kind;

    const NOW: i64 = 1_000_000;

    fn attr(ctime: i64) -> Attr {
        let at = |secs| Timestamp { secs, nanos: 0 };
        let (atime, mtime, ctime) = (at(0), at(ctime), at(ctime));
        let (perm, nlink, uid, gid, rdev, size, blocks) = (0o755, 2, 0, 0, 0, 0, 0);
        Attr { node: 1, ino: 1, kind: Kind::Dir, perm, nlink, uid, gid, rdev, size, blocks, atime, mtime, ctime }
    }

    fn open(listed: &mut Listed, handle: Handle, ctime: i64) -> DirCache {
        listed.opened(1, handle, Some(&attr(ctime)), UNIX_EPOCH + Duration::from_secs(NOW as u64))
    }

    #[test]
    fn a_listing_is_given_again_only_while_the_directory_is_as_it_was() {
        let mut listed = Listed::default();
        use DirCache::{Fill, Keep};
        for (handle, ctime, expected) in [(1, 10, Fill), (2, 10, Keep), (3, 11, Fill), (4, 11, Keep), (5, 10, Fill)] {
            assert_eq!(open(&mut listed, handle, ctime), expected, "{handle}");
        }
    }

    #[test]
    fn a_directory_that_has_just_changed_may_change_within_the_same_tick() {
        let mut listed = Listed::default();
        for (handle, age) in [(1, 0), (2, 0), (3, 2), (4, -100)] {
            assert_eq!(open(&mut listed, handle, NOW - age), DirCache::No, "{age}");
        }
        assert_eq!(open(&mut listed, 5, NOW - 3), DirCache::Fill);
        assert_eq!(open(&mut listed, 6, NOW), DirCache::No);
        assert_eq!(open(&mut listed, 7, NOW - 3), DirCache::Fill, "what was kept before is not known to be so still");
    }

    #[test]
    fn nodes_are_handed_out_up_to_the_limit_and_never_for_a_closed_handle() {
        let mut listed = Listed::default();
        open(&mut listed, 1, 10);
        assert_eq!((0..NODES_PER_LISTING + 5).filter(|_| listed.hand_out(1)).count() as u32, NODES_PER_LISTING);
        listed.closed(1);
        assert!(!listed.hand_out(1));
    }
}
