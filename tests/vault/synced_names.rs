//! Two machines with a copy of one vault each, and a sync tool between them: no file becomes
//! unreachable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kithfs::crypto::Suite;
use kithfs::store::mem::MemStore;
use kithfs::store::{Dir, Kind};
use kithfs::vault::{RenameMode, Vault};

use crate::support::raw;
use crate::support::vaults::{self, Item, at, faults, get, mkdir, put, rename, tree};

/// Stored paths of the files of a store, with their contents; directories end with a slash.
type Image = BTreeMap<Vec<u8>, Vec<u8>>;

fn image(dir: &dyn Dir) -> Image {
    fn below(dir: &dyn Dir, at: &[u8], all: &mut Image) {
        for name in raw::names(dir) {
            let path = [at, &name].concat();
            // A machine's own files are in the tool's list of exclusions.
            if [&b"+lock"[..], b"+journal", b"+created"].iter().any(|own| path.starts_with(own)) {
                continue;
            }
            if dir.stat(&name).unwrap().kind == Kind::Dir {
                let path = [&path[..], b"/"].concat();
                below(&*dir.open_dir(&name).unwrap(), &path, all);
                all.insert(path, Vec::new());
            } else {
                all.insert(path, raw::read(dir, &name));
            }
        }
    }
    let mut all = Image::new();
    below(dir, b"", &mut all);
    all
}

/// Makes a store equal to an image, as a sync tool does that compares files. Removes the deepest
/// paths first.
fn bring(root: &Arc<dyn Dir>, wanted: &Image) {
    let there = image(&**root);
    for path in there.keys().rev().filter(|path| !wanted.contains_key(*path)) {
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let (above, name) = vaults::split(path);
        let dir = raw::beneath(root, above);
        // A directory that still has contents is not removed.
        let _ = dir.unlink(name).or_else(|_| dir.rmdir(name));
    }
    for (path, bytes) in wanted {
        let mut dir = root.clone();
        let mut parts = path.split(|b| *b == b'/').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                if !part.is_empty() && there.get(path) != Some(bytes) {
                    raw::write(&*dir, part, bytes);
                }
                break;
            }
            if dir.stat(part).is_err() {
                dir.mkdir(part, 0o755).unwrap();
            }
            dir = dir.open_dir(part).unwrap();
        }
    }
}

/// Two copies of a vault that were equal at the last sync.
struct Machines {
    stores: [MemStore; 2],
    before: Image,
}

impl Machines {
    fn new(fill: impl FnOnce(&Vault)) -> Machines {
        let store = MemStore::new();
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        let vault = vaults::open(store.root()).unwrap();
        fill(&vault);
        vault.close().unwrap();
        let other = store.snapshot();
        let before = image(&*store.root());
        Machines { stores: [store, other], before }
    }

    fn on(&self, machine: usize, act: impl FnOnce(&Vault)) {
        let vault = vaults::open(self.stores[machine].root()).unwrap();
        act(&vault);
        vault.close().unwrap();
    }

    /// Syncs both ways as Syncthing does. A change or removal on one machine is made on the other.
    /// If both machines changed a file, the second one's version becomes a conflict copy. A file
    /// that one machine changed and the other removed is kept.
    fn sync(&mut self) {
        let now = [0, 1].map(|machine| image(&*self.stores[machine].root()));
        let mut merged = Image::new();
        let paths: BTreeSet<&Vec<u8>> = now.iter().flat_map(|image| image.keys()).collect();
        for path in paths {
            let was = self.before.get(path);
            match (now[0].get(path), now[1].get(path)) {
                (Some(first), Some(second)) if first == second || Some(second) == was => {
                    merged.insert(path.clone(), first.clone());
                }
                (Some(first), Some(second)) if Some(first) == was => {
                    merged.insert(path.clone(), second.clone());
                }
                (Some(first), Some(second)) => {
                    merged.insert(path.clone(), first.clone());
                    let copy = [&path[..], b".sync-conflict-20260131-101010-ABCDEFG"].concat();
                    merged.insert(copy, second.clone());
                }
                (Some(one), None) | (None, Some(one)) if Some(one) != was => {
                    merged.insert(path.clone(), one.clone());
                }
                _ => {}
            }
        }
        self.stores.iter().for_each(|store| bring(&store.root(), &merged));
        self.before = image(&*self.stores[0].root());
        assert!(self.before == image(&*self.stores[1].root()), "the copies differ");
    }

    /// Returns the tree of both machines, which must be equal and without faults.
    fn tree(&self) -> BTreeMap<Vec<u8>, Item> {
        let [first, second] = [0, 1].map(|machine| {
            let vault = vaults::open(self.stores[machine].root()).unwrap();
            assert_eq!(faults(&vault), Vec::<String>::new());
            tree(&vault).unwrap()
        });
        assert!(first == second, "the machines show different trees");
        first
    }

    fn contents(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let files = self.tree().into_iter().filter_map(|(path, item)| match item {
            Item::File { bytes, .. } => Some((path, bytes)),
            _ => None,
        });
        files.collect()
    }
}

fn contents<const N: usize>(files: [(&[u8], &[u8]); N]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    files.iter().map(|(path, bytes)| (path.to_vec(), bytes.to_vec())).collect()
}

/// Each directory once had a file with its id. A rename on one machine removed it while the other
/// machine created a file in the directory, which could not be listed from then on.
#[test]
fn a_file_made_in_a_directory_renamed_elsewhere_is_reachable() {
    let mut machines = Machines::new(|vault| {
        mkdir(vault, b"a").unwrap();
        put(vault, b"a/one", b"1").unwrap();
        rename(vault, b"a", b"b", RenameMode::NoReplace).unwrap();
    });
    machines.on(0, |vault| rename(vault, b"b", b"c", RenameMode::NoReplace).unwrap());
    machines.on(1, |vault| put(vault, b"b/two", b"2").unwrap());
    machines.sync();
    assert_eq!(machines.contents(), contents([(b"b/two", b"2"), (b"c/one", b"1")]));
    // The same if the directory is removed.
    machines.on(0, |vault| {
        at(vault, b"c", |dir| vault.unlink(dir, b"one")).unwrap();
        vault.rmdir(kithfs::vault::ROOT, b"c").unwrap();
    });
    machines.on(1, |vault| put(vault, b"c/three", b"3").unwrap());
    machines.sync();
    assert_eq!(machines.contents(), contents([(b"b/two", b"2"), (b"c/three", b"3")]));
}

/// Two machines renamed two directories to one name. The entries of one of them were then in a
/// directory with another id, and could not be read.
#[test]
fn two_directories_renamed_to_one_name_are_merged() {
    let mut machines = Machines::new(|vault| {
        for dir in [&b"a"[..], b"b"] {
            mkdir(vault, dir).unwrap();
            put(vault, &[dir, b"/of ", dir].concat(), dir).unwrap();
            put(vault, &[dir, b"/same"].concat(), dir).unwrap();
        }
    });
    machines.on(0, |vault| rename(vault, b"a", b"x", RenameMode::NoReplace).unwrap());
    machines.on(1, |vault| rename(vault, b"b", b"x", RenameMode::NoReplace).unwrap());
    machines.sync();
    let all = machines.contents();
    assert_eq!(
        (all[&b"x/of a"[..]].as_slice(), all[&b"x/of b"[..]].as_slice()),
        (&b"a"[..], &b"b"[..])
    );
    let same: BTreeSet<&[u8]> = all
        .iter()
        .filter(|(path, _)| path.starts_with(b"x/same"))
        .map(|(_, bytes)| &bytes[..])
        .collect();
    assert_eq!((all.len(), same), (4, BTreeSet::from([&b"a"[..], b"b"])), "one has a mark");
}

/// One machine renamed a directory, and the other created a directory of that name with a file in
/// it. Entries of the renamed directory arrived before the evidence of the rename.
#[test]
fn a_directory_renamed_onto_a_new_one_hides_nothing() {
    let mut machines = Machines::new(|vault| {
        mkdir(vault, b"a").unwrap();
        put(vault, b"a/one", b"1").unwrap();
    });
    machines.on(0, |vault| rename(vault, b"a", b"x", RenameMode::NoReplace).unwrap());
    machines.on(1, |vault| {
        mkdir(vault, b"x").unwrap();
        put(vault, b"x/two", b"2").unwrap();
    });
    let late = raw::evidence(&machines.stores[0].root());
    assert_eq!(late.len(), 1);
    let (dir, file) = &late[0];
    let bytes = raw::read(&**dir, file);
    dir.unlink(file).unwrap();
    machines.sync();
    let early = machines.contents();
    assert_eq!(early.len(), 2, "{early:?}");
    assert!(early.values().any(|bytes| bytes == b"1"), "marked, and reachable");
    // A file that is created meanwhile does not depend on the evidence.
    machines.on(1, |vault| put(vault, b"x/three", b"3").unwrap());
    machines.on(0, |_| raw::write(&**dir, file, &bytes));
    machines.sync();
    let expected = contents([(b"x/one", b"1"), (b"x/two", b"2"), (b"x/three", b"3")]);
    assert_eq!(machines.contents(), expected);
}

/// A long name lost its separate name file when one machine removed the entry and the other changed
/// it. All operations in a directory with such a name then failed.
#[test]
fn a_long_name_removed_here_and_changed_there_is_kept() {
    let (file, dir) = ([b'f'; 200], [b'd'; 200]);
    let within = |name: &[u8]| [&dir[..], b"/", name].concat();
    let mut machines = Machines::new(|vault| {
        put(vault, &file, b"before").unwrap();
        mkdir(vault, &dir).unwrap();
        put(vault, &within(&file), b"before").unwrap();
    });
    machines.on(0, |vault| {
        vault.unlink(kithfs::vault::ROOT, &file).unwrap();
        at(vault, &dir, |dir| vault.unlink(dir, &file)).unwrap();
        vault.rmdir(kithfs::vault::ROOT, &dir).unwrap();
    });
    machines.on(1, |vault| {
        put(vault, &file, b"changed").unwrap();
        put(vault, &within(&file), b"changed").unwrap();
        put(vault, &within(b"new"), b"new").unwrap();
    });
    machines.sync();
    assert_eq!(
        machines.contents(),
        contents([(&file, b"changed"), (&within(&file), b"changed"), (&within(b"new"), b"new")])
    );
}

/// Both machines created an entry with the same long name. The separate name files differed, became
/// conflict copies, and were reported as faults.
#[test]
fn a_long_name_created_on_both_machines_is_one() {
    let long = [b'l'; 200];
    let mut machines = Machines::new(|_| ());
    for machine in [0, 1] {
        machines.on(machine, |vault| mkdir(vault, &long).unwrap());
        let name = format!("of {machine}");
        let path = [&long[..], b"/", name.as_bytes()].concat();
        machines.on(machine, |vault| put(vault, &path, name.as_bytes()).unwrap());
        machines.on(machine, |vault| put(vault, &[b'f'; 120], name.as_bytes()).unwrap());
    }
    machines.sync();
    let all = machines.contents();
    let path = |name: &[u8]| [&long[..], b"/", name].concat();
    assert_eq!(all[&path(b"of 0")], b"of 0");
    assert_eq!(all[&path(b"of 1")], b"of 1");
    // The file itself has a conflict copy: its contents differ.
    let copy = [&[b'f'; 120][..], b".sync-conflict-20260131-101010-ABCDEFG"].concat();
    assert_eq!((&all[&[b'f'; 120][..]][..], &all[&copy][..]), (&b"of 0"[..], &b"of 1"[..]));
    assert_eq!(raw::long_names(&machines.stores[0].root()).len(), 2, "each is there once");
}

/// Names of 155 to 183 bytes were stored as up to 255 bytes, so a sync tool had no room for its
/// suffix, and failed with ENAMETOOLONG for ever.
#[test]
fn every_stored_name_has_room_for_the_suffix_of_a_sync_tool() {
    /// Longest suffix in bytes that Dropbox appends.
    const DROPBOX: usize = 100;
    let machines = Machines::new(|vault| {
        for len in 1..=255 {
            put(vault, &vec![b'n'; len], b"").unwrap();
        }
    });
    assert_eq!(machines.contents().len(), 255);
    let root = machines.stores[0].root();
    for name in raw::names(&*root).into_iter().filter(|name| name[0] != b'+') {
        assert!(name.len() + DROPBOX <= 255, "{}", name.len());
    }
    let vault = vaults::open(root).unwrap();
    assert_eq!(get(&vault, &[b'n'; 170]).unwrap(), b"");
}

/// An empty directory was renamed without evidence. Another machine had created entries in it
/// before; they arrived in the renamed directory, and kept their marks. In a synced vault such a
/// rename now has evidence.
#[test]
fn an_empty_renamed_directory_explains_late_entries() {
    for is_synced in [false, true] {
        let store = MemStore::new();
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        if is_synced {
            assert!(Vault::set_synced(&store.root()).unwrap());
        }
        let state = MemStore::new();
        let open = |store: &MemStore| vaults::open_on(store, Some(&state)).unwrap();
        let vault = open(&store);
        mkdir(&vault, b"a").unwrap();
        vault.close().unwrap();
        let other = store.snapshot();
        let vault = open(&store);
        rename(&vault, b"a", b"b", RenameMode::NoReplace).unwrap();
        let renamed = vault.cipher_path(b"b").unwrap();
        vault.close().unwrap();
        let vault = open(&other);
        put(&vault, b"a/late", b"late").unwrap();
        let late = vault.cipher_path(b"a/late").unwrap();
        vault.close().unwrap();
        let (above, name) = vaults::split(&late);
        let bytes = raw::read(&*raw::beneath(&other.root(), above), name);
        raw::write(&*raw::beneath(&store.root(), &renamed), name, &bytes);
        let vault = open(&store);
        assert_eq!(get(&vault, b"b/late").is_ok(), is_synced);
        vault.close().unwrap();
    }
}
