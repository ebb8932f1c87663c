//! Names in a share with several epochs: sealed under the key of the epoch in which they were made,
//! until a pass seals them anew.
//!
//! Rules that hold here
//! * New names are sealed under the current epoch's key. Names of all epochs are found and shown:
//!   whoever had not heard of a new epoch yet may have made some under an old one, and nothing that
//!   is there is hidden.
//! * Several entries may claim one name. Which of them has it follows from the order of
//!   [`ShareKeys::claims`] alone, for who looks a name up as for who lists a directory; see
//!   [`Folder`](crate::vault::directory::folder::Folder).

use crate::format::name::{Decoded, NAME_MAX, StoredName, may_be_copy, without_suffix};
use crate::vault::keyring::keys::{DirectoryId, Epoch, ShareKeys};

/// What the older of two equal names ends with.
fn epoch_suffix(epoch: u32) -> Vec<u8> {
    format!(" (conflict, epoch {epoch})").into_bytes()
}

/// A name with the suffix of [`epoch_suffix`], taken apart.
pub(in crate::vault) fn split_epoch(name: &[u8]) -> Option<(&[u8], u32)> {
    const START: &[u8] = b" (conflict, epoch ";
    let inner = name.strip_suffix(b")")?;
    let at = inner.windows(START.len()).rposition(|window| window == START)?;
    let epoch: u32 = std::str::from_utf8(&inner[at + START.len()..]).ok()?.parse().ok()?;
    (at > 0 && name[at..] == epoch_suffix(epoch)).then_some((&name[..at], epoch))
}

/// What a stored name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// What was sealed.
    Name(Sealed),
    /// Nothing, of a long-named entry whose name is missing or not the one of its hash.
    Lost,
}

/// What was sealed as the name of an entry, and what stands behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    /// The sealed name: that of the place, from which the id of a directory follows.
    pub plain: Vec<u8>,
    /// A sync tool's suffix, often empty.
    pub suffix: Vec<u8>,
    /// Number of the epoch, where that is not the current one.
    pub older: Option<u32>,
}

impl Sealed {
    /// The first name that the entry claims, where there is room for it.
    pub fn name(&self) -> Option<Vec<u8>> {
        let name = [&self.plain[..], &self.suffix].concat();
        (name.len() <= NAME_MAX).then_some(name)
    }

    /// The second one, likewise, of an older epoch.
    pub fn beside(&self) -> Option<Vec<u8>> {
        let beside = [self.name()?, epoch_suffix(self.older?)].concat();
        (beside.len() <= NAME_MAX).then_some(beside)
    }
}

impl ShareKeys {
    fn all_epochs(&self) -> impl Iterator<Item = &Epoch> {
        // The older ones are put in order only for who asks for them.
        std::iter::once(self.current()).chain(std::iter::once_with(|| self.older()).flatten())
    }

    /// What a short stored name that the current epoch's key does not open says under an older
    /// one's.
    pub fn said_under_older(&self, directory: &DirectoryId, stored: &[u8]) -> Option<Said> {
        self.older().into_iter().find_map(|epoch| {
            match self.names_of(epoch, directory).decode(stored) {
                Decoded::Plain(name) => Some(Self::said(stored, name, Some(epoch.number))),
                _ => None,
            }
        })
    }

    /// What a short stored name says that shows as `name` under the key of an epoch.
    pub fn said(stored: &[u8], mut name: Vec<u8>, older: Option<u32>) -> Said {
        let suffix = stored[without_suffix(stored).len()..].to_vec();
        name.truncate(name.len() - suffix.len());
        Said::Name(Sealed { plain: name, suffix, older })
    }

    /// What the stored name of a long-named entry says, `suffix` included, for which `plain` was
    /// sealed: its hash has to be the one of that.
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

    /// Whether `stored` is the entry of the long name `name` under the key of any epoch.
    pub fn is_long_entry(&self, directory: &DirectoryId, stored: &[u8], name: &[u8]) -> bool {
        let mut epochs = self.all_epochs();
        epochs.any(|e| matches!(self.names_of(e, directory).encode(name), Some(StoredName::Long { entry, .. }) if entry == stored))
    }

    /// The entries that claim `name`, in the order of their claims: as it stands, then split before
    /// what may be a sync tool's suffix.
    pub fn claims<'a>(
        &'a self,
        directory: &'a DirectoryId,
        name: &'a [u8],
    ) -> impl Iterator<Item = Vec<u8>> + 'a {
        self.claims_under(directory, name, || self.all_epochs())
    }

    /// Those besides the one of the current epoch as it stands, which comes first.
    pub fn other_claims<'a>(
        &'a self,
        directory: &'a DirectoryId,
        name: &'a [u8],
    ) -> impl Iterator<Item = Vec<u8>> + 'a {
        self.claims(directory, name).skip(usize::from(self.names(directory).encode(name).is_some()))
    }

    /// Where `name` ends as the older one of two equal names does: that name, and the entries that
    /// claim `name` if they do not have it.
    pub fn second_claims<'a>(
        &'a self,
        directory: &'a DirectoryId,
        name: &'a [u8],
    ) -> Option<(&'a [u8], impl Iterator<Item = Vec<u8>> + 'a)> {
        let (plain, number) = split_epoch(name)?;
        let epochs = move || self.older().into_iter().filter(move |epoch| epoch.number == number);
        Some((plain, self.claims_under(directory, plain, epochs)))
    }

    /// The entries whose place `name` is, but for conflict copies.
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
        // What no store has room for needs not be looked for.
        whole
            .chain(split.flat_map(move |e| self.names_of(e, directory).conflict_candidates(name)))
            .filter(|entry| entry.len() <= NAME_MAX)
    }
}

/// A stored name for a log line: it is ASCII, unless it is not ours.
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
