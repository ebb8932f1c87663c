//! Lists of attributes that are too long for the store's attribute: they are stored in a control
//! file, and programs see no difference.

use std::sync::Arc;
use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::os::OsDir;
use kithfs::store::{Dir, Kind};
use kithfs::vault::{
    CheckFault, CheckReport, Online, Outcome, ROOT, RenameMode, SetXattr, Unused, Vault,
};
use parking_lot::Mutex;

use crate::support::vaults::{
    self, READ_WRITE, at, create, faults, get, open, open_or_create, pattern, put, rename,
    set_xattr,
};

const KEY: &[u8] = b"user.kithfs";
/// Too long for the attribute of any store.
const LONG: usize = 65_536;

/// Returns the names of the control files that hold attribute lists.
fn long_lists(store: &Arc<dyn Dir>) -> Vec<Vec<u8>> {
    let root = store.reopen().unwrap();
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let part = root.read(cookie, 4096).unwrap();
        let Some(last) = part.last() else { return all };
        cookie = last.next;
        all.extend(
            part.into_iter()
                .map(|entry| entry.name.to_vec())
                .filter(|name| name.starts_with(b"+attr-")),
        );
    }
}

fn attribute(vault: &Vault, path: &[u8], name: &[u8]) -> Result<Vec<u8>, kithfs::vault::Error> {
    at(vault, path, |node| vault.get_xattr(node, name))
}

fn check(vault: &Vault) -> CheckReport {
    vault.check(b"", &mut |_| {}).unwrap()
}

/// Returns how many control files nothing refers to.
fn unused(vault: &Vault) -> u64 {
    check(vault).unused.expect("everything was looked at").files
}

fn in_memory() -> (Arc<dyn Dir>, Vault) {
    let store = MemStore::new().root();
    create(&store, Suite::Aes256Gcm, 12);
    let vault = open(store.clone()).unwrap();
    (store, vault)
}

#[test]
fn a_list_of_any_length_is_set_changed_shortened_and_removed() {
    let scratch = tempfile::tempdir().unwrap();
    for store in [MemStore::new().root(), OsDir::open(scratch.path()).unwrap()] {
        create(&store, Suite::ChaCha20Poly1305, 12);
        let vault = open(store.clone()).unwrap();
        put(&vault, b"file", b"contents").unwrap();
        vaults::mkdir(&vault, b"dir").unwrap();
        for path in [&b"file"[..], b"dir"] {
            // Many attributes, and one whose value is as long as the kernel accepts.
            for i in 0..200 {
                set_xattr(&vault, path, format!("user.attribute-{i}").as_bytes(), &pattern(i, 100))
                    .unwrap();
            }
            set_xattr(&vault, path, b"user.long", &pattern(7, LONG)).unwrap();
        }
        assert_eq!(
            long_lists(&store).len(),
            2,
            "each list is in one file, and the old files are gone"
        );
        vault.close().unwrap();

        let vault = open(store.clone()).unwrap();
        for path in [&b"file"[..], b"dir"] {
            assert_eq!(at(&vault, path, |node| vault.list_xattr(node)).unwrap().len(), 201);
            assert_eq!(attribute(&vault, path, b"user.long").unwrap(), pattern(7, LONG));
            assert_eq!(attribute(&vault, path, b"user.attribute-199").unwrap(), pattern(199, 100));
        }
        assert_eq!(faults(&vault), [""; 0]);
        for path in [&b"file"[..], b"dir"] {
            at(&vault, path, |node| {
                vault.remove_xattr(node, b"user.long")?;
                (1..200).try_for_each(|i| {
                    vault.remove_xattr(node, format!("user.attribute-{i}").as_bytes())
                })
            })
            .unwrap();
            assert_eq!(attribute(&vault, path, b"user.attribute-0").unwrap(), pattern(0, 100));
        }
        assert_eq!(unused(&vault), 2, "a list that fits again is in the store's attribute");
        // A list that is too long is refused, and the old one stays.
        let most = (0..20)
            .take_while(|i| {
                set_xattr(&vault, b"file", format!("user.big-{i}").as_bytes(), &pattern(*i, LONG))
                    .is_ok()
            })
            .count();
        assert!((10..20).contains(&most), "{most}");
        assert_eq!(
            attribute(&vault, b"file", format!("user.big-{}", most - 1).as_bytes()).unwrap(),
            pattern(most as u64 - 1, LONG)
        );
        vault.close().unwrap();
    }
}

#[test]
fn an_unreferenced_attribute_list_is_kept_and_counted() {
    // Story: a list was removed with the last name of its file, with its last handle, or by a
    // rename over it. A conflict copy that had been moved elsewhere, or the version of a machine
    // that was offline, contained the same reference and lost its attributes.
    let (store, vault) = in_memory();
    for path in [&b"a"[..], b"b", b"c", b"stays"] {
        put(&vault, path, path).unwrap();
        set_xattr(&vault, path, b"user.long", &pattern(1, LONG)).unwrap();
    }
    vaults::mkdir(&vault, b"dir").unwrap();
    set_xattr(&vault, b"dir", b"user.long", &pattern(1, LONG)).unwrap();
    vaults::symlink(&vault, b"link", &[b'x'; 4000]).unwrap();
    vaults::symlink(&vault, b"other link", &[b'x'; 4000]).unwrap();
    assert_eq!((unused(&vault), long_lists(&store).len()), (0, 5));
    let gone = |expected: u64, what: &str| {
        assert_eq!((unused(&vault), long_lists(&store).len()), (expected, 5), "{what}");
    };
    at(&vault, b"a", |node| {
        vault.link(node, ROOT, b"other name").map(|attr| vault.forget(attr.node, 1))
    })
    .unwrap();
    vault.unlink(ROOT, b"a").unwrap();
    gone(0, "there is another name");
    assert_eq!(attribute(&vault, b"other name", b"user.long").unwrap(), pattern(1, LONG));
    vault.unlink(ROOT, b"other name").unwrap();
    gone(1, "the last name");
    put(&vault, b"new", b"new").unwrap();
    rename(&vault, b"new", b"b", RenameMode::Replace).unwrap();
    gone(2, "replaced");
    vault.rmdir(ROOT, b"dir").unwrap();
    gone(3, "a directory");
    vault.unlink(ROOT, b"other link").unwrap();
    gone(4, "the target of a link");

    let handle = open_or_create(&vault, b"c", READ_WRITE).unwrap();
    let node = vault.lookup(ROOT, b"c").unwrap().node;
    vault.unlink(ROOT, b"c").unwrap();
    assert_eq!(
        vault.get_xattr(node, b"user.long").unwrap(),
        pattern(1, LONG),
        "an open file keeps its attributes"
    );
    vault.release(handle).unwrap();
    vault.forget(node, 1);
    gone(5, "the last handle");

    let bytes = check(&vault).unused.unwrap().bytes;
    assert!(
        (4 * LONG as u64 + 4000..5 * LONG as u64).contains(&bytes),
        "four lists and a target: {bytes}"
    );
    assert_eq!(attribute(&vault, b"stays", b"user.long").unwrap(), pattern(1, LONG));
    assert_eq!(at(&vault, b"link", |node| vault.readlink(node)).unwrap(), [b'x'; 4000]);
    assert_eq!(get(&vault, b"b").unwrap(), b"new");
    assert_eq!(faults(&vault), [""; 0]);
}

/// A list of attributes counts as unused only if every entry that could refer to it was read.
#[test]
fn no_list_is_called_unused_after_an_incomplete_check() {
    let (store, vault) = in_memory();
    for path in [&b"a"[..], b"b"] {
        put(&vault, path, path).unwrap();
        set_xattr(&vault, path, b"user.long", &pattern(1, LONG)).unwrap();
    }
    vaults::mkdir(&vault, b"dir").unwrap();
    vault.unlink(ROOT, b"a").unwrap();
    assert_eq!(unused(&vault), 1);
    let part = vault.check(b"dir", &mut |_| {}).unwrap();
    assert!(part.unused.is_none(), "only a part of the vault was checked");
    let beside = vault.check_online(b"", &kithfs::vault::Online::default(), &mut |_| {}).unwrap();
    assert!(beside.unused.is_none(), "an online check counts no unused lists");
    vault.close().unwrap();

    store.mkdir(b"no name of this directory", 0o755).unwrap();
    let vault = open(store.clone()).unwrap();
    let found = check(&vault);
    assert!(
        found.faults.len() == 1 && found.unused.is_none(),
        "the directory may contain references to lists"
    );
    vault.repair(&found.faults, b"repair-test", &mut |_| true).unwrap();
    vault.close().unwrap();
    store.rmdir(b"no name of this directory").unwrap_err();
    assert_eq!(long_lists(&store).len(), 2);

    // A store that hides some attributes from this user.
    let plan = FaultPlan::new();
    let vault = open(FaultStore::wrap(store.clone(), plan.clone())).unwrap();
    assert_eq!(unused(&vault), 1);
    for errno in [libc::EPERM, libc::EOPNOTSUPP] {
        plan.add(Fault {
            calls: Calls::Of(kithfs::store::Call::GetXattr),
            when: When::From(1),
            errno,
            short: false,
        });
        let found = check(&vault);
        assert!(
            found.faults.is_empty() && found.unused.is_none() && found.unlooked > 0,
            "{errno}: {:?}",
            found.faults
        );
        plan.heal();
    }
    at(&vault, b"", |root| {
        vault
            .mknod(&vaults::CALLER, root, b"fifo", Kind::Fifo, 0o600, 0)
            .map(|attr| vault.forget(attr.node, 1))
    })
    .unwrap();
    assert_eq!(unused(&vault), 1);
    plan.add(Fault {
        calls: Calls::Of(kithfs::store::Call::RemoveXattr),
        when: When::From(1),
        errno: libc::EPERM,
        short: false,
    });
    let found = check(&vault);
    assert!(
        found.faults.is_empty() && found.unused.is_none() && found.unlooked == 1,
        "the store reports no attributes of a fifo to a user who may not see them"
    );
    plan.heal();
    assert_eq!(unused(&vault), 1);
    vault.close().unwrap();

    // A copy made without attributes: every list looks unused there.
    assert!(store.remove_xattr(&stored(&store, b"b"), KEY).unwrap());
    let vault = open(store.clone()).unwrap();
    let found = check(&vault);
    assert!(found.faults.is_empty() && found.unused.is_none() && found.unlooked == 0, "{found:?}");
    store.unlink(&long_lists(&store)[0]).unwrap();
    store.unlink(&long_lists(&store)[0]).unwrap();
    assert_eq!(check(&vault).unused, Some(Unused { files: 0, bytes: 0 }), "no list is left");
}

#[test]
fn an_entry_that_vanishes_during_a_check_counts_as_unread() {
    // Story: an entry with an unreadable name that moved while the walk came to it was skipped, and
    // the list to which it referred was reported as unused.
    let (store, vault) = in_memory();
    put(&vault, b"a", b"a").unwrap();
    set_xattr(&vault, b"a", b"user.long", &pattern(1, LONG)).unwrap();
    vault.close().unwrap();
    let plan = FaultPlan::new();
    let vault = open(FaultStore::wrap(store.clone(), plan.clone())).unwrap();
    plan.reset();
    assert_eq!(unused(&vault), 0);
    let opened = plan.count(Calls::Of(kithfs::store::Call::OpenFile));
    let check_failing = |call, nth, errno| {
        plan.reset();
        plan.add(Fault { calls: Calls::Of(call), when: When::Nth(nth), errno, short: false });
        let found = check(&vault);
        assert_eq!(plan.failed(), 1);
        plan.heal();
        assert!(found.unused.is_none_or(|unused| unused.files == 0), "{call:?} {nth}: {found:?}");
        found
    };
    let is_unread = |found: &CheckReport| {
        found.faults.is_empty() && found.unused.is_none() && found.unlooked == 1
    };
    // One of the files that are opened is the entry; the others are control files.
    let open_file = kithfs::store::Call::OpenFile;
    let unread = (1..=opened).filter(|n| is_unread(&check_failing(open_file, *n, libc::ENOENT)));
    assert_eq!(unread.count(), 1);
    // Story: an unreadable manifest was only logged, and the count was reported as complete.
    for nth in 1..=opened {
        let found = check_failing(open_file, nth, libc::EACCES);
        assert!(found.unused.is_none(), "{nth}: {found:?}");
    }

    store.mkdir(b"no name of this directory", 0o755).unwrap();
    let found = check_failing(kithfs::store::Call::OpenDir, 1, libc::ENOENT);
    assert!(is_unread(&found), "{found:?}");
}

#[test]
fn a_new_list_is_kept_beside_a_copy_of_a_missing_name() {
    // Story: a file with a conflict copy beside it was linked to another place, and its first name
    // was removed. Its next change looked for copies beside the remaining name, found none, and
    // removed the copy's list.
    let (store, vault) = in_memory();
    put(&vault, b"file", b"contents").unwrap();
    vaults::mkdir(&vault, b"dir").unwrap();
    set_xattr(&vault, b"file", b"user.long", &pattern(1, LONG)).unwrap();
    let original = vault.cipher_path(b"file").unwrap().to_vec();
    const SUFFIX: &[u8] = b".sync-conflict-20260102-101112-ABCDEFG";
    copy_stored(&store, &original, &[&original[..], SUFFIX].concat());
    let dir = vault.resolve(b"dir").unwrap().node;
    at(&vault, b"file", |node| {
        vault.link(node, dir, b"name").map(|attr| vault.forget(attr.node, 1))
    })
    .unwrap();
    vault.unlink(ROOT, b"file").unwrap();
    set_xattr(&vault, b"dir/name", b"user.long", b"another").unwrap();
    assert_eq!(
        attribute(&vault, &[b"file", SUFFIX].concat(), b"user.long").unwrap(),
        pattern(1, LONG)
    );
    assert_eq!(faults(&vault), [""; 0]);
}

#[test]
fn a_repair_keeps_attributes_after_a_transient_read_error() {
    // Story: the store failed once while a list was read. The check offered to move the attributes
    // to lost+found, and a repair of all faults did so with intact attributes. The same happened to
    // attributes whose epoch arrived later.
    let (store, vault) = in_memory();
    vaults::mkdir(&vault, b"dir").unwrap();
    for path in [&b""[..], b"dir"] {
        set_xattr(&vault, path, b"user.long", &pattern(1, LONG)).unwrap();
    }
    let stored = vault.cipher_path(b"dir").unwrap().to_vec();
    vault.close().unwrap();
    let plan = FaultPlan::new();
    let vault = open(FaultStore::wrap(store.clone(), plan.clone())).unwrap();
    let both = |what: &str| {
        for path in [&b""[..], b"dir"] {
            let value = attribute(&vault, path, b"user.long")
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(value, pattern(1, LONG), "{what}");
        }
    };
    let mut reported = 0;
    for n in 1.. {
        plan.reset();
        plan.add(Fault { calls: Calls::All, when: When::Nth(n), errno: libc::EIO, short: false });
        let found = vault.check(b"", &mut |_| {});
        let failed = plan.failed();
        plan.heal();
        if failed == 0 {
            break;
        }
        let Ok(found) = found else { continue };
        reported += found.faults.len();
        vault.repair(&found.faults, b"repair-test", &mut |_| true).unwrap();
        both(&format!("call {n}"));
    }
    assert!(reported >= 8, "each call that reads one of two attributes failed once: {reported}");

    // The epoch's number follows `+`, version, suite, flags and a zero.
    let good = store.get_xattr(&stored, KEY).unwrap().unwrap();
    let spoil = |at: usize| {
        let mut bad = good.clone();
        bad[at] ^= 1;
        store.set_xattr(&stored, KEY, &bad).unwrap();
        check(&vault).faults
    };
    let found = spoil(6);
    assert!(
        found.len() == 1 && found[0].remedy.is_none() && found[0].what.contains("epoch"),
        "{found:?}"
    );
    // Attributes that could not be opened by the check, and can be opened by the time of the
    // repair, stay.
    let found = spoil(good.len() - 1);
    assert!(found.len() == 1 && found[0].remedy.is_some(), "{found:?}");
    store.set_xattr(&stored, KEY, &good).unwrap();
    let done = vault.repair(&found, b"repair-test", &mut |_| true).unwrap();
    assert!(matches!(done.repaired[0].outcome, Outcome::Done(None)), "{done:?}");
    both("restored");
    let found = spoil(good.len() - 1);
    plan.reset();
    plan.add(Fault {
        calls: Calls::Of(kithfs::store::Call::GetXattr),
        when: When::Nth(1),
        errno: libc::EIO,
        short: false,
    });
    let failed = vault.repair(&found, b"repair-test", &mut |_| true).unwrap();
    assert!(matches!(failed.repaired[0].outcome, Outcome::Failed(_)), "{failed:?}");
    let done = vault.repair(&found, b"repair-test", &mut |_| true).unwrap();
    assert!(
        matches!(done.repaired[0].outcome, Outcome::Done(Some(_))),
        "damage is set aside: {done:?}"
    );
}

#[test]
fn a_long_target_is_kept_if_its_link_may_exist() {
    // Story: the store created a link and reported a failure, and failed again when it was asked
    // whether the link exists. The target was removed, and the link led nowhere.
    let target = [b'x'; 4000];
    for (errno, made) in [(libc::EIO, true), (libc::EIO, false), (0, false)] {
        let store = MemStore::new().root();
        create(&store, Suite::Aes256Gcm, 12);
        let plan = FaultPlan::new();
        let vault = open(FaultStore::wrap(store.clone(), plan.clone())).unwrap();
        plan.reset();
        plan.add(Fault {
            calls: Calls::Of(kithfs::store::Call::Symlink),
            when: When::From(1),
            errno: libc::EIO,
            short: false,
        });
        if errno != 0 {
            plan.add(Fault {
                calls: Calls::Of(kithfs::store::Call::Readlink),
                when: When::From(1),
                errno,
                short: false,
            });
        }
        if made {
            plan.link_all_the_same();
        }
        assert_eq!(vaults::symlink(&vault, b"link", &target).unwrap_err().errno(), libc::EIO);
        plan.heal();
        match (errno, made) {
            (_, true) => {
                assert_eq!(at(&vault, b"link", |node| vault.readlink(node)).unwrap(), target)
            }
            (0, _) => assert_eq!(unused(&vault), 0, "the link certainly does not exist"),
            _ => assert_eq!(unused(&vault), 1, "the link may exist"),
        }
        assert_eq!(faults(&vault), [""; 0]);
    }
}

#[test]
fn many_changes_in_a_row_leave_a_handful_of_lists() {
    // Story: each change of a long list wrote a file. If the old ones stayed, a program that
    // sets a thousand attributes would fill the disk.
    let (store, vault) = in_memory();
    put(&vault, b"file", b"contents").unwrap();
    vaults::mkdir(&vault, b"dir").unwrap();
    for path in [&b""[..], b"file", b"dir"] {
        set_xattr(&vault, path, b"user.long", &pattern(1, LONG)).unwrap();
        for i in 0..100 {
            set_xattr(&vault, path, format!("user.{i}").as_bytes(), b"value").unwrap();
        }
    }
    assert_eq!(long_lists(&store).len(), 3);
    let handle = open_or_create(&vault, b"file", READ_WRITE).unwrap();
    (0..100).for_each(|i| {
        at(&vault, b"file", |node| vault.remove_xattr(node, format!("user.{i}").as_bytes()))
            .unwrap()
    });
    vault.release(handle).unwrap();
    assert_eq!(long_lists(&store).len(), 3);
    vault.close().unwrap();

    // A list of an earlier session stays, and one that this session wrote is removed.
    let vault = open(store.clone()).unwrap();
    set_xattr(&vault, b"file", b"user.other", b"value").unwrap();
    set_xattr(&vault, b"file", b"user.other", b"another").unwrap();
    assert_eq!((long_lists(&store).len(), unused(&vault)), (4, 1));
}

#[test]
fn a_new_list_is_kept_if_another_name_may_refer_to_it() {
    // Story: the list of a file was removed at its next change. With it went the attributes of a
    // conflict copy beside the file, of one that was moved elsewhere in between, and of one beside
    // another name of the file.
    for how in ["beside", "moved", "beside a hard link"] {
        let (store, vault) = in_memory();
        put(&vault, b"file", b"contents").unwrap();
        put(&vault, b"other", b"other").unwrap();
        vaults::mkdir(&vault, b"dir").unwrap();
        set_xattr(&vault, b"file", b"user.long", &pattern(1, LONG)).unwrap();
        if how == "beside a hard link" {
            let dir = vault.resolve(b"dir").unwrap().node;
            at(&vault, b"file", |node| {
                vault.link(node, dir, b"name").map(|attr| vault.forget(attr.node, 1))
            })
            .unwrap();
        }
        let stored_in = |path: &[u8]| {
            let path = vault.cipher_path(path).unwrap().to_vec();
            match path.iter().position(|b| *b == b'/') {
                Some(at) => (store.open_dir(&path[..at]).unwrap(), path[at + 1..].to_vec()),
                None => (store.clone(), path),
            }
        };
        let (of, copy) = if how == "beside a hard link" {
            (&b"dir/name"[..], &b"dir/name"[..])
        } else {
            (&b"file"[..], &b"file"[..])
        };
        const SUFFIX: &[u8] = b".sync-conflict-20260102-101112-ABCDEFG";
        let (dir, original) = stored_in(of);
        copy_stored(&dir, &original, &[&original[..], SUFFIX].concat());
        let mut copy = [copy, SUFFIX].concat();
        if how == "moved" {
            rename(&vault, &copy, b"dir/copy", RenameMode::NoReplace).unwrap();
            copy = b"dir/copy".to_vec();
        }
        set_xattr(&vault, b"file", b"user.long", b"another").unwrap();
        assert_eq!(attribute(&vault, &copy, b"user.long").unwrap(), pattern(1, LONG), "{how}");
        assert_eq!(faults(&vault), [""; 0]);
    }
}

/// Copies a file of the store with its attribute, as a sync tool does.
fn copy_stored(dir: &Arc<dyn Dir>, from: &[u8], to: &[u8]) {
    let file = dir.open_file(from, kithfs::store::Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    dir.create_file(to, 0o600).unwrap().write_at(&bytes, 0).unwrap();
    dir.set_xattr(to, KEY, &dir.get_xattr(from, KEY).unwrap().unwrap()).unwrap();
}

#[test]
fn a_list_stays_as_long_as_a_conflict_copy_may_refer_to_it() {
    // Story: a sync tool that copies attributes left two versions of a file that referred to one
    // list. The list was removed with the first version that was removed or got other attributes,
    // and the other version lost its attributes.
    for remove in ["closed", "open", "no"] {
        for of_copy in [true, false] {
            let (store, vault) = in_memory();
            put(&vault, b"file", b"contents").unwrap();
            set_xattr(&vault, b"file", b"user.long", &pattern(1, LONG)).unwrap();
            vault.close().unwrap();
            let original = stored(&store, b"file");
            const SUFFIX: &[u8] = b".sync-conflict-20260102-101112-ABCDEFG";
            let copy = [&original[..], SUFFIX].concat();
            copy_stored(&store, &original, &copy);

            let vault = open(store.clone()).unwrap();
            let names = [b"file".to_vec(), [b"file", SUFFIX].concat()];
            let (changed, other) =
                if of_copy { (&names[1], &names[0]) } else { (&names[0], &names[1]) };
            match remove {
                "closed" => vault.unlink(ROOT, changed).unwrap(),
                "open" => {
                    let handle = open_or_create(&vault, changed, READ_WRITE).unwrap();
                    vault.unlink(ROOT, changed).unwrap();
                    vault.release(handle).unwrap();
                }
                _ => set_xattr(&vault, changed, b"user.long", b"another").unwrap(),
            }
            assert_eq!(
                attribute(&vault, other, b"user.long").unwrap(),
                pattern(1, LONG),
                "removed {remove}, of the copy {of_copy}"
            );
            vault.close().unwrap();
        }
    }
}

#[test]
fn a_list_that_is_not_the_one_that_was_set_is_refused() {
    let (store, vault) = in_memory();
    let mut lists = Vec::new();
    for path in [&b"a"[..], b"b"] {
        put(&vault, path, path).unwrap();
        set_xattr(&vault, path, b"user.long", &pattern(u64::from(path[0]), LONG)).unwrap();
        lists.push(long_lists(&store).into_iter().find(|name| !lists.contains(name)).unwrap());
    }
    vault.close().unwrap();
    let file = |name: &[u8]| store.open_file(name, kithfs::store::Access::ReadWrite).unwrap();
    let len = file(&lists[0]).stat().unwrap().size as usize;
    let mut whole = vec![0; len];
    file(&lists[0]).read_at(&mut whole, 0).unwrap();
    let put_list = |bytes: &[u8]| {
        file(&lists[0]).set_len(0).unwrap();
        file(&lists[0]).write_at(bytes, 0).unwrap();
    };
    let refused = |what: &str| {
        let vault = open(store.clone()).unwrap();
        assert!(attribute(&vault, b"a", b"user.long").is_err(), "{what}");
        assert_eq!(
            attribute(&vault, b"b", b"user.long").unwrap(),
            pattern(u64::from(b'b'), LONG),
            "{what}"
        );
        assert_eq!(get(&vault, b"a").unwrap(), b"a", "{what}: the contents can still be read");
        let named = faults(&vault);
        assert!(named.len() == 1 && named[0].starts_with("a "), "{what}: {named:?}");
        vault.close().unwrap();
    };
    for at in [0, 1, 2, 3, 4, 8, 24, 40, 64, len / 2, len - 17, len - 1] {
        let mut bad = whole.clone();
        bad[at] ^= 1;
        put_list(&bad);
        refused(&format!("byte {at}"));
    }
    for cut in [0, 1, 23, 24, 64, len - 1] {
        put_list(&whole[..cut]);
        refused(&format!("cut at {cut}"));
    }
    put_list(&[&whole[..], b"x"].concat());
    refused("longer");
    let mut other = vec![0; len];
    file(&lists[1]).read_at(&mut other, 0).unwrap();
    put_list(&other);
    refused("that of another file");
    // The attribute of the store that refers to the list, in the place of the list.
    let reference = store.get_xattr(&stored(&store, b"a"), KEY).unwrap().unwrap();
    put_list(&reference[1..]);
    refused("its own reference");
    store.unlink(&lists[0]).unwrap();
    refused("missing");
}

/// Returns the path of a file in the store.
fn stored(store: &Arc<dyn Dir>, path: &[u8]) -> Vec<u8> {
    let vault = open(store.clone()).unwrap();
    let stored = vault.cipher_path(path).unwrap();
    vault.close().unwrap();
    stored.to_vec()
}

#[test]
fn a_power_cut_leaves_the_old_list_or_the_new_one() {
    let store = MemStore::new();
    create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = open(store.root()).unwrap();
    // What the attribute may be after a cut; `None`: the file may be missing.
    let allowed: Arc<Mutex<Vec<Option<Vec<u8>>>>> =
        Arc::new(Mutex::new(vec![None, Some(Vec::new())]));
    let cuts = Arc::new(Mutex::new(Vec::new()));
    {
        let (watched, allowed, cuts) = (store.clone(), allowed.clone(), cuts.clone());
        store.on_event(Box::new(move |event| {
            let cut = (format!("{:?}", event.call), watched.snapshot(), allowed.lock().clone());
            cuts.lock().push(cut);
        }));
    }
    let handle = open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 0, b"contents", false).unwrap();
    for (i, len) in [10, LONG, LONG - 5, 20, LONG, 0].into_iter().enumerate() {
        let value = pattern(i as u64, len);
        allowed.lock().push(Some(value.clone()));
        set_xattr(&vault, b"file", b"user.value", &value).unwrap();
        if i % 2 == 0 {
            vault.fsync(handle, false).unwrap();
            at(&vault, b"", |root| {
                vault
                    .open_dir(root)
                    .and_then(|dir| vault.sync_dir(dir).map(|()| vault.release_dir(dir)))
            })
            .unwrap();
            *allowed.lock() = vec![Some(value)];
        }
    }
    vault.release(handle).unwrap();
    set_xattr(&vault, b"file", b"user.value", &pattern(9, LONG)).unwrap();
    allowed.lock().push(Some(pattern(9, LONG)));
    allowed.lock().push(None);
    vault.unlink(ROOT, b"file").unwrap();
    vault.close().unwrap();
    store.on_event(Box::new(|_| {}));

    let cuts = std::mem::take(&mut *cuts.lock());
    assert!(cuts.len() > 40, "{}", cuts.len());
    let random = vaults::Seeded::new(5);
    for (n, (call, before, allowed)) in cuts.iter().enumerate() {
        for way in 0..6 {
            let mut choose = |n: usize| match way {
                0 => 0,
                1 => n - 1,
                _ => random.below(n as u64) as usize,
            };
            let crashed = before.crash(&mut choose);
            let vault = open(crashed.root()).unwrap();
            let what = format!("cut {n} before {call}, way {way}");
            let found = match vault.lookup(ROOT, b"file") {
                Err(error) => {
                    assert_eq!(error.errno(), libc::ENOENT, "{what}");
                    None
                }
                Ok(attr) => {
                    assert_eq!(attr.kind, Kind::File);
                    Some(match vault.get_xattr(attr.node, b"user.value") {
                        Err(error) if error.errno() == libc::ENODATA => Vec::new(),
                        other => other.unwrap_or_else(|e| panic!("{what}: {e}")),
                    })
                }
            };
            assert!(
                allowed.contains(&found),
                "{what}: {:?} of {:?}",
                found.map(|f| f.len()),
                allowed.iter().flatten().map(Vec::len)
            );
            vault.close().unwrap();
        }
    }
}

#[test]
fn a_store_that_fails_leaves_the_old_list_or_the_new_one() {
    for errno in [libc::ENOSPC, libc::EIO] {
        for n in 1.. {
            let store = MemStore::new();
            create(&store.root(), Suite::Aes256Gcm, 12);
            let plan = FaultPlan::new();
            let vault = open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
            put(&vault, b"file", b"contents").unwrap();
            let mut allowed = vec![pattern(1, LONG)];
            set_xattr(&vault, b"file", b"user.value", &allowed[0]).unwrap();
            plan.reset();
            plan.add(Fault { calls: Calls::Changes, when: When::Nth(n), errno, short: false });
            let (node, mut failed) = (vault.resolve(b"file").unwrap().node, 0);
            for value in [pattern(2, LONG), pattern(3, 10), pattern(4, LONG)] {
                match vault.set_xattr(node, b"user.value", &value, SetXattr::Any) {
                    // The old file could not be removed, or it is not known whether the new one is
                    // durable: either list may be there.
                    Err(error) => {
                        assert_eq!(error.errno(), errno);
                        failed += 1;
                        allowed.push(value);
                    }
                    Ok(()) => allowed = vec![value],
                }
                let found = vault
                    .get_xattr(node, b"user.value")
                    .unwrap_or_else(|e| panic!("call {n}: {e}"));
                assert!(allowed.contains(&found), "call {n}");
                allowed = vec![found];
            }
            vault.forget(node, 1);
            // The fault may also hit the close.
            let _ = vault.close();
            drop(vault);
            let vault = open(store.root()).unwrap();
            assert_eq!(attribute(&vault, b"file", b"user.value").unwrap(), allowed[0], "call {n}");
            if plan.failed() == 0 {
                assert!(n > 8 && failed == 0, "a failure without a fault, or too few changes: {n}");
                break;
            }
        }
    }
}

#[test]
fn a_list_that_is_replaced_while_it_is_read_is_read_anew() {
    // Story: a reader had read the reference when a writer replaced the list and removed the old
    // one. The reader got EIO, and the check of a mounted vault reported a fault where nothing was
    // wrong.
    let (_store, vault) = in_memory();
    put(&vault, b"file", b"contents").unwrap();
    let node = vault.resolve(b"file").unwrap().node;
    vault.set_xattr(node, b"user.long", &pattern(0, LONG), SetXattr::Any).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let is_done = || done.load(std::sync::atomic::Ordering::Acquire);
    std::thread::scope(|scope| {
        // On a panic too; otherwise the scope would wait for the readers for ever.
        scopeguard::defer! { done.store(true, std::sync::atomic::Ordering::Release) }
        let reader = scope.spawn(|| {
            while !is_done() {
                assert_eq!(
                    vault.get_xattr(node, b"user.long").map(|value| value.len()).unwrap(),
                    LONG
                );
                assert_eq!(vault.list_xattr(node).unwrap(), [b"user.long"]);
            }
        });
        let checker = scope.spawn(|| {
            while !is_done() {
                assert_eq!(vault.check(b"file", &mut |_| {}).unwrap().faults, []);
            }
        });
        // A reader that has ended has failed, and the scope reports its panic.
        for i in (0..400).take_while(|_| !reader.is_finished() && !checker.is_finished()) {
            vault.set_xattr(node, b"user.long", &pattern(i, LONG), SetXattr::Any).unwrap();
        }
    });
    vault.forget(node, 1);
}

#[test]
fn a_missing_attribute_list_is_dropped_only_on_request() {
    // Story: a repair removed the reference to a list that a sync tool delivered a little later.
    // The list then existed and nothing referred to it.
    let (store, vault) = in_memory();
    put(&vault, b"file", b"contents").unwrap();
    set_xattr(&vault, b"file", b"user.long", &pattern(1, LONG)).unwrap();
    vaults::set_xattr(&vault, b"", b"user.long", &pattern(2, LONG)).unwrap();
    let [first, second] = <[_; 2]>::try_from(long_lists(&store)).unwrap();
    store.rename(&first, &*store, b"+lease", kithfs::store::RenameMode::NoReplace).unwrap();
    store.unlink(&second).unwrap();
    let mut found = check(&vault);
    assert_eq!(
        found
            .faults
            .iter()
            .map(|fault| (fault.list_missing, fault.remedy.is_some()))
            .collect::<Vec<_>>(),
        [(true, false); 2]
    );
    let done = vault.repair(&found.faults, b"repair-test", &mut |_| true).unwrap();
    assert!(
        done.repaired.iter().all(|one| one.outcome == Outcome::Nothing) && done.kept_in.is_none(),
        "{done:?}"
    );
    // Setting another attribute does not remove the others either.
    assert_eq!(set_xattr(&vault, b"file", b"user.other", b"value").unwrap_err().errno(), libc::EIO);
    assert_eq!(set_xattr(&vault, b"", b"user.other", b"value").unwrap_err().errno(), libc::EIO);

    store.rename(b"+lease", &*store, &first, kithfs::store::RenameMode::NoReplace).unwrap();
    let late = [(&b"file"[..], 1), (b"", 2)].into_iter().filter(|(path, n)| {
        attribute(&vault, path, b"user.long").is_ok_and(|v| v == pattern(*n, LONG))
    });
    assert_eq!(late.count(), 1, "one of the two lists was only late");
    store.unlink(&first).unwrap();
    found.faults.iter_mut().for_each(CheckFault::give_up_list);
    let done = vault.repair(&found.faults, b"repair-test", &mut |_| true).unwrap();
    assert!(
        done.repaired.iter().all(|one| matches!(one.outcome, Outcome::Done(Some(_)))),
        "{done:?}"
    );
    assert_eq!(faults(&vault), [""; 0]);
    for path in [&b"file"[..], b""] {
        set_xattr(&vault, path, b"user.other", b"value").unwrap();
        assert_eq!(at(&vault, path, |node| vault.list_xattr(node)).unwrap(), [b"user.other"]);
    }
    assert_eq!(get(&vault, b"file").unwrap(), b"contents");
}

#[test]
fn an_online_check_reports_bad_attributes_of_the_root() {
    // Story: faults in the attributes of the root were searched for a second time among its
    // entries, not found there, and not reported.
    let (store, vault) = in_memory();
    vaults::set_xattr(&vault, b"", b"user.name", b"value").unwrap();
    let mut blob = store.get_xattr_self(KEY).unwrap().unwrap();
    *blob.last_mut().unwrap() ^= 1;
    store.set_xattr_self(KEY, &blob).unwrap();
    let online = Online { settle: Duration::from_millis(1), tries: 3 };
    for found in [check(&vault), vault.check_online(b"", &online, &mut |_| {}).unwrap()] {
        assert_eq!(
            found.faults.iter().map(|fault| &fault.cipher[..]).collect::<Vec<_>>(),
            [b""],
            "{found:?}"
        );
    }
}

#[test]
fn an_open_directory_keeps_its_attributes_when_removed() {
    // Story: fgetxattr(2) failed on a directory that was removed meanwhile, although fstat(2) did
    // not.
    let scratch = tempfile::tempdir().unwrap();
    for store in [MemStore::new().root(), OsDir::open(scratch.path()).unwrap()] {
        create(&store, Suite::Aes256Gcm, 12);
        let vault = open(store).unwrap();
        for path in [&b"dir"[..], b"dir/below", b"other"] {
            vaults::mkdir(&vault, path).unwrap();
        }
        for path in [&b"dir"[..], b"other"] {
            set_xattr(&vault, path, b"user.long", &pattern(1, LONG)).unwrap();
        }
        let node = vault.resolve(b"dir").unwrap().node;
        let handle = vault.open_dir(node).unwrap();
        vault.rmdir(node, b"below").unwrap();
        vault.rmdir(ROOT, b"dir").unwrap();
        rename(&vault, b"other", b"dir", RenameMode::Replace).unwrap();
        assert_eq!(vault.get_xattr(node, b"user.long").unwrap(), pattern(1, LONG));
        vault.set_xattr(node, b"user.long", b"another", SetXattr::Any).unwrap();
        assert_eq!(vault.get_xattr(node, b"user.long").unwrap(), b"another");
        assert_eq!(
            attribute(&vault, b"dir", b"user.long").unwrap(),
            pattern(1, LONG),
            "another directory of this name"
        );
        vault.release_dir(handle);
        vault.forget(node, 1);
        vault.close().unwrap();
    }
}
