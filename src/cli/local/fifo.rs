//! Reading a file that the user has named, which may be a FIFO: process substitution makes one.
//!
//! Rule: a FIFO that no program writes to is not waited for without end. One that a program has
//! opened for writing is: the program may be asking its user.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// How long a program may take to open a FIFO for writing. A shell starts it at the same time.
const WRITER: Duration = Duration::from_secs(10);

/// Opens a file for reading.
///
/// # Errors
/// Those of open(2). A read from a FIFO fails with `TimedOut` if no program has opened it for
/// writing in time.
pub fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        return Ok(Box::new(Fifo { file, until: Instant::now() + WRITER, has_writer: false }));
    }
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)?;
    Ok(Box::new(file))
}

/// A FIFO, open without blocking.
struct Fifo {
    file: File,
    until: Instant,
    /// Whether a program has it open for writing, or had.
    has_writer: bool,
}

impl Fifo {
    /// Waits until something can be read, or until the last writer has closed the FIFO. Returns
    /// whether that happened in time.
    fn wait(&self, until: Option<Instant>) -> io::Result<bool> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.map(|left| Timespec::try_from(left).expect("some seconds"));
            let mut ready = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut ready, left.as_ref()) {
                Ok(count) => return Ok(count > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Read for Fifo {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::io::read(&self.file, &mut *buf) {
                // Without a writer a FIFO is at its end; so is one whose writer has gone.
                Ok(0) if !self.has_writer => {
                    if !self.wait(Some(self.until))? {
                        // A writer that has written nothing yet does not end the wait, but the read
                        // then fails with EAGAIN.
                        match rustix::io::read(&self.file, &mut *buf) {
                            Ok(0) => {}
                            Err(Errno::AGAIN) => continue,
                            read => return Ok(read?),
                        }
                        let why = "it is a FIFO, and no program writes to it";
                        return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                    }
                    self.has_writer = true;
                }
                Err(Errno::AGAIN) => {
                    self.has_writer = true;
                    self.wait(None)?;
                }
                read => return Ok(read?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc;

    use super::*;

    fn fifo() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        (dir, path)
    }

    #[test]
    fn a_writer_is_waited_for_and_read_to_its_end() {
        let (_dir, path) = fifo();
        let mut reader = open(&path).unwrap();
        let (opened, is_open) = mpsc::channel();
        let (go, goes) = mpsc::channel::<()>();
        let writer = std::thread::spawn(move || {
            let mut file = File::options().write(true).open(&path).unwrap();
            opened.send(()).unwrap();
            goes.recv().unwrap();
            file.write_all(b"one ").unwrap();
            file.write_all(b"two").unwrap();
        });
        is_open.recv().unwrap();
        go.send(()).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        writer.join().unwrap();
        assert_eq!(text, "one two");
    }

    #[test]
    fn a_fifo_without_a_writer_times_out_and_a_slow_one_does_not() {
        let (_dir, path) = fifo();
        let open = || {
            let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
            Fifo { file: file.unwrap(), until: Instant::now(), has_writer: false }
        };
        let error = open().read(&mut [0; 9]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // The time is over, but there is a writer.
        let reader = open();
        let mut writer = File::options().write(true).open(&path).unwrap();
        let read = Waiting::start(reader);
        read.sleeps();
        writer.write_all(b"late").unwrap();
        assert_eq!(read.ends(), b"late");
    }

    /// A thread that reads.
    struct Waiting(std::thread::JoinHandle<io::Result<Vec<u8>>>, rustix::process::Pid);

    impl Waiting {
        fn start(mut reader: Fifo) -> Waiting {
            let (tell, told) = mpsc::channel();
            let read = std::thread::spawn(move || {
                tell.send(rustix::thread::gettid()).unwrap();
                let mut buf = [0; 9];
                reader.read(&mut buf).map(|len| buf[..len].to_vec())
            });
            Waiting(read, told.recv().unwrap())
        }

        /// Waits until it waits for the FIFO, or has ended.
        fn sleeps(&self) {
            let stat = format!("/proc/self/task/{}/stat", self.1.as_raw_nonzero());
            let sleeps = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
            while !self.0.is_finished() && !sleeps() {
                std::thread::yield_now();
            }
        }

        fn ends(self) -> Vec<u8> {
            self.0.join().unwrap().unwrap()
        }
    }

    /// A program may open a FIFO in time and ask its user for long: it has written nothing when the
    /// time is over.
    #[test]
    fn a_writer_that_is_silent_at_first_is_waited_for() {
        let (_dir, path) = fifo();
        let until = Instant::now() + Duration::from_millis(500);
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let read = Waiting::start(Fifo { file: file.unwrap(), until, has_writer: false });
        // It has seen no writer.
        read.sleeps();
        let mut writer = File::options().write(true).open(&path).unwrap();
        let over = until + Duration::from_millis(100);
        while !read.0.is_finished() && Instant::now() < over {
            std::thread::park_timeout(over - Instant::now());
        }
        read.sleeps();
        writer.write_all(b"late").unwrap();
        assert_eq!(read.ends(), b"late");
    }
}
