//! One test at a time, in the binaries whose tests start programs and use mounts.
//!
//! A child that another thread has just forked holds a copy of every open descriptor until it calls
//! `exec`. An unmount in that moment fails with EBUSY, an `exec` of a script that was just written
//! fails with ETXTBSY, and a lock on a file stays held.

use parking_lot::{ReentrantMutex, ReentrantMutexGuard};

static ONE_AT_A_TIME: ReentrantMutex<()> = ReentrantMutex::new(());

/// The turn of one test; dropping it lets the next test begin.
pub type Turn = ReentrantMutexGuard<'static, ()>;

/// Waits until no other test has its turn. A test may take its own turn more than once.
pub fn take() -> Turn {
    ONE_AT_A_TIME.lock()
}
