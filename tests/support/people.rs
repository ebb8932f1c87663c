//! Users with homes of their own, who run the program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::terminal::Terminal;
use super::turn::{self, Turn};

/// The program under test.
const KITHFS: &str = env!("CARGO_BIN_EXE_kithfs");

/// A person with a home, a passphrase, and no terminal.
pub struct Person {
    name: &'static str,
    dir: tempfile::TempDir,
    /// The user that runs the program, if it is not the user of the test.
    uid: Option<u32>,
    program: PathBuf,
    _turn: Turn,
}

impl Person {
    /// Creates a person with an empty home.
    pub fn new(name: &'static str) -> Person {
        let turn = turn::take();
        let dir = tempfile::Builder::new()
            .prefix("kithfs-test-")
            .tempdir()
            .expect("a temporary directory");
        let person = Person { name, dir, uid: None, program: KITHFS.into(), _turn: turn };
        person.write("passphrase", &format!("passphrase of {name}\n"));
        person
    }

    /// Creates a person with an identity in the usual place.
    pub fn with_identity(name: &'static str) -> Person {
        let person = Person::new(name);
        person.ok(&["identity", "new", "--kdf-memory", "32", "--kdf-passes", "1"]);
        person
    }

    /// Creates a person with an identity. If the test runs as root, the `nth` of the system's
    /// accounts runs the program (fusermount3 requires users to have a name).
    pub fn user(name: &'static str, nth: usize) -> Person {
        let mut person = Person::new(name);
        let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let uids = accounts
            .lines()
            .filter_map(|line| line.split(':').nth(2)?.parse::<u32>().ok())
            .filter(|uid| *uid != 0);
        let mut uids: Vec<u32> = uids.collect();
        uids.sort();
        uids.dedup();
        if let (true, Some(&uid)) = (rustix::process::geteuid().is_root(), uids.get(nth)) {
            // The other user may not be allowed to reach the compiled program.
            person.program = person.home().join("kithfs");
            // By a child: a descriptor open for writing here would be inherited by programs that
            // other tests start, and the copy could not be executed.
            assert!(
                Command::new("cp")
                    .arg(KITHFS)
                    .arg(&person.program)
                    .status()
                    .expect("run cp")
                    .success()
            );
            person.uid = Some(uid);
            person.own(person.home());
        }
        person.ok(&["identity", "new", "--kdf-memory", "32", "--kdf-passes", "1"]);
        person
    }

    /// Makes this person the owner of a tree.
    pub fn own(&self, path: &Path) {
        if let Some(uid) = self.uid {
            let status = Command::new("chown")
                .arg("-R")
                .arg(format!("{uid}:{uid}"))
                .arg(path)
                .status()
                .expect("run chown");
            assert!(status.success());
        }
    }

    /// Returns a command of this person, in the person's home, in a session of its own, so that it
    /// has no terminal.
    fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = match self.uid {
            Some(uid) => {
                let mut command = Command::new("setpriv");
                command.args([
                    format!("--reuid={uid}"),
                    format!("--regid={uid}"),
                    "--clear-groups".into(),
                    "--".into(),
                    "setsid".into(),
                ]);
                command
            }
            None => Command::new("setsid"),
        };
        command.arg("--wait").arg(program).args(args).current_dir(self.home()).stdin(Stdio::null());
        command
            .env("HOME", self.home())
            .env("KITHFS_PASSPHRASE_FILE", self.home().join("passphrase"));
        command
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("DBUS_SESSION_BUS_ADDRESS")
            .env_remove("KITHFS_AGE_IDENTITY")
            .env_remove("KITHFS_PROMPT");
        command
    }

    /// Runs a shell script of this person; returns whether every command succeeded, and the output.
    pub fn shell(&self, script: &str) -> (bool, String) {
        let output =
            self.command(Path::new("/bin/sh"), &["-euc", script]).output().expect("run a shell");
        (output.status.success(), said(&output) + &stderr(&output))
    }

    /// Returns a shell script of this person, not yet started.
    pub fn program(&self, script: &str) -> Command {
        self.command(Path::new("/bin/sh"), &["-euc", script])
    }

    pub fn home(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file in the home.
    pub fn write(&self, name: &str, contents: &str) -> PathBuf {
        let path = self.home().join(name);
        std::fs::write(&path, contents).expect("write in the home");
        path
    }

    /// Returns the program with arguments, run by this person.
    pub fn kithfs(&self, args: &[&str]) -> Command {
        self.command(&self.program, args)
    }

    /// Starts the program at a terminal, without a passphrase file.
    pub fn at_terminal(&self, args: &[&str]) -> Terminal {
        Terminal::start(self.terminal_command(args))
    }

    /// Returns the program for a terminal, not yet started.
    pub fn terminal_command(&self, args: &[&str]) -> Command {
        // SIGINT is ignored in what a shell runs in the background, as it may run the tests.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT", "setsid", "--ctty", "--wait"]);
        command.arg(&self.program).args(args);
        command.current_dir(self.home()).env("HOME", self.home());
        command
            .env_remove("KITHFS_PASSPHRASE_FILE")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_STATE_HOME")
            .env_remove("XDG_RUNTIME_DIR");
        command
    }

    fn ends_with(&self, args: &[&str], code: i32) -> Output {
        let output = self.kithfs(args).output().expect("setsid of util-linux is installed");
        assert_eq!(
            output.status.code(),
            Some(code),
            "{}: kithfs {args:?}\nstdout: {}\nstderr: {}",
            self.name,
            said(&output),
            stderr(&output)
        );
        output
    }

    /// Runs the program, which must succeed.
    pub fn ok(&self, args: &[&str]) -> Output {
        self.ends_with(args, 0)
    }

    /// Runs the program, which must fail with this exit code.
    pub fn fails(&self, args: &[&str], code: i32) -> Output {
        self.ends_with(args, code)
    }
}

pub fn said(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8 on stdout")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns whether a program is installed; prints that the test is skipped if it is not.
pub fn has(program: &str) -> bool {
    let is_there = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()));
    if !is_there {
        eprintln!("SKIPPED: {program} is missing; scripts/tools.sh --tests installs it");
    }
    is_there
}

/// Asserts that stderr contains `what`, and that stdout is empty.
pub fn refused(output: &Output, what: &str) {
    let message = stderr(output);
    assert!(message.contains(what), "{what:?} is missing in: {message}");
    assert!(said(output).is_empty(), "{}", said(output));
}

/// A vault mounted at `plain` in a person's home, unmounted on drop.
pub struct Mounted<'a>(&'a Person);

impl<'a> Mounted<'a> {
    pub fn new(person: &'a Person, options: &[&str]) -> Self {
        Mounted::at(person, options, "vault")
    }

    /// Mounts the vault at the path `vault`.
    pub fn at(person: &'a Person, options: &[&str], vault: &str) -> Self {
        person.shell("mkdir -p plain");
        person.ok(&[&["mount"], options, &[vault, "plain"]].concat());
        Mounted(person)
    }

    /// Takes over an existing mount at `plain`.
    pub fn of(person: &'a Person) -> Self {
        Mounted(person)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let ended = self
            .0
            .kithfs(&["umount", "plain"])
            .output()
            .is_ok_and(|output| output.status.success());
        if !ended {
            let _ = self.0.kithfs(&["umount", "--lazy", "plain"]).output();
        }
    }
}

/// Returns the person's public key, as `identity export` prints it.
pub fn key(person: &Person) -> String {
    said(&person.ok(&["identity", "export"])).trim().to_owned()
}

/// Adds another person to the contacts, with a verified key.
pub fn knows(person: &Person, name: &str, other: &Person) {
    person.ok(&["contact", "add", name, &key(other)]);
    person.ok(&["contact", "verify", name, "--yes"]);
}

/// Asserts that a file of the mount holds `text`.
pub fn holds(person: &Person, file: &str, text: &str) {
    let (fine, read) = person.shell(&format!("cat plain/{file}"));
    assert!(fine && read == text, "{file}: {read}");
}

/// Waits until `holds` returns true; panics with `what` after a minute.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !holds() {
        assert!(std::time::Instant::now() < end, "not within a minute: {what}");
        std::thread::yield_now();
    }
}
