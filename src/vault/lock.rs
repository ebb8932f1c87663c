//! Who has a vault open: the control file `+lock`, locked as long as its owner lives, saying who that is.
//!
//! The lock is the kernel's (`flock`), so that a crash frees it. The text in the file is only for people: host, process, since when.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::{Inner, LockHolder, is_no_space};
use crate::backing::{Access, Dir, File, Lock};

/// Name of the lock file.
pub(crate) const LOCK_FILE: &[u8] = b"+lock";

/// A held lock.
pub(crate) struct VaultLock {
    root: Arc<dyn Dir>,
    _file: Arc<dyn File>,
}

/// Outcome of an attempt.
pub(crate) enum Attempt {
    /// Held now.
    Held(VaultLock),
    /// Somebody else holds it.
    Taken(LockHolder),
}

/// Takes the lock for this process.
pub(crate) fn take(root: &Arc<dyn Dir>) -> Inner<Attempt> {
    loop {
        let file = match root.open_file(LOCK_FILE, Access::ReadWrite) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => match root.create_file(LOCK_FILE, 0o600) {
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) => continue,
                other => other?,
            },
            other => other?,
        };
        if !file.try_lock(Lock::Exclusive)? {
            return Ok(Attempt::Taken(read_holder(&*file)?));
        }
        // The file may have been removed by its last owner between the open and the lock: then this is a lock on nothing.
        let same = match root.stat(LOCK_FILE) {
            Ok(stat) => stat.ino == file.stat()?.ino,
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => false,
            Err(e) => return Err(e.into()),
        };
        if !same {
            continue;
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let text = format!("{}\n{}\n{since}\n", host(), std::process::id());
        file.set_len(0)?;
        match file.write_at(text.as_bytes(), 0) {
            // A full store is opened all the same, or nobody could delete anything in it. The lock is the kernel's; only its text is missing.
            Err(e) if is_no_space(e.raw_os_error().unwrap_or(0)) => {}
            other => other?,
        }
        return Ok(Attempt::Held(VaultLock { root: root.clone(), _file: file }));
    }
}

/// Who holds the lock now, if anybody does.
pub(crate) fn holder(root: &Arc<dyn Dir>) -> Inner<Option<LockHolder>> {
    let file = match root.open_file(LOCK_FILE, Access::Read) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        other => other?,
    };
    if file.try_lock(Lock::Shared)? { Ok(None) } else { Ok(Some(read_holder(&*file)?)) }
}

/// Name of this machine, for people and for the names of journals: letters, digits, `-` and `_` only.
pub(crate) fn host() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut clean: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-' || *c == '_').take(32).collect();
    if clean.is_empty() {
        clean.push_str("host");
    }
    clean
}

fn read_holder(file: &dyn File) -> Inner<LockHolder> {
    let mut bytes = [0; 256];
    let read = file.read_at(&mut bytes, 0)?;
    let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
    let mut lines = text.lines();
    let mut next = || lines.next().unwrap_or("").to_string();
    Ok(LockHolder { host: next(), pid: next().parse().unwrap_or(0), since_unix: next().parse().unwrap_or(0) })
}

impl Drop for VaultLock {
    fn drop(&mut self) {
        // Removed while it is still locked, so that nobody else's is.
        let _ = self.root.unlink(LOCK_FILE);
    }
}
