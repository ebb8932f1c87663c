//! Has the kernel hand over what it has collected of small writes.
//!
//! With the writeback cache what a program writes stays in the kernel until there is much of it,
//! the program asks, or half a minute has passed (`vm.dirty_expire_centisecs`). A daemon that dies
//! takes that with it, where without it the store's own cache would have it. So it is asked for
//! every few seconds, by `syncfs` on the mount, as long as a file is open for writing.
//!
//! Rules that hold here
//! * Nothing is requested if no program can have written: an unused mount is left alone.
//! * Nobody finds the mount busy because of this. As root it is reached by a detached copy, which
//!   keeps no unmount from succeeding; an ordinary user has no such thing, so there it is done
//!   while nothing else is written, and so takes milliseconds.
//! * `syncfs` waits for answers of the daemon and cannot be interrupted, so it runs in a helper
//!   process: a thread of the daemon would keep its descriptors open, and its memory
//!   with the rings, when the daemon is killed. The kernel would wait for answers for ever, and so
//!   would every program in the mount.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{OpenTreeFlags, open_tree};

use super::mounted::Mounted;
use super::mounts::{ASKER, DeviceId};
use crate::vault::Vault;

/// How long the kernel may keep what it has.
struct Pace {
    /// How often it is looked whether there is a reason.
    tick: Duration,
    /// How long the kernel may keep it.
    kept: Duration,
    /// The same while something is being written all the time.
    kept_while_busy: Duration,
}

const USUAL: Pace = Pace {
    tick: Duration::from_secs(1),
    kept: Duration::from_secs(4),
    kept_while_busy: Duration::from_secs(10),
};

/// For a synced vault, whose files other machines are to see within a second.
const SYNCED: Pace = Pace {
    tick: Duration::from_millis(200),
    kept: Duration::from_millis(300),
    kept_while_busy: Duration::from_millis(300),
};

/// Asks until it is dropped.
#[derive(Debug)]
pub struct HandOver {
    _end: mpsc::Sender<()>,
}

/// Begins to ask the kernel for what it holds of `mounted`, which shows `vault`.
///
/// # Errors
/// There can be no thread for it. The mount works without.
pub fn start(mounted: Arc<Mounted>, vault: Vault) -> io::Result<HandOver> {
    let (end, ended) = mpsc::channel();
    let pace = if vault.is_synced() { SYNCED } else { USUAL };
    let run = move || {
        let (mut last, mut writes) = (Instant::now(), 0);
        while ended.recv_timeout(pace.tick) == Err(mpsc::RecvTimeoutError::Timeout) {
            let activity = vault.activity();
            let is_quiet = std::mem::replace(&mut writes, activity.writes) == activity.writes;
            let kept = if is_quiet { pace.kept } else { pace.kept_while_busy };
            if activity.writers == 0 || last.elapsed() < kept {
                continue;
            }
            if let Err(error) = have_asked(&mounted) {
                tracing::debug!("the kernel keeps what it has collected: {error}");
            }
            last = Instant::now();
        }
    };
    thread::Builder::new().name("kithfs-handover".into()).spawn(run)?;
    Ok(HandOver { _end: end })
}

/// Runs this program as [`ASKER`], and waits for it: in a way that ends with this process.
fn have_asked(mounted: &Mounted) -> io::Result<()> {
    let DeviceId { major, minor } = mounted.device;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(ASKER).arg(&mounted.mountpoint).arg(major.to_string()).arg(minor.to_string());
    let status =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("the helper process failed: {status}")))
    }
}

/// Does what this process is run for, where that is to ask; `None` where it is a command of the
/// user's.
pub fn run_as_asker() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    if arguments.next()? != OsStr::new(ASKER) {
        return None;
    }
    let asked = mounted_of(arguments).map(|mounted| ask(&mounted));
    Some(if matches!(asked, Some(Ok(()))) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn mounted_of(mut arguments: impl Iterator<Item = OsString>) -> Option<Mounted> {
    let mountpoint = arguments.next()?.into();
    let mut number = || arguments.next()?.to_str()?.parse().ok();
    Some(Mounted { mountpoint, device: DeviceId { major: number()?, minor: number()? } })
}

fn ask(mounted: &Mounted) -> io::Result<()> {
    let root = open_root(mounted)?;
    if mounted.is(&root)? {
        rustix::fs::syncfs(&root)?;
    }
    Ok(())
}

fn open_root(mounted: &Mounted) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let copy = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    match open_tree(CWD, &mounted.mountpoint, copy) {
        Ok(copy) => Ok(rustix::fs::openat(copy, ".", flags, Mode::empty())?),
        // For want of a privilege, of the call, or because the mount is one that is not copied.
        Err(_) => Ok(rustix::fs::open(&mounted.mountpoint, flags, Mode::empty())?),
    }
}
