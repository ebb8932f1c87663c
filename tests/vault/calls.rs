//! How many calls to the store an operation makes in a vault that is neither synced nor shared.
//! Each call is time, and over a network a round trip.

use std::sync::Arc;

use kithfs::crypto::Suite;
use kithfs::store::fault::{Calls, FaultPlan, FaultStore};
use kithfs::store::mem::MemStore;
use kithfs::store::{Call, RenameMode};
use kithfs::vault::{NodeId, OpenOptions, ROOT, Vault};

use crate::support::vaults::{self, CALLER, READ, READ_WRITE};

/// Number of files for each operation. The calls of the first operation are not counted: it opens
/// directories.
const FILES: usize = 5;

/// A vault that was just opened, with the directory `d`, on a store that counts its calls.
struct Counted {
    vault: Vault,
    plan: Arc<FaultPlan>,
    dir: NodeId,
}

impl Counted {
    fn open(store: &MemStore) -> Counted {
        let plan = FaultPlan::new();
        let root = FaultStore::wrap(store.root(), plan.clone());
        let options = OpenOptions { caller_caches: true, ..OpenOptions::default() };
        let vault = Vault::open(root, &vaults::owner(), options).unwrap();
        let dir = vault.lookup(ROOT, b"d").unwrap().node;
        Counted { vault, plan, dir }
    }

    /// Returns the calls of `act` for one file, by kind. They are the same for each file but the
    /// first.
    fn calls(&self, act: impl Fn(&Vault, NodeId, &[u8])) -> Vec<(Call, u64)> {
        let mut seen: Vec<Vec<(Call, u64)>> = Vec::new();
        for n in 0..FILES {
            let count = || Call::ALL.map(|call| self.plan.count(Calls::Of(call)));
            let before = count();
            act(&self.vault, self.dir, format!("file {n}").as_bytes());
            let made = Call::ALL.into_iter().zip(count()).zip(before);
            seen.push(
                made.map(|((call, now), before)| (call, now - before))
                    .filter(|(_, calls)| *calls > 0)
                    .collect(),
            );
        }
        assert!(seen[1..].iter().all(|calls| *calls == seen[1]), "{seen:?}");
        seen.swap_remove(1)
    }
}

fn filled(files: usize) -> MemStore {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    vaults::mkdir(&vault, b"d").unwrap();
    for n in 0..files {
        vaults::put(&vault, format!("d/file {n}").as_bytes(), &[7; 4096]).unwrap();
    }
    vault.close().unwrap();
    store
}

/// Another program may have replaced a file in the store, so a commit looks for it before and
/// afterwards. The first commit of a new, empty file did so too, although there was nothing to
/// lose. So saving a file took four more calls.
#[test]
fn each_operation_makes_a_known_number_of_calls() {
    let counted = Counted::open(&filled(FILES));
    let made = counted.calls(|vault, dir, name| {
        let new = [name, b" new"].concat();
        vault.lookup(dir, &new).unwrap_err();
        let (_, opened) = vault.create_file(&CALLER, dir, &new, 0o644, READ_WRITE).unwrap();
        vault.write(opened.handle, 0, &[7; 4096], false).unwrap();
        vault.flush(opened.handle).unwrap();
        vault.release(opened.handle).unwrap();
    });
    let (created, stats) = ((Call::CreateFile, 1), |n| (Call::Stat, n));
    assert_eq!(made, [created, stats(6), (Call::SetTimes, 1), (Call::Read, 1), (Call::Write, 3)]);
    let empty = counted.calls(|vault, dir, name| {
        let new = [name, b" empty"].concat();
        vault.lookup(dir, &new).unwrap_err();
        let (_, opened) = vault.create_file(&CALLER, dir, &new, 0o644, READ_WRITE).unwrap();
        vault.flush(opened.handle).unwrap();
        vault.release(opened.handle).unwrap();
    });
    assert_eq!(empty, [created, stats(3), (Call::Write, 1)]);
    let looked_up = counted.calls(|vault, dir, name| {
        vault.lookup(dir, name).unwrap();
    });
    assert_eq!(looked_up, [stats(1)]);
    let read = counted.calls(|vault, dir, name| {
        let node = vault.lookup(dir, name).unwrap().node;
        let handle = vault.open_file(node, READ).unwrap().handle;
        assert_eq!(vault.read(handle, 0, &mut [0; 4096]).unwrap(), 4096);
        vault.flush(handle).unwrap();
        vault.release(handle).unwrap();
    });
    assert_eq!(read, [(Call::OpenFile, 1), stats(5), (Call::Read, 2)]);
    let renamed = counted.calls(|vault, dir, name| {
        vault.rename(dir, name, dir, &[name, b" renamed"].concat(), RenameMode::Replace).unwrap();
    });
    assert_eq!(renamed, [(Call::Rename, 1), stats(2)]);
    let removed =
        counted.calls(|vault, dir, name| vault.unlink(dir, &[name, b" renamed"].concat()).unwrap());
    assert_eq!(removed, [(Call::Unlink, 1), stats(1)]);
    counted.vault.close().unwrap();
}

#[test]
fn a_listing_makes_no_call_for_an_entry() {
    let calls = |files: usize| {
        let counted = Counted::open(&filled(files));
        let before = counted.plan.count(Calls::All);
        let handle = counted.vault.open_dir(counted.dir).unwrap();
        let entries = counted.vault.read_dir(handle, 0, 1 << 16).unwrap();
        assert_eq!(entries.len(), files);
        assert!(
            counted.vault.read_dir(handle, entries[files - 1].next, 1 << 16).unwrap().is_empty()
        );
        counted.vault.release_dir(handle);
        counted.vault.close().unwrap();
        counted.plan.count(Calls::All) - before
    };
    assert_eq!(calls(2), calls(50));
}
