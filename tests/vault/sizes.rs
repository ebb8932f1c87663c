//! Sizes and names at the limits, sparse files, renamed directories, conflict copies of sync tools:
//! through the library, most of them on a real directory.

use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use kithfs::crypto::Suite;
use kithfs::store::fault::{Calls, FaultPlan, FaultStore};
use kithfs::store::mem::MemStore;
use kithfs::store::os::OsDir;
use kithfs::store::{Kind, Seek};
use kithfs::vault::{Fallocate, NodeId, OpenFlags, ROOT, RenameMode, SetAttr, Sought, Vault};
use tempfile::TempDir;

use crate::support::vaults::{
    self, CALLER, Item, READ, READ_WRITE, at, get, mkdir, pattern, put, rename, symlink, tree,
};

const SIZES: [usize; 8] = [0, 1, 4095, 4096, 4097, 262_143, 262_144, 262_145];

struct OnDisk {
    dir: TempDir,
    vault: Vault,
}

impl OnDisk {
    fn new(suite: Suite, chunk_log2: u8) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = OsDir::open(dir.path()).unwrap();
        vaults::create(&store, suite, chunk_log2);
        OnDisk { vault: vaults::open(store).unwrap(), dir }
    }

    fn reopen(&mut self) {
        self.vault.close().unwrap();
        self.vault = vaults::open(OsDir::open(self.dir.path()).unwrap()).unwrap();
    }

    fn size(&self, path: &[u8]) -> u64 {
        at(&self.vault, path, |node| Ok(self.vault.getattr(node)?.size)).unwrap()
    }

    /// Returns the path of an entry's ciphertext.
    fn cipher(&self, path: &[u8]) -> PathBuf {
        self.dir.path().join(std::ffi::OsStr::from_bytes(&self.vault.cipher_path(path).unwrap()))
    }

    fn clean(&self) {
        assert_eq!(vaults::faults(&self.vault), Vec::<String>::new());
    }
}

#[test]
fn sizes_at_the_edges() {
    for (suite, chunk_log2) in
        [(Suite::Aes256Gcm, 18), (Suite::ChaCha20Poly1305, 12), (Suite::Aes256Gcm, 22)]
    {
        let mut on = OnDisk::new(suite, chunk_log2);
        let name = |size: usize| format!("{size} bytes").into_bytes();
        for size in SIZES {
            let handle = vaults::open_or_create(&on.vault, &name(size), READ_WRITE).unwrap();
            on.vault.write(handle, 0, &pattern(size as u64, size), false).unwrap();
            assert_eq!(on.size(&name(size)), size as u64, "before the commit");
            on.vault.release(handle).unwrap();
            assert_eq!(on.size(&name(size)), size as u64, "after the commit");
        }
        for _ in 0..2 {
            for size in SIZES {
                assert_eq!(on.size(&name(size)), size as u64);
                assert!(
                    get(&on.vault, &name(size)).unwrap() == pattern(size as u64, size),
                    "{size} bytes, chunks of 2^{chunk_log2}"
                );
            }
            on.clean();
            on.reopen();
        }
        // From every size to every other one.
        for from in SIZES {
            for to in SIZES {
                put(&on.vault, b"changing", &pattern(1, from)).unwrap();
                let set = SetAttr { size: Some(to as u64), ..SetAttr::default() };
                at(&on.vault, b"changing", |node| on.vault.setattr(node, &set)).unwrap();
                let mut wanted = pattern(1, from);
                wanted.resize(to, 0);
                assert_eq!(on.size(b"changing"), to as u64);
                assert!(get(&on.vault, b"changing").unwrap() == wanted, "{from} to {to}");
            }
        }
        on.clean();
    }
}

#[test]
fn a_sparse_file_of_a_tebibyte() {
    for chunk_log2 in [12, 18] {
        let mut on = OnDisk::new(Suite::Aes256Gcm, chunk_log2);
        const SIZE: u64 = 1 << 40;
        let islands = [(0u64, 5000usize), (SIZE / 3 / 4096 * 4096, 300_000), (SIZE - 100, 100)];
        let handle = vaults::open_or_create(&on.vault, b"sparse", READ_WRITE).unwrap();
        for (offset, len) in islands {
            on.vault.write(handle, offset, &pattern(offset, len), false).unwrap();
        }
        assert_eq!(on.size(b"sparse"), SIZE);
        on.vault.release(handle).unwrap();
        on.reopen();
        assert_eq!(on.size(b"sparse"), SIZE);
        let stat = fs::metadata(on.cipher(b"sparse")).unwrap();
        assert!(
            std::os::unix::fs::MetadataExt::blocks(&stat) * 512 < 4 << 20,
            "the file takes little space"
        );

        let handle =
            at(&on.vault, b"sparse", |node| Ok(on.vault.open_file(node, READ)?.handle)).unwrap();
        for (offset, len) in islands {
            let mut buf = vec![1; len + 8192];
            let from = offset.saturating_sub(4096);
            let read = on.vault.read(handle, from, &mut buf).unwrap();
            let before = (offset - from) as usize;
            assert!(buf[..before].iter().all(|b| *b == 0));
            assert!(buf[before..before + len] == pattern(offset, len));
            assert!(buf[before + len..read].iter().all(|b| *b == 0));
        }
        let seek = |offset, what| on.vault.seek_data_hole(handle, offset, what);
        // Data is found by whole segments.
        let (second, end) = (islands[1].0, (islands[1].0 + 300_000).next_multiple_of(4096));
        assert_eq!(seek(0, Seek::Data).unwrap(), 0);
        assert_eq!(seek(0, Seek::Hole).unwrap(), 8192);
        assert_eq!(seek(8192, Seek::Hole).unwrap(), 8192);
        assert_eq!(seek(8192, Seek::Data).unwrap(), second);
        assert_eq!(seek(second + 10, Seek::Data).unwrap(), second + 10);
        assert_eq!(seek(second, Seek::Hole).unwrap(), end);
        assert_eq!(seek(end, Seek::Data).unwrap(), SIZE - 4096);
        assert_eq!(seek(SIZE - 100, Seek::Hole).unwrap(), SIZE);
        assert_eq!(seek(SIZE, Seek::Data).unwrap_err().errno(), libc::ENXIO);

        // While a program may write, a hole counts as one only if the cache above has sent all its
        // data; data is always data.
        let under_cache =
            |offset, what, sent: Range<u64>| on.vault.seek_under_cache(handle, offset, what, sent);
        assert_eq!(under_cache(8192, Seek::Data, 0..0).unwrap(), Sought::At(second));
        let writer =
            at(&on.vault, b"sparse", |node| Ok(on.vault.open_file(node, READ_WRITE)?.handle))
                .unwrap();
        assert_eq!(under_cache(second + 10, Seek::Data, 0..0).unwrap(), Sought::At(second + 10));
        assert_eq!(under_cache(8192, Seek::Data, 0..0).unwrap(), Sought::Unsent(8192..second));
        assert_eq!(
            under_cache(8192, Seek::Data, 8193..second).unwrap(),
            Sought::Unsent(8192..second)
        );
        assert_eq!(under_cache(8192, Seek::Data, 4096..second).unwrap(), Sought::At(second));
        assert_eq!(
            under_cache(second, Seek::Hole, 0..0).unwrap(),
            Sought::Unsent(end..SIZE - 4096)
        );
        assert_eq!(under_cache(second, Seek::Hole, end..SIZE - 4096).unwrap(), Sought::At(end));
        assert_eq!(
            under_cache(SIZE - 100, Seek::Hole, 0..SIZE).unwrap(),
            Sought::Unsent(SIZE..u64::MAX)
        );
        assert_eq!(under_cache(SIZE - 100, Seek::Hole, SIZE..u64::MAX).unwrap(), Sought::At(SIZE));
        for what in [Seek::Data, Seek::Hole] {
            assert_eq!(under_cache(SIZE, what, 0..0).unwrap(), Sought::Unsent(SIZE..u64::MAX));
            assert_eq!(under_cache(SIZE, what, 0..u64::MAX).unwrap_err().errno(), libc::ENXIO);
        }
        on.vault.release(writer).unwrap();
        on.vault.release(handle).unwrap();
        on.clean();

        // Punching a hole over everything leaves nothing, and costs no time for existing holes.
        let handle =
            at(&on.vault, b"sparse", |node| Ok(on.vault.open_file(node, READ_WRITE)?.handle))
                .unwrap();
        on.vault.fallocate(handle, 0, SIZE, Fallocate::PunchHole).unwrap();
        on.vault.release(handle).unwrap();
        let handle =
            at(&on.vault, b"sparse", |node| Ok(on.vault.open_file(node, READ)?.handle)).unwrap();
        assert_eq!(
            on.vault.seek_data_hole(handle, 0, Seek::Data).unwrap_err().errno(),
            libc::ENXIO
        );
        on.vault.release(handle).unwrap();
        on.clean();
    }
}

#[test]
fn one_write_of_many_megabytes_over_a_durable_file() {
    // All data that a write replaced went into one journal record, which no replay would have read
    // from 64 MiB on.
    let mut on = OnDisk::new(Suite::Aes256Gcm, 18);
    put(&on.vault, b"file", &pattern(1, 80 << 20)).unwrap();
    on.reopen();
    let handle = vaults::open_or_create(&on.vault, b"file", READ_WRITE).unwrap();
    on.vault.write(handle, 5, &pattern(2, 70 << 20), false).unwrap();
    on.vault.fsync(handle, false).unwrap();
    on.vault.fallocate(handle, 4096, 60 << 20, Fallocate::PunchHole).unwrap();
    on.vault.release(handle).unwrap();
    let mut wanted = pattern(1, 80 << 20);
    wanted[5..5 + (70 << 20)].copy_from_slice(&pattern(2, 70 << 20));
    wanted[4096..4096 + (60 << 20)].fill(0);
    assert!(get(&on.vault, b"file").unwrap() == wanted);
}

#[test]
fn names_at_the_edges() {
    let mut on = OnDisk::new(Suite::ChaCha20Poly1305, 18);
    for len in [1, 7, 8, 9, 97, 98, 99, 100, 183, 254, 255] {
        let name = |with: u8| vec![with; len];
        put(&on.vault, &name(b'f'), b"file").unwrap();
        mkdir(&on.vault, &name(b'd')).unwrap();
        put(&on.vault, &[name(b'd'), b"/inside".to_vec()].concat(), b"inside").unwrap();
        symlink(&on.vault, &name(0xFE), b"target").unwrap();
    }
    assert_eq!(put(&on.vault, &[b'x'; 256], b"").unwrap_err().errno(), libc::ENAMETOOLONG);
    let before = tree(&on.vault).unwrap();
    assert_eq!(before.len(), 11 * 4);
    on.reopen();
    assert_eq!(tree(&on.vault).unwrap(), before);
    on.clean();
    for name in before.keys().filter(|name| before[*name] != Item::Dir) {
        let (parent, name) = vaults::split(name);
        at(&on.vault, parent, |parent| on.vault.unlink(parent, name)).unwrap();
    }
    for name in before.keys().filter(|name| before[*name] == Item::Dir) {
        on.vault.rmdir(ROOT, name).unwrap();
    }
    on.clean();
}

#[test]
fn renamed_directories() {
    let mut on = OnDisk::new(Suite::Aes256Gcm, 18);
    let v = &on.vault;
    mkdir(v, b"empty").unwrap();
    mkdir(v, b"full").unwrap();
    mkdir(v, b"full/nested").unwrap();
    mkdir(v, b"full/nested/deep").unwrap();
    put(v, b"full/file", b"1").unwrap();
    put(v, b"full/nested/deep/file", b"2").unwrap();
    let long = vec![b'n'; 200];
    put(v, &[b"full/", &long[..]].concat(), b"3").unwrap();

    rename(v, b"empty", b"empty 2", RenameMode::Replace).unwrap();
    put(v, b"empty 2/now not", b"4").unwrap();
    rename(v, b"full", b"full 2", RenameMode::Replace).unwrap();
    rename(v, b"full 2/nested", b"nested 2", RenameMode::Replace).unwrap();
    rename(v, b"nested 2", &long, RenameMode::NoReplace).unwrap();
    // The old name is free, and can be used for another directory.
    mkdir(v, b"full").unwrap();
    put(v, b"full/other", b"5").unwrap();
    rename(v, b"full", b"full 2", RenameMode::Exchange).unwrap();
    // Over a directory that was renamed with contents and is empty again.
    mkdir(v, b"was renamed").unwrap();
    put(v, b"was renamed/x", b"").unwrap();
    rename(v, b"was renamed", b"bare", RenameMode::Replace).unwrap();
    at(v, b"bare", |node| v.unlink(node, b"x")).unwrap();
    assert_eq!(
        rename(v, b"bare", b"full", RenameMode::Replace).unwrap_err().errno(),
        libc::ENOTEMPTY
    );
    rename(v, &long, b"bare", RenameMode::Replace).unwrap();

    let before = tree(v).unwrap();
    let file = |path: &[u8]| before.get(path).cloned();
    let is = |bytes: &[u8]| Some(Item::File { bytes: bytes.to_vec(), xattrs: Default::default() });
    assert_eq!(file(b"empty 2/now not"), is(b"4"));
    assert_eq!(file(b"full/file"), is(b"1"));
    assert_eq!(file(&[b"full/", &long[..]].concat()), is(b"3"));
    assert_eq!(file(b"full 2/other"), is(b"5"));
    assert_eq!(file(b"bare/deep/file"), is(b"2"));
    on.reopen();
    assert_eq!(tree(&on.vault).unwrap(), before);
    on.clean();
    // A directory that was renamed can be removed once it is empty again.
    let v = &on.vault;
    at(v, b"bare/deep", |node| v.unlink(node, b"file")).unwrap();
    at(v, b"bare", |node| v.rmdir(node, b"deep")).unwrap();
    v.rmdir(ROOT, b"bare").unwrap();
    on.clean();
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    if from.is_dir() {
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        fs::copy(from, to).unwrap();
    }
}

#[test]
fn conflict_copies_show_and_read() {
    // A conflict copy of a directory was given an id of its own, under which none of its names
    // could be read; and a long name was removed with the entry from which it was copied.
    let mut on = OnDisk::new(Suite::Aes256Gcm, 18);
    let long = vec![b'l'; 190];
    put(&on.vault, b"file", b"file's").unwrap();
    put(&on.vault, &long, b"long one's").unwrap();
    for dir in [&b"dir"[..], b"moved"] {
        mkdir(&on.vault, dir).unwrap();
        mkdir(&on.vault, &[dir, b"/sub"].concat()).unwrap();
        put(&on.vault, &[dir, b"/sub/inside"].concat(), dir).unwrap();
    }
    rename(&on.vault, b"moved", b"moved 2", RenameMode::Replace).unwrap();
    let suffixes = [" (conflicted copy 2026-01-02)", ".sync-conflict-20260102-120000-ABCDEFG"];
    for name in [&b"file"[..], &long, b"dir", b"moved 2"] {
        let from = on.cipher(name);
        for suffix in suffixes {
            let mut to = from.clone().into_os_string();
            to.push(suffix);
            copy(&from, &PathBuf::from(to));
        }
    }
    on.reopen();
    let with = |name: &[u8], suffix: &str, rest: &[u8]| [name, suffix.as_bytes(), rest].concat();
    let read_all = |vault: &Vault| {
        for suffix in suffixes {
            assert_eq!(get(vault, &with(b"file", suffix, b"")).unwrap(), b"file's");
            assert_eq!(get(vault, &with(&long, suffix, b"")).unwrap(), b"long one's");
            assert_eq!(get(vault, &with(b"dir", suffix, b"/sub/inside")).unwrap(), b"dir");
            assert_eq!(get(vault, &with(b"moved 2", suffix, b"/sub/inside")).unwrap(), b"moved");
        }
    };
    read_all(&on.vault);
    on.clean();
    let all = tree(&on.vault).unwrap();
    assert_eq!(all.len(), 4 * 3 + 2 * 2 * 3);

    // The copies outlive their originals.
    on.vault.unlink(ROOT, &long).unwrap();
    on.vault.unlink(ROOT, b"file").unwrap();
    on.reopen();
    read_all(&on.vault);
    on.clean();
    // They can be written to, renamed to names of their own, and replaced.
    let (first, second) = (suffixes[0], suffixes[1]);
    rename(&on.vault, &with(b"dir", first, b""), b"dir 2", RenameMode::Replace).unwrap();
    rename(&on.vault, &with(b"moved 2", first, b""), b"moved 3", RenameMode::Replace).unwrap();
    rename(&on.vault, &with(&long, first, b""), b"short", RenameMode::Replace).unwrap();
    put(&on.vault, &with(b"dir", second, b"/sub/new"), b"new").unwrap();
    put(&on.vault, b"replacement", b"replaced").unwrap();
    rename(&on.vault, b"replacement", &with(b"file", second, b""), RenameMode::Replace).unwrap();
    on.vault.unlink(ROOT, &with(&long, second, b"")).unwrap();
    on.reopen();
    assert_eq!(get(&on.vault, b"dir 2/sub/inside").unwrap(), b"dir");
    assert_eq!(get(&on.vault, b"moved 3/sub/inside").unwrap(), b"moved");
    assert_eq!(get(&on.vault, b"short").unwrap(), b"long one's");
    assert_eq!(get(&on.vault, &with(b"dir", second, b"/sub/new")).unwrap(), b"new");
    assert_eq!(get(&on.vault, &with(b"file", second, b"")).unwrap(), b"replaced");
    on.clean();
}

#[test]
fn a_flush_commits_so_that_close_can_report_a_failure() {
    // close(2) returns the error of flush; an error that only release found was reported to
    // nobody.
    let on = OnDisk::new(Suite::Aes256Gcm, 18);
    put(&on.vault, b"file", &pattern(1, 10_000)).unwrap();
    let handle = vaults::open_or_create(&on.vault, b"file", READ_WRITE).unwrap();
    on.vault.write(handle, 0, b"changed", false).unwrap();
    on.vault.flush(handle).unwrap();
    let other = vaults::open(OsDir::open(on.dir.path()).unwrap()).err().map(|e| e.errno());
    assert_eq!(other, Some(libc::EBUSY));
    // Committed by now: a second reader of the store sees it.
    let reader = Vault::open(
        OsDir::open(on.dir.path()).unwrap(),
        &vaults::owner(),
        kithfs::vault::OpenOptions {
            read_only: true,
            lock: kithfs::vault::LockMode::None,
            ..Default::default()
        },
    )
    .unwrap();
    assert_eq!(&get(&reader, b"file").unwrap()[..7], b"changed");
    let flags = OpenFlags { write: true, ..READ };
    assert_eq!(
        at(&reader, b"file", |node| reader.open_file(node, flags)).unwrap_err().errno(),
        libc::EROFS
    );
    assert_eq!(at(&reader, b"file", |node| Ok(reader.getattr(node)?.kind)).unwrap(), Kind::File);
    reader.close().unwrap();
    on.vault.release(handle).unwrap();
}

/// Creates nested directories. Returns their nodes, the root first; each has one lookup.
fn make_deep(vault: &Vault, depth: usize) -> Vec<NodeId> {
    let mut nodes = vec![ROOT];
    for _ in 0..depth {
        nodes.push(vault.mkdir(&vaults::CALLER, nodes[nodes.len() - 1], b"d", 0o755).unwrap().node);
    }
    nodes
}

/// Goes down a deep tree, and removes it from the bottom up, as `rm -r` does. Returns how many
/// calls to the store that takes.
fn calls_of_removal(depth: usize) -> u64 {
    let (store, plan) = (MemStore::new(), FaultPlan::new());
    vaults::create(&store.root(), Suite::Aes256Gcm, 12);
    let vault = vaults::open(store.root()).unwrap();
    make_deep(&vault, depth);
    vault.close().unwrap();
    let vault = vaults::open(FaultStore::wrap(store.root(), plan.clone())).unwrap();
    let before = plan.count(Calls::All);
    let mut nodes = vec![ROOT];
    for _ in 0..depth {
        let node = vault.lookup(nodes[nodes.len() - 1], b"d").unwrap().node;
        assert!(vaults::entries(&vault, node).unwrap().len() <= 1);
        nodes.push(node);
    }
    while let Some(node) = nodes.pop().filter(|node| *node != ROOT) {
        vault.forget(node, 1);
        vault.rmdir(nodes[nodes.len() - 1], b"d").unwrap();
    }
    plan.count(Calls::All) - before
}

/// `rm -r` of 20,000 nested directories took more than two minutes. Beyond the 512 directories of
/// which a handle is kept, each step up opened all directories from the root on.
#[test]
fn removing_a_deep_tree_takes_calls_in_proportion() {
    let [small, large] = [2000, 8000].map(|depth| (depth, calls_of_removal(depth)));
    println!("{small:?} {large:?}");
    for (depth, calls) in [small, large] {
        assert!(calls <= 40 * depth as u64, "{calls} calls for {depth} directories");
    }
    assert!(large.1 <= small.1 * 9 / 2, "{small:?} {large:?}");
}

/// The rollback database computed the place of a directory by recursion, from the root on at each
/// change. A program that made 6,500 nested directories ended the daemon with a stack overflow, and
/// each change before that took longer than the last.
#[test]
fn deep_directories_do_not_end_a_vault_that_remembers() {
    let depth = 2500;
    let deep = move || {
        let store = MemStore::new();
        vaults::create(&store.root(), Suite::Aes256Gcm, 12);
        let memory = tempfile::tempdir().unwrap();
        let vault = vaults::open(store.root()).unwrap();
        vault.remember(&memory.path().join("memory.redb"), false).unwrap();
        let nodes = make_deep(&vault, depth);
        put_in(&vault, nodes[depth]);
        rename(&vault, b"d", b"e", RenameMode::Replace).unwrap();
        put_in(&vault, nodes[depth - 1]);
    };
    // A quarter of the stack of a thread of the daemon.
    std::thread::Builder::new().stack_size(512 << 10).spawn(deep).unwrap().join().unwrap();
}

fn put_in(vault: &Vault, parent: NodeId) {
    let (attr, opened) =
        vault.create_file(&vaults::CALLER, parent, b"file", 0o600, READ_WRITE).unwrap();
    vault.write(opened.handle, 0, b"text", false).unwrap();
    vault.release(opened.handle).unwrap();
    vault.forget(attr.node, 1);
}

/// A file that stays open is flushed in the background, and is then changed only through the
/// journal. No record has room for a path as long as this one, so a copy that took longer than some
/// seconds failed with `ENAMETOOLONG`, and left only a part of the file.
#[test]
fn a_file_with_a_long_path_can_be_written_slowly() {
    let mut on = OnDisk::new(Suite::Aes256Gcm, 18);
    let mut deepest = ROOT;
    for _ in 0..=65_535 / 90 {
        deepest = on.vault.mkdir(&CALLER, deepest, &[b'd'; 90], 0o755).unwrap().node;
    }
    let created = on.vault.create_file(&CALLER, deepest, b"file", 0o644, READ_WRITE);
    let (attr, opened) = created.unwrap();
    let mut wanted = Vec::new();
    for part in 0..4 {
        let bytes = vaults::pattern(part, 300_000);
        on.vault.write(opened.handle, wanted.len() as u64, &bytes, false).unwrap();
        wanted.extend(bytes);
        on.vault.commit_due(Duration::ZERO);
        on.vault.flush_due(Duration::ZERO);
    }
    on.vault.fsync(opened.handle, false).unwrap();
    on.vault.release(opened.handle).unwrap();
    assert!(vaults::get_node(&on.vault, attr.node).unwrap() == wanted);
    on.reopen();
    on.clean();
}

/// A journal record has 16 bits for the length of a path, and longer paths were cut: after a power
/// cut the record led nowhere. A file at such a depth is created and replaced without a record, and
/// cannot be opened for changes.
#[test]
fn files_with_paths_too_long_for_the_journal_are_not_changed() {
    let mut on = OnDisk::new(Suite::Aes256Gcm, 18);
    let replace = OpenFlags { truncate: true, ..READ_WRITE };
    let (mut deepest, mut levels) = (ROOT, 0);
    let refused = loop {
        let (attr, opened) =
            on.vault.create_file(&CALLER, deepest, b"file", 0o644, READ_WRITE).unwrap();
        let mut handle = opened.handle;
        for (text, flags) in [(b"first", replace), (b"again", READ)] {
            on.vault.write(handle, 0, text, false).unwrap();
            on.vault.fsync(handle, false).unwrap();
            on.vault.release(handle).unwrap();
            handle = on.vault.open_file(attr.node, flags).unwrap().handle;
        }
        on.vault.release(handle).unwrap();
        assert_eq!(vaults::get_node(&on.vault, attr.node).unwrap(), b"again");
        match on.vault.open_file(attr.node, READ_WRITE) {
            Ok(opened) => on.vault.release(opened.handle).unwrap(),
            Err(error) => break error.errno(),
        }
        deepest = on.vault.mkdir(&CALLER, deepest, &[b'd'; 90], 0o755).unwrap().node;
        levels += 1;
    };
    assert_eq!(refused, libc::ENAMETOOLONG);
    // A stored name has between one and two times as many bytes as the plain one.
    assert!((65_535 / 180..65_535 / 90).contains(&levels), "{levels}");
    on.reopen();
    on.clean();
}
