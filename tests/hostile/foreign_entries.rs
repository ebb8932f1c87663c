//! Entries that a storage host adds to a vault, in any number.

use std::fs::File;

use kithfs::crypto::Suite;
use kithfs::store::os::OsDir;
use kithfs::vault::ROOT;

use crate::fuzz::memory;
use crate::support::vaults::{self, put};

/// Opening a vault, a listing and a check each read a directory completely: a million entries that
/// a storage host had added took 134 MiB for a listing and 370 MiB for a check that found nothing
/// to report.
#[test]
fn memory_does_not_grow_with_foreign_entries() {
    let dir = tempfile::tempdir().unwrap();
    let store = OsDir::open(dir.path()).unwrap();
    vaults::create(&store, Suite::Aes256Gcm, 12);
    let vault = vaults::open(store).unwrap();
    put(&vault, b"file", b"text").unwrap();
    vault.close().unwrap();
    drop(vault);
    let peaks = || {
        let mut vault = None;
        let open = memory::peak_of(|| {
            vault = Some(vaults::open(OsDir::open(dir.path()).unwrap()).unwrap())
        });
        let vault = vault.unwrap();
        let list = memory::peak_of(|| assert_eq!(vaults::entries(&vault, ROOT).unwrap().len(), 1));
        let check =
            memory::peak_of(|| assert_eq!(vault.check(b"", &mut |_| {}).unwrap().faults, []));
        vault.close().unwrap();
        [open, list, check]
    };
    let before = peaks();
    for n in 0..60_000 {
        File::create(dir.path().join(format!(".entry-{n:030}"))).unwrap();
    }
    let after = peaks();
    println!("{before:?} {after:?} bytes");
    for (before, after) in before.into_iter().zip(after) {
        assert!(after <= before + (2 << 20), "{before} bytes without them, {after} with them");
    }
}
