//! The replay: applies the records that a crash left in journals, or, read-only, shows the files as a
//! replay would leave them.
//!
//! Rules that hold here
//! * Only its owner's identity reads a journal, and only while no living process holds its lock.
//! * Beside other daemons, records are applied in turns: see [`turn`](super::turn).
//! * Records that do not follow from each other form different chains, also if they have one path:
//!   those of a file that became a conflict copy, and those of the version that arrived there. A record
//!   tells its file from other versions and copies by its birth time. Some stores have none, and in a
//!   copy of the store it tells nothing: then a chain is applied to all files that it matches. So the
//!   last chain is applied first: it was made for what is at the path now. While a file cannot be looked
//!   at, the earlier chains of its id wait too: they could match its file.
//! * A journal is removed only if nothing in it was refused and everything is flushed. A record
//!   that could not be written makes its file broken and its journal an old one, whose records the
//!   first checkpoint carries over. Refused records are carried too then, since they may be about that
//!   file, and nothing is cut.
//! * A journal of another machine that changed recently may be in use there, and may have come here
//!   through a sync tool. It is replayed, which brings files to states that its owner has
//!   acknowledged, and is left to its owner. After its rest period it is removed like any other,
//!   one without records after a day.
//! * Another machine may have replaced a file since. Its version stays. If a sync tool has kept ours
//!   as a conflict copy, the records are applied to that.
//! * A file or a directory above it may have been renamed since: by another machine and here by a sync
//!   tool, by another daemon, or by this one while the file could not be found. So before any file is
//!   open, the vault is searched for files that refused records match.
//! * In a read-only vault the records are applied to files in memory, and no journal is touched.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::overlay::OverlayFile;
use super::redo::{Fit, Outcome};
use super::state::{Broken, Inode, LeftBehind, Old, Origin};
use super::turn::Apply;
use super::{CREATED, Found, Journal, PREFIX};
use crate::format::error::FormatErrorKind;
use crate::format::header::PublicHeader;
use crate::format::journal::{
    ALIGN, JournalHead, JournalRecord, RECORD_HEAD, RECORDS_AT, open_record, record_head,
};
use crate::format::name::{Parts, parse};
use crate::store::{Access, Dir, DirEntry, File, Kind, Lock, RenameMode};
use crate::vault::durability::writers::{RESTS, rested};
use crate::vault::error::{Corruption, Fault, Inner, TOO_MANY_JOURNALS};
use crate::vault::share::control_files::entries;
use crate::vault::share::synced::REFUSED;

/// How long another machine's journal without records must be unchanged before it is removed.
const EMPTY_RESTS: Duration = Duration::from_secs(24 * 3600);

type FileId = [u8; 32];

/// A chain that was not applied, and the file that it matches and could not be written to.
type Waiting = (Vec<JournalRecord<'static>>, Option<Inode>);

/// The stored paths of files, by their ids.
#[derive(Default)]
struct Places {
    paths: HashMap<FileId, Vec<Vec<u8>>>,
    /// What could not be looked at, and may be such a file.
    unseen: Unseen,
}

/// Result of replaying one journal, or the records of one file.
#[derive(Default)]
struct Redone {
    done: usize,
    /// For how many files records were refused, or could not be written.
    refused: usize,
    /// Some of them could not be written.
    has_failed: bool,
    /// The ids of the files of refused records.
    refused_ids: Vec<FileId>,
    /// A file that may match refused records could not be looked at.
    unread: bool,
    files: HashMap<Inode, Arc<dyn File>>,
    /// The name of the journal, if it belongs to another share or its head cannot be read.
    foreign: Option<String>,
}

impl Redone {
    /// Returns the result for one chain that was refused.
    fn refused(file_id: FileId) -> Redone {
        Redone { refused: 1, refused_ids: vec![file_id], ..Redone::default() }
    }
}

/// The owner of a journal.
enum Owner {
    Us(JournalHead),
    /// Another identity's, or nobody's yet.
    Another,
    /// Of another share, or unknown: the head cannot be read.
    AnotherShare,
}

/// Maximum number of journals with records that match no file. With more, the vault is not opened: the
/// storage host could copy one any number of times.
const REFUSED_MAX: usize = 1024;
/// Maximum length in bytes of the records that are kept in memory for files that could not be written or
/// found: of four full journals. With more, the vault is not opened either.
const KEPT_MAX: usize = 128 << 20;

/// A journal with refused records.
struct Refused {
    found: Found,
    /// For how many files records were refused.
    count: usize,
    /// See [`Redone::has_failed`].
    has_failed: bool,
}

/// What became of all journals.
#[derive(Default)]
struct Round {
    done: usize,
    refused: Vec<Refused>,
    files: HashMap<Inode, Arc<dyn File>>,
    /// See [`Redone::refused_ids`].
    refused_ids: Vec<FileId>,
    /// See [`Redone::unread`].
    unread: bool,
    /// Number of journals of another share, or with a head that cannot be read.
    foreign: usize,
}

/// What came of a chain that was tried on files.
#[derive(Default)]
struct Tried {
    /// Number of files that were brought up to date; `None` if none matches.
    done: Option<usize>,
    /// A path of the chain leads to no file, or to one in a state that is not known.
    refused: bool,
    /// Files that may be the one that the chain was made for. They get it if no other one is found.
    perhaps: Vec<Arc<dyn File>>,
    /// The file that the chain matches and could not be written to.
    failed: Option<Inode>,
    /// What could not be looked at, and may be a file that the chain matches.
    unseen: Unseen,
    /// The files at the chain's paths.
    files: HashMap<Inode, Arc<dyn File>>,
}

/// What could not be looked at.
#[derive(Clone, Copy, Default)]
struct Unseen {
    /// This user may not see something.
    is_hidden: bool,
    /// Something could not be looked at for another reason, which may pass.
    is_unread: bool,
    /// Something is gone that was listed: another program may have moved it to where it was not seen.
    has_moved: bool,
}

impl Unseen {
    /// Returns what was looked at; `None` if it is gone or could not be looked at.
    fn note<T>(&mut self, path: &[u8], looked: Inner<T>) -> Option<T> {
        let before = *self;
        let found = looked.inspect_err(|fault| match fault.errno() {
            libc::EACCES | libc::EPERM => self.is_hidden = true,
            libc::ENOENT | libc::ESTALE => self.has_moved = true,
            _ => self.is_unread |= !leads_to_no_file(fault),
        });
        if let Err(fault) = &found
            && (self.is_hidden, self.is_unread) != (before.is_hidden, before.is_unread)
        {
            tracing::warn!(
                errno = fault.errno(),
                path = %path.escape_ascii(),
                "cannot be looked at, and may be a file that journal records were made for"
            );
        }
        found.ok()
    }

    fn is_nothing(self) -> bool {
        !self.is_hidden && !self.is_unread
    }
}

/// Returns whether a path leads to no file.
pub(super) fn leads_to_no_file(fault: &Fault) -> bool {
    matches!(fault.errno(), libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EISDIR)
}

/// Returns the stored path of an entry of a directory.
fn join(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { [above, b"/", name].concat() }
}

/// Splits the stored path of an entry into that of its directory and its name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// How often the vault is searched if another program changes names meanwhile.
const SEARCHES: usize = 3;

/// How long the replay waits for readers of a journal, and the poll interval.
const READER_WAIT: Duration = Duration::from_secs(10);
const READER_POLL: Duration = Duration::from_millis(10);

impl Journal {
    /// Replays every journal of this identity whose owner process is gone. Returns the number of
    /// files that were brought up to date; see the module documentation for read-only vaults.
    pub fn replay(&self) -> Inner<usize> {
        self.foreign_records.store(
            self.writers.leave_journals_only_by_crashes()
                && self.overlaid.is_none()
                && self.others_have_records()?,
            Ordering::Relaxed,
        );
        let (mut count, mut round) = (self.replay_created()?, Round::default());
        // Journals of this machine come first. A journal of another machine that stays here was
        // replayed before ours were begun. If it came first now, it would write to places that ours
        // have filled since.
        for is_own in [true, false] {
            for found in self.leftover() {
                let found = found?;
                if found.is_own == is_own {
                    self.replay_in(&mut round, found, None)?;
                }
            }
        }
        if round.foreign > 1 {
            tracing::warn!("{} more journals of this kind; kept", round.foreign - 1);
        }
        let (mut refused_before, mut places) = (usize::MAX, None);
        // One journal may continue where another one ends, and their names do not tell which is
        // first. So the replay repeats while that reduces the refused records; only they count,
        // because redone records can be redone without end.
        loop {
            let Round { done, refused, files, refused_ids, unread, .. } =
                std::mem::take(&mut round);
            count += done;
            round.files = files;
            let refused_now = refused.iter().map(|refused| refused.count).sum();
            if refused_now > 0 && refused_now >= refused_before && places.is_none() {
                places = Some(self.search(&refused_ids)?);
            } else if refused_now == 0 || refused_now >= refused_before {
                // If a file could not be written or looked at, refused records may be about just that
                // file: all of them wait.
                let waits = unread
                    || places.as_ref().is_some_and(|places| places.unseen.is_unread)
                    || refused.iter().any(|refused| refused.has_failed);
                if waits {
                    for Refused { found, .. } in refused {
                        self.replay_one(&found, places.as_ref(), true)?;
                    }
                } else {
                    self.end_refused(refused)?;
                }
                // The end of every file is known now. Bytes beyond it are cut only if no concurrent
                // opener has a record of the file or has it open.
                if self.may_cut() && !waits {
                    for file in round.files.values() {
                        if let Err(fault) = self.cut_residue(&**file) {
                            let errno = fault.errno();
                            tracing::warn!(errno, "cannot cut the bytes beyond the end of a file");
                        }
                    }
                }
                return Ok(count);
            }
            refused_before = refused_now;
            for Refused { found, .. } in refused {
                self.replay_in(&mut round, found, places.as_ref())?;
            }
        }
    }

    /// Renames journals with refused records, which no replay reads any more.
    fn end_refused(&self, refused: Vec<Refused>) -> Inner<()> {
        for Refused { found: Found { dir, name, is_own }, count, .. } in refused {
            let shown = String::from_utf8_lossy(&name).into_owned();
            if self.overlaid.is_some() || !is_own && self.is_young(&*dir, &name) {
                tracing::warn!(
                    "journal {shown}: {count} files are missing or do not match its records"
                );
                continue;
            }
            tracing::warn!(
                "journal {shown}: {count} files are missing or do not match its records; kept under another name"
            );
            let kept = [REFUSED, &name[PREFIX.len()..]].concat();
            match dir.rename(&name, &*dir, &kept, RenameMode::Replace) {
                // Another daemon of this identity was faster.
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                renamed => renamed?,
            }
            dir.sync()?;
        }
        Ok(())
    }

    fn replay_in(&self, round: &mut Round, found: Found, places: Option<&Places>) -> Inner<()> {
        let redone = self.replay_one(&found, places, false)?;
        round.done += redone.done;
        // The storage host could add any number.
        if let Some(shown) = redone.foreign {
            round.foreign += 1;
            if round.foreign == 1 {
                tracing::warn!(
                    "journal {shown} is of another share, or its head cannot be read; kept"
                );
            }
        }
        round.files.extend(redone.files);
        round.refused_ids.extend(redone.refused_ids);
        round.unread |= redone.unread;
        if redone.refused > 0 {
            if round.refused.len() == REFUSED_MAX {
                return Err(Fault::Corrupt(Corruption::Other(TOO_MANY_JOURNALS)));
            }
            round.refused.push(Refused {
                found,
                count: redone.refused,
                has_failed: redone.has_failed,
            });
        }
        Ok(())
    }

    /// Returns whether a journal belongs to another machine and was changed recently.
    pub(super) fn may_be_used_elsewhere(found: &Found, file: &dyn File) -> Inner<bool> {
        Ok(!found.is_own && rested(file)? < RESTS)
    }

    /// Returns the machine in a journal's name.
    fn machine_in(name: &[u8]) -> Option<&[u8]> {
        let name = name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(CREATED))?;
        Some(&name[..name.iter().rposition(|b| *b == b'-')?])
    }

    /// Iterates over all journals of the vault that may be replayed here. The storage host could add
    /// any number.
    pub fn leftover(&self) -> impl Iterator<Item = Inner<Found>> + '_ {
        self.leftover_of(PREFIX)
    }

    pub(super) fn leftover_of(
        &self,
        prefix: &'static [u8],
    ) -> impl Iterator<Item = Inner<Found>> + '_ {
        let in_store = (&self.root, &self.home.machine_in_store, false);
        let local = self.home.is_local.then_some(&self.home.dir).into_iter();
        let local = local.chain(&self.home.others).map(|dir| (dir, &self.home.machine, true));
        local.chain([in_store]).flat_map(move |(dir, machine, is_local)| {
            let (listed, failed) = match entries(&**dir) {
                Ok(listed) => (Some(listed), None),
                Err(fault) => (None, Some(Err(fault))),
            };
            let journal = move |entry: Inner<DirEntry>| {
                let name = match entry {
                    Ok(entry) => entry.name,
                    Err(fault) => return Some(Err(fault)),
                };
                if !name.starts_with(prefix) {
                    return None;
                }
                let is_own = Self::machine_in(&name) == Some(machine.as_bytes());
                // Several machines may use one home directory. Journals of another machine in it
                // belong to that machine's copy of the vault.
                let found = || Ok(Found { dir: dir.clone(), name: name.into(), is_own });
                (is_own || !is_local).then(found)
            };
            failed.into_iter().chain(listed.into_iter().flatten().filter_map(journal))
        })
    }

    /// Locks a journal to replay it. Returns false if it is in use, or if another daemon of this
    /// identity has replayed and removed it meanwhile.
    ///
    /// # Errors
    /// `EBUSY` if another process does not finish reading it; those of the store.
    pub(super) fn claim(&self, file: &dyn File) -> Inner<bool> {
        let how = if self.overlaid.is_some() { Lock::Shared } else { Lock::Exclusive };
        let is_held = self.writers.hold_journal(file, how)?;
        Ok(!is_held && self.take(file)? && file.stat_but_times()?.nlink > 0)
    }

    /// Locks a journal; returns false if it is in use, which is possible only in a read-only vault.
    /// Fails with `EBUSY` if another process does not finish reading it.
    ///
    /// The replaying process holds the vault's lock. So a locked journal is being read by another
    /// process, for a short time. Going on without it would serve files as they were before the
    /// last acknowledged changes.
    pub(super) fn take(&self, file: &dyn File) -> Inner<bool> {
        if self.overlaid.is_some() {
            return Ok(file.try_lock(Lock::Shared)?);
        }
        for _ in 0..READER_WAIT.as_millis() / READER_POLL.as_millis() {
            if file.try_lock(Lock::Exclusive)? {
                return Ok(true);
            }
            std::thread::sleep(READER_POLL);
        }
        Err(Fault::Os(libc::EBUSY))
    }

    /// Returns whether a journal was changed recently, or cannot be looked at.
    fn is_young(&self, dir: &dyn Dir, name: &[u8]) -> bool {
        let rested =
            dir.open_file(name, Access::Read).map_err(Fault::from).and_then(|f| rested(&*f));
        rested.map_or(true, |rested| rested < RESTS)
    }

    /// Returns the owner of a journal; removes a journal whose creation a crash has interrupted.
    fn owner_of(&self, found: &Found, file: &dyn File) -> Inner<Owner> {
        let mut head = vec![0; RECORDS_AT as usize];
        let read = file.read_at(&mut head, 0)?;
        match JournalHead::decode(&head[..read]) {
            Ok(head) if head.share == self.keys.share && head.suite == self.keys.suite => {
                match head.owner == Self::owner(&self.key, &head.id) {
                    true => Ok(Owner::Us(head)),
                    false => Ok(Owner::Another),
                }
            }
            // A journal whose creation was interrupted by a crash has no records yet.
            _ if head[..read].iter().all(|b| *b == 0) => {
                let may_be_in_creation = self.writers.hold_journal(file, Lock::Shared)?
                    || self.writers.may_create_journal(file)?
                    || Self::may_be_used_elsewhere(found, file)?;
                if self.overlaid.is_none() && !may_be_in_creation {
                    remove(found)?;
                }
                Ok(Owner::Another)
            }
            _ => Ok(Owner::AnotherShare),
        }
    }

    /// Replays one journal, and removes it if nothing in it was refused and nothing failed. If something
    /// failed at the last attempt, the journal is kept.
    fn replay_one(&self, found: &Found, places: Option<&Places>, is_last: bool) -> Inner<Redone> {
        let Found { dir, name, .. } = found;
        let access = if self.overlaid.is_some() { Access::Read } else { Access::ReadWrite };
        let file = match dir.open_file(name, access) {
            Ok(file) => file,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(Redone::default()),
            Err(e) if self.writers.leave_journal(&e) => return Ok(Redone::default()),
            Err(e) => return Err(self.unread(found, e.into())),
        };
        let shown = String::from_utf8_lossy(name).into_owned();
        let owner = self.owner_of(found, &*file).map_err(|fault| self.unread(found, fault));
        let head = match owner? {
            Owner::Us(head) => head,
            Owner::Another => return Ok(Redone::default()),
            Owner::AnotherShare => {
                return Ok(Redone { foreign: Some(shown), ..Redone::default() });
            }
        };
        if !self.claim(&*file)? {
            return Ok(Redone::default());
        }
        let records = self.records(&*file, &head).map_err(|fault| self.unread(found, fault));
        let mut records = records?;
        if self.births(&*file)? != head.births {
            records.iter_mut().for_each(|record| record.born = None);
        }
        if records.is_empty() && !found.is_own && rested(&*file)? < EMPTY_RESTS {
            return Ok(Redone::default());
        }
        let (all, waiting) = self.redo_chains(records, places, is_last.then_some(&*shown))?;
        let is_used_elsewhere = Self::may_be_used_elsewhere(found, &*file)?;
        if is_used_elsewhere {
            // Its owner relies on it, and its records may be replayed once more.
            self.foreign_records.store(true, Ordering::Relaxed);
        }
        if is_last && !waiting.is_empty() {
            let (dir, name) = (dir.clone(), name.clone());
            let old = Old { file, dir, name, head, acknowledged: 0 };
            self.keep(waiting, old, is_used_elsewhere, &shown)?;
        } else if !is_used_elsewhere && all.refused == 0 && self.overlaid.is_none() {
            dir.unlink(name)?;
            dir.sync()?;
        }
        Ok(all)
    }

    /// Applies the chains of a journal. Returns those that were refused or could not be written, the last
    /// one first. Failures are logged if the journal's name is given.
    fn redo_chains(
        &self,
        records: Vec<JournalRecord<'static>>,
        places: Option<&Places>,
        shown: Option<&str>,
    ) -> Inner<(Redone, Vec<Waiting>)> {
        let (mut all, mut waiting, mut stopped) = (Redone::default(), Vec::new(), HashSet::new());
        // The last one first: what is at a path now is what it was made for. While it waits, an earlier one
        // of this file id would be applied to its file.
        for records in chains(records).into_iter().rev() {
            let file_id = records[0].file_id;
            let mut tried = Tried::default();
            let redone = match stopped.contains(&file_id) {
                true => Ok(Redone::refused(file_id)),
                false => self.redo_file(&records.iter().collect::<Vec<_>>(), places, &mut tried),
            };
            match redone {
                Ok(redone) => {
                    if redone.unread || !tried.perhaps.is_empty() && tried.done.is_none() {
                        stopped.insert(file_id);
                    }
                    all.done += redone.done;
                    all.refused += redone.refused;
                    all.unread |= redone.unread;
                    all.refused_ids.extend(redone.refused_ids);
                    all.files.extend(redone.files);
                    if redone.refused > 0 {
                        waiting.push((records, None));
                    }
                }
                // Another daemon does not release the lease, so nothing here could be changed.
                Err(fault) if self.lease.is_needed() && fault.errno() == libc::EBUSY => {
                    return Err(fault);
                }
                Err(fault) => {
                    // One file that cannot be written does not stop the replay of the others.
                    if let Some(shown) = shown {
                        let path = records.last().map_or(&[][..], |record| &record.path);
                        tracing::error!(
                            errno = fault.errno(),
                            path = %path.escape_ascii(),
                            "journal {shown}: a file cannot be written"
                        );
                    }
                    all.refused += 1;
                    all.refused_ids.push(file_id);
                    all.has_failed = true;
                    stopped.insert(file_id);
                    waiting.push((records, tried.failed));
                }
            }
        }
        Ok((all, waiting))
    }

    /// Keeps records of files that could not be written or found. The first checkpoint carries them
    /// over, and removes their `journal`. Beside other daemons, which can replay that journal as well, it
    /// stays where it is, unless all files were found.
    ///
    /// # Errors
    /// [`TOO_MANY_JOURNALS`] if more than [`KEPT_MAX`] bytes are kept.
    fn keep(
        &self,
        waiting: Vec<Waiting>,
        journal: Old,
        is_used_elsewhere: bool,
        shown: &str,
    ) -> Inner<()> {
        tracing::error!(
            "journal {shown}: {} files could not be written or found; opening them fails until they are written, which each mount tries",
            waiting.len()
        );
        let mut state = self.state.lock();
        if self.is_beside_others() && waiting.iter().any(|(_, inode)| inode.is_none()) {
            let records = waiting.iter().flat_map(|(records, _)| records);
            let headers = records.flat_map(|record| [record.base, record.result]).collect();
            let Old { dir, name, .. } = journal;
            state.left_behind.push(LeftBehind { dir, name, headers });
            return Ok(());
        }
        // In their order in the journal.
        for (records, inode) in waiting.into_iter().rev() {
            let origin = Origin::Closed(inode);
            let new = Broken { origin, last: None, records: Some(records), doomed: false };
            // The storage host may have copied a journal: its records are kept once.
            if !state.broken.iter().any(|kept| kept.has_same_records(&new)) {
                state.broken.push(new);
            }
        }
        if self.overlaid.is_none() && !is_used_elsewhere {
            state.old.push(journal);
        }
        let kept = state.broken.iter().flat_map(|broken| broken.records.iter().flatten());
        match kept.map(JournalRecord::encoded_len).sum::<usize>() > KEPT_MAX {
            true => Err(Fault::Corrupt(Corruption::Other(TOO_MANY_JOURNALS))),
            false => Ok(()),
        }
    }

    /// Returns the records of the generation that begins the journal.
    pub(super) fn records(
        &self,
        file: &dyn File,
        head: &JournalHead,
    ) -> Inner<Vec<JournalRecord<'static>>> {
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
            match open_record(head, &self.cipher, generation, sequence, &sealed) {
                Ok(record) => records.push(record),
                Err(e) if e.kind() == FormatErrorKind::Unauthentic => return Ok(records),
                // A newer program has written this record. It was acknowledged, so the journal does
                // not end here.
                Err(e) => return Err(e.into()),
            }
            expected = Some((generation, sequence + 1));
            at += (RECORD_HEAD + len).next_multiple_of(ALIGN) as u64;
        }
    }

    /// Applies a chain to its file: the one that it was made for, or if the chain does not tell that, each
    /// that it matches. That is looked for at the chain's paths, from the last one on (they may be hard
    /// links, or names from before and after a rename), then among the conflict copies of these names, and
    /// then in `places`.
    fn redo_file(
        &self,
        records: &[&JournalRecord<'_>],
        places: Option<&Places>,
        tried: &mut Tried,
    ) -> Inner<Redone> {
        let mut paths: Vec<&[u8]> = Vec::new();
        for record in records.iter().rev() {
            if !paths.contains(&&*record.path) {
                paths.push(&record.path);
            }
        }
        for path in &paths {
            match self.open_path(path) {
                Ok(file) => {
                    let stat = file.stat()?;
                    let is_link = tried.files.insert((stat.dev, stat.ino), file.clone()).is_some();
                    if !is_link {
                        tried.refused |= self.redo_one(&file, records, tried)? == Fit::Other;
                    }
                }
                // A file that got the chain already is another one than this.
                Err(fault) if leads_to_no_file(&fault) || tried.done.is_some() => {
                    tried.refused = true;
                }
                Err(fault) => return Err(fault),
            }
        }
        if tried.done.is_none() {
            self.redo_copies(&paths, records, tried)?;
        }
        if tried.done.is_none() {
            let elsewhere = places.and_then(|places| places.paths.get(&records[0].file_id));
            for path in elsewhere.into_iter().flatten() {
                self.redo_at(path, records, tried)?;
            }
        }
        let is_searched = places.is_some_and(|places| !places.unseen.is_unread);
        if tried.done.is_none() && is_searched && !tried.unseen.is_unread {
            for file in std::mem::take(&mut tried.perhaps) {
                self.write_one(&*file, records, tried)?;
            }
        }
        // If all paths lead to newer versions, a sync tool may have given ours any name.
        let is_sure = !self.home.is_local
            || places.is_some_and(|places| places.unseen.is_nothing()) && tried.unseen.is_nothing();
        let mut redone = match tried.done {
            None if tried.refused || tried.unseen.is_unread || !is_sure => {
                Redone::refused(records[0].file_id)
            }
            done => Redone { done: done.unwrap_or(0), ..Redone::default() },
        };
        redone.unread = redone.refused > 0 && tried.unseen.is_unread;
        redone.files = std::mem::take(&mut tried.files);
        Ok(redone)
    }

    /// Applies a chain to a file if it was made for it. Returns what the file is.
    fn redo_one(
        &self,
        file: &Arc<dyn File>,
        records: &[&JournalRecord<'_>],
        tried: &mut Tried,
    ) -> Inner<Fit> {
        let fit = self.fit(&**file, records)?;
        match fit {
            Fit::Its => self.write_one(&**file, records, tried)?,
            Fit::Perhaps => {
                tried.refused = true;
                tried.perhaps.push(file.clone());
            }
            Fit::Former => tried.refused = true,
            Fit::Newer | Fit::Other => {}
        }
        Ok(fit)
    }

    /// Applies a chain to a file, and notes what came of it.
    fn write_one(
        &self,
        file: &dyn File,
        records: &[&JournalRecord<'_>],
        tried: &mut Tried,
    ) -> Inner<()> {
        let redone = self.redo(file, records, Apply::Replay);
        if redone.is_err() {
            tried.failed = file.stat_but_times().ok().map(|stat| (stat.dev, stat.ino));
        }
        match redone? {
            Outcome::Done => *tried.done.get_or_insert(0) += 1,
            Outcome::Nothing => drop(tried.done.get_or_insert(0)),
            Outcome::Newer => {}
            Outcome::Refused => tried.refused = true,
        }
        Ok(())
    }

    /// Tries a chain on conflict copies: its file is gone or has another version, and a sync tool may have
    /// kept ours under a name with a suffix.
    fn redo_copies(
        &self,
        paths: &[&[u8]],
        records: &[&JournalRecord<'_>],
        tried: &mut Tried,
    ) -> Inner<()> {
        for path in paths {
            let (above, name) = split(path);
            let Some(dir) = tried.unseen.note(above, self.open_below(above)) else { continue };
            for entry in tried.unseen.note(above, entries(&*dir)).into_iter().flatten() {
                let Some(DirEntry { name: copy, .. }) = tried.unseen.note(above, entry) else {
                    break;
                };
                // Every sync tool appends its suffix to the name.
                if copy.len() > name.len() && copy.starts_with(name) {
                    self.redo_at(&join(above, &copy), records, tried)?;
                }
            }
        }
        Ok(())
    }

    /// Tries a chain on the file at a path that was listed before. Files that it does not match are
    /// others, so nothing is refused.
    fn redo_at(&self, path: &[u8], records: &[&JournalRecord<'_>], tried: &mut Tried) -> Inner<()> {
        let opened = self.open_path(path);
        // Another program is renaming it.
        let is_gone = |fault: &Fault| matches!(fault.errno(), libc::ENOENT | libc::ESTALE);
        tried.unseen.is_unread |= opened.as_ref().is_err_and(is_gone);
        let Some(file) = tried.unseen.note(path, opened) else { return Ok(()) };
        self.redo_one(&file, records, tried)?;
        Ok(())
    }

    /// Searches the vault for files with these ids.
    fn search(&self, ids: &[FileId]) -> Inner<Places> {
        let ids = ids.iter().collect();
        let mut places = Places::default();
        for _ in 0..SEARCHES {
            places = self.search_once(&ids)?;
            if !places.unseen.has_moved {
                return Ok(places);
            }
        }
        places.unseen.is_unread = true;
        Ok(places)
    }

    fn search_once(&self, ids: &HashSet<&FileId>) -> Inner<Places> {
        let (mut places, mut left) = (Places::default(), vec![Vec::new()]);
        while let Some(above) = left.pop() {
            let Places { paths, unseen } = &mut places;
            let Some(dir) = unseen.note(&above, self.open_below(&above)) else { continue };
            for entry in unseen.note(&above, entries(&*dir)).into_iter().flatten() {
                let Some(DirEntry { name, .. }) = unseen.note(&above, entry) else { break };
                // Control files and foreign names are not files of the vault.
                if matches!(parse(&name, self.keys.longest_name), Parts::Control | Parts::Foreign) {
                    continue;
                }
                let path = join(&above, &name);
                let stat = unseen.note(&path, dir.stat(&name).map_err(Fault::from));
                match stat.map(|stat| stat.kind) {
                    Some(Kind::Dir) => left.push(path),
                    Some(Kind::File) => {
                        let id = unseen.note(&path, self.id_of(&*dir, &name)).flatten();
                        if let Some(id) = id.filter(|id| ids.contains(id)) {
                            paths.entry(id).or_default().push(path);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(places)
    }

    /// Returns the id that a file's header states, if it is one. It need not be authentic: a crash may
    /// have torn it.
    fn id_of(&self, dir: &dyn Dir, name: &[u8]) -> Inner<Option<FileId>> {
        let mut bytes = vec![0; self.keys.layout.header()];
        let read = dir.open_file(name, Access::Read)?.read_at(&mut bytes, 0)?;
        let header = PublicHeader::decode(&self.keys.layout, &bytes[..read]);
        Ok(header.ok().map(|header| header.file_id))
    }

    /// Opens a directory by its stored path.
    fn open_below(&self, path: &[u8]) -> Inner<Arc<dyn Dir>> {
        let mut dir = self.root.clone();
        for component in path.split(|b| *b == b'/').filter(|component| !component.is_empty()) {
            dir = dir.open_dir(component)?;
        }
        Ok(dir)
    }

    pub(super) fn open_path(&self, path: &[u8]) -> Inner<Arc<dyn File>> {
        let (above, name) = split(path);
        let dir = self.open_below(above)?;
        let Some(overlaid) = &self.overlaid else {
            let file = dir.open_file(name, Access::ReadWrite)?;
            self.writers.open_to_read(&*file)?;
            return Ok(file);
        };
        let file = dir.open_file(name, Access::Read)?;
        let stat = file.stat()?;
        let mut overlaid = overlaid.lock();
        let there = overlaid.entry((stat.dev, stat.ino));
        Ok(there.or_insert_with(|| Arc::new(OverlayFile::new(file, &stat))).clone())
    }
}

/// Removes a journal, unless another daemon of this identity was faster.
fn remove(Found { dir, name, .. }: &Found) -> Inner<()> {
    match dir.unlink(name) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

/// Returns the chains: the records of one file that follow from each other, in their order.
pub(super) fn chains(records: Vec<JournalRecord<'static>>) -> Vec<Vec<JournalRecord<'static>>> {
    let mut chains: Vec<Vec<JournalRecord<'static>>> = Vec::new();
    for record in records {
        let follows = |last: &JournalRecord<'_>| {
            (last.file_id, last.born, last.result) == (record.file_id, record.born, record.base)
        };
        match chains.iter_mut().find(|chain| chain.last().is_some_and(follows)) {
            Some(chain) => chain.push(record),
            None => chains.push(vec![record]),
        }
    }
    chains
}
