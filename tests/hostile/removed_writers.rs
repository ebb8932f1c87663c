//! Entries and journals of a member who may no longer write.

use kithfs::roster::Role;

use crate::support::members::{beside, key, open_as, quiet, root_share, with_bob};
use crate::support::raw::{read, write};
use crate::support::vaults::{READ_WRITE, get, open_or_create, pattern, put};

#[test]
fn a_cached_signature_is_worth_no_more_than_its_signer() {
    // Ann's open vault has verified two versions of a file by Bob, and has their signatures in its
    // cache. Bob loses the right to write, and the inventory lists the newer version as valid. Then
    // the storage host restores the older one.
    let (store, ann, bob) = with_bob();
    let version = |n: u64, len| {
        let of_bob = open_as(&store, &bob).unwrap();
        put(&of_bob, b"file", &pattern(n, len)).unwrap();
        let stored = of_bob.cipher_path(b"file").unwrap();
        of_bob.close().unwrap();
        (stored.clone(), read(&*store.root(), &stored))
    };
    for len in [50, 50_000] {
        let ((stored, first), (_, second)) = (version(1, len), version(2, len));
        let vault = open_as(&store, &ann).unwrap();
        for (n, bytes) in [(1, &first), (2, &second)] {
            write(&*store.root(), &stored, bytes);
            assert_eq!(get(&vault, b"file").unwrap(), pattern(n, len));
        }
        root_share(&vault).set_role(&key(&bob), Role::Reader, &mut quiet()).unwrap();
        assert_eq!(get(&vault, b"file").unwrap(), pattern(2, len), "what is in the inventory");
        write(&*store.root(), &stored, &first);
        for _ in 0..2 {
            let refused = get(&vault, b"file").unwrap_err();
            assert!(
                refused.errno() == libc::EIO && refused.to_string().contains("may not write here"),
                "{refused}"
            );
        }
        root_share(&vault).set_role(&key(&bob), Role::Writer, &mut quiet()).unwrap();
        assert_eq!(get(&vault, b"file").unwrap(), pattern(1, len), "Bob may write again");
        vault.close().unwrap();
    }
}

#[test]
fn a_removed_writers_journal_does_not_hide_their_valid_files() {
    // Bob's machine stopped with a commit in its journal. Then Bob became a reader, and the former
    // state of the file was listed as valid. As long as the journal existed, Bob could not read the
    // file: the journal's version was shown, and its signer may not write.
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &bob).unwrap();
    put(&vault, b"plan", &pattern(1, 40_000)).unwrap();
    let stored = vault.cipher_path(b"plan").unwrap();
    vault.close().unwrap();
    let before = read(&*store.root(), &stored);
    let vault = open_as(&store, &bob).unwrap();
    let handle = open_or_create(&vault, b"plan", READ_WRITE).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.write(handle, 5000, b"the last", false).unwrap();
    vault.fsync(handle, false).unwrap();
    let stopped = store.snapshot();
    write(&*stopped.root(), &stored, &before); // the commit is in the journal only
    root_share(&beside(&stopped, &ann)).set_role(&key(&bob), Role::Reader, &mut quiet()).unwrap();
    let vault = open_as(&stopped, &ann).unwrap();
    assert_eq!(get(&vault, b"plan").unwrap(), pattern(1, 40_000));
    vault.close().unwrap();
    let vault = open_as(&stopped, &bob).unwrap();
    assert!(vault.is_read_only());
    assert_eq!(get(&vault, b"plan").unwrap(), pattern(1, 40_000));
}
