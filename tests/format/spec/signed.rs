//! Section 11: signed messages and the signatures over them. Headers, records, junctions and
//! inventories are opened and verified by the page's rules.

use ed25519_dalek::{Signature, VerifyingKey};
use kithfs::crypto::{IdentitySeed, RecordCipher, Suite};
use kithfs::format::header::{Header, HeaderContext, Hint, PublicHeader};
use kithfs::format::inventory::{self, InventoryList};
use kithfs::format::junction::{self, Junction};
use kithfs::format::layout::Layout;
use kithfs::format::record::{RecordContext, RecordKind};
use kithfs::format::signature::{Authorship, Sign};
use kithfs::format::table::{Segment, Table, segment_hash, small_hash};
use kithfs::roster::Identity;
use kithfs::store::Kind;
use kithfs::store::mem::MemStore;
use kithfs::vault::{Caller, CreateOptions, OpenFlags, OpenOptions, ROOT, SetXattr, Vault};

use super::byhand::{digest, label};
use super::bytes::{Structure, count, structure};

use crate::support::counting::Counting;

const SHARE: [u8; 32] = [0x51; 32];
const AUTHOR: [u8; 32] = [0xa1; 32];

fn signer() -> Identity {
    Identity::from_seed(IdentitySeed::from_bytes([4; 32]))
}

fn blake3(parts: &[&[u8]]) -> [u8; 32] {
    *blake3::hash(&parts.concat()).as_bytes()
}

/// Seals a header in a signed share under the key 7; returns its bytes, and the signed message.
fn header(suite: Suite, data: Option<&[u8]>) -> (Vec<u8>, Vec<u8>) {
    let cipher = RecordCipher::new(suite, &[7; 32]);
    let context =
        HeaderContext { share: &SHARE, layout: Layout::new(14, true).unwrap(), cipher: &cipher };
    let small = data.map(|data| data.len() as u16);
    let public = PublicHeader {
        suite,
        small,
        epoch: 0x0304_0506,
        commitment: count(0x60),
        file_id: count(0x70),
    };
    let hint = Hint { tag: count(0x90), name: b"name".to_vec() };
    let size = data.map_or(0x0102_0304, |data| data.len() as u64);
    let root = if data.is_some() { [0; 32] } else { count(0x20) };
    let header = Header { public, size, version: 0x0506_0708, root, oldest_epoch: 3, hint };
    let by = Authorship { author: AUTHOR, signer: signer().public().sign };
    let message = std::cell::RefCell::new(Vec::new());
    let sign = |label: &kithfs::crypto::Label, bytes: &[u8]| {
        *message.borrow_mut() = bytes.to_vec();
        signer().sign(label, bytes)
    };
    let made = header.seal(
        &context,
        data.unwrap_or_default(),
        Some(Sign { by, sign: &sign }),
        &Counting::from(1),
    );
    (made, message.into_inner())
}

fn trailer_fields() -> [[u8; 32]; 2] {
    [AUTHOR, signer().public().sign]
}

pub fn structures() -> Vec<Structure> {
    let by = Authorship { author: AUTHOR, signer: signer().public().sign };
    let trailer =
        Sign { by, sign: &|_, _| [0xee; 64] }.trailer(&kithfs::crypto::labels::FILE_SIGNATURE, b"");
    let [author, signer] = trailer_fields();
    let (_, message) = header(Suite::ChaCha20Poly1305, None);
    let (id, commitment, root): ([u8; 32], [u8; 8], [u8; 32]) =
        (count(0x70), count(0x60), count(0x20));
    let message_fields: [&[u8]; 12] = [
        &SHARE,
        &id,
        &[1],
        &[2],
        &[1],
        &[14],
        &[6, 5, 4, 3],
        &commitment,
        &[4, 3, 2, 1, 0, 0, 0, 0],
        &[8, 7, 6, 5, 0, 0, 0, 0],
        &AUTHOR,
        &root,
    ];
    let segment = Segment { nonce: count(0x10), tag: count(0x20), len: 0x0234 };
    let layout = Layout::new(12, true).unwrap();
    let table = Table {
        salt: count(1),
        epoch: 1,
        seals: 1,
        segments: [segment].into(),
        hashes: [[0x44; 32]].into(),
    };
    let (nonce, tag): ([u8; 12], [u8; 16]) = (count(0x10), count(0x20));
    let junction =
        Junction { share: [0x77; 32], isolated: true, coming: true, name: b"projects".to_vec() };
    let list = InventoryList::new(vec![[9; 32], [3; 32], [9; 32]]);
    vec![
        structure("trailer", trailer, &[&author, &signer, &[0xee; 64]]),
        structure("signed message of a file header", message, &message_fields),
        structure(
            "entry of a chunk table in a signed share",
            &table.encode(&layout)[64..126],
            &[&nonce, &tag, &[0x34, 2], &[0x44; 32]],
        ),
        structure("junction", junction.encode(), &[&[0x77; 32], &[130], &[8], b"projects"]),
        structure("inventory", list.encode(), &[&[3; 32], &[9; 32]]),
    ]
}

fn verified(purpose: &str, message: &[u8], trailer: &[u8]) {
    assert_eq!(trailer[..64], trailer_fields().concat());
    let key = VerifyingKey::from_bytes(trailer[32..64].try_into().unwrap()).unwrap();
    let signature = Signature::from_bytes(trailer[64..128].try_into().unwrap());
    key.verify_strict(&[&label(purpose)[..], message].concat(), &signature).unwrap();
}

fn open(cipher: &RecordCipher, nonce: &[u8], aad: &[u8], sealed: &[u8], tag: &[u8]) -> Vec<u8> {
    let mut plain = sealed.to_vec();
    cipher.open(nonce.try_into().unwrap(), aad, &mut plain, tag.try_into().unwrap()).unwrap();
    plain
}

#[test]
fn a_signed_header_opens_and_verifies_as_the_page_says() {
    for suite in Suite::ALL {
        for data in [None, Some(&b"some data"[..])] {
            let (bytes, _) = header(suite, data);
            assert_eq!(
                (bytes.len(), bytes[11]),
                (640 + data.map_or(0, <[u8]>::len), if data.is_some() { 3 } else { 1 })
            );
            let cipher = RecordCipher::new(suite, &[7; 32]);
            let plain = open(
                &cipher,
                &bytes[60..84],
                &[b"KHDR", &SHARE[..], &bytes[..96]].concat(),
                &bytes[112..],
                &bytes[96..112],
            );
            let (trailer, body) = plain.split_at(128);
            let root = data.map_or(count(0x20), |data| blake3(&[b"kithfs1", &[255], data]));
            let small = data.map_or([0; 32], small_hash);
            assert!(data.is_none() || root == small);
            assert_eq!(
                body[16..48],
                if data.is_some() { [0; 32] } else { root },
                "the body of the small form does not contain it"
            );
            let file = [
                &SHARE[..],
                &bytes[28..60],
                &[1, suite.as_byte(), bytes[11], 14],
                &bytes[16..20],
                &bytes[20..28],
            ]
            .concat();
            let message = [&file[..], &body[..8], &body[8..16], &AUTHOR, &root].concat();
            verified("file signature", &message, trailer);
            assert_eq!(body.get(400..).unwrap(), data.unwrap_or_default());
        }
    }
    assert_eq!(segment_hash(b"ciphertext"), blake3(&[b"kithfs1", &[254], b"ciphertext"]));
}

/// A kind, its word, what it is bound to, the purpose of its label, and its contents.
type SignedKind<'a> = (RecordKind, &'a [u8; 4], &'a [u8], &'a str, &'a [u8]);

#[test]
fn signed_records_open_and_verify_as_the_page_says() {
    let junction =
        Junction { share: [0x77; 32], isolated: false, coming: false, name: b"projects".to_vec() }
            .encode();
    let (tag, hash) = ([0x33; 8], [0x44; 32]);
    let place = [&tag[..], &hash].concat();
    let kinds: [SignedKind; 4] = [
        (RecordKind::Symlink, b"KSYM", b"", "symlink signature", b"target"),
        (RecordKind::LongSymlink, b"KLSY", &[5; 16], "symlink signature", b"target"),
        (RecordKind::Moved, b"KMOV", b"", "moved signature", b"two tags"),
        (RecordKind::Junction, b"KJNC", &place, "junction signature", &junction),
    ];
    for suite in Suite::ALL {
        let cipher = RecordCipher::new(suite, &[8; 32]);
        for (kind, word, bound, purpose, holds) in kinds {
            // A junction is signed in every parent.
            for signed in [true, false] {
                if !signed && kind != RecordKind::Junction {
                    continue;
                }
                let context =
                    RecordContext { share: &SHARE, suite, signed, epoch: 0x0102, cipher: &cipher };
                let by = Authorship { author: AUTHOR, signer: signer().public().sign };
                let sign =
                    |label: &kithfs::crypto::Label, message: &[u8]| signer().sign(label, message);
                let bytes = context.seal(
                    kind,
                    bound,
                    holds,
                    Some(Sign { by, sign: &sign }),
                    &Counting::from(1),
                );
                assert_eq!(bytes[..8], [1, suite.as_byte(), 1, 0, 2, 1, 0, 0]);
                let aad = [&word[..], &SHARE, &bytes[..24], bound].concat();
                let (nonce, rest) = bytes[24..].split_at(24);
                let (sealed, tag) = rest.split_at(rest.len() - 16);
                let plain = open(&cipher, nonce, &aad, sealed, tag);
                let (inside, trailer) = plain.split_at(plain.len() - 128);
                assert_eq!(inside, holds);
                verified(purpose, &[&aad[..], &AUTHOR, holds].concat(), trailer);
            }
        }
    }
    let name = junction::file_name(&hash);
    assert!(name.starts_with(b"+junction-") && name.len() == "+junction-".len() + 43);
}

#[test]
fn an_inventory_has_the_root_and_the_name_that_the_page_says() {
    let hashes: Vec<[u8; 32]> = (0..300u16).map(|n| blake3(&[&n.to_le_bytes()])).collect();
    let list = InventoryList::new(hashes.clone());
    let mut sorted = hashes;
    sorted.sort();
    assert_eq!(list.encode(), sorted.concat());
    let pages: Vec<[u8; 32]> = (0..3u32)
        .map(|n| {
            let page = &sorted[n as usize * 128..sorted.len().min((n as usize + 1) * 128)];
            digest("inventory page", &[&n.to_le_bytes(), page.as_flattened()])
        })
        .collect();
    assert_eq!(
        list.root(),
        digest("inventory node", &[&digest("inventory node", &[&pages[0], &pages[1]]), &pages[2]])
    );
    let hash = digest("inventory hash", &[&sorted.concat()]);
    assert_eq!(inventory::file_hash(&list.encode()), hash);
    let hex: String = hash[..16].iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(inventory::file_name(&hash), format!("+inventory-{hex}"));
    assert_eq!(inventory::MAX_ENTRIES, 16_777_216);
}

#[test]
fn attributes_have_the_names_that_the_page_says() {
    let (store, owner) = (MemStore::new(), signer());
    Vault::create(
        &store.root(),
        &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 12 },
        &owner,
    )
    .unwrap();
    let vault = Vault::open(store.root(), &owner, OpenOptions::default()).unwrap();
    let caller = Caller { uid: 0, gid: 0, umask: 0 };
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let (file, opened) = vault.create_file(&caller, ROOT, b"file", 0o644, flags).unwrap();
    vault.release(opened.handle).unwrap();
    let dir = vault.mkdir(&caller, ROOT, b"dir", 0o755).unwrap();
    let link = vault.symlink(&caller, ROOT, b"link", b"file").unwrap();
    let [fifo, socket] = [(&b"fifo"[..], Kind::Fifo), (b"socket", Kind::Socket)]
        .map(|(name, kind)| vault.mknod(&caller, ROOT, name, kind, 0o600, 0).unwrap());
    let page = super::page::PAGE;
    for (name, attr, key) in [
        (&b"file"[..], file, "user.kithfs"),
        (b"dir", dir, "user.kithfs"),
        (b"link", link, "trusted.kithfs"),
        (b"fifo", fifo, "trusted.kithfs"),
        (b"socket", socket, "trusted.kithfs"),
    ] {
        let of = if key.starts_with("user") { &b"user.tag"[..] } else { b"trusted.tag" };
        vault.set_xattr(attr.node, of, b"blue", SetXattr::Any).unwrap();
        let stored = vault.cipher_path(name).unwrap();
        let record =
            store.root().get_xattr(&stored, key.as_bytes()).unwrap().expect("the record is there");
        assert_eq!(record.len(), 64 + 6 + of.len() + 4, "a sealed record of one attribute");
        assert!(page.contains(&format!("`{key}`")));
    }
}
