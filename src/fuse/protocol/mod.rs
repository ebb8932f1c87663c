//! The FUSE protocol in bytes.
//!
//! * [`abi`]: structures and numbers of the kernel's header.
//! * [`request`]: decoded requests; [`wire`]: encoded replies, and the device that takes them.
//! * [`mod@init`]: the first request of a session.
//! * [`notify`]: notifications by which the kernel drops cached data.

pub mod abi;
pub mod init;
pub mod notify;
pub mod request;
pub mod wire;
