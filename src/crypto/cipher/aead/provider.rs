//! [`Aead`] on the libraries that provide it: `ring`, and `aws-lc-rs`, which has the same interface.
//!
//! Neither documents what it leaves in the buffer if the data is not authentic: it may be
//! plaintext. `aws-lc-rs` wipes every key when it frees it. `ring` does not wipe an expanded key.
//! Only sub-keys of chunks and records are expanded here; the keys that they come from are in types
//! that are wiped.

use zeroize::Zeroize;

use super::{Aead, NONCE_LEN, TAG_LEN};
use crate::crypto::suite::{Suite, Unauthentic};

/// Implements [`Aead`] on a library. `$open` opens the buffer with a key, a nonce, the associated
/// data and a tag, and returns whether the data is authentic.
macro_rules! provider {
    ($name:ident, $library:ident, $open:expr) => {
        #[doc = concat!("[`Aead`] on `", stringify!($library), "`.")]
        pub struct $name($library::aead::LessSafeKey);

        impl Aead for $name {
            fn new(suite: Suite, key: &[u8; 32]) -> Self {
                use $library::aead::{AES_256_GCM, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
                let algorithm = match suite {
                    Suite::Aes256Gcm => &AES_256_GCM,
                    Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
                };
                let key = UnboundKey::new(algorithm, key);
                $name(LessSafeKey::new(key.expect("both algorithms take a key of 32 bytes")))
            }

            fn seal(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], buf: &mut [u8]) -> [u8; TAG_LEN] {
                use $library::aead::{Aad, Nonce};
                let nonce = Nonce::assume_unique_for_key(*nonce);
                let tag = self.0.seal_in_place_separate_tag(nonce, Aad::from(aad), buf);
                let tag = tag.expect("a buffer is far below the limit of 64 GiB");
                tag.as_ref().try_into().expect("tags of both algorithms have 16 bytes")
            }

            fn open(
                &self,
                nonce: &[u8; NONCE_LEN],
                aad: &[u8],
                buf: &mut [u8],
                tag: &[u8; TAG_LEN],
            ) -> Result<(), Unauthentic> {
                use $library::aead::{Aad, LessSafeKey, Nonce};
                let nonce = Nonce::assume_unique_for_key(*nonce);
                let open: fn(&LessSafeKey, Nonce, Aad<&[u8]>, &[u8; TAG_LEN], &mut [u8]) -> bool =
                    $open;
                if open(&self.0, nonce, Aad::from(aad), tag, buf) {
                    return Ok(());
                }
                buf.zeroize();
                Err(Unauthentic)
            }
        }
    };
}

provider!(RingAead, ring, |key, nonce, aad, tag, buf| {
    key.open_in_place_separate_tag(nonce, aad, (*tag).into(), buf, 0..).is_ok()
});
#[cfg(feature = "aws-lc")]
provider!(AwsLcAead, aws_lc_rs, |key, nonce, aad, tag, buf| {
    key.open_in_place_separate_tag(nonce, aad, tag, buf).is_ok()
});
