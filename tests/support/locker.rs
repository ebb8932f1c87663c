//! A program that takes locks and uses files on command.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A running `locker.py`, which has a working directory in a mount. Dropping it kills it.
pub struct Locker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Locker {
    pub fn start(dir: &Path) -> Locker {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/locker.py");
        let mut child = Command::new("python3")
            .arg(script)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Locker { child, input, output: BufReader::new(output) }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a command without waiting for its answer.
    pub fn begin(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    /// Returns the answer of the earliest command that has none: "ok", a text, or the name of an
    /// errno.
    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn run(&mut self, command: &str) -> String {
        self.begin(command);
        self.answer()
    }

    #[track_caller]
    pub fn done(&mut self, command: &str) {
        assert_eq!(self.run(command), "ok", "{command}");
    }

    #[track_caller]
    pub fn refused(&mut self, command: &str) {
        assert_eq!(self.run(command), "EAGAIN", "{command}");
    }

    /// Waits until the program waits for an answer of the daemon.
    pub fn until_it_waits(&self) {
        let begun = Instant::now();
        let wchan = format!("/proc/{}/wchan", self.child.id());
        while !std::fs::read_to_string(&wchan).unwrap().contains("request_wait_answer") {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "the program does not wait for the daemon"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Kills the program and waits until it is gone.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
