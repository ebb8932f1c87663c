//! [`Aead`] on `ring`.

use super::{Aead, NONCE_LEN, TAG_LEN};
use crate::crypto::suite::{Suite, Unauthentic};
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroize;

/// [`Aead`] on `ring`.
///
/// `ring` does not wipe an expanded key when it is dropped. Long-lived keys are therefore kept in
/// the types of [`crate::crypto::keys`], and expanded only while a chunk or a record is processed.
pub struct RingAead(LessSafeKey);

impl Aead for RingAead {
    fn new(suite: Suite, key: &[u8; 32]) -> Self {
        let algorithm = match suite {
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        RingAead(LessSafeKey::new(
            UnboundKey::new(algorithm, key).expect("both algorithms take a key of 32 bytes"),
        ))
    }

    fn seal(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], buf: &mut [u8]) -> [u8; TAG_LEN] {
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce, Aad::from(aad), buf)
            .expect("a buffer is far below the limit of 64 GiB");
        tag.as_ref().try_into().expect("tags of both algorithms have 16 bytes")
    }

    fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        buf: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Unauthentic> {
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
