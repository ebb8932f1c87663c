//! Long commands that are interrupted, or whose disk is full: each says what it has done and how to
//! continue, and continues when it is run again.

use std::fs;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::people::{Person, stderr, wait_until};

/// Returns a person with a vault of one share, which holds a folder `f`, and a tree of 96 MB.
/// Returns `None` if the test does not run as root: only root sees how much a process of kithfs
/// reads and writes.
fn with_much() -> Option<Person> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return None;
    }
    let ann = Person::with_identity("ann");
    ann.ok(&["init", "--signed", "--name", "Ann", "vault"]);
    ann.shell("mkdir tree; for i in $(seq 8); do head -c 12000000 /dev/urandom > tree/$i; done");
    ann.ok(&["import", "tree", "vault/f"]);
    Some(ann)
}

/// Returns how many bytes a process has read and written.
fn moved(pid: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let count = |name| {
        let value = io.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    count("rchar:") + count("wchar:")
}

#[test]
fn each_long_command_says_how_to_continue() {
    let Some(ann) = with_much() else { return };
    for (line, name, hint) in [
        ("export vault/f out", "export", "run the same command again; it continues"),
        ("fsck vault", "fsck", "nothing was changed, and nothing is known of the rest"),
        ("share rekey --eager vault", "share rekey", "what was sealed stays sealed"),
        ("share create vault/f", "share create", "the folder is as it was"),
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let child = ann.kithfs(&args).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("it has begun", || moved(child.id()) > 8_000_000);
        // `setsid` has become the program.
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        let all = stderr(&output);
        assert_eq!(output.status.code(), Some(130), "{line}: {all}");
        assert!(all.contains(&format!("kithfs: {name}: interrupted")), "{line}: {all}");
        assert!(all.contains("hint: ") && all.contains(hint), "{line}: {all}");
        ann.ok(&args);
    }
    let (same, differences) = ann.shell("diff -r tree out");
    assert!(same, "{differences}");
    ann.ok(&["fsck", "vault"]);
    ann.ok(&["export", "vault/f", "again"]);
    assert!(ann.shell("diff -r tree again").0);
}

/// The message of a full target said that one more byte was needed. The bytes of the file that did
/// not fit were counted as copied, and files in folders of the vault were not counted at all.
#[test]
fn a_full_disk_ends_each_long_command_with_one_message() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can mount a small disk");
    }
    let ann = Person::with_identity("ann");
    let (fine, why) = ann.shell("mkdir disk small; mount -t tmpfs -o size=10m none disk; mount -t tmpfs -o size=4m none small");
    let unmount = scopeguard::guard((), |()| drop(ann.shell("umount disk small")));
    if !fine {
        return println!("skipped: {why}");
    }
    ann.ok(&["init", "--signed", "--name", "Ann", "disk/vault"]);
    ann.shell("mkdir tree; head -c 6000000 /dev/urandom > tree/large");
    ann.ok(&["import", "tree", "disk/vault/f"]);
    let commands = [
        ("share rekey --eager disk/vault", "kithfs: reseal /", "free space on the vault's"),
        ("share create disk/vault/f", "kithfs: share f (/", "free space on the vault's"),
        ("export disk/vault/f small/out", "1.72 MiB more are needed", "it continues where"),
    ];
    for (line, what, hint) in commands {
        let args: Vec<&str> = line.split(' ').collect();
        let all = stderr(&ann.fails(&args, 1));
        assert_eq!(all.lines().filter(|line| line.starts_with("kithfs: ")).count(), 1, "{all}");
        assert!(all.contains(what) && all.to_lowercase().contains("no space"), "{line}: {all}");
        assert!(all.contains("hint: ") && all.contains(hint), "{line}: {all}");
    }
    assert!(ann.shell("mount -o remount,size=60m disk; mount -o remount,size=60m small").0);
    for (line, ..) in commands {
        ann.ok(&line.split(' ').collect::<Vec<_>>());
    }
    ann.ok(&["fsck", "disk/vault"]);
    assert!(ann.shell("cmp tree/large small/out/large").0);
    drop(unmount);
}
