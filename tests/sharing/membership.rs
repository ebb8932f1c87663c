//! Changes of the members, through the vault: adding, removing, roles, forks, and attacks on them.

use std::sync::{Arc, Barrier};

use kithfs::crypto::Suite;
use kithfs::roster::{Identity, Pin, Role, RosterError};
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, Locks, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, Kind};
use kithfs::vault::{
    CreateOptions, CreateShare, Error, LockMode, LogKind, OpenOptions, Pins, RenameMode, Trust,
    Vault,
};

use crate::support::members::ShareOfPath;
use crate::support::members::{
    beside, key, member, open_as, person, quiet, root_share, trusting, with_bob,
};
use crate::support::raw::{merge, named, read, replace, write};
use crate::support::vaults::{self, at, faults, get, mkdir, pattern, put, rename, symlink, tree};

/// Writes a file, and returns the number of the epoch that it is sealed under.
fn epoch_of_new_file(store: &MemStore, vault: &Vault, name: &[u8]) -> u32 {
    put(vault, name, b"contents").unwrap();
    let stored = read(&*store.root(), &vault.cipher_path(name).unwrap());
    u32::from_le_bytes(stored[16..20].try_into().unwrap())
}

/// What a member wrote before their removal stays valid; what they sign afterwards with an earlier
/// epoch is refused.
#[test]
fn a_removed_members_files_stay_but_back_dating_is_refused() {
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &bob).unwrap();
    put(&vault, b"small", b"by Bob").unwrap();
    put(&vault, b"large", &pattern(4, 60_000)).unwrap();
    mkdir(&vault, b"dir").unwrap();
    put(&vault, &[&b"dir/"[..], &[b'l'; 240]].concat(), b"long name").unwrap();
    symlink(&vault, b"link", b"small").unwrap();
    symlink(&vault, b"far", &[b't'; 4000]).unwrap();
    rename(&vault, b"dir", b"moved", RenameMode::Replace).unwrap();
    let before = tree(&vault).unwrap();
    let small = vault.cipher_path(b"small").unwrap();
    vault.close().unwrap();

    // A copy from before the removal, in which Bob continues to write under the old roster with the
    // storage host's help.
    let old = store.snapshot();
    let back_dated = {
        let vault = open_as(&old, &bob).unwrap();
        put(&vault, b"small", b"forged afterwards").unwrap();
        vault.close().unwrap();
        let file = old.root().open_file(&small, Access::Read).unwrap();
        let mut bytes = vec![0; file.stat().unwrap().size as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    };

    // Ann has the share mounted; the removal comes from a command beside the mount.
    let mounted = open_as(&store, &ann).unwrap();
    let command = beside(&store, &ann);
    root_share(&command).remove(&[key(&bob)], &mut quiet()).unwrap();
    assert!(mounted.refresh().unwrap());
    assert_eq!(tree(&mounted).unwrap(), before, "all that Bob wrote is there");
    assert_eq!(faults(&mounted), Vec::<String>::new());
    let author = at(&mounted, b"small", |node| mounted.author(node)).unwrap().unwrap();
    assert_eq!(author.author, key(&bob), "and is known to be his");
    let file = store.root().open_file(&small, Access::ReadWrite).unwrap();
    file.set_len(0).unwrap();
    file.write_at(&back_dated, 0).unwrap();
    let refused = get(&mounted, b"small").unwrap_err();
    assert!(
        refused.errno() == libc::EIO && refused.to_string().contains("may not write here"),
        "{refused}"
    );
    assert!(matches!(open_as(&store, &bob), Err(Error::NoAccess { .. })));
    let info = root_share(&mounted).info().unwrap();
    assert_eq!((info.epoch, info.members.len(), info.own_role), (2, 1, Role::Admin));
    let log: Vec<LogKind> =
        root_share(&mounted).log().unwrap().iter().map(|entry| entry.what).collect();
    assert_eq!(log, [LogKind::Founded, LogKind::NewEpoch]);
}

/// A new member reads the files of all epochs. A writer who was made a reader can no longer write.
#[test]
fn new_members_read_all_and_demoted_ones_cannot_write() {
    let (store, ann, bob) = with_bob();
    let cem = person(3);
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"first", b"epoch 1").unwrap();
    let share = root_share(&vault);
    share.rekey().unwrap();
    put(&vault, b"second", b"epoch 2").unwrap();
    share.add(&[member(&cem, Role::Writer, "Cem")]).unwrap();
    vault.close().unwrap();
    let of_cem = open_as(&store, &cem).unwrap();
    assert_eq!(
        (get(&of_cem, b"first").unwrap(), get(&of_cem, b"second").unwrap()),
        (b"epoch 1".to_vec(), b"epoch 2".to_vec())
    );
    put(&of_cem, b"third", b"by Cem").unwrap();
    assert!(
        root_share(&of_cem).add(&[member(&person(4), Role::Reader, "Dan")]).is_err(),
        "no admin"
    );
    root_share(&beside(&store, &ann)).set_role(&key(&cem), Role::Reader, &mut quiet()).unwrap();
    assert!(of_cem.refresh().unwrap());
    assert!(of_cem.is_read_only());
    assert_eq!(put(&of_cem, b"fourth", b"x").unwrap_err().errno(), libc::EROFS);
    assert_eq!(get(&of_cem, b"third").unwrap(), b"by Cem", "what Cem wrote as a writer stays");
    let who: Vec<String> =
        of_cem.who_can_read(b"first").unwrap().into_iter().map(|m| m.name).collect();
    assert_eq!(who.len(), 3);
    assert!(who.contains(&"Bob".to_owned()) && bob.public() != cem.public());
}

/// Two admins change the members at the same time, each without the other's change. The share is
/// then read-only until an admin settles the fork.
#[test]
fn a_fork_by_two_admins_is_read_only_until_settled() {
    let (store, ann, bob) = with_bob();
    let (cem, dan) = (person(3), person(4));
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"file", b"before").unwrap();
    root_share(&vault).add(&[member(&dan, Role::Admin, "Dan")]).unwrap();
    vault.close().unwrap();
    // Independently: Ann removes Bob, Dan adds Cem.
    let other = store.snapshot();
    root_share(&beside(&store, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
    root_share(&beside(&other, &dan)).add(&[member(&cem, Role::Writer, "Cem")]).unwrap();
    // The sync tool merges the two.
    for entry in other.root().reopen().unwrap().read(0, 1 << 20).unwrap() {
        if entry.name.starts_with(b"+manifest-") || entry.name.starts_with(b"+slots-") {
            let from = other.root().open_file(&entry.name, Access::Read).unwrap();
            let mut bytes = vec![0; from.stat().unwrap().size as usize];
            from.read_at(&mut bytes, 0).unwrap();
            if let Ok(to) = store.root().create_file(&entry.name, 0o600) {
                to.write_at(&bytes, 0).unwrap();
            }
        }
    }
    let forked = open_as(&store, &ann).unwrap();
    assert!(forked.is_read_only());
    assert_eq!(get(&forked, b"file").unwrap(), b"before", "reading goes on");
    assert_eq!(put(&forked, b"file", b"x").unwrap_err().errno(), libc::EROFS);
    let share = root_share(&forked);
    let heads = share.info().unwrap().heads;
    assert_eq!(heads.len(), 2);
    // Only the members of the first head were listed, although members of both heads can read the
    // files.
    let mut who: Vec<String> =
        forked.who_can_read(b"file").unwrap().into_iter().map(|member| member.name).collect();
    who.sort_unstable();
    assert_eq!(who, ["Ann", "Bob", "Cem", "Dan"], "everyone who has a key at one of the heads");
    assert!(
        share.add(&[member(&cem, Role::Writer, "Cem")]).is_err(),
        "nothing is merged by machine"
    );
    let of_ann = share.log().unwrap().last().unwrap().signer == key(&ann);
    let keep = if of_ann { heads[0].hash } else { heads[1].hash };
    share.settle(&keep, &[]).unwrap();
    let info = share.info().unwrap();
    assert_eq!((info.heads.len(), info.epoch), (1, 3));
    assert_eq!(share.log().unwrap().last().unwrap().what, LogKind::Settled);
    forked.close().unwrap();
    let settled = open_as(&store, &dan).unwrap();
    assert!(!settled.is_read_only());
    put(&settled, b"file", b"after").unwrap();
    assert!(
        matches!(open_as(&store, &cem), Err(Error::NoAccess { .. })),
        "a member who was added on the losing side has to be added again"
    );
}

#[test]
fn two_changes_at_the_same_time_in_one_store_both_count() {
    // Two commands about one share, of one admin or of two, continued the same manifest if they ran
    // at the same time. Both reported success. The result was a fork, read-only for everybody, or a
    // change that counted only for a machine that had seen it alone.
    for round in 0..20 {
        let (store, ann, bob) = with_bob();
        let cem = person(3);
        let begin = Barrier::new(2);
        std::thread::scope(|both| {
            both.spawn(|| {
                let vault = beside(&store, &ann);
                begin.wait();
                root_share(&vault).add(&[member(&cem, Role::Reader, "Cem")]).unwrap();
            });
            let vault = beside(&store, &ann);
            begin.wait();
            root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap();
        });
        let info = root_share(&beside(&store, &ann)).info().unwrap();
        let members: Vec<&str> =
            info.members.iter().filter(|m| m.public != ann.public()).map(|m| &m.name[..]).collect();
        assert_eq!((info.heads.len(), members), (1, vec!["Cem"]), "round {round}");
    }
}

type Act = Box<dyn FnOnce() -> Option<Pin> + Send>;

/// A store of pins that runs `act` when it is first used: after a head was read and before it is
/// changed.
struct Meanwhile {
    act: parking_lot::Mutex<Option<Act>>,
    seen: parking_lot::Mutex<Option<Pin>>,
}

impl Pins for Meanwhile {
    fn get(&self, _share: &[u8; 32]) -> std::io::Result<Option<Pin>> {
        Ok(*self.seen.lock())
    }

    fn inviter(&self, _share: &[u8; 32]) -> std::io::Result<Option<[u8; 32]>> {
        Ok(None)
    }

    fn put(&self, _share: &[u8; 32], _head: Pin) -> std::io::Result<()> {
        if let Some(act) = self.act.lock().take() {
            *self.seen.lock() = act();
        }
        Ok(())
    }
}

/// Opens a vault for `ann` and for a rival, on a store whose locks reach no other daemon. An action
/// that is put into the returned [`Meanwhile`] runs in the middle of a change by `ann`.
fn side_by_side(
    store: &MemStore,
    ann: &Identity,
    rival: &Identity,
) -> (Vault, Vault, Arc<Meanwhile>) {
    let plan = FaultPlan::new();
    plan.give_locks(Locks::Everybody);
    let root = FaultStore::wrap(store.root(), plan);
    let meanwhile = Arc::new(Meanwhile { act: None.into(), seen: None.into() });
    let trust = Trust { pins: Some(meanwhile.clone()), first_use: true };
    let options = OpenOptions { trust, ..trusting(true, LockMode::None) };
    let vault = Vault::open(root.clone(), ann, options).unwrap();
    let rival = Vault::open(root, rival, trusting(true, LockMode::None)).unwrap();
    (vault, rival, meanwhile)
}

#[test]
fn a_change_excluded_by_another_is_not_reported_as_done() {
    // As above, on a store whose locks reach no other daemon. Success must not be reported for a
    // change that does not count. It once was: if this user had a record of the other change, for
    // example from a second command of their own, the fork was not noticed.
    for remembered in [false, true] {
        let (store, ann, _) = with_bob();
        let (cem, dan) = (person(3), person(4));
        let (vault, rival, meanwhile) = side_by_side(&store, &ann, &ann);
        *meanwhile.act.lock() = Some(Box::new(move || {
            let made = root_share(&rival).add(&[member(&cem, Role::Reader, "Cem")]).unwrap();
            remembered.then_some(made)
        }));
        let done = root_share(&vault).add(&[member(&dan, Role::Reader, "Dan")]);
        match done {
            Err(Error::Members { source: RosterError::Forked(2), .. }) => {}
            other => panic!("remembered: {remembered}, {other:?}"),
        }
        assert!(vault.is_read_only());
    }
}

/// As above, but the other change takes the right to change members from the first one's author,
/// and is remembered.
#[test]
fn a_change_of_a_former_admin_is_not_reported_as_done() {
    let (store, ann, bob) = with_bob();
    let dan = person(4);
    root_share(&open_as(&store, &ann).unwrap())
        .set_role(&key(&bob), Role::Admin, &mut quiet())
        .unwrap();
    let (vault, rival, meanwhile) = side_by_side(&store, &ann, &bob);
    let anns = key(&ann);
    *meanwhile.act.lock() = Some(Box::new(move || {
        Some(root_share(&rival).set_role(&anns, Role::Writer, &mut quiet()).unwrap())
    }));
    let done = root_share(&vault).add(&[member(&dan, Role::Reader, "Dan")]);
    assert!(matches!(done, Err(Error::Members { source: RosterError::Overtaken, .. })), "{done:?}");
    let info = root_share(&vault).info().unwrap();
    assert_eq!(info.heads.len(), 1);
    assert!(info.members.iter().all(|m| m.public != dan.public()), "the change does not count");
}

#[test]
fn a_concurrently_changed_role_is_not_overwritten() {
    // A reader was to become a writer while a second command made the same person an admin. The
    // first command demoted the new admin without listing what had been signed in that role,
    // because it had read the role before the second command finished.
    let (store, ann, bob) = with_bob();
    root_share(&open_as(&store, &ann).unwrap())
        .set_role(&key(&bob), Role::Reader, &mut quiet())
        .unwrap();
    let meanwhile = Arc::new(Meanwhile { act: None.into(), seen: None.into() });
    let trust = Trust { pins: Some(meanwhile.clone()), first_use: true };
    let vault =
        Vault::open(store.root(), &ann, OpenOptions { trust, ..trusting(true, LockMode::None) })
            .unwrap();
    let (rival, bobs) = (beside(&store, &ann), key(&bob));
    *meanwhile.act.lock() = Some(Box::new(move || {
        Some(root_share(&rival).set_role(&bobs, Role::Admin, &mut quiet()).unwrap())
    }));
    let done = root_share(&vault).set_role(&key(&bob), Role::Writer, &mut quiet());
    assert!(matches!(done, Err(Error::Members { source: RosterError::Overtaken, .. })), "{done:?}");
    let members = root_share(&vault).info().unwrap().members;
    assert!(members.iter().any(|m| m.public == bob.public() && m.role == Role::Admin));
    root_share(&vault).set_role(&key(&bob), Role::Writer, &mut quiet()).unwrap();
}

#[test]
fn admins_can_remove_themselves_without_an_error() {
    // The removal was made, and then the share could no longer be entered to check the result. The
    // command reported failure, and in a mount it listed nested shares in which the member
    // supposedly remained.
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &ann).unwrap();
    root_share(&vault).set_role(&key(&bob), Role::Admin, &mut quiet()).unwrap();
    mkdir(&vault, b"within").unwrap();
    vault
        .create_share(
            b"within",
            &CreateShare { isolated: false, name: "Ann".into(), others: Vec::new() },
            &mut quiet(),
        )
        .unwrap();
    put(&vault, b"within/file", b"by Ann").unwrap();
    let removed = root_share(&vault).remove(&[key(&ann)], &mut quiet()).unwrap();
    vault.close().unwrap();
    let of_bob = open_as(&store, &bob).unwrap();
    let info = root_share(&of_bob).info().unwrap();
    assert_eq!((info.heads, info.members.len()), (vec![removed], 1));
    assert_eq!(of_bob.who_can_read(b"within").unwrap().len(), 1);
    assert_eq!(get(&of_bob, b"within/file").unwrap(), b"by Ann", "what she had signed stays");
    assert!(matches!(open_as(&store, &ann), Err(Error::NoAccess { .. })));
}

#[test]
fn an_obstacle_in_place_of_the_inventory_stops_no_removal() {
    // The name of an inventory follows from what the member has signed, so the member can compute
    // it before the removal. Bob put a directory there, and could not be removed until it was found
    // and deleted.
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &bob).unwrap();
    put(&vault, b"file", b"by Bob").unwrap();
    vault.close().unwrap();
    let inventories = |store: &MemStore| -> Vec<Box<[u8]>> {
        let entries = store.root().reopen().unwrap().read(0, 1 << 20).unwrap();
        entries
            .into_iter()
            .map(|entry| entry.name)
            .filter(|name| name.starts_with(b"+inventory-"))
            .collect()
    };
    let ahead = store.snapshot();
    root_share(&beside(&ahead, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
    let name = inventories(&ahead).remove(0);
    store.root().mkdir(&name, 0o700).unwrap();
    root_share(&beside(&store, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(
        (get(&vault, b"file").unwrap(), vault.who_can_read(b"").unwrap().len()),
        (b"by Bob".to_vec(), 1)
    );
    assert_eq!(inventories(&store).len(), 2, "the inventory is beside the obstacle");
}

#[test]
fn obstacles_under_the_names_of_records_stop_no_removal() {
    // A directory or a FIFO with the name of a record was a store error for the walk that makes the
    // inventory: a member only had to put one anywhere in the share to prevent the removal. With
    // the name of a manifest it kept everybody from opening the share, and mounts from seeing
    // changes: they continued under the former key.
    for kind in [Kind::Dir, Kind::Fifo, Kind::Symlink] {
        let (store, ann, bob) = with_bob();
        let vault = open_as(&store, &bob).unwrap();
        put(&vault, b"file", b"by Bob").unwrap();
        mkdir(&vault, b"dir").unwrap();
        put(&vault, b"dir/file", b"by Bob").unwrap();
        let dir = vault.cipher_path(b"dir").unwrap();
        vault.close().unwrap();
        let (root, dir) = (store.root(), store.root().open_dir(&dir).unwrap());
        let hash = "A".repeat(43);
        root.mkdir(b"+moved", 0o700).unwrap();
        let moved = root.open_dir(b"+moved").unwrap();
        moved.mkdir(b"evidence", 0o700).unwrap();
        let moved = moved.open_dir(b"evidence").unwrap();
        let mounted = open_as(&store, &ann).unwrap();
        for (at, name) in [
            (&root, format!("+manifest-7-{}", "0".repeat(32))),
            (&root, format!("+link-{}", "0".repeat(32))),
            (&root, format!("+junction-{hash}")),
            (&moved, hash.clone()),
            (&dir, format!("+junction-{hash}")),
        ] {
            match kind {
                Kind::Dir => at.mkdir(name.as_bytes(), 0o700).unwrap(),
                Kind::Symlink => at.symlink(name.as_bytes(), b"nowhere").unwrap(),
                kind => at.mknod(name.as_bytes(), kind, 0o600, 0).unwrap(),
            }
        }
        root_share(&beside(&store, &ann))
            .remove(&[key(&bob)], &mut quiet())
            .unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert!(
            mounted.refresh().unwrap_or_else(|error| panic!("{kind:?}: {error}")),
            "the mount learns of the removal"
        );
        drop(mounted);
        let vault = open_as(&store, &ann).unwrap();
        assert_eq!(
            (get(&vault, b"file").unwrap(), vault.who_can_read(b"").unwrap().len()),
            (b"by Bob".to_vec(), 1)
        );
        drop(vault);
    }
}

#[test]
fn no_write_uses_the_old_key_while_a_manifest_is_unreadable() {
    // The manifest of a removal existed and could not be read: a member had put one of another mode
    // beside it, or the store failed. The open vault continued under the key that the removed
    // member has.
    let (store, ann, bob) = with_bob();
    let plan = FaultPlan::new();
    let vault = Vault::open(
        FaultStore::wrap(store.root(), plan.clone()),
        &ann,
        trusting(false, LockMode::Exclusive),
    )
    .unwrap();
    put(&vault, b"file", b"before").unwrap();
    root_share(&beside(&store, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
    plan.reset();
    // The descriptor is opened first, then the manifests one by one.
    let opens = Calls::Of(Call::OpenFile);
    plan.add(Fault { calls: opens, when: When::Nth(3), errno: libc::EACCES, short: false });
    let error = vault.refresh().unwrap_err();
    assert!(error.errno() == libc::EACCES && error.to_string().contains("+manifest-2-"), "{error}");
    assert_eq!(put(&vault, b"secret", b"not for Bob").unwrap_err().errno(), libc::EROFS);
    assert_eq!(get(&vault, b"file").unwrap(), b"before");
    plan.heal();
    assert!(vault.refresh().unwrap());
    put(&vault, b"secret", b"not for Bob").unwrap();
    let file =
        store.root().open_file(&vault.cipher_path(b"secret").unwrap(), Access::Read).unwrap();
    let mut header = [0; 20];
    file.read_at(&mut header, 0).unwrap();
    assert_eq!(header[16..20], 2u32.to_le_bytes());
}

/// A member put a file of another mode beside the manifests, and a mount stopped writing. The user
/// removed the file, as THREAT_MODEL.md says, and the names were those that the mount had noted before:
/// it did not read the manifests, and stayed read-only until it ended.
#[test]
fn writing_continues_once_an_obstacle_is_removed() {
    let (store, ann, _) = with_bob();
    let plan = FaultPlan::new();
    let wrapped = FaultStore::wrap(store.root(), plan.clone());
    let vault = Vault::open(wrapped, &ann, trusting(false, LockMode::Exclusive)).unwrap();
    put(&vault, b"file", b"before").unwrap();
    let obstacle = format!("+manifest-9-{}", "0".repeat(32));
    plan.forbid(obstacle.as_bytes());
    write(&*store.root(), obstacle.as_bytes(), b"of another mode");
    assert_eq!(vault.refresh().unwrap_err().errno(), libc::EACCES);
    assert_eq!(put(&vault, b"file", b"x").unwrap_err().errno(), libc::EROFS);
    store.root().unlink(obstacle.as_bytes()).unwrap();
    vault.refresh().unwrap();
    put(&vault, b"file", b"after").unwrap();
}

/// Somebody put the descriptor of another vault in place of that of a mounted one. The mount took that
/// for the end of its owner's rights: it dropped what was not written yet, and stayed read-only after the
/// descriptor was back.
#[test]
fn a_foreign_descriptor_ends_no_rights() {
    let (store, other) = (MemStore::new(), MemStore::new());
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let eve = person(7);
    let options = CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 12 };
    Vault::create(&other.root(), &options, &eve).unwrap();
    let vault = vaults::open(store.root()).unwrap();
    put(&vault, b"file", b"before").unwrap();
    let root = store.root();
    let ours = read(&*root, b"+share");
    replace(&*root, b"+share", &read(&*other.root(), b"+share"));
    let junk = format!("+manifest-9-{}", "0".repeat(32));
    write(&*root, junk.as_bytes(), b"junk");
    assert!(vault.refresh().is_err());
    replace(&*root, b"+share", &ours);
    vault.refresh().unwrap();
    put(&vault, b"file", b"after").unwrap();
}

/// A tool creates the manifest of a removal under its final name, and fills it later. A mount, which
/// looks in between, cannot parse the file. It noted the name as read and never looked again, because
/// filling a file changes neither names nor the times of the directory: it sealed everything under
/// the key that the removed member has for as long as it lived. A vault that is opened in between had
/// the same fault.
#[test]
fn a_manifest_that_is_filled_later_is_read_again() {
    for (is_open, short) in [(true, 0), (false, 0), (true, 100), (false, 100)] {
        let (store, ann, bob) = with_bob();
        let (root, done) = (store.root(), store.snapshot());
        root_share(&beside(&done, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
        let name = named(&*done.root(), b"+manifest-2-").remove(0);
        let bytes = read(&*done.root(), &name);
        let open = || open_as(&store, &ann).unwrap();
        let mounted = is_open.then(open);
        write(&*root, &name, &bytes[..short]);
        merge(&*done.root(), &*root);
        let vault = mounted.unwrap_or_else(open);
        vault.refresh().unwrap();
        assert_eq!(epoch_of_new_file(&store, &vault, b"early"), 1, "the removal is not here yet");
        let before = root.stat_self().unwrap();
        write(&*root, &name, &bytes);
        let after = root.stat_self().unwrap();
        assert_eq!((before.mtime, before.ctime), (after.mtime, after.ctime));
        vault.refresh().unwrap();
        assert_eq!(epoch_of_new_file(&store, &vault, b"late"), 2, "{short} bytes, {is_open}");
        assert_eq!(root_share(&vault).info().unwrap().members.len(), 1);
    }
}

/// A change of the members wrote its manifest under the final name. A mount that listed the vault in
/// that moment noted a name whose file it could not parse.
#[test]
fn a_manifest_appears_with_all_of_its_bytes() {
    let (store, ann, bob) = with_bob();
    put(&open_as(&store, &bob).unwrap(), b"file", b"by Bob").unwrap();
    let plan = FaultPlan::new();
    let wrapped = FaultStore::wrap(store.root(), plan.clone());
    let vault = Vault::open(wrapped, &ann, trusting(true, LockMode::None)).unwrap();
    let root = store.root();
    plan.before(Call::Write, move || {
        let names = [&b"+manifest-"[..], b"+slots-", b"+inventory-"].map(|p| named(&*root, p));
        for name in names.concat() {
            assert!(root.stat(&name).unwrap().size > 0, "{}", name.escape_ascii());
        }
    });
    root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap();
    assert_eq!(named(&*store.root(), b"+manifest-2-").len(), 1);
    assert_eq!(named(&*store.root(), b"+tmp-").len(), 0);
}

/// A sync tool delivered the list of members of a rekey before the key that it names. Programs of a
/// member's mount got EROFS until the rest arrived, which does not happen with plain files. A vault
/// that is not marked as synced has no such tool: there somebody must have removed a missing key.
#[test]
fn the_known_key_is_used_until_the_new_one_arrives() {
    for synced in [true, false] {
        let (store, ann, _) = with_bob();
        let root = store.root();
        if synced {
            Vault::set_synced(&root).unwrap();
        }
        let vault = open_as(&store, &ann).unwrap();
        put(&vault, b"file", b"before").unwrap();
        let slots = || -> Vec<Box<[u8]>> {
            let entries = root.reopen().unwrap().read(0, 1 << 20).unwrap();
            entries.into_iter().map(|e| e.name).filter(|n| n.starts_with(b"+slots-")).collect()
        };
        let before = slots();
        root_share(&beside(&store, &ann)).rekey().unwrap();
        let late = slots().into_iter().find(|name| !before.contains(name)).unwrap();
        root.rename(&late, &*root, b"elsewhere", RenameMode::NoReplace).unwrap();
        assert!(vault.refresh().unwrap_err().to_string().contains("+slots"));
        match synced {
            true => put(&vault, b"file", b"meanwhile").unwrap(),
            false => {
                assert_eq!(put(&vault, b"file", b"meanwhile").unwrap_err().errno(), libc::EROFS);
            }
        }
        root.rename(b"elsewhere", &*root, &late, RenameMode::NoReplace).unwrap();
        assert!(vault.refresh().unwrap());
        put(&vault, b"after", b"the new key").unwrap();
        let file = root.open_file(&vault.cipher_path(b"after").unwrap(), Access::Read).unwrap();
        let mut header = [0; 20];
        file.read_at(&mut header, 0).unwrap();
        assert_eq!(header[16..20], 2u32.to_le_bytes());
        let kept: &[u8] = if synced { b"meanwhile" } else { b"before" };
        assert_eq!(get(&vault, b"file").unwrap(), kept);
    }
}

/// An admin who is removed from the parent is removed from its nested shares.
#[test]
fn removing_an_admin_also_removes_them_from_nested_shares() {
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &ann).unwrap();
    root_share(&vault).set_role(&key(&bob), Role::Admin, &mut quiet()).unwrap();
    let own = |isolated| CreateShare { isolated, name: "Ann".into(), others: Vec::new() };
    for (path, isolated) in [(&b"open"[..], false), (b"closed", true)] {
        mkdir(&vault, path).unwrap();
        vault.create_share(path, &own(isolated), &mut quiet()).unwrap();
    }
    let members = |path: &[u8]| vault.who_can_read(path).unwrap().len();
    assert_eq!(
        (members(b"open"), members(b"closed")),
        (2, 1),
        "the parent's admins, unless the share is isolated"
    );
    assert_eq!(vault.share_at(b"open").unwrap().info().unwrap().path, b"open");
    root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap();
    assert_eq!((members(b""), members(b"open"), members(b"closed")), (1, 1, 1));
    put(&vault, b"open/new", b"not for Bob").unwrap();
    assert_eq!(faults(&vault), Vec::<String>::new());
    let nodes = vault.node_count();
    assert!(nodes < 10, "{nodes} nodes are left");
}

#[test]
fn an_older_roster_put_back_under_a_mount_is_refused() {
    // The storage host removes the manifest of a removal again: the open vault must not return to
    // the old key.
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &ann).unwrap();
    root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap();
    put(&vault, b"file", b"epoch 2").unwrap();
    let entries = store.root().reopen().unwrap().read(0, 1 << 20).unwrap();
    let newest = entries.iter().find(|entry| entry.name.starts_with(b"+manifest-2-")).unwrap();
    store.root().unlink(&newest.name).unwrap();
    let error = vault.refresh().unwrap_err();
    assert!(error.to_string().contains("older than manifest 2"), "{error}");
    put(&vault, b"later", b"epoch 2").unwrap();
    for name in [b"file".as_slice(), b"later"] {
        let file = store.root().open_file(&vault.cipher_path(name).unwrap(), Access::Read).unwrap();
        let mut header = [0; 20];
        file.read_at(&mut header, 0).unwrap();
        assert_eq!(header[16..20], 2u32.to_le_bytes());
    }
}

/// A removed admin signs a manifest that competes with the removal. Members who have seen the
/// removal ignore it.
#[test]
fn a_removed_admins_rival_manifest_is_ignored_once_seen() {
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &ann).unwrap();
    root_share(&vault).set_role(&key(&bob), Role::Admin, &mut quiet()).unwrap();
    let apart = store.snapshot();
    root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap();
    // Bob, who has the former state, signs a rival in which he is still a member, and the storage
    // host puts it here.
    root_share(&beside(&apart, &bob)).add(&[member(&person(5), Role::Admin, "Eve")]).unwrap();
    for entry in apart.root().reopen().unwrap().read(0, 1 << 20).unwrap() {
        if (entry.name.starts_with(b"+manifest-") || entry.name.starts_with(b"+slots-"))
            && let Ok(to) = store.root().create_file(&entry.name, 0o600)
        {
            let from = apart.root().open_file(&entry.name, Access::Read).unwrap();
            let mut bytes = vec![0; from.stat().unwrap().size as usize];
            from.read_at(&mut bytes, 0).unwrap();
            to.write_at(&bytes, 0).unwrap();
        }
    }
    vault.refresh().unwrap();
    assert!(!vault.is_read_only());
    let info = root_share(&vault).info().unwrap();
    assert_eq!((info.heads.len(), info.members.len()), (1, 1));
    put(&vault, b"file", b"as ever").unwrap();
}
