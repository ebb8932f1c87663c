//! Files that were made and that no flush has reached yet: enough of each to make it empty again
//! where a power cut has left a name without bytes.
//!
//! A store makes names durable before it writes bytes, so a file that nobody synced can be there
//! with a length of 0. It was empty when it was made, and a plain filesystem would show it so. Here
//! a length of 0 tells nothing: whoever stores the vault could empty any file by cutting it off.
//! What tells is a record of the file's making, sealed as all records are, in a journal of its own.
//!
//! Rules that hold here
//! * Such a record is one whose base is the hash of no bytes. It applies to a file of no bytes and
//!   to no other, not even to a torn one: that may have been committed since.
//! * Nobody waits for it: it is written and flushed in the background, for all files since the last
//!   time together.
//! * A file that was synced has its record voided by a later one, so that it is not taken for new
//!   when somebody cuts it off.
//! * Records go when the whole store was flushed after they were noted: half a minute later, or
//!   when there are many.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::made::{Files, Log, Made};
use super::{CREATED, Journal, RESTS, rested, write_zeros};
use crate::format::journal::{ALIGN, JournalHead, JournalRecord, Patch, RECORDS_AT, header_hash};
use crate::store::{Access, Lock, SetTime, Timestamp};
use crate::vault::error::Inner;

/// Files that are remembered at the most: of more, the first are left to the store.
const FILES_MAX: usize = 8192;
/// After this long, or with half as many as there may be, the store is flushed as a whole.
const FLUSH_AFTER: Duration = Duration::from_secs(30);
/// Bytes of a new journal, and beyond which it is begun anew.
const INITIAL: u64 = 256 << 10;
const LIMIT: u64 = 24 << 20;
/// How long nothing is tried after a failure.
const PAUSE: Duration = Duration::from_secs(60);

impl Journal {
    /// A file was made, and its first header written: `header`, of an empty file.
    pub fn created(&self, path: Vec<u8>, file_id: [u8; 32], header: &[u8], mtime: Timestamp) {
        self.created.counted(|files| {
            if files.made.len() >= FILES_MAX {
                return;
            }
            files.noted += 1;
            let (header, number) = (header.into(), files.noted);
            files.insert(Made {
                path,
                file_id,
                header,
                mtime,
                number,
                since: Instant::now(),
                written: false,
            });
        });
    }

    /// A file was flushed, or its contents were thrown away: what is noted of its making does not
    /// hold any more.
    pub fn created_is_durable(&self, file_id: &[u8; 32]) {
        if !self.created.is_idle() {
            self.created.counted(|files| drop(files.remove(file_id)));
        }
    }

    /// Whether anything is noted of files that were made: else there are no paths to be followed.
    pub fn notes_created(&self) -> bool {
        !self.created.is_idle()
    }

    /// A name is about to be given to a file. A record of another one that had it must not hold any
    /// more: the replay would take this for that.
    pub fn before_name(&self, path: impl FnOnce() -> Option<Vec<u8>>) {
        if !self.created.is_idle()
            && !self.created.files.lock().stale.is_empty()
            && path().is_some_and(|path| self.created.files.lock().stale.contains(&path))
        {
            self.write_created();
        }
    }

    /// The name of a file is gone.
    pub fn created_is_gone(&self, path: &[u8]) {
        self.created.counted(|files| {
            if let Some(file_id) = files.by_path.get(path).copied() {
                files.remove(&file_id);
            }
        });
    }

    /// What stood at the first path of each pair, a file or a directory, stands at the second one.
    pub fn created_has_moved(&self, moves: &[(Vec<u8>, Vec<u8>)]) {
        self.created.counted(|files| {
            let mut moved = Vec::new();
            for (from, to) in moves {
                let inside = [from, &b"/"[..]].concat();
                let of_file = files.by_path.get(from).copied();
                let found: Vec<[u8; 32]> = match of_file {
                    Some(file_id) => vec![file_id],
                    None => files
                        .by_path
                        .iter()
                        .filter(|(path, _)| path.starts_with(&inside))
                        .map(|(_, id)| *id)
                        .collect(),
                };
                for made in found.iter().filter_map(|id| files.remove(id)).collect::<Vec<_>>() {
                    let path = [to, &made.path[from.len()..]].concat();
                    moved.push(Made { path, written: false, ..made });
                }
            }
            moved.into_iter().for_each(|made| files.insert(made));
        });
    }

    /// Writes and flushes what was noted since the last time. Sees to it that the store is flushed
    /// as a whole when it is time.
    pub fn write_created(&self) {
        if self.overlaid.is_some() {
            return;
        }
        if self.created.is_idle() {
            let mut log = self.created.log.lock();
            if log.sequence > 0 {
                // All of it is durable.
                let emptied = self.begin_anew(&mut log);
                self.keep_going(&mut log, emptied);
            }
            return;
        }
        let mut log = self.created.log.lock();
        if log.failed.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        let written = self.write_noted(&mut log);
        self.keep_going(&mut log, written);
        drop(log);
        self.flush_later();
    }

    fn keep_going(&self, log: &mut Log, outcome: Inner<()>) {
        let Err(fault) = outcome else { return };
        tracing::warn!(errno = fault.errno(), "files that were just made cannot be noted");
        if let Some(running) = log.running.take() {
            let _ = self.root.unlink(&running.name);
        }
        *log = Log { failed: Some(Instant::now()), ..Log::default() };
        self.created.counted(|files| {
            files.void.clear();
            files.stale.clear();
            files.made.values_mut().for_each(|made| made.written = false);
        });
    }

    fn write_noted(&self, log: &mut Log) -> Inner<()> {
        let gone =
            log.running.as_ref().is_some_and(|r| r.file.stat().is_ok_and(|stat| stat.nlink == 0));
        let full = self.created.stale.swap(false, Ordering::AcqRel) || log.tail > LIMIT;
        if gone || full {
            // All that still holds is written again.
            let mut files = self.created.files.lock();
            files.void.clear();
            files.made.values_mut().for_each(|made| made.written = false);
        }
        if gone {
            log.running = None;
        } else if full {
            self.begin_anew(log)?;
            self.created.files.lock().stale.clear();
        }
        let (records, numbers) = self.created.counted(|files| {
            let mut records = files.void.clone();
            let waiting: Vec<&Made> = files.made.values().filter(|made| !made.written).collect();
            records.extend(waiting.iter().map(|made| made.record()));
            (records, waiting.iter().map(|made| (made.file_id, made.number)).collect::<Vec<_>>())
        });
        if records.is_empty() {
            return Ok(());
        }
        let needed: u64 = records.iter().map(|r| r.encoded_len() as u64).sum();
        if log.running.is_none() {
            let capacity = INITIAL.max((RECORDS_AT + needed).next_multiple_of(RECORDS_AT));
            log.running = Some(self.begin_with(CREATED, capacity)?);
            (log.generation, log.sequence, log.tail) = (1, 0, RECORDS_AT);
        }
        let running = log.running.as_mut().expect("begun above");
        if log.tail + needed > running.capacity {
            let capacity = (log.tail + needed).max(running.capacity * 2);
            write_zeros(&*running.file, running.capacity, capacity)?;
            running.capacity = capacity;
        }
        let (mut all, mut sealed) = (Vec::with_capacity(needed as usize), Vec::new());
        for record in &records {
            record.seal(
                &mut sealed,
                &running.head,
                &self.cipher,
                log.generation,
                log.sequence,
                &*self.random,
            );
            all.extend_from_slice(&sealed);
            log.sequence += 1;
        }
        running.file.write_at(&all, log.tail)?;
        running.file.sync_data()?;
        log.tail += all.len() as u64;
        self.created.counted(|files| {
            for void in files.void.drain(..records.len() - numbers.len()) {
                files.stale.remove(&void.path);
            }
            for void in &files.void {
                files.stale.insert(void.path.clone());
            }
            for ((file_id, number), record) in
                numbers.iter().zip(&records[records.len() - numbers.len()..])
            {
                match files
                    .made
                    .get_mut(file_id)
                    .filter(|made| made.number == *number && made.path == record.path)
                {
                    Some(made) => made.written = true,
                    // Gone, synced or renamed while it was written.
                    None => {
                        let void = JournalRecord {
                            base: record.result,
                            cipher_len: 0,
                            patches: Vec::new(),
                            ..record.clone()
                        };
                        files.stale.insert(void.path.clone());
                        files.void.push(void);
                    }
                }
            }
        });
        Ok(())
    }

    /// Begins a new generation: none of the records holds any more, or all that hold are written
    /// again.
    fn begin_anew(&self, log: &mut Log) -> Inner<()> {
        if let Some(running) = &mut log.running {
            running.file.write_at(&[0; ALIGN], RECORDS_AT)?;
            running.file.sync_data()?;
            if running.capacity > INITIAL {
                running.file.set_len(INITIAL)?;
                running.capacity = INITIAL;
            }
        }
        (log.generation, log.sequence, log.tail) = (log.generation + 1, 0, RECORDS_AT);
        Ok(())
    }

    /// Flushes the store in a thread of its own where that is due: it may take long, and nobody
    /// waits for it.
    fn flush_later(&self) {
        let (due, until) = {
            let files = self.created.files.lock();
            let oldest = files.made.values().map(|made| made.since).min();
            let due = files.made.len() >= FILES_MAX / 2
                || oldest.is_some_and(|since| since.elapsed() >= FLUSH_AFTER);
            (due, files.noted)
        };
        if !due || self.created.flushing.swap(true, Ordering::AcqRel) {
            return;
        }
        let (root, created) = (self.root.clone(), self.created.clone());
        let flush = move || {
            match root.sync_store() {
                Ok(()) => {
                    created.counted(|files| files.drop_until(until));
                    created.stale.store(true, Ordering::Release);
                }
                Err(e) => tracing::warn!("the store cannot be flushed: {e}"),
            }
            created.flushing.store(false, Ordering::Release);
        };
        if std::thread::Builder::new().name("kithfs-flush".into()).spawn(flush).is_err() {
            self.created.flushing.store(false, Ordering::Release);
        }
    }

    /// Makes what was made durable, and removes the journal of it. Where that fails the journal
    /// stays for the next mount.
    pub(super) fn close_created(&self) -> Inner<()> {
        if !self.created.is_idle() {
            self.root.sync_store()?;
            self.created.counted(|files| *files = Files::default());
        }
        if let Some(running) = self.created.log.lock().running.take() {
            self.root.unlink(&running.name)?;
        }
        Ok(())
    }

    /// Replays the journals of files that were made: gives the number of those that are empty files
    /// again.
    pub(super) fn replay_created(&self) -> Inner<usize> {
        let mut count = 0;
        for name in self.leftover_of(CREATED)? {
            let access = if self.overlaid.is_some() { Access::Read } else { Access::ReadWrite };
            let Ok(file) = self.root.open_file(&name, access) else { continue };
            let mut head = vec![0; RECORDS_AT as usize];
            let read = file.read_at(&mut head, 0)?;
            let unfinished = head[..read].iter().all(|b| *b == 0);
            let own = JournalHead::decode(&head[..read]).ok().filter(|head| {
                head.share == self.keys.share
                    && head.suite == self.keys.suite
                    && head.owner == Self::owner(&self.key, &head.id)
            });
            if !unfinished && own.is_none() || self.may_be_used_elsewhere(&name, &*file)? {
                continue;
            }
            // Where several have the vault open, one of which may be the same person's, one that is
            // locked is in use, or being read.
            let how = if self.overlaid.is_some() { Lock::Shared } else { Lock::Exclusive };
            if self.shared && (!file.try_lock(how)? || unfinished && rested(&*file)? < RESTS)
                || !self.take(&*file)?
            {
                continue;
            }
            let done = own.map_or(Ok(0), |head| self.make_again(&self.records(&*file, &head)?));
            match done {
                Ok(done) => count += done,
                Err(fault) => {
                    tracing::error!(
                        errno = fault.errno(),
                        "files that were made before a crash cannot be made again; tried at the next mount"
                    );
                    continue;
                }
            }
            if self.overlaid.is_none() {
                self.root.unlink(&name)?;
                self.root.sync()?;
            }
        }
        Ok(count)
    }

    /// Writes the first header of files that have no bytes.
    fn make_again(&self, records: &[JournalRecord<'_>]) -> Inner<usize> {
        let nothing = header_hash(b"");
        let mut count = 0;
        // The last word on a path and on a file counts.
        let (mut paths, mut ids) = (HashSet::new(), HashSet::new());
        for record in records.iter().rev() {
            if !(paths.insert(&record.path) & ids.insert(record.file_id)) || record.base != nothing
            {
                continue;
            }
            let [Patch { offset: 0, bytes }] = &record.patches[..] else { continue };
            let file = match self.open_path(&record.path) {
                Ok(file) => file,
                Err(fault)
                    if matches!(
                        fault.errno(),
                        libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EISDIR
                    ) =>
                {
                    continue;
                }
                Err(fault) => return Err(fault),
            };
            if file.stat()?.size > 0 {
                continue;
            }
            file.write_at(bytes, 0)?;
            file.set_times(
                SetTime::Omit,
                SetTime::At(Timestamp { secs: record.mtime.0, nanos: record.mtime.1 }),
            )?;
            file.sync_all()?;
            count += 1;
        }
        Ok(count)
    }
}
