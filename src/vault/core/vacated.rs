//! Vacated names: this daemon removed such a name from its entry while another entry claimed it
//! too. For example, the other entry is a sync tool's conflict copy, whose plain name with the
//! tool's suffix equals the removed name.
//!
//! Rules that hold here
//! * Until the vault is closed a vacated name is reserved for a new entry; no entry that claims it
//!   gets it. Otherwise a program that renames a file, and then writes another one under the old
//!   name, would write into the conflict copy.
//! * At most [`NAMES_MAX`] names are kept. A name that is dropped goes to the next entry that
//!   claims it, as after a new opening of the vault.

use lru::LruCache;
use parking_lot::Mutex;

use crate::crypto::Tag;

/// Maximum number of remembered names, of some hundred bytes each.
const NAMES_MAX: usize = 1 << 14;

/// A name in a directory.
type Name = (Tag, Box<[u8]>);

/// The vacated names.
pub(crate) struct Vacated(Mutex<LruCache<Name, ()>>);

impl Vacated {
    pub fn new() -> Self {
        Vacated(Mutex::new(LruCache::unbounded())) // a bounded cache allocates all memory at once
    }

    /// Returns whether `name` in `directory` is reserved for a new entry.
    pub fn has(&self, directory: &Tag, name: &[u8]) -> bool {
        let mut names = self.0.lock();
        !names.is_empty() && names.get(&(*directory, name.into())).is_some()
    }

    /// Notes that this daemon gave `name` to an entry, by creating or renaming it: the name is no
    /// longer vacated.
    pub fn take(&self, directory: &Tag, name: &[u8]) {
        let mut names = self.0.lock();
        if !names.is_empty() {
            names.pop(&(*directory, name.into()));
        }
    }

    /// Notes that a directory was renamed: the names vacated in it are vacated under its new tag
    /// too.
    pub fn follow(&self, from: &Tag, to: &Tag) {
        let mut names = self.0.lock();
        let moved: Vec<Name> = names
            .iter()
            .filter(|((of, _), ())| of == from)
            .map(|(name, ())| name.clone())
            .collect();
        for (_, name) in moved {
            names.put((*to, name), ());
        }
    }

    /// Notes that `name` was removed from its entry: it is vacated.
    pub fn note(&self, directory: &Tag, name: &[u8]) {
        let mut names = self.0.lock();
        names.put((*directory, name.into()), ());
        while names.len() > NAMES_MAX {
            names.pop_lru();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_names_are_kept_up_to_the_limit() {
        let vacated = Vacated::new();
        for n in 0..NAMES_MAX + 10 {
            vacated.note(&[1; 8], n.to_string().as_bytes());
        }
        assert_eq!(vacated.0.lock().len(), NAMES_MAX);
        assert!(
            !vacated.has(&[1; 8], b"9")
                && vacated.has(&[1; 8], b"10")
                && !vacated.has(&[2; 8], b"10")
        );
    }
}
