//! The table of a chunk, and the hashes that bind tables to the header.
//!
//! Rules that hold here
//! * A table is in the clear: salt, epoch, and of each segment nonce, tag and sealed length. It is
//!   authenticated by its hash, which is in the index, and so in the end by the header's seal.
//! * The hash covers [`Layout::table_used`] bytes; the padding after them is not part of the format
//!   and is never read.
//! * A sealed length of 0 is a hole: its nonce and tag must be zero too. Bytes of a segment after
//!   its sealed length read as zeros.
//! * In a signed share an entry also has the hash of the segment's ciphertext, because anyone with
//!   the key can make a second ciphertext with the same tag; it is zero for a hole.

use super::layout::{FANOUT, HASH, INDEX_BLOCK, Layout, SEGMENT, TABLE_HEAD};
use crate::crypto::Suite;
use crate::format::cursor::Reader;
use crate::format::error::{FormatError, FormatErrorKind};

/// A hash of a table or an index block; all zero means a hole (a chunk or a subtree that was never
/// written).
pub type Hash = [u8; HASH];

/// The hash of a hole.
pub const HOLE: Hash = [0; HASH];

const WHAT: &str = "chunk table";
/// Seals after which a writer gives a chunk a new salt: far below what AES-GCM allows for one key.
pub const SEALS_MAX: u32 = 1 << 20;

/// The entry of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Nonce under which it is sealed.
    pub nonce: [u8; 12],
    /// Its tag.
    pub tag: [u8; 16],
    /// Sealed bytes, `0..=4096`; 0 is a hole.
    pub len: u16,
}

impl Segment {
    /// A segment that was never written.
    pub const HOLE: Segment = Segment { nonce: [0; 12], tag: [0; 16], len: 0 };
}

/// The table of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The chunk's sub-key is derived from it (AES uses the first 12 bytes, the rest is zero).
    pub salt: [u8; 16],
    /// Epoch of the folder key under which the chunk is sealed.
    pub epoch: u32,
    /// Segments sealed under this salt so far; readers do not rely on it.
    pub seals: u32,
    /// One for each segment of the chunk.
    pub segments: Box<[Segment]>,
    /// Hash of each segment's ciphertext, see [`segment_hash`]; empty in a share that is not
    /// signed.
    pub hashes: Box<[Hash]>,
}

impl Table {
    /// Creates a table of holes.
    pub fn empty(layout: &Layout, salt: [u8; 16], epoch: u32) -> Self {
        let hashes = if layout.signed() { layout.segments() } else { 0 };
        Table {
            salt,
            epoch,
            seals: 0,
            segments: vec![Segment::HOLE; layout.segments()].into(),
            hashes: vec![HOLE; hashes].into(),
        }
    }

    /// Returns whether all segments are holes.
    pub fn is_hole(&self) -> bool {
        self.segments.iter().all(|s| s.len == 0)
    }

    /// Sets the entry of segment `s`, whose ciphertext has the hash `hash` (ignored in a share that
    /// is not signed).
    pub fn set(&mut self, s: usize, segment: Segment, hash: Option<Hash>) {
        self.segments[s] = segment;
        if let Some(entry) = self.hashes.get_mut(s) {
            *entry = hash.unwrap_or(HOLE);
        }
    }

    /// Returns the [`Layout::table_used`] bytes of the table.
    pub fn encode(&self, layout: &Layout) -> Vec<u8> {
        let mut out = Vec::with_capacity(layout.table_used());
        out.extend_from_slice(&self.salt);
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.seals.to_le_bytes());
        out.resize(TABLE_HEAD, 0);
        for (s, segment) in self.segments.iter().enumerate() {
            out.extend_from_slice(&segment.nonce);
            out.extend_from_slice(&segment.tag);
            out.extend_from_slice(&segment.len.to_le_bytes());
            if let Some(hash) = self.hashes.get(s) {
                out.extend_from_slice(hash);
            }
        }
        out
    }

    /// Reads a table whose hash was already verified.
    pub fn decode(layout: &Layout, suite: Suite, bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::named(WHAT, bytes);
        let salt: [u8; 16] = r.array()?;
        if suite == Suite::Aes256Gcm && salt[12..] != [0; 4] {
            return Err(r.error(FormatErrorKind::Range));
        }
        let epoch = r.u32()?;
        let seals = r.u32()?;
        r.zeros(TABLE_HEAD - 24)?;
        let mut segments = Vec::with_capacity(layout.segments());
        let mut hashes = Vec::with_capacity(if layout.signed() { layout.segments() } else { 0 });
        for _ in 0..layout.segments() {
            let segment = Segment { nonce: r.array()?, tag: r.array()?, len: r.u16()? };
            if segment.len as usize > SEGMENT || (segment.len == 0 && segment != Segment::HOLE) {
                return Err(r.error(FormatErrorKind::Range));
            }
            if layout.signed() {
                let hash: Hash = r.array()?;
                if (hash == HOLE) != (segment.len == 0) {
                    return Err(r.error(FormatErrorKind::Range));
                }
                hashes.push(hash);
            }
            segments.push(segment);
        }
        r.finish()?;
        Ok(Table { salt, epoch, seals, segments: segments.into(), hashes: hashes.into() })
    }
}

/// Returns the hash of a table's used bytes.
pub fn table_hash(used: &[u8]) -> Hash {
    tree_hash(0, used)
}

/// Returns the hash of an index block of `level` (1 and up).
pub fn index_hash(level: u8, block: &[u8]) -> Hash {
    tree_hash(level, block)
}

/// The level value for hashes of a signed share that are not nodes of the tree.
const OF_SEGMENT: u8 = 254;
const OF_SMALL: u8 = 255;

/// Returns the hash of a segment's ciphertext, in the tables of a signed share.
pub fn segment_hash(sealed: &[u8]) -> Hash {
    tree_hash(OF_SEGMENT, sealed)
}

/// Returns the root of a file in the small form if its header is signed: the hash of its plain
/// data.
pub fn small_hash(data: &[u8]) -> Hash {
    tree_hash(OF_SMALL, data)
}

/// Domain prefix of every hash in this module.
const WORD: &[u8; 7] = b"kithfs1";

/// Returns the BLAKE3 hash over a domain word, the level and the block.
fn tree_hash(level: u8, block: &[u8]) -> Hash {
    // In one piece: a hasher that gets word, level and block one after the other is misaligned with
    // the block from then on. Its vector instructions idle, and it takes two and a half times as
    // long.
    let mut piece = [0; WORD.len() + 1 + SEGMENT];
    let end = WORD.len() + 1 + block.len();
    if let Some(rest) = piece.get_mut(WORD.len() + 1..end) {
        rest.copy_from_slice(block);
        piece[..WORD.len()].copy_from_slice(WORD);
        piece[WORD.len()] = level;
        return *blake3::hash(&piece[..end]).as_bytes();
    }
    // A table of more than 4096 bytes: of a chunk of 1 MiB or more, in a signed share of 512 KiB.
    let mut hasher = blake3::Hasher::new();
    hasher.update(WORD).update(&[level]).update(block);
    *hasher.finalize().as_bytes()
}

/// An index block: the hashes of [`FANOUT`] children.
#[derive(Clone, PartialEq, Eq)]
pub struct IndexBlock(pub Box<[Hash; FANOUT as usize]>);

impl IndexBlock {
    /// Creates a block of holes.
    pub fn empty() -> Self {
        IndexBlock(Box::new([HOLE; FANOUT as usize]))
    }

    /// Returns the [`INDEX_BLOCK`] bytes of the block.
    pub fn encode(&self) -> Vec<u8> {
        self.0.as_flattened().to_vec()
    }

    /// Reads a block.
    pub fn decode(bytes: &[u8; INDEX_BLOCK]) -> Self {
        let mut block = Self::empty();
        block.0.as_flattened_mut().copy_from_slice(bytes);
        block
    }

    /// Returns whether every child is a hole.
    pub fn is_hole(&self) -> bool {
        self.0.iter().all(|h| *h == HOLE)
    }
}

/// Returns the associated data of a segment: share, file, chunk, segment, sealed length, epoch,
/// suite.
pub fn segment_aad(
    share: &[u8; 32],
    file: &[u8; 32],
    chunk: u64,
    segment: u32,
    len: u16,
    epoch: u32,
    suite: Suite,
) -> [u8; 88] {
    let mut aad = [0; 88];
    aad[..4].copy_from_slice(b"KSEG");
    aad[4..36].copy_from_slice(share);
    aad[36..68].copy_from_slice(file);
    aad[68..76].copy_from_slice(&chunk.to_le_bytes());
    aad[76..80].copy_from_slice(&segment.to_le_bytes());
    aad[80..82].copy_from_slice(&len.to_le_bytes());
    aad[82..86].copy_from_slice(&epoch.to_le_bytes());
    aad[86] = suite.as_byte();
    aad
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_in_one_piece_is_that_of_its_parts() {
        for len in [0, 1, 1016, SEGMENT - 1, SEGMENT, SEGMENT + 1, 63_552] {
            let block: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            let whole = [&b"kithfs1"[..], &[OF_SEGMENT], &block].concat();
            assert_eq!(segment_hash(&block), *blake3::hash(&whole).as_bytes(), "{len}");
        }
    }

    #[test]
    fn a_table_reads_back_and_every_stray_byte_is_refused() {
        let layout = Layout::new(14, false).unwrap();
        let mut table = Table::empty(&layout, [0; 16], 7);
        table.segments[2] = Segment { nonce: [1; 12], tag: [2; 16], len: 4096 };
        let bytes = table.encode(&layout);
        assert_eq!(bytes.len(), layout.table_used());
        assert_eq!(Table::decode(&layout, Suite::Aes256Gcm, &bytes).unwrap(), table);
        assert!(Table::decode(&layout, Suite::Aes256Gcm, &bytes[1..]).is_err());
        for (at, what) in [
            (13, "salt tail"),
            (30, "reserved"),
            (64, "nonce of a hole"),
            (64 + 2 * 30 + 29, "length over 4096"),
        ] {
            let mut bad = bytes.clone();
            bad[at] ^= 0x80;
            assert!(Table::decode(&layout, Suite::Aes256Gcm, &bad).is_err(), "{what}");
        }
    }

    #[test]
    fn signed_tables_have_hashes_for_segments_only() {
        let layout = Layout::new(14, true).unwrap();
        let mut table = Table::empty(&layout, [0; 16], 7);
        table.set(2, Segment { nonce: [1; 12], tag: [2; 16], len: 4096 }, Some([3; 32]));
        let bytes = table.encode(&layout);
        assert_eq!(bytes.len(), layout.table_used());
        assert_eq!(Table::decode(&layout, Suite::Aes256Gcm, &bytes).unwrap(), table);
        table.set(2, Segment { nonce: [1; 12], tag: [2; 16], len: 4096 }, None);
        assert!(
            Table::decode(&layout, Suite::Aes256Gcm, &table.encode(&layout)).is_err(),
            "a segment without a hash"
        );
        table.set(2, Segment::HOLE, Some([3; 32]));
        assert!(
            Table::decode(&layout, Suite::Aes256Gcm, &table.encode(&layout)).is_err(),
            "a hole with a hash"
        );
    }

    #[test]
    fn hashes_differ_by_level() {
        assert_ne!(segment_hash(&[0; 4096]), small_hash(&[0; 4096]));
        assert_ne!(segment_hash(&[0; 4096]), table_hash(&[0; 4096]));
        assert_ne!(index_hash(1, &[0; 4096]), index_hash(2, &[0; 4096]));
        assert_ne!(table_hash(&[0; 4096]), index_hash(1, &[0; 4096]));
    }
}
