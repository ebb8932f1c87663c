//! Control files to which nothing refers: lists of attributes and targets of links that were
//! replaced or removed.
//!
//! Rules that hold here
//! * They are counted and never removed: a sync tool may bring what refers to one later, another
//!   copy of the vault may have it, and an entry may be moved while the walk passes it by.
//! * Nothing is known to be unused unless everything was looked at: each entry's attributes,
//!   without a fault anywhere, not even in what earlier repairs have put aside.
//! * Where there are lists and no entry has any attributes, the copy may have been made without
//!   those: so nothing is said.

use std::collections::HashSet;

use crate::vault::core::Core;
use crate::vault::core::overflow::Reference;
use crate::vault::error::Inner;
use crate::vault::fsck::report::Unused;
use crate::vault::namespace::{symlink, xattr};
use crate::vault::share::control_files::entries;

/// What the walk found to be referred to.
#[derive(Default)]
pub(super) struct Used {
    pub lists: HashSet<Reference>,
    pub targets: HashSet<Reference>,
    /// An entry has attributes, wherever they stand.
    pub attributes: bool,
    /// Entries of which nobody knows what they refer to.
    pub unlooked: u64,
}

impl Core {
    /// The control files that are not among those that are `used`; `None` where that cannot be
    /// told.
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
