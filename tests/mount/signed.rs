//! Signed files behind the kernel's caches. If a forgery replaces a file that a program has read,
//! the next open fails: neither the forgery nor cached pages of the former file are shown.
//!
//! Skipped with a message if nothing can be mounted. KITHFS_TRANSPORT=uring asks for io_uring.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use kithfs::crypto::RecordCipher;
use kithfs::format::header::{Header, HeaderContext};
use kithfs::fuse::vaultfs::VaultFs;
use kithfs::fuse::{MountOptions, Mounted, ServeOptions, Serving, Transport, View, mount, serve};
use kithfs::roster::{Identity, Role};
use kithfs::store::mem::MemStore;

use crate::support::forger::Forger;
use crate::support::members::{founded, member, open_as, person};
use crate::support::raw::{read, write};
use crate::support::turn;
use crate::support::vaults::{pattern, put};

const LARGE: usize = 200_000;

/// Ann's share, mounted by Ann; dropping it unmounts.
struct Mount {
    mounted: Mounted,
    serving: Option<Serving>,
    _dir: tempfile::TempDir,
    _turn: turn::Turn,
}

impl Mount {
    fn of(store: &MemStore, who: &Identity) -> Mount {
        let turn = turn::take();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (mounted, fd) = mount(dir.path(), &MountOptions::default()).expect("mounting");
        let uring = std::env::var("KITHFS_TRANSPORT").is_ok_and(|transport| transport == "uring");
        let transport = if uring { Transport::Uring } else { Transport::Dev };
        let ops = Arc::new(VaultFs::new(open_as(store, who).unwrap(), View::default()));
        let serving = serve(fd, ops, &ServeOptions { transport, ..ServeOptions::default() })
            .expect("serving");
        Mount { mounted, serving: Some(serving), _dir: dir, _turn: turn }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.mountpoint.join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted.unmount(false).is_err() {
            let _ = self.mounted.unmount(true);
            return;
        }
        if let Some(serving) = self.serving.take() {
            let ended = serving.join();
            assert!(std::thread::panicking() || ended.is_ok(), "{ended:?}");
        }
    }
}

fn is_eio<T>(result: &io::Result<T>) -> bool {
    result.as_ref().err().and_then(io::Error::raw_os_error) == Some(libc::EIO)
}

/// Reads the file until it is refused, which happens after the daemon has released it (the kernel
/// reports a close a moment later). Until then the contents must be the honest ones.
fn becomes_refused(path: &Path, honest: &[u8]) {
    let begun = Instant::now();
    loop {
        match fs::read(path) {
            Ok(bytes) => assert!(bytes == honest, "neither the honest contents nor an error"),
            refused => {
                assert!(is_eio(&refused), "{refused:?}");
                return;
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "the forged file is not refused");
    }
}

/// Returns `bytes` of a file with a newer version, under the signature of the current version: that
/// signature is valid, and cached by a daemon that has or had the file open.
fn newer_under_the_same_signature(forger: &Forger, bytes: &[u8], writer: &Identity) -> Vec<u8> {
    let cipher = RecordCipher::new(forger.suite, forger.keys.headers.expose());
    let context = HeaderContext { share: &forger.share, layout: forger.layout, cipher: &cipher };
    let (header, data, by) = Header::open(&context, bytes).unwrap();
    let signed = std::cell::RefCell::new(Vec::new());
    forger.seal(&header, &data, by.unwrap(), &|label, message| {
        *signed.borrow_mut() = message.to_vec();
        writer.sign(label, message)
    });
    let newer = Header { version: header.version + 1, ..header };
    let sealed =
        forger.seal(&newer, &data, by.unwrap(), &|label, _| writer.sign(label, &signed.borrow()));
    [&sealed[..], &bytes[sealed.len()..]].concat()
}

/// A program reads a file, and then a forgery replaces it in the store. Opening it must fail, and
/// not show the forgery or the former contents from the page cache.
#[test]
fn a_forged_file_is_neither_shown_nor_masked_by_the_cache() {
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: there is no /dev/fuse");
        return;
    }
    let cem = person(3);
    let (store, ann) = founded(vec![member(&cem, Role::Reader, "Cem")]);
    for len in [1000, LARGE] {
        let honest = pattern(7, len);
        let vault = open_as(&store, &ann).unwrap();
        put(&vault, b"file", &honest).unwrap();
        let name = vault.cipher_path(b"file").unwrap();
        vault.close().unwrap();
        let root = store.root();
        let bytes = read(&*root, &name);
        let forged = newer_under_the_same_signature(&Forger::of(&root, &cem), &bytes, &ann);

        let mounted = Mount::of(&store, &ann);
        let file = mounted.path("file");
        let start = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    assert!(fs::read(&file).unwrap() == honest);
                });
            }
        });
        // The kernel has cached all pages of the file by now.
        for _ in 0..2 {
            write(&*root, &name, &forged);
            becomes_refused(&file, &honest);
            assert!(
                is_eio(&fs::File::open(&file))
                    && is_eio(&fs::OpenOptions::new().append(true).open(&file))
            );
            assert_eq!(read(&*root, &name), forged, "the forgery is left as it is");
            write(&*root, &name, &bytes);
            assert!(fs::read(&file).unwrap() == honest);
        }
        // The owner can replace a forgery with new contents, and remove the file.
        write(&*root, &name, &forged);
        becomes_refused(&file, &honest);
        fs::write(&file, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        fs::remove_file(&file).unwrap();
    }
}

#[test]
fn a_replaced_version_is_not_mixed_in_the_page_cache() {
    // The kernel had some pages of a file when another version was written into the same file of
    // the store, by a sync tool or the storage host. The next open showed those pages between pages
    // of the other version.
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: there is no /dev/fuse");
        return;
    }
    let (store, ann) = founded(vec![]);
    let version = |n| {
        let vault = open_as(&store, &ann).unwrap();
        put(&vault, b"file", &pattern(n, LARGE)).unwrap();
        let name = vault.cipher_path(b"file").unwrap();
        vault.close().unwrap();
        (name.clone(), read(&*store.root(), &name))
    };
    let ((name, older), (_, newer)) = (version(1), version(2));
    let mounted = Mount::of(&store, &ann);
    let file = mounted.path("file");
    let some_pages = |expected: &[u8]| {
        let file = fs::File::open(&file).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let mut page = [0; 4096];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut page, 100_000).unwrap();
        assert!(page == expected[100_000..104_096]);
    };
    some_pages(&pattern(2, LARGE));
    for n in [1, 2, 1] {
        let (bytes, before) = if n == 1 { (&older, 2) } else { (&newer, 1) };
        write(&*store.root(), &name, bytes);
        let (expected, before) = (pattern(n, LARGE), pattern(before, LARGE));
        let begun = Instant::now();
        loop {
            let seen = fs::read(&file).unwrap();
            if seen == expected {
                break;
            }
            assert!(seen == before, "a mixture of two versions");
            assert!(begun.elapsed() < Duration::from_secs(20), "the other version is not shown");
        }
    }
}
