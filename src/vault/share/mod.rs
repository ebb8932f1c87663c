//! A share as it is stored: control files, descriptor, roster, and how it is founded and entered.

pub(super) mod control_files;
pub(super) mod descriptor;
pub(super) mod enter;
pub(super) mod removed;
pub(super) mod seen;
pub(super) mod shared;
pub(super) mod synced;
pub(super) mod trust;
