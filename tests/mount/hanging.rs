//! A store that does not answer: another mount of kithfs, whose daemon is stopped. Neither a lock nor an
//! unmount waits for it without end, nor for a process that does.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;

use super::lock::{Daemon, Writer};
use crate::support::mounted::{
    Mount, Scratch, Stopped, can_mount, ends_within, expect_code, is_mounted,
};
use crate::support::people::wait_until;
use crate::support::turn;

/// How long a store may take in these tests, in seconds.
const PATIENCE: &str = "3";

/// A vault inside the mount of another one.
pub struct Nested {
    scratch: Scratch,
    pub outer: Mount,
    vault: PathBuf,
    pub point: PathBuf,
}

impl Nested {
    pub fn new() -> Nested {
        let scratch = Scratch::new(&[]);
        let outer = scratch.mount(&[]);
        let (vault, point) = (scratch.point().join("inner"), scratch.path().join("plain"));
        let mut init = scratch.kithfs("init");
        expect_code(init.args(["--kdf-memory", "32", "--kdf-passes", "1"]).arg(&vault), 0);
        fs::create_dir(&point).unwrap();
        Nested { scratch, outer, vault, point }
    }

    pub fn kithfs(&self, sub: &str) -> Command {
        let mut command = self.scratch.kithfs(sub);
        command.env("KITHFS_STORE_PATIENCE", PATIENCE);
        command
    }

    /// Mounts the inner vault in the foreground.
    pub fn mount(&self) -> Daemon {
        let mut command = self.kithfs("mount");
        command.args(["--foreground", "--log-level", "info"]).arg(&self.vault).arg(&self.point);
        Daemon::at(command, self.point.clone())
    }

    /// Returns the daemon of the outer mount.
    pub fn store(&self) -> Pid {
        let mounts = expect_code(self.kithfs("mounts").arg("--json"), 0);
        let mounts: serde_json::Value = serde_json::from_slice(&mounts.stdout).unwrap();
        let place = self.scratch.point();
        let is_outer = |mount: &&serde_json::Value| mount["mountpoint"].as_str() == place.to_str();
        let pid = mounts.as_array().unwrap().iter().find(is_outer).unwrap()["pid"].as_i64();
        Pid::from_raw(pid.unwrap() as i32).unwrap()
    }

    /// Runs a command that must end soon; returns its messages.
    fn told(&self, sub: &str, code: i32) -> String {
        let mut command = self.kithfs(sub);
        command.arg(&self.point);
        let said = expect_code(&mut ends_within(60, &command), code);
        String::from_utf8_lossy(&said.stderr).into_owned()
    }
}

/// `lock` and `umount` waited for a store that had gone until it came back, and `umount` could not
/// even be killed: the keys stayed in memory, and the machine went to sleep with them.
#[test]
fn a_lock_gives_a_store_up_that_does_not_answer() {
    let _alone = turn::alone();
    if !can_mount() {
        return;
    }
    let nested = Nested::new();
    for is_dirty in [true, false] {
        let mut daemon = nested.mount();
        let mut synced = fs::File::create(nested.point.join("synced")).unwrap();
        synced.write_all(b"synced").and_then(|()| synced.sync_all()).unwrap();
        drop(synced);
        // Another process has the file open. If this one had, it could start no other process:
        // exec(2) closes files, and that would wait for the store.
        let writer = is_dirty.then(|| Writer::start(&nested.point));
        let stopped = Stopped::stop(nested.store());
        if is_dirty {
            // An unmount gives nothing up: the mount stays.
            let told = nested.told("umount", 1);
            assert!(told.contains("the store has not answered for 3 seconds"), "{told}");
            assert!(told.contains("hint: ") && told.contains("kithfs lock"), "{told}");
            assert!(is_mounted(&nested.point));
        }
        let told = nested.told("lock", 1);
        assert!(told.contains("some data was not written: the store has not answered"), "{told}");
        assert!(!is_mounted(&nested.point));
        writer.into_iter().for_each(Writer::end);
        // The process may wait for the store before it ends, but its memory with the keys is gone.
        let status = format!("/proc/{}/status", daemon.pid());
        let has_memory = || fs::read_to_string(&status).is_ok_and(|text| text.contains("VmRSS"));
        wait_until("the memory is given back", || !has_memory());
        drop(stopped);
        let log = daemon.ended_with(1);
        assert!(log.iter().any(|line| line.contains("the store has not answered")), "{log:#?}");
        let file = expect_code(nested.kithfs("cat").arg(&nested.vault).arg("synced"), 0);
        assert_eq!(file.stdout, b"synced");
        expect_code(nested.kithfs("fsck").arg("--repair").arg(&nested.vault), 0);
    }
    let Nested { outer, .. } = nested;
    outer.unmount();
}

/// A process whose memory is locked by the kernel: it maps something else over a changed page of a
/// file, and the kernel writes the page first. The filesystem of the file does not answer.
struct Stuck {
    process: Child,
    stopped: Option<Stopped>,
}

impl Stuck {
    fn on(dir: &Path, daemon: Pid) -> Stuck {
        const PROGRAM: &str = "
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p] + [ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
file = os.open('mapped', os.O_RDWR | os.O_CREAT, 0o600)
os.truncate(file, 4096)
page = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
ctypes.memset(page, 1, 4096)
print('ready', flush=True)
sys.stdin.readline()
# The page may have been written back meanwhile.
ctypes.memset(page, 2, 4096)
fixed = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10
libc.mmap(page, 4096, mmap.PROT_READ, fixed, -1, 0)
";
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", PROGRAM]).current_dir(dir);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let stopped = Some(Stopped::stop(daemon));
        process.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
        let status = format!("/proc/{}/stat", process.id());
        wait_until("the process waits", || {
            fs::read_to_string(&status).is_ok_and(|stat| stat.contains(") D "))
        });
        Stuck { process, stopped }
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        drop(self.stopped.take());
        self.process.wait().unwrap();
    }
}

/// A lock looked for the programs that used the mount before it did anything else. One process of the
/// machine that was stuck, anywhere, kept every vault from being locked: the command line of such a
/// process cannot be read. An unmount of a busy mount waited for it in the same way.
#[test]
fn a_lock_does_not_wait_for_a_stuck_process() {
    let _alone = turn::alone();
    if !can_mount() {
        return;
    }
    let nested = Nested::new();
    let other = Scratch::new(&[]);
    let mut daemon = Daemon::start(other.kithfs("mount"), &other, &[]);
    let writer = Writer::start(&other.point());
    let stuck = Stuck::on(&nested.scratch.point(), nested.store());
    let ended = |sub, code| {
        let mut command = other.kithfs(sub);
        command.arg(other.point());
        let said = expect_code(&mut ends_within(60, &command), code);
        String::from_utf8_lossy(&said.stderr).into_owned()
    };
    let told = ended("umount", 13);
    assert!(told.contains("busy") && told.contains("(bash)"), "{told}");
    ended("lock", 0);
    let log = daemon.ended();
    let named = |line: &String| line.contains("locked while in use") && line.contains("(bash)");
    assert!(log.iter().any(named), "{log:#?}");
    writer.end();
    drop(stuck);
    let Nested { outer, .. } = nested;
    outer.unmount();
}
