//! Errors of the vault, with operation and path.
//!
//! Internally a [`Fault`] is used: it is small, and cheap on paths that fail often (a lookup
//! without a result). The public methods convert it into an [`Error`], which contains the operation
//! and the stored path.

use std::io;
use std::path::PathBuf;

use crate::format::FormatError;
use crate::roster::{PublicIdentity, RosterError};

/// The process that holds a vault's lock. A process that the kernel does not show to this one, such
/// as one of another machine or container, has no host name and the process id 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Host name of this machine; empty if the process is not visible.
    pub host: String,
    /// Process id; 0 if the process is not visible.
    pub pid: u32,
    /// Time when the process began, in seconds since 1970.
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
        /// The system's error.
        source: io::Error,
    },
    /// Ciphertext that cannot be authenticated.
    #[error("{op} {path}: {what}", path = path.display())]
    Corrupt {
        /// Operation.
        op: &'static str,
        /// Stored path within the vault.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// The directory holds no vault.
    #[error("open {path}: not a vault", path = path.display())]
    NotAVault {
        /// The directory.
        path: PathBuf,
    },
    /// The vault was created by a newer version of the format.
    #[error("open {path}: format version {found} is newer than {known}, the newest that this program supports", path = path.display())]
    NewerVersion {
        /// The control file.
        path: PathBuf,
        /// Its version.
        found: u16,
        /// The newest supported one.
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
        /// The founder according to its descriptor.
        founder: PublicIdentity,
    },
    /// The membership cannot be read or changed as requested.
    #[error("{op}: {source}")]
    Members {
        /// Operation.
        op: &'static str,
        /// The reason.
        source: RosterError,
    },
    /// Members were removed from a share, but not from all of its nested shares; repeating the call
    /// continues with those.
    #[error("remove members: they are still in nested shares: {}", left.iter().map(|(path, why)| format!("{} ({why})", path.display())).collect::<Vec<_>>().join(", "))]
    LeftWithin {
        /// Stored path of each, and the reason.
        left: Vec<(PathBuf, String)>,
    },
    /// Another process has the vault open.
    #[error("open {path}: in use by process {} on {}", holder.pid, holder.host, path = path.display())]
    InUse {
        /// The vault.
        path: PathBuf,
        /// The process that has it open.
        holder: LockHolder,
        /// Why the two exclude each other.
        between: Contention,
    },
    /// The vault is to be shared by several daemons, and locks on its store keep others from
    /// reading.
    #[error("open {path}: the store is on SMB, where a lock also keeps others from reading: it cannot be mounted as shared", path = path.display())]
    MandatoryLocks {
        /// The vault.
        path: PathBuf,
    },
    /// An operation that fails by POSIX rules, with its errno.
    #[error("{op}: {}", io::Error::from_raw_os_error(*errno))]
    Os {
        /// Operation.
        op: &'static str,
        /// errno.
        errno: i32,
    },
    /// The share's roster, slots or identity are invalid.
    #[error("open {path}: {source}", path = path.display())]
    Share {
        /// The control file.
        path: PathBuf,
        /// The fault.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Returns the errno for programs.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Error::Corrupt { .. } | Error::Share { .. } | Error::LeftWithin { .. } => libc::EIO,
            Error::NotAVault { .. } | Error::NewerVersion { .. } => libc::EINVAL,
            Error::NoAccess { .. } | Error::Untrusted { .. } => libc::EACCES,
            Error::Members { .. } => libc::EPERM,
            Error::InUse { .. } => libc::EBUSY,
            Error::MandatoryLocks { .. } => libc::EOPNOTSUPP,
            Error::Os { errno, .. } => *errno,
        }
    }
}

/// Why an opener and the process that has the vault open exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contention {
    /// The vault does not have the mark of a shared one, with which both could have it open.
    Unshared,
    /// The opener shares it, and the holder does not: it has opened the vault in another way.
    Holder,
    /// The holder shares it, and the opener does not, for lack of the mark.
    Opener,
    /// The opener has to be alone, whatever the holder does.
    Alone,
}

/// A failure without its operation and path.
#[derive(Debug)]
pub(crate) enum Fault {
    /// An error of the store.
    Io(io::Error),
    /// Not authentic, or not valid in the format.
    Format(FormatError),
    /// Not authentic for a reason beyond parsing.
    Corrupt(Corruption),
    /// An errno.
    Os(i32),
    /// A nested share begins here: the caller has to enter it first, if it may.
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
    /// Returns the errno of the fault.
    pub fn errno(&self) -> i32 {
        match self {
            Fault::Io(e) => e.raw_os_error().unwrap_or(libc::EIO),
            Fault::Format(_) | Fault::Corrupt(_) => libc::EIO,
            Fault::Os(errno) => *errno,
            Fault::Boundary => libc::EACCES,
        }
    }

    /// Adds operation and path. Everything that programs get as `EIO` is also logged, by the stored
    /// path: a failed store, data that cannot be authenticated, and a file that cannot be used
    /// after an earlier failure.
    pub fn at(self, op: &'static str, path: impl FnOnce() -> PathBuf) -> Error {
        let errno = self.errno();
        match self {
            Fault::Io(source) => {
                let path = path();
                if errno == libc::EIO {
                    tracing::error!(op, path = %path.display(), "{source}");
                }
                Error::Io { op, path, source }
            }
            Fault::Os(libc::EIO) => {
                tracing::error!(op, path = %path().display(), "failed before, see the log above");
                Error::Os { op, errno }
            }
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

/// How an error describes a vault with too many journals that match no file. A command line may
/// name the command that helps.
pub const TOO_MANY_JOURNALS: &str =
    "has too many journals (+journal-*) that do not match its files: more than 1024, or 128 MiB";

/// What is wrong with an object that has a valid signature of somebody without the right to write.
pub const NOT_A_WRITER: &str = "is signed by someone who may not write here";

/// A journal that the disk cannot read. It is in the `source` of an [`Error::Io`].
#[derive(Debug, thiserror::Error)]
#[error("the journal {name} cannot be read: {source}")]
pub struct UnreadJournal {
    /// Its stored name.
    pub name: String,
    /// It is at the root of the share, and not in the state directory of this machine.
    pub is_in_store: bool,
    /// The system's error.
    pub source: io::Error,
}

/// Why stored data is not what it should be, beyond what the format of one object shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Corruption {
    /// A header names an epoch that is unknown here, and may become known later.
    #[error("names another key than this share has")]
    UnknownKey,
    /// The control file of a list of attributes is missing.
    #[error("has attributes whose control file is missing")]
    ListMissing,
    /// The control file of a link's target is missing.
    #[error("is a symbolic link whose target is missing: there is no file +link-{}", hex::encode(.0))]
    TargetMissing([u8; 16]),
    /// A reference to a list of attributes is invalid.
    #[error("has a reference to attributes that is of the wrong length")]
    WrongReference,
    /// A control file is larger than any of its kind.
    #[error("has a control file that is too large")]
    ControlTooLarge,
    /// The ciphertext of a file is empty.
    #[error("is empty: it was never committed, or was cut off")]
    NeverCommitted,
    /// The ciphertext of a file has a length and no byte but zeros.
    #[error("holds nothing but zeros: it was never flushed, or was overwritten")]
    Zeros,
    /// Another program has overwritten a file while a commit was made.
    #[error("was overwritten by another program during a commit")]
    Overwritten,
    /// Anything else. No caller decides by it.
    #[error("{0}")]
    Other(&'static str),
}

/// Returns whether an errno means a lack of space: the store is full, a quota is used up, or the
/// file size limit is reached. The write can be retried.
pub(crate) fn is_no_space(errno: i32) -> bool {
    matches!(errno, libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
}

/// Returns whether an errno means that the limit of open files is reached: nothing was done, and a
/// retry can succeed.
pub(crate) fn is_no_descriptor(errno: i32) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE)
}

/// Internal result.
pub(crate) type Inner<T> = std::result::Result<T, Fault>;

#[cfg(test)]
mod tests {
    use super::*;

    /// The log of a daemon once had only the line "an operation failed: input/output error" when
    /// CephFS refused to report a lock. Neither the operation nor the file could be found out.
    #[test]
    fn a_fault_that_becomes_eio_is_logged_with_its_file() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt().with_writer(log.reopen().unwrap()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let faults = [
                Fault::Io(io::Error::from_raw_os_error(libc::EIO)),
                Fault::Os(libc::EIO),
                Fault::Corrupt(Corruption::Zeros),
                Fault::Os(libc::ENOENT),
                Fault::Io(io::Error::from_raw_os_error(libc::ENOSPC)),
            ];
            for fault in faults {
                drop(fault.at("write", || "stored/file".into()));
            }
        });
        let log = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(log.lines().count(), 3, "{log}");
        assert!(log.lines().all(|line| line.contains("write") && line.contains("stored/file")));
    }
}
