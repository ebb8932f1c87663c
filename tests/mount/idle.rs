//! `mount --idle`: a vault that is no longer used is closed, and one that is used stays open.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::mounted::{Scratch, can_mount, expect_code, is_mounted};

/// Starts a mount in the foreground, which ends after two minutes if nothing else ends it; returns
/// its log.
fn mount(scratch: &Scratch, idle: &[&str]) -> (Child, Lines<BufReader<ChildStderr>>) {
    let kithfs = scratch.kithfs("mount");
    let mut command = Command::new("timeout");
    command.arg("120").arg(kithfs.get_program()).args(kithfs.get_args()).args([
        "--foreground",
        "--log-level",
        "debug",
    ]);
    command.envs(kithfs.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = command
        .args(idle)
        .arg(scratch.vault())
        .arg(scratch.point())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
    wait_for(&mut log, "serving the vault");
    (child, log)
}

/// Waits for a line of the log. On a busy machine the daemon once ended before the thread that
/// unmounts an unused vault had logged that; now that line always comes.
fn wait_for(log: &mut Lines<BufReader<ChildStderr>>, what: &str) {
    let mut said = Vec::new();
    for line in log {
        said.push(line.unwrap());
        if said.last().is_some_and(|line| line.contains(what)) {
            return;
        }
    }
    panic!("the mount ended before it logged {what:?}; it logged: {said:#?}");
}

/// Opens the root of the mount; `None` if this took so long that it was unmounted again.
fn held(scratch: &Scratch) -> Option<File> {
    let root = File::open(scratch.point()).unwrap();
    let is_mounted = root.metadata().unwrap().dev() != fs::metadata(scratch.path()).unwrap().dev();
    is_mounted.then_some(root)
}

#[test]
fn a_mount_in_use_stays_and_is_unmounted_once_nobody_uses_it() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    for idle in [["--idle", "1s"], ["-o", "idle=1"]] {
        let (mut child, mut log, root) = loop {
            let (mut child, log) = mount(&scratch, &idle);
            match held(&scratch) {
                Some(root) => break (child, log, root),
                None => assert!(child.wait().unwrap().success()),
            }
        };
        wait_for(&mut log, "not used, but busy");
        assert!(is_mounted(&scratch.point()));
        File::create(scratch.point().join("file")).unwrap().write_all(idle[1].as_bytes()).unwrap();
        drop(root);
        wait_for(&mut log, "nobody has used it for 1s: unmounted");
        assert!(log.all(|line| line.is_ok()));
        assert!(child.wait().unwrap().success() && !is_mounted(&scratch.point()));
        let cat = expect_code(scratch.kithfs("cat").arg(scratch.vault()).arg("file"), 0);
        assert_eq!(cat.stdout, idle[1].as_bytes());
    }
}

/// Returns the daemon's control socket; `None` if the daemon has ended.
fn socket(scratch: &Scratch) -> Option<PathBuf> {
    let mounts = expect_code(scratch.kithfs("mounts").arg("--json"), 0);
    let mounts: serde_json::Value = serde_json::from_slice(&mounts.stdout).unwrap();
    let ours = mounts
        .as_array()
        .unwrap()
        .iter()
        .find(|mount| mount["mountpoint"].as_str() == scratch.point().to_str())?;
    let name = format!("{}-", ours["pid"]);
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(|dir| Path::new(&dir).join("kithfs"));
    let mut left: Vec<PathBuf> = [PathBuf::from("/run/kithfs"), scratch.path().join("state")]
        .into_iter()
        .chain(runtime)
        .collect();
    while let Some(path) = left.pop() {
        let Ok(kind) = fs::symlink_metadata(&path).map(|metadata| metadata.file_type()) else {
            continue;
        };
        if kind.is_socket() && path.file_name().unwrap().to_str().unwrap().starts_with(&name) {
            return Some(path);
        }
        if kind.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    None
}

#[test]
fn a_command_that_asks_the_daemon_keeps_the_mount() {
    // That a command asks the daemon is not visible from outside. The daemon waits ten seconds for
    // a client that connects and sends nothing, and runs as long as it waits.
    const WAITS: Duration = Duration::from_secs(9);
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new(&[]);
    // If the machine stalls before the command arrives, the unmount is correct.
    let waited = (0..3).any(|_| {
        let (mut child, mut log) = mount(&scratch, &["--idle", "3s"]);
        let begun = Instant::now();
        let asked = socket(&scratch).and_then(|path| UnixStream::connect(path).ok());
        let waited = asked.is_some_and(|mut asked| {
            let _ = asked.read(&mut [0]);
            begun.elapsed() >= WAITS
        });
        wait_for(&mut log, "nobody has used it for 3s: unmounted");
        assert!(log.all(|line| line.is_ok()));
        assert!(child.wait().unwrap().success() && !is_mounted(&scratch.point()));
        waited
    });
    assert!(waited, "the vault was unmounted while a command was asking");
}

#[test]
fn an_idle_time_that_is_not_valid_is_refused() {
    let scratch = Scratch::new(&[]);
    for (args, says) in [(["--idle", "soon"], "soon"), (["-o", "idle=10ms"], "less than a second")]
    {
        let refused = expect_code(
            scratch.kithfs("mount").args(args).arg(scratch.vault()).arg(scratch.point()),
            2,
        );
        assert!(String::from_utf8_lossy(&refused.stderr).contains(says), "{refused:?}");
    }
    assert!(!is_mounted(Path::new(&scratch.point())));
}
