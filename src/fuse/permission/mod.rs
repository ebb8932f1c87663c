//! What a caller may do, as far as the kernel leaves that to the daemon.
//!
//! * [`access`]: permission checks; [`acl`]: POSIX access control lists.
//! * [`privilege`]: set-user-ID and set-group-ID bits that a change clears.

pub mod access;
pub mod acl;
pub mod privilege;
