//! Replays in which calls of the store fail: no record is lost, whatever programs do until the next one.

use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Call, Dir, RenameMode, SetTime, Timestamp};
use kithfs::vault::{Local, OpenOptions, ROOT, RenameMode as VaultRename, SetAttr, Vault};

use crate::support::cuts::{Cut, chance, record_on};
use crate::support::raw;
use crate::support::vaults::{
    self, Item, READ_WRITE, at, get, open_on, owner, pattern, put, rename, write_at,
};

/// The name of a journal that another machine may be using.
pub const FOREIGN: &[u8] = b"+journal-elsewhere-0123456789abcdef";
/// Size of a file that is written in place.
pub const LARGE: usize = 300_000;

/// A vault in which a crash has left a file half written, and the contents after its replay.
pub struct Torn {
    pub store: MemStore,
    /// The state directory of the machine, if the vault is synced.
    pub state: Option<MemStore>,
    pub wanted: Vec<u8>,
    /// The vault as another machine has it, before the change.
    pub elsewhere: MemStore,
}

/// Plays a session that changes a file at `path` in 4 KiB at 8192 bytes, and returns a state of it in
/// which a crash has left the file half written.
pub fn torn(path: &[u8], is_synced: bool) -> Torn {
    let wanted = [&pattern(1, 8192)[..], &pattern(2, 4096), &pattern(1, LARGE)[12_288..]].concat();
    let before = parking_lot::Mutex::new(None);
    let cuts = record_on(12, is_synced.then(MemStore::new), |session, store| {
        if let (above @ [_, ..], _) = vaults::split(path) {
            session.mkdir(above);
        }
        session.create(path, &pattern(1, LARGE));
        session.sync_dir(b"");
        *before.lock() = Some(store.crash(&mut |n| n - 1));
        session.overwrite(path, 8192, &pattern(2, 4096));
    });
    let (store, state) = half_written(&cuts, path, &wanted).next().unwrap();
    Torn { store, state, wanted, elsewhere: before.into_inner().unwrap() }
}

/// Returns states after a crash in which the file at `path` is half written, and which a replay
/// completes to `wanted`.
fn half_written<'a>(
    cuts: &'a [Cut],
    path: &'a [u8],
    wanted: &'a [u8],
) -> impl Iterator<Item = (MemStore, Option<MemStore>)> + 'a {
    let tries =
        cuts.iter().enumerate().flat_map(|(n, cut)| (0..4).map(move |k| (n as u64, k, cut)));
    tries.filter_map(move |(number, seed, cut)| {
        let mut chance = chance(seed << 32 | number);
        let store = cut.store.crash(&mut |n| chance(n));
        let state = cut.state.as_ref().map(|state| state.crash(&mut |n| n - 1));
        let without = store.snapshot();
        for name in raw::named(&*without.root(), b"+journal-") {
            without.root().unlink(&name).unwrap();
        }
        let is_torn = get(&open_on(&without, None).unwrap(), path).is_err();
        let replayed = open_on(&store.snapshot(), state.as_ref().map(|s| s.snapshot()).as_ref());
        let is_completed = get(&replayed.unwrap(), path).is_ok_and(|bytes| bytes == wanted);
        (is_torn && is_completed).then_some((store, state))
    })
}

/// Returns the stored name of the only file.
pub fn stored_file(root: &dyn Dir) -> Vec<u8> {
    raw::names(root).into_iter().find(|name| name[0] != b'+').unwrap()
}

pub fn files(vault: &Vault) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut files = Vec::new();
    vaults::walk(vault, ROOT, b"", &mut |path, item| {
        match item {
            Ok(Item::File { bytes, .. }) => files.push((path.to_vec(), Some(bytes))),
            Ok(_) => {}
            Err(_) => files.push((path.to_vec(), None)),
        }
        Ok(())
    })
    .unwrap();
    files
}

/// What happens between the replay that fails and the next one. Calls may fail: a file that is not whole
/// cannot be changed.
#[derive(Clone, Copy, Debug)]
enum Then {
    Nothing,
    /// A program writes another file, and renames a directory: the journal makes a checkpoint.
    Checkpoint,
    /// A program appends to every file, and syncs that.
    Append,
    /// A program gives every file another name, and begins a new one at the former name.
    Rename,
}

/// Returns the paths of all entries, those in a directory before it. No file is opened.
fn paths(vault: &Vault) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    for (name, attr) in vaults::entries(vault, ROOT).unwrap_or_default() {
        for (below, _) in vaults::entries(vault, attr.node).unwrap_or_default() {
            paths.push([&name[..], b"/", &below].concat());
        }
        paths.push(name);
    }
    paths
}

/// Renames an empty directory after a file was written in place: the journal has a record then, so
/// the rename begins with a checkpoint.
fn checkpoint(vault: &Vault, plan: &FaultPlan) {
    put(vault, b"apart", &pattern(4, LARGE)).unwrap();
    let handle = vaults::open_or_create(vault, b"apart", READ_WRITE).unwrap();
    for byte in [1, 2] {
        vault.write(handle, 8192, &[byte; 4096], false).unwrap();
        vault.fsync(handle, false).unwrap();
    }
    vault.release(handle).unwrap();
    vaults::mkdir(vault, b"empty").unwrap();
    let flushes = || plan.count(Calls::Of(Call::SyncAll));
    let before = flushes();
    // Fails if a file still cannot be written.
    let _ = rename(vault, b"empty", b"renamed", VaultRename::NoReplace);
    assert!(flushes() > before, "the rename makes no checkpoint");
}

impl Then {
    fn act(self, vault: &Vault, plan: &FaultPlan) {
        if let Then::Checkpoint = self {
            checkpoint(vault, plan);
        }
        for name in paths(vault) {
            match self {
                Then::Nothing => {}
                Then::Checkpoint => {}
                Then::Append => {
                    let Ok(handle) = vaults::open_or_create(vault, &name, READ_WRITE) else {
                        continue;
                    };
                    let _ = vault.write(handle, LARGE as u64, b"more", false);
                    let _ = vault.fsync(handle, false);
                    let _ = vault.release(handle);
                }
                Then::Rename => {
                    let to = [&name[..], b" renamed"].concat();
                    if rename(vault, &name, &to, VaultRename::NoReplace).is_ok() {
                        let _ = put(vault, &name, b"new");
                    }
                }
            }
        }
    }
}

/// Replays with each call failing once, or with all calls of its kind failing from it on. Then the
/// store works again, programs use the vault, and the vault is opened once more: the contents that
/// were acknowledged are there, and every file is readable.
fn nothing_is_lost(torn: &Torn, what: &str) {
    let calls = [
        Call::OpenDir,
        Call::OpenFile,
        Call::Stat,
        Call::List,
        Call::Read,
        Call::Write,
        Call::SetTimes,
        Call::SyncData,
        Call::SyncAll,
    ];
    let (mut opened, mut failed) = (0, 0);
    let foreign = raw::named(&*torn.store.root(), FOREIGN);
    for call in calls {
        for nth in 1.. {
            let mut any = false;
            for (when, then) in [When::Nth(nth), When::From(nth)].into_iter().flat_map(|when| {
                let all = [Then::Nothing, Then::Checkpoint, Then::Append, Then::Rename];
                all.map(|then| (when, then))
            }) {
                let what = format!("{what}: {call:?} {when:?}, {then:?}");
                let (store, state) =
                    (torn.store.snapshot(), torn.state.as_ref().map(|s| s.snapshot()));
                let plan = FaultPlan::new();
                plan.add(Fault { calls: Calls::Of(call), when, errno: libc::EIO, short: false });
                let local = state.as_ref().map(|state| Local {
                    state: FaultStore::wrap(state.root(), plan.clone()),
                    path: "/copy".into(),
                });
                let options = OpenOptions { local, ..OpenOptions::default() };
                let vault =
                    Vault::open(FaultStore::wrap(store.root(), plan.clone()), &owner(), options);
                any |= plan.failed() > 0;
                failed += plan.failed();
                if let Ok(vault) = vault {
                    opened += usize::from(plan.failed() > 0);
                    plan.heal();
                    then.act(&vault, &plan);
                    let _ = vault.close();
                }
                let vault = open_on(&store, state.as_ref()).unwrap();
                let files = files(&vault);
                let is_ours = |bytes: &[u8]| bytes.starts_with(&torn.wanted);
                assert!(
                    files.iter().all(|(_, bytes)| bytes.is_some()),
                    "{what}: {:?}",
                    shown(&files)
                );
                assert_eq!(raw::named(&*store.root(), FOREIGN), foreign, "{what}");
                assert!(
                    files.iter().any(|(_, bytes)| bytes.as_deref().is_some_and(is_ours)),
                    "{what}: {:?}",
                    shown(&files)
                );
            }
            if !any {
                break;
            }
        }
    }
    assert!(opened > 20 && failed > 100, "{what}: {opened} opened, {failed} failed");
}

/// Returns names and sizes.
pub fn shown(files: &[(Vec<u8>, Option<Vec<u8>>)]) -> Vec<(String, Option<usize>)> {
    let size = |bytes: &Option<Vec<u8>>| bytes.as_ref().map(Vec::len);
    files.iter().map(|(name, bytes)| (name.escape_ascii().to_string(), size(bytes))).collect()
}

/// A file whose directory could not be opened could be renamed before its records were written. The
/// records found no file then, and were put aside.
#[test]
fn a_failing_call_in_a_replay_loses_nothing() {
    nothing_is_lost(&torn(b"dir/file", false), "at its path");
}

/// A sync tool has kept our version as a conflict copy, beside a newer one of another machine. Where the
/// copy could not be listed, opened or written, the newer version counted, and the records were dropped
/// at once or with the next checkpoint. The copy stayed half written.
#[test]
fn a_failing_call_loses_no_records_of_a_conflict_copy() {
    let torn = torn(b"file", true);
    let theirs = open_on(&torn.elsewhere, Some(&MemStore::new())).unwrap();
    write_at(&theirs, b"file", 0, b"theirs").unwrap();
    write_at(&theirs, b"file", 0, b"newer than ours").unwrap();
    theirs.close().unwrap();
    let root = torn.store.root();
    let stored = stored_file(&*root);
    let copy = [&stored[..], b".sync-conflict-20261124-101500-ABCDEFG"].concat();
    root.rename(&stored, &*root, &copy, RenameMode::Replace).unwrap();
    raw::write(&*root, &stored, &raw::read(&*torn.elsewhere.root(), &stored));
    nothing_is_lost(&torn, "a conflict copy");
}

/// A sync tool has renamed the file. Where it could not be looked at, its records waited for the next
/// replay, but programs could change it meanwhile, and the records did not match it any more.
#[test]
fn a_failing_call_loses_no_records_of_a_renamed_file() {
    let torn = torn(b"file", true);
    let theirs = open_on(&torn.elsewhere, Some(&MemStore::new())).unwrap();
    rename(&theirs, b"file", b"new", VaultRename::NoReplace).unwrap();
    let to = theirs.cipher_path(b"new").unwrap();
    theirs.close().unwrap();
    let root = torn.store.root();
    root.rename(&stored_file(&*root), &*root, &to, RenameMode::NoReplace).unwrap();
    nothing_is_lost(&torn, "renamed");
}

/// A replay searched for a file that another program had renamed. An entry of a directory was moved after
/// it was listed, perhaps to where it was not seen any more. It counted as missing, and the records were
/// put aside for good.
#[test]
fn an_entry_that_moves_during_the_search_is_not_missed() {
    let torn = torn(b"file", true);
    let theirs = open_on(&torn.elsewhere, Some(&MemStore::new())).unwrap();
    rename(&theirs, b"file", b"new", VaultRename::NoReplace).unwrap();
    let to = theirs.cipher_path(b"new").unwrap();
    theirs.close().unwrap();
    let root = torn.store.root();
    root.rename(&stored_file(&*root), &*root, &to, RenameMode::NoReplace).unwrap();
    let mut failed = 0;
    for call in [Call::Stat, Call::OpenFile] {
        for nth in 1.. {
            let (store, state) = (torn.store.snapshot(), torn.state.as_ref().unwrap().snapshot());
            let (calls, when) = (Calls::Of(call), When::Nth(nth));
            let plan = FaultPlan::failing(Fault { calls, when, errno: libc::ENOENT, short: false });
            let local = Some(Local { state: state.root(), path: "/copy".into() });
            let options = OpenOptions { local, ..OpenOptions::default() };
            let wrapped = FaultStore::wrap(store.root(), plan.clone());
            drop(Vault::open(wrapped, &owner(), options));
            let files = files(&open_on(&store, Some(&state)).unwrap());
            let is_whole = files.iter().any(|(_, bytes)| bytes.as_ref() == Some(&torn.wanted));
            assert!(is_whole, "{call:?} {nth}: {:?}", shown(&files));
            failed += plan.failed();
            if plan.failed() == 0 {
                break;
            }
        }
    }
    assert!(failed > 10, "{failed}");
}

/// A young journal of another machine, which may be using it, is not removed here. It was removed
/// if a file could not be written at first.
#[test]
fn a_failing_call_removes_no_young_journal() {
    let torn = torn(b"file", false);
    let root = torn.store.root();
    let name = raw::named(&*root, b"+journal-").remove(0);
    root.rename(&name, &*root, FOREIGN, RenameMode::Replace).unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
    let at = SetTime::At(Timestamp { secs: now, nanos: 0 });
    root.set_times(FOREIGN, SetTime::Omit, at).unwrap();
    nothing_is_lost(&torn, "young");
}

/// Two records of one file named different hard links. If the file could not be written, they were
/// kept like records of two files: the second was written, and the first did not match any more.
#[test]
fn a_failing_call_keeps_the_order_of_records_of_two_links() {
    let wanted = [&pattern(2, 8192)[..], &pattern(1, LARGE)[8192..]].concat();
    let cuts = record_on(12, None, |session, _| {
        session.create(b"file", &pattern(1, LARGE));
        session.overwrite(b"file", 0, &pattern(2, 8192)[..4096]);
        at(&session.vault, b"file", |node| session.vault.link(node, ROOT, b"other")).unwrap();
        session.overwrite(b"file", 4096, &pattern(2, 8192)[4096..]);
        session.sync_dir(b"");
    });
    let states: Vec<_> = half_written(&cuts, b"file", &wanted).take(8).collect();
    assert!(!states.is_empty());
    for (store, state) in states {
        let (wanted, elsewhere) = (wanted.clone(), MemStore::new());
        nothing_is_lost(&Torn { store, state, wanted, elsewhere }, "two links");
    }
}

/// Two files could not be written by a replay, and their records were carried to one journal. Then one of
/// them was written, and its records stayed in that journal. A truncation freed their places, fresh bytes
/// took them, and after a crash the replay wrote the old records over those bytes.
#[test]
fn records_of_a_mended_file_are_not_carried_on() {
    let start = MemStore::new();
    vaults::create(&start.root(), Suite::Aes256Gcm, 12);
    let vault = open_on(&start, None).unwrap();
    for name in [&b"file"[..], b"other"] {
        put(&vault, name, &pattern(1, LARGE)).unwrap();
        for round in 0..2 {
            let handle = vaults::open_or_create(&vault, name, READ_WRITE).unwrap();
            vault.write(handle, 200_000, &pattern(2 + round, 4096), false).unwrap();
            vault.fsync(handle, false).unwrap();
            vault.release(handle).unwrap();
        }
    }
    let other = vault.cipher_path(b"other").unwrap();
    let store = start.snapshot();
    let plan = FaultPlan::new();
    plan.forbid(&other);
    let (calls, errno) = (Calls::Of(Call::SyncAll), libc::EIO);
    plan.add(Fault { calls, when: When::From(1), errno, short: false });
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    vault.commit_due(Duration::ZERO);
    plan.heal();
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    let cut = SetAttr { size: Some(100_000), ..SetAttr::default() };
    at(&vault, b"file", |node| vault.setattr(node, &cut)).unwrap();
    vault.write(handle, 100_000, &pattern(7, 200_000), false).unwrap();
    vault.fsync(handle, false).unwrap();
    let wanted = [&pattern(1, LARGE)[..100_000], &pattern(7, 200_000)].concat();
    let after = open_on(&store.crash(&mut |n| n - 1), None).unwrap();
    assert!(get(&after, b"file").unwrap() == wanted);
    assert_eq!(get(&after, b"other").unwrap()[200_000..204_096], pattern(3, 4096));
}

/// A replay could not write the file. In the same mount a sync tool kept it as a conflict copy and put a
/// newer version at its path. That one needed no records, so they were dropped, and the copy stayed half
/// written.
#[test]
fn a_newer_version_that_arrives_drops_no_records() {
    let torn = torn(b"file", true);
    let theirs = open_on(&torn.elsewhere, Some(&MemStore::new())).unwrap();
    write_at(&theirs, b"file", 0, b"theirs").unwrap();
    write_at(&theirs, b"file", 0, b"newer than ours").unwrap();
    theirs.close().unwrap();
    let (root, state) = (torn.store.root(), torn.state.unwrap());
    let plan = FaultPlan::new();
    let (calls, errno) = (Calls::Of(Call::Write), libc::EIO);
    plan.add(Fault { calls, when: When::From(1), errno, short: false });
    // A file of another program in the state directory is no reason to refuse the vault.
    let folder = state.root().open_dir(b"synced").unwrap();
    let share = raw::names(&*folder).remove(0);
    raw::write(&*folder.open_dir(&share).unwrap(), b".DS_Store", b"of another program");
    let local = Some(Local { state: state.root(), path: "/copy".into() });
    let options = OpenOptions { local, ..OpenOptions::default() };
    let vault =
        Vault::open(FaultStore::wrap(root.clone(), plan.clone()), &owner(), options).unwrap();
    assert!(plan.failed() > 0);
    let stored = stored_file(&*root);
    let copy = [&stored[..], b".sync-conflict-20261124-101500-ABCDEFG"].concat();
    root.rename(&stored, &*root, &copy, RenameMode::Replace).unwrap();
    raw::write(&*root, &stored, &raw::read(&*torn.elsewhere.root(), &stored));
    plan.heal();
    vault.commit_due(Duration::ZERO);
    assert!(get(&vault, b"file").unwrap().starts_with(b"newer than ours"));
    let _ = vault.close();
    drop(vault);
    let files = files(&open_on(&torn.store, Some(&state)).unwrap());
    let is_ours = |bytes: &Option<Vec<u8>>| bytes.as_ref() == Some(&torn.wanted);
    assert!(
        files.len() == 2 && files.iter().any(|(_, bytes)| is_ours(bytes)),
        "{:?}",
        shown(&files)
    );
}
