//! A vault that a sync tool keeps equal on several machines: the mark `+synced`, and journals that
//! stay on each machine.

use kithfs::crypto::Suite;
use kithfs::store::mem::MemStore;
use kithfs::store::{Dir, RenameMode};
use kithfs::vault::{Local, OpenOptions, ROOT, Vault};

use crate::support::cuts::{Cut, Session, record_on};
use crate::support::raw;
use crate::support::vaults::{self, Item, READ_WRITE, get, open_on, owner, pattern, put};

/// A synced vault, and the state directory of a machine that has it open.
fn synced() -> (MemStore, MemStore) {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    assert!(Vault::set_synced(&store.root()).unwrap());
    assert!(!Vault::set_synced(&store.root()).unwrap(), "it is set once");
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
    put(&vault, b"file", &pattern(1, 20_000)).unwrap();
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
    // A reader beside a writer, and one after a crash, need no journals of their own.
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

/// Overwrites a file and syncs it on a machine. Returns the contents before and after.
fn overwritten(s: &mut Session) -> [Vec<u8>; 2] {
    let before = pattern(1, 30_000);
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
        assert_eq!(waiting[0].waiting, 1, "{what}: its copy is not where it was");
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
    put(&vault, b"file", &pattern(1, 20_000)).unwrap();
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
