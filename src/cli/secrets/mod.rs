//! Passphrases, recovery codes and key files, and the identity files that they open.

pub mod age;
mod copies;
pub mod identity;
pub mod kdf;
pub mod keyring;
pub mod new_identity;
pub mod source;
pub mod strength;
