//! Control files to which nothing refers: lists of attributes and targets of links that were
//! replaced or removed, long names of entries that are gone, evidence of renames of directories
//! that are gone, and slot blocks of former lists of members.
//!
//! Rules that hold here
//! * They are counted and listed. A sync tool may deliver the referring entry later, another copy of
//!   the vault may have it, or an entry may be moved during the walk; so only `fsck --prune` removes
//!   them, see `prune`.
//! * The count is known only if everything was read: the manifests and each entry's attributes,
//!   without a fault anywhere, not even in `lost+found`.
//! * A slot block counts as unused only if a manifest names it whose successor is here too. One
//!   that no manifest names may have arrived before its manifest, or the storage host hides the
//!   manifest.
//! * If there are lists and no entry has any attributes, the copy may have been made without
//!   extended attributes: then the count is unknown.

use std::collections::{BTreeSet, HashSet};

use crate::crypto::Tag;
use crate::format::manifest::Manifest;
use crate::format::name::{LONG_DIRECTORY, long_hash};
use crate::format::{moved, slots};
use crate::store::Dir;
use crate::vault::core::Core;
use crate::vault::core::overflow::Reference;
use crate::vault::error::Inner;
use crate::vault::fsck::report::{UNUSED_MAX, Unused};
use crate::vault::namespace::{symlink, xattr};
use crate::vault::share::control_files::entries;
use crate::vault::share::enter;
use crate::vault::types::ROOT;

/// References that the walk found. At each fault the walk drops all of them: nothing counts as
/// unused in a share with faults, and the storage host controls how many entries with faults there
/// are.
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

/// Why it is unknown which control files are unused.
pub(super) enum Unknown {
    /// There are lists of attributes, and no entry has any.
    ListsAlone,
    /// The manifests cannot be read or verified.
    Manifests,
}

/// What was found.
#[derive(Default)]
pub(super) struct Found {
    pub count: Unused,
    pub files: Vec<Vec<u8>>,
}

impl Found {
    /// Adds a file of a directory with this path from the root.
    fn add(&mut self, dir: &dyn Dir, path: &[&[u8]], file: &[u8]) -> Inner<()> {
        match dir.stat(file) {
            Ok(stat) => {
                self.count.files += 1;
                self.count.bytes += stat.size;
                if self.files.len() < UNUSED_MAX {
                    self.files.push([path, &[file]].concat().join(&b'/'));
                }
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            Err(e) => return Err(e.into()),
        }
        Ok(())
    }
}

impl Core {
    /// Returns the control files that are not in `used`.
    pub(super) fn unused(&self, used: &Used) -> Inner<Result<Found, Unknown>> {
        let mut unused = Found::default();
        for entry in entries(&*self.root)? {
            let entry = entry?;
            let is_used = match (
                xattr::overflow_reference(&entry.name),
                symlink::overflow_reference(&entry.name),
            ) {
                (Some(_), _) if !used.attributes => return Ok(Err(Unknown::ListsAlone)),
                (Some(list), _) => used.lists.contains(&list),
                (_, Some(target)) => used.targets.contains(&target),
                _ => true,
            };
            if is_used {
                continue;
            }
            unused.add(&*self.root, &[], &entry.name)?;
        }
        self.unused_long_names(used, &mut unused)?;
        self.unused_evidence(used, &mut unused)?;
        Ok(self.superseded_blocks(&mut unused)?.then_some(unused).ok_or(Unknown::Manifests))
    }

    /// Finds the slot blocks that a manifest in the chain of a head names, but no head does.
    /// Returns false if the manifests cannot be read or verified.
    fn superseded_blocks(&self, unused: &mut Found) -> Inner<bool> {
        let (root, shown) = (&*self.root, self.shown_path(ROOT));
        let pin = self.membership.seen.lock().head;
        let heads = enter::descriptor(root, &shown).and_then(|descriptor| {
            Ok(enter::standing(root, &descriptor, pin.as_ref(), &shown)?.standing.heads)
        });
        let heads = match heads {
            Ok(heads) => heads,
            Err(error) => {
                tracing::warn!(
                    "slot blocks of former lists of members are not looked for: {error}"
                );
                return Ok(false);
            }
        };
        let blocks = |manifest: &Manifest| -> Vec<String> {
            manifest.blocks.iter().map(|block| slots::file_name(&block.root)).collect()
        };
        let current: HashSet<String> =
            heads.iter().flat_map(|head| blocks(head.manifest())).collect();
        let all: BTreeSet<String> = heads
            .iter()
            .flat_map(|head| head.history().flat_map(|(manifest, _)| blocks(manifest)))
            .collect();
        for name in all.iter().filter(|name| !current.contains(*name)) {
            unused.add(root, &[], name.as_bytes())?;
        }
        Ok(true)
    }

    fn unused_long_names(&self, used: &Used, unused: &mut Found) -> Inner<()> {
        self.each_file(LONG_DIRECTORY, |dir, group, file| match long_hash(group, file) {
            Some(hash) if !used.long_names.contains(&hash) => {
                unused.add(dir?, &[LONG_DIRECTORY, group], file)
            }
            _ => Ok(()),
        })
    }

    /// Finds the evidence that leads to no directory, neither directly nor through other evidence.
    fn unused_evidence(&self, used: &Used, unused: &mut Found) -> Inner<()> {
        let mut tags: Option<HashSet<Tag>> = None;
        self.each_file(moved::DIRECTORY, |dir, group, file| {
            let dir = dir?;
            let Some(found) = self.evidence_in(dir, file)? else { return Ok(()) };
            if tags.is_none() {
                let mut all = used.tags.clone();
                for tag in &used.tags {
                    all.extend(&*self.explained(tag)?);
                }
                tags = Some(all);
            }
            let is_used = tags.as_ref().is_some_and(|tags| tags.contains(&found.moved.to));
            match is_used {
                true => Ok(()),
                false => unused.add(dir, &[moved::DIRECTORY, group], file),
            }
        })
    }
}
