//! The chain of manifests: when it is valid, which heads count, and the pin of the highest head
//! that was seen.
//!
//! A manifest is valid after another one if all of this holds:
//!
//! * it names the other by hash and comes directly after it in number, or, if it settles a fork,
//!   directly after the higher one of both sides;
//! * it has the same share and suite;
//! * its signer was an admin at the other;
//! * its epoch either stays (same commitment, no history) or is new (the history contains the
//!   earlier folder key).
//!
//! The founder signs the first manifest.
//!
//! Rules: verification needs no key, because admins' signing keys are in the clear. If they were
//! sealed with the other members, a reader would have to use a folder key to find out whether the
//! roster that contains it counts. The price is that the storage host sees how many admins a share
//! has, and their public signing keys.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::error::RosterError;
use super::public::verify_labelled;
use crate::crypto::labels;
use crate::format::manifest::Manifest;
use crate::format::share::ShareDescriptor;

/// Most manifests of a roster.
pub const MAX_CHAIN: usize = 1 << 16;
/// Most heads of a roster; only current and former admins can make one. A share with more is
/// rejected: ignoring a head could readmit a member whom it has removed.
const MAX_HEADS: usize = 64;
/// Most bytes of manifests that are kept while heads are searched, 256 MiB: [`MAX_CHAIN`] manifests
/// with one admin each have a tenth of that.
const MAX_BYTES: usize = 256 << 20;

/// A head that was seen: a client stores it to detect a rollback of the share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pin {
    /// The manifest's number.
    pub sequence: u32,
    /// Its hash.
    pub hash: [u8; 32],
}

#[derive(Debug, Clone)]
struct Link {
    /// Shared, because chains of several heads have it in common.
    manifest: Arc<Manifest>,
    hash: [u8; 32],
}

/// A roster whose every manifest was verified, from the founder's to the head. Only verification
/// creates one.
#[derive(Debug, Clone)]
pub struct VerifiedRoster {
    descriptor: ShareDescriptor,
    share: [u8; 32],
    /// Not empty; in order of sequence, from 1. There may be a gap before a manifest that settles a
    /// fork: the other side may have been longer.
    chain: Vec<Link>,
}

/// The start of verification.
pub struct Roster;

/// Checks one manifest against the previous one. [`sound`] checks what depends on a second parent.
fn check_step(
    descriptor: &ShareDescriptor,
    share: &[u8; 32],
    before: Option<&Link>,
    manifest: &Manifest,
) -> Result<(), RosterError> {
    let n = manifest.sequence;
    let expected = before
        .map_or(Some(1), |link| link.manifest.sequence.checked_add(1))
        .ok_or(RosterError::TooLong)?;
    if manifest.share != *share || manifest.suite != descriptor.suite {
        return Err(RosterError::OtherShare(n));
    }
    let settles = manifest.second_parent != [0; 32];
    if n < expected || n > expected && !settles {
        return Err(RosterError::Sequence { expected, found: n });
    }
    if manifest.previous != before.map_or([0; 32], |link| link.hash) {
        return Err(RosterError::BrokenChain(n));
    }
    let signer_counts = match before {
        Some(link) => link.manifest.admins.binary_search(&manifest.signer).is_ok(),
        None => manifest.signer == descriptor.founder.sign,
    };
    if !signer_counts {
        return Err(RosterError::SignerNotAdmin(n));
    }
    verify_labelled(
        &manifest.signer,
        &labels::MANIFEST_SIGNATURE,
        &manifest.signed_bytes(),
        &manifest.signature,
    )
    .map_err(|_| RosterError::BadSignature(n))?;
    if !epoch_follows(before.map(|link| &*link.manifest), manifest) {
        return Err(RosterError::BadEpoch(n));
    }
    let owner_only = manifest.admins == [descriptor.founder.sign]
        && manifest.blocks.len() == 1
        && manifest.blocks[0].count == 1;
    if !descriptor.signed && !owner_only {
        return Err(RosterError::OwnerOnly);
    }
    Ok(())
}

fn epoch_follows(before: Option<&Manifest>, manifest: &Manifest) -> bool {
    let settles = manifest.second_parent != [0; 32];
    let Some(before) = before else {
        return manifest.epoch == 1 && manifest.history.is_empty() && !settles;
    };
    if manifest.epoch == before.epoch {
        return manifest.commitment == before.commitment && manifest.history.is_empty() && !settles;
    }
    let hands_on = manifest
        .history
        .iter()
        .any(|entry| entry.epoch == before.epoch && entry.commitment == before.commitment);
    let earlier = manifest.history.iter().all(|entry| (1..manifest.epoch).contains(&entry.epoch));
    // The losing branch of a fork can have more epochs, so the settling manifest may skip numbers
    // of epochs and contain more than one key.
    let count = if settles {
        manifest.epoch > before.epoch
    } else {
        before.epoch.checked_add(1) == Some(manifest.epoch)
    };
    hands_on && earlier && count && (settles || manifest.history.len() == 1)
}

impl Roster {
    /// Verifies a chain that is passed in order, from the first manifest to the head.
    ///
    /// # Errors
    /// The first fault, with the number of the manifest.
    pub fn verify<B: AsRef<[u8]>>(
        descriptor: &ShareDescriptor,
        manifests: &[B],
    ) -> Result<VerifiedRoster, RosterError> {
        if manifests.len() > MAX_CHAIN {
            return Err(RosterError::TooLong);
        }
        let share = descriptor.share_id();
        let mut chain: Vec<Link> = Vec::with_capacity(manifests.len());
        for bytes in manifests {
            let manifest = Manifest::decode(bytes.as_ref())?;
            check_step(descriptor, &share, chain.last(), &manifest)?;
            chain.push(Link { hash: manifest.hash(), manifest: Arc::new(manifest) });
        }
        if chain.is_empty() {
            return Err(RosterError::Empty);
        }
        Ok(VerifiedRoster { descriptor: *descriptor, share, chain })
    }
}

/// Finds the heads of a roster among manifests that are read one by one, in order of their numbers.
/// It keeps only valid ones: only current and former admins can make them.
pub struct Assembly {
    descriptor: ShareDescriptor,
    share: [u8; 32],
    valid: Valid,
    bytes: usize,
}

impl Assembly {
    /// Creates one without manifests.
    pub fn new(descriptor: &ShareDescriptor) -> Self {
        Assembly {
            descriptor: *descriptor,
            share: descriptor.share_id(),
            valid: HashMap::new(),
            bytes: 0,
        }
    }

    /// Verifies the next manifest. Those of lower numbers must come before it.
    ///
    /// # Errors
    /// What is wrong with it; it is dropped.
    pub fn take(&mut self, manifest: Manifest) -> Result<(), RosterError> {
        if self.valid.len() >= MAX_CHAIN {
            return Err(RosterError::TooLong);
        }
        let before = self.valid.get(&manifest.previous);
        if before.is_none() && manifest.sequence != 1 {
            return Err(RosterError::BrokenChain(manifest.sequence));
        }
        check_step(&self.descriptor, &self.share, before, &manifest)?;
        let bytes = self.bytes + manifest.signed_bytes().len();
        if bytes > MAX_BYTES {
            return Err(RosterError::TooLong);
        }
        let hash = manifest.hash();
        if self.valid.insert(hash, Link { manifest: Arc::new(manifest), hash }).is_none() {
            self.bytes = bytes;
        }
        Ok(())
    }

    /// Returns the heads that are not settled. A pin excludes its own history and what former admins
    /// signed beside it. A manifest settles its second parent if its signer was an admin *there* too;
    /// otherwise a removed admin could undo the removal by settling.
    ///
    /// A manifest does not count if it settles a branch that is missing, or if its number and epoch are
    /// not the next above those of both branches; its descendants do not count either. That is known
    /// only after all manifests were read.
    ///
    /// # Errors
    /// [`Empty`](RosterError::Empty) if none counts; [`RolledBack`](RosterError::RolledBack) or
    /// [`NotDescended`](RosterError::NotDescended) if the pinned one is missing;
    /// [`TooMany`](RosterError::TooMany) heads.
    pub fn finish(self, pin: Option<&Pin>) -> Result<Standing, RosterError> {
        let Assembly { descriptor, share, mut valid, .. } = self;
        let sound = sound(&valid);
        let mut ignored = Vec::new();
        valid.retain(|hash, link| {
            let counts = sound.contains(hash);
            if !counts {
                ignored.push(RosterError::BadEpoch(link.manifest.sequence));
            }
            counts
        });
        let counted: HashSet<[u8; 32]> = match pin {
            Some(pin) => counted(&valid, pin)?,
            None => valid.keys().copied().collect(),
        };
        let links = || counted.iter().filter_map(|hash| valid.get(hash));
        let passed: HashSet<[u8; 32]> = links()
            .flat_map(|link| [Some(link.manifest.previous), settled_by(&valid, link)])
            .flatten()
            .collect();
        let mut tips: Vec<&Link> = links().filter(|link| !passed.contains(&link.hash)).collect();
        tips.sort_by_key(|link| (std::cmp::Reverse(link.manifest.sequence), link.hash));
        if tips.is_empty() {
            return Err(RosterError::Empty);
        }
        if let Some(pin) = pin {
            let history =
                valid.get(&pin.hash).map(|link| ancestors(&valid, link)).unwrap_or_default();
            let is_known = |hash| counted.contains(hash) || history.contains(hash);
            let rivals = valid.keys().filter(|hash| !is_known(*hash)).count();
            ignored.extend((0..rivals).map(|_| RosterError::NotDescended(pin.sequence)));
        }
        if tips.len() > MAX_HEADS {
            return Err(RosterError::TooMany("heads"));
        }
        let heads = tips.into_iter().map(|tip| chain_to(&descriptor, share, &valid, tip)).collect();
        let pinned = pin.and_then(|pin| valid.get(&pin.hash)).map(|link| link.manifest.clone());
        Ok(Standing { heads, ignored, pinned })
    }
}

/// Verified manifests by their hash.
type Valid = HashMap<[u8; 32], Link>;

/// Returns the manifests whose ancestors are all present. For one that settles a fork this includes
/// the second parent, which must differ from the first; and its number and epoch must be the next
/// above both. So a manifest has a higher number than all of its ancestors, and a client that keeps the
/// highest head that counts never keeps one that a settlement has passed.
fn sound(valid: &Valid) -> HashSet<[u8; 32]> {
    const NONE: [u8; 32] = [0; 32];
    let parents = |link: &Link| {
        [link.manifest.previous, link.manifest.second_parent]
            .into_iter()
            .filter(|hash| *hash != NONE)
    };
    let mut waiting: HashMap<[u8; 32], (usize, Vec<[u8; 32]>)> =
        HashMap::with_capacity(valid.len());
    for link in valid.values() {
        waiting.entry(link.hash).or_default().0 = parents(link).count();
        for parent in parents(link) {
            waiting.entry(parent).or_default().1.push(link.hash);
        }
    }
    let follows = |link: &Link| {
        let Manifest { previous, second_parent, .. } = &*link.manifest;
        let is_next = |number: fn(&Manifest) -> u32| {
            let of = |hash| valid.get(hash).map(|link: &Link| number(&link.manifest));
            of(previous).max(of(second_parent)).and_then(|highest| highest.checked_add(1))
                == Some(number(&link.manifest))
        };
        *second_parent == NONE
            || previous != second_parent
                && is_next(|manifest| manifest.epoch)
                && is_next(|manifest| manifest.sequence)
    };
    let mut sound = HashSet::new();
    let mut next: Vec<[u8; 32]> = valid
        .values()
        .filter(|link| parents(link).next().is_none())
        .map(|link| link.hash)
        .collect();
    while let Some(hash) = next.pop() {
        let Some(link) = valid.get(&hash).filter(|link| follows(link)) else { continue };
        sound.insert(link.hash);
        for child in waiting.remove(&hash).map(|(_, children)| children).unwrap_or_default() {
            if let Some((parents, _)) = waiting.get_mut(&child) {
                *parents -= 1;
                if *parents == 0 {
                    next.push(child);
                }
            }
        }
    }
    sound
}

/// Returns the head that this manifest settles, if it is allowed to.
fn settled_by(valid: &Valid, link: &Link) -> Option<[u8; 32]> {
    let lost = valid.get(&link.manifest.second_parent)?;
    lost.manifest.admins.binary_search(&link.manifest.signer).is_ok().then_some(lost.hash)
}

/// Returns the manifests that count with a pin: the pinned one and its descendants, by first
/// parents and by settling, and the branches that leave its history.
///
/// The history is the pinned manifest and its ancestors, by first parents and by settling. A branch
/// counts before the first manifest that a former admin has signed: an admin of a manifest in the
/// history who is not an admin at the pin. Otherwise a removed admin could bring back a list of
/// members from before the removal, as a fork that makes the share read-only.
fn counted(valid: &Valid, pin: &Pin) -> Result<HashSet<[u8; 32]>, RosterError> {
    let pinned = valid.get(&pin.hash).filter(|link| link.manifest.sequence == pin.sequence);
    let Some(pinned) = pinned else {
        let longest =
            valid.values().map(|link| link.manifest.sequence).max().ok_or(RosterError::Empty)?;
        return Err(not_continued(longest, pin));
    };
    let mut children: HashMap<[u8; 32], Vec<&Link>> = HashMap::with_capacity(valid.len());
    for link in valid.values() {
        for parent in [Some(link.manifest.previous), settled_by(valid, link)].into_iter().flatten()
        {
            children.entry(parent).or_default().push(link);
        }
    }
    let below = |hash: &[u8; 32]| children.get(hash).into_iter().flatten().copied();
    let (mut found, mut next) = (HashSet::from([pin.hash]), vec![pin.hash]);
    while let Some(hash) = next.pop() {
        next.extend(below(&hash).map(|link| link.hash).filter(|child| found.insert(*child)));
    }
    let history = ancestors(valid, pinned);
    let were_admins: HashSet<&[u8; 32]> = history
        .iter()
        .filter_map(|hash| valid.get(hash))
        .flat_map(|l| &l.manifest.admins)
        .collect();
    let is_former = |sign: &[u8; 32]| {
        were_admins.contains(sign) && pinned.manifest.admins.binary_search(sign).is_err()
    };
    next.extend(&history);
    while let Some(hash) = next.pop() {
        let apart = below(&hash).filter(|link| {
            link.manifest.previous == hash
                && !history.contains(&link.hash)
                && !is_former(&link.manifest.signer)
        });
        next.extend(apart.map(|link| link.hash).filter(|child| found.insert(*child)));
    }
    Ok(found)
}

/// Returns a manifest and all its ancestors, by first parents and by settling.
fn ancestors(valid: &Valid, link: &Link) -> HashSet<[u8; 32]> {
    let (mut found, mut next) = (HashSet::from([link.hash]), vec![link]);
    while let Some(link) = next.pop() {
        let parents = [Some(link.manifest.previous), settled_by(valid, link)];
        let parents = parents.into_iter().flatten().filter_map(|hash| valid.get(&hash));
        next.extend(parents.filter(|parent| found.insert(parent.hash)));
    }
    found
}

fn not_continued(found: u32, pin: &Pin) -> RosterError {
    if found < pin.sequence {
        RosterError::RolledBack { found, pinned: pin.sequence }
    } else {
        RosterError::NotDescended(pin.sequence)
    }
}

fn chain_to(
    descriptor: &ShareDescriptor,
    share: [u8; 32],
    valid: &Valid,
    tip: &Link,
) -> VerifiedRoster {
    let mut chain: Vec<Link> =
        std::iter::successors(Some(tip), |link| valid.get(&link.manifest.previous))
            .cloned()
            .collect();
    chain.reverse();
    VerifiedRoster { descriptor: *descriptor, share, chain }
}

/// The result of [`Assembly::finish`].
#[derive(Debug)]
pub struct Standing {
    /// The heads that count, the highest sequence first; more than one is a fork.
    pub heads: Vec<VerifiedRoster>,
    /// Why each manifest that does not count is ignored, although it is valid after its predecessor:
    /// the pin excludes it, or it or an ancestor settles a branch that is missing, or has a number or
    /// an epoch that does not follow from both parents.
    pub ignored: Vec<RosterError>,
    /// The pinned manifest. It need not be in the chain of a head: its branch may have lost a fork.
    pub pinned: Option<Arc<Manifest>>,
}

impl VerifiedRoster {
    fn last(&self) -> &Link {
        self.chain.last().expect("a verified roster has at least the founder's manifest")
    }

    /// Returns the share's descriptor.
    pub fn descriptor(&self) -> &ShareDescriptor {
        &self.descriptor
    }

    /// Returns the share's id.
    pub fn share_id(&self) -> &[u8; 32] {
        &self.share
    }

    /// Returns the head, to be pinned.
    pub fn head(&self) -> Pin {
        Pin { sequence: self.last().manifest.sequence, hash: self.last().hash }
    }

    /// Returns the manifest at the head.
    pub fn manifest(&self) -> &Manifest {
        &self.last().manifest
    }

    /// Returns all manifests from the first to the head, each with its hash.
    pub fn history(&self) -> impl DoubleEndedIterator<Item = (&Manifest, &[u8; 32])> {
        self.chain.iter().map(|link| (&*link.manifest, &link.hash))
    }

    /// Returns the epoch at the head.
    pub fn epoch(&self) -> u32 {
        self.manifest().epoch
    }

    /// Returns whether the holder of this signing key is an admin at the head.
    pub fn is_admin(&self, sign: &[u8; 32]) -> bool {
        self.manifest().admins.binary_search(sign).is_ok()
    }

    /// Returns the manifest that began this epoch in this chain.
    pub(super) fn beginning_of(&self, epoch: u32, commitment: &[u8; 32]) -> Option<&Manifest> {
        self.chain
            .iter()
            .map(|link| &*link.manifest)
            .find(|manifest| manifest.epoch == epoch && manifest.commitment == *commitment)
    }

    /// Returns the manifest of this chain with that number, and its hash.
    pub(super) fn at(&self, sequence: u32) -> Option<(&Manifest, &[u8; 32])> {
        let at = self.chain.binary_search_by_key(&sequence, |link| link.manifest.sequence).ok()?;
        self.chain.get(at).map(|link| (&*link.manifest, &link.hash))
    }

    /// Returns whether the pinned manifest is in this chain.
    pub fn contains(&self, pin: &Pin) -> bool {
        self.at(pin.sequence).is_some_and(|(_, hash)| *hash == pin.hash)
    }

    /// Returns this roster with one more manifest.
    ///
    /// # Errors
    /// Those of [`Roster::verify`] for the longer chain.
    pub fn extend(&self, manifest: &[u8]) -> Result<Self, RosterError> {
        if self.chain.len() >= MAX_CHAIN {
            return Err(RosterError::TooLong);
        }
        let manifest = Manifest::decode(manifest)?;
        check_step(&self.descriptor, &self.share, Some(self.last()), &manifest)?;
        let mut longer = self.clone();
        longer.chain.push(Link { hash: manifest.hash(), manifest: Arc::new(manifest) });
        Ok(longer)
    }
}
