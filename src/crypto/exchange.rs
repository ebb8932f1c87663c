//! X25519 (RFC 7748), which rejects all-zero results as its section 6.1 allows.
//!
//! With the default feature `aws-lc`, `aws-lc-rs` does it, in half of the time of the dalek crate,
//! which does it otherwise. The time counts where one secret meets the public keys of thousands of
//! members. Wycheproof runs over both; the tests below and the fuzzer compare them.

use zeroize::{ZeroizeOnDrop, Zeroizing};

/// The other side's public key has a small order, so the result is zero for every secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("public key yields a shared secret of zero")]
pub struct ZeroShared;

/// An X25519 secret, long-lived or ephemeral; wiped on drop.
pub struct ExchangeSecret(library::Secret);

impl ZeroizeOnDrop for ExchangeSecret {}

impl ExchangeSecret {
    /// Takes 32 random bytes as the secret; they are clamped at use.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        ExchangeSecret(library::secret(bytes))
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> [u8; 32] {
        library::public(&self.0)
    }

    /// Returns the secret shared with the holder of `public`. Do not use it as a key: derive one,
    /// and bind both public keys into the derivation.
    ///
    /// # Errors
    /// [`ZeroShared`] if the result is zero.
    pub fn diffie_hellman(&self, public: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, ZeroShared> {
        library::shared(&self.0, public)
    }
}

#[cfg(feature = "aws-lc")]
mod library {
    use super::{ZeroShared, Zeroizing};
    /// The library wipes it when it frees it.
    pub use aws_lc_rs::agreement::PrivateKey as Secret;
    use aws_lc_rs::agreement::{UnparsedPublicKey, X25519, agree};

    pub fn secret(bytes: &[u8; 32]) -> Secret {
        Secret::from_private_key(&X25519, bytes).expect("any 32 bytes are a secret")
    }

    pub fn public(secret: &Secret) -> [u8; 32] {
        let public = secret.compute_public_key().expect("every secret has a public key");
        public.as_ref().try_into().expect("a public key has 32 bytes")
    }

    pub fn shared(secret: &Secret, public: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, ZeroShared> {
        // Given 32 bytes, the library rejects only public keys whose result is zero.
        agree(secret, UnparsedPublicKey::new(&X25519, public), ZeroShared, |shared| {
            Ok(Zeroizing::new(shared.try_into().expect("a shared secret has 32 bytes")))
        })
    }
}

#[cfg(not(feature = "aws-lc"))]
mod library {
    use super::{ZeroShared, Zeroizing};
    pub use x25519_dalek::StaticSecret as Secret;

    pub fn secret(bytes: &[u8; 32]) -> Secret {
        Secret::from(*bytes)
    }

    pub fn public(secret: &Secret) -> [u8; 32] {
        x25519_dalek::PublicKey::from(secret).to_bytes()
    }

    pub fn shared(secret: &Secret, public: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, ZeroShared> {
        let shared = secret.diffie_hellman(&x25519_dalek::PublicKey::from(*public));
        if shared.was_contributory() {
            Ok(Zeroizing::new(shared.to_bytes()))
        } else {
            Err(ZeroShared)
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
            assert_eq!(secret.diffie_hellman(&hex(point)).err(), Some(ZeroShared), "{point}");
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
            let bytes = *blake3::hash(&[b's', i]).as_bytes();
            let (secret, dalek) =
                (ExchangeSecret::from_bytes(&bytes), x25519_dalek::StaticSecret::from(bytes));
            assert_eq!(secret.public(), x25519_dalek::PublicKey::from(&dalek).to_bytes());
            for public in &publics {
                let shared = dalek.diffie_hellman(&x25519_dalek::PublicKey::from(*public));
                let expected = shared
                    .was_contributory()
                    .then(|| Zeroizing::new(shared.to_bytes()))
                    .ok_or(ZeroShared);
                assert_eq!(secret.diffie_hellman(public), expected, "{}", hex::encode(public));
            }
        }
    }
}
