//! Files in a store that fills up and has room again at random moments, compared with a model. Data
//! that is read was written, as far as the store accepted it, and a close leaves a state that the
//! file had since its last successful commit.

use std::collections::BTreeMap;
use std::time::Duration;

use kithfs::store::mem::MemStore;
use kithfs::vault::{Error, Fallocate, OpenFlags, ROOT, RenameMode, SetAttr, Vault};

use crate::support::vaults::{self, READ_WRITE, Seeded, at, get, pattern};

const NAMES: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];

#[derive(Default)]
struct Story {
    handles: Vec<u64>,
    /// The contents that a read returns.
    view: Vec<u8>,
    /// States that a refused commit may leave: that of the last success, and all since.
    states: Vec<Vec<u8>>,
    /// The contents were discarded, and nothing was committed since: the file may be lost.
    fragile: bool,
}

struct Run {
    store: MemStore,
    vault: Vault,
    files: BTreeMap<&'static [u8], Story>,
    random: Seeded,
    refused: usize,
    what: String,
}

/// Returns whether a call succeeded; an error other than lack of room fails the test.
fn done<T>(result: &Result<T, Error>, what: &str) -> bool {
    if let Err(e) = result {
        assert_eq!(e.errno(), libc::ENOSPC, "{what}: {e}");
    }
    result.is_ok()
}

fn patched(view: &[u8], offset: usize, data: &[u8]) -> Vec<u8> {
    let mut new = view.to_vec();
    new.resize(new.len().max(offset + data.len()), 0);
    new[offset..offset + data.len()].copy_from_slice(data);
    new
}

impl Run {
    fn new(seed: u64) -> Self {
        let store = MemStore::new();
        vaults::create_by_seed(&store.root(), seed);
        let vault = vaults::open(store.root()).unwrap();
        if seed.is_multiple_of(2) {
            vault.prepare().unwrap();
        }
        Run {
            store,
            vault,
            files: BTreeMap::new(),
            random: Seeded::new(seed),
            refused: 0,
            what: format!("run {seed}"),
        }
    }

    fn below(&self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    fn read(&self, name: &[u8]) -> Result<Vec<u8>, Error> {
        let Some(&handle) = self.files[name].handles.first() else { return get(&self.vault, name) };
        let mut bytes = vec![0; self.files[name].view.len() + 300_000];
        let read = self.vault.read(handle, 0, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Adopts the present contents as the new state, if `may` allows it; its arguments are the
    /// former and the present contents.
    fn take(&mut self, name: &'static [u8], may: impl Fn(&Story, &[u8]) -> bool) {
        match self.read(name) {
            Ok(bytes) => {
                let story = self.files.get_mut(name).unwrap();
                assert!(
                    may(story, &bytes),
                    "{}: {} bytes where {} were",
                    self.what,
                    bytes.len(),
                    story.view.len()
                );
                if story.handles.is_empty() {
                    (story.states, story.fragile) = (Vec::new(), false);
                }
                story.states.push(bytes.clone());
                story.view = bytes;
            }
            Err(e) => {
                assert!(
                    self.files[name].fragile && self.files[name].handles.is_empty(),
                    "{}: {e}",
                    self.what
                );
                self.vault.unlink(ROOT, name).unwrap();
                self.files.remove(name);
            }
        }
    }

    /// Adopts the contents after a call: `new` after a success, otherwise anything that `may`
    /// allows; its arguments are the former contents, `new`, and the present contents.
    fn change(
        &mut self,
        name: &'static [u8],
        done: bool,
        new: Vec<u8>,
        may: impl Fn(&[u8], &[u8], &[u8]) -> bool,
    ) {
        self.refused += usize::from(!done);
        let is_open = !self.files[name].handles.is_empty();
        self.take(name, |story, bytes| match done {
            true => bytes == new,
            false if is_open => may(&story.view, &new, bytes),
            // As much of it as there was room for, and never less than was committed before.
            false if story.view.starts_with(bytes) => {
                story.states.iter().any(|state| state.len() <= bytes.len())
            }
            false => bytes == new || story.states.iter().any(|state| state == bytes),
        });
    }

    fn release(&mut self, name: &'static [u8]) {
        let story = self.files.get_mut(name).unwrap();
        let Some(handle) = story.handles.pop() else { return };
        let done = done(&self.vault.release(handle), &self.what);
        let view = self.files[name].view.clone();
        self.change(name, done, view, |view, _, bytes| bytes == view);
    }

    fn reopen(&mut self) {
        let left_open = self.below(3) == 0;
        for name in NAMES.into_iter().filter(|_| !left_open) {
            while self.files.get(name).is_some_and(|story| !story.handles.is_empty()) {
                self.release(name);
            }
        }
        let closed = done(&self.vault.close(), &self.what);
        self.vault = vaults::open(self.store.root()).unwrap();
        for name in NAMES {
            if let Some(story) = self.files.get_mut(name) {
                story.handles.clear();
                let view = story.view.clone();
                self.change(name, closed, view, |_, _, _| false);
            }
        }
        assert_eq!(self.vault.check(b"", &mut |_| {}).unwrap().faults, [], "{}", self.what);
    }

    fn step(&mut self) {
        let (choice, name) = (self.below(100), NAMES[self.below(5)]);
        let bytes_of = [200, 5000, 40_000, 150_000][self.below(4)];
        let len = self.below(bytes_of) + 1;
        let (seed, story) = (self.random.next(), self.files.get(name));
        let handle = story.and_then(|story| story.handles.last().copied());
        let view = story.map(|story| story.view.clone());
        match (choice, handle, view) {
            (0..10, ..) => {
                self.store.set_capacity(None);
                let space = self.vault.space().unwrap();
                let room = self.below(60) as u64 / 20 * self.below(40) as u64;
                let capacity = (space.blocks - space.free + room) * space.block_size;
                self.store.set_capacity((!seed.is_multiple_of(3)).then_some(capacity));
            }
            (10..25, _, view) if story.is_none_or(|story| story.handles.len() < 2) => {
                let truncate = seed.is_multiple_of(6);
                let opened =
                    vaults::open_or_create(&self.vault, name, OpenFlags { truncate, ..READ_WRITE });
                let done = done(&opened, &self.what);
                if view.is_none() && !done {
                    return;
                }
                let story = self.files.entry(name).or_default();
                story.handles.extend(opened.ok());
                story.fragile |= truncate || view.is_none();
                if truncate || view.is_none() {
                    story.states.push(Vec::new());
                    self.change(name, done, Vec::new(), |view, new, bytes| {
                        bytes == view || bytes == new
                    });
                }
            }
            (25..60, Some(handle), Some(view)) => {
                let offset =
                    if seed.is_multiple_of(3) { view.len() } else { self.below(view.len() + 5000) };
                let data = pattern(seed, len);
                let done = done(&self.vault.write(handle, offset as u64, &data, false), &self.what);
                self.change(name, done, patched(&view, offset, &data), |view, new, bytes| {
                    let is_zero = |i, byte| i >= view.len() && i < offset && byte == 0;
                    let fits = |(i, byte)| {
                        new.get(i) == Some(&byte) || view.get(i) == Some(&byte) || is_zero(i, byte)
                    };
                    (view.len()..=new.len()).contains(&bytes.len())
                        && bytes.iter().copied().enumerate().all(fits)
                });
            }
            (60..68, handle, Some(mut new)) => {
                let size = if seed.is_multiple_of(4) { 0 } else { self.below(new.len() + 3000) };
                let set = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                let done =
                    done(&at(&self.vault, name, |node| self.vault.setattr(node, &set)), &self.what);
                new.resize(size, 0);
                self.files.get_mut(name).unwrap().fragile |=
                    size == 0 && (handle.is_some() || !done);
                self.change(name, done, new, |view, new, bytes| bytes == view || bytes == new);
            }
            (68..76, Some(handle), Some(view)) => {
                let committed = if seed.is_multiple_of(2) {
                    self.vault.fsync(handle, false)
                } else {
                    self.vault.flush(handle)
                };
                if done(&committed, &self.what) {
                    let story = self.files.get_mut(name).unwrap();
                    (story.states, story.fragile) = (vec![view], false);
                }
            }
            (76..90, Some(_), _) => self.release(name),
            (90..92, Some(handle), Some(mut new)) if !new.is_empty() => {
                let offset = self.below(new.len());
                let done = done(
                    &self.vault.fallocate(handle, offset as u64, len as u64, Fallocate::PunchHole),
                    &self.what,
                );
                let end = new.len().min(offset + len);
                new[offset..end].fill(0);
                self.change(name, done, new, |view, new, bytes| {
                    bytes.len() == view.len()
                        && bytes
                            .iter()
                            .enumerate()
                            .all(|(i, byte)| *byte == view[i] || *byte == new[i])
                });
            }
            (92..94, _, Some(_)) => {
                let to = NAMES[self.below(5)];
                if to != name
                    && done(&vaults::rename(&self.vault, name, to, RenameMode::Replace), &self.what)
                {
                    let moved = self.files.remove(name).unwrap();
                    let gone = self.files.insert(to, moved);
                    gone.into_iter()
                        .flat_map(|story| story.handles)
                        .for_each(|handle| drop(self.vault.release(handle)));
                }
            }
            (94, _, Some(_)) => {
                self.vault.unlink(ROOT, name).unwrap();
                let gone = self.files.remove(name).unwrap();
                gone.handles.into_iter().for_each(|handle| drop(self.vault.release(handle)));
            }
            (95, ..) => self.vault.commit_due(Duration::ZERO),
            (96, ..) => self.vault.flush_due(Duration::ZERO),
            (97.., ..) => self.reopen(),
            _ => {}
        }
        for name in
            NAMES.into_iter().filter(|name| self.files.contains_key(name)).collect::<Vec<_>>()
        {
            let read = self.read(name).unwrap_or_else(|e| panic!("{}: {e}", self.what));
            assert!(
                read == self.files[name].view,
                "{}: {} bytes, and {} were there",
                self.what,
                read.len(),
                self.files[name].view.len()
            );
        }
    }
}

#[test]
fn a_store_that_fills_up_takes_nothing_committed() {
    // Files that were never synced became unreadable when a later write found no room, and others
    // became shorter than their headers state. KITHFS_RUNS sets the number of runs, KITHFS_SEED the
    // first seed.
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let (first, runs) = (number("KITHFS_SEED", 1), number("KITHFS_RUNS", 80));
    let mut refused = 0;
    for seed in first..first + runs {
        let mut run = Run::new(seed);
        (0..300).for_each(|_| run.step());
        refused += run.refused;
    }
    assert!(refused as u64 > runs, "{refused} calls were refused");
}
