//! A command at a terminal, and a user who waits for its questions and types answers.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use super::people::wait_until;

/// Maximum time for a question to appear.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running command whose terminal is a pseudoterminal.
pub struct Terminal {
    master: File,
    child: Child,
    /// Everything that was printed.
    said: String,
    /// Length of the part that `expect` has passed.
    read: usize,
}

impl Terminal {
    /// Starts a command that is run by `setsid` of util-linux, as [`Person`](super::people::Person)
    /// does: with `--ctty` the pseudoterminal becomes its terminal.
    pub fn start(mut command: Command) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a pseudoterminal");
        grantpt(&master).expect("grantpt");
        unlockpt(&master).expect("unlockpt");
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let slave = ioctl_tiocgptpeer(&master, flags).expect("the other side");
        let end = || -> OwnedFd { slave.try_clone().expect("dup") };
        let child = command
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("setsid of util-linux is installed");
        Terminal { master: master.into(), child, said: String::new(), read: 0 }
    }

    /// Reads output; returns false at the end of the command's output.
    fn listen(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "nothing more came after:\n{}", self.said);
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: 1 };
        let mut wait = [PollFd::from_borrowed_fd(self.master.as_fd(), PollFlags::IN)];
        if poll(&mut wait, Some(&timeout)).expect("poll") == 0 {
            return true;
        }
        let mut bytes = [0; 4096];
        // The last descriptor of the other side was closed: EIO.
        let Ok(n @ 1..) = self.master.read(&mut bytes) else { return false };
        self.said += &String::from_utf8_lossy(&bytes[..n]);
        true
    }

    /// Waits until `text` was printed after the text expected before.
    pub fn expect(&mut self, text: &str) -> &mut Self {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.said[self.read..].find(text) {
                self.read += at + text.len();
                return self;
            }
            assert!(self.listen(until), "{text:?} did not come:\n{}", self.said);
        }
    }

    /// Waits until the terminal no longer shows what is typed, shortly after a question for a secret.
    pub fn expect_no_echo(&mut self) -> &mut Self {
        wait_until("the terminal hides what is typed", || !self.has_echo());
        self
    }

    fn has_echo(&self) -> bool {
        tcgetattr(&self.master).expect("tcgetattr").local_modes.contains(LocalModes::ECHO)
    }

    /// Types a line.
    pub fn type_line(&mut self, line: &str) -> &mut Self {
        self.master.write_all(format!("{line}\n").as_bytes()).expect("type");
        self
    }

    /// Waits for the end of the command; returns everything that was printed, and whether the
    /// terminal shows what is typed.
    pub fn end_with_echo(mut self) -> (String, bool) {
        let until = Instant::now() + PATIENCE;
        while self.listen(until) {}
        self.child.wait().expect("wait");
        let has_echo = self.has_echo();
        (std::mem::take(&mut self.said), has_echo)
    }

    /// Waits for the end of the command; returns its exit code and everything that was printed.
    pub fn end(mut self) -> (i32, String) {
        let until = Instant::now() + PATIENCE;
        while self.listen(until) {}
        let status = self.child.wait().expect("wait");
        (status.code().unwrap_or(-1), std::mem::take(&mut self.said))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
