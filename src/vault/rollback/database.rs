//! The rollback database: an embedded store (redb), one file for each share, opened for short
//! periods only.
//!
//! Rules that hold here
//! * A process that opens it holds a lock on a file beside it, so that a mount and a command take
//!   turns instead of failing.
//! * It contains no plain names: keys are keyed hashes, names are sealed. File ids are in plain
//!   text in the vault too.
//! * A database that cannot be read, or that another version of the program made, is put aside and
//!   a new one is begun: it is auxiliary data, not the vault.
//! * Removed files are remembered up to a limit ([`REMOVED_MAX`]); other rows are removed with
//!   their entries.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Bound;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    TableDefinition, TableHandle, WriteTransaction,
};

use super::blocks::{Definition, Edits, Sealer, View, Writer};
use super::notice::Omitted;
use super::rows::{EntryKey, FileRow, ID, Id, KEY, NoticeRow, RemovedRow, Row};
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::rollback::memory::PlaceId;

const ENTRIES: Definition<KEY> = Definition("entries");
const FILES: Definition<ID> = Definition("files");
const REMOVED: Definition<ID> = Definition("removed");
const NOTICES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("notices");
/// Directories whose rows are still to be moved to other places.
const MOVES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("moves");
/// All tables but [`META`].
const TABLES: [TableDefinition<&[u8], &[u8]>; 5] =
    [ENTRIES.table(), FILES.table(), REMOVED.table(), NOTICES, MOVES];
const META: TableDefinition<&str, i64> = TableDefinition::new("meta");
/// Key of the start time of a mount that has not ended yet.
const SESSION: &str = "session";
/// Key that is there once a comparison of the whole vault has ended.
const COMPARED: &str = "compared";
/// Key that is there once another client has changed something since.
const OTHERS: &str = "others";
/// Key that is there if the vault was marked as synced when it was first compared.
const SYNCED: &str = "synced";
/// Key of the maximum number of entries.
const LIMIT: &str = "limit";
/// Key of the number of entries that the last comparison found and did not record, for want of
/// room.
const LEFT_OUT: &str = "left out";
/// Key of the number of notices that the last comparison counted and did not list.
const UNLISTED: &str = "unlisted";
/// Key of the time when the user last accepted a state.
const ACCEPTED: &str = "accepted";
/// Key of the layout version of the rows.
const LAYOUT: &str = "layout";
const LAYOUT_NOW: i64 = 4;
/// Maximum number of removed files that are remembered: up to 4 MiB of database. Beyond it the
/// oldest eighth is dropped, first the files that other machines removed.
pub(super) const REMOVED_MAX: u64 = if cfg!(test) { 64 } else { 65_536 };
/// Length in bytes of all removed files that are remembered, at most.
const REMOVED_LEN: u64 = REMOVED_MAX * 60;
/// Length in bytes of an entry and its file, at most, if the names are of usual length.
const ENTRY_LEN: u64 = 100;
/// Memory in bytes for pages of an open database.
const CACHE: usize = 8 << 20;
/// Length of a page of the database in bytes; every block has one.
const PAGE: u64 = 4096;
/// Number of directories that are read from [`MOVES`] at a time.
const MOVES_READ: usize = 1000;
/// Length in bytes up to which a database is not written anew, whatever it contains.
const SMALL: u64 = 1 << 20;

/// What is known of other clients of the vault. Each value is set once and never cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Others {
    /// The whole vault has been compared.
    pub compared: bool,
    /// Another client has changed something since.
    pub changed: bool,
    /// The vault was marked as synced when it was first compared.
    pub synced: bool,
}

pub(super) fn failed(e: impl Into<redb::Error>) -> Fault {
    Fault::Io(std::io::Error::other(e.into()))
}

/// The open database; other processes wait until it is dropped.
pub(super) struct Db {
    db: Database,
    path: PathBuf,
    _turn: fs::File,
}

impl Drop for Db {
    /// Writes the database anew if more than half of its file is unused.
    fn drop(&mut self) {
        if let Err(fault) = self.compact(8) {
            tracing::warn!("the rollback database cannot be made smaller: {fault:?}");
        }
    }
}

/// Changes that are made in one transaction.
#[derive(Default)]
pub(super) struct Changes {
    pub entries: BTreeMap<EntryKey, Option<Row>>,
    pub files: BTreeMap<Id, Option<FileRow>>,
    pub removed: BTreeMap<Id, Option<RemovedRow>>,
    /// Directories by their former places: their new ones, or `None` once all rows are moved.
    pub moves: BTreeMap<PlaceId, Option<PlaceId>>,
}

impl Changes {
    pub fn len(&self) -> usize {
        self.entries.len() + self.files.len() + self.removed.len() + self.moves.len()
    }
}

/// A snapshot of the rows.
pub(super) struct Reader {
    entries: View<KEY>,
    files: View<ID>,
    removed: View<ID>,
}

impl Reader {
    /// Returns the remembered state of an entry.
    pub fn row(&self, key: &EntryKey) -> Inner<Option<Row>> {
        Ok(self.entries.get(key)?.and_then(|row| Row::decode(&row)))
    }

    /// Returns the remembered state of an existing file.
    pub fn file(&self, id: &Id) -> Inner<Option<FileRow>> {
        Ok(self.files.get(id)?.and_then(|row| FileRow::decode(&row)))
    }

    /// Returns the remembered state of a removed file.
    pub fn removed(&self, id: &Id) -> Inner<Option<RemovedRow>> {
        Ok(self.removed.get(id)?.and_then(|row| RemovedRow::decode(&row)))
    }

    /// Returns the rows of entries between two keys: about `max`, or all that there are.
    pub fn rows(
        &self,
        from: Bound<&EntryKey>,
        to: &EntryKey,
        max: usize,
    ) -> Inner<Vec<(EntryKey, Row)>> {
        let rows = self.entries.range(from, to, max)?;
        Ok(rows.into_iter().filter_map(|(key, row)| Some((key, Row::decode(&row)?))).collect())
    }
}

impl Db {
    /// Returns the directory that the database is in.
    pub fn folder(&self) -> std::path::PathBuf {
        self.path.parent().map(Path::to_owned).unwrap_or_default()
    }

    /// Opens or creates the database at `path`; waits for its turn.
    pub fn open(path: &Path) -> Inner<Db> {
        if let Some(dir) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let turn = fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path.with_extension("lock"))?;
        rustix::fs::flock(&turn, rustix::fs::FlockOperation::LockExclusive)
            .map_err(std::io::Error::from)?;
        let db = match Self::open_tables(path) {
            Ok(db) => db,
            Err(fault) => {
                tracing::warn!(
                    "the rollback database cannot be read and is created again: {fault:?}"
                );
                fs::rename(path, path.with_extension("unreadable"))?;
                Self::open_tables(path)?
            }
        };
        Ok(Db { db, path: path.to_owned(), _turn: turn })
    }

    fn open_tables(path: &Path) -> Inner<Database> {
        create(path, false)?;
        let db = Database::builder().set_cache_size(CACHE).create(path).map_err(failed)?;
        let tx = db.begin_write().map_err(failed)?;
        let is_new = tx.list_tables().map_err(failed)?.all(|table| table.name() == META.name());
        {
            let mut meta = tx.open_table(META).map_err(failed)?;
            let layout = meta.get(LAYOUT).map_err(failed)?.map(|layout| layout.value());
            match layout {
                Some(LAYOUT_NOW) => {}
                None if is_new => drop(meta.insert(LAYOUT, LAYOUT_NOW).map_err(failed)?),
                _ => {
                    return Err(Fault::Corrupt(Corruption::Other(
                        "was made by another version of the program",
                    )));
                }
            }
        }
        for table in TABLES {
            tx.open_table(table).map_err(failed)?;
        }
        tx.commit().map_err(failed)?;
        Ok(db)
    }

    /// Gives back what is unused of the file, at the end of a session.
    pub fn tidy(self) {
        if let Err(fault) = self.compact(5) {
            tracing::warn!("the rollback database cannot be made smaller: {fault:?}");
        }
    }

    /// Copies the tables to a new file, which replaces the present one, if that takes more than
    /// `quarters` quarters of what its pages need. The database reuses what is free in its file,
    /// and never gives it back.
    fn compact(&self, quarters: u64) -> Inner<()> {
        let from = self.db.begin_read().map_err(failed)?;
        let mut pages = 0;
        for table in TABLES {
            pages += from.open_table(table).map_err(failed)?.len().map_err(failed)?;
        }
        let taken = fs::metadata(&self.path)?.blocks() * 512;
        if taken <= SMALL || 4 * taken <= quarters * PAGE * pages {
            return Ok(());
        }
        let path = self.path.with_extension("new");
        let copied = copy(&from, &path).and_then(|()| Ok(fs::rename(&path, &self.path)?));
        if copied.is_err() {
            // A part of a copy would take the room that the disk does not have.
            let _ = fs::remove_file(&path);
        }
        copied
    }

    /// Returns a snapshot of the rows.
    pub fn reader(&self, sealer: &Arc<Sealer>) -> Inner<Reader> {
        let tx = self.db.begin_read().map_err(failed)?;
        Ok(Reader {
            entries: View::open(&tx, ENTRIES, sealer)?,
            files: View::open(&tx, FILES, sealer)?,
            removed: View::open(&tx, REMOVED, sealer)?,
        })
    }

    /// Returns all notices.
    pub fn notices(&self) -> Inner<BTreeMap<EntryKey, NoticeRow>> {
        let tx = self.db.begin_read().map_err(failed)?;
        let table = tx.open_table(NOTICES).map_err(failed)?;
        let mut rows = BTreeMap::new();
        for item in table.iter().map_err(failed)? {
            let (key, value) = item.map_err(failed)?;
            if let (Ok(key), Some(row)) =
                (EntryKey::try_from(key.value()), NoticeRow::decode(value.value()))
            {
                rows.insert(key, row);
            }
        }
        Ok(rows)
    }

    /// Returns the start time of a session that has not ended.
    pub fn session(&self) -> Inner<Option<i64>> {
        self.meta(SESSION)
    }

    fn meta(&self, key: &str) -> Inner<Option<i64>> {
        let tx = self.db.begin_read().map_err(failed)?;
        let table = tx.open_table(META).map_err(failed)?;
        Ok(table.get(key).map_err(failed)?.map(|value| value.value()))
    }

    fn set_meta(&self, key: &str, value: i64) -> Inner<()> {
        if self.meta(key)? == Some(value) {
            return Ok(());
        }
        let tx = self.db.begin_write().map_err(failed)?;
        tx.open_table(META).map_err(failed)?.insert(key, value).map_err(failed)?;
        tx.commit().map_err(failed)
    }

    /// Limits the length of the database to this number of bytes, from now on.
    pub fn set_limit(&self, bytes: u64) -> Inner<()> {
        self.set_meta(LIMIT, (bytes.saturating_sub(REMOVED_LEN) / ENTRY_LEN) as i64)
    }

    /// Returns how many more entries may be recorded.
    pub fn room(&self) -> Inner<i64> {
        let Some(limit) = self.meta(LIMIT)? else { return Ok(i64::MAX / 2) };
        Ok(limit - self.meta(ENTRIES.0)?.unwrap_or(0))
    }

    /// Returns what the last comparison has omitted.
    pub fn omitted(&self) -> Inner<Omitted> {
        let number = |key| Ok::<_, Fault>(self.meta(key)?.unwrap_or(0) as u64);
        Ok(Omitted { entries: number(LEFT_OUT)?, notices: number(UNLISTED)? })
    }

    /// Records what a comparison has omitted.
    pub fn set_omitted(&self, omitted: Omitted) -> Inner<()> {
        self.set_meta(LEFT_OUT, omitted.entries as i64)?;
        self.set_meta(UNLISTED, omitted.notices as i64)
    }

    /// Returns when the user last accepted a state, in seconds since 1970.
    pub fn accepted(&self) -> Inner<i64> {
        Ok(self.meta(ACCEPTED)?.unwrap_or(i64::MIN))
    }

    /// Records when the user accepted a state.
    pub fn set_accepted(&self, at: i64) -> Inner<()> {
        self.set_meta(ACCEPTED, at)
    }

    /// Begins or ends a session.
    pub fn set_session(&self, since: Option<i64>) -> Inner<()> {
        let tx = self.db.begin_write().map_err(failed)?;
        {
            let mut table = tx.open_table(META).map_err(failed)?;
            match since {
                Some(since) => table.insert(SESSION, since).map_err(failed)?,
                None => table.remove(SESSION).map_err(failed)?,
            };
        }
        tx.commit().map_err(failed)
    }

    /// Returns what is known of other clients.
    pub fn others(&self) -> Inner<Others> {
        let tx = self.db.begin_read().map_err(failed)?;
        let table = tx.open_table(META).map_err(failed)?;
        let has = |key| Ok::<_, Fault>(table.get(key).map_err(failed)?.is_some());
        Ok(Others { compared: has(COMPARED)?, changed: has(OTHERS)?, synced: has(SYNCED)? })
    }

    /// Records what is known of other clients. A value that was set before stays set.
    pub fn set_others(&self, others: Others) -> Inner<()> {
        if self.others()? == others {
            return Ok(());
        }
        let tx = self.db.begin_write().map_err(failed)?;
        {
            let mut table = tx.open_table(META).map_err(failed)?;
            let known =
                [(COMPARED, others.compared), (OTHERS, others.changed), (SYNCED, others.synced)];
            for (key, _) in known.iter().filter(|(_, is)| *is) {
                table.insert(*key, 1).map_err(failed)?;
            }
        }
        tx.commit().map_err(failed)
    }

    /// Makes changes durable.
    pub fn apply(&self, sealer: &Sealer, changes: &Changes) -> Inner<()> {
        let tx = self.db.begin_write().map_err(failed)?;
        edit(&tx, sealer, ENTRIES, &encoded(&changes.entries, Row::encode))?;
        edit(&tx, sealer, FILES, &encoded(&changes.files, FileRow::encode))?;
        let removed = encoded(&changes.removed, RemovedRow::encode);
        if edit(&tx, sealer, REMOVED, &removed)? > REMOVED_MAX {
            forget_removed(&tx, sealer)?;
        }
        {
            let mut table = tx.open_table(MOVES).map_err(failed)?;
            for (old, new) in &changes.moves {
                match new {
                    Some(new) => table.insert(&old[..], &new[..]).map_err(failed)?,
                    None => table.remove(&old[..]).map_err(failed)?,
                };
            }
        }
        tx.commit().map_err(failed)
    }

    /// Returns the former and new places of some directories whose rows are still to be moved.
    pub fn moves(&self) -> Inner<Vec<(PlaceId, PlaceId)>> {
        let tx = self.db.begin_read().map_err(failed)?;
        let table = tx.open_table(MOVES).map_err(failed)?;
        let mut moves = Vec::new();
        for item in table.iter().map_err(failed)?.take(MOVES_READ) {
            let (old, new) = item.map_err(failed)?;
            if let (Ok(old), Ok(new)) = (old.value().try_into(), new.value().try_into()) {
                moves.push((old, new));
            }
        }
        Ok(moves)
    }

    /// Replaces all notices.
    pub fn set_notices(&self, notices: &BTreeMap<EntryKey, NoticeRow>) -> Inner<()> {
        if self.notices()? == *notices {
            return Ok(());
        }
        let tx = self.db.begin_write().map_err(failed)?;
        {
            let mut table = tx.open_table(NOTICES).map_err(failed)?;
            table.retain(|_, _| false).map_err(failed)?;
            for (key, row) in notices {
                table.insert(&key[..], &row.encode()[..]).map_err(failed)?;
            }
        }
        tx.commit().map_err(failed)
    }
}

/// Creates a file with the right mode. Leaves one that exists, or empties it with `truncate`.
fn create(path: &Path, truncate: bool) -> Inner<()> {
    fs::File::options().create(true).truncate(truncate).write(true).mode(0o600).open(path)?;
    Ok(())
}

/// Copies all tables to a new database at `path`.
fn copy(from: &ReadTransaction, path: &Path) -> Inner<()> {
    create(path, true)?;
    let copy = Database::builder().set_cache_size(CACHE).create(path).map_err(failed)?;
    let to = copy.begin_write().map_err(failed)?;
    for table in TABLES {
        let mut new = to.open_table(table).map_err(failed)?;
        for row in from.open_table(table).map_err(failed)?.iter().map_err(failed)? {
            let (key, value) = row.map_err(failed)?;
            new.insert(key.value(), value.value()).map_err(failed)?;
        }
    }
    let mut meta = to.open_table(META).map_err(failed)?;
    for row in from.open_table(META).map_err(failed)?.iter().map_err(failed)? {
        let (key, value) = row.map_err(failed)?;
        meta.insert(key.value(), value.value()).map_err(failed)?;
    }
    drop(meta);
    to.commit().map_err(failed)
}

fn encoded<const K: usize, R>(
    rows: &BTreeMap<[u8; K], Option<R>>,
    encode: impl Fn(&R) -> Vec<u8>,
) -> Edits<K> {
    rows.iter().map(|(key, row)| (*key, row.as_ref().map(&encode))).collect()
}

/// Changes records of a table. Returns how many there are now.
fn edit<const K: usize>(
    tx: &WriteTransaction,
    sealer: &Sealer,
    definition: Definition<K>,
    edits: &Edits<K>,
) -> Inner<u64> {
    let more = Writer::open(tx, definition, sealer)?.edit(edits)?;
    let name = definition.0;
    let mut meta = tx.open_table(META).map_err(failed)?;
    let count = meta.get(name).map_err(failed)?.map_or(0, |count| count.value()) + more;
    if more != 0 {
        meta.insert(name, count).map_err(failed)?;
    }
    Ok(count.max(0) as u64)
}

/// Drops the oldest removed files, first those that other machines removed.
fn forget_removed(tx: &WriteTransaction, sealer: &Sealer) -> Inner<()> {
    let mut all = Vec::new();
    Writer::open(tx, REMOVED, sealer)?.for_each(|id, row| {
        all.push((RemovedRow::decode(row).map(|row| (row.here, row.when)), id));
    })?;
    all.sort();
    all.truncate(all.len().saturating_sub((REMOVED_MAX - REMOVED_MAX / 8) as usize));
    let edits: Edits<ID> = all.into_iter().map(|(_, id)| (id, None)).collect();
    edit(tx, sealer, REMOVED, &edits).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removed files were remembered without a limit. Now the oldest are dropped, first those that
    /// other machines removed: removing many files elsewhere cannot make this machine forget its
    /// own removals.
    #[test]
    fn removed_files_are_remembered_up_to_a_limit() {
        let folder = tempfile::tempdir().expect("a directory");
        let db = Db::open(&folder.path().join("memory")).expect("open");
        let sealer = Arc::new(Sealer::for_tests());
        let id = |n: u64| [&n.to_le_bytes()[..], &[0; 2]].concat().try_into().expect("10 bytes");
        let add = |n: u64, here| {
            let row = RemovedRow {
                version: n,
                when: n as i64,
                here,
                replaced: !here,
                over: here.then_some(([1; 8], [2; ID])),
                names: vec![[1; 8]],
            };
            db.apply(
                &sealer,
                &Changes { removed: [(id(n), Some(row))].into(), ..Changes::default() },
            )
            .expect("apply");
        };
        let knows =
            |n: u64| db.reader(&sealer).expect("reader").removed(&id(n)).expect("read").is_some();
        (0..REMOVED_MAX / 2).for_each(|n| add(n, true));
        (REMOVED_MAX / 2..10 * REMOVED_MAX).for_each(|n| add(n, false));
        assert!((0..REMOVED_MAX / 2).all(knows), "those that were removed here");
        assert!(knows(10 * REMOVED_MAX - 1) && !knows(REMOVED_MAX));
        (0..=10 * REMOVED_MAX).for_each(|n| add(n, true));
        assert!(!knows(0) && knows(10 * REMOVED_MAX));
        assert!((0..=10 * REMOVED_MAX).filter(|n| knows(*n)).count() as u64 <= REMOVED_MAX);
    }

    /// A database kept the length that it had once, whatever was removed. Now its file is written
    /// anew, with everything that is still recorded.
    #[test]
    fn an_emptied_database_gives_its_file_back() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("memory");
        let sealer = Arc::new(Sealer::for_tests());
        let id = |n: u64| [&n.to_le_bytes()[..], &[0; 2]].concat().try_into().expect("10 bytes");
        let row = FileRow { version: 1, beside: 0, names: 1, after: 7, left: [0; 8] };
        let db = Db::open(&path).expect("open");
        let all = (0..100_000).map(|n| (id(n), Some(row))).collect();
        db.apply(&sealer, &Changes { files: all, ..Changes::default() }).expect("apply");
        db.set_session(Some(5)).expect("a session");
        db.tidy();
        let taken = || fs::metadata(&path).expect("metadata").blocks() * 512;
        assert!(taken() > 2 * SMALL, "{}", taken());
        let db = Db::open(&path).expect("open");
        let most = (1..100_000).map(|n| (id(n), None)).collect();
        db.apply(&sealer, &Changes { files: most, ..Changes::default() }).expect("apply");
        db.tidy();
        assert!(taken() <= SMALL, "{}", taken());
        let db = Db::open(&path).expect("open");
        assert_eq!(db.session().expect("read"), Some(5));
        let reader = db.reader(&sealer).expect("reader");
        assert_eq!(reader.file(&id(0)).expect("read"), Some(row));
        assert_eq!(reader.file(&id(1)).expect("read"), None);
        assert!(!path.with_extension("new").exists());
    }
}
