//! An inventory (`+inventory-<32 hex>`): the objects that members signed before they lost the
//! right to write, and that stay valid.
//!
//! It lists the BLAKE3 hashes of file headers and of sealed records, in ascending order without
//! duplicates. The manifest that withdraws the right commits to the root of a tree over pages of
//! 128 hashes, and to the hash of the whole file.
//!
//! Rules: the count is bounded before anything is allocated; one set of hashes has one file.

use crate::crypto::{digest, digest_stream, labels};
use crate::format::error::{FormatError, FormatErrorKind};

/// Beginning of the control file's name.
pub const PREFIX: &str = "+inventory-";
/// Most entries of an inventory: 16,777,216, half a gigabyte.
pub const MAX_ENTRIES: usize = 1 << 24;
/// Hashes of a page.
pub const PAGE: usize = 128;

const WHAT: &str = "inventory";

/// A sorted list of hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InventoryList(Vec<[u8; 32]>);

impl InventoryList {
    /// Creates the list of these hashes.
    pub fn new(mut hashes: Vec<[u8; 32]>) -> Self {
        hashes.sort_unstable();
        hashes.dedup();
        InventoryList(hashes)
    }

    /// Returns whether it contains the hash.
    pub fn contains(&self, hash: &[u8; 32]) -> bool {
        self.0.binary_search(hash).is_ok()
    }

    /// Returns the hashes, ascending.
    pub fn hashes(&self) -> &[[u8; 32]] {
        &self.0
    }

    /// Returns the file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.0.as_flattened().to_vec()
    }

    /// Parses the file's bytes.
    ///
    /// # Errors
    /// An incomplete hash, hashes out of order, more than [`MAX_ENTRIES`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let fail = |kind| Err(FormatError::new(WHAT, kind));
        let (hashes, rest) = bytes.as_chunks::<32>();
        if hashes.len() > MAX_ENTRIES {
            return fail(FormatErrorKind::Range);
        }
        if !rest.is_empty() {
            return fail(FormatErrorKind::Truncated);
        }
        if !hashes.is_sorted_by(|a, b| a < b) {
            return fail(FormatErrorKind::Order);
        }
        Ok(InventoryList(hashes.to_vec()))
    }

    /// Returns the root of the tree over the pages: a last node without a sibling moves up
    /// unchanged. The root of an empty list is the leaf of an empty page.
    pub fn root(&self) -> [u8; 32] {
        let leaf = |(n, page): (usize, &[[u8; 32]])| {
            digest(&labels::INVENTORY_PAGE, &[&(n as u32).to_le_bytes(), page.as_flattened()])
        };
        let mut level: Vec<[u8; 32]> = self.0.chunks(PAGE).enumerate().map(leaf).collect();
        if level.is_empty() {
            return leaf((0, &[]));
        }
        while level.len() > 1 {
            let node = |pair: &[[u8; 32]]| match pair {
                [left, right] => digest(&labels::INVENTORY_NODE, &[left, right]),
                pair => pair[0],
            };
            level = level.chunks(2).map(node).collect();
        }
        level[0]
    }
}

/// Returns the hash of an inventory's file.
pub fn file_hash(bytes: &[u8]) -> [u8; 32] {
    digest(&labels::INVENTORY_HASH, &[bytes])
}

/// Computes the [`file_hash`] of a file of `len` bytes, read piece by piece as by
/// [`digest_stream`]; `None` if the file ends early.
///
/// # Errors
/// Those of `read`.
pub fn file_hash_of<E>(
    len: u64,
    read: impl FnMut(u64, &mut [u8]) -> Result<usize, E>,
) -> Result<Option<[u8; 32]>, E> {
    digest_stream(&labels::INVENTORY_HASH, len, read)
}

/// Returns the name of the control file with this file hash.
pub fn file_name(hash: &[u8; 32]) -> String {
    format!("{PREFIX}{}", hex::encode(&hash[..16]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_come_back_sorted_and_deviations_have_their_kind() {
        let list = InventoryList::new(vec![[9; 32], [1; 32], [9; 32]]);
        assert_eq!(list.hashes().len(), 2);
        assert!(list.contains(&[9; 32]) && !list.contains(&[2; 32]));
        let bytes = list.encode();
        assert_eq!(InventoryList::decode(&bytes).unwrap(), list);
        assert_eq!(
            InventoryList::decode(&bytes[..63]).unwrap_err().kind(),
            FormatErrorKind::Truncated
        );
        assert_eq!(
            InventoryList::decode(&[[2; 32], [1; 32]].concat()).unwrap_err().kind(),
            FormatErrorKind::Order
        );
        assert_eq!(
            InventoryList::decode(&[[2; 32], [2; 32]].concat()).unwrap_err().kind(),
            FormatErrorKind::Order
        );
        let streamed = file_hash_of(bytes.len() as u64, |at, buf: &mut [u8]| {
            let read = buf.len().min(7);
            buf[..read].copy_from_slice(&bytes[at as usize..][..read]);
            Ok::<_, ()>(read)
        });
        assert_eq!(streamed, Ok(Some(file_hash(&bytes))));
        assert_eq!(file_hash_of(65, |at, _| Ok::<_, ()>(if at < 64 { 1 } else { 0 })), Ok(None));
        assert_eq!(file_name(&file_hash(&bytes)).len(), PREFIX.len() + 32);
    }

    #[test]
    fn the_root_depends_on_every_hash_and_its_place() {
        let many = |n: u8| InventoryList::new((0..n).map(|i| [i; 32]).collect());
        let roots: std::collections::HashSet<[u8; 32]> =
            [0, 1, 2, 127, 128, 129, 255].into_iter().map(|n| many(n).root()).collect();
        assert_eq!(roots.len(), 7);
        let other = InventoryList::new(
            (0..255)
                .map(|i| if i == 200 { [200, 1].repeat(16).try_into().unwrap() } else { [i; 32] })
                .collect(),
        );
        assert_ne!(other.root(), many(255).root());
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic_and_have_one_encoding(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(list) = InventoryList::decode(&bytes) { prop_assert_eq!(list.encode(), bytes); }
        }
    }
}
