//! Attacks on shares by members, former members and the storage host. Each test is named after the
//! outcome. A few show what the threat model says that the host can do.

use std::sync::Arc;

use kithfs::crypto::{Hctr2, RecordCipher, Suite, directory_key, root_tag};
use kithfs::format::header::Header;
use kithfs::format::inventory::{self, InventoryList};
use kithfs::format::junction::{self, Junction};
use kithfs::format::manifest::BlockRef;
use kithfs::format::name::long_path;
use kithfs::format::record::{RecordContext, RecordKind};
use kithfs::format::signature::{Authorship, Sign};
use kithfs::format::table::HOLE;
use kithfs::format::{slots, suffix, text};
use kithfs::roster::{Acting, Identity, Inventory, Role, RosterError};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Dir, RenameMode as StoreRename, SetTime, Timestamp};
use kithfs::vault::{
    Caller, CreateOptions, CreateShare, Error, LockMode, OpenFlags, OpenOptions, ShareProgress,
    Trust, Vault,
};

use crate::support::forger::{self, Forger};
use crate::support::members::ShareOfPath;
use crate::support::members::{
    Memory, beside, founded, key, member, open_as, person, quiet, remembering, root_share,
};
use crate::support::raw::{self, beneath, merge, named, names, read, write};
use crate::support::vaults::{self, get, mkdir, pattern, put, split};

fn new_since(before: &[Vec<u8>], store: &MemStore, prefix: &[u8]) -> Vec<u8> {
    named(&*store.root(), prefix).into_iter().find(|n| !before.contains(n)).unwrap()
}

/// Removes a member by a command of Ann's, and damages the slot block of the new epoch. Returns the
/// name and the intact contents of the block.
fn removed_and_damaged(store: &MemStore, ann: &Identity, gone: &Identity) -> (Vec<u8>, Vec<u8>) {
    let before = names(&*store.root());
    root_share(&beside(store, ann)).remove(&[key(gone)], &mut quiet()).unwrap();
    let slots = new_since(&before, store, b"+slots-");
    let good = read(&*store.root(), &slots);
    write(&*store.root(), &slots, &vec![0; good.len()]);
    (slots, good)
}

#[test]
fn a_demoted_admins_shares_stay_reachable() {
    // Bob made a share as an admin. As a writer he is no longer an admin, but the junction that he
    // signed still leads there.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Admin, "Bob")]);
    let vault = open_as(&store, &bob).unwrap();
    mkdir(&vault, b"projects").unwrap();
    vault
        .create_share(
            b"projects",
            &CreateShare { isolated: false, name: "Bob".into(), others: vec![] },
            &mut quiet(),
        )
        .unwrap();
    put(&vault, b"projects/plan", b"the plan").unwrap();
    vault.close().unwrap();
    let vault = Vault::open(store.root(), &ann, OpenOptions::default()).unwrap();
    assert_eq!(get(&vault, b"projects/plan").unwrap(), b"the plan");
    root_share(&vault).set_role(&key(&bob), Role::Writer, &mut quiet()).unwrap();
    vault.close().unwrap();
    let vault = Vault::open(store.root(), &ann, OpenOptions::default()).unwrap();
    assert_eq!(get(&vault, b"projects/plan").unwrap(), b"the plan");
}

#[test]
fn bytes_behind_the_end_of_a_file_do_not_enter_a_share() {
    // The storage host, or a full disk, lengthened a ciphertext. The copy in the share became as
    // long as that made the file look, with zeros at its end, sealed and signed like the rest.
    let (store, ann) = founded(vec![]);
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"projects").unwrap();
    let files: [(&[u8], usize); 5] =
        [(b"none", 0), (b"small", 100), (b"full", 4096), (b"large", 10_000), (b"chunks", 600_000)];
    let path = |name: &[u8]| [b"projects/", name].concat();
    for (name, len) in files {
        put(&vault, &path(name), &pattern(1, len)).unwrap();
    }
    let stored: Vec<_> =
        files.iter().map(|(name, _)| vault.cipher_path(&path(name)).unwrap()).collect();
    vault.close().unwrap();
    for path in &stored {
        let (dir, name) = split(path);
        let dir = beneath(&store.root(), dir);
        let longer = [read(&*dir, name), vec![0; 9000]].concat();
        write(&*dir, name, &longer);
    }
    let vault = open_as(&store, &ann).unwrap();
    vault
        .create_share(
            b"projects",
            &CreateShare { isolated: false, name: "Ann".into(), others: vec![] },
            &mut quiet(),
        )
        .unwrap();
    for (name, len) in files {
        let found = get(&vault, &path(name)).unwrap();
        assert!(
            found == pattern(1, len),
            "{}: {} bytes",
            String::from_utf8_lossy(name),
            found.len()
        );
    }
    vault.close().unwrap();
}

#[test]
fn a_rival_manifests_inventory_validates_no_forgery() {
    // Bob was removed, and signs a rival of the removal with an inventory that lists his forgery.
    // Neither head alone may vouch for it.
    let (bob, cem) = (person(2), person(3));
    let (store, ann) =
        founded(vec![member(&bob, Role::Admin, "Bob"), member(&cem, Role::Writer, "Cem")]);
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"small", b"by Ann").unwrap();
    let path = vault.cipher_path(b"small").unwrap();
    vault.close().unwrap();
    let apart = store.snapshot();
    root_share(&beside(&store, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
    // Bob, removed, back-dates a file and lists it in an inventory of a rival manifest.
    let vault = open_as(&apart, &bob).unwrap();
    put(&vault, b"small", b"forged afterwards").unwrap();
    vault.close().unwrap();
    root_share(&beside(&apart, &bob)).set_role(&key(&bob), Role::Reader, &mut quiet()).unwrap();
    write(&*store.root(), &path, &read(&*apart.root(), &path));
    // Without the rival it is refused.
    let honest = open_as(&store, &cem).unwrap();
    assert_eq!(get(&honest, b"small").unwrap_err().errno(), libc::EIO);
    honest.close().unwrap();
    merge(&*apart.root(), &*store.root());
    let honest = open_as(&store, &cem).unwrap();
    assert!(honest.is_read_only());
    let got = get(&honest, b"small");
    assert!(
        got.is_err(),
        "Bob may not write at one of the heads, but his file was read: {:?}",
        got.map(String::from_utf8)
    );
}

#[test]
fn a_fork_of_which_one_head_does_not_open_is_a_fork() {
    // Two heads exist and the host has damaged the slots of one: the remaining one must not look
    // like the only one.
    let (bob, cem) = (person(2), person(3));
    let (store, ann) =
        founded(vec![member(&bob, Role::Admin, "Bob"), member(&cem, Role::Writer, "Cem")]);
    let apart = store.snapshot();
    let before = names(&*store.root());
    root_share(&beside(&store, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
    let slots = new_since(&before, &store, b"+slots-");
    root_share(&beside(&apart, &bob)).rekey().unwrap();
    merge(&*apart.root(), &*store.root());
    // The storage host damages the slots of Ann's head.
    let good = read(&*store.root(), &slots);
    write(&*store.root(), &slots, &vec![0; good.len()]);
    let honest = open_as(&store, &cem).unwrap();
    assert!(honest.is_read_only(), "there are two heads");
    let written = put(&honest, b"secret", b"under the key of Bob, who was removed");
    assert!(written.is_err());
}

#[test]
fn settling_a_fork_without_a_member_keeps_their_files() {
    // Ann settles a fork without Bob, who could write on one side: his files stay readable.
    let (bob, dan) = (person(2), person(4));
    let (store, ann) =
        founded(vec![member(&bob, Role::Writer, "Bob"), member(&dan, Role::Admin, "Dan")]);
    let vault = open_as(&store, &bob).unwrap();
    put(&vault, b"bobs", b"by Bob").unwrap();
    vault.close().unwrap();
    let apart = store.snapshot();
    root_share(&beside(&store, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
    let dans =
        root_share(&beside(&apart, &dan)).add(&[member(&person(5), Role::Writer, "Eve")]).unwrap();
    merge(&*apart.root(), &*store.root());
    let vault = beside(&store, &ann);
    assert_eq!(get(&vault, b"bobs").unwrap(), b"by Bob");
    root_share(&vault).settle(&dans.hash, &[key(&bob)]).unwrap();
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(get(&vault, b"bobs").unwrap(), b"by Bob");
}

#[test]
fn nothing_is_written_under_a_key_that_was_ended() {
    // The manifest that ends an epoch exists, but its slots are damaged: nothing more is sealed
    // under the removed member's key.
    let (bob, cem) = (person(2), person(3));
    let (store, ann) =
        founded(vec![member(&bob, Role::Writer, "Bob"), member(&cem, Role::Writer, "Cem")]);
    let vault = open_as(&store, &bob).unwrap();
    removed_and_damaged(&store, &ann, &cem);
    assert!(vault.refresh().is_err());
    assert_eq!(put(&vault, b"secret", b"not for Cem").unwrap_err().errno(), libc::EROFS);
}

#[test]
fn a_new_epoch_that_could_not_be_taken_over_is_tried_again() {
    // A sync tool delivers the manifest first and the slots much later: they are still adopted.
    let (bob, cem) = (person(2), person(3));
    let (store, ann) =
        founded(vec![member(&bob, Role::Writer, "Bob"), member(&cem, Role::Writer, "Cem")]);
    let vault = open_as(&store, &bob).unwrap();
    let (slots, good) = removed_and_damaged(&store, &ann, &cem);
    // A directory whose last change is old is read again only when it changes.
    let long_ago = Timestamp { secs: 1_000_000_000, nanos: 0 };
    store.root().set_times_self(SetTime::Omit, SetTime::At(long_ago)).unwrap();
    assert!(vault.refresh().is_err());
    write(&*store.root(), &slots, &good); // the sync tool has brought the rest
    vault.refresh().unwrap();
    put(&vault, b"secret", b"not for Cem").unwrap();
    let header = read(&*store.root(), &vault.cipher_path(b"secret").unwrap());
    assert_ne!(header[16..20], 1u32.to_le_bytes(), "sealed under the key that Cem has");
}

#[test]
fn writing_does_not_prevent_a_members_removal() {
    // Bob, who is about to be removed, rewrites a file all the time while the removal lists what he
    // has signed.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let of_bob = open_as(&store, &bob).unwrap();
    put(&of_bob, b"a", b"0").unwrap();
    let mut n = 0;
    let mut busy = |_: &ShareProgress| {
        n += 1;
        put(&of_bob, b"a", format!("{n}").as_bytes()).unwrap();
    };
    let command = beside(&store, &ann);
    root_share(&command).remove(&[key(&bob)], &mut busy).unwrap();
}

/// A sync tool delivers an inventory after the manifest that names it: its entries count from then on.
/// A mount that had begun in between did not look again.
#[test]
fn an_inventory_that_arrives_after_its_manifest_counts() {
    for is_mounted in [true, false] {
        let bob = person(2);
        let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
        let vault = open_as(&store, &bob).unwrap();
        put(&vault, b"bobs", b"by Bob").unwrap();
        vault.close().unwrap();
        let open = || open_as(&store, &ann).unwrap();
        let mounted = is_mounted.then(open);
        let apart = store.snapshot();
        root_share(&beside(&apart, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
        let have = names(&*store.root());
        for name in names(&*apart.root()) {
            if !have.contains(&name)
                && (name.starts_with(b"+manifest-") || name.starts_with(b"+slots-"))
            {
                write(&*store.root(), &name, &read(&*apart.root(), &name));
            }
        }
        let mounted = mounted.unwrap_or_else(open);
        mounted.refresh().unwrap();
        merge(&*apart.root(), &*store.root());
        mounted.refresh().unwrap();
        assert_eq!(get(&mounted, b"bobs").unwrap(), b"by Bob", "mounted before: {is_mounted}");
    }
}

#[test]
fn sharing_a_conflict_copy_leaves_the_original_alone() {
    // A sync tool has made a conflict copy of a folder; a share made of the copy would have the
    // junction of the original.
    let (store, ann) = founded(vec![]);
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"photos").unwrap();
    put(&vault, b"photos/one", b"1").unwrap();
    let stored = vault.cipher_path(b"photos").unwrap();
    vault.close().unwrap();
    store.root().mkdir(&[&stored[..], b" (conflicted copy)"].concat(), 0o755).unwrap();
    let vault = open_as(&store, &ann).unwrap();
    let node = vault.resolve(b"photos (conflicted copy)").unwrap().node;
    vault.forget(node, 1);
    let shared = vault.create_share(
        b"photos (conflicted copy)",
        &CreateShare { isolated: false, name: "Ann".into(), others: vec![] },
        &mut quiet(),
    );
    assert_eq!(shared.unwrap_err().errno(), libc::EINVAL);
    vault.close().unwrap();
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(get(&vault, b"photos/one").unwrap(), b"1");
}

#[test]
fn a_folder_with_unreadable_entries_is_not_converted() {
    // Entries without a name in the folder were skipped, and were removed with the folder once the
    // share had taken its place.
    let (store, ann) = founded(vec![]);
    let root = store.root();
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"projects").unwrap();
    put(&vault, b"projects/one", b"1").unwrap();
    put(&vault, b"elsewhere", b"2").unwrap();
    let (folder, elsewhere) =
        (vault.cipher_path(b"projects").unwrap(), vault.cipher_path(b"elsewhere").unwrap());
    vault.close().unwrap();
    let inside = root.open_dir(&folder).unwrap();
    // A name that no key opens.
    let strange = vec![b'A'; elsewhere.len()];
    root.rename(&elsewhere, &*inside, &strange, StoreRename::NoReplace).unwrap();
    let vault = open_as(&store, &ann).unwrap();
    let options = CreateShare { isolated: false, name: "Ann".into(), others: vec![] };
    assert_eq!(
        vault.create_share(b"projects", &options, &mut quiet()).unwrap_err().errno(),
        libc::EIO
    );
    assert!(inside.stat(&strange).is_ok() && inside.stat(b"+share").is_err());
    assert_eq!(get(&vault, b"projects/one").unwrap(), b"1");
    // An entry that was only moved here has a name. It is neither passed over nor removed.
    inside.rename(&strange, &*inside, &elsewhere, StoreRename::NoReplace).unwrap();
    let moved = suffix::marked(b"elsewhere", &suffix::mark_of(&elsewhere));
    vault.create_share(b"projects", &options, &mut quiet()).unwrap();
    assert_eq!(get(&vault, b"projects/one").unwrap(), b"1");
    assert_eq!(get(&vault, &[b"projects/", &moved[..]].concat()).unwrap(), b"2");
}

#[test]
fn hiding_a_nested_share_does_not_keep_a_removed_admin() {
    // The host hides a nested share while an admin is removed, and restores it later. The removal
    // reports that a share is missing, and the same call completes it later.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Admin, "Bob")]);
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"projects").unwrap();
    vault
        .create_share(
            b"projects",
            &CreateShare { isolated: false, name: "Ann".into(), others: vec![] },
            &mut quiet(),
        )
        .unwrap();
    let stored = vault.cipher_path(b"projects").unwrap();
    vault.close().unwrap();
    let root = store.root();
    root.rename(&stored, &*root, b"+hidden", StoreRename::NoReplace).unwrap();
    let vault = open_as(&store, &ann).unwrap();
    let error = root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap_err();
    assert!(matches!(&error, Error::LeftWithin { left } if left.len() == 1), "{error}");
    assert!(
        root_share(&vault).info().unwrap().members.iter().all(|m| m.public.sign != key(&bob)),
        "Bob is gone from the parent"
    );
    vault.close().unwrap();
    root.rename(b"+hidden", &*root, &stored, StoreRename::NoReplace).unwrap();
    let vault = open_as(&store, &ann).unwrap();
    root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap();
    assert!(vault.who_can_read(b"projects").unwrap().iter().all(|m| m.public.sign != key(&bob)));
    let nobody = root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap_err();
    assert!(matches!(nobody, Error::Members { source: RosterError::NoSuchMember, .. }), "{nobody}");
}

#[test]
fn a_member_removed_while_mounted_reads_on() {
    // A member whose mount is open when they are removed still reads what was readable.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let vault = open_as(&store, &bob).unwrap();
    put(&vault, b"a", b"by Bob").unwrap();
    root_share(&beside(&store, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
    assert!(matches!(vault.refresh(), Err(Error::NoAccess { .. })));
    assert_eq!(get(&vault, b"a").unwrap(), b"by Bob");
}

#[test]
fn a_fork_with_an_unopenable_head_is_not_called_settled() {
    // One head of a fork does not open: settling it reports that, instead of reporting success.
    let (bob, cem) = (person(2), person(3));
    let (store, ann) =
        founded(vec![member(&bob, Role::Admin, "Bob"), member(&cem, Role::Writer, "Cem")]);
    let apart = store.snapshot();
    let anns = root_share(&beside(&store, &ann)).rekey().unwrap();
    let before = names(&*apart.root());
    root_share(&beside(&apart, &bob)).rekey().unwrap();
    let slots = new_since(&before, &apart, b"+slots-");
    merge(&*apart.root(), &*store.root());
    store.root().unlink(&slots).unwrap();
    let vault = beside(&store, &ann);
    let settled = root_share(&vault).settle(&anns.hash, &[]).unwrap_err();
    assert!(
        matches!(settled, Error::Members { source: RosterError::UnopenedHead, .. }),
        "{settled}"
    );
    write(&*store.root(), &slots, &read(&*apart.root(), &slots));
    root_share(&beside(&store, &ann)).settle(&anns.hash, &[]).unwrap();
    assert_eq!(root_share(&beside(&store, &ann)).info().unwrap().heads.len(), 1);
}

#[test]
fn a_share_moved_by_the_host_is_not_entered_elsewhere() {
    // While the vault is open, the host moves a share to the place of a private folder: files put
    // there would be readable for the share's members.
    let bob = person(2);
    let (store, ann) = founded(vec![]);
    let vault = Vault::open(store.root(), &ann, OpenOptions::default()).unwrap();
    mkdir(&vault, b"private").unwrap();
    mkdir(&vault, b"projects").unwrap();
    let options = CreateShare {
        isolated: false,
        name: "Ann".into(),
        others: vec![member(&bob, Role::Writer, "Bob")],
    };
    vault.create_share(b"projects", &options, &mut quiet()).unwrap();
    put(&vault, b"projects/plan", b"for Bob too").unwrap();
    let (private, projects) =
        (vault.cipher_path(b"private").unwrap(), vault.cipher_path(b"projects").unwrap());
    let root = store.root();
    root.rename(&private, &*root, b"+hidden", StoreRename::NoReplace).unwrap();
    root.rename(&projects, &*root, &private, StoreRename::NoReplace).unwrap();
    let written = put(&vault, b"private/secret", b"Ann's own");
    if written.is_ok() {
        vault.close().unwrap();
        let of_bob = Vault::open(
            root.open_dir(&private).unwrap(),
            &bob,
            OpenOptions {
                trust: Trust { first_use: true, ..Trust::default() },
                ..OpenOptions::default()
            },
        )
        .unwrap();
        panic!("Bob reads: {:?}", get(&of_bob, b"secret").map(String::from_utf8));
    }
}

#[test]
fn trust_in_a_share_does_not_extend_to_planted_shares() {
    // The user accepts the vault's share unverified; the host has planted another one in a folder
    // of it.
    let eve = person(9);
    let (store, ann) = founded(vec![]);
    let vault = Vault::open(store.root(), &ann, OpenOptions::default()).unwrap();
    mkdir(&vault, b"private").unwrap();
    let private = vault.cipher_path(b"private").unwrap();
    vault.close().unwrap();
    // The storage host puts a share of Eve's there, with a slot for Ann.
    let inside = store.root().open_dir(&private).unwrap();
    let options = CreateShare {
        isolated: false,
        name: "Eve".into(),
        others: vec![member(&ann, Role::Writer, "Ann")],
    };
    Vault::create_signed(
        &inside,
        &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 14 },
        &eve,
        &options,
    )
    .unwrap();
    let vault = open_as(&store, &ann).unwrap();
    assert!(put(&vault, b"private/secret", b"Ann's own").is_err());
}

#[test]
fn deep_directories_do_not_prevent_a_members_removal() {
    // Bob makes very deep directories, so that a daemon that removes him runs out of stack or of
    // handles.
    let depth = std::env::var("KITHFS_DEPTH").ok().and_then(|d| d.parse().ok()).unwrap_or(1200);
    let (ann, bob) = (person(1), person(2));
    let path = tempfile::tempdir().unwrap();
    let store = kithfs::store::os::OsDir::open(path.path()).unwrap();
    let share = CreateShare {
        isolated: false,
        name: "Ann".into(),
        others: vec![member(&bob, Role::Writer, "Bob")],
    };
    Vault::create_signed(
        &store,
        &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 14 },
        &ann,
        &share,
    )
    .unwrap();
    let trust = Trust { first_use: true, ..Trust::default() };
    let vault =
        Vault::open(store.clone(), &bob, OpenOptions { trust, ..OpenOptions::default() }).unwrap();
    let mut parent = kithfs::vault::ROOT;
    for _ in 0..depth {
        parent = vault.mkdir(&vaults::CALLER, parent, b"d", 0o755).unwrap().node;
    }
    vault.close().unwrap();
    drop(vault);
    let vault = Vault::open(
        store,
        &ann,
        OpenOptions { read_only: true, lock: LockMode::None, ..OpenOptions::default() },
    )
    .unwrap();
    let removed = root_share(&vault).remove(&[key(&bob)], &mut quiet());
    drop(vault);
    std::process::Command::new("rm").arg("-rf").arg(path.path()).status().unwrap();
    removed.unwrap();
}

#[test]
fn an_old_junction_put_back_opens_the_share() {
    // A share was renamed. The host moves it back and restores its old junction. The threat model
    // allows that: a junction has no age.
    let bob = person(2);
    let (store, ann) = founded(vec![]);
    let vault = Vault::open(store.root(), &ann, OpenOptions::default()).unwrap();
    mkdir(&vault, b"projects").unwrap();
    let options = CreateShare {
        isolated: false,
        name: "Ann".into(),
        others: vec![member(&bob, Role::Writer, "Bob")],
    };
    vault.create_share(b"projects", &options, &mut quiet()).unwrap();
    let projects = vault.cipher_path(b"projects").unwrap();
    let junction =
        names(&*store.root()).into_iter().find(|n| n.starts_with(b"+junction-")).unwrap();
    let old = read(&*store.root(), &junction);
    vaults::rename(&vault, b"projects", b"archive", kithfs::vault::RenameMode::Replace).unwrap();
    mkdir(&vault, b"projects").unwrap();
    put(&vault, b"projects/own", b"Ann's own").unwrap();
    let archive = vault.cipher_path(b"archive").unwrap();
    vault.close().unwrap();
    let root = store.root();
    root.rename(&projects, &*root, b"+hidden", StoreRename::NoReplace).unwrap();
    root.rename(&archive, &*root, &projects, StoreRename::NoReplace).unwrap();
    write(&*store.root(), &junction, &old);
    let vault = Vault::open(store.root(), &ann, OpenOptions::default()).unwrap();
    put(&vault, b"projects/new", b"for the members of the share").unwrap();
    assert!(
        vault.who_can_read(b"projects").unwrap().iter().any(|m| m.public.sign == key(&bob)),
        "a request for the members returns the true list"
    );
    assert!(get(&vault, b"projects/own").is_err(), "private files do not become part of the share");
}

#[test]
fn an_interrupted_removal_can_be_completed() {
    // A removal stopped after the parent and before a nested share; the same call again completes
    // it.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Admin, "Bob")]);
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"projects").unwrap();
    vault
        .create_share(
            b"projects",
            &CreateShare { isolated: false, name: "Ann".into(), others: vec![] },
            &mut quiet(),
        )
        .unwrap();
    let stored = vault.cipher_path(b"projects").unwrap();
    // As if the process had stopped between the parent's manifest and the child's: the child's new
    // control files are removed again.
    let child = store.root().open_dir(&stored).unwrap();
    let before: Vec<_> =
        child.reopen().unwrap().read(0, 1 << 20).unwrap().into_iter().map(|e| e.name).collect();
    root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap();
    vault.close().unwrap();
    drop(vault);
    for entry in child.reopen().unwrap().read(0, 1 << 20).unwrap() {
        if !before.contains(&entry.name) {
            child.unlink(&entry.name).unwrap();
        }
    }
    let vault = open_as(&store, &ann).unwrap();
    root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap();
    assert_eq!(vault.who_can_read(b"projects").unwrap().len(), 1);
}

#[test]
fn dirty_data_is_kept_until_an_unopenable_head_opens() {
    // A sync tool delivers the manifest before the slots while a file is being written: data in
    // memory must survive that, even the file's close.
    let (bob, cem) = (person(2), person(3));
    let (store, ann) =
        founded(vec![member(&bob, Role::Writer, "Bob"), member(&cem, Role::Writer, "Cem")]);
    let vault = open_as(&store, &bob).unwrap();
    put(&vault, b"open", b"old").unwrap();
    put(&vault, b"closed", b"old").unwrap();
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let (open, closed) = (
        vaults::open_or_create(&vault, b"open", flags).unwrap(),
        vaults::open_or_create(&vault, b"closed", flags).unwrap(),
    );
    vault.write(open, 0, b"new", false).unwrap();
    vault.write(closed, 0, b"new", false).unwrap();
    let (slots, good) = removed_and_damaged(&store, &ann, &cem);
    assert!(vault.refresh().is_err());
    assert_eq!(vault.fsync(open, false).unwrap_err().errno(), libc::EROFS);
    assert_eq!(vault.release(closed).unwrap_err().errno(), libc::EROFS);
    write(&*store.root(), &slots, &good);
    vault.refresh().unwrap();
    vault.fsync(open, false).unwrap();
    vault.release(open).unwrap();
    vault.close().unwrap();
    drop(vault);
    let vault = open_as(&store, &ann).unwrap();
    for name in [&b"open"[..], b"closed"] {
        assert_eq!(get(&vault, name).unwrap(), b"new");
        let header = read(&*store.root(), &vault.cipher_path(name).unwrap());
        assert_eq!(
            header[16..20],
            2u32.to_le_bytes(),
            "under the new epoch, of which Cem has no key"
        );
    }
}

#[test]
fn settling_revives_nothing_a_removed_admin_listed() {
    // Bob, removed, lists his forgery in an inventory of a rival branch, and waits for Ann to
    // settle: her inventory must not adopt it.
    let (bob, cem) = (person(2), person(3));
    let (store, ann) =
        founded(vec![member(&bob, Role::Admin, "Bob"), member(&cem, Role::Writer, "Cem")]);
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"small", b"by Ann").unwrap();
    let path = vault.cipher_path(b"small").unwrap();
    vault.close().unwrap();
    let apart = store.snapshot();
    let anns = root_share(&beside(&store, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
    let vault = open_as(&apart, &bob).unwrap();
    put(&vault, b"small", b"forged afterwards").unwrap();
    vault.close().unwrap();
    let before = names(&*apart.root());
    root_share(&beside(&apart, &bob)).set_role(&key(&bob), Role::Reader, &mut quiet()).unwrap();
    assert!(!new_since(&before, &apart, b"+inventory-").is_empty());
    write(&*store.root(), &path, &read(&*apart.root(), &path));
    merge(&*apart.root(), &*store.root());
    root_share(&beside(&store, &ann)).settle(&anns.hash, &[]).unwrap();
    let honest = open_as(&store, &cem).unwrap();
    assert!(!honest.is_read_only(), "the fork is settled");
    assert_eq!(get(&honest, b"small").unwrap_err().errno(), libc::EIO);
}

/// Cem has seen Ann's list when she settles a fork in favour of Ben's shorter one, in which Mallory is
/// removed. The settlement had the number after that of Ben's list, not a higher one than Ann's, so
/// Cem's machine still remembered Ann's. A host that hid Ben's list and the settlement brought Mallory
/// back, and Cem wrote under the key that Mallory has; below a live mount too.
#[test]
fn a_settlement_that_was_seen_cannot_be_hidden() {
    for is_mounted in [false, true] {
        let (ben, cem, mallory) = (person(2), person(3), person(4));
        let (store, ann) = founded(vec![
            member(&ben, Role::Admin, "Ben"),
            member(&cem, Role::Writer, "Cem"),
            member(&mallory, Role::Writer, "Mallory"),
        ]);
        let (root, apart) = (store.root(), store.snapshot());
        let by_ann = beside(&store, &ann);
        let mut head = None;
        for n in [5, 6, 7] {
            let new = member(&person(n), Role::Reader, &format!("Reader {n}"));
            head = Some(root_share(&by_ann).add(&[new]).unwrap());
        }
        let id = root_share(&by_ann).info().unwrap().share;
        let memory = Memory::invited(id, head.unwrap(), &ann);
        let open = || Vault::open(store.root(), &cem, remembering(&memory));
        let mounted = is_mounted.then(|| open().unwrap());
        let seen = named(&*root, b"+manifest-");
        let by_ben = beside(&apart, &ben);
        let kept = root_share(&by_ben).remove(&[key(&mallory)], &mut quiet()).unwrap();
        merge(&*apart.root(), &*root);
        root_share(&beside(&store, &ann)).settle(&kept.hash, &[]).unwrap();
        let vault = mounted.unwrap_or_else(|| open().unwrap());
        vault.refresh().unwrap();
        put(&vault, b"file", b"not for Mallory").unwrap();

        for name in named(&*root, b"+manifest-").iter().filter(|name| !seen.contains(name)) {
            root.unlink(name).unwrap();
        }
        if is_mounted {
            let error = vault.refresh().unwrap_err();
            assert!(error.to_string().contains("older than manifest 5"), "{error}");
            put(&vault, b"later", b"not for Mallory").unwrap();
            let header = read(&*root, &vault.cipher_path(b"later").unwrap());
            assert_eq!(header[16..20], 3u32.to_le_bytes());
        }
        vault.close().unwrap();
        let error = open().map(drop).unwrap_err();
        assert!(error.to_string().contains("older than manifest 5"), "{error}");
    }
}

#[test]
fn settling_keeps_what_a_staying_admin_listed() {
    // Ann and Dan have both removed Bob independently; a file of Bob's had reached only Dan's copy
    // before.
    let (bob, dan) = (person(2), person(4));
    let (store, ann) =
        founded(vec![member(&bob, Role::Writer, "Bob"), member(&dan, Role::Admin, "Dan")]);
    let apart = store.snapshot();
    let vault = open_as(&apart, &bob).unwrap();
    put(&vault, b"bobs", b"by Bob").unwrap();
    let path = vault.cipher_path(b"bobs").unwrap();
    vault.close().unwrap();
    let anns = root_share(&beside(&store, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
    root_share(&beside(&apart, &dan)).remove(&[key(&bob)], &mut quiet()).unwrap();
    write(&*store.root(), &path, &read(&*apart.root(), &path));
    merge(&*apart.root(), &*store.root());
    root_share(&beside(&store, &ann)).settle(&anns.hash, &[]).unwrap();
    assert_eq!(get(&open_as(&store, &ann).unwrap(), b"bobs").unwrap(), b"by Bob");
}

#[test]
fn an_unreadable_directory_prevents_no_removal() {
    // Bob removes all permissions from a directory of his, so that the list of his signed entries
    // cannot be completed.
    let outcome = std::thread::spawn(|| {
        let path = tempfile::tempdir().unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(path.path(), Some(65534), None).unwrap();
            // SAFETY: it takes no pointer. It changes the file permissions of this thread alone,
            // which ends with the test.
            unsafe { libc::setfsuid(65534) };
        }
        let caller = Caller { uid: 65534, gid: 0, umask: 0o022 };
        let (ann, bob) = (person(1), person(2));
        let store = kithfs::store::os::OsDir::open(path.path()).unwrap();
        let share = CreateShare {
            isolated: false,
            name: "Ann".into(),
            others: vec![member(&bob, Role::Writer, "Bob")],
        };
        Vault::create_signed(
            &store,
            &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 14 },
            &ann,
            &share,
        )
        .unwrap();
        let trust = Trust { first_use: true, ..Trust::default() };
        let vault =
            Vault::open(store.clone(), &bob, OpenOptions { trust, ..OpenOptions::default() })
                .unwrap();
        for name in [&b"closed"[..], b"open"] {
            let folder = vault.mkdir(&caller, kithfs::vault::ROOT, name, 0o755).unwrap().node;
            let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
            let (_, file) = vault.create_file(&caller, folder, b"file", 0o644, flags).unwrap();
            vault.write(file.handle, 0, b"by Bob", false).unwrap();
            vault.release(file.handle).unwrap();
        }
        let stored = String::from_utf8(vault.cipher_path(b"closed").unwrap()).unwrap();
        vault.close().unwrap();
        drop(vault);
        let closed = path.path().join(stored);
        let mode = |mode| {
            std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(mode))
                .unwrap()
        };
        mode(0);
        let vault = Vault::open(
            store.clone(),
            &ann,
            OpenOptions { read_only: true, lock: LockMode::None, ..OpenOptions::default() },
        )
        .unwrap();
        let mut unread = 0;
        let removed =
            root_share(&vault).remove(&[key(&bob)], &mut |progress| unread = progress.unread);
        mode(0o755);
        removed.unwrap();
        assert_eq!(unread, 1, "the unread directory is counted");
        drop(vault);
        let vault = Vault::open(store, &ann, OpenOptions::default()).unwrap();
        assert_eq!(get(&vault, b"open/file").unwrap(), b"by Bob");
        assert_eq!(get(&vault, b"closed/file").unwrap_err().errno(), libc::EIO);
    });
    outcome.join().unwrap();
}

/// Rewrites each junction in the root of a share, signed by a member, with the contents that
/// `change` returns.
fn rewrite(store: &MemStore, by: &Identity, change: impl Fn(&[u8]) -> Vec<u8>) {
    let root = store.root();
    let forger = Forger::of(&root, by);
    let folder = forger::folder_keys(&forger::roster(&root), by, &root);
    let tag = root_tag(&directory_key(&folder.first().key, &forger.share), &forger.share);
    let cipher = RecordCipher::new(forger.suite, forger.keys.records.expose());
    let context = RecordContext {
        share: &forger.share,
        suite: forger.suite,
        signed: true,
        epoch: forger.epoch,
        cipher: &cipher,
    };
    for name in named(&*root, junction::PREFIX) {
        let bound = [&tag[..], &junction::hash_of(&name).unwrap()].concat();
        let there = context.open(RecordKind::Junction, &bound, &read(&*root, &name)).unwrap().0;
        let signed = Sign {
            by: Authorship { author: key(by), signer: key(by) },
            sign: &|label, message| by.sign(label, message),
        };
        let (plain, random) = (change(&there), vaults::Seeded::new(6));
        let sealed = context.seal(RecordKind::Junction, &bound, &plain, Some(signed), &random);
        write(&*root, &name, &sealed);
    }
}

/// Seals a name for the root as a member can, valid or not.
fn sealed_name(store: &MemStore, by: &Identity, name: &[u8]) -> Vec<u8> {
    let root = store.root();
    let forger = Forger::of(&root, by);
    let folder = forger::folder_keys(&forger::roster(&root), by, &root);
    let tag = root_tag(&directory_key(&folder.first().key, &forger.share), &forger.share);
    let hctr2 = Hctr2::new(&forger.keys.names);
    let mut sealed = [&tag[..], name].concat();
    sealed.resize((sealed.len() + 8).max(24), 0);
    hctr2.encrypt(&hctr2.tweak(b""), &mut sealed).unwrap();
    sealed
}

/// Stores a sealed long name, and returns the entry with its hash.
fn store_long_name(root: &Arc<dyn Dir>, sealed: &[u8]) -> Vec<u8> {
    let hash = *blake3::hash(sealed).as_bytes();
    let (group, file) = long_path(&hash);
    let _ = root.mkdir(b"+long", 0o700);
    let all = root.open_dir(b"+long").unwrap();
    let _ = all.mkdir(&group, 0o700);
    write(&*all.open_dir(&group).unwrap(), &file, sealed);
    [b"=", &file[..]].concat()
}

#[test]
fn an_impossible_name_is_not_shown_even_if_sealed() {
    // Bob, a writer, seals a path, or no valid name at all, as the name of an entry: an export of
    // the vault would write outside of its target.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let vault = open_as(&store, &bob).unwrap();
    put(&vault, b"file", b"by Bob").unwrap();
    let mut entry = vault.cipher_path(b"file").unwrap();
    vault.close().unwrap();
    let root = store.root();
    let shown = || {
        let vault = open_as(&store, &ann).unwrap();
        let all = vaults::entries(&vault, kithfs::vault::ROOT).unwrap();
        assert_eq!(vaults::faults(&vault).len(), usize::from(!all.iter().any(|e| e.0 == b"file")));
        all.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    for name in [
        &b"../outside"[..],
        b"..",
        b".",
        b"",
        b"/etc/passwd",
        b"a\0b",
        &[b"/", &[b'n'; 200][..]].concat(),
        &[b'n'; 256],
    ] {
        let sealed = sealed_name(&store, &bob, name);
        let is_short = text::letters(sealed.len()) <= 152;
        let new = if is_short { text::encode(&sealed) } else { store_long_name(&root, &sealed) };
        root.rename(&entry, &*root, &new, StoreRename::NoReplace).unwrap();
        entry = new;
        if is_short {
            assert_eq!(shown(), Vec::<Vec<u8>>::new(), "{}", name.escape_ascii());
            continue;
        }
        let vault = open_as(&store, &ann).unwrap();
        let all = vaults::entries(&vault, kithfs::vault::ROOT).unwrap();
        assert!(all.iter().all(|(name, _)| *name == entry), "{}", name.escape_ascii());
        assert!(!vaults::faults(&vault).is_empty());
    }
    let new = text::encode(&sealed_name(&store, &bob, b"file"));
    root.rename(&entry, &*root, &new, StoreRename::NoReplace).unwrap();
    raw::long_names(&root).into_iter().for_each(|(dir, file)| dir.unlink(&file).unwrap());
    assert_eq!(shown(), [b"file".to_vec()]);
}

#[test]
fn a_long_name_that_mismatches_its_hash_is_not_shown() {
    // Bob, a writer, seals another name for an entry than the one whose hash it has. The entry was
    // shown with that name, under which nothing was found, or another file.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let vault = open_as(&store, &bob).unwrap();
    put(&vault, &[b'l'; 200], b"by Bob").unwrap();
    put(&vault, b"short", b"another").unwrap();
    let entry = vault.cipher_path(&[b'l'; 200]).unwrap();
    vault.close().unwrap();
    let (dir, file) = raw::long_name(&store.root(), &entry);
    for name in [&[b'm'; 200][..], b"short", &entry] {
        write(&*dir, &file, &sealed_name(&store, &bob, name));
        let vault = open_as(&store, &ann).unwrap();
        let mut all: Vec<Vec<u8>> = vaults::entries(&vault, kithfs::vault::ROOT)
            .unwrap()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        all.sort();
        assert_eq!(all, [entry.clone(), b"short".to_vec()]);
        assert_eq!(
            (get(&vault, &entry).unwrap(), get(&vault, b"short").unwrap()),
            (b"by Bob".to_vec(), b"another".to_vec())
        );
        assert_eq!(vaults::faults(&vault).len(), 2, "the entry, and the file with a wrong name");
        vault.close().unwrap();
    }
}

#[test]
fn an_inventory_with_a_wrong_root_keeps_nothing() {
    // Both the hash of the inventory's file and the root of its tree are compared: a second
    // implementation may prove entries by the root alone, and must see the same files.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let vault = open_as(&store, &bob).unwrap();
    put(&vault, b"bobs", b"by Bob").unwrap();
    let stored = vault.cipher_path(b"bobs").unwrap();
    vault.close().unwrap();
    let root = store.root();
    let header = read(&*root, &stored)[..640].to_vec();
    let list = InventoryList::new(vec![kithfs::format::journal::header_hash(&header)]);
    for (right, flip) in [(false, 1), (true, 0)] {
        let store = store.snapshot();
        let root = store.root();
        let roster = forger::roster(&root);
        let reader = &mut |block: &BlockRef, at: u64, buf: &mut [u8]| {
            root.open_file(slots::file_name(&block.root).as_bytes(), Access::Read)?
                .read_at(buf, at)
                .map(|_| ())
        };
        let keys = roster.open(&ann, reader).unwrap();
        let members = roster.members(&keys, reader).unwrap();
        let acting = Acting {
            by: &ann,
            keys: &keys,
            members: &members,
            random: &vaults::Seeded::new(7),
            now: 0,
        };
        let (bytes, mut top) = (list.encode(), list.root());
        top[0] ^= flip;
        let file = inventory::file_hash(&bytes);
        write(&*root, inventory::file_name(&file).as_bytes(), &bytes);
        let change = roster
            .set_role(&acting, &key(&bob), Role::Reader, Some(Inventory { root: top, file }))
            .unwrap();
        write(&*root, change.slots_name.as_bytes(), &change.slots);
        write(&*root, change.manifest_name.as_bytes(), &change.manifest);
        let vault = open_as(&store, &ann).unwrap();
        assert_eq!(get(&vault, b"bobs").is_ok(), right);
    }
}

#[test]
fn a_share_removed_with_its_junction_leaves_a_plain_folder() {
    // What the host can do according to the threat model: nothing shows that a share was there, and
    // a user who writes into the empty folder writes for the members around it. A user who asks for
    // the members gets the true list.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"private").unwrap();
    vault
        .create_share(
            b"private",
            &CreateShare { isolated: true, name: "Ann".into(), others: vec![] },
            &mut quiet(),
        )
        .unwrap();
    put(&vault, b"private/one", b"for Ann alone").unwrap();
    assert_eq!(vault.who_can_read(b"private").unwrap().len(), 1);
    let stored = vault.cipher_path(b"private").unwrap();
    vault.close().unwrap();
    let root = store.root();
    root.rename(&stored, &*root, b"+hidden", StoreRename::NoReplace).unwrap();
    root.mkdir(&stored, 0o755).unwrap();
    let vault = open_as(&store, &ann).unwrap();
    assert!(
        put(&vault, b"private/two", b"for Ann alone").is_err(),
        "the junction shows that a share belongs there"
    );
    vault.close().unwrap();
    root.unlink(&named(&*root, junction::PREFIX)[0]).unwrap();
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(
        vaults::entries(&vault, vault.resolve(b"private").unwrap().node).unwrap().len(),
        0,
        "nothing of the share is shown"
    );
    assert_eq!(vault.who_can_read(b"private").unwrap().len(), 2);
}

#[test]
fn an_admin_is_removed_from_a_nested_share_marked_isolated() {
    // Bob, an admin, foresees the removal and signs a junction that claims that a nested share is
    // isolated. The removal from the parent then silently skipped that share, and he stayed its
    // admin.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Admin, "Bob")]);
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"projects").unwrap();
    vault
        .create_share(
            b"projects",
            &CreateShare { isolated: false, name: "Ann".into(), others: vec![] },
            &mut quiet(),
        )
        .unwrap();
    vault.close().unwrap();
    let isolated =
        |there: &[u8]| Junction { isolated: true, ..Junction::decode(there).unwrap() }.encode();
    rewrite(&store, &bob, isolated);
    let hidden = store.snapshot();
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(vault.who_can_read(b"projects").unwrap().len(), 2);
    root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap();
    assert_eq!(vault.who_can_read(b"projects").unwrap().len(), 1);
    // It does not help Bob either if the host hides the share meanwhile.
    let root = hidden.root();
    let folder = vault.cipher_path(b"projects").unwrap();
    root.rename(&folder, &*root, b"+hidden", StoreRename::NoReplace).unwrap();
    let vault = open_as(&hidden, &ann).unwrap();
    let error = root_share(&vault).remove(&[key(&bob)], &mut quiet()).unwrap_err();
    assert!(matches!(&error, Error::LeftWithin { left } if left.len() == 1), "{error}");
}

/// Bob, a writer, seals a file with the highest version that there is. A commit of Ann's counted on
/// from it and wrote version 0, which her machine then took for a return of an old state.
#[test]
fn no_commit_goes_beyond_the_highest_version() {
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let vault = open_as(&store, &bob).unwrap();
    put(&vault, b"file", b"by Bob").unwrap();
    let stored = vault.cipher_path(b"file").unwrap();
    vault.close().unwrap();
    let root = store.root();
    let forger = Forger::of(&root, &bob);
    let data = b"with a forged version";
    let len = Some(data.len() as u16);
    let header = forger.header(data.len() as u64, len, [7; 32], HOLE);
    let by = Authorship { author: key(&bob), signer: key(&bob) };
    let last = Header { version: u64::MAX, ..header };
    let sealed = forger.seal(&last, data, by, &|label, message| bob.sign(label, message));
    forger::overwrite(&*root, &stored, &sealed);
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(get(&vault, b"file").unwrap(), data);
    let node = vault.lookup(kithfs::vault::ROOT, b"file").unwrap().node;
    let handle = vault.open_file(node, vaults::READ_WRITE).unwrap().handle;
    vault.write(handle, 0, b"WITH", false).unwrap();
    assert_eq!(vault.fsync(handle, false).unwrap_err().errno(), libc::EOVERFLOW);
    let _ = vault.release(handle);
    vault.close().unwrap();
    assert_eq!(read(&*root, &stored), sealed, "Bob's file is as it was");
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"file", b"by Ann").unwrap();
    assert_eq!(get(&vault, b"file").unwrap(), b"by Ann", "a new file takes its place");
    vault.close().unwrap();
}
