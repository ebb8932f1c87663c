//! What opens, reads and commits do for the sake of other daemons.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::format::name::is_control;
use crate::store::{Access, Dir, Kind, Lock, Stat, Timestamp};
use crate::vault::core::Core;
use crate::vault::core::inodes::Link;
use crate::vault::durability::commit::Durability;
use crate::vault::durability::lock_files::open_to_lock;
use crate::vault::durability::writers::Writers;
use crate::vault::error::{Fault, Inner};
use crate::vault::file::guard::GUARD;
use crate::vault::file::{FileState, Load, OpenFile};
use crate::vault::open_files::on_demand::{Guards, is_written};
use crate::vault::share::control_files::entries;
use crate::vault::types::{NodeId, OpenFlags};

/// How often a commit keeps the changes elsewhere, if another program removes each result at once.
const KEEP_MAX: usize = 4;

impl Writers {
    /// Returns the flags with which a file is really opened. To truncate a file counts as writing:
    /// no other daemon may have the file open for writing then.
    pub fn open_flags(self, flags: OpenFlags) -> OpenFlags {
        match self {
            Writers::Exclusive => flags,
            Writers::Concurrent => OpenFlags { write: flags.write || flags.truncate, ..flags },
        }
    }

    /// Returns the open file of a node with one more handle that writes, if programs have it open
    /// for writing: it stays the file of their descriptors when another daemon renames, replaces or
    /// removes it. `None` if the caller has to open the file by its name.
    pub fn through_descriptor(self, core: &Core, node: NodeId) -> Option<Arc<OpenFile>> {
        if self == Writers::Exclusive {
            // Renames are known, and a file that was replaced in the store must be noticed.
            return None;
        }
        let mut files = core.open.files.lock();
        let shared = files.get_mut(&node).filter(|shared| shared.writers > 0)?;
        shared.handles += 1;
        shared.writers += 1;
        Some(shared.file.clone())
    }

    /// Checks a file that was just opened, or was open already, against the store.
    pub fn check_opened(self, core: &Core, open: &OpenFile, flags: OpenFlags) -> Inner<()> {
        match self {
            Writers::Exclusive => core.check_still_there(open),
            Writers::Concurrent if flags.truncate => core.check_name_kept(open),
            Writers::Concurrent if flags.write => {
                core.check_name_kept(open)?;
                core.freshen(open)
            }
            Writers::Concurrent => core.freshen(open),
        }
    }

    /// Guards a file that is open already, for an open with these flags.
    pub fn guard_again(self, core: &Core, open: &OpenFile, flags: OpenFlags) -> Inner<()> {
        match self {
            Writers::Concurrent if flags.write => core.guard_open(open),
            _ => Ok(()),
        }
    }

    /// Returns the guards for an open of the file `stored`, which was found to be `stat`.
    pub fn guard_stored(
        self,
        dir: &dyn Dir,
        stored: &[u8],
        stat: &Stat,
        flags: OpenFlags,
    ) -> Inner<Guards> {
        if self == Writers::Exclusive || !flags.write {
            return Ok(Guards::default());
        }
        let handle = open_to_lock(dir, stored)?;
        let its = handle.stat()?;
        if (its.dev, its.ino) != (stat.dev, stat.ino) {
            return Err(Fault::Os(libc::ESTALE));
        }
        let is_guarded = handle.try_lock_span(Some(Lock::Exclusive), GUARD)?;
        if !is_guarded && flags.truncate {
            return Err(Fault::Os(libc::EBUSY));
        }
        Guards::new(handle, is_guarded)
    }

    /// Returns whether another daemon has a file at or below a directory of the store open for
    /// writing. The caller has the lease, so no such daemon commits. A daemon that guards a file
    /// later notices that the file has lost its name.
    pub fn others_write_below(self, dir: &dyn Dir) -> Inner<bool> {
        if self == Writers::Exclusive {
            return Ok(false);
        }
        for entry in entries(dir)? {
            let entry = entry?;
            if is_control(&entry.name) {
                continue;
            }
            let found = match dir.stat(&entry.name)?.kind {
                Kind::Dir => self.others_write_below(&*dir.open_dir(&entry.name)?)?,
                Kind::File => is_written(&*dir.open_file(&entry.name, Access::Read)?)?,
                _ => false,
            };
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Guards a file that was just created.
    pub fn guard_created(self, core: &Core, open: &OpenFile) -> Inner<()> {
        match self {
            Writers::Exclusive => Ok(()),
            Writers::Concurrent => {
                core.guard_fresh(open)?;
                open.is_whole.store(true, Ordering::Release);
                Ok(())
            }
        }
    }

    /// Returns whether the close of a handle with these flags, one of `writers` that write, ends
    /// the guard of its file, so that the file is committed although it stays open.
    pub fn end_guard(self, flags: OpenFlags, writers: usize) -> bool {
        self == Writers::Concurrent && flags.write && writers == 1
    }

    /// Returns how an open treats the stored file.
    pub fn load(self, flags: OpenFlags) -> Load {
        match self {
            _ if flags.truncate => Load::Truncate,
            Writers::Exclusive if flags.write => Load::Write,
            // Another daemon may be about to write the first header.
            _ => Load::Read,
        }
    }

    /// Returns whether an open with these flags may write again what a failed flush has lost.
    pub fn may_rewrite(self, flags: OpenFlags) -> bool {
        !flags.truncate && (self == Writers::Exclusive || flags.write)
    }

    /// Reads the contents that are committed now, with this daemon's changes.
    pub fn read(self, core: &Core, open: &OpenFile, offset: u64, buf: &mut [u8]) -> Inner<usize> {
        match self {
            Writers::Exclusive => core.read_own(open, offset, buf),
            Writers::Concurrent => core.read_shared(open, offset, buf),
        }
    }

    /// Adopts a commit of another daemon.
    pub fn adopt(self, core: &Core, open: &OpenFile) -> Inner<()> {
        match self {
            Writers::Exclusive => Ok(()),
            Writers::Concurrent => core.freshen(open),
        }
    }

    /// Returns the time of modification to show of an open file; `None` for the one that the caller
    /// has read from the store. If another daemon may have set the time, it is read again: a commit
    /// may have been made since the caller has read it.
    pub fn time_to_show(self, open: &OpenFile, state: &FileState) -> Option<Timestamp> {
        let shown = state.mtime.shown()?;
        match self {
            Writers::Concurrent if state.changes.is_none() => {
                open.file().stat().ok().map(|stat| stat.mtime)
            }
            _ => Some(shown),
        }
    }

    /// Like [`Writers::adopt`], but waits for a commit that is in progress.
    pub fn adopt_whole(self, core: &Core, open: &OpenFile) -> Inner<()> {
        match self {
            Writers::Exclusive => Ok(()),
            Writers::Concurrent => core.retry(false, || core.freshen(open), open.node),
        }
    }

    /// Returns a name that leads to the file, for a commit. Checks before a commit of changes that
    /// the store has the state on which it builds, and otherwise keeps the changes elsewhere.
    /// Concurrent writers check that in [`Writers::begin_commit`].
    pub fn name_to_commit(
        self,
        core: &Core,
        open: &OpenFile,
        state: &mut FileState,
        durability: Durability,
    ) -> Inner<Option<Link>> {
        match self {
            Writers::Exclusive if state.changes.is_some() || durability == Durability::Synced => {
                core.check_not_replaced(open, state, false)
            }
            _ => Ok(core.nodes.link(open.node).ok()),
        }
    }

    /// Called before a commit.
    pub fn begin_commit(self, core: &Core, open: &OpenFile, state: &mut FileState) -> Inner<()> {
        match self {
            Writers::Exclusive => Ok(()),
            Writers::Concurrent => core.begin_shared_commit(open, state),
        }
    }

    /// Called after a commit. If the file had changes that could be lost, `changed` is its name:
    /// another program may have replaced the file during the commit, or removed the conflict copy
    /// with the changes. No later commit would find them.
    pub fn end_commit(
        self,
        core: &Core,
        open: &OpenFile,
        state: &mut FileState,
        mut changed: Option<Link>,
    ) -> Inner<()> {
        if self == Writers::Concurrent {
            core.end_shared_commit(open, state)?;
            if changed.is_some() {
                core.latch_if_superseded(open, state);
            }
            return state.latched.map_or(Ok(()), |errno| Err(Fault::Os(errno)));
        }
        for _ in 0..KEEP_MAX {
            match &changed {
                Some(link) if !core.names_open_file(link, open)? => {
                    changed = core.check_not_replaced(open, state, true)?;
                }
                _ => return Ok(()),
            }
        }
        state.latched = Some(libc::EIO);
        Err(Fault::Os(libc::EIO))
    }

    /// Returns whether the stored path of an open file, as the table of nodes has it, leads to the
    /// file.
    pub fn trust_path(self, core: &Core, path: &[u8], open: &OpenFile) -> bool {
        match self {
            Writers::Exclusive => true,
            Writers::Concurrent => core.leads_to(path, open.inode()),
        }
    }

    /// Returns whether another daemon may have removed the file's last name.
    pub fn removed(self, open: &OpenFile) -> bool {
        self == Writers::Concurrent && open.file().stat().is_ok_and(|stat| stat.nlink == 0)
    }
}
