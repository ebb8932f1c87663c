//! Predictable randomness: 00, 01, 02, ..., continued from call to call.

use std::sync::atomic::{AtomicU8, Ordering};

use kithfs::crypto::Random;

/// Returns the bytes that follow `0` (or another first one), wrapping at 255. For one structure at
/// a time: it repeats after 256 bytes.
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
