//! Unmounts what nobody has used for a while, so that a vault does not stay open behind somebody
//! who has left.
//!
//! Rules that hold here
//! * The kernel decides: a mount in which a program has a file open or its working directory is
//!   busy, and stays, however long nothing is asked of it. Nobody has anything taken away.
//! * Only what programs ask for counts as use. `statfs` does not, by which desktops watch what is
//!   mounted; what the kernel answers out of its caches is not seen here.
//! * The time for which the machine was suspended counts: who has closed the lid has left.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::error::MountError;
use super::mounted::Mounted;

/// It is looked this often in the time that has to pass.
const LOOKS: u32 = 10;
/// And never less often: what woke up after a suspension is looked at soon.
const TICK_MAX: Duration = Duration::from_secs(5);
const TICK_MIN: Duration = Duration::from_millis(10);
/// How long a mount that was busy is left alone.
const BUSY_PAUSE: Duration = Duration::from_secs(30);

/// Whether something was asked for since the last look. Costs a busy mount nothing but a look at a
/// word that seldom changes.
#[derive(Clone, Debug, Default)]
pub struct Usage(Arc<AtomicBool>);

impl Usage {
    /// Something was asked for.
    pub fn mark(&self) {
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// When to try to unmount. Times are those of one clock.
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

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Idle {
    _end: mpsc::Sender<()>,
}

/// Unmounts `mounted` once nothing has been asked for, and `is_working` has said no, for `after`.
///
/// # Errors
/// There can be no thread for it.
pub fn start(
    mounted: Arc<Mounted>,
    usage: Usage,
    is_working: impl Fn() -> bool + Send + 'static,
    after: Duration,
) -> io::Result<Idle> {
    let (end, ended) = mpsc::channel();
    let mut watch = Watch { after, used: now(), tried: None };
    let tick = (after / LOOKS).clamp(TICK_MIN, TICK_MAX);
    let run = move || {
        while ended.recv_timeout(tick) == Err(mpsc::RecvTimeoutError::Timeout) {
            if !watch.is_due(now(), usage.take() | is_working()) {
                continue;
            }
            match mounted.unmount(false) {
                Ok(()) => {
                    return tracing::info!(
                        "nobody has used it for {}: unmounted",
                        humantime::format_duration(after)
                    );
                }
                Err(MountError::NotMounted { .. }) => return,
                Err(MountError::Busy { holders, .. }) => {
                    tracing::debug!(holders = holders.len(), "not used, but busy: stays mounted")
                }
                Err(error) => tracing::warn!("not used, and stays mounted: {error}"),
            }
        }
    };
    thread::Builder::new().name("kithfs-idle".into()).spawn(run)?;
    Ok(Idle { _end: end })
}

/// Since the machine was started, with the time for which it was suspended.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_once_nobody_has_used_it_for_so_long_and_again_after_a_pause() {
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

    #[test]
    fn a_mark_is_seen_once_by_whoever_looks() {
        let usage = Usage::default();
        assert!(!usage.take());
        usage.clone().mark();
        usage.mark();
        assert!(usage.take());
        assert!(!usage.take());
    }
}
