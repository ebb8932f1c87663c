//! Shares within a vault: made of folders, entered by proof, separate from the share around them.

use std::sync::Arc;

use kithfs::crypto::Suite;
use kithfs::roster::{Identity, Member, Role};
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Dir, Kind, RenameMode as StoreRename};
use kithfs::vault::{
    CreateShare, Error, OpenOptions, Outcome, ROOT, RenameMode, SetXattr, Trust, Vault,
};

use crate::support::members::ShareOfPath;
use crate::support::members::{self, Memory, member, person, remembering};
use crate::support::raw::{self, beneath};
use crate::support::vaults::{
    self, at, faults, get, mkdir, open, pattern, put, rename, settle, symlink, tree,
};

fn with_bob(bob: &Identity) -> CreateShare {
    CreateShare {
        isolated: false,
        name: "Ann".into(),
        others: vec![member(bob, Role::Writer, "Bob")],
    }
}

/// A vault with a folder that contains an object of each kind.
fn filled() -> MemStore {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = open(store.root()).unwrap();
    put(&vault, b"private", b"Ann's own").unwrap();
    mkdir(&vault, b"projects").unwrap();
    mkdir(&vault, b"projects/deep").unwrap();
    put(&vault, b"projects/plan", &pattern(1, 30_000)).unwrap();
    put(&vault, b"projects/deep/note", b"a note").unwrap();
    put(&vault, b"projects/deep/empty", b"").unwrap();
    put(&vault, &[&b"projects/"[..], &[b'n'; 230]].concat(), b"long name").unwrap();
    symlink(&vault, b"projects/link", b"deep/note").unwrap();
    vaults::set_xattr(&vault, b"projects/plan", b"user.tag", b"blue").unwrap();
    vaults::set_xattr(&vault, b"projects/plan", b"user.long", &pattern(3, 66_000)).unwrap();
    at(&vault, b"projects/plan", |node| {
        at(&vault, b"projects/deep", |dir| {
            let linked = vault.link(node, dir, b"hard")?;
            vault.forget(linked.node, 1);
            Ok(())
        })
    })
    .unwrap();
    rename(&vault, b"projects/deep", b"projects/moved", RenameMode::Replace).unwrap();
    settle(&vault, ROOT);
    vault.close().unwrap();
    store
}

fn share(vault: &Vault, path: &[u8], options: &CreateShare) -> Result<[u8; 32], Error> {
    vault.create_share(path, options, &mut members::quiet()).map(|made| made.share)
}

fn trusting() -> OpenOptions {
    OpenOptions { trust: Trust { first_use: true, ..Trust::default() }, ..OpenOptions::default() }
}

#[test]
fn a_folder_becomes_a_share_and_its_members_open_it_alone() {
    let (store, bob) = (filled(), person(2));
    let vault = open(store.root()).unwrap();
    let before = tree(&vault).unwrap();
    let mut last = None;
    let id = vault
        .create_share(b"projects", &with_bob(&bob), &mut |progress| last = Some(*progress))
        .unwrap()
        .share;
    let last = last.unwrap();
    assert_eq!((last.files, last.files_total), (5, 5), "each name of a file counts");
    assert_eq!(tree(&vault).unwrap(), before, "the tree is unchanged");
    let plan = vault.resolve(b"projects/plan").unwrap();
    assert_eq!(plan.nlink, 2, "hard links stay hard links");
    vault.forget(plan.node, 1);
    put(&vault, b"projects/of Ann", b"for Bob").unwrap();
    assert_eq!(faults(&vault), Vec::<String>::new());
    let stored = vault.cipher_path(b"projects").unwrap();
    assert_eq!(
        vault.plain_path(&vault.cipher_path(b"projects/moved/note").unwrap()).unwrap(),
        b"projects/moved/note"
    );
    assert_eq!(
        share(&vault, b"projects", &with_bob(&bob)).unwrap(),
        id,
        "a second call returns the same share"
    );
    vault.close().unwrap();

    let folder = beneath(&store.root(), &stored);
    let alone = Vault::open(folder, &bob, trusting()).unwrap();
    assert_eq!(get(&alone, b"of Ann").unwrap(), b"for Bob");
    assert_eq!(get(&alone, b"plan").unwrap(), pattern(1, 30_000));
    put(&alone, b"of Bob", b"for Ann").unwrap();
    mkdir(&alone, b"by Bob").unwrap();
    alone.close().unwrap();

    let vault = open(store.root()).unwrap();
    assert_eq!(get(&vault, b"projects/of Bob").unwrap(), b"for Ann");
    let author = |path: &[u8]| at(&vault, path, |node| vault.author(node)).unwrap();
    assert_eq!(author(b"projects/of Bob").unwrap().author, bob.public().sign);
    assert_eq!(author(b"private"), None);
    assert!(
        matches!(Vault::open(store.root(), &bob, trusting()), Err(Error::NoAccess { .. })),
        "the vault itself stays Ann's"
    );
}

#[test]
fn renames_and_links_across_shares_fail_with_exdev() {
    let (store, bob) = (filled(), person(2));
    let vault = open(store.root()).unwrap();
    share(&vault, b"projects", &with_bob(&bob)).unwrap();
    let move_it =
        |from: &[u8], to: &[u8]| rename(&vault, from, to, RenameMode::Replace).unwrap_err().errno();
    assert_eq!(move_it(b"private", b"projects/private"), libc::EXDEV);
    assert_eq!(move_it(b"projects/plan", b"plan"), libc::EXDEV);
    let link = at(&vault, b"private", |node| {
        at(&vault, b"projects", |dir| vault.link(node, dir, b"x").map(|_| ()))
    });
    assert_eq!(link.unwrap_err().errno(), libc::EXDEV);

    // The share itself can be renamed, and can still be entered.
    rename(&vault, b"projects", b"works", RenameMode::Replace).unwrap();
    assert_eq!(get(&vault, b"works/moved/note").unwrap(), b"a note");
    mkdir(&vault, b"dir").unwrap();
    rename(&vault, b"works", b"dir/works", RenameMode::NoReplace).unwrap();
    rename(&vault, b"dir", b"elsewhere", RenameMode::NoReplace).unwrap();
    put(&vault, b"elsewhere/works/new", b"new").unwrap();
    vault.close().unwrap();
    let vault = open(store.root()).unwrap();
    assert_eq!(get(&vault, b"elsewhere/works/new").unwrap(), b"new");
    assert_eq!(
        at(&vault, b"elsewhere", |dir| vault.rmdir(dir, b"works")).unwrap_err().errno(),
        libc::ENOTEMPTY
    );
    assert_eq!(
        get(&vault, b"elsewhere/works/new").unwrap(),
        b"new",
        "what is not empty stays open"
    );
    assert_eq!(faults(&vault), Vec::<String>::new());
}

/// An empty share can be removed like a directory, and a share can hold another share.
#[test]
fn empty_shares_are_removable_and_shares_can_be_nested() {
    let (store, bob) = (filled(), person(2));
    let vault = open(store.root()).unwrap();
    mkdir(&vault, b"new").unwrap();
    let outer = share(&vault, b"new", &with_bob(&bob)).unwrap();
    mkdir(&vault, b"new/inner").unwrap();
    put(&vault, b"new/inner/file", b"inside").unwrap();
    let inner =
        share(&vault, b"new/inner", &CreateShare { name: "Ann".into(), ..CreateShare::default() })
            .unwrap();
    assert_ne!(outer, inner);
    assert_eq!(get(&vault, b"new/inner/file").unwrap(), b"inside");
    let root = vault.resolve(b"new").unwrap().node;
    let nested = vault.resolve(b"new/inner").unwrap().node;
    let file = vault.resolve(b"new/inner/file").unwrap().node;
    assert_eq!(
        (vault.parent(file), vault.parent(nested), vault.parent(root)),
        (nested, root, ROOT)
    );
    at(&vault, b"new/inner", |node| vault.set_xattr(node, b"user.a", b"b", SetXattr::Any)).unwrap();
    assert_eq!(faults(&vault), Vec::<String>::new());
    vault.unlink(nested, b"file").unwrap();
    vault.rmdir(root, b"inner").unwrap();
    assert_eq!(vault.resolve(b"new/inner").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(faults(&vault), Vec::<String>::new(), "no junction is left");
    vault.close().unwrap();
}

#[test]
fn a_share_planted_by_the_storage_host_is_not_entered() {
    // Mallory makes a share with a slot for Ann and replaces a folder by it. They could read
    // whatever Ann copies into it.
    let (store, mallory) = (filled(), person(6));
    let root = store.root();
    let vault = open(root.clone()).unwrap();
    mkdir(&vault, b"victim").unwrap();
    let stored = vault.cipher_path(b"victim").unwrap();
    vault.close().unwrap();
    let planted = beneath(&root, &stored);
    let ann = Member { public: vaults::owner().public(), role: Role::Admin, name: "Ann".into() };
    let options = kithfs::vault::CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 12 };
    let with_ann = CreateShare { isolated: false, name: "Mallory".into(), others: vec![ann] };
    Vault::create_signed(&planted, &options, &mallory, &with_ann).unwrap();

    let vault = open(root.clone()).unwrap();
    assert_eq!(put(&vault, b"victim/secret", b"secret").unwrap_err().errno(), libc::EACCES);
    assert_eq!(
        at(&vault, b"victim", |node| vault.open_dir(node)).unwrap_err().errno(),
        libc::EACCES
    );
    assert_eq!(vault.resolve(b"victim").unwrap().kind, Kind::Dir, "it shows as a directory");
    assert_eq!(faults(&vault).len(), 1);
    vault.close().unwrap();
    let vault = Vault::open(root, &vaults::owner(), trusting()).unwrap();
    let within = put(&vault, b"victim/secret", b"secret").unwrap_err();
    assert_eq!(
        within.errno(),
        libc::EACCES,
        "trust in the vault does not extend to a share that was planted in it"
    );
    vault.close().unwrap();
    let vault = Vault::open(planted, &vaults::owner(), trusting()).unwrap();
    put(&vault, b"secret", b"by her own decision").unwrap();
}

/// A share whose directory was exchanged, or that has lost its control files, is not entered and
/// not taken for a plain folder.
#[test]
fn a_swapped_or_stripped_share_is_no_folder_and_not_entered() {
    let (store, bob) = (filled(), person(2));
    let root = store.root();
    let vault = open(root.clone()).unwrap();
    share(&vault, b"projects", &with_bob(&bob)).unwrap();
    mkdir(&vault, b"other").unwrap();
    share(&vault, b"other", &CreateShare { name: "Ann".into(), ..CreateShare::default() }).unwrap();
    let (projects, other) =
        (vault.cipher_path(b"projects").unwrap(), vault.cipher_path(b"other").unwrap());
    vault.close().unwrap();
    let refused = |errno: i32| {
        let vault = open(root.clone()).unwrap();
        assert_eq!(put(&vault, b"other/secret", b"for nobody else").unwrap_err().errno(), errno);
        assert_eq!(at(&vault, b"other", |node| vault.open_dir(node)).unwrap_err().errno(), errno);
    };
    // The storage host exchanges two shares: Bob is a member of only one of them.
    root.rename(&projects, &*root, &other, StoreRename::Exchange).unwrap();
    refused(libc::EACCES);
    root.rename(&projects, &*root, &other, StoreRename::Exchange).unwrap();
    // It removes the descriptor, so that the share looks like a folder of the vault.
    let folder = beneath(&root, &other);
    folder.rename(b"+share", &*folder, b"+gone", StoreRename::Replace).unwrap();
    refused(libc::EIO);
    folder.rename(b"+gone", &*folder, b"+share", StoreRename::Replace).unwrap();
    // It removes the junction.
    let name = |dir: &Arc<dyn Dir>| {
        let entries = dir.reopen().unwrap().read(0, 1 << 20).unwrap();
        entries
            .into_iter()
            .map(|e| e.name)
            .filter(|name| name.starts_with(b"+junction-"))
            .collect::<Vec<_>>()
    };
    let junctions = name(&root);
    assert_eq!(junctions.len(), 2);
    for junction in &junctions {
        root.rename(junction, &*root, &[b"+x".as_slice(), junction].concat(), StoreRename::Replace)
            .unwrap();
    }
    refused(libc::EACCES);
    // It exchanges the junctions.
    root.rename(
        &[b"+x".as_slice(), &junctions[0]].concat(),
        &*root,
        &junctions[1],
        StoreRename::Replace,
    )
    .unwrap();
    root.rename(
        &[b"+x".as_slice(), &junctions[1]].concat(),
        &*root,
        &junctions[0],
        StoreRename::Replace,
    )
    .unwrap();
    refused(libc::EACCES);
}

#[test]
fn making_a_share_survives_a_stop_at_any_point_and_goes_on() {
    let start = filled();
    let bob = person(2);
    let before = tree(&open(start.root()).unwrap()).unwrap();
    let plan = FaultPlan::new();
    {
        let store = start.snapshot();
        let vault = open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        plan.reset();
        share(&vault, b"projects", &with_bob(&bob)).unwrap();
    }
    let steps = plan.count(Calls::Changes);
    assert!(steps > 50, "{steps}");
    for step in 1..=steps {
        let store = start.snapshot();
        let plan = FaultPlan::new();
        let vault = open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        plan.reset();
        plan.add(Fault {
            calls: Calls::Changes,
            when: When::From(step),
            errno: libc::EIO,
            short: step % 2 == 0,
        });
        let stopped = share(&vault, b"projects", &with_bob(&bob));
        drop(vault);
        // Two times of three the process is killed, which loses nothing; the third time the power
        // fails, which loses what was not durable.
        let store = if step % 3 == 0 { store.crash(&mut |_| 0) } else { store.snapshot() };
        let vault = open(store.root()).unwrap();
        assert_eq!(tree(&vault).unwrap(), before, "stopped at {step} of {steps}: {stopped:?}");
        share(&vault, b"projects", &with_bob(&bob))
            .unwrap_or_else(|e| panic!("going on from {step}: {e}"));
        assert_eq!(tree(&vault).unwrap(), before, "gone on from {step}");
        // A control file that was being written at that moment is harmless residue.
        let faults: Vec<String> = faults(&vault)
            .into_iter()
            .filter(|fault| !fault.contains("was left behind by a crash"))
            .collect();
        assert_eq!(faults, Vec::<String>::new(), "gone on from {step}");
        let stored = vault.cipher_path(b"projects").unwrap();
        vault.close().unwrap();
        let alone = Vault::open(beneath(&store.root(), &stored), &bob, trusting()).unwrap();
        assert_eq!(get(&alone, b"moved/note").unwrap(), b"a note");
    }
}

#[test]
fn a_conversion_does_not_fill_another_share_of_the_owner() {
    // The storage host puts a copy of a share that Ann has made with Bob into the place where a
    // share without Bob is being made.
    let (store, bob) = (filled(), person(2));
    let root = store.root();
    let vault = open(root.clone()).unwrap();
    mkdir(&vault, b"with Bob").unwrap();
    let with = share(&vault, b"with Bob", &with_bob(&bob)).unwrap();
    let of_bob = vault.cipher_path(b"with Bob").unwrap();
    vault.close().unwrap();
    // Ann's making of the other share stops half-way.
    let alone = CreateShare { name: "Ann".into(), ..CreateShare::default() };
    let plan = FaultPlan::new();
    let vault = open(FaultStore::wrap(root.clone(), plan.clone())).unwrap();
    plan.reset();
    plan.add(Fault { calls: Calls::Changes, when: When::From(40), errno: libc::EIO, short: false });
    share(&vault, b"projects", &alone).unwrap_err();
    drop(vault);
    let entries = root.reopen().unwrap().read(0, 1 << 20).unwrap();
    let staging = &entries
        .iter()
        .find(|entry| entry.name.starts_with(b"+moving-"))
        .expect("the conversion was begun")
        .name;
    root.rename(staging, &*root, &of_bob, StoreRename::Exchange).unwrap();

    let vault = open(root.clone()).unwrap();
    let made = share(&vault, b"projects", &alone).unwrap();
    assert_ne!(made, with);
    assert_eq!(vault.who_can_read(b"projects").unwrap().len(), 1, "Bob is not in it");
    assert_eq!(get(&vault, b"projects/moved/note").unwrap(), b"a note");
}

#[test]
fn a_seen_removal_from_a_nested_share_is_not_rolled_back() {
    // The storage host takes the newest manifest of the share away, and the removed member is one
    // again; the vault itself has one owner.
    let (store, bob) = (filled(), person(2));
    let vault = open(store.root()).unwrap();
    let id = share(&vault, b"projects", &with_bob(&bob)).unwrap();
    let folder = vault.cipher_path(b"projects").unwrap();
    vault.close().unwrap();
    let folder = beneath(&store.root(), &folder);
    let manifests = || raw::named(&*folder, b"+manifest-");
    let first = manifests();

    let pins = Arc::new(Memory::default());
    let remembering = || Vault::open(store.root(), &vaults::owner(), remembering(&pins)).unwrap();
    let vault = remembering();
    vault.share_at(b"projects").unwrap().remove(&[members::key(&bob)], &mut |_| {}).unwrap();
    vault.refresh().unwrap();
    vault.close().unwrap();
    assert_eq!(
        pins.heads.lock().keys().collect::<Vec<_>>(),
        [&id],
        "there is nothing to remember of the vault itself"
    );

    let newest = manifests().into_iter().find(|name| !first.contains(name)).unwrap();
    folder.rename(&newest, &*folder, b"+gone", StoreRename::Replace).unwrap();
    assert!(get(&remembering(), b"projects/plan").is_err());
    assert_eq!(
        get(&open(store.root()).unwrap(), b"projects/plan").unwrap(),
        pattern(1, 30_000),
        "a machine that has not seen the removal cannot know of it"
    );
    folder.rename(b"+gone", &*folder, &newest, StoreRename::Replace).unwrap();
    assert_eq!(get(&remembering(), b"projects/plan").unwrap(), pattern(1, 30_000));
}

#[test]
fn links_and_special_files_keep_attributes_in_a_new_share() {
    // The store has their attributes under another name than those of files; a copy that knew only
    // the attributes of files would lose them.
    let (store, bob) = (filled(), person(2));
    let vault = open(store.root()).unwrap();
    at(&vault, b"projects", |dir| {
        let caller = kithfs::vault::Caller { uid: 0, gid: 0, umask: 0 };
        let fifo = vault.mknod(&caller, dir, b"pipe", Kind::Fifo, 0o600, 0)?;
        vault.forget(fifo.node, 1);
        Ok(())
    })
    .unwrap();
    for path in [&b"projects/link"[..], b"projects/pipe", b"projects/moved"] {
        at(&vault, path, |node| vault.set_xattr(node, b"trusted.tag", path, SetXattr::Any))
            .unwrap();
    }
    share(&vault, b"projects", &with_bob(&bob)).unwrap();
    for path in [&b"projects/link"[..], b"projects/pipe", b"projects/moved"] {
        assert_eq!(at(&vault, path, |node| vault.get_xattr(node, b"trusted.tag")).unwrap(), path);
    }
    assert_eq!(faults(&vault), Vec::<String>::new());
}

/// A check of the vault finds damage in a nested share. Its repair requires that the share is
/// opened by itself.
#[test]
fn damage_in_a_share_is_reported_by_the_vault_around_it() {
    let (store, bob) = (filled(), person(2));
    let vault = open(store.root()).unwrap();
    share(&vault, b"projects", &with_bob(&bob)).unwrap();
    let (folder, plan) =
        (vault.cipher_path(b"projects").unwrap(), vault.cipher_path(b"projects/plan").unwrap());
    let note = vault.cipher_path(b"projects/moved/note").unwrap();
    vault.close().unwrap();
    let file = |path: &[u8]| {
        let (above, name) = path.split_at(path.iter().rposition(|b| *b == b'/').unwrap());
        beneath(&store.root(), above).open_file(&name[1..], Access::ReadWrite).unwrap()
    };
    let layout = kithfs::format::layout::Layout::new(12, true).unwrap();
    file(&plan).write_at(b"spoilt", layout.segment_offset(2, 0)).unwrap();
    let surplus = file(&note);
    let end = surplus.stat().unwrap().size;
    surplus.write_at(b"a reader's words", end).unwrap();

    let vault = open(store.root()).unwrap();
    let found = vault.check(b"", &mut |_| {}).unwrap();
    let mut paths: Vec<_> =
        found.faults.iter().map(|fault| (&fault.plain[..], &fault.cipher[..])).collect();
    paths.sort_unstable();
    // The file has two names, and is damaged under both.
    let hard = vault.cipher_path(b"projects/moved/hard").unwrap();
    assert_eq!(
        paths,
        [
            (&b"projects/moved/hard"[..], &hard[..]),
            (b"projects/moved/note", &note),
            (b"projects/plan", &plan)
        ]
    );
    assert!(
        found
            .faults
            .iter()
            .all(|fault| fault.remedy.is_none() && fault.what.contains("opened alone")),
        "{:?}",
        found.faults
    );
    let fault = found.faults.iter().find(|fault| fault.plain == b"projects/plan").unwrap();
    assert_eq!((fault.bad.len(), fault.bad[0].clone()), (1, 8192..12288));
    let mut saved = vec![0; 30_000];
    let save = &mut |at: u64, bytes: &[u8]| {
        saved[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    vault.salvage(fault, save).unwrap();
    let whole = pattern(1, 30_000);
    assert!(
        saved[..8192] == whole[..8192]
            && saved[8192..12288].iter().all(|b| *b == 0)
            && saved[12288..] == whole[12288..]
    );
    let within = vault.check(b"projects/moved", &mut |_| {}).unwrap();
    assert_eq!(within.faults.len(), 2, "a sub-tree of a share is checked as well");
    let done = vault.repair(&found.faults, b"repair-test", &mut |_| true).unwrap();
    assert!(
        done.repaired.iter().all(|repaired| repaired.outcome == Outcome::Nothing)
            && done.kept_in.is_none()
    );
    vault.close().unwrap();

    let alone = open(beneath(&store.root(), &folder)).unwrap();
    let found = alone.check(b"", &mut |_| {}).unwrap();
    let done = alone.repair(&found.faults, b"repair-test", &mut |_| true).unwrap();
    for repaired in &done.repaired {
        match &repaired.fault.plain[..] {
            // Bytes after the end cannot be attributed to anybody: they are not copied to a file
            // that this client would sign.
            b"moved/note" => assert!(
                matches!(&repaired.outcome, Outcome::Failed(why) if why.contains("signed share")),
                "{repaired:?}"
            ),
            _ => {
                assert!(
                    matches!(&repaired.outcome, Outcome::Done(Some(to)) if to.starts_with(b"lost+found/repair-test/")),
                    "{repaired:?}"
                )
            }
        }
    }
    assert_eq!(get(&alone, b"moved/note").unwrap(), b"a note", "the file is unchanged");
    let after = alone.check(b"", &mut |_| {}).unwrap();
    assert_eq!((after.faults.len(), after.kept.len()), (1, 2));
}
