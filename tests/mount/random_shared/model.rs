//! What each mount may show of a file: the twin has its newest state, but other mounts than that of
//! the writer may show an older one until the newest is committed.

use std::collections::HashMap;

/// An entry of a listing.
#[derive(Clone, Debug)]
pub struct Node {
    pub path: String,
    pub kind: String,
    pub mode: String,
    pub links: u64,
    pub inode: u64,
    pub time: u64,
    pub size: u64,
    /// Length and checksum of a file, or the target of a link.
    pub contents: String,
}

impl Node {
    pub fn is_file(&self) -> bool {
        self.kind == "file"
    }
}

/// Returns the entries of a listing.
pub fn parse(listing: &str) -> Vec<Node> {
    let parse = |entry: &str| {
        let parts: Vec<&str> = entry.split('|').collect();
        let [path, kind, mode, links, inode, time, size, contents] = parts[..] else {
            panic!("a listing with {entry:?}");
        };
        let number = |text: &str| text.parse().unwrap();
        Node {
            path: path.into(),
            kind: kind.into(),
            mode: mode.into(),
            links: number(links),
            inode: number(inode),
            time: number(time),
            size: number(size),
            contents: contents.into(),
        }
    };
    listing.split(' ').filter(|it| *it != "empty").map(parse).collect()
}

/// Whether several mounts may have a file open for writing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum OnDemand {
    No,
    Yes,
    /// The last writer has closed it, and its daemon may not know yet.
    Maybe,
}

#[derive(Debug)]
pub struct FileModel {
    /// From the one that was certainly committed to the newest one.
    pub states: Vec<String>,
    /// The mount with the newest state, if there is more than one state.
    pub dirty_in: Option<usize>,
    pub on_demand: OnDemand,
    /// Its contents are not known any more.
    pub lost: bool,
    /// The time of modification that was last seen.
    pub time: u64,
    /// The time that a program has set, if nothing was written since.
    pub set_time: Option<u64>,
}

impl FileModel {
    fn new(state: String) -> FileModel {
        let states = vec![state];
        let on_demand = OnDemand::No;
        FileModel { states, dirty_in: None, on_demand, lost: false, time: 0, set_time: None }
    }

    pub fn newest(&self) -> &str {
        self.states.last().unwrap()
    }

    pub fn len(&self) -> u64 {
        self.newest().split(':').next().unwrap().parse().unwrap()
    }

    pub fn all_committed(&mut self) {
        self.states.drain(..self.states.len() - 1);
        self.dirty_in = None;
    }

    /// A program in `mount` has changed the file to `state`.
    pub fn changed(&mut self, mount: usize, state: String) {
        if self.dirty_in.is_some_and(|it| it != mount) {
            self.all_committed(); // or its daemon could not have got the guard
        }
        self.dirty_in = Some(mount);
        self.states.push(state);
        self.set_time = None;
    }

    /// Takes what `mount` shows. Returns false if it may not show that.
    pub fn shows(&mut self, mount: usize, state: &str) -> bool {
        match self.dirty_in {
            _ if self.lost => true,
            None => self.newest() == state,
            Some(dirty) if dirty == mount => self.newest() == state,
            Some(_) => {
                let Some(at) = self.states.iter().position(|it| it == state) else { return false };
                self.states.drain(..at); // that one is committed
                true
            }
        }
    }
}

/// A descriptor of a program and of its twin.
#[derive(Clone, Debug)]
pub struct Handle {
    pub program: usize,
    pub mount: usize,
    pub name: String,
    pub inode: u64,
    pub writes: bool,
    pub mapped: bool,
}

/// What a command does to a file.
#[derive(Clone, Copy)]
pub enum Effect {
    Nothing,
    /// A program changes it through a descriptor.
    Changes(u64),
    /// Commits what its mount has changed.
    Commits(u64),
    /// Changes and commits it.
    Rewrites(u64),
}

/// What is known of the tree and of all open files. Files are known by the inode of the twin.
#[derive(Default)]
pub struct Model {
    pub tree: Vec<Node>,
    pub files: HashMap<u64, FileModel>,
    pub handles: Vec<Handle>,
}

impl Model {
    pub fn node(&self, path: &str) -> Option<&Node> {
        self.tree.iter().find(|node| node.path == path)
    }

    /// Returns the mounts that have a file open for writing.
    pub fn writers(&self, inode: u64) -> Vec<usize> {
        let all = self.handles.iter().filter(|it| it.inode == inode && it.writes);
        all.map(|it| it.mount).collect()
    }

    /// Returns whether a program in `mount` can open a file for writing; `None` if it is unknown.
    pub fn may_write(&self, mount: usize, inode: u64) -> Option<bool> {
        if self.writers(inode).iter().all(|it| *it == mount) {
            return Some(true);
        }
        match self.files[&inode].on_demand {
            OnDemand::Yes => Some(true),
            OnDemand::No => Some(false),
            OnDemand::Maybe => None,
        }
    }

    /// Takes the twin's listing after a command of a program in `mount`, and the states of files that
    /// are open and have no name.
    pub fn update(
        &mut self,
        mount: usize,
        tree: Vec<Node>,
        nameless: Vec<(u64, String)>,
        effect: Effect,
    ) {
        self.tree = tree;
        let named = self.tree.iter().filter(|node| node.is_file());
        let mut now: HashMap<u64, String> =
            named.map(|node| (node.inode, node.contents.clone())).collect();
        now.extend(nameless);
        self.files.retain(|inode, _| now.contains_key(inode));
        for (inode, state) in now {
            let file = self.files.entry(inode).or_insert_with(|| FileModel::new(state.clone()));
            match effect {
                Effect::Changes(it) if it == inode => file.changed(mount, state),
                Effect::Rewrites(it) if it == inode => {
                    file.changed(mount, state);
                    file.all_committed();
                }
                Effect::Commits(it) if it == inode && file.dirty_in == Some(mount) => {
                    file.all_committed();
                }
                _ => assert_eq!(file.newest(), state, "the twin has changed by itself"),
            }
        }
    }

    /// Called after a descriptor was closed and taken from the list.
    pub fn closed(&mut self, handle: &Handle) {
        let writers = self.writers(handle.inode);
        let Some(file) = self.files.get_mut(&handle.inode) else { return };
        if writers.is_empty() && file.on_demand == OnDemand::Yes {
            file.on_demand = OnDemand::Maybe;
        }
    }
}
