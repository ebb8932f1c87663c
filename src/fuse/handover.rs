//! Has the kernel hand over what it has collected of small writes.
//!
//! With the writeback cache what a program writes stays in the kernel until there is much of it, the program asks, or half a minute has
//! passed (`vm.dirty_expire_centisecs`). A daemon that dies takes that with it, where without it the store's own cache would have it. So it
//! is asked for every few seconds, by `syncfs` on the mount, as long as somebody has a file open for writing.
//!
//! Rules that hold here
//! * Nothing is asked for where nobody can have written: a mount that nobody uses is left alone.
//! * Nobody finds the mount busy because of this. As root it is reached by a detached copy, which keeps no unmount from succeeding; an
//!   ordinary user has no such thing, so there it is done while nothing else is written, and so takes milliseconds.
//! * Who asks waits for answers of this very process, and no signal ends that. So the thread that asks shares no descriptors with the
//!   others: with them it would keep the FUSE device open when the process is killed, and then nobody is ever told that nobody answers.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{OpenTreeFlags, open_tree};

use super::mount::Mounted;
use crate::vault::Vault;

/// How often it is looked whether there is a reason.
const TICK: Duration = Duration::from_secs(1);
/// How long the kernel may keep what it has.
const KEPT: Duration = Duration::from_secs(4);
/// The same while something is being written all the time.
const KEPT_WHILE_BUSY: Duration = Duration::from_secs(10);

/// Asks until it is dropped.
#[derive(Debug)]
pub struct HandOver {
    _end: mpsc::Sender<()>,
}

/// Begins to ask the kernel for what it holds of `mounted`, which shows `vault`.
///
/// # Errors
/// There can be no thread for it, or none with descriptors of its own (before Linux 5.9). The mount works without.
pub fn start(mounted: Arc<Mounted>, vault: Vault) -> io::Result<HandOver> {
    let asker = Asker::start(mounted)?;
    let (end, ended) = mpsc::channel();
    let run = move || {
        let (mut last, mut writes) = (Instant::now(), 0);
        while ended.recv_timeout(TICK) == Err(mpsc::RecvTimeoutError::Timeout) {
            let activity = vault.activity();
            let is_quiet = std::mem::replace(&mut writes, activity.writes) == activity.writes;
            let kept = if is_quiet { KEPT } else { KEPT_WHILE_BUSY };
            if activity.writers == 0 || last.elapsed() < kept {
                continue;
            }
            if let Err(error) = asker.ask() {
                tracing::debug!("the kernel keeps what it has collected: {error}");
            }
            last = Instant::now();
        }
    };
    thread::Builder::new().name("kithfs-handover".into()).spawn(run)?;
    Ok(HandOver { _end: end })
}

/// The thread that asks. It has no descriptors, not even the standard streams, whose end somebody waits for who has mounted in the
/// background; and it must be given nothing that has one: no vault, and no log.
struct Asker {
    questions: mpsc::Sender<()>,
    answers: mpsc::Receiver<io::Result<()>>,
}

impl Asker {
    fn start(mounted: Arc<Mounted>) -> io::Result<Asker> {
        let (questions, asked) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let run = move || {
            let parted = part_with_descriptors();
            let may_ask = parted.is_ok();
            if answer.send(parted).is_ok() && may_ask {
                while asked.recv().is_ok() && answer.send(ask(&mounted)).is_ok() {}
            }
        };
        thread::Builder::new().name("kithfs-syncfs".into()).spawn(run)?;
        let asker = Asker { questions, answers };
        asker.answer()?;
        Ok(asker)
    }

    fn ask(&self) -> io::Result<()> {
        self.questions.send(()).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.answer()
    }

    fn answer(&self) -> io::Result<()> {
        self.answers.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
    }
}

/// Gives the calling thread a table of descriptors of its own, which is empty.
fn part_with_descriptors() -> io::Result<()> {
    // SAFETY: what other threads have open stays open to them, since the table is copied first. This one was given nothing that has a
    // descriptor, so nothing here uses, or closes, one of a number that means something else now.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
    let copy = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    match open_tree(CWD, &mounted.mountpoint, copy) {
        Ok(copy) => Ok(rustix::fs::openat(copy, ".", flags, Mode::empty())?),
        // For want of a privilege, of the call, or because the mount is one that is not copied.
        Err(_) => Ok(rustix::fs::open(&mounted.mountpoint, flags, Mode::empty())?),
    }
}
