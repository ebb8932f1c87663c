//! Base 32 for codes that people write down and compare: digits and letters without I, L, O and U
//! (Crockford's alphabet).
//!
//! Rules: output is upper case in groups of four with hyphens. Input may differ in case, spaces and
//! hyphens, and may use the look-alikes O for 0, I and L for 1.

use zeroize::Zeroizing;

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const GROUP: usize = 4;

/// Returns the symbols of the first `symbols` groups of five bits of `bytes`, most significant
/// first. Bits that are missing at the end are zero.
pub fn encode(bytes: &[u8], symbols: usize) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(symbols + symbols / GROUP));
    for i in 0..symbols {
        if i > 0 && i % GROUP == 0 {
            text.push('-');
        }
        let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
        let value = (0..5).fold(0, |value, k| value << 1 | bit(5 * i + k));
        text.push(char::from(ALPHABET[usize::from(value)]));
    }
    text
}

/// Parses symbols into their values (0..32), ignoring spaces and hyphens. Returns `None` if a
/// character is neither in the alphabet nor a look-alike.
pub fn values(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let mut values = Zeroizing::new(Vec::with_capacity(text.len()));
    for c in text.chars().filter(|c| !c.is_whitespace() && *c != '-') {
        let c = match c.to_ascii_uppercase() {
            'O' => '0',
            'I' | 'L' => '1',
            c => c,
        };
        let value = ALPHABET.iter().position(|symbol| char::from(*symbol) == c)?;
        values.push(value as u8);
    }
    Some(values)
}

/// Packs values of five bits into bytes. A remainder of fewer than eight bits is dropped.
pub fn pack(values: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(vec![0u8; values.len() * 5 / 8]);
    for (i, byte) in bytes.iter_mut().enumerate() {
        for bit in 8 * i..8 * i + 8 {
            *byte = *byte << 1 | (values[bit / 5] >> (4 - bit % 5) & 1);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        assert_eq!(&**encode(&[0xff, 0, 0xff, 0, 0xff], 8), "ZW0F-Y07Z");
        assert_eq!(&**encode(&[0x08], 1), "1");
        assert_eq!(**values(" zw0f\t-yO7z ").unwrap(), **values("ZW0FY07Z").unwrap());
        assert_eq!(**values("iIlL").unwrap(), [1; 4]);
        assert!(values("ABCU").is_none() && values("ABC!").is_none() && values("ABCé").is_none());
    }

    proptest! {
        #[test]
        fn bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let symbols = (bytes.len() * 8).div_ceil(5);
            let read = pack(&values(&encode(&bytes, symbols)).unwrap());
            prop_assert_eq!(&read[..bytes.len()], &bytes[..]);
        }
    }
}
