//! An open file of the store in memory.

use std::any::Any;
use std::io;
use std::sync::Arc;

use rustix::io::{Errno, Result};

use super::state::{HandleId, MAX_LEN, State};
use super::tree::Ino;
use super::{Call, Shared, attr};
use crate::store::{Access, Allocate, File, Lock, Seek, SetTime, Span, Stat};

pub(super) struct MemFile {
    shared: Arc<Shared>,
    ino: Ino,
    handle: HandleId,
    writable: bool,
}

impl Drop for MemFile {
    fn drop(&mut self) {
        self.shared.state.lock().release(self.ino, self.handle);
    }
}

impl MemFile {
    /// Takes ownership of the `handle` to the inode.
    pub(super) fn new(shared: &Arc<Shared>, ino: Ino, handle: HandleId, writable: bool) -> MemFile {
        MemFile { shared: shared.clone(), ino, handle, writable }
    }

    /// Records that a flush of the file failed and that the store dropped the data.
    pub(super) fn lose(&self) {
        self.shared.state.lock().lose(self.ino);
    }

    fn change<T>(&self, call: Call, op: impl FnOnce(&mut State) -> Result<T>) -> io::Result<T> {
        self.shared.event(call, self.ino, None);
        Ok(op(&mut self.shared.state.lock())?)
    }
}

/// Rejects offsets that the kernel's signed offsets cannot express, and ranges beyond the longest
/// file.
fn check_range(offset: u64, len: u64) -> Result<()> {
    match offset.checked_add(len) {
        _ if i64::try_from(offset).is_err() => Err(Errno::INVAL),
        Some(end) if end <= MAX_LEN => Ok(()),
        _ => Err(Errno::FBIG),
    }
}

impl File for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        if i64::try_from(offset).is_err() {
            return Err(Errno::INVAL.into());
        }
        Ok(self.shared.state.lock().content(self.ino)?.read(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.change(Call::Write, |state| {
            if !self.writable {
                return Err(Errno::BADF);
            }
            if buf.is_empty() {
                return Ok(());
            }
            check_range(offset, buf.len() as u64)?;
            let fitting = state.fitting(self.ino, offset, buf.len() as u64)? as usize;
            if fitting > 0 {
                state.change_data(self.ino, true, |data, now| {
                    data.write(&buf[..fitting], offset, now)
                })?;
            }
            if fitting < buf.len() { Err(Errno::NOSPC) } else { Ok(()) }
        })
    }

    fn write_vectored_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write_at(&bufs.concat(), offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Call::SetLen, |state| {
            if !self.writable {
                return Err(Errno::INVAL);
            }
            check_range(len, 0)?;
            state.change_data(self.ino, true, |data, now| data.set_len(len, now))
        })
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        self.change(Call::Allocate, |state| {
            if len == 0 {
                return Err(Errno::INVAL);
            }
            if !self.writable {
                return Err(Errno::BADF);
            }
            check_range(offset, len)?;
            match how {
                Allocate::KeepSize if state.fitting(self.ino, offset, len)? < len => {
                    Err(Errno::NOSPC)
                }
                Allocate::KeepSize => {
                    state.change_data(self.ino, false, |data, _| data.reserve(offset, len))
                }
                Allocate::PunchHole => {
                    state.change_data(self.ino, true, |data, now| data.punch(offset, len, now))
                }
            }
        })
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        let state = self.shared.state.lock();
        let content = state.content(self.ino)?;
        if offset >= content.len {
            return Err(Errno::NXIO.into());
        }
        match what {
            Seek::Data => Ok(content.next_data(offset).ok_or(Errno::NXIO)?),
            Seek::Hole => Ok(content.next_hole(offset)),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(Call::SyncData, |state| {
            state.sync_data(self.ino);
            Ok(())
        })
    }

    fn sync_all(&self) -> io::Result<()> {
        self.change(Call::SyncAll, |state| {
            state.sync_all(self.ino);
            Ok(())
        })
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(attr::stat(&self.shared.state.lock(), self.ino)?)
    }

    fn chmod(&self, perm: u32) -> io::Result<()> {
        self.change(Call::Chmod, |state| attr::chmod(state, self.ino, perm))
    }

    fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.change(Call::Chown, |state| attr::chown(state, self.ino, uid, gid))
    }

    fn set_times(&self, atime: SetTime, mtime: SetTime) -> io::Result<()> {
        self.change(Call::SetTimes, |state| attr::set_times(state, self.ino, atime, mtime))
    }

    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(attr::get_xattr(&self.shared.state.lock(), self.ino, key)?)
    }

    fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.change(Call::SetXattr, |state| attr::set_xattr(state, self.ino, key, value))
    }

    fn remove_xattr(&self, key: &[u8]) -> io::Result<bool> {
        self.change(Call::RemoveXattr, |state| attr::remove_xattr(state, self.ino, key))
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        Ok(self.shared.state.lock().try_lock(self.ino, self.handle, lock))
    }

    fn reopen(&self, access: Access) -> io::Result<Arc<dyn File>> {
        let handle = self.shared.state.lock().hold(self.ino);
        let writable = access == Access::ReadWrite;
        Ok(Arc::new(MemFile::new(&self.shared, self.ino, handle, writable)))
    }

    fn try_lock_span(&self, lock: Option<Lock>, span: Span) -> io::Result<bool> {
        if lock == Some(Lock::Exclusive) && !self.writable {
            return Err(Errno::BADF.into());
        }
        Ok(self.shared.state.lock().lock_span(self.ino, self.handle, lock, span))
    }

    fn find_lock(&self, lock: Lock, span: Span) -> io::Result<Option<(Lock, Span)>> {
        Ok(self.shared.state.lock().find_lock(self.ino, self.handle, lock, span))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
