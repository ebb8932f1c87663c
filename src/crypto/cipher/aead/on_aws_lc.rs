//! [`Aead`] on `aws-lc-rs`, which wipes every key when it frees it.

use super::{Aead, NONCE_LEN, TAG_LEN};
use crate::crypto::suite::{Suite, Unauthentic};
use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroize;

/// [`Aead`] on `aws-lc-rs`.
pub struct AwsLcAead(LessSafeKey);

impl Aead for AwsLcAead {
    fn new(suite: Suite, key: &[u8; 32]) -> Self {
        let algorithm = match suite {
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        AwsLcAead(LessSafeKey::new(
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
        match self.0.open_in_place_separate_tag(nonce, Aad::from(aad), tag, buf) {
            Ok(_) => Ok(()),
            Err(_) => {
                // The library does not document what it leaves in the buffer; it must not be
                // plaintext.
                buf.zeroize();
                Err(Unauthentic)
            }
        }
    }
}
