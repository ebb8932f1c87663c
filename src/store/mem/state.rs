//! The state of a store in memory: the live tree, the durable tree, the journal between them, and
//! the bytes of files.
//!
//! Rules that hold here
//! * `live` is `durable` with all of `journal` applied to it (except for times that writes set; see
//!   `data`).
//! * The store has one journal, which becomes durable from the front, as on ext4: making one step
//!   durable makes all earlier ones durable.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rustix::io::{Errno, Result};

use super::content::{BLOCK, Content};
use super::data::Data;
use super::tree::{Change, Ino, Inode, Op, ROOT, Tick, Tree, time};
use crate::store::{Kind, Lock, Span};

/// Longest file: that of ext4 with blocks of 4 KiB.
pub(super) const MAX_LEN: u64 = (1 << 44) - BLOCK;

/// Number of an open handle, which is never reused.
pub(super) type HandleId = u64;

pub(super) struct State {
    pub(super) live: Tree,
    durable: Tree,
    journal: VecDeque<Arc<Op>>,
    data: BTreeMap<Ino, Data>,
    tick: Tick,
    next_ino: Ino,
    pub(super) capacity: Option<u64>,
    /// Objects have birth times.
    pub(super) has_births: bool,
    /// Blocks of files in the live tree.
    used_blocks: u64,
    /// Number of handles to each inode.
    handles: BTreeMap<Ino, u64>,
    next_handle: HandleId,
    locks: BTreeMap<Ino, BTreeMap<HandleId, Lock>>,
    /// Locks on ranges.
    spans: BTreeMap<Ino, Vec<(HandleId, Lock, Span)>>,
}

/// Returns whether two ranges have an offset in common.
fn overlap(a: &Span, b: &Span) -> bool {
    a.first <= b.last && b.first <= a.last
}

impl State {
    pub(super) fn new(capacity: Option<u64>) -> State {
        State {
            live: Tree::new(),
            durable: Tree::new(),
            journal: VecDeque::new(),
            data: BTreeMap::new(),
            tick: 0,
            next_ino: ROOT + 1,
            capacity,
            has_births: true,
            used_blocks: 0,
            handles: BTreeMap::new(),
            next_handle: 0,
            locks: BTreeMap::new(),
            spans: BTreeMap::new(),
        }
    }

    /// Returns a copy without open handles.
    pub(super) fn snapshot(&self) -> State {
        let mut copy = State {
            live: self.live.clone(),
            durable: self.durable.clone(),
            journal: self.journal.clone(),
            data: self.data.clone(),
            tick: self.tick,
            next_ino: self.next_ino,
            capacity: self.capacity,
            has_births: self.has_births,
            used_blocks: 0,
            handles: BTreeMap::new(),
            next_handle: 0,
            locks: BTreeMap::new(),
            spans: BTreeMap::new(),
        };
        copy.live.prune(|_| false);
        copy.count_blocks();
        copy
    }

    /// Returns a possible state after a power cut; see [`super::MemStore::crash`].
    pub(super) fn crash(&self, choice: &mut dyn FnMut(usize) -> usize) -> State {
        let mut tree = self.durable.clone();
        let steps = if self.journal.is_empty() { 0 } else { choice(self.journal.len() + 1) };
        for op in self.journal.iter().take(steps) {
            tree.apply(op);
        }
        tree.prune(|_| false);
        let mut data = BTreeMap::new();
        for (&ino, inode) in &mut tree.inodes {
            if inode.kind != Kind::File {
                continue;
            }
            let (content, version) =
                self.data.get(&ino).map_or((Content::default(), None), |data| data.crash(choice));
            if let Some(version) = version.filter(|version| version.tick > inode.mtime_tick) {
                Arc::make_mut(inode).modified(version.tick);
            }
            data.insert(ino, Data::settled(content));
        }
        let mut after = State {
            live: tree.clone(),
            durable: tree,
            journal: VecDeque::new(),
            data,
            tick: self.tick,
            next_ino: self.next_ino,
            capacity: self.capacity,
            has_births: self.has_births,
            used_blocks: 0,
            handles: BTreeMap::new(),
            next_handle: 0,
            locks: BTreeMap::new(),
            spans: BTreeMap::new(),
        };
        after.count_blocks();
        after
    }

    fn count_blocks(&mut self) {
        self.used_blocks = self
            .data
            .iter()
            .filter(|(ino, _)| self.live.get(**ino).is_some())
            .map(|(_, data)| data.live.allocated())
            .sum();
    }

    /// Returns the next moment of logical time.
    pub(super) fn now(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    /// Applies these changes in one atomic step.
    pub(super) fn commit(&mut self, changes: Vec<Change>) {
        let op = Op { at: self.now(), changes };
        self.live.apply(&op);
        let op = Arc::new(op);
        self.journal.push_back(op.clone());
        op.inodes().for_each(|ino| self.forget(ino));
    }

    /// Forgets an inode if neither a name nor a handle leads to it.
    fn forget(&mut self, ino: Ino) {
        if self.live.get(ino).is_some_and(|inode| inode.links == 0)
            && !self.handles.contains_key(&ino)
        {
            self.live.inodes.remove(&ino);
            self.used_blocks -= self.data.get(&ino).map_or(0, |data| data.live.allocated());
        }
        // A power cut may bring back an inode that the live tree has lost.
        let may_return = |state: &State| {
            state.durable.get(ino).is_some_and(|inode| inode.links > 0)
                || state.journal.iter().any(|op| op.touches(ino))
        };
        if self.live.get(ino).is_none() && !may_return(self) {
            self.durable.inodes.remove(&ino);
            self.data.remove(&ino);
        }
    }

    /// Makes the first `steps` of the journal durable.
    fn flush(&mut self, steps: usize) {
        let flushed: Vec<_> = self.journal.drain(..steps).collect();
        for op in &flushed {
            self.durable.apply(op);
        }
        for op in flushed {
            op.inodes().for_each(|ino| self.forget(ino));
        }
    }

    fn steps_until(&self, last: impl Fn(&Op) -> bool) -> usize {
        self.journal.iter().rposition(|op| last(op)).map_or(0, |index| index + 1)
    }

    /// `fsync` of a directory.
    pub(super) fn sync_dir(&mut self, dir: Ino) {
        self.flush(self.steps_until(|op| op.touches(dir)));
    }

    /// `syncfs`.
    pub(super) fn sync_store(&mut self) {
        self.flush(self.journal.len());
        let inodes: Vec<Ino> = self.data.keys().copied().collect();
        inodes.into_iter().for_each(|ino| self.sync_all(ino));
    }

    /// `fsync` of a file.
    pub(super) fn sync_all(&mut self, ino: Ino) {
        self.flush(self.steps_until(|op| op.touches(ino)));
        let version = self.data.get_mut(&ino).and_then(Data::sync);
        if let (Some(version), Some(inode)) = (version, self.durable.get_mut(ino))
            && version.tick > inode.mtime_tick
        {
            inode.modified(version.tick);
        }
    }

    /// `fdatasync` of a file. It also makes the existence of a new file durable.
    pub(super) fn sync_data(&mut self, ino: Ino) {
        self.flush(self.steps_until(|op| op.creates(ino)));
        if let Some(data) = self.data.get_mut(&ino) {
            data.sync_data();
        }
    }

    /// See [`Data::lose`].
    pub(super) fn lose(&mut self, ino: Ino) {
        if let Some(data) = self.data.get_mut(&ino) {
            data.lose();
        }
    }

    /// See [`Data::evict`].
    pub(super) fn evict(&mut self) {
        self.data.values_mut().for_each(Data::evict);
    }

    // Inodes.

    /// Creates an inode, with or without a name, and a handle to it.
    pub(super) fn make(
        &mut self,
        inode: Inode,
        place: Option<(Ino, &[u8])>,
    ) -> Result<(Ino, HandleId)> {
        let ino = self.fresh_ino()?;
        if inode.kind == Kind::File {
            self.data.insert(ino, Data::default());
        }
        // The handle comes first, so that a file without a name is not forgotten at once.
        let handle = self.hold(ino);
        let mut changes = vec![Change::New(ino, Box::new(inode))];
        changes.extend(place.map(|(dir, name)| Change::Put {
            dir,
            name: name.into(),
            ino,
            displaced: None,
        }));
        self.commit(changes);
        Ok((ino, handle))
    }

    /// Returns the number of an inode that is about to be made, or `ENOSPC` if the store is full.
    pub(super) fn fresh_ino(&mut self) -> Result<Ino> {
        self.room_for(1)?;
        self.next_ino += 1;
        Ok(self.next_ino - 1)
    }

    /// Returns an inode of the given kind with the current time.
    pub(super) fn inode(&self, kind: Kind, perm: u32) -> Inode {
        Inode::new(kind, perm & 0o7777, self.tick + 1)
    }

    pub(super) fn get(&self, ino: Ino) -> Result<&Inode> {
        // A handle keeps its inode, so this cannot fail. It returns an error nevertheless, because
        // a panic inside a store would hide the test that caused it.
        self.live.get(ino).ok_or(Errno::STALE)
    }

    /// Returns the inode of an entry.
    pub(super) fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Ino> {
        self.get(dir)?.entries.get(name).ok_or(Errno::NOENT)
    }

    /// Rejects a name that exists, and a directory that was removed.
    pub(super) fn vacant(&self, dir: Ino, name: &[u8]) -> Result<()> {
        let dir = self.get(dir)?;
        if dir.entries.get(name).is_some() {
            return Err(Errno::EXIST);
        }
        if dir.links == 0 { Err(Errno::NOENT) } else { Ok(()) }
    }

    // Handles and locks.

    /// Adds a handle to the inode.
    pub(super) fn hold(&mut self, ino: Ino) -> HandleId {
        *self.handles.entry(ino).or_default() += 1;
        self.next_handle += 1;
        self.next_handle
    }

    /// Removes a handle.
    pub(super) fn release(&mut self, ino: Ino, handle: HandleId) {
        if let Some(locks) = self.locks.get_mut(&ino) {
            locks.remove(&handle);
        }
        if let Some(spans) = self.spans.get_mut(&ino) {
            spans.retain(|(holder, ..)| *holder != handle);
        }
        if let Some(count) = self.handles.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                self.handles.remove(&ino);
                self.locks.remove(&ino);
                self.spans.remove(&ino);
                self.forget(ino);
            }
        }
    }

    /// `flock` that does not wait. Changing a lock releases it first, as in the kernel.
    pub(super) fn try_lock(&mut self, ino: Ino, handle: HandleId, lock: Lock) -> bool {
        let locks = self.locks.entry(ino).or_default();
        if locks.get(&handle) == Some(&lock) {
            return true;
        }
        locks.remove(&handle);
        let free = match lock {
            Lock::Shared => !locks.values().any(|&held| held == Lock::Exclusive),
            Lock::Exclusive => locks.is_empty(),
        };
        if free {
            locks.insert(handle, lock);
        }
        free
    }

    /// Returns the locks that are held on an inode.
    pub(super) fn locks(&self, ino: Ino) -> impl Iterator<Item = Lock> + '_ {
        self.locks.get(&ino).into_iter().flat_map(|locks| locks.values().copied())
    }

    /// Returns a lock of another handle that prevents a lock on a range.
    pub(super) fn find_lock(
        &self,
        ino: Ino,
        handle: HandleId,
        lock: Lock,
        span: Span,
    ) -> Option<(Lock, Span)> {
        let spans = self.spans.get(&ino)?;
        let conflicts = |(holder, held, at): &&(HandleId, Lock, Span)| {
            *holder != handle
                && overlap(at, &span)
                && (lock == Lock::Exclusive || *held == Lock::Exclusive)
        };
        spans.iter().find(conflicts).map(|&(_, held, at)| (held, at))
    }

    /// Sets or removes the lock of a handle on a range. Returns false if another handle's lock
    /// prevents it.
    pub(super) fn lock_span(
        &mut self,
        ino: Ino,
        handle: HandleId,
        lock: Option<Lock>,
        span: Span,
    ) -> bool {
        if lock.is_some_and(|lock| self.find_lock(ino, handle, lock, span).is_some()) {
            return false;
        }
        let spans = self.spans.entry(ino).or_default();
        let (own, mut rest): (Vec<_>, Vec<_>) =
            spans.drain(..).partition(|(holder, _, at)| *holder == handle && overlap(at, &span));
        for (_, held, at) in own {
            if at.first < span.first {
                rest.push((handle, held, Span { first: at.first, last: span.first - 1 }));
            }
            if at.last > span.last {
                rest.push((handle, held, Span { first: span.last + 1, last: at.last }));
            }
        }
        rest.extend(lock.map(|lock| (handle, lock, span)));
        *spans = rest;
        true
    }

    // Bytes.

    /// Returns the visible bytes of a file.
    pub(super) fn content(&self, ino: Ino) -> Result<&Content> {
        Ok(&self.data.get(&ino).ok_or(Errno::STALE)?.live)
    }

    /// Changes the bytes of a file. If `modifies` is set, the modification time changes too,
    /// otherwise only the change time.
    pub(super) fn change_data(
        &mut self,
        ino: Ino,
        modifies: bool,
        change: impl FnOnce(&mut Data, Tick),
    ) -> Result<()> {
        let now = self.now();
        let data = self.data.get_mut(&ino).ok_or(Errno::STALE)?;
        self.used_blocks -= data.live.allocated();
        change(data, now);
        self.used_blocks += data.live.allocated();
        if let Some(inode) = self.live.get_mut(ino) {
            if modifies {
                inode.modified(now);
            } else {
                inode.ctime = time(now);
            }
        }
        Ok(())
    }

    /// Returns how many bytes of this range fit into the free space.
    pub(super) fn fitting(&self, ino: Ino, offset: u64, len: u64) -> Result<u64> {
        let Some(mut free) =
            self.capacity.map(|capacity| (capacity / BLOCK).saturating_sub(self.used_blocks))
        else {
            return Ok(len);
        };
        let content = self.content(ino)?;
        let (mut at, end) = (offset, offset + len);
        while at < end {
            if !content.is_allocated(at) {
                if free == 0 {
                    break;
                }
                free -= 1;
            }
            at = (at / BLOCK + 1) * BLOCK;
        }
        Ok(at.min(end) - offset)
    }

    /// Fails with `ENOSPC` if fewer than `blocks` blocks are free.
    fn room_for(&self, blocks: u64) -> Result<()> {
        match self.capacity {
            Some(capacity) if self.used_blocks + blocks > capacity / BLOCK => Err(Errno::NOSPC),
            _ => Ok(()),
        }
    }

    /// Returns the total and the free blocks.
    pub(super) fn blocks(&self) -> (u64, u64) {
        let all = self.capacity.map_or(1 << 32, |capacity| capacity / BLOCK);
        (all, all.saturating_sub(self.used_blocks))
    }

    /// Returns whether only the root directory is left in both trees, and no data of files.
    #[cfg(test)]
    pub(super) fn is_all_forgotten(&self) -> bool {
        let only_root = |tree: &Tree| tree.inodes.keys().eq([&ROOT]);
        only_root(&self.live)
            && only_root(&self.durable)
            && self.data.is_empty()
            && self.used_blocks == 0
    }
}
