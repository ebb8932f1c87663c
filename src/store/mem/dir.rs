//! A directory of the store in memory.
//!
//! Rules that hold here
//! * Errors are those of Linux, and are checked in the order in which Linux checks them
//!   (`fs/namei.c`).
//! * The cookie of an entry is its position, a number that the directory never reuses. An entry
//!   that replaces another one takes over its position.

use std::any::Any;
use std::io;
use std::sync::Arc;

use rustix::io::{Errno, Result};

use super::attr;
use super::content::BLOCK;
use super::file::MemFile;
use super::state::{HandleId, State};
use super::tree::{Change, Ino, Inode};
use super::{Call, Shared};
use crate::store::name::{self, NAME_MAX};
use crate::store::{Access, Dir, DirEntry, File, Kind, Lock, RenameMode, SetTime, Space, Stat};

/// Longest target of a symbolic link (`PATH_MAX` without the NUL).
const TARGET_MAX: usize = 4095;

pub(super) struct MemDir {
    shared: Arc<Shared>,
    ino: Ino,
    handle: HandleId,
}

impl Drop for MemDir {
    fn drop(&mut self) {
        self.shared.state.lock().release(self.ino, self.handle);
    }
}

impl MemDir {
    pub(super) fn open(shared: &Arc<Shared>, ino: Ino) -> MemDir {
        let handle = shared.state.lock().hold(ino);
        MemDir { shared: shared.clone(), ino, handle }
    }

    fn hold(&self, state: &mut State, ino: Ino) -> MemDir {
        MemDir { shared: self.shared.clone(), ino, handle: state.hold(ino) }
    }

    /// Checks the name, calls the hook, and runs `op`.
    fn change<T>(
        &self,
        call: Call,
        name: &[u8],
        op: impl FnOnce(&mut State) -> Result<T>,
    ) -> io::Result<T> {
        name::check(name)?;
        self.shared.event(call, self.ino, Some(name));
        Ok(op(&mut self.shared.state.lock())?)
    }

    fn change_self<T>(
        &self,
        call: Call,
        op: impl FnOnce(&mut State) -> Result<T>,
    ) -> io::Result<T> {
        self.shared.event(call, self.ino, None);
        Ok(op(&mut self.shared.state.lock())?)
    }

    /// Checks the name and runs `op`, which changes nothing.
    fn look<T>(&self, name: &[u8], op: impl FnOnce(&mut State) -> Result<T>) -> io::Result<T> {
        name::check(name)?;
        Ok(op(&mut self.shared.state.lock())?)
    }

    /// Creates an entry without keeping a handle.
    fn make(
        &self,
        call: Call,
        name: &[u8],
        kind: Kind,
        perm: u32,
        fill: impl FnOnce(&mut Inode),
    ) -> io::Result<()> {
        self.change(call, name, |state| {
            state.vacant(self.ino, name)?;
            let mut inode = state.inode(kind, perm);
            fill(&mut inode);
            let (ino, handle) = state.make(inode, Some((self.ino, name)))?;
            state.release(ino, handle);
            Ok(())
        })
    }

    /// Returns the inode of the other directory of a call. Fails with `EXDEV` if that is in another
    /// store.
    fn beside(&self, other: &dyn Dir) -> Result<Ino> {
        match other.as_any().downcast_ref::<MemDir>() {
            Some(other) if Arc::ptr_eq(&other.shared, &self.shared) => Ok(other.ino),
            _ => Err(Errno::XDEV),
        }
    }

    fn rename_in(
        &self,
        state: &mut State,
        name: &[u8],
        new: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let (new_dir, new_name) = new;
        let source = state.lookup(self.ino, name)?;
        let target = state.get(new_dir)?.entries.get(new_name);
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT),
            _ => {}
        }
        let is_dir = |ino| Ok(state.get(ino)?.kind == Kind::Dir);
        if is_dir(source)? && state.live.is_beneath(new_dir, source) {
            return Err(Errno::INVAL);
        }
        if let Some(target) = target
            && is_dir(target)?
            && state.live.is_beneath(self.ino, target)
        {
            return Err(if mode == RenameMode::Exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if state.get(new_dir)?.links == 0 {
            return Err(Errno::NOENT);
        }
        if target == Some(source) {
            return Ok(());
        }
        if mode != RenameMode::Exchange
            && let Some(target) = target
        {
            match (is_dir(source)?, is_dir(target)?) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !state.get(target)?.entries.is_empty() => {
                    return Err(Errno::NOTEMPTY);
                }
                _ => {}
            }
        }
        let put = |ino, displaced| Change::Put { dir: self.ino, name: name.into(), ino, displaced };
        let mut changes = match (mode, target) {
            (RenameMode::Exchange, Some(target)) => vec![put(target, None)],
            (RenameMode::Whiteout, _) => {
                let (ino, device) = (state.fresh_ino()?, state.inode(Kind::CharDevice, 0));
                vec![Change::New(ino, Box::new(device)), put(ino, Some(source))]
            }
            _ => vec![Change::Remove { dir: self.ino, name: name.into(), ino: source }],
        };
        let name = new_name.into();
        changes.push(Change::Put { dir: new_dir, name, ino: source, displaced: target });
        state.commit(changes);
        Ok(())
    }
}

impl Dir for MemDir {
    fn open_dir(&self, name: &[u8]) -> io::Result<Arc<dyn Dir>> {
        self.look(name, |state| {
            let ino = state.lookup(self.ino, name)?;
            match state.get(ino)?.kind {
                Kind::Dir => Ok(Arc::new(self.hold(state, ino)) as Arc<dyn Dir>),
                _ => Err(Errno::NOTDIR),
            }
        })
    }

    fn reopen(&self) -> io::Result<Arc<dyn Dir>> {
        let mut state = self.shared.state.lock();
        if state.get(self.ino)?.links == 0 {
            return Err(Errno::NOENT.into());
        }
        Ok(Arc::new(self.hold(&mut state, self.ino)))
    }

    fn open_file(&self, name: &[u8], access: Access) -> io::Result<Arc<dyn File>> {
        self.look(name, |state| {
            let ino = state.lookup(self.ino, name)?;
            match state.get(ino)?.kind {
                Kind::File => {
                    let handle = state.hold(ino);
                    Ok(Arc::new(MemFile::new(
                        &self.shared,
                        ino,
                        handle,
                        access == Access::ReadWrite,
                    )) as Arc<dyn File>)
                }
                Kind::Dir => Err(Errno::ISDIR),
                Kind::Symlink => Err(Errno::LOOP),
                _ => Err(Errno::NXIO),
            }
        })
    }

    fn create_file(&self, name: &[u8], perm: u32) -> io::Result<Arc<dyn File>> {
        self.change(Call::CreateFile, name, |state| {
            state.vacant(self.ino, name)?;
            let (ino, handle) =
                state.make(state.inode(Kind::File, perm), Some((self.ino, name)))?;
            Ok(Arc::new(MemFile::new(&self.shared, ino, handle, true)) as Arc<dyn File>)
        })
    }

    fn mkdir(&self, name: &[u8], perm: u32) -> io::Result<()> {
        self.make(Call::Mkdir, name, Kind::Dir, perm, |_| {})
    }

    fn mknod(&self, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> io::Result<()> {
        name::check(name)?;
        match kind {
            Kind::Fifo | Kind::Socket => self.make(Call::Mknod, name, kind, perm, |_| {}),
            Kind::BlockDevice | Kind::CharDevice => {
                self.make(Call::Mknod, name, kind, perm, |inode| inode.rdev = rdev)
            }
            Kind::File | Kind::Dir | Kind::Symlink => Err(Errno::INVAL.into()),
        }
    }

    fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        name::check(name)?;
        match target.len() {
            0 => Err(Errno::NOENT.into()),
            1..=TARGET_MAX => self.make(Call::Symlink, name, Kind::Symlink, 0o777, |inode| {
                inode.target = target.into()
            }),
            _ => Err(Errno::NAMETOOLONG.into()),
        }
    }

    fn readlink(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        self.look(name, |state| {
            let inode = state.get(state.lookup(self.ino, name)?)?;
            if inode.kind == Kind::Symlink { Ok(inode.target.to_vec()) } else { Err(Errno::INVAL) }
        })
    }

    fn link(&self, name: &[u8], new_dir: &dyn Dir, new_name: &[u8]) -> io::Result<()> {
        name::check(new_name)?;
        self.change(Call::Link, name, |state| {
            let new_dir = self.beside(new_dir)?;
            let ino = state.lookup(self.ino, name)?;
            state.vacant(new_dir, new_name)?;
            if state.get(ino)?.kind == Kind::Dir {
                return Err(Errno::PERM);
            }
            state.commit(vec![Change::Put {
                dir: new_dir,
                name: new_name.into(),
                ino,
                displaced: None,
            }]);
            Ok(())
        })
    }

    fn unlink(&self, name: &[u8]) -> io::Result<()> {
        self.change(Call::Unlink, name, |state| {
            let ino = state.lookup(self.ino, name)?;
            if state.get(ino)?.kind == Kind::Dir {
                return Err(Errno::ISDIR);
            }
            state.commit(vec![Change::Remove { dir: self.ino, name: name.into(), ino }]);
            Ok(())
        })
    }

    fn rmdir(&self, name: &[u8]) -> io::Result<()> {
        self.change(Call::Rmdir, name, |state| {
            let ino = state.lookup(self.ino, name)?;
            let inode = state.get(ino)?;
            if inode.kind != Kind::Dir {
                return Err(Errno::NOTDIR);
            }
            if !inode.entries.is_empty() {
                return Err(Errno::NOTEMPTY);
            }
            state.commit(vec![Change::Remove { dir: self.ino, name: name.into(), ino }]);
            Ok(())
        })
    }

    fn rename(
        &self,
        name: &[u8],
        new_dir: &dyn Dir,
        new_name: &[u8],
        mode: RenameMode,
    ) -> io::Result<()> {
        name::check(new_name)?;
        self.change(Call::Rename, name, |state| {
            let new_dir = self.beside(new_dir)?;
            self.rename_in(state, name, (new_dir, new_name), mode)
        })
    }

    fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        self.look(name, |state| attr::stat(state, state.lookup(self.ino, name)?))
    }

    fn stat_self(&self) -> io::Result<Stat> {
        Ok(attr::stat(&self.shared.state.lock(), self.ino)?)
    }

    fn chmod(&self, name: &[u8], perm: u32) -> io::Result<()> {
        self.change(Call::Chmod, name, |state| {
            attr::chmod(state, state.lookup(self.ino, name)?, perm)
        })
    }

    fn chown(&self, name: &[u8], uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.change(Call::Chown, name, |state| {
            attr::chown(state, state.lookup(self.ino, name)?, uid, gid)
        })
    }

    fn set_times(&self, name: &[u8], atime: SetTime, mtime: SetTime) -> io::Result<()> {
        self.change(Call::SetTimes, name, |state| {
            attr::set_times(state, state.lookup(self.ino, name)?, atime, mtime)
        })
    }

    fn chmod_self(&self, perm: u32) -> io::Result<()> {
        self.change_self(Call::Chmod, |state| attr::chmod(state, self.ino, perm))
    }

    fn chown_self(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.change_self(Call::Chown, |state| attr::chown(state, self.ino, uid, gid))
    }

    fn set_times_self(&self, atime: SetTime, mtime: SetTime) -> io::Result<()> {
        self.change_self(Call::SetTimes, |state| attr::set_times(state, self.ino, atime, mtime))
    }

    fn get_xattr(&self, name: &[u8], key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.look(name, |state| attr::get_xattr(state, state.lookup(self.ino, name)?, key))
    }

    fn set_xattr(&self, name: &[u8], key: &[u8], value: &[u8]) -> io::Result<()> {
        self.change(Call::SetXattr, name, |state| {
            attr::set_xattr(state, state.lookup(self.ino, name)?, key, value)
        })
    }

    fn remove_xattr(&self, name: &[u8], key: &[u8]) -> io::Result<bool> {
        self.change(Call::RemoveXattr, name, |state| {
            attr::remove_xattr(state, state.lookup(self.ino, name)?, key)
        })
    }

    fn get_xattr_self(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(attr::get_xattr(&self.shared.state.lock(), self.ino, key)?)
    }

    fn set_xattr_self(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.change_self(Call::SetXattr, |state| attr::set_xattr(state, self.ino, key, value))
    }

    fn remove_xattr_self(&self, key: &[u8]) -> io::Result<bool> {
        self.change_self(Call::RemoveXattr, |state| attr::remove_xattr(state, self.ino, key))
    }

    fn read(&self, cookie: i64, limit: usize) -> io::Result<Vec<DirEntry>> {
        let after = u64::try_from(cookie).map_err(|_| Errno::INVAL)?;
        let state = self.shared.state.lock();
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (position, name, ino) in state.get(self.ino)?.entries.behind(after) {
            bytes += name.len();
            if bytes > limit && !entries.is_empty() {
                break;
            }
            let kind = state.live.get(ino).map(|inode| inode.kind);
            entries.push(DirEntry { name: name.into(), ino, kind, next: position as i64 });
        }
        Ok(entries)
    }

    fn sync(&self) -> io::Result<()> {
        self.change_self(Call::SyncDir, |state| {
            state.sync_dir(self.ino);
            Ok(())
        })
    }

    fn sync_store(&self) -> io::Result<()> {
        self.change_self(Call::SyncDir, |state| {
            state.sync_store();
            Ok(())
        })
    }

    fn space(&self) -> io::Result<Space> {
        let (blocks, free) = self.shared.state.lock().blocks();
        Ok(Space {
            block_size: BLOCK,
            blocks,
            free,
            available: free,
            files: 1 << 32,
            files_free: 1 << 31,
            name_max: NAME_MAX as u64,
        })
    }

    fn is_read_only(&self) -> io::Result<bool> {
        Ok(false)
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        Ok(self.shared.state.lock().try_lock(self.ino, self.handle, lock))
    }

    fn locks(&self) -> io::Result<Vec<(u32, Lock)>> {
        let holder = std::process::id();
        Ok(self.shared.state.lock().locks(self.ino).map(|lock| (holder, lock)).collect())
    }

    fn directory_locks_suffice(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
