//! Compares the implementations of HCTR2 with each other, and those of X25519.

use kithfs::crypto::exchange::ExchangeSecret;
use kithfs::crypto::{Hctr2, NamesKey};

/// Input: key (32), length of the tweak (1), tweak, then names: length (2, little endian) and
/// bytes, cut off at the end of the input. Names that one path seals open with the other path, one
/// by one and in a batch.
pub fn hctr2_paths(data: &[u8]) {
    let Some((key, rest)) = data.split_first_chunk::<32>() else { return };
    let Some((tweak_len, rest)) = rest.split_first() else { return };
    let (tweak, mut rest) = rest.split_at(rest.len().min(usize::from(*tweak_len)));
    let mut names: Vec<Vec<u8>> = Vec::new();
    while let Some((len, after)) = rest.split_first_chunk::<2>() {
        let (name, after) = after.split_at(after.len().min(usize::from(u16::from_le_bytes(*len))));
        names.push(name.to_vec());
        rest = after;
    }
    let key = NamesKey::from_bytes(*key);
    let portable = Hctr2::portable(&key);
    let wide = Hctr2::wide(&key).unwrap_or_else(|| Hctr2::portable(&key));
    let (portable_tweak, wide_tweak) = (portable.tweak(tweak), wide.tweak(tweak));
    let mut long_enough = Vec::new();
    for name in names {
        let (mut a, mut b) = (name.clone(), name.clone());
        let sealed = portable.encrypt(&portable_tweak, &mut a);
        assert_eq!(sealed, wide.encrypt(&wide_tweak, &mut b));
        assert_eq!(a, b, "sealed differently");
        assert_eq!(sealed.is_ok(), name.len() >= 16);
        if sealed.is_err() {
            assert_eq!(a, name, "what cannot be sealed is left alone");
            continue;
        }
        wide.decrypt(&wide_tweak, &mut a).expect("long enough");
        portable.decrypt(&portable_tweak, &mut b).expect("long enough");
        assert!(a == name && b == name, "opened differently");
        long_enough.push(name);
    }
    let mut batch = long_enough.clone();
    wide.encrypt_many(
        &wide_tweak,
        &mut batch.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
    )
    .expect("long enough");
    portable
        .decrypt_many(
            &portable_tweak,
            &mut batch.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
        )
        .expect("long enough");
    assert_eq!(
        batch, long_enough,
        "sealed at once on the wide path, opened at once on the portable one"
    );
}

pub fn hctr2_paths_seeds() -> Vec<Vec<u8>> {
    let seed = |tweak_len: u8, lengths: &[u16]| {
        let mut input = vec![7; 32];
        input.push(tweak_len);
        input.extend((0..tweak_len).map(|i| i * 3));
        for len in lengths {
            input.extend(len.to_le_bytes());
            input.extend((0..*len).map(|i| i as u8));
        }
        input
    };
    vec![
        seed(32, &[16, 17, 31, 32, 33, 64, 80, 81, 144, 191, 208, 255, 272, 273]),
        seed(0, &[15, 16, 4096]),
        seed(33, &[700, 528, 529, 1040, 20]),
        seed(32, &[24; 40]),
    ]
}

/// Input: secret (32), then public keys of 32 bytes, the last one padded with zeros; at most 20 are
/// used.
pub fn x25519_paths(data: &[u8]) {
    let Some((secret, rest)) = data.split_first_chunk::<32>() else { return };
    let secret = ExchangeSecret::from_bytes(secret);
    let many = secret.for_many();
    for some in rest.chunks(32).take(20) {
        let mut public = [0; 32];
        public[..some.len()].copy_from_slice(some);
        assert_eq!(many.diffie_hellman(&public), secret.diffie_hellman(&public));
    }
}

pub fn x25519_paths_seeds() -> Vec<Vec<u8>> {
    let seed = |secret: u8, publics: &[[u8; 32]]| [&[[secret; 32]], publics].concat().concat();
    let number = |low: u8, rest: u8| {
        let mut number = [rest; 32];
        number[0] = low;
        number
    };
    vec![
        seed(7, &[[9; 32]; 8]),
        seed(
            0,
            &[
                number(9, 0),
                number(0, 0),
                number(1, 0),
                number(0xec, 0xff),
                number(0xed, 0xff),
                number(0xee, 0xff),
                [0xff; 32],
            ],
        ),
        seed(
            0xff,
            &[
                number(2, 0),
                number(3, 0),
                number(4, 0),
                [0x80; 32],
                [0x7f; 32],
                [1; 32],
                [2; 32],
                [3; 32],
                [4; 32],
            ],
        ),
    ]
}
