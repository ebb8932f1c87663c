//! Founding a share and changing its membership: pure functions from a verified roster to the next
//! manifest and slot block.
//!
//! Rules: every result was verified as a reader verifies it. Removing a member starts a new epoch
//! with a new folder key. A change writes two new files and changes no old one. The slot block must
//! be durable before the manifest that names it appears.

use zeroize::Zeroizing;

use super::chain::{Roster, VerifiedRoster};
use super::error::RosterError;
use super::identity::Identity;
use super::keys::{FolderKeys, Members, history_context};
use super::slots::{Place, seal_block};
use crate::crypto::hierarchy::EpochKeys;
use crate::crypto::keys::FolderKey;
use crate::crypto::labels;
use crate::crypto::random::Random;
use crate::crypto::record::RecordCipher;
use crate::crypto::suite::Suite;
use crate::format::identity::label_allowed;
use crate::format::layout::{CHUNK_LOG2_MAX, CHUNK_LOG2_MIN};
use crate::format::manifest::{
    BlockRef, HistoryEntry, MAX_ADMINS, MAX_BLOCKS, MAX_HISTORY, Manifest, SEALED_KEY_LEN,
};
use crate::format::members::{MAX_MEMBERS, MAX_NAME, Member, Role};
use crate::format::share::{LONGEST_NAME_DEFAULT, ShareDescriptor};
use crate::format::slots;

/// Up to this many members, adding one makes a new block for all. Above, it makes a block for the
/// new members alone, while the manifest has room for it.
const REBUILD_UP_TO: usize = 256;

/// The properties of a share to found.
#[derive(Debug, Clone, Copy)]
pub struct FoundParams<'a> {
    /// Cipher suite for the share's whole life.
    pub suite: Suite,
    /// Whether files are signed; without signatures the share always has one owner.
    pub signed: bool,
    /// Whether a parent's admins are kept out; needs `signed`.
    pub isolated: bool,
    /// Base-two logarithm of the chunk size.
    pub chunk_log2: u8,
    /// The founder's name in the member list.
    pub name: &'a str,
    /// The first members, besides the founder.
    pub others: &'a [Member],
}

/// A share that has just been founded.
pub struct Founded {
    /// Content of `+share`.
    pub descriptor: Vec<u8>,
    /// The first manifest and its slot block.
    pub change: Change,
    /// The roster, verified.
    pub roster: VerifiedRoster,
    /// The folder key of the first epoch, as [`VerifiedRoster::open`] would return it.
    pub keys: FolderKeys,
}

/// Two files to write, the slot block first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Name of the slot block's file.
    pub slots_name: String,
    /// Content of the slot block.
    pub slots: Vec<u8>,
    /// Name of the manifest's file.
    pub manifest_name: String,
    /// Content of the manifest.
    pub manifest: Vec<u8>,
}

/// A commitment to the objects that stay valid although their signer may no longer write. The admin
/// has just verified them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inventory {
    /// Merkle root of the hashes of the objects.
    pub root: [u8; 32],
    /// Hash of the inventory's file.
    pub file: [u8; 32],
}

/// The admin that changes a roster, and the keys and members at its head.
#[derive(Clone, Copy)]
pub struct Acting<'a> {
    /// An admin of the share.
    pub by: &'a Identity,
    /// From [`VerifiedRoster::open`].
    pub keys: &'a FolderKeys,
    /// From [`VerifiedRoster::members`].
    pub members: &'a Members,
    /// For new keys and nonces.
    pub random: &'a dyn Random,
    /// The time, in seconds since 1970.
    pub now: u64,
}

/// A manifest before it is signed.
struct Draft<'a> {
    place: Place<'a>,
    sequence: u32,
    previous: [u8; 32],
    second_parent: [u8; 32],
    folder: &'a FolderKey,
    /// Earlier keys to include; empty if the epoch stays.
    earlier: Vec<(u32, [u8; 32], &'a FolderKey)>,
    /// All members after the change, sorted.
    members: &'a [Member],
    /// Blocks that stay unchanged.
    kept: &'a [BlockRef],
    /// The recipients of the new block, sorted.
    recipients: &'a [Member],
    inventory: Option<Inventory>,
}

impl Draft<'_> {
    fn sign(
        mut self,
        by: &Identity,
        random: &dyn Random,
        now: u64,
    ) -> Result<(Change, [u8; 32]), RosterError> {
        let admins: Vec<[u8; 32]> =
            self.members.iter().filter(|m| m.role == Role::Admin).map(|m| m.public.sign).collect();
        match admins.len() {
            0 => return Err(RosterError::NoAdmin),
            n if n > MAX_ADMINS => return Err(RosterError::TooMany("admins")),
            _ => {}
        }
        if self.members.len() > MAX_MEMBERS {
            return Err(RosterError::TooMany("members"));
        }
        if self.earlier.len() > MAX_HISTORY {
            return Err(RosterError::TooMany("earlier epochs"));
        }
        if self.members.iter().any(|member| !label_allowed(&member.name, MAX_NAME)) {
            return Err(RosterError::BadName);
        }
        let Place { share, suite, epoch } = self.place;
        let keys = EpochKeys::derive(self.folder, share, epoch, suite);
        let cipher = RecordCipher::new(suite, keys.history.expose());
        self.earlier.sort_by_key(|(epoch, commitment, _)| (*epoch, *commitment));
        let seal_earlier = |(earlier, commitment, key): &(u32, [u8; 32], &FolderKey)| {
            let context = history_context(share, epoch, &keys.commitment, *earlier, commitment);
            let mut sealed = [0; SEALED_KEY_LEN];
            sealed.copy_from_slice(&cipher.seal_record(random, &context, key.expose()));
            HistoryEntry { epoch: *earlier, commitment: *commitment, sealed }
        };
        let history = self.earlier.iter().map(seal_earlier).collect();
        let (header, block) = seal_block(self.place, self.folder, self.recipients, random)?;
        let root = header.root();
        let inventory = self.inventory.unwrap_or(Inventory { root: [0; 32], file: [0; 32] });
        let mut manifest = Manifest {
            suite,
            sequence: self.sequence,
            epoch,
            time: now,
            share: *share,
            previous: self.previous,
            second_parent: self.second_parent,
            commitment: keys.commitment,
            inventory_root: inventory.root,
            inventory_file: inventory.file,
            signer: by.public().sign,
            admins,
            blocks: [self.kept, &[BlockRef { root, count: header.count }]].concat(),
            history,
            signature: [0; 64],
        };
        manifest.signature = by.sign(&labels::MANIFEST_SIGNATURE, &manifest.signed_bytes());
        let change = Change {
            slots_name: slots::file_name(&root),
            slots: block,
            manifest_name: manifest.file_name(),
            manifest: manifest.encode(),
        };
        Ok((change, keys.commitment))
    }
}

fn new_folder_key(random: &dyn Random) -> FolderKey {
    let mut bytes = Zeroizing::new([0; 32]);
    random.fill(&mut *bytes);
    FolderKey::from_bytes(*bytes)
}

/// Returns `list` with `new` in it, sorted; no signing key and no exchange key may occur twice.
fn with_members(list: &[Member], new: &[Member]) -> Result<Vec<Member>, RosterError> {
    let mut all = [list, new].concat();
    all.sort_by_key(|member| member.public.exchange);
    let same_exchange =
        all.windows(2).find(|pair| pair[0].public.exchange == pair[1].public.exchange);
    if let Some(pair) = same_exchange {
        return Err(RosterError::AlreadyMember(pair[1].name.clone()));
    }
    all.sort_by_key(|member| member.public.sign);
    match all.windows(2).find(|pair| pair[0].public.sign == pair[1].public.sign) {
        Some(pair) => Err(RosterError::AlreadyMember(pair[1].name.clone())),
        None => Ok(all),
    }
}

/// Founds a share: its descriptor, its first manifest and slot block, and the folder key.
///
/// # Errors
/// A chunk size, name or key that cannot be used; members besides the founder in a share that is
/// not signed.
pub fn found(
    founder: &Identity,
    params: &FoundParams<'_>,
    random: &dyn Random,
    now: u64,
) -> Result<Founded, RosterError> {
    if !(CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX).contains(&params.chunk_log2) {
        return Err(RosterError::ChunkSize);
    }
    if !params.signed && (params.isolated || !params.others.is_empty()) {
        return Err(RosterError::OwnerOnly);
    }
    let mut unique = [0; 32];
    random.fill(&mut unique);
    let FoundParams { suite, signed, isolated, chunk_log2, .. } = *params;
    let descriptor = ShareDescriptor {
        suite,
        signed,
        isolated,
        chunk_log2,
        longest_name: LONGEST_NAME_DEFAULT,
        founder: founder.public(),
        random: unique,
    };
    let share = descriptor.share_id();
    let first =
        Member { public: founder.public(), role: Role::Admin, name: params.name.to_owned() };
    let members = with_members(&[first], params.others)?;
    let folder = new_folder_key(random);
    let draft = Draft {
        place: Place { share: &share, suite, epoch: 1 },
        sequence: 1,
        previous: [0; 32],
        second_parent: [0; 32],
        folder: &folder,
        earlier: Vec::new(),
        members: &members,
        kept: &[],
        recipients: &members,
        inventory: None,
    };
    let (change, commitment) = draft.sign(founder, random, now)?;
    let roster = Roster::verify(&descriptor, &[&change.manifest])?;
    let keys = FolderKeys::of_founder(roster.head().hash, commitment, folder);
    Ok(Founded { descriptor: descriptor.encode(), change, roster, keys })
}

impl VerifiedRoster {
    fn may_change(&self, acting: &Acting<'_>) -> Result<(), RosterError> {
        let head = self.head().hash;
        if *acting.keys.head() != head || acting.members.head != head {
            return Err(RosterError::Stale);
        }
        if self.is_admin(&acting.by.public().sign) { Ok(()) } else { Err(RosterError::NotAdmin) }
    }

    fn may_change_members(&self, acting: &Acting<'_>) -> Result<(), RosterError> {
        self.may_change(acting)?;
        if self.descriptor().signed { Ok(()) } else { Err(RosterError::OwnerOnly) }
    }

    fn finish(&self, draft: Draft<'_>, acting: &Acting<'_>) -> Result<Change, RosterError> {
        let (change, _) = draft.sign(acting.by, acting.random, acting.now)?;
        self.extend(&change.manifest)?;
        Ok(change)
    }

    fn next_sequence(&self) -> Result<u32, RosterError> {
        self.head().sequence.checked_add(1).ok_or(RosterError::TooMany("manifests"))
    }

    /// Drafts a manifest in the same epoch.
    fn same_epoch<'a>(
        &'a self,
        keys: &'a FolderKeys,
        members: &'a [Member],
        kept: &'a [BlockRef],
        recipients: &'a [Member],
    ) -> Result<Draft<'a>, RosterError> {
        Ok(Draft {
            place: self.place(),
            sequence: self.next_sequence()?,
            previous: self.head().hash,
            second_parent: [0; 32],
            folder: &keys.current().key,
            earlier: Vec::new(),
            members,
            kept,
            recipients,
            inventory: None,
        })
    }

    /// Drafts a manifest that starts an epoch under `folder`.
    fn new_epoch<'a>(
        &'a self,
        keys: &'a FolderKeys,
        folder: &'a FolderKey,
        members: &'a [Member],
    ) -> Result<Draft<'a>, RosterError> {
        let epoch = self.epoch().checked_add(1).ok_or(RosterError::TooMany("epochs"))?;
        let before = keys.current();
        Ok(Draft {
            place: Place { epoch, ..self.place() },
            folder,
            earlier: vec![(before.epoch, before.commitment, &before.key)],
            ..self.same_epoch(keys, members, &[], members)?
        })
    }

    /// Adds members in the current epoch. Their slot leads to the folder keys of all earlier
    /// epochs.
    ///
    /// # Errors
    /// [`OwnerOnly`](RosterError::OwnerOnly) in a share that is not signed,
    /// [`NotAdmin`](RosterError::NotAdmin), [`AlreadyMember`](RosterError::AlreadyMember),
    /// [`WeakKey`](RosterError::WeakKey), [`Stale`](RosterError::Stale), a bound.
    pub fn add_members(&self, acting: &Acting<'_>, new: &[Member]) -> Result<Change, RosterError> {
        let Acting { keys, members, .. } = *acting;
        self.may_change_members(acting)?;
        if new.is_empty() {
            return Err(RosterError::NoSuchMember);
        }
        let all = with_members(&members.list, new)?;
        let blocks = &self.manifest().blocks;
        let alone = with_members(&[], new)?;
        let (kept, recipients) = if members.list.len() > REBUILD_UP_TO && blocks.len() < MAX_BLOCKS
        {
            (&blocks[..], &alone)
        } else {
            (&[][..], &all)
        };
        self.finish(self.same_epoch(keys, &all, kept, recipients)?, acting)
    }

    /// Removes members: starts a new epoch with a new folder key, for which they get no slot.
    /// `inventory` commits to the objects that they signed before.
    ///
    /// # Errors
    /// [`NoSuchMember`](RosterError::NoSuchMember), [`NoAdmin`](RosterError::NoAdmin),
    /// [`NotAdmin`](RosterError::NotAdmin), [`Stale`](RosterError::Stale),
    /// [`OwnerOnly`](RosterError::OwnerOnly).
    pub fn remove_members(
        &self,
        acting: &Acting<'_>,
        gone: &[[u8; 32]],
        inventory: Option<Inventory>,
    ) -> Result<Change, RosterError> {
        let Acting { keys, members, .. } = *acting;
        self.may_change_members(acting)?;
        if gone.is_empty() {
            return Err(RosterError::NoSuchMember);
        }
        let left = members.without(gone)?;
        let folder = new_folder_key(acting.random);
        let draft = Draft { inventory, ..self.new_epoch(keys, &folder, &left)? };
        self.finish(draft, acting)
    }

    /// Changes a member's role, in the same epoch: they can still read what they could read before.
    /// If they lose the right to write, `inventory` commits to the objects that they signed before.
    ///
    /// # Errors
    /// As [`VerifiedRoster::remove_members`].
    pub fn set_role(
        &self,
        acting: &Acting<'_>,
        sign: &[u8; 32],
        role: Role,
        inventory: Option<Inventory>,
    ) -> Result<Change, RosterError> {
        let Acting { keys, members, .. } = *acting;
        self.may_change_members(acting)?;
        let mut all = members.list.clone();
        all.iter_mut()
            .find(|member| member.public.sign == *sign)
            .ok_or(RosterError::NoSuchMember)?
            .role = role;
        let draft = Draft { inventory, ..self.same_epoch(keys, &all, &[], &all)? };
        self.finish(draft, acting)
    }

    /// Starts a new epoch with the same members.
    ///
    /// # Errors
    /// [`NotAdmin`](RosterError::NotAdmin), [`Stale`](RosterError::Stale), a bound.
    pub fn rekey(&self, acting: &Acting<'_>) -> Result<Change, RosterError> {
        let Acting { keys, members, .. } = *acting;
        self.may_change(acting)?;
        let folder = new_folder_key(acting.random);
        self.finish(self.new_epoch(keys, &folder, &members.list)?, acting)
    }

    /// Settles a fork in favour of this head. The new manifest has a number above those of both
    /// branches and starts an epoch above theirs, with the members of `acting` minus `gone`. It names
    /// the losing head as second parent and contains the keys of that branch. Members that only the
    /// losing branch added or removed must be added or removed again. The signer must be an admin on
    /// both branches; otherwise an admin removed on one branch could undo the removal by settling.
    /// `inventory` commits to the objects signed by members who lose the right to write.
    ///
    /// # Errors
    /// [`NoFork`](RosterError::NoFork) if `losing` is of another share, or one of the two heads is
    /// in the chain of the other; otherwise as [`VerifiedRoster::remove_members`].
    pub fn settle(
        &self,
        acting: &Acting<'_>,
        losing: &VerifiedRoster,
        losing_keys: &FolderKeys,
        gone: &[[u8; 32]],
        inventory: Option<Inventory>,
    ) -> Result<Change, RosterError> {
        let Acting { keys, members, .. } = *acting;
        self.may_change(acting)?;
        if losing.share_id() != self.share_id()
            || self.contains(&losing.head())
            || losing.contains(&self.head())
        {
            return Err(RosterError::NoFork);
        }
        if *losing_keys.head() != losing.head().hash {
            return Err(RosterError::Stale);
        }
        if !losing.is_admin(&acting.by.public().sign) {
            return Err(RosterError::NotAdmin);
        }
        let left = members.without(gone)?;
        let folder = new_folder_key(acting.random);
        let mut draft = self.new_epoch(keys, &folder, &left)?;
        draft.place.epoch = self
            .epoch()
            .max(losing.epoch())
            .checked_add(1)
            .ok_or(RosterError::TooMany("epochs"))?;
        draft.sequence = self.next_sequence()?.max(losing.next_sequence()?);
        draft.second_parent = losing.head().hash;
        draft.inventory = inventory;
        let unknown = losing_keys.all().filter(|key| {
            !keys.all().any(|own| own.epoch == key.epoch && own.commitment == key.commitment)
        });
        draft.earlier.extend(unknown.map(|key| (key.epoch, key.commitment, &key.key)));
        self.finish(draft, acting)
    }
}
