//! kithfs: an encrypted filesystem for people who share.
//!
//! The layers of the source. An arrow means "uses"; `roster` also uses `format`, `fuse` also uses
//! plain types of `store`, and `cli` and `vault` use every layer below them. A test fails if a
//! layer uses any other.
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
