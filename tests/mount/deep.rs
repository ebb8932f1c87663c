//! Trees that are deeper than a path can name: programs make them with `mkdirat(2)` and `openat(2)`.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, renameat};

use super::lock::Daemon;
use crate::support::mounted::{Scratch, can_mount, expect_code};
use crate::support::vaults::pattern;

const SIZE: usize = 100_000;
/// Offset and length of the part that is overwritten later.
const PART: (usize, usize) = (40_000, 9000);

fn dir(at: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> File {
    openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap().into()
}

fn file(dir: &File, flags: OFlags) -> File {
    openat(dir, "file", flags, Mode::from_raw_mode(0o644)).unwrap().into()
}

/// At this depth the encrypted path of a file has more than 65,535 bytes, and no record of the journal
/// can name it.
const LEVELS: usize = 2000;

/// Returns whether the directory at a depth has a file. The daemon keeps 512 directories of the store
/// open.
fn has_file(depth: usize) -> bool {
    [1, 512, 513, 1900, LEVELS].contains(&depth)
}

/// Makes a tree with durable files, renames it, and overwrites a part of each file through its
/// descriptor. That fails at the lowest level.
fn make(top: &Path) {
    let mut at = dir(CWD, top);
    let mut files = Vec::new();
    for depth in 1..=LEVELS {
        mkdirat(&at, "d", Mode::from_raw_mode(0o755)).unwrap();
        at = dir(&at, "d");
        if has_file(depth) {
            let file = file(&at, OFlags::RDWR | OFlags::CREATE);
            file.write_all_at(&pattern(depth as u64, SIZE), 0).unwrap();
            file.sync_all().unwrap();
            files.push((depth, file));
        }
    }
    let top = dir(CWD, top);
    renameat(&top, "d", &top, "renamed").unwrap();
    for (depth, file) in files {
        let part = pattern(depth as u64 + 1, PART.1);
        let written = file.write_all_at(&part, PART.0 as u64).and_then(|()| file.sync_all());
        let error = written.err().and_then(|error| error.raw_os_error());
        assert_eq!(error, (depth == LEVELS).then_some(libc::ENAMETOOLONG), "at {depth}");
    }
}

/// Verifies what [`make`] has made.
fn verify(top: &Path) {
    let mut at = dir(dir(CWD, top), "renamed");
    for depth in 1..=LEVELS {
        if has_file(depth) {
            let mut wanted = pattern(depth as u64, SIZE);
            if depth != LEVELS {
                wanted[PART.0..][..PART.1].copy_from_slice(&pattern(depth as u64 + 1, PART.1));
            }
            let mut bytes = Vec::new();
            file(&at, OFlags::RDONLY).read_to_end(&mut bytes).unwrap();
            assert!(bytes == wanted, "the file at depth {depth} has other contents");
        }
        if depth < LEVELS {
            at = dir(&at, "d");
        }
    }
}

/// A check reported each directory below 1,024 levels as a fault, because it did not enter it. It
/// held a stack frame and an open directory for each level.
#[test]
fn a_deep_tree_outlives_a_kill_and_is_checked_whole() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let point = scratch.point();
    let mut daemon = Daemon::start(scratch.kithfs("mount"), &scratch, &[]);
    make(&point);
    daemon.kill();
    expect_code(scratch.kithfs("umount").arg(&point), 0);
    let mount = scratch.mount(&[]);
    verify(&point);
    mount.unmount();

    // With as many descriptors as most systems allow.
    let limited = |command: &Command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n 1024 && exec \"$@\"", "sh"]);
        shell.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            shell.env(name, value.unwrap());
        }
        expect_code(&mut shell, 0)
    };
    let checked = limited(scratch.kithfs("fsck").arg("--json").arg(scratch.vault()));
    let checked: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(checked["dirs"], LEVELS + 1, "{checked}");
    let (out, second) = (scratch.path().join("out"), scratch.path().join("second"));
    limited(scratch.kithfs("export").arg(scratch.vault()).arg(&out));
    verify(&out);
    expect_code(
        scratch.kithfs("init").args(["--kdf-memory", "32", "--kdf-passes", "1"]).arg(&second),
        0,
    );
    limited(scratch.kithfs("import").arg(&out).arg(&second));
    limited(scratch.kithfs("fsck").arg(&second));
    let mounted = scratch.kithfs("mount").arg(&second).arg(&point).status().unwrap();
    assert!(mounted.success());
    verify(&point);
    expect_code(Command::new("rm").arg("-r").arg(point.join("renamed")), 0);
    expect_code(scratch.kithfs("umount").arg(&point), 0);
    expect_code(Command::new("rm").arg("-r").arg(&out), 0);
}
