//! Records that wait for a file that a replay could not write or find, beside other records of the
//! same file: nothing that was synced is lost, whichever are applied first.

use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, Dir, RenameMode, SetTime, Timestamp};
use kithfs::vault::{Local, OpenOptions, SetAttr, TOO_MANY_JOURNALS, Vault};

use crate::failing_replays::{FOREIGN, LARGE, files, shown, stored_file, torn};
use crate::support::cuts::chance;
use crate::support::raw;
use crate::support::vaults::{self, READ_WRITE, get, open_on, owner, pattern, put, write_at};

pub const CONFLICT: &[u8] = b".sync-conflict-20261124-101500-ABCDEFG";

/// Writes to a file, and syncs it.
pub fn overwrite(vault: &Vault, path: &[u8], at: u64, bytes: &[u8]) {
    let handle = vaults::open_or_create(vault, path, READ_WRITE).unwrap();
    vault.write(handle, at, bytes, false).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.release(handle).unwrap();
}

/// Creates a vault with the file `file`, of which all is on the disk.
pub fn with_file(state: Option<&MemStore>) -> MemStore {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    if state.is_some() {
        Vault::set_synced(&store.root()).unwrap();
    }
    let vault = open_on(&store, state).unwrap();
    put(&vault, b"file", &pattern(1, LARGE)).unwrap();
    overwrite(&vault, b"file", 0, b"x");
    vault.close().unwrap();
    store
}

/// The contents of that file after `patches`.
pub fn patched(patches: &[(usize, &[u8])]) -> Vec<u8> {
    let mut contents = pattern(1, LARGE);
    contents[0] = b'x';
    for (at, bytes) in patches {
        contents.resize(contents.len().max(at + bytes.len()), 0);
        contents[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    contents
}

/// Puts the version of `elsewhere` at the path of a file, which becomes a conflict copy, as a sync
/// tool does. All of it is on the disk then.
pub fn replaced_by_tool(root: &dyn Dir, elsewhere: &MemStore) {
    let stored = stored_file(root);
    let copy = [&stored[..], CONFLICT].concat();
    root.rename(&stored, root, &copy, RenameMode::Replace).unwrap();
    raw::write(root, &stored, &raw::read(&*elsewhere.root(), &stored));
    root.open_file(&stored, Access::ReadWrite).unwrap().sync_all().unwrap();
    root.sync().unwrap();
}

/// A sync tool made a conflict copy of a file whose record was not flushed yet, and put a newer
/// version at its path, which a program then wrote. After a power cut the replay took the records of
/// both for those of one file, applied the later ones, and dropped the others: the copy could not be
/// read any more, with all that had been synced in it.
#[test]
fn a_version_that_arrives_and_is_written_spoils_no_copy() {
    let state = MemStore::new();
    let store = with_file(Some(&state));
    let elsewhere = store.crash(&mut |n| n - 1);
    let theirs = open_on(&elsewhere, Some(&MemStore::new())).unwrap();
    (0..3).for_each(|_| write_at(&theirs, b"file", 0, b"newer than ours").unwrap());
    theirs.close().unwrap();
    let vault = open_on(&store, Some(&state)).unwrap();
    write_at(&vault, b"file", 8192, &pattern(2, 4096)).unwrap();
    replaced_by_tool(&*store.root(), &elsewhere);
    overwrite(&vault, b"file", 100_000, b"more");
    let versions = [patched(&[]), patched(&[(8192, &pattern(2, 4096))])];
    for seed in 0..50 {
        let mut chance = chance(seed);
        let (after, state) = (store.crash(&mut |n| chance(n)), state.crash(&mut |_| 0));
        let files = files(&open_on(&after, Some(&state)).unwrap());
        let is_copy =
            |bytes: &Option<Vec<u8>>| bytes.as_ref().is_some_and(|bytes| versions.contains(bytes));
        assert!(files.iter().any(|(_, bytes)| is_copy(bytes)), "{seed}: {:?}", shown(&files));
    }
}

/// The same, if the copy could not be written by a replay, and a program wrote the newer version in
/// the mount that carried the copy's records.
#[test]
fn records_of_a_copy_outlive_a_commit_at_their_path() {
    for all_is_on_disk in [false, true] {
        let torn = torn(b"file", true);
        let theirs = open_on(&torn.elsewhere, Some(&MemStore::new())).unwrap();
        write_at(&theirs, b"file", 0, b"theirs").unwrap();
        write_at(&theirs, b"file", 0, b"newer than ours").unwrap();
        theirs.close().unwrap();
        let (root, state) = (torn.store.root(), torn.state.clone().unwrap());
        replaced_by_tool(&*root, &torn.elsewhere);
        let plan = FaultPlan::new();
        let (calls, errno) = (Calls::Of(Call::Write), libc::EIO);
        plan.add(Fault { calls, when: When::From(1), errno, short: false });
        let local = Some(Local { state: state.root(), path: "/copy".into() });
        let options = OpenOptions { local, ..OpenOptions::default() };
        let wrapped = FaultStore::wrap(root, plan.clone());
        let vault = Vault::open(wrapped, &owner(), options).unwrap();
        assert!(plan.failed() > 0);
        plan.heal();
        overwrite(&vault, b"file", 100_000, b"more");
        let mut choose = |n: usize| if all_is_on_disk { n - 1 } else { 0 };
        let (after, state) = (torn.store.crash(&mut choose), state.crash(&mut choose));
        let files = files(&open_on(&after, Some(&state)).unwrap());
        let is_ours = |bytes: &Option<Vec<u8>>| bytes.as_ref() == Some(&torn.wanted);
        let case = (all_is_on_disk, shown(&files));
        assert!(files.iter().any(|(_, bytes)| is_ours(bytes)), "{case:?}");
    }
}

/// One machine synced a change of a file, and after a power cut another one changed the file again,
/// while the first one's journal was still young. If the file could not be opened in the replay after
/// the next power cut, the records of both were carried in the wrong order. The mount after that
/// applied those of the first one only, and removed the journal.
#[test]
fn two_journals_of_one_file_are_carried_in_order() {
    let start = with_file(None);
    let vault = open_on(&start, None).unwrap();
    overwrite(&vault, b"file", 0, &pattern(2, 4096));
    let first = start.crash(&mut |_| 0);
    let root = first.root();
    let name = raw::named(&*root, b"+journal-").remove(0);
    root.rename(&name, &*root, FOREIGN, RenameMode::Replace).unwrap();
    let secs = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
    let now = SetTime::At(Timestamp { secs, nanos: 0 });
    root.set_times(FOREIGN, SetTime::Omit, now).unwrap();
    root.sync().unwrap();
    let vault = open_on(&first, None).unwrap();
    overwrite(&vault, b"file", 8192, &pattern(3, 4096));
    let second = first.crash(&mut |_| 0);
    let wanted = patched(&[(0, &pattern(2, 4096)), (8192, &pattern(3, 4096))]);
    let alone = open_on(&second.snapshot(), None).unwrap();
    assert!(get(&alone, b"file").unwrap() == wanted, "no call fails");

    let plan = FaultPlan::new();
    plan.forbid(&stored_file(&*second.root()));
    let vault = vaults::open(FaultStore::wrap(second.root(), plan)).unwrap();
    vault.close().unwrap();
    drop(vault);
    let vault = open_on(&second, None).unwrap();
    assert!(get(&vault, b"file").unwrap() == wanted);
}

/// A vault in which the record of `file` is not applied, with a copy of its journal if `copied`; and
/// the contents that the record completes.
fn with_journals(copied: bool) -> (MemStore, Vec<u8>) {
    let start = with_file(None);
    let vault = open_on(&start, None).unwrap();
    overwrite(&vault, b"file", 0, &pattern(2, 4096));
    let store = start.crash(&mut |_| 0);
    let root = store.root();
    if copied {
        let name = raw::named(&*root, b"+journal-").remove(0);
        let mut copy = name.clone();
        let last = copy.last_mut().unwrap();
        *last = if *last == b'0' { b'1' } else { b'0' };
        raw::write(&*root, &copy, &raw::read(&*root, &name));
        root.open_file(&copy, Access::ReadWrite).unwrap().sync_all().unwrap();
        root.sync().unwrap();
    }
    (store, patched(&[(0, &pattern(2, 4096))]))
}

/// Opens a vault in a moment in which no file can be flushed; the records are written after it.
fn open_without_flushes(store: &MemStore) -> Vault {
    let plan = FaultPlan::new();
    let (calls, errno) = (Calls::Of(Call::SyncAll), libc::EIO);
    plan.add(Fault { calls, when: When::From(1), errno, short: false });
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    assert!(plan.failed() > 0);
    plan.heal();
    vault
}

/// A mount kept the records of a file that it could not flush, and left a copy of their journal in the
/// vault. The next mount replayed the copy, and a time was undone that a program had set meanwhile.
#[test]
fn a_copied_journal_undoes_no_time() {
    for copied in [false, true] {
        let (store, wanted) = with_journals(copied);
        let vault = open_without_flushes(&store);
        let at = Timestamp { secs: 1_000_000, nanos: 0 };
        let set = SetAttr { mtime: SetTime::At(at), ..SetAttr::default() };
        vaults::at(&vault, b"file", |node| vault.setattr(node, &set)).unwrap();
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        vault.fsync(handle, false).unwrap();
        vault.release(handle).unwrap();
        vault.close().unwrap();
        drop(vault);
        assert_eq!(raw::named(&*store.root(), b"+journal-"), Vec::<Vec<u8>>::new());
        let vault = open_on(&store, None).unwrap();
        assert!(get(&vault, b"file").unwrap() == wanted);
        let mtime = vaults::at(&vault, b"file", |node| vault.getattr(node)).unwrap().mtime;
        assert_eq!(mtime, at, "copied: {copied}");
    }
}

/// The same copy made the file count as complete, while the journal with a later record could not be
/// applied: the bytes beyond the former end were cut, on which that record relied.
#[test]
fn a_copied_journal_cuts_no_appended_bytes() {
    for copied in [false, true] {
        let (store, _) = with_journals(copied);
        let vault = open_without_flushes(&store);
        vault.commit_due(Duration::ZERO);
        overwrite(&vault, b"file", LARGE as u64, &pattern(5, 400_000));
        let wanted = patched(&[(0, &pattern(2, 4096)), (LARGE, &pattern(5, 400_000))]);
        let after = store.crash(&mut |_| 0);
        for nth in 1..40 {
            let store = after.snapshot();
            let plan = FaultPlan::new();
            let (calls, errno) = (Calls::Of(Call::Write), libc::EIO);
            plan.add(Fault { calls, when: When::From(nth), errno, short: false });
            if let Ok(vault) = vaults::open(FaultStore::wrap(store.root(), plan.clone())) {
                plan.heal();
                // It fails if the records still wait.
                let _ = vault.close();
            }
            let vault = open_on(&store, None).unwrap();
            assert!(get(&vault, b"file").unwrap() == wanted, "copied: {copied}, write {nth}");
        }
    }
}

/// A vault that was never synced could not be opened if the user may not enter the directory in which
/// synced vaults have their journals, for instance because `sudo kithfs` had made it.
#[test]
fn a_foreign_state_directory_refuses_no_vault() {
    let (store, state) = (MemStore::new(), MemStore::new());
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    state.root().mkdir(b"synced", 0o700).unwrap();
    let plan = FaultPlan::new();
    plan.forbid(b"synced");
    let local = Local { state: FaultStore::wrap(state.root(), plan), path: "/copy".into() };
    let options = OpenOptions { local: Some(local), ..OpenOptions::default() };
    Vault::open(store.root(), &owner(), options).unwrap();
}

/// The storage host saved journals of different sessions, which all continue one version of a file. If it
/// showed all of them and let no file be opened, the records of each were kept in memory.
#[test]
fn kept_records_take_bounded_memory() {
    const LENGTH: usize = 8 << 20;
    let start = MemStore::new();
    vaults::create(&start.root(), Suite::Aes256Gcm, 12);
    let vault = open_on(&start, None).unwrap();
    put(&vault, b"file", &vec![0; LENGTH]).unwrap();
    overwrite(&vault, b"file", 0, b"x");
    vault.close().unwrap();
    let base = start.snapshot();
    for journals in 1..=17 {
        let session = start.snapshot();
        let vault = open_on(&session, None).unwrap();
        overwrite(&vault, b"file", 0, &pattern(journals, LENGTH));
        let root = session.crash(&mut |_| 0).root();
        let journal = raw::read(&*root, &raw::named(&*root, b"+journal-")[0]);
        let name = format!("+journal-elsewhere-{journals:016x}");
        raw::write(&*base.root(), name.as_bytes(), &journal);
        if ![15, 17].contains(&journals) {
            continue;
        }
        let store = base.snapshot();
        let plan = FaultPlan::new();
        plan.forbid(&stored_file(&*store.root()));
        let opened = vaults::open(FaultStore::wrap(store.root(), plan));
        let error = opened.err().map(|error| error.to_string());
        let is_refused = error.as_ref().is_some_and(|it| it.contains(TOO_MANY_JOURNALS));
        assert_eq!(is_refused, journals == 17, "{journals} journals: {error:?}");
    }
}

/// Asserts that a vault has a file with this name and these contents.
pub fn assert_has(vault: &Vault, name: &[u8], wanted: &[u8], case: &str) {
    let files = files(vault);
    let is_it = |(path, bytes): &(Vec<u8>, Option<Vec<u8>>)| {
        path == name && bytes.as_deref().is_some_and(|bytes| bytes == wanted)
    };
    assert!(files.iter().any(is_it), "{case}: {:?}", shown(&files));
}

/// Another program renamed an open file in the store, between two records of it. After a power cut the
/// replay took the paths for two files, and applied the second record alone to the renamed one: what
/// was synced before the rename was gone, and the file could not be read.
#[test]
fn a_file_renamed_between_two_records_gets_both() {
    let copy = [b"file", CONFLICT].concat();
    for (is_synced, arrives) in [(false, false), (false, true), (true, false), (true, true)] {
        let state = is_synced.then(MemStore::new);
        let store = with_file(state.as_ref());
        let elsewhere = store.crash(&mut |n| n - 1);
        let theirs = open_on(&elsewhere, Some(&MemStore::new())).unwrap();
        (0..4).for_each(|_| write_at(&theirs, b"file", 0, b"newer than ours").unwrap());
        theirs.close().unwrap();
        let vault = open_on(&store, state.as_ref()).unwrap();
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        vault.write(handle, 8192, &pattern(2, 4096), false).unwrap();
        vault.fsync(handle, false).unwrap();
        let root = store.root();
        replaced_by_tool(&*root, &elsewhere);
        if !arrives {
            root.unlink(&vault.cipher_path(b"file").unwrap()).unwrap();
            root.sync().unwrap();
        }
        vault.write(handle, 100_000, &pattern(3, 4096), false).unwrap();
        vault.fsync(handle, false).unwrap();
        let wanted = patched(&[(8192, &pattern(2, 4096)), (100_000, &pattern(3, 4096))]);
        for seed in 0..50 {
            let mut chance = chance(seed);
            let after = store.crash(&mut |n| chance(n));
            let state = state.as_ref().map(|state| state.crash(&mut |_| 0));
            let vault = open_on(&after, state.as_ref()).unwrap();
            assert_has(&vault, &copy, &wanted, &format!("{is_synced} {arrives} {seed}"));
        }
    }
}

/// A sync tool made a conflict copy of a file with a record, and put the version before that record back
/// at its path, where a program wrote to it. After a power cut the replay applied the copy's record to
/// that version, and the program's record to nothing, or to the copy.
#[test]
fn a_former_version_gets_its_own_record() {
    for is_synced in [false, true] {
        let state = is_synced.then(MemStore::new);
        let store = with_file(state.as_ref());
        let elsewhere = store.crash(&mut |n| n - 1);
        let vault = open_on(&store, state.as_ref()).unwrap();
        overwrite(&vault, b"file", 8192, &pattern(2, 4096));
        replaced_by_tool(&*store.root(), &elsewhere);
        overwrite(&vault, b"file", 100_000, b"more");
        for seed in 0..50 {
            let mut chance = chance(seed);
            let after = store.crash(&mut |n| if seed == 0 { 0 } else { chance(n) });
            let state = state.as_ref().map(|state| state.crash(&mut |_| 0));
            let vault = open_on(&after, state.as_ref()).unwrap();
            let case = format!("synced {is_synced}, {seed}");
            assert_has(&vault, b"file", &patched(&[(100_000, b"more")]), &case);
            let copy = [b"file", CONFLICT].concat();
            assert_has(&vault, &copy, &patched(&[(8192, &pattern(2, 4096))]), &case);
        }
    }
}

/// Flushes of a conflict copy and of the version at its path failed, and both had records of one path.
/// The checkpoint took them for those of one file: it wrote only the last record of the copy again, or
/// put records aside that it had written.
#[test]
fn a_failed_flush_rewrites_all_records_of_a_copy() {
    for continues in [false, true] {
        let store = with_file(None);
        let elsewhere = store.crash(&mut |n| n - 1);
        let theirs = open_on(&elsewhere, None).unwrap();
        (0..4).for_each(|_| write_at(&theirs, b"file", 0, b"newer than ours").unwrap());
        theirs.close().unwrap();
        let plan = FaultPlan::new();
        plan.lose_what_is_not_flushed();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        vault.write(handle, 8192, &pattern(2, 4096), false).unwrap();
        vault.fsync(handle, false).unwrap();
        replaced_by_tool(&*store.root(), &elsewhere);
        overwrite(&vault, b"file", 100_000, b"more");
        let later = pattern(3, 4096);
        let mut patches = vec![(8192, pattern(2, 4096))];
        if continues {
            vault.write(handle, 200_000, &later, false).unwrap();
            vault.fsync(handle, false).unwrap();
            patches.push((200_000, later));
        }
        let patches: Vec<_> = patches.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
        let (calls, errno) = (Calls::Of(Call::SyncData), libc::EIO);
        plan.reset();
        for nth in [1, 2] {
            plan.add(Fault { calls, when: When::Nth(nth), errno, short: false });
        }
        vault.flush_due(Duration::ZERO);
        assert_eq!(plan.failed(), 2);
        let after = store.crash(&mut |_| 0);
        let copy = [b"file", CONFLICT].concat();
        let case = format!("continues: {continues}");
        assert_has(&open_on(&after, None).unwrap(), &copy, &patched(&patches), &case);
        assert_eq!(raw::named(&*after.root(), b"+refused"), Vec::<Vec<u8>>::new(), "{case}");
    }
}

/// Flushes of new files failed while records waited for another file. The vault was closed without
/// writing again what the flushes had lost, or only up to the first file for which that failed. The next
/// mount took the rest from the page cache, and a program synced more after it. A power cut took both.
#[test]
fn lost_bytes_are_written_again_although_records_wait() {
    let store = with_file(None);
    let vault = open_on(&store, None).unwrap();
    put(&vault, b"other", &pattern(4, LARGE)).unwrap();
    overwrite(&vault, b"other", 0, b"x");
    let other = vault.cipher_path(b"other").unwrap();
    vault.close().unwrap();
    let vault = open_on(&store, None).unwrap();
    overwrite(&vault, b"other", 8192, &pattern(2, 4096));
    let start = store.crash(&mut |_| 0);
    let (news, errno) = ([b"new 1", b"new 2"], libc::EIO);
    for one_fails in [false, true] {
        let store = start.snapshot();
        let plan = FaultPlan::new();
        plan.lose_what_is_not_flushed();
        plan.forbid(&other);
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        let open = |name: &[u8; 5]| vaults::open_or_create(&vault, name, READ_WRITE).unwrap();
        let handles = news.map(|name| {
            let handle = open(name);
            vault.write(handle, 0, &pattern(5, LARGE), false).unwrap();
            handle
        });
        vault.commit_due(Duration::ZERO);
        plan.reset();
        for calls in [Calls::Of(Call::SyncData), Calls::Of(Call::SyncAll)] {
            plan.add(Fault { calls, when: When::From(1), errno, short: false });
        }
        vault.flush_due(Duration::ZERO);
        assert!(plan.failed() > 0);
        plan.heal();
        handles.into_iter().for_each(|handle| drop(vault.release(handle)));
        plan.reset();
        if one_fails {
            let calls = Calls::Of(Call::Seek);
            plan.add(Fault { calls, when: When::Nth(1), errno, short: false });
        }
        let _ = vault.close();
        assert_eq!(plan.failed(), u64::from(one_fails));
        drop(vault);
        let vault = open_on(&store, None).unwrap();
        news.into_iter().for_each(|name| overwrite(&vault, name, LARGE as u64, b"more"));
        let vault = open_on(&store.crash(&mut |_| 0), None).unwrap();
        let wanted = [&pattern(5, LARGE)[..], b"more"].concat();
        let whole = news.iter().filter(|name| get(&vault, &name[..]).is_ok_and(|it| it == wanted));
        assert_eq!(whole.count(), if one_fails { 1 } else { 2 }, "one fails: {one_fails}");
    }
}
