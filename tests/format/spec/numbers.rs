//! The numbers of SPEC.md outside of byte tables: constants, geometry, worked sizes, lengths of
//! names, bounds.

use kithfs::crypto::{Hctr2, NamesKey, RECORD_OVERHEAD, Suite};
use kithfs::format::layout::{self, Layout};
use kithfs::format::name::{self, NameCipher};
use kithfs::format::signature::TRAILER_LEN;
use kithfs::format::{identity, journal, manifest, members, record, share, slots, table};

use super::page::{number, table_after};

fn layout(chunk_log2: u64, signed: bool) -> Layout {
    Layout::new(chunk_log2 as u8, signed).unwrap()
}

#[test]
fn the_constants_match_the_page() {
    let rows = table_after("which is stored in its descriptor.");
    let row = |prefix: &str| {
        let row = rows
            .iter()
            .find(|row| row[0].starts_with(prefix))
            .unwrap_or_else(|| panic!("a row begins with {prefix}"));
        (number(&row[1]), number(&row[2]))
    };
    let same = |n: u64| (n, n);
    assert_eq!(row("H,"), (layout::HEADER as u64, layout::HEADER_SIGNED as u64));
    assert_eq!(row("E,"), (layout::ENTRY as u64, layout::ENTRY_SIGNED as u64));
    assert_eq!(row("head of a table"), same(layout::TABLE_HEAD as u64));
    assert_eq!(row("S,"), same(layout::SEGMENT as u64));
    assert_eq!(row("largest plain size of the small form"), same(layout::SMALL_MAX));
    assert_eq!(row("D,"), same(layout::DATA_START));
    assert_eq!(row("F,"), same(layout::FANOUT));
    assert_eq!(row("one hash"), same(layout::HASH as u64));
    assert_eq!(row("I,"), same(layout::INDEX_BLOCK as u64));
    assert_eq!(row("most levels"), same(u64::from(layout::LEVELS_MAX)));
    assert_eq!(row("log2 of the largest plain size"), same(u64::from(layout::SIZE_MAX.ilog2())));
    assert_eq!(rows.len(), 11);
    assert!(layout::SIZE_MAX.is_power_of_two());
}

#[test]
fn the_geometry_of_each_chunk_size_matches_the_page() {
    let rows = table_after("at c ≥ 18 at least 4096");
    assert_eq!(rows.len(), usize::from(layout::CHUNK_LOG2_MAX - layout::CHUNK_LOG2_MIN) + 1);
    for row in rows {
        let row: Vec<u64> = row.iter().map(|cell| number(cell)).collect();
        let (unsigned, signed) = (layout(row[0], false), layout(row[0], true));
        let program = [
            u64::from(unsigned.chunk_log2()),
            unsigned.chunk(),
            unsigned.segments() as u64,
            unsigned.table_used() as u64,
            unsigned.table(),
            signed.table_used() as u64,
            signed.table(),
        ];
        assert_eq!(row, program);
    }
}

#[test]
fn the_worked_sizes_match_the_page() {
    let rows = table_after("the header's size counts.");
    let columns = [layout(12, false), layout(18, false), layout(22, false), layout(18, true)];
    let mut sizes = Vec::new();
    for row in rows {
        let size = number(&row[0]);
        for (cell, layout) in row[1..].iter().zip(&columns) {
            assert_eq!(number(cell), layout.cipher_len(size), "{size} {layout:?}");
            assert_eq!(layout.plain_size(number(cell)), size);
        }
        assert_eq!(row.len(), 1 + columns.len());
        sizes.push(size);
    }
    assert!(
        [0, 1, 4096, 4097, 262_144, 262_145, 3 << 30, 1 << 40, layout::SIZE_MAX]
            .iter()
            .all(|size| sizes.contains(size))
    );
}

/// The formulas of section 4.1, implemented again from the page.
#[test]
fn the_formulas_of_the_page_match_the_program() {
    for (log2, signed) in
        [(12, false), (12, true), (14, false), (18, false), (18, true), (22, true)]
    {
        let program = layout(log2, signed);
        let (c, t, f, i, d) = (1u64 << log2, program.table(), 128u64, 4096, 4096);
        let blocks_before = |k: u64| {
            (1u32..=8).take_while(|l| f.pow(l - 1) <= k).map(|l| k / f.pow(l) + 1).sum::<u64>()
        };
        let table = |k: u64| d + k * (t + c) + i * blocks_before(k);
        let index = |l: u32, j: u64| {
            table(if j == 0 { f.pow(l - 1) } else { j * f.pow(l) }) - u64::from(l) * i
        };
        let length = |size: u64| {
            if size <= 4096 {
                (if signed { 640 } else { 512 }) + size
            } else {
                table((size - 1) / c) + t + size - (size - 1) / c * c
            }
        };
        for k in [
            0,
            1,
            2,
            126,
            127,
            128,
            129,
            255,
            256,
            16_383,
            16_384,
            16_385,
            2_097_151,
            2_097_152,
            1 << 30,
        ] {
            assert_eq!(program.table_offset(k), table(k), "chunk {k}");
            assert_eq!(program.segment_offset(k, program.segments() - 1), table(k) + t + c - 4096);
            for size in [k * c, k * c + 1, k * c + c - 1] {
                assert_eq!(program.cipher_len(size), length(size), "size {size}");
            }
        }
        for level in 1..=4u8 {
            for j in [0, 1, 2, 127, 128, 129] {
                assert_eq!(
                    program.index_offset(level, j),
                    index(u32::from(level), j),
                    "level {level} block {j}"
                );
            }
        }
        for (chunks, levels) in [(1, 0), (2, 1), (128, 1), (129, 2), (16_384, 2), (16_385, 3)] {
            assert_eq!(Layout::levels(chunks), levels);
        }
    }
}

#[test]
fn the_lengths_of_stored_names_match_the_page() {
    let hctr2 = Hctr2::new(&NamesKey::from_bytes([1; 32]));
    let names = NameCipher::new(&hctr2, usize::from(share::LONGEST_NAME_DEFAULT));
    for row in table_after("stored length with L = 152") {
        let stored = names.encode(&[2; 8], &vec![b'n'; number(&row[0]) as usize]).unwrap();
        assert_eq!(stored.entry().len() as u64, number(&row[1]), "plain length {}", row[0]);
    }
    assert_eq!((name::SEALED_MIN, name::NAME_MAX, name::ZEROS), (24, 255, 8));
    assert!(names.encode(&[2; 8], &[b'n'; 256]).is_none());
}

/// Bounds that the text states, each found by its sentence.
#[test]
fn the_bounds_in_the_text_match_the_program() {
    let page = super::page::PAGE.split_whitespace().collect::<Vec<_>>().join(" ");
    let has = |sentence: String| assert!(page.contains(&sentence), "the page lacks {sentence:?}");
    has(format!("It is {RECORD_OVERHEAD} bytes longer than what it holds"));
    has(format!("at the latest after 2^{} seals", table::SEALS_MAX.ilog2()));
    has(format!("1 to {} bytes; or the 16-byte reference", record::TARGET_MAX));
    has(format!(
        "A target of up to {} bytes ({} in a signed share)",
        record::TARGET_INLINE_MAX,
        record::TARGET_INLINE_MAX_SIGNED
    ));
    has(format!("At most {} bytes in all", record::XATTRS_MAX));
    has(format!("of at most {} bytes, is stored in `+attr-", record::XATTRS_LONG_MAX));
    has(format!(
        "n · 3 / 4 - {} ({} in a signed share)",
        record::OVERHEAD,
        record::OVERHEAD + TRAILER_LEN
    ));
    has(format!("{RECORD_OVERHEAD} to {}", journal::RECORD_MAX));
    has(format!(
        "Records begin at {}, each at a multiple of {}",
        journal::RECORDS_AT,
        journal::ALIGN
    ));
    has(format!("number of slots, 1 to {}", identity::MAX_SLOTS));
    has(format!("length of the label, 0 to {}", identity::MAX_LABEL));
    has(format!(
        "length of the age file, {} to {}",
        identity::AGE_MAGIC.len(),
        identity::MAX_AGE_FILE
    ));
    has(format!("{} bytes. It never changes", share::DESCRIPTOR_LEN));
    has(format!(
        "{} to {}, by default {}",
        share::LONGEST_NAME_MIN,
        share::LONGEST_NAME_MAX,
        share::LONGEST_NAME_DEFAULT
    ));
    has(format!("n, number of slots and of members, 1 to {}", members::MAX_MEMBERS));
    has(format!("length of the name, at most {}", members::MAX_NAME));
    has(format!("a page is {} slots", slots::PAGE_SLOTS));
    has(format!("number of admins, 1 to {}", manifest::MAX_ADMINS));
    has(format!("number of history entries, at most {}", manifest::MAX_HISTORY));
    has(format!("number of slot blocks, 1 to {}", manifest::MAX_BLOCKS));
    has(format!("12 ≤ c ≤ {}", layout::CHUNK_LOG2_MAX));
    has(format!("The default is c = {}", layout::CHUNK_LOG2_DEFAULT));
    assert_eq!(record::link_target_len(22, false), 0);
    for n in [66usize, 86, 100, 4095] {
        assert_eq!(
            record::link_target_len(n as u64, false),
            (n * 3 / 4).saturating_sub(record::OVERHEAD) as u64
        );
    }
    let rows = table_after("in every header and goes into the derivation of every key.");
    let suites: Vec<(u64, String)> =
        rows.iter().map(|row| (number(&row[0]), row[1].trim_matches('`').to_owned())).collect();
    assert_eq!(
        suites,
        Suite::ALL.map(|suite| (u64::from(suite.as_byte()), suite.name().to_owned()))
    );
}

/// The tables of signed shares have the lengths that the arithmetic uses for them.
#[test]
fn the_lengths_of_signed_shares_match_the_page() {
    let trailer = table_after("<!-- lengths: trailer of a file header -->");
    let mut at = kithfs::format::header::BODY_AT as u64;
    for row in &trailer {
        assert_eq!(number(&row[0]), at);
        at += number(&row[1]);
    }
    assert_eq!(at, layout::HEADER_SIGNED as u64);
    let entry = table_after("<!-- bytes: entry of a chunk table in a signed share -->");
    assert_eq!(number(&entry[3][0]), layout::ENTRY as u64);
    assert_eq!(number(&entry[3][0]) + number(&entry[3][1]), layout::ENTRY_SIGNED as u64);
}
