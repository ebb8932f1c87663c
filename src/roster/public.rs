//! The public half of an identity in the form that people see: one `kith1...` line, and a
//! fingerprint to compare.
//!
//! Rules: the line is bech32m (BIP 350) over version ‖ both keys, so a mistyped line is detected;
//! it has one lower-case spelling; the fingerprint covers both keys.

use std::fmt;
use std::str::FromStr;

use bech32::primitives::decode::CheckedHrpstring;
use bech32::{Bech32m, Hrp};

use super::base32;
use crate::crypto::digest::digest;
use crate::crypto::labels::{self, Label};
use crate::crypto::signature::{self, BadSignature};
use crate::format::cursor::Reader;
use crate::format::identity::{PUBLIC_LEN, PublicIdentity};

const PREFIX: Hrp = Hrp::parse_unchecked("kith");
const TEXT_VERSION: u8 = 1;
/// Length of a line: `kith1`, 65 bytes in groups of five bits (exactly 104, so that no bit is
/// unused), six symbols of checksum.
const TEXT_LEN: usize = 4 + 1 + ((1 + PUBLIC_LEN) * 8).div_ceil(5) + 6;
/// Symbols of a fingerprint: 100 bits.
const FINGERPRINT_SYMBOLS: usize = 20;

/// Why a line is not a public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PublicTextError {
    /// It does not begin with `kith1`.
    #[error("not a kithfs public key: it does not begin with kith1")]
    NotAKey,
    /// Some character is wrong: the checksum does not match, or the length.
    #[error("public key is mistyped or cut: its checksum does not match")]
    Mistyped,
    /// Made by a newer program.
    #[error("public key has the unknown version {0}")]
    Version(u8),
    /// The checksum matches, and the keys are not valid.
    #[error("public key is not valid")]
    Invalid,
}

impl PublicIdentity {
    /// Returns the fingerprint, for people to compare: 100 bits of a hash of both keys, in five
    /// groups of four symbols.
    pub fn fingerprint(&self) -> String {
        let hash = digest(&labels::FINGERPRINT, &[&self.sign, &self.exchange]);
        base32::encode(&hash, FINGERPRINT_SYMBOLS).to_string()
    }

    /// Verifies a signature of `message` that was made under `label`.
    ///
    /// # Errors
    /// [`BadSignature`].
    pub fn verify(
        &self,
        label: &Label,
        message: &[u8],
        signature: &[u8; 64],
    ) -> Result<(), BadSignature> {
        verify_labelled(&self.sign, label, message, signature)
    }
}

/// Verifies a signature of `label ‖ message` under an Ed25519 public key.
///
/// # Errors
/// [`BadSignature`].
pub fn verify_labelled(
    key: &[u8; 32],
    label: &Label,
    message: &[u8],
    signature: &[u8; 64],
) -> Result<(), BadSignature> {
    signature::verify(key, &[label.as_bytes(), message].concat(), signature)
}

impl fmt::Display for PublicIdentity {
    /// Writes the `kith1...` line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [TEXT_VERSION; 1 + PUBLIC_LEN];
        bytes[1..].copy_from_slice(&self.to_bytes());
        bech32::encode_lower_to_fmt::<Bech32m, _>(f, PREFIX, &bytes).map_err(|_| fmt::Error)
    }
}

impl FromStr for PublicIdentity {
    type Err = PublicTextError;

    /// Parses a `kith1...` line; spaces around it, and upper case (as in QR codes), are accepted.
    fn from_str(text: &str) -> Result<Self, PublicTextError> {
        let text = text.trim();
        if !text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("kith1")) {
            return Err(PublicTextError::NotAKey);
        }
        let parsed =
            CheckedHrpstring::new::<Bech32m>(text).map_err(|_| PublicTextError::Mistyped)?;
        let bytes: Vec<u8> = parsed.byte_iter().collect();
        match bytes.first() {
            Some(&TEXT_VERSION) if text.len() == TEXT_LEN => {}
            Some(&version) if version != TEXT_VERSION => {
                return Err(PublicTextError::Version(version));
            }
            _ => return Err(PublicTextError::Mistyped),
        }
        let mut r = Reader::named("public key", &bytes[1..]);
        let public = Self::read(&mut r).map_err(|_| PublicTextError::Invalid)?;
        r.finish().map_err(|_| PublicTextError::Invalid)?;
        Ok(public)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> PublicIdentity {
        PublicIdentity { sign: [0x11; 32], exchange: [0x22; 32] }
    }

    #[test]
    fn the_line_comes_back_and_its_length_is_stated() {
        let text = sample().to_string();
        assert_eq!((text.len(), &text[..5]), (TEXT_LEN, "kith1"));
        assert_eq!(text.parse(), Ok(sample()));
        assert_eq!(format!(" {}\n", text.to_uppercase()).parse(), Ok(sample()));
    }

    #[test]
    fn every_wrong_character_and_every_cut_is_noticed() {
        let text = sample().to_string();
        for at in 0..text.len() {
            for c in "qpzry9x8gf2tvdw0s3jn54khce6mua7l1bio"
                .chars()
                .filter(|c| !text[at..].starts_with(*c))
            {
                let wrong = format!("{}{c}{}", &text[..at], &text[at + 1..]);
                assert!(wrong.parse::<PublicIdentity>().is_err(), "{wrong}");
            }
            assert!(text[..at].parse::<PublicIdentity>().is_err());
            assert!(
                format!("{}{}", &text[..at], &text[at + 1..]).parse::<PublicIdentity>().is_err()
            );
        }
        assert_eq!(format!("{text}q").parse::<PublicIdentity>(), Err(PublicTextError::Mistyped));
        assert_eq!("age1xyz".parse::<PublicIdentity>(), Err(PublicTextError::NotAKey));
        assert_eq!("".parse::<PublicIdentity>(), Err(PublicTextError::NotAKey));
        let mixed = format!("{}{}", text[..20].to_uppercase(), &text[20..]);
        assert_eq!(mixed.parse::<PublicIdentity>(), Err(PublicTextError::Mistyped));
    }

    #[test]
    fn other_versions_lengths_and_keys_are_refused_by_kind() {
        let line = |bytes: &[u8]| {
            bech32::encode_lower::<Bech32m>(PREFIX, bytes).unwrap().parse::<PublicIdentity>()
        };
        let mut bytes = [vec![1], sample().to_bytes().to_vec()].concat();
        assert_eq!(line(&bytes), Ok(sample()));
        bytes[64] |= 0x80;
        assert_eq!(
            line(&bytes),
            Err(PublicTextError::Invalid),
            "two spellings of one exchange key"
        );
        bytes[0] = 2;
        assert_eq!(line(&bytes), Err(PublicTextError::Version(2)));
        assert_eq!(line(&[1; 64]), Err(PublicTextError::Mistyped));
        assert_eq!(line(&[]), Err(PublicTextError::Mistyped));
    }

    #[test]
    fn the_fingerprint_covers_both_keys() {
        let print = sample().fingerprint();
        assert_eq!(print.len(), 24);
        assert!(
            print.split('-').all(|group| group.len() == 4) && print.split('-').count() == 5,
            "{print}"
        );
        assert_ne!(print, PublicIdentity { exchange: [0x23; 32], ..sample() }.fingerprint());
        assert_ne!(print, PublicIdentity { sign: [0x23; 32], ..sample() }.fingerprint());
    }

    proptest! {
        #[test]
        fn random_text_does_not_panic(text in "\\PC{0,150}", tail in "[a-zA-Z0-9]{0,130}") {
            let _ = text.parse::<PublicIdentity>();
            let _ = format!("kith1{tail}").parse::<PublicIdentity>();
        }
    }
}
