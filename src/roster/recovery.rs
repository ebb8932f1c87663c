//! The recovery code: 160 random bits that unlock an identity if everything else is forgotten.
//!
//! Rules: 32 symbols of code and 4 of checksum, in nine groups of four; the checksum distinguishes
//! "mistyped" from "wrong" before any work is done; the code is wiped on drop and can be printed
//! only by [`RecoveryCode::text`].

use zeroize::{ZeroizeOnDrop, Zeroizing};

use super::base32;
use crate::crypto::digest::digest;
use crate::crypto::labels;
use crate::crypto::random::Random;

/// Bytes of the code itself.
pub const CODE_LEN: usize = 20;
const CODE_SYMBOLS: usize = CODE_LEN * 8 / 5;
/// Symbols of the checksum, five bits each: 20 bits.
const CHECK_SYMBOLS: usize = 4;
/// Bytes that hold the checksum.
const CHECK_LEN: usize = 3;

/// Why a text is not a recovery code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryTextError {
    /// Too few or too many symbols.
    #[error("recovery code has {0} symbols, not {expected}", expected = CODE_SYMBOLS + CHECK_SYMBOLS)]
    Length(usize),
    /// A character that is in no code.
    #[error("recovery code contains an invalid character")]
    Character,
    /// The checksum does not match.
    #[error("recovery code is mistyped: its checksum does not match")]
    Mistyped,
}

/// A recovery code.
#[derive(ZeroizeOnDrop)]
pub struct RecoveryCode([u8; CODE_LEN]);

fn check(code: &[u8; CODE_LEN]) -> [u8; CHECK_LEN] {
    let hash = digest(&labels::RECOVERY_CHECK, &[code]);
    [hash[0], hash[1], hash[2] & 0xf0]
}

impl RecoveryCode {
    /// Generates a new random code.
    pub fn generate(random: &dyn Random) -> Self {
        let mut code = Self([0; CODE_LEN]);
        random.fill(&mut code.0);
        code
    }

    /// Returns the code as it is shown once: `XXXX-XXXX-...`, nine groups.
    pub fn text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new([0; CODE_LEN + CHECK_LEN]);
        bytes[..CODE_LEN].copy_from_slice(&self.0);
        bytes[CODE_LEN..].copy_from_slice(&check(&self.0));
        base32::encode(&*bytes, CODE_SYMBOLS + CHECK_SYMBOLS)
    }

    /// Parses a code. Case, spaces and hyphens may differ, and O for 0, I or L for 1 are accepted.
    ///
    /// # Errors
    /// [`RecoveryTextError`], which distinguishes a mistyped code from a well-formed one that is
    /// wrong.
    pub fn parse(text: &str) -> Result<Self, RecoveryTextError> {
        let values = base32::values(text).ok_or(RecoveryTextError::Character)?;
        if values.len() != CODE_SYMBOLS + CHECK_SYMBOLS {
            return Err(RecoveryTextError::Length(values.len()));
        }
        let mut code = Self([0; CODE_LEN]);
        code.0.copy_from_slice(&base32::pack(&values[..CODE_SYMBOLS]));
        // Four symbols are 20 bits: two bytes and a half, the half in the upper bits of the third.
        let mut check_values = [0; CHECK_SYMBOLS + 1];
        check_values[..CHECK_SYMBOLS].copy_from_slice(&values[CODE_SYMBOLS..]);
        if base32::pack(&check_values)[..] != check(&code.0) {
            return Err(RecoveryTextError::Mistyped);
        }
        Ok(code)
    }

    pub(super) fn expose(&self) -> &[u8; CODE_LEN] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::random::seeded::Seeded;

    #[test]
    fn codes_come_back_however_they_are_written_down() {
        for seed in 0..50 {
            let code = RecoveryCode::generate(&Seeded::new(seed));
            let text = code.text();
            assert_eq!(text.split('-').map(str::len).collect::<Vec<_>>(), [4; 9]);
            for spelling in [
                text.to_lowercase(),
                text.replace('-', " "),
                text.replace('-', ""),
                text.replace('0', "o").replace('1', "l"),
            ] {
                assert_eq!(
                    RecoveryCode::parse(&spelling).ok().unwrap().expose(),
                    code.expose(),
                    "{spelling}"
                );
            }
        }
    }

    #[test]
    fn a_wrong_symbol_or_two_swapped_ones_are_mistyped() {
        let text = RecoveryCode::generate(&Seeded::new(1)).text().replace('-', "");
        let (mut tried, mut missed) = (0, 0);
        for at in 0..text.len() {
            for c in
                "0123456789ABCDEFGHJKMNPQRSTVWXYZ".chars().filter(|c| !text[at..].starts_with(*c))
            {
                let wrong = format!("{}{c}{}", &text[..at], &text[at + 1..]);
                tried += 1;
                missed += usize::from(RecoveryCode::parse(&wrong).is_ok());
            }
        }
        assert_eq!((tried, missed), (36 * 31, 0), "a checksum of 20 bits misses one in a million");
        assert_eq!(RecoveryCode::parse(&text[1..]).err(), Some(RecoveryTextError::Length(35)));
        assert_eq!(RecoveryCode::parse("").err(), Some(RecoveryTextError::Length(0)));
        assert_eq!(
            RecoveryCode::parse(&text.replace(&text[..1], "U")).err(),
            Some(RecoveryTextError::Character)
        );
    }
}
