//! Rosters against people who try to change them. A test that is named after an attack performs it.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use kithfs::crypto::hierarchy::EpochKeys;
use kithfs::crypto::keys::IdentitySeed;
use kithfs::crypto::labels;
use kithfs::crypto::random::Random;
use kithfs::crypto::record::RecordCipher;
use kithfs::crypto::suite::Suite;
use kithfs::format::FormatErrorKind;
use kithfs::format::manifest::{BlockRef, Manifest};
use kithfs::format::share::ShareDescriptor;
use kithfs::format::slots::{self, BlockError, SlotHeader};
use kithfs::roster::{
    Acting, Assembly, Change, FolderKeys, FoundParams, Founded, Identity, Inventory, Member,
    Members, Pin, PinnedShare, Proof, Role, Roster, RosterError, Standing, VerifiedRoster, found,
};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

/// Reproducible bytes: SHA-256 of a counter.
struct Counter(AtomicU64);

impl Random for Counter {
    fn fill(&self, buf: &mut [u8]) {
        for piece in buf.chunks_mut(32) {
            let n = self.0.fetch_add(1, Ordering::Relaxed);
            piece.copy_from_slice(&Sha256::digest(n.to_le_bytes())[..piece.len()]);
        }
    }
}

fn random(seed: u64) -> Counter {
    Counter(AtomicU64::new(seed << 32))
}

fn person(n: u8) -> Identity {
    Identity::from_seed(IdentitySeed::from_bytes([n; 32]))
}

fn member(identity: &Identity, role: Role, name: &str) -> Member {
    Member { public: identity.public(), role, name: name.to_owned() }
}

fn sign_key(identity: &Identity) -> [u8; 32] {
    identity.public().sign
}

/// The contents of the store, as the storage host sees and changes them.
#[derive(Clone)]
struct Store {
    descriptor: ShareDescriptor,
    manifests: Vec<Vec<u8>>,
    blocks: HashMap<[u8; 32], Vec<u8>>,
}

const NOW: u64 = 1_700_000_000;

/// Finds the heads among manifests in any order, as a client that reads a directory does.
fn assemble<B: AsRef<[u8]>>(
    descriptor: &ShareDescriptor,
    bag: &[B],
    pin: Option<&Pin>,
) -> Result<Standing, RosterError> {
    let decoded = bag.iter().map(|bytes| Manifest::decode(bytes.as_ref()));
    let (mut manifests, mut ignored) = (Vec::new(), Vec::new());
    for manifest in decoded {
        match manifest {
            Ok(manifest) => manifests.push(manifest),
            Err(error) => ignored.push(RosterError::from(error)),
        }
    }
    manifests.sort_by_key(|manifest| manifest.sequence);
    let mut assembly = Assembly::new(descriptor);
    ignored.extend(manifests.into_iter().filter_map(|manifest| assembly.take(manifest).err()));
    let mut standing = assembly.finish(pin)?;
    standing.ignored.extend(ignored);
    Ok(standing)
}

/// Returns the only head.
fn only(standing: &Standing) -> &VerifiedRoster {
    let [head] = &standing.heads[..] else { panic!("{} heads", standing.heads.len()) };
    head
}

impl Store {
    fn new(founded: &Founded) -> Self {
        let descriptor = ShareDescriptor::decode(&founded.descriptor).unwrap();
        let mut store = Self { descriptor, manifests: Vec::new(), blocks: HashMap::new() };
        store.put(&founded.change);
        store
    }

    fn put(&mut self, change: &Change) {
        let root = slots::check(&change.slots).unwrap().root();
        assert_eq!(change.slots_name, slots::file_name(&root));
        self.blocks.insert(root, change.slots.clone());
        self.manifests.push(change.manifest.clone());
    }

    fn roster(&self) -> VerifiedRoster {
        Roster::verify(&self.descriptor, &self.manifests).unwrap()
    }

    fn reader(&self) -> impl FnMut(&BlockRef, u64, &mut [u8]) -> io::Result<()> + '_ {
        |block, at, buf| {
            let bytes = self.blocks.get(&block.root).ok_or(io::ErrorKind::NotFound)?;
            slots::slice_reader(bytes)(at, buf)
        }
    }

    fn open(&self, identity: &Identity) -> Result<FolderKeys, RosterError> {
        self.roster().open(identity, &mut self.reader())
    }

    fn members(&self, keys: &FolderKeys) -> Result<Members, RosterError> {
        self.roster().members(keys, &mut self.reader())
    }

    /// Opens everything that an operation needs.
    fn as_admin(&self, identity: &Identity) -> (VerifiedRoster, FolderKeys, Members) {
        let keys = self.open(identity).unwrap();
        let members = self.members(&keys).unwrap();
        (self.roster(), keys, members)
    }

    fn add(&mut self, by: &Identity, new: &[Member], random: &Counter) {
        let (roster, keys, members) = self.as_admin(by);
        self.put(&roster.add_members(&acting(by, &keys, &members, random), new).unwrap());
    }

    fn remove(&mut self, by: &Identity, gone: &Identity, random: &Counter) {
        let (roster, keys, members) = self.as_admin(by);
        self.put(
            &roster
                .remove_members(&acting(by, &keys, &members, random), &[sign_key(gone)], None)
                .unwrap(),
        );
    }

    fn rekey(&mut self, by: &Identity, random: &Counter) {
        let (roster, keys, members) = self.as_admin(by);
        self.put(&roster.rekey(&acting(by, &keys, &members, random)).unwrap());
    }
}

fn acting<'a>(
    by: &'a Identity,
    keys: &'a FolderKeys,
    members: &'a Members,
    random: &'a Counter,
) -> Acting<'a> {
    Acting { by, keys, members, random, now: NOW }
}

fn params(suite: Suite, signed: bool) -> FoundParams<'static> {
    FoundParams { suite, signed, isolated: false, chunk_log2: 18, name: "Ann", others: &[] }
}

/// Ann (founder), Bob (admin), Cem (reader) in a signed share.
fn three(random: &Counter) -> (Store, Identity, Identity, Identity) {
    let (ann, bob, cem) = (person(1), person(2), person(3));
    let mut store = Store::new(&found(&ann, &params(Suite::Aes256Gcm, true), random, NOW).unwrap());
    store.add(&ann, &[member(&bob, Role::Admin, "Bob"), member(&cem, Role::Reader, "Cem")], random);
    (store, ann, bob, cem)
}

/// Signs a manifest as `by` after `change` has modified it.
fn forge(manifest: &[u8], by: &Identity, change: impl FnOnce(&mut Manifest)) -> Vec<u8> {
    let mut forged = Manifest::decode(manifest).unwrap();
    change(&mut forged);
    forged.signer = sign_key(by);
    forged.signature = by.sign(&labels::MANIFEST_SIGNATURE, &forged.signed_bytes());
    forged.encode()
}

fn verify(store: &Store) -> Result<VerifiedRoster, RosterError> {
    Roster::verify(&store.descriptor, &store.manifests)
}

fn unauthentic(error: &RosterError) -> bool {
    matches!(error, RosterError::Block(BlockError::Format(e)) if e.kind() == FormatErrorKind::Unauthentic)
}

#[test]
fn a_founder_opens_every_kind_of_share_they_made() {
    for suite in Suite::ALL {
        for signed in [true, false] {
            let ann = person(1);
            let founded = found(&ann, &params(suite, signed), &random(1), NOW).unwrap();
            let store = Store::new(&founded);
            assert_eq!(founded.change.manifest_name, founded.roster.manifest().file_name());
            let (roster, keys, members) = store.as_admin(&ann);
            assert_eq!(roster.share_id(), &store.descriptor.share_id());
            assert_eq!(keys.current().key.expose(), founded.keys.current().key.expose());
            assert_eq!(keys.first().epoch, 1);
            assert_eq!(members.all(), [member(&ann, Role::Admin, "Ann")]);
            assert!(matches!(store.open(&person(2)), Err(RosterError::NotMember)));
        }
    }
}

#[test]
fn members_have_their_roles_and_all_hold_the_same_key() {
    let (store, ann, bob, cem) = three(&random(1));
    let (_, keys, members) = store.as_admin(&ann);
    for identity in [&bob, &cem] {
        assert_eq!(
            store.open(identity).unwrap().current().key.expose(),
            keys.current().key.expose()
        );
    }
    assert_eq!(members.get(&sign_key(&cem)).unwrap().name, "Cem");
    let may_write =
        |who: &Identity| members.get(&sign_key(who)).is_some_and(|member| member.role.may_write());
    assert!(may_write(&bob) && !may_write(&cem) && !may_write(&person(9)));
}

#[test]
fn new_member_reads_all_epochs_with_one_slot() {
    let random = random(1);
    let (mut store, ann, _, cem) = three(&random);
    let mut held = vec![*store.open(&ann).unwrap().current().key.expose()];
    for _ in 0..3 {
        store.rekey(&ann, &random);
        held.push(*store.open(&ann).unwrap().current().key.expose());
    }
    store.remove(&ann, &cem, &random);
    held.push(*store.open(&ann).unwrap().current().key.expose());
    let dan = person(4);
    store.add(&ann, &[member(&dan, Role::Reader, "Dan")], &random);
    let keys = store.open(&dan).unwrap();
    assert_eq!(keys.all().map(|key| *key.key.expose()).collect::<Vec<_>>(), held);
    assert_eq!(keys.all().map(|key| key.epoch).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!((keys.first().epoch, keys.current().epoch), (1, 5));
    let third = keys.all().nth(2).unwrap();
    let name = *third.commitment.first_chunk().unwrap();
    assert_eq!(keys.get(3, &name).unwrap().key.expose(), third.key.expose());
    assert!(keys.get(2, &name).is_none());
}

#[test]
fn removed_members_old_key_opens_nothing_of_the_new_epoch() {
    let random = random(1);
    let (mut store, ann, _, cem) = three(&random);
    let held = store.open(&cem).unwrap();
    store.remove(&ann, &cem, &random);
    assert!(matches!(store.open(&cem), Err(RosterError::NotMember)));
    let roster = store.roster();
    let (share, suite) = (roster.share_id(), roster.descriptor().suite);
    let new = store.open(&ann).unwrap();
    let block = &store.blocks[&roster.manifest().blocks[0].root];
    let header = slots::check(block).unwrap();
    let sealed_members = header.read_members(&mut slots::slice_reader(block)).unwrap();
    for old in held.all() {
        assert_ne!(old.key.expose(), new.current().key.expose());
        for epoch in [1, 2] {
            // Every key derived from what the removed member held, tried on data that is sealed in
            // the new epoch.
            let keys = EpochKeys::derive(&old.key, share, epoch, suite);
            assert_ne!(keys.commitment, roster.manifest().commitment);
            for key in [
                keys.history.expose(),
                keys.records.expose(),
                keys.names.expose(),
                keys.content.expose(),
                old.key.expose(),
            ] {
                let cipher = RecordCipher::new(suite, key);
                assert!(cipher.open_record(&header.associated_data(), &sealed_members).is_err());
                assert!(cipher.open_record(&[], &roster.manifest().history[0].sealed).is_err());
            }
        }
    }
    assert!(matches!(roster.members(&held, &mut store.reader()), Err(RosterError::Stale)));
}

#[test]
fn attack_older_roster_cut() {
    let random = random(1);
    let (mut store, ann, _, cem) = three(&random);
    let seen_before = store.roster().head();
    store.remove(&ann, &cem, &random);
    let pin = store.roster().head();
    let mut old = store.clone();
    old.manifests.pop();
    // By itself the older chain is valid; only a pin reveals the rollback.
    let cut = verify(&old).unwrap();
    assert!(!cut.contains(&pin));
    let assembled = assemble(&old.descriptor, &old.manifests, Some(&pin));
    assert!(matches!(assembled, Err(RosterError::RolledBack { found: 2, pinned: 3 })));
    assert!(store.roster().contains(&seen_before) && store.roster().contains(&pin));
}

#[test]
fn attack_slots_swapped() {
    let (mut store, ann, bob, cem) = three(&random(1));
    let root = store.roster().manifest().blocks[0].root;
    let honest = store.open(&ann).unwrap();
    let original = store.blocks[&root].clone();
    let slot = |bytes: &[u8], i: usize| {
        bytes[slots::HEADER_LEN + i * slots::SLOT_LEN..][..slots::SLOT_LEN].to_vec()
    };
    for (i, j, from) in [(0, 1, 0), (1, 2, 0), (0, 2, 0), (0, 1, 16), (1, 2, 16), (0, 2, 16)] {
        // Whole slots, then the sealed keys alone with the tags left in order.
        let mut bytes = original.clone();
        let (a, b) = (slot(&bytes, i), slot(&bytes, j));
        bytes[slots::HEADER_LEN + i * slots::SLOT_LEN..][from..slots::SLOT_LEN]
            .copy_from_slice(&b[from..]);
        bytes[slots::HEADER_LEN + j * slots::SLOT_LEN..][from..slots::SLOT_LEN]
            .copy_from_slice(&a[from..]);
        store.blocks.insert(root, bytes);
        for identity in [&ann, &bob, &cem] {
            assert!(unauthentic(&store.open(identity).err().unwrap()));
        }
    }
    // With the help of an admin who signs the swapped block: the slot is bound to its recipient.
    let mut bytes = original;
    let (a, b) = (slot(&bytes, 0), slot(&bytes, 1));
    bytes[slots::HEADER_LEN..][16..slots::SLOT_LEN].copy_from_slice(&b[16..]);
    bytes[slots::HEADER_LEN + slots::SLOT_LEN..][16..slots::SLOT_LEN].copy_from_slice(&a[16..]);
    let header = slots::check(&rebuilt(&bytes)).unwrap();
    store.blocks.insert(header.root(), rebuilt(&bytes));
    let last = store.manifests.pop().unwrap();
    store.manifests.push(forge(&last, &ann, |m| m.blocks[0].root = header.root()));
    let refused = [&ann, &bob, &cem]
        .iter()
        .filter(|identity| matches!(store.open(identity), Err(RosterError::WrongFolderKey(1))))
        .count();
    assert_eq!(refused, 2);
    assert_eq!(
        [&ann, &bob, &cem].iter().filter_map(|identity| store.open(identity).ok()).count(),
        1
    );
    for keys in [&ann, &bob, &cem].iter().filter_map(|identity| store.open(identity).ok()) {
        assert_eq!(keys.current().key.expose(), honest.current().key.expose());
    }
}

/// Builds a block anew from the slots and the list of a changed one, so that its tree matches.
fn rebuilt(bytes: &[u8]) -> Vec<u8> {
    let header = SlotHeader::decode(&bytes[..slots::HEADER_LEN]).unwrap();
    let slots: Vec<_> = bytes[slots::HEADER_LEN..].as_chunks::<{ slots::SLOT_LEN }>().0
        [..header.count as usize]
        .to_vec();
    let members = &bytes[bytes.len() - header.members_len as usize..];
    slots::build(header, slots, members).unwrap().1
}

#[test]
fn attack_public_key_replaced() {
    let random = random(1);
    let (store, ann, _, _) = three(&random);
    let mallory = person(66);
    // In the list of admins, which is in clear: the signature no longer matches.
    let mut changed = store.clone();
    let mut manifest = Manifest::decode(changed.manifests.last().unwrap()).unwrap();
    manifest.admins[0] = sign_key(&mallory);
    manifest.admins.sort();
    *changed.manifests.last_mut().unwrap() = manifest.encode();
    assert!(matches!(verify(&changed), Err(RosterError::BadSignature(2))));
    // In the descriptor: it is another share.
    let mut changed = store.clone();
    changed.descriptor.founder = mallory.public();
    assert!(matches!(verify(&changed), Err(RosterError::OtherShare(1))));
    // In the slot block: a block for Mallory in the place of the signed one.
    let mut changed = store.clone();
    let own = found(&mallory, &params(Suite::Aes256Gcm, true), &random, NOW).unwrap();
    let root = store.roster().manifest().blocks[0].root;
    changed.blocks.insert(root, own.change.slots);
    for identity in [&ann, &mallory] {
        assert!(unauthentic(&changed.open(identity).err().unwrap()));
    }
    // In the sealed list of members, which only a member could write.
    let mut changed = store.clone();
    let bytes = changed.blocks.get_mut(&root).unwrap();
    let last = bytes.len() - 20;
    bytes[last] ^= 1;
    let keys = changed.open(&ann).unwrap();
    assert!(unauthentic(&changed.members(&keys).unwrap_err()));
}

#[test]
fn attack_chain_cut() {
    let random = random(1);
    let (mut store, ann, _, cem) = three(&random);
    store.remove(&ann, &cem, &random);
    store.rekey(&ann, &random);
    let without = |gone: &[usize]| {
        let mut cut = store.clone();
        cut.manifests =
            (0..4).filter(|i| !gone.contains(i)).map(|i| store.manifests[i].clone()).collect();
        verify(&cut).err()
    };
    assert!(matches!(without(&[0]), Some(RosterError::Sequence { expected: 1, found: 2 })));
    assert!(matches!(without(&[1]), Some(RosterError::Sequence { expected: 2, found: 3 })));
    assert!(matches!(without(&[2]), Some(RosterError::Sequence { expected: 3, found: 4 })));
    assert!(matches!(without(&[0, 1, 2, 3]), Some(RosterError::Empty)));
    let mut swapped = store.clone();
    swapped.manifests.swap(1, 2);
    assert!(matches!(verify(&swapped), Err(RosterError::Sequence { expected: 2, found: 3 })));
    // Matching numbers, with an admin's signature: the hash of the previous manifest does not
    // match.
    let mut renumbered = store.clone();
    renumbered.manifests.remove(1);
    renumbered.manifests[1] = forge(&store.manifests[2], &ann, |m| m.sequence = 2);
    renumbered.manifests.truncate(2);
    assert!(matches!(verify(&renumbered), Err(RosterError::BrokenChain(2))));
    // In a bag, manifests after the gap do not count, and the pin shows that something is missing.
    let mut bag = store.manifests.clone();
    bag.remove(1);
    let standing = assemble(&store.descriptor, &bag, None).unwrap();
    assert_eq!(standing.ignored.len(), 2);
    assert_eq!(only(&standing).head().sequence, 1);
    let pinned = assemble(&store.descriptor, &bag, Some(&store.roster().head()));
    assert!(matches!(pinned, Err(RosterError::RolledBack { found: 1, pinned: 4 })));
}

#[test]
fn attack_folder_key_of_the_attackers_own() {
    let random = random(1);
    let (store, ann, bob, _) = three(&random);
    // The storage host makes a block for Ann with a key that it knows. The manifest does not name
    // it.
    let own = found(&ann, &params(Suite::Aes256Gcm, true), &random, NOW).unwrap();
    let mut planted = store.clone();
    planted.blocks.insert(store.roster().manifest().blocks[0].root, own.change.slots.clone());
    assert!(unauthentic(&planted.open(&ann).err().unwrap()));
    // An admin names a block whose key differs from the committed one.
    let (roster, keys, members) = store.as_admin(&bob);
    let rekeyed = roster.rekey(&acting(&bob, &keys, &members, &random)).unwrap();
    let mut lying = store.clone();
    lying.put(&rekeyed);
    let last = lying.manifests.pop().unwrap();
    lying.manifests.push(forge(&last, &bob, |m| m.commitment[0] ^= 1));
    assert!(matches!(lying.open(&ann), Err(RosterError::WrongFolderKey(2))));
    // An admin passes on a wrong key of the previous epoch: sealed under another context, or
    // exchanged for another record.
    let mut lying = store.clone();
    lying.put(&rekeyed);
    let last = lying.manifests.pop().unwrap();
    lying.manifests.push(forge(&last, &bob, |m| m.history[0].sealed[30] ^= 1));
    assert!(matches!(lying.open(&ann), Err(RosterError::WrongFolderKey(1))));
    // Within an epoch the commitment cannot change, and a new epoch must pass on the old key.
    for change in [|m: &mut Manifest| m.commitment[0] ^= 1, |m: &mut Manifest| m.epoch = 3] {
        let mut lying = store.clone();
        let last = lying.manifests.pop().unwrap();
        lying.manifests.push(forge(&last, &ann, change));
        assert!(matches!(verify(&lying), Err(RosterError::BadEpoch(2))));
    }
    for change in [
        |m: &mut Manifest| m.history.clear(),
        |m: &mut Manifest| m.history[0].commitment[5] ^= 1,
        |m: &mut Manifest| m.epoch += 1,
    ] {
        let mut lying = store.clone();
        lying.manifests.push(forge(&rekeyed.manifest, &bob, change));
        assert!(matches!(verify(&lying), Err(RosterError::BadEpoch(3))));
    }
}

#[test]
fn attack_control_files_of_another_share() {
    let random = random(1);
    let (store, ann, _, _) = three(&random);
    let mut other =
        Store::new(&found(&ann, &params(Suite::Aes256Gcm, true), &random, NOW).unwrap());
    other.add(&ann, &[member(&person(2), Role::Admin, "Bob")], &random);
    // All manifests, the last one, a slot block.
    let mut moved = store.clone();
    moved.manifests = other.manifests.clone();
    assert!(matches!(verify(&moved), Err(RosterError::OtherShare(1))));
    let mut moved = store.clone();
    moved.manifests[1] = other.manifests[1].clone();
    assert!(matches!(verify(&moved), Err(RosterError::OtherShare(2))));
    let mut moved = store.clone();
    moved.descriptor = other.descriptor;
    assert!(matches!(verify(&moved), Err(RosterError::OtherShare(1))));
    // An admin of both shares signs a manifest here that names a slot block of the other: the block
    // contains its share.
    let foreign = other.roster().manifest().blocks[0];
    let mut moved = store.clone();
    moved.blocks.extend(other.blocks.clone());
    let last = moved.manifests.pop().unwrap();
    moved.manifests.push(forge(&last, &ann, |m| m.blocks = vec![foreign]));
    assert!(matches!(moved.open(&ann), Err(RosterError::BadMembers)));
}

#[test]
fn attack_all_zero_ephemeral() {
    let (mut store, ann, bob, cem) = three(&random(1));
    let root = store.roster().manifest().blocks[0].root;
    let mut bytes = store.blocks[&root].clone();
    let at = slots::HEADER_LEN - (32 + 32 + 4 + 4 + 32);
    bytes[at..at + 32].fill(0);
    let header = SlotHeader::decode(&bytes[..slots::HEADER_LEN]).unwrap();
    assert_eq!(header.ephemeral, [0; 32]);
    store.blocks.insert(root, bytes.clone());
    assert!(unauthentic(&store.open(&cem).err().unwrap()));
    store.blocks.insert(header.root(), bytes);
    let last = store.manifests.pop().unwrap();
    store.manifests.push(forge(&last, &ann, |m| m.blocks[0].root = header.root()));
    for identity in [&ann, &bob, &cem] {
        assert!(matches!(store.open(identity), Err(RosterError::WeakKey(_))));
    }
}

#[test]
fn attack_weak_key_as_a_recipient() {
    let random = random(1);
    let (store, ann, _, _) = three(&random);
    let (roster, keys, members) = store.as_admin(&ann);
    let mut weak = member(&person(7), Role::Reader, "Weak");
    weak.public.exchange = [0; 32];
    assert!(matches!(
        roster.add_members(&acting(&ann, &keys, &members, &random), &[weak]),
        Err(RosterError::WeakKey(_))
    ));
}

#[test]
fn attack_removed_admins_rival_manifest() {
    let random = random(1);
    let (mut store, ann, bob, cem) = three(&random);
    let (before, bobs_keys, bobs_members) = store.as_admin(&bob);
    store.remove(&ann, &bob, &random);
    let pin = store.roster().head();
    // After the removal Bob is not an admin.
    let mut rival = store.clone();
    let late = forge(&store.manifests[2], &bob, |m| {
        m.sequence = 4;
        m.previous = pin.hash;
        m.history.clear();
    });
    rival.manifests.push(late);
    assert!(matches!(verify(&rival), Err(RosterError::SignerNotAdmin(4))));
    // Bob can always sign a rival of the removal: a fork for members who have seen neither, and
    // nothing for members who have seen the removal.
    let beside = before
        .remove_members(&acting(&bob, &bobs_keys, &bobs_members, &random), &[sign_key(&ann)], None)
        .unwrap();
    // Bob may even claim that it settles the chain in which he was removed.
    let settling = forge(&beside.manifest, &bob, |m| m.second_parent = pin.hash);
    for (rival, counts) in [(beside.manifest, true), (settling, false)] {
        let bag: Vec<Vec<u8>> = store.manifests.iter().cloned().chain([rival.clone()]).collect();
        let fork = assemble(&store.descriptor, &bag, None).unwrap();
        // A settlement must be of an epoch above both.
        assert!(if counts { fork.heads.len() == 2 } else { only(&fork).head() == pin });
        let seen = assemble(&store.descriptor, &bag, Some(&pin)).unwrap();
        assert_eq!(only(&seen).head(), pin);
        let alone = Roster::verify(&store.descriptor, &[&bag[0], &bag[1], &rival]).unwrap();
        assert!(!alone.contains(&pin));
        let hidden = assemble(&store.descriptor, &[&bag[0], &bag[1], &rival], Some(&pin));
        match counts {
            true => assert!(matches!(hidden, Err(RosterError::NotDescended(3)))),
            false => {
                assert!(matches!(hidden, Err(RosterError::RolledBack { found: 2, pinned: 3 })))
            }
        }
    }
    assert!(matches!(store.open(&bob), Err(RosterError::NotMember)));
    assert!(store.open(&cem).is_ok());
}

#[test]
fn attack_settling_a_branch_that_is_not_there() {
    // An admin claims to settle something: that could skip epochs up to the last one, after which
    // nobody can be removed any more.
    let random = random(1);
    let (store, ann, _, _) = three(&random);
    let (roster, keys, members) = store.as_admin(&ann);
    let next = roster.rekey(&acting(&ann, &keys, &members, &random)).unwrap().manifest;
    let before = Manifest::decode(&store.manifests[0]).unwrap().hash();
    let skipping = |second: [u8; 32], epoch: u32| {
        forge(&next, &ann, |m| {
            m.second_parent = second;
            m.epoch = epoch;
        })
    };
    for forged in [
        skipping([7; 32], 2),
        skipping([7; 32], u32::MAX),
        skipping(before, u32::MAX),
        skipping(roster.head().hash, 2),
    ] {
        let bag = [store.manifests.clone(), vec![forged]].concat();
        let standing = assemble(&store.descriptor, &bag, None).unwrap();
        assert!(matches!(standing.ignored[..], [RosterError::BadEpoch(3)]));
        assert_eq!(only(&standing).head(), roster.head());
    }
}

#[test]
fn attack_more_heads_than_can_be_told_apart() {
    // An unlimited number of rivals: a head that is skipped could be the one that removed their
    // signer.
    let random = random(1);
    let (store, ann, _, _) = three(&random);
    let (roster, keys, members) = store.as_admin(&ann);
    let rivals = |n: usize| {
        let rival = |_| roster.rekey(&acting(&ann, &keys, &members, &random)).unwrap().manifest;
        store.manifests.iter().cloned().chain((0..n).map(rival)).collect::<Vec<_>>()
    };
    assert_eq!(assemble(&store.descriptor, &rivals(64), None).unwrap().heads.len(), 64);
    assert!(matches!(
        assemble(&store.descriptor, &rivals(65), None),
        Err(RosterError::TooMany("heads"))
    ));
}

#[test]
fn attack_manifest_signed_by_a_reader_or_a_stranger() {
    let (store, _, _, cem) = three(&random(1));
    for by in [&cem, &person(9)] {
        let mut forged = store.clone();
        forged.manifests.push(forge(&store.manifests[1], by, |m| {
            m.sequence = 3;
            m.previous = store.roster().head().hash;
            m.admins = vec![sign_key(by)];
        }));
        assert!(matches!(verify(&forged), Err(RosterError::SignerNotAdmin(3))));
    }
    let mut forged = store.clone();
    forged.manifests[0] = forge(&store.manifests[0], &cem, |_| ());
    assert!(matches!(verify(&forged), Err(RosterError::SignerNotAdmin(1))));
}

#[test]
fn attack_admin_in_the_sealed_list_alone() {
    let random = random(1);
    let (mut store, ann, _, _) = three(&random);
    // A manifest whose list of admins in clear differs from the sealed list cannot be used to show
    // different members to different people.
    let last = store.manifests.pop().unwrap();
    store.manifests.push(forge(&last, &ann, |m| m.admins = vec![sign_key(&ann)]));
    let keys = store.open(&ann).unwrap();
    assert!(matches!(store.members(&keys), Err(RosterError::BadMembers)));
}

/// Two admins change the members at the same time, each without the other's change. One of them
/// settles the fork.
#[test]
fn concurrent_changes_by_two_admins_fork_and_are_settled() {
    let random = random(1);
    let (store, ann, bob, cem) = three(&random);
    let dan = person(4);
    let mut anns = store.clone();
    anns.add(&ann, &[member(&dan, Role::Writer, "Dan")], &random);
    let mut bobs = store.clone();
    bobs.remove(&bob, &cem, &random);
    bobs.rekey(&bob, &random);
    let mut both = anns.clone();
    both.manifests.extend(bobs.manifests[2..].iter().cloned());
    both.blocks.extend(bobs.blocks.clone());
    for pin in [None, Some(store.roster().head())] {
        let standing = assemble(&both.descriptor, &both.manifests, pin.as_ref()).unwrap();
        assert_eq!(standing.heads.len(), 2);
    }
    // A member who had seen one of them stayed with it, and did not notice the other.
    for side in [&anns, &bobs] {
        let head = side.roster().head();
        let seen = assemble(&both.descriptor, &both.manifests, Some(&head)).unwrap();
        assert_eq!(seen.heads.len(), 2);
    }
    let (roster, keys, members) = anns.as_admin(&ann);
    let (lost, lost_keys, _) = bobs.as_admin(&ann);
    let settle = |by: &Identity| {
        roster.settle(
            &acting(by, &keys, &members, &random),
            &lost,
            &lost_keys,
            &[sign_key(&cem)],
            None,
        )
    };
    assert!(matches!(settle(&dan), Err(RosterError::NotAdmin)));
    assert!(matches!(
        roster.settle(&acting(&ann, &keys, &members, &random), &roster, &keys, &[], None),
        Err(RosterError::NoFork)
    ));
    let settled = settle(&ann).unwrap();
    both.put(&settled);
    anns.put(&settled);
    for pin in [None, Some(store.roster().head()), Some(roster.head()), Some(lost.head())] {
        let standing = assemble(&both.descriptor, &both.manifests, pin.as_ref()).unwrap();
        let head = only(&standing);
        assert_eq!((head.head().sequence, head.epoch()), (5, 4), "above those of both sides");
        assert!(head.contains(&roster.head()) && !head.contains(&lost.head()));
    }
    // Dan, who was never on the losing side, can read what was written there.
    let keys = anns.open(&dan).unwrap();
    assert_eq!(keys.all().map(|key| key.epoch).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(
        keys.get(3, lost_keys.current().commitment.first_chunk().unwrap()).unwrap().key.expose(),
        lost_keys.current().key.expose()
    );
    assert!(matches!(anns.open(&cem), Err(RosterError::NotMember)));
}

/// A settlement had the number after that of the side that it kept. A client that had seen the other
/// side, with a higher number, did not remember the settlement, and accepted a store that hid it.
#[test]
fn attack_a_settlement_is_numbered_below_one_side() {
    let random = random(1);
    let (store, ann, bob, cem) = three(&random);
    let mut anns = store.clone();
    for n in [4, 5, 6] {
        anns.add(&ann, &[member(&person(n), Role::Reader, "R")], &random);
    }
    let mut bobs = store.clone();
    bobs.remove(&bob, &cem, &random);
    let (roster, keys, members) = bobs.as_admin(&ann);
    let (lost, lost_keys, _) = anns.as_admin(&ann);
    let settled = roster
        .settle(&acting(&ann, &keys, &members, &random), &lost, &lost_keys, &[], None)
        .unwrap();
    let mut both = anns.manifests.clone();
    both.push(bobs.manifests[2].clone());
    for (number, counts) in [(3, false), (4, false), (5, false), (6, true), (7, false)] {
        let forged = forge(&settled.manifest, &ann, |m| m.sequence = number);
        let bag = [both.clone(), vec![forged.clone()]].concat();
        let mut memory = PinnedShare {
            share: *store.roster().share_id(),
            proof: Proof::Visit,
            head: lost.head(),
        };
        let seen = assemble(&store.descriptor, &bag, Some(&memory.head)).unwrap();
        assert_eq!(seen.heads.len(), if counts { 1 } else { 2 }, "number {number}");
        if counts {
            assert_eq!(forged, settled.manifest);
            assert!(memory.advance(only(&seen).head()));
            let hidden = assemble(&store.descriptor, &anns.manifests, Some(&memory.head));
            assert!(matches!(hidden, Err(RosterError::RolledBack { found: 5, pinned: 6 })));
        }
    }
}

/// Ann adds Dan as an admin on one machine, and removes Bob on another one. Members who have seen
/// the removal see the fork. What Dan adds to the other branch belongs to it; what Bob adds does
/// not count: with it he could leave no admin who may settle the fork. Once the fork is settled,
/// nothing that Dan or Bob signs on the losing branch brings it back.
#[test]
fn attack_a_former_admin_extends_the_other_branch() {
    let random = random(1);
    let (store, ann, bob, cem) = three(&random);
    let (dan, eve) = (person(4), person(5));
    let mut anns = store.clone();
    anns.add(&ann, &[member(&dan, Role::Admin, "Dan")], &random);
    let added = anns.roster().head();
    let mut removal = store.clone();
    removal.remove(&ann, &bob, &random);
    let pin = removal.roster().head();
    let by_dan = {
        let mut longer = anns.clone();
        longer.add(&dan, &[member(&eve, Role::Reader, "Eve")], &random);
        longer
    };
    let by_bob = {
        let mut longer = anns.clone();
        longer.remove(&bob, &ann, &random);
        longer
    };
    let heads = |branches: &[&Store], pin| {
        let bag: Vec<Vec<u8>> = branches.iter().flat_map(|s| s.manifests.clone()).collect();
        let standing = assemble(&store.descriptor, &bag, Some(&pin)).unwrap();
        let mut heads: Vec<[u8; 32]> = standing.heads.iter().map(|h| h.head().hash).collect();
        heads.sort_unstable();
        heads
    };
    let sorted = |mut hashes: Vec<[u8; 32]>| {
        hashes.sort_unstable();
        hashes
    };
    let dans = by_dan.roster().head();
    assert_eq!(heads(&[&removal, &by_dan], pin), sorted(vec![pin.hash, dans.hash]));
    assert_eq!(heads(&[&removal, &by_bob], pin), sorted(vec![pin.hash, added.hash]));
    // Before the removal is seen Bob is an admin.
    assert_eq!(
        heads(&[&removal, &by_bob], store.roster().head()),
        sorted(vec![pin.hash, by_bob.roster().head().hash])
    );
    let (lost, lost_keys, _) = anns.as_admin(&ann);
    let (roster, keys, members) = removal.as_admin(&ann);
    let settled = roster
        .settle(&acting(&ann, &keys, &members, &random), &lost, &lost_keys, &[], None)
        .unwrap();
    removal.put(&settled);
    let pin = removal.manifests.last().map(|bytes| Manifest::decode(bytes).unwrap()).unwrap();
    let pin = Pin { sequence: pin.sequence, hash: pin.hash() };
    for late in [&by_dan, &by_bob] {
        assert_eq!(heads(&[&removal, late], pin), [pin.hash]);
    }
    // Ann is still an admin: a change that she made there without knowing of the settlement is a
    // fork.
    let mut late = anns.clone();
    late.remove(&ann, &cem, &random);
    assert_eq!(heads(&[&removal, &late], pin), sorted(vec![pin.hash, late.roster().head().hash]));
}

#[test]
fn an_unsigned_share_has_one_owner_for_ever() {
    let random = random(1);
    let ann = person(1);
    let bob = [member(&person(2), Role::Reader, "Bob")];
    let mut store =
        Store::new(&found(&ann, &params(Suite::Aes256Gcm, false), &random, NOW).unwrap());
    let (roster, keys, members) = store.as_admin(&ann);
    assert!(matches!(
        roster.add_members(&acting(&ann, &keys, &members, &random), &bob),
        Err(RosterError::OwnerOnly)
    ));
    let with_others = FoundParams { others: &bob, ..params(Suite::Aes256Gcm, false) };
    assert!(matches!(found(&ann, &with_others, &random, NOW), Err(RosterError::OwnerOnly)));
    let isolated = FoundParams { isolated: true, ..params(Suite::Aes256Gcm, false) };
    assert!(matches!(found(&ann, &isolated, &random, NOW), Err(RosterError::OwnerOnly)));
    // A manifest that claims otherwise is refused even with the founder's signature.
    for change in
        [|m: &mut Manifest| m.admins.push([0xff; 32]), |m: &mut Manifest| m.blocks[0].count = 2]
    {
        let mut forged = store.clone();
        forged.manifests[0] = forge(&store.manifests[0], &ann, change);
        assert!(matches!(verify(&forged), Err(RosterError::OwnerOnly)));
    }
    store.rekey(&ann, &random);
    assert_eq!(store.open(&ann).unwrap().all().count(), 2);
}

#[test]
fn operations_that_make_no_sense_are_refused() {
    let random = random(1);
    let (mut store, ann, bob, cem) = three(&random);
    let (roster, keys, members) = store.as_admin(&ann);
    let add = |by: &Identity, new: &[Member]| {
        roster.add_members(&acting(by, &keys, &members, &random), new)
    };
    assert!(
        matches!(add(&ann, &[member(&cem, Role::Writer, "Cem")]), Err(RosterError::AlreadyMember(name)) if name == "Cem")
    );
    let mut twin = member(&person(8), Role::Reader, "Twin");
    twin.public.exchange = cem.public().exchange;
    assert!(matches!(add(&ann, &[twin]), Err(RosterError::AlreadyMember(_))));
    assert!(matches!(
        add(&ann, &[member(&person(8), Role::Reader, "a\nb")]),
        Err(RosterError::BadName)
    ));
    assert!(matches!(add(&ann, &[]), Err(RosterError::NoSuchMember)));
    assert!(matches!(
        add(&cem, &[member(&person(8), Role::Reader, "Eve")]),
        Err(RosterError::NotAdmin)
    ));
    let all_admins = [sign_key(&ann), sign_key(&bob)];
    let removed = roster.remove_members(&acting(&ann, &keys, &members, &random), &all_admins, None);
    assert!(matches!(removed, Err(RosterError::NoAdmin)));
    let removed = roster.remove_members(&acting(&ann, &keys, &members, &random), &[[9; 32]], None);
    assert!(matches!(removed, Err(RosterError::NoSuchMember)));
    let inventory = Some(Inventory { root: [1; 32], file: [2; 32] });
    let demoted = roster
        .set_role(&acting(&ann, &keys, &members, &random), &sign_key(&bob), Role::Reader, inventory)
        .unwrap();
    store.put(&demoted);
    assert_eq!(
        (store.roster().manifest().inventory_root, store.roster().manifest().inventory_file),
        ([1; 32], [2; 32])
    );
    assert!(!store.roster().is_admin(&sign_key(&bob)) && store.open(&bob).is_ok());
    // Keys and members of the previous head are not used at the new one.
    assert!(matches!(
        store.roster().rekey(&acting(&ann, &keys, &members, &random)),
        Err(RosterError::Stale)
    ));
}

#[test]
fn ones_own_slot_among_thousands_is_found_with_a_few_reads() {
    let (ann, random) = (person(1), random(1));
    let others: Vec<Member> = (0..3000u64)
        .map(|n| {
            let mut seed = [7; 32];
            seed[..8].copy_from_slice(&n.to_le_bytes());
            member(
                &Identity::from_seed(IdentitySeed::from_bytes(seed)),
                Role::Reader,
                &n.to_string(),
            )
        })
        .collect();
    let founded = found(
        &ann,
        &FoundParams { others: &others, ..params(Suite::Aes256Gcm, true) },
        &random,
        NOW,
    )
    .unwrap();
    let store = Store::new(&founded);
    let mut seed = [7; 32];
    seed[..8].copy_from_slice(&1234u64.to_le_bytes());
    let mut read = 0;
    let mut reader = store.reader();
    let mut counting = |block: &BlockRef, at: u64, buf: &mut [u8]| {
        read += buf.len();
        reader(block, at, buf)
    };
    let keys = store
        .roster()
        .open(&Identity::from_seed(IdentitySeed::from_bytes(seed)), &mut counting)
        .unwrap();
    assert_eq!(keys.current().key.expose(), founded.keys.current().key.expose());
    assert!(read <= 4096, "{read} bytes of the block");
}

/// Adding a member to a large share makes a small slot block, until there are four.
#[test]
fn additions_to_a_large_share_use_up_to_four_small_blocks() {
    let random = random(1);
    let ann = person(1);
    let crowd: Vec<Identity> = (0..300u16)
        .map(|i| {
            Identity::from_seed(IdentitySeed::from_bytes(
                [[i as u8, (i >> 8) as u8]; 16].concat().try_into().unwrap(),
            ))
        })
        .collect();
    let crowd: Vec<Identity> =
        crowd.into_iter().filter(|identity| identity.public() != ann.public()).collect();
    let others: Vec<Member> =
        crowd.iter().map(|identity| member(identity, Role::Reader, "one of many")).collect();
    let params = FoundParams { others: &others, ..params(Suite::ChaCha20Poly1305, true) };
    let mut store = Store::new(&found(&ann, &params, &random, NOW).unwrap());
    let late: Vec<Identity> =
        (100..104).map(|n| Identity::from_seed(IdentitySeed::from_bytes([n ^ 0xa5; 32]))).collect();
    let mut shapes = Vec::new();
    for identity in &late {
        store.add(&ann, &[member(identity, Role::Writer, "late")], &random);
        shapes.push(
            store
                .roster()
                .manifest()
                .blocks
                .iter()
                .map(|block| block.count as usize)
                .collect::<Vec<_>>(),
        );
    }
    let n = others.len() + 1;
    assert_eq!(shapes, [vec![n, 1], vec![n, 1, 1], vec![n, 1, 1, 1], vec![n + 4]]);
    for identity in crowd.iter().chain(&late) {
        assert!(store.open(identity).is_ok());
    }
    let keys = store.open(&late[0]).unwrap();
    assert_eq!(store.members(&keys).unwrap().all().len(), n + 4);
}

/// A missing slot block is reported as an error of reading, not as a lost membership.
#[test]
fn a_missing_block_is_a_read_error_not_a_lost_membership() {
    let (mut store, ann, _, _) = three(&random(1));
    store.blocks.clear();
    assert!(
        matches!(store.open(&ann), Err(RosterError::Block(BlockError::Read(e))) if e.kind() == io::ErrorKind::NotFound)
    );
}

#[test]
fn bit_flips_in_a_manifest_are_never_accepted() {
    let random = random(1);
    let (mut store, ann, _, cem) = three(&random);
    store.remove(&ann, &cem, &random);
    let clean = store.manifests[2].clone();
    for bit in 0..clean.len() * 8 {
        store.manifests[2][bit / 8] ^= 1 << (bit % 8);
        assert!(verify(&store).is_err(), "bit {bit}");
        store.manifests[2][bit / 8] ^= 1 << (bit % 8);
    }
    // Also in the middle of the chain.
    for bit in (0..store.manifests[1].len() * 8).step_by(7) {
        store.manifests[1][bit / 8] ^= 1 << (bit % 8);
        assert!(verify(&store).is_err(), "bit {bit}");
        store.manifests[1][bit / 8] ^= 1 << (bit % 8);
    }
    assert!(verify(&store).is_ok());
}

#[test]
fn bit_flips_in_a_slot_block_never_give_other_keys_or_members() {
    let (mut store, ann, _, _) = three(&random(1));
    let root = store.roster().manifest().blocks[0].root;
    let (roster, keys, members) = store.as_admin(&ann);
    for byte in 0..store.blocks[&root].len() {
        store.blocks.get_mut(&root).unwrap()[byte] ^= 1 << (byte % 8);
        if let Ok(opened) = roster.open(&ann, &mut store.reader()) {
            assert_eq!(opened.current().key.expose(), keys.current().key.expose(), "byte {byte}");
        }
        if let Ok(listed) = roster.members(&keys, &mut store.reader()) {
            assert_eq!(listed.all(), members.all(), "byte {byte}");
        }
        assert!(
            slots::check(&store.blocks[&root]).is_err() || byte < slots::HEADER_LEN,
            "byte {byte}"
        );
        store.blocks.get_mut(&root).unwrap()[byte] ^= 1 << (byte % 8);
    }
}

#[test]
fn bit_flips_in_a_descriptor_make_another_share_or_none() {
    let (store, _, _, _) = three(&random(1));
    let bytes = store.descriptor.encode();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let Ok(descriptor) = ShareDescriptor::decode(&flipped) else { continue };
        assert!(
            matches!(
                Roster::verify(&descriptor, &store.manifests),
                Err(RosterError::OtherShare(1))
            ),
            "bit {bit}"
        );
    }
}

#[test]
fn truncation_at_each_length_is_refused() {
    let (store, ann, _, _) = three(&random(1));
    for n in 0..store.manifests[1].len() {
        let cut = [&store.manifests[0][..], &store.manifests[1][..n]];
        assert!(
            matches!(Roster::verify(&store.descriptor, &cut), Err(RosterError::Format(_))),
            "cut at {n}"
        );
    }
    let root = store.roster().manifest().blocks[0].root;
    let whole = store.blocks[&root].clone();
    let mut cut = store.clone();
    for n in 0..whole.len() {
        cut.blocks.insert(root, whole[..n].to_vec());
        let outcome = cut.open(&ann).and_then(|keys| cut.members(&keys));
        assert!(
            matches!(outcome, Err(RosterError::Block(BlockError::Format(e))) if e.kind() == FormatErrorKind::Truncated),
            "cut at {n}"
        );
    }
}

proptest! {
    #[test]
    fn random_manifests_do_not_panic_and_are_never_valid(bytes in proptest::collection::vec(any::<u8>(), 0..800), at in 0usize..700) {
        let (store, _, _, _) = three(&random(1));
        let mut bag = store.manifests.clone();
        let mut changed = bag[1].clone();
        let at = at.min(changed.len());
        let n = bytes.len().min(changed.len() - at);
        changed[at..at + n].copy_from_slice(&bytes[..n]);
        let same = changed == bag[1];
        bag.extend([bytes, changed]);
        let standing = assemble(&store.descriptor, &bag, None).unwrap();
        prop_assert_eq!(standing.ignored.len(), 2 - usize::from(same));
        prop_assert_eq!(only(&standing).head(), store.roster().head());
    }
}
