//! What listings of directories leave with the kernel: nodes, and the listing itself.
//!
//! Rules that hold here
//! * A listing hands out nodes for the first [`NODES_PER_LISTING`] entries of a directory handle; of larger directories the rest is
//!   looked up when it is asked for, so that listing a million files does not keep a million nodes.
//! * The kernel keeps a listing (`FOPEN_CACHE_DIR`) for one handle of a directory at a time. Each stream of a kept listing resumes at
//!   the position of an entry; after a second stream has filled the cache anew, an entry that the first had read and removed would be
//!   searched for in vain, and the rest of the directory would be missing.
//! * A kept listing is given again (`FOPEN_KEEP_CACHE`) only while the directory of the store is as it was: others, such as a sync
//!   tool, may bring files into it. Its times say so, unless it changed so shortly before that a later change may bear the same time.
//!   Changes by way of the mount need none of this: the kernel drops what it keeps by itself.

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
    open: HashMap<Handle, Stream>,
    kept: HashMap<NodeId, State>,
}

#[derive(Debug)]
struct Stream {
    node: NodeId,
    /// Nodes that were handed out.
    nodes: u32,
    /// The kernel was told that it may keep this listing.
    keeps: bool,
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
        let alone = !self.open.values().any(|stream| stream.keeps && stream.node == node);
        let keep = state.is_some() && self.kept.get(&node) == state.as_ref();
        let fill = state.is_some() && alone;
        match state {
            Some(state) if fill => {
                if self.kept.len() >= REMEMBERED {
                    self.kept.clear();
                }
                self.kept.insert(node, state);
            }
            _ if !keep => drop(self.kept.remove(&node)),
            _ => {}
        }
        self.open.insert(handle, Stream { node, nodes: 0, keeps: fill });
        DirCache { keep, fill }
    }

    /// Whether a further entry of this handle gets a node; counts it.
    pub fn hand_out(&mut self, handle: Handle) -> bool {
        let Some(stream) = self.open.get_mut(&handle) else { return false };
        if stream.nodes >= NODES_PER_LISTING {
            return false;
        }
        stream.nodes += 1;
        true
    }

    /// The handle was closed.
    pub fn closed(&mut self, handle: Handle) {
        self.open.remove(&handle);
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
        for (handle, ctime, keep) in [(1, 10, false), (2, 10, true), (3, 11, false), (4, 11, true), (5, 10, false)] {
            assert_eq!(open(&mut listed, handle, ctime), DirCache { keep, fill: true }, "{handle}");
            listed.closed(handle);
        }
    }

    #[test]
    fn a_directory_that_has_just_changed_may_change_within_the_same_tick() {
        let mut listed = Listed::default();
        for (handle, age) in [(1, 0), (2, 0), (3, 2), (4, -100)] {
            assert_eq!(open(&mut listed, handle, NOW - age), DirCache::default(), "{age}");
            listed.closed(handle);
        }
        assert_eq!(open(&mut listed, 5, NOW - 3), DirCache { keep: false, fill: true });
    }

    #[test]
    fn one_stream_at_a_time_uses_what_is_kept() {
        let mut listed = Listed::default();
        assert!(open(&mut listed, 1, 10).fill);
        assert_eq!(open(&mut listed, 2, 10), DirCache { keep: true, fill: false }, "the first's stream stays as it is");
        assert_eq!(open(&mut listed, 3, 11), DirCache::default(), "the directory changed: nobody reads what the first has kept");
        listed.closed(1);
        assert!(open(&mut listed, 4, 11).fill);
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
