//! Stories of writes and commits that the store refused, usually for lack of room: each test shows
//! how one of them harmed earlier or later data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kithfs::crypto::Suite;
use kithfs::store::Call;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::vault::{Fallocate, RenameMode, SetAttr, Vault};
use parking_lot::Mutex;

use crate::support::vaults::{self, READ_WRITE, at, get, pattern, put};

fn store(chunk_log2: u8) -> MemStore {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, chunk_log2);
    store
}

fn fill_up(store: &MemStore, vault: &Vault) {
    let space = vault.space().unwrap();
    store.set_capacity(Some((space.blocks - space.free) * space.block_size));
}

#[test]
fn a_background_commit_does_not_restore_discarded_data() {
    // The background made a list of the open files. Before it reached one of them, the last close of
    // that file was refused for lack of room. Then there was room again, and another program opened
    // the file, wrote to it and synced it. The background committed the refused changes over that.
    for attempt in 0.. {
        assert!(attempt < 200, "the background always began with the file");
        let store = store(12);
        let vault = vaults::open(store.root()).unwrap();
        put(&vault, b"file", &pattern(1, 20_000)).unwrap();
        let others: Vec<u64> = (0..8)
            .map(|n| {
                vaults::open_or_create(&vault, format!("other {n}").as_bytes(), READ_WRITE).unwrap()
            })
            .collect();
        for other in &others {
            vault.write(*other, 0, b"something", false).unwrap();
        }
        let inos: Vec<u64> = (0..8)
            .map(|n| {
                at(&vault, format!("other {n}").as_bytes(), |node| vault.getattr(node)).unwrap().ino
            })
            .collect();
        vault.prepare().unwrap();
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        fill_up(&store, &vault);
        vault.write(handle, 0, &pattern(2, 20_000), false).unwrap();
        vault.write(handle, 20_000, &pattern(3, 60_000), false).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let inside = Arc::new(Mutex::new(Some((vault.clone(), store.clone(), done.clone()))));
        store.on_event(Box::new(move |event| {
            if event.call != Call::Write || !inos.contains(&event.ino) {
                return;
            }
            let Some((vault, store, done)) = inside.lock().take() else { return };
            assert_eq!(vault.release(handle).unwrap_err().errno(), libc::ENOSPC);
            store.set_capacity(None);
            let again = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
            vault.write(again, 0, b"anew", false).unwrap();
            vault.fsync(again, false).unwrap();
            vault.release(again).unwrap();
            done.store(true, Ordering::Relaxed);
        }));
        vault.commit_due(Duration::ZERO);
        let mut wanted = pattern(2, 20_000); // these bytes had room
        wanted[..4].copy_from_slice(b"anew");
        if done.load(Ordering::Relaxed) {
            assert!(get(&vault, b"file").unwrap() == wanted);
            break;
        }
    }
}

/// Opens a vault, writes a file, and syncs or flushes it. Returns the vault and the open handle.
fn vault_with(store: &MemStore, path: &[u8], bytes: &[u8], synced: bool) -> (Vault, u64) {
    let vault = vaults::open(store.root()).unwrap();
    vault.prepare().unwrap();
    let handle = vaults::open_or_create(&vault, path, READ_WRITE).unwrap();
    vault.write(handle, 0, bytes, false).unwrap();
    if synced {
        vault.fsync(handle, false).unwrap()
    } else {
        vault.flush(handle).unwrap()
    }
    (vault, handle)
}

#[test]
fn a_file_keeps_its_length_after_punching_a_refused_write() {
    // The length of the ciphertext was recorded as if the write that the store refused had been
    // made. If the end of the file became a hole, nothing extended it any more: the close
    // succeeded, and the file could not be opened again.
    for (chunk_log2, synced) in [(12, true), (12, false), (18, true), (18, false)] {
        let store = store(chunk_log2);
        let (vault, handle) = vault_with(&store, b"file", &pattern(1, 1459), synced);
        fill_up(&store, &vault);
        assert_eq!(
            vault.write(handle, 1459, &pattern(2, 105_570), false).unwrap_err().errno(),
            libc::ENOSPC
        );
        store.set_capacity(None);
        let size = at(&vault, b"file", |node| vault.getattr(node)).unwrap().size;
        vault.fallocate(handle, 4096, size, Fallocate::PunchHole).unwrap();
        vault.release(handle).unwrap();
        let mut wanted = [pattern(1, 1459), pattern(2, 105_570)].concat();
        wanted.truncate(size as usize);
        wanted[4096.min(size as usize)..].fill(0);
        assert!(
            get(&vault, b"file").unwrap() == wanted,
            "chunks of 2^{chunk_log2}, synced: {synced}"
        );
    }
}

#[test]
fn a_file_that_was_never_synced_survives_what_does_not_fit() {
    // The contents of such a file were overwritten at once, and its table and header later. The
    // bytes of the last commit were lost in two cases: there was no room for table and header; or a
    // write was refused and there was nothing to commit. A log of 4 KiB on a full disk became
    // unreadable.
    for chunk_log2 in [12, 18] {
        for (len, offset, more) in [
            (3900, 3900, 9000),       // small data is stored where the first segment will be
            (20_000, 4096, 200_000),  // whole segments
            (20_000, 19_000, 50_000), // and the last one, which is not full
            (20_000, 20_000, 300),
            (23_680, 23_680, 600), // which alone may need another block, as it does here
        ] {
            let what = format!("chunks of 2^{chunk_log2}, {len} bytes, {more} at {offset}");
            let store = store(chunk_log2);
            let (vault, handle) = vault_with(&store, b"log", &pattern(1, len), false);
            fill_up(&store, &vault);
            let written = vault.write(handle, offset as u64, &pattern(2, more), false);
            let flushed = vault.flush(handle);
            let released = vault.release(handle);
            let kept = get(&vault, b"log").unwrap_or_else(|e| panic!("{what}: {e}"));
            let mut both = pattern(1, len);
            both.truncate(offset);
            both.extend(pattern(2, more));
            if written.is_ok() && flushed.is_ok() && released.is_ok() {
                assert!(kept == both, "{what}: all was well, and {} bytes are there", kept.len());
            } else {
                let fits = kept.len() >= len && both.starts_with(&kept);
                assert!(fits || kept == pattern(1, len), "{what}: {} bytes", kept.len());
            }
            // If the daemon is killed now, the next one reads the same.
            assert!(
                get(&vaults::open(store.crash(&mut |n| n - 1).root()).unwrap(), b"log").unwrap()
                    == kept,
                "{what}"
            );
        }
    }
}

#[test]
fn a_file_with_a_hole_at_its_table_shrinks_on_a_full_store() {
    // Small data needs the block of the first table of a large file, and if that was a hole there
    // was none. It was requested from the store only after the record was durable, and then the
    // file could not be opened until there was space.
    for synced in [true, false] {
        let store = store(18);
        let vault = vaults::open(store.root()).unwrap();
        let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        vault.flush(handle).unwrap();
        let size = |to| SetAttr { size: Some(to), ..SetAttr::default() };
        at(&vault, b"file", |node| vault.setattr(node, &size(12_000))).unwrap();
        if synced {
            vault.fsync(handle, false).unwrap()
        } else {
            vault.flush(handle).unwrap()
        }
        let space = vault.space().unwrap();
        store.set_capacity(Some((space.blocks - space.free + 3) * space.block_size)); // for a journal from which no room can be taken
        let cut = at(&vault, b"file", |node| vault.setattr(node, &size(4000)));
        let _ = vault.release(handle);
        let kept = get(&vault, b"file").unwrap_or_else(|e| panic!("synced: {synced}: {e}"));
        assert!(
            kept == vec![0; if cut.is_ok() { 4000 } else { 12_000 }],
            "synced: {synced}: {} bytes",
            kept.len()
        );
    }
}

#[test]
fn leftovers_of_a_refused_write_are_removed_at_the_close() {
    // Leftovers were removed only from files whose last close found no room, and which had not been
    // moved since. `fsck` reported all other files with leftovers as damaged.
    enum Then {
        RenameFile,
        RenameFolder,
        CloseTheVault,
        Shorten,
    }
    for synced in [true, false] {
        for (n, then) in [Then::RenameFile, Then::RenameFolder, Then::CloseTheVault, Then::Shorten]
            .iter()
            .enumerate()
        {
            let store = store(12);
            vaults::mkdir(&vaults::open(store.root()).unwrap(), b"folder").unwrap();
            let (vault, handle) = vault_with(&store, b"folder/file", &pattern(1, 1000), synced);
            let space = vault.space().unwrap();
            store.set_capacity(Some((space.blocks - space.free) * space.block_size + 400_000));
            let written = vault.write(handle, 1000, &pattern(2, 900_000), false);
            assert_eq!(written.unwrap_err().errno(), libc::ENOSPC);
            let mut path: &[u8] = b"folder/file";
            match then {
                Then::CloseTheVault => vault.close().unwrap(),
                _ => vault.release(handle).unwrap(), // the write has reported that there is no room
            }
            match then {
                Then::RenameFile => {
                    path = b"other";
                    vaults::rename(&vault, b"folder/file", path, RenameMode::NoReplace).unwrap();
                }
                Then::RenameFolder => {
                    path = b"moved/file";
                    store.set_capacity(None);
                    vaults::rename(&vault, b"folder", b"moved", RenameMode::NoReplace).unwrap();
                }
                _ => {}
            }
            let _ = vault.close();
            let vault = vaults::open(store.root()).unwrap();
            assert_eq!(vault.check(b"", &mut |_| {}).unwrap().faults, [], "{n}, synced: {synced}");
            assert!(get(&vault, path).unwrap() == pattern(1, 1000), "{n}, synced: {synced}");
        }
    }
}

#[test]
fn a_record_that_was_refused_is_wiped_when_the_journal_rests() {
    // No program wrote to the file again, so only time could remove the record. A power cut an hour
    // later still restored data that had been reported as refused.
    let store = store(12);
    put(&vaults::open(store.root()).unwrap(), b"file", b"first").unwrap();
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    vault.prepare().unwrap();
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.write(handle, 0, b"other", false).unwrap();
    plan.reset();
    plan.write_all_the_same();
    plan.add(Fault {
        calls: Calls::Of(Call::Write),
        when: When::Nth(1),
        errno: libc::EIO,
        short: false,
    });
    assert_eq!(vault.fsync(handle, false).unwrap_err().errno(), libc::EIO);
    vault.release(handle).unwrap_err();
    plan.heal();
    let after_a_crash =
        || get(&vaults::open(store.crash(&mut |n| n - 1).root()).unwrap(), b"file").unwrap();
    assert_eq!(after_a_crash(), b"other", "the record is there all the same");
    let until = Instant::now() + Duration::from_secs(60);
    while after_a_crash() != b"first" {
        assert!(Instant::now() < until, "the record is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn handles_left_open_at_close_commit_nothing() {
    // A daemon that gets two signals to end closes the vault while programs keep its mount busy. The
    // close releases the lock, empties the journal and cuts bytes after the ends of files. A write
    // after that was committed over the work of the next mount.
    let store = store(12);
    let (vault, handle) = vault_with(&store, b"file", &pattern(1, 20_000), true);
    vault.write(handle, 0, &pattern(2, 20_000), false).unwrap();
    vault.close().unwrap();
    let next = vaults::open(store.root()).unwrap();
    assert!(get(&next, b"file").unwrap() == pattern(2, 20_000), "the close has committed it");
    let again = vaults::open_or_create(&next, b"file", READ_WRITE).unwrap();
    next.write(again, 0, &pattern(3, 20_000), false).unwrap();
    next.fsync(again, false).unwrap();
    assert_eq!(
        vault.write(handle, 0, &pattern(4, 20_000), false).unwrap_err().errno(),
        libc::ESHUTDOWN
    );
    vault.fsync(handle, false).unwrap_err();
    let _ = vault.release(handle);
    vaults::put(&vault, b"late", b"late").unwrap_err();
    next.release(again).unwrap();
    assert!(get(&next, b"file").unwrap() == pattern(3, 20_000));
}
