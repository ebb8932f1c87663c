//! The filesystem without FUSE: nodes, open files, commit order, check.

pub mod types;

pub use types::*;
