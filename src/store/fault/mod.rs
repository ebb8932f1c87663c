//! A ciphertext store that fails on request.
//!
//! [`FaultStore::wrap`] puts a store behind a [`FaultPlan`], which counts each [`Call`] to it and
//! to everything that is opened from it, and fails the selected ones. So a test can count the calls
//! of an operation and then fail each of them in turn:
//!
//! ```
//! use std::sync::Arc;
//! use kithfs::store::fault::{Calls, Fault, FaultPlan, FaultStore, When};
//! use kithfs::store::mem::MemStore;
//!
//! let operation = |plan: &Arc<FaultPlan>| {
//!     let root = FaultStore::wrap(MemStore::new().root(), plan.clone());
//!     root.create_file(b"file", 0o644)?.write_at(b"text", 0)
//! };
//! let plan = FaultPlan::new();
//! operation(&plan)?;
//! for n in 1..=plan.count(Calls::All) {
//!     let plan = FaultPlan::failing(Fault { calls: Calls::All, when: When::Nth(n), errno: 5, short: false });
//!     assert_eq!(operation(&plan).unwrap_err().raw_os_error(), Some(5));
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Rules that hold here
//! * A failed call does nothing, except where the plan says so: a write can be cut short, a call
//!   can take effect although it fails, and a failed flush can lose data.
//! * The store below checks the names.
//! * Locks can behave differently from those of the store ([`Locks`]), for example as on a network
//!   filesystem. The plan can also imitate a store behind FUSE ([`FaultPlan::come_through_fuse`]).

mod call;
mod plan;

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

pub use call::Call;
pub use plan::{Calls, Fault, FaultPlan, Locks, When};

use super::{
    Access, Allocate, Dir, DirEntry, File, Kind, Lock, RenameMode, Seek, SetTime, Space, Span, Stat,
};

/// A store behind a plan.
pub struct FaultStore;

impl FaultStore {
    /// Puts the directory, and everything that is opened from it, behind the plan.
    pub fn wrap(dir: Arc<dyn Dir>, plan: Arc<FaultPlan>) -> Arc<dyn Dir> {
        Arc::new(FaultDir { dir, plan })
    }
}

struct FaultDir {
    dir: Arc<dyn Dir>,
    plan: Arc<FaultPlan>,
}

struct FaultFile {
    file: Arc<dyn File>,
    plan: Arc<FaultPlan>,
    access: Access,
    /// The bytes that this handle keeps: see [`FaultPlan::keep_pages`].
    pages: Mutex<Option<Vec<u8>>>,
    is_direct: AtomicBool,
    /// See [`FaultPlan::keep_locks`].
    _writer: Option<Arc<()>>,
}

impl FaultDir {
    fn wrap_dir(&self, dir: Arc<dyn Dir>) -> Arc<dyn Dir> {
        FaultStore::wrap(dir, self.plan.clone())
    }

    fn wrap_file(&self, file: Arc<dyn File>, access: Access) -> Arc<dyn File> {
        FaultFile::wrap(file, self.plan.clone(), access)
    }
}

/// Returns the directory below if `dir` is one of a `FaultStore`, otherwise `dir` itself.
fn below(dir: &dyn Dir) -> &dyn Dir {
    dir.as_any().downcast_ref::<FaultDir>().map_or(dir, |wrapped| &*wrapped.dir)
}

impl Dir for FaultDir {
    fn open_dir(&self, name: &[u8]) -> io::Result<Arc<dyn Dir>> {
        self.plan.pass(Call::OpenDir)?;
        self.plan.check_allowed(name)?;
        Ok(self.wrap_dir(self.dir.open_dir(name)?))
    }

    fn reopen(&self) -> io::Result<Arc<dyn Dir>> {
        self.plan.pass(Call::Reopen)?;
        Ok(self.wrap_dir(self.dir.reopen()?))
    }

    fn open_file(&self, name: &[u8], access: Access) -> io::Result<Arc<dyn File>> {
        self.plan.pass(Call::OpenFile)?;
        self.plan.check_allowed(name)?;
        Ok(self.wrap_file(self.dir.open_file(name, access)?, access))
    }

    fn create_file(&self, name: &[u8], perm: u32) -> io::Result<Arc<dyn File>> {
        self.plan.pass(Call::CreateFile)?;
        Ok(self.wrap_file(self.dir.create_file(name, perm)?, Access::ReadWrite))
    }

    fn mkdir(&self, name: &[u8], perm: u32) -> io::Result<()> {
        self.plan.pass(Call::Mkdir)?;
        self.dir.mkdir(name, perm)
    }

    fn mknod(&self, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> io::Result<()> {
        self.plan.pass(Call::Mknod)?;
        if self.plan.comes_through_fuse() {
            self.dir.create_file(name, perm)?;
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.dir.mknod(name, kind, perm, rdev)
    }

    fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        self.plan.pass_or_do(Call::Symlink, || self.dir.symlink(name, target))
    }

    fn readlink(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        self.plan.pass(Call::Readlink)?;
        self.dir.readlink(name)
    }

    fn link(&self, name: &[u8], new_dir: &dyn Dir, new_name: &[u8]) -> io::Result<()> {
        self.plan.pass(Call::Link)?;
        self.dir.link(name, below(new_dir), new_name)?;
        self.plan.note_link(new_name);
        Ok(())
    }

    fn unlink(&self, name: &[u8]) -> io::Result<()> {
        self.plan.pass(Call::Unlink)?;
        self.dir.unlink(name)
    }

    fn rmdir(&self, name: &[u8]) -> io::Result<()> {
        self.plan.pass(Call::Rmdir)?;
        self.dir.rmdir(name)
    }

    fn rename(
        &self,
        name: &[u8],
        new_dir: &dyn Dir,
        new_name: &[u8],
        mode: RenameMode,
    ) -> io::Result<()> {
        self.plan.pass(Call::Rename)?;
        if matches!(mode, RenameMode::Exchange | RenameMode::Whiteout)
            && self.plan.comes_through_fuse()
        {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.dir.rename(name, below(new_dir), new_name, mode)
    }

    fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        self.plan.pass(Call::Stat)?;
        Ok(self.plan.show(self.dir.stat(name)?, Some(name)))
    }

    fn stat_self(&self) -> io::Result<Stat> {
        self.plan.pass(Call::Stat)?;
        self.dir.stat_self()
    }

    fn chmod(&self, name: &[u8], perm: u32) -> io::Result<()> {
        self.plan.pass(Call::Chmod)?;
        self.dir.chmod(name, perm)
    }

    fn chown(&self, name: &[u8], uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.plan.pass(Call::Chown)?;
        self.dir.chown(name, uid, gid)
    }

    fn set_times(&self, name: &[u8], atime: SetTime, mtime: SetTime) -> io::Result<()> {
        self.plan.pass(Call::SetTimes)?;
        self.dir.set_times(name, atime, mtime)
    }

    fn chmod_self(&self, perm: u32) -> io::Result<()> {
        self.plan.pass(Call::Chmod)?;
        self.dir.chmod_self(perm)
    }

    fn chown_self(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.plan.pass(Call::Chown)?;
        self.dir.chown_self(uid, gid)
    }

    fn set_times_self(&self, atime: SetTime, mtime: SetTime) -> io::Result<()> {
        self.plan.pass(Call::SetTimes)?;
        self.dir.set_times_self(atime, mtime)
    }

    fn get_xattr(&self, name: &[u8], key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.plan.pass(Call::GetXattr)?;
        self.dir.get_xattr(name, key)
    }

    fn set_xattr(&self, name: &[u8], key: &[u8], value: &[u8]) -> io::Result<()> {
        self.plan.pass(Call::SetXattr)?;
        self.dir.set_xattr(name, key, value)
    }

    fn remove_xattr(&self, name: &[u8], key: &[u8]) -> io::Result<bool> {
        self.plan.pass(Call::RemoveXattr)?;
        self.dir.remove_xattr(name, key)
    }

    fn get_xattr_self(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.plan.pass(Call::GetXattr)?;
        self.dir.get_xattr_self(key)
    }

    fn set_xattr_self(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.plan.pass(Call::SetXattr)?;
        self.dir.set_xattr_self(key, value)
    }

    fn remove_xattr_self(&self, key: &[u8]) -> io::Result<bool> {
        self.plan.pass(Call::RemoveXattr)?;
        self.dir.remove_xattr_self(key)
    }

    fn read(&self, cookie: i64, limit: usize) -> io::Result<Vec<DirEntry>> {
        self.plan.pass(Call::List)?;
        self.dir.read(cookie, limit)
    }

    fn sync(&self) -> io::Result<()> {
        self.plan.pass(Call::SyncDir)?;
        self.dir.sync()
    }

    fn sync_store(&self) -> io::Result<()> {
        self.plan.pass(Call::SyncDir)?;
        self.dir.sync_store()
    }

    fn space(&self) -> io::Result<Space> {
        self.plan.pass(Call::Space)?;
        self.dir.space()
    }

    fn is_read_only(&self) -> io::Result<bool> {
        self.plan.pass(Call::Space)?;
        self.dir.is_read_only()
    }

    fn has_our_clock(&self) -> bool {
        self.dir.has_our_clock()
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.plan.pass(Call::Lock)?;
        match self.plan.locks() {
            Locks::Own => self.dir.try_lock(lock),
            Locks::Everybody | Locks::ByAccess => Ok(true),
        }
    }

    fn locks(&self) -> io::Result<Vec<(u32, Lock)>> {
        match self.plan.locks() {
            Locks::Own => self.dir.locks(),
            Locks::Everybody | Locks::ByAccess => Ok(Vec::new()),
        }
    }

    fn directory_locks_suffice(&self) -> bool {
        self.plan.locks() != Locks::ByAccess && self.dir.directory_locks_suffice()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl FaultFile {
    fn wrap(file: Arc<dyn File>, plan: Arc<FaultPlan>, access: Access) -> Arc<dyn File> {
        let (pages, is_direct) = (Mutex::default(), AtomicBool::new(false));
        let ino = || Some(file.stat().ok()?.ino);
        let _writer = (access == Access::ReadWrite).then(|| plan.note_writer(ino)).flatten();
        Arc::new(FaultFile { file, plan, access, pages, is_direct, _writer })
    }

    /// Returns the bytes that this handle keeps, which the first call reads. Returns `None` if it
    /// keeps none ([`FaultPlan::keep_pages`]).
    fn kept(&self) -> io::Result<Option<Vec<u8>>> {
        let keeps = self.plan.keeps_pages()
            && self.access == Access::ReadWrite
            && !self.is_direct.load(Ordering::Relaxed);
        if !keeps {
            return Ok(None);
        }
        let mut pages = self.pages.lock();
        if pages.is_none() {
            let mut all = vec![0; self.file.stat()?.size as usize];
            let read = self.file.read_at(&mut all, 0)?;
            all.truncate(read);
            *pages = Some(all);
        }
        Ok(pages.clone())
    }

    fn flush(&self, call: Call) -> io::Result<()> {
        let passed = self.plan.pass(call);
        if passed.is_err() && self.plan.loses() {
            super::mem::lose(&*self.file);
        }
        passed
    }
}

impl File for FaultFile {
    fn keep_access_time(&self) {
        self.file.keep_access_time();
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.plan.pass(Call::Read)?;
        let Some(kept) = self.kept()? else { return self.file.read_at(buf, offset) };
        let from = kept.get(offset as usize..).unwrap_or(&[]);
        let len = from.len().min(buf.len());
        buf[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn read_from_store(&self) -> io::Result<()> {
        self.is_direct.store(true, Ordering::Relaxed);
        self.file.read_from_store()
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        *self.pages.lock() = None;
        let Some(fault) = self.plan.next(Call::Write) else {
            return self.file.write_at(buf, offset);
        };
        if fault.short {
            self.file.write_at(&buf[..buf.len() / 2], offset)?;
        } else if self.plan.is_done_all_the_same(Call::Write) {
            self.file.write_at(buf, offset)?;
        }
        Err(io::Error::from_raw_os_error(fault.errno))
    }

    fn write_vectored_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        *self.pages.lock() = None;
        let Some(fault) = self.plan.next(Call::Write) else {
            return self.file.write_vectored_at(bufs, offset);
        };
        if fault.short {
            let all = bufs.concat();
            self.file.write_at(&all[..all.len() / 2], offset)?;
        } else if self.plan.is_done_all_the_same(Call::Write) {
            self.file.write_vectored_at(bufs, offset)?;
        }
        Err(io::Error::from_raw_os_error(fault.errno))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.plan.pass(Call::SetLen)?;
        self.file.set_len(len)
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        self.plan.pass(Call::Allocate)?;
        self.file.allocate(how, offset, len)
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        self.plan.pass(Call::Seek)?;
        self.file.seek(what, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.flush(Call::SyncData)?;
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.flush(Call::SyncAll)?;
        self.file.sync_all()
    }

    fn stat(&self) -> io::Result<Stat> {
        self.plan.pass(Call::Stat)?;
        Ok(self.plan.show(self.file.stat()?, None))
    }

    fn chmod(&self, perm: u32) -> io::Result<()> {
        self.plan.pass(Call::Chmod)?;
        self.file.chmod(perm)
    }

    fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.plan.pass(Call::Chown)?;
        self.file.chown(uid, gid)
    }

    fn set_times(&self, atime: SetTime, mtime: SetTime) -> io::Result<()> {
        self.plan.pass(Call::SetTimes)?;
        self.file.set_times(atime, mtime)
    }

    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.plan.pass(Call::GetXattr)?;
        self.file.get_xattr(key)
    }

    fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.plan.pass(Call::SetXattr)?;
        self.file.set_xattr(key, value)
    }

    fn remove_xattr(&self, key: &[u8]) -> io::Result<bool> {
        self.plan.pass(Call::RemoveXattr)?;
        self.file.remove_xattr(key)
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.plan.pass(Call::Lock)?;
        match self.plan.locks() {
            Locks::Everybody => Ok(true),
            Locks::ByAccess if lock == Lock::Exclusive && self.access == Access::Read => {
                Err(io::Error::from_raw_os_error(libc::EBADF))
            }
            // The server has locks on ranges only.
            Locks::ByAccess => {
                self.file.try_lock_span(Some(lock), Span { first: 0, last: Span::END })
            }
            Locks::Own => self.file.try_lock(lock),
        }
    }

    fn reopen(&self, access: Access) -> io::Result<Arc<dyn File>> {
        self.plan.pass(Call::OpenFile)?;
        let file = self.file.reopen(access)?;
        Ok(FaultFile::wrap(file, self.plan.clone(), access))
    }

    fn try_lock_span(&self, lock: Option<Lock>, span: Span) -> io::Result<bool> {
        self.plan.pass(Call::Lock)?;
        match self.plan.locks() {
            Locks::Everybody => Ok(true),
            Locks::ByAccess | Locks::Own => self.file.try_lock_span(lock, span),
        }
    }

    fn find_lock(&self, lock: Lock, span: Span) -> io::Result<Option<(Lock, Span)>> {
        self.plan.pass(Call::Lock)?;
        match self.plan.locks() {
            Locks::Everybody => Ok(None),
            _ if !self.plan.shows_locks(|| Some(self.file.stat().ok()?.ino)) => Ok(None),
            Locks::ByAccess | Locks::Own => self.file.find_lock(lock, span),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance::conformance;
    use crate::store::mem::MemStore;

    // With no fault planned, the wrapper behaves as the store itself.
    conformance!(conforms, ((), FaultStore::wrap(MemStore::new().root(), FaultPlan::new())));

    fn store(plan: &Arc<FaultPlan>) -> Arc<dyn Dir> {
        FaultStore::wrap(MemStore::new().root(), plan.clone())
    }

    #[track_caller]
    fn fails<T>(result: io::Result<T>, errno: i32) {
        assert_eq!(result.err().and_then(|error| error.raw_os_error()), Some(errno));
    }

    #[test]
    fn the_nth_of_a_kind_fails_and_does_nothing() {
        let plan = FaultPlan::failing(Fault {
            calls: Calls::Of(Call::Mkdir),
            when: When::Nth(2),
            errno: libc::EIO,
            short: false,
        });
        let root = store(&plan);
        root.mkdir(b"a", 0o755).unwrap();
        root.symlink(b"l", b"x").unwrap();
        fails(root.mkdir(b"b", 0o755), libc::EIO);
        fails(root.stat(b"b"), libc::ENOENT);
        root.mkdir(b"b", 0o755).unwrap();
        assert_eq!(
            (
                plan.count(Calls::All),
                plan.count(Calls::Changes),
                plan.count(Calls::Of(Call::Mkdir)),
                plan.failed()
            ),
            (5, 4, 3, 1)
        );
    }

    #[test]
    fn from_the_nth_on_all_fail_until_healed() {
        let plan = FaultPlan::failing(Fault {
            calls: Calls::Changes,
            when: When::From(2),
            errno: libc::ENOSPC,
            short: false,
        });
        let root = store(&plan);
        let file = root.create_file(b"f", 0o644).unwrap();
        fails(file.write_at(b"x", 0), libc::ENOSPC);
        fails(file.sync_data(), libc::ENOSPC);
        file.stat().unwrap();
        plan.heal();
        file.write_at(b"x", 0).unwrap();
        assert_eq!((plan.count(Calls::Changes), plan.failed()), (4, 2));
        plan.reset();
        assert_eq!((plan.count(Calls::All), plan.failed()), (0, 0));
    }

    #[test]
    fn a_write_can_be_cut_short() {
        let plan = FaultPlan::failing(Fault {
            calls: Calls::Of(Call::Write),
            when: When::From(1),
            errno: libc::EIO,
            short: true,
        });
        let root = store(&plan);
        let file = root.create_file(b"f", 0o644).unwrap();
        fails(file.write_at(b"abcdef", 0), libc::EIO);
        assert_eq!(file.stat().unwrap().size, 3);
        fails(file.write_vectored_at(&[b"abcdef", b"gh", b"ij"], 0), libc::EIO);
        let mut bytes = [0; 10];
        assert_eq!((file.read_at(&mut bytes, 0).unwrap(), &bytes[..5]), (5, &b"abcde"[..]));
    }

    #[test]
    fn a_directory_of_another_store_is_another_device() {
        let plan = FaultPlan::new();
        let (one, other) = (store(&plan), store(&plan));
        one.create_file(b"f", 0o644).unwrap();
        fails(one.rename(b"f", &*other, b"f", RenameMode::Replace), libc::EXDEV);
        fails(one.link(b"f", &*other, b"f"), libc::EXDEV);
    }
}
