//! Names that this daemon took away from an entry while another one claimed them too, such as a
//! sync tool's conflict copy whose name with its suffix somebody else's file really had.
//!
//! Rules that hold here
//! * Until the vault is closed such a name is free for who makes an entry of it, and belongs to
//!   none of those that claimed it: programs rename a file and then write another one of its name,
//!   and would write into the copy.
//! * What is forgotten, because there are too many, is as it is for who opens the vault anew: the
//!   next in line has the name.

use lru::LruCache;
use parking_lot::Mutex;

use crate::vault::keyring::keys::DirectoryId;

/// Names that are remembered, of some hundred bytes each.
const NAMES_MAX: usize = 1 << 14;

/// A name in a directory.
type Name = (DirectoryId, Box<[u8]>);

/// See the module.
pub(crate) struct Vacated(Mutex<LruCache<Name, ()>>);

impl Vacated {
    pub fn new() -> Self {
        Vacated(Mutex::new(LruCache::unbounded())) // a bounded one takes all its room at once
    }

    /// Whether `name` belongs to nothing in `directory` but the entry that a writer makes of it.
    pub fn has(&self, directory: &DirectoryId, name: &[u8]) -> bool {
        let mut names = self.0.lock();
        !names.is_empty() && names.get(&(*directory, name.into())).is_some()
    }

    pub fn note(&self, directory: &DirectoryId, name: &[u8]) {
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
    fn no_more_names_are_kept_than_there_is_room_for_and_the_last_ones_are() {
        let vacated = Vacated::new();
        for n in 0..NAMES_MAX + 10 {
            vacated.note(&[1; 32], n.to_string().as_bytes());
        }
        assert_eq!(vacated.0.lock().len(), NAMES_MAX);
        assert!(
            !vacated.has(&[1; 32], b"9")
                && vacated.has(&[1; 32], b"10")
                && !vacated.has(&[2; 32], b"10")
        );
    }
}
