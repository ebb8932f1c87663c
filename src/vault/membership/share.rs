//! The membership of a share: its members, its history, and invitations. Nothing here needs the
//! vault's lock. A change writes new control files beside the old ones; every process that has the
//! share open notices them.
//!
//! Rule: all information returned was verified, at a head no older than the one that was seen last.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::roster::{Invitation, Member, Pin, PublicIdentity, Role, RosterError};
use crate::vault::core::Core;
use crate::vault::error::{Error, Fault, Result};
use crate::vault::session::vault::Vault;
use crate::vault::share::enter;
use crate::vault::share::enter::{Entered, Head, Vouched};
use crate::vault::types::ROOT;

/// A share of an open vault, for queries and changes of its membership.
pub struct Share {
    pub(in crate::vault) vault: Vault,
    pub(in crate::vault) core: Arc<Core>,
    pub(super) number: u64,
}

/// Information about a share.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShareInfo {
    /// Public keys of the identity that has the share open.
    pub me: PublicIdentity,
    /// Id of the share.
    pub share: [u8; 32],
    /// Plain path of its folder from the vault's root, empty for the vault's own share.
    pub path: Vec<u8>,
    /// Whether files are signed; only then can there be several members.
    pub signed: bool,
    /// Whether a sync tool keeps it equal on several machines.
    pub synced: bool,
    /// Whether the admins of the parent share are not made members.
    pub isolated: bool,
    /// Number of the current folder key.
    pub epoch: u32,
    /// Heads of the roster; more than one is a fork. Those that this identity cannot open come last.
    pub heads: Vec<Pin>,
    /// How many heads this identity cannot open: it may not be a member there.
    pub unopened: usize,
    /// Signing key of the signer of the first head.
    pub signer: [u8; 32],
    /// Time of the first head by the signer's clock, in seconds since 1970.
    pub time: u64,
    /// Members at the first head, by signing key.
    pub members: Vec<Member>,
    /// In a fork: those who are members at another head only. They can read what is written there.
    pub elsewhere: Vec<Member>,
    /// Role of this identity.
    pub own_role: Role,
}

/// One step in the history of the membership.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogEntry {
    /// The manifest of this step.
    pub head: Pin,
    /// Time by the signer's clock, in seconds since 1970.
    pub time: u64,
    /// Signing key of the signer.
    pub signer: [u8; 32],
    /// Number of the folder key from this step on.
    pub epoch: u32,
    /// Kind of the step.
    pub what: LogKind,
    /// Members added, removed and changed; `None` if the list of members before or after can no
    /// longer be read.
    pub changes: Option<MemberChanges>,
}

/// The difference between two lists of members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberChanges {
    /// Added members.
    pub added: Vec<Member>,
    /// Removed members.
    pub removed: Vec<Member>,
    /// Members whose role changed, with the new role.
    pub changed: Vec<Member>,
}

impl MemberChanges {
    fn between(before: &[Member], after: &[Member]) -> MemberChanges {
        let find = |list: &[Member], member: &Member| {
            list.iter().find(|m| m.public == member.public).cloned()
        };
        MemberChanges {
            added: after.iter().filter(|m| find(before, m).is_none()).cloned().collect(),
            removed: before.iter().filter(|m| find(after, m).is_none()).cloned().collect(),
            changed: after
                .iter()
                .filter(|m| find(before, m).is_some_and(|old| old.role != m.role))
                .cloned()
                .collect(),
        }
    }
}

/// Kind of a step in the history of the membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogKind {
    /// Founded the share.
    Founded,
    /// Added members, or changed a role.
    Members,
    /// Began a new epoch: a member was removed, or the folder key was changed.
    NewEpoch,
    /// Settled a fork.
    Settled,
}

impl Vault {
    /// Returns the share that contains `path`; the folder of a share belongs to that share.
    ///
    /// # Errors
    /// As [`Vault::resolve`]; the reasons why the share cannot be entered.
    pub fn share_at(&self, path: &[u8]) -> Result<Share> {
        let node = self.resolve(path)?.node;
        let entered =
            self.shares().run("find", node, |core, local| match core.directory_tag(local) {
                Err(Fault::Boundary) => Err(Fault::Boundary),
                _ => Ok(()),
            });
        let route = entered.and_then(|_| {
            self.shares().route(node).map_err(|fault| fault.at("find", PathBuf::new))
        });
        self.forget(node, 1);
        let route = route?;
        Ok(Share { vault: self.clone(), core: route.core, number: route.number })
    }
}

impl Share {
    pub(super) fn error(source: RosterError) -> Error {
        Error::Members { op: "change members", source }
    }

    pub(super) fn enter(&self) -> Result<Entered> {
        let shown = self.core.shown_path(ROOT);
        let vouched = Vouched {
            share: Some(self.core.keys.share),
            head: self.core.membership.seen.lock().head,
        };
        Ok(enter::enter(
            &*self.core.root,
            self.core.keys.signing.identity(),
            self.vault.shares().trust(),
            &vouched,
            &shown,
        )?)
    }

    /// Returns an invitation for the member with this signing key, signed by this identity, which
    /// must be an admin.
    ///
    /// # Errors
    /// [`Error::Members`]: there is a fork, this identity is not an admin, or no member has this
    /// key.
    pub fn invite(&self, sign: &[u8; 32]) -> Result<Vec<u8>> {
        let Entered { descriptor, heads, forked, .. } = self.enter()?;
        if forked {
            return Err(Self::error(RosterError::Forked(heads.len().max(2))));
        }
        let Head { roster, members, .. } = &heads[0];
        let by = self.core.keys.signing.identity();
        if !roster.is_admin(&by.public().sign) {
            return Err(Self::error(RosterError::NotAdmin));
        }
        let member = members.get(sign).ok_or_else(|| Self::error(RosterError::NoSuchMember))?;
        let signed =
            Invitation::sign(&descriptor, &roster.head(), by, &member.public, enter::unix_now());
        signed.map_err(|_| Self::error(RosterError::OwnerOnly))
    }

    /// Returns members, roles and heads.
    ///
    /// # Errors
    /// Faults of the roster.
    pub fn info(&self) -> Result<ShareInfo> {
        let Entered { descriptor, heads, unopened, .. } = self.enter()?;
        let own = self.core.keys.signing.own();
        let manifest = heads[0].roster.manifest();
        let stored = self.vault.shares().stored_path(self.number, ROOT).unwrap_or_default();
        let mut elsewhere: Vec<Member> =
            heads[1..].iter().flat_map(|head| head.members.all()).cloned().collect();
        elsewhere.retain(|member| heads[0].members.get(&member.public.sign).is_none());
        elsewhere.sort_by_key(|member| member.public.sign);
        elsewhere.dedup_by_key(|member| member.public.sign);
        Ok(ShareInfo {
            me: self.core.keys.signing.identity().public(),
            share: self.core.keys.share,
            path: self.vault.plain_path(&stored)?,
            signed: descriptor.signed,
            synced: self.core.mode.synced,
            isolated: descriptor.isolated,
            epoch: manifest.epoch,
            heads: heads.iter().map(|head| head.roster.head()).chain(unopened.clone()).collect(),
            unopened: unopened.len(),
            signer: manifest.signer,
            time: manifest.time,
            members: heads[0].members.all().to_vec(),
            elsewhere,
            own_role: heads[0].members.get(&own).map_or(Role::Reader, |member| member.role),
        })
    }

    /// Returns the verified history of the membership, from the founding to the first head.
    ///
    /// # Errors
    /// Faults of the roster.
    pub fn log(&self) -> Result<Vec<LogEntry>> {
        let entered = self.enter()?;
        let Head { roster, keys, .. } = &entered.heads[0];
        let mut log: Vec<LogEntry> = Vec::new();
        let mut before: Option<Vec<Member>> = Some(Vec::new());
        for (manifest, hash) in roster.history() {
            let after = roster.members_at(
                manifest.sequence,
                keys,
                &mut enter::block_reader(&*self.core.root),
            );
            let after = after.ok().map(|members| members.all().to_vec());
            let changes = before
                .as_ref()
                .zip(after.as_ref())
                .map(|(before, after)| MemberChanges::between(before, after));
            before = after;
            let what = match log.last() {
                None => LogKind::Founded,
                Some(_) if manifest.second_parent != [0; 32] => LogKind::Settled,
                Some(before) if before.epoch != manifest.epoch => LogKind::NewEpoch,
                Some(_) => LogKind::Members,
            };
            log.push(LogEntry {
                head: Pin { sequence: manifest.sequence, hash: *hash },
                time: manifest.time,
                signer: manifest.signer,
                epoch: manifest.epoch,
                what,
                changes,
            });
        }
        Ok(log)
    }
}
