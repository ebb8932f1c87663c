//! A junction (`+junction-<43 letters>`): names the share whose root is at a place in its parent
//! share. It is a sealed record of the parent, always signed, and bound to the hash of the place
//! and to the tag of the directory that contains it.
//!
//! Rule: the sealed part contains the name too, so a junction whose directory entry was lost still
//! identifies its share's place.

use super::name::is_valid;
use super::text;
use crate::format::cursor::{Reader, Writer};
use crate::format::error::{FormatError, FormatErrorKind};

/// First bytes of the control file's name.
pub const PREFIX: &[u8] = b"+junction-";

const FLAG_ISOLATED: u8 = 2;
const FLAG_COMING: u8 = 128;
const WHAT: &str = "junction";

/// The contents of a junction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Junction {
    /// Id of the share.
    pub share: [u8; 32],
    /// The share keeps its parent's admins out.
    pub isolated: bool,
    /// The share is being made of a directory: until the directory contains a share descriptor, it
    /// is an ordinary directory of the parent.
    pub coming: bool,
    /// Plain name of the directory.
    pub name: Vec<u8>,
}

impl Junction {
    /// Returns the bytes to seal.
    pub fn encode(&self) -> Vec<u8> {
        let flags = if self.isolated { FLAG_ISOLATED } else { 0 }
            | if self.coming { FLAG_COMING } else { 0 };
        let mut w = Writer::with_capacity(34 + self.name.len());
        w.bytes(&self.share).u8(flags).u8(self.name.len() as u8).bytes(&self.name);
        w.into_vec()
    }

    /// Reads what [`Junction::encode`] writes.
    ///
    /// # Errors
    /// Every deviation from the one encoding.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut r = Reader::named(WHAT, bytes);
        let share = r.array()?;
        let flags = r.u8()?;
        if flags & !(FLAG_ISOLATED | FLAG_COMING) != 0 {
            return Err(r.error(FormatErrorKind::Flags(flags.into())));
        }
        let len = r.u8()? as usize;
        let name = r.bytes(len)?.to_vec();
        if !is_valid(&name) {
            return Err(r.error(FormatErrorKind::Range));
        }
        r.finish()?;
        Ok(Junction {
            share,
            isolated: flags & FLAG_ISOLATED != 0,
            coming: flags & FLAG_COMING != 0,
            name,
        })
    }
}

/// Returns the name of the control file for the place with this hash.
pub fn file_name(hash: &[u8; 32]) -> Vec<u8> {
    [PREFIX, &text::encode(hash)].concat()
}

/// Returns the hash in the name of a junction's control file; `None` if `file` is no such name.
pub fn hash_of(file: &[u8]) -> Option<[u8; 32]> {
    text::decode_hash(file.strip_prefix(PREFIX)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_junction_comes_back_and_deviations_have_their_kind() {
        let junction =
            Junction { share: [7; 32], isolated: true, coming: false, name: b"projects".to_vec() };
        let bytes = junction.encode();
        assert_eq!(bytes.len(), 34 + 8);
        assert_eq!(Junction::decode(&bytes).unwrap(), junction);
        for n in 0..bytes.len() {
            assert_eq!(
                Junction::decode(&bytes[..n]).unwrap_err().kind(),
                FormatErrorKind::Truncated,
                "cut at {n}"
            );
        }
        assert_eq!(
            Junction::decode(&[bytes, vec![0]].concat()).unwrap_err().kind(),
            FormatErrorKind::Trailing
        );
        let slash = Junction { name: b"a/b".to_vec(), ..junction.clone() };
        assert_eq!(Junction::decode(&slash.encode()).unwrap_err().kind(), FormatErrorKind::Range);
        let mut flags = junction.encode();
        flags[32] = 1;
        assert_eq!(Junction::decode(&flags).unwrap_err().kind(), FormatErrorKind::Flags(1));
        assert_eq!(file_name(&[0; 32]).len(), PREFIX.len() + 43);
        assert_eq!(hash_of(&file_name(&[9; 32])), Some([9; 32]));
        assert_eq!(hash_of(b"+junction-AAAA"), None);
    }

    proptest! {
        #[test]
        fn random_bytes_do_not_panic_and_have_one_encoding(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(junction) = Junction::decode(&bytes) { prop_assert_eq!(junction.encode(), bytes); }
        }
    }
}
