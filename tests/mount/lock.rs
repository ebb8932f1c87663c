//! `kithfs lock`: the vault is taken away from the programs that use it, and nothing that they have
//! written is lost.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::Pid;

use crate::support::mounted::{KITHFS, Scratch, Stopped, can_mount, expect_code, is_mounted};
use crate::support::people::wait_until;
use crate::support::turn;

/// How long to wait for a line of a log. A lock takes a second or two.
const PATIENCE: Duration = Duration::from_secs(20);

/// A mount in the foreground, unmounted and ended on drop.
pub struct Daemon {
    child: Child,
    log: mpsc::Receiver<String>,
    point: PathBuf,
}

impl Daemon {
    /// Starts `command`, which is `kithfs mount`, with these options in the foreground.
    pub fn start(mut command: Command, scratch: &Scratch, options: &[&str]) -> Daemon {
        command.args(["--foreground", "--log-level", "info"]).args(options);
        command.arg(scratch.vault()).arg(scratch.point());
        Daemon::serving(command, scratch)
    }

    /// Starts a command that mounts in the foreground, and waits until it serves the mount.
    pub fn serving(command: Command, scratch: &Scratch) -> Daemon {
        Daemon::at(command, scratch.point())
    }

    /// Starts a command that mounts on `point` in the foreground, and waits until it serves the
    /// mount.
    pub fn at(mut command: Command, point: PathBuf) -> Daemon {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (line, log) = mpsc::channel();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|said| line.send(said))
        });
        let daemon = Daemon { child, log, point };
        daemon.says("serving the vault");
        daemon
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Returns the next line of the log, and `None` at its end.
    fn line(&self) -> Option<String> {
        match self.log.recv_timeout(PATIENCE) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the mount goes on and logs nothing"),
            line => line.ok(),
        }
    }

    /// Waits for a line of the log that contains `text`; returns the lines before.
    pub fn says(&self, text: &str) -> Vec<String> {
        let mut before = Vec::new();
        loop {
            match self.line() {
                Some(line) if line.contains(text) => return before,
                Some(line) => before.push(line),
                None => panic!("the mount has ended without {text:?}: {before:#?}"),
            }
        }
    }

    /// Waits until the mount has ended; returns the rest of the log.
    pub fn ended(&mut self) -> Vec<String> {
        self.ended_with(0)
    }

    /// Waits until the mount has ended with this exit code; returns the rest of the log.
    pub fn ended_with(&mut self, code: i32) -> Vec<String> {
        let log: Vec<String> = std::iter::from_fn(|| self.line()).collect();
        assert_eq!(self.child.wait().unwrap().code(), Some(code), "{log:#?}");
        assert!(!is_mounted(&self.point), "{log:#?}");
        log
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = Command::new(KITHFS).args(["umount", "--lazy"]).arg(&self.point).output();
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn mount(scratch: &Scratch, options: &[&str]) -> Daemon {
    Daemon::start(scratch.kithfs("mount"), scratch, options)
}

/// A program that has written to a file of the mount and keeps it open. For each further line of
/// input it writes that line too, and prints whether this succeeded.
pub struct Writer {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<std::process::ChildStdout>>,
}

impl Writer {
    pub fn start(dir: &Path) -> Writer {
        let script = "exec 3>file; echo written >&3; cd .; echo ready; \
            while read line; do if echo $line 2>/dev/null >&3; then echo ok; else echo refused; fi; done";
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut writer = Writer { child, input, output: BufReader::new(output).lines() };
        assert_eq!(writer.output.next().unwrap().unwrap(), "ready");
        writer
    }

    pub fn write(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        self.output.next().unwrap().unwrap()
    }

    pub fn end(mut self) {
        drop(self.input);
        self.child.wait().unwrap();
    }
}

#[test]
fn locking_takes_the_vault_away_and_keeps_what_was_written() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mut daemon = mount(&scratch, &[]);
    let mut writer = Writer::start(&scratch.point());
    assert_eq!(writer.write("more"), "ok");
    let locked = scratch.kithfs("lock").arg(scratch.point()).output().unwrap();
    let log = daemon.ended();
    assert!(locked.status.success(), "{locked:?}\n{log:#?}");
    assert_eq!(writer.write("late"), "refused", "the program had the file open");
    let pid = writer.child.id();
    writer.end();
    let holder = format!("locked while in use: process {pid} (bash)");
    assert!(log.iter().any(|line| line.contains(&holder)), "{log:#?}");
    assert!(log.iter().any(|line| line.contains("its keys are wiped")), "{log:#?}");
    let plain = |line: &String| line.contains("/file") || line.contains(" file");
    assert!(!log.iter().any(plain), "no plaintext name is logged: {log:#?}");
    let file = expect_code(scratch.kithfs("cat").arg(scratch.vault()).arg("file"), 0);
    assert_eq!(file.stdout, b"written\nmore\n");
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

#[test]
fn a_vault_that_nobody_uses_is_locked_too() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    for options in [&[][..], &["--read-only"]] {
        let mut daemon = mount(&scratch, options);
        expect_code(scratch.kithfs("lock").arg(scratch.point()), 0);
        assert!(daemon.ended().iter().any(|line| line.contains("its keys are wiped")));
    }
    let none = expect_code(scratch.kithfs("lock").arg(scratch.point()), 12);
    assert!(String::from_utf8_lossy(&none.stderr).contains("no vault of yours is mounted there"));
}

/// A program that appends, and syncs if its number is odd. It ends at its first error, and prints
/// how many lines were synced and accepted.
const APPENDERS: &str = r#"
import os, sys
at, dir = int(sys.argv[1]), sys.argv[2]
file = os.open(f"{dir}/{at}", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
synced = lines = 0
try:
    while True:
        os.write(file, b"%015d\n" % lines)
        lines += 1
        if lines == 1:
            print("began", flush=True)
        if at % 2 and lines % 50 == 0:
            os.fsync(file)
            synced = lines
except OSError:
    print(synced, lines, flush=True)
"#;

/// A program that wrote while the vault was locked could go on for ever: the kernel had fetched the
/// attributes of its file once more after they were invalidated, and took every write from then on
/// without asking. Of eight programs, two or three went on until they were killed.
#[test]
fn programs_that_append_get_an_error_and_lose_nothing_synced() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mut daemon = mount(&scratch, &[]);
    let appender = |at: usize| {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", APPENDERS, &at.to_string()]).arg(scratch.point());
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        scopeguard::guard(child, |mut child| {
            let _ = child.kill();
            let _ = child.wait();
        })
    };
    let mut appenders: Vec<_> = (0..8).map(appender).collect();
    let (line, lines) = mpsc::channel();
    for (at, appender) in appenders.iter_mut().enumerate() {
        let (line, output) = (line.clone(), BufReader::new(appender.stdout.take().unwrap()));
        std::thread::spawn(move || {
            output.lines().try_for_each(|said| line.send((at, said.unwrap())))
        });
    }
    let next = || lines.recv_timeout(PATIENCE).expect("each program begins, and ends");
    (0..8).for_each(|_| assert_eq!(next().1, "began"));
    expect_code(scratch.kithfs("lock").arg(scratch.point()), 0);
    daemon.ended();
    for _ in 0..8 {
        let (at, said) = next();
        let (synced, accepted) = said.split_once(' ').unwrap();
        let (synced, accepted): (usize, usize) =
            (synced.parse().unwrap(), accepted.parse().unwrap());
        let stored = expect_code(scratch.kithfs("cat").arg(scratch.vault()).arg(at.to_string()), 0);
        let stored = String::from_utf8(stored.stdout).unwrap();
        let in_order = stored.lines().enumerate().all(|(at, line)| line == format!("{at:015}"));
        let count = stored.lines().count();
        assert!(in_order && (synced..=accepted).contains(&count), "{at}: {said}, stored {count}");
    }
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

/// An ordinary user cannot end the connection by umount2(2). The kernel has a file for that if
/// `fusectl` is mounted; without it the daemon exits.
const AS_A_USER: &str = r#"
printf 'ann:x:4321:4321::%s/home:/bin/sh\n' "$PWD" | cat /etc/passwd - > passwd
mount --bind passwd /etc/passwd
mkdir home
mknod fuse c 10 229
chmod 666 fuse
mount --bind fuse /dev/fuse
chmod 755 .
chown -R ann: home vault mnt passphrase
as_ann() { setpriv --reuid 4321 --regid 4321 --clear-groups env HOME="$PWD/home" "$@"; }
umount /sys/fs/fuse/connections 2>/dev/null || true
for control in none fusectl; do
    [ "$control" = none ] || mount -t fusectl none /sys/fs/fuse/connections
    as_ann "$KITHFS" mount --passphrase-file "$PWD/passphrase" vault mnt
    pid=$(as_ann "$KITHFS" mounts --json | sed -n 's/.*"pid": \([0-9]*\),/\1/p')
    as_ann bash -c '
        exec 3> mnt/'$control'
        echo written >&3
        "$KITHFS" lock mnt
        echo late >&3 || echo refused
    ' 2>/dev/null
    [ ! -e "/proc/$pid" ] || grep -q '^State:.Z' "/proc/$pid/status"
    as_ann "$KITHFS" cat --passphrase-file "$PWD/passphrase" vault "$control"
done
"#;

#[test]
fn an_ordinary_user_locks_with_and_without_fusectl() {
    let _alone = turn::alone();
    if !can_mount() {
        return;
    }
    if !rustix::process::geteuid().is_root() || !Path::new("/usr/bin/setpriv").exists() {
        return println!("skipped: needs root and setpriv");
    }
    let scratch = Scratch::new(&[]);
    let mut script = Command::new("unshare");
    script.args(["--mount", "--propagation", "slave", "bash", "-euc", AS_A_USER]);
    script.current_dir(scratch.path()).env("KITHFS", KITHFS).env_remove("XDG_RUNTIME_DIR");
    let said = expect_code(&mut script, 0);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(said, "refused\nwritten\n".repeat(2));
}

/// One vault is inside the mount of another one. Both were locked at the same time, and the inner
/// one could no longer write its last changes.
///
/// The commands act on all vaults of a user. So this runs in a user namespace, whose user does not
/// own the other mounts of this machine.
const ALL: &str = r#"
export XDG_RUNTIME_DIR=$PWD/run XDG_CONFIG_HOME=$PWD/config KITHFS_PASSPHRASE_FILE=$PWD/passphrase
mkdir run inner
kithfs() { "$KITHFS" "$@"; }
kithfs vaults add outer vault mnt
for end in 'lock' 'close --all'; do
    kithfs open outer
    if [ ! -e mnt/nested ]; then kithfs init --kdf-memory 32 --kdf-passes 1 mnt/nested > /dev/null; fi
    kithfs mount mnt/nested inner
    kithfs mounts | wc -l
    echo "$end" > inner/note
    kithfs $end
    kithfs mounts | wc -l
    kithfs open outer
    kithfs cat mnt/nested note
    kithfs mount mnt/nested inner
    echo again > inner/note
    kithfs lock outer
    kithfs mounts | wc -l
    kithfs open outer
    kithfs cat mnt/nested note
    kithfs close outer
done
"#;

#[test]
fn all_vaults_are_locked_or_closed_at_once() {
    let _alone = turn::alone();
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mut script = Command::new("unshare");
    script.args(["--user", "--map-root-user", "--mount", "--propagation", "slave"]);
    script.args(["bash", "-euc", ALL]);
    script.current_dir(scratch.path()).env("KITHFS", KITHFS);
    script.env("XDG_STATE_HOME", scratch.path().join("state"));
    let said = expect_code(&mut script, 0);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(said, "2\n0\nlock\n0\nagain\n2\n0\nclose --all\n0\nagain\n");
}

/// Searches the memory of a daemon for the keys of its vault, which the second reader derives.
struct Search {
    process: Child,
    found: Lines<BufReader<std::process::ChildStdout>>,
}

impl Search {
    /// Asserts that the names key is found while the vault is open; `None` if no search is possible
    /// here.
    fn of(daemon: &Daemon, scratch: &Scratch) -> Option<Search> {
        let has_reader = || {
            let mut python = Command::new("/usr/bin/python3");
            python.args(["-c", "import argon2, cryptography"]).stderr(Stdio::null());
            python.status().is_ok_and(|status| status.success())
        };
        if !rustix::process::geteuid().is_root() || !has_reader() {
            println!("skipped: needs root, and python3-argon2 and python3-cryptography");
            return None;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/keys_in_memory.py");
        let mut search = Command::new("/usr/bin/python3");
        search.arg(script).arg(daemon.child.id().to_string());
        search.arg(scratch.vault()).arg(scratch.passphrase()).stdout(Stdio::piped());
        let mut process = search.spawn().unwrap();
        let mut found = BufReader::new(process.stdout.take().unwrap()).lines();
        let open = found.next().expect("the process is watched").unwrap();
        assert!(open.contains("expand names (") && !open.contains("passphrase"), "{open}");
        Some(Search { process, found })
    }

    /// Asserts that the process ends without any key in its memory.
    fn finds_nothing_at_the_end(mut self) {
        let locked = self.found.next().expect("the process was watched until its end").unwrap();
        assert!(self.process.wait().unwrap().success());
        assert!(locked.ends_with(" bytes: nothing"), "{locked}");
    }
}

/// Keys that were moved, and round keys that a cipher had no registers for, stayed on the stacks of
/// the threads that had used them: after a lock whole keys of files and of the journal were there,
/// until the machine used the memory again.
///
/// On a busy machine, 1 run of 12 found a round key of the journal later: the thread that carried out
/// the lock wiped its stack after the mount was gone, and the process did not wait for that.
///
/// Later, round keys that the stack still held were in the padding of a value of 2.5 KB, the state of
/// the vault, which was moved to the heap. Whether a key was there depended on where the compiler put
/// things: one more variant of an error brought it up. Freed blocks are overwritten since then.
#[test]
fn no_key_is_left_in_memory_after_a_lock() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mut daemon = mount(&scratch, &[]);
    let point = scratch.point();
    fs::create_dir(point.join("folder")).unwrap();
    for at in 0..8 {
        fs::write(point.join(format!("folder/{at}")), vec![at; 40_000]).unwrap();
    }
    // The threads that serve the mount use keys, and so does the one that commits.
    std::thread::scope(|scope| {
        for at in 0..8 {
            let file = point.join(format!("folder/{at}"));
            scope.spawn(move || {
                let mut open = fs::OpenOptions::new().write(true).open(&file).unwrap();
                for _ in 0..20 {
                    open.write_all(&[9; 5000]).unwrap();
                    open.sync_all().unwrap();
                    fs::read(&file).unwrap();
                }
            });
        }
    });
    let Some(search) = Search::of(&daemon, &scratch) else { return };
    expect_code(scratch.kithfs("lock").arg(&point), 0);
    search.finds_nothing_at_the_end();
    daemon.ended();
}

/// A daemon that was making a share when the vault was locked kept the keys until its process
/// ended, and the command did not tell how to continue.
#[test]
fn a_lock_cancels_the_making_of_a_share_and_wipes_the_keys() {
    const FILES: usize = 3000;
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mut daemon = mount(&scratch, &[]);
    let (point, folder) = (scratch.point(), scratch.point().join("folder"));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("first"), "first").unwrap();
    let search = Search::of(&daemon, &scratch);
    (0..FILES).for_each(|at| fs::write(folder.join(at.to_string()), at.to_string()).unwrap());
    let mut create = scratch.kithfs("share");
    create.arg("create").arg(&folder).stderr(Stdio::piped()).stdout(Stdio::null());
    let create = create.spawn().unwrap();
    let is_begun = || {
        let mut stored = fs::read_dir(scratch.vault()).unwrap().flatten();
        stored.any(|entry| entry.file_name().as_encoded_bytes().starts_with(b"+moving-"))
    };
    wait_until("the share is being made", is_begun);
    expect_code(scratch.kithfs("lock").arg(&point), 0);
    let log = daemon.ended();
    let cancelled = create.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&cancelled.stderr).into_owned();
    assert!(said.contains("run the same command again, which continues"), "{said}\n{log:#?}");
    assert_eq!(cancelled.status.code(), Some(1), "{said}");
    assert!(log.iter().any(|line| line.contains("its keys are wiped")), "{log:#?}");
    if let Some(search) = search {
        search.finds_nothing_at_the_end();
    }
    // Nothing is lost, and the same command without a mount makes the share.
    let count = |folder: &str| {
        let listed = expect_code(scratch.kithfs("ls").arg(scratch.vault()).arg(folder), 0);
        String::from_utf8(listed.stdout).unwrap().lines().count()
    };
    assert_eq!(count("folder"), FILES + 1);
    let check = expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 20);
    let check = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.contains("creating it again continues"), "{check}");
    expect_code(scratch.kithfs("share").arg("create").arg(scratch.vault().join("folder")), 0);
    assert_eq!(count("folder"), FILES + 1);
    expect_code(scratch.kithfs("fsck").arg(scratch.vault()), 0);
}

/// The test plays the service manager: it receives the notifications of the service on a socket.
#[test]
fn a_service_notifies_and_ends_when_it_is_stopped() {
    use std::os::unix::net::UnixDatagram;
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let socket = scratch.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let told = || {
        let mut buffer = [0; 1024];
        let len = manager.recv(&mut buffer).expect("a notification");
        String::from_utf8_lossy(&buffer[..len]).into_owned()
    };
    let config = scratch.path().join("config");
    let open = |sub: &str| {
        let mut command = scratch.kithfs(sub);
        command.env("XDG_CONFIG_HOME", &config);
        command
    };
    let (vault, point) = (scratch.vault(), scratch.point());
    expect_code(open("vaults").args(["add", "photos"]).arg(&vault).arg(&point), 0);
    for is_busy in [false, true] {
        let mut command = open("open");
        command.args(["--foreground", "photos"]).env("NOTIFY_SOCKET", &socket);
        command.env_remove("SYSTEMD_EXEC_PID");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        assert_eq!(told().trim(), "READY=1");
        assert!(is_mounted(&point));
        fs::write(point.join("note"), "dear Ann").unwrap();
        let writer = is_busy.then(|| Writer::start(&point));
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert_eq!(told().trim(), "STOPPING=1");
        assert!(child.wait().unwrap().success(), "the stop ends it, busy or not");
        assert!(!is_mounted(&point));
        if let Some(mut writer) = writer {
            assert_eq!(writer.write("late"), "refused");
            writer.end();
        }
        let note = expect_code(scratch.kithfs("cat").arg(&vault).arg("note"), 0);
        assert_eq!(note.stdout, b"dear Ann");
    }
    let file = expect_code(scratch.kithfs("cat").arg(&vault).arg("file"), 0);
    assert_eq!(file.stdout, b"written\n");
}

/// A stopped daemon cannot lock its vault. The command names the daemon and says how to end it.
#[test]
fn a_daemon_that_does_not_answer_is_named() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let daemon = mount(&scratch, &[]);
    let stopped = Stopped::stop(Pid::from_raw(daemon.pid() as i32).unwrap());
    let said = expect_code(scratch.kithfs("lock").arg(scratch.point()), 1);
    let told = String::from_utf8_lossy(&said.stderr);
    assert!(told.contains("does not answer"), "{told}");
    assert!(told.contains(&format!("hint: {} is still open", scratch.point().display())), "{told}");
    assert!(told.contains(&format!("kill -9 {}", daemon.pid())), "{told}");
    drop(stopped);
}
