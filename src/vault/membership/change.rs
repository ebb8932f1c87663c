//! Changes of the membership of a share: adding, removing, changing roles, settling a fork.
//!
//! Rules that hold here
//! * Entries that a former writer had signed stay valid through an inventory: a list of those
//!   entries, taken and verified just before the change. Names may move during a walk, so the share
//!   is walked again until nothing new is found, up to [`ROUNDS`] times.
//! * With concurrent openers all walks but the first one, and the change itself, are made under the
//!   lease. So no honest daemon commits between the last walk and the change, and after that it
//!   looks for new members before it signs.
//! * A change of the roster holds a lock against other changes in the same store, from before the
//!   head is read. Afterwards the heads are read again, because a lock does not reach every client.
//!   A change that does not count is reported as an error.
//! * A removed member who was an admin is removed from the nested shares first, unless those are
//!   isolated. An error lists the nested shares from which the removal failed.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::crypto::Random;
use crate::format::inventory::{self, InventoryList};
use crate::roster::{Acting, Change, Inventory, Member, Pin, Role, RosterError};
use crate::store::{Access, File, Lock};
use crate::vault::durability::lease::{self, Lease};
use crate::vault::durability::lock_files::{insist, open_to_lock};
use crate::vault::error::{Corruption, Error, Fault, Inner, Result};
use crate::vault::membership::inventory_walk::{Walk, Walked};
use crate::vault::membership::share::Share;
use crate::vault::session::options::OsRandom;
use crate::vault::share::control_files::{read_control, write_new};
use crate::vault::share::enter;
use crate::vault::share::enter::{Entered, Head};
use crate::vault::share::synced;
use crate::vault::types::ShareProgress;
use crate::vault::types::{NodeId, ROOT};

/// Maximum number of walks for an inventory. It lacks what is signed after the last walk.
const ROUNDS: usize = 8;
/// How long a change of the roster waits for another client's change: less than a lease may show no
/// sign of life (see [`lease`]).
const ALONE_TAKES: Duration = Duration::from_secs(5);

impl Share {
    /// Locks the roster against changes by other clients of this store until the returned file is
    /// dropped: two changes from one head would make a fork. Returns `None` if the lock cannot be
    /// taken; the change is made all the same. Not every store has locks, and any reader of the
    /// store can hold this one: members must not be able to prevent their removal.
    fn alone(&self) -> Option<Arc<dyn File>> {
        let locked = (|| {
            let file = open_to_lock(&*self.core.root, enter::DESCRIPTOR)?;
            insist(Instant::now() + ALONE_TAKES, || {
                Ok(file.try_lock(Lock::Exclusive)?.then_some(()))
            })?;
            Ok(file)
        })();
        locked
            .inspect_err(|fault: &Fault| {
                tracing::warn!(
                    errno = fault.errno(),
                    "the members are changed without a lock on the roster"
                )
            })
            .ok()
    }

    /// Changes the roster by `change`, and adopts the new head.
    fn change(
        &self,
        change: impl FnOnce(&Head, &Acting<'_>) -> std::result::Result<Change, RosterError>,
    ) -> Result<Pin> {
        let _alone = self.alone();
        let entered = self.enter()?;
        if entered.forked {
            return Err(Self::error(RosterError::Forked(entered.heads.len().max(2))));
        }
        self.change_at(&entered.heads[0], change)
    }

    /// Returns the change without writing it.
    fn draft(
        &self,
        head: &Head,
        change: impl FnOnce(&Head, &Acting<'_>) -> std::result::Result<Change, RosterError>,
    ) -> Result<Change> {
        let identity = self.core.keys.signing.identity();
        let acting = Acting {
            by: identity,
            keys: &head.keys,
            members: &head.members,
            random: &OsRandom,
            now: enter::unix_now(),
        };
        change(head, &acting).map_err(Self::error)
    }

    fn change_at(
        &self,
        head: &Head,
        change: impl FnOnce(&Head, &Acting<'_>) -> std::result::Result<Change, RosterError>,
    ) -> Result<Pin> {
        let change = self.draft(head, change)?;
        let made = head.roster.extend(&change.manifest).map_err(Self::error)?.head();
        enter::put_change(&*self.core.root, &change, &OsRandom)
            .map_err(|fault| self.core.explain("change the members of", ROOT, fault))?;
        let entered = self.core.refresh(self.vault.shares().trust()).and_then(|_| self.enter());
        let Entered { heads, forked, .. } = match entered {
            // An admin has removed themselves.
            Err(Error::NoAccess { .. }) if self.is_head(&made)? => return Ok(made),
            other => other?,
        };
        // A client that the lock does not reach may have changed the members at the same time.
        if forked {
            return Err(Self::error(RosterError::Forked(heads.len().max(2))));
        }
        if !heads[0].roster.contains(&made) {
            return Err(Self::error(RosterError::Overtaken));
        }
        Ok(heads[0].roster.head())
    }

    /// Returns whether `made`, written by this client, is in the chain of the only head that
    /// counts; needs no key.
    fn is_head(&self, made: &Pin) -> Result<bool> {
        let (root, shown) = (&*self.core.root, self.core.shown_path(ROOT));
        let heads = enter::standing(
            root,
            &enter::descriptor(root, &shown)?,
            self.core.membership.seen.lock().head.as_ref(),
            &shown,
        )?
        .standing
        .heads;
        Ok(matches!(&heads[..], [only] if only.contains(made)))
    }

    /// Adds members.
    ///
    /// # Errors
    /// Those of [`VerifiedRoster::add_members`](crate::roster::VerifiedRoster::add_members), as
    /// [`Error::Share`]; errors of the store.
    pub fn add(&self, members: &[Member]) -> Result<Pin> {
        self.change(|head, acting| head.roster.add_members(acting, members))
    }

    /// Begins a new epoch with the same members.
    ///
    /// # Errors
    /// As [`Share::add`].
    pub fn rekey(&self) -> Result<Pin> {
        self.change(|head, acting| head.roster.rekey(acting))
    }

    /// Removes members, by their signing keys: a new epoch, with an inventory of the entries they
    /// had signed. Former admins are removed from the nested shares first, unless those are
    /// isolated. Called again for a member already removed here, it continues with the nested
    /// shares.
    ///
    /// # Errors
    /// As [`Share::add`]; [`Error::LeftWithin`] if a member is removed here but not from
    /// all nested shares. A damaged file of theirs is no error: the inventory omits it. It also
    /// omits files without read permission, which the progress counts.
    pub fn remove(
        &self,
        signs: &[[u8; 32]],
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> Result<Pin> {
        let mut left = Vec::new();
        let removed = self.remove_below(signs, progress, &mut left)?;
        if !left.is_empty() {
            return Err(Error::LeftWithin { left });
        }
        removed.ok_or_else(|| Self::error(RosterError::NoSuchMember))
    }

    /// Removes members as [`Share::remove`] does. Returns `None` if nobody was removed, neither
    /// here nor from a nested share. Adds to `left` the nested shares in which some still are
    /// members.
    fn remove_below(
        &self,
        signs: &[[u8; 32]],
        progress: &mut dyn FnMut(&ShareProgress),
        left: &mut Vec<(PathBuf, String)>,
    ) -> Result<Option<Pin>> {
        self.core.refresh(self.vault.shares().trust())?;
        let before = self.enter()?;
        if before.forked {
            return Err(Self::error(RosterError::Forked(before.heads.len().max(2))));
        }
        let head = &before.heads[0];
        let (present, former): (Vec<[u8; 32]>, Vec<[u8; 32]>) =
            signs.iter().partition(|sign| head.members.get(sign).is_some());
        let was_admin = |sign: &[u8; 32]| {
            head.roster.history().any(|(manifest, _)| manifest.admins.contains(sign))
        };
        let go_on = present.is_empty() && !former.is_empty() && former.iter().all(was_admin);
        if !go_on || !head.roster.is_admin(&self.core.keys.signing.own()) {
            // A change that would be refused fails here, before any nested share is changed.
            let named = if former.is_empty() || go_on { &present[..] } else { signs };
            self.draft(head, |head, acting| head.roster.remove_members(acting, named, None))?;
        }
        let admins: Vec<[u8; 32]> = signs.iter().filter(|sign| was_admin(sign)).copied().collect();
        let mut removed = None;
        if !admins.is_empty() {
            removed = self.remove_within(&admins, progress, left)?;
        }
        if !present.is_empty() {
            let writers = |head: &Head| -> Vec<[u8; 32]> {
                let is_writer = |sign: &&[u8; 32]| {
                    head.members.get(sign).is_some_and(|member| member.role.may_write())
                };
                present.iter().filter(is_writer).copied().collect()
            };
            let before = writers(head);
            // What a reader signed while they could write is in an inventory since they lost that
            // right.
            let lease = self.lease();
            let (taken, _change) = self.take_inventory(&lease, &before, Vec::new(), progress)?;
            removed = Some(self.change(|head, acting| {
                // A reader who was made a writer meanwhile may have signed entries that belong in an
                // inventory.
                if writers(head).iter().all(|sign| before.contains(sign)) {
                    head.roster.remove_members(acting, &present, taken)
                } else {
                    Err(RosterError::Overtaken)
                }
            })?);
        }
        Ok(removed)
    }

    /// Removes former admins of this share from its nested shares, where they are members.
    fn remove_within(
        &self,
        admins: &[[u8; 32]],
        progress: &mut dyn FnMut(&ShareProgress),
        left: &mut Vec<(PathBuf, String)>,
    ) -> Result<Option<Pin>> {
        let Walked { nested, mut expected, .. } = self.walk(admins, &HashSet::new(), progress)?;
        let mut removed = None;
        for place in nested {
            let outside = self.vault.shares().outside(self.number, place);
            let junction = self.core.junction_at(place).ok().flatten();
            let shown = self.stored(place);
            // Whether the share is isolated is taken from its descriptor, to which the share's id
            // is bound: a member who is to be removed may have signed the junction.
            let descriptor =
                self.core.dir(place).ok().and_then(|dir| enter::descriptor(&*dir, &shown).ok());
            let is_isolated = junction
                .as_ref()
                .zip(descriptor)
                .is_some_and(|(j, d)| d.isolated && d.share_id() == j.share);
            let child = self.vault.shares().directory("enter", outside).map(|route| Share {
                vault: self.vault.clone(),
                core: route.core,
                number: route.number,
            });
            self.core.nodes.forget(place, 1);
            if let Some(junction) = &junction {
                expected.remove(&junction.share);
            }
            if is_isolated {
                continue;
            }
            let done = child.and_then(|child| {
                let entered = child.enter()?;
                if entered.descriptor.isolated {
                    return Ok(None);
                }
                let head = &entered.heads[0];
                let is_or_was = |sign: &&[u8; 32]| {
                    head.members.get(sign).is_some()
                        || head.roster.history().any(|(manifest, _)| manifest.admins.contains(sign))
                };
                let there: Vec<[u8; 32]> = admins.iter().filter(is_or_was).copied().collect();
                // One call for each admin: some may already be removed from this share.
                there.iter().try_fold(None, |before, sign| {
                    Ok(child.remove_below(&[*sign], progress, left)?.or(before))
                })
            });
            match done {
                Ok(pin) => removed = pin.or(removed),
                Err(error) => {
                    tracing::error!("a nested share still has members who were removed: {error}");
                    left.push((shown, error.to_string()));
                }
            }
        }
        left.extend(
            expected
                .into_values()
                .map(|path| (path, "the nested share at this path is missing".to_owned())),
        );
        Ok(removed)
    }

    /// Returns the stored paths of junctions that lead to no nested share, such as one that a sync
    /// tool has not delivered yet. [`Share::remove`] would leave the members `signs` in those
    /// shares.
    ///
    /// # Errors
    /// As [`Share::remove`].
    pub fn missing_within(&self, signs: &[[u8; 32]]) -> Result<Vec<PathBuf>> {
        let Walked { nested, mut expected, .. } = self.walk(signs, &HashSet::new(), &mut |_| {})?;
        for place in nested {
            if let Ok(Some(junction)) = self.core.junction_at(place) {
                expected.remove(&junction.share);
            }
            self.core.nodes.forget(place, 1);
        }
        Ok(expected.into_values().collect())
    }

    /// Returns the stored path of a node of this share, from the vault's root.
    fn stored(&self, node: NodeId) -> PathBuf {
        use std::os::unix::ffi::OsStringExt;
        let path = self.vault.shares().stored_path(self.number, node).unwrap_or_default();
        PathBuf::from(std::ffi::OsString::from_vec(path))
    }

    /// Changes a member's role; takes an inventory of the entries they had signed if they can no
    /// longer write.
    ///
    /// # Errors
    /// As [`Share::remove`].
    pub fn set_role(
        &self,
        sign: &[u8; 32],
        role: Role,
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> Result<Pin> {
        let before = self.enter()?.heads[0].members.get(sign).map(|member| member.role);
        // An admin who becomes a writer may have signed junctions, which only an admin may sign.
        let lease = self.lease();
        let (inventory, _change) = match before.is_some_and(|before| before > role) {
            true => self.take_inventory(&lease, &[*sign], Vec::new(), progress)?,
            false => (None, None),
        };
        self.change(|head, acting| {
            // The inventory was decided by the role that the member had before. A member who was
            // made an admin meanwhile may have signed entries that belong in an inventory.
            let is_as_before = head.members.get(sign).map(|member| member.role) == before;
            if is_as_before {
                head.roster.set_role(acting, sign, role, inventory)
            } else {
                Err(RosterError::Overtaken)
            }
        })
    }

    /// Settles a fork in favour of the head with the hash `keep`; members in `gone` are left out.
    /// Entries of members who lose the right to write stay valid through an inventory. An inventory
    /// of the losing side stays in force if its signer remains an admin. That of another signer is
    /// dropped, because it could list entries that a removed admin has forged.
    ///
    /// # Errors
    /// [`RosterError::NoFork`], [`RosterError::NotAdmin`] if this identity is not an admin at each
    /// head, [`RosterError::UnopenedHead`], as [`Error::Members`].
    pub fn settle(&self, keep: &[u8; 32], gone: &[[u8; 32]]) -> Result<Pin> {
        let mut keep = *keep;
        let mut gone = gone;
        loop {
            let Entered { mut heads, unopened, forked, .. } = self.enter()?;
            if unopened.iter().any(|head| head.hash == keep) {
                return Err(Self::error(RosterError::UnopenedHead));
            }
            let at = heads
                .iter()
                .position(|head| head.roster.head().hash == keep)
                .ok_or_else(|| Self::error(RosterError::NoFork))?;
            let winner = heads.swap_remove(at);
            let Some(loser) = heads.first() else {
                // If a head cannot be opened the fork remains, so success must not be reported.
                return if forked {
                    Err(Self::error(RosterError::UnopenedHead))
                } else {
                    Ok(winner.roster.head())
                };
            };
            let settle = |inventory| {
                self.draft(&winner, |winner, acting| {
                    winner.roster.settle(acting, &loser.roster, &loser.keys, gone, inventory)
                })
            };
            settle(None)?; // fails before anything is written if the change would be refused
            let stays = |sign: &[u8; 32], role| {
                winner.members.get(sign).is_some_and(|m| m.role >= role) && !gone.contains(sign)
            };
            let could_write = winner
                .members
                .all()
                .iter()
                .chain(loser.members.all())
                .filter(|member| member.role >= Role::Writer);
            // Includes admins who become writers: they may have signed junctions, which only an
            // admin may sign.
            let mut lost: Vec<[u8; 32]> = could_write
                .filter(|m| !stays(&m.public.sign, m.role))
                .map(|m| m.public.sign)
                .collect();
            lost.sort_unstable();
            lost.dedup();
            let mut joined = Vec::new();
            for (manifest, hash) in
                loser.roster.history().filter(|(manifest, _)| manifest.inventory_file != [0; 32])
            {
                let common =
                    winner.roster.contains(&Pin { sequence: manifest.sequence, hash: *hash });
                if !common && stays(&manifest.signer, Role::Admin) {
                    let list = enter::inventory_of(&*self.core.root, manifest);
                    joined.extend_from_slice(
                        list.map_err(|fault| self.core.explain("settle", ROOT, fault))?.hashes(),
                    );
                }
            }
            let lease = self.lease();
            let (inventory, _change) = self.take_inventory(&lease, &lost, joined, &mut |_| {})?;
            let change = settle(inventory)?;
            let _alone = self.alone();
            let is_as_before = |now: &Entered| {
                let of = |head: &Head| head.roster.head();
                now.heads.len() == heads.len() + 1
                    && now.heads.iter().all(|head| {
                        of(head) == of(&winner) || heads.iter().any(|h| of(h) == of(head))
                    })
            };
            if !is_as_before(&self.enter()?) {
                continue;
            }
            keep = winner.roster.extend(&change.manifest).map_err(Self::error)?.head().hash;
            enter::put_change(&*self.core.root, &change, &OsRandom)
                .map_err(|fault| self.core.explain("settle", ROOT, fault))?;
            self.core.refresh(self.vault.shares().trust())?;
            gone = &[]; // they were removed by the change above
        }
    }

    /// Walks through the share once. The place of each nested share gets one lookup. Headers with a
    /// hash in `known` are left out.
    fn walk(
        &self,
        signs: &[[u8; 32]],
        known: &HashSet<[u8; 32]>,
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> Result<Walked> {
        let mut walk = Walk {
            core: &self.core,
            of: signs,
            known,
            found: Walked::default(),
            done: ShareProgress::default(),
            progress,
        };
        let walked = walk.all();
        (walk.progress)(&walk.done);
        let found = walk.found;
        walked.map_err(|fault| {
            found.forget_nested(&self.core);
            self.core.explain("take an inventory of", ROOT, fault)
        })?;
        Ok(found)
    }

    /// Returns the lease for a change of the members. A command has opened the share without one,
    /// beside a daemon; then it is taken all the same, unless the share is synced.
    fn lease(&self) -> Arc<Lease> {
        let root = &self.core.root;
        if self.core.lease.is_needed() || synced::is_set(&**root).unwrap_or(true) {
            return self.core.lease.clone();
        }
        Arc::new(Lease::new(Some(root.clone()), false))
    }

    /// Begins the last part of a change of the members: other daemons commit nothing until it ends,
    /// and look for new members before their next commit. Returns `None` if the lease cannot be
    /// taken, for the same reasons as in [`Share::alone`].
    fn keep_others_out<'a>(&self, lease: &'a Lease) -> Option<lease::Change<'a>> {
        let change = lease.change().inspect_err(|fault| {
            tracing::warn!(
                errno = fault.errno(),
                "the members are changed while others may write; their last writes may be refused"
            )
        });
        lease.show_life();
        change.ok()
    }

    /// Takes an inventory of the valid entries whose last signer is one of `signs`, and of `more`.
    /// Returns `None` if there are none. Also returns the change of `lease` that keeps other daemons
    /// from signing more until the manifest with the inventory is written.
    fn take_inventory<'a>(
        &self,
        lease: &'a Lease,
        signs: &[[u8; 32]],
        more: Vec<[u8; 32]>,
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> Result<(Option<Inventory>, Option<lease::Change<'a>>)> {
        if signs.is_empty() && more.is_empty() {
            return Ok((None, None));
        }
        self.core.refresh(self.vault.shares().trust())?;
        let mut change = None;
        let mut shown = |done: &ShareProgress| {
            lease.stay_alive();
            progress(done);
        };
        // What an earlier walk has found stays in the list, because it was valid when it was
        // verified. Otherwise members could prevent their removal by continuing to write.
        let mut all: HashSet<[u8; 32]> = more.into_iter().collect();
        for round in 1..=ROUNDS {
            let found = self.walk(signs, &all, &mut shown)?;
            found.forget_nested(&self.core);
            let known = all.len();
            all.extend(found.hashes);
            if round == 1 {
                change = self.keep_others_out(lease);
            } else if all.len() == known {
                break;
            }
        }
        if all.is_empty() {
            return Ok((None, change));
        }
        if all.len() >= inventory::MAX_ENTRIES {
            return Err(Self::error(RosterError::TooMany("entries of an inventory")));
        }
        let written = match self.write_inventory(&all) {
            // Another file has its name, which anyone can derive from the list: an incomplete file
            // of an interrupted removal, or one put there to prevent a removal. A random hash that
            // matches nothing changes the name.
            Err(Fault::Os(libc::EEXIST)) => {
                let mut nothing = [0; 32];
                OsRandom.fill(&mut nothing);
                all.insert(nothing);
                self.write_inventory(&all)
            }
            other => other,
        };
        let written =
            written.map_err(|fault| self.core.explain("take an inventory of", ROOT, fault))?;
        Ok((Some(written), change))
    }

    /// Writes the control file of an inventory, durably; fails with `EEXIST` if its name is taken
    /// by anything but the same list.
    fn write_inventory(&self, hashes: &HashSet<[u8; 32]>) -> Inner<Inventory> {
        let list = InventoryList::new(hashes.iter().copied().collect());
        let (bytes, root) = (list.encode(), list.root());
        let file = inventory::file_hash(&bytes);
        let name = inventory::file_name(&file);
        match write_new(&*self.core.root, &OsRandom, name.as_bytes(), &bytes) {
            // The same list from an interrupted removal.
            Err(Fault::Io(e)) if e.raw_os_error() == Some(libc::EEXIST) => {
                self.is_there(&name, &bytes).map_err(|_| Fault::Os(libc::EEXIST))?;
            }
            other => other?,
        }
        self.core.root.sync()?;
        Ok(Inventory { root, file })
    }

    /// Makes the control file durable. Fails if it does not hold these bytes.
    fn is_there(&self, name: &str, bytes: &[u8]) -> Inner<()> {
        let there = read_control(&*self.core.root, name.as_bytes(), bytes.len())?;
        if there.is_none_or(|there| there != bytes) {
            return Err(Fault::Corrupt(Corruption::Other(
                "is not the inventory that its name denotes",
            )));
        }
        Ok(self.core.root.open_file(name.as_bytes(), Access::Read)?.sync_all()?)
    }
}
