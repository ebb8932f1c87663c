//! Python programs that work in the mounts by themselves, and report in lines.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use super::world::World;

/// A program that runs in a mount. Dropping it kills it.
struct Program {
    mount: usize,
    child: Child,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The running programs of one script.
pub struct Programs {
    script: &'static str,
    running: Vec<Program>,
    sender: Sender<(usize, String)>,
    lines: Receiver<(usize, String)>,
}

impl Programs {
    pub fn new(script: &'static str) -> Programs {
        let (sender, lines) = channel();
        Programs { script, running: Vec::new(), sender, lines }
    }

    /// Starts a program in a mount.
    pub fn start(&mut self, world: &World, mount: usize, arguments: &[&str]) {
        let mut child = Command::new("python3")
            .arg(self.script)
            .args(arguments)
            .current_dir(world.point(mount))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (output, lines) = (child.stdout.take().unwrap(), self.sender.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = lines.send((mount, line));
            }
        });
        self.running.push(Program { mount, child });
    }

    /// Returns the next report and its mount, unless none comes until `until`.
    pub fn report(&self, until: Instant) -> Option<(usize, String)> {
        self.lines.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }

    /// Ends the programs of a mount whose daemon was killed.
    pub fn end_those_of(&mut self, mount: usize) {
        let (gone, left) =
            std::mem::take(&mut self.running).into_iter().partition(|it| it.mount == mount);
        self.running = left;
        let gone: Vec<Program> = gone;
        for mut program in gone {
            let _ = program.child.kill();
            let status = program.child.wait().unwrap();
            // It may have used a mapping of the mount that is gone.
            let is_fine = matches!(status.signal(), Some(libc::SIGKILL | libc::SIGBUS));
            assert!(is_fine, "a program of the killed mount: {status}");
        }
    }

    /// Asserts that no program has ended by itself, and kills all. Returns their number.
    pub fn kill(&mut self) -> usize {
        let killed = self.running.len();
        for mut program in self.running.drain(..) {
            assert!(program.child.try_wait().unwrap().is_none(), "a program has ended");
        }
        killed
    }

    /// Asks all programs to end, which closes their input. Returns their number.
    pub fn ask_to_end(&mut self) -> usize {
        self.running.iter_mut().for_each(|it| drop(it.child.stdin.take()));
        self.running.len()
    }

    /// Waits for the programs that were asked to end.
    pub fn wait(&mut self) {
        for mut program in self.running.drain(..) {
            let status = program.child.wait().unwrap();
            assert!(status.success(), "a program of mount {}: {status}", program.mount);
        }
    }
}
