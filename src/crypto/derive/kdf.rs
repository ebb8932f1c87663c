//! HKDF-SHA256 (RFC 5869) and HMAC-SHA256 (RFC 2104) over unambiguously encoded inputs.
//!
//! The `info` of an expansion is `label ‖ for each part: u16 length, little-endian ‖ part`. No
//! label is a prefix of another (a test in [`labels`](crate::crypto::labels) checks it), so two
//! different (label, parts) never have the same `info`.

use crate::crypto::labels::Label;
use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::{Zeroize, Zeroizing};

/// More than 255 · 32 bytes were requested from one expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more output than one expansion can produce")]
pub struct TooMuchOutput;

/// Computes HKDF-Extract: a pseudorandom key of 32 bytes from input key material of any length.
#[must_use]
pub fn extract(salt: &[u8], ikm: &[u8]) -> Zeroizing<[u8; 32]> {
    let (mut prk, _) = Hkdf::<Sha256>::extract(Some(salt), ikm);
    let out = Zeroizing::new(prk.0);
    prk.0.zeroize();
    out
}

/// Computes HKDF-Expand to 32 bytes, for one purpose and context.
///
/// # Panics
/// When a part is longer than 65,535 bytes; parts are ids, numbers and names that were parsed under
/// smaller bounds.
#[must_use]
pub fn expand(prk: &[u8; 32], label: &Label, parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
    let lengths: Vec<[u8; 2]> = parts.iter().map(|part| length(part)).collect();
    let mut info: Vec<&[u8]> = Vec::with_capacity(1 + 2 * parts.len());
    info.push(label.as_bytes());
    for (length, part) in lengths.iter().zip(parts) {
        info.extend([&length[..], part]);
    }
    let mut out = Zeroizing::new([0; 32]);
    expand_raw(prk, &info, &mut *out).expect("32 bytes are one block");
    out
}

/// Computes HKDF-Expand as RFC 5869 defines it: `info` is the plain concatenation. Derivations use
/// [`expand`], which is built on this function.
///
/// # Errors
/// [`TooMuchOutput`] when `out` has more than 8,160 bytes.
pub fn expand_raw(prk: &[u8; 32], info: &[&[u8]], out: &mut [u8]) -> Result<(), TooMuchOutput> {
    let hkdf = Hkdf::<Sha256>::from_prk(prk).expect("a pseudorandom key has 32 bytes");
    hkdf.expand_multi_info(info, out).map_err(|_| TooMuchOutput)
}

/// Returns the HMAC-SHA256 over parts, each preceded by its length as a little-endian u16.
///
/// # Panics
/// When a part is longer than 65,535 bytes, as for [`expand`].
#[must_use]
pub fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(&length(part));
        mac.update(part);
    }
    mac.finalize().into_bytes().0
}

fn length(part: &[u8]) -> [u8; 2] {
    u16::try_from(part.len())
        .expect("a part of a derivation has at most 65,535 bytes")
        .to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::labels;

    #[test]
    fn info_is_label_and_length_prefixed_parts() {
        let prk = [7; 32];
        let parts: [&[u8]; 2] = [b"abc", b""];
        let mut by_hand = [0; 32];
        let info = [labels::NAMES.as_bytes(), b"\x03\0abc", b"\0\0"].concat();
        expand_raw(&prk, &[&info], &mut by_hand).unwrap();
        assert_eq!(*expand(&prk, &labels::NAMES, &parts), by_hand);
    }

    #[test]
    fn where_one_part_ends_and_the_next_begins_matters() {
        let key = [7; 32];
        let splits: [&[&[u8]]; 5] =
            [&[b"ab"], &[b"a", b"b"], &[b"", b"ab"], &[b"ab", b""], &[b"ba"]];
        for (i, a) in splits.iter().enumerate() {
            for b in &splits[..i] {
                assert_ne!(hmac(&key, a), hmac(&key, b));
                assert_ne!(*expand(&key, &labels::NAMES, a), *expand(&key, &labels::NAMES, b));
            }
        }
    }

    #[test]
    fn an_expansion_has_an_end() {
        assert_eq!(expand_raw(&[0; 32], &[], &mut [0; 8160]), Ok(()));
        assert_eq!(expand_raw(&[0; 32], &[], &mut [0; 8161]), Err(TooMuchOutput));
    }

    #[test]
    fn hmac_of_parts_is_hmac_of_their_encoding() {
        // Computed with Python's hmac module: key 0x0b * 32, message 02 00 "Hi" 05 00 "There".
        let expected =
            hex::decode("2dcf9e8f71a70e96a1e45530f592dc92c71c835874092a134b4653274e6e36fc")
                .unwrap();
        assert_eq!(hmac(&[0x0b; 32], &[b"Hi", b"There"])[..], expected);
    }
}
