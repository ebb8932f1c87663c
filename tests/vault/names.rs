//! Which name an entry is shown with, and which entry a name leads to: the same, whatever stands in
//! a directory of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kithfs::crypto::Suite;
use kithfs::roster::Identity;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Call, Dir, RenameMode as StoreRename};
use kithfs::vault::{CreateShare, LockMode, ROOT, RenameMode, Vault};

use crate::support::members::{
    beside, founded, key, open_as, quiet, root_share, trusting, with_bob,
};
use crate::support::raw;
use crate::support::vaults::{
    self, CALLER, READ_WRITE, Seeded, at, faults, get, mkdir, put, rename, write_at,
};

const LONG: [u8; 190] = [b'l'; 190];

fn with(name: &[u8], suffix: &str) -> Vec<u8> {
    [name, suffix.as_bytes()].concat()
}

/// A vault of one person, in which a repair may restore names.
fn alone() -> MemStore {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 14);
    store
}

/// Names that a listing of the root shows, with the inodes of the entries that it gives.
fn listed(vault: &Vault) -> Vec<(Vec<u8>, u64)> {
    let handle = vault.open_dir(ROOT).unwrap();
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

/// The inode to which a name in the root leads.
fn inode(vault: &Vault, name: &[u8]) -> Option<u64> {
    match vault.lookup(ROOT, name) {
        Ok(attr) => {
            vault.forget(attr.node, 1);
            Some(attr.ino)
        }
        Err(error) if error.errno() == libc::ENOENT => None,
        Err(error) => panic!("{}: {error}", name.escape_ascii()),
    }
}

/// The stored name of an entry of the root, or that which a new one would have.
fn stored(vault: &Vault, name: &[u8]) -> Vec<u8> {
    vault.cipher_path(name).unwrap()
}

/// A sync tool copies a file or a directory with what is in it.
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

/// Vaults whose names are under several folder keys, and what names are stored as under each of
/// them.
struct Epochs {
    store: MemStore,
    ann: Identity,
    /// For each key the stored names of plain ones.
    keys: Vec<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Which of them is the current one.
    current: usize,
}

/// What sync tools append, and whether it is known to be such.
const SUFFIXES: [(&str, bool); 11] = [
    ("", true),
    (" (1)", true),
    (" (2)", true),
    (".sync-conflict-1", true),
    (" (Ann's conflicted copy)", true),
    (" (conflict, epoch 1)", true),
    (" (conflict, epoch 2)", true),
    (".sync-conflict-1 (1)", true),
    (" (conflict, epoch 1) (1)", true),
    (" (1) (conflict, epoch 2)", true),
    (" (1) (1)", false),
];

impl Epochs {
    /// Names that collide with each other's conflict copies and with what older ones are shown as,
    /// and some that only just have room.
    fn plain() -> Vec<Vec<u8>> {
        let mut all = vec![
            b"x".to_vec(),
            LONG.to_vec(),
            vec![b's'; 183],
            vec![b'm'; 251],
            vec![b'f'; 234],
            vec![b'f'; 235],
        ];
        for (suffix, _) in SUFFIXES {
            all.extend([
                with(b"x", suffix),
                with(&LONG, suffix),
                with(&[b's'; 170], suffix),
                with(&[b'f'; 210], suffix),
            ]);
        }
        all.sort();
        all.dedup();
        all
    }

    /// Stored names of `plain` in the root under the current key. The sealed long names stay there;
    /// no entry does.
    fn note(store: &MemStore, ann: &Identity, plain: &[Vec<u8>]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let vault = open_as(store, ann).unwrap();
        let mut all = BTreeMap::new();
        for name in plain {
            if name.len() > 183 {
                put(&vault, name, b"").unwrap();
            }
            all.insert(name.clone(), stored(&vault, name));
        }
        vault.close().unwrap();
        for (_, stored) in all.iter().filter(|(name, _)| name.len() > 183) {
            store.root().unlink(stored).unwrap();
        }
        all
    }

    /// Under the key of epoch 1, two keys of epoch 2 on the two sides of a fork, and, where that is
    /// settled, the key of epoch 3.
    fn new(is_settled: bool) -> Epochs {
        let (store, ann) = founded(vec![]);
        let mut plain = Self::plain();
        let first = Self::note(&store, &ann, &plain);
        // Names that look like stored ones of this directory.
        for name in [b"x".to_vec(), LONG.to_vec()] {
            plain.extend([first[&name].clone(), with(&first[&name], " (1)")]);
        }
        let mut keys = vec![Self::note(&store, &ann, &plain)];
        let apart = store.snapshot();
        let mut heads = Vec::new();
        for side in [&store, &apart] {
            heads.push(root_share(&beside(side, &ann)).rekey().unwrap().hash);
            keys.push(Self::note(side, &ann, &plain));
        }
        raw::merge(&*apart.root(), &*store.root());
        for sidecar in raw::named(&*apart.root(), b"+name-") {
            raw::write(&*store.root(), &sidecar, &raw::read(&*apart.root(), &sidecar));
        }
        if is_settled {
            root_share(&beside(&store, &ann)).settle(&heads[1], &[]).unwrap();
            keys.push(Self::note(&store, &ann, &plain));
            return Epochs { store, ann, keys, current: 3 };
        }
        let vault = beside(&store, &ann);
        let current = (1..3)
            .find(|at| keys[*at][&b"x"[..]] == stored(&vault, b"x"))
            .expect("one of the two sides");
        drop(vault);
        Epochs { store, ann, keys, current }
    }
}

#[test]
fn every_entry_is_listed_once_under_a_name_that_opens_it() {
    // A listing showed one name for two entries, of which only one was found under it: that of a
    // conflict copy and of a file that was really named so, of copies under two folder keys, of an
    // older name that had no room for what would have told it from the newer one.
    let (mut seen_stored, mut seen_beside, mut seen_hidden) = (0, 0, 0);
    for epochs in [Epochs::new(false), Epochs::new(true)] {
        let all: Vec<&Vec<u8>> = epochs.keys[0].keys().collect();
        for seed in 0..150 {
            let random = Seeded::new(seed);
            let store = epochs.store.snapshot();
            let root = store.root();
            // A few names and suffixes with everything that they can make, so that much collides.
            let pick = |n: usize| {
                (0..n).map(|_| random.below(all.len() as u64) as usize).collect::<Vec<_>>()
            };
            let plain = pick(3 + random.below(8) as usize);
            let mut made: BTreeMap<Vec<u8>, (usize, Vec<u8>, &str, bool)> = BTreeMap::new();
            for (suffix, is_known) in SUFFIXES {
                if random.below(2) == 0 {
                    continue;
                }
                for (key, at) in
                    (0..epochs.keys.len()).flat_map(|key| plain.iter().map(move |at| (key, *at)))
                {
                    let entry = with(&epochs.keys[key][all[at]], suffix);
                    if random.below(3) > 0 && entry.len() <= 255 && !made.contains_key(&entry) {
                        if random.below(4) == 0 {
                            root.mkdir(&entry, 0o755).unwrap()
                        } else {
                            drop(root.create_file(&entry, 0o600).unwrap())
                        }
                        made.insert(entry, (key, all[at].clone(), suffix, is_known));
                    }
                }
            }
            let mut lost = BTreeSet::new();
            for sidecar in raw::named(&*root, b"+name-") {
                if random.below(5) == 0 {
                    root.unlink(&sidecar).unwrap();
                    lost.insert([b"=", &sidecar[6..]].concat());
                }
            }

            let vault = beside(&store, &epochs.ann);
            let what = format!("seed {seed}, current {}", epochs.current);
            let listed = listed(&vault);
            let by_name: BTreeMap<&[u8], u64> =
                listed.iter().map(|(name, ino)| (&name[..], *ino)).collect();
            assert_eq!(by_name.len(), listed.len(), "{what}: a name is listed twice");
            let mut shown = 0;
            for (entry, (key, name, suffix, is_known)) in &made {
                let ino = root.stat(entry).unwrap().ino;
                let names: Vec<&[u8]> = by_name
                    .iter()
                    .filter(|(_, other)| **other == ino)
                    .map(|(name, _)| *name)
                    .collect();
                let what = format!(
                    "{what}: {} ({key}, {}{suffix})",
                    entry.escape_ascii(),
                    name.escape_ascii()
                );
                if !is_known {
                    assert_eq!(names, Vec::<&[u8]>::new(), "{what}: is foreign");
                    continue;
                }
                let is_lost = lost.contains(&entry[..entry.len() - suffix.len()]);
                let Some(name) = names.first() else {
                    // Only where an entry is really named as this one is stored.
                    let other =
                        inode(&vault, entry).unwrap_or_else(|| panic!("{what}: is not listed"));
                    assert!(other != ino && by_name[&entry[..]] == other, "{what}: is not listed");
                    seen_hidden += 1;
                    continue;
                };
                assert_eq!(names.len(), 1, "{what}");
                shown += 1;
                assert_eq!(
                    inode(&vault, name),
                    Some(ino),
                    "{what}: shown as {}",
                    name.escape_ascii()
                );
                assert_eq!(stored(&vault, name), *entry, "{what}");
                assert_eq!(vault.plain_path(entry).unwrap(), *name, "{what}");
                let sealed = [&all[0][..0], &made[entry].1, suffix.as_bytes()].concat();
                if *key == epochs.current && suffix.is_empty() && !is_lost {
                    assert_eq!(*name, &sealed[..], "{what}");
                } else if *name == &entry[..] {
                    seen_stored += usize::from(!is_lost);
                } else if *name != &sealed[..] {
                    assert!(
                        !is_lost && name.starts_with(&sealed),
                        "{what}: {}",
                        name.escape_ascii()
                    );
                    seen_beside += 1;
                }
                // What is not listed is not found, but for a long name that is lost: its hash says
                // whose it is.
                let number = [1, 2, 2, 3][*key];
                for other in [
                    sealed.clone(),
                    with(&sealed, &format!(" (conflict, epoch {number})")),
                    entry.clone(),
                ] {
                    if other.len() <= 255 && !by_name.contains_key(&other[..]) {
                        let found = inode(&vault, &other);
                        let is_of_lost =
                            || lost.iter().any(|lost| stored(&vault, &other).starts_with(lost));
                        assert!(
                            found.is_none() || is_of_lost(),
                            "{what}: {} is found",
                            other.escape_ascii()
                        );
                    }
                }
            }
            assert_eq!(shown, listed.len(), "{what}");
        }
    }
    // That the cases are among them.
    assert!(
        seen_stored > 100 && seen_beside > 100 && seen_hidden > 0,
        "{seen_stored} {seen_beside} {seen_hidden}"
    );
}

#[test]
fn a_conflict_copy_beside_its_original_works_like_any_file() {
    // The copy was shown under the name of the other entry, which was what every path with that
    // name led to: it could be neither read nor removed, and what a directory copied so held was
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

        // Copies of both once more, of which one is removed and the other gets the name when that
        // is free.
        copy(&root, &file[..file.len() - 4], &file);
        copy(&root, &folder[..folder.len() - 4], &folder);
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
    // A program renamed a file to keep it as a backup and wrote a new one of its name, into the
    // conflict copy beside it, which had got the name meanwhile: what was only there was lost.
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
                "as long as nothing has the name"
            );
            rename(&vault, &real, b"aside", RenameMode::NoReplace).unwrap();
            put(&vault, &real, b"really named so").unwrap();
            put(&vault, b"replaced", b"").unwrap();
            let aside = stored(&vault, b"aside");
            root.rename(&aside, &*root, &copied, StoreRename::NoReplace).unwrap();
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
            // And once more, for what was made anew.
            take_away(&vault, &real);
            assert_eq!(
                (inode(&vault, &real), get(&vault, &copied).unwrap()),
                (None, b"the copy's only bytes".to_vec())
            );
            assert_eq!(faults(&vault), Vec::<String>::new());
            vault.close().unwrap();

            // Whoever opens the vault anew finds the copy under the name that is free.
            let vault = open_as(&store, &ann).unwrap();
            assert_eq!(get(&vault, &real).unwrap(), b"the copy's only bytes");
            assert_eq!(inode(&vault, &copied), None);
            vault.close().unwrap();
        }
    }
}

#[test]
fn replacing_an_entry_leaves_all_other_names_alone() {
    // The same as above, for all kinds of entries that can claim one name: after a removal another
    // entry was shown under the name, and found under the one that it was shown with no longer, so
    // that who went through a listing did not find it.
    let epochs = Epochs::new(true);
    let all: Vec<&Vec<u8>> = epochs.keys[0].keys().collect();
    let mut claimed = 0;
    for seed in 0..40 {
        let random = Seeded::new(seed);
        let store = epochs.store.snapshot();
        let root = store.root();
        let plain: Vec<usize> = (0..3).map(|_| random.below(all.len() as u64) as usize).collect();
        for (suffix, _) in SUFFIXES.iter().filter(|(_, is_known)| *is_known) {
            for (key, at) in
                (0..epochs.keys.len()).flat_map(|key| plain.iter().map(move |at| (key, *at)))
            {
                let entry = with(&epochs.keys[key][all[at]], suffix);
                if random.below(3) > 0 && entry.len() <= 255 && root.stat(&entry).is_err() {
                    drop(root.create_file(&entry, 0o600).unwrap());
                }
            }
        }
        let vault = open_as(&store, &epochs.ann).unwrap();
        let mut expected: BTreeMap<Vec<u8>, u64> = listed(&vault).into_iter().collect();
        for step in 0..30 {
            if expected.is_empty() {
                break;
            }
            let name =
                expected.keys().nth(random.below(expected.len() as u64) as usize).unwrap().clone();
            let what = format!("seed {seed}, step {step}: {}", name.escape_ascii());
            let ino = expected.remove(&name).unwrap();
            if random.below(2) == 0 {
                vault.unlink(ROOT, &name).unwrap();
            } else {
                let new = format!("moved {step}").into_bytes();
                rename(&vault, &name, &new, RenameMode::NoReplace).unwrap();
                expected.insert(new, ino);
            }
            assert_eq!(inode(&vault, &name), None, "{what}");
            if random.below(2) == 0 {
                put(&vault, &name, b"").unwrap();
                expected.insert(name.clone(), inode(&vault, &name).unwrap());
            }
            assert_eq!(listed(&vault).into_iter().collect::<BTreeMap<_, _>>(), expected, "{what}");
            for (name, ino) in &expected {
                assert_eq!(inode(&vault, name), Some(*ino), "{what}: {}", name.escape_ascii());
            }
        }
        vault.close().unwrap();
        // What has another name for who opens it anew was claimed by several.
        let again: BTreeMap<Vec<u8>, u64> =
            listed(&beside(&store, &epochs.ann)).into_iter().collect();
        claimed += usize::from(again != expected);
    }
    assert!(claimed > 10, "{claimed}");
}

#[test]
fn a_conflict_copy_of_a_full_length_name_is_usable() {
    // Such a copy was said to have lost its name, and what was in a directory copied so was sought
    // under an id that followed from what was left of it.
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
    assert_eq!(names(&vault), set([&long, &entry]));
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
    // A file was made under the name of a conflict copy, which no path led to from then on.
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
    // What is renamed to it takes its place, as everywhere.
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
        for other in [
            entry.clone(),
            with(&entry, " (1)"),
            [b"+name-", &entry[1..]].concat(),
            b"+share".to_vec(),
        ] {
            assert_eq!(inode(&vault, &other), None, "{}", other.escape_ascii());
        }
        // It is free for whoever wants to use it.
        put(&vault, &entry, b"another").unwrap();
        assert_eq!(
            (get(&vault, &entry).unwrap(), get(&vault, name).unwrap()),
            (b"another".to_vec(), Vec::new())
        );
    }
}

#[test]
fn an_entry_with_no_free_name_is_reported_and_recovered() {
    // An entry that has lost its long name was shown under a name that led to another one.
    let store = alone();
    let root = store.root();
    let vault = vaults::open(store.root()).unwrap();
    put(&vault, &LONG, b"of a lost name").unwrap();
    let entry = stored(&vault, &LONG);
    put(&vault, &entry, b"named like it").unwrap();
    vault.close().unwrap();
    root.unlink(&[b"+name-", &entry[1..]].concat()).unwrap();
    let vault = vaults::open(store.root()).unwrap();
    let handle = vault.open_dir(ROOT).unwrap();
    let all = vault.read_dir(handle, 0, 4096).unwrap();
    assert_eq!(all.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), [&entry[..]]);
    assert!(vault.misses_entries(handle), "who copies the directory is told");
    vault.release_dir(handle);
    assert_eq!(get(&vault, &entry).unwrap(), b"named like it");
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
        "its own header says what it was named"
    );
    assert_eq!(get(&vault, &entry).unwrap(), b"named like it");

    // A conflict copy beside a file of its name, and one that is named as it is stored.
    put(&vault, b"x", b"first").unwrap();
    let entry = with(&stored(&vault, b"x"), " (1)");
    put(&vault, b"x (1)", b"really named so").unwrap();
    put(&vault, &entry, b"named like it").unwrap();
    vault.close().unwrap();
    copy(&root, &entry[..entry.len() - 4], &entry);
    let vault = vaults::open(store.root()).unwrap();
    assert_eq!(
        names(&vault),
        set([
            b"x",
            b"x (1)",
            &entry,
            &LONG,
            &with(b"=", std::str::from_utf8(&stored(&vault, &LONG)[1..]).unwrap())
        ])
    );
    assert_eq!(get(&vault, &entry).unwrap(), b"named like it");
    let found = vault.check(b"", &mut |_| ()).unwrap().faults;
    assert!(
        found.len() == 1
            && found[0].cipher == entry
            && found[0].what.contains("other entries have its names"),
        "{found:?}"
    );
    vault.repair(&found, b"run", &mut |_| true).unwrap();
    assert_eq!(faults(&vault), Vec::<String>::new());
    assert_eq!(get(&vault, b"lost+found/run/x").unwrap(), b"first");
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
    let expected: [(Vec<u8>, &[u8]); 5] = [
        (new.clone(), b"x"),
        (named, b"x (1)"),
        (with(&new, " (1)"), &with(&new, " (1)")),
        (old.clone(), b"x (conflict, epoch 1)"),
        (with(&old, " (1)"), b"x (1) (conflict, epoch 1)"),
    ];
    for (entry, _) in &expected {
        store.root().create_file(entry, 0o600).unwrap();
    }
    let vault = beside(&store, &ann);
    for (entry, shown) in &expected {
        assert_eq!(
            (vault.plain_path(entry).unwrap(), stored(&vault, shown)),
            (shown.to_vec(), entry.clone())
        );
    }
    assert_eq!(names(&vault), expected.iter().map(|(_, shown)| shown.to_vec()).collect());
}

#[test]
fn long_names_of_two_epochs_without_room_stay_distinct() {
    // Both were listed under one name, of which the newer entry was found; the other could not even
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
    // A sync tool's copies, some of copies, come with them.
    copy(&root, &old_d, &with(&old_d, " (1)"));
    copy(&root, &old_x, &with(&old_x, " (1)"));
    let aside: Vec<Vec<u8>> =
        raw::names(&*root).into_iter().filter(|name| !name.starts_with(b"+")).collect();
    let sidecar = [b"+name-", &old_long[1..]].concat();
    for (n, name) in aside.iter().chain([&sidecar]).enumerate() {
        stash(&root, name, format!("+aside-{n}").as_bytes());
    }
    let vault = open_as(&store, &ann).unwrap();
    root_share(&vault).rekey().unwrap();
    for name in [&long[..], b"x", b"x (1)", b"x (conflict, epoch 1)"] {
        put(&vault, name, b"of epoch 2").unwrap();
    }
    mkdir(&vault, b"d (1)").unwrap();
    put(&vault, b"d (1)/inside", b"of epoch 2").unwrap();
    mkdir(&vault, b"d (1) (conflict, epoch 1)").unwrap();
    vault.close().unwrap();
    for (n, name) in aside.iter().chain([&sidecar]).enumerate() {
        stash(&root, format!("+aside-{n}").as_bytes(), name);
    }
    let vault = open_as(&store, &ann).unwrap();
    let (copy_x, copy_d) = (with(&old_x, " (1)"), with(&old_d, " (1)"));
    // Of two older entries for which the name with the epoch is the next one has it the one that
    // was named so.
    let shown = [
        (&long[..], &b"of epoch 2"[..]),
        (&old_long, b"of epoch 1"),
        (b"x", b"of epoch 2"),
        (&old_x, b"of epoch 1"),
        (b"x (1)", b"of epoch 2"),
        (b"x (1) (conflict, epoch 1)", b"of epoch 1"),
        (&copy_x, b"of epoch 1"),
        (b"x (conflict, epoch 1)", b"of epoch 2"),
    ];
    let files: BTreeSet<Vec<u8>> = shown.iter().map(|(name, _)| name.to_vec()).collect();
    let dirs = set([b"d", b"d (1)", b"d (1) (conflict, epoch 1)", &copy_d]);
    assert_eq!(names(&vault), &files | &dirs);
    assert_eq!(stored(&vault, b"x (1) (conflict, epoch 1)"), old_one);
    for (name, bytes) in shown {
        assert_eq!(get(&vault, name).unwrap(), bytes, "{}", name.escape_ascii());
    }
    for (name, bytes) in
        [(&b"d"[..], b"of epoch 1"), (b"d (1)", b"of epoch 2"), (&copy_d, b"of epoch 1")]
    {
        assert_eq!(get(&vault, &with(name, "/inside")).unwrap(), bytes, "{}", name.escape_ascii());
    }
    assert_eq!(faults(&vault), Vec::<String>::new());
    // A pass seals what can have its name anew, and tells of the others; nothing is shown otherwise
    // than before.
    let left = vault.reseal(b"", true, &mut quiet()).unwrap();
    assert_eq!((left.is_done(true), left.skipped, left.conflicts), (true, 0, 5), "{left:?}");
    assert_eq!(names(&vault), &files | &dirs);
    assert_eq!(get(&vault, &with(&copy_d, "/inside")).unwrap(), b"of epoch 1");
    for (n, name) in [&old_long, &old_x, &copy_x, &copy_d, &b"x (1) (conflict, epoch 1)".to_vec()]
        .into_iter()
        .enumerate()
    {
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
    // Where the store failed to say whether a newer entry of the name is there, an older one was
    // taken for it.
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
    // A directory of a million entries is listed; each stat of the store is one more system call
    // then, or one more trip to a server.
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
        "one for each, which tells whether a newer one has the name: {now}"
    );
}

#[test]
fn a_directory_without_its_long_name_uses_no_wrong_id() {
    // The sealed name had not come yet. What was put into the directory meanwhile was sealed for an
    // id that followed from what is left of the name, and could not be read when that was there; a
    // directory that was renamed kept this id for ever.
    let (store, ann) = founded(vec![]);
    let root = store.root();
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, &LONG).unwrap();
    put(&vault, &with(&LONG, "/inside"), b"inside").unwrap();
    let entry = stored(&vault, &LONG);
    let sidecar = [b"+name-", &entry[1..]].concat();
    vault.close().unwrap();
    stash(&root, &sidecar, b"+late");
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(names(&vault), set([&entry]));
    let refused = |outcome: Result<(), kithfs::vault::Error>| {
        assert_eq!(outcome.unwrap_err().errno(), libc::EIO)
    };
    refused(put(&vault, &with(&entry, "/new"), b"new"));
    refused(rename(&vault, &entry, b"renamed", RenameMode::NoReplace));
    stash(&root, b"+late", &sidecar);
    assert_eq!(get(&vault, &with(&LONG, "/inside")).unwrap(), b"inside");
    put(&vault, &with(&LONG, "/new"), b"new").unwrap();
    rename(&vault, &LONG, b"renamed", RenameMode::NoReplace).unwrap();
    assert_eq!(get(&vault, b"renamed/inside").unwrap(), b"inside");
    assert_eq!(faults(&vault), Vec::<String>::new());
}

#[test]
fn a_former_members_files_stay_valid_in_a_nameless_directory() {
    // Whose name comes late, after who wrote there was removed.
    let (store, ann, bob) = with_bob();
    let root = store.root();
    let vault = open_as(&store, &bob).unwrap();
    mkdir(&vault, &LONG).unwrap();
    put(&vault, &with(&LONG, "/inside"), b"by Bob").unwrap();
    let sidecar = [b"+name-", &stored(&vault, &LONG)[1..]].concat();
    vault.close().unwrap();
    let hidden = raw::read(&*root, &sidecar);
    root.unlink(&sidecar).unwrap();
    let mut unread = 0;
    root_share(&beside(&store, &ann))
        .remove(&[key(&bob)], &mut |progress| unread = progress.unread)
        .unwrap();
    assert_eq!(unread, 1, "it is told that there may be more");
    raw::write(&*root, &sidecar, &hidden);
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(get(&vault, &with(&LONG, "/inside")).unwrap(), b"by Bob");
}

#[test]
fn a_file_without_its_long_name_keeps_the_name_in_its_header() {
    // The name in its header, by which a check restores it, was replaced by what was left of the
    // name.
    let store = alone();
    let vault = vaults::open(store.root()).unwrap();
    put(&vault, &LONG, b"before").unwrap();
    let entry = stored(&vault, &LONG);
    vault.close().unwrap();
    store.root().unlink(&[b"+name-", &entry[1..]].concat()).unwrap();
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
    // A sync tool's copy of a nested share has the place of the original: with the copy, renamed or
    // removed, went the junction of both.
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
