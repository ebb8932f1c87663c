//! Open files: one state for each node, whatever the number of handles, and the scheduling of
//! commits.

pub(super) mod concurrent;
mod conflict;
mod flush;
pub(super) mod handles;
mod locks;
mod on_demand;
mod replacement;
pub(super) mod space;
mod writers;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::format::header::Hint;
use crate::format::name::is_control;
use crate::format::signature::Authorship;
use crate::store::{Access, Dir, File, Kind, Stat};
use crate::vault::core::Core;
use crate::vault::core::inodes::Link;
use crate::vault::core::open_table::OpenEntry;
use crate::vault::directory::names::Meaning;
use crate::vault::durability::commit::{Committer, Durability, is_overwritten};
use crate::vault::durability::replacement::Beside;
use crate::vault::error::{Fault, Inner, is_no_descriptor};
use crate::vault::file::cached::Cached;
use crate::vault::file::phase::Tail;
use crate::vault::file::{FileState, OpenFile};
use crate::vault::open_files::conflict::Stranger;
use crate::vault::open_files::replacement::Place;
use crate::vault::share::control_files::entries;
use crate::vault::types::{Forget, NodeId, OpenFlags, ROOT};

/// How long the background waits for the lock of a file that programs use.
pub(super) const TURN: Duration = Duration::from_secs(1);

/// How often a commit begins anew, if another program overwrites the file each time.
const COMMITS_MAX: usize = 4;

impl Core {
    /// Returns the open file of a node, opened now if it is not, with one more handle.
    pub fn acquire(&self, node: NodeId, flags: OpenFlags) -> Inner<Arc<OpenFile>> {
        self.retry(flags.write, || self.acquire_now(node, flags), node)
    }

    fn acquire_now(&self, node: NodeId, flags: OpenFlags) -> Inner<Arc<OpenFile>> {
        let writes = flags.write || flags.truncate;
        // The lease, so that no other daemon caches what this caller is about to write. It is not
        // kept between the attempts: the writer that is waited for needs it to commit.
        let _change = writes.then(|| self.lease.change()).transpose()?;
        if writes {
            self.end_writers_beside(node);
        }
        let open = self.join_or_load(node, flags)?;
        if writes {
            self.end_writers_beside(node); // one may have continued in this file meanwhile
        }
        if let Err(fault) = self.mode.writers.check_opened(self, &open, flags) {
            if flags.truncate {
                open.state.write().give_up_truncation(fault.errno());
            }
            let _ = self.release(&open, flags);
            self.journal.keep_repair(open.inode());
            return Err(fault);
        }
        Ok(open)
    }

    /// Opens the ciphertext of an entry, read-write where that is allowed: the kernel's cache reads
    /// through write-only handles, and a writer may share the open file of a reader later.
    fn open_stored(
        &self,
        dir: &dyn Dir,
        stored: &[u8],
        flags: OpenFlags,
    ) -> io::Result<(Arc<dyn File>, Stat)> {
        let access = if self.mode.read_only { Access::Read } else { Access::ReadWrite };
        let is_refused = |e: &io::Error| {
            matches!(e.raw_os_error(), Some(libc::EACCES | libc::EROFS | libc::EPERM))
        };
        let (file, stat) = match dir.open_and_stat(stored, access) {
            Err(e) if !flags.write && is_refused(&e) => dir.open_and_stat(stored, Access::Read)?,
            other => other?,
        };
        if !self.mode.access_times {
            file.keep_access_time();
        }
        self.mode.writers.open_to_read(&*file)?;
        Ok((file, stat))
    }

    /// Ends the writes of other nodes to the object of a node that is about to be written to. Their
    /// handles are from before another program replaced or renamed the file in the store. They
    /// have a state of their own, and would write over what is committed through this node. What
    /// they have written is committed; from then on they return `EIO`.
    pub fn end_writers_beside(&self, node: NodeId) {
        if !self.mode.writers.know_all_opens() {
            return; // each writer has the file locked in the store
        }
        for other in self.nodes.retired_beside(node) {
            let files = self.open.files.lock();
            let open = files.get(&other).filter(|it| it.writers > 0).map(|it| it.file.clone());
            drop(files);
            let Some(open) = open else { continue };
            let mut state = open.state.write();
            if state.latched.is_none() && !self.mode.read_only {
                let _ = self.commit_state(&open, &mut state, Durability::Synced);
                state.latched.get_or_insert(libc::EIO);
                tracing::warn!(
                    path = %self.shown_path(node).display(),
                    "a program writes to a file that was replaced in the store, by its new name: descriptors from before can no longer be used"
                );
            }
        }
    }

    /// Adds a handle to the open file of a node, which is loaded from the store if it is not open.
    fn join_or_load(&self, node: NodeId, flags: OpenFlags) -> Inner<Arc<OpenFile>> {
        let mut files = self.open.files.lock();
        if self.nodes.is_moved_away(node) {
            return Err(Fault::Os(libc::ESTALE));
        }
        let cached = self.nodes.cached(node)?;
        if let Some(shared) = files.get_mut(&node) {
            if shared.file.astray.load(Ordering::Acquire) {
                let open = shared.file.clone();
                drop(files);
                self.leave_behind(&open);
                return Err(Fault::Os(libc::ESTALE));
            }
            self.mode.writers.guard_again(self, &shared.file, flags)?;
            shared.handles += 1;
            shared.writers += usize::from(flags.write);
            return Ok(shared.file.clone());
        }
        // The node has lost its name since the caller looked it up. Another file may have the name
        // now, so the caller must look it up again.
        let anew = |fault: Fault| match fault.errno() {
            libc::ENOENT => Fault::Os(libc::ESTALE),
            _ => fault,
        };
        let link = self.link_of(node).map_err(anew)?;
        if flags.write && !flags.truncate {
            self.check_depth(link.parent, link.stored())?;
        }
        // The same if another program has removed the file from the store. After the new lookup the
        // caller may create it.
        let dir = self.dir(link.parent).map_err(anew)?;
        let opened = self.open_stored(&*dir, link.stored(), flags);
        let (file, stat) = opened.map_err(|e| anew(e.into()))?;
        if !self.nodes.is(node, &stat) {
            return Err(Fault::Os(libc::ESTALE));
        }
        let sleeps = self.lease.sleeps(); // before the guard is taken
        let guards = self.mode.writers.guard_stored(&*dir, link.stored(), &stat, flags)?;
        let loaded = self.load_repaired(node, file, (stat.dev, stat.ino), flags);
        if loaded.is_err() && flags.truncate {
            self.journal.keep_repair((stat.dev, stat.ino));
        }
        let file = loaded?;
        if !flags.truncate {
            // Another program has lengthened the ciphertext, or a crash has left a tail.
            let is_new = self.note_size(&file);
            if self.mode.caller_caches {
                self.check_cached(&file, &cached)?;
            } else if is_new {
                self.have_forgotten(node, Forget::Known);
            }
        }
        file.note_guarded(sleeps);
        *file.guard.lock() = guards.guard;
        *file.on_demand.lock() = guards.on_demand;
        self.insert_open(&mut files, node, file.clone(), flags);
        Ok(file)
    }

    /// Loads a file after its records are applied. If it is opened to be truncated, records that could
    /// not be applied are suspended; the caller calls [`Journal::keep_repair`] if the truncation fails.
    ///
    /// [`Journal::keep_repair`]: crate::vault::durability::journal::Journal::keep_repair
    fn load_repaired(
        &self,
        node: NodeId,
        file: Arc<dyn File>,
        inode: (u64, u64),
        flags: OpenFlags,
    ) -> Inner<Arc<OpenFile>> {
        let mut waits = false;
        if flags.truncate {
            self.journal.suspend_repair(inode);
            // Before the file is in the table: from then on its last close commits it without the old
            // contents, and no replay may restore them.
            self.journal.checkpoint_for(Some(inode))?;
        } else {
            waits = self.journal.repair(inode)?;
        }
        let mut latched = None;
        if self.mode.writers.may_rewrite(flags)
            && let Err(fault) = self.journal.write_lost(inode, &file)
        {
            // The contents can be read as long as no commit is based on them.
            latched = if flags.write { return Err(fault) } else { Some(fault.errno()) };
        }
        let file = self.journal.overlay(file)?;
        let how = self.mode.writers.load(flags);
        // Before the load: a checkpoint may complete the file meanwhile.
        let incomplete = self.journal.incomplete();
        let file = OpenFile::load(node, file, &self.context(), self.next_serial(), how)?;
        let mut state = file.state.write();
        if state.committed.as_ref().is_some_and(|it| incomplete.contains(&it.header.hash())) {
            return Err(Fault::Os(libc::EIO));
        }
        state.latched = latched;
        state.note_doubt(waits);
        drop(state);
        Ok(file)
    }

    /// Returns author and signer of a file's contents, by its committed header.
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

    /// Inserts a file that was just opened or created.
    pub fn insert_open(
        &self,
        files: &mut HashMap<NodeId, OpenEntry>,
        node: NodeId,
        file: Arc<OpenFile>,
        flags: OpenFlags,
    ) {
        self.nodes.opened(node);
        files.insert(node, OpenEntry { file, handles: 1, writers: usize::from(flags.write) });
    }

    /// Commits a file.
    pub fn commit(&self, open: &OpenFile, durability: Durability) -> Inner<()> {
        let is_changed = || open.state.try_read().is_none_or(|state| state.changes.is_some());
        self.flush_before_lease(open);
        let _change = is_changed().then(|| self.lease.change()).transpose()?;
        self.commit_state(open, &mut open.state.write(), durability)
    }

    /// Commits a file whose lock is held.
    pub fn commit_state(
        &self,
        open: &OpenFile,
        state: &mut FileState,
        durability: Durability,
    ) -> Inner<()> {
        if state.changes.is_none() {
            return self.commit_noted(open, state, durability);
        }
        let _change = self.lease.change_locked()?;
        self.look_for_news();
        let link = self.nodes.link(open.node).ok();
        if let Some(link) = &link {
            self.renew_hint(state, link.stored());
        }
        let base = state.loaded.take();
        let id = state.file_id;
        let is_new = state.committed.is_none();
        self.remember_commit(open.node, &id, base);
        let committed = self.commit_noted(open, state, durability);
        if committed.is_ok() {
            self.remember_version(&state.file_id, state.version);
        }
        let Some(link) = link else { return committed };
        let is_same = || self.nodes.link(open.node).is_ok_and(|now| now.stored() == link.stored());
        let (is_changed, version) = (state.file_id != id, state.version);
        let is_written = || committed.is_ok() && !is_changed && is_same();
        if is_new && self.remembers_taken() && is_written() {
            self.remember_taken(link.parent, link.name(), Some((id, version)));
        }
        if let Some(base) = base {
            self.remember_written(&link, is_written());
            if committed.is_err() {
                state.loaded.get_or_insert(base);
            }
        }
        committed
    }

    /// Sets the hint to the name that is sealed in `stored`, unless it was read from there before.
    /// If the sealed name is lost, the previous hint is kept.
    fn renew_hint(&self, state: &mut FileState, stored: &[u8]) {
        if *state.hint_from != *stored
            && let Ok(Some(Meaning::Name(sealed))) = self.read_name(stored)
        {
            state.hint = Hint { tag: sealed.tag, name: sealed.plain };
            state.hint_from = stored.into();
        }
    }

    /// Commits a file, of whose changes the rollback database knows. If another program overwrites the
    /// file meanwhile, the next attempt finds that and keeps the changes elsewhere.
    fn commit_noted(
        &self,
        open: &OpenFile,
        state: &mut FileState,
        durability: Durability,
    ) -> Inner<()> {
        for _ in 0..COMMITS_MAX {
            match self.commit_once(open, state, durability) {
                // The journal may have a record of the failed attempt.
                Err(fault) if is_overwritten(&fault) => {
                    self.journal.checkpoint_for(Some(open.inode()))?
                }
                done => return done,
            }
        }
        state.latched = Some(libc::EIO);
        self.note_lost(open, state);
        Err(Fault::Os(libc::EIO))
    }

    fn commit_once(
        &self,
        open: &OpenFile,
        state: &mut FileState,
        durability: Durability,
    ) -> Inner<()> {
        // The first commit of a new file contains no data of a program.
        let may_lose = state.changes.is_some() && !state.is_just_made();
        let paths = RefCell::new(Some(self.namespace.paths.read()));
        let name = self.mode.writers.name_to_commit(self, open, state, durability)?;
        let path = || {
            let path = self.record_path(open, name.as_ref())?;
            if path.is_none() {
                // The file will not get a name again, so renames need not wait for this commit.
                paths.take();
            }
            Ok(path)
        };
        state.unflushed.inode |= open.inode_changed.swap(false, Ordering::AcqRel);
        self.mode.writers.begin_commit(self, open, state)?;
        let place = name.as_ref().map(|link| Place { core: self, link });
        let is_replaced = self.mode.synced && self.mode.writers.may_replace_files();
        let beside = place.as_ref().filter(|_| is_replaced).map(|place| place as &dyn Beside);
        let next_serial = || self.next_serial();
        let committer = Committer { beside, ..self.committer(&next_serial) };
        let committed = committer.commit(state, open, &path, durability);
        state.count(&self.context());
        if committed.is_err() {
            self.note_lost(open, state);
        }
        committed?;
        self.mode.writers.end_commit(self, open, state, name.filter(|_| may_lose))
    }

    pub(super) fn committer<'a>(&'a self, next_serial: &'a dyn Fn() -> u64) -> Committer<'a> {
        Committer {
            context: self.context(),
            journal: &self.journal,
            next_serial,
            writers: self.mode.writers,
            beside: None,
        }
    }

    /// Makes the committed state of a file, whose lock is held, durable.
    pub fn make_durable(&self, open: &OpenFile, state: &mut FileState) -> Inner<()> {
        self.committer(&|| self.next_serial()).make_durable(state, open)
    }

    /// Drops one handle of an open file. Commits with the last one, and with concurrent openers
    /// with the last one that writes, unless nobody sees the file any more. If another daemon does
    /// not release the lease, the file stays open without a handle, and the background commits it
    /// later.
    pub fn release(&self, open: &Arc<OpenFile>, flags: OpenFlags) -> Inner<()> {
        if flags.write {
            self.flush_before_lease(open);
        }
        let change = flags.write.then(|| self.lease.change()).transpose();
        let mut committed = None;
        loop {
            let mut files = self.open.files.lock();
            let Some(shared) = files.get_mut(&open.node) else { break };
            let last_writer = self.mode.writers.end_guard(flags, shared.writers);
            if (shared.handles == 1 || last_writer)
                && !self.mode.read_only
                && !self.closed.load(Ordering::Acquire)
            {
                // A program that opened, wrote and closed the file during this commit has left its
                // changes to this close, the last one.
                let Some((changed, latched)) = open
                    .state
                    .try_read()
                    .map(|state| (state.changes.is_some(), state.latched.is_some()))
                else {
                    drop(files);
                    drop(open.state.read());
                    continue;
                };
                // A caller that only reads gets no error from other callers' writes.
                let due = committed.is_none() && (flags.write || !latched)
                    || changed && !latched && matches!(committed, Some(Ok(())));
                if due && self.is_shown(open) {
                    // Committed while still in the table, so that a concurrent lookup sees the
                    // right size.
                    drop(files);
                    committed = Some(match &change {
                        Err(fault) if changed => Err(Fault::Os(fault.errno())),
                        _ => self.commit_last(open),
                    });
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
                if state.changes.is_some() && state.latched.is_none() {
                    waits = self.keys.signing.waits() || self.is_lease_taken(fault);
                    // A task that still has a reference, such as the background, must not commit
                    // the file once it was opened again.
                    state.latched = (!waits).then(|| fault.errno());
                }
            }
            shared.handles -= 1;
            shared.writers -= usize::from(flags.write);
            self.end_guard(open, last_writer);
            if shared.handles == 0 {
                if waits {
                    // It stays in the table without a handle until a commit succeeds, which needs a
                    // head that can be opened, and the lease.
                    break;
                }
                self.note_surplus(open);
                let is_certain = self.note_closed(open);
                files.remove(&open.node);
                drop(files);
                self.nodes.closed(open.node);
                if !is_certain {
                    self.have_forgotten(open.node, Forget::Attributes); // only once it counts as closed
                }
            }
            break;
        }
        committed.unwrap_or(Ok(()))
    }

    /// Returns whether a commit that left its changes in memory failed because another daemon has
    /// the lease.
    fn is_lease_taken(&self, fault: &Fault) -> bool {
        self.lease.is_needed() && fault.errno() == libc::EBUSY
    }

    /// Notes a file beyond whose end the store may have bytes, accepted before it refused the rest.
    pub fn note_surplus(&self, open: &OpenFile) {
        if open.state.try_read().is_none_or(|state| state.tail >= Tail::Surplus)
            && let Some(path) = self.nodes.stored_path(open.node)
        {
            self.journal.surplus.note(open.inode(), path);
        }
    }

    /// Records what the kernel caches of a file that is being closed; false if it has to ask again,
    /// because it may cache uncommitted data or an older time.
    fn note_closed(&self, open: &OpenFile) -> bool {
        if !self.mode.caller_caches {
            return true;
        }
        let written_past = open
            .state
            .try_read()
            .and_then(|state| state.kernel.lacks_time.then_some(state.kernel.opened_second));
        match open.cached() {
            Some(cached) => {
                self.nodes.set_cached(open.node, cached, written_past);
                written_past.is_none()
            }
            None => {
                self.learn_size(open);
                self.nodes.retire(open.node);
                false
            }
        }
    }

    /// Fails with `ESTALE`, and retires the node, if the kernel caches another state of the file
    /// than the one just loaded. The kernel then repeats the lookup and gets a new node, of which
    /// it caches nothing.
    fn check_cached(&self, open: &OpenFile, cached: &Cached) -> Inner<()> {
        let state = open.state.read();
        let loaded = state.committed.as_ref().map_or(Cached::size(0), |committed| {
            Cached::state(state.size, &committed.header.hash())
        });
        if cached.admits(&loaded) {
            return Ok(());
        }
        self.nodes.retire(open.node);
        Err(Fault::Os(libc::ESTALE))
    }

    /// Fails with `ESTALE`, and retires the node, if an open file is not the object that its names
    /// lead to in the store. Another program has overwritten its header, or replaced the file at a
    /// name, or a directory above it. An open does not contain the name that it used, so one such
    /// name is enough; the next lookup finds the present object. If a name leads to a file with the
    /// same header, the open file continues in that one.
    pub fn check_still_there(&self, open: &OpenFile) -> Inner<()> {
        let state = open.state.read();
        if state.latched.is_some() {
            return Ok(()); // a caller that uses the handle gets the error
        }
        let paths = self.namespace.paths.read();
        let has_own_header = self.has_own_header(&*open.file(), &state)?;
        let links = self.nodes.links(open.node);
        let mut is_there = has_own_header;
        for link in &links {
            is_there = is_there && self.names_open_file(link, open)?;
        }
        if is_there {
            return Ok(());
        }
        drop(paths);
        drop(state);
        if has_own_header
            && let [link] = &links[..]
            && self.has_adopted(open, link).unwrap_or(false)
        {
            return Ok(());
        }
        self.nodes.retire(open.node);
        Err(Fault::Os(libc::ESTALE))
    }

    /// Returns whether an open file continues in the file that `link` leads to.
    fn has_adopted(&self, open: &OpenFile, link: &Link) -> Inner<bool> {
        let mut state = open.state.write();
        let _paths = self.namespace.paths.read();
        let is_same = |file: &dyn File| self.has_own_header(file, &state);
        let dir = self.dir(link.parent)?;
        if !self.is_in_place(link.parent)?
            || !is_same(&*dir.open_file(link.stored(), Access::Read)?)?
        {
            return Ok(false);
        }
        self.journal.checkpoint_for(Some(open.inode()))?;
        self.adopt(open, &mut state, link)
    }

    /// Returns whether the header in `file` is the one that was last committed through `state`.
    /// True if nothing is committed, or if a commit failed while it may have written the header:
    /// then the header is unknown.
    pub fn has_own_header(&self, file: &dyn File, state: &FileState) -> Inner<bool> {
        match &state.committed {
            Some(committed) if !committed.is_being_replaced => {
                Ok(self.header_in(file)? == committed.header)
            }
            _ => Ok(true),
        }
    }

    /// Returns whether the name `link` leads to the open file, from the root of the share on. The
    /// caller has locked paths. Several stores change inode numbers, but not while a file is open.
    /// A copy of the same bytes is another file: writes to the open one would not reach it.
    pub fn names_open_file(&self, link: &Link, open: &OpenFile) -> Inner<bool> {
        Ok(self.is_in_its_directory(link, open)? && self.is_in_place(link.parent)?)
    }

    /// Like [`Core::names_open_file`], from the directory of the name on.
    fn is_in_its_directory(&self, link: &Link, open: &OpenFile) -> Inner<bool> {
        self.names(link, |stat| {
            (stat.dev, stat.ino) == open.inode()
                || open
                    .file()
                    .stat_but_times()
                    .is_ok_and(|now| (stat.dev, stat.ino) == (now.dev, now.ino))
        })
    }

    /// Returns whether `link` leads to an object for which `is_it` is true.
    pub(super) fn names(&self, link: &Link, is_it: impl Fn(&Stat) -> bool) -> Inner<bool> {
        let stat = self.dir(link.parent).and_then(|dir| Ok(dir.stat(link.stored())?));
        match stat {
            Ok(stat) => Ok(is_it(&stat)),
            Err(fault) if matches!(fault.errno(), libc::ENOENT | libc::ESTALE | libc::ENOTDIR) => {
                Ok(false)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Called before a commit without concurrent openers, and with `committed` after one. Returns a
    /// name of the vault that leads to the file; `None` if programs have removed all of them. If
    /// another program has removed or replaced the file in the store, or has overwritten its
    /// header, changes are kept elsewhere: see [`crate::vault::open_files::conflict`].
    pub fn check_not_replaced(
        &self,
        open: &OpenFile,
        state: &mut FileState,
        committed: bool,
    ) -> Inner<Option<Link>> {
        // A newly created file is checked from its second commit on.
        if state.latched.is_some() || state.committed.is_none() && state.backing_len == 0 {
            return Ok(self.nodes.link(open.node).ok());
        }
        let mut links = self.nodes.links(open.node);
        let what = if !self.has_own_header(&*open.file(), state)? {
            Stranger::Overwrote
        } else {
            // Sync tools move directories, and what they have moved is not written to. Elsewhere it
            // is enough to look at the directories after the commit.
            let is_there = match committed || self.mode.synced {
                true => Self::names_open_file,
                false => Self::is_in_its_directory,
            };
            for at in (0..links.len()).rev() {
                if is_there(self, &links[at], open)? {
                    return Ok(Some(links.swap_remove(at)));
                }
            }
            if links.is_empty() && self.is_removed(open) {
                return Ok(None);
            }
            if !links.is_empty() {
                self.nodes.retire(open.node); // the kernel may resolve those names to it
            }
            if open.file().stat_but_times()?.nlink > 0
                && let Some(found) = self.search_name(open)?
            {
                links
                    .iter()
                    .for_each(|link| self.nodes.drop_link(open.node, link.parent, link.stored()));
                return Ok(Some(found));
            }
            Stranger::Replaced
        };
        if state.changes.is_none() && !committed {
            return Ok(links.last().cloned()); // the store has had all that was written
        }
        self.keep_changes(open, state, &links, what).map(Some)
    }

    /// Searches the vault for a name that leads to an open file, and records it: a hard link
    /// without a lookup, or a name that another program gave the file in the store. Store names
    /// that are not valid in the vault do not count.
    ///
    /// The directories of its known names come first: a log is rotated, and a new version of a file
    /// is saved, by a rename within the directory. A directory of a tree that was moved does not
    /// count: it still has the file, but not at its path. The search through the vault finds both.
    ///
    /// In a synced share new keys are looked for first: a sync tool may just have renamed a
    /// directory under a key that it has delivered with it. Without the key that directory has no
    /// name, and the file in it would not be found.
    fn search_name(&self, open: &OpenFile) -> Inner<Option<Link>> {
        self.look_for_keys();
        let now = open.file().stat_but_times()?;
        for link in self.nodes.links(open.node) {
            match self.search_directory(open, &now, link.parent, None) {
                Ok(Some(found)) if self.is_in_place(found.parent)? => return Ok(Some(found)),
                Err(fault) if is_no_descriptor(fault.errno()) => return Err(fault),
                _ => {} // another directory may have taken its place
            }
        }
        let mut left = vec![ROOT];
        let mut found = None;
        while let Some(node) = left.pop() {
            let looked = if found.is_some() {
                Ok(None)
            } else {
                self.search_directory(open, &now, node, Some(&mut left))
            };
            if node != ROOT {
                self.nodes.forget(node, 1);
            }
            match looked {
                Ok(link) => found = found.or(link),
                // A directory that cannot be listed has no usable name.
                Err(fault) if !is_no_descriptor(fault.errno()) => {}
                Err(fault) => {
                    left.into_iter()
                        .filter(|node| *node != ROOT)
                        .for_each(|node| self.nodes.forget(node, 1));
                    return Err(fault);
                }
            }
        }
        Ok(found)
    }

    /// Looks for keys that a sync tool may have delivered with what is searched for.
    fn look_for_keys(&self) {
        if self.mode.synced
            && let Err(error) = self.refresh(&self.membership.trust)
        {
            tracing::warn!("cannot look for new keys before the search for a file: {error}");
        }
    }

    /// Searches one directory for a name of an open file, and adds its sub-directories to `left`, if
    /// that is given, each with one lookup count.
    fn search_directory(
        &self,
        open: &OpenFile,
        now: &Stat,
        node: NodeId,
        mut left: Option<&mut Vec<NodeId>>,
    ) -> Inner<Option<Link>> {
        let folder = self.folder(node)?;
        for entry in entries(folder.dir())? {
            let entry = entry?;
            let may_be_it =
                entry.ino == now.ino && entry.kind.is_none_or(|kind| kind == Kind::File);
            let may_be_dir = left.is_some() && entry.kind.is_none_or(|kind| kind == Kind::Dir);
            if is_control(&entry.name) || !may_be_it && !may_be_dir {
                continue;
            }
            let Ok(stat) = folder.dir().stat(&entry.name) else { continue };
            let is_it = stat.kind == Kind::File && (stat.dev, stat.ino) == (now.dev, now.ino);
            if !is_it && stat.kind != Kind::Dir {
                continue;
            }
            let Ok(Some(name)) = folder.decode(&entry.name) else { continue };
            let link = Link::new(node, &entry.name, &name);
            if is_it {
                self.nodes.add_link(open.node, link.clone());
                return Ok(Some(link));
            }
            if let Some(left) = &mut left {
                left.push(self.nodes.seen(&stat, link));
            }
        }
        Ok(None)
    }

    /// Commits for the last close. A file whose old contents were discarded is made durable at
    /// once: after a crash a program expects either the old or the new contents. No program waits
    /// for it: the kernel closes files in the background.
    fn commit_last(&self, open: &OpenFile) -> Inner<()> {
        let mut state = open.state.write();
        let durability =
            if state.phase.replaces() { Durability::Synced } else { Durability::Ordered };
        self.commit_what_fits(open, &mut state, durability)
    }

    /// Returns the stored path for a record of the file, that of `name` if it is given; `None` if
    /// the file has no name any more. If the file has a hard link whose name is unknown, this name
    /// is searched for: a commit without a record would overwrite places that the file still uses.
    fn record_path(&self, open: &OpenFile, name: Option<&Link>) -> Inner<Option<Vec<u8>>> {
        if let Some(link) = name {
            self.check_depth(link.parent, link.stored())?; // a directory above may have been moved
        }
        if let Some(path) = name.and_then(|link| self.path_in(link.parent, link.stored()))
            && self.mode.writers.trust_path(self, &path, open)
        {
            return Ok(Some(path));
        }
        if self.is_removed(open) {
            return Ok(None);
        }
        if let Some(path) =
            self.search_name(open)?.and_then(|link| self.path_in(link.parent, link.stored()))
        {
            return Ok(Some(path));
        }
        tracing::error!("cannot find a name of an open file: writes to it are not committed");
        Err(Fault::Os(libc::EIO))
    }

    /// Fails with `ENAMETOOLONG` where no record of the journal can name the entry `stored` of
    /// `parent`, so that nothing is written to a file that the journal cannot protect.
    pub fn check_depth(&self, parent: NodeId, stored: &[u8]) -> Inner<()> {
        match self.nodes.is_too_deep(parent, stored.len()) {
            true => Err(Fault::Os(libc::ENAMETOOLONG)),
            false => Ok(()),
        }
    }

    /// Returns whether the file has a name: one that is known, or a hard link without a lookup. A
    /// file that another program has removed counts as having one, so that its commit is not
    /// skipped.
    pub fn has_name(&self, open: &OpenFile) -> bool {
        self.nodes.has_link(open.node) || !self.is_removed(open)
    }

    /// Returns whether others see what is committed to a file: it has a name, or programs of other
    /// daemons may have it open.
    pub fn is_shown(&self, open: &OpenFile) -> bool {
        self.mode.writers.share_names() || self.has_name(open)
    }

    /// Returns whether the last name of the file was removed here, or by a concurrent opener. A
    /// store behind FUSE keeps an open file under a hidden name and still counts one link, so local
    /// removals are checked first.
    fn is_removed(&self, open: &OpenFile) -> bool {
        self.nodes.last_stat(open.node).is_some_and(|stat| stat.nlink == 0)
            || self.mode.writers.removed(open)
    }

    /// Commits every open file that has been dirty for `age`, or for whose guard programs of other
    /// daemons may wait.
    pub fn commit_due(&self, age: Duration) {
        let is_due = |open: &OpenFile, s: &FileState| {
            let is_wanted = || s.latched.is_none() && open.is_on_demand();
            is_wanted() && open.guard.lock().is_some()
                || s.changes.is_some_and(|changes| changes.since.elapsed() >= age)
        };
        let mut busy = Vec::new();
        let files: Vec<_> = self.open.files.lock().values().map(|s| s.file.clone()).collect();
        for open in files {
            match open.state.try_read().map(|state| is_due(&open, &state)) {
                Some(true) => self.commit_deferred(&open),
                Some(false) => {}
                None => busy.push(open),
            }
        }
        // Files in use come last, and are waited for: otherwise a file that is never idle would
        // never be committed.
        for open in busy {
            if open.state.try_read_for(TURN).is_some_and(|state| is_due(&open, &state)) {
                self.commit_deferred(&open);
            }
        }
        self.end_unused_guards();
    }

    /// Gives back the guards of files that no program has open for writing any more, and drops those
    /// without a handle. At the last close there may have been changes that could not be committed
    /// then, and something else than the background may have committed them, such as a rename.
    fn end_unused_guards(&self) {
        let files = self.open.files.lock();
        if self.mode.writers.share_names() {
            let unused = files.values().filter(|it| it.writers == 0);
            unused.for_each(|it| self.end_guard(&it.file, true));
        }
        let left: Vec<_> =
            files.values().filter(|it| it.handles == 0).map(|it| it.file.clone()).collect();
        drop(files);
        left.iter().for_each(|open| self.drop_unused(open));
    }

    fn commit_deferred(&self, open: &Arc<OpenFile>) {
        if let Err(fault) = self.commit(open, Durability::Ordered) {
            self.tell_if_full(&fault);
            // The error stays with the file: the next write, flush or close returns it.
            tracing::error!(path = %self.shown_path(open.node).display(), errno = fault.errno(), "deferred commit failed");
        }
        self.leave_to_others(open);
        self.drop_unused(open);
    }

    /// Drops a file that has stayed in the table without a handle, once it is written or cannot be
    /// written any more.
    fn drop_unused(&self, open: &Arc<OpenFile>) {
        let mut files = self.open.files.lock();
        let unused = files
            .get(&open.node)
            .is_some_and(|shared| shared.handles == 0 && Arc::ptr_eq(&shared.file, open));
        if unused
            && open
                .state
                .try_read()
                .is_some_and(|state| state.changes.is_none() || state.latched.is_some())
        {
            files.remove(&open.node);
            drop(files);
            self.nodes.closed(open.node);
        }
    }

    /// Notes that the inode of a node has changed in a way that fsync(2) makes durable, not
    /// fdatasync(2).
    pub fn inode_changed(&self, node: NodeId) {
        let open = self.open.files.lock().get(&node).map(|s| s.file.clone());
        if let Some(open) = open {
            open.inode_changed.store(true, Ordering::Release);
        }
    }
}
