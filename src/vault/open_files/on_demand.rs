//! Guards on demand, for files that programs lock: several daemons have such a file open for
//! writing.
//!
//! Rules that hold here
//! * A daemon that opens a file for writing has its guard until the last close. The first unlock of
//!   a program on the file ends that: from then on the daemon has the guard only while it has
//!   changes that are not committed.
//! * The daemon shows this to others by a shared lock on a range of its own. A daemon that opens
//!   the file for writing meanwhile has the guard on demand, too.
//! * Without the guard there are no changes. Each change first takes the guard and adopts what is
//!   committed, so no daemon builds a commit on bytes that it has not seen, and what a write was
//!   acknowledged for can always be committed. A write that does not get the guard fails with
//!   `EBUSY`.
//! * Pages that a program has changed through a shared mapping are no changes before the kernel
//!   writes them. Then they wait for the guard like any other write, and their error reaches the
//!   next `msync` or `fsync`.
//! * The guard is given back only with the state locked for writing.
//! * The guard is taken under the lease, and never waited for under it: the daemon that has the
//!   guard needs the lease to commit.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::RwLockWriteGuard;

use crate::store::{File, Lock};
use crate::vault::core::Core;
use crate::vault::durability::commit::Durability;
use crate::vault::durability::lease::Change;
use crate::vault::durability::lock_files::{ASKED, insist};
use crate::vault::durability::writers::Writers;
use crate::vault::error::{Fault, Inner};
use crate::vault::file::guard::{GUARD, open_for_locks};
use crate::vault::file::{FileState, OpenFile};
use crate::vault::open_files::locks::ON_DEMAND;

/// How long a write waits for the guard. Another daemon commits, and gives the guard back, at its
/// next tick (half a second).
const CHANGE_TAKES: Duration = Duration::from_secs(5);

/// How long a daemon whose programs write without a pause leaves the guard to others at each tick.
const LEFT_TO_OTHERS: Duration = ASKED.saturating_mul(3);

/// How often a file is read as a whole without the lease before a change: if its guard is taken on
/// demand, other daemons may commit to it each time.
const READS_MAX: usize = 2;

/// The locks of a file that is open for writing.
#[derive(Default)]
pub(crate) struct Guards {
    pub guard: Option<Arc<dyn File>>,
    /// Shows that the guard is taken on demand, and takes it.
    pub on_demand: Option<Arc<dyn File>>,
}

impl Guards {
    /// Returns the guards of a handle that has taken the guard or not. Fails with `EBUSY` if
    /// another daemon has it until a close.
    pub fn new(handle: Arc<dyn File>, is_guarded: bool) -> Inner<Guards> {
        let on_demand = join(&*handle)?.then(|| handle.clone());
        if !is_guarded && on_demand.is_none() {
            return Err(Fault::Os(libc::EBUSY));
        }
        Ok(Guards { guard: is_guarded.then_some(handle), on_demand })
    }
}

/// Shows on a handle that the guard is taken on demand, if another daemon does so, too. Returns
/// whether that is the case.
pub(super) fn join(handle: &dyn File) -> Inner<bool> {
    Ok(handle.find_lock(Lock::Exclusive, ON_DEMAND)?.is_some() && show(handle)?)
}

fn show(handle: &dyn File) -> Inner<bool> {
    Ok(handle.try_lock_span(Some(Lock::Shared), ON_DEMAND)?)
}

/// Returns whether any handle has a file open for writing.
pub(super) fn is_written(file: &dyn File) -> Inner<bool> {
    // In this order: a guard is given back only after the other lock was taken.
    Ok(file.find_lock(Lock::Shared, GUARD)?.is_some()
        || file.find_lock(Lock::Exclusive, ON_DEMAND)?.is_some())
}

/// The state of a file that is being changed, under the lease.
pub(in crate::vault) struct Changing<'a> {
    state: RwLockWriteGuard<'a, FileState>,
    _change: Change<'a>, // ends after the lock
}

impl Deref for Changing<'_> {
    type Target = FileState;

    fn deref(&self) -> &FileState {
        &self.state
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut FileState {
        &mut self.state
    }
}

impl Writers {
    /// Locks the state of a file for a change, like [`Writers::state_to_empty`]; fails with `EIO`
    /// if a change could make a chunk unreadable for good that another daemon has left half
    /// written.
    pub fn state_to_change<'a>(self, core: &'a Core, open: &'a OpenFile) -> Inner<Changing<'a>> {
        let mut reads = 0;
        loop {
            let mut changing = self.state_to_empty(core, open)?;
            if self == Writers::Exclusive {
                return Ok(changing);
            }
            let unread = core.check_whole(open, &mut changing, reads < READS_MAX);
            let Some(unread) = unread.inspect_err(|_| core.give_back(open, &changing))? else {
                return Ok(changing);
            };
            drop(changing); // other daemons change other files meanwhile
            core.read_unread(open, &unread)?;
            reads += 1;
        }
    }

    /// Locks the state of a file that will be empty. With concurrent openers the guard is held, and
    /// the state builds on that of the store. The caller has no change of the share in progress.
    pub fn state_to_empty<'a>(self, core: &'a Core, open: &'a OpenFile) -> Inner<Changing<'a>> {
        if self == Writers::Exclusive {
            let change = core.lease.change()?;
            return Ok(Changing { state: open.state.write(), _change: change });
        }
        insist(Instant::now() + CHANGE_TAKES, || {
            if !core.seems_free(open)? {
                return Ok(None);
            }
            let change = core.lease.change()?;
            let state = core.guarded_state(open)?;
            Ok(state.map(|state| Changing { state, _change: change }))
        })
    }
}

impl Core {
    /// Returns whether an attempt to take the guard of a file may succeed.
    fn seems_free(&self, open: &OpenFile) -> Inner<bool> {
        let Some(handle) = open.on_demand.lock().clone() else { return Ok(true) };
        if open.guard.lock().is_some() {
            return Ok(true);
        }
        drop(open.state.read()); // `leave_to_others` has it locked, and waits without the lease
        Ok(handle.find_lock(Lock::Exclusive, GUARD)?.is_none())
    }

    fn guarded_state<'a>(
        &self,
        open: &'a OpenFile,
    ) -> Inner<Option<RwLockWriteGuard<'a, FileState>>> {
        let mut state = open.state.write();
        // Only now: an unlock of another program may have given the guard back meanwhile.
        if !open.is_on_demand() || open.guard.lock().is_some() {
            if self.has_lost_guard(open, &state)? {
                self.latch_overtaken(open, &mut state);
                return Err(Fault::Os(libc::ESTALE));
            }
            return Ok(Some(state));
        }
        match self.guard(open) {
            Err(Fault::Os(libc::EBUSY)) => return Ok(None),
            other => other?,
        }
        self.freshen_locked(open, &mut state).inspect_err(|_| self.give_back(open, &state))?;
        Ok(Some(state))
    }

    /// Guards a file that is open already, for one more handle that writes.
    pub fn guard_open(&self, open: &OpenFile) -> Inner<()> {
        if open.is_on_demand() || open.guard.lock().is_some() {
            return Ok(());
        }
        let handle = open_for_locks(&*open.file())?;
        open.note_guarded(self.lease.sleeps());
        let is_guarded = handle.try_lock_span(Some(Lock::Exclusive), GUARD)?;
        let guards = Guards::new(handle, is_guarded)?;
        (*open.guard.lock(), *open.on_demand.lock()) = (guards.guard, guards.on_demand);
        Ok(())
    }

    /// Gives the guard back if there is nothing to commit and it is taken on demand.
    pub fn give_back(&self, open: &OpenFile, state: &FileState) {
        let mut guard = open.guard.lock();
        if let Some(handle) = &*guard
            && state.changes.is_none()
            && state.latched.is_none()
            && open.is_on_demand()
            && handle.try_lock_span(None, GUARD).is_ok()
        {
            *guard = None;
            open.is_whole.store(false, Ordering::Release);
        }
    }

    /// Gives the guard back when a handle is closed, unless there is something to commit. If it is
    /// not the last handle that writes, only a guard on demand is given back.
    pub fn end_guard(&self, open: &OpenFile, last_writer: bool) {
        let is_settled = |state: &FileState| state.changes.is_none() || state.latched.is_some();
        if last_writer && open.state.try_read().is_some_and(|state| is_settled(&state)) {
            self.unguard(open);
        } else if open.is_on_demand()
            && let Some(state) = open.state.try_write()
        {
            self.give_back(open, &state);
        }
    }

    /// Gives the guard back after a commit that no program waits for: other daemons can take it
    /// before the next write of a program of this daemon.
    pub fn leave_to_others(&self, open: &OpenFile) {
        if open.is_on_demand() {
            let state = open.state.write();
            self.give_back(open, &state);
            if open.guard.lock().is_none() {
                std::thread::sleep(LEFT_TO_OTHERS);
            }
        }
    }

    /// Commits what programs have written to a file, before one of them gives a lock back. From
    /// then on the guard is taken on demand. An error of the commit stays with the file: the next
    /// write, fsync or close returns it.
    pub fn publish(&self, open: &OpenFile) {
        let Some(handle) = open.guard.lock().clone() else { return };
        let mut on_demand = open.on_demand.lock();
        if on_demand.is_none() {
            match show(&*handle) {
                Ok(true) => *on_demand = Some(handle),
                failed => tracing::warn!(?failed, "a file that programs lock stays reserved"),
            }
        }
        drop(on_demand);
        if let Err(fault) = self.commit_and_give_back(open) {
            self.tell_if_full(&fault);
            tracing::error!(path = %self.shown_path(open.node).display(), errno = fault.errno(), "commit before an unlock failed");
        }
    }

    fn commit_and_give_back(&self, open: &OpenFile) -> Inner<()> {
        let is_changed = open.state.try_read().is_none_or(|state| state.changes.is_some());
        self.flush_before_lease(open);
        // An unlock after reading needs no lease.
        let change = is_changed.then(|| self.lease.change()).transpose()?;
        let mut state = open.state.write();
        let is_due = state.changes.is_some() && state.latched.is_none() && self.is_shown(open);
        let committed = match change {
            Some(_) if is_due => self.commit_state(open, &mut state, Durability::Ordered),
            _ => Ok(()), // what another program has begun to write meanwhile is committed later
        };
        self.give_back(open, &state);
        committed
    }
}
