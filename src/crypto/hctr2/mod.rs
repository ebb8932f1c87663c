//! HCTR2-AES-256: length-preserving encryption of names, where every bit of the output depends on
//! every bit of the input.
//!
//! From "Length-preserving encryption with HCTR2" (Crowley, Huckleberry, Biggers, 2021, ePrint
//! 2021/1441). In its terms:
//!
//! ```text
//! h = E(0)   L = E(1)                      M = first 16 bytes, N = the rest
//! MM = M ^ H(T, N)   UU = E(MM)   S = MM ^ UU ^ L   V = N ^ XCTR(S)   U = UU ^ H(T, V)
//! H(T, X) = POLYVAL(h, 2|T|+2 ‖ pad(T) ‖ X)              where X is whole blocks, |T| in bits
//!         = POLYVAL(h, 2|T|+3 ‖ pad(T) ‖ pad(X ‖ 01))    where it is not
//! ```
//!
//! It is deterministic and authenticates nothing: equal inputs under equal tweaks have equal
//! outputs. To detect tampering, put redundancy into the input. [`Hctr2::new`] computes everything
//! that depends on the key alone, and [`Hctr2::tweak`] everything that depends on the tweak, so the
//! cost of a name depends on its own bytes only.
//!
//! There are two implementations, which the vectors and the fuzzer compare: `portable`, and `wide`
//! for x86-64 processors with VAES, VPCLMULQDQ and AVX-512. `wide` is used on every processor that
//! supports it.

pub mod polyhash;
pub mod xctr;

mod portable;
#[cfg(target_arch = "x86_64")]
mod wide;

use crate::crypto::keys::NamesKey;
use crate::crypto::stack;
use portable::Portable;
use xctr::Direction;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The shortest input in bytes.
pub const MIN_LEN: usize = 16;

/// The input has fewer than 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shorter than one block of 16 bytes")]
pub struct TooShort;

/// An HCTR2-AES-256 key: AES schedule, POLYVAL powers, and the mask L.
pub struct Hctr2 {
    path: Path,
    /// The hash of the empty tweak, under which all names are sealed.
    untweaked: Tweak,
}

enum Path {
    Portable(Box<Portable>),
    #[cfg(target_arch = "x86_64")]
    Wide(Box<wide::Wide>),
}

impl Path {
    fn tweak(&self, tweak: &[u8]) -> Tweak {
        match self {
            Path::Portable(path) => path.tweak(tweak),
            #[cfg(target_arch = "x86_64")]
            Path::Wide(path) => path.tweak(tweak),
        }
    }
}

/// The hash of a tweak under one key, to be used with an [`Hctr2`] of that key and no other.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Tweak {
    /// The accumulator if only whole blocks follow.
    whole: u128,
    /// The accumulator if the last block that follows is partial.
    partial: u128,
}

impl Tweak {
    /// Returns the accumulator for `len` bytes behind the first block, and whether a byte 1 follows
    /// them.
    #[cfg(target_arch = "x86_64")]
    fn start(&self, len: usize) -> (u128, bool) {
        if len.is_multiple_of(16) { (self.whole, false) } else { (self.partial, true) }
    }
}

/// Returns the blocks that are hashed before a tweak: one for inputs of whole blocks, and one for
/// inputs whose last block is partial.
fn tweak_length_blocks(tweak: &[u8]) -> [u128; 2] {
    let twice_bits = 16 * tweak.len() as u128;
    [twice_bits + 2, twice_bits + 3]
}

impl Hctr2 {
    /// Expands `key`, for the fastest path that this processor has.
    #[must_use]
    pub fn new(key: &NamesKey) -> Self {
        Self::wide(key).unwrap_or_else(|| Self::portable(key))
    }

    /// Expands `key` for the path that every processor has.
    #[must_use]
    pub fn portable(key: &NamesKey) -> Self {
        Self::by(Path::Portable(Box::new(Portable::new(key))))
    }

    /// Expands `key` for the wide path; `None` if the processor lacks a feature that it needs.
    #[must_use]
    pub fn wide(key: &NamesKey) -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        return wide::Wide::new(key).map(|wide| Self::by(Path::Wide(wide)));
        #[cfg(not(target_arch = "x86_64"))]
        return None;
    }

    fn by(path: Path) -> Self {
        Hctr2 { untweaked: path.tweak(b""), path }
    }

    /// Hashes a tweak of any length, once for all names under it.
    #[must_use]
    pub fn tweak(&self, tweak: &[u8]) -> Tweak {
        self.path.tweak(tweak)
    }

    /// Returns the hash of the empty tweak.
    #[must_use]
    pub fn untweaked(&self) -> &Tweak {
        &self.untweaked
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

    /// Encrypts each of `bufs` in place, as [`Hctr2::encrypt`] does, but faster for many short
    /// ones.
    ///
    /// # Errors
    /// [`TooShort`] when one has fewer than 16 bytes; all are then unchanged.
    pub fn encrypt_many(&self, tweak: &Tweak, bufs: &mut [&mut [u8]]) -> Result<(), TooShort> {
        self.many(tweak, bufs, Direction::Encrypt)
    }

    /// Decrypts each of `bufs` in place, as [`Hctr2::decrypt`] does, but faster for many short
    /// ones.
    ///
    /// # Errors
    /// [`TooShort`] when one has fewer than 16 bytes; all are then unchanged.
    pub fn decrypt_many(&self, tweak: &Tweak, bufs: &mut [&mut [u8]]) -> Result<(), TooShort> {
        self.many(tweak, bufs, Direction::Decrypt)
    }

    fn one(&self, tweak: &Tweak, buf: &mut [u8], direction: Direction) -> Result<(), TooShort> {
        stack::wipe_at_end();
        match &self.path {
            Path::Portable(path) => path.one(tweak, buf, direction),
            #[cfg(target_arch = "x86_64")]
            Path::Wide(path) => path.one(tweak, buf, direction),
        }
    }

    fn many(
        &self,
        tweak: &Tweak,
        bufs: &mut [&mut [u8]],
        direction: Direction,
    ) -> Result<(), TooShort> {
        if bufs.iter().any(|buf| buf.len() < MIN_LEN) {
            return Err(TooShort);
        }
        stack::wipe_at_end();
        match &self.path {
            Path::Portable(path) => path.many(tweak, bufs, direction),
            #[cfg(target_arch = "x86_64")]
            Path::Wide(path) => path.many(tweak, bufs, direction),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 + len) as u8).collect()
    }

    /// Returns a cipher for each path that this processor has.
    fn paths(key: [u8; 32]) -> Vec<Hctr2> {
        let key = NamesKey::from_bytes(key);
        [Some(Hctr2::portable(&key)), Hctr2::wide(&key)].into_iter().flatten().collect()
    }

    #[test]
    fn decryption_inverts_encryption_at_every_length() {
        for cipher in paths([0x11; 32]) {
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
    }

    #[test]
    fn both_paths_agree_at_every_length_and_stay_in_the_buffer() {
        let key = NamesKey::from_bytes([0x44; 32]);
        let portable = Hctr2::portable(&key);
        let Some(wide) = Hctr2::wide(&key) else {
            eprintln!("skipped: this processor has no wide path");
            return;
        };
        for len in (16..=1700).chain([4096, 8191, 8192, 8193]) {
            let tweak = sample(len % 131);
            let (a, b) = (portable.tweak(&tweak), wide.tweak(&tweak));
            assert_eq!(
                (a.whole, a.partial),
                (b.whole, b.partial),
                "tweak of {} bytes",
                tweak.len()
            );
            // A buffer between guards, at an odd address.
            let mut guarded = vec![0xee; 1 + len + 64];
            guarded[1..=len].copy_from_slice(&sample(len));
            let mut expected = sample(len);
            portable.encrypt(&a, &mut expected).unwrap();
            wide.encrypt(&b, &mut guarded[1..=len]).unwrap();
            assert_eq!(guarded[1..=len], expected, "length {len}");
            assert!(
                guarded[0] == 0xee && guarded[len + 1..].iter().all(|b| *b == 0xee),
                "length {len}"
            );
            portable.decrypt(&a, &mut expected).unwrap();
            wide.decrypt(&b, &mut guarded[1..=len]).unwrap();
            assert_eq!(
                (&guarded[1..=len], &expected[..]),
                (&sample(len)[..], &sample(len)[..]),
                "length {len}"
            );
            assert!(
                guarded[0] == 0xee && guarded[len + 1..].iter().all(|b| *b == 0xee),
                "length {len}"
            );
        }
    }

    #[test]
    fn less_than_a_block_is_refused_and_left_alone() {
        for cipher in paths([0x11; 32]) {
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
    }

    #[test]
    fn many_at_once_are_the_same_as_one_by_one() {
        for cipher in paths([0x22; 32]) {
            let tweak = cipher.tweak(b"a directory");
            // With 101 and 300 names, some are longer than those that `wide` processes together.
            for (count, step) in [
                (0, 3),
                (1, 3),
                (15, 1),
                (16, 3),
                (31, 3),
                (32, 3),
                (33, 3),
                (101, 3),
                (300, 2),
                (40, 0),
            ] {
                let plain: Vec<Vec<u8>> = (0..count).map(|i| sample(16 + i * step)).collect();
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
        let distance =
            |other: Vec<u8>| base.iter().zip(other).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
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
