//! Runs sessions with known durability promises, and cuts them at every call that changes the
//! store, in several ways each.
//!
//! A session is a list of steps, each with its promises. The store reports every event before it
//! happens; at each event a snapshot is taken together with the promises that hold by then. Each
//! snapshot is crashed in several ways, opened again (which replays the journal) and read.
//!
//! Every cut is checked for these properties:
//! * The vault opens, and opens again after a clean close.
//! * A file that was made durable has, completely, the state of its last fsync or one that was
//!   committed later; never a mixture.
//! * No file returns data that was never written: any other file reads as one of its states, or
//!   fails if it was never durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::vaults::{self, Item, READ_WRITE, Seeded, at, split};
use kithfs::crypto::Suite;
use kithfs::store::mem::MemStore;
use kithfs::vault::{Fallocate, OpenFlags, ROOT, RenameMode, SetAttr, Vault};
use parking_lot::Mutex;

type Bytes = Arc<Vec<u8>>;

/// The possible contents of a path after a cut; `None`: the path is missing.
#[derive(Clone, Debug)]
pub struct Allowed {
    pub states: Vec<Option<Bytes>>,
    /// An error is allowed too: the file was never durable, or has been truncated to zero since.
    pub unreadable: bool,
}

pub type Promises = BTreeMap<Vec<u8>, Allowed>;

pub struct Session {
    pub vault: Vault,
    /// The state directory of the machine, for a synced vault.
    pub state: Option<MemStore>,
    pub promises: Arc<Mutex<Promises>>,
    /// Contents by path as the program sees them.
    pub now: BTreeMap<Vec<u8>, Bytes>,
}

impl Session {
    pub fn nothing() -> Allowed {
        Allowed { states: vec![None], unreadable: false }
    }

    /// Allows `next` too, besides the former states of `path`, which is about to change.
    pub fn may(&mut self, path: &[u8], next: Option<&[u8]>) {
        let mut promises = self.promises.lock();
        let allowed = promises.entry(path.to_vec()).or_insert_with(Self::nothing);
        let next = next.map(|bytes| Arc::new(bytes.to_vec()));
        if !allowed.states.contains(&next) {
            allowed.states.push(next);
        }
    }

    /// Allows errors of reading `path`: it was never durable, or its old contents are discarded.
    pub fn may_break(&mut self, path: &[u8]) {
        self.promises.lock().entry(path.to_vec()).or_insert_with(Self::nothing).unreadable = true;
    }

    /// Allows only the present state from now on.
    pub fn must(&mut self, path: &[u8]) {
        let state = self.now.get(path).cloned();
        self.promises
            .lock()
            .insert(path.to_vec(), Allowed { states: vec![state], unreadable: false });
    }

    pub fn change(&mut self, path: &[u8], change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.now.get(path).map(|b| b.to_vec()).unwrap_or_default();
        change(&mut bytes);
        self.may(path, Some(&bytes));
        self.now.insert(path.to_vec(), Arc::new(bytes));
    }

    pub fn open(&self, path: &[u8], flags: OpenFlags) -> u64 {
        vaults::open_or_create(&self.vault, path, flags).unwrap()
    }

    /// Creates a file, and syncs it and its directory, as a careful program does.
    pub fn create(&mut self, path: &[u8], bytes: &[u8]) {
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

    pub fn sync_dir(&self, path: &[u8]) {
        at(&self.vault, path, |node| {
            let handle = self.vault.open_dir(node)?;
            let synced = self.vault.sync_dir(handle);
            self.vault.release_dir(handle);
            synced
        })
        .unwrap();
    }

    /// Writes through an open handle without a promise.
    pub fn write_on(&mut self, handle: u64, path: &[u8], offset: usize, data: &[u8]) {
        self.change(path, |b| {
            b.resize(b.len().max(offset + data.len()), 0);
            b[offset..offset + data.len()].copy_from_slice(data);
        });
        self.vault.write(handle, offset as u64, data, false).unwrap();
    }

    pub fn fsync(&mut self, handle: u64, path: &[u8]) {
        self.vault.fsync(handle, false).unwrap();
        self.must(path);
    }

    /// Opens, writes, fsyncs, closes.
    pub fn overwrite(&mut self, path: &[u8], offset: usize, data: &[u8]) {
        let handle = self.open(path, READ_WRITE);
        self.write_on(handle, path, offset, data);
        self.fsync(handle, path);
        self.vault.release(handle).unwrap();
    }

    pub fn truncate(&mut self, path: &[u8], size: usize) {
        if size == 0 {
            self.may_break(path);
        }
        self.change(path, |b| b.resize(size, 0));
        at(&self.vault, path, |node| {
            self.vault.setattr(node, &SetAttr { size: Some(size as u64), ..SetAttr::default() })
        })
        .unwrap();
    }

    pub fn fsync_path(&mut self, path: &[u8]) {
        let handle = self.open(path, READ_WRITE);
        self.fsync(handle, path);
        self.vault.release(handle).unwrap();
    }

    pub fn punch(&mut self, path: &[u8], offset: usize, len: usize) {
        let handle = self.open(path, READ_WRITE);
        self.change(path, |b| b.iter_mut().skip(offset).take(len).for_each(|b| *b = 0));
        self.vault.fallocate(handle, offset as u64, len as u64, Fallocate::PunchHole).unwrap();
        self.vault.release(handle).unwrap();
    }

    /// Extends a file to `size` by `fallocate`, and also zeroes everything from `zero` on, if
    /// given.
    pub fn extend(&mut self, path: &[u8], size: usize, zero: Option<usize>) {
        let from = zero.map_or(0, |zero| zero.min(size - 1));
        let handle = self.open(path, READ_WRITE);
        if zero.is_some() {
            // Two commits if much becomes a hole: first the hole, then the length.
            self.change(path, |b| b.iter_mut().skip(from).for_each(|b| *b = 0));
        }
        self.change(path, |b| b.resize(size, 0));
        let how = if zero.is_some() {
            Fallocate::ZeroRange { keep_size: false }
        } else {
            Fallocate::Allocate { keep_size: false }
        };
        self.vault.fallocate(handle, from as u64, (size - from) as u64, how).unwrap();
        self.vault.release(handle).unwrap();
    }

    /// Renames a file; durable only when a directory is synced.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) {
        let bytes = self.now.remove(from).unwrap();
        self.may(from, None);
        self.may(to, Some(&bytes));
        self.now.insert(to.to_vec(), bytes);
        vaults::rename(&self.vault, from, to, RenameMode::Replace).unwrap();
    }

    /// Renames a directory with everything that the session knows in it.
    pub fn rename_dir(&mut self, from: &[u8], to: &[u8]) {
        let inside: Vec<_> =
            self.now.keys().filter(|p| p.starts_with(&[from, b"/"].concat())).cloned().collect();
        for old in inside {
            let new = [to, &old[from.len()..]].concat();
            let before = self.promises.lock()[&old].clone();
            self.may(&old, None);
            for state in before.states {
                self.may(&new, state.as_ref().map(|b| &b[..]));
            }
            let bytes = self.now.remove(&old).unwrap();
            self.now.insert(new, bytes);
        }
        vaults::rename(&self.vault, from, to, RenameMode::Replace).unwrap();
    }

    pub fn unlink(&mut self, path: &[u8]) {
        self.now.remove(path);
        self.may(path, None);
        let (parent, name) = split(path);
        at(&self.vault, parent, |parent| self.vault.unlink(parent, name)).unwrap();
    }

    pub fn mkdir(&mut self, path: &[u8]) {
        vaults::mkdir(&self.vault, path).unwrap();
    }

    pub fn commit(&self) {
        self.vault.commit_due(std::time::Duration::ZERO);
    }

    /// Flushes files ahead of the checkpoint, as the background thread does while commits continue.
    pub fn flush(&self) {
        self.vault.flush_due(std::time::Duration::ZERO);
    }

    /// Makes an open file durable whose changes are all committed, as the background thread does.
    pub fn made_durable(&mut self, path: &[u8]) {
        self.vault.flush_due(std::time::Duration::ZERO);
        self.must(path);
    }

    /// Makes everything durable: closes the vault and opens it again.
    pub fn reopen(&mut self, store: &MemStore) {
        self.vault.close().unwrap();
        self.vault = vaults::open_on(store, self.state.as_ref()).unwrap();
    }
}

/// Opens a vault after a cut, compares it with the promises and checks it. Then does the same with
/// the result of this first recovery.
pub fn verify(store: &MemStore, promises: &Promises, what: &str) {
    verify_on(store, None, promises, what);
}

/// As [`verify`], with the state directory of the machine.
pub fn verify_on(store: &MemStore, state: Option<&MemStore>, promises: &Promises, what: &str) {
    for round in ["after the cut", "after the replay"] {
        let what = format!("{what}, {round}");
        let vault = verify_once(store, state, promises, &what);
        // The check reports only residue, except for a torn file that was never durable: no journal
        // with refused records is left.
        for fault in vault.check(b"", &mut |_| {}).unwrap().faults {
            let fragile = promises.get(&fault.plain).is_some_and(|allowed| allowed.unreadable);
            assert!(fragile || fault.residue, "{what}: {fault:?}");
        }
        vault.close().unwrap_or_else(|e| panic!("{what}: close: {e}"));
    }
}

/// Does [`verify`] once and without the check: for very many cuts.
pub fn verify_quickly(store: &MemStore, promises: &Promises, what: &str) {
    verify_once(store, None, promises, what);
}

fn verify_once(
    store: &MemStore,
    state: Option<&MemStore>,
    promises: &Promises,
    what: &str,
) -> Vault {
    let vault = vaults::open_on(store, state).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut found: BTreeMap<Vec<u8>, Result<Item, String>> = BTreeMap::new();
    vaults::walk(&vault, ROOT, b"", &mut |path, item| {
        found.insert(path.to_vec(), item.map_err(|e| e.to_string()));
        Ok(())
    })
    .unwrap_or_else(|e| panic!("{what}: {e}"));
    for (path, allowed) in promises {
        let shown = path.escape_ascii();
        match found.get(path) {
            None => assert!(allowed.states.contains(&None), "{what}: {shown} is gone"),
            Some(Ok(Item::File { bytes, .. })) => {
                let right = allowed.states.iter().flatten().any(|s| **s == *bytes);
                let lens: Vec<_> =
                    allowed.states.iter().map(|s| s.as_ref().map(|b| b.len())).collect();
                assert!(
                    right,
                    "{what}: {shown} holds {} bytes that are none of its states ({lens:?})",
                    bytes.len()
                );
            }
            Some(Ok(other)) => panic!("{what}: {shown} is {other:?}"),
            Some(Err(e)) => assert!(allowed.unreadable, "{what}: {shown}: {e}"),
        }
    }
    for (path, item) in &found {
        let known = matches!(item, Ok(Item::Dir)) || promises.contains_key(path);
        assert!(known, "{what}: {} came from nowhere", path.escape_ascii());
    }
    vault
}

/// A moment at which the power may be cut.
pub struct Cut {
    /// Where in the session.
    pub what: String,
    pub store: MemStore,
    /// The state directory at the same moment.
    pub state: Option<MemStore>,
    pub promises: Promises,
}

/// Runs a session once and returns every moment before a call that changes the store or makes it
/// durable, and the one after the last.
pub fn record(chunk_log2: u8, session: impl Fn(&mut Session, &MemStore)) -> Vec<Cut> {
    record_on(chunk_log2, None, session)
}

/// Does [`record`] with the state directory of the machine: each call there is a moment, too.
pub fn record_on(
    chunk_log2: u8,
    state: Option<MemStore>,
    session: impl Fn(&mut Session, &MemStore),
) -> Vec<Cut> {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, chunk_log2);
    if state.is_some() {
        Vault::set_synced(&store.root()).unwrap();
    }
    let promises: Arc<Mutex<Promises>> = Arc::default();
    let cuts: Arc<Mutex<Vec<Cut>>> = Arc::default();
    let mut session_state = Session {
        vault: vaults::open_on(&store, state.as_ref()).unwrap(),
        state: state.clone(),
        promises: promises.clone(),
        now: BTreeMap::new(),
    };
    for (place, watched) in [("", Some(&store)), (" of the machine", state.as_ref())] {
        let Some(watched) = watched else { continue };
        // The hook holds handles that keep the stores alive until it is replaced below.
        let (store, state) = (store.clone(), state.clone());
        let (promises, cuts) = (promises.clone(), cuts.clone());
        watched.on_event(Box::new(move |event| {
            let mut cuts = cuts.lock();
            let (call, ino) = (event.call, event.ino);
            let what = format!("cut {} before {call:?} of {ino}{place}", cuts.len());
            let cut = Cut {
                what,
                store: store.snapshot(),
                state: state.as_ref().map(MemStore::snapshot),
                promises: promises.lock().clone(),
            };
            cuts.push(cut);
        }));
    }
    session(&mut session_state, &store);
    let last = Cut {
        what: "cut after the session".into(),
        store: store.snapshot(),
        state: state.as_ref().map(MemStore::snapshot),
        promises: promises.lock().clone(),
    };
    session_state.vault.close().unwrap();
    for store in [Some(&store), state.as_ref()].into_iter().flatten() {
        store.on_event(Box::new(|_| {}));
    }
    let mut cuts = std::mem::take(&mut *cuts.lock());
    cuts.push(last);
    cuts
}

/// The choices of a power cut, determined by `seed`. Tears reveal most, so they are two thirds of
/// the choices if there are three.
pub fn chance(seed: u64) -> impl FnMut(usize) -> usize {
    let random = Seeded::new(seed);
    move |n| if n == 3 && random.below(2) == 0 { 1 } else { random.below(n as u64) as usize }
}

/// Runs a session once, and cuts it at every event in eight ways.
pub fn cut_everywhere(chunk_log2: u8, session: impl Fn(&mut Session, &MemStore)) {
    cut_some(chunk_log2, 6, session);
}

/// Does [`cut_everywhere`] with `ways` random choices in addition to the harshest and the mildest.
pub fn cut_some(chunk_log2: u8, ways: usize, session: impl Fn(&mut Session, &MemStore)) {
    cut_on(chunk_log2, None, ways, session);
}

/// Does [`cut_some`] with a synced vault, whose journals are in the state directory of the machine:
/// on a disk of its own, which keeps and loses writes independently of the vault's disk.
pub fn cut_synced(chunk_log2: u8, ways: usize, session: impl Fn(&mut Session, &MemStore)) {
    cut_on(chunk_log2, Some(MemStore::new()), ways, session);
}

fn cut_on(
    chunk_log2: u8,
    state: Option<MemStore>,
    ways: usize,
    session: impl Fn(&mut Session, &MemStore),
) {
    let cuts = record_on(chunk_log2, state, session);
    assert!(cuts.len() > 10, "the session does something");
    for (n, Cut { what, store, state, promises }) in cuts.iter().enumerate() {
        let verify = |how: &str,
                      of: &mut dyn FnMut(usize) -> usize,
                      there: &mut dyn FnMut(usize) -> usize| {
            let state = state.as_ref().map(|state| state.crash(there));
            verify_on(&store.crash(of), state.as_ref(), promises, &format!("{what}, {how}"));
        };
        verify("harsh", &mut |_| 0, &mut |_| 0);
        verify("kind", &mut |n| n - 1, &mut |n| n - 1);
        if state.is_some() {
            verify("harsh, and kind to the machine", &mut |_| 0, &mut |n| n - 1);
            verify("kind, and harsh to the machine", &mut |n| n - 1, &mut |_| 0);
        }
        for round in 0..ways {
            let seed = (n * 100 + round) as u64 + 7;
            verify(&format!("random {round}"), &mut chance(seed), &mut chance(seed + 50));
        }
    }
}
