//! Open files: one state for each inode, whatever the number of handles, and who commits it when.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::commit::{Committer, Durability};
use super::control::list;
use super::core::Core;
use super::error::{Fault, Inner};
use super::file::{FileState, OpenFile};
use super::keys::DirectoryId;
use super::names::Said;
use super::nodes::{Closed, Link};
use super::together::open_to_lock;
use super::types::{Handle, NodeId, OpenFlags};
use crate::backing::{Access, Dir, Kind, Lock};
use crate::format::signature::Authorship;

/// How long the background waits for its turn with a file that others work on.
pub(super) const TURN: Duration = Duration::from_secs(1);

/// What a handle stands for.
#[derive(Clone)]
pub(crate) enum Open {
    File {
        file: Arc<OpenFile>,
        flags: OpenFlags,
        /// Each write of the program comes at once.
        direct: bool,
    },
    /// `unread` is set when a listing came upon an entry whose name cannot be read as yet, `missing` where that is why it is not listed.
    Dir { node: NodeId, dir: Arc<dyn Dir>, directory: DirectoryId, unread: Arc<AtomicBool>, missing: Arc<AtomicBool> },
}

/// An open file and how many handles it has.
pub(crate) struct Shared {
    pub file: Arc<OpenFile>,
    pub handles: usize,
    pub writers: usize,
}

impl Core {
    pub fn put_handle(&self, open: Open) -> Handle {
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.handles.write().insert(handle, open);
        handle
    }

    pub fn handle(&self, handle: Handle) -> Inner<Open> {
        self.handles.read().get(&handle).cloned().ok_or(Fault::Os(libc::EBADF))
    }

    pub fn file_handle(&self, handle: Handle) -> Inner<(Arc<OpenFile>, OpenFlags)> {
        match self.handle(handle)? {
            Open::File { file, flags, .. } => Ok((file, flags)),
            Open::Dir { .. } => Err(Fault::Os(libc::EISDIR)),
        }
    }

    /// The open file of a node, opened now if it is not, with one more handle.
    pub fn acquire(&self, node: NodeId, flags: OpenFlags) -> Inner<Arc<OpenFile>> {
        self.patiently(flags.write, || self.acquire_now(node, flags), node)
    }

    fn acquire_now(&self, node: NodeId, flags: OpenFlags) -> Inner<Arc<OpenFile>> {
        let mut files = self.files.lock();
        if self.nodes.is_moved_away(node) {
            return Err(Fault::Os(libc::ESTALE));
        }
        if let Some(shared) = files.get_mut(&node) {
            if shared.file.astray.load(Ordering::Acquire) {
                let open = shared.file.clone();
                drop(files);
                self.leave_behind(&open);
                return Err(Fault::Os(libc::ESTALE));
            }
            if self.shared && flags.write {
                self.guard(&shared.file)?;
            }
            shared.handles += 1;
            shared.writers += usize::from(flags.write);
            let open = shared.file.clone();
            drop(files);
            if self.shared
                && !flags.truncate
                && let Err(fault) = self.freshen(&open)
            {
                let _ = self.release(&open, flags);
                return Err(fault);
            }
            return Ok(open);
        }
        let link = self.nodes.link(node)?;
        let dir = self.dir(link.parent)?;
        // Read-write even for readers: the kernel's cache reads on write-only handles, and a writer may come later.
        let file = match dir.open_file(&link.stored, if self.read_only { Access::Read } else { Access::ReadWrite }) {
            Err(e) if !flags.write && matches!(e.raw_os_error(), Some(libc::EACCES | libc::EROFS | libc::EPERM)) => {
                dir.open_file(&link.stored, Access::Read)?
            }
            other => other?,
        };
        if !self.access_times {
            file.keep_access_time();
        }
        let stat = file.stat()?;
        if !self.nodes.is(node, &stat) {
            return Err(Fault::Os(libc::ESTALE));
        }
        let mut guard = None;
        if self.shared && flags.write {
            let handle = open_to_lock(&*dir, &link.stored)?;
            let its = handle.stat()?;
            if (its.dev, its.ino) != (stat.dev, stat.ino) {
                return Err(Fault::Os(libc::ESTALE));
            }
            if !handle.try_lock(Lock::Exclusive)? {
                return Err(Fault::Os(libc::EBUSY));
            }
            guard = Some(handle);
        }
        let mut waits = false;
        if flags.truncate {
            self.journal.suspend_repair((stat.dev, stat.ino));
            // Before it is in the table: what is there is committed by the last close.
            self.journal.settle(Some((stat.dev, stat.ino)))?;
        } else {
            waits = self.journal.repair((stat.dev, stat.ino), &|| self.nodes.stored_path(node))?;
        }
        let mut latched = None;
        if !flags.truncate
            && (!self.shared || flags.write)
            && let Err(fault) = self.journal.write_lost((stat.dev, stat.ino), &file)
        {
            // What is there can be read as long as nobody builds on it.
            latched = if flags.write { return Err(fault) } else { Some(fault.errno()) };
        }
        let file = self.journal.overlay(file)?;
        let loaded = OpenFile::load(node, file, &self.tools(), self.next_serial(), flags.truncate);
        if loaded.is_err() {
            self.journal.keep_repair((stat.dev, stat.ino));
        }
        let file = loaded?;
        let mut state = file.state.write();
        (state.latched, state.waits) = (latched, waits);
        drop(state);
        *file.guard.lock() = guard;
        self.insert_open(&mut files, node, file.clone(), flags);
        Ok(file)
    }

    /// Whose contents a file holds, by its committed header.
    pub fn author(&self, node: NodeId) -> Inner<Option<Authorship>> {
        if self.nodes.kind(node)? != Kind::File {
            return Err(Fault::Os(libc::EINVAL));
        }
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let open = self.acquire(node, flags)?;
        let by = open.state.read().by;
        self.release(&open, flags)?;
        Ok(by)
    }

    /// Enters a file that was just opened or created.
    pub fn insert_open(&self, files: &mut HashMap<NodeId, Shared>, node: NodeId, file: Arc<OpenFile>, flags: OpenFlags) {
        self.nodes.opened(node);
        files.insert(node, Shared { file, handles: 1, writers: usize::from(flags.write) });
    }

    /// Commits a file.
    pub fn commit(&self, open: &OpenFile, durability: Durability) -> Inner<()> {
        self.commit_state(open, &mut open.state.write(), durability)
    }

    /// The name that is sealed with a file, to restore its own by; `None` where that is lost, and what was sealed before is all that tells it.
    fn name_to_hint(&self, link: &Link, directory: DirectoryId) -> Option<Vec<u8>> {
        if link.name != link.stored {
            return Some(link.name.to_vec());
        }
        match self.folder_at(self.dir(link.parent).ok()?, directory).read(&link.stored) {
            Ok(Some(Said::Name(sealed))) => sealed.name(),
            _ => None,
        }
    }

    /// Commits a file whose lock is held.
    pub fn commit_state(&self, open: &OpenFile, state: &mut FileState, durability: Durability) -> Inner<()> {
        if state.changed
            && let Ok(link) = self.nodes.link(open.node)
            && let Some(directory) = self.nodes.directory(link.parent)
        {
            state.hint.directory = directory;
            if let Some(name) = self.name_to_hint(&link, directory) {
                state.hint.name = name;
            }
        }
        if state.changed {
            self.remember_commit(open.node);
        }
        let paths = RefCell::new(Some(self.paths.read()));
        let path = || {
            let path = self.record_path(open)?;
            if path.is_none() {
                // It gets none any more, so nobody who renames waits for what is done about that.
                paths.take();
            }
            Ok(path)
        };
        state.needs_sync |= open.inode_changed.swap(false, Ordering::AcqRel);
        let _pinned = if self.shared { Some(self.begin_together(open, state)?) } else { None };
        let committed = self.committer(&|| self.next_serial()).commit(state, open, &path, durability);
        state.count(&self.tools());
        if committed.is_err() {
            self.note_lost(open, state);
        }
        committed?;
        if self.shared { self.end_together(open, state) } else { Ok(()) }
    }

    fn committer<'a>(&'a self, next_serial: &'a dyn Fn() -> u64) -> Committer<'a> {
        Committer { tools: self.tools(), journal: &self.journal, next_serial, shared: self.shared }
    }

    /// Makes the committed state of a file durable whose lock is held.
    pub fn make_durable(&self, open: &OpenFile, state: &mut FileState) -> Inner<()> {
        self.committer(&|| self.next_serial()).make_durable(state, open)
    }

    /// Lets go of one handle of an open file; the last one commits, unless no name leads to the file any more.
    pub fn release(&self, open: &Arc<OpenFile>, flags: OpenFlags) -> Inner<()> {
        let mut committed = None;
        loop {
            let mut files = self.files.lock();
            let Some(shared) = files.get_mut(&open.node) else { break };
            let last_writer = self.shared && flags.write && shared.writers == 1;
            if (shared.handles == 1 || last_writer) && !self.read_only && !self.closed.load(Ordering::Acquire) {
                // Whoever opened, wrote and closed while this one committed was not the last, and has left his change to it.
                let Some((changed, latched)) = open.state.try_read().map(|state| (state.changed, state.latched.is_some())) else {
                    drop(files);
                    drop(open.state.read());
                    continue;
                };
                // Who has only read is not told of what he had no part in.
                let due = committed.is_none() && (flags.write || !latched) || changed && !latched && matches!(committed, Some(Ok(())));
                if due && self.has_name(open) {
                    // Committed while still in the table, so that a lookup in between sees the right size.
                    drop(files);
                    committed = Some(self.commit_last(open));
                    continue;
                }
            }
            let mut waits = false;
            if shared.handles == 1
                && let Some(Err(fault)) = &committed
            {
                let Some(mut state) = open.state.try_write() else {
                    drop(files);
                    drop(open.state.write());
                    continue;
                };
                if state.changed && state.latched.is_none() {
                    waits = self.keys.signing.waits();
                    // Who came upon the file while it was open, as the background does, must not commit it when somebody has opened it anew.
                    state.latched = (!waits).then(|| fault.errno());
                }
            }
            shared.handles -= 1;
            shared.writers -= usize::from(flags.write);
            if last_writer && open.state.try_read().is_some_and(|state| !state.changed || state.latched.is_some()) {
                self.unguard(open);
            }
            if shared.handles == 0 {
                if waits {
                    break; // stays in the table without a handle, until a later commit finds a head that opens, and has written it
                }
                self.note_surplus(open);
                self.note_closed(open, matches!(committed, Some(Err(_))));
                files.remove(&open.node);
                drop(files);
                self.nodes.closed(open.node);
                if self.was_refused(open.node) {
                    self.note_stale(open.node); // not before it counts as closed: what was asked until then is forgotten
                }
            }
            break;
        }
        committed.unwrap_or(Ok(()))
    }

    /// Notes a file behind the end of which bytes may stand that the store took before it refused the rest.
    pub fn note_surplus(&self, open: &OpenFile) {
        if open.state.try_read().is_none_or(|state| state.surplus)
            && let Some(path) = self.nodes.stored_path(open.node)
        {
            self.journal.refused.note(open.inode, path);
        }
    }

    /// Notes in what state a file is closed.
    fn note_closed(&self, open: &OpenFile, refused: bool) {
        let closed = match open.state.try_read() {
            Some(state) if state.astray.is_some() || state.changed || state.latched.is_some() || state.told_no_time => Closed::REFUSED,
            Some(state) => state_mark(&state),
            None if refused => Closed::REFUSED,
            None => Closed::UNKNOWN,
        };
        match closed {
            Closed::REFUSED => {
                self.learn_size(open);
                self.nodes.set_closed(open.node, closed);
            }
            closed => self.nodes.set_closed(open.node, closed),
        }
    }

    /// Whether a file that was just loaded is in the state in which it was closed here: pages of another one, which somebody has put in its
    /// place in the store, the kernel must not show beside those of this one.
    pub fn is_as_closed(&self, open: &OpenFile) -> bool {
        let closed = self.nodes.closed_as(open.node);
        closed != Closed::UNKNOWN && closed == state_mark(&open.state.read())
    }

    /// Whether a file was closed with changes that were not committed. The kernel believes in their length, and would show zeros.
    pub fn was_refused(&self, node: NodeId) -> bool {
        self.nodes.closed_as(node) == Closed::REFUSED
    }

    /// The commit of the last close. A file whose old contents were thrown away is made durable at once: the program has put new ones there,
    /// and either of the two it would like to find after a crash. Nobody waits for it: the kernel closes files in the background.
    fn commit_last(&self, open: &OpenFile) -> Inner<()> {
        let mut state = open.state.write();
        let durability = if state.replaced { Durability::Synced } else { Durability::Ordered };
        self.commit_what_fits(open, &mut state, durability)
    }

    /// The stored path that a record of the file names; `None` where no name leads to it any more. A hard link that nobody has looked up is
    /// searched for: without a record, places would be overwritten that it refers to.
    fn record_path(&self, open: &OpenFile) -> Inner<Option<Vec<u8>>> {
        if let Some(path) = self.nodes.stored_path(open.node)
            && (!self.shared || self.leads_to(&path, open.inode))
        {
            return Ok(Some(path));
        }
        if self.has_lost_its_name(open) {
            return Ok(None);
        }
        let stat = open.file.stat()?;
        let mut left = vec![Vec::new()];
        while let Some(path) = left.pop() {
            let dir =
                path.split(|b| *b == b'/').filter(|name| !name.is_empty()).try_fold(self.root.clone(), |dir, name| dir.open_dir(name));
            let Ok(dir) = dir else { continue };
            for entry in list(&*dir)? {
                let below = || if path.is_empty() { entry.name.to_vec() } else { [&path[..], b"/", &entry.name].concat() };
                let known = entry.kind.or_else(|| dir.stat(&entry.name).ok().map(|stat| stat.kind));
                match known {
                    Some(Kind::Dir) => left.push(below()),
                    Some(Kind::File) if entry.ino == stat.ino && dir.stat(&entry.name).is_ok_and(|there| there.dev == stat.dev) => {
                        return Ok(Some(below()));
                    }
                    _ => {}
                }
            }
        }
        tracing::error!("a hard link of an open file is not found: what was written to it is not committed");
        Err(Fault::Os(libc::EIO))
    }

    /// Whether a name leads to the file: one that is known here, or a hard link that nobody has looked up yet.
    pub fn has_name(&self, open: &OpenFile) -> bool {
        self.nodes.link(open.node).is_ok() || !self.has_lost_its_name(open)
    }

    /// Whether the last name of the file was removed. A store that comes through FUSE keeps what is open under a hidden name and goes on
    /// counting one, so what was removed here is asked first.
    fn has_lost_its_name(&self, open: &OpenFile) -> bool {
        let last = self.nodes.last_stat(open.node);
        last.is_some_and(|stat| stat.nlink == 0) || open.file.stat().is_ok_and(|stat| stat.nlink == 0)
    }

    /// Commits every open file that has been dirty for `age`.
    pub fn commit_due(&self, age: Duration) {
        let is_due = |s: &FileState| s.changed && s.dirty_since.is_some_and(|since| since.elapsed() >= age);
        let mut busy = Vec::new();
        let files: Vec<_> = self.files.lock().values().map(|s| s.file.clone()).collect();
        for open in files {
            match open.state.try_read().map(|state| is_due(&state)) {
                Some(true) => self.commit_deferred(&open),
                Some(false) => {}
                None => busy.push(open),
            }
        }
        // Those that somebody works on come last, and wait for their turn: else a file that is never idle would never be committed.
        for open in busy {
            if open.state.try_read_for(TURN).is_some_and(|state| is_due(&state)) {
                self.commit_deferred(&open);
            }
        }
    }

    fn commit_deferred(&self, open: &Arc<OpenFile>) {
        if let Err(fault) = self.commit(open, Durability::Ordered) {
            // The error stays with the file: whoever writes, flushes or closes it is told.
            tracing::error!(path = %self.shown_path(open.node).display(), errno = fault.errno(), "deferred commit failed");
        }
        self.drop_unused(open);
    }

    /// Drops a file that has stayed in the table without a handle, once it is written or cannot be any more.
    fn drop_unused(&self, open: &Arc<OpenFile>) {
        let mut files = self.files.lock();
        let unused = files.get(&open.node).is_some_and(|shared| shared.handles == 0 && Arc::ptr_eq(&shared.file, open));
        if unused && open.state.try_read().is_some_and(|state| !state.changed || state.latched.is_some()) {
            files.remove(&open.node);
            drop(files);
            self.nodes.closed(open.node);
        }
    }

    /// Notes that the inode of a node has changed in a way that only a real flush makes durable.
    pub fn inode_changed(&self, node: NodeId) {
        let open = self.files.lock().get(&node).map(|s| s.file.clone());
        if let Some(open) = open {
            open.inode_changed.store(true, Ordering::Release);
        }
    }
}

/// The committed state of a file.
fn state_mark(state: &FileState) -> Closed {
    state.committed.as_ref().map_or(Closed::UNKNOWN, |committed| Closed::of(&committed.hash))
}
