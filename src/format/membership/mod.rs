//! The control files that define a share and its members.

pub mod inventory;
pub mod invitation;
pub mod manifest;
pub mod members;
pub mod share;
pub mod slots;
