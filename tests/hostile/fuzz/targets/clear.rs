//! Structures in clear in ciphertext files: headers, tables, index blocks, names, journal heads;
//! and range arithmetic.

use std::sync::LazyLock;

use kithfs::crypto::{Hctr2, NamesKey, RecordCipher, Suite};
use kithfs::format::header::{Header, HeaderContext, Hint, MAGIC, PUBLIC, PublicHeader};
use kithfs::format::journal::{JournalHead, RECORD_HEAD, RECORDS_AT, record_head};
use kithfs::format::layout::{INDEX_BLOCK, Layout, SIZE_MAX, SMALL_MAX};
use kithfs::format::name::{
    NameCipher, Opened, Parts, StoredName, is_control, is_long, is_valid, long_hash, long_path,
    parse,
};
use kithfs::format::signature::{Authorship, Sign};
use kithfs::format::suffix::{self, mark_of, marked, split_mark};
use kithfs::format::table::{HOLE, IndexBlock, Segment, Table};
use kithfs::format::text;

use super::{Repeat, Seeded, chosen};

/// Chunk size by the low bits, signed by the top bit.
fn layout_of(choice: u8) -> Layout {
    Layout::new(12 + choice % 11, choice & 0x80 != 0).expect("12 to 22")
}

/// Plain size and ciphertext length determine each other, and every part of a file is inside of it.
pub fn layout(data: &[u8]) {
    let Some((&choice, rest)) = data.split_first() else { return };
    let Some(number) = rest.first_chunk::<8>() else { return };
    let layout = layout_of(choice);
    // A store has no files longer than `off_t` can express.
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

/// A placeholder for a signature if the share is signed: only the part in clear is parsed.
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

/// The longest stored name of the share, and the tag of the directory.
const LONGEST: usize = 152;
const TAG: [u8; 8] = [12; 8];

/// Names of entries. By the first byte: a stored name unchanged; a plain name; a plain name whose
/// stored form has a suffix; the plain bytes of a stored name; or a shown name.
pub fn stored_name(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let hctr2 = Hctr2::new(&NamesKey::from_bytes([11; 32]));
    let names = NameCipher::new(&hctr2, LONGEST);
    match choice % 5 {
        0 => check_stored(&names, bytes),
        1 => check_plain(&names, bytes),
        2 => {
            let Some((&len, rest)) = bytes.split_first() else { return };
            let (plain, suffix) = rest.split_at(rest.len().min(usize::from(len)));
            if let Some(stored) = names.encode(&TAG, plain) {
                check_stored(&names, &[stored.entry(), suffix].concat());
            }
        }
        3 => {
            let mut buf = bytes.to_vec();
            if hctr2.encrypt(&hctr2.tweak(b""), &mut buf).is_ok() {
                check_stored(&names, &text::encode(&buf));
                check_long(&names, &buf);
            }
        }
        _ => check_shown(bytes),
    }
}

fn check_plain(names: &NameCipher, plain: &[u8]) {
    let Some(stored) = names.encode(&TAG, plain) else { return assert!(!is_valid(plain)) };
    let opened = Some(Opened { tag: TAG, name: plain.to_vec() });
    match (&stored, parse(stored.entry(), LONGEST)) {
        (StoredName::Short(_), Parts::Short { sealed, suffix: b"" }) => {
            assert_eq!(names.open(&sealed), opened);
        }
        (StoredName::Long { hash, sealed, .. }, Parts::Long { hash: read, suffix: b"" }) => {
            assert!(*hash == read && is_long(sealed, hash, LONGEST));
            assert_eq!(names.open(sealed), opened);
        }
        (_, parts) => panic!("{parts:?}"),
    }
}

/// Asserts that anything named `stored` in a store is shown under a name that leads back to it.
fn check_stored(names: &NameCipher, stored: &[u8]) {
    match parse(stored, LONGEST) {
        Parts::Short { sealed, suffix } => {
            let Some(Opened { tag, name }) = names.open(&sealed) else { return };
            let again = names.encode(&tag, &name).expect("a valid name");
            assert_eq!([again.entry(), suffix].concat(), stored, "{name:?} does not lead back");
            let shown = [&name[..], &suffix::shown(suffix)].concat();
            let leads_back = suffix::splits(&shown).any(|split| split == (&name[..], suffix));
            assert!(suffix.is_empty() || leads_back, "{shown:?} cannot be taken apart");
        }
        Parts::Long { hash, suffix } => {
            let (group, file) = long_path(&hash);
            assert_eq!([b"=", &file[..], suffix].concat(), stored);
            assert_eq!(long_hash(&group, &file), Some(hash));
        }
        Parts::Control => assert!(is_control(stored)),
        Parts::Foreign => {}
    }
}

/// The contents of a file of a long name.
fn check_long(names: &NameCipher, sealed: &[u8]) {
    if is_long(sealed, blake3::hash(sealed).as_bytes(), LONGEST)
        && let Some(Opened { tag, name }) = names.open(sealed)
    {
        let again = names.encode(&tag, &name).expect("a valid name");
        assert!(matches!(again, StoredName::Long { sealed: made, .. } if made == sealed));
    }
}

fn check_shown(name: &[u8]) {
    for (plain, suffix) in suffix::splits(name) {
        assert_eq!([plain, &suffix::shown(suffix)].concat(), name);
    }
    if let Some((plain, mark)) = split_mark(name) {
        assert_eq!(marked(plain, &mark), name);
    }
    let mark = mark_of(name);
    assert!(name.is_empty() || split_mark(&marked(name, &mark)) == Some((name, mark)));
}

pub fn stored_name_seeds() -> Vec<Vec<u8>> {
    let hctr2 = Hctr2::new(&NamesKey::from_bytes([11; 32]));
    let names = NameCipher::new(&hctr2, LONGEST);
    let mut seeds = Vec::new();
    let suffixes: [&[u8]; 7] = [
        b"",
        b".sync-conflict-20260101-120000-ABCDEFG",
        b" (Ann's conflicted copy 2026-01-01)",
        b" (2)",
        b"-MACHINE",
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
        seeds.extend(suffixes.iter().map(|suffix| chosen(4, &[plain, suffix].concat())));
        seeds.push(chosen(3, &[&TAG, plain, &[0; 8]].concat()));
    }
    seeds.push(chosen(3, &[&TAG[..], b"a", &[0; 15]].concat()));
    seeds.push(chosen(4, b"a (conflict copy ~) (moved 0abc0001)"));
    seeds.extend([&b"+share"[..], b"+moved", b"=", b".hidden"].map(|control| chosen(0, control)));
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
    let head = JournalHead {
        suite: Suite::ChaCha20Poly1305,
        share: SHARE,
        id: [1; 16],
        owner: [2; 16],
        births: [Some((1, 2)), None],
    }
    .encode();
    assert_eq!(head.len() as u64, RECORDS_AT);
    vec![head, [&b"KREC"[..], &[200, 0, 0, 0], &[1; 16]].concat()]
}
