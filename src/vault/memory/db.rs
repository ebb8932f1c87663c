//! The database of the memory: an embedded store (redb), one file for each share, opened for moments only.
//!
//! Rules that hold here
//! * Whoever opens it holds a lock on a file beside it, so that a mount and a command take turns instead of failing.
//! * It holds no plain names: keys are keyed hashes, names are sealed. Ids of files stand in clear in the vault as well.
//! * A database that cannot be read is put aside, and a new one begun: it is a memory, not the vault.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use crate::vault::error::{Fault, Inner};

/// Hash of a directory's id, and of the id and a name.
pub(super) type EntryKey = [u8; 48];
/// The part of an [`EntryKey`] that all entries of a directory share.
pub(super) const PREFIX: usize = 16;

const ENTRIES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("entries");
const FILES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("files");
const NOTICES: TableDefinition<&[u8], &[u8]> = TableDefinition::new("notices");
const META: TableDefinition<&str, i64> = TableDefinition::new("meta");
/// Since when a mount that has not ended yet has been going on.
const SESSION: &str = "session";

/// What is remembered of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// 1 file, 2 directory, 3 anything else.
    pub kind: u8,
    /// Id of the file, hash of the id of the directory, or zeros.
    pub id: [u8; 32],
    pub seen: i64,
    /// The plain name, sealed.
    pub name: Vec<u8>,
}

/// What is remembered of a file, by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileRow {
    pub version: u64,
    pub seen: i64,
    /// When something else took its place; 0 while it is there.
    pub retired: i64,
    pub at: EntryKey,
}

/// What was noticed and not settled yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoticeRow {
    pub what: u8,
    pub was: u64,
    pub now: u64,
    pub seen: i64,
    pub first: i64,
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

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn i64(&mut self) -> Option<i64> {
        self.u64().map(|n| n as i64)
    }
}

impl Row {
    fn encode(&self) -> Vec<u8> {
        [&[self.kind], &self.id[..], &self.seen.to_le_bytes(), &self.name].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Row> {
        let mut t = Take(bytes);
        Some(Row { kind: t.bytes(1)?[0], id: t.bytes(32)?.try_into().ok()?, seen: t.i64()?, name: t.0.to_vec() })
    }
}

impl FileRow {
    fn encode(&self) -> Vec<u8> {
        [&self.version.to_le_bytes()[..], &self.seen.to_le_bytes(), &self.retired.to_le_bytes(), &self.at].concat()
    }

    fn decode(bytes: &[u8]) -> Option<FileRow> {
        let mut t = Take(bytes);
        Some(FileRow { version: t.u64()?, seen: t.i64()?, retired: t.i64()?, at: t.bytes(48)?.try_into().ok()? })
    }
}

impl NoticeRow {
    fn encode(&self) -> Vec<u8> {
        let numbers = [self.was.to_le_bytes(), self.now.to_le_bytes(), self.seen.to_le_bytes(), self.first.to_le_bytes()].concat();
        [&[self.what, self.silenced.into()], &numbers[..], &self.path].concat()
    }

    fn decode(bytes: &[u8]) -> Option<NoticeRow> {
        let mut t = Take(bytes);
        let head = t.bytes(2)?;
        let (was, now, seen, first) = (t.u64()?, t.u64()?, t.i64()?, t.i64()?);
        Some(NoticeRow { what: head[0], silenced: head[1] != 0, was, now, seen, first, path: t.0.to_vec() })
    }
}

/// The open database; others wait until it is dropped.
pub(super) struct Db {
    db: Database,
    _turn: fs::File,
}

/// Changes that are made together.
#[derive(Default)]
pub(super) struct Changes {
    pub entries: BTreeMap<EntryKey, Option<Row>>,
    pub files: BTreeMap<[u8; 32], FileRow>,
}

impl Changes {
    pub fn len(&self) -> usize {
        self.entries.len() + self.files.len()
    }
}

impl Db {
    /// Opens or makes the database at `path`; waits for its turn.
    pub fn open(path: &Path) -> Inner<Db> {
        if let Some(dir) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let turn = fs::File::options().create(true).truncate(false).write(true).mode(0o600).open(path.with_extension("lock"))?;
        rustix::fs::flock(&turn, rustix::fs::FlockOperation::LockExclusive).map_err(std::io::Error::from)?;
        let make = || -> Inner<Database> {
            // Made here, for its mode.
            fs::File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
            let db = Database::create(path).map_err(failed)?;
            let tx = db.begin_write().map_err(failed)?;
            for table in [ENTRIES, FILES, NOTICES] {
                tx.open_table(table).map_err(failed)?;
            }
            tx.open_table(META).map_err(failed)?;
            tx.commit().map_err(failed)?;
            Ok(db)
        };
        let db = match make() {
            Ok(db) => db,
            Err(fault) => {
                tracing::warn!("the rollback memory cannot be read and begins anew: {fault:?}");
                fs::rename(path, path.with_extension("unreadable"))?;
                make()?
            }
        };
        Ok(Db { db, _turn: turn })
    }

    /// Rows of a directory.
    pub fn rows(&self, prefix: &[u8; PREFIX]) -> Inner<BTreeMap<EntryKey, Row>> {
        let tx = self.db.begin_read().map_err(failed)?;
        let table = tx.open_table(ENTRIES).map_err(failed)?;
        let (mut from, mut to) = ([0; 48], [0xff; 48]);
        from[..PREFIX].copy_from_slice(prefix);
        to[..PREFIX].copy_from_slice(prefix);
        let mut rows = BTreeMap::new();
        for item in table.range::<&[u8]>(&from[..]..=&to[..]).map_err(failed)? {
            let (key, value) = item.map_err(failed)?;
            if let (Ok(key), Some(row)) = (EntryKey::try_from(key.value()), Row::decode(value.value())) {
                rows.insert(key, row);
            }
        }
        Ok(rows)
    }

    /// What is remembered of files.
    pub fn files<'i>(&self, ids: impl Iterator<Item = &'i [u8; 32]>) -> Inner<BTreeMap<[u8; 32], FileRow>> {
        let tx = self.db.begin_read().map_err(failed)?;
        let table = tx.open_table(FILES).map_err(failed)?;
        let mut rows = BTreeMap::new();
        for id in ids {
            if let Some(row) = table.get(&id[..]).map_err(failed)?.and_then(|row| FileRow::decode(row.value())) {
                rows.insert(*id, row);
            }
        }
        Ok(rows)
    }

    /// Everything that was noticed.
    pub fn notices(&self) -> Inner<BTreeMap<EntryKey, NoticeRow>> {
        let tx = self.db.begin_read().map_err(failed)?;
        let table = tx.open_table(NOTICES).map_err(failed)?;
        let mut rows = BTreeMap::new();
        for item in table.iter().map_err(failed)? {
            let (key, value) = item.map_err(failed)?;
            if let (Ok(key), Some(row)) = (EntryKey::try_from(key.value()), NoticeRow::decode(value.value())) {
                rows.insert(key, row);
            }
        }
        Ok(rows)
    }

    /// Since when a session has been going on that nobody ended.
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
                files.insert(&id[..], &row.encode()[..]).map_err(failed)?;
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
