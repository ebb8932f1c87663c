//! What integration tests share.

pub mod memfs;
