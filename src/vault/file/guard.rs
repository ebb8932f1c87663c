//! The guard: the lock of the one daemon that may commit to a file, in vaults with concurrent
//! writers. The range is part of the format: SPEC.md, section 2.

use std::sync::Arc;

use crate::store::{Access, File, Lock, Span};
use crate::vault::error::{Fault, Inner, is_no_descriptor};

/// Locked exclusively by a daemon that has changes of the file, or accepts some at any time, or
/// applies records to it.
pub(crate) const GUARD: Span = Span::one(0);

/// Opens a file again for locks: for writing, because an exclusive lock requires that; if it is not
/// allowed, for reading, which is enough for shared locks.
pub(crate) fn open_for_locks(file: &dyn File) -> Inner<Arc<dyn File>> {
    let opened = match file.reopen(Access::ReadWrite) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS)) => {
            file.reopen(Access::Read)
        }
        other => other,
    };
    opened.map_err(|error| match error.raw_os_error() {
        Some(errno) if is_no_descriptor(errno) => Fault::Os(libc::ENOLCK),
        _ => error.into(),
    })
}

/// Takes the guard of a file by a handle of its own. Returns `None` if another handle has it.
pub(crate) fn try_guard(file: &dyn File) -> Inner<Option<Arc<dyn File>>> {
    let handle = open_for_locks(file)?;
    Ok(handle.try_lock_span(Some(Lock::Exclusive), GUARD)?.then_some(handle))
}
