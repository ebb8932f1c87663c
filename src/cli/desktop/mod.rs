//! What a mount learns from the user's desktop and login session, over D-Bus.
//!
//! * [`lock_on`]: locks the vault when the machine sleeps, the screen is locked, or the session
//!   ends. [`events`] defines these events; they come from `logind` and `screen`.
//! * [`notify`]: shows the user what happened to the vault.
//! * [`bus`]: a connection to one of the two buses.

pub mod bus;
pub mod events;
pub mod lock_on;
mod logind;
pub mod notify;
mod screen;
