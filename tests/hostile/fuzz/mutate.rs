//! Changes of an input, as a fuzzer makes them: for the smoke test, which has no coverage to
//! follow.
//!
//! Rules: everything follows from the seed, so a failure can be repeated.

/// A small generator (splitmix64); it has to be uniform, not secret.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number less than `n`, which is not zero.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Values at which lengths and counts tend to fail.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];

/// Returns one of `seeds`, changed in one to four ways.
pub fn mutated(seeds: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut data = seeds[dice.below(seeds.len())].clone();
    for _ in 0..1 + dice.below(4) {
        change(&mut data, seeds, dice);
    }
    data
}

fn change(data: &mut Vec<u8>, seeds: &[Vec<u8>], dice: &mut Dice) {
    let at = dice.below(data.len() + 1);
    // Structures have their lengths and flags at the beginning; half of all changes go there.
    let at = if dice.below(2) == 0 { at.min(dice.below(128)) } else { at };
    let left = data.len() - at;
    match dice.below(8) {
        0 => {
            if let Some(byte) = data.get_mut(at) {
                *byte ^= 1 << dice.below(8);
            }
        }
        1 => {
            if let Some(byte) = data.get_mut(at) {
                *byte = dice.next() as u8;
            }
        }
        2 => {
            let bytes = EDGES[dice.below(EDGES.len())].to_le_bytes();
            let n = [1, 2, 4, 8][dice.below(4)].min(left);
            data[at..at + n].copy_from_slice(&bytes[..n]);
        }
        3 => data.truncate(at),
        4 => {
            let n = 1 + dice.below(32);
            let fill: Vec<u8> = (0..n).map(|_| dice.next() as u8).collect();
            data.splice(at..at, fill);
        }
        5 => {
            let n = dice.below(left + 1).min(64);
            data.drain(at..at + n);
        }
        6 => {
            let n = dice.below(left + 1);
            data[at..at + n].fill(0);
        }
        _ => {
            let other = &seeds[dice.below(seeds.len())];
            let from = dice.below(other.len() + 1);
            data.truncate(at);
            data.extend_from_slice(&other[from..]);
        }
    }
}
