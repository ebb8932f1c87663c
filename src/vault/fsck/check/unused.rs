//! Control files to which nothing refers: lists of attributes and targets of links that were
//! replaced or removed.
//!
//! Rules that hold here
//! * They are counted and never removed. A sync tool may deliver the referring entry later, another
//!   copy of the vault may have it, or an entry may be moved during the walk.
//! * The count is known only if everything was read: each entry's attributes, without a fault
//!   anywhere, not even in `lost+found`.
//! * If there are lists and no entry has any attributes, the copy may have been made without
//!   extended attributes: then the count is unknown.

use std::collections::HashSet;

use crate::vault::core::Core;
use crate::vault::core::overflow::Reference;
use crate::vault::error::Inner;
use crate::vault::fsck::report::Unused;
use crate::vault::namespace::{symlink, xattr};
use crate::vault::share::control_files::entries;

/// References that the walk found.
#[derive(Default)]
pub(super) struct Used {
    pub lists: HashSet<Reference>,
    pub targets: HashSet<Reference>,
    /// Some entry has attributes, inline or in a list.
    pub attributes: bool,
    /// Number of entries whose references are unknown.
    pub unlooked: u64,
}

impl Core {
    /// Returns the control files that are not in `used`; `None` if that is unknown.
    pub(super) fn unused(&self, used: &Used) -> Inner<Option<Unused>> {
        let mut unused = Unused::default();
        for entry in entries(&*self.root)? {
            let entry = entry?;
            let is_used = match (
                xattr::overflow_reference(&entry.name),
                symlink::overflow_reference(&entry.name),
            ) {
                (Some(_), _) if !used.attributes => return Ok(None),
                (Some(list), _) => used.lists.contains(&list),
                (_, Some(target)) => used.targets.contains(&target),
                _ => true,
            };
            if is_used {
                continue;
            }
            match self.root.stat(&entry.name) {
                Ok(stat) => {
                    (unused.files, unused.bytes) = (unused.files + 1, unused.bytes + stat.size)
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Some(unused))
    }
}
