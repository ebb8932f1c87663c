//! The process that serves a mount: how it starts, logs and ends, and the list of such processes.

pub mod ending;
pub mod fork;
pub mod log;
pub mod patience;
pub mod process;
pub mod registry;
pub mod signals;
