//! What the kernel keeps of directory listings: nodes, and the listings themselves.
//!
//! Rules that hold here
//! * A listing returns nodes for the first [`NODES_PER_LISTING`] entries of a directory handle.
//!   Further entries are looked up on demand, so that listing a million files does not keep a
//!   million nodes.
//! * The kernel may cache a listing (`FOPEN_CACHE_DIR`), and uses it again (`FOPEN_KEEP_CACHE`)
//!   only while the directory of the store is unchanged: other programs, such as a sync tool, may
//!   create files in it. A change shows in the directory's times, unless a second change follows so
//!   soon that it has the same times. So a listing is cached only once the directory has had its
//!   times for a while by this machine's clock; the store's clock may differ. If the store uses
//!   this machine's clock, old times are enough.
//! * Existing names can become readable without a change of any time: when the key of a new epoch,
//!   or rename evidence, arrives after them. So the keys and tags for decoding count as well.
//! * The name of an entry may also depend on the contents of a file beside it (for a long name),
//!   which none of these cover. So no listing of a directory with an unreadable name is cached
//!   until the directory changes.
//! * Changes through the mount need none of this: the kernel drops its cached listing by itself. A
//!   directory stream whose position is not in the cached listing continues with the daemon
//!   (`fuse_readdir_cached`).

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::fuse::ops::{Attr, DirCache, NodeId};
use crate::store::Timestamp;
use crate::vault::{Handle, NamesReadWith};

/// Number of entries of one directory handle for which a listing returns nodes.
pub const NODES_PER_LISTING: u32 = 10_000;

/// Maximum number of directories whose state is remembered. Beyond it all are forgotten, which
/// costs each two listings by the daemon.
const REMEMBERED: usize = 4096;

/// How long a directory must have been unchanged so that its next change gets different times. This
/// suffices for every store whose clock ticks at least once a second; FAT ticks every two seconds.
const SETTLED: Duration = Duration::from_secs(3);

/// The open directories and the listings that the kernel may keep.
#[derive(Debug, Default)]
pub struct Listed {
    /// The directory of each handle, and how many nodes it has handed out.
    handles: HashMap<Handle, (NodeId, u32)>,
    /// The state of directories at their last open.
    seen: HashMap<NodeId, Seen>,
}

/// The part of a directory's state that determines its listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    ino: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    with: NamesReadWith,
}

/// The state of a directory before its listing.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// Its state.
    pub attr: &'a Attr,
    /// The state of keys and tags with which its names are decoded.
    pub with: NamesReadWith,
    /// Its times are old ([`is_old`]) by the clock that set them.
    pub is_old: bool,
}

/// Returns whether a change of a directory after `now` gets other times than its present ones.
/// `now` was read before the directory's attributes, and both are by one clock.
pub fn is_old(attr: &Attr, now: SystemTime) -> bool {
    let Ok(now) = now.duration_since(UNIX_EPOCH) else { return false };
    let passed = |at: Timestamp| {
        let at = Duration::new(u64::try_from(at.secs).unwrap_or(0), at.nanos);
        now.checked_sub(at).is_some_and(|passed| passed >= SETTLED)
    };
    passed(attr.mtime) && passed(attr.ctime)
}

#[derive(Debug)]
struct Seen {
    state: State,
    /// When this state was first seen.
    since: Instant,
    /// The kernel may have a listing that was read after the state had settled.
    kept: bool,
    /// A listing contained an entry whose name cannot be read.
    unread: bool,
}

impl Listed {
    /// Records that a directory was opened, and returns how the kernel may cache its listing.
    pub fn opened(
        &mut self,
        node: NodeId,
        handle: Handle,
        look: Option<Look>,
        now: Instant,
    ) -> DirCache {
        self.handles.insert(handle, (node, 0));
        let Some(Look { attr, with, is_old }) = look else {
            self.seen.remove(&node);
            return DirCache::No;
        };
        let state = State { ino: attr.ino, mtime: attr.mtime, ctime: attr.ctime, with };
        match self.seen.get_mut(&node) {
            Some(seen) if seen.state == state => {
                let before = seen.kept;
                let settled = is_old || now.saturating_duration_since(seen.since) >= SETTLED;
                seen.kept |= settled && !seen.unread;
                match (before, seen.kept) {
                    (true, _) => DirCache::Keep,
                    (false, true) => DirCache::Fill,
                    (false, false) => DirCache::No,
                }
            }
            _ => {
                if self.seen.len() >= REMEMBERED {
                    self.seen.clear();
                }
                self.seen.insert(node, Seen { state, since: now, kept: is_old, unread: false });
                if is_old { DirCache::Fill } else { DirCache::No }
            }
        }
    }

    /// Counts an entry of this handle and returns whether it gets a node.
    pub fn hand_out(&mut self, handle: Handle) -> bool {
        let Some((_, nodes)) = self.handles.get_mut(&handle) else { return false };
        let more = *nodes < NODES_PER_LISTING;
        *nodes += u32::from(more);
        more
    }

    /// Records that a listing by this handle contained an entry whose name cannot be read: the
    /// kernel's cached listing is dropped at the next open of the directory.
    pub fn unread(&mut self, handle: Handle) {
        if let Some(seen) = self.handles.get(&handle).and_then(|(node, _)| self.seen.get_mut(node))
        {
            (seen.kept, seen.unread) = (false, true);
        }
    }

    /// Records that the handle was closed.
    pub fn closed(&mut self, handle: Handle) {
        self.handles.remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Kind;

    fn attr(ctime: i64) -> Attr {
        let at = |secs| Timestamp { secs, nanos: 0 };
        let (atime, mtime, ctime) = (at(0), at(ctime), at(ctime));
        let (perm, nlink, uid, gid, rdev, size, blocks) = (0o755, 2, 0, 0, 0, 0, 0);
        Attr {
            node: 1,
            ino: 1,
            kind: Kind::Dir,
            perm,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks,
            atime,
            mtime,
            ctime,
        }
    }

    /// Opens a directory that was changed at `ctime` by the store's clock, with the keys number
    /// `keys`, `now` seconds after the beginning.
    fn open(listed: &mut Listed, begun: Instant, ctime: i64, keys: u64, now: u64) -> DirCache {
        let with = NamesReadWith { generation: keys, tags: [7; 32] };
        listed.opened(
            1,
            now,
            Some(Look { attr: &attr(ctime), with, is_old: false }),
            begun + Duration::from_secs(now),
        )
    }

    #[test]
    fn a_listing_is_reused_only_while_the_directory_is_unchanged() {
        let (mut listed, begun) = (Listed::default(), Instant::now());
        use DirCache::{Fill, Keep, No};
        let steps = [
            (10, 0, No),
            (10, 1, No),
            (10, 3, Fill),
            (10, 4, Keep),
            (11, 5, No),
            (10, 6, No),
            (10, 9, Fill),
            (10, 9, Keep),
        ];
        for (ctime, now, expected) in steps {
            assert_eq!(open(&mut listed, begun, ctime, 1, now), expected, "{now}");
        }
        assert_eq!(
            listed.opened(1, 10, None, begun + Duration::from_secs(10)),
            No,
            "nothing is known of it"
        );
        assert_eq!(open(&mut listed, begun, 10, 1, 11), No);
    }

    #[test]
    fn how_long_a_directory_has_settled_is_told_by_our_own_clock() {
        // If the store's clock is behind this machine's, a directory that has just changed seems to
        // be unchanged for long, and a further change within the same tick would not be shown. With
        // a clock ahead of this machine's no listing would be cached.
        let begun = Instant::now();
        for ctime in [0, i64::MAX, -1] {
            let mut listed = Listed::default();
            for (now, expected) in
                [(0, DirCache::No), (2, DirCache::No), (3, DirCache::Fill), (9, DirCache::Keep)]
            {
                assert_eq!(open(&mut listed, begun, ctime, 1, now), expected, "{ctime} {now}");
            }
        }
    }

    #[test]
    fn an_old_directory_by_our_own_clock_has_settled_at_once() {
        let (mut listed, begun) = (Listed::default(), Instant::now());
        let with = NamesReadWith { generation: 1, tags: [7; 32] };
        use DirCache::{Fill, Keep, No};
        for (ctime, is_old, expected) in [
            (10, true, Fill),
            (10, true, Keep),
            (11, false, No),
            (11, false, No),
            (11, true, Fill),
            (12, true, Fill),
        ] {
            assert_eq!(
                listed.opened(1, 1, Some(Look { attr: &attr(ctime), with, is_old }), begun),
                expected,
                "{ctime} {is_old}"
            );
        }
        listed.unread(1);
        assert_eq!(
            listed.opened(1, 1, Some(Look { attr: &attr(12), with, is_old: true }), begun),
            No,
            "the name may become readable"
        );

        let clock = |secs| UNIX_EPOCH + Duration::from_secs(secs);
        assert!(is_old(&attr(10), clock(13)) && is_old(&attr(-5), clock(13)));
        for ctime in [11, 13, 14, i64::MAX] {
            assert!(!is_old(&attr(ctime), clock(13)), "{ctime}");
        }
        assert!(!is_old(&attr(0), UNIX_EPOCH - Duration::from_secs(9)));
        let mixed = Attr { mtime: attr(0).mtime, ..attr(12) };
        assert!(!is_old(&mixed, clock(13)), "both have to be");
    }

    #[test]
    fn other_keys_for_names_make_a_listing_be_read_again() {
        // Names can arrive before the manifest with the epoch that they are sealed under. Once the
        // manifest has arrived, the listing must be read again, although the directory has not
        // changed.
        let (mut listed, begun) = (Listed::default(), Instant::now());
        for (keys, now, expected) in [
            (1, 0, DirCache::No),
            (1, 3, DirCache::Fill),
            (1, 4, DirCache::Keep),
            (2, 5, DirCache::No),
            (2, 8, DirCache::Fill),
        ] {
            assert_eq!(open(&mut listed, begun, 10, keys, now), expected, "{now}");
        }
        let another = NamesReadWith { generation: 2, tags: [8; 32] };
        let look = Some(Look { attr: &attr(10), with: another, is_old: false });
        assert_eq!(
            listed.opened(1, 9, look, begun + Duration::from_secs(9)),
            DirCache::No,
            "the directory has other tags"
        );
    }

    #[test]
    fn a_listing_with_an_unreadable_name_is_not_kept() {
        // The control file of a long name can arrive empty, and be filled in place. That does not
        // change the directory, so the kernel would continue to show the hash.
        let (mut listed, begun) = (Listed::default(), Instant::now());
        use DirCache::{Fill, Keep, No};
        for (ctime, now, unread, expected) in [
            (10, 0, true, No),
            (10, 3, true, No),
            (10, 9, false, No),
            (11, 10, false, No),
            (11, 13, false, Fill),
            (11, 14, true, Keep),
            (11, 15, false, No),
            (11, 30, false, No),
            (12, 31, false, No),
            (12, 34, true, Fill),
            (12, 35, false, No),
        ] {
            assert_eq!(open(&mut listed, begun, ctime, 1, now), expected, "{now}");
            if unread {
                listed.unread(now);
            }
        }
    }

    #[test]
    fn nodes_are_handed_out_up_to_a_limit_and_for_open_handles() {
        let mut listed = Listed::default();
        open(&mut listed, Instant::now(), 10, 1, 1);
        assert_eq!(
            (0..NODES_PER_LISTING + 5).filter(|_| listed.hand_out(1)).count() as u32,
            NODES_PER_LISTING
        );
        listed.closed(1);
        assert!(!listed.hand_out(1));
    }
}
