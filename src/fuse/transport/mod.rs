//! How requests reach the daemon and replies reach the kernel.
//!
//! * [`mod@serve`]: starts a transport and waits for its end.
//! * [`mod@fuser`]: `/dev/fuse`, by the library of that name; [`uring`]: io_uring.
//! * `pool`: threads for requests that take long.

pub mod fuser;
mod pool;
pub mod serve;
pub mod uring;
