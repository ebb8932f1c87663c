//! Records of a file, and another version of it at its path: a sync tool has made the file a conflict
//! copy, and has put a newer or a former version there.

use std::time::Duration;

use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, Dir, RenameMode};
use kithfs::vault::{Local, OpenOptions, ROOT, RenameMode as VaultRename, SetAttr, Vault};

use crate::failing_replays::{LARGE, stored_file, torn};
use crate::support::cuts::chance;
use crate::support::raw;
use crate::support::vaults::{
    self, READ_WRITE, get, open_on, owner, pattern, put, rename, write_at,
};
use crate::waiting_records::{
    CONFLICT, assert_has, overwrite, patched, replaced_by_tool, with_file,
};

/// Opens a vault behind a plan, with the state directory of its machine if it is synced.
fn open_behind(
    plan: &std::sync::Arc<FaultPlan>,
    store: &MemStore,
    state: Option<&MemStore>,
) -> Result<Vault, kithfs::vault::Error> {
    let local = state.map(|state| Local { state: state.root(), path: "/copy".into() });
    let options = OpenOptions { local, ..OpenOptions::default() };
    Vault::open(FaultStore::wrap(store.root(), plan.clone()), &owner(), options)
}

/// Replays `after` with calls that fail, each once and from then on. `used` may look at the vault when the
/// store works again; `found` looks at it after the next replay.
fn with_failing_calls(
    after: &MemStore,
    state: Option<&MemStore>,
    used: impl Fn(&Vault, &str),
    found: impl Fn(&Vault, &str),
) {
    let (mut opened, mut failed) = (0, 0);
    for call in [
        Call::OpenDir,
        Call::OpenFile,
        Call::Stat,
        Call::List,
        Call::Read,
        Call::Write,
        Call::SyncAll,
        Call::SetTimes,
    ] {
        for nth in 1.. {
            let mut any = false;
            for when in [When::Nth(nth), When::From(nth)] {
                let case = format!("{call:?} {when:?}");
                let (store, state) = (after.snapshot(), state.map(MemStore::snapshot));
                let plan = FaultPlan::new();
                let calls = Calls::Of(call);
                plan.add(Fault { calls, when, errno: libc::EIO, short: false });
                let vault = open_behind(&plan, &store, state.as_ref());
                any |= plan.failed() > 0;
                failed += plan.failed();
                if let Ok(vault) = vault {
                    opened += usize::from(plan.failed() > 0);
                    plan.heal();
                    used(&vault, &case);
                    let _ = vault.close();
                }
                found(&open_on(&store, state.as_ref()).unwrap(), &case);
            }
            if !any {
                break;
            }
        }
    }
    assert!(opened > 15 && failed > 50, "{opened} opened, {failed} failed");
}

/// A file became a conflict copy, and the version before its record came back to its path, where a
/// program wrote to it. If the program's record could not be applied in the replay after a power cut, the
/// copy's record was applied to the program's file: at once, or when that file was opened. What the
/// program had synced was gone, and it read what it had never written.
#[test]
fn a_failed_record_leaves_its_file_to_no_former_one() {
    for (is_synced, has_births) in [(false, true), (true, true), (true, false)] {
        let state = is_synced.then(MemStore::new);
        let store = with_file(state.as_ref());
        if !has_births {
            store.hide_birth_times();
        }
        let elsewhere = store.crash(&mut |n| n - 1);
        let vault = open_on(&store, state.as_ref()).unwrap();
        overwrite(&vault, b"file", 8192, &pattern(2, 4096));
        replaced_by_tool(&*store.root(), &elsewhere);
        overwrite(&vault, b"file", 100_000, b"more");
        let wanted = patched(&[(100_000, b"more")]);
        let copy = [b"file", CONFLICT].concat();
        let after = store.crash(&mut |_| 0);
        let state = state.as_ref().map(|state| state.crash(&mut |_| 0));
        let used = |vault: &Vault, case: &str| {
            let read = get(vault, b"file").ok();
            assert!(read.is_none_or(|bytes| bytes == wanted), "{case}: former bytes");
        };
        with_failing_calls(&after, state.as_ref(), used, |vault, case| {
            assert_has(vault, b"file", &wanted, case);
            assert_has(vault, &copy, &patched(&[(8192, &pattern(2, 4096))]), case);
        });
    }
}

/// The background committed an append to an open file, of which only the journal's record was durable. A
/// sync tool made the file a conflict copy and put a former version at its path. The replay applied the
/// record to that version, which has none of the appended bytes: it could not be read any more, and the
/// append was lost, although all of it was in the copy.
#[test]
fn a_record_goes_to_the_file_that_has_its_bytes() {
    for has_births in [true, false] {
        let state = MemStore::new();
        let store = with_file(Some(&state));
        if !has_births {
            store.hide_birth_times();
        }
        let elsewhere = store.crash(&mut |n| n - 1);
        let vault = open_on(&store, Some(&state)).unwrap();
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        vault.write(handle, LARGE as u64, &pattern(5, 400_000), false).unwrap();
        vault.commit_due(Duration::ZERO);
        replaced_by_tool(&*store.root(), &elsewhere);
        // The background empties the journal of the vault after a second.
        let (store, state) = (store.snapshot(), state.snapshot());
        let copy = [b"file", CONFLICT].concat();
        let found = |vault: &Vault, case: &str| {
            assert_has(vault, &copy, &patched(&[(LARGE, &pattern(5, 400_000))]), case);
            assert_has(vault, b"file", &patched(&[]), case);
        };
        for seed in 0..50 {
            let mut chance = chance(seed);
            let after = store.crash(&mut |n| if seed == 0 { 0 } else { chance(n) });
            let vault = open_on(&after, Some(&state.crash(&mut |_| 0))).unwrap();
            found(&vault, &format!("births: {has_births}, seed {seed}"));
        }
        let (after, state) = (store.crash(&mut |_| 0), state.crash(&mut |_| 0));
        with_failing_calls(&after, Some(&state), |vault, _| drop(get(vault, b"file")), found);
    }
}

/// A conflict copy with a record had a former version at its path. A program lengthened that one, and the
/// power was cut. The replay put off the program's record, which relies on bytes beyond the end of the
/// file, and applied the copy's record to it.
#[test]
fn a_record_that_is_put_off_leaves_its_file_to_no_other() {
    for has_births in [true, false] {
        let state = MemStore::new();
        let store = with_file(Some(&state));
        if !has_births {
            store.hide_birth_times();
        }
        let elsewhere = store.crash(&mut |n| n - 1);
        let vault = open_on(&store, Some(&state)).unwrap();
        overwrite(&vault, b"file", 8192, &pattern(2, 4096));
        replaced_by_tool(&*store.root(), &elsewhere);
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        let longer = SetAttr { size: Some(3_000_000), ..SetAttr::default() };
        vaults::at(&vault, b"file", |node| vault.setattr(node, &longer)).unwrap();
        vault.commit_due(Duration::ZERO);
        let vault = open_on(&store.crash(&mut |_| 0), Some(&state.crash(&mut |_| 0))).unwrap();
        let mut wanted = patched(&[]);
        wanted.resize(3_000_000, 0);
        assert_has(&vault, b"file", &wanted, &format!("births: {has_births}, at the path"));
        let copy = [b"file", CONFLICT].concat();
        assert_has(&vault, &copy, &patched(&[(8192, &pattern(2, 4096))]), "the copy");
        let _ = handle;
    }
}

/// Puts the former version of `elsewhere` at a path, as a restored backup does. All of it is on the disk
/// then.
fn restore(root: &dyn Dir, path: &[u8], elsewhere: &MemStore) {
    root.unlink(path).unwrap();
    raw::write(root, path, &raw::read(&*elsewhere.root(), &stored_file(&*elsewhere.root())));
    root.open_file(path, Access::ReadWrite).unwrap().sync_all().unwrap();
    root.sync().unwrap();
}

/// Records of a file named two hard links, and another program put a former version at the last one. After
/// a power cut both got the records, because their headers match: the former version was overwritten.
#[test]
fn a_former_version_at_one_of_two_links_stays() {
    let store = with_file(None);
    let elsewhere = store.crash(&mut |n| n - 1);
    let vault = open_on(&store, None).unwrap();
    overwrite(&vault, b"file", 8192, &pattern(2, 4096));
    vaults::at(&vault, b"file", |node| vault.link(node, ROOT, b"other")).unwrap();
    overwrite(&vault, b"other", 100_000, b"more");
    restore(&*store.root(), &vault.cipher_path(b"other").unwrap(), &elsewhere);
    let vault = open_on(&store.crash(&mut |_| 0), None).unwrap();
    let wanted = patched(&[(8192, &pattern(2, 4096)), (100_000, b"more")]);
    assert_has(&vault, b"file", &wanted, "the file");
    assert_has(&vault, b"other", &patched(&[]), "the former version");
}

/// The power was cut while the journal had a record of a file. Before the vault was mounted again, its
/// owner restored the former version of the file. The record matched its header, and the replay wrote
/// over it what had been undone.
#[test]
fn a_version_that_was_restored_after_a_crash_stays() {
    for is_synced in [false, true] {
        let state = is_synced.then(MemStore::new);
        let store = with_file(state.as_ref());
        let elsewhere = store.crash(&mut |n| n - 1);
        let vault = open_on(&store, state.as_ref()).unwrap();
        overwrite(&vault, b"file", 8192, &pattern(2, 4096));
        let between = store.crash(&mut |n| n - 1);
        overwrite(&vault, b"file", 100_000, b"more");
        let all = store.crash(&mut |n| n - 1);
        let state = state.as_ref().map(|state| state.crash(&mut |n| n - 1));
        let first = (8192, &pattern(2, 4096)[..]);
        for (version, wanted) in [(&elsewhere, patched(&[])), (&between, patched(&[first]))] {
            let (after, state) = (all.snapshot(), state.as_ref().map(MemStore::snapshot));
            let root = after.root();
            restore(&*root, &stored_file(&*root), version);
            for _ in 0..2 {
                let vault = open_on(&after, state.as_ref()).unwrap();
                assert_has(&vault, b"file", &wanted, "the restored version");
                vault.close().unwrap();
            }
            let refused = raw::named(&*root, b"+refused").len();
            assert_eq!(refused, usize::from(!is_synced), "what was undone is kept");
        }
    }
}

/// A file had a hole, and a program filled a part of it. The background committed one more change. A sync
/// tool made the file a conflict copy and put the former version at its path, and the power was cut. That
/// version has the length of the other one, so it got the records, but not the bytes in the hole: neither
/// could be read.
#[test]
fn a_former_version_with_a_hole_gets_no_records() {
    const SIZE: usize = 3_000_000;
    let state = MemStore::new();
    let store = with_file(Some(&state));
    let vault = open_on(&store, Some(&state)).unwrap();
    let longer = SetAttr { size: Some(SIZE as u64), ..SetAttr::default() };
    vaults::at(&vault, b"file", |node| vault.setattr(node, &longer)).unwrap();
    vault.close().unwrap();
    let elsewhere = store.crash(&mut |n| n - 1);
    let vault = open_on(&store, Some(&state)).unwrap();
    overwrite(&vault, b"file", 1_000_000, &pattern(5, 400_000));
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 8192, &pattern(2, 4096), false).unwrap();
    vault.commit_due(Duration::ZERO);
    replaced_by_tool(&*store.root(), &elsewhere);
    let (mut former, mut wanted) = (patched(&[]), patched(&[(1_000_000, &pattern(5, 400_000))]));
    former.resize(SIZE, 0);
    wanted.resize(SIZE, 0);
    wanted[8192..8192 + 4096].copy_from_slice(&pattern(2, 4096));
    let copy = [b"file", CONFLICT].concat();
    for seed in 0..20 {
        let mut chance = chance(seed);
        let after = store.crash(&mut |n| if seed == 0 { 0 } else { chance(n) });
        let vault = open_on(&after, Some(&state.crash(&mut |_| 0))).unwrap();
        assert_has(&vault, &copy, &wanted, &format!("seed {seed}: the copy"));
        assert_has(&vault, b"file", &former, &format!("seed {seed}: the former version"));
    }
}

/// After a crash, a tool kept our version as a copy, and put a newer one at its path. The copy has another
/// birth time than the record, and the newer version counted as settling it: the record was dropped, with
/// what had been synced.
#[test]
fn a_newer_version_settles_no_records_of_a_copied_file() {
    let store = with_file(None);
    let elsewhere = store.crash(&mut |n| n - 1);
    let theirs = open_on(&elsewhere, None).unwrap();
    (0..4).for_each(|_| write_at(&theirs, b"file", 0, b"newer than ours").unwrap());
    theirs.close().unwrap();
    let vault = open_on(&store, None).unwrap();
    overwrite(&vault, b"file", 8192, &pattern(2, 4096));
    let after = store.crash(&mut |_| 0);
    let root = after.root();
    let stored = stored_file(&*root);
    raw::write(&*root, &[&stored[..], CONFLICT].concat(), &raw::read(&*root, &stored));
    restore(&*root, &stored, &elsewhere);
    open_on(&after, None).unwrap().close().unwrap();
    assert_eq!(raw::named(&*root, b"+refused").len(), 1);
}

/// A copy of a small file was half written: its header was the former one, and its data, which is sealed
/// with the header, was new. All of both is in one patch, so nothing told that writing had begun.
#[test]
fn a_half_written_copy_of_a_small_file_is_completed() {
    let store = with_file(None);
    let vault = open_on(&store, None).unwrap();
    put(&vault, b"file", &pattern(1, 3000)).unwrap();
    overwrite(&vault, b"file", 0, b"x");
    vault.close().unwrap();
    let elsewhere = store.crash(&mut |n| n - 1);
    let vault = open_on(&store, None).unwrap();
    overwrite(&vault, b"file", 2000, b"more");
    let after = store.crash(&mut |n| n - 1);
    let root = after.root();
    let stored = stored_file(&*root);
    let (old, new) = (raw::read(&*elsewhere.root(), &stored), raw::read(&*root, &stored));
    root.unlink(&stored).unwrap();
    raw::write(&*root, &stored, &[&old[..512], &new[512..]].concat());
    let mut wanted = pattern(1, 3000);
    wanted[0] = b'x';
    wanted[2000..2004].copy_from_slice(b"more");
    assert_has(&open_on(&after, None).unwrap(), b"file", &wanted, "the copy");
}

/// The attributes of a file could not be looked at during a commit. What programs had written was dropped
/// from memory, and the next fsync succeeded without it.
#[test]
fn a_failed_look_at_a_file_drops_nothing_written() {
    let store = with_file(None);
    for nth in 1.. {
        let plan = FaultPlan::new();
        let vault = open_behind(&plan, &store, None).unwrap();
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        vault.write(handle, 0, b"y", false).unwrap();
        vault.fsync(handle, false).unwrap();
        vault.write(handle, 8192, &pattern(2, 4096), false).unwrap();
        plan.reset();
        let (calls, errno) = (Calls::Of(Call::Stat), libc::ENFILE);
        plan.add(Fault { calls, when: When::Nth(nth), errno, short: false });
        let first = vault.fsync(handle, false);
        let failed = plan.failed();
        plan.heal();
        let second = vault.fsync(handle, false);
        let case = format!("call {nth}: {first:?}, {second:?}");
        if second.is_ok() {
            let after = open_on(&store.crash(&mut |_| 0), None).unwrap();
            let wanted = patched(&[(0, b"y"), (8192, &pattern(2, 4096))]);
            assert_has(&after, b"file", &wanted, &case);
        }
        let _ = vault.release(handle);
        vault.close().unwrap();
        if failed == 0 {
            break;
        }
        let vault = open_on(&store, None).unwrap();
        overwrite(&vault, b"file", 8192, &pattern(1, LARGE)[8192..12_288]);
        vault.close().unwrap();
    }
}

/// In a copy of the store all files have other birth times than in the records, as has the journal. The
/// records are applied all the same.
#[test]
fn a_replay_completes_a_copy_of_the_vault() {
    let torn = torn(b"file", false);
    let copied = MemStore::new();
    for name in raw::names(&*torn.store.root()) {
        raw::write(&*copied.root(), &name, &raw::read(&*torn.store.root(), &name));
    }
    assert_has(&open_on(&copied, None).unwrap(), b"file", &torn.wanted, "the copy");
}

/// A file had a record that could not be applied, and another program overwrote it in place with a newer
/// version. The checkpoint took the records for applied, and dropped them without a word.
#[test]
fn records_of_an_overwritten_file_are_put_aside() {
    let store = with_file(None);
    let elsewhere = store.crash(&mut |n| n - 1);
    let theirs = open_on(&elsewhere, None).unwrap();
    (0..4).for_each(|_| write_at(&theirs, b"file", 0, b"newer than ours").unwrap());
    theirs.close().unwrap();
    let plan = FaultPlan::new();
    let vault = open_behind(&plan, &store, None).unwrap();
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 0, b"y", false).unwrap();
    vault.fsync(handle, false).unwrap();
    plan.reset();
    // The first write is that of the record.
    let (calls, errno) = (Calls::Of(Call::Write), libc::EIO);
    plan.add(Fault { calls, when: When::Nth(3), errno, short: false });
    vault.write(handle, 8192, &pattern(2, 4096), false).unwrap();
    vault.fsync(handle, false).unwrap_err();
    let root = store.root();
    let stored = stored_file(&*root);
    let newer = raw::read(&*elsewhere.root(), &stored);
    root.open_file(&stored, Access::ReadWrite).unwrap().write_at(&newer, 0).unwrap();
    let _ = vault.release(handle);
    let _ = vault.close();
    assert_eq!(raw::named(&*root, b"+refused").len(), 1);
}

/// A conflict copy could not be written in a replay, and a program gave it another name. At the next
/// mount the newer version at the records' path counted as that file, and the records were dropped
/// without a word. The copy stayed half written.
#[test]
fn a_renamed_conflict_copy_gets_its_records() {
    let torn = torn(b"file", true);
    let theirs = open_on(&torn.elsewhere, Some(&MemStore::new())).unwrap();
    write_at(&theirs, b"file", 0, b"theirs").unwrap();
    write_at(&theirs, b"file", 0, b"newer than ours").unwrap();
    theirs.close().unwrap();
    let (root, state) = (torn.store.root(), torn.state.clone().unwrap());
    let stored = stored_file(&*root);
    let copy = [&stored[..], CONFLICT].concat();
    root.rename(&stored, &*root, &copy, RenameMode::Replace).unwrap();
    raw::write(&*root, &stored, &raw::read(&*torn.elsewhere.root(), &stored));
    let plan = FaultPlan::new();
    let (calls, errno) = (Calls::Of(Call::Write), libc::EIO);
    plan.add(Fault { calls, when: When::From(1), errno, short: false });
    let vault = open_behind(&plan, &torn.store, Some(&state)).unwrap();
    assert!(plan.failed() > 0);
    plan.heal();
    let copy = [b"file", CONFLICT].concat();
    rename(&vault, &copy, b"kept", VaultRename::NoReplace).unwrap();
    let _ = vault.close();
    drop(vault);
    let found = |vault: &Vault, case: &str| assert_has(vault, b"kept", &torn.wanted, case);
    // Also if the search cannot look at everything.
    with_failing_calls(&torn.store, Some(&state), |_, _| {}, found);
}

/// A record could not be applied. A sync tool then made the file a conflict copy and put the version
/// between its two records back at its path, where a program wrote to it. The checkpoint wrote the
/// program's record to the copy, because its header matched, and dropped the copy's own.
#[test]
fn a_broken_file_gets_its_own_records() {
    let store = with_file(None);
    let plan = FaultPlan::new();
    let vault = open_behind(&plan, &store, None).unwrap();
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 8192, &pattern(2, 4096), false).unwrap();
    vault.fsync(handle, false).unwrap();
    let elsewhere = store.crash(&mut |n| n - 1);
    let between = open_on(&elsewhere, None).unwrap();
    between.close().unwrap();
    plan.reset();
    // The first write is that of the record.
    let (calls, errno) = (Calls::Of(Call::Write), libc::EIO);
    plan.add(Fault { calls, when: When::Nth(3), errno, short: false });
    vault.write(handle, 200_000, &pattern(3, 4096), false).unwrap();
    vault.fsync(handle, false).unwrap_err();
    assert_eq!(plan.failed(), 1);
    replaced_by_tool(&*store.root(), &elsewhere);
    overwrite(&vault, b"file", 100_000, b"more");
    vault.release(handle).unwrap_err();
    let _ = vault.close();
    drop(vault);
    let vault = open_on(&store, None).unwrap();
    let copy = [b"file", CONFLICT].concat();
    let first = (8192, &pattern(2, 4096)[..]);
    assert_has(&vault, &copy, &patched(&[first, (200_000, &pattern(3, 4096))]), "the copy");
    assert_has(&vault, b"file", &patched(&[first, (100_000, b"more")]), "the version at the path");
    assert!(get(&vault, b"file").is_ok());
}

/// A renamed conflict copy, with a newer version at its former path, was in a place that this user may
/// not see. The records counted as settled by the newer version, and were dropped without a word.
#[test]
fn records_of_a_file_that_may_be_hidden_are_put_aside() {
    let torn = torn(b"file", true);
    let theirs = open_on(&torn.elsewhere, Some(&MemStore::new())).unwrap();
    write_at(&theirs, b"file", 0, b"theirs").unwrap();
    write_at(&theirs, b"file", 0, b"newer than ours").unwrap();
    let (root, state) = (torn.store.root(), torn.state.clone().unwrap());
    let stored = stored_file(&*root);
    let newer = raw::read(&*torn.elsewhere.root(), &stored);
    rename(&theirs, b"file", b"kept", VaultRename::NoReplace).unwrap();
    let kept = theirs.cipher_path(b"kept").unwrap();
    theirs.close().unwrap();
    root.rename(&stored, &*root, &kept, RenameMode::Replace).unwrap();
    raw::write(&*root, &stored, &newer);
    let plan = FaultPlan::new();
    plan.forbid(&kept);
    open_behind(&plan, &torn.store, Some(&state)).unwrap().close().unwrap();
    // Below `synced`, each share has a directory, and in it each copy of the vault has one.
    let below = |dir: std::sync::Arc<dyn Dir>| dir.open_dir(&raw::names(&*dir)[0]).unwrap();
    let copy = below(below(state.root().open_dir(b"synced").unwrap()));
    assert_eq!(raw::named(&*copy, b"+refused").len(), 1);
}

/// An open file was renamed in the store between two of its records, and another file came to its former
/// path that could not be opened. The file was complete, and could not be opened either.
#[test]
fn a_file_at_a_former_path_refuses_no_complete_one() {
    let store = with_file(None);
    let elsewhere = store.crash(&mut |n| n - 1);
    let vault = open_on(&store, None).unwrap();
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 8192, &pattern(2, 4096), false).unwrap();
    vault.fsync(handle, false).unwrap();
    replaced_by_tool(&*store.root(), &elsewhere);
    vault.write(handle, 100_000, b"more", false).unwrap();
    vault.fsync(handle, false).unwrap();
    let plan = FaultPlan::new();
    plan.forbid(&vault.cipher_path(b"file").unwrap());
    let vault = open_behind(&plan, &store.crash(&mut |_| 0), None).unwrap();
    let wanted = patched(&[(8192, &pattern(2, 4096)), (100_000, b"more")]);
    assert_has(&vault, &[b"file", CONFLICT].concat(), &wanted, "the renamed file");
}
