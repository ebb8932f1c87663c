//! The ciphertext of a regular file: offsets, header and chunk tables.

pub mod header;
pub mod layout;
pub mod table;
