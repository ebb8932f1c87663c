//! The slot block (`+slots-<hex>`): one 64-byte slot per recipient, sorted by lookup tag, a Merkle
//! tree over pages of slots, and the sealed member list. Layout and search only; slots are sealed
//! and opened in `roster`.
//!
//! ```text
//! header (152) ‖ slots (64 each) ‖ tree levels, leaves first, without the top (32 a node) ‖ sealed member list
//! ```
//!
//! Rules: a block is written once and never changed. Its root, which a signed manifest names, is a
//! hash of the header, and the header contains the top of the tree and the digest of the member
//! list. So the header, one page of slots and the page's path prove one slot. Nothing is used
//! before it was compared with the root.

use std::io;

use super::members::{LIST_HEADER_LEN, MAX_MEMBERS, MAX_NAME, MEMBER_LEN};
use crate::crypto::digest::digest;
use crate::crypto::labels;
use crate::crypto::record::RECORD_OVERHEAD;
use crate::crypto::suite::Suite;
use crate::format::cursor::{Reader, Writer};
use crate::format::error::{FormatError, FormatErrorKind};

/// First bytes of a slot block.
pub const MAGIC: [u8; 8] = *b"kithslot";
/// The version that this program writes and reads.
pub const VERSION: u16 = 1;

/// Prefix of the names of files with blocks.
const PREFIX: &str = "+slots-";
/// Hexadecimal digits of the root in such a name.
const HASH_LETTERS: usize = 32;

const SUITE_AT: usize = MAGIC.len() + 2;
const EPOCH_AT: usize = SUITE_AT + 2;
const SHARE_AT: usize = EPOCH_AT + 4;
const EPHEMERAL_AT: usize = SHARE_AT + 32;
const COUNT_AT: usize = EPHEMERAL_AT + 32;
const MEMBERS_LEN_AT: usize = COUNT_AT + 4;
const TREE_TOP_AT: usize = MEMBERS_LEN_AT + 4;
const MEMBERS_DIGEST_AT: usize = TREE_TOP_AT + 32;
/// Length of the header: 152.
pub const HEADER_LEN: usize = MEMBERS_DIGEST_AT + 32;

/// Length of a lookup tag.
pub const TAG_LEN: usize = 16;
/// Length of a slot: lookup tag ‖ sealed folder key ‖ its authentication tag.
pub const SLOT_LEN: usize = TAG_LEN + 32 + 16;
/// Slots in a page, the leaf of the tree.
pub const PAGE_SLOTS: usize = 16;
const PAGE_LEN: usize = PAGE_SLOTS * SLOT_LEN;
const NODE_LEN: usize = 32;

/// One slot's bytes.
pub type Slot = [u8; SLOT_LEN];
/// Fills the whole buffer with the block's bytes at an offset, or fails (with `UnexpectedEof` if
/// the block ends early).
pub type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> io::Result<()> + 'a;

/// Why a slot block could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The bytes are not those of the requested block.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The bytes could not be read.
    #[error("slot block cannot be read: {0}")]
    Read(#[source] io::Error),
}

const WHAT: &str = "slot block";

fn wrong(kind: FormatErrorKind) -> BlockError {
    FormatError::new(WHAT, kind).into()
}

fn fetch(read: &mut ReadAt<'_>, at: usize, buf: &mut [u8]) -> Result<(), BlockError> {
    read(at as u64, buf).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => wrong(FormatErrorKind::Truncated),
        _ => BlockError::Read(error),
    })
}

/// Returns a reader over a block that is in memory.
#[cfg(any(test, feature = "test-doubles"))]
pub fn slice_reader(bytes: &[u8]) -> impl FnMut(u64, &mut [u8]) -> io::Result<()> + '_ {
    move |at, buf| {
        let from = usize::try_from(at)
            .ok()
            .and_then(|at| bytes.get(at..))
            .and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// The fixed beginning of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotHeader {
    /// Suite of the slots and of the member list.
    pub suite: Suite,
    /// Epoch of the folder key in the slots.
    pub epoch: u32,
    /// The share that the block belongs to.
    pub share: [u8; 32],
    /// The block's one ephemeral X25519 public key.
    pub ephemeral: [u8; 32],
    /// Number of slots, and of members in the list.
    pub count: u32,
    /// Length of the sealed member list.
    pub members_len: u32,
    /// Top of the tree over the pages of slots.
    pub tree_top: [u8; 32],
    /// Digest of the sealed member list.
    pub members_digest: [u8; 32],
}

impl SlotHeader {
    /// Returns the header's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(HEADER_LEN);
        w.bytes(&MAGIC)
            .u16(VERSION)
            .u8(self.suite.as_byte())
            .zeros(1)
            .u32(self.epoch)
            .bytes(&self.share)
            .bytes(&self.ephemeral);
        w.u32(self.count).u32(self.members_len).bytes(&self.tree_top).bytes(&self.members_digest);
        w.into_vec()
    }

    /// Parses a header and checks that the length of the list fits the number of slots.
    ///
    /// # Errors
    /// Every deviation from the one encoding.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::named(WHAT, bytes);
        r.magic(&MAGIC)?;
        r.version(VERSION)?;
        let suite = r.u8()?;
        let suite = Suite::from_byte(suite).ok_or(r.error(FormatErrorKind::Suite(suite)))?;
        r.zeros(1)?;
        let header = Self {
            suite,
            epoch: r.u32()?,
            share: r.array()?,
            ephemeral: r.array()?,
            count: r.u32()?,
            members_len: r.u32()?,
            tree_top: r.array()?,
            members_digest: r.array()?,
        };
        let count = header.count as usize;
        let range_error = r.error(FormatErrorKind::Range);
        r.finish()?;
        let shortest = RECORD_OVERHEAD + LIST_HEADER_LEN + count.min(MAX_MEMBERS) * MEMBER_LEN;
        let longest = shortest + count.min(MAX_MEMBERS) * MAX_NAME;
        let lengths_fit = (1..=MAX_MEMBERS).contains(&count)
            && (shortest..=longest).contains(&(header.members_len as usize));
        if header.epoch == 0 || !lengths_fit {
            return Err(range_error);
        }
        Ok(header)
    }

    /// Returns the block's root, which identifies the block in manifests and in its file name.
    pub fn root(&self) -> [u8; 32] {
        digest(&labels::SLOT_BLOCK, &[&self.encode()])
    }

    /// Returns the associated data of the member list: the header before the first field that
    /// depends on the sealed list.
    pub fn associated_data(&self) -> Vec<u8> {
        self.encode()[..MEMBERS_LEN_AT].to_vec()
    }

    fn pages(&self) -> usize {
        (self.count as usize).div_ceil(PAGE_SLOTS)
    }

    fn page_len(&self, page: usize) -> usize {
        PAGE_LEN.min(self.count as usize * SLOT_LEN - page * PAGE_LEN)
    }

    fn tree_at(&self) -> usize {
        HEADER_LEN + self.count as usize * SLOT_LEN
    }

    fn members_at(&self) -> usize {
        self.tree_at() + stored_levels(self.pages()).sum::<usize>() * NODE_LEN
    }

    /// Returns the length of the whole block.
    pub fn block_len(&self) -> u64 {
        (self.members_at() + self.members_len as usize) as u64
    }

    /// Reads and checks the header of the block with this root.
    ///
    /// # Errors
    /// `Unauthentic` if the header is not the one that the root commits to; parse and read errors.
    pub fn read(root: &[u8; 32], read: &mut ReadAt<'_>) -> Result<Self, BlockError> {
        let mut bytes = [0; HEADER_LEN];
        fetch(read, 0, &mut bytes)?;
        let header = Self::decode(&bytes)?;
        if header.root() != *root {
            return Err(wrong(FormatErrorKind::Unauthentic));
        }
        Ok(header)
    }

    /// Finds the slot with this lookup tag by a binary search over the pages, and proves it with
    /// the page's path in the tree. `self` must come from [`SlotHeader::read`]. Reads under 2 KiB
    /// whatever the number of slots, in addition to the header.
    ///
    /// A slot that is returned is proven. `None` proves nothing: the storage host can mislead the
    /// search, and so hide a slot.
    ///
    /// # Errors
    /// `Unauthentic` if the page is not the one that was signed; `Order` if it is not sorted; read
    /// errors.
    pub fn find(
        &self,
        tag: &[u8; TAG_LEN],
        read: &mut ReadAt<'_>,
    ) -> Result<Option<Slot>, BlockError> {
        let (mut low, mut high) = (0, self.pages());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let mut first = [0; TAG_LEN];
            fetch(read, HEADER_LEN + middle * PAGE_LEN, &mut first)?;
            if first <= *tag { low = middle } else { high = middle }
        }
        let mut page = [0; PAGE_LEN];
        let page = &mut page[..self.page_len(low)];
        fetch(read, HEADER_LEN + low * PAGE_LEN, page)?;
        self.prove_page(low, page, read)?;
        let (slots, _) = page.as_chunks::<SLOT_LEN>();
        check_order(slots)?;
        Ok(slots.binary_search_by(|slot| slot[..TAG_LEN].cmp(tag)).ok().map(|at| slots[at]))
    }

    fn prove_page(
        &self,
        page: usize,
        bytes: &[u8],
        read: &mut ReadAt<'_>,
    ) -> Result<(), BlockError> {
        let (mut hash, mut position, mut level_at) = (leaf(page, bytes), page, self.tree_at());
        for level_len in stored_levels(self.pages()) {
            let sibling = position ^ 1;
            if sibling < level_len {
                let mut other = [0; NODE_LEN];
                fetch(read, level_at + sibling * NODE_LEN, &mut other)?;
                hash = if sibling < position { node(&other, &hash) } else { node(&hash, &other) };
            }
            position /= 2;
            level_at += level_len * NODE_LEN;
        }
        if hash == self.tree_top { Ok(()) } else { Err(wrong(FormatErrorKind::Unauthentic)) }
    }

    /// Reads the sealed member list and compares it with its digest. `self` must come from
    /// [`SlotHeader::read`].
    ///
    /// # Errors
    /// `Unauthentic` if it is not the list that was signed; read errors.
    pub fn read_members(&self, read: &mut ReadAt<'_>) -> Result<Vec<u8>, BlockError> {
        let mut sealed = vec![0; self.members_len as usize];
        fetch(read, self.members_at(), &mut sealed)?;
        if members_digest(&sealed) != self.members_digest {
            return Err(wrong(FormatErrorKind::Unauthentic));
        }
        Ok(sealed)
    }
}

/// Lengths of the levels that are stored, leaves first: all but the top.
fn stored_levels(pages: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(pages), |len| Some(len.div_ceil(2))).take_while(|len| *len > 1)
}

fn leaf(page: usize, bytes: &[u8]) -> [u8; 32] {
    digest(&labels::SLOT_PAGE, &[&(page as u32).to_le_bytes(), bytes])
}

fn node(left: &[u8; 32], right: &[u8; 32]) -> [u8; 32] {
    digest(&labels::SLOT_NODE, &[left, right])
}

fn members_digest(sealed: &[u8]) -> [u8; 32] {
    digest(&labels::MEMBER_LIST_HASH, &[sealed])
}

fn check_order(slots: &[Slot]) -> Result<(), FormatError> {
    match slots.is_sorted_by(|a, b| a[..TAG_LEN] < b[..TAG_LEN]) {
        true => Ok(()),
        false => Err(FormatError::new(WHAT, FormatErrorKind::Order)),
    }
}

/// Returns the stored levels, concatenated, and the top.
fn tree(slots: &[u8]) -> (Vec<u8>, [u8; 32]) {
    let mut level: Vec<[u8; 32]> =
        slots.chunks(PAGE_LEN).enumerate().map(|(page, bytes)| leaf(page, bytes)).collect();
    let mut stored = Vec::with_capacity(level.len() * 2 * NODE_LEN);
    while level.len() > 1 {
        stored.extend(level.iter().flatten());
        // A last node without a sibling moves up unchanged; the count in the header fixes the
        // shape, so this is not ambiguous.
        level = level
            .chunks(2)
            .map(|pair| if let [left, right] = pair { node(left, right) } else { pair[0] })
            .collect();
    }
    (stored, level.first().copied().unwrap_or_default())
}

/// Builds a block. Takes suite, epoch, share and ephemeral key from `header`, and computes its other
/// fields. Returns the finished header and the block's bytes.
///
/// # Errors
/// `Order` if two slots have the same tag; `Range` if there are no slots or too many, or if the
/// length of the list does not match their number.
pub fn build(
    mut header: SlotHeader,
    mut slots: Vec<Slot>,
    sealed_members: &[u8],
) -> Result<(SlotHeader, Vec<u8>), FormatError> {
    let range_error = FormatError::new(WHAT, FormatErrorKind::Range);
    slots.sort_unstable();
    check_order(&slots)?;
    header.count = u32::try_from(slots.len()).map_err(|_| range_error)?;
    header.members_len = u32::try_from(sealed_members.len()).map_err(|_| range_error)?;
    header.members_digest = members_digest(sealed_members);
    let (stored, top) = tree(slots.as_flattened());
    header.tree_top = top;
    let mut w = Writer::with_capacity(header.block_len() as usize);
    w.bytes(&header.encode()).bytes(slots.as_flattened()).bytes(&stored).bytes(sealed_members);
    SlotHeader::decode(&w.as_slice()[..HEADER_LEN])?;
    Ok((header, w.into_vec()))
}

/// Checks a whole block: its length, the order of all slots, the whole tree and the digest of the
/// member list. Only tests need that: a member opens one slot, with [`SlotHeader::read`] and
/// [`SlotHeader::find`].
///
/// # Errors
/// Every deviation from the one encoding.
pub fn check(bytes: &[u8]) -> Result<SlotHeader, FormatError> {
    let error = |kind| FormatError::new(WHAT, kind);
    let header = SlotHeader::decode(bytes.get(..HEADER_LEN).unwrap_or(bytes))?;
    match (bytes.len() as u64).cmp(&header.block_len()) {
        std::cmp::Ordering::Less => return Err(error(FormatErrorKind::Truncated)),
        std::cmp::Ordering::Greater => return Err(error(FormatErrorKind::Trailing)),
        std::cmp::Ordering::Equal => {}
    }
    let slots = &bytes[HEADER_LEN..header.tree_at()];
    check_order(slots.as_chunks().0)?;
    let (stored, top) = tree(slots);
    let rest = &bytes[header.tree_at()..];
    if top != header.tree_top
        || rest[..stored.len()] != stored
        || members_digest(&rest[stored.len()..]) != header.members_digest
    {
        return Err(error(FormatErrorKind::Unauthentic));
    }
    Ok(header)
}

/// Returns the name of the control file of the block with this root: `+slots-` and 32 hexadecimal
/// digits.
pub fn file_name(root: &[u8; 32]) -> String {
    format!("{PREFIX}{}", hex::encode(&root[..16]))
}

/// Returns whether a block may have this file name.
pub fn is_file_name(name: &[u8]) -> bool {
    let is_hex = |b: &u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    name.strip_prefix(PREFIX.as_bytes())
        .is_some_and(|hex| hex.len() == HASH_LETTERS && hex.iter().all(is_hex))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(count: usize) -> (SlotHeader, Vec<u8>, Vec<Slot>) {
        let slots: Vec<Slot> = (0..count)
            .map(|i| {
                let mut slot = [0; SLOT_LEN];
                slot[..32].copy_from_slice(&digest(&labels::SLOT_PAGE, &[&i.to_le_bytes()]));
                slot
            })
            .collect();
        let members = vec![9; RECORD_OVERHEAD + LIST_HEADER_LEN + count * (MEMBER_LEN + 3)];
        let empty = SlotHeader {
            suite: Suite::Aes256Gcm,
            epoch: 3,
            share: [1; 32],
            ephemeral: [2; 32],
            count: 0,
            members_len: 0,
            tree_top: [0; 32],
            members_digest: [0; 32],
        };
        let (header, bytes) = build(empty, slots.clone(), &members).unwrap();
        (header, bytes, slots)
    }

    fn tag(slot: &Slot) -> [u8; TAG_LEN] {
        slot[..TAG_LEN].try_into().unwrap()
    }

    #[test]
    fn every_slot_is_found_and_proven_for_every_shape_of_the_tree() {
        for count in (1..70).chain([127, 128, 129, 255, 256, 257, 1000]) {
            let (header, bytes, slots) = block(count);
            assert_eq!(check(&bytes).unwrap(), header);
            let mut read = slice_reader(&bytes);
            let header = SlotHeader::read(&header.root(), &mut read).unwrap();
            for slot in &slots {
                assert_eq!(header.find(&tag(slot), &mut read).unwrap(), Some(*slot), "{count}");
            }
            assert_eq!(header.find(&[0; TAG_LEN], &mut read).unwrap(), None);
            assert_eq!(header.find(&[0xff; TAG_LEN], &mut read).unwrap(), None);
            assert_eq!(header.read_members(&mut read).unwrap(), bytes[header.members_at()..]);
        }
    }

    #[test]
    fn one_slot_of_20_000_costs_less_than_4_kib_of_reading() {
        let (header, bytes, slots) = block(20_000);
        let (mut total, mut inner) = (0, slice_reader(&bytes));
        let mut read = |at: u64, buf: &mut [u8]| {
            total += buf.len();
            inner(at, buf)
        };
        let header = SlotHeader::read(&header.root(), &mut read).unwrap();
        assert_eq!(header.find(&tag(&slots[12_345]), &mut read).unwrap(), Some(slots[12_345]));
        assert!(total <= 2048, "{total}");
    }

    #[test]
    fn a_flipped_bit_is_never_a_slot_and_never_a_valid_block() {
        let (header, bytes, slots) = block(37);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(
                check(&flipped).is_err()
                    || SlotHeader::decode(&flipped[..HEADER_LEN]).unwrap().root() != header.root(),
                "bit {bit}"
            );
            let mut read = slice_reader(&flipped);
            let Ok(opened) = SlotHeader::read(&header.root(), &mut read) else { continue };
            if let Ok(Some(found)) = opened.find(&tag(&slots[20]), &mut read) {
                assert_eq!(found, slots[20], "bit {bit}");
            }
            if let Ok(members) = opened.read_members(&mut read) {
                assert_eq!(members, bytes[header.members_at()..], "bit {bit}");
            }
        }
    }

    #[test]
    fn truncation_at_each_length_is_refused() {
        let (_, bytes, _) = block(20);
        for n in 0..bytes.len() {
            assert_eq!(
                check(&bytes[..n]).unwrap_err().kind(),
                FormatErrorKind::Truncated,
                "cut at {n}"
            );
        }
        assert_eq!(
            check(&[bytes, vec![0]].concat()).unwrap_err().kind(),
            FormatErrorKind::Trailing
        );
    }

    #[test]
    fn duplicate_tags_and_unsorted_slots_are_refused() {
        let (mut header, bytes, mut slots) = block(4);
        slots[1] = slots[0];
        slots[1][SLOT_LEN - 1] ^= 1;
        let members = &bytes[header.members_at()..];
        assert_eq!(
            build(header.clone(), slots.clone(), members).unwrap_err().kind(),
            FormatErrorKind::Order
        );
        // An unsorted block that an admin has signed by hand is refused by the search as well as by
        // the full check.
        let mut unsorted = bytes.clone();
        let (first, second) = unsorted[HEADER_LEN..].split_at_mut(SLOT_LEN);
        first.swap_with_slice(&mut second[..SLOT_LEN]);
        header.tree_top = tree(&unsorted[HEADER_LEN..header.tree_at()]).1;
        unsorted[..HEADER_LEN].copy_from_slice(&header.encode());
        assert_eq!(check(&unsorted).unwrap_err().kind(), FormatErrorKind::Order);
        let mut read = slice_reader(&unsorted);
        let header = SlotHeader::read(&header.root(), &mut read).unwrap();
        assert!(header.find(&tag(&slots[2]), &mut read).is_err());
    }

    #[test]
    fn hostile_counts_are_refused_before_anything_is_read() {
        let (header, _, _) = block(2);
        for (count, members_len) in
            [(0, 44), (u32::MAX, u32::MAX), (1 << 16 | 1, 1 << 24), (2, 0), (2, u32::MAX)]
        {
            let hostile = SlotHeader { count, members_len, ..header.clone() };
            assert_eq!(
                SlotHeader::decode(&hostile.encode()).unwrap_err().kind(),
                FormatErrorKind::Range,
                "{count} {members_len}"
            );
        }
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000), seed in any::<u8>()) {
            let _ = check(&bytes);
            let (header, mut real, _) = block(1 + usize::from(seed % 40));
            let n = bytes.len().min(real.len() - HEADER_LEN);
            real[HEADER_LEN..][..n].copy_from_slice(&bytes[..n]);
            let _ = check(&real);
            let mut read = slice_reader(&real);
            let _ = header.find(&[seed; TAG_LEN], &mut read);
        }
    }
}
