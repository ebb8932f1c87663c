//! Going to the background, and what a process that holds secrets gives up.
//!
//! Rules that hold here
//! * The fork comes before the first thread, for a thread does not survive it: the secret is asked
//!   for before, keys are stretched and the vault is opened after (Argon2 and the ciphers start
//!   threads).
//! * The command in front ends only when the child says that the mount serves requests, or with the
//!   child's exit code.
//! * Until then the child stays in the terminal's foreground group, so that Ctrl-C ends both.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, WaitOptions, WaitStatus};

use crate::cli::error::Error;
use crate::cli::exit::Exit;

/// Which side of a fork this is.
pub enum Side {
    /// The command in front.
    Front(Front),
    /// The process that will be in the background.
    Background(Background),
}

/// The command in front, waiting for the one in the background.
pub struct Front {
    pipe: File,
    child: Pid,
}

/// The process that goes to the background.
pub struct Background {
    pipe: File,
}

/// Splits in two. To be called while there is one thread only.
///
/// # Errors
/// Those of pipe(2) and fork(2).
pub fn fork() -> Result<Side, Error> {
    let failed = |source| Error::Os { op: "go to the background", source };
    let (reader, writer) = io::pipe().map_err(failed)?;
    // SAFETY: this process has one thread (the rule above), so the child finds no lock held and no
    // structure half changed.
    match unsafe { libc::fork() } {
        -1 => Err(failed(io::Error::last_os_error())),
        0 => {
            drop(reader);
            close_inherited();
            Ok(Side::Background(Background { pipe: OwnedFd::from(writer).into() }))
        }
        child => {
            let child = Pid::from_raw(child).expect("fork gives no 0 here");
            Ok(Side::Front(Front { pipe: OwnedFd::from(reader).into(), child }))
        }
    }
}

/// Closes what the caller has left open for the commands that he runs: in the background it would
/// stay open as long as the mount, a lock held, a reader of a pipe waiting for its end, another
/// mount busy. What this process has opened itself is closed on exec, all of it.
fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let descriptors: Vec<i32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in descriptors.into_iter().filter(|&descriptor| descriptor > libc::STDERR_FILENO)
    {
        // SAFETY: asks for flags, of whatever has the number.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            // SAFETY: nothing in this process has opened it, so nothing here will use it, nor
            // another one that gets the number.
            unsafe { libc::close(descriptor) };
        }
    }
}

impl Front {
    /// Waits until the mount serves requests or has failed. The child has then reported the failure
    /// itself.
    ///
    /// # Errors
    /// The child ended without a word.
    pub fn wait(mut self) -> Result<Exit, Error> {
        let mut word = [0];
        match self.pipe.read_exact(&mut word) {
            Ok(()) => Ok(Exit::from_code(word[0]).unwrap_or(Exit::Failure)),
            Err(_) => Err(Error::DaemonEnded(self.how_it_ended())),
        }
    }

    fn how_it_ended(&self) -> String {
        let status = loop {
            match rustix::process::waitpid(Some(self.child), WaitOptions::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(Some((_, status))) => break status,
                _ => return "cause unknown".to_owned(),
            }
        };
        describe(status)
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
    /// The mount serves requests: leaves the terminal and lets the command in front end.
    ///
    /// # Errors
    /// Those of the calls; a broken pipe where the command in front was killed, in which case
    /// nobody expects this mount.
    pub fn serving(mut self) -> Result<(), Error> {
        leave_terminal()
            .and_then(|()| self.pipe.write_all(&[Exit::Ok.code()]))
            .map_err(|source| Error::Os { op: "go to the background", source })
    }

    /// The mount failed and the failure was printed.
    pub fn failed(mut self, exit: Exit) {
        // where the command in front has ended nobody is left to hear it
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

/// Keeps the memory of this process out of core dumps, away from the debuggers of its own user, and
/// where it may out of swap. Called before any secret is asked for. A child of fork(2) has the
/// first two from its parent, but no locked memory.
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

/// Lets this process have as many files open as it may have at all: each file that is open in the
/// mount is one here, of all programs together, where a shell gives each program 1,024 for itself.
/// Root may have more than its own limit.
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
        tracing::debug!("no more files can be open than {:?}: {error}", limit.current);
    }
}

/// Locks all memory of this process, as it is touched, so that no key is swapped out. Only where
/// there is no limit: under one, a limit that the caches reach would make allocations fail, and the
/// process with them.
fn lock_memory() {
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    let locked = if limit.is_none() || rustix::process::geteuid().is_root() {
        mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
    } else {
        Err(rustix::io::Errno::PERM)
    };
    match locked {
        Ok(()) => tracing::debug!("memory is locked: nothing of it is swapped out"),
        Err(error) => tracing::debug!(
            "memory is not locked, keys can be swapped out ({error}): raise `ulimit -l` or encrypt the swap"
        ),
    }
}
