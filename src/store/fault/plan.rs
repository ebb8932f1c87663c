//! Which calls fail, and how many there have been.
//!
//! Rules that hold here
//! * A failed call counts like any other, so that the numbers of a run with a fault and of one
//!   without are the same up to it.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::store::{Call, Stat, Timestamp};

/// Which calls are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// All of them.
    All,
    /// Those that change the store or make it durable ([`Call::is_change`]).
    Changes,
    /// Those of one kind.
    Of(Call),
}

impl Calls {
    fn include(self, call: Call) -> bool {
        match self {
            Calls::All => true,
            Calls::Changes => call.is_change(),
            Calls::Of(one) => one == call,
        }
    }
}

/// Which of the calls that are meant fail, counted from 1 since the plan was made or
/// [`FaultPlan::reset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This one.
    Nth(u64),
    /// This one and all later ones.
    From(u64),
}

/// A failure to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which calls.
    pub calls: Calls,
    /// Which of them.
    pub when: When,
    /// The error that they give (`errno`).
    pub errno: i32,
    /// A write does the first half of its bytes before it fails.
    pub short: bool,
}

/// How locks are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locks {
    /// As the store below gives them.
    #[default]
    Own,
    /// To everybody who asks, so that they bind nobody.
    Everybody,
    /// As NFS does: an exclusive lock only through a handle that is open for writing, else `EBADF`.
    ByAccess,
}

/// What fails, and what has been called.
#[derive(Debug, Default)]
pub struct FaultPlan {
    state: Mutex<PlanState>,
    locks: Mutex<Locks>,
    done: Mutex<Option<Call>>,
    slow: Mutex<Option<(Call, Duration)>>,
    before: Mutex<Option<Before>>,
    loses: AtomicBool,
    /// Of a store that comes through FUSE: the names that were made as hard links.
    through_fuse: Mutex<Option<HashSet<Vec<u8>>>>,
}

/// What is to be done before each call of a kind.
struct Before {
    call: Call,
    act: Arc<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Before {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Before").field("call", &self.call).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct PlanState {
    faults: Vec<Fault>,
    counts: [u64; Call::ALL.len()],
    failed: u64,
}

impl PlanState {
    fn count(&self, calls: Calls) -> u64 {
        Call::ALL
            .iter()
            .filter(|&&call| calls.include(call))
            .map(|&call| self.counts[call as usize])
            .sum()
    }
}

impl FaultPlan {
    /// A plan by which nothing fails: it counts.
    pub fn new() -> Arc<FaultPlan> {
        Arc::new(FaultPlan::default())
    }

    /// A plan with one fault.
    pub fn failing(fault: Fault) -> Arc<FaultPlan> {
        let plan = FaultPlan::new();
        plan.add(fault);
        plan
    }

    /// Adds a fault. Of several that fit a call the first one added counts.
    pub fn add(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// From now on locks are given in this way.
    pub fn give_locks(&self, how: Locks) {
        *self.locks.lock() = how;
    }

    /// From now on `symlink` is done where it fails, too: its answer is lost, as that of a network
    /// filesystem may be.
    pub fn link_all_the_same(&self) {
        *self.done.lock() = Some(Call::Symlink);
    }

    /// From now on writes are done where they fail, too, but for those that are cut short.
    pub fn write_all_the_same(&self) {
        *self.done.lock() = Some(Call::Write);
    }

    /// From now on each call of that kind takes that long before it is done.
    pub fn slow_down(&self, call: Call, time: Duration) {
        *self.slow.lock() = Some((call, time));
    }

    /// From now on `act` is called before each call of that kind is done, in place of an earlier
    /// one: somebody else acts at that moment.
    pub fn before(&self, call: Call, act: impl Fn() + Send + Sync + 'static) {
        *self.before.lock() = Some(Before { call, act: Arc::new(act) });
    }

    /// From now on a flush of a file that fails loses what it was to flush, as Linux does: the
    /// bytes are seen as long as the kernel has room for them, and no later flush brings them to
    /// the disk. Of a store in memory; [`MemStore::evict`](super::super::mem::MemStore::evict).
    pub fn lose_what_is_not_flushed(&self) {
        self.loses.store(true, Ordering::Relaxed);
    }

    pub(super) fn loses(&self) -> bool {
        self.loses.load(Ordering::Relaxed)
    }

    /// From now on the store is as sshfs, exFAT and others are that come through FUSE: names are
    /// not exchanged, a file that has lost its last name while it is open goes on counting one, and
    /// each hard link shows as an inode of its own; a FIFO becomes an empty file, and an error;
    /// times are of whole seconds.
    pub fn come_through_fuse(&self) {
        *self.through_fuse.lock() = Some(HashSet::new());
    }

    pub(super) fn comes_through_fuse(&self) -> bool {
        self.through_fuse.lock().is_some()
    }

    pub(super) fn note_link(&self, name: &[u8]) {
        if let Some(links) = &mut *self.through_fuse.lock() {
            links.insert(name.to_vec());
        }
    }

    /// `stat` as such a store gives it, of the entry `name` or of what is open.
    pub(super) fn show(&self, stat: Stat, name: Option<&[u8]>) -> Stat {
        const ANOTHER: u64 = 1 << 40;
        let through_fuse = self.through_fuse.lock();
        let Some(links) = &*through_fuse else { return stat };
        let is_link = name.is_some_and(|name| links.contains(name));
        let whole = |time: Timestamp| Timestamp { nanos: 0, ..time };
        let [atime, mtime, ctime] = [stat.atime, stat.mtime, stat.ctime].map(whole);
        let stat = Stat { atime, mtime, ctime, ..stat };
        Stat {
            ino: if is_link { stat.ino | ANOTHER } else { stat.ino },
            nlink: stat.nlink.max(1),
            ..stat
        }
    }

    pub(super) fn locks(&self) -> Locks {
        *self.locks.lock()
    }

    /// Drops all faults and sets all counters to 0.
    pub fn reset(&self) {
        *self.state.lock() = PlanState::default();
    }

    /// Drops all faults and goes on counting.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// How many such calls there have been, failed ones too.
    pub fn count(&self, calls: Calls) -> u64 {
        self.state.lock().count(calls)
    }

    /// How many calls have been failed.
    pub fn failed(&self) -> u64 {
        self.state.lock().failed
    }

    /// Counts the call and says how it fails, if it does.
    pub(super) fn next(&self, call: Call) -> Option<Fault> {
        let slow = self.slow.lock().filter(|(slow, _)| *slow == call);
        if let Some((_, time)) = slow {
            std::thread::sleep(time);
        }
        let act = self
            .before
            .lock()
            .as_ref()
            .filter(|before| before.call == call)
            .map(|before| before.act.clone());
        if let Some(act) = act {
            act();
        }
        let mut state = self.state.lock();
        state.counts[call as usize] += 1;
        let fault = state.faults.iter().copied().find(|fault| {
            fault.calls.include(call)
                && match fault.when {
                    When::Nth(n) => state.count(fault.calls) == n,
                    When::From(n) => state.count(fault.calls) >= n,
                }
        })?;
        state.failed += 1;
        Some(fault)
    }

    /// Whether such calls are done where they fail.
    pub(super) fn is_done_all_the_same(&self, call: Call) -> bool {
        *self.done.lock() == Some(call)
    }

    /// [`FaultPlan::pass`], with what the call does.
    pub(super) fn pass_or_do(
        &self,
        call: Call,
        act: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let passed = self.pass(call);
        if passed.is_ok() || self.is_done_all_the_same(call) {
            act()?;
        }
        passed
    }

    /// Counts the call and fails it, if it is to fail.
    pub(super) fn pass(&self, call: Call) -> io::Result<()> {
        match self.next(call) {
            Some(fault) => Err(io::Error::from_raw_os_error(fault.errno)),
            None => Ok(()),
        }
    }
}
