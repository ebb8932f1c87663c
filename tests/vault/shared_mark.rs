//! The mark `+shared`: openers that name no locking mode share a marked vault, and a share with other
//! members also without the mark. The mark alone never admits a second kind of writer.

use kithfs::roster::Identity;
use kithfs::store::mem::MemStore;
use kithfs::vault::{Contention, CreateShare, Error, LockMode, OpenOptions, ROOT, Vault};

use crate::support::members::{
    founded, key, open_as, person, quiet, root_share, together, trusting, with_bob,
};
use crate::support::raw;
use crate::support::vaults::{
    READ_WRITE, entries, faults, get, mkdir, open_or_create, pattern, put, write_at,
};

/// Opens the vault as a mount without options does.
fn plainly(store: &MemStore, who: &Identity) -> Result<Vault, Error> {
    Vault::open(store.root(), who, as_marked())
}

fn as_marked() -> OpenOptions {
    trusting(false, LockMode::AsMarked)
}

/// Returns why an opener was refused.
fn refused(opened: Result<Vault, Error>) -> Contention {
    match opened {
        Err(Error::InUse { between, .. }) => between,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the vault is open twice"),
    }
}

#[test]
fn a_marked_vault_is_shared_without_an_option() {
    let (store, ann) = founded(Vec::new());
    assert!(Vault::set_shared(&store.root(), true).unwrap());
    assert!(!Vault::set_shared(&store.root(), true).unwrap(), "the mark was set already");
    assert_eq!(raw::read(&*store.root(), b"+shared"), b"kithfs shared\n");
    assert!(Vault::describe(&store.root()).unwrap().shared);
    let (one, other) = (plainly(&store, &ann).unwrap(), plainly(&store, &ann).unwrap());
    assert!(one.is_shared() && other.is_shared());
    put(&one, b"file", b"one").unwrap();
    put(&other, b"file", b"other").unwrap();
    assert_eq!(get(&one, b"file").unwrap(), b"other");
    assert_eq!(faults(&one), [""; 0], "the mark is no fault");
    assert_eq!(refused(open_as(&store, &ann)), Contention::Alone);
    one.close().unwrap();
    other.close().unwrap();

    assert!(Vault::set_shared(&store.root(), false).unwrap());
    assert!(!Vault::set_shared(&store.root(), false).unwrap());
    let one = plainly(&store, &ann).unwrap();
    assert!(!one.is_shared());
    assert_eq!(refused(plainly(&store, &ann)), Contention::Unshared);
}

/// The second member who opened a share was refused, unless there was an option or the mark.
#[test]
fn a_share_with_members_is_shared_without_a_mark() {
    let (store, ann, bob) = with_bob();
    let (hers, his) = (plainly(&store, &ann).unwrap(), plainly(&store, &bob).unwrap());
    assert!(hers.is_shared() && his.is_shared());
    assert!(!Vault::describe(&store.root()).unwrap().shared, "no mark is needed");
    put(&hers, b"file", b"hers").unwrap();
    put(&his, b"file", b"his").unwrap();
    assert_eq!(get(&hers, b"file").unwrap(), b"his");
    his.close().unwrap();
    root_share(&hers).remove(&[key(&bob)], &mut quiet()).unwrap();
    hers.close().unwrap();

    let hers = plainly(&store, &ann).unwrap();
    assert!(!hers.is_shared(), "nobody else is left");
}

/// A member opened a share in the folder of a sync tool as one that all members have on a common
/// disk. When the tool replaced a file that a program had open, its data went to the file without a
/// name, and `fsync` succeeded.
#[test]
fn members_in_a_sync_folder_have_copies_of_their_own() {
    let in_folder = || OpenOptions { in_sync_folder: true, ..as_marked() };
    let (store, ann, bob) = with_bob();
    let hers = Vault::open(store.root(), &ann, in_folder()).unwrap();
    assert!(!hers.is_shared());
    put(&hers, b"file", &pattern(1, 60_000)).unwrap();
    hers.close().unwrap();
    let copy = store.snapshot();
    let his = Vault::open(copy.root(), &bob, in_folder()).unwrap();
    write_at(&his, b"file", 0, b"his").unwrap();
    his.close().unwrap();

    let hers = Vault::open(store.root(), &ann, in_folder()).unwrap();
    let handle = open_or_create(&hers, b"file", READ_WRITE).unwrap();
    hers.write(handle, 0, b"hers", false).unwrap();
    let stored = hers.cipher_path(b"file").unwrap();
    raw::replace(&*store.root(), &stored, &raw::read(&*copy.root(), &stored));
    hers.fsync(handle, false).unwrap();
    hers.release(handle).unwrap();
    let names: Vec<_> = entries(&hers, ROOT).unwrap().into_iter().map(|(name, _)| name).collect();
    let starts: Vec<_> = names.iter().map(|name| get(&hers, name).unwrap()[..4].to_vec()).collect();
    assert_eq!(names.len(), 2, "a conflict copy");
    assert!(starts.iter().any(|start| start == b"hers"), "what was synced is there");
    assert!(starts.iter().any(|start| start.starts_with(b"his")), "so is what arrived");
    hers.close().unwrap();

    // The mark says that there is one store.
    assert!(Vault::set_shared(&store.root(), true).unwrap());
    assert!(Vault::open(store.root(), &ann, in_folder()).unwrap().is_shared());
}

/// A mount of a vault decides for the shares in it, and a member may be refused meanwhile.
#[test]
fn a_share_in_an_exclusively_open_vault_is_refused() {
    let (store, ann) = founded(Vec::new());
    let bob = person(2);
    let hers = plainly(&store, &ann).unwrap();
    mkdir(&hers, b"early").unwrap();
    hers.create_share(b"early", &with(&bob), &mut quiet()).unwrap();
    put(&hers, b"early/file", b"hers").unwrap();
    let early = hers.cipher_path(b"early").unwrap();
    let open = || {
        let place = store.root().open_dir(&early).unwrap();
        Vault::open(place, &bob, as_marked())
    };
    assert_eq!(refused(open()), Contention::Unshared);
    hers.close().unwrap();
    let his = open().unwrap();
    assert!(his.is_shared());
    assert_eq!(get(&his, b"file").unwrap(), b"hers");
}

/// The storage host can add and remove the mark at any time. The lock decides nevertheless:
/// either writers share the vault, or one has it alone.
#[test]
fn a_mark_set_or_removed_beneath_an_opener_only_refuses() {
    let (store, ann) = founded(Vec::new());
    let one = plainly(&store, &ann).unwrap();
    Vault::set_shared(&store.root(), true).unwrap();
    assert_eq!(refused(plainly(&store, &ann)), Contention::Holder);
    put(&one, b"file", b"one").unwrap();
    one.close().unwrap();

    let one = plainly(&store, &ann).unwrap();
    store.root().unlink(b"+shared").unwrap();
    assert_eq!(refused(plainly(&store, &ann)), Contention::Opener);
    let other = together(&store, &ann).unwrap();
    put(&other, b"file", b"other").unwrap();
    assert_eq!(get(&one, b"file").unwrap(), b"other");
}

#[test]
fn a_vault_is_not_both_synced_and_shared() {
    let (store, ann, bob) = with_bob();
    let errno = |result: Result<bool, Error>| result.map_or_else(|error| error.errno(), |_| 0);
    Vault::set_shared(&store.root(), true).unwrap();
    assert_eq!(errno(Vault::set_synced(&store.root())), libc::EINVAL);
    Vault::set_shared(&store.root(), false).unwrap();
    Vault::set_synced(&store.root()).unwrap();
    assert_eq!(errno(Vault::set_shared(&store.root(), true)), libc::EINVAL);
    // The host adds the second mark: a copy is used by one daemon at a time, as before.
    store.root().create_file(b"+shared", 0o600).unwrap();
    let hers = plainly(&store, &ann).unwrap();
    assert!(hers.is_synced() && !hers.is_shared());
    assert_eq!(refused(plainly(&store, &bob)), Contention::Unshared);
    drop(hers);
    // The mark can always be removed again.
    assert!(Vault::set_shared(&store.root(), false).unwrap());
}

/// Members open a nested share alone, and cannot see the vault that it is in. So the share has a
/// mark of its own: from its creation in a marked vault, or from its first use in a vault marked
/// later.
///
/// The test asserted only that the share was shared, which it is without a mark if it has members.
#[test]
fn shares_in_a_marked_vault_get_the_mark() {
    let (store, ann, bob) = with_bob();
    let is_marked = |share: &[u8]| {
        raw::names(&*store.root().open_dir(share).unwrap()).contains(&b"+shared".to_vec())
    };
    let hers = plainly(&store, &ann).unwrap();
    mkdir(&hers, b"early").unwrap();
    hers.create_share(b"early", &with(&bob), &mut quiet()).unwrap();
    let early = hers.cipher_path(b"early").unwrap();
    hers.close().unwrap();
    assert!(!is_marked(&early), "the vault has no mark yet");
    Vault::set_shared(&store.root(), true).unwrap();
    let hers = plainly(&store, &ann).unwrap();
    put(&hers, b"early/file", b"hers").unwrap();
    assert!(is_marked(&early), "a share from before the mark");
    mkdir(&hers, b"late").unwrap();
    hers.create_share(b"late", &with(&bob), &mut quiet()).unwrap();
    assert!(is_marked(&hers.cipher_path(b"late").unwrap()), "a share from after the mark");
    let place = store.root().open_dir(&early).unwrap();
    let his = Vault::open(place, &bob, as_marked()).unwrap();
    assert!(his.is_shared());
    put(&his, b"file", b"his").unwrap();
    assert_eq!(get(&hers, b"early/file").unwrap(), b"his");
    his.close().unwrap();
    hers.close().unwrap();
    assert_eq!(faults(&open_as(&store, &ann).unwrap()), [""; 0]);
}

fn with(bob: &Identity) -> CreateShare {
    let bob = crate::support::members::member(bob, kithfs::roster::Role::Writer, "Bob");
    CreateShare { isolated: true, name: "Ann".into(), others: vec![bob] }
}
