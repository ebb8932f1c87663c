//! Segments of a chunk: AES-256-GCM or ChaCha20-Poly1305 with 12-byte nonces, under the sub-key of
//! the chunk's salt.
//!
//! Nothing is sealed under a file key directly; [`ChunkKeys`] derives sub-keys from it.

use super::aead::{Active, Aead, NONCE_LEN, TAG_LEN};
use super::xaes::{SALT_LEN as XAES_SALT_LEN, Xaes};
use crate::crypto::keys::FileKey;
use crate::crypto::stack;
use crate::crypto::suite::{Suite, Unauthentic};
use chacha20::{R20, hchacha};
use zeroize::{Zeroize, Zeroizing};

/// Length of a chunk's salt in bytes, for both suites. With AES the last four must be zero; the
/// format checks that.
pub const CHUNK_SALT_LEN: usize = 16;

enum Root {
    Aes(Box<Xaes>),
    ChaCha(Zeroizing<[u8; 32]>),
}

/// A file's key, from which the sub-keys of its chunks are derived.
pub struct ChunkKeys(Root);

impl ChunkKeys {
    /// Expands the key of a file.
    #[must_use]
    pub fn new(suite: Suite, key: &FileKey) -> Self {
        let keys = ChunkKeys::expanded(suite, key);
        // The move of the expanded key left a copy on the stack, which would get into the padding
        // of other values.
        stack::wipe::<{ 8 << 10 }>();
        keys
    }

    #[inline(never)]
    fn expanded(suite: Suite, key: &FileKey) -> Self {
        ChunkKeys(match suite {
            Suite::Aes256Gcm => Root::Aes(Box::new(Xaes::new(key.expose()))),
            Suite::ChaCha20Poly1305 => Root::ChaCha(Zeroizing::new(*key.expose())),
        })
    }

    /// Derives the sub-key of a chunk: that of XAES-256-GCM for `salt[..12]` (the rest is ignored),
    /// or that of HChaCha20 for all of `salt`.
    #[must_use]
    pub fn derive(&self, salt: &[u8; CHUNK_SALT_LEN]) -> SegmentKey {
        match &self.0 {
            Root::Aes(xaes) => {
                let salt: &[u8; XAES_SALT_LEN] = salt.first_chunk().expect("16 is more than 12");
                SegmentKey::new(Suite::Aes256Gcm, &xaes.derive(salt))
            }
            Root::ChaCha(key) => {
                let mut sub_key = hchacha::<R20>((&**key).into(), salt.into());
                let segment_key = SegmentKey::new(Suite::ChaCha20Poly1305, &sub_key.0);
                sub_key.0.zeroize();
                segment_key
            }
        }
    }
}

/// The key of one chunk under one salt.
pub struct SegmentKey(Active);

impl SegmentKey {
    /// Takes 32 bytes as the key of AES-256-GCM or ChaCha20-Poly1305.
    #[must_use]
    pub fn new(suite: Suite, key: &[u8; 32]) -> Self {
        stack::wipe_at_end();
        SegmentKey(Active::new(suite, key))
    }

    /// Encrypts `buf` in place and returns the tag over it and `aad`. The nonce must be fresh for
    /// this key.
    #[must_use]
    pub fn seal(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], buf: &mut [u8]) -> [u8; TAG_LEN] {
        stack::wipe_at_end();
        self.0.seal(nonce, aad, buf)
    }

    /// Decrypts `buf` in place.
    ///
    /// # Errors
    /// [`Unauthentic`] if key, nonce, `aad`, `buf` and `tag` do not belong together; all of `buf`
    /// is then zero.
    pub fn open(
        &self,
        nonce: &[u8; NONCE_LEN],
        aad: &[u8],
        buf: &mut [u8],
        tag: &[u8; TAG_LEN],
    ) -> Result<(), Unauthentic> {
        stack::wipe_at_end();
        self.0.open(nonce, aad, buf, tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_noticed_and_leaves_zeros() {
        for suite in Suite::ALL {
            let key = ChunkKeys::new(suite, &FileKey::from_bytes([3; 32])).derive(&[0; 16]);
            let (nonce, aad, plain) =
                ([9; 12], *b"share and place", *b"thirty-three bytes of a plaintext");
            let mut sealed = plain;
            let tag = key.seal(&nonce, &aad, &mut sealed);

            let mut opened = sealed;
            key.open(&nonce, &aad, &mut opened, &tag).unwrap();
            assert_eq!(opened, plain);

            let total = 8 * (nonce.len() + aad.len() + sealed.len() + tag.len());
            for bit in 0..total {
                let (mut nonce, mut aad, mut buf, mut tag) = (nonce, aad, sealed, tag);
                let all = nonce.iter_mut().chain(&mut aad).chain(&mut buf).chain(&mut tag);
                *all.into_iter().nth(bit / 8).unwrap() ^= 1 << (bit % 8);
                assert_eq!(
                    key.open(&nonce, &aad, &mut buf, &tag),
                    Err(Unauthentic),
                    "{} bit {bit}",
                    suite.name()
                );
                assert_eq!(buf, [0; 33], "{} bit {bit}", suite.name());
            }
        }
    }

    #[test]
    fn an_empty_segment_is_authenticated() {
        for suite in Suite::ALL {
            let key = SegmentKey::new(suite, &[1; 32]);
            let mut tag = key.seal(&[0; 12], b"place", &mut []);
            key.open(&[0; 12], b"place", &mut [], &tag).unwrap();
            tag[15] ^= 1;
            assert_eq!(key.open(&[0; 12], b"place", &mut [], &tag), Err(Unauthentic));
        }
    }

    #[test]
    fn the_salt_decides_the_sub_key() {
        for suite in Suite::ALL {
            let keys = ChunkKeys::new(suite, &FileKey::from_bytes([3; 32]));
            let tag = |salt: [u8; 16]| keys.derive(&salt).seal(&[0; 12], b"", &mut [0; 16]);
            let zero = tag([0; 16]);
            for i in 0..16 {
                let mut salt = [0; 16];
                salt[i] = 1;
                // XAES uses 12 bytes of salt; the format rejects a chunk whose other four are not
                // zero.
                let counts = suite == Suite::ChaCha20Poly1305 || i < XAES_SALT_LEN;
                assert_eq!(tag(salt) != zero, counts, "{} byte {i}", suite.name());
            }
        }
    }
}
