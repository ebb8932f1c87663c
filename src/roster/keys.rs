//! The parts of a verified roster that need a member's keys: the folder keys of all epochs, and the
//! list of members.
//!
//! Rules: no key is returned before it was compared with the commitment in a verified manifest.
//! [`FolderKeys`] and [`Members`] store the head at which they were read, and changes of the roster
//! reject those of another head.

use std::io;

use super::chain::VerifiedRoster;
use super::error::RosterError;
use super::identity::Identity;
use super::slots::{Place, open_members, open_slot, read_header};
use crate::crypto::hierarchy::EpochKeys;
use crate::crypto::keys::{FolderKey, equal};
use crate::crypto::labels;
use crate::crypto::record::RecordCipher;
use crate::format::cursor::Writer;
use crate::format::manifest::{BlockRef, HistoryEntry};
use crate::format::members::{Member, Role};

/// Fills the buffer from an offset of the named slot block (its file name is
/// [`slots::file_name`](crate::format::slots::file_name) of the root).
pub type ReadBlock<'a> = dyn FnMut(&BlockRef, u64, &mut [u8]) -> io::Result<()> + 'a;

/// The folder key of one epoch.
pub struct EpochKey {
    /// The epoch's number.
    pub epoch: u32,
    /// The key's commitment; with the number it identifies the epoch.
    pub commitment: [u8; 32],
    /// The key.
    pub key: FolderKey,
}

/// The folder keys of all epochs of a share, each checked against its commitment.
pub struct FolderKeys {
    head: [u8; 32],
    /// Ascending by (epoch, commitment).
    epochs: Vec<EpochKey>,
    current: usize,
    first: usize,
}

/// Returns the associated data with which an earlier folder key is sealed.
pub(super) fn history_context(
    share: &[u8; 32],
    epoch: u32,
    commitment: &[u8; 32],
    earlier: u32,
    earlier_commitment: &[u8; 32],
) -> Vec<u8> {
    let mut w = Writer::new();
    w.bytes(labels::HISTORY.as_bytes())
        .bytes(share)
        .u32(epoch)
        .bytes(commitment)
        .u32(earlier)
        .bytes(earlier_commitment);
    w.into_vec()
}

impl FolderKeys {
    pub(super) fn of_founder(head: [u8; 32], commitment: [u8; 32], key: FolderKey) -> Self {
        Self { head, epochs: vec![EpochKey { epoch: 1, commitment, key }], current: 0, first: 0 }
    }

    pub(super) fn head(&self) -> &[u8; 32] {
        &self.head
    }

    /// Returns the key under which all new data is written.
    pub fn current(&self) -> &EpochKey {
        &self.epochs[self.current]
    }

    /// Returns the key of the share's first epoch, from which the tags of directories are derived.
    pub fn first(&self) -> &EpochKey {
        &self.epochs[self.first]
    }

    /// Returns the key of an epoch, identified as in file headers: by number and the first eight
    /// bytes of the commitment.
    pub fn get(&self, epoch: u32, commitment: &[u8; 8]) -> Option<&EpochKey> {
        self.epochs.iter().find(|key| key.epoch == epoch && key.commitment[..8] == *commitment)
    }

    /// Returns all keys, ascending by epoch.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = &EpochKey> {
        self.epochs.iter()
    }
}

impl VerifiedRoster {
    pub(super) fn place(&self) -> Place<'_> {
        Place { share: self.share_id(), suite: self.descriptor().suite, epoch: self.epoch() }
    }

    /// Opens the slot of `identity` and, through the history, the folder keys of all earlier
    /// epochs.
    ///
    /// # Errors
    /// [`NotMember`](RosterError::NotMember) if no block has a slot for it; otherwise what was
    /// wrong with a block, a slot, or a key that does not match its commitment.
    pub fn open(
        &self,
        identity: &Identity,
        read: &mut ReadBlock<'_>,
    ) -> Result<FolderKeys, RosterError> {
        let mut refused = None;
        for block in &self.manifest().blocks {
            let mut read_at = |at: u64, buf: &mut [u8]| read(block, at, buf);
            let opened = read_header(self.place(), &block.root, block.count, &mut read_at)
                .and_then(|header| open_slot(self.place(), &header, identity, &mut read_at));
            match opened {
                Ok(Some(folder)) => return self.unlock_history(folder),
                Ok(None) => {}
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or(RosterError::NotMember))
    }

    fn check_commitment(
        &self,
        key: &FolderKey,
        epoch: u32,
        commitment: &[u8; 32],
    ) -> Result<EpochKeys, RosterError> {
        let keys = EpochKeys::derive(key, self.share_id(), epoch, self.descriptor().suite);
        if equal(&keys.commitment, commitment) {
            Ok(keys)
        } else {
            Err(RosterError::WrongFolderKey(epoch))
        }
    }

    fn unlock_history(&self, folder: FolderKey) -> Result<FolderKeys, RosterError> {
        let mut epochs: Vec<EpochKey> = Vec::new();
        let mut found = vec![EpochKey {
            epoch: self.epoch(),
            commitment: self.manifest().commitment,
            key: folder,
        }];
        // Every entry has a smaller number than the epoch that contains it (verification checks
        // it), so this terminates.
        while let Some(epoch) = found.pop() {
            let keys = self.check_commitment(&epoch.key, epoch.epoch, &epoch.commitment)?;
            let is_new = |entry: &&HistoryEntry| {
                let same =
                    |key: &EpochKey| key.epoch == entry.epoch && key.commitment == entry.commitment;
                !epochs.iter().chain(&found).any(same)
            };
            let entries = self
                .beginning_of(epoch.epoch, &epoch.commitment)
                .map_or(&[][..], |manifest| &manifest.history);
            let cipher = RecordCipher::new(self.descriptor().suite, keys.history.expose());
            let mut handed_on = Vec::with_capacity(entries.len());
            for entry in entries.iter().filter(is_new) {
                let context = history_context(
                    self.share_id(),
                    epoch.epoch,
                    &epoch.commitment,
                    entry.epoch,
                    &entry.commitment,
                );
                let opened = cipher
                    .open_record(&context, &entry.sealed)
                    .map_err(|_| RosterError::WrongFolderKey(entry.epoch))?;
                let bytes = <[u8; 32]>::try_from(&opened[..])
                    .map_err(|_| RosterError::WrongFolderKey(entry.epoch))?;
                handed_on.push(EpochKey {
                    epoch: entry.epoch,
                    commitment: entry.commitment,
                    key: FolderKey::from_bytes(bytes),
                });
            }
            found.extend(handed_on);
            epochs.push(epoch);
        }
        epochs.sort_by_key(|key| (key.epoch, key.commitment));
        let position = |epoch: u32, commitment: &[u8; 32]| {
            epochs.iter().position(|key| key.epoch == epoch && key.commitment == *commitment)
        };
        let current = position(self.epoch(), &self.manifest().commitment)
            .ok_or(RosterError::WrongFolderKey(self.epoch()))?;
        let genesis = self
            .history()
            .next()
            .map(|(manifest, _)| manifest.commitment)
            .ok_or(RosterError::Empty)?;
        let first = position(1, &genesis).ok_or(RosterError::WrongFolderKey(1))?;
        Ok(FolderKeys { head: self.head().hash, epochs, current, first })
    }

    /// Reads the member list at the head. `keys` must come from [`VerifiedRoster::open`] of this
    /// roster.
    ///
    /// # Errors
    /// [`Stale`](RosterError::Stale); [`BadMembers`](RosterError::BadMembers) if a list does not
    /// open, or has a member twice, other admins than the manifest, or in an unsigned share anybody
    /// but the founder; [`WrongFolderKey`](RosterError::WrongFolderKey); what was wrong with a
    /// block.
    pub fn members(
        &self,
        keys: &FolderKeys,
        read: &mut ReadBlock<'_>,
    ) -> Result<Members, RosterError> {
        self.members_at(self.head().sequence, keys, read)
    }

    /// Reads the members as [`VerifiedRoster::members`] does, at an earlier manifest of this chain.
    /// Its blocks must still exist.
    ///
    /// # Errors
    /// As [`VerifiedRoster::members`]; [`Empty`](RosterError::Empty) if the chain has no such
    /// manifest.
    pub fn members_at(
        &self,
        sequence: u32,
        keys: &FolderKeys,
        read: &mut ReadBlock<'_>,
    ) -> Result<Members, RosterError> {
        if *keys.head() != self.head().hash {
            return Err(RosterError::Stale);
        }
        let (manifest, hash) = self.at(sequence).ok_or(RosterError::Empty)?;
        let short = manifest.commitment.first_chunk().expect("a commitment has 32 bytes");
        let epoch =
            keys.get(manifest.epoch, short).ok_or(RosterError::WrongFolderKey(manifest.epoch))?;
        let records =
            self.check_commitment(&epoch.key, manifest.epoch, &manifest.commitment)?.records;
        let place = Place { epoch: manifest.epoch, ..self.place() };
        let mut list = Vec::new();
        for block in &manifest.blocks {
            let mut read_at = |at: u64, buf: &mut [u8]| read(block, at, buf);
            let header = read_header(place, &block.root, block.count, &mut read_at)?;
            list.extend(open_members(place, &header, &records, &mut read_at)?);
        }
        list.sort_by_key(|member: &Member| member.public.sign);
        let twice = !list.is_sorted_by(|a, b| a.public.sign < b.public.sign);
        let admins = list
            .iter()
            .filter(|member| member.role == Role::Admin)
            .map(|member| &member.public.sign);
        let strangers = !self.descriptor().signed
            && list.iter().any(|member| member.public != self.descriptor().founder);
        if twice || strangers || !admins.eq(&manifest.admins) {
            return Err(RosterError::BadMembers);
        }
        Ok(Members { head: *hash, list })
    }
}

/// The members at a manifest, as an admin signed them.
#[derive(Debug, Clone)]
pub struct Members {
    pub(super) head: [u8; 32],
    /// Ascending by signing key.
    pub(super) list: Vec<Member>,
}

impl Members {
    /// Returns the member with this signing key.
    pub fn get(&self, sign: &[u8; 32]) -> Option<&Member> {
        self.list
            .binary_search_by(|member| member.public.sign.cmp(sign))
            .ok()
            .map(|at| &self.list[at])
    }

    /// Returns the members except those with these signing keys.
    pub(super) fn without(&self, gone: &[[u8; 32]]) -> Result<Vec<Member>, RosterError> {
        if gone.iter().any(|sign| self.get(sign).is_none()) {
            return Err(RosterError::NoSuchMember);
        }
        let stays = |member: &&Member| !gone.contains(&member.public.sign);
        Ok(self.list.iter().filter(stays).cloned().collect())
    }

    /// Returns all members, ascending by signing key.
    pub fn all(&self) -> &[Member] {
        &self.list
    }
}
