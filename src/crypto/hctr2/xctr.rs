//! AES-256 as HCTR2 uses it: single blocks both ways, and XCTR, the counter mode whose counter is
//! XORed into the nonce.
//!
//! XCTR block i, counted from 1, is E(nonce ⊕ i) with i as 128 little-endian bits. It authenticates
//! nothing.

use aes::Aes256;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

/// Length of a block in bytes.
const BLOCK: usize = 16;
/// Blocks of key stream made at a time: enough to fill the widest AES units, and a whole name of
/// 255 bytes.
const BATCH: usize = 16;

/// An AES-256 key schedule, wiped on drop.
pub struct Xctr(Aes256);

impl Xctr {
    /// Expands `key`.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        Xctr(Aes256::new(key.into()))
    }

    /// Encrypts one block. Blocks are little-endian numbers.
    #[must_use]
    pub fn encrypt_block(&self, block: u128) -> u128 {
        let mut block = aes::Block::from(block.to_le_bytes());
        self.0.encrypt_block(&mut block);
        u128::from_le_bytes(block.0)
    }

    /// Inverts [`Xctr::encrypt_block`].
    #[must_use]
    pub fn decrypt_block(&self, block: u128) -> u128 {
        let mut block = aes::Block::from(block.to_le_bytes());
        self.0.decrypt_block(&mut block);
        u128::from_le_bytes(block.0)
    }

    /// XORs the key stream of `nonce` into `buf`, which encrypts and decrypts.
    pub fn apply(&self, nonce: u128, buf: &mut [u8]) {
        let mut counters = 1u128..;
        for piece in buf.chunks_mut(BATCH * BLOCK) {
            let mut stream = [aes::Block::default(); BATCH];
            let stream = &mut stream[..piece.len().div_ceil(BLOCK)];
            for (block, counter) in stream.iter_mut().zip(&mut counters) {
                *block = (nonce ^ counter).to_le_bytes().into();
            }
            self.0.encrypt_blocks(stream);
            for (bytes, block) in piece.chunks_mut(BLOCK).zip(stream) {
                xor(bytes, &block.0);
            }
        }
    }

    /// Encrypts or decrypts many blocks, faster than one by one.
    pub(super) fn blocks(&self, blocks: &mut [aes::Block], direction: Direction) {
        match direction {
            Direction::Encrypt => self.0.encrypt_blocks(blocks),
            Direction::Decrypt => self.0.decrypt_blocks(blocks),
        }
    }
}

/// The direction of a permutation.
#[derive(Clone, Copy)]
pub(super) enum Direction {
    /// Plain to cipher.
    Encrypt,
    /// Cipher to plain.
    Decrypt,
}

/// XORs a block of key stream into at most 16 bytes.
fn xor(bytes: &mut [u8], stream: &[u8; BLOCK]) {
    if let Ok(whole) = <&mut [u8; BLOCK]>::try_from(&mut *bytes) {
        *whole = (u128::from_le_bytes(*whole) ^ u128::from_le_bytes(*stream)).to_le_bytes();
    } else {
        for (byte, mask) in bytes.iter_mut().zip(stream) {
            *byte ^= mask;
        }
    }
}
