//! What is not as it was, before it is decided whether that matters.

use crate::vault::rollback::rows::{EntryKey, Id, NameTag, RemovedRow, Row};

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
    /// It was removed before; from this very name, or one of which this is a conflict copy. `over` is
    /// the file that this client knows at that name, or has renamed from there, if it has put another
    /// one in the place of this file there.
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
}
