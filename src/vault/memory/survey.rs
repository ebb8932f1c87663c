//! The comparison of a vault with what is remembered of it.
//!
//! Rules that hold here
//! * Only what is authentic counts, on both sides. What cannot be read is the business of the check.
//! * What this client does itself is no news: names that it has changed are taken as they are.
//! * What is noticed is not learnt, so that it stays noticed until somebody accepts it or it is as it was.
//! * What is in a nested share is not compared: a share is remembered by who opens it alone.
//! * In the background it leaves the store alone for as long as it has asked it for something: a slow disk is there for those who wait for it.
//! * The memory learns a state only after the store was told to make it durable: it never runs ahead of the vault.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::db::{Changes, Db, EntryKey, FileRow, NoticeRow, PREFIX, Row};
use super::{Memory, Notice, NoticeKind, PlaceId, SurveyOptions, Touched};
use crate::backing::{Access, Dir, Kind};
use crate::format::name::is_control;
use crate::vault::check::{hints, join};
use crate::vault::control::list_at_most;
use crate::vault::core::Core;
use crate::vault::error::{Fault, Inner};
use crate::vault::keys::DirectoryId;

const FILE: u8 = 1;
const DIRECTORY: u8 = 2;
const OTHER: u8 = 3;
/// For how long the store is used in one go in the background.
const STRETCH: Duration = Duration::from_millis(5);
/// Changes that are written together.
const BATCH: usize = 4096;
/// Stands for the time of retirement of a file that has had several names at once: nobody can tell when the last of them goes.
const LINKED: i64 = -1;
/// Seconds after which a row that is as it was is written again, for its time.
const REFRESH: i64 = 86_400;
/// How many settle times it takes at most until what stays noticed is told, though the store does not come to rest.
const PATIENCE: i64 = 12;

/// A directory: its id, its place, its plain path.
type Inside = (DirectoryId, PlaceId, Vec<u8>);
/// Directories in a directory, by their stored names.
type Below = Vec<(Vec<u8>, Inside)>;

/// An entry as it is now.
struct Present {
    name: Vec<u8>,
    kind: u8,
    /// Id and version of a file, hash of the id of a directory.
    id: [u8; 32],
    version: u64,
    /// It has several names.
    linked: bool,
}

/// Something that is not as it was.
struct Candidate {
    key: EntryKey,
    plain: Vec<u8>,
    kind: NoticeKind,
    seen: i64,
    /// The file that is there, or that was.
    id: [u8; 32],
    /// The place of a directory that was there.
    inside: Option<PlaceId>,
    /// Where the file that is there stood before.
    from: EntryKey,
    /// What would be learnt.
    learn: Option<(Row, Option<FileRow>)>,
}

/// One comparison.
pub(super) struct Survey<'a> {
    core: &'a Core,
    memory: &'a Memory,
    db: &'a Db,
    options: &'a SurveyOptions,
    changes: Changes,
    candidates: Vec<Candidate>,
    /// Highest version of each file, and directories, that were seen.
    seen: HashMap<[u8; 32], u64>,
    /// Something was authentic and new, and not made here: somebody else has been at work.
    news: bool,
    /// When the store changed last, as far as its times tell.
    latest: i64,
    /// An earlier session did not end: it may have removed and moved what it could not note any more.
    forgiving: bool,
    /// Directories that were looked at.
    visited: HashSet<[u8; PREFIX]>,
    /// Places where directories do not stand any more, with the hashes of their ids: what was in them is forgotten in the end.
    vacated: Vec<(PlaceId, [u8; 32])>,
    /// In the background: since when the store has not been left alone.
    busy: Option<Instant>,
}

impl<'a> Survey<'a> {
    pub fn new(core: &'a Core, memory: &'a Memory, db: &'a Db, options: &'a SurveyOptions, forgiving: bool) -> Survey<'a> {
        Survey {
            core,
            memory,
            db,
            options,
            changes: Changes::default(),
            candidates: Vec::new(),
            seen: HashMap::new(),
            news: false,
            latest: i64::MIN,
            forgiving,
            visited: HashSet::new(),
            vacated: Vec::new(),
            busy: None,
        }
    }

    /// Nobody waits for this one: it gives way, and ends where the memory is stopped.
    pub fn in_background(self) -> Survey<'a> {
        Survey { busy: Some(Instant::now()), ..self }
    }

    /// Called between one entry and the next.
    ///
    /// # Errors
    /// `ECANCELED` where the memory is stopped.
    fn give_way(&mut self) -> Inner<()> {
        if let Some(since) = self.busy
            && since.elapsed() >= STRETCH
        {
            self.memory.wait(since.elapsed());
            if self.memory.is_stopped() {
                return Err(Fault::Os(libc::ECANCELED));
            }
            self.busy = Some(Instant::now());
        }
        Ok(())
    }

    /// Walks the whole vault. `None` where it was stopped.
    pub fn run(mut self) -> Inner<Option<Vec<Notice>>> {
        let root = self.core.keys.root_directory();
        let mut todo: Vec<(Arc<dyn Dir>, Inside)> = vec![(self.core.root.clone(), (root, root, Vec::new()))];
        while let Some((dir, (id, place, plain))) = todo.pop() {
            if self.memory.is_stopped() {
                return Ok(None);
            }
            let below = match self.directory(&dir, &id, &place, &plain) {
                Ok(below) => below,
                Err(fault) => {
                    tracing::debug!(errno = fault.errno(), "rollback memory: a directory cannot be looked at");
                    continue;
                }
            };
            if self.memory.is_full() {
                // What was found so far is older than that.
                self.write()?;
                self.memory.learn(self.core, self.db)?;
            }
            todo.extend(below.into_iter().filter_map(|(stored, inside)| Some((dir.open_dir(&stored).ok()?, inside))));
            if self.changes.len() >= BATCH {
                self.write()?;
            }
        }
        let notices = self.resolve()?;
        self.prune(true)?;
        self.write()?;
        self.db.set_notices(&notices)?;
        Ok(Some(self.memory.shown(&notices, self.options, self.latest)))
    }

    /// Only these directories, by their stored and plain paths: after changes made here.
    pub fn learn(mut self, touched: &HashMap<PlaceId, Touched>) -> Inner<()> {
        for (place, Touched { id, cipher, plain }) in touched {
            let dir = self.core.open_parent(cipher).and_then(|(dir, name)| Ok(if name.is_empty() { dir } else { dir.open_dir(name)? }));
            let Ok(dir) = dir else {
                // It is gone, or stands elsewhere by now. What was changed in it is forgotten, and learnt by the next survey.
                let prefix = super::prefix(place);
                let ours = self.db.rows(&prefix)?.into_keys().filter(|key| self.memory.is_ours(key));
                self.changes.entries.extend(ours.map(|key| (key, None)));
                continue;
            };
            match self.directory(&dir, id, place, plain) {
                Ok(_) => {}
                Err(fault) => tracing::debug!(errno = fault.errno(), "rollback memory: a directory cannot be looked at"),
            }
        }
        self.prune(false)?;
        self.write()
    }

    /// Forgets what was in directories that are not at their places any more. With `whole`, after a walk through all of the vault, the files
    /// that were in those which are nowhere else count as removed.
    fn prune(&mut self, whole: bool) -> Inner<()> {
        while let Some((place, id)) = self.vacated.pop() {
            let prefix = super::prefix(&place);
            if self.visited.contains(&prefix) {
                continue;
            }
            let rows = self.db.rows(&prefix)?;
            let files = self.db.files(rows.values().map(|row| &row.id))?;
            let removed = whole && !self.seen.contains_key(&id);
            for (key, row) in rows {
                if row.kind == DIRECTORY
                    && let Some(name) = self.memory.open(&row.name)
                {
                    self.vacated.push((self.memory.place(&place, &name, &row.id), row.id));
                }
                if removed && row.kind == FILE && !self.seen.contains_key(&row.id) {
                    self.retire(key, &row.id, &files);
                }
                self.changes.entries.insert(key, None);
            }
            if self.changes.len() >= BATCH {
                self.write()?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Inner<()> {
        let changes = std::mem::take(&mut self.changes);
        if changes.len() > 0 {
            match self.core.root.sync_store() {
                // Nothing waits to be written there.
                Err(e) if e.raw_os_error() == Some(libc::EROFS) => {}
                other => other?,
            }
            self.db.apply(&changes)?;
        }
        Ok(())
    }

    fn file_row(&self, rows: &BTreeMap<[u8; 32], FileRow>, id: &[u8; 32]) -> Option<FileRow> {
        self.changes.files.get(id).or_else(|| rows.get(id)).cloned()
    }

    /// Compares one directory, learns what is new, and gives the directories in it.
    fn directory(&mut self, dir: &Arc<dyn Dir>, id: &DirectoryId, place: &PlaceId, plain: &[u8]) -> Inner<Below> {
        let prefix = super::prefix(place);
        // What is remembered of a directory that has grown too large stays, for the time when it is smaller again.
        self.visited.insert(prefix);
        let Some((present, below)) = self.look(dir, id, place, plain)? else {
            tracing::debug!("rollback memory: a directory has too many entries to be compared");
            return Ok(Vec::new());
        };
        let mut rows = self.db.rows(&prefix)?;
        let ids: HashSet<[u8; 32]> = present.iter().map(|p| p.id).chain(rows.values().map(|r| r.id)).collect();
        let files = self.db.files(ids.iter())?;
        for entry in present {
            let key = self.memory.key(place, &entry.name);
            let row = rows.remove(&key);
            if let Some(row) = &row
                && row.kind == DIRECTORY
                && entry.id != row.id
                && (entry.id != [0; 32] || entry.kind == OTHER)
                && self.was_replaced(key, row, &entry, place, plain)?
            {
                continue;
            }
            self.entry(key, row, entry, &files, plain);
        }
        for (key, row) in rows {
            let accepted = self.memory.is_ours(&key) || self.options.accepts(plain);
            let name = self.memory.open(&row.name).unwrap_or_else(|| b"?".to_vec());
            let plain = join(plain, &name);
            let is_full = |inside| self.db.rows(&super::prefix(&inside)).map(|rows| !rows.is_empty());
            let matters = row.kind == FILE || row.kind == DIRECTORY && is_full(self.memory.place(place, &name, &row.id))?;
            if accepted || self.options.accepts(&plain) || !matters {
                if row.kind == DIRECTORY {
                    self.vacated.push((self.memory.place(place, &name, &row.id), row.id));
                }
                self.drop_row(key, &row, &files);
                continue;
            }
            let kind = NoticeKind::Gone { elsewhere: false };
            let inside = (row.kind == DIRECTORY).then(|| self.memory.place(place, &name, &row.id));
            self.candidates.push(Candidate { key, plain, kind, seen: row.seen, id: row.id, inside, from: key, learn: None });
        }
        Ok(below)
    }

    /// Something else stands where a directory stood, under its name. True where that is to be noticed, as if the directory were just gone.
    fn was_replaced(&mut self, key: EntryKey, row: &Row, entry: &Present, place: &PlaceId, dir: &[u8]) -> Inner<bool> {
        let old = self.memory.place(place, &entry.name, &row.id);
        let plain = join(dir, &entry.name);
        let accepted = self.memory.is_ours(&key) || self.options.accepts(&plain);
        if accepted || self.db.rows(&super::prefix(&old))?.is_empty() {
            self.vacated.push((old, row.id));
            return Ok(false);
        }
        let kind = NoticeKind::Gone { elsewhere: false };
        self.candidates.push(Candidate { key, plain, kind, seen: row.seen, id: row.id, inside: Some(old), from: key, learn: None });
        Ok(true)
    }

    fn drop_row(&mut self, key: EntryKey, row: &Row, files: &BTreeMap<[u8; 32], FileRow>) {
        self.changes.entries.insert(key, None);
        self.retire(key, &row.id, files);
    }

    /// The file is not at `key` any more; if that was its only place, it does not come back by itself.
    fn retire(&mut self, key: EntryKey, id: &[u8; 32], files: &BTreeMap<[u8; 32], FileRow>) {
        if let Some(row) = self.file_row(files, id)
            && row.at == key
            && row.retired == 0
        {
            self.changes.files.insert(*id, FileRow { retired: self.options.now, ..row });
        }
    }

    /// What is in a directory of the store; `None` where that is too much.
    fn look(&mut self, dir: &Arc<dyn Dir>, id: &DirectoryId, at: &PlaceId, plain: &[u8]) -> Inner<Option<(Vec<Present>, Below)>> {
        let Some(entries) = list_at_most(&**dir, self.options.entries_max)? else { return Ok(None) };
        let folder = self.core.folder_at(dir.clone(), *id);
        let (mut present, mut below) = (Vec::new(), Vec::new());
        let is_root = plain.is_empty();
        if !is_root && !self.memory.is_touched(at) {
            self.latest = self.latest.max(dir.stat_self()?.ctime.secs);
        }
        for entry in entries.iter().filter(|e| !is_control(&e.name)) {
            self.give_way()?;
            let Ok(Some(name)) = folder.decode(&entry.name) else { continue };
            let Ok(stat) = dir.stat(&entry.name) else { continue };
            if !self.memory.is_touched(at) {
                self.latest = self.latest.max(stat.ctime.secs);
            }
            let (kind, file, version) = match stat.kind {
                Kind::File => {
                    // Empty, torn or damaged: nothing is known of it now.
                    let file = dir.open_file(&entry.name, Access::Read).map_err(Fault::from);
                    match file.and_then(|file| hints::header_of(self.core, &*file)) {
                        Ok(header) => (FILE, header.public.file_id, header.version),
                        Err(_) => (FILE, [0; 32], 0),
                    }
                }
                Kind::Dir => {
                    let inside = dir.open_dir(&entry.name).map_err(Fault::from);
                    let found = inside.and_then(|inside| {
                        let place = folder.place_name(&entry.name, &name)?;
                        match self.core.check_boundary(&*inside, &**dir, id, &place) {
                            Ok(()) => Ok((folder.identify(&*inside, &entry.name, &name)?.1, false)),
                            Err(Fault::Boundary) => Ok((self.core.keys.derived_directory(id, &place), true)),
                            Err(fault) => Err(fault),
                        }
                    });
                    match found {
                        Ok((inner, is_share)) => {
                            let hash = self.memory.hash(&inner, b"");
                            if !is_share {
                                below.push((entry.name.to_vec(), (inner, self.memory.place(at, &name, &hash), join(plain, &name))));
                            }
                            (DIRECTORY, hash, 0)
                        }
                        Err(_) => (DIRECTORY, [0; 32], 0),
                    }
                }
                _ => (OTHER, [0; 32], 0),
            };
            if file != [0; 32] {
                let seen = self.seen.entry(file).or_insert(version);
                *seen = version.max(*seen);
            }
            let linked = stat.kind == Kind::File && stat.nlink > 1;
            present.push(Present { name, kind, id: file, version, linked });
        }
        Ok(Some((present, below)))
    }

    fn entry(&mut self, key: EntryKey, row: Option<Row>, entry: Present, files: &BTreeMap<[u8; 32], FileRow>, dir: &[u8]) {
        if entry.id == [0; 32] && entry.kind != OTHER {
            return;
        }
        let plain = join(dir, &entry.name);
        let known = if entry.kind == FILE { self.file_row(files, &entry.id) } else { None };
        let ours = self.memory.is_ours(&key);
        let accepted = self.options.accepts(&plain);
        let replaced = row.as_ref().filter(|r| r.kind == FILE && r.id != entry.id).cloned();
        let name = match &row {
            Some(row) => row.name.clone(),
            None => self.memory.seal(&entry.name),
        };
        let new_row = Row { kind: entry.kind, id: entry.id, seen: self.options.now, name };
        let version = if accepted { entry.version } else { known.as_ref().map_or(0, |k| k.version).max(entry.version) };
        let retired = if entry.linked || known.as_ref().is_some_and(|k| k.retired == LINKED) { LINKED } else { 0 };
        let new_file = (entry.kind == FILE).then_some(FileRow { version, seen: self.options.now, retired, at: key });
        if entry.kind == FILE && !accepted {
            let candidate = match &known {
                Some(known) if known.version > entry.version => {
                    let kind = NoticeKind::Older { was: known.version, now: entry.version };
                    Some((kind, known.seen, known.at))
                }
                Some(known) if !ours && replaced.is_some() && known.retired > 0 => Some((NoticeKind::PutBack, known.retired, known.at)),
                Some(known) if !ours && replaced.is_some() && known.retired == 0 && known.at != key => {
                    Some((NoticeKind::Exchanged, known.seen, known.at))
                }
                _ => None,
            };
            if let Some((kind, seen, from)) = candidate {
                let learn = Some((new_row, new_file));
                self.candidates.push(Candidate { key, plain, kind, seen, id: entry.id, inside: None, from, learn });
                return;
            }
        }
        let is_news = match &known {
            None => entry.kind == FILE,
            Some(known) => known.version < entry.version,
        };
        // What was touched in this session is committed here.
        self.news |= is_news && !ours && !self.memory.is_touched_key(&key);
        if let Some(replaced) = replaced {
            self.retire(key, &replaced.id, files);
        }
        self.put(key, row, new_row, known, new_file);
    }

    fn put(&mut self, key: EntryKey, old: Option<Row>, new: Row, old_file: Option<FileRow>, new_file: Option<FileRow>) {
        let fresh = |seen: i64| self.options.now - seen < REFRESH;
        if !old.is_some_and(|old| old.id == new.id && old.kind == new.kind && fresh(old.seen)) {
            self.changes.entries.insert(key, Some(new.clone()));
        }
        if let Some(file) = new_file {
            let same = |o: FileRow| (o.version, o.retired, o.at) == (file.version, file.retired, file.at) && fresh(o.seen);
            if !old_file.is_some_and(same) {
                self.changes.files.insert(new.id, file);
            }
        }
    }

    /// What of the candidates is left once the whole vault was seen.
    fn resolve(&mut self) -> Inner<BTreeMap<EntryKey, NoticeRow>> {
        let before = self.db.notices()?;
        let moved: HashSet<EntryKey> = self.candidates.iter().filter(|c| c.kind == NoticeKind::Exchanged).map(|c| c.key).collect();
        let mut notices = BTreeMap::new();
        for candidate in std::mem::take(&mut self.candidates) {
            let mut kind = candidate.kind;
            let innocent = match &mut kind {
                // The newer one is there as well: a sync tool keeps both of a conflict.
                NoticeKind::Older { was, .. } => self.seen.get(&candidate.id).is_some_and(|seen| seen >= was),
                // Each of the two stands where a known one stood, or somebody has just renamed something.
                NoticeKind::Exchanged => self.forgiving || !moved.contains(&candidate.from),
                NoticeKind::PutBack => false,
                NoticeKind::Gone { elsewhere } => {
                    // The news that came with it are none any more by the next comparison.
                    let was_told = |old: &NoticeRow| NoticeKind::decode(old.what, old.was, old.now) == NoticeKind::Gone { elsewhere: true };
                    *elsewhere = self.news || before.get(&candidate.key).is_some_and(was_told);
                    self.forgiving || self.seen.contains_key(&candidate.id)
                }
            };
            if innocent {
                match (candidate.learn, kind) {
                    (Some((_, _)), NoticeKind::Older { .. }) => {}
                    (Some((row, file)), _) => self.put(candidate.key, None, row, None, file),
                    (None, _) => {
                        self.vacated.extend(candidate.inside.map(|place| (place, candidate.id)));
                        let files = self.db.files([candidate.id].iter())?;
                        let row = Row { kind: FILE, id: candidate.id, seen: 0, name: Vec::new() };
                        let elsewhere = self.seen.contains_key(&candidate.id);
                        if elsewhere {
                            drop(self.changes.entries.insert(candidate.key, None))
                        } else {
                            self.drop_row(candidate.key, &row, &files)
                        }
                    }
                }
                continue;
            }
            let (what, was, now) = kind.encode();
            let old = before.get(&candidate.key).filter(|old| old.what == what && old.now == now);
            let path = self.memory.seal(&candidate.plain);
            let path = old.map_or(path, |old| old.path.clone());
            let first = old.map_or(self.options.now, |old| old.first);
            let silenced = self.options.silence || old.is_some_and(|old| old.silenced);
            notices.insert(candidate.key, NoticeRow { what, was, now, seen: candidate.seen, first, silenced, path });
        }
        Ok(notices)
    }
}

impl Memory {
    /// Notices as they are shown; `latest` is when the store changed last.
    pub(super) fn shown(&self, rows: &BTreeMap<EntryKey, NoticeRow>, options: &SurveyOptions, latest: i64) -> Vec<Notice> {
        let settle = options.settle.as_secs() as i64;
        let show = |row: &NoticeRow| Notice {
            plain: self.open(&row.path).unwrap_or_else(|| b"?".to_vec()),
            kind: NoticeKind::decode(row.what, row.was, row.now),
            seen: row.seen,
            first: row.first,
            due: options.now.saturating_sub(latest.min(options.now)) >= settle || options.now - row.first >= PATIENCE * settle,
            silenced: row.silenced,
        };
        let mut notices: Vec<Notice> = rows.values().map(show).collect();
        notices.sort_by(|a, b| a.plain.cmp(&b.plain));
        notices
    }
}
