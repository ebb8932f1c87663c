//! Unmounting: only what is ours.
//!
//! Rules that hold here
//! * Nothing is unmounted before the mount table shows that the topmost mount at that very place is
//!   a kithfs and, if the caller knows its device number, the one with that number.

use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;

use super::error::MountError;
use super::mounts::{DeviceId, holders, mount_at, resolve};

/// How long unmounting is retried if no process is found that keeps the mount busy, and the pause
/// between two attempts.
const RETRIES_TAKE: Duration = Duration::from_secs(2);
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Unmounts the kithfs at `mountpoint`: as root by umount2(2), else through `fusermount3 -u`.
///
/// `expected` is the device number, if the caller knows it. A lazy unmount removes the filesystem
/// from the tree at once; the filesystem ends when no process uses it any more.
///
/// If the mount is busy but no process is found that uses it, unmounting is retried for two seconds.
///
/// # Errors
/// [`MountError::NotMounted`], [`MountError::NotOurs`], [`MountError::Busy`] with the processes
/// that keep it busy, and the errors of the system calls and of `fusermount3`.
pub fn unmount(
    mountpoint: &Path,
    expected: Option<DeviceId>,
    lazy: bool,
) -> Result<(), MountError> {
    let since = Instant::now();
    loop {
        let how = if lazy { How::Lazy } else { How::Polite };
        match unmount_once(mountpoint, expected, how) {
            // A process that is about to end, or to close a file, will be gone in a moment.
            Err(MountError::Busy { holders, .. })
                if holders.is_empty() && since.elapsed() < RETRIES_TAKE =>
            {
                thread::sleep(RETRY_PAUSE);
            }
            result => return result,
        }
    }
}

/// Takes the filesystem `device` out of the tree at once. If this process is root, the filesystem
/// also ends, and the calls of processes that use it fail.
///
/// # Errors
/// Those of [`unmount`] except [`MountError::Busy`].
pub fn force(mountpoint: &Path, device: DeviceId) -> Result<(), MountError> {
    unmount_once(mountpoint, Some(device), How::Force)
}

/// How a mount is taken out of the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Fails if a process uses it.
    Polite,
    /// At once, even if processes use it.
    Lazy,
    /// At once, and ends the filesystem.
    Force,
}

impl How {
    fn flags(self) -> UnmountFlags {
        match self {
            How::Polite => UnmountFlags::empty(),
            How::Lazy => UnmountFlags::DETACH,
            How::Force => UnmountFlags::DETACH | UnmountFlags::FORCE,
        }
    }
}

fn unmount_once(mountpoint: &Path, expected: Option<DeviceId>, how: How) -> Result<(), MountError> {
    let failed = |op| move |source| MountError::Io { op, path: mountpoint.to_owned(), source };
    let place = match resolve(mountpoint) {
        // A mount point that was created for the mount is removed with it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(MountError::NotMounted { path: mountpoint.to_owned() });
        }
        place => place.map_err(failed("find mount point"))?,
    };
    let found = mount_at(&place).map_err(failed("read mount table"))?;
    let entry = found.ok_or_else(|| MountError::NotMounted { path: place.clone() })?;
    if !entry.is_kithfs() || expected.is_some_and(|expected| expected != entry.device) {
        return Err(MountError::NotOurs { path: place, fstype: entry.fstype });
    }
    let result = if rustix::process::geteuid().is_root() {
        match super::place::unmount(&place, how.flags()) {
            Ok(()) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                Err(MountError::Busy { path: place.clone(), holders: holders(entry.device) })
            }
            Err(source) => Err(MountError::Io { op: "unmount", path: place.clone(), source }),
        }
    } else {
        unmount_as_user(&place, entry.device, how != How::Polite)
    };
    let is_there =
        || mount_at(&place).map_or(true, |now| now.is_some_and(|now| now.device == entry.device));
    match result {
        // Another program has unmounted it since the mount table was read.
        Err(_) if !is_there() => Err(MountError::NotMounted { path: place }),
        result => result,
    }
}

fn unmount_as_user(place: &Path, device: DeviceId, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new("fusermount3");
    command.env("LC_ALL", "C").arg("-u").args(lazy.then_some("-z")).arg("--").arg(place);
    let output = command.output().map_err(MountError::fusermount_start)?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr)
        .trim()
        .trim_start_matches("fusermount3: ")
        .to_owned();
    if message.contains("busy") {
        return Err(MountError::Busy { path: place.to_owned(), holders: holders(device) });
    }
    Err(MountError::Fusermount { path: place.to_owned(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// fuser 0.18 checks only whether *something* is mounted. The check is inverted, so it unmounts
    /// other filesystems.
    #[test]
    fn what_is_not_ours_is_not_unmounted() {
        assert!(matches!(unmount(Path::new("/proc"), None, true), Err(MountError::NotOurs { .. })));
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(unmount(dir.path(), None, true), Err(MountError::NotMounted { .. })));
    }
}
