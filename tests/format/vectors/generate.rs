//! Makes the scenarios. It runs only on request; its results are then committed and never made
//! again.

use kithfs::crypto::{
    Argon2Params, ChunkKeys, FileKey, Hctr2, IdentitySeed, Label, NamesKey, RecordCipher, Suite,
    labels,
};
use kithfs::format::header::{Header, HeaderContext, Hint, PublicHeader};
use kithfs::format::identity::{
    IdentityRecord, PublicIdentity, SEALED_SEED_LEN, SlotKind, SlotRecord,
};
use kithfs::format::inventory::InventoryList;
use kithfs::format::journal::{JournalHead, JournalRecord, Patch};
use kithfs::format::junction::Junction;
use kithfs::format::layout::Layout;
use kithfs::format::manifest::{BlockRef, HistoryEntry, Manifest};
use kithfs::format::members::{self, Member, Role};
use kithfs::format::moved::Moved;
use kithfs::format::name::{NameCipher, StoredName};
use kithfs::format::record::{RecordContext, RecordKind, Xattrs, link_text};
use kithfs::format::share::ShareDescriptor;
use kithfs::format::signature::{Authorship, Sign};
use kithfs::format::slots::{self, SlotHeader};
use kithfs::format::table::{
    HOLE, IndexBlock, Segment, Table, index_hash, segment_aad, table_hash,
};
use kithfs::format::text;
use kithfs::roster::{Identity, IdentityFile, Invitation, NewSlot, Pin, Secret};
use zeroize::Zeroizing;

use super::read::read;
use super::scenario::Scenario;

use crate::support::counting::Counting;

const SHARE: [u8; 32] = [0x51; 32];
const AES: Suite = Suite::Aes256Gcm;
const CHACHA: Suite = Suite::ChaCha20Poly1305;

type Inputs = Vec<(&'static str, String)>;

/// Collects the scenarios of one structure.
struct Make {
    structure: &'static str,
    all: Vec<(&'static str, String, Scenario)>,
}

impl Make {
    fn of(structure: &'static str) -> Self {
        Make { structure, all: Vec::new() }
    }

    /// Adds a scenario that can be read. Its fields are those that the program reads; they are
    /// reviewed before they are committed.
    fn ok(&mut self, name: &str, comment: &str, inputs: &Inputs, bytes: &[u8]) {
        let mut scenario = self.scenario(comment, inputs, bytes, "ok");
        scenario.fields = read(self.structure, &scenario)
            .unwrap_or_else(|kind| panic!("{} {name}: {kind}", self.structure));
        self.all.push((self.structure, name.to_owned(), scenario));
    }

    /// Adds a scenario that must fail with the given kind.
    fn bad(&mut self, name: &str, kind: &str, comment: &str, inputs: &Inputs, bytes: &[u8]) {
        let scenario = self.scenario(comment, inputs, bytes, kind);
        self.all.push((self.structure, name.to_owned(), scenario));
    }

    fn scenario(&self, comment: &str, inputs: &Inputs, bytes: &[u8], expect: &str) -> Scenario {
        let inputs =
            inputs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Scenario {
            comment: comment.to_owned(),
            inputs,
            bytes: bytes.to_vec(),
            expect: expect.to_owned(),
            ..Scenario::default()
        }
    }

    /// Adds what every strict structure must refuse: cut, longer, another magic, version, suite.
    fn framing(&mut self, inputs: &Inputs, good: &[u8], suite_at: usize) {
        self.bad("cut", "truncated", "The last byte is missing.", inputs, &good[..good.len() - 1]);
        self.bad("empty", "truncated", "There is nothing.", inputs, &[]);
        self.bad("longer", "trailing", "One byte too many.", inputs, &[good, &[0]].concat());
        self.bad(
            "other-magic",
            "magic",
            "The first byte is changed.",
            inputs,
            &with(good, 0, good[0] ^ 1),
        );
        self.bad(
            "newer-version",
            "version",
            "A version that is not known.",
            inputs,
            &with(good, 8, 2),
        );
        self.bad(
            "unknown-suite",
            "suite",
            "A suite that is not known.",
            inputs,
            &with(good, suite_at, 3),
        );
    }
}

/// Returns `bytes` with another byte at `at`.
fn with(bytes: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    changed[at] = byte;
    changed
}

fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    with(bytes, at, bytes[at] ^ 0x10)
}

fn replaced(inputs: &Inputs, name: &str, value: impl ToString) -> Inputs {
    assert!(inputs.iter().any(|(n, _)| *n == name));
    inputs
        .iter()
        .map(|(n, v)| (*n, if *n == name { value.to_string() } else { v.clone() }))
        .collect()
}

fn count<const N: usize>(first: u8) -> [u8; N] {
    std::array::from_fn(|i| first.wrapping_add(i as u8))
}

/// Returns all scenarios: structure, name, scenario.
pub fn all() -> Vec<(&'static str, String, Scenario)> {
    let makers = [
        file_header,
        signed_file_header,
        chunk_table,
        index_block,
        segment,
        name,
        long_name,
        evidence,
        symlink,
        xattrs,
        journal_head,
        journal_record,
        identity_file,
        share_descriptor,
        invitation,
        manifest,
        slot_block,
        member_list,
        junction,
        inventory_list,
    ];
    makers.into_iter().flat_map(|make| make().all).collect()
}

fn file_header() -> Make {
    let mut make = Make::of("file-header");
    let key = [7u8; 32];
    let layout = Layout::new(18, false).unwrap();
    let inputs = |suite: Suite| -> Inputs {
        vec![
            ("suite", suite.as_byte().to_string()),
            ("chunk-log2", "18".into()),
            ("share", hex::encode(SHARE)),
            ("header-key", hex::encode(key)),
        ]
    };
    let seal = |suite: Suite, size: u64, data: Option<&[u8]>, root: [u8; 32], name: &[u8]| {
        let cipher = RecordCipher::new(suite, &key);
        let small = data.map(|d| d.len() as u16);
        let public =
            PublicHeader { suite, small, epoch: 2, commitment: count(0x60), file_id: count(0x70) };
        let hint = Hint { tag: count(0x90), name: name.to_vec() };
        let header = Header { public, size, version: 5, root, oldest_epoch: 1, hint };
        let context = HeaderContext { share: &SHARE, layout, cipher: &cipher };
        header.seal(&context, data.unwrap_or_default(), None, &Counting::from(1))
    };
    let full: Vec<u8> = (0..4096u32).map(|i| (i % 251) as u8).collect();
    let (small, aes) = (seal(AES, 9, Some(b"some data"), HOLE, b"letter.txt"), inputs(AES));
    make.ok("small", "A small file: nine bytes, sealed with the header.", &aes, &small);
    make.ok(
        "small-chacha",
        "The same with the other suite.",
        &inputs(CHACHA),
        &seal(CHACHA, 9, Some(b"some data"), HOLE, b"letter.txt"),
    );
    make.ok(
        "small-empty",
        "An empty file has a header.",
        &aes,
        &seal(AES, 0, Some(b""), HOLE, b"empty"),
    );
    make.ok(
        "small-full",
        "The largest small file.",
        &aes,
        &seal(AES, 4096, Some(&full), HOLE, b"full"),
    );
    make.ok(
        "large",
        "The header of a large file, of the longest name.",
        &aes,
        &seal(AES, 5000, None, [0xee; 32], &[b'n'; 255]),
    );
    make.ok(
        "large-chacha",
        "A file of 2^62 bytes that is one hole.",
        &inputs(CHACHA),
        &seal(CHACHA, 1 << 62, None, HOLE, b""),
    );
    make.ok(
        "small-residue",
        "Bytes behind the data are residue and no part of the file.",
        &aes,
        &[&small[..], b"residue"].concat(),
    );
    make.bad("empty", "truncated", "A ciphertext of no bytes was never committed.", &aes, &[]);
    make.bad(
        "cut-in-clear",
        "truncated",
        "Ends within the part that stands in clear.",
        &aes,
        &small[..95],
    );
    make.bad("cut-in-body", "truncated", "Ends within the body.", &aes, &small[..511]);
    make.bad("cut-in-data", "truncated", "Ends within the data.", &aes, &small[..small.len() - 1]);
    make.bad("other-magic", "magic", "The first byte is changed.", &aes, &flipped(&small, 0));
    make.bad("newer-version", "version", "A version that is not known.", &aes, &with(&small, 8, 2));
    make.bad("unknown-suite", "suite", "A suite that is not known.", &aes, &with(&small, 10, 3));
    make.bad("unknown-flag", "flags", "A flag that is not known.", &aes, &with(&small, 11, 2 | 4));
    make.bad(
        "signed",
        "flags",
        "A signed header in a share that is not signed.",
        &aes,
        &with(&small, 11, 2 | 1),
    );
    make.bad("unknown-type", "range", "A type that is not known.", &aes, &with(&small, 12, 2));
    make.bad(
        "other-chunk-size",
        "range",
        "The chunk size is not the share's.",
        &aes,
        &with(&small, 13, 17),
    );
    make.bad(
        "data-too-long",
        "range",
        "The length of small data is over 4096.",
        &aes,
        &with(&small, 15, 0x11),
    );
    make.bad(
        "large-with-data",
        "range",
        "A length of data in the large form.",
        &aes,
        &with(&small, 11, 0),
    );
    make.bad("reserved", "flags", "Reserved bytes are not zero.", &aes, &with(&small, 90, 1));
    for (name, at) in [
        ("epoch", 16),
        ("commitment", 20),
        ("file-id", 28),
        ("nonce", 60),
        ("tag", 96),
        ("body", 112),
        ("data", 512),
    ] {
        make.bad(
            &format!("flipped-{name}"),
            "unauthentic",
            "One bit is flipped.",
            &aes,
            &flipped(&small, at),
        );
    }
    make.bad(
        "shorter-data",
        "unauthentic",
        "The length of the data in clear is one less.",
        &aes,
        &with(&small, 14, 8),
    );
    make.bad(
        "other-share",
        "unauthentic",
        "Read in another share.",
        &replaced(&aes, "share", hex::encode([0x52; 32])),
        &small,
    );
    make.bad(
        "other-key",
        "unauthentic",
        "Read under another key.",
        &replaced(&aes, "header-key", hex::encode([8; 32])),
        &small,
    );
    make.bad(
        "size-not-the-data",
        "range",
        "The size is not the length of the data.",
        &aes,
        &seal(AES, 8, Some(b"some data"), HOLE, b""),
    );
    make.bad(
        "large-too-small",
        "range",
        "A large file of 4096 bytes.",
        &aes,
        &seal(AES, 4096, None, HOLE, b""),
    );
    make.bad(
        "large-too-large",
        "range",
        "A file of 2^62 + 1 bytes.",
        &aes,
        &seal(AES, (1 << 62) + 1, None, HOLE, b""),
    );
    make
}

/// Returns the author and the signer of signed structures in the vectors.
fn signers() -> (Identity, Identity) {
    (
        Identity::from_seed(IdentitySeed::from_bytes([3; 32])),
        Identity::from_seed(IdentitySeed::from_bytes(count(0x40))),
    )
}

fn signed_file_header() -> Make {
    let mut make = Make::of("file-header");
    let key = [7u8; 32];
    let layout = Layout::new(18, true).unwrap();
    let inputs = |suite: Suite| -> Inputs {
        vec![
            ("suite", suite.as_byte().to_string()),
            ("chunk-log2", "18".into()),
            ("share", hex::encode(SHARE)),
            ("header-key", hex::encode(key)),
            ("signed", "1".into()),
        ]
    };
    let (author, signer) = signers();
    let by = Authorship { author: author.public().sign, signer: signer.public().sign };
    let seal = |suite: Suite,
                size: u64,
                data: Option<&[u8]>,
                root: [u8; 32],
                by: Authorship,
                label: &Label| {
        let cipher = RecordCipher::new(suite, &key);
        let public = PublicHeader {
            suite,
            small: data.map(|d| d.len() as u16),
            epoch: 2,
            commitment: count(0x60),
            file_id: count(0x70),
        };
        let hint = Hint { tag: count(0x90), name: b"letter.txt".to_vec() };
        let header = Header { public, size, version: 5, root, oldest_epoch: 1, hint };
        let context = HeaderContext { share: &SHARE, layout, cipher: &cipher };
        let sign = |_: &Label, message: &[u8]| signer.sign(label, message);
        header.seal(
            &context,
            data.unwrap_or_default(),
            Some(Sign { by, sign: &sign }),
            &Counting::from(1),
        )
    };
    let (data, aes) = (Some(&b"some data"[..]), inputs(AES));
    let small = seal(AES, 9, data, HOLE, by, &labels::FILE_SIGNATURE);
    make.ok(
        "signed-small",
        "A small file of a signed share, sealed anew by another member than its author.",
        &aes,
        &small,
    );
    let chacha = seal(CHACHA, 9, data, HOLE, by, &labels::FILE_SIGNATURE);
    make.ok("signed-small-chacha", "The same with the other suite.", &inputs(CHACHA), &chacha);
    let large = seal(AES, 5000, None, [0xee; 32], by, &labels::FILE_SIGNATURE);
    make.ok("signed-large", "The header of a large file.", &aes, &large);
    let bad = "unauthentic";
    let unsigned: Inputs = aes.iter().filter(|(name, _)| *name != "signed").cloned().collect();
    make.bad(
        "signed-unsigned-flag",
        "flags",
        "The flag of signed shares is missing.",
        &aes,
        &with(&small, 11, 2),
    );
    make.bad(
        "signed-as-unsigned",
        "flags",
        "Read in a share that is not signed.",
        &unsigned,
        &small,
    );
    make.bad("signed-cut", "truncated", "Ends within the data.", &aes, &small[..small.len() - 1]);
    make.bad(
        "signed-flipped",
        bad,
        "One bit of the sealed part is flipped.",
        &aes,
        &flipped(&small, 120),
    );
    let other = Authorship { signer: by.author, ..by };
    make.bad(
        "signed-by-another",
        bad,
        "The signature is not that of the signer who is named.",
        &aes,
        &seal(AES, 9, data, HOLE, other, &labels::FILE_SIGNATURE),
    );
    make.bad(
        "signed-other-label",
        bad,
        "Signed as something else than a file.",
        &aes,
        &seal(AES, 9, data, HOLE, by, &labels::SYMLINK_SIGNATURE),
    );
    make
}

fn junction() -> Make {
    let mut make = Make::of("junction");
    let (author, signer) = signers();
    let (tag, hash) = (count::<8>(0x20), count::<32>(0xa0));
    let more = [("tag", hex::encode(tag)), ("hash", hex::encode(hash)), ("signed", "1".into())];
    let inputs = |suite| -> Inputs { [record_inputs(suite), more.to_vec()].concat() };
    let seal = |suite, by: Authorship, plain: &[u8]| {
        let cipher = RecordCipher::new(suite, &[9; 32]);
        let context =
            RecordContext { share: &SHARE, suite, signed: true, epoch: 2, cipher: &cipher };
        let sign = |label: &Label, message: &[u8]| signer.sign(label, message);
        context.seal(
            RecordKind::Junction,
            &[&tag[..], &hash].concat(),
            plain,
            Some(Sign { by, sign: &sign }),
            &Counting::from(1),
        )
    };
    let by = Authorship { author: author.public().sign, signer: signer.public().sign };
    let junction = |isolated, coming, name: &[u8]| {
        Junction { share: [0x77; 32], isolated, coming, name: name.to_vec() }.encode()
    };
    let plain = junction(false, false, b"projects");
    let (aes, good) = (inputs(AES), seal(AES, by, &plain));
    make.ok("aes", "A share that stands in the directory `projects`.", &aes, &good);
    make.ok("chacha", "The same with the other suite.", &inputs(CHACHA), &seal(CHACHA, by, &plain));
    make.ok(
        "isolated",
        "One that keeps the admins of its parent out.",
        &aes,
        &seal(AES, by, &junction(true, false, b"projects")),
    );
    make.ok(
        "coming",
        "One that is being made of a folder, of the longest name.",
        &aes,
        &seal(AES, by, &junction(false, true, &[b'n'; 255])),
    );
    make.bad("cut", "unauthentic", "The last byte is missing.", &aes, &good[..good.len() - 1]);
    make.bad(
        "unsigned",
        "flags",
        "The flag that it is signed is missing.",
        &aes,
        &with(&good, 2, 0),
    );
    make.bad(
        "flipped",
        "unauthentic",
        "One bit of the ciphertext is flipped.",
        &aes,
        &flipped(&good, 60),
    );
    make.bad(
        "other-directory",
        "unauthentic",
        "Moved to another directory.",
        &replaced(&aes, "tag", hex::encode([3; 8])),
        &good,
    );
    make.bad(
        "other-entry",
        "unauthentic",
        "Put beside another entry.",
        &replaced(&aes, "hash", hex::encode([3; 32])),
        &good,
    );
    make.bad(
        "other-share",
        "unauthentic",
        "Another parent.",
        &replaced(&aes, "share", hex::encode([0x52; 32])),
        &good,
    );
    let forged = Authorship { signer: by.author, ..by };
    make.bad(
        "signed-by-another",
        "unauthentic",
        "The signature is not that of the signer who is named.",
        &aes,
        &seal(AES, forged, &plain),
    );
    make.bad(
        "unknown-flag",
        "flags",
        "A flag inside that is not known.",
        &aes,
        &seal(AES, by, &with(&plain, 32, 4)),
    );
    make.bad("no-name", "range", "No name.", &aes, &seal(AES, by, &junction(false, false, b"")));
    make.bad(
        "slash",
        "range",
        "A name with a slash.",
        &aes,
        &seal(AES, by, &junction(false, false, b"a/b")),
    );
    make.bad(
        "shorter-inside",
        "truncated",
        "What is sealed is one byte short.",
        &aes,
        &seal(AES, by, &plain[..plain.len() - 1]),
    );
    make.bad(
        "longer-inside",
        "trailing",
        "What is sealed is one byte long.",
        &aes,
        &seal(AES, by, &[&plain[..], &[0]].concat()),
    );
    make
}

fn inventory_list() -> Make {
    let mut make = Make::of("inventory");
    let none = Vec::new();
    // Two pages and one hash, so that a node has no neighbour.
    let hashes = |n: u16| {
        (0..n)
            .map(|i| std::array::from_fn(|at| if at < 2 { i.to_be_bytes()[at] } else { 0x11 }))
            .collect()
    };
    let list = |n| InventoryList::new(hashes(n)).encode();
    make.ok("none", "Nothing is listed.", &none, &[]);
    make.ok("one", "One header.", &none, &list(1));
    make.ok(
        "three-pages",
        "257 headers: two pages, and one with a single hash.",
        &none,
        &list(257),
    );
    make.bad("cut", "truncated", "Part of a hash.", &none, &list(2)[..63]);
    make.bad("order", "order", "Hashes that do not ascend.", &none, &[[2u8; 32], [1; 32]].concat());
    make.bad("twice", "order", "One hash twice.", &none, &[[2u8; 32], [2; 32]].concat());
    make
}

fn chunk_table() -> Make {
    let mut make = Make::of("chunk-table");
    let layout = Layout::new(14, false).unwrap();
    let inputs = |suite: Suite, bytes: &[u8]| -> Inputs {
        vec![
            ("suite", suite.as_byte().to_string()),
            ("chunk-log2", "14".into()),
            ("hash", hex::encode(table_hash(bytes))),
        ]
    };
    let mut salt: [u8; 16] = count(1);
    let segment = Segment { nonce: count(0x10), tag: count(0x20), len: 4096 };
    let short = Segment { nonce: count(0x30), tag: count(0x40), len: 1 };
    let table = |salt| Table {
        salt,
        epoch: 3,
        seals: 7,
        segments: [segment, Segment::HOLE, short, Segment::HOLE].into(),
        hashes: [].into(),
    };
    let chacha = table(salt).encode(&layout);
    make.ok(
        "chacha",
        "Two segments and two holes; a salt of 16 bytes.",
        &inputs(CHACHA, &chacha),
        &chacha,
    );
    salt[12..].fill(0);
    let good = table(salt).encode(&layout);
    make.ok("aes", "Two segments and two holes; a salt of 12 bytes.", &inputs(AES, &good), &good);
    let bad = |make: &mut Make, name: &str, kind: &str, comment: &str, bytes: &[u8]| {
        make.bad(name, kind, &format!("{comment} The hash fits."), &inputs(AES, bytes), bytes);
    };
    bad(
        &mut make,
        "salt-of-the-other-suite",
        "range",
        "With AES the end of the salt is zero.",
        &chacha,
    );
    bad(&mut make, "reserved", "flags", "Reserved bytes are not zero.", &with(&good, 63, 1));
    bad(
        &mut make,
        "segment-too-long",
        "range",
        "A sealed length of 4097.",
        &with(&good, 64 + 28, 1),
    );
    bad(&mut make, "hole-with-nonce", "range", "A hole with a nonce.", &with(&good, 94, 1));
    bad(&mut make, "hole-with-tag", "range", "A hole with a tag.", &with(&good, 94 + 12, 1));
    bad(&mut make, "cut", "truncated", "The last byte is missing.", &good[..good.len() - 1]);
    bad(&mut make, "longer", "trailing", "One byte too many.", &[&good[..], &[0]].concat());
    make.bad(
        "flipped",
        "unauthentic",
        "One bit of a nonce is flipped.",
        &inputs(AES, &good),
        &flipped(&good, 64),
    );
    let as_index: [u8; 32] = *blake3::hash(&[b"kithfs1\x01", &good[..]].concat()).as_bytes();
    make.bad(
        "hash-of-level-1",
        "unauthentic",
        "The hash is one of an index block.",
        &replaced(&inputs(AES, &good), "hash", hex::encode(as_index)),
        &good,
    );
    make
}

fn index_block() -> Make {
    let mut make = Make::of("index-block");
    let mut block = IndexBlock::empty();
    block.0[0] = [1; 32];
    block.0[127] = count(9);
    let bytes = block.encode();
    let inputs = |level: u8| -> Inputs {
        let array: &[u8; 4096] = bytes[..].try_into().unwrap();
        vec![("level", level.to_string()), ("hash", hex::encode(index_hash(level, array)))]
    };
    make.ok("level-1", "Two children, 126 holes.", &inputs(1), &bytes);
    make.ok("level-2", "The same block one level higher has another hash.", &inputs(2), &bytes);
    make.bad(
        "other-level",
        "unauthentic",
        "The hash is that of the level below.",
        &replaced(&inputs(1), "level", 2),
        &bytes,
    );
    make.bad("flipped", "unauthentic", "One bit is flipped.", &inputs(1), &flipped(&bytes, 4095));
    make.bad(
        "swapped-children",
        "unauthentic",
        "Two children have changed places.",
        &inputs(1),
        &[&bytes[32..], &bytes[..32]].concat(),
    );
    make.bad("cut", "truncated", "The last byte is missing.", &inputs(1), &bytes[..4095]);
    make
}

fn segment() -> Make {
    let mut make = Make::of("segment");
    for (suite, name) in [(AES, "aes"), (CHACHA, "chacha")] {
        let mut salt: [u8; 16] = count(1);
        if suite == AES {
            salt[12..].fill(0);
        }
        let (file_key, file_id, nonce): ([u8; 32], [u8; 32], [u8; 12]) =
            ([3; 32], [4; 32], count(0x20));
        let mut sealed = b"a short segment at the end of a file".to_vec();
        let aad = segment_aad(&SHARE, &file_id, 9, 2, sealed.len() as u16, 1, suite);
        let tag = ChunkKeys::new(suite, &FileKey::from_bytes(file_key)).derive(&salt).seal(
            &nonce,
            &aad,
            &mut sealed,
        );
        let inputs: Inputs = vec![
            ("suite", suite.as_byte().to_string()),
            ("share", hex::encode(SHARE)),
            ("file-key", hex::encode(file_key)),
            ("file-id", hex::encode(file_id)),
            ("salt", hex::encode(salt)),
            ("nonce", hex::encode(nonce)),
            ("tag", hex::encode(tag)),
            ("chunk", "9".into()),
            ("segment", "2".into()),
            ("epoch", "1".into()),
        ];
        make.ok(name, "A segment with its associated data.", &inputs, &sealed);
        let bad = |make: &mut Make, what: &str, inputs: &Inputs| {
            make.bad(
                &format!("{name}-other-{what}"),
                "unauthentic",
                &format!("Another {what}."),
                inputs,
                &sealed,
            );
        };
        bad(&mut make, "chunk", &replaced(&inputs, "chunk", 8));
        bad(&mut make, "segment", &replaced(&inputs, "segment", 3));
        bad(&mut make, "epoch", &replaced(&inputs, "epoch", 2));
        bad(&mut make, "file", &replaced(&inputs, "file-id", hex::encode([5; 32])));
        bad(&mut make, "share", &replaced(&inputs, "share", hex::encode([5; 32])));
        bad(&mut make, "salt", &replaced(&inputs, "salt", hex::encode(flipped(&salt, 0))));
        bad(&mut make, "nonce", &replaced(&inputs, "nonce", hex::encode(flipped(&nonce, 11))));
        bad(&mut make, "tag", &replaced(&inputs, "tag", hex::encode(flipped(&tag, 15))));
        make.bad(
            &format!("{name}-cut"),
            "unauthentic",
            "The last byte is missing.",
            &inputs,
            &sealed[..sealed.len() - 1],
        );
        make.bad(
            &format!("{name}-zeros"),
            "unauthentic",
            "The ciphertext is zero.",
            &inputs,
            &vec![0; sealed.len()],
        );
    }
    make
}

/// Calls `act` with the inputs of names and their cipher.
fn with_names(act: impl FnOnce(Inputs, &Hctr2, &NameCipher)) {
    let key = [1u8; 32];
    let inputs: Inputs = vec![("names-key", hex::encode(key)), ("longest", "152".into())];
    let hctr2 = Hctr2::new(&NamesKey::from_bytes(key));
    act(inputs, &hctr2, &NameCipher::new(&hctr2, 152));
}

const TAG: [u8; 8] = [0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27];

fn name() -> Make {
    let mut make = Make::of("name");
    with_names(|inputs, hctr2, names| {
        good_names(&mut make, &inputs, names);
        copies(&mut make, &inputs, names);
        foreign_names(&mut make, &inputs, hctr2, names);
    });
    make
}

fn good_names(make: &mut Make, inputs: &Inputs, names: &NameCipher) {
    let stored = |plain: &[u8]| names.encode(&TAG, plain).unwrap().entry().to_vec();
    make.ok("short", "A name.", inputs, &stored(b"letter.txt"));
    make.ok("one-byte", "The shortest name.", inputs, &stored(b"x"));
    make.ok("eight-bytes", "The longest name in 24 bytes.", inputs, &stored(b"12345678"));
    make.ok("nine-bytes", "The shortest in more than 24 bytes.", inputs, &stored(b"123456789"));
    make.ok("longest-short", "98 bytes, which are 152 letters.", inputs, &stored(&[b'n'; 98]));
    make.ok("not-utf-8", "Names are bytes.", inputs, &stored(b"\xff\xfe\x80 \n"));
    make.ok(
        "looks-like-a-conflict",
        "A name with a conflict suffix of its own.",
        inputs,
        &stored(b"letter (2).txt (2)"),
    );
    let other = names.encode(&[0; 8], b"letter.txt").unwrap().entry().to_vec();
    make.ok("other-tag", "The same name, created in another directory.", inputs, &other);
    make.ok("long", "99 bytes: a hash is stored for the name.", inputs, &stored(&[b'n'; 99]));
    make.ok("long-255", "255 bytes.", inputs, &stored(&[b'n'; 255]));
    let hctr2 = Hctr2::new(&NamesKey::from_bytes([1; 32]));
    let wide = NameCipher::new(&hctr2, 200).encode(&TAG, &[b'n'; 134]).unwrap();
    let inputs_of_200 = replaced(inputs, "longest", "200");
    make.ok("longest-of-all", "134 bytes where L is 200.", &inputs_of_200, wide.entry());
    make.ok("control", "A control file.", inputs, b"+share");
    make.ok("control-hidden", "A name with another first byte is one too.", inputs, b".stfolder");
    make.ok("control-server", "So is one of the listed names, in any case.", inputs, b"thumbs.DB");
    make.ok("control-hyphen", "So is one with a hyphen, which is no letter.", inputs, b"-AAAA");
}

/// Adds names with suffixes that sync tools append.
fn copies(make: &mut Make, inputs: &Inputs, names: &NameCipher) {
    let letter = names.encode(&TAG, b"letter.txt").unwrap().entry().to_vec();
    let long = names.encode(&TAG, &[b'n'; 99]).unwrap().entry().to_vec();
    for (name, comment, suffix) in [
        ("dropbox", "Dropbox.", " (Ann's conflicted copy 2026-01-02)"),
        ("nextcloud", "Nextcloud.", " (conflicted copy 2026-01-02 101112)"),
        ("syncthing", "Syncthing.", ".sync-conflict-20260102-101112-ABCDEFG"),
        ("owncloud", "ownCloud.", "_conflict-20260102-101112"),
        ("onedrive", "OneDrive: the name of a machine.", "-DESKTOP-1AB2"),
        ("resilio", "Resilio.", ".Conflict"),
        ("unison", "Unison.", " (conflict 1 on 2026-01-02)"),
        ("copy", "Google Drive and file managers.", " (2)"),
        ("twice", "A copy of a copy has one suffix.", " (2).sync-conflict-1"),
        ("machine-too-long", "No name of a machine: 16 characters.", "-ABCDEFGHIJKLMNOP"),
        ("digits", "No name of a machine: no letter.", "-2026"),
        ("unknown", "A suffix in no known form.", "~"),
        ("empty-parentheses", "A suffix in no known form.", " ()"),
        ("as-shown", "A suffix that looks as others are shown.", " (conflict copy ~)"),
    ] {
        let copy = [&letter[..], suffix.as_bytes()].concat();
        make.ok(&format!("conflict-{name}"), comment, inputs, &copy);
    }
    let copy = [&long[..], b" (conflicted copy)"].concat();
    make.ok("conflict-long", "A conflict copy of a long name.", inputs, &copy);
}

fn foreign_names(make: &mut Make, inputs: &Inputs, hctr2: &Hctr2, names: &NameCipher) {
    let letter = names.encode(&TAG, b"letter.txt").unwrap().entry().to_vec();
    let long = names.encode(&TAG, &[b'n'; 99]).unwrap().entry().to_vec();
    let seal = |plain: &[u8], zeros: usize| {
        let mut buf = [&TAG, plain, &vec![0; zeros]].concat();
        hctr2.encrypt(&hctr2.tweak(b""), &mut buf).unwrap();
        text::encode(&buf)
    };
    let mut foreign = |name: &str, comment: &str, stored: &[u8]| {
        make.bad(name, "foreign", comment, inputs, stored)
    };
    for at in [0, 10, letter.len() - 1] {
        let other = if letter[at] == b'A' { b'B' } else { b'A' };
        let changed = with(&letter, at, other);
        foreign(&format!("changed-{at}"), "One letter is another one.", &changed);
    }
    foreign("cut", "The last letter is missing.", &letter[..letter.len() - 1]);
    foreign("longer", "One letter too many.", &[&letter[..], b"A"].concat());
    foreign("short", "Fewer than 24 bytes.", &[b'A'; 31]);
    foreign("seven-zeros", "Seven zero bytes behind the name.", &seal(b"1234567890", 7));
    foreign("nine-zeros", "Nine zero bytes where eight are enough.", &seal(b"123456789", 9));
    foreign("nothing-but-zeros", "A name of no bytes.", &seal(b"", 16));
    foreign("dot-dot", "A name that none can have.", &seal(b"..", 14));
    foreign("slash", "A name with a slash.", &seal(b"a/b", 13));
    foreign("nul", "A name with a zero byte inside.", &seal(b"a\0b", 13));
    foreign("too-long", "A name of 256 bytes cannot be sealed.", &seal(&[b'n'; 256], 8));
    foreign("above-the-limit", "99 bytes as a short name.", &seal(&[b'n'; 99], 8));
    foreign("base64url", "A letter of base64url.", &with_letter_of_url(names));
    foreign(
        "conflict-of-nothing",
        "A suffix behind what is no name.",
        b"AAAAAAAAAAAAAAAAAAAAAA (2)",
    );
    foreign("long-cut", "A hash that is too short.", &long[..long.len() - 1]);
    foreign("long-second-spelling", "Bits behind the hash that are not zero.", &{
        let last = long.len() - 1;
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789,@";
        let value = alphabet.iter().position(|c| *c == long[last]).unwrap();
        with(&long, last, alphabet[value ^ 1])
    });
    let elsewhere = replaced(inputs, "names-key", hex::encode([9; 32]));
    make.bad("other-key", "foreign", "Under another key.", &elsewhere, &letter);
    let narrow = replaced(inputs, "longest", "64");
    let stored = names.encode(&TAG, &[b'n'; 40]).unwrap();
    make.bad("other-limit", "foreign", "Longer than L, which is 64.", &narrow, stored.entry());
}

/// Returns a stored name in which the letter `@` is replaced by `_`, as base64url would spell it.
fn with_letter_of_url(names: &NameCipher) -> Vec<u8> {
    let stored = (0..).map(|n: u32| {
        let name = format!("letter {n}");
        names.encode(&TAG, name.as_bytes()).unwrap().entry().to_vec()
    });
    let mut with_one = stored.filter(|stored| stored[1..].contains(&b'@'));
    let stored = with_one.next().expect("one of them has the letter");
    stored.iter().map(|b| if *b == b'@' { b'_' } else { *b }).collect()
}

/// The file with the sealed name of a long-named entry.
fn long_name() -> Make {
    let mut make = Make::of("long-name");
    with_names(|inputs, hctr2, names| {
        let of = |sealed: &[u8]| -> Inputs {
            let hash = hex::encode(blake3::hash(sealed).as_bytes());
            [inputs.clone(), vec![("hash", hash)]].concat()
        };
        let seal = |plain: &[u8], zeros: usize| {
            let mut buf = [&TAG, plain, &vec![0; zeros]].concat();
            hctr2.encrypt(&hctr2.tweak(b""), &mut buf).unwrap();
            buf
        };
        for (name, len) in [("shortest", 99), ("longest", 255)] {
            let Some(StoredName::Long { sealed, hash, .. }) = names.encode(&TAG, &vec![b'n'; len])
            else {
                panic!("not long")
            };
            assert_eq!(
                (*blake3::hash(&sealed).as_bytes(), &sealed),
                (hash, &seal(&vec![b'n'; len], 8))
            );
            make.ok(name, &format!("The sealed name of {len} bytes."), &of(&sealed), &sealed);
        }
        let good = seal(&[b'n'; 99], 8);
        let (known, bad) = (of(&good), "unauthentic");
        make.bad("empty", bad, "There is nothing.", &known, &[]);
        make.bad("cut", bad, "The last byte is missing.", &known, &good[..good.len() - 1]);
        make.bad("longer", bad, "One byte too many.", &known, &[&good[..], &[0]].concat());
        make.bad("flipped", bad, "One bit is flipped.", &known, &flipped(&good, 20));
        let short = seal(&[b'n'; 98], 8);
        make.bad("has-room", bad, "A name that has room in its entry.", &of(&short), &short);
        let nine = seal(&[b'n'; 99], 9);
        make.bad("nine-zeros", bad, "Nine zero bytes behind the name.", &of(&nine), &nine);
        let long = seal(&[b'n'; 256], 8);
        make.bad("too-long", bad, "A name of 256 bytes.", &of(&long), &long);
        let other = replaced(&known, "names-key", hex::encode([9; 32]));
        make.bad("other-key", bad, "Under another key.", &other, &good);
    });
    make
}

/// Inputs of the sealed records.
fn record_inputs(suite: Suite) -> Inputs {
    vec![
        ("suite", suite.as_byte().to_string()),
        ("share", hex::encode(SHARE)),
        ("records-key", hex::encode([9; 32])),
        ("epoch", "2".into()),
    ]
}

fn seal_record(suite: Suite, kind: RecordKind, bound: &[u8], plain: &[u8]) -> Vec<u8> {
    let cipher = RecordCipher::new(suite, &[9; 32]);
    RecordContext { share: &SHARE, suite, signed: false, epoch: 2, cipher: &cipher }.seal(
        kind,
        bound,
        plain,
        None,
        &Counting::from(1),
    )
}

/// Adds what every sealed record must refuse.
fn record_failures(make: &mut Make, inputs: &Inputs, good: &[u8]) {
    make.bad("empty", "truncated", "There is nothing.", inputs, &[]);
    make.bad(
        "cut-in-clear",
        "truncated",
        "Ends within the part that stands in clear.",
        inputs,
        &good[..23],
    );
    make.bad("cut", "unauthentic", "The last byte is missing.", inputs, &good[..good.len() - 1]);
    make.bad("longer", "unauthentic", "One byte too many.", inputs, &[good, &[0]].concat());
    make.bad("newer-version", "version", "A version that is not known.", inputs, &with(good, 0, 2));
    make.bad("unknown-suite", "suite", "A suite that is not known.", inputs, &with(good, 1, 3));
    make.bad(
        "signed",
        "flags",
        "The flag that is reserved for signed shares.",
        inputs,
        &with(good, 2, 1),
    );
    make.bad("reserved", "flags", "The reserved byte is not zero.", inputs, &with(good, 3, 1));
    make.bad(
        "flipped-id",
        "unauthentic",
        "One bit of the id is flipped.",
        inputs,
        &flipped(good, 8),
    );
    make.bad(
        "flipped-nonce",
        "unauthentic",
        "One bit of the nonce is flipped.",
        inputs,
        &flipped(good, 24),
    );
    make.bad(
        "flipped-ciphertext",
        "unauthentic",
        "One bit of the ciphertext is flipped.",
        inputs,
        &flipped(good, 48),
    );
    make.bad(
        "flipped-tag",
        "unauthentic",
        "One bit of the tag is flipped.",
        inputs,
        &flipped(good, good.len() - 1),
    );
    make.bad("other-epoch", "unauthentic", "Another epoch.", inputs, &with(good, 4, 3));
    make.bad(
        "other-share",
        "unauthentic",
        "Another share.",
        &replaced(inputs, "share", hex::encode([0x52; 32])),
        good,
    );
    make.bad(
        "other-key",
        "unauthentic",
        "Another key.",
        &replaced(inputs, "records-key", hex::encode([8; 32])),
        good,
    );
}

/// A sealed record: its kind, what it is bound to, its contents.
type Sealed<'a> = (RecordKind, &'a [u8], &'a [u8]);

/// Returns a record of a signed share that claims to be `by`'s, with the signature that the second
/// signer makes for `signed`.
fn borrowed(sealed: Sealed<'_>, signed: Sealed<'_>, by: Authorship) -> Vec<u8> {
    let cipher = RecordCipher::new(AES, &[9; 32]);
    let context =
        RecordContext { share: &SHARE, suite: AES, signed: true, epoch: 2, cipher: &cipher };
    let seal = |(kind, bound, plain): Sealed<'_>, sign: &dyn Fn(&Label, &[u8]) -> [u8; 64]| {
        context.seal(kind, bound, plain, Some(Sign { by, sign }), &Counting::from(1))
    };
    let signature = std::cell::Cell::new([0; 64]);
    seal(signed, &|label, message| {
        signature.set(signers().1.sign(label, message));
        signature.get()
    });
    seal(sealed, &|_, _| signature.get())
}

/// Adds a record in a signed share, and signatures that were made for something else.
fn signed_records(
    make: &mut Make,
    inputs: &Inputs,
    good: Sealed<'_>,
    others: &[(&str, &str, Sealed<'_>)],
    text: fn(&[u8]) -> Vec<u8>,
) {
    let inputs: Inputs = [inputs.clone(), vec![("signed", "1".into())]].concat();
    let (author, signer) = signers();
    let by = Authorship { author: author.public().sign, signer: signer.public().sign };
    let record = borrowed(good, good, by);
    make.ok(
        "signed-share",
        "In a signed share, sealed anew by somebody else for its author.",
        &inputs,
        &text(&record),
    );
    make.bad(
        "signed-share-unsigned",
        "flags",
        "The flag that it is signed is missing.",
        &inputs,
        &text(&with(&record, 2, 0)),
    );
    for (what, forged) in [
        ("author", Authorship { author: by.signer, ..by }),
        ("signer", Authorship { signer: by.author, ..by }),
    ] {
        let cipher = RecordCipher::new(AES, &[9; 32]);
        let context =
            RecordContext { share: &SHARE, suite: AES, signed: true, epoch: 2, cipher: &cipher };
        let signature = record_signature(&cipher, good, &record);
        let sealed = context.seal(
            good.0,
            good.1,
            good.2,
            Some(Sign { by: forged, sign: &|_, _| signature }),
            &Counting::from(1),
        );
        make.bad(
            &format!("signed-share-other-{what}"),
            "unauthentic",
            &format!("Another {what} is named."),
            &inputs,
            &text(&sealed),
        );
    }
    for (name, comment, other) in others {
        make.bad(name, "unauthentic", comment, &inputs, &text(&borrowed(good, *other, by)));
    }
}

/// The signature in a record.
fn record_signature(
    cipher: &RecordCipher,
    (kind, bound, _): Sealed<'_>,
    record: &[u8],
) -> [u8; 64] {
    let word = match kind {
        RecordKind::Symlink => b"KSYM",
        RecordKind::Moved => b"KMOV",
        _ => panic!("not asked for"),
    };
    let plain = cipher
        .open_record(&[word, &SHARE[..], &record[..24], bound].concat(), &record[24..])
        .unwrap();
    *plain.last_chunk().unwrap()
}

fn evidence() -> Make {
    let mut make = Make::of("evidence");
    let inputs = |suite| -> Inputs {
        [record_inputs(suite), vec![("names-key", hex::encode([1; 32]))]].concat()
    };
    let moved = Moved { from: TAG, to: count(0x30) };
    let plain = moved.encode();
    let seal = |suite, plain: &[u8]| seal_record(suite, RecordKind::Moved, b"", plain);
    for (suite, name) in [(AES, "aes"), (CHACHA, "chacha")] {
        let record = seal(suite, &plain);
        make.ok(name, "A directory was renamed.", &inputs(suite), &record);
    }
    let (aes, good) = (inputs(AES), seal(AES, &plain));
    record_failures(&mut make, &aes, &good);
    make.bad(
        "other-kind",
        "unauthentic",
        "A record of another kind.",
        &aes,
        &seal_record(AES, RecordKind::Symlink, b"", &plain),
    );
    make.bad("shorter-inside", "truncated", "One byte short.", &aes, &seal(AES, &plain[..15]));
    let longer = seal(AES, &[&plain[..], &[0]].concat());
    make.bad("longer-inside", "trailing", "One byte long.", &aes, &longer);
    let elsewhere = with(&plain, 8, 9);
    let others = [
        (
            "signed-share-other-to",
            "The signature is over another directory.",
            (RecordKind::Moved, &b""[..], &elsewhere[..]),
        ),
        (
            "signed-share-other-kind",
            "The signature is that of a link.",
            (RecordKind::Symlink, b"", &plain),
        ),
    ];
    signed_records(&mut make, &aes, (RecordKind::Moved, b"", &plain), &others, <[u8]>::to_vec);
    make
}

fn symlink() -> Make {
    let mut make = Make::of("symlink");
    let text = |suite, bound: &[u8], plain: &[u8]| {
        link_text(&seal_record(suite, RecordKind::Symlink, bound, plain))
    };
    for (suite, name) in [(AES, "aes"), (CHACHA, "chacha")] {
        make.ok(name, "A link.", &record_inputs(suite), &text(suite, b"", b"../elsewhere"));
    }
    let inputs = record_inputs(AES);
    make.ok("longest-inline", "A target of 3005 bytes.", &inputs, &text(AES, b"", &[b't'; 3005]));
    let reference = [&b"+"[..], &text(AES, b"+", &count::<16>(0x80))].concat();
    make.ok(
        "overflow",
        "The text of a link whose target stands in a control file.",
        &inputs,
        &reference,
    );
    let long = seal_record(AES, RecordKind::LongSymlink, &count::<16>(0x80), &[b't'; 4095]);
    let with_reference: Inputs =
        [inputs.clone(), vec![("reference", hex::encode(count::<16>(0x80)))]].concat();
    make.ok(
        "overflow-target",
        "That control file, with the longest target.",
        &with_reference,
        &long,
    );
    let swapped = replaced(&with_reference, "reference", hex::encode(count::<16>(0x81)));
    make.bad(
        "overflow-swapped",
        "unauthentic",
        "The control file of another link.",
        &swapped,
        &long,
    );
    make.bad(
        "overflow-as-target",
        "unauthentic",
        "A reference is no target.",
        &inputs,
        &reference[1..],
    );
    let good = text(AES, b"", b"../elsewhere");
    make.bad(
        "target-as-overflow",
        "unauthentic",
        "A target is no reference.",
        &inputs,
        &[&b"+"[..], &good].concat(),
    );
    make.bad(
        "not-base64url",
        "encoding",
        "A character outside of base64url.",
        &inputs,
        &with(&good, 3, b'/'),
    );
    let short = seal_record(AES, RecordKind::Symlink, b"", b"../elsewhere");
    make.bad(
        "cut",
        "unauthentic",
        "The last byte of the record is missing.",
        &inputs,
        &link_text(&short[..short.len() - 1]),
    );
    make.bad(
        "cut-text",
        "encoding",
        "Base64url with bits left over.",
        &inputs,
        &good[..good.len() - 4],
    );
    make.bad("empty", "truncated", "A link without text.", &inputs, b"");
    make.bad(
        "changed",
        "unauthentic",
        "One character is another one.",
        &inputs,
        &with(&good, 70, if good[70] == b'A' { b'B' } else { b'A' }),
    );
    make.bad(
        "plain",
        "encoding",
        "A link that somebody without the key has made.",
        &inputs,
        b"/etc/passwd",
    );
    let long = count::<16>(0x80);
    let others = [
        (
            "signed-share-other-target",
            "The signature is over another target.",
            (RecordKind::Symlink, &b""[..], &b"../elsewherE"[..]),
        ),
        (
            "signed-share-long-target",
            "The signature is that of a long target.",
            (RecordKind::LongSymlink, &long, b"../elsewhere"),
        ),
    ];
    signed_records(
        &mut make,
        &inputs,
        (RecordKind::Symlink, b"", b"../elsewhere"),
        &others,
        link_text,
    );
    let signed: Inputs = [inputs.clone(), vec![("signed", "1".into())]].concat();
    let (author, signer) = signers();
    let by = Authorship { author: author.public().sign, signer: signer.public().sign };
    let reference = (RecordKind::Symlink, &b"+"[..], &long[..]);
    let record = borrowed(reference, reference, by);
    make.ok(
        "signed-share-overflow",
        "A reference in a signed share.",
        &signed,
        &[&b"+"[..], &link_text(&record)].concat(),
    );
    // The signed message, `+`, the author and the reference, is split at another place.
    let cipher = RecordCipher::new(AES, &[9; 32]);
    let signature = record_signature(&cipher, reference, &record);
    let context =
        RecordContext { share: &SHARE, suite: AES, signed: true, epoch: 2, cipher: &cipher };
    let moved =
        Authorship { author: [&b"+"[..], &by.author[..31]].concat().try_into().unwrap(), ..by };
    let target = [&by.author[31..], &long].concat();
    let sealed = context.seal(
        RecordKind::Symlink,
        b"",
        &target,
        Some(Sign { by: moved, sign: &|_, _| signature }),
        &Counting::from(1),
    );
    make.bad(
        "signed-share-overflow-as-target",
        "unauthentic",
        "That reference, its signature borrowed for a target.",
        &signed,
        &link_text(&sealed),
    );
    make
}

fn xattrs() -> Make {
    let mut make = Make::of("xattrs");
    let list =
        Xattrs([(b"user.a".to_vec(), b"value".to_vec()), (b"user.b".to_vec(), Vec::new())].into())
            .encode();
    for (suite, name) in [(AES, "aes"), (CHACHA, "chacha")] {
        make.ok(
            name,
            "Two attributes, one of them empty.",
            &record_inputs(suite),
            &seal_record(suite, RecordKind::Xattrs, b"", &list),
        );
    }
    let inputs = record_inputs(AES);
    make.ok("none", "No attribute.", &inputs, &seal_record(AES, RecordKind::Xattrs, b"", b""));
    let sealed = |plain: &[u8]| seal_record(AES, RecordKind::Xattrs, b"", plain);
    record_failures(&mut make, &inputs, &sealed(&list));
    let (a, b) = (&list[..17], &list[17..]);
    make.bad("order", "order", "Names that do not ascend.", &inputs, &sealed(&[b, a].concat()));
    make.bad("twice", "order", "One name twice.", &inputs, &sealed(&[a, a].concat()));
    make.bad(
        "cut-inside",
        "truncated",
        "What is sealed ends within a value.",
        &inputs,
        &sealed(&a[..16]),
    );
    make.bad(
        "value-too-long",
        "truncated",
        "A value that is longer than what is there.",
        &inputs,
        &sealed(&with(a, 5, 0xff)),
    );
    let reference =
        [&b"+"[..], &seal_record(AES, RecordKind::Xattrs, b"+", &count::<16>(0x80))].concat();
    make.ok(
        "overflow",
        "A reference to a list that stands in a control file.",
        &inputs,
        &reference,
    );
    let control_file = seal_record(AES, RecordKind::Xattrs, &count::<16>(0x80), &list);
    let with_reference: Inputs =
        [inputs.clone(), vec![("reference", hex::encode(count::<16>(0x80)))]].concat();
    make.ok("overflow-list", "That control file.", &with_reference, &control_file);
    let swapped = replaced(&with_reference, "reference", hex::encode(count::<16>(0x81)));
    make.bad(
        "overflow-swapped",
        "unauthentic",
        "The control file of another inode.",
        &swapped,
        &control_file,
    );
    make.bad(
        "overflow-as-list",
        "unauthentic",
        "A reference is no list.",
        &inputs,
        &reference[1..],
    );
    make.bad(
        "list-as-overflow",
        "unauthentic",
        "A list is no reference.",
        &inputs,
        &[&b"+"[..], &sealed(&list)].concat(),
    );
    make
}

fn journal_head() -> Make {
    let mut make = Make::of("journal-head");
    let with_births = |suite, births| {
        JournalHead { suite, share: SHARE, id: count(1), owner: count(0x21), births }.encode()
    };
    let head = |suite| with_births(suite, [Some((-1, 999_999_999)), None]);
    let inputs = Vec::new();
    make.ok("aes", "A head.", &inputs, &head(AES));
    make.ok("chacha", "The same with the other suite.", &inputs, &head(CHACHA));
    make.framing(&inputs, &head(AES), 10);
    make.bad(
        "unknown-flag",
        "flags",
        "A flag that is not known.",
        &inputs,
        &with(&head(AES), 11, 1),
    );
    make.bad(
        "reserved",
        "flags",
        "A reserved byte that is not zero.",
        &inputs,
        &with(&head(AES), 15, 1),
    );
    make.bad(
        "birth",
        "range",
        "A birth time of a whole second in nanoseconds.",
        &inputs,
        &with_births(AES, [Some((0, 1_000_000_000)), None]),
    );
    make.bad(
        "behind-the-head",
        "flags",
        "Bytes before the first record that are not zero.",
        &inputs,
        &with(&head(AES), 4095, 1),
    );
    make
}

fn journal_record() -> Make {
    let mut make = Make::of("journal-record");
    let inputs = |suite: Suite| -> Inputs {
        vec![
            ("suite", suite.as_byte().to_string()),
            ("share", hex::encode(SHARE)),
            ("journal-id", hex::encode(count::<16>(1))),
            ("journal-key", hex::encode([9; 32])),
        ]
    };
    let record = |cipher_len: u64, nanos: u32| JournalRecord {
        path: b"AAAA/BBBB".to_vec(),
        file_id: [1; 32],
        born: Some((-2, 1)),
        base: [2; 32],
        result: [3; 32],
        cipher_len,
        mtime: (-1, nanos),
        patches: vec![
            Patch { offset: 8192, bytes: b"segment".to_vec().into() },
            Patch { offset: 0, bytes: b"header".to_vec().into() },
        ],
    };
    let seal = |suite: Suite, record: &JournalRecord<'_>| {
        let head =
            JournalHead { suite, share: SHARE, id: count(1), owner: [0; 16], births: [None; 2] };
        let mut out = Vec::new();
        record.seal(&mut out, &head, &RecordCipher::new(suite, &[9; 32]), 4, 5, &Counting::from(1));
        out
    };
    let (aes, good) = (inputs(AES), seal(AES, &record(8199, 999_999_999)));
    make.ok("aes", "Two patches; a time before 1970.", &aes, &good);
    make.ok(
        "chacha",
        "The same with the other suite.",
        &inputs(CHACHA),
        &seal(CHACHA, &record(8199, 999_999_999)),
    );
    // SPEC.md section 8, "Files that were made".
    let header = vec![7; 512];
    let (nothing, result) = (*blake3::hash(b"").as_bytes(), *blake3::hash(&header).as_bytes());
    let made = JournalRecord {
        born: None,
        base: nothing,
        result,
        patches: vec![Patch { offset: 0, bytes: header.into() }],
        ..record(512, 0)
    };
    make.ok(
        "file-made",
        "A file was made: its base is the hash of no bytes.",
        &aes,
        &seal(AES, &made),
    );
    let void = JournalRecord {
        base: result,
        patches: Vec::new(),
        ..JournalRecord { born: None, result, ..record(0, 0) }
    };
    make.ok(
        "file-made-void",
        "The record of a file's making does not hold any more.",
        &aes,
        &seal(AES, &void),
    );
    make.bad(
        "beyond-the-end",
        "range",
        "A patch that reaches beyond the length that the record leaves.",
        &aes,
        &seal(AES, &record(8198, 0)),
    );
    make.bad(
        "nanoseconds",
        "range",
        "A time with a whole second of nanoseconds.",
        &aes,
        &seal(AES, &record(8199, 1_000_000_000)),
    );
    make.bad(
        "other-kind",
        "flags",
        "An authentic record of a kind that a later version may add.",
        &aes,
        &of_another_kind(&good),
    );
    make.bad("other-magic", "magic", "The first byte is changed.", &aes, &flipped(&good, 0));
    make.bad(
        "length-too-short",
        "magic",
        "A sealed part that is shorter than any.",
        &aes,
        &with(&good, 4, 39),
    );
    make.bad(
        "length-too-long",
        "magic",
        "A sealed part above the limit.",
        &aes,
        &with(&good, 7, 5),
    );
    make.bad("torn", "truncated", "The record ends within its sealed part.", &aes, &good[..100]);
    make.bad(
        "torn-to-zero",
        "unauthentic",
        "The second half was not written.",
        &aes,
        &[&good[..128], &vec![0; good.len() - 128]].concat(),
    );
    make.bad(
        "other-generation",
        "unauthentic",
        "Taken for a record of another generation.",
        &aes,
        &with(&good, 8, 3),
    );
    make.bad(
        "other-sequence",
        "unauthentic",
        "Moved to another place in the journal.",
        &aes,
        &with(&good, 16, 6),
    );
    make.bad(
        "other-journal",
        "unauthentic",
        "Copied from another journal.",
        &replaced(&aes, "journal-id", hex::encode([7; 16])),
        &good,
    );
    make.bad(
        "other-share",
        "unauthentic",
        "Copied from another share.",
        &replaced(&aes, "share", hex::encode([7; 32])),
        &good,
    );
    make.bad(
        "other-key",
        "unauthentic",
        "The journal of another identity.",
        &replaced(&aes, "journal-key", hex::encode([7; 32])),
        &good,
    );
    make
}

/// The AES record of [`journal_record`] with another kind, sealed again under its nonce.
fn of_another_kind(record: &[u8]) -> Vec<u8> {
    let cipher = RecordCipher::new(AES, &[9; 32]);
    let id: [u8; 16] = count(1);
    let aad = [b"KREC", &SHARE[..], &id, &record[8..24]].concat();
    let end = 24 + u32::from_le_bytes(record[4..8].try_into().unwrap()) as usize;
    let mut body = cipher.open_record(&aad, &record[24..end]).unwrap().to_vec();
    body[0] = 1;
    let tag = cipher.seal(record[24..48].first_chunk().unwrap(), &aad, &mut body);
    [&record[..48], &body, &tag, &record[end..]].concat()
}

fn public(byte: u8) -> PublicIdentity {
    PublicIdentity { sign: [byte; 32], exchange: [byte + 1; 32] }
}

fn identity_file() -> Make {
    let mut make = Make::of("identity-file");
    let slot = |id: u16, kind: SlotKind, label: &str| SlotRecord {
        id,
        kind,
        label: label.to_owned(),
        created: 1_700_000_000,
        salt: [id as u8; 32],
        sealed: [8; SEALED_SEED_LEN],
        age_file: if kind == SlotKind::Age { age_file() } else { Vec::new() },
    };
    let min = Argon2Params::MIN;
    let record = |slots| IdentityRecord { suite: AES, public: public(0x30), slots }.encode();
    let good = record(vec![
        slot(1, SlotKind::Passphrase(min), "at home"),
        slot(2, SlotKind::RecoveryCode, ""),
        slot(9, SlotKind::KeyFile, "grün"),
    ]);
    let none = Vec::new();
    make.ok("three-slots", "A slot of each kind; nothing is unlocked.", &none, &good);
    make.framing(&none, &good, 10);
    make.bad("no-slots", "range", "A file without slots.", &none, &record(vec![]));
    let many: Vec<SlotRecord> = (1..=33).map(|id| slot(id, SlotKind::KeyFile, "")).collect();
    make.bad("too-many-slots", "range", "33 slots.", &none, &record(many));
    make.bad(
        "slot-zero",
        "range",
        "A slot with the id 0.",
        &none,
        &record(vec![slot(0, SlotKind::KeyFile, "")]),
    );
    let two = |a, b| record(vec![slot(a, SlotKind::KeyFile, ""), slot(b, SlotKind::KeyFile, "")]);
    make.bad("order", "order", "Slots that do not ascend.", &none, &two(2, 1));
    make.bad("twice", "order", "One id twice.", &none, &two(1, 1));
    make.bad(
        "unknown-kind",
        "flags",
        "A kind of lock that is not known.",
        &none,
        &with(&good, 78, 5),
    );
    make.bad(
        "control-character",
        "encoding",
        "A label with a control character.",
        &none,
        &record(vec![slot(1, SlotKind::KeyFile, "a\u{7}")]),
    );
    make.bad(
        "label-not-utf-8",
        "encoding",
        "A label that is not UTF-8.",
        &none,
        &with(&record(vec![slot(1, SlotKind::KeyFile, "a")]), 204, 0xff),
    );
    make.bad(
        "label-too-long",
        "range",
        "A label of 65 bytes.",
        &none,
        &record(vec![slot(1, SlotKind::KeyFile, &"x".repeat(65))]),
    );
    make.bad(
        "exchange-key-bit",
        "encoding",
        "A second spelling of the X25519 key.",
        &none,
        &with(&good, 75, 0x80 | good[75]),
    );
    let params = |memory_kib, passes, lanes| {
        record(vec![slot(1, SlotKind::Passphrase(Argon2Params { memory_kib, passes, lanes }), "")])
    };
    make.bad(
        "argon2-cheap",
        "range",
        "Less memory than 32 MiB.",
        &none,
        &params(min.memory_kib - 1, 1, 1),
    );
    make.bad("argon2-no-pass", "range", "No pass.", &none, &params(min.memory_kib, 0, 1));
    make.bad(
        "argon2-dear",
        "range",
        "More memory than 4 GiB.",
        &none,
        &params((4 << 20) + 1, 1, 1),
    );
    make.bad("argon2-passes", "range", "65 passes.", &none, &params(min.memory_kib, 65, 1));
    make.bad("argon2-lanes", "range", "17 lanes.", &none, &params(min.memory_kib, 1, 17));
    let together = record(vec![
        slot(1, SlotKind::Passphrase(Argon2Params::MAX), ""),
        slot(2, SlotKind::Passphrase(min), ""),
    ]);
    make.bad(
        "argon2-together",
        "range",
        "Slots that each are allowed, and together take too long.",
        &none,
        &together,
    );
    make.bad(
        "key-file-with-parameters",
        "flags",
        "Parameters where there are none.",
        &none,
        &with(&record(vec![slot(1, SlotKind::KeyFile, "")]), 90, 1),
    );

    age_slots(&mut make, &|slots| record(slots), &slot);

    for (suite, name) in [(AES, "aes"), (CHACHA, "chacha")] {
        let identity = Identity::from_seed(IdentitySeed::from_bytes([3; 32]));
        let key_file = Secret::KeyFile(Zeroizing::new(vec![5; 32]));
        let new = |secret| NewSlot { secret, params: min, label: "mine", created: 7 };
        let mut file =
            IdentityFile::new(suite, &identity, &new(&key_file), &Counting::from(1)).unwrap();
        file.add_slot(
            &identity,
            &new(&Secret::Passphrase(Zeroizing::new(b"open".to_vec()))),
            &Counting::from(100),
        )
        .unwrap();
        let bytes = file.encode();
        let by = |how, secret: &[u8]| -> Inputs { vec![(how, hex::encode(secret))] };
        make.ok(
            &format!("{name}-by-key-file"),
            "Unlocked by a key file.",
            &by("key-file", &[5; 32]),
            &bytes,
        );
        make.ok(
            &format!("{name}-by-passphrase"),
            "Unlocked by a passphrase.",
            &by("passphrase", b"open"),
            &bytes,
        );
        make.bad(
            &format!("{name}-wrong-passphrase"),
            "unauthentic",
            "A wrong passphrase.",
            &by("passphrase", b"opem"),
            &bytes,
        );
        make.bad(
            &format!("{name}-flipped-salt"),
            "unauthentic",
            "One bit of a salt is flipped.",
            &by("key-file", &[5; 32]),
            &flipped(&bytes, 100),
        );
        make.bad(
            &format!("{name}-flipped-time"),
            "unauthentic",
            "Another time of creation.",
            &by("key-file", &[5; 32]),
            &flipped(&bytes, 80),
        );
        make.bad(
            &format!("{name}-other-public"),
            "unauthentic",
            "Another public key.",
            &by("key-file", &[5; 32]),
            &flipped(&bytes, 12),
        );
    }
    make
}

/// An age file that `age` 1.3.2 made: the bytes 60 to 7f, for the identity [`AGE_IDENTITY`].
const AGE_FILE: &str = "6167652d656e6372797074696f6e2e6f72672f76310a2d3e2058323535313920527436514266542f667857\
     4c6a5458366359385558737a6a4c325659535866344e33517a6f575137776e380a62596c43464b526f6a74\
     6e694d59546a483158397a716f486a77593275735859786e52384a7555544e68380a2d2d2d207767784358\
     6f51687a6f5a6d624c394c6335356e736c76796c3579716a4f36754b4c556c744c324f43664d0a4294d67f\
     b479c74e7cb5461770cff135e42d786dd736b4e85d786491c411c9e2870e8e7caa5c8ffd1cdcfb19e72502\
     d78dca7a3ec394371bbd47ded4ea0c826d";

const AGE_IDENTITY: &str =
    "AGE-SECRET-KEY-1KNUCQ3F6F84X6YLCXRSVUQZ804NS464ASWXFRWM35KSKCPHQ9VFQYZUMPM";

fn age_file() -> Vec<u8> {
    hex::decode(AGE_FILE).unwrap()
}

/// Adds slots with an age file. A scenario contains the identity, for readers that implement age,
/// and the contents of the file, for readers that leave that to a library.
fn age_slots(
    make: &mut Make,
    record: &dyn Fn(Vec<SlotRecord>) -> Vec<u8>,
    slot: &dyn Fn(u16, SlotKind, &str) -> SlotRecord,
) {
    let none = Vec::new();
    let one = slot(3, SlotKind::Age, "token");
    let good = record(vec![slot(2, SlotKind::RecoveryCode, ""), one.clone()]);
    make.ok("age-slot", "A slot for an age recipient, not opened.", &none, &good);
    let of = |file: Vec<u8>| record(vec![SlotRecord { age_file: file, ..one.clone() }]);
    make.bad(
        "age-file-short",
        "range",
        "An age file shorter than its first line.",
        &none,
        &of(age_file()[..21].to_vec()),
    );
    let mut long = age_file();
    long.resize(8193, 0);
    make.bad("age-file-long", "range", "An age file of 8,193 bytes.", &none, &of(long));
    let armored = b"-----BEGIN AGE ENCRYPTED FILE-----\n".to_vec();
    make.bad("age-file-armored", "magic", "An age file in its text form.", &none, &of(armored));
    make.bad(
        "age-with-passes",
        "flags",
        "Parameters of a passphrase in a slot of another kind.",
        &none,
        &with(&of(age_file()), 76 + 16, 1),
    );
    make.bad(
        "age-file-cut",
        "truncated",
        "The length of the age file is one too many.",
        &none,
        &with(&of(age_file()), 76 + 12, age_file().len() as u8 + 1),
    );
    for (suite, name) in [(AES, "aes"), (CHACHA, "chacha")] {
        let identity = Identity::from_seed(IdentitySeed::from_bytes([3; 32]));
        let opened = |secret| -> (Inputs, Vec<u8>) {
            let inputs = vec![
                ("age-identity", AGE_IDENTITY.to_owned()),
                ("age-secret", hex::encode(count::<32>(0x60))),
            ];
            let secret = Secret::Age { file: age_file(), secret: Zeroizing::new(secret) };
            let new =
                NewSlot { secret: &secret, params: Argon2Params::MIN, label: "token", created: 7 };
            let file = IdentityFile::new(suite, &identity, &new, &Counting::from(1)).unwrap();
            (inputs, file.encode())
        };
        let (inputs, bytes) = opened(count(0x60));
        make.ok(&format!("{name}-by-age"), "Opened by an age identity.", &inputs, &bytes);
        make.bad(
            &format!("{name}-age-flipped"),
            "unauthentic",
            "One bit of the contents of the age file is flipped.",
            &inputs,
            &flipped(&bytes, bytes.len() - 20),
        );
        make.bad(
            &format!("{name}-age-label"),
            "unauthentic",
            "Another label.",
            &inputs,
            &flipped(&bytes, 76 + 128),
        );
        let (inputs, bytes) = opened(count(0x61));
        make.bad(
            &format!("{name}-age-other-secret"),
            "unauthentic",
            "The age file contains another secret than that of the slot.",
            &inputs,
            &bytes,
        );
    }
}

fn share_descriptor() -> Make {
    let mut make = Make::of("share-descriptor");
    let descriptor = |suite, signed, isolated, chunk_log2| {
        ShareDescriptor {
            suite,
            signed,
            isolated,
            chunk_log2,
            longest_name: 152,
            founder: public(0x30),
            random: count(0x80),
        }
        .encode()
    };
    let (none, good) = (Vec::new(), descriptor(AES, false, false, 18));
    make.ok("unsigned", "A vault's root.", &none, &good);
    make.ok("signed", "A share with members.", &none, &descriptor(CHACHA, true, false, 12));
    make.ok(
        "isolated",
        "A share that keeps its parent's admins out.",
        &none,
        &descriptor(CHACHA, true, true, 22),
    );
    make.framing(&none, &good, 10);
    make.bad("unknown-flag", "flags", "A flag that is not known.", &none, &with(&good, 11, 4));
    make.bad("isolated-unsigned", "flags", "Isolated without signed.", &none, &with(&good, 11, 2));
    make.bad("chunk-too-small", "range", "Chunks of 2 KiB.", &none, &with(&good, 12, 11));
    make.bad("chunk-too-large", "range", "Chunks of 8 MiB.", &none, &with(&good, 12, 23));
    make.ok("shortest-names", "L is 64.", &none, &with(&good, 13, 64));
    make.ok("longest-names", "L is 200.", &none, &with(&good, 13, 200));
    make.bad("names-too-short", "range", "L is 63.", &none, &with(&good, 13, 63));
    make.bad("names-too-long", "range", "L is 201.", &none, &with(&good, 13, 201));
    make.bad("reserved", "flags", "A reserved byte that is not zero.", &none, &with(&good, 14, 1));
    make.bad(
        "exchange-key-bit",
        "encoding",
        "A second spelling of the X25519 key.",
        &none,
        &with(&good, 79, 0x80 | good[79]),
    );
    make
}

fn invitation() -> Make {
    let mut make = Make::of("invitation");
    let admin = Identity::from_seed(IdentitySeed::from_bytes(count(0x40)));
    let descriptor = |suite| ShareDescriptor {
        suite,
        signed: true,
        isolated: false,
        chunk_log2: 18,
        longest_name: 152,
        founder: public(0x30),
        random: count(0x80),
    };
    let sign = |suite, sequence| {
        let head = Pin { sequence, hash: count(0xa0) };
        Invitation::sign(&descriptor(suite), &head, &admin, &public(0x20), 0x0102_0304)
            .expect("a signed share")
    };
    let (none, good) = (Vec::new(), sign(AES, 7));
    make.ok("aes", "An invitation to a share under AES.", &none, &good);
    make.ok("chacha", "An invitation at the first manifest.", &none, &sign(CHACHA, 1));
    make.framing(&none, &good, 20);
    make.bad(
        "unsigned-share",
        "flags",
        "A share that is not signed has one owner.",
        &none,
        &with(&good, 21, 0),
    );
    make.bad(
        "sequence-zero",
        "range",
        "Manifests are counted from 1.",
        &none,
        &with(&good, 122, 0),
    );
    make.bad(
        "exchange-key-bit",
        "encoding",
        "A second spelling of the invited X25519 key.",
        &none,
        &with(&good, 285, 0x80 | good[285]),
    );
    make.bad(
        "other-head",
        "unauthentic",
        "Another head than was signed.",
        &none,
        &flipped(&good, 126),
    );
    make.bad(
        "other-admin",
        "unauthentic",
        "The admin's X25519 key was swapped.",
        &none,
        &flipped(&good, 190),
    );
    make.bad(
        "other-person",
        "unauthentic",
        "Another person than was invited.",
        &none,
        &flipped(&good, 222),
    );
    make.bad(
        "other-share",
        "unauthentic",
        "The random part of the descriptor is changed.",
        &none,
        &flipped(&good, 100),
    );
    make.bad(
        "other-signature",
        "unauthentic",
        "A bit of the signature is changed.",
        &none,
        &flipped(&good, 300),
    );
    make
}

fn manifest() -> Make {
    let mut make = Make::of("manifest");
    let sample = || Manifest {
        suite: AES,
        sequence: 7,
        epoch: 3,
        time: 1_700_000_000,
        share: SHARE,
        previous: [2; 32],
        second_parent: [0; 32],
        commitment: [3; 32],
        inventory_root: [4; 32],
        inventory_file: [5; 32],
        signer: [6; 32],
        admins: vec![[6; 32], [7; 32]],
        blocks: vec![
            BlockRef { root: [8; 32], count: 20_000 },
            BlockRef { root: [1; 32], count: 1 },
        ],
        history: vec![HistoryEntry { epoch: 2, commitment: [9; 32], sealed: [10; 72] }],
        signature: [11; 64],
    };
    let none = Vec::new();
    let good = sample().encode();
    make.ok("full", "Every list has entries. The signature is not verified here.", &none, &good);
    let first = Manifest {
        sequence: 1,
        epoch: 1,
        previous: [0; 32],
        inventory_root: [0; 32],
        inventory_file: [0; 32],
        history: vec![],
        ..sample()
    };
    make.ok("first", "The first one of a share.", &none, &first.encode());
    make.framing(&none, &good, 10);
    make.bad("reserved", "flags", "A reserved byte that is not zero.", &none, &with(&good, 11, 1));
    let mut bad = |name: &str, kind: &str, comment: &str, change: &dyn Fn(&mut Manifest)| {
        let mut changed = sample();
        change(&mut changed);
        make.bad(name, kind, comment, &none, &changed.encode());
    };
    bad("sequence-zero", "range", "Sequences begin with 1.", &|m| m.sequence = 0);
    bad("epoch-zero", "range", "Epochs begin with 1.", &|m| m.epoch = 0);
    bad("no-admin", "range", "A share without admins.", &|m| m.admins.clear());
    bad("no-block", "range", "A share without slots.", &|m| m.blocks.clear());
    bad("five-blocks", "range", "More than four blocks.", &|m| {
        m.blocks = (1..=5).map(|i| BlockRef { root: [i; 32], count: 1 }).collect();
    });
    bad("half-an-inventory", "range", "A root of an inventory without its file.", &|m| {
        m.inventory_file = [0; 32]
    });
    bad("admins-order", "order", "Admins that do not ascend.", &|m| m.admins.swap(0, 1));
    bad("admin-twice", "order", "One admin twice.", &|m| m.admins[1] = m.admins[0]);
    bad("block-twice", "order", "One block twice.", &|m| m.blocks[1] = m.blocks[0]);
    bad("history-twice", "order", "One epoch twice.", &|m| m.history.push(m.history[0].clone()));
    make
}

fn slot_block() -> Make {
    let mut make = Make::of("slot-block");
    let build = |suite, n: u8, epoch| {
        let header = SlotHeader {
            suite,
            epoch,
            share: SHARE,
            ephemeral: [0x52; 32],
            count: 0,
            members_len: 0,
            tree_top: [0; 32],
            members_digest: [0; 32],
        };
        let slots = (1..=n).map(|i| [i * 3; 64]).collect();
        slots::build(header, slots, &vec![0x77; 40 + 4 + usize::from(n) * 66])
            .map(|(header, block)| (header.root(), block))
    };
    let inputs = |root: [u8; 32]| -> Inputs { vec![("root", hex::encode(root))] };
    let (root, one) = build(AES, 1, 1).unwrap();
    make.ok("one-slot", "The block of an owner: no tree is stored.", &inputs(root), &one);
    let (root, block) = build(CHACHA, 40, 2).unwrap();
    let find =
        |tag: [u8; 16]| -> Inputs { [inputs(root), vec![("find", hex::encode(tag))]].concat() };
    make.ok("forty-slots", "Three pages; the last one moves up as it is.", &inputs(root), &block);
    make.ok("found", "A slot in the second page, found by its tag.", &find([3 * 20; 16]), &block);
    make.ok("not-found", "A tag that no slot has.", &find([3 * 20 + 1; 16]), &block);
    make.framing(&inputs(root), &block, 10);
    make.bad(
        "reserved",
        "flags",
        "A reserved byte that is not zero.",
        &inputs(root),
        &with(&block, 11, 1),
    );
    make.bad("epoch-zero", "range", "Epochs begin with 1.", &inputs(root), &with(&block, 12, 0));
    make.bad("no-slots", "range", "A block without slots.", &inputs(root), &with(&block, 80, 0));
    make.bad(
        "list-too-long",
        "range",
        "A member list that is longer than any of so many members.",
        &inputs(root),
        &with(&block, 86, 1),
    );
    make.bad("slots-order", "order", "Two slots have changed places.", &inputs(root), &{
        let mut swapped = block.clone();
        swapped[152..152 + 128].rotate_left(64);
        swapped
    });
    make.bad(
        "flipped-slot",
        "unauthentic",
        "One bit of a slot is flipped.",
        &inputs(root),
        &flipped(&block, 152 + 40),
    );
    make.bad(
        "flipped-tree",
        "unauthentic",
        "One bit of the tree is flipped.",
        &inputs(root),
        &flipped(&block, 152 + 40 * 64),
    );
    make.bad(
        "flipped-list",
        "unauthentic",
        "One bit of the sealed member list is flipped.",
        &inputs(root),
        &flipped(&block, block.len() - 1),
    );
    make.bad(
        "other-ephemeral",
        "unauthentic",
        "Another ephemeral key: not the block that the manifest names.",
        &inputs(root),
        &flipped(&block, 50),
    );
    make
}

fn member_list() -> Make {
    let mut make = Make::of("members");
    let member =
        |key: u8, role, name: &str| Member { public: public(key), role, name: name.into() };
    let list = [
        member(1, Role::Admin, "Ann"),
        member(2, Role::Reader, ""),
        member(9, Role::Writer, "Cem Ç"),
    ];
    let (none, good) = (Vec::new(), members::encode(&list));
    make.ok("three", "One of each role.", &none, &good);
    let order = |a, b| members::encode(&[member(a, Role::Admin, ""), member(b, Role::Admin, "")]);
    make.bad("cut", "truncated", "The last byte is missing.", &none, &good[..good.len() - 1]);
    make.bad("longer", "trailing", "One byte too many.", &none, &[&good[..], &[0]].concat());
    make.bad("too-many", "range", "A count that no share has.", &none, &[0xff; 4]);
    make.bad(
        "fewer-than-said",
        "truncated",
        "A count of members that are not there.",
        &none,
        &with(&good, 0, 100),
    );
    make.bad("order", "order", "Members that do not ascend.", &none, &order(2, 1));
    make.bad("twice", "order", "One key twice.", &none, &order(2, 2));
    make.bad("unknown-role", "flags", "A role that is not known.", &none, &with(&good, 68, 4));
    make.bad("role-zero", "flags", "No role.", &none, &with(&good, 68, 0));
    make.bad(
        "control-character",
        "encoding",
        "A name with a control character.",
        &none,
        &members::encode(&[member(1, Role::Admin, "a\u{1b}[0m")]),
    );
    make.bad(
        "name-too-long",
        "range",
        "A name of 65 bytes.",
        &none,
        &members::encode(&[member(1, Role::Admin, &"x".repeat(65))]),
    );
    make.bad(
        "exchange-key-bit",
        "encoding",
        "A second spelling of an X25519 key.",
        &none,
        &with(&good, 67, 0x80),
    );
    make
}
