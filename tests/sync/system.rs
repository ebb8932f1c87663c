//! The systems that play a trace: kithfs, gocryptfs, and a plain directory as the reference. Each
//! machine has its own copy of the store, its own daemon, state directory and host name.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};

use crate::support::mounted::{KITHFS, is_mounted};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Plain,
    Kithfs,
    Gocryptfs,
}

impl System {
    pub fn name(self) -> &'static str {
        match self {
            System::Plain => "plain",
            System::Kithfs => "kithfs",
            System::Gocryptfs => "gocryptfs",
        }
    }

    /// Returns whether a name in the store belongs to no entry that a program has made.
    pub fn is_control(self, name: &str) -> bool {
        match self {
            System::Plain => false,
            System::Kithfs => name.starts_with('+'),
            System::Gocryptfs => name.starts_with("gocryptfs.") && !is_long_entry(name),
        }
    }
}

/// Returns whether this is an entry with a long name, not the file beside it that holds the name.
fn is_long_entry(name: &str) -> bool {
    name.starts_with("gocryptfs.longname.") && !name.contains(".name")
}

/// Returns the path of the program: that of this build, or the one in the variable `KITHFS`.
fn kithfs() -> String {
    std::env::var("KITHFS").unwrap_or(KITHFS.to_owned())
}

/// How far the clock of each machine is from the right time, with `sync-simulator.sh --clocks`.
const CLOCKS: [&str; 3] = ["-400d", "+3d", "-2h"];

/// One machine.
pub struct Machine {
    system: System,
    number: usize,
    home: PathBuf,
    daemon: Option<Child>,
}

/// How long a daemon may take until it serves the mount.
const PATIENCE: Duration = Duration::from_secs(30);

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::yield_now();
    }
}

/// Creates a store that machines get copies of: a vault with the cheapest key stretching.
pub fn create_store(system: System, home: &Path) {
    let store = home.join("store");
    fs::write(home.join("passphrase"), "correct horse\n").expect("write the passphrase");
    let mut command = match system {
        System::Plain => return fs::create_dir(&store).expect("create the plain directory"),
        System::Kithfs => {
            let mut command = Command::new(kithfs());
            command.args(["init", "--synced", "--kdf-memory", "32", "--kdf-passes", "1"]);
            command.arg("--passphrase-file");
            command
        }
        System::Gocryptfs => {
            fs::create_dir(&store).expect("create the store");
            let mut command = Command::new("gocryptfs");
            command.args(["-q", "-init", "-scryptn", "10", "-passfile"]);
            command
        }
    };
    command.arg(home.join("passphrase")).arg(&store);
    command.env("XDG_STATE_HOME", home.join("state"));
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// Names of the members, by their machines.
const NAMES: [&str; 3] = ["Ann", "Bob", "Cem"];

/// Creates a share of which the machines of its members get copies. The members are Ann, an admin,
/// and the writers Bob and Cem, each with an identity of their own.
pub fn create_team(home: &Path) {
    fs::write(home.join("passphrase"), "correct horse\n").expect("write the passphrase");
    let store = home.join("store").to_str().expect("a path of ASCII").to_owned();
    let run = |member: usize, args: &[&str]| -> String {
        let person = home.join(format!("person-{member}"));
        fs::create_dir_all(&person).expect("create a member's directory");
        let mut command = Command::new(kithfs());
        command.args(args).current_dir(&person).stdin(Stdio::null());
        command.env("HOME", &person).env("XDG_STATE_HOME", person.join("state"));
        command.env("XDG_CONFIG_HOME", person.join("config"));
        command.env("KITHFS_PASSPHRASE_FILE", home.join("passphrase"));
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    };
    let keys = [0, 1, 2].map(|member| {
        run(member, &["identity", "new", "--kdf-memory", "32", "--kdf-passes", "1"]);
        run(member, &["identity", "export"])
    });
    let knows = |member, other: usize| {
        run(member, &["contact", "add", NAMES[other], &keys[other]]);
        run(member, &["contact", "verify", NAMES[other], "--yes"]);
    };
    let identity = "config/kithfs/identity";
    run(0, &["init", "--signed", "--synced", "--name", NAMES[0], "--identity", identity, &store]);
    for member in [1, 2] {
        knows(0, member);
        knows(member, 0);
        run(0, &["share", "add", "--role", "writer", &store, NAMES[member]]);
        let invitation = home.join(NAMES[member]);
        let invitation = invitation.to_str().expect("a path of ASCII");
        run(0, &["share", "invite", "-o", invitation, &store, NAMES[member]]);
        run(member, &["accept", invitation]);
    }
}

impl Machine {
    /// Creates a machine in `dir` with a copy of the store in `template`.
    pub fn new(system: System, number: usize, template: &Path, dir: &Path) -> Machine {
        let home = dir.join(format!("{}-{number}", system.name()));
        for each in ["state", "config", "run", "point"] {
            fs::create_dir_all(home.join(each)).expect("create the machine's directories");
        }
        let copied = Command::new("cp")
            .arg("-a")
            .args([template.join("store"), template.join("passphrase")])
            .arg(&home)
            .status();
        assert!(copied.expect("run cp").success(), "copy the store");
        let person = template.join(format!("person-{number}"));
        if system == System::Kithfs && person.is_dir() {
            let copied = Command::new("cp").arg("-a").arg(person.join(".")).arg(&home).status();
            assert!(copied.expect("run cp").success(), "copy the member's directories");
        }
        Machine { system, number, home, daemon: None }
    }

    /// Returns the directory that the tool keeps equal.
    pub fn store(&self) -> PathBuf {
        self.home.join("store")
    }

    /// Returns the directory in which programs work.
    pub fn point(&self) -> PathBuf {
        match self.system {
            System::Plain => self.store(),
            _ => self.home.join("point"),
        }
    }

    /// Returns whether the machine is on, so that programs can work.
    pub fn is_up(&self) -> bool {
        self.system == System::Plain || self.daemon.is_some()
    }

    /// Returns a command that runs with the host name and the directories of this machine.
    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--uts", "sh", "-c", "hostname \"$0\" && exec \"$@\""])
            .arg(format!("machine-{}", self.number))
            .arg(program)
            .args(args)
            .stdin(Stdio::null());
        let environment = [
            ("HOME", self.home.clone()),
            ("XDG_STATE_HOME", self.home.join("state")),
            ("XDG_CONFIG_HOME", self.home.join("config")),
            ("XDG_RUNTIME_DIR", self.home.join("run")),
            ("KITHFS_PASSPHRASE_FILE", self.home.join("passphrase")),
        ];
        command.envs(environment);
        // A library that changes the time that programs see, as scripts/sync-simulator.sh says.
        if let Some(library) = std::env::var_os("KITHFS_SYNC_CLOCKS") {
            command.env("LD_PRELOAD", library).env("FAKETIME", CLOCKS[self.number]);
            command.env("DONT_FAKE_MONOTONIC", "1");
        }
        command
    }

    /// Runs a command of kithfs on this machine, for its store.
    pub fn kithfs(&self, args: &[&str]) -> Output {
        let mut command = self.command(&kithfs(), args);
        command.arg(self.store()).output().expect("run kithfs")
    }

    /// Runs a command of `kithfs share` on this machine.
    pub fn share(&self, args: &[&str]) -> Output {
        self.command(&kithfs(), &[&["share"], args].concat()).output().expect("run kithfs")
    }

    /// Mounts the vault.
    ///
    /// # Errors
    /// What the program printed, if it refused.
    pub fn mount(&mut self) -> Result<(), String> {
        let point = self.home.join("point");
        let log = self.home.join("log");
        let passphrase = self.home.join("passphrase");
        let mut command = match self.system {
            System::Plain => return Ok(()),
            System::Kithfs => self.command(&kithfs(), &["mount", "--foreground"]),
            System::Gocryptfs => {
                let passphrase = passphrase.to_str().expect("a path of ASCII");
                let options = ["-fg", "-q", "-nosyslog", "-sharedstorage", "-badname", "*"];
                self.command("gocryptfs", &[&options[..], &["-passfile", passphrase]].concat())
            }
        };
        let file = File::create(&log).expect("create the log");
        command.arg(self.store()).arg(&point).stdout(Stdio::null()).stderr(file);
        let mut child = command.spawn().expect("start the daemon");
        let mut ended = None;
        wait_until("the vault is mounted", || {
            ended = child.try_wait().expect("wait for the daemon");
            ended.is_some() || is_mounted(&point)
        });
        match ended {
            Some(_) => Err(fs::read_to_string(&log).unwrap_or_default()),
            None => {
                self.daemon = Some(child);
                Ok(())
            }
        }
    }

    /// Kills the daemon, and detaches its mount.
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.kill();
            let _ = daemon.wait();
            let _ = unmount(self.point(), UnmountFlags::DETACH);
        }
    }

    /// Unmounts the vault.
    ///
    /// # Errors
    /// What the daemon printed, if it did not end well.
    pub fn unmount(&mut self) -> Result<(), String> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        let point = self.point();
        let output = match self.system {
            System::Kithfs => self.command(&kithfs(), &["umount"]).arg(&point).output(),
            _ => Command::new("umount").arg(&point).output(),
        };
        let output = output.expect("run the unmount");
        if !output.status.success() {
            let _ = unmount(&point, UnmountFlags::DETACH);
            let _ = daemon.kill();
        }
        let status = daemon.wait().expect("wait for the daemon");
        if output.status.success() && status.success() {
            return Ok(());
        }
        let log = fs::read_to_string(self.home.join("log")).unwrap_or_default();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("{said}{log}signal {:?}", status.signal()))
    }

    /// Flushes everything that programs have written.
    pub fn flush(&self) -> rustix::io::Result<()> {
        if !self.is_up() || self.system == System::Plain {
            return Ok(());
        }
        rustix::fs::syncfs(File::open(self.point()).map_err(|_| rustix::io::Errno::IO)?)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}
