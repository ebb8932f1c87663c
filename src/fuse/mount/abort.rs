//! Ends a mount whose daemon was killed, whatever keeps the daemon's threads.
//!
//! The kernel ends the connection of a mount when the last descriptor of its device is closed. A
//! killed process closes its descriptors when its last thread has ended, and a thread that waits in
//! the kernel may not end: it waits for the kernel to write pages of this very mount back, which only
//! the daemon could receive (FUSE_NOTIFY_INVAL_INODE, `fuse_launder_folio`), or for a store that does
//! not answer. Then every program in the mount would wait, too.
//!
//! So a helper process (this program, under another name) waits for the end of the daemon, and writes
//! to the kernel's file that aborts the connection. All calls of programs then fail with `ENOTCONN`.
//!
//! Rules that hold here
//! * The helper has nothing of the mount or the vault: no descriptor but the kernel's file, no key, no
//!   environment. It is not in the way of an unmount, and needs no memory worth mentioning.
//! * The kernel tells it of the end of the *thread* that started it (`PR_SET_PDEATHSIG`). That thread
//!   does nothing else, and has no descriptors: the last thread of a process to end closes those that
//!   the threads share, and may wait for that.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{
    Pid, PidfdFlags, getppid, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};

use super::helper;
use super::mounts::DeviceId;

/// The name under which the program is run as the helper, and the name of its process.
const ABORTER: &str = "kithfs-abort";

/// Opens the kernel's file that aborts the connection of a mount when it is written to. It belongs to
/// the mounting user.
///
/// # Errors
/// The filesystem `fusectl` is not mounted, and this process may not mount it.
pub fn open(device: DeviceId) -> io::Result<File> {
    let name = format!("{}/abort", device.minor);
    match OpenOptions::new().write(true).open(format!("/sys/fs/fuse/connections/{name}")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    // This mount has no mount point, and ends when the file is closed.
    let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&control)?;
    let root = fsmount(&control, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(rustix::fs::openat(root, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// The helper of a mount. It is ended on drop, and otherwise aborts the connection when this process
/// ends.
pub struct Aborter {
    helper: OwnedFd,
    waiter: Option<JoinHandle<()>>,
}

impl Drop for Aborter {
    fn drop(&mut self) {
        // The helper may have been killed already.
        let _ = pidfd_send_signal(&self.helper, rustix::process::Signal::KILL);
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.join();
        }
    }
}

/// Starts the helper for a mount of this process.
///
/// # Errors
/// Those of [`open()`]; the helper or its thread cannot be started.
pub fn start(device: DeviceId) -> io::Result<Aborter> {
    let file = open(device)?;
    let (tell, told) = mpsc::channel();
    let run = move || {
        let mut helper = match spawn(file) {
            Ok(helper) => helper,
            Err(error) => return drop(tell.send(Err(error))),
        };
        let opened = pidfd_open(Pid::from_child(&helper), PidfdFlags::empty());
        let _ = tell.send(opened.map_err(io::Error::from));
        if let Err(error) = leave_descriptors() {
            tracing::debug!("programs may wait if this process is killed: {error}");
        }
        let _ = helper.wait();
    };
    let waiter = std::thread::Builder::new().name(ABORTER.into()).spawn(run)?;
    let helper = told.recv().map_err(io::Error::other)??;
    Ok(Aborter { helper, waiter: Some(waiter) })
}

/// Starts the helper, and waits until the kernel is to report the end of this thread to it.
fn spawn(abort: File) -> io::Result<Child> {
    let mut command = helper::command(ABORTER);
    command.arg(std::process::id().to_string()).stdout(abort).stderr(Stdio::piped());
    let mut helper = command.spawn()?;
    if let Some(mut messages) = helper.stderr.take()
        && let Err(error) = messages.read_exact(&mut [0])
    {
        let _ = helper.wait();
        return Err(error);
    }
    Ok(helper)
}

/// Gives this thread a table of descriptors of its own, with nothing in it.
fn leave_descriptors() -> io::Result<()> {
    const FROM: libc::c_uint = 0;
    // SAFETY: nothing that this thread still does uses a descriptor, and the descriptors of other
    // threads stay open. The numbers are of the types that close_range(2) takes.
    let result = unsafe {
        libc::syscall(libc::SYS_close_range, FROM, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits for the end of the daemon and returns the exit code if this process was started as the helper;
/// otherwise returns `None`.
pub fn run_as_aborter() -> Option<ExitCode> {
    let mut arguments = helper::started_as(ABORTER)?;
    let parent = arguments.next().and_then(|argument| argument.to_str()?.parse().ok());
    let aborted = parent.map(abort_after);
    Some(if matches!(aborted, Some(Ok(()))) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn abort_after(parent: i32) -> io::Result<()> {
    // The signals of a terminal or of a service manager are left to the daemon: it unmounts, and
    // needs this process until its end.
    SigSet::all().thread_block()?;
    set_parent_process_death_signal(Some(rustix::process::Signal::USR1))?;
    io::stderr().write_all(b"1")?;
    let is_alive = getppid().is_some_and(|now| now.as_raw_nonzero().get() == parent);
    if is_alive {
        let mut end = SigSet::empty();
        end.add(Signal::SIGUSR1);
        end.wait()?;
    }
    io::stdout().write_all(b"1")?;
    io::stdout().flush()
}
