//! Commands that start, end and list mounts.

pub mod helper;
pub mod lock;
pub mod mount;
mod mount_point;
pub mod mounts;
pub mod named;
mod open_vaults;
pub mod status;
pub mod umount;
