//! Rename evidence: immutable records at a share's root that say "entries with the tag FROM may be
//! in the directory with the tag TO". A record is sealed deterministically, so the same rename
//! leaves the same file on every machine, and is named by the hash of its bytes.
//!
//! Rule: neither the name of the file nor that of its directory proves anything. A reader compares
//! the hash, opens the record and compares TO.

use super::text;
use crate::crypto::Tag;
use crate::format::cursor::{Reader, Writer};
use crate::format::error::FormatError;

/// The directory of all evidence, at the root of a share.
pub const DIRECTORY: &[u8] = b"+moved";

/// The contents of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The tag of a directory under its old stored name.
    pub from: Tag,
    /// The tag of the directory under its new stored name.
    pub to: Tag,
}

impl Moved {
    /// Returns the bytes to seal.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(16);
        w.bytes(&self.from).bytes(&self.to);
        w.into_vec()
    }

    /// Reads what [`Moved::encode`] writes.
    ///
    /// # Errors
    /// `Truncated` or `Trailing` if `bytes` has another length.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::named("rename evidence", bytes);
        let moved = Moved { from: r.array()?, to: r.array()? };
        r.finish()?;
        Ok(moved)
    }
}

/// Returns the name of the directory, in [`DIRECTORY`], that holds the evidence to which this value
/// of [`crate::crypto::moved_place`] belongs.
pub fn place_name(place: &[u8; 32]) -> Vec<u8> {
    text::encode(place)
}

/// Returns the name of the file that holds this record.
pub fn file_name(record: &[u8]) -> Vec<u8> {
    text::encode(blake3::hash(record).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_comes_back_and_other_lengths_are_refused() {
        let moved = Moved { from: [1; 8], to: [2; 8] };
        let bytes = moved.encode();
        assert_eq!(Moved::decode(&bytes).unwrap(), moved);
        assert!(Moved::decode(&bytes[..15]).is_err());
        assert!(Moved::decode(&[&bytes[..], &[0]].concat()).is_err());
        assert_eq!(file_name(&bytes).len(), text::HASH_LETTERS);
    }
}
