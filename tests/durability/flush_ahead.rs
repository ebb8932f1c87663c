//! Files are flushed ahead of the checkpoint, for which all commits wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use kithfs::crypto::Suite;
use kithfs::store::Call;
use kithfs::store::fault::{Calls, FaultPlan, FaultStore};
use kithfs::store::mem::MemStore;
use kithfs::vault::Vault;

use crate::support::vaults::{self, READ_WRITE, pattern, put};

/// How long the tests wait for an event that must come.
const DEADLINE: Duration = Duration::from_secs(60);

fn vault_on(plan: &Arc<FaultPlan>) -> Vault {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 18);
    vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap()
}

fn durable(vault: &Vault, path: &[u8], len: usize) -> u64 {
    put(vault, path, &pattern(1, len)).unwrap();
    let handle = vaults::open_or_create(vault, path, READ_WRITE).unwrap();
    vault.fsync(handle, false).unwrap();
    handle
}

#[test]
fn commits_continue_while_a_file_is_flushed_ahead() {
    // Random writes of a database filled the journal within a second. The checkpoint then flushed
    // the whole file, and every commit waited: single writes took half a second.
    let plan = FaultPlan::new();
    let vault = vault_on(&plan);
    let file = durable(&vault, b"file", 100_000);
    let other = durable(&vault, b"other", 100_000);
    let (armed, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    plan.before(Call::SyncData, {
        let (vault, armed, ended) = (vault.clone(), armed.clone(), ended.clone());
        move || {
            if armed.swap(false, Ordering::AcqRel) {
                let (sender, receiver) = channel();
                let vault = vault.clone();
                std::thread::spawn(move || {
                    for handle in [file, other] {
                        vault.write(handle, 4096, &pattern(3, 4096), false).unwrap();
                        vault.fsync(handle, false).unwrap();
                    }
                    let _ = sender.send(());
                });
                ended.store(receiver.recv_timeout(DEADLINE).is_ok(), Ordering::Release);
            }
        }
    });
    let since = Instant::now();
    while !ended.load(Ordering::Acquire) && since.elapsed() < DEADLINE {
        vault.write(file, 0, &pattern(2, 4096), false).unwrap();
        vault.fsync(file, false).unwrap();
        // Until the next commit only a flush ahead makes the call, here or in the background.
        armed.store(true, Ordering::Release);
        vault.flush_due(Duration::ZERO);
        armed.store(false, Ordering::Release);
    }
    assert!(ended.load(Ordering::Acquire), "commits wait for the flush");
    plan.before(Call::SyncData, || ());
    vault.release(file).unwrap();
    vault.release(other).unwrap();
}

#[test]
fn a_long_journal_is_emptied_while_commits_continue() {
    // Nothing emptied a journal that was in use before it was full, and then all commits waited.
    let plan = FaultPlan::new();
    let vault = vault_on(&plan);
    let file = durable(&vault, b"file", 4 << 20);
    vault.write(file, 0, &pattern(8, 4096), false).unwrap();
    vault.fsync(file, false).unwrap();
    // From here on only a checkpoint flushes a file with its attributes.
    let before = plan.count(Calls::Of(Call::SyncAll));
    for round in 0..5 {
        vault.write(file, 0, &pattern(round, 4 << 20), false).unwrap();
        vault.fsync(file, false).unwrap();
    }
    // Small commits all the while, so that the journal is not emptied because it is idle. They do
    // not fill it before the deadline.
    let since = Instant::now();
    while plan.count(Calls::Of(Call::SyncAll)) == before {
        assert!(since.elapsed() < DEADLINE, "the journal is not emptied");
        vault.write(file, 0, &pattern(9, 4096), false).unwrap();
        vault.fsync(file, false).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    vault.release(file).unwrap();
}
