//! Byte tables of files, records and journals: each structure is assembled from its fields, and
//! must equal the bytes that the program makes.

use kithfs::crypto::{RecordCipher, Suite};
use kithfs::format::header::{Header, HeaderContext, Hint, PublicHeader};
use kithfs::format::journal::{JournalHead, JournalRecord, Patch};
use kithfs::format::layout::Layout;
use kithfs::format::moved::Moved;
use kithfs::format::record::{RecordContext, RecordKind, Xattrs};
use kithfs::format::table::{Segment, Table, segment_aad};

use super::page::number;

use crate::support::counting::Counting;

/// A structure of the page: the program's bytes, and the fields in the order of the table.
pub struct Structure {
    pub name: &'static str,
    pub made: Vec<u8>,
    pub fields: Vec<Vec<u8>>,
}

impl Structure {
    /// Compares the rows of the table with the fields, and the fields with the program's bytes.
    pub fn check(&self, rows: &[Vec<String>]) {
        assert_eq!(rows.len(), self.fields.len(), "{}: rows", self.name);
        let mut at = 0;
        for (row, field) in rows.iter().zip(&self.fields) {
            let context = format!("{}: {}", self.name, row[2]);
            if !row[0].is_empty() {
                assert_eq!(number(&row[0]) as usize, at, "{context}: offset");
            }
            if !row[1].is_empty() {
                assert_eq!(number(&row[1]) as usize, field.len(), "{context}: size");
            }
            assert_eq!(&self.made[at..at + field.len()], field, "{context}: bytes");
            at += field.len();
        }
        assert_eq!(at, self.made.len(), "{}: length", self.name);
    }
}

pub fn structure(name: &'static str, made: impl Into<Vec<u8>>, fields: &[&[u8]]) -> Structure {
    Structure {
        name,
        made: made.into(),
        fields: fields.iter().map(|field| field.to_vec()).collect(),
    }
}

pub fn count<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|i| first.wrapping_add(i as u8))
}

const SHARE: [u8; 32] = [0x51; 32];

pub fn structures() -> Vec<Structure> {
    let mut all = Vec::new();
    header(&mut all);
    table(&mut all);
    records(&mut all);
    journal(&mut all);
    all
}

fn header(all: &mut Vec<Structure>) {
    let data = b"some data";
    for suite in Suite::ALL {
        let cipher = RecordCipher::new(suite, &[7; 32]);
        let context = HeaderContext {
            share: &SHARE,
            layout: Layout::new(14, false).unwrap(),
            cipher: &cipher,
        };
        let public = PublicHeader {
            suite,
            small: Some(9),
            epoch: 0x0304_0506,
            commitment: count(0x60),
            file_id: count(0x70),
        };
        let hint = Hint { tag: count(0x90), name: b"name".to_vec() };
        let header =
            Header { public, size: 9, version: 0x0102_0304, root: [0; 32], oldest_epoch: 3, hint };
        let made = header.seal(&context, data, None, &Counting::from(1));

        let suite_byte = [suite.as_byte()];
        let clear: Vec<&[u8]> =
            vec![b"kithfile", &[1, 0], &suite_byte, &[2], &[1], &[14], &[9, 0], &[6, 5, 4, 3]];
        let (commitment, id, nonce): ([u8; 8], [u8; 32], [u8; 24]) =
            (count(0x60), count(0x70), count(1));
        let clear = [clear, vec![&commitment, &id, &nonce, &[0; 12]]].concat();
        let aad_fields: [&[u8]; 3] = [b"KHDR", &SHARE, &clear.concat()];
        let hinted: [u8; 8] = count(0x90);
        let name: Vec<u8> = [&b"name"[..], &[0; 251]].concat();
        let body_fields: [&[u8]; 8] = [
            &9u64.to_le_bytes(),
            &0x0102_0304u64.to_le_bytes(),
            &[0; 32],
            &[3, 0, 0, 0],
            &[0; 12],
            &hinted,
            &[4],
            &name,
        ];
        let body_fields: Vec<&[u8]> = [&body_fields[..], &[&[0; 72]]].concat();
        let mut sealed = [&body_fields.concat()[..], data].concat();
        let tag = cipher.seal(&nonce, &aad_fields.concat(), &mut sealed);
        if suite == Suite::Aes256Gcm {
            all.push(structure(
                "associated data of a file header",
                aad_fields.concat(),
                &aad_fields,
            ));
            all.push(structure("body of a file header", body_fields.concat(), &body_fields));
            all.push(structure(
                "file header",
                made,
                &[&clear[..], &[&tag[..], &sealed[..400], &sealed[400..]]].concat(),
            ));
        } else {
            assert_eq!(made, [&clear.concat()[..], &tag, &sealed].concat());
        }
    }
}

fn table(all: &mut Vec<Structure>) {
    let layout = Layout::new(13, false).unwrap();
    let segment = Segment { nonce: count(0x10), tag: count(0x20), len: 0x0234 };
    let table = Table {
        salt: count(1),
        epoch: 0x0304_0506,
        seals: 0x0708_090a,
        segments: [segment, Segment::HOLE].into(),
        hashes: [].into(),
    };
    let made = table.encode(&layout);
    let (salt, nonce, tag): ([u8; 16], [u8; 12], [u8; 16]) = (count(1), count(0x10), count(0x20));
    let entry: [&[u8]; 3] = [&nonce, &tag, &[0x34, 2]];
    all.push(structure("entry of a chunk table", &made[64..94], &entry));
    let entries = [&entry.concat()[..], &[0; 30]].concat();
    all.push(structure(
        "chunk table",
        made,
        &[&salt, &[6, 5, 4, 3], &[0xa, 9, 8, 7], &[0; 40], &entries],
    ));
    let aad = segment_aad(
        &SHARE,
        &[0xf1; 32],
        0x0102_0304_0506_0708,
        0x0a0b_0c0d,
        0x0fff,
        0x1112_1314,
        Suite::ChaCha20Poly1305,
    );
    let fields: [&[u8]; 9] = [
        b"KSEG",
        &SHARE,
        &[0xf1; 32],
        &[8, 7, 6, 5, 4, 3, 2, 1],
        &[0xd, 0xc, 0xb, 0xa],
        &[0xff, 0xf],
        &[0x14, 0x13, 0x12, 0x11],
        &[2],
        &[0],
    ];
    all.push(structure("associated data of a segment", aad, &fields));
}

fn records(all: &mut Vec<Structure>) {
    let moved = Moved { from: [1; 8], to: [2; 8] };
    all.push(structure("rename evidence", moved.encode(), &[&[1; 8], &[2; 8]]));

    let attributes = Xattrs([(b"user.a".to_vec(), b"value".to_vec())].into());
    all.push(structure(
        "extended attribute",
        attributes.encode(),
        &[&[6, 0], &[5, 0, 0, 0], b"user.a", b"value"],
    ));

    let kinds = [
        (RecordKind::Symlink, b"KSYM"),
        (RecordKind::LongSymlink, b"KLSY"),
        (RecordKind::Xattrs, b"KXAT"),
        (RecordKind::Junction, b"KJNC"),
        (RecordKind::Moved, b"KMOV"),
    ];
    // Junctions are always signed: see `signed.rs`.
    for (kind, word) in kinds.iter().filter(|(kind, _)| *kind != RecordKind::Junction).copied() {
        for suite in Suite::ALL {
            let cipher = RecordCipher::new(suite, &[9; 32]);
            let context = RecordContext {
                share: &SHARE,
                suite,
                signed: false,
                epoch: 0x0304_0506,
                cipher: &cipher,
            };
            let made = context.seal(kind, b"bound", b"held", None, &Counting::from(1));
            let (id, nonce): ([u8; 16], [u8; 24]) = (count(1), count(17));
            let clear: [&[u8]; 6] = [&[1], &[suite.as_byte()], &[0], &[0], &[6, 5, 4, 3], &id];
            let aad: [&[u8]; 4] = [word, &SHARE, &clear.concat(), b"bound"];
            let mut held = b"held".to_vec();
            let tag = cipher.seal(&nonce, &aad.concat(), &mut held);
            let sealed = [&nonce[..], &held, &tag].concat();
            assert_eq!(made, [clear.concat(), sealed.clone()].concat());
            if (kind, suite) == (RecordKind::Symlink, Suite::Aes256Gcm) {
                all.push(structure("associated data of a sealed record", aad.concat(), &aad));
                all.push(structure("sealed record", made, &[&clear[..], &[&sealed]].concat()));
            }
        }
    }
    // The page has the words with which the records above were opened.
    let words: Vec<String> = super::page::table_after("60 | | what the record is bound to")
        .into_iter()
        .map(|row| row[1].clone())
        .collect();
    assert_eq!(words, kinds.map(|(_, word)| format!("`{}`", std::str::from_utf8(word).unwrap())));
}

fn journal(all: &mut Vec<Structure>) {
    let head = JournalHead {
        suite: Suite::ChaCha20Poly1305,
        share: SHARE,
        id: count(1),
        owner: count(0x21),
        births: [Some((-2, 0x0102_0304)), None],
    };
    let (id, owner): ([u8; 16], [u8; 16]) = (count(1), count(0x21));
    let birth = [&(-2i64).to_le_bytes()[..], &[4, 3, 2, 1]].concat();
    let no_birth = [&[0; 8][..], &[255; 4]].concat();
    let fields: [&[u8]; 11] = [
        b"kithjrnl",
        &[1, 0],
        &[2],
        &[0],
        &[0; 4],
        &SHARE,
        &id,
        &owner,
        &birth,
        &no_birth,
        &[0; 3992],
    ];
    all.push(structure("journal head", head.encode(), &fields));

    let patch = Patch { offset: 0x0102_0304, bytes: b"patched".to_vec().into() };
    let patch_fields: [&[u8]; 3] = [&[4, 3, 2, 1, 0, 0, 0, 0], &[7, 0, 0, 0], b"patched"];
    let record = JournalRecord {
        path: b"a/b".to_vec(),
        file_id: [1; 32],
        born: Some((-2, 0x0102_0304)),
        base: [2; 32],
        result: [3; 32],
        cipher_len: 0x0202_0304,
        mtime: (-2, 0x0102_0304),
        patches: vec![patch],
    };
    let body: [&[u8]; 12] = [
        &[0],
        &[3, 0],
        b"a/b",
        &[1; 32],
        &birth,
        &[2; 32],
        &[3; 32],
        &[4, 3, 2, 2, 0, 0, 0, 0],
        &(-2i64).to_le_bytes(),
        &[4, 3, 2, 1],
        &[1, 0, 0, 0],
        &patch_fields.concat(),
    ];
    let (generation, sequence) = (0x0a0b_u64.to_le_bytes(), 0x0c0d_u64.to_le_bytes());
    let aad: [&[u8]; 5] = [b"KREC", &SHARE, &id, &generation, &sequence];
    let cipher = RecordCipher::new(Suite::ChaCha20Poly1305, &[9; 32]);
    let nonce: [u8; 24] = count(1);
    let mut sealed = body.concat();
    let tag = cipher.seal(&nonce, &aad.concat(), &mut sealed);
    let sealed = [&nonce[..], &sealed, &tag].concat();
    let mut made = Vec::new();
    record.seal(&mut made, &head, &cipher, 0x0a0b, 0x0c0d, &Counting::from(1));
    let padding = vec![0; 512 - 24 - sealed.len()];
    let length = (sealed.len() as u32).to_le_bytes();
    all.push(structure(
        "journal record",
        made,
        &[b"KREC", &length, &generation, &sequence, &sealed, &padding],
    ));
    all.push(structure("associated data of a journal record", aad.concat(), &aad));
    all.push(structure("body of a journal record", body.concat(), &body));
    all.push(structure("patch", patch_fields.concat(), &patch_fields));
}
