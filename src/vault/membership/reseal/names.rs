//! Reseals names of entries.
//!
//! Rules that hold here
//! * Names are not signed: every holder of an epoch's key can create one. The pass seals the name
//!   that is shown, whichever epoch it comes from.
//! * An entry is renamed only if its new stored name is free, and if no entry of a later epoch has
//!   the same tag and name. Otherwise the renamed entry would take the name from that one, also if
//!   the storage host has put the renamed entry back from a former epoch.
//! * The tag in the name stays the same. An entry with the tag of another directory is shown with a
//!   mark, as before.

use crate::format::name::StoredName;
use crate::store::{Dir, Kind};
use crate::store::{RenameMode, SetTime};
use crate::vault::core::Core;
use crate::vault::directory::folder::Folder;
use crate::vault::directory::names::{Meaning, Sealed};
use crate::vault::error::{Fault, Inner};
use crate::vault::types::NodeId;

/// Whether the name of an entry is to be resealed, with the name under which the entry is shown.
pub(super) enum Standing {
    /// Nothing to reseal: the name is of the current epoch, or a long name that is missing.
    Current(Vec<u8>),
    Older(Vec<u8>, Sealed),
    /// It cannot be renamed: an entry of a later epoch has the same tag and name, or it is a sync
    /// tool's conflict copy.
    Conflict(Vec<u8>),
}

/// Runs `act` in a directory and restores the directory's modification time.
pub(super) fn keeping_time<T>(dir: &dyn Dir, act: impl FnOnce() -> Inner<T>) -> Inner<T> {
    let before = dir.stat_self()?;
    let outcome = act();
    if let Err(e) = dir.set_times_self(SetTime::Omit, SetTime::At(before.mtime)) {
        tracing::debug!("a directory's time cannot be kept: {e}"); // it belongs to another user
    }
    outcome
}

impl Folder<'_> {
    /// Returns the standing of the entry `stored`; `None` if it has no name in this directory.
    pub(super) fn standing(&self, stored: &[u8]) -> Inner<Option<Standing>> {
        let Some(meaning) = self.core.read_name(stored)? else { return Ok(None) };
        let Some(name) = self.shown(stored, &meaning)? else { return Ok(None) };
        Ok(Some(match meaning {
            Meaning::Name(sealed) if sealed.is_old => {
                match sealed.suffix.is_empty() && self.is_latest(stored, &sealed) {
                    true => Standing::Older(name, sealed),
                    false => Standing::Conflict(name),
                }
            }
            Meaning::Name(_) | Meaning::Lost => Standing::Current(name),
        }))
    }

    /// Returns whether no entry of a later epoch has the tag and the name of the entry `stored`.
    fn is_latest(&self, stored: &[u8], sealed: &Sealed) -> bool {
        let is_missing = |name: &[u8]| {
            self.dir().stat(name).is_err_and(|e| e.raw_os_error() == Some(libc::ENOENT))
        };
        let names: Vec<_> = self.encodings(&sealed.tag, &sealed.plain).collect();
        let mut later = names.iter().map(StoredName::entry).take_while(|name| *name != stored);
        later.all(is_missing)
    }

    /// Returns the stored name of an entry under the current epoch.
    fn resealed(&self, sealed: &Sealed) -> Inner<StoredName> {
        let keys = self.keys();
        let cipher = keys.names_of(keys.current());
        cipher.encode(&sealed.tag, &sealed.plain).ok_or(Fault::Os(libc::EINVAL))
    }
}

impl Core {
    /// Renames the entry `stored`, whose name is sealed under an older epoch, to its stored name of
    /// the current epoch. Returns the name with which it is shown now: a mark depends on the stored
    /// name.
    pub(super) fn reseal_name(
        &self,
        node: NodeId,
        stored: &[u8],
        name: &[u8],
        sealed: &Sealed,
    ) -> Inner<Vec<u8>> {
        let _names = self.namespace.names.write()?;
        let folder = self.folder(node)?;
        let dir = folder.dir();
        let stat = dir.stat(stored)?;
        let new = folder.resealed(sealed)?;
        if !folder.is_latest(stored, sealed) {
            return Ok(name.to_vec()); // an entry of a later epoch was created meanwhile
        }
        // Conflict copies of the old name are not recognised as copies of the new one.
        self.namespace.young_lists.forget_all();
        let shown = keeping_time(dir, || {
            self.prepare(&new)?;
            // The tag of a directory with a long name follows from its stored name.
            if stat.kind == Kind::Dir
                && let (Some(from), Some(to)) =
                    (self.keys.tag_of(stored), self.keys.tag_of(new.entry()))
            {
                self.record_move(&from, &to)?;
            }
            let _paths = self.namespace.paths.write();
            if stat.kind == Kind::Dir {
                self.journal.checkpoint_for(None)?
            } else {
                self.checkpoint_file(&stat)?
            }
            dir.rename(stored, dir, new.entry(), RenameMode::NoReplace)?;
            let shown = folder.decode(new.entry()).ok().flatten();
            let shown = shown.unwrap_or_else(|| name.to_vec());
            let link = folder.link(new.entry(), &shown);
            self.nodes.retired_follow(&stat, folder.node, stored, Some(&link));
            if let Some(node) = self.nodes.find(&stat) {
                self.nodes.add_link(node, link);
                self.nodes.remove_link(&stat, folder.node, stored);
            }
            Ok(shown)
        })?;
        if let Some(node) = self.nodes.find(&stat) {
            self.inode_changed(node);
        }
        Ok(shown)
    }
}
