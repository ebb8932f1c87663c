//! Mounting: as root by mount(2), as an ordinary user through `fusermount3`.
//!
//! Rules that hold here
//! * The caller has resolved the mount point. It is opened through no symbolic link, and the opened
//!   directory is checked. Root mounts on that directory, because the path may lead elsewhere by
//!   now; `fusermount3` gets the path. Errors contain the path, and the mount table is searched for
//!   it.
//! * A mounted filesystem blocks every program that accesses it until it is served. Between
//!   [`mount()`] and [`serve`](crate::fuse::transport::serve::serve) nothing here accesses it, and a
//!   caller that fails in between unmounts it.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::abort;
use super::error::MountError;
use super::mounts::{self, DeviceId};
use super::options::MountOptions;
use super::place;
use super::unmount::{self, unmount};

/// A filesystem that this process has mounted. Dropping the value unmounts nothing.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// The mount point, without symbolic links.
    pub mountpoint: PathBuf,
    /// The number of the filesystem.
    pub device: DeviceId,
    /// The kernel's file that aborts the connection, if this process may open it. Opened while the
    /// mount is there: afterwards another one may have the number.
    abort: Option<Arc<File>>,
}

impl Mounted {
    /// Returns the handle of a filesystem that is mounted now.
    pub fn new(mountpoint: PathBuf, device: DeviceId) -> Mounted {
        Mounted { mountpoint, device, abort: abort::open(device).ok().map(Arc::new) }
    }

    /// Unmounts it, and nothing else that may be mounted there by now.
    ///
    /// # Errors
    /// Those of [`unmount()`].
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        unmount(&self.mountpoint, Some(self.device), lazy)
    }

    /// Takes the filesystem away from the programs that use it: it disappears from the tree, and
    /// their calls fail. Returns whether the kernel has ended the connection; otherwise it ends with
    /// this process. What the kernel has cached and not handed over is lost.
    ///
    /// # Errors
    /// Those of [`unmount()`], except [`MountError::NotMounted`] and [`MountError::NotOurs`].
    pub fn take_away(&self) -> Result<bool, MountError> {
        let is_ended = match unmount::force(&self.mountpoint, self.device) {
            Ok(()) => rustix::process::geteuid().is_root(),
            // It was detached before, and programs still use it.
            Err(MountError::NotMounted { .. } | MountError::NotOurs { .. }) => false,
            Err(error) => return Err(error),
        };
        // Once the connection has ended, this does nothing.
        let is_aborted = self.abort.as_ref().is_some_and(|file| (&**file).write_all(b"1").is_ok());
        Ok(is_aborted || is_ended)
    }

    /// Returns whether a descriptor is of an object in the filesystem.
    pub(super) fn is(&self, fd: &OwnedFd) -> io::Result<bool> {
        let device = rustix::fs::fstat(fd)?.st_dev;
        Ok(self.device
            == DeviceId { major: rustix::fs::major(device), minor: rustix::fs::minor(device) })
    }

    /// Lets the kernel read this many KiB ahead. Without this call it is 128, whatever was
    /// negotiated. Only root can set it, and only once the filesystem is served.
    pub fn set_readahead(&self, kib: u32) -> io::Result<()> {
        let DeviceId { major, minor } = self.device;
        fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), kib.to_string())
    }
}

/// Mounts on `mountpoint`, an absolute path without symbolic links, and returns the descriptor to
/// serve it on.
///
/// # Errors
/// All of [`MountError`] except those of unmounting.
pub fn mount(mountpoint: &Path, options: &MountOptions) -> Result<(Mounted, OwnedFd), MountError> {
    let dir = check(mountpoint, options)?;
    let mountpoint = mountpoint.to_owned();
    let fd = if rustix::process::geteuid().is_root() {
        mount_as_root(&mountpoint, &dir, options)?
    } else {
        mount_as_user(&mountpoint, options)?
    };
    let entry = mounts::mount_at(&mountpoint).map_err(|source| MountError::Io {
        op: "read mount table for",
        path: mountpoint.clone(),
        source,
    });
    match entry {
        Ok(Some(entry)) => Ok((Mounted::new(mountpoint, entry.device), fd)),
        Ok(None) => Err(MountError::Mount {
            path: mountpoint,
            source: io::Error::other("another program has unmounted it again"),
        }),
        Err(error) => Err(error),
    }
}

/// Opens the mount point and checks it.
fn check(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |source| MountError::MountPoint { path: mountpoint.to_owned(), source };
    if mounts::mount_at(mountpoint).map_err(failed)?.is_some_and(|entry| entry.is_kithfs()) {
        return Err(MountError::AlreadyMounted(mountpoint.to_owned()));
    }
    // Opening it as a directory would start an automount, which waits for this mount.
    let dir = place::open(mountpoint, OFlags::PATH).map_err(failed)?;
    let path = place::path_of(&dir);
    if !fs::metadata(&path).map_err(failed)?.is_dir() {
        return Err(MountError::NotADirectory(mountpoint.to_owned()));
    }
    if !options.nonempty && fs::read_dir(&path).map_err(failed)?.next().is_some() {
        return Err(MountError::NotEmpty(mountpoint.to_owned()));
    }
    Ok(dir)
}

fn mount_as_root(
    mountpoint: &Path,
    dir: &OwnedFd,
    options: &MountOptions,
) -> Result<OwnedFd, MountError> {
    let failed = |source| MountError::Mount { path: mountpoint.to_owned(), source };
    let device =
        File::options().read(true).write(true).open("/dev/fuse").map_err(MountError::NoDevice)?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mode = rustix::fs::fstat(dir).map_err(|error| failed(error.into()))?.st_mode;
    let data = options.data(device.as_raw_fd(), mode & libc::S_IFMT, uid, gid);
    let data = CString::new(data).expect("numbers and fixed words");
    rustix::mount::mount(
        options.source(),
        place::path_of(dir),
        options.fstype(),
        options.flags(),
        Some(data.as_c_str()),
    )
    .map_err(|error| failed(error.into()))?;
    Ok(device.into())
}

/// Mounts by `fusermount3`, which sends the descriptor over the socket that `_FUSE_COMMFD` names:
/// its standard input.
fn mount_as_user(place: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let failed = |op| move |source| MountError::Io { op, path: place.to_owned(), source };
    let (ours, theirs) = UnixStream::pair().map_err(failed("make a socket for"))?;
    let mut command = Command::new("fusermount3");
    command.arg("-o").arg(options.for_fusermount()).arg("--").arg(place);
    command.env("_FUSE_COMMFD", "0").env("LC_ALL", "C");
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(MountError::fusermount_start)?;
    drop(command); // closes this process's copy of the socket's other end: otherwise a failure would not be seen
    let received = receive_fd(&ours);
    let mut message = String::new();
    if let Some(stderr) = child.stderr.take() {
        // The message is only shown to the user: a broken pipe, or text that is not UTF-8, does not
        // change the outcome.
        let _ = stderr.take(4096).read_to_string(&mut message);
    }
    let status = child.wait().map_err(failed("wait for fusermount3 on"))?;
    match received.map_err(failed("receive the device from fusermount3 for"))? {
        Some(fd) if status.success() => Ok(fd),
        _ if !Path::new("/dev/fuse").exists() => {
            Err(MountError::NoDevice(io::Error::from_raw_os_error(libc::ENOENT)))
        }
        _ => Err(MountError::Fusermount {
            path: place.to_owned(),
            message: message.trim().trim_start_matches("fusermount3: ").to_owned(),
        }),
    }
}

/// Receives one descriptor from the socket; `None` if the other end was closed without sending one.
fn receive_fd(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsuitable_mount_point_is_refused_before_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        let options = MountOptions::default();
        assert!(matches!(mount(&file, &options), Err(MountError::NotADirectory(_))));
        assert!(matches!(mount(dir.path(), &options), Err(MountError::NotEmpty(_))));
        assert!(matches!(
            mount(&dir.path().join("absent"), &options),
            Err(MountError::MountPoint { .. })
        ));
    }

    #[test]
    fn a_socket_that_closes_without_a_descriptor_gives_none() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        assert!(receive_fd(&ours).unwrap().is_none());
    }
}
