//! An open vault: options, opening and closing, nested shares, the calls of its users.

mod background;
mod check;
mod lease;
pub(super) mod lifetime;
mod lingering;
pub(super) mod nested;
mod operations;
pub(super) mod options;
pub(super) mod paths;
pub(super) mod vault;
