//! The rows of the rollback database, and how they are encoded.

use super::blocks::{put_number, take_number};
use super::notice::NoticeKind;

/// Length in bytes of an [`Id`].
pub(super) const ID: usize = 10;
/// The first bytes of a file's id, or of the keyed hash of a directory's tag. Both are random for
/// everybody without the vault's keys, and somebody with the keys can also give two files one id.
pub(super) type Id = [u8; ID];
/// Length in bytes of the part of an [`EntryKey`] that all entries of a directory share.
pub(super) const PREFIX: usize = 16;
/// Length in bytes of an [`EntryKey`].
pub(super) const KEY: usize = PREFIX + 8;
/// Hash of a directory's place, and of the place and a name.
pub(super) type EntryKey = [u8; KEY];
/// Maximum number of names remembered for one removed file.
const NAMES_MAX: usize = 8;

/// Returns the lowest and the highest key that an entry of a directory can have.
pub(super) fn keys_of(prefix: &[u8; PREFIX]) -> (EntryKey, EntryKey) {
    let (mut first, mut last) = ([0; KEY], [0xff; KEY]);
    first[..PREFIX].copy_from_slice(prefix);
    last[..PREFIX].copy_from_slice(prefix);
    (first, last)
}

/// Returns the [`Id`] for a whole id or hash.
pub(super) fn short(id: &[u8; 32]) -> Id {
    id[..ID].try_into().expect("10 of 32 bytes")
}

/// The remembered state of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// 1 file, 2 directory, 3 anything else.
    pub kind: u8,
    /// Id of the file, hash of the id of the directory, or zeros.
    pub id: Id,
    /// For a file: the highest version seen under this name.
    pub version: u64,
    pub seen: i64,
    /// The plain name.
    pub name: Vec<u8>,
}

/// The remembered state of an existing file, by its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FileRow {
    /// The highest version seen under any name.
    pub version: u64,
    /// A lower version seen at the same time under another name; 0 for none.
    pub beside: u64,
    /// Number of remembered entries that are this file.
    pub names: u32,
    /// The first bytes of the id of the file that it replaced, or 0: a truncated file gets a new
    /// id, under all of its names.
    pub after: u64,
    /// The last name from which this machine removed it or renamed it, in a synced vault, or zeros.
    pub left: NameTag,
}

/// Hash of the place of a directory and a name in it.
pub(super) type NameTag = [u8; 8];

/// The remembered state of a file that was removed or replaced, by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemovedRow {
    /// The highest version seen before.
    pub version: u64,
    pub when: i64,
    /// This machine removed or replaced it.
    pub here: bool,
    /// A file that this machine had never seen took the name of this version.
    pub replaced: bool,
    /// The last name at which this machine put another object in its place, and the id of that, if
    /// it is a file. Recorded in a synced vault.
    pub over: Option<(NameTag, Id)>,
    /// The names from which it was removed; empty if this machine made the file, and it was gone
    /// before it was recorded.
    pub names: Vec<NameTag>,
}

/// An unsettled notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoticeRow {
    /// `None`: at the moment there is nothing to report.
    pub kind: Option<NoticeKind>,
    pub seen: i64,
    /// When this entry first had a notice.
    pub first: i64,
    /// When this entry last had a notice.
    pub last: i64,
    pub silenced: bool,
    /// This machine has written, removed or replaced the file since: only the user ends the notice.
    pub is_written: bool,
    /// The plain path, sealed.
    pub path: Vec<u8>,
}

/// Takes values from the front of encoded bytes.
pub(super) struct Take<'a>(pub &'a [u8]);

impl<'a> Take<'a> {
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub fn u8(&mut self) -> Option<u8> {
        Some(self.bytes(1)?[0])
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }

    pub fn number(&mut self) -> Option<u64> {
        take_number(&mut self.0)
    }

    fn i64(&mut self) -> Option<i64> {
        self.u64().map(|n| n as i64)
    }

    /// Takes what [`put_bytes`] has appended.
    pub fn sized(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        self.bytes(len)
    }

    /// Takes an array of a fixed length.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
}

/// Appends bytes behind their length.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

impl Row {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![self.kind];
        out.extend_from_slice(&self.id);
        put_number(&mut out, self.version);
        put_number(&mut out, self.seen as u64);
        out.extend_from_slice(&self.name);
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Row> {
        let mut t = Take(bytes);
        Some(Row {
            kind: t.u8()?,
            id: t.bytes(ID)?.try_into().ok()?,
            version: t.number()?,
            seen: t.number()? as i64,
            name: t.0.to_vec(),
        })
    }
}

impl FileRow {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_number(&mut out, self.version);
        put_number(&mut out, self.names.into());
        // Most files have none of these.
        if (self.beside, self.after, self.left) != (0, 0, NameTag::default()) {
            put_number(&mut out, self.beside);
            out.extend_from_slice(&self.after.to_le_bytes());
            if self.left != NameTag::default() {
                out.extend_from_slice(&self.left);
            }
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<FileRow> {
        let mut t = Take(bytes);
        let (version, names) = (t.number()?, t.number()?.try_into().ok()?);
        let (beside, after) = if t.0.is_empty() { (0, 0) } else { (t.number()?, t.u64()?) };
        let left = NameTag::try_from(t.0).unwrap_or_default();
        Some(FileRow { version, beside, names, after, left })
    }
}

impl RemovedRow {
    /// Returns the row of a file without names.
    pub fn new(version: u64, when: i64, here: bool) -> RemovedRow {
        RemovedRow { version, when, here, replaced: false, over: None, names: Vec::new() }
    }

    /// Adds a name, in place of the oldest if there are too many.
    pub fn add_name(&mut self, name: NameTag) {
        if !self.names.contains(&name) {
            if self.names.len() == NAMES_MAX {
                self.names.remove(0);
            }
            self.names.push(name);
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let has_over = u8::from(self.over.is_some()) << 2;
        let mut out = vec![u8::from(self.here) | u8::from(self.replaced) << 1 | has_over];
        put_number(&mut out, self.version);
        put_number(&mut out, self.when as u64);
        if let Some((name, by)) = &self.over {
            out.extend_from_slice(name);
            out.extend_from_slice(by);
        }
        out.extend_from_slice(self.names.as_flattened());
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<RemovedRow> {
        let mut t = Take(bytes);
        let flags = t.u8()?;
        let (here, replaced) = (flags & 1 != 0, flags & 2 != 0);
        let (version, when) = (t.number()?, t.number()? as i64);
        let over = match flags & 4 != 0 {
            true => {
                let name = t.bytes(size_of::<NameTag>())?.try_into().ok()?;
                Some((name, t.bytes(ID)?.try_into().ok()?))
            }
            false => None,
        };
        let names = t.0.as_chunks().0.to_vec();
        Some(RemovedRow { version, when, here, replaced, over, names })
    }
}

impl NoticeRow {
    /// Returns whether it is about the same state as a notice of `kind`.
    pub fn is_about(&self, kind: &NoticeKind) -> bool {
        self.kind.as_ref().is_some_and(|own| own.is_same_state(kind))
    }

    pub fn is_alarm(&self) -> bool {
        self.kind.as_ref().is_some_and(NoticeKind::is_alarm)
    }

    pub fn encode(&self) -> Vec<u8> {
        let (what, was, now) = self.kind.as_ref().map_or((0, 0, 0), NoticeKind::encode);
        let numbers = [was, now].map(u64::to_le_bytes).concat();
        let times = [self.seen, self.first, self.last].map(i64::to_le_bytes).concat();
        let flags = u8::from(self.silenced) | u8::from(self.is_written) << 1;
        [&[what, flags], &numbers[..], &times, &self.path].concat()
    }

    pub fn decode(bytes: &[u8]) -> Option<NoticeRow> {
        let mut t = Take(bytes);
        let (what, flags) = (t.u8()?, t.u8()?);
        let (silenced, is_written) = (flags & 1 != 0, flags & 2 != 0);
        let (was, now, seen, first, last) = (t.u64()?, t.u64()?, t.i64()?, t.i64()?, t.i64()?);
        let (kind, path) = (NoticeKind::decode(what, was, now), t.0.to_vec());
        Some(NoticeRow { kind, seen, first, last, silenced, is_written, path })
    }
}
