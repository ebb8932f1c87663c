//! Access that the owner lacks and can grant to themselves.
//!
//! The permission bits of a ciphertext file are those that the user sees, so a vault contains files
//! of mode 0444 and directories of mode 0555 or 0000. The kernel or `fuse` has checked the
//! *user's* permissions before the store is called. But deferred writes, key changes and repairs
//! must reach the bytes in any case. For root no mode is an obstacle. An ordinary user who owns the
//! object may change its mode: so after `EACCES` the missing bits are set, the operation is
//! retried, and the bits are removed again.
//!
//! Rules that hold here
//! * Only objects that the effective user owns are touched, only regular files and directories,
//!   only the missing bits.
//! * There is one [`Grants`] at a time in the process. Code that reads or sets a mode holds
//!   [`steady`], so no granted bit is visible to it or restored as if it were the mode.
//! * `Drop` removes the bits on every path, in reverse order. (A process that is killed in between
//!   leaves the owner's bits set; content and other users' access are not affected.)

use std::os::fd::BorrowedFd;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::fs::{self, FileType, Mode, RawMode};
use rustix::io::Result;

use super::sys;

static GRANTS: RwLock<()> = RwLock::new(());

/// Mode bits that an owner needs to search a directory and to change its entries.
pub(super) const CHANGE_ENTRIES: RawMode = 0o300;

/// Returns a guard. While it exists, no mode has a granted bit.
pub(super) fn steady() -> RwLockReadGuard<'static, ()> {
    GRANTS.read()
}

/// The right to grant bits; taken once for an operation, whatever the number of objects.
pub(super) struct Grants(
    #[allow(dead_code, reason = "held, not read")] RwLockWriteGuard<'static, ()>,
);

/// Granted bits, which are removed on drop.
pub(super) struct Grant<'a> {
    object: BorrowedFd<'a>,
    granted: RawMode,
    _grants: &'a Grants,
}

impl Grants {
    pub(super) fn begin() -> Grants {
        Grants(GRANTS.write())
    }

    /// Gives the owner the `needed` bits of `object` (an `O_PATH` descriptor is enough). Does
    /// nothing if the process is not the owner, or if no bit is missing.
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
        // Changes by the operation itself (chown clears suid) must stay, so the current mode is
        // read.
        let taken_back = fs::fstat(self.object).and_then(|stat| {
            sys::chmod_path(self.object, Mode::from_raw_mode(stat.st_mode & 0o7777 & !self.granted))
        });
        if let Err(error) = taken_back {
            tracing::warn!(%error, granted = format_args!("{:o}", self.granted), "cannot take back the owner's access");
        }
    }
}
