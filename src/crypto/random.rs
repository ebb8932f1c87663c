//! The source of random bytes is an argument. `crypto` never asks the operating system itself.

/// A source of cryptographically secure random bytes.
///
/// It cannot fail: an implementation that has no randomness must end the process instead of
/// returning, because a nonce that is not random breaks confidentiality silently.
pub trait Random: Send + Sync {
    /// Fills all of `buf`.
    fn fill(&self, buf: &mut [u8]);
}

#[cfg(test)]
pub(crate) mod seeded {
    //! A reproducible generator for tests: SHA-256 of seed and counter.

    use super::Random;
    use sha2::{Digest, Sha256};
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(crate) struct Seeded {
        seed: u64,
        counter: AtomicU64,
    }

    impl Seeded {
        pub(crate) fn new(seed: u64) -> Self {
            Seeded { seed, counter: AtomicU64::new(0) }
        }
    }

    impl Random for Seeded {
        fn fill(&self, buf: &mut [u8]) {
            for piece in buf.chunks_mut(32) {
                let n = self.counter.fetch_add(1, Ordering::Relaxed);
                let block = Sha256::new()
                    .chain_update(self.seed.to_le_bytes())
                    .chain_update(n.to_le_bytes())
                    .finalize();
                piece.copy_from_slice(&block[..piece.len()]);
            }
        }
    }
}
