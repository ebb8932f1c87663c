//! Changes of the membership while the share is open: new manifests are noticed, verified, and their keys and rights taken over.
//!
//! Rules that hold here
//! * What is taken over was verified as at the opening, from the head that was seen last.
//! * From then on everything new is written under the new epoch; who lost the right to write, writes no more.
//! * The look costs one `stat` of the share's directory as long as nothing changes in it.

use super::core::{Core, list};
use super::error::{Error, Inner, Result};
use super::share::{self, Vouched};
use super::trust::Trust;
use crate::backing::{Dir, Timestamp};
use crate::sharing::Pin;

/// What the share's directory looked like at the last look.
#[derive(Default)]
pub(crate) struct Seen {
    changed: Option<(Timestamp, Timestamp)>,
    pub manifests: Vec<Box<[u8]>>,
    /// The highest head: nothing that does not descend from it is taken over.
    pub head: Option<Pin>,
}

/// Names of the manifests in a share's directory, sorted.
pub(crate) fn manifests(store: &dyn Dir) -> Inner<Vec<Box<[u8]>>> {
    let mut names: Vec<Box<[u8]>> = list(store)?.into_iter().map(|e| e.name).filter(|name| name.starts_with(share::MANIFEST)).collect();
    names.sort_unstable();
    Ok(names)
}

impl Core {
    /// Looks for new manifests and takes over what they say; tells whether there were any.
    ///
    /// # Errors
    /// What kept the new roster from being taken over. An identity that is no member any more keeps what it had, for reading.
    pub fn refresh(&self, trust: &Trust) -> Result<bool> {
        let mut seen = self.seen.lock();
        let looked: Inner<Option<Vec<Box<[u8]>>>> = (|| {
            let stat = self.root.stat_self()?;
            if seen.changed == Some((stat.mtime, stat.ctime)) {
                return Ok(None);
            }
            let manifests = manifests(&*self.root)?;
            // A change within the granularity of the store's clock would go unseen: it is looked at again until it has aged.
            seen.changed = (super::file::now().secs > stat.mtime.secs.saturating_add(1)).then_some((stat.mtime, stat.ctime));
            Ok((manifests != seen.manifests).then_some(manifests))
        })();
        let Some(manifests) = looked.map_err(|fault| self.explain("look for new members in", super::types::ROOT, fault))? else {
            return Ok(false);
        };
        let identity = self.keys.signing.identity();
        let shown = self.shown_path(super::types::ROOT);
        let vouched = Vouched { share: Some(self.keys.share), head: seen.head };
        match share::enter(&*self.root, identity, trust, &vouched, &shown) {
            Ok(entered) => {
                seen.head = entered.head().or(seen.head);
                for head in &entered.heads[1..] {
                    self.keys.know(&head.keys);
                }
                self.keys.adopt(&entered.heads[0].keys);
                self.keys.signing.adopt(entered.rights());
                if entered.incomplete {
                    seen.changed = None; // it may still come
                } else {
                    seen.manifests = manifests;
                }
                Ok(true)
            }
            Err(error) => {
                if matches!(error, Error::NoAccess { .. }) {
                    tracing::error!("{}: this identity is no member any more; what it could read stays readable", shown.display());
                    self.keys.signing.freeze(true);
                    seen.manifests = manifests;
                } else {
                    seen.changed = None; // tried again, however old the change is
                    if matches!(&error, Error::Share { path, .. } if path.as_os_str() == "+slots") {
                        // A head that counts cannot be opened: the old epoch may have ended.
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
