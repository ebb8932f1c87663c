//! Removal of control files to which nothing refers.
//!
//! Rules that hold here
//! * Only these kinds can be removed: lists of attributes, targets of links, long names, evidence
//!   of renames, and slot blocks.
//! * A file is removed once the caller has its bytes in another place.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::format::name::{LONG_DIRECTORY, long_hash};
use crate::format::{moved, slots};
use crate::store::Dir;
use crate::vault::core::Core;
use crate::vault::error::{Fault, Inner};
use crate::vault::namespace::{symlink, xattr};
use crate::vault::share::control_files::read_control;

/// Longest control file that is removed, in bytes: a slot block for 65,536 members with the longest
/// names has 13 MiB.
const LONGEST: usize = 16 << 20;

/// Takes the bytes of a control file before it is removed.
pub(crate) type Keep<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> std::io::Result<()>;

/// The two names that lead from the root to a directory of control files.
type Group<'a> = (&'a [u8], &'a [u8]);

/// Returns the directory, if it is not the root, and the name of a file that can be removed.
fn place(path: &[u8]) -> Option<(Option<Group<'_>>, &[u8])> {
    match path.split(|b| *b == b'/').collect::<Vec<_>>()[..] {
        [file] if xattr::overflow_reference(file).is_some() => Some((None, file)),
        [file] if symlink::overflow_reference(file).is_some() => Some((None, file)),
        [file] if slots::is_file_name(file) => Some((None, file)),
        [LONG_DIRECTORY, group, file] if long_hash(group, file).is_some() => {
            Some((Some((LONG_DIRECTORY, group)), file))
        }
        [moved::DIRECTORY, group, file] if [group, file].iter().all(|name| is_name(name)) => {
            Some((Some((moved::DIRECTORY, group)), file))
        }
        _ => None,
    }
}

fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
}

impl Core {
    /// Removes control files, each after `keep` has taken its path and bytes; returns their number.
    /// Files that are gone are skipped.
    pub fn prune(&self, files: &[Vec<u8>], keep: Keep) -> Inner<u64> {
        self.check_writable()?;
        let mut dirs: BTreeMap<Option<Group<'_>>, Arc<dyn Dir>> = BTreeMap::new();
        let mut removed = 0;
        for path in files {
            let (group, file) = place(path).ok_or(Fault::Os(libc::EINVAL))?;
            let dir = match (dirs.get(&group), group) {
                (Some(dir), _) => dir.clone(),
                (None, None) => self.root.clone(),
                (None, Some((all, group))) => {
                    match self.root.open_dir(all).and_then(|all| all.open_dir(group)) {
                        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => continue,
                        dir => dir?,
                    }
                }
            };
            dirs.insert(group, dir.clone());
            let Some(bytes) = read_control(&*dir, file, LONGEST)? else { continue };
            keep(path, &bytes)?;
            dir.unlink(file)?;
            removed += 1;
        }
        for (group, dir) in dirs {
            dir.sync()?;
            // The directory stays if it has other files.
            if let Some((all, group)) = group
                && let Ok(all) = self.root.open_dir(all)
                && all.rmdir(group).is_ok()
            {
                all.sync()?;
            }
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paths to remove come from a listing of the store; none may lead to an entry, to a
    /// control file of another kind or out of the vault.
    #[test]
    fn only_what_is_only_ever_added_can_be_removed() {
        let hash = crate::format::name::long_path(&[7; 32]);
        let long = [LONG_DIRECTORY, b"/", &hash.0, b"/", &hash.1].concat();
        let can = [
            "+attr-00112233445566778899aabbccddeeff",
            "+slots-00112233445566778899aabbccddeeff",
            "+moved/abc/def",
        ];
        assert!(can.iter().all(|path| place(path.as_bytes()).is_some()) && place(&long).is_some());
        for path in [
            "",
            "f",
            "+share",
            "+synced",
            "+shared",
            "+identity",
            "+attr-",
            "+attr-00/x",
            "+slots-",
            "+slots-0011",
            "+slots-00112233445566778899AABBCCDDEEFF",
            "+slots-00112233445566778899aabbccddeeff/x",
            "+manifest-1-00112233445566778899aabbccddeeff",
            "+inventory-00112233445566778899aabbccddeeff",
            "+long",
            "+long/aa/bb",
            "+moved",
            "+moved/abc",
            "+moved//def",
            "+moved/abc/",
            "+moved/abc/def/ghi",
            "+other/abc/def",
            "/+moved/abc/def",
            "+journal-1",
        ] {
            assert!(place(path.as_bytes()).is_none(), "{path}");
        }
        let odd = [&b"+moved/../"[..], b"+moved/x/..", b"+moved/./x"];
        assert!(odd.iter().all(|path| place(path).is_none()));
    }
}
