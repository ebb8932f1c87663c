//! Directories that have a temporary name, while a folder becomes a share.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts how often a directory got or lost a temporary name: odd while one has such a name.
#[derive(Default)]
pub(crate) struct Away(AtomicU64);

impl Away {
    pub fn begin(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub fn end(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Returns whether any directory has had a temporary name since [`Away::count`] returned
    /// `count`. A name that was not found since then may exist.
    pub fn were_any_since(&self, count: u64) -> bool {
        let now = self.count();
        now != count || now % 2 == 1
    }
}
