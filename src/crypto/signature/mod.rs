//! Ed25519 (RFC 8032) with strict verification: neither the key nor R may be a point of small
//! order, the equation is the one without the cofactor, and encodings must be canonical. So all
//! verifiers agree, and a signature can neither be valid for two messages nor be changed into
//! another valid one.
//!
//! The dalek crate signs. With the default feature `aws-lc`, `aws-lc-rs` verifies in three quarters
//! of dalek's time; points that dalek's strict verification rejects beyond the equation are
//! rejected here first. Wycheproof and the tests below compare the two.

#[cfg(feature = "aws-lc")]
mod on_aws_lc;

use ed25519_dalek::Signer;
#[cfg(any(test, not(feature = "aws-lc")))]
use ed25519_dalek::{Signature, VerifyingKey};
use zeroize::ZeroizeOnDrop;

/// The signature is not valid for this message and key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("signature is not valid")]
pub struct BadSignature;

/// An Ed25519 signing key; wiped on drop.
pub struct SigningKey(ed25519_dalek::SigningKey);

impl ZeroizeOnDrop for SigningKey {}

impl SigningKey {
    /// Expands a seed.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        SigningKey(ed25519_dalek::SigningKey::from_bytes(seed))
    }

    /// Returns the public key.
    #[must_use]
    pub fn public(&self) -> [u8; 32] {
        self.0.verifying_key().to_bytes()
    }

    /// Signs `message`, which must begin with a label of [`super::labels`].
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.0.sign(message).to_bytes()
    }
}

/// Verifies a signature strictly.
///
/// # Errors
/// [`BadSignature`] if key or signature are malformed or of small order, or the signature is not
/// that of `message`.
pub fn verify(public: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> Result<(), BadSignature> {
    #[cfg(feature = "aws-lc")]
    return on_aws_lc::verify(public, message, signature);
    #[cfg(not(feature = "aws-lc"))]
    return on_dalek(public, message, signature);
}

#[cfg(any(test, not(feature = "aws-lc")))]
fn on_dalek(public: &[u8; 32], message: &[u8], signature: &[u8; 64]) -> Result<(), BadSignature> {
    let key = VerifyingKey::from_bytes(public).map_err(|_| BadSignature)?;
    key.verify_strict(message, &Signature::from_bytes(signature)).map_err(|_| BadSignature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_of_one_message_under_one_key() {
        let key = SigningKey::from_seed(&[4; 32]);
        let signature = key.sign(b"message");
        verify(&key.public(), b"message", &signature).unwrap();
        assert_eq!(verify(&key.public(), b"messagE", &signature), Err(BadSignature));
        assert_eq!(
            verify(&SigningKey::from_seed(&[5; 32]).public(), b"message", &signature),
            Err(BadSignature)
        );
        for bit in 0..512 {
            let mut changed = signature;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(verify(&key.public(), b"message", &changed), Err(BadSignature), "bit {bit}");
        }
    }

    #[test]
    fn a_key_of_small_order_verifies_nothing() {
        // Under the neutral element, R = neutral and s = 0 satisfy the plain equation for every
        // message.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        let mut signature = [0; 64];
        signature[0] = 1;
        assert_eq!(verify(&neutral, b"any message", &signature), Err(BadSignature));
        let plain = VerifyingKey::from_bytes(&neutral).unwrap();
        use ed25519_dalek::Verifier;
        assert!(
            plain.verify(b"any message", &Signature::from_bytes(&signature)).is_ok(),
            "strictness is what refuses it"
        );
    }
}
