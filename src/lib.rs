//! kithfs: an encrypted filesystem for people who share.
//!
//! The rooms, and which way they depend (a test reads the `use` lines and fails on an arrow that
//! points up):
//!
//! ```text
//! cli  ->  fuse  ->  vault  ->  { roster, format }  ->  crypto          vault -> store
//! ```
#![warn(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod cli;
pub mod crypto;
pub mod format;
pub mod fuse;
pub mod roster;
pub mod store;
pub mod vault;
