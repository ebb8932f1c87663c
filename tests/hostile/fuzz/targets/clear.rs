//! Structures that stand in clear in ciphertext files: headers, tables, index blocks, names,
//! journal heads; and range arithmetic.

use std::sync::LazyLock;

use kithfs::crypto::{Hctr2, NamesKey, RecordCipher, Suite, Tag};
use kithfs::format::header::{Header, HeaderContext, Hint, MAGIC, PUBLIC, PublicHeader};
use kithfs::format::journal::{JournalHead, RECORD_HEAD, RECORDS_AT, record_head};
use kithfs::format::layout::{INDEX_BLOCK, Layout, SIZE_MAX, SMALL_MAX};
use kithfs::format::name::{
    NameCipher, Opened, Parts, StoredName, is_control, is_long, is_valid, parse,
};
use kithfs::format::signature::{Authorship, Sign};
use kithfs::format::table::{HOLE, IndexBlock, Segment, Table};
use kithfs::format::{suffix, text};

use super::{Repeat, Seeded, chosen};

/// Chunk size by the low bits, signed by the top bit.
fn layout_of(choice: u8) -> Layout {
    Layout::new(12 + choice % 11, choice & 0x80 != 0).expect("12 to 22")
}

/// Plain size and ciphertext length determine each other, and everything of a file lies inside of
/// it.
pub fn layout(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else { return };
    let Some(number) = rest.first_chunk::<8>() else { return };
    let layout = layout_of(choice);
    // A store has no longer files than `off_t` counts.
    let len = u64::from_le_bytes(*number) & i64::MAX as u64;
    let size = layout.plain_size(len);
    if size < SIZE_MAX {
        assert!(size == 0 || layout.cipher_len(size) <= len, "{size} bytes do not fit in {len}");
        assert!(layout.cipher_len(size + 1) > len, "{} bytes fit in {len}", size + 1);
    }
    let size = len % (SIZE_MAX + 1);
    let cipher_len = layout.cipher_len(size);
    assert!(cipher_len <= i64::MAX as u64);
    assert_eq!(layout.plain_size(cipher_len), size);
    if size > SMALL_MAX {
        let (k, s) = layout.locate(size - 1);
        assert_eq!(k + 1, layout.chunks(size));
        assert!(
            layout.table_offset(k) + layout.table() <= layout.segment_offset(k, s)
                && layout.segment_offset(k, s) < cipher_len
        );
        for level in 1..=Layout::levels(k + 1) {
            let block = layout.index_offset(level, k / 128u64.pow(u32::from(level)));
            assert!(block + INDEX_BLOCK as u64 <= layout.table_offset(k) && block >= 4096);
        }
    }
}

pub fn layout_seeds() -> Vec<Vec<u8>> {
    let sizes =
        [0, 1, 511, 512, 513, 4096, 4608, 4609, 1 << 20, (1 << 40) + 7, SIZE_MAX, i64::MAX as u64];
    (0..11).flat_map(|choice| sizes.map(|size: u64| chosen(choice, &size.to_le_bytes()))).collect()
}

const SHARE: [u8; 32] = [7; 32];
static CIPHER: LazyLock<RecordCipher> =
    LazyLock::new(|| RecordCipher::new(Suite::Aes256Gcm, &[9; 32]));

fn context(layout: Layout) -> HeaderContext<'static> {
    HeaderContext { share: &SHARE, layout, cipher: &CIPHER }
}

fn header(public: PublicHeader) -> Header {
    let size = public.small.map_or(SMALL_MAX + 1, u64::from);
    Header {
        public,
        size,
        version: 1,
        root: HOLE,
        oldest_epoch: 1,
        hint: Hint { tag: [3; 8], name: b"name".to_vec() },
    }
}

/// A signature of nobody where the share is signed: only the part in clear is looked at.
fn unsigned(layout: &Layout) -> Option<Sign<'static>> {
    let by = Authorship { author: [1; 32], signer: [2; 32] };
    layout.signed().then_some(Sign { by, sign: &|_, _| [3; 64] })
}

/// The part of a header that needs no key.
pub fn header_public(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let layout = layout_of(choice);
    let Ok(public) = PublicHeader::decode(&layout, bytes) else { return };
    assert!(bytes.starts_with(MAGIC));
    let contents = vec![0; usize::from(public.small.unwrap_or(0))];
    let again = header(public).seal(
        &context(layout),
        &contents,
        unsigned(&layout),
        &Repeat(&bytes[60..84]),
    );
    assert_eq!(again[..PUBLIC], bytes[..PUBLIC]);
}

pub fn header_public_seeds() -> Vec<Vec<u8>> {
    let seed = |choice: u8, suite, small: Option<u16>| {
        let public = PublicHeader { suite, small, epoch: 1, commitment: [4; 8], file_id: [5; 32] };
        let contents = vec![0; usize::from(small.unwrap_or(0))];
        let bytes = header(public).seal(
            &context(layout_of(choice)),
            &contents,
            unsigned(&layout_of(choice)),
            &Seeded::new(1),
        );
        chosen(choice, &bytes[..PUBLIC])
    };
    vec![
        seed(6, Suite::Aes256Gcm, None),
        seed(0x80, Suite::ChaCha20Poly1305, None),
        seed(10, Suite::Aes256Gcm, Some(17)),
    ]
}

/// The table of a chunk.
pub fn table(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let suite = if choice & 0x80 == 0 { Suite::Aes256Gcm } else { Suite::ChaCha20Poly1305 };
    let layout = layout_of(choice & 0x7f);
    if let Ok(table) = Table::decode(&layout, suite, bytes) {
        assert_eq!(table.segments.len(), layout.segments());
        assert_eq!(table.encode(&layout), bytes);
    }
}

pub fn table_seeds() -> Vec<Vec<u8>> {
    let seed = |choice: u8| {
        let layout = layout_of(choice & 0x7f);
        let mut table = Table::empty(&layout, [0; 16], 3);
        table.set(0, Segment { nonce: [1; 12], tag: [2; 16], len: 4096 }, Some([9; 32]));
        chosen(choice, &table.encode(&layout))
    };
    vec![seed(0), seed(2), seed(0x83)]
}

/// An index block: any 4096 bytes are one.
pub fn index_block(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<INDEX_BLOCK>() {
        let block = IndexBlock::decode(bytes);
        assert_eq!(block.encode(), bytes);
        assert_eq!(block.is_hole(), bytes.iter().all(|b| *b == 0));
    }
}

pub fn index_block_seeds() -> Vec<Vec<u8>> {
    vec![IndexBlock::empty().encode(), (0..INDEX_BLOCK).map(|i| i as u8).collect()]
}

const LONGEST: usize = 152;
const TAG: Tag = [12; 8];

/// Names of entries. By the first byte: a stored name as it is; a plain name; a plain name whose
/// stored form has a suffix; or what stands under the cipher of a stored name.
pub fn stored_name(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let hctr2 = Hctr2::new(&NamesKey::from_bytes([11; 32]));
    let names = NameCipher::new(&hctr2, LONGEST);
    match choice % 4 {
        0 => check_stored(&names, bytes, None),
        1 => match names.encode(&TAG, bytes) {
            None => assert!(!is_valid(bytes)),
            Some(StoredName::Short(entry)) => {
                let Parts::Short { sealed, suffix: b"" } = parse(&entry, LONGEST) else {
                    panic!("a short name")
                };
                let opened = Opened { tag: TAG, name: bytes.to_vec() };
                assert_eq!(names.open(&sealed), Some(opened));
            }
            Some(StoredName::Long { entry, hash, sealed }) => {
                assert_eq!(parse(&entry, LONGEST), Parts::Long { hash, suffix: b"" });
                assert!(is_long(&sealed, &hash, LONGEST));
                let opened = Opened { tag: TAG, name: bytes.to_vec() };
                assert_eq!(names.open(&sealed), Some(opened));
            }
        },
        2 => {
            let Some((&len, rest)) = bytes.split_first() else { return };
            let (plain, suffix) = rest.split_at(rest.len().min(usize::from(len)));
            if let Some(stored) = names.encode(&TAG, plain) {
                let sealed = match &stored {
                    StoredName::Long { sealed, .. } => Some(&sealed[..]),
                    StoredName::Short(_) => None,
                };
                check_stored(&names, &[stored.entry(), suffix].concat(), sealed);
            }
        }
        _ => {
            let mut buf = bytes.to_vec();
            if hctr2.encrypt(&hctr2.tweak(b""), &mut buf).is_ok() {
                check_stored(&names, &text::encode(&buf), None);
            }
        }
    }
}

/// Whatever a store may hold under `stored` is shown under a name that leads back to it.
fn check_stored(names: &NameCipher, stored: &[u8], long: Option<&[u8]>) {
    if !is_valid(stored) {
        return;
    }
    let (opened, suffix) = match parse(stored, LONGEST) {
        Parts::Short { sealed, suffix } => (names.open(&sealed), suffix),
        Parts::Long { hash, suffix } => {
            assert_eq!([b"=", &text::encode(&hash)[..], suffix].concat(), stored);
            let sealed = long.filter(|sealed| is_long(sealed, &hash, LONGEST));
            (sealed.and_then(|sealed| names.open(sealed)), suffix)
        }
        Parts::Control => return assert!(is_control(stored)),
        Parts::Foreign => return,
    };
    let Some(Opened { tag, name }) = opened else { return };
    assert!(is_valid(&name), "{name:?}");
    let shown = [&name[..], &suffix::shown(suffix)].concat();
    let stored_as = |(plain, suffix): (&[u8], &[u8])| {
        names.encode(&tag, plain).is_some_and(|name| [name.entry(), suffix].concat() == stored)
    };
    assert!(
        stored_as((&shown, b"")) || suffix::splits(&shown).any(stored_as),
        "{shown:?} does not lead back"
    );
}

pub fn stored_name_seeds() -> Vec<Vec<u8>> {
    let hctr2 = Hctr2::new(&NamesKey::from_bytes([11; 32]));
    let names = NameCipher::new(&hctr2, LONGEST);
    let mut seeds = Vec::new();
    let suffixes: [&[u8]; 6] = [
        b"",
        b".sync-conflict-20260101-120000-ABCDEFG",
        b" (Ann's conflicted copy 2026-01-01)",
        b" (2)",
        b"~",
        b" (conflict copy ~)",
    ];
    for plain in [&b"a"[..], b"letter.txt", &[b'n'; 98], &[b'n'; 99], &[0xff; 255]] {
        let stored = names.encode(&TAG, plain).expect("a valid name");
        seeds.push(chosen(1, plain));
        seeds.extend(suffixes.iter().map(|suffix| chosen(0, &[stored.entry(), suffix].concat())));
        seeds.extend(
            suffixes.iter().map(|suffix| [&[2, plain.len() as u8], plain, suffix].concat()),
        );
        seeds.push(chosen(3, &[&TAG[..], plain, &[0; 8]].concat()));
    }
    seeds.push(chosen(3, &[&TAG[..], b"a", &[0; 15]].concat()));
    seeds.extend([&b"+share"[..], b"+long", b"=", b".hidden"].map(|control| chosen(0, control)));
    seeds
}

/// The head of a journal, and the heads of its records.
pub fn journal_head(data: &[u8]) {
    if let Ok(head) = JournalHead::decode(data) {
        assert_eq!(head.encode(), data);
    }
    if let Some(bytes) = data.first_chunk::<RECORD_HEAD>()
        && let Some((generation, sequence, len)) = record_head(bytes)
    {
        let again = [
            b"KREC",
            &(len as u32).to_le_bytes()[..],
            &generation.to_le_bytes(),
            &sequence.to_le_bytes(),
        ]
        .concat();
        assert_eq!(again, bytes);
    }
}

pub fn journal_head_seeds() -> Vec<Vec<u8>> {
    let head =
        JournalHead { suite: Suite::ChaCha20Poly1305, share: SHARE, id: [1; 16], owner: [2; 16] }
            .encode();
    assert_eq!(head.len() as u64, RECORDS_AT);
    vec![head, [&b"KREC"[..], &[200, 0, 0, 0], &[1; 16]].concat()]
}
