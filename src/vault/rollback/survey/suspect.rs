//! Deviations from the remembered state, before they are classified.

use super::later::Later;
use crate::vault::rollback::blocks::put_number;
use crate::vault::rollback::rows::{EntryKey, Id, NameTag, RemovedRow, Row, Take, put_bytes};

pub(in crate::vault::rollback) const FILE: u8 = 1;

pub(super) const DIRECTORY: u8 = 2;

/// The object that has a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Thing {
    pub(super) kind: u8,
    /// Id of a file, hash of the tag of a directory.
    pub(super) id: Id,
    pub(super) version: u64,
}

/// A deviation that is not classified yet.
pub(super) struct Pending {
    pub key: EntryKey,
    pub name: NameTag,
    pub plain: Vec<u8>,
    /// This client has changed the name.
    pub ours: bool,
    /// The remembered state.
    pub row: Option<Row>,
    /// The present state.
    pub thing: Option<Thing>,
    pub why: Why,
}

/// A name that shows another file than it showed: the name, the file that it showed, and the
/// present one.
pub(super) type Step = (EntryKey, Id, Id);

/// A file that has left one of its names.
pub(super) struct Left {
    pub name: NameTag,
    pub id: Id,
    pub version: u64,
    pub here: bool,
    /// In a synced vault: this client has put another object in its place, a file with this id or
    /// zeros.
    pub over: Option<Id>,
}

/// Kind of the deviation.
pub(super) enum Why {
    /// It cannot be read.
    NotCompared,
    /// It is missing, or it was a directory and another type of object has its name.
    Gone,
    /// A known file, or an object that is not a file, has the name of another file.
    Replaced,
    /// It is an older version; `backwards` if the name showed a newer one.
    Older { was: u64, backwards: bool },
    /// It was removed before; with `same_name` from this very name, or from one of which this is a
    /// conflict copy. `over`: if this client has put another file in the place of this one there,
    /// the file that it knows there now, or the one that it has renamed from there.
    PutBack { removed: RemovedRow, same_name: bool, over: Option<Row> },
}

impl Pending {
    /// Returns the file that had the name, if another object has it now.
    pub(super) fn displaced(&self) -> Option<&Row> {
        self.row.as_ref().filter(|row| {
            row.kind == FILE
                && self.thing.is_some_and(|thing| (thing.kind, thing.id) != (FILE, row.id))
        })
    }

    /// Returns what is searched for exchanges.
    pub(super) fn step(&self) -> Option<Step> {
        let now = self.thing.filter(|thing| thing.kind == FILE)?;
        Some((self.key, self.displaced()?.id, now.id))
    }
}

impl Later for Left {
    fn weight(&self, _: Option<&Self>) -> usize {
        size_of::<Self>()
    }

    fn put(&self, _: Option<&Self>, out: &mut Vec<u8>) {
        let Left { name, id, version, here, over } = self;
        out.extend_from_slice(name);
        out.extend_from_slice(id);
        put_number(out, *version);
        out.extend([u8::from(*here), u8::from(over.is_some())]);
        out.extend_from_slice(&over.unwrap_or_default());
    }

    fn take(_: Option<&Self>, from: &mut Take<'_>) -> Option<Self> {
        let (name, id, version) = (from.array()?, from.array()?, from.number()?);
        let (here, has_over, over) = (from.u8()? != 0, from.u8()? != 0, from.array()?);
        Some(Left { name, id, version, here, over: has_over.then_some(over) })
    }
}

impl Later for Pending {
    fn weight(&self, _: Option<&Self>) -> usize {
        size_of::<Self>() + self.plain.len()
    }

    fn put(&self, _: Option<&Self>, out: &mut Vec<u8>) {
        let Pending { key, name, plain, ours, row, thing, why } = self;
        out.extend_from_slice(key);
        out.extend_from_slice(name);
        put_bytes(out, plain);
        out.push(u8::from(*ours));
        put_row(out, row.as_ref());
        out.push(u8::from(thing.is_some()));
        if let Some(Thing { kind, id, version }) = thing {
            out.push(*kind);
            out.extend_from_slice(id);
            put_number(out, *version);
        }
        match why {
            Why::NotCompared => out.push(0),
            Why::Gone => out.push(1),
            Why::Replaced => out.push(2),
            Why::Older { was, backwards } => {
                out.extend([3, u8::from(*backwards)]);
                put_number(out, *was);
            }
            Why::PutBack { removed, same_name, over } => {
                out.extend([4, u8::from(*same_name)]);
                put_bytes(out, &removed.encode());
                put_row(out, over.as_ref());
            }
        }
    }

    fn take(_: Option<&Self>, from: &mut Take<'_>) -> Option<Self> {
        let (key, name, plain) = (from.array()?, from.array()?, from.sized()?.to_vec());
        let (ours, row) = (from.u8()? != 0, take_row(from)?);
        let thing = match from.u8()? {
            0 => None,
            _ => Some(Thing { kind: from.u8()?, id: from.array()?, version: from.number()? }),
        };
        let why = match from.u8()? {
            0 => Why::NotCompared,
            1 => Why::Gone,
            2 => Why::Replaced,
            3 => {
                let backwards = from.u8()? != 0;
                Why::Older { was: from.number()?, backwards }
            }
            _ => {
                let same_name = from.u8()? != 0;
                let removed = RemovedRow::decode(from.sized()?)?;
                Why::PutBack { removed, same_name, over: take_row(from)? }
            }
        };
        Some(Pending { key, name, plain, ours, row, thing, why })
    }
}

fn put_row(out: &mut Vec<u8>, row: Option<&Row>) {
    // An encoded row is never empty.
    put_bytes(out, &row.map(Row::encode).unwrap_or_default());
}

fn take_row(from: &mut Take<'_>) -> Option<Option<Row>> {
    match from.sized()? {
        [] => Some(None),
        row => Row::decode(row).map(Some),
    }
}
