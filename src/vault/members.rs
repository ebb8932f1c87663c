//! Who is in an open share, and how that is changed.
//!
//! Rules that hold here
//! * Everything starts from the roster as it is verified at that moment, never from what was read when the vault was opened.
//! * A change only adds control files, made with O_EXCL: it may run beside a mount of the same share, which notices it.
//! * Whoever may write and is to lose that right has signed files. He leaves only together with an inventory of them, else what he wrote
//!   would become unreadable; a change that would need one and has none is refused.

use std::path::PathBuf;

use super::Vault;
use super::error::{Error, Result};
use super::share::{self, Entered, Head};
use crate::crypto::Suite;
use crate::sharing::{Acting, Change, Invitation, Member, Members, Pin, PublicIdentity, Role, RosterError};

/// What a share is at present.
#[derive(Clone, Debug)]
pub struct ShareInfo {
    /// Its id.
    pub share: [u8; 32],
    /// Files carry signatures, and there can be members.
    pub signed: bool,
    /// Admins of the share around it are kept out.
    pub isolated: bool,
    /// Its ciphers.
    pub suite: Suite,
    /// Unit in which large files are sealed, in bytes.
    pub chunk_size: u32,
    /// Who made it.
    pub founder: PublicIdentity,
    /// The number of the folder key that is in use.
    pub epoch: u32,
    /// The heads that count, the longest first; several are a fork.
    pub heads: Vec<Pin>,
    /// Signing key of whoever made the last change.
    pub signer: [u8; 32],
    /// When, in seconds since 1970, as the signer says.
    pub time: u64,
    /// The members at the first head, ascending by signing key.
    pub members: Vec<Member>,
    /// What this identity may do.
    pub own_role: Role,
}

/// One change of the membership.
#[derive(Clone, Debug)]
pub struct LogEntry {
    /// The manifest.
    pub head: Pin,
    /// When, in seconds since 1970, as the signer says.
    pub time: u64,
    /// Who signed it.
    pub signer: [u8; 32],
    /// The number of the folder key from then on.
    pub epoch: u32,
    /// It settles a fork: the head of the branch that lost.
    pub settles: Option<[u8; 32]>,
    /// Who came, who left, and whose role is another one; `None` where the list of members before or after cannot be read any more.
    pub changes: Option<MemberChanges>,
}

/// The difference between two lists of members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberChanges {
    /// Who came.
    pub added: Vec<Member>,
    /// Who left.
    pub removed: Vec<Member>,
    /// Who stayed in another role, with the new one.
    pub changed: Vec<Member>,
}

impl MemberChanges {
    fn between(before: &[Member], after: &[Member]) -> MemberChanges {
        let find = |list: &[Member], member: &Member| list.iter().find(|m| m.public == member.public).cloned();
        MemberChanges {
            added: after.iter().filter(|m| find(before, m).is_none()).cloned().collect(),
            removed: before.iter().filter(|m| find(after, m).is_none()).cloned().collect(),
            changed: after.iter().filter(|m| find(before, m).is_some_and(|old| old.role != m.role)).cloned().collect(),
        }
    }
}

/// The share of an open vault.
pub struct Share<'a> {
    vault: &'a Vault,
}

impl Vault {
    /// The public half of the identity that has the vault open.
    pub fn identity(&self) -> PublicIdentity {
        self.core().keys.signing.identity().public()
    }

    /// The vault's own share, to be looked at and changed.
    pub fn share(&self) -> Share<'_> {
        Share { vault: self }
    }
}

fn refused(op: &'static str, source: RosterError) -> Error {
    Error::Members { op, source }
}

impl Share<'_> {
    fn entered(&self) -> Result<Entered> {
        let core = self.vault.core();
        // the vault was opened, so something has vouched for this id
        share::enter(&*core.root, core.keys.signing.identity(), &self.vault.inside.trust, Some(&core.keys.share), &PathBuf::new())
    }

    /// The only head, to be changed by this identity, which must be an admin there.
    fn only(&self, op: &'static str) -> Result<Head> {
        let mut heads = self.entered()?.heads;
        if heads.len() > 1 {
            return Err(refused(op, RosterError::Forked(heads.len())));
        }
        let head = heads.remove(0);
        if !head.roster.descriptor().signed {
            return Err(refused(op, RosterError::OwnerOnly));
        }
        if head.roster.is_admin(&self.vault.core().keys.signing.own()) { Ok(head) } else { Err(refused(op, RosterError::NotAdmin)) }
    }

    fn change(
        &self,
        op: &'static str,
        head: &Head,
        make: impl FnOnce(&Acting<'_>) -> std::result::Result<Change, RosterError>,
    ) -> Result<Pin> {
        let core = self.vault.core();
        let acting = Acting {
            by: core.keys.signing.identity(),
            keys: &head.keys,
            members: &head.members,
            random: &*core.random,
            now: share::unix_now(),
        };
        let change = make(&acting).map_err(|source| refused(op, source))?;
        share::put_change(&*core.root, &change).map_err(|fault| fault.at(op, PathBuf::new))?;
        self.vault.refresh()?;
        let heads = self.entered()?.heads;
        Ok(heads[0].roster.head())
    }

    /// What the share is at present, read and verified anew.
    ///
    /// # Errors
    /// What keeps the roster from being verified or opened.
    pub fn info(&self) -> Result<ShareInfo> {
        let Entered { descriptor, heads, .. } = self.entered()?;
        let Head { roster, members, .. } = &heads[0];
        let own = self.vault.core().keys.signing.own();
        Ok(ShareInfo {
            share: descriptor.share_id(),
            signed: descriptor.signed,
            isolated: descriptor.isolated,
            suite: descriptor.suite,
            chunk_size: descriptor.chunk_size(),
            founder: descriptor.founder,
            epoch: roster.epoch(),
            heads: heads.iter().map(|head| head.roster.head()).collect(),
            signer: roster.manifest().signer,
            time: roster.manifest().time,
            members: members.all().to_vec(),
            own_role: members.get(&own).map_or(Role::Reader, |member| member.role),
        })
    }

    /// An invitation for the member with this signing key, signed by this identity, which must be an admin.
    ///
    /// # Errors
    /// [`Error::Members`]: this identity is no admin, or nobody has this key.
    pub fn invite(&self, sign: &[u8; 32]) -> Result<Vec<u8>> {
        let op = "invite member";
        let Head { roster, members, .. } = self.only(op)?;
        let by = self.vault.core().keys.signing.identity();
        let member = members.get(sign).ok_or_else(|| refused(op, RosterError::NoSuchMember))?;
        let signed = Invitation::sign(roster.descriptor(), &roster.head(), by, &member.public, share::unix_now());
        signed.map_err(|_| refused(op, RosterError::OwnerOnly))
    }

    /// All changes from the founding on to the first head.
    ///
    /// # Errors
    /// As [`Share::info`].
    pub fn log(&self) -> Result<Vec<LogEntry>> {
        let core = self.vault.core();
        let heads = self.entered()?.heads;
        let Head { roster, keys, .. } = &heads[0];
        let mut before: Option<Members> = None;
        let mut first = true;
        let mut log = Vec::new();
        for (manifest, hash) in roster.history() {
            let after = roster.members_at(manifest.sequence, keys, &mut share::block_reader(&*core.root)).ok();
            let changes = match (&before, &after) {
                (Some(before), Some(after)) => Some(MemberChanges::between(before.all(), after.all())),
                (None, Some(after)) if first => Some(MemberChanges::between(&[], after.all())),
                _ => None,
            };
            log.push(LogEntry {
                head: Pin { sequence: manifest.sequence, hash: *hash },
                time: manifest.time,
                signer: manifest.signer,
                epoch: manifest.epoch,
                settles: Some(manifest.second_parent).filter(|parent| *parent != [0; 32]),
                changes,
            });
            (before, first) = (after, false);
        }
        Ok(log)
    }

    /// Adds members; each can read the whole history of the share from then on. Gives the new head.
    ///
    /// # Errors
    /// [`Error::Members`]: this identity is no admin, the share has one owner, somebody is a member already, or a bound.
    pub fn add(&self, new: &[Member]) -> Result<Pin> {
        let head = self.only("add member")?;
        self.change("add member", &head, |acting| head.roster.add_members(acting, new))
    }

    /// Gives a member a role that may do more than his present one.
    ///
    /// # Errors
    /// [`Error::Members`], among them [`RosterError::NeedsInventory`] for a role that may do less.
    pub fn promote(&self, sign: &[u8; 32], role: Role) -> Result<Pin> {
        let op = "change role of member";
        let head = self.only(op)?;
        let member = head.members.get(sign).ok_or_else(|| refused(op, RosterError::NoSuchMember))?;
        if role <= member.role {
            return Err(refused(op, RosterError::NeedsInventory(member.name.clone())));
        }
        self.change(op, &head, |acting| head.roster.set_role(acting, sign, role, None))
    }

    /// Removes readers: a new epoch begins, under a folder key that they do not get. What they have read they keep.
    ///
    /// # Errors
    /// [`Error::Members`], among them [`RosterError::NeedsInventory`] for somebody who may write.
    pub fn remove_readers(&self, signs: &[[u8; 32]]) -> Result<Pin> {
        let op = "remove member";
        let head = self.only(op)?;
        for sign in signs {
            let member = head.members.get(sign).ok_or_else(|| refused(op, RosterError::NoSuchMember))?;
            if member.role.may_write() {
                return Err(refused(op, RosterError::NeedsInventory(member.name.clone())));
            }
        }
        self.change(op, &head, |acting| head.roster.remove_members(acting, signs, None))
    }

    /// Settles a fork in favour of the head with this hash; the members are those of that head, but for the readers in `gone`. This
    /// identity must be an admin on both sides.
    ///
    /// # Errors
    /// [`Error::Members`]: there is no fork, or no such head; this identity is no admin of one of them; somebody could write on the
    /// losing side alone, so that his files would need an inventory.
    pub fn settle(&self, keep: &[u8; 32]) -> Result<Pin> {
        let op = "settle fork";
        let heads = self.entered()?.heads;
        let wins = heads.iter().find(|head| head.roster.head().hash == *keep).ok_or_else(|| refused(op, RosterError::NoFork))?;
        let loses = heads.iter().find(|head| head.roster.head().hash != *keep).ok_or_else(|| refused(op, RosterError::NoFork))?;
        // While the heads exclude each other only those write who may on both sides; what somebody has signed before the fork and may
        // not on the winning side would need an inventory.
        let lost = loses.members.all().iter().find(|m| m.role.may_write() && !wins.members.may_write(&m.public.sign));
        if let Some(lost) = lost {
            return Err(refused(op, RosterError::NeedsInventory(lost.name.clone())));
        }
        self.change(op, wins, |acting| wins.roster.settle(acting, &loses.roster, &loses.keys, &[]))
    }
}
