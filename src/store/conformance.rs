//! Checks that every store must pass: same results, and the same errno for the same mistake.
//!
//! Each check gets the empty root of a fresh store. [`conformance!`] makes a test of each check.

use std::io;
use std::sync::Arc;

use super::{Access, Allocate, Dir, File, Kind, Lock, RenameMode, Seek, SetTime, Span, Timestamp};

type Root = Arc<dyn Dir>;

/// Makes the test module `$name`, with one test for each check. `$store` is an expression that
/// makes a fresh store and returns `(guard, root)`.
macro_rules! conformance {
    ($name:ident, $store:expr) => {
        $crate::store::conformance::conformance!(@each $name, $store;
            names, files, modes, directories, listings, many_entries, listing_while_entries_go, links, symlinks, special_files, renames,
            rename_replaces, rename_no_replace, rename_exchanges, rename_leaves_a_whiteout,
            rename_into_itself, sparse, times, owners, xattrs, locks, locks_on_ranges, directory_locks,
            unlinked_but_open, spaces);
    };
    (@each $name:ident, $store:expr; $($check:ident),*) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $(#[test]
            fn $check() {
                let (_guard, root) = $store;
                $crate::store::conformance::$check(root);
            })*
        }
    };
}
pub(super) use conformance;

#[track_caller]
fn fails<T>(result: io::Result<T>, errnos: &[i32]) {
    match result {
        Ok(_) => panic!("succeeded, where it should fail with one of {errnos:?}"),
        Err(error) => assert!(
            errnos.contains(&error.raw_os_error().unwrap_or(0)),
            "{error} is none of {errnos:?}"
        ),
    }
}

fn write_file(dir: &Root, name: &[u8], bytes: &[u8]) -> Arc<dyn File> {
    let file = dir.create_file(name, 0o644).unwrap();
    file.write_at(bytes, 0).unwrap();
    file
}

fn content(dir: &Root, name: &[u8]) -> Vec<u8> {
    let file = dir.open_file(name, Access::Read).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize + 1];
    let len = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(len);
    bytes
}

fn list(dir: &Root) -> Vec<Vec<u8>> {
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let entries = dir.read(cookie, 100).unwrap();
        let Some(last) = entries.last() else { break };
        cookie = last.next;
        names.extend(entries.into_iter().map(|entry| entry.name.into_vec()));
    }
    names.sort();
    names
}

pub(super) fn names(root: Root) {
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", b"/"] {
        let einval = &[libc::EINVAL];
        fails(root.create_file(bad, 0o644), einval);
        fails(root.open_file(bad, Access::Read), einval);
        fails(root.open_dir(bad), einval);
        fails(root.mkdir(bad, 0o755), einval);
        fails(root.mknod(bad, Kind::Fifo, 0o644, 0), einval);
        fails(root.symlink(bad, b"x"), einval);
        fails(root.readlink(bad), einval);
        fails(root.unlink(bad), einval);
        fails(root.rmdir(bad), einval);
        fails(root.stat(bad), einval);
        fails(root.chmod(bad, 0o644), einval);
        fails(root.chown(bad, None, None), einval);
        fails(root.set_times(bad, SetTime::Now, SetTime::Now), einval);
        fails(root.get_xattr(bad, b"user.a"), einval);
        fails(root.set_xattr(bad, b"user.a", b""), einval);
        fails(root.remove_xattr(bad, b"user.a"), einval);
        fails(root.rename(bad, &*root, b"x", RenameMode::Replace), einval);
        fails(root.rename(b"x", &*root, bad, RenameMode::Replace), einval);
        fails(root.link(bad, &*root, b"x"), einval);
        fails(root.link(b"x", &*root, bad), einval);
    }
    fails(root.create_file(&[b'x'; 256], 0o644), &[libc::ENAMETOOLONG]);
    root.create_file(&[b'x'; 255], 0o644).unwrap();
    root.create_file(b"\xff\xfe\n", 0o644).unwrap();
    assert_eq!(list(&root), [vec![b'x'; 255], b"\xff\xfe\n".to_vec()]);
}

pub(super) fn files(root: Root) {
    fails(root.open_file(b"a", Access::Read), &[libc::ENOENT]);
    fails(root.stat(b"a"), &[libc::ENOENT]);
    fails(root.unlink(b"a"), &[libc::ENOENT]);
    let file = write_file(&root, b"a", b"hello");
    fails(root.create_file(b"a", 0o644), &[libc::EEXIST]);
    file.write_vectored_at(&[b", ", b"", b"wor", b"ld"], 5).unwrap();
    assert_eq!(content(&root, b"a"), b"hello, world");
    let many: Vec<&[u8]> = std::iter::repeat_n(&b"ab"[..], 3000).collect();
    file.write_vectored_at(&many, 0).unwrap();
    assert_eq!(content(&root, b"a"), many.concat());
    file.set_len(3).unwrap();
    assert_eq!(content(&root, b"a"), b"aba");
    file.set_len(6).unwrap();
    assert_eq!(content(&root, b"a"), b"aba\0\0\0");
    let mut buf = [9; 4];
    assert_eq!(file.read_at(&mut buf, 6).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, 1 << 40).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, 4).unwrap(), 2);
    assert_eq!(buf, [0, 0, 9, 9]);
    fails(file.write_at(b"x", u64::MAX), &[libc::EINVAL]);
    file.write_at(b"", 1000).unwrap();

    let stat = file.stat().unwrap();
    assert_eq!((stat.kind, stat.nlink, stat.size), (Kind::File, 1, 6));
    assert_eq!(root.stat(b"a").unwrap().ino, stat.ino);
    let reader = root.open_file(b"a", Access::Read).unwrap();
    fails(reader.write_at(b"x", 0), &[libc::EBADF]);
    fails(reader.set_len(0), &[libc::EINVAL]);
    fails(reader.allocate(Allocate::KeepSize, 0, 1), &[libc::EBADF]);
    file.sync_data().unwrap();
    file.sync_all().unwrap();
    reader.sync_data().unwrap();
    root.sync().unwrap();
    root.unlink(b"a").unwrap();
    fails(root.stat(b"a"), &[libc::ENOENT]);
}

pub(super) fn modes(root: Root) {
    for perm in [0o000, 0o444, 0o777, 0o755, 0o666, 0o4755, 0o1644] {
        root.create_file(b"f", perm).unwrap();
        assert_eq!(root.stat(b"f").unwrap().perm, perm);
        root.unlink(b"f").unwrap();
        root.mkdir(b"d", perm).unwrap();
        assert_eq!(root.stat(b"d").unwrap().perm, perm);
        root.rmdir(b"d").unwrap();
        root.mknod(b"p", Kind::Fifo, perm, 0).unwrap();
        assert_eq!(root.stat(b"p").unwrap().perm, perm);
        root.unlink(b"p").unwrap();
    }
    let file = root.create_file(b"f", 0o600).unwrap();
    file.chmod(0o640).unwrap();
    assert_eq!(root.stat(b"f").unwrap().perm, 0o640);
    root.chmod(b"f", 0o444).unwrap();
    assert_eq!(file.stat().unwrap().perm, 0o444);
    root.mkdir(b"d", 0o2755).unwrap();
    let dir = root.open_dir(b"d").unwrap();
    dir.mkdir(b"child", 0o700).unwrap();
    assert_eq!(dir.stat(b"child").unwrap().perm, 0o700);
    dir.chmod_self(0o700).unwrap();
    assert_eq!(root.stat(b"d").unwrap().perm, 0o700);
    fails(root.chmod(b"none", 0o644), &[libc::ENOENT]);
}

pub(super) fn directories(root: Root) {
    root.mkdir(b"d", 0o755).unwrap();
    fails(root.mkdir(b"d", 0o755), &[libc::EEXIST]);
    fails(root.create_file(b"d", 0o644), &[libc::EEXIST]);
    fails(root.open_file(b"d", Access::ReadWrite), &[libc::EISDIR]);
    fails(root.open_file(b"d", Access::Read), &[libc::EISDIR]);
    fails(root.unlink(b"d"), &[libc::EISDIR]);
    write_file(&root, b"f", b"");
    fails(root.open_dir(b"f"), &[libc::ENOTDIR]);
    fails(root.rmdir(b"f"), &[libc::ENOTDIR]);
    fails(root.open_dir(b"none"), &[libc::ENOENT]);
    fails(root.rmdir(b"none"), &[libc::ENOENT]);
    let dir = root.open_dir(b"d").unwrap();
    assert_eq!(dir.stat_self().unwrap().ino, root.stat(b"d").unwrap().ino);
    assert_eq!((root.stat(b"d").unwrap().kind, root.stat(b"d").unwrap().nlink), (Kind::Dir, 2));
    dir.mkdir(b"e", 0o755).unwrap();
    assert_eq!(root.stat(b"d").unwrap().nlink, 3);
    fails(root.rmdir(b"d"), &[libc::ENOTEMPTY]);
    dir.rmdir(b"e").unwrap();
    assert_eq!(root.stat(b"d").unwrap().nlink, 2);
    root.rmdir(b"d").unwrap();
    // The handle of a removed directory: it is empty, and nothing can be created in it.
    assert_eq!(list(&dir), [b""; 0]);
    fails(dir.create_file(b"x", 0o644), &[libc::ENOENT]);
    fails(dir.mkdir(b"x", 0o755), &[libc::ENOENT]);
    fails(root.rename(b"f", &*dir, b"f", RenameMode::Replace), &[libc::ENOENT]);
}

pub(super) fn listings(root: Root) {
    assert_eq!(list(&root), [b""; 0]);
    let mut expected = Vec::new();
    for i in 0..40 {
        let name = format!("name {i:02}").into_bytes();
        match i % 3 {
            0 => drop(root.create_file(&name, 0o644).unwrap()),
            1 => root.mkdir(&name, 0o755).unwrap(),
            _ => root.symlink(&name, b"target").unwrap(),
        }
        expected.push(name);
    }
    assert_eq!(list(&root), expected);
    for entry in root.read(0, usize::MAX).unwrap() {
        let stat = root.stat(&entry.name).unwrap();
        assert_eq!(stat.ino, entry.ino);
        assert!(entry.kind.is_none_or(|kind| kind == stat.kind));
    }

    // From each cookie, in any order and on any handle, the remaining entries follow.
    let all = root.read(0, usize::MAX).unwrap();
    assert_eq!(all.len(), 40);
    let other = root.reopen().unwrap();
    for i in (0..all.len()).rev().chain(0..all.len()) {
        assert_eq!(root.read(all[i].next, usize::MAX).unwrap(), all[i + 1..]);
        let few = other.read(all[i].next, 20).unwrap();
        assert_eq!(few, all[i + 1..][..few.len()]);
        assert_eq!(few.is_empty(), i + 1 == all.len());
    }
    assert_eq!(root.read(0, 0).unwrap().len(), 1);
    // Reading from the start shows entries that were added since.
    root.create_file(b"later", 0o644).unwrap();
    assert_eq!(root.read(0, usize::MAX).unwrap().len(), 41);
}

pub(super) fn many_entries(root: Root) {
    let mut expected: Vec<Vec<u8>> = (0..1500)
        .map(|i| format!("an entry with a name of some length {i:06}").into_bytes())
        .collect();
    for name in &expected {
        root.symlink(name, b"x").unwrap();
    }
    expected.sort();
    assert_eq!(list(&root), expected);
    let all = root.read(0, usize::MAX).unwrap();
    assert_eq!(all.len(), expected.len());
    assert_eq!(root.read(all[700].next, usize::MAX).unwrap(), all[701..]);
}

pub(super) fn listing_while_entries_go(root: Root) {
    for i in 0..60 {
        root.create_file(format!("{i:02}").as_bytes(), 0o644).unwrap();
    }
    let all = root.read(0, usize::MAX).unwrap();
    // As `rm -r` does: listed entries are removed, and the cookie still leads to the rest.
    let (gone, rest) = all.split_at(30);
    for entry in gone {
        root.unlink(&entry.name).unwrap();
    }
    let other = root.reopen().unwrap();
    assert_eq!(other.read(gone[29].next, usize::MAX).unwrap(), rest);
}

pub(super) fn links(root: Root) {
    let file = write_file(&root, b"a", b"one");
    root.mkdir(b"d", 0o755).unwrap();
    let dir = root.open_dir(b"d").unwrap();
    root.link(b"a", &*dir, b"b").unwrap();
    assert_eq!(file.stat().unwrap().nlink, 2);
    assert_eq!(dir.stat(b"b").unwrap().ino, root.stat(b"a").unwrap().ino);
    file.write_at(b"two", 0).unwrap();
    assert_eq!(content(&dir, b"b"), b"two");
    fails(root.link(b"a", &*dir, b"b"), &[libc::EEXIST]);
    fails(root.link(b"none", &*dir, b"c"), &[libc::ENOENT]);
    fails(root.link(b"d", &*root, b"e"), &[libc::EPERM]);
    root.unlink(b"a").unwrap();
    assert_eq!(file.stat().unwrap().nlink, 1);
    dir.unlink(b"b").unwrap();
    assert_eq!(file.stat().unwrap().nlink, 0);
}

pub(super) fn symlinks(root: Root) {
    root.symlink(b"l", b"/etc/passwd").unwrap();
    fails(root.symlink(b"l", b"x"), &[libc::EEXIST]);
    fails(root.symlink(b"m", b""), &[libc::ENOENT]);
    assert_eq!(root.readlink(b"l").unwrap(), b"/etc/passwd");
    let stat = root.stat(b"l").unwrap();
    assert_eq!((stat.kind, stat.size), (Kind::Symlink, 11));
    fails(root.open_file(b"l", Access::Read), &[libc::ELOOP]);
    fails(root.open_file(b"l", Access::ReadWrite), &[libc::ELOOP]);
    fails(root.open_dir(b"l"), &[libc::ELOOP, libc::ENOTDIR]);
    fails(root.create_file(b"l", 0o644), &[libc::EEXIST]);
    fails(root.chmod(b"l", 0o600), &[libc::EOPNOTSUPP]);
    fails(root.rmdir(b"l"), &[libc::ENOTDIR]);
    let long = vec![b'x'; 4000];
    root.symlink(b"long", &long).unwrap();
    assert_eq!(root.readlink(b"long").unwrap(), long);
    fails(root.symlink(b"too long", &[b'x'; 4096]), &[libc::ENAMETOOLONG]);
    write_file(&root, b"f", b"");
    root.mkdir(b"d", 0o755).unwrap();
    fails(root.readlink(b"f"), &[libc::EINVAL]);
    fails(root.readlink(b"d"), &[libc::EINVAL]);
    fails(root.readlink(b"none"), &[libc::ENOENT]);
    // A hard link to a symbolic link is a symbolic link, and both can be renamed and removed.
    root.link(b"l", &*root, b"l2").unwrap();
    assert_eq!(root.stat(b"l2").unwrap().kind, Kind::Symlink);
    root.rename(b"l", &*root, b"l3", RenameMode::Replace).unwrap();
    root.unlink(b"l3").unwrap();
    assert_eq!(root.readlink(b"l2").unwrap(), b"/etc/passwd");
}

pub(super) fn special_files(root: Root) {
    root.mknod(b"fifo", Kind::Fifo, 0o644, 0).unwrap();
    root.mknod(b"sock", Kind::Socket, 0o600, 0).unwrap();
    assert_eq!(root.stat(b"fifo").unwrap().kind, Kind::Fifo);
    assert_eq!(root.stat(b"sock").unwrap().kind, Kind::Socket);
    fails(root.mknod(b"fifo", Kind::Fifo, 0o644, 0), &[libc::EEXIST]);
    for kind in [Kind::File, Kind::Dir, Kind::Symlink] {
        fails(root.mknod(b"x", kind, 0o644, 0), &[libc::EINVAL]);
    }
    // None of these may block.
    fails(root.open_file(b"fifo", Access::Read), &[libc::ENXIO]);
    fails(root.open_file(b"fifo", Access::ReadWrite), &[libc::ENXIO]);
    fails(root.open_file(b"sock", Access::Read), &[libc::ENXIO]);
    fails(root.open_dir(b"fifo"), &[libc::ENOTDIR]);
    // Devices need root; other users get an error.
    match root.mknod(b"null", Kind::CharDevice, 0o666, rustix::fs::makedev(1, 3)) {
        Ok(()) => {
            let stat = root.stat(b"null").unwrap();
            assert_eq!((stat.kind, stat.rdev), (Kind::CharDevice, rustix::fs::makedev(1, 3)));
            fails(root.open_file(b"null", Access::ReadWrite), &[libc::ENXIO, libc::EACCES]);
        }
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
    }
}

pub(super) fn renames(root: Root) {
    root.mkdir(b"d", 0o755).unwrap();
    let dir = root.open_dir(b"d").unwrap();
    let file = write_file(&root, b"a", b"1");
    root.rename(b"a", &*dir, b"b", RenameMode::Replace).unwrap();
    fails(root.stat(b"a"), &[libc::ENOENT]);
    assert_eq!(dir.stat(b"b").unwrap().ino, file.stat().unwrap().ino);
    fails(root.rename(b"a", &*dir, b"b", RenameMode::Replace), &[libc::ENOENT]);
    root.mkdir(b"e", 0o755).unwrap();
    root.rename(b"e", &*dir, b"e", RenameMode::Replace).unwrap();
    assert_eq!((dir.stat_self().unwrap().nlink, list(&root)), (3, vec![b"d".to_vec()]));
    // An open directory follows its rename.
    root.rename(b"d", &*root, b"d2", RenameMode::Replace).unwrap();
    assert_eq!(list(&dir), [b"b".to_vec(), b"e".to_vec()]);
    dir.create_file(b"c", 0o644).unwrap();
    assert_eq!(content(&root.open_dir(b"d2").unwrap(), b"c"), b"");
    // A rename to itself, and onto another name of the same inode, changes nothing.
    dir.rename(b"b", &*dir, b"b", RenameMode::Replace).unwrap();
    dir.link(b"b", &*dir, b"b2").unwrap();
    dir.rename(b"b", &*dir, b"b2", RenameMode::Replace).unwrap();
    assert_eq!(file.stat().unwrap().nlink, 2);
    assert_eq!(content(&dir, b"b"), b"1");
}

pub(super) fn rename_replaces(root: Root) {
    let (a, b) = (write_file(&root, b"a", b"a"), write_file(&root, b"b", b"b"));
    root.rename(b"a", &*root, b"b", RenameMode::Replace).unwrap();
    assert_eq!(
        (content(&root, b"b"), b.stat().unwrap().nlink, a.stat().unwrap().nlink),
        (b"a".to_vec(), 0, 1)
    );
    root.mkdir(b"d", 0o755).unwrap();
    root.mkdir(b"full", 0o755).unwrap();
    root.open_dir(b"full").unwrap().create_file(b"x", 0o644).unwrap();
    fails(root.rename(b"b", &*root, b"d", RenameMode::Replace), &[libc::EISDIR]);
    fails(root.rename(b"d", &*root, b"b", RenameMode::Replace), &[libc::ENOTDIR]);
    fails(root.rename(b"d", &*root, b"full", RenameMode::Replace), &[libc::ENOTEMPTY]);
    root.rename(b"full", &*root, b"d", RenameMode::Replace).unwrap();
    assert_eq!(list(&root), [b"b".to_vec(), b"d".to_vec()]);
    assert_eq!(root.stat_self().unwrap().nlink, 3);
}

pub(super) fn rename_no_replace(root: Root) {
    write_file(&root, b"a", b"a");
    write_file(&root, b"b", b"b");
    fails(root.rename(b"a", &*root, b"b", RenameMode::NoReplace), &[libc::EEXIST]);
    fails(root.rename(b"a", &*root, b"a", RenameMode::NoReplace), &[libc::EEXIST]);
    fails(root.rename(b"none", &*root, b"c", RenameMode::NoReplace), &[libc::ENOENT]);
    root.rename(b"a", &*root, b"c", RenameMode::NoReplace).unwrap();
    assert_eq!((content(&root, b"c"), content(&root, b"b")), (b"a".to_vec(), b"b".to_vec()));
}

pub(super) fn rename_exchanges(root: Root) {
    root.mkdir(b"d", 0o755).unwrap();
    root.mkdir(b"e", 0o755).unwrap();
    let (d, e) = (root.open_dir(b"d").unwrap(), root.open_dir(b"e").unwrap());
    write_file(&d, b"f", b"f");
    e.mkdir(b"sub", 0o755).unwrap();
    d.rename(b"f", &*e, b"sub", RenameMode::Exchange).unwrap();
    assert_eq!((content(&e, b"sub"), d.stat(b"f").unwrap().kind), (b"f".to_vec(), Kind::Dir));
    assert_eq!((d.stat_self().unwrap().nlink, e.stat_self().unwrap().nlink), (3, 2));
    fails(d.rename(b"f", &*e, b"none", RenameMode::Exchange), &[libc::ENOENT]);
    fails(d.rename(b"none", &*e, b"sub", RenameMode::Exchange), &[libc::ENOENT]);
    root.rename(b"d", &*root, b"e", RenameMode::Exchange).unwrap();
    assert_eq!(root.stat(b"e").unwrap().ino, d.stat_self().unwrap().ino);
}

pub(super) fn rename_leaves_a_whiteout(root: Root) {
    root.mkdir(b"d", 0o755).unwrap();
    let dir = root.open_dir(b"d").unwrap();
    let (file, replaced) = (write_file(&root, b"f", b"f"), write_file(&dir, b"g", b"g"));
    match root.rename(b"f", &*dir, b"g", RenameMode::Whiteout) {
        // NFS and most filesystems behind FUSE support no rename flags.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return,
        result => result.unwrap(),
    }
    let device = root.stat(b"f").unwrap();
    assert_eq!((device.kind, device.rdev, device.perm, device.nlink), (Kind::CharDevice, 0, 0, 1));
    assert_eq!((content(&dir, b"g"), file.stat().unwrap().nlink), (b"f".to_vec(), 1));
    assert_eq!(replaced.stat().unwrap().nlink, 0);
    root.rename(b"d", &*root, b"e", RenameMode::Whiteout).unwrap();
    assert_eq!(root.stat(b"d").unwrap().kind, Kind::CharDevice);
    assert_eq!(root.stat_self().unwrap().nlink, 3);
}

pub(super) fn rename_into_itself(root: Root) {
    root.mkdir(b"d", 0o755).unwrap();
    let d = root.open_dir(b"d").unwrap();
    d.mkdir(b"e", 0o755).unwrap();
    let e = d.open_dir(b"e").unwrap();
    fails(root.rename(b"d", &*e, b"x", RenameMode::Replace), &[libc::EINVAL]);
    fails(root.rename(b"d", &*d, b"x", RenameMode::Replace), &[libc::EINVAL]);
    write_file(&e, b"f", b"");
    fails(root.rename(b"d", &*e, b"f", RenameMode::Exchange), &[libc::EINVAL]);
    fails(e.rename(b"f", &*root, b"d", RenameMode::Replace), &[libc::ENOTEMPTY, libc::EISDIR]);
    fails(e.rename(b"f", &*root, b"d", RenameMode::Exchange), &[libc::ENOTEMPTY, libc::EINVAL]);
}

pub(super) fn sparse(root: Root) {
    const MIB: u64 = 1 << 20;
    let file = root.create_file(b"s", 0o644).unwrap();
    file.set_len(16 * MIB).unwrap();
    file.write_at(&[1; 65536], 4 * MIB).unwrap();
    file.write_at(&[2; 65536], 8 * MIB).unwrap();
    let mut bytes = vec![9; 3 * 65536];
    assert_eq!(file.read_at(&mut bytes, 4 * MIB - 65536).unwrap(), bytes.len());
    assert!(bytes.chunks(65536).map(|chunk| chunk.to_vec()).eq([
        vec![0; 65536],
        vec![1; 65536],
        vec![0; 65536]
    ]));
    assert!(file.stat().unwrap().blocks * 512 < 4 * MIB);

    // Walking data and holes covers both islands and ends at the end, whatever the granularity.
    let (mut at, mut data) = (0, Vec::new());
    loop {
        match file.seek(Seek::Data, at) {
            Ok(start) => {
                let end = file.seek(Seek::Hole, start).unwrap();
                assert!(start >= at && end > start);
                data.push(start..end);
                at = end;
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
                break;
            }
        }
    }
    for island in [4 * MIB, 8 * MIB] {
        assert!(
            data.iter().any(|range| range.contains(&island) && range.contains(&(island + 65535))),
            "{data:?}"
        );
    }
    assert!(data.iter().map(|range| range.end - range.start).sum::<u64>() < 4 * MIB);
    assert_eq!(file.seek(Seek::Hole, 0).unwrap(), 0);
    assert_eq!(file.seek(Seek::Hole, 15 * MIB).unwrap(), 15 * MIB);
    fails(file.seek(Seek::Data, 16 * MIB), &[libc::ENXIO]);
    fails(file.seek(Seek::Hole, 16 * MIB), &[libc::ENXIO]);

    file.allocate(Allocate::PunchHole, 4 * MIB, 65536).unwrap();
    assert_eq!(file.seek(Seek::Data, 0).unwrap(), 8 * MIB);
    // A hole within a block zeroes only its own bytes.
    file.allocate(Allocate::PunchHole, 8 * MIB + 10, 20).unwrap();
    let mut bytes = [9; 40];
    file.read_at(&mut bytes, 8 * MIB).unwrap();
    assert!(
        bytes[..10].iter().chain(&bytes[30..]).all(|&byte| byte == 2)
            && bytes[10..30].iter().all(|&byte| byte == 0)
    );
    // Space that is allocated beyond the end does not change the length.
    file.allocate(Allocate::KeepSize, 0, 20 * MIB).unwrap();
    assert_eq!(file.stat().unwrap().size, 16 * MIB);
    assert!(file.stat().unwrap().blocks * 512 >= 20 * MIB);
    file.read_at(&mut bytes, 100).unwrap();
    assert_eq!(bytes, [0; 40]);
    fails(file.allocate(Allocate::KeepSize, 0, 0), &[libc::EINVAL]);
    // Bytes that were cut off read as zeros afterwards.
    file.set_len(8 * MIB + 5).unwrap();
    file.set_len(8 * MIB + 40).unwrap();
    file.read_at(&mut bytes, 8 * MIB).unwrap();
    assert!(bytes[..5].iter().all(|&byte| byte == 2) && bytes[5..].iter().all(|&byte| byte == 0));
}

pub(super) fn times(root: Root) {
    let file = root.create_file(b"f", 0o644).unwrap();
    let before_epoch = Timestamp { secs: -5, nanos: 250_000_000 };
    let later = Timestamp { secs: 2_000_000_000, nanos: 123_456_789 };
    root.set_times(b"f", SetTime::At(before_epoch), SetTime::At(later)).unwrap();
    assert_eq!((file.stat().unwrap().atime, file.stat().unwrap().mtime), (before_epoch, later));
    file.set_times(SetTime::At(later), SetTime::Omit).unwrap();
    assert_eq!((file.stat().unwrap().atime, file.stat().unwrap().mtime), (later, later));
    file.set_times(SetTime::Omit, SetTime::Now).unwrap();
    assert_eq!(file.stat().unwrap().atime, later);
    assert_ne!(file.stat().unwrap().mtime, later);
    for nanos in [1_000_000_000, 0x3fff_ffff, 0x3fff_fffe] {
        fails(
            file.set_times(SetTime::At(Timestamp { secs: 0, nanos }), SetTime::Omit),
            &[libc::EINVAL],
        );
    }
    root.symlink(b"l", b"f").unwrap();
    root.set_times(b"l", SetTime::At(before_epoch), SetTime::At(before_epoch)).unwrap();
    assert_eq!((root.stat(b"l").unwrap().mtime, file.stat().unwrap().atime), (before_epoch, later));
    root.mkdir(b"d", 0o755).unwrap();
    let dir = root.open_dir(b"d").unwrap();
    dir.set_times_self(SetTime::At(later), SetTime::At(before_epoch)).unwrap();
    assert_eq!(
        (root.stat(b"d").unwrap().atime, root.stat(b"d").unwrap().mtime),
        (later, before_epoch)
    );
    dir.create_file(b"x", 0o644).unwrap();
    assert_ne!(root.stat(b"d").unwrap().mtime, before_epoch);
    file.set_times(SetTime::Omit, SetTime::At(before_epoch)).unwrap();
    file.write_at(b"x", 0).unwrap();
    assert_ne!(file.stat().unwrap().mtime, before_epoch);
    fails(root.set_times(b"none", SetTime::Now, SetTime::Now), &[libc::ENOENT]);
}

pub(super) fn owners(root: Root) {
    let file = root.create_file(b"f", 0o644).unwrap();
    root.symlink(b"l", b"f").unwrap();
    let stat = file.stat().unwrap();
    root.chown(b"f", None, None).unwrap();
    root.chown(b"f", Some(stat.uid), Some(stat.gid)).unwrap();
    fails(root.chown(b"f", Some(u32::MAX), None), &[libc::EINVAL]);
    fails(root.chown(b"none", None, Some(stat.gid)), &[libc::ENOENT]);
    if root.chown(b"l", Some(7), None).is_ok() {
        assert_eq!((root.stat(b"l").unwrap().uid, root.stat(b"l").unwrap().gid), (7, stat.gid));
        assert_eq!((file.stat().unwrap().uid, file.stat().unwrap().gid), (stat.uid, stat.gid));
        file.chown(None, Some(8)).unwrap();
        assert_eq!((file.stat().unwrap().uid, file.stat().unwrap().gid), (stat.uid, 8));
        root.mkdir(b"d", 0o755).unwrap();
        root.open_dir(b"d").unwrap().chown_self(Some(9), Some(9)).unwrap();
        assert_eq!((root.stat(b"d").unwrap().uid, root.stat(b"d").unwrap().gid), (9, 9));
    }
}

pub(super) fn xattrs(root: Root) {
    let file = root.create_file(b"f", 0o644).unwrap();
    root.mkdir(b"d", 0o755).unwrap();
    let dir = root.open_dir(b"d").unwrap();
    root.symlink(b"l", b"f").unwrap();
    let key = b"user.kithfs";
    assert_eq!(file.get_xattr(key).unwrap(), None);
    assert_eq!(root.get_xattr(b"f", key).unwrap(), None);
    assert!(!root.remove_xattr(b"f", key).unwrap());
    root.set_xattr(b"f", key, b"one").unwrap();
    assert_eq!(file.get_xattr(key).unwrap().as_deref(), Some(&b"one"[..]));
    file.set_xattr(key, b"").unwrap();
    assert_eq!(root.get_xattr(b"f", key).unwrap().as_deref(), Some(&b""[..]));
    file.set_xattr(key, &[5; 1500]).unwrap();
    assert_eq!(root.get_xattr(b"f", key).unwrap().unwrap(), [5; 1500]);
    assert!(file.remove_xattr(key).unwrap());
    assert!(!file.remove_xattr(key).unwrap());
    dir.set_xattr_self(key, b"dir").unwrap();
    assert_eq!(root.get_xattr(b"d", key).unwrap().as_deref(), Some(&b"dir"[..]));
    root.set_xattr(b"d", key, b"dir 2").unwrap();
    assert_eq!(dir.get_xattr_self(key).unwrap().as_deref(), Some(&b"dir 2"[..]));
    assert!(dir.remove_xattr_self(key).unwrap());
    assert_eq!(dir.get_xattr_self(key).unwrap(), None);
    // A symbolic link has no user attributes, and its target is not touched.
    root.set_xattr(b"f", key, b"target's").unwrap();
    fails(root.set_xattr(b"l", key, b"x"), &[libc::EPERM]);
    assert!(!matches!(root.get_xattr(b"l", key), Ok(Some(_))));
    assert_eq!(file.get_xattr(key).unwrap().as_deref(), Some(&b"target's"[..]));
    fails(root.get_xattr(b"none", key), &[libc::ENOENT]);
    fails(root.set_xattr(b"none", key, b""), &[libc::ENOENT]);
}

pub(super) fn locks(root: Root) {
    let first = root.create_file(b"f", 0o644).unwrap();
    let second = root.open_file(b"f", Access::ReadWrite).unwrap();
    let third = root.open_file(b"f", Access::Read).unwrap();
    assert!(first.try_lock(Lock::Shared).unwrap());
    assert!(second.try_lock(Lock::Shared).unwrap());
    assert!(!third.try_lock(Lock::Exclusive).unwrap());
    drop(second);
    assert!(first.try_lock(Lock::Exclusive).unwrap());
    assert!(first.try_lock(Lock::Exclusive).unwrap());
    assert!(!third.try_lock(Lock::Shared).unwrap());
    drop(first);
    assert!(third.try_lock(Lock::Exclusive).unwrap());
}

pub(super) fn locks_on_ranges(root: Root) {
    let span = |first, last| Span { first, last };
    let first = root.create_file(b"f", 0o644).unwrap();
    let second = root.open_file(b"f", Access::ReadWrite).unwrap();
    let (shared, exclusive) = (Some(Lock::Shared), Some(Lock::Exclusive));
    assert!(first.try_lock_span(exclusive, span(10, 29)).unwrap());
    assert!(!second.try_lock_span(shared, span(29, 29)).unwrap());
    assert!(second.try_lock_span(exclusive, span(30, Span::END)).unwrap());
    // A handle can split its lock, and change the kind of a part.
    assert!(first.try_lock_span(None, span(15, 19)).unwrap());
    assert!(first.try_lock_span(shared, span(20, 24)).unwrap());
    assert!(second.try_lock_span(exclusive, span(15, 19)).unwrap());
    assert!(second.try_lock_span(shared, span(20, 24)).unwrap());
    let found = second.find_lock(Lock::Exclusive, span(20, 24)).unwrap();
    assert_eq!(found, Some((Lock::Shared, span(20, 24))));
    assert_eq!(second.find_lock(Lock::Shared, span(0, 9)).unwrap(), None);
    let found = first.find_lock(Lock::Shared, span(100, 100)).unwrap();
    assert_eq!(found, Some((Lock::Exclusive, span(30, Span::END))));
    assert!(!first.try_lock_span(exclusive, span(20, 24)).unwrap(), "two have it shared");
    assert!(!second.try_lock_span(shared, span(25, 25)).unwrap(), "nothing else has changed");
    // A lock on the whole file does not conflict with locks on ranges. Closing one handle does not
    // end the locks of another one.
    assert!(first.try_lock(Lock::Exclusive).unwrap());
    root.unlink(b"f").unwrap();
    let third = first.reopen(Access::ReadWrite).unwrap();
    assert!(!third.try_lock_span(shared, span(10, 10)).unwrap());
    drop(third);
    assert!(!second.try_lock_span(shared, span(10, 10)).unwrap());
    drop(first);
    assert!(second.try_lock_span(exclusive, span(0, Span::END)).unwrap());
    let reader = second.reopen(Access::Read).unwrap();
    let refused = reader.try_lock_span(exclusive, span(0, 0)).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
}

pub(super) fn directory_locks(root: Root) {
    root.mkdir(b"d", 0o755).unwrap();
    let dir = root.open_dir(b"d").unwrap();
    let (first, second) = (dir.reopen().unwrap(), dir.reopen().unwrap());
    assert!(first.try_lock(Lock::Shared).unwrap() && second.try_lock(Lock::Shared).unwrap());
    let mine = |how| (std::process::id(), how);
    assert_eq!(dir.locks().unwrap(), [mine(Lock::Shared), mine(Lock::Shared)]);
    assert!(!dir.try_lock(Lock::Exclusive).unwrap());
    drop((first, second));
    assert!(dir.try_lock(Lock::Exclusive).unwrap());
    assert_eq!(dir.locks().unwrap(), [mine(Lock::Exclusive)]);
    // The lock stays with the directory when that is renamed. A new directory with the old name is
    // not locked.
    root.rename(b"d", &*root, b"e", RenameMode::Replace).unwrap();
    root.mkdir(b"d", 0o755).unwrap();
    assert!(!root.open_dir(b"e").unwrap().try_lock(Lock::Shared).unwrap());
    assert!(root.open_dir(b"d").unwrap().try_lock(Lock::Shared).unwrap());
    drop(dir);
    let again = root.open_dir(b"e").unwrap();
    assert!(again.locks().unwrap().is_empty() && again.try_lock(Lock::Exclusive).unwrap());
}

pub(super) fn unlinked_but_open(root: Root) {
    let file = write_file(&root, b"f", b"still");
    let btime = file.stat().unwrap().btime;
    root.unlink(b"f").unwrap();
    file.write_at(b" here", 5).unwrap();
    let mut bytes = [0; 10];
    file.read_at(&mut bytes, 0).unwrap();
    assert_eq!(
        (&bytes[..], file.stat().unwrap().nlink, file.stat().unwrap().btime),
        (&b"still here"[..], 0, btime)
    );
    file.sync_all().unwrap();
    let again = write_file(&root, b"f", b"new");
    assert!(again.stat().unwrap().ino != file.stat().unwrap().ino);
}

pub(super) fn spaces(root: Root) {
    let space = root.space().unwrap();
    assert!(space.block_size > 0 && space.free <= space.blocks && space.available <= space.free);
    assert_eq!(space.name_max, 255);
    assert!(!root.is_read_only().unwrap());
    let one = root.stat_self().unwrap();
    root.mkdir(b"d", 0o755).unwrap();
    let two = root.stat(b"d").unwrap();
    assert_eq!(one.dev, two.dev);
    assert_ne!(one.ino, two.ino);
}
