//! What is not as it was, before it is decided whether that matters.

use crate::vault::rollback::database::{EntryKey, NameTag, RemovedRow, Row};

pub(super) const FILE: u8 = 1;

pub(super) const DIRECTORY: u8 = 2;

/// What has a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Thing {
    pub(super) kind: u8,
    /// Id of a file, hash of the id of a directory.
    pub(super) id: [u8; 32],
    pub(super) version: u64,
}

/// Something that is not as it was.
pub(super) struct Pending {
    pub key: EntryKey,
    pub name: NameTag,
    pub plain: Vec<u8>,
    /// This client has changed the name.
    pub ours: bool,
    /// What is remembered.
    pub row: Option<Row>,
    /// What is there.
    pub thing: Option<Thing>,
    pub why: Why,
}

/// What is to be decided.
pub(super) enum Why {
    /// It cannot be read.
    NotCompared,
    /// It is not there, or something else than a directory has its name.
    Gone,
    /// A known file, or what is no file, has the name of another file.
    Replaced,
    /// It is an older version; `backwards` where the name showed a newer one.
    Older { was: u64, backwards: bool },
    /// It was removed before; from this very name, or one of which this is a conflict copy.
    PutBack { removed: RemovedRow, same_name: bool },
}

impl Pending {
    /// The file that had the name, where something else has it now.
    pub(super) fn displaced(&self) -> Option<&Row> {
        self.row.as_ref().filter(|row| {
            row.kind == FILE
                && self.thing.is_some_and(|thing| (thing.kind, thing.id) != (FILE, row.id))
        })
    }
}
