//! A daemon that is killed while one of its threads waits in the kernel, for something that does not
//! come. The mount ends all the same, with an error for every program in it.
//!
//! The kernel lets only root read where a thread waits, and only root can always abort a connection.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::hanging::Nested;
use super::lock::Daemon;
use crate::support::holes;
use crate::support::mounted::{Scratch, Stopped, can_mount, ends_within, expect_code};
use crate::support::people::wait_until;
use crate::support::turn;

/// Writes pages in a sparse file and looks for a hole, again and again: each time the daemon makes the
/// kernel write the pages back.
const SEEKER: &str = "
import os
file = os.open('sparse', os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(file, 1 << 30)
while True:
    for place in range(5000):
        os.pwrite(file, b'y' * 4096, place << 16)
    os.lseek(file, 0, os.SEEK_HOLE)
";

fn start(program: &str, dir: &Path) -> Child {
    let mut command = Command::new("python3");
    command.args(["-c", program]).current_dir(dir).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn can_abort() -> bool {
    can_mount() && rustix::process::geteuid().is_root()
}

/// Returns whether a thread of the process is in this function of the kernel.
fn is_in(process: u32, function: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    threads.flatten().any(|thread| {
        fs::read_to_string(thread.path().join("stack")).is_ok_and(|stack| stack.contains(function))
    })
}

/// Returns the helper that ends the mount of this daemon if it is killed.
fn helper_of(daemon: &Daemon) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|pids| pids.split(' ').flat_map(str::parse).collect::<Vec<_>>())
        .collect();
    let is_helper = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "kithfs-abort\n")
    };
    children.into_iter().find(is_helper)
}

/// Kills the daemon, and asserts that a program gets an error and does not wait. Over io_uring the
/// kernel (6.18) does not end a request that it has assigned to a thread which waits for the store.
/// On a busy machine this hung once, so there the program is started after the connection was
/// aborted.
fn is_over_when_killed(daemon: &mut Daemon, point: &Path) {
    let switch = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let is_over_io_uring = switch.is_ok_and(|switch| switch.starts_with('Y'));
    wait_until("the helper has its name", || helper_of(daemon).is_some());
    let helper = helper_of(daemon).unwrap();
    daemon.kill();
    // The arguments of a process that has ended are empty.
    let arguments = || fs::read(format!("/proc/{helper}/cmdline")).unwrap_or_default();
    if is_over_io_uring {
        wait_until("the helper has aborted the connection", || arguments().is_empty());
    }
    let mut ls = Command::new("ls");
    ls.arg(point);
    let said = expect_code(&mut ends_within(60, &ls), 2);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    // The second one if the call had reached the daemon.
    let mut is_gone =
        vec!["Transport endpoint is not connected", "Software caused connection abort"];
    if is_over_io_uring {
        is_gone.push("Operation canceled"); // if the call was on its way to a queue of io_uring
    }
    assert!(is_gone.iter().any(|error| said.contains(error)), "{said}");
}

/// A killed daemon does not end while a thread of it makes the kernel write pages back, because the
/// kernel waits for the daemon to receive them. Every program in the mount waited with it, and an
/// unmount found the mount busy.
#[test]
fn a_daemon_killed_while_pages_are_written_back_ends_the_mount() {
    if !can_abort() || !holes::kernel_sends() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mut daemon = Daemon::start(scratch.kithfs("mount"), &scratch, &[]);
    let mut program = start(SEEKER, &scratch.point());
    wait_until("the kernel is told to write pages back", || {
        is_in(daemon.pid(), "fuse_reverse_inval_inode")
    });
    is_over_when_killed(&mut daemon, &scratch.point());
    program.wait().unwrap();
    expect_code(scratch.kithfs("umount").arg(scratch.point()), 0);
}

/// A killed daemon closes its files, and waits for a store that does not answer: programs in the mount
/// waited for the store, too.
#[test]
fn a_daemon_killed_while_its_store_is_silent_ends_the_mount() {
    let _alone = turn::alone();
    if !can_abort() {
        return;
    }
    let nested = Nested::new();
    let mut daemon = nested.mount();
    fs::write(nested.point.join("file"), b"written").unwrap();
    let stopped = Stopped::stop(nested.store());
    is_over_when_killed(&mut daemon, &nested.point);
    drop(stopped);
    expect_code(nested.kithfs("umount").arg(&nested.point), 0);
    let Nested { outer, .. } = nested;
    outer.unmount();
}

/// The helper process ends with an unmount, and signals that end the daemon do not end it: the
/// daemon needs it until its own end.
#[test]
fn the_helper_of_a_mount_ends_with_it() {
    if !can_abort() {
        return;
    }
    let scratch = Scratch::new(&[]);
    let mut daemon = Daemon::start(scratch.kithfs("mount"), &scratch, &[]);
    wait_until("the helper has its name", || helper_of(&daemon).is_some());
    let helper = helper_of(&daemon).unwrap();
    let pid = rustix::process::Pid::from_raw(helper as i32).unwrap();
    for signal in ["INT", "TERM", "HUP"] {
        expect_code(Command::new("kill").args([&format!("-{signal}"), &helper.to_string()]), 0);
    }
    // They stay pending in a process that lives on: hangup is 1, interrupt 2, termination 15.
    let status = format!("/proc/{helper}/status");
    let pending = || {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    };
    assert_eq!(pending(), Some(1 | 1 << 1 | 1 << 14));
    let is_there = || rustix::process::test_kill_process(pid).is_ok();
    assert!(is_there());
    expect_code(scratch.kithfs("umount").arg(scratch.point()), 0);
    daemon.ended();
    assert!(!is_there());
}
