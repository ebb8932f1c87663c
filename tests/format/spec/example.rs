//! The worked example of SPEC.md, computed from the inputs on the page.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use kithfs::crypto::xaes::Xaes;
use kithfs::crypto::{
    ChunkKeys, EpochKeys, FileKey, FolderKey, Hctr2, NamesKey, Random, RecordCipher, Suite,
    directory_key, directory_tag, file_key, long_directory_tag, moved_place, moved_record,
    root_tag,
};
use kithfs::format::header::{Header, HeaderContext, Hint, PublicHeader};
use kithfs::format::layout::Layout;
use kithfs::format::moved::{self, Moved};
use kithfs::format::name::{NameCipher, StoredName, long_path};
use kithfs::format::record::{RecordContext, RecordKind, link_text};
use kithfs::format::table::{HOLE, Hash, Segment, Table, segment_aad, table_hash};

use super::byhand::{expand, extract, labelled_hmac};
use super::page;

/// Returns these bytes, and must be exhausted at the end.
struct Exactly(std::sync::Mutex<Vec<u8>>);

impl Exactly {
    fn these(parts: &[&[u8]]) -> Self {
        Exactly(std::sync::Mutex::new(parts.concat()))
    }
}

impl Random for Exactly {
    fn fill(&self, buf: &mut [u8]) {
        let mut left = self.0.lock().unwrap();
        buf.copy_from_slice(&left.drain(..buf.len()).collect::<Vec<u8>>());
    }
}

struct Inputs(BTreeMap<String, String>);

impl Inputs {
    fn hex<const N: usize>(&self, name: &str) -> [u8; N] {
        let value = self.0.get(name).unwrap_or_else(|| panic!("the page lacks {name}"));
        hex::decode(value).unwrap().try_into().unwrap_or_else(|_| panic!("{name} has {N} bytes"))
    }

    fn text(&self, name: &str) -> &[u8] {
        self.0[name]
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
            .expect("in quotes")
            .as_bytes()
    }
}

fn public_header(epoch: &EpochKeys, small: Option<u16>, file_id: [u8; 32]) -> PublicHeader {
    let commitment = epoch.commitment[..8].try_into().unwrap();
    PublicHeader { suite: Suite::Aes256Gcm, small, epoch: 1, commitment, file_id }
}

/// Returns everything that the page shows, in its order.
fn compute(inputs: &Inputs) -> Vec<(&'static str, String)> {
    let suite = Suite::Aes256Gcm;
    let (folder, share): ([u8; 32], [u8; 32]) = (inputs.hex("folder key"), inputs.hex("share id"));
    let folder_key = FolderKey::from_bytes(folder);
    let epoch = EpochKeys::derive(&folder_key, &share, 1, suite);
    let directories = directory_key(&folder_key, &share);
    let root = root_tag(&directories, &share);
    let directory = directory_tag(&directories, &root, inputs.text("directory name"));
    let renamed = directory_tag(&directories, &root, inputs.text("new directory name"));

    let hctr2 = Hctr2::new(&epoch.names);
    let text = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
    let names = NameCipher::new(&hctr2, inputs.0["longest stored name"].parse().unwrap());
    let stored_directory = names.encode(&root, inputs.text("directory name")).unwrap();
    let stored_short = names.encode(&directory, inputs.text("short name")).unwrap();
    let StoredName::Long { entry, hash, sealed: sealed_long } =
        names.encode(&directory, inputs.text("long name")).unwrap()
    else {
        panic!("not long")
    };
    let (group, long_file) = long_path(&hash);
    let long_path = [b"+long/", &group[..], b"/", &long_file].concat();
    let long_tag = long_directory_tag(&directories, &hash);

    let file_id = inputs.hex("file id");
    let file = file_key(&epoch.content, &file_id);
    let layout = Layout::new(14, false).unwrap();
    let cipher = RecordCipher::new(suite, epoch.headers.expose());
    let context = HeaderContext { share: &share, layout, cipher: &cipher };
    let hint = Hint { tag: directory, name: inputs.text("short name").to_vec() };
    let data = inputs.text("small file");
    let public = public_header(&epoch, Some(data.len() as u16), file_id);
    let small = Header {
        public,
        size: data.len() as u64,
        version: 1,
        root: HOLE,
        oldest_epoch: 1,
        hint: hint.clone(),
    };
    let small =
        small.seal(&context, data, None, &Exactly::these(&[&inputs.hex::<24>("small file nonce")]));

    let size: usize = inputs.0["large file size"].parse().unwrap();
    let plain: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
    let salt: [u8; 16] = inputs.hex("salt");
    let key = ChunkKeys::new(suite, &file).derive(&salt);
    let mut table = Table::empty(&layout, salt, 1);
    let mut sealed: Vec<Vec<u8>> = plain.chunks(4096).map(<[u8]>::to_vec).collect();
    for (s, segment) in sealed.iter_mut().enumerate() {
        let nonce = inputs.hex(&format!("nonce of segment {s}"));
        let len = segment.len() as u16;
        let tag =
            key.seal(&nonce, &segment_aad(&share, &file_id, 0, s as u32, len, 1, suite), segment);
        table.segments[s] = Segment { nonce, tag, len };
        table.seals += 1;
    }
    let used = table.encode(&layout);
    let table_root: Hash = table_hash(&used);
    let public = public_header(&epoch, None, file_id);
    let large =
        Header { public, size: size as u64, version: 1, root: table_root, oldest_epoch: 1, hint };
    let large_header =
        large.seal(&context, &[], None, &Exactly::these(&[&inputs.hex::<24>("large file nonce")]));
    let mut large_file = vec![0; layout.cipher_len(size as u64) as usize];
    large_file[..512].copy_from_slice(&large_header);
    large_file[4096..4096 + used.len()].copy_from_slice(&used);
    for (s, segment) in sealed.iter().enumerate() {
        let at = layout.segment_offset(0, s) as usize;
        large_file[at..at + segment.len()].copy_from_slice(segment);
    }

    let records = RecordCipher::new(suite, epoch.records.expose());
    let record_context =
        RecordContext { share: &share, suite, signed: false, epoch: 1, cipher: &records };
    let random = Exactly::these(&[
        &inputs.hex::<16>("link record id"),
        &inputs.hex::<24>("link record nonce"),
    ]);
    let link =
        record_context.seal(RecordKind::Symlink, b"", inputs.text("link target"), None, &random);

    let evidence = Moved { from: directory, to: renamed };
    let (id, nonce) = moved_record(&epoch.records, &directory, &renamed, b"");
    let random = Exactly::these(&[&id, &nonce]);
    let evidence_record =
        record_context.seal(RecordKind::Moved, b"", &evidence.encode(), None, &random);
    let evidence_place = moved_place(&epoch.names, &renamed);
    let evidence_path = [
        b"+moved/",
        &moved::place_name(&evidence_place)[..],
        b"/",
        &moved::file_name(&evidence_record),
    ]
    .concat();

    // Also by hand, for the encodings of section 3.
    let secret = extract(&share, &folder);
    let by_epoch = |purpose: &str| expand(&secret, purpose, &[&[1, 0, 0, 0], &[1]]);
    assert_eq!(by_epoch("names"), *epoch.names.expose());
    assert_eq!(by_epoch("content"), *epoch.content.expose());
    assert_eq!(by_epoch("headers"), *epoch.headers.expose());
    assert_eq!(by_epoch("records"), *epoch.records.expose());
    assert_eq!(by_epoch("history"), *epoch.history.expose());
    assert_eq!(by_epoch("commitment"), epoch.commitment);
    let directories_by_hand = expand(&secret, "directories", &[]);
    assert_eq!(directories_by_hand, *directories.expose());
    let tag_by_hand = |purpose: &str, parts: &[&[u8]]| -> [u8; 8] {
        *labelled_hmac(&directories_by_hand, purpose, parts).first_chunk().unwrap()
    };
    assert_eq!(tag_by_hand("root tag", &[&share]), root);
    assert_eq!(tag_by_hand("tag", &[&root, inputs.text("directory name")]), directory);
    assert_eq!(tag_by_hand("tag", &[&root, inputs.text("new directory name")]), renamed);
    assert_eq!(tag_by_hand("long tag", &[&hash]), long_tag);
    assert_eq!(expand(epoch.content.expose(), "file", &[&file_id]), *file.expose());
    let names_again = Hctr2::new(&NamesKey::from_bytes(by_epoch("names")));
    let letters = |bytes: &[u8]| {
        STANDARD_NO_PAD.encode(bytes).replace('+', ",").replace('/', "@").into_bytes()
    };
    let seal = |name: &[u8]| {
        let mut padded = [&directory[..], name, &[0; 8]].concat();
        names_again.encrypt(&names_again.tweak(b""), &mut padded).unwrap();
        padded
    };
    assert_eq!(letters(&seal(inputs.text("short name"))), stored_short.entry());
    assert_eq!(seal(inputs.text("long name")), sealed_long);
    assert_eq!(*blake3::hash(&sealed_long).as_bytes(), hash);
    assert_eq!([b"=", &letters(&hash)[..]].concat(), entry);
    let place = letters(&expand(epoch.names.expose(), "moved", &[&renamed]));
    let evidence_file = letters(blake3::hash(&evidence_record).as_bytes());
    assert_eq!([b"+moved/", &place[..], b"/", &evidence_file].concat(), evidence_path);
    for (purpose, is) in
        [(&b"id"[..], &evidence_record[8..24]), (b"nonce", &evidence_record[24..48])]
    {
        let parts: [&[u8]; 4] = [purpose, &directory, &renamed, b""];
        let made = expand(epoch.records.expose(), "moved record", &parts);
        assert_eq!(made[..is.len()], *is);
    }
    assert_eq!(
        ChunkKeys::new(suite, &FileKey::from_bytes(*file.expose())).derive(&salt).seal(
            &[0; 12],
            b"",
            &mut []
        ),
        key.seal(&[0; 12], b"", &mut [])
    );
    assert_eq!(*blake3::hash(&[b"kithfs1\0", &used[..]].concat()).as_bytes(), table_root);

    vec![
        ("secret of the epoch", hex::encode(*secret)),
        ("names key", hex::encode(epoch.names.expose())),
        ("content key", hex::encode(epoch.content.expose())),
        ("header key", hex::encode(epoch.headers.expose())),
        ("records key", hex::encode(epoch.records.expose())),
        ("history key", hex::encode(epoch.history.expose())),
        ("commitment", hex::encode(epoch.commitment)),
        ("directory key", hex::encode(directories.expose())),
        ("tag of the root", hex::encode(root)),
        ("tag of the directory", hex::encode(directory)),
        ("stored directory name in the root", format!("{:?}", text(stored_directory.entry()))),
        ("stored short name in the directory", format!("{:?}", text(stored_short.entry()))),
        ("hash of the sealed long name", hex::encode(hash)),
        ("stored long name", format!("{:?}", text(&entry))),
        ("path of the sealed long name", format!("{:?}", text(&long_path))),
        ("sealed long name", hex::encode(&sealed_long)),
        ("tag of a directory with the long name", hex::encode(long_tag)),
        ("tag of the directory under its new name", hex::encode(renamed)),
        ("path of the evidence", format!("{:?}", text(&evidence_path))),
        ("evidence", hex::encode(&evidence_record)),
        ("file key", hex::encode(file.expose())),
        ("small file, sealed", hex::encode(&small)),
        (
            "sub-key of the chunk",
            hex::encode(*Xaes::new(file.expose()).derive(salt.first_chunk().unwrap())),
        ),
        ("first 32 bytes of segment 0, sealed", hex::encode(&sealed[0][..32])),
        ("tag of segment 0", hex::encode(table.segments[0].tag)),
        ("blake3 of segment 0, sealed", blake3::hash(&sealed[0]).to_hex().to_string()),
        ("tag of segment 1", hex::encode(table.segments[1].tag)),
        ("blake3 of segment 1, sealed", blake3::hash(&sealed[1]).to_hex().to_string()),
        ("chunk table", hex::encode(&used)),
        ("hash of the chunk table", hex::encode(table_root)),
        ("large file header", hex::encode(&large_header)),
        ("length of the large file, sealed", large_file.len().to_string()),
        ("blake3 of the large file, sealed", blake3::hash(&large_file).to_hex().to_string()),
        ("text of the link", format!("{:?}", text(&link_text(&link)))),
    ]
}

#[test]
fn the_worked_example_is_what_the_program_computes() {
    let page = page::example();
    let computed = compute(&Inputs(page.clone()));
    for (name, value) in &computed {
        assert_eq!(page.get(*name), Some(value), "{name}");
    }
    let inputs = 18;
    assert_eq!(page.len(), inputs + computed.len(), "values on the page that nothing computes");
}

/// Prints the values for the page: `cargo test --test format print_the_worked_example -- --ignored
/// --nocapture`.
#[test]
#[ignore = "prints what SPEC.md shows"]
fn print_the_worked_example() {
    for (name, value) in compute(&Inputs(page::example())) {
        if value.len() <= 96 {
            println!("{name} = {value}");
            continue;
        }
        println!("{name} = {}", &value[..64]);
        for line in value.as_bytes()[64..].chunks(64) {
            println!("    {}", std::str::from_utf8(line).unwrap());
        }
    }
}
