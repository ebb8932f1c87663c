//! Changes of the membership while the share is open: new manifests are noticed, verified, and
//! their keys and rights taken over.
//!
//! Rules that hold here
//! * What is taken over was verified as at the opening, from the head that was seen last.
//! * From then on everything new is written under the new epoch; who lost the right to write,
//!   writes no more.
//! * The look costs one `stat` of the share's directory as long as nothing changes in it.

use std::time::Instant;

use crate::roster::{Pin, RosterError};
use crate::vault::core::Core;
use crate::vault::error::{Error, Inner, Result};
use crate::vault::share::enter;
use crate::vault::share::enter::Vouched;
use crate::vault::share::seen::manifests;
use crate::vault::share::trust::Trust;

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

impl Core {
    /// Looks for new manifests and takes over what they say; tells whether there were any.
    ///
    /// # Errors
    /// What kept the new roster from being taken over. An identity that is no member any more keeps
    /// what it had, for reading.
    pub fn refresh(&self, trust: &Trust) -> Result<bool> {
        let mut seen = self.membership.seen.lock();
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
        let mut seen = self.membership.seen.lock();
        (seen.manifests, seen.head) = (manifests, head);
    }
}
