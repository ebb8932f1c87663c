//! Lock files, as several daemons use them: constant files of a share, of which only the kernel's
//! locks have a meaning.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::{Access, Dir, File, Lock};
use crate::vault::error::{Fault, Inner, is_no_space};

/// Poll interval.
pub(in crate::vault) const ASKED: Duration = Duration::from_millis(2);

/// Opens a file for an exclusive lock: for writing, as locks on ranges require, and `flock` on NFS;
/// if that is not allowed, for reading, which is enough for `flock` on other stores.
pub(crate) fn open_to_lock(dir: &dyn Dir, name: &[u8]) -> std::io::Result<Arc<dyn File>> {
    match dir.open_file(name, Access::ReadWrite) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS)) => {
            dir.open_file(name, Access::Read)
        }
        other => other,
    }
}

/// The contents of lock files: constant, so that a sync tool has nothing to do, and not empty.
pub(crate) const LOCK_TEXT: &[u8] = b"kithfs lock\n";

/// Opens a lock file of the store for daemons of several users, and makes it if it is missing.
pub(in crate::vault) fn lock_file(root: &dyn Dir, name: &[u8], how: Lock) -> Inner<Arc<dyn File>> {
    loop {
        match if how == Lock::Exclusive {
            open_to_lock(root, name)
        } else {
            root.open_file(name, Access::Read)
        } {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            other => return Ok(other?),
        }
        let file = match root.create_file(name, lock_perm(root)?) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => continue,
            other => other?,
        };
        match file.write_at(LOCK_TEXT, 0) {
            // A full store is opened all the same; otherwise nothing in it could be deleted.
            Err(e) if !is_no_space(e.raw_os_error().unwrap_or(0)) => return Err(e.into()),
            _ => return Ok(file),
        }
    }
}

/// Returns whether an open file is the one that other processes find under its name.
pub(in crate::vault) fn is_there(root: &dyn Dir, name: &[u8], file: &dyn File) -> Inner<bool> {
    match root.stat(name) {
        Ok(stat) => Ok(stat.ino == file.stat()?.ino),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Returns the mode of such a file: users who can create files beside it can lock it.
fn lock_perm(root: &dyn Dir) -> Inner<u32> {
    let writers = root.stat_self()?.perm & 0o022;
    Ok(0o600 | writers | writers << 1)
}

/// Retries until `deadline`; then fails with `EBUSY`.
pub(in crate::vault) fn insist<T>(
    deadline: Instant,
    mut attempt: impl FnMut() -> Inner<Option<T>>,
) -> Inner<T> {
    loop {
        if let Some(done) = attempt()? {
            return Ok(done);
        }
        if Instant::now() >= deadline {
            return Err(Fault::Os(libc::EBUSY));
        }
        std::thread::sleep(ASKED);
    }
}
