//! An identity: one 32-byte seed, and the keys that are derived from it.
//!
//! Rules: the seed is the only secret that is stored; everything that is signed begins with a
//! label; no key leaves `roster` except the journal keys of shares and the key files of links.

use zeroize::Zeroizing;

use crate::crypto::exchange::{ExchangeSecret, ZeroShared};
use crate::crypto::kdf::{expand, extract};
use crate::crypto::keys::{IdentitySeed, JournalKey};
use crate::crypto::labels::{self, Label};
use crate::crypto::random::Random;
use crate::crypto::signature::SigningKey;
use crate::format::identity::PublicIdentity;

/// An unlocked identity. Wiped on drop; implements neither `Debug` nor `Clone`.
pub struct Identity {
    seed: IdentitySeed,
    prk: Zeroizing<[u8; 32]>,
    signing: SigningKey,
    exchange: ExchangeSecret,
    public: PublicIdentity,
}

impl Identity {
    /// Generates a new identity.
    pub fn generate(random: &dyn Random) -> Self {
        let mut seed = Zeroizing::new([0; 32]);
        random.fill(&mut *seed);
        Self::from_seed(IdentitySeed::from_bytes(*seed))
    }

    /// Derives the identity of a seed: `prk = HKDF-Extract("", seed)`, then one expansion for each
    /// key.
    pub fn from_seed(seed: IdentitySeed) -> Self {
        let prk = extract(b"", seed.expose());
        let signing = SigningKey::from_seed(&expand(&prk, &labels::IDENTITY_SIGNING, &[]));
        let exchange = ExchangeSecret::from_bytes(&expand(&prk, &labels::IDENTITY_EXCHANGE, &[]));
        let public = PublicIdentity { sign: signing.public(), exchange: exchange.public() };
        Self { seed, prk, signing, exchange, public }
    }

    /// Returns a second copy of the identity for a caller that has to keep one. It is wiped on its
    /// own drop.
    pub fn duplicate(&self) -> Self {
        Self::from_seed(IdentitySeed::from_bytes(*self.seed.expose()))
    }

    /// Returns the public half.
    pub fn public(&self) -> PublicIdentity {
        self.public
    }

    /// Signs `label ‖ message`; [`PublicIdentity::verify`] verifies it.
    pub fn sign(&self, label: &Label, message: &[u8]) -> [u8; 64] {
        self.signing.sign(&[label.as_bytes(), message].concat())
    }

    /// Returns the key of this identity's journals in a share.
    pub fn journal_key(&self, share: &[u8; 32]) -> JournalKey {
        JournalKey::from_bytes(*expand(&self.prk, &labels::IDENTITY_JOURNAL, &[share]))
    }

    /// Returns the secret by which this identity opens the file of `other`, as a key file.
    pub fn link_to(&self, other: &PublicIdentity) -> Zeroizing<[u8; 32]> {
        expand(&self.prk, &labels::IDENTITY_LINK, &[&other.sign, &other.exchange])
    }

    pub(super) fn seed(&self) -> &IdentitySeed {
        &self.seed
    }

    pub(super) fn diffie_hellman(
        &self,
        ephemeral: &[u8; 32],
    ) -> Result<Zeroizing<[u8; 32]>, ZeroShared> {
        self.exchange.diffie_hellman(ephemeral)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_identity_and_of_two_are_distinct() {
        let (a, b) = (
            Identity::from_seed(IdentitySeed::from_bytes([1; 32])),
            Identity::from_seed(IdentitySeed::from_bytes([2; 32])),
        );
        assert_eq!(a.public(), Identity::from_seed(IdentitySeed::from_bytes([1; 32])).public());
        assert_ne!(a.public().sign, b.public().sign);
        assert_ne!(a.public().exchange, b.public().exchange);
        assert_ne!(a.journal_key(&[0; 32]).expose(), a.journal_key(&[1; 32]).expose());
        assert_ne!(a.journal_key(&[0; 32]).expose(), b.journal_key(&[0; 32]).expose());
    }

    #[test]
    fn a_signature_under_one_label_is_none_under_another() {
        let a = Identity::from_seed(IdentitySeed::from_bytes([1; 32]));
        let signature = a.sign(&labels::MANIFEST_SIGNATURE, b"text");
        assert!(a.public().verify(&labels::MANIFEST_SIGNATURE, b"text", &signature).is_ok());
        assert!(a.public().verify(&labels::MANIFEST_HASH, b"text", &signature).is_err());
        assert!(a.public().verify(&labels::MANIFEST_SIGNATURE, b"other", &signature).is_err());
    }
}
