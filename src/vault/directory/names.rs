//! Names in a share with several epochs: sealed under the key of the epoch in which they were
//! created, until a pass seals them again.
//!
//! Rules that hold here
//! * New names are sealed under the current epoch's key. Names of all epochs are found and listed:
//!   a client that did not know of a new epoch yet may have created some under an old one, and no
//!   existing entry is hidden.
//! * Several entries may claim one name. The order of [`ShareKeys::claims`] alone decides which of
//!   them has it, for lookups and for listings; see
//!   [`Folder`](crate::vault::directory::folder::Folder).

use crate::format::name::{Decoded, NAME_MAX, StoredName, may_be_copy, without_suffix};
use crate::vault::keyring::keys::{DirectoryId, Epoch, ShareKeys};

/// Returns the suffix of the older one of two equal names.
fn epoch_suffix(epoch: u32) -> Vec<u8> {
    format!(" (conflict, epoch {epoch})").into_bytes()
}

/// Splits a name that ends with [`epoch_suffix`].
pub(in crate::vault) fn split_epoch(name: &[u8]) -> Option<(&[u8], u32)> {
    const START: &[u8] = b" (conflict, epoch ";
    let inner = name.strip_suffix(b")")?;
    let at = inner.windows(START.len()).rposition(|window| window == START)?;
    let epoch: u32 = std::str::from_utf8(&inner[at + START.len()..]).ok()?.parse().ok()?;
    (at > 0 && name[at..] == epoch_suffix(epoch)).then_some((&name[..at], epoch))
}

/// The meaning of a stored name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// A sealed name.
    Name(Sealed),
    /// A long-named entry whose sealed name is missing or does not match its hash.
    Lost,
}

/// The sealed name of an entry, and its suffix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    /// The sealed name: that of the place, from which the id of a directory is derived.
    pub plain: Vec<u8>,
    /// A sync tool's suffix, often empty.
    pub suffix: Vec<u8>,
    /// Number of the epoch, if it is not the current one.
    pub older: Option<u32>,
}

impl Sealed {
    /// Returns the first name that the entry claims, if it is not too long.
    pub fn name(&self) -> Option<Vec<u8>> {
        let name = [&self.plain[..], &self.suffix].concat();
        (name.len() <= NAME_MAX).then_some(name)
    }

    /// Returns the second one, likewise, for an older epoch.
    pub fn beside(&self) -> Option<Vec<u8>> {
        let beside = [self.name()?, epoch_suffix(self.older?)].concat();
        (beside.len() <= NAME_MAX).then_some(beside)
    }
}

impl ShareKeys {
    fn all_epochs(&self) -> impl Iterator<Item = &Epoch> {
        // The older ones are sorted only if needed.
        std::iter::once(self.current()).chain(std::iter::once_with(|| self.older()).flatten())
    }

    /// Decodes a short stored name under the older epochs' keys, after the current epoch's key has
    /// failed.
    pub fn said_under_older(&self, directory: &DirectoryId, stored: &[u8]) -> Option<Said> {
        self.older().into_iter().find_map(|epoch| {
            match self.names_of(epoch, directory).decode(stored) {
                Decoded::Plain(name) => Some(Self::said(stored, name, Some(epoch.number))),
                _ => None,
            }
        })
    }

    /// Builds the meaning of a short stored name that decodes to `name` under an epoch's key.
    pub fn said(stored: &[u8], mut name: Vec<u8>, older: Option<u32>) -> Said {
        let suffix = stored[without_suffix(stored).len()..].to_vec();
        name.truncate(name.len() - suffix.len());
        Said::Name(Sealed { plain: name, suffix, older })
    }

    /// Builds the meaning of a long-named entry, `suffix` included, with `plain` from its sidecar:
    /// the hashes have to match.
    pub fn said_long(
        &self,
        directory: &DirectoryId,
        stored: &[u8],
        suffix: Vec<u8>,
        plain: Vec<u8>,
    ) -> Said {
        let entry = &stored[..stored.len() - suffix.len()];
        let current = self.current();
        let mut epochs = self.all_epochs();
        let epoch =
            epochs.find(|e| matches!(self.names_of(e, directory).encode(&plain), Some(StoredName::Long { entry: e, .. }) if e == entry));
        match epoch {
            Some(epoch) => Said::Name(Sealed {
                plain,
                suffix,
                older: (!std::ptr::eq(epoch, current)).then_some(epoch.number),
            }),
            None => Said::Lost,
        }
    }

    /// Returns whether `stored` is the entry of the long name `name` under the key of any epoch.
    pub fn is_long_entry(&self, directory: &DirectoryId, stored: &[u8], name: &[u8]) -> bool {
        let mut epochs = self.all_epochs();
        epochs.any(|e| matches!(self.names_of(e, directory).encode(name), Some(StoredName::Long { entry, .. }) if entry == stored))
    }

    /// Returns the entries that claim `name`, in the order of their claims: the whole name first,
    /// then split before a possible sync tool's suffix.
    pub fn claims<'a>(
        &'a self,
        directory: &'a DirectoryId,
        name: &'a [u8],
    ) -> impl Iterator<Item = Vec<u8>> + 'a {
        self.claims_under(directory, name, || self.all_epochs())
    }

    /// Returns the claims except the first, which is the current epoch's entry of the whole name.
    pub fn other_claims<'a>(
        &'a self,
        directory: &'a DirectoryId,
        name: &'a [u8],
    ) -> impl Iterator<Item = Vec<u8>> + 'a {
        self.claims(directory, name).skip(usize::from(self.names(directory).encode(name).is_some()))
    }

    /// If `name` ends like the older one of two equal names: returns the name without that suffix,
    /// and the entries that claim `name` as their second one.
    pub fn second_claims<'a>(
        &'a self,
        directory: &'a DirectoryId,
        name: &'a [u8],
    ) -> Option<(&'a [u8], impl Iterator<Item = Vec<u8>> + 'a)> {
        let (plain, number) = split_epoch(name)?;
        let epochs = move || self.older().into_iter().filter(move |epoch| epoch.number == number);
        Some((plain, self.claims_under(directory, plain, epochs)))
    }

    /// Returns the entries whose place is `name`, without conflict copies.
    pub fn place_entries<'a>(
        &'a self,
        directory: &'a DirectoryId,
        name: &'a [u8],
    ) -> impl Iterator<Item = Vec<u8>> + 'a {
        self.all_epochs()
            .filter_map(move |e| Some(self.names_of(e, directory).encode(name)?.entry().to_vec()))
    }

    fn claims_under<'a, E: Iterator<Item = &'a Epoch> + 'a>(
        &'a self,
        directory: &'a DirectoryId,
        name: &'a [u8],
        epochs: impl Fn() -> E,
    ) -> impl Iterator<Item = Vec<u8>> + 'a {
        let whole = epochs()
            .filter_map(move |e| Some(self.names_of(e, directory).encode(name)?.entry().to_vec()));
        let split = may_be_copy(name).then(epochs).into_iter().flatten();
        // Names that are too long for any store are not looked up.
        whole
            .chain(split.flat_map(move |e| self.names_of(e, directory).conflict_candidates(name)))
            .filter(|entry| entry.len() <= NAME_MAX)
    }
}

/// Returns a stored name for a log line: it is ASCII, unless it is foreign.
pub(crate) fn shown(stored: &[u8]) -> String {
    String::from_utf8_lossy(stored).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suffix_of_an_older_name_is_read_back_and_nothing_else_is() {
        let name = [b"a (1)".to_vec(), epoch_suffix(12)].concat();
        assert_eq!(split_epoch(&name), Some((&b"a (1)"[..], 12)));
        for other in [
            &b" (conflict, epoch 1)"[..],
            b"a (conflict, epoch 01)",
            b"a (conflict, epoch )",
            b"a (conflict, epoch 1",
            b"a",
        ] {
            assert_eq!(split_epoch(other), None, "{}", other.escape_ascii());
        }
    }
}
