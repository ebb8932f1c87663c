//! The comparison of a vault with the rollback database.
//!
//! Rules that hold here
//! * Only authentic data counts, in the vault and in the database. The check (`fsck`) reports
//!   unreadable data. If a remembered object is unreadable, a notice says that it was not compared.
//! * Local changes are not deviations: names that this client has changed are recorded as they are.
//! * Deviations are not recorded, so the notice stays until the user accepts it or the state is as
//!   before.
//! * Nested shares are not compared: each share has a database of its own, which is used when it is
//!   opened alone.
//! * In the background the comparison pauses after each burst of requests: for as long as that
//!   took, so that a slow disk stays available to others, and for 19 times as long while programs
//!   use the vault, so that it takes at most a twentieth of the time.
//! * A state is recorded only after a sync of the store was requested: the database never runs
//!   ahead of the vault.
//! * Once the database has reached its limit, entries that it does not know are left out, and count
//!   as nothing new: they must not make an alarm a note at each comparison.
//! * A directory is read piece by piece, and sub-directories are opened one by one, so neither
//!   number is limited.

mod child;
mod judge;
mod later;
mod seen;
pub(super) mod suspect;
mod vacated;
mod written;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use self::child::{Child, Here, Inside};
use self::later::{Later, List};
use self::seen::{AllSeen, Seen};
use self::suspect::{DIRECTORY, FILE, Left, Pending, Step, Thing, Why};
use self::vacated::{AllVacated, Vacated};
use self::written::Found;
use super::memory::{Memory, PlaceId, Touched, prefix};
use super::notice::{Notice, Omitted, SurveyOptions};
use super::places::Places;
use crate::crypto::Tag;
use crate::format::name::is_control;
use crate::store::{Access, Dir, Kind};
use crate::vault::core::Core;
use crate::vault::directory::folder::Folder;
use crate::vault::directory::names::Meaning;
use crate::vault::error::{Fault, Inner};
use crate::vault::fsck::report::join;
use crate::vault::rollback::database::{Changes, Db, Others, Reader};
use crate::vault::rollback::rows::{
    EntryKey, FileRow, ID, Id, NameTag, NoticeRow, PREFIX, RemovedRow, Row, keys_of, short,
};

const OTHER: u8 = 3;
/// The id of unreadable objects, and of anything but a file or directory.
const NOTHING: Id = [0; ID];
/// How long the background comparison uses the store without a pause.
const STRETCH: Duration = Duration::from_millis(5);
/// How long it pauses after work, as a multiple of the time of that work.
const PAUSE: u32 = 1;
/// The same while programs use the vault.
const PAUSE_IN_USE: u32 = 19;
/// For how long after a request programs are expected to send another.
const IN_USE: Duration = Duration::from_millis(300);
/// Number of changes written in one transaction. They take about 8 MiB of memory. The ids of files
/// are random, so each transaction rewrites about as many blocks of their index as it changes ids:
/// smaller ones would write more in all.
const BATCH: usize = if cfg!(test) { 64 } else { 32_768 };
/// Number of rows that are read at a time.
const ROWS: usize = 4096;
/// Bytes of names that are read from a listing at a time.
const PIECE: usize = 1 << 16;
/// A directory is listed for local changes in it if its entries, those that are recorded, and the
/// changed names are each at most this number. In a larger one only the changed names are looked
/// up: changes follow each other, and a listing for each of them would take time that grows with
/// the square of the entries.
const LISTED_MAX: usize = 1000;
/// Maximum number of names of a directory that are read at the end of a mount to find the conflict
/// copies of changed names: the storage host can add any number of names.
const LAST_NAMES_MAX: usize = 10_000;
/// Maximum number of directories held open for their sub-directories. Others are opened again by
/// their paths.
const OPEN_MAX: usize = 32;
/// Maximum number of reads of a header that cannot be opened: a commit may be writing it.
const TRIES: usize = 3;
/// Maximum number of files that are kept in each of the maps that make an alarm a note.
const KEPT_MAX: usize = 1 << 16;
/// Maximum number of names with other files than before that are searched for exchanges. If there
/// are more, each of them counts as exchanged.
const STEPS_MAX: usize = 1 << 16;
/// Maximum number of listed notices of each kind: alarms and others, about remembered names and
/// about new ones. Further ones are counted.
const NOTICES_MAX: usize = 10_000;
/// Seconds after which an unchanged row is written again, to update its time.
const REFRESH: i64 = 86_400;
/// Number of settle times after which a notice that persists is shown even if the store keeps
/// changing.
const PATIENCE: i64 = 12;

/// The present state of an entry.
struct Present {
    name: Vec<u8>,
    /// The name without a sync tool's suffix, if it has one.
    copy_of: Option<Vec<u8>>,
    /// It has a mark, and its stored name is sealed under a former key.
    is_former: bool,
    thing: Thing,
    /// For a directory that is to be read: its tag.
    inside: Option<Tag>,
    stored: Box<[u8]>,
    /// It is a share, according to the vault itself.
    is_share: bool,
}

/// Which rows of a directory are still to be read.
enum RowsLeft {
    All,
    After(EntryKey),
    None,
}

/// One comparison.
pub(super) struct Survey<'a> {
    core: &'a Core,
    memory: &'a Memory,
    db: &'a Db,
    reader: Reader,
    /// The rows before local changes were recorded, if some are written already.
    begun: Option<Reader>,
    options: &'a SurveyOptions,
    changes: Changes,
    /// Deviations that cannot be classified before the whole vault was read.
    pending: List<Pending>,
    /// The names that show other files than they showed.
    steps: Vec<Step>,
    /// What was seen in this comparison.
    seen: AllSeen,
    /// The highest version of each file that was seen in a conflict copy, by file and by the name
    /// without the suffix.
    copies: HashMap<(Id, NameTag), u64>,
    /// The highest version of each file that has a mark since a change of the share's key, or is in
    /// a directory with such a mark, by the file and by the hash of the path without marks.
    former: HashMap<(Id, Id), u64>,
    /// The highest version of each file whose name was taken by a file that this client had never
    /// seen.
    replaced: HashMap<Id, u64>,
    /// An authentic new file was seen that this client did not write: another client has changed
    /// the vault.
    news: bool,
    /// What is known of other clients. Until the first comparison has ended every file is new, so
    /// `news` proves nothing.
    others: Others,
    /// When the store last changed, by its times.
    latest: i64,
    /// Start time of an earlier session that did not end: it may have removed and moved objects
    /// without recording it.
    interrupted: Option<i64>,
    /// The previous notices.
    before: BTreeMap<EntryKey, NoticeRow>,
    /// Some of them have changed.
    is_told: bool,
    /// Files that were older than they were seen, and that this mount has written since.
    found: Vec<Found>,
    /// When the user last accepted a state, in seconds since 1970.
    accepted: i64,
    /// Directories that were read.
    visited: AllSeen,
    left: List<Left>,
    /// Files that this client has removed or renamed, and the names that they had, by the numbers
    /// of the operations.
    moved_on: Vec<(u64, Id, NameTag)>,
    vacated: AllVacated,
    /// Directories that are known at their places, and those that are not.
    known: List<Child>,
    fresh: List<Child>,
    /// The same as `fresh`, if only some directories are read: these are not.
    arrived: List<Inside>,
    opened: Arc<()>,
    /// In the background: since when the store has been used without a pause.
    busy: Option<Instant>,
    /// The whole vault is read.
    whole: bool,
    /// How many more entries may be recorded.
    room: i64,
    /// How many were left out.
    left_out: u64,
}

impl<'a> Survey<'a> {
    pub fn new(
        core: &'a Core,
        memory: &'a Memory,
        db: &'a Db,
        options: &'a SurveyOptions,
        interrupted: Option<i64>,
    ) -> Inner<Survey<'a>> {
        let (mut others, sealer) = (db.others()?, &memory.sealer);
        others.synced |= !others.compared && core.mode.synced;
        Ok(Survey {
            core,
            memory,
            db,
            reader: db.reader(&memory.sealer)?,
            begun: None,
            options,
            changes: Changes::default(),
            pending: List::new(sealer.clone(), db.folder()),
            steps: Vec::new(),
            seen: AllSeen::new(sealer.clone(), db.folder()),
            copies: HashMap::new(),
            former: HashMap::new(),
            replaced: HashMap::new(),
            news: false,
            others,
            latest: i64::MIN,
            interrupted,
            before: db.notices()?,
            is_told: false,
            found: Vec::new(),
            accepted: db.accepted()?,
            visited: AllSeen::new(sealer.clone(), db.folder()),
            left: List::new(sealer.clone(), db.folder()),
            moved_on: Vec::new(),
            vacated: AllVacated::new(sealer.clone(), db.folder()),
            known: List::new(sealer.clone(), db.folder()),
            fresh: List::new(sealer.clone(), db.folder()),
            arrived: List::new(sealer.clone(), db.folder()),
            opened: Arc::new(()),
            busy: None,
            whole: true,
            room: db.room()?,
            left_out: 0,
        })
    }

    /// Makes the comparison run in the background: it pauses, and ends when the thread is stopped.
    pub fn in_background(self) -> Survey<'a> {
        Survey { busy: Some(Instant::now()), ..self }
    }

    /// Pauses if due; called between two entries.
    ///
    /// # Errors
    /// `ECANCELED` if the thread is stopped.
    fn give_way(&mut self) -> Inner<()> {
        let Some(since) = self.busy else { return Ok(()) };
        let worked = since.elapsed();
        if worked >= STRETCH {
            self.pause(worked);
            self.busy = Some(Instant::now());
        }
        match self.memory.is_stopped() {
            true => Err(Fault::Os(libc::ECANCELED)),
            false => Ok(()),
        }
    }

    /// Pauses after work that took this long. Ends early if the thread is stopped, or if there are
    /// many local changes: these are recorded between two directories.
    pub(super) fn pause(&self, worked: Duration) {
        let since = Instant::now();
        while !self.memory.is_stopped() && !self.memory.is_full() {
            let in_use = self.core.usage.idle() < IN_USE;
            let pause = worked * if in_use { PAUSE_IN_USE } else { PAUSE };
            let left = pause.saturating_sub(since.elapsed());
            if left.is_zero() {
                return;
            }
            self.memory.wait(left.min(IN_USE)); // programs may pause meanwhile
        }
    }

    /// Compares the whole vault, and records its state. Returns the notices; `None` if it was
    /// stopped.
    pub fn run(mut self) -> Inner<Option<Vec<Notice>>> {
        self.resume_moves()?;
        let root = self.root();
        let (place, looked) = (root.place, self.directory(&self.core.root.clone(), root));
        self.has_looked(looked, self.memory.key(&place, b""), &place, Vec::new())?;
        while let Some(child) = self.next_child()? {
            if self.memory.is_stopped() {
                return Ok(None);
            }
            let plain = join(&child.parent.plain, &child.name);
            let looked = self.open(&child).and_then(|dir| {
                let cipher = join(&child.parent.cipher, &child.stored);
                let here = Here {
                    open: None,
                    tag: child.inside.tag,
                    place: child.inside.place,
                    cipher,
                    plain: plain.clone(),
                    former: child.former.clone(),
                };
                self.directory(&dir, here)
            });
            self.has_looked(
                looked,
                self.memory.key(&child.parent.place, &child.name),
                &child.inside.place,
                plain,
            )?;
            if self.memory.is_full() {
                // The results so far are older than the local changes.
                self.write()?;
                self.memory.learn(self.core, self.db)?;
                self.reader = self.db.reader(&self.memory.sealer)?;
                self.reread_written()?;
            }
        }
        if self.memory.is_stopped() {
            return Ok(None);
        }
        self.learn_of_others();
        let notices = self.judge()?;
        self.write()?;
        self.db.set_others(Others { compared: true, ..self.others })?;
        if !self.options.accept.is_empty() {
            self.db.set_accepted(self.options.now)?;
        }
        self.db.set_notices(&notices.rows)?;
        self.db.set_omitted(Omitted { entries: self.left_out, notices: notices.more })?;
        Ok(Some(self.memory.shown(&notices.rows, self.options, self.latest)))
    }

    /// Records only these directories: after local changes. `files` are the ids and versions of the
    /// files that were committed.
    pub fn learn(
        mut self,
        touched: &HashMap<PlaceId, Touched>,
        places: &Places,
        files: &HashMap<Id, u64>,
    ) -> Inner<()> {
        self.whole = false;
        self.resume_moves()?;
        let mut walk = places.walk(self.memory.root_place(self.core), self.core.root.clone());
        while let Some(place) = walk.next() {
            let Some(touched) = touched.get(&place) else { continue };
            if touched.is_recorded() {
                continue;
            }
            let tag = walk.place().map_or_else(|| self.core.keys.root_tag(), |place| place.tag);
            let (cipher, plain) = walk.paths();
            let here = Here { open: None, tag, place, cipher, plain, former: None };
            let Ok(dir) = walk.open() else {
                self.keep_noted(&here, touched)?;
                self.forget_ours(&here, touched)?;
                continue;
            };
            let looked = self.listed_or_noted(&dir, here.clone(), &touched.noted());
            if let Err(fault) = looked {
                tracing::debug!(
                    errno = fault.errno(),
                    "rollback database: a directory cannot be read"
                );
                self.keep_noted(&here, touched)?;
            }
            self.write_part()?;
        }
        self.move_known()?;
        self.retire()?;
        self.take_vacated().drain(|Vacated { place, pending, .. }| match pending {
            None => self.prune(place, false),
            Some(_) => Ok(()), // the next comparison reports it
        })?;
        self.learn_of_others();
        self.learn_of_gone(files)?;
        self.keep_told()?;
        self.write()?;
        self.db.set_others(self.others)
    }

    /// Writes the findings of a comparison of local changes. The rows, which are written later, no
    /// longer show them.
    fn keep_told(&mut self) -> Inner<()> {
        self.keep_found();
        if std::mem::take(&mut self.is_told) {
            self.db.set_notices(&self.before)?;
            self.memory.has_found.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Lists a directory to record changes in it, or looks up the changed names if it is large, see
    /// [`LISTED_MAX`].
    fn listed_or_noted(
        &mut self,
        dir: &Arc<dyn Dir>,
        here: Here,
        names: &BTreeSet<&[u8]>,
    ) -> Inner<()> {
        let before = (self.left.len(), self.found.len());
        let is_small = names.len() <= LISTED_MAX && self.is_small(&here.place)?;
        if is_small && self.directory(dir, here.clone())? {
            return Ok(());
        }
        self.noted(dir, here, names, before)
    }

    /// Returns whether at most [`LISTED_MAX`] entries of a directory are recorded.
    fn is_small(&self, place: &PlaceId) -> Inner<bool> {
        let (first, last) = keys_of(&prefix(place));
        let rows = self.reader.rows(Bound::Included(&first), &last, LISTED_MAX + 1)?;
        Ok(rows.len() <= LISTED_MAX)
    }

    /// Records that another client has changed the vault, if a new file shows it. After an
    /// interrupted session, files that the session wrote count too: they cannot be told from
    /// another client's, which may never write again.
    fn learn_of_others(&mut self) {
        self.others.changed |= self.news && self.others.compared;
    }

    /// Records the files that were committed and are gone again: nothing else tells them from
    /// another client's new files, when the storage host shows them later.
    fn learn_of_gone(&mut self, files: &HashMap<Id, u64>) -> Inner<()> {
        for (id, version) in files {
            // What was seen is asked last: once it is on disk, that takes longest.
            if self.file(id)?.is_none()
                && self.removed(id)?.is_none()
                && self.seen.get(id)?.is_none()
            {
                let removed = RemovedRow::new(*version, self.options.now, false);
                self.changes.removed.insert(*id, Some(removed));
            }
        }
        Ok(())
    }

    /// Records what is known of the noted changes without reading their directory: the storage host
    /// can hide it at any moment.
    fn keep_noted(&mut self, here: &Here, touched: &Touched) -> Inner<()> {
        for name in touched.noted() {
            let key = self.memory.key(&here.place, name);
            let (row, ours) = (self.row(&key)?, self.memory.is_ours(&here.place, name));
            self.compare_base(key, row.as_ref(), here, name, ours)?;
            if let Some(row) = row.filter(|row| row.kind == FILE) {
                self.is_back(key, &row, name, here)?;
            }
        }
        Ok(())
    }

    /// Drops the rows of names that this client has changed in a directory that is gone or was
    /// renamed; the next comparison records their state.
    fn forget_ours(&mut self, here: &Here, touched: &Touched) -> Inner<()> {
        for name in touched.names.keys() {
            let key = self.memory.key(&here.place, name);
            let Some(row) = self.row(&key)? else { continue };
            let put = self.memory.put_there(&here.place, name);
            if !self.memory.is_ours(&here.place, name) || put.is_some_and(|(id, _)| id == row.id) {
                continue;
            }
            if row.kind == DIRECTORY {
                let place = self.memory.place(&here.place, &row.name, &row.id);
                self.vacated.add(Vacated { hash: row.id, place, pending: None })?;
            }
            self.set(key, None)?;
        }
        Ok(())
    }

    fn root(&self) -> Here {
        let (tag, place) = (self.core.keys.root_tag(), self.memory.root_place(self.core));
        Here { open: None, tag, place, cipher: Vec::new(), plain: Vec::new(), former: None }
    }

    /// Returns the next directory to read. Directories that are new at their places come last. By
    /// then it is known which directories have left their places, and the rows of a renamed
    /// directory are moved to its new place.
    fn next_child(&mut self) -> Inner<Option<Child>> {
        if let Some(child) = self.known.pop()? {
            return Ok(Some(child));
        }
        let Some(child) = self.fresh.pop()? else { return Ok(None) };
        self.move_to(&child.inside)?;
        Ok(Some(child))
    }

    fn open(&self, child: &Child) -> Inner<Arc<dyn Dir>> {
        Ok(match &child.parent.open {
            Some((dir, _)) => dir.open_dir(&child.stored)?,
            None => {
                let cipher = join(&child.parent.cipher, &child.stored);
                let (dir, name) = self.core.open_parent(&cipher)?;
                dir.open_dir(name)?
            }
        })
    }

    /// Returns the hashes of the tags that a directory had before it was renamed.
    fn hashes_before(&self, tag: &Tag) -> Inner<Vec<Id>> {
        Ok(self.core.explained(tag)?.iter().map(|tag| self.memory.directory_id(tag)).collect())
    }

    /// Moves the rows of renamed directories to their new places.
    fn move_known(&mut self) -> Inner<()> {
        while let Some(arrived) = self.arrived.pop()? {
            self.move_to(&arrived)?;
        }
        Ok(())
    }

    /// If a directory of this tag, or of one that evidence explains, is not at its place any more,
    /// moves its rows to `new`.
    fn move_to(&mut self, new: &Inside) -> Inner<()> {
        let hashes = std::iter::once(new.hash).chain(self.hashes_before(&new.tag)?);
        let mut old = None;
        for hash in hashes {
            old = old.or_else(|| self.vacated.take(&hash));
        }
        let Some(old) = old else { return Ok(()) };
        self.move_rows(old.place, new.place)?;
        if let Some(pending) = old.pending {
            self.accept(pending)?;
        }
        self.write()
    }

    /// Moves the rows that a comparison which was interrupted has not moved.
    fn resume_moves(&mut self) -> Inner<()> {
        loop {
            let moves = self.db.moves()?;
            if moves.is_empty() {
                return Ok(());
            }
            for (old, new) in moves {
                self.move_rows(old, new)?;
            }
            self.write()?;
        }
    }

    /// Moves the rows of a directory and of all below it. What is still to be moved is recorded
    /// with each part of them: rows that are left behind would count as files for ever.
    fn move_rows(&mut self, old: PlaceId, new: PlaceId) -> Inner<()> {
        let mut todo = self.list();
        self.changes.moves.insert(old, Some(new));
        todo.push((old, new))?;
        while let Some((old, new)) = todo.pop()? {
            let mut rest = RowsLeft::All;
            while let Some(rows) = self.next_rows(&old, &mut rest)? {
                for (key, row) in rows {
                    if row.kind == DIRECTORY {
                        let [old, new] =
                            [old, new].map(|at| self.memory.place(&at, &row.name, &row.id));
                        self.changes.moves.insert(old, Some(new));
                        todo.push((old, new))?;
                    }
                    self.move_row(key, row, &new)?;
                }
                self.write_part()?;
            }
            self.changes.moves.insert(old, None);
        }
        Ok(())
    }

    /// Moves the row of an entry to the directory `new`.
    fn move_row(&mut self, old: EntryKey, row: Row, new: &PlaceId) -> Inner<()> {
        self.set(old, None)?;
        let key = self.memory.key(new, &row.name);
        if let Some(notice) = self.before.remove(&old) {
            self.is_told |= notice.is_written;
            self.before.insert(key, notice);
        }
        if row.kind == FILE && !self.whole && self.memory.has_left(new, &row.name) {
            // This client removed or renamed the file and then renamed the directory, or the other
            // way round, and neither was recorded yet.
            let name = self.memory.tag(new, &row.name);
            let Row { id, version, .. } = row;
            self.left.push(Left { name, id, version, here: true, over: None })
        } else if self.row(&key)?.is_none() {
            // An entry that is already there was recorded under its new name.
            self.set(key, Some(row))
        } else {
            Ok(())
        }
    }

    fn take_vacated(&mut self) -> AllVacated {
        let none = AllVacated::new(self.memory.sealer.clone(), self.db.folder());
        std::mem::replace(&mut self.vacated, none)
    }

    /// Returns an empty list.
    fn list<T: Later>(&self) -> List<T> {
        List::new(self.memory.sealer.clone(), self.db.folder())
    }

    /// Drops the rows of a directory that is not at its place any more. With `removed`, the files
    /// in it that are nowhere else count as removed.
    fn prune(&mut self, place: PlaceId, removed: bool) -> Inner<()> {
        let mut todo = self.list();
        todo.push(place)?;
        while let Some(place) = todo.pop()? {
            if self.was_visited(&place)? {
                continue;
            }
            let mut rest = RowsLeft::All;
            while let Some(rows) = self.next_rows(&place, &mut rest)? {
                for (key, row) in rows {
                    match row.kind {
                        DIRECTORY => todo.push(self.memory.place(&place, &row.name, &row.id))?,
                        FILE if removed => {
                            let name = self.memory.tag(&place, &row.name);
                            let Row { id, version, .. } = row;
                            self.left.push(Left { name, id, version, here: false, over: None })?;
                        }
                        _ => {}
                    }
                    self.set(key, None)?;
                }
                if self.changes.len() >= BATCH {
                    self.write()?;
                }
            }
        }
        Ok(())
    }

    fn was_visited(&self, place: &PlaceId) -> Inner<bool> {
        Ok(self.visited.get(&short(place))?.is_some())
    }

    /// Keeps a deviation until the whole vault was read.
    fn pend(&mut self, pending: Pending) -> Inner<()> {
        if !self.whole {
            return Ok(());
        }
        if let Some(step) = pending.step()
            && self.steps.len() <= STEPS_MAX
        {
            self.steps.push(step);
        }
        self.pending.push(pending)
    }

    fn write(&mut self) -> Inner<()> {
        let changes = std::mem::take(&mut self.changes);
        if changes.len() > 0 {
            match self.core.root.sync_store() {
                // A read-only store has nothing to write.
                Err(e) if e.raw_os_error() == Some(libc::EROFS) => {}
                other => other?,
            }
            self.db.apply(&self.memory.sealer, &changes)?;
            let reader = self.db.reader(&self.memory.sealer)?;
            let before = std::mem::replace(&mut self.reader, reader);
            if !self.whole {
                self.begun.get_or_insert(before);
            }
        }
        Ok(())
    }

    /// Writes the changes if they are many.
    fn write_part(&mut self) -> Inner<()> {
        if self.changes.len() < BATCH {
            return Ok(());
        }
        if !self.whole {
            self.keep_told()?;
        }
        self.write()
    }

    fn row(&self, key: &EntryKey) -> Inner<Option<Row>> {
        self.changes.entries.get(key).map_or_else(|| self.reader.row(key), |row| Ok(row.clone()))
    }

    fn file(&self, id: &Id) -> Inner<Option<FileRow>> {
        self.changes.files.get(id).map_or_else(|| self.reader.file(id), |row| Ok(*row))
    }

    fn removed(&self, id: &Id) -> Inner<Option<RemovedRow>> {
        self.changes.removed.get(id).map_or_else(|| self.reader.removed(id), |row| Ok(row.clone()))
    }

    /// Sets or drops the row of an entry, and updates the number of names of its file.
    fn set(&mut self, key: EntryKey, row: Option<Row>) -> Inner<()> {
        let of = |row: Option<&Row>| row.filter(|row| row.kind == FILE).map(|row| row.id);
        let before = self.row(&key)?;
        self.room += i64::from(before.is_some()) - i64::from(row.is_some());
        let (old, new) = (of(before.as_ref()), of(row.as_ref()));
        if old != new {
            for (id, by) in [(old, -1), (new, 1)] {
                let Some(id) = id else { continue };
                if let Some(file) = self.file(&id)? {
                    self.changes.files.insert(
                        id,
                        Some(FileRow { names: file.names.saturating_add_signed(by), ..file }),
                    );
                }
            }
        }
        self.changes.entries.insert(key, row);
        Ok(())
    }

    /// Returns some thousand rows of a directory, from `rest` on, and moves `rest` behind them;
    /// `None` after the last ones.
    fn next_rows(
        &self,
        place: &PlaceId,
        rest: &mut RowsLeft,
    ) -> Inner<Option<BTreeMap<EntryKey, Row>>> {
        let (first, last) = keys_of(&prefix(place));
        let from = match rest {
            RowsLeft::All => Bound::Included(first),
            RowsLeft::After(key) => Bound::Excluded(*key),
            RowsLeft::None => return Ok(None),
        };
        let read = self.reader.rows(from.as_ref(), &last, ROWS)?;
        *rest = read.last().map_or(RowsLeft::None, |(key, _)| RowsLeft::After(*key));
        let to = read.last().map_or(last, |(key, _)| *key);
        let mut rows: BTreeMap<EntryKey, Row> = read.into_iter().collect();
        for (key, row) in self.changes.entries.range((from, Bound::Included(to))) {
            match row {
                Some(row) => drop(rows.insert(*key, row.clone())),
                None => drop(rows.remove(key)),
            }
        }
        Ok(Some(rows))
    }

    /// Returns whether nothing in a directory is remembered.
    fn is_unknown(&self, place: &PlaceId) -> Inner<bool> {
        Ok(self.next_rows(place, &mut RowsLeft::All)?.is_none_or(|rows| rows.is_empty()))
    }

    /// Compares one directory, records new state, and queues its sub-directories. Returns false if
    /// it was not read to its end, because only small directories are to be read.
    fn directory(&mut self, dir: &Arc<dyn Dir>, mut here: Here) -> Inner<bool> {
        let open_now = Arc::strong_count(&self.opened);
        here.open = (open_now <= OPEN_MAX).then(|| (dir.clone(), self.opened.clone()));
        let here = Arc::new(here);
        let is_touched = self.memory.is_touched(&here.place);
        if !here.plain.is_empty() && !is_touched {
            self.latest = self.latest.max(dir.stat_self()?.ctime.secs);
        }
        // The entries that exist, by a part of their database keys. An attacker cannot choose
        // these parts, which depend on the vault's keys.
        let mut there: Vec<u64> = Vec::new();
        let listing = dir.reopen()?;
        let (mut cookie, mut read) = (0, 0);
        loop {
            let entries = listing.read(cookie, PIECE)?;
            let Some(last) = entries.last() else { break };
            cookie = last.next;
            read += entries.len();
            if read > LISTED_MAX && !self.whole {
                return Ok(false);
            }
            let folder = self.core.folder_at(dir.clone(), here.tag);
            for entry in entries.iter().filter(|e| !is_control(&e.name)) {
                self.give_way()?;
                let Some(present) = self.look(&folder, dir, &entry.name, is_touched)? else {
                    continue;
                };
                let key = self.memory.key(&here.place, &present.name);
                there.push(part(&key));
                self.entry(key, present, &here)?;
            }
            self.write_part()?;
        }
        self.visited.add(short(&here.place), Seen::default())?;
        there.sort_unstable();
        let (first, last) = keys_of(&prefix(&here.place));
        let mut from = Bound::Included(first);
        loop {
            let rows = self.reader.rows(from.as_ref(), &last, ROWS)?;
            let Some((key, _)) = rows.last() else { break };
            from = Bound::Excluded(*key);
            for (key, row) in rows {
                if there.binary_search(&part(&key)).is_err() {
                    self.absent(key, row, &here)?;
                }
            }
            self.write_part()?;
        }
        Ok(true)
    }

    /// Compares only these names of a directory, and records them. `before` are the numbers of
    /// files that had left their names, and of findings, before it was read.
    fn noted(
        &mut self,
        dir: &Arc<dyn Dir>,
        here: Here,
        names: &BTreeSet<&[u8]>,
        before: (usize, usize),
    ) -> Inner<()> {
        let here = Arc::new(here);
        let folder = self.core.folder_at(dir.clone(), here.tag);
        let (mut absent, mut outcome) = (Vec::new(), Ok(()));
        for &name in names {
            let present = match folder.find(name) {
                Ok((stored, _)) => self.look(&folder, dir, &stored, true),
                // A call with a name that is too long or not allowed has failed.
                Err(Fault::Os(libc::ENOENT | libc::ENAMETOOLONG | libc::EINVAL)) => Ok(None),
                Err(fault) => Err(fault),
            };
            let Ok(present) = present else {
                outcome = present.map(drop); // it must not keep the other names from being recorded
                continue;
            };
            let key = self.memory.key(&here.place, name);
            match present.filter(|present| present.name == name) {
                Some(present) => self.entry(key, present, &here)?,
                None => absent.extend(self.row(&key)?.map(|row| (key, row))),
            }
        }
        let now = (self.left.len(), self.found.len());
        if self.core.mode.synced && (now != before || !absent.is_empty()) {
            self.copies_of(&folder, dir, &here, names)?;
        }
        self.visited.add(short(&here.place), Seen::default())?;
        absent.into_iter().try_for_each(|(key, row)| self.absent(key, row, &here))?;
        outcome
    }

    /// Compares the conflict copies of these names, and entries that had them under a former key.
    /// No other entry is opened. A file that has left its name may still be there as a copy, and
    /// the newest version of an older file tells a note from an alarm. Ends early at the end of a
    /// mount, see [`LAST_NAMES_MAX`]: then the next comparison finds what is left.
    fn copies_of(
        &mut self,
        folder: &Folder,
        dir: &Arc<dyn Dir>,
        here: &Arc<Here>,
        names: &BTreeSet<&[u8]>,
    ) -> Inner<()> {
        let listing = dir.reopen()?;
        let (mut cookie, mut read) = (0, 0);
        loop {
            let entries = listing.read(cookie, PIECE)?;
            let Some(last) = entries.last() else { return Ok(()) };
            cookie = last.next;
            read += entries.len();
            if read > LAST_NAMES_MAX && self.memory.is_stopped() {
                return Ok(());
            }
            for entry in entries.iter().filter(|e| !is_control(&e.name)) {
                let meaning = self.core.read_name(&entry.name)?;
                let Some(Meaning::Name(sealed)) = meaning else { continue };
                if !names.contains(&sealed.plain[..]) {
                    continue;
                }
                let present = self.look(folder, dir, &entry.name, true)?;
                if let Some(present) = present.filter(|p| !names.contains(&p.name[..])) {
                    let key = self.memory.key(&here.place, &present.name);
                    self.entry(key, present, here)?;
                }
            }
            self.write_part()?;
        }
    }

    /// Returns the present state of an entry of the store; `None` if it is not a name of this
    /// directory.
    fn look(
        &mut self,
        folder: &Folder,
        dir: &Arc<dyn Dir>,
        stored: &[u8],
        is_touched: bool,
    ) -> Inner<Option<Present>> {
        let Some(meaning) = self.core.read_name(stored)? else { return Ok(None) };
        let Some(name) = folder.shown(stored, &meaning)? else { return Ok(None) };
        let (copy_of, is_former) = match meaning {
            Meaning::Name(sealed) if sealed.plain != name => {
                (Some(sealed.plain), sealed.is_old && sealed.suffix.is_empty())
            }
            _ => (None, false),
        };
        // Empty, torn or damaged, or the store fails: its state is unknown now.
        let thing = Thing { kind: FILE, id: NOTHING, version: 0 };
        let (inside, stored_name, is_share) = (None, stored.into(), false);
        let mut present =
            Present { name, copy_of, is_former, thing, inside, stored: stored_name, is_share };
        let stat = match dir.stat(stored) {
            Ok(stat) => stat,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(_) => return Ok(Some(present)),
        };
        if !is_touched {
            self.latest = self.latest.max(stat.ctime.secs);
        }
        match stat.kind {
            Kind::File => {
                if let Some((id, version)) = self.header(dir, stored) {
                    present.thing = Thing { kind: FILE, id, version };
                }
            }
            Kind::Dir => {
                present.thing.kind = DIRECTORY;
                if let Ok((tag, is_share)) = self.boundary(folder, dir, stored, &present.name) {
                    present.thing.id = self.memory.directory_id(&tag);
                    present.inside = (!is_share).then_some(tag);
                    present.is_share = is_share;
                }
            }
            _ => present.thing.kind = OTHER,
        }
        Ok(Some(present))
    }

    /// Returns the tag of a directory, and whether it is a share.
    fn boundary(
        &self,
        folder: &Folder,
        dir: &Arc<dyn Dir>,
        stored: &[u8],
        name: &[u8],
    ) -> Inner<(Tag, bool)> {
        let inner = dir.open_dir(stored)?;
        let place = folder.place_name(stored, name)?;
        let tag = self.core.keys.tag_of(stored).ok_or(Fault::Os(libc::ESTALE))?;
        match folder.check_boundary(&*inner, place.as_deref()) {
            Ok(()) => Ok((tag, false)),
            // The storage host can put a descriptor anywhere, but not the junction that refers to
            // it.
            Err(Fault::Boundary)
                if let Some(place) = place
                    && folder.junction(&place)?.is_some() =>
            {
                Ok((tag, true))
            }
            Err(fault) => Err(fault),
        }
    }

    /// Returns id and version of a file; `None` if its header cannot be read.
    fn header(&self, dir: &Arc<dyn Dir>, stored: &[u8]) -> Option<(Id, u64)> {
        let read = || {
            let file = self.core.journal.overlay(dir.open_file(stored, Access::Read)?)?;
            let header = self.core.keys.read_header(&*file)?;
            Ok::<_, Fault>((short(&header.public.file_id), header.version))
        };
        (0..TRIES).find_map(|_| read().ok())
    }

    /// Compares an existing entry.
    fn entry(&mut self, key: EntryKey, present: Present, here: &Arc<Here>) -> Inner<()> {
        let row = self.row(&key)?;
        let thing = present.thing;
        let plain = join(&here.plain, &present.name);
        let name = self.memory.tag(&here.place, &present.name);
        let accepted = self.options.accepts(&plain);
        let ours = self.memory.is_ours(&here.place, &present.name);
        self.compare_base(key, row.as_ref(), here, &present.name, ours)?;
        if thing.id == NOTHING && thing.kind != OTHER {
            let Some(row) = row else { return Ok(()) };
            if accepted {
                return self.absent(key, row, here);
            }
            if ours {
                self.is_back(key, &row, &present.name, here)?;
                return Ok(());
            }
            let (row, why) = (Some(row), Why::NotCompared);
            return self.pend(Pending { key, name, plain, ours, row, thing: None, why });
        }
        let same = row.as_ref().filter(|row| row.kind == thing.kind && row.id == thing.id);
        let is_not_newer = |row: &&Row| thing.kind == FILE && thing.version <= row.version;
        if let Some(row) = same.filter(is_not_newer).filter(|_| ours) {
            let row = row.clone();
            if self.is_back(key, &row, &present.name, here)? {
                return Ok(());
            }
        }
        let is_kept = same.is_some_and(|row| thing.version >= row.version);
        self.count(&present, here, is_kept)?;
        let other = row.clone().filter(|_| same.is_none());
        if !accepted && other.as_ref().is_some_and(|row| self.is_left_to_learn(row, ours)) {
            return Ok(());
        }
        if let Some(row) = &other
            && row.kind == DIRECTORY
        {
            let place = self.memory.place(&here.place, &present.name, &row.id);
            let noticed = !ours && !accepted;
            let pending = noticed.then(|| Pending {
                key,
                name,
                plain: plain.clone(),
                ours,
                row: Some(row.clone()),
                thing: Some(thing),
                why: Why::Gone,
            });
            self.vacated.add(Vacated { hash: row.id, place, pending })?;
            if noticed {
                return Ok(());
            }
        }
        if accepted {
            return self.learn_accepted(key, row.as_ref(), thing, &present.name, here);
        }
        let (why, mark) = self.suspicion(&present, here, same, other.as_ref(), ours)?;
        if let Some(why) = why {
            return self.pend(Pending { key, name, plain, ours, row, thing: Some(thing), why });
        }
        let is_full = self.room <= 0;
        let is_news = thing.kind == FILE && mark.map_or(!is_full, |mark| mark < thing.version);
        self.news |= is_news && !ours && !self.memory.is_committed(&thing.id);
        self.put(key, row.as_ref(), thing, &present.name)?;
        if let Some(row) = other.filter(|row| row.kind == FILE) {
            self.replace(&row, &present, here, ours, mark.is_none() && !is_full)?;
        }
        Ok(())
    }

    /// Returns whether [`Survey::learn`] is to record that a file has left its name, because a
    /// program of this client moved or replaced it while the whole vault is compared. The file may
    /// have a name by now whose directory was listed before, so that nothing shows it.
    fn is_left_to_learn(&self, row: &Row, ours: bool) -> bool {
        self.whole && ours && row.kind == FILE
    }

    /// Records that this client has removed, renamed or replaced the file of a row that is back
    /// under its name. Returns false if this client has not, or if [`Survey::learn`] is to record
    /// it. The next comparison reports the file as put back.
    fn is_back(&mut self, key: EntryKey, row: &Row, name: &[u8], here: &Here) -> Inner<bool> {
        if self.whole {
            return Ok(false);
        }
        if self.memory.has_left(&here.place, name) {
            self.leaves(row, here, name, true)?;
            self.set(key, None)?;
            return Ok(true);
        }
        let put = self.memory.put_there(&here.place, name);
        let Some((id, version)) = put.filter(|(id, _)| *id != row.id) else { return Ok(false) };
        let tag = self.memory.tag(&here.place, name);
        let over = Some(id);
        self.left.push(Left { name: tag, id: row.id, version: row.version, here: true, over })?;
        self.put(key, Some(row), Thing { kind: FILE, id, version }, name)?;
        Ok(true)
    }

    /// Notes that a file has taken the name of another file; with `is_new` one that this client had
    /// never seen.
    fn replace(
        &mut self,
        row: &Row,
        present: &Present,
        here: &Here,
        ours: bool,
        is_new: bool,
    ) -> Inner<()> {
        let by_us = ours || self.memory.is_touched(&here.place);
        let is_over = self.memory.is_taken(&here.place, &present.name)
            || self.memory.is_committed(&present.thing.id);
        let over = (is_over && self.core.mode.synced).then_some(present.thing.id);
        let name = self.memory.tag(&here.place, &present.name);
        self.left.push(Left { name, id: row.id, version: row.version, here: by_us, over })?;
        if by_us {
            self.keep_alarm(&self.memory.key(&here.place, &present.name));
        }
        if is_new && !by_us {
            keep_highest(&mut self.replaced, row.id, row.version);
        }
        if !self.whole
            && !ours
            && let Some(file) = self.file(&present.thing.id)?
        {
            let after = head(&row.id);
            self.changes.files.insert(present.thing.id, Some(FileRow { after, ..file }));
        }
        Ok(())
    }

    /// Counts an entry as seen, and queues a directory. `is_kept`: the name is remembered with the
    /// same object, and the object is not older than remembered.
    fn count(&mut self, present: &Present, here: &Arc<Here>, is_kept: bool) -> Inner<()> {
        let thing = present.thing;
        if thing.kind != OTHER {
            let (version, kept) = (thing.version, is_kept.then_some(thing.version));
            self.seen.add(thing.id, Seen { version, kept })?;
        }
        if let Some(of) = present.copy_of.as_ref().filter(|_| thing.kind == FILE) {
            let copy = (thing.id, self.memory.tag(&here.place, of));
            keep_highest(&mut self.copies, copy, thing.version);
        }
        let plain = present.copy_of.as_ref().filter(|_| present.is_former).unwrap_or(&present.name);
        let above = here.former.as_ref().or(present.is_former.then_some(&here.plain));
        let former = above.map(|above| join(above, plain));
        if let Some(former) = former.as_ref().filter(|_| thing.kind == FILE) {
            let former = (thing.id, self.memory.path_id(former));
            keep_highest(&mut self.former, former, thing.version);
        }
        if let Some(tag) = &present.inside {
            for hash in self.hashes_before(tag)? {
                self.seen.add(hash, Seen::default())?;
            }
            let place = self.memory.place(&here.place, &present.name, &thing.id);
            let inside = Inside { tag: *tag, hash: thing.id, place };
            if !self.whole {
                return if is_kept { Ok(()) } else { self.arrived.push(inside) };
            }
            let child = Child {
                parent: here.clone(),
                stored: present.stored.clone(),
                name: present.name.clone().into(),
                inside,
                former,
            };
            match is_kept {
                true => self.known.push(child)?,
                false => self.fresh.push(child)?,
            }
        } else if present.is_share {
            // The contents of the folder are in the share.
            let place = self.memory.place(&here.place, &present.name, &thing.id);
            if self.is_unknown(&place)? {
                return Ok(());
            }
            self.vacated.add(Vacated { hash: thing.id, place, pending: None })?;
        }
        Ok(())
    }

    /// Returns what is suspicious about an entry, and the highest version of it that was ever seen.
    /// `same` is its row if the entry was there before, `other` the row of what was in its place.
    fn suspicion(
        &self,
        present: &Present,
        here: &Here,
        same: Option<&Row>,
        other: Option<&Row>,
        ours: bool,
    ) -> Inner<(Option<Why>, Option<u64>)> {
        let thing = present.thing;
        let known = if thing.kind == FILE { self.file(&thing.id)? } else { None };
        let removed = if thing.kind == FILE { self.removed(&thing.id)? } else { None };
        let was_beside = known.as_ref().is_some_and(|known| known.beside == thing.version);
        let displaced = other.is_some_and(|row| row.kind == FILE);
        let floor = same.map(|row| row.version).or(known.as_ref().map(|known| known.version));
        // The highest version ever seen.
        let mark = floor
            .max(known.as_ref().map(|known| known.version))
            .max(removed.as_ref().map(|removed| removed.version));
        let why = if let Some(removed) =
            removed.filter(|r| same.is_none() && !ours && thing.version <= r.version)
        {
            let has = |name: &Vec<u8>| removed.names.contains(&self.memory.tag(&here.place, name));
            let same_name = has(&present.name) || present.copy_of.as_ref().is_some_and(has);
            let over = self.has_replaced(&removed, present, here, other)?;
            Some(Why::PutBack { removed, same_name, over })
        } else if floor.is_some_and(|floor| thing.version < floor) {
            // Under a known name it went backwards, or it is an older version under a new name.
            let innocent = was_beside && (same.is_none() || ours);
            (!innocent).then(|| Why::Older { was: floor.unwrap_or(0), backwards: same.is_some() })
        } else {
            None
        };
        // An object that takes a file's name must be new; otherwise the storage host could have put
        // it there.
        let is_successor =
            |row: &Row| known.as_ref().is_some_and(|known| known.after == head(&row.id));
        let begun = self.begun.as_ref().unwrap_or(&self.reader);
        let is_new_here = || {
            Ok::<_, Fault>(
                !self.whole
                    && begun.file(&thing.id)?.is_none()
                    && begun.removed(&thing.id)?.is_none(),
            )
        };
        let is_new = thing.kind == FILE
            && (mark.is_none() || other.is_some_and(is_successor) || is_new_here()?);
        Ok((why.or((displaced && !ours && !is_new).then_some(Why::Replaced)), mark))
    }

    /// Returns the file that this client knows at a name of the file `removed`, if it has put
    /// another one in its place there, and the present entry has this name or is a conflict copy of
    /// it. If nothing is known there, returns the file that was put there, if this client has
    /// renamed it.
    fn has_replaced(
        &self,
        removed: &RemovedRow,
        present: &Present,
        here: &Here,
        other: Option<&Row>,
    ) -> Inner<Option<Row>> {
        let Some((over, by)) = removed.over else { return Ok(None) };
        let is_it = |name: &[u8]| over == self.memory.tag(&here.place, name);
        let row = match &present.copy_of {
            _ if is_it(&present.name) => other.cloned(),
            Some(of) if is_it(of) => self.row(&self.memory.key(&here.place, of))?,
            _ => return Ok(None),
        };
        if row.is_none()
            && let Some(file) = self.file(&by)?.filter(|file| file.left == over)
        {
            let (seen, name) = (self.options.now, Vec::new());
            return Ok(Some(Row { kind: FILE, id: by, version: file.version, seen, name }));
        }
        Ok(row.filter(|row| row.kind == FILE && row.id != present.thing.id))
    }

    /// Compares an entry that is missing.
    fn absent(&mut self, key: EntryKey, row: Row, here: &Here) -> Inner<()> {
        let name = row.name.clone();
        let plain = join(&here.plain, &name);
        let ours = self.memory.is_ours(&here.place, &name);
        let accepted = self.options.accepts(&plain);
        if !accepted && self.is_left_to_learn(&row, ours) {
            return Ok(());
        }
        let is_settled = ours || accepted;
        self.compare_base(key, Some(&row), here, &name, ours)?;
        if ours {
            self.keep_alarm(&key);
        }
        let tag = self.memory.tag(&here.place, &name);
        if row.kind == DIRECTORY {
            let place = self.memory.place(&here.place, &name, &row.id);
            let pending = (!is_settled).then(|| Pending {
                key,
                name: tag,
                plain,
                ours,
                row: Some(row.clone()),
                thing: None,
                why: Why::Gone,
            });
            self.vacated.add(Vacated { hash: row.id, place, pending })?;
        } else if row.kind == FILE && !is_settled {
            let (row, thing, why) = (Some(row), None, Why::Gone);
            return self.pend(Pending { key, name: tag, plain, ours, row, thing, why });
        } else if row.kind == FILE {
            self.leaves(&row, here, &name, ours)?;
        }
        if row.kind != DIRECTORY || is_settled {
            self.set(key, None)?;
        }
        Ok(())
    }

    /// Creates a notice for a directory that could not be read, if anything in it is remembered.
    fn has_looked(
        &mut self,
        looked: Inner<bool>,
        key: EntryKey,
        place: &PlaceId,
        plain: Vec<u8>,
    ) -> Inner<()> {
        let Err(fault) = looked else { return Ok(()) };
        if self.memory.is_stopped() {
            return Ok(()); // nothing is judged any more, and the rows may be many
        }
        tracing::debug!(errno = fault.errno(), "rollback database: a directory cannot be read");
        if self.options.accepts(&plain) || self.is_unknown(place)? {
            return Ok(());
        }
        let row = self.row(&key)?;
        let (name, ours, thing) = (NameTag::default(), false, None);
        self.pend(Pending { key, name, plain, ours, row, thing, why: Why::NotCompared })
    }

    fn leaves(&mut self, row: &Row, here: &Here, name: &[u8], by_us: bool) -> Inner<()> {
        if row.kind == FILE {
            let name = self.memory.tag(&here.place, name);
            let Row { id, version, .. } = *row;
            // The file may have been replaced first, and the other one removed or renamed then.
            let done = self.memory.held.lock().done(&here.place, &row.name).filter(|_| by_us);
            let put = done.and_then(|done| done.put).map(|(put, _)| put);
            let over = put.filter(|put| *put != id);
            if let Some(done) = done.filter(|_| self.core.mode.synced) {
                self.moved_on.push((done.number, over.unwrap_or(id), name));
            }
            self.left.push(Left { name, id, version, here: by_us, over })?;
        }
        Ok(())
    }

    /// Records as removed the files that have left a name and were not seen elsewhere.
    fn retire(&mut self) -> Inner<()> {
        self.moved_on.sort_unstable();
        for (_, id, left) in std::mem::take(&mut self.moved_on) {
            if let Some(file) = self.file(&id)? {
                self.changes.files.insert(id, Some(FileRow { left, ..file }));
            }
        }
        let none = self.list();
        std::mem::replace(&mut self.left, none).drain(|left| self.retire_one(left))
    }

    fn retire_one(&mut self, left: Left) -> Inner<()> {
        let Left { name, id, version, here, over } = left;
        let file = self.file(&id)?;
        // If only part of the vault is read, the file may be at a remembered name elsewhere.
        let is_remembered = || file.as_ref().is_some_and(|file| file.names > 0);
        if self.seen.get(&id)?.is_some_and(|seen| seen.version >= version)
            || !self.whole && is_remembered()
        {
            return Ok(());
        }
        let mut removed = self.removed(&id)?.unwrap_or(RemovedRow::new(version, 0, here));
        let before = removed.version;
        removed.version =
            removed.version.max(version).max(file.as_ref().map_or(0, |file| file.version));
        removed.replaced = removed.replaced && before == removed.version
            || self.replaced.get(&id) == Some(&removed.version);
        removed.when = self.options.now;
        removed.here |= here;
        removed.over = over.map(|by| (name, by)).or(removed.over);
        removed.add_name(name);
        self.changes.removed.insert(id, Some(removed));
        if file.is_some_and(|file| file.names == 0) {
            self.changes.files.insert(id, None);
        }
        if self.whole && self.changes.len() >= BATCH {
            self.write()?;
        }
        Ok(())
    }

    fn learn_accepted(
        &mut self,
        key: EntryKey,
        row: Option<&Row>,
        thing: Thing,
        name: &[u8],
        here: &Here,
    ) -> Inner<()> {
        if let Some(row) = row.filter(|row| row.id != thing.id) {
            let row = row.clone();
            self.leaves(&row, here, name, false)?;
        }
        if thing.kind == FILE {
            let version = self.seen.get(&thing.id)?.map_or(thing.version, |seen| seen.version);
            let known = self.file(&thing.id)?.unwrap_or_default();
            let file = FileRow { version, beside: 0, ..known };
            self.changes.files.insert(thing.id, Some(file));
            self.changes.removed.insert(thing.id, None);
        }
        self.put(key, row, thing, name)
    }

    /// Records the object that has a name; `old` is the previous row.
    fn put(&mut self, key: EntryKey, old: Option<&Row>, thing: Thing, name: &[u8]) -> Inner<()> {
        if old.is_none() && self.room <= 0 {
            self.left_out += 1;
            return Ok(());
        }
        let is_known = old.is_some_and(|old| (old.kind, old.id) == (thing.kind, thing.id));
        let after = old.filter(|old| !is_known && old.kind == FILE).map_or(0, |old| head(&old.id));
        let now = self.options.now;
        let fresh = |seen: i64| now - seen < REFRESH;
        if thing.kind == FILE {
            let old = self.file(&thing.id)?;
            let file = match &old {
                Some(old) if thing.version < old.version => {
                    FileRow { beside: thing.version, ..*old }
                }
                Some(old) => FileRow { version: thing.version, ..*old },
                None => FileRow {
                    version: thing.version,
                    names: u32::from(is_known),
                    after,
                    ..FileRow::default()
                },
            };
            if old != Some(file) {
                self.changes.files.insert(thing.id, Some(file));
            }
            if self.removed(&thing.id)?.is_some_and(|removed| thing.version >= removed.version) {
                self.changes.removed.insert(thing.id, None);
            }
        }
        let as_it_was = |old: &Row| {
            (old.kind, old.id, old.version) == (thing.kind, thing.id, thing.version)
                && fresh(old.seen)
        };
        if !old.is_some_and(as_it_was) {
            self.set(
                key,
                Some(Row {
                    kind: thing.kind,
                    id: thing.id,
                    version: thing.version,
                    seen: now,
                    name: name.to_vec(),
                }),
            )?;
        }
        Ok(())
    }
}

/// Raises the version of a file in one of the maps that make an alarm a note. In a full map it is
/// left out, and the alarm remains.
fn keep_highest<K: Hash + Eq>(map: &mut HashMap<K, u64>, key: K, version: u64) {
    if map.len() < KEPT_MAX || map.contains_key(&key) {
        let highest = map.entry(key).or_default();
        *highest = version.max(*highest);
    }
}

/// Returns the first bytes of an id.
fn head(id: &Id) -> u64 {
    u64::from_le_bytes(id[..8].try_into().expect("8 of 10 bytes"))
}

/// Returns the part of a key that distinguishes the entries of one directory.
fn part(key: &EntryKey) -> u64 {
    u64::from_le_bytes(key[PREFIX..PREFIX + 8].try_into().expect("8 of 24 bytes"))
}

impl Memory {
    /// Records the local changes.
    pub(super) fn learn(&self, core: &Core, db: &Db) -> Inner<()> {
        let (touched, places, files) = {
            let mut held = self.held.lock();
            held.files_before = std::mem::take(&mut held.files).into();
            (held.touched.clone(), held.places.clone(), held.files_before.clone())
        };
        if touched.values().all(Touched::is_recorded) {
            return Ok(());
        }
        let options = SurveyOptions::default();
        Survey::new(core, self, db, &options, None)?.learn(&touched, &places, &files)?;
        self.held.lock().forget(&touched);
        self.recorded.notify_all();
        Ok(())
    }
}
