//! HChaCha20 and XChaCha20-Poly1305: the vectors of draft-irtf-cfrg-xchacha, and a comparison of the
//! segment cipher with the record cipher.

use super::unhex;
use kithfs::crypto::{ChunkKeys, FileKey, RecordCipher, SegmentKey, Suite};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Section 2.2.1 of the draft, seen through the segment key that it produces.
#[test]
fn a_chunk_key_is_hchacha20_of_its_salt() {
    let key = FileKey::from_bytes(std::array::from_fn(|i| i as u8));
    let sub_key: [u8; 32] =
        unhex("82413b4227b27bfed30e42508a877d73a0f9e4d58a74a853c12ec41326d3ecdc");
    let derived = ChunkKeys::new(Suite::ChaCha20Poly1305, &key)
        .derive(&unhex("000000090000004a0000000031415927"));
    let (mut a, mut b) = ([7; 100], [7; 100]);
    let tags = (
        derived.seal(&[9; 12], b"context", &mut a),
        SegmentKey::new(Suite::ChaCha20Poly1305, &sub_key).seal(&[9; 12], b"context", &mut b),
    );
    assert_eq!((a, tags.0), (b, tags.1));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// A segment is XChaCha20-Poly1305 with the nonce `salt ‖ last eight bytes of the IETF nonce`; the
    /// IETF nonce begins with four zeros. Segments use HChaCha20 and an AEAD provider, records the
    /// crate `chacha20poly1305`; the results must be the same.
    #[test]
    fn segments_and_records_are_one_construction(
        key: [u8; 32],
        nonce: [u8; 24],
        aad in proptest::collection::vec(any::<u8>(), 0..50),
        plain in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let (salt, rest) = nonce.split_first_chunk().unwrap();
        let mut ietf = [0; 12];
        ietf[4..].copy_from_slice(rest);
        let (mut segment, mut record) = (plain.clone(), plain);
        let segment_tag = ChunkKeys::new(Suite::ChaCha20Poly1305, &FileKey::from_bytes(key)).derive(salt).seal(&ietf, &aad, &mut segment);
        let record_tag = RecordCipher::new(Suite::ChaCha20Poly1305, &key).seal(&nonce, &aad, &mut record);
        prop_assert_eq!((segment, segment_tag), (record, record_tag));
    }
}
