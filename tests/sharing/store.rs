//! What the storage host of a share can do to its control files, on the paths that a mount uses:
//! from the vault around the share, in the share opened alone, and under an open vault. The tests
//! of attacks are named after them.
//!
//! `roster` does the same with rosters alone, with more variants and with the help of admins.

use std::sync::Arc;

use kithfs::crypto::Suite;
use kithfs::format::manifest::Manifest;
use kithfs::format::share::ShareDescriptor;
use kithfs::format::slots::{self, SLOT_LEN};
use kithfs::roster::{Identity, Role};
use kithfs::store::mem::MemStore;
use kithfs::store::{Call, Dir, RenameMode as StoreRename};
use kithfs::vault::{CreateOptions, CreateShare, Error, OpenOptions, RenameMode, Vault};

use crate::support::members::ShareOfPath;
use crate::support::members::{
    Memory, beside, founded, key, member, open_as, person, quiet, remembering, root_share,
};
use crate::support::raw::{beneath, copy, merge, named, names, read, write};
use crate::support::vaults::{self, get, mkdir, owner, put};

/// Ann's vault with the folder `projects`, of which Bob is a writer and from which Dan was removed,
/// and a second folder shared with Bob. Both have seen the newest members of `projects`; Bob has
/// never opened the second folder.
struct Scene {
    store: MemStore,
    ann: Arc<Memory>,
    bob: Arc<Memory>,
    projects: Vec<u8>,
    other: Vec<u8>,
}

impl Scene {
    fn new() -> Scene {
        let store = MemStore::new();
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        let (ann, bob) = (Arc::new(Memory::default()), Arc::new(Memory::default()));
        let vault = Vault::open(store.root(), &owner(), remembering(&ann)).unwrap();
        for path in [&b"projects"[..], b"other"] {
            mkdir(&vault, path).unwrap();
            let others = vec![
                member(&person(2), Role::Writer, "Bob"),
                member(&person(4), Role::Writer, "Dan"),
            ];
            vault
                .create_share(
                    path,
                    &CreateShare { isolated: false, name: "Ann".into(), others },
                    &mut quiet(),
                )
                .unwrap();
        }
        let share = vault.share_at(b"projects").unwrap();
        share.add(&[member(&person(3), Role::Reader, "Cem")]).unwrap();
        share.remove(&[key(&person(4))], &mut quiet()).unwrap();
        put(&vault, b"projects/plan", b"the plan").unwrap();
        let [projects, other] =
            [&b"projects"[..], b"other"].map(|path| vault.cipher_path(path).unwrap());
        let id = share.info().unwrap().share;
        drop(share);
        vault.close().unwrap();
        bob.heads.lock().insert(id, ann.heads.lock()[&id]);
        let scene = Scene { store, ann, bob, projects, other };
        assert_eq!(get(&scene.alone().unwrap(), b"plan").unwrap(), b"the plan");
        scene
    }

    fn vault(&self) -> Vault {
        Vault::open(self.store.root(), &owner(), remembering(&self.ann)).unwrap()
    }

    fn folder(&self, path: &[u8]) -> Arc<dyn Dir> {
        beneath(&self.store.root(), path)
    }

    /// Opens the folder as Bob, who holds only its ciphertext.
    fn alone(&self) -> Result<Vault, Error> {
        Vault::open(self.folder(&self.projects), &person(2), remembering(&self.bob))
    }
}

/// Asserts that nobody who has seen the newest members accepts the result of the attack. Returns
/// the errors of Ann and Bob.
fn refused(attack: impl FnOnce(&Scene, &dyn Dir)) -> [Error; 2] {
    let scene = Scene::new();
    let folder = scene.folder(&scene.projects);
    let honest = scene.store.snapshot();
    let open = scene.vault();
    assert_eq!(get(&open, b"projects/plan").unwrap(), b"the plan");
    attack(&scene, &*folder);

    // The vault is open during the attack. Whether it notices the attack or not, it continues with
    // the data that it has verified, and seals new data only for the same members.
    let _ = open.refresh();
    assert_eq!(get(&open, b"projects/plan").unwrap(), b"the plan");
    if put(&open, b"projects/later", b"for the same people").is_ok() {
        let [plan, later] =
            [&b"projects/plan"[..], b"projects/later"].map(|path| open.cipher_path(path).unwrap());
        let header = |path: &[u8]| {
            read(&*beneath(&scene.store.root(), vaults::split(path).0), vaults::split(path).1)
                [16..28]
                .to_vec()
        };
        assert_eq!(header(&later), header(&plan), "epoch and key");
    }
    open.close().unwrap();

    // Opens the share again, from the vault around it and alone.
    let vault = scene.vault();
    let from_vault = get(&vault, b"projects/plan").expect_err("Ann refuses the share");
    assert!(put(&vault, b"projects/secret", b"Ann's own").is_err());
    assert!(vault.who_can_read(b"projects").is_err());
    vault.close().unwrap();
    let alone = scene.alone().err().expect("Bob refuses the share");

    // With the original control files everything works again: nothing false was remembered.
    let before = beneath(&honest.root(), &scene.projects);
    for name in named(&*folder, b"+") {
        folder.unlink(&name).unwrap();
    }
    for name in named(&*before, b"+") {
        write(&*folder, &name, &read(&*before, &name));
    }
    let vault = scene.vault();
    assert_eq!(get(&vault, b"projects/plan").unwrap(), b"the plan");
    assert!(vault.who_can_read(b"projects").unwrap().iter().all(|member| member.name != "Dan"));
    vault.close().unwrap();
    put(&scene.alone().unwrap(), b"of Bob", b"as ever").unwrap();
    [from_vault, alone]
}

fn assert_all_contain(errors: &[Error], what: &str) {
    for error in errors {
        assert!(error.to_string().contains(what), "{what:?} is missing in {error}");
    }
}

/// Returns the name of the manifest with the highest number.
fn newest(folder: &dyn Dir) -> Vec<u8> {
    named(folder, b"+manifest-").pop().unwrap()
}

/// Returns the name of the slot block that the newest manifest names.
fn current_slots(folder: &dyn Dir) -> Vec<u8> {
    let manifest = Manifest::decode(&read(folder, &newest(folder))).unwrap();
    slots::file_name(&manifest.blocks[0].root).into_bytes()
}

#[test]
fn attack_an_older_roster_is_put_back() {
    assert_all_contain(
        &refused(|_, folder| folder.unlink(&newest(folder)).unwrap()),
        "older than manifest 3",
    );
}

#[test]
fn attack_the_slots_of_two_members_are_exchanged() {
    // Exchanges whole slots, or only the sealed keys so that the tags stay in order.
    for from in [0, 16] {
        let errors = refused(|_, folder| {
            let name = current_slots(folder);
            let mut bytes = read(folder, &name);
            let (first, second) = bytes[slots::HEADER_LEN..].split_at_mut(SLOT_LEN);
            first[from..SLOT_LEN].swap_with_slice(&mut second[from..SLOT_LEN]);
            write(folder, &name, &bytes);
        });
        assert_all_contain(&errors, "+slots");
    }
}

#[test]
fn attack_a_public_key_is_replaced_in_the_roster() {
    // An admin's key, in the manifest: its signature does not match, so the newest manifest is
    // missing.
    let errors = refused(|_, folder| {
        let name = newest(folder);
        let mut manifest = Manifest::decode(&read(folder, &name)).unwrap();
        manifest.admins[0] = key(&person(66));
        folder.unlink(&name).unwrap();
        write(folder, manifest.file_name().as_bytes(), &manifest.encode());
    });
    assert_all_contain(&errors, "older than manifest 3");
    // The founder's key, in the descriptor: it is another share.
    let errors = refused(|_, folder| {
        let mut descriptor = ShareDescriptor::decode(&read(folder, b"+share")).unwrap();
        descriptor.founder = person(66).public();
        write(folder, b"+share", &descriptor.encode());
    });
    assert!(errors.iter().all(|error| matches!(error, Error::Untrusted { .. })), "{errors:?}");
    // The members' keys, in the sealed list.
    let errors = refused(|_, folder| {
        let name = current_slots(folder);
        let mut bytes = read(folder, &name);
        *bytes.last_mut().unwrap() ^= 1;
        write(folder, &name, &bytes);
    });
    assert_all_contain(&errors, "+slots");
}

#[test]
fn attack_the_chain_is_cut() {
    let errors = refused(|_, folder| {
        let middle = named(folder, b"+manifest-2-").pop().unwrap();
        folder.unlink(&middle).unwrap();
    });
    assert_all_contain(&errors, "older than manifest 3");
    let errors = refused(|_, folder| {
        named(folder, b"+manifest-").iter().for_each(|name| folder.unlink(name).unwrap())
    });
    assert_all_contain(&errors, "manifest");
}

#[test]
fn attack_a_folder_key_of_the_hosts_own() {
    // The host, Mallory, makes slots for Ann and Bob with a key of its own.
    let errors = refused(|_, folder| {
        let own = MemStore::new();
        let others =
            vec![member(&owner(), Role::Admin, "Ann"), member(&person(2), Role::Writer, "Bob")];
        let share = CreateShare { isolated: false, name: "Mallory".into(), others };
        Vault::create_signed(
            &own.root(),
            &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 12 },
            &person(66),
            &share,
        )
        .unwrap();
        let planted = named(&*own.root(), b"+slots-").pop().unwrap();
        write(folder, &current_slots(folder), &read(&*own.root(), &planted));
    });
    assert_all_contain(&errors, "+slots");
}

#[test]
fn attack_control_files_of_another_share() {
    // All of them: it is the other share, which does not belong here.
    let move_all = |scene: &Scene, folder: &dyn Dir, kinds: &[&[u8]]| {
        let other = scene.folder(&scene.other);
        for name in named(folder, b"+")
            .iter()
            .filter(|name| kinds.iter().any(|kind| name.starts_with(kind)))
        {
            folder.unlink(name).unwrap();
        }
        for name in named(&*other, b"+")
            .iter()
            .filter(|name| kinds.iter().any(|kind| name.starts_with(kind)))
        {
            write(folder, name, &read(&*other, name));
        }
    };
    let errors = refused(|scene, folder| {
        move_all(scene, folder, &[b"+share", b"+manifest-", b"+slots-", b"+inventory-"])
    });
    assert!(errors.iter().all(|error| matches!(error, Error::Untrusted { .. })), "{errors:?}");
    // All except the descriptor: they do not belong to this share.
    assert_all_contain(
        &refused(|scene, folder| move_all(scene, folder, &[b"+manifest-", b"+slots-"])),
        "manifest",
    );
    // The slots alone, under the name of those that were here.
    let errors = refused(|scene, folder| {
        let other = scene.folder(&scene.other);
        write(folder, &current_slots(folder), &read(&*other, &current_slots(&*other)));
    });
    assert_all_contain(&errors, "+slots");
}

#[test]
fn attack_the_old_folder_is_put_back_with_its_junction() {
    // While a share was being made, its junction recorded that, and the folder still belonged to
    // the vault. The host, which kept both, restores them later: what Ann writes there would be for
    // the members of the vault, not for those of the share.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let memory = Arc::new(Memory::default());
    let open = || Vault::open(store.root(), &ann, remembering(&memory)).unwrap();
    let vault = open();
    mkdir(&vault, b"secret").unwrap();
    put(&vault, b"secret/first", b"for Bob too").unwrap();
    let stored = vault.cipher_path(b"secret").unwrap();
    let then: Arc<parking_lot::Mutex<Option<MemStore>>> = Arc::default();
    let (watched, kept, folder) = (store.snapshot(), then.clone(), stored.clone());
    vault.close().unwrap();
    drop(vault);
    // On a copy, to see the state just before the exchange of folder and share.
    {
        let handle = watched.clone();
        watched.on_event(Box::new(move |event| {
            if event.call == Call::Rename && event.name.as_deref() == Some(&folder[..]) {
                *kept.lock() = Some(handle.snapshot());
            }
        }));
    }
    let vault = Vault::open(watched.root(), &ann, remembering(&memory)).unwrap();
    vault
        .create_share(
            b"secret",
            &CreateShare { isolated: true, name: "Ann".into(), others: vec![] },
            &mut quiet(),
        )
        .unwrap();
    vault.close().unwrap();
    watched.on_event(Box::new(|_| {}));
    drop(vault);
    let (store, then) = (watched, then.lock().take().expect("there was an exchange").root());
    let open = || Vault::open(store.root(), &ann, remembering(&memory)).unwrap();
    let vault = open();
    put(&vault, b"secret/second", b"not for Bob").unwrap();
    vault.close().unwrap();

    let root = store.root();
    let junction = named(&*root, b"+junction-").pop().unwrap();
    root.rename(&stored, &*root, b"+hidden", StoreRename::NoReplace).unwrap();
    root.mkdir(&stored, 0o755).unwrap();
    copy(&*then.open_dir(&stored).unwrap(), &*root.open_dir(&stored).unwrap());
    write(&*root, &junction, &read(&*then, &junction));
    let vault = open();
    let error = put(&vault, b"secret/third", b"not for Bob either").unwrap_err();
    assert!(error.to_string().contains("a share that is missing"), "{error}");
    assert!(get(&vault, b"secret/first").is_err());
    vault.close().unwrap();
    // A machine that has never opened the share cannot notice this.
    let elsewhere = Arc::new(Memory::default());
    assert_eq!(
        get(&Vault::open(root, &ann, remembering(&elsewhere)).unwrap(), b"secret/first").unwrap(),
        b"for Bob too"
    );
}

#[test]
fn attack_a_share_replaces_a_vault_of_the_same_owner() {
    // Ann founded both, so she may enter both, and her program cannot know which one she meant. The
    // threat model lists this ability of the host. A user who asks for the members gets the true
    // list.
    let bob = person(2);
    let (shared, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let (alone, same_ann) = founded(Vec::new());
    assert_eq!(key(&ann), key(&same_ann));
    // Her machine remembers what it finds at the one place.
    let memory = Arc::new(Memory::default());
    let open = |found: &MemStore| Vault::open(found.root(), &ann, remembering(&memory));
    let vault = open(&alone).unwrap();
    put(&vault, b"diary", b"for Ann alone").unwrap();
    assert_eq!(vault.who_can_read(b"").unwrap().len(), 1);
    vault.close().unwrap();
    let vault = open(&shared).unwrap();
    assert_eq!(get(&vault, b"diary").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(vault.who_can_read(b"").unwrap().len(), 2, "Bob is listed");
    vault.close().unwrap();
    // A share that she neither founded nor was invited to is not entered.
    let mallory = person(66);
    let planted = MemStore::new();
    let share = CreateShare {
        isolated: false,
        name: "Mallory".into(),
        others: vec![member(&ann, Role::Admin, "Ann")],
    };
    Vault::create_signed(
        &planted.root(),
        &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 14 },
        &mallory,
        &share,
    )
    .unwrap();
    assert!(matches!(open(&planted), Err(Error::Untrusted { .. })));
}

#[test]
fn attack_valid_manifests_are_buried_among_many() {
    // Bob, removed, fills the store with names that sort before that of the removal. Names beyond a
    // limit were silently left out, and the removal with them: Ann's open vault continued under the
    // key that Bob has.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let vault = open_as(&store, &ann).unwrap();
    let apart = store.snapshot();
    root_share(&beside(&apart, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
    for n in 0..65_536 {
        store.root().create_file(format!("+manifest-2-{n:032x}").as_bytes(), 0o600).unwrap();
    }
    merge(&*apart.root(), &*store.root());
    let error = vault.refresh().unwrap_err();
    assert!(error.to_string().contains("too many manifests"), "{error}");
    assert_eq!(put(&vault, b"secret", b"not for Bob").unwrap_err().errno(), libc::EROFS);
    assert!(open_as(&store, &bob).is_err() && open_as(&store, &ann).is_err());
    for name in named(&*store.root(), b"+manifest-2-0000000000000000000000000000") {
        store.root().unlink(&name).unwrap();
    }
    vault.refresh().unwrap();
    put(&vault, b"secret", b"not for Bob").unwrap();
    assert!(matches!(open_as(&store, &bob), Err(Error::NoAccess { .. })));
}

#[test]
fn attack_an_invitation_to_a_losing_fork_by_a_non_admin() {
    // The manifest that the invitation names has been in no head's chain since the fork was
    // settled, so its signer was not checked for being an admin.
    let (bob, cem, dan) = (person(2), person(3), person(4));
    let members = vec![
        member(&bob, Role::Writer, "Bob"),
        member(&cem, Role::Reader, "Cem"),
        member(&dan, Role::Admin, "Dan"),
    ];
    let (store, ann) = founded(members);
    let apart = store.snapshot();
    let lost = root_share(&beside(&apart, &dan)).rekey().unwrap();
    let kept = root_share(&beside(&store, &ann)).rekey().unwrap();
    merge(&*apart.root(), &*store.root());
    root_share(&beside(&store, &ann)).settle(&kept.hash, &[]).unwrap();
    let id = root_share(&beside(&store, &ann)).info().unwrap().share;
    let invited_by = |who: &Identity| {
        Vault::open(store.root(), &cem, remembering(&Memory::invited(id, lost, who))).map(drop)
    };
    assert!(matches!(invited_by(&bob), Err(Error::Untrusted { .. })), "a writer invites nobody");
    invited_by(&dan).unwrap();
    invited_by(&ann).unwrap();
}

#[test]
fn attack_a_state_another_process_has_seen_is_hidden() {
    // A command beside the mount removes Bob; the host hides that from the mount. A user who asks
    // the mount gets the true list.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let memory = Arc::new(Memory::default());
    let mounted = Vault::open(store.root(), &ann, remembering(&memory)).unwrap();
    let command = OpenOptions {
        read_only: true,
        lock: kithfs::vault::LockMode::None,
        ..remembering(&memory)
    };
    let before = names(&*store.root());
    root_share(&Vault::open(store.root(), &ann, command).unwrap())
        .remove(&[key(&bob)], &mut quiet())
        .unwrap();
    for name in names(&*store.root())
        .iter()
        .filter(|name| name.starts_with(b"+manifest-") && !before.contains(name))
    {
        store.root().unlink(name).unwrap();
    }
    let error = root_share(&mounted).info().unwrap_err();
    assert!(error.to_string().contains("older than manifest 2"), "{error}");
}

#[test]
fn attack_a_removed_member_reads_on_through_the_parent() {
    // Bob stays a writer of the vault and has its key; he is no longer a writer of the nested
    // share.
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Writer, "Bob")]);
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"inner").unwrap();
    let others = vec![member(&bob, Role::Writer, "Bob")];
    vault
        .create_share(
            b"inner",
            &CreateShare { isolated: false, name: "Ann".into(), others },
            &mut quiet(),
        )
        .unwrap();
    put(&vault, b"inner/before", b"for Bob too").unwrap();
    let inner = vault.cipher_path(b"inner").unwrap();
    vault.close().unwrap();
    let of_bob = open_as(&store, &bob).unwrap();
    assert_eq!(get(&of_bob, b"inner/before").unwrap(), b"for Bob too");
    put(&of_bob, b"inner/of Bob", b"while he may").unwrap();
    of_bob.close().unwrap();
    let old = store.snapshot();

    let vault = open_as(&store, &ann).unwrap();
    vault.share_at(b"inner").unwrap().remove(&[key(&bob)], &mut quiet()).unwrap();
    put(&vault, b"inner/after", b"not for Bob").unwrap();
    put(&vault, b"around", b"for Bob too").unwrap();
    vault.close().unwrap();
    let of_bob = open_as(&store, &bob).unwrap();
    assert_eq!(get(&of_bob, b"around").unwrap(), b"for Bob too");
    for path in [&b"inner/before"[..], b"inner/after"] {
        assert!(matches!(get(&of_bob, path), Err(Error::NoAccess { .. })));
    }
    assert!(put(&of_bob, b"inner/new", b"x").is_err());
    of_bob.close().unwrap();
    // With the former list of members restored, Bob has the old key of the share and that of the
    // vault, and neither opens anything new.
    let folder = beneath(&store.root(), &inner);
    let hidden = store.snapshot();
    let before = named(&*beneath(&old.root(), &inner), b"+manifest-");
    for name in named(&*folder, b"+manifest-").iter().filter(|name| !before.contains(name)) {
        folder.unlink(name).unwrap();
    }
    let of_bob = open_as(&store, &bob).unwrap();
    assert_eq!(get(&of_bob, b"inner/before").unwrap(), b"for Bob too");
    assert!(get(&of_bob, b"inner/after").is_err());
    let shown: Vec<Vec<u8>> = vaults::tree(&of_bob).unwrap().into_keys().collect();
    assert!(!shown.contains(&b"inner/after".to_vec()), "not even its name: {shown:?}");
    // What Bob writes now is not accepted by anybody who has the newest members.
    put(&of_bob, b"inner/of Bob", b"when he may not").unwrap();
    let forged = of_bob.cipher_path(b"inner/of Bob").unwrap();
    of_bob.close().unwrap();
    let bytes = read(&*beneath(&store.root(), vaults::split(&forged).0), vaults::split(&forged).1);
    let honest = hidden;
    write(&*beneath(&honest.root(), vaults::split(&forged).0), vaults::split(&forged).1, &bytes);
    let vault = open_as(&honest, &ann).unwrap();
    assert_eq!(get(&vault, b"inner/of Bob").unwrap_err().errno(), libc::EIO);
}

/// The owner of a vault sees the shares that an admin makes in it, unless such a share is isolated.
#[test]
fn a_vaults_owner_sees_shares_of_admins_unless_isolated() {
    let bob = person(2);
    let (store, ann) = founded(vec![member(&bob, Role::Admin, "Bob")]);
    let vault = open_as(&store, &bob).unwrap();
    for (path, isolated) in [(&b"open"[..], false), (b"closed", true)] {
        mkdir(&vault, path).unwrap();
        vault
            .create_share(
                path,
                &CreateShare { isolated, name: "Bob".into(), others: vec![] },
                &mut quiet(),
            )
            .unwrap();
        put(&vault, &[path, b"/file"].concat(), b"by Bob").unwrap();
        // A share in a share in a vault.
        let deeper = [path, b"/deeper"].concat();
        mkdir(&vault, &deeper).unwrap();
        vault
            .create_share(
                &deeper,
                &CreateShare { isolated: false, name: "Bob".into(), others: vec![] },
                &mut quiet(),
            )
            .unwrap();
        put(&vault, &[&deeper[..], b"/file"].concat(), b"deeper").unwrap();
    }
    vault.close().unwrap();
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(get(&vault, b"open/file").unwrap(), b"by Bob");
    assert_eq!(get(&vault, b"open/deeper/file").unwrap(), b"deeper");
    for path in [&b"closed/file"[..], b"closed/deeper/file"] {
        assert!(matches!(get(&vault, path), Err(Error::NoAccess { .. })));
    }
    let move_it = |from: &[u8], to: &[u8]| {
        vaults::rename(&vault, from, to, RenameMode::Replace).unwrap_err().errno()
    };
    assert_eq!(move_it(b"open/deeper/file", b"open/file"), libc::EXDEV);
    assert_eq!(move_it(b"open/file", b"file"), libc::EXDEV);
}
