//! The FUSE adapter: every method is call, match, reply.
//!
//! * [`ops`]: the operations of a filesystem in plain types; whatever is mounted implements
//!   [`Operations`].
//! * [`dev`]: `fuser` as the transport under it; [`wire`] encodes the replies that `fuser` cannot,
//!   [`listing`] fills directory replies for any transport.
//! * [`uring`]: FUSE over io_uring as another; [`abi`], [`request`], [`mod@init`] and [`dispatch`]
//!   read and answer the protocol for it.
//! * [`seek`]: holes of files of which the kernel holds pages, for any transport.
//! * [`held`]: writes that the kernel holds back, where there is no room for them or they were
//!   refused.
//! * `prefetch`: contents of small files for the kernel, before it asks.
//! * [`handover`]: what the kernel has collected of small writes, asked for in time.
//! * [`idle`]: unmounts what nobody uses.
//! * [`access`], [`acl`]: who may do what, where the kernel leaves that to us.
//! * [`mod@serve`]: threads on the device, until the filesystem is unmounted; [`notify`]: pushing
//!   changes out of the kernel's caches.
//! * [`mod@mount`], [`options`], [`mounts`]: our own mounting and unmounting.

pub mod abi;
pub mod access;
pub mod acl;
pub mod dev;
pub mod dispatch;
pub mod errno;
pub mod handover;
pub mod held;
pub mod idle;
pub mod init;
pub mod kernel;
mod listed;
pub mod listing;
pub mod mount;
pub mod mounts;
pub mod notify;
pub mod ops;
pub mod options;
mod pool;
mod prefetch;
pub mod privilege;
pub mod request;
pub mod seek;
pub mod serve;
pub mod uring;
pub mod vaultfs;
pub mod wire;

pub use mount::{MountError, Mounted, mount};
pub use notify::Notifier;
pub use ops::{Errno, Operations};
pub use options::{MountOptions, View};
pub use serve::{Permissions, ServeOptions, Serving, Transport, serve};
