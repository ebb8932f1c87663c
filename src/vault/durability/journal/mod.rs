//! The redo journal: records made durable together, applied by their commits, checkpointed,
//! replayed after a crash.
//!
//! Rules that hold here
//! * A record is acknowledged only after the `fdatasync` that covers it; commits of many files
//!   share one.
//! * Space is free again only after every file with a record in it was flushed (the checkpoint),
//!   and never while a record has been appended but not yet applied.
//! * One journal at a time. A failed flush is never retried: the journal is abandoned, those who
//!   waited for it fail, and before anything else is appended what it has acknowledged is flushed
//!   or carried into the next one, and its file removed.
//! * A file whose records cannot be applied or flushed is *broken*: its records are written again
//!   at every checkpoint, carried from journal to journal until that succeeds, and meanwhile
//!   nothing else is committed to it, nor is it opened.
//! * A record that could not be written or flushed may be there all the same: nothing is written to
//!   its file but by a record before no replay would find it.
//! * No place that a record writes is filled again by other means before that record is gone: a
//!   commit that frees places begins with a checkpoint. So a replay may write all of a file's
//!   records, whichever of them are at their places already.
//! * Where somebody else has left a journal, no file changes at all but by a record: his records
//!   rely on bytes that its header does not count.
//! * The journal file is written full when it is made, because a flush of overwritten blocks costs
//!   two thirds of one that also has to record an allocation; only a record of a megabyte or more
//!   makes its own place.

mod checkpoint;
mod created;
mod flush;
mod lost;
mod made;
mod overlay;
mod redo;
mod refused;
mod replay;
mod state;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex, MutexGuard};

use self::lost::Lost;
use self::made::Created;
use self::overlay::OverlayFile;
use self::refused::Refused;
use self::state::{Inode, Running, State, Tracked};
use crate::crypto::{JournalKey, Random, RecordCipher, hmac, labels};
use crate::format::journal::{JournalHead, JournalRecord, RECORD_MAX, RECORDS_AT};
use crate::store::{Allocate, Dir, File, Timestamp};
use crate::vault::error::{Fault, Inner, is_no_space};
use crate::vault::keyring::keys::ShareKeys;

/// Names of journals begin with this.
pub(crate) const PREFIX: &[u8] = b"+journal-";
/// Names of these journals begin with this.
pub(crate) const CREATED: &[u8] = b"+created-";
/// Bytes of a new journal.
const INITIAL: u64 = 4 << 20;
/// Bytes beyond which a journal is checkpointed rather than lengthened.
const LIMIT: u64 = 32 << 20;
/// Bytes of a record for which the journal is not written full before.
const LARGE: u64 = 1 << 20;
/// Files with records, and so open handles, beyond which a journal is checkpointed.
const FILES_MAX: usize = 256;

/// See the module.
pub(crate) struct Journal {
    root: Arc<dyn Dir>,
    keys: Arc<ShareKeys>,
    random: Arc<dyn Random>,
    key: JournalKey,
    cipher: RecordCipher,
    host: String,
    state: Mutex<State>,
    changed: Condvar,
    lost: Lost,
    /// Files that were made and are perhaps not durable.
    created: Arc<Created>,
    /// In a vault that is open for reading only: what a replay would have made of the files that
    /// journals name.
    overlaid: Option<Mutex<HashMap<Inode, Arc<OverlayFile>>>>,
    /// Others may have the vault open too, and journals in it.
    shared: bool,
    /// A journal of somebody else with records was there when the vault was opened, and nobody here
    /// can read which files they are of.
    others_wait: AtomicBool,
    /// Files of which the store has refused something.
    pub refused: Refused,
}

/// A record that was appended and must be reported as applied.
#[must_use]
pub(crate) struct Ticket;

impl Journal {
    pub fn new(
        root: Arc<dyn Dir>,
        keys: Arc<ShareKeys>,
        random: Arc<dyn Random>,
        key: JournalKey,
        host: String,
        read_only: bool,
        shared: bool,
    ) -> Self {
        let cipher = RecordCipher::new(keys.suite, key.expose());
        let state = State {
            running: None,
            generation: 1,
            sequence: 0,
            tail: RECORDS_AT,
            appended: 0,
            synced: 0,
            syncing: false,
            unapplied: 0,
            unflushed: HashMap::new(),
            failures: 0,
            broken: Vec::new(),
            carried: 0,
            old: Vec::new(),
            last_append: Instant::now(),
            buffer: Vec::new(),
            doubtful: HashSet::new(),
            unclean: false,
            draining: false,
        };
        let overlaid = read_only.then(Mutex::default);
        Journal {
            root,
            keys,
            random,
            key,
            cipher,
            host,
            state: Mutex::new(state),
            changed: Condvar::new(),
            lost: Lost::default(),
            created: Arc::default(),
            overlaid,
            shared,
            others_wait: AtomicBool::new(false),
            refused: Refused::default(),
        }
    }

    fn owner(key: &JournalKey, id: &[u8; 16]) -> [u8; 16] {
        hmac(key.expose(), &[labels::JOURNAL_OWNER.as_bytes(), id])[..16]
            .try_into()
            .expect("16 of 32 bytes")
    }

    /// Makes a journal file with room for a record of `needed` bytes at the least.
    fn begin(&self, needed: u64) -> Inner<Running> {
        match self
            .begin_with(PREFIX, INITIAL.max((RECORDS_AT + needed).next_multiple_of(RECORDS_AT)))
        {
            // A full store may still take the one record.
            Err(fault) if is_no_space(fault.errno()) && needed + RECORDS_AT < INITIAL => {
                self.begin_with(PREFIX, (RECORDS_AT + needed).next_multiple_of(RECORDS_AT))
            }
            other => other,
        }
    }

    fn begin_with(&self, prefix: &[u8], capacity: u64) -> Inner<Running> {
        let mut id = [0; 16];
        self.random.fill(&mut id);
        let hex: String = id[..8].iter().map(|b| format!("{b:02x}")).collect();
        let name = [prefix, self.host.as_bytes(), b"-", hex.as_bytes()].concat();
        let file = self.root.create_file(&name, 0o600)?;
        let head = JournalHead {
            suite: self.keys.suite,
            share: self.keys.share,
            id,
            owner: Self::owner(&self.key, &id),
        };
        let made = (|| {
            self.take(&*file)?;
            file.write_at(&head.encode(), 0)?;
            write_zeros(&*file, RECORDS_AT, capacity)?;
            file.sync_all()?;
            Ok::<_, Fault>(self.root.sync()?)
        })();
        if let Err(fault) = made {
            let _ = self.root.unlink(&name);
            return Err(fault);
        }
        Ok(Running { file, name, head, capacity })
    }

    /// Makes all names durable, and that others are gone.
    pub fn flush_store(&self) -> Inner<()> {
        Ok(self.root.sync_store()?)
    }

    /// Makes the journal before it is needed: a store that fills up later takes overwrites of what
    /// is there all the same.
    pub fn reserve(&self) -> Inner<()> {
        let mut state = self.state.lock();
        if state.running.is_none() && state.old.is_empty() && !state.draining {
            self.install(&mut state, 0)?;
        }
        Ok(())
    }

    fn install(&self, state: &mut State, needed: u64) -> Inner<()> {
        state.running = Some(self.begin(needed)?);
        state.generation = 1;
        state.sequence = 0;
        state.carried = 0;
        state.tail = RECORDS_AT;
        Ok(())
    }

    /// Appends a record for `file` and returns once it is durable. The caller applies it and then
    /// says so.
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
        if len > RECORD_MAX as u64 {
            return Err(Fault::Os(libc::EFBIG)); // no replay would read it
        }
        let full = state.tail + len > LIMIT || state.unflushed.len() >= FILES_MAX;
        if state.running.is_some() && full || !state.old.is_empty() {
            self.checkpoint_locked(&mut state)?;
        }
        if state
            .running
            .as_ref()
            .is_some_and(|r| r.file.stat_but_times().is_ok_and(|stat| stat.nlink == 0))
        {
            // Somebody has taken the file away, a sync tool perhaps: a record in it would not be
            // found after a crash.
            tracing::warn!("the journal was removed by somebody else, another one takes its place");
            self.checkpoint_locked(&mut state)?;
        }
        if state.broken_at(inode, Some(&record.path)).is_some() {
            return Err(Fault::Os(libc::EIO)); // an earlier record of it is not at its place yet
        }
        if state.running.as_ref().is_some_and(|r| state.tail + len > r.capacity) {
            self.lengthen(&mut state, len)?;
        }
        if state.running.is_none() {
            self.install(&mut state, len)?;
        }
        let (generation, sequence, tail) = (state.generation, state.sequence, state.tail);
        let running = state.running.as_ref().expect("begun above");
        let (file_of_journal, head) = (running.file.clone(), running.head.clone());
        record.seal(&mut state.buffer, &head, &self.cipher, generation, sequence, &*self.random);
        debug_assert!(state.buffer.len() as u64 <= len);
        if let Err(e) = file_of_journal.write_at(&state.buffer, tail) {
            state.doubtful.insert(inode);
            return Err(e.into());
        }
        state.sequence += 1;
        state.tail += state.buffer.len() as u64;
        state.appended += 1;
        state.last_append = Instant::now();
        let (mine, failures) = (state.appended, state.failures);
        state.unapplied += 1;
        let tracked = Tracked { file: file.clone(), file_id: record.file_id, paths: Vec::new() };
        let tracked = state.unflushed.entry(inode).or_insert(tracked);
        if !tracked.paths.contains(&record.path) {
            tracked.paths.push(record.path.clone());
        }
        while state.synced < mine && state.failures == failures {
            if state.syncing {
                self.changed.wait(&mut state);
                continue;
            }
            let Some(journal) = state.running.as_ref().map(|r| r.file.clone()) else { break };
            state.syncing = true;
            let covers = state.appended;
            let result = MutexGuard::unlocked(&mut state, || journal.sync_data());
            state.syncing = false;
            match result {
                Ok(()) => state.synced = state.synced.max(covers),
                Err(e) => {
                    tracing::error!("journal: {e}; abandoned");
                    state.abandon();
                    // What was not acknowledged is not waited for any more.
                    state.synced = state.appended;
                }
            }
            self.changed.notify_all();
        }
        if state.failures != failures {
            state.unapplied -= 1;
            if !state.old.is_empty() {
                state.doubtful.insert(inode);
            }
            self.changed.notify_all();
            return Err(Fault::Os(libc::EIO));
        }
        Ok(Ticket)
    }

    /// The record of `ticket` has been applied in place.
    pub fn applied(&self, _ticket: Ticket) {
        self.state.lock().unapplied -= 1;
        self.changed.notify_all();
    }

    /// The record of `ticket` could not be applied, or in part only. It is durable, and the better
    /// copy: the file is broken until it could be written.
    pub fn not_applied(&self, _ticket: Ticket, inode: Inode) {
        let mut state = self.state.lock();
        state.unapplied -= 1;
        if let Some(tracked) = state.unflushed.remove(&inode) {
            state.add_broken(inode, tracked);
        }
        self.changed.notify_all();
    }

    /// Whether records of the file are not at their places.
    pub fn is_broken(&self, inode: Inode) -> bool {
        self.state.lock().broken_at(inode, None).is_some()
    }

    /// Whether a record of the file was refused that may be there all the same.
    pub fn is_doubtful(&self, inode: Inode) -> bool {
        self.state.lock().doubtful.contains(&inode)
    }

    /// What records of the file have written may be lost.
    fn not_flushed(&self, inode: Inode) {
        let mut state = self.state.lock();
        if let Some(tracked) = state.unflushed.remove(&inode) {
            state.add_broken(inode, tracked);
        }
    }

    /// Brings a file that is about to be opened up to date where records of it could not be applied
    /// earlier: nothing may be read from, nor committed on top of, a state that is neither the old
    /// nor the new one. `EIO` where that does not succeed now either. Tells whether a record is
    /// left that was refused, and so whether [`FileState::waits`](crate::vault::file::FileState::waits).
    pub fn repair(&self, inode: Inode, path: &dyn Fn() -> Option<Vec<u8>>) -> Inner<bool> {
        let mut state = self.state.lock();
        // A full copy-on-write store may have no room even for that.
        let waits = state.doubtful.contains(&inode) && self.checkpoint_locked(&mut state).is_err();
        if state.broken.is_empty() {
            return Ok(waits);
        }
        let path = path();
        if state.broken_at(inode, path.as_deref()).is_none() {
            return Ok(waits);
        }
        if self.overlaid.is_none() {
            let outcome = self.checkpoint_locked(&mut state);
            if state.broken_at(inode, path.as_deref()).is_none() {
                return Ok(waits);
            }
            outcome?;
        }
        Err(Fault::Os(libc::EIO))
    }

    /// The contents of the inode were thrown away, so it needs no repair.
    pub fn forget_repair(&self, inode: Inode) {
        self.state.lock().broken.retain(|b| b.inode != Some(inode));
        self.lost.forget(inode);
    }

    /// The contents of the inode are about to be thrown away: what the journal has for it stays
    /// there until [`Journal::forget_repair`], or [`Journal::keep_repair`] where that fails, and is
    /// not written meanwhile.
    pub fn suspend_repair(&self, inode: Inode) {
        self.doom(inode, true);
    }

    /// The contents of the inode were not thrown away after all.
    pub fn keep_repair(&self, inode: Inode) {
        self.doom(inode, false);
    }

    fn doom(&self, inode: Inode, doomed: bool) {
        self.state
            .lock()
            .broken
            .iter_mut()
            .filter(|b| b.inode == Some(inode))
            .for_each(|b| b.doomed = doomed);
    }

    /// Gives the store back what the journal has reserved and not used, for a record that is
    /// durable and finds no space at its place. The next record that needs it asks for it anew.
    /// False where there is nothing to give.
    pub fn give_space(&self) -> bool {
        Self::give_unused(&mut self.state.lock())
    }

    fn give_unused(state: &mut State) -> bool {
        let tail = state.tail.next_multiple_of(RECORDS_AT);
        let Some(running) = &mut state.running else { return false };
        if running.capacity <= tail || running.file.set_len(tail).is_err() {
            return false;
        }
        running.capacity = tail;
        true
    }

    /// Makes room for a record of `len` bytes behind the tail: by more space, or where the store
    /// has none, by a checkpoint.
    fn lengthen(&self, state: &mut MutexGuard<State>, len: u64) -> Inner<()> {
        let tail = state.tail;
        let running = state.running.as_mut().expect("the caller has one");
        // A large record fills its place itself, and what its flush costs more is little beside its
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
                // What was written of it would be held for nothing.
                let _ = running.file.set_len(running.capacity);
                self.checkpoint_locked(state)?;
                let fits = state.running.as_ref().is_some_and(|r| state.tail + len <= r.capacity);
                if !fits && !state.broken.is_empty() {
                    return Err(e.into());
                }
                if !fits && let Some(running) = state.running.take() {
                    // Too small even when empty: one that fits takes its place.
                    self.root.unlink(&running.name)?;
                }
            }
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }

    /// Whether a record of somebody else, which he will replay, may rely on bytes of any file that
    /// its header does not count.
    pub fn others_wait(&self) -> bool {
        self.others_wait.load(Ordering::Relaxed)
    }

    /// How many files are shown with what a journal holds for them.
    pub fn overlaid(&self) -> usize {
        self.overlaid
            .as_ref()
            .map_or(0, |overlaid| overlaid.lock().values().filter(|file| file.is_changed()).count())
    }

    /// `file`, in a vault that is open for reading only as a replay would have left it.
    pub fn overlay(&self, file: Arc<dyn File>) -> Inner<Arc<dyn File>> {
        let Some(overlaid) = &self.overlaid else { return Ok(file) };
        let stat = file.stat()?;
        match overlaid.lock().get(&(stat.dev, stat.ino)) {
            Some(there) => Ok(there.clone()),
            None => Ok(file),
        }
    }

    /// Ciphertext length and modification time of such a file.
    pub fn overlaid_stat(&self, inode: Inode) -> Option<(u64, Timestamp)> {
        let file = self.overlaid.as_ref()?.lock().get(&inode)?.clone();
        file.stat().ok().map(|stat| (stat.size, stat.mtime))
    }
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

/// How long a journal of another machine rests before it counts as left behind: more than a mount
/// there would let pass before it empties it.
pub(super) const RESTS: Duration = Duration::from_secs(120);

/// Time since a file was changed, by this machine's clock. One that says the future by little is
/// taken for the present.
pub(super) fn rested(file: &dyn File) -> Inner<Duration> {
    let changed = UNIX_EPOCH + Duration::from_secs(file.stat()?.mtime.secs.max(0) as u64);
    Ok(SystemTime::now().duration_since(changed).unwrap_or_else(|ahead| ahead.duration()))
}
