//! Members of a share: who they are, changes, folders that become shares, re-sealing.

pub(super) mod change;
pub(super) mod convert;
mod inventory_walk;
pub(super) mod reseal;
pub(super) mod share;
