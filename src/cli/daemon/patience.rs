//! How long a store may take: kithfs waits for a slow store, but not for one that does not answer.
//!
//! Rule: a store does not answer if no call that changes it has returned for the whole time. A store
//! that is slow with much data returns from some.

use std::time::{Duration, Instant};

/// The time without `KITHFS_STORE_PATIENCE`. Servers that are restarted are back by then.
const USUAL: Duration = Duration::from_secs(120);

/// Returns how long a store may take for one call.
pub fn of_store() -> Duration {
    let seconds = std::env::var("KITHFS_STORE_PATIENCE").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
    seconds.map_or(USUAL, Duration::from_secs)
}

/// Notices when the store does not answer any more.
pub struct Silence {
    changes: Option<u64>,
    since: Instant,
    patience: Duration,
}

impl Silence {
    /// Begins to watch.
    pub fn begin() -> Silence {
        Silence { changes: None, since: Instant::now(), patience: of_store() }
    }

    /// Takes the number of changes until now, if it is known. Returns the time that the store had, if
    /// that is over.
    pub fn is_over(&mut self, changes: Option<u64>) -> Option<Duration> {
        self.is_over_at(changes, Instant::now())
    }

    fn is_over_at(&mut self, changes: Option<u64>, now: Instant) -> Option<Duration> {
        if changes.is_some() && changes != self.changes {
            (self.changes, self.since) = (changes, now);
        }
        (now.saturating_duration_since(self.since) >= self.patience).then_some(self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_is_slow_is_waited_for() {
        let begin = Instant::now();
        let patience = Duration::from_secs(9);
        let mut silence = Silence { changes: None, since: begin, patience };
        let mut at = |seconds, changes| {
            silence.is_over_at(changes, begin + Duration::from_secs(seconds)).is_some()
        };
        assert!(!at(8, Some(5)), "it has begun");
        assert!(!at(16, Some(6)) && !at(24, Some(7)), "each change took eight seconds");
        assert!(!at(32, Some(7)) && at(33, Some(7)), "nothing has changed for nine");
        assert!(!at(34, Some(8)), "it answers again");
        assert!(!at(42, None) && at(43, None), "the daemon does not answer");
    }
}
