//! The directory that a vault is mounted on.
//!
//! Rules that hold here
//! * What programs write to a mount point while nothing is mounted is plaintext outside the vault.
//!   A missing mount point is therefore created for the mount and removed after it, and an existing
//!   one can be guarded.
//! * A guarded mount point refuses new files while nothing is mounted: for root by the immutable
//!   flag (`chattr +i`), for others by mode 0000, which only its owner can change. The guard is
//!   closed while the vault is mounted, so that it also holds after the daemon was killed.
//! * Checks need no secret and leave nothing behind.
//! * Between the checks and the mount, a user may type a passphrase, and another mount may begin or
//!   end there. [`MountPoint::prepare`] checks again for a mount, and for a mount point that came
//!   or went.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags};

use crate::cli::daemon::registry::Registry;
use crate::cli::error::Error;
use crate::cli::local;
use crate::fuse::{mounts, place};

/// A mount point that was checked.
#[derive(Debug)]
pub struct MountPoint {
    path: PathBuf,
    /// Whether it has to be created.
    is_missing: bool,
    guard: Option<Guard>,
}

/// A mount point that exists and can be mounted on. Dropped when nothing is mounted any more: then
/// it is removed if it was created for this mount, and its guard is closed.
pub struct Ready {
    /// Without symlinks.
    pub path: PathBuf,
    was_made: bool,
    guarded: Option<(Guard, OwnedFd)>,
}

/// How a mount point refuses new files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// By the immutable flag, which only root can set.
    Flag,
    /// By mode 0000.
    Mode,
}

/// Mode of a mount point that was created for a mount, and of one guarded by its mode until it is
/// mounted on.
const OPEN: u32 = 0o700;

impl MountPoint {
    /// Resolves the mount point, and checks that it is usable for this vault. `guard` asks for a
    /// guard; one that is there is kept.
    ///
    /// # Errors
    /// The variants of [`Error`] that have `MountPoint` in their name, and [`Error::GuardMissing`].
    pub fn check(
        given: &Path,
        vault: &Path,
        nonempty: bool,
        guard: bool,
    ) -> Result<MountPoint, Error> {
        let failed = |source| Error::MountPoint { path: given.to_owned(), source };
        let place = match mounts::resolve(given) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return missing(given, vault, guard);
            }
            found => found.map_err(failed)?,
        };
        if mounts::mount_at(&place).map_err(failed)?.is_some_and(|entry| entry.is_kithfs()) {
            let is_served = Registry::open()
                .and_then(|registry| registry.serving(&place))
                .is_ok_and(|entry| entry.is_some());
            return Err(if !is_served && mounts::is_dead(&place) {
                Error::MountPointDead(place)
            } else {
                Error::MountPointTaken(place)
            });
        }
        if place.starts_with(vault) {
            return Err(Error::MountPointInVault { vault: vault.to_owned(), mountpoint: place });
        }
        if vault.starts_with(&place) {
            return Err(Error::VaultInMountPoint { vault: vault.to_owned(), mountpoint: place });
        }
        if !fs::metadata(&place).map_err(failed)?.is_dir() {
            return Err(failed(io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        let found = guard_of(&place).map_err(failed)?;
        // Whether a directory with mode 0000 is empty is checked in `prepare`.
        if found != Some(Guard::Mode)
            && !nonempty
            && fs::read_dir(&place).map_err(failed)?.next().is_some()
        {
            return Err(Error::MountPointNotEmpty(place));
        }
        let wanted = if rustix::process::geteuid().is_root() { Guard::Flag } else { Guard::Mode };
        let guard = found.or(guard.then_some(wanted));
        if guard == Some(Guard::Mode) && !is_own(&place).map_err(failed)? {
            return Err(failed(io::Error::from_raw_os_error(libc::EPERM)));
        }
        if guard.is_none() && !rustix::process::geteuid().is_root() {
            // fusermount3 requires it.
            local::check_writable(&place).map_err(failed)?;
        }
        Ok(MountPoint { path: place, is_missing: false, guard })
    }

    /// Creates a missing mount point. A guard by mode is open until [`Ready::close_guard`].
    ///
    /// # Errors
    /// Those of the calls; the directory is not empty; something was mounted on it meanwhile.
    pub fn prepare(self, nonempty: bool) -> Result<Ready, Error> {
        let MountPoint { path, is_missing, guard } = self;
        let failed = |source| Error::MountPoint { path: path.clone(), source };
        if mounts::mount_at(&path).map_err(failed)?.is_some_and(|entry| entry.is_kithfs()) {
            return Err(Error::MountPointTaken(path));
        }
        let Some(guard) = guard else {
            // A mount that has ended meanwhile may have removed a mount point that was there.
            let is_gone = fs::symlink_metadata(&path)
                .is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
            if is_gone {
                place::make(&path, OPEN).map_err(failed)?;
            } else if is_missing
                && !nonempty
                && fs::read_dir(&path).map_err(failed)?.next().is_some()
            {
                return Err(Error::MountPointNotEmpty(path));
            }
            return Ok(Ready { path, was_made: is_gone, guarded: None });
        };
        let flags = match guard {
            Guard::Flag => OFlags::RDONLY,
            // Opens an unreadable directory too.
            Guard::Mode => OFlags::PATH,
        } | OFlags::DIRECTORY;
        let dir = place::open(&path, flags).map_err(failed)?;
        let ready = Ready { path: path.clone(), was_made: false, guarded: Some((guard, dir)) };
        if guard == Guard::Mode {
            ready.set_mode(OPEN).map_err(failed)?;
            if !nonempty && fs::read_dir(&path).map_err(failed)?.next().is_some() {
                return Err(Error::MountPointNotEmpty(path));
            }
        }
        Ok(ready)
    }
}

impl Ready {
    /// Returns its path if it was created for the mount.
    pub fn made(&self) -> Option<PathBuf> {
        self.was_made.then(|| self.path.clone())
    }

    /// Closes the guard: while something is mounted, which the guard does not concern, and on drop.
    ///
    /// # Errors
    /// Those of the calls; the filesystem of the mount point may have no immutable flag.
    pub fn close_guard(&self) -> io::Result<()> {
        match &self.guarded {
            None => Ok(()),
            Some((Guard::Mode, _)) => self.set_mode(0),
            Some((Guard::Flag, dir)) => {
                let flags = ioctl_getflags(dir)?;
                if !flags.contains(IFlags::IMMUTABLE) {
                    ioctl_setflags(dir, flags | IFlags::IMMUTABLE)?;
                }
                Ok(())
            }
        }
    }

    /// Sets the mode of the directory itself, also while something is mounted on it.
    fn set_mode(&self, mode: u32) -> io::Result<()> {
        let Some((_, dir)) = &self.guarded else { return Ok(()) };
        let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
        Ok(rustix::fs::chmod(path, Mode::from_raw_mode(mode))?)
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if self.was_made {
            // Fails if something is mounted there again, or if a program has put a file there.
            let _ = place::remove(&self.path);
        }
        if let Err(error) = self.close_guard() {
            tracing::warn!("the mount point is not guarded: {error}");
        }
    }
}

/// Checks that a missing mount point can be created outside the vault.
fn missing(given: &Path, vault: &Path, guard: bool) -> Result<MountPoint, Error> {
    let failed = |source| Error::MountPoint { path: given.to_owned(), source };
    let absolute = std::path::absolute(given).map_err(failed)?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(failed(io::Error::from_raw_os_error(libc::ENOENT)));
    };
    let parent = parent.canonicalize().map_err(failed)?;
    if parent.starts_with(vault) {
        return Err(Error::MountPointInVault {
            vault: vault.to_owned(),
            mountpoint: given.to_owned(),
        });
    }
    let path = parent.join(name);
    if path.is_symlink() {
        return Err(failed(io::Error::from_raw_os_error(libc::ENOENT)));
    }
    if guard {
        return Err(Error::GuardMissing(given.to_owned()));
    }
    local::check_writable(&parent).map_err(failed)?;
    try_out(&parent).map_err(failed)?;
    Ok(MountPoint { path, is_missing: true, guard: None })
}

/// Creates a directory beside a missing mount point and removes it. Only an attempt shows whether
/// one can be created: root may write to /proc by its mode, and a disk may be full. Its name is not
/// that of the mount point, because another command would find it there.
fn try_out(parent: &Path) -> io::Result<()> {
    let path = parent.join(format!(".kithfs-{}", std::process::id()));
    match DirBuilder::new().mode(OPEN).create(&path) {
        // A process in another namespace may have the same number.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| fs::remove_dir(path)),
    }
}

/// Returns the guard that a directory has, of the kind that this user can set.
fn guard_of(place: &Path) -> io::Result<Option<Guard>> {
    if rustix::process::geteuid().is_root() {
        let dir = fs::File::open(place)?;
        // A filesystem without such flags has no such guard.
        let is_immutable =
            ioctl_getflags(&dir).is_ok_and(|flags| flags.contains(IFlags::IMMUTABLE));
        return Ok(is_immutable.then_some(Guard::Flag));
    }
    let stat = fs::metadata(place)?;
    Ok((stat.mode() & 0o777 == 0 && is_own(place)?).then_some(Guard::Mode))
}

fn is_own(place: &Path) -> io::Result<bool> {
    Ok(fs::metadata(place)?.uid() == rustix::process::geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_that_cannot_be_used_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let vault = root.join("v");
        for sub in ["v/in", "full/x", "empty"] {
            fs::create_dir_all(root.join(sub)).unwrap();
        }
        fs::write(root.join("file"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", root.join("link")).unwrap();
        let check = |place: &str| MountPoint::check(&root.join(place), &vault, false, false);
        let path = |place: &str| check(place).unwrap().path;
        assert_eq!(path("empty"), root.join("empty"));
        assert!(matches!(check("file"), Err(Error::MountPoint { .. })));
        assert!(matches!(check("none/x"), Err(Error::MountPoint { .. })), "no parent");
        assert!(matches!(check("link"), Err(Error::MountPoint { .. })), "a link to nothing");
        assert!(matches!(check("full"), Err(Error::MountPointNotEmpty(_))));
        assert!(MountPoint::check(&root.join("full"), &vault, true, false).is_ok());
        assert!(matches!(check("v/in"), Err(Error::MountPointInVault { .. })));
        assert!(matches!(check("v"), Err(Error::MountPointInVault { .. })));
        // The hint was to create the directory inside the vault.
        assert!(matches!(check("v/none"), Err(Error::MountPointInVault { .. })));
        assert!(matches!(check("empty/.."), Err(Error::VaultInMountPoint { .. })));
        let guarded = MountPoint::check(&root.join("none"), &vault, false, true);
        assert!(matches!(guarded, Err(Error::GuardMissing(_))));
    }

    #[test]
    fn a_missing_mount_point_is_there_only_for_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap().join("new");
        let check = || MountPoint::check(&place, Path::new("/no/vault"), false, false).unwrap();
        drop(check());
        assert!(!place.exists(), "a check leaves nothing behind");
        let ready = check().prepare(false).unwrap();
        assert!(place.is_dir() && ready.path == place);
        drop(ready);
        assert!(!place.exists());
        // What a program has written there meanwhile is kept.
        let ready = check().prepare(false).unwrap();
        fs::write(place.join("letter"), "").unwrap();
        drop(ready);
        assert!(place.join("letter").exists());
    }

    /// An unmount removes the mount point that was created for it. The next mount had found it
    /// there, waited for the daemon, and failed with "No such file" after the passphrase was typed.
    #[test]
    fn a_mount_point_may_come_and_go_after_its_check() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap().join("new");
        let check = || MountPoint::check(&place, Path::new("/no/vault"), false, false).unwrap();
        fs::create_dir(&place).unwrap();
        let found = check();
        fs::remove_dir(&place).unwrap();
        let ready = found.prepare(false).unwrap();
        assert!(place.is_dir());
        drop(ready);
        assert!(!place.exists(), "it was made for the mount");
        // The user has made it meanwhile, and it stays.
        let missing = check();
        fs::create_dir(&place).unwrap();
        drop(missing.prepare(false).unwrap());
        assert!(place.is_dir());
        fs::remove_dir(&place).unwrap();
        let missing = check();
        fs::create_dir(&place).unwrap();
        fs::write(place.join("letter"), "").unwrap();
        assert!(matches!(missing.prepare(false), Err(Error::MountPointNotEmpty(_))));
    }

    /// Two commands opened a vault at once. Each created the mount point for a moment, to see
    /// whether that is possible; one found it there, then found it gone, and failed with "No such
    /// file".
    #[test]
    fn a_check_does_not_create_the_mount_point() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap().join("new");
        let check = || MountPoint::check(&place, Path::new("/no/vault"), false, false).unwrap();
        std::thread::scope(|scope| {
            let checks = scope.spawn(|| (0..1000).for_each(|_| drop(check())));
            while !checks.is_finished() {
                assert!(!place.exists());
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }

    /// The mode of /proc lets root create directories there. That none can be created was noticed
    /// only after the passphrase was typed.
    #[test]
    fn a_mount_point_that_cannot_be_created_is_refused() {
        let check = MountPoint::check(Path::new("/proc/new"), Path::new("/no/vault"), false, false);
        assert!(matches!(check, Err(Error::MountPoint { .. })));
    }
}
