//! Operations of the commands for shares. They are performed by this process with a vault that it
//! has opened, or over a socket by the daemon that has the vault mounted. Over the same socket, a
//! command asks the daemon for its status or has it lock the vault.
//!
//! Rules that hold here
//! * Each operation is implemented once, in `perform`, for the daemon and the command.
//! * The daemon answers only its own user, by the kernel's credentials of the peer. The command
//!   sends nothing to another user's daemon. Messages on the socket contain no secret: no
//!   passphrases, and only public keys.
//! * Names of people are looked up in the user's contacts first: a daemon receives public keys.
//! * An operation continues if the command that requested it is interrupted, as long as the mount
//!   exists. The end of the mount cancels it.

mod client;
mod message;
mod perform;
mod server;
mod wire;

pub use self::client::{Connection, Progressed, answers, is_unsigned_vault, lock, status};
pub use self::message::Status;
pub use self::server::{Control, Ended, Offer, Working, serve};
