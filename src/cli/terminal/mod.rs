//! Output of commands, and questions to the user.

pub mod ask;
pub mod color;
pub mod echo;
pub mod progress;
pub mod stdout;
