//! The state of the roster's files at the last check.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::control_files::entries;
use super::enter::{MANIFESTS_MAX, number};
use crate::roster::Pin;
use crate::store::{Dir, Timestamp};
use crate::vault::error::Inner;

/// Two changes of a directory within this time may leave it with the same times: the clocks of
/// stores are coarse.
pub(crate) const GRANULARITY: Duration = Duration::from_secs(2);

/// How long members of a synced share write under the known key after a manifest has arrived
/// without the slot block that it names.
const LATE_MAX: Duration = Duration::from_secs(60);

/// The two times of a directory that show a change.
pub(crate) type Times = (Timestamp, Timestamp);

/// The state of the share's directory at the last check.
#[derive(Default)]
pub(crate) struct Seen {
    /// The times at the last listing, if the directory had had them for a while.
    pub changed: Option<Times>,
    /// Its present times, and when they were first seen, by this machine's clock: the store's clock
    /// may differ.
    now: Option<(Times, Instant)>,
    /// The names of the manifests that were adopted; `None` if they must be read again in any case,
    /// because the last reading failed or was incomplete.
    pub manifests: Option<Vec<Box<[u8]>>>,
    /// Those of them that are to be read again if their files change.
    pub unread: Unread,
    /// The highest head that was adopted: the pin for the next check.
    pub head: Option<Pin>,
    /// Signing keys of the members.
    pub members: HashSet<[u8; 32]>,
    pub is_forked: bool,
    /// Since when a head's slot block is missing, by this machine's clock.
    late: Option<Instant>,
}

/// What shows that a file was written or replaced: inode, size, and the times of modification and
/// change.
type Stamp = (u64, u64, Timestamp, Timestamp);

/// Manifests whose files have other contents than their names state. A tool that writes a file under
/// its final name may be at work, and filling the file changes neither names nor the times of the
/// directory. So their files are looked at one by one, and read again only if they have changed: one
/// that stays useless costs a `stat`, and of many only some are looked at each time, in turns.
#[derive(Default)]
pub(crate) struct Unread {
    files: Vec<UnreadFile>,
    /// The next one to look at.
    next: usize,
}

struct UnreadFile {
    name: Box<[u8]>,
    /// The stamp at the last look, and when it was first seen, by this machine's clock.
    stamp: Option<(Option<Stamp>, Instant)>,
    /// It was read after it had had this stamp for a while.
    is_settled: bool,
}

/// Maximum number of files that one look takes in.
const LOOKS: usize = 256;

impl Unread {
    /// Notes the names after the manifests were read.
    pub fn note(&mut self, names: Vec<Box<[u8]>>) {
        if !names.iter().eq(self.files.iter().map(|file| &file.name)) {
            let file = |name| UnreadFile { name, stamp: None, is_settled: false };
            *self = Unread { files: names.into_iter().map(file).collect(), next: 0 };
        }
    }

    /// Looks at the files, and returns whether to read the manifests again.
    pub fn is_due(&mut self, store: &dyn Dir, now: Instant) -> bool {
        let mut is_due = false;
        for _ in 0..self.files.len().min(LOOKS) {
            let at = self.next % self.files.len();
            self.next = at + 1;
            let file = &mut self.files[at];
            let stat = store.stat(&file.name).ok();
            let stamp = stat.map(|stat| (stat.ino, stat.size, stat.mtime, stat.ctime));
            is_due |= file.is_due(stamp, now);
        }
        is_due
    }
}

impl UnreadFile {
    /// Returns whether a file with this stamp is to be read again: when the stamp is new, and once
    /// more when a change must lead to another one.
    fn is_due(&mut self, stamp: Option<Stamp>, now: Instant) -> bool {
        match self.stamp {
            Some((known, first)) if known == stamp => {
                let has_aged = now.saturating_duration_since(first) >= GRANULARITY;
                has_aged && !std::mem::replace(&mut self.is_settled, true)
            }
            _ => {
                (self.stamp, self.is_settled) = (Some((stamp, now)), false);
                true
            }
        }
    }
}

/// Returns the names of the manifests in a share's directory, sorted. If there are more than
/// [`MANIFESTS_MAX`], with which no share is entered, one more than that are returned.
pub(crate) fn manifests(store: &dyn Dir) -> Inner<Vec<Box<[u8]>>> {
    let is_manifest = |entry: &Inner<crate::store::DirEntry>| {
        entry.as_ref().map_or(true, |entry| number(&entry.name).is_some())
    };
    let found = entries(store)?.filter(is_manifest).take(MANIFESTS_MAX + 1);
    let mut names = found.map(|entry| Ok(entry?.name)).collect::<Inner<Vec<Box<[u8]>>>>()?;
    names.sort_unstable();
    Ok(names)
}

impl Seen {
    /// Returns whether the slot block of a new head, which is missing at `now`, may still arrive.
    pub fn may_arrive(&mut self, now: Instant) -> bool {
        let since = *self.late.get_or_insert(now);
        now.saturating_duration_since(since) < LATE_MAX
    }

    /// Makes the next check read the manifests, however old the directory's last change is. The names
    /// may be those of the last success then: an obstacle beside them was removed.
    pub fn doubt(&mut self) {
        (self.changed, self.manifests) = (None, None);
    }

    /// Notes that no slot block is missing.
    pub fn has_arrived(&mut self) {
        self.late = None;
    }

    /// Returns whether the directory has had these times for so long that a change now leads to
    /// other times.
    pub fn has_aged(&mut self, times: Times, now: Instant) -> bool {
        match self.now {
            Some((since, first)) if since == times => {
                now.saturating_duration_since(first) >= GRANULARITY
            }
            _ => {
                self.now = Some((times, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_useless_manifest_is_read_a_bounded_number_of_times() {
        let (begun, zero) = (Instant::now(), Timestamp { secs: 0, nanos: 0 });
        let stamp = |size| Some((1, size, zero, zero));
        let name: Box<[u8]> = (*b"+manifest-2-a").into();
        let mut unread = Unread::default();
        unread.note(vec![name.clone()]);
        let file = &mut unread.files[0];
        assert!(file.is_due(stamp(0), begun), "it may have changed since it was read");
        assert!(!file.is_due(stamp(0), begun + GRANULARITY / 2));
        assert!(file.is_due(stamp(0), begun + GRANULARITY), "the clock may be coarse");
        assert!(!file.is_due(stamp(0), begun + GRANULARITY * 9));
        assert!(file.is_due(stamp(1), begun + GRANULARITY * 10));
        unread.note(vec![name]);
        let file = &mut unread.files[0];
        assert!(!file.is_due(stamp(1), begun + GRANULARITY * 10), "it was read just now");
        assert!(file.is_due(stamp(1), begun + GRANULARITY * 11));
        assert!(!file.is_due(stamp(1), begun + GRANULARITY * 99));
        assert!(file.is_due(None, begun + GRANULARITY * 99), "it is gone");
    }

    /// Each look took in all useless manifests, of which the storage host may make thousands.
    #[test]
    fn of_many_useless_manifests_some_are_looked_at_each_time() {
        let store = crate::store::mem::MemStore::new();
        let mut unread = Unread::default();
        let names = (0..LOOKS * 2).map(|n| format!("+manifest-{n}-a").into_bytes().into());
        unread.note(names.collect());
        let begun = Instant::now();
        assert!(unread.is_due(&*store.root(), begun) && unread.is_due(&*store.root(), begun));
        let seen = |unread: &Unread| unread.files.iter().filter(|f| f.stamp.is_some()).count();
        assert_eq!(seen(&unread), LOOKS * 2, "each once in two looks");
        assert!(!unread.is_due(&*store.root(), begun));
        store.root().create_file(format!("+manifest-{}-a", LOOKS + 1).as_bytes(), 0o600).unwrap();
        assert!(unread.is_due(&*store.root(), begun) || unread.is_due(&*store.root(), begun));
    }

    /// Whatever began like the name of a manifest counted towards the limit, but was not refused beyond
    /// it. So useless names could take all places, and a removal behind them was not noticed.
    #[test]
    fn only_names_of_manifests_count() {
        let store = crate::store::mem::MemStore::new();
        for name in ["+manifest-x1-a", "+manifest-", "+manifest-7", "+manifest-2-a"] {
            store.root().create_file(name.as_bytes(), 0o600).unwrap();
        }
        assert_eq!(manifests(&*store.root()).unwrap(), [(*b"+manifest-2-a").into()]);
    }

    #[test]
    fn a_missing_block_is_waited_for_once() {
        let (begun, mut seen) = (Instant::now(), Seen::default());
        assert!(seen.may_arrive(begun));
        assert!(seen.may_arrive(begun + LATE_MAX / 2));
        assert!(!seen.may_arrive(begun + LATE_MAX));
        assert!(!seen.may_arrive(begun + LATE_MAX * 2));
        seen.has_arrived();
        assert!(seen.may_arrive(begun + LATE_MAX * 3));
    }

    #[test]
    fn how_a_directory_ages_is_told_by_our_own_clock() {
        // The clock of this machine was ahead of that of the store. A change that left the
        // directory with the same times, within the granularity of the store's clock, was not
        // noticed: a removed member's key stayed in use.
        let (begun, mut seen) = (Instant::now(), Seen::default());
        let long_ago = Timestamp { secs: 1_000_000_000, nanos: 0 };
        let times = (long_ago, long_ago);
        assert!(!seen.has_aged(times, begun), "old by the clock alone");
        assert!(!seen.has_aged(times, begun + GRANULARITY / 2));
        assert!(seen.has_aged(times, begun + GRANULARITY));
        let later = (long_ago, Timestamp { secs: 4_000_000_000, nanos: 0 });
        assert!(!seen.has_aged(later, begun + GRANULARITY * 2), "another change is young again");
        assert!(seen.has_aged(later, begun + GRANULARITY * 3));
    }
}
