//! Opening a vault for a command, and walking through it without a mount.

pub mod hand_over;
pub mod nodes;
pub mod open;
pub mod sync_folder;
