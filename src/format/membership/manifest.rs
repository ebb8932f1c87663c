//! One manifest of a roster (`+manifest-<n>-<hex>`): the admins of a share from this manifest on,
//! and its slot blocks. Layout only; `roster` decides what a valid chain is.
//!
//! Rules: one encoding for each value; every list is counted, bounded and sorted; the signature
//! covers every byte before it; the manifest's hash covers the signature too.

use crate::crypto::digest::digest;
use crate::crypto::labels;
use crate::crypto::record::RECORD_OVERHEAD;
use crate::crypto::suite::Suite;
use crate::format::cursor::{Reader, Writer};
use crate::format::error::{FormatError, FormatErrorKind};

/// First bytes of a manifest.
pub const MAGIC: [u8; 8] = *b"kithmani";
/// The version that this program writes and reads.
pub const VERSION: u16 = 1;
/// Most admins of a share.
pub const MAX_ADMINS: usize = 1024;
/// Most slot blocks that a manifest names: a member searches each of them, with one key exchange
/// per block.
pub const MAX_BLOCKS: usize = 4;
/// Most earlier folder keys that one manifest contains: one at a change of epoch, more if it
/// settles a fork.
pub const MAX_HISTORY: usize = 256;

/// Length of a sealed folder key: 72.
pub const SEALED_KEY_LEN: usize = RECORD_OVERHEAD + 32;
const RESERVED_LEN: usize = 3;
/// Length of the fixed part: 260.
pub const FIXED_LEN: usize =
    MAGIC.len() + 2 + 1 + 1 + 4 + 4 + 8 + 6 * 32 + 32 + 2 + 2 + 1 + RESERVED_LEN;
/// Length of an entry of the history: 108.
pub const HISTORY_LEN: usize = 4 + 32 + SEALED_KEY_LEN;
/// Length of a reference to a slot block: 36.
pub const BLOCK_LEN: usize = 32 + 4;
/// Length of the signature at the end.
pub const SIGNATURE_LEN: usize = 64;
/// Longest manifest.
pub const MAX_LEN: usize = FIXED_LEN
    + MAX_ADMINS * 32
    + MAX_BLOCKS * BLOCK_LEN
    + MAX_HISTORY * HISTORY_LEN
    + SIGNATURE_LEN;

/// An earlier folder key, sealed under the history key of the manifest's epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The earlier key's epoch.
    pub epoch: u32,
    /// The earlier key's commitment. With the number it identifies the epoch: two admins can start
    /// epochs of the same number independently.
    pub commitment: [u8; 32],
    /// The earlier folder key as a record.
    pub sealed: [u8; SEALED_KEY_LEN],
}

/// A slot block, by its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRef {
    /// [`SlotHeader::root`](super::slots::SlotHeader::root).
    pub root: [u8; 32],
    /// Slots in the block.
    pub count: u32,
}

/// A manifest, parsed; not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The share's suite.
    pub suite: Suite,
    /// Place in the chain, from 1.
    pub sequence: u32,
    /// Epoch of the folder key from this manifest on, from 1.
    pub epoch: u32,
    /// When it was signed by the signer's clock, in seconds since 1970. For people to read; no
    /// decision depends on it.
    pub time: u64,
    /// The share.
    pub share: [u8; 32],
    /// Hash of the previous manifest; zero in the first.
    pub previous: [u8; 32],
    /// Head of the losing branch if this manifest settles a fork, otherwise zero.
    pub second_parent: [u8; 32],
    /// Commitment to the epoch's folder key.
    pub commitment: [u8; 32],
    /// Merkle root of the inventory of objects that stay valid although their signer lost the right
    /// to write; zero if there is none.
    pub inventory_root: [u8; 32],
    /// Hash of the inventory's file; zero if there is none.
    pub inventory_file: [u8; 32],
    /// The signer's signing key.
    pub signer: [u8; 32],
    /// Signing keys of the admins from this manifest on, ascending. They are not encrypted, because
    /// a manifest must be verified before any key that it leads to is used.
    pub admins: Vec<[u8; 32]>,
    /// The slot blocks, in any order. A member has a slot in exactly one.
    pub blocks: Vec<BlockRef>,
    /// Earlier folder keys, ascending by (epoch, commitment); empty unless the manifest starts an
    /// epoch after the first.
    pub history: Vec<HistoryEntry>,
    /// Ed25519 signature over [`Manifest::signed_bytes`].
    pub signature: [u8; SIGNATURE_LEN],
}

impl Manifest {
    fn encode_unsigned(&self) -> Vec<u8> {
        let lists = self.admins.len() * 32
            + self.blocks.len() * BLOCK_LEN
            + self.history.len() * HISTORY_LEN;
        let mut w = Writer::with_capacity(FIXED_LEN + lists + SIGNATURE_LEN);
        w.bytes(&MAGIC)
            .u16(VERSION)
            .u8(self.suite.as_byte())
            .zeros(1)
            .u32(self.sequence)
            .u32(self.epoch)
            .u64(self.time);
        for part in [
            &self.share,
            &self.previous,
            &self.second_parent,
            &self.commitment,
            &self.inventory_root,
            &self.inventory_file,
        ] {
            w.bytes(part);
        }
        w.bytes(&self.signer);
        w.u16(self.admins.len() as u16)
            .u16(self.history.len() as u16)
            .u8(self.blocks.len() as u8)
            .zeros(RESERVED_LEN);
        for key in &self.admins {
            w.bytes(key);
        }
        for block in &self.blocks {
            w.bytes(&block.root).u32(block.count);
        }
        for entry in &self.history {
            w.u32(entry.epoch).bytes(&entry.commitment).bytes(&entry.sealed);
        }
        w.into_vec()
    }

    /// Returns the manifest's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.encode_unsigned();
        bytes.extend_from_slice(&self.signature);
        bytes
    }

    /// Returns the bytes that the signer signs, after the label of manifests: all before the
    /// signature.
    pub fn signed_bytes(&self) -> Vec<u8> {
        self.encode_unsigned()
    }

    /// Returns the manifest's hash, by which the next one refers to it.
    pub fn hash(&self) -> [u8; 32] {
        digest(&labels::MANIFEST_HASH, &[&self.encode()])
    }

    /// Parses a manifest.
    ///
    /// # Errors
    /// Every deviation from the one encoding.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::named("manifest", bytes);
        r.magic(&MAGIC)?;
        r.version(VERSION)?;
        let suite = r.u8()?;
        let suite = Suite::from_byte(suite).ok_or(r.error(FormatErrorKind::Suite(suite)))?;
        r.zeros(1)?;
        let (sequence, epoch, time) = (r.u32()?, r.u32()?, r.u64()?);
        let (share, previous, second_parent) = (r.array()?, r.array()?, r.array()?);
        let (commitment, inventory_root, inventory_file) = (r.array()?, r.array()?, r.array()?);
        let signer = r.array()?;
        let (admin_count, history_count, block_count) =
            (usize::from(r.u16()?), usize::from(r.u16()?), usize::from(r.u8()?));
        r.zeros(RESERVED_LEN)?;
        let counts_fit = (1..=MAX_ADMINS).contains(&admin_count)
            && (1..=MAX_BLOCKS).contains(&block_count)
            && history_count <= MAX_HISTORY;
        if sequence == 0
            || epoch == 0
            || !counts_fit
            || (inventory_root == [0; 32]) != (inventory_file == [0; 32])
        {
            return Err(r.error(FormatErrorKind::Range));
        }
        let admins = (0..admin_count).map(|_| r.array()).collect::<Result<Vec<[u8; 32]>, _>>()?;
        let blocks = (0..block_count)
            .map(|_| Ok(BlockRef { root: r.array()?, count: r.u32()? }))
            .collect::<Result<Vec<_>, _>>()?;
        let history = (0..history_count)
            .map(|_| {
                Ok(HistoryEntry { epoch: r.u32()?, commitment: r.array()?, sealed: r.array()? })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let signature = r.array()?;
        let roots_differ = blocks
            .iter()
            .enumerate()
            .all(|(i, block)| blocks[..i].iter().all(|other| other.root != block.root));
        let history_sorted =
            history.is_sorted_by(|a, b| (a.epoch, a.commitment) < (b.epoch, b.commitment));
        if !admins.is_sorted_by(|a, b| a < b) || !roots_differ || !history_sorted {
            return Err(r.error(FormatErrorKind::Order));
        }
        r.finish()?;
        Ok(Self {
            suite,
            sequence,
            epoch,
            time,
            share,
            previous,
            second_parent,
            commitment,
            inventory_root,
            inventory_file,
            signer,
            admins,
            blocks,
            history,
            signature,
        })
    }

    /// Returns the name of the manifest's control file: `+manifest-<n>-` and 32 hexadecimal digits
    /// of its hash. If two admins sign manifests of one number, there are two files.
    pub fn file_name(&self) -> String {
        format!("+manifest-{}-{}", self.sequence, hex::encode(&self.hash()[..16]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Manifest {
        Manifest {
            suite: Suite::Aes256Gcm,
            sequence: 7,
            epoch: 3,
            time: 1_700_000_000,
            share: [1; 32],
            previous: [2; 32],
            second_parent: [0; 32],
            commitment: [3; 32],
            inventory_root: [4; 32],
            inventory_file: [5; 32],
            signer: [6; 32],
            admins: vec![[6; 32], [7; 32]],
            blocks: vec![
                BlockRef { root: [8; 32], count: 20_000 },
                BlockRef { root: [1; 32], count: 1 },
            ],
            history: vec![HistoryEntry {
                epoch: 2,
                commitment: [9; 32],
                sealed: [10; SEALED_KEY_LEN],
            }],
            signature: [11; 64],
        }
    }

    #[test]
    fn layout_is_as_the_table_says() {
        let bytes = sample().encode();
        assert_eq!(bytes.len(), FIXED_LEN + 2 * 32 + 2 * BLOCK_LEN + HISTORY_LEN + SIGNATURE_LEN);
        assert_eq!((FIXED_LEN, HISTORY_LEN, BLOCK_LEN), (260, 108, 36));
        assert_eq!(Manifest::decode(&bytes).unwrap(), sample());
        assert!(sample().file_name().starts_with("+manifest-7-"));
        assert_eq!(sample().file_name().len(), "+manifest-7-".len() + 32);
    }

    #[test]
    fn each_deviation_has_its_kind() {
        let kind = |change: &dyn Fn(&mut Manifest)| {
            let mut manifest = sample();
            change(&mut manifest);
            Manifest::decode(&manifest.encode()).unwrap_err().kind()
        };
        assert_eq!(kind(&|m| m.admins.swap(0, 1)), FormatErrorKind::Order);
        assert_eq!(kind(&|m| m.admins[1] = m.admins[0]), FormatErrorKind::Order);
        assert_eq!(kind(&|m| m.blocks[1] = m.blocks[0]), FormatErrorKind::Order);
        assert_eq!(kind(&|m| m.history.push(m.history[0].clone())), FormatErrorKind::Order);
        assert_eq!(kind(&|m| m.admins.clear()), FormatErrorKind::Range);
        assert_eq!(kind(&|m| m.blocks.clear()), FormatErrorKind::Range);
        assert_eq!(kind(&|m| m.sequence = 0), FormatErrorKind::Range);
        assert_eq!(kind(&|m| m.epoch = 0), FormatErrorKind::Range);
        assert_eq!(kind(&|m| m.inventory_file = [0; 32]), FormatErrorKind::Range);
        let bytes = sample().encode();
        for n in 0..bytes.len() {
            assert_eq!(
                Manifest::decode(&bytes[..n]).unwrap_err().kind(),
                FormatErrorKind::Truncated,
                "cut at {n}"
            );
        }
        assert_eq!(
            Manifest::decode(&[bytes, vec![0]].concat()).unwrap_err().kind(),
            FormatErrorKind::Trailing
        );
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..900), at in 0usize..600, len in 0usize..40) {
            let _ = Manifest::decode(&bytes);
            let mut real = sample().encode();
            let at = at.min(real.len());
            let n = bytes.len().min(real.len() - at).min(len);
            real[at..at + n].copy_from_slice(&bytes[..n]);
            if let Ok(manifest) = Manifest::decode(&real) { prop_assert_eq!(manifest.encode(), real); }
        }
    }
}
