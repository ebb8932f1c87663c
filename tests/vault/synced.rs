//! A vault that a sync tool keeps equal on several machines: the mark `+synced`, and journals that
//! stay on each machine; commits of small files.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Call, Dir, File, RenameMode};
use kithfs::vault::{
    Local, OpenFlags, OpenOptions, ROOT, RenameMode as VaultRename, SetAttr, Vault,
};

use crate::support::cuts::{Cut, Session, record_on};
use crate::support::raw;
use crate::support::vaults::{
    self, Item, READ_WRITE, at, get, mkdir, open_on, owner, pattern, put, rename, set_xattr,
    write_at,
};

/// Size of a file that is written in place.
const LARGE: usize = 300_000;

/// Creates a synced vault, and the state directory of a machine.
fn synced() -> (MemStore, MemStore) {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    assert!(Vault::set_synced(&store.root()).unwrap());
    assert!(!Vault::set_synced(&store.root()).unwrap(), "the mark was set already");
    (store, MemStore::new())
}

/// Returns all files below a directory whose names have this prefix.
fn below(dir: &dyn Dir, prefix: &[u8]) -> Vec<Vec<u8>> {
    let mut found = raw::named(dir, prefix);
    for name in raw::names(dir) {
        if let Ok(dir) = dir.open_dir(&name) {
            found.extend(below(&*dir, prefix));
        }
    }
    found
}

#[test]
fn journals_of_a_synced_vault_stay_on_the_machine() {
    // A sync tool copied journals to other machines, which then refused to mount the vault.
    let (store, state) = synced();
    let vault = open_on(&store, Some(&state)).unwrap();
    assert!(vault.is_synced());
    put(&vault, b"file", &pattern(1, LARGE)).unwrap();
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 4096, b"again", false).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.commit_due(std::time::Duration::ZERO);
    for name in raw::names(&*store.root()) {
        let name = name.escape_ascii().to_string();
        assert!(!name.starts_with("+journal") && !name.starts_with("+created"), "{name}");
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        // The sealed name of a file can contain a short machine name by chance.
        let is_control = name.starts_with('+');
        assert!(!is_control || name.split('-').all(|part| part != machine), "{name}");
        let size = store.root().stat(name.as_bytes()).unwrap().size;
        assert!(!name.starts_with('+') || size > 0, "{name} is empty");
    }
    assert_eq!(below(&*state.root(), b"+journal-").len(), 1);
    vault.release(handle).unwrap();
    vault.close().unwrap();
    assert_eq!(below(&*state.root(), b"+journal-").len(), 0);
    // A reader makes no journal.
    let reading = OpenOptions {
        read_only: true,
        local: Some(Local { state: state.root(), path: "/copy".into() }),
        ..OpenOptions::default()
    };
    let reader = Vault::open(store.root(), &owner(), reading).unwrap();
    assert_eq!(&get(&reader, b"file").unwrap()[4096..4101], b"again");
}

#[test]
fn a_machine_keeps_to_the_property_once_seen() {
    // The mark cannot be switched off, because that would be unsafe while another machine does not
    // know it yet. So a machine restores a mark that has disappeared.
    let (store, state) = synced();
    open_on(&store, Some(&state)).unwrap().close().unwrap();
    store.root().unlink(b"+synced").unwrap();
    let other = open_on(&store, None).unwrap();
    assert!(!other.is_synced(), "another machine has never seen it");
    other.close().unwrap();
    let vault = open_on(&store, Some(&state)).unwrap();
    assert!(vault.is_synced());
    assert_eq!(raw::read(&*store.root(), b"+synced"), b"kithfs synced\n");
    assert!(vault.check(b"", &mut |_| {}).unwrap().faults.is_empty());
}

/// Creates a file that is too large to be replaced, overwrites a part of it, and syncs both.
/// Returns the contents before and after.
fn overwritten(s: &mut Session) -> [Vec<u8>; 2] {
    let before = pattern(1, LARGE);
    s.create(b"file", &before);
    let mut after = before.clone();
    after[8192..12_288].copy_from_slice(&pattern(2, 4096));
    s.overwrite(b"file", 8192, &pattern(2, 4096));
    [before, after]
}

fn cuts() -> (Vec<Cut>, [Vec<u8>; 2]) {
    let states = parking_lot::Mutex::new(Default::default());
    let cuts = record_on(12, Some(MemStore::new()), |s, _| *states.lock() = overwritten(s));
    (cuts, states.into_inner())
}

type Contents = Result<Vec<u8>, String>;

fn files(vault: &Vault) -> Vec<(Vec<u8>, Contents)> {
    let mut files = Vec::new();
    vaults::walk(vault, ROOT, b"", &mut |path, item| {
        files.push((
            path.to_vec(),
            match item {
                Ok(Item::File { bytes, .. }) => Ok(bytes),
                Ok(other) => Err(format!("{other:?}")),
                Err(error) => Err(error.to_string()),
            },
        ));
        Ok(())
    })
    .unwrap();
    files
}

/// Power is lost at each moment of a commit. Before the daemon returns, a sync tool delivers
/// another machine's version of the file and keeps ours as a conflict copy. Theirs stays, and ours
/// becomes complete.
#[test]
fn a_replay_finds_its_file_among_the_conflict_copies() {
    let (cuts, [before, after]) = cuts();
    let (mut torn, mut completed) = (0, 0);
    for (n, Cut { what, store, state, promises }) in cuts.iter().enumerate() {
        let durable = promises.get(&b"file"[..]).is_some_and(|allowed| !allowed.unreadable);
        if !durable {
            continue;
        }
        for harsh in [false, true] {
            let mut chance = crate::support::cuts::chance(n as u64);
            let here = store.crash(&mut |n| if harsh { 0 } else { chance(n) });
            let state = state.as_ref().unwrap().crash(&mut |n| n - 1);
            // The other machine has the former file, and replaces its contents.
            let other = cuts.last().unwrap().store.snapshot();
            let theirs = open_on(&other, Some(&MemStore::new())).unwrap();
            put(&theirs, b"file", b"theirs").unwrap();
            theirs.close().unwrap();
            let root = here.root();
            let stored = stored_file(&*root);
            let readable = files(&open_on(&here.snapshot(), None).unwrap());
            let copy = [&stored[..], b".sync-conflict-20261124-101500-ABCDEFG"].concat();
            root.rename(&stored, &*root, &copy, RenameMode::Replace).unwrap();
            raw::write(&*root, &stored, &raw::read(&*other.root(), &stored));
            let vault = open_on(&here, Some(&state)).unwrap();
            assert_eq!(get(&vault, b"file").unwrap(), b"theirs", "{what}");
            let all = files(&vault);
            assert_eq!(all.len(), 2, "{what}");
            let ours = all.iter().find(|(path, _)| path != b"file").unwrap().1.as_ref();
            let ours = ours.unwrap_or_else(|error| panic!("{what}, harsh {harsh}: {error}"));
            assert!(*ours == before || *ours == after, "{what}");
            torn += usize::from(readable.iter().any(|(_, bytes)| bytes.is_err()));
            completed += usize::from(readable.iter().all(|(_, bytes)| bytes.as_ref() != Ok(ours)));
            assert!(vault.check(b"", &mut |_| {}).unwrap().faults.is_empty(), "{what}");
            vault.close().unwrap();
            assert_eq!(below(&*state.root(), b"+journal-").len(), 0, "{what}");
            assert_eq!(below(&*state.root(), b"+refused-").len(), 0, "{what}");
        }
    }
    assert!(torn > 0 && completed > 0, "{torn} torn, {completed} completed");
}

/// Power is lost at each moment of a commit. Before the daemon returns, a sync tool does what another
/// machine has done: it renames the file, or moves it to another directory, or makes a copy there.
/// The records of the journal did not find the file. What had been acknowledged was in a refused
/// journal, which nothing reads.
#[test]
fn a_replay_finds_a_file_that_another_machine_renamed() {
    let (cuts, _) = cuts();
    let mut completed = 0;
    for (n, Cut { what, store, state, promises }) in cuts.iter().enumerate() {
        let durable = promises.get(&b"file"[..]).is_some_and(|allowed| !allowed.unreadable);
        if !durable {
            continue;
        }
        for (to, is_copied) in [(&b"new"[..], false), (b"dir/new", false), (b"dir/file", true)] {
            let mut chance = crate::support::cuts::chance(n as u64);
            let here = store.crash(&mut |n| chance(n));
            let state = state.as_ref().unwrap().crash(&mut |n| n - 1);
            let before = get(&open_on(&here.snapshot(), None).unwrap(), b"file").ok();
            let expected = {
                let vault = open_on(&here.snapshot(), Some(&state.snapshot())).unwrap();
                get(&vault, b"file").unwrap()
            };
            let other = cuts.last().unwrap().store.snapshot();
            let theirs = open_on(&other, Some(&MemStore::new())).unwrap();
            mkdir(&theirs, b"dir").unwrap();
            rename(&theirs, b"file", to, VaultRename::NoReplace).unwrap();
            let path = theirs.cipher_path(to).unwrap();
            theirs.close().unwrap();
            let (root, (above, name)) = (here.root(), vaults::split(&path));
            let stored = stored_file(&*root);
            let dir = match above {
                b"" => root.clone(),
                _ => {
                    root.mkdir(above, 0o700).unwrap();
                    root.open_dir(above).unwrap()
                }
            };
            if is_copied {
                raw::write(&*dir, name, &raw::read(&*root, &stored));
                root.unlink(&stored).unwrap();
            } else {
                root.rename(&stored, &*dir, name, RenameMode::NoReplace).unwrap();
            }
            let vault = open_on(&here, Some(&state)).unwrap();
            let there = get(&vault, to).unwrap();
            // A copy of which nothing was written yet may be a former version that somebody restored.
            // What the record contains was not acknowledged then: that would be in the file.
            let is_former = is_copied && there != expected;
            let path = to.escape_ascii();
            assert!(!is_former || before.as_ref() == Some(&there), "{what}: {path}");
            assert!(promises[&b"file"[..]].states.contains(&Some(there.into())), "{what}: {path}");
            completed += usize::from(before.as_ref() != Some(&expected) && !is_former);
            assert!(vault.check(b"", &mut |_| {}).unwrap().faults.is_empty(), "{what}");
            vault.close().unwrap();
            assert_eq!(below(&*state.root(), b"+journal-").len(), 0, "{what}");
            assert_eq!(below(&*state.root(), b"+refused-").len(), usize::from(is_former), "{what}");
        }
    }
    assert!(completed > 0);
}

/// The stored name of the only file.
fn stored_file(root: &dyn Dir) -> Vec<u8> {
    raw::names(root).into_iter().find(|name| name[0] != b'+').unwrap()
}

/// The file was removed by another machine, and no copy of ours exists: the mount works, and the
/// records that do not fit are kept and reported.
#[test]
fn records_that_fit_nothing_refuse_no_mount_and_are_shown() {
    let (cuts, _) = cuts();
    let local = |state: &MemStore, path: &str| Local { state: state.root(), path: path.into() };
    let mut refused = 0;
    for Cut { what, store, state, promises } in &cuts {
        let durable = promises.get(&b"file"[..]).is_some_and(|allowed| !allowed.unreadable);
        let (here, state) = (store.snapshot(), state.as_ref().unwrap().snapshot());
        let share = Vault::describe(&here.root()).unwrap().share_id;
        let waiting = local(&state, "/elsewhere").kept(&share);
        if !durable || below(&*state.root(), b"+journal-").is_empty() {
            continue;
        }
        assert_eq!(waiting[0].waiting, 1, "{what}: the journal waits for its copy");
        here.root().unlink(&stored_file(&*here.root())).unwrap();
        let vault = open_on(&here, Some(&state)).unwrap();
        put(&vault, b"another", b"file").unwrap();
        vault.close().unwrap();
        let kept = local(&state, "/copy").kept(&share);
        refused += kept.iter().map(|kept| kept.refused).sum::<usize>();
        assert_eq!(below(&*here.root(), b"+refused-").len(), 0, "nothing of it reaches the store");
    }
    assert!(refused > 0);
}

/// A copy that was moved to another path after it crashed finds its journal. Another copy of the
/// same vault on the same machine does not use it.
#[test]
fn a_journal_belongs_to_one_copy() {
    let (store, state) = synced();
    let place = tempfile::tempdir().unwrap();
    let open_at = |store: &MemStore, state: &MemStore, path: &std::path::Path| {
        let local = Some(Local { state: state.root(), path: path.into() });
        Vault::open(store.root(), &owner(), OpenOptions { local, ..OpenOptions::default() })
    };
    let vault = open_at(&store, &state, place.path()).unwrap();
    put(&vault, b"file", &pattern(1, LARGE)).unwrap();
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 0, b"synced", false).unwrap();
    vault.fsync(handle, false).unwrap();
    // The daemon dies.
    let (store, state) = (store.snapshot(), state.snapshot());
    let journals = below(&*state.root(), b"+journal-");
    assert_eq!(journals.len(), 1);
    let copy = store.snapshot();
    open_at(&copy, &state, "/another/copy".as_ref()).unwrap().close().unwrap();
    assert_eq!(below(&*state.root(), b"+journal-"), journals);
    drop(place);
    let share = Vault::describe(&store.root()).unwrap().share_id;
    let other = Local { state: state.root(), path: "/another/copy".into() };
    assert_eq!(other.kept(&share).iter().map(|kept| kept.waiting).sum::<usize>(), 1);
    let moved = open_at(&store, &state, "/moved/copy".as_ref()).unwrap();
    assert_eq!(&get(&moved, b"file").unwrap()[..6], b"synced");
    moved.close().unwrap();
    assert_eq!(below(&*state.root(), b"+journal-").len(), 0);
}

/// Acknowledged data is in the store itself, and not only in the journal: a sync tool that delivers
/// another machine's version before the journal is replayed can keep ours. The power fails after
/// `fsync` has returned, and the machine's journal is ignored.
#[test]
fn what_is_acknowledged_is_in_the_store_itself() {
    let (cuts, [_, after]) = cuts();
    let Cut { store, state, .. } = cuts.last().unwrap();
    assert_eq!(below(&*state.as_ref().unwrap().root(), b"+journal-").len(), 1);
    let elsewhere = open_on(&store.crash(&mut |_| 0), Some(&MemStore::new())).unwrap();
    assert!(get(&elsewhere, b"file").unwrap() == after);
}

/// The reads that a copying tool has begun: the handle, and the contents at that moment.
type Begun = Arc<parking_lot::Mutex<Vec<(Arc<dyn File>, Vec<u8>)>>>;

fn read_all(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Runs `act` on a synced vault with a file. Before each call of the store except opens and stats,
/// and at the end, a tool opens the file and reads its first half, at least `least` bytes. It also
/// completes each read that it has begun. Returns the contents of all copies, as a vault shows
/// them, and the store.
fn copied(
    before: &[u8],
    least: usize,
    act: impl FnOnce(&Vault),
) -> (BTreeSet<Result<Vec<u8>, String>>, MemStore) {
    let (store, state) = synced();
    let vault = open_on(&store, Some(&state)).unwrap();
    put(&vault, b"file", before).unwrap();
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.release(handle).unwrap();
    let stored = stored_file(&*store.root());
    let (begun, copies) = (Begun::default(), Arc::new(parking_lot::Mutex::new(BTreeSet::new())));
    let look = {
        let (root, stored, copies) = (store.root(), stored.clone(), copies.clone());
        move || {
            let mut begun = begun.lock();
            let mut copies = copies.lock();
            if let Ok(file) = root.open_file(&stored, Access::Read) {
                let bytes = read_all(&*file);
                begun.push((file, bytes));
            }
            for (file, first) in &*begun {
                let now = read_all(&**file);
                let half = (first.len() / 2).max(least).min(first.len());
                let rest = now.get(half..first.len().min(now.len())).unwrap_or(&[]);
                copies.insert([&first[..half], rest].concat());
            }
        }
    };
    let watch = look.clone();
    store.on_event(Box::new(move |event| {
        if !matches!(event.call, Call::OpenFile | Call::Stat) {
            watch()
        }
    }));
    act(&vault);
    look();
    store.on_event(Box::new(|_| {}));
    vault.close().unwrap();
    assert_eq!(raw::named(&*store.root(), b"~"), [b""; 0], "a new file is left");
    let copies = std::mem::take(&mut *copies.lock());
    let shown = copies.iter().map(|copy| {
        let elsewhere = store.snapshot();
        raw::write(&*elsewhere.root(), &stored, copy);
        let vault = open_on(&elsewhere, Some(&MemStore::new())).unwrap();
        get(&vault, b"file").map_err(|e| e.to_string())
    });
    (shown.collect(), store)
}

/// A sync tool copies a small file at every moment of its commits. Each copy is a version that the
/// file had. When commits were made in place, a copy had the header of one version and the contents
/// of the other, and stayed unreadable if another machine renamed it.
#[test]
fn a_copy_of_a_small_file_is_never_torn() {
    for len in [50, 3000, 4096, 4097, 30_000, 250_000] {
        let old = pattern(1, len);
        let appended = [&old[..], b"and more"].concat();
        let mut patched = old.clone();
        patched[len / 2..len / 2 + 20].copy_from_slice(&pattern(2, 20));
        let expect = |what: &str, versions: &[&[u8]], act: &dyn Fn(&Vault)| {
            // An empty file is filled in place. No tool reads its header in parts.
            let least = if what == "replace" { 4096 } else { 0 };
            let (copies, store) = copied(&old, least, act);
            for copy in &copies {
                let copy = copy.as_ref().unwrap_or_else(|e| panic!("{what}, {len} bytes: {e}"));
                assert!(versions.contains(&&copy[..]), "{what}, {len} bytes: {}", copy.len());
            }
            assert_eq!(copies.len(), versions.len(), "{what}, {len} bytes");
            let after = open_on(&store, Some(&MemStore::new())).unwrap();
            assert_eq!(get(&after, b"file").unwrap(), *versions.last().unwrap(), "{what}");
            assert_eq!(vaults::faults(&after), [""; 0], "{what}");
        };
        expect("append", &[&old, &appended], &|vault| {
            let flags = OpenFlags { append: true, ..READ_WRITE };
            let handle = vaults::open_or_create(vault, b"file", flags).unwrap();
            vault.write(handle, 0, b"and more", false).unwrap();
            vault.fsync(handle, false).unwrap();
            vault.release(handle).unwrap();
        });
        expect("overwrite", &[&old, &patched], &|vault| {
            write_at(vault, b"file", len as u64 / 2, &pattern(2, 20)).unwrap();
        });
        expect("background", &[&old, &patched], &|vault| {
            let handle = vaults::open_or_create(vault, b"file", READ_WRITE).unwrap();
            vault.write(handle, len as u64 / 2, &pattern(2, 20), false).unwrap();
            vault.commit_due(Duration::ZERO);
            vault.release(handle).unwrap();
        });
        expect("shorten", &[&old, &old[..len / 2]], &|vault| {
            let size = Some(len as u64 / 2);
            let set = SetAttr { size, ..Default::default() };
            at(vault, b"file", |node| vault.setattr(node, &set)).unwrap();
        });
        expect("replace", &[&old, b"", &appended], &|vault| {
            put(vault, b"file", &appended).unwrap()
        });
    }
    // The same tool does tear a larger file.
    let (copies, _) = copied(&pattern(1, LARGE), 0, |vault| {
        write_at(vault, b"file", LARGE as u64 / 2, b"in place").unwrap();
    });
    assert!(copies.iter().any(Result::is_err));
}

/// A program sees the inode number of a file for as long as it may have the file open: SQLite
/// refuses to write to a database whose number has changed.
#[test]
fn a_commit_that_replaces_a_file_keeps_its_attributes() {
    let (store, state) = synced();
    let vault = open_on(&store, Some(&state)).unwrap();
    put(&vault, b"file", &pattern(1, 10_000)).unwrap();
    set_xattr(&vault, b"file", b"user.note", b"of a program").unwrap();
    let set = SetAttr { perm: Some(0o640), ..Default::default() };
    let before = at(&vault, b"file", |node| vault.setattr(node, &set)).unwrap();
    let stored = stored_file(&*store.root());
    let first = store.root().stat(&stored).unwrap();
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    for n in 0..3 {
        vault.write(handle, 5000, &[n; 100], false).unwrap();
        vault.fsync(handle, false).unwrap();
        let now = at(&vault, b"file", |node| vault.getattr(node)).unwrap();
        assert_eq!((now.ino, now.perm, now.nlink), (before.ino, 0o640, 1), "commit {n}");
        put(&vault, format!("other {n}").as_bytes(), b"may get the old number").unwrap();
    }
    let last = store.root().stat(&stored).unwrap();
    assert_ne!(first.ino, last.ino, "the file was replaced");
    let note = at(&vault, b"file", |node| vault.get_xattr(node, b"user.note")).unwrap();
    assert_eq!(note, b"of a program");
    vault.release(handle).unwrap();
    // A file with a second name is written in place.
    let root = ROOT;
    at(&vault, b"file", |node| vault.link(node, root, b"name")).unwrap();
    write_at(&vault, b"file", 0, b"again").unwrap();
    assert_eq!(store.root().stat(&stored).unwrap().ino, last.ino);
    assert_eq!(&get(&vault, b"name").unwrap()[..5], b"again");
    // In a vault that is not synced, every file is written in place.
    let plain = MemStore::new();
    vaults::create(&plain.root(), Suite::Aes256Gcm, 12);
    let vault = open_on(&plain, None).unwrap();
    put(&vault, b"file", b"one").unwrap();
    let ino = plain.root().stat(&stored_file(&*plain.root())).unwrap().ino;
    write_at(&vault, b"file", 0, b"two").unwrap();
    assert_eq!(plain.root().stat(&stored_file(&*plain.root())).unwrap().ino, ino);
}

/// A sync tool puts another machine's version in place just before a commit exchanges the files.
/// Both versions are kept.
#[test]
fn a_version_that_arrives_during_the_exchange_is_kept() {
    let (store, state) = synced();
    let vault = open_on(&store, Some(&state)).unwrap();
    put(&vault, b"file", &pattern(1, 10_000)).unwrap();
    let other = store.snapshot();
    let theirs = open_on(&other, Some(&MemStore::new())).unwrap();
    put(&theirs, b"file", b"theirs").unwrap();
    theirs.close().unwrap();
    let stored = stored_file(&*store.root());
    let (root, bytes) = (store.root(), raw::read(&*other.root(), &stored));
    let name = stored.clone();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    store.on_event(Box::new(move |event| {
        let is_exchange =
            event.call == Call::Rename && event.name.is_some_and(|name| name.starts_with(b"~"));
        if is_exchange && !is_done.swap(true, std::sync::atomic::Ordering::Relaxed) {
            raw::write(&*root, b"~tool", &bytes);
            root.rename(b"~tool", &*root, &name, RenameMode::Replace).unwrap();
        }
    }));
    let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
    vault.write(handle, 0, b"ours", false).unwrap();
    vault.fsync(handle, false).unwrap();
    vault.release(handle).unwrap();
    store.on_event(Box::new(|_| {}));
    assert_eq!(get(&vault, b"file").unwrap(), b"theirs");
    let all = files(&vault);
    assert_eq!(all.len(), 2);
    let ours = all.iter().find(|(path, _)| path != b"file").unwrap().1.as_ref().unwrap();
    assert_eq!((&ours[..4], ours.len()), (&b"ours"[..], 10_000));
    assert_eq!(vaults::faults(&vault), [""; 0]);
    vault.close().unwrap();
    assert_eq!(raw::named(&*store.root(), b"~"), [b""; 0]);
}

/// A sync tool overwrites the stored file itself just before a commit exchanges the files, or while the
/// commit waits for the journal. Its version was overwritten. It stays, and ours is kept beside it, or
/// refused if nothing is left of what it was based on.
#[test]
fn a_version_written_in_place_during_a_commit_is_kept() {
    for len in [100, 10_000, LARGE] {
        for is_background in [false, true] {
            let (store, state) = synced();
            let vault = open_on(&store, Some(&state)).unwrap();
            let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
            vault.write(handle, 0, &pattern(1, len), false).unwrap();
            vault.fsync(handle, false).unwrap();
            let (other, wanted) = (store.snapshot(), pattern(2, len + 5000));
            let theirs = open_on(&other, Some(&MemStore::new())).unwrap();
            put(&theirs, b"file", &wanted).unwrap();
            theirs.close().unwrap();
            let stored = stored_file(&*store.root());
            let (root, bytes) = (store.root(), raw::read(&*other.root(), &stored));
            let arrived = Arc::new(AtomicBool::new(false));
            let arrive = {
                let arrived = arrived.clone();
                move || {
                    if !arrived.swap(true, Ordering::Relaxed) {
                        let file = root.open_file(&stored, Access::ReadWrite).unwrap();
                        file.write_at(&bytes, 0).unwrap();
                        file.set_len(bytes.len() as u64).unwrap();
                    }
                }
            };
            let in_journal = arrive.clone();
            store.on_event(Box::new(move |event| {
                let is_new = event.name.is_some_and(|name| name.starts_with(b"~"));
                if event.call == Call::Rename && is_new {
                    arrive()
                }
            }));
            vault.write(handle, 0, b"ours", false).unwrap();
            state.on_event(Box::new(move |event| {
                if event.call == Call::SyncData {
                    in_journal()
                }
            }));
            if is_background {
                vault.commit_due(Duration::ZERO);
            }
            let kept = vault.fsync(handle, false);
            store.on_event(Box::new(|_| {}));
            state.on_event(Box::new(|_| {}));
            let what = format!("{len} bytes, background {is_background}: {kept:?}");
            assert!(arrived.load(Ordering::Relaxed), "{what}");
            let _ = vault.release(handle);
            vault.close().unwrap();
            drop(vault);
            let vault = open_on(&store, Some(&state)).unwrap();
            let all = files(&vault);
            let there = all.iter().find(|(path, _)| path == b"file").unwrap().1.as_ref();
            assert!(there.is_ok_and(|bytes| *bytes == wanted), "{what}");
            let mut ours = pattern(1, len);
            ours[..4].copy_from_slice(b"ours");
            let is_ours = |(path, bytes): &(Vec<u8>, Contents)| {
                path != b"file" && bytes.as_ref() == Ok(&ours)
            };
            assert_eq!(all.iter().filter(|it| is_ours(it)).count(), all.len() - 1, "{what}");
            assert_eq!(all.len(), if kept.is_ok() { 2 } else { 1 }, "{what}");
            assert!(kept.is_ok() || len > 100, "{what}");
            assert_eq!(vaults::faults(&vault), [""; 0], "{what}");
            vault.close().unwrap();
            assert_eq!(raw::named(&*store.root(), b"~"), [b""; 0], "{what}");
            for left in [&b"+journal-"[..], b"+refused-"] {
                assert_eq!(below(&*state.root(), left), [b""; 0], "{what}");
            }
        }
    }
}

/// The background commits a small file that was synced before, or its last close does, and the power
/// fails. The exchange of the files was not durable: it could be missing however long ago it was made.
#[test]
fn a_background_commit_of_a_small_file_is_durable() {
    for is_closed in [false, true] {
        for chance in [0, 1] {
            let (store, state) = synced();
            let vault = open_on(&store, Some(&state)).unwrap();
            mkdir(&vault, b"dir").unwrap();
            let handle = vaults::open_or_create(&vault, b"dir/file", READ_WRITE).unwrap();
            vault.write(handle, 0, &pattern(1, 10_000), false).unwrap();
            vault.fsync(handle, false).unwrap();
            let dir = store.root().open_dir(&vault.cipher_path(b"dir").unwrap()).unwrap();
            let before = dir.stat(&stored_file(&*dir)).unwrap().ino;
            vault.write(handle, 0, b"new", false).unwrap();
            if is_closed {
                vault.release(handle).unwrap();
            } else {
                vault.commit_due(Duration::ZERO);
            }
            assert_ne!(dir.stat(&stored_file(&*dir)).unwrap().ino, before, "it is replaced");
            let mut choose = |n: usize| if chance == 0 { 0 } else { n - 1 };
            let cut = (store.crash(&mut choose), state.crash(&mut choose));
            let after = open_on(&cut.0, Some(&cut.1)).unwrap();
            let what = format!("closed {is_closed}, chance {chance}");
            assert_eq!(&get(&after, b"dir/file").unwrap()[..3], b"new", "{what}");
        }
    }
}

/// Each call of a commit fails once, for several reasons. A commit that cannot replace the file is
/// made in place. Acknowledged contents are kept; only the old or the new contents are ever shown.
#[test]
fn a_replacement_fails_at_any_call_and_loses_nothing() {
    let (old, new) = (pattern(1, 10_000), [&b"new"[..], &pattern(1, 10_000)[3..]].concat());
    let (store, state) = synced();
    let vault = open_on(&store, Some(&state)).unwrap();
    put(&vault, b"file", &old).unwrap();
    vault.close().unwrap();
    let mut in_place = 0;
    for errno in [libc::EIO, libc::ENOSPC, libc::EACCES, libc::EINVAL] {
        for nth in 1.. {
            let here = store.snapshot();
            let stored = stored_file(&*here.root());
            let ino = here.root().stat(&stored).unwrap().ino;
            let plan = FaultPlan::new();
            let local = Some(Local { state: MemStore::new().root(), path: "/copy".into() });
            let options = OpenOptions { local, ..OpenOptions::default() };
            let root = FaultStore::wrap(here.root(), plan.clone());
            let vault = Vault::open(root, &owner(), options).unwrap();
            let handle = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
            vault.write(handle, 0, b"new", false).unwrap();
            plan.reset();
            let (calls, when) = (Calls::All, When::Nth(nth));
            plan.add(Fault { calls, when, errno, short: false });
            let synced = vault.fsync(handle, false);
            let failed = plan.failed();
            plan.heal();
            let what = format!("errno {errno} at call {nth}: {synced:?}");
            let crashed = open_on(&here.crash(&mut |_| 0), Some(&MemStore::new())).unwrap();
            let shown = get(&crashed, b"file").unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(shown == new || synced.is_err() && shown == old, "{what}");
            let _ = vault.release(handle);
            let _ = vault.close();
            let after = open_on(&here, Some(&MemStore::new())).unwrap();
            let shown = get(&after, b"file").unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(shown == new || synced.is_err() && shown == old, "{what}");
            let found = after.check(b"", &mut |_| {}).unwrap().faults;
            assert!(found.iter().all(|fault| fault.residue), "{what}: {found:?}");
            in_place += usize::from(here.root().stat(&stored).unwrap().ino == ino);
            if failed == 0 {
                assert!(nth > 10, "{nth} calls");
                break;
            }
        }
    }
    assert!(in_place > 10, "{in_place}");
}

/// A power cut between the exchange and the removal of the old file leaves it beside the new one. A
/// check counts it as residue.
#[test]
fn a_file_that_a_commit_left_behind_is_residue() {
    let (store, state) = synced();
    let vault = open_on(&store, Some(&state)).unwrap();
    vaults::mkdir(&vault, b"dir").unwrap();
    put(&vault, b"dir/file", &pattern(1, 10_000)).unwrap();
    let cut = Arc::new(parking_lot::Mutex::new(None));
    let (kept, live) = (cut.clone(), store.clone());
    store.on_event(Box::new(move |event| {
        if event.call == Call::Unlink && event.name.is_some_and(|name| name.starts_with(b"~")) {
            kept.lock().get_or_insert_with(|| live.snapshot());
        }
    }));
    write_at(&vault, b"dir/file", 0, b"new").unwrap();
    store.on_event(Box::new(|_| {}));
    let cut = cut.lock().take().expect("an exchange");
    let after = open_on(&cut, Some(&MemStore::new())).unwrap();
    assert_eq!(&get(&after, b"dir/file").unwrap()[..3], b"new");
    let report = after.check(b"", &mut |_| {}).unwrap();
    assert!(report.faults.iter().all(|fault| fault.residue), "{:?}", report.faults);
    assert_eq!(report.faults.len(), 1);
    // The residue does not keep its directory from being removed.
    let node = after.resolve(b"dir").unwrap().node;
    after.unlink(node, b"file").unwrap();
    after.rmdir(ROOT, b"dir").unwrap();
    assert_eq!(vaults::faults(&after), [""; 0]);
}

/// Makes `to` equal to `from`, as a sync tool does that keeps existing directories.
fn mirror(from: &dyn Dir, to: &dyn Dir) {
    let is_dir = |dir: &dyn Dir, name: &[u8]| {
        dir.stat(name).map(|stat| stat.kind == kithfs::store::Kind::Dir)
    };
    for name in raw::names(to) {
        let there = is_dir(to, &name).unwrap();
        if is_dir(from, &name).is_ok_and(|it| it == there) {
            continue;
        }
        if there {
            let dir = to.open_dir(&name).unwrap();
            mirror(&*MemStore::new().root(), &*dir);
            to.rmdir(&name).unwrap();
        } else {
            to.unlink(&name).unwrap();
        }
    }
    for name in raw::names(from) {
        if is_dir(from, &name).unwrap() {
            let _ = to.mkdir(&name, 0o755);
            mirror(&*from.open_dir(&name).unwrap(), &*to.open_dir(&name).unwrap());
        } else {
            let bytes = raw::read(from, &name);
            if to.stat(&name).is_err() || raw::read(to, &name) != bytes {
                raw::write(to, &name, &bytes);
            }
        }
    }
}

/// A directory that a mount had looked up was made a share on another machine, and the sync tool
/// put the share into the directory that was there. The mount went on writing under the keys of the
/// surrounding vault: people who are no members of the share could read that, and its members did
/// not see it. The same happened with a share that was removed there, with a plain directory of its
/// name in its place: what was written after that was lost.
#[test]
fn a_directory_becomes_a_share_and_a_plain_one_again() {
    let (here, state) = synced();
    let vault = open_on(&here, Some(&state)).unwrap();
    vaults::mkdir(&vault, b"dir").unwrap();
    put(&vault, b"dir/file", b"old").unwrap();
    vault.close().unwrap();
    let (there, their_state) = (here.snapshot(), MemStore::new());
    let on = |store: &MemStore, state: &MemStore, act: &dyn Fn(&Vault)| {
        let vault = open_on(store, Some(state)).unwrap();
        act(&vault);
        vault.close().unwrap();
    };

    let mount = open_on(&here, Some(&state)).unwrap();
    let dir = mount.lookup(ROOT, b"dir").unwrap().node;
    assert_eq!(get(&mount, b"dir/file").unwrap(), b"old");
    let founder = kithfs::vault::CreateShare { name: "Ann".into(), ..Default::default() };
    on(&there, &their_state, &|vault| {
        vault.create_share(b"dir", &founder, &mut |_| {}).unwrap();
    });
    mirror(&*there.root(), &*here.root());
    put(&mount, b"dir/new", b"for members").unwrap();
    assert_eq!(get(&mount, b"dir/file").unwrap(), b"old");
    assert_eq!(mount.lookup(ROOT, b"dir").unwrap().node, dir, "it is the same directory");
    mount.close().unwrap();
    mirror(&*here.root(), &*there.root());
    on(&there, &their_state, &|vault| {
        assert_eq!(get(vault, b"dir/new").unwrap(), b"for members");
        assert!(vault.check(b"", &mut |_| {}).unwrap().faults.is_empty());
    });

    let mount = open_on(&here, Some(&state)).unwrap();
    let open = vaults::open_or_create(&mount, b"dir/file", READ_WRITE).unwrap();
    on(&there, &their_state, &|vault| {
        let dir = vault.lookup(ROOT, b"dir").unwrap().node;
        vault.unlink(dir, b"file").unwrap();
        vault.unlink(dir, b"new").unwrap();
        vault.rmdir(ROOT, b"dir").unwrap();
        vaults::mkdir(vault, b"dir").unwrap();
        put(vault, b"dir/plain", b"plain").unwrap();
    });
    mirror(&*there.root(), &*here.root());
    let late = put(&mount, b"dir/late", b"late").unwrap_err();
    assert_eq!(late.errno(), libc::ESTALE, "a program has a file of the share open");
    mount.release(open).unwrap();
    put(&mount, b"dir/late", b"late").unwrap();
    assert_eq!(get(&mount, b"dir/plain").unwrap(), b"plain");
    mount.close().unwrap();
    on(&here, &state, &|vault| {
        assert_eq!(get(vault, b"dir/late").unwrap(), b"late");
        assert_eq!(get(vault, b"dir/plain").unwrap(), b"plain");
        assert!(vault.check(b"", &mut |_| {}).unwrap().faults.is_empty());
    });
}

/// A program has a file of a directory open that another machine has made a share, and the sync
/// tool puts the share in the place of the directory, or has removed the directory and is about to
/// deliver the share. What the program writes through its descriptor goes neither into the share,
/// whose keys it would not have, nor beside it, where the members of the surrounding vault read it:
/// it fails.
#[test]
fn a_descriptor_from_before_a_share_writes_nowhere_else() {
    for has_arrived in [true, false] {
        let (here, state) = synced();
        let vault = open_on(&here, Some(&state)).unwrap();
        vaults::mkdir(&vault, b"dir").unwrap();
        vaults::mkdir(&vault, b"dir/sub").unwrap();
        put(&vault, b"dir/sub/file", &pattern(1, 30_000)).unwrap();
        let stored = vault.cipher_path(b"dir").unwrap();
        vault.close().unwrap();
        let (there, their_state) = (here.snapshot(), MemStore::new());
        let founder = kithfs::vault::CreateShare { name: "Ann".into(), ..Default::default() };
        let vault = open_on(&there, Some(&their_state)).unwrap();
        vault.create_share(b"dir", &founder, &mut |_| {}).unwrap();
        vault.close().unwrap();

        let mount = open_on(&here, Some(&state)).unwrap();
        let open = vaults::open_or_create(&mount, b"dir/sub/file", READ_WRITE).unwrap();
        mount.write(open, 0, b"ours", false).unwrap();
        let root = here.root();
        root.rename(&stored, &*root, b".away", RenameMode::NoReplace).unwrap();
        mirror(&*there.root(), &*root);
        if !has_arrived {
            root.rename(&stored, &*root, b".share", RenameMode::NoReplace).unwrap();
        }
        let before = raw::names(&*root);
        assert_eq!(mount.fsync(open, false).unwrap_err().errno(), libc::EIO, "{has_arrived}");
        assert!(mount.release(open).is_err(), "{has_arrived}");
        assert_eq!(raw::names(&*root), before, "{has_arrived}: nothing is created");
        if has_arrived {
            assert_eq!(get(&mount, b"dir/sub/file").unwrap(), pattern(1, 30_000));
        }
        mount.close().unwrap();
    }
}

/// A sync tool kept a directory as a conflict copy, and another machine made a share of the directory.
/// A mount that had the copy open looked for the share under the copy's own name, and went on writing
/// there under the keys of the surrounding vault, which a later mount refuses.
#[test]
fn a_conflict_copy_of_a_share_is_refused_when_it_arrives() {
    let (here, state) = synced();
    let vault = open_on(&here, Some(&state)).unwrap();
    vaults::mkdir(&vault, b"dir").unwrap();
    let stored = vault.cipher_path(b"dir").unwrap();
    vault.close().unwrap();
    let (there, their_state) = (here.snapshot(), MemStore::new());
    let founder = kithfs::vault::CreateShare { name: "Ann".into(), ..Default::default() };
    let vault = open_on(&there, Some(&their_state)).unwrap();
    vault.create_share(b"dir", &founder, &mut |_| {}).unwrap();
    vault.close().unwrap();
    let (root, theirs) = (here.root(), there.root());
    let copy = [&stored[..], b" (2)"].concat();
    root.rename(&stored, &*root, &copy, RenameMode::NoReplace).unwrap();

    let mount = open_on(&here, Some(&state)).unwrap();
    mount.lookup(ROOT, b"dir (2)").unwrap();
    put(&mount, b"dir (2)/before", b"before").unwrap();
    for name in raw::names(&*theirs).into_iter().filter(|name| name[0] == b'+') {
        if theirs.stat(&name).unwrap().kind == kithfs::store::Kind::File
            && root.stat(&name).is_err()
        {
            raw::write(&*root, &name, &raw::read(&*theirs, &name));
        }
    }
    let refused = put(&mount, b"dir (2)/after", b"after").unwrap_err();
    mount.close().unwrap();
    let mount = open_on(&here, Some(&state)).unwrap();
    let later = put(&mount, b"dir (2)/after", b"after").unwrap_err();
    mount.close().unwrap();
    assert_eq!(refused.errno(), later.errno());
}
