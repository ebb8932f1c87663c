//! The redo journal: records made durable together, applied by their commits, checkpointed, replayed after a crash.
//!
//! Rules that hold here
//! * A record is acknowledged only after the `fdatasync` that covers it; commits of many files share one.
//! * Space is free again only after every file with a record in it was flushed (the checkpoint), and never while a record has been
//!   appended but not yet applied.
//! * A failed flush is never retried: the journal is abandoned, those who waited for it fail, the next commit begins another one.
//! * The journal file is written full when it is made, because a flush of overwritten blocks costs two thirds of one that also has to
//!   record an allocation.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::error::{Fault, Inner};
use super::keys::ShareKeys;
use crate::backing::{Access, Dir, File, Lock, SetTime, Timestamp};
use crate::crypto::{JournalKey, Random, RecordCipher, hmac, labels};
use crate::format::header::{Header, PublicHeader};
use crate::format::journal::{ALIGN, JournalHead, JournalRecord, RECORD_HEAD, RECORDS_AT, header_hash, open_record, record_head};

/// Names of journals begin with this.
pub(crate) const PREFIX: &[u8] = b"+journal-";
/// Bytes of a new journal.
const INITIAL: u64 = 4 << 20;
/// Bytes beyond which a journal is checkpointed rather than lengthened.
const LIMIT: u64 = 32 << 20;

struct Running {
    file: Arc<dyn File>,
    name: Vec<u8>,
    head: JournalHead,
    capacity: u64,
}

struct State {
    running: Option<Running>,
    generation: u64,
    sequence: u64,
    tail: u64,
    /// Records appended and records covered by a flush, counted over the journal's life.
    appended: u64,
    synced: u64,
    syncing: bool,
    /// Appended but not yet applied in place.
    unapplied: usize,
    /// Files with records that no checkpoint has flushed yet, by device and inode number.
    unflushed: HashMap<(u64, u64), Arc<dyn File>>,
    /// Counts abandoned journals, so that those who wait for a flush see that it will not come.
    failures: u64,
    last_append: Instant,
    /// Kept from record to record: see [`JournalRecord::seal`].
    buffer: Vec<u8>,
    /// A checkpoint is under way or waits for its turn: nothing is appended meanwhile.
    draining: bool,
}

impl State {
    /// Leaves the journal file behind for a replay; whoever waits for it fails.
    fn abandon(&mut self) {
        self.failures += 1;
        self.running = None;
    }
}

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
}

/// A record that was appended and must be reported as applied.
#[must_use]
pub(crate) struct Ticket;

impl Journal {
    pub fn new(root: Arc<dyn Dir>, keys: Arc<ShareKeys>, random: Arc<dyn Random>, key: JournalKey, host: String) -> Self {
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
            last_append: Instant::now(),
            buffer: Vec::new(),
            draining: false,
        };
        Journal { root, keys, random, key, cipher, host, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn owner(key: &JournalKey, id: &[u8; 16]) -> [u8; 16] {
        hmac(key.expose(), &[labels::JOURNAL_OWNER.as_bytes(), id])[..16].try_into().expect("16 of 32 bytes")
    }

    fn begin(&self) -> Inner<Running> {
        let mut id = [0; 16];
        self.random.fill(&mut id);
        let hex: String = id[..8].iter().map(|b| format!("{b:02x}")).collect();
        let name = [PREFIX, self.host.as_bytes(), b"-", hex.as_bytes()].concat();
        let file = self.root.create_file(&name, 0o600)?;
        file.try_lock(Lock::Exclusive)?;
        let head = JournalHead { suite: self.keys.suite, share: self.keys.share, id, owner: Self::owner(&self.key, &id) };
        let made = (|| {
            file.write_at(&head.encode(), 0)?;
            write_zeros(&*file, RECORDS_AT, INITIAL)?;
            file.sync_all()?;
            self.root.sync()
        })();
        if let Err(e) = made {
            let _ = self.root.unlink(&name);
            return Err(e.into());
        }
        Ok(Running { file, name, head, capacity: INITIAL })
    }

    /// Appends a record for `file` and returns once it is durable. The caller applies it and then says so.
    pub fn append(&self, record: &JournalRecord<'_>, inode: (u64, u64), file: &Arc<dyn File>) -> Inner<Ticket> {
        let mut state = self.state.lock();
        while state.draining {
            self.changed.wait(&mut state);
        }
        let len = record.encoded_len() as u64;
        if state.running.is_some() && state.tail + len > LIMIT {
            self.checkpoint_locked(&mut state)?;
        }
        if state.running.is_none() {
            state.running = Some(self.begin()?);
            state.generation = 1;
            state.sequence = 0;
            state.tail = RECORDS_AT;
        }
        let (generation, sequence, tail) = (state.generation, state.sequence, state.tail);
        let running = state.running.as_mut().expect("begun above");
        if tail + len > running.capacity {
            let capacity = (tail + len).next_multiple_of(INITIAL).max((running.capacity * 2).min(LIMIT));
            write_zeros(&*running.file, running.capacity, capacity)?;
            running.capacity = capacity;
        }
        let (file_of_journal, head) = (running.file.clone(), running.head.clone());
        record.seal(&mut state.buffer, &head, &self.cipher, generation, sequence, &*self.random);
        debug_assert!(state.buffer.len() as u64 <= len);
        file_of_journal.write_at(&state.buffer, tail)?;
        state.sequence += 1;
        state.tail += state.buffer.len() as u64;
        state.appended += 1;
        state.last_append = Instant::now();
        let (mine, failures) = (state.appended, state.failures);
        state.unapplied += 1;
        state.unflushed.insert(inode, file.clone());
        while state.synced < mine && state.failures == failures {
            if state.syncing {
                self.changed.wait(&mut state);
                continue;
            }
            let Some(journal) = state.running.as_ref().map(|r| r.file.clone()) else { break };
            state.syncing = true;
            let covers = state.appended;
            let result = parking_lot::MutexGuard::unlocked(&mut state, || journal.sync_data());
            state.syncing = false;
            match result {
                Ok(()) => state.synced = state.synced.max(covers),
                Err(e) => {
                    tracing::error!("journal: {e}; abandoned");
                    state.abandon();
                }
            }
            self.changed.notify_all();
        }
        if state.failures != failures {
            state.unapplied -= 1;
            self.changed.notify_all();
            return Err(Fault::Os(libc::EIO));
        }
        Ok(Ticket)
    }

    /// The record of `ticket` has been applied in place, or failed to be: then it stays for the next replay.
    pub fn applied(&self, _ticket: Ticket, ok: bool) {
        let mut state = self.state.lock();
        state.unapplied -= 1;
        if !ok {
            // What stands in the journal is acknowledged to nobody, but it is the better copy: leave it for a replay.
            state.abandon();
        }
        self.changed.notify_all();
    }

    /// Flushes every file that has records, and frees the space.
    fn checkpoint_locked(&self, state: &mut parking_lot::MutexGuard<State>) -> Inner<()> {
        while state.draining {
            self.changed.wait(state);
        }
        state.draining = true;
        while state.unapplied > 0 || state.syncing {
            self.changed.wait(state);
        }
        let result = state.unflushed.drain().map(|(_, file)| file).collect::<Vec<_>>().iter().try_for_each(|file| file.sync_data());
        match &result {
            Ok(()) => {
                state.generation += 1;
                state.sequence = 0;
                state.tail = RECORDS_AT;
            }
            // The records are the only durable copy now: they stay for a replay.
            Err(_) => state.abandon(),
        }
        state.draining = false;
        self.changed.notify_all();
        Ok(result?)
    }

    /// Checkpoints where a record names the inode, or any inode when `None`: before its path changes.
    pub fn settle(&self, inode: Option<(u64, u64)>) -> Inner<()> {
        let mut state = self.state.lock();
        let concerned = match inode {
            Some(inode) => state.unflushed.contains_key(&inode),
            None => !state.unflushed.is_empty(),
        };
        if concerned { self.checkpoint_locked(&mut state) } else { Ok(()) }
    }

    /// Checkpoints a journal in which nothing was written for `idle`.
    pub fn checkpoint_idle(&self, idle: Duration) -> Inner<()> {
        let mut state = self.state.lock();
        if state.unflushed.is_empty() || state.unapplied > 0 || state.draining || state.last_append.elapsed() < idle {
            return Ok(());
        }
        self.checkpoint_locked(&mut state)
    }

    /// Checkpoints and removes the journal file.
    pub fn close(&self) -> Inner<()> {
        let mut state = self.state.lock();
        self.checkpoint_locked(&mut state)?;
        if let Some(running) = state.running.take() {
            self.root.unlink(&running.name)?;
        }
        Ok(())
    }

    /// Replays what a crash left behind: every journal of this identity whose owner is gone. Gives the number of files that were
    /// brought up to date.
    pub fn replay(&self) -> Inner<usize> {
        let mut files = 0;
        for name in self.leftover()? {
            files += self.replay_one(&name)?;
        }
        Ok(files)
    }

    /// Names of all journals in the vault.
    pub fn leftover(&self) -> Inner<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut cookie = 0;
        let dir = self.root.reopen()?;
        loop {
            let entries = dir.read(cookie, 1 << 16)?;
            let Some(last) = entries.last() else { return Ok(names) };
            cookie = last.next;
            names.extend(entries.iter().filter(|e| e.name.starts_with(PREFIX)).map(|e| e.name.to_vec()));
        }
    }

    fn replay_one(&self, name: &[u8]) -> Inner<usize> {
        let file = match self.root.open_file(name, Access::ReadWrite) {
            Ok(file) => file,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(0),
            Err(e) => return Err(e.into()),
        };
        if !file.try_lock(Lock::Exclusive)? {
            return Ok(0);
        }
        let shown = String::from_utf8_lossy(name).into_owned();
        let mut head = vec![0; RECORDS_AT as usize];
        let read = file.read_at(&mut head, 0)?;
        let head = match JournalHead::decode(&head[..read]) {
            Ok(head) if head.share == self.keys.share && head.suite == self.keys.suite => head,
            // A journal that was being made when the machine stopped has no records yet.
            _ if head[..read].iter().all(|b| *b == 0) => {
                self.root.unlink(name)?;
                return Ok(0);
            }
            _ => {
                tracing::warn!("journal {shown} is not of this share, kept");
                return Ok(0);
            }
        };
        if head.owner != Self::owner(&self.key, &head.id) {
            return Ok(0);
        }
        let mut by_file: Vec<Vec<JournalRecord<'static>>> = Vec::new();
        for record in self.records(&*file, &head)? {
            match by_file.iter_mut().find(|rs| rs[0].path == record.path && rs[0].file_id == record.file_id) {
                Some(records) => records.push(record),
                None => by_file.push(vec![record]),
            }
        }
        let (mut done, mut refused) = (0, 0);
        for records in &by_file {
            match self.redo(records) {
                Ok(true) => done += 1,
                Ok(false) => refused += 1,
                Err(fault) if matches!(fault.errno(), libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => refused += 1,
                Err(fault) => return Err(fault),
            }
        }
        if refused > 0 {
            tracing::warn!("journal {shown}: {refused} files are not what the journal was made against, kept");
        } else {
            self.root.unlink(name)?;
        }
        Ok(done)
    }

    /// The records of the generation that begins the journal.
    fn records(&self, file: &dyn File, head: &JournalHead) -> Inner<Vec<JournalRecord<'static>>> {
        let mut records = Vec::new();
        let mut at = RECORDS_AT;
        let mut expected: Option<(u64, u64)> = None;
        let end = file.stat()?.size;
        loop {
            let mut start = [0; RECORD_HEAD];
            if file.read_at(&mut start, at)? < RECORD_HEAD {
                return Ok(records);
            }
            let Some((generation, sequence, len)) = record_head(&start) else { return Ok(records) };
            let follows = match expected {
                Some(next) => next == (generation, sequence),
                None => sequence == 0,
            };
            if !follows || at + (RECORD_HEAD + len) as u64 > end {
                return Ok(records);
            }
            let mut sealed = vec![0; len];
            if file.read_at(&mut sealed, at + RECORD_HEAD as u64)? < len {
                return Ok(records);
            }
            let Ok(record) = open_record(head, &self.cipher, generation, sequence, &sealed) else { return Ok(records) };
            records.push(record);
            expected = Some((generation, sequence + 1));
            at += (RECORD_HEAD + len).next_multiple_of(ALIGN) as u64;
        }
    }

    /// Applies the records of one file; `false` where the file is not one that they were made against.
    fn redo(&self, records: &[JournalRecord<'_>]) -> Inner<bool> {
        let first = &records[0];
        let mut dir = self.root.clone();
        let mut components: Vec<&[u8]> = first.path.split(|b| *b == b'/').collect();
        let Some(last) = components.pop() else { return Ok(false) };
        for component in components {
            dir = dir.open_dir(component)?;
        }
        let file = dir.open_file(last, Access::ReadWrite)?;
        let layout = self.keys.layout;
        let mut bytes = vec![0; layout.cipher_len(crate::format::layout::SMALL_MAX) as usize];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        let known = read >= layout.header() && {
            let hash = header_hash(&bytes[..layout.header()]);
            records.iter().any(|r| r.base == hash || r.result == hash)
        };
        if !known && !self.is_torn(&bytes, &first.file_id) {
            return Ok(false);
        }
        for record in records {
            for patch in &record.patches {
                file.write_at(&patch.bytes, patch.offset)?;
            }
            file.set_len(record.cipher_len)?;
        }
        let (secs, nanos) = records.last().expect("a file has a record").mtime;
        file.set_times(SetTime::Omit, SetTime::At(Timestamp { secs, nanos }))?;
        file.sync_all()?;
        Ok(true)
    }

    /// Whether the header is one that a crash tore while it was written: it names the file but does not open.
    fn is_torn(&self, bytes: &[u8], file_id: &[u8; 32]) -> bool {
        let Ok(public) = PublicHeader::decode(&self.keys.layout, bytes) else { return !bytes.is_empty() };
        let Ok(epoch) = self.keys.epoch(public.epoch) else { return false };
        public.file_id == *file_id && Header::open(&self.keys.header_context(epoch), bytes).is_err()
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
