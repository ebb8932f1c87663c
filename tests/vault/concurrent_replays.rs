//! Replays that end midway, beside other daemons that have the share open for writing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kithfs::roster::Identity;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, Lock, SetTime, Span};
use kithfs::vault::{Error, LockMode, OpenFlags, RenameMode, SetAttr, Vault};

use super::concurrent_deaths::{
    LEN, has_name, left_record, open, planned, with_file, with_left_record, write_and_sync,
};
use crate::support::members::{open_as, together, trusting, with_bob};
use crate::support::raw;
use crate::support::vaults::{READ_WRITE, Seeded, at, get, mkdir, pattern, put, rename};

/// Opens the share as `who`, on a store that fails from number `nth` of `calls` on.
fn failing_mount(
    store: &MemStore,
    who: &Identity,
    calls: Calls,
    nth: u64,
) -> (Result<Vault, Error>, Arc<FaultPlan>) {
    let when = When::From(nth);
    let plan = FaultPlan::failing(Fault { calls, when, errno: libc::EIO, short: false });
    let wrapped = FaultStore::wrap(store.root(), plan.clone());
    (Vault::open(wrapped, who, trusting(false, LockMode::Shared)), plan)
}

/// Does the same and ends the mount while the store still fails. Returns whether a call has failed.
fn mount_ends_at(store: &MemStore, who: &Identity, calls: Calls, nth: u64) -> bool {
    let (vault, plan) = failing_mount(store, who, calls, nth);
    drop(vault);
    plan.failed() > 0
}

/// Does the same for writes and then lets the store work again. Returns the vault, and whether a
/// write has failed.
fn mount_after(store: &MemStore, who: &Identity, nth: u64) -> (Result<Vault, Error>, bool) {
    let (vault, plan) = failing_mount(store, who, Calls::Of(Call::Write), nth);
    let has_failed = plan.failed() > 0;
    plan.reset();
    (vault, has_failed)
}

/// Lets a daemon of `who` die at write number `nth`, while it gives the file a new header before
/// its first change. Returns false if that takes fewer writes.
fn dies_in_a_header(store: &MemStore, who: &Identity, nth: u64) -> bool {
    let (vault, plan) = planned(store, who);
    let handle = open(&vault, b"file", READ_WRITE).unwrap();
    plan.reset();
    let (calls, when) = (Calls::Of(Call::Write), When::From(nth));
    plan.add(Fault { calls, when, errno: libc::EIO, short: false });
    vault.write(handle, 8192, b"his", false).is_err()
}

/// Returns whether the file cannot be read, because a replay ended midway.
fn is_midway(store: &MemStore, who: &Identity) -> bool {
    get(&together(&store.snapshot(), who).unwrap(), b"file").is_err()
}

/// Opens and closes the share as `first`, opens it as `owner`, and returns the contents of the
/// file.
fn read_after(store: &MemStore, first: &Identity, owner: &Identity, what: &str) -> Vec<u8> {
    let _ = together(store, first).unwrap().close();
    let vault = together(store, owner).unwrap();
    let bytes = get(&vault, b"file").unwrap_or_else(|error| panic!("{what}: {error}"));
    vault.close().unwrap();
    bytes
}

/// Ann's daemon left a record. Bob's daemon therefore gave the file a new header, and died in that.
/// A mount of hers ended in the middle of her replay, under the old header. Then Bob's replay gave
/// the file his header, which her record does not match, and the chunk that she had half written
/// was lost.
#[test]
fn a_replay_that_ends_midway_is_completed_later() {
    let (left, ann, bob) = with_left_record(&[]);
    let mut midway = 0;
    for his_write in 1.. {
        let start = left.snapshot();
        if !dies_in_a_header(&start, &bob, his_write) {
            break;
        }
        for her_call in 1.. {
            let store = start.snapshot();
            if !mount_ends_at(&store, &ann, Calls::All, her_call) {
                break;
            }
            let what = format!("his write {his_write}, her call {her_call}");
            midway += u32::from(is_midway(&store, &bob));
            let bytes = read_after(&store, &bob, &ann, &what);
            assert!(bytes[4096..] == pattern(0, LEN)[4096..], "{what}");
            let is_hers = bytes[..4096] == [1; 4096];
            let is_old = bytes[3..4096] == pattern(0, LEN)[3..4096];
            assert!(is_hers || is_old, "{what}: {:?}", &bytes[..4]);
        }
    }
    assert!(midway > 0);
}

/// Bob's daemon read a file because of Ann's record and found it whole. A replay of hers ended
/// midway before he wrote, and the header was still the one that he had read. So his daemon wrote
/// to the file.
#[test]
fn a_replay_that_ends_beside_a_writer_is_completed() {
    const LARGE: usize = 5 << 20;
    let (start, ann, bob) = with_bob();
    let ann = Arc::new(ann);
    let vault = open_as(&start, &ann).unwrap();
    put(&vault, b"file", &pattern(1, LARGE)).unwrap();
    vault.close().unwrap();
    let left = left_record(&start, &ann, &bob, &[1; 8192]);
    let (mut wrote, mut refused) = (0, 0);
    for nth in 1.. {
        let store = left.snapshot();
        let (vault, plan) = planned(&store, &bob);
        let handle = open(&vault, b"file", READ_WRITE).unwrap();
        let (reads, failed) = (AtomicU64::new(0), Arc::new(AtomicBool::new(false)));
        let (inside, ended) = ((store.clone(), ann.clone()), failed.clone());
        plan.before(Call::Read, move || {
            if reads.fetch_add(1, Ordering::AcqRel) == 200 {
                let calls = Calls::Of(Call::Write); // the number of calls for the lease varies
                ended.store(mount_ends_at(&inside.0, &inside.1, calls, nth), Ordering::Release);
            }
        });
        let written = write_and_sync(&vault, handle, LARGE - 100, b"his");
        let _ = vault.release(handle);
        let _ = vault.close();
        let what = format!("her write {nth}");
        let bytes = read_after(&store, &bob, &ann, &what);
        assert!(bytes[8192..LARGE - 100] == pattern(1, LARGE)[8192..LARGE - 100], "{what}");
        match written {
            Ok(()) => {
                assert!(bytes[LARGE - 100..LARGE - 97] == *b"his", "{what}");
                wrote += 1;
            }
            Err(error) => {
                assert_eq!(error.errno(), libc::EIO, "{what}");
                refused += 1;
            }
        }
        if !failed.load(Ordering::Acquire) {
            break;
        }
    }
    assert!(wrote > 0 && refused > 0, "{wrote} {refused}");
}

/// The store had no space for Bob's new header, and none for the end of Ann's replay. When it had space
/// again, his daemon wrote that header after all, over what hers had half written.
#[test]
fn a_header_refused_by_a_full_store_hides_no_replay() {
    // The thread of the lease writes at times of its own, so now and then no count meets the header.
    let meets = |_| {
        let (refused, midway) = refused_headers();
        refused > 0 && midway > 0
    };
    assert!((0..10).any(meets));
}

/// Has each of Bob's writes refused, and each of those of Ann's replay after it. Returns how often he
/// got an error, and how often her replay ended midway.
fn refused_headers() -> (u32, u32) {
    let (left, ann, bob) = with_left_record(&[]);
    let (mut refused, mut midway) = (0, 0);
    for his_write in 1.. {
        for her_write in 1.. {
            let store = left.snapshot();
            let (vault, plan) = planned(&store, &bob);
            let handle = open(&vault, b"file", READ_WRITE).unwrap();
            plan.reset();
            let (calls, when) = (Calls::Of(Call::Write), When::Nth(his_write));
            plan.add(Fault { calls, when, errno: libc::ENOSPC, short: false });
            let written = write_and_sync(&vault, handle, 8192, b"his");
            let has_failed = plan.failed() > 0;
            plan.reset();
            let has_ended = mount_ends_at(&store, &ann, calls, her_write);
            midway += u32::from(has_failed && is_midway(&store, &bob));
            vault.commit_due(Duration::ZERO);
            let _ = vault.release(handle);
            let _ = vault.close();
            let what = format!("his write {his_write}, her write {her_write}");
            let bytes = read_after(&store, &bob, &ann, &what);
            let old = pattern(0, LEN);
            assert!(bytes[4096..8192] == old[4096..8192] && bytes[8195..] == old[8195..], "{what}");
            if written.is_ok() {
                assert!(bytes[8192..8195] == *b"his", "{what}");
            }
            refused += u32::from(written.is_err());
            if !has_failed {
                return (refused, midway);
            }
            if !has_ended {
                break;
            }
        }
    }
    unreachable!("some count is beyond all writes")
}

/// A replay searches the vault for files that others have renamed. What it could not read because
/// the store failed counted as missing, and the records were put aside for good.
#[test]
fn a_search_that_fails_puts_no_records_aside() {
    let (store, ann, bob) = with_left_record(&[]);
    let vault = together(&store, &bob).unwrap();
    mkdir(&vault, b"dir").unwrap();
    rename(&vault, b"file", b"dir/file", RenameMode::Replace).unwrap();
    vault.close().unwrap();
    let mut failed = 0;
    for (call, nth) in [Call::OpenDir, Call::OpenFile, Call::List, Call::Stat]
        .into_iter()
        .flat_map(|call| (1..60).map(move |nth| (call, nth)))
    {
        let store = store.snapshot();
        let (calls, when) = (Calls::Of(call), When::Nth(nth));
        let plan = FaultPlan::failing(Fault { calls, when, errno: libc::EIO, short: false });
        let wrapped = FaultStore::wrap(store.root(), plan.clone());
        drop(Vault::open(wrapped, &ann, trusting(false, LockMode::Shared)));
        failed += plan.failed();
        assert!(!has_name(&*store.root(), b"+refused-"), "{call:?} {nth}");
        let vault = together(&store, &ann).unwrap();
        let bytes = get(&vault, b"dir/file").unwrap();
        assert!(bytes[..4096] == [1; 4096], "{call:?} {nth}");
    }
    assert!(failed > 20, "{failed}");
}

/// A mount that could not open the file of a record took the record into its own journal, and tried it
/// no more. No other mount could complete the file until that one ended, perhaps weeks later.
#[test]
fn a_mount_that_finds_no_file_leaves_its_record_to_others() {
    let (store, ann, bob) = with_left_record(&[]);
    let stored = together(&store, &bob).unwrap().cipher_path(b"file").unwrap();
    let plan = FaultPlan::new();
    plan.forbid(&stored);
    let wrapped = FaultStore::wrap(store.root(), plan);
    let first = Vault::open(wrapped, &ann, trusting(false, LockMode::Shared)).unwrap();
    let bytes = get(&together(&store, &ann).unwrap(), b"file").unwrap();
    assert!(bytes[..4096] == [1; 4096]);
    first.close().unwrap();
    let bytes = get(&together(&store, &bob).unwrap(), b"file").unwrap();
    assert!(bytes[..4096] == [1; 4096]);
}

/// A mount that had the vault alone crashed after an fsync, of which only its journal knew. The next one,
/// beside others, could not open the file and left the record to them. Programs read what was there before
/// the fsync, and what they wrote made the record void.
#[test]
fn a_record_that_is_left_to_others_guards_its_file() {
    let (start, ann, _) = with_file();
    let vault = open_as(&start, &ann).unwrap();
    let handle = open(&vault, b"file", READ_WRITE).unwrap();
    write_and_sync(&vault, handle, 0, &[1; 4096]).unwrap();
    let stored = vault.cipher_path(b"file").unwrap();
    let store = start.crash(&mut |_| 0);
    drop(vault);
    let plan = FaultPlan::new();
    plan.forbid(&stored);
    let wrapped = FaultStore::wrap(store.root(), plan.clone());
    let first = Vault::open(wrapped, &ann, trusting(false, LockMode::Shared)).unwrap();
    plan.allow(&stored);
    assert_eq!(get(&first, b"file").unwrap_err().errno(), libc::EIO);
    assert_eq!(open(&first, b"file", READ_WRITE).unwrap_err().errno(), libc::EIO);
    assert!(get(&together(&store, &ann).unwrap(), b"file").unwrap()[..4096] == [1; 4096]);
    assert!(get(&first, b"file").unwrap()[..4096] == [1; 4096], "the record is gone");
}

/// Two mounts of one identity found the journal of a third one. The slower one locked it after the other
/// had replayed and removed it, could not remove it, and failed.
#[test]
fn a_journal_that_was_just_replayed_fails_no_mount() {
    let (store, ann, _) = with_left_record(&[]);
    let ann = Arc::new(ann);
    let replayed = Arc::new(AtomicU64::new(0));
    for nth in 1..40 {
        let store = store.snapshot();
        let plan = FaultPlan::new();
        let (locks, inside, other) = (AtomicU64::new(0), store.clone(), ann.clone());
        let count = replayed.clone();
        plan.before(Call::Lock, move || {
            if locks.fetch_add(1, Ordering::AcqRel) + 1 == nth {
                let names = raw::named(&*inside.root(), b"+journal-");
                together(&inside, &other).unwrap().close().unwrap();
                let left = raw::named(&*inside.root(), b"+journal-");
                count.fetch_add((names.len() - left.len()) as u64, Ordering::AcqRel);
            }
        });
        let wrapped = FaultStore::wrap(store.root(), plan);
        let vault = Vault::open(wrapped, &ann, trusting(false, LockMode::Shared));
        let vault = vault.unwrap_or_else(|error| panic!("lock {nth}: {error}"));
        let bytes = get(&vault, b"file").unwrap();
        assert!(bytes[..4096] == [1; 4096], "lock {nth}");
        vault.close().unwrap();
    }
    assert!(replayed.load(Ordering::Acquire) > 0);
}

/// While Ann's replay flushed the header, her machine slept, and Bob's daemon took the lease over.
/// Bob's daemon emptied the file and wrote it; then hers wrote the rest of its record into the new
/// contents.
#[test]
fn a_replay_whose_lease_is_lost_writes_no_more() {
    let (store, ann, bob) = with_left_record(&[]);
    let bob = together(&store, &bob).unwrap();
    let handle = open(&bob, b"file", READ_WRITE).unwrap();
    let (plan, taken) = (FaultPlan::new(), Arc::new(AtomicBool::new(false)));
    let (inside, his, once) = (store.clone(), bob.clone(), taken.clone());
    plan.before(Call::SyncData, move || {
        if !once.swap(true, Ordering::AcqRel) {
            inside.root().unlink(b"+lease").unwrap(); // as after seven seconds
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            at(&his, b"file", |node| his.setattr(node, &empty)).unwrap();
            write_and_sync(&his, handle, 0, &[2; LEN]).unwrap();
        }
    });
    drop(Vault::open(
        FaultStore::wrap(store.root(), plan),
        &ann,
        trusting(false, LockMode::Shared),
    ));
    assert!(taken.load(Ordering::Acquire));
    bob.release(handle).unwrap();
    bob.close().unwrap();
    let bytes = get(&together(&store, &ann).unwrap(), b"file").unwrap();
    assert!(bytes == [2; LEN]);
}

/// The power is cut during a replay of Ann's. A daemon of Bob's has died before, in the commit of a
/// new header, and his replay comes first. What hers had half written must not be on the disk under
/// the former header.
#[test]
fn a_power_cut_in_a_replay_is_completed_later() {
    let (left, ann, bob) = with_left_record(&[]);
    let mut midway = 0;
    for his_write in 1.. {
        let start = left.snapshot();
        if !dies_in_a_header(&start, &bob, his_write) {
            break;
        }
        let root = start.root();
        let journals = raw::named(&*root, b"+journal-");
        let has_record = |name: &Vec<u8>| raw::read(&*root, name).get(4096..4100) == Some(b"KREC");
        if journals.iter().filter(|name| has_record(name)).count() < 2 {
            continue;
        }
        root.sync_store().unwrap();
        let moments: Arc<parking_lot::Mutex<Vec<MemStore>>> = Arc::default();
        let (watched, seen) = (start.clone(), moments.clone());
        start.on_event(Box::new(move |_| seen.lock().push(watched.snapshot())));
        drop(together(&start, &ann).unwrap());
        start.on_event(Box::new(|_| {}));
        for (moment, cut) in moments.lock().iter().enumerate() {
            for seed in 0..16 {
                let random = Seeded::new(seed);
                let cut = cut.crash(&mut |n| random.below(n as u64) as usize);
                let what = format!("his write {his_write}, moment {moment}, seed {seed}");
                midway += u32::from(is_midway(&cut, &bob));
                let bytes = read_after(&cut, &bob, &ann, &what);
                assert!(bytes[4096..] == pattern(0, LEN)[4096..], "{what}");
            }
        }
    }
    assert!(midway > 0);
}

/// Bob's daemon had read a half-written file. Ann's next mount completed it without a new header,
/// and her journal stayed the same, because another file of it could not be written. His writes
/// went on failing with EIO.
#[test]
fn a_file_that_was_completed_can_be_changed_again() {
    let (left, ann, bob) = with_left_record(&[]);
    let mut tried = 0;
    for her_call in 1.. {
        let store = left.snapshot();
        if !mount_ends_at(&store, &ann, Calls::All, her_call) {
            break;
        }
        if !is_midway(&store, &bob) {
            continue;
        }
        let vault = together(&store, &bob).unwrap();
        let Ok(handle) = open(&vault, b"file", READ_WRITE) else { continue };
        assert!(write_and_sync(&vault, handle, 8192, b"his").is_err());
        let journals = raw::named(&*store.root(), b"+journal-");
        let kept: Vec<_> =
            journals.iter().map(|name| (name.clone(), raw::read(&*store.root(), name))).collect();
        let times: Vec<_> =
            journals.iter().map(|name| store.root().stat(name).unwrap().mtime).collect();
        drop(together(&store, &ann).unwrap());
        // The journals return, as if another file in them could not have been written.
        for ((name, bytes), time) in kept.into_iter().zip(times) {
            if raw::named(&*store.root(), b"+journal-").contains(&name) {
                continue;
            }
            let file = store.root().create_file(&name, 0o600).unwrap();
            file.write_at(&bytes, 0).unwrap();
            file.set_times(SetTime::Omit, SetTime::At(time)).unwrap();
        }
        write_and_sync(&vault, handle, 8192, b"his").unwrap();
        vault.release(handle).unwrap();
        tried += 1;
    }
    assert!(tried > 0);
}

/// A replay failed midway in a file that others had renamed. The journal knew it as broken at its
/// former path alone. So the file could be opened and changed, and the chunk that was half written
/// was lost.
#[test]
fn a_renamed_file_that_is_half_replayed_is_completed() {
    let (left, ann, bob) = with_left_record(&[]);
    let vault = together(&left, &bob).unwrap();
    mkdir(&vault, b"dir").unwrap();
    rename(&vault, b"file", b"dir/file", RenameMode::Replace).unwrap();
    vault.close().unwrap();
    let mut refused = 0;
    for nth in 1.. {
        let store = left.snapshot();
        let (vault, has_failed) = mount_after(&store, &ann, nth);
        let Ok(vault) = vault else { continue };
        let written = open(&vault, b"dir/file", READ_WRITE).and_then(|handle| {
            let written = write_and_sync(&vault, handle, 8192, b"his");
            vault.release(handle).and(written)
        });
        refused += u32::from(has_failed && written.is_err());
        let _ = vault.close();
        drop(vault); // its journal stays locked as long as it is there
        let vault = together(&store, &ann).unwrap();
        let bytes = get(&vault, b"dir/file").unwrap_or_else(|error| panic!("{nth}: {error}"));
        assert!(bytes[..4096] == [1; 4096], "{nth}");
        if !has_failed {
            break;
        }
    }
    assert!(refused > 0);
}

/// The same, and a new file has the former path. The new file could not be opened, and emptying it
/// dropped the records of the first one.
#[test]
fn a_new_file_at_the_path_of_a_half_replayed_one_is_free() {
    let (left, ann, bob) = with_left_record(&[]);
    let vault = together(&left, &bob).unwrap();
    mkdir(&vault, b"dir").unwrap();
    rename(&vault, b"file", b"dir/file", RenameMode::Replace).unwrap();
    put(&vault, b"file", b"new").unwrap();
    vault.close().unwrap();
    let mut kept = 0;
    for nth in 1.. {
        let store = left.snapshot();
        let (vault, has_failed) = mount_after(&store, &ann, nth);
        let Ok(vault) = vault else { continue };
        let handle = open(&vault, b"file", OpenFlags { truncate: true, ..READ_WRITE });
        vault.release(handle.unwrap_or_else(|error| panic!("{nth}: {error}"))).unwrap();
        let _ = vault.close();
        let journals = raw::named(&*store.root(), b"+journal-");
        kept += u32::from(has_failed && !journals.is_empty());
        drop(vault);
        let vault = together(&store, &ann).unwrap();
        let bytes = get(&vault, b"dir/file").unwrap_or_else(|error| panic!("{nth}: {error}"));
        assert!(bytes[..4096] == [1; 4096], "{nth}");
        if !has_failed {
            break;
        }
    }
    assert!(kept > 0);
}

/// A journal had records of two files, one of which was renamed since. A replay could write neither, and
/// counted the renamed one as missing: its records were put aside for good.
#[test]
fn files_that_are_renamed_and_cannot_be_written_are_completed() {
    let (start, ann, bob) = with_bob();
    let vault = open_as(&start, &ann).unwrap();
    for name in [b"a", b"b"] {
        put(&vault, name, &pattern(0, LEN)).unwrap();
    }
    vault.close().unwrap();
    let vault = open_as(&start, &ann).unwrap();
    for name in [b"a", b"b"] {
        let handle = open(&vault, name, READ_WRITE).unwrap();
        write_and_sync(&vault, handle, 0, &[1; 4096]).unwrap();
    }
    let left = start.crash(&mut |_| 0);
    drop(vault);
    let vault = together(&left, &bob).unwrap();
    mkdir(&vault, b"dir").unwrap();
    rename(&vault, b"b", b"dir/b", RenameMode::Replace).unwrap();
    vault.close().unwrap();
    let mut failures = 0;
    for nth in 1.. {
        let store = left.snapshot();
        let (vault, has_failed) = mount_after(&store, &ann, nth);
        if let Ok(vault) = vault {
            failures += u32::from(has_failed);
            let _ = vault.close();
        }
        let vault = together(&store, &ann).unwrap();
        for path in [&b"a"[..], b"dir/b"] {
            let bytes = get(&vault, path).unwrap_or_else(|error| panic!("{nth}: {error}"));
            assert!(bytes[..4096] == [1; 4096], "{nth} {}", path.escape_ascii());
        }
        if !has_failed {
            break;
        }
    }
    assert!(failures > 0);
}

/// A mount that has records to apply fails if another daemon keeps the lease and shows that it is alive.
#[test]
fn a_mount_with_records_fails_if_the_lease_is_kept() {
    let (store, ann, _) = with_left_record(&[]);
    let lease = store.root().open_file(b"+lease", Access::ReadWrite).unwrap();
    let all = Span { first: 0, last: Span::END };
    assert!(lease.try_lock_span(Some(Lock::Exclusive), all).unwrap());
    let plan = FaultPlan::new();
    let shown = lease.clone();
    plan.before(Call::Lock, move || shown.set_times(SetTime::Omit, SetTime::Now).unwrap());
    let wrapped = FaultStore::wrap(store.root(), plan);
    let error = Vault::open(wrapped, &ann, trusting(false, LockMode::Shared)).err().unwrap();
    assert_eq!(error.errno(), libc::EBUSY);
    drop(lease);
    let bytes = get(&together(&store, &ann).unwrap(), b"file").unwrap();
    assert!(bytes[..4096] == [1; 4096]);
}
