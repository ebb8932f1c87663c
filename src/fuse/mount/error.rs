//! Why mounting and unmounting fail.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use super::mounts::Holder;

/// Why mounting or unmounting failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The FUSE device cannot be opened.
    #[error("open /dev/fuse: {0}")]
    NoDevice(io::Error),
    /// An ordinary user needs the helper of the package fuse3.
    #[error("fusermount3 is not installed")]
    NoFusermount,
    /// The mount point cannot be used.
    #[error("mount point {}: {source}", path.display())]
    MountPoint {
        /// The path that was given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The mount point is a file.
    #[error("mount point {} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// The mount point has entries that the mount would hide.
    #[error("mount point {} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// A kithfs is mounted there already.
    #[error("a kithfs is already mounted on {}", .0.display())]
    AlreadyMounted(PathBuf),
    /// mount(2) failed. Only root calls it; other users mount through the helper.
    #[error("mount on {}: {source}", path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The helper refused.
    #[error("fusermount3 on {}: {message}", path.display())]
    Fusermount {
        /// The mount point.
        path: PathBuf,
        /// Its message.
        message: String,
    },
    /// Nothing is mounted there.
    #[error("nothing is mounted on {}", path.display())]
    NotMounted {
        /// The place.
        path: PathBuf,
    },
    /// Something else is mounted there.
    #[error("what is mounted on {} is not the expected kithfs but of type {}", path.display(), fstype.display())]
    NotOurs {
        /// The place.
        path: PathBuf,
        /// What is there.
        fstype: OsString,
    },
    /// Processes use it.
    #[error("{} is busy", path.display())]
    Busy {
        /// The mount point.
        path: PathBuf,
        /// Those processes; empty if they cannot be seen.
        holders: Vec<Holder>,
    },
    /// A call failed.
    #[error("{op} {}: {source}", path.display())]
    Io {
        /// The operation.
        op: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl MountError {
    /// `fusermount3` could not be started.
    pub(super) fn fusermount_start(source: io::Error) -> MountError {
        match source.kind() {
            io::ErrorKind::NotFound => MountError::NoFusermount,
            _ => MountError::Io { op: "run", path: "fusermount3".into(), source },
        }
    }
}
