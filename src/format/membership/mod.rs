//! The control files of a share that say what it is and which people belong to it.

pub mod inventory;
pub mod invitation;
pub mod manifest;
pub mod members;
pub mod share;
pub mod slots;
