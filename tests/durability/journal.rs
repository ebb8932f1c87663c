//! Stories of durability: each test shows a way in which data was lost, or could have been.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kithfs::crypto::Suite;
use kithfs::format::journal::{ALIGN, RECORD_HEAD, RECORDS_AT, record_head};
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, Dir, Lock, SetTime, Timestamp};
use kithfs::vault::{
    CreateOptions, CreateShare, Fallocate, OpenFlags, OpenOptions, RenameMode, SetAttr, Vault,
};

use crate::support::members;
use crate::support::raw;
use crate::support::vaults::{self, READ, READ_WRITE, Seeded, at, get, pattern, put};

fn store(chunk_log2: u8) -> MemStore {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, chunk_log2);
    store
}

/// Creates a file that survives any power cut from now on.
fn durable(vault: &Vault, path: &[u8], bytes: &[u8]) {
    put(vault, path, bytes).unwrap();
    let handle = vaults::open_or_create(vault, path, READ_WRITE).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.release(handle).unwrap();
    sync_root(vault);
}

fn sync_root(vault: &Vault) {
    let handle = vault.open_dir(kithfs::vault::ROOT).unwrap();
    vault.sync_dir(handle).unwrap();
    vault.release_dir(handle);
}

fn overwrite(
    vault: &Vault,
    path: &[u8],
    offset: u64,
    bytes: &[u8],
) -> Result<(), kithfs::vault::Error> {
    let handle = vaults::open_or_create(vault, path, READ_WRITE)?;
    let done = vault.write(handle, offset, bytes, false).and_then(|()| vault.fsync(handle, false));
    let _ = vault.release(handle);
    done
}

fn fill_up(store: &MemStore, vault: &Vault) {
    let space = vault.space().unwrap();
    store.set_capacity(Some((space.blocks - space.free) * space.block_size));
}

fn patched(mut bytes: Vec<u8>, offset: usize, patch: &[u8]) -> Vec<u8> {
    bytes.resize(bytes.len().max(offset + patch.len()), 0);
    bytes[offset..offset + patch.len()].copy_from_slice(patch);
    bytes
}

fn journals(store: &Arc<dyn Dir>) -> usize {
    store
        .reopen()
        .unwrap()
        .read(0, 1 << 20)
        .unwrap()
        .iter()
        .filter(|e| e.name.starts_with(b"+journal-"))
        .count()
}

fn open_read_only(store: Arc<dyn Dir>) -> Vault {
    Vault::open(store, &vaults::owner(), OpenOptions { read_only: true, ..OpenOptions::default() })
        .unwrap()
}

#[test]
fn a_file_that_a_full_store_refuses_to_shorten_keeps_its_bytes() {
    // A truncation for which the journal found no space stayed in memory. The file counted as
    // small, the next write filled places to which the durable header still referred, and growth
    // brought the old bytes back.
    for (chunk_log2, size) in
        [(12, 100), (12, 4096), (12, 10_001), (18, 0), (18, 100), (18, 10_001), (18, 262_144)]
    {
        for was_durable in [true, false] {
            let what = format!("chunks of 2^{chunk_log2}, cut to {size}, durable: {was_durable}");
            let store = store(chunk_log2);
            let vault = vaults::open(store.root()).unwrap();
            let old = pattern(1, 300_000);
            if was_durable {
                durable(&vault, b"file", &old);
            }
            let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
            if !was_durable {
                vault.write(handle, 0, &old, false).unwrap();
                vault.commit_due(std::time::Duration::ZERO);
            }
            fill_up(&store, &vault);
            let cut = at(&vault, b"file", |node| {
                vault.setattr(node, &SetAttr { size: Some(size), ..SetAttr::default() })
            });
            let now = match &cut {
                // None of the old contents is needed any more, so nothing needs the journal.
                Ok(_) => old[..size as usize].to_vec(),
                Err(e) => {
                    assert!(size > 0 && was_durable, "{what}: {e}");
                    assert_eq!(e.errno(), libc::ENOSPC, "{what}");
                    old.clone()
                }
            };
            assert!(cut.is_err() == (size > 0 && was_durable), "{what}");
            assert_eq!(get(&vault, b"file").unwrap().len(), now.len(), "{what}");
            assert!(get(&vault, b"file").unwrap() == now, "{what}: while it is full");
            // The write may be accepted or refused; existing data stays until the next commit.
            let more = pattern(2, 9000);
            let written = vault.write(handle, 5000, &more, false).is_ok();
            if was_durable && size > 0 {
                let crashed = store.crash(&mut |_| 0);
                crashed.set_capacity(None);
                assert!(
                    get(&vaults::open(crashed.root()).unwrap(), b"file").unwrap() == old,
                    "{what}: after a power cut"
                );
            }
            store.set_capacity(None);
            let wanted = if written { patched(now, 5000, &more) } else { now };
            if written {
                vault.fsync(handle, false).unwrap();
                assert!(get(&vault, b"file").unwrap() == wanted, "{what}: after there is space");
            }
            vault.release(handle).unwrap();
            vault.close().unwrap();
            if written {
                assert!(
                    get(&vaults::open(store.root()).unwrap(), b"file").unwrap() == wanted,
                    "{what}: opened again"
                );
            }
        }
    }
}

#[test]
fn bytes_written_where_a_hole_was_refused_stay() {
    // The ranges of a hole that a full store had refused were kept for the next commit, which
    // punched them out of data written there since.
    let store = store(12);
    let vault = vaults::open(store.root()).unwrap();
    durable(&vault, b"file", &pattern(1, 100_000));
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    fill_up(&store, &vault);
    vault.fallocate(handle, 8192, 40_960, Fallocate::PunchHole).unwrap();
    assert_eq!(vault.flush(handle).unwrap_err().errno(), libc::ENOSPC);
    store.set_capacity(None);
    vault.write(handle, 16_384, &pattern(2, 8192), false).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.release(handle).unwrap();
    vault.close().unwrap();
    let mut wanted = pattern(1, 100_000);
    wanted[8192..49_152].fill(0);
    let wanted = patched(wanted, 16_384, &pattern(2, 8192));
    assert!(get(&vaults::open(store.root()).unwrap(), b"file").unwrap() == wanted);
}

#[test]
fn many_small_holes_are_committed_together() {
    // Each hole was committed at once, with a flush of the store: to punch every other block of 100
    // MiB took minutes.
    let store = store(12);
    vaults::open(store.root()).unwrap().close().unwrap();
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    let old = pattern(1, 4 << 20);
    durable(&vault, b"file", &old);
    let handle = open_synced(&vault, b"file");
    plan.reset();
    for at in (0..old.len() as u64).step_by(8192) {
        vault.fallocate(handle, at, 4096, Fallocate::PunchHole).unwrap();
    }
    let flushes = plan.count(Calls::Of(Call::SyncData)) + plan.count(Calls::Of(Call::SyncAll));
    assert!(flushes < 20, "{flushes} flushes for 512 holes");
    vault.release(handle).unwrap();
    vault.close().unwrap();
    let found = get(&vaults::open(store.root()).unwrap(), b"file").unwrap();
    assert!((0..old.len()).all(|at| found[at] == if at % 8192 < 4096 { 0 } else { old[at] }));
}

#[test]
fn an_fsync_survives_an_unapplied_record_of_another_file() {
    // A record that could not be applied left its journal for the next replay, and another journal
    // was begun beside it. If a power cut tore a file with records in both, the wrong one was
    // applied first and an acknowledged fsync was lost. The first write is that of the record.
    for (call, nth) in [(Call::Write, 2), (Call::SetTimes, 1)] {
        let store = store(12);
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        durable(&vault, b"good", &pattern(1, 40_000));
        durable(&vault, b"bad", &pattern(2, 40_000));
        overwrite(&vault, b"good", 4096, &pattern(3, 4096)).unwrap();
        let handle = vaults::open_or_create(&vault, b"bad", READ_WRITE).unwrap();
        vault.write(handle, 0, &pattern(4, 8192), false).unwrap();
        plan.reset();
        plan.add(Fault {
            calls: Calls::Of(call),
            when: When::Nth(nth),
            errno: libc::EIO,
            short: true,
        });
        assert_eq!(vault.fsync(handle, false).unwrap_err().errno(), libc::EIO);
        assert_eq!(
            vault.write(handle, 0, b"x", false).unwrap_err().errno(),
            libc::EIO,
            "the error sticks"
        );
        assert_eq!(plan.failed(), 1);
        overwrite(&vault, b"good", 8192, &pattern(5, 4096)).unwrap();
        assert_eq!(journals(&store.root()), 1, "one journal at a time");
        let good =
            patched(patched(pattern(1, 40_000), 4096, &pattern(3, 4096)), 8192, &pattern(5, 4096));
        let bad = patched(pattern(2, 40_000), 0, &pattern(4, 8192));
        for round in 0..60 {
            let random = Seeded::new(round + 1);
            let crashed =
                store.crash(&mut |n| if round == 0 { 0 } else { random.below(n as u64) as usize });
            let again = vaults::open(crashed.root()).unwrap();
            assert!(get(&again, b"good").unwrap() == good, "round {round}");
            assert!(get(&again, b"bad").unwrap() == bad, "round {round}: its record was durable");
        }
        let _ = vault.release(handle);
        // A new open first repairs the file.
        assert!(get(&vault, b"bad").unwrap() == bad);
        overwrite(&vault, b"bad", 0, b"again").unwrap();
        vault.close().unwrap();
        assert_eq!(journals(&store.root()), 0);
        assert!(
            get(&vaults::open(store.root()).unwrap(), b"bad").unwrap() == patched(bad, 0, b"again")
        );
    }
}

#[test]
fn records_of_an_unflushable_file_are_carried_over() {
    // A checkpoint that could not flush a file forgot all the files after it.
    let store = store(12);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    let names: Vec<Vec<u8>> = (0..6).map(|n| format!("file {n}").into_bytes()).collect();
    for name in &names {
        durable(&vault, name, &pattern(1, 20_000));
        overwrite(&vault, name, 4096, &pattern(2, 4096)).unwrap();
    }
    plan.reset();
    // Two files are refused, when they are flushed and when their records are written again.
    plan.add(Fault {
        calls: Calls::Of(Call::SyncAll),
        when: When::Nth(2),
        errno: libc::EIO,
        short: false,
    });
    plan.add(Fault {
        calls: Calls::Of(Call::SyncAll),
        when: When::Nth(4),
        errno: libc::EIO,
        short: false,
    });
    plan.add(Fault {
        calls: Calls::Of(Call::Write),
        when: When::Nth(1),
        errno: libc::EIO,
        short: true,
    });
    plan.add(Fault {
        calls: Calls::Of(Call::Write),
        when: When::Nth(2),
        errno: libc::EIO,
        short: true,
    });
    // The rename of a file requests a checkpoint; that file may be one of the two.
    let _ = vaults::rename(&vault, &names[0], b"renamed", kithfs::vault::RenameMode::NoReplace);
    assert!(plan.failed() >= 3, "{}", plan.failed());
    for round in 0..40 {
        let random = Seeded::new(round + 1);
        let crashed =
            store.crash(&mut |n| if round == 0 { 0 } else { random.below(n as u64) as usize });
        let again = vaults::open(crashed.root()).unwrap();
        let wanted = patched(pattern(1, 20_000), 4096, &pattern(2, 4096));
        for name in &names {
            let found = get(&again, name).or_else(|_| get(&again, b"renamed")).unwrap();
            assert!(found == wanted, "round {round}: {}", name.escape_ascii());
        }
    }
    plan.heal();
    vault.close().unwrap();
    assert_eq!(journals(&store.root()), 0);
}

#[test]
fn a_file_is_not_opened_before_its_records_are_replayed() {
    // A replay that could not write a file kept its journal and opened the vault. The file was
    // served in the state before, and commits on top of it made the records worthless.
    let live = store(12);
    let vault = vaults::open(live.root()).unwrap();
    durable(&vault, b"file", &pattern(1, 40_000));
    durable(&vault, b"other", &pattern(2, 100));
    overwrite(&vault, b"file", 8192, &pattern(3, 4096)).unwrap();
    let (crashed, second) = (live.crash(&mut |_| 0), live.crash(&mut |_| 0));
    drop(vault);
    let wanted = patched(pattern(1, 40_000), 8192, &pattern(3, 4096));

    let plan = FaultPlan::new();
    plan.add(Fault {
        calls: Calls::Of(Call::SyncAll),
        when: When::From(1),
        errno: libc::EIO,
        short: false,
    });
    let vault = vaults::open(FaultStore::wrap(crashed.root(), plan.clone())).unwrap();
    for flags in [READ, READ_WRITE] {
        let refused = at(&vault, b"file", |node| vault.open_file(node, flags).map(|_| ()));
        assert_eq!(refused.unwrap_err().errno(), libc::EIO);
    }
    assert!(get(&vault, b"other").unwrap() == pattern(2, 100), "other files can be read");
    assert_eq!(vault.close().unwrap_err().errno(), libc::EIO, "a journal was left");
    drop(vault);
    plan.heal();
    let vault = vaults::open(FaultStore::wrap(crashed.root(), plan.clone())).unwrap();
    assert!(get(&vault, b"file").unwrap() == wanted, "the next mount replays it");
    vault.close().unwrap();

    let crashed = second;
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(Call::SyncAll),
        when: When::From(1),
        errno: libc::EIO,
        short: false,
    });
    let vault = vaults::open(FaultStore::wrap(crashed.root(), plan.clone())).unwrap();
    assert!(get(&vault, b"file").is_err());
    plan.heal();
    assert!(get(&vault, b"file").unwrap() == wanted, "as soon as it can be written");
    overwrite(&vault, b"file", 0, &pattern(4, 100)).unwrap();
    let wanted = patched(wanted, 0, &pattern(4, 100));
    assert!(
        get(&vaults::open(crashed.crash(&mut |_| 0).root()).unwrap(), b"file").unwrap() == wanted
    );
    vault.close().unwrap();
    assert_eq!(journals(&crashed.root()), 0);
}

#[test]
fn a_read_only_open_shows_the_journal_and_changes_nothing() {
    // A vault that was opened read-only, with the journal of a crashed mount in it, showed files
    // without the data that programs had fsynced.
    for chunk_log2 in [12, 18] {
        let live = store(chunk_log2);
        let vault = vaults::open(live.root()).unwrap();
        durable(&vault, b"large", &pattern(1, 300_000));
        durable(&vault, b"small", &pattern(2, 100));
        durable(&vault, b"untouched", &pattern(3, 5000));
        overwrite(&vault, b"large", 8192, &pattern(4, 4096)).unwrap();
        overwrite(&vault, b"large", 300_000, &pattern(5, 5000)).unwrap();
        overwrite(&vault, b"small", 50, &pattern(6, 2000)).unwrap();
        let large = patched(
            patched(pattern(1, 300_000), 8192, &pattern(4, 4096)),
            300_000,
            &pattern(5, 5000),
        );
        let small = patched(pattern(2, 100), 50, &pattern(6, 2000));
        for round in 0..20 {
            let random = Seeded::new(round + 1);
            let crashed =
                live.crash(&mut |n| if round == 0 { 0 } else { random.below(n as u64) as usize });
            let plan = FaultPlan::new();
            let vault = open_read_only(FaultStore::wrap(crashed.root(), plan.clone()));
            for (name, wanted) in
                [(&b"large"[..], &large), (b"small", &small), (b"untouched", &pattern(3, 5000))]
            {
                assert!(
                    get(&vault, name).unwrap() == *wanted,
                    "round {round}: {}",
                    name.escape_ascii()
                );
                let size = at(&vault, name, |node| Ok(vault.getattr(node)?.size)).unwrap();
                assert_eq!(size, wanted.len() as u64, "round {round}: {}", name.escape_ascii());
            }
            assert!(
                vaults::faults(&vault).iter().all(|f| f.contains("beyond its end")),
                "{:?}",
                vaults::faults(&vault)
            );
            vault.close().unwrap();
            assert_eq!(plan.count(Calls::Changes), 0, "nothing was changed");
            // A writable mount does what was only shown.
            let vault = vaults::open(crashed.root()).unwrap();
            assert!(
                get(&vault, b"large").unwrap() == large && get(&vault, b"small").unwrap() == small
            );
        }
    }
}

#[test]
fn the_last_close_commits_what_another_opener_has_left_to_it() {
    // The last close committed. Before it removed the file from the table, another program
    // opened the file, wrote to it and closed it. As there was another handle, that close left the
    // commit to the last one, which had made it already, and the change was lost.
    let store = store(12);
    let vault = vaults::open(store.root()).unwrap();
    put(&vault, b"file", &[0; 100]).unwrap();
    let lost = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (vault, lost) = (&vault, &lost);
            scope.spawn(move || {
                for round in 1..4000u64 {
                    if lost.load(Ordering::Relaxed) {
                        return;
                    }
                    vaults::write_at(vault, b"file", thread * 8, &round.to_le_bytes()).unwrap();
                    let found = get(vault, b"file").unwrap();
                    if found[thread as usize * 8..][..8] != round.to_le_bytes() {
                        lost.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(!lost.into_inner(), "a change was lost");
}

/// Returns the names of the journals of a store.
fn journal_names(dir: &Arc<dyn Dir>) -> Vec<Vec<u8>> {
    let entries = dir.reopen().unwrap().read(0, 1 << 20).unwrap();
    entries.iter().filter(|e| e.name.starts_with(b"+journal-")).map(|e| e.name.to_vec()).collect()
}

fn read_all(dir: &Arc<dyn Dir>, name: &[u8]) -> Vec<u8> {
    let file = dir.open_file(name, Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn write_all(dir: &Arc<dyn Dir>, name: &[u8], bytes: &[u8]) {
    let _ = dir.unlink(name);
    dir.create_file(name, 0o600).unwrap().write_at(bytes, 0).unwrap();
}

/// Returns a store as a power cut left it, with a journal of two records for one file, and the
/// contents of the file before, between and after them.
fn crashed() -> (MemStore, [Vec<u8>; 3]) {
    let live = store(12);
    let vault = vaults::open(live.root()).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    durable(&vault, b"bystander", &pattern(2, 5000));
    overwrite(&vault, b"file", 4096, &pattern(3, 4096)).unwrap();
    overwrite(&vault, b"file", 8192, &pattern(4, 4096)).unwrap();
    let one = patched(pattern(1, 20_000), 4096, &pattern(3, 4096));
    let states = [pattern(1, 20_000), one.clone(), patched(one, 8192, &pattern(4, 4096))];
    (live.crash(&mut |_| 0), states)
}

fn assert_one_of(store: &MemStore, states: &[Vec<u8>], what: &str) {
    let vault = vaults::open(store.root()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let found = get(&vault, b"file").unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(states.contains(&found), "{what}: bytes that nobody wrote");
    assert!(get(&vault, b"bystander").unwrap() == pattern(2, 5000), "{what}");
    vault.close().unwrap();
}

#[test]
fn a_journal_that_was_tampered_with_is_refused_or_harmless() {
    // The storage host may change the journal as well.
    let (base, states) = crashed();
    let name = journal_names(&base.root()).remove(0);
    let bytes = read_all(&base.root(), &name);
    let used = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
    assert!(used > 4096 + 2 * 512);
    let with = |journal: &[u8], what: &str| {
        let store = base.snapshot();
        write_all(&store.root(), &name, journal);
        assert_one_of(&store, &states, what);
        assert_one_of(&store, &states, &format!("{what}, opened again"));
    };
    with(&bytes, "unchanged");
    for at in (0..used).step_by(97).chain(4096..4096 + 64) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        with(&flipped, &format!("a bit of byte {at} flipped"));
    }
    for end in (0..used + 512).step_by(512) {
        with(&bytes[..end], &format!("cut to {end} bytes"));
        let mut torn = bytes.clone();
        torn[end..(end + 512).min(bytes.len())].fill(0);
        with(&torn, &format!("torn at {end}"));
    }
    // The second record in the place of the first, and the first one twice.
    let record = 4096
        + (24 + u32::from_le_bytes(bytes[4100..4104].try_into().unwrap()) as usize)
            .next_multiple_of(512);
    with(&[&bytes[..4096], &bytes[record..]].concat(), "without its first record");
    with(&[&bytes[..record], &bytes[4096..]].concat(), "with its first record twice");
}

#[test]
fn a_foreign_or_stale_journal_does_nothing() {
    // The storage keeps an old journal and restores it, or that of another vault of the same
    // person.
    let (base, states) = crashed();
    let name = journal_names(&base.root()).remove(0);
    let bytes = read_all(&base.root(), &name);
    let vault = vaults::open(base.root()).unwrap();
    assert!(get(&vault, b"file").unwrap() == states[2]);
    overwrite(&vault, b"file", 4096, &pattern(5, 4096)).unwrap();
    vault.close().unwrap();
    let now = patched(states[2].clone(), 4096, &pattern(5, 4096));
    for round in ["replayed a second time, older than the file", "a third time"] {
        write_all(&base.root(), &name, &bytes);
        assert_one_of(&base, std::slice::from_ref(&now), round);
    }
    let other = store(12);
    let vault = vaults::open(other.root()).unwrap();
    durable(&vault, b"file", &now);
    durable(&vault, b"bystander", &pattern(2, 5000));
    vault.close().unwrap();
    write_all(&other.root(), &name, &bytes);
    assert_one_of(&other, std::slice::from_ref(&now), "of another vault");
    assert_eq!(journals(&other.root()), 1, "a journal of another vault is kept");
}

/// A journal had records of a file that could not be written, and of one that had another version.
/// The first checkpoint kept the records of the first file, and removed the journal with those of
/// the other. Later both were kept, but the other file could not be opened as long as the store
/// failed.
#[test]
fn refused_records_are_kept_beside_those_of_a_broken_file() {
    let start = store(12);
    let vault = vaults::open(start.root()).unwrap();
    durable(&vault, b"other", &pattern(2, 40_000));
    durable(&vault, b"file", &pattern(1, 40_000));
    let stored = vault.cipher_path(b"other").unwrap();
    let older = read_all(&start.root(), &stored);
    overwrite(&vault, b"other", 0, &pattern(3, 4096)).unwrap();
    vault.close().unwrap();
    let vault = vaults::open(start.root()).unwrap();
    overwrite(&vault, b"other", 0, &pattern(4, 4096)).unwrap();
    overwrite(&vault, b"file", 0, &pattern(5, 4096)).unwrap();
    let left = start.snapshot();
    write_all(&left.root(), &stored, &older);
    let mut broken = 0;
    for when in (1..).flat_map(|nth| [When::Nth(nth), When::From(nth)]) {
        let store = left.snapshot();
        let plan = FaultPlan::new();
        let calls = Calls::Of(Call::Write);
        plan.add(Fault { calls, when, errno: libc::EIO, short: false });
        let opened = vaults::open(FaultStore::wrap(store.root(), plan.clone()));
        let failed = plan.failed();
        if let Ok(vault) = opened {
            broken += failed;
            // The other file needs none of these records.
            assert!(get(&vault, b"other").unwrap() == pattern(2, 40_000), "{when:?}");
            let _ = vault.close();
        }
        if failed == 0 {
            break;
        }
        vaults::open(store.root()).unwrap().close().unwrap();
        let kept = crate::support::raw::named(&*store.root(), b"+refused-");
        assert_eq!(kept.len(), 1, "{when:?}");
    }
    assert!(broken > 0, "no file was broken");
}

/// The storage host puts an older version of a file back, and copies a journal that relies on the newer
/// one any number of times. With more than 1,024 of them the vault is not opened.
#[test]
fn too_many_journals_that_match_no_file_are_refused() {
    let live = store(12);
    let vault = vaults::open(live.root()).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    let stored = vault.cipher_path(b"file").unwrap();
    vault.close().unwrap();
    let older = read_all(&live.root(), &stored);
    let vault = vaults::open(live.root()).unwrap();
    (0..3).for_each(|n| overwrite(&vault, b"file", n * 4096, &pattern(3, 4096)).unwrap());
    vault.close().unwrap();
    let vault = vaults::open(live.root()).unwrap();
    overwrite(&vault, b"file", 8192, &pattern(4, 4096)).unwrap();
    let root = live.crash(&mut |_| 0).root();
    drop(vault);
    write_all(&root, &stored, &older);
    let journal = journal_names(&root).remove(0);
    let copy = |n: u64| format!("+journal-elsewhere-{n:016x}").into_bytes();
    for n in 0..1024 {
        root.link(&journal, &*root, &copy(n)).unwrap();
    }
    let error = vaults::open(root.clone()).err().expect("1,025 journals").to_string();
    assert!(error.contains(kithfs::vault::TOO_MANY_JOURNALS), "{error}");
    assert!(read_all(&root, &stored) == older && journals(&root) == 1025, "nothing is changed");
    root.unlink(&copy(0)).unwrap();
    let vault = vaults::open(root).unwrap();
    assert!(get(&vault, b"file").unwrap() == pattern(1, 20_000));
    vault.close().unwrap();
}

#[test]
fn a_young_journal_of_another_machine_is_replayed_and_left() {
    // A sync tool delivered the journal of a mount that was alive on another machine. In a first
    // version it was replayed and removed here, the tool removed it there, and a crash there lost
    // its records. In a second one the vault could not be opened for writing for two minutes, so
    // all mounts were refused as long as the one on the other machine was active.
    let (base, states) = crashed();
    let root = base.root();
    let name = journal_names(&root).remove(0);
    let foreign = b"+journal-elsewhere-0123456789abcdef";
    root.rename(&name, &*root, foreign, kithfs::vault::RenameMode::Replace).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
        as i64;
    let touch = |secs| {
        root.set_times(foreign, SetTime::Omit, SetTime::At(Timestamp { secs, nanos: 0 })).unwrap()
    };
    // A clock there that was three minutes fast made it look as old as one that was three slow.
    for changed in [now - 5, now + 180] {
        touch(changed);
        assert_one_of(&base, &states[2..], "while the journal is young");
        assert_eq!(journal_names(&root), [foreign], "the journal's owner may rely on it");
    }
    let vault = vaults::open(base.root()).unwrap();
    let changed = patched(states[2].clone(), 4096, b"changed here since");
    overwrite(&vault, b"file", 4096, b"changed here since").unwrap();
    vault.close().unwrap();
    assert_one_of(&base, std::slice::from_ref(&changed), "the file is newer than the journal");
    assert_eq!(journal_names(&root), [foreign]);
    // A vault that was copied here after a crash there: nothing in it is lost.
    touch(now - 600);
    assert_one_of(&base, &[changed], "once the journal is old");
    assert_eq!(journals(&root), 0);
    let (base, states) = crashed();
    let (root, name) = (base.root(), journal_names(&base.root()).remove(0));
    root.rename(&name, &*root, foreign, kithfs::vault::RenameMode::Replace).unwrap();
    root.set_times(foreign, SetTime::Omit, SetTime::At(Timestamp { secs: now - 600, nanos: 0 }))
        .unwrap();
    assert_one_of(&base, &states[2..], "the journal is old");
    assert_eq!(journals(&root), 0);
}

/// Returns a store with a file of Ann and Bob, and what the file should contain. Ann's journal has
/// a record that was applied; Bob's has an append that was not: fresh bytes in the file, on which
/// the record relies, and the former header.
fn left_by_ann_and_bob() -> (MemStore, kithfs::roster::Identity, kithfs::roster::Identity, Vec<u8>)
{
    let (store, ann, bob) = members::with_bob();
    let vault = members::open_as(&store, &ann).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    overwrite(&vault, b"file", 0, &pattern(2, 4096)).unwrap();
    let store = store.crash(&mut |n| n - 1);
    let vault = members::open_as(&store, &bob).unwrap();
    overwrite(&vault, b"file", 20_000, &pattern(3, 200_000)).unwrap();
    let wanted =
        patched(patched(pattern(1, 20_000), 0, &pattern(2, 4096)), 20_000, &pattern(3, 200_000));
    (store.crash(&mut |_| 0), ann, bob, wanted)
}

#[test]
fn a_replay_cuts_nothing_another_journal_relies_on() {
    // Ann's mount died, then Bob's. Her replay found her file intact, and cut the bytes after the
    // end that its header states: Bob had synced those, and when Bob's journal was replayed the
    // file was damaged.
    let (store, ann, bob, wanted) = left_by_ann_and_bob();
    members::open_as(&store, &ann).unwrap().close().unwrap();
    assert!(get(&members::open_as(&store, &bob).unwrap(), b"file").unwrap() == wanted);
}

/// The disk could not read the head of Bob's journal. Ann could not mount the vault, and neither the
/// error nor the log named the file.
#[test]
fn an_unreadable_journal_is_named() {
    let (store, ann, ..) = left_by_ann_and_bob();
    let names = journal_names(&store.root());
    let mut named = Vec::new();
    for nth in 1.. {
        let plan = FaultPlan::new();
        plan.add(Fault {
            calls: Calls::Of(Call::Read),
            when: When::Nth(nth),
            errno: libc::EIO,
            short: false,
        });
        let opened = Vault::open(
            FaultStore::wrap(store.snapshot().root(), plan.clone()),
            &ann,
            members::trusting(false, kithfs::vault::LockMode::Exclusive),
        );
        if plan.failed() == 0 {
            break;
        }
        let Err(error) = opened else { continue };
        assert_eq!(error.errno(), libc::EIO);
        let text = error.to_string();
        named.extend(names.iter().filter(|name| text.contains(std::str::from_utf8(name).unwrap())));
    }
    let mut all = named.clone();
    all.sort();
    all.dedup();
    // Whether records are there is looked at in both; then head, record head and record of hers.
    assert!(all.len() == 2 && named.len() >= 7, "{named:?}");
    // Root's mount has crashed, and the user may not open its journal.
    let plan = FaultPlan::new();
    names.iter().for_each(|name| plan.forbid(name));
    let options = members::trusting(false, kithfs::vault::LockMode::Exclusive);
    let error = Vault::open(FaultStore::wrap(store.root(), plan), &ann, options).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("+journal-") && text.contains("denied"), "{text}");
}

/// A file in a directory to which Bob has appended before a crash, as in [`left_by_ann_and_bob`].
fn left_by_bob() -> (MemStore, kithfs::roster::Identity, kithfs::roster::Identity, Vec<u8>) {
    let (store, ann, bob) = members::with_bob();
    let vault = members::open_as(&store, &ann).unwrap();
    vaults::mkdir(&vault, b"dir").unwrap();
    durable(&vault, b"dir/file", &pattern(1, 20_000));
    vault.close().unwrap();
    let vault = members::open_as(&store, &bob).unwrap();
    overwrite(&vault, b"dir/file", 20_000, &pattern(3, 200_000)).unwrap();
    let wanted = patched(pattern(1, 20_000), 20_000, &pattern(3, 200_000));
    (store.crash(&mut |_| 0), ann, bob, wanted)
}

/// Bob's mount died after an append. The bytes were in the file, behind the end that its header states,
/// and the header in Bob's journal. A check by Ann offered to cut them off.
#[test]
fn a_repair_cuts_nothing_another_journal_relies_on() {
    let (store, ann, bob, wanted) = left_by_bob();
    for read_only in [true, false] {
        let options = members::trusting(read_only, kithfs::vault::LockMode::Exclusive);
        let vault = Vault::open(store.root(), &ann, options).unwrap();
        let faults = vault.check(b"", &mut |_| {}).unwrap().faults;
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].what.contains("a journal may need"), "{faults:?}");
        assert!(faults[0].residue && faults[0].remedy.is_none(), "{faults:?}");
        if !read_only {
            vault.repair(&faults, b"repair-test", &mut |_| true).unwrap();
        }
        vault.close().unwrap();
    }
    assert!(get(&members::open_as(&store, &bob).unwrap(), b"dir/file").unwrap() == wanted);
}

/// Ann had the file open when somebody moved it and its directory away. Her changes became a copy, and her
/// daemon cut the old file at the end that its header states, although Bob's record relied on the
/// bytes after it.
#[test]
fn a_moved_file_keeps_what_another_journal_relies_on() {
    let (store, ann, bob, wanted) = left_by_bob();
    let vault = members::open_as(&store, &ann).unwrap();
    let (root, stored) = (store.root(), vault.cipher_path(b"dir").unwrap());
    let handle = vaults::open_or_create(&vault, b"dir/file", READ_WRITE).unwrap();
    vault.write(handle, 100, b"by Ann", false).unwrap();
    let dir = root.open_dir(&stored).unwrap();
    let name = raw::names(&*dir).remove(0);
    dir.rename(&name, &*root, b"file", RenameMode::NoReplace).unwrap();
    root.rename(&stored, &*root, b"away", RenameMode::NoReplace).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.release(handle).unwrap();
    vault.close().unwrap();
    root.rename(b"away", &*root, &stored, RenameMode::NoReplace).unwrap();
    root.rename(b"file", &*dir, &name, RenameMode::NoReplace).unwrap();
    assert!(get(&members::open_as(&store, &bob).unwrap(), b"dir/file").unwrap() == wanted);
}

#[test]
fn a_refused_write_spoils_nothing_another_journal_relies_on() {
    // Fresh bytes went at once to places that the header does not count, but on which the record in
    // another member's journal relies. When the commit was refused the header was still the one
    // that this record fits.
    let fits = |found: &[u8], all: &[u8]| found.len() >= 20_000 && all.starts_with(found);
    for (offset, len, space) in [
        (20_000, 200_000, 0),
        (20_000, 200_000, 40),
        (24_576, 9000, 0),
        (100, 40_000, 3),
        (20_000, 3000, 0),
    ] {
        for call in [None, Some(Call::Write), Some(Call::SyncData)] {
            let what = format!("{len} at {offset}, {space} blocks, {call:?}");
            let (store, ann, bob, wanted) = left_by_ann_and_bob();
            let plan = FaultPlan::new();
            let vault = Vault::open(
                FaultStore::wrap(store.root(), plan.clone()),
                &ann,
                members::trusting(false, kithfs::vault::LockMode::Exclusive),
            )
            .unwrap();
            vault.prepare().unwrap();
            let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
            plan.reset();
            match call {
                Some(call) => plan.add(Fault {
                    calls: Calls::Of(call),
                    when: When::From(1),
                    errno: libc::EIO,
                    short: call == Call::Write,
                }),
                None => {
                    let free = vault.space().unwrap();
                    store.set_capacity(Some((free.blocks - free.free + space) * free.block_size));
                }
            }
            let written = vault
                .write(handle, offset, &pattern(4, len), false)
                .and_then(|()| vault.fsync(handle, false));
            let _ = vault.release(handle);
            plan.heal();
            store.set_capacity(None);
            let _ = vault.close();
            let found = get(&members::open_as(&store, &bob).unwrap(), b"file")
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            let hers = patched(
                patched(pattern(1, 20_000), 0, &pattern(2, 4096)),
                offset as usize,
                &pattern(4, len),
            );
            if written.is_err() {
                assert!(found == wanted || fits(&found, &hers), "{what}: {} bytes", found.len());
            } else {
                assert!(found == hers, "{what}: hers, {} bytes", found.len());
            }
        }
    }
}

#[test]
fn a_journal_that_somebody_takes_away_is_replaced() {
    // A sync tool removed the journal under the mount: the following records went into a file
    // without a name.
    let live = store(12);
    let vault = vaults::open(live.root()).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    overwrite(&vault, b"file", 4096, &pattern(3, 4096)).unwrap();
    live.root().unlink(&journal_names(&live.root())[0]).unwrap();
    overwrite(&vault, b"file", 8192, &pattern(4, 4096)).unwrap();
    assert_eq!(journals(&live.root()), 1);
    let wanted =
        patched(patched(pattern(1, 20_000), 4096, &pattern(3, 4096)), 8192, &pattern(4, 4096));
    assert!(get(&vaults::open(live.crash(&mut |_| 0).root()).unwrap(), b"file").unwrap() == wanted);
}

#[test]
fn a_checkpoint_that_fails_half_way_loses_no_record() {
    // The flush after the first record was wiped failed: later appends to that journal were
    // acknowledged, and no replay found them.
    for nth in 1.. {
        let store = store(12);
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        durable(&vault, b"a", &pattern(1, 50_000));
        durable(&vault, b"b", &pattern(2, 50_000));
        overwrite(&vault, b"a", 4096, &pattern(3, 4096)).unwrap();
        plan.reset();
        plan.add(Fault {
            calls: Calls::Changes,
            when: When::Nth(nth),
            errno: libc::EIO,
            short: false,
        });
        // A name change makes a checkpoint.
        let _ = vault.rename(
            kithfs::vault::ROOT,
            b"a",
            kithfs::vault::ROOT,
            b"c",
            kithfs::vault::RenameMode::Replace,
        );
        let failed = plan.failed() > 0;
        plan.heal();
        if overwrite(&vault, b"b", 8192, &pattern(4, 4096)).is_ok() {
            let after = vaults::open(store.crash(&mut |_| 0).root()).unwrap();
            assert!(
                get(&after, b"b").unwrap() == patched(pattern(2, 50_000), 8192, &pattern(4, 4096)),
                "call {nth}"
            );
        }
        if !failed {
            assert!(nth > 3, "{nth} calls were made");
            return;
        }
    }
}

#[test]
fn a_journal_is_replayed_while_another_process_reads_it() {
    // A command that read the vault had the journal locked when a mount began, which mistook it for
    // one in use and showed old contents.
    let (store, states) = crashed();
    let root = store.root();
    let journal = root.open_file(&journal_names(&root)[0], Access::Read).unwrap();
    assert!(journal.try_lock(Lock::Shared).unwrap());
    let plan = FaultPlan::new();
    let wrapped = FaultStore::wrap(root.clone(), plan.clone());
    let opening = std::thread::spawn(move || {
        vaults::open(wrapped).map(|vault| get(&vault, b"file").unwrap())
    });
    // Until the vault's lock was taken and the journal's was refused.
    while plan.count(Calls::Of(Call::Lock)) < 3 && !opening.is_finished() {
        std::thread::yield_now();
    }
    drop(journal);
    assert!(opening.join().unwrap().unwrap() == states[2]);
}

/// Opens a file for reading and writing and makes it durable through the handle, which stays open.
fn open_synced(vault: &Vault, path: &[u8]) -> u64 {
    let handle = vaults::open_or_create(vault, path, READ_WRITE).unwrap();
    vault.fsync(handle, false).unwrap();
    handle
}

#[test]
fn growing_and_punching_in_one_commit_loses_nothing() {
    // Such a commit freed places that a record of the small form still writes. They were filled
    // directly, and a replay wrote the old bytes over them.
    let store = store(12);
    let vault = vaults::open(store.root()).unwrap();
    durable(&vault, b"file", &pattern(1, 4096));
    let handle = open_synced(&vault, b"file");
    vault.write(handle, 0, &pattern(2, 4096), false).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.write(handle, 8192, &pattern(3, 100), false).unwrap();
    vault.fallocate(handle, 0, 4096, Fallocate::PunchHole).unwrap();
    vault.write(handle, 100_000, &pattern(4, 80_000), false).unwrap();
    vault.write(handle, 0, &pattern(5, 8000), false).unwrap();
    vault.fsync(handle, false).unwrap();
    let wanted = get(&vault, b"file").unwrap();
    for harsh in [true, false] {
        let crashed = store.crash(&mut |n| if harsh { 0 } else { n - 1 });
        let found = get(&vaults::open(crashed.root()).unwrap(), b"file");
        assert!(
            found.as_ref().is_ok_and(|f| *f == wanted),
            "harsh {harsh}: {:?}",
            found.map(|f| f.len())
        );
    }
}

#[test]
fn a_hard_link_without_a_lookup_is_journaled() {
    // The known name was removed, the other one was unknown: live places were overwritten without a
    // record, and a power cut made the link unreadable.
    let store = store(12);
    let vault = vaults::open(store.root()).unwrap();
    durable(&vault, b"a", &pattern(1, 40_000));
    let linked = at(&vault, b"a", |node| vault.link(node, kithfs::vault::ROOT, b"b")).unwrap();
    vault.forget(linked.node, 1);
    sync_root(&vault);
    vault.close().unwrap();
    drop(vault);
    let vault = vaults::open(store.root()).unwrap();
    let handle = open_synced(&vault, b"a");
    vault.unlink(kithfs::vault::ROOT, b"a").unwrap();
    sync_root(&vault);
    vault.write(handle, 0, &pattern(2, 20_000), false).unwrap();
    vault.commit_due(std::time::Duration::ZERO);
    let (old, new) = (pattern(1, 40_000), patched(pattern(1, 40_000), 0, &pattern(2, 20_000)));
    for round in 0..50 {
        let random = Seeded::new(round + 1);
        let crashed = store.crash(&mut |n| random.below(n as u64) as usize);
        let found = get(&vaults::open(crashed.root()).unwrap(), b"b");
        assert!(
            found.as_ref().is_ok_and(|f| *f == old || *f == new),
            "round {round}: {:?}",
            found.map(|f| f.len())
        );
    }
}

#[test]
fn times_that_were_set_on_a_closed_file_survive_the_daemon() {
    // The replay after a kill restored the time of the last record.
    let store = store(12);
    let vault = vaults::open(store.root()).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    overwrite(&vault, b"file", 4096, &pattern(2, 4096)).unwrap();
    let time = SetTime::At(Timestamp { secs: 1000, nanos: 0 });
    at(&vault, b"file", |node| {
        vault.setattr(node, &SetAttr { atime: time, mtime: time, ..SetAttr::default() })
    })
    .unwrap();
    // The daemon dies: everything that has reached the store exists.
    let again = vaults::open(store.snapshot().root()).unwrap();
    let mtime = at(&again, b"file", |node| Ok(again.getattr(node)?.mtime)).unwrap();
    assert_eq!(mtime.secs, 1000);
}

#[test]
fn a_time_set_on_an_open_file_survives_the_daemon() {
    // The same if a program had set only the modification time.
    let store = store(12);
    let vault = vaults::open(store.root()).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    let handle = open_synced(&vault, b"file");
    vault.write(handle, 4096, &pattern(2, 4096), false).unwrap();
    vault.fsync(handle, false).unwrap();
    let time = SetTime::At(Timestamp { secs: 1000, nanos: 0 });
    at(&vault, b"file", |node| vault.setattr(node, &SetAttr { mtime: time, ..SetAttr::default() }))
        .unwrap();
    vault.release(handle).unwrap();
    let again = vaults::open(store.snapshot().root()).unwrap();
    let mtime = at(&again, b"file", |node| Ok(again.getattr(node)?.mtime)).unwrap();
    assert_eq!(mtime.secs, 1000);
}

#[test]
fn new_contents_do_not_keep_an_old_mtime_during_writeback() {
    // Story: if the kernel keeps the times (its writeback cache), a write left a time that was less
    // than a second old unchanged, because the kernel might have the same. A daemon that was killed
    // before the kernel sent its own time left new contents under the old time, which a backup by
    // times never sees.
    let store = store(12);
    let options = || OpenOptions { caller_caches: true, ..OpenOptions::default() };
    let open = |root| Vault::open(root, &vaults::owner(), options()).unwrap();
    let vault = open(store.root());
    durable(&vault, b"file", &pattern(1, 20_000));
    let now = || {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        Timestamp { secs: since.as_secs() as i64, nanos: since.subsec_nanos() }
    };
    let in_store = || {
        let killed = open(store.snapshot().root());
        at(&killed, b"file", |node| Ok(killed.getattr(node)?.mtime)).unwrap()
    };
    for (round, told) in [Timestamp { secs: 1000, nanos: 0 }, now()].into_iter().enumerate() {
        let set = |mtime| {
            at(&vault, b"file", |node| {
                vault.setattr(node, &SetAttr { mtime: SetTime::At(mtime), ..SetAttr::default() })
            })
        };
        let handle = open_synced(&vault, b"file");
        set(told).unwrap();
        let begun = now();
        vault.write(handle, 4096, &pattern(2 + round as u64, 4096), false).unwrap();
        vault.commit_due(std::time::Duration::ZERO);
        assert!(in_store() >= begun, "round {round}");
        // The kernel would send a new time before this request. It has sent none, so `told` is
        // current.
        vault.fsync(handle, false).unwrap();
        assert_eq!(in_store(), told, "round {round}");
        vault.write(handle, 8192, &pattern(4 + round as u64, 4096), false).unwrap();
        let sent = now();
        set(sent).unwrap();
        vault.fsync(handle, false).unwrap();
        vault.release(handle).unwrap();
        assert_eq!(in_store(), sent, "round {round}");
    }
}

#[test]
fn a_write_whose_read_failed_leaves_no_fresh_state() {
    // The segments of a failed write stayed without the marks that protect them, and the next
    // commit overwrote committed ones in place.
    let store = store(18);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 0, &pattern(1, 300_000), false).unwrap();
    vault.commit_due(std::time::Duration::ZERO);
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(Call::Read),
        when: When::Nth(1),
        errno: libc::EIO,
        short: false,
    });
    assert!(vault.write(handle, 100, b"0123456789", false).is_err());
    plan.heal();
    vault.fsync(handle, false).unwrap();
    sync_root(&vault);
    let old = pattern(1, 300_000);
    assert!(get(&vaults::open(store.crash(&mut |_| 0).root()).unwrap(), b"file").unwrap() == old);
    vault.write(handle, 0, &pattern(2, 100_000), false).unwrap();
    let found = get(&vaults::open(store.crash(&mut |n| n - 1).root()).unwrap(), b"file");
    assert!(found.as_ref().is_ok_and(|f| *f == old), "{:?}", found.map(|f| f.len()));
}

#[test]
fn a_checkpoint_that_failed_does_not_count_as_done() {
    // Its files counted as flushed although their records existed, so a replay wrote them over
    // places that had been filled again.
    let store = store(12);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    for name in [&b"file"[..], b"bad", b"x"] {
        durable(&vault, name, &pattern(1, 40_000));
    }
    let handle = open_synced(&vault, b"file");
    vault.write(handle, 32_768, &pattern(2, 4096), false).unwrap();
    vault.fsync(handle, false).unwrap();
    overwrite(&vault, b"x", 0, &pattern(3, 4096)).unwrap();
    let bad = vaults::open_or_create(&vault, b"bad", READ_WRITE).unwrap();
    vault.write(bad, 0, &pattern(4, 8192), false).unwrap();
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(Call::Write),
        when: When::Nth(2),
        errno: libc::EIO,
        short: true,
    });
    assert!(vault.fsync(bad, false).is_err());
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(Call::Read),
        when: When::Nth(1),
        errno: libc::EIO,
        short: false,
    });
    assert!(vaults::rename(&vault, b"x", b"y", kithfs::vault::RenameMode::NoReplace).is_err());
    plan.heal();
    at(&vault, b"file", |node| {
        vault.setattr(node, &SetAttr { size: Some(30_000), ..SetAttr::default() })
    })
    .unwrap();
    vault.write(handle, 200_000, &pattern(5, 80_000), false).unwrap();
    vault.write(handle, 30_000, &pattern(6, 9000), false).unwrap();
    vault.fsync(handle, false).unwrap();
    let wanted = get(&vault, b"file").unwrap();
    let found = get(&vaults::open(store.snapshot().root()).unwrap(), b"file");
    assert!(found.as_ref().is_ok_and(|f| *f == wanted), "{:?}", found.map(|f| f.len()));
}

#[test]
fn bits_that_a_write_takes_away_stay_away_after_fsync() {
    // The new contents came back with the suid bit of the old ones.
    let store = store(12);
    let vault = vaults::open(store.root()).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    let handle = open_synced(&vault, b"file");
    // The journal exists already: creating it would flush the mode as well.
    vault.write(handle, 0, &pattern(9, 100), false).unwrap();
    vault.fsync(handle, false).unwrap();
    at(&vault, b"file", |node| {
        vault.setattr(node, &SetAttr { perm: Some(0o4755), ..SetAttr::default() })
    })
    .unwrap();
    vault.fsync(handle, false).unwrap();
    vault.write(handle, 0, &pattern(2, 4096), true).unwrap();
    vault.fsync(handle, false).unwrap();
    let again = vaults::open(store.crash(&mut |_| 0).root()).unwrap();
    assert!(get(&again, b"file").unwrap() == patched(pattern(1, 20_000), 0, &pattern(2, 4096)));
    let perm = at(&again, b"file", |node| Ok(again.getattr(node)?.perm)).unwrap();
    assert_eq!(perm & 0o7777, 0o755);
}

#[test]
fn a_flush_that_failed_with_enospc_is_not_simply_retried() {
    // The second fsync succeeded although the bytes were no longer in memory.
    let store = store(12);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    let handle = open_synced(&vault, b"file");
    vault.write(handle, 20_000, &pattern(2, 200_000), false).unwrap();
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(Call::SyncData),
        when: When::Nth(1),
        errno: libc::ENOSPC,
        short: false,
    });
    assert_eq!(vault.fsync(handle, false).unwrap_err().errno(), libc::ENOSPC);
    plan.reset();
    // The kernel has dropped the pages: only an error, or writing all of them again, would be
    // correct.
    assert!(vault.fsync(handle, false).is_err(), "{} writes", plan.count(Calls::Of(Call::Write)));
}

#[test]
fn a_checkpoint_reports_lost_bytes_to_the_open_file() {
    // The checkpoint got the error, and the next fsync of the file succeeded.
    let store = store(12);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    vaults::mkdir(&vault, b"d").unwrap();
    let handle = open_synced(&vault, b"file");
    vault.write(handle, 0, &pattern(2, 4096), false).unwrap();
    vault.fsync(handle, false).unwrap();
    // Fresh bytes, written in place, not flushed.
    vault.write(handle, 20_000, &pattern(3, 200_000), false).unwrap();
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(Call::SyncAll),
        when: When::Nth(1),
        errno: libc::EIO,
        short: false,
    });
    let _ = vaults::rename(&vault, b"d", b"e", kithfs::vault::RenameMode::NoReplace);
    assert_eq!(plan.failed(), 1);
    plan.reset();
    assert!(
        vault.fsync(handle, false).is_err(),
        "the kernel has reported the loss to an earlier flush"
    );
}

#[test]
fn data_lost_by_a_failed_flush_is_rewritten_before_use() {
    // The first flush of a new file failed, and its pages counted as clean from then on: they were
    // visible, and no flush wrote them. The file was opened again and an overwrite of it synced, or
    // it was renamed over another one: a power cut left neither that nor the former file.
    for what in ["opened again", "opened in the next mount", "renamed over another file"] {
        let store = store(12);
        let plan = FaultPlan::new();
        let mut vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        durable(&vault, b"other", &pattern(7, 9000));
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        vault.write(handle, 0, &pattern(1, 50_000), false).unwrap();
        plan.reset();
        plan.lose_what_is_not_flushed();
        plan.add(Fault {
            calls: Calls::Of(Call::SyncAll),
            when: When::Nth(1),
            errno: libc::EIO,
            short: false,
        });
        assert!(vault.fsync(handle, false).is_err());
        assert!(vault.release(handle).is_err());
        plan.heal();
        let mut wanted = pattern(1, 50_000);
        match what {
            "renamed over another file" => {
                vaults::rename(&vault, b"file", b"other", RenameMode::Replace).unwrap()
            }
            _ => {
                if what == "opened in the next mount" {
                    let _ = vault.close();
                    vault = vaults::open(store.root()).unwrap();
                }
                overwrite(&vault, b"file", 4096, &pattern(2, 4096)).unwrap();
                wanted = patched(wanted, 4096, &pattern(2, 4096));
            }
        }
        sync_root(&vault);
        let name: &[u8] = if what == "renamed over another file" { b"other" } else { b"file" };
        let cut = vaults::open(store.crash(&mut |_| 0).root()).unwrap();
        assert!(get(&cut, name).unwrap_or_else(|e| panic!("{what}: {e}")) == wanted, "{what}");
        vault.close().unwrap();
        store.evict();
        assert!(
            get(&vaults::open(store.root()).unwrap(), name).unwrap() == wanted,
            "{what}, and read from the disk"
        );
    }
}

/// Creates a file whose first flush fails, which loses the data.
fn lost(vault: &Vault, plan: &FaultPlan, path: &[u8], bytes: &[u8], errno: i32) {
    let handle = vaults::open_or_create(vault, path, READ_WRITE).unwrap();
    vault.write(handle, 0, bytes, false).unwrap();
    plan.reset();
    plan.lose_what_is_not_flushed();
    plan.add(Fault { calls: Calls::Of(Call::SyncAll), when: When::Nth(1), errno, short: false });
    assert!(vault.fsync(handle, false).is_err());
    assert!(vault.release(handle).is_err());
    plan.heal();
}

#[test]
fn a_file_with_a_failed_flush_is_readable_on_a_broken_store() {
    // An opener was to write the lost data again, but the store had become read-only after its
    // errors, as ext4 does: bytes that could have been copied away could not be read any more.
    let store = store(12);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    lost(&vault, &plan, b"file", &pattern(1, 50_000), libc::EIO);
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(Call::Write),
        when: When::From(1),
        errno: libc::EROFS,
        short: false,
    });
    assert!(get(&vault, b"file").unwrap() == pattern(1, 50_000));
    assert!(vaults::open_or_create(&vault, b"file", READ_WRITE).is_err());
    // A writer beside a reader does not build on data that may be lost either.
    let reader = vaults::open_or_create(&vault, b"file", READ).unwrap();
    let writer = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    plan.heal();
    assert!(vault.write(writer, 0, b"new", false).is_err());
    assert!(vault.fsync(writer, false).is_err());
    let _ = vault.release(writer);
    let _ = vault.release(reader);
    overwrite(&vault, b"file", 0, b"new").unwrap();
    let cut = vaults::open(store.crash(&mut |_| 0).root()).unwrap();
    assert!(get(&cut, b"file").unwrap() == patched(pattern(1, 50_000), 0, b"new"));
}

#[test]
fn a_removed_file_with_a_failed_flush_frees_its_space() {
    // It was kept open until the vault was closed: a user who removed or replaced files on a full
    // store, after their flushes had failed for lack of room, got no space.
    for what in ["removed", "removed while it was open", "replaced"] {
        let store = store(12);
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        durable(&vault, b"other", b"small");
        let free = vault.space().unwrap().free;
        if what == "removed while it was open" {
            let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
            vault.write(handle, 0, &pattern(1, 500_000), false).unwrap();
            vault.unlink(kithfs::vault::ROOT, b"file").unwrap();
            plan.reset();
            plan.add(Fault {
                calls: Calls::Of(Call::SyncAll),
                when: When::Nth(1),
                errno: libc::ENOSPC,
                short: false,
            });
            assert!(vault.fsync(handle, false).is_err());
            let _ = vault.release(handle);
            plan.heal();
        } else {
            lost(&vault, &plan, b"file", &pattern(1, 500_000), libc::ENOSPC);
            match what {
                "replaced" => {
                    vaults::rename(&vault, b"other", b"file", RenameMode::Replace).unwrap()
                }
                _ => vault.unlink(kithfs::vault::ROOT, b"file").unwrap(),
            }
        }
        let held = free.saturating_sub(vault.space().unwrap().free);
        assert!(held < 20, "{what}: {held} blocks are held");
    }
}

#[test]
fn a_failed_attribute_flush_is_reported_to_a_later_fsync() {
    // No program needed that flush, so none got the error. The kernel reports an error once, so the
    // next fsync of the file succeeded although data was lost.
    let store = store(12);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    put(&vault, b"file", &pattern(1, 50_000)).unwrap();
    vaults::set_xattr(&vault, b"file", b"user.long", &pattern(2, 60_000)).unwrap();
    vaults::set_xattr(&vault, b"file", b"user.longer", &pattern(2, 60_000)).unwrap();
    plan.reset();
    plan.lose_what_is_not_flushed();
    plan.add(Fault {
        calls: Calls::Of(Call::SyncAll),
        when: When::Nth(2),
        errno: libc::EIO,
        short: false,
    });
    vaults::set_xattr(&vault, b"file", b"user.long", &pattern(3, 60_000)).unwrap();
    assert_eq!(plan.failed(), 1);
    plan.heal();
    overwrite(&vault, b"file", 0, b"new").unwrap();
    let cut = vaults::open(store.crash(&mut |_| 0).root()).unwrap();
    assert!(get(&cut, b"file").unwrap() == patched(pattern(1, 50_000), 0, b"new"));
}

#[test]
fn the_next_mount_rewrites_records_that_were_not_flushed() {
    // The vault was closed while no flush of the file succeeded, and its journal stayed. The next
    // mount found the records' data in the kernel's memory, flushed it as clean, and removed the
    // journal. After a power cut an acknowledged fsync existed nowhere.
    let store = store(12);
    durable(&vaults::open(store.root()).unwrap(), b"file", &pattern(1, 50_000));
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    overwrite(&vault, b"file", 4096, &pattern(2, 4096)).unwrap();
    plan.reset();
    plan.lose_what_is_not_flushed();
    plan.add(Fault {
        calls: Calls::Of(Call::SyncAll),
        when: When::From(1),
        errno: libc::EIO,
        short: false,
    });
    assert!(vault.close().is_err());
    drop(vault);
    let vault = vaults::open(store.root()).unwrap();
    let wanted = patched(pattern(1, 50_000), 4096, &pattern(2, 4096));
    assert!(get(&vault, b"file").unwrap() == wanted);
    vault.close().unwrap();
    assert_eq!(journals(&store.root()), 0);
    let cut = vaults::open(store.crash(&mut |_| 0).root()).unwrap();
    assert!(get(&cut, b"file").unwrap() == wanted);
}

#[test]
fn a_flush_of_a_nameless_file_blocks_no_rename() {
    // The flush of the whole store, which may take long, was made while the paths of all files were
    // locked: the first rename waited for it, and every commit after that.
    let store = store(12);
    let vault = Arc::new(vaults::open(store.root()).unwrap());
    durable(&vault, b"file", &pattern(1, 50_000));
    durable(&vault, b"other", b"other");
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.unlink(kithfs::vault::ROOT, b"file").unwrap();
    vault.write(handle, 0, &pattern(2, 5000), false).unwrap();
    let inside = parking_lot::Mutex::new(Some(vault.clone()));
    let renamed = Arc::new(AtomicBool::new(false));
    let seen = renamed.clone();
    store.on_event(Box::new(move |event| {
        if event.call != Call::SyncDir {
            return;
        }
        let Some(vault) = inside.lock().take() else { return };
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            vaults::rename(&vault, b"other", b"another", RenameMode::NoReplace).unwrap();
            overwrite(&vault, b"another", 0, b"new").unwrap();
            let _ = done.send(());
        });
        seen.store(
            wait.recv_timeout(std::time::Duration::from_secs(10)).is_ok(),
            Ordering::Relaxed,
        );
    }));
    vault.fsync(handle, false).unwrap();
    assert!(renamed.load(Ordering::Relaxed));
    vault.release(handle).unwrap();
}

#[test]
fn a_record_refused_by_a_full_store_harms_no_refilled_place() {
    // A copy-on-write store may have accepted all of a record and refused the padding after it. The
    // file continued as if the record had had no room, and filled fresh places on which that record
    // relied. After a power cut the replay left a file that could not be read.
    let mut refused = 0;
    for n in 1.. {
        let store = store(16);
        durable(&vaults::open(store.root()).unwrap(), b"file", &pattern(1, 40_000));
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        vault.prepare().unwrap();
        let handle = open_synced(&vault, b"file");
        let longer = [pattern(1, 40_000), pattern(2, 200_000)].concat();
        vault.write(handle, 40_000, &pattern(2, 200_000), false).unwrap();
        plan.reset();
        plan.write_all_the_same();
        plan.add(Fault {
            calls: Calls::Of(Call::Write),
            when: When::Nth(n),
            errno: libc::ENOSPC,
            short: false,
        });
        let synced = vault.fsync(handle, false);
        if plan.failed() == 0 {
            break;
        }
        plan.heal();
        refused += usize::from(synced.is_err());
        let moments: Arc<parking_lot::Mutex<Vec<MemStore>>> = Arc::default();
        let (watched, seen) = (store.clone(), moments.clone());
        store.on_event(Box::new(move |_| seen.lock().push(watched.snapshot())));
        let mut written = vec![longer.clone()];
        for (seed, offset) in [(3, 100_000), (4, 60_000)] {
            if vault.write(handle, offset, &pattern(seed, 90_000), false).is_ok() {
                written.push(patched(
                    written.last().unwrap().clone(),
                    offset as usize,
                    &pattern(seed, 90_000),
                ));
            }
        }
        let _ = vault.fsync(handle, false);
        let _ = vault.release(handle);
        store.on_event(Box::new(|_| {}));
        for (m, moment) in moments.lock().iter().enumerate() {
            for seed in 0..8 {
                let random = Seeded::new(seed);
                let cut = moment.crash(&mut |n| {
                    if seed == 0 { n - 1 } else { random.below(n as u64) as usize }
                });
                let bytes = get(&vaults::open(cut.root()).unwrap(), b"file")
                    .unwrap_or_else(|e| panic!("write {n}, moment {m}, way {seed}: {e}"));
                let right = bytes == pattern(1, 40_000) || written.contains(&bytes);
                assert!(right, "write {n}, moment {m}, way {seed}: {} bytes", bytes.len());
            }
        }
    }
    assert!(refused > 1, "{refused}");
}

#[test]
fn a_file_with_a_refused_record_opens_on_a_full_store() {
    // An opener first had the record removed from the journal, for which a full copy-on-write store
    // has no room either: the file could not even be read, and the error was about room.
    for nth in 1..4 {
        let store = store(16);
        durable(&vaults::open(store.root()).unwrap(), b"file", &pattern(1, 40_000));
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        vault.prepare().unwrap();
        let handle = open_synced(&vault, b"file");
        vault.write(handle, 100, &pattern(2, 9000), false).unwrap();
        plan.reset();
        plan.write_all_the_same();
        plan.add(Fault {
            calls: Calls::Of(Call::Write),
            when: When::From(1),
            errno: libc::ENOSPC,
            short: false,
        });
        assert_eq!(vault.fsync(handle, false).unwrap_err().errno(), libc::ENOSPC);
        assert!(vault.release(handle).is_err());
        let reader = vaults::open_or_create(&vault, b"file", READ).unwrap();
        assert!(get(&vault, b"file").unwrap() == pattern(1, 40_000));
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        let moments: Arc<parking_lot::Mutex<Vec<MemStore>>> = Arc::default();
        let (watched, seen) = (store.clone(), moments.clone());
        store.on_event(Box::new(move |_| seen.lock().push(watched.snapshot())));
        vault.write(handle, 30_000, &pattern(3, 90_000), false).unwrap();
        plan.reset();
        plan.heal();
        plan.add(Fault {
            calls: Calls::Of(Call::Write),
            when: When::Nth(nth),
            errno: libc::ENOSPC,
            short: false,
        });
        let _ = vault.fsync(handle, false);
        plan.heal();
        vault.fsync(handle, false).unwrap();
        store.on_event(Box::new(|_| {}));
        vault.release(handle).unwrap();
        vault.release(reader).unwrap();
        let refused = patched(pattern(1, 40_000), 100, &pattern(2, 9000));
        let states =
            [pattern(1, 40_000), refused, patched(pattern(1, 40_000), 30_000, &pattern(3, 90_000))];
        for (m, moment) in moments.lock().iter().enumerate() {
            for seed in 0..8 {
                let random = Seeded::new(seed);
                let cut = moment.crash(&mut |n| {
                    if seed == 0 { n - 1 } else { random.below(n as u64) as usize }
                });
                let bytes = get(&vaults::open(cut.root()).unwrap(), b"file")
                    .unwrap_or_else(|e| panic!("write {nth}, moment {m}, way {seed}: {e}"));
                assert!(
                    states.contains(&bytes),
                    "write {nth}, moment {m}, way {seed}: {} bytes",
                    bytes.len()
                );
            }
        }
    }
}

#[test]
fn records_of_a_file_stay_until_it_is_durable_that_it_is_gone() {
    // A record could not be applied, and the file was removed. The next checkpoint dropped the
    // record, a power cut restored the name, and with it a file of which half had been overwritten.
    for n in 1.. {
        let store = store(12);
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        vault.prepare().unwrap();
        vaults::mkdir(&vault, b"dir").unwrap();
        durable(&vault, b"dir/file", &pattern(1, 40_000));
        durable(&vault, b"other", &pattern(1, 40_000));
        let handle = open_synced(&vault, b"dir/file");
        vault.write(handle, 0, &pattern(2, 9000), false).unwrap();
        plan.reset();
        plan.add(Fault {
            calls: Calls::Of(Call::Write),
            when: When::From(n),
            errno: libc::EIO,
            short: true,
        });
        let synced = vault.fsync(handle, false);
        let _ = vault.release(handle);
        let unlinked = at(&vault, b"dir", |dir| vault.unlink(dir, b"file"));
        plan.heal();
        if synced.is_ok() {
            assert!(n > 2);
            break;
        }
        unlinked.unwrap();
        vaults::rename(&vault, b"other", b"another", RenameMode::NoReplace).unwrap();
        let new = patched(pattern(1, 40_000), 0, &pattern(2, 9000));
        for seed in 0..32 {
            let random = Seeded::new(seed);
            let cut = store.crash(&mut |n| random.below(n as u64) as usize);
            match get(&vaults::open(cut.root()).unwrap(), b"dir/file") {
                Err(e) => assert_eq!(e.errno(), libc::ENOENT, "write {n}, way {seed}: {e}"),
                Ok(bytes) => {
                    assert!(bytes == pattern(1, 40_000) || bytes == new, "write {n}, way {seed}")
                }
            }
        }
    }
}

#[test]
fn a_checkpoint_reports_bytes_lost_during_a_commit() {
    // The commit had asked whether bytes of the file were lost, and then flushed it: the checkpoint
    // in between got the error, and the fsync succeeded.
    let store = store(12);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    vaults::mkdir(&vault, b"dir").unwrap();
    let handle = open_synced(&vault, b"file");
    let ino = at(&vault, b"file", |node| vault.getattr(node)).unwrap().ino;
    vault.write(handle, 0, &pattern(2, 4096), false).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.write(handle, 20_000, &pattern(3, 200_000), false).unwrap();
    plan.lose_what_is_not_flushed();
    let checkpoint = Arc::new(parking_lot::Mutex::new(None));
    let inside = parking_lot::Mutex::new(Some((vault.clone(), plan.clone(), checkpoint.clone())));
    store.on_event(Box::new(move |event| {
        if (event.call, event.ino) != (Call::SyncData, ino) {
            return;
        }
        let Some((vault, plan, checkpoint)) = inside.lock().take() else { return };
        plan.reset();
        plan.add(Fault {
            calls: Calls::Of(Call::SyncAll),
            when: When::Nth(1),
            errno: libc::EIO,
            short: false,
        });
        // The rename first makes a checkpoint.
        let rename = move || vaults::rename(&vault, b"dir", b"elsewhere", RenameMode::NoReplace);
        *checkpoint.lock() = Some(std::thread::spawn(rename));
        while plan.failed() == 0 {
            std::thread::yield_now();
        }
    }));
    let synced = vault.fsync(handle, false);
    let checkpoint = checkpoint.lock().take().expect("the file was flushed");
    let _ = checkpoint.join().unwrap();
    let cut = vaults::open(store.crash(&mut |_| 0).root()).unwrap();
    let old = patched(pattern(1, 20_000), 0, &pattern(2, 4096));
    let new = patched(old.clone(), 20_000, &pattern(3, 200_000));
    let found = get(&cut, b"file").unwrap();
    assert!(found == new || synced.is_err() && found == old, "{synced:?}, {} bytes", found.len());
}

#[test]
fn a_background_flush_reports_lost_bytes_to_an_fsync() {
    // The store reports lost data to one of two flushes. The background's got the error, and before
    // it had recorded that, an fsync of the program flushed as well, got no error, found nothing
    // recorded, and succeeded.
    let store = store(12);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    let old = pattern(1, 20_000);
    durable(&vault, b"file", &old);
    let handle = open_synced(&vault, b"file");
    vault.write(handle, 20_000, &pattern(3, 200_000), false).unwrap();
    plan.reset();
    plan.lose_what_is_not_flushed();
    plan.add(Fault {
        calls: Calls::Of(Call::SyncData),
        when: When::Nth(1),
        errno: libc::EIO,
        short: false,
    });
    // These are the calls for the file before its loss is recorded.
    plan.slow_down(Call::Stat, std::time::Duration::from_secs(1));
    let synced = std::thread::scope(|scope| {
        scope.spawn(|| vault.flush_due(std::time::Duration::ZERO));
        while plan.failed() == 0 {
            std::thread::yield_now();
        }
        vault.fsync(handle, false)
    });
    let cut = vaults::open(store.crash(&mut |_| 0).root()).unwrap();
    let found = get(&cut, b"file").unwrap();
    assert!(
        found == patched(old.clone(), 20_000, &pattern(3, 200_000))
            || synced.is_err() && found == old,
        "{synced:?}, {} bytes",
        found.len()
    );
}

#[test]
fn a_checkpoint_keeps_records_a_concurrent_flush_lost() {
    // The store reports lost data to one of two flushes. The background's got the error, and before
    // it had recorded that, a checkpoint flushed the file as well, got no error, and emptied the
    // journal: what an fsync had promised long ago existed nowhere.
    for by_commit in [false, true] {
        let store = store(12);
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        let old = pattern(1, 20_000);
        durable(&vault, b"file", &old);
        durable(&vault, b"other", &old);
        overwrite(&vault, b"other", 0, &pattern(4, 4096)).unwrap();
        let handle = open_synced(&vault, b"file");
        vault.write(handle, 0, &pattern(2, 4096), false).unwrap();
        vault.fsync(handle, false).unwrap();
        vault.write(handle, 20_000, &pattern(3, 200_000), false).unwrap();
        plan.reset();
        plan.lose_what_is_not_flushed();
        plan.add(Fault {
            calls: Calls::Of(Call::SyncData),
            when: When::Nth(1),
            errno: libc::EIO,
            short: false,
        });
        // These are the calls for the file before its loss is recorded; nothing else is slow.
        plan.slow_down(Call::Stat, std::time::Duration::from_secs(1));
        std::thread::scope(|scope| {
            scope.spawn(|| match by_commit {
                true => assert!(vault.fsync(handle, false).is_err()),
                false => vault.flush_due(std::time::Duration::ZERO),
            });
            while plan.failed() == 0 {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(50)); // no event shows that the other thread waits
            plan.slow_down(Call::Stat, std::time::Duration::ZERO);
            // The truncation first empties the journal.
            let _ = vaults::open_or_create(
                &vault,
                b"other",
                OpenFlags { truncate: true, ..READ_WRITE },
            );
        });
        let promised = patched(old.clone(), 0, &pattern(2, 4096));
        let found = get(&vaults::open(store.crash(&mut |_| 0).root()).unwrap(), b"file").unwrap();
        assert!(found.starts_with(&promised), "by a commit: {by_commit}");
    }
}

#[test]
fn an_open_that_fails_throws_nothing_away() {
    // The program got the error, and found the file empty.
    let store = store(12);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    overwrite(&vault, b"file", 0, &pattern(2, 4096)).unwrap();
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(Call::SyncData),
        when: When::Nth(1),
        errno: libc::EIO,
        short: false,
    });
    let flags = kithfs::vault::OpenFlags { truncate: true, ..READ_WRITE };
    assert!(vaults::open_or_create(&vault, b"file", flags).is_err());
    plan.heal();
    let found = get(&vault, b"file").unwrap();
    assert!(found == patched(pattern(1, 20_000), 0, &pattern(2, 4096)), "{} bytes", found.len());
}

#[test]
fn a_file_beneath_a_renamed_directory_is_found_by_its_record() {
    // The record contained the new path, the power cut left the old one, and an acknowledged fsync was
    // lost. That happened if one call of the rename failed; here each call fails in turn.
    let mut acknowledged = 0;
    for n in 1.. {
        let store = store(12);
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        vaults::mkdir(&vault, b"d").unwrap();
        durable(&vault, b"d/file", &pattern(1, 20_000));
        let handle = open_synced(&vault, b"d/file");
        vault.write(handle, 0, &pattern(2, 4096), false).unwrap();
        vault.fsync(handle, false).unwrap();
        plan.reset();
        plan.add(Fault { calls: Calls::All, when: When::Nth(n), errno: libc::EIO, short: false });
        let renamed = vaults::rename(&vault, b"d", b"e", kithfs::vault::RenameMode::NoReplace);
        let reached = plan.failed() > 0;
        plan.heal();
        let before = patched(pattern(1, 20_000), 0, &pattern(2, 4096));
        let after = patched(before.clone(), 8192, &pattern(3, 4096));
        let write = vault.write(handle, 8192, &pattern(3, 4096), false);
        let is_synced = write.is_ok() && vault.fsync(handle, false).is_ok();
        acknowledged += u64::from(is_synced);
        let again = vaults::open(store.crash(&mut |_| 0).root()).unwrap();
        let found = get(&again, b"d/file").or_else(|_| get(&again, b"e/file"));
        assert!(
            found.as_ref().is_ok_and(|f| *f == after || !is_synced && *f == before),
            "call {n}, renamed: {renamed:?}, synced: {is_synced}: {:?}",
            found.map(|f| (f == before, f == pattern(1, 20_000)))
        );
        if !reached {
            assert!(renamed.is_ok() && is_synced);
            // The evidence of the rename alone takes several.
            assert!(n > 8 && acknowledged > n / 2, "{acknowledged} of {n}");
            break;
        }
    }
}

#[test]
fn a_removed_journal_of_a_broken_file_is_rewritten() {
    // Records that were carried on were only in memory once their journal was removed.
    for times in [1, 2] {
        let store = store(12);
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        durable(&vault, b"file", &pattern(1, 20_000));
        durable(&vault, b"other", &pattern(1, 20_000));
        vaults::mkdir(&vault, b"d").unwrap();
        overwrite(&vault, b"file", 4096, &pattern(2, 4096)).unwrap();
        let refuse = |times: u64| {
            plan.reset();
            for n in 1..=times {
                plan.add(Fault {
                    calls: Calls::Of(Call::SyncAll),
                    when: When::Nth(n),
                    errno: libc::EIO,
                    short: false,
                });
            }
        };
        refuse(3);
        assert!(vaults::rename(&vault, b"d", b"e", kithfs::vault::RenameMode::NoReplace).is_err());
        assert_eq!(journals(&store.root()), 1, "carried");
        remove_journals(&store);
        refuse(times);
        if overwrite(&vault, b"other", 4096, &pattern(3, 4096)).is_err() {
            continue;
        }
        let again = vaults::open(store.crash(&mut |_| 0).root()).unwrap();
        assert!(
            get(&again, b"file").unwrap() == patched(pattern(1, 20_000), 4096, &pattern(2, 4096)),
            "acknowledged and lost, {times}"
        );
    }
}

fn remove_journals(store: &MemStore) {
    for name in journal_names(&store.root()) {
        store.root().unlink(&name).unwrap();
    }
    store.root().sync().unwrap();
}

#[test]
fn an_fsync_during_a_rename_is_found_under_either_name() {
    // The record was appended under the new name before the rename was durable, and the power cut
    // left the old one.
    let store = store(12);
    let vault = vaults::open(store.root()).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    let handle = open_synced(&vault, b"file");
    vault.write(handle, 0, &pattern(2, 4096), false).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.write(handle, 8192, &pattern(3, 4096), false).unwrap();
    let (start, started) = std::sync::mpsc::channel::<()>();
    let start = std::sync::Mutex::new(start);
    store.on_event(Box::new(move |event| {
        if event.call == Call::Rename {
            let _ = start.lock().unwrap().send(());
            // Long enough for the fsync to take the file's lock and to wait for the paths.
            std::thread::sleep(std::time::Duration::from_millis(300));
        }
    }));
    std::thread::scope(|scope| {
        let vault = &vault;
        let syncs = scope.spawn(move || {
            started.recv_timeout(std::time::Duration::from_secs(60)).expect("the rename begins");
            vault.fsync(handle, false).unwrap();
        });
        vaults::rename(vault, b"file", b"renamed", kithfs::vault::RenameMode::NoReplace).unwrap();
        syncs.join().unwrap();
    });
    let wanted =
        patched(patched(pattern(1, 20_000), 0, &pattern(2, 4096)), 8192, &pattern(3, 4096));
    let again = vaults::open(store.crash(&mut |_| 0).root()).unwrap();
    let found = get(&again, b"renamed").or_else(|_| get(&again, b"file")).unwrap();
    assert!(found == wanted, "acknowledged and lost");
}

#[test]
fn a_failed_flush_in_a_commit_keeps_the_files_records() {
    // The next checkpoint wiped the records whose pages the kernel had discarded.
    let store = store(12);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    durable(&vault, b"file", &pattern(1, 20_000));
    vaults::mkdir(&vault, b"d").unwrap();
    let names = store.root().reopen().unwrap().read(0, 1 << 20).unwrap();
    let stored = names
        .iter()
        .find(|e| e.kind == Some(kithfs::store::Kind::File) && !e.name.starts_with(b"+"))
        .unwrap()
        .name
        .to_vec();
    let handle = open_synced(&vault, b"file");
    let on_disk = read_all(&store.root(), &stored);
    vault.write(handle, 4096, &pattern(2, 4096), false).unwrap();
    vault.fsync(handle, false).unwrap();
    // Acknowledged, applied, not flushed. Now fresh bytes, whose flush fails with everything of
    // this file that waits for the disk.
    vault.write(handle, 20_000, &pattern(3, 200_000), false).unwrap();
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(Call::SyncData),
        when: When::Nth(1),
        errno: libc::EIO,
        short: false,
    });
    assert!(vault.fsync(handle, false).is_err());
    plan.heal();
    // What the kernel does: the pages count as clean, and are read from the disk again. It reports
    // the loss once.
    store.root().open_file(&stored, Access::ReadWrite).unwrap().write_at(&on_disk, 0).unwrap();
    let _ = vaults::rename(&vault, b"d", b"e", kithfs::vault::RenameMode::NoReplace);
    let _ = vault.release(handle);
    let _ = vault.close();
    let again = vaults::open(store.root()).unwrap();
    assert!(
        get(&again, b"file").unwrap() == patched(pattern(1, 20_000), 4096, &pattern(2, 4096)),
        "acknowledged and lost"
    );
}

#[test]
fn a_refused_record_harms_no_later_write() {
    // The flush of a record failed, but the record was in the journal. The file was opened again
    // and places were filled on which the record relied. A power cut before the next record made
    // its journal disappear, and the replay left an index block of two commits. The same happened
    // if the record was written and the store reported that it was not.
    let mut failed = 0;
    for call in [Call::SyncData, Call::Write] {
        for n in 1.. {
            let fault = Fault {
                calls: Calls::Of(call),
                when: When::Nth(n),
                errno: libc::EIO,
                short: false,
            };
            if !refused_and_written_to_later(fault) {
                break;
            }
            failed += 1;
        }
    }
    assert!(failed >= 4, "{failed} calls have failed");
}

/// Has a commit fail by `fault`, writes to the file later, and cuts the power at each moment of
/// that. Returns whether the failing call was made.
fn refused_and_written_to_later(fault: Fault) -> bool {
    let what = format!("{fault:?}");
    let store = store(14);
    durable(&vaults::open(store.root()).unwrap(), b"file", &pattern(1, 9000));
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    plan.reset();
    plan.write_all_the_same();
    plan.add(fault);
    let longer = SetAttr { size: Some(20_000), ..SetAttr::default() };
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    let done = at(&vault, b"file", |node| vault.setattr(node, &longer)).is_ok()
        && vault.fsync(handle, false).is_ok();
    let _ = vault.release(handle);
    if plan.failed() == 0 {
        return false;
    }
    plan.heal();
    let moments: Arc<parking_lot::Mutex<Vec<MemStore>>> = Arc::default();
    let (watched, seen) = (store.clone(), moments.clone());
    store.on_event(Box::new(move |_| seen.lock().push(watched.snapshot())));
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 28_672, &pattern(2, 9000), false).unwrap();
    vault.fsync(handle, false).unwrap();
    store.on_event(Box::new(|_| {}));
    let longer = [&pattern(1, 9000)[..], &[0; 11_000]].concat();
    let mut written = if done { longer.clone() } else { pattern(1, 9000) };
    written.resize(28_672, 0);
    written.extend(pattern(2, 9000));
    for (n, moment) in moments.lock().iter().enumerate() {
        for seed in 0..8 {
            let random = Seeded::new(seed);
            let cut = moment
                .crash(&mut |n| if seed == 0 { n - 1 } else { random.below(n as u64) as usize });
            let bytes = get(&vaults::open(cut.root()).unwrap(), b"file")
                .unwrap_or_else(|e| panic!("{what}, moment {n}, way {seed}: {e}"));
            let right = [pattern(1, 9000), longer.clone(), written.clone()].contains(&bytes);
            assert!(right, "{what}, moment {n}, way {seed}: {} bytes", bytes.len());
        }
    }
    vault.release(handle).unwrap();
    true
}

#[test]
fn a_refused_record_does_not_undo_a_later_utimens() {
    // A change of times looked for acknowledged records, and not for one whose write had failed but
    // which was in the journal. A power cut after everything was on the disk restored that record's
    // time, with the refused bytes.
    let mut there = 0;
    for call in [Call::Write, Call::SyncData] {
        for n in 1.. {
            let store = store(12);
            durable(&vaults::open(store.root()).unwrap(), b"file", b"first");
            let plan = FaultPlan::new();
            let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
            let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
            vault.write(handle, 0, b"other", false).unwrap();
            plan.reset();
            plan.write_all_the_same();
            plan.add(Fault {
                calls: Calls::Of(call),
                when: When::Nth(n),
                errno: libc::EIO,
                short: false,
            });
            let refused = vault.fsync(handle, false).is_err();
            let _ = vault.release(handle);
            if plan.failed() == 0 {
                break;
            }
            plan.heal();
            let after_a_crash = || vaults::open(store.crash(&mut |n| n - 1).root()).unwrap();
            if !refused || get(&after_a_crash(), b"file").unwrap() != b"other" {
                continue;
            }
            there += 1;
            let time = Timestamp { secs: 1_000_000_000, nanos: 7 };
            at(&vault, b"file", |node| {
                vault.setattr(node, &SetAttr { mtime: SetTime::At(time), ..SetAttr::default() })
            })
            .unwrap();
            let vault = after_a_crash();
            assert_eq!(
                at(&vault, b"file", |node| vault.getattr(node)).unwrap().mtime,
                time,
                "{call:?} {n}"
            );
        }
    }
    assert!(there > 0, "no record was in the journal all the same");
}

#[test]
fn what_did_not_fit_leaves_no_damage_behind() {
    // A copy to a full disk left bytes after the end of the file to which nothing referred; `fsck`
    // reported the file as damaged, and a repair moved it to `lost+found`, for which there was no
    // room.
    for (chunk_log2, was_durable, room) in [
        (12, true, 40_000),
        (12, false, 40_000),
        (18, true, 500_000),
        (18, false, 500_000),
        (18, true, 0),
    ] {
        for replaced in [false, true] {
            let what = format!(
                "chunks of 2^{chunk_log2}, durable: {was_durable}, {room} bytes of room, replaced: {replaced}"
            );
            let store = store(chunk_log2);
            let vault = vaults::open(store.root()).unwrap();
            let old = pattern(1, 20_000);
            if was_durable {
                durable(&vault, b"file", &old)
            } else {
                put(&vault, b"file", &old).unwrap()
            }
            vault.prepare().unwrap();
            let space = vault.space().unwrap();
            store.set_capacity(Some((space.blocks - space.free) * space.block_size + room));
            let flags = OpenFlags { truncate: replaced, ..READ_WRITE };
            let handle = vaults::open_or_create(&vault, b"file", flags).unwrap();
            let mut refused = false;
            for at in (0..2_000_000).step_by(100_000) {
                refused |= vault.write(handle, 20_000 + at, &pattern(2, 100_000), false).is_err();
            }
            refused |= vault.flush(handle).is_err();
            assert!(refused, "{what}");
            let _ = vault.release(handle);
            vault.close().unwrap();
            let vault = vaults::open(store.root()).unwrap();
            let report = vault.check(b"", &mut |_| {}).unwrap();
            assert_eq!(report.faults, [], "{what}");
            store.set_capacity(None);
            let kept = get(&vault, b"file").unwrap();
            assert!(replaced || kept[..20_000] == old, "{what}");
            overwrite(&vault, b"file", 0, b"again").unwrap();
            vault.close().unwrap();
            let vault = vaults::open(store.crash(&mut |n| n - 1).root()).unwrap();
            assert_eq!(get(&vault, b"file").unwrap(), patched(kept, 0, b"again"), "{what}");
        }
    }
}

#[test]
fn a_4_kib_fsync_in_a_large_file_writes_a_small_record() {
    // Records contained whole tables and index blocks: 15 KiB for an overwrite of 4 KiB in a file
    // of 64 MiB. Only some dozen bytes of each block change.
    const SEGMENT: usize = 4096;
    for (chunk_log2, signed) in [(12, false), (18, false), (18, true)] {
        let store = MemStore::new();
        let options = CreateOptions { suite: Suite::Aes256Gcm, chunk_log2 };
        if signed {
            let share = CreateShare { isolated: false, name: "Ann".into(), others: Vec::new() };
            Vault::create_signed(&store.root(), &options, &vaults::owner(), &share).unwrap();
        } else {
            vaults::create(&store.root(), options.suite, chunk_log2);
        }
        let vault = vaults::open(store.root()).unwrap();
        durable(&vault, b"file", &pattern(1, SEGMENT));
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        let places = [0, 5, 4000, 16_380].map(|segment| (segment * SEGMENT) as u64);
        for place in places {
            vault.write(handle, place, &pattern(2, 3 * SEGMENT), false).unwrap();
        }
        vault.fsync(handle, false).unwrap();
        for (n, place) in places.into_iter().enumerate() {
            let before = records(&store.root());
            vault
                .write(handle, place + SEGMENT as u64, &pattern(3 + n as u64, SEGMENT), false)
                .unwrap();
            vault.fsync(handle, false).unwrap();
            let after = records(&store.root());
            assert_eq!(after.len(), before.len() + 1, "the fsync is one record");
            let len = *after.last().unwrap();
            assert!(
                (SEGMENT..=SEGMENT + 1536).contains(&len),
                "{len} bytes, chunks of 2^{chunk_log2}, signed: {signed}"
            );
        }
        vault.release(handle).unwrap();
        vault.close().unwrap();
    }
}

/// Returns the lengths of the records of the journal, as written there.
fn records(root: &Arc<dyn Dir>) -> Vec<usize> {
    let name = journal_names(root).into_iter().next().expect("one journal");
    let bytes = read_all(root, &name);
    let (mut lengths, mut at) = (Vec::new(), RECORDS_AT as usize);
    while let Some((_, sequence, len)) =
        bytes.get(at..at + RECORD_HEAD).and_then(|head| record_head(head.try_into().unwrap()))
    {
        if sequence != lengths.len() as u64 {
            break;
        }
        let len = (RECORD_HEAD + len).next_multiple_of(ALIGN);
        lengths.push(len);
        at += len;
    }
    lengths
}
