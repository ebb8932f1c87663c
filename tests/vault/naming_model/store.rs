//! The copy of the vault on one machine as a sync tool sees it: whole files under stored paths,
//! each with the version vector of a tool that keeps tombstones.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::names::Stored;

pub const MACHINES: usize = 3;

pub type Path = Vec<Rc<Stored>>;

/// The contents of a file; each write makes different ones.
pub type Record = u32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item {
    File(Record),
    Directory,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Version([u16; MACHINES]);

impl Version {
    fn covers(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0).all(|(mine, other)| *mine >= other)
    }

    fn with(&self, other: &Self) -> Self {
        let mut both = *self;
        both.0.iter_mut().zip(other.0).for_each(|(mine, other)| *mine = (*mine).max(other));
        both
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Cell {
    /// `None` after a removal.
    item: Option<Item>,
    version: Version,
}

pub struct Store {
    machine: usize,
    /// The number of the next conflict copy that is made here.
    conflicts: usize,
    cells: BTreeMap<Path, Cell>,
}

impl Store {
    pub fn new(machine: usize) -> Self {
        Self { machine, conflicts: machine, cells: BTreeMap::new() }
    }

    pub fn get(&self, path: &[Rc<Stored>]) -> Option<Item> {
        self.cells.get(path).and_then(|cell| cell.item)
    }

    pub fn is_directory(&self, path: &[Rc<Stored>]) -> bool {
        path.is_empty() || self.get(path) == Some(Item::Directory)
    }

    pub fn children<'a>(
        &'a self,
        path: &'a [Rc<Stored>],
    ) -> impl Iterator<Item = (&'a Rc<Stored>, Item)> {
        self.below(path)
            .filter(|(below, _)| below.len() == path.len() + 1)
            .map(|(below, item)| (below.last().expect("below something"), item))
    }

    /// Returns the cells below a path, parents first.
    pub fn below<'a>(&'a self, path: &'a [Rc<Stored>]) -> impl Iterator<Item = (&'a Path, Item)> {
        self.cells
            .range(path.to_vec()..)
            .take_while(move |(below, _)| below.starts_with(path))
            .filter(move |(below, _)| below.len() > path.len())
            .filter_map(|(below, cell)| Some((below, cell.item?)))
    }

    pub fn everything(&self) -> impl Iterator<Item = (&Path, Item)> {
        self.below(&[])
    }

    /// Records a change by a program.
    pub fn set(&mut self, path: Path, item: Option<Item>) {
        let machine = self.machine;
        let cell = self.cells.entry(path).or_default();
        cell.item = item;
        cell.version.0[machine] += 1;
    }

    /// Records a program's rename of an entry with everything below it; it replaces the target.
    pub fn rename(&mut self, from: &Path, to: &Path) {
        let moved: Vec<_> = self
            .cells
            .range(from.clone()..)
            .take_while(|(path, _)| path.starts_with(from))
            .filter_map(|(path, cell)| Some((path.clone(), cell.item?)))
            .collect();
        for (path, _) in &moved {
            self.set(path.clone(), None);
        }
        for (path, item) in moved {
            self.set([to, &path[from.len()..]].concat(), Some(item));
        }
    }

    /// Exchanges two entries with everything below them.
    pub fn exchange(&mut self, one: &Path, other: &Path, aside: &Path) {
        self.rename(one, aside);
        self.rename(other, one);
        self.rename(aside, other);
        self.cells.retain(|path, _| !path.starts_with(aside));
    }

    pub fn paths(&self) -> Vec<Path> {
        self.cells.keys().cloned().collect()
    }

    /// Delivers `from`'s version of a path, as a tool does that knows only whole files.
    pub fn deliver(&mut self, from: &Self, path: &Path, suffix: &str) {
        let Some(theirs) = from.cells.get(path).copied() else { return };
        let mine = self.cells.get(path).copied().unwrap_or_default();
        if mine.version.covers(&theirs.version)
            && (mine.version != theirs.version || mine.item == theirs.item)
        {
            return;
        }
        let version = mine.version.with(&theirs.version);
        let newer = theirs.version.covers(&mine.version) && theirs.version != mine.version;
        match (mine.item, theirs.item) {
            (None, None) => self.put(path, None, version),
            (Some(_), None) if newer => self.deliver_removal(from, path, version, suffix),
            (Some(item), None) => self.put(path, Some(item), version),
            (None, Some(item)) => {
                if self.deliver_parents(from, path, suffix) {
                    self.put(path, Some(item), version);
                }
            }
            (Some(Item::Directory), Some(Item::Directory)) => {
                self.put(path, mine.item, version);
            }
            (Some(Item::Directory), Some(Item::File(_))) => {
                if newer {
                    self.deliver_removals_below(from, path, suffix);
                }
                if newer && self.children(path).next().is_none() {
                    self.put(path, theirs.item, version);
                } else {
                    self.put_conflict(path, theirs.item, suffix);
                    self.put(path, mine.item, version);
                }
            }
            (Some(Item::File(_)), Some(_)) if newer => self.put(path, theirs.item, version),
            (Some(Item::File(_)), Some(Item::Directory)) => {
                self.put_conflict(path, mine.item, suffix);
                self.put(path, theirs.item, version);
            }
            (Some(Item::File(one)), Some(Item::File(other))) => {
                if one != other {
                    self.put_conflict(path, Some(Item::File(one.min(other))), suffix);
                }
                self.put(path, Some(Item::File(one.max(other))), version);
            }
        }
    }

    fn put(&mut self, path: &Path, item: Option<Item>, version: Version) {
        self.cells.insert(path.clone(), Cell { item, version });
    }

    /// Keeps the losing version under a name that no machine has used.
    fn put_conflict(&mut self, path: &Path, item: Option<Item>, suffix: &str) {
        let mut copy = path.clone();
        let mut last = (*copy.pop().expect("the root has no conflict")).clone();
        last.suffix += &suffix.replace('#', &self.conflicts.to_string());
        self.conflicts += MACHINES;
        copy.push(Rc::new(last));
        self.set(copy, item);
    }

    fn deliver_parents(&mut self, from: &Self, path: &Path, suffix: &str) -> bool {
        for len in 1..path.len() {
            let parent = path[..len].to_vec();
            if !self.is_directory(&parent) {
                self.deliver(from, &parent, suffix);
            }
            match self.get(&parent) {
                Some(Item::Directory) => {}
                // It was removed here, but contains something new: the tool creates it again.
                None => self.set(parent, Some(Item::Directory)),
                // Something else has taken its place here; the tool tries again later.
                Some(Item::File(_)) => return false,
            }
        }
        true
    }

    fn deliver_removals_below(&mut self, from: &Self, path: &Path, suffix: &str) {
        let below: Vec<_> = self.below(path).map(|(path, _)| path.clone()).collect();
        for path in below.into_iter().rev() {
            if from.get(&path).is_none() {
                self.deliver(from, &path, suffix);
            }
        }
    }

    fn deliver_removal(&mut self, from: &Self, path: &Path, version: Version, suffix: &str) {
        self.deliver_removals_below(from, path, suffix);
        if self.children(path).next().is_none() {
            self.put(path, None, version);
        } else {
            // The directory has entries that the other machine did not know, so it stays, and is
            // delivered to the other machine again.
            self.put(path, Some(Item::Directory), version);
            self.set(path.clone(), Some(Item::Directory));
        }
    }

    /// Delivers the rename of a directory as one rename, as a tool does that knows directories:
    /// with everything that it contains here.
    pub fn deliver_rename(&mut self, theirs: &Self, from: &Path, to: &Path) {
        let parent = &to[..to.len() - 1];
        if self.get(from) != Some(Item::Directory)
            || self.get(to).is_some()
            || !self.is_directory(parent)
            || to.starts_with(from)
        {
            return;
        }
        self.rename(from, to);
        // An entry that is equal on both sides does not count as changed here.
        for (path, cell) in &mut self.cells {
            if (path.starts_with(from) || path.starts_with(to))
                && let Some(other) = theirs.cells.get(path)
                && other.item == cell.item
            {
                cell.version = cell.version.with(&other.version);
            }
        }
    }

    pub fn same_as(&self, other: &Self) -> bool {
        self.everything().eq(other.everything())
    }
}
