//! SIGTERM, SIGINT and SIGHUP, waited for by one thread.
//!
//! Rule: they are blocked before the first thread starts, so that every thread inherits the mask
//! and none dies of them.

use std::io;
use std::mem::MaybeUninit;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The signals that end a mount, blocked for the calling thread and those it starts.
pub struct Signals {
    set: libc::sigset_t,
}

impl Signals {
    /// Blocks them.
    pub fn block() -> io::Result<Signals> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset fills the whole set before anything reads it, and all pointers are to
        // live locals.
        let (set, result) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let set = set.assume_init();
            (set, libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()))
        };
        if result == 0 { Ok(Signals { set }) } else { Err(io::Error::from_raw_os_error(result)) }
    }

    /// Waits for the next one and gives its name.
    pub fn wait(&self) -> io::Result<&'static str> {
        let mut signal = 0;
        loop {
            // SAFETY: both pointers are to live memory of the right type.
            match unsafe { libc::sigwait(&self.set, &mut signal) } {
                0 => break,
                libc::EINTR => {}
                error => return Err(io::Error::from_raw_os_error(error)),
            }
        }
        Ok(match signal {
            libc::SIGTERM => "SIGTERM",
            libc::SIGINT => "SIGINT",
            _ => "SIGHUP",
        })
    }
}

/// Lifts the limit on the size of files (`ulimit -f`) as far as it may be lifted, and turns what is
/// left of it from a deadly signal into an error: it is meant for the programs that use the mount,
/// which the kernel holds to their own limit, and not for the ciphertext.
pub fn ignore_file_size_limit() -> io::Result<()> {
    // SAFETY: ignoring a signal installs no handler.
    if unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) } == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
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
        // in a thread of its own: the mask is per thread, and the signal is sent to that thread
        // alone
        let name = std::thread::spawn(|| {
            let signals = Signals::block().unwrap();
            // SAFETY: the signal goes to the calling thread, which has just blocked it.
            assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGHUP) }, 0);
            signals.wait().unwrap()
        });
        assert_eq!(name.join().unwrap(), "SIGHUP");
    }
}
