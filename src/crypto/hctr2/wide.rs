//! HCTR2 on vectors of four blocks: VAES and VPCLMULQDQ at the width of AVX-512.
//!
//! Rules that hold here
//! * A [`Wide`] exists only if the processor has every feature of [`available`]; that makes the
//!   calls into feature code sound.
//! * Constant time: table lookups and branches depend on lengths only.
//! * Pointers access only slices of known length, in the `load` and `store` functions at the end,
//!   with masks for less than a vector.
//! * Key material stays in the [`Wide`], on the heap, and is wiped with it.
//!
//! POLYVAL of n blocks is the sum of block i times h^(n - i) (i from 0). So up to [`POWERS`] blocks
//! are multiplied by stored powers, summed without reduction, and reduced once. An accumulator is
//! continued by adding it to the first block.

use std::arch::x86_64::*;

use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{Direction, TooShort, Tweak, tweak_length_blocks};
use crate::crypto::keys::NamesKey;

/// Length of a vector in bytes.
const VECTOR: usize = 64;
/// Vectors that are processed at a time: enough to keep the AES units busy.
const STRIDE: usize = 8;
/// Stored powers of h: as many as blocks are processed at a time.
const POWERS: usize = 4 * STRIDE;
/// Rounds of AES-256.
const ROUNDS: usize = 14;
/// Names that a batch processes at a time: their first blocks fill four vectors.
const GROUP: usize = 16;
/// The longest name that a batch processes with others, in vectors after the first block.
const SHORT: usize = 4;

/// Returns whether this processor has the required features.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
}

/// Key schedules, powers of h, and the mask L.
#[repr(align(64))]
#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct Wide {
    encrypt: [u128; ROUNDS + 1],
    decrypt: [u128; ROUNDS + 1],
    /// h^POWERS down to h^1, then zeros that fill the last vector.
    powers: [u128; POWERS + 3],
    l: u128,
    /// The difference between the two hashes of a tweak of 32 bytes: h^3, because their length
    /// blocks, three from the end, differ by one.
    apart: u128,
}

impl Wide {
    /// Expands `key`; `None` if the processor lacks a feature.
    pub fn new(key: &NamesKey) -> Option<Box<Self>> {
        if !available() {
            return None;
        }
        let mut wide = Box::new(Wide {
            encrypt: [0; ROUNDS + 1],
            decrypt: [0; ROUNDS + 1],
            powers: [0; POWERS + 3],
            l: 0,
            apart: 0,
        });
        // SAFETY: `available` has checked that the processor has the features.
        unsafe { wide.expand(key.expose()) };
        Some(wide)
    }

    pub fn tweak(&self, tweak: &[u8]) -> Tweak {
        // SAFETY: a `Wide` exists only if the processor has the features.
        unsafe { self.tweak_inner(tweak) }
    }

    pub fn one(&self, tweak: &Tweak, buf: &mut [u8], direction: Direction) -> Result<(), TooShort> {
        let (head, rest) = buf.split_first_chunk_mut::<16>().ok_or(TooShort)?;
        // SAFETY: a `Wide` exists only if the processor has the features.
        unsafe {
            match rest.len().div_ceil(VECTOR) {
                0 => self.one_block(tweak, head, direction),
                1 => self.one_short::<1>(tweak, head, rest, direction),
                2 => self.one_short::<2>(tweak, head, rest, direction),
                3 => self.one_short::<3>(tweak, head, rest, direction),
                4 => self.one_short::<4>(tweak, head, rest, direction),
                _ => self.one_long(tweak, head, rest, direction),
            }
        }
        Ok(())
    }

    /// Does [`Wide::one`] for each of `bufs`, which must all be long enough.
    pub fn many(
        &self,
        tweak: &Tweak,
        bufs: &mut [&mut [u8]],
        direction: Direction,
    ) -> Result<(), TooShort> {
        for group in bufs.chunks_mut(GROUP) {
            if group.iter().any(|buf| buf.len() > 16 + SHORT * VECTOR) {
                for buf in group {
                    self.one(tweak, buf, direction)?;
                }
            } else {
                // SAFETY: a `Wide` exists only if the processor has the features.
                unsafe { self.group(tweak, group, direction)? };
            }
        }
        Ok(())
    }
}

// Below are safe functions that need processor features. Each is called from one with the same
// features, or from the methods above.
impl Wide {
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn expand(&mut self, key: &[u8; 32]) {
        let mut low = load_block(key[..16].try_into().expect("16 bytes"));
        let mut high = load_block(key[16..].try_into().expect("16 bytes"));
        let mut set = |round: usize, key: __m128i| {
            self.encrypt[round] = number(key);
            // The inverse cipher takes the keys in reverse, all but the outermost through
            // InvMixColumns.
            let inverse = if round == 0 || round == ROUNDS { key } else { _mm_aesimc_si128(key) };
            self.decrypt[ROUNDS - round] = number(inverse);
        };
        set(0, low);
        set(1, high);
        // The round constant is an immediate of the instruction.
        macro_rules! pair {
            ($round:literal, $constant:literal) => {
                low = _mm_xor_si128(
                    spread(low),
                    _mm_shuffle_epi32::<0xff>(_mm_aeskeygenassist_si128::<$constant>(high)),
                );
                set($round, low);
                high = _mm_xor_si128(
                    spread(high),
                    _mm_shuffle_epi32::<0xaa>(_mm_aeskeygenassist_si128::<0>(low)),
                );
                set($round + 1, high);
            };
        }
        pair!(2, 0x01);
        pair!(4, 0x02);
        pair!(6, 0x04);
        pair!(8, 0x08);
        pair!(10, 0x10);
        pair!(12, 0x20);
        low = _mm_xor_si128(
            spread(low),
            _mm_shuffle_epi32::<0xff>(_mm_aeskeygenassist_si128::<0x40>(high)),
        );
        set(ROUNDS, low);

        let h = self.block(block(0), Direction::Encrypt);
        self.l = number(self.block(block(1), Direction::Encrypt));
        let mut power = h;
        for place in (0..POWERS).rev() {
            self.powers[place] = number(power);
            power = Product::of(_mm512_zextsi128_si512(power), _mm512_zextsi128_si512(h)).reduce();
        }
        self.apart = number(self.hash(block(1), [_mm512_setzero_si512()], 3));
    }

    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn tweak_inner(&self, tweak: &[u8]) -> Tweak {
        if let Ok(tweak) = <&[u8; 32]>::try_from(tweak) {
            // With its length block in front, such a tweak fits into one vector.
            let vector =
                _mm512_maskz_expand_epi64(0b0011_1100, _mm512_zextsi256_si512(load_half(tweak)));
            let [length, _] = tweak_length_blocks(tweak);
            let whole = number(self.hash(block(length), [vector], 3));
            return Tweak { whole, partial: whole ^ self.apart };
        }
        let [whole, partial] = tweak_length_blocks(tweak).map(|length| {
            let start = self.hash(block(length), [_mm512_setzero_si512()], 1);
            number(self.hash_bytes(start, tweak, false))
        });
        Tweak { whole, partial }
    }

    /// Encrypts or decrypts one block.
    #[inline]
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn block(&self, input: __m128i, direction: Direction) -> __m128i {
        match direction {
            Direction::Encrypt => {
                let mut state = _mm_xor_si128(input, block(self.encrypt[0]));
                for key in &self.encrypt[1..ROUNDS] {
                    state = _mm_aesenc_si128(state, block(*key));
                }
                _mm_aesenclast_si128(state, block(self.encrypt[ROUNDS]))
            }
            Direction::Decrypt => {
                let mut state = _mm_xor_si128(input, block(self.decrypt[0]));
                for key in &self.decrypt[1..ROUNDS] {
                    state = _mm_aesdec_si128(state, block(*key));
                }
                _mm_aesdeclast_si128(state, block(self.decrypt[ROUNDS]))
            }
        }
    }

    /// Encrypts or decrypts 4 N blocks, round by round, so that N vectors are in flight at a time.
    #[inline]
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn blocks<const N: usize>(
        &self,
        mut state: [__m512i; N],
        direction: Direction,
    ) -> [__m512i; N] {
        match direction {
            Direction::Encrypt => {
                state = state.map(|v| _mm512_xor_si512(v, four(self.encrypt[0])));
                for key in &self.encrypt[1..ROUNDS] {
                    let key = four(*key);
                    state = state.map(|v| _mm512_aesenc_epi128(v, key));
                }
                state.map(|v| _mm512_aesenclast_epi128(v, four(self.encrypt[ROUNDS])))
            }
            Direction::Decrypt => {
                state = state.map(|v| _mm512_xor_si512(v, four(self.decrypt[0])));
                for key in &self.decrypt[1..ROUNDS] {
                    let key = four(*key);
                    state = state.map(|v| _mm512_aesdec_epi128(v, key));
                }
                state.map(|v| _mm512_aesdeclast_epi128(v, four(self.decrypt[ROUNDS])))
            }
        }
    }

    /// Returns N vectors of XCTR key stream; the first begins with block `first` (counted from 0).
    #[inline]
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn stream<const N: usize>(&self, nonce: __m128i, first: usize) -> [__m512i; N] {
        let nonce = _mm512_broadcast_i32x4(nonce);
        let counters: [__m512i; N] = std::array::from_fn(|i| counter(first + 4 * i));
        self.blocks(counters.map(|c| _mm512_xor_si512(c, nonce)), Direction::Encrypt)
    }

    /// Computes POLYVAL of the first `count` blocks of N vectors, continuing from `start`. The
    /// bytes after them must be zero.
    #[inline]
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn hash<const N: usize>(
        &self,
        start: __m128i,
        mut message: [__m512i; N],
        count: usize,
    ) -> __m128i {
        message[0] = _mm512_xor_si512(message[0], _mm512_zextsi128_si512(start));
        let powers = &self.powers[POWERS - count..];
        let mut sum = Product::ZERO();
        for (i, vector) in message.into_iter().enumerate() {
            sum.add(vector, load_powers(&powers[4 * i..]));
        }
        sum.reduce()
    }

    /// Computes POLYVAL of `bytes`, with the byte 1 after them if `marked`, padded with zeros,
    /// continuing from `start`. Marked bytes must end within a block.
    #[inline]
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn hash_bytes(&self, start: __m128i, bytes: &[u8], marked: bool) -> __m128i {
        let mut hash = start;
        for piece in bytes.chunks(STRIDE * VECTOR) {
            let powers = &self.powers[POWERS - piece.len().div_ceil(16)..];
            let mut start = _mm512_zextsi128_si512(hash);
            let (vectors, rest) = piece.as_chunks::<VECTOR>();
            let mut sum = Product::ZERO();
            for (i, vector) in vectors.iter().enumerate() {
                sum.add(_mm512_xor_si512(load(vector), start), load_powers(&powers[4 * i..]));
                start = _mm512_setzero_si512();
            }
            if !rest.is_empty() {
                let last = mark(load_some(rest), rest.len(), marked);
                sum.add(_mm512_xor_si512(last, start), load_powers(&powers[4 * vectors.len()..]));
            }
            hash = sum.reduce();
        }
        hash
    }

    /// Computes S from the first block before and after AES.
    #[inline]
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn nonce(&self, before: __m128i, after: __m128i) -> __m128i {
        _mm_xor_si128(_mm_xor_si128(before, after), block(self.l))
    }

    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn one_block(&self, tweak: &Tweak, head: &mut [u8; 16], direction: Direction) {
        let hash = block(tweak.whole);
        let after = self.block(_mm_xor_si128(load_block(head), hash), direction);
        *head = number(_mm_xor_si128(after, hash)).to_le_bytes();
    }

    /// Processes a name whose rest takes N vectors, the last one perhaps in part. Nothing is loaded
    /// twice.
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn one_short<const N: usize>(
        &self,
        tweak: &Tweak,
        head: &mut [u8; 16],
        rest: &mut [u8],
        direction: Direction,
    ) {
        let (start, marked) = tweak.start(rest.len());
        let (start, count) = (block(start), rest.len().div_ceil(16));
        let (vectors, tail) = rest.as_chunks_mut::<VECTOR>();
        // If the last vector is full, it is the tail.
        let (vectors, tail) = if tail.is_empty() {
            let (last, vectors) = vectors.split_last_mut().expect("at least one vector");
            (vectors, last.as_mut_slice())
        } else {
            (vectors, tail)
        };
        let mut message: [__m512i; N] =
            std::array::from_fn(|i| if i + 1 < N { load(&vectors[i]) } else { load_some(tail) });
        let mut hashed = message;
        hashed[N - 1] = mark(hashed[N - 1], tail.len(), marked);
        let before = _mm_xor_si128(load_block(head), self.hash(start, hashed, count));
        let after = self.block(before, direction);
        let stream = self.stream::<N>(self.nonce(before, after), 0);
        for i in 0..N - 1 {
            message[i] = _mm512_xor_si512(message[i], stream[i]);
            store(&mut vectors[i], message[i]);
        }
        message[N - 1] = _mm512_maskz_mov_epi8(
            first(tail.len()),
            _mm512_xor_si512(message[N - 1], stream[N - 1]),
        );
        store_some(tail, message[N - 1]);
        message[N - 1] = mark(message[N - 1], tail.len(), marked);
        *head = number(_mm_xor_si128(after, self.hash(start, message, count))).to_le_bytes();
    }

    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn one_long(&self, tweak: &Tweak, head: &mut [u8; 16], rest: &mut [u8], direction: Direction) {
        let (start, marked) = tweak.start(rest.len());
        let start = block(start);
        let before = _mm_xor_si128(load_block(head), self.hash_bytes(start, rest, marked));
        let after = self.block(before, direction);
        let nonce = self.nonce(before, after);
        let mut hash = start;
        let (strides, tail) = rest.as_chunks_mut::<{ STRIDE * VECTOR }>();
        for (i, stride) in strides.iter_mut().enumerate() {
            let stream = self.stream::<STRIDE>(nonce, 4 * STRIDE * i);
            let (vectors, _) = stride.as_chunks_mut::<VECTOR>();
            let mut message = stream;
            for (slot, vector) in message.iter_mut().zip(vectors) {
                *slot = _mm512_xor_si512(*slot, load(vector));
                store(vector, *slot);
            }
            hash = self.hash(hash, message, 4 * STRIDE);
        }
        let done = strides.len() * 4 * STRIDE;
        let stream = self.stream::<STRIDE>(nonce, done);
        for (piece, stream) in tail.chunks_mut(VECTOR).zip(stream) {
            store_some(piece, _mm512_xor_si512(load_some(piece), stream));
        }
        hash = self.hash_bytes(hash, tail, marked);
        *head = number(_mm_xor_si128(after, hash)).to_le_bytes();
    }

    /// Processes at most [`GROUP`] names of at most [`SHORT`] vectors behind the first block. Each
    /// step is done for all of them before the next, so that no unit waits for a single name.
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn group(
        &self,
        tweak: &Tweak,
        group: &mut [&mut [u8]],
        direction: Direction,
    ) -> Result<(), TooShort> {
        let zero = _mm512_setzero_si512();
        let mut before = [0u128; GROUP];
        for (buf, before) in group.iter().zip(&mut before) {
            let (head, rest) = buf.split_first_chunk::<16>().ok_or(TooShort)?;
            let (start, marked) = tweak.start(rest.len());
            *before = number(_mm_xor_si128(
                load_block(head),
                self.hash_bytes(block(start), rest, marked),
            ));
        }
        let mut first_blocks = [zero; GROUP / 4];
        for (vector, four) in first_blocks.iter_mut().zip(before.as_chunks::<4>().0) {
            *vector = load_numbers(four);
        }
        let mut after = [0u128; GROUP];
        for (four, vector) in
            after.as_chunks_mut::<4>().0.iter_mut().zip(self.blocks(first_blocks, direction))
        {
            store_numbers(four, vector);
        }

        // The key streams of all names, one behind the other, each from a vector's beginning.
        let mut streams = [zero; GROUP * SHORT + STRIDE];
        let mut used = 0;
        for ((buf, before), after) in group.iter().zip(before).zip(after) {
            let nonce = _mm512_broadcast_i32x4(self.nonce(block(before), block(after)));
            for i in 0..(buf.len() - 16).div_ceil(VECTOR) {
                streams[used] = _mm512_xor_si512(counter(4 * i), nonce);
                used += 1;
            }
        }
        for stride in streams[..used.next_multiple_of(STRIDE)].as_chunks_mut::<STRIDE>().0 {
            *stride = self.blocks(*stride, Direction::Encrypt);
        }

        let mut used = 0;
        for (buf, after) in group.iter_mut().zip(after) {
            let (head, rest) = buf.split_first_chunk_mut::<16>().ok_or(TooShort)?;
            let (start, marked) = tweak.start(rest.len());
            let mut start = _mm512_zextsi128_si512(block(start));
            let powers = &self.powers[POWERS - rest.len().div_ceil(16)..];
            let mut hash = block(tweak.whole);
            if !rest.is_empty() {
                let mut sum = Product::ZERO();
                for (i, piece) in rest.chunks_mut(VECTOR).enumerate() {
                    let vector = _mm512_xor_si512(load_some(piece), streams[used]);
                    used += 1;
                    store_some(piece, vector);
                    let kept = _mm512_maskz_mov_epi8(first(piece.len()), vector);
                    let hashed = mark(kept, piece.len(), marked && piece.len() < VECTOR);
                    sum.add(_mm512_xor_si512(hashed, start), load_powers(&powers[4 * i..]));
                    start = zero;
                }
                hash = sum.reduce();
            }
            *head = number(_mm_xor_si128(block(after), hash)).to_le_bytes();
        }
        Ok(())
    }
}

/// A sum of products of 128-bit polynomials, not yet reduced, in each of four lanes.
struct Product {
    low: __m512i,
    middle: __m512i,
    high: __m512i,
}

impl Product {
    #[allow(non_snake_case, reason = "a constant, except that creating it needs a feature")]
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn ZERO() -> Self {
        let zero = _mm512_setzero_si512();
        Product { low: zero, middle: zero, high: zero }
    }

    #[inline]
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn of(a: __m512i, b: __m512i) -> Self {
        let mut product = Product::ZERO();
        product.add(a, b);
        product
    }

    /// Adds `a` times `b`, lane by lane.
    #[inline]
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn add(&mut self, a: __m512i, b: __m512i) {
        self.low = _mm512_xor_si512(self.low, _mm512_clmulepi64_epi128::<0x00>(a, b));
        self.high = _mm512_xor_si512(self.high, _mm512_clmulepi64_epi128::<0x11>(a, b));
        let cross =
            (_mm512_clmulepi64_epi128::<0x01>(a, b), _mm512_clmulepi64_epi128::<0x10>(a, b));
        self.middle = _mm512_ternarylogic_epi64::<0x96>(self.middle, cross.0, cross.1);
    }

    /// Returns the sum of the four lanes, divided by x^128, modulo the polynomial of POLYVAL.
    #[inline]
    #[target_feature(enable = "aes,pclmulqdq,avx512f,avx512bw,avx512vl,vaes,vpclmulqdq")]
    fn reduce(self) -> __m128i {
        let (low, middle, high) = (lanes(self.low), lanes(self.middle), lanes(self.high));
        let low = _mm_xor_si128(low, _mm_slli_si128::<8>(middle));
        let high = _mm_xor_si128(high, _mm_srli_si128::<8>(middle));
        // x^128 + x^127 + x^126 + x^121 + 1, without the first and the last term, in the upper
        // half. 64 bits are divided at a time.
        let polynomial = _mm_set_epi64x(0xc200_0000_0000_0000_u64.cast_signed(), 0);
        let divided = _mm_xor_si128(
            _mm_shuffle_epi32::<0x4e>(low),
            _mm_clmulepi64_si128::<0x10>(low, polynomial),
        );
        let divided = _mm_xor_si128(
            _mm_shuffle_epi32::<0x4e>(divided),
            _mm_clmulepi64_si128::<0x10>(divided, polynomial),
        );
        _mm_xor_si128(high, divided)
    }
}

/// Returns the sum of the four lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn lanes(vector: __m512i) -> __m128i {
    let half =
        _mm256_xor_si256(_mm512_castsi512_si256(vector), _mm512_extracti64x4_epi64::<1>(vector));
    _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half))
}

/// Adds to each 32-bit word those below it, as the key schedule of AES does.
#[inline]
#[target_feature(enable = "sse2")]
fn spread(key: __m128i) -> __m128i {
    let key = _mm_xor_si128(key, _mm_slli_si128::<4>(key));
    _mm_xor_si128(key, _mm_slli_si128::<8>(key))
}

/// Returns XCTR's counters of four blocks from block `first`, counted from 0; XCTR counts from 1.
#[inline]
#[target_feature(enable = "avx512f")]
fn counter(first: usize) -> __m512i {
    let first = first as i64;
    _mm512_set_epi64(0, first + 4, 0, first + 3, 0, first + 2, 0, first + 1)
}

/// Sets the byte behind the first `len` bytes of a vector to 1 if `marked`; `len` is then below 64.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn mark(vector: __m512i, len: usize, marked: bool) -> __m512i {
    let place = if marked { 1u64 << (len % VECTOR) } else { 0 };
    _mm512_mask_mov_epi8(vector, place, _mm512_set1_epi8(1))
}

/// Returns the mask of the first `len` bytes of a vector, 64 at most.
#[inline]
fn first(len: usize) -> u64 {
    if len >= VECTOR { u64::MAX } else { (1 << len) - 1 }
}

#[inline]
#[target_feature(enable = "sse2")]
fn block(number: u128) -> __m128i {
    _mm_set_epi64x((number >> 64) as i64, number as i64)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn four(number: u128) -> __m512i {
    _mm512_broadcast_i32x4(block(number))
}

#[inline]
#[target_feature(enable = "sse2")]
fn number(block: __m128i) -> u128 {
    let high = _mm_cvtsi128_si64(_mm_unpackhi_epi64(block, block)).cast_unsigned();
    u128::from(high) << 64 | u128::from(_mm_cvtsi128_si64(block).cast_unsigned())
}

#[inline]
#[target_feature(enable = "sse2")]
fn load_block(bytes: &[u8; 16]) -> __m128i {
    block(u128::from_le_bytes(*bytes))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(bytes: &[u8; VECTOR]) -> __m512i {
    // SAFETY: 64 bytes can be read, and the instruction does not ask for alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx")]
fn load_half(bytes: &[u8; VECTOR / 2]) -> __m256i {
    // SAFETY: 32 bytes can be read, and the instruction does not ask for alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(bytes: &mut [u8; VECTOR], vector: __m512i) {
    // SAFETY: 64 bytes can be written, and the instruction does not ask for alignment.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

/// Loads at most 64 bytes, with zeros behind them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn load_some(bytes: &[u8]) -> __m512i {
    // SAFETY: the mask lets only bytes of the slice be read; what is masked out is not accessed.
    unsafe { _mm512_maskz_loadu_epi8(first(bytes.len()), bytes.as_ptr().cast()) }
}

/// Stores as many bytes of the vector as `bytes` has, at most 64.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn store_some(bytes: &mut [u8], vector: __m512i) {
    // SAFETY: the mask lets only bytes of the slice be written; what is masked out is not accessed.
    unsafe { _mm512_mask_storeu_epi8(bytes.as_mut_ptr().cast(), first(bytes.len()), vector) }
}

/// Loads the first four of `powers`.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_powers(powers: &[u128]) -> __m512i {
    load_numbers(powers.first_chunk().expect("a vector of powers"))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_numbers(numbers: &[u128; 4]) -> __m512i {
    // SAFETY: four numbers of 16 bytes can be read, and the instruction does not ask for alignment.
    unsafe { _mm512_loadu_si512(numbers.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_numbers(numbers: &mut [u128; 4], vector: __m512i) {
    // SAFETY: four numbers of 16 bytes can be written, and the instruction does not ask for
    // alignment.
    unsafe { _mm512_storeu_si512(numbers.as_mut_ptr().cast(), vector) }
}
