//! Members of a share: listing and changing them, converting folders to shares, resealing.

pub(super) mod change;
pub(super) mod convert;
mod inventory_walk;
pub(super) mod reseal;
pub(super) mod share;
