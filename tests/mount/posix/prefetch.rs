//! Contents that the kernel gets with the answer to OPEN: they must equal those of a READ, whatever
//! else happens to the file at that moment.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;

use super::{Posix, c};

const LEN: usize = 20_000;

fn contents(number: usize) -> Vec<u8> {
    (0..LEN).map(|at| (at / 7 + number * 31) as u8 | 1).collect()
}

/// Runs all of `acts` at the same moment.
fn at_once(acts: Vec<Box<dyn FnOnce() + Send + '_>>) {
    let barrier = Barrier::new(acts.len());
    thread::scope(|scope| {
        for act in acts {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                act();
            });
        }
    });
}

/// Reads during a write: each byte must be the old one at its place, or a zero, as all writers here
/// write only zeros.
fn read_meanwhile(path: PathBuf, old: &[u8]) {
    let mut whole = vec![0; LEN + 200];
    let len = File::open(path).unwrap().read_at(&mut whole, 0).unwrap();
    let seen = whole[..len].iter().enumerate();
    assert!(
        seen.into_iter().all(|(at, &byte)| byte == 0 || old.get(at) == Some(&byte)),
        "{len} bytes, some of which the file never had"
    );
}

#[test]
fn prefetched_contents_are_never_stale() {
    // Contents that were read before a program's write, and passed to the kernel after it, would
    // have reverted the write.
    let Some(mut posix) = Posix::new() else { return };
    const FILES: usize = 200;
    for number in 0..FILES {
        fs::write(posix.at(&format!("f{number}")), contents(number)).unwrap();
    }
    posix.remount(); // nobody has opened them in this mount
    let expected = |number: usize| {
        let mut now = contents(number);
        match number % 4 {
            0 => now[..100].fill(0),
            1 => now.truncate(5000),
            2 => now.extend([0; 100]),
            _ => now.clear(),
        }
        now
    };
    for number in 0..FILES {
        let path = posix.at(&format!("f{number}"));
        let (old, new) = (contents(number), expected(number));
        let reader = || -> Box<dyn FnOnce() + Send + '_> {
            let (path, old) = (path.clone(), &old);
            Box::new(move || read_meanwhile(path, old))
        };
        let writer = || -> Box<dyn FnOnce() + Send + '_> {
            let path = path.clone();
            Box::new(move || match number % 4 {
                0 => OpenOptions::new()
                    .write(true)
                    .open(path)
                    .unwrap()
                    .write_all_at(&[0; 100], 0)
                    .unwrap(),
                // SAFETY: the path ends with a zero byte and lives through the call.
                1 => assert_eq!(unsafe { libc::truncate(c(&path).as_ptr(), 5000) }, 0),
                2 => OpenOptions::new()
                    .write(true)
                    .open(path)
                    .unwrap()
                    .write_all_at(&[0; 100], LEN as u64)
                    .unwrap(),
                _ => drop(File::create(path).unwrap()),
            })
        };
        at_once(vec![reader(), writer(), reader(), reader()]);
        assert_eq!(fs::read(&path).unwrap(), new, "file {number}");
    }
    posix.remount();
    for number in 0..FILES {
        assert_eq!(
            fs::read(posix.at(&format!("f{number}"))).unwrap(),
            expected(number),
            "file {number} after a remount"
        );
    }
    posix.finish();
}

/// Small files of all sizes are prefetched whole, without bytes after their end.
#[test]
fn small_files_of_every_size_are_prefetched_exactly() {
    let Some(mut posix) = Posix::new() else { return };
    let sizes = [0, 1, 4095, 4096, 4097, 8191, 16_384, 65_535, 65_536, 65_537, 200_000];
    let bytes = |size: usize| (0..size).map(|at| (at / 5) as u8 | 1).collect::<Vec<_>>();
    for size in sizes {
        fs::write(posix.at(&format!("s{size}")), bytes(size)).unwrap();
    }
    posix.remount();
    for size in sizes {
        let file = File::open(posix.at(&format!("s{size}"))).unwrap();
        if size > 0 {
            let mapped = size.next_multiple_of(4096);
            // SAFETY: the file is open, is not cut while it is mapped, and the mapping is read
            // within its length and then unmapped.
            unsafe {
                let at = rustix::mm::mmap(
                    std::ptr::null_mut(),
                    mapped,
                    rustix::mm::ProtFlags::READ,
                    rustix::mm::MapFlags::SHARED,
                    &file,
                    0,
                )
                .unwrap();
                let seen = std::slice::from_raw_parts(at.cast::<u8>(), mapped);
                assert_eq!(&seen[..size], &bytes(size)[..], "{size}");
                assert!(
                    seen[size..].iter().all(|&byte| byte == 0),
                    "{size}: bytes beyond the end in the last page"
                );
                rustix::mm::munmap(at, mapped).unwrap();
            }
        }
        assert_eq!(fs::read(posix.at(&format!("s{size}"))).unwrap(), bytes(size));
        assert_eq!(file.metadata().unwrap().len(), size as u64);
    }
    posix.finish();
}

/// A small file that is damaged can be opened; a read of it fails with EIO.
#[test]
fn a_damaged_small_file_opens_and_its_read_fails() {
    let Some(mut posix) = Posix::new() else { return };
    fs::write(posix.at("f"), contents(1)).unwrap();
    posix.mount.take().unwrap().unmount();
    let map = super::mounted::expect_code(
        posix.scratch.kithfs("map").arg(posix.scratch.vault()).arg("f"),
        0,
    );
    let stored = posix.scratch.vault().join(String::from_utf8(map.stdout).unwrap().trim());
    let cipher = OpenOptions::new().read(true).write(true).open(&stored).unwrap();
    let mut byte = [0];
    let at = cipher.metadata().unwrap().len() - 100;
    cipher.read_exact_at(&mut byte, at).unwrap();
    cipher.write_all_at(&[byte[0] ^ 1], at).unwrap();
    posix.mount = Some(posix.scratch.mount(&["-o", posix.options]));
    let file = File::open(posix.at("f")).unwrap();
    let mut buf = vec![0; LEN];
    assert_eq!(file.read_exact_at(&mut buf, 0).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read(posix.at("f")).unwrap_err().raw_os_error(), Some(libc::EIO));
    drop(file);
    posix.mount.take().unwrap().unmount();
}
