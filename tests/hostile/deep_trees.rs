//! Trees as deep as another user of the vault may make them.

use kithfs::crypto::Suite;
use kithfs::store::mem::MemStore;
use kithfs::vault::ROOT;

use crate::fuzz::memory;
use crate::support::vaults::{self, CALLER};

/// The rollback database held the paths of every directory with local changes until these were
/// recorded, and copies of the paths meanwhile. An import of 2,000 levels took 347 MiB, and one of
/// 1,000 levels 139 MiB.
#[test]
fn memory_grows_linearly_with_the_depth_of_changes() {
    let peak = |levels: usize| {
        let (store, folder) = (MemStore::new(), tempfile::tempdir().unwrap());
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        let vault = vaults::open(store.root()).unwrap();
        vault.remember(&folder.path().join("memory"), false).unwrap();
        let peak = memory::peak_of(|| {
            let mut parent = ROOT;
            for _ in 0..levels {
                parent = vault.mkdir(&CALLER, parent, b"d", 0o755).unwrap().node;
            }
            vault.learn().unwrap();
        });
        vault.close().unwrap();
        peak
    };
    peak(1);
    let [few, many] = [500, 1000].map(peak);
    println!("{few} and {many} bytes");
    assert!(many <= 2 * few + (1 << 20), "{many} bytes, {few} for half of the levels");
}
