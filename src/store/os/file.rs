//! A regular file of the operating system.
//!
//! Rules that hold here
//! * Positions are always explicit; the descriptor's own position is not used.
//! * Short reads and writes are continued, and `EINTR` is retried: a caller gets everything or an
//!   error.
//! * `EIO` from an open, read, write, allocation, flush or lock is logged with the call and the
//!   path: nothing above knows which call of an operation has failed.

use std::any::Any;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::fs::{self, FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};
use smallvec::SmallVec;

use super::grant::{self, Grants};
use super::{Quirks, attr, locks, sys};
use crate::store::{Access, Allocate, File, Lock, Seek, SetTime, Span, Stat};

/// Most buffers that one `pwritev` takes (`IOV_MAX` of Linux).
const IOV_MAX: usize = 1024;

/// An open regular file.
pub(super) struct OsFile {
    fd: OwnedFd,
    quirks: Quirks,
    /// A second descriptor of the file, for reads: see [`File::read_from_store`].
    direct: OnceLock<OwnedFd>,
}

impl OsFile {
    pub(super) fn new(fd: OwnedFd, quirks: Quirks) -> OsFile {
        OsFile { fd, quirks, direct: OnceLock::new() }
    }

    /// Opens the same file again, through `/proc` because it may have lost its name. A duplicate of
    /// the descriptor would share its locks and flags.
    fn open_again(&self, flags: OFlags, needed: fs::RawMode) -> io::Result<OwnedFd> {
        let path = sys::proc_path(self.fd.as_fd());
        let open = || fs::open(&*path, flags | OFlags::CLOEXEC, Mode::empty());
        self.noted("open", self.attempt(needed, open))
    }

    /// Logs the error of a call if it is `EIO`.
    fn noted<T>(&self, call: &'static str, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            if error.raw_os_error() == Some(libc::EIO) {
                let path = std::fs::read_link(sys::proc_path(self.fd.as_fd())).unwrap_or_default();
                tracing::error!(call, path = %path.display(), "the store: {error}");
            }
        })
    }

    /// Runs `op`. If it fails with `EACCES`, grants the owner the `needed` mode bits and runs it
    /// again: the kernel checks the mode even when a descriptor is used to access extended
    /// attributes.
    fn attempt<T>(
        &self,
        needed: fs::RawMode,
        op: impl Fn() -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        match retry_on_intr(&op) {
            Err(Errno::ACCESS) => {
                let grants = Grants::begin();
                let _file = grants.owner(self.fd.as_fd(), needed)?;
                Ok(retry_on_intr(&op)?)
            }
            other => Ok(other?),
        }
    }
}

impl File for OsFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let fd = self.direct.get().unwrap_or(&self.fd);
        let mut done = 0;
        while done < buf.len() {
            let read =
                retry_on_intr(|| rustix::io::pread(fd, &mut buf[done..], offset + done as u64));
            match self.noted("pread", read.map_err(Into::into))? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let written =
                retry_on_intr(|| rustix::io::pwrite(&self.fd, &buf[done..], offset + done as u64));
            match self.noted("pwrite", written.map_err(Into::into))? {
                0 => return Err(Errno::IO.into()),
                n => done += n,
            }
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        let mut slices: SmallVec<[IoSlice<'_>; 4]> =
            bufs.iter().filter(|buf| !buf.is_empty()).map(|buf| IoSlice::new(buf)).collect();
        let mut left = &mut slices[..];
        let mut offset = offset;
        while !left.is_empty() {
            let written = retry_on_intr(|| {
                rustix::io::pwritev(&self.fd, &left[..left.len().min(IOV_MAX)], offset)
            });
            match self.noted("pwritev", written.map_err(Into::into))? {
                0 => return Err(Errno::IO.into()),
                n => {
                    IoSlice::advance_slices(&mut left, n);
                    offset += n as u64;
                }
            }
        }
        Ok(())
    }

    fn keep_access_time(&self) {
        // The kernel lets only some of the flags change and ignores the others, including the
        // access mode.
        let _ = fs::fcntl_getfl(&self.fd)
            .and_then(|flags| fs::fcntl_setfl(&self.fd, flags | OFlags::NOATIME));
    }

    fn read_from_store(&self) -> io::Result<()> {
        if self.quirks.keeps_pages && self.direct.get().is_none() {
            let fd = self.open_again(OFlags::RDONLY | OFlags::DIRECT, 0o400)?;
            let _ = self.direct.set(fd); // another thread may have been faster
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let set = retry_on_intr(|| fs::ftruncate(&self.fd, len));
        self.noted("ftruncate", set.map_err(Into::into))
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        let flags = match how {
            Allocate::KeepSize => FallocateFlags::KEEP_SIZE,
            Allocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        };
        let allocated = retry_on_intr(|| fs::fallocate(&self.fd, flags, offset, len));
        self.noted("fallocate", allocated.map_err(Into::into))
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        let from = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        Ok(fs::seek(&self.fd, from)?)
    }

    fn begin_flush(&self, offset: u64, len: u64) {
        // The flush itself reports an error of the disk.
        let _ = sys::begin_flush(self.fd.as_fd(), offset, len);
    }

    fn sync_data(&self) -> io::Result<()> {
        let flushed = self.quirks.flush(self.fd.as_fd(), || fs::fdatasync(&self.fd));
        self.noted("fdatasync", flushed.map_err(Into::into))
    }

    fn sync_all(&self) -> io::Result<()> {
        let flushed = self.quirks.flush(self.fd.as_fd(), || fs::fsync(&self.fd));
        self.noted("fsync", flushed.map_err(Into::into))
    }

    fn stat(&self) -> io::Result<Stat> {
        let _steady = grant::steady();
        Ok(self.quirks.stat(attr::stat_fd(self.fd.as_fd())?))
    }

    fn stat_but_times(&self) -> io::Result<Stat> {
        let _steady = grant::steady();
        Ok(self.quirks.stat(attr::stat_fd_but_times(self.fd.as_fd())?))
    }

    fn chmod(&self, perm: u32) -> io::Result<()> {
        let _steady = grant::steady();
        Ok(fs::fchmod(&self.fd, Mode::from_raw_mode(perm & 0o7777))?)
    }

    fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let (uid, gid) = attr::owner(uid, gid)?;
        let _steady = grant::steady();
        Ok(fs::fchown(&self.fd, uid, gid)?)
    }

    fn set_times(&self, atime: SetTime, mtime: SetTime) -> io::Result<()> {
        Ok(fs::futimens(&self.fd, &attr::timestamps(atime, mtime)?)?)
    }

    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.attempt(0o400, || sys::get_xattr_fd(self.fd.as_fd(), key))
    }

    fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.attempt(0o200, || sys::set_xattr_fd(self.fd.as_fd(), key, value))
    }

    fn remove_xattr(&self, key: &[u8]) -> io::Result<bool> {
        self.attempt(0o200, || sys::remove_xattr_fd(self.fd.as_fd(), key))
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        locks::try_lock(self.fd.as_fd(), lock)
    }

    fn reopen(&self, access: Access) -> io::Result<Arc<dyn File>> {
        let (access, needed) = match access {
            Access::Read => (OFlags::RDONLY, 0o400),
            Access::ReadWrite => (OFlags::RDWR, 0o600),
        };
        Ok(Arc::new(OsFile::new(self.open_again(access, needed)?, self.quirks)))
    }

    fn try_lock_span(&self, lock: Option<Lock>, span: Span) -> io::Result<bool> {
        self.noted("F_OFD_SETLK", locks::try_lock_span(self.fd.as_fd(), lock, span))
    }

    fn find_lock(&self, lock: Lock, span: Span) -> io::Result<Option<(Lock, Span)>> {
        self.noted("F_OFD_GETLK", locks::find(self.fd.as_fd(), lock, span))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
