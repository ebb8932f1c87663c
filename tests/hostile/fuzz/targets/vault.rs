//! Whole vaults in memory: one object of the ciphertext is changed, then everything is read.
//!
//! Rules that hold in these targets
//! * An entry that is read returns its original bytes, or an error; the vault may also refuse to
//!   open.
//! * If anything is missing or refused, the check reports it.
//! * Attributes that the store keeps (modes, times, the length that `stat` shows) and whole files
//!   in the place of others are not covered: no file can detect that without a database of former
//!   states.
//!
//! Input: the object (1 byte), then changes of it: kind (1), where (3), number of bytes (1), bytes.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use kithfs::crypto::Suite;
use kithfs::format::layout::HEADER;
use kithfs::format::suffix::{mark_of, marked};
use kithfs::roster::Identity;
use kithfs::store::mem::MemStore;
use kithfs::store::{Access, Dir, Kind, RenameMode};
use kithfs::vault::{
    Attr, Caller, CreateOptions, LockMode, NodeId, OpenFlags, OpenOptions, ROOT, SetXattr, Vault,
};

use super::Seeded;

const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };
const WRITE: OpenFlags =
    OpenFlags { read: true, write: true, truncate: false, append: false, sync: false };
const READ: OpenFlags =
    OpenFlags { read: true, write: false, truncate: false, append: false, sync: false };
/// The attribute of the store in which a vault keeps its own.
const XATTR: &[u8] = b"user.kithfs";
/// The one attribute that the fixtures set.
const ATTRIBUTE: &[u8] = b"user.note";
/// Maximum number of changes of one input that are applied.
const CHANGES_MAX: usize = 4;
const CACHE: usize = 1 << 20;

/// The contents of an entry; several after a crash.
#[derive(Default)]
struct Truth {
    /// Contents or target; none for directories and special files.
    contents: Vec<Vec<u8>>,
    xattr: Option<Vec<u8>>,
}

/// An object of the ciphertext that can be changed.
enum Object {
    File(Vec<u8>),
    Link(Vec<u8>),
    Xattr(Vec<u8>),
}

/// A vault and its known contents.
struct Fixture {
    store: MemStore,
    owner: Identity,
    /// By plain path, and also by stored path for entries that can lose their names.
    truth: BTreeMap<Vec<u8>, Truth>,
    objects: Vec<Object>,
    /// Number of entries, the root included.
    count: usize,
}

fn owner() -> Identity {
    Identity::generate(&Seeded::new(40))
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    kithfs::crypto::Random::fill(&Seeded::new(seed), &mut bytes);
    bytes
}

fn write_file(
    vault: &Vault,
    parent: NodeId,
    name: &[u8],
    pieces: &[(u64, &[u8])],
    sync: bool,
) -> Attr {
    let (attr, file) = vault.create_file(&CALLER, parent, name, 0o644, WRITE).expect("created");
    for (offset, bytes) in pieces {
        vault.write(file.handle, *offset, bytes, false).expect("written");
    }
    if sync {
        vault.fsync(file.handle, false).expect("flushed");
    }
    vault.release(file.handle).expect("closed");
    attr
}

fn options(read_only: bool) -> OpenOptions {
    let lock = if read_only { LockMode::None } else { LockMode::Exclusive };
    OpenOptions { read_only, cache_bytes: CACHE, lock, ..OpenOptions::default() }
}

fn create(suite: Suite, chunk_log2: u8) -> (MemStore, Identity) {
    let (store, owner) = (MemStore::new(), owner());
    Vault::create(&store.root(), &CreateOptions { suite, chunk_log2 }, &owner).expect("a vault");
    (store, owner)
}

/// A vault with an entry of each kind.
fn fixture(suite: Suite, chunk_log2: u8) -> Fixture {
    let (store, owner) = create(suite, chunk_log2);
    let vault = Vault::open(store.root(), &owner, options(false)).expect("opened");
    for (n, len) in [0, 1, 4095, 4096, 4097, 40_000].into_iter().enumerate() {
        write_file(
            &vault,
            ROOT,
            format!("file-{len}").as_bytes(),
            &[(0, &pattern(len, n as u64))],
            false,
        );
    }
    let island = pattern(5000, 10);
    write_file(&vault, ROOT, b"sparse", &[(10_000, &island), (600_000, &island)], false);
    let noted = write_file(&vault, ROOT, b"noted", &[(0, b"with an attribute")], false);
    vault.set_xattr(noted.node, ATTRIBUTE, b"a note", SetXattr::Any).expect("set");
    vault.set_xattr(ROOT, ATTRIBUTE, b"of the root", SetXattr::Any).expect("set");
    vault.symlink(&CALLER, ROOT, b"link", b"file-4096").expect("linked");
    vault.symlink(&CALLER, ROOT, b"long-link", &[b't'; 3500]).expect("linked");
    vault.mknod(&CALLER, ROOT, b"fifo", Kind::Fifo, 0o600, 0).expect("made");
    write_file(&vault, ROOT, &[b'L'; 200], &[(0, b"under a long name")], false);
    let plain = vault.mkdir(&CALLER, ROOT, b"dir", 0o755).expect("made");
    vault.set_xattr(plain.node, ATTRIBUTE, b"of a directory", SetXattr::Any).expect("set");
    let inner = write_file(&vault, plain.node, b"inner", &[(0, b"inside")], false);
    vault.link(inner.node, ROOT, b"hard-link").expect("linked");
    let long = vault.mkdir(&CALLER, plain.node, &[b'D'; 255], 0o755).expect("made");
    write_file(&vault, long.node, b"deep", &[(0, &pattern(9000, 11))], false);
    let moved = vault.mkdir(&CALLER, ROOT, b"before", 0o755).expect("made");
    write_file(&vault, moved.node, b"moved", &[(0, b"under a renamed directory")], false);
    let below = vault.mkdir(&CALLER, moved.node, b"below", 0o755).expect("made");
    write_file(&vault, below.node, b"further", &[(0, b"below a renamed directory")], false);
    vault.rename(ROOT, b"before", plain.node, b"after", RenameMode::NoReplace).expect("renamed");
    vault.close().expect("closed");
    let store = store.snapshot();
    let mut fixture =
        Fixture { store, owner, truth: BTreeMap::new(), objects: Vec::new(), count: 0 };
    fixture.survey();
    fixture
}

/// A vault whose power failed after its files were changed and flushed: data written in place is
/// lost, the journal exists.
fn crashed_fixture() -> Fixture {
    let (store, owner) = create(Suite::Aes256Gcm, 12);
    let vault = Vault::open(store.root(), &owner, options(false)).expect("opened");
    let before =
        [("small", pattern(100, 50)), ("large", pattern(30_000, 51)), ("other", pattern(6000, 52))];
    for (name, bytes) in &before {
        write_file(&vault, ROOT, name.as_bytes(), &[(0, bytes)], true);
    }
    vault.close().expect("closed");
    let vault = Vault::open(store.root(), &owner, options(false)).expect("opened");
    let mut truth = BTreeMap::from([(Vec::new(), Truth::default())]);
    for (n, (name, old)) in before.into_iter().enumerate() {
        let node = vault.resolve(name.as_bytes()).expect("there").node;
        let mut contents = vec![old];
        for step in 0..2 {
            let (mut new, change) =
                (contents[step].clone(), pattern(300, 60 + 10 * n as u64 + step as u64));
            let at = if new.len() < 5000 { 20 } else { 5000 };
            new.resize(new.len().max(at + change.len()), 0);
            new[at..at + change.len()].copy_from_slice(&change);
            let file = vault.open_file(node, WRITE).expect("opened");
            vault.write(file.handle, at as u64, &change, false).expect("written");
            vault.fsync(file.handle, true).expect("flushed");
            vault.release(file.handle).expect("closed");
            contents.push(new);
        }
        truth.insert(name.as_bytes().to_vec(), Truth { contents, xattr: None });
    }
    let store = store.crash(&mut |_| 0);
    drop(vault);
    let mut objects = Vec::new();
    objects_below(&*store.root(), b"", &mut objects);
    let journals = objects.iter().filter(|object| object.path().starts_with(b"+journal-")).count();
    assert_eq!(journals, 1, "the journal is what this fixture is for");
    // The journal first, so that a short input reaches it.
    objects.sort_by_key(|object| {
        (
            !object.path().starts_with(b"+journal-"),
            object.path().first() != Some(&b'+'),
            object.path().to_vec(),
        )
    });
    let count = truth.len();
    Fixture { store, owner, truth, objects, count }
}

impl Object {
    fn path(&self) -> &[u8] {
        let (Object::File(path) | Object::Link(path) | Object::Xattr(path)) = self;
        path
    }
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

fn objects_below(dir: &dyn Dir, path: &[u8], objects: &mut Vec<Object>) {
    if dir.get_xattr_self(XATTR).expect("read").is_some() {
        objects.push(Object::Xattr(path.to_vec()));
    }
    let mut cookie = 0;
    loop {
        let entries = dir.read(cookie, 1 << 16).expect("listed");
        let Some(last) = entries.last() else { return };
        cookie = last.next;
        for entry in &entries {
            let path = join(path, &entry.name);
            match dir.stat(&entry.name).expect("there").kind {
                Kind::Dir => {
                    objects_below(&*dir.open_dir(&entry.name).expect("opened"), &path, objects)
                }
                Kind::Symlink => objects.push(Object::Link(path)),
                Kind::File => {
                    if dir.get_xattr(&entry.name, XATTR).expect("read").is_some() {
                        objects.push(Object::Xattr(path.clone()));
                    }
                    objects.push(Object::File(path));
                }
                _ => {}
            }
        }
    }
}

/// Returns the directory of the store in which `path` ends, and the last component (empty for the
/// root).
fn parent_of<'a>(store: &MemStore, path: &'a [u8]) -> (Arc<dyn Dir>, &'a [u8]) {
    let mut dir = store.root();
    let mut components = path.split(|b| *b == b'/').peekable();
    while let Some(component) = components.next() {
        if components.peek().is_none() {
            return (dir, component);
        }
        dir = dir.open_dir(component).expect("a directory");
    }
    (dir, b"")
}

/// Returns the paths under which an entry may be shown if long names or evidence are missing.
fn other_paths(cipher: &[u8], plain: &[u8]) -> Vec<Vec<u8>> {
    let mut paths = vec![Vec::new()];
    let components = cipher.split(|b| *b == b'/').zip(plain.split(|b| *b == b'/'));
    for (stored, plain) in components {
        let mut names = vec![plain.to_vec(), marked(plain, &mark_of(stored))];
        if stored.starts_with(b"=") {
            names.push(stored.to_vec());
        }
        let below = |path: &Vec<u8>| names.iter().map(|name| join(path, name)).collect::<Vec<_>>();
        paths = paths.iter().flat_map(below).collect();
    }
    paths
}

impl Fixture {
    /// Learns the contents of the vault by reading it once, and the objects of its ciphertext.
    fn survey(&mut self) {
        let vault = Vault::open(self.store.root(), &self.owner, options(true)).expect("opened");
        let mut truth = BTreeMap::new();
        let mut stored = BTreeMap::new();
        let read = walk(&vault, &mut |path, contents, xattr| {
            let contents = contents.expect("read").into_iter().collect();
            truth.insert(path.to_vec(), Truth { contents, xattr: xattr.expect("read") });
            stored.insert(vault.cipher_path(path).expect("mapped"), path.to_vec());
        });
        assert!(read.is_empty(), "{read:?}");
        assert!(vault.check(b"", &mut |_| ()).expect("checked").faults.is_empty());
        objects_below(&*self.store.root(), b"", &mut self.objects);
        // By plain path, so that an input means the same in another process, which has other keys.
        let kind = |path: &[u8]| path.split(|b| *b == b'-').next().unwrap_or(path).to_vec();
        self.objects.sort_by_cached_key(|object| {
            let path = object.path();
            (
                vault.plain_path(path).unwrap_or_else(|_| kind(path)),
                matches!(object, Object::Xattr(_)),
            )
        });
        self.count = truth.len();
        // An entry that loses its long name is shown under the stored one, and one that loses the
        // evidence of a rename is shown with a mark; the same holds for the directories above.
        for (cipher, plain) in stored {
            for other in other_paths(&cipher, &plain) {
                let Truth { contents, xattr } = &truth[&plain];
                let same = Truth { contents: contents.clone(), xattr: xattr.clone() };
                truth.entry(other).or_insert(same);
            }
        }
        self.truth = truth;
    }

    /// Returns a copy of the store with one object changed; `None` if the requested change cannot
    /// be detected.
    fn changed(&self, data: &[u8]) -> Option<MemStore> {
        let (&which, mut rest) = data.split_first()?;
        let object = &self.objects[usize::from(which) % self.objects.len()];
        let store = self.store.snapshot();
        let (dir, name) = parent_of(&store, object.path());
        let original = match object {
            Object::File(_) => read_all(&*dir, name),
            Object::Link(_) => dir.readlink(name).expect("a link"),
            Object::Xattr(_) if name.is_empty() => {
                dir.get_xattr_self(XATTR).expect("read").expect("there")
            }
            Object::Xattr(_) => dir.get_xattr(name, XATTR).expect("read").expect("there"),
        };
        let mut bytes = original.clone();
        for _ in 0..CHANGES_MAX {
            let Some(after) = self.change(&mut bytes, rest) else { break };
            rest = after;
        }
        match object {
            Object::File(path) => {
                // The whole header of another file is that file: not detectable, as the rules
                // state.
                let whole = |other: &Object| match other {
                    Object::File(other) if other != path => {
                        let (dir, name) = parent_of(&self.store, other);
                        let file = dir.open_file(name, Access::Read).expect("opened");
                        let mut header = [0; HEADER];
                        file.read_at(&mut header, 0).expect("read") == HEADER
                            && bytes.starts_with(&header)
                    }
                    _ => false,
                };
                if self.objects.iter().any(whole) {
                    return None;
                }
                let file = dir.open_file(name, Access::ReadWrite).expect("opened");
                file.set_len(bytes.len() as u64).expect("cut");
                let same = bytes.iter().zip(&original).take_while(|(a, b)| a == b).count();
                file.write_at(&bytes[same..], same as u64).expect("written");
            }
            Object::Link(_) => {
                dir.unlink(name).expect("removed");
                if dir.symlink(name, &bytes).is_err() {
                    return None;
                }
            }
            Object::Xattr(_) if name.is_empty() => dir.set_xattr_self(XATTR, &bytes).ok()?,
            Object::Xattr(_) => dir.set_xattr(name, XATTR, &bytes).ok()?,
        }
        Some(store)
    }

    /// Applies the first change of `input`, and returns the rest of it.
    fn change<'a>(&self, bytes: &mut Vec<u8>, input: &'a [u8]) -> Option<&'a [u8]> {
        let ([kind, a, b, c, len], rest) = input.split_first_chunk::<5>()?;
        let at = u32::from_le_bytes([*a, *b, *c, 0]) as usize % (bytes.len() + 1);
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        let end = (at + payload.len()).min(bytes.len());
        match kind % 8 {
            0 => bytes[at..end].iter_mut().zip(payload).for_each(|(byte, change)| *byte ^= change),
            1 => bytes[at..end].iter_mut().zip(payload).for_each(|(byte, new)| *byte = *new),
            2 => bytes.truncate(at),
            3 => bytes.extend_from_slice(payload),
            4 => {
                let end = (at + 16 * usize::from(*len)).min(bytes.len());
                bytes[at..end].fill(0);
            }
            5 => {
                bytes.splice(at..at, payload.iter().copied());
            }
            6 => {
                bytes.drain(at..(at + 16 * usize::from(*len)).min(bytes.len()));
            }
            _ => {
                // A piece of another file, in the same place.
                let other = self.objects.get(usize::from(*payload.first()?))?;
                let Object::File(path) = other else { return Some(rest) };
                let (dir, name) = parent_of(&self.store, path);
                let other = read_all(&*dir, name);
                let end = (at + 64 * (usize::from(*len) + 1)).min(bytes.len()).min(other.len());
                if at < end {
                    bytes[at..end].copy_from_slice(&other[at..end]);
                }
            }
        }
        Some(rest)
    }

    fn run(&self, data: &[u8], read_only: bool) {
        let Some(store) = self.changed(data) else { return };
        let Ok(vault) = Vault::open(store.root(), &self.owner, options(read_only)) else { return };
        let mut seen = 0;
        let mut amiss = Vec::new();
        let errors = walk(&vault, &mut |path, contents, xattr| {
            let Some(truth) = self.truth.get(path) else {
                panic!("{} is shown, which was never there", String::from_utf8_lossy(path));
            };
            seen += 1;
            match contents {
                Ok(Some(bytes)) => assert!(
                    truth.contents.contains(&bytes),
                    "{} has other bytes",
                    String::from_utf8_lossy(path)
                ),
                Ok(None) => assert!(truth.contents.is_empty()),
                Err(error) => amiss.push(error),
            }
            match xattr {
                Ok(value) => {
                    assert_eq!(value, truth.xattr, "attribute of {}", String::from_utf8_lossy(path))
                }
                Err(error) => amiss.push(error),
            }
        });
        amiss.extend(errors);
        let report = vault.check(b"", &mut |_| ()).expect("the check runs");
        if report.faults.is_empty() {
            assert!(amiss.is_empty(), "the check finds nothing, reading does: {amiss:?}");
            assert_eq!(seen, self.count, "the check finds nothing, and something is missing");
        }
        drop(vault.close());
    }
}

fn read_all(dir: &dyn Dir, name: &[u8]) -> Vec<u8> {
    let file = dir.open_file(name, Access::Read).expect("opened");
    let mut bytes = vec![0; file.stat().expect("stat").size as usize];
    let read = file.read_at(&mut bytes, 0).expect("read");
    bytes.truncate(read);
    bytes
}

type Outcome<T> = Result<Option<T>, String>;
type Visit<'a> = dyn FnMut(&[u8], Outcome<Vec<u8>>, Outcome<Vec<u8>>) + 'a;

/// Reads everything; returns what could not even be listed.
fn walk(vault: &Vault, visit: &mut Visit) -> Vec<String> {
    let mut errors = Vec::new();
    visit(b"", Ok(None), read_xattr(vault, ROOT));
    walk_below(vault, ROOT, b"", visit, &mut errors);
    errors
}

fn walk_below(
    vault: &Vault,
    node: NodeId,
    path: &[u8],
    visit: &mut Visit,
    errors: &mut Vec<String>,
) {
    let handle = match vault.open_dir(node) {
        Ok(handle) => handle,
        Err(error) => return errors.push(error.to_string()),
    };
    let mut cookie = 0;
    loop {
        let entries = match vault.read_dir(handle, cookie, 1 << 16) {
            Ok(entries) => entries,
            Err(error) => {
                errors.push(error.to_string());
                break;
            }
        };
        let Some(last) = entries.last() else { break };
        cookie = last.next;
        for entry in &entries {
            let path = join(path, &entry.name);
            match vault.lookup_entry(handle, entry) {
                Ok(attr) => {
                    visit(&path, read_contents(vault, &attr), read_xattr(vault, attr.node));
                    if attr.kind == Kind::Dir {
                        walk_below(vault, attr.node, &path, visit, errors);
                    }
                    vault.forget(attr.node, 1);
                }
                Err(error) => errors.push(error.to_string()),
            }
        }
    }
    vault.release_dir(handle);
}

fn read_contents(vault: &Vault, attr: &Attr) -> Outcome<Vec<u8>> {
    match attr.kind {
        Kind::Symlink => vault.readlink(attr.node).map(Some).map_err(|error| error.to_string()),
        Kind::File => {
            let file = vault.open_file(attr.node, READ).map_err(|error| error.to_string())?;
            let mut contents = Vec::new();
            let mut buf = vec![0; 64 << 10];
            let outcome = loop {
                match vault.read(file.handle, contents.len() as u64, &mut buf) {
                    Ok(0) => break Ok(Some(contents)),
                    Ok(n) => contents.extend_from_slice(&buf[..n]),
                    Err(error) => break Err(error.to_string()),
                }
            };
            let _ = vault.release(file.handle);
            outcome
        }
        _ => Ok(None),
    }
}

fn read_xattr(vault: &Vault, node: NodeId) -> Outcome<Vec<u8>> {
    let names = vault.list_xattr(node).map_err(|error| error.to_string())?;
    if names.is_empty() {
        return Ok(None);
    }
    assert_eq!(names, [ATTRIBUTE]);
    vault.get_xattr(node, ATTRIBUTE).map(Some).map_err(|error| error.to_string())
}

static AES: LazyLock<Fixture> = LazyLock::new(|| fixture(Suite::Aes256Gcm, 12));
static CHACHA: LazyLock<Fixture> = LazyLock::new(|| fixture(Suite::ChaCha20Poly1305, 14));
static CRASHED: LazyLock<Fixture> = LazyLock::new(crashed_fixture);

/// AES, chunks of 4 KiB: many chunks, two levels of index.
pub fn vault_aes(data: &[u8]) {
    AES.run(data, true);
}

/// ChaCha, chunks of 16 KiB: several segments to a chunk.
pub fn vault_chacha(data: &[u8]) {
    CHACHA.run(data, true);
}

/// A vault that has to be recovered when it is opened.
pub fn vault_journal(data: &[u8]) {
    CRASHED.run(data, false);
}

fn seeds(fixture: &Fixture) -> Vec<Vec<u8>> {
    // No change at all; then of each object, a bit of several places and each other kind of change
    // once.
    let mut seeds = vec![Vec::new()];
    for (n, which) in (0..fixture.objects.len() as u8).enumerate() {
        for at in [0, 12, 70, 110, 130, 600, 4100, 4200, 9000] {
            let [a, b, c, _] = u32::to_le_bytes(at + n as u32);
            seeds.push(vec![which, 0, a, b, c, 1, 0x10]);
        }
        seeds.extend(
            (1..8).map(|kind| vec![which, kind, (40 * n) as u8, kind, 0, 2, (n / 2) as u8, 9]),
        );
    }
    seeds
}

pub fn vault_aes_seeds() -> Vec<Vec<u8>> {
    seeds(&AES)
}

pub fn vault_chacha_seeds() -> Vec<Vec<u8>> {
    seeds(&CHACHA)
}

pub fn vault_journal_seeds() -> Vec<Vec<u8>> {
    seeds(&CRASHED)
}

static OPEN: LazyLock<Vault> = LazyLock::new(|| {
    Vault::open(AES.store.snapshot().root(), &AES.owner, options(true)).expect("the fixture opens")
});

fn forget(attr: &Attr) {
    if attr.node != ROOT {
        OPEN.forget(attr.node, 1);
    }
}

/// Paths as a user types them, plain and stored. By the first byte: unchanged, or after the stored
/// path of a directory.
pub fn vault_path(data: &[u8]) {
    let Some((&choice, path)) = data.split_first() else { return };
    let nodes = OPEN.node_count();
    let path = match choice % 3 {
        0 => path.to_vec(),
        1 => join(&OPEN.cipher_path(b"dir/after").expect("a directory"), path),
        _ => join(b"dir/after", path),
    };
    if let Ok(attr) = OPEN.resolve(&path) {
        let cipher = OPEN.cipher_path(&path).expect("what is there has a place");
        let again = OPEN
            .resolve(&OPEN.plain_path(&cipher).expect("and a name"))
            .expect("and is found by it");
        assert_eq!(again.node, attr.node);
        forget(&again);
        forget(&attr);
    } else {
        let _ = OPEN.cipher_path(&path);
    }
    if let Ok(plain) = OPEN.plain_path(&path) {
        forget(&OPEN.resolve(&plain).expect("what has a name is there"));
    }
    assert_eq!(OPEN.node_count(), nodes, "a node is kept without a reference");
}

pub fn vault_path_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let is_whole = |path: &&Vec<u8>| !path.contains(&b'=') && !path.ends_with(b")");
    let is_shown = |path: &&Vec<u8>| is_whole(path) && OPEN.cipher_path(path).is_ok();
    for plain in AES.truth.keys().filter(is_shown) {
        seeds.push([b"\0", &plain[..]].concat());
        seeds.push([b"\0", &OPEN.cipher_path(plain).expect("mapped")[..]].concat());
    }
    seeds.extend(
        [
            &b"\x01+long"[..],
            b"\x01x",
            b"\x02moved",
            b"\x02below/further",
            b"\x02below//./further/",
            b"\x01missing/x",
        ]
        .map(<[u8]>::to_vec),
    );
    seeds
}
