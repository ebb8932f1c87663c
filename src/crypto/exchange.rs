//! X25519 (RFC 7748), with the refusal of all-zero results that its section 6.1 allows.

use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{ZeroizeOnDrop, Zeroizing};

/// The other side's public key has a small order, so that the result is zero whatever the secret is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("public key gives a shared secret of zero")]
pub struct ZeroShared;

/// An X25519 secret, long-lived or ephemeral; wiped on drop.
pub struct ExchangeSecret(StaticSecret);

impl ZeroizeOnDrop for ExchangeSecret {}

impl ExchangeSecret {
    /// Takes 32 random bytes as the secret; they are clamped at use.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 32]) -> Self {
        ExchangeSecret(StaticSecret::from(*bytes))
    }

    /// The public key.
    #[must_use]
    pub fn public(&self) -> [u8; 32] {
        PublicKey::from(&self.0).to_bytes()
    }

    /// The secret shared with the holder of `public`. It is no key: derive one, and bind both public keys in doing so.
    ///
    /// # Errors
    /// [`ZeroShared`] when the result is zero.
    pub fn diffie_hellman(&self, public: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, ZeroShared> {
        let shared = self.0.diffie_hellman(&PublicKey::from(*public));
        if shared.was_contributory() { Ok(Zeroizing::new(shared.to_bytes())) } else { Err(ZeroShared) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_get_the_same_secret() {
        let (a, b) = (ExchangeSecret::from_bytes(&[1; 32]), ExchangeSecret::from_bytes(&[2; 32]));
        assert_eq!(*a.diffie_hellman(&b.public()).unwrap(), *b.diffie_hellman(&a.public()).unwrap());
    }

    #[test]
    fn points_of_small_order_are_refused() {
        let hex = |text: &str| <[u8; 32]>::try_from(hex::decode(text).unwrap()).unwrap();
        let secret = ExchangeSecret::from_bytes(&[1; 32]);
        // Both of order 8, then 0, 1, -1 and what reduces to them modulo 2^255 - 19.
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
}
