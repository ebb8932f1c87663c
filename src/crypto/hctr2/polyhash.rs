//! POLYVAL (RFC 8452) that can continue from an earlier accumulator, as HCTR2 needs it.
//!
//! POLYVAL is linear: a hash continues from an accumulator when that is added to the next block.

use polyval::universal_hash::UniversalHash;
use polyval::{Block, Polyval};

/// Length of a block in bytes.
const BLOCK: usize = 16;
/// Blocks that are padded and hashed at a time: a whole name of 255 bytes, and a multiple of the
/// number that the backend processes in parallel.
const BATCH: usize = 16;

/// A POLYVAL key with its powers.
pub struct PolyKey(Polyval);

impl PolyKey {
    /// Computes the powers of `key`.
    #[must_use]
    pub fn new(key: &[u8; BLOCK]) -> Self {
        PolyKey(Polyval::new(key.into()))
    }

    /// Hashes `message`, padded with zeros to a whole block, continuing from the accumulator
    /// `start` (zero at the beginning). `terminator`, if any, is a byte that follows the message
    /// before the zeros. Without input it returns `start`.
    #[must_use]
    pub fn hash(&self, start: u128, message: &[u8], terminator: Option<u8>) -> u128 {
        if message.is_empty() && terminator.is_none() {
            return start;
        }
        // The copy of the powers is wiped when it is dropped. That is about a third of the cost of
        // a short name, and worth it: it keeps key material from staying on the stack.
        let mut state = self.0.clone();
        let mut first = start;
        let mut rest = message;
        loop {
            let take = rest.len().min(BATCH * BLOCK);
            let (piece, after) = rest.split_at(take);
            let mut blocks = [Block::default(); BATCH];
            for (block, bytes) in blocks.iter_mut().zip(piece.chunks(BLOCK)) {
                block[..bytes.len()].copy_from_slice(bytes);
            }
            let mut used = take.div_ceil(BLOCK);
            // The terminator has its place in this batch unless the message ends exactly where the
            // batch does.
            let ends = after.is_empty() && take < BATCH * BLOCK;
            if let (true, Some(byte)) = (ends, terminator) {
                blocks[take / BLOCK][take % BLOCK] = byte;
                used = take / BLOCK + 1;
            }
            if used > 0 {
                blocks[0] = (u128::from_le_bytes(blocks[0].0) ^ first).to_le_bytes().into();
                first = 0;
                state.update(&blocks[..used]);
            }
            if ends || (after.is_empty() && terminator.is_none()) {
                return u128::from_le_bytes(state.finalize().0);
            }
            rest = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_goes_on_from_an_accumulator_at_any_block() {
        let key = PolyKey::new(&[0x35; 16]);
        for len in [0usize, 1, 15, 16, 17, 255, 256, 257, 511, 512, 513, 1000] {
            let message: Vec<u8> = (0..len).map(|i| (i * 7 + 1) as u8).collect();
            for terminator in [None, Some(1)] {
                let whole = key.hash(0, &message, terminator);
                // The reference: pad by hand and hash without batches or terminators.
                let mut padded = message.clone();
                padded.extend(terminator);
                padded.resize(padded.len().next_multiple_of(16), 0);
                let stepwise = padded.chunks(16).fold(0, |acc, block| key.hash(acc, block, None));
                assert_eq!(whole, stepwise, "length {len} terminator {terminator:?}");
                for cut in (0..=len).step_by(16) {
                    assert_eq!(
                        key.hash(key.hash(0, &message[..cut], None), &message[cut..], terminator),
                        whole,
                        "length {len} cut {cut}"
                    );
                }
            }
        }
    }
}
