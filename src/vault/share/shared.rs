//! The mark of a share that several daemons have open for writing at the same time.
//!
//! Rules that hold here
//! * The mark is a control file at the share's root with constant bytes. It only says how an opener
//!   asks for the vault's lock; who may write is decided by the lock alone. So an opener that
//!   misses the mark, or finds one that the storage host has added, is refused or slower. It never
//!   becomes a writer that the other daemons do not expect.
//! * In a synced share the mark is ignored: each machine has a copy of its own.

use crate::crypto::Random;
use crate::store::Dir;
use crate::vault::error::Inner;
use crate::vault::share::control_files::{exists, write_control};

/// Name of the control file.
pub(crate) const SHARED_FILE: &[u8] = b"+shared";
/// Its bytes.
pub(crate) const SHARED_TEXT: &[u8] = b"kithfs shared\n";

/// Returns whether a share has the mark.
pub(crate) fn is_set(root: &dyn Dir) -> Inner<bool> {
    exists(root, SHARED_FILE)
}

/// Sets the mark, or removes it; returns false if that was done before.
pub(crate) fn set(root: &dyn Dir, on: bool, random: &dyn Random) -> Inner<bool> {
    if is_set(root)? == on {
        return Ok(false);
    }
    match on {
        true => write_control(root, random, SHARED_FILE, SHARED_TEXT)?,
        false => root.unlink(SHARED_FILE)?,
    }
    root.sync()?;
    Ok(true)
}
