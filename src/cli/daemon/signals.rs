//! SIGTERM, SIGINT and SIGHUP, which one thread waits for, and SIGXFSZ, which no thread takes.
//!
//! Rule: they are blocked before the first thread starts. Every thread inherits the mask, so none
//! is killed by them.

use std::io;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The signals that end a mount, blocked for the calling thread and the threads it starts.
pub struct Signals(SigSet);

impl Signals {
    /// Blocks them.
    pub fn block() -> io::Result<Signals> {
        let set = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        set.thread_block()?;
        Ok(Signals(set))
    }

    /// Waits for the next one and returns its name.
    pub fn wait(&self) -> io::Result<&'static str> {
        Ok(self.0.wait()?.as_str())
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
