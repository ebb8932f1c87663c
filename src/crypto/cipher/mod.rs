//! Authenticated encryption: the AEADs, sealed records and the segments of files.

pub mod aead;
pub mod record;
pub mod segment;
pub mod xaes;
