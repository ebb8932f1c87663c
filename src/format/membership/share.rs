//! The share descriptor (`+share`): the fixed part of a share's first manifest, whose hash is the
//! share's id.
//!
//! Rules: the length is fixed. The descriptor never changes, so signedness, suite and chunk size
//! hold for the share's whole life. It contains no slot and no manifest hash, so the id is not
//! circular. Every manifest names the share by that id.

use crate::crypto::digest::digest;
use crate::crypto::labels;
use crate::crypto::suite::Suite;
use crate::format::cursor::{Reader, Writer};
use crate::format::error::{FormatError, FormatErrorKind};
use crate::format::identity::{PUBLIC_LEN, PublicIdentity};
use crate::format::layout::{CHUNK_LOG2_MAX, CHUNK_LOG2_MIN};

/// First bytes of a descriptor.
pub const MAGIC: [u8; 8] = *b"kithshar";
/// The version that this program writes and reads.
pub const VERSION: u16 = 1;

const SUITE_AT: usize = MAGIC.len() + 2;
const FLAGS_AT: usize = SUITE_AT + 1;
const CHUNK_AT: usize = FLAGS_AT + 1;
const LONGEST_AT: usize = CHUNK_AT + 1;
const RESERVED_AT: usize = LONGEST_AT + 1;
const FOUNDER_AT: usize = RESERVED_AT + RESERVED_LEN;
const RESERVED_LEN: usize = 2;
const RANDOM_AT: usize = FOUNDER_AT + PUBLIC_LEN;
/// Length of a descriptor in bytes: 112.
pub const DESCRIPTOR_LEN: usize = RANDOM_AT + 32;

/// Files carry signatures; the share can have several members.
pub const FLAG_SIGNED: u8 = 1;
/// A nested share of which its parent's admins are not made members.
pub const FLAG_ISOLATED: u8 = 2;

/// Least value of [`ShareDescriptor::longest_name`]: 32 bytes of plain name.
pub const LONGEST_NAME_MIN: u8 = 64;
/// Greatest value of [`ShareDescriptor::longest_name`]: a store's limit of 255, with room for the
/// suffixes that sync tools append.
pub const LONGEST_NAME_MAX: u8 = 200;
/// Usual value of [`ShareDescriptor::longest_name`]: Dropbox's longest suffix fits behind it.
pub const LONGEST_NAME_DEFAULT: u8 = 152;

/// The properties of a share that never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareDescriptor {
    /// The cipher suite of everything in the share.
    pub suite: Suite,
    /// Whether files are signed by their writers; without it there is exactly one owner.
    pub signed: bool,
    /// Whether the parent's admins are not made members.
    pub isolated: bool,
    /// Base-two logarithm of the chunk size, [`CHUNK_LOG2_MIN`]..=[`CHUNK_LOG2_MAX`].
    pub chunk_log2: u8,
    /// Length of the longest stored name without a suffix, [`LONGEST_NAME_MIN`]..=
    /// [`LONGEST_NAME_MAX`]. A longer one is replaced by its hash.
    pub longest_name: u8,
    /// The signer of the first manifest.
    pub founder: PublicIdentity,
    /// Makes the id unique.
    pub random: [u8; 32],
}

impl ShareDescriptor {
    /// Returns the descriptor's bytes, [`DESCRIPTOR_LEN`] of them.
    pub fn encode(&self) -> Vec<u8> {
        let flags = if self.signed { FLAG_SIGNED } else { 0 }
            | if self.isolated { FLAG_ISOLATED } else { 0 };
        let mut w = Writer::with_capacity(DESCRIPTOR_LEN);
        w.bytes(&MAGIC)
            .u16(VERSION)
            .u8(self.suite.as_byte())
            .u8(flags)
            .u8(self.chunk_log2)
            .u8(self.longest_name)
            .zeros(RESERVED_LEN);
        w.bytes(&self.founder.to_bytes()).bytes(&self.random);
        w.into_vec()
    }

    /// Parses a descriptor.
    ///
    /// # Errors
    /// Every deviation from the one encoding: magic, version, suite, flags (isolated without signed
    /// is not allowed: every nested share is signed), chunk size, length of names, reserved
    /// bytes, length.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::named("share descriptor", bytes);
        r.magic(&MAGIC)?;
        r.version(VERSION)?;
        let suite = r.u8()?;
        let suite = Suite::from_byte(suite).ok_or(r.error(FormatErrorKind::Suite(suite)))?;
        let flags = r.u8()?;
        if flags & !(FLAG_SIGNED | FLAG_ISOLATED) != 0 || flags == FLAG_ISOLATED {
            return Err(r.error(FormatErrorKind::Flags(u32::from(flags))));
        }
        let chunk_log2 = r.u8()?;
        if !(CHUNK_LOG2_MIN..=CHUNK_LOG2_MAX).contains(&chunk_log2) {
            return Err(r.error(FormatErrorKind::Range));
        }
        let longest_name = r.u8()?;
        if !(LONGEST_NAME_MIN..=LONGEST_NAME_MAX).contains(&longest_name) {
            return Err(r.error(FormatErrorKind::Range));
        }
        r.zeros(RESERVED_LEN)?;
        let founder = PublicIdentity::read(&mut r)?;
        let random = r.array()?;
        r.finish()?;
        Ok(Self {
            suite,
            signed: flags & FLAG_SIGNED != 0,
            isolated: flags & FLAG_ISOLATED != 0,
            chunk_log2,
            longest_name,
            founder,
            random,
        })
    }

    /// Returns the share's id: the labelled hash of the descriptor's bytes.
    pub fn share_id(&self) -> [u8; 32] {
        digest(&labels::SHARE_ID, &[&self.encode()])
    }

    /// Returns the chunk size in bytes.
    pub fn chunk_size(&self) -> u32 {
        1 << self.chunk_log2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ShareDescriptor {
        ShareDescriptor {
            suite: Suite::Aes256Gcm,
            signed: true,
            isolated: false,
            chunk_log2: 18,
            longest_name: LONGEST_NAME_DEFAULT,
            founder: PublicIdentity { sign: [3; 32], exchange: [4; 32] },
            random: [5; 32],
        }
    }

    #[test]
    fn layout_is_as_the_table_says() {
        let bytes = sample().encode();
        assert_eq!(
            (bytes.len(), SUITE_AT, FLAGS_AT, CHUNK_AT, FOUNDER_AT, RANDOM_AT),
            (112, 10, 11, 12, 16, 80)
        );
        assert_eq!((bytes[SUITE_AT], bytes[FLAGS_AT], bytes[CHUNK_AT]), (1, FLAG_SIGNED, 18));
        assert_eq!(bytes[FOUNDER_AT..][..32], [3; 32]);
        assert_eq!(bytes[RANDOM_AT..], [5; 32]);
        assert_eq!(ShareDescriptor::decode(&bytes).unwrap(), sample());
    }

    #[test]
    fn every_bit_flip_is_refused_or_another_share() {
        let (bytes, id) = (sample().encode(), sample().share_id());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(other) = ShareDescriptor::decode(&flipped) {
                assert_ne!(other.share_id(), id, "bit {bit}");
                assert_eq!(other.encode(), flipped, "bit {bit}: one encoding for each value");
            }
        }
    }

    #[test]
    fn each_deviation_has_its_kind() {
        let kind = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = sample().encode();
            change(&mut bytes);
            ShareDescriptor::decode(&bytes).unwrap_err().kind()
        };
        assert_eq!(kind(&|b| b[0] ^= 1), FormatErrorKind::Magic);
        assert_eq!(kind(&|b| b[8] = 2), FormatErrorKind::Version(2));
        assert_eq!(kind(&|b| b[SUITE_AT] = 3), FormatErrorKind::Suite(3));
        assert_eq!(kind(&|b| b[FLAGS_AT] = 4), FormatErrorKind::Flags(4));
        assert_eq!(kind(&|b| b[FLAGS_AT] = FLAG_ISOLATED), FormatErrorKind::Flags(2));
        assert_eq!(kind(&|b| b[CHUNK_AT] = 11), FormatErrorKind::Range);
        assert_eq!(kind(&|b| b[CHUNK_AT] = 23), FormatErrorKind::Range);
        assert_eq!(kind(&|b| b[RESERVED_AT] = 1), FormatErrorKind::Flags(0));
        assert_eq!(kind(&|b| b.push(0)), FormatErrorKind::Trailing);
        for n in 0..DESCRIPTOR_LEN {
            assert_eq!(kind(&|b| b.truncate(n)), FormatErrorKind::Truncated, "cut at {n}");
        }
    }
}
