//! What the commands about shares ask for, and who does it: this process, with a vault that it has
//! opened, or the daemon that has the vault mounted, over a socket.
//!
//! Rules that hold here
//! * Each operation stands once, in `perform`; a daemon and a command do the same.
//! * The daemon answers its own user alone, by the credentials that the kernel tells of the peer;
//!   the command sends nothing to a daemon of somebody else. What goes over the socket holds no
//!   secret: neither passphrases nor keys, but for public ones.
//! * Names of people are looked up in the contacts of the user before anything is asked for: a
//!   daemon gets public keys.
//! * An operation that was asked for goes on when the command that asked is interrupted, as far as
//!   the mount lasts.

mod client;
mod message;
mod perform;
mod server;
mod wire;

pub use self::client::{Door, Progressed};
pub use self::message::{Known, Past};
pub use self::server::{Control, Working, serve};
