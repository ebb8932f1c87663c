//! Nobody touches the store, and programs work on the same files at the same time: the daemon must
//! not mistake the mount's own changes for changes in the store.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Runs `work` in threads until `main` has returned.
fn beside<T>(work: &[&(dyn Fn() + Sync)], main: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for work in work {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    work();
                }
            });
        }
        let done = main();
        over.store(true, Ordering::Release);
        done
    })
}

/// An open by name checked the names of an open file in the middle of a rename, mistook the file
/// for one that another program had replaced, and the next `fsync` of its writer failed.
#[test]
fn a_log_that_is_rotated_and_read_is_never_lost() {
    if !can_mount() {
        return;
    }
    let host = Host::new(&[], &pattern(5_000, 1));
    let mount = host.mount(&[]);
    let (log, rotated) = (host.plain(), host.scratch.point().join("f.1"));
    let rotate = || {
        fs::rename(&log, &rotated).unwrap();
        fs::rename(&rotated, &log).unwrap();
    };
    let read = || {
        for name in [&log, &rotated] {
            let _ = File::open(name);
        }
    };
    let write = || {
        for name in [&log, &rotated] {
            let _ = append(name, b"N");
        }
    };
    beside(&[&rotate, &read, &write], || {
        let mut held = File::options()
            .append(true)
            .open(host.plain())
            .or_else(|_| File::options().append(true).open(&rotated))
            .unwrap();
        for n in 0..300 {
            held.write_all(b"W").unwrap();
            held.sync_all().unwrap_or_else(|error| panic!("fsync number {n}: {error}"));
        }
    });
    mount.unmount();
    let contents = host.cat();
    assert_eq!(contents.iter().skip(5_000).filter(|byte| **byte == b'W').count(), 300);
}

/// The same if the file is removed, or another one renamed over it, while it is open.
#[test]
fn a_removed_file_is_written_beside_readers_of_its_name() {
    if !can_mount() {
        return;
    }
    let host = Host::new(&[], b"");
    let mount = host.mount(&[]);
    let (name, other) = (host.scratch.point().join("g"), host.scratch.point().join("other"));
    let read = || {
        let _ = File::open(&name);
    };
    beside(&[&read, &read], || {
        for n in 0..200 {
            let mut held = File::create(&name).unwrap();
            held.write_all(b"before").unwrap();
            held.sync_all().unwrap();
            if n % 2 == 0 {
                fs::remove_file(&name).unwrap();
            } else {
                fs::write(&other, b"of another one").unwrap();
                fs::rename(&other, &name).unwrap();
            }
            held.write_all(b"after").unwrap();
            held.sync_all().unwrap_or_else(|error| panic!("round {n}: {error}"));
        }
    });
    mount.unmount();
}

/// An open reached a node whose name a rename had just taken, and failed with ENOENT although a
/// file of that name existed at every moment.
#[test]
fn a_file_that_is_renamed_over_never_seems_gone() {
    if !can_mount() {
        return;
    }
    let host = Host::new(&[], b"x");
    let mount = host.mount(&[]);
    let new = host.scratch.point().join("new");
    let save = || {
        fs::write(&new, pattern(3_000, 2)).unwrap();
        fs::rename(&new, host.plain()).unwrap();
    };
    beside(&[&save], || {
        for _ in 0..2_000 {
            // The kernel repeats a lookup once after ESTALE.
            if let Err(error) = File::open(host.plain()) {
                assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
            }
        }
    });
    mount.unmount();
}

/// The kernel released a name's old inode, which the daemon mistook for one that the kernel had
/// dropped. The file's node was retired, and the time that the kernel sent for it later failed,
/// which another program's `syncfs` reported.
#[test]
fn syncfs_succeeds_after_files_were_saved_by_rename() {
    if !can_mount() {
        return;
    }
    let host = Host::new(&[], b"x");
    let mount = host.mount(&[]);
    let new = host.scratch.point().join("new");
    let save = || {
        fs::write(&new, pattern(3_000, 2)).unwrap();
        let _ = File::open(&new).and_then(|file| file.sync_all());
        fs::rename(&new, host.plain()).unwrap();
    };
    let read = || {
        let _ = fs::read(host.plain());
    };
    // Drops inodes and names that nobody uses, if that is allowed.
    let drop_caches = || {
        let _ = fs::write("/proc/sys/vm/drop_caches", "2");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    beside(&[&save, &read, &drop_caches], || std::thread::sleep(std::time::Duration::from_secs(2)));
    rustix::fs::syncfs(File::open(host.scratch.point()).unwrap()).unwrap();
    mount.unmount();
}

/// A program read a file that another one truncated and wrote again. Between the daemon's answer to
/// the truncation and the moment at which the kernel recorded it, the kernel filled with zeros what
/// the daemon no longer had, and the reader got them.
#[test]
fn a_reader_beside_truncations_gets_no_zeros() {
    if !can_mount() {
        return;
    }
    let host = Host::new(&[], &[1; 300_000]);
    let mount = host.mount(&[]);
    let write = || {
        fs::write(host.plain(), [1; 300_000]).unwrap();
        // Drops the kernel's pages of the file, so that readers ask the daemon.
        let file = File::open(host.plain()).unwrap();
        file.sync_all().unwrap();
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    };
    let read = || {
        let at = |bytes: Vec<u8>| bytes.iter().position(|byte| *byte == 0);
        assert_eq!(
            fs::read(host.plain()).ok().and_then(at),
            None,
            "a zero that nobody has written"
        );
    };
    beside(&[&read, &read], || (0..100).for_each(|_| write()));
    mount.unmount();
}
