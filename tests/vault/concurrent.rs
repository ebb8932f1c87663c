//! Two people with one share open for writing at the same time, each in a daemon of their own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kithfs::roster::{Identity, Role};
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, Locks, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, Lock, RenameMode as StoreRename, Span};
use kithfs::vault::{CreateShare, Error, LockMode, OpenFlags, ROOT, RenameMode, Vault};

use crate::support::members::{member, open_as, person, together, trusting, with_bob};
use crate::support::raw;
use crate::support::vaults::{
    self, CALLER, READ, READ_WRITE, Seeded, at, faults, get, mkdir, open_or_create, pattern, put,
    rename, tree, write_at,
};

pub(super) fn both() -> (MemStore, Vault, Vault) {
    let (store, ann, bob) = with_bob();
    let (ann, bob) = (together(&store, &ann).unwrap(), together(&store, &bob).unwrap());
    (store, ann, bob)
}

/// Retries `act` while another daemon has the file open for writing.
fn when_free<T>(mut act: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    loop {
        match act() {
            Err(error) if error.errno() == libc::EBUSY => {}
            other => return other,
        }
    }
}

pub(super) fn errno<T>(result: Result<T, Error>) -> i32 {
    result.map_or_else(|error| error.errno(), |_| 0)
}

pub(super) fn open(vault: &Vault, path: &[u8], flags: OpenFlags) -> Result<u64, Error> {
    at(vault, path, |node| Ok(vault.open_file(node, flags)?.handle))
}

#[test]
fn exclusive_and_shared_openers_exclude_each_other() {
    let (store, ann, bob) = with_bob();
    let first = together(&store, &ann).unwrap();
    let second = together(&store, &bob).unwrap();
    assert!(matches!(open_as(&store, &ann), Err(Error::InUse { .. })));
    first.close().unwrap();
    assert!(matches!(open_as(&store, &ann), Err(Error::InUse { .. })), "one shared opener is left");
    second.close().unwrap();
    let alone = open_as(&store, &ann).unwrap();
    assert!(matches!(together(&store, &bob), Err(Error::InUse { .. })));
    alone.close().unwrap();
    assert!(store.root().stat(b"+lock").is_err(), "a lock on the directory needs no file");
}

#[test]
fn one_person_opens_a_vault_twice_while_creates_are_noted() {
    // The second daemon of one person waited ten seconds for the creation records of the first one,
    // and then gave up. So the person could not mount on a second machine once the first had been
    // idle for two minutes.
    let (store, ann, _) = with_bob();
    let first = together(&store, &ann).unwrap();
    let (noted, is_noted) = std::sync::mpsc::channel();
    let begun = AtomicBool::new(false);
    store.on_event(Box::new(move |event| match event.call {
        Call::CreateFile if event.name.is_some_and(|name| name.starts_with(b"+created-")) => {
            begun.store(true, Ordering::Relaxed)
        }
        // The journal of creation records is locked at this moment.
        Call::SyncDir if begun.load(Ordering::Relaxed) => drop(noted.send(())),
        _ => {}
    }));
    let handle = open_or_create(&first, b"made", READ_WRITE).unwrap();
    is_noted.recv_timeout(Duration::from_secs(60)).unwrap();
    let second = together(&store, &ann).unwrap();
    assert_eq!(get(&second, b"made").unwrap(), b"");
    assert!(
        names(&store, b"+created-"),
        "the first daemon still uses its journal of creation records"
    );
    first.release(handle).unwrap();
    first.close().unwrap();
    second.close().unwrap();
    assert!(!names(&store, b"+created-"));
}

/// Returns whether the store has a name with this prefix.
fn names(store: &MemStore, prefix: &[u8]) -> bool {
    store.root().read(0, 1 << 16).unwrap().iter().any(|entry| entry.name.starts_with(prefix))
}

#[test]
fn what_one_writes_the_other_sees_at_once() {
    let (_store, ann, bob) = both();
    put(&ann, b"by ann", b"one").unwrap();
    put(&bob, b"by bob", &pattern(1, 70_000)).unwrap();
    assert_eq!(get(&bob, b"by ann").unwrap(), b"one");
    assert_eq!(get(&ann, b"by bob").unwrap(), pattern(1, 70_000));
    // A handle that Bob opened before shows what Ann commits, also when the file changes between
    // the small form and the large one.
    let handle = open(&bob, b"by ann", READ).unwrap();
    let mut buf = vec![0; 100_000];
    for (round, len) in [5, 4096, 50_000, 100_000, 20_000, 3, 0].into_iter().enumerate() {
        put(&ann, b"by ann", &pattern(round as u64, len)).unwrap();
        let read = bob.read(handle, 0, &mut buf).unwrap();
        assert_eq!(&buf[..read], pattern(round as u64, len), "round {round}");
        assert_eq!(at(&bob, b"by ann", |node| bob.getattr(node)).unwrap().size, len as u64);
    }
    bob.release(handle).unwrap();
    mkdir(&ann, b"dir").unwrap();
    put(&bob, b"dir/in", b"it").unwrap();
    rename(&ann, b"dir", b"moved", RenameMode::Replace).unwrap();
    assert_eq!(get(&bob, b"moved/in").unwrap(), b"it");
    assert_eq!(errno(get(&bob, b"dir/in")), libc::ENOENT);
    assert_eq!(tree(&ann).unwrap(), tree(&bob).unwrap());
    assert_eq!(faults(&ann), [""; 0]);
}

#[test]
fn writes_to_a_file_another_opener_refilled_are_readable() {
    // Ann truncated and filled a file that Bob had open for reading, which gave it another id.
    // Chunks that Bob then wrote as a whole were sealed under the former id and could not be read
    // any more.
    let (_store, ann, bob) = both();
    put(&ann, b"file", &pattern(1, 40_000)).unwrap();
    let reading = open(&bob, b"file", READ).unwrap();
    put(&ann, b"file", &pattern(2, 40_000)).unwrap();
    let handle = open(&bob, b"file", READ_WRITE).unwrap();
    bob.write(handle, 0, &pattern(3, 100_000), false).unwrap();
    bob.release(handle).unwrap();
    let mut buf = vec![0; 100_000];
    assert_eq!(bob.read(reading, 0, &mut buf).unwrap(), 100_000);
    assert!(buf == pattern(3, 100_000));
    bob.release(reading).unwrap();
    assert!(get(&ann, b"file").unwrap() == pattern(3, 100_000));
    assert_eq!(faults(&ann), [""; 0]);
}

#[test]
fn a_file_is_written_by_one_of_them_at_a_time() {
    let (_store, ann, bob) = both();
    put(&ann, b"file", &pattern(1, 40_000)).unwrap();
    let hers = open(&ann, b"file", READ_WRITE).unwrap();
    ann.write(hers, 10_000, b"dirty", false).unwrap();
    assert_eq!(errno(open(&bob, b"file", READ_WRITE)), libc::EBUSY);
    assert_eq!(errno(open(&bob, b"file", OpenFlags { truncate: true, ..READ })), libc::EBUSY);
    assert_eq!(errno(write_at(&bob, b"file", 0, b"x")), libc::EBUSY);
    assert_eq!(get(&bob, b"file").unwrap(), pattern(1, 40_000), "what is committed can be read");
    ann.fsync(hers, false).unwrap();
    let mut after_hers = pattern(1, 40_000);
    after_hers[10_000..10_005].copy_from_slice(b"dirty");
    assert_eq!(get(&bob, b"file").unwrap(), after_hers);
    // Ann keeps the file open for reading when she stops writing, and Bob may write.
    let reading = open(&ann, b"file", READ).unwrap();
    ann.release(hers).unwrap();
    write_at(&bob, b"file", 20_000, b"his").unwrap();
    after_hers[20_000..20_003].copy_from_slice(b"his");
    let mut buf = vec![0; 40_000];
    assert_eq!(ann.read(reading, 0, &mut buf).unwrap(), 40_000);
    assert!(buf == after_hers);
    // Her next change is based on Bob's.
    write_at(&ann, b"file", 0, b"hers").unwrap();
    after_hers[..4].copy_from_slice(b"hers");
    assert!(get(&bob, b"file").unwrap() == after_hers);
    ann.release(reading).unwrap();
    // A file that is being created belongs to its creator.
    let (attr, opened) =
        at(&ann, b"", |root| ann.create_file(&CALLER, root, b"new", 0o644, READ_WRITE)).unwrap();
    assert_eq!(errno(write_at(&bob, b"new", 0, b"x")), libc::EBUSY);
    ann.release(opened.handle).unwrap();
    ann.forget(attr.node, 1);
    write_at(&bob, b"new", 0, b"x").unwrap();
    assert_eq!(get(&ann, b"new").unwrap(), b"x");
}

#[test]
fn what_both_append_is_all_there() {
    let (_store, ann, bob) = both();
    put(&ann, b"log", b"").unwrap();
    let append = |vault: &Vault, who: u8| {
        for line in 0..150u32 {
            let handle =
                when_free(|| open(vault, b"log", OpenFlags { append: true, ..READ_WRITE }))
                    .unwrap();
            vault.write(handle, 0, &[&[who][..], &line.to_le_bytes()].concat(), false).unwrap();
            vault.release(handle).unwrap();
        }
    };
    std::thread::scope(|threads| {
        threads.spawn(|| append(&ann, b'a'));
        threads.spawn(|| append(&bob, b'b'));
    });
    let log = get(&bob, b"log").unwrap();
    assert_eq!(log, get(&ann, b"log").unwrap());
    let lines: BTreeSet<&[u8]> = log.chunks(5).collect();
    assert_eq!((log.len(), lines.len()), (2 * 150 * 5, 2 * 150));
}

#[test]
fn a_reader_beside_a_commit_never_sees_a_mixture() {
    let (_store, ann, bob) = both();
    const LEN: usize = 200_000;
    put(&ann, b"file", &[0; LEN]).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            // Also in a panic; otherwise the reader would run for ever.
            scopeguard::defer! { done.store(true, Ordering::Release) }
            for round in 1..=60u8 {
                // Most rounds overwrite in place, with the journal first; some truncate the file.
                let flags = OpenFlags { truncate: round % 20 == 0, ..READ_WRITE };
                let handle = open(&ann, b"file", flags).unwrap();
                ann.write(handle, 0, &[round; LEN], false).unwrap();
                ann.release(handle).unwrap();
            }
        });
        let handle = open(&bob, b"file", READ).unwrap();
        let (mut buf, mut last) = (vec![0; LEN], 0);
        while !done.load(Ordering::Acquire) {
            let read = bob.read(handle, 0, &mut buf).unwrap();
            assert!(read == LEN || read == 0, "neither a whole state nor the empty file: {read}");
            if read > 0 {
                assert!(buf.iter().all(|b| *b == buf[0]), "a mixture");
                assert!(buf[0] >= last, "an older state than before");
                last = buf[0];
            }
        }
        bob.release(handle).unwrap();
    });
    assert_eq!(get(&bob, b"file").unwrap(), [60; LEN]);
}

#[test]
fn a_reader_slower_than_a_committer_waits_for_a_pause() {
    // Each of the reader's attempts met a commit. The second failure was reported as damage if the
    // writer had just closed the file.
    let (store, ann_id, bob_id) = with_bob();
    let ann = together(&store, &ann_id).unwrap();
    let plan = FaultPlan::new();
    let bob = Vault::open(
        FaultStore::wrap(store.root(), plan.clone()),
        &bob_id,
        trusting(false, LockMode::Shared),
    )
    .unwrap();
    const LEN: usize = 100_000;
    put(&ann, b"file", &[0; LEN]).unwrap();
    let handle = open(&bob, b"file", READ).unwrap();
    plan.slow_down(Call::Read, Duration::from_millis(5));
    let done = AtomicBool::new(false);
    let mut buf = vec![0; LEN];
    std::thread::scope(|threads| {
        // Also in a panic; otherwise the writer would run for ever.
        scopeguard::defer! { done.store(true, Ordering::Release) }
        threads.spawn(|| {
            for round in (1..=100u8).take_while(|_| !done.load(Ordering::Acquire)) {
                write_at(&ann, b"file", 0, &[round; LEN]).unwrap();
                std::thread::sleep(Duration::from_millis(3)); // most of the time no writer has the file open
            }
        });
        while buf[0] < 100 {
            assert_eq!(bob.read(handle, 0, &mut buf).unwrap(), LEN);
            assert!(buf.iter().all(|b| *b == buf[0]), "a mixture");
        }
    });
    bob.release(handle).unwrap();
}

/// A writer whose file another program changed without a lock gets an error and changes nothing.
#[test]
fn a_writer_overtaken_without_locks_gets_an_error() {
    let (store, ann, bob) = both();
    put(&ann, b"file", &pattern(1, 60_000)).unwrap();
    let stored = ann.cipher_path(b"file").unwrap();
    let raw = |store: &MemStore| {
        let file = store.root().open_file(&stored, Access::Read).unwrap();
        let mut bytes = vec![0; file.stat().unwrap().size as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    let old = raw(&store);
    write_at(&bob, b"file", 0, b"newer").unwrap();
    let handle = open(&ann, b"file", READ_WRITE).unwrap();
    ann.write(handle, 30_000, b"on the newer", false).unwrap();
    // For example, a sync tool delivers another version of the file.
    let file = store.root().open_file(&stored, Access::ReadWrite).unwrap();
    file.write_at(&old, 0).unwrap();
    assert_eq!(errno(ann.fsync(handle, false)), libc::ESTALE);
    assert_eq!(errno(ann.write(handle, 0, b"more", false)), libc::ESTALE, "the error is repeated");
    let _ = ann.release(handle);
    assert_eq!(raw(&store), old);
    assert_eq!(
        get(&ann, b"file").unwrap(),
        pattern(1, 60_000),
        "the version that was delivered is read"
    );
    write_at(&ann, b"file", 0, b"x").unwrap();
    assert_eq!(get(&bob, b"file").unwrap()[0], b'x');
}

#[test]
fn a_directory_another_opener_renamed_is_looked_up_again() {
    // The directory was reported as moved by somebody without the key, with EIO. On ESTALE the
    // kernel looks the name up again.
    let (_store, ann, bob) = both();
    for (dir, file) in [(&b"x"[..], &b"x/f"[..]), (b"b", b"b/f")] {
        mkdir(&ann, dir).unwrap();
        put(&ann, file, file).unwrap();
    }
    // Ann's kernel still holds the directory and the file in it.
    let node = ann.resolve(b"x").unwrap().node;
    let within = ann.lookup(node, b"f").unwrap().node;
    rename(&ann, b"x", b"a", RenameMode::NoReplace).unwrap();
    rename(&bob, b"a", b"b", RenameMode::Exchange).unwrap();
    assert_eq!(errno(ann.lookup(node, b"f")), libc::ESTALE);
    assert_eq!(errno(ann.rename(node, b"f", node, b"g", RenameMode::Replace)), libc::ESTALE);
    ann.forget(within, 1);
    ann.forget(node, 1);
    assert_eq!(
        (get(&ann, b"a/f").unwrap(), get(&ann, b"b/f").unwrap()),
        (b"b/f".to_vec(), b"x/f".to_vec())
    );
    rename(&ann, b"a/f", b"a/g", RenameMode::Replace).unwrap();
    assert_eq!(get(&bob, b"a/g").unwrap(), b"b/f");
}

/// The file with a long name in `+long` was removed with the entry, even if another daemon had just
/// created an entry of that name and relied on the file. Now the file stays.
#[test]
fn a_long_name_removed_and_made_by_another_is_not_lost() {
    let long = [b'l'; 200];
    let (store, ann, bob) = both();
    put(&ann, &long, b"hers").unwrap();
    let sealed = raw::long_names(&store.root());
    ann.unlink(ROOT, &long).unwrap();
    put(&bob, &long, b"his").unwrap();
    assert_eq!(get(&ann, &long).unwrap(), b"his");
    assert_eq!(tree(&ann).unwrap().keys().collect::<Vec<_>>(), [&long.to_vec()]);
    let files = |all: Vec<(_, Vec<u8>)>| all.into_iter().map(|(_, file)| file).collect::<Vec<_>>();
    assert_eq!(files(raw::long_names(&store.root())), files(sealed));
    assert_eq!(faults(&ann), [""; 0]);
}

#[test]
fn what_both_do_to_names_leaves_one_tree_and_no_fault() {
    let (store, ann, bob) = both();
    for dir in [&b"a"[..], b"b", b"a/c"] {
        mkdir(&ann, dir).unwrap();
    }
    let dirs: [&[u8]; 5] = [b"a", b"b", b"a/c", b"b/c", b"a/d"];
    let act = |vault: &Vault, who: u8| {
        let random = Seeded::new(u64::from(who));
        let mut made = 0;
        for n in 0..250u32 {
            let pick = || dirs[random.below(dirs.len() as u64) as usize];
            let file = [pick(), b"/", &[who][..], n.to_string().as_bytes()].concat();
            let (from, to) = (pick(), pick());
            let done = match random.below(8) {
                0 => mkdir(vault, from),
                1 => at(vault, vaults::split(from).0, |parent| {
                    vault.rmdir(parent, vaults::split(from).1)
                }),
                2 | 3 => rename(vault, from, to, RenameMode::Replace),
                4 => rename(vault, from, to, RenameMode::Exchange),
                _ => put(vault, &file, &file).inspect(|()| made += 1),
            };
            let expected = [
                libc::ENOENT,
                libc::EEXIST,
                libc::ENOTEMPTY,
                libc::EINVAL,
                libc::ESTALE,
                libc::ENOTDIR,
                libc::EBUSY,
            ];
            if let Err(error) = done {
                assert!(expected.contains(&error.errno()), "{error}");
            }
        }
        made
    };
    let made: usize = std::thread::scope(|threads| {
        let (a, b) = (threads.spawn(|| act(&ann, b'x')), threads.spawn(|| act(&bob, b'y')));
        a.join().unwrap() + b.join().unwrap()
    });
    let hers = tree(&ann).unwrap();
    assert_eq!(hers, tree(&bob).unwrap());
    let files = hers.values().filter(|item| matches!(item, vaults::Item::File { .. })).count();
    assert_eq!(files, made, "a file is missing although no file was removed");
    assert_eq!(faults(&ann), [""; 0]);
    ann.close().unwrap();
    bob.close().unwrap();
    let (_, ann, _) = with_bob();
    assert_eq!(tree(&open_as(&store, &ann).unwrap()).unwrap(), hers);
}

/// What either opener has synced survives a power cut, whichever of them opens the vault first.
#[test]
fn synced_data_of_both_openers_survives_a_power_cut() {
    let (store, ann_id, bob_id) = with_bob();
    let (ann, bob) = (together(&store, &ann_id).unwrap(), together(&store, &bob_id).unwrap());
    put(&ann, b"file", &pattern(0, 60_000)).unwrap();
    let mut now = pattern(0, 60_000);
    for round in 1..=6u8 {
        let vault = if round % 2 == 0 { &ann } else { &bob };
        let handle = open_or_create(vault, b"file", READ_WRITE).unwrap();
        let place = usize::from(round) * 4500;
        vault.write(handle, place as u64, &[round; 5000], false).unwrap();
        now[place..place + 5000].fill(round);
        vault.fsync(handle, false).unwrap();
        vault.release(handle).unwrap();
        for (choice, harsh) in [(0, true), (1, false)] {
            let cut = store.snapshot().crash(&mut |n| if harsh { 0 } else { (n - 1).min(choice) });
            let ways = if round % 3 == 0 { [&ann_id, &bob_id] } else { [&bob_id, &ann_id] };
            for who in ways {
                let vault = together(&cut, who).unwrap();
                assert!(get(&vault, b"file").unwrap() == now, "round {round}");
                write_at(&vault, b"file", 0, &now[..3]).unwrap();
                vault.close().unwrap();
            }
        }
    }
}

/// A read of a damaged chunk was repeated for five seconds if the same daemon had the file open for
/// writing, because its own guard looked like that of a daemon in the middle of a commit.
#[test]
fn damage_is_reported_at_once_to_a_writer() {
    let (store, ann, _) = with_bob();
    let vault = together(&store, &ann).unwrap();
    put(&vault, b"file", &pattern(1, 100_000)).unwrap();
    let stored = vault.cipher_path(b"file").unwrap();
    vault.close().unwrap();
    let file = store.root().open_file(&stored, Access::ReadWrite).unwrap();
    file.write_at(b"damage", file.stat().unwrap().size / 2).unwrap();
    let plan = FaultPlan::new();
    let vault = Vault::open(
        FaultStore::wrap(store.root(), plan.clone()),
        &ann,
        trusting(false, LockMode::Shared),
    )
    .unwrap();
    let handle = open(&vault, b"file", READ_WRITE).unwrap();
    plan.reset();
    let read = |at: u64| vault.read(handle, at, &mut [0; 4096]).map(drop);
    assert!((0..24).any(|n| errno(read(n * 4096)) == libc::EIO));
    let reads = plan.count(Calls::Of(Call::Read));
    assert!(reads < 100, "{reads} reads");
    vault.release(handle).unwrap();
    vault.close().unwrap();
}

/// Opens the share for each of `who`, on a store whose locks behave as `how`.
pub(super) fn with_locks<const N: usize>(
    store: &MemStore,
    who: [&Identity; N],
    how: Locks,
) -> [Vault; N] {
    who.map(|who| {
        let plan = FaultPlan::new();
        plan.give_locks(how);
        Vault::open(FaultStore::wrap(store.root(), plan), who, trusting(false, LockMode::Shared))
            .unwrap()
    })
}

#[test]
fn the_locks_of_nfs_are_enough() {
    // NFS grants an exclusive lock only through a handle that is open for writing. The guards of
    // files, and the lock on all names, were requested through handles for reading, so nothing
    // could be written in a vault on NFS.
    let (store, ann, bob) = with_bob();
    let [ann, bob] = with_locks(&store, [&ann, &bob], Locks::ByAccess);
    put(&ann, b"file", &pattern(1, 40_000)).unwrap();
    let hers = open(&ann, b"file", READ_WRITE).unwrap();
    assert_eq!(errno(write_at(&bob, b"file", 0, b"x")), libc::EBUSY);
    ann.release(hers).unwrap();
    write_at(&bob, b"file", 0, b"x").unwrap();
    assert_eq!(get(&ann, b"file").unwrap()[0], b'x');
    mkdir(&bob, b"dir").unwrap();
    put(&bob, b"dir/in", b"it").unwrap();
    rename(&ann, b"dir", b"moved", RenameMode::Replace).unwrap();
    assert_eq!(get(&bob, b"moved/in").unwrap(), b"it");
    ann.close().unwrap();
    bob.close().unwrap();
    // Their bytes are constant and they are not removed, so a sync tool has nothing to do.
    for lock in [&b"+lock"[..], b"+lease"] {
        assert_eq!(raw::read(&*store.root(), lock), b"kithfs lock\n");
    }
}

/// On NFS, a descriptor showed the former contents of a file for as long as it was open, after
/// another machine had written the file. The daemon opens the ciphertext for writing, also for a
/// program that reads, and NFS keeps the pages of a file that is open for writing.
#[test]
fn a_store_that_keeps_pages_shows_others_commits() {
    let (store, ann, bob) = with_bob();
    let [ann, bob] = [&ann, &bob].map(|who| {
        let plan = FaultPlan::new();
        plan.give_locks(Locks::ByAccess);
        plan.keep_pages();
        Vault::open(FaultStore::wrap(store.root(), plan), who, trusting(false, LockMode::Shared))
            .unwrap()
    });
    for len in [10, 40_000] {
        put(&ann, b"file", &pattern(1, len)).unwrap();
        let open = open(&ann, b"file", READ).unwrap();
        for version in 2..5 {
            put(&bob, b"file", &pattern(version, len)).unwrap();
            let mut read = vec![0; len];
            assert_eq!(ann.read(open, 0, &mut read).unwrap(), len);
            assert!(read == pattern(version, len), "{len} bytes, version {version}");
        }
        ann.release(open).unwrap();
    }
}

#[test]
fn overlapping_commits_without_locks_are_errors() {
    // A machine sleeps in the middle of a commit and its locks expire; or the storage host grants
    // every lock. Bob commits at each moment of Ann's commit in turn.
    const LEN: usize = 40_000;
    let (start, ann_id, bob_id) = with_bob();
    {
        let vault = open_as(&start, &ann_id).unwrap();
        put(&vault, b"file", &pattern(0, LEN)).unwrap();
        let handle = open(&vault, b"file", READ_WRITE).unwrap();
        vault.fsync(handle, false).unwrap();
        vault.release(handle).unwrap();
        vault.close().unwrap();
    }
    let (hers, his) = ([1u8; 4096], [2u8; 4096]);
    let (mut failed, mut moment) = ((0, 0), 0);
    loop {
        let store = start.snapshot();
        let [ann, bob] = with_locks(&store, [&ann_id, &bob_id], Locks::Everybody);
        let (a, b) =
            (open(&ann, b"file", READ_WRITE).unwrap(), open(&bob, b"file", READ_WRITE).unwrap());
        // Segment 0 is Ann's, 5 in another chunk is Bob's, and 2 belongs to both.
        for segment in [0, 2] {
            ann.write(a, segment * 4096, &hers, false).unwrap();
        }
        for segment in [2, 5] {
            bob.write(b, segment * 4096, &his, false).unwrap();
        }
        let (count, fired): (Arc<AtomicU64>, Arc<parking_lot::Mutex<Option<i32>>>) =
            Default::default();
        let (vault, counted, outcome) = (bob.clone(), count.clone(), fired.clone());
        store.on_event(Box::new(move |_| {
            if counted.fetch_add(1, Ordering::AcqRel) == moment {
                *outcome.lock() = Some(errno(vault.fsync(b, false)));
            }
        }));
        let outcome_of_ann = errno(ann.fsync(a, false));
        store.on_event(Box::new(|_| {}));
        let outcome_of_bob = fired.lock().take();
        let _ = (ann.release(a), bob.release(b));
        let _ = (ann.close(), bob.close());
        let Some(outcome_of_bob) = outcome_of_bob else { break };
        let ok = [outcome_of_ann == 0, outcome_of_bob == 0];
        failed = (failed.0 + u32::from(!ok[0]), failed.1 + u32::from(!ok[1]));
        assert!(
            [0, libc::ESTALE, libc::EIO, libc::EBUSY].contains(&outcome_of_ann),
            "at {moment}: {outcome_of_ann}"
        );
        let vault = open_as(&store, &ann_id).unwrap();
        let handle = open(&vault, b"file", READ).unwrap();
        for segment in 0..(LEN / 4096) as u64 {
            let mut bytes = [0; 4096];
            let read = vault.read(handle, segment * 4096, &mut bytes);
            let before = &pattern(0, LEN)[segment as usize * 4096..][..4096];
            let Ok(_) = read else {
                assert_eq!(errno(read), libc::EIO, "at {moment}");
                continue;
            };
            let is = |what: &[u8]| bytes[..] == *what;
            let fits = match (segment, ok) {
                (0, [true, _]) => is(&hers),
                (0, _) => is(&hers) || is(before),
                (5, [_, true]) => is(&his),
                (5, _) => is(&his) || is(before),
                (2, [false, false]) => is(&hers) || is(&his) || is(before),
                (2, [true, false]) => is(&hers),
                (2, [false, true]) => is(&his),
                (2, _) => is(&hers) || is(&his),
                _ => is(before),
            };
            assert!(fits, "at {moment}: segment {segment} with {ok:?}: {:?}", &bytes[..4]);
        }
        moment += 1;
    }
    assert!(moment > 5 && failed.0 > 2, "{moment} moments, failed commits: {failed:?}");
}

#[test]
fn taking_over_from_a_dead_committer_survives_a_power_cut() {
    // Bob's record contained only the bytes by which an index block differed from the block that he
    // had read. The file held, in part or whole, the block that Ann had written before her
    // daemon died. So a replay restored neither his block nor hers, and nothing could be read.
    // Later, what he had half overwritten was lost if she was the first to replay: both records began
    // with the same header.
    const CHUNK: usize = 1 << 14;
    let (start, ann_id, bob_id) = with_bob();
    {
        let vault = open_as(&start, &ann_id).unwrap();
        put(&vault, b"file", &pattern(0, CHUNK)).unwrap();
        let handle = open(&vault, b"file", READ_WRITE).unwrap();
        vault.write(handle, 3 * CHUNK as u64, &pattern(1, CHUNK), false).unwrap();
        vault.fsync(handle, false).unwrap();
        vault.release(handle).unwrap();
        vault.close().unwrap();
    }
    let (hers, his) = ([1u8; 4096], [2u8; 4096]);
    let mut cuts = 0;
    for calls in 1.. {
        let store = start.snapshot();
        let plan = FaultPlan::new();
        let ann = Vault::open(
            FaultStore::wrap(store.root(), plan.clone()),
            &ann_id,
            trusting(false, LockMode::Shared),
        )
        .unwrap();
        let bob = together(&store, &bob_id).unwrap();
        // Bob has read the file, and has its blocks in memory.
        let b = open(&bob, b"file", READ).unwrap();
        bob.read(b, 0, &mut [0; CHUNK]).unwrap();
        bob.read(b, 3 * CHUNK as u64, &mut [0; CHUNK]).unwrap();
        let a = open(&ann, b"file", READ_WRITE).unwrap();
        // This chunk is a hole: it has no old bytes to lose.
        ann.write(a, CHUNK as u64, &hers, false).unwrap();
        plan.reset();
        plan.add(Fault {
            calls: Calls::All,
            when: When::From(calls),
            errno: libc::EIO,
            short: false,
        });
        let done = ann.fsync(a, false).is_ok();
        drop(ann);
        if done {
            break;
        }
        let b = open(&bob, b"file", READ_WRITE).unwrap();
        let wrote = errno(bob.write(b, 0, &his, false));
        if wrote == libc::EIO {
            // Ann has half written a block (which depends on random bytes), and her replay
            // completes it.
            bob.close().unwrap();
            let bytes = get(&together(&store, &ann_id).unwrap(), b"file").unwrap();
            assert!(bytes[CHUNK..][..4096] == hers && bytes[..CHUNK] == pattern(0, CHUNK));
            continue;
        }
        assert_eq!(wrote, 0, "call {calls}");
        let moments: Arc<parking_lot::Mutex<Vec<MemStore>>> = Arc::default();
        let (watched, seen) = (store.clone(), moments.clone());
        store.on_event(Box::new(move |_| seen.lock().push(watched.snapshot())));
        bob.fsync(b, false).unwrap();
        store.on_event(Box::new(|_| {}));
        moments.lock().push(store.snapshot());
        for (moment, cut) in moments.lock().iter().enumerate() {
            for seed in 0..4 {
                let random = Seeded::new(seed);
                let choice = |n: usize| match seed {
                    0 => 0,
                    1 => n - 1,
                    _ => random.below(n as u64) as usize,
                };
                let cut = cut.crash(&mut { choice });
                let what = format!("call {calls}, moment {moment}, way {seed}");
                // Nothing is promised before both have replayed their journals.
                let (first, second) =
                    if moment % 2 == 0 { (&bob_id, &ann_id) } else { (&ann_id, &bob_id) };
                together(&cut, first).unwrap().close().unwrap();
                let vault = together(&cut, second).unwrap();
                let bytes = get(&vault, b"file").unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(bytes[..4096] == his || bytes[..4096] == pattern(0, 4096), "{what}");
                assert!(
                    bytes[CHUNK..][..4096] == hers || bytes[CHUNK..][..4096] == [0; 4096],
                    "{what}"
                );
                assert!(
                    bytes[4096..CHUNK] == pattern(0, CHUNK)[4096..]
                        && bytes[3 * CHUNK..] == pattern(1, CHUNK),
                    "{what}"
                );
                vault.close().unwrap();
                cuts += 1;
            }
        }
    }
    assert!(cuts > 100, "{cuts} cuts");
}

/// Ann's daemon died at some moment of a commit, with one chunk half written. Bob changed another
/// chunk and committed that, or renamed the file. Her record did not apply any more, or was not
/// looked for under the new name, so nobody could read her chunk ever again, although all of it had
/// been synced before. Now his change fails if there is such a chunk.
#[test]
fn a_half_written_chunk_can_still_be_completed() {
    const CHUNK: usize = 1 << 14;
    const LEN: usize = 3 * CHUNK;
    let (start, ann_id, bob_id) = with_bob();
    {
        let vault = open_as(&start, &ann_id).unwrap();
        put(&vault, b"file", &pattern(0, LEN)).unwrap();
        let handle = open(&vault, b"file", READ_WRITE).unwrap();
        vault.fsync(handle, false).unwrap();
        vault.release(handle).unwrap();
        vault.close().unwrap();
    }
    let (hers, his, before) = ([1u8; 8192], [2u8; 4096], pattern(0, LEN));
    let (mut refused, mut wrote, mut renamed) = (0, 0, 0);
    for (short, renames) in [(false, false), (true, false), (false, true), (true, true)] {
        for calls in 1.. {
            let what = format!("call {calls}, short {short}, renames {renames}");
            let store = start.snapshot();
            let plan = FaultPlan::new();
            let wrapped = FaultStore::wrap(store.root(), plan.clone());
            let ann = Vault::open(wrapped, &ann_id, trusting(false, LockMode::Shared)).unwrap();
            let a = open(&ann, b"file", READ_WRITE).unwrap();
            ann.write(a, 0, &hers, false).unwrap();
            plan.reset();
            let when = When::From(calls);
            plan.add(Fault { calls: Calls::All, when, errno: libc::EIO, short });
            let done = ann.fsync(a, false).is_ok();
            drop(ann);
            if done {
                break;
            }
            let bob = together(&store, &bob_id).unwrap();
            let (mut name, mut wanted) = (&b"file"[..], before.clone());
            if renames {
                rename(&bob, b"file", b"other", RenameMode::Replace).unwrap();
                name = b"other";
                renamed += 1;
            } else {
                let written = open(&bob, b"file", READ_WRITE).and_then(|b| {
                    let written = bob.write(b, 2 * CHUNK as u64, &his, false);
                    let written = written.and_then(|()| bob.fsync(b, false));
                    bob.release(b)?;
                    written
                });
                match errno(written) {
                    0 => {
                        wanted[2 * CHUNK..][..4096].copy_from_slice(&his);
                        wrote += 1;
                    }
                    error => {
                        assert_eq!(error, libc::EIO, "{what}");
                        refused += 1;
                    }
                }
            }
            bob.close().unwrap();
            let ann = together(&store, &ann_id).unwrap();
            let bytes = get(&ann, name).unwrap_or_else(|e| panic!("{what}: {e}"));
            for (at, part) in bytes[..8192].chunks(4096).enumerate() {
                let is_hers = part == &hers[..4096];
                assert!(is_hers || part == &before[at * 4096..][..4096], "{what}");
            }
            assert!(bytes[8192..] == wanted[8192..], "{what}");
            // From here on the file can be changed again.
            let a = open(&ann, name, READ_WRITE).unwrap_or_else(|e| panic!("{what}: {e}"));
            ann.write(a, CHUNK as u64, &his, false).unwrap();
            ann.fsync(a, false).unwrap();
        }
    }
    assert!(refused > 0 && wrote > 2 && renamed > 5, "{refused} {wrote} {renamed}");
}

/// Daemons of other users have to see whether a journal has records.
#[test]
fn a_journal_can_be_read_by_those_who_write_beside_it() {
    let (store, ann, bob) = with_bob();
    let root = store.root();
    for (perm, wanted) in [(0o700, 0o600), (0o770, 0o640), (0o777, 0o644)] {
        root.chmod_self(perm).unwrap();
        let (ann, bob) = (together(&store, &ann).unwrap(), together(&store, &bob).unwrap());
        put(&ann, b"file", b"one").unwrap();
        put(&ann, b"file", b"two").unwrap();
        let mut names = raw::names(&*root);
        names.retain(|name| name.starts_with(b"+journal-"));
        assert!(!names.is_empty());
        for name in names {
            assert_eq!(root.stat(&name).unwrap().perm & 0o777, wanted);
        }
        ann.close().unwrap();
        bob.close().unwrap();
    }
}

/// The whole file is read only if a daemon has left records behind.
#[test]
fn a_write_beside_an_idle_daemon_reads_a_part_of_the_file() {
    let (store, ann, bob) = with_bob();
    let plan = FaultPlan::new();
    let wrapped = FaultStore::wrap(store.root(), plan.clone());
    let ann = together(&store, &ann).unwrap();
    let bob = Vault::open(wrapped, &bob, trusting(false, LockMode::Shared)).unwrap();
    put(&ann, b"file", &pattern(0, 4 << 20)).unwrap();
    write_at(&ann, b"file", 5000, b"hers").unwrap();
    let before = plan.count(Calls::Of(Call::Read));
    let handle = open(&bob, b"file", READ_WRITE).unwrap();
    bob.write(handle, 0, b"his", false).unwrap();
    let reads = plan.count(Calls::Of(Call::Read)) - before;
    assert!((1..40).contains(&reads), "{reads} of a file of 256 chunks");
    bob.release(handle).unwrap();
}

/// The owner of a journal may stay away for long. Others read a file once because of it, not for
/// each open.
#[test]
fn a_file_is_read_once_for_what_a_dead_daemon_left() {
    let (start, ann_id, bob_id) = with_bob();
    {
        let vault = open_as(&start, &ann_id).unwrap();
        put(&vault, b"hers", &pattern(0, 40_000)).unwrap();
        put(&vault, b"file", &pattern(1, 4 << 20)).unwrap();
        vault.close().unwrap();
    }
    let mut read = 0;
    for calls in 1.. {
        let store = start.snapshot();
        let (dead, seen) = (FaultPlan::new(), FaultPlan::new());
        let open_by = |id, plan: &Arc<FaultPlan>| {
            let wrapped = FaultStore::wrap(store.root(), plan.clone());
            Vault::open(wrapped, id, trusting(false, LockMode::Shared)).unwrap()
        };
        let ann = open_by(&ann_id, &dead);
        let handle = open(&ann, b"hers", READ_WRITE).unwrap();
        ann.write(handle, 0, &[1; 8192], false).unwrap();
        dead.reset();
        let when = When::From(calls);
        dead.add(Fault { calls: Calls::All, when, errno: libc::EIO, short: false });
        let done = ann.fsync(handle, false).is_ok();
        drop(ann);
        if done {
            break;
        }
        let bob = open_by(&bob_id, &seen);
        let write = |at| {
            let before = seen.count(Calls::Of(Call::Read));
            let handle = open(&bob, b"file", READ_WRITE).unwrap();
            bob.write(handle, at, b"his", false).unwrap();
            bob.fsync(handle, false).unwrap();
            bob.release(handle).unwrap();
            seen.count(Calls::Of(Call::Read)) - before
        };
        let (first, second) = (write(0), write(100_000));
        read += u32::from(first >= 256);
        assert!(second < 40, "call {calls}: {second} calls for 256 chunks, and {first} before");
    }
    assert!(read > 2, "the whole file was read {read} times");
}

/// Returns whether a process holds a lock on a file in the root of a store.
fn is_locked(store: &MemStore, name: &[u8]) -> bool {
    let all = Span { first: 0, last: Span::END };
    let file = store.root().open_file(name, Access::Read);
    file.is_ok_and(|file| file.find_lock(Lock::Exclusive, all).unwrap().is_some())
}

#[test]
fn removing_the_lock_file_admits_no_second_writer() {
    // Each opener is on a machine of its own; only the lock file keeps them apart.
    let (store, ann_id, bob_id) = with_bob();
    let alone = |who: &Identity| {
        let plan = FaultPlan::new();
        plan.give_locks(Locks::ByAccess);
        let store = FaultStore::wrap(store.root(), plan);
        Vault::open(store, who, trusting(false, LockMode::Exclusive))
    };
    let hers = FaultPlan::new();
    hers.give_locks(Locks::ByAccess);
    let root = FaultStore::wrap(store.root(), hers);
    let ann = Vault::open(root, &ann_id, trusting(false, LockMode::Shared)).unwrap();
    let [bob] = with_locks(&store, [&bob_id], Locks::ByAccess);
    put(&ann, b"file", b"hers").unwrap();
    // No other opener arrives: the file is created again, and keeps others out again. It exists
    // a moment before it is locked.
    store.root().unlink(b"+lock").unwrap();
    while !is_locked(&store, b"+lock") {
        std::thread::yield_now();
    }
    assert!(matches!(alone(&ann_id), Err(Error::InUse { .. })));
    bob.close().unwrap();
    // Another opener that wants the vault alone is faster. The former holder's
    // writes then fail.
    let other = loop {
        let _ = store.root().unlink(b"+lock");
        if let Ok(other) = alone(&bob_id) {
            break other;
        }
    };
    let handle = open(&ann, b"file", READ_WRITE).unwrap();
    let refused = loop {
        match ann.write(handle, 0, b"late", false).and_then(|()| ann.fsync(handle, false)) {
            Ok(()) => std::thread::yield_now(), // until the daemon has looked for the lock file
            Err(error) => break error.errno(),
        }
    };
    assert_eq!(refused, libc::EROFS);
    assert_eq!(get(&ann, b"file").unwrap().len(), 4, "reading goes on");
    let _ = (ann.release(handle), ann.close());
    assert!(
        matches!(alone(&ann_id), Err(Error::InUse { .. })),
        "Ann's close removed a lock that is not hers"
    );
    put(&other, b"file", b"his").unwrap();
    other.close().unwrap();
    assert_eq!(get(&open_as(&store, &ann_id).unwrap(), b"file").unwrap(), b"his");
}

#[test]
fn a_file_replaced_under_its_writer_is_another_file() {
    // As in any filesystem: a program that renames a new version over the old one leaves the
    // handles of the old one on a file without a name.
    let (store, ann, bob) = both();
    for name in [&b"file"[..], b"other"] {
        put(&ann, name, &pattern(name.len() as u64, 40_000)).unwrap();
    }
    let [file, other] = [&b"file"[..], b"other"].map(|name| ann.cipher_path(name).unwrap());
    let hers = open(&ann, b"file", READ_WRITE).unwrap();
    ann.write(hers, 0, b"to the old one", false).unwrap();
    store.root().rename(&other, &*store.root(), &file, StoreRename::Replace).unwrap();
    ann.fsync(hers, false).unwrap();
    let mut bytes = [0; 14];
    ann.read(hers, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"to the old one");
    ann.release(hers).unwrap();
    for vault in [&ann, &bob] {
        assert_eq!(get(vault, b"file").unwrap(), pattern(5, 40_000));
    }
    assert_eq!(faults(&ann), [""; 0]);
}

/// A sync tool renamed another version of a file over the one that a program had open. The program's
/// data went to the file without a name, and `fsync` succeeded.
#[test]
fn a_version_that_replaces_an_open_file_is_an_error() {
    let (store, ann, bob) = with_bob();
    let (hers, his) = (together(&store, &ann).unwrap(), together(&store, &bob).unwrap());
    put(&hers, b"file", &pattern(1, 60_000)).unwrap();
    let stored = hers.cipher_path(b"file").unwrap();
    let copy = store.snapshot();
    let there = together(&copy, &bob).unwrap();
    write_at(&there, b"file", 0, b"newer").unwrap();
    there.close().unwrap();

    let handle = open(&hers, b"file", READ_WRITE).unwrap();
    hers.write(handle, 0, b"hers!", false).unwrap();
    raw::replace(&*store.root(), &stored, &raw::read(&*copy.root(), &stored));
    for vault in [&hers, &his] {
        assert_eq!(&get(vault, b"file").unwrap()[..5], b"newer");
    }
    assert_eq!(errno(hers.fsync(handle, false)), libc::ESTALE);
    assert_eq!(errno(hers.write(handle, 0, b"more", false)), libc::ESTALE, "it is repeated");
    let _ = hers.release(handle);
    write_at(&hers, b"file", 0, b"again").unwrap();
    assert_eq!(&get(&his, b"file").unwrap()[..5], b"again");
    assert_eq!(faults(&his), [""; 0]);
}

#[test]
fn the_openers_of_a_vault_are_listed_without_a_secret() {
    let (store, ann, bob) = both();
    let described = |store: &MemStore| Vault::describe(&store.root()).unwrap();
    assert_eq!(described(&store).shared_by.len(), 2);
    assert!(
        described(&store)
            .shared_by
            .iter()
            .all(|holder| holder.pid == std::process::id() && holder.since_unix > 0)
    );
    assert!(described(&store).locked_by.is_none());
    ann.close().unwrap();
    assert_eq!(described(&store).shared_by.len(), 1);
    assert!(described(&store).shared_by.iter().all(|holder| !holder.host.is_empty()));
    bob.close().unwrap();
    assert_eq!(described(&store).shared_by.len(), 0);
    let (alone, _, _) = with_bob();
    let ann = open_as(&alone, &person(1)).unwrap();
    assert_eq!(described(&alone).locked_by.map(|holder| holder.pid), Some(std::process::id()));
    ann.close().unwrap();
    assert!(described(&alone).locked_by.is_none());
    for store in [&store, &alone] {
        assert!(
            raw::named(&*store.root(), b"+lock").is_empty(),
            "a file of the store names a process"
        );
    }
}

#[test]
fn data_under_a_new_key_is_readable_at_once() {
    // Ann has just begun a new epoch. Bob's daemon, which looks for one twice a second, had not
    // seen it and failed.
    let (_store, ann, bob) = both();
    put(&ann, b"file", b"old").unwrap();
    let handle = open(&bob, b"file", READ).unwrap();
    for round in 0..3 {
        ann.share_at(b"").unwrap().rekey().unwrap();
        let contents = format!("new in round {round}").into_bytes();
        put(&ann, b"file", &contents).unwrap();
        let mut buf = [0; 100];
        let read = bob.read(handle, 0, &mut buf).unwrap();
        assert_eq!(buf[..read], contents);
        assert_eq!(get(&bob, b"file").unwrap(), contents);
    }
    bob.release(handle).unwrap();
}

/// Creates the share `folder` in a vault, with Bob as a writer.
fn share_folder(vault: &Vault) -> Result<(), Error> {
    let others = vec![member(&person(2), Role::Writer, "Bob")];
    let share = CreateShare { name: "Ann".into(), others, ..CreateShare::default() };
    vault.create_share(b"folder", &share, &mut |_| {}).map(drop)
}

#[test]
fn a_folder_becomes_a_share_beside_another_opener() {
    // This failed with EBUSY, whether or not another daemon had a file of the folder open.
    let (_store, ann, bob) = both();
    mkdir(&ann, b"folder").unwrap();
    mkdir(&ann, b"folder/sub").unwrap();
    put(&ann, b"folder/sub/file", b"hers").unwrap();
    let handle = open(&bob, b"folder/sub/file", READ_WRITE).unwrap();
    bob.write(handle, 0, b"his!", false).unwrap();
    assert_eq!(errno(share_folder(&ann)), libc::EBUSY, "Bob has a file open for writing");
    bob.release(handle).unwrap();
    let reading = open(&bob, b"folder/sub/file", READ).unwrap();
    let sub = bob.resolve(b"folder/sub").unwrap().node;
    let file = bob.resolve(b"folder/sub/file").unwrap().node;
    share_folder(&ann).unwrap();
    assert_eq!(get(&ann, b"folder/sub/file").unwrap(), b"his!");
    assert_eq!(get(&bob, b"folder/sub/file").unwrap(), b"his!");
    // The former folder, which Bob's programs still hold, accepts nothing that would be lost.
    let mut read = [0; 4];
    assert_eq!(bob.read(reading, 0, &mut read).unwrap(), 4);
    assert_ne!(errno(bob.open_file(file, READ_WRITE)), 0);
    assert_ne!(errno(bob.create_file(&CALLER, sub, b"new", 0o600, READ_WRITE)), 0);
    bob.release(reading).unwrap();
    put(&bob, b"folder/sub/file", b"both").unwrap();
    assert_eq!(get(&ann, b"folder/sub/file").unwrap(), b"both");
    assert_eq!(faults(&ann), [""; 0]);
}

/// Bob opens a file for writing after Ann has looked for writers, and before the folder is removed.
/// What he wrote went to a file without a name.
#[test]
fn a_file_opened_while_its_folder_becomes_a_share_is_refused() {
    let (store, ann, bob) = with_bob();
    let ann = together(&store, &ann).unwrap();
    let bob = Vault::open(store.root(), &bob, trusting(false, LockMode::Shared)).unwrap();
    mkdir(&ann, b"folder").unwrap();
    put(&ann, b"folder/file", b"hers").unwrap();
    let file = bob.resolve(b"folder/file").unwrap().node;
    let (opened, opens) = std::sync::mpsc::channel();
    let (begun, his, watched) = (AtomicBool::new(false), bob.clone(), store.clone());
    store.on_event(Box::new(move |event| {
        let is_entry = event.name.is_some_and(|name| !name.starts_with(b"+"));
        if event.call != Call::Rename || !is_entry || begun.swap(true, Ordering::Relaxed) {
            return;
        }
        // The share is about to take the folder's place.
        let (his, opened) = (his.clone(), opened.clone());
        std::thread::spawn(move || {
            let result = his.open_file(file, READ_WRITE).and_then(|open| {
                his.write(open.handle, 0, b"lost", false)?;
                his.release(open.handle)
            });
            let _ = opened.send(errno(result));
        });
        // Until Bob's daemon waits for the lease, to open the file for writing.
        while !is_locked(&watched, b"+wanted") {
            std::thread::yield_now();
        }
    }));
    share_folder(&ann).unwrap();
    assert_eq!(opens.recv_timeout(Duration::from_secs(60)).unwrap(), libc::ESTALE);
    assert_eq!(get(&bob, b"folder/file").unwrap(), b"hers");
}

/// A file was renamed by another daemon while it was being opened to be truncated. The open failed, and
/// its release emptied the file under the new name.
#[test]
fn a_truncating_open_that_fails_empties_no_renamed_file() {
    let (mut failed, mut opened) = (0, 0);
    for (call, nth) in [Call::OpenFile, Call::Lock, Call::Stat]
        .into_iter()
        .flat_map(|call| (1..30).map(move |n| (call, n)))
    {
        let (store, ann, _) = with_bob();
        let plan = FaultPlan::new();
        let daemon = Vault::open(
            FaultStore::wrap(store.root(), plan.clone()),
            &ann,
            trusting(false, LockMode::Shared),
        )
        .unwrap();
        put(&daemon, b"file", &pattern(1, 40_000)).unwrap();
        let (root, stored) = (store.root(), daemon.cipher_path(b"file").unwrap());
        let before = raw::read(&*root, &stored);
        let calls = AtomicU64::new(0);
        let renamed = Arc::new(AtomicBool::new(false));
        let is_renamed = renamed.clone();
        let store = root.clone();
        plan.before(call, move || {
            if calls.fetch_add(1, Ordering::Relaxed) + 1 == nth {
                store.rename(&stored, &*store, b"elsewhere", StoreRename::NoReplace).unwrap();
                is_renamed.store(true, Ordering::Relaxed);
            }
        });
        let truncate = OpenFlags { truncate: true, ..READ_WRITE };
        let result = open(&daemon, b"file", truncate);
        if !renamed.load(Ordering::Relaxed) {
            continue;
        }
        if result.is_err() {
            failed += 1;
            assert!(raw::read(&*root, b"elsewhere") == before, "before {call:?} {nth}");
        } else {
            opened += 1;
        }
    }
    assert!(failed > 0, "{failed} failed, {opened} opened");
}
