//! XAES-256-GCM: the vectors of its C2SP specification, and its accumulated test.

use super::unhex;
use kithfs::crypto::xaes::Xaes;
use kithfs::crypto::{ChunkKeys, FileKey, RecordCipher, Suite};
use shake::Shake128;
use shake::digest::{ExtendableOutput, Update, XofReader};

struct Case {
    key: u8,
    aad: &'static [u8],
    sub_key: &'static str,
    sealed: &'static str,
}

const NONCE: &[u8; 24] = b"ABCDEFGHIJKLMNOPQRSTUVWX";
const PLAIN: &[u8; 12] = b"XAES-256-GCM";
/// The first case has the top bit of L clear, the second has it set.
const CASES: [Case; 2] = [
    Case {
        key: 1,
        aad: b"",
        sub_key: "c8612c9ed53fe43e8e005b828a1631a0bbcb6ab2f46514ec4f439fcfd0fa969b",
        sealed: "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271",
    },
    Case {
        key: 3,
        aad: b"c2sp.org/XAES-256-GCM",
        sub_key: "e9c621d4cdd9b11b00a6427ad7e559aeedd66b3857646677748f8ca796cb3fd8",
        sealed: "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d",
    },
];

#[test]
fn xaes_vectors_of_its_specification() {
    for case in CASES {
        let key = [case.key; 32];
        assert_eq!(
            *Xaes::new(&key).derive(NONCE.first_chunk().unwrap()),
            unhex::<32>(case.sub_key)
        );

        let expected: [u8; 28] = unhex(case.sealed);
        let cipher = RecordCipher::new(Suite::Aes256Gcm, &key);
        let mut buf = *PLAIN;
        let tag = cipher.seal(NONCE, case.aad, &mut buf);
        assert_eq!([&buf[..], &tag].concat(), expected);
        cipher.open(NONCE, case.aad, &mut buf, &tag).unwrap();
        assert_eq!(&buf, PLAIN);
    }
}

/// A segment whose chunk's salt is the first half of a nonce also equals the whole construction.
#[test]
fn a_segment_is_xaes_with_the_salt_of_its_chunk() {
    for case in CASES {
        let keys = ChunkKeys::new(Suite::Aes256Gcm, &FileKey::from_bytes([case.key; 32]));
        let mut salt = [0; 16];
        salt[..12].copy_from_slice(&NONCE[..12]);
        let mut buf = *PLAIN;
        let tag = keys.derive(&salt).seal(NONCE.last_chunk().unwrap(), case.aad, &mut buf);
        assert_eq!([&buf[..], &tag].concat(), unhex::<28>(case.sealed));
    }
}

fn accumulated(rounds: usize) -> String {
    let mut stream = Shake128::default().finalize_xof();
    let mut digest = Shake128::default();
    for _ in 0..rounds {
        let (mut key, mut nonce) = ([0; 32], [0; 24]);
        stream.read(&mut key);
        stream.read(&mut nonce);
        let mut text = || {
            let mut len = [0];
            stream.read(&mut len);
            let mut bytes = vec![0; usize::from(len[0])];
            stream.read(&mut bytes);
            bytes
        };
        let (plain, aad) = (text(), text());
        let cipher = RecordCipher::new(Suite::Aes256Gcm, &key);
        let mut buf = plain.clone();
        let tag = cipher.seal(&nonce, &aad, &mut buf);
        digest.update(&buf);
        digest.update(&tag);
        cipher.open(&nonce, &aad, &mut buf, &tag).unwrap();
        assert_eq!(buf, plain);
    }
    let mut out = [0; 32];
    digest.finalize_xof().read(&mut out);
    hex::encode(out)
}

#[test]
fn xaes_accumulated_over_10_000_random_cases() {
    assert_eq!(
        accumulated(10_000),
        "e6b9edf2df6cec60c8cbd864e2211b597fb69a529160cd040d56c0c210081939"
    );
}

/// The longer form of the accumulated test. It takes seconds, and adds something only if the
/// shorter one is in doubt.
#[test]
#[ignore = "the million cases take seconds; the ten thousand above always run"]
fn xaes_accumulated_over_1_000_000_random_cases() {
    assert_eq!(
        accumulated(1_000_000),
        "2163ae1445985a30b60585ee67daa55674df06901b890593e824b8a7c885ab15"
    );
}
