//! Mounting and unmounting.
//!
//! * [`mounted`]: mounting; [`unmount`]: unmounting; [`options`]: what follows `-o`.
//! * [`mounts`]: the mount table, and the processes that use a mount.
//! * [`place`]: the directory of a mount point.
//! * [`idle`]: unmounts a filesystem that no program uses.
//! * [`handover`]: has the kernel write back what it has cached.
//! * [`abort`]: ends a mount whose daemon was killed.

pub mod abort;
mod error;
pub mod handover;
mod helper;
pub mod idle;
pub mod mounted;
pub mod mounts;
pub mod options;
pub mod place;
pub mod unmount;

pub use error::MountError;
pub use mounted::{Mounted, mount};
