//! Records of newly created files that no flush has reached yet. A record has enough to make the
//! file empty again if a power cut leaves a directory entry without data.
//!
//! A store makes directory entries durable before file data, so a file that was never synced can
//! appear with a length of 0. The file was empty when it was created, and a plain filesystem would
//! show it as empty. Here a length of 0 proves nothing, because the storage host could empty any
//! file by truncating it. The proof is a record of the file's creation. It is sealed like all
//! records and is stored in a journal of its own.
//!
//! Rules that hold here
//! * The base of such a record is the hash of no bytes. It applies only to a file of no bytes, and
//!   never to a torn file, which may have been committed since.
//! * No caller waits for such a record. The background thread writes and flushes the records of all
//!   files created since the last run.
//! * When a file is synced, a later record voids its creation record, so that a truncated file is
//!   not mistaken for a new one.
//! * Records are dropped once the whole store was flushed after they were noted: half a minute
//!   later, or earlier if there are many.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::made::{Files, Log, Made, voided};
use super::replay::leads_to_no_file;
use super::state::Running;
use super::turn::Apply;
use super::{CREATED, Journal, write_zeros};
use crate::format::journal::{ALIGN, JournalHead, JournalRecord, Patch, RECORDS_AT, header_hash};
use crate::store::{Access, SetTime, Timestamp};
use crate::vault::error::Inner;

/// Maximum number of files that are tracked: beyond this, new files are left to the store.
const FILES_MAX: usize = 8192;
/// The whole store is flushed after this time, or when half of [`FILES_MAX`] is reached.
const FLUSH_AFTER: Duration = Duration::from_secs(30);
/// Size in bytes of a new journal, and the size beyond which it is begun anew.
const INITIAL: u64 = 256 << 10;
const LIMIT: u64 = 24 << 20;
/// How long writes are paused after a failure.
const PAUSE: Duration = Duration::from_secs(60);

impl Journal {
    /// Notes that a file was created with `header`, the first header of an empty file.
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

    /// Drops the creation record of a file that is durable now.
    pub fn created_is_durable(&self, file_id: &[u8; 32]) {
        if !self.created.is_idle() {
            self.created.counted(|files| drop(files.remove(file_id)));
        }
    }

    /// Returns whether any created file is noted; if not, paths need not be tracked.
    pub fn notes_created(&self) -> bool {
        !self.created.is_idle()
    }

    /// Called before a file gets a name. A record of another file that had the name must be void
    /// before: the replay would take the new file for the old one.
    pub fn before_name(&self, path: impl FnOnce() -> Option<Vec<u8>>) {
        if !self.created.is_idle()
            && !self.created.files.lock().voided_paths.is_empty()
            && path().is_some_and(|path| self.created.files.lock().voided_paths.contains(&path))
        {
            self.write_created();
        }
    }

    /// Notes that a file's name was removed.
    pub fn created_is_gone(&self, path: &[u8]) {
        self.created.counted(|files| {
            if let Some(file_id) = files.by_path.get(path).copied() {
                files.remove(&file_id);
            }
        });
    }

    /// Notes that the file or directory at the first path of each pair is now at the second one.
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

    /// Writes and flushes the records noted since the last call. Starts a flush of the whole store
    /// when it is due.
    pub fn write_created(&self) {
        if self.overlaid.is_some() {
            return;
        }
        if self.created.is_idle() {
            let mut log = self.created.log.lock();
            if log.running.as_ref().is_some_and(|r| r.sequence > 0) {
                // All of these files are durable.
                let emptied = self.begin_anew(&mut log);
                self.pause_after_failure(&mut log, emptied);
            }
            return;
        }
        let mut log = self.created.log.lock();
        if log.failed.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        let written = self.write_noted(&mut log);
        self.pause_after_failure(&mut log, written);
        drop(log);
        self.flush_later();
    }

    fn pause_after_failure(&self, log: &mut Log, outcome: Inner<()>) {
        let Err(fault) = outcome else { return };
        tracing::warn!(errno = fault.errno(), "cannot record newly created files");
        if let Some(running) = log.running.take() {
            let _ = running.dir.unlink(&running.name);
        }
        *log = Log { failed: Some(Instant::now()), ..Log::default() };
        self.created.counted(|files| {
            files.void.clear();
            files.voided_paths.clear();
            files.made.values_mut().for_each(|made| made.written = false);
        });
    }

    fn write_noted(&self, log: &mut Log) -> Inner<()> {
        let gone = log.running.as_ref().is_some_and(Running::is_removed);
        let anew = self.created.superfluous.swap(false, Ordering::AcqRel)
            || log.running.as_ref().is_some_and(|r| r.tail > LIMIT);
        if gone || anew {
            // All records that are still valid are written again.
            let mut files = self.created.files.lock();
            files.void.clear();
            files.made.values_mut().for_each(|made| made.written = false);
        }
        if gone {
            log.running = None;
        } else if anew {
            self.begin_anew(log)?;
            self.created.files.lock().voided_paths.clear();
        }
        let files = self.created.files.lock();
        let mut records = files.void.clone();
        let waiting: Vec<&Made> = files.made.values().filter(|made| !made.written).collect();
        records.extend(waiting.iter().map(|made| made.record()));
        let numbers: Vec<_> = waiting.iter().map(|made| (made.file_id, made.number)).collect();
        drop(files);
        if records.is_empty() {
            return Ok(());
        }
        let needed: u64 = records.iter().map(|r| r.encoded_len() as u64).sum();
        if log.running.is_none() {
            let capacity = INITIAL.max((RECORDS_AT + needed).next_multiple_of(RECORDS_AT));
            log.running = Some(self.begin_with(CREATED, capacity)?);
        }
        let running = log.running.as_mut().expect("begun above");
        if running.tail + needed > running.capacity {
            let capacity = (running.tail + needed).max(running.capacity * 2);
            write_zeros(&*running.file, running.capacity, capacity)?;
            running.capacity = capacity;
        }
        let (mut all, mut sealed) = (Vec::with_capacity(needed as usize), Vec::new());
        for record in &records {
            let (generation, sequence) = (running.generation, running.sequence);
            let (head, random) = (&running.head, &*self.random);
            record.seal(&mut sealed, head, &self.cipher, generation, sequence, random);
            all.extend_from_slice(&sealed);
            running.sequence += 1;
        }
        running.file.write_at(&all, running.tail)?;
        running.file.sync_data()?;
        running.tail += all.len() as u64;
        self.created.counted(|files| {
            for void in files.void.drain(..records.len() - numbers.len()) {
                files.voided_paths.remove(&void.path);
            }
            for void in &files.void {
                files.voided_paths.insert(void.path.clone());
            }
            let written = &records[records.len() - numbers.len()..];
            for ((file_id, number), record) in numbers.iter().zip(written) {
                let made = files.made.get_mut(file_id);
                match made.filter(|made| made.number == *number && made.path == record.path) {
                    Some(made) => made.written = true,
                    // The file was removed, synced or renamed while its record was written.
                    None => {
                        let void = voided(record.clone());
                        files.voided_paths.insert(void.path.clone());
                        files.void.push(void);
                    }
                }
            }
        });
        Ok(())
    }

    /// Begins a new generation: no record is valid any more, or all valid records are written
    /// again.
    fn begin_anew(&self, log: &mut Log) -> Inner<()> {
        if let Some(running) = &mut log.running {
            running.file.write_at(&[0; ALIGN], RECORDS_AT)?;
            running.file.sync_data()?;
            if running.capacity > INITIAL {
                running.file.set_len(INITIAL)?;
                running.capacity = INITIAL;
            }
            running.begin_anew();
        }
        Ok(())
    }

    /// Flushes the store in a separate thread when it is due: a flush may take long, and no caller
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
                    created.superfluous.store(true, Ordering::Release);
                }
                Err(e) => tracing::warn!("the store cannot be flushed: {e}"),
            }
            created.flushing.store(false, Ordering::Release);
        };
        if std::thread::Builder::new().name("kithfs-flush".into()).spawn(flush).is_err() {
            self.created.flushing.store(false, Ordering::Release);
        }
    }

    /// Makes all created files durable, and removes their journal. If that fails, the journal stays
    /// for the next mount.
    pub(super) fn close_created(&self) -> Inner<()> {
        if !self.created.is_idle() {
            self.root.sync_store()?;
            self.created.counted(|files| *files = Files::default());
        }
        if let Some(running) = self.created.log.lock().running.take() {
            running.dir.unlink(&running.name)?;
        }
        Ok(())
    }

    /// Replays the journals of created files. Returns the number of files that were made empty
    /// files again.
    pub(super) fn replay_created(&self) -> Inner<usize> {
        let mut count = 0;
        for found in self.leftover_of(CREATED) {
            let found = found?;
            let access = if self.overlaid.is_some() { Access::Read } else { Access::ReadWrite };
            let Ok(file) = found.dir.open_file(&found.name, access) else { continue };
            let mut head = vec![0; RECORDS_AT as usize];
            let read = file.read_at(&mut head, 0)?;
            let unfinished = head[..read].iter().all(|b| *b == 0);
            let own = JournalHead::decode(&head[..read]).ok().filter(|head| {
                head.share == self.keys.share
                    && head.suite == self.keys.suite
                    && head.owner == Self::owner(&self.key, &head.id)
            });
            if !unfinished && own.is_none() || Self::may_be_used_elsewhere(&found, &*file)? {
                continue;
            }
            if unfinished && self.writers.may_create_journal(&*file)? || !self.claim(&*file)? {
                continue;
            }
            let done = own.map_or(Ok(0), |head| self.make_again(&self.records(&*file, &head)?));
            match done {
                Ok(done) => count += done,
                Err(fault) => {
                    tracing::error!(
                        errno = fault.errno(),
                        "cannot restore empty files that were created before a crash; retried at the next mount"
                    );
                    continue;
                }
            }
            if self.overlaid.is_none() {
                found.dir.unlink(&found.name)?;
                found.dir.sync()?;
            }
        }
        Ok(count)
    }

    /// Writes the first header of files that have no bytes.
    fn make_again(&self, records: &[JournalRecord<'_>]) -> Inner<usize> {
        let nothing = header_hash(b"");
        let mut count = 0;
        // The last record of a path and of a file counts.
        let (mut paths, mut ids) = (HashSet::new(), HashSet::new());
        for record in records.iter().rev() {
            if !(paths.insert(&record.path) & ids.insert(record.file_id)) || record.base != nothing
            {
                continue;
            }
            let [Patch { offset: 0, bytes }] = &record.patches[..] else { continue };
            let file = match self.open_path(&record.path) {
                Ok(file) => file,
                Err(fault) if leads_to_no_file(&fault) => continue,
                Err(fault) => return Err(fault),
            };
            let time = Timestamp { secs: record.mtime.0, nanos: record.mtime.1 };
            count += self.in_turn(&*file, Apply::Replay, || {
                if file.stat()?.size > 0 {
                    return Ok(0);
                }
                file.write_at(bytes, 0)?;
                file.set_times(SetTime::Omit, SetTime::At(time))?;
                file.sync_all()?;
                Ok(1)
            })?;
        }
        Ok(count)
    }
}
