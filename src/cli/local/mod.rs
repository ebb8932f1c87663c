//! Files outside the vault: their descriptors, times, holes and extended attributes.

mod descent;
pub mod fifo;
mod object;
pub mod replace;

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, SeekFrom, Timespec, Timestamps, accessat, futimens, seek};
use rustix::io::Errno;

pub use self::descent::Descent;
pub use self::object::{Id, Names, Object};
use crate::store::{Seek, Timestamp};
use crate::vault::{self, Handle, Vault};

/// Converts a name to the type of system calls.
pub fn os_str(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

/// Returns the directory that contains a path.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns whether a name is valid in a directory of the system. The vault guarantees it; writes
/// outside must not depend on that.
pub fn is_plain_name(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// Returns an error of crate `tempfile` without the random file name, which means nothing to users.
pub fn unnamed(error: io::Error) -> io::Error {
    let errno = match error.kind() {
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::NotADirectory => libc::ENOTDIR,
        io::ErrorKind::ReadOnlyFilesystem => libc::EROFS,
        io::ErrorKind::StorageFull => libc::ENOSPC,
        io::ErrorKind::QuotaExceeded => libc::EDQUOT,
        _ => return error,
    };
    io::Error::from_raw_os_error(errno)
}

/// Checks that this user may create entries in a directory.
///
/// # Errors
/// It does not exist, is not a directory, or is not writable.
pub fn check_writable(dir: &Path) -> io::Result<()> {
    if !dir.metadata()?.is_dir() {
        return Err(Errno::NOTDIR.into());
    }
    // For the effective user, as the calls that follow.
    let access = Access::WRITE_OK | Access::EXEC_OK;
    Ok(accessat(CWD, dir, access, AtFlags::EACCESS)?)
}

/// Does [`check_writable`] for a directory that may be created with its parents.
///
/// # Errors
/// Those of [`check_writable`], about the nearest directory that exists.
pub fn check_can_make(dir: &Path) -> io::Result<()> {
    let absolute = std::path::absolute(dir)?;
    for above in absolute.ancestors() {
        match check_writable(above) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            checked => return checked,
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Returns the modification time.
pub fn mtime(stat: &Metadata) -> Timestamp {
    Timestamp { secs: stat.mtime(), nanos: stat.mtime_nsec() as u32 }
}

/// Returns the access time.
pub fn atime(stat: &Metadata) -> Timestamp {
    Timestamp { secs: stat.atime(), nanos: stat.atime_nsec() as u32 }
}

fn timestamps(atime: Timestamp, mtime: Timestamp) -> Timestamps {
    let spec = |at: Timestamp| Timespec { tv_sec: at.secs, tv_nsec: at.nanos.into() };
    Timestamps { last_access: spec(atime), last_modification: spec(mtime) }
}

/// Sets the times of an open file.
pub fn set_times(file: &File, atime: Timestamp, mtime: Timestamp) -> io::Result<()> {
    Ok(futimens(file, &timestamps(atime, mtime))?)
}

/// The data ranges of a file, in ascending order.
pub struct DataRanges<'a> {
    of: Of<'a>,
    next: u64,
    size: u64,
}

enum Of<'a> {
    Local(&'a File),
    Vault(&'a Vault, Handle),
}

/// Why the next range is not known.
#[derive(Debug)]
pub enum RangeError {
    /// An error of a local file.
    Local(io::Error),
    /// An error of a file in the vault.
    Vault(vault::Error),
}

impl<'a> DataRanges<'a> {
    /// Returns the data ranges of a local file of this size.
    pub fn of_local(file: &'a File, size: u64) -> Self {
        DataRanges { of: Of::Local(file), next: 0, size }
    }

    /// Returns the data ranges of an open file of a vault.
    pub fn of_vault(vault: &'a Vault, handle: Handle, size: u64) -> Self {
        DataRanges { of: Of::Vault(vault, handle), next: 0, size }
    }

    /// Returns the start and end of the next range.
    pub fn next_range(&mut self) -> Result<Option<(u64, u64)>, RangeError> {
        if self.next >= self.size {
            return Ok(None);
        }
        let Some(start) = self.seek(Seek::Data, self.next)? else { return Ok(None) };
        // A file that has grown since is copied up to its earlier size.
        if start >= self.size {
            return Ok(None);
        }
        let end = self.seek(Seek::Hole, start)?.unwrap_or(self.size).min(self.size);
        // If a hole was made since, the rest is read as data.
        let end = if end > start { end } else { self.size };
        self.next = end;
        Ok(Some((start, end)))
    }

    /// Returns the next data byte at or after `offset`; `None` if only a hole follows.
    ///
    /// # Errors
    /// Those of the file.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>, RangeError> {
        self.seek(Seek::Data, offset)
    }

    /// Returns where data or a hole is next, at or after `offset`; `None` if nowhere.
    fn seek(&self, what: Seek, offset: u64) -> Result<Option<u64>, RangeError> {
        match self.of {
            Of::Local(file) => {
                let from = match what {
                    Seek::Data => SeekFrom::Data(offset),
                    Seek::Hole => SeekFrom::Hole(offset),
                };
                match seek(file, from) {
                    Ok(found) => Ok(Some(found)),
                    Err(Errno::NXIO) => Ok(None),
                    // A filesystem without holes: everything is data.
                    Err(Errno::INVAL) => {
                        Ok(Some(if what == Seek::Data { offset } else { self.size }))
                    }
                    Err(error) => Err(RangeError::Local(error.into())),
                }
            }
            Of::Vault(vault, handle) => match vault.seek_data_hole(handle, offset, what) {
                Ok(found) => Ok(Some(found)),
                Err(error) if error.errno() == libc::ENXIO => Ok(None),
                Err(error) => Err(RangeError::Vault(error)),
            },
        }
    }
}

/// Returns whether failing to set an attribute can be ignored. Attributes outside the user's own
/// namespace belong to the system that the file came from, or need a privilege; a target that does
/// not accept them does without (as with `cp -a`).
pub fn may_be_left_out(name: &[u8], errno: i32) -> bool {
    !name.starts_with(b"user.")
        && matches!(errno, libc::EOPNOTSUPP | libc::EPERM | libc::EACCES | libc::EINVAL)
}

/// Calls with growing buffers until the result fits: the kernel allows 64 KiB.
fn sized(
    mut call: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; 1 << 10];
    loop {
        match call(&mut buffer[..]) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 16 => buffer.resize(1 << 16, 0),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn holes_are_passed_over() {
        let file = tempfile::tempfile().unwrap();
        let size = 64 << 20;
        file.set_len(size).unwrap();
        file.write_all_at(&[1; 4096], 32 << 20).unwrap();
        let mut ranges = DataRanges::of_local(&file, size);
        let mut all = Vec::new();
        while let Some(range) = ranges.next_range().unwrap() {
            all.push(range);
        }
        assert!(
            all.iter().any(|&(start, end)| start <= 32 << 20 && end >= (32 << 20) + 4096),
            "{all:?}"
        );
        assert!(all.iter().all(|&(start, end)| start < end && end <= size));
    }

    #[test]
    fn an_empty_file_and_one_of_holes_have_no_data() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(DataRanges::of_local(&file, 0).next_range().unwrap(), None);
    }

    #[test]
    fn only_attributes_of_the_system_may_be_left_out() {
        assert!(may_be_left_out(b"security.selinux", libc::EOPNOTSUPP));
        assert!(!may_be_left_out(b"user.x", libc::EOPNOTSUPP));
        assert!(!may_be_left_out(b"security.selinux", libc::ENOSPC));
    }
    #[test]
    fn names_that_lead_elsewhere_are_not_plain() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
            assert!(!is_plain_name(name));
        }
        assert!(is_plain_name(b"..a") && is_plain_name(b"\xff\n"));
    }
}
