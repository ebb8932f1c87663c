//! Key derivation: HKDF, Argon2id and the tree of keys below a folder key.

pub mod hierarchy;
pub mod kdf;
pub mod password;
