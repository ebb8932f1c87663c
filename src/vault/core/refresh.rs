//! Changes of the membership and of the folder key while the share is open: new manifests are noticed
//! and verified, and their keys and rights are adopted. An unsigned vault has one member, whose other
//! machines may have changed its key.
//!
//! Rules that hold here
//! * A new manifest is verified in the same way as when the share is opened. The head that was seen
//!   last is the pin, from which the heads that count follow.
//! * From then on new data is written under the new epoch; a member who lost the right to write
//!   stops writing.
//! * A sync tool may deliver a manifest before the slot block that it names. In a synced share the
//!   known key is used meanwhile, for a limited time: the storage host could withhold the slot
//!   block for ever.
//! * The check costs one `stat` of the share's directory as long as nothing changes in it, and one
//!   of each manifest that could not be parsed.

use std::collections::HashSet;
use std::time::Instant;

use crate::roster::Member;
use crate::vault::core::{Core, Mode};
use crate::vault::error::{Error, Inner, Result};
use crate::vault::share::enter;
use crate::vault::share::enter::{Entered, MANIFESTS_MAX, Unentered, Vouched};
use crate::vault::share::seen::{Seen, manifests};
use crate::vault::share::trust::Trust;
use crate::vault::types::Event;

/// Returns the members at all heads.
fn members(entered: &Entered) -> impl Iterator<Item = &Member> {
    entered.heads.iter().flat_map(|head| head.members.all())
}

impl Core {
    /// Returns whether another client may begin a new epoch while the share is open here. An unsigned
    /// vault that this daemon alone may change has no other client, so the root, which may be large and
    /// change at each tick, need not be listed.
    pub fn may_be_rekeyed(&self) -> bool {
        let Mode { read_only, writers, synced, .. } = self.mode;
        self.keys.signed() || synced || read_only || writers.share_names()
    }

    /// Looks for new manifests and adopts them; returns whether there were any.
    ///
    /// # Errors
    /// The reason why the new roster cannot be adopted. An identity that is no longer a
    /// member keeps its keys, for reading.
    pub fn refresh(&self, trust: &Trust) -> Result<bool> {
        let mut seen = self.membership.seen.lock();
        let looked: Inner<Option<Vec<Box<[u8]>>>> = (|| {
            let (stat, now) = (self.root.stat_self()?, Instant::now());
            let times = (stat.mtime, stat.ctime);
            let is_due = seen.unread.is_due(&*self.root, now);
            if seen.changed == Some(times) && !is_due {
                return Ok(None);
            }
            let aged = seen.has_aged(times, now);
            let manifests = manifests(&*self.root)?;
            seen.changed = aged.then_some(times);
            // Of too many the rest may have changed: no share is entered with them.
            let is_new = seen.manifests.as_ref() != Some(&manifests);
            Ok((is_due || is_new || manifests.len() > MANIFESTS_MAX).then_some(manifests))
        })();
        let manifests = match looked {
            Ok(Some(manifests)) => manifests,
            Ok(None) => return Ok(false),
            Err(fault) => {
                seen.doubt();
                return Err(self.explain(
                    "look for new members in",
                    crate::vault::types::ROOT,
                    fault,
                ));
            }
        };
        let identity = self.keys.signing.identity();
        let shown = self.shown_path(crate::vault::types::ROOT);
        let vouched = Vouched { share: Some(self.keys.share), head: seen.head };
        match enter::enter(&*self.root, identity, trust, &vouched, &shown) {
            Ok(entered) => {
                seen.has_arrived();
                self.tell_changes(&mut seen, &entered);
                seen.head = entered.head().or(seen.head);
                for head in &entered.heads[1..] {
                    self.keys.know(&head.keys);
                }
                self.keys.adopt(&entered.heads[0].keys);
                self.keys.signing.adopt(entered.rights());
                self.keys.renew_generation();
                seen.unread.note(entered.unread);
                if entered.incomplete {
                    seen.doubt(); // the missing part may still arrive
                } else {
                    seen.manifests = Some(manifests);
                }
                Ok(true)
            }
            Err(unentered) => {
                let may_have_ended = match unentered {
                    Unentered::Unknown(_) => true,
                    Unentered::Late(_) => !(self.mode.synced && seen.may_arrive(Instant::now())),
                    Unentered::Other(_) => false,
                };
                let error = Error::from(unentered);
                if matches!(error, Error::NoAccess { .. }) {
                    tracing::error!(
                        "{}: this identity is no longer a member; it can read only what it could read before",
                        shown.display()
                    );
                    self.keys.signing.freeze(true);
                    seen.manifests = Some(manifests);
                } else {
                    seen.doubt();
                    if may_have_ended {
                        self.keys.signing.freeze(false);
                    }
                }
                Err(error)
            }
        }
    }

    /// Looks for new manifests if another daemon may have written some before this one took the
    /// lease, which it has now: what it signs next must count. A failure is reported, and may end the
    /// right to write. It is not looked for again at each change, unless the store failed: the
    /// background does that.
    pub fn look_for_news(&self) {
        if !self.keys.signed() || !self.lease.may_have_news() {
            return;
        }
        match self.refresh(&self.membership.trust) {
            Ok(_) => self.lease.know_news(),
            Err(error) => {
                tracing::error!("{error}");
                if !matches!(error, Error::Io { .. } | Error::Os { .. }) {
                    self.lease.know_news();
                }
            }
        }
    }

    /// Records the state of the roster at the opening: only later changes are checked.
    pub fn note_head(&self, manifests: Vec<Box<[u8]>>, entered: &Entered) {
        let mut seen = self.membership.seen.lock();
        // What is missing may still arrive.
        seen.manifests = (!entered.incomplete).then_some(manifests);
        seen.head = entered.head();
        (seen.members, seen.is_forked) = (HashSet::new(), entered.forked);
        seen.members.extend(members(entered).map(|member| member.public.sign));
        seen.unread.note(entered.unread.clone());
    }

    /// Tells the user of a new fork, and of members whom somebody else has added.
    fn tell_changes(&self, seen: &mut Seen, entered: &Entered) {
        if entered.forked && !seen.is_forked {
            self.events.tell(Event::Forked);
        }
        seen.is_forked = entered.forked;
        let own = self.keys.signing.identity().public().sign;
        let is_own = entered.heads[0].roster.manifest().signer == own;
        let new = members(entered).filter(|member| seen.members.insert(member.public.sign));
        let new: Vec<String> = new.map(|member| member.name.clone()).collect();
        if !new.is_empty() && !is_own {
            self.events.tell(Event::NewMembers(new));
        }
    }
}
