//! Control files to which nothing refers: lists of attributes and targets of links that were
//! replaced or removed, long names of entries that are gone, and evidence of renames of such
//! directories.
//!
//! Rules that hold here
//! * They are counted and never removed. A sync tool may deliver the referring entry later, another
//!   copy of the vault may have it, or an entry may be moved during the walk.
//! * The count is known only if everything was read: each entry's attributes, without a fault
//!   anywhere, not even in `lost+found`.
//! * If there are lists and no entry has any attributes, the copy may have been made without
//!   extended attributes: then the count is unknown.

use std::collections::HashSet;

use crate::crypto::Tag;
use crate::format::name::{LONG_DIRECTORY, long_hash};
use crate::store::Dir;
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
    /// Hashes of the long-named entries.
    pub long_names: HashSet<[u8; 32]>,
    /// Tags of the directories.
    pub tags: HashSet<Tag>,
    /// Some entry has attributes, inline or in a list.
    pub attributes: bool,
    /// Number of entries whose references are unknown.
    pub unlooked: u64,
}

impl Unused {
    fn add(&mut self, dir: &dyn Dir, file: &[u8]) -> Inner<()> {
        match dir.stat(file) {
            Ok(stat) => (self.files, self.bytes) = (self.files + 1, self.bytes + stat.size),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }
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
            unused.add(&*self.root, &entry.name)?;
        }
        self.unused_long_names(used, &mut unused)?;
        self.unused_evidence(used, &mut unused)?;
        Ok(Some(unused))
    }

    fn unused_long_names(&self, used: &Used, unused: &mut Unused) -> Inner<()> {
        self.each_file(LONG_DIRECTORY, |dir, group, file| match long_hash(group, file) {
            Some(hash) if !used.long_names.contains(&hash) => unused.add(dir, file),
            _ => Ok(()),
        })
    }

    /// Evidence is used if it leads to a directory, be it through other evidence.
    fn unused_evidence(&self, used: &Used, unused: &mut Unused) -> Inner<()> {
        let mut tags: Option<HashSet<Tag>> = None;
        self.each_evidence(|found, dir, file| {
            if tags.is_none() {
                let mut all = used.tags.clone();
                for tag in &used.tags {
                    all.extend(&*self.explained(tag)?);
                }
                tags = Some(all);
            }
            let is_used = tags.as_ref().is_some_and(|tags| tags.contains(&found.moved.to));
            if is_used { Ok(()) } else { unused.add(dir, file) }
        })
    }
}
