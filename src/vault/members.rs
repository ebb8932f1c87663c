//! The membership of a share: who is in it, and changing that. Nothing here needs the vault's lock: a change makes new control files
//! beside the old ones, and whoever has the share open, in this process or another, notices them.
//!
//! Rules that hold here
//! * What a former writer had signed stays valid through an inventory that is taken just before, of what was verified then; it is taken
//!   again until two in a row are the same, because names may move meanwhile.
//! * Who is removed from a share and was an admin of it is removed from the shares in it too, unless they are isolated.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::core::{Core, list, read_control};
use super::error::{Error, Fault, Inner, Result};
use super::share::{self, Entered, Head, Vouched};
use super::types::{NodeId, ROOT};
use super::{OsRandom, ShareProgress, Vault};
use crate::backing::{Access, Kind};
use crate::crypto::Suite;
use crate::format::inventory::{self, InventoryList};
use crate::format::journal::header_hash;
use crate::format::layout::SMALL_MAX;
use crate::format::name::{DIRECTORY_RECORD, Decoded, SIDECAR, is_control};
use crate::format::record::{OVERFLOW, RecordKind, link_record};
use crate::format::share::ShareDescriptor;
use crate::sharing::{Acting, Change, Inventory, Invitation, Member, Pin, PublicIdentity, Role, RosterError};

/// How often an inventory is taken before the caller is told that the share is busy.
const ROUNDS: usize = 8;
/// Longest record that is looked at.
const RECORD_MAX: usize = 8192;

/// A share of an open vault, to be asked about its members.
pub struct Share {
    pub(super) vault: Vault,
    pub(super) core: Arc<Core>,
    number: u64,
}

/// What is known of a share.
#[derive(Clone, Debug)]
pub struct ShareInfo {
    /// Its id.
    pub share: [u8; 32],
    /// Plain path of its folder from the vault's root, empty for the vault's own.
    pub path: Vec<u8>,
    /// Whether files are signed and there can be members.
    pub signed: bool,
    /// Whether the parent's admins are kept out.
    pub isolated: bool,
    /// Cipher suite.
    pub suite: Suite,
    /// Bytes of a chunk.
    pub chunk_size: u32,
    /// Who made it.
    pub founder: PublicIdentity,
    /// Number of the current folder key.
    pub epoch: u32,
    /// Heads of the roster; more than one is a fork.
    pub heads: Vec<Pin>,
    /// Signing key of who signed the first head.
    pub signer: [u8; 32],
    /// When, by his clock, in seconds since 1970.
    pub time: u64,
    /// Members at the first head, by signing key.
    pub members: Vec<Member>,
    /// What this identity may do.
    pub own_role: Role,
}

/// One step of the membership's history.
#[derive(Clone, Debug)]
pub struct LogEntry {
    /// The manifest.
    pub head: Pin,
    /// When, by the signer's clock, in seconds since 1970.
    pub time: u64,
    /// Signing key of who signed it.
    pub signer: [u8; 32],
    /// Number of the folder key from here on.
    pub epoch: u32,
    /// Signing keys of the admins from here on.
    pub admins: Vec<[u8; 32]>,
    /// Number of members from here on.
    pub members: u64,
    /// What it did.
    pub what: LogKind,
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

/// What a step of the membership's history did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// Made the share.
    Founded,
    /// Added members, or changed what one may do.
    Members,
    /// Began a new epoch: somebody was removed, or the key was changed.
    NewEpoch,
    /// Settled a fork.
    Settled,
}

impl Vault {
    /// The share in which `path` stands; the folder of a share stands in that share.
    ///
    /// # Errors
    /// As [`Vault::resolve`]; what keeps the share from being entered.
    pub fn share_at(&self, path: &[u8]) -> Result<Share> {
        let node = self.resolve(path)?.node;
        let entered = self.shares().run("find", node, |core, local| match core.directory_id(local) {
            Err(Fault::Boundary) => Err(Fault::Boundary),
            _ => Ok(()),
        });
        let route = entered.and_then(|_| self.shares().route(node).map_err(|fault| fault.at("find", PathBuf::new)));
        self.forget(node, 1);
        let route = route?;
        Ok(Share { vault: self.clone(), core: route.core, number: route.number })
    }

    /// Who can read what is at `path`: the members of its share.
    ///
    /// # Errors
    /// As [`Vault::share_at`].
    pub fn who_can_read(&self, path: &[u8]) -> Result<Vec<Member>> {
        Ok(self.share_at(path)?.info()?.members)
    }
}

impl Share {
    fn error(source: RosterError) -> Error {
        Error::Members { op: "change members", source }
    }

    fn enter(&self) -> Result<Entered> {
        let shown = self.core.shown_path(ROOT);
        let vouched = Vouched { share: Some(self.core.keys.share), head: self.core.seen.lock().head };
        share::enter(&*self.core.root, self.core.keys.signing.identity(), self.vault.shares().trust(), &vouched, &shown)
    }

    /// The descriptor, which invitations name.
    ///
    /// # Errors
    /// What reading it can fail with.
    pub fn descriptor(&self) -> Result<ShareDescriptor> {
        share::descriptor(&*self.core.root, &self.core.shown_path(ROOT))
    }

    /// An invitation for the member with this signing key, signed by this identity, which must be an admin.
    ///
    /// # Errors
    /// [`Error::Members`]: there is a fork, this identity is no admin, or nobody has this key.
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
        let signed = Invitation::sign(&descriptor, &roster.head(), by, &member.public, share::unix_now());
        signed.map_err(|_| Self::error(RosterError::OwnerOnly))
    }

    /// Public half of the identity that has the share open.
    pub fn identity(&self) -> PublicIdentity {
        self.core.keys.signing.identity().public()
    }

    /// Members, roles, heads.
    ///
    /// # Errors
    /// What is wrong with the roster.
    pub fn info(&self) -> Result<ShareInfo> {
        let Entered { descriptor, heads, .. } = self.enter()?;
        let own = self.core.keys.signing.own();
        let manifest = heads[0].roster.manifest();
        let stored = self.vault.shares().stored_path(self.number, ROOT).unwrap_or_default();
        Ok(ShareInfo {
            share: self.core.keys.share,
            path: self.vault.plain_path(&stored)?,
            signed: descriptor.signed,
            isolated: descriptor.isolated,
            suite: descriptor.suite,
            chunk_size: descriptor.chunk_size(),
            founder: descriptor.founder,
            epoch: manifest.epoch,
            heads: heads.iter().map(|head| head.roster.head()).collect(),
            signer: manifest.signer,
            time: manifest.time,
            members: heads[0].members.all().to_vec(),
            own_role: heads[0].members.get(&own).map_or(Role::Reader, |member| member.role),
        })
    }

    /// The verified history of the membership, from the founding to the first head.
    ///
    /// # Errors
    /// What is wrong with the roster.
    pub fn log(&self) -> Result<Vec<LogEntry>> {
        let entered = self.enter()?;
        let Head { roster, keys, .. } = &entered.heads[0];
        let mut log: Vec<LogEntry> = Vec::new();
        let mut before: Option<Vec<Member>> = Some(Vec::new());
        for (manifest, hash) in roster.history() {
            let after = roster.members_at(manifest.sequence, keys, &mut share::block_reader(&*self.core.root));
            let after = after.ok().map(|members| members.all().to_vec());
            let changes = before.as_ref().zip(after.as_ref()).map(|(before, after)| MemberChanges::between(before, after));
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
                admins: manifest.admins.clone(),
                members: manifest.blocks.iter().map(|block| u64::from(block.count)).sum(),
                what,
                changes,
            });
        }
        Ok(log)
    }

    /// Makes a change of the roster by `change`, and takes it over.
    fn change(&self, change: impl FnOnce(&Head, &Acting<'_>) -> std::result::Result<Change, RosterError>) -> Result<Pin> {
        let entered = self.enter()?;
        if entered.forked {
            return Err(Self::error(RosterError::Forked(entered.heads.len().max(2))));
        }
        self.change_at(&entered.heads[0], change)
    }

    fn change_at(&self, head: &Head, change: impl FnOnce(&Head, &Acting<'_>) -> std::result::Result<Change, RosterError>) -> Result<Pin> {
        let identity = self.core.keys.signing.identity();
        let acting = Acting { by: identity, keys: &head.keys, members: &head.members, random: &OsRandom, now: share::unix_now() };
        let change = change(head, &acting).map_err(Self::error)?;
        share::put_change(&*self.core.root, &change).map_err(|fault| self.core.explain("change the members of", ROOT, fault))?;
        self.core.refresh(self.vault.shares().trust())?;
        Ok(self.enter()?.heads[0].roster.head())
    }

    /// Adds members.
    ///
    /// # Errors
    /// Those of [`VerifiedRoster::add_members`](crate::sharing::VerifiedRoster::add_members), as [`Error::Share`]; what the store says.
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

    /// Removes members, by their signing keys: a new epoch, with an inventory of what they had signed.
    ///
    /// # Errors
    /// As [`Share::add`]; `EBUSY` where files that they signed change all the time; what is wrong with a file of theirs is no error: it is
    /// left out of the inventory.
    pub fn remove(&self, signs: &[[u8; 32]], progress: &mut dyn FnMut(&ShareProgress)) -> Result<Pin> {
        let before = self.enter()?;
        let (inventory, nested) = self.take_inventory(signs, progress)?;
        let pin = self.change(|head, acting| head.roster.remove_members(acting, signs, inventory))?;
        let was_admin = |sign: &[u8; 32]| before.heads[0].members.get(sign).is_some_and(|member| member.role == Role::Admin);
        let admins: Vec<[u8; 32]> = signs.iter().filter(|sign| was_admin(sign)).copied().collect();
        for place in nested {
            let outside = self.vault.shares().outside(self.number, place);
            let child = self.vault.shares().directory("enter", outside).map(|route| Share {
                vault: self.vault.clone(),
                core: route.core,
                number: route.number,
            });
            self.core.nodes.forget(place, 1);
            if admins.is_empty() {
                continue;
            }
            let removed = child.and_then(|child| {
                let info = child.info()?;
                let there: Vec<[u8; 32]> =
                    admins.iter().filter(|sign| info.members.iter().any(|m| m.public.sign == **sign)).copied().collect();
                if info.isolated || there.is_empty() { Ok(()) } else { child.remove(&there, progress).map(|_| ()) }
            });
            if let Err(error) = removed {
                tracing::error!("a share within still has members who were removed: {error}");
            }
        }
        Ok(pin)
    }

    /// Changes what a member may do; where he may write no longer, with an inventory of what he had signed.
    ///
    /// # Errors
    /// As [`Share::remove`].
    pub fn set_role(&self, sign: &[u8; 32], role: Role, progress: &mut dyn FnMut(&ShareProgress)) -> Result<Pin> {
        let before = self.enter()?.heads[0].members.get(sign).map(|member| member.role);
        // An admin who becomes a writer has signed junctions, which need an admin.
        let inventory = match before.is_some_and(|before| before > role) {
            true => {
                let (inventory, nested) = self.take_inventory(&[*sign], progress)?;
                nested.iter().for_each(|node| self.core.nodes.forget(*node, 1));
                inventory
            }
            false => None,
        };
        self.change(|head, acting| head.roster.set_role(acting, sign, role, inventory))
    }

    /// Settles a fork in favour of the head with the hash `keep`; members in `gone` are left out.
    ///
    /// # Errors
    /// [`RosterError::NoFork`], [`RosterError::NotAdmin`] where this identity is no admin at each head, as [`Error::Share`].
    pub fn settle(&self, keep: &[u8; 32], gone: &[[u8; 32]]) -> Result<Pin> {
        let mut keep = *keep;
        let mut gone = gone;
        loop {
            let Entered { mut heads, forked, .. } = self.enter()?;
            let at = heads.iter().position(|head| head.roster.head().hash == keep).ok_or_else(|| Self::error(RosterError::NoFork))?;
            let winner = heads.swap_remove(at);
            let Some(loser) = heads.first() else {
                // A head that cannot be opened cannot be settled, and must not be said to be.
                return if forked { Err(Self::error(RosterError::NotAdmin)) } else { Ok(winner.roster.head()) };
            };
            let identity = self.core.keys.signing.identity();
            let acting = Acting { by: identity, keys: &winner.keys, members: &winner.members, random: &OsRandom, now: share::unix_now() };
            let change = winner.roster.settle(&acting, &loser.roster, &loser.keys, gone).map_err(Self::error)?;
            keep = winner.roster.extend(&change.manifest).map_err(Self::error)?.head().hash;
            share::put_change(&*self.core.root, &change).map_err(|fault| self.core.explain("settle", ROOT, fault))?;
            self.core.refresh(self.vault.shares().trust())?;
            gone = &[]; // they are out by now
        }
    }

    /// What these members have signed last and what is valid now; with the places of nested shares, each counted once.
    fn take_inventory(&self, signs: &[[u8; 32]], progress: &mut dyn FnMut(&ShareProgress)) -> Result<(Option<Inventory>, Vec<NodeId>)> {
        self.core.refresh(self.vault.shares().trust())?;
        // All of it was valid when it was seen, so all of it stays: whoever is to be removed must not be able to hinder that by writing on.
        let mut all: HashSet<[u8; 32]> = HashSet::new();
        for round in 1..=ROUNDS {
            let mut walk =
                Walk { core: &self.core, of: signs, hashes: HashSet::new(), nested: Vec::new(), done: ShareProgress::default(), progress };
            let walked = walk.directory(ROOT);
            let (hashes, nested) = (walk.hashes, walk.nested);
            if let Err(fault) = walked {
                nested.iter().for_each(|node| self.core.nodes.forget(*node, 1));
                return Err(self.core.explain("take an inventory of", ROOT, fault));
            }
            let known = all.len();
            all.extend(hashes);
            if round == ROUNDS || round > 1 && all.len() == known {
                if all.is_empty() {
                    return Ok((None, nested));
                }
                let list = InventoryList::new(all.into_iter().collect());
                let (bytes, root) = (list.encode(), list.root());
                let file = inventory::file_hash(&bytes);
                let name = inventory::file_name(&file);
                let written = match share::write_new(&*self.core.root, name.as_bytes(), &bytes) {
                    // The same list from a removal that did not come to its end.
                    Err(Fault::Io(e)) if e.raw_os_error() == Some(libc::EEXIST) => self.same(&name, &bytes),
                    other => other,
                };
                let durable = written.and_then(|()| Ok(self.core.root.sync()?));
                durable.map_err(|fault| self.core.explain("take an inventory of", ROOT, fault))?;
                return Ok((Some(Inventory { root, file }), nested));
            }
            nested.iter().for_each(|node| self.core.nodes.forget(*node, 1));
        }
        Err(self.core.explain("take an inventory of", ROOT, Fault::Os(libc::EBUSY)))
    }

    /// Sees to it that the control file holds these bytes: an earlier attempt may have left half of them.
    fn same(&self, name: &str, bytes: &[u8]) -> Inner<()> {
        let file = self.core.root.open_file(name.as_bytes(), Access::ReadWrite)?;
        file.write_at(bytes, 0)?;
        file.set_len(bytes.len() as u64)?;
        Ok(file.sync_all()?)
    }
}

/// Goes through a share and notes what certain members have signed.
struct Walk<'a> {
    core: &'a Core,
    of: &'a [[u8; 32]],
    hashes: HashSet<[u8; 32]>,
    nested: Vec<NodeId>,
    done: ShareProgress,
    progress: &'a mut dyn FnMut(&ShareProgress),
}

impl Walk<'_> {
    /// Notes the record `bytes` if it is valid and signed by one of them. What is not valid is for the check to tell.
    fn record(&mut self, kind: RecordKind, bound: &[u8], bytes: &[u8]) {
        if let Ok((_, Some(by))) = self.core.keys.open_record_by(kind, bound, bytes)
            && self.of.contains(&by.signer)
        {
            self.hashes.insert(header_hash(bytes));
        }
    }

    fn control(&mut self, node: NodeId, id: &[u8; 32], name: &[u8]) -> Inner<()> {
        let prefixes = [SIDECAR, crate::format::junction::PREFIX, b"+link-"];
        if name != DIRECTORY_RECORD && !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            return Ok(());
        }
        let Some(bytes) = read_control(&*self.core.dir(node)?, name, RECORD_MAX)? else { return Ok(()) };
        // The hash stands in the name, as it does in that of the entry.
        let hash = |prefix: &[u8]| match self.core.keys.names(id).decode(&[&b"="[..], &name[prefix.len()..]].concat()) {
            Decoded::Long { hash, .. } => Some([&id[..], &hash].concat()),
            _ => None,
        };
        if name == DIRECTORY_RECORD {
            self.record(RecordKind::Directory, b"", &bytes);
        } else if name.starts_with(SIDECAR) {
            if let Some(bound) = hash(SIDECAR) {
                self.record(RecordKind::Name, &bound, &bytes);
            }
        } else if name.starts_with(crate::format::junction::PREFIX) {
            if let Some(bound) = hash(crate::format::junction::PREFIX) {
                self.record(RecordKind::Junction, &bound, &bytes);
            }
        } else if let Some(reference) = super::symlink::overflow_reference(name) {
            self.record(RecordKind::LongSymlink, &reference, &bytes);
        }
        Ok(())
    }

    fn directory(&mut self, node: NodeId) -> Inner<()> {
        let id = self.core.directory_id(node)?;
        let dir = self.core.dir(node)?;
        for entry in list(&*dir)? {
            if is_control(&entry.name) {
                self.control(node, &id, &entry.name)?;
                continue;
            }
            let Ok(stat) = dir.stat(&entry.name) else { continue };
            match stat.kind {
                Kind::File => {
                    let Ok(file) = dir.open_file(&entry.name, Access::Read) else { continue };
                    let header = self.core.keys.layout.header();
                    let mut bytes = vec![0; header + SMALL_MAX as usize];
                    let read = file.read_at(&mut bytes, 0)?;
                    bytes.truncate(read);
                    if let Ok(opened) = self.core.keys.open_header(&bytes)
                        && opened.by.is_some_and(|by| self.of.contains(&by.signer))
                    {
                        self.hashes.insert(header_hash(&bytes[..header]));
                    }
                    self.done.files += 1;
                    (self.progress)(&self.done);
                }
                Kind::Symlink => {
                    let Ok(text) = dir.readlink(&entry.name) else { continue };
                    let (text, bound): (&[u8], &[u8]) = match text.split_first() {
                        Some((&OVERFLOW, rest)) => (rest, b"+"),
                        _ => (&text, b""),
                    };
                    if let Ok(record) = link_record(text) {
                        self.record(RecordKind::Symlink, bound, &record);
                    }
                }
                Kind::Dir => {
                    let Some(name) = self.core.folder(node)?.decode(&entry.name)? else { continue };
                    let Ok(attr) = self.core.lookup(node, &name) else { continue };
                    let walked = self.directory(attr.node);
                    if matches!(walked, Err(Fault::Boundary)) {
                        self.nested.push(attr.node);
                        continue;
                    }
                    self.core.nodes.forget(attr.node, 1);
                    match walked {
                        // What cannot be authenticated has nothing that could be kept.
                        Err(Fault::Corrupt(_) | Fault::Format(_)) | Ok(()) => {}
                        Err(fault) if matches!(fault.errno(), libc::ENOENT | libc::ESTALE) => {}
                        Err(fault) => return Err(fault),
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}
