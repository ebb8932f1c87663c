//! Faults that fuzzing of whole vaults has found.

use std::sync::mpsc;
use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::roster::Identity;
use kithfs::store::Access;
use kithfs::store::mem::MemStore;
use kithfs::vault::{
    Caller, CreateOptions, OpenFlags, OpenOptions, OsRandom, ROOT, SetXattr, Vault,
};

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };
const WRITE: OpenFlags =
    OpenFlags { read: true, write: true, truncate: false, append: false, sync: false };
const READ: OpenFlags =
    OpenFlags { read: true, write: false, truncate: false, append: false, sync: false };

fn vault() -> (MemStore, Identity, Vault) {
    let (store, owner) = (MemStore::new(), Identity::generate(&OsRandom));
    Vault::create(
        &store.root(),
        &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 18 },
        &owner,
    )
    .expect("a vault");
    let vault = Vault::open(store.root(), &owner, OpenOptions::default()).expect("opened");
    (store, owner, vault)
}

/// The check read the attributes of the entries of each directory, and so never those of the root.
/// It reported no fault in a vault whose root had damaged attributes.
#[test]
fn the_check_names_damaged_attributes_of_the_root() {
    let (store, owner, vault) = vault();
    vault.set_xattr(ROOT, b"user.note", b"of the root", SetXattr::Any).expect("set");
    vault.close().expect("closed");
    let mut blob = store.root().get_xattr_self(b"user.kithfs").expect("read").expect("there");
    *blob.last_mut().expect("not empty") ^= 1;
    store.root().set_xattr_self(b"user.kithfs", &blob).expect("damaged");
    let vault = Vault::open(store.root(), &owner, OpenOptions::default()).expect("opened");
    assert!(vault.list_xattr(ROOT).is_err());
    let faults = vault.check(b"", &mut |_| ()).expect("checked").faults;
    assert_eq!(
        faults.iter().map(|fault| (&fault.plain[..], &fault.cipher[..])).collect::<Vec<_>>(),
        [(&b""[..], &b""[..])]
    );
}

/// If the last component of a stored path did not exist, `map --reverse` counted a lookup of its
/// directory and never forgot it, so the daemon grew with each call.
#[test]
fn a_stored_path_without_an_entry_leaves_no_node() {
    let (_store, _owner, vault) = vault();
    let dir = vault.mkdir(&CALLER, ROOT, b"dir", 0o755).expect("made");
    let stored = vault.cipher_path(b"dir").expect("mapped");
    vault.forget(dir.node, 1);
    let before = vault.node_count();
    assert!(vault.plain_path(&[&stored[..], b"/x"].concat()).is_err());
    assert_eq!(vault.node_count(), before);
}

/// Two files had two commits each in the journal when the power failed, and the storage host
/// changed one byte of one of the files. The replay repeated as long as it made progress. Each time
/// it redid the other file's first commit over its second one, so it never ended, and the vault
/// never opened.
#[test]
fn a_replay_ends_despite_a_damaged_file() {
    let (store, owner, first) = vault();
    for name in [b"a", b"b"] {
        let (_, file) = first.create_file(&CALLER, ROOT, name, 0o644, WRITE).expect("created");
        first.write(file.handle, 0, &[b'0'; 100], false).expect("written");
        first.fsync(file.handle, false).expect("flushed");
        first.release(file.handle).expect("closed");
    }
    let damaged = first.cipher_path(b"b").expect("mapped");
    first.close().expect("closed");
    let second = Vault::open(store.root(), &owner, OpenOptions::default()).expect("opened");
    for name in [b"a", b"b"] {
        let file =
            second.open_file(second.resolve(name).expect("there").node, WRITE).expect("opened");
        for contents in [b'1', b'2'] {
            second.write(file.handle, 0, &[contents; 100], false).expect("written");
            second.fsync(file.handle, false).expect("flushed");
        }
        second.release(file.handle).expect("closed");
    }
    let crashed = store.crash(&mut |_| 0);
    second.close().expect("closed");
    let file = crashed.root().open_file(&damaged, Access::ReadWrite).expect("there");
    file.write_at(b"X", 0).expect("damaged");
    drop(file);
    let (opened, result) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        opened.send(Vault::open(crashed.root(), &owner, OpenOptions::default()))
    });
    let vault =
        result.recv_timeout(Duration::from_secs(60)).expect("the replay ends").expect("opened");
    thread.join().expect("ended").expect("received");
    let file = vault.open_file(vault.resolve(b"a").expect("there").node, READ).expect("opened");
    let mut contents = [0; 100];
    vault.read(file.handle, 0, &mut contents).expect("read");
    assert_eq!(contents, [b'2'; 100]);
    vault.release(file.handle).expect("closed");
    assert!(vault.open_file(vault.resolve(b"b").expect("there").node, READ).is_err());
}
