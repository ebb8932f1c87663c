//! Directories that have another name for a moment, while a folder becomes a share.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the moments at which a directory begins or ceases to have a temporary name: odd while one
/// has.
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

    /// Returns whether a name that was not found since `count` may have been missing only because
    /// of a temporary name.
    pub fn were_any_since(&self, count: u64) -> bool {
        let now = self.count();
        now != count || now % 2 == 1
    }
}
