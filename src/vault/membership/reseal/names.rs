//! Names of entries.
//!
//! A name is not signed; every holder of the epoch's key can create one. It counts as the name that
//! is shown, under whichever epoch, and is moved only if its new stored name is free.

use crate::format::name::StoredName;
use crate::store::{Dir, Kind};
use crate::store::{RenameMode, SetTime};
use crate::vault::core::Core;
use crate::vault::directory::folder::Folder;
use crate::vault::directory::names::Said;
use crate::vault::error::Inner;
use crate::vault::types::NodeId;

/// The epoch of an entry, with the name under which it is shown.
pub(super) enum Standing {
    Current(Vec<u8>),
    Older(Vec<u8>),
    /// Another entry has its place, or it is a sync tool's copy of one.
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
    /// See [`Standing`]; `None` if it is not a name of this directory.
    pub(super) fn standing(&self, stored: &[u8]) -> Inner<Option<Standing>> {
        let Some(said) = self.read(stored)? else { return Ok(None) };
        let Some(name) = self.shown(stored, &said)? else { return Ok(None) };
        Ok(Some(match said {
            Said::Name(sealed) if sealed.older.is_some() => {
                // An entry that is shown with its plain name has no rival of a newer epoch.
                if sealed.suffix.is_empty() && name == sealed.plain {
                    Standing::Older(name)
                } else {
                    Standing::Conflict(name)
                }
            }
            Said::Name(_) | Said::Lost => Standing::Current(name),
        }))
    }
}

impl Core {
    /// Renames the entry `stored`, whose name is sealed under an older epoch, to its stored name of
    /// the current epoch.
    pub(super) fn reseal_name(&self, node: NodeId, stored: &[u8], name: &[u8]) -> Inner<()> {
        let _names = self.namespace.names.write()?;
        let folder = self.folder(node)?;
        let dir = folder.dir();
        let stat = dir.stat(stored)?;
        let new = folder.encode(name)?;
        if dir.stat(new.entry()).is_ok() {
            return Ok(()); // it was created meanwhile: a conflict now
        }
        self.namespace.young_lists.forget_all(); // its conflict copies are not moved
        keeping_time(dir, || {
            folder.prepare(&new, name)?;
            {
                let _paths = self.namespace.paths.write();
                if stat.kind == Kind::Dir {
                    self.journal.settle(None)?
                } else {
                    self.settle(&stat)?
                }
                dir.rename(stored, dir, new.entry(), RenameMode::NoReplace)?;
                self.nodes.retired_follow(
                    &stat,
                    folder.node,
                    stored,
                    Some(&folder.link(new.entry(), name)),
                );
                if let Some(node) = self.nodes.find(&stat) {
                    self.nodes.add_link(node, folder.link(new.entry(), name));
                    self.nodes.remove_link(&stat, folder.node, stored);
                }
            }
            if matches!(new, StoredName::Long { .. }) {
                dir.sync()?; // before the old entry's sidecar is removed
                folder.tidy(stored);
            }
            Ok(())
        })?;
        if let Some(node) = self.nodes.find(&stat) {
            self.inode_changed(node);
        }
        Ok(())
    }
}
