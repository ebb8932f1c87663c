//! The redo journal: records made durable together, applied by their commits, checkpointed, replayed after a crash.
//!
//! Rules that hold here
//! * A record is acknowledged only after the `fdatasync` that covers it; commits of many files share one.
//! * Space is free again only after every file with a record in it was flushed (the checkpoint), and never while a record has been
//!   appended but not yet applied.
//! * A failed flush is never retried: the journal is abandoned, those who waited for it fail. Before the next commit begins another one,
//!   what the abandoned one has acknowledged is flushed and its file removed: two journals never amend the same header.
//! * A checkpoint wipes the first record, so that what a replay finds was not at its place for certain.
//! * No place that a record writes is filled again by other means before that record is gone: a commit that frees places begins with a
//!   checkpoint. So a replay may write all of a file's records, whichever of them are at their places already.
//! * The journal file is written full when it is made, because a flush of overwritten blocks costs two thirds of one that also has to
//!   record an allocation.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::error::{Fault, Inner, is_no_space};
use super::keys::ShareKeys;
use crate::backing::{Access, Dir, File, Lock, RenameMode, SetTime, Timestamp};
use crate::crypto::{JournalKey, Random, RecordCipher, hmac, labels};
use crate::format::journal::{
    ALIGN, JournalHead, JournalRecord, Patch, RECORD_HEAD, RECORD_MAX, RECORDS_AT, header_hash, open_record, record_head,
};

/// Names of journals begin with this.
pub(crate) const PREFIX: &[u8] = b"+journal-";
/// Bytes of a new journal.
const INITIAL: u64 = 4 << 20;
/// Bytes beyond which a journal is checkpointed rather than lengthened.
const LIMIT: u64 = 32 << 20;
/// Files with records, and so open handles, beyond which a journal is checkpointed.
const FILES_MAX: usize = 256;
/// A journal that a replay has read and not all of which fitted is kept under this name: it is never replayed again.
const REFUSED: &[u8] = b"+refused-";

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
    /// Records that could not be applied, by device and inode number.
    broken: HashMap<(u64, u64), JournalRecord<'static>>,
    /// Abandoned journals of which all that was acknowledged is in place, though perhaps not flushed yet.
    abandoned: Vec<Vec<u8>>,
    last_append: Instant,
    /// Kept from record to record: see [`JournalRecord::seal`].
    buffer: Vec<u8>,
    /// A checkpoint is under way or waits for its turn: nothing is appended meanwhile.
    draining: bool,
}

impl State {
    /// Lets go of the journal file after a failed flush or checkpoint; whoever waits for it fails.
    fn abandon(&mut self) {
        self.failures += 1;
        self.abandoned.extend(self.running.take().map(|running| running.name));
    }

    /// As [`State::abandon`], where a record could not be applied: the file stays for a replay.
    fn leave_for_replay(&mut self) {
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

/// What a replay made of the records of one inode.
enum Outcome {
    /// Brought up to date.
    Done,
    /// It was up to date, or has moved on.
    Nothing,
    /// It is not what they were made against.
    Refused,
}

/// Counts of [`Outcome`].
#[derive(Default)]
struct Redone {
    done: usize,
    refused: usize,
    /// The files, by device and inode number.
    files: HashMap<(u64, u64), Arc<dyn File>>,
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
            broken: HashMap::new(),
            abandoned: Vec::new(),
            last_append: Instant::now(),
            buffer: Vec::new(),
            draining: false,
        };
        Journal { root, keys, random, key, cipher, host, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn owner(key: &JournalKey, id: &[u8; 16]) -> [u8; 16] {
        hmac(key.expose(), &[labels::JOURNAL_OWNER.as_bytes(), id])[..16].try_into().expect("16 of 32 bytes")
    }

    /// Makes a journal file with room for a record of `needed` bytes at the least.
    fn begin(&self, needed: u64) -> Inner<Running> {
        match self.begin_with(INITIAL.max((RECORDS_AT + needed).next_multiple_of(RECORDS_AT))) {
            // A full store may still take the one record.
            Err(fault) if is_no_space(fault.errno()) && needed + RECORDS_AT < INITIAL => {
                self.begin_with((RECORDS_AT + needed).next_multiple_of(RECORDS_AT))
            }
            other => other,
        }
    }

    fn begin_with(&self, capacity: u64) -> Inner<Running> {
        let mut id = [0; 16];
        self.random.fill(&mut id);
        let hex: String = id[..8].iter().map(|b| format!("{b:02x}")).collect();
        let name = [PREFIX, self.host.as_bytes(), b"-", hex.as_bytes()].concat();
        let file = self.root.create_file(&name, 0o600)?;
        file.try_lock(Lock::Exclusive)?;
        let head = JournalHead { suite: self.keys.suite, share: self.keys.share, id, owner: Self::owner(&self.key, &id) };
        let made = (|| {
            file.write_at(&head.encode(), 0)?;
            write_zeros(&*file, RECORDS_AT, capacity)?;
            file.sync_all()?;
            self.root.sync()
        })();
        if let Err(e) = made {
            let _ = self.root.unlink(&name);
            return Err(e.into());
        }
        Ok(Running { file, name, head, capacity })
    }

    /// Appends a record for `file` and returns once it is durable. The caller applies it and then says so.
    pub fn append(&self, record: &JournalRecord<'_>, inode: (u64, u64), file: &Arc<dyn File>) -> Inner<Ticket> {
        let mut state = self.state.lock();
        while state.draining {
            self.changed.wait(&mut state);
        }
        let len = record.encoded_len() as u64;
        if len > RECORD_MAX as u64 {
            return Err(Fault::Os(libc::EFBIG)); // no replay would read it
        }
        let full = state.tail + len > LIMIT || state.unflushed.len() >= FILES_MAX;
        if state.running.is_some() && full || state.running.is_none() && !state.abandoned.is_empty() {
            self.checkpoint_locked(&mut state)?;
        }
        if state.running.as_ref().is_some_and(|r| state.tail + len > r.capacity) {
            self.lengthen(&mut state, len)?;
        }
        if state.running.is_none() {
            state.running = Some(self.begin(len)?);
            state.generation = 1;
            state.sequence = 0;
            state.tail = RECORDS_AT;
        }
        let (generation, sequence, tail) = (state.generation, state.sequence, state.tail);
        let running = state.running.as_ref().expect("begun above");
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

    /// The record of `ticket` has been applied in place.
    pub fn applied(&self, _ticket: Ticket) {
        self.state.lock().unapplied -= 1;
        self.changed.notify_all();
    }

    /// The record of `ticket` could not be applied, or in part only. What stands in the journal is acknowledged to nobody, but it is the
    /// better copy: it stays for the next replay, and for [`Journal::repair`].
    pub fn not_applied(&self, _ticket: Ticket, record: &JournalRecord<'_>, inode: (u64, u64)) {
        let mut state = self.state.lock();
        state.unapplied -= 1;
        state.leave_for_replay();
        let patches = record.patches.iter().map(|p| Patch { offset: p.offset, bytes: Cow::Owned(p.bytes.to_vec()) }).collect();
        state.broken.insert(inode, JournalRecord { path: record.path.clone(), patches, ..*record });
        self.changed.notify_all();
    }

    /// Brings a file that is being opened up to date where a record of it could not be applied earlier: nothing may be committed on top of
    /// a state that is neither the old nor the new one.
    pub fn repair(&self, inode: (u64, u64), file: &dyn File) -> Inner<()> {
        let Some(record) = self.state.lock().broken.remove(&inode) else { return Ok(()) };
        let repaired = self.redo(file, &[&record]);
        if repaired.is_err() {
            self.state.lock().broken.insert(inode, record);
        }
        repaired.map(|_| ())
    }

    /// The contents of the inode are thrown away, so it needs no repair.
    pub fn forget_repair(&self, inode: (u64, u64)) {
        self.state.lock().broken.remove(&inode);
    }

    /// Makes room for a record of `len` bytes behind the tail: by more space, or where the store has none, by a checkpoint.
    fn lengthen(&self, state: &mut parking_lot::MutexGuard<State>, len: u64) -> Inner<()> {
        let tail = state.tail;
        let running = state.running.as_mut().expect("the caller has one");
        let capacity = (tail + len).next_multiple_of(INITIAL).max((running.capacity * 2).min(LIMIT));
        match write_zeros(&*running.file, running.capacity, capacity) {
            Ok(()) => running.capacity = capacity,
            Err(e) if is_no_space(e.raw_os_error().unwrap_or(0)) => {
                let fits = RECORDS_AT + len <= running.capacity;
                self.checkpoint_locked(state)?;
                if !fits && let Some(running) = state.running.take() {
                    // Too small even when empty: one that fits takes its place.
                    self.root.unlink(&running.name)?;
                }
            }
            Err(e) => return Err(e.into()),
        }
        Ok(())
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
        let result = self.checkpoint_drained(state);
        if result.is_err() {
            // The records are the only durable copy now.
            state.leave_for_replay();
        }
        state.draining = false;
        self.changed.notify_all();
        result
    }

    fn checkpoint_drained(&self, state: &mut State) -> Inner<()> {
        // Times too: a record carries them, and is gone afterwards.
        state.unflushed.drain().map(|(_, file)| file).collect::<Vec<_>>().iter().try_for_each(|file| file.sync_all())?;
        if !state.abandoned.is_empty() {
            for name in std::mem::take(&mut state.abandoned) {
                match self.root.unlink(&name) {
                    Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                    other => other?,
                }
            }
            self.root.sync()?;
        }
        if state.sequence > 0
            && let Some(running) = &state.running
        {
            running.file.write_at(&[0; ALIGN], RECORDS_AT)?;
            running.file.sync_data()?;
        }
        state.generation += 1;
        state.sequence = 0;
        state.tail = RECORDS_AT;
        Ok(())
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
        let (mut count, mut files) = (0, HashMap::new());
        let mut left = self.leftover()?;
        let mut refused_before = usize::MAX;
        // One journal may go on where another one ends, and their names do not tell which is first: again, as long as that helps. What was
        // redone can be redone for ever, so only what is refused counts.
        loop {
            let (mut done, mut refused) = (0, Vec::new());
            for name in left {
                let redone = self.replay_one(&name)?;
                done += redone.done;
                files.extend(redone.files);
                if redone.refused > 0 {
                    refused.push((name, redone.refused));
                }
            }
            count += done;
            let refused_now = refused.iter().map(|(_, count)| count).sum();
            if refused_now == 0 || refused_now >= refused_before {
                for (name, count) in refused {
                    let shown = String::from_utf8_lossy(&name).into_owned();
                    tracing::warn!("journal {shown}: {count} files are not what it was made against, kept under another name");
                    let kept = [REFUSED, &name[PREFIX.len()..]].concat();
                    self.root.rename(&name, &*self.root, &kept, RenameMode::Replace)?;
                    self.root.sync()?;
                }
                // Only now is it known what stands beyond the end of every file.
                for file in files.values() {
                    if let Err(fault) = self.cut_residue(&**file) {
                        tracing::warn!(errno = fault.errno(), "bytes beyond the end of a file stay");
                    }
                }
                return Ok(count);
            }
            refused_before = refused_now;
            left = refused.into_iter().map(|(name, _)| name).collect();
        }
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

    /// Replays one journal, and removes it where nothing in it was refused and nothing failed.
    fn replay_one(&self, name: &[u8]) -> Inner<Redone> {
        let file = match self.root.open_file(name, Access::ReadWrite) {
            Ok(file) => file,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(Redone::default()),
            Err(e) => return Err(e.into()),
        };
        if !file.try_lock(Lock::Exclusive)? {
            return Ok(Redone::default());
        }
        let shown = String::from_utf8_lossy(name).into_owned();
        let mut head = vec![0; RECORDS_AT as usize];
        let read = file.read_at(&mut head, 0)?;
        let head = match JournalHead::decode(&head[..read]) {
            Ok(head) if head.share == self.keys.share && head.suite == self.keys.suite => head,
            // A journal that was being made when the machine stopped has no records yet.
            _ if head[..read].iter().all(|b| *b == 0) => {
                self.root.unlink(name)?;
                return Ok(Redone::default());
            }
            _ => {
                tracing::warn!("journal {shown} is not of this share, kept");
                return Ok(Redone::default());
            }
        };
        if head.owner != Self::owner(&self.key, &head.id) {
            return Ok(Redone::default());
        }
        let mut by_file: Vec<Vec<JournalRecord<'static>>> = Vec::new();
        for record in self.records(&*file, &head)? {
            match by_file.iter_mut().find(|rs| rs[0].file_id == record.file_id) {
                Some(records) => records.push(record),
                None => by_file.push(vec![record]),
            }
        }
        let (mut all, mut failed) = (Redone::default(), 0);
        for records in &by_file {
            match self.redo_file(records) {
                Ok(redone) => {
                    all.done += redone.done;
                    all.refused += redone.refused;
                    all.files.extend(redone.files);
                }
                Err(fault) => {
                    // One file that cannot be written keeps nobody from the others, and the journal for the next time.
                    tracing::error!("journal {shown}: errno {}", fault.errno());
                    failed += 1;
                }
            }
        }
        if failed > 0 {
            tracing::error!("journal {shown}: {failed} files could not be written, kept");
            return Ok(Redone { refused: 0, ..all });
        }
        if all.refused == 0 {
            self.root.unlink(name)?;
            self.root.sync()?;
        }
        Ok(all)
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

    /// Applies the records that name one file id. They may name several paths: hard links, or copies that a sync tool made.
    fn redo_file(&self, records: &[JournalRecord<'_>]) -> Inner<Redone> {
        let mut redone = Redone::default();
        type Named<'a> = ((u64, u64), Arc<dyn File>, Vec<&'a [u8]>);
        let mut inodes: Vec<Named> = Vec::new();
        for record in records {
            if inodes.iter().any(|(_, _, paths)| paths.contains(&&*record.path)) {
                continue;
            }
            match self.open_path(&record.path) {
                Ok(file) => {
                    let stat = file.stat()?;
                    let inode = (stat.dev, stat.ino);
                    match inodes.iter_mut().find(|(there, _, _)| *there == inode) {
                        Some((_, _, paths)) => paths.push(&record.path),
                        None => inodes.push((inode, file, vec![&record.path])),
                    }
                }
                Err(fault) if matches!(fault.errno(), libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EISDIR) => redone.refused += 1,
                Err(fault) => return Err(fault),
            }
        }
        for (inode, file, paths) in &inodes {
            let own: Vec<_> = records.iter().filter(|r| paths.contains(&&*r.path)).collect();
            match self.redo(&**file, &own)? {
                Outcome::Done => redone.done += 1,
                Outcome::Nothing => {}
                Outcome::Refused => redone.refused += 1,
            }
            redone.files.insert(*inode, file.clone());
        }
        Ok(redone)
    }

    fn open_path(&self, path: &[u8]) -> Inner<Arc<dyn File>> {
        let mut dir = self.root.clone();
        let mut components = path.split(|b| *b == b'/').peekable();
        while let Some(component) = components.next() {
            if components.peek().is_none() {
                return Ok(dir.open_file(component, Access::ReadWrite)?);
            }
            dir = dir.open_dir(component)?;
        }
        Err(Fault::Os(libc::ENOENT))
    }

    /// Applies the records of one inode in order: all of those that follow from each other, where one of them knows the file's header.
    fn redo(&self, file: &dyn File, records: &[&JournalRecord<'_>]) -> Inner<Outcome> {
        let layout = self.keys.layout;
        let mut bytes = vec![0; layout.cipher_len(crate::format::layout::SMALL_MAX) as usize];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        let hash = (read >= layout.header()).then(|| header_hash(&bytes[..layout.header()]));
        let follows = |i: usize| records[i].base == records[i - 1].result;
        let known = match records.iter().rposition(|r| hash.is_some_and(|hash| r.result == hash || r.base == hash)) {
            Some(known) => known,
            None if self.keys.is_torn_header(&bytes, &records[0].file_id) => records.len() - 1,
            None => return Ok(if self.is_newer(&bytes, records) { Outcome::Nothing } else { Outcome::Refused }),
        };
        let start = (1..=known).rev().find(|i| !follows(*i)).unwrap_or(0);
        let end = (known + 1..records.len()).find(|i| !follows(*i)).unwrap_or(records.len());
        let last = records[end - 1];
        let mut changed = file.stat()?.size < last.cipher_len;
        let mut present = Vec::new();
        // Only what stays in the end: a redo of what is done already must find nothing to do, or a replay that waits for that has no end.
        for (offset, bytes) in net_effect(records[start..end].iter().flat_map(|r| &r.patches), last.cipher_len) {
            present.resize(bytes.len(), 0);
            if file.read_at(&mut present, offset)? != present.len() || present != *bytes {
                file.write_at(bytes, offset)?;
                changed = true;
            }
        }
        if changed {
            // Lengthened only: bytes on which a later record relies, perhaps in another journal, were flushed before it.
            if file.stat()?.size < last.cipher_len {
                file.set_len(last.cipher_len)?;
            }
            let (secs, nanos) = last.mtime;
            file.set_times(SetTime::Omit, SetTime::At(Timestamp { secs, nanos }))?;
        }
        file.sync_all()?;
        Ok(match (end < records.len(), changed) {
            (true, _) => Outcome::Refused,
            (false, true) => Outcome::Done,
            (false, false) => Outcome::Nothing,
        })
    }

    /// Cuts what stands beyond the end that an authentic header gives.
    fn cut_residue(&self, file: &dyn File) -> Inner<()> {
        let layout = self.keys.layout;
        let mut bytes = vec![0; layout.cipher_len(crate::format::layout::SMALL_MAX) as usize];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        let header = self.keys.open_header(&bytes)?.header;
        let stat = file.stat()?;
        if stat.size > layout.cipher_len(header.size) {
            file.set_len(layout.cipher_len(header.size))?;
            file.set_times(SetTime::Omit, SetTime::At(stat.mtime))?;
        }
        Ok(())
    }

    /// Whether the file is authentic and in a state that came after all of the records.
    fn is_newer(&self, bytes: &[u8], records: &[&JournalRecord<'_>]) -> bool {
        let version = |bytes: &[u8]| {
            let header = self.keys.open_header(bytes).ok()?.header;
            (header.public.file_id == records[0].file_id).then_some(header.version)
        };
        let recorded = records.iter().filter_map(|r| version(&r.patches.iter().find(|p| p.offset == 0)?.bytes)).max();
        match (version(bytes), recorded) {
            (Some(there), Some(recorded)) => there > recorded,
            _ => false,
        }
    }
}

/// What `patches`, written one after the other to a file of `len` bytes in the end, leave of themselves: pieces that do not overlap, those
/// of the last patch last.
fn net_effect<'a>(patches: impl DoubleEndedIterator<Item = &'a Patch<'a>>, len: u64) -> Vec<(u64, &'a [u8])> {
    let mut covered: BTreeMap<u64, u64> = BTreeMap::new();
    let mut pieces = Vec::new();
    for patch in patches.rev() {
        let stop = (patch.offset + patch.bytes.len() as u64).min(len);
        let before = covered.range(..=patch.offset).next_back().map_or(0, |(_, to)| *to);
        let mut at = patch.offset.max(before);
        while at < stop {
            let next = covered.range(at..stop).next().map(|(from, to)| (*from, *to));
            let (gap, resume) = next.unwrap_or((stop, stop));
            if at < gap {
                covered.insert(at, gap);
                pieces.push((at, &patch.bytes[(at - patch.offset) as usize..(gap - patch.offset) as usize]));
            }
            at = resume;
        }
    }
    pieces.reverse();
    pieces
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_net_effect_is_that_of_all_patches_in_order(patches in proptest::collection::vec((0..40usize, 0..12usize), 0..12), len in 0..50usize) {
            let patch = |(i, (offset, n)): (usize, (usize, usize))| Patch { offset: offset as u64, bytes: vec![i as u8 + 1; n].into() };
            let patches: Vec<Patch> = patches.into_iter().enumerate().map(patch).collect();
            let write = |out: &mut [u8; 64], offset: u64, bytes: &[u8]| out[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            let (mut all, mut net) = ([0; 64], [0; 64]);
            patches.iter().for_each(|p| write(&mut all, p.offset, &p.bytes));
            all[len..].fill(0);
            let mut written = 0;
            for (offset, bytes) in net_effect(patches.iter(), len as u64) {
                write(&mut net, offset, bytes);
                written += bytes.len();
            }
            prop_assert_eq!(all, net);
            prop_assert_eq!(written, net.iter().filter(|b| **b != 0).count());
        }
    }
}
