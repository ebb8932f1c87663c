//! Processes: start time, name, and waiting for their end.
//!
//! Rules that hold here
//! * A process ID alone does not identify a process, as the kernel reuses it. It is always
//!   combined with the start time.

use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Returns whether this process is in a user namespace that does not show all users of the machine.
pub fn in_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// A running or past process: its ID and its start time in clock ticks since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessId {
    /// Process ID.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
}

impl ProcessId {
    /// Returns this process.
    pub fn current() -> io::Result<ProcessId> {
        ProcessId::of(std::process::id())?.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "/proc does not show this process")
        })
    }

    /// Returns the process that has this ID now; `None` if there is none.
    pub fn of(pid: u32) -> io::Result<Option<ProcessId>> {
        match std::fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => Ok(start_ticks(&stat).map(|start_ticks| ProcessId { pid, start_ticks })),
            // ESRCH: it ended between open and read.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    || error.raw_os_error() == Some(libc::ESRCH) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether the process runs. A zombie counts as ended.
    pub fn is_running(self) -> bool {
        match std::fs::read(format!("/proc/{}/stat", self.pid)) {
            Ok(stat) => start_ticks(&stat) == Some(self.start_ticks) && !is_dead(&stat),
            Err(_) => false,
        }
    }

    /// Waits until the process has ended, and returns true; returns false after `timeout`.
    pub fn wait_for_end(self, timeout: Duration) -> io::Result<bool> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return Ok(true);
        };
        let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::SRCH) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        // Only a check after the descriptor was opened is free of a race.
        if !self.is_running() {
            return Ok(true);
        }
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns the fields after the command, which is in parentheses and may itself contain parentheses
/// and spaces.
fn fields_after_command(stat: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    Some(stat[end + 1..].split(|byte| byte.is_ascii_whitespace()).filter(|field| !field.is_empty()))
}

fn start_ticks(stat: &[u8]) -> Option<u64> {
    // The first field after the command is number 3.
    std::str::from_utf8(fields_after_command(stat)?.nth(22 - 3)?).ok()?.parse().ok()
}

fn is_dead(stat: &[u8]) -> bool {
    fields_after_command(stat)
        .and_then(|mut fields| fields.next())
        .is_some_and(|state| matches!(state, b"Z" | b"X" | b"x"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a child that ends when its standard input does.
    fn child() -> std::process::Child {
        std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("cat can be started")
    }

    #[test]
    fn the_start_time_is_found_behind_a_hostile_command() {
        let mut stat =
            b"42 (a) R (b c) S 1 42 42 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 987654 5000 6 "
                .to_vec();
        assert_eq!(start_ticks(&stat), Some(987_654));
        assert!(!is_dead(&stat));
        stat = b"42 (x) Z 1 42".to_vec();
        assert_eq!(start_ticks(&stat), None);
        assert!(is_dead(&stat));
        assert_eq!(start_ticks(b""), None);
    }

    #[test]
    fn this_process_runs() {
        let me = ProcessId::current().unwrap();
        assert!(me.is_running());
        assert!(
            !ProcessId { start_ticks: me.start_ticks + 1, ..me }.is_running(),
            "the same number with another start is another process"
        );
    }

    #[test]
    fn waiting_ends_with_the_process() {
        let mut child = child();
        let id = ProcessId::of(child.id()).unwrap().unwrap();
        assert!(!id.wait_for_end(Duration::from_millis(1)).unwrap());
        drop(child.stdin.take());
        assert!(id.wait_for_end(Duration::from_secs(60)).unwrap());
        child.wait().unwrap();
        assert!(!id.is_running());
        assert!(id.wait_for_end(Duration::ZERO).unwrap());
    }
}
