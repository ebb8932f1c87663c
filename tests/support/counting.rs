//! Predictable randomness: 00, 01, 02, ..., continued from call to call.

use std::sync::atomic::{AtomicU8, Ordering};

use kithfs::crypto::Random;

/// Returns bytes that count up from 0 (or from another first byte), with 0 after 255. To be used for
/// one structure at a time, because the bytes repeat after 256.
pub struct Counting(AtomicU8);

impl Counting {
    /// Begins at `first`.
    pub fn from(first: u8) -> Self {
        Counting(AtomicU8::new(first))
    }
}

impl Random for Counting {
    fn fill(&self, buf: &mut [u8]) {
        for byte in buf {
            *byte = self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
