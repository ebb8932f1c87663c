//! Converts an error of the vault into a number for the kernel. No other module does that.
//!
//! Rules that hold here
//! * The vault logs each fault that becomes `EIO`, with operation and stored path. Errors that any
//!   program can cause (no such file, not empty) are logged only at the level `debug`.
//! * The text of an error may contain a plain path, so it is logged only at the level `debug`. The
//!   exception is a fault of a share, whose text contains the path of a control file.

use crate::fuse::ops::Errno;
use crate::vault::Error;

/// Numbers that ordinary programs cause and expect.
const ORDINARY: &[i32] = &[
    libc::EACCES,
    libc::EBADF,
    libc::EBUSY,
    libc::EEXIST,
    libc::EFBIG,
    libc::EINVAL,
    libc::EISDIR,
    libc::ELOOP,
    libc::EMLINK,
    libc::ENAMETOOLONG,
    libc::ENODATA,
    libc::ENOENT,
    libc::ENOTDIR,
    libc::ENOTEMPTY,
    libc::ENXIO,
    libc::EOPNOTSUPP,
    libc::EPERM,
    libc::ERANGE,
    libc::EROFS,
    libc::EXDEV,
];

impl From<Error> for Errno {
    fn from(error: Error) -> Errno {
        let errno = match error.errno() {
            // The daemon has too many open files, not the calling program.
            libc::EMFILE => Errno::new(libc::ENFILE),
            errno => Errno::new(errno),
        };
        if let Error::Share { path, source } = &error {
            tracing::error!(path = %path.display(), "{source}");
        } else if errno != Errno::EIO && !ORDINARY.contains(&errno.get()) {
            tracing::warn!(errno = errno.get(), "an operation failed");
        }
        tracing::debug!(errno = errno.get(), %error, "an operation failed");
        errno
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_open_file_limit_is_not_blamed_on_the_program() {
        let failed = |errno| Errno::from(Error::Os { op: "open", errno });
        assert_eq!(failed(libc::EMFILE), Errno::new(libc::ENFILE));
        assert_eq!(failed(libc::ENOSPC), Errno::new(libc::ENOSPC));
    }
}
