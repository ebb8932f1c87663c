//! SIGTERM, SIGINT and SIGHUP, which one thread waits for, and SIGXFSZ, which no thread takes.
//!
//! Rule: the signals are blocked before the first thread starts. Every thread inherits the mask, so
//! they kill no thread.
//!
//! A long command treats SIGINT or SIGTERM as a request to stop, and prints what it has done. A
//! second signal ends it at once.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::Failure;

/// The signals that end a mount, blocked for the calling thread and the threads it starts.
pub struct Signals(SigSet);

impl Signals {
    /// Blocks the signals.
    pub fn block() -> io::Result<Signals> {
        let set = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        set.thread_block()?;
        Ok(Signals(set))
    }

    /// Waits for the next signal and returns its name.
    pub fn wait(&self) -> io::Result<&'static str> {
        Ok(self.0.wait()?.as_str())
    }
}

/// Whether this command was asked to stop.
static STOP: AtomicBool = AtomicBool::new(false);

/// Returns whether this command was asked to stop (see [`take_interrupts`]).
pub fn is_interrupted() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Takes SIGINT and SIGTERM from now on as requests to stop: the first one calls `stop`, the second
/// one ends the process. Called before the first thread starts.
///
/// # Errors
/// Those of the calls.
pub fn take_interrupts(stop: impl Fn() + Send + 'static) -> Result<(), Error> {
    let failed = |source| Error::Os { op: "take signals", source };
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block().map_err(|errno| failed(errno.into()))?;
    let wait = move || {
        while signals.wait().is_ok() {
            if STOP.swap(true, Ordering::Relaxed) {
                std::process::exit(Exit::Interrupted.code().into());
            }
            stop();
        }
    };
    std::thread::Builder::new().name("kithfs-signals".into()).spawn(wait).map(drop).map_err(failed)
}

/// Does [`take_interrupts`] for a command that can be killed at any time and continues when it is
/// run again: prints how to continue, and ends the process.
///
/// # Errors
/// Those of [`take_interrupts`].
pub fn end_at_interrupt(command: &'static str, hint: &'static str) -> Result<(), Error> {
    take_interrupts(move || {
        // Begins a new line below the progress.
        eprintln!();
        Failure::new(Exit::Interrupted, format_args!("{command}: interrupted")).hint(hint).print();
        std::process::exit(Exit::Interrupted.code().into());
    })
}

/// The signal mask to restore on drop.
pub struct Unblocked(SigSet);

/// Lets signals end this process until the returned value is dropped: for the time of a question,
/// when nothing was done yet, and for a child process, which inherits the mask.
pub fn unblocked() -> Option<Unblocked> {
    let before = SigSet::thread_get_mask().ok()?;
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]).thread_unblock().ok()?;
    Some(Unblocked(before))
}

impl Drop for Unblocked {
    fn drop(&mut self) {
        let _ = self.0.thread_set_mask();
    }
}

/// Raises the limit on file sizes (`ulimit -f`) to the hard limit, and blocks the signal that kills
/// at the limit, so that a write beyond it fails with EFBIG. The limit is meant for the programs
/// that use the mount, which the kernel holds to their own limit, and not for the ciphertext.
pub fn ignore_file_size_limit() -> io::Result<()> {
    SigSet::from_iter([Signal::SIGXFSZ]).thread_block()?;
    let limit = getrlimit(Resource::Fsize);
    if limit.current != limit.maximum {
        setrlimit(Resource::Fsize, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_waited_for() {
        // In a thread of its own, as the mask is per thread; the signal is sent to that thread.
        let name = std::thread::spawn(|| {
            let signals = Signals::block().unwrap();
            nix::sys::pthread::pthread_kill(nix::sys::pthread::pthread_self(), Signal::SIGHUP)
                .unwrap();
            signals.wait().unwrap()
        });
        assert_eq!(name.join().unwrap(), "SIGHUP");
    }
}
