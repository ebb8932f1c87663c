//! Access that the owner lacks and may give himself.
//!
//! The permission bits of a ciphertext file are those that the user sees, so a vault holds files of
//! mode 0444 and directories of mode 0555 or 0000. What the *user* may do with them, the kernel or
//! `vault` has decided before the store is called; but deferred writes, key changes and repairs
//! must reach their bytes all the same. For root no mode is an obstacle. An ordinary user who owns
//! the object may change its mode: so after `EACCES` the missing bits are set, the operation is
//! done again, and the bits are taken back.
//!
//! Rules that hold here
//! * Only objects that the effective user owns are touched, only regular files and directories,
//!   only the bits that are missing.
//! * One [`Grants`] at a time in the process. Whoever reads or sets a mode holds [`steady`], so
//!   that no granted bit is seen, or taken for the mode to go back to.
//! * The bits are taken back on every path, by `Drop`, in the opposite order. (A process that is
//!   killed in between leaves the owner's bits set; content and other people's access are not
//!   affected.)

use std::os::fd::BorrowedFd;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::fs::{self, FileType, Mode, RawMode};
use rustix::io::Result;

use super::sys;

static GRANTS: RwLock<()> = RwLock::new(());

/// Bits that an owner needs to search a directory and to change its entries.
pub(super) const CHANGE_ENTRIES: RawMode = 0o300;

/// While this lives, modes are what they are meant to be.
pub(super) fn steady() -> RwLockReadGuard<'static, ()> {
    GRANTS.read()
}

/// The right to grant; taken once for an operation, whatever the number of objects.
pub(super) struct Grants(
    #[allow(dead_code, reason = "held, not read")] RwLockWriteGuard<'static, ()>,
);

/// Bits that were granted and are taken back when it is dropped.
pub(super) struct Grant<'a> {
    object: BorrowedFd<'a>,
    granted: RawMode,
    _grants: &'a Grants,
}

impl Grants {
    pub(super) fn begin() -> Grants {
        Grants(GRANTS.write())
    }

    /// Gives the owner the `needed` bits of `object` (an `O_PATH` descriptor will do). Where we are
    /// not the owner, or nothing is missing, nothing is done.
    pub(super) fn owner<'a>(
        &'a self,
        object: BorrowedFd<'a>,
        needed: RawMode,
    ) -> Result<Grant<'a>> {
        let stat = fs::fstat(object)?;
        let ours = stat.st_uid == rustix::process::geteuid().as_raw();
        let grantable = matches!(
            FileType::from_raw_mode(stat.st_mode),
            FileType::RegularFile | FileType::Directory
        );
        let granted = if ours && grantable { needed & !stat.st_mode } else { 0 };
        if granted != 0 {
            sys::chmod_path(object, Mode::from_raw_mode((stat.st_mode & 0o7777) | granted))?;
        }
        Ok(Grant { object, granted, _grants: self })
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        if self.granted == 0 {
            return;
        }
        // What the operation itself changed (chown clears suid) stays changed, hence the mode as it
        // is now.
        let taken_back = fs::fstat(self.object).and_then(|stat| {
            sys::chmod_path(self.object, Mode::from_raw_mode(stat.st_mode & 0o7777 & !self.granted))
        });
        if let Err(error) = taken_back {
            tracing::warn!(%error, granted = format_args!("{:o}", self.granted), "cannot take back the owner's access");
        }
    }
}
