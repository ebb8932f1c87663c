//! The store fails: one call after the other, all from one on, or for lack of space. No panic, no
//! wrong bytes, and nothing durable may be lost.
//!
//! A scripted session runs against a store that fails as planned, and continues after each error,
//! as some programs do. Then the store is repaired, the vault opened again and read.

use std::collections::BTreeMap;
use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::store::Call;
use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
use kithfs::store::mem::MemStore;
use kithfs::vault::{Error, Fallocate, ROOT, RenameMode, SetAttr, Vault};

use crate::support::raw;
use crate::support::vaults::{
    self, Item, READ_WRITE, at, mkdir, pattern, rename, set_xattr, split,
};

/// What is known of the contents of one file, which may have been renamed since.
#[derive(Default)]
struct Story {
    /// The last durable state, followed by every later state.
    states: Vec<Vec<u8>>,
    /// Whether there is a durable state: then one of these states must be found.
    durable: bool,
    /// A change failed, perhaps in part: the contents may be a mixture of states.
    blurred: bool,
    /// The file may be missing: an unlink was tried.
    unlinked: bool,
    /// The file was truncated to zero, or never durable: an error is allowed.
    fragile: bool,
}

struct Session<'a> {
    vault: &'a Vault,
    /// By the first letter of the file's name.
    stories: BTreeMap<u8, Story>,
    errors: usize,
}

fn key(path: &[u8]) -> u8 {
    split(path).1[0]
}

impl Session<'_> {
    fn story(&mut self, path: &[u8]) -> &mut Story {
        self.stories.entry(key(path)).or_insert_with(|| Story {
            fragile: true,
            states: vec![Vec::new()],
            ..Story::default()
        })
    }

    /// Counts an error; returns the result of a success.
    fn took<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        self.errors += usize::from(result.is_err());
        result.ok()
    }

    /// Adds the state after `change` to those that the file may have.
    fn change(&mut self, path: &[u8], change: impl FnOnce(&mut Vec<u8>)) {
        let story = self.story(path);
        let mut next = story.states.last().unwrap().clone();
        change(&mut next);
        story.states.push(next);
    }

    /// Opens, writes in several calls, optionally syncs, closes.
    fn write(&mut self, path: &[u8], offset: usize, data: &[u8], sync: bool) {
        self.change(path, |b| {
            b.resize(b.len().max(offset + data.len()), 0);
            b[offset..offset + data.len()].copy_from_slice(data);
        });
        let opened = vaults::open_or_create(self.vault, path, READ_WRITE);
        let Some(handle) = self.took(opened) else { return self.story(path).blurred = true };
        let mut whole = true;
        for (n, part) in data.chunks(30_000).enumerate() {
            whole &= self
                .took(self.vault.write(handle, (offset + n * 30_000) as u64, part, false))
                .is_some();
        }
        self.read(path, handle);
        self.story(path).blurred |= !whole;
        if sync && self.took(self.vault.fsync(handle, false)).is_some() {
            let story = self.story(path);
            if !story.blurred {
                let last = story.states.len() - 1;
                story.states.drain(..last);
            }
            story.durable = true;
            story.fragile = false;
        }
        let flushed = self.took(self.vault.flush(handle)).is_some();
        let closed = self.took(self.vault.release(handle)).is_some();
        self.story(path).blurred |= !(flushed && closed);
    }

    /// Creates a file that is never synced, has the background flush it, and writes to it again.
    fn stay_open(&mut self, path: &[u8]) {
        let bytes = pattern(21, 40_000);
        self.change(path, |b| *b = bytes.clone());
        let opened = vaults::open_or_create(self.vault, path, READ_WRITE);
        let Some(handle) = self.took(opened) else { return self.story(path).blurred = true };
        let mut whole = self.took(self.vault.write(handle, 0, &bytes, false)).is_some();
        self.vault.commit_due(Duration::ZERO);
        self.vault.flush_due(Duration::ZERO);
        whole &= self.took(self.vault.flush(handle)).is_some();
        if whole {
            let story = self.story(path);
            let last = story.states.len() - 1;
            story.states.drain(..last);
            (story.durable, story.fragile) = (true, false);
        }
        self.change(path, |b| b[8000..9000].fill(7));
        whole &= self.took(self.vault.write(handle, 8000, &[7; 1000], false)).is_some();
        self.vault.commit_due(Duration::ZERO);
        let closed = self.took(self.vault.release(handle)).is_some();
        self.story(path).blurred |= !(whole && closed);
    }

    /// Reads an open file. A read during failures returns no wrong bytes either.
    fn read(&mut self, path: &[u8], handle: u64) {
        let mut buf = vec![0xAB; 400_000];
        if let Some(read) = self.took(self.vault.read(handle, 0, &mut buf)) {
            assert_known(
                &buf[..read],
                self.story(path),
                &format!("while the store fails, {}", path.escape_ascii()),
            );
        }
    }

    fn truncate(&mut self, path: &[u8], size: usize) {
        self.change(path, |b| b.resize(size, 0));
        if size == 0 {
            self.story(path).fragile = true;
        }
        let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
        let done = at(self.vault, path, |node| self.vault.setattr(node, &set));
        let failed = self.took(done).is_none();
        self.story(path).blurred |= failed;
    }

    fn punch(&mut self, path: &[u8], offset: usize, len: usize) {
        self.change(path, |b| b.iter_mut().skip(offset).take(len).for_each(|b| *b = 0));
        let opened = at(self.vault, path, |node| self.vault.open_file(node, READ_WRITE));
        let Some(opened) = self.took(opened) else { return self.story(path).blurred = true };
        let punched = self
            .took(self.vault.fallocate(
                opened.handle,
                offset as u64,
                len as u64,
                Fallocate::PunchHole,
            ))
            .is_some();
        // Like written data, a small hole is committed by the next flush, which reports a failure.
        let flushed = self.took(self.vault.flush(opened.handle)).is_some();
        let closed = self.took(self.vault.release(opened.handle)).is_some();
        self.story(path).blurred |= !(punched && flushed && closed);
    }

    fn unlink(&mut self, path: &[u8]) {
        self.story(path).unlinked = true;
        let (parent, name) = split(path);
        let done = at(self.vault, parent, |parent| self.vault.unlink(parent, name));
        self.took(done);
    }

    fn run(&mut self) {
        let long = [b"l".to_vec(), vec![b'o'; 220]].concat();
        self.write(b"a", 0, &pattern(1, 50_000), true);
        self.write(b"b", 0, &pattern(2, 900), true);
        self.write(&long, 0, &pattern(3, 5000), true);
        self.write(b"a", 8192, &pattern(4, 4096), true);
        self.write(b"a", 50_000, &pattern(5, 3000), true);
        self.write(b"b", 100, &pattern(6, 100), true);
        self.write(b"b", 900, &pattern(7, 100_000), true);
        self.write(b"a", 100, &pattern(8, 20_000), false);
        let done = set_xattr(self.vault, b"a", b"user.x", b"value");
        self.took(done);
        self.truncate(b"a", 30_001);
        self.punch(b"a", 4096, 9000);
        let done = mkdir(self.vault, b"Dir");
        self.took(done);
        self.write(b"Dir/d", 0, &pattern(9, 6000), true);
        let done = rename(self.vault, b"Dir", b"Dir 2", RenameMode::Replace);
        self.took(done);
        for path in [&b"Dir/d"[..], b"Dir 2/d"] {
            if at(self.vault, path, |_| Ok(())).is_ok() {
                self.write(path, 4096, &pattern(10, 100), true);
            }
        }
        let done = rename(self.vault, &long, b"l", RenameMode::Replace);
        self.took(done);
        self.write(b"c", 0, &pattern(11, 20_000), false);
        let done = rename(self.vault, b"c", b"c 2", RenameMode::Replace);
        self.took(done);
        self.write(b"e", 0, &pattern(12, 10_000), true);
        self.unlink(b"e");
        self.stay_open(b"f");
        self.truncate(b"b", 0);
        self.write(b"a", 29_000, &pattern(13, 200_000), true);
        let entries = vaults::entries(self.vault, ROOT);
        for (_, attr) in self.took(entries).unwrap_or_default() {
            self.vault.forget(attr.node, 1);
        }
    }
}

/// Asserts that each byte is that of some state at its offset.
fn assert_known(found: &[u8], story: &Story, what: &str) {
    let longest = story.states.iter().map(Vec::len).max().unwrap_or(0);
    assert!(found.len() <= longest, "{what}: {} bytes, {longest} at the most", found.len());
    let wrong = (0..found.len()).find(|at| {
        // Beyond the end of a state, a failed write may leave a hole.
        !story.states.iter().any(|s| s.get(*at).copied().unwrap_or(0) == found[*at])
    });
    if let Some(at) = wrong {
        panic!("{what}: byte {at} of {} is of none of {} states", found.len(), story.states.len());
    }
}

fn verify(store: &MemStore, stories: &BTreeMap<u8, Story>, what: &str) {
    let vault = vaults::open(store.root()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut found = BTreeMap::new();
    vaults::walk(&vault, ROOT, b"", &mut |path, item| {
        let story = stories.get(&key(path));
        match (item, story) {
            (Ok(Item::File { bytes, .. }), Some(story)) => {
                assert_known(&bytes, story, &format!("{what}: {}", path.escape_ascii()));
                found.insert(key(path), true);
            }
            (Ok(Item::Dir), _) => {}
            (Ok(other), _) => panic!("{what}: {} is {other:?}", path.escape_ascii()),
            (Err(e), story) => {
                assert!(story.is_none_or(|s| s.fragile), "{what}: {}: {e}", path.escape_ascii());
                found.insert(key(path), false);
            }
        }
        Ok(())
    })
    .unwrap_or_else(|e| panic!("{what}: {e}"));
    for (letter, story) in stories {
        let there = found.contains_key(letter);
        assert!(there || !story.durable || story.unlinked, "{what}: {} is gone", *letter as char);
    }
    let _ = vault.check(b"", &mut |_| {}).unwrap();
    vault.close().unwrap_or_else(|e| panic!("{what}: close: {e}"));
}

/// Runs the session with a fault; returns the number of calls and of errors.
fn session(fault: Option<Fault>, capacity: Option<u64>, what: &str) -> (u64, usize) {
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    plan.reset();
    // Linux behaves like this. It is the worst that a store may do.
    plan.lose_what_is_not_flushed();
    if let Some(fault) = fault {
        plan.add(fault);
    }
    store.set_capacity(capacity);
    let mut session = Session { vault: &vault, stories: BTreeMap::new(), errors: 0 };
    session.run();
    let calls = plan.count(Calls::All);
    let (stories, errors) = (session.stories, session.errors);
    // The power may fail now as well: promises still hold.
    let crashed = store.crash(&mut |_| 0);
    crashed.set_capacity(None);
    verify(&crashed, &stories, &format!("{what}, and a power cut"));
    plan.heal();
    let _ = vault.close();
    drop(vault);
    store.set_capacity(None);
    store.evict();
    verify(&store, &stories, what);
    (calls, errors)
}

/// Runs the session with the fault at each call in turn, or at each `stride`-th one.
fn each_call(kind: impl Fn(u64) -> Fault, stride: usize) {
    let (calls, errors) = session(None, None, "no fault");
    assert_eq!(errors, 0);
    assert!(calls > 300);
    let mut failing = 0;
    for n in (1..=calls).step_by(stride) {
        let fault = kind(n);
        failing += usize::from(session(Some(fault), None, &format!("{fault:?}")).1 > 0);
    }
    assert!(failing > 20, "{failing} runs saw an error");
}

#[test]
fn each_call_fails_once() {
    each_call(
        |n| Fault { calls: Calls::All, when: When::Nth(n), errno: libc::EIO, short: false },
        1,
    );
}

#[test]
fn each_write_is_cut_short() {
    each_call(
        |n| Fault { calls: Calls::Changes, when: When::Nth(n), errno: libc::EIO, short: true },
        1,
    );
}

#[test]
fn every_call_fails_from_one_on() {
    each_call(
        |n| Fault { calls: Calls::All, when: When::From(n), errno: libc::EIO, short: false },
        2,
    );
}

#[test]
fn space_is_refused_once() {
    each_call(
        |n| Fault { calls: Calls::Changes, when: When::Nth(n), errno: libc::ENOSPC, short: true },
        1,
    );
}

#[test]
fn a_store_that_fills_up() {
    let mut full = 0;
    for blocks in (10..1200).step_by(11) {
        full += usize::from(session(None, Some(blocks * 4096), &format!("{blocks} blocks")).1 > 0);
    }
    assert!(full > 10, "{full} runs ran out of space");
}

#[test]
fn pending_changes_are_kept_while_no_file_can_be_opened() {
    // Programs had so many files open that the daemon could open none, and an fsync that needed a
    // journal then latched its file: data that had been written to it was discarded.
    for call in [Call::CreateFile, Call::OpenFile, Call::OpenDir] {
        let store = MemStore::new();
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        vaults::put(&vaults::open(store.root()).unwrap(), b"file", &pattern(1, 50_000)).unwrap();
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        let file = vaults::open_or_create(&vault, b"file", READ_WRITE).unwrap();
        vault.fsync(file, false).unwrap();
        vault.write(file, 4096, &pattern(2, 4096), false).unwrap();
        plan.reset();
        plan.add(Fault {
            calls: Calls::Of(call),
            when: When::From(1),
            errno: libc::EMFILE,
            short: false,
        });
        let refused = vault.fsync(file, false);
        assert!(
            refused.as_ref().err().is_none_or(|error| error.errno() == libc::EMFILE),
            "{refused:?}"
        );
        assert_eq!(
            refused.is_err(),
            call == Call::CreateFile,
            "only the creation of the journal is needed"
        );
        plan.heal();
        vault.write(file, 8192, &pattern(3, 4096), false).unwrap();
        vault.fsync(file, false).unwrap();
        vault.release(file).unwrap();
        let crashed = vaults::open(store.crash(&mut |_| 0).root()).unwrap();
        let mut wanted = pattern(1, 50_000);
        wanted[4096..8192].copy_from_slice(&pattern(2, 4096));
        wanted[8192..12_288].copy_from_slice(&pattern(3, 4096));
        assert!(vaults::get(&crashed, b"file").unwrap() == wanted, "{call:?}");
    }
}

#[test]
fn a_full_store_keeps_its_data_and_recovers_with_space() {
    // A write that did not fit left a file without its small form: its header contained a size that
    // no reader accepts. And an fsync that found no space for the journal latched the file,
    // although nothing was lost yet.
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    vaults::put(&vault, b"small", &pattern(1, 1000)).unwrap();
    vaults::put(&vault, b"large", &pattern(2, 50_000)).unwrap();
    let (small, large) = (
        vaults::open_or_create(&vault, b"small", READ_WRITE).unwrap(),
        vaults::open_or_create(&vault, b"large", READ_WRITE).unwrap(),
    );
    vault.fsync(small, false).unwrap();
    vault.fsync(large, false).unwrap();
    let fresh = vaults::open_or_create(&vault, b"fresh", READ_WRITE).unwrap();
    vault.write(fresh, 0, &pattern(5, 1000), false).unwrap();
    let space = vault.space().unwrap();
    store.set_capacity(Some((space.blocks - space.free) * space.block_size));

    assert_eq!(
        vault.write(fresh, 500, &pattern(3, 300_000), false).unwrap_err().errno(),
        libc::ENOSPC
    );
    assert_eq!(at(&vault, b"fresh", |node| Ok(vault.getattr(node)?.size)).unwrap(), 1000);
    assert_eq!(
        vault.write(small, 500, &pattern(3, 300_000), false).unwrap_err().errno(),
        libc::ENOSPC
    );
    assert_eq!(at(&vault, b"small", |node| Ok(vault.getattr(node)?.size)).unwrap(), 1000);
    vault.write(large, 4096, &pattern(4, 4096), false).unwrap();
    assert_eq!(vault.fsync(large, false).unwrap_err().errno(), libc::ENOSPC);
    assert_eq!(vault.flush(large).unwrap_err().errno(), libc::ENOSPC);

    store.set_capacity(None);
    for handle in [small, large, fresh] {
        vault.fsync(handle, false).unwrap();
        vault.release(handle).unwrap();
    }
    let crashed = store.crash(&mut |_| 0);
    for store in [crashed, store.snapshot()] {
        let vault = vaults::open(store.root()).unwrap();
        assert!(vaults::get(&vault, b"fresh").unwrap() == pattern(5, 1000));
        // The part of the refused change that needs no room may have been made.
        let mut begun = pattern(1, 1000);
        begun[500..].copy_from_slice(&pattern(3, 300_000)[..500]);
        assert!([begun, pattern(1, 1000)].contains(&vaults::get(&vault, b"small").unwrap()));
        let mut wanted = pattern(2, 50_000);
        wanted[4096..8192].copy_from_slice(&pattern(4, 4096));
        assert!(vaults::get(&vault, b"large").unwrap() == wanted);
    }
}

#[test]
fn removing_long_names_does_not_list_each_directory_again() {
    // Only the last directory that was checked was remembered: two programs that removed 12,000
    // long names each took minutes for it.
    let store = MemStore::new();
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let plan = FaultPlan::new();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    let name =
        |dir: u8, n: usize| [&[dir, b'/'][..], &[b'n'; 200], n.to_string().as_bytes()].concat();
    for dir in *b"ab" {
        mkdir(&vault, &[dir]).unwrap();
        (0..200).for_each(|n| vaults::put(&vault, &name(dir, n), b"x").unwrap());
    }
    let dirs = b"ab".map(|dir| (dir, vault.lookup(ROOT, &[dir]).unwrap().node));
    plan.reset();
    for n in 0..200 {
        for (dir, node) in dirs {
            vault.unlink(node, split(&name(dir, n)).1).unwrap();
        }
    }
    let listings = plan.count(Calls::Of(Call::List));
    assert!(listings < 100, "{listings} for 400 files");
    assert!(vaults::faults(&vault).is_empty(), "a fault is left");
    vault.close().unwrap();
}

#[test]
fn a_directory_rename_that_gets_enospc_changes_nothing() {
    // A rename over a directory that is empty only for programs exchanges the two directories, and
    // then moves the empty one away. When that move
    // failed, the exchange was not undone. The mount did not know this, and the next daemon did not
    // find the files under the paths in their journal records.
    for n in 1.. {
        let store = MemStore::new();
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        let plan = FaultPlan::new();
        let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
        mkdir(&vault, b"to").unwrap();
        // It is empty for programs, and the store cannot rename over it.
        let to = vault.cipher_path(b"to").unwrap();
        raw::write(&*raw::beneath(&store.root(), &to), b".of-others", b"a file manager's");
        mkdir(&vault, b"from").unwrap();
        let handle = vaults::open_or_create(&vault, b"from/file", READ_WRITE).unwrap();
        vault.write(handle, 0, b"first", false).unwrap();
        vault.fsync(handle, false).unwrap();
        plan.reset();
        plan.add(Fault {
            calls: Calls::Of(Call::Rename),
            when: When::Nth(n),
            errno: libc::ENOSPC,
            short: false,
        });
        let renamed = rename(&vault, b"from", b"to", RenameMode::Replace);
        let reached = plan.failed() > 0;
        plan.heal();
        let (file, other): (&[u8], &[u8]) =
            if renamed.is_ok() { (b"to/file", b"from") } else { (b"from/file", b"to") };
        vault.write(handle, 0, b"second", false).unwrap();
        vault.fsync(handle, false).unwrap();
        // The daemon is killed.
        let vault = vaults::open(store.snapshot().root()).unwrap();
        assert_eq!(vaults::get(&vault, file).unwrap(), b"second", "rename {n}");
        match at(&vault, other, |node| vaults::entries(&vault, node)) {
            Ok(entries) => assert!(renamed.is_err() && entries.is_empty(), "rename {n}"),
            Err(e) => assert!(renamed.is_ok() && e.errno() == libc::ENOENT, "rename {n}: {e}"),
        }
        if !reached {
            assert!(renamed.is_ok() && n > 3);
            break;
        }
    }
}
