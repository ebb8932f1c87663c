//! Delayed work: records that could not be written yet, changes that are not committed
//! yet, and the limits on them.

use std::sync::mpsc;
use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, SetTime, Timestamp};
use kithfs::vault::{OpenFlags, OpenOptions, ROOT, RenameMode, SetAttr, Vault};

use crate::support::vaults::{self, READ_WRITE, Seeded, get, pattern, put, rename};

fn store() -> MemStore {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    store
}

fn synced(vault: &Vault, path: &[u8], bytes: &[u8]) {
    let handle = vaults::open_or_create(vault, path, READ_WRITE).unwrap();
    vault.write(handle, 0, bytes, false).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.release(handle).unwrap();
}

fn patched(mut bytes: Vec<u8>, offset: usize, patch: &[u8]) -> Vec<u8> {
    bytes[offset..offset + patch.len()].copy_from_slice(patch);
    bytes
}

fn control_files(store: &MemStore, prefix: &[u8]) -> usize {
    store.root().read(0, 1 << 20).unwrap().iter().filter(|e| e.name.starts_with(prefix)).count()
}

fn fail(plan: &FaultPlan, call: Call, nth: u64) {
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(call),
        when: When::Nth(nth),
        errno: libc::EIO,
        short: false,
    });
}

/// Opens a vault with a file whose last record is durable and could not be applied. Returns it with
/// the contents that the file should have.
fn with_broken_file(store: &MemStore, plan: &std::sync::Arc<FaultPlan>) -> (Vault, Vec<u8>) {
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    synced(&vault, b"file", &pattern(1, 40_000));
    synced(&vault, b"other", &pattern(2, 100));
    synced(&vault, b"file", b"the journal is there");
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 8192, &pattern(3, 4096), false).unwrap();
    fail(plan, Call::Write, 2); // the first is that of the record
    assert_eq!(vault.fsync(handle, false).unwrap_err().errno(), libc::EIO);
    let _ = vault.release(handle);
    plan.reset();
    let now =
        patched(patched(pattern(1, 40_000), 0, b"the journal is there"), 8192, &pattern(3, 4096));
    (vault, now)
}

#[test]
fn records_that_fit_their_file_no_longer_are_kept() {
    // A file with records that could not be applied was exchanged in the store: at the next
    // checkpoint the records did not fit it, and were silently dropped.
    let (store, plan) = (store(), FaultPlan::new());
    let (vault, _) = with_broken_file(&store, &plan);
    let stored = vault.cipher_path(b"file").unwrap();
    let file = store.root().open_file(&stored, Access::ReadWrite).unwrap();
    file.set_len(0).unwrap();
    file.write_at(&[7; 9000], 0).unwrap();
    vault.close().unwrap();
    assert_eq!((control_files(&store, b"+journal-"), control_files(&store, b"+refused-")), (0, 1));
    let again = vaults::open(store.root()).unwrap();
    assert_eq!(get(&again, b"file").unwrap_err().errno(), libc::EIO);
    assert!(get(&again, b"other").unwrap() == pattern(2, 100));
    assert!(vaults::faults(&again).iter().any(|fault| {
        fault.contains("is a journal with changes to files that did not match them")
    }));
}

#[test]
fn a_truncation_that_fails_leaves_the_records_of_the_file() {
    // The journal forgot the records of a file that was about to be truncated; the truncation
    // failed, and acknowledged data was lost.
    let truncate = OpenFlags { truncate: true, ..READ_WRITE };
    for (call, nth) in [(Call::Read, 1), (Call::Write, 1)] {
        let (store, plan) = (store(), FaultPlan::new());
        let (vault, now) = with_broken_file(&store, &plan);
        fail(&plan, call, nth);
        let refused = vaults::open_or_create(&vault, b"file", truncate);
        assert!(refused.is_err() && plan.failed() == 1, "{call:?}");
        plan.reset();
        assert!(get(&vault, b"file").unwrap() == now, "{call:?}: repaired when it is opened again");
        vault.close().unwrap();
        assert!(get(&vaults::open(store.root()).unwrap(), b"file").unwrap() == now, "{call:?}");
    }
    // A truncation that succeeds needs none of them.
    let (store, plan) = (store(), FaultPlan::new());
    let (vault, _) = with_broken_file(&store, &plan);
    put(&vault, b"file", b"new").unwrap();
    vault.close().unwrap();
    assert_eq!((control_files(&store, b"+journal-"), control_files(&store, b"+refused-")), (0, 0));
    assert_eq!(get(&vaults::open(store.root()).unwrap(), b"file").unwrap(), b"new");
}

/// A truncation failed before its commit, and the records of the file stayed suspended: a rename did not
/// wait for them, and after a crash they found no file at their path.
#[test]
fn a_truncation_that_fails_at_any_call_leaves_the_records() {
    let truncate = OpenFlags { truncate: true, ..READ_WRITE };
    let mut kept = 0;
    for call in
        [Call::Read, Call::Write, Call::CreateFile, Call::SyncData, Call::Stat, Call::Unlink]
    {
        for (nth, by_open) in (1..).flat_map(|nth| [(nth, true), (nth, false)]) {
            let (store, plan) = (store(), FaultPlan::new());
            let (vault, now) = with_broken_file(&store, &plan);
            plan.add(Fault {
                calls: Calls::Of(call),
                when: When::From(nth),
                errno: libc::ENOSPC,
                short: false,
            });
            let opened = match by_open {
                true => vaults::open_or_create(&vault, b"file", truncate).map(drop),
                false => vaults::at(&vault, b"file", |node| {
                    vault.setattr(node, &SetAttr { size: Some(0), ..SetAttr::default() }).map(drop)
                }),
            };
            let failed = plan.failed();
            plan.reset();
            if opened.is_err() {
                let _ = vaults::rename(&vault, b"file", b"renamed", RenameMode::NoReplace);
                let after = vaults::open(store.snapshot().root()).unwrap();
                let found = get(&after, b"renamed").or_else(|_| get(&after, b"file"));
                let found = found.unwrap_or_else(|error| panic!("{call:?} from {nth}: {error}"));
                // Empty if only a call after the truncation failed.
                assert!(found == now || found.is_empty(), "{call:?} from {nth}");
                kept += usize::from(found == now);
            }
            if failed == 0 && !by_open {
                break;
            }
        }
    }
    assert!(kept > 5, "{kept}");
}

#[test]
fn a_file_written_without_a_pause_is_committed() {
    // The background skipped a file that was locked at that moment. So a file that was written to
    // without a pause was never committed.
    let store = store();
    let vault = vaults::open(store.root()).unwrap();
    synced(&vault, b"file", &pattern(1, 40_000));
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 0, &pattern(2, 4096), false).unwrap();
    // A write that appends has its fresh bytes written at once, and holds the file's lock
    // meanwhile. Here that lasts until the background has given up, or 200 ms.
    let (began, has_begun) = mpsc::channel();
    let (gave_up, has_given_up) = mpsc::channel::<()>();
    let first = parking_lot::Mutex::new(Some((began, has_given_up)));
    store.on_event(Box::new(move |event| {
        if event.call == Call::Write
            && let Some((began, has_given_up)) = first.lock().take()
        {
            began.send(()).unwrap();
            let _ = has_given_up.recv_timeout(Duration::from_millis(200));
        }
    }));
    std::thread::scope(|scope| {
        scope.spawn(|| vault.write(handle, 40_000, &pattern(3, 300_000), false).unwrap());
        has_begun.recv_timeout(Duration::from_secs(60)).expect("the write begins");
        vault.commit_due(Duration::ZERO);
        let _ = gave_up.send(());
    });
    store.on_event(Box::new(|_| {}));
    let died = get(&vaults::open(store.snapshot().root()).unwrap(), b"file").unwrap();
    assert!(died[..4096] == pattern(2, 4096), "the background committed the file");
    vault.release(handle).unwrap();
}

#[test]
fn dirty_data_of_many_files_stays_within_the_vaults_limit() {
    // Each open file could hold 8 MiB of changes: with some hundreds of them the daemon was killed
    // for lack of memory.
    const MAX: usize = 2 << 20;
    let store = store();
    let options = OpenOptions { cache_bytes: MAX, ..OpenOptions::default() };
    let vault = Vault::open(store.root(), &vaults::owner(), options).unwrap();
    let (files, len) = (16, 512 << 10);
    let names: Vec<Vec<u8>> = (0..files).map(|n| format!("file {n}").into_bytes()).collect();
    names.iter().for_each(|name| synced(&vault, name, &pattern(1, len)));
    let handles: Vec<u64> = names
        .iter()
        .map(|name| vaults::open_or_create(&vault, name, READ_WRITE).unwrap())
        .collect();
    let mut most = 0;
    for round in 0..4 {
        for handle in &handles {
            let part = len / 4;
            vault
                .write(*handle, (round * part) as u64, &pattern(2 + round as u64, part), false)
                .unwrap();
            most = most.max(vault.uncommitted_bytes());
        }
    }
    assert!(most > MAX / 2, "too few changes wait: {most}");
    assert!(most <= MAX + (1 << 20), "{most} bytes");
    handles.into_iter().for_each(|handle| vault.release(handle).unwrap());
    assert_eq!(vault.uncommitted_bytes(), 0);
    let wanted: Vec<u8> = (0..4).flat_map(|round| pattern(2 + round, len / 4)).collect();
    assert!(names.iter().all(|name| get(&vault, name).unwrap() == wanted));
}

/// Crashes a store in 60 ways. Returns the contents of `path` after each crash that has left the
/// file's name without a byte.
fn without_bytes(store: &MemStore, stored: &[u8], path: &[u8]) -> Vec<Result<Vec<u8>, i32>> {
    let mut found = Vec::new();
    for way in 0..60 {
        let random = Seeded::new(way + 1);
        let crashed = store.crash(&mut |n| {
            if random.below(3) > 0 { n - 1 } else { random.below(n as u64) as usize }
        });
        let mut dir = crashed.root();
        let (parents, name) = vaults::split(stored);
        for parent in parents.split(|b| *b == b'/').filter(|p| !p.is_empty()) {
            let Ok(below) = dir.open_dir(parent) else { break };
            dir = below;
        }
        if dir.stat(name).is_ok_and(|stat| stat.size == 0) {
            let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
            let shown =
                get(&Vault::open(crashed.root(), &vaults::owner(), read_only).unwrap(), path)
                    .map_err(|e| e.errno());
            let vault = vaults::open(crashed.root()).unwrap();
            let replayed = get(&vault, path).map_err(|e| e.errno());
            assert_eq!(shown, replayed, "a vault opened for reading shows what a replay makes");
            if replayed.is_ok() {
                put(&vault, path, b"it can be used").unwrap();
            }
            vault.close().unwrap();
            assert_eq!(
                control_files(&crashed, b"+created-") + control_files(&crashed, b"+refused-"),
                0
            );
            found.push(replayed);
        }
    }
    found
}

#[test]
fn an_unsynced_new_file_is_empty_after_a_power_cut() {
    // The store kept the name and lost the header: the file failed with EIO, while a plain disk
    // shows it empty. A database with a side file that it never syncs could not be opened any more.
    let store = store();
    let vault = vaults::open(store.root()).unwrap();
    vaults::mkdir(&vault, b"dir").unwrap();
    for path in [&b"empty"[..], b"dir/written", b"old name", b"gone"] {
        put(&vault, path, if path == b"dir/written" { b"bytes that nobody synced" } else { b"" })
            .unwrap();
    }
    vault.commit_due(Duration::ZERO);
    rename(&vault, b"old name", b"new name", kithfs::vault::RenameMode::Replace).unwrap();
    rename(&vault, b"dir", b"renamed", kithfs::vault::RenameMode::Replace).unwrap();
    vaults::at(&vault, b"", |root| vault.unlink(root, b"gone")).unwrap();
    vault.commit_due(Duration::ZERO);
    for path in [&b"empty"[..], b"renamed/written", b"new name"] {
        let found = without_bytes(&store, &vault.cipher_path(path).unwrap(), path);
        assert!(!found.is_empty(), "{}: names outlive bytes in this store", path.escape_ascii());
        assert!(
            found.iter().all(|f| f.as_ref().is_ok_and(|bytes| bytes.is_empty())),
            "{}: {found:?}",
            path.escape_ascii()
        );
    }
    vault.close().unwrap();
    assert_eq!(control_files(&store, b"+created-"), 0);
}

#[test]
fn a_synced_file_that_is_cut_off_is_never_shown_as_empty() {
    // The creation records still exist. The first file was synced, another file took the name of
    // the second one, and the third one was removed and made anew.
    let store = store();
    let vault = vaults::open(store.root()).unwrap();
    for path in [&b"synced"[..], b"replaced", b"made anew", b"source"] {
        put(&vault, path, b"first").unwrap();
    }
    vault.commit_due(Duration::ZERO);
    synced(&vault, b"synced", b"durable");
    rename(&vault, b"source", b"replaced", kithfs::vault::RenameMode::Replace).unwrap();
    vaults::at(&vault, b"", |root| vault.unlink(root, b"made anew")).unwrap();
    synced(&vault, b"made anew", b"durable");
    vault.commit_due(Duration::ZERO);
    let stored: Vec<Vec<u8>> = [&b"synced"[..], b"replaced", b"made anew"]
        .iter()
        .map(|path| vault.cipher_path(path).unwrap())
        .collect();
    let crashed = store.snapshot();
    assert_eq!(control_files(&crashed, b"+created-"), 1);
    for (path, stored) in [&b"synced"[..], b"replaced", b"made anew"].iter().zip(&stored) {
        let attacked = crashed.snapshot();
        attacked.root().open_file(stored, Access::ReadWrite).unwrap().set_len(0).unwrap();
        let vault = vaults::open(attacked.root()).unwrap();
        assert_eq!(
            get(&vault, path).map_err(|e| e.errno()),
            Err(libc::EIO),
            "{}",
            path.escape_ascii()
        );
    }
    vault.close().unwrap();
    let vault = vaults::open(store.root()).unwrap();
    assert_eq!(get(&vault, b"synced").unwrap(), b"durable");
}

/// After a power cut a name could exist without a byte, and the program that had created the file
/// could not open it to start again: SQLite failed until its `-shm` was deleted. Such a file can be
/// opened for writing now, and only a truncation by the program has an effect, because a synced
/// file that was cut off looks the same.
#[test]
fn a_file_of_no_bytes_waits_for_the_program_to_truncate_it() {
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    for (truncated_to, wanted) in [(0, &b""[..]), (3, &[0; 3]), (9000, &[0; 9000])] {
        let store = store();
        let vault = vaults::open(store.root()).unwrap();
        synced(&vault, b"file", b"durable");
        let stored = vault.cipher_path(b"file").unwrap();
        vault.close().unwrap();
        store.root().open_file(&stored, Access::ReadWrite).unwrap().set_len(0).unwrap();
        let length = || store.root().stat(&stored).unwrap().size;

        let vault = vaults::open(store.root()).unwrap();
        assert_eq!(
            get(&vault, b"file").map_err(|e| e.errno()),
            Err(libc::EIO),
            "a reader is not shown an empty file"
        );
        let node = vault.resolve(b"file").unwrap().node;
        let opened = vault.open_file(node, READ_WRITE).unwrap();
        let handle = opened.handle;
        assert!(opened.direct, "the kernel must not collect writes");
        let refused = |outcome: Result<(), kithfs::vault::Error>| {
            assert_eq!(outcome.map_err(|e| e.errno()), Err(libc::EIO))
        };
        refused(vault.read(handle, 0, &mut [0; 10]).map(drop));
        refused(vault.write(handle, 0, b"more", false));
        refused(vault.fsync(handle, false));
        refused(vault.seek_data_hole(handle, 0, kithfs::store::Seek::Data).map(drop));
        refused(vault.fallocate(
            handle,
            0,
            100,
            kithfs::vault::Fallocate::Allocate { keep_size: false },
        ));
        refused(vault.fallocate(handle, 0, 100, kithfs::vault::Fallocate::PunchHole));
        // Another opener gets the same error meanwhile, and its close writes nothing.
        let other =
            vault.open_file(node, OpenFlags { read: true, ..OpenFlags::default() }).unwrap().handle;
        refused(vault.read(other, 0, &mut [0; 10]).map(drop));
        assert_eq!(vault.check(b"", &mut |_| {}).unwrap().faults.len(), 1);
        vault.release(other).unwrap();
        vault.flush(handle).unwrap();
        vault.commit_due(Duration::ZERO);
        vault.release(handle).unwrap();
        vault.open_file(node, READ_WRITE).unwrap();
        vault.close().unwrap();
        assert_eq!(length(), 0);

        let vault = vaults::open(store.root()).unwrap();
        let node = vault.resolve(b"file").unwrap().node;
        let handle = vault.open_file(node, READ_WRITE).unwrap().handle;
        vault.setattr(node, &size(truncated_to)).unwrap();
        vault.fsync(handle, false).unwrap();
        let mut found = vec![1; 10_000];
        let read = vault.read(handle, 0, &mut found).unwrap();
        assert_eq!(&found[..read], wanted);
        vault.write(handle, truncated_to, b"and more", false).unwrap();
        vault.release(handle).unwrap();
        vault.close().unwrap();
        let vault = vaults::open(store.root()).unwrap();
        assert_eq!(get(&vault, b"file").unwrap(), [wanted, b"and more"].concat());
        assert_eq!(vaults::faults(&vault), Vec::<String>::new());
    }
}

/// A truncation that the store refuses leaves a file without bytes unchanged: it must not be shown
/// as empty.
#[test]
fn a_refused_truncation_of_a_file_of_no_bytes_empties_nothing() {
    let (store, plan) = (store(), FaultPlan::new());
    let vault = vaults::open(store.root()).unwrap();
    synced(&vault, b"file", b"durable");
    let stored = vault.cipher_path(b"file").unwrap();
    vault.close().unwrap();
    store.root().open_file(&stored, Access::ReadWrite).unwrap().set_len(0).unwrap();
    for errno in [libc::EIO, libc::ENOSPC] {
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        let node = vault.resolve(b"file").unwrap().node;
        let handle = vault.open_file(node, READ_WRITE).unwrap().handle;
        plan.add(Fault { calls: Calls::Of(Call::Write), when: When::From(1), errno, short: false });
        assert!(vault.setattr(node, &SetAttr { size: Some(3), ..SetAttr::default() }).is_err());
        plan.reset();
        assert_eq!(vault.read(handle, 0, &mut [0; 10]).map_err(|e| e.errno()), Err(libc::EIO));
        assert_eq!(vault.write(handle, 0, b"more", false).map_err(|e| e.errno()), Err(libc::EIO));
        let _ = vault.release(handle);
        let _ = vault.close();
        assert_eq!(store.root().stat(&stored).unwrap().size, 0);
    }
}

#[test]
fn a_file_is_not_taken_for_another_one_that_had_its_name() {
    // The record of a removed file also applied to the next file of its name: with the first one's
    // id, of which the rollback database had seen a newer version.
    for by_rename in [false, true] {
        let store = store();
        let vault = vaults::open(store.root()).unwrap();
        put(&vault, b"name", b"").unwrap();
        put(&vault, b"other", b"").unwrap();
        vault.commit_due(Duration::ZERO);
        let stored = vault.cipher_path(b"name").unwrap();
        let first = header_of(&store, &stored);
        vaults::at(&vault, b"", |root| vault.unlink(root, b"name")).unwrap();
        match by_rename {
            true => rename(&vault, b"other", b"name", kithfs::vault::RenameMode::Replace).unwrap(),
            false => put(&vault, b"name", b"").unwrap(),
        }
        for way in 0..60 {
            let random = Seeded::new(way + 1);
            let crashed = store.crash(&mut |n| {
                if random.below(3) > 0 { n - 1 } else { random.below(n as u64) as usize }
            });
            vaults::open(crashed.root()).unwrap().close().unwrap();
            // The name may still belong to the first file, or to none.
            let lost = crashed.root().stat(&stored).is_ok_and(|stat| stat.ino != first.0);
            assert!(!lost || header_of(&crashed, &stored).1 != first.1, "way {way}");
        }
    }
}

/// Returns inode number and first bytes of a file of the store.
fn header_of(store: &MemStore, stored: &[u8]) -> (u64, Vec<u8>) {
    let file = store.root().open_file(stored, Access::Read).unwrap();
    let mut header = vec![0; 512];
    let read = file.read_at(&mut header, 0).unwrap();
    header.truncate(read);
    (file.stat().unwrap().ino, header)
}

#[test]
fn a_time_that_a_file_has_already_is_not_set_again() {
    // After each rename the kernel sends the modification time that it keeps, and each time it was
    // set again in the store.
    let (store, plan) = (store(), FaultPlan::new());
    let options = OpenOptions { caller_caches: true, ..OpenOptions::default() };
    let vault =
        Vault::open(FaultStore::wrap(store.root(), plan.clone()), &vaults::owner(), options)
            .unwrap();
    put(&vault, b"old", b"bytes").unwrap();
    rename(&vault, b"old", b"new", RenameMode::Replace).unwrap();
    let attr = vault.lookup(ROOT, b"new").unwrap();
    let set = |mtime, atime| {
        vault
            .setattr(attr.node, &SetAttr { mtime: SetTime::At(mtime), atime, ..SetAttr::default() })
    };
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(Call::SetTimes),
        when: When::From(1),
        errno: libc::EIO,
        short: false,
    });
    let same = set(attr.mtime, SetTime::Omit).unwrap();
    assert_eq!((same.mtime, same.size, same.nlink), (attr.mtime, attr.size, attr.nlink));
    let later = Timestamp { secs: attr.mtime.secs + 1, ..attr.mtime };
    assert_eq!(set(later, SetTime::Omit).unwrap_err().errno(), libc::EIO);
    assert_eq!(
        set(attr.mtime, SetTime::At(later)).unwrap_err().errno(),
        libc::EIO,
        "a program sets both times"
    );
    plan.reset();
    assert_eq!(set(later, SetTime::Omit).unwrap().mtime, later);
}

/// The kernel dropped an inode while an answer about it was in progress, and made a new one with
/// the size in that answer. An open of that inode was admitted although the file had been appended
/// to since, and the next append went into the middle of it.
#[test]
fn an_answer_that_was_overtaken_admits_no_open() {
    let store = store();
    let options = OpenOptions { caller_caches: true, ..OpenOptions::default() };
    let vault = Vault::open(store.root(), &vaults::owner(), options).unwrap();
    put(&vault, b"file", b"bytes").unwrap();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    for resized in [false, true] {
        let (first, under_way) =
            (vault.lookup(ROOT, b"file").unwrap(), vault.lookup(ROOT, b"file").unwrap());
        assert_eq!(first.node, under_way.node);
        let handle = vault.open_file(first.node, flags).unwrap().handle;
        let at = if resized { first.size } else { 0 };
        vault.write(handle, at, b"x", false).unwrap();
        vault.release(handle).unwrap();
        vault.forget(first.node, 1);
        let opened = vault.open_file(under_way.node, flags);
        assert_eq!(
            opened.as_ref().err().map(|error| error.errno()),
            resized.then_some(libc::ESTALE)
        );
        if let Ok(opened) = opened {
            vault.release(opened.handle).unwrap();
        }
        vault.forget(under_way.node, 1);
    }
}

/// The kernel sends the time of the last write some time after it. If another program had removed
/// or replaced the file meanwhile, that failed, and an unrelated program got the error; if it was
/// replaced, the time was set on the new file.
#[test]
fn a_late_time_of_a_lost_file_is_no_error() {
    for replaced in [false, true] {
        let store = store();
        let options = OpenOptions { caller_caches: true, ..OpenOptions::default() };
        let vault = Vault::open(store.root(), &vaults::owner(), options).unwrap();
        put(&vault, b"file", b"bytes").unwrap();
        let attr = vault.lookup(ROOT, b"file").unwrap();
        let stored = vault.cipher_path(b"file").unwrap();
        store.root().unlink(&stored).unwrap();
        let times = || store.root().stat(&stored).map(|stat| (stat.mtime, stat.atime)).ok();
        if replaced {
            store.root().create_file(&stored, 0o644).unwrap();
        }
        let before = times();
        let later = SetTime::At(Timestamp { secs: attr.mtime.secs + 100, ..attr.mtime });
        vault.setattr(attr.node, &SetAttr { mtime: later, ..SetAttr::default() }).unwrap();
        let both = SetAttr { mtime: later, atime: later, ..SetAttr::default() };
        assert_eq!(
            vault.setattr(attr.node, &both).unwrap_err().errno(),
            libc::ESTALE,
            "a program sets both times"
        );
        assert_eq!(times(), before);
    }
}

/// Returns a vault with a file that was written and committed and never synced, and its handle.
fn with_open_file(store: &MemStore, plan: &std::sync::Arc<FaultPlan>) -> (Vault, u64) {
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 0, &pattern(1, 40_000), false).unwrap();
    vault.commit_due(Duration::ZERO);
    (vault, handle)
}

#[test]
fn a_file_that_stays_open_is_made_durable_without_an_fsync() {
    // A program that writes for hours and never syncs had its file committed in place all the time:
    // a crash in the middle of one of these commits left nothing of it readable.
    let store = store();
    let (vault, handle) = with_open_file(&store, &FaultPlan::new());
    let (sender, flushed) = mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    store.on_event(Box::new(move |event| {
        if event.call == Call::SyncAll {
            let _ = sender.lock().unwrap().send(event.ino);
        }
    }));
    // Only the background flushes. A flush that is seen may be that of another file; it has ended
    // once a write gets the file's lock.
    let whole = || {
        let crashed = store.crash(&mut |_| 0);
        get(&vaults::open(crashed.root()).unwrap(), b"file")
            .is_ok_and(|bytes| bytes == pattern(1, 40_000))
    };
    assert!(!whole(), "nothing was flushed yet");
    while !whole() {
        flushed
            .recv_timeout(Duration::from_secs(60))
            .expect("the background makes the file durable");
        vault.write(handle, 0, &pattern(1, 100), false).unwrap(); // waits until the file is free
    }
    vault.release(handle).unwrap();
    vault.close().unwrap();
}

#[test]
fn a_failed_flush_in_the_background_is_reported() {
    // Both flushes that the background makes: the one concurrent with writers, and the one with the
    // file locked.
    for call in [Call::SyncData, Call::SyncAll] {
        let (store, plan) = (store(), FaultPlan::new());
        plan.lose_what_is_not_flushed();
        let (vault, handle) = with_open_file(&store, &plan);
        vault.write(handle, 40_000, &pattern(2, 9000), false).unwrap();
        fail(&plan, call, 1);
        vault.flush_due(Duration::ZERO);
        plan.reset();
        assert_eq!(
            vault.fsync(handle, false).unwrap_err().errno(),
            libc::EIO,
            "{call:?}: the error stays"
        );
        let _ = vault.release(handle);
        // When the file is opened again, lost data is written again.
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        vault.fsync(handle, false).unwrap();
        vault.release(handle).unwrap();
        let crashed = store.crash(&mut |_| 0);
        let found = get(&vaults::open(crashed.root()).unwrap(), b"file").unwrap();
        let all = [pattern(1, 40_000), pattern(2, 9000)].concat();
        assert!(found == all[..40_000] || found == all, "{call:?}: {} bytes", found.len());
        vault.close().unwrap();
    }
}

#[test]
fn a_half_refused_commit_is_not_made_durable() {
    // A full store had refused a commit in the middle: some of the data to which the committed
    // header refers was new, the rest old. The background made that durable, and from then on
    // records were written that rely on the old data.
    let (store, plan) = (store(), FaultPlan::new());
    let (vault, handle) = with_open_file(&store, &plan);
    vault.write(handle, 0, &pattern(2, 20_000), false).unwrap();
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(Call::Write),
        when: When::From(2),
        errno: libc::ENOSPC,
        short: true,
    });
    vault.commit_due(Duration::ZERO);
    assert!(plan.failed() > 0);
    plan.reset();
    vault.flush_due(Duration::ZERO);
    assert_eq!(
        plan.count(Calls::Of(Call::SyncAll)),
        0,
        "what the store contains is no state of the file"
    );
    vault.commit_due(Duration::ZERO);
    vault.flush_due(Duration::ZERO);
    assert_eq!(plan.count(Calls::Of(Call::SyncAll)), 1);
    let crashed = store.crash(&mut |_| 0);
    let found = get(&vaults::open(crashed.root()).unwrap(), b"file").unwrap();
    assert!(found == [pattern(2, 20_000), pattern(1, 40_000)[20_000..].to_vec()].concat());
    vault.close().unwrap();
}

#[test]
fn nobody_waits_for_a_flush_in_the_background() {
    // A slow disk may take a minute to flush a long recording; the recording program must not wait
    // for it.
    let store = store();
    let (vault, handle) = with_open_file(&store, &FaultPlan::new());
    let ((begun, begins), (end, ends)) = (mpsc::channel(), mpsc::channel::<()>());
    let (begun, ends) = (std::sync::Mutex::new(begun), std::sync::Mutex::new(ends));
    store.on_event(Box::new(move |event| {
        if event.call == Call::SyncData {
            let _ = begun.lock().unwrap().send(());
            let _ = ends.lock().unwrap().recv();
        }
    }));
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| vault.flush_due(Duration::ZERO));
        begins.recv_timeout(Duration::from_secs(60)).expect("the flush begins");
        vault.write(handle, 40_000, &pattern(2, 9000), false).unwrap();
        vault.commit_due(Duration::ZERO);
        assert!(!flushing.is_finished());
        drop(end);
    });
    vault.release(handle).unwrap();
    vault.close().unwrap();
    let found = get(&vaults::open(store.root()).unwrap(), b"file").unwrap();
    assert!(found == [pattern(1, 40_000), pattern(2, 9000)].concat());
}

/// A commit first checks whether the names of its file still lead to it. If that cannot be found
/// out, for lack of descriptors or memory, the file must not count as replaced: the commit fails,
/// and the next one stores everything.
#[test]
fn a_commit_that_cannot_look_loses_nothing() {
    for errno in [libc::ENFILE, libc::EMFILE, libc::ENOMEM, libc::EINTR] {
        for call in [Call::Stat, Call::Read] {
            let (store, plan) = (store(), FaultPlan::new());
            let (vault, handle) = with_open_file(&store, &plan);
            vault.fsync(handle, false).unwrap();
            vault.write(handle, 100, &pattern(5, 300), false).unwrap();
            plan.reset();
            plan.add(Fault { calls: Calls::Of(call), when: When::From(1), errno, short: false });
            assert_eq!(vault.fsync(handle, false).unwrap_err().errno(), errno, "{call:?}");
            plan.heal();
            vault.fsync(handle, false).unwrap();
            vault.release(handle).unwrap();
            vault.close().unwrap();
            let now = patched(pattern(1, 40_000), 100, &pattern(5, 300));
            assert_eq!(get(&vaults::open(store.root()).unwrap(), b"file").unwrap(), now);
        }
    }
}
