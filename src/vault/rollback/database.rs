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
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use redb::{
    Database, ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    TableDefinition, TableHandle,
};

use crate::vault::error::{Corruption, Fault, Inner};

/// Hash of a directory's id, and of the id and a name.
pub(super) type EntryKey = [u8; 48];
/// Length in bytes of the part of an [`EntryKey`] that all entries of a directory share.
pub(super) const PREFIX: usize = 16;

const ENTRIES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("entries");
const FILES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("files");
const REMOVED: TableDefinition<&[u8], &[u8]> = TableDefinition::new("removed");
const NOTICES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("notices");
const META: TableDefinition<&str, i64> = TableDefinition::new("meta");
/// Key of the start time of a mount that has not ended yet.
const SESSION: &str = "session";
/// Key that is there once a comparison of the whole vault has ended.
const COMPARED: &str = "compared";
/// Key that is there once another client has changed something since.
const OTHERS: &str = "others";
/// Key that is there if the vault was marked as synced when it was first compared.
const SYNCED: &str = "synced";
/// Key of the layout version of the rows.
const LAYOUT: &str = "layout";
const LAYOUT_NOW: i64 = 2;
/// Maximum number of removed files that are remembered: about 10 MiB of database. Beyond it the
/// oldest eighth is dropped, first the files that other machines removed.
pub(super) const REMOVED_MAX: u64 = if cfg!(test) { 64 } else { 65_536 };
/// Maximum number of names remembered for one removed file.
const NAMES_MAX: usize = 8;

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

/// The remembered state of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// 1 file, 2 directory, 3 anything else.
    pub kind: u8,
    /// Id of the file, hash of the id of the directory, or zeros.
    pub id: [u8; 32],
    /// For a file: the highest version seen under this name.
    pub version: u64,
    pub seen: i64,
    /// The plain name, sealed.
    pub name: Vec<u8>,
}

/// The remembered state of an existing file, by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileRow {
    /// The highest version seen under any name.
    pub version: u64,
    /// A lower version seen at the same time under another name; 0 for none.
    pub beside: u64,
    pub seen: i64,
    /// Number of remembered entries that are this file.
    pub names: u32,
    /// The first bytes of the id of the file that it replaced, or 0: a truncated file gets a new
    /// id, under all of its names.
    pub after: u64,
}

/// Hash of the place of a directory and a name in it.
pub(super) type NameTag = [u8; 16];

/// The remembered state of a file that was removed or replaced, by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemovedRow {
    /// The highest version seen before.
    pub version: u64,
    pub when: i64,
    /// This machine removed or replaced it.
    pub here: bool,
    /// The names from which it was removed.
    pub names: Vec<NameTag>,
}

/// An unsettled notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoticeRow {
    /// Kind of the notice; 0: at the moment there is nothing to report.
    pub what: u8,
    pub was: u64,
    pub now: u64,
    pub seen: i64,
    /// When this entry first had a notice.
    pub first: i64,
    /// When this entry last had a notice.
    pub last: i64,
    pub silenced: bool,
    /// The plain path, sealed.
    pub path: Vec<u8>,
}

fn failed(e: impl Into<redb::Error>) -> Fault {
    Fault::Io(std::io::Error::other(e.into()))
}

struct Take<'a>(&'a [u8]);

impl<'a> Take<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.bytes(1)?[0])
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn i64(&mut self) -> Option<i64> {
        self.u64().map(|n| n as i64)
    }
}

impl Row {
    fn encode(&self) -> Vec<u8> {
        [
            &[self.kind],
            &self.id[..],
            &self.version.to_le_bytes(),
            &self.seen.to_le_bytes(),
            &self.name,
        ]
        .concat()
    }

    fn decode(bytes: &[u8]) -> Option<Row> {
        let mut t = Take(bytes);
        Some(Row {
            kind: t.u8()?,
            id: t.bytes(32)?.try_into().ok()?,
            version: t.u64()?,
            seen: t.i64()?,
            name: t.0.to_vec(),
        })
    }
}

impl FileRow {
    fn encode(&self) -> Vec<u8> {
        [
            &self.version.to_le_bytes()[..],
            &self.beside.to_le_bytes(),
            &self.seen.to_le_bytes(),
            &self.names.to_le_bytes(),
            &self.after.to_le_bytes(),
        ]
        .concat()
    }

    fn decode(bytes: &[u8]) -> Option<FileRow> {
        let mut t = Take(bytes);
        Some(FileRow {
            version: t.u64()?,
            beside: t.u64()?,
            seen: t.i64()?,
            names: u32::from_le_bytes(t.bytes(4)?.try_into().ok()?),
            after: t.u64()?,
        })
    }
}

impl RemovedRow {
    /// Adds a name, in place of the oldest if there are too many.
    pub fn add_name(&mut self, name: NameTag) {
        if !self.names.contains(&name) {
            if self.names.len() == NAMES_MAX {
                self.names.remove(0);
            }
            self.names.push(name);
        }
    }

    fn encode(&self) -> Vec<u8> {
        [
            &self.version.to_le_bytes()[..],
            &self.when.to_le_bytes(),
            &[self.here.into()],
            self.names.as_flattened(),
        ]
        .concat()
    }

    fn decode(bytes: &[u8]) -> Option<RemovedRow> {
        let mut t = Take(bytes);
        let (version, when, here) = (t.u64()?, t.i64()?, t.u8()? != 0);
        let names = t.0.chunks_exact(16).map(|name| name.try_into().expect("16 bytes")).collect();
        Some(RemovedRow { version, when, here, names })
    }
}

impl NoticeRow {
    fn encode(&self) -> Vec<u8> {
        let numbers = [self.was, self.now].map(u64::to_le_bytes).concat();
        let times = [self.seen, self.first, self.last].map(i64::to_le_bytes).concat();
        [&[self.what, self.silenced.into()], &numbers[..], &times, &self.path].concat()
    }

    fn decode(bytes: &[u8]) -> Option<NoticeRow> {
        let mut t = Take(bytes);
        let (what, silenced) = (t.u8()?, t.u8()? != 0);
        let (was, now, seen, first, last) = (t.u64()?, t.u64()?, t.i64()?, t.i64()?, t.i64()?);
        Some(NoticeRow { what, was, now, seen, first, last, silenced, path: t.0.to_vec() })
    }
}

/// The open database; other processes wait until it is dropped.
pub(super) struct Db {
    db: Database,
    _turn: fs::File,
}

/// Changes that are made in one transaction.
#[derive(Default)]
pub(super) struct Changes {
    pub entries: BTreeMap<EntryKey, Option<Row>>,
    pub files: BTreeMap<[u8; 32], Option<FileRow>>,
    pub removed: BTreeMap<[u8; 32], Option<RemovedRow>>,
}

impl Changes {
    pub fn len(&self) -> usize {
        self.entries.len() + self.files.len() + self.removed.len()
    }
}

/// A snapshot of the rows.
pub(super) struct Reader {
    entries: ReadOnlyTable<&'static [u8], &'static [u8]>,
    files: ReadOnlyTable<&'static [u8], &'static [u8]>,
    removed: ReadOnlyTable<&'static [u8], &'static [u8]>,
}

impl Reader {
    /// Returns the remembered state of an entry.
    pub fn row(&self, key: &EntryKey) -> Inner<Option<Row>> {
        Ok(self.entries.get(&key[..]).map_err(failed)?.and_then(|row| Row::decode(row.value())))
    }

    /// Returns the remembered state of an existing file.
    pub fn file(&self, id: &[u8; 32]) -> Inner<Option<FileRow>> {
        Ok(self.files.get(&id[..]).map_err(failed)?.and_then(|row| FileRow::decode(row.value())))
    }

    /// Returns the remembered state of a removed file.
    pub fn removed(&self, id: &[u8; 32]) -> Inner<Option<RemovedRow>> {
        Ok(self
            .removed
            .get(&id[..])
            .map_err(failed)?
            .and_then(|row| RemovedRow::decode(row.value())))
    }

    /// Returns at most `max` rows of a directory, from the key after `after` on.
    pub fn rows(
        &self,
        prefix: &[u8; PREFIX],
        after: Option<&EntryKey>,
        max: usize,
    ) -> Inner<Vec<(EntryKey, Row)>> {
        use std::ops::Bound::{Excluded, Included};
        let (mut from, mut to) = ([0; 48], [0xff; 48]);
        from[..PREFIX].copy_from_slice(prefix);
        to[..PREFIX].copy_from_slice(prefix);
        let from = after.map_or(Included(&from[..]), |after| Excluded(&after[..]));
        let mut rows = Vec::new();
        for item in
            self.entries.range::<&[u8]>((from, Included(&to[..]))).map_err(failed)?.take(max)
        {
            let (key, value) = item.map_err(failed)?;
            if let (Ok(key), Some(row)) =
                (EntryKey::try_from(key.value()), Row::decode(value.value()))
            {
                rows.push((key, row));
            }
        }
        Ok(rows)
    }
}

impl Db {
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
        Ok(Db { db, _turn: turn })
    }

    fn open_tables(path: &Path) -> Inner<Database> {
        // Created here to set its mode.
        fs::File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        let db = Database::create(path).map_err(failed)?;
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
        for table in [ENTRIES, FILES, REMOVED, NOTICES] {
            tx.open_table(table).map_err(failed)?;
        }
        tx.commit().map_err(failed)?;
        Ok(db)
    }

    /// Returns a snapshot of the rows.
    pub fn reader(&self) -> Inner<Reader> {
        let tx = self.db.begin_read().map_err(failed)?;
        Ok(Reader {
            entries: tx.open_table(ENTRIES).map_err(failed)?,
            files: tx.open_table(FILES).map_err(failed)?,
            removed: tx.open_table(REMOVED).map_err(failed)?,
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
        let tx = self.db.begin_read().map_err(failed)?;
        let table = tx.open_table(META).map_err(failed)?;
        Ok(table.get(SESSION).map_err(failed)?.map(|since| since.value()))
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
    pub fn apply(&self, changes: &Changes) -> Inner<()> {
        let tx = self.db.begin_write().map_err(failed)?;
        {
            let mut entries = tx.open_table(ENTRIES).map_err(failed)?;
            for (key, row) in &changes.entries {
                match row {
                    Some(row) => entries.insert(&key[..], &row.encode()[..]).map_err(failed)?,
                    None => entries.remove(&key[..]).map_err(failed)?,
                };
            }
            let mut files = tx.open_table(FILES).map_err(failed)?;
            for (id, row) in &changes.files {
                match row {
                    Some(row) => files.insert(&id[..], &row.encode()[..]).map_err(failed)?,
                    None => files.remove(&id[..]).map_err(failed)?,
                };
            }
            let mut removed = tx.open_table(REMOVED).map_err(failed)?;
            for (id, row) in &changes.removed {
                match row {
                    Some(row) => removed.insert(&id[..], &row.encode()[..]).map_err(failed)?,
                    None => removed.remove(&id[..]).map_err(failed)?,
                };
            }
            if removed.len().map_err(failed)? > REMOVED_MAX {
                let mut all = Vec::new();
                for item in removed.iter().map_err(failed)? {
                    let (id, row) = item.map_err(failed)?;
                    all.push((
                        RemovedRow::decode(row.value()).map(|row| (row.here, row.when)),
                        id.value().to_vec(),
                    ));
                }
                all.sort();
                all.truncate(all.len() - (REMOVED_MAX - REMOVED_MAX / 8) as usize);
                for (_, id) in all {
                    removed.remove(&id[..]).map_err(failed)?;
                }
            }
        }
        tx.commit().map_err(failed)
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
        let id = |n: u64| {
            [n.to_le_bytes(), [0; 8], [0; 8], [0; 8]].concat().try_into().expect("32 bytes")
        };
        let add = |n: u64, here| {
            let row = RemovedRow { version: n, when: n as i64, here, names: vec![[1; 16]] };
            db.apply(&Changes { removed: [(id(n), Some(row))].into(), ..Changes::default() })
                .expect("apply");
        };
        let knows = |n: u64| db.reader().expect("reader").removed(&id(n)).expect("read").is_some();
        (0..REMOVED_MAX / 2).for_each(|n| add(n, true));
        (REMOVED_MAX / 2..10 * REMOVED_MAX).for_each(|n| add(n, false));
        assert!((0..REMOVED_MAX / 2).all(knows), "those that were removed here");
        assert!(knows(10 * REMOVED_MAX - 1) && !knows(REMOVED_MAX));
        (0..=10 * REMOVED_MAX).for_each(|n| add(n, true));
        assert!(!knows(0) && knows(10 * REMOVED_MAX));
        assert!((0..=10 * REMOVED_MAX).filter(|n| knows(*n)).count() as u64 <= REMOVED_MAX);
    }
}
