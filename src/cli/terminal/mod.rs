//! What a command writes to its user and asks them at a terminal.

pub mod ask;
pub mod color;
pub mod echo;
pub mod progress;
pub mod stdout;
