//! Inodes and directory entries in memory, and the changes of them in the journal.
//!
//! Rules that hold here
//! * A tree changes only through [`Tree::apply`], except for the times that a write to a file sets.
//!   So the live tree, and the durable one after a prefix of the journal, cannot differ in meaning.
//! * An [`Op`] is atomic, whatever the number of its changes.
//! * `apply` removes no inode. An inode without links is dropped later, because the journal may
//!   link it again.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::store::{Kind, Timestamp};

/// Number of an inode, which is never reused.
pub(super) type Ino = u64;

/// The root directory.
pub(super) const ROOT: Ino = 1;

/// Logical time: it advances with each change.
pub(super) type Tick = u64;

/// Returns the time of a tick.
pub(super) fn time(tick: Tick) -> Timestamp {
    Timestamp {
        secs: 1_000_000_000 + (tick / 1000) as i64,
        nanos: (tick % 1000) as u32 * 1_000_000,
    }
}

/// An inode without the bytes of a file.
#[derive(Clone)]
pub(super) struct Inode {
    pub(super) kind: Kind,
    pub(super) perm: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u64,
    /// Entries that lead here (0 or 1 for a directory).
    pub(super) links: u32,
    pub(super) btime: Timestamp,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    /// When `mtime` was set.
    pub(super) mtime_tick: Tick,
    pub(super) xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// The target of a symbolic link.
    pub(super) target: Box<[u8]>,
    /// The entries of a directory.
    pub(super) entries: Entries,
}

impl Inode {
    pub(super) fn new(kind: Kind, perm: u32, now: Tick) -> Inode {
        let at = time(now);
        Inode {
            kind,
            perm,
            uid: 0,
            gid: 0,
            rdev: 0,
            links: 0,
            btime: at,
            atime: at,
            mtime: at,
            ctime: at,
            mtime_tick: now,
            xattrs: BTreeMap::new(),
            target: Box::default(),
            entries: Entries::default(),
        }
    }

    /// Notes that the contents changed at `now`.
    pub(super) fn modified(&mut self, now: Tick) {
        self.mtime = time(now);
        self.ctime = time(now);
        self.mtime_tick = now;
    }
}

/// Entries of a directory, by name and by position.
#[derive(Clone, Default)]
pub(super) struct Entries {
    by_name: BTreeMap<Box<[u8]>, (Ino, u64)>,
    by_position: BTreeMap<u64, Box<[u8]>>,
    last_position: u64,
    /// Number of entries that are directories.
    subdirs: u32,
    /// The parent directory.
    parent: Ino,
}

impl Entries {
    pub(super) fn get(&self, name: &[u8]) -> Option<Ino> {
        self.by_name.get(name).map(|&(ino, _)| ino)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns the entries after the position `after`, each with its position, which is its cookie.
    pub(super) fn behind(&self, after: u64) -> impl Iterator<Item = (u64, &[u8], Ino)> {
        self.by_position
            .range(after.saturating_add(1)..)
            .map(|(&position, name)| (position, &name[..], self.by_name[name].0))
    }
}

/// A change of one inode or entry.
#[derive(Clone)]
pub(super) enum Change {
    /// A new inode, which has no links yet.
    New(Ino, Box<Inode>),
    /// The entry leads to this inode from now on, and no longer to the previous one.
    Put { dir: Ino, name: Box<[u8]>, ino: Ino, displaced: Option<Ino> },
    /// The entry, which led to this inode, is removed.
    Remove { dir: Ino, name: Box<[u8]>, ino: Ino },
    /// Permission bits.
    Perm(Ino, u32),
    /// Owner and group, where given.
    Owner(Ino, Option<u32>, Option<u32>),
    /// Times, where given.
    Times(Ino, Option<Timestamp>, Option<Timestamp>),
    /// An extended attribute is set or removed.
    Xattr(Ino, Box<[u8]>, Option<Box<[u8]>>),
}

/// An atomic step of the journal.
#[derive(Clone)]
pub(super) struct Op {
    pub(super) at: Tick,
    pub(super) changes: Vec<Change>,
}

impl Op {
    /// Returns the inodes that this step creates, changes, links or unlinks.
    pub(super) fn inodes(&self) -> impl Iterator<Item = Ino> {
        self.changes
            .iter()
            .flat_map(|change| match *change {
                Change::Put { dir, ino, displaced, .. } => [Some(dir), Some(ino), displaced],
                Change::Remove { dir, ino, .. } => [Some(dir), Some(ino), None],
                Change::New(ino, _)
                | Change::Perm(ino, _)
                | Change::Owner(ino, ..)
                | Change::Times(ino, ..)
                | Change::Xattr(ino, ..) => [Some(ino), None, None],
            })
            .flatten()
    }

    /// Returns whether an `fsync` of the inode must include this step.
    pub(super) fn touches(&self, inode: Ino) -> bool {
        self.inodes().any(|ino| ino == inode)
    }

    /// Returns whether this step creates the inode.
    pub(super) fn creates(&self, inode: Ino) -> bool {
        self.changes.iter().any(|change| matches!(*change, Change::New(ino, _) if ino == inode))
    }
}

/// All inodes.
#[derive(Clone)]
pub(super) struct Tree {
    pub(super) inodes: BTreeMap<Ino, Arc<Inode>>,
}

impl Tree {
    pub(super) fn new() -> Tree {
        let mut root = Inode::new(Kind::Dir, 0o755, 0);
        root.links = 1;
        root.entries.parent = ROOT;
        Tree { inodes: BTreeMap::from([(ROOT, Arc::new(root))]) }
    }

    pub(super) fn get(&self, ino: Ino) -> Option<&Inode> {
        self.inodes.get(&ino).map(|inode| &**inode)
    }

    pub(super) fn get_mut(&mut self, ino: Ino) -> Option<&mut Inode> {
        self.inodes.get_mut(&ino).map(Arc::make_mut)
    }

    /// `st_nlink`.
    pub(super) fn nlink(inode: &Inode) -> u32 {
        match inode.kind {
            Kind::Dir if inode.links > 0 => 2 + inode.entries.subdirs,
            _ => inode.links,
        }
    }

    /// Returns whether `dir` is `ancestor` or below it.
    pub(super) fn is_beneath(&self, dir: Ino, ancestor: Ino) -> bool {
        let mut at = dir;
        while at != ancestor {
            match self.get(at) {
                Some(inode) if inode.entries.parent != at => at = inode.entries.parent,
                _ => return false,
            }
        }
        true
    }

    /// Applies one step.
    pub(super) fn apply(&mut self, op: &Op) {
        let now = time(op.at);
        for change in &op.changes {
            match change {
                Change::New(ino, inode) => {
                    drop(self.inodes.insert(*ino, Arc::new((**inode).clone())))
                }
                Change::Put { dir, name, ino, .. } => {
                    self.take_entry(*dir, name, op.at);
                    self.put_entry(*dir, name, *ino, op.at);
                }
                Change::Remove { dir, name, .. } => {
                    if let Some(position) = self.take_entry(*dir, name, op.at)
                        && let Some(inode) = self.get_mut(*dir)
                    {
                        inode.entries.by_name.remove(name);
                        inode.entries.by_position.remove(&position);
                    }
                }
                Change::Perm(ino, perm) => self.change(*ino, now, |inode| inode.perm = *perm),
                Change::Owner(ino, uid, gid) => self.change(*ino, now, |inode| {
                    inode.uid = uid.unwrap_or(inode.uid);
                    inode.gid = gid.unwrap_or(inode.gid);
                    if inode.kind != Kind::Dir {
                        // As the kernel does; sgid without group execution once meant mandatory
                        // locking and stays.
                        inode.perm &= if inode.perm & 0o010 != 0 { 0o1777 } else { 0o3777 };
                    }
                }),
                Change::Times(ino, atime, mtime) => self.change(*ino, now, |inode| {
                    inode.atime = atime.unwrap_or(inode.atime);
                    if let Some(mtime) = mtime {
                        inode.mtime = *mtime;
                        inode.mtime_tick = op.at;
                    }
                }),
                Change::Xattr(ino, key, value) => self.change(*ino, now, |inode| match value {
                    Some(value) => drop(inode.xattrs.insert(key.clone(), value.clone())),
                    None => drop(inode.xattrs.remove(key)),
                }),
            }
        }
    }

    fn change(&mut self, ino: Ino, now: Timestamp, change: impl FnOnce(&mut Inode)) {
        if let Some(inode) = self.get_mut(ino) {
            change(inode);
            inode.ctime = now;
        }
    }

    /// Unlinks the target of the entry, if the entry exists, and returns the entry's position.
    fn take_entry(&mut self, dir: Ino, name: &[u8], at: Tick) -> Option<u64> {
        let (ino, position) = *self.get(dir)?.entries.by_name.get(name)?;
        let inode = self.get_mut(ino)?;
        inode.links = inode.links.saturating_sub(1);
        inode.ctime = time(at);
        let is_dir = inode.kind == Kind::Dir;
        let dir = self.get_mut(dir)?;
        dir.entries.subdirs -= u32::from(is_dir);
        dir.modified(at);
        Some(position)
    }

    fn put_entry(&mut self, dir: Ino, name: &[u8], ino: Ino, at: Tick) {
        let Some(inode) = self.get_mut(ino) else { return };
        inode.links += 1;
        inode.ctime = time(at);
        inode.entries.parent = dir;
        let is_dir = inode.kind == Kind::Dir;
        let Some(dir) = self.get_mut(dir) else { return };
        dir.modified(at);
        let entries = &mut dir.entries;
        entries.subdirs += u32::from(is_dir);
        let position = match entries.by_name.get(name) {
            Some(&(_, position)) => position,
            None => entries.last_position + 1,
        };
        entries.last_position = entries.last_position.max(position);
        entries.by_name.insert(name.into(), (ino, position));
        entries.by_position.insert(position, name.into());
    }

    /// Drops the inodes without links, except those for which `keep` returns true.
    pub(super) fn prune(&mut self, keep: impl Fn(Ino) -> bool) {
        self.inodes.retain(|&ino, inode| inode.links > 0 || keep(ino));
    }
}
