//! The locks of programs on one open file, for vaults with concurrent writers.
//!
//! Rules that hold here
//! * Each owner has a handle of the stored file for its locks alone, so the store decides which
//!   owners exclude each other, merges and splits ranges, and drops the locks of a daemon that
//!   died.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::store::{File, Timestamp};
use crate::vault::types::{Handle, LockRequest};

/// An owner as the kernel names it, and whether its lock is one of `flock`.
pub(crate) type OwnerKey = (u64, bool);

/// Returns the owner of a request.
pub(crate) fn owner_of(request: &LockRequest) -> OwnerKey {
    (request.owner, request.whole)
}

/// An owner of locks.
pub(crate) struct Owner {
    /// Has the locks.
    pub file: Arc<dyn File>,
    /// The handles through which locks were taken. The kernel does not report the end of every
    /// owner, but that of every handle.
    pub through: HashSet<Handle>,
}

/// The locks on one file.
#[derive(Default)]
pub(crate) struct ProgramLocks {
    pub owners: HashMap<OwnerKey, Owner>,
    /// Hash of the header of the earliest committed state of which the kernel may have pages, if
    /// that is known. Commits of this daemon change the pages too, so this follows the commits.
    pub pages: Option<[u8; 32]>,
    /// A commit builds on the state of `pages`.
    follows: bool,
    told: Option<Told>,
    /// How often the kernel has dropped pages because of what it was told.
    drops: u64,
}

/// What the kernel was told when it last asked for the attributes.
#[derive(Clone, Copy)]
struct Told {
    /// Hash of the header of the committed state.
    committed: [u8; 32],
    size: u64,
    time: Timestamp,
    /// Size or time differ from what the kernel was told before, so it has dropped all older pages.
    drops: bool,
}

impl ProgramLocks {
    /// Called before a commit that builds on `base`.
    pub fn begin_commit(&mut self, base: Option<[u8; 32]>) {
        self.follows = base.is_some() && base == self.pages;
    }

    /// Called after a commit.
    pub fn end_commit(&mut self, committed: Option<[u8; 32]>) {
        if std::mem::take(&mut self.follows) {
            self.pages = committed;
        }
    }

    /// Notes that the kernel is told size and time of a committed state.
    pub fn tell(&mut self, committed: [u8; 32], size: u64, time: Timestamp) {
        let drops = self.told.is_some_and(|told| match told.committed == committed {
            true => told.drops,
            false => (told.size, told.time) != (size, time),
        });
        let is_new = self.told.is_none_or(|told| told.committed != committed);
        self.drops += u64::from(drops && is_new);
        self.told = Some(Told { committed, size, time, drops });
    }

    /// Returns whether the kernel has dropped the pages of states before this one, and how often it
    /// has dropped pages because of what it was told.
    pub fn dropped(&self, committed: &[u8; 32]) -> (bool, u64) {
        let by_itself = self.told.is_some_and(|told| told.drops && told.committed == *committed);
        (by_itself || self.pages == Some(*committed), self.drops)
    }

    /// Removes a handle that is being closed, and returns the owners that have no handle any more.
    pub fn close(&mut self, handle: Handle) -> Vec<Owner> {
        for owner in self.owners.values_mut() {
            owner.through.remove(&handle);
        }
        self.owners
            .extract_if(|_, owner| owner.through.is_empty())
            .map(|(_, owner)| owner)
            .collect()
    }
}
