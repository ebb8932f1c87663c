//! Finds lost names in sealed data.
//!
//! Rules that hold here
//! * The header of a file contains its name as a hint. For a long name the hash in the entry proves
//!   the hint.
//! * The tag of a directory with an unknown name is taken from its entries.
//! * The result is a suggestion: the user who repairs the vault decides.

use std::collections::HashMap;

use crate::crypto::Tag;
use crate::format::header::Hint;
use crate::format::name::{StoredName, without_suffix};
use crate::store::{Access, Dir};
use crate::vault::core::Core;
use crate::vault::directory::names::Meaning;
use crate::vault::error::Inner;
use crate::vault::share::control_files::entries;

/// Returns the name that the header of a file records.
pub(crate) fn hint_of(core: &Core, dir: &dyn Dir, stored: &[u8]) -> Inner<Hint> {
    let file = core.journal.overlay(dir.open_file(stored, Access::Read)?)?;
    Ok(core.keys.read_header(&*file)?.hint)
}

/// Returns the sealed form of the long name of an entry, if the header of the file contains the
/// name that has the hash in the entry.
pub(crate) fn long_name_of(core: &Core, dir: &dyn Dir, stored: &[u8]) -> Option<Vec<u8>> {
    let Hint { tag, name } = hint_of(core, dir, stored).ok()?;
    let entry = without_suffix(stored);
    core.keys.all_epochs().find_map(|epoch| {
        match core.keys.names_of(epoch).encode(&tag, &name)? {
            StoredName::Long { entry: other, sealed, .. } if other == entry => Some(sealed),
            _ => None,
        }
    })
}

/// Returns the tag that most of the entries of a directory have.
pub(crate) fn likely_tag(core: &Core, dir: &dyn Dir) -> Option<Tag> {
    let mut counts: HashMap<Tag, u64> = HashMap::new();
    for entry in entries(dir).into_iter().flatten().filter_map(Inner::ok) {
        if let Ok(Some(Meaning::Name(sealed))) = core.read_name(&entry.name) {
            *counts.entry(sealed.tag).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|(tag, count)| (*count, *tag)).map(|(tag, _)| tag)
}
