//! The lock on the names of a share.

use std::sync::Arc;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::vault::durability::lease::{Change, Lease};
use crate::vault::error::Inner;

/// The lock on all names of a share: the lease, and a lock within this process.
pub(crate) struct NameLock {
    lease: Arc<Lease>,
    local: RwLock<()>,
}

/// Permits adding or removing a name. Several threads may hold one at the same time.
pub(crate) struct NameReadGuard<'a> {
    _local: RwLockReadGuard<'a, ()>,
    _change: Change<'a>,
}

/// Guarantees that only its holder changes names.
pub(crate) struct NameWriteGuard<'a> {
    _local: RwLockWriteGuard<'a, ()>,
    _change: Change<'a>,
}

impl<'a> NameWriteGuard<'a> {
    /// Lets this process look up and change names again, and keeps changes by other daemons out as
    /// long as the result lives.
    pub fn keep_others_out(self) -> Change<'a> {
        self._change
    }
}

impl NameLock {
    /// Returns the lock for the share with this lease.
    pub fn new(lease: Arc<Lease>) -> Self {
        NameLock { lease, local: RwLock::new(()) }
    }

    /// Locks for a lookup, within this process only: every intermediate state of a change by
    /// another daemon is readable.
    pub fn look(&self) -> RwLockReadGuard<'_, ()> {
        self.local.read()
    }

    /// Locks for adding or removing a name, concurrently with others that do so.
    pub fn read(&self) -> Inner<NameReadGuard<'_>> {
        let change = self.lease.change()?;
        Ok(NameReadGuard { _local: self.local.read(), _change: change })
    }

    /// Locks exclusively: no name changes meanwhile, and [`NameLock::look`] waits.
    pub fn write(&self) -> Inner<NameWriteGuard<'_>> {
        let change = self.lease.change()?;
        Ok(NameWriteGuard { _local: self.local.write(), _change: change })
    }
}
