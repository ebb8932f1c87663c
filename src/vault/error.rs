//! What can go wrong in a vault, with operation and path.
//!
//! Inside the room a [`Fault`] travels: it is small and costs nothing on the paths that fail all
//! the time (a lookup that finds nothing). The public methods turn it into an [`Error`], which
//! names the operation and the stored path.

use std::io;
use std::path::PathBuf;

use crate::format::FormatError;
use crate::roster::{PublicIdentity, RosterError};

/// Who holds a vault's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Host name of its machine.
    pub host: String,
    /// Process id on that machine.
    pub pid: u32,
    /// When it took the lock, seconds since 1970.
    pub since_unix: i64,
}

/// Result of a vault operation.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed operation on a vault.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call on the ciphertext store failed.
    #[error("{op} {path}: {source}", path = path.display())]
    Io {
        /// Operation.
        op: &'static str,
        /// Stored path within the vault, or the vault.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Ciphertext that cannot be authenticated.
    #[error("{op} {path}: {what}", path = path.display())]
    Corrupt {
        /// Operation.
        op: &'static str,
        /// Stored path within the vault.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The directory holds no vault.
    #[error("open {path}: not a vault", path = path.display())]
    NotAVault {
        /// The directory.
        path: PathBuf,
    },
    /// The vault was made by a newer version of the format.
    #[error("open {path}: format version {found} is newer than {known}, which this program knows", path = path.display())]
    NewerVersion {
        /// The control file.
        path: PathBuf,
        /// Its version.
        found: u16,
        /// The newest one that is known.
        known: u16,
    },
    /// The identity has no slot in the vault.
    #[error("open {path}: this identity is not a member", path = path.display())]
    NoAccess {
        /// The vault.
        path: PathBuf,
    },
    /// Nothing vouches for the share: it may have been planted.
    #[error("open {path}: nothing vouches for this share", path = path.display())]
    Untrusted {
        /// The share's directory.
        path: PathBuf,
        /// Its id.
        share: [u8; 32],
        /// Who it says has made it.
        founder: PublicIdentity,
    },
    /// The membership cannot be looked at or changed so.
    #[error("{op}: {source}")]
    Members {
        /// Operation.
        op: &'static str,
        /// Why.
        source: RosterError,
    },
    /// Members were removed from a share, and not from all shares within it: the same call once
    /// more goes on with those.
    #[error("remove members: they are still in shares within: {}", left.iter().map(|(path, why)| format!("{} ({why})", path.display())).collect::<Vec<_>>().join(", "))]
    LeftWithin {
        /// Stored path of each, and why.
        left: Vec<(PathBuf, String)>,
    },
    /// Another process has the vault open.
    #[error("open {path}: in use by process {} on {}", holder.pid, holder.host, path = path.display())]
    InUse {
        /// The vault.
        path: PathBuf,
        /// Who.
        holder: LockHolder,
    },
    /// A change was asked of a vault that is open for reading only.
    #[error("{op}: the vault is open for reading only")]
    ReadOnly {
        /// Operation.
        op: &'static str,
    },
    /// An operation that POSIX says must fail, by its errno.
    #[error("{op}: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// Operation.
        op: &'static str,
        /// errno.
        errno: i32,
    },
    /// The share's roster, slots or identity are not in order.
    #[error("open {path}: {source}", path = path.display())]
    Share {
        /// The control file.
        path: PathBuf,
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// The errno that a program is to see.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Error::Corrupt { .. } | Error::Share { .. } | Error::LeftWithin { .. } => libc::EIO,
            Error::NotAVault { .. } | Error::NewerVersion { .. } => libc::EINVAL,
            Error::NoAccess { .. } | Error::Untrusted { .. } => libc::EACCES,
            Error::Members { .. } => libc::EPERM,
            Error::InUse { .. } => libc::EBUSY,
            Error::ReadOnly { .. } => libc::EROFS,
            Error::Os { errno, .. } => *errno,
        }
    }
}

/// A failure before it knows its operation and path.
#[derive(Debug)]
pub(crate) enum Fault {
    /// From the store.
    Io(io::Error),
    /// Not authentic, or not of the format.
    Format(FormatError),
    /// Cannot be authenticated for a reason that no parser sees.
    Corrupt(&'static str),
    /// By errno.
    Os(i32),
    /// A nested share stands here: whoever may enter it has to do that first.
    Boundary,
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Self {
        Fault::Io(e)
    }
}

impl From<FormatError> for Fault {
    fn from(e: FormatError) -> Self {
        Fault::Format(e)
    }
}

impl Fault {
    /// The errno behind it.
    pub fn errno(&self) -> i32 {
        match self {
            Fault::Io(e) => e.raw_os_error().unwrap_or(libc::EIO),
            Fault::Format(_) | Fault::Corrupt(_) => libc::EIO,
            Fault::Os(errno) => *errno,
            Fault::Boundary => libc::EACCES,
        }
    }

    /// With operation and path. What cannot be authenticated is worth a line in the log, by its
    /// stored path.
    pub fn at(self, op: &'static str, path: impl FnOnce() -> PathBuf) -> Error {
        match self {
            Fault::Io(source) => Error::Io { op, path: path(), source },
            Fault::Os(errno) => Error::Os { op, errno },
            Fault::Boundary => Error::Os { op, errno: libc::EACCES },
            Fault::Format(_) | Fault::Corrupt(_) => {
                let what = match self {
                    Fault::Format(e) => e.to_string(),
                    Fault::Corrupt(what) => what.to_string(),
                    _ => unreachable!("matched above"),
                };
                let path = path();
                tracing::error!(op, path = %path.display(), "{what}");
                Error::Corrupt { op, path, what }
            }
        }
    }
}

/// Whether an errno says that the store has no room: it is full, a quota is used up, or the daemon
/// may make no file as long. What was not written may be tried again.
pub(crate) fn is_no_space(errno: i32) -> bool {
    matches!(errno, libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
}

/// Whether an errno says that as many files are open as may be: nothing was done, and it passes.
pub(crate) fn is_no_descriptor(errno: i32) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE)
}

/// Result inside the room.
pub(crate) type Inner<T> = std::result::Result<T, Fault>;
