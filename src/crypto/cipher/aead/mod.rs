//! The trait that an AEAD provider implements, and the provider in use.
//!
//! Nothing outside this module names a provider. With the default feature `aws-lc` it is
//! `AwsLcAead`; without it, it is [`RingAead`], which is always built. The same vectors run over
//! both, and a test compares the two when the feature is on.

mod provider;

use crate::crypto::suite::{Suite, Unauthentic};
#[cfg(feature = "aws-lc")]
pub use provider::AwsLcAead;
pub use provider::RingAead;

/// Length of a nonce in bytes.
pub const NONCE_LEN: usize = 12;
/// Length of a tag in bytes.
pub const TAG_LEN: usize = 16;

/// AES-256-GCM and ChaCha20-Poly1305 (RFC 8439), in place, with a detached tag. Implementations
/// hold no state except the key.
pub trait Aead: Send + Sync + Sized {
    /// Expands `key`.
    fn new(suite: Suite, key: &[u8; 32]) -> Self;

    /// Encrypts `buf` and returns the tag over it and `aad`. The nonce must not have been used with
    /// this key.
    fn seal(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], buf: &mut [u8]) -> [u8; TAG_LEN];

    /// Decrypts `buf` if `tag` authenticates it and `aad`.
    ///
    /// # Errors
    /// [`Unauthentic`]; all of `buf` is then zero.
    fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        buf: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Unauthentic>;
}

/// The provider in use.
#[cfg(feature = "aws-lc")]
pub type Active = AwsLcAead;
/// The provider in use.
#[cfg(not(feature = "aws-lc"))]
pub type Active = RingAead;

/// The name of the provider in use.
#[cfg(feature = "aws-lc")]
pub const ACTIVE: &str = "aws-lc-rs";
/// The name of the provider in use.
#[cfg(not(feature = "aws-lc"))]
pub const ACTIVE: &str = "ring";

#[cfg(all(test, feature = "aws-lc"))]
mod tests {
    use super::*;

    #[test]
    fn both_providers_seal_and_open_alike() {
        for suite in Suite::ALL {
            let key = *blake3::hash(suite.name().as_bytes()).as_bytes();
            let (ring, aws_lc) = (RingAead::new(suite, &key), AwsLcAead::new(suite, &key));
            for len in (0..300).chain([4095, 4096, 4097, 65_536]) {
                let nonce = [len as u8; NONCE_LEN];
                let aad = vec![3; len % 70];
                let plain: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
                let (mut a, mut b) = (plain.clone(), plain.clone());
                let (mut tag, other) =
                    (ring.seal(&nonce, &aad, &mut a), aws_lc.seal(&nonce, &aad, &mut b));
                assert_eq!((&a, tag), (&b, other), "{} length {len}", suite.name());
                ring.open(&nonce, &aad, &mut b, &tag).unwrap();
                aws_lc.open(&nonce, &aad, &mut a, &tag).unwrap();
                assert!(a == plain && b == plain, "{} length {len}", suite.name());
                tag[len % TAG_LEN] ^= 1;
                let refused = (
                    ring.open(&nonce, &aad, &mut a, &tag),
                    aws_lc.open(&nonce, &aad, &mut b, &tag),
                );
                assert_eq!(refused, (Err(Unauthentic), Err(Unauthentic)));
                assert!(
                    a.iter().chain(&b).all(|byte| *byte == 0),
                    "{} length {len}: plaintext left behind",
                    suite.name()
                );
            }
        }
    }
}
