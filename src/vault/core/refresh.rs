//! Changes of the membership while the share is open: new manifests are noticed, verified, and
//! their keys and rights taken over.
//!
//! Rules that hold here
//! * What is taken over was verified as at the opening, from the head that was seen last.
//! * From then on everything new is written under the new epoch; who lost the right to write,
//!   writes no more.
//! * The look costs one `stat` of the share's directory as long as nothing changes in it.

use std::time::{Duration, Instant};

use crate::roster::{Pin, RosterError};
use crate::store::{Dir, Timestamp};
use crate::vault::core::Core;
use crate::vault::error::{Error, Inner, Result};
use crate::vault::share::control_files::entries;
use crate::vault::share::enter;
use crate::vault::share::enter::Vouched;
use crate::vault::share::trust::Trust;

/// Within this time two changes of a directory may leave it with the same times: the clocks of
/// stores are coarse.
const GRANULARITY: Duration = Duration::from_secs(2);

/// The two times of a directory that tell of a change.
type Times = (Timestamp, Timestamp);

/// What the share's directory looked like at the last look.
#[derive(Default)]
pub(crate) struct Seen {
    /// The times with which it was listed, after it had had them for a while.
    changed: Option<Times>,
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
        entry.as_ref().map_or(true, |entry| entry.name.starts_with(enter::MANIFEST))
    };
    let names =
        entries(store)?.filter(is_manifest).map(|entry| Ok(entry?.name)).collect::<Inner<Vec<_>>>();
    let mut names: Vec<Box<[u8]>> = names?;
    names.sort_unstable();
    Ok(names)
}

/// Whether what kept the roster from being taken over leaves it open if the epoch has ended: a
/// manifest cannot be read, a head that counts cannot be opened, or there are more manifests and
/// heads than anybody looks through.
fn may_have_ended(error: &Error) -> bool {
    if let Error::Io { path, .. } = error {
        return path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(enter::MANIFEST));
    }
    let Error::Share { path, source } = error else { return false };
    let many = source
        .downcast_ref()
        .is_some_and(|source| matches!(source, RosterError::TooLong | RosterError::TooMany(_)));
    path.as_os_str() == "+slots" || many
}

impl Seen {
    /// Whether the directory has had these times for so long that what changes now gives it others.
    fn has_aged(&mut self, times: Times, now: Instant) -> bool {
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

impl Core {
    /// Looks for new manifests and takes over what they say; tells whether there were any.
    ///
    /// # Errors
    /// What kept the new roster from being taken over. An identity that is no member any more keeps
    /// what it had, for reading.
    pub fn refresh(&self, trust: &Trust) -> Result<bool> {
        let mut seen = self.seen.lock();
        let looked: Inner<Option<Vec<Box<[u8]>>>> = (|| {
            let stat = self.root.stat_self()?;
            let times = (stat.mtime, stat.ctime);
            if seen.changed == Some(times) {
                return Ok(None);
            }
            let aged = seen.has_aged(times, Instant::now());
            let manifests = manifests(&*self.root)?;
            seen.changed = aged.then_some(times);
            Ok((manifests != seen.manifests).then_some(manifests))
        })();
        let Some(manifests) = looked.map_err(|fault| {
            self.explain("look for new members in", crate::vault::types::ROOT, fault)
        })?
        else {
            return Ok(false);
        };
        let identity = self.keys.signing.identity();
        let shown = self.shown_path(crate::vault::types::ROOT);
        let vouched = Vouched { share: Some(self.keys.share), head: seen.head };
        match enter::enter(&*self.root, identity, trust, &vouched, &shown) {
            Ok(entered) => {
                seen.head = entered.head().or(seen.head);
                for head in &entered.heads[1..] {
                    self.keys.know(&head.keys);
                }
                self.keys.adopt(&entered.heads[0].keys);
                self.keys.signing.adopt(entered.rights());
                self.keys.renew_generation();
                if entered.incomplete {
                    seen.changed = None; // it may still come
                } else {
                    seen.manifests = manifests;
                }
                Ok(true)
            }
            Err(error) => {
                if matches!(error, Error::NoAccess { .. }) {
                    tracing::error!(
                        "{}: this identity is no member any more; what it could read stays readable",
                        shown.display()
                    );
                    self.keys.signing.freeze(true);
                    seen.manifests = manifests;
                } else {
                    seen.changed = None; // tried again, however old the change is
                    if may_have_ended(&error) {
                        self.keys.signing.freeze(false);
                    }
                }
                Err(error)
            }
        }
    }

    /// Notes what the roster was made of at the opening: only what comes later is looked at.
    pub fn note_head(&self, manifests: Vec<Box<[u8]>>, head: Option<Pin>) {
        let mut seen = self.seen.lock();
        (seen.manifests, seen.head) = (manifests, head);
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
