//! The background work while a vault is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::lease;
use super::nested::Shares;
use crate::vault::core::Core;
use crate::vault::share::trust::Trust;

/// How long a change may wait in memory before it is committed.
const COMMIT_AFTER: Duration = Duration::from_secs(4);
/// The same in a synced share: until then a sync tool does not see the change, and replaces the
/// file as if there were none.
const COMMIT_SYNCED_AFTER: Duration = Duration::from_millis(200);
/// Interval of the background threads of a synced vault.
const TICK_SYNCED: Duration = Duration::from_millis(200);

/// Interval of the background threads.
const TICK: Duration = Duration::from_millis(500);

/// How long the journal must be idle before it is emptied.
const JOURNAL_IDLE: Duration = Duration::from_secs(1);

/// The threads that look after an open vault.
pub(super) struct Background {
    /// Ends them, once they are unparked.
    pub stop: Arc<AtomicBool>,
    pub threads: Vec<JoinHandle<()>>,
}

pub(super) fn background(shares: &Arc<Shares>) -> Background {
    let stop = Arc::new(AtomicBool::new(false));
    let tick = if shares.root.mode.synced { TICK_SYNCED } else { TICK };
    let start = |name: &str, run: fn(&Shares, &AtomicBool, Duration)| {
        let (shares, stop) = (shares.clone(), stop.clone());
        std::thread::Builder::new().name(name.into()).spawn(move || run(&shares, &stop, tick)).ok()
    };
    // Flushes to a slow disk take long: no commit may wait for them, so they have their own thread.
    let threads = [
        start("kithfs-commit", commit),
        start("kithfs-flush", flush),
        start("kithfs-lease", |shares, stop, _| lease::run(shares, stop)),
    ];
    Background { stop, threads: threads.into_iter().flatten().collect() }
}

/// Looks after the shares at each tick.
fn commit(shares: &Shares, stop: &AtomicBool, tick: Duration) {
    loop {
        std::thread::park_timeout(tick);
        if stop.load(Ordering::Acquire) {
            return;
        }
        shares.cores().iter().for_each(|core| look_after(core, shares.trust()));
    }
}

/// Flushes files at each tick; the files of a journal also when the journal asks for it.
fn flush(shares: &Shares, stop: &AtomicBool, tick: Duration) {
    let mut next = Instant::now() + tick;
    loop {
        std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
        if stop.load(Ordering::Acquire) {
            return;
        }
        let is_tick = Instant::now() >= next;
        for core in shares.cores() {
            core.journal.flusher.get_or_init(std::thread::current);
            flush_ahead(&core, COMMIT_AFTER);
            if is_tick {
                core.flush_due(COMMIT_AFTER);
            }
        }
        if is_tick {
            next = Instant::now() + tick;
        }
    }
}

/// See [`Journal::flush_ahead`](crate::vault::durability::journal::Journal::flush_ahead).
pub(super) fn flush_ahead(core: &Core, age: Duration) {
    if let Err(fault) = core.journal.flush_ahead(age) {
        tracing::error!(errno = fault.errno(), "journal checkpoint failed");
    }
}

/// Runs the background work of a share, at each tick.
fn look_after(core: &Core, trust: &Trust) {
    watch_lock(core);
    if core.may_be_rekeyed()
        && let Err(error) = core.refresh(trust)
    {
        tracing::error!("{error}");
    }
    note_running(core);
    core.commit_due(if core.mode.synced { COMMIT_SYNCED_AFTER } else { COMMIT_AFTER });
    note_running(core);
    core.namespace.trash.retry();
    core.journal.write_created();
    note_running(core);
    if let Err(fault) = core.journal.checkpoint_idle(JOURNAL_IDLE) {
        tracing::error!(errno = fault.errno(), "journal checkpoint failed");
    }
    note_running(core);
}

fn note_running(core: &Core) {
    if let Some(lock) = &mut *core.lock.lock() {
        lock.note_running();
    }
}

/// Ensures that this process holds the lock on the lock file that others find: another program may
/// have removed it, or the store may have dropped the lock while this machine slept. If another
/// daemon has opened the vault since and cannot share it, nothing is written any more.
fn watch_lock(core: &Core) {
    let mut held = core.lock.lock();
    let Some(lock) = &mut *held else { return };
    match lock.taken_anew() {
        None => {}
        Some(Ok(true)) => tracing::warn!(
            "another program has removed the lock file of the vault while it is in use; it is created again"
        ),
        Some(Ok(false)) => {
            tracing::error!(
                "the lock of the vault is lost, because this machine slept or another program has removed the lock file, and a daemon on another machine has opened the vault since; nothing is written any more"
            );
            core.keys.signing.shut_out();
            *held = None;
        }
        Some(Err(fault)) => tracing::warn!(
            errno = fault.errno(),
            "the lock file of the vault is gone, or its lock may be, and it cannot be locked again yet"
        ),
    }
}
