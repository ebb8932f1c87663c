//! The FUSE adapter: a mounted vault.
//!
//! * [`ops`]: the operations of a filesystem in plain types, which every mounted filesystem
//!   implements; [`mod@vaultfs`]: a vault as one.
//! * [`transport`]: how requests arrive, over `/dev/fuse` or io_uring; [`settings`]: how they are
//!   served.
//! * [`protocol`]: requests and replies in bytes; [`dispatch`]: turns a request into its reply;
//!   [`listing`]: the replies of directories.
//! * [`permission`]: what a caller may do, as far as the kernel leaves that to the daemon.
//! * [`mod@mount`]: mounting and unmounting.
//! * [`errno`]: errors of the vault as numbers; [`kernel`]: what the running kernel can do.

pub mod dispatch;
pub mod errno;
pub mod kernel;
pub mod listing;
pub mod mount;
pub mod ops;
pub mod permission;
pub mod protocol;
pub mod settings;
pub mod transport;
pub mod vaultfs;

pub use dispatch::held;
pub use mount::options::{self, MountOptions, View};
pub use mount::{MountError, Mounted, abort, handover, idle, mount, mounts, place};
pub use ops::{Errno, Operations};
pub use protocol::notify::Notifier;
pub use protocol::wire;
pub use settings::{Permissions, ServeOptions, Transport};
pub use transport::advice;
pub use transport::serve::{Serving, serve};
pub use transport::uring;
