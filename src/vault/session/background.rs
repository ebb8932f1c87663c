//! What is done in the background while a vault is open.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::nested::Shares;
use crate::vault::core::Core;
use crate::vault::share::trust::Trust;

/// How long a change may wait in memory before it is committed.
const COMMIT_AFTER: Duration = Duration::from_secs(4);
/// The same in a synced share: until then a sync tool does not see the change, and replaces the
/// file as if there were none.
const COMMIT_SYNCED_AFTER: Duration = Duration::from_millis(200);
/// Interval of commits in a synced share.
const TICK_SYNCED: Duration = Duration::from_millis(200);

/// Interval of the background threads.
const TICK: Duration = Duration::from_millis(500);

/// How long the journal must be idle before it is emptied.
const JOURNAL_IDLE: Duration = Duration::from_secs(1);

/// The threads that look after an open vault.
pub(super) struct Background {
    pub stop: Arc<(Mutex<bool>, Condvar)>,
    pub threads: Vec<JoinHandle<()>>,
}

pub(super) fn background(shares: &Arc<Shares>) -> Background {
    let stop = Arc::new((Mutex::new(false), Condvar::new()));
    let tick = if shares.root.mode.synced { TICK_SYNCED } else { TICK };
    let every_tick = |name: &str, task: fn(&Core, &Trust)| {
        let (shares, signal) = (shares.clone(), stop.clone());
        let run = move || {
            let (stop, changed) = &*signal;
            let mut stopped = stop.lock();
            while !*stopped {
                changed.wait_for(&mut stopped, tick);
                if *stopped {
                    break;
                }
                MutexGuard::unlocked(&mut stopped, || {
                    shares.cores().iter().for_each(|core| task(core, shares.trust()))
                });
            }
        };
        std::thread::Builder::new().name(name.into()).spawn(run).ok()
    };
    // Flushes to a slow disk take long: no commit may wait for them, so they have their own thread.
    let threads = [
        every_tick("kithfs-commit", look_after),
        every_tick("kithfs-flush", |core, _| core.flush_due(COMMIT_AFTER)),
    ];
    Background { stop, threads: threads.into_iter().flatten().collect() }
}

/// Runs the background work of a share, at each tick.
fn look_after(core: &Core, trust: &Trust) {
    watch_lock(core);
    if core.keys.signed()
        && let Err(error) = core.refresh(trust)
    {
        tracing::error!("{error}");
    }
    core.commit_due(if core.mode.synced { COMMIT_SYNCED_AFTER } else { COMMIT_AFTER });
    core.namespace.trash.retry();
    core.journal.write_created();
    if let Err(fault) = core.journal.checkpoint_idle(JOURNAL_IDLE) {
        tracing::error!(errno = fault.errno(), "journal checkpoint failed");
    }
}

/// Ensures that this process holds the lock on the lock file that others find: another program may
/// have removed it. If another daemon has opened the vault since and cannot share it, nothing
/// is written any more.
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
                "another program has removed the lock file of the vault, and a daemon on another machine has opened it since; nothing is written any more"
            );
            core.keys.signing.shut_out();
            *held = None;
        }
        Some(Err(fault)) => tracing::warn!(
            errno = fault.errno(),
            "the lock file of the vault is gone and cannot be created again"
        ),
    }
}
