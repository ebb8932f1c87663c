//! How long a store may take: kithfs waits for a slow store, but not for one that does not answer.
//!
//! Rule: a store does not answer if it was asked for its free space, which takes no work, and has
//! been silent for the whole time. A flush of much data to a slow disk may take longer than that,
//! and must be waited for: the disk answers meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::store::Dir;

/// The time without `KITHFS_STORE_PATIENCE`. Servers that are restarted are back by then.
const USUAL: Duration = Duration::from_secs(120);

/// Returns how long a store may be silent.
fn of_store() -> Duration {
    let seconds = std::env::var("KITHFS_STORE_PATIENCE").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
    seconds.map_or(USUAL, Duration::from_secs)
}

/// Asks a store whether it answers.
#[derive(Clone)]
pub struct Pulse(Arc<Asked>);

struct Asked {
    store: Arc<dyn Dir>,
    answers: AtomicU64,
    /// A thread waits for an answer.
    is_asking: AtomicBool,
}

impl Pulse {
    /// Creates the value for the store with this directory.
    pub fn of(store: Arc<dyn Dir>) -> Pulse {
        let (answers, is_asking) = (AtomicU64::new(0), AtomicBool::new(false));
        Pulse(Arc::new(Asked { store, answers, is_asking }))
    }

    /// Returns how often the store has answered until now, and asks it again. A thread waits for
    /// the answer, and may never end; this call does not wait.
    pub fn answers(&self) -> u64 {
        if !self.0.is_asking.swap(true, Ordering::AcqRel) {
            let asked = self.0.clone();
            let ask = move || {
                // An error is an answer.
                let _ = asked.store.space();
                asked.answered();
            };
            if std::thread::Builder::new().name("kithfs-pulse".into()).spawn(ask).is_err() {
                // That this process cannot ask is no silence of the store.
                self.0.answered();
            }
        }
        self.0.answers.load(Ordering::Acquire)
    }
}

impl Asked {
    fn answered(&self) {
        self.answers.fetch_add(1, Ordering::AcqRel);
        self.is_asking.store(false, Ordering::Release);
    }
}

/// Notices when the store does not answer any more.
pub struct Silence {
    answers: Option<u64>,
    since: Instant,
    patience: Duration,
}

impl Silence {
    /// Begins to watch.
    pub fn begin() -> Silence {
        Silence { answers: None, since: Instant::now(), patience: of_store() }
    }

    /// Takes the number of answers until now, if it is known. Returns the time that the store had,
    /// if that is over.
    pub fn is_over(&mut self, answers: Option<u64>) -> Option<Duration> {
        self.is_over_at(answers, Instant::now())
    }

    fn is_over_at(&mut self, answers: Option<u64>, now: Instant) -> Option<Duration> {
        if answers.is_some() && answers != self.answers {
            (self.answers, self.since) = (answers, now);
        }
        (now.saturating_duration_since(self.since) >= self.patience).then_some(self.patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that answers is asked again, so that a lock waits for it however long a flush takes.
    #[test]
    fn a_store_is_asked_again_once_it_has_answered() {
        let pulse = Pulse::of(crate::store::mem::MemStore::new().root());
        let begun = Instant::now();
        while pulse.answers() < 3 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the store is not asked again");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_store_that_is_slow_is_waited_for() {
        let begin = Instant::now();
        let patience = Duration::from_secs(9);
        let mut silence = Silence { answers: None, since: begin, patience };
        let mut at = |seconds, answers| {
            silence.is_over_at(answers, begin + Duration::from_secs(seconds)).is_some()
        };
        assert!(!at(8, Some(5)), "it has begun");
        assert!(!at(16, Some(6)) && !at(24, Some(7)), "each answer took eight seconds");
        assert!(!at(32, Some(7)) && at(33, Some(7)), "it has been silent for nine");
        assert!(!at(34, Some(8)), "it answers again");
        assert!(!at(42, None) && at(43, None), "the daemon does not answer");
    }
}
