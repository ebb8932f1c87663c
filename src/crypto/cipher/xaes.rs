//! The key step of XAES-256-GCM (C2SP, `XAES-256-GCM.md`). It derives an AES-256-GCM key from a
//! 256-bit key and the first 12 bytes of a 24-byte nonce; the other 12 bytes are the nonce under
//! that key. The step is the KDF in counter mode of NIST SP 800-108r1 with CMAC, for two blocks.

use aes::Aes256;
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::crypto::stack;

/// Length of the part of the nonce that chooses the sub-key.
pub const SALT_LEN: usize = 12;

/// An XAES-256-GCM key with its AES schedule and its CMAC sub-key.
pub struct Xaes {
    aes: Aes256,
    k1: [u8; 16],
}

impl Drop for Xaes {
    fn drop(&mut self) {
        self.k1.zeroize();
    }
}

// The AES schedule is wiped by its own drop.
impl ZeroizeOnDrop for Xaes {}

impl Xaes {
    /// Expands `key`.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        stack::wipe_at_end();
        let aes = Aes256::new(key.into());
        let mut l = aes::Block::default();
        aes.encrypt_block(&mut l);
        let value = u128::from_be_bytes(l.0);
        // Doubling in GF(2^128); the reduction is by mask, not by branch, because the top bit is
        // secret.
        let k1 = (value << 1) ^ (0x87 & (value >> 127).wrapping_neg());
        l.0.zeroize();
        Xaes { aes, k1: k1.to_be_bytes() }
    }

    /// Returns the AES-256-GCM key for nonces that begin with `salt`.
    #[must_use]
    pub fn derive(&self, salt: &[u8; SALT_LEN]) -> Zeroizing<[u8; 32]> {
        stack::wipe_at_end();
        let mut blocks = [aes::Block::default(); 2];
        for (block, counter) in blocks.iter_mut().zip(1u8..) {
            block[1] = counter;
            block[2] = b'X';
            block[4..].copy_from_slice(salt);
            for (byte, mask) in block.iter_mut().zip(&self.k1) {
                *byte ^= mask;
            }
        }
        self.aes.encrypt_blocks(&mut blocks);
        let mut key = Zeroizing::new([0; 32]);
        for (half, block) in key.chunks_exact_mut(16).zip(&mut blocks) {
            half.copy_from_slice(block);
            block.0.zeroize();
        }
        key
    }
}
