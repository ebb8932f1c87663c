//! Directories that are not at their places any more.
//!
//! Rules that hold here
//! * Memory is bounded, however many there are: the storage host can take away all directories that
//!   it has added. What is more than [`FOUND_MAX`] is in a list on disk.
//! * One in that list is not found by its hash. If it was renamed, its rows are dropped and not
//!   moved. No alarm is lost: its files are known by their ids too, and those that are nowhere are
//!   gone.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::later::{Later, List};
use super::suspect::Pending;
use crate::vault::error::Inner;
use crate::vault::rollback::blocks::Sealer;
use crate::vault::rollback::memory::PlaceId;
use crate::vault::rollback::rows::{Id, Take};

/// Bytes of memory for the directories that are found by their hashes.
const FOUND_MAX: usize = 8 << 20;
/// What the map adds to each of them, in bytes.
const IN_MAP: usize = 64;

/// A directory that is not at its place any more.
pub(super) struct Vacated {
    pub hash: Id,
    pub place: PlaceId,
    /// The deviation to classify; `None` if this client caused it, or the user accepts it.
    pub pending: Option<Pending>,
}

/// All of them.
pub(super) struct AllVacated {
    by_hash: HashMap<Id, Vec<Vacated>>,
    weight: usize,
    more: List<Vacated>,
}

impl AllVacated {
    pub fn new(sealer: Arc<Sealer>, folder: PathBuf) -> AllVacated {
        AllVacated { by_hash: HashMap::new(), weight: 0, more: List::new(sealer, folder) }
    }

    pub fn add(&mut self, one: Vacated) -> Inner<()> {
        let weight = one.weight(None) + IN_MAP;
        if self.weight + weight > FOUND_MAX {
            return self.more.push(one);
        }
        self.weight += weight;
        self.by_hash.entry(one.hash).or_default().push(one);
        Ok(())
    }

    /// Removes one with this hash of its tag.
    pub fn take(&mut self, hash: &Id) -> Option<Vacated> {
        let one = self.by_hash.get_mut(hash)?.pop()?;
        self.weight -= one.weight(None) + IN_MAP;
        Some(one)
    }

    /// Calls `act` with each.
    pub fn drain(self, mut act: impl FnMut(Vacated) -> Inner<()>) -> Inner<()> {
        self.by_hash.into_values().flatten().try_for_each(&mut act)?;
        self.more.drain(act)
    }
}

impl Later for Vacated {
    fn weight(&self, _: Option<&Self>) -> usize {
        let of = |pending: &Pending| {
            pending.weight(None) + pending.row.as_ref().map_or(0, |row| row.name.len())
        };
        size_of::<Self>() + self.pending.as_ref().map_or(0, of)
    }

    fn put(&self, _: Option<&Self>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hash);
        out.extend_from_slice(&self.place);
        out.push(u8::from(self.pending.is_some()));
        if let Some(pending) = &self.pending {
            pending.put(None, out);
        }
    }

    fn take(_: Option<&Self>, from: &mut Take<'_>) -> Option<Self> {
        let (hash, place) = (from.array()?, from.array()?);
        let pending = match from.u8()? {
            0 => None,
            _ => Some(Pending::take(None, from)?),
        };
        Some(Vacated { hash, place, pending })
    }
}
