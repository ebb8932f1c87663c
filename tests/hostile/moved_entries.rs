//! Entries that the storage host moves to another directory, and evidence of renames that it forges
//! or restores.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kithfs::crypto::{
    RecordCipher, Suite, Tag, directory_key, directory_tag, moved_place, root_tag,
};
use kithfs::format::moved::{Moved, file_name, place_name};
use kithfs::format::record::{RecordContext, RecordKind};
use kithfs::format::signature::{Authorship, Sign};
use kithfs::format::suffix;
use kithfs::roster::{Identity, Role};
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Call, Dir, Kind, RenameMode as StoreRename};
use kithfs::vault::{ROOT, RenameMode, Vault};

use crate::support::forger::{self, Forger};
use crate::support::members::ShareOfPath;
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
    // A moved entry keeps its mark even if the plain name is free. The check reports a note for it,
    // and no fault.
    at(&vault, b"public", |dir| vault.unlink(dir, b"salaries")).unwrap();
    assert_eq!(get(&vault, b"public/salaries").unwrap_err().errno(), libc::ENOENT);
    let report = vault.check(b"", &mut |_| ()).unwrap();
    assert_eq!((report.faults.len(), report.notes.len()), (0, 2), "{report:?}");
    // A user who renames the entry accepts it under the new name.
    rename(&vault, &public(&moved), b"public/salaries", RenameMode::NoReplace).unwrap();
    assert_eq!(get(&vault, b"public/salaries").unwrap(), b"for few");
    assert_eq!(vault.check(b"", &mut |_| ()).unwrap().notes.len(), 1);
}

/// A directory that is renamed keeps the stored names of its entries. If a program then makes a
/// directory at the former path of one of these entries, both have the same stored name, and so their
/// own entries cannot be told apart.
#[test]
fn two_directories_of_one_stored_name_exchange_entries() {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    let made = |vault: &Vault| {
        mkdir(vault, b"a").unwrap();
        mkdir(vault, b"a/x").unwrap();
    };
    made(&vault);
    rename(&vault, b"a", b"b", RenameMode::NoReplace).unwrap();
    made(&vault);
    put(&vault, b"a/x/one", b"1").unwrap();
    put(&vault, b"b/x/two", b"2").unwrap();
    let [one, two, to_a, to_b] =
        [&b"a/x/one"[..], b"b/x/two", b"a/x", b"b/x"].map(|path| vault.cipher_path(path).unwrap());
    vault.close().unwrap();
    assert_eq!(last(&to_a), last(&to_b));
    carry(&store, &one, &to_b);
    carry(&store, &two, &to_a);

    let vault = vaults::open(store.root()).unwrap();
    assert_eq!(get(&vault, b"b/x/one").unwrap(), b"1");
    assert_eq!(get(&vault, b"a/x/two").unwrap(), b"2");
    let report = vault.check(b"", &mut |_| ()).unwrap();
    assert_eq!((report.faults.len(), report.notes.len()), (0, 0), "{report:?}");
}

const LONG: [u8; 200] = [b'l'; 200];

/// Returns a vault with the directory `b`, which was named `a` before. Its entries, `x` and one with
/// a long name, need evidence of that rename.
fn with_evidence() -> (MemStore, Vault) {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    mkdir(&vault, b"a").unwrap();
    put(&vault, b"a/x", b"x").unwrap();
    put(&vault, &[b"a/", &LONG[..]].concat(), b"long").unwrap();
    rename(&vault, b"a", b"b", RenameMode::NoReplace).unwrap();
    (store, vault)
}

/// When another member took away the permission to read one record of evidence, or one long name,
/// the listing of the whole directory failed. Now only the entries that need the record are
/// affected: they are marked, or shown under their stored names, and can be opened. The check
/// reports the record.
#[test]
fn unreadable_evidence_affects_only_its_own_entries() {
    for control in [&b"+moved"[..], b"+long"] {
        for depth in 0..3 {
            let what = format!("{}, depth {depth}", control.escape_ascii());
            let (store, vault) = with_evidence();
            put(&vault, b"b/own", b"own").unwrap();
            vault.close().unwrap();
            let all = store.root().open_dir(control).unwrap();
            let group = raw::names(&*all).remove(0);
            let file = raw::names(&*all.open_dir(&group).unwrap()).remove(0);

            let plan = FaultPlan::new();
            plan.forbid([control, &group, &file][depth]);
            let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
            let shown = names(&vault, b"b");
            assert_eq!(shown.len(), 3, "{what}");
            let mut contents: Vec<_> = shown
                .iter()
                .map(|name| get(&vault, &[b"b/", &name[..]].concat()).unwrap())
                .collect();
            contents.sort();
            assert_eq!(contents, [&b"long"[..], b"own", b"x"], "{what}");
            assert_eq!(get(&vault, b"b/own").unwrap(), b"own", "{what}");
            // Without the evidence, an entry that needs it has no plain name in this directory.
            let is_explained = control == b"+long";
            assert_eq!(get(&vault, b"b/x").is_ok(), is_explained, "{what}");
            let report = vault.check(b"", &mut |_| ()).unwrap();
            let is_there = |path: &[u8]| path.starts_with(control);
            assert!(report.faults.iter().any(|fault| is_there(&fault.cipher)), "{what}");
            vault.close().unwrap();

            // After other errors it is unknown whether the record exists, so nothing may be shown
            // wrongly.
            let plan = FaultPlan::new();
            let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
            let when = When::From(plan.count(Calls::Of(Call::OpenFile)) + 1);
            plan.add(Fault {
                calls: Calls::Of(Call::OpenFile),
                when,
                errno: libc::EIO,
                short: false,
            });
            let listed = at(&vault, b"b", |dir| vaults::entries(&vault, dir));
            assert_eq!(listed.unwrap_err().errno(), libc::EIO, "{what}");
        }
    }
}

/// An attacker could put 100,000 junk files in the place of one directory's evidence. Each time that
/// a file was added, all of them were read again a second later. Now evidence that took long to
/// read is not read again for some time.
#[test]
fn junk_in_place_of_evidence_is_not_read_again_at_once() {
    const JUNK: u64 = 300;
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    mkdir(&vault, b"a").unwrap();
    put(&vault, b"a/x", b"x").unwrap();
    rename(&vault, b"a", b"b", RenameMode::NoReplace).unwrap();
    vault.close().unwrap();
    let all = store.root().open_dir(b"+moved").unwrap();
    let place = all.open_dir(&raw::names(&*all).remove(0)).unwrap();
    let junk = |n: u64| raw::write(&*place, format!("{n:043}").as_bytes(), b"junk");
    (0..JUNK).for_each(junk);

    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    plan.slow_down(Call::OpenFile, Duration::from_millis(2));
    let opened = || {
        let before = plan.count(Calls::Of(Call::OpenFile));
        assert_eq!(names(&vault, b"b"), [b"x"]);
        plan.count(Calls::Of(Call::OpenFile)) - before
    };
    assert!(opened() >= JUNK);
    junk(JUNK);
    std::thread::sleep(Duration::from_millis(1100)); // longer than evidence is trusted unseen
    assert!(opened() < JUNK, "it was read again");
    // What this machine renames itself is known at once.
    plan.slow_down(Call::OpenFile, Duration::ZERO);
    mkdir(&vault, b"c").unwrap();
    put(&vault, b"c/y", b"y").unwrap();
    at(&vault, b"b", |dir| vault.unlink(dir, b"x")).unwrap();
    rename(&vault, b"c", b"b", RenameMode::Replace).unwrap();
    assert_eq!(names(&vault, b"b"), [b"y"]);
}

/// The host moves entries and their copies into another directory, and changes that directory all the
/// time. For each mark that was shown or looked up, the whole directory was listed again: a listing
/// of 20,000 entries would have taken hours.
#[test]
fn marks_in_a_changing_directory_cost_no_listing_each() {
    const COPIES: usize = 300;
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    mkdir(&vault, b"a").unwrap();
    mkdir(&vault, b"b").unwrap();
    put(&vault, b"a/x", b"x").unwrap();
    let [from, to] = [&b"a/x"[..], b"b"].map(|path| vault.cipher_path(path).unwrap());
    vault.close().unwrap();
    let stored = carry(&store, &from, &to);
    let dir = raw::beneath(&store.root(), &to);
    let bytes = raw::read(&*dir, &stored);
    for n in 0..COPIES {
        raw::write(&*dir, &[&stored[..], format!(" ({n})").as_bytes()].concat(), &bytes);
    }

    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    plan.slow_down(Call::List, Duration::from_millis(5));
    let handle = at(&vault, b"b", |node| vault.open_dir(node)).unwrap();
    let (mut shown, mut cookie) = (Vec::new(), 0);
    loop {
        let part = vault.read_dir(handle, cookie, 1).unwrap();
        let Some(last) = part.last() else { break };
        cookie = last.next;
        shown.extend(part.iter().map(|entry| entry.name.to_vec()));
        raw::write(&*dir, format!(".{}", shown.len()).as_bytes(), b""); // it has another time now
    }
    vault.release_dir(handle);
    assert_eq!(shown.len(), COPIES + 1);
    assert!(shown.iter().all(|name| suffix::split_mark(name).is_some()));
    let before = plan.count(Calls::Of(Call::List));
    for (n, name) in shown.iter().enumerate() {
        assert_eq!(get(&vault, &[b"b/", &name[..]].concat()).unwrap(), b"x");
        raw::write(&*dir, format!(".again {n}").as_bytes(), b"");
    }
    let listed = plan.count(Calls::Of(Call::List)) - before;
    assert!(listed < shown.len() as u64 / 2, "{listed} listings for {} lookups", shown.len());
}

/// Returns how many calls to the store the first listing of a directory needs, and how many the
/// lookups of all that it shows need, each after opening the vault. The directory was renamed
/// `renames` times, and a file was created under each of its names.
fn calls_after_renames(renames: usize) -> [u64; 2] {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    mkdir(&vault, b"dir 0").unwrap();
    let dir = |n: usize| format!("dir {n}").into_bytes();
    for n in 0..renames {
        put(&vault, &[&dir(n)[..], format!("/{n}").as_bytes()].concat(), b"").unwrap();
        rename(&vault, &dir(n), &dir(n + 1), RenameMode::NoReplace).unwrap();
    }
    vault.close().unwrap();
    let calls = |act: &dyn Fn(&Vault)| {
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        let before = plan.count(Calls::All);
        act(&vault);
        plan.count(Calls::All) - before
    };
    let list = calls(&|vault| {
        let handle = at(vault, &dir(renames), |node| vault.open_dir(node)).unwrap();
        let (mut shown, mut cookie) = (0, 0);
        while let part = vault.read_dir(handle, cookie, 1 << 14).unwrap()
            && let Some(last) = part.last()
        {
            cookie = last.next;
            assert!(part.iter().all(|entry| entry.name.len() <= 3));
            shown += part.len();
        }
        vault.release_dir(handle);
        assert_eq!(shown, renames);
    });
    let look_up = calls(&|vault| {
        at(vault, &dir(renames), |node| {
            for n in 0..renames {
                let attr = vault.lookup(node, n.to_string().as_bytes())?;
                vault.forget(attr.node, 1);
            }
            Ok(())
        })
        .unwrap();
    });
    [list, look_up]
}

/// A listing tried each former name of the directory for each entry, and so did the lookups of all
/// names: twelve seconds after 1,000 renames, with a file created under each name. Now only names
/// that an entry has are tried.
#[test]
fn calls_grow_linearly_with_the_renames_of_a_directory() {
    let [few, many] = [50, 200].map(calls_after_renames);
    for (few, many) in few.into_iter().zip(many) {
        assert!(many < few * 5, "{few} calls after 50 renames, {many} after 200");
    }
}

/// Returns a vault with the directory `dir 12`, which was renamed twelve times and got a file with a
/// short name and one with a long name under each of its names.
fn renamed_often() -> MemStore {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    mkdir(&vault, b"dir 0").unwrap();
    for n in 0..12 {
        let dir = format!("dir {n}").into_bytes();
        for name in [n.to_string(), format!("{n:0>200}")] {
            put(&vault, &[&dir[..], b"/", name.as_bytes()].concat(), b"x").unwrap();
        }
        let new = format!("dir {}", n + 1).into_bytes();
        rename(&vault, &dir, &new, RenameMode::NoReplace).unwrap();
    }
    vault.close().unwrap();
    store
}

/// Repeats what fails with `ENOENT`, for up to a minute.
fn soon<T>(mut act: impl FnMut() -> kithfs::vault::Result<T>) -> T {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        match act() {
            Err(error) if error.errno() == libc::ENOENT && std::time::Instant::now() < end => {
                std::thread::yield_now();
            }
            done => return done.unwrap(),
        }
    }
}

/// A sync tool delivers entries to a directory with so many former names that only names that a
/// listing has shown are tried: they are found soon, and marked entries too. It takes eight times as
/// long as the last listing of the directory did, which is not listed again before.
#[test]
fn entries_that_arrive_in_an_often_renamed_directory_are_found() {
    let store = renamed_often();
    let vault = vaults::open(store.root()).unwrap();
    let dir = vault.cipher_path(b"dir 12").unwrap();
    let path = |name: &str| vault.cipher_path(format!("dir 12/{name}").as_bytes()).unwrap();
    let [three, four] = ["3", "4"].map(|name| last(&path(name)).to_vec());
    vault.close().unwrap();
    let inside = raw::beneath(&store.root(), &dir);
    let bytes = raw::read(&*inside, &three);
    inside.unlink(&three).unwrap();

    let vault = vaults::open(store.root()).unwrap();
    let look_up = |name: &[u8]| soon(|| get(&vault, &[b"dir 12/", name].concat()));
    assert_eq!(get(&vault, b"dir 12/3").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(names(&vault, b"dir 12").len(), 23);
    raw::write(&*inside, &three, &bytes);
    assert_eq!(look_up(b"3"), b"x");
    let copy = [&four[..], b" (1)"].concat();
    raw::write(&*inside, &copy, &raw::read(&*inside, &four));
    assert_eq!(look_up(b"4 (1)"), b"x");
    let listed = soon(|| at(&vault, b"dir 12", |dir| vaults::entries(&vault, dir)));
    assert_eq!(listed.len(), 25);
    // A file that is created here takes the name; the one that claims it too gets a mark.
    raw::write(&*inside, &[&three[..], b" (1)"].concat(), &bytes);
    soon(|| at(&vault, b"dir 12", |dir| vault.unlink(dir, b"3")));
    put(&vault, b"dir 12/3", b"new").unwrap();
    assert_eq!(look_up(b"3"), b"new");
    assert_eq!(look_up(b"3 (1)"), b"x");
    vault.close().unwrap();
    raw::write(&*inside, &three, &bytes);
    let three = marked(b"3", &three);
    let vault = vaults::open(store.root()).unwrap();
    assert!(names(&vault, b"dir 12").contains(&three));
    assert_eq!(get(&vault, &[b"dir 12/", &three[..]].concat()).unwrap(), b"x");
    assert_eq!(get(&vault, b"dir 12/3").unwrap(), b"new");
}

/// A program that knows the long name of an entry finds it even if the sealed name is missing, as in
/// a directory that was renamed less often. It did not if the entry was the only one with its tag.
#[test]
fn a_lost_long_name_in_an_often_renamed_directory_is_found() {
    let store = renamed_often();
    let vault = vaults::open(store.root()).unwrap();
    for n in 0..12 {
        at(&vault, b"dir 12", |dir| vault.unlink(dir, n.to_string().as_bytes())).unwrap();
    }
    vault.close().unwrap();
    let root: Arc<dyn Dir> = store.root();
    raw::long_names(&root).into_iter().for_each(|(dir, file)| dir.unlink(&file).unwrap());
    let vault = vaults::open(root).unwrap();
    for n in 0..12 {
        assert_eq!(get(&vault, format!("dir 12/{n:0>200}").as_bytes()).unwrap(), b"x", "{n}");
    }
    assert_eq!(names(&vault, b"dir 12").len(), 12);
}

/// A marked entry has a long name that arrives later. The directory's times do not change then, and
/// the entry must be found under the name with which it is listed.
#[test]
fn a_marked_entry_is_found_once_its_long_name_arrives() {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    [b"a", b"b"].iter().for_each(|dir| mkdir(&vault, *dir).unwrap());
    put(&vault, &[b"a/", &LONG[..]].concat(), b"long").unwrap();
    let from = vault.cipher_path(&[b"a/", &LONG[..]].concat()).unwrap();
    let to = vault.cipher_path(b"b").unwrap();
    vault.close().unwrap();
    let stored = carry(&store, &from, &to);
    let path = [b"b/", &marked(&LONG, &stored)[..]].concat();
    let (dir, file) = raw::long_names(&(store.root() as Arc<dyn Dir>)).remove(0);
    let sealed = raw::read(&*dir, &file);
    dir.unlink(&file).unwrap();
    let vault = vaults::open(store.root()).unwrap();
    for _ in 0..2 {
        assert_eq!(get(&vault, &path).unwrap_err().errno(), libc::ENOENT);
        std::thread::sleep(Duration::from_millis(2100)); // the directory is at rest for that long
    }
    raw::write(&*dir, &file, &sealed);
    let end = Instant::now() + Duration::from_secs(60);
    while get(&vault, &path).is_err() {
        assert!(Instant::now() < end, "the entry is not found");
        std::thread::yield_now();
    }
    assert_eq!(get(&vault, &path).unwrap(), b"long");
}

/// A link, a FIFO, a file in place of a directory or the reverse, where evidence or a long name should
/// be: it counts as withheld. One such object made whole directories, or the whole vault, unusable.
#[test]
fn other_objects_in_place_of_evidence_hide_nothing() {
    let place = |root: &Arc<dyn Dir>, name: &[u8]| {
        let all = root.open_dir(name).unwrap();
        let group = raw::names(&*all).remove(0);
        (all, group)
    };
    for control in [&b"+moved"[..], b"+long"] {
        for depth in 0..3 {
            for kind in [Kind::File, Kind::Dir, Kind::Symlink, Kind::Fifo] {
                let what = format!("{}, depth {depth}, {kind:?}", control.escape_ascii());
                let (store, vault) = with_evidence();
                mkdir(&vault, b"other").unwrap();
                put(&vault, b"other/y", b"y").unwrap();
                vault.close().unwrap();
                let root = store.root();
                let (all, group) = place(&root, control);
                let inside = all.open_dir(&group).unwrap();
                let file = raw::names(&*inside).remove(0);
                let (dir, name) =
                    [(&root, control), (&all, &group[..]), (&inside, &file[..])][depth];
                dir.rename(name, &*root, b".aside", StoreRename::NoReplace).unwrap();
                match kind {
                    Kind::Dir => dir.mkdir(name, 0o755).unwrap(),
                    Kind::Symlink => dir.symlink(name, b"/etc").unwrap(),
                    Kind::Fifo => dir.mknod(name, Kind::Fifo, 0o644, 0).unwrap(),
                    _ => raw::write(&**dir, name, b"strange"),
                }
                let vault = vaults::open(root.clone()).unwrap();
                assert_eq!(get(&vault, b"other/y").unwrap(), b"y", "{what}");
                assert_eq!(names(&vault, b"b").len(), 2, "{what}");
                for name in names(&vault, b"b") {
                    let bytes = get(&vault, &[b"b/", &name[..]].concat()).unwrap();
                    assert!(bytes == b"x" || bytes == b"long", "{what}");
                }
                put(&vault, b"b/new", b"new").unwrap();
                let report = vault.check(b"", &mut |_| ()).unwrap();
                let is_empty_dir = depth < 2 && kind == Kind::Dir;
                let is_lost = control == b"+long" || !is_empty_dir;
                assert_eq!(report.faults.is_empty(), !is_lost, "{what}: {:?}", report.faults);
                let in_place = |path: &[u8]| path.starts_with(control);
                assert!(
                    is_empty_dir || report.faults.iter().any(|fault| in_place(&fault.cipher)),
                    "{what}: {:?}",
                    report.faults
                );
                vault.close().unwrap();
                // The wrong object is removed, and the original is put back.
                match kind {
                    Kind::Dir => dir.rmdir(name).unwrap(),
                    _ => dir.unlink(name).unwrap(),
                }
                root.rename(b".aside", &**dir, name, StoreRename::NoReplace).unwrap();
                let vault = vaults::open(root).unwrap();
                assert_eq!(get(&vault, b"b/x").unwrap(), b"x", "{what}");
                assert_eq!(get(&vault, &[b"b/", &LONG[..]].concat()).unwrap(), b"long", "{what}");
                assert_eq!(faults(&vault), Vec::<String>::new(), "{what}");
                vault.close().unwrap();
            }
        }
    }
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
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
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

/// The tag of a directory at the root of a share.
fn tag_of(forger: &Forger, key: &kithfs::crypto::DirectoryKey, name: &[u8]) -> Tag {
    directory_tag(key, &root_tag(key, &forger.share), name)
}

/// A reader has all keys with which evidence is sealed, and no right to sign it. Their evidence under
/// their own name, under a writer's, and without a signature leads nowhere.
#[test]
fn evidence_that_a_reader_forges_is_not_used() {
    let (reader, writer) = (person(3), person(2));
    let members = vec![member(&reader, Role::Reader, "Cem"), member(&writer, Role::Writer, "Bob")];
    let (store, ann) = founded(members);
    let vault = open_as(&store, &ann).unwrap();
    for dir in [&b"private"[..], b"public"] {
        mkdir(&vault, dir).unwrap();
        put(&vault, &[dir, b"/x"].concat(), dir).unwrap();
    }
    at(&vault, b"public", |dir| vault.unlink(dir, b"x")).unwrap();
    let [private, public] = [&b"private/x"[..], b"public"].map(|p| vault.cipher_path(p).unwrap());
    vault.close().unwrap();
    let stored = carry(&store, &private, &public);
    let root = store.root();
    let forger = Forger::of(&root, &reader);
    let folder = forger::folder_keys(&forger::roster(&root), &reader, &root);
    let directories = directory_key(&folder.first().key, &forger.share);
    let [from, to] = [&b"private"[..], b"public"].map(|name| tag_of(&forger, &directories, name));
    let cipher = RecordCipher::new(forger.suite, forger.keys.records.expose());
    let context = RecordContext {
        share: &forger.share,
        suite: forger.suite,
        signed: true,
        epoch: forger.epoch,
        cipher: &cipher,
    };
    let plain = Moved { from, to }.encode();
    let place = place_name(&moved_place(&forger.keys.names, &to));
    root.mkdir(b"+moved", 0o755).unwrap();
    let all = root.open_dir(b"+moved").unwrap();
    all.mkdir(&place, 0o755).unwrap();
    let dir = all.open_dir(&place).unwrap();
    let seal = |author: &Identity, signer: &Identity, by: &Identity| {
        let by = Sign {
            by: Authorship { author: key(author), signer: key(signer) },
            sign: &|label, message| by.sign(label, message),
        };
        context.seal(RecordKind::Moved, b"", &plain, Some(by), &vaults::Seeded::new(7))
    };
    let unsigned = RecordContext { signed: false, ..context };
    for forged in [
        seal(&reader, &reader, &reader),
        seal(&writer, &writer, &reader),
        seal(&reader, &writer, &reader),
        seal(&writer, &reader, &reader),
        unsigned.seal(RecordKind::Moved, b"", &plain, None, &vaults::Seeded::new(8)),
    ] {
        raw::write(&*dir, &file_name(&forged), &forged);
    }
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(names(&vault, b"public"), [marked(b"x", &stored)]);
    assert_eq!(get(&vault, b"public/x").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(faults(&vault).len(), 5, "the check names each of them");
    vault.close().unwrap();
    // The same evidence from a writer counts, so the forgeries above lacked only the right to write.
    let genuine = seal(&writer, &writer, &writer);
    raw::write(&*dir, &file_name(&genuine), &genuine);
    let vault = open_as(&store, &ann).unwrap();
    assert_eq!(get(&vault, b"public/x").unwrap(), b"private");
}

/// A host that has only the store can move entries as THREAT_MODEL.md allows, and in no other way:
/// along renames that happened, to and from copies that it makes, and back to former names.
#[test]
fn a_host_moves_entries_along_recorded_renames_only() {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    mkdir(&vault, b"a").unwrap();
    put(&vault, b"a/old", b"old").unwrap();
    rename(&vault, b"a", b"b", RenameMode::NoReplace).unwrap();
    rename(&vault, b"b", b"c", RenameMode::NoReplace).unwrap();
    for (dir, name) in [(&b"a"[..], &b"a/of a"[..]), (b"b", b"b/of b"), (b"c", b"c/of c")] {
        let _ = mkdir(&vault, dir);
        put(&vault, name, name).unwrap();
    }
    let path = |path: &[u8]| vault.cipher_path(path).unwrap();
    let [a, b, c, of_a, of_b, of_c] =
        [&b"a"[..], b"b", b"c", b"a/of a", b"b/of b", b"c/of c"].map(path);
    vault.close().unwrap();
    let root = store.root();
    // An entry of the new `a` is accepted in the directories to which the former `a` was renamed.
    // Entries of those directories are not accepted in the new `a`.
    let of_a = carry(&store, &of_a, &c);
    let of_c = carry(&store, &of_c, &a);
    let of_b = carry(&store, &of_b, &a);
    let vault = vaults::open(root.clone()).unwrap();
    assert_eq!(get(&vault, b"c/of a").unwrap(), b"a/of a");
    let mut all = names(&vault, b"a");
    all.sort();
    let mut expected = [marked(b"of c", &of_c), marked(b"of b", &of_b)];
    expected.sort();
    assert_eq!(all, expected);
    vault.close().unwrap();
    for (from, name) in [(&a, &of_c), (&a, &of_b), (&c, &of_a)] {
        carry(&store, &[&from[..], b"/", &name[..]].concat(), &b);
    }
    let vault = vaults::open(root.clone()).unwrap();
    let mut all = names(&vault, b"b");
    all.sort();
    let mut expected = vec![b"of a".to_vec(), b"of b".to_vec(), marked(b"of c", &of_c)];
    expected.sort();
    assert_eq!(all, expected);
    vault.close().unwrap();
    // A copy of a directory has the tag of its original, and a name that shows what it is.
    root.mkdir(&[&a[..], b" (1)"].concat(), 0o755).unwrap();
    carry(&store, &[&b[..], b"/", &of_a[..]].concat(), &[&a[..], b" (1)"].concat());
    let vault = vaults::open(root.clone()).unwrap();
    assert_eq!(get(&vault, b"a (1)/of a").unwrap(), b"a/of a");
    vault.close().unwrap();
    // Under the former name of the directory, what was made before the rename has no mark; what was
    // made after it has one.
    root.rmdir(&a).unwrap();
    root.rename(&c, &*root, &a, StoreRename::NoReplace).unwrap();
    let vault = vaults::open(root.clone()).unwrap();
    assert_eq!(get(&vault, b"a/old").unwrap(), b"old");
    assert_eq!(names(&vault, b"a"), [b"old".to_vec()]);
    vault.close().unwrap();
    root.rename(&a, &*root, &c, StoreRename::NoReplace).unwrap();
    // A suffix takes no name from an entry that really has it.
    let vault = vaults::open(root.clone()).unwrap();
    put(&vault, b"c/note", b"note").unwrap();
    put(&vault, b"c/note (1)", b"genuine").unwrap();
    let note = vault.cipher_path(b"c/note").unwrap();
    vault.close().unwrap();
    let (dir, name) = (raw::beneath(&root, &c), last(&note).to_vec());
    let bytes = raw::read(&*dir, &name);
    for suffix in [&b" (1)"[..], b"\n: genuine", b".exe"] {
        raw::write(&*dir, &[&name[..], suffix].concat(), &bytes);
    }
    let vault = vaults::open(root).unwrap();
    assert_eq!(get(&vault, b"c/note (1)").unwrap(), b"genuine");
    let shown = marked(b"note (1)", &[&name[..], b" (1)"].concat());
    assert_eq!(get(&vault, &[b"c/", &shown[..]].concat()).unwrap(), b"note");
    for unknown in ["c/note (conflict copy \n: genuine)", "c/note (conflict copy .exe)"] {
        assert_eq!(get(&vault, unknown.as_bytes()).unwrap(), b"note");
    }
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
fn cycles_and_many_renames_of_evidence_hide_nothing() {
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
    // One directory is renamed to a new name and back, many times, and gets an entry under each of
    // the names.
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
