//! HCTR2-AES-256, XCTR-AES-256 and POLYVAL: Google's official vectors, and an independent crate on
//! random input.

use super::unhex;
use kithfs::crypto::polyhash::PolyKey;
use kithfs::crypto::xctr::Xctr;
use kithfs::crypto::{Hctr2, NamesKey};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The cases of a file of official vectors; `None`, with a message, if there are no vectors.
fn official(file: &str) -> Option<Vec<Value>> {
    let directory = match std::env::var_os("KITHFS_VECTORS") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/vectors"),
    };
    if std::env::var_os("KITHFS_VECTORS").is_none() && !directory.exists() {
        eprintln!(
            "skipped: no official vectors of {file}, because {} does not exist and KITHFS_VECTORS is not set",
            directory.display()
        );
        return None;
    }
    let path = directory.join("hctr2").join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Returns a field of a case, by its JSON pointer.
fn text<'a>(case: &'a Value, pointer: &str) -> &'a str {
    case.pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_else(|| panic!("{case} has no {pointer}"))
}

fn bytes(case: &Value, pointer: &str) -> Vec<u8> {
    hex::decode(text(case, pointer)).expect("hex")
}

/// An implementation of the cipher, `None` if the processor does not support it.
type Route = fn(&NamesKey) -> Option<Hctr2>;

const PORTABLE: Route = |key| Some(Hctr2::portable(key));

#[test]
fn hctr2_official_vectors_on_the_portable_path() {
    hctr2_official_vectors(PORTABLE);
}

#[test]
fn hctr2_official_vectors_on_the_wide_path() {
    hctr2_official_vectors(Hctr2::wide);
}

fn hctr2_official_vectors(route: Route) {
    let Some(cases) = official("HCTR2_AES256.json") else { return };
    assert_eq!(cases.len(), 350);
    for case in &cases {
        let Some(cipher) = route(&NamesKey::from_bytes(unhex(text(case, "/input/key_hex")))) else {
            eprintln!("skipped: this processor has no wide path");
            return;
        };
        let tweak = cipher.tweak(&bytes(case, "/input/tweak_hex"));
        let (plain, sealed) = (bytes(case, "/plaintext_hex"), bytes(case, "/ciphertext_hex"));
        let mut buf = plain.clone();
        cipher.encrypt(&tweak, &mut buf).unwrap();
        assert_eq!(buf, sealed, "{case}");
        cipher.decrypt(&tweak, &mut buf).unwrap();
        assert_eq!(buf, plain, "{case}");
        cipher.encrypt_many(&tweak, &mut [&mut buf]).unwrap();
        assert_eq!(buf, sealed, "{case}");
        cipher.decrypt_many(&tweak, &mut [&mut buf]).unwrap();
        assert_eq!(buf, plain, "{case}");
    }
}

#[test]
fn xctr_official_vectors() {
    let Some(cases) = official("XCTR_AES256.json") else { return };
    assert_eq!(cases.len(), 90);
    for case in &cases {
        let cipher = Xctr::new(&unhex(text(case, "/input/key_hex")));
        let nonce = u128::from_le_bytes(unhex(text(case, "/input/nonce_hex")));
        let mut buf = bytes(case, "/plaintext_hex");
        cipher.apply(nonce, &mut buf);
        assert_eq!(buf, bytes(case, "/ciphertext_hex"), "{case}");
        cipher.apply(nonce, &mut buf);
        assert_eq!(buf, bytes(case, "/plaintext_hex"), "{case}");
    }
}

#[test]
fn polyval_official_vectors() {
    let Some(cases) = official("Polyval.json") else { return };
    assert_eq!(cases.len(), 45);
    for case in &cases {
        let key = PolyKey::new(&unhex(text(case, "/input/key_hex")));
        let message = bytes(case, "/input/message_hex");
        assert!(message.len().is_multiple_of(16), "{case}");
        assert_eq!(
            key.hash(0, &message, None).to_le_bytes(),
            unhex(text(case, "/hash_hex")),
            "{case}"
        );
    }
}

/// RFC 8452, appendix A: one known answer, also checked without the official files.
#[test]
fn polyval_matches_rfc_8452() {
    let key = PolyKey::new(&unhex("25629347589242761d31f826ba4b757b"));
    let message: [u8; 32] =
        unhex("4f4f95668c83dfb6401762bb2d01a262d1a24ddd2721d006bbe45f20d3c9f362");
    assert_eq!(
        key.hash(0, &message, None).to_le_bytes(),
        unhex("f7a3b47b846119fae5b7866cf5e5b77e")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn hctr2_agrees_with_another_implementation(
        key: [u8; 32],
        tweak in proptest::collection::vec(any::<u8>(), 0..100),
        plain in proptest::collection::vec(any::<u8>(), 16..700),
    ) {
        let other = hctr2_rs::Hctr2_256::new(&key);
        let key = NamesKey::from_bytes(key);
        // The lengths that kithfs uses (32 bytes: a directory id) and the limits of a block,
        // besides the random one.
        for len in [0, 1, 15, 16, 17, 32, 33, tweak.len()] {
            let tweak: Vec<u8> = tweak.iter().copied().cycle().take(if tweak.is_empty() { 0 } else { len }).collect();
            let mut expected = vec![0; plain.len()];
            other.encrypt(&plain, &tweak, &mut expected).unwrap();
            for cipher in [PORTABLE(&key), Hctr2::wide(&key)].into_iter().flatten() {
                let (state, mut buf) = (cipher.tweak(&tweak), plain.clone());
                cipher.encrypt(&state, &mut buf).unwrap();
                prop_assert_eq!(&buf, &expected);
                cipher.decrypt(&state, &mut buf).unwrap();
                prop_assert_eq!(&buf, &plain);
            }
        }
    }

    #[test]
    fn batched_names_equal_single_names_on_both_paths(
        key: [u8; 32],
        tweak: [u8; 32],
        names in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 16..320), 0..70),
    ) {
        let key = NamesKey::from_bytes(key);
        let mut expected = names.clone();
        let cipher = Hctr2::portable(&key);
        for name in &mut expected {
            cipher.encrypt(&cipher.tweak(&tweak), name).unwrap();
        }
        for cipher in [PORTABLE(&key), Hctr2::wide(&key)].into_iter().flatten() {
            let (state, mut batch) = (cipher.tweak(&tweak), names.clone());
            cipher.encrypt_many(&state, &mut batch.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).unwrap();
            prop_assert_eq!(&batch, &expected);
            cipher.decrypt_many(&state, &mut batch.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).unwrap();
            prop_assert_eq!(&batch, &names);
        }
    }
}
