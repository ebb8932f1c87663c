//! Operations of the commands for shares. They are performed by this process with a vault that it
//! has opened, or over a socket by the daemon that has the vault mounted.
//!
//! Rules that hold here
//! * Each operation is implemented once, in `perform`, for the daemon and the command.

mod client;
mod message;
mod perform;
mod server;
mod wire;

pub use self::client::{Door, Progressed};
pub use self::message::{Known, Past};
pub use self::server::{Control, Working, serve};
