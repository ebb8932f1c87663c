//! Space: holes, allocation, lengths, limits, and what is reported about them.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use super::{Posix, errno, fallocate, holes, seek};
use crate::support::mounted::expect_code;

const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn blocks(file: &File) -> u64 {
    file.metadata().unwrap().blocks() * 512
}

#[test]
fn holes_are_found_made_and_kept() {
    let Some(mut posix) = Posix::new() else { return };
    const MIB: u64 = 1 << 20;
    let sparse = open(&posix.at("sparse"));
    sparse.set_len(64 * MIB).unwrap();
    for at in [0, 10 * MIB, 40 * MIB] {
        sparse.write_all_at(&[1; MIB as usize], at).unwrap();
    }
    drop(sparse);
    posix.shell("cp --sparse=never sparse full; cp sparse copy; rsync -S sparse rsynced; cp --sparse=always full dug; tar -Scf t.tar sparse; mkdir x; tar -C x -xf t.tar");
    posix.remount();
    for name in ["sparse", "copy", "rsynced", "dug", "x/sparse"] {
        let file = open(&posix.at(name));
        assert!(blocks(&file) < 4 * MIB, "{name}: {}", blocks(&file));
        posix.shell(&format!("cmp {name} full"));
    }
    let file = File::open(posix.at("copy")).unwrap();
    let mib = MIB as i64;
    assert_eq!(seek(&file, 0, libc::SEEK_HOLE), Ok(mib));
    assert_eq!(seek(&file, mib, libc::SEEK_DATA), Ok(10 * mib));
    assert_eq!(seek(&file, 10 * mib + 5, libc::SEEK_DATA), Ok(10 * mib + 5));
    assert_eq!(seek(&file, 41 * mib, libc::SEEK_DATA), Err(libc::ENXIO));
    assert_eq!(seek(&file, 41 * mib, libc::SEEK_HOLE), Ok(41 * mib));
    assert_eq!(seek(&file, 64 * mib, libc::SEEK_HOLE), Err(libc::ENXIO));
    drop(file);
    posix.finish();
}

#[test]
fn what_another_process_holds_dirty_is_copied_whole() {
    // lseek(SEEK_DATA) asks before the kernel has sent its dirty pages: cp mistook data that was
    // just written for holes.
    let Some(posix) = Posix::new() else { return };
    let file = open(&posix.at("dirty"));
    file.set_len(8 << 20).unwrap();
    file.write_all_at(&[9; 100_000], 3 << 20).unwrap();
    posix.shell("cp --sparse=auto dirty copy; cmp dirty copy");
    // Data after the end that the daemon knew counted as none, so tar made a hole of it.
    let fresh = open(&posix.at("fresh"));
    fresh.write_all_at(&[9; 3_000_000], 0).unwrap();
    assert_eq!(
        seek(&fresh, 0, libc::SEEK_DATA),
        if holes::kernel_sends() { Ok(0) } else { Err(libc::EINVAL) }
    );
    fresh.write_all_at(&[9; 3_000_000], 3_000_000).unwrap();
    posix.shell("tar -Scf fresh.tar fresh; mkdir x; tar -C x -xf fresh.tar; cmp fresh x/fresh");
    drop(fresh);
    let mut read = vec![0; 100_000];
    File::open(posix.at("copy")).unwrap().read_exact_at(&mut read, 3 << 20).unwrap();
    assert!(read.iter().all(|b| *b == 9));
    drop(file);
    posix.finish();
}

#[test]
fn holes_of_a_file_that_is_open_for_writing_are_found() {
    // While a file was open for writing all of it counted as data, because LSEEK arrives before the
    // pages that the kernel holds back.
    let Some(posix) = Posix::new() else { return };
    if !holes::kernel_sends() {
        return;
    }
    const MIB: u64 = 1 << 20;
    let file = open(&posix.at("f"));
    file.set_len(16 * MIB).unwrap();
    assert_eq!(holes::data(&file), []);
    file.write_all_at(&[9; 100_000], 3 * MIB).unwrap();
    // Whole segments are data; the second one is after the end that the daemon knows.
    assert_eq!(seek(&file, 0, libc::SEEK_DATA), Ok(3 << 20));
    assert_eq!(seek(&file, 3 << 20, libc::SEEK_HOLE), Ok((3 << 20) + 102_400));
    file.write_all_at(&[8; 5000], 20 * MIB).unwrap();
    let end = 20 * MIB + 5000;
    let written = [3 * MIB..3 * MIB + 102_400, 20 * MIB..end];
    assert_eq!(holes::data(&file), written);
    assert_eq!(seek(&file, end as i64 - 1, libc::SEEK_HOLE), Ok(end as i64));
    assert_eq!(seek(&file, end as i64, libc::SEEK_HOLE), Err(libc::ENXIO));
    assert_eq!(seek(&file, end as i64, libc::SEEK_DATA), Err(libc::ENXIO));
    // Other opens see the same, and what a mapping has written is data too.
    assert_eq!(holes::data(&File::open(posix.at("f")).unwrap()), written);
    posix.shell(
        "python3 -c '
import mmap, os
f = os.open(\"f\", os.O_RDWR)
m = mmap.mmap(f, 0)
m[8 << 20] = 7
assert os.lseek(f, 4 << 20, os.SEEK_DATA) == 8 << 20
assert os.lseek(f, 8 << 20, os.SEEK_HOLE) == (8 << 20) + 4096
assert m[8 << 20] == 7 and m[3 << 20] == 9
'",
    );
    assert_eq!(fallocate(&file, PUNCH, 3 << 20, 1 << 20), 0);
    assert_eq!(holes::data(&file), [8 * MIB..8 * MIB + 4096, 20 * MIB..end]);
    posix.shell("cp --sparse=auto f copy; cmp f copy");
    assert!(blocks(&File::open(posix.at("copy")).unwrap()) < MIB);
    drop(file);
    posix.finish();
}

#[test]
fn holes_that_many_look_for_at_once_are_found() {
    // A thread of the daemon that asks the kernel for its pages must not be one that the kernel
    // needs for them.
    let Some(posix) = Posix::new() else { return };
    if holes::kernel_sends() {
        // Over io_uring a queue cannot let so many requests wait, and then holes may count as data.
        let mounts = expect_code(posix.scratch.kithfs("mounts").arg("--json"), 0).stdout;
        let mounts: serde_json::Value = serde_json::from_slice(&mounts).unwrap();
        let point = posix.scratch.point();
        let is_ours = |mount: &&serde_json::Value| mount["mountpoint"].as_str() == point.to_str();
        let ours = mounts.as_array().unwrap().iter().find(is_ours).unwrap();
        holes::many_at_once(&point, ours["io_uring"] == false);
    }
    posix.finish();
}

#[test]
fn fallocate_in_each_mode_is_as_below() {
    let Some(mut posix) = Posix::new() else { return };
    // Sizes and contents are compared with the filesystem below after every step.
    let steps: &[(i32, i64, i64)] = &[
        (0, 0, 1000),
        (0, 0, 10_000),
        (KEEP, 0, 50_000),
        (0, 300_000, 200_000),
        (PUNCH, 100, 50),
        (PUNCH, 4096, 8192),
        (PUNCH, 5000, 300_001),
        (PUNCH, 400_000, 1_000_000),
        (ZERO, 0, 5000),
        (ZERO | KEEP, 499_000, 100_000),
        (ZERO, 499_000, 100_000),
        (ZERO, 700_000, 10),
        (0, 0, 0),
        (PUNCH, 0, 0),
        (libc::FALLOC_FL_PUNCH_HOLE, 0, 10),
        (0, -1, 10),
        (0, 10, -1),
        (0, i64::MAX - 5, 10),
    ];
    let path = [posix.at("f"), posix.below().join("f")];
    let files = [open(&path[0]), open(&path[1])];
    for file in &files {
        file.write_all_at(&[7; 4000], 0).unwrap();
    }
    for (i, &(mode, offset, len)) in steps.iter().enumerate() {
        let answers = files.each_ref().map(|file| fallocate(file, mode, offset, len));
        assert_eq!(answers[0], answers[1], "{:?}", steps[i]);
        assert!(fs::read(&path[0]).unwrap() == fs::read(&path[1]).unwrap(), "{:?}", steps[i]);
        // Data to punch and to zero, in the middle half of the file.
        for file in &files {
            let len = file.metadata().unwrap().len();
            file.write_all_at(&vec![i as u8 + 1; len as usize / 2], len / 4).unwrap();
        }
    }
    drop(files);
    posix.remount();
    assert!(fs::read(&path[0]).unwrap() == fs::read(&path[1]).unwrap());
    posix.finish();
}

#[test]
fn blocks_tell_what_a_file_takes() {
    let Some(posix) = Posix::new() else { return };
    // The kernel does not count blocks of pages that it has not sent yet, and asks again after a
    // descriptor is closed.
    let path = posix.at("f");
    let after = |act: &dyn Fn(&File)| {
        act(&open(&path));
        blocks(&open(&path))
    };
    let full = after(&|file| file.write_all_at(&vec![5; 10 << 20], 0).unwrap());
    assert!((10 << 20..11 << 20).contains(&full), "{full}");
    let punched = after(&|file| assert_eq!(fallocate(file, PUNCH, 1 << 20, 8 << 20), 0));
    assert!((2 << 20..3 << 20).contains(&punched), "{punched}");
    let allocated = after(&|file| assert_eq!(fallocate(file, KEEP, 0, 20 << 20), 0));
    assert!(allocated >= 20 << 20, "{allocated}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 10 << 20);
    let cut = after(&|file| file.set_len(0).unwrap());
    assert!(cut <= 64 << 10, "{cut}");
    posix.shell("for i in $(seq 100); do echo $i > s$i; done; test $(du -s --block-size=1 . | cut -f1) -le 1000000");
    posix.finish();
}

/// A length up to 8 EiB works or is refused with EFBIG. No length wraps around.
#[test]
fn lengths_up_to_8_eib_work_or_are_refused_and_never_wrap() {
    let Some(posix) = Posix::new() else { return };
    let file = open(&posix.at("f"));
    file.write_all_at(b"begin", 0).unwrap();
    for len in [i64::MAX as u64, i64::MAX as u64 - 4096, 1 << 62, 1 << 50, 1 << 43] {
        match file.set_len(len) {
            Ok(()) => {
                assert_eq!(file.metadata().unwrap().len(), len);
                let mut last = [1; 5];
                file.read_exact_at(&mut last, len - 5).unwrap();
                assert_eq!(last, [0; 5]);
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{len}"),
        }
        let mut begin = [0; 5];
        file.read_exact_at(&mut begin, 0).unwrap();
        assert_eq!(&begin, b"begin");
    }
    // SAFETY: a plain call with a buffer that lives.
    let written = unsafe { libc::pwrite(file.as_raw_fd(), b"x".as_ptr().cast(), 1, i64::MAX) };
    assert!(matches!(errno(written as i64), libc::EFBIG | libc::EINVAL));
    file.set_len(5).unwrap();
    drop(file);
    posix.finish();
}

#[test]
fn rlimit_fsize_applies_to_programs_not_to_the_daemon() {
    // A daemon that was started under `ulimit -f` was killed by SIGXFSZ at the first large file,
    // with all the data that it held.
    let Some(mut posix) = Posix::new() else { return };
    posix.shell("! (ulimit -f 100; trap '' XFSZ; head -c 1000000 /dev/zero > f) 2>/dev/null; test $(stat -c %s f) = 102400");
    posix.shell("! (ulimit -f 100; trap '' XFSZ; truncate -s 200K f) 2>/dev/null; ! (ulimit -f 100; trap '' XFSZ; fallocate -l 200K f) 2>/dev/null; test $(stat -c %s f) = 102400");
    posix.mount.take().unwrap().unmount();
    let mut mount = Command::new("bash");
    mount.args([
        "-euc",
        "ulimit -S -f 100; exec \"$@\"",
        "mount",
        super::mounted::KITHFS,
        "mount",
        "-o",
        "allow_other",
    ]);
    mount
        .arg(posix.scratch.vault())
        .arg(posix.scratch.point())
        .env("KITHFS_PASSPHRASE_FILE", posix.scratch.passphrase());
    super::mounted::expect_code(&mut mount, 0);
    posix.shell("head -c 5000000 /dev/zero > g; test $(stat -c %s g) = 5000000");
    super::mounted::expect_code(
        Command::new(super::mounted::KITHFS).arg("umount").arg(posix.scratch.point()),
        0,
    );
    posix.mount = Some(posix.scratch.mount(&["-o", posix.options]));
    posix.shell("test $(stat -c %s g) = 5000000; cmp -n 5000000 g /dev/zero");
    posix.finish();
}

#[test]
fn ranges_are_copied_between_files_and_within_one() {
    let Some(mut posix) = Posix::new() else { return };
    let copy = |from: &File, mut at: i64, to: &File, mut dest: i64, len: usize| {
        let mut done = 0;
        while done < len {
            // SAFETY: both offsets live through the call.
            let n = unsafe {
                libc::copy_file_range(
                    from.as_raw_fd(),
                    &mut at,
                    to.as_raw_fd(),
                    &mut dest,
                    len - done,
                    0,
                )
            };
            assert!(n >= 0, "{}", std::io::Error::last_os_error());
            if n == 0 {
                break;
            }
            done += n as usize;
        }
        done
    };
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let (a, b) = (open(&posix.at("a")), open(&posix.at("b")));
    a.write_all_at(&data, 0).unwrap();
    assert_eq!(copy(&a, 12_345, &b, 678, 1_000_000), 1_000_000);
    assert_eq!(copy(&a, 2_999_990, &b, 2_000_000, 100), 10);
    assert_eq!(copy(&a, 0, &a, 4_000_000, 500_000), 500_000);
    let mut expected = vec![0; 2_000_010];
    expected[678..1_000_678].copy_from_slice(&data[12_345..1_012_345]);
    expected[2_000_000..].copy_from_slice(&data[2_999_990..]);
    drop((a, b));
    posix.remount();
    assert!(fs::read(posix.at("b")).unwrap() == expected);
    let a = fs::read(posix.at("a")).unwrap();
    assert!(
        a[..3_000_000] == data
            && a[4_000_000..] == data[..500_000]
            && a[3_000_000..4_000_000].iter().all(|b| *b == 0)
    );
    posix.finish();
}

#[test]
fn statvfs_agrees_with_the_filesystem_below() {
    let Some(posix) = Posix::new() else { return };
    let (here, below) = (
        rustix::fs::statvfs(posix.scratch.point()).unwrap(),
        rustix::fs::statvfs(posix.below()).unwrap(),
    );
    assert_eq!(
        (here.f_blocks * here.f_frsize, here.f_namemax),
        (below.f_blocks * below.f_frsize, 255)
    );
    assert!((here.f_bavail * here.f_frsize).abs_diff(below.f_bavail * below.f_frsize) < 4 << 30);
    assert_eq!(here.f_files, below.f_files);
    let mut file = open(&posix.at("f"));
    file.write_all(&[1; 100]).unwrap();
    assert_eq!(file.metadata().unwrap().blksize(), 4096);
    drop(file);
    posix.finish();
}
