//! Shares on stores that cannot exchange two directories in one step: exFAT, NTFS, sshfs, NFS, SMB
//! and most of what comes through FUSE.
//!
//! At every moment the folder exists completely, under its own name or under the one that it has
//! while it is set aside; or the share exists completely. A second call ends with the share, and
//! removes nothing that the share does not contain.

use std::collections::BTreeMap;
use std::sync::Arc;

use kithfs::crypto::Suite;
use kithfs::roster::Role;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Call, Dir, Kind, RenameMode as StoreRename, SetTime, Timestamp};
use kithfs::vault::{
    CreateShare, Error, OpenFlags, OpenOptions, ROOT, RenameMode, ShareMade, ShareProgress, Trust,
    Vault,
};
use parking_lot::Mutex;

use crate::support::members::ShareOfPath;
use crate::support::members::{key, member, person, quiet};
use crate::support::raw;
use crate::support::vaults::{
    self, Item, Seeded, at, faults, get, mkdir, pattern, put, rename, settle, split, tree,
};

/// Returns the temporary names in the root that an operation has left behind.
fn left(store: &MemStore) -> Vec<String> {
    let names = raw::names(&*store.root())
        .into_iter()
        .map(|name| String::from_utf8_lossy(&name).into_owned());
    names
        .filter(|name| ["+trash", "+tmp", "+moving"].iter().any(|left| name.starts_with(left)))
        .collect()
}

const LONG: [u8; 250] = [b'l'; 250];

/// Creates a vault, as on a local disk, with a folder `path` that is to become a share.
fn filled(path: &[u8]) -> MemStore {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    let within = |name: &[u8]| [path, b"/", name].concat();
    put(&vault, b"private", b"Ann's own").unwrap();
    mkdir(&vault, path).unwrap();
    mkdir(&vault, &within(b"sub")).unwrap();
    put(&vault, &within(b"plan"), &pattern(1, 9000)).unwrap();
    put(&vault, &within(b"sub/note"), b"a note").unwrap();
    put(&vault, &within(&[b'n'; 230]), b"long name").unwrap();
    rename(&vault, &within(b"sub"), &within(b"moved"), RenameMode::Replace).unwrap();
    settle(&vault, ROOT);
    vault.close().unwrap();
    store
}

/// Wraps `store` as one that cannot exchange two directories, like most stores behind FUSE.
fn through_fuse(store: &MemStore) -> (Arc<dyn Dir>, Arc<FaultPlan>) {
    let plan = FaultPlan::new();
    plan.come_through_fuse();
    (FaultStore::wrap(store.root(), plan.clone()), plan)
}

fn with_bob() -> CreateShare {
    CreateShare {
        isolated: false,
        name: "Ann".into(),
        others: vec![member(&person(2), Role::Writer, "Bob")],
    }
}

fn share(vault: &Vault, path: &[u8]) -> Result<ShareMade, Error> {
    vault.create_share(path, &with_bob(), &mut quiet())
}

/// Returns the folder's name while it is set aside.
fn aside(path: &[u8]) -> Vec<u8> {
    let end = b".before-share";
    [&path[..path.len().min(255 - end.len())], end].concat()
}

/// Returns the tree, with the folder that was set aside under its own name.
fn put_right(found: &BTreeMap<Vec<u8>, Item>, path: &[u8]) -> BTreeMap<Vec<u8>, Item> {
    let aside = aside(path);
    let right = |at: &Vec<u8>| match at.strip_prefix(&aside[..]) {
        Some(rest) if rest.is_empty() || rest[0] == b'/' => [path, rest].concat(),
        _ => at.clone(),
    };
    found.iter().map(|(at, item)| (right(at), item.clone())).collect()
}

/// Returns the store before each change in the making of a share of `path`.
fn moments(start: &MemStore, path: &[u8]) -> Vec<(String, MemStore)> {
    let store = start.snapshot();
    let (root, _) = through_fuse(&store);
    let vault = vaults::open(root).unwrap();
    let moments: Arc<Mutex<Vec<(String, MemStore)>>> = Arc::default();
    {
        let (watched, moments) = (store.clone(), moments.clone());
        store.on_event(Box::new(move |event| {
            let mut moments = moments.lock();
            let what = format!(
                "{} before {:?} of {}",
                moments.len(),
                event.call,
                String::from_utf8_lossy(event.name.as_deref().unwrap_or(b"-"))
            );
            moments.push((what, watched.snapshot()));
        }));
    }
    assert_eq!(share(&vault, path).unwrap().former, None);
    store.on_event(Box::new(|_| {}));
    moments.lock().push(("the end".into(), store.snapshot()));
    vault.close().unwrap();
    std::mem::take(&mut *moments.lock())
}

/// Continues after an interruption, and finds the share with nothing beside it.
fn goes_on(store: &MemStore, path: &[u8], whole: &BTreeMap<Vec<u8>, Item>, what: &str) {
    let vault = vaults::open(through_fuse(store).0).unwrap();
    let made = share(&vault, path).unwrap_or_else(|e| panic!("{what}: going on: {e}"));
    assert_eq!(made.former, None, "{what}");
    assert_eq!(tree(&vault).unwrap(), *whole, "{what}: gone on");
    // A control file that was being written at that moment is harmless residue.
    let harmless = |fault: &String| {
        fault.contains("was left behind by a crash")
            || fault.contains("names an entry that is not there")
    };
    let faults: Vec<String> = faults(&vault).into_iter().filter(|fault| !harmless(fault)).collect();
    assert_eq!(faults, Vec::<String>::new(), "{what}: gone on");
    let stored = vault.cipher_path(path).unwrap();
    vault.close().unwrap();
    let trusting = OpenOptions {
        trust: Trust { first_use: true, ..Trust::default() },
        ..OpenOptions::default()
    };
    let alone = Vault::open(raw::beneath(&store.root(), &stored), &person(2), trusting).unwrap();
    assert_eq!(get(&alone, b"moved/note").unwrap(), b"a note", "{what}: Bob");
    alone.close().unwrap();
}

#[test]
fn a_share_works_on_a_store_without_an_atomic_exchange() {
    // On exFAT, NTFS, sshfs and NFS, the usual stores of sticks and servers, no share could be made
    // at all.
    for path in [&b"projects"[..], &LONG] {
        let store = filled(path);
        let vault = vaults::open(through_fuse(&store).0).unwrap();
        let before = tree(&vault).unwrap();
        let made = share(&vault, path).unwrap();
        assert_eq!(made.former, None);
        assert_eq!(
            tree(&vault).unwrap(),
            before,
            "the tree is unchanged, and nothing is beside the folder"
        );
        assert_eq!(share(&vault, path).unwrap(), made, "a second call returns the same share");
        assert_eq!(faults(&vault), Vec::<String>::new());
        let handle = vault.share_at(path).unwrap();
        handle.add(&[member(&person(3), Role::Reader, "Cem")]).unwrap();
        handle.remove(&[key(&person(2))], &mut quiet()).unwrap();
        handle.rekey().unwrap();
        assert!(handle.reseal(true, &mut quiet()).unwrap().is_done(true));
        drop(handle);
        assert_eq!(tree(&vault).unwrap(), before);
        assert_eq!(faults(&vault), Vec::<String>::new());
        let stored = vault.cipher_path(path).unwrap();
        vault.close().unwrap();
        assert_eq!(left(&store), [""; 0]);
        let opened = |n| {
            let trusting = OpenOptions {
                trust: Trust { first_use: true, ..Trust::default() },
                ..OpenOptions::default()
            };
            Vault::open(raw::beneath(&through_fuse(&store).0, &stored), &person(n), trusting)
        };
        assert_eq!(get(&opened(3).unwrap(), b"plan").unwrap(), pattern(1, 9000));
        assert!(matches!(opened(2), Err(Error::NoAccess { .. })));
    }
}

#[test]
fn a_conversion_in_steps_survives_a_stop_at_any_point() {
    // Between two renames the folder has a temporary name. The next call knows this name; that call
    // may be interrupted too.
    for path in [&b"projects"[..], &LONG] {
        let whole = tree(&vaults::open(filled(path).root()).unwrap()).unwrap();
        let (mut without_share, mut beside_share) = (0, 0);
        for (begun, start) in [
            ("", filled(path)),
            ("again, ", with_folder_aside(path, false)),
            ("at the end, ", with_folder_aside(path, true)),
        ] {
            for (n, (what, store)) in moments(&start, path).into_iter().enumerate() {
                // The process is killed, which loses nothing; or the power fails, which loses some
                // or all of what was not durable.
                let random = Seeded::new(n as u64 + 7);
                let mut choose = move |ways: usize| random.below(ways as u64) as usize;
                let crashed = [
                    store.snapshot(),
                    store.crash(&mut |_| 0),
                    store.crash(&mut |n| n - 1),
                    store.crash(&mut choose),
                ];
                for (way, store) in crashed.into_iter().enumerate() {
                    let what = format!("{begun}stopped at {what}, in way {way}");
                    let vault = vaults::open(through_fuse(&store).0).unwrap();
                    let found = tree(&vault).unwrap();
                    vault.close().unwrap();
                    // The folder alone, or the share, or for a moment both: always complete.
                    for at in [path, &aside(path)].into_iter().filter(|at| found.contains_key(*at))
                    {
                        let other = if at == path { aside(path) } else { path.to_vec() };
                        let is_other = |at: &[u8]| {
                            at.strip_prefix(&other[..])
                                .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
                        };
                        let alone = found
                            .iter()
                            .filter(|(at, _)| !is_other(at))
                            .map(|(at, item)| (at.clone(), item.clone()))
                            .collect();
                        assert_eq!(put_right(&alone, path), whole, "{what}");
                    }
                    match (found.contains_key(path), found.contains_key(&aside(path))) {
                        (false, aside) => without_share += usize::from(aside),
                        (true, aside) => beside_share += usize::from(aside),
                    }
                    assert!(
                        found.contains_key(path) || found.contains_key(&aside(path)),
                        "{what}: the folder is nowhere"
                    );
                    goes_on(&store, path, &whole, &what);
                }
            }
        }
        assert!(without_share > 0 && beside_share > 0, "{without_share} {beside_share}");
    }
}

#[test]
fn each_step_is_durable_before_the_next_one() {
    // On a store that keeps the second rename and loses the first one, the folder would be nowhere.
    let start = filled(b"projects");
    let stored = vaults::open(start.snapshot().root()).unwrap().cipher_path(b"projects").unwrap();
    let calls: Vec<String> = moments(&start, b"projects")
        .into_iter()
        .map(|(what, _)| what.split_once(' ').unwrap().1.to_owned())
        .collect();
    let aside = format!("before Rename of {}", String::from_utf8_lossy(&stored));
    let at = calls.iter().position(|call| *call == aside).expect("the folder is set aside");
    let kind = |call: &String| call.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(
        calls[at..][..6].iter().map(kind).collect::<Vec<_>>(),
        ["Rename", "SyncDir", "Rename", "SyncDir", "Rename", "SyncDir"]
    );
    assert!(calls[at + 2].contains("+moving-"), "{}", calls[at + 2]);
    let recorded = calls[..at]
        .iter()
        .rposition(|call| call.contains("Rename of +tmp-"))
        .expect("the rename evidence");
    assert!(
        calls[recorded..at].iter().any(|call| call.contains("SyncDir")),
        "{:?}",
        &calls[recorded..at]
    );
}

/// A store that fills up while a share is made leaves the folder complete, and the share is made
/// once there is space.
#[test]
fn a_full_store_during_a_conversion_keeps_the_folder_whole() {
    let start = filled(b"projects");
    let whole = tree(&vaults::open(start.root()).unwrap()).unwrap();
    let mut refused = 0;
    for blocks in (0..120).chain([200, 400]) {
        let store = start.snapshot();
        let vault = vaults::open(through_fuse(&store).0).unwrap();
        let space = vault.space().unwrap();
        store.set_capacity(Some((space.blocks - space.free + blocks) * space.block_size));
        let made = share(&vault, b"projects");
        if let Err(error) = &made {
            assert_eq!(error.errno(), libc::ENOSPC, "{blocks}: {error}");
            refused += 1;
        }
        // If it is a share already, there may be no room even for its lock.
        match tree(&vault) {
            Ok(found) => assert_eq!(put_right(&found, b"projects"), whole, "{blocks}: {made:?}"),
            Err(error) => assert_eq!(error.errno(), libc::ENOSPC, "{blocks}: {error}"),
        }
        store.set_capacity(None);
        assert_eq!(put_right(&tree(&vault).unwrap(), b"projects"), whole, "{blocks}: {made:?}");
        assert_eq!(share(&vault, b"projects").unwrap().former, None, "{blocks}");
        assert_eq!(tree(&vault).unwrap(), whole, "{blocks}");
        vault.close().unwrap();
        assert_eq!(left(&store), [""; 0], "{blocks}");
    }
    assert!(refused > 10 && refused < 120, "{refused}");
}

/// A change of the store that fails while a share is made leaves the folder, or the share, under
/// the folder's name.
#[test]
fn a_failed_call_in_a_conversion_keeps_the_folders_name() {
    let start = filled(b"projects");
    let whole = tree(&vaults::open(start.root()).unwrap()).unwrap();
    let count = {
        let store = start.snapshot();
        let (root, plan) = through_fuse(&store);
        let vault = vaults::open(root).unwrap();
        plan.reset();
        share(&vault, b"projects").unwrap();
        plan.count(Calls::Changes)
    };
    for nth in 1..=count {
        let store = start.snapshot();
        let (root, plan) = through_fuse(&store);
        let vault = vaults::open(root).unwrap();
        plan.reset();
        plan.add(Fault {
            calls: Calls::Changes,
            when: When::Nth(nth),
            errno: libc::EIO,
            short: false,
        });
        let made = share(&vault, b"projects");
        plan.heal();
        let found = tree(&vault).unwrap();
        let share_is_there = made.is_ok() || found.contains_key(&aside(b"projects"));
        assert_eq!(put_right(&found, b"projects"), whole, "{nth} of {count} failed: {made:?}");
        assert!(found.contains_key(&b"projects"[..]), "{nth} of {count} failed: {made:?}");
        if !share_is_there {
            put(&vault, b"projects/after", b"goes on").unwrap();
            at(&vault, b"projects", |dir| vault.unlink(dir, b"after")).unwrap();
        }
        assert_eq!(
            share(&vault, b"projects").unwrap().former,
            None,
            "{nth} of {count} failed: {made:?}"
        );
        assert_eq!(tree(&vault).unwrap(), whole, "{nth} of {count} failed: {made:?}");
        vault.close().unwrap();
    }
}

/// Returns the first moment at which the folder is set aside, alone or beside the share.
fn with_folder_aside(path: &[u8], beside_the_share: bool) -> MemStore {
    let moments = moments(&filled(path), path);
    let found = moments.into_iter().map(|(_, store)| store).find(|store| {
        let vault = vaults::open(store.snapshot().root()).unwrap();
        vault.resolve(&aside(path)).is_ok() && vault.resolve(path).is_ok() == beside_the_share
    });
    found.expect("there is such a moment").snapshot()
}

#[test]
fn a_leftover_folder_is_removed_only_if_its_share_is_whole() {
    // Users see the folder that was set aside and may write to it; a sync tool may have delivered
    // only a part of the share.
    type Change = fn(&Vault);
    let changes: [(&str, Change); 8] = [
        ("a file was added", |v| put(v, b"projects.before-share/new", b"new").unwrap()),
        ("one was written to", |v| {
            vaults::write_at(v, b"projects.before-share/plan", 5000, b"changed").unwrap()
        }),
        ("one was written to in the share", |v| {
            vaults::write_at(v, b"projects/plan", 5000, b"changed").unwrap()
        }),
        ("one is not in the share", |v| {
            at(v, b"projects/moved", |dir| v.unlink(dir, b"note")).unwrap()
        }),
        ("a directory is not in the share", |v| {
            rename(v, b"projects/moved", b"projects/elsewhere", RenameMode::Replace).unwrap()
        }),
        ("a directory was made", |v| mkdir(v, b"projects.before-share/empty").unwrap()),
        ("an attribute was set", |v| {
            vaults::set_xattr(v, b"projects.before-share/plan", b"user.tag", b"blue").unwrap()
        }),
        ("one was renamed", |v| {
            rename(
                v,
                b"projects.before-share/plan",
                b"projects.before-share/plans",
                RenameMode::Replace,
            )
            .unwrap()
        }),
    ];
    for (what, change) in changes {
        let store = with_folder_aside(b"projects", true);
        let vault = vaults::open(through_fuse(&store).0).unwrap();
        change(&vault);
        let before = tree(&vault).unwrap();
        let made = share(&vault, b"projects").unwrap();
        assert_eq!(made.former.as_deref(), Some(&b"projects.before-share"[..]), "{what}");
        assert_eq!(tree(&vault).unwrap(), before, "{what}: nothing was taken away");
        // From now on the former folder belongs to the user, and no call searches for it again.
        assert_eq!(
            share(&vault, b"projects").unwrap(),
            ShareMade { former: None, ..made },
            "{what}"
        );
        assert_eq!(tree(&vault).unwrap(), before, "{what}");
        assert_eq!(faults(&vault), Vec::<String>::new(), "{what}");
    }
}

#[test]
fn a_folder_of_the_users_own_under_such_a_name_is_left_alone() {
    // The name alone proves nothing.
    let start = filled(b"projects");
    let vault = vaults::open(through_fuse(&start).0).unwrap();
    mkdir(&vault, b"projects.before-share").unwrap();
    put(&vault, b"projects.before-share/own", b"the user's own").unwrap();
    share(&vault, b"projects").unwrap();
    assert_eq!(get(&vault, b"projects.before-share/own").unwrap(), b"the user's own");
    assert_eq!(get(&vault, b"projects/moved/note").unwrap(), b"a note");
    vault.close().unwrap();

    // A directory that somebody has put in the place of the folder that was set aside.
    let store = with_folder_aside(b"projects", true);
    let vault = vaults::open(through_fuse(&store).0).unwrap();
    rename(&vault, b"projects.before-share", b"kept", RenameMode::Replace).unwrap();
    mkdir(&vault, b"projects.before-share").unwrap();
    assert_eq!(share(&vault, b"projects").unwrap().former, None);
    vault.resolve(b"projects.before-share").unwrap();
    assert_eq!(get(&vault, b"kept/moved/note").unwrap(), b"a note");
}

#[test]
fn a_recreated_folder_is_replaced_only_if_it_is_empty() {
    // A program finds its folder missing and creates it again before the share is continued.
    let store = with_folder_aside(b"projects", false);
    let vault = vaults::open(through_fuse(&store).0).unwrap();
    mkdir(&vault, b"projects").unwrap();
    put(&vault, b"projects/new", b"new").unwrap();
    let before = tree(&vault).unwrap();
    let refused = share(&vault, b"projects").unwrap_err();
    assert!(matches!(refused, Error::Os { op: "share", errno: libc::EEXIST }), "{refused}");
    assert_eq!(tree(&vault).unwrap(), before);
    at(&vault, b"projects", |dir| vault.unlink(dir, b"new")).unwrap();
    share(&vault, b"projects").unwrap();
    assert_eq!(get(&vault, b"projects/moved/note").unwrap(), b"a note");
    vault.resolve(b"projects.before-share").unwrap_err();
    vault.close().unwrap();
    // Or the user restores its name, or gives it another one.
    for name in [&b"projects"[..], b"works"] {
        let store = with_folder_aside(b"projects", false);
        let vault = vaults::open(through_fuse(&store).0).unwrap();
        rename(&vault, b"projects.before-share", name, RenameMode::Replace).unwrap();
        share(&vault, name).unwrap();
        assert_eq!(get(&vault, &[name, b"/moved/note"].concat()).unwrap(), b"a note");
        assert_eq!(vault.resolve(b"projects").is_ok(), name == b"projects");
    }
}

#[test]
fn attack_staged_entries_are_changed_during_a_conversion() {
    // The storage host stops the machine while the folder is set aside, removes a file from the new
    // share, spoils one in it, or puts the share into the folder's place: the share is
    // compared with the folder, and the folder is removed only if the share contains all of it.
    type Attack = fn(&dyn Dir, &dyn Dir, &[u8]);
    let attacks: [(&str, Attack, bool); 3] = [
        ("a file is taken out", |_, staged, _| staged.unlink(&largest(staged)).unwrap(), true),
        ("a file is spoilt", |_, staged, _| raw::write(staged, &largest(staged), b"spoilt"), true),
        (
            "the share is put in place without a file",
            |root, staged, stored| {
                staged.unlink(&largest(staged)).unwrap();
                let staging = raw::named(root, b"+moving-").pop().unwrap();
                root.rename(&staging, root, stored, StoreRename::NoReplace).unwrap();
            },
            false,
        ),
    ];
    for (what, attack, completed) in attacks {
        let store = with_folder_aside(b"projects", false);
        let root = store.root();
        let staging = raw::named(&*root, b"+moving-").pop().unwrap();
        let stored =
            vaults::open(store.snapshot().root()).unwrap().cipher_path(b"projects").unwrap();
        attack(&*root, &*root.open_dir(&staging).unwrap(), &stored);
        let vault = vaults::open(through_fuse(&store).0).unwrap();
        let made = share(&vault, b"projects").unwrap();
        let whole = if completed { &b"projects"[..] } else { b"projects.before-share" };
        assert_eq!(made.former.is_none(), completed, "{what}");
        assert_eq!(get(&vault, &[whole, b"/plan"].concat()).unwrap(), pattern(1, 9000), "{what}");
        assert_eq!(get(&vault, &[whole, b"/moved/note"].concat()).unwrap(), b"a note", "{what}");
    }
}

/// Returns the largest file of a directory of the store.
fn largest(dir: &dyn Dir) -> Vec<u8> {
    let files = raw::names(dir)
        .into_iter()
        .filter(|name| name[0] != b'+' && dir.stat(name).unwrap().kind == Kind::File);
    files.max_by_key(|name| dir.stat(name).unwrap().size).unwrap()
}

#[test]
fn a_change_within_one_second_is_noticed_with_coarse_times() {
    // On exFAT and sshfs times are whole seconds. If a program overwrote a file right after it was
    // copied, without changing its size, the new bytes were missing in the share.
    let store = filled(b"projects");
    let (root, _) = through_fuse(&store);
    let vault = vaults::open(root).unwrap();
    let second = Timestamp { secs: 1_700_000_000, nanos: 0 };
    let stored = vault.cipher_path(b"projects/plan").unwrap();
    let whole_seconds = |store: &MemStore| {
        let (parent, name) = split(&stored);
        raw::beneath(&store.root(), parent)
            .set_times(name, SetTime::At(second), SetTime::At(second))
            .unwrap();
    };
    whole_seconds(&store);
    let mut changed = false;
    vault
        .create_share(b"projects", &with_bob(), &mut |done: &ShareProgress| {
            if done.files == done.files_total && !std::mem::replace(&mut changed, true) {
                vaults::write_at(&vault, b"projects/plan", 0, b"at the last moment").unwrap();
                whole_seconds(&store);
            }
        })
        .unwrap();
    assert!(changed && get(&vault, b"projects/plan").unwrap().starts_with(b"at the last moment"));
}

/// The conversion uses the node of the folder's directory after the folder has lost its name. If no
/// program had it open, the node was forgotten by then, and the call failed with ESTALE.
#[test]
fn a_folder_in_an_unused_directory_becomes_a_share() {
    for path in [&b"new/folder"[..], b"new/deep/er/folder"] {
        let store = filled(b"elsewhere");
        let vault = vaults::open(store.root()).unwrap();
        let parts: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
        for depth in 1..=parts.len() {
            mkdir(&vault, &parts[..depth].join(&b'/')).unwrap();
        }
        put(&vault, &[path, b"/note"].concat(), b"a note").unwrap();
        settle(&vault, ROOT);
        vault.close().unwrap();
        let vault = vaults::open(store.root()).unwrap();
        share(&vault, path).unwrap();
        assert_eq!(get(&vault, &[path, b"/note"].concat()).unwrap(), b"a note");
        assert_eq!(vault.who_can_read(path).unwrap().len(), 2);
        vault.close().unwrap();
        assert_eq!(left(&store), Vec::<String>::new());
    }
}

#[test]
fn a_folder_is_converted_while_a_file_in_it_is_open() {
    // If an open file is removed, such a store keeps it under a hidden name, so its directory cannot
    // be removed. The share was made, but the command failed.
    let store = filled(b"projects");
    let (root, plan) = through_fuse(&store);
    let vault = vaults::open(root).unwrap();
    let node = vault.resolve(b"projects/plan").unwrap().node;
    let reader =
        vault.open_file(node, OpenFlags { read: true, ..OpenFlags::default() }).unwrap().handle;
    let done = plan.count(Calls::Of(Call::Rmdir));
    for n in 1..=2 {
        plan.add(Fault {
            calls: Calls::Of(Call::Rmdir),
            when: When::Nth(done + n),
            errno: libc::ENOTEMPTY,
            short: false,
        });
    }
    share(&vault, b"projects").unwrap();
    let mut buf = [0; 9000];
    assert_eq!(vault.read(reader, 0, &mut buf).unwrap(), 9000);
    assert!(buf[..] == pattern(1, 9000)[..], "the open file can still be read");
    vault.release(reader).unwrap();
    assert_eq!(get(&vault, b"projects/plan").unwrap(), pattern(1, 9000));
    vault.close().unwrap();
    assert_eq!(left(&store), [""; 0]);
    let vault = vaults::open(store.root()).unwrap();
    assert_eq!(faults(&vault), Vec::<String>::new());
}

#[test]
fn a_folder_is_found_while_its_conversion_has_moved_it() {
    // Between the two renames the folder is not at the path that programs use. Programs that worked
    // in it got ENOENT.
    let store = filled(b"projects");
    let (root, plan) = through_fuse(&store);
    let vault = vaults::open(root).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let ready = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        // Also in a panic; otherwise the scope would wait for the readers for ever.
        let end =
            scopeguard::guard((), |()| stop.store(true, std::sync::atomic::Ordering::Relaxed));
        let looker = scope.spawn(|| {
            let (mut looked, mut anew) = (0, 0);
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let node = vault.resolve(b"projects").unwrap().node;
                let error = loop {
                    match vault.getattr(node) {
                        Ok(_) => looked += 1,
                        Err(error) => break Some(error),
                    }
                    if looked == 1 {
                        ready.wait();
                    }
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break None;
                    }
                };
                vault.forget(node, 1);
                // The kernel then looks the path up again.
                assert!(error.is_none_or(|error| error.errno() == libc::ESTALE));
                anew += 1;
            }
            (looked, anew)
        });
        let lister = scope.spawn(|| {
            ready.wait();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let names: Vec<Vec<u8>> = vaults::entries(&vault, ROOT)
                    .unwrap()
                    .into_iter()
                    .map(|(name, attr)| {
                        vault.forget(attr.node, 1);
                        name
                    })
                    .collect();
                // The folder may be listed twice, like anything that is renamed during a listing.
                assert!(
                    names.iter().any(|name| name == b"projects")
                        && !names.contains(&aside(b"projects")),
                    "{names:?}"
                );
            }
        });
        ready.wait();
        plan.slow_down(Call::SyncDir, std::time::Duration::from_millis(20));
        share(&vault, b"projects").unwrap();
        drop(end);
        lister.join().unwrap();
        let (looked, anew) = looker.join().unwrap();
        assert!(looked > 10 && anew > 0, "{looked} {anew}");
    });
}

/// A folder that contains a share was refused with EACCES, as if the user lacked a permission.
#[test]
fn a_folder_that_contains_a_share_is_refused() {
    let store = filled(b"elsewhere");
    let vault = vaults::open(store.root()).unwrap();
    mkdir(&vault, b"outer").unwrap();
    mkdir(&vault, b"outer/inner").unwrap();
    share(&vault, b"outer/inner").unwrap();
    let before = tree(&vault).unwrap();
    assert_eq!(share(&vault, b"outer").unwrap_err().errno(), libc::EINVAL);
    assert_eq!(tree(&vault).unwrap(), before);
    vault.close().unwrap();
}

/// Two machines made a share of one folder without knowing of each other. The sync tool kept the
/// descriptor of one share and the junction to the other one, and no machine could enter either.
#[test]
fn a_folder_that_two_machines_have_made_a_share_can_be_read() {
    let start = filled(b"projects");
    let stored = vaults::open(start.root()).unwrap().cipher_path(b"projects").unwrap();
    let [one, two] = [&b"of one"[..], b"of two"].map(|text| {
        let store = start.snapshot();
        let vault = vaults::open(store.root()).unwrap();
        share(&vault, b"projects").unwrap();
        put(&vault, b"projects/own", text).unwrap();
        vault.close().unwrap();
        store
    });
    let inside = |store: &MemStore| store.root().open_dir(&stored).unwrap();
    const COPY: &[u8] = b"+share.sync-conflict-20260101-120000-ABCDEFG";
    raw::write(&*inside(&one), COPY, &raw::read(&*inside(&one), b"+share"));
    raw::write(&*inside(&one), b"+share", &raw::read(&*inside(&two), b"+share"));
    raw::add(&*inside(&two), &*inside(&one));

    let both = one;
    let vault = vaults::open(both.root()).unwrap();
    assert_eq!(get(&vault, b"projects/own").unwrap(), b"of one", "the junction decides");
    assert_eq!(get(&vault, b"projects/plan").unwrap(), pattern(1, 9000));
    let found = vault.check(b"", &mut |_| {}).unwrap().faults;
    let made_twice = |fault: &&kithfs::vault::CheckFault| fault.what.contains("by two machines");
    let repairable: Vec<_> = found.iter().filter(made_twice).cloned().collect();
    assert_eq!(repairable.len(), 1, "{found:?}");
    let repaired = vault.repair(&repairable, b"repair-1", &mut |_| true).unwrap();
    assert!(repaired.kept_in.is_none());
    assert!(!faults(&vault).iter().any(|fault| fault.contains("by two machines")));
    vault.close().unwrap();
    assert_eq!(get(&vaults::open(both.root()).unwrap(), b"projects/own").unwrap(), b"of one");

    // Each of them alone, in a copy of the directory.
    let alone = |descriptor: &[u8]| {
        let copy = MemStore::new();
        raw::copy(&*inside(&both), &*copy.root());
        raw::replace(&*copy.root(), b"+share", &raw::read(&*inside(&both), descriptor));
        let trust = Trust { first_use: true, ..Trust::default() };
        let options = OpenOptions { trust, ..OpenOptions::default() };
        let vault = Vault::open(copy.root(), &vaults::owner(), options).unwrap();
        assert_eq!(get(&vault, b"plan").unwrap(), pattern(1, 9000));
        get(&vault, b"own").unwrap()
    };
    let names = raw::named(&*inside(&both), b"+share");
    let mut texts: Vec<_> = names.iter().map(|name| alone(name)).collect();
    texts.sort();
    assert_eq!(texts, [b"of one", b"of two"]);
}

/// Changes `projects/plan` in a copy of the vault, and returns its stored path and new bytes.
fn changed_elsewhere(store: &MemStore) -> (Vec<u8>, Vec<u8>) {
    let copy = store.snapshot();
    let vault = vaults::open(copy.root()).unwrap();
    put(&vault, b"projects/plan", b"changed elsewhere").unwrap();
    let stored = vault.cipher_path(b"projects/plan").unwrap();
    vault.close().unwrap();
    let (dir, name) = split(&stored);
    let bytes = raw::read(&*raw::beneath(&copy.root(), dir), name);
    (stored, bytes)
}

/// Puts a file where a sync tool delivers it. Asserts that it has no name there, and that the check
/// names its stored path.
fn deliver(store: &MemStore, stored: &[u8], bytes: &[u8]) {
    let (dir, name) = split(stored);
    let _ = store.root().mkdir(dir, 0o755);
    raw::write(&*raw::beneath(&store.root(), dir), name, bytes);
    let vault = vaults::open(store.root()).unwrap();
    let listed = format!("? ({}): ", stored.escape_ascii());
    let found = faults(&vault);
    assert!(found.iter().any(|fault| fault.contains(&listed)), "{found:?}");
    vault.close().unwrap();
}

/// While one machine renamed a share, an offline one changed a file in it, which then had no name
/// anywhere. docs/TROUBLESHOOTING.md says where to move it.
#[test]
fn a_file_changed_while_its_share_was_renamed_is_moved_there() {
    let store = filled(b"projects");
    let vault = vaults::open(store.root()).unwrap();
    share(&vault, b"projects").unwrap();
    vault.close().unwrap();
    let (stored, bytes) = changed_elsewhere(&store);
    let vault = vaults::open(store.root()).unwrap();
    rename(&vault, b"projects", b"renamed", RenameMode::Replace).unwrap();
    let renamed = vault.cipher_path(b"renamed").unwrap();
    vault.close().unwrap();
    deliver(&store, &stored, &bytes);
    let (former, name) = split(&stored);
    let (root, kept) = (store.root(), [name, b" (conflict kept)"].concat());
    let [from, to] = [former, &renamed].map(|dir| raw::beneath(&root, dir));
    from.rename(name, &*to, &kept, StoreRename::NoReplace).unwrap();
    root.rmdir(former).unwrap();

    let vault = vaults::open(store.root()).unwrap();
    let copy = b"renamed/plan (conflict kept)";
    assert_eq!(get(&vault, copy).unwrap(), b"changed elsewhere");
    assert_eq!(get(&vault, b"renamed/plan").unwrap(), pattern(1, 9000));
    assert_eq!(faults(&vault), [""; 0]);
}

/// The same while the folder became a share: the file is sealed for the vault around it.
#[test]
fn a_file_changed_while_its_folder_became_a_share_is_moved_out() {
    let store = filled(b"projects");
    let (stored, bytes) = changed_elsewhere(&store);
    let vault = vaults::open(store.root()).unwrap();
    share(&vault, b"projects").unwrap();
    vault.close().unwrap();
    deliver(&store, &stored, &bytes);
    let (dir, name) = split(&stored);
    let root = store.root();
    raw::beneath(&root, dir).rename(name, &*root, name, StoreRename::NoReplace).unwrap();

    let vault = vaults::open(root).unwrap();
    let names = vaults::entries(&vault, ROOT).unwrap().into_iter().map(|(name, _)| name);
    let marked: Vec<_> = names.filter(|name| name.starts_with(b"plan (moved ")).collect();
    assert_eq!(marked.len(), 1);
    assert_eq!(get(&vault, &marked[0]).unwrap(), b"changed elsewhere");
    assert_eq!(get(&vault, b"projects/plan").unwrap(), pattern(1, 9000));
}
