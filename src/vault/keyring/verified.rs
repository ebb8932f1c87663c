//! The verified-signature cache: signatures that were verified, or made by this process, since the
//! share was opened.
//!
//! Rules that hold here
//! * An entry is a hash of everything that verification reads: author, signer, message and
//!   signature. A claim that differs in one bit is not in the cache.
//! * Names and places of files are not part of the hash, and failed verifications are not cached.
//! * The signer's right to write is checked each time: a valid signature does not imply that it
//!   counts.

use lru::LruCache;
use parking_lot::Mutex;

use crate::format::error::FormatError;
use crate::format::signature::{Authorship, Claim};

/// Maximum number of cached signatures, about 100 bytes each.
const KNOWN_MAX: usize = 1 << 14;

/// The verified-signature cache of one share.
pub(crate) struct VerifiedCache(Mutex<LruCache<[u8; 32], ()>>);

impl VerifiedCache {
    pub fn new() -> Self {
        VerifiedCache(Mutex::new(LruCache::unbounded())) // takes no memory before its first use
    }

    /// Adds a valid claim.
    pub fn learn(&self, claim: &Claim) {
        self.note(claim.digest());
    }

    fn note(&self, digest: [u8; 32]) {
        let mut known = self.0.lock();
        known.put(digest, ());
        if known.len() > KNOWN_MAX {
            known.pop_lru();
        }
    }

    /// Returns author and signer of a claim, verified now or before.
    pub fn verify(&self, claim: &Claim) -> Result<Authorship, FormatError> {
        let digest = claim.digest();
        if self.0.lock().get(&digest).is_some() {
            return Ok(*claim.said());
        }
        let by = claim.verify()?;
        self.note(digest);
        Ok(by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::{SigningKey, labels};

    fn claim(message: &[u8], author: u8, change: impl FnOnce(&mut [u8; 64])) -> Claim {
        let key = SigningKey::from_seed(&[3; 32]);
        let by = Authorship { author: [author; 32], signer: key.public() };
        let mut signature = key.sign(&[labels::FILE_SIGNATURE.as_bytes(), message].concat());
        change(&mut signature);
        Claim::made(by, &labels::FILE_SIGNATURE, message, signature)
    }

    #[test]
    fn what_was_verified_is_known_and_nothing_that_differs() {
        let known = VerifiedCache::new();
        let good = claim(b"what is signed", 1, |_| ());
        assert_eq!(known.verify(&good).unwrap().author, [1; 32]);
        assert!(known.0.lock().contains(&good.digest()));
        for bit in 0..512 {
            assert!(
                known
                    .verify(&claim(b"what is signed", 1, |s| s[bit / 8] ^= 1 << (bit % 8)))
                    .is_err(),
                "bit {bit}"
            );
        }
        let signature =
            |s: &mut [u8; 64]| *s = SigningKey::from_seed(&[3; 32]).sign(b"something else");
        assert!(known.verify(&claim(b"what is signed", 1, signature)).is_err());
        assert_ne!(good.digest(), claim(b"what is signed", 2, |_| ()).digest());
        let other =
            Authorship { author: [1; 32], signer: SigningKey::from_seed(&[4; 32]).public() };
        let signature = SigningKey::from_seed(&[3; 32])
            .sign(&[labels::FILE_SIGNATURE.as_bytes(), b"what is signed"].concat());
        assert!(
            known
                .verify(&Claim::made(other, &labels::FILE_SIGNATURE, b"what is signed", signature))
                .is_err(),
            "another signer"
        );
        assert_ne!(good.digest(), claim(b"what is Signed", 1, |_| ()).digest());
        assert_eq!(known.0.lock().len(), 1, "what fails is not remembered");
    }

    #[test]
    fn what_is_known_is_not_verified_again() {
        // Shown with a claim that would fail.
        let known = VerifiedCache::new();
        let bad = claim(b"what is signed", 1, |s| s[0] ^= 1);
        assert!(known.verify(&bad).is_err());
        known.learn(&bad);
        assert!(known.verify(&bad).is_ok());
    }

    #[test]
    fn what_was_not_seen_for_long_makes_room() {
        let known = VerifiedCache::new();
        for n in 0..KNOWN_MAX + 10 {
            known.note(std::array::from_fn(|i| (n >> (8 * (i % 4))) as u8));
        }
        let known = known.0.lock();
        assert_eq!(known.len(), KNOWN_MAX);
        assert!(!known.contains(&[0; 32]));
    }
}
