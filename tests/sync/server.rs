//! The rules of tools with a server, Dropbox and Nextcloud: the version on the server stays, a
//! concurrent local one becomes a conflict copy; an edit wins over a removal; a directory that is
//! not empty stays. Nextcloud also knows renames: it renames on the server, and on the other
//! machines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use super::tool::{self, Clock, Entry, Reading, Tool, TornCopies};
use super::trace::{How, Random, ToolKind};

/// An entry on the server.
#[derive(Clone)]
struct Remote {
    bytes: Rc<Vec<u8>>,
    entry: Entry,
    /// Changes with the contents.
    revision: u64,
    /// Stays when the entry is renamed.
    id: u64,
}

/// What a machine had when it was last equal to the server.
#[derive(Clone)]
struct Base {
    entry: Entry,
    revision: u64,
    id: u64,
}

type Paths<T> = BTreeMap<String, T>;

pub struct Server {
    kind: ToolKind,
    roots: Vec<PathBuf>,
    remote: Paths<Remote>,
    base: Vec<Paths<Base>>,
    clock: Clock,
    next: u64,
    torn: TornCopies,
}

/// What is to be done with a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Change {
    Download,
    Upload,
    Conflict,
    /// Both have it, and it is equal.
    Note,
    RemoveHere,
    RemoveThere,
    /// Neither has it any more.
    Forget,
}

/// Moves everything at `from` and below it to `to`.
fn move_keys<T>(map: &mut Paths<T>, from: &str, to: &str) {
    let below = format!("{from}/");
    let keys: Vec<String> =
        map.keys().filter(|key| *key == from || key.starts_with(&below)).cloned().collect();
    for key in keys {
        let value = map.remove(&key).expect("a key of the map");
        map.insert(format!("{to}{}", &key[from.len()..]), value);
    }
}

fn has_below<T>(map: &Paths<T>, dir: &str) -> bool {
    let below = format!("{dir}/");
    map.range(below.clone()..).next().is_some_and(|(key, _)| key.starts_with(&below))
}

impl Server {
    pub fn new(kind: ToolKind, roots: Vec<PathBuf>) -> Server {
        let base = roots.iter().map(|_| BTreeMap::new()).collect();
        Server {
            kind,
            roots,
            remote: BTreeMap::new(),
            base,
            clock: Clock::default(),
            next: 0,
            torn: TornCopies::default(),
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Repeats on the server what was renamed on this machine.
    fn move_there(&mut self, machine: usize, how: &How, random: &mut Random) -> usize {
        let local = tool::scan(&self.roots[machine]);
        let mut by_inode: BTreeMap<(u64, bool), &String> = BTreeMap::new();
        for (path, entry) in &local {
            if !self.base[machine].contains_key(path) {
                by_inode.insert((entry.ino, entry.is_dir), path);
            }
        }
        let gone: Vec<(String, Base)> = self.base[machine]
            .iter()
            .filter(|(path, _)| !local.contains_key(*path))
            .map(|(path, base)| (path.clone(), base.clone()))
            .collect();
        let mut moves = 0;
        for (from, base) in gone {
            let Some(to) = by_inode.get(&(base.entry.ino, base.entry.is_dir)) else { continue };
            let whole = base.entry.is_dir || local[*to].looks_like(&base.entry);
            // An entry above it may have been moved by now.
            let there = self.remote.get(&from).is_some_and(|remote| remote.id == base.id);
            let parent = tool::parent(to).is_none_or(|dir| self.remote.contains_key(dir));
            let inside = to.starts_with(&format!("{from}/"));
            if !whole || !there || !parent || inside || self.remote.contains_key(*to) {
                continue;
            }
            if how.partial.is_some() && random.chance(50) {
                continue;
            }
            move_keys(&mut self.remote, &from, to);
            move_keys(&mut self.base[machine], &from, to);
            moves += 1;
        }
        moves
    }

    /// Repeats on this machine what was renamed on the server.
    fn move_here(&mut self, machine: usize, how: &How, random: &mut Random) -> usize {
        let root = self.roots[machine].clone();
        let mut by_id: BTreeMap<u64, String> = BTreeMap::new();
        for (path, remote) in &self.remote {
            by_id.insert(remote.id, path.clone());
        }
        let known: Vec<(String, u64)> =
            self.base[machine].iter().map(|(path, base)| (path.clone(), base.id)).collect();
        let mut moves = 0;
        for (from, id) in known {
            let Some(to) = by_id.get(&id) else { continue };
            let base = self.base[machine].get(&from).filter(|base| base.id == id).cloned();
            let Some(base) = base else { continue };
            let Some(there) = tool::look(&root, &from) else { continue };
            let free = *to != from && !self.base[machine].contains_key(to);
            let same = there.is_dir == base.entry.is_dir;
            if !free || !same || tool::look(&root, to).is_some() {
                continue;
            }
            let parent = tool::parent(to).is_none_or(|dir| root.join(dir).is_dir());
            if !parent || (how.partial.is_some() && random.chance(50)) {
                continue;
            }
            if fs::rename(root.join(&from), root.join(to)).is_ok() {
                move_keys(&mut self.base[machine], &from, to);
                moves += 1;
            }
        }
        moves
    }

    /// Compares for each path what the machine has, what the server has, and the base of both.
    fn compare(&self, machine: usize, local: &Paths<Entry>) -> Vec<(String, Change)> {
        let base = &self.base[machine];
        let paths: BTreeSet<&String> =
            local.keys().chain(base.keys()).chain(self.remote.keys()).collect();
        let mut changes = Vec::new();
        for path in paths {
            let (here, there) = (local.get(path), self.remote.get(path));
            let base = base.get(path);
            let same_here = match (here, base) {
                (Some(here), Some(base)) => here.looks_like(&base.entry),
                (here, base) => here.is_none() && base.is_none(),
            };
            let same_there = match (there, base) {
                (Some(there), Some(base)) => there.revision == base.revision,
                (there, base) => there.is_none() && base.is_none(),
            };
            let change = match (here, there) {
                _ if same_here && same_there => continue,
                (None, None) => Change::Forget,
                (Some(_), None) if same_here => Change::RemoveHere,
                (Some(_), None) => Change::Upload,
                (None, Some(_)) if same_there => Change::RemoveThere,
                (None, Some(_)) => Change::Download,
                (Some(here), Some(there)) if here.is_dir && there.entry.is_dir => Change::Note,
                (Some(_), Some(_)) if same_here => Change::Download,
                (Some(_), Some(_)) if same_there => Change::Upload,
                (Some(_), Some(_)) => Change::Conflict,
            };
            changes.push((path.clone(), change));
        }
        // Removals last, those of directories after what is in them.
        let last = |change: Change| change >= Change::RemoveHere;
        changes.sort_by(|(one, a), (other, b)| match (last(*a), last(*b)) {
            (false, false) => one.cmp(other),
            (true, true) => other.cmp(one),
            (a, b) => a.cmp(&b),
        });
        changes
    }

    fn apply(
        &mut self,
        machine: usize,
        path: &str,
        change: Change,
        here: Option<&Entry>,
        bytes: Option<&Vec<u8>>,
    ) -> bool {
        let root = self.roots[machine].clone();
        let now = tool::look(&root, path);
        let unchanged = match (&now, here) {
            (None, None) => true,
            (Some(now), Some(here)) => now.looks_like(here),
            _ => false,
        };
        if !unchanged {
            return false;
        }
        match change {
            Change::Download => self.download(machine, path, here),
            Change::Upload => self.upload(machine, path, here.expect("an entry"), bytes),
            Change::Conflict => self.conflict(machine, path, here.expect("an entry"), bytes),
            Change::Note => self.note(machine, path),
            Change::Forget => self.base[machine].remove(path).is_some(),
            Change::RemoveHere => {
                let target = root.join(path);
                let done = match here.expect("an entry").is_dir {
                    true => fs::remove_dir(target),
                    false => fs::remove_file(target),
                };
                // An entry that could not be removed is then new here, and goes back to the server.
                self.base[machine].remove(path);
                done.is_ok()
            }
            Change::RemoveThere => {
                let is_dir = self.remote[path].entry.is_dir;
                self.base[machine].remove(path);
                if is_dir && has_below(&self.remote, path) {
                    return false;
                }
                self.remote.remove(path).is_some()
            }
        }
    }

    /// Remembers that this machine and the server have the same.
    fn note(&mut self, machine: usize, path: &str) -> bool {
        let Some(remote) = self.remote.get(path) else { return false };
        let Some(entry) = tool::look(&self.roots[machine], path) else { return false };
        let base = Base { entry, revision: remote.revision, id: remote.id };
        self.base[machine].insert(path.to_owned(), base);
        true
    }

    fn download(&mut self, machine: usize, path: &str, here: Option<&Entry>) -> bool {
        let root = self.roots[machine].clone();
        let Some(remote) = self.remote.get(path).cloned() else { return false };
        let mut here = here;
        if here.is_some_and(|here| here.is_dir != remote.entry.is_dir) {
            let target = root.join(path);
            let done = match remote.entry.is_dir {
                true => fs::remove_file(target),
                false => fs::remove_dir(target),
            };
            if done.is_err() {
                return self.rename_copy(machine, path);
            }
            here = None;
        }
        let done = match remote.entry.is_dir {
            true => fs::create_dir_all(root.join(path)),
            false => tool::write_file(self.kind, &root, path, &remote.bytes, &remote.entry, here),
        };
        done.is_ok() && self.note(machine, path)
    }

    fn upload(
        &mut self,
        machine: usize,
        path: &str,
        here: &Entry,
        bytes: Option<&Vec<u8>>,
    ) -> bool {
        if !here.is_dir && bytes.is_none() {
            return false;
        }
        if !here.is_dir && has_below(&self.remote, path) {
            // It became a file here, and another machine has put something into the directory.
            return self.rename_copy(machine, path);
        }
        let mut above = tool::parent(path);
        while let Some(dir) = above {
            match self.remote.get(dir) {
                Some(remote) if remote.entry.is_dir => {}
                Some(_) => return false,
                None => {
                    let entry = Entry { is_dir: true, size: 0, mtime: 0, mode: 0o755, ino: 0 };
                    let (revision, id) = (self.number(), self.number());
                    let remote = Remote { bytes: Rc::default(), entry, revision, id };
                    self.remote.insert(dir.to_owned(), remote);
                }
            }
            above = tool::parent(dir);
        }
        let revision = self.number();
        let id = match self.remote.get(path) {
            Some(remote) => remote.id,
            None => self.number(),
        };
        let bytes = Rc::new(bytes.cloned().unwrap_or_default());
        self.remote.insert(path.to_owned(), Remote { bytes, entry: here.clone(), revision, id });
        let base = Base { entry: here.clone(), revision, id };
        self.base[machine].insert(path.to_owned(), base);
        true
    }

    fn conflict(
        &mut self,
        machine: usize,
        path: &str,
        here: &Entry,
        bytes: Option<&Vec<u8>>,
    ) -> bool {
        let remote = self.remote[path].clone();
        let equal = bytes.is_some_and(|bytes| *bytes == *remote.bytes);
        if !here.is_dir && !remote.entry.is_dir && equal {
            return self.note(machine, path);
        }
        self.rename_copy(machine, path) && self.download(machine, path, None)
    }

    /// Renames what is at `path` to a conflict copy, which is new then: the next sync uploads it.
    fn rename_copy(&mut self, machine: usize, path: &str) -> bool {
        let root = self.roots[machine].clone();
        let (date, time) = self.clock.tick();
        let day = format!("{}-{}-{}", &date[..4], &date[4..6], &date[6..]);
        let suffix = |nth: usize| match (self.kind, nth) {
            (ToolKind::Nextcloud, _) => format!(" (conflicted copy {day} {time})"),
            (_, 0) => format!(" ({}{machine}'s conflicted copy {day})", HOST),
            (_, nth) => format!(" ({}{machine}'s conflicted copy {day} ({nth}))", HOST),
        };
        let copy = (0..100)
            .map(|nth| tool::with_suffix(path, &suffix(nth)))
            .find(|copy| tool::look(&root, copy).is_none() && !self.remote.contains_key(copy));
        let Some(copy) = copy else { return false };
        let done = fs::rename(root.join(path), root.join(copy)).is_ok();
        if done {
            let below = format!("{path}/");
            self.base[machine].retain(|key, _| key != path && !key.starts_with(&below));
        }
        done
    }
}

/// A long host name, so that Dropbox's suffix has its usual greatest length.
const HOST: &str = "the-laptop-of-somebody-with-a-long-name-in-the-office-of-";

impl Tool for Server {
    fn sync(&mut self, machine: usize, how: &How, between: &mut dyn FnMut()) -> usize {
        let mut done = 0;
        if self.kind == ToolKind::Nextcloud {
            let mut random = Random::new(how.partial.unwrap_or(0));
            done += self.move_there(machine, how, &mut random);
            done += self.move_here(machine, how, &mut random);
        }
        let root = self.roots[machine].clone();
        let local = tool::scan(&root);
        let changes = tool::choose(self.compare(machine, &local), how);
        let sends = |change: &Change| matches!(change, Change::Upload | Change::Conflict);
        let reading = Reading::begin(
            &root,
            changes
                .iter()
                .filter(|(_, change)| sends(change))
                .map(|(path, _)| (path, &local[path]))
                .filter(|(_, entry)| !entry.is_dir),
            how.torn.is_some(),
        );
        if how.torn.is_some() {
            between();
        }
        let read = reading.finish(&mut self.torn);
        for (path, change) in changes {
            let (here, bytes) = (local.get(&path), read.get(&path));
            done += usize::from(match (change, here) {
                // What the program has done meanwhile is found at the next sync.
                (Change::Upload, Some(here)) if how.torn.is_some() => {
                    self.upload(machine, &path, here, bytes)
                }
                _ => self.apply(machine, &path, change, here, bytes),
            });
        }
        done
    }

    fn torn(&self) -> &TornCopies {
        &self.torn
    }
}
