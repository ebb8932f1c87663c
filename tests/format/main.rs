//! The format: ciphers against published vectors, structures against golden vectors and SPEC.md,
//! and frozen vaults.

#[path = "../support/mod.rs"]
mod support;

mod crypto_vectors;
mod frozen_vaults;
mod spec;
mod vectors;
