use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::store::conformance::conformance;
use crate::store::{Access, Allocate, File, Kind, RenameMode, SetTime, Timestamp};

conformance!(conforms, ((), MemStore::new().root()));

/// Everything visible in a store, by path: the attributes, and the bytes or the link's target.
type Seen = BTreeMap<Vec<u8>, (Kind, u32, u32, Timestamp, Vec<u8>)>;

fn see(store: &MemStore) -> Seen {
    fn walk(dir: &Arc<dyn Dir>, path: &[u8], seen: &mut Seen) {
        for entry in dir.read(0, usize::MAX).unwrap() {
            let path = [path, b"/", &entry.name].concat();
            let stat = dir.stat(&entry.name).unwrap();
            let bytes = match stat.kind {
                Kind::File => read(dir, &entry.name).unwrap(),
                Kind::Symlink => dir.readlink(&entry.name).unwrap(),
                _ => Vec::new(),
            };
            seen.insert(path.clone(), (stat.kind, stat.perm, stat.nlink, stat.mtime, bytes));
            if stat.kind == Kind::Dir {
                walk(&dir.open_dir(&entry.name).unwrap(), &path, seen);
            }
        }
    }
    let mut seen = Seen::new();
    walk(&store.root(), b"", &mut seen);
    seen
}

fn read(dir: &Arc<dyn Dir>, name: &[u8]) -> io::Result<Vec<u8>> {
    let file = dir.open_file(name, Access::Read)?;
    let mut bytes = vec![0; file.stat()?.size as usize];
    let len = file.read_at(&mut bytes, 0)?;
    assert_eq!(len, bytes.len());
    Ok(bytes)
}

fn harshest(store: &MemStore) -> MemStore {
    store.crash(&mut |_| 0)
}

fn kindest(store: &MemStore) -> MemStore {
    store.crash(&mut |n| n - 1)
}

/// Returns every possible store after a power cut.
fn outcomes(store: &MemStore) -> Vec<MemStore> {
    let (mut choices, mut outcomes) = (Exhaustive::new(), Vec::new());
    while choices.next_run() {
        outcomes.push(store.crash(&mut |n| choices.choose(n)));
    }
    outcomes
}

/// Returns the bytes of the file `f` in the root, in each of the outcomes.
fn contents(store: &MemStore) -> BTreeSet<Option<Vec<u8>>> {
    outcomes(store).iter().map(|after| read(&after.root(), b"f").ok()).collect()
}

fn durable_file(bytes: &[u8]) -> (MemStore, Arc<dyn File>) {
    let store = MemStore::new();
    let file = store.root().create_file(b"f", 0o644).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync_all().unwrap();
    (store, file)
}

#[test]
fn only_unsynced_changes_can_be_lost() {
    let (store, file) = durable_file(b"old");
    file.write_at(b"new", 0).unwrap();
    let other = store.root().create_file(b"other", 0o600).unwrap();
    other.write_at(b"bytes", 0).unwrap();
    assert_eq!(see(&kindest(&store)), see(&store));
    let after = harshest(&store).root();
    assert_eq!(read(&after, b"f").unwrap(), b"old");
    assert!(after.stat(b"other").is_err());
    file.sync_data().unwrap();
    assert_eq!(read(&harshest(&store).root(), b"f").unwrap(), b"new");
    // Syncing a new file's data makes the file durable, and every earlier change of the tree.
    store.root().mkdir(b"later", 0o755).unwrap();
    other.sync_data().unwrap();
    let after = harshest(&store).root();
    assert_eq!(read(&after, b"other").unwrap(), b"bytes");
    assert!(after.stat(b"later").is_err());
    store.root().sync().unwrap();
    assert!(harshest(&store).root().stat(b"later").is_ok());
}

#[test]
fn a_file_can_be_there_without_its_bytes_and_with_its_length() {
    let store = MemStore::new();
    let file = store.root().create_file(b"f", 0o644).unwrap();
    file.write_at(b"abc", 0).unwrap();
    store.root().sync().unwrap();
    assert_eq!(
        contents(&store),
        BTreeSet::from([Some(vec![]), Some(vec![0; 3]), Some(b"abc".to_vec())])
    );
}

#[test]
fn writes_are_kept_in_any_order_and_torn_at_sectors() {
    let (store, file) = durable_file(&[0; 1024]);
    file.write_at(&[1; 512], 256).unwrap();
    file.write_at(&[2; 10], 1000).unwrap();
    let (old, first) = ([0; 256], [1; 256]);
    let mut second = [0; 1024];
    second[1000..1010].fill(2);
    let mut expected = BTreeSet::new();
    for (a, b) in [(old, old), (first, old), (old, first), (first, first)] {
        let mut bytes = [&old[..], &a, &b, &old].concat();
        expected.insert(Some(bytes.clone()));
        bytes[1000..1010].fill(2);
        expected.insert(Some(bytes));
    }
    assert!(expected.contains(&Some(second.to_vec())));
    assert_eq!(contents(&store), expected);
}

#[test]
fn lengths_are_lost_independently() {
    let (store, file) = durable_file(b"0123456789");
    file.set_len(4).unwrap();
    file.set_len(6).unwrap();
    assert_eq!(
        contents(&store),
        BTreeSet::from(
            [&b"0123456789"[..], b"0123", b"0123\0\0"].map(|bytes| Some(bytes.to_vec()))
        )
    );
    // Bytes beyond a length that was lost are not visible, and do not come back when the file grows
    // again.
    let (store, file) = durable_file(b"0123");
    file.write_at(b"xyz", 4).unwrap();
    for after in outcomes(&store) {
        let root = after.root();
        if root.stat(b"f").unwrap().size == 4 {
            root.open_file(b"f", Access::ReadWrite).unwrap().set_len(7).unwrap();
            assert_eq!(read(&root, b"f").unwrap(), b"0123\0\0\0");
        }
    }
}

#[test]
fn a_punched_hole_may_be_there_or_not() {
    let (store, file) = durable_file(&[1; 4096]);
    file.allocate(Allocate::PunchHole, 0, 4096).unwrap();
    assert_eq!(
        (harshest(&store), kindest(&store)).map_both(|after| read(&after.root(), b"f").unwrap()[0]),
        (1, 0)
    );
    // Reserved blocks are certain only after a sync.
    file.sync_all().unwrap();
    file.allocate(Allocate::KeepSize, 0, 16384).unwrap();
    let blocks = |after: MemStore| after.root().stat(b"f").unwrap().blocks;
    assert_eq!((harshest(&store), kindest(&store)).map_both(blocks), (0, 32));
    file.sync_data().unwrap();
    assert_eq!(blocks(harshest(&store)), 32);
}

trait MapBoth<T> {
    fn map_both<U>(self, f: impl Fn(T) -> U) -> (U, U);
}

impl<T> MapBoth<T> for (T, T) {
    fn map_both<U>(self, f: impl Fn(T) -> U) -> (U, U) {
        (f(self.0), f(self.1))
    }
}

#[test]
fn tree_steps_are_lost_from_the_end_and_renames_are_atomic() {
    let (store, _file) = durable_file(b"old");
    let root = store.root();
    root.mkdir(b"d", 0o755).unwrap();
    let dir = root.open_dir(b"d").unwrap();
    dir.create_file(b"new", 0o644).unwrap();
    dir.rename(b"new", &*root, b"f", RenameMode::Replace).unwrap();
    root.link(b"f", &*dir, b"g").unwrap();
    root.rmdir(b"d").unwrap_err();
    let states: Vec<_> = outcomes(&store)
        .iter()
        .map(|after| {
            let root = after.root();
            let in_dir = root.open_dir(b"d").map(|dir| dir.read(0, usize::MAX).unwrap().len()).ok();
            (root.stat(b"f").unwrap().size, root.stat(b"f").unwrap().nlink, in_dir)
        })
        .collect();
    assert_eq!(
        states,
        [(3, 1, None), (3, 1, Some(0)), (3, 1, Some(1)), (0, 1, Some(0)), (0, 2, Some(1))]
    );
}

#[test]
fn fsync_covers_the_inode_and_fdatasync_its_bytes() {
    let (store, file) = durable_file(b"bytes");
    let root = store.root();
    let time = Timestamp { secs: 5, nanos: 6 };
    let change = |perm| {
        file.write_at(b"B", 0).unwrap();
        file.set_times(SetTime::Omit, SetTime::At(time)).unwrap();
        file.chmod(perm).unwrap();
        file.set_xattr(b"user.perm", &[perm as u8]).unwrap();
    };
    change(0o600);
    file.sync_data().unwrap();
    let after = harshest(&store).root();
    assert_eq!(
        (after.stat(b"f").unwrap().perm, read(&after, b"f").unwrap()),
        (0o644, b"Bytes".to_vec())
    );
    assert_ne!(after.stat(b"f").unwrap().mtime, time);
    assert_eq!(after.get_xattr(b"f", b"user.perm").unwrap(), None);
    change(0o640);
    file.sync_all().unwrap();
    let after = harshest(&store).root();
    assert_eq!((after.stat(b"f").unwrap().perm, after.stat(b"f").unwrap().mtime), (0o640, time));
    assert_eq!(
        after.get_xattr(b"f", b"user.perm").unwrap().as_deref(),
        Some(&[0o640u32 as u8][..])
    );
    // A rename touches the file that it moves and the one that it replaces, so an fsync of either
    // makes the rename durable.
    root.rename(b"f", &*root, b"g", RenameMode::Replace).unwrap();
    assert!(harshest(&store).root().stat(b"f").is_ok());
    file.sync_all().unwrap();
    assert!(harshest(&store).root().stat(b"g").is_ok());
    root.create_file(b"h", 0o644).unwrap();
    root.rename(b"h", &*root, b"g", RenameMode::Replace).unwrap();
    file.sync_all().unwrap();
    assert_eq!(harshest(&store).root().stat(b"g").unwrap().size, 0);
}

/// Replaces the file `f` with one that contains `new`. Careful programs sync that one first.
fn replace(root: &Arc<dyn Dir>, sync_first: bool) {
    let file = root.create_file(b"tmp", 0o644).unwrap();
    file.write_at(b"new", 0).unwrap();
    if sync_first {
        file.sync_data().unwrap();
    }
    root.rename(b"tmp", &**root, b"f", RenameMode::Replace).unwrap();
    root.sync().unwrap();
}

// The purpose of the whole model: with the sync, a power cut never leaves anything except old or
// new; without the sync, it can.
#[test]
fn cutting_before_every_change_finds_a_missing_sync() {
    for sync_first in [true, false] {
        let (store, _file) = durable_file(b"old");
        let only_old_or_new = Arc::new(AtomicBool::new(true));
        let check = |store: &MemStore| {
            contents(store).iter().all(|bytes| matches!(bytes.as_deref(), Some(b"old" | b"new")))
        };
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (weak, ok, seen) =
            (Arc::downgrade(&store.shared), only_old_or_new.clone(), calls.clone());
        store.on_event(Box::new(move |event| {
            seen.lock().push(event.call);
            let store = MemStore { shared: weak.upgrade().unwrap() };
            ok.fetch_and(check(&store.snapshot()), Ordering::Relaxed);
        }));
        replace(&store.root(), sync_first);
        let expected = [Call::CreateFile, Call::Write, Call::SyncData, Call::Rename, Call::SyncDir];
        assert!(
            calls
                .lock()
                .iter()
                .eq(expected.iter().filter(|&&call| sync_first || call != Call::SyncData))
        );
        assert_eq!(
            contents(&store),
            BTreeSet::from([
                Some(if sync_first { b"new".to_vec() } else { vec![] }),
                Some(b"new".to_vec())
            ])
            .into_iter()
            .chain(if sync_first { None } else { Some(Some(vec![0; 3])) })
            .collect()
        );
        assert_eq!(only_old_or_new.load(Ordering::Relaxed), sync_first);
    }
}

#[test]
fn events_tell_what_is_about_to_happen() {
    let store = MemStore::new();
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = events.clone();
    store.on_event(Box::new(move |event| seen.lock().push(event)));
    let root = store.root();
    root.mkdir(b"d", 0o755).unwrap();
    root.mkdir(b"d", 0o755).unwrap_err();
    root.stat(b"d").unwrap();
    let file = root.open_dir(b"d").unwrap().create_file(b"f", 0o600).unwrap();
    file.set_len(3).unwrap();
    file.read_at(&mut [0], 0).unwrap();
    let (dir, file) = (root.stat(b"d").unwrap().ino, file.stat().unwrap().ino);
    let event = |call, ino, name: Option<&[u8]>| Event { call, ino, name: name.map(Into::into) };
    let expected = [
        event(Call::Mkdir, ROOT, Some(b"d")),
        event(Call::Mkdir, ROOT, Some(b"d")),
        event(Call::CreateFile, dir, Some(b"f")),
        event(Call::SetLen, file, None),
    ];
    assert_eq!(events.lock()[..], expected);
}

#[test]
fn unlinked_files_free_their_space_and_are_gone_after_a_crash() {
    let store = MemStore::with_capacity(40960);
    let root = store.root();
    let free = || root.space().unwrap().free;
    let unlinked_at_once = root.create_file(b"g", 0o600).unwrap();
    root.unlink(b"g").unwrap();
    unlinked_at_once.write_at(&[1; 8192], 0).unwrap();
    let unlinked = root.create_file(b"f", 0o600).unwrap();
    unlinked.write_at(&[2; 4096], 0).unwrap();
    unlinked.sync_all().unwrap();
    root.unlink(b"f").unwrap();
    assert_eq!(free(), 7);
    // The unlink is not durable yet.
    assert_eq!(read(&harshest(&store).root(), b"f").unwrap(), [2; 4096]);
    assert!(see(&kindest(&store)).is_empty());
    assert_eq!(
        (see(&store.snapshot()), store.snapshot().root().space().unwrap().free),
        (Seen::new(), 10)
    );
    drop((unlinked_at_once, unlinked));
    assert_eq!(free(), 10);
    assert_eq!(read(&harshest(&store).root(), b"f").unwrap(), [2; 4096]);
    root.sync().unwrap();
    assert!(see(&harshest(&store)).is_empty());
    assert!(store.shared.state.lock().is_all_forgotten());
}

#[test]
fn a_full_store_says_so_and_writes_what_fits() {
    let store = MemStore::with_capacity(3 * 4096);
    let root = store.root();
    let file = root.create_file(b"f", 0o644).unwrap();
    let enospc =
        |result: io::Result<()>| assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    enospc(file.write_at(&[1; 5 * 4096], 0));
    assert_eq!(file.stat().unwrap().size, 3 * 4096);
    enospc(file.write_at(b"x", 1 << 20));
    enospc(file.allocate(Allocate::KeepSize, 0, 4 * 4096));
    enospc(root.mkdir(b"d", 0o755));
    file.write_at(b"over", 100).unwrap();
    file.allocate(Allocate::PunchHole, 4096, 4096).unwrap();
    file.allocate(Allocate::KeepSize, 1 << 20, 1).unwrap();
    enospc(file.write_at(b"x", 4096));
    file.write_at(b"x", 1 << 20).unwrap();
    root.unlink(b"f").unwrap();
    drop(file);
    assert_eq!(root.space().unwrap().free, 3);
    store.set_capacity(None);
    root.create_file(b"f", 0o644).unwrap().write_at(&[1; 100_000], 0).unwrap();
}

#[test]
fn a_snapshot_is_another_store() {
    let (store, file) = durable_file(b"one");
    let copy = store.snapshot();
    file.write_at(b"two", 0).unwrap();
    store.root().mkdir(b"d", 0o755).unwrap();
    assert_eq!(see(&copy).len(), 1);
    assert_eq!(read(&copy.root(), b"f").unwrap(), b"one");
    let error = store.root().rename(b"f", &*copy.root(), b"g", RenameMode::Replace).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EXDEV));
}

#[derive(Clone, Debug)]
enum Step {
    Create(u8),
    Mkdir(u8),
    Unlink(u8),
    Rename(u8, u8, bool),
    Link(u8, u8),
    Write(u8, u16, u16, u8),
    SetLen(u8, u16),
    Chmod(u8),
    SyncFile(u8, bool),
    SyncDir,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..6u8).prop_map(Step::Create),
        (0..6u8).prop_map(Step::Mkdir),
        (0..6u8).prop_map(Step::Unlink),
        (0..6u8, 0..6u8, any::<bool>()).prop_map(|(a, b, exchange)| Step::Rename(a, b, exchange)),
        (0..6u8, 0..6u8).prop_map(|(a, b)| Step::Link(a, b)),
        (0..6u8, 0..5000u16, 1..3000u16, any::<u8>())
            .prop_map(|(name, offset, len, byte)| Step::Write(name, offset, len, byte)),
        (0..6u8, 0..6000u16).prop_map(|(name, len)| Step::SetLen(name, len)),
        (0..6u8).prop_map(Step::Chmod),
        (0..6u8, any::<bool>()).prop_map(|(name, all)| Step::SyncFile(name, all)),
        Just(Step::SyncDir),
    ];
    prop::collection::vec(step, 0..40)
}

/// Returns the place of the numbered name: in one of two directories, by its parity.
fn place(store: &MemStore, name: u8) -> io::Result<(Arc<dyn Dir>, [u8; 1])> {
    let root = store.root();
    Ok((if name.is_multiple_of(2) { root } else { root.open_dir(b"0")? }, [b'0' + name]))
}

/// Does the step; fails if the step is not possible.
fn take(store: &MemStore, step: &Step) -> io::Result<()> {
    let place = |name| place(store, name);
    let file = |name| {
        let (dir, name) = place(name)?;
        dir.open_file(&name, Access::ReadWrite)
    };
    match *step {
        Step::Create(name) => {
            place(name).and_then(|(dir, name)| dir.create_file(&name, 0o644).map(drop))
        }
        Step::Mkdir(name) => place(name).and_then(|(dir, name)| dir.mkdir(&name, 0o755)),
        Step::Unlink(name) => {
            place(name).and_then(|(dir, name)| dir.unlink(&name).or_else(|_| dir.rmdir(&name)))
        }
        Step::Rename(from, to, exchange) => {
            let ((dir, name), (new_dir, new_name)) = (place(from)?, place(to)?);
            dir.rename(
                &name,
                &*new_dir,
                &new_name,
                if exchange { RenameMode::Exchange } else { RenameMode::Replace },
            )
        }
        Step::Link(from, to) => {
            let ((dir, name), (new_dir, new_name)) = (place(from)?, place(to)?);
            dir.link(&name, &*new_dir, &new_name)
        }
        Step::Write(name, offset, len, byte) => {
            file(name)?.write_at(&vec![byte; len.into()], offset.into())
        }
        Step::SetLen(name, len) => file(name)?.set_len(len.into()),
        Step::Chmod(name) => place(name).and_then(|(dir, name)| dir.chmod(&name, 0o700)),
        Step::SyncFile(name, true) => file(name)?.sync_all(),
        Step::SyncFile(name, false) => file(name)?.sync_data(),
        Step::SyncDir => store.root().sync(),
    }
}

proptest! {
    #[test]
    fn the_tree_stays_sound_and_synced_data_survives(steps in steps(), chances in prop::collection::vec(any::<usize>(), 1..200)) {
        let store = MemStore::new();
        let _ = store.root().mkdir(b"0", 0o755);
        for step in &steps {
            let done = take(&store, step).is_ok();
            if let (true, &Step::SyncFile(name, all)) = (done, step) {
                // Data that was just synced is complete even in the harshest case: under this name
                // of its directory (wherever that is by then), or after fdatasync under at least
                // one name.
                let (dir, name) = place(&store, name).unwrap();
                let file = (dir.stat(&name).unwrap().ino, read(&dir, &name).unwrap());
                let left = files(&harshest(&store));
                prop_assert!(left.values().any(|left| *left == file));
                if all {
                    prop_assert_eq!(left.get(&(dir.stat_self().unwrap().ino, name)), Some(&file));
                }
            }
        }
        prop_assert_eq!(see(&kindest(&store)), see(&store));
        prop_assert_eq!(see(&store.snapshot()), see(&store));

        let mut at = 0;
        let after = store.crash(&mut |n| {
            at += 1;
            chances[at % chances.len()] % n
        });
        let seen = see(&after);
        // A second power cut loses nothing, and link counts are right.
        prop_assert_eq!(see(&harshest(&after)), seen.clone());
        let mut names: BTreeMap<u64, u32> = BTreeMap::new();
        let mut dirs = vec![after.root()];
        let mut stats = Vec::new();
        while let Some(dir) = dirs.pop() {
            for entry in dir.read(0, usize::MAX).unwrap() {
                *names.entry(entry.ino).or_default() += 1;
                let stat = dir.stat(&entry.name).unwrap();
                match stat.kind {
                    Kind::Dir => dirs.push(dir.open_dir(&entry.name).unwrap()),
                    _ => stats.push(stat),
                }
            }
        }
        for stat in stats {
            prop_assert_eq!(stat.nlink, names[&stat.ino]);
        }
        // Once emptied and synced, the store contains nothing.
        empty(&store.root());
        store.root().sync().unwrap();
        prop_assert!(store.shared.state.lock().is_all_forgotten());
    }
}

/// Inode number and bytes of all files, by the inode number of the directory and the name.
fn files(store: &MemStore) -> BTreeMap<(u64, [u8; 1]), (u64, Vec<u8>)> {
    let (mut dirs, mut found) = (vec![store.root()], BTreeMap::new());
    while let Some(dir) = dirs.pop() {
        for entry in dir.read(0, usize::MAX).unwrap() {
            match entry.kind {
                Some(Kind::Dir) => dirs.push(dir.open_dir(&entry.name).unwrap()),
                _ => drop(found.insert(
                    (dir.stat_self().unwrap().ino, [entry.name[0]]),
                    (entry.ino, read(&dir, &entry.name).unwrap()),
                )),
            }
        }
    }
    found
}

fn empty(dir: &Arc<dyn Dir>) {
    for entry in dir.read(0, usize::MAX).unwrap() {
        if entry.kind == Some(Kind::Dir) {
            empty(&dir.open_dir(&entry.name).unwrap());
            dir.rmdir(&entry.name).unwrap();
        } else {
            dir.unlink(&entry.name).unwrap();
        }
    }
}

#[test]
fn a_failed_flush_leaves_data_visible_until_evicted() {
    let store = MemStore::new();
    let file = store.root().create_file(b"file", 0o644).unwrap();
    file.write_at(&[1; 8192], 0).unwrap();
    file.sync_all().unwrap();
    file.write_at(&[2; 100], 50).unwrap();
    super::lose(&*file);
    file.write_at(&[3; 10], 5000).unwrap();
    file.sync_all().unwrap();
    let read = |store: &MemStore| {
        let mut bytes = vec![0; 8192];
        store.root().open_file(b"file", Access::Read).unwrap().read_at(&mut bytes, 0).unwrap();
        bytes
    };
    let on_disk = [&[1; 5000][..], &[3; 10], &[1; 3182]].concat();
    assert_eq!(read(&store)[50..150], [2; 100]);
    assert_eq!(read(&store.crash(&mut |_| 0)), on_disk);
    let evicted = store.snapshot();
    evicted.evict();
    assert_eq!(read(&evicted), on_disk);
    // A write anywhere in the page makes the whole page dirty.
    file.write_at(&[4], 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(read(&store.crash(&mut |_| 0))[50..150], [2; 100]);
}
