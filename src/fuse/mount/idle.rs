//! Unmounts a mount after a time without use, so that a vault does not stay open on an unattended
//! machine.
//!
//! Rules that hold here
//! * The kernel decides: a mount in which a program has an open file or its working directory is
//!   busy and stays, however long there is no request. No program loses access.
//! * Only requests of programs count as use. `statfs` does not count, because desktops use it to
//!   watch mounts. Calls that the kernel serves from its caches are not seen here.
//! * The time for which the machine was suspended counts as idle time.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::error::MountError;
use super::mounted::Mounted;
use crate::vault::Usage;

/// Number of polls in the idle time, as far as the interval is within the limits below.
const LOOKS: u32 = 10;
/// Maximum poll interval, so that the first poll after a suspension comes soon.
const TICK_MAX: Duration = Duration::from_secs(5);
const TICK_MIN: Duration = Duration::from_millis(10);
/// How long a mount that was busy is left alone before the next attempt.
const BUSY_PAUSE: Duration = Duration::from_secs(30);

/// Decides when to try to unmount. All times are from one clock.
#[derive(Debug)]
struct Watch {
    after: Duration,
    used: Duration,
    tried: Option<Duration>,
}

impl Watch {
    fn is_due(&mut self, now: Duration, was_used: bool) -> bool {
        if was_used {
            (self.used, self.tried) = (now, None);
        }
        let is_rested =
            self.tried.is_none_or(|tried| now.saturating_sub(tried) >= BUSY_PAUSE.min(self.after));
        let is_due = is_rested && now.saturating_sub(self.used) >= self.after;
        if is_due {
            self.tried = Some(now);
        }
        is_due
    }
}

/// The thread that watches. It ends soon after this value is dropped.
#[derive(Debug)]
pub struct Idle {
    end: mpsc::Sender<()>,
    thread: JoinHandle<bool>,
}

impl Idle {
    /// Ends the thread and waits for it. Returns whether it has unmounted the mount.
    pub fn end(self) -> bool {
        drop(self.end);
        self.thread.join().unwrap_or(false)
    }
}

/// Starts a thread that unmounts `mounted` after a time of `after` in which there was no request
/// and `is_working` never returned true.
///
/// # Errors
/// The thread cannot be started.
pub fn start(
    mounted: Arc<Mounted>,
    usage: Usage,
    is_working: impl Fn() -> bool + Send + 'static,
    after: Duration,
) -> io::Result<Idle> {
    let (end, ended) = mpsc::channel();
    let mut watch = Watch { after, used: Usage::now(), tried: None };
    let tick = (after / LOOKS).clamp(TICK_MIN, TICK_MAX);
    let mut seen = usage.last();
    let run = move || {
        while ended.recv_timeout(tick) == Err(mpsc::RecvTimeoutError::Timeout) {
            let last = usage.last();
            let was_used = std::mem::replace(&mut seen, last) != last;
            if !watch.is_due(Usage::now(), was_used | is_working()) {
                continue;
            }
            match mounted.unmount(false) {
                Ok(()) => {
                    let time = humantime::format_duration(after);
                    tracing::info!("nobody has used it for {time}: unmounted");
                    return true;
                }
                Err(MountError::NotMounted { .. }) => return false,
                Err(MountError::Busy { holders, .. }) => {
                    tracing::debug!(holders = holders.len(), "not used, but busy: stays mounted")
                }
                Err(error) => tracing::warn!("not used, and stays mounted: {error}"),
            }
        }
        false
    };
    let thread = thread::Builder::new().name("kithfs-idle".into()).spawn(run)?;
    Ok(Idle { end, thread })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_mount_is_due_after_its_time_and_again_after_use() {
        let at = Duration::from_secs;
        let mut watch = Watch { after: at(60), used: at(1000), tried: None };
        assert!(!watch.is_due(at(1059), false));
        assert!(!watch.is_due(at(1060), true), "used at the last moment");
        assert!(!watch.is_due(at(1119), false));
        assert!(watch.is_due(at(1120), false));
        assert!(!watch.is_due(at(1149), false), "it was busy");
        assert!(watch.is_due(at(1150), false));
        assert!(!watch.is_due(at(1180), true));
        assert!(watch.is_due(at(9000), false), "the machine was suspended");
    }
}
