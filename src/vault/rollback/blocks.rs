//! Sorted records in sealed blocks, each of which fits a page of the database.
//!
//! A row for each record would cost more than the record: a copy of its whole key, two offsets in
//! the page, and a nonce and a tag if it is sealed. So a row of a table is a *block* of records.
//! The key of the row is the lowest key that the block may contain; that of the first is empty. In
//! a block, a record omits the bytes that its key has in common with the record before.
//!
//! Rules that hold here
//! * Every key of a table has the same length, and is in exactly one block.
//! * A block that is written is at least half full, unless it is the last one of its table.
//! * A block is bound to its table and its row: none can be put in the place of another.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use redb::{
    ReadOnlyTable, ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction,
};
use zeroize::Zeroizing;

use super::database::failed;
use crate::crypto::{Random, RecordCipher};
use crate::vault::error::{Corruption, Fault, Inner};

/// Maximum length of a block in bytes before it is sealed: with its nonce and tag, its key, and
/// what the database adds, it fits a page of 4 KiB.
const BLOCK_MAX: usize = 4000;
/// Length up to which a block is filled when records are distributed anew. The rest is for the next
/// records.
const BLOCK_FULL: usize = BLOCK_MAX / 20 * 19;

/// The table of a kind of records with keys of `K` bytes.
#[derive(Clone, Copy)]
pub(super) struct Definition<const K: usize>(pub &'static str);

impl<const K: usize> Definition<K> {
    pub const fn table(self) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
        TableDefinition::new(self.0)
    }
}

/// Changes to the records of a table: a new value, or `None` to drop the record.
pub(super) type Edits<const K: usize> = BTreeMap<[u8; K], Option<Vec<u8>>>;

/// Seals and opens what the database holds.
pub(super) struct Sealer {
    pub cipher: RecordCipher,
    pub random: Arc<dyn Random>,
}

impl Sealer {
    #[cfg(test)]
    pub fn for_tests() -> Sealer {
        let cipher = RecordCipher::new(crate::crypto::Suite::Aes256Gcm, &[7; 32]);
        Sealer { cipher, random: Arc::new(crate::vault::OsRandom) }
    }

    pub fn seal(&self, context: &[u8], plain: &[u8]) -> Vec<u8> {
        self.cipher.seal_record(&*self.random, context, plain)
    }

    pub fn open(&self, context: &[u8], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        self.cipher.open_record(context, sealed).ok()
    }
}

/// Appends `n` with seven bits in each byte, the lowest first.
pub(super) fn put_number(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Removes a number that [`put_number`] has appended from the front of `bytes`.
pub(super) fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        n |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}

/// The records of a block. Iteration ends at the first that is malformed, which cannot occur:
/// blocks are authenticated.
struct Records<'a, const K: usize> {
    rest: &'a [u8],
    key: [u8; K],
}

impl<'a, const K: usize> Iterator for Records<'a, K> {
    type Item = ([u8; K], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (shared, rest) = self.rest.split_first()?;
        let own = self.key.get_mut(usize::from(*shared)..)?;
        let (new, mut rest) = rest.split_at_checked(own.len())?;
        own.copy_from_slice(new);
        let len = usize::try_from(take_number(&mut rest)?).ok()?;
        let (value, rest) = rest.split_at_checked(len)?;
        self.rest = rest;
        Some((self.key, value))
    }
}

/// Appends a record; `before` is the key of the one before it in the block.
fn put_record<const K: usize>(
    block: &mut Vec<u8>,
    before: Option<&[u8; K]>,
    key: &[u8; K],
    value: &[u8],
) {
    let shared =
        before.map_or(0, |before| before.iter().zip(key).take_while(|(a, b)| a == b).count());
    block.push(shared as u8);
    block.extend_from_slice(&key[shared..]);
    put_number(block, value.len() as u64);
    block.extend_from_slice(value);
}

/// Distributes records over as few blocks as hold them, all about equally full. Returns the blocks
/// with their first keys.
fn distribute<const K: usize>(records: &BTreeMap<[u8; K], Vec<u8>>) -> Vec<([u8; K], Vec<u8>)> {
    let mut whole = Vec::new();
    let mut before = None;
    for (key, value) in records {
        put_record(&mut whole, before, key, value);
        before = Some(key);
    }
    let target = whole.len().div_ceil(whole.len().div_ceil(BLOCK_FULL).max(1));
    let mut blocks: Vec<([u8; K], Vec<u8>)> = Vec::new();
    let mut before = None;
    for (key, value) in records {
        // Ten bytes are the longest number, and one is for the length of the common part.
        let longest = K + value.len() + 11;
        match blocks.last_mut() {
            Some((_, block)) if block.len() < target && block.len() + longest <= BLOCK_MAX => {
                put_record(block, before, key, value);
            }
            _ => {
                let mut block = Vec::with_capacity(BLOCK_MAX);
                put_record(&mut block, None, key, value);
                blocks.push((*key, block));
            }
        }
        before = Some(key);
    }
    blocks
}

/// A table that is open for changes.
pub(super) struct Writer<'a, const K: usize> {
    name: &'static str,
    table: Table<'a, &'static [u8], &'static [u8]>,
    sealer: &'a Sealer,
}

impl<'a, const K: usize> Writer<'a, K> {
    pub fn open(
        tx: &'a WriteTransaction,
        definition: Definition<K>,
        sealer: &'a Sealer,
    ) -> Inner<Self> {
        let table = tx.open_table(definition.table()).map_err(failed)?;
        Ok(Writer { name: definition.0, table, sealer })
    }

    /// Calls `each` for all records in order.
    pub fn for_each(&self, mut each: impl FnMut([u8; K], &[u8])) -> Inner<()> {
        for block in self.table.iter().map_err(failed)? {
            let (start, sealed) = block.map_err(failed)?;
            let block = open(self.sealer, self.name, start.value(), sealed.value())?;
            let records = Records { rest: &block, key: [0; K] };
            records.for_each(|(key, value)| each(key, value));
        }
        Ok(())
    }

    /// Makes changes. Returns by how many the number of records grew.
    pub fn edit(&mut self, edits: &Edits<K>) -> Inner<i64> {
        let mut more = 0;
        let mut edits = edits.iter().peekable();
        while let Some((key, _)) = edits.peek() {
            let start = match self.table.range::<&[u8]>(..=&key[..]).map_err(failed)?.next_back() {
                Some(found) => found.map_err(failed)?.0.value().to_vec(),
                None => Vec::new(),
            };
            let mut records = BTreeMap::new();
            let mut starts = vec![start];
            let mut end = self.take(&starts[0], &mut records)?;
            loop {
                while let Some((key, value)) =
                    edits.next_if(|(key, _)| end.as_ref().is_none_or(|end| key[..] < end[..]))
                {
                    let old = match value {
                        Some(value) => records.insert(*key, value.clone()),
                        None => records.remove(key),
                    };
                    more += i64::from(value.is_some()) - i64::from(old.is_some());
                }
                // The next block takes a part of what is too much, or fills what is too empty.
                let len: usize = records.values().map(|value| value.len() + 1 + K / 2).sum();
                let Some(next) = end
                    .filter(|_| starts.len() == 1 && !(BLOCK_MAX / 2..=BLOCK_FULL).contains(&len))
                else {
                    break;
                };
                end = self.take(&next, &mut records)?;
                starts.push(next);
            }
            self.put(&starts, &records)?;
        }
        Ok(more)
    }

    /// Adds the records of the block at `start`. Returns where the next block begins.
    fn take(
        &mut self,
        start: &[u8],
        records: &mut BTreeMap<[u8; K], Vec<u8>>,
    ) -> Inner<Option<Vec<u8>>> {
        if let Some(sealed) = self.table.get(start).map_err(failed)? {
            let block = open(self.sealer, self.name, start, sealed.value())?;
            let old = Records { rest: &block, key: [0; K] };
            records.extend(old.map(|(key, value)| (key, value.to_vec())));
        }
        let after = (Bound::Excluded(start), Bound::Unbounded);
        let next = self.table.range::<&[u8]>(after).map_err(failed)?.next();
        Ok(next.transpose().map_err(failed)?.map(|(start, _)| start.value().to_vec()))
    }

    /// Writes records in place of the blocks at `starts`, which are adjacent.
    fn put(&mut self, starts: &[Vec<u8>], records: &BTreeMap<[u8; K], Vec<u8>>) -> Inner<()> {
        let blocks = distribute(records);
        let keys = |n: usize| if n == 0 { &starts[0][..] } else { &blocks[n].0[..] };
        for (n, (_, block)) in blocks.iter().enumerate() {
            let sealed = self.sealer.seal(&context(self.name, keys(n)), block);
            self.table.insert(keys(n), &sealed[..]).map_err(failed)?;
        }
        for start in starts {
            if !(0..blocks.len()).any(|n| keys(n) == &start[..]) {
                self.table.remove(&start[..]).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// Returns the associated data of a block.
fn context(name: &str, start: &[u8]) -> Vec<u8> {
    [b"KMEM block ", name.as_bytes(), b" ", start].concat()
}

fn open(sealer: &Sealer, name: &str, start: &[u8], sealed: &[u8]) -> Inner<Zeroizing<Vec<u8>>> {
    sealer
        .open(&context(name, start), sealed)
        .ok_or(Fault::Corrupt(Corruption::Other("a block of the rollback database is damaged")))
}

/// A snapshot of a table.
pub(super) struct View<const K: usize> {
    name: &'static str,
    table: ReadOnlyTable<&'static [u8], &'static [u8]>,
    sealer: Arc<Sealer>,
}

impl<const K: usize> View<K> {
    pub fn open(
        tx: &ReadTransaction,
        definition: Definition<K>,
        sealer: &Arc<Sealer>,
    ) -> Inner<Self> {
        let table = tx.open_table(definition.table()).map_err(failed)?;
        Ok(View { name: definition.0, table, sealer: sealer.clone() })
    }

    /// Returns the value of a record.
    pub fn get(&self, key: &[u8; K]) -> Inner<Option<Vec<u8>>> {
        let Some(block) = self.table.range::<&[u8]>(..=&key[..]).map_err(failed)?.next_back()
        else {
            return Ok(None);
        };
        let (start, sealed) = block.map_err(failed)?;
        let block = open(&self.sealer, self.name, start.value(), sealed.value())?;
        let mut records = Records { rest: &block, key: [0; K] };
        Ok(records
            .find(|(other, _)| other >= key)
            .and_then(|(other, value)| (other == *key).then(|| value.to_vec())))
    }

    /// Returns the first records from `from` to `to`: `max` of them and those behind in the same
    /// block, or all.
    pub fn range(
        &self,
        from: Bound<&[u8; K]>,
        to: &[u8; K],
        max: usize,
    ) -> Inner<Vec<([u8; K], Vec<u8>)>> {
        let (Bound::Included(low) | Bound::Excluded(low)) = from else {
            unreachable!("every range has a first key");
        };
        let first = self.table.range::<&[u8]>(..=&low[..]).map_err(failed)?.next_back();
        let first = first.transpose().map_err(failed)?.map(|(start, _)| start.value().to_vec());
        let mut found = Vec::new();
        let blocks = self.table.range::<&[u8]>(&first.unwrap_or_default()[..]..=&to[..]);
        for block in blocks.map_err(failed)? {
            let (start, sealed) = block.map_err(failed)?;
            let block = open(&self.sealer, self.name, start.value(), sealed.value())?;
            let inside = |key: &[u8; K]| {
                key <= to
                    && match from {
                        Bound::Excluded(low) => key > low,
                        _ => key >= low,
                    }
            };
            let records = Records { rest: &block, key: [0; K] };
            found.extend(
                records.filter(|(key, _)| inside(key)).map(|(key, value)| (key, value.to_vec())),
            );
            if found.len() >= max {
                break;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use redb::{Database, ReadableDatabase, ReadableTableMetadata};

    use super::*;
    use crate::crypto::random::seeded::Seeded;

    const TABLE: Definition<12> = Definition("records");

    /// Random changes have the same result as in a plain map, and blocks are neither larger than a
    /// page nor many for what they contain.
    #[test]
    fn blocks_hold_what_a_map_holds() {
        let folder = tempfile::tempdir().expect("a directory");
        let db = Database::create(folder.path().join("database")).expect("create");
        let (sealer, random) = (Arc::new(Sealer::for_tests()), Seeded::new(1));
        let byte = || {
            let mut byte = [0];
            random.fill(&mut byte);
            byte[0]
        };
        let mut model: BTreeMap<[u8; 12], Vec<u8>> = BTreeMap::new();
        for round in 0..60 {
            // It grows, stays, and shrinks until it is empty.
            let drops = [30, 128, 220][round / 20];
            let mut edits: Edits<12> = (0..usize::from(byte()) * 8)
                .map(|_| {
                    let mut key = [round as u8 / 8; 12];
                    random.fill(&mut key[1..]);
                    (key, Some(vec![byte(); usize::from(byte())]))
                })
                .collect();
            edits.retain(|_, _| byte() > drops);
            edits.extend(model.keys().filter(|_| byte() < drops / 2).map(|key| (*key, None)));
            if round == 59 {
                edits = model.keys().map(|key| (*key, None)).collect();
            }
            edits.insert([0xee; 12], None);
            let before = model.len() as i64;
            for (key, value) in &edits {
                match value {
                    Some(value) => drop(model.insert(*key, value.clone())),
                    None => drop(model.remove(key)),
                }
            }
            let tx = db.begin_write().expect("begin");
            let more = Writer::open(&tx, TABLE, &sealer).and_then(|mut table| table.edit(&edits));
            assert_eq!(more.expect("edit"), model.len() as i64 - before);
            tx.commit().expect("commit");

            let tx = db.begin_read().expect("begin");
            let view = View::open(&tx, TABLE, &sealer).expect("open");
            let all = view.range(Bound::Included(&[0; 12]), &[0xff; 12], usize::MAX);
            assert!(all.expect("range").into_iter().eq(model.clone()), "round {round}");
            for (key, value) in model.iter().step_by(37) {
                assert_eq!(view.get(key).expect("get").as_ref(), Some(value));
                let after = view.range(Bound::Excluded(key), &[0xff; 12], 5).expect("range");
                let expected =
                    model.range::<[u8; 12], _>((Bound::Excluded(key), Bound::Unbounded)).take(5);
                assert!(
                    expected.eq(after.iter().take(5).map(|(key, value)| (key, value))),
                    "round {round}"
                );
            }
            assert_eq!(view.get(&[0xee; 12]).expect("get"), None);
            let bytes: usize = model.values().map(|value| value.len() + 14).sum();
            let blocks = view.table.len().expect("length") as usize;
            assert!(blocks <= bytes / (BLOCK_MAX / 2) + 1, "{blocks} blocks for {bytes} bytes");
            for block in view.table.iter().expect("iterate") {
                let (start, sealed) = block.expect("a block");
                assert!(start.value().len() + sealed.value().len() + 12 <= 4096);
            }
        }
        assert!(model.is_empty());
    }

    /// Writes the records with these keys to the table that `definition` names, and returns its
    /// blocks as they are stored.
    fn stored<const K: usize>(
        db: &Database,
        sealer: &Sealer,
        definition: Definition<K>,
        keys: impl Iterator<Item = [u8; K]>,
    ) -> Vec<(Vec<u8>, Vec<u8>)> {
        let edits: Edits<K> = keys.map(|key| (key, Some(vec![7; 900]))).collect();
        let tx = db.begin_write().expect("begin");
        Writer::open(&tx, definition, sealer).and_then(|mut t| t.edit(&edits)).expect("edit");
        tx.commit().expect("commit");
        let table = db.begin_read().expect("begin").open_table(definition.table()).expect("open");
        let block = |block: Result<_, redb::StorageError>| {
            let (start, sealed): (redb::AccessGuard<&[u8]>, redb::AccessGuard<&[u8]>) =
                block.expect("a block");
            (start.value().to_vec(), sealed.value().to_vec())
        };
        table.iter().expect("iterate").map(block).collect()
    }

    /// A block that was changed, or that is in the place of another one, in its table or from
    /// another table. Neither is it taken for a block without records, nor is it replaced by new
    /// ones.
    #[test]
    fn a_block_that_cannot_be_opened_is_an_error() {
        const OTHER: Definition<12> = Definition("other");
        let folder = tempfile::tempdir().expect("a directory");
        let db = Database::create(folder.path().join("database")).expect("create");
        let sealer = Arc::new(Sealer::for_tests());
        let keys = || (0..12).map(|n| [n; 12]);
        let blocks = stored(&db, &sealer, TABLE, keys());
        let others = stored(&db, &sealer, OTHER, keys());
        assert!(blocks.len() > 2 && others[0].0 == blocks[0].0);
        let mut changed = blocks[0].1.clone();
        *changed.last_mut().expect("it has a tag") ^= 1;
        for wrong in [&changed, &blocks[1].1, &others[0].1] {
            let tx = db.begin_write().expect("begin");
            let mut table = tx.open_table(TABLE.table()).expect("open");
            table.insert(&blocks[0].0[..], &wrong[..]).expect("insert");
            drop(table);
            tx.commit().expect("commit");

            let tx = db.begin_read().expect("begin");
            let view = View::open(&tx, TABLE, &sealer).expect("open");
            assert!(view.get(&[0; 12]).is_err());
            assert!(view.range(Bound::Included(&[0; 12]), &[0xff; 12], usize::MAX).is_err());
            assert!(view.get(&[11; 12]).expect("another block is intact").is_some());
            let tx = db.begin_write().expect("begin");
            let mut writer = Writer::open(&tx, TABLE, &sealer).expect("open");
            assert!(writer.for_each(|_, _| {}).is_err());
            assert!(writer.edit(&[([0; 12], None)].into()).is_err());
        }
    }
}
