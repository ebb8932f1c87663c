//! The trait under which an AEAD provider stands, and the provider in use: `ring`.
//!
//! Nothing outside this file names the provider, so a faster one takes an implementation of [`Aead`] and a change of [`Active`].

use super::suite::{Suite, Unauthentic};
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroize;

/// Length of a nonce in bytes.
pub const NONCE_LEN: usize = 12;
/// Length of a tag in bytes.
pub const TAG_LEN: usize = 16;

/// AES-256-GCM and ChaCha20-Poly1305 (RFC 8439) in place with the tag apart. Implementations have no state but the key.
pub trait Aead: Send + Sync + Sized {
    /// Expands `key`.
    fn new(suite: Suite, key: &[u8; 32]) -> Self;

    /// Encrypts `buf` and returns the tag over it and `aad`. The nonce must not have been used with this key.
    fn seal(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], buf: &mut [u8]) -> [u8; TAG_LEN];

    /// Decrypts `buf` if `tag` is right for it and `aad`.
    ///
    /// # Errors
    /// [`Unauthentic`], and all of `buf` is zero.
    fn open(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], buf: &mut [u8], tag: &[u8; TAG_LEN]) -> Result<(), Unauthentic>;
}

/// The provider in use.
pub type Active = RingAead;

/// [`Aead`] on `ring`.
///
/// `ring` does not wipe an expanded key when it is dropped, so long-lived keys are kept in the types of [`super::keys`] and expanded
/// only for as long as a chunk or a record is in work.
pub struct RingAead(LessSafeKey);

impl Aead for RingAead {
    fn new(suite: Suite, key: &[u8; 32]) -> Self {
        let algorithm = match suite {
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        RingAead(LessSafeKey::new(UnboundKey::new(algorithm, key).expect("both algorithms take a key of 32 bytes")))
    }

    fn seal(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], buf: &mut [u8]) -> [u8; TAG_LEN] {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(aad), buf).expect("a buffer is far below the limit of 64 GiB");
        tag.as_ref().try_into().expect("tags of both algorithms have 16 bytes")
    }

    fn open(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], buf: &mut [u8], tag: &[u8; TAG_LEN]) -> Result<(), Unauthentic> {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        match self.0.open_in_place_separate_tag(nonce, Aad::from(aad), (*tag).into(), buf, 0..) {
            Ok(_) => Ok(()),
            Err(_) => {
                // ring may leave the unauthenticated plaintext in the buffer.
                buf.zeroize();
                Err(Unauthentic)
            }
        }
    }
}
