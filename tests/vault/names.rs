//! The name with which an entry is shown, and the entry to which a name leads: they agree, whatever
//! is in a directory of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kithfs::crypto::Suite;
use kithfs::format::suffix;
use kithfs::roster::Identity;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Call, Dir, RenameMode as StoreRename};
use kithfs::vault::{CreateShare, LockMode, ROOT, RenameMode, Vault};

use crate::support::members::ShareOfPath;
use crate::support::members::{
    beside, founded, key, open_as, quiet, root_share, trusting, with_bob,
};
use crate::support::raw;
use crate::support::vaults::{
    self, CALLER, READ_WRITE, Seeded, at, faults, get, mkdir, put, rename, write_at,
};

/// What an entry was made of: the indices of its key and its directory, its plain name, its suffix.
type Made = ((usize, usize), Vec<u8>, &'static str);

const LONG: [u8; 190] = [b'l'; 190];

fn with(name: &[u8], suffix: &str) -> Vec<u8> {
    [name, suffix.as_bytes()].concat()
}

/// Creates a vault without signatures, in which a repair may restore names.
fn alone() -> MemStore {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 14);
    store
}

/// Returns the names that a listing of the root shows, with the inodes of their entries.
fn listed(vault: &Vault) -> Vec<(Vec<u8>, u64)> {
    listed_in(vault, b"")
}

/// Does the same for any directory.
fn listed_in(vault: &Vault, path: &[u8]) -> Vec<(Vec<u8>, u64)> {
    let handle = at(vault, path, |dir| vault.open_dir(dir)).unwrap();
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let part = vault.read_dir(handle, cookie, 4096).unwrap();
        let Some(last) = part.last() else { break };
        cookie = last.next;
        all.extend(part.iter().map(|entry| (entry.name.to_vec(), entry.ino)));
    }
    vault.release_dir(handle);
    all
}

fn names(vault: &Vault) -> BTreeSet<Vec<u8>> {
    let all = listed(vault);
    let names: BTreeSet<Vec<u8>> = all.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names.len(), all.len(), "a name is listed twice");
    names
}

fn set<const N: usize>(names: [&[u8]; N]) -> BTreeSet<Vec<u8>> {
    names.iter().map(|name| name.to_vec()).collect()
}

/// Returns the inode to which a path leads.
fn inode(vault: &Vault, name: &[u8]) -> Option<u64> {
    match vault.resolve(name) {
        Ok(attr) => {
            vault.forget(attr.node, 1);
            Some(attr.ino)
        }
        Err(error) if error.errno() == libc::ENOENT => None,
        Err(error) => panic!("{}: {error}", name.escape_ascii()),
    }
}

/// Returns the stored path of an entry, or the one that a new entry would get.
fn stored(vault: &Vault, name: &[u8]) -> Vec<u8> {
    vault.cipher_path(name).unwrap()
}

/// Copies a file or a directory with its contents, as a sync tool does.
fn copy(dir: &Arc<dyn Dir>, from: &[u8], to: &[u8]) {
    match dir.open_dir(from) {
        Ok(inside) => {
            dir.mkdir(to, 0o755).unwrap();
            raw::copy(&*inside, &*dir.open_dir(to).unwrap());
        }
        Err(_) => raw::write(&**dir, to, &raw::read(&**dir, from)),
    }
}

fn stash(root: &Arc<dyn Dir>, from: &[u8], to: &[u8]) {
    root.rename(from, &**root, to, StoreRename::NoReplace).unwrap();
}

/// The directory of the tests below, which was renamed.
const HERE: &[u8] = b"here";

fn here(name: &[u8]) -> Vec<u8> {
    [HERE, b"/", name].concat()
}

/// The directories whose tags the entries in [`HERE`] have: `HERE` itself, the one that it was
/// before its rename, and an unrelated one.
const TAGS: [&[u8]; 3] = [HERE, b"was", b"there"];

/// A vault with names under several folder keys, and the stored names in each directory under each
/// key.
struct Epochs {
    store: MemStore,
    ann: Identity,
    /// For each key and each directory, the stored names by plain name.
    keys: Vec<[BTreeMap<Vec<u8>, Vec<u8>>; 3]>,
    /// The index of the current key.
    current: usize,
}

/// Suffixes that sync tools append.
const SUFFIXES: [&str; 12] = [
    "",
    " (1)",
    " (2)",
    ".sync-conflict-1",
    " (Ann's conflicted copy)",
    "_conflict-1",
    "-HOST",
    "~",
    " (conflict copy ~)",
    " (moved 01234567)",
    ".sync-conflict-1 (1)",
    " (1) (1)",
];

impl Epochs {
    /// Names that collide with each other's conflict copies, and some that barely fit.
    fn plain() -> Vec<Vec<u8>> {
        let mut all = vec![
            b"x".to_vec(),
            LONG.to_vec(),
            vec![b's'; 98],
            vec![b'm'; 251],
            vec![b'f'; 234],
            vec![b'f'; 239],
        ];
        for suffix in SUFFIXES.map(|suffix| suffix::shown(suffix.as_bytes()).into_owned()) {
            for plain in [&b"x"[..], &LONG, &[b's'; 90], &[b'f'; 210]] {
                all.push([plain, &suffix].concat());
            }
        }
        all.sort();
        all.dedup();
        all
    }

    /// Records the stored names of `plain` in each directory under the current key. The files
    /// with sealed long names stay in the store; the entries do not.
    fn note(
        store: &MemStore,
        ann: &Identity,
        plain: &[Vec<u8>],
    ) -> [BTreeMap<Vec<u8>, Vec<u8>>; 3] {
        let vault = open_as(store, ann).unwrap();
        TAGS.map(|dir| {
            let mut all = BTreeMap::new();
            for name in plain {
                let path = [dir, b"/", name].concat();
                if name.len() > 98 {
                    put(&vault, &path, b"").unwrap();
                    at(&vault, dir, |dir| vault.unlink(dir, name)).unwrap();
                }
                let stored = stored(&vault, &path);
                all.insert(name.clone(), last(&stored).to_vec());
            }
            all
        })
    }

    /// Creates a vault with the key of epoch 1, two keys of epoch 2 on the two sides of a fork,
    /// and, if the fork is settled, the key of epoch 3.
    fn new(is_settled: bool) -> Epochs {
        let (store, ann) = founded(vec![]);
        let vault = open_as(&store, &ann).unwrap();
        mkdir(&vault, b"was").unwrap();
        put(&vault, b"was/x", b"").unwrap();
        rename(&vault, b"was", HERE, RenameMode::NoReplace).unwrap();
        at(&vault, HERE, |dir| vault.unlink(dir, b"x")).unwrap();
        mkdir(&vault, b"was").unwrap();
        mkdir(&vault, b"there").unwrap();
        vault.close().unwrap();
        let mut plain = Self::plain();
        let first = Self::note(&store, &ann, &plain);
        // Names that look like stored ones of this directory.
        for name in [b"x".to_vec(), LONG.to_vec()] {
            plain.extend([first[0][&name].clone(), with(&first[0][&name], " (1)")]);
        }
        let mut keys = vec![Self::note(&store, &ann, &plain)];
        let apart = store.snapshot();
        let mut heads = Vec::new();
        for side in [&store, &apart] {
            heads.push(root_share(&beside(side, &ann)).rekey().unwrap().hash);
            keys.push(Self::note(side, &ann, &plain));
        }
        raw::merge(&*apart.root(), &*store.root());
        if is_settled {
            root_share(&beside(&store, &ann)).settle(&heads[1], &[]).unwrap();
            keys.push(Self::note(&store, &ann, &plain));
            return Epochs { store, ann, keys, current: 3 };
        }
        let vault = beside(&store, &ann);
        let now = stored(&vault, &here(b"x"));
        let current =
            (1..3).find(|at| keys[*at][0][&b"x"[..]] == last(&now)).expect("one of the two sides");
        drop(vault);
        Epochs { store, ann, keys, current }
    }

    fn here(&self, store: &MemStore) -> Arc<dyn Dir> {
        raw::beneath(&store.root(), &stored(&beside(store, &self.ann), HERE))
    }

    /// Returns the indices of all keys and directories.
    fn all(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.keys.len()).flat_map(|key| (0..TAGS.len()).map(move |tag| (key, tag)))
    }
}

fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// Returns the name of an entry with its mark.
fn marked(name: &[u8], stored: &[u8]) -> Vec<u8> {
    suffix::marked(name, &suffix::mark_of(stored))
}

#[test]
fn every_entry_is_listed_once_under_a_name_that_opens_it() {
    // A listing showed one name for two entries, and only one of them was found under it: a
    // conflict copy and a file that really had that name, copies under two folder keys, or an older
    // name without room for a mark.
    let (mut seen_stored, mut seen_marked, mut seen_explained) = (0, 0, 0);
    for epochs in [Epochs::new(false), Epochs::new(true)] {
        let all: Vec<&Vec<u8>> = epochs.keys[0][0].keys().collect();
        for seed in 0..150 {
            let random = Seeded::new(seed);
            let store = epochs.store.snapshot();
            let dir = epochs.here(&store);
            // A few names and suffixes with all their combinations, so that many collide.
            let pick = |n: usize| {
                (0..n).map(|_| random.below(all.len() as u64) as usize).collect::<Vec<_>>()
            };
            let plain = pick(2 + random.below(4) as usize);
            let mut made: BTreeMap<Vec<u8>, Made> = BTreeMap::new();
            for suffix in SUFFIXES {
                if random.below(2) == 0 {
                    continue;
                }
                for (key, at) in epochs.all().flat_map(|key| plain.iter().map(move |at| (key, *at)))
                {
                    let entry = with(&epochs.keys[key.0][key.1][all[at]], suffix);
                    if random.below(4) == 0 && entry.len() <= 255 && !made.contains_key(&entry) {
                        if random.below(4) == 0 {
                            dir.mkdir(&entry, 0o755).unwrap()
                        } else {
                            drop(dir.create_file(&entry, 0o600).unwrap())
                        }
                        made.insert(entry, (key, all[at].clone(), suffix));
                    }
                }
            }
            let mut lost = BTreeSet::new();
            for (dir, file) in raw::long_names(&store.root()) {
                if random.below(5) == 0 {
                    dir.unlink(&file).unwrap();
                    lost.insert([b"=", &file[..]].concat());
                }
            }

            let vault = beside(&store, &epochs.ann);
            let what = format!("seed {seed}, current {}", epochs.current);
            let listed = listed_in(&vault, HERE);
            let by_name: BTreeMap<&[u8], u64> =
                listed.iter().map(|(name, ino)| (&name[..], *ino)).collect();
            assert_eq!(by_name.len(), listed.len(), "{what}: a name is listed twice");
            assert_eq!(listed.len(), made.len(), "{what}");
            for (entry, (key, name, suffix)) in &made {
                let ino = dir.stat(entry).unwrap().ino;
                let names: Vec<&[u8]> = by_name
                    .iter()
                    .filter(|(_, other)| **other == ino)
                    .map(|(name, _)| *name)
                    .collect();
                let what = format!(
                    "{what}: {} ({key:?}, {}{suffix})",
                    entry.escape_ascii(),
                    name.escape_ascii()
                );
                let is_lost = lost.contains(&entry[..entry.len() - suffix.len()]);
                assert_eq!(names.len(), 1, "{what}");
                let name = names[0];
                let path = here(name);
                assert_eq!(inode(&vault, &path), Some(ino), "{what}: {}", name.escape_ascii());
                assert_eq!(last(&stored(&vault, &path)), entry, "{what}");
                let cipher = [&stored(&vault, HERE), &b"/"[..], entry].concat();
                assert_eq!(vault.plain_path(&cipher).unwrap(), path, "{what}");
                let sealed = [&made[entry].1[..], &suffix::shown(suffix.as_bytes())].concat();
                let (is_current, is_own) = (key.0 == epochs.current, key.1 == 0);
                if is_lost {
                    assert!(name == &entry[..] || name == marked(entry, entry), "{what}");
                } else if is_current && is_own && suffix.is_empty() {
                    assert_eq!(name, &sealed[..], "{what}");
                } else if name == &entry[..] {
                    seen_stored += 1;
                } else if name != &sealed[..] {
                    assert_eq!(name, marked(&sealed, entry), "{what}");
                    seen_marked += 1;
                } else {
                    assert_ne!(key.1, 2, "{what}: nothing explains it");
                    seen_explained += usize::from(key.1 == 1);
                }
                // A name that is not listed is not found, except for a lost long name: its hash
                // shows which entry it names.
                for other in [sealed.clone(), marked(&sealed, entry), entry.clone()] {
                    if other.len() <= 255 && !by_name.contains_key(&other[..]) {
                        let found = inode(&vault, &here(&other));
                        let is_of_lost = || {
                            let stored = stored(&vault, &here(&other));
                            lost.iter().any(|lost| last(&stored).starts_with(lost))
                        };
                        assert!(
                            found.is_none() || is_of_lost(),
                            "{what}: {} is found",
                            other.escape_ascii()
                        );
                    }
                }
            }
        }
    }
    // The special cases occurred.
    assert!(
        seen_stored > 100 && seen_marked > 100 && seen_explained > 100,
        "{seen_stored} {seen_marked} {seen_explained}"
    );
}

#[test]
fn a_conflict_copy_beside_its_original_works_like_any_file() {
    // The copy was shown under the name of the other entry, to which every path with that name led.
    // It could be neither read nor removed, and the contents of a directory copied in this way were
    // out of reach.
    for name in [&b"x"[..], &LONG] {
        let (store, ann) = founded(vec![]);
        let root = store.root();
        let vault = open_as(&store, &ann).unwrap();
        let (real, dir) = (with(name, " (1)"), with(name, "-d"));
        let real_dir = with(&dir, " (1)");
        put(&vault, name, b"first").unwrap();
        put(&vault, &real, b"really named so").unwrap();
        for (dir, inside) in [(&dir, &b"of the first"[..]), (&real_dir, b"of the real one")] {
            mkdir(&vault, dir).unwrap();
            put(&vault, &with(dir, "/inside"), inside).unwrap();
        }
        let (file, folder) =
            (with(&stored(&vault, name), " (1)"), with(&stored(&vault, &dir), " (1)"));
        vault.close().unwrap();
        copy(&root, &file[..file.len() - 4], &file);
        copy(&root, &folder[..folder.len() - 4], &folder);
        let stored = [file, folder];
        let [file, folder] = [marked(&real, &stored[0]), marked(&real_dir, &stored[1])];

        let vault = open_as(&store, &ann).unwrap();
        assert_eq!(names(&vault), set([name, &real, &file, &dir, &real_dir, &folder]));
        let read = |path: &[u8]| get(&vault, path).unwrap();
        assert_eq!((read(&real), read(&file)), (b"really named so".to_vec(), b"first".to_vec()));
        assert_eq!(read(&with(&folder, "/inside")), b"of the first");
        assert_eq!(read(&with(&real_dir, "/inside")), b"of the real one");
        put(&vault, &with(&folder, "/more"), b"into the copy").unwrap();
        put(&vault, &file, b"changed").unwrap();
        assert_eq!((read(name), read(&file)), (b"first".to_vec(), b"changed".to_vec()));
        assert_eq!(faults(&vault), Vec::<String>::new());
        // A name that is shown is taken.
        assert_eq!(
            at(&vault, b"", |root| vault.mkdir(&CALLER, root, &file, 0o755)).unwrap_err().errno(),
            libc::EEXIST
        );
        assert_eq!(
            rename(&vault, name, &file, RenameMode::NoReplace).unwrap_err().errno(),
            libc::EEXIST
        );
        rename(&vault, &folder, b"kept", RenameMode::NoReplace).unwrap();
        rename(&vault, &file, b"kept file", RenameMode::NoReplace).unwrap();
        vault.close().unwrap();
        let vault = open_as(&store, &ann).unwrap();
        assert_eq!(names(&vault), set([name, &real, &dir, &real_dir, b"kept", b"kept file"]));
        assert_eq!(get(&vault, b"kept/inside").unwrap(), b"of the first");
        assert_eq!(get(&vault, b"kept/more").unwrap(), b"into the copy");
        assert_eq!(get(&vault, b"kept file").unwrap(), b"changed");
        assert_eq!(faults(&vault), Vec::<String>::new());

        // More copies of both; one of them is removed, and the other gets the name when it is free.
        for copied in &stored {
            copy(&root, &copied[..copied.len() - 4], copied);
        }
        assert_eq!(
            names(&vault),
            set([name, &real, &file, &dir, &real_dir, &folder, b"kept", b"kept file"])
        );
        vault.unlink(ROOT, &file).unwrap();
        assert_eq!(get(&vault, &real).unwrap(), b"really named so");
        assert_eq!(inode(&vault, &file), None);
        at(&vault, &real_dir, |dir| vault.unlink(dir, b"inside")).unwrap();
        vault.rmdir(ROOT, &real_dir).unwrap();
        vault.close().unwrap();
        let vault = open_as(&store, &ann).unwrap();
        assert_eq!(get(&vault, &with(&real_dir, "/inside")).unwrap(), b"of the first");
        assert_eq!(inode(&vault, &folder), None);
        assert_eq!(faults(&vault), Vec::<String>::new());
        vault.close().unwrap();
    }
}

#[test]
fn a_removed_name_is_free_and_its_conflict_copy_unchanged() {
    // A program renamed a file to keep it as a backup and wrote a new file under its name. The
    // write went into the conflict copy beside it, which had got the name meanwhile, and the copy's
    // only contents were lost.
    type Away = fn(&Vault, &[u8]);
    let ways: [Away; 3] = [
        |vault, name| rename(vault, name, b"backup", RenameMode::Replace).unwrap(),
        |vault, name| rename(vault, name, b"replaced", RenameMode::Replace).unwrap(),
        |vault, name| vault.unlink(ROOT, name).unwrap(),
    ];
    for name in [&b"x"[..], &LONG] {
        for take_away in ways {
            let (store, ann) = founded(vec![]);
            let root = store.root();
            let vault = open_as(&store, &ann).unwrap();
            let real = with(name, " (1)");
            put(&vault, name, b"the copy's only bytes").unwrap();
            let original = stored(&vault, name);
            let copied = with(&original, " (1)");
            copy(&root, &original, &copied);
            put(&vault, name, b"first").unwrap();
            assert_eq!(
                get(&vault, &real).unwrap(),
                b"the copy's only bytes",
                "the copy has the name as long as no other entry has it"
            );
            rename(&vault, &real, b"aside", RenameMode::NoReplace).unwrap();
            put(&vault, &real, b"really named so").unwrap();
            put(&vault, b"replaced", b"").unwrap();
            let aside = stored(&vault, b"aside");
            root.rename(&aside, &*root, &copied, StoreRename::NoReplace).unwrap();
            let copied = marked(&real, &copied);
            let before = names(&vault);
            assert!(before.contains(&copied));

            take_away(&vault, &real);
            assert_eq!(inode(&vault, &real), None);
            assert_eq!(
                names(&vault).intersection(&before).count(),
                before.len() - 1,
                "no other entry has another name"
            );
            assert_eq!(get(&vault, &copied).unwrap(), b"the copy's only bytes");
            put(&vault, &real, b"written anew").unwrap();
            assert_eq!(get(&vault, &real).unwrap(), b"written anew");
            assert_eq!(get(&vault, &copied).unwrap(), b"the copy's only bytes");
            // The same again, for the new file.
            take_away(&vault, &real);
            assert_eq!(
                (inode(&vault, &real), get(&vault, &copied).unwrap()),
                (None, b"the copy's only bytes".to_vec())
            );
            assert_eq!(faults(&vault), Vec::<String>::new());
            vault.close().unwrap();

            // A daemon that opens the vault again finds the copy under the free name.
            let vault = open_as(&store, &ann).unwrap();
            assert_eq!(get(&vault, &real).unwrap(), b"the copy's only bytes");
            assert_eq!(inode(&vault, &copied), None);
            vault.close().unwrap();
        }
    }
}

#[test]
fn replacing_an_entry_leaves_all_other_names_alone() {
    // The same as above, for all kinds of entries that can claim one name. After a removal another
    // entry was shown under the name, and was no longer found under the name with which it had been
    // listed.
    let epochs = Epochs::new(true);
    let all: Vec<&Vec<u8>> = epochs.keys[0][0].keys().collect();
    let mut claimed = 0;
    for seed in 0..40 {
        let random = Seeded::new(seed);
        let store = epochs.store.snapshot();
        let dir = epochs.here(&store);
        let plain: Vec<usize> = (0..3).map(|_| random.below(all.len() as u64) as usize).collect();
        for suffix in SUFFIXES {
            for (key, at) in epochs.all().flat_map(|key| plain.iter().map(move |at| (key, *at))) {
                let entry = with(&epochs.keys[key.0][key.1][all[at]], suffix);
                if random.below(6) == 0 && entry.len() <= 255 && dir.stat(&entry).is_err() {
                    drop(dir.create_file(&entry, 0o600).unwrap());
                }
            }
        }
        let vault = open_as(&store, &epochs.ann).unwrap();
        let mut expected: BTreeMap<Vec<u8>, u64> = listed_in(&vault, HERE).into_iter().collect();
        for step in 0..30 {
            if expected.is_empty() {
                break;
            }
            let name =
                expected.keys().nth(random.below(expected.len() as u64) as usize).unwrap().clone();
            let what = format!("seed {seed}, step {step}: {}", name.escape_ascii());
            let ino = expected.remove(&name).unwrap();
            if random.below(2) == 0 {
                at(&vault, HERE, |dir| vault.unlink(dir, &name)).unwrap();
            } else {
                let new = format!("moved {step}").into_bytes();
                rename(&vault, &here(&name), &here(&new), RenameMode::NoReplace).unwrap();
                expected.insert(new, ino);
            }
            assert_eq!(inode(&vault, &here(&name)), None, "{what}");
            if random.below(2) == 0 {
                put(&vault, &here(&name), b"").unwrap();
                expected.insert(name.clone(), inode(&vault, &here(&name)).unwrap());
            }
            assert_eq!(
                listed_in(&vault, HERE).into_iter().collect::<BTreeMap<_, _>>(),
                expected,
                "{what}"
            );
            for (name, ino) in &expected {
                assert_eq!(
                    inode(&vault, &here(name)),
                    Some(*ino),
                    "{what}: {}",
                    name.escape_ascii()
                );
            }
        }
        vault.close().unwrap();
        // A name that leads to another entry after reopening was claimed by several.
        let again: BTreeMap<Vec<u8>, u64> =
            listed_in(&beside(&store, &epochs.ann), HERE).into_iter().collect();
        claimed += usize::from(again != expected);
    }
    assert!(claimed > 10, "{claimed}");
}

#[test]
fn a_conflict_copy_of_a_full_length_name_is_usable() {
    // Such a copy was reported as having lost its name. The contents of a directory copied in this
    // way were looked up under an id derived from the rest of the name.
    let (store, ann) = founded(vec![]);
    let root = store.root();
    let long = vec![b'l'; 250];
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, &long).unwrap();
    put(&vault, &with(&long, "/inside"), b"inside").unwrap();
    let original = stored(&vault, &long);
    let entry = with(&original, " (conflicted copy)");
    vault.close().unwrap();
    copy(&root, &original, &entry);
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(names(&vault), set([&long, &entry]), "no room for the suffix");
    assert_eq!(faults(&vault), Vec::<String>::new());
    put(&vault, &with(&entry, "/more"), b"more").unwrap();
    rename(&vault, &entry, b"kept", RenameMode::NoReplace).unwrap();
    assert_eq!(
        (get(&vault, b"kept/inside").unwrap(), get(&vault, b"kept/more").unwrap()),
        (b"inside".to_vec(), b"more".to_vec())
    );
    assert_eq!(faults(&vault), Vec::<String>::new());
}

#[test]
fn a_name_that_a_conflict_copy_is_shown_with_is_taken() {
    // A file was created under the name of a conflict copy, to which no path led from then on.
    let (store, ann) = founded(vec![]);
    let vault = open_as(&store, &ann).unwrap();
    put(&vault, b"x", b"first").unwrap();
    let entry = stored(&vault, b"x");
    copy(&store.root(), &entry, &with(&entry, " (1)"));
    assert_eq!(
        vault.create_file(&CALLER, ROOT, b"x (1)", 0o644, READ_WRITE).unwrap_err().errno(),
        libc::EEXIST
    );
    assert_eq!(vault.mkdir(&CALLER, ROOT, b"x (1)", 0o755).unwrap_err().errno(), libc::EEXIST);
    assert_eq!(vault.symlink(&CALLER, ROOT, b"x (1)", b"x").unwrap_err().errno(), libc::EEXIST);
    assert_eq!(names(&vault), set([b"x", b"x (1)"]));
    // A rename to it replaces it, as everywhere.
    put(&vault, b"y", b"second").unwrap();
    rename(&vault, b"y", b"x (1)", RenameMode::Replace).unwrap();
    assert_eq!(names(&vault), set([b"x", b"x (1)"]));
    assert_eq!(get(&vault, b"x (1)").unwrap(), b"second");
    assert_eq!(faults(&vault), Vec::<String>::new());
}

/// A stored name opens an entry only if a listing shows the entry under that name.
#[test]
fn a_stored_name_opens_only_an_entry_listed_under_it() {
    let (store, ann) = founded(vec![]);
    let vault = open_as(&store, &ann).unwrap();
    for name in [&b"x"[..], &LONG] {
        put(&vault, name, b"").unwrap();
        let entry = stored(&vault, name);
        copy(&store.root(), &entry, &with(&entry, " (1)"));
        for other in [entry.clone(), with(&entry, " (1)"), b"+long".to_vec(), b"+share".to_vec()] {
            assert_eq!(inode(&vault, &other), None, "{}", other.escape_ascii());
        }
        // The name is free for any program.
        put(&vault, &entry, b"another").unwrap();
        assert_eq!(
            (get(&vault, &entry).unwrap(), get(&vault, name).unwrap()),
            (b"another".to_vec(), Vec::new())
        );
    }
}

#[test]
fn an_entry_whose_names_are_all_taken_gets_a_mark() {
    // An entry that has lost its long name was shown under a name that led to another entry; later
    // it was not shown at all.
    let store = alone();
    let root = store.root();
    let vault = vaults::open(store.root()).unwrap();
    put(&vault, &LONG, b"of a lost name").unwrap();
    let entry = stored(&vault, &LONG);
    put(&vault, &entry, b"named like it").unwrap();
    vault.close().unwrap();
    let (dir, file) = raw::long_name(&root, &entry);
    dir.unlink(&file).unwrap();
    let vault = vaults::open(store.root()).unwrap();
    let lost = marked(&entry, &entry);
    assert_eq!(names(&vault), set([&entry, &lost]));
    assert_eq!(get(&vault, &entry).unwrap(), b"named like it");
    assert_eq!(get(&vault, &lost).unwrap(), b"of a lost name");
    let found = vault.check(b"", &mut |_| ()).unwrap().faults;
    assert!(
        found.len() == 1 && found[0].cipher == entry && found[0].what == "has lost its long name",
        "{found:?}"
    );
    vault.repair(&found, b"run", &mut |_| true).unwrap();
    assert_eq!(faults(&vault), Vec::<String>::new());
    assert_eq!(
        get(&vault, &LONG).unwrap(),
        b"of a lost name",
        "the header of the file contains its name"
    );
    assert_eq!(get(&vault, &entry).unwrap(), b"named like it");

    // A conflict copy beside a file with its name, and an entry whose name equals a stored one.
    put(&vault, b"x", b"first").unwrap();
    let entry = with(&stored(&vault, b"x"), " (1)");
    put(&vault, b"x (1)", b"really named so").unwrap();
    put(&vault, &entry, b"named like it").unwrap();
    vault.close().unwrap();
    copy(&root, &entry[..entry.len() - 4], &entry);
    let vault = vaults::open(store.root()).unwrap();
    let copied = marked(b"x (1)", &entry);
    assert_eq!(
        names(&vault),
        set([b"x", b"x (1)", &copied, &entry, &LONG, &stored(&vault, &LONG)])
    );
    assert_eq!(get(&vault, &entry).unwrap(), b"named like it");
    assert_eq!(get(&vault, &copied).unwrap(), b"first");
    let report = vault.check(b"", &mut |_| ()).unwrap();
    assert_eq!(report.faults, []);
    let noted: Vec<&[u8]> = report.notes.iter().map(|note| &note.plain[..]).collect();
    assert_eq!(noted, [&copied[..]]);
}

#[test]
fn the_example_of_the_specification_holds() {
    let (store, ann) = founded(vec![]);
    let note = || {
        let vault = open_as(&store, &ann).unwrap();
        let noted = [b"x".to_vec(), b"x (1)".to_vec()].map(|name| stored(&vault, &name));
        vault.close().unwrap();
        noted
    };
    let [old, _] = note();
    root_share(&beside(&store, &ann)).rekey().unwrap();
    let [new, named] = note();
    let [new_one, old_one] = [&new, &old].map(|name| with(name, " (1)"));
    let expected: [(&[u8], Vec<u8>); 5] = [
        (&new, b"x".to_vec()),
        (&named, b"x (1)".to_vec()),
        (&new_one, marked(b"x (1)", &new_one)),
        (&old, marked(b"x", &old)),
        (&old_one, marked(b"x (1)", &old_one)),
    ];
    for (entry, _) in &expected {
        store.root().create_file(entry, 0o600).unwrap();
    }
    let vault = beside(&store, &ann);
    for (entry, shown) in &expected {
        assert_eq!(
            (vault.plain_path(entry).unwrap(), stored(&vault, shown)),
            (shown.clone(), entry.to_vec())
        );
    }
    assert_eq!(names(&vault), expected.iter().map(|(_, shown)| shown.clone()).collect());
}

#[test]
fn long_names_of_two_epochs_without_room_stay_distinct() {
    // Both were listed under one name, which led to the newer entry; the other one could not even
    // be removed.
    let (store, ann) = founded(vec![]);
    let root = store.root();
    let long = vec![b'l'; 250];
    let vault = open_as(&store, &ann).unwrap();
    for name in [&long[..], b"x", b"x (1)"] {
        put(&vault, name, b"of epoch 1").unwrap();
    }
    mkdir(&vault, b"d").unwrap();
    put(&vault, b"d/inside", b"of epoch 1").unwrap();
    let [old_long, old_x, old_one, old_d] =
        [&long[..], b"x", b"x (1)", b"d"].map(|name| stored(&vault, name));
    vault.close().unwrap();
    // A sync tool has made copies. All entries are put aside while those of epoch 2 are made.
    copy(&root, &old_d, &with(&old_d, " (1)"));
    copy(&root, &old_x, &with(&old_x, " (1)"));
    let aside: Vec<Vec<u8>> =
        raw::names(&*root).into_iter().filter(|name| !name.starts_with(b"+")).collect();
    for (n, name) in aside.iter().enumerate() {
        stash(&root, name, format!("+aside-{n}").as_bytes());
    }
    let vault = open_as(&store, &ann).unwrap();
    root_share(&vault).rekey().unwrap();
    for name in [&long[..], b"x", b"x (1)"] {
        put(&vault, name, b"of epoch 2").unwrap();
    }
    mkdir(&vault, b"d (1)").unwrap();
    put(&vault, b"d (1)/inside", b"of epoch 2").unwrap();
    vault.close().unwrap();
    for (n, name) in aside.iter().enumerate() {
        stash(&root, format!("+aside-{n}").as_bytes(), name);
    }
    let vault = open_as(&store, &ann).unwrap();
    let (copy_x, copy_d) = (with(&old_x, " (1)"), with(&old_d, " (1)"));
    let [old_x, old_one, copy_x, copy_d] = [
        marked(b"x", &old_x),
        marked(b"x (1)", &old_one),
        marked(b"x (1)", &copy_x),
        marked(b"d (1)", &copy_d),
    ];
    let shown = [
        (&long[..], &b"of epoch 2"[..]),
        (&old_long, b"of epoch 1"),
        (b"x", b"of epoch 2"),
        (&old_x, b"of epoch 1"),
        (b"x (1)", b"of epoch 2"),
        (&old_one, b"of epoch 1"),
        (&copy_x, b"of epoch 1"),
    ];
    let files: BTreeSet<Vec<u8>> = shown.iter().map(|(name, _)| name.to_vec()).collect();
    let dirs = set([b"d", b"d (1)", &copy_d]);
    assert_eq!(names(&vault), &files | &dirs);
    for (name, bytes) in shown {
        assert_eq!(get(&vault, name).unwrap(), bytes, "{}", name.escape_ascii());
    }
    for (name, bytes) in
        [(&b"d"[..], b"of epoch 1"), (b"d (1)", b"of epoch 2"), (&copy_d, b"of epoch 1")]
    {
        assert_eq!(get(&vault, &with(name, "/inside")).unwrap(), bytes, "{}", name.escape_ascii());
    }
    assert_eq!(faults(&vault), Vec::<String>::new());
    // A pass reseals the names that it can, and reports the others. What is shown does not change.
    let left = vault.reseal(b"", true, &mut quiet()).unwrap();
    assert_eq!((left.is_done(true), left.skipped, left.conflicts), (true, 0, 5), "{left:?}");
    assert_eq!(names(&vault), &files | &dirs);
    assert_eq!(get(&vault, &with(&copy_d, "/inside")).unwrap(), b"of epoch 1");
    for (n, name) in [&old_long, &old_x, &copy_x, &copy_d, &old_one].into_iter().enumerate() {
        rename(&vault, name, format!("settled {n}").as_bytes(), RenameMode::NoReplace).unwrap();
    }
    assert_eq!(vault.pending(b"", &mut quiet()).unwrap().conflicts, 0);
    assert_eq!(
        (get(&vault, b"settled 0").unwrap(), get(&vault, b"settled 3/inside").unwrap()),
        (b"of epoch 1".to_vec(), b"of epoch 1".to_vec())
    );
    assert_eq!(faults(&vault), Vec::<String>::new());
}

#[test]
fn a_name_resolves_to_nothing_while_its_owner_is_unknown() {
    // When the store failed to report whether a newer entry of the name exists, an older one was
    // used.
    let (store, ann) = founded(vec![]);
    let (root, mut entries) = (store.root(), Vec::new());
    for epoch in 1..=3 {
        let vault = open_as(&store, &ann).unwrap();
        entries.push(stored(&vault, b"x"));
        if epoch < 3 {
            root_share(&vault).rekey().unwrap();
        }
        vault.close().unwrap();
    }
    for old in &entries[..2] {
        root.create_file(old, 0o600).unwrap();
    }
    let plan = FaultPlan::new();
    let vault = Vault::open(
        FaultStore::wrap(root.clone(), plan.clone()),
        &ann,
        trusting(true, LockMode::None),
    )
    .unwrap();
    plan.reset();
    let attr = vault.lookup(ROOT, b"x").unwrap();
    assert_eq!(attr.ino, root.stat(&entries[1]).unwrap().ino);
    let calls = plan.count(Calls::Of(Call::Stat));
    vault.forget(attr.node, 1);
    for nth in 1..=calls {
        plan.reset();
        plan.add(Fault {
            calls: Calls::Of(Call::Stat),
            when: When::Nth(nth),
            errno: libc::EIO,
            short: false,
        });
        match vault.lookup(ROOT, b"x") {
            Ok(other) => {
                assert_eq!(other.ino, attr.ino);
                vault.forget(other.node, 1);
            }
            Err(error) => assert_eq!(error.errno(), libc::EIO),
        }
        plan.heal();
    }
}

#[test]
fn a_listing_of_ordinary_names_asks_the_store_for_nothing_more() {
    // A directory of a million entries is listed; each stat of the store would be one more system
    // call, or one more round trip to a server.
    let (store, ann) = founded(vec![]);
    let vault = open_as(&store, &ann).unwrap();
    const COUNT: u64 = 100;
    for n in 0..COUNT {
        put(&vault, format!("name (really) {n} (1)").as_bytes(), b"").unwrap();
    }
    vault.close().unwrap();
    let stats = || {
        let plan = FaultPlan::new();
        let vault = Vault::open(
            FaultStore::wrap(store.root(), plan.clone()),
            &ann,
            trusting(true, LockMode::None),
        )
        .unwrap();
        plan.reset();
        assert_eq!(listed(&vault).len() as u64, COUNT);
        plan.count(Calls::Of(Call::Stat))
    };
    let few = stats();
    assert!(few < 5, "{few}");
    root_share(&beside(&store, &ann)).rekey().unwrap();
    let now = stats();
    assert!(
        now <= COUNT + few,
        "more than one for each entry, to see whether a newer one has the name: {now}"
    );
}

#[test]
fn a_directory_without_its_long_name_is_usable() {
    // Every operation in such a directory failed with EIO. In an earlier version, entries were
    // created under an id that was derived from the stored name, and could not be read once the long
    // name was back.
    let (store, ann) = founded(vec![]);
    let root = store.root();
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, &LONG).unwrap();
    put(&vault, &with(&LONG, "/inside"), b"inside").unwrap();
    let entry = stored(&vault, &LONG);
    vault.close().unwrap();
    let (dir, file) = raw::long_name(&root, &entry);
    let late = || dir.rename(&file, &*root, b"+late", StoreRename::NoReplace).unwrap();
    late();
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(names(&vault), set([&entry]));
    assert_eq!(get(&vault, &with(&entry, "/inside")).unwrap(), b"inside");
    put(&vault, &with(&entry, "/new"), b"new").unwrap();
    root.rename(b"+late", &*dir, &file, StoreRename::NoReplace).unwrap();
    assert_eq!(names(&vault), set([&LONG]));
    assert_eq!(get(&vault, &with(&LONG, "/inside")).unwrap(), b"inside");
    assert_eq!(get(&vault, &with(&LONG, "/new")).unwrap(), b"new");
    assert_eq!(faults(&vault), Vec::<String>::new());
    vault.close().unwrap();
    late();
    let vault = open_as(&store, &ann).unwrap();
    rename(&vault, &entry, b"renamed", RenameMode::NoReplace).unwrap();
    assert_eq!(get(&vault, b"renamed/inside").unwrap(), b"inside");
    assert_eq!(get(&vault, b"renamed/new").unwrap(), b"new");
    let handle = at(&vault, b"renamed", |dir| vault.open_dir(dir)).unwrap();
    let all = vault.read_dir(handle, 0, 4096).unwrap();
    assert_eq!(all.iter().filter(|entry| entry.name.contains(&b'(')).count(), 0);
    vault.release_dir(handle);
}

#[test]
fn a_former_members_files_stay_valid_in_a_nameless_directory() {
    // The name arrives late, after the member who wrote there was removed.
    let (store, ann, bob) = with_bob();
    let root = store.root();
    let vault = open_as(&store, &bob).unwrap();
    mkdir(&vault, &LONG).unwrap();
    put(&vault, &with(&LONG, "/inside"), b"by Bob").unwrap();
    let entry = stored(&vault, &LONG);
    vault.close().unwrap();
    let (dir, file) = raw::long_name(&root, &entry);
    let hidden = raw::read(&*dir, &file);
    dir.unlink(&file).unwrap();
    let mut unread = 0;
    root_share(&beside(&store, &ann))
        .remove(&[key(&bob)], &mut |progress| unread = progress.unread)
        .unwrap();
    assert_eq!(unread, 0, "some of it could not be read");
    raw::write(&*dir, &file, &hidden);
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(get(&vault, &with(&LONG, "/inside")).unwrap(), b"by Bob");
}

#[test]
fn a_file_without_its_long_name_keeps_the_name_in_its_header() {
    // A check can restore a lost long name from the header of the file. A write to the file replaced
    // that name by the stored one.
    let store = alone();
    let vault = vaults::open(store.root()).unwrap();
    put(&vault, &LONG, b"before").unwrap();
    let entry = stored(&vault, &LONG);
    vault.close().unwrap();
    let (dir, file) = raw::long_name(&store.root(), &entry);
    dir.unlink(&file).unwrap();
    let vault = vaults::open(store.root()).unwrap();
    write_at(&vault, &entry, 0, b"changed").unwrap();
    let found = vault.check(b"", &mut |_| ()).unwrap().faults;
    assert_eq!(found.len(), 1);
    vault.repair(&found, b"run", &mut |_| true).unwrap();
    assert_eq!(get(&vault, &LONG).unwrap(), b"changed");
    assert_eq!(faults(&vault), Vec::<String>::new());
}

#[test]
fn removing_a_copy_of_a_share_keeps_the_original_reachable() {
    // A sync tool's copy of a nested share has the junction of the original: when the copy was
    // renamed or removed, that junction was removed.
    for is_renamed in [false, true] {
        let (store, ann) = founded(vec![]);
        let root = store.root();
        let vault = open_as(&store, &ann).unwrap();
        mkdir(&vault, b"projects").unwrap();
        vault
            .create_share(
                b"projects",
                &CreateShare { isolated: false, name: "Ann".into(), others: vec![] },
                &mut quiet(),
            )
            .unwrap();
        let entry = stored(&vault, b"projects");
        vault.close().unwrap();
        copy(&root, &entry, &with(&entry, " (1)"));
        let vault = open_as(&store, &ann).unwrap();
        if is_renamed {
            rename(&vault, b"projects (1)", b"others", RenameMode::NoReplace).unwrap();
        } else {
            vault.rmdir(ROOT, b"projects (1)").unwrap();
        }
        put(&vault, b"projects/file", b"of the share").unwrap();
        vault.close().unwrap();
        let vault = open_as(&store, &ann).unwrap();
        assert_eq!(get(&vault, b"projects/file").unwrap(), b"of the share");
    }
}

/// A directory was renamed again and again, with a file created in it under each name. Each time all
/// records of the renames before were read again, so the work grew with the square of the renames.
#[test]
fn evidence_of_former_renames_is_read_once() {
    let opened = |renames: usize| {
        let store = alone();
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        mkdir(&vault, b"0").unwrap();
        for n in 0..renames {
            let (from, to) = (n.to_string(), (n + 1).to_string());
            put(&vault, format!("{from}/file {n}").as_bytes(), b"").unwrap();
            rename(&vault, from.as_bytes(), to.as_bytes(), RenameMode::NoReplace).unwrap();
        }
        let opened = plan.count(Calls::Of(Call::OpenFile));
        vault.close().unwrap();
        opened
    };
    let (few, many) = (opened(20), opened(80));
    assert!(many < 6 * few, "{few} files were opened for 20 renames, and {many} for 80");
}
