//! Stores that cannot do what a local disk does: exFAT, NTFS and sshfs, as they come through FUSE. `scripts/stores.sh` drives the real ones.

#[path = "support/members.rs"]
mod members;
#[path = "support/raw.rs"]
mod raw;
#[path = "support/vaults.rs"]
mod vaults;

use std::collections::BTreeMap;
use std::sync::Arc;

use kithfs::backing::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::backing::mem::MemStore;
use kithfs::backing::{Call, Dir, Kind, RenameMode as StoreRename, SetTime, Timestamp};
use kithfs::crypto::Suite;
use kithfs::sharing::Role;
use kithfs::vault::{Caller, CreateShare, Error, OpenOptions, ROOT, RenameMode, ShareMade, ShareProgress, Trust, Vault};
use members::{key, member, person, quiet};
use parking_lot::Mutex;
use vaults::{CALLER, Item, READ_WRITE, Seeded, at, faults, get, mkdir, open_or_create, pattern, put, rename, settle, split, tree};

/// A vault on such a store, and the plan by which it fails.
fn vault() -> (Vault, MemStore, Arc<FaultPlan>) {
    let (store, plan) = (MemStore::new(), FaultPlan::new());
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    plan.come_through_fuse();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    (vault, store, plan)
}

/// A directory that was renamed with something in it, and emptied: it holds the record of its id.
fn recorded(vault: &Vault, path: &[u8]) {
    mkdir(vault, b"first").unwrap();
    put(vault, b"first/file", b"x").unwrap();
    rename(vault, b"first", path, RenameMode::Replace).unwrap();
    unlink(vault, &[path, b"/file"].concat());
}

fn unlink(vault: &Vault, path: &[u8]) {
    let (parent, name) = split(path);
    at(vault, parent, |parent| vault.unlink(parent, name)).unwrap();
}

/// Stored names in the root that a crash or a failure left.
fn left(store: &MemStore) -> Vec<String> {
    let entries = store.root().read(0, 1 << 16).unwrap();
    let names = entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned());
    names.filter(|name| name.starts_with("+trash") || name.starts_with("+tmp")).collect()
}

#[test]
fn a_directory_is_renamed_over_an_emptied_one_where_the_store_cannot_exchange() {
    // On exFAT, NTFS, sshfs and NFS `mv -T` over an empty directory that had been renamed once gave EINVAL.
    let (vault, store, _) = vault();
    recorded(&vault, b"target");
    mkdir(&vault, b"source").unwrap();
    put(&vault, b"source/kept", b"kept").unwrap();
    rename(&vault, b"source", b"target", RenameMode::Replace).unwrap();
    assert_eq!(get(&vault, b"target/kept").unwrap(), b"kept");
    assert_eq!(vault.resolve(b"source").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(left(&store), [""; 0]);
    let root = vault.resolve(b"").unwrap().node;
    let refused = vault.rename(root, b"target", root, b"target", RenameMode::NoReplace);
    assert_eq!(refused.unwrap_err().errno(), libc::EEXIST);
}

#[test]
fn a_rename_over_a_directory_that_fails_midway_leaves_both() {
    for nth in 2..=3 {
        let (vault, _, plan) = vault();
        recorded(&vault, b"target");
        mkdir(&vault, b"source").unwrap();
        put(&vault, b"source/kept", b"kept").unwrap();
        let done = plan.count(Calls::Of(Call::Rename));
        // The record of the source's id is put in its place by a rename too, and then comes the one that finds the target not empty.
        plan.add(Fault { calls: Calls::Of(Call::Rename), when: When::Nth(done + 2 + nth), errno: libc::EIO, short: false });
        let renamed = rename(&vault, b"source", b"target", RenameMode::Replace);
        plan.heal();
        let at = if renamed.is_ok() { &b"target/kept"[..] } else { b"source/kept" };
        assert_eq!(get(&vault, at).unwrap(), b"kept");
        vault.resolve(b"target").unwrap();
    }
}

#[test]
fn a_removed_directory_goes_once_the_store_has_closed_what_was_in_it() {
    // Through FUSE a file that is removed while it is open keeps a hidden name, and its directory. The directory stayed in the vault for
    // ever, and was a fault to fsck. So did the one around it.
    let (vault, store, plan) = vault();
    mkdir(&vault, b"outer").unwrap();
    recorded(&vault, b"outer/dir");
    let outer = store.root().read(0, 1 << 16).unwrap().into_iter().find(|entry| !entry.name.starts_with(b"+")).unwrap();
    let outer = store.root().open_dir(&outer.name).unwrap();
    let inner = outer.open_dir(&outer.read(0, 1 << 16).unwrap()[0].name).unwrap();
    inner.create_file(b".fuse_hidden0000000100000001", 0o600).unwrap();
    let done = plan.count(Calls::Of(Call::Rmdir));
    for n in [2, 4] {
        // Each time the directory is found not empty, then it is moved away, and cannot be deleted either.
        plan.add(Fault { calls: Calls::Of(Call::Rmdir), when: When::Nth(done + n), errno: libc::ENOTEMPTY, short: false });
    }
    at(&vault, b"outer", |outer| vault.rmdir(outer, b"dir")).unwrap();
    assert_eq!(vault.resolve(b"outer/dir").unwrap_err().errno(), libc::ENOENT);
    at(&vault, b"", |root| vault.rmdir(root, b"outer")).unwrap();
    vault.close().unwrap();
    assert_eq!(left(&store), [""; 0]);
    let entries = store.root().read(0, 1 << 16).unwrap();
    assert!(entries.iter().all(|entry| entry.name.starts_with(b"+")), "both are gone");
}

#[test]
fn a_file_without_a_name_is_written_to_where_the_store_still_counts_one() {
    // sshfs and exFAT keep an open file that is removed under a hidden name. The vault was searched for it, and its fsync gave EIO.
    let (vault, _, plan) = vault();
    let handle = open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 0, &pattern(1, 300_000), false).unwrap();
    vault.fsync(handle, false).unwrap();
    unlink(&vault, b"file");
    vault.write(handle, 50, b"after", false).unwrap();
    let listed = plan.count(Calls::Of(Call::List));
    vault.fsync(handle, false).unwrap();
    let mut buf = [0; 5];
    vault.read(handle, 50, &mut buf).unwrap();
    assert_eq!(&buf, b"after");
    vault.release(handle).unwrap();
    assert_eq!(plan.count(Calls::Of(Call::List)), listed, "nothing is searched for");
}

#[test]
fn a_hard_link_is_refused_where_it_would_show_as_another_file() {
    // Over sshfs the two names were opened as two files: what was written by way of the one was damage to the other.
    let (vault, store, _) = vault();
    put(&vault, b"file", b"contents").unwrap();
    let before = store.root().read(0, 1 << 16).unwrap().len();
    for name in [&b"link"[..], &[b'l'; 250]] {
        let node = vault.resolve(b"file").unwrap().node;
        let root = vault.resolve(b"").unwrap().node;
        assert_eq!(vault.link(node, root, name).unwrap_err().errno(), libc::EOPNOTSUPP);
        vault.forget(node, 1);
        assert_eq!(vault.resolve(name).unwrap_err().errno(), libc::ENOENT);
    }
    assert_eq!(get(&vault, b"file").unwrap(), b"contents");
    assert_eq!(store.root().read(0, 1 << 16).unwrap().len(), before, "not even a long name's sidecar stays");
    let (parent, name) = split(b"new");
    at(&vault, parent, |parent| vault.mkdir(&CALLER, parent, name, 0o755)).unwrap();
}

#[test]
fn a_link_that_is_too_long_for_the_store_has_its_target_aside() {
    // XFS takes links of 1,024 bytes: a target of more than 700 gave ENAMETOOLONG, and so did cp of a tree with one.
    let (vault, store, plan) = vault();
    let target = pattern(1, 900).iter().map(|b| b'a' + b % 26).collect::<Vec<_>>();
    let done = plan.count(Calls::Of(Call::Symlink));
    plan.add(Fault { calls: Calls::Of(Call::Symlink), when: When::Nth(done + 1), errno: libc::ENAMETOOLONG, short: false });
    vaults::symlink(&vault, b"link", &target).unwrap();
    drop(vault);
    let vault = vaults::open(store.root()).unwrap();
    assert_eq!(at(&vault, b"link", |node| vault.readlink(node)).unwrap(), target);
    let attr = vault.resolve(b"link").unwrap();
    assert_eq!(attr.size, 900);
}

#[test]
fn what_a_failed_call_has_made_instead_goes() {
    // exfat-fuse makes an empty file where a FIFO was asked for, and fails then. It stayed, and was a fault to fsck.
    let (vault, store, _) = vault();
    let before = store.root().read(0, 1 << 16).unwrap().len();
    let root = vault.resolve(b"").unwrap().node;
    assert_eq!(vault.mknod(&CALLER, root, b"fifo", Kind::Fifo, 0o644, 0).unwrap_err().errno(), libc::EIO);
    assert_eq!(store.root().read(0, 1 << 16).unwrap().len(), before);
}

#[test]
fn who_may_not_be_made_owner_has_the_file_all_the_same_and_nothing_runs_as_us() {
    // exFAT has no owners: in a mount by root for all users nobody else could make a file, and each attempt left an empty one behind.
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root makes files for others");
        return;
    }
    let (vault, store, plan) = vault();
    let other = Caller { uid: 1234, gid: 1234, umask: 0o022 };
    let root = vault.resolve(b"").unwrap().node;
    let chown = |errno| {
        let done = plan.count(Calls::Of(Call::Chown));
        plan.add(Fault { calls: Calls::Of(Call::Chown), when: When::Nth(done + 1), errno, short: false });
    };
    chown(libc::EPERM);
    let (attr, opened) = vault.create_file(&other, root, b"file", 0o6755, READ_WRITE).unwrap();
    assert_eq!(attr.perm & 0o6000, 0, "neither set-user-id nor set-group-id of somebody else's making");
    vault.write(opened.handle, 0, b"his", false).unwrap();
    vault.release(opened.handle).unwrap();
    assert_eq!(get(&vault, b"file").unwrap(), b"his");
    chown(libc::EIO);
    assert_eq!(vault.create_file(&other, root, b"not made", 0o644, READ_WRITE).unwrap_err().errno(), libc::EIO);
    let there = store.root().read(0, 1 << 16).unwrap().into_iter().filter(|entry| !entry.name.starts_with(b"+")).count();
    assert_eq!(there, 1, "what could not be given away does not stay");
}


const LONG: [u8; 250] = [b'l'; 250];

/// A vault, made on a local disk, with a folder `path` of which a share is to be made.
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

/// A store of that kind.
fn through_fuse(store: &MemStore) -> (Arc<dyn Dir>, Arc<FaultPlan>) {
    let plan = FaultPlan::new();
    plan.come_through_fuse();
    (FaultStore::wrap(store.root(), plan.clone()), plan)
}

fn with_bob() -> CreateShare {
    CreateShare { isolated: false, name: "Ann".into(), others: vec![member(&person(2), Role::Writer, "Bob")] }
}

fn share(vault: &Vault, path: &[u8]) -> Result<ShareMade, Error> {
    vault.create_share(path, &with_bob(), &mut quiet())
}

/// The folder's name while it stands aside.
fn aside(path: &[u8]) -> Vec<u8> {
    let end = b".before-share";
    [&path[..path.len().min(255 - end.len())], end].concat()
}

/// The tree with what stands aside under its own name.
fn put_right(found: &BTreeMap<Vec<u8>, Item>, path: &[u8]) -> BTreeMap<Vec<u8>, Item> {
    let aside = aside(path);
    let right = |at: &Vec<u8>| match at.strip_prefix(&aside[..]) {
        Some(rest) if rest.is_empty() || rest[0] == b'/' => [path, rest].concat(),
        _ => at.clone(),
    };
    found.iter().map(|(at, item)| (right(at), item.clone())).collect()
}

/// What stands in the store as each change of it was about to be made, in the making of a share of `path`.
fn moments(start: &MemStore, path: &[u8]) -> Vec<(String, MemStore)> {
    let store = start.snapshot();
    let (root, _) = through_fuse(&store);
    let vault = vaults::open(root).unwrap();
    let moments: Arc<Mutex<Vec<(String, MemStore)>>> = Arc::default();
    {
        let (watched, moments) = (store.clone(), moments.clone());
        store.on_event(Box::new(move |event| {
            let mut moments = moments.lock();
            let what = format!("{} before {:?} of {}", moments.len(), event.call, String::from_utf8_lossy(event.name.as_deref().unwrap_or(b"-")));
            moments.push((what, watched.snapshot()));
        }));
    }
    assert_eq!(share(&vault, path).unwrap().former, None);
    store.on_event(Box::new(|_| {}));
    moments.lock().push(("the end".into(), store.snapshot()));
    vault.close().unwrap();
    std::mem::take(&mut *moments.lock())
}

/// Goes on after an interruption, and finds the share with nothing beside it.
fn goes_on(store: &MemStore, path: &[u8], whole: &BTreeMap<Vec<u8>, Item>, what: &str) {
    let vault = vaults::open(through_fuse(store).0).unwrap();
    let made = share(&vault, path).unwrap_or_else(|e| panic!("{what}: going on: {e}"));
    assert_eq!(made.former, None, "{what}");
    assert_eq!(tree(&vault).unwrap(), *whole, "{what}: gone on");
    // A control file that was being written when all stopped is residue, and harmless.
    let harmless = |fault: &String| fault.contains("was left behind by a crash") || fault.contains("names an entry that is not there");
    let faults: Vec<String> = faults(&vault).into_iter().filter(|fault| !harmless(fault)).collect();
    assert_eq!(faults, Vec::<String>::new(), "{what}: gone on");
    let stored = vault.cipher_path(path).unwrap();
    vault.close().unwrap();
    let trusting = OpenOptions { trust: Trust { first_use: true, ..Trust::default() }, ..OpenOptions::default() };
    let alone = Vault::open(raw::beneath(&store.root(), &stored), &person(2), trusting).unwrap();
    assert_eq!(get(&alone, b"moved/note").unwrap(), b"a note", "{what}: Bob");
    alone.close().unwrap();
}

#[test]
fn a_share_is_made_where_the_store_cannot_exchange_and_its_members_come_and_go() {
    // On exFAT, NTFS, sshfs and NFS, which is what sticks and servers come as, no share could be made at all.
    for path in [&b"projects"[..], &LONG] {
        let store = filled(path);
        let vault = vaults::open(through_fuse(&store).0).unwrap();
        let before = tree(&vault).unwrap();
        let made = share(&vault, path).unwrap();
        assert_eq!(made.former, None);
        assert_eq!(tree(&vault).unwrap(), before, "it is as it was, and nothing stands beside it");
        assert_eq!(share(&vault, path).unwrap(), made, "asked again it is what it is");
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
            let trusting = OpenOptions { trust: Trust { first_use: true, ..Trust::default() }, ..OpenOptions::default() };
            Vault::open(raw::beneath(&through_fuse(&store).0, &stored), &person(n), trusting)
        };
        assert_eq!(get(&opened(3).unwrap(), b"plan").unwrap(), pattern(1, 9000));
        assert!(matches!(opened(2), Err(Error::NoAccess { .. })));
    }
}

#[test]
fn making_a_share_in_steps_survives_a_stop_at_any_point_and_goes_on() {
    // Between two renames the folder has no name of its own. It has another one then, which the next call knows; that may be stopped too.
    for path in [&b"projects"[..], &LONG] {
        let whole = tree(&vaults::open(filled(path).root()).unwrap()).unwrap();
        let (mut stood_aside, mut stood_beside) = (0, 0);
        for (begun, start) in [("", filled(path)), ("again, ", standing_aside(path, false)), ("at the end, ", standing_aside(path, true))] {
            for (n, (what, store)) in moments(&start, path).into_iter().enumerate() {
                // The process is killed, which loses nothing, or the power fails, which loses what was not durable, or some of it.
                let random = Seeded::new(n as u64 + 7);
                let mut choose = move |ways: usize| random.below(ways as u64) as usize;
                let crashed = [store.snapshot(), store.crash(&mut |_| 0), store.crash(&mut |n| n - 1), store.crash(&mut choose)];
                for (way, store) in crashed.into_iter().enumerate() {
                    let what = format!("{begun}stopped at {what}, in way {way}");
                    let vault = vaults::open(through_fuse(&store).0).unwrap();
                    let found = tree(&vault).unwrap();
                    vault.close().unwrap();
                    // The folder alone, or the share, or for a moment both: always whole.
                    for at in [path, &aside(path)].into_iter().filter(|at| found.contains_key(*at)) {
                        let other = if at == path { aside(path) } else { path.to_vec() };
                        let is_other = |at: &[u8]| at.strip_prefix(&other[..]).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
                        let alone = found.iter().filter(|(at, _)| !is_other(at)).map(|(at, item)| (at.clone(), item.clone())).collect();
                        assert_eq!(put_right(&alone, path), whole, "{what}");
                    }
                    match (found.contains_key(path), found.contains_key(&aside(path))) {
                        (false, aside) => stood_aside += usize::from(aside),
                        (true, aside) => stood_beside += usize::from(aside),
                    }
                    assert!(found.contains_key(path) || found.contains_key(&aside(path)), "{what}: it is nowhere");
                    goes_on(&store, path, &whole, &what);
                }
            }
        }
        assert!(stood_aside > 0 && stood_beside > 0, "{stood_aside} {stood_beside}");
    }
}

#[test]
fn a_rename_that_fails_in_the_making_of_a_share_leaves_the_folder_under_its_name() {
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
        plan.add(Fault { calls: Calls::Changes, when: When::Nth(nth), errno: libc::EIO, short: false });
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
        assert_eq!(share(&vault, b"projects").unwrap().former, None, "{nth} of {count} failed: {made:?}");
        assert_eq!(tree(&vault).unwrap(), whole, "{nth} of {count} failed: {made:?}");
        vault.close().unwrap();
    }
}

/// The first moment at which the folder stands aside, alone or beside the share.
fn standing_aside(path: &[u8], beside_the_share: bool) -> MemStore {
    let moments = moments(&filled(path), path);
    let found = moments.into_iter().map(|(_, store)| store).find(|store| {
        let vault = vaults::open(store.snapshot().root()).unwrap();
        vault.resolve(&aside(path)).is_ok() && vault.resolve(path).is_ok() == beside_the_share
    });
    found.expect("there is such a moment").snapshot()
}

#[test]
fn a_folder_that_stands_beside_its_share_is_removed_only_if_the_share_has_all_of_it() {
    // Users see it there and may write to it; a sync tool may have brought a part of the share only.
    type Change = fn(&Vault);
    let changes: [(&str, Change); 8] = [
        ("a file was added", |v| put(v, b"projects.before-share/new", b"new").unwrap()),
        ("one was written to", |v| vaults::write_at(v, b"projects.before-share/plan", 5000, b"changed").unwrap()),
        ("one was written to in the share", |v| vaults::write_at(v, b"projects/plan", 5000, b"changed").unwrap()),
        ("one is not in the share", |v| at(v, b"projects/moved", |dir| v.unlink(dir, b"note")).unwrap()),
        ("a directory is not in the share", |v| rename(v, b"projects/moved", b"projects/elsewhere", RenameMode::Replace).unwrap()),
        ("a directory was made", |v| mkdir(v, b"projects.before-share/empty").unwrap()),
        ("an attribute was set", |v| vaults::set_xattr(v, b"projects.before-share/plan", b"user.tag", b"blue").unwrap()),
        ("one was renamed", |v| rename(v, b"projects.before-share/plan", b"projects.before-share/plans", RenameMode::Replace).unwrap()),
    ];
    for (what, change) in changes {
        let store = standing_aside(b"projects", true);
        let vault = vaults::open(through_fuse(&store).0).unwrap();
        change(&vault);
        let before = tree(&vault).unwrap();
        let made = share(&vault, b"projects").unwrap();
        assert_eq!(made.former.as_deref(), Some(&b"projects.before-share"[..]), "{what}");
        assert_eq!(tree(&vault).unwrap(), before, "{what}: nothing was taken away");
        // From now on it is the user's, and never looked for again.
        assert_eq!(share(&vault, b"projects").unwrap(), ShareMade { former: None, ..made }, "{what}");
        assert_eq!(tree(&vault).unwrap(), before, "{what}");
        assert_eq!(faults(&vault), Vec::<String>::new(), "{what}");
    }
}

#[test]
fn a_folder_of_the_users_own_under_such_a_name_is_left_alone() {
    // The name alone proves nothing, nor does it that the contents are the same.
    let start = filled(b"projects");
    let vault = vaults::open(through_fuse(&start).0).unwrap();
    mkdir(&vault, b"projects.before-share").unwrap();
    put(&vault, b"projects.before-share/own", b"the user's own").unwrap();
    share(&vault, b"projects").unwrap();
    assert_eq!(get(&vault, b"projects.before-share/own").unwrap(), b"the user's own");
    assert_eq!(get(&vault, b"projects/moved/note").unwrap(), b"a note");
    vault.close().unwrap();

    // One that he has put in the place of the folder that stood aside.
    let store = standing_aside(b"projects", true);
    let vault = vaults::open(through_fuse(&store).0).unwrap();
    rename(&vault, b"projects.before-share", b"kept", RenameMode::Replace).unwrap();
    mkdir(&vault, b"projects.before-share").unwrap();
    assert_eq!(share(&vault, b"projects").unwrap().former, None);
    vault.resolve(b"projects.before-share").unwrap();
    assert_eq!(get(&vault, b"kept/moved/note").unwrap(), b"a note");
}

#[test]
fn a_folder_that_was_made_anew_while_the_former_one_stands_aside_takes_its_place_from_it_only_if_it_is_empty() {
    // A program finds its folder gone and makes it again, before anybody goes on with the share.
    let store = standing_aside(b"projects", false);
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
    // Or the user gives it its name back himself, or another one.
    for name in [&b"projects"[..], b"works"] {
        let store = standing_aside(b"projects", false);
        let vault = vaults::open(through_fuse(&store).0).unwrap();
        rename(&vault, b"projects.before-share", name, RenameMode::Replace).unwrap();
        share(&vault, name).unwrap();
        assert_eq!(get(&vault, &[name, b"/moved/note"].concat()).unwrap(), b"a note");
        assert_eq!(vault.resolve(b"projects").is_ok(), name == b"projects");
    }
}

#[test]
fn attack_what_is_staged_is_changed_while_the_folder_stands_aside() {
    // Whoever stores the vault stops the machine there, takes a file out of the share that is to come, puts an older one into it, or puts it
    // into the place of the folder himself: that is compared with the folder, and the folder is not removed for less than all of it.
    type Attack = fn(&dyn Dir, &dyn Dir, &[u8]);
    let attacks: [(&str, Attack, bool); 3] = [
        ("a file is taken out", |_, staged, _| staged.unlink(&largest(staged)).unwrap(), true),
        ("a file is spoilt", |_, staged, _| raw::write(staged, &largest(staged), b"spoilt"), true),
        (
            "it is put in place without a file",
            |root, staged, stored| {
                staged.unlink(&largest(staged)).unwrap();
                let staging = raw::named(root, b"+moving-").pop().unwrap();
                root.rename(&staging, root, stored, StoreRename::NoReplace).unwrap();
            },
            false,
        ),
    ];
    for (what, attack, completed) in attacks {
        let store = standing_aside(b"projects", false);
        let root = store.root();
        let staging = raw::named(&*root, b"+moving-").pop().unwrap();
        let stored = vaults::open(store.snapshot().root()).unwrap().cipher_path(b"projects").unwrap();
        attack(&*root, &*root.open_dir(&staging).unwrap(), &stored);
        let vault = vaults::open(through_fuse(&store).0).unwrap();
        let made = share(&vault, b"projects").unwrap();
        let whole = if completed { &b"projects"[..] } else { b"projects.before-share" };
        assert_eq!(made.former.is_none(), completed, "{what}");
        assert_eq!(get(&vault, &[whole, b"/plan"].concat()).unwrap(), pattern(1, 9000), "{what}");
        assert_eq!(get(&vault, &[whole, b"/moved/note"].concat()).unwrap(), b"a note", "{what}");
    }
}

/// The largest file of a directory of the store.
fn largest(dir: &dyn Dir) -> Vec<u8> {
    let files = raw::names(dir).into_iter().filter(|name| name[0] != b'+' && dir.stat(name).unwrap().kind == Kind::File);
    files.max_by_key(|name| dir.stat(name).unwrap().size).unwrap()
}

#[test]
fn a_change_within_the_second_is_noticed_where_the_store_has_no_finer_times() {
    // exFAT and sshfs have whole seconds: what a program wrote right after its file was copied, and as much of it, was not in the share.
    let store = filled(b"projects");
    let (root, _) = through_fuse(&store);
    let vault = vaults::open(root).unwrap();
    let second = Timestamp { secs: 1_700_000_000, nanos: 0 };
    let stored = vault.cipher_path(b"projects/plan").unwrap();
    let whole_seconds = |store: &MemStore| {
        let (parent, name) = split(&stored);
        raw::beneath(&store.root(), parent).set_times(name, SetTime::At(second), SetTime::At(second)).unwrap();
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

#[test]
fn a_share_is_made_while_a_program_has_a_file_of_the_folder_open() {
    // Such a store keeps a removed file under a hidden name while it is open, and so its directory: the share was there, and the command failed.
    let store = filled(b"projects");
    let (root, plan) = through_fuse(&store);
    let vault = vaults::open(root).unwrap();
    let node = vault.resolve(b"projects/plan").unwrap().node;
    let reader = vault.open_file(node, kithfs::vault::OpenFlags { read: true, ..Default::default() }).unwrap().handle;
    let done = plan.count(Calls::Of(Call::Rmdir));
    for n in 1..=2 {
        plan.add(Fault { calls: Calls::Of(Call::Rmdir), when: When::Nth(done + n), errno: libc::ENOTEMPTY, short: false });
    }
    share(&vault, b"projects").unwrap();
    let mut buf = [0; 9000];
    assert_eq!(vault.read(reader, 0, &mut buf).unwrap(), 9000);
    assert!(buf[..] == pattern(1, 9000)[..], "who has it open goes on with it");
    vault.release(reader).unwrap();
    assert_eq!(get(&vault, b"projects/plan").unwrap(), pattern(1, 9000));
    vault.close().unwrap();
    assert_eq!(left(&store), [""; 0]);
    let vault = vaults::open(store.root()).unwrap();
    assert_eq!(faults(&vault), Vec::<String>::new());
}

#[test]
fn who_looks_for_something_in_the_folder_finds_it_while_it_stands_aside() {
    // Between the renames the folder is not where programs know it, and what they asked for in it seemed not to exist.
    let store = filled(b"projects");
    let (root, plan) = through_fuse(&store);
    let vault = vaults::open(root).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let ready = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        let lookers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (mut looked, mut wait) = (0, true);
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        if let Err(error) = vault.resolve(b"projects/moved/note").map(|attr| vault.forget(attr.node, 1)) {
                            // The kernel looks the path up again then.
                            assert_eq!(error.errno(), libc::ESTALE, "{error}");
                        }
                        looked += 1;
                        if std::mem::take(&mut wait) {
                            ready.wait();
                        }
                    }
                    looked
                })
            })
            .collect();
        ready.wait();
        plan.slow_down(Call::SyncDir, std::time::Duration::from_millis(20));
        share(&vault, b"projects").unwrap();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(lookers.into_iter().all(|looker| looker.join().unwrap() > 10));
    });
}
