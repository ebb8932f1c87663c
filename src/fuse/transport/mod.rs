//! How requests reach the daemon and replies reach the kernel.
//!
//! * [`mod@serve`]: starts a transport and waits for its end.
//! * [`mod@fuser`]: `/dev/fuse`, by the library of that name; `device`: the same by kithfs's own
//!   loop; [`uring`]: io_uring.
//! * [`mod@advice`]: advises how to make requests faster on this machine.
//! * `pool`: threads for requests that take long.

pub mod advice;
mod device;
pub mod fuser;
mod pool;
pub mod serve;
pub mod uring;
