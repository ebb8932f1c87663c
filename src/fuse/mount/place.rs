//! The directory of a mount point, reached through no symbolic link.
//!
//! Rules that hold here
//! * A path was free of links when it was resolved. Since then another user who may write to a
//!   directory on the way may have put a link there. Root would then mount, unmount, create or remove
//!   somewhere else, so each call fails with `ELOOP` instead.
//! * No request is sent to what is mounted at the place itself.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, mkdirat, openat2, unlinkat};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// Opens what is at `place`.
///
/// # Errors
/// Those of `openat2(2)`: `ELOOP` for a symbolic link, also on the way.
pub fn open(place: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    match openat2(CWD, place, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // Kernels before 5.6, and sandboxes. Only the last component is checked then.
        Err(Errno::NOSYS) => Ok(rustix::fs::open(place, flags | OFlags::NOFOLLOW, Mode::empty())?),
        opened => Ok(opened?),
    }
}

/// Returns a path that leads to an open directory, wherever it is by now.
pub fn path_of(dir: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()).into()
}

/// Opens the directory that contains `place`; returns it with the name in it.
fn parent_of(place: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let (Some(parent), Some(name)) = (place.parent(), place.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    Ok((open(parent, OFlags::PATH | OFlags::DIRECTORY)?, name))
}

/// Creates a directory.
///
/// # Errors
/// Those of [`open`] and `mkdirat(2)`.
pub fn make(place: &Path, mode: u32) -> io::Result<()> {
    let (parent, name) = parent_of(place)?;
    Ok(mkdirat(parent, name, Mode::from_raw_mode(mode))?)
}

/// Removes an empty directory on which nothing is mounted.
///
/// # Errors
/// Those of [`open`] and `unlinkat(2)`.
pub fn remove(place: &Path) -> io::Result<()> {
    let (parent, name) = parent_of(place)?;
    Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Unmounts what is mounted at `place`, as root.
///
/// # Errors
/// Those of [`open`] and `umount2(2)`.
pub(super) fn unmount(place: &Path, flags: UnmountFlags) -> io::Result<()> {
    let (parent, name) = parent_of(place)?;
    Ok(rustix::mount::unmount(path_of(&parent).join(name), UnmountFlags::NOFOLLOW | flags)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If root mounted and unmounted by a path, a user who owns a directory on the way could
    /// replace that by a link in the meantime, and so choose another place.
    #[test]
    fn no_call_follows_a_link_on_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("there/point")).unwrap();
        std::os::unix::fs::symlink("there", root.join("link")).unwrap();
        let is_loop = |error: io::Error| error.raw_os_error() == Some(libc::ELOOP);
        for place in ["link", "link/point"] {
            assert!(open(&root.join(place), OFlags::PATH).is_err_and(is_loop), "{place}");
        }
        assert!(make(&root.join("link/new"), 0o700).is_err_and(is_loop));
        assert!(remove(&root.join("link/point")).is_err_and(is_loop));
        assert!(unmount(&root.join("link/point"), UnmountFlags::empty()).is_err_and(is_loop));
        make(&root.join("there/new"), 0o700).unwrap();
        remove(&root.join("there/new")).unwrap();
        let point = open(&root.join("there/point"), OFlags::PATH).unwrap();
        assert!(path_of(&point).is_dir());
    }
}
