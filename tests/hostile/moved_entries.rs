//! Entries that the storage host moves to another directory, and evidence of renames that it forges
//! or restores.

use std::sync::Arc;

use kithfs::format::suffix;
use kithfs::roster::Role;
use kithfs::store::mem::MemStore;
use kithfs::store::{Dir, RenameMode as StoreRename};
use kithfs::vault::{ROOT, RenameMode, Vault};

use crate::support::members::{
    beside, founded, key, member, open_as, person, quiet, root_share, with_bob,
};
use crate::support::raw;
use crate::support::vaults::{self, at, faults, get, mkdir, put, rename};

fn names(vault: &Vault, path: &[u8]) -> Vec<Vec<u8>> {
    at(vault, path, |dir| vaults::entries(vault, dir))
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .collect()
}

fn marked(name: &[u8], stored: &[u8]) -> Vec<u8> {
    suffix::marked(name, &suffix::mark_of(stored))
}

fn last(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// Moves an entry of the store to another directory under its stored name; returns that name.
fn carry(store: &MemStore, from: &[u8], to: &[u8]) -> Vec<u8> {
    let root = store.root();
    let name = last(from).to_vec();
    let above = &from[..from.len() - name.len()];
    raw::beneath(&root, above)
        .rename(&name, &*raw::beneath(&root, to), &name, StoreRename::NoReplace)
        .unwrap();
    name
}

#[test]
fn an_entry_in_another_directory_is_marked_and_opens() {
    let (store, ann) = founded(vec![]);
    let vault = open_as(&store, &ann).unwrap();
    for dir in [&b"public"[..], b"private"] {
        mkdir(&vault, dir).unwrap();
    }
    put(&vault, b"private/salaries", b"for few").unwrap();
    mkdir(&vault, b"private/dir").unwrap();
    put(&vault, b"private/dir/inside", b"inside").unwrap();
    put(&vault, b"public/salaries", b"for all").unwrap();
    let path_of = |path: &[u8]| vault.cipher_path(path).unwrap();
    let [salaries, dir, public] =
        [&b"private/salaries"[..], b"private/dir", b"public"].map(path_of);
    vault.close().unwrap();
    let salaries = carry(&store, &salaries, &public);
    let dir = carry(&store, &dir, &public);

    let vault = open_as(&store, &ann).unwrap();
    let (moved, moved_dir) = (marked(b"salaries", &salaries), marked(b"dir", &dir));
    let mut expected = vec![b"salaries".to_vec(), moved.clone(), moved_dir.clone()];
    expected.sort();
    let mut shown = names(&vault, b"public");
    shown.sort();
    assert_eq!(shown, expected);
    let public = |name: &[u8]| [b"public/", name].concat();
    assert_eq!(get(&vault, b"public/salaries").unwrap(), b"for all");
    assert_eq!(get(&vault, &public(&moved)).unwrap(), b"for few");
    assert_eq!(get(&vault, b"public/dir/inside").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(get(&vault, &[&public(&moved_dir)[..], b"/inside"].concat()).unwrap(), b"inside");
    // It never takes a free name either, and the check reports it without calling it a fault.
    at(&vault, b"public", |dir| vault.unlink(dir, b"salaries")).unwrap();
    assert_eq!(get(&vault, b"public/salaries").unwrap_err().errno(), libc::ENOENT);
    let report = vault.check(b"", &mut |_| ()).unwrap();
    assert_eq!((report.faults.len(), report.notes.len()), (0, 2), "{report:?}");
    // The user who gives it a name accepts it.
    rename(&vault, &public(&moved), b"public/salaries", RenameMode::NoReplace).unwrap();
    assert_eq!(get(&vault, b"public/salaries").unwrap(), b"for few");
    assert_eq!(vault.check(b"", &mut |_| ()).unwrap().notes.len(), 1);
}

/// Evidence that arrives later removes the mark, in whatever order it arrives.
#[test]
fn late_evidence_removes_the_mark() {
    let (store, ann) = founded(vec![]);
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"a").unwrap();
    put(&vault, b"a/x", b"x").unwrap();
    rename(&vault, b"a", b"b", RenameMode::NoReplace).unwrap();
    put(&vault, b"b/y", b"y").unwrap();
    rename(&vault, b"b", b"c", RenameMode::NoReplace).unwrap();
    put(&vault, b"c/z", b"z").unwrap();
    vault.close().unwrap();
    let root = store.root();
    let all = raw::evidence(&root);
    assert_eq!(all.len(), 2);
    let contents: Vec<Vec<u8>> = all.iter().map(|(dir, file)| raw::read(&**dir, file)).collect();
    for order in [[0, 1], [1, 0]] {
        all.iter().for_each(|(dir, file)| dir.unlink(file).unwrap());
        let plain = |vault: &Vault| {
            let is_plain = |name: &&Vec<u8>| name.len() == 1;
            names(vault, b"c").iter().filter(is_plain).count()
        };
        let vault = beside(&store, &ann);
        assert_eq!((names(&vault, b"c").len(), plain(&vault)), (3, 1));
        let mut seen = Vec::new();
        for n in order {
            let (dir, file) = &all[n];
            raw::write(&**dir, file, &contents[n]);
            seen.push(plain(&beside(&store, &ann)));
        }
        assert!(seen == [2, 3] || seen == [1, 3], "a chain needs all of its parts: {seen:?}");
        // An open mount sees it too, within the time for which it trusts what it has read.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        // A name that was listed with its mark may have lost it by the time of the lookup.
        let shown = |vault: &Vault| {
            at(vault, b"c", |dir| vaults::entries(vault, dir))
                .map_or(0, |all| all.iter().filter(|(name, _)| name.len() == 1).count())
        };
        while shown(&vault) < 3 {
            assert!(std::time::Instant::now() < end, "the open mount never looks again");
            std::thread::yield_now();
        }
        for (name, bytes) in [(&b"c/x"[..], b"x"), (b"c/y", b"y"), (b"c/z", b"z")] {
            assert_eq!(get(&vault, name).unwrap(), bytes);
        }
    }
}

/// Copies evidence to every place where a reader might look for it.
#[test]
fn forged_truncated_and_misplaced_evidence_proves_nothing() {
    let reader = person(3);
    let (store, ann) = founded(vec![member(&reader, Role::Reader, "Cem")]);
    let vault = open_as(&store, &ann).unwrap();
    for dir in [&b"a"[..], b"from"] {
        mkdir(&vault, dir).unwrap();
        put(&vault, &[dir, b"/x"].concat(), dir).unwrap();
    }
    rename(&vault, b"a", b"b", RenameMode::NoReplace).unwrap();
    let [from, b] = [&b"from/x"[..], b"b"].map(|path| vault.cipher_path(path).unwrap());
    vault.close().unwrap();
    let root = store.root();
    let stored = carry(&store, &from, &b);
    let (dir, file) = raw::evidence(&root).remove(0);
    let honest = raw::read(&*dir, &file);
    // The record of another rename, for which there is honest evidence.
    let vault = open_as(&store, &ann).unwrap();
    rename(&vault, b"from", b"elsewhere", RenameMode::NoReplace).unwrap();
    put(&vault, b"elsewhere/y", b"y").unwrap();
    vault.close().unwrap();
    let others = raw::evidence(&root);
    let name = |bytes: &[u8]| kithfs::format::moved::file_name(bytes);
    for (dir_of_other, other) in &others {
        let bytes = raw::read(&**dir_of_other, other);
        raw::write(&*dir, other, &bytes);
        for cut in [0, 1, 23, 24, 40, bytes.len() - 1] {
            raw::write(&*dir, &name(&bytes[..cut]), &bytes[..cut]);
        }
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            raw::write(&*dir, &name(&wrong), &wrong);
        }
    }
    raw::write(&*dir, b"junk", b"junk");
    let vault = open_as(&store, &ann).unwrap();
    let shown = marked(b"x", &stored);
    let mut all = names(&vault, b"b");
    all.sort();
    assert_eq!(all, [b"x".to_vec(), shown.clone()]);
    assert_eq!(get(&vault, b"b/x").unwrap(), b"a", "the honest evidence still counts");
    assert_eq!(get(&vault, &[b"b/", &shown[..]].concat()).unwrap(), b"from");
    assert_eq!(raw::read(&*dir, &file), honest);
    assert!(!faults(&vault).is_empty(), "the check names what is not valid");
}

/// Evidence that a member wrote before the removal counts; later evidence does not.
#[test]
fn a_removed_members_evidence_counts_only_if_it_is_listed() {
    let (store, ann, bob) = with_bob();
    let vault = open_as(&store, &bob).unwrap();
    for dir in [&b"a"[..], b"late"] {
        mkdir(&vault, dir).unwrap();
        put(&vault, &[dir, b"/x"].concat(), dir).unwrap();
    }
    rename(&vault, b"a", b"b", RenameMode::NoReplace).unwrap();
    vault.close().unwrap();
    let afterwards = store.snapshot();
    root_share(&beside(&store, &ann)).remove(&[key(&bob)], &mut quiet()).unwrap();
    // The removed member renames in an old copy, and the host copies the directory and the
    // evidence.
    let vault = open_as(&afterwards, &bob).unwrap();
    rename(&vault, b"late", b"later", RenameMode::NoReplace).unwrap();
    let [later, late] =
        [b"later".to_vec(), b"late".to_vec()].map(|name| vault.cipher_path(&name).unwrap());
    vault.close().unwrap();
    let root = store.root();
    root.rename(&late, &*root, &later, StoreRename::NoReplace).unwrap();
    raw::merge(&*afterwards.root(), &*root);
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(get(&vault, b"b/x").unwrap(), b"a", "listed in the inventory");
    assert_eq!(get(&vault, b"later/x").unwrap_err().errno(), libc::ENOENT);
    let all = names(&vault, b"later");
    assert!(all.len() == 1 && suffix::split_mark(&all[0]).is_some(), "{all:?}");
    assert_eq!(get(&vault, &[b"later/", &all[0][..]].concat()).unwrap(), b"late");
    // A pass reseals what counts; the removed member's evidence is not needed any more.
    vault.reseal(b"", true, &mut quiet()).unwrap();
    assert_eq!(get(&vault, b"b/x").unwrap(), b"a");
    assert_eq!(names(&vault, b"later").len(), 1);
    assert!(suffix::split_mark(&names(&vault, b"later")[0]).is_some(), "the pass launders nothing");
}

/// Evidence in a circle, and a directory that was renamed a thousand times.
#[test]
fn cycles_and_many_renames_cost_nothing_and_hide_nothing() {
    let (store, ann) = founded(vec![]);
    let vault = open_as(&store, &ann).unwrap();
    mkdir(&vault, b"a").unwrap();
    for n in 0..3 {
        put(&vault, format!("a/{n}").as_bytes(), b"").unwrap();
        rename(&vault, b"a", b"b", RenameMode::NoReplace).unwrap();
        put(&vault, format!("b/of {n}").as_bytes(), b"").unwrap();
        rename(&vault, b"b", b"a", RenameMode::NoReplace).unwrap();
    }
    assert_eq!(raw::evidence(&store.root()).len(), 2, "what is implied is not written again");
    let mut all = names(&vault, b"a");
    all.sort();
    assert_eq!(all, [&b"0"[..], b"1", b"2", b"of 0", b"of 1", b"of 2"]);
    // Many directories are renamed onto one name, one after the other, each with an entry of its
    // own that moves on to the next.
    mkdir(&vault, b"sum").unwrap();
    for n in 0..60 {
        let dir = format!("dir {n}").into_bytes();
        rename(&vault, b"sum", &dir, RenameMode::NoReplace).unwrap();
        put(&vault, &[&dir[..], format!("/{n}").as_bytes()].concat(), b"x").unwrap();
        rename(&vault, &dir, b"sum", RenameMode::NoReplace).unwrap();
    }
    assert_eq!(names(&vault, b"sum").len(), 60);
    vault.close().unwrap();
    let vault = open_as(&store, &ann).unwrap();
    for n in 0..60 {
        assert_eq!(get(&vault, format!("sum/{n}").as_bytes()).unwrap(), b"x");
    }
    assert!(names(&vault, b"sum").iter().all(|name| name.len() <= 2));
    assert_eq!(faults(&vault), Vec::<String>::new());
    // A directory renamed back and forth leaves its entries where they are.
    let inside: Vec<Vec<u8>> = {
        let dir = store.root().open_dir(&vault.cipher_path(b"sum").unwrap()).unwrap();
        raw::names(&*dir)
    };
    assert_eq!(inside.len(), 60);
}

/// The host removes a sealed long name: the entry is shown under its stored name.
#[test]
fn a_missing_long_name_hides_nothing() {
    let (store, ann) = founded(vec![]);
    let vault = open_as(&store, &ann).unwrap();
    for len in [1, 98, 99, 255] {
        put(&vault, &vec![b'f'; len], format!("{len}").as_bytes()).unwrap();
        let dir = vec![b'd'; len];
        mkdir(&vault, &dir).unwrap();
        put(&vault, &[&dir[..], b"/inside"].concat(), format!("in {len}").as_bytes()).unwrap();
    }
    vault.close().unwrap();
    let root: Arc<dyn Dir> = store.root();
    raw::long_names(&root).into_iter().for_each(|(dir, file)| dir.unlink(&file).unwrap());
    let vault = open_as(&store, &ann).unwrap();
    let all = vaults::entries(&vault, ROOT).unwrap();
    assert_eq!(all.len(), 8);
    for (name, _) in all {
        let is_dir = vault.resolve(&name).unwrap().kind == kithfs::store::Kind::Dir;
        let path = if is_dir { [&name[..], b"/inside"].concat() } else { name };
        let bytes = get(&vault, &path).unwrap();
        assert_eq!(bytes.starts_with(b"in "), is_dir, "{}", path.escape_ascii());
    }
    // It can still be found by its name, and a renamed directory keeps its contents.
    assert_eq!(get(&vault, &[b'f'; 255]).unwrap(), b"255");
    rename(&vault, &[b'd'; 99], b"short", RenameMode::NoReplace).unwrap();
    assert_eq!(get(&vault, b"short/inside").unwrap(), b"in 99");
}
