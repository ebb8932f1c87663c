//! HCTR2-AES-256: length-preserving encryption of names, where every bit of the output depends on every bit of the input.
//!
//! From "Length-preserving encryption with HCTR2" (Crowley, Huckleberry, Biggers, 2021, ePrint 2021/1441). In its terms:
//!
//! ```text
//! h = E(0)   L = E(1)                      M = first 16 bytes, N = the rest
//! MM = M ^ H(T, N)   UU = E(MM)   S = MM ^ UU ^ L   V = N ^ XCTR(S)   U = UU ^ H(T, V)
//! H(T, X) = POLYVAL(h, 2|T|+2 ‖ pad(T) ‖ X)              where X is whole blocks, |T| in bits
//!         = POLYVAL(h, 2|T|+3 ‖ pad(T) ‖ pad(X ‖ 01))    where it is not
//! ```
//!
//! It is deterministic and authenticates nothing: equal inputs under equal tweaks are seen to be equal, and redundancy that makes
//! tampering visible must be in the input. What depends on the key alone is computed in [`Hctr2::new`], what depends on the tweak
//! (a directory's id) in [`Hctr2::tweak`], so that a name costs what its own bytes cost.

use super::keys::NamesKey;
use super::polyhash::PolyKey;
use super::xctr::{Direction, Xctr};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The shortest input in bytes.
pub const MIN_LEN: usize = 16;

/// Names whose first blocks go through AES together.
const GROUP: usize = 32;

/// The input has fewer than 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shorter than one block of 16 bytes")]
pub struct TooShort;

/// An HCTR2-AES-256 key: AES schedule, POLYVAL powers, and the mask L.
pub struct Hctr2 {
    xctr: Xctr,
    poly: PolyKey,
    l: u128,
}

impl Drop for Hctr2 {
    fn drop(&mut self) {
        self.l.zeroize();
    }
}

/// The hash of a tweak under one key, to be used with the [`Hctr2`] that made it and no other.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Tweak {
    /// The accumulator where whole blocks follow.
    whole: u128,
    /// The accumulator where the last block is a partial one.
    partial: u128,
}

impl Hctr2 {
    /// Expands `key`.
    #[must_use]
    pub fn new(key: &NamesKey) -> Self {
        let xctr = Xctr::new(key.expose());
        let mut h = xctr.encrypt_block(0).to_le_bytes();
        let (poly, l) = (PolyKey::new(&h), xctr.encrypt_block(1));
        h.zeroize();
        Hctr2 { xctr, poly, l }
    }

    /// Hashes a tweak of any length, once for all names under it.
    #[must_use]
    pub fn tweak(&self, tweak: &[u8]) -> Tweak {
        let twice_bits = 16 * tweak.len() as u128;
        let hash = |length_block: u128| self.poly.hash(0, &[&length_block.to_le_bytes(), tweak].concat(), None);
        Tweak { whole: hash(twice_bits + 2), partial: hash(twice_bits + 3) }
    }

    /// Encrypts `buf` in place.
    ///
    /// # Errors
    /// [`TooShort`] when it has fewer than 16 bytes; it is then unchanged.
    pub fn encrypt(&self, tweak: &Tweak, buf: &mut [u8]) -> Result<(), TooShort> {
        self.one(tweak, buf, Direction::Encrypt)
    }

    /// Decrypts `buf` in place.
    ///
    /// # Errors
    /// [`TooShort`] when it has fewer than 16 bytes; it is then unchanged.
    pub fn decrypt(&self, tweak: &Tweak, buf: &mut [u8]) -> Result<(), TooShort> {
        self.one(tweak, buf, Direction::Decrypt)
    }

    /// Encrypts each of `bufs` in place, as [`Hctr2::encrypt`] does, but faster for many short ones.
    ///
    /// # Errors
    /// [`TooShort`] when one has fewer than 16 bytes; all are then unchanged.
    pub fn encrypt_many(&self, tweak: &Tweak, bufs: &mut [&mut [u8]]) -> Result<(), TooShort> {
        self.many(tweak, bufs, Direction::Encrypt)
    }

    /// Decrypts each of `bufs` in place, as [`Hctr2::decrypt`] does, but faster for many short ones.
    ///
    /// # Errors
    /// [`TooShort`] when one has fewer than 16 bytes; all are then unchanged.
    pub fn decrypt_many(&self, tweak: &Tweak, bufs: &mut [&mut [u8]]) -> Result<(), TooShort> {
        self.many(tweak, bufs, Direction::Decrypt)
    }

    /// H(T, X).
    fn hash(&self, tweak: &Tweak, rest: &[u8]) -> u128 {
        if rest.len().is_multiple_of(16) { self.poly.hash(tweak.whole, rest, None) } else { self.poly.hash(tweak.partial, rest, Some(1)) }
    }

    // Decryption is encryption with E inverted: S is the same, since MM and UU only change places.
    fn one(&self, tweak: &Tweak, buf: &mut [u8], direction: Direction) -> Result<(), TooShort> {
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

    fn many(&self, tweak: &Tweak, bufs: &mut [&mut [u8]], direction: Direction) -> Result<(), TooShort> {
        if bufs.iter().any(|buf| buf.len() < MIN_LEN) {
            return Err(TooShort);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + len) as u8).collect()
    }

    #[test]
    fn decryption_inverts_encryption_at_every_length() {
        let cipher = Hctr2::new(&NamesKey::from_bytes([0x11; 32]));
        for tweak_len in [0, 1, 16, 32, 33] {
            let tweak = cipher.tweak(&sample(tweak_len));
            for len in 16..=600 {
                let plain = sample(len);
                let mut buf = plain.clone();
                cipher.encrypt(&tweak, &mut buf).unwrap();
                assert_ne!(buf, plain);
                cipher.decrypt(&tweak, &mut buf).unwrap();
                assert_eq!(buf, plain, "length {len}, tweak {tweak_len}");
            }
        }
    }

    #[test]
    fn less_than_a_block_is_refused_and_left_alone() {
        let cipher = Hctr2::new(&NamesKey::from_bytes([0x11; 32]));
        let tweak = cipher.tweak(b"");
        for len in 0..16 {
            let mut buf = sample(len);
            assert_eq!(cipher.encrypt(&tweak, &mut buf), Err(TooShort));
            assert_eq!(cipher.decrypt(&tweak, &mut buf), Err(TooShort));
            assert_eq!(buf, sample(len));
            let mut good = sample(20);
            assert_eq!(cipher.encrypt_many(&tweak, &mut [&mut good, &mut buf]), Err(TooShort));
            assert_eq!(cipher.decrypt_many(&tweak, &mut [&mut good, &mut buf]), Err(TooShort));
            assert_eq!(good, sample(20));
        }
    }

    #[test]
    fn many_at_once_are_the_same_as_one_by_one() {
        let cipher = Hctr2::new(&NamesKey::from_bytes([0x22; 32]));
        let tweak = cipher.tweak(b"a directory");
        for count in [0, 1, GROUP - 1, GROUP, GROUP + 1, 3 * GROUP + 5] {
            let plain: Vec<Vec<u8>> = (0..count).map(|i| sample(16 + i * 3)).collect();
            let mut single = plain.clone();
            for name in &mut single {
                cipher.encrypt(&tweak, name).unwrap();
            }
            let mut batch = plain.clone();
            let mut bufs: Vec<&mut [u8]> = batch.iter_mut().map(Vec::as_mut_slice).collect();
            cipher.encrypt_many(&tweak, &mut bufs).unwrap();
            assert_eq!(batch, single);
            let mut bufs: Vec<&mut [u8]> = batch.iter_mut().map(Vec::as_mut_slice).collect();
            cipher.decrypt_many(&tweak, &mut bufs).unwrap();
            assert_eq!(batch, plain);
        }
    }

    #[test]
    fn one_bit_of_input_tweak_or_key_changes_half_of_the_output() {
        let (cipher, plain) = (Hctr2::new(&NamesKey::from_bytes([0x33; 32])), sample(64));
        let sealed = |cipher: &Hctr2, tweak: &[u8], plain: &[u8]| {
            let mut buf = plain.to_vec();
            cipher.encrypt(&cipher.tweak(tweak), &mut buf).unwrap();
            buf
        };
        let base = sealed(&cipher, b"tweak", &plain);
        let distance = |other: Vec<u8>| base.iter().zip(other).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
        let mut distances = vec![distance(sealed(&cipher, b"tweaK", &plain))];
        let mut key = [0x33; 32];
        key[31] ^= 1;
        distances.push(distance(sealed(&Hctr2::new(&NamesKey::from_bytes(key)), b"tweak", &plain)));
        for bit in 0..512 {
            let mut changed = plain.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            distances.push(distance(sealed(&cipher, b"tweak", &changed)));
        }
        // 512 bits: mean 256, standard deviation 11.3; eight of them on either side.
        assert!(distances.iter().all(|d| (166..=346).contains(d)), "{distances:?}");
    }
}
