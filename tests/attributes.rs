//! Lists of attributes that the store has no room for: they stand in a control file, and nobody who sets or reads one can tell.

#[path = "support/vaults.rs"]
mod vaults;

use std::sync::Arc;

use kithfs::backing::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::backing::mem::MemStore;
use kithfs::backing::os::OsDir;
use kithfs::backing::{Dir, Kind};
use kithfs::crypto::Suite;
use kithfs::vault::{ROOT, RenameMode, SetXattr, Vault};
use parking_lot::Mutex;
use vaults::{READ_WRITE, at, create, faults, get, open, open_or_create, pattern, put, rename, set_xattr};

const KEY: &[u8] = b"user.kithfs";
/// Too long for the store's attribute, wherever it is.
const LONG: usize = 65_536;

/// The control files with attributes.
fn long_lists(store: &Arc<dyn Dir>) -> Vec<Vec<u8>> {
    let root = store.reopen().unwrap();
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let part = root.read(cookie, 4096).unwrap();
        let Some(last) = part.last() else { return all };
        cookie = last.next;
        all.extend(part.into_iter().map(|entry| entry.name.to_vec()).filter(|name| name.starts_with(b"+attr-")));
    }
}

fn attribute(vault: &Vault, path: &[u8], name: &[u8]) -> Result<Vec<u8>, kithfs::vault::Error> {
    at(vault, path, |node| vault.get_xattr(node, name))
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
            // As many as programs set, and values as long as the kernel lets through.
            for i in 0..200 {
                set_xattr(&vault, path, format!("user.attribute-{i}").as_bytes(), &pattern(i, 100)).unwrap();
            }
            set_xattr(&vault, path, b"user.long", &pattern(7, LONG)).unwrap();
        }
        assert_eq!(long_lists(&store).len(), 2, "each list stands in one file, and the old ones are gone");
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
                (1..200).try_for_each(|i| vault.remove_xattr(node, format!("user.attribute-{i}").as_bytes()))
            })
            .unwrap();
            assert_eq!(attribute(&vault, path, b"user.attribute-0").unwrap(), pattern(0, 100));
        }
        assert_eq!(long_lists(&store), [&b""[..]; 0], "what fits again stands in the store's attribute");
        // More than a list may hold is refused, and what was there stays.
        let most =
            (0..20).take_while(|i| set_xattr(&vault, b"file", format!("user.big-{i}").as_bytes(), &pattern(*i, LONG)).is_ok()).count();
        assert!((10..20).contains(&most), "{most}");
        assert_eq!(attribute(&vault, b"file", format!("user.big-{}", most - 1).as_bytes()).unwrap(), pattern(most as u64 - 1, LONG));
        vault.close().unwrap();
    }
}

#[test]
fn a_list_goes_with_the_last_name_and_the_last_handle() {
    let (store, vault) = in_memory();
    let lists = |expected: usize, what: &str| assert_eq!(long_lists(&store).len(), expected, "{what}");
    for path in [&b"a"[..], b"b", b"c"] {
        put(&vault, path, path).unwrap();
        set_xattr(&vault, path, b"user.long", &pattern(1, LONG)).unwrap();
    }
    vaults::mkdir(&vault, b"dir").unwrap();
    set_xattr(&vault, b"dir", b"user.long", &pattern(1, LONG)).unwrap();
    lists(4, "made");
    at(&vault, b"a", |node| vault.link(node, ROOT, b"other name").map(|attr| vault.forget(attr.node, 1))).unwrap();
    vault.unlink(ROOT, b"a").unwrap();
    lists(4, "there is another name");
    assert_eq!(attribute(&vault, b"other name", b"user.long").unwrap(), pattern(1, LONG));
    vault.unlink(ROOT, b"other name").unwrap();
    lists(3, "the last name");
    put(&vault, b"new", b"new").unwrap();
    rename(&vault, b"new", b"b", RenameMode::Replace).unwrap();
    lists(2, "replaced");
    vault.rmdir(ROOT, b"dir").unwrap();
    lists(1, "a directory");

    let handle = open_or_create(&vault, b"c", READ_WRITE).unwrap();
    let node = vault.lookup(ROOT, b"c").unwrap().node;
    vault.unlink(ROOT, b"c").unwrap();
    assert_eq!(vault.get_xattr(node, b"user.long").unwrap(), pattern(1, LONG), "who holds it open still has it");
    vault.release(handle).unwrap();
    vault.forget(node, 1);
    lists(0, "the last handle");
    assert_eq!(get(&vault, b"b").unwrap(), b"new");
    assert_eq!(faults(&vault), [""; 0]);
}

#[test]
fn a_list_stays_as_long_as_a_conflict_copy_may_refer_to_it() {
    // Story: a sync tool that copies attributes left two versions of a file, both with the reference to one list. The list went with the
    // first of them that was removed or given other attributes, and with it the attributes of the other one.
    for remove in ["closed", "open", "no"] {
        for of_copy in [true, false] {
            let (store, vault) = in_memory();
            put(&vault, b"file", b"contents").unwrap();
            set_xattr(&vault, b"file", b"user.long", &pattern(1, LONG)).unwrap();
            vault.close().unwrap();
            let original = stored(&store, b"file");
            const SUFFIX: &[u8] = b".sync-conflict-20260102-101112-ABCDEFG";
            let copy = [&original[..], SUFFIX].concat();
            let from = store.open_file(&original, kithfs::backing::Access::Read).unwrap();
            let mut bytes = vec![0; from.stat().unwrap().size as usize];
            from.read_at(&mut bytes, 0).unwrap();
            store.create_file(&copy, 0o600).unwrap().write_at(&bytes, 0).unwrap();
            store.set_xattr(&copy, KEY, &store.get_xattr(&original, KEY).unwrap().unwrap()).unwrap();

            let vault = open(store.clone()).unwrap();
            let names = [b"file".to_vec(), [b"file", SUFFIX].concat()];
            let (changed, other) = if of_copy { (&names[1], &names[0]) } else { (&names[0], &names[1]) };
            match remove {
                "closed" => vault.unlink(ROOT, changed).unwrap(),
                "open" => {
                    let handle = open_or_create(&vault, changed, READ_WRITE).unwrap();
                    vault.unlink(ROOT, changed).unwrap();
                    vault.release(handle).unwrap();
                }
                _ => set_xattr(&vault, changed, b"user.long", b"another").unwrap(),
            }
            assert_eq!(attribute(&vault, other, b"user.long").unwrap(), pattern(1, LONG), "removed {remove}, of the copy {of_copy}");
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
    let file = |name: &[u8]| store.open_file(name, kithfs::backing::Access::ReadWrite).unwrap();
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
        assert_eq!(attribute(&vault, b"b", b"user.long").unwrap(), pattern(u64::from(b'b'), LONG), "{what}");
        assert_eq!(get(&vault, b"a").unwrap(), b"a", "{what}: the contents are read all the same");
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
    // The list itself, or its reference, in the place of the other of the two.
    let reference = store.get_xattr(&stored(&store, b"a"), KEY).unwrap().unwrap();
    put_list(&reference[1..]);
    refused("its own reference");
    store.unlink(&lists[0]).unwrap();
    refused("missing");
}

/// Stored name of a file by its contents' author: there are two files, and the reference tells them apart.
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
    // What the attribute may be after a cut; `None`: there may be no such file.
    let allowed: Arc<Mutex<Vec<Option<Vec<u8>>>>> = Arc::new(Mutex::new(vec![None, Some(Vec::new())]));
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
            at(&vault, b"", |root| vault.open_dir(root).and_then(|dir| vault.sync_dir(dir).map(|()| vault.release_dir(dir)))).unwrap();
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
            assert!(allowed.contains(&found), "{what}: {:?} of {:?}", found.map(|f| f.len()), allowed.iter().flatten().map(Vec::len));
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
                    // The old file could not be removed, or nobody could say that the new one is durable: either list may be there.
                    Err(error) => {
                        assert_eq!(error.errno(), errno);
                        failed += 1;
                        allowed.push(value);
                    }
                    Ok(()) => allowed = vec![value],
                }
                let found = vault.get_xattr(node, b"user.value").unwrap_or_else(|e| panic!("call {n}: {e}"));
                assert!(allowed.contains(&found), "call {n}");
                allowed = vec![found];
            }
            vault.forget(node, 1);
            // The failure may also be here.
            let _ = vault.close();
            drop(vault);
            let vault = open(store.root()).unwrap();
            assert_eq!(attribute(&vault, b"file", b"user.value").unwrap(), allowed[0], "call {n}");
            if plan.failed() == 0 {
                assert!(n > 8 && failed == 0, "the session changes the store: {n}");
                break;
            }
        }
    }
}
