//! Offsets in a ciphertext file: range arithmetic, and nothing else.
//!
//! Rules that hold here
//! * SPEC.md prints every constant, and a test compares.
//! * Plain size and ciphertext length determine each other, so that `stat` needs no key and no
//!   open.
//! * Growth never moves a byte: an index block is placed directly before the first chunk that needs
//!   it.
//!
//! ```text
//! small (size <= 4096)   header | data
//! large                  header | pad to 4096 | T0 C0 | I1#0 T1 C1 | T2 C2 | ...
//!                        | T127 C127 | I2#0 I1#1 T128 C128 | ...
//! ```
//! `Tk` is the table of chunk k (salt, epoch, and of each segment nonce, tag and length), `Ck` its
//! segments, `Il#j` the j-th index block of level l: hashes of 128 tables (level 1) or of 128 index
//! blocks of the level below.

/// Bytes of plain text in a segment, the unit that is sealed and opened.
pub const SEGMENT: usize = 4096;
/// `log2` of the smallest chunk.
pub const CHUNK_LOG2_MIN: u8 = 12;
/// `log2` of the largest chunk.
pub const CHUNK_LOG2_MAX: u8 = 22;
/// `log2` of the chunk size that `init` uses by default: 256 KiB.
pub const CHUNK_LOG2_DEFAULT: u8 = 18;
/// Largest plain size in the small form: one segment, sealed with the header.
pub const SMALL_MAX: u64 = SEGMENT as u64;
/// Offset of the first table of a large file; the header is before it.
pub const DATA_START: u64 = 4096;
/// Bytes of one hash in an index block.
pub const HASH: usize = 32;
/// Children of an index block.
pub const FANOUT: u64 = 128;
/// Bytes of an index block.
pub const INDEX_BLOCK: usize = FANOUT as usize * HASH;
/// Levels of index blocks that the largest file can have (2^62 bytes in chunks of 4 KiB).
pub const LEVELS_MAX: u8 = 8;
/// Largest plain size. Its ciphertext length still fits an `off_t` at every chunk size.
pub const SIZE_MAX: u64 = 1 << 62;

/// Bytes before the entries of a table: salt, epoch, seal count, reserved.
pub const TABLE_HEAD: usize = 64;
/// Bytes of a table entry in a share that is not signed: nonce, tag, sealed length.
pub const ENTRY: usize = 12 + 16 + 2;
/// Bytes of a table entry in a signed share: as [`ENTRY`] and the hash of the segment's ciphertext.
pub const ENTRY_SIGNED: usize = ENTRY + HASH;

/// Bytes of a file header in a share that is not signed.
pub const HEADER: usize = 512;
/// Bytes of a file header in a signed share: as [`HEADER`] and author, signer, signature.
pub const HEADER_SIGNED: usize = HEADER + 32 + 32 + 64;

/// The arithmetic of one share: fixed by its chunk size and by whether it is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    chunk_log2: u8,
    signed: bool,
}

impl Layout {
    /// Returns the layout for chunks of `1 << chunk_log2` bytes; `None` outside
    /// [`CHUNK_LOG2_MIN`]`..=`[`CHUNK_LOG2_MAX`].
    pub fn new(chunk_log2: u8, signed: bool) -> Option<Self> {
        (CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX)
            .contains(&chunk_log2)
            .then_some(Layout { chunk_log2, signed })
    }

    /// Returns `log2` of the chunk size.
    pub fn chunk_log2(&self) -> u8 {
        self.chunk_log2
    }

    /// Returns whether headers contain signatures and table entries contain hashes.
    pub fn signed(&self) -> bool {
        self.signed
    }

    /// Returns the number of plain bytes in a chunk.
    pub fn chunk(&self) -> u64 {
        1 << self.chunk_log2
    }

    /// Returns the number of segments in a chunk.
    pub fn segments(&self) -> usize {
        1 << (self.chunk_log2 - SEGMENT.trailing_zeros() as u8)
    }

    /// Returns the length of the header in bytes.
    pub fn header(&self) -> usize {
        if self.signed { HEADER_SIGNED } else { HEADER }
    }

    /// Returns the length of one table entry in bytes.
    pub fn entry(&self) -> usize {
        if self.signed { ENTRY_SIGNED } else { ENTRY }
    }

    /// Returns the number of bytes of a table that have a meaning and are hashed.
    pub fn table_used(&self) -> usize {
        TABLE_HEAD + self.segments() * self.entry()
    }

    /// Returns the size of a table in the file: a power of two, and with chunks of 256 KiB and more
    /// at least 4096, so that their segments are page-aligned in the store.
    pub fn table(&self) -> u64 {
        let needed = self.table_used().next_power_of_two() as u64;
        if self.chunk_log2 >= CHUNK_LOG2_DEFAULT { needed.max(4096) } else { needed }
    }

    /// Returns the bytes from one table to the next if no index block is between them.
    fn stride(&self) -> u64 {
        self.table() + self.chunk()
    }

    /// Returns the number of index blocks in the whole file before the table of chunk `k`.
    fn index_blocks_before(k: u64) -> u64 {
        let mut blocks = 0;
        let mut first = 1; // the chunk before which level l begins: 128^(l-1)
        while first <= k {
            blocks += match first.checked_mul(FANOUT) {
                Some(span) => k / span + 1,
                None => 1,
            };
            match first.checked_mul(FANOUT) {
                Some(next) => first = next,
                None => break,
            }
        }
        blocks
    }

    /// Returns the offset of the table of chunk `k`.
    pub fn table_offset(&self, k: u64) -> u64 {
        DATA_START + k * self.stride() + Self::index_blocks_before(k) * INDEX_BLOCK as u64
    }

    /// Returns the offset of the first segment of chunk `k`.
    pub fn chunk_offset(&self, k: u64) -> u64 {
        self.table_offset(k) + self.table()
    }

    /// Returns the offset of segment `s` of chunk `k`.
    pub fn segment_offset(&self, k: u64, s: usize) -> u64 {
        self.chunk_offset(k) + (s * SEGMENT) as u64
    }

    /// Returns the offset of the `j`-th index block of `level` (1 is the level above the tables).
    pub fn index_offset(&self, level: u8, j: u64) -> u64 {
        debug_assert!((1..=LEVELS_MAX).contains(&level));
        let first =
            if j == 0 { FANOUT.pow(level as u32 - 1) } else { j * FANOUT.pow(level as u32) };
        // Blocks that begin at the same chunk are in order of descending level.
        self.table_offset(first) - level as u64 * INDEX_BLOCK as u64
    }

    /// Returns the number of chunks of a large file of `size` bytes.
    pub fn chunks(&self, size: u64) -> u64 {
        size.div_ceil(self.chunk())
    }

    /// Returns the number of levels of index blocks above the tables of `chunks` chunks: 0 for one
    /// chunk, 1 up to 128, 2 up to 16,384.
    pub fn levels(chunks: u64) -> u8 {
        let mut levels = 0;
        let mut reach = 1u64;
        while reach < chunks {
            levels += 1;
            reach = reach.saturating_mul(FANOUT);
        }
        levels
    }

    /// Returns chunk and segment of the plain byte at `offset`.
    pub fn locate(&self, offset: u64) -> (u64, usize) {
        (offset >> self.chunk_log2, ((offset & (self.chunk() - 1)) / SEGMENT as u64) as usize)
    }

    /// Returns the ciphertext length of a committed file of `size` plain bytes.
    pub fn cipher_len(&self, size: u64) -> u64 {
        if size <= SMALL_MAX {
            return self.header() as u64 + size;
        }
        let last = (size - 1) >> self.chunk_log2;
        self.chunk_offset(last) + (size - (last << self.chunk_log2))
    }

    /// Returns the plain size of a ciphertext of `len` bytes: the inverse of
    /// [`Layout::cipher_len`]. For a length that no committed file has, it returns the largest size
    /// whose ciphertext is not longer (0 if there is none).
    pub fn plain_size(&self, len: u64) -> u64 {
        let header = self.header() as u64;
        if len <= header {
            return 0;
        }
        if len < self.cipher_len(SMALL_MAX + 1) {
            return (len - header).min(SMALL_MAX);
        }
        // The first estimate of the last chunk `k` ignores index blocks. Each round subtracts the
        // index blocks before chunk `k`, and reduces the error by a factor of more than 128. After
        // eight rounds the error is a few chunks, even for the largest length.
        let mut k = (len - DATA_START) / self.stride();
        for _ in 0..LEVELS_MAX {
            let nearer = (len - DATA_START)
                .saturating_sub(Self::index_blocks_before(k) * INDEX_BLOCK as u64)
                / self.stride();
            if nearer == k {
                break;
            }
            k = nearer;
        }
        while self.chunk_offset(k + 1) < len {
            k += 1;
        }
        while k > 0 && self.chunk_offset(k) >= len {
            k -= 1;
        }
        let in_chunk = (len - self.chunk_offset(k)).min(self.chunk());
        (k << self.chunk_log2) + in_chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layouts() -> impl Strategy<Value = Layout> {
        (CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX, any::<bool>())
            .prop_map(|(log2, signed)| Layout::new(log2, signed).unwrap())
    }

    /// Sizes near the edges of segments, chunks and index blocks, and any size.
    fn sizes() -> impl Strategy<Value = u64> {
        prop_oneof![
            0..20_000u64,
            (0..63u32, -3..=3i64)
                .prop_map(|(bits, d)| (1u64 << bits).saturating_add_signed(d).min(SIZE_MAX)),
            (1..2_000_000u64, 12..=22u32, -2..=2i64)
                .prop_map(|(k, log2, d)| (k << log2).saturating_add_signed(d)),
            0..=SIZE_MAX,
        ]
    }

    proptest! {
        // The inverse once stepped chunk by chunk from too low an estimate: `stat` of an exabyte
        // took minutes, and so did this test.
        #[test]
        fn size_and_length_determine_each_other(layout in layouts(), size in sizes()) {
            let len = layout.cipher_len(size);
            prop_assert!(len <= i64::MAX as u64);
            prop_assert_eq!(layout.plain_size(len), size);
        }

        #[test]
        fn an_odd_length_gives_the_largest_size_that_fits(layout in layouts(), len in 0..1u64 << 40) {
            let size = layout.plain_size(len);
            prop_assert!(layout.cipher_len(size) <= len || size == 0);
            prop_assert!(layout.cipher_len(size + 1) > len);
        }

        #[test]
        fn length_grows_with_size(layout in layouts(), a in sizes(), b in sizes()) {
            prop_assert_eq!(a.cmp(&b), layout.cipher_len(a).cmp(&layout.cipher_len(b)));
        }
    }

    #[test]
    fn the_longest_files_are_measured_without_a_walk() {
        // A hostile sparse file can be as long as an `off_t`; walking chunk by chunk from a bad
        // guess took minutes for one `stat`.
        let begun = std::time::Instant::now();
        for log2 in CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX {
            let layout = Layout::new(log2, false).unwrap();
            for size in [SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 3, 1 << 50] {
                assert_eq!(layout.plain_size(layout.cipher_len(size)), size);
            }
            assert!(layout.plain_size(i64::MAX as u64) >= SIZE_MAX);
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(5));
    }

    #[test]
    fn nothing_overlaps_and_nothing_is_left_between() {
        for (log2, signed) in [(12, false), (12, true), (18, false), (18, true), (22, true)] {
            let layout = Layout::new(log2, signed).unwrap();
            let chunks = 3 * 128 * 128 + 300;
            let mut places = Vec::new();
            for k in 0..chunks {
                places.push((layout.table_offset(k), layout.table()));
                places.push((layout.chunk_offset(k), layout.chunk()));
            }
            for level in 1..=Layout::levels(chunks) {
                for j in 0..chunks.div_ceil(FANOUT.pow(level as u32)) {
                    places.push((layout.index_offset(level, j), INDEX_BLOCK as u64));
                }
            }
            places.sort();
            assert_eq!(places[0].0, DATA_START);
            for pair in places.windows(2) {
                assert_eq!(pair[0].0 + pair[0].1, pair[1].0, "log2 {log2} signed {signed}");
            }
        }
    }

    #[test]
    fn an_index_block_is_before_the_first_chunk_that_needs_it() {
        let layout = Layout::new(18, false).unwrap();
        assert_eq!(layout.index_offset(1, 0) + INDEX_BLOCK as u64, layout.table_offset(1));
        assert_eq!(layout.index_offset(1, 1) + INDEX_BLOCK as u64, layout.table_offset(128));
        assert_eq!(layout.index_offset(2, 0) + 2 * INDEX_BLOCK as u64, layout.table_offset(128));
        assert_eq!(layout.chunk_offset(0) % 4096, 0);
        assert_eq!(layout.table(), 4096);
        assert_eq!(
            (Layout::levels(1), Layout::levels(2), Layout::levels(128), Layout::levels(129)),
            (0, 1, 1, 2)
        );
    }
}
