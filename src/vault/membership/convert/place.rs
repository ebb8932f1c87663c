//! The folder's place, and how the share takes it: in one step if the store can exchange two
//! directories, otherwise in several.
//!
//! Rules that hold here
//! * At every moment a directory with all of the folder's contents is durably visible to programs:
//!   under its own name, or under its temporary name. No other state is ever relied on.
//! * A folder under a temporary name is identified by its rename evidence, which contains the tags
//!   of both names and cannot be made without the key. The name alone proves nothing: users and
//!   sync tools create names too.
//! * Users may have changed anything they can see. So a folder is removed only if no user could
//!   see it since it was compared.

use std::sync::Arc;

use crate::format::junction::{self, Junction};
use crate::format::name::NAME_MAX;
use crate::store::{Dir, Kind, RenameMode};
use crate::vault::core::Core;
use crate::vault::core::trash::Trash;
use crate::vault::core::trash::remove_all;
use crate::vault::directory::census::Counted;
use crate::vault::directory::folder::Folder;
use crate::vault::directory::names::shown;
use crate::vault::error::{Fault, Inner};
use crate::vault::types::NodeId;

/// Prefix of the stored name of a share that is being created, or of the folder that it has
/// replaced; the hash of the place follows.
const COMING: &[u8] = b"+moving-";
/// Suffix of the temporary name of a folder, and how many such names are tried.
const ASIDE: &str = ".before-share";
const ASIDE_MAX: usize = 9;

/// The folder's place.
pub(super) struct Place {
    pub parent: Arc<dyn Dir>,
    parent_node: NodeId,
    pub stored: Box<[u8]>,
    pub name: Vec<u8>,
}

/// A folder under a temporary name.
pub(super) struct Aside {
    pub name: Vec<u8>,
    pub stored: Vec<u8>,
}

/// Returns the temporary names that a folder may have, in order of preference.
fn aside_names(name: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    (1..=ASIDE_MAX).map(|n| {
        let end = if n == 1 { ASIDE.to_owned() } else { format!("{ASIDE}-{n}") };
        [shortened(name, NAME_MAX - end.len()), end.as_bytes()].concat()
    })
}

/// Returns `name`, or its longest prefix that fits in `room` bytes and ends with a whole character.
fn shortened(name: &[u8], room: usize) -> &[u8] {
    const CHARACTER_MAX: usize = 4;
    if name.len() <= room {
        return name;
    }
    let begins_character = |at: &usize| name[*at] & 0b1100_0000 != 0b1000_0000;
    // A name that is not UTF-8 is cut at any byte.
    let end = (room + 1 - CHARACTER_MAX..=room).rev().find(begins_character).unwrap_or(room);
    &name[..end]
}

impl Place {
    pub fn of(core: &Core, stored: &[u8], name: &[u8], parent: NodeId) -> Inner<Self> {
        let folder = core.folder(parent)?;
        let name = folder.place_name(stored, name)?.ok_or(Fault::Os(libc::EINVAL))?;
        Ok(Place { parent: folder.dir, parent_node: parent, stored: stored.into(), name })
    }

    /// Returns the directory that contains the place.
    pub fn beside<'c>(&self, core: &'c Core) -> Inner<Folder<'c>> {
        core.folder(self.parent_node)
    }

    pub fn new_staging(&self, core: &Core) -> Inner<Vec<u8>> {
        let beside = self.beside(core)?;
        Ok(Self::staging_name(&core.keys.place_hash(&beside.tag, &self.name)))
    }

    fn staging_name(hash: &[u8; 32]) -> Vec<u8> {
        [COMING, &junction::file_name(hash)[junction::PREFIX.len()..]].concat()
    }

    /// Returns the place of a name; the entry need not exist.
    pub fn named(core: &Core, name: &[u8], parent: NodeId) -> Inner<Self> {
        Self::of(core, &core.folder(parent)?.stored(name)?, name, parent)
    }

    /// Returns the stored name of the staged share, or of the former folder after an exchange;
    /// `None` if neither exists.
    pub fn staging(&self, core: &Core) -> Inner<Option<Vec<u8>>> {
        for tag in self.beside(core)?.junction_tags()? {
            for hash in core.keys.place_hashes(&tag, &self.name) {
                let name = Self::staging_name(&hash);
                match self.parent.stat(&name) {
                    Ok(_) => return Ok(Some(name)),
                    Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(None)
    }

    pub fn junction(&self, core: &Core) -> Inner<Option<Junction>> {
        self.beside(core)?.junction(&self.name)
    }

    /// Moves the share to the folder's place; the caller has locked names and opens. After an error
    /// the folder is where it was, or has a temporary name if it could not be renamed back. Returns
    /// the folder's temporary name if it has one now.
    pub fn exchange(&self, core: &Core, staging: &[u8]) -> Inner<Option<Aside>> {
        match self.parent.rename(&self.stored, &*self.parent, staging, RenameMode::Exchange) {
            // Most stores behind FUSE or on a server support ordinary renames only.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)
                ) =>
            {
                self.exchange_in_steps(core, staging).map(Some)
            }
            other => Ok(other.map(|()| None)?),
        }
    }

    fn exchange_in_steps(&self, core: &Core, staging: &[u8]) -> Inner<Aside> {
        let beside = self.beside(core)?;
        let mut free = None;
        for name in aside_names(&self.name) {
            if !beside.exists(&name)? {
                free = Some(name);
                break;
            }
        }
        let name = free.ok_or(Fault::Os(libc::EEXIST))?;
        let entry = beside.encode(&name)?;
        // As before any rename of a directory, in case the following steps are interrupted.
        let tag = |stored| core.keys.tag_of(stored).ok_or(Fault::Os(libc::ESTALE));
        core.record_move(&tag(&self.stored)?, &tag(entry.entry())?)?;
        core.prepare(&entry)?;
        core.remember_name(self.parent_node, &name);
        let aside = Aside { name, stored: entry.entry().to_vec() };

        core.namespace.away.begin();
        let taken = self.move_to(&self.stored, &aside.stored).and_then(|()| {
            // The folder's temporary name must be durable before the share takes this one.
            self.parent.sync()?;
            Ok(self.parent.rename(staging, &*self.parent, &self.stored, RenameMode::NoReplace)?)
        });
        if taken.is_err() {
            self.give_back(&aside);
        }
        core.namespace.away.end();
        taken.map(|()| aside)
    }

    /// Renames the folder back after a failed exchange.
    fn give_back(&self, aside: &Aside) {
        let back = match self.parent.stat(&aside.stored) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()), // it was not moved
            _ => self.move_to(&aside.stored, &self.stored),
        };
        if let Err(fault) = back {
            tracing::error!(
                errno = fault.errno(),
                "a folder is named {} until the conversion into a share is run again",
                shown(&aside.stored)
            );
        }
    }

    fn move_to(&self, from: &[u8], to: &[u8]) -> Inner<()> {
        Ok(self.parent.rename(from, &*self.parent, to, RenameMode::NoReplace)?)
    }

    /// Makes the share's new place durable, and gives a folder with a temporary name the name that an
    /// exchange would have given it. The caller has checked that the folder has not changed since it
    /// was compared.
    pub fn finish_exchange(&self, core: &Core, aside: Option<&Aside>) -> Inner<()> {
        self.parent.sync()?;
        if let Some(aside) = aside {
            self.move_to(&aside.stored, &self.new_staging(core)?)?;
            self.parent.sync()?;
        }
        Ok(())
    }

    /// Returns the folder under its temporary name, if an exchange in several steps was
    /// interrupted.
    pub fn aside(&self, core: &Core) -> Inner<Option<Aside>> {
        if !self.junction(core)?.is_some_and(|junction| junction.coming) {
            return Ok(None);
        }
        let beside = self.beside(core)?;
        for name in aside_names(&self.name) {
            let stored = match beside.find(&name) {
                Ok((stored, stat)) if stat.kind == Kind::Dir => stored,
                Err(fault) if fault.errno() != libc::ENOENT => return Err(fault),
                _ => continue,
            };
            // The folder is recognised by two things: evidence leads from its place to this
            // directory, and an entry in it has a tag that the evidence explains. A user's own
            // directory of this name has neither. An empty directory counts only if nothing is in
            // the folder's place.
            let tag = core.keys.tag_of(&stored).ok_or(Fault::Os(libc::ESTALE))?;
            let explained = core.explained(&tag)?;
            let was_moved =
                beside.tags_at(&self.name)?.iter().any(|place| explained.contains(place));
            let inside = core.folder_at(self.parent.open_dir(&stored)?, tag);
            let Counted { census, .. } = inside.census()?;
            let tags = census.tags();
            let is_folder = if tags.is_empty() {
                !beside.exists(&self.name)?
            } else {
                tags.iter().any(|tag| explained.binary_search(tag).is_ok())
            };
            if was_moved && is_folder {
                return Ok(Some(Aside { name, stored }));
            }
        }
        Ok(None)
    }

    /// Completes the exchange: writes the final junction and removes the former folder.
    pub fn tidy(&self, core: &Core) -> Inner<()> {
        if let Some(junction) = self.junction(core)?
            && junction.coming
        {
            self.beside(core)?.write_junction(&Junction { coming: false, ..junction })?;
        }
        if let Some(former) = self.staging(core)? {
            match remove_all(&*self.parent, &former) {
                // A store behind FUSE or NFS keeps files that are open, and so the directory that
                // contains them.
                Err(fault)
                    if matches!(fault.errno(), libc::ENOTEMPTY | libc::EEXIST | libc::EBUSY) =>
                {
                    self.remove_later(core, &former)?
                }
                other => other?,
            }
            self.parent.sync()?;
        }
        Ok(())
    }

    fn remove_later(&self, core: &Core, former: &[u8]) -> Inner<()> {
        let (trash, inner) = (Trash::fresh_name(&*core.random), Trash::fresh_name(&*core.random));
        self.parent.mkdir(&trash, 0o700)?;
        self.parent.rename(
            former,
            &*self.parent.open_dir(&trash)?,
            &inner,
            RenameMode::NoReplace,
        )?;
        core.namespace.trash.empty(&self.parent, &trash);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_fit_and_end_with_a_whole_character() {
        let names = |name: &[u8]| aside_names(name).collect::<Vec<_>>();
        assert_eq!(names(b"projects")[0], b"projects.before-share");
        assert_eq!(names(b"projects")[8], b"projects.before-share-9");
        let room = NAME_MAX - ASIDE.len();
        for (name, kept) in [
            ("x".repeat(room), room),
            ("x".repeat(255), room),
            (format!("x{}", "ö".repeat(127)), room - (room - 1) % 2),
            (format!("{}x", "漢".repeat(84)), room - room % 3),
        ] {
            let first = &names(name.as_bytes())[0];
            assert_eq!(first.len(), kept + ASIDE.len());
            assert!(String::from_utf8(first.clone()).unwrap().starts_with(&name[..kept]));
        }
        assert_eq!(names(&[0x80; 255])[0].len(), NAME_MAX, "what is no UTF-8");
        let all = names(&[b'x'; 255]);
        assert!(
            all.iter().all(|name| name.len() <= NAME_MAX)
                && all.iter().collect::<std::collections::HashSet<_>>().len() == ASIDE_MAX
        );
    }
}
