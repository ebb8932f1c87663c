//! What the roster of a share was made of when it was looked at last.

use std::time::{Duration, Instant};

use super::control_files::entries;
use super::enter::MANIFEST;
use crate::roster::Pin;
use crate::store::{Dir, Timestamp};
use crate::vault::error::Inner;

/// Within this time two changes of a directory may leave it with the same times: the clocks of
/// stores are coarse.
const GRANULARITY: Duration = Duration::from_secs(2);

/// The two times of a directory that tell of a change.
type Times = (Timestamp, Timestamp);

/// What the share's directory looked like at the last look.
#[derive(Default)]
pub(crate) struct Seen {
    /// The times with which it was listed, after it had had them for a while.
    pub changed: Option<Times>,
    /// The times that it has now, and when they were first seen, by our own clock: that of the
    /// store may be another one.
    now: Option<(Times, Instant)>,
    pub manifests: Vec<Box<[u8]>>,
    /// The highest head: nothing that does not descend from it is taken over.
    pub head: Option<Pin>,
}

/// Names of the manifests in a share's directory, sorted.
pub(crate) fn manifests(store: &dyn Dir) -> Inner<Vec<Box<[u8]>>> {
    let is_manifest = |entry: &Inner<crate::store::DirEntry>| {
        entry.as_ref().map_or(true, |entry| entry.name.starts_with(MANIFEST))
    };
    let names =
        entries(store)?.filter(is_manifest).map(|entry| Ok(entry?.name)).collect::<Inner<Vec<_>>>();
    let mut names: Vec<Box<[u8]>> = names?;
    names.sort_unstable();
    Ok(names)
}

impl Seen {
    /// Whether the directory has had these times for so long that what changes now gives it others.
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
    fn how_a_directory_ages_is_told_by_our_own_clock() {
        // The clock of this machine was ahead of that of the store. A change that gave the
        // directory the times that it had already, within the granularity of the store's clock, was
        // not looked at: a removed member's key stayed in use.
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
