//! Renaming: files, directories with their contents, and shares.
//!
//! Rules that hold here
//! * Entries keep their stored names when their directory is renamed. Evidence that they belong to
//!   it at its new place is durable before the rename.

use crate::format::junction::Junction;
use crate::store::{Access, Kind, Stat};
use crate::vault::core::Core;
use crate::vault::core::Move;
use crate::vault::core::inodes::Link;
use crate::vault::core::trash::Trash;
use crate::vault::directory::folder::Folder;
use crate::vault::directory::junction::holds_share;
use crate::vault::durability::commit::Durability;
use crate::vault::error::{Fault, Inner};
use crate::vault::types::{NodeId, RenameMode};

/// How often a rename is begun if its target appears meanwhile, each time.
const RENAMES_MAX: usize = 4;

/// An entry of a directory, by its stored and its plain name.
struct EntryName<'a> {
    folder: &'a Folder<'a>,
    parent: NodeId,
    stored: &'a [u8],
    name: &'a [u8],
}

impl EntryName<'_> {
    fn link(&self) -> Link {
        self.folder.link(self.stored, self.name)
    }

    fn place_name(&self) -> Inner<Vec<u8>> {
        self.folder.place_name(self.stored, self.name)?.ok_or(Fault::Os(libc::EACCES))
    }
}

impl Core {
    /// Makes the evidence durable that the entries of the directory `stored` belong to the
    /// directory `destination` once it is renamed. Returns false if the directory is empty and
    /// needs none.
    fn record_rename(&self, from: &Folder, stored: &[u8], destination: &[u8]) -> Inner<bool> {
        let (_, bare) = Self::is_empty(&*from.dir.open_dir(stored)?)?;
        // Only another daemon, or another machine, could be about to fill an empty one.
        if bare && !self.mode.writers.share_names() && !self.mode.synced {
            return Ok(false);
        }
        let (Some(old), Some(new)) = (self.keys.tag_of(stored), self.keys.tag_of(destination))
        else {
            return Err(Fault::Os(libc::ESTALE));
        };
        self.record_move(&old, &new)?;
        self.namespace.vacated.follow(&old, &new);
        Ok(true)
    }

    pub fn rename(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Inner<()> {
        let attempts = if self.mode.writers.share_names() { RENAMES_MAX } else { 1 };
        for _ in 1..attempts {
            match self.rename_once(parent, name, new_parent, new_name, mode) {
                // Another daemon has made the target meanwhile.
                Err(fault) if fault.errno() == libc::EEXIST && mode == RenameMode::Replace => {}
                done => return done,
            }
        }
        self.rename_once(parent, name, new_parent, new_name, mode)
    }

    fn rename_once(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Inner<()> {
        let _names = self.lock_all_names()?;
        let from = self.folder(parent)?;
        let to = self.folder(new_parent)?;
        let (stored, stat) = from.find(name)?;
        let new_stored = to.encode(new_name)?;
        let target = match to.find(new_name) {
            Ok(found) => Some(found),
            Err(fault) if fault.errno() == libc::ENOENT => None,
            Err(fault) => return Err(fault),
        };
        let node = self.nodes.find(&stat);
        if !self.may_rename(node, &stat, parent, new_parent, target.as_ref(), mode)? {
            return Ok(());
        }
        // Replacing a file by one that is not on the disk would lose both in a crash.
        let replaces = target.is_some() && mode != RenameMode::Exchange && stat.kind == Kind::File;
        let file = replaces.then(|| self.sync_source(&from, &stored, &stat, node)).transpose()?;
        // The target's stored name stays, so that replacing it is one step.
        let destination = target.as_ref().map_or(new_stored.entry(), |(there, _)| there.as_slice());
        if destination == new_stored.entry() {
            self.prepare(&new_stored)?;
        }
        let there = target.as_ref().map(|(_, there)| there);
        let source = EntryName { folder: &from, parent, stored: &stored, name };
        let place =
            EntryName { folder: &to, parent: new_parent, stored: destination, name: new_name };
        let left = self.move_share((&source, &stat), &place, there, mode)?;
        let recorded = stat.kind == Kind::Dir
            && left.is_none()
            && self.record_rename(&from, &stored, destination)?;
        let exchanged = mode == RenameMode::Exchange
            && there.is_some_and(|there| there.kind == Kind::Dir)
            && self.record_rename(&to, destination, &stored)?;
        self.namespace.young_lists.forget_all();
        let is_dir = stat.kind == Kind::Dir || there.is_some_and(|there| there.kind == Kind::Dir);
        // The journal's records of the old paths are applied before the paths change.
        let paths = self.namespace.paths.write();
        if is_dir {
            self.journal.checkpoint_for(None)?;
        } else {
            self.checkpoint_file(&stat)?;
            there.map_or(Ok(()), |there| self.checkpoint_file(there))?;
        }
        self.journal.before_name(|| self.path_in(new_parent, destination));
        if keeps_old_name(mode) {
            self.journal.before_name(|| self.path_in(parent, &stored));
        }
        if mode == RenameMode::Exchange {
            from.dir.rename(&stored, &*to.dir, destination, mode)?;
        } else {
            self.move_over(&source, &place, there, mode)?;
            if let Some(there) = there.filter(|there| there.nlink == 1) {
                self.journal.forget_repair((there.dev, there.ino));
            }
        }
        self.move_paths(&source, &place, mode);
        self.move_nodes((&source, &stat, node), &place, target.as_ref(), mode);
        // Records of the files below a directory name the new path from now on. An error is reported
        // at the end: the entry has its new name.
        let synced = if is_dir { self.journal.sync_names(&*to.dir, &*from.dir) } else { Ok(()) };
        drop(paths);
        self.remember_rename(&source, &place, mode, file.flatten());
        let there = recorded.then(|| Self::moved(&source, &place));
        let back = exchanged.then(|| Self::moved(&place, &source));
        self.remember_moves(&there.into_iter().chain(back).collect::<Vec<_>>());
        if let Some(place) = left {
            from.leave_place(&stored, &place);
        }
        synced
    }

    /// Checks that `target`, the entry that has the new name, permits the rename. Returns false if
    /// nothing is to be done.
    fn may_rename(
        &self,
        node: Option<NodeId>,
        stat: &Stat,
        parent: NodeId,
        new_parent: NodeId,
        target: Option<&(Vec<u8>, Stat)>,
        mode: RenameMode,
    ) -> Inner<bool> {
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(Fault::Os(libc::EEXIST)),
            (None, RenameMode::Exchange) => return Err(Fault::Os(libc::ENOENT)),
            _ => {}
        }
        if let Some((_, there)) = target {
            if (there.dev, there.ino) == (stat.dev, stat.ino) {
                return Ok(false); // two names of one inode: rename(2) requires no action
            }
            match (stat.kind, there.kind) {
                _ if mode == RenameMode::Exchange => {}
                (Kind::Dir, Kind::Dir) => {}
                (Kind::Dir, _) => return Err(Fault::Os(libc::ENOTDIR)),
                (_, Kind::Dir) => return Err(Fault::Os(libc::EISDIR)),
                _ => {}
            }
        }
        let moves_down = |moved: Option<NodeId>, into: NodeId| {
            moved.is_some_and(|m| self.nodes.is_below(into, m))
        };
        if stat.kind == Kind::Dir && moves_down(node, new_parent) {
            return Err(Fault::Os(libc::EINVAL));
        }
        if let Some((_, there)) = target
            && mode == RenameMode::Exchange
            && there.kind == Kind::Dir
            && moves_down(self.nodes.find(there), parent)
        {
            return Err(Fault::Os(libc::EINVAL));
        }
        Ok(true)
    }

    /// Moves what the journal notes under the old paths to the new ones.
    fn move_paths(&self, from: &EntryName<'_>, to: &EntryName<'_>, mode: RenameMode) {
        if !self.journal.notes_created() && self.journal.surplus.is_empty() {
            return;
        }
        if let (Some(old), Some(new)) =
            (self.path_in(from.parent, from.stored), self.path_in(to.parent, to.stored))
        {
            let back = (mode == RenameMode::Exchange).then(|| (new.clone(), old.clone()));
            if back.is_none() {
                self.journal.created_is_gone(&new);
            }
            let moves: Vec<_> = [(old, new)].into_iter().chain(back).collect();
            self.journal.created_has_moved(&moves);
            self.journal.surplus.have_moved(&moves);
        }
    }

    /// Updates the node table.
    fn move_nodes(
        &self,
        (from, stat, node): (&EntryName<'_>, &Stat, Option<NodeId>),
        to: &EntryName<'_>,
        target: Option<&(Vec<u8>, Stat)>,
        mode: RenameMode,
    ) {
        if let Some((target_stored, there)) = target {
            let exchanged = (mode == RenameMode::Exchange).then(|| from.link());
            self.nodes.retired_follow(there, to.parent, target_stored, exchanged.as_ref());
        }
        self.nodes.retired_follow(stat, from.parent, from.stored, Some(&to.link()));
        let mut changed = Vec::new();
        if let Some((target_stored, there)) = target
            && let Some(gone) = self.nodes.find(there)
        {
            // The new name is added first: a node without any name would lose its number.
            if mode == RenameMode::Exchange {
                self.nodes.add_link(gone, from.link());
                self.renamed_dir(gone, there.kind);
            }
            self.nodes.remove_link(there, to.parent, target_stored);
            self.forget_dir(gone);
            changed.push(gone);
        }
        if let Some(node) = node {
            self.nodes.add_link(node, to.link());
            self.nodes.remove_link(stat, from.parent, from.stored);
            self.renamed_dir(node, stat.kind);
            changed.push(node);
        }
        // Noted before a record of the journal can contain the new path.
        for node in changed {
            self.inode_changed(node);
        }
    }

    /// Notes for the folders, and for the rollback database, which of the names are in use now.
    fn remember_rename(
        &self,
        from: &EntryName<'_>,
        to: &EntryName<'_>,
        mode: RenameMode,
        file: Option<([u8; 32], u64)>,
    ) {
        if !keeps_old_name(mode) {
            from.folder.vacate(from.name);
            self.remember_left(from.parent, from.name);
        } else {
            self.remember_taken(from.parent, from.name, None);
        }
        to.folder.occupy(to.name);
        self.remember_taken(to.parent, to.name, file);
    }

    /// Returns the rename of a directory, as the rollback database follows it.
    fn moved<'a>(from: &EntryName<'a>, to: &EntryName<'a>) -> Move<'a> {
        let stored = (from.stored, to.stored);
        Move { from: (from.parent, from.name), to: (to.parent, to.name), stored }
    }

    /// For a nested share: writes the junction of its new place, and returns the name of its old
    /// one. A share cannot be exchanged or replaced, and leaves no whiteout.
    fn move_share(
        &self,
        (from, stat): (&EntryName<'_>, &Stat),
        to: &EntryName<'_>,
        target: Option<&Stat>,
        mode: RenameMode,
    ) -> Inner<Option<Vec<u8>>> {
        let target_is_share = match target {
            Some(there) if there.kind == Kind::Dir => holds_share(&*to.folder.dir, to.stored)?,
            _ => false,
        };
        let is_share = stat.kind == Kind::Dir && holds_share(&*from.folder.dir, from.stored)?;
        if target_is_share || is_share && keeps_old_name(mode) {
            return Err(Fault::Os(if keeps_old_name(mode) {
                libc::EINVAL
            } else {
                libc::ENOTEMPTY
            }));
        }
        if !is_share {
            return Ok(None);
        }
        let place = from.place_name()?;
        let junction = from.folder.junction(&place)?.ok_or(Fault::Os(libc::EACCES))?;
        // The new junction belongs to the place of the directory that the share replaces.
        to.folder.write_junction(&Junction { name: to.place_name()?, ..junction })?;
        Ok(Some(place))
    }

    /// Makes the file that is about to replace another one durable, whether it is open or closed.
    /// Returns its id and version if the rollback database has to know them.
    fn sync_source(
        &self,
        from: &Folder,
        stored: &[u8],
        stat: &Stat,
        node: Option<NodeId>,
    ) -> Inner<Option<([u8; 32], u64)>> {
        let files = self.open.files.lock();
        if let Some(open) = node.and_then(|node| files.get(&node).map(|s| s.file.clone())) {
            drop(files);
            self.commit(&open, Durability::Synced)?;
            let state = open.state.read();
            return Ok(self.remembers_taken().then_some((state.file_id, state.version)));
        }
        let inode = (stat.dev, stat.ino);
        if self.mode.writers.own_all_bytes() && self.journal.has_lost(inode) {
            // The table of open files is locked, so no program opens the file meanwhile.
            self.journal.write_lost(inode, &from.dir.open_file(stored, Access::ReadWrite)?)?;
        }
        drop(files);
        match from.dir.open_file(stored, Access::Read) {
            Ok(file) => {
                self.journal.flush(inode, &file, || file.sync_all())?;
                if self.journal.notes_created()
                    && let Some(path) = self.path_in(from.node, stored)
                {
                    self.journal.created_is_gone(&path);
                }
                if !self.remembers_taken() {
                    return Ok(None);
                }
                let header =
                    self.journal.overlay(file).and_then(|file| self.keys.read_header(&*file));
                Ok(header.ok().map(|header| (header.public.file_id, header.version)))
            }
            // A file can be renamed without permission to read it.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Renames to a target that may be missing, or a directory with control files only.
    fn move_over(
        &self,
        source: &EntryName<'_>,
        place: &EntryName<'_>,
        target: Option<&Stat>,
        mode: RenameMode,
    ) -> Inner<()> {
        let EntryName { folder: from, stored, .. } = source;
        let EntryName { folder: to, stored: destination, .. } = place;
        // sshfs and mergerfs return other errors for a non-empty directory.
        let is_refused =
            |e: i32| matches!(e, libc::ENOTEMPTY | libc::EEXIST | libc::EPERM | libc::EXDEV);
        match from.dir.rename(stored, &*to.dir, destination, self.mode_in_store(target, mode)) {
            Err(e)
                if e.raw_os_error().is_some_and(is_refused)
                    && target.is_some_and(|t| t.kind == Kind::Dir) =>
            {
                let (empty, bare) = Self::is_empty(&*to.dir.open_dir(destination)?)?;
                if !empty {
                    return Err(Fault::Os(libc::ENOTEMPTY));
                }
                if bare {
                    return Err(e.into());
                }
                self.move_over_emptied(source, place)?;
                if mode == RenameMode::Whiteout {
                    from.dir.mknod(stored, Kind::CharDevice, 0, 0)?;
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }

    /// Returns the mode in which the store renames. A target that was seen missing must still be
    /// missing, if another daemon may have taken the lease over and made one meanwhile. Elsewhere
    /// only a program that asks for it is worth the second look by which some stores emulate that.
    fn mode_in_store(&self, target: Option<&Stat>, mode: RenameMode) -> RenameMode {
        match mode {
            RenameMode::Replace if target.is_none() && self.mode.writers.share_names() => {
                RenameMode::NoReplace
            }
            _ => mode,
        }
    }

    /// Puts `source` in place of a directory that holds nothing but control files, which is removed.
    fn move_over_emptied(
        &self,
        EntryName { folder: from, stored, .. }: &EntryName<'_>,
        EntryName { folder: to, stored: destination, .. }: &EntryName<'_>,
    ) -> Inner<()> {
        // For a moment the empty directory is at the place from which its replacement came. A crash
        // may leave it there, as an empty directory like any other.
        let trash = Trash::fresh_name(&*self.random);
        let trash_in = match from.dir.rename(stored, &*to.dir, destination, RenameMode::Exchange) {
            Ok(()) => {
                if let Err(e) = from.dir.rename(stored, &*from.dir, &trash, RenameMode::NoReplace) {
                    // A full store may have no room for a new name. Exchanging the two again needs
                    // no new name, and restores the state before the call.
                    let _ = from.dir.rename(stored, &*to.dir, destination, RenameMode::Exchange);
                    return Err(e.into());
                }
                from
            }
            // A store without exchange: a crash between the two steps leaves the source in place,
            // and no target.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                to.dir.rename(destination, &*to.dir, &trash, RenameMode::NoReplace)?;
                if let Err(e) =
                    from.dir.rename(stored, &*to.dir, destination, RenameMode::NoReplace)
                {
                    let _ = to.dir.rename(&trash, &*to.dir, destination, RenameMode::NoReplace);
                    return Err(e.into());
                }
                to
            }
            Err(e) => return Err(e.into()),
        };
        Self::check_still_empty(&*trash_in.dir, &trash, || {
            to.dir.rename(destination, &*from.dir, stored, RenameMode::NoReplace)?;
            trash_in.dir.rename(&trash, &*to.dir, destination, RenameMode::NoReplace)
        })?;
        self.namespace.trash.empty(&trash_in.dir, &trash);
        Ok(())
    }

    fn renamed_dir(&self, node: NodeId, kind: Kind) {
        if kind == Kind::Dir {
            self.nodes.set_directory(node, None);
        }
    }
}

/// Returns whether an entry has the old name after a rename.
fn keeps_old_name(mode: RenameMode) -> bool {
    matches!(mode, RenameMode::Exchange | RenameMode::Whiteout)
}

impl Folder<'_> {
    /// Removes the junction at `place`, which the share `stored` has left. If `stored` was a conflict
    /// copy, the entry that keeps the place keeps the junction.
    pub(in crate::vault) fn leave_place(&self, stored: &[u8], place: &[u8]) {
        let removed = self
            .is_place_of_another(stored, place)
            .and_then(|is| if is { Ok(()) } else { self.remove_junction(place) });
        if let Err(fault) = removed {
            tracing::warn!(errno = fault.errno(), "a junction is left behind");
        }
    }
}
