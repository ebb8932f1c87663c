//! One type per key. A key is 32 bytes, is zeroized on drop, and implements none of `Debug`,
//! `Clone` and `Copy`. So it cannot be logged or copied by accident, and one kind cannot be passed
//! where another is expected.

use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::stack;

/// Length of every key in bytes.
pub const KEY_LEN: usize = 32;

/// Compares two byte strings in time that depends on their lengths alone. Strings of different
/// lengths are unequal.
#[must_use]
pub fn equal(a: &[u8], b: &[u8]) -> bool {
    a.ct_eq(b).into()
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Zeroize, ZeroizeOnDrop)]
        pub struct $name([u8; KEY_LEN]);

        impl $name {
            /// Takes these bytes as the key.
            #[must_use]
            pub fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
                stack::wipe_at_end();
                $name(bytes)
            }

            /// Returns the bytes of the key, for a primitive or for wrapping.
            #[must_use]
            pub fn expose(&self) -> &[u8; KEY_LEN] {
                &self.0
            }
        }

        impl ConstantTimeEq for $name {
            fn ct_eq(&self, other: &Self) -> subtle::Choice {
                self.0.ct_eq(&other.0)
            }
        }
    )+};
}

keys! {
    /// The random key of a share in one epoch, from which all the others of that epoch are derived.
    FolderKey;
    /// Encrypts names (as an HCTR2-AES-256 key); hashes places and the names of rename evidence.
    NamesKey;
    /// File keys are derived from it.
    ContentKey;
    /// Seals file headers.
    HeaderKey;
    /// Seals symlink targets, xattrs, junctions and rename evidence. The keys of member lists are
    /// derived from it.
    RecordsKey;
    /// Seals earlier folder keys, so a member who has the key of this epoch can read older data.
    HistoryKey;
    /// Derives the tags of directories. It comes from the first epoch of a share and never changes.
    DirectoryKey;
    /// Key of one file in one epoch; sub-keys of its chunks come from it.
    FileKey;
    /// Seals the journal records of one identity in one share.
    JournalKey;
    /// The secret of an identity, from which its signing and exchange keys are derived.
    IdentitySeed;
    /// Key of a slot: seals the seed in an identity file, or the folder key in a slot block.
    SlotKey;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equality_compares_all_bytes_and_the_length() {
        let a = FileKey::from_bytes([7; 32]);
        assert!(bool::from(a.ct_eq(&FileKey::from_bytes([7; 32]))));
        for i in 0..32 {
            let mut other = [7; 32];
            other[i] ^= 0x80;
            assert!(!bool::from(a.ct_eq(&FileKey::from_bytes(other))));
        }
        assert!(equal(b"", b"") && equal(b"ab", b"ab"));
        assert!(!equal(b"ab", b"abc") && !equal(b"ab", b""));
    }

    #[test]
    fn zeroize_clears_the_bytes() {
        let mut key = FolderKey::from_bytes([0x5a; 32]);
        assert_eq!(key.expose(), &[0x5a; 32]);
        key.zeroize();
        assert_eq!(key.expose(), &[0; 32]);
    }
}
