//! The redo journal: records are made durable in groups, applied by their commits, checkpointed,
//! and replayed after a crash.
//!
//! Rules that hold here
//! * A record is acknowledged only after the `fdatasync` that covers it; commits of many files
//!   share one.
//! * Space becomes free only after every file with a record in it was flushed (the checkpoint), and
//!   never while a record has been appended but not applied. The background flushes files ahead of
//!   it, while commits continue: that shortens the checkpoint and replaces no part of it.
//! * There is one journal at a time. A failed flush is never retried: the journal is abandoned, and
//!   the callers waiting for it fail. Before the next append, its acknowledged records are flushed
//!   or carried into the next journal, and its file is removed.
//! * A file whose records cannot be applied or flushed is *broken*. Its records are written again
//!   at every checkpoint and carried from journal to journal until that succeeds. Until then the
//!   file has no other commits and cannot be opened. If a replay has not identified the file, its
//!   records are carried and not written: only the next replay searches for it.
//! * A record whose write or flush has failed may be in the journal all the same, and a replay may
//!   apply it. Until a checkpoint has wiped it, its file is written only by records.
//! * A place that a record writes is not written by other means before the record is gone: a commit
//!   that frees places begins with a checkpoint. So a replay may write all of a file's records,
//!   whichever of them were applied already.
//! * If another member's daemon has left a journal, every change to a file is made by a record: the
//!   other journal's records may rely on bytes that the file's header does not count.
//! * The journal file is written in full when it is created: a flush of overwritten blocks costs
//!   two thirds of one that also records an allocation. Only a record of a megabyte or more
//!   allocates its own space.

mod checkpoint;
mod created;
mod flush;
mod left;
mod lost;
mod made;
mod overlay;
mod redo;
mod replay;
mod state;
mod surplus;
mod turn;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use self::left::Left;
pub(crate) use self::left::Remains;
use self::lost::Lost;
use self::made::Created;
use self::overlay::OverlayFile;
use self::state::{Inode, Running, State, Tracked};
use self::surplus::Surplus;
use crate::crypto::{JournalKey, Random, RecordCipher, hmac, labels};
use crate::format::journal::{Birth, JournalHead, JournalRecord, RECORD_MAX, RECORDS_AT};
use crate::store::{Allocate, Dir, File, Stat, Timestamp};
use crate::vault::durability::lease::Lease;
use crate::vault::durability::writers::Writers;
use crate::vault::error::{Fault, Inner, is_no_space};
use crate::vault::keyring::keys::ShareKeys;

/// Prefix of the names of journals.
pub(crate) const PREFIX: &[u8] = b"+journal-";
/// Prefix of the names of journals of creation records.
pub(crate) const CREATED: &[u8] = b"+created-";
/// Size in bytes of a new journal.
const INITIAL: u64 = 4 << 20;
/// Size in bytes beyond which a journal is checkpointed rather than lengthened.
const LIMIT: u64 = 32 << 20;
/// Size in bytes from which the space of a record is allocated without a zero-fill.
const LARGE: u64 = 1 << 20;
/// Number of files with records, and so of open handles, beyond which a journal is checkpointed.
const FILES_MAX: usize = 256;
/// Size in bytes of the records of a file from which the background flushes the file.
const FLUSH_AHEAD: u64 = 8 << 20;

/// The journal of one share.
pub(crate) struct Journal {
    root: Arc<dyn Dir>,
    home: Home,
    keys: Arc<ShareKeys>,
    random: Arc<dyn Random>,
    key: JournalKey,
    cipher: RecordCipher,
    state: Mutex<State>,
    changed: Condvar,
    lost: Lost,
    /// Created files that may not be durable yet.
    created: Arc<Created>,
    /// In a vault that is open read-only: the files named by journals, with the changes that a
    /// replay would have made.
    overlaid: Option<Mutex<HashMap<Inode, Arc<OverlayFile>>>>,
    /// Which daemons may have the vault open, each with its own journals.
    writers: Writers,
    /// The lease of the share.
    pub lease: Arc<Lease>,
    /// A journal of another identity with records was there when the vault was opened; this
    /// identity cannot read which files it names.
    foreign_records: AtomicBool,
    /// What other daemons have left, and the files that were checked because of that.
    left: Mutex<Left>,
    /// Files for which the store has refused a write.
    pub surplus: Surplus,
    /// The background thread that calls [`Journal::flush_ahead`], if there is one.
    pub flusher: OnceLock<Thread>,
}

/// Where the journals of a share are.
pub(crate) struct Home {
    /// The directory of new journals: the share's root, or one of this machine alone.
    pub dir: Arc<dyn Dir>,
    /// Further directories of this machine in which journals of this share may have been left.
    pub others: Vec<Arc<dyn Dir>>,
    /// The name of this machine in the names of journals outside of the share.
    pub machine: String,
    /// The directory belongs to this machine alone, and may be on another filesystem than the
    /// share. Other machines, and programs such as sync tools, then know a file only as it is in
    /// the store.
    pub is_local: bool,
    /// The name of this machine in the names of journals in the share's root.
    pub machine_in_store: String,
}

/// A journal that was found.
#[derive(Clone)]
pub(crate) struct Found {
    pub dir: Arc<dyn Dir>,
    pub name: Vec<u8>,
    /// It was made on this machine.
    pub is_own: bool,
}

/// Proof of an appended record; it must be reported as applied or not applied.
#[must_use]
pub(crate) struct Ticket {
    inode: Inode,
}

impl Journal {
    pub fn new(
        root: Arc<dyn Dir>,
        home: Home,
        keys: Arc<ShareKeys>,
        random: Arc<dyn Random>,
        key: JournalKey,
        read_only: bool,
        writers: Writers,
    ) -> Self {
        let cipher = RecordCipher::new(keys.suite, key.expose());
        let state = State {
            running: None,
            appended: 0,
            synced: 0,
            syncing: false,
            unapplied: 0,
            unflushed: HashMap::new(),
            failures: 0,
            broken: Vec::new(),
            left_behind: Vec::new(),
            old: Vec::new(),
            last_append: Instant::now(),
            buffer: Vec::new(),
            doubtful: HashSet::new(),
            unclean: false,
            draining: false,
            owes_names: false,
        };
        let overlaid = read_only.then(Mutex::default);
        let lease = Lease::new(writers.share_names().then(|| root.clone()), read_only);
        Journal {
            root,
            home,
            keys,
            random,
            key,
            cipher,
            state: Mutex::new(state),
            changed: Condvar::new(),
            lost: Lost::default(),
            created: Arc::default(),
            overlaid,
            writers,
            lease: lease.into(),
            foreign_records: AtomicBool::new(false),
            left: Mutex::default(),
            surplus: Surplus::default(),
            flusher: OnceLock::new(),
        }
    }

    fn owner(key: &JournalKey, id: &[u8; 16]) -> [u8; 16] {
        hmac(key.expose(), &[labels::JOURNAL_OWNER.as_bytes(), id])[..16]
            .try_into()
            .expect("16 of 32 bytes")
    }

    /// Returns the birth times of a journal file and of the share's root.
    fn births(&self, journal: &dyn File) -> Inner<[Birth; 2]> {
        Ok([birth(&journal.stat_but_times()?), birth(&self.root.stat_self()?)])
    }

    /// Creates a journal file with room for a record of at least `needed` bytes.
    fn begin(&self, needed: u64) -> Inner<Running> {
        match self
            .begin_with(PREFIX, INITIAL.max((RECORDS_AT + needed).next_multiple_of(RECORDS_AT)))
        {
            // A full store may still have room for this one record.
            Err(fault) if is_no_space(fault.errno()) && needed + RECORDS_AT < INITIAL => {
                self.begin_with(PREFIX, (RECORDS_AT + needed).next_multiple_of(RECORDS_AT))
            }
            other => other,
        }
    }

    fn begin_with(&self, prefix: &[u8], capacity: u64) -> Inner<Running> {
        let mut id = [0; 16];
        self.random.fill(&mut id);
        let Home { is_local, machine, machine_in_store, .. } = &self.home;
        let machine = if *is_local { machine } else { machine_in_store };
        let name = [prefix, machine.as_bytes(), b"-", hex::encode(&id[..8]).as_bytes()].concat();
        let file = self.home.dir.create_file(&name, self.writers.journal_perm(&*self.home.dir)?)?;
        let made = (|| {
            self.take(&*file)?;
            let head = JournalHead {
                suite: self.keys.suite,
                share: self.keys.share,
                id,
                owner: Self::owner(&self.key, &id),
                births: self.births(&*file)?,
            };
            file.write_at(&head.encode(), 0)?;
            write_zeros(&*file, RECORDS_AT, capacity)?;
            file.sync_all()?;
            self.home.dir.sync()?;
            Ok::<_, Fault>(head)
        })();
        let head = made.inspect_err(|_| drop(self.home.dir.unlink(&name)))?;
        let (dir, generation, sequence) = (self.home.dir.clone(), 1, 0);
        Ok(Running {
            file,
            dir,
            name,
            head,
            capacity,
            generation,
            sequence,
            tail: RECORDS_AT,
            carried: 0,
            carried_end: RECORDS_AT,
        })
    }

    /// Makes all created and removed directory entries durable.
    pub fn flush_store(&self) -> Inner<()> {
        Ok(self.root.sync_store()?)
    }

    /// Makes names in two directories durable that records rely on. If that fails, no record is
    /// appended until the whole store has been flushed: a replay would not find its file.
    pub fn sync_names(&self, to: &dyn Dir, from: &dyn Dir) -> Inner<()> {
        to.sync().and_then(|()| from.sync()).map_err(|error| {
            self.state.lock().owes_names = true;
            error.into()
        })
    }

    /// Creates the journal before it is needed: a store that fills up later still accepts
    /// overwrites of existing blocks.
    pub fn reserve(&self) -> Inner<()> {
        let mut state = self.state.lock();
        if state.running.is_none() && state.old.is_empty() && !state.draining {
            self.install(&mut state, 0)?;
        }
        Ok(())
    }

    fn install(&self, state: &mut State, needed: u64) -> Inner<()> {
        state.running = Some(self.begin(needed)?);
        Ok(())
    }

    /// Appends a record for `file` and returns once it is durable. The caller then applies it and
    /// reports that with [`Journal::applied`] or [`Journal::not_applied`].
    pub fn append(
        &self,
        record: &JournalRecord<'_>,
        inode: Inode,
        file: &Arc<dyn File>,
    ) -> Inner<Ticket> {
        let mut state = self.state.lock();
        while state.draining {
            self.changed.wait(&mut state);
        }
        let len = record.encoded_len() as u64;
        self.make_room(&mut state, record, inode, len)?;
        let State { running, buffer, doubtful, .. } = &mut *state;
        let running = running.as_mut().expect("begun above");
        let (generation, sequence) = (running.generation, running.sequence);
        record.seal(buffer, &running.head, &self.cipher, generation, sequence, &*self.random);
        debug_assert!(buffer.len() as u64 <= len);
        if let Err(e) = running.file.write_at(buffer, running.tail) {
            doubtful.insert(inode);
            return Err(e.into());
        }
        running.sequence += 1;
        running.tail += buffer.len() as u64;
        state.appended += 1;
        state.last_append = Instant::now();
        state.unapplied += 1;
        state.unflushed.entry(inode).or_insert_with(|| Tracked::new(file.clone())).add(len);
        if !self.sync_appended(&mut state) {
            state.unapplied -= 1;
            if !state.old.is_empty() {
                state.doubtful.insert(inode);
            }
            self.changed.notify_all();
            return Err(Fault::Os(libc::EIO));
        }
        state.acknowledge(inode, record.result);
        Ok(Ticket { inode })
    }

    /// Begins a file of the journal, or lengthens it, so that a record of `len` bytes fits.
    fn make_room(
        &self,
        state: &mut MutexGuard<'_, State>,
        record: &JournalRecord<'_>,
        inode: Inode,
        len: u64,
    ) -> Inner<()> {
        if len > RECORD_MAX as u64 {
            return Err(Fault::Os(libc::EFBIG)); // no replay reads a record of this length
        }
        if state.owes_names {
            self.flush_store()?;
            state.owes_names = false;
        }
        // A checkpoint may complete this file under the feet of the commit.
        let is_incomplete = state.incomplete().any(|header| header == record.base);
        let has_many = state.unflushed.len() >= FILES_MAX;
        let is_full = |r: &Running| r.appended_len() + len > LIMIT || has_many;
        if state.running.as_ref().is_some_and(is_full) || !state.old.is_empty() {
            self.checkpoint_locked(state)?;
        }
        if state.running.as_ref().is_some_and(Running::is_removed) {
            // Another program has removed the file, perhaps a sync tool: a record in it would not
            // be found after a crash.
            tracing::warn!("another program has removed the journal; it is replaced by a new one");
            self.checkpoint_locked(state)?;
        }
        if state.running.as_ref().is_some_and(|r| r.tail + len > r.capacity) {
            self.lengthen(state, len)?;
        }
        if state.running.is_none() {
            self.install(state, len)?;
        }
        if is_incomplete || state.is_broken(inode) {
            return Err(Fault::Os(libc::EIO)); // an earlier record of it is not applied yet
        }
        Ok(())
    }

    /// Waits until everything that was appended is durable: one flush serves all that wait. Returns
    /// false if the journal was abandoned meanwhile.
    fn sync_appended(&self, state: &mut MutexGuard<'_, State>) -> bool {
        let (mine, failures) = (state.appended, state.failures);
        while state.synced < mine && state.failures == failures {
            if state.syncing {
                self.changed.wait(state);
                continue;
            }
            let Some(journal) = state.running.as_ref().map(|r| r.file.clone()) else { break };
            state.syncing = true;
            let covers = state.appended;
            let result = MutexGuard::unlocked(state, || journal.sync_data());
            state.syncing = false;
            match result {
                Ok(()) => state.synced = state.synced.max(covers),
                Err(e) => {
                    tracing::error!("journal: {e}; abandoned");
                    state.abandon();
                    // Unacknowledged records are not waited for any more.
                    state.synced = state.appended;
                }
            }
            self.changed.notify_all();
        }
        state.failures == failures
    }

    /// Reports that the record of `ticket` has been applied in place.
    pub fn applied(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        state.unapplied -= 1;
        let is_behind =
            state.unflushed.get(&ticket.inode).is_some_and(|t| t.unflushed >= FLUSH_AHEAD);
        drop(state);
        self.changed.notify_all();
        if is_behind && let Some(flusher) = self.flusher.get() {
            flusher.unpark();
        }
    }

    /// Reports that the record of `ticket` was not, or only partly, applied. The record is durable
    /// and is the better copy: the file is broken until it can be written.
    pub fn not_applied(&self, ticket: Ticket) {
        let Ticket { inode } = ticket;
        let mut state = self.state.lock();
        state.unapplied -= 1;
        if let Some(tracked) = state.unflushed.remove(&inode) {
            state.add_broken(inode, tracked);
        }
        self.changed.notify_all();
    }

    /// Returns whether the file has records that could not be applied.
    pub fn is_broken(&self, inode: Inode) -> bool {
        self.state.lock().is_broken(inode)
    }

    /// Fails with `EIO` if a replay could not complete the file with this hash of its header: its last
    /// acknowledged state is in the journal.
    pub fn check_complete(&self, header: &[u8; 32]) -> Inner<()> {
        let is_incomplete = self.state.lock().incomplete().any(|it| it == *header);
        if is_incomplete { Err(Fault::Os(libc::EIO)) } else { Ok(()) }
    }

    /// Returns the headers for which [`Journal::check_complete`] fails.
    pub fn incomplete(&self) -> HashSet<[u8; 32]> {
        self.state.lock().incomplete().collect()
    }

    /// Returns whether any file has records that could not be applied.
    pub fn has_broken(&self) -> bool {
        let state = self.state.lock();
        !state.broken.is_empty() || !state.left_behind.is_empty()
    }

    /// Returns whether a record of the file was refused that may be in the journal all the same.
    pub fn is_doubtful(&self, inode: Inode) -> bool {
        self.state.lock().doubtful.contains(&inode)
    }

    /// Notes that bytes written by the file's records may be lost.
    fn not_flushed(&self, inode: Inode) {
        let mut state = self.state.lock();
        if let Some(tracked) = state.unflushed.remove(&inode) {
            state.add_broken(inode, tracked);
        }
    }

    /// Brings a file that is about to be opened up to date if records of it could not be applied
    /// earlier: nothing may be read from, nor committed on top of, a state that is neither the old
    /// nor the new one. Fails with `EIO` if that is still not possible. Returns whether a refused
    /// record is left: see [`Tail::ReliedOn`](crate::vault::file::phase::Tail::ReliedOn).
    pub fn repair(&self, inode: Inode) -> Inner<bool> {
        let mut state = self.state.lock();
        // A full copy-on-write store may have no room even for this.
        let waits = state.doubtful.contains(&inode) && self.checkpoint_locked(&mut state).is_err();
        if !state.is_broken(inode) {
            return Ok(waits);
        }
        let outcome = match self.overlaid {
            None => self.checkpoint_locked(&mut state),
            Some(_) => Ok(()),
        };
        if !state.is_broken(inode) {
            return Ok(waits);
        }
        outcome?;
        Err(Fault::Os(libc::EIO))
    }

    /// Drops the repair of an inode whose contents were discarded.
    pub fn forget_repair(&self, inode: Inode) {
        self.state.lock().broken.retain(|b| b.inode() != Some(inode));
        self.lost.forget(inode);
    }

    /// Suspends the repair of an inode before its contents are discarded: its records are kept but
    /// not written. [`Journal::forget_repair`] follows, or [`Journal::keep_repair`] if discarding
    /// fails.
    pub fn suspend_repair(&self, inode: Inode) {
        self.doom(inode, true);
    }

    /// Resumes the repair of an inode whose contents were not discarded after all.
    pub fn keep_repair(&self, inode: Inode) {
        self.doom(inode, false);
    }

    fn doom(&self, inode: Inode, doomed: bool) {
        self.state
            .lock()
            .broken
            .iter_mut()
            .filter(|b| b.inode() == Some(inode))
            .for_each(|b| b.doomed = doomed);
    }

    /// Returns the journal's reserved but unused space to the store, for a durable record that
    /// finds no space for its data. The next record that needs the space allocates it again.
    /// Returns false if there is none.
    pub fn give_space(&self) -> bool {
        Self::give_unused(&mut self.state.lock())
    }

    fn give_unused(state: &mut State) -> bool {
        let Some(running) = &mut state.running else { return false };
        let tail = running.tail.next_multiple_of(RECORDS_AT);
        if running.capacity <= tail || running.file.set_len(tail).is_err() {
            return false;
        }
        running.capacity = tail;
        true
    }

    /// Makes room for a record of `len` bytes behind the tail: by allocation, or if the store has
    /// no space, by a checkpoint.
    fn lengthen(&self, state: &mut MutexGuard<State>, len: u64) -> Inner<()> {
        let running = state.running.as_mut().expect("the caller has one");
        let tail = running.tail;
        // A large record fills its space itself; the extra cost of its flush is small beside its
        // own bytes.
        let (capacity, grown) = if len >= LARGE {
            let capacity = (tail + len).next_multiple_of(RECORDS_AT);
            let reserved = running.file.allocate(
                Allocate::KeepSize,
                running.capacity,
                capacity - running.capacity,
            );
            (
                capacity,
                reserved.or_else(|e| {
                    if e.raw_os_error() == Some(libc::EOPNOTSUPP) { Ok(()) } else { Err(e) }
                }),
            )
        } else {
            let capacity =
                (tail + len).next_multiple_of(INITIAL).max((running.capacity * 2).min(LIMIT));
            (capacity, write_zeros(&*running.file, running.capacity, capacity))
        };
        match grown {
            Ok(()) => running.capacity = capacity,
            Err(e) if is_no_space(e.raw_os_error().unwrap_or(0)) => {
                // A partial write would only hold space.
                let _ = running.file.set_len(running.capacity);
                self.checkpoint_locked(state)?;
                let fits = state.running.as_ref().is_some_and(|r| r.tail + len <= r.capacity);
                if !fits && !state.broken.is_empty() {
                    return Err(e.into());
                }
                if !fits && let Some(running) = state.running.take() {
                    // Too small even when empty: a journal of sufficient size replaces it.
                    self.home.dir.unlink(&running.name)?;
                }
            }
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }

    /// Returns whether the journal is outside the store. A file whose commit was acknowledged must
    /// then be durable in the store itself.
    pub fn is_local(&self) -> bool {
        self.home.is_local
    }

    /// Returns whether a record of another identity, which only that identity replays, may rely on
    /// bytes that a file's header does not count.
    pub fn has_foreign_records(&self) -> bool {
        self.foreign_records.load(Ordering::Relaxed)
    }

    /// Returns whether no other opener relies on bytes beyond the end of a file.
    pub fn may_cut(&self) -> bool {
        self.writers.own_all_bytes() && !self.has_foreign_records()
    }

    /// Returns the number of files that are shown with changes from a journal.
    pub fn overlaid(&self) -> usize {
        self.overlaid
            .as_ref()
            .map_or(0, |overlaid| overlaid.lock().values().filter(|file| file.is_changed()).count())
    }

    /// Returns `file`, in a read-only vault with the changes that a replay would have made.
    pub fn overlay(&self, file: Arc<dyn File>) -> Inner<Arc<dyn File>> {
        let Some(overlaid) = &self.overlaid else { return Ok(file) };
        let stat = file.stat()?;
        match overlaid.lock().get(&(stat.dev, stat.ino)) {
            Some(there) => Ok(there.clone()),
            None => Ok(file),
        }
    }

    /// Returns ciphertext length and modification time of an overlaid file.
    pub fn overlaid_stat(&self, inode: Inode) -> Option<(u64, Timestamp)> {
        let file = self.overlaid.as_ref()?.lock().get(&inode)?.clone();
        file.stat().ok().map(|stat| (stat.size, stat.mtime))
    }
}

/// Returns the birth time of an object, which tells it from another version or a copy.
pub(in crate::vault::durability) fn birth(stat: &Stat) -> Birth {
    stat.btime.map(|time| (time.secs, time.nanos))
}

fn write_zeros(file: &dyn File, mut from: u64, to: u64) -> std::io::Result<()> {
    let zeros = vec![0; 1 << 20];
    while from < to {
        let part = (to - from).min(zeros.len() as u64);
        file.write_at(&zeros[..part as usize], from)?;
        from += part;
    }
    Ok(())
}
