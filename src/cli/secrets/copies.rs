//! Conflict copies of a vault's own identity.
//!
//! Rules that hold here
//! * Two machines may change the passphrases of a synced vault at the same time. The sync tool
//!   keeps one file as `+identity` and renames the other one by a suffix. The passphrase that was
//!   set on the other machine opens only the copy, so a secret that does not open `+identity` is
//!   tried on the copies. They are also tried where `+identity` itself is missing or damaged.
//! * The storage host can add copies. They are read only after the secret has failed, a bounded
//!   number of them is tried, and one attempt costs no more than kithfs permits for one file.
//! * A copy counts only if it holds the same identity. An old copy opens with the old passphrase,
//!   as it would in the place of `+identity`.

use std::collections::BTreeSet;

use crate::cli::secrets::identity::Place;
use crate::cli::secrets::kdf;
use crate::roster::IdentityFile;
use crate::store::Dir;
use crate::vault::IDENTITY_FILE;

/// Maximum number of names that are read: the storage host could add any number of files.
const NAMES_MAX: usize = 64;
/// Maximum number of copies that are tried.
const COPIES_MAX: usize = 8;
/// Size in bytes of one read of a directory's listing.
const LISTED: usize = 1 << 16;

/// Returns the conflict copies of `file`, which is stored at `place`, that a secret is tried on.
pub fn beside(place: &Place, file: &IdentityFile) -> Vec<(Place, IdentityFile)> {
    let mut copies: Vec<(Place, IdentityFile)> = Vec::new();
    let mut seen = BTreeSet::from([file.encode()]);
    for (at, copy) in readable(place) {
        let tried = copies.iter().map(|(_, copy)| copy);
        if copy.public() == file.public()
            && kdf::is_usual([file, &copy].into_iter().chain(tried))
            && seen.insert(copy.encode())
        {
            copies.push((at, copy));
        }
        if copies.len() == COPIES_MAX {
            break;
        }
    }
    copies
}

/// Returns the first conflict copy of the identity that is missing or damaged at `place`.
pub fn instead_of(place: &Place) -> Option<Place> {
    readable(place).next().map(|(at, _)| at)
}

/// Returns the files beside `place` that have the name of an identity with a suffix, and its form.
fn readable(place: &Place) -> impl Iterator<Item = (Place, IdentityFile)> + '_ {
    names(&*place.dir, IDENTITY_FILE.as_bytes()).into_iter().filter_map(|name| {
        let path = place.path.with_file_name(display_name(&name));
        let at = Place { dir: place.dir.clone(), name, path };
        let copy = at.bytes().ok().and_then(|(bytes, _)| IdentityFile::decode(&bytes).ok())?;
        Some((at, copy))
    })
}

/// Returns the first names, in their order, that are `name` with a suffix.
fn names(dir: &dyn Dir, name: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    let mut cookie = 0;
    while let Ok(entries) = dir.read(cookie, LISTED)
        && let Some(last) = entries.last()
    {
        cookie = last.next;
        for entry in entries {
            if entry.name.len() > name.len() && entry.name.starts_with(name) {
                names.insert(entry.name.to_vec());
            }
            if names.len() > NAMES_MAX {
                names.pop_last();
            }
        }
    }
    names
}

fn display_name(name: &[u8]) -> std::ffi::OsString {
    std::os::unix::ffi::OsStringExt::from_vec(name.to_vec())
}
