//! Makes frozen vaults. It ran once for version 1; its result is never made again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use age::secrecy::ExposeSecret;
use kithfs::crypto::{Argon2Params, Random, Suite};
use kithfs::roster::{Identity, IdentityFile, NewSlot, RecoveryCode, Secret};
use kithfs::store::os::OsDir;
use kithfs::store::{Dir, Kind};
use kithfs::vault::{
    Caller, CreateOptions, NodeId, OpenFlags, OpenOptions, OsRandom, ROOT, RenameMode, SetAttr,
    SetXattr, Vault,
};
use zeroize::Zeroizing;

use super::expected::{Entry, Expected};
use super::{copy_tree, place, walk};

/// Name, suite, log2 of the chunk size.
pub const VAULTS: [(&str, Suite, u8); 4] = [
    ("aes-256k", Suite::Aes256Gcm, 18),
    ("aes-4k", Suite::Aes256Gcm, 12),
    ("chacha-256k", Suite::ChaCha20Poly1305, 18),
    ("chacha-4k", Suite::ChaCha20Poly1305, 12),
];

const CREATED: u64 = 1_790_000_000;

fn caller() -> Caller {
    Caller {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        umask: 0o022,
    }
}

/// Returns patternless bytes: BLAKE3 of a word, extended.
fn bytes(word: &str, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    blake3::Hasher::new().update(word.as_bytes()).finalize_xof().fill(&mut out);
    out
}

/// Puts a file at a path whose parents exist.
pub fn put(vault: &Vault, path: &[u8], contents: &[u8]) {
    write(vault, path, &[(0, contents)], None);
}

fn parent_of<'p>(vault: &Vault, path: &'p [u8]) -> (NodeId, &'p [u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (vault.resolve(&path[..at]).unwrap().node, &path[at + 1..]),
        None => (ROOT, path),
    }
}

fn write(vault: &Vault, path: &[u8], parts: &[(u64, &[u8])], size: Option<u64>) {
    let (parent, name) = parent_of(vault, path);
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let (attr, file) = vault.create_file(&caller(), parent, name, 0o644, flags).unwrap();
    for (offset, contents) in parts {
        vault.write(file.handle, *offset, contents, false).unwrap();
    }
    if size.is_some() {
        vault.setattr(attr.node, &SetAttr { size, ..SetAttr::default() }).unwrap();
    }
    vault.release(file.handle).unwrap();
}

fn mkdir(vault: &Vault, path: &[u8]) {
    let (parent, name) = parent_of(vault, path);
    vault.mkdir(&caller(), parent, name, 0o755).unwrap();
}

fn symlink(vault: &Vault, path: &[u8], target: &[u8]) {
    let (parent, name) = parent_of(vault, path);
    vault.symlink(&caller(), parent, name, target).unwrap();
}

fn rename(vault: &Vault, from: &[u8], to: &[u8]) {
    let ((from, name), (to, new_name)) = (parent_of(vault, from), parent_of(vault, to));
    vault.rename(from, name, to, new_name, RenameMode::NoReplace).unwrap();
}

/// Files by path, its components in hexadecimal: size and BLAKE3 of the contents.
type Files = BTreeMap<String, (u64, String)>;

fn hex_path(path: &[u8]) -> String {
    path.split(|b| *b == b'/').map(hex::encode).collect::<Vec<_>>().join("/")
}

/// Fills a vault, and returns the files that it must contain.
fn fill(vault: &Vault, chunk: usize, two_levels: bool) -> Files {
    let mut files = Files::new();
    let mut note = |path: &[u8], contents: &[u8]| {
        files.insert(
            hex_path(path),
            (contents.len() as u64, blake3::hash(contents).to_hex().to_string()),
        );
    };
    for size in [0usize, 1, 100, 4095, 4096, 4097, 20_000] {
        let path = format!("size-{size}");
        put(vault, path.as_bytes(), &bytes(&path, size));
        note(path.as_bytes(), &bytes(&path, size));
    }
    mkdir(vault, b"large");
    // At least two chunks, and in one vault more than 128 chunks: two levels of index blocks.
    let beyond = chunk.max(16_384);
    put(vault, b"large/several-chunks", &bytes("several chunks", beyond + 57));
    note(b"large/several-chunks", &bytes("several chunks", beyond + 57));
    if two_levels {
        put(vault, b"large/two-levels", &bytes("two levels", 128 * chunk + 5));
        note(b"large/two-levels", &bytes("two levels", 128 * chunk + 5));
    }
    let (first, last, size) =
        (bytes("first island", 5000), bytes("last island", 100), beyond + 9000);
    write(vault, b"large/sparse", &[(0, &first), (beyond as u64 + 300, &last)], Some(size as u64));
    let mut sparse = vec![0; size];
    sparse[..5000].copy_from_slice(&first);
    sparse[beyond + 300..beyond + 400].copy_from_slice(&last);
    note(b"large/sparse", &sparse);
    write(vault, b"large/nothing-but-a-hole", &[], Some(beyond as u64 + 1));
    note(b"large/nothing-but-a-hole", &vec![0; beyond + 1]);
    let shortened = bytes("shortened", beyond + 20_000);
    write(vault, b"large/shortened", &[(0, &shortened)], Some(10_001));
    note(b"large/shortened", &shortened[..10_001]);

    mkdir(vault, b"names");
    let names: [Vec<u8>; 9] = [
        b"x".to_vec(),
        "grüne Äpfel.txt".into(),
        b"not utf-8 \xff\xfe\x80".to_vec(),
        b" spaces and\nnew line ".to_vec(),
        vec![b'a'; 98],
        vec![b'b'; 99],
        vec![b'c'; 255],
        b"+share".to_vec(),
        b"report (conflicted copy).txt (2)".to_vec(),
    ];
    for name in &names {
        let path = [b"names/", &name[..]].concat();
        put(vault, &path, name);
        note(&path, name);
    }
    let long_directory = [&b"names/"[..], &[b'd'; 200]].concat();
    mkdir(vault, &long_directory);
    let inside = [&long_directory[..], b"/", &[b'e'; 200]].concat();
    put(vault, &inside, b"in a directory with a long name");
    note(&inside, b"in a directory with a long name");

    mkdir(vault, b"links");
    symlink(vault, b"links/relative", b"../size-100");
    symlink(vault, b"links/dangling", b"/nowhere/\xff");
    symlink(vault, b"links/longest-inline", &[b't'; 3005]);
    symlink(vault, b"links/too-long-for-the-store", &[b'u'; 3006]);
    symlink(vault, b"links/longest", &[b'v'; 4095]);

    // It is renamed while it has entries, so that there is evidence; then another one is made under
    // the old name.
    mkdir(vault, b"before");
    mkdir(vault, b"before/child");
    put(vault, b"before/child/letter", b"written before the rename");
    note(b"after/child/letter", b"written before the rename");
    mkdir(vault, b"elsewhere");
    put(vault, b"elsewhere/stays", b"so that git keeps the directory");
    note(b"elsewhere/stays", b"so that git keeps the directory");
    rename(vault, b"before", b"elsewhere/between");
    rename(vault, b"elsewhere/between", b"after");
    put(vault, b"after/later", b"written after the rename");
    note(b"after/later", b"written after the rename");
    mkdir(vault, b"before");
    put(vault, b"before/letter", b"in a new directory of the old name");
    note(b"before/letter", b"in a new directory of the old name");
    rename(vault, b"size-100", b"after/moved");

    mkdir(vault, b"special");
    put(vault, b"special/attributes", b"a file with attributes");
    note(b"special/attributes", b"a file with attributes");
    let node = vault.resolve(b"special/attributes").unwrap().node;
    vault.set_xattr(node, b"user.comment", "grün".as_bytes(), SetXattr::Any).unwrap();
    vault.set_xattr(node, b"user.empty", b"", SetXattr::Any).unwrap();
    let node = vault.resolve(b"special").unwrap().node;
    vault.set_xattr(node, b"user.directory", &bytes("attribute", 300), SetXattr::Any).unwrap();
    vault.mknod(&caller(), node, b"fifo", Kind::Fifo, 0o600, 0).unwrap();
    let moved = files.remove(&hex_path(b"size-100")).expect("it was put there");
    files.insert(hex_path(b"after/moved"), moved);
    files
}

/// Makes the copies that sync tools make: of a file and of a directory, under the stored name with
/// a suffix. They have the contents of the originals.
fn conflict_copies(vault: &Vault, store: &Path, files: &mut Files) {
    let copies = [
        (&b"size-4097"[..], " (Ann's conflicted copy 2026-01-02)"),
        (b"before", ".sync-conflict-20260102-101112-ABCDEFG"),
    ];
    for (path, suffix) in copies {
        let stored = store.join(store_path(vault, path));
        let copy = store.join(format!("{}{suffix}", store_path(vault, path)));
        if stored.is_dir() {
            copy_tree(&stored, &copy)
        } else {
            std::fs::write(&copy, std::fs::read(&stored).unwrap()).unwrap()
        }
        let (original, shown) = (hex_path(path), hex_path(&[path, suffix.as_bytes()].concat()));
        let below: Vec<_> = files
            .iter()
            .filter(|(p, _)| **p == original || p.starts_with(&format!("{original}/")))
            .collect();
        let copied: Vec<_> = below
            .iter()
            .map(|(p, held)| (p.replacen(&original, &shown, 1), (*held).clone()))
            .collect();
        assert!(!copied.is_empty());
        files.extend(copied);
    }
}

/// Makes an entry without evidence: a file that was copied to another directory of the store. It is
/// shown with a mark, and has the contents of the original.
fn misplaced(vault: &Vault, store: &Path, files: &mut Files) {
    let stored = store_path(vault, b"size-1");
    let to = store.join(store_path(vault, b"elsewhere")).join(&stored);
    std::fs::write(to, std::fs::read(store.join(&stored)).unwrap()).unwrap();
    let mark = hex::encode(&blake3::hash(stored.as_bytes()).as_bytes()[..4]);
    let held = files[&hex_path(b"size-1")].clone();
    files.insert(hex_path(format!("elsewhere/size-1 (moved {mark})").as_bytes()), held);
}

fn store_path(vault: &Vault, path: &[u8]) -> String {
    String::from_utf8(vault.cipher_path(path).unwrap()).unwrap()
}

/// Makes all vaults below `root`, each with its `expected.txt`.
pub fn all(root: &Path) {
    for (name, suite, chunk_log2) in VAULTS {
        let dir = root.join(name);
        let path = dir.join("vault");
        std::fs::create_dir_all(&path).unwrap();
        let store: Arc<dyn Dir> = OsDir::open(&path).unwrap();

        let owner = Identity::generate(&OsRandom);
        let mut expected = Expected { passphrase: format!("frozen {name}"), ..Expected::default() };
        expected.key_file = vec![0; 48];
        OsRandom.fill(&mut expected.key_file);
        let code = RecoveryCode::generate(&OsRandom);
        expected.recovery_code = code.text().to_string();
        let age_identity = age::x25519::Identity::generate();
        expected.age_identity = age_identity.to_string().expose_secret().to_owned();
        let mut contents = Zeroizing::new([0; 32]);
        OsRandom.fill(&mut *contents);
        let age_file = age::encrypt(&age_identity.to_public(), &*contents).unwrap();
        let secrets = [
            (
                Secret::Passphrase(Zeroizing::new(expected.passphrase.clone().into_bytes())),
                "frozen",
            ),
            (Secret::RecoveryCode(code), ""),
            (Secret::KeyFile(Zeroizing::new(expected.key_file.clone())), "stick, grün"),
            (Secret::Age { file: age_file, secret: contents }, "token"),
        ];
        let slots = secrets.each_ref().map(|(secret, label)| NewSlot {
            secret,
            params: Argon2Params::MIN,
            label,
            created: CREATED,
        });
        let mut file = IdentityFile::new(suite, &owner, &slots[0], &OsRandom).unwrap();
        for slot in &slots[1..] {
            file.add_slot(&owner, slot, &OsRandom).unwrap();
        }
        std::fs::write(path.join("+identity"), file.encode()).unwrap();
        Vault::create(&store, &CreateOptions { suite, chunk_log2 }, &owner).unwrap();
        expected.share_id = hex::encode(Vault::describe(&store).unwrap().share_id);
        expected.identity = owner.public().to_string();
        expected.fingerprint = owner.public().fingerprint();

        let vault = Vault::open(store.clone(), &owner, OpenOptions::default()).unwrap();
        let mut put = fill(&vault, 1 << chunk_log2, name == "aes-4k");
        vault.close().unwrap();

        let vault = Vault::open(
            store.clone(),
            &owner,
            OpenOptions { read_only: true, ..OpenOptions::default() },
        )
        .unwrap();
        conflict_copies(&vault, &path, &mut put);
        misplaced(&vault, &path, &mut put);
        expected.entries = walk::entries(&vault);
        let is_file = |entry: &Entry| entry.kind == "file";
        let files = expected.entries.iter().filter(|(_, entry)| is_file(entry));
        let files: Files = files
            .map(|(path, entry)| (path.clone(), (entry.size, entry.contents.clone())))
            .collect();
        assert_eq!(files, put, "what is there is what was put there");
        let fifo = store_path(&vault, b"special/fifo");
        for path in [&b"special"[..], b"special/attributes"] {
            let stored = store_path(&vault, path);
            let (dir, name) = place(&store, &stored);
            let value = dir
                .get_xattr(name.as_bytes(), b"user.kithfs")
                .unwrap()
                .expect("attributes were set");
            expected.store_xattrs.push((stored, value));
        }
        vault.close().unwrap();
        std::fs::remove_file(path.join(&fifo)).unwrap();
        expected.store_fifos.push(fifo);
        std::fs::write(dir.join("expected.txt"), expected.text()).unwrap();
    }
}
