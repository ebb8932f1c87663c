//! The checkpoint: flushes the files that have records, rewrites or carries over the records of
//! broken files, and leaves the journal empty.
//!
//! Rules that hold here
//! * No space is freed before every file with a record was flushed. No journal is removed before
//!   the records it has acknowledged are durable elsewhere.
//! * A checkpoint wipes the first record. So records that a replay finds may not be in place yet.

use std::time::Duration;

use parking_lot::MutexGuard;

use super::redo::{Fit, Outcome};
use super::replay::leads_to_no_file;
use super::state::{Inode, Origin, Running, State};
use super::turn::Apply;
use super::{Journal, PREFIX};
use crate::format::journal::{ALIGN, JournalRecord, RECORDS_AT};
use crate::store::RenameMode;
use crate::vault::error::{Fault, Inner};
use crate::vault::share::synced::REFUSED;

impl Journal {
    /// Flushes every file that has records, and frees the space. If a flush fails, nothing is freed
    /// and the next checkpoint retries.
    pub(super) fn checkpoint_locked(&self, state: &mut MutexGuard<State>) -> Inner<()> {
        while state.draining {
            self.changed.wait(state);
        }
        state.draining = true;
        while state.unapplied > 0 || state.syncing {
            self.changed.wait(state);
        }
        let result = self.checkpoint_drained(state);
        state.draining = false;
        self.changed.notify_all();
        result
    }

    fn checkpoint_drained(&self, state: &mut State) -> Inner<()> {
        state.unclean = true;
        if let Some(removed) = state.running.take_if(|r| r.is_removed()) {
            let acknowledged = removed.sequence;
            state.old.push(removed.retire(acknowledged));
        }
        for (inode, tracked) in std::mem::take(&mut state.unflushed) {
            // Flushes metadata too: a record carries the file's times, and is gone afterwards.
            let flushed = self.lost.flush(inode, &tracked.file, || tracked.file.sync_all());
            self.lost.wait_for_flushes(inode);
            if let Err(e) = &flushed {
                tracing::error!("a file of the journal could not be flushed: {e}");
            }
            if flushed.is_err() || self.has_lost(inode) {
                state.add_broken(inode, tracked);
            }
        }
        self.load_broken(state)?;
        self.mend(state);
        if !state.broken.is_empty() && Self::give_unused(state) {
            self.mend(state);
        }
        if !state.broken.is_empty() {
            return self.carry(state);
        }
        self.remove_old(state)?;
        if let Some(running) = &state.running
            && (running.sequence > 0 || !state.doubtful.is_empty())
            && let Err(e) = running
                .file
                .write_at(&[0; ALIGN], RECORDS_AT)
                .and_then(|()| running.file.sync_data())
        {
            // The first record may or may not be on the disk, and without it no replay reads the
            // records that would follow.
            state.old.extend(state.running.take().map(|r| r.retire(0)));
            return Err(e.into());
        }
        state.doubtful.clear();
        state.unclean = false;
        if let Some(running) = &mut state.running {
            running.begin_anew();
        }
        Ok(())
    }

    /// Loads the records of broken files from the journals that contain them.
    fn load_broken(&self, state: &mut State) -> Inner<()> {
        if state.broken.iter().all(|b| b.records.is_some()) {
            return Ok(());
        }
        let running = state.running.iter().map(|r| (&r.file, &r.head, r.sequence));
        let old = state.old.iter().map(|o| (&o.file, &o.head, o.acknowledged));
        let mut all = Vec::new();
        for (file, head, acknowledged) in old.chain(running) {
            let mut records = self.records(&**file, head)?;
            if (records.len() as u64) < acknowledged {
                return Err(unreadable());
            }
            records.truncate(acknowledged as usize);
            all.extend(records);
        }
        // A conflict copy, and the version that arrived at its path, have one id. So the records are those
        // that lead to the last one.
        for broken in state.broken.iter_mut().filter(|b| b.records.is_none()) {
            let mut records: Vec<JournalRecord<'static>> = Vec::new();
            let mut header = broken.last;
            for record in all.iter().rev() {
                let is_of_file = records.last().is_none_or(|r| r.born == record.born);
                if Some(record.result) == header && is_of_file {
                    header = Some(record.base);
                    records.push(record.clone());
                }
            }
            if records.is_empty() && broken.last.is_some() {
                return Err(unreadable());
            }
            records.reverse();
            broken.records = Some(records);
        }
        Ok(())
    }

    /// Writes the records of broken files again, and drops the files that are complete and flushed.
    /// Records that no longer fit an open file are put aside, as a replay does: another program has
    /// changed it, and the journal cannot know which version is wanted. Records that a replay has left
    /// are written only to the file that it has identified, or else wait for the next one.
    fn mend(&self, state: &mut State) {
        let mut kept = Vec::new();
        for mut broken in std::mem::take(&mut state.broken) {
            if broken.doomed || matches!(broken.origin, Origin::Closed(None)) {
                kept.push(broken);
                continue;
            }
            let records: Vec<_> = broken.records.iter().flatten().collect();
            if records.is_empty() {
                continue;
            }
            let redone = match &broken.origin {
                Origin::Open(_, file) => self.redo(&**file, &records, Apply::Again),
                Origin::Closed(inode) => self.redo_identified(*inode, &records),
            };
            let mended = match (redone, &mut broken.origin) {
                (Ok(Outcome::Refused | Outcome::Newer), Origin::Open(..)) => {
                    self.put_aside(&records)
                }
                (Ok(Outcome::Refused | Outcome::Newer), Origin::Closed(inode)) => {
                    *inode = None;
                    kept.push(broken);
                    continue;
                }
                (Ok(Outcome::Done | Outcome::Nothing), _) => {
                    tracing::info!("a file that could not be written earlier is up to date");
                    Ok(())
                }
                (Err(fault), _) => Err(fault),
            };
            if let Err(fault) = mended {
                tracing::error!(
                    errno = fault.errno(),
                    "a file that has records in the journal cannot be written"
                );
                kept.push(broken);
            }
        }
        state.broken = kept;
    }

    /// Applies records to the file that a replay has identified, if one of their paths leads to it.
    fn redo_identified(
        &self,
        inode: Option<Inode>,
        records: &[&JournalRecord<'_>],
    ) -> Inner<Outcome> {
        let mut paths: Vec<_> = records.iter().map(|record| &*record.path).collect();
        paths.dedup();
        for path in paths {
            match self.open_path(path) {
                Ok(file) => {
                    let stat = file.stat_but_times()?;
                    // The store may have given its number to another one since.
                    if Some((stat.dev, stat.ino)) == inode && self.fit(&*file, records)? == Fit::Its
                    {
                        return self.redo(&*file, records, Apply::Again);
                    }
                }
                Err(fault) if leads_to_no_file(&fault) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(Outcome::Refused)
    }

    /// Writes a journal of `records` that no replay reads; `fsck` reports it.
    fn put_aside(&self, records: &[&JournalRecord<'_>]) -> Inner<()> {
        tracing::warn!(
            "a file does not match the journal records made for it; the records are kept under another name"
        );
        let aside = self.begin_from(records)?;
        let name = [REFUSED, &aside.name[PREFIX.len()..]].concat();
        let dir = &self.home.dir;
        let renamed = dir.rename(&aside.name, &**dir, &name, RenameMode::Replace);
        if renamed.is_err() {
            let _ = dir.unlink(&aside.name);
        }
        renamed?;
        Ok(dir.sync()?)
    }

    /// Creates a journal that contains `records`, durably.
    fn begin_from(&self, records: &[&JournalRecord<'_>]) -> Inner<Running> {
        let mut next = self.begin(records.iter().map(|r| r.encoded_len() as u64).sum())?;
        let mut buffer = Vec::new();
        let written = (|| {
            for record in records {
                let (generation, sequence) = (next.generation, next.sequence);
                record.seal(
                    &mut buffer,
                    &next.head,
                    &self.cipher,
                    generation,
                    sequence,
                    &*self.random,
                );
                next.file.write_at(&buffer, next.tail)?;
                next.sequence += 1;
                next.tail += buffer.len() as u64;
            }
            (next.carried, next.carried_end) = (next.sequence, next.tail);
            next.file.sync_data()
        })();
        if let Err(e) = written {
            let _ = self.home.dir.unlink(&next.name);
            return Err(e.into());
        }
        Ok(next)
    }

    /// Begins a journal that contains the records of broken files, and only then removes the
    /// journals that contained them.
    fn carry(&self, state: &mut State) -> Inner<()> {
        let records: Vec<&JournalRecord<'static>> =
            state.broken.iter().flat_map(|b| b.records.iter().flatten()).collect();
        // Those of files that are mended since must go: their places may be filled without a record.
        let is_carried = |r: &Running| r.sequence == r.carried && r.carried == records.len() as u64;
        if state.old.is_empty()
            && state.running.as_ref().is_some_and(is_carried)
            && state.doubtful.is_empty()
        {
            state.unclean = false;
            return Ok(());
        }
        let next = self.begin_from(&records)?;
        let before = state.running.replace(next);
        state.old.extend(before.map(|r| r.retire(0)));
        state.old.iter_mut().for_each(|old| old.acknowledged = 0);
        self.remove_old(state)?;
        state.doubtful.clear();
        state.unclean = false;
        Ok(())
    }

    fn remove_old(&self, state: &mut State) -> Inner<()> {
        if state.old.is_empty() {
            return Ok(());
        }
        for old in &state.old {
            match old.dir.unlink(&old.name) {
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                other => other?,
            }
            old.dir.sync()?;
        }
        state.old.clear();
        Ok(())
    }

    /// Checkpoints if a record, even a refused one, names the inode, or any inode if `None`; called
    /// before the inode's path changes. Fails with `EIO` if its records could not be applied. The next
    /// replay searches for a file whose inode is not known.
    pub fn checkpoint_for(&self, inode: Option<Inode>) -> Inner<()> {
        let mut state = self.state.lock();
        let is_broken = |state: &State| match inode {
            Some(inode) => state.broken.iter().any(|b| b.inode() == Some(inode) && !b.doomed),
            None => state.broken.iter().any(|b| b.inode().is_some()),
        };
        let concerned = match inode {
            Some(inode) => state.unflushed.contains_key(&inode) || state.doubtful.contains(&inode),
            None => !state.unflushed.is_empty() || !state.doubtful.is_empty(),
        };
        if concerned || state.unclean || is_broken(&state) {
            self.checkpoint_locked(&mut state)?;
        }
        if is_broken(&state) { Err(Fault::Os(libc::EIO)) } else { Ok(()) }
    }

    /// Checkpoints a journal that has had no record appended for `idle`.
    pub fn checkpoint_idle(&self, idle: Duration) -> Inner<()> {
        let mut state = self.state.lock();
        let nothing = state.unflushed.is_empty()
            && state.old.is_empty()
            && state.doubtful.is_empty()
            && !state.unclean;
        if nothing || state.unapplied > 0 || state.draining || state.last_append.elapsed() < idle {
            return Ok(());
        }
        self.checkpoint_locked(&mut state)
    }

    /// Checkpoints and removes the journal file. If a file is broken, the journal stays for the next
    /// mount.
    ///
    /// # Errors
    /// `EIO` if records of a file that was found could not be written; those of the store.
    pub fn close(&self) -> Inner<()> {
        let of_created = self.close_created();
        let mut state = self.state.lock();
        let closed = self.checkpoint_locked(&mut state).and_then(|()| {
            if state.broken.iter().any(|broken| broken.inode().is_some()) {
                return Err(Fault::Os(libc::EIO));
            }
            if state.broken.is_empty() {
                if let Some(running) = state.running.take() {
                    running.dir.unlink(&running.name)?;
                }
                self.cut_surplus();
            }
            Ok(())
        });
        drop(state);
        // Also if records wait: a flush reports a loss only once, so the next mount would not learn of it.
        let written = self.write_all_lost();
        closed?;
        written?;
        of_created
    }
}

/// Reports that acknowledged records are not in the journal any more.
fn unreadable() -> Fault {
    tracing::error!("the journal cannot be read back");
    Fault::Os(libc::EIO)
}

impl Journal {
    /// Cuts the bytes beyond the ends of the files. The caller has emptied the journal, and
    /// excludes further commits to them.
    pub(super) fn cut_surplus(&self) {
        let paths = std::mem::take(&mut *self.surplus.paths.lock());
        if !self.may_cut() {
            return;
        }
        for (inode, path) in paths {
            let cut = (|| {
                let file = self.open_path(&path)?;
                let stat = file.stat_but_times()?;
                if (stat.dev, stat.ino) == inode { self.cut_residue(&*file) } else { Ok(()) }
            })();
            if let Err(fault) = cut {
                tracing::debug!(
                    errno = fault.errno(),
                    "cannot cut the bytes beyond the end of a file"
                );
            }
        }
    }
}
