//! The FUSE protocol in bytes.
//!
//! * [`abi`]: structures and numbers of the kernel's header.
//! * [`request`]: decoded requests; [`wire`]: encoded replies, and the device that takes them.
//! * [`mod@init`]: the first request of a session.
//! * [`notify`]: changes that the kernel's caches are told of.

pub mod abi;
pub mod init;
pub mod notify;
pub mod request;
pub mod wire;
