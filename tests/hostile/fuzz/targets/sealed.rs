//! Sealed structures: changed without the key, which never opens, and made with the key, which must
//! still be parsed strictly.

use std::sync::LazyLock;

use kithfs::crypto::{RecordCipher, Suite};
use kithfs::format::header::{
    BODY, BODY_AT, Header, HeaderContext, Hint, PUBLIC, PublicHeader, TAG_AT,
};
use kithfs::format::journal::{
    ALIGN, JournalHead, JournalRecord, Patch, RECORD_HEAD, open_record, record_head,
};
use kithfs::format::layout::{HEADER, Layout, SMALL_MAX};
use kithfs::format::moved::Moved;
use kithfs::format::record::{
    self, OVERHEAD, RecordContext, RecordKind, TARGET_MAX, Xattrs, epoch_of, link_record,
};
use kithfs::format::table::HOLE;

use super::{Repeat, Seeded};

const SHARE: [u8; 32] = [7; 32];
static AES: LazyLock<RecordCipher> =
    LazyLock::new(|| RecordCipher::new(Suite::Aes256Gcm, &[9; 32]));
static CHACHA: LazyLock<RecordCipher> =
    LazyLock::new(|| RecordCipher::new(Suite::ChaCha20Poly1305, &[9; 32]));

fn header_context(suite: Suite) -> HeaderContext<'static> {
    let cipher = if suite == Suite::Aes256Gcm { &*AES } else { &*CHACHA };
    HeaderContext { share: &SHARE, layout: Layout::new(18, false).expect("256 KiB"), cipher }
}

const SUITES: [Suite; 2] = [Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

/// Headers of a large, an empty and a small file under each suite, the latter with their data.
static HEADERS: LazyLock<Vec<(Header, Vec<u8>)>> = LazyLock::new(|| {
    let sizes = SUITES.iter().flat_map(|suite| {
        [None, Some(0), Some(100), Some(SMALL_MAX as u16)].map(|small| (*suite, small))
    });
    let header = |(suite, small): (Suite, Option<u16>)| {
        let public = PublicHeader { suite, small, epoch: 1, commitment: [4; 8], file_id: [5; 32] };
        let hint = Hint { tag: [3; 8], name: b"letter.txt".to_vec() };
        let size = small.map_or(1 << 20, u64::from);
        let header = Header { public, size, version: 7, root: HOLE, oldest_epoch: 1, hint };
        let sealed = header.seal(
            &header_context(suite),
            &vec![8; usize::from(small.unwrap_or(0))],
            None,
            &Seeded::new(2),
        );
        (header, sealed)
    };
    sizes.map(header).collect()
});

/// A header, changed without the key.
pub fn header_sealed(data: &[u8]) {
    for suite in SUITES {
        if let Ok((header, contents, _)) = Header::open(&header_context(suite), data) {
            let (original, sealed) = HEADERS
                .iter()
                .find(|(_, sealed)| data.starts_with(sealed))
                .expect("only what was sealed opens");
            assert_eq!(header, *original);
            assert_eq!(contents.len(), sealed.len() - HEADER);
            assert!(contents.iter().all(|b| *b == 8));
        }
    }
}

pub fn header_sealed_seeds() -> Vec<Vec<u8>> {
    HEADERS.iter().map(|(_, sealed)| sealed.clone()).collect()
}

/// A header with the input's clear part and body, sealed with the right key.
pub fn header_body(data: &[u8]) {
    let Some((public, body)) = data.split_at_checked(PUBLIC) else { return };
    if body.len() < BODY || body.len() > BODY + SMALL_MAX as usize {
        return;
    }
    let context = header_context(Suite::Aes256Gcm);
    let nonce: &[u8; 24] = public[60..84].try_into().expect("24 bytes");
    let mut sealed = body.to_vec();
    let tag = AES.seal(nonce, &[b"KHDR", &SHARE[..], public].concat(), &mut sealed);
    let bytes = [public, &tag, &sealed].concat();
    let Ok((header, contents, _)) = Header::open(&context, &bytes) else { return };
    assert_eq!(header.seal(&context, &contents, None, &Repeat(nonce)), bytes);
}

pub fn header_body_seeds() -> Vec<Vec<u8>> {
    let open = |(header, sealed): &(Header, Vec<u8>)| {
        let mut body = sealed[BODY_AT..].to_vec();
        let nonce: &[u8; 24] = sealed[60..84].try_into().expect("24 bytes");
        let tag: &[u8; 16] = sealed[TAG_AT..BODY_AT].try_into().expect("16 bytes");
        let context = header_context(header.public.suite);
        context
            .cipher
            .open(nonce, &[b"KHDR", &SHARE[..], &sealed[..PUBLIC]].concat(), &mut body, tag)
            .expect("its own seal");
        [&sealed[..PUBLIC], &body].concat()
    };
    HEADERS.iter().filter(|(header, _)| header.public.suite == Suite::Aes256Gcm).map(open).collect()
}

const KINDS: [RecordKind; 4] =
    [RecordKind::Symlink, RecordKind::LongSymlink, RecordKind::Xattrs, RecordKind::Moved];

fn records() -> RecordContext<'static> {
    RecordContext { share: &SHARE, suite: Suite::Aes256Gcm, signed: false, epoch: 3, cipher: &AES }
}

/// What a record of a kind is bound to.
fn bound(kind: usize) -> [u8; 16] {
    [kind as u8; 16]
}

static RECORDS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let plain = [&b"../elsewhere"[..], &[b't'; 3500], b"attributes", &[b't'; 16]];
    let random = Seeded::new(3);
    KINDS
        .iter()
        .zip(plain)
        .enumerate()
        .map(|(i, (kind, plain))| records().seal(*kind, &bound(i), plain, None, &random))
        .collect()
});

/// A sealed record of any kind, changed without the key.
pub fn record_sealed(data: &[u8]) {
    for (i, kind) in KINDS.iter().enumerate() {
        let epoch = epoch_of(*kind, data);
        if let Ok((plain, _)) = records().open(*kind, &bound(i), data) {
            assert_eq!(epoch, Ok(3));
            assert_eq!(data, RECORDS[i], "only what was sealed opens");
            assert_eq!(plain.len() + OVERHEAD, data.len());
        }
    }
}

pub fn record_sealed_seeds() -> Vec<Vec<u8>> {
    RECORDS.clone()
}

/// The text of the store's symbolic link.
pub fn link_text(data: &[u8]) {
    if let Ok(sealed) = link_record(data) {
        assert_eq!(record::link_text(&sealed), data);
        if records().open(KINDS[0], &bound(0), &sealed).is_ok() {
            assert_eq!(sealed, RECORDS[0]);
        }
    }
    if data.len() <= TARGET_MAX && link_record(&record::link_text(data)).as_deref() != Ok(data) {
        panic!("{data:?} does not come back");
    }
}

pub fn link_text_seeds() -> Vec<Vec<u8>> {
    RECORDS
        .iter()
        .map(|sealed| record::link_text(sealed))
        .chain([b"-_".to_vec(), b"../outside".to_vec(), Vec::new()])
        .collect()
}

/// Extended attributes, in their plain form.
pub fn xattrs(data: &[u8]) {
    if let Ok(attributes) = Xattrs::decode(data) {
        assert_eq!(attributes.encode(), data);
    }
}

pub fn xattrs_seeds() -> Vec<Vec<u8>> {
    let list = |pairs: &[(&[u8], &[u8])]| {
        Xattrs(pairs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect()).encode()
    };
    vec![
        list(&[]),
        list(&[(b"user.a", b""), (b"user.b", &[1; 300])]),
        list(&[(b"security.capability", &[0; 20])]),
    ]
}

/// Rename evidence, in its plain form.
pub fn evidence(data: &[u8]) {
    if let Ok(moved) = Moved::decode(data) {
        assert_eq!(moved.encode(), data);
    }
}

pub fn evidence_seeds() -> Vec<Vec<u8>> {
    vec![Moved { from: [1; 8], to: [2; 8] }.encode()]
}

const JOURNAL: JournalHead = JournalHead {
    suite: Suite::Aes256Gcm,
    share: SHARE,
    id: [1; 16],
    owner: [2; 16],
    births: [None; 2],
};
const GENERATION: u64 = 5;
const SEQUENCE: u64 = 1;

fn journal_record() -> JournalRecord<'static> {
    let patches = vec![
        Patch { offset: 4096, bytes: vec![3; 700].into() },
        Patch { offset: 0, bytes: vec![4; HEADER].into() },
    ];
    let (base, result) = ([5; 32], [6; 32]);
    JournalRecord {
        path: b"Zm9v/YmFy".to_vec(),
        file_id: [7; 32],
        born: Some((-1, 999_999_999)),
        base,
        result,
        cipher_len: 8000,
        mtime: (-1, 999_999_999),
        patches,
    }
}

static JOURNAL_RECORD: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut out = Vec::new();
    journal_record().seal(&mut out, &JOURNAL, &AES, GENERATION, SEQUENCE, &Seeded::new(4));
    out
});

/// A record of the journal, changed without the key.
pub fn journal_sealed(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<RECORD_HEAD>() else { return };
    let Some((generation, sequence, len)) = record_head(head) else { return };
    let Some(sealed) = rest.get(..len) else { return };
    if let Ok(record) = open_record(&JOURNAL, &AES, generation, sequence, sealed) {
        assert_eq!(
            data[..RECORD_HEAD + len],
            JOURNAL_RECORD[..RECORD_HEAD + len],
            "only what was sealed opens"
        );
        assert_eq!(record, journal_record());
        assert_eq!((generation, sequence), (GENERATION, SEQUENCE));
    }
}

pub fn journal_sealed_seeds() -> Vec<Vec<u8>> {
    vec![JOURNAL_RECORD.clone()]
}

fn journal_aad() -> Vec<u8> {
    [b"KREC", &JOURNAL.share[..], &JOURNAL.id, &GENERATION.to_le_bytes(), &SEQUENCE.to_le_bytes()]
        .concat()
}

/// A record of the journal whose body is the input, sealed with the right key.
pub fn journal_body(data: &[u8]) {
    let nonce = [8; 24];
    let sealed = AES.seal_record(&Repeat(&nonce), &journal_aad(), data);
    let Ok(record) = open_record(&JOURNAL, &AES, GENERATION, SEQUENCE, &sealed) else { return };
    let mut again = Vec::new();
    record.seal(&mut again, &JOURNAL, &AES, GENERATION, SEQUENCE, &Repeat(&nonce));
    assert_eq!(again[RECORD_HEAD..][..sealed.len()], sealed);
    assert!(again.len() <= record.encoded_len() && again.len().is_multiple_of(ALIGN));
    for patch in &record.patches {
        assert!(patch.offset + patch.bytes.len() as u64 <= record.cipher_len);
    }
}

pub fn journal_body_seeds() -> Vec<Vec<u8>> {
    let head: &[u8; RECORD_HEAD] = JOURNAL_RECORD.first_chunk().expect("a head");
    let (_, _, len) = record_head(head).expect("its own head");
    let body = AES
        .open_record(&journal_aad(), &JOURNAL_RECORD[RECORD_HEAD..][..len])
        .expect("its own seal");
    vec![body.to_vec()]
}
