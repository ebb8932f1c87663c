//! Names: looking up, making, linking, renaming, removing and listing entries.
//!
//! Rules that hold here
//! * A long name's sidecar is durable before its entry is there, and goes after it.
//! * A directory that is not empty keeps its id when it is renamed: the record inside it is durable before the rename, and valid at both
//!   places until the rename is done.
//! * A directory is removed, or renamed over, only when it holds nothing but control files, checked while no name can change; it is moved
//!   away under a control name first, so that nobody ever sees it without its record.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::{Core, Open, list, read_control, write_control};
use super::error::{Fault, Inner, is_no_space};
use super::file::OpenFile;
use super::junction::holds_share;
use super::keys::DirectoryId;
use super::nodes::Link;
use super::types::{Attr, Caller, Entry, Handle, NamesReadWith, NodeId, OpenFlags, RenameMode};
use crate::backing::{Dir, Kind, Stat};
use crate::format::header::Hint;
use crate::format::junction::Junction;
use crate::format::name::{DIRECTORY_RECORD, Decoded, LONG, StoredName, is_control, is_valid};
use crate::format::record::{DirectoryRecord, Place, RecordKind};

/// Longest sidecar that is read.
const SIDECAR_MAX: usize = 4096;

fn check_name(name: &[u8]) -> Inner<()> {
    if name.len() > crate::format::name::NAME_MAX {
        return Err(Fault::Os(libc::ENAMETOOLONG));
    }
    if !is_valid(name) {
        return Err(Fault::Os(libc::EINVAL));
    }
    Ok(())
}

/// A directory in which names are being worked on.
pub(crate) struct Folder<'a> {
    core: &'a Core,
    pub(super) node: NodeId,
    dir: std::sync::Arc<dyn Dir>,
    pub(super) id: DirectoryId,
}

impl Folder<'_> {
    pub fn keys(&self) -> &super::keys::ShareKeys {
        &self.core.keys
    }

    /// The directory of the store.
    pub fn dir(&self) -> &dyn Dir {
        &*self.dir
    }

    pub fn encode(&self, name: &[u8]) -> Inner<StoredName> {
        check_name(name)?;
        self.core.keys.names(&self.id).encode(name).ok_or(Fault::Os(libc::EINVAL))
    }

    /// The stored name under which `name` stands, with its `stat`.
    fn find(&self, name: &[u8]) -> Inner<(Vec<u8>, Stat)> {
        let stored = self.encode(name)?;
        match self.dir.stat(stored.entry()) {
            Ok(stat) => return Ok((stored.entry().to_vec(), stat)),
            Err(e) if e.raw_os_error() != Some(libc::ENOENT) => return Err(e.into()),
            Err(_) => {}
        }
        // Sealed in an older epoch, a sync tool's conflict copy, or a long name whose sidecar is lost and which is listed by what is left.
        let mut candidates = self.core.keys.other_entries(&self.id, name);
        if name.first() == Some(&LONG) {
            candidates.push(name.to_vec());
        }
        for candidate in candidates {
            if let Ok(stat) = self.dir.stat(&candidate) {
                return Ok((candidate, stat));
            }
        }
        Err(Fault::Os(libc::ENOENT))
    }

    fn exists(&self, name: &[u8]) -> Inner<bool> {
        match self.find(name) {
            Ok(_) => Ok(true),
            Err(fault) if fault.errno() == libc::ENOENT => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Whether the name is taken by an entry of an older epoch.
    fn exists_older(&self, name: &[u8]) -> bool {
        self.core.keys.older_entries(&self.id, name).iter().any(|entry| self.dir.stat(entry).is_ok())
    }

    /// See [`NameCipher::place_name`](crate::format::name::NameCipher::place_name).
    fn place_name<'n>(&self, stored: &[u8], name: &'n [u8]) -> &'n [u8] {
        self.core.keys.place_name(&self.id, stored, name)
    }

    pub(super) fn sidecar_bound(&self, hash: &[u8; 32]) -> Vec<u8> {
        [&self.id[..], hash].concat()
    }

    /// Makes a long name's sidecar durable, before its entry is made.
    pub fn prepare(&self, stored: &StoredName, name: &[u8]) -> Inner<()> {
        if let StoredName::Long { sidecar, hash, .. } = stored {
            if let Ok(Some(there)) = self.read_sidecar(sidecar, hash)
                && there == name
            {
                return Ok(());
            }
            let sealed = self.core.keys.seal_record(RecordKind::Name, &self.sidecar_bound(hash), name, &*self.core.random);
            write_control(&*self.dir, &*self.core.random, sidecar, &sealed)?;
            self.dir.sync()?;
        }
        Ok(())
    }

    pub(super) fn read_sidecar(&self, sidecar: &[u8], hash: &[u8; 32]) -> Inner<Option<Vec<u8>>> {
        let Some(bytes) = read_control(&*self.dir, sidecar, SIDECAR_MAX)? else { return Ok(None) };
        let name = self.core.keys.open_record(RecordKind::Name, &self.sidecar_bound(hash), &bytes)?.to_vec();
        if is_valid(&name) { Ok(Some(name)) } else { Err(Fault::Corrupt("has a sealed name that none can have")) }
    }

    /// Removes the sidecar of a long name whose entry is gone, unless a conflict copy of the entry has its name from it.
    pub(super) fn tidy(&self, stored: &[u8]) {
        let Decoded::Long { sidecar, suffix, .. } = self.core.keys.names(&self.id).decode(stored) else { return };
        let entry = &stored[..stored.len() - suffix.len()];
        let tidied = (|| {
            let is_copy = !suffix.is_empty();
            let has_copies = || self.core.long_copies.are_there((self.node, self.id), &*self.dir, entry, is_copy);
            if is_copy && self.dir.stat(entry).is_ok() || has_copies()? {
                return Ok(());
            }
            match self.dir.unlink(&sidecar) {
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                other => Ok::<_, Fault>(other?),
            }
        })();
        if let Err(fault) = tidied {
            // The entry is gone, as was asked; what is left is residue that a check names.
            tracing::warn!(errno = fault.errno(), "sidecar {} left behind", shown(&sidecar));
        }
    }

    /// Plain name of a stored one; `None` for control files and what is not a name of this directory.
    pub fn decode(&self, stored: &[u8]) -> Inner<Option<Vec<u8>>> {
        self.plain(stored, self.core.keys.names(&self.id).decode(stored))
    }

    /// [`Folder::decode`], once the cipher of the current epoch has said what `stored` is.
    fn plain(&self, stored: &[u8], decoded: Decoded) -> Inner<Option<Vec<u8>>> {
        match decoded {
            Decoded::Plain(name) => Ok(Some(name)),
            Decoded::Control => Ok(None),
            Decoded::Foreign => Ok(self.core.keys.decode_older(&self.id, stored).map(|older| {
                let taken = older.newer.iter().any(|entry| self.dir.stat(entry).is_ok());
                if taken { [older.name, older.suffix].concat() } else { older.name }
            })),
            Decoded::Long { sidecar, hash, suffix } => match self.read_sidecar(&sidecar, &hash) {
                Ok(Some(name)) if name.len() + suffix.len() <= crate::format::name::NAME_MAX => Ok(Some([name, suffix].concat())),
                // The name is lost or too long, the file is not: it shows under what is left of its name.
                Ok(_) => Ok(Some(stored.to_vec())),
                Err(Fault::Io(e)) => Err(Fault::Io(e)),
                Err(_) => Ok(Some(stored.to_vec())),
            },
        }
    }

    pub(super) fn link(&self, stored: &[u8], name: &[u8]) -> Link {
        Link { parent: self.node, stored: stored.into(), name: name.into() }
    }

    fn seen(&self, stat: &Stat, stored: &[u8], name: &[u8]) -> Inner<Attr> {
        let node = self.core.nodes.seen(stat, self.link(stored, name));
        self.core.attr(node, stat, Some((&*self.dir, stored)))
    }
}

impl Core {
    /// A directory of the store whose id is known, for whoever walks the store without nodes: names can be encoded, decoded and prepared.
    pub fn folder_at(&self, dir: std::sync::Arc<dyn Dir>, id: DirectoryId) -> Folder<'_> {
        Folder { core: self, node: super::types::ROOT, dir, id }
    }

    /// A directory, ready for its names.
    pub fn folder(&self, node: NodeId) -> Inner<Folder<'_>> {
        if self.nodes.kind(node)? != Kind::Dir {
            return Err(Fault::Os(libc::ENOTDIR));
        }
        let id = self.directory_id(node)?;
        Ok(Folder { core: self, node, dir: self.dir(node)?, id })
    }

    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Inner<Attr> {
        if name == b"." {
            return self.stat(parent);
        }
        let _names = self.names.look();
        let folder = self.folder(parent)?;
        let (stored, stat) = folder.find(name)?;
        folder.seen(&stat, &stored, name)
    }

    /// Gives what was just made to the caller, as a local filesystem would: it belongs to him, and to his group unless the directory is
    /// set-group-id.
    fn give(&self, folder: &Folder, stored: &[u8], caller: &Caller, stat: Stat) -> Inner<Stat> {
        if !self.is_root_user {
            return Ok(stat);
        }
        let parent = folder.dir.stat_self()?;
        let gid = if parent.perm & 0o2000 != 0 { parent.gid } else { caller.gid };
        if (stat.uid, stat.gid) == (caller.uid, gid) {
            return Ok(stat);
        }
        folder.dir.chown(stored, Some(caller.uid), Some(gid))?;
        if stat.perm & 0o6000 != 0 && stat.kind != Kind::Symlink {
            // A change of owner clears these, but they were asked for.
            folder.dir.chmod(stored, stat.perm)?;
        }
        Ok(folder.dir.stat(stored)?)
    }

    /// Makes an entry by `make`, which is told its stored name.
    fn make(&self, caller: &Caller, parent: NodeId, name: &[u8], make: impl FnOnce(&Folder, &[u8]) -> Inner<()>) -> Inner<Attr> {
        self.check_writable()?;
        let _names = self.names.read()?;
        let folder = self.folder(parent)?;
        let stored = folder.encode(name)?;
        if matches!(stored, StoredName::Long { .. }) && folder.exists(name)? || folder.exists_older(name) {
            return Err(Fault::Os(libc::EEXIST));
        }
        folder.prepare(&stored, name)?;
        let made = make(&folder, stored.entry()).and_then(|()| {
            let stat = folder.dir.stat(stored.entry())?;
            self.give(&folder, stored.entry(), caller, stat)
        });
        match made {
            Ok(stat) => folder.seen(&stat, stored.entry(), name),
            Err(fault) => Err(fault),
        }
    }

    pub fn mkdir(&self, caller: &Caller, parent: NodeId, name: &[u8], perm: u32) -> Inner<Attr> {
        self.make(caller, parent, name, |folder, stored| {
            let inherited = folder.dir.stat_self()?.perm & 0o2000;
            Ok(folder.dir.mkdir(stored, folder.masked(caller, perm & 0o7777) | inherited)?)
        })
    }

    pub fn mknod(&self, caller: &Caller, parent: NodeId, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> Inner<Attr> {
        match kind {
            Kind::File => {
                let flags = OpenFlags { write: true, ..OpenFlags::default() };
                let (attr, handle) = self.create_file(caller, parent, name, perm, flags)?;
                self.release_handle(handle)?;
                Ok(attr)
            }
            Kind::Dir | Kind::Symlink => Err(Fault::Os(libc::EINVAL)),
            _ => self.make(caller, parent, name, |folder, stored| {
                Ok(folder.dir.mknod(stored, kind, folder.masked(caller, perm & 0o7777), rdev)?)
            }),
        }
    }

    pub fn symlink(&self, caller: &Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Inner<Attr> {
        self.make(caller, parent, name, |folder, stored| {
            if folder.dir.stat(stored).is_ok() {
                return Err(Fault::Os(libc::EEXIST));
            }
            let text = self.seal_target(target)?;
            let made = folder.dir.symlink(stored, &text);
            // A store that reports a failure may have made it all the same, and fail again when it is asked.
            let is_absent = || match folder.dir.readlink(stored) {
                Ok(there) => there != text,
                Err(e) => e.raw_os_error() == Some(libc::ENOENT),
            };
            if made.is_err() && is_absent() {
                let _ = self.drop_target(&text);
            }
            Ok(made?)
        })
    }

    pub fn create_file(&self, caller: &Caller, parent: NodeId, name: &[u8], perm: u32, flags: OpenFlags) -> Inner<(Attr, Handle)> {
        self.check_writable()?;
        let _names = self.names.read()?;
        let folder = self.folder(parent)?;
        let stored = folder.encode(name)?;
        if folder.exists_older(name) {
            return Err(Fault::Os(libc::EEXIST));
        }
        folder.prepare(&stored, name)?;
        self.journal.before_name(|| self.path_in(parent, stored.entry()));
        let file = folder.dir.create_file(stored.entry(), folder.masked(caller, perm & 0o7777))?;
        if !self.access_times {
            file.keep_access_time();
        }
        let mut stat = file.stat_but_times()?;
        if self.is_root_user && (stat.uid, stat.gid) != (caller.uid, caller.gid) {
            stat = self.give(&folder, stored.entry(), caller, stat)?;
        }
        // The table of open files is held while the node is entered: a lookup must not find the file before it is known to be open.
        let mut files = self.files.lock();
        let node = self.nodes.seen(&stat, folder.link(stored.entry(), name));
        let hint = Hint { directory: folder.id, name: name.to_vec() };
        let open = OpenFile::fresh(node, file, (stat.dev, stat.ino), &self.tools(), self.next_serial(), hint);
        self.insert_open(&mut files, node, open.clone(), flags);
        drop(files);
        if self.shared
            && let Err(fault) = self.guard_fresh(&open)
        {
            let _ = self.release(&open, flags);
            self.nodes.forget(node, 1);
            return Err(fault);
        }
        // An empty file has a header from the beginning: should the daemon die, a file that nobody wrote to yet is empty and not broken.
        if let Err(fault) = self.commit(&open, super::commit::Durability::Ordered)
            && is_no_space(fault.errno())
        {
            let _ = folder.dir.unlink(stored.entry());
            self.nodes.remove_link(&stat, parent, stored.entry());
            folder.tidy(stored.entry());
            let _ = self.release(&open, flags);
            self.nodes.forget(node, 1);
            return Err(fault);
        }
        if !flags.write {
            self.unguard(&open);
        }
        // Its time is that of the header: were it that of the name, which is there before the directory has its own, the kernel would see
        // another one at the first write, and send it when the file is closed (see `backing/os/attr.rs`).
        let stat = match open.file.stat() {
            Ok(stat) => stat,
            Err(e) => {
                let _ = self.release(&open, flags);
                self.nodes.forget(node, 1);
                return Err(e.into());
            }
        };
        if self.caller_keeps_times {
            open.state.write().mtime.made(stat.mtime);
        }
        let attr = self.attr(node, &stat, None)?;
        Ok((attr, self.put_handle(Open::File { file: open, flags })))
    }

    pub fn link(&self, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Inner<Attr> {
        self.check_writable()?;
        let _names = self.names.write()?;
        if self.nodes.kind(node)? == Kind::Dir {
            return Err(Fault::Os(libc::EPERM));
        }
        let folder = self.folder(new_parent)?;
        if folder.exists(new_name)? {
            return Err(Fault::Os(libc::EEXIST));
        }
        let stored = folder.encode(new_name)?;
        let from = self.nodes.link(node)?;
        folder.prepare(&stored, new_name)?;
        self.young_lists.forget_all(); // the conflict copies of a name that goes later do not stand beside the new one
        self.journal.before_name(|| self.path_in(new_parent, stored.entry()));
        self.dir(from.parent)?.link(&from.stored, &*folder.dir, stored.entry())?;
        self.inode_changed(node);
        let stat = folder.dir.stat(stored.entry())?;
        folder.seen(&stat, stored.entry(), new_name)
    }

    pub fn unlink(&self, parent: NodeId, name: &[u8]) -> Inner<()> {
        self.check_writable()?;
        let _names = self.names.read()?;
        let folder = self.folder(parent)?;
        let (stored, stat) = folder.find(name)?;
        if stat.kind == Kind::Dir {
            return Err(Fault::Os(libc::EISDIR));
        }
        let paths = self.paths.write();
        let settled = self.settle(&stat);
        if stat.nlink > 1 || stat.kind != Kind::File {
            settled?;
        }
        folder.dir.unlink(&stored)?;
        if stat.nlink == 1 {
            self.journal.forget_repair((stat.dev, stat.ino));
        }
        if self.journal.notes_created()
            && let Some(path) = self.path_in(parent, &stored)
        {
            self.journal.created_is_gone(&path);
        }
        let gone = self.nodes.remove_link(&stat, parent, &stored);
        drop(paths);
        folder.tidy(&stored);
        if let Some(node) = gone {
            self.inode_changed(node);
        }
        Ok(())
    }

    /// Stored path of an entry of a directory.
    fn path_in(&self, parent: NodeId, stored: &[u8]) -> Option<Vec<u8>> {
        let dir = self.nodes.stored_path(parent)?;
        Some(if dir.is_empty() { stored.to_vec() } else { [&dir[..], b"/", stored].concat() })
    }

    /// What the journal holds for a file goes to its place before its path changes.
    pub(super) fn settle(&self, stat: &Stat) -> Inner<()> {
        if stat.kind == Kind::File { self.journal.settle(Some((stat.dev, stat.ino))) } else { Ok(()) }
    }

    /// True where a directory of the store holds nothing but control files.
    pub fn is_empty(dir: &dyn Dir) -> Inner<(bool, bool)> {
        let entries = list(dir)?;
        Ok((entries.iter().all(|e| is_control(&e.name)), entries.is_empty()))
    }

    pub fn rmdir(&self, parent: NodeId, name: &[u8]) -> Inner<()> {
        self.check_writable()?;
        let _names = self.names.write()?;
        let folder = self.folder(parent)?;
        let (stored, stat) = folder.find(name)?;
        if stat.kind != Kind::Dir {
            return Err(Fault::Os(libc::ENOTDIR));
        }
        let mut share = false;
        match folder.dir.rmdir(&stored) {
            Err(e) if e.raw_os_error() == Some(libc::ENOTEMPTY) => {
                let (empty, _) = Self::is_empty(&*folder.dir.open_dir(&stored)?)?;
                if !empty {
                    return Err(e.into());
                }
                share = holds_share(&*folder.dir, &stored)?;
                let trash = self.trash_name();
                folder.dir.rename(&stored, &*folder.dir, &trash, RenameMode::NoReplace)?;
                self.empty_trash(&*folder.dir, &trash);
            }
            other => other?,
        }
        folder.tidy(&stored);
        if share {
            self.remove_junction(&*folder.dir, &folder.id, folder.place_name(&stored, name));
        }
        if let Some(node) = self.nodes.remove_link(&stat, parent, &stored) {
            self.forget_dir(node);
        }
        Ok(())
    }

    fn trash_name(&self) -> Vec<u8> {
        let mut random = [0; 8];
        self.random.fill(&mut random);
        let hex: String = random.iter().map(|b| format!("{b:02x}")).collect();
        [b"+trash-", hex.as_bytes()].concat()
    }

    /// Deletes a directory that was moved away and holds only control files. What cannot be deleted is residue that fsck reports.
    pub fn empty_trash(&self, dir: &dyn Dir, trash: &[u8]) {
        let emptied = (|| {
            let inside = dir.open_dir(trash)?;
            for entry in list(&*inside)? {
                inside.unlink(&entry.name)?;
            }
            dir.rmdir(trash)?;
            Ok::<_, Fault>(())
        })();
        if let Err(fault) = emptied {
            tracing::warn!(errno = fault.errno(), "removed directory left {} behind", String::from_utf8_lossy(trash));
        }
    }

    /// Writes the record that keeps the id of the directory `stored` in `from` valid at its new place.
    fn record_move(&self, from: &Folder, stored: &[u8], name: &[u8], to: &Folder, new_name: &[u8]) -> Inner<bool> {
        let dir = from.dir.open_dir(stored)?;
        let (_, bare) = Self::is_empty(&*dir)?;
        if bare && !self.shared {
            return Ok(false); // it takes the id of its new place, of which only another daemon could know too late
        }
        let name = from.place_name(stored, name);
        let (id, _) = self.identify(&*dir, &from.id, name)?;
        self.write_record(&*dir, id, &to.id, new_name, &from.id, name)?;
        Ok(true)
    }

    pub fn write_record(
        &self,
        dir: &dyn Dir,
        id: DirectoryId,
        parent: &DirectoryId,
        name: &[u8],
        old_parent: &DirectoryId,
        old_name: &[u8],
    ) -> Inner<()> {
        let record = DirectoryRecord {
            id,
            place: Place { parent: *parent, name: name.to_vec() },
            previous: Place { parent: *old_parent, name: old_name.to_vec() },
        };
        let sealed = self.keys.seal_record(RecordKind::Directory, b"", &record.encode(), &*self.random);
        write_control(dir, &*self.random, DIRECTORY_RECORD, &sealed)?;
        Ok(dir.sync()?)
    }

    pub fn rename(&self, parent: NodeId, name: &[u8], new_parent: NodeId, new_name: &[u8], mode: RenameMode) -> Inner<()> {
        self.check_writable()?;
        let _names = self.names.write()?;
        let from = self.folder(parent)?;
        let to = self.folder(new_parent)?;
        let (stored, stat) = from.find(name)?;
        let new_stored = to.encode(new_name)?;
        let target = match to.find(new_name) {
            Ok(found) => Some(found),
            Err(fault) if fault.errno() == libc::ENOENT => None,
            Err(fault) => return Err(fault),
        };
        match (&target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(Fault::Os(libc::EEXIST)),
            (None, RenameMode::Exchange) => return Err(Fault::Os(libc::ENOENT)),
            _ => {}
        }
        if let Some((_, there)) = &target {
            if (there.dev, there.ino) == (stat.dev, stat.ino) {
                return Ok(()); // two names of one inode: nothing to do, as rename(2) says
            }
            match (stat.kind, there.kind) {
                _ if mode == RenameMode::Exchange => {}
                (Kind::Dir, Kind::Dir) => {}
                (Kind::Dir, _) => return Err(Fault::Os(libc::ENOTDIR)),
                (_, Kind::Dir) => return Err(Fault::Os(libc::EISDIR)),
                _ => {}
            }
        }
        let node = self.nodes.find(&stat);
        let moves_down = |moved: Option<NodeId>, into: NodeId| moved.is_some_and(|m| self.nodes.is_below(into, m));
        if stat.kind == Kind::Dir && moves_down(node, new_parent) {
            return Err(Fault::Os(libc::EINVAL));
        }
        if let Some((_, there)) = &target
            && mode == RenameMode::Exchange
            && there.kind == Kind::Dir
            && moves_down(self.nodes.find(there), parent)
        {
            return Err(Fault::Os(libc::EINVAL));
        }
        if target.is_some() && mode != RenameMode::Exchange && stat.kind == Kind::File {
            // Replacing a file by one that is not on the disk would lose both in a crash.
            self.sync_source(&from, &stored, node)?;
        }
        // A target that is a conflict copy keeps its stored name, and so the place of the original.
        let new_place = target.as_ref().map_or(new_name, |(target_stored, _)| to.place_name(target_stored, new_name));
        let share = self.move_share(&from, (&stored, name, &stat), &to, new_place, target.as_ref(), mode)?;
        let recorded = stat.kind == Kind::Dir && !share && self.record_move(&from, &stored, name, &to, new_place)?;
        let exchanged = match &target {
            Some((target_stored, there)) if mode == RenameMode::Exchange && there.kind == Kind::Dir => {
                self.record_move(&to, target_stored, new_name, &from, from.place_name(&stored, name))?
            }
            _ => false,
        };
        to.prepare(&new_stored, new_name)?;
        let destination = target.as_ref().map_or(new_stored.entry(), |(target_stored, _)| target_stored.as_slice());
        self.young_lists.forget_all();
        // What the journal has under the old paths goes to its place before they change.
        let paths = self.paths.write();
        if stat.kind == Kind::Dir || target.as_ref().is_some_and(|(_, t)| t.kind == Kind::Dir) {
            self.journal.settle(None)?;
        } else {
            self.settle(&stat)?;
            if let Some((_, there)) = &target {
                self.settle(there)?;
            }
        }
        self.journal.before_name(|| self.path_in(new_parent, destination));
        if mode == RenameMode::Exchange {
            self.journal.before_name(|| self.path_in(parent, &stored));
            from.dir.rename(&stored, &*to.dir, destination, mode)?;
        } else {
            self.move_over(&from, &stored, &to, destination, target.as_ref().map(|(_, t)| t))?;
        }
        if self.journal.notes_created()
            && let (Some(old), Some(new)) = (self.path_in(parent, &stored), self.path_in(new_parent, destination))
        {
            let back = (mode == RenameMode::Exchange).then(|| (new.clone(), old.clone()));
            if back.is_none() {
                self.journal.created_is_gone(&new);
            }
            self.journal.created_has_moved(&[(old, new)].into_iter().chain(back).collect::<Vec<_>>());
        }

        // The table follows.
        let mut changed = Vec::new();
        if let Some((target_stored, there)) = &target
            && let Some(gone) = self.nodes.find(there)
        {
            // The new name first: a node without any name would lose its number.
            if mode == RenameMode::Exchange {
                self.nodes.add_link(gone, from.link(&stored, name));
                self.renamed_dir(gone, there.kind);
            }
            self.nodes.remove_link(there, new_parent, target_stored);
            self.forget_dir(gone);
            changed.push(gone);
        }
        if let Some(node) = node {
            self.nodes.add_link(node, to.link(destination, new_name));
            self.nodes.remove_link(&stat, parent, &stored);
            self.renamed_dir(node, stat.kind);
            changed.push(node);
        }
        // Before anybody can put the new path into a record.
        for node in changed {
            self.inode_changed(node);
        }
        if stat.kind == Kind::Dir || target.as_ref().is_some_and(|(_, t)| t.kind == Kind::Dir) {
            // Records of the files beneath it name the new path from now on.
            to.dir.sync()?;
            from.dir.sync()?;
        }
        drop(paths);
        if mode != RenameMode::Exchange {
            from.tidy(&stored);
        }
        if share {
            self.remove_junction(&*from.dir, &from.id, from.place_name(&stored, name));
        }
        // The records need to be valid at one place only now.
        if recorded {
            self.settle_record(&*to.dir, destination, &to.id, new_name);
        }
        if exchanged {
            self.settle_record(&*from.dir, &stored, &from.id, name);
        }
        Ok(())
    }

    /// Where a share is renamed: makes the junction of its new place. A share is not exchanged, and nothing takes its place.
    fn move_share(
        &self,
        from: &Folder,
        (stored, name, stat): (&[u8], &[u8], &Stat),
        to: &Folder,
        new_name: &[u8],
        target: Option<&(Vec<u8>, Stat)>,
        mode: RenameMode,
    ) -> Inner<bool> {
        let target_is_share = match target {
            Some((target_stored, there)) if there.kind == Kind::Dir => holds_share(&*to.dir, target_stored)?,
            _ => false,
        };
        let is_share = stat.kind == Kind::Dir && holds_share(&*from.dir, stored)?;
        if target_is_share || is_share && mode == RenameMode::Exchange {
            return Err(Fault::Os(if mode == RenameMode::Exchange { libc::EINVAL } else { libc::ENOTEMPTY }));
        }
        if is_share {
            let junction = self.junction(&*from.dir, &from.id, from.place_name(stored, name))?.ok_or(Fault::Os(libc::EACCES))?;
            self.write_junction(&*to.dir, &to.id, &Junction { name: new_name.to_vec(), ..junction })?;
        }
        Ok(is_share)
    }

    /// Makes the file that is about to replace another one durable, be it open or closed.
    fn sync_source(&self, from: &Folder, stored: &[u8], node: Option<NodeId>) -> Inner<()> {
        let open = node.and_then(|node| self.files.lock().get(&node).map(|s| s.file.clone()));
        if let Some(open) = open {
            return self.commit(&open, super::commit::Durability::Synced);
        }
        match from.dir.open_file(stored, crate::backing::Access::Read) {
            Ok(file) => {
                file.sync_all()?;
                if self.journal.notes_created()
                    && let Some(path) = self.path_in(from.node, stored)
                {
                    self.journal.created_is_gone(&path);
                }
                Ok(())
            }
            // Who may not read a file may rename it all the same.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Renames over what may be a directory that holds control files only.
    fn move_over(&self, from: &Folder, stored: &[u8], to: &Folder, destination: &[u8], target: Option<&Stat>) -> Inner<()> {
        match from.dir.rename(stored, &*to.dir, destination, RenameMode::Replace) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST)) && target.is_some_and(|t| t.kind == Kind::Dir) => {
                let (empty, _) = Self::is_empty(&*to.dir.open_dir(destination)?)?;
                if !empty {
                    return Err(Fault::Os(libc::ENOTEMPTY));
                }
                from.dir.rename(stored, &*to.dir, destination, RenameMode::Exchange)?;
                let trash = self.trash_name();
                from.dir.rename(stored, &*from.dir, &trash, RenameMode::NoReplace)?;
                self.empty_trash(&*from.dir, &trash);
                Ok(())
            }
            other => Ok(other?),
        }
    }

    fn renamed_dir(&self, node: NodeId, kind: Kind) {
        if kind == Kind::Dir {
            self.nodes.set_directory(node, None);
        }
    }

    /// Reduces a record to the place where the directory is now. Failing to do so is harmless: it stays valid at both.
    fn settle_record(&self, dir: &dyn Dir, stored: &[u8], parent: &DirectoryId, name: &[u8]) {
        let reduced = (|| {
            let inside = dir.open_dir(stored)?;
            let name = self.keys.place_name(parent, stored, name);
            let (id, _) = self.identify(&*inside, parent, name)?;
            self.write_record(&*inside, id, parent, name, parent, name)
        })();
        if let Err(fault) = reduced {
            tracing::debug!(errno = fault.errno(), "directory record keeps its former place");
        }
    }

    // ---- listing

    pub fn open_dir(&self, node: NodeId) -> Inner<Handle> {
        let folder = self.folder(node)?;
        let dir = folder.dir.reopen()?;
        self.nodes.opened(node);
        let handle = self.put_handle(Open::Dir { node, dir, directory: folder.id, unread: Arc::default() });
        if self.nodes.is_moved_away(node) {
            // Another directory has taken its place since we looked, and whoever empties this one may have asked for handles before ours
            // was there. The caller looks the name up again.
            self.release_handle(handle)?;
            return Err(Fault::Os(libc::ESTALE));
        }
        Ok(handle)
    }

    pub fn names_read_with(&self, handle: Handle) -> Inner<NamesReadWith> {
        match self.handle(handle)? {
            Open::Dir { directory, .. } => Ok(NamesReadWith { generation: self.keys.generation(), directory }),
            Open::File { .. } => Err(Fault::Os(libc::ENOTDIR)),
        }
    }

    pub fn has_our_clock(&self, handle: Handle) -> bool {
        matches!(self.handle(handle), Ok(Open::Dir { dir, .. }) if dir.has_our_clock())
    }

    pub fn has_unread_names(&self, handle: Handle) -> bool {
        matches!(self.handle(handle), Ok(Open::Dir { unread, .. }) if unread.load(Ordering::Relaxed))
    }

    pub fn read_dir(&self, handle: Handle, mut cookie: i64, limit: usize) -> Inner<Vec<Entry>> {
        let Open::Dir { node, dir, directory, unread } = self.handle(handle)? else { return Err(Fault::Os(libc::ENOTDIR)) };
        // An empty directory that was renamed since has the id of its new place; one that was removed keeps what it had.
        let id = self.directory_id(node).unwrap_or(directory);
        let folder = Folder { core: self, node, dir, id };
        loop {
            let raw = folder.dir.read(cookie, limit)?;
            let Some(last) = raw.last() else {
                // What was removed because something else has taken its place must not look empty.
                let gone = self.nodes.is_moved_away(node) && folder.dir.stat_self()?.nlink == 0;
                return if gone { Err(Fault::Os(libc::ESTALE)) } else { Ok(Vec::new()) };
            };
            cookie = last.next;
            let mut entries = Vec::with_capacity(raw.len());
            let decoded = self.keys.names(&folder.id).decode_many(raw.iter().map(|entry| &*entry.name));
            for (entry, decoded) in raw.into_iter().zip(decoded) {
                if let Some(name) = folder.plain(&entry.name, decoded)? {
                    if name == *entry.name {
                        unread.store(true, Ordering::Relaxed); // what is left of a long name
                    }
                    entries.push(Entry { name: name.into(), ino: entry.ino, kind: entry.kind, next: entry.next });
                } else if !is_control(&entry.name) {
                    unread.store(true, Ordering::Relaxed);
                    tracing::warn!(
                        "{}: not a name of its directory, passed over",
                        self.shown_path(node).join(shown(&entry.name)).display()
                    );
                }
            }
            if !entries.is_empty() {
                return Ok(entries);
            }
        }
    }

    /// `lookup` of an entry of a listing.
    pub fn lookup_entry(&self, handle: Handle, entry: &Entry) -> Inner<Attr> {
        let Open::Dir { node, .. } = self.handle(handle)? else { return Err(Fault::Os(libc::ENOTDIR)) };
        self.lookup(node, &entry.name)
    }
}

/// A stored name for a log line: it is ASCII, unless it is not ours.
pub(crate) fn shown(stored: &[u8]) -> String {
    String::from_utf8_lossy(stored).into_owned()
}

impl Folder<'_> {
    /// Stored name of `name`, which need not be there.
    pub fn stored(&self, name: &[u8]) -> Inner<Vec<u8>> {
        match self.find(name) {
            Ok((stored, _)) => Ok(stored),
            Err(fault) if fault.errno() == libc::ENOENT => Ok(self.encode(name)?.entry().to_vec()),
            Err(fault) => Err(fault),
        }
    }
}
