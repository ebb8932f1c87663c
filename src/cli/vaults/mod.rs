//! Opening a vault for a command, walking through it without a mount, and paths inside it.

pub mod hand_over;
pub mod nodes;
pub mod open;
pub mod paths;
pub mod sync_folder;
