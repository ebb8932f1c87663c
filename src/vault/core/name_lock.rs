//! The lock on the names of a share, and lock files as several daemons use them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::store::{Access, Dir, File, Lock};
use crate::vault::error::{Fault, Inner, is_no_space};

/// The lock file for all names of a share.
pub(crate) const NAMES_FILE: &[u8] = b"+names";

/// How long a change of a name waits for another daemon's change.
const NAMES_TAKE: Duration = Duration::from_secs(10);

/// Poll interval.
pub(in crate::vault) const ASKED: Duration = Duration::from_millis(2);

/// Opens a file for an exclusive lock: for writing, because NFS requires that; if it is not
/// allowed, for reading, which is enough for other stores.
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
pub(super) fn lock_file(root: &dyn Dir, name: &[u8], how: Lock) -> Inner<Arc<dyn File>> {
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
pub(super) fn is_there(root: &dyn Dir, name: &[u8], file: &dyn File) -> Inner<bool> {
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

/// The lock on all names of a share; local to this process if there are no concurrent openers.
pub(crate) struct NameLock {
    local: RwLock<()>,
    root: Option<Arc<dyn Dir>>,
    /// This process holds it for writing, so no further lock is needed.
    alone: AtomicBool,
}

/// Permits adding or removing a name.
pub(crate) struct NameReadGuard<'a> {
    _file: Option<Arc<dyn File>>,
    _local: RwLockReadGuard<'a, ()>,
}

/// Guarantees that no name changes except by its holder.
pub(crate) struct NameWriteGuard<'a> {
    names: &'a NameLock,
    file: Option<Arc<dyn File>>,
    _local: RwLockWriteGuard<'a, ()>,
}

impl Drop for NameWriteGuard<'_> {
    fn drop(&mut self) {
        self.names.alone.store(false, Ordering::Release);
    }
}

impl NameWriteGuard<'_> {
    /// Lets this process look at names again, and keeps changes by other daemons out while the
    /// result lives.
    pub fn keep_others_out(mut self) -> Option<Arc<dyn File>> {
        self.file.take()
    }
}

impl NameLock {
    /// Returns the lock for the share in `root`, if several daemons may have it open.
    pub fn new(root: Option<Arc<dyn Dir>>) -> Self {
        NameLock { local: RwLock::new(()), root, alone: AtomicBool::new(false) }
    }

    fn lock(&self, how: Lock) -> Inner<Option<Arc<dyn File>>> {
        let Some(root) = &self.root else { return Ok(None) };
        let file = lock_file(&**root, NAMES_FILE, how)?;
        insist(Instant::now() + NAMES_TAKE, || Ok(file.try_lock(how)?.then_some(())))?;
        Ok(Some(file))
    }

    /// Locks for a lookup; within this process only, because every intermediate state of a change
    /// is readable.
    pub fn look(&self) -> RwLockReadGuard<'_, ()> {
        self.local.read()
    }

    /// Locks for adding or removing a name.
    pub fn read(&self) -> Inner<NameReadGuard<'_>> {
        let local = self.local.read();
        Ok(NameReadGuard { _file: self.lock(Lock::Shared)?, _local: local })
    }

    /// Locks exclusively: no name changes meanwhile.
    pub fn write(&self) -> Inner<NameWriteGuard<'_>> {
        let local = self.local.write();
        let file = self.lock(Lock::Exclusive)?;
        self.alone.store(true, Ordering::Release);
        Ok(NameWriteGuard { names: self, file, _local: local })
    }

    /// Keeps other daemons from changing paths; within this process
    /// [`Namespace::paths`](super::Namespace::paths) does.
    pub fn pin(&self) -> Inner<Option<Arc<dyn File>>> {
        if self.alone.load(Ordering::Acquire) { Ok(None) } else { self.lock(Lock::Shared) }
    }
}
