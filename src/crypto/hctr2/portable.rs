//! HCTR2 on the crates `aes` and `polyval`: runs on every processor, and is the reference for the
//! wide path.

use super::polyhash::PolyKey;
use super::xctr::Xctr;
use super::{Direction, TooShort, Tweak, tweak_length_blocks};
use crate::crypto::keys::NamesKey;
use zeroize::Zeroize;

/// Number of names whose first blocks go through AES together.
const GROUP: usize = 32;

/// AES schedule, POLYVAL powers, and the mask L.
pub(super) struct Portable {
    xctr: Xctr,
    poly: PolyKey,
    l: u128,
}

impl Drop for Portable {
    fn drop(&mut self) {
        self.l.zeroize();
    }
}

impl Portable {
    pub fn new(key: &NamesKey) -> Self {
        let xctr = Xctr::new(key.expose());
        let mut h = xctr.encrypt_block(0).to_le_bytes();
        let (poly, l) = (PolyKey::new(&h), xctr.encrypt_block(1));
        h.zeroize();
        Portable { xctr, poly, l }
    }

    pub fn tweak(&self, tweak: &[u8]) -> Tweak {
        let hash = |length_block: u128| {
            self.poly.hash(0, &[&length_block.to_le_bytes(), tweak].concat(), None)
        };
        let [whole, partial] = tweak_length_blocks(tweak).map(hash);
        Tweak { whole, partial }
    }

    /// Computes H(T, X).
    fn hash(&self, tweak: &Tweak, rest: &[u8]) -> u128 {
        if rest.len().is_multiple_of(16) {
            self.poly.hash(tweak.whole, rest, None)
        } else {
            self.poly.hash(tweak.partial, rest, Some(1))
        }
    }

    // Decryption is encryption with E inverted: S is the same, since MM and UU only change places.
    pub fn one(&self, tweak: &Tweak, buf: &mut [u8], direction: Direction) -> Result<(), TooShort> {
        let (head, rest) = buf.split_first_chunk_mut::<16>().ok_or(TooShort)?;
        let before = u128::from_le_bytes(*head) ^ self.hash(tweak, rest);
        let after = match direction {
            Direction::Encrypt => self.xctr.encrypt_block(before),
            Direction::Decrypt => self.xctr.decrypt_block(before),
        };
        self.xctr.apply(before ^ after ^ self.l, rest);
        *head = (after ^ self.hash(tweak, rest)).to_le_bytes();
        Ok(())
    }

    /// Does [`Portable::one`] for each of `bufs`, which must all be long enough.
    pub fn many(
        &self,
        tweak: &Tweak,
        bufs: &mut [&mut [u8]],
        direction: Direction,
    ) -> Result<(), TooShort> {
        for group in bufs.chunks_mut(GROUP) {
            let mut before = [0; GROUP];
            let mut after = [aes::Block::default(); GROUP];
            let after = &mut after[..group.len()];
            for ((buf, before), after) in group.iter().zip(&mut before).zip(&mut *after) {
                let (head, rest) = buf.split_first_chunk::<16>().ok_or(TooShort)?;
                *before = u128::from_le_bytes(*head) ^ self.hash(tweak, rest);
                *after = before.to_le_bytes().into();
            }
            self.xctr.blocks(after, direction);
            for ((buf, before), after) in group.iter_mut().zip(before).zip(after) {
                let (head, rest) = buf.split_first_chunk_mut::<16>().ok_or(TooShort)?;
                let after = u128::from_le_bytes(after.0);
                self.xctr.apply(before ^ after ^ self.l, rest);
                *head = (after ^ self.hash(tweak, rest)).to_le_bytes();
            }
        }
        Ok(())
    }
}
