//! X25519 of one secret with eight public keys at a time: the Montgomery ladder of RFC 7748 on
//! AVX-512 IFMA, one key in each lane.
//!
//! Rules that hold here
//! * A [`Wide`] exists only if the processor has every feature of [`available`]; that makes the
//!   calls into feature code sound.
//! * Constant time: the secret selects by masks only, and the compiler cannot know that a mask is
//!   all zeros or all ones. No branch and no address depends on a secret or on a value computed
//!   from it.
//! * Every limb of a [`Field`] is below 2^51 + 2^13. The multiplier uses the lower 52 bits of its
//!   inputs, so a larger limb would be truncated silently: each operation therefore ends with a
//!   [`carry`], whose conditions are derived at each call.
//! * Secrets and results are wiped. Vectors that the compiler spills to the stack are not.
//!
//! The multiplier adds either the lower 52 bits of a 104-bit product, or the upper 52, to a 64-bit
//! sum. In radix 2^51 the upper half of a product of limbs i and j has the weight 2^(51 (i + j) +
//! 52), twice that of limb i + j + 1.

use std::arch::x86_64::*;
use std::hint::black_box;

use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Public keys at a time.
pub(super) const LANES: usize = super::ForMany::AT_ONCE;
/// Limbs of a number below 2^255.
const LIMBS: usize = 5;
/// Bits of a limb.
const BITS: u32 = 51;
const MASK: u64 = (1 << BITS) - 1;

/// Returns whether this processor has the required features.
fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512ifma")
}

/// A secret, clamped; wiped on drop.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct Wide([u8; 32]);

impl Wide {
    /// Takes the secret, if the processor has the features.
    pub fn new(secret: &[u8; 32]) -> Option<Self> {
        if !available() {
            return None;
        }
        let mut wide = Wide(*secret);
        wide.0[0] &= 0xf8;
        wide.0[31] = wide.0[31] & 0x7f | 0x40;
        Some(wide)
    }

    /// Returns the result for each key, in their order; zero for points of small order.
    pub fn eight(&self, publics: &[[u8; 32]; LANES]) -> Zeroizing<[[u8; 32]; LANES]> {
        // SAFETY: a `Wide` exists only if the processor has the features.
        unsafe { ladder(&self.0, publics) }
    }
}

/// Section 5 of RFC 7748, with its names, for a scalar that is clamped.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
fn ladder(scalar: &[u8; 32], publics: &[[u8; 32]; LANES]) -> Zeroizing<[[u8; 32]; LANES]> {
    let x1 = Field::from_bytes(publics);
    let (mut x2, mut z2, mut x3, mut z3) = (Field::small(1), Field::small(0), x1, Field::small(1));
    let mut swap = 0;
    for t in (0..255).rev() {
        let bit = scalar[t / 8] >> (t % 8) & 1;
        swap ^= bit;
        // All lanes have the same secret. The compiler could turn a choice that it knows to be the
        // same in all lanes into a branch.
        let all = black_box(swap.wrapping_neg());
        swap = bit;
        Field::exchange(all, &mut x2, &mut x3);
        Field::exchange(all, &mut z2, &mut z3);

        let a = x2.plus(&z2);
        let aa = a.square();
        let b = x2.minus(&z2);
        let bb = b.square();
        let e = aa.minus(&bb);
        let da = x3.minus(&z3).times(&a);
        let cb = x3.plus(&z3).times(&b);
        x3 = da.plus(&cb).square();
        z3 = x1.times(&da.minus(&cb).square());
        x2 = aa.times(&bb);
        z2 = e.times(&e.times_121665_plus(&aa));
    }
    // The last bit of a clamped scalar is 0, so no exchange is left to do.
    x2.times(&z2.inverse()).to_bytes()
}

/// Eight numbers modulo p = 2^255 - 19, not always fully reduced: vector i has limb i, of weight
/// 2^(51 i), of each.
#[derive(Clone, Copy)]
struct Field([__m512i; LIMBS]);

impl Field {
    /// The number in every lane, below 2^51.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn small(number: i64) -> Self {
        let zero = _mm512_setzero_si512();
        Field([_mm512_set1_epi64(number), zero, zero, zero, zero])
    }

    /// Parses little-endian numbers without the last bit, as RFC 7748 requires; numbers from p on
    /// are not reduced.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn from_bytes(numbers: &[[u8; 32]; LANES]) -> Self {
        let mut limbs = [[0; LANES]; LIMBS];
        for (lane, bytes) in numbers.iter().enumerate() {
            let word =
                |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8 bytes"));
            let words = [word(0), word(1), word(2), word(3)];
            limbs[0][lane] = words[0] & MASK;
            limbs[1][lane] = (words[0] >> 51 | words[1] << 13) & MASK;
            limbs[2][lane] = (words[1] >> 38 | words[2] << 26) & MASK;
            limbs[3][lane] = (words[2] >> 25 | words[3] << 39) & MASK;
            limbs[4][lane] = words[3] >> 12 & MASK;
        }
        Field(limbs.map(|lanes| load(&lanes)))
    }

    /// Returns the reduced number of each lane, little-endian.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn to_bytes(self) -> Zeroizing<[[u8; 32]; LANES]> {
        // Limbs below 2^51 + 2^13 make less than 2 p, so p is subtracted once or not at all: if
        // adding 19 reaches 2^255.
        let mut over = _mm512_set1_epi64(19);
        for limb in self.0 {
            over = _mm512_srli_epi64::<BITS>(_mm512_add_epi64(limb, over));
        }
        let mut carried = times_19(over);
        let mut limbs = Zeroizing::new([[0; LANES]; LIMBS]);
        for (limb, lanes) in self.0.into_iter().zip(limbs.iter_mut()) {
            let sum = _mm512_add_epi64(limb, carried);
            store(lanes, _mm512_and_si512(sum, _mm512_set1_epi64(MASK.cast_signed())));
            carried = _mm512_srli_epi64::<BITS>(sum);
        }
        let mut numbers = Zeroizing::new([[0; 32]; LANES]);
        for (lane, bytes) in numbers.iter_mut().enumerate() {
            let limb = |i: usize| limbs[i][lane];
            bytes[..8].copy_from_slice(&(limb(0) | limb(1) << 51).to_le_bytes());
            bytes[8..16].copy_from_slice(&(limb(1) >> 13 | limb(2) << 38).to_le_bytes());
            bytes[16..24].copy_from_slice(&(limb(2) >> 26 | limb(3) << 25).to_le_bytes());
            bytes[24..].copy_from_slice(&(limb(3) >> 39 | limb(4) << 12).to_le_bytes());
        }
        numbers
    }

    /// Exchanges the lanes of `a` and `b` whose bit is set.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn exchange(lanes: __mmask8, a: &mut Field, b: &mut Field) {
        for (a, b) in a.0.iter_mut().zip(&mut b.0) {
            (*a, *b) =
                (_mm512_mask_blend_epi64(lanes, *a, *b), _mm512_mask_blend_epi64(lanes, *b, *a));
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn plus(&self, other: &Field) -> Field {
        // Sums below 2^52 + 2^14.
        let mut sums = self.0;
        for (sum, limb) in sums.iter_mut().zip(other.0) {
            *sum = _mm512_add_epi64(*sum, limb);
        }
        carry(sums)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn minus(&self, other: &Field) -> Field {
        // 2 p has the limbs 2^52 - 38 and four times 2^52 - 2, none of which is less than a limb;
        // so the differences are below 2^53.
        let mut differences = self.0;
        for (i, (difference, limb)) in differences.iter_mut().zip(other.0).enumerate() {
            let twice_p = _mm512_set1_epi64(if i == 0 { (1 << 52) - 38 } else { (1 << 52) - 2 });
            *difference = _mm512_add_epi64(*difference, _mm512_sub_epi64(twice_p, limb));
        }
        carry(differences)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn times(&self, other: &Field) -> Field {
        let zero = _mm512_setzero_si512();
        let (mut low, mut high) = ([zero; 2 * LIMBS - 1], [zero; 2 * LIMBS - 1]);
        for i in 0..LIMBS {
            for j in 0..LIMBS {
                low[i + j] = _mm512_madd52lo_epu64(low[i + j], self.0[i], other.0[j]);
                high[i + j] = _mm512_madd52hi_epu64(high[i + j], self.0[i], other.0[j]);
            }
        }
        fold(low, high)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn square(&self) -> Field {
        let zero = _mm512_setzero_si512();
        let (mut low, mut high) = ([zero; 2 * LIMBS - 1], [zero; 2 * LIMBS - 1]);
        for i in 0..LIMBS {
            for j in i + 1..LIMBS {
                low[i + j] = _mm512_madd52lo_epu64(low[i + j], self.0[i], self.0[j]);
                high[i + j] = _mm512_madd52hi_epu64(high[i + j], self.0[i], self.0[j]);
            }
        }
        // The product of two different limbs occurs twice.
        for k in 1..2 * LIMBS - 2 {
            low[k] = _mm512_add_epi64(low[k], low[k]);
            high[k] = _mm512_add_epi64(high[k], high[k]);
        }
        for i in 0..LIMBS {
            low[2 * i] = _mm512_madd52lo_epu64(low[2 * i], self.0[i], self.0[i]);
            high[2 * i] = _mm512_madd52hi_epu64(high[2 * i], self.0[i], self.0[i]);
        }
        fold(low, high)
    }

    /// Returns this number times (486662 - 2) / 4, plus `other`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn times_121665_plus(&self, other: &Field) -> Field {
        let factor = _mm512_set1_epi64(121_665);
        // The lower halves are below 2^52 and the upper ones, of products of less than 2^69, below
        // 2^17: sums below 2^54.
        let mut sums = other.0;
        for i in 0..LIMBS {
            sums[i] = _mm512_madd52lo_epu64(sums[i], self.0[i], factor);
            let high = _mm512_madd52hi_epu64(_mm512_setzero_si512(), self.0[i], factor);
            let high = _mm512_add_epi64(high, high);
            if i + 1 < LIMBS {
                sums[i + 1] = _mm512_add_epi64(sums[i + 1], high);
            } else {
                sums[0] = _mm512_add_epi64(sums[0], times_19(high));
            }
        }
        carry(sums)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn squared(&self, times: usize) -> Field {
        let mut number = *self;
        for _ in 0..times {
            number = number.square();
        }
        number
    }

    /// Raises to the power of p - 2 = 2^255 - 21, by Fermat: the inverse, and 0 of 0. Each variable
    /// is named after its exponent.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn inverse(&self) -> Field {
        let two = self.square();
        let nine = two.squared(2).times(self);
        let eleven = nine.times(&two);
        let ones_5 = eleven.square().times(&nine);
        let ones_10 = ones_5.squared(5).times(&ones_5);
        let ones_20 = ones_10.squared(10).times(&ones_10);
        let ones_40 = ones_20.squared(20).times(&ones_20);
        let ones_50 = ones_40.squared(10).times(&ones_10);
        let ones_100 = ones_50.squared(50).times(&ones_50);
        let ones_200 = ones_100.squared(100).times(&ones_100);
        let ones_250 = ones_200.squared(50).times(&ones_50);
        ones_250.squared(5).times(&eleven)
    }
}

/// Returns the number with these sums of lower and of upper halves of products. The factors are
/// limbs below 2^52, and sum k has at most 5 - |4 - k| products.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn fold(low: [__m512i; 2 * LIMBS - 1], high: [__m512i; 2 * LIMBS - 1]) -> Field {
    // Weight k has `count(k) + 2 count(k - 1)` halves, of which those of 2^255 and more come back
    // 19-fold, five places below. In units of 2^52, that is at most 1 + 19 * 14 in the first place
    // and 13 + 19 * 2 in the last: 2^61 and 2^58.
    let twice = |k: usize| _mm512_add_epi64(high[k], high[k]);
    let mut sums = [low[0]; LIMBS];
    for k in 0..LIMBS {
        let lower = if k == 0 { low[0] } else { _mm512_add_epi64(low[k], twice(k - 1)) };
        let upper = if k + LIMBS == low.len() {
            twice(k + LIMBS - 1)
        } else {
            _mm512_add_epi64(low[k + LIMBS], twice(k + LIMBS - 1))
        };
        sums[k] = _mm512_add_epi64(lower, times_19(upper));
    }
    carry(sums)
}

/// Returns limbs below 2^51 + 2^13 for sums below 2^62, of which the last one is below 2^59.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn carry(sums: [__m512i; LIMBS]) -> Field {
    let mask = _mm512_set1_epi64(MASK.cast_signed());
    let mut limbs = sums;
    for k in 0..LIMBS {
        let below = _mm512_srli_epi64::<BITS>(sums[(k + LIMBS - 1) % LIMBS]);
        // Less than 2^11 from the limb below, or 19 times less than 2^8 from the last one.
        let carried = if k == 0 { times_19(below) } else { below };
        limbs[k] = _mm512_add_epi64(_mm512_and_si512(sums[k], mask), carried);
    }
    Field(limbs)
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn times_19(number: __m512i) -> __m512i {
    _mm512_mullo_epi64(number, _mm512_set1_epi64(19))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(lanes: &[u64; LANES]) -> __m512i {
    // SAFETY: eight numbers of 8 bytes can be read, and the instruction does not ask for alignment.
    unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(lanes: &mut [u64; LANES], vector: __m512i) {
    // SAFETY: eight numbers of 8 bytes can be written, and the instruction does not ask for
    // alignment.
    unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), vector) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The smallest limb that no [`Field`] has.
    const END: u64 = (1 << 51) + (1 << 13);
    type Limbs = [u64; LIMBS];

    /// Limbs at the ends of their range, and anywhere in it.
    fn limbs() -> impl Strategy<Value = Limbs> {
        let limb = prop_oneof![
            Just(0),
            Just(MASK - 18),
            Just(MASK),
            Just(MASK + 1),
            Just(END - 1),
            0..END
        ];
        proptest::array::uniform5(limb)
    }

    /// Returns the number's bytes, by carrying one limb after the other in 128 bits. Limbs are
    /// below 2^125.
    fn number(mut limbs: [u128; LIMBS]) -> [u8; 32] {
        for _ in 0..4 {
            for k in 0..LIMBS {
                let carried = limbs[k] >> BITS;
                limbs[k] &= u128::from(MASK);
                limbs[(k + 1) % LIMBS] += if k + 1 < LIMBS { carried } else { 19 * carried };
            }
        }
        let p = [MASK - 18, MASK, MASK, MASK, MASK];
        if limbs[0] >= u128::from(p[0]) && (1..LIMBS).all(|k| limbs[k] == u128::from(p[k])) {
            limbs = [limbs[0] - u128::from(p[0]), 0, 0, 0, 0];
        }
        let mut bytes = [0; 32];
        for bit in 0..255 {
            bytes[bit / 8] |= ((limbs[bit / 51] >> (bit % 51)) as u8 & 1) << (bit % 8);
        }
        bytes
    }

    fn product(a: &Limbs, b: &Limbs) -> [u128; LIMBS] {
        let mut sums = [0; LIMBS];
        for i in 0..LIMBS {
            for j in 0..LIMBS {
                sums[(i + j) % LIMBS] +=
                    u128::from(a[i]) * u128::from(b[j]) * if i + j < LIMBS { 1 } else { 19 };
            }
        }
        sums
    }

    #[target_feature(enable = "avx512f")]
    fn field(lanes: &[Limbs; LANES]) -> Field {
        let mut limbs = [[0; LANES]; LIMBS];
        for lane in 0..LANES {
            for limb in 0..LIMBS {
                limbs[limb][lane] = lanes[lane][limb];
            }
        }
        Field(limbs.map(|lanes| load(&lanes)))
    }

    /// Returns the numbers, after checking that their limbs are in range.
    #[target_feature(enable = "avx512f,avx512dq")]
    fn checked(field: Field) -> [[u8; 32]; LANES] {
        for vector in field.0 {
            let mut lanes = [0; LANES];
            store(&mut lanes, vector);
            assert!(lanes.iter().all(|limb| *limb < END), "{lanes:x?}");
        }
        *field.to_bytes()
    }

    /// Compares every operation on eight pairs of numbers with 128-bit arithmetic.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn operations(a: &[Limbs; LANES], b: &[Limbs; LANES]) {
        let (x, y) = (field(a), field(b));
        let inverse = x.inverse();
        let results = [
            x,
            x.plus(&y),
            x.minus(&y),
            x.times_121665_plus(&y),
            x.times(&y),
            x.square(),
            inverse.times(&x),
        ]
        .map(|result| checked(result));
        for lane in 0..LANES {
            let (a, b) = (a[lane], b[lane]);
            let each = |of: fn(usize, u128, u128) -> u128| -> [u128; LIMBS] {
                std::array::from_fn(|k| of(k, a[k].into(), b[k].into()))
            };
            let itself = number(each(|_, a, _| a));
            let expected = [
                itself,
                number(each(|_, a, b| a + b)),
                // With 2 p, limb by limb.
                number(each(|k, a, b| a + (1 << 52) - if k == 0 { 38 } else { 2 } - b)),
                number(each(|_, a, b| 121_665 * a + b)),
                number(product(&a, &b)),
                number(product(&a, &a)),
                number([u128::from(itself != [0; 32]), 0, 0, 0, 0]),
            ];
            for (i, what) in ["a", "a + b", "a - b", "121665 a + b", "a b", "a a", "a / a"]
                .into_iter()
                .enumerate()
            {
                assert_eq!(results[i][lane], expected[i], "{what} of {a:x?} and {b:x?}");
            }
        }
    }

    proptest! {
        #[test]
        fn field_arithmetic_is_right_and_limbs_stay_in_range(
            a in proptest::array::uniform8(limbs()), b in proptest::array::uniform8(limbs()),
        ) {
            if available() {
                // SAFETY: the processor has the features.
                unsafe { operations(&a, &b) };
            } else {
                eprintln!("skipped: this processor has no wide path");
            }
        }
    }

    #[test]
    fn limbs_at_the_end_of_their_range_overflow_nothing() {
        if available() {
            // SAFETY: the processor has the features.
            unsafe { operations(&[[END - 1; LIMBS]; LANES], &[[END - 1; LIMBS]; LANES]) };
            // SAFETY: as above.
            unsafe { operations(&[[0; LIMBS]; LANES], &[[END - 1; LIMBS]; LANES]) };
        } else {
            eprintln!("skipped: this processor has no wide path");
        }
    }
}
