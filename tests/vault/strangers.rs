//! Another program, such as a sync tool, changes a file in the store that programs have open. Data
//! written through an open file is never acknowledged and then dropped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, RenameMode, Seek};
use kithfs::vault::{OpenOptions, ROOT, Vault};

use crate::support::vaults::{self, Item, READ, READ_WRITE, at, get, pattern, put};

/// Small, in one chunk, in several chunks.
const SIZES: [usize; 3] = [100, 3_000, 40_000];

/// How a commit is caused.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Commit {
    Fsync,
    Close,
    Background,
}

/// A vault with a file that a program has open, and of which the host has an older version.
struct Scene {
    store: MemStore,
    vault: Vault,
    name: Vec<u8>,
    stored: Vec<u8>,
    older: Vec<u8>,
    handle: u64,
}

fn bytes_of(store: &MemStore, stored: &[u8]) -> Vec<u8> {
    let file = store.root().open_file(stored, Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

impl Scene {
    /// Calls `act` at write or flush number `nth` from now on, counted from 0. Returns the counter
    /// of these calls.
    fn at_change(&self, nth: usize, act: impl Fn() + Send + Sync + 'static) -> Arc<AtomicUsize> {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        self.store.on_event(Box::new(move |event| {
            let is_change = matches!(event.call, Call::Write | Call::SyncData | Call::SyncAll);
            if is_change && counted.fetch_add(1, Ordering::SeqCst) == nth {
                act();
            }
        }));
        calls
    }

    fn new(name: &[u8], older: &[u8], newer: &[u8], caller_caches: bool) -> Scene {
        Scene::with_faults(name, older, newer, caller_caches, FaultPlan::new())
    }

    fn with_faults(
        name: &[u8],
        older: &[u8],
        newer: &[u8],
        caller_caches: bool,
        plan: std::sync::Arc<FaultPlan>,
    ) -> Scene {
        let store = MemStore::new();
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        let vault = vaults::open(store.root()).unwrap();
        put(&vault, name, older).unwrap();
        let stored = vault.cipher_path(name).unwrap();
        vault.close().unwrap();
        let older = bytes_of(&store, &stored);
        let options = OpenOptions { caller_caches, ..OpenOptions::default() };
        let root = FaultStore::wrap(store.root(), plan);
        let vault = Vault::open(root, &vaults::owner(), options).unwrap();
        let handle = vaults::open_or_create(&vault, name, READ_WRITE).unwrap();
        at(&vault, name, |node| {
            let size = kithfs::vault::SetAttr { size: Some(0), ..Default::default() };
            vault.setattr(node, &size).map(drop)
        })
        .unwrap();
        vault.write(handle, 0, newer, false).unwrap();
        vault.fsync(handle, false).unwrap();
        Scene { store, vault, name: name.to_vec(), stored, older, handle }
    }

    /// Replaces the open file by another one, as a sync tool does.
    fn replace(&self, ciphertext: &[u8]) {
        let root = self.store.root();
        let file = root.create_file(b".arriving.tmp", 0o644).unwrap();
        file.write_at(ciphertext, 0).unwrap();
        file.sync_all().unwrap();
        root.rename(b".arriving.tmp", &*root, &self.stored, RenameMode::Replace).unwrap();
        root.sync().unwrap();
    }

    fn remove(&self) {
        self.store.root().unlink(&self.stored).unwrap();
        self.store.root().sync().unwrap();
    }

    fn commit(&self, how: Commit) -> Result<(), i32> {
        match how {
            Commit::Fsync => self.vault.fsync(self.handle, false),
            Commit::Close => self.vault.flush(self.handle),
            Commit::Background => {
                self.vault.commit_due(Duration::ZERO);
                Ok(())
            }
        }
        .map_err(|error| error.errno())
    }

    /// Returns the contents of the file under its name, and of all other files.
    fn files(&self) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
        files(&self.vault, &self.name)
    }

    /// Returns what a crash that loses everything unflushed leaves.
    fn files_after_a_crash(&self) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
        let vault = vaults::open(self.store.crash(&mut |_| 0).root()).unwrap();
        files(&vault, &self.name)
    }

    fn end(self) {
        self.vault.release(self.handle).unwrap();
        assert_eq!(vaults::faults(&self.vault), Vec::<String>::new());
        self.vault.close().unwrap();
    }
}

fn files(vault: &Vault, name: &[u8]) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
    let mut all: BTreeMap<Vec<u8>, Vec<u8>> = vaults::tree(vault)
        .unwrap()
        .into_iter()
        .filter_map(|(path, item)| match item {
            Item::File { bytes, .. } => Some((path, bytes)),
            _ => None,
        })
        .collect();
    (all.remove(name), all.into_values().collect())
}

fn patched(bytes: &[u8], offset: usize, patch: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[offset..offset + patch.len()].copy_from_slice(patch);
    bytes
}

/// A file was open and had been written to when the sync tool replaced it. The late commit went
/// into an inode without a name, or failed. With plain files the tool keeps both versions.
#[test]
fn changes_to_a_replaced_file_become_a_conflict_copy() {
    for (size, how, caller_caches) in SIZES
        .into_iter()
        .flat_map(|size| [Commit::Fsync, Commit::Close, Commit::Background].map(|how| (size, how)))
        .flat_map(|(size, how)| [false, true].map(|caches| (size, how, caches)))
    {
        let (older, newer) = (pattern(1, 70), pattern(2, size));
        let scene = Scene::new(b"f", &older, &newer, caller_caches);
        scene.vault.write(scene.handle, 10, b"ours", false).unwrap();
        scene.replace(&scene.older);
        scene.commit(how).unwrap();
        let ours = patched(&newer, 10, b"ours");
        assert!(scene.files() == (Some(older.clone()), vec![ours.clone()]), "{size} {how:?}");
        assert!(scene.files_after_a_crash() == (Some(older.clone()), vec![ours.clone()]), "{size}");
        // The handle continues in the copy.
        scene.vault.write(scene.handle, 20, b"more", false).unwrap();
        scene.vault.fsync(scene.handle, false).unwrap();
        let ours = patched(&ours, 20, b"more");
        assert!(scene.files_after_a_crash() == (Some(older.clone()), vec![ours.clone()]), "{size}");
        let mut buf = vec![0; size + 1];
        assert_eq!(scene.vault.read(scene.handle, 0, &mut buf).unwrap(), size);
        assert!(buf[..size] == ours);
        scene.end();
    }
}

/// The copy is shown with a conflict suffix, and is an ordinary file.
#[test]
fn a_conflict_copy_is_shown_and_is_usable() {
    let scene = Scene::new(b"f", b"older", b"newer", false);
    vaults::set_xattr(&scene.vault, b"f", b"user.colour", b"red").unwrap();
    scene.vault.write(scene.handle, 0, b"ours!", false).unwrap();
    scene.replace(&scene.older);
    scene.commit(Commit::Fsync).unwrap();
    let tree = vaults::tree(&scene.vault).unwrap();
    let copy = tree.keys().find(|name| name.starts_with(b"f (conflict ")).unwrap().clone();
    let Item::File { bytes, xattrs } = &tree[&copy] else { panic!("not a file") };
    assert_eq!((&bytes[..], &xattrs[&b"user.colour"[..]][..]), (&b"ours!"[..], &b"red"[..]));
    put(&scene.vault, &copy, b"edited").unwrap();
    vaults::rename(&scene.vault, &copy, b"g", RenameMode::Replace).unwrap();
    assert_eq!(get(&scene.vault, b"g").unwrap(), b"edited");
    let _ = scene.vault.release(scene.handle);
    assert_eq!(vaults::faults(&scene.vault), Vec::<String>::new());
    scene.vault.close().unwrap();
}

/// A sync tool that delivers what a program is just writing makes no conflict.
#[test]
fn equal_contents_make_no_conflict_copy() {
    for size in SIZES {
        let newer = pattern(2, size);
        let ours = patched(&newer, 10, b"ours");
        let scene = Scene::new(b"f", &ours, &newer, false);
        scene.vault.write(scene.handle, 10, b"ours", false).unwrap();
        scene.replace(&scene.older);
        scene.commit(Commit::Fsync).unwrap();
        assert!(scene.files() == (Some(ours.clone()), vec![]), "{size}");
        scene.vault.write(scene.handle, 20, b"more", false).unwrap();
        scene.commit(Commit::Fsync).unwrap();
        let ours = patched(&ours, 20, b"more");
        assert!(scene.files_after_a_crash() == (Some(ours), vec![]), "{size}");
        scene.end();
    }
}

/// A sync tool does not remove a plain file that was just changed. Here it cannot see the change
/// and removes the file, so the commit writes the file back.
#[test]
fn a_file_removed_while_dirty_is_written_back() {
    let long = [b'x'; 230];
    for name in [&b"f"[..], &long] {
        for (size, how) in
            SIZES.into_iter().flat_map(|size| [Commit::Fsync, Commit::Close].map(|how| (size, how)))
        {
            let newer = pattern(2, size);
            let scene = Scene::new(name, b"older", &newer, false);
            scene.vault.write(scene.handle, 10, b"ours", false).unwrap();
            scene.remove();
            scene.commit(how).unwrap();
            let ours = patched(&newer, 10, b"ours");
            assert!(scene.files() == (Some(ours.clone()), vec![]), "{size} {how:?}");
            assert!(scene.files_after_a_crash() == (Some(ours), vec![]), "{size} {how:?}");
            scene.end();
        }
    }
}

/// What a program removed stays removed, whatever other programs still write to it.
#[test]
fn a_file_that_a_program_removed_is_not_written_back() {
    let scene = Scene::new(b"f", b"older", b"newer", false);
    scene.vault.unlink(ROOT, b"f").unwrap();
    scene.vault.write(scene.handle, 0, b"ours!", false).unwrap();
    scene.commit(Commit::Fsync).unwrap();
    assert_eq!(scene.files(), (None, vec![]));
    scene.end();
}

/// A file without changes disappears with its name: no copy is made for a program that only has it
/// open.
#[test]
fn an_open_file_without_changes_leaves_nothing_behind() {
    for removed in [false, true] {
        let scene = Scene::new(b"f", b"older", b"newer", false);
        if removed {
            scene.remove()
        } else {
            scene.replace(&scene.older)
        }
        scene.commit(Commit::Fsync).unwrap();
        let expected = (!removed).then(|| b"older".to_vec());
        assert_eq!(scene.files(), (expected, vec![]));
        scene.end();
    }
}

/// A sync tool delivers the same bytes under another inode: it is the same file, and the open file
/// continues in it, with its changes.
#[test]
fn an_echo_is_adopted() {
    for size in SIZES {
        for dirty in [false, true] {
            let newer = pattern(2, size);
            let scene = Scene::new(b"f", b"older", &newer, false);
            let echo = bytes_of(&scene.store, &scene.stored);
            let mut expected = newer.clone();
            if dirty {
                scene.vault.write(scene.handle, 10, b"ours", false).unwrap();
                scene.vault.write(scene.handle, size as u64 + 5_000, b"end", false).unwrap();
                expected = patched(&newer, 10, b"ours");
                expected.resize(size + 5_000, 0);
                expected.extend(b"end");
            }
            let node = scene.vault.resolve(b"f").unwrap().node;
            scene.replace(&echo);
            // An open by a name that the kernel has cached.
            let second = scene.vault.open_file(node, READ_WRITE).unwrap().handle;
            scene.vault.forget(node, 1);
            scene.vault.write(second, 20, b"second", false).unwrap();
            expected = patched(&expected, 20, b"second");
            scene.vault.fsync(second, false).unwrap();
            scene.vault.release(second).unwrap();
            scene.commit(Commit::Fsync).unwrap();
            assert!(scene.files() == (Some(expected.clone()), vec![]), "{size} {dirty}");
            assert!(scene.files_after_a_crash() == (Some(expected), vec![]), "{size} {dirty}");
            scene.end();
        }
    }
}

/// Another program on the machine opens the replaced file by its name, appends and closes, while an
/// old handle is open: its bytes went into the inode without a name.
#[test]
fn an_append_by_name_reaches_the_file_that_has_the_name() {
    let scene = Scene::new(b"f", b"older", b"newer", true);
    scene.replace(&scene.older);
    let stale = vaults::open_or_create(&scene.vault, b"f", READ_WRITE);
    let second = match stale {
        Ok(handle) => handle,
        // The kernel repeats the lookup.
        Err(error) => {
            assert_eq!(error.errno(), libc::ESTALE);
            vaults::open_or_create(&scene.vault, b"f", READ_WRITE).unwrap()
        }
    };
    scene.vault.write(second, 5, b" and more", false).unwrap();
    scene.vault.fsync(second, false).unwrap();
    scene.vault.release(second).unwrap();
    assert_eq!(scene.files_after_a_crash(), (Some(b"older and more".to_vec()), vec![]));
    scene.end();
}

/// Holes stay holes, and a copy of a copy has one suffix.
#[test]
fn a_copy_of_a_copy_has_one_suffix_and_keeps_holes() {
    let scene = Scene::new(b"f", b"older", b"newer", false);
    let size = 3 << 20;
    scene.vault.write(scene.handle, size - 3, b"end", false).unwrap();
    scene.replace(&scene.older);
    scene.commit(Commit::Fsync).unwrap();
    let copies = || {
        let tree = vaults::tree(&scene.vault).unwrap();
        tree.keys().filter(|name| name.len() > 1).cloned().collect::<Vec<_>>()
    };
    let first = copies().pop().unwrap();
    let stored = scene.vault.cipher_path(&first).unwrap();
    let copy = vaults::open_or_create(&scene.vault, &first, READ).unwrap();
    assert_eq!(scene.vault.seek_data_hole(copy, 8192, Seek::Data).unwrap() >> 20, 2);
    scene.vault.release(copy).unwrap();
    scene.vault.write(scene.handle, 0, b"again", false).unwrap();
    let root = scene.store.root();
    let file = root.create_file(b".arriving.tmp", 0o644).unwrap();
    file.write_at(&scene.older, 0).unwrap();
    root.rename(b".arriving.tmp", &*root, &stored, RenameMode::Replace).unwrap();
    scene.commit(Commit::Fsync).unwrap();
    assert_eq!(copies().len(), 2);
    for name in copies() {
        assert_eq!(name.windows(10).filter(|w| w == b"(conflict ").count(), 1);
    }
    scene.end();
}

/// A sync tool made a hard link beside a file, a program looked up both names, and the tool removed
/// the link. The file could then neither be opened nor created until its directory was listed.
#[test]
fn a_file_outlives_a_second_name() {
    let scene = Scene::new(b"f", b"older", b"newer", false);
    scene.vault.release(scene.handle).unwrap();
    let root = scene.store.root();
    let copy = [&scene.stored[..], b" (1)"].concat();
    for what in ["attributes", "open", "chmod", "xattr", "link"] {
        root.link(&scene.stored, &*root, &copy).unwrap();
        let node = scene.vault.resolve(b"f").unwrap().node;
        assert_eq!(scene.vault.resolve(b"f (1)").unwrap().node, node);
        root.unlink(&copy).unwrap();
        let vault = &scene.vault;
        match what {
            "attributes" => assert_eq!(vault.getattr(node).unwrap().size, 5),
            "open" => vault.release(vault.open_file(node, READ_WRITE).unwrap().handle).unwrap(),
            "chmod" => {
                let set = kithfs::vault::SetAttr { perm: Some(0o640), ..Default::default() };
                assert_eq!(vault.setattr(node, &set).unwrap().perm, 0o640);
            }
            "xattr" => assert_eq!(vault.list_xattr(node).unwrap(), Vec::<Vec<u8>>::new()),
            _ => assert_eq!(vault.link(node, ROOT, b"second").unwrap().node, node),
        }
        vault.forget(node, 2);
    }
    assert_eq!(vaults::get(&scene.vault, b"second").unwrap(), b"newer");
    scene.vault.close().unwrap();
}

/// A program opened a file that a sync tool had just renamed, by the new name. The lookup found the
/// node that the kernel knew by the former name, which the open then refused with ESTALE; as the
/// kernel repeats only one lookup, the program got the error if another open had failed before.
#[test]
fn a_renamed_file_is_opened_after_one_lookup() {
    for opened_before in [false, true] {
        let scene = Scene::new(b"f", b"older", b"newer", true);
        scene.vault.release(scene.handle).unwrap();
        let former = scene.vault.resolve(b"f").unwrap().node;
        let made = scene.vault.cipher_path(b"g").unwrap();
        let root = scene.store.root();
        root.rename(&scene.stored, &*root, &made, RenameMode::Replace).unwrap();
        if opened_before {
            assert!(
                scene.vault.open_file(former, READ_WRITE).is_err_and(|e| e.errno() == libc::ESTALE)
            );
        }
        let node = scene.vault.resolve(b"g").unwrap().node;
        scene.vault.release(scene.vault.open_file(node, READ_WRITE).unwrap().handle).unwrap();
        let again = scene.vault.open_file(former, READ_WRITE);
        assert!(again.is_err_and(|e| e.errno() == libc::ESTALE), "the former name leads nowhere");
        assert_eq!(vaults::get(&scene.vault, b"g").unwrap(), b"newer");
        scene.vault.close().unwrap();
    }
}

/// A program that writes again and again to a file that is replaced each time cannot fill the
/// directory: at a limit it gets an error.
#[test]
fn a_name_has_a_limited_number_of_copies() {
    let scene = Scene::new(b"f", b"older", b"newer", false);
    let other = bytes_of(&scene.store, &scene.stored);
    for n in 0.. {
        assert!(n < 100, "no limit");
        scene.replace(&other);
        let handle = vaults::open_or_create(&scene.vault, b"f", READ_WRITE).unwrap();
        scene.vault.write(handle, 0, &pattern(n, 50), false).unwrap();
        scene.replace(&scene.older);
        let synced = scene.vault.fsync(handle, false);
        let _ = scene.vault.release(handle);
        if let Err(error) = synced {
            assert_eq!((error.errno(), n > 20), (libc::EIO, true));
            break;
        }
    }
    let (there, copies) = scene.files();
    assert_eq!((there, copies.len()), (Some(b"older".to_vec()), 50));
    scene.end();
}

/// A full store has no room for the copy: the changes wait, and are kept once there is room.
#[test]
fn changes_wait_for_room_for_their_copy() {
    let scene = Scene::new(b"f", b"older", &pattern(2, 40_000), false);
    scene.vault.write(scene.handle, 10, b"ours", false).unwrap();
    scene.replace(&scene.older);
    scene.store.set_capacity(Some(0));
    assert_eq!(scene.commit(Commit::Fsync), Err(libc::ENOSPC));
    scene.store.set_capacity(None);
    scene.commit(Commit::Fsync).unwrap();
    let ours = patched(&pattern(2, 40_000), 10, b"ours");
    assert!(scene.files_after_a_crash() == (Some(b"older".to_vec()), vec![ours]));
    scene.end();
}

/// Each single call fails in turn. An `fsync` that succeeds has kept the changes, and the other
/// program's file is as that program left it.
#[test]
fn each_call_of_a_conflict_fails_once() {
    for removed in [false, true] {
        let newer = pattern(2, 9_000);
        let ours = patched(&newer, 10, b"ours");
        for nth in 1.. {
            let plan = FaultPlan::new();
            let scene = Scene::with_faults(b"f", b"older", &newer, false, plan.clone());
            scene.vault.write(scene.handle, 10, b"ours", false).unwrap();
            if removed {
                scene.remove()
            } else {
                scene.replace(&scene.older)
            }
            plan.reset();
            let fault =
                Fault { calls: Calls::All, when: When::Nth(nth), errno: libc::EIO, short: false };
            plan.add(fault);
            let synced = scene.commit(Commit::Fsync);
            let failed = plan.failed() > 0;
            plan.reset();
            let (there, copies) = scene.files_after_a_crash();
            if synced.is_ok() {
                let kept =
                    if removed { there == Some(ours.clone()) } else { copies == [ours.clone()] };
                assert!(kept, "removed: {removed}, call {nth}");
            }
            if !removed {
                assert_eq!(there, Some(b"older".to_vec()), "call {nth}");
            }
            let _ = scene.vault.release(scene.handle);
            let _ = scene.vault.close();
            if !failed {
                assert!(synced.is_ok() && nth > 5, "{nth} {synced:?}");
                break;
            }
        }
    }
}

/// The file is replaced during the commit, after the check: the `fsync` that returned success had
/// made an inode durable that no longer had a name. The same happened if the commit was that of the
/// background, or of another descriptor that was closed: an `fsync` afterwards found nothing to
/// write, and returned success.
#[test]
fn a_file_replaced_during_its_commit_is_kept() {
    for how in [Commit::Fsync, Commit::Close, Commit::Background] {
        for nth in 0.. {
            let newer = pattern(2, 9_000);
            let scene = Scene::new(b"f", b"older", &newer, false);
            scene.vault.write(scene.handle, 10, b"ours", false).unwrap();
            let (store, stored, older) =
                (scene.store.clone(), scene.stored.clone(), scene.older.clone());
            let calls = scene.at_change(nth, move || {
                let root = store.root();
                let file = root.create_file(b".arriving.tmp", 0o644).unwrap();
                file.write_at(&older, 0).unwrap();
                file.sync_all().unwrap();
                root.rename(b".arriving.tmp", &*root, &stored, RenameMode::Replace).unwrap();
            });
            let committed = scene.commit(how);
            scene.store.on_event(Box::new(|_| {}));
            committed.unwrap();
            scene.commit(Commit::Fsync).unwrap();
            if calls.load(Ordering::SeqCst) <= nth {
                assert!(nth > 1, "the commit makes too few calls");
                scene.end();
                break;
            }
            let ours = patched(&newer, 10, b"ours");
            let (there, copies) = scene.files_after_a_crash();
            assert!(there == Some(b"older".to_vec()) && copies == [ours], "{how:?}, call {nth}");
            scene.end();
        }
    }
}

/// The first commit of a new file, which is empty, does not check whether another program has
/// replaced or removed it meanwhile. What is written afterwards is kept by later commits.
#[test]
fn a_file_replaced_during_its_creation_keeps_its_data() {
    let ends = [Commit::Fsync, Commit::Close, Commit::Background];
    for (how, removed, written) in ends.into_iter().flat_map(|how| {
        [(true, true), (true, false), (false, true), (false, false)]
            .map(|(removed, written)| (how, removed, written))
    }) {
        let mut scene = Scene::new(b"f", b"older", b"newer", true);
        scene.vault.unlink(ROOT, b"f").unwrap();
        scene.vault.release(scene.handle).unwrap();
        let (store, stored, older) =
            (scene.store.clone(), scene.stored.clone(), scene.older.clone());
        let calls = scene.at_change(0, move || {
            let root = store.root();
            if removed {
                return root.unlink(&stored).unwrap();
            }
            let file = root.create_file(b".arriving.tmp", 0o644).unwrap();
            file.write_at(&older, 0).unwrap();
            root.rename(b".arriving.tmp", &*root, &stored, RenameMode::Replace).unwrap();
        });
        scene.handle = vaults::open_or_create(&scene.vault, b"f", READ_WRITE).unwrap();
        assert!(calls.load(Ordering::SeqCst) > 0, "the creation writes nothing");
        scene.store.on_event(Box::new(|_| {}));
        if written {
            scene.vault.write(scene.handle, 0, b"ours", false).unwrap();
        }
        scene.commit(how).unwrap();
        let older = b"older".to_vec();
        let expected = match (removed, written) {
            (true, true) => (Some(b"ours".to_vec()), vec![]),
            (true, false) => (None, vec![]),
            (false, true) => (Some(older), vec![b"ours".to_vec()]),
            (false, false) => (Some(older), vec![]),
        };
        assert!(scene.files() == expected, "{how:?}, removed: {removed}, written: {written}");
        scene.end();
    }
}

/// A sync tool removes the file again while it is written back, or removes the conflict copy while
/// that is written: `fsync` had made an inode durable that no longer had a name.
#[test]
fn a_copy_removed_while_it_is_written_is_made_again() {
    for removed in [true, false] {
        for nth in 0.. {
            let newer = pattern(2, 9_000);
            let scene = Scene::new(b"f", b"older", &newer, false);
            scene.vault.write(scene.handle, 10, b"ours", false).unwrap();
            if removed {
                scene.remove()
            } else {
                scene.replace(&scene.older)
            }
            let (store, stored) = (scene.store.clone(), scene.stored.clone());
            let calls = scene.at_change(nth, move || {
                let root = store.root();
                for entry in root.reopen().unwrap().read(0, 1 << 20).unwrap() {
                    let is_copy = entry.name.len() > stored.len();
                    if entry.name.starts_with(&stored) && (removed || is_copy) {
                        root.unlink(&entry.name).unwrap();
                    }
                }
            });
            let synced = scene.commit(Commit::Fsync);
            scene.store.on_event(Box::new(|_| {}));
            synced.unwrap();
            let ours = patched(&newer, 10, b"ours");
            let (there, copies) = scene.files_after_a_crash();
            let kept = match removed {
                true => there == Some(ours) && copies.is_empty(),
                false => there == Some(b"older".to_vec()) && copies == [ours],
            };
            assert!(kept, "removed: {removed}, call {nth}");
            scene.end();
            if calls.load(Ordering::SeqCst) <= nth {
                assert!(nth > 2, "the commit makes too few calls");
                break;
            }
        }
    }
}

/// A program opened a conflict copy by its name and wrote to it, while another one wrote on through
/// the descriptor for which the copy had been made. Each had a state of its own of the one file:
/// bytes that the first one had flushed were overwritten, and the file could not be read any more.
#[test]
fn a_copy_is_not_written_by_name_and_by_descriptor() {
    for (size, removed) in SIZES.into_iter().flat_map(|size| [(size, false), (size, true)]) {
        for dirty in [false, true] {
            let newer = pattern(2, size);
            let scene = Scene::new(b"f", b"older", &newer, true);
            scene.vault.write(scene.handle, 10, b"ours", false).unwrap();
            let mut expected = patched(&newer, 10, b"ours");
            if removed {
                scene.remove();
            } else {
                scene.replace(&scene.older);
            }
            scene.commit(Commit::Fsync).unwrap();
            if dirty {
                scene.vault.write(scene.handle, 30, b"later", false).unwrap();
                expected = patched(&expected, 30, b"later");
            }
            let names = vaults::entries(&scene.vault, ROOT).unwrap().into_iter();
            let name = names.map(|entry| entry.0).find(|name| removed || name != b"f").unwrap();
            let second = vaults::open_or_create(&scene.vault, &name, READ_WRITE).unwrap();
            let tail = pattern(3, 100_000);
            scene.vault.write(second, size as u64, &tail, false).unwrap();
            scene.vault.fsync(second, false).unwrap();
            expected.extend(&tail);
            // Refused, or a change of the same file.
            let late = pattern(4, 50_000);
            let written = scene
                .vault
                .write(scene.handle, size as u64, &late, false)
                .and_then(|()| scene.vault.fsync(scene.handle, false));
            if written.is_ok() {
                expected = patched(&expected, size, &late);
            }
            let (there, copies) = scene.files_after_a_crash();
            let copy = if removed { there.as_ref() } else { copies.first() };
            assert!(
                copy == Some(&expected) && copies.len() == usize::from(!removed),
                "{size}, removed: {removed}, dirty: {dirty}, {written:?}"
            );
            assert!(get(&scene.vault, &name).unwrap() == expected);
            scene.vault.release(second).unwrap();
            let _ = scene.vault.release(scene.handle);
            assert_eq!(vaults::faults(&scene.vault), Vec::<String>::new());
            scene.vault.close().unwrap();
        }
    }
}
