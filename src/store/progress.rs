//! Counts calls that have changed the store. They show whether a store that is waited for is slow, or
//! does not answer.

use std::sync::atomic::{AtomicU64, Ordering};

static DONE: AtomicU64 = AtomicU64::new(0);

/// Returns how many calls of this process have changed a store, or made a change durable.
pub fn changes() -> u64 {
    DONE.load(Ordering::Relaxed)
}

/// Counts a call that has returned, with success or not. Returns its result.
pub(super) fn counted<T>(result: T) -> T {
    DONE.fetch_add(1, Ordering::Relaxed);
    result
}
