//! What stored names mean under the keys of a share.
//!
//! Rules that hold here
//! * New names are sealed under the current epoch's key. Names of all epochs are found and listed,
//!   because no entry is hidden. A client that does not know a new epoch yet creates names under an
//!   old one.
//! * A name opens with the keys alone, wherever its entry is. Whether it belongs to its directory
//!   is decided by [`Folder`](crate::vault::directory::folder::Folder).

use crate::crypto::Tag;
use crate::format::name::{LONG_DIRECTORY, NAME_MAX, Opened, Parts, long_path, parse};
use crate::format::suffix;
use crate::vault::core::Core;
use crate::vault::error::{Fault, Inner};
use crate::vault::keyring::keys::ShareKeys;
use crate::vault::share::control_files::is_forbidden;

/// The meaning of the stored name of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A name that a key of the share opens.
    Name(Sealed),
    /// A long-named entry whose sealed name is missing or does not match its hash.
    Lost,
}

/// What the stored name of an entry contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sealed {
    /// Tag of the directory in which the name was created.
    pub tag: Tag,
    /// The plain name.
    pub plain: Vec<u8>,
    /// A sync tool's suffix as stored, often empty.
    pub suffix: Vec<u8>,
    /// Whether the name is sealed under another epoch than the current one.
    pub is_old: bool,
}

/// A stored name before decryption.
enum Found<'n> {
    /// A sealed name, and the suffix.
    Sealed(Vec<u8>, &'n [u8]),
    /// As [`Meaning::Lost`].
    Lost,
    /// A control file or a foreign name.
    Other,
}

impl Meaning {
    fn opened((Opened { tag, name }, is_old): (Opened, bool), suffix: &[u8]) -> Self {
        Meaning::Name(Sealed { tag, plain: name, suffix: suffix.to_vec(), is_old })
    }
}

impl Sealed {
    /// Returns the plain name with the suffix as shown, if it is not too long.
    pub fn name(&self) -> Option<Vec<u8>> {
        let name = [&self.plain[..], &suffix::shown(&self.suffix)].concat();
        (name.len() <= NAME_MAX).then_some(name)
    }
}

impl ShareKeys {
    /// Opens sealed names, many at a time, each under the key of any epoch. The second value is
    /// true if that is not the current epoch. `None` for names that no key opens.
    fn open_names(&self, sealed: Vec<Vec<u8>>) -> Vec<Option<(Opened, bool)>> {
        let mut all: Vec<Option<(Opened, bool)>> = sealed.iter().map(|_| None).collect();
        let (mut places, mut left): (Vec<usize>, Vec<_>) = (0..sealed.len()).zip(sealed).unzip();
        let mut epochs = self.all_epochs().zip(0..).peekable();
        while let Some((epoch, number)) = epochs.next()
            && !left.is_empty()
        {
            // Opening consumes the names, and most shares have one epoch.
            let kept = if epochs.peek().is_some() { left.clone() } else { Vec::new() };
            let opened = self.names_of(epoch).open_many(left);
            for (at, opened) in places.iter().zip(opened) {
                all[*at] = opened.map(|opened| (opened, number > 0));
            }
            (places, left) =
                places.into_iter().zip(kept).filter(|(at, _)| all[*at].is_none()).unzip();
        }
        all
    }

    /// Opens one sealed name, as [`ShareKeys::open_names`] does.
    fn open_name(&self, sealed: &[u8]) -> Option<(Opened, bool)> {
        let opened = |(epoch, number)| Some((self.names_of(epoch).open(sealed)?, number > 0));
        self.all_epochs().zip(0..).find_map(opened)
    }

    /// Returns the tag of the directory with this stored name; `None` if it is not a name of the
    /// share.
    pub fn tag_of(&self, stored: &[u8]) -> Option<Tag> {
        match parse(stored, self.longest_name) {
            Parts::Long { hash, .. } => Some(self.long_directory_tag(&hash)),
            Parts::Short { sealed, .. } => {
                let opened = self.open_name(&sealed)?.0;
                Some(self.directory_tag(&opened.tag, &opened.name))
            }
            Parts::Control | Parts::Foreign => None,
        }
    }

    /// Returns whether `stored`, without a suffix, is the stored name of `name` in a directory with
    /// one of these tags, under the key of any epoch.
    pub fn is_stored_name(&self, stored: &[u8], tags: &[Tag], name: &[u8]) -> bool {
        self.all_epochs().any(|epoch| {
            let cipher = self.names_of(epoch);
            let mut names = tags.iter().filter_map(|tag| cipher.encode(tag, name));
            names.any(|other| other.entry() == stored)
        })
    }
}

impl Core {
    /// Returns the meaning of each stored name; `None` for control files and names that no key of
    /// the share opens.
    ///
    /// # Errors
    /// Those of the store when a long name is read. A long name counts as lost if it is missing or
    /// this process may not read it.
    pub fn read_names<'n>(
        &self,
        stored: impl IntoIterator<Item = &'n [u8]>,
    ) -> Inner<Vec<Option<Meaning>>> {
        let mut sealed = Vec::new();
        let mut found = Vec::new();
        for stored in stored {
            found.push(match self.find_sealed(stored)? {
                Found::Sealed(name, suffix) => {
                    sealed.push(name);
                    Some(Some(suffix))
                }
                Found::Lost => Some(None),
                Found::Other => None,
            });
        }
        let mut opened = self.keys.open_names(sealed).into_iter();
        Ok(found
            .into_iter()
            .map(|found| match found? {
                Some(suffix) => Some(Meaning::opened(opened.next()??, suffix)),
                None => Some(Meaning::Lost),
            })
            .collect())
    }

    /// Returns the meaning of one stored name, as [`Core::read_names`] does.
    pub fn read_name(&self, stored: &[u8]) -> Inner<Option<Meaning>> {
        Ok(match self.find_sealed(stored)? {
            Found::Sealed(name, suffix) => {
                self.keys.open_name(&name).map(|opened| Meaning::opened(opened, suffix))
            }
            Found::Lost => Some(Meaning::Lost),
            Found::Other => None,
        })
    }

    /// Returns the sealed name of an entry, for which the store is read if the name is long.
    fn find_sealed<'n>(&self, stored: &'n [u8]) -> Inner<Found<'n>> {
        Ok(match parse(stored, self.keys.longest_name) {
            Parts::Short { sealed, suffix } => Found::Sealed(sealed, suffix),
            Parts::Long { hash, suffix } => match self.long_name(&hash) {
                Ok(Some(sealed)) => Found::Sealed(sealed, suffix),
                Err(Fault::Io(e)) if is_forbidden(&e) => {
                    let (group, file) = long_path(&hash);
                    self.namespace.unreadable.tell(&[LONG_DIRECTORY, &group, &file]);
                    Found::Lost
                }
                Err(Fault::Io(e)) => return Err(e.into()),
                Ok(None) | Err(_) => Found::Lost,
            },
            Parts::Control | Parts::Foreign => Found::Other,
        })
    }
}

/// Returns a stored name as text for a log line.
pub(crate) fn shown(stored: &[u8]) -> String {
    String::from_utf8_lossy(stored).into_owned()
}
