//! Other objects in place of control files.

use kithfs::crypto::Suite;
use kithfs::store::mem::MemStore;
use kithfs::store::{Kind, RenameMode};
use kithfs::vault::{Error, Vault};

use crate::support::{raw, vaults};

/// Opens the vault, and reads everything that has a control file.
fn read_all(store: &MemStore) -> Result<(), Error> {
    let vault: Vault = vaults::open(store.root())?;
    vaults::at(&vault, b"link", |node| vault.readlink(node))?;
    vaults::at(&vault, b"file", |node| vault.get_xattr(node, b"user.long"))?;
    vault.close()
}

/// A FIFO in place of a link's target was reported as "no such device", and an error about the
/// slots or the manifests did not name the file. No reader hangs, or follows a link in place of a
/// control file.
#[test]
fn other_objects_in_place_of_control_files_are_reported() {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    vaults::put(&vault, b"file", b"text").unwrap();
    vaults::set_xattr(&vault, b"file", b"user.long", &[7; 65_536]).unwrap();
    vaults::symlink(&vault, b"link", &[b't'; 4000]).unwrap();
    vault.close().unwrap();
    read_all(&store).unwrap();
    for control in ["+link-", "+attr-", "+share", "+manifest-", "+slots-"] {
        for kind in [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo] {
            let copy = store.snapshot();
            let root = copy.root();
            let mut names = raw::names(&*root).into_iter();
            let name = names.find(|name| name.starts_with(control.as_bytes())).expect(control);
            root.rename(&name, &*root, b".aside", RenameMode::NoReplace).unwrap();
            match kind {
                Kind::Dir => root.mkdir(&name, 0o755).unwrap(),
                // The link leads to the real file: a reader that followed it would report nothing.
                Kind::Symlink => root.symlink(&name, b".aside").unwrap(),
                Kind::Fifo => root.mknod(&name, Kind::Fifo, 0o644, 0).unwrap(),
                _ => root.create_file(&name, 0o600).unwrap().set_len(1 << 40).unwrap(),
            }
            let error = read_all(&copy).expect_err("it is noticed");
            let what = format!("{control}, {kind:?}: {error}, {}", error.errno());
            let shown = error.to_string();
            match control {
                "+attr-" => assert_eq!(error.errno(), libc::EIO, "{what}"),
                "+link-" if kind == Kind::File => assert_eq!(error.errno(), libc::EIO, "{what}"),
                "+link-" => assert!(shown.contains(&*String::from_utf8_lossy(&name)), "{what}"),
                // An invalid manifest is skipped, so none is left.
                "+manifest-" => assert!(shown.contains("+manifest-*"), "{what}"),
                "+share" => assert!(shown.contains(control) || shown.contains("vault"), "{what}"),
                _ => assert!(shown.contains(&*String::from_utf8_lossy(&name)), "{what}"),
            }
        }
    }
}
