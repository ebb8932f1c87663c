//! The pass that reseals a share after the folder key has changed. It is complete, can be interrupted
//! anywhere, and never signs forged data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kithfs::crypto::Suite;
use kithfs::format::suffix;
use kithfs::roster::{Identity, Role};
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, Locks, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, Dir, Kind, RenameMode as StoreRename, SetTime, Timestamp};
use kithfs::vault::{
    CreateShare, Error, Local, LockMode, NodeId, OpenOptions, Pending, ROOT, RenameMode, SetAttr,
    SetXattr, ShareProgress, Vault,
};

use crate::support::members::ShareOfPath;
use crate::support::members::{
    self, key, member, open_as, person, quiet, root_share, trusting, with_bob,
};
use crate::support::people::wait_until;
use crate::support::raw;
use crate::support::vaults::{
    self, READ_WRITE, at, entries, faults, get, mkdir, pattern, put, rename, settle, symlink, tree,
    write_at,
};

fn open_root(root: Arc<dyn Dir>, who: &Identity) -> Result<Vault, Error> {
    Vault::open(root, who, trusting(false, LockMode::Exclusive))
}

const LARGE: usize = 60_000;

/// Ann's share with Bob as a writer, who made an object of each kind; Ann made some too, and a
/// nested share.
fn filled() -> (MemStore, Identity, Identity) {
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &bob).unwrap();
    put(&vault, b"small", b"by Bob").unwrap();
    put(&vault, b"empty", b"").unwrap();
    put(&vault, b"large", &pattern(4, LARGE)).unwrap();
    write_at(&vault, b"sparse", 300_000, b"far behind").unwrap();
    mkdir(&vault, b"dir").unwrap();
    mkdir(&vault, b"dir/deep").unwrap();
    put(&vault, b"dir/deep/note", b"a note").unwrap();
    let long = |c: u8| [&b"dir/"[..], &[c; 240]].concat();
    put(&vault, &long(b'l'), b"long name").unwrap();
    mkdir(&vault, &long(b'd')).unwrap();
    put(&vault, &[&long(b'd')[..], b"/inside"].concat(), b"inside").unwrap();
    symlink(&vault, b"link", b"small").unwrap();
    symlink(&vault, b"far", &[b't'; 4000]).unwrap();
    at(&vault, b"link", |node| {
        at(&vault, b"dir", |dir| {
            vault.link(node, dir, b"same link").map(|a| vault.forget(a.node, 1))
        })
    })
    .unwrap();
    at(&vault, b"large", |node| {
        at(&vault, b"dir", |dir| vault.link(node, dir, b"hard").map(|a| vault.forget(a.node, 1)))
    })
    .unwrap();
    for path in [&b"small"[..], b"dir/deep"] {
        vaults::set_xattr(&vault, path, b"user.tag", b"blue").unwrap();
    }
    at(&vault, b"link", |node| vault.set_xattr(node, b"trusted.tag", b"of a link", SetXattr::Any))
        .unwrap();
    vaults::set_xattr(&vault, b"small", b"user.long", &pattern(3, 66_000)).unwrap();
    rename(&vault, b"dir", b"moved", RenameMode::Replace).unwrap();
    age(&vault, ROOT);
    settle(&vault, ROOT);
    vault.close().unwrap();
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"within").unwrap();
    vault
        .create_share(
            b"within",
            &CreateShare { name: "Ann".into(), ..CreateShare::default() },
            &mut quiet(),
        )
        .unwrap();
    put(&vault, b"within/own", b"of another share").unwrap();
    settle(&vault, ROOT);
    vault.close().unwrap();
    (store, ann, bob)
}

/// Sets a time in the past on everything below a directory.
fn age(vault: &Vault, node: NodeId) {
    for (_, attr) in entries(vault, node).unwrap() {
        if attr.kind == Kind::Dir {
            age(vault, attr.node);
        }
        let mtime = SetTime::At(Timestamp { secs: 1_000_000 + attr.size as i64, nanos: 7 });
        vault.setattr(attr.node, &SetAttr { mtime, ..SetAttr::default() }).unwrap();
        vault.forget(attr.node, 1);
    }
}

/// Returns times, owners and modes of everything, by path.
fn looks(vault: &Vault) -> BTreeMap<Vec<u8>, (Timestamp, u32, u32, u32)> {
    fn walk(
        vault: &Vault,
        node: NodeId,
        path: &[u8],
        all: &mut BTreeMap<Vec<u8>, (Timestamp, u32, u32, u32)>,
    ) {
        for (name, attr) in entries(vault, node).unwrap() {
            let path = [path, b"/", &name].concat();
            if name == b"within" {
                vault.forget(attr.node, 1);
                continue; // its times change with the vault's own lock and journal
            }
            if attr.kind == Kind::Dir {
                walk(vault, attr.node, &path, all);
            }
            all.insert(path, (attr.mtime, attr.uid, attr.perm, attr.nlink));
            vault.forget(attr.node, 1);
        }
    }
    let mut all = BTreeMap::new();
    walk(vault, ROOT, b"", &mut all);
    all
}

/// Asserts that two listings are the same, and names what differs.
fn same<T: PartialEq + std::fmt::Debug>(now: &BTreeMap<Vec<u8>, T>, before: &BTreeMap<Vec<u8>, T>) {
    let differ = |path: &&Vec<u8>| now.get(*path) != before.get(*path);
    let differing: Vec<String> = now
        .keys()
        .chain(before.keys())
        .filter(differ)
        .map(|path| path.escape_ascii().to_string())
        .collect();
    let first =
        now.keys().chain(before.keys()).find(differ).map(|path| (now.get(path), before.get(path)));
    assert!(differing.is_empty(), "{differing:?}: {:.300}", format!("{first:?}"));
}

fn new_epoch(vault: &Vault) {
    root_share(vault).rekey().unwrap();
}

/// How a second machine has a vault.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Second {
    Synced,
    Shared,
    ReadOnly,
}

/// Brings the second copy of a vault to the state of the first, as a sync tool does.
fn deliver(from: &dyn Dir, to: &dyn Dir) {
    fn remove(dir: &dyn Dir, name: &[u8]) {
        if dir.stat(name).unwrap().kind == Kind::Dir {
            let inner = dir.open_dir(name).unwrap();
            raw::names(&*inner).iter().for_each(|name| remove(&*inner, name));
            dir.rmdir(name).unwrap();
        } else {
            dir.unlink(name).unwrap();
        }
    }
    let sealed = raw::names(to).into_iter().filter(|name| !name.starts_with(b"+"));
    sealed.for_each(|name| remove(to, &name));
    raw::add(from, to);
}

/// A vault without signatures is mounted on two machines, and the key is changed on one of them. The
/// other one looked for new keys only in signed shares: no entry had a name any more, and it wrote
/// under the old key until the mount ended.
#[test]
fn mounts_of_an_unsigned_vault_notice_a_rekey() {
    for second in [Second::Synced, Second::Shared, Second::ReadOnly] {
        let (here, states) = (MemStore::new(), [MemStore::new(), MemStore::new()]);
        let root = here.root();
        vaults::create(&root, Suite::Aes256Gcm, 12);
        match second {
            Second::Synced => assert!(Vault::set_synced(&root).unwrap()),
            Second::Shared => assert!(Vault::set_shared(&root, true).unwrap()),
            Second::ReadOnly => {}
        }
        let open = |store: &MemStore, n: usize, read_only| {
            let local = Local { state: states[n].root(), path: format!("/copy {n}").into() };
            let (local, lock) = (Some(local), LockMode::AsMarked);
            let options = OpenOptions { local, lock, read_only, ..OpenOptions::default() };
            Vault::open(store.root(), &vaults::owner(), options).unwrap()
        };
        let vault = open(&here, 0, false);
        mkdir(&vault, b"dir").unwrap();
        put(&vault, b"dir/file", b"contents").unwrap();
        vault.close().unwrap();
        let copy = here.snapshot();
        let there = if second == Second::Synced { &copy } else { &here };
        let mount = open(there, 1, second == Second::ReadOnly);
        assert_eq!(get(&mount, b"dir/file").unwrap(), b"contents");

        let vault = open(&here, 0, false);
        new_epoch(&vault);
        vault.reseal(b"", false, &mut quiet()).unwrap();
        vault.close().unwrap();
        if second == Second::Synced {
            deliver(&*root, &*there.root());
        }
        wait_until(&format!("{second:?}: the file has its name"), || {
            get(&mount, b"dir/file").is_ok_and(|bytes| bytes == b"contents")
        });
        assert_eq!(entries(&mount, ROOT).unwrap().len(), 1, "{second:?}");
        if second != Second::ReadOnly {
            put(&mount, b"new", b"contents").unwrap();
            let stored = raw::read(&*there.root(), &mount.cipher_path(b"new").unwrap());
            assert_eq!(stored[16..20], 2u32.to_le_bytes(), "{second:?}");
        }
        mount.close().unwrap();
    }
}

/// A vault that one daemon uses alone is not listed at each tick although it changes: nobody else can
/// have changed its key.
#[test]
fn an_unsigned_vault_used_alone_is_not_searched_for_keys() {
    let (store, plan) = (MemStore::new(), FaultPlan::new());
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    plan.give_locks(Locks::ByAccess); // then each tick looks at the lock file
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    put(&vault, b"file", b"contents").unwrap();
    let listed = plan.count(Calls::Of(Call::List));
    let before = plan.count(Calls::Of(Call::Stat));
    wait_until("four ticks", || plan.count(Calls::Of(Call::Stat)) >= before + 4);
    assert_eq!(plan.count(Calls::Of(Call::List)), listed);
    vault.close().unwrap();
}

fn pending(vault: &Vault) -> Pending {
    vault.pending(b"", &mut quiet()).unwrap()
}

fn stored_entries(dir: &Arc<dyn Dir>, path: &[u8], all: &mut Vec<Vec<u8>>) {
    for entry in dir.reopen().unwrap().read(0, 1 << 20).unwrap() {
        let path = [path, b"/", &entry.name].concat();
        // The nested share can be entered only through its place in the parent.
        let within =
            dir.open_dir(&entry.name).ok().filter(|inside| inside.stat(b"+share").is_err());
        if let Some(inside) = within {
            stored_entries(&inside, &path, all);
        }
        all.push(path);
    }
}

/// Returns a copy of the store with the list of members as it was before the first change.
fn rolled_back(store: &MemStore) -> MemStore {
    let copy = store.snapshot();
    for entry in copy.root().reopen().unwrap().read(0, 1 << 20).unwrap() {
        if entry.name.starts_with(b"+manifest-") && !entry.name.starts_with(b"+manifest-1-") {
            copy.root().unlink(&entry.name).unwrap();
        }
    }
    copy
}

#[test]
fn a_pass_seals_all_anew_and_leaves_all_as_it_was() {
    let (store, ann, bob) = filled();
    let vault = open_as(&store, &ann).unwrap();
    let (before, looked) = (tree(&vault).unwrap(), looks(&vault));
    let none = pending(&vault);
    assert!(
        none.is_done(true)
            && none.skipped == 0
            && none.conflicts == 0
            && none.bytes_total > LARGE as u64,
        "{none:?}"
    );
    vault.share_at(b"").unwrap().remove(&[key(&bob)], &mut quiet()).unwrap();
    let all = pending(&vault);
    // The last segment of the sparse file is shorter than the others.
    let sparse = 300_010 % 4096;
    assert_eq!((all.files, all.bytes), (6, LARGE as u64 + sparse + 6 + 6 + 9 + 6), "{all:?}");
    assert!(all.bytes_total == all.bytes && all.names >= 13 && all.headers >= 15, "{all:?}");

    let lazy = vault.reseal(b"", false, &mut quiet()).unwrap();
    assert_eq!((lazy.names, lazy.headers, lazy.skipped, lazy.conflicts), (0, 0, 0, 0), "{lazy:?}");
    assert_eq!(
        (lazy.files, lazy.bytes),
        (2, LARGE as u64 + sparse),
        "the contents of large files are left: {lazy:?}"
    );
    same(&tree(&vault).unwrap(), &before);
    same(&looks(&vault), &looked);

    let mut last = ShareProgress::default();
    let eager = vault.reseal(b"", true, &mut |progress| last = *progress).unwrap();
    assert!(eager.is_done(true) && eager.skipped == 0, "{eager:?}");
    assert_eq!(
        (last.files, last.bytes, last.files_total, last.bytes_total),
        (2, lazy.bytes, 2, lazy.bytes)
    );
    same(&tree(&vault).unwrap(), &before);
    same(&looks(&vault), &looked);
    for path in [&b"small"[..], b"large", b"moved/deep/note"] {
        let by = at(&vault, path, |node| vault.author(node)).unwrap().unwrap();
        assert_eq!((by.author, by.signer), (key(&bob), key(&ann)), "sealed by Ann, written by Bob");
    }
    assert_eq!(
        at(&vault, b"link", |node| vault.get_xattr(node, b"trusted.tag")).unwrap(),
        b"of a link"
    );
    assert_eq!(
        at(&vault, b"moved/deep", |node| vault.get_xattr(node, b"user.tag")).unwrap(),
        b"blue"
    );
    assert_eq!(
        at(&vault, b"small", |node| vault.get_xattr(node, b"user.long")).unwrap(),
        pattern(3, 66_000)
    );
    assert_eq!(faults(&vault), Vec::<String>::new());
    vault.close().unwrap();
    let vault = open_as(&store, &ann).unwrap();
    same(&tree(&vault).unwrap(), &before);
    same(&looks(&vault), &looked);
    assert!(pending(&vault).is_done(true));
    vault.close().unwrap();

    // With the former list of members restored, Bob has every key that he ever had, and reads no
    // name and no byte.
    let copy = rolled_back(&store);
    let of_bob = open_as(&copy, &bob).unwrap();
    assert_eq!(entries(&of_bob, ROOT).unwrap().len(), 0);
    // Even if the names that Bob knows are restored.
    let small = open_as(&store, &ann).unwrap().cipher_path(b"small").unwrap();
    copy.root()
        .rename(
            &small,
            &*copy.root(),
            &of_bob.cipher_path(b"small").unwrap_or(small.clone()),
            StoreRename::Replace,
        )
        .unwrap();
    assert!(get(&of_bob, b"small").is_err());
}

/// Returns length, time and bytes of the stored files by path, without control files.
fn stored_files(dir: &Arc<dyn Dir>) -> BTreeMap<Vec<u8>, (u64, Timestamp, Vec<u8>)> {
    let mut paths = Vec::new();
    stored_entries(dir, b"", &mut paths);
    let mut files = BTreeMap::new();
    for path in paths {
        let (above, name) = vaults::split(&path[1..]);
        let dir = raw::beneath(dir, above);
        let stat = dir.stat(name).unwrap();
        if stat.kind == Kind::File && !name.starts_with(b"+") {
            files.insert(path.clone(), (stat.size, stat.mtime, raw::read(&*dir, name)));
        }
    }
    files
}

/// Sync tools compare the length and the modification time of a file. A pass kept both, also in a
/// synced share. So a tool never sent what `rekey --eager` had sealed if the names were sent
/// before, and it kept a mixture of old and new bytes that it had read during the pass.
#[test]
fn sync_tools_notice_what_a_pass_seals() {
    let (store, ann, _bob) = filled();
    assert!(Vault::set_synced(&store.root()).unwrap());
    let vault = open_as(&store, &ann).unwrap();
    new_epoch(&vault);
    // The file has a name of the current epoch then, and a header of the former one.
    rename(&vault, b"small", b"renamed", RenameMode::Replace).unwrap();
    let looked = looks(&vault);
    for eager in [false, true] {
        let before = stored_files(&store.root());
        assert!(vault.reseal(b"", eager, &mut quiet()).unwrap().is_done(eager));
        let after = stored_files(&store.root());
        let mut changed = 0;
        for (path, (len, time, bytes)) in &after {
            let Some((former_len, former_time, former)) = before.get(path) else { continue };
            changed += usize::from(bytes != former);
            let is_noticed = (len, time) != (former_len, former_time);
            assert!(is_noticed || bytes == former, "{} is never sent", path.escape_ascii());
        }
        let expected = if eager { 3 } else { 1 }; // two large files, one of them with two names
        assert_eq!(changed, expected, "resealed under their former names, eager: {eager}");
    }
    for (path, passes) in [(&b"/large"[..], 2), (b"/renamed", 1)] {
        let (before, now) = (looked[path].0, looks(&vault)[path].0);
        let moved = Timestamp { secs: before.secs + 2 * passes, ..before };
        assert_eq!(now, moved, "{}", path.escape_ascii());
    }
    assert_eq!(faults(&vault), Vec::<String>::new());
    vault.close().unwrap();
}

/// A pass that stops at any point leaves a share that can be read; the next pass continues it.
#[test]
fn a_rekey_stopped_anywhere_leaves_a_readable_share() {
    let (start, ann, _bob) = filled();
    {
        let vault = open_as(&start, &ann).unwrap();
        new_epoch(&vault);
        vault.close().unwrap();
    }
    let before = tree(&open_as(&start, &ann).unwrap()).unwrap();
    let plan = FaultPlan::new();
    {
        let store = start.snapshot();
        let vault = open_root(FaultStore::wrap(store.root(), plan.clone()), &ann).unwrap();
        plan.reset();
        assert!(vault.reseal(b"", true, &mut quiet()).unwrap().is_done(true));
    }
    let steps = plan.count(Calls::Changes);
    assert!(steps > 100, "{steps}");
    for step in 1..=steps {
        let store = start.snapshot();
        let plan = FaultPlan::new();
        let vault = open_root(FaultStore::wrap(store.root(), plan.clone()), &ann).unwrap();
        plan.reset();
        plan.add(Fault {
            calls: Calls::Changes,
            when: When::From(step),
            errno: libc::EIO,
            short: step % 2 == 0,
        });
        let stopped = vault.reseal(b"", true, &mut quiet());
        assert!(
            !stopped.as_ref().is_ok_and(|left| left.is_done(true) && step + 20 < steps),
            "stopped at {step} of {steps}: {stopped:?}"
        );
        drop(vault);
        // Two times of three the process is killed, which loses nothing; the third time the power
        // fails, which loses what was not durable.
        let store = if step % 3 == 0 { store.crash(&mut |_| 0) } else { store.snapshot() };
        let vault = open_as(&store, &ann).unwrap();
        println!("stopped at {step} of {steps}: {stopped:?}");
        same(&tree(&vault).unwrap(), &before);
        let left = vault
            .reseal(b"", true, &mut quiet())
            .unwrap_or_else(|e| panic!("going on from {step}: {e}"));
        assert!(
            left.is_done(true) && left.skipped == 0 && left.conflicts == 0,
            "gone on from {step}: {left:?}"
        );
        same(&tree(&vault).unwrap(), &before);
        let faults: Vec<String> = faults(&vault)
            .into_iter()
            .filter(|fault| !fault.contains("was left behind by a crash"))
            .collect();
        assert_eq!(faults, Vec::<String>::new(), "gone on from {step}");
    }
}

/// A new epoch that begins in the middle of a pass is not missed.
#[test]
fn a_new_epoch_during_a_rekey_is_not_skipped() {
    let (store, ann, _bob) = filled();
    let vault = open_as(&store, &ann).unwrap();
    let before = tree(&vault).unwrap();
    new_epoch(&vault);
    let mut begun = false;
    let left = vault
        .reseal(b"", true, &mut |_| {
            if !std::mem::replace(&mut begun, true) {
                new_epoch(&vault);
            }
        })
        .unwrap();
    assert!(begun && !left.is_done(true), "what was sealed before the new epoch is left: {left:?}");
    // An epoch that begins during a count is not missed either.
    let mut begun = false;
    let counted = vault
        .pending(b"", &mut |_| {
            if !std::mem::replace(&mut begun, true) {
                new_epoch(&vault);
            }
        })
        .unwrap();
    assert_eq!(
        counted.bytes, counted.bytes_total,
        "everything is of an older epoch than the newest: {counted:?}"
    );
    assert!(vault.reseal(b"", true, &mut quiet()).unwrap().is_done(true));
    same(&tree(&vault).unwrap(), &before);
}

/// Programs continue to read and write open files during a pass.
#[test]
fn open_files_stay_readable_and_writable_during_a_rekey() {
    let (store, ann, _bob) = filled();
    let vault = open_as(&store, &ann).unwrap();
    let node = vault.resolve(b"large").unwrap().node;
    let handle = vault.open_file(node, READ_WRITE).unwrap().handle;
    vault.write(handle, 10, b"dirty under epoch 1", false).unwrap();
    new_epoch(&vault);
    let mut bytes = pattern(4, LARGE);
    bytes[10..29].copy_from_slice(b"dirty under epoch 1");
    let mut at_offset = 20_000u64;
    let left = vault
        .reseal(b"", true, &mut |_| {
            let mut part = [0; 100];
            vault.read(handle, at_offset, &mut part).unwrap();
            assert_eq!(part[..], bytes[at_offset as usize..][..100]);
            vault.write(handle, at_offset, b"meanwhile", false).unwrap();
            bytes[at_offset as usize..][..9].copy_from_slice(b"meanwhile");
            at_offset += 777;
            put(&vault, format!("new {at_offset}").as_bytes(), b"made meanwhile").unwrap();
        })
        .unwrap();
    assert!(left.is_done(true), "{left:?}");
    vault.write(handle, 0, b"afterwards", false).unwrap();
    bytes[..10].copy_from_slice(b"afterwards");
    vault.release(handle).unwrap();
    vault.forget(node, 1);
    assert!(at_offset > 22_000 && get(&vault, b"moved/hard").unwrap() == bytes);
    vault.close().unwrap();
    let vault = open_as(&store, &ann).unwrap();
    assert!(get(&vault, b"large").unwrap() == bytes);
    assert!(pending(&vault).is_done(true));
    assert_eq!(faults(&vault), Vec::<String>::new());
}

#[test]
fn a_name_under_two_epochs_stays_a_conflict() {
    let (store, ann, _bob) = filled();
    let root = store.root();
    let vault = open_as(&store, &ann).unwrap();
    // A daemon that did not know of the new epoch made a file whose name another file has got
    // meanwhile.
    let stored = vault.cipher_path(b"small").unwrap();
    vault.close().unwrap();
    root.rename(&stored, &*root, b"+aside", StoreRename::NoReplace).unwrap();
    let vault = open_as(&store, &ann).unwrap();
    new_epoch(&vault);
    put(&vault, b"small", b"of epoch 2").unwrap();
    vault.close().unwrap();
    root.rename(b"+aside", &*root, &stored, StoreRename::NoReplace).unwrap();
    let vault = open_as(&store, &ann).unwrap();
    let older = suffix::marked(b"small", &suffix::mark_of(&stored));
    let both = |vault: &Vault| (get(vault, b"small").unwrap(), get(vault, &older).unwrap());
    assert_eq!(both(&vault), (b"of epoch 2".to_vec(), b"by Bob".to_vec()));
    let left = vault.reseal(b"", true, &mut quiet()).unwrap();
    assert_eq!((left.is_done(true), left.conflicts), (true, 1), "{left:?}");
    assert_eq!(both(&vault), (b"of epoch 2".to_vec(), b"by Bob".to_vec()));
    rename(&vault, &older, b"small of Bob", RenameMode::NoReplace).unwrap();
    assert_eq!(pending(&vault).conflicts, 0, "the rename settles the conflict");
}

/// A removed member puts entries of a former epoch back beside those that a pass has sealed anew.
/// They have a mark. The next pass gave the current epoch's name to whichever entry it met first: a
/// directory and an older version of a file took the names of the entries that belong there.
#[test]
fn an_entry_of_a_former_epoch_takes_no_name_in_a_pass() {
    let (store, ann, _) = with_bob();
    let root = store.root();
    let names: Vec<Vec<u8>> = (b'a'..=b'h').map(|c| vec![c]).collect();
    let vault = open_as(&store, &ann).unwrap();
    for name in &names {
        put(&vault, name, b"old").unwrap();
        mkdir(&vault, &[name, &b"dir"[..]].concat()).unwrap();
    }
    let old: Vec<(Vec<u8>, Vec<u8>)> = names
        .iter()
        .map(|name| vault.cipher_path(name).unwrap())
        .map(|stored| (stored.clone(), raw::read(&*root, &stored)))
        .collect();
    let dirs: Vec<Vec<u8>> = names
        .iter()
        .map(|name| vault.cipher_path(&[name, &b"dir"[..]].concat()).unwrap())
        .collect();
    let all_anew = || {
        new_epoch(&vault);
        root_share(&vault).reseal(true, &mut quiet()).unwrap()
    };
    all_anew();
    for name in &names {
        put(&vault, name, b"new").unwrap();
        put(&vault, &[name, &b"dir/in"[..]].concat(), b"new").unwrap();
    }
    old.iter().for_each(|(stored, bytes)| raw::write(&*root, stored, bytes));
    dirs.iter().for_each(|stored| root.mkdir(stored, 0o755).unwrap());
    for _ in 0..2 {
        let left = all_anew();
        assert_eq!((left.conflicts, left.names), (2 * names.len() as u64, 0));
        for name in &names {
            assert_eq!(get(&vault, name).unwrap(), b"new", "{}", name.escape_ascii());
            assert_eq!(get(&vault, &[name, &b"dir/in"[..]].concat()).unwrap(), b"new");
        }
        assert_eq!(entries(&vault, ROOT).unwrap().len(), 4 * names.len());
    }
}

#[test]
fn a_long_name_under_two_epochs_is_listed_and_found_twice() {
    // Both entries had the same name in a listing: an export copied the newer file and silently
    // skipped the older one.
    let (store, ann, _bob) = filled();
    let root = store.root();
    let name = &[b'n'; 200][..];
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, name, b"of epoch 1").unwrap();
    let stored = vault.cipher_path(name).unwrap();
    let beside = suffix::marked(name, &suffix::mark_of(&stored));
    vault.close().unwrap();
    root.rename(&stored, &*root, b"+aside", StoreRename::NoReplace).unwrap();
    let vault = open_as(&store, &ann).unwrap();
    new_epoch(&vault);
    put(&vault, name, b"of epoch 2").unwrap();
    vault.close().unwrap();
    root.rename(b"+aside", &*root, &stored, StoreRename::NoReplace).unwrap();
    let vault = open_as(&store, &ann).unwrap();
    let names = || {
        entries(&vault, ROOT)
            .unwrap()
            .into_iter()
            .map(|(name, _)| name)
            .filter(|n| n.starts_with(b"nn"))
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(names(), BTreeSet::from([name.to_vec(), beside.clone()]));
    let both = || (get(&vault, name).unwrap(), get(&vault, &beside).unwrap());
    assert_eq!(both(), (b"of epoch 2".to_vec(), b"of epoch 1".to_vec()));
    let left = vault.reseal(b"", true, &mut quiet()).unwrap();
    assert_eq!((left.is_done(true), left.conflicts), (true, 1), "{left:?}");
    assert_eq!(both(), (b"of epoch 2".to_vec(), b"of epoch 1".to_vec()));
    assert_eq!(faults(&vault), Vec::<String>::new());
    rename(&vault, &beside, b"settled", RenameMode::NoReplace).unwrap();
    assert_eq!(
        (pending(&vault).conflicts, get(&vault, b"settled").unwrap()),
        (0, b"of epoch 1".to_vec())
    );
}

#[test]
fn nothing_that_was_planted_is_signed_by_a_pass() {
    // A removed writer and the storage host put files and segments of the old epoch in the way of
    // the pass.
    let (store, ann, bob) = filled();
    let vault = open_as(&store, &ann).unwrap();
    let paths =
        [&b"small"[..], b"large", b"moved/deep/note"].map(|path| vault.cipher_path(path).unwrap());
    vault.close().unwrap();
    let old = store.snapshot();
    let read = |store: &MemStore, path: &[u8]| {
        let file = open_stored(store, path);
        let mut bytes = vec![0; file.stat().unwrap().size as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    let forged = {
        let vault = open_as(&old, &bob).unwrap();
        put(&vault, b"small", b"forged afterwards").unwrap();
        put(&vault, b"planted", b"made afterwards").unwrap();
        symlink(&vault, b"planted link", b"elsewhere").unwrap();
        let planted =
            [vault.cipher_path(b"planted").unwrap(), vault.cipher_path(b"planted link").unwrap()];
        vault.close().unwrap();
        planted
    };
    let vault = open_as(&store, &ann).unwrap();
    vault.share_at(b"").unwrap().remove(&[key(&bob)], &mut quiet()).unwrap();
    vault.close().unwrap();
    let small = open_stored(&store, &paths[0]);
    small.set_len(0).unwrap();
    small.write_at(&read(&old, &paths[0]), 0).unwrap();
    store
        .root()
        .create_file(&forged[0], 0o600)
        .unwrap()
        .write_at(&read(&old, &forged[0]), 0)
        .unwrap();
    store.root().symlink(&forged[1], &old.root().readlink(&forged[1]).unwrap()).unwrap();
    let large = open_stored(&store, &paths[1]);
    let layout = kithfs::format::layout::Layout::new(14, true).unwrap();
    large.write_at(b"spoilt", layout.segment_offset(1, 2)).unwrap();

    let vault = open_as(&store, &ann).unwrap();
    for _ in 0..2 {
        let left = vault.reseal(b"", true, &mut quiet()).unwrap();
        assert!(left.skipped >= 3 && left.bytes >= 16384, "{left:?}");
        for path in [&b"small"[..], b"planted"] {
            let refused = get(&vault, path).unwrap_err();
            assert!(refused.to_string().contains("may not write here"), "{refused}");
        }
        assert!(at(&vault, b"planted link", |node| vault.readlink(node)).is_err());
        assert_eq!(get(&vault, b"large").unwrap_err().errno(), libc::EIO);
        assert_eq!(get(&vault, b"moved/deep/note").unwrap(), b"a note", "the rest is done");
    }
    let mut bytes = vec![0; 16384];
    at(&vault, b"large", |node| {
        let handle = vault.open_file(node, vaults::READ)?.handle;
        vault.read(handle, 0, &mut bytes)?;
        vault.release(handle)
    })
    .unwrap();
    assert_eq!(bytes, pattern(4, LARGE)[..16384], "what was not spoilt reads as before");
}

fn open_stored(store: &MemStore, path: &[u8]) -> Arc<dyn kithfs::store::File> {
    let (above, name) = vaults::split(path);
    let dir = above
        .split(|b| *b == b'/')
        .filter(|part| !part.is_empty())
        .fold(store.root(), |dir, part| dir.open_dir(part).unwrap());
    dir.open_file(name, Access::ReadWrite).unwrap()
}

#[test]
fn no_name_and_no_control_file_of_the_old_epoch_is_left() {
    let (store, ann, _bob) = filled();
    let mut before = Vec::new();
    stored_entries(&store.root(), b"", &mut before);
    let vault = open_as(&store, &ann).unwrap();
    new_epoch(&vault);
    vault.reseal(b"", true, &mut quiet()).unwrap();
    // Lists of attributes under the old epoch stay: a copy, or a machine that was offline, may need
    // them.
    let lists = before.iter().filter(|path| path.starts_with(b"/+attr-")).count();
    let longs = before.iter().filter(|path| is_file_in(path, b"/+long/")).count();
    let blocks = before.iter().filter(|path| path.starts_with(b"/+slots-")).count();
    let unused = vault.check(b"", &mut |_| {}).unwrap().unused.unwrap().files;
    let all = (lists + longs + blocks) as u64;
    assert!(lists > 0 && unused == all, "{unused} of {lists}, {longs} and {blocks}");
    vault.close().unwrap();
    let mut after = Vec::new();
    stored_entries(&store.root(), b"", &mut after);
    let kept: Vec<_> = after.iter().filter(|path| before.contains(path)).collect();
    let of_the_share = [
        &b"/+share"[..],
        b"/+manifest-1-",
        b"/+members-",
        b"/+slots-",
        b"/+lock",
        b"/+journal",
        b"/+link-",
        b"/+attr-",
        b"/+long",
        b"/+moved",
    ];
    let unexpected: Vec<_> = kept
        .iter()
        .filter(|path| !of_the_share.iter().any(|known| path.starts_with(known)))
        .collect();
    assert!(
        unexpected.is_empty(),
        "{:?}",
        unexpected.iter().map(|p| p.escape_ascii().to_string()).collect::<Vec<_>>()
    );
    let names = |all: &[Vec<u8>], prefix: &[u8]| {
        all.iter().filter(|p| p.rsplit(|b| *b == b'/').next().unwrap().starts_with(prefix)).count()
    };
    for prefix in [&b"+junction-"[..], b"+link-", b"="] {
        assert_eq!(names(&before, prefix), names(&after, prefix), "{}", prefix.escape_ascii());
    }
    assert_eq!(names(&after, b"+attr-"), 2 * lists, "each list has a new one beside it");
}

/// Returns whether a stored path is that of a file two levels below `dir`.
fn is_file_in(path: &[u8], dir: &[u8]) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.contains(&b'/'))
}

#[test]
fn a_reader_counts_and_reseals_nothing() {
    let (store, ann, _bob) = filled();
    let vault = open_as(&store, &ann).unwrap();
    let cem = person(3);
    new_epoch(&vault);
    vault.share_at(b"").unwrap().add(&[member(&cem, Role::Reader, "Cem")]).unwrap();
    let counted = pending(&vault);
    vault.close().unwrap();
    let of_cem = open_as(&store, &cem).unwrap();
    let left = pending(&of_cem);
    assert_eq!((left.bytes, left.files, left.names), (counted.bytes, counted.files, counted.names));
    assert_eq!(of_cem.reseal(b"", true, &mut quiet()).unwrap_err().errno(), libc::EROFS);
}

#[test]
fn a_hard_link_keeps_attributes_if_a_rekey_stops_midway() {
    // Story: the first name of a link was created again with the reference to its list of
    // attributes, and the pass ended. The link was then two links, and the list was removed at the
    // next change of one of them.
    let (store, ann, _bob) = with_bob();
    let plan = FaultPlan::new();
    let vault = open_root(FaultStore::wrap(store.root(), plan.clone()), &ann).unwrap();
    symlink(&vault, b"one", b"target").unwrap();
    at(&vault, b"one", |node| {
        vault.link(node, ROOT, b"two").map(|attr| vault.forget(attr.node, 1))
    })
    .unwrap();
    new_epoch(&vault);
    let fail = |call, errno| {
        plan.add(Fault { calls: Calls::Of(call), when: When::From(1), errno, short: false })
    };
    // This pass can rename the links, but not create them again.
    fail(Call::Symlink, libc::EACCES);
    let left = vault.reseal(b"", false, &mut quiet()).unwrap();
    assert_eq!((left.names, left.headers), (0, 2));
    plan.heal();
    at(&vault, b"one", |node| {
        vault.set_xattr(node, b"trusted.long", &pattern(1, 66_000), SetXattr::Any)
    })
    .unwrap();
    fail(Call::Link, libc::EIO);
    assert_eq!(vault.reseal(b"", false, &mut quiet()).unwrap_err().errno(), libc::EIO);
    plan.heal();
    assert_eq!(vault.resolve(b"one").unwrap().nlink, 1, "the first name is a new link");
    for changed in [&b"one"[..], b"two"] {
        at(&vault, changed, |node| {
            vault.set_xattr(node, b"trusted.other", b"value", SetXattr::Any)
        })
        .unwrap();
        for path in [&b"one"[..], b"two"] {
            assert_eq!(
                at(&vault, path, |node| vault.get_xattr(node, b"trusted.long")).unwrap(),
                pattern(1, 66_000),
                "{}",
                path.escape_ascii()
            );
        }
    }
    assert_eq!(faults(&vault), [""; 0]);
}

#[test]
fn a_new_epoch_changes_the_keys_of_a_listing() {
    // Story: the kernel kept listings that lacked the names of an epoch whose key arrived later.
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &ann).unwrap();
    let reader = members::beside(&store, &bob);
    let handles = [&vault, &reader].map(|vault| (vault, vault.open_dir(ROOT).unwrap()));
    let before = handles.map(|(vault, handle)| vault.names_read_with(handle).unwrap());
    assert_eq!(handles.map(|(vault, handle)| vault.names_read_with(handle).unwrap()), before);
    new_epoch(&vault);
    assert_ne!(
        vault.names_read_with(handles[0].1).unwrap(),
        before[0],
        "in the daemon that made the key"
    );
    assert_eq!(reader.names_read_with(handles[1].1).unwrap(), before[1], "not there yet");
    reader.pending(b"", &mut quiet()).unwrap(); // looks for new epochs
    assert_ne!(
        reader.names_read_with(handles[1].1).unwrap(),
        before[1],
        "in the daemon that received the key"
    );
}

#[test]
fn directories_that_are_deeper_than_the_stack_are_sealed_anew() {
    // Any writer could make a tree so deep that the pass, which recursed into directories,
    // overflowed its stack and ended the daemon with which the others had the share mounted.
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &bob).unwrap();
    let (mut parent, mut nodes) = (ROOT, Vec::new());
    for _ in 0..3000 {
        parent = vault.mkdir(&vaults::CALLER, parent, b"d", 0o755).unwrap().node;
        nodes.push(parent);
    }
    nodes.into_iter().for_each(|node| vault.forget(node, 1));
    vault.close().unwrap();
    let vault = open_as(&store, &ann).unwrap();
    root_share(&vault).rekey().unwrap();
    // A small stack makes a tree of moderate depth enough for this test.
    let pass = std::thread::Builder::new()
        .stack_size(512 << 10)
        .spawn(move || vault.reseal(b"", true, &mut quiet()));
    let left = pass.unwrap().join().unwrap().unwrap();
    assert!(left.is_done(true) && left.skipped == 0, "{left:?}");
}

/// Another program replaced a file by an older version, while the kernel had cached the newer one.
/// The pass met a node that accepts no open any more and skipped the file: it reported less
/// remaining work than there was.
#[test]
fn the_count_includes_a_file_changed_beneath_a_cache() {
    let (store, ann, _) = with_bob();
    let caching = || OpenOptions { caller_caches: true, ..trusting(false, LockMode::Exclusive) };
    let vault = Vault::open(store.root(), &ann, caching()).unwrap();
    put(&vault, b"large", &pattern(4, LARGE)).unwrap();
    let cipher = vault.cipher_path(b"large").unwrap();
    settle(&vault, ROOT);
    let ciphertext = || {
        let file = store.root().open_file(&cipher, Access::ReadWrite).unwrap();
        let mut bytes = vec![0; file.stat().unwrap().size as usize];
        file.read_at(&mut bytes, 0).unwrap();
        (file, bytes)
    };
    let (_, older) = ciphertext();
    put(&vault, b"large", &pattern(5, LARGE)).unwrap();
    settle(&vault, ROOT);
    let counted = vault.lookup(ROOT, b"large").unwrap().node;
    assert_eq!(get(&vault, b"large").unwrap(), pattern(5, LARGE));
    let (file, _) = ciphertext();
    file.write_at(&older, 0).unwrap();
    file.set_len(older.len() as u64).unwrap();
    new_epoch(&vault);
    assert_eq!(pending(&vault).files, 1);
    vault.forget(counted, 1);
}
