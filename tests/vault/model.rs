//! Random operations on a vault and on a model in memory. Results and contents must be the same, at
//! each step and after each reopening.
//!
//! The model knows inodes, names, bytes and the errors that POSIX requires. It knows nothing of
//! ciphertext.

use std::collections::BTreeMap;
use std::sync::Arc;

use kithfs::crypto::Suite;
use kithfs::store::mem::MemStore;
use kithfs::store::os::OsDir;
use kithfs::store::{Dir, Kind};
use kithfs::vault::{
    Error, Fallocate, OpenFlags, OpenOptions, RenameMode, SetAttr, SetXattr, Vault,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::support::vaults::{self, CALLER, Item, READ, READ_WRITE, at, owner, pattern, split};

/// Length of the longest file that the operations make: in chunks of 4 KiB enough for two levels of
/// index blocks.
const FILE_MAX: u64 = 700_000;

#[derive(Clone, Debug)]
enum Op {
    Create(Path),
    Open(Pick),
    Close(Pick),
    Write { file: Target, offset: u64, len: u64, seed: u64 },
    Append { file: Pick, len: u64, seed: u64 },
    Truncate { file: Target, size: u64 },
    TruncateByPath { file: Pick, size: u64 },
    OpenTruncated(Pick),
    Punch { file: Target, offset: u64, len: u64 },
    ZeroRange { file: Target, offset: u64, len: u64, keep_size: bool },
    Copy { from: Target, from_offset: u64, to: Target, to_offset: u64, len: u64 },
    Read { file: Target, offset: u64, len: u64 },
    Fsync(Target),
    Rename { from: Pick, to: Path, mode: u8 },
    RenameOver { from: Pick, to: Pick, mode: u8 },
    Link { from: Pick, to: Path },
    Unlink(Pick),
    Mkdir(Path),
    Rmdir(Pick),
    Symlink(Path, usize),
    SetXattr { of: Pick, name: u8, len: usize },
    RemoveXattr { of: Pick, name: u8 },
    CommitDue,
    Reopen,
}

/// Selects an existing object, by a number taken modulo their count.
type Pick = u16;

/// A place for a new entry: one of the directories, and a name.
type Path = (Pick, u8);

/// An open handle or a path.
#[derive(Clone, Copy, Debug)]
enum Target {
    Handle(Pick),
    Path(Pick),
}

fn names() -> Vec<Vec<u8>> {
    let long = |len: usize, with: u8| vec![with; len];
    vec![
        b"a".to_vec(),
        b"b".to_vec(),
        b"a name with spaces.txt".to_vec(),
        b"\xff\xfe not utf-8 \x80".to_vec(),
        long(98, b's'),
        long(99, b'l'),
        long(255, b'L'),
        "\u{e9}".repeat(127).into_bytes(),
        b"=looks like a long one".to_vec(),
        b"+control".to_vec(),
        b"copy (conflicted copy 2026-01-02)".to_vec(),
    ]
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![any::<Pick>().prop_map(Target::Handle), any::<Pick>().prop_map(Target::Path)]
}

fn path() -> impl Strategy<Value = Path> {
    (any::<Pick>(), 0..names().len() as u8)
}

/// Offsets and sizes near the edges of segments, chunks and index blocks, and arbitrary ones.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => (0..20u64, -2..=2i64).prop_map(|(segments, d)| (segments * 4096).saturating_add_signed(d)),
        2 => (0..3u64, -2..=2i64).prop_map(|(chunks, d)| (chunks * 262_144).saturating_add_signed(d)),
        1 => (126..131u64, -2..=2i64).prop_map(|(segments, d)| (segments * 4096).saturating_add_signed(d)),
        2 => 0..10_000u64,
        1 => 0..FILE_MAX,
    ]
}

fn len() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..200u64, 3 => offset().prop_map(|n| n.max(1)), 2 => (1..20u64).prop_map(|n| n * 4096), 1 => Just(100_000)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => path().prop_map(Op::Create),
        3 => any::<Pick>().prop_map(Op::Open),
        2 => any::<Pick>().prop_map(Op::Close),
        12 => (target(), offset(), len(), any::<u64>()).prop_map(|(file, offset, len, seed)| Op::Write { file, offset, len, seed }),
        3 => (any::<Pick>(), len(), any::<u64>()).prop_map(|(file, len, seed)| Op::Append { file, len, seed }),
        4 => (target(), offset()).prop_map(|(file, size)| Op::Truncate { file, size }),
        2 => (any::<Pick>(), offset()).prop_map(|(file, size)| Op::TruncateByPath { file, size }),
        1 => any::<Pick>().prop_map(Op::OpenTruncated),
        3 => (target(), offset(), len()).prop_map(|(file, offset, len)| Op::Punch { file, offset, len }),
        2 => (target(), offset(), len(), any::<bool>())
            .prop_map(|(file, offset, len, keep_size)| Op::ZeroRange { file, offset, len, keep_size }),
        1 => (target(), offset(), target(), offset(), len())
            .prop_map(|(from, from_offset, to, to_offset, len)| Op::Copy { from, from_offset, to, to_offset, len }),
        6 => (target(), offset(), len()).prop_map(|(file, offset, len)| Op::Read { file, offset, len }),
        4 => target().prop_map(Op::Fsync),
        3 => (any::<Pick>(), path(), 0..3u8).prop_map(|(from, to, mode)| Op::Rename { from, to, mode }),
        3 => (any::<Pick>(), any::<Pick>(), 0..3u8).prop_map(|(from, to, mode)| Op::RenameOver { from, to, mode }),
        2 => (any::<Pick>(), path()).prop_map(|(from, to)| Op::Link { from, to }),
        2 => any::<Pick>().prop_map(Op::Unlink),
        3 => path().prop_map(Op::Mkdir),
        2 => any::<Pick>().prop_map(Op::Rmdir),
        1 => (path(), prop_oneof![1..100usize, Just(3007), Just(3008), Just(4095)]).prop_map(|(path, len)| Op::Symlink(path, len)),
        2 => (any::<Pick>(), 0..3u8, 0..300usize).prop_map(|(of, name, len)| Op::SetXattr { of, name, len }),
        1 => (any::<Pick>(), 0..3u8).prop_map(|(of, name)| Op::RemoveXattr { of, name }),
        1 => Just(Op::CommitDue),
        2 => Just(Op::Reopen),
    ]
}

/// The kind and contents of an inode of the model.
#[derive(Clone, Debug)]
struct Inode {
    kind: Kind,
    bytes: Vec<u8>,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Default)]
struct Model {
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<Vec<u8>, u64>,
    next: u64,
}

impl Model {
    fn add(&mut self, path: &[u8], kind: Kind, target: &[u8]) -> u64 {
        self.next += 1;
        self.inodes.insert(
            self.next,
            Inode { kind, bytes: Vec::new(), target: target.to_vec(), xattrs: BTreeMap::new() },
        );
        self.names.insert(path.to_vec(), self.next);
        self.next
    }

    fn kind(&self, path: &[u8]) -> Option<Kind> {
        self.names.get(path).map(|i| self.inodes[i].kind)
    }

    fn below(&self, dir: &[u8]) -> Vec<Vec<u8>> {
        let prefix = [dir, b"/"].concat();
        self.names.keys().filter(|p| p.starts_with(&prefix)).cloned().collect()
    }

    fn move_tree(&mut self, from: &[u8], to: &[u8]) {
        for old in self.below(from) {
            let inode = self.names.remove(&old).unwrap();
            self.names.insert([to, &old[from.len()..]].concat(), inode);
        }
        let inode = self.names.remove(from).unwrap();
        self.names.insert(to.to_vec(), inode);
    }

    fn of_kind(&self, wanted: Kind) -> Vec<Vec<u8>> {
        self.names
            .iter()
            .filter(|(_, i)| self.inodes[i].kind == wanted)
            .map(|(p, _)| p.clone())
            .collect()
    }

    fn tree(&self) -> BTreeMap<Vec<u8>, Item> {
        let item = |inode: &Inode| match inode.kind {
            Kind::Dir => Item::Dir,
            Kind::Symlink => Item::Symlink(inode.target.clone()),
            _ => Item::File { bytes: inode.bytes.clone(), xattrs: inode.xattrs.clone() },
        };
        self.names.iter().map(|(path, i)| (path.clone(), item(&self.inodes[i]))).collect()
    }
}

struct Run {
    store: Arc<dyn Dir>,
    vault: Vault,
    model: Model,
    handles: Vec<(u64, u64)>,
    cache_bytes: usize,
}

fn errno<T>(result: &Result<T, Error>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(e) => e.errno(),
    }
}

/// Compares trees without printing megabytes.
fn assert_same(found: &BTreeMap<Vec<u8>, Item>, wanted: &BTreeMap<Vec<u8>, Item>) {
    let names = |tree: &BTreeMap<Vec<u8>, Item>| {
        tree.keys().map(|k| k.escape_ascii().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(found), names(wanted));
    for (path, item) in found {
        if let (
            Item::File { bytes, xattrs },
            Some(Item::File { bytes: want, xattrs: want_xattrs }),
        ) = (item, wanted.get(path))
        {
            assert_bytes(bytes, want, &path.escape_ascii().to_string());
            assert_eq!(xattrs, want_xattrs);
        } else {
            assert_eq!(Some(item), wanted.get(path), "{}", path.escape_ascii());
        }
    }
}

fn assert_bytes(found: &[u8], wanted: &[u8], what: &str) {
    if found != wanted {
        let at = found.iter().zip(wanted).position(|(a, b)| a != b);
        panic!(
            "{what}: {} bytes, should be {}, first difference at {at:?}",
            found.len(),
            wanted.len()
        );
    }
}

impl Run {
    fn new(store: Arc<dyn Dir>, suite: Suite, chunk_log2: u8, cache_bytes: usize) -> Run {
        vaults::create(&store, suite, chunk_log2);
        let vault = Self::open(&store, cache_bytes);
        Run { store, vault, model: Model::default(), handles: Vec::new(), cache_bytes }
    }

    fn open(store: &Arc<dyn Dir>, cache_bytes: usize) -> Vault {
        Vault::open(store.clone(), &owner(), OpenOptions { cache_bytes, ..OpenOptions::default() })
            .unwrap()
    }

    fn pick(list: &[Vec<u8>], pick: Pick) -> Option<Vec<u8>> {
        (!list.is_empty()).then(|| list[pick as usize % list.len()].clone())
    }

    fn place(&self, (dir, name): Path) -> Vec<u8> {
        let mut dirs = self.model.of_kind(Kind::Dir);
        dirs.push(Vec::new());
        let dir = Self::pick(&dirs, dir).unwrap();
        let name = &names()[name as usize];
        if dir.is_empty() { name.clone() } else { [&dir, &b"/"[..], name].concat() }
    }

    fn any(&self, pick: Pick) -> Option<Vec<u8>> {
        Self::pick(&self.model.names.keys().cloned().collect::<Vec<_>>(), pick)
    }

    fn file(&self, pick: Pick) -> Option<Vec<u8>> {
        Self::pick(&self.model.of_kind(Kind::File), pick)
    }

    /// Returns a handle of the target, its inode, and whether the caller has to close the handle.
    fn handle(&self, target: Target) -> Option<(u64, u64, bool)> {
        match target {
            Target::Handle(pick) if !self.handles.is_empty() => {
                let (handle, inode) = self.handles[pick as usize % self.handles.len()];
                Some((handle, inode, false))
            }
            Target::Handle(pick) | Target::Path(pick) => {
                let path = self.file(pick)?;
                let handle = at(&self.vault, &path, |node| {
                    Ok(self.vault.open_file(node, READ_WRITE)?.handle)
                })
                .unwrap();
                Some((handle, self.model.names[&path], true))
            }
        }
    }

    fn with_handle(&mut self, target: Target, act: impl FnOnce(&Vault, u64, &mut Vec<u8>)) {
        let Some((handle, inode, close)) = self.handle(target) else { return };
        act(&self.vault, handle, &mut self.model.inodes.get_mut(&inode).unwrap().bytes);
        if close {
            self.vault.release(handle).unwrap();
        }
    }

    fn create(&mut self, path: &[u8]) {
        let (parent, name) = split(path);
        let made = at(&self.vault, parent, |parent| {
            self.vault.create_file(&CALLER, parent, name, 0o644, READ_WRITE)
        });
        if self.model.names.contains_key(path) {
            assert_eq!(errno(&made), libc::EEXIST);
            return;
        }
        let (attr, opened) = made.unwrap();
        assert_eq!((attr.kind, attr.size), (Kind::File, 0));
        self.vault.forget(attr.node, 1);
        let inode = self.model.add(path, Kind::File, b"");
        self.handles.push((opened.handle, inode));
        if self.handles.len() > 6 {
            self.close(0);
        }
    }

    fn close(&mut self, pick: Pick) {
        if !self.handles.is_empty() {
            let (handle, _) = self.handles.remove(pick as usize % self.handles.len());
            self.vault.flush(handle).unwrap();
            self.vault.release(handle).unwrap();
        }
    }

    fn rename(&mut self, from: &[u8], to: &[u8], mode: u8) {
        let mode =
            [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange][mode as usize];
        let found = errno(&vaults::rename(&self.vault, from, to, mode));
        let inside = |outer: &[u8], inner: &[u8]| inner.starts_with(&[outer, b"/"].concat());
        let (kind, target) = (self.model.kind(from).unwrap(), self.model.kind(to));
        let same = target.is_some() && self.model.names[from] == self.model.names[to];
        let possible: &[i32] = match (mode, target) {
            _ if inside(from, to) => &[libc::EINVAL, libc::ENOENT, libc::EEXIST, libc::ENOTDIR],
            (RenameMode::NoReplace, Some(_)) => &[libc::EEXIST],
            (RenameMode::Exchange, None) => &[libc::ENOENT],
            (RenameMode::Exchange, Some(_)) if inside(to, from) => &[libc::EINVAL],
            (RenameMode::Exchange, Some(_)) => &[0],
            _ if same => &[0],
            (_, Some(Kind::Dir)) if kind != Kind::Dir => &[libc::EISDIR, libc::ENOTEMPTY],
            (_, Some(other)) if kind == Kind::Dir && other != Kind::Dir => &[libc::ENOTDIR],
            (_, Some(Kind::Dir)) if !self.model.below(to).is_empty() => &[libc::ENOTEMPTY],
            _ => &[0],
        };
        assert!(possible.contains(&found), "{mode:?} gave {found}, not one of {possible:?}");
        if found != 0 || same {
            return;
        }
        if mode == RenameMode::Exchange {
            self.model.move_tree(from, b"\0");
            self.model.move_tree(to, from);
            self.model.move_tree(b"\0", to);
        } else {
            self.model.names.remove(to);
            self.model.move_tree(from, to);
        }
    }

    fn reopen(&mut self) {
        for (handle, _) in self.handles.drain(..) {
            self.vault.release(handle).unwrap();
        }
        assert_same(&vaults::tree(&self.vault).unwrap(), &self.model.tree());
        assert_eq!(self.vault.node_count(), 1, "only the root's node is left");
        self.vault.close().unwrap();
        self.vault = Self::open(&self.store, self.cache_bytes);
        assert_same(&vaults::tree(&self.vault).unwrap(), &self.model.tree());
        assert_eq!(vaults::faults(&self.vault), Vec::<String>::new());
        assert_eq!(self.vault.node_count(), 1, "only the root's node is left");
    }

    fn step(&mut self, op: Op) {
        match op {
            Op::Create(place) => self.create(&self.place(place)),
            Op::Open(pick) => {
                if let Some(path) = self.file(pick)
                    && self.handles.len() < 6
                {
                    let handle = at(&self.vault, &path, |node| {
                        Ok(self.vault.open_file(node, READ_WRITE)?.handle)
                    })
                    .unwrap();
                    self.handles.push((handle, self.model.names[&path]));
                }
            }
            Op::Close(pick) => self.close(pick),
            Op::Write { file, offset, len, seed } => {
                let data = pattern(seed, len.min(FILE_MAX.saturating_sub(offset)) as usize);
                self.with_handle(file, |vault, handle, bytes| {
                    vault.write(handle, offset, &data, false).unwrap();
                    let end = offset as usize + data.len();
                    if !data.is_empty() {
                        bytes.resize(bytes.len().max(end), 0);
                        bytes[offset as usize..end].copy_from_slice(&data);
                    }
                });
            }
            Op::Append { file, len, seed } => {
                let Some(path) = self.file(file) else { return };
                let bytes = &mut self.model.inodes.get_mut(&self.model.names[&path]).unwrap().bytes;
                if bytes.len() as u64 + len > FILE_MAX {
                    return;
                }
                let data = pattern(seed, len as usize);
                let flags = OpenFlags { append: true, sync: seed % 4 == 0, ..READ_WRITE };
                let handle =
                    at(&self.vault, &path, |node| Ok(self.vault.open_file(node, flags)?.handle))
                        .unwrap();
                self.vault.write(handle, 0, &data, false).unwrap();
                self.vault.release(handle).unwrap();
                bytes.extend_from_slice(&data);
            }
            Op::Truncate { file, size } => {
                let Some((handle, inode, close)) = self.handle(file) else { return };
                // By any remaining name; a file without one is left alone.
                let path =
                    self.model.names.iter().find(|(_, i)| **i == inode).map(|(p, _)| p.clone());
                if let Some(path) = path {
                    self.truncate(&path, size);
                }
                if close {
                    self.vault.release(handle).unwrap();
                }
            }
            Op::TruncateByPath { file, size } => {
                if let Some(path) = self.file(file) {
                    self.truncate(&path, size);
                }
            }
            Op::OpenTruncated(pick) => {
                if let Some(path) = self.file(pick) {
                    let flags = OpenFlags { truncate: true, ..READ_WRITE };
                    let handle = at(&self.vault, &path, |node| {
                        Ok(self.vault.open_file(node, flags)?.handle)
                    })
                    .unwrap();
                    let inode = self.model.names[&path];
                    self.model.inodes.get_mut(&inode).unwrap().bytes.clear();
                    self.vault.release(handle).unwrap();
                }
            }
            Op::Punch { file, offset, len } => self.with_handle(file, |vault, handle, bytes| {
                vault.fallocate(handle, offset, len, Fallocate::PunchHole).unwrap();
                bytes.iter_mut().skip(offset as usize).take(len as usize).for_each(|b| *b = 0);
            }),
            Op::ZeroRange { file, offset, len, keep_size } => {
                self.with_handle(file, |vault, handle, bytes| {
                    let len = len.min(FILE_MAX.saturating_sub(offset)).max(1);
                    vault
                        .fallocate(handle, offset, len, Fallocate::ZeroRange { keep_size })
                        .unwrap();
                    bytes.iter_mut().skip(offset as usize).take(len as usize).for_each(|b| *b = 0);
                    if !keep_size {
                        bytes.resize(bytes.len().max((offset + len) as usize), 0);
                    }
                })
            }
            Op::Copy { from, from_offset, to, to_offset, len } => {
                let Some((source, source_inode, close_source)) = self.handle(from) else { return };
                let Some((sink, sink_inode, close_sink)) = self.handle(to) else { return };
                if source_inode != sink_inode {
                    let data: Vec<u8> = self.model.inodes[&source_inode]
                        .bytes
                        .iter()
                        .skip(from_offset as usize)
                        .take(len as usize)
                        .copied()
                        .collect();
                    if to_offset + data.len() as u64 <= FILE_MAX {
                        let copied = self
                            .vault
                            .copy_range(source, from_offset, sink, to_offset, len)
                            .unwrap();
                        assert_eq!(copied, data.len() as u64);
                        let bytes = &mut self.model.inodes.get_mut(&sink_inode).unwrap().bytes;
                        let end = to_offset as usize + data.len();
                        if !data.is_empty() {
                            bytes.resize(bytes.len().max(end), 0);
                            bytes[to_offset as usize..end].copy_from_slice(&data);
                        }
                    }
                }
                for (handle, close) in [(source, close_source), (sink, close_sink)] {
                    if close {
                        self.vault.release(handle).unwrap();
                    }
                }
            }
            Op::Read { file, offset, len } => self.with_handle(file, |vault, handle, bytes| {
                let mut buf = vec![0xEE; len as usize];
                let read = vault.read(handle, offset, &mut buf).unwrap();
                let wanted: Vec<u8> =
                    bytes.iter().skip(offset as usize).take(len as usize).copied().collect();
                assert_bytes(&buf[..read], &wanted, "read");
            }),
            Op::Fsync(file) => {
                self.with_handle(file, |vault, handle, _| vault.fsync(handle, false).unwrap())
            }
            Op::Rename { from, to, mode } => {
                if let Some(from) = self.any(from) {
                    let to = self.place(to);
                    if from != to {
                        self.rename(&from, &to, mode);
                    }
                }
            }
            Op::RenameOver { from, to, mode } => {
                if let (Some(from), Some(to)) = (self.any(from), self.any(to))
                    && from != to
                {
                    self.rename(&from, &to, mode);
                }
            }
            Op::Link { from, to } => {
                let Some(from) = self.any(from) else { return };
                let to = self.place(to);
                let (parent, name) = split(&to);
                let made = at(&self.vault, &from, |node| {
                    at(&self.vault, parent, |parent| self.vault.link(node, parent, name))
                });
                if self.model.kind(&from) == Some(Kind::Dir) {
                    assert_eq!(errno(&made), libc::EPERM);
                } else if self.model.names.contains_key(&to) {
                    assert_eq!(errno(&made), libc::EEXIST);
                } else {
                    let attr = made.unwrap();
                    assert!(attr.nlink > 1);
                    self.vault.forget(attr.node, 1);
                    let inode = self.model.names[&from];
                    self.model.names.insert(to, inode);
                }
            }
            Op::Unlink(pick) => {
                let Some(path) = self.any(pick) else { return };
                let (parent, name) = split(&path);
                let removed = at(&self.vault, parent, |parent| self.vault.unlink(parent, name));
                if self.model.kind(&path) == Some(Kind::Dir) {
                    assert_eq!(errno(&removed), libc::EISDIR);
                } else {
                    removed.unwrap();
                    self.model.names.remove(&path);
                }
            }
            Op::Mkdir(place) => {
                let path = self.place(place);
                let made = vaults::mkdir(&self.vault, &path);
                if self.model.names.contains_key(&path) {
                    assert_eq!(errno(&made), libc::EEXIST);
                } else if path.iter().filter(|b| **b == b'/').count() < 4 {
                    made.unwrap();
                    self.model.add(&path, Kind::Dir, b"");
                } else {
                    let (parent, name) = split(&path);
                    at(&self.vault, parent, |parent| self.vault.rmdir(parent, name)).unwrap();
                }
            }
            Op::Rmdir(pick) => {
                let Some(path) =
                    Self::pick(&self.model.of_kind(Kind::Dir), pick).or(self.any(pick))
                else {
                    return;
                };
                let (parent, name) = split(&path);
                let removed = at(&self.vault, parent, |parent| self.vault.rmdir(parent, name));
                if self.model.kind(&path) != Some(Kind::Dir) {
                    assert_eq!(errno(&removed), libc::ENOTDIR);
                } else if !self.model.below(&path).is_empty() {
                    assert_eq!(errno(&removed), libc::ENOTEMPTY);
                } else {
                    removed.unwrap();
                    self.model.names.remove(&path);
                }
            }
            Op::Symlink(place, len) => {
                let path = self.place(place);
                let target = vec![b't'; len];
                let made = vaults::symlink(&self.vault, &path, &target);
                if self.model.names.contains_key(&path) {
                    assert_eq!(errno(&made), libc::EEXIST);
                } else {
                    made.unwrap();
                    self.model.add(&path, Kind::Symlink, &target);
                    let attr = self.vault.resolve(&path).unwrap();
                    assert_eq!(attr.size, len as u64);
                    self.vault.forget(attr.node, 1);
                }
            }
            Op::SetXattr { of, name, len } => {
                if let Some(path) = self.file(of) {
                    let (name, value) =
                        ([b"user.", &[b'x' + name][..]].concat(), pattern(len as u64, len));
                    vaults::set_xattr(&self.vault, &path, &name, &value).unwrap();
                    self.model
                        .inodes
                        .get_mut(&self.model.names[&path])
                        .unwrap()
                        .xattrs
                        .insert(name, value);
                }
            }
            Op::RemoveXattr { of, name } => {
                if let Some(path) = self.file(of) {
                    let name = [b"user.", &[b'x' + name][..]].concat();
                    let removed =
                        at(&self.vault, &path, |node| self.vault.remove_xattr(node, &name));
                    let there = self
                        .model
                        .inodes
                        .get_mut(&self.model.names[&path])
                        .unwrap()
                        .xattrs
                        .remove(&name)
                        .is_some();
                    assert_eq!(errno(&removed), if there { 0 } else { libc::ENODATA });
                    let again = at(&self.vault, &path, |node| {
                        self.vault.set_xattr(node, &name, b"", SetXattr::Replace)
                    });
                    assert_eq!(errno(&again), libc::ENODATA);
                }
            }
            Op::CommitDue => self.vault.commit_due(std::time::Duration::ZERO),
            Op::Reopen => self.reopen(),
        }
    }

    fn truncate(&mut self, path: &[u8], size: u64) {
        let attr = at(&self.vault, path, |node| {
            self.vault.setattr(node, &SetAttr { size: Some(size), ..SetAttr::default() })
        })
        .unwrap();
        assert_eq!(attr.size, size);
        self.model.inodes.get_mut(&self.model.names[path]).unwrap().bytes.resize(size as usize, 0);
    }
}

fn run(
    cases: u32,
    store: impl Fn() -> (Arc<dyn Dir>, Option<tempfile::TempDir>),
    suite: Suite,
    chunk_log2: u8,
    cache_bytes: usize,
) {
    let config = ProptestConfig {
        cases,
        max_shrink_iters: 600,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let result = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    )
    .run(&prop::collection::vec(op(), 1..70), |ops| {
        let (store, _guard) = store();
        let mut run = Run::new(store, suite, chunk_log2, cache_bytes);
        for op in ops {
            run.step(op);
        }
        run.reopen();
        run.vault.close().unwrap();
        Ok(())
    });
    if let Err(e) = result {
        panic!("{e}");
    }
}

fn in_memory() -> (Arc<dyn Dir>, Option<tempfile::TempDir>) {
    (MemStore::new().root(), None)
}

fn on_disk() -> (Arc<dyn Dir>, Option<tempfile::TempDir>) {
    let dir = tempfile::tempdir().unwrap();
    (OsDir::open(dir.path()).unwrap(), Some(dir))
}

const CASES: u32 = 100;

#[test]
fn in_memory_small_chunks_aes() {
    run(CASES, in_memory, Suite::Aes256Gcm, 12, 64 << 20);
}

#[test]
fn in_memory_small_chunks_chacha_with_hardly_any_cache() {
    run(CASES, in_memory, Suite::ChaCha20Poly1305, 12, 16 << 10);
}

#[test]
fn in_memory_large_chunks_aes_with_hardly_any_cache() {
    run(CASES, in_memory, Suite::Aes256Gcm, 18, 16 << 10);
}

#[test]
fn in_memory_large_chunks_chacha() {
    run(CASES, in_memory, Suite::ChaCha20Poly1305, 18, 64 << 20);
}

#[test]
fn on_disk_small_chunks_chacha() {
    run(CASES / 4, on_disk, Suite::ChaCha20Poly1305, 12, 64 << 20);
}

#[test]
fn on_disk_large_chunks_aes() {
    run(CASES / 4, on_disk, Suite::Aes256Gcm, 18, 64 << 20);
}

/// Reading needs no handle for writing, and a reader sees what a writer wrote a moment ago.
#[test]
fn a_reader_sees_what_is_not_committed_yet() {
    let (store, _guard) = in_memory();
    let mut run = Run::new(store, Suite::Aes256Gcm, 12, 64 << 20);
    run.create(b"file");
    run.step(Op::Write { file: Target::Handle(0), offset: 5000, len: 9000, seed: 3 });
    let reader =
        at(&run.vault, b"file", |node| Ok(run.vault.open_file(node, READ)?.handle)).unwrap();
    let mut buf = vec![1; 20_000];
    let read = run.vault.read(reader, 0, &mut buf).unwrap();
    assert_bytes(&buf[..read], &run.model.inodes[&1].bytes, "file");
    run.vault.release(reader).unwrap();
    run.reopen();
}

#[test]
fn a_file_that_shrinks_from_chunks_to_nothing_has_no_tree() {
    // A file of two chunks was truncated to zero: the new header kept the root of the old tree.
    for chunk_log2 in [12, 18] {
        let (store, _guard) = in_memory();
        vaults::create(&store, Suite::Aes256Gcm, chunk_log2);
        let vault = vaults::open(store).unwrap();
        vaults::put(&vault, b"file", &pattern(1, 300_000)).unwrap();
        vaults::put(&vault, b"file", b"").unwrap();
        at(&vault, b"file", |node| {
            vault.setattr(node, &SetAttr { size: Some(300_000), ..SetAttr::default() })
        })
        .unwrap();
        assert_bytes(&vaults::get(&vault, b"file").unwrap(), &[0; 300_000], "file");
        assert_eq!(vaults::faults(&vault), Vec::<String>::new());
    }
}

#[test]
fn writes_after_a_link_is_removed_are_kept_under_the_other() {
    // A file was opened by one of two hard links, and that link was removed. The other had never
    // been looked up. At the last close the file was taken for one without a name, and the written
    // data was dropped.
    let (store, _guard) = in_memory();
    vaults::create(&store, Suite::Aes256Gcm, 18);
    let vault = vaults::open(store.clone()).unwrap();
    vaults::put(&vault, b"one", b"old").unwrap();
    let attr = at(&vault, b"one", |node| vault.link(node, kithfs::vault::ROOT, b"two")).unwrap();
    vault.forget(attr.node, 1);
    vault.close().unwrap();

    let vault = vaults::open(store).unwrap();
    let handle = vaults::open_or_create(&vault, b"one", READ_WRITE).unwrap();
    vault.unlink(kithfs::vault::ROOT, b"one").unwrap();
    vault.write(handle, 0, b"new", false).unwrap();
    vault.release(handle).unwrap();
    assert_eq!(vaults::get(&vault, b"two").unwrap(), b"new");
}
