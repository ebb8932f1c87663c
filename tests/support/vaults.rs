//! Vaults for tests of the library: created and opened in any store, filled and compared by whole
//! trees.

use std::collections::BTreeMap;
use std::sync::Arc;

use kithfs::crypto::{Random, Suite};
use kithfs::roster::Identity;
use kithfs::store::mem::MemStore;
use kithfs::store::{Dir, Kind};
use kithfs::vault::{
    Caller, CreateOptions, CreateShare, Error, Local, NodeId, OpenFlags, OpenOptions, ROOT,
    SetXattr, Vault,
};

/// The user that the tests act for.
pub const CALLER: Caller = Caller { uid: 0, gid: 0, umask: 0o022 };
/// Flags of a writer.
pub const READ_WRITE: OpenFlags =
    OpenFlags { read: true, write: true, truncate: false, append: false, sync: false };
/// Flags of a reader.
pub const READ: OpenFlags =
    OpenFlags { read: true, write: false, truncate: false, append: false, sync: false };

/// A generator that returns the same bytes in each run (xorshift64*).
pub struct Seeded(parking_lot::Mutex<u64>);

impl Seeded {
    pub fn new(seed: u64) -> Self {
        Seeded(parking_lot::Mutex::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1))
    }

    pub fn next(&self) -> u64 {
        let mut state = self.0.lock();
        *state ^= *state >> 12;
        *state ^= *state << 25;
        *state ^= *state >> 27;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number less than `n`.
    pub fn below(&self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

impl Random for Seeded {
    fn fill(&self, buf: &mut [u8]) {
        buf.iter_mut().for_each(|b| *b = (self.next() >> 32) as u8);
    }
}

/// The identity that owns every vault of the tests.
pub fn owner() -> Identity {
    Identity::generate(&Seeded::new(1))
}

/// Creates a vault.
pub fn create(store: &Arc<dyn Dir>, suite: Suite, chunk_log2: u8) {
    Vault::create(store, &CreateOptions { suite, chunk_log2 }, &owner())
        .expect("the vault is made");
}

/// Creates a vault for a random session: one in four has signed files, one in three has chunks of
/// 256 KiB.
pub fn create_by_seed(store: &Arc<dyn Dir>, seed: u64) {
    let options = CreateOptions {
        suite: Suite::Aes256Gcm,
        chunk_log2: if seed.is_multiple_of(3) { 18 } else { 12 },
    };
    if seed.is_multiple_of(4) {
        let share = CreateShare { isolated: false, name: "Ann".into(), others: Vec::new() };
        Vault::create_signed(store, &options, &owner(), &share).expect("the vault is made");
    } else {
        create(store, options.suite, options.chunk_log2);
    }
}

/// Opens a vault.
pub fn open(store: Arc<dyn Dir>) -> Result<Vault, Error> {
    Vault::open(store, &owner(), OpenOptions::default())
}

/// Opens a vault on a machine with this state directory, if any.
pub fn open_on(store: &MemStore, state: Option<&MemStore>) -> Result<Vault, Error> {
    let local = state.map(|state| Local { state: state.root(), path: "/copy".into() });
    Vault::open(store.root(), &owner(), OpenOptions { local, ..OpenOptions::default() })
}

/// Returns bytes that depend on `seed` and position.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let random = Seeded::new(seed);
    let mut bytes = vec![0; len];
    bytes
        .chunks_mut(8)
        .for_each(|chunk| chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]));
    bytes
}

/// Splits a path into parent and last component.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|b| *b == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// Runs `act` on the node at a path, and forgets the node.
pub fn at<T>(
    vault: &Vault,
    path: &[u8],
    act: impl FnOnce(NodeId) -> Result<T, Error>,
) -> Result<T, Error> {
    let node = vault.resolve(path)?.node;
    let result = act(node);
    if node != ROOT {
        vault.forget(node, 1);
    }
    result
}

/// Writes a whole file, which is created if it is missing.
pub fn put(vault: &Vault, path: &[u8], bytes: &[u8]) -> Result<(), Error> {
    let handle = open_or_create(vault, path, OpenFlags { truncate: true, ..READ_WRITE })?;
    let written = if bytes.is_empty() { Ok(()) } else { vault.write(handle, 0, bytes, false) };
    vault.release(handle)?;
    written
}

/// Opens a file, which is created if it is missing. Only the handle keeps its node.
pub fn open_or_create(vault: &Vault, path: &[u8], flags: OpenFlags) -> Result<u64, Error> {
    match at(vault, path, |node| Ok(vault.open_file(node, flags)?.handle)) {
        Err(e) if e.errno() == libc::ENOENT => {
            let (parent, name) = split(path);
            let (attr, opened) =
                at(vault, parent, |parent| vault.create_file(&CALLER, parent, name, 0o644, flags))?;
            vault.forget(attr.node, 1);
            Ok(opened.handle)
        }
        other => other,
    }
}

/// Opens a file, which is created if it is missing, writes at `offset`, and closes it.
pub fn write_at(vault: &Vault, path: &[u8], offset: u64, bytes: &[u8]) -> Result<(), Error> {
    let handle = open_or_create(vault, path, READ_WRITE)?;
    let written = vault.write(handle, offset, bytes, false);
    vault.release(handle)?;
    written
}

/// Reads a whole file.
pub fn get(vault: &Vault, path: &[u8]) -> Result<Vec<u8>, Error> {
    at(vault, path, |node| get_node(vault, node))
}

/// Reads a whole file by its node, in pieces that are not aligned to anything.
pub fn get_node(vault: &Vault, node: NodeId) -> Result<Vec<u8>, Error> {
    let handle = vault.open_file(node, READ)?.handle;
    let mut bytes = Vec::new();
    let mut buf = vec![0xAA; 50_001];
    let result = loop {
        match vault.read(handle, bytes.len() as u64, &mut buf) {
            Ok(0) => break Ok(()),
            Ok(read) => bytes.extend_from_slice(&buf[..read]),
            Err(e) => break Err(e),
        }
    };
    vault.release(handle)?;
    result.map(|()| bytes)
}

/// Makes a directory.
pub fn mkdir(vault: &Vault, path: &[u8]) -> Result<(), Error> {
    let (parent, name) = split(path);
    let attr = at(vault, parent, |parent| vault.mkdir(&CALLER, parent, name, 0o755))?;
    vault.forget(attr.node, 1);
    Ok(())
}

/// Makes a symbolic link.
pub fn symlink(vault: &Vault, path: &[u8], target: &[u8]) -> Result<(), Error> {
    let (parent, name) = split(path);
    let attr = at(vault, parent, |parent| vault.symlink(&CALLER, parent, name, target))?;
    vault.forget(attr.node, 1);
    Ok(())
}

/// Renames.
pub fn rename(
    vault: &Vault,
    from: &[u8],
    to: &[u8],
    mode: kithfs::vault::RenameMode,
) -> Result<(), Error> {
    let ((from_dir, from_name), (to_dir, to_name)) = (split(from), split(to));
    at(vault, from_dir, |from_dir| {
        at(vault, to_dir, |to_dir| vault.rename(from_dir, from_name, to_dir, to_name, mode))
    })
}

/// Sets an attribute.
pub fn set_xattr(vault: &Vault, path: &[u8], name: &[u8], value: &[u8]) -> Result<(), Error> {
    at(vault, path, |node| vault.set_xattr(node, name, value, SetXattr::Any))
}

/// An entry as a program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Dir,
    File { bytes: Vec<u8>, xattrs: BTreeMap<Vec<u8>, Vec<u8>> },
    Symlink(Vec<u8>),
    Other(Kind),
}

/// Returns names and attributes of the entries of a directory; adds one lookup to each node.
pub fn entries(vault: &Vault, node: NodeId) -> Result<Vec<(Vec<u8>, kithfs::vault::Attr)>, Error> {
    let handle = vault.open_dir(node)?;
    let mut all = Vec::new();
    let mut cookie = 0;
    let result = loop {
        match vault.read_dir(handle, cookie, 4096) {
            Ok(part) if part.is_empty() => break Ok(()),
            Ok(part) => {
                cookie = part.last().expect("not empty").next;
                for entry in part {
                    all.push((entry.name.to_vec(), vault.lookup_entry(handle, &entry)?));
                }
            }
            Err(e) => break Err(e),
        }
    };
    vault.release_dir(handle);
    result.map(|()| all)
}

/// Returns everything in the vault by path, or the first error.
pub fn tree(vault: &Vault) -> Result<BTreeMap<Vec<u8>, Item>, Error> {
    let mut all = BTreeMap::new();
    walk(vault, ROOT, b"", &mut |path, item| {
        all.insert(path.to_vec(), item?);
        Ok(())
    })?;
    Ok(all)
}

/// Receives a path with its contents, or with the error of reading it.
pub type Visit<'a> = dyn FnMut(&[u8], Result<Item, Error>) -> Result<(), Error> + 'a;

/// Visits everything below `node`: each path with its contents, or the error of reading it.
pub fn walk(vault: &Vault, node: NodeId, path: &[u8], visit: &mut Visit<'_>) -> Result<(), Error> {
    for (name, attr) in entries(vault, node)? {
        let path = if path.is_empty() { name } else { [path, b"/", &name].concat() };
        let item = match attr.kind {
            Kind::Dir => Ok(Item::Dir),
            Kind::File => get_node(vault, attr.node).and_then(|bytes| {
                let mut xattrs = BTreeMap::new();
                for name in vault.list_xattr(attr.node)? {
                    let value = vault.get_xattr(attr.node, &name)?;
                    xattrs.insert(name, value);
                }
                Ok(Item::File { bytes, xattrs })
            }),
            Kind::Symlink => vault.readlink(attr.node).map(Item::Symlink),
            other => Ok(Item::Other(other)),
        };
        visit(&path, item)?;
        if attr.kind == Kind::Dir
            && let Err(e) = walk(vault, attr.node, &path, visit)
        {
            visit(&path, Err(e))?;
        }
        vault.forget(attr.node, 1);
    }
    Ok(())
}

/// Checks the whole vault and returns the faults, one line each.
pub fn faults(vault: &Vault) -> Vec<String> {
    let report = vault.check(b"", &mut |_| {}).expect("the check runs");
    report
        .faults
        .iter()
        .map(|f| format!("{} ({}): {}", f.plain.escape_ascii(), f.cipher.escape_ascii(), f.what))
        .collect()
}

/// Makes everything below a directory durable.
pub fn settle(vault: &Vault, node: NodeId) {
    for (_, attr) in entries(vault, node).unwrap() {
        match attr.kind {
            Kind::Dir => settle(vault, attr.node),
            Kind::File => {
                let handle = vault.open_file(attr.node, READ_WRITE).unwrap().handle;
                vault.fsync(handle, false).unwrap();
                vault.release(handle).unwrap();
            }
            _ => {}
        }
        vault.forget(attr.node, 1);
    }
    let handle = vault.open_dir(node).unwrap();
    vault.sync_dir(handle).unwrap();
    vault.release_dir(handle);
}
