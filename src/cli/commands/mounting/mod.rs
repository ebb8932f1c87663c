//! Commands that start, end and list mounts.

pub mod mount;
mod mount_point;
pub mod mounts;
pub mod umount;
