//! Verification on `aws-lc-rs`.
//!
//! The library recomputes R, compares its canonical encoding with the signature's byte by byte, and
//! rejects a scalar that is not reduced. It accepts a public key or an R of small order, which
//! strict verification does not.

use super::BadSignature;
use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};

/// The encodings of all points of small order without the sign of x: y of the points of order 4, 1,
/// 8, 8 and 2, and two that are not canonical, p for 0 and p + 1 for 1.
const SMALL_ORDER: [[u8; 32]; 7] = [
    [0; 32],
    with_first(1, [0; 32]),
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98,
        0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53,
        0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67,
        0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac,
        0x03, 0x7a,
    ],
    with_first(0xec, P_HIGH),
    with_first(0xed, P_HIGH),
    with_first(0xee, P_HIGH),
];

/// The prime without its lowest byte, which is 0xed.
const P_HIGH: [u8; 32] = {
    let mut bytes = [0xff; 32];
    bytes[31] = 0x7f;
    bytes
};

const fn with_first(first: u8, mut bytes: [u8; 32]) -> [u8; 32] {
    bytes[0] = first;
    bytes
}

fn has_small_order(encoded: &[u8]) -> bool {
    SMALL_ORDER.iter().any(|y| encoded[..31] == y[..31] && encoded[31] & 0x7f == y[31])
}

pub(super) fn verify(
    public: &[u8; 32],
    message: &[u8],
    signature: &[u8; 64],
) -> Result<(), BadSignature> {
    if has_small_order(public) || has_small_order(&signature[..32]) {
        return Err(BadSignature);
    }
    UnparsedPublicKey::new(&ED25519, public).verify(message, signature).map_err(|_| BadSignature)
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signature, Verifier, VerifyingKey};

    use super::super::{SigningKey, on_dalek};
    use super::*;

    /// Returns both signs of x.
    fn encodings() -> impl Iterator<Item = [u8; 32]> {
        SMALL_ORDER.into_iter().flat_map(|y| {
            [0, 0x80].map(|sign| std::array::from_fn(|i| if i == 31 { y[i] | sign } else { y[i] }))
        })
    }

    #[test]
    fn the_list_of_small_order_points_is_dalek_s() {
        assert!(encodings().all(|encoded| VerifyingKey::from_bytes(&encoded).unwrap().is_weak()));
        // the others that are not canonical have no small order
        for first in 0xef..=0xff {
            let encoded = with_first(first, P_HIGH);
            assert!(
                !has_small_order(&encoded)
                    && !VerifyingKey::from_bytes(&encoded).is_ok_and(|key| key.is_weak())
            );
        }
        assert!(!has_small_order(&SigningKey::from_seed(&[4; 32]).public()));
    }

    #[test]
    fn a_point_of_small_order_is_refused_as_key_and_as_r() {
        // With such keys, the equation alone accepts some messages without a signature: for a key
        // of order 8 and a fitting R, one message in eight.
        let (mut keys, mut passed) = (0, 0);
        for public in encodings() {
            keys += 1;
            for r in encodings() {
                let mut signature = [0; 64];
                signature[..32].copy_from_slice(&r);
                for n in 0..16u8 {
                    let lax = VerifyingKey::from_bytes(&public)
                        .unwrap()
                        .verify(&[n], &Signature::from_bytes(&signature));
                    passed += u32::from(lax.is_ok());
                    assert_eq!(verify(&public, &[n], &signature), Err(BadSignature));
                    assert_eq!(on_dalek(&public, &[n], &signature), Err(BadSignature));
                }
            }
        }
        assert!(keys == 14 && passed > 100, "the equation alone lets {passed} pass");
    }

    #[test]
    fn both_libraries_agree() {
        for n in 0..40u8 {
            let key = SigningKey::from_seed(&[n; 32]);
            let (public, message) = (key.public(), vec![n; usize::from(n) * 7]);
            let good = key.sign(&message);
            let says = |public: &[u8; 32], message: &[u8], signature: &[u8; 64]| {
                let said = verify(public, message, signature);
                assert_eq!(said, on_dalek(public, message, signature));
                said.is_ok()
            };
            assert!(says(&public, &message, &good));
            assert!(!says(&public, &[&message[..], b"x"].concat(), &good));
            for bit in (usize::from(n)..512).step_by(13) {
                let (mut signature, mut other) = (good, public);
                signature[bit / 8] ^= 1 << (bit % 8);
                other[bit % 256 / 8] ^= 1 << (bit % 8);
                assert!(!says(&public, &message, &signature) && !says(&other, &message, &good));
            }
            // the same scalar plus the order of the group: the equation holds, and the encoding is
            // not canonical
            const ORDER: [u8; 16] = [
                0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9,
                0xde, 0x14,
            ];
            let (mut signature, mut carry) = (good, 0);
            for i in 0..32 {
                let order = ORDER.get(i).copied().unwrap_or(if i == 31 { 0x10 } else { 0 });
                let sum = u16::from(signature[32 + i]) + u16::from(order) + carry;
                (signature[32 + i], carry) = (sum as u8, sum >> 8);
            }
            assert!(!says(&public, &message, &signature));
        }
    }

    #[test]
    fn both_libraries_agree_on_keys_with_a_small_order_part() {
        // A member may publish any key, also the sum of an ordinary point and a point of small
        // order. For such a key, verification with the cofactor and verification without it give
        // different results, so two members could see two vaults. Neither library uses the cofactor.
        use curve25519_dalek::constants::{ED25519_BASEPOINT_POINT as B, EIGHT_TORSION};
        use curve25519_dalek::scalar::Scalar;
        use sha2::{Digest, Sha512};
        let wide = |parts: &[&[u8]]| {
            let mut hash = Sha512::new();
            parts.iter().for_each(|part| hash.update(part));
            Scalar::from_bytes_mod_order_wide(&hash.finalize().into())
        };
        let (a, mut counted) = (wide(&[b"secret"]), [0; 2]);
        for in_key in EIGHT_TORSION {
            let public = (B * a + in_key).compress().to_bytes();
            for in_r in EIGHT_TORSION {
                for n in 0..4u8 {
                    let r = wide(&[b"nonce", &[n]]);
                    let encoded = (B * r + in_r).compress().to_bytes();
                    let k = wide(&[&encoded, &public, &[n]]);
                    let signature: [u8; 64] =
                        [encoded, (r + k * a).to_bytes()].concat().try_into().unwrap();
                    let said = verify(&public, &[n], &signature);
                    assert_eq!(said, on_dalek(&public, &[n], &signature));
                    // With the cofactor all of them would pass.
                    assert_eq!(said.is_ok(), in_r + in_key * k == EIGHT_TORSION[0]);
                    counted[usize::from(said.is_ok())] += 1;
                }
            }
        }
        assert!(counted.iter().all(|n| *n > 20), "{counted:?}");
    }
}
