//! X25519 on `aws-lc-rs`, for a secret that is combined with many public keys. The library wipes
//! its copy of the secret when it frees it.

use super::ZeroShared;
use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};
use zeroize::Zeroizing;

/// An X25519 secret that the library holds.
pub(super) struct Fast(PrivateKey);

impl Fast {
    pub fn new(secret: &[u8; 32]) -> Self {
        Fast(PrivateKey::from_private_key(&X25519, secret).expect("any 32 bytes are a secret"))
    }

    pub fn diffie_hellman(&self, public: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, ZeroShared> {
        // Given 32 bytes, the library rejects only public keys whose result is zero.
        agree(&self.0, UnparsedPublicKey::new(&X25519, public), ZeroShared, |shared| {
            let shared =
                Zeroizing::new(<[u8; 32]>::try_from(shared).expect("a shared secret has 32 bytes"));
            if *shared == [0; 32] { Err(ZeroShared) } else { Ok(shared) }
        })
    }
}
