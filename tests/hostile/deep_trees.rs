//! Trees as deep as another user of the vault can make them.

use kithfs::crypto::Suite;
use kithfs::store::Access;
use kithfs::store::mem::MemStore;
use kithfs::vault::ROOT;

use crate::fuzz::memory;
use crate::support::raw;
use crate::support::vaults::{self, CALLER, READ, READ_WRITE};

/// The rollback database held the path of each directory with local changes until the changes were
/// recorded, and copied the paths to record them. An import of 2,000 levels took 347 MiB, and one
/// of 1,000 levels 139 MiB.
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

/// If the stored path of a damaged file was too long for a journal record, the error called the
/// file unlinked.
#[test]
fn a_path_too_long_for_a_record_is_reported_as_such() {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    let (mut parent, mut dir) = (ROOT, store.root());
    for _ in 0..800 {
        parent = vault.mkdir(&CALLER, parent, &[b'd'; 60], 0o755).unwrap().node;
        let inside = raw::names(&*dir).into_iter().find(|name| name[0] != b'+').unwrap();
        dir = dir.open_dir(&inside).unwrap();
    }
    let (attr, open) = vault.create_file(&CALLER, parent, b"file", 0o644, READ_WRITE).unwrap();
    vault.write(open.handle, 0, b"contents", false).unwrap();
    vault.release(open.handle).unwrap();
    let file = dir.open_file(&raw::names(&*dir)[0], Access::ReadWrite).unwrap();
    file.write_at(b"damage", 20).unwrap();
    let error = vault.open_file(attr.node, READ).err().unwrap().to_string();
    assert!(error.contains("a path that is too long"), "{error}");
}
