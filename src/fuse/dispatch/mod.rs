//! Turns a decoded request into its reply, for every transport.
//!
//! * [`dispatcher`]: one call of [`Operations`](super::ops::Operations) for each request;
//!   [`reply`]: what it returns.
//! * [`held`]: writes that the kernel has cached and that cannot be stored.
//! * `prefetch`: the contents of small files, given to the kernel before it asks.
//! * [`seek`]: holes in files of which the kernel has dirty pages.
//! * `waiters`: programs that wait for a lock.

pub mod dispatcher;
pub mod held;
pub(super) mod prefetch;
pub mod reply;
pub mod seek;
mod waiters;
