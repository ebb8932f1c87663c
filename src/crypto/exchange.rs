//! X25519 (RFC 7748), which rejects all-zero results as its section 6.1 allows.
//!
//! The dalek crate does single exchanges. [`ForMany`] is for a secret that meets the public keys of
//! thousands of members: with the default feature `aws-lc`, `aws-lc-rs` does these exchanges in half of
//! the time. Wycheproof, the tests below and the fuzzer compare the two.

use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{ZeroizeOnDrop, Zeroizing};

/// The other side's public key has a small order, so the result is zero for every secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("public key yields a shared secret of zero")]
pub struct ZeroShared;

/// The secret shared with the holder of one public key, or [`ZeroShared`]. Do not use the secret as
/// a key: derive one, and bind both public keys into the derivation.
pub type Shared = Result<Zeroizing<[u8; 32]>, ZeroShared>;

/// An X25519 secret, long-lived or ephemeral; wiped on drop.
pub struct ExchangeSecret(StaticSecret);

impl ZeroizeOnDrop for ExchangeSecret {}

impl ExchangeSecret {
    /// Takes 32 random bytes as the secret; they are clamped at use.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        ExchangeSecret(StaticSecret::from(*bytes))
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> [u8; 32] {
        PublicKey::from(&self.0).to_bytes()
    }

    /// Returns the secret shared with the holder of `public`.
    ///
    /// # Errors
    /// [`ZeroShared`] if the result is zero.
    pub fn diffie_hellman(&self, public: &[u8; 32]) -> Shared {
        let shared = self.0.diffie_hellman(&PublicKey::from(*public));
        if shared.was_contributory() {
            Ok(Zeroizing::new(shared.to_bytes()))
        } else {
            Err(ZeroShared)
        }
    }

    /// Prepares the same secret for many exchanges.
    #[must_use]
    pub fn for_many(&self) -> ForMany {
        ForMany::new(&self.0)
    }
}

pub use many::ForMany;

#[cfg(feature = "aws-lc")]
mod many {
    use super::{Shared, StaticSecret, ZeroShared, Zeroizing};
    use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};

    /// A secret that meets many public keys, on any thread. The library wipes it when it frees it.
    pub struct ForMany(PrivateKey);

    impl ForMany {
        pub(super) fn new(secret: &StaticSecret) -> Self {
            let secret = PrivateKey::from_private_key(&X25519, secret.as_bytes());
            ForMany(secret.expect("any 32 bytes are a secret"))
        }

        /// Like [`ExchangeSecret::diffie_hellman`](super::ExchangeSecret::diffie_hellman).
        pub fn diffie_hellman(&self, public: &[u8; 32]) -> Shared {
            // Given 32 bytes, the library rejects only public keys whose result is zero.
            agree(&self.0, UnparsedPublicKey::new(&X25519, public), ZeroShared, |shared| {
                Ok(Zeroizing::new(shared.try_into().expect("a shared secret has 32 bytes")))
            })
        }
    }
}

#[cfg(not(feature = "aws-lc"))]
mod many {
    use super::{ExchangeSecret, Shared, StaticSecret};

    /// A secret that meets many public keys, on any thread.
    pub struct ForMany(ExchangeSecret);

    impl ForMany {
        pub(super) fn new(secret: &StaticSecret) -> Self {
            ForMany(ExchangeSecret(secret.clone()))
        }

        /// Like [`ExchangeSecret::diffie_hellman`].
        pub fn diffie_hellman(&self, public: &[u8; 32]) -> Shared {
            self.0.diffie_hellman(public)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_get_the_same_secret() {
        let (a, b) = (ExchangeSecret::from_bytes(&[1; 32]), ExchangeSecret::from_bytes(&[2; 32]));
        assert_eq!(
            *a.diffie_hellman(&b.public()).unwrap(),
            *b.diffie_hellman(&a.public()).unwrap()
        );
    }

    #[test]
    fn points_of_small_order_are_refused() {
        let hex = |text: &str| <[u8; 32]>::try_from(hex::decode(text).unwrap()).unwrap();
        let secret = ExchangeSecret::from_bytes(&[1; 32]);
        // Both of order 8, then 0, 1, -1 and the values that reduce to them modulo 2^255 - 19.
        for point in [
            "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
            "0000000000000000000000000000000000000000000000000000000000000000",
            "0100000000000000000000000000000000000000000000000000000000000000",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        ] {
            let point_bytes = hex(point);
            for shared in [
                secret.diffie_hellman(&point_bytes),
                secret.for_many().diffie_hellman(&point_bytes),
            ] {
                assert_eq!(shared.err(), Some(ZeroShared), "{point}");
            }
        }
    }

    #[test]
    fn both_libraries_give_the_same_results() {
        // Points of the curve and of its twist, with the ignored bit set and not, and numbers from
        // 2^255 - 19 on.
        let mut publics: Vec<[u8; 32]> =
            (0..=255u8).map(|i| *blake3::hash(&[i]).as_bytes()).collect();
        publics.extend((0xed..=0xff).map(|low| {
            let mut public = [0xff; 32];
            public[0] = low;
            public
        }));
        for i in 0..4 {
            let secret = ExchangeSecret::from_bytes(blake3::hash(&[b's', i]).as_bytes());
            let many = secret.for_many();
            for public in &publics {
                let (one, other) = (secret.diffie_hellman(public), many.diffie_hellman(public));
                assert_eq!(one, other, "{}", hex::encode(public));
            }
        }
    }
}
