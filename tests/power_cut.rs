//! The power is cut at every call that changes the store, in several ways each; what was promised before must be there afterwards.
//!
//! A session is a list of steps with what each of them promises. The store tells of every event before it happens; at each a snapshot is
//! taken together with the promises that hold by then. Each snapshot is crashed with several choices, opened again (which replays the
//! journal) and read.
//!
//! What is asked of every cut
//! * The vault opens, and opens again after a clean close.
//! * A file that was made durable holds, whole, the state of its last fsync or one that was committed later; never a mixture.
//! * Nothing that can be read was never written: any other file reads as one of its states, or as an error where it was never durable.

#[path = "support/vaults.rs"]
mod vaults;

use std::collections::BTreeMap;
use std::sync::Arc;

use kithfs::backing::mem::MemStore;
use kithfs::crypto::Suite;
use kithfs::vault::{Fallocate, OpenFlags, ROOT, RenameMode, SetAttr, Vault};
use parking_lot::Mutex;
use vaults::{Item, READ_WRITE, Seeded, at, pattern, set_xattr, split};

/// What may stand under a path after a cut; `None` is nothing.
#[derive(Clone, Debug)]
struct Allowed {
    states: Vec<Option<Vec<u8>>>,
    /// An error is allowed too: the file was never durable, or was cut to nothing since.
    unreadable: bool,
}

type Promises = BTreeMap<Vec<u8>, Allowed>;

struct Session {
    vault: Vault,
    promises: Arc<Mutex<Promises>>,
    /// Contents by path as the program sees them.
    now: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Session {
    fn nothing() -> Allowed {
        Allowed { states: vec![None], unreadable: false }
    }

    /// The state of `path` is about to become `next`: it may be there from now on, and what was before may still be.
    fn may(&mut self, path: &[u8], next: Option<&[u8]>) {
        let mut promises = self.promises.lock();
        let allowed = promises.entry(path.to_vec()).or_insert_with(Self::nothing);
        let next = next.map(<[u8]>::to_vec);
        if !allowed.states.contains(&next) {
            allowed.states.push(next);
        }
    }

    /// A file that was never durable, or whose old contents were thrown away, is changing.
    fn may_break(&mut self, path: &[u8]) {
        self.promises.lock().entry(path.to_vec()).or_insert_with(Self::nothing).unreadable = true;
    }

    /// From now on nothing but the present state will do.
    fn must(&mut self, path: &[u8]) {
        let state = self.now.get(path).cloned();
        self.promises.lock().insert(path.to_vec(), Allowed { states: vec![state], unreadable: false });
    }

    fn change(&mut self, path: &[u8], change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.now.get(path).cloned().unwrap_or_default();
        change(&mut bytes);
        self.may(path, Some(&bytes));
        self.now.insert(path.to_vec(), bytes);
    }

    fn open(&self, path: &[u8], flags: OpenFlags) -> u64 {
        vaults::open_or_create(&self.vault, path, flags).unwrap()
    }

    /// Makes a file and fsyncs it, as a careful program does: directory included.
    fn create(&mut self, path: &[u8], bytes: &[u8]) {
        self.may(path, Some(b""));
        self.may_break(path);
        self.change(path, |b| *b = bytes.to_vec());
        let handle = self.open(path, READ_WRITE);
        self.vault.write(handle, 0, bytes, false).unwrap();
        self.vault.fsync(handle, false).unwrap();
        self.sync_dir(split(path).0);
        self.must(path);
        self.vault.release(handle).unwrap();
    }

    fn sync_dir(&self, path: &[u8]) {
        at(&self.vault, path, |node| {
            let handle = self.vault.open_dir(node)?;
            let synced = self.vault.sync_dir(handle);
            self.vault.release_dir(handle);
            synced
        })
        .unwrap();
    }

    /// Writes through an open handle without a promise.
    fn write_on(&mut self, handle: u64, path: &[u8], offset: usize, data: &[u8]) {
        self.change(path, |b| {
            b.resize(b.len().max(offset + data.len()), 0);
            b[offset..offset + data.len()].copy_from_slice(data);
        });
        self.vault.write(handle, offset as u64, data, false).unwrap();
    }

    fn fsync(&mut self, handle: u64, path: &[u8]) {
        self.vault.fsync(handle, false).unwrap();
        self.must(path);
    }

    /// Opens, writes, fsyncs, closes.
    fn overwrite(&mut self, path: &[u8], offset: usize, data: &[u8]) {
        let handle = self.open(path, READ_WRITE);
        self.write_on(handle, path, offset, data);
        self.fsync(handle, path);
        self.vault.release(handle).unwrap();
    }

    fn truncate(&mut self, path: &[u8], size: usize) {
        if size == 0 {
            self.may_break(path);
        }
        self.change(path, |b| b.resize(size, 0));
        at(&self.vault, path, |node| self.vault.setattr(node, &SetAttr { size: Some(size as u64), ..SetAttr::default() })).unwrap();
    }

    fn fsync_path(&mut self, path: &[u8]) {
        let handle = self.open(path, READ_WRITE);
        self.fsync(handle, path);
        self.vault.release(handle).unwrap();
    }

    fn punch(&mut self, path: &[u8], offset: usize, len: usize) {
        let handle = self.open(path, READ_WRITE);
        self.change(path, |b| b.iter_mut().skip(offset).take(len).for_each(|b| *b = 0));
        self.vault.fallocate(handle, offset as u64, len as u64, Fallocate::PunchHole).unwrap();
        self.vault.release(handle).unwrap();
    }

    /// Renames a file; durable only when a directory is synced.
    fn rename(&mut self, from: &[u8], to: &[u8]) {
        let bytes = self.now.remove(from).unwrap();
        self.may(from, None);
        self.may(to, Some(&bytes));
        self.now.insert(to.to_vec(), bytes);
        vaults::rename(&self.vault, from, to, RenameMode::Replace).unwrap();
    }

    /// Renames a directory with all that the session knows in it.
    fn rename_dir(&mut self, from: &[u8], to: &[u8]) {
        let inside: Vec<_> = self.now.keys().filter(|p| p.starts_with(&[from, b"/"].concat())).cloned().collect();
        for old in inside {
            let new = [to, &old[from.len()..]].concat();
            let before = self.promises.lock()[&old].clone();
            self.may(&old, None);
            for state in before.states {
                self.may(&new, state.as_deref());
            }
            let bytes = self.now.remove(&old).unwrap();
            self.now.insert(new, bytes);
        }
        vaults::rename(&self.vault, from, to, RenameMode::Replace).unwrap();
    }

    fn unlink(&mut self, path: &[u8]) {
        self.now.remove(path);
        self.may(path, None);
        let (parent, name) = split(path);
        at(&self.vault, parent, |parent| self.vault.unlink(parent, name)).unwrap();
    }

    fn mkdir(&mut self, path: &[u8]) {
        vaults::mkdir(&self.vault, path).unwrap();
    }

    fn commit(&self) {
        self.vault.commit_due(std::time::Duration::ZERO);
    }

    /// Everything that is there by now will be there for ever: closes the vault and opens it again.
    fn reopen(&mut self, store: &MemStore) {
        self.vault.close().unwrap();
        self.vault = vaults::open(store.root()).unwrap();
    }
}

/// Reads a vault after a cut and compares it with what was promised.
fn verify(store: &MemStore, promises: &Promises, what: &str) {
    // A second open finds what the first one made of it.
    for round in ["after the cut", "after the replay"] {
        let vault = vaults::open(store.root()).unwrap_or_else(|e| panic!("{what}, {round}: {e}"));
        let mut found: BTreeMap<Vec<u8>, Result<Item, String>> = BTreeMap::new();
        vaults::walk(&vault, ROOT, b"", &mut |path, item| {
            found.insert(path.to_vec(), item.map_err(|e| e.to_string()));
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{what}, {round}: {e}"));
        for (path, allowed) in promises {
            let shown = path.escape_ascii();
            match found.get(path) {
                None => assert!(allowed.states.contains(&None), "{what}, {round}: {shown} is gone"),
                Some(Ok(Item::File { bytes, .. })) => {
                    let right = allowed.states.iter().flatten().any(|s| s == bytes);
                    let lens: Vec<_> = allowed.states.iter().map(|s| s.as_ref().map(Vec::len)).collect();
                    assert!(right, "{what}, {round}: {shown} holds {} bytes that are none of its states ({lens:?})", bytes.len());
                }
                Some(Ok(other)) => panic!("{what}, {round}: {shown} is {other:?}"),
                Some(Err(e)) => assert!(allowed.unreadable, "{what}, {round}: {shown}: {e}"),
            }
        }
        for (path, item) in &found {
            let known = matches!(item, Ok(Item::Dir)) || promises.contains_key(path);
            assert!(known, "{what}, {round}: {} came from nowhere", path.escape_ascii());
        }
        // What an interrupted operation leaves is named by the check, and nothing else is; no record was left over.
        let residue = ["was left behind by a crash", "beyond its end", "names an entry that is not there", "never committed"];
        for fault in vault.check(b"", &mut |_| {}).unwrap().faults {
            let fragile = promises.get(&fault.plain).is_some_and(|allowed| allowed.unreadable);
            assert!(fragile || residue.iter().any(|r| fault.what.contains(r)), "{what}, {round}: {fault:?}");
        }
        vault.close().unwrap_or_else(|e| panic!("{what}, {round}: close: {e}"));
    }
}

/// Runs a session once, and cuts it at every event in eight ways.
fn cut_everywhere(chunk_log2: u8, session: impl Fn(&mut Session, &MemStore)) {
    cut_some(chunk_log2, 6, session);
}

/// As [`cut_everywhere`] with another number of random ways besides the harshest and the kindest.
fn cut_some(chunk_log2: u8, ways: usize, session: impl Fn(&mut Session, &MemStore)) {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, chunk_log2);
    let promises: Arc<Mutex<Promises>> = Arc::default();
    let cuts: Arc<Mutex<Vec<(String, MemStore, Promises)>>> = Arc::default();
    let mut session_state = Session { vault: vaults::open(store.root()).unwrap(), promises: promises.clone(), now: BTreeMap::new() };
    {
        // The hook holds no handle that would keep the store alive: the store outlives the session anyway.
        let (watched, promises, cuts) = (store.clone(), promises.clone(), cuts.clone());
        store.on_event(Box::new(move |event| {
            let mut cuts = cuts.lock();
            let what = format!("cut {} before {:?} of {}", cuts.len(), event.call, event.ino);
            let at = (what, watched.snapshot(), promises.lock().clone());
            cuts.push(at);
        }));
    }
    session(&mut session_state, &store);
    session_state.vault.close().unwrap();
    store.on_event(Box::new(|_| {}));
    let cuts = std::mem::take(&mut *cuts.lock());
    assert!(cuts.len() > 10, "the session does something");
    for (n, (what, snapshot, promises)) in cuts.iter().enumerate() {
        verify(&snapshot.crash(&mut |_| 0), promises, &format!("{what}, harsh"));
        verify(&snapshot.crash(&mut |n| n - 1), promises, &format!("{what}, kind"));
        for round in 0..ways {
            let random = Seeded::new((n * 100 + round) as u64 + 7);
            // Tears are the most telling, so they are half of what is chosen where there are three ways.
            let mut choose = |n: usize| if n == 3 && random.below(2) == 0 { 1 } else { random.below(n as u64) as usize };
            verify(&snapshot.crash(&mut choose), promises, &format!("{what}, random {round}"));
        }
    }
}

fn both_chunk_sizes(session: impl Fn(&mut Session, &MemStore)) {
    cut_everywhere(12, &session);
    cut_everywhere(18, &session);
}

#[test]
fn created_and_synced() {
    both_chunk_sizes(|s, _| {
        for (name, len) in [("empty", 0), ("small", 100), ("full", 4096), ("large", 4097), ("chunks", 600_000)] {
            s.create(name.as_bytes(), &pattern(len as u64, len));
        }
    });
}

#[test]
fn overwritten_in_small_and_large_files() {
    both_chunk_sizes(|s, _| {
        s.create(b"small", &pattern(1, 3000));
        s.create(b"large", &pattern(2, 400_000));
        s.overwrite(b"small", 100, &pattern(3, 50));
        s.overwrite(b"large", 8192, &pattern(4, 4096));
        s.overwrite(b"large", 260_000, &pattern(5, 9000));
        s.overwrite(b"large", 8192, &pattern(6, 4096));
        s.overwrite(b"small", 0, &pattern(7, 3000));
    });
}

#[test]
fn many_commits_of_one_handle() {
    both_chunk_sizes(|s, _| {
        s.create(b"file", &pattern(1, 50_000));
        let handle = s.open(b"file", READ_WRITE);
        for round in 0..4 {
            s.write_on(handle, b"file", 4096 * round, &pattern(round as u64, 4096));
            s.write_on(handle, b"file", 30_000, &pattern(10 + round as u64, 5000));
            s.fsync(handle, b"file");
        }
        s.write_on(handle, b"file", 0, &pattern(77, 20_000));
        s.commit();
        s.vault.release(handle).unwrap();
    });
}

#[test]
fn appended_in_small_and_large_parts() {
    both_chunk_sizes(|s, _| {
        s.create(b"log", b"");
        let mut len = 0;
        for (round, part) in [100, 5000, 100, 4096, 70_000, 200_000, 10, 300_000].into_iter().enumerate() {
            s.overwrite(b"log", len, &pattern(round as u64, part));
            len += part;
        }
    });
}

#[test]
fn truncated_and_grown_again() {
    both_chunk_sizes(|s, _| {
        s.create(b"file", &pattern(1, 300_000));
        s.overwrite(b"file", 20_000, &pattern(2, 8192));
        s.truncate(b"file", 10_000);
        s.overwrite(b"file", 9000, &pattern(3, 30_000));
        s.truncate(b"file", 100);
        s.fsync_path(b"file");
        s.overwrite(b"file", 50, &pattern(4, 100_000));
        s.truncate(b"file", 0);
        s.overwrite(b"file", 0, &pattern(5, 40_000));
        s.overwrite(b"file", 4096, &pattern(6, 4096));
        s.truncate(b"file", 0);
        s.fsync_path(b"file");
    });
}

#[test]
fn punched_and_filled_again() {
    both_chunk_sizes(|s, _| {
        s.create(b"file", &pattern(1, 100_000));
        s.overwrite(b"file", 8192, &pattern(2, 8192));
        s.punch(b"file", 4096, 20_000);
        s.fsync_path(b"file");
        // More than rides in a record: straight to its place.
        s.overwrite(b"file", 4096, &pattern(3, 80_000));
        s.punch(b"file", 0, 100_000);
        s.overwrite(b"file", 8192, &pattern(4, 4096));
    });
}

#[test]
fn replaced_by_rename() {
    both_chunk_sizes(|s, _| {
        s.create(b"target", &pattern(1, 20_000));
        s.overwrite(b"target", 0, &pattern(2, 4096));
        for round in 0..2 {
            // Not synced by the program: the rename over a durable file must not lose both.
            s.may_break(b"new");
            s.may(b"new", Some(b""));
            let handle = s.open(b"new", READ_WRITE);
            s.write_on(handle, b"new", 0, &pattern(10 + round, 30_000));
            if round == 0 {
                s.vault.release(handle).unwrap();
            }
            s.rename(b"new", b"target");
            if round == 1 {
                s.vault.release(handle).unwrap();
            }
            s.overwrite(b"target", 4096, &pattern(20 + round, 4096));
        }
    });
}

#[test]
fn directories_renamed() {
    both_chunk_sizes(|s, _| {
        s.mkdir(b"a");
        s.mkdir(b"a/b");
        s.create(b"a/b/file", &pattern(1, 20_000));
        s.overwrite(b"a/b/file", 0, &pattern(2, 4096));
        s.rename_dir(b"a", b"c");
        let handle = s.open(b"c/b/file", READ_WRITE);
        s.write_on(handle, b"c/b/file", 4096, &pattern(3, 4096));
        s.vault.fsync(handle, false).unwrap();
        // What was fsynced is found under the old path or the new one: checked by the promise that one of the two has it.
        s.sync_dir(b"");
        s.must(b"c/b/file");
        s.must(b"a/b/file");
        s.vault.release(handle).unwrap();
        s.rename_dir(b"c/b", b"d");
        s.overwrite(b"d/file", 8192, &pattern(4, 4096));
    });
}

#[test]
fn long_names() {
    let (one, two) = ("o".repeat(200).into_bytes(), "t".repeat(255).into_bytes());
    both_chunk_sizes(|s, _| {
        s.create(&one, &pattern(1, 5000));
        s.overwrite(&one, 0, &pattern(2, 100));
        s.rename(&one, &two);
        s.sync_dir(b"");
        s.must(&one);
        s.must(&two);
        s.overwrite(&two, 10, &pattern(3, 100));
        s.create(&one, &pattern(4, 100));
        s.unlink(&two);
        s.sync_dir(b"");
        s.must(&two);
    });
}

#[test]
fn unlinked_and_made_again() {
    both_chunk_sizes(|s, _| {
        s.create(b"file", &pattern(1, 20_000));
        s.overwrite(b"file", 4096, &pattern(2, 4096));
        s.unlink(b"file");
        s.create(b"file", &pattern(3, 9000));
        s.overwrite(b"file", 0, &pattern(4, 100));
    });
}

#[test]
fn closed_and_opened_again() {
    both_chunk_sizes(|s, store| {
        // The first mount syncs nothing, the second one overwrites what may not be on the disk yet.
        s.may(b"file", Some(b""));
        s.may_break(b"file");
        let handle = s.open(b"file", READ_WRITE);
        s.write_on(handle, b"file", 0, &pattern(1, 50_000));
        s.vault.release(handle).unwrap();
        s.reopen(store);
        s.overwrite(b"file", 4096, &pattern(2, 4096));
        s.reopen(store);
        s.overwrite(b"file", 8192, &pattern(3, 4096));
    });
}

#[test]
fn attributes_and_times_between_overwrites() {
    both_chunk_sizes(|s, _| {
        s.create(b"file", &pattern(1, 20_000));
        s.overwrite(b"file", 0, &pattern(2, 4096));
        set_xattr(&s.vault, b"file", b"user.x", b"value").unwrap();
        s.overwrite(b"file", 4096, &pattern(3, 4096));
        s.create(b"other", &pattern(4, 100));
        s.overwrite(b"other", 0, &pattern(5, 10));
        s.overwrite(b"file", 8192, &pattern(6, 4096));
    });
}

#[test]
fn random_sessions() {
    for seed in 0..12u64 {
        let chunk_log2 = if seed % 2 == 0 { 12 } else { 14 };
        cut_some(chunk_log2, 3, |s, store| {
            let random = Seeded::new(seed + 1000);
            let below = |n: usize| random.below(n as u64) as usize;
            let paths = [&b"one"[..], b"two"];
            for (path, len) in paths.iter().zip([below(6000), below(40_000)]) {
                s.create(path, &pattern(seed, len));
            }
            let mut handle: Option<(u64, &[u8])> = None;
            for round in 0..14 {
                let path = paths[below(2)];
                let len = s.now[path].len();
                match below(9) {
                    0 | 1 => s.overwrite(path, below(len + 1), &pattern(seed * 100 + round, [1, 100, 4096, 9000][below(4)])),
                    2 => s.overwrite(path, len, &pattern(seed * 100 + round, [100, 5000, 70_000][below(3)])),
                    3 => s.truncate(path, below(len + 5000)),
                    4 => s.punch(path, below(len + 1) / 4096 * 4096, 4096 * (1 + below(5))),
                    5 => s.fsync_path(path),
                    6 => {
                        if let Some((handle, _)) = handle.take() {
                            s.vault.release(handle).unwrap();
                        }
                        handle = Some((s.open(path, READ_WRITE), path));
                    }
                    7 => s.commit(),
                    _ if below(4) == 0 && handle.is_none() => s.reopen(store),
                    _ => {
                        if let Some((handle, path)) = handle {
                            s.write_on(handle, path, below(30_000), &pattern(seed * 100 + round, 1 + below(20_000)));
                        }
                    }
                }
            }
            if let Some((handle, path)) = handle {
                s.fsync(handle, path);
                s.vault.release(handle).unwrap();
            }
        });
    }
}
