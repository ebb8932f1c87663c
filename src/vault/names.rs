//! Names in a share with several epochs: sealed under the key of the epoch in which they were made, until a pass seals them anew.
//!
//! Rules that hold here
//! * New names are sealed under the current epoch's key. Names of all epochs are found and shown: whoever had not heard of a new epoch yet
//!   may have made some under an old one, and nothing that is there is hidden.
//! * Where one name stands under two epochs, the older one is shown with a suffix, like a sync tool's conflict copy.

use super::keys::{DirectoryId, Epoch, ShareKeys};
use crate::format::name::{Decoded, StoredName};

/// What the older of two equal names ends with.
fn epoch_suffix(epoch: u32) -> Vec<u8> {
    format!(" (conflict, epoch {epoch})").into_bytes()
}

/// A name with the suffix of [`epoch_suffix`], taken apart.
fn split_epoch(name: &[u8]) -> Option<(&[u8], u32)> {
    const START: &[u8] = b" (conflict, epoch ";
    let inner = name.strip_suffix(b")")?;
    let at = inner.windows(START.len()).rposition(|window| window == START)?;
    let epoch: u32 = std::str::from_utf8(&inner[at + START.len()..]).ok()?.parse().ok()?;
    (at > 0 && name[at..] == epoch_suffix(epoch)).then_some((&name[..at], epoch))
}

impl ShareKeys {
    /// What a stored name that the current epoch's key does not open is under an older one's.
    pub fn decode_older(&self, directory: &DirectoryId, stored: &[u8]) -> Option<Older> {
        let older = self.older();
        for (at, epoch) in older.iter().enumerate() {
            if let Decoded::Plain(name) = self.names_of(epoch, directory).decode(stored) {
                return Some(self.older_at(directory, &older, at, name));
            }
        }
        None
    }

    /// The same of the entry of a long name, once its name was read; `None` for one of the current epoch.
    pub fn older_long(&self, directory: &DirectoryId, entry: &[u8], name: &[u8]) -> Option<Older> {
        let older = self.older();
        let at = older.iter().position(|e| self.names_of(e, directory).encode(name).is_some_and(|stored| stored.entry() == entry))?;
        Some(self.older_at(directory, &older, at, name.to_vec()))
    }

    fn older_at(&self, directory: &DirectoryId, older: &[&Epoch], at: usize, name: Vec<u8>) -> Older {
        let newer = std::iter::once(self.current()).chain(older[..at].iter().copied());
        let newer = newer.filter_map(|e| Some(self.names_of(e, directory).encode(&name)?.entry().to_vec())).collect();
        Older { name, newer, suffix: epoch_suffix(older[at].number) }
    }

    /// Whether `stored` is the entry of the long name `name` under the key of any epoch.
    pub fn is_long_entry(&self, directory: &DirectoryId, stored: &[u8], name: &[u8]) -> bool {
        let mut epochs = std::iter::once(self.current()).chain(self.older());
        epochs.any(|e| matches!(self.names_of(e, directory).encode(name), Some(StoredName::Long { entry, .. }) if entry == stored))
    }

    /// Entries under which `name` may stand besides the one of the current epoch: of older epochs, and conflict copies of all.
    pub fn other_entries(&self, directory: &DirectoryId, name: &[u8]) -> Vec<Vec<u8>> {
        let mut entries = self.older_entries(directory, name);
        for epoch in std::iter::once(self.current()).chain(self.older()) {
            entries.extend(self.names_of(epoch, directory).conflict_candidates(name));
        }
        if let Some((plain, number)) = split_epoch(name) {
            entries.extend(self.numbered(number).filter_map(|e| Some(self.names_of(e, directory).encode(plain)?.entry().to_vec())));
        }
        entries
    }

    /// Entries under which `name` may stand in older epochs.
    pub fn older_entries(&self, directory: &DirectoryId, name: &[u8]) -> Vec<Vec<u8>> {
        self.older().into_iter().filter_map(|e| Some(self.names_of(e, directory).encode(name)?.entry().to_vec())).collect()
    }

    /// The name that says where a directory stands which is shown as `name` and stored as `stored`: without the suffix of a conflict copy.
    pub fn place_name<'n>(&self, directory: &DirectoryId, stored: &[u8], name: &'n [u8]) -> &'n [u8] {
        if let Some((plain, number)) = split_epoch(name)
            && self.numbered(number).any(|e| self.names_of(e, directory).encode(plain).is_some_and(|s| s.entry() == stored))
        {
            return plain;
        }
        let epochs = std::iter::once(self.current()).chain(self.older());
        epochs.map(|e| self.names_of(e, directory).place_name(stored, name)).min_by_key(|place| place.len()).unwrap_or(name)
    }
}

/// A name that is sealed under an older epoch.
pub(crate) struct Older {
    pub name: Vec<u8>,
    /// Entries of newer epochs with the same name.
    pub newer: Vec<Vec<u8>>,
    /// What to show the name with where one of them is there.
    pub suffix: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suffix_of_an_older_name_is_read_back_and_nothing_else_is() {
        let name = [b"a (1)".to_vec(), epoch_suffix(12)].concat();
        assert_eq!(split_epoch(&name), Some((&b"a (1)"[..], 12)));
        for other in [&b" (conflict, epoch 1)"[..], b"a (conflict, epoch 01)", b"a (conflict, epoch )", b"a (conflict, epoch 1", b"a"] {
            assert_eq!(split_epoch(other), None, "{}", other.escape_ascii());
        }
    }
}
