//! Has the kernel write back the small writes that it has cached.
//!
//! With the writeback cache, written data stays in the kernel until there is much of it, the program
//! syncs it, or half a minute has passed (`vm.dirty_expire_centisecs`). The data is lost if the
//! daemon dies; without the writeback cache it would be in the store's own cache by then. So the
//! daemon calls `syncfs` on the mount every few seconds, as long as a file is open for writing.
//!
//! Rules that hold here
//! * Nothing is requested if no program can have written: an unused mount is left alone.
//! * The call should not make an unmount fail as busy. Root uses a detached copy of the mount,
//!   which does not count. An ordinary user has no such copy. So the call is made while no program
//!   writes, when it takes milliseconds, or after ten seconds.
//! * `syncfs` waits for answers of the daemon and cannot be interrupted, so it runs in a helper
//!   process. A thread of a killed daemon would keep its descriptors open, and the memory of its
//!   rings mapped. The kernel would wait for answers for ever, and so would every program in the
//!   mount, unless [`abort`](super::abort) ends it.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{OpenTreeFlags, open_tree};

use super::helper;
use super::mounted::Mounted;
use super::mounts::{ASKER, DeviceId};
use crate::vault::Vault;

/// When `syncfs` is called.
struct Pace {
    /// Interval at which the thread checks whether a call is due.
    tick: Duration,
    /// How long the kernel may keep cached writes.
    kept: Duration,
    /// The same while programs write all the time.
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

/// The thread that calls `syncfs`; it stops on drop.
pub struct HandOver {
    _end: mpsc::Sender<()>,
    vault: Arc<Mutex<Option<Vault>>>,
}

impl Drop for HandOver {
    fn drop(&mut self) {
        // The thread may wait for the kernel; it must not keep the keys.
        self.vault.lock().take();
    }
}

/// Starts a thread that has the kernel write back what it has cached of `mounted`, which shows
/// `vault`.
///
/// # Errors
/// The thread cannot be started. The mount works without it.
pub fn start(mounted: Arc<Mounted>, vault: Vault) -> io::Result<HandOver> {
    let (end, ended) = mpsc::channel();
    let pace = if vault.is_synced() { SYNCED } else { USUAL };
    let vault = Arc::new(Mutex::new(Some(vault)));
    let kept_vault = vault.clone();
    let run = move || {
        let (mut last, mut writes) = (Instant::now(), 0);
        while ended.recv_timeout(pace.tick) == Err(mpsc::RecvTimeoutError::Timeout) {
            let Some(activity) = kept_vault.lock().as_ref().map(Vault::activity) else { return };
            let is_quiet = std::mem::replace(&mut writes, activity.writes) == activity.writes;
            let kept = if is_quiet { pace.kept } else { pace.kept_while_busy };
            if activity.writers == 0 || last.elapsed() < kept {
                continue;
            }
            if let Err(error) = collect(&mounted) {
                tracing::debug!("the kernel keeps what it has collected: {error}");
            }
            last = Instant::now();
        }
    };
    thread::Builder::new().name("kithfs-handover".into()).spawn(run)?;
    Ok(HandOver { _end: end, vault })
}

/// Has the kernel write back all cached writes, and waits for the end. A helper process does this
/// (this program, run as [`ASKER`]), so that a killed daemon does not wait.
///
/// # Errors
/// The helper cannot be started, or has failed.
pub fn collect(mounted: &Mounted) -> io::Result<()> {
    collect_while(mounted, || true)
}

/// Does [`collect`] as long as `goes_on` returns true, which is called every half second.
///
/// # Errors
/// As [`collect`]; `TimedOut` if `goes_on` has returned false. The helper may then never end.
pub fn collect_while(mounted: &Mounted, mut goes_on: impl FnMut() -> bool) -> io::Result<()> {
    const TICK: Duration = Duration::from_millis(500);
    let DeviceId { major, minor } = mounted.device;
    let mut command = helper::command(ASKER);
    command.arg(&mounted.mountpoint).arg(major.to_string()).arg(minor.to_string());
    // A thread waits for the helper, however long that takes: it leaves no zombie.
    let (end, ended) = mpsc::channel();
    let run = move || drop(end.send(command.status()));
    thread::Builder::new().name("kithfs-syncfs".into()).spawn(run)?;
    let status = loop {
        match ended.recv_timeout(TICK) {
            Ok(status) => break status?,
            Err(mpsc::RecvTimeoutError::Timeout) if goes_on() => {}
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
    };
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("the helper process failed: {status}")))
    }
}

/// Calls `syncfs` and returns the exit code if this process was started as [`ASKER`]; otherwise
/// returns `None`.
pub fn run_as_asker() -> Option<ExitCode> {
    // The process has its name before it uses the mount: `mounts::holders` leaves processes of this
    // name out.
    let arguments = helper::started_as(ASKER)?;
    let asked = mounted_of(arguments).map(|mounted| ask(&mounted));
    Some(if matches!(asked, Some(Ok(()))) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn mounted_of(mut arguments: impl Iterator<Item = OsString>) -> Option<Mounted> {
    let mountpoint = arguments.next()?.into();
    let mut number = || arguments.next()?.to_str()?.parse().ok();
    Some(Mounted::new(mountpoint, DeviceId { major: number()?, minor: number()? }))
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
        // No privilege, no such system call, or a mount that cannot be copied.
        Err(_) => Ok(rustix::fs::open(&mounted.mountpoint, flags, Mode::empty())?),
    }
}
