//! What fuzzing found in whole vaults, each as a story.

use kithfs::backing::mem::MemStore;
use kithfs::crypto::Suite;
use kithfs::sharing::Identity;
use kithfs::vault::{Caller, CreateOptions, OpenOptions, OsRandom, ROOT, SetXattr, Vault};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };

fn vault() -> (MemStore, Identity, Vault) {
    let (store, owner) = (MemStore::new(), Identity::generate(&OsRandom));
    Vault::create(&store.root(), &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 18 }, &owner).expect("a vault");
    let vault = Vault::open(store.root(), &owner, OpenOptions::default()).expect("opened");
    (store, owner, vault)
}

#[test]
fn the_check_names_damaged_attributes_of_the_root() {
    // Story: the check looked at the attributes of every entry of every directory, and so never at those of the root, which is an entry of
    // none. It called a vault clean whose root could not be listed with its attributes.
    let (store, owner, vault) = vault();
    vault.set_xattr(ROOT, b"user.note", b"of the root", SetXattr::Any).expect("set");
    vault.close().expect("closed");
    let mut blob = store.root().get_xattr_self(b"user.kithfs").expect("read").expect("there");
    *blob.last_mut().expect("not empty") ^= 1;
    store.root().set_xattr_self(b"user.kithfs", &blob).expect("damaged");
    let vault = Vault::open(store.root(), &owner, OpenOptions::default()).expect("opened");
    assert!(vault.list_xattr(ROOT).is_err());
    let faults = vault.check(b"", &mut |_| ()).expect("checked").faults;
    assert_eq!(faults.iter().map(|fault| (&fault.plain[..], &fault.cipher[..])).collect::<Vec<_>>(), [(&b""[..], &b""[..])]);
}

#[test]
fn a_stored_path_that_leads_nowhere_keeps_no_node() {
    // Story: `map --reverse` of a path whose last component is no name of its directory counted one on that directory and never let it go,
    // so that a mount which is asked often enough grows.
    let (_store, _owner, vault) = vault();
    let dir = vault.mkdir(&CALLER, ROOT, b"dir", 0o755).expect("made");
    let stored = vault.cipher_path(b"dir").expect("mapped");
    vault.forget(dir.node, 1);
    let before = vault.node_count();
    assert!(vault.plain_path(&[&stored[..], b"/x"].concat()).is_err());
    assert_eq!(vault.node_count(), before);
}
