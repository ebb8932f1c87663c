//! A vault on a real mount, created and unmounted by the program itself, as a user would.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::turn;

/// The program under test.
pub const KITHFS: &str = env!("CARGO_BIN_EXE_kithfs");

/// Returns whether a mount can be made here; prints a message if not.
pub fn can_mount() -> bool {
    let usable = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !usable {
        println!("skipped: /dev/fuse cannot be opened");
    }
    usable
}

/// A temporary directory for a vault, its passphrase and a mount point, all removed on drop.
pub struct Scratch {
    dir: tempfile::TempDir,
    _turn: turn::Turn,
}

/// A mounted vault; dropping it unmounts.
pub struct Mount {
    pub point: PathBuf,
    up: bool,
}

/// Runs a command and returns its output; panics with it if the exit code is not `code`.
pub fn expect_code(command: &mut Command, code: i32) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert_eq!(
        output.status.code(),
        Some(code),
        "{command:?}\nstdout: {}\nstderr: {}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Returns `command` with a limit of time, after which it is ended and the exit code is 124.
pub fn ends_within(seconds: u32, command: &Command) -> Command {
    let mut limited = Command::new("timeout");
    limited.arg(seconds.to_string()).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        limited.current_dir(dir);
    }
    limited
}

/// Runs a shell script in `dir`; panics with its output if it fails.
pub fn shell(dir: &Path, script: &str) -> String {
    let output = expect_code(Command::new("bash").args(["-euc", script]).current_dir(dir), 0);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Scratch {
    /// Creates a vault with the passphrase "correct horse" and the cheapest key stretching.
    pub fn new(init: &[&str]) -> Self {
        let scratch = Self::bare();
        expect_code(
            scratch
                .kithfs("init")
                .args(["--kdf-memory", "32", "--kdf-passes", "1"])
                .args(init)
                .arg(scratch.vault()),
            0,
        );
        scratch
    }

    /// Creates the directories and the passphrase file, and no vault.
    pub fn bare() -> Self {
        let turn = turn::take();
        let dir = tempfile::Builder::new()
            .prefix("kithfs-test-")
            .tempdir()
            .expect("a temporary directory");
        std::fs::write(dir.path().join("passphrase"), "correct horse\n")
            .expect("write the passphrase");
        std::fs::create_dir(dir.path().join("mnt")).expect("make the mount point");
        Scratch { dir, _turn: turn }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn vault(&self) -> PathBuf {
        self.dir.path().join("vault")
    }

    pub fn point(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    pub fn passphrase(&self) -> PathBuf {
        self.dir.path().join("passphrase")
    }

    /// Returns `kithfs SUB` with the passphrase file in the environment, and with configuration and
    /// state of its own.
    pub fn kithfs(&self, sub: &str) -> Command {
        let mut command = Command::new(KITHFS);
        command
            .arg(sub)
            .env("KITHFS_PASSPHRASE_FILE", self.passphrase())
            .env("XDG_CONFIG_HOME", self.path().join("config"))
            .env("XDG_STATE_HOME", self.path().join("state"));
        command
    }

    /// Mounts the vault in the background.
    pub fn mount(&self, options: &[&str]) -> Mount {
        expect_code(self.kithfs("mount").args(options).arg(self.vault()).arg(self.point()), 0);
        Mount { point: self.point(), up: true }
    }

    /// Mounts the vault in the background, by a shell that runs `first` before.
    pub fn mount_after(&self, first: &str) -> Mount {
        let mut shell = Command::new("sh");
        shell
            .args([
                "-c",
                &format!("{first} && exec \"$@\""),
                "sh",
                KITHFS,
                "mount",
                "--passphrase-file",
            ])
            .arg(self.passphrase());
        expect_code(
            shell
                .env("XDG_STATE_HOME", self.path().join("state"))
                .arg(self.vault())
                .arg(self.point()),
            0,
        );
        Mount { point: self.point(), up: true }
    }
}

impl Mount {
    /// Takes over a vault that is mounted already.
    pub fn at(point: PathBuf) -> Mount {
        Mount { point, up: true }
    }

    /// Unmounts as a user does, and waits for the daemon.
    pub fn unmount(mut self) {
        expect_code(Command::new(KITHFS).arg("umount").arg(&self.point), 0);
        self.up = false;
    }
}

/// A process that is stopped until this is dropped.
pub struct Stopped(Pid);

impl Stopped {
    /// Stops a process, and waits until none of its threads runs. One thread takes the signal and stops
    /// the others; on a busy machine these can answer requests until it gets a processor.
    pub fn stop(process: Pid) -> Stopped {
        kill_process(process, Signal::STOP).unwrap();
        let stopped = Stopped(process);
        let end = Instant::now() + Duration::from_secs(60);
        while !stopped.is_still() {
            assert!(Instant::now() < end, "{process:?} does not stop");
            std::thread::yield_now();
        }
        stopped
    }

    /// Returns whether each thread has stopped, or waits in the kernel and will stop after that.
    fn is_still(&self) -> bool {
        let threads = format!("/proc/{}/task", self.0.as_raw_nonzero());
        let mut threads = std::fs::read_dir(threads).expect("list the threads").flatten();
        threads.all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
            state.is_empty() || state.starts_with(['T', 't', 'D', 'Z', 'X'])
        })
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Returns whether something is mounted at `point`.
pub fn is_mounted(point: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("read the mount table");
    table.lines().any(|line| line.split(' ').nth(4) == point.to_str())
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.up {
            let _ = Command::new(KITHFS).args(["umount", "--lazy"]).arg(&self.point).status();
        }
    }
}
