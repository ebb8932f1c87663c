//! File handles: `name_to_handle_at(2)` and `open_by_handle_at(2)`, by which NFS servers too find
//! files.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use super::{Posix, c};

const BYTES: usize = 128;

/// `struct file_handle`.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; BYTES],
}

fn handle(path: &Path) -> Handle {
    let mut handle = Handle { bytes: BYTES as u32, kind: 0, handle: [0; BYTES] };
    let (path, mut mount_id) = (c(path), 0i32);
    // SAFETY: the path is NUL-terminated, the handle has room for the bytes that it states, and all
    // of them live through the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount_id,
            0,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    handle
}

impl Posix {
    /// Opens a file handle, or returns the error number.
    fn open_handle(&self, handle: &Handle, flags: i32) -> Result<File, i32> {
        let mount = File::open(self.scratch.point()).unwrap();
        // SAFETY: the handle states its length and lives through the call, which only reads it.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                mount.as_raw_fd(),
                &raw const *handle,
                flags | libc::O_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(std::io::Error::last_os_error().raw_os_error().unwrap());
        }
        // SAFETY: the call has returned this descriptor, which nothing else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }.into())
    }

    fn read_handle(&self, handle: &Handle) -> Result<String, i32> {
        let mut text = String::new();
        self.open_handle(handle, libc::O_RDONLY)?.read_to_string(&mut text).unwrap();
        Ok(text)
    }

    /// Returns the stored file of a file in the root of the mount.
    fn stored(&self, name: &str) -> PathBuf {
        let number = fs::metadata(self.at(name)).unwrap().ino();
        let mut entries = fs::read_dir(self.scratch.vault()).unwrap().map(Result::unwrap);
        entries.find(|entry| entry.metadata().unwrap().ino() == number).unwrap().path()
    }
}

/// Makes the kernel drop all inodes that no program holds.
fn drop_caches() {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

/// Without `FUSE_EXPORT_SUPPORT` each of these opens failed with `ESTALE`: the kernel did not ask
/// the daemon.
#[test]
fn a_file_handle_outlives_the_kernels_inode() {
    for posix in Posix::both() {
        fs::create_dir_all(posix.at("a/b/c")).unwrap();
        fs::write(posix.at("a/b/c/file"), "contents").unwrap();
        symlink("target", posix.at("a/b/link")).unwrap();
        let [dir, file, link, root] =
            ["a/b/c", "a/b/c/file", "a/b/link", ""].map(|path| handle(&posix.at(path)));
        for _ in 0..2 {
            drop_caches();
            assert_eq!(posix.read_handle(&file).unwrap(), "contents");
            drop_caches();
            let opened = posix.open_handle(&dir, libc::O_RDONLY).unwrap();
            let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
            assert_eq!(fs::read_link(&path).unwrap(), posix.at("a/b/c"));
            assert_eq!(fs::read(format!("{path}/file")).unwrap(), b"contents");
            let linked = posix.open_handle(&link, libc::O_PATH | libc::O_NOFOLLOW).unwrap();
            assert!(linked.metadata().unwrap().is_symlink());
            assert!(posix.open_handle(&root, libc::O_RDONLY).unwrap().metadata().unwrap().is_dir());
        }
        // The number of the inode is the same, and so is the handle.
        assert_eq!(handle(&posix.at("a/b/c/file")), file);
        posix.finish();
    }
}

#[test]
fn a_file_handle_follows_renames_and_links() {
    let Some(posix) = Posix::new() else { return };
    fs::create_dir_all(posix.at("a/b")).unwrap();
    fs::create_dir(posix.at("other")).unwrap();
    for name in ["renamed", "moved", "linked"] {
        fs::write(posix.at("a/b").join(name), name).unwrap();
    }
    let handles =
        ["renamed", "moved", "linked"].map(|name| (name, handle(&posix.at("a/b").join(name))));
    let dir = handle(&posix.at("a/b"));
    fs::hard_link(posix.at("a/b/linked"), posix.at("other/second")).unwrap();
    drop_caches();
    fs::rename(posix.at("a/b/renamed"), posix.at("a/b/new")).unwrap();
    fs::rename(posix.at("a/b/moved"), posix.at("other/moved")).unwrap();
    fs::remove_file(posix.at("a/b/linked")).unwrap();
    fs::rename(posix.at("a"), posix.at("other/a")).unwrap();
    drop_caches();
    for (name, handle) in &handles {
        assert_eq!(posix.read_handle(handle).as_deref(), Ok(*name));
    }
    let opened = posix.open_handle(&dir, libc::O_RDONLY).unwrap();
    let path = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
    assert_eq!(path, posix.at("other/a/b"));
    drop(opened);
    posix.finish();
}

#[test]
fn the_handle_of_a_removed_object_is_stale() {
    let Some(posix) = Posix::new() else { return };
    fs::create_dir(posix.at("dir")).unwrap();
    for name in ["removed", "held", "replaced"] {
        fs::write(posix.at(name), name).unwrap();
    }
    fs::write(posix.at("successor"), "successor").unwrap();
    let [removed, held, replaced, dir] =
        ["removed", "held", "replaced", "dir"].map(|name| handle(&posix.at(name)));
    let program = File::open(posix.at("held")).unwrap();
    drop_caches();
    fs::remove_file(posix.at("removed")).unwrap();
    fs::remove_file(posix.at("held")).unwrap();
    fs::remove_dir(posix.at("dir")).unwrap();
    fs::rename(posix.at("successor"), posix.at("replaced")).unwrap();
    drop_caches();
    assert_eq!(posix.read_handle(&removed), Err(libc::ESTALE));
    assert_eq!(posix.read_handle(&replaced), Err(libc::ESTALE));
    assert_eq!(posix.open_handle(&dir, libc::O_RDONLY).unwrap_err(), libc::ESTALE);
    assert_eq!(posix.read_handle(&held).as_deref(), Ok("held"), "a program holds it");
    drop(program);
    drop_caches();
    assert_eq!(posix.read_handle(&held), Err(libc::ESTALE));
    posix.finish();
}

/// Node numbers begin again with each mount. So the handle of a file opened the file that had its
/// number in a later mount, as long as the kernel had the inode of that one.
#[test]
fn a_handle_of_an_earlier_mount_opens_no_other_file() {
    let Some(mut posix) = Posix::new() else { return };
    for name in ["first", "second"] {
        fs::write(posix.at(name), name).unwrap();
    }
    posix.remount();
    let [first, second, root] = ["first", "second", ""].map(|name| handle(&posix.at(name)));
    posix.remount();
    assert_eq!(fs::read(posix.at("second")).unwrap(), b"second");
    assert_eq!(fs::read(posix.at("first")).unwrap(), b"first");
    assert_eq!(posix.read_handle(&first), Err(libc::ESTALE));
    assert_eq!(posix.read_handle(&second), Err(libc::ESTALE));
    drop_caches();
    assert_eq!(posix.read_handle(&first), Err(libc::ESTALE));
    assert!(posix.open_handle(&root, libc::O_RDONLY).is_ok());
    posix.finish();
}

/// The storage host gives the stored names of two files to each other, or puts a copy in the place
/// of a file. The daemon finds the file of a handle by its name. So it must notice that the name of
/// the first file now leads to the second.
#[test]
fn a_handle_leads_to_no_other_file_of_the_store() {
    let Some(posix) = Posix::new() else { return };
    for name in ["first", "second", "copied"] {
        fs::write(posix.at(name), name).unwrap();
    }
    let [first, second, copied] = ["first", "second", "copied"].map(|name| handle(&posix.at(name)));
    let stored = ["first", "second", "copied"].map(|name| posix.stored(name));
    drop_caches();
    let (from, to) = (c(&stored[0]), c(&stored[1]));
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    rustix::fs::renameat_with(rustix::fs::CWD, &from, rustix::fs::CWD, &to, exchange).unwrap();
    fs::copy(&stored[2], posix.scratch.path().join("copy")).unwrap();
    fs::rename(posix.scratch.path().join("copy"), &stored[2]).unwrap();
    for handle in [&first, &second, &copied] {
        assert_eq!(posix.read_handle(handle), Err(libc::ESTALE));
    }
    rustix::fs::renameat_with(rustix::fs::CWD, &from, rustix::fs::CWD, &to, exchange).unwrap();
    posix.finish();
}

/// Of more files than the daemon remembers, each handle opens its own file or none.
#[test]
fn the_handle_of_a_file_among_many_opens_that_file() {
    let Some(mut posix) = Posix::new() else { return };
    posix.mount.take().unwrap().unmount();
    posix.mount = Some(posix.scratch.mount(&["-o", posix.options, "--cache-size", "4M"]));
    let names: Vec<String> = (0..2000).map(|n| format!("file{n}")).collect();
    names.iter().for_each(|name| fs::write(posix.at(name), name).unwrap());
    let handles: Vec<Handle> = names.iter().map(|name| handle(&posix.at(name))).collect();
    drop_caches();
    let mut found = 0;
    for (handle, name) in handles.iter().zip(&names) {
        match posix.read_handle(handle) {
            Ok(text) => {
                assert_eq!(text, *name);
                found += 1;
            }
            Err(error) => assert_eq!(error, libc::ESTALE),
        }
    }
    assert!(found > 0);
    posix.finish();
}
