//! Moving to the background, and hardening a process that holds secrets.
//!
//! Rules that hold here
//! * The fork precedes the first thread, as threads do not survive it. The secret is requested
//!   before the fork; key stretching and opening the vault come after it, as Argon2 and the ciphers
//!   start threads.
//! * The foreground command ends only when the child reports that the mount serves requests, or
//!   with the child's exit code.
//! * Until then the child stays in the terminal's foreground process group, so that Ctrl-C ends
//!   both.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, WaitOptions, WaitStatus};

use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::Failure;
use crate::cli::terminal::echo;

/// The two sides of the fork.
pub enum Side {
    /// The command in the foreground.
    Front(Front),
    /// The future background process.
    Background(Background),
}

/// The command in the foreground, which waits for the background process.
pub struct Front {
    pipe: File,
    child: Pid,
}

/// The process that moves to the background.
pub struct Background {
    pipe: File,
}

/// Forks. The process must have only one thread.
///
/// # Errors
/// Those of pipe(2) and fork(2).
pub fn fork() -> Result<Side, Error> {
    let failed = |source| Error::Os { op: "go to the background", source };
    let (reader, writer) = io::pipe().map_err(failed)?;
    // SAFETY: this process has one thread (see the rules above), so the child finds no lock held
    // and no structure half changed.
    match unsafe { libc::fork() } {
        -1 => Err(failed(io::Error::last_os_error())),
        0 => {
            drop(reader);
            close_inherited();
            echo::leave_report_to_parent();
            Ok(Side::Background(Background { pipe: OwnedFd::from(writer).into() }))
        }
        child => {
            let child = Pid::from_raw(child).expect("fork gives no 0 here");
            Ok(Side::Front(Front { pipe: OwnedFd::from(reader).into(), child }))
        }
    }
}

/// Handles Ctrl-C for the command that waits for its mount.
extern "C" fn end_interrupted(_signal: i32) {
    let text =
        b"\nkithfs: mount: interrupted; nothing is mounted\nhint: run the same command again\n";
    let _ = rustix::io::write(rustix::stdio::stderr(), text);
    end_now(Exit::Interrupted)
}

/// Runs a check that starts threads in a child process, which leaves this process with its one
/// thread. Returns the exit code if the check failed, after the child has printed the failure.
///
/// # Errors
/// Those of pipe(2) and fork(2), and a child that was killed.
pub fn try_in_child(check: impl FnOnce() -> Result<(), Error>) -> Result<Option<Exit>, Error> {
    match fork()? {
        Side::Front(front) => {
            let child = front.child;
            let exit = front.wait()?;
            let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
            Ok((exit != Exit::Ok).then_some(exit))
        }
        Side::Background(mut child) => {
            let exit = match check().map_err(Failure::from) {
                Ok(()) => Exit::Ok,
                Err(failure) => {
                    failure.print();
                    failure.exit
                }
            };
            // If the command was killed, there is no receiver.
            let _ = child.pipe.write_all(&[exit.code()]);
            std::process::exit(exit.code().into());
        }
    }
}

/// Closes descriptors that were inherited from the caller. In the background they would stay open
/// as long as the mount: a lock stays held, a pipe's reader waits for its end, another mount stays
/// busy. All descriptors of this process itself are close-on-exec.
fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let descriptors: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in descriptors.into_iter().filter(|&descriptor| descriptor > libc::STDERR_FILENO)
    {
        // SAFETY: only reads the flags of the descriptor.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            // SAFETY: nothing in this process has opened it, so nothing here uses it, now or under
            // a reused number.
            unsafe { libc::close(descriptor) };
        }
    }
}

impl Front {
    /// Reports from now on that Ctrl-C has ended `mount`. The terminal sends the signal to the
    /// child too, which ends by it, or because nobody expects its mount any more (see
    /// [`Background::serving`]).
    pub fn reporting_interrupts(self) -> Front {
        let action =
            SigAction::new(SigHandler::Handler(end_interrupted), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler makes system calls only, which may be interrupted anywhere.
        if let Ok(old) = unsafe { sigaction(Signal::SIGINT, &action) }
            && matches!(old.handler(), SigHandler::SigIgn)
        {
            // SAFETY: this action was there before; a signal that was ignored, as by nohup, stays
            // so.
            let _ = unsafe { sigaction(Signal::SIGINT, &old) };
        }
        self
    }

    /// Waits until the mount serves requests or has failed. The child has then reported the failure
    /// itself.
    ///
    /// # Errors
    /// The child ended without a report.
    pub fn wait(mut self) -> Result<Exit, Error> {
        let mut word = [0];
        match self.pipe.read_exact(&mut word) {
            Ok(()) => Ok(Exit::from_code(word[0]).unwrap_or(Exit::Failure)),
            Err(_) => Err(self.how_it_ended()),
        }
    }

    fn how_it_ended(&self) -> Error {
        let status = loop {
            match rustix::process::waitpid(Some(self.child), WaitOptions::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(Some((_, status))) => break status,
                _ => return Error::DaemonEnded("cause unknown".to_owned()),
            }
        };
        match status.terminating_signal() {
            // The child blocks these signals before there is anything to undo.
            Some(libc::SIGINT | libc::SIGTERM) => Error::MountInterrupted,
            _ => Error::DaemonEnded(describe(status)),
        }
    }
}

fn describe(status: WaitStatus) -> String {
    match (status.terminating_signal(), status.exit_status()) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (_, Some(code)) => format!("with exit code {code}"),
        _ => "cause unknown".to_owned(),
    }
}

impl Background {
    /// Reports that the mount serves requests: detaches from the terminal and lets the foreground
    /// command end.
    ///
    /// # Errors
    /// Those of the calls; EPIPE if the foreground command was killed, in which case nobody expects
    /// this mount.
    pub fn serving(mut self) -> Result<(), Error> {
        leave_terminal()
            .and_then(|()| self.pipe.write_all(&[Exit::Ok.code()]))
            .map_err(|source| Error::Os { op: "go to the background", source })
    }

    /// Reports that the mount failed, after the failure was printed.
    pub fn failed(mut self, exit: Exit) {
        // If the foreground command has ended, there is no receiver.
        let _ = self.pipe.write_all(&[exit.code()]);
    }
}

fn leave_terminal() -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::chdir("/")?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Ends this process without exit(3), which could wait for locks of threads that wait for the
/// store.
pub fn end_now(exit: Exit) -> ! {
    // SAFETY: needs nothing of this process, and nothing runs after it.
    unsafe { libc::_exit(exit.code().into()) }
}

/// Keeps the memory of this process out of core dumps, away from debuggers of its own user, and out
/// of swap if possible. Called before any secret is requested. A child of fork(2) inherits the
/// first two, but not locked memory.
///
/// # Errors
/// Those of prctl(2) and setrlimit(2).
pub fn keep_memory_private() -> Result<(), Error> {
    let failed = |op| move |errno: rustix::io::Errno| Error::Os { op, source: errno.into() };
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(failed("forbid core dumps"))?;
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(failed("forbid core dumps"))?;
    lock_memory();
    Ok(())
}

/// Raises the limit on open files to the maximum. All files that programs have open in the mount
/// are open in this one process, while a shell gives each program 1,024. Root may exceed its own
/// hard limit.
pub fn raise_open_files() {
    const ENOUGH: u64 = 1 << 20;
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let known = std::fs::read_to_string("/proc/sys/fs/nr_open")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    let most = known.unwrap_or(0).min(ENOUGH);
    let raise =
        |to| rustix::process::setrlimit(Resource::Nofile, Rlimit { current: to, maximum: to });
    let raised = if limit.maximum.is_some_and(|hard| hard < most) {
        raise(Some(most))
    } else {
        Err(rustix::io::Errno::PERM)
    };
    if let Err(error) = raised.or_else(|_| raise(limit.maximum)) {
        tracing::debug!("the limit on open files stays at {:?}: {error}", limit.current);
    }
}

/// Locks all memory of this process as it is touched, so that keys are not swapped out. This needs
/// root or an unlimited RLIMIT_MEMLOCK: a limit that the caches reach would make allocations fail
/// and end the process.
fn lock_memory() {
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    let locked = if limit.is_none() || rustix::process::geteuid().is_root() {
        mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
    } else {
        Err(rustix::io::Errno::PERM)
    };
    match locked {
        Ok(()) => tracing::debug!("memory is locked and is not swapped out"),
        Err(error) => tracing::debug!(
            "memory is not locked and keys can be swapped out ({error}): raise `ulimit -l` or encrypt the swap"
        ),
    }
}
