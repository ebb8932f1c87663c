//! One machine: its copy of the vault, what it knows of the share, and what programs do there
//! through the names that they are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::names::{Directory, Epoch, Knowledge, Stored, Tag, explained, root_tag};
use super::store::{Item, Path, Record, Store};

/// A control file at the share's root: immutable, and named by its contents.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Control {
    /// The keys of an epoch (manifest and slot block).
    Epoch(Epoch),
    /// A sealed long name.
    Long(u64),
    /// Evidence, sealed under an epoch's keys.
    Moved { epoch: Epoch, from: Tag, to: Tag },
}

/// The actions of all machines, whatever has arrived where.
#[derive(Default)]
pub struct History {
    pub records: Record,
    pub epochs: Epoch,
    /// Records that a program removed or replaced.
    pub removed: BTreeSet<Record>,
    /// Directories that a program renamed: their tags before and after.
    pub renamed: BTreeSet<(Tag, Tag)>,
    /// Tags and names that programs have given to entries.
    pub sealed: BTreeSet<(Tag, String)>,
}

impl History {
    pub fn record(&mut self) -> Record {
        self.records += 1;
        self.records
    }

    /// Returns whether programs have moved entries with the tag `from` into the directory with the
    /// tag `to`.
    pub fn has_moved(&self, from: Tag, to: Tag) -> bool {
        let mut reached = BTreeSet::from([to]);
        let mut next = vec![to];
        while let Some(to) = next.pop() {
            for &(from, _) in self.renamed.iter().filter(|(_, there)| *there == to) {
                if reached.insert(from) {
                    next.push(from);
                }
            }
        }
        reached.contains(&from)
    }
}

pub struct Machine {
    pub store: Store,
    pub control: BTreeSet<Control>,
    /// Known epochs, the current one first.
    epochs: Vec<Epoch>,
    /// Names that were taken from their entries since the vault was opened, by directory.
    vacated: BTreeMap<Path, BTreeSet<String>>,
    /// The renames of directories, for the tools that see them.
    pub renames: Vec<(Path, Path)>,
}

impl Knowledge for Machine {
    fn epochs(&self) -> &[Epoch] {
        &self.epochs
    }

    fn has_long(&self, seal: u64) -> bool {
        self.control.contains(&Control::Long(seal))
    }

    fn evidence_to(&self, wanted: Tag) -> Vec<Tag> {
        self.control
            .iter()
            .filter_map(|control| match *control {
                Control::Moved { epoch, from, to } if to == wanted => {
                    self.epochs.contains(&epoch).then_some(from)
                }
                _ => None,
            })
            .collect()
    }
}

/// An entry as a program sees it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub directory: Path,
    pub name: String,
    pub stored: Rc<Stored>,
    pub item: Item,
}

impl Seen {
    pub fn path(&self) -> Path {
        let mut path = self.directory.clone();
        path.push(self.stored.clone());
        path
    }
}

static NONE: BTreeSet<String> = BTreeSet::new();

impl Machine {
    pub fn new(number: usize) -> Self {
        let mut made = Self {
            store: Store::new(number),
            control: BTreeSet::new(),
            epochs: Vec::new(),
            vacated: BTreeMap::new(),
            renames: Vec::new(),
        };
        made.learn(Control::Epoch(0));
        made
    }

    pub fn learn(&mut self, control: Control) {
        self.control.insert(control);
        if let Control::Epoch(epoch) = control
            && !self.epochs.contains(&epoch)
        {
            self.epochs.push(epoch);
            self.epochs.sort_unstable_by(|a, b| b.cmp(a));
        }
    }

    pub fn forget(&mut self, control: Control) {
        self.control.remove(&control);
    }

    pub fn remount(&mut self) {
        self.vacated.clear();
    }

    pub fn tag(path: &[Rc<Stored>]) -> Tag {
        path.last().map_or_else(root_tag, |stored| stored.tag_of_directory())
    }

    pub fn directory<'a>(&'a self, path: &'a Path) -> Directory<'a, Self> {
        let own = Self::tag(path);
        Directory {
            knowledge: self,
            own,
            explained: explained(self, own),
            entries: self.store.children(path).map(|(stored, _)| &**stored).collect(),
            vacated: self.vacated.get(path).unwrap_or(&NONE),
        }
    }

    /// Returns everything that a program finds, in the order of a walk.
    pub fn walk(&self) -> Vec<Seen> {
        let mut found = Vec::new();
        let mut next = vec![Path::new()];
        while let Some(directory) = next.pop() {
            for (name, stored) in self.directory(&directory).list() {
                let stored = Rc::new(stored.clone());
                let mut path = directory.clone();
                path.push(stored.clone());
                let item = self.store.get(&path).expect("what was listed is there");
                if item == Item::Directory {
                    next.push(path);
                }
                found.push(Seen { directory: directory.clone(), name, stored, item });
            }
        }
        found
    }

    pub fn lookup(&self, directory: &Path, name: &str) -> Option<Seen> {
        let stored = self.directory(directory).lookup(name)?;
        let stored = Rc::new(stored.clone());
        let mut path = directory.clone();
        path.push(stored.clone());
        let item = self.store.get(&path).expect("what was found is there");
        Some(Seen { directory: directory.clone(), name: name.to_owned(), stored, item })
    }

    /// Returns the stored name of a new entry.
    fn seal_new(&mut self, history: &mut History, tag: Tag, name: &str) -> Rc<Stored> {
        history.sealed.insert((tag, name.to_owned()));
        self.seal(tag, name, "")
    }

    /// Seals a name under the current epoch. A long name is durable before its entry.
    fn seal(&mut self, tag: Tag, name: &str, suffix: &str) -> Rc<Stored> {
        let epoch = self.epochs[0];
        let stored = Stored { epoch, tag, name: name.to_owned(), suffix: suffix.to_owned() };
        if stored.is_long() {
            self.learn(Control::Long(stored.seal()));
        }
        Rc::new(stored)
    }

    pub fn create(&mut self, history: &mut History, directory: &Path, name: &str) {
        if self.lookup(directory, name).is_none() {
            let item = Item::File(history.record());
            self.make(history, directory, name, item);
        }
    }

    pub fn mkdir(&mut self, history: &mut History, directory: &Path, name: &str) {
        if self.lookup(directory, name).is_none() {
            self.make(history, directory, name, Item::Directory);
        }
    }

    fn make(&mut self, history: &mut History, directory: &Path, name: &str, item: Item) {
        let stored = self.seal_new(history, Self::tag(directory), name);
        let mut path = directory.clone();
        path.push(stored);
        assert!(self.store.get(&path).is_none(), "{name:?} was free, but its entry exists");
        self.store.set(path, Some(item));
        self.come_back(directory, name);
    }

    fn come_back(&mut self, directory: &Path, name: &str) {
        if let Some(names) = self.vacated.get_mut(directory) {
            names.remove(name);
        }
    }

    /// Notes that a name was taken from its entry, if another entry claims it.
    fn vacate(&mut self, seen: &Seen) {
        if self.lookup(&seen.directory, &seen.name).is_none() {
            return;
        }
        self.vacated.entry(seen.directory.clone()).or_default().insert(seen.name.clone());
    }

    pub fn write(&mut self, history: &mut History, seen: &Seen) {
        if let Item::File(record) = seen.item {
            history.removed.insert(record);
            self.store.set(seen.path(), Some(Item::File(history.record())));
        }
    }

    /// Removes a file or an empty directory. Returns whether it succeeded.
    pub fn remove(&mut self, history: &mut History, seen: &Seen) -> bool {
        let path = seen.path();
        match seen.item {
            Item::File(record) => {
                history.removed.insert(record);
            }
            Item::Directory if self.store.children(&path).next().is_some() => return false,
            Item::Directory => {
                self.vacated.remove(&path);
            }
        }
        self.store.set(path, None);
        self.vacate(seen);
        true
    }

    /// `rm -r`: removes each name of one listing. Only an entry that no key of this machine opens
    /// keeps the directory.
    pub fn remove_tree(&mut self, history: &mut History, seen: &Seen) {
        let path = seen.path();
        if seen.item == Item::Directory {
            for (name, stored) in {
                let listed = self.directory(&path).list();
                listed.into_iter().map(|(name, at)| (name, at.clone())).collect::<Vec<_>>()
            } {
                let found = self.lookup(&path, &name).expect("a listed name is found");
                assert_eq!(*found.stored, stored, "{name:?} became another entry's");
                self.remove_tree(history, &found);
            }
        }
        let may_stay = self
            .store
            .below(&path)
            .any(|(below, _)| !self.epochs.contains(&below.last().expect("below something").epoch));
        assert!(self.remove(history, seen) || may_stay, "an entry hid from rm -r");
    }

    /// Creates the evidence for a directory that is about to get another tag.
    fn explain(&mut self, history: &mut History, from: Tag, to: Tag) {
        history.renamed.insert((from, to));
        if from != to && !explained(self, to).contains(&from) {
            self.learn(Control::Moved { epoch: self.epochs[0], from, to });
        }
    }

    /// Renames an entry, over another one if the kernel would allow it.
    pub fn rename(&mut self, history: &mut History, seen: &Seen, into: &Path, name: &str) {
        let from = seen.path();
        if into.starts_with(&from) {
            return;
        }
        let victim = self.lookup(into, name);
        let stored = match &victim {
            Some(victim) => {
                let allowed = match (seen.item, victim.item) {
                    (Item::File(_), Item::File(_)) => true,
                    (Item::Directory, Item::Directory) => {
                        self.store.children(&victim.path()).next().is_none()
                    }
                    _ => false,
                };
                if !allowed || victim.path() == from || from.starts_with(&victim.path()) {
                    return;
                }
                if let Item::File(record) = victim.item {
                    history.removed.insert(record);
                }
                if victim.stored.is_long() {
                    self.learn(Control::Long(victim.stored.seal()));
                }
                victim.stored.clone()
            }
            None => self.seal_new(history, Self::tag(into), name),
        };
        let mut to = into.clone();
        to.push(stored);
        if victim.is_none() {
            assert!(self.store.get(&to).is_none(), "{name:?} was free, but its entry exists");
        }
        self.put(history, seen, to);
        self.vacate(seen);
        self.come_back(into, name);
    }

    fn put(&mut self, history: &mut History, seen: &Seen, to: Path) {
        let from = seen.path();
        if seen.item == Item::Directory {
            self.explain(history, Self::tag(&from), Self::tag(&to));
            self.renames.push((from.clone(), to.clone()));
        }
        self.store.rename(&from, &to);
        self.vacated.retain(|path, _| !path.starts_with(&to));
        let moved: Vec<_> =
            self.vacated.keys().filter(|path| path.starts_with(&from)).cloned().collect();
        for path in moved {
            let names = self.vacated.remove(&path).expect("it was there");
            self.vacated.insert([&to, &path[from.len()..]].concat(), names);
        }
    }

    pub fn exchange(&mut self, history: &mut History, one: &Seen, other: &Seen) {
        let (a, b) = (one.path(), other.path());
        if a.starts_with(&b) || b.starts_with(&a) {
            return;
        }
        if one.item == Item::Directory {
            self.explain(history, Self::tag(&a), Self::tag(&b));
        }
        if other.item == Item::Directory {
            self.explain(history, Self::tag(&b), Self::tag(&a));
        }
        let mut aside = (*one.stored).clone();
        aside.suffix = "aside".to_owned();
        let mut path = one.directory.clone();
        path.push(Rc::new(aside));
        self.store.exchange(&a, &b, &path);
        self.vacated.retain(|path, _| !path.starts_with(&a) && !path.starts_with(&b));
    }

    /// A new folder key.
    pub fn rekey(&mut self, history: &mut History) {
        history.epochs += 1;
        self.learn(Control::Epoch(history.epochs));
    }

    /// Reseals one name of an old epoch with its own tag, unless another entry has that stored
    /// name.
    pub fn reseal(&mut self, history: &mut History, seen: &Seen) {
        if seen.stored.epoch == self.epochs[0]
            || seen.stored.is_long() && !self.has_long(seen.stored.seal())
        {
            return;
        }
        let Stored { tag, name, suffix, .. } = &*seen.stored;
        let mut to = seen.directory.clone();
        to.push(self.seal(*tag, name, suffix));
        if self.store.get(&to).is_none() {
            self.put(history, seen, to);
        }
    }
}
