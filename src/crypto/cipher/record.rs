//! Records: data that is sealed as a whole, such as file headers, journal records, member lists and
//! symlink targets. XAES-256-GCM (C2SP) or XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha), with
//! nonces of 24 bytes.
//!
//! [`RecordCipher::seal_record`] draws a random nonce. Its result is
//! `nonce(24) ‖ ciphertext ‖ tag(16)`.

use super::aead::{Active, Aead, NONCE_LEN as GCM_NONCE_LEN, TAG_LEN};
use super::xaes::{SALT_LEN, Xaes};
use crate::crypto::random::Random;
use crate::crypto::suite::{Suite, Unauthentic};
use chacha20poly1305::{AeadInOut, KeyInit, XChaCha20Poly1305};
use zeroize::{Zeroize, Zeroizing};

/// Length of the nonce of a record in bytes.
pub const RECORD_NONCE_LEN: usize = SALT_LEN + GCM_NONCE_LEN;
/// Bytes that sealing adds to a record.
pub const RECORD_OVERHEAD: usize = RECORD_NONCE_LEN + TAG_LEN;

enum Cipher {
    Aes(Box<Xaes>),
    ChaCha(Box<XChaCha20Poly1305>),
}

/// A key that seals records.
pub struct RecordCipher(Cipher);

impl RecordCipher {
    /// Expands `key`.
    #[must_use]
    pub fn new(suite: Suite, key: &[u8; 32]) -> Self {
        RecordCipher(match suite {
            Suite::Aes256Gcm => Cipher::Aes(Box::new(Xaes::new(key))),
            Suite::ChaCha20Poly1305 => Cipher::ChaCha(Box::new(XChaCha20Poly1305::new(key.into()))),
        })
    }

    /// Encrypts `buf` in place and returns the tag over it and `aad`. The nonce must be fresh for
    /// this key.
    #[must_use]
    pub fn seal(
        &self,
        nonce: &[u8; RECORD_NONCE_LEN],
        aad: &[u8],
        buf: &mut [u8],
    ) -> [u8; TAG_LEN] {
        match &self.0 {
            Cipher::Aes(xaes) => {
                let (key, nonce) = gcm(xaes, nonce);
                key.seal(&nonce, aad, buf)
            }
            Cipher::ChaCha(cipher) => {
                cipher
                    .encrypt_inout_detached(nonce.into(), aad, buf.into())
                    .expect("a buffer is far below the limit of 256 GiB")
                    .0
            }
        }
    }

    /// Decrypts `buf` in place.
    ///
    /// # Errors
    /// [`Unauthentic`] if key, nonce, `aad`, `buf` and `tag` do not belong together; all of `buf`
    /// is then zero.
    pub fn open(
        &self,
        nonce: &[u8; RECORD_NONCE_LEN],
        aad: &[u8],
        buf: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Unauthentic> {
        match &self.0 {
            Cipher::Aes(xaes) => {
                let (key, nonce) = gcm(xaes, nonce);
                key.open(&nonce, aad, buf, tag)
            }
            Cipher::ChaCha(cipher) => {
                let opened = cipher.decrypt_inout_detached(
                    nonce.into(),
                    aad,
                    (&mut *buf).into(),
                    tag.into(),
                );
                opened.map_err(|_| {
                    buf.zeroize();
                    Unauthentic
                })
            }
        }
    }

    /// Seals `plain` under a fresh random nonce: `nonce(24) ‖ ciphertext ‖ tag(16)`.
    #[must_use]
    pub fn seal_record(&self, random: &dyn Random, aad: &[u8], plain: &[u8]) -> Vec<u8> {
        let mut nonce = [0; RECORD_NONCE_LEN];
        random.fill(&mut nonce);
        let mut sealed = Vec::with_capacity(plain.len() + RECORD_OVERHEAD);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(plain);
        let tag = self.seal(&nonce, aad, &mut sealed[RECORD_NONCE_LEN..]);
        sealed.extend_from_slice(&tag);
        sealed
    }

    /// Opens a record that [`RecordCipher::seal_record`] returned.
    ///
    /// # Errors
    /// [`Unauthentic`] if `sealed` is shorter than [`RECORD_OVERHEAD`], was changed, or belongs to
    /// another key or `aad`.
    pub fn open_record(
        &self,
        aad: &[u8],
        sealed: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Unauthentic> {
        let (nonce, rest) = sealed.split_first_chunk().ok_or(Unauthentic)?;
        let (ciphertext, tag) = rest.split_last_chunk().ok_or(Unauthentic)?;
        let mut plain = Zeroizing::new(ciphertext.to_vec());
        self.open(nonce, aad, &mut plain, tag)?;
        Ok(plain)
    }
}

/// Returns the AES-256-GCM key and nonce that XAES-256-GCM uses for `nonce`.
fn gcm(xaes: &Xaes, nonce: &[u8; RECORD_NONCE_LEN]) -> (Active, [u8; GCM_NONCE_LEN]) {
    let salt = nonce.first_chunk().expect("24 is more than 12");
    let rest = nonce.last_chunk().expect("24 is more than 12");
    (Active::new(Suite::Aes256Gcm, &xaes.derive(salt)), *rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::random::seeded::Seeded;

    #[test]
    fn a_record_opens_with_its_key_and_context_only() {
        for suite in Suite::ALL {
            let cipher = RecordCipher::new(suite, &[5; 32]);
            for len in [0, 1, 15, 16, 17, 300] {
                let plain = vec![0xab; len];
                let sealed = cipher.seal_record(&Seeded::new(len as u64), b"context", &plain);
                assert_eq!(sealed.len(), len + RECORD_OVERHEAD);
                assert_eq!(*cipher.open_record(b"context", &sealed).unwrap(), plain);
                assert!(cipher.open_record(b"contexT", &sealed).is_err());
                assert!(
                    RecordCipher::new(suite, &[6; 32]).open_record(b"context", &sealed).is_err()
                );
                for bit in 0..8 * sealed.len() {
                    let mut changed = sealed.clone();
                    changed[bit / 8] ^= 1 << (bit % 8);
                    assert!(
                        cipher.open_record(b"context", &changed).is_err(),
                        "{} length {len} bit {bit}",
                        suite.name()
                    );
                }
                for cut in 0..sealed.len() {
                    assert!(
                        cipher.open_record(b"context", &sealed[..cut]).is_err(),
                        "{} length {len} cut {cut}",
                        suite.name()
                    );
                }
                assert!(cipher.open_record(b"context", &[&sealed[..], b"\0"].concat()).is_err());
            }
        }
    }

    #[test]
    fn a_failed_open_leaves_zeros() {
        for suite in Suite::ALL {
            let cipher = RecordCipher::new(suite, &[5; 32]);
            let mut buf = *b"a secret that must not be shown";
            let tag = cipher.seal(&[1; 24], b"", &mut buf);
            assert_eq!(cipher.open(&[2; 24], b"", &mut buf, &tag), Err(Unauthentic));
            assert_eq!(buf, [0; 31]);
        }
    }

    #[test]
    fn two_seals_of_one_record_differ() {
        for suite in Suite::ALL {
            let (cipher, random) = (RecordCipher::new(suite, &[5; 32]), Seeded::new(1));
            let (a, b) = (
                cipher.seal_record(&random, b"", b"same"),
                cipher.seal_record(&random, b"", b"same"),
            );
            assert_ne!(a[..24], b[..24]);
            assert_ne!(a[24..], b[24..]);
        }
    }
}
