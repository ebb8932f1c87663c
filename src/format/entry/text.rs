//! The text of sealed bytes in stored names: base64 without padding, with two letters that no sync
//! tool begins a suffix with and no store refuses.
//!
//! Rule: there is one text of each sequence of bytes.

use base64::Engine;
use base64::alphabet::Alphabet;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::NO_PAD;

/// The letters of base64, with `,` for `+` and `@` for `/`.
const LETTERS: Alphabet =
    match Alphabet::new("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789,@") {
        Ok(letters) => letters,
        Err(_) => panic!("64 different letters"),
    };
/// Refuses texts whose unused last bits are not zero. Table lookups are safe: sealed bytes are
/// public.
const TEXT: GeneralPurpose = GeneralPurpose::new(&LETTERS, NO_PAD);
/// Number of letters of 32 bytes, such as a hash.
pub const HASH_LETTERS: usize = 43;

/// Returns the number of letters of `len` bytes.
pub fn letters(len: usize) -> usize {
    (len * 4).div_ceil(3)
}

/// Which bytes are letters. A table, because listings check each byte of each name.
const IS_LETTER: [bool; 256] = {
    let (mut is_letter, mut at) = ([false; 256], 0);
    while at < 256 {
        let b = at as u8;
        is_letter[at] = b.is_ascii_alphanumeric() || b == b',' || b == b'@';
        at += 1;
    }
    is_letter
};

/// Returns whether `b` is a letter of such texts.
pub fn is_letter(b: u8) -> bool {
    IS_LETTER[usize::from(b)]
}

/// Returns the text of `bytes`.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    TEXT.encode(bytes).into_bytes()
}

/// Returns the bytes of a text; `None` if it is not the text of any bytes.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    TEXT.decode(text).ok()
}

/// Returns the 32 bytes of a text of [`HASH_LETTERS`].
pub fn decode_hash(text: &[u8]) -> Option<[u8; 32]> {
    decode(text)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_sequence_of_bytes_has_one_text(bytes in proptest::collection::vec(any::<u8>(), 0..80), text in "[A-Za-z0-9,@_+/=-]{0,50}") {
            let made = encode(&bytes);
            prop_assert!(made.iter().all(|b| is_letter(*b)));
            prop_assert_eq!(made.len(), letters(bytes.len()));
            prop_assert_eq!(decode(&made), Some(bytes));
            if let Some(bytes) = decode(text.as_bytes()) { prop_assert_eq!(encode(&bytes), text.into_bytes()); }
        }
    }
}
