//! Structures that only signed shares have: signed headers, junctions, inventories.

use std::sync::LazyLock;

use kithfs::crypto::{IdentitySeed, Label, RecordCipher, Suite};
use kithfs::format::header::{Header, HeaderContext, Hint, PublicHeader};
use kithfs::format::inventory::{self, InventoryList};
use kithfs::format::junction::Junction;
use kithfs::format::layout::Layout;
use kithfs::format::record::{RecordContext, RecordKind};
use kithfs::format::signature::{Authorship, Sign};
use kithfs::format::table::HOLE;
use kithfs::roster::Identity;

use super::Seeded;

const SHARE: [u8; 32] = [0x51; 32];
const BOUND: [u8; 64] = [0x42; 64];

static CIPHER: LazyLock<RecordCipher> =
    LazyLock::new(|| RecordCipher::new(Suite::Aes256Gcm, &[7; 32]));
static WRITER: LazyLock<Identity> =
    LazyLock::new(|| Identity::from_seed(IdentitySeed::from_bytes([3; 32])));

fn by() -> Authorship {
    Authorship { author: WRITER.public().sign, signer: WRITER.public().sign }
}

fn sign(label: &Label, message: &[u8]) -> [u8; 64] {
    WRITER.sign(label, message)
}

fn context() -> HeaderContext<'static> {
    HeaderContext {
        share: &SHARE,
        layout: Layout::new(18, true).expect("a chunk size"),
        cipher: &CIPHER,
    }
}

static HEADERS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let seal = |small: Option<u16>, size, data: &[u8]| {
        let public = PublicHeader {
            suite: Suite::Aes256Gcm,
            small,
            epoch: 2,
            commitment: [6; 8],
            file_id: [5; 32],
        };
        let hint = Hint { tag: [4; 8], name: b"letter".to_vec() };
        let header = Header { public, size, version: 1, root: HOLE, oldest_epoch: 2, hint };
        header.seal(&context(), data, Some(Sign { by: by(), sign: &sign }), &Seeded::new(4))
    };
    [seal(Some(9), 9, b"some data"), seal(None, 5000, b"")]
});

/// The header of a file in a signed share, changed without the key. A header that opens must be one
/// that was sealed and signed. Bytes after it are residue.
pub fn signed_header(data: &[u8]) {
    if let Ok((_, _, signed)) = Header::open(&context(), data) {
        assert_eq!(signed, Some(by()));
        assert!(
            HEADERS.iter().any(|header| data.starts_with(header)),
            "only what was sealed opens"
        );
    }
}

pub fn signed_header_seeds() -> Vec<Vec<u8>> {
    HEADERS.to_vec()
}

fn records() -> RecordContext<'static> {
    RecordContext {
        share: &SHARE,
        suite: Suite::Aes256Gcm,
        signed: true,
        epoch: 3,
        cipher: &CIPHER,
    }
}

fn plain_junction() -> Vec<u8> {
    Junction { share: [9; 32], isolated: true, coming: false, name: b"projects".to_vec() }.encode()
}

static JUNCTION: LazyLock<Vec<u8>> = LazyLock::new(|| {
    records().seal(
        RecordKind::Junction,
        &BOUND,
        &plain_junction(),
        Some(Sign { by: by(), sign: &sign }),
        &Seeded::new(5),
    )
});

/// A sealed junction.
pub fn junction_sealed(data: &[u8]) {
    if let Ok((plain, signed)) = records().open(RecordKind::Junction, &BOUND, data) {
        assert_eq!((data, signed), (&**JUNCTION, Some(by())), "only what was sealed opens");
        assert_eq!(*plain, plain_junction());
    }
}

pub fn junction_sealed_seeds() -> Vec<Vec<u8>> {
    vec![JUNCTION.clone()]
}

/// A junction, in its plain form.
pub fn junction(data: &[u8]) {
    if let Ok(junction) = Junction::decode(data) {
        assert_eq!(junction.encode(), data);
    }
}

pub fn junction_seeds() -> Vec<Vec<u8>> {
    vec![
        plain_junction(),
        Junction { share: [0; 32], isolated: false, coming: true, name: vec![b'n'; 255] }.encode(),
    ]
}

/// An inventory. An accepted one is sorted, and a search finds each of its hashes.
pub fn inventory_list(data: &[u8]) {
    if let Ok(list) = InventoryList::decode(data) {
        assert_eq!(list.encode(), data);
        assert!(list.hashes().iter().all(|hash| list.contains(hash)));
        assert_eq!(InventoryList::new(list.hashes().to_vec()).root(), list.root());
        let read = |at: u64, buf: &mut [u8]| -> Result<usize, ()> {
            let rest = data.get(at as usize..).unwrap_or_default();
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        };
        assert_eq!(
            inventory::file_hash_of(data.len() as u64, read),
            Ok(Some(inventory::file_hash(data)))
        );
    }
}

pub fn inventory_list_seeds() -> Vec<Vec<u8>> {
    let list = |n: u8| InventoryList::new((0..n).map(|i| [i; 32]).collect()).encode();
    vec![list(0), list(1), list(200)]
}
