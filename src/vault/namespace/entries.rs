//! Directory entries: lookup, creation, linking and removal.
//!
//! Rules that hold here
//! * A directory is removed, or renamed over, only if it holds nothing but control files; this is
//!   checked while no name can change. One with control files is first moved to a control name, so
//!   that it is gone at once, and is then checked again.

use std::io;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use crate::format::header::Hint;
use crate::format::name::{StoredName, is_control};
use crate::format::record::OVERFLOW;
use crate::store::{Dir, Kind, Stat};
use crate::vault::core::Core;
use crate::vault::core::open_table::Open;
use crate::vault::core::trash::Trash;
use crate::vault::directory::folder::Folder;
use crate::vault::directory::junction::holds_share;
use crate::vault::durability::commit::Durability;
use crate::vault::error::{Fault, Inner, is_no_space};
use crate::vault::file::OpenFile;
use crate::vault::share::control_files::entries;
use crate::vault::types::{Attr, Caller, Forget, Handle, NodeId, OpenFlags, RenameMode};

/// How long a lookup waits for the kernel to drop another name of the directory. The kernel cannot
/// drop it while the lookup belongs to a rename out of or into the directory of that name. The
/// thread that notifies the kernel needs this time: on a busy machine it begins after tens of
/// milliseconds, and it gets the kernel's lock only after it has waited for more than 4 ms.
const DROPPED_WITHIN: Duration = Duration::from_millis(250);

impl Core {
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Inner<Attr> {
        let (attr, left) = {
            let _names = self.namespace.names.look();
            let folder = self.folder(parent)?;
            let (stored, stat) = folder.find(name)?;
            let left = self.nodes.known_outside(&stat, parent);
            (folder.seen(&stat, &stored, name)?, left)
        };
        if let Some((parent, name)) = left {
            self.have_name_forgotten(parent, name);
        }
        Ok(attr)
    }

    /// Makes the kernel drop the name of a directory that another program has moved. During a
    /// rename(2) the kernel refuses the new name with ESTALE as long as the old one is in its
    /// cache, and it repeats a refused lookup only once.
    fn have_name_forgotten(&self, parent: NodeId, name: Box<[u8]>) {
        let (done, dropped) = sync_channel(1);
        self.have_forgotten(parent, Forget::Name { name, done });
        // If no answer comes, the kernel is waiting for this lookup.
        let _ = dropped.recv_timeout(DROPPED_WITHIN);
    }

    /// Gives a new object the caller's ownership, as a local filesystem does: the caller's user,
    /// and the caller's group unless the directory is set-group-ID. Changes nothing unless the
    /// daemon runs as root.
    fn give(&self, folder: &Folder, stored: &[u8], caller: &Caller, stat: Stat) -> Inner<Stat> {
        if !self.mode.is_root_user {
            return Ok(stat);
        }
        let parent = folder.dir.stat_self()?;
        let gid = if parent.perm & 0o2000 != 0 { parent.gid } else { caller.gid };
        if (stat.uid, stat.gid) == (caller.uid, gid) {
            return Ok(stat);
        }
        match folder.dir.chown(stored, Some(caller.uid), Some(gid)) {
            // exFAT has no owners, and many servers map root to nobody: the object stays owned by
            // the daemon's user, as it would without kithfs, and must not be executable with that
            // user's rights.
            Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                if stat.perm & 0o6000 != 0 && stat.kind != Kind::Symlink {
                    folder.dir.chmod(stored, stat.perm & 0o1777)?;
                }
                return Ok(folder.dir.stat(stored)?);
            }
            other => other?,
        }
        if stat.perm & 0o6000 != 0 && stat.kind != Kind::Symlink {
            // A change of owner clears these bits, but the caller requested them.
            folder.dir.chmod(stored, stat.perm)?;
        }
        Ok(folder.dir.stat(stored)?)
    }

    /// Creates an entry by `make`, which gets its stored name.
    fn make(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        make: impl FnOnce(&Folder, &[u8]) -> Inner<()>,
    ) -> Inner<Attr> {
        let _names = self.lock_names()?;
        let folder = self.folder(parent)?;
        let stored = folder.encode(name)?;
        let is_taken = match stored {
            StoredName::Long { .. } => folder.exists(name)?,
            StoredName::Short(_) => folder.is_taken(name)?,
        };
        if is_taken {
            return Err(Fault::Os(libc::EEXIST));
        }
        self.prepare(&stored)?;
        let made = make(&folder, stored.entry()).and_then(|()| {
            let stat = folder.dir.stat(stored.entry())?;
            self.give(&folder, stored.entry(), caller, stat)
        });
        let stat = made?;
        folder.occupy(name);
        folder.seen(&stat, stored.entry(), name)
    }

    pub fn mkdir(&self, caller: &Caller, parent: NodeId, name: &[u8], perm: u32) -> Inner<Attr> {
        self.make(caller, parent, name, |folder, stored| {
            let inherited = folder.dir.stat_self()?.perm & 0o2000;
            Ok(folder.dir.mkdir(stored, folder.masked(caller, perm & 0o7777) | inherited)?)
        })
    }

    pub fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        kind: Kind,
        perm: u32,
        rdev: u64,
    ) -> Inner<Attr> {
        match kind {
            Kind::File => {
                let flags = OpenFlags { write: true, ..OpenFlags::default() };
                let (attr, handle) = self.create_file(caller, parent, name, perm, flags)?;
                self.release_handle(handle)?;
                Ok(attr)
            }
            Kind::Dir | Kind::Symlink => Err(Fault::Os(libc::EINVAL)),
            _ => self.make(caller, parent, name, |folder, stored| {
                let made =
                    folder.dir.mknod(stored, kind, folder.masked(caller, perm & 0o7777), rdev);
                // exfat-fuse creates an empty file for a FIFO and then fails. A committed file is
                // never empty in the store.
                let is_no_file = |e: &std::io::Error| {
                    e.raw_os_error() != Some(libc::EEXIST)
                        && folder
                            .dir
                            .stat(stored)
                            .is_ok_and(|stat| stat.kind == Kind::File && stat.size == 0)
                };
                if made.as_ref().is_err_and(is_no_file) {
                    let _ = folder.dir.unlink(stored);
                }
                Ok(made?)
            }),
        }
    }

    pub fn symlink(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Inner<Attr> {
        self.make(caller, parent, name, |folder, stored| {
            if folder.dir.stat(stored).is_ok() {
                return Err(Fault::Os(libc::EEXIST));
            }
            let mut text = self.seal_target(target)?;
            let mut made = folder.dir.symlink(stored, &text);
            let is_too_long = |e: &std::io::Error| e.raw_os_error() == Some(libc::ENAMETOOLONG);
            if made.as_ref().is_err_and(is_too_long) && text.first() != Some(&OVERFLOW) {
                // XFS has 1,024 bytes for a link's text, and ext4 with small blocks one block.
                text = self.seal_aside(target)?;
                made = folder.dir.symlink(stored, &text);
            }
            // A store that reports a failure may have created the link all the same, and may fail
            // to read it.
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

    /// Returns a node for a file that was just created.
    fn created_node(&self, stat: &Stat, folder: &Folder, stored: &[u8], name: &[u8]) -> NodeId {
        loop {
            let node = self.nodes.seen(stat, folder.link(stored, name));
            if !self.mode.caller_caches
                || self.nodes.tell_size(node, 0, stat.mtime).is_ok_and(|agrees| agrees)
            {
                return node;
            }
            // A removed file had this inode number, and the kernel may still cache it.
            self.nodes.retire(node);
            self.nodes.forget_unsent(node);
        }
    }

    pub fn create_file(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        flags: OpenFlags,
    ) -> Inner<(Attr, Handle)> {
        let _names = self.lock_names()?;
        let folder = self.folder(parent)?;
        let stored = folder.encode(name)?;
        if folder.is_taken(name)? {
            return Err(Fault::Os(libc::EEXIST));
        }
        self.prepare(&stored)?;
        self.journal.before_name(|| self.path_in(parent, stored.entry()));
        let file = folder.dir.create_file(stored.entry(), folder.masked(caller, perm & 0o7777))?;
        if !self.mode.access_times {
            file.keep_access_time();
        }
        self.mode.writers.open_to_read(&*file)?;
        let mut stat = file.stat_but_times()?;
        if self.mode.is_root_user && (stat.uid, stat.gid) != (caller.uid, caller.gid) {
            stat = match self.give(&folder, stored.entry(), caller, stat) {
                Ok(stat) => stat,
                Err(fault) => {
                    folder.dir.unlink(stored.entry())?;
                    return Err(fault);
                }
            };
        }
        // The table of open files is locked while the node is inserted: a lookup must not find the
        // file before it is known to be open.
        let mut files = self.open.files.lock();
        let node = self.created_node(&stat, &folder, stored.entry(), name);
        folder.occupy(name);
        let hint = Hint { tag: folder.tag, name: name.to_vec() };
        let (inode, context) = ((stat.dev, stat.ino), self.context());
        let open = OpenFile::fresh(node, file, inode, &context, self.next_serial(), hint);
        open.state.write().hint_from = stored.entry().into();
        self.insert_open(&mut files, node, open.clone(), flags);
        drop(files);
        if let Err(fault) = self.mode.writers.guard_created(self, &open) {
            let _ = self.release(&open, flags);
            self.nodes.forget(node, 1);
            return Err(fault);
        }
        // An empty file gets a header at once: if the daemon dies, an unwritten file is empty and
        // not damaged.
        if let Err(fault) = self.commit(&open, Durability::Ordered)
            && is_no_space(fault.errno())
        {
            let _ = folder.dir.unlink(stored.entry());
            self.nodes.remove_link(&stat, parent, stored.entry());
            let _ = self.release(&open, flags);
            self.nodes.forget(node, 1);
            return Err(fault);
        }
        if !flags.write {
            self.unguard(&open);
        }
        // The reply has the time at which the header was written. With the earlier time of the
        // creation, the kernel would see another time at the first write, and send it at the close.
        let stat = match open.file().stat() {
            Ok(stat) => stat,
            Err(e) => {
                let _ = self.release(&open, flags);
                self.nodes.forget(node, 1);
                return Err(e.into());
            }
        };
        if self.mode.caller_caches {
            open.state.write().mtime.made(stat.mtime);
        }
        let attr = self.attr(node, &stat, None)?;
        let direct = self.is_direct(flags);
        Ok((attr, self.open.put_handle(Open::File { file: open, flags, direct })))
    }

    pub fn link(&self, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Inner<Attr> {
        let _names = self.lock_all_names()?;
        if self.nodes.kind(node)? == Kind::Dir {
            return Err(Fault::Os(libc::EPERM));
        }
        let folder = self.folder(new_parent)?;
        if folder.exists(new_name)? {
            return Err(Fault::Os(libc::EEXIST));
        }
        let stored = folder.encode(new_name)?;
        let from = self.link_to_change(node)?;
        self.prepare(&stored)?;
        self.namespace.young_lists.forget_all(); // conflict copies of the old name are not beside the new one
        self.journal.before_name(|| self.path_in(new_parent, stored.entry()));
        let dir = self.dir(from.parent)?;
        dir.link(from.stored(), &*folder.dir, stored.entry())?;
        self.inode_changed(node);
        let stat = folder.dir.stat(stored.entry())?;
        let first = dir.stat(from.stored())?;
        if (first.dev, first.ino) != (stat.dev, stat.ino) && !self.mode.writers.share_names() {
            // Over sftp the two names appear as two inodes. Each would be opened as a file of its
            // own, and writes through one would look like damage through the other.
            folder.dir.unlink(stored.entry())?;
            return Err(Fault::Os(libc::EOPNOTSUPP));
        }
        folder.occupy(new_name);
        folder.seen(&stat, stored.entry(), new_name)
    }

    pub fn unlink(&self, parent: NodeId, name: &[u8]) -> Inner<()> {
        let _names = self.lock_names()?;
        let folder = self.folder(parent)?;
        let (stored, stat) = folder.find(name)?;
        if stat.kind == Kind::Dir {
            return Err(Fault::Os(libc::EISDIR));
        }
        let paths = self.namespace.paths.write();
        let applied = self.checkpoint_file(&stat);
        if stat.nlink > 1 || stat.kind != Kind::File {
            applied?;
        }
        folder.dir.unlink(&stored)?;
        let inode = (stat.dev, stat.ino);
        // Records that are not applied are dropped only once the removal of the name is durable: a
        // power cut could restore the name.
        if stat.nlink == 1 && (!self.journal.is_broken(inode) || folder.dir.sync().is_ok()) {
            self.journal.forget_repair(inode);
        }
        if self.journal.notes_created()
            && let Some(path) = self.path_in(parent, &stored)
        {
            self.journal.created_is_gone(&path);
        }
        let gone = self.nodes.remove_link(&stat, parent, &stored);
        drop(paths);
        folder.vacate(name);
        self.remember_left(parent, name);
        if let Some(node) = gone {
            self.inode_changed(node);
        }
        Ok(())
    }

    /// Applies the journal's records of a file before its path changes.
    pub(in crate::vault) fn checkpoint_file(&self, stat: &Stat) -> Inner<()> {
        if stat.kind == Kind::File {
            self.journal.checkpoint_for(Some((stat.dev, stat.ino)))
        } else {
            Ok(())
        }
    }

    /// Returns whether a directory of the store holds nothing but control files, and whether it is
    /// completely empty.
    pub fn is_empty(dir: &dyn Dir) -> Inner<(bool, bool)> {
        let mut bare = true;
        for entry in entries(dir)? {
            bare = false;
            if !is_control(&entry?.name) {
                return Ok((false, false));
            }
        }
        Ok((true, bare))
    }

    /// Fails with `ENOTEMPTY` if the directory `trash`, which was moved away because it held nothing
    /// but control files, holds more by now: another daemon has taken the lease over, or a sync tool
    /// has delivered a file. Then `put_back` is called.
    pub fn check_still_empty(
        dir: &dyn Dir,
        trash: &[u8],
        put_back: impl FnOnce() -> io::Result<()>,
    ) -> Inner<()> {
        let fault =
            match dir.open_dir(trash).map_err(Fault::from).and_then(|it| Self::is_empty(&*it)) {
                Ok((true, _)) => return Ok(()),
                Ok((false, _)) => Fault::Os(libc::ENOTEMPTY),
                Err(fault) => fault,
            };
        if let Err(error) = put_back() {
            tracing::error!(
                "a file was made in a directory that was being removed, and is in {} now: {error}",
                String::from_utf8_lossy(trash)
            );
        }
        Err(fault)
    }

    pub fn rmdir(&self, parent: NodeId, name: &[u8]) -> Inner<()> {
        let _names = self.lock_all_names()?;
        let folder = self.folder(parent)?;
        let (stored, stat) = folder.find(name)?;
        if stat.kind != Kind::Dir {
            return Err(Fault::Os(libc::ENOTDIR));
        }
        let mut share = None;
        match folder.dir.rmdir(&stored) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST)) => {
                let (empty, _) = Self::is_empty(&*folder.dir.open_dir(&stored)?)?;
                if !empty {
                    return Err(Fault::Os(libc::ENOTEMPTY));
                }
                if holds_share(&*folder.dir, &stored)? {
                    share = folder.place_name(&stored, name)?;
                }
                let trash = Trash::fresh_name(&*self.random);
                folder.dir.rename(&stored, &*folder.dir, &trash, RenameMode::NoReplace)?;
                Self::check_still_empty(&*folder.dir, &trash, || {
                    folder.dir.rename(&trash, &*folder.dir, &stored, RenameMode::NoReplace)
                })?;
                self.namespace.trash.empty(&folder.dir, &trash);
            }
            other => other?,
        }
        folder.vacate(name);
        self.remember_left(parent, name);
        if let Some(place) = share {
            folder.leave_place(&stored, &place);
        }
        if let Some(node) = self.nodes.remove_link(&stat, parent, &stored) {
            self.forget_dir(node);
        }
        Ok(())
    }
}
