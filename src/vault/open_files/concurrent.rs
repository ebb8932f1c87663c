//! A vault that several daemons have open for writing at the same time:
//! [`LockMode::Shared`](crate::vault::LockMode::Shared).
//!
//! Rules that hold here
//! * Locks are the store's ([`locks`](super::locks)), so that the end of a process frees them, and
//!   on network filesystems other machines see them.
//! * A daemon that has a file open for writing, or applies records to it, holds a lock on it by a
//!   handle of its own: the *guard*. (For files that programs lock see
//!   [`on_demand`](super::on_demand).) No other daemon opens the file for writing meanwhile, so no
//!   committed bytes are overwritten by a daemon that has not seen them. A commit still checks that
//!   the header is the one that it builds on, as locks are advisory.
//! * Readers take no lock. The header shows whether the state in memory is that of the store. Data
//!   that does not authenticate is read again if a daemon holds the guard or the header has
//!   changed, because a commit may have been concurrent.
//! * Each change of names, attributes or committed contents is made under the
//!   [lease](crate::vault::durability::lease).
//! * An open for writing guards the file first, and then checks that it still has its name. A
//!   daemon that is about to remove files as a whole looks for guards under the lease, and keeps it
//!   until they are removed.
//! * A daemon that ended in the middle of a commit may have left a chunk half written, which only
//!   the record in its journal completes, and only while the file has the header that the record
//!   names. So before the first change under a guard, the whole file is read if there is such a
//!   journal ([`Core::check_whole`]); a large one without the lease, and then its header is
//!   compared. A file with such a chunk is not changed, but may be emptied or removed.
//! * The journal is emptied after each commit: a replay must not touch what another daemon has
//!   written or renamed since.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::format::header::PublicHeader;
use crate::store::{Access, File, Lock, Seek, Timestamp};
use crate::vault::core::Core;
use crate::vault::core::inodes::Link;
use crate::vault::durability::commit::Durability;
use crate::vault::durability::journal::Remains;
use crate::vault::durability::lock_files::{ASKED, insist};
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::file::guard::{GUARD, open_for_locks};
use crate::vault::file::phase::{HeaderBytes, Phase};
use crate::vault::file::{FileState, Load, OpenFile};
use crate::vault::types::NodeId;

/// How long an open for writing waits for another daemon's lock before it fails with `EBUSY`: that
/// daemon learns of a program's close a little after close(2) has returned.
const GUARD_TAKES: Duration = Duration::from_secs(1);
/// How long a read waits for another daemon's commit.
const COMMIT_TAKES: Duration = Duration::from_secs(5);
/// How long a read waits for consecutive commits of another daemon.
const COMMITS_TAKE: Duration = Duration::from_secs(60);

/// Size in bytes of the parts in which a file is read as a whole.
const READ_PART: usize = 1 << 20;
/// Size in bytes up to which that is done under the lease: it takes some milliseconds.
const READ_AT_ONCE: u64 = 4 << 20;

/// Maximum number of reads of a file under the lease. One is enough, unless another program changes
/// the journals without the lease.
const LEASED_READS_MAX: usize = 3;

/// A file that has to be read as a whole.
pub(crate) struct Unread {
    /// Hash of its header.
    header: [u8; 32],
    /// See [`Remains::Unknown`].
    seen: (u64, Timestamp),
}

impl Core {
    /// Repeats `attempt` while it fails because of another daemon's guard or commit, and once after
    /// a search for the key of an unknown epoch. Returns the last result.
    pub fn retry<T>(
        &self,
        writes: bool,
        mut attempt: impl FnMut() -> Inner<T>,
        node: NodeId,
    ) -> Inner<T> {
        let begun = Instant::now();
        let (mut waits_since, mut header, mut looked) = (begun, None, false);
        loop {
            let fault = match attempt() {
                // Another client may have begun an epoch since the last refresh.
                Err(Fault::Corrupt(Corruption::UnknownKey))
                    if !std::mem::replace(&mut looked, true) =>
                {
                    let _ = self.refresh(&self.membership.trust);
                    continue;
                }
                Err(fault) if self.mode.writers.share_names() => fault,
                other => return other,
            };
            match &fault {
                Fault::Os(libc::EBUSY) if writes && begun.elapsed() < GUARD_TAKES => {}
                Fault::Corrupt(_) | Fault::Format(_)
                    if waits_since.elapsed() < COMMIT_TAKES && begun.elapsed() < COMMITS_TAKE =>
                {
                    // If no daemon has committed since the last attempt, and none does now, the
                    // fault is real. The guard is checked first: a commit that ends between the two
                    // checks has changed the header.
                    let is_guarded = self.is_guarded(node);
                    let now = Some(self.header_of(node));
                    if header != now {
                        (header, waits_since) = (now, Instant::now());
                    } else if !is_guarded {
                        return Err(fault);
                    }
                }
                _ => return Err(fault),
            }
            std::thread::sleep(ASKED);
        }
    }

    /// Returns whether another daemon has the guard of a node's file, or this one has it and is
    /// changing the file.
    fn is_guarded(&self, node: NodeId) -> bool {
        let ours = self.open.files.lock().get(&node).map(|shared| shared.file.clone());
        if let Some(open) = ours.filter(|open| open.guard.lock().is_some()) {
            return open.state.try_read().is_none();
        }
        let handle = || {
            Ok::<_, Fault>(
                self.dir(self.nodes.link(node)?.parent)?
                    .open_file(self.nodes.link(node)?.stored(), Access::Read)?,
            )
        };
        handle().is_ok_and(|file| matches!(file.find_lock(Lock::Shared, GUARD), Ok(Some(_))))
    }

    /// Takes the guard of an open file, or fails with `EBUSY`.
    pub fn guard(&self, open: &OpenFile) -> Inner<()> {
        let mut guard = open.guard.lock();
        if guard.is_none() {
            let on_demand = open.on_demand.lock().clone();
            let file = on_demand.map_or_else(|| open_for_locks(&*open.file()), Ok)?;
            open.note_guarded(self.lease.sleeps());
            if !file.try_lock_span(Some(Lock::Exclusive), GUARD)? {
                return Err(Fault::Os(libc::EBUSY));
            }
            *guard = Some(file);
        }
        Ok(())
    }

    /// Returns whether this daemon has lost the guard of a file to another one, or has lost it for a
    /// while in which another one has committed. A server drops the locks of a machine that sleeps
    /// for long. The caller has the lease, so no other daemon takes a guard that is still held here.
    pub fn has_lost_guard(&self, open: &OpenFile, state: &FileState) -> Inner<bool> {
        let sleeps = self.lease.sleeps();
        if sleeps.is_some_and(|sleeps| open.guarded.load(Ordering::Acquire) == sleeps) {
            return Ok(false);
        }
        let Some(guard) = open.guard.lock().clone() else { return Ok(false) };
        // Otherwise the next daemon could take the guard, and change the file, in between.
        self.lease.check_not_taken_over()?;
        // The kernel may believe that it still has the lock, so that it would ask the server nothing.
        let _ = guard.try_lock_span(None, GUARD);
        let is_held = guard.try_lock_span(Some(Lock::Exclusive), GUARD)?
            && self.has_own_header(&*open.file(), state)?;
        if is_held {
            open.note_guarded(sleeps);
        }
        Ok(!is_held)
    }

    /// Fails with `ESTALE` if a file that was just guarded has lost its name to another daemon.
    /// That daemon may have looked for guards before this one was taken, and have put a share in
    /// place of a folder above the file since. It has the lease until the folder is removed, and an
    /// open for writing waits for the lease.
    pub fn check_name_kept(&self, open: &OpenFile) -> Inner<()> {
        let Ok(link) = self.link_of(open.node) else { return Ok(()) };
        match self.names(&link, |stat| (stat.dev, stat.ino) == open.inode())? {
            true => Ok(()),
            false => Err(Fault::Os(libc::ESTALE)),
        }
    }

    /// Releases the guard of a file that is not open for writing here any more.
    pub fn unguard(&self, open: &OpenFile) {
        open.is_whole.store(false, Ordering::Release);
        *open.guard.lock() = None;
        *open.on_demand.lock() = None;
    }

    /// Like [`Core::guard`], for a file that was just created: another daemon may be probing the
    /// guard.
    pub fn guard_fresh(&self, open: &OpenFile) -> Inner<()> {
        insist(Instant::now() + GUARD_TAKES, || match self.guard(open) {
            Err(Fault::Os(libc::EBUSY)) => Ok(None),
            other => other.map(Some),
        })
    }

    /// Fails with `EIO` if a daemon that has ended left a chunk of a file half written. The caller
    /// has the guard and the lease, so no other daemon is in the middle of a commit. Returns what
    /// has to be read first, by [`Core::read_unread`], if that may take long and `may_wait`.
    pub fn check_whole(
        &self,
        open: &OpenFile,
        state: &mut FileState,
        may_wait: bool,
    ) -> Inner<Option<Unread>> {
        if open.is_whole.load(Ordering::Acquire) {
            return Ok(None);
        }
        // A replay may have brought the file up to date since it was opened here.
        self.freshen_locked(open, state)?;
        let mut reads = 0;
        while let Some(header) = state.committed.as_ref().map(|it| it.header.hash()) {
            match self.journal.remains(&*open.file(), &header)? {
                Remains::Nothing => break,
                Remains::Record => {
                    // After this commit the record fits no more. Otherwise it could be replayed
                    // when a later commit was interrupted, whose own record would then not fit.
                    state.mtime.hold(&*open.file())?; // the contents do not change
                    state.mark();
                    self.commit_state(open, state, Durability::Ordered)?;
                    self.journal.note_whole(open.inode());
                }
                Remains::HalfWritten => {
                    tracing::error!(path = %self.shown_path(open.node).display(), "another daemon has ended while it changed this file, which can be changed again once the vault is mounted where that daemon ran");
                    return Err(Fault::Corrupt(Corruption::Other("was left half written")));
                }
                Remains::Unknown(round, at) if may_wait && state.size > READ_AT_ONCE => {
                    return Ok(Some(Unread { header, seen: (round, at) }));
                }
                Remains::Unknown(..) if reads == LEASED_READS_MAX => {
                    return Err(Fault::Os(libc::EBUSY));
                }
                Remains::Unknown(round, at) => {
                    self.read_unread(open, &Unread { header, seen: (round, at) })?;
                    reads += 1;
                }
            }
        }
        open.is_whole.store(true, Ordering::Release);
        Ok(None)
    }

    /// Reads a file that [`Core::check_whole`] has to know. The result counts as long as the file
    /// has the same header.
    pub fn read_unread(&self, open: &OpenFile, unread: &Unread) -> Inner<()> {
        let is_authentic = match self.read_whole(open) {
            Err(Fault::Corrupt(_) | Fault::Format(_)) => false,
            read => read.map(|()| true)?,
        };
        self.journal.note_read(open.inode(), unread.header, is_authentic, unread.seen);
        Ok(())
    }

    /// Reads all committed contents of a file from the store, without what is cached of it.
    fn read_whole(&self, open: &OpenFile) -> Inner<()> {
        let context = self.context();
        let fresh =
            OpenFile::load(open.node, open.file(), &context, self.next_serial(), Load::Read)?;
        let (mut part, mut at) = (vec![0; READ_PART], 0);
        loop {
            match fresh.read(&context, at, &mut part)? {
                0 => return Ok(()),
                read => at += read as u64,
            }
            if part.iter().all(|byte| *byte == 0) {
                let state = fresh.state.read();
                match state.seek(&*open.file(), &context, at, Seek::Data) {
                    Ok(data) => at = data.max(at),
                    Err(Fault::Os(libc::ENXIO)) => return Ok(()),
                    Err(fault) => return Err(fault),
                }
            }
        }
    }

    fn header_in_store(&self, open: &OpenFile) -> Inner<HeaderBytes> {
        self.header_in(&*open.file())
    }

    pub fn header_in(&self, file: &dyn File) -> Inner<HeaderBytes> {
        let mut bytes = vec![0; self.keys.layout.header()];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(HeaderBytes::new(bytes))
    }

    /// Returns the hash of the stored header of a node; `None` if it cannot be read.
    fn header_of(&self, node: NodeId) -> Option<[u8; 32]> {
        let link = self.nodes.link(node).ok()?;
        let file = self.dir(link.parent).ok()?.open_file(link.stored(), Access::Read).ok()?;
        self.mode.writers.open_to_read(&*file).ok()?;
        self.header_in(&*file).ok().map(|header| header.hash())
    }

    /// Adopts another daemon's commit to a file that is open here and has no changes.
    pub fn freshen(&self, open: &OpenFile) -> Inner<()> {
        let header = self.header_in_store(open)?;
        if !is_stale(&open.state.read(), &header) {
            return Ok(());
        }
        // Checked again under the lock: the header read before may be the one that this process's
        // own commit has just replaced.
        self.freshen_locked(open, &mut open.state.write())
    }

    /// Like [`Core::freshen`], for a file whose lock is held.
    pub fn freshen_locked(&self, open: &OpenFile, state: &mut FileState) -> Inner<()> {
        if is_stale(state, &self.header_in_store(open)?) {
            self.reload(open, state)
        } else {
            Ok(())
        }
    }

    fn reload(&self, open: &OpenFile, state: &mut FileState) -> Inner<()> {
        let fresh = OpenFile::load(
            open.node,
            open.file(),
            &self.context(),
            self.next_serial(),
            Load::Read,
        )?;
        if let Some(fresh) = Arc::into_inner(fresh) {
            *state = fresh.state.into_inner();
        }
        Ok(())
    }

    /// Reads the presently committed contents.
    pub fn read_shared(&self, open: &OpenFile, offset: u64, buf: &mut [u8]) -> Inner<usize> {
        let attempt = || {
            self.freshen(open)?;
            open.read(&self.context(), offset, buf)
        };
        self.retry(false, attempt, open.node)
    }

    /// Has all writes to a file fail with `ESTALE`.
    pub fn latch_overtaken(&self, open: &OpenFile, state: &mut FileState) {
        tracing::error!(path = %self.shown_path(open.node).display(), "another daemon writes, or has written, to a file that is open for writing here");
        state.latched = Some(libc::ESTALE);
    }

    /// Called before a commit: checks that the guard is held, and that the header is the one that it
    /// is based on. A conflict that [`Core::freshen`] could not resolve stays an error.
    pub fn begin_shared_commit(&self, open: &OpenFile, state: &mut FileState) -> Inner<()> {
        if state.changes.is_none() || state.latched.is_some() {
            return Ok(());
        }
        let overtaken = match &state.committed {
            Some(committed) => self.header_in_store(open)? != committed.header,
            None => open.guard.lock().is_none(),
        };
        if overtaken || self.has_lost_guard(open, state)? {
            self.latch_overtaken(open, state);
        }
        self.latch_if_superseded(open, state);
        let base = state.committed.as_ref().map(|committed| committed.header.hash());
        open.locks.lock().begin_commit(base);
        Ok(())
    }

    /// Latches `ESTALE` if another program has put another version of an open file in its place, so
    /// that a commit would go to a file without a name. A daemon never does that: whatever programs
    /// create or rename over the file has an id of its own.
    pub fn latch_if_superseded(&self, open: &OpenFile, state: &mut FileState) {
        if !self.mode.writers.removed(open) {
            return;
        }
        let id_at = |link: &Link| {
            let file = self.dir(link.parent)?.open_file(link.stored(), Access::Read)?;
            let header = self.header_in(&*file)?;
            Ok::<_, Fault>(PublicHeader::decode(&self.keys.layout, header.bytes())?.file_id)
        };
        let is_superseded = |link| id_at(link).is_ok_and(|id| id == state.file_id);
        if self.nodes.links(open.node).iter().any(is_superseded) {
            tracing::error!(path = %self.shown_path(open.node).display(), "another program has replaced a file that is open for writing here by another version, without a lock");
            state.latched.get_or_insert(libc::ESTALE);
        }
    }

    /// Called after a commit: empties the journal of this file's records. From here on only another
    /// commit overwrites data that other daemons read.
    pub fn end_shared_commit(&self, open: &OpenFile, state: &mut FileState) -> Inner<()> {
        if state.phase.is_unflushed() && state.committed.is_some() {
            state.phase = Phase::Durable;
            state.unflushed.inode = true;
        }
        open.locks
            .lock()
            .end_commit(state.committed.as_ref().map(|committed| committed.header.hash()));
        self.journal.checkpoint_for(Some(open.inode()))
    }

    /// Returns whether the stored path of a file leads to it, in the store and not only in the node
    /// table.
    pub fn leads_to(&self, path: &[u8], inode: (u64, u64)) -> bool {
        let mut components: Vec<&[u8]> = path.split(|b| *b == b'/').collect();
        let Some(name) = components.pop() else { return false };
        let dir =
            components.into_iter().try_fold(self.root.clone(), |dir, name| dir.open_dir(name));
        dir.and_then(|dir| dir.stat(name)).is_ok_and(|stat| (stat.dev, stat.ino) == inode)
    }
}

/// Returns whether a state without changes is older than this header.
fn is_stale(state: &FileState, header: &HeaderBytes) -> bool {
    let committed = state.committed.as_ref();
    state.changes.is_none() && committed.is_some_and(|committed| committed.header != *header)
}
