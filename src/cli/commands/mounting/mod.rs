//! Commands that start, end and list mounts.

pub mod mount;
pub mod mounts;
pub mod umount;
