//! Changes of attributes: size, times, owner, mode.

use crate::store::{Dir, Kind, SetTime};
use crate::vault::core::Core;
use crate::vault::core::inodes::Link;
use crate::vault::durability::commit::Durability;
use crate::vault::error::{Fault, Inner};
use crate::vault::file::OpenFile;
use crate::vault::open_files::handles::{kill_suid_sgid_bits, without_suid_sgid};
use crate::vault::types::{Attr, NodeId, OpenFlags, ROOT, SetAttr};

impl Core {
    pub fn setattr(&self, node: NodeId, set: &SetAttr) -> Inner<Attr> {
        self.check_writable()?;
        let mut was = None;
        let changed = self.set_attributes(node, set, &mut was);
        if let (Some(was), Err(fault)) = (was, &changed) {
            self.note_cut(node, was, fault); // it has the new size, but the kernel keeps the old one
        }
        match changed {
            Err(fault)
                if self.is_late_time(node, set)
                    && matches!(fault.errno(), libc::ESTALE | libc::ENOENT) =>
            {
                let now = self
                    .nodes
                    .link(node)
                    .ok()
                    .and_then(|link| self.dir(link.parent).ok()?.stat(link.stored()).ok());
                Ok(self.nodes.attr_of_lost(node, set, now.as_ref()))
            }
            other => other,
        }
    }

    /// Returns whether `set` may be the time of the last cached write, which the kernel sends when
    /// it evicts a file. The node may be retired or nameless by then, and the time is irrelevant.
    /// The kernel would report an error to the next `syncfs`, whose caller is not concerned.
    fn is_late_time(&self, node: NodeId, set: &SetAttr) -> bool {
        let is_time_alone = *set == SetAttr { mtime: set.mtime, ..SetAttr::default() };
        let is_file = self.nodes.kind(node).map_or(true, |kind| kind == Kind::File);
        self.mode.caller_caches
            && is_time_alone
            && is_file
            && !self.open.files.lock().contains_key(&node)
    }

    /// See [`Core::setattr`]. `was` is set to the previous size if the size was changed.
    fn set_attributes(&self, node: NodeId, set: &SetAttr, was: &mut Option<u64>) -> Inner<Attr> {
        if let Some(size) = set.size {
            self.set_size_of(node, size, set, was)?;
        }
        let _change = self.lease.change()?;
        let open = self.open.files.lock().get(&node).map(|s| s.file.clone());
        if node == ROOT {
            Self::set_on_dir(&*self.root, set)?;
            return self.stat(node);
        }
        let link = match open {
            Some(_) => self.link_of(node),
            None => self.link_to_change(node),
        };
        if set.kill_suid_sgid {
            self.kill_suid_sgid_of(open.as_deref(), link.as_ref().ok())?;
        }
        if open.is_none()
            && link.is_err()
            && let Some(dir) = self.dir_without_name(node)
        {
            Self::set_on_dir(&*dir, set)?;
            return self.attr(node, &dir.stat_self()?, None);
        }
        if set.changes_owner() || set.changes_times() || set.perm.is_some() {
            // Through the open file if there is one: it may have no name any more.
            match (&open, &link) {
                (Some(open), _) => self.set_on_open(open, set)?,
                (None, Ok(link)) => {
                    if let Some(unchanged) = self.set_on_stored(node, link, set)? {
                        return Ok(unchanged);
                    }
                }
                // The kernel sets the time of written data when it evicts the file, even if the
                // file cannot be opened any more. An error would be reported to the next `syncfs`,
                // which would fail although nothing is lost.
                (None, Err(_))
                    if !set.changes_owner()
                        && set.perm.is_none()
                        && self.nodes.last_stat(node).is_some() => {}
                (None, Err(fault)) => return Err(Fault::Os(fault.errno())),
            }
        }
        match open {
            // A caller that maintains the times needs none in the reply, and this is on the path of
            // each fsync.
            Some(open) if self.mode.caller_caches && set.mtime != SetTime::Omit => {
                self.attr(node, &open.file().stat_but_times()?, None)
            }
            _ => self.stat(node),
        }
    }

    /// Changes the size of a file, which is opened for that if no program has it open.
    fn set_size_of(
        &self,
        node: NodeId,
        size: u64,
        set: &SetAttr,
        was: &mut Option<u64>,
    ) -> Inner<()> {
        match self.nodes.kind(node)? {
            Kind::File => {}
            Kind::Dir => return Err(Fault::Os(libc::EISDIR)),
            _ => return Err(Fault::Os(libc::EINVAL)),
        }
        let flags = OpenFlags { write: true, truncate: size == 0, ..OpenFlags::default() };
        let open = match self.mode.writers.through_descriptor(self, node) {
            Some(open) => open,
            None => self.acquire(node, flags)?,
        };
        let before = open.state.read().size;
        let result = self.truncate(&open, size);
        *was = result.is_ok().then_some(before);
        if set.mtime == SetTime::Omit {
            open.state.write().resolve_mtime(); // the kernel will send no time for this change
        }
        let released = self.release(&open, flags);
        if result.is_err() {
            self.journal.keep_repair(open.inode());
        }
        result?;
        released
    }

    /// Clears set-user-ID, and set-group-ID if group-executable, of an open file or the entry
    /// `link`.
    fn kill_suid_sgid_of(&self, open: Option<&OpenFile>, link: Option<&Link>) -> Inner<()> {
        if let Some(open) = open {
            kill_suid_sgid_bits(open)?;
        } else if let Some(link) = link {
            let dir = self.dir(link.parent)?;
            let perm = dir.stat(link.stored())?.perm;
            if let Some(perm) = without_suid_sgid(perm) {
                dir.chmod(link.stored(), perm)?;
            }
        }
        Ok(())
    }

    /// Changes a directory by its own handle: the root, or one that is not found by its name.
    fn set_on_dir(dir: &dyn Dir, set: &SetAttr) -> Inner<()> {
        if set.changes_owner() {
            dir.chown_self(set.uid, set.gid)?;
        }
        if let Some(perm) = set.perm {
            dir.chmod_self(perm)?;
        }
        if set.changes_times() {
            dir.set_times_self(set.atime, set.mtime)?;
        }
        Ok(())
    }

    fn set_on_open(&self, open: &OpenFile, set: &SetAttr) -> Inner<()> {
        let times = set.changes_times();
        if set.atime != SetTime::Omit || times && open.state.read().changes.is_none() {
            // A program sets both times; the kernel, for its cached writes, only the modification
            // time. No replay may undo what a program has set.
            self.journal.checkpoint_for(Some(open.inode()))?;
        }
        if set.changes_owner() {
            open.with_stored(|file| file.chown(set.uid, set.gid))?;
        }
        if let Some(perm) = set.perm {
            open.with_stored(|file| file.chmod(perm))?;
        }
        if times {
            let mut state = open.state.write();
            let timed: Inner<()> = (|| {
                // A sync tool that finds a new time considers the contents new as well. It would
                // then not notice the new contents that are committed with the same time later.
                if let SetTime::At(time) = set.mtime
                    && self.mode.synced
                    && state.changes.is_some()
                    && set.atime == SetTime::Omit
                {
                    state.mtime.defer(time);
                    return Ok(());
                }
                match open.file().set_times(set.atime, set.mtime) {
                    // GlusterFS sets no times of a file that has lost its name. If the time is that
                    // of the kernel's cached writes, an error would be reported to the next close.
                    Err(e)
                        if e.raw_os_error() == Some(libc::ESTALE)
                            && set.atime == SetTime::Omit
                            && self.nodes.link(open.node).is_err() =>
                    {
                        return Ok(());
                    }
                    other => other?,
                }
                let device = open.inode().0;
                state.mtime.note(&*open.file(), set.mtime, device, &self.open.exact_store)
            })();
            if timed.is_err() && self.mode.caller_caches {
                // If this request fails, the kernel ends an fsync here and does not pass it to the
                // daemon. An error of the contents must then reach the next write.
                let _ = self.commit_state(open, &mut state, Durability::Ordered);
            }
            timed?;
        }
        let mut state = open.state.write();
        // The kernel sets the time of its cached writes before each fsync: that alone does not
        // require a second flush.
        state.unflushed.mtime |= set.mtime != SetTime::Omit;
        state.unflushed.inode |=
            set.changes_owner() || set.perm.is_some() || set.atime != SetTime::Omit;
        Ok(())
    }

    /// Changes an entry that is not open. Returns its attributes if nothing had to be changed.
    fn set_on_stored(&self, node: NodeId, link: &Link, set: &SetAttr) -> Inner<Option<Attr>> {
        let dir = self.dir(link.parent)?;
        let stat = dir.stat(link.stored());
        let leads_here = stat.as_ref().is_ok_and(|stat| self.nodes.is(node, stat));
        if !leads_here && self.mode.caller_caches && self.nodes.kind(node)? == Kind::File {
            return Err(Fault::Os(libc::ESTALE)); // another program has removed or replaced the file in the store
        }
        if set.changes_times() {
            let stat = stat?;
            self.journal.checkpoint_for(Some((stat.dev, stat.ino)))?;
            // After a rename or a link the kernel sends the unchanged modification time, because
            // the inode's change time is new.
            let same = SetAttr { mtime: SetTime::At(stat.mtime), ..SetAttr::default() };
            if self.mode.caller_caches
                && *set == same
                && stat.kind == Kind::File
                && self.nodes.is(node, &stat)
            {
                return self.attr(node, &stat, Some((&*dir, link.stored()))).map(Some);
            }
        }
        if set.changes_owner() {
            dir.chown(link.stored(), set.uid, set.gid)?;
        }
        if let Some(perm) = set.perm {
            dir.chmod(link.stored(), perm)?;
        }
        if set.changes_times() {
            dir.set_times(link.stored(), set.atime, set.mtime)?;
        }
        Ok(None)
    }
}
