//! The rules of Syncthing: an index of version vectors on each machine; of two concurrent versions
//! the one with the later time stays and the other becomes a conflict copy; an edit wins over a
//! removal; a directory that is not empty stays.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::tool::{self, Clock, Entry, Reading, Tool, TornCopies};
use super::trace::{How, ToolKind};

type Vector = BTreeMap<usize, u64>;

/// What the index knows of a path: its version, and the entry unless it was removed.
#[derive(Clone)]
struct Known {
    version: Vector,
    entry: Option<Entry>,
}

pub struct Syncthing {
    roots: Vec<PathBuf>,
    index: Vec<BTreeMap<String, Known>>,
    clock: Clock,
    torn: TornCopies,
}

fn includes(greater: &Vector, lesser: &Vector) -> bool {
    lesser.iter().all(|(machine, count)| greater.get(machine).is_some_and(|most| most >= count))
}

fn merge(one: &Vector, other: &Vector) -> Vector {
    let mut merged = one.clone();
    for (machine, count) in other {
        let most = merged.entry(*machine).or_default();
        *most = (*most).max(*count);
    }
    merged
}

impl Syncthing {
    pub fn new(roots: Vec<PathBuf>) -> Syncthing {
        let index = roots.iter().map(|_| BTreeMap::new()).collect();
        Syncthing { roots, index, clock: Clock::default(), torn: TornCopies::default() }
    }

    /// Brings the index of a machine up to date with its directory. Returns the number of changes.
    fn scan(&mut self, machine: usize) -> usize {
        let found = tool::scan(&self.roots[machine]);
        let index = &mut self.index[machine];
        let mut changes = 0;
        let mut change = |known: &mut Known, entry: Option<Entry>| {
            *known.version.entry(machine).or_default() += 1;
            known.entry = entry;
            changes += 1;
        };
        for (path, known) in index.iter_mut() {
            if known.entry.is_some() && !found.contains_key(path) {
                change(known, None);
            }
        }
        for (path, entry) in found {
            let known = index.entry(path).or_insert(Known { version: Vector::new(), entry: None });
            if known.entry.as_ref().is_none_or(|before| !before.looks_like(&entry)) {
                change(known, Some(entry));
            }
        }
        changes
    }

    /// Copies the newer entries of another machine.
    fn pull(&mut self, machine: usize, peer: usize, how: &How, between: &mut dyn FnMut()) -> usize {
        let news: Vec<(String, Known)> = self.index[peer]
            .iter()
            .filter(|(path, theirs)| match self.index[machine].get(*path) {
                Some(ours) => !includes(&ours.version, &theirs.version),
                None => true,
            })
            .map(|(path, known)| (path.clone(), known.clone()))
            .collect();
        let (mut files, mut removals): (Vec<_>, Vec<_>) =
            news.into_iter().partition(|(_, known)| known.entry.is_some());
        // Directories come before what is in them, and go after it.
        files.sort_by(|(one, _), (other, _)| one.cmp(other));
        removals.sort_by(|(one, _), (other, _)| other.cmp(one));
        files.append(&mut removals);
        let news = tool::choose(files, how);
        let is_file = |known: &Known| known.entry.as_ref().is_some_and(|entry| !entry.is_dir);
        let reading = Reading::begin(
            &self.roots[peer],
            news.iter()
                .filter(|(_, known)| is_file(known))
                .map(|(path, known)| (path, known.entry.as_ref().expect("a file"))),
            how.torn.is_some(),
        );
        if how.torn.is_some() {
            between();
        }
        let read = reading.finish(&mut self.torn);
        let mut changes = 0;
        for (path, theirs) in news {
            // A file that no longer looks as the index says is not copied.
            if is_file(&theirs) && how.torn.is_none() {
                let now = tool::look(&self.roots[peer], &path);
                if now.is_none_or(|now| !now.looks_like(theirs.entry.as_ref().expect("a file"))) {
                    continue;
                }
            }
            let bytes = read.get(&path).map_or(&[][..], |bytes| bytes);
            if is_file(&theirs) && !read.contains_key(&path) {
                continue;
            }
            changes += usize::from(self.take(machine, peer, &path, &theirs, bytes));
        }
        changes
    }

    /// Takes over one entry, or its removal. Returns false if that is not possible now.
    fn take(
        &mut self,
        machine: usize,
        peer: usize,
        path: &str,
        theirs: &Known,
        bytes: &[u8],
    ) -> bool {
        let root = self.roots[machine].clone();
        let none = Known { version: Vector::new(), entry: None };
        let ours = self.index[machine].get(path).cloned().unwrap_or(none);
        // An entry that has changed since the scan is left to the next sync.
        let there = tool::look(&root, path);
        match (&there, &ours.entry) {
            (None, None) => {}
            (Some(there), Some(ours)) if there.looks_like(ours) => {}
            _ => return false,
        }
        let merged = merge(&ours.version, &theirs.version);
        let concurrent = !includes(&theirs.version, &ours.version);
        let taken = match (&ours.entry, &theirs.entry) {
            (None, None) => None,
            (Some(ours), None) if concurrent || !remove(&root, path, ours) => {
                // An edit wins, and a directory with something in it stays.
                if !concurrent {
                    return false;
                }
                Some(ours.clone())
            }
            (Some(_), None) => None,
            (None, Some(entry)) => {
                if !self.create(&root, path, entry, bytes, None) {
                    return false;
                }
                tool::look(&root, path)
            }
            (Some(ours), Some(entry)) if ours.is_dir && entry.is_dir => Some(ours.clone()),
            (Some(ours), Some(entry)) => {
                let equal = !ours.is_dir
                    && !entry.is_dir
                    && fs::read(root.join(path)).is_ok_and(|held| held == bytes);
                let lose = match (ours.is_dir, entry.is_dir) {
                    (true, false) => !concurrent,
                    (false, true) => true,
                    _ => (entry.mtime, peer) > (ours.mtime, machine),
                };
                if concurrent && !lose {
                    // The other machine makes the copy.
                    return false;
                }
                let mut expected = Some(ours.clone());
                if concurrent && !equal {
                    if !self.move_aside(&root, path, machine) {
                        return false;
                    }
                    expected = None;
                }
                if ours.is_dir != entry.is_dir && expected.is_some() {
                    if !remove(&root, path, ours) {
                        return false;
                    }
                    expected = None;
                }
                if !self.create(&root, path, entry, bytes, expected.as_ref()) {
                    return false;
                }
                tool::look(&root, path)
            }
        };
        self.index[machine].insert(path.to_owned(), Known { version: merged, entry: taken });
        true
    }

    fn create(
        &self,
        root: &Path,
        path: &str,
        entry: &Entry,
        bytes: &[u8],
        expected: Option<&Entry>,
    ) -> bool {
        match entry.is_dir {
            true => fs::create_dir_all(root.join(path)).is_ok(),
            false => {
                tool::write_file(ToolKind::Syncthing, root, path, bytes, entry, expected).is_ok()
            }
        }
    }

    /// Renames the losing version. The loser of a conflict about a conflict copy is not kept.
    fn move_aside(&mut self, root: &Path, path: &str, machine: usize) -> bool {
        if tool::name_of(path).contains(".sync-conflict-") {
            return fs::remove_file(root.join(path)).is_ok();
        }
        let (date, time) = self.clock.tick();
        let device = char::from(b'A' + machine as u8).to_string().repeat(7);
        let copy = tool::with_suffix(path, &format!(".sync-conflict-{date}-{time}-{device}"));
        fs::rename(root.join(path), root.join(copy)).is_ok()
    }
}

/// Removes an entry, and returns whether that succeeded.
fn remove(root: &Path, path: &str, entry: &Entry) -> bool {
    match entry.is_dir {
        true => fs::remove_dir(root.join(path)).is_ok(),
        false => fs::remove_file(root.join(path)).is_ok(),
    }
}

impl Tool for Syncthing {
    fn sync(&mut self, machine: usize, how: &How, between: &mut dyn FnMut()) -> usize {
        let mut changes = 0;
        for each in 0..self.roots.len() {
            changes += self.scan(each);
        }
        let peers: BTreeSet<usize> =
            (0..self.roots.len()).filter(|peer| *peer != machine).collect();
        for peer in peers {
            changes += self.pull(machine, peer, how, between);
        }
        changes + self.scan(machine)
    }

    fn torn(&self) -> &TornCopies {
        &self.torn
    }
}
