//! Which calls fail, and how many calls there were.
//!
//! Rules that hold here
//! * A failed call counts like any other, so the numbers of a run with a fault and of one without
//!   are the same up to the fault.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::store::{Call, Stat, Timestamp};

/// Selects calls.
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

/// Which of the selected calls fail, counted from 1 since the plan was made or since
/// [`FaultPlan::reset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This one.
    Nth(u64),
    /// This one and all later ones.
    From(u64),
}

/// A planned failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which calls.
    pub calls: Calls,
    /// Which of them.
    pub when: When,
    /// The error that they return (`errno`).
    pub errno: i32,
    /// Whether a write writes the first half of its bytes before it fails.
    pub short: bool,
}

/// How locks behave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locks {
    /// As in the store below.
    #[default]
    Own,
    /// Every request is granted, so locks protect nothing.
    Everybody,
    /// As on NFS, with each opener on a machine of its own: a lock on a directory excludes no one,
    /// and an exclusive lock on a file needs a handle that is open for writing, otherwise `EBADF`.
    /// A lock on a whole file is a lock on the range of all its offsets.
    ByAccess,
}

/// The planned faults, and the counters of calls.
#[derive(Debug, Default)]
pub struct FaultPlan {
    state: Mutex<PlanState>,
    locks: Mutex<Locks>,
    done: Mutex<Option<Call>>,
    slow: Mutex<Option<(Call, Duration)>>,
    before: Mutex<Option<Before>>,
    loses: AtomicBool,
    keeps_pages: AtomicBool,
    keeps_locks: AtomicBool,
    /// The files that handles have open for writing, by inode number, if `keeps_locks` is set.
    written: Mutex<HashMap<u64, Weak<()>>>,
    /// Names of objects that may not be opened.
    forbidden: Mutex<HashSet<Vec<u8>>>,
    /// For a store behind FUSE: the names that were created as hard links.
    through_fuse: Mutex<Option<HashSet<Vec<u8>>>>,
}

/// An action to run before each call of a kind.
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
    /// Creates a plan without faults: it only counts.
    pub fn new() -> Arc<FaultPlan> {
        Arc::new(FaultPlan::default())
    }

    /// Creates a plan with one fault.
    pub fn failing(fault: Fault) -> Arc<FaultPlan> {
        let plan = FaultPlan::new();
        plan.add(fault);
        plan
    }

    /// Adds a fault. If several select a call, the first one added counts.
    pub fn add(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Makes every open of an object with this name fail with `EACCES` from now on.
    pub fn forbid(&self, name: &[u8]) {
        self.forbidden.lock().insert(name.to_vec());
    }

    /// Ends [`FaultPlan::forbid`].
    pub fn allow(&self, name: &[u8]) {
        self.forbidden.lock().remove(name);
    }

    /// Fails with `EACCES` if objects with this name cannot be opened.
    pub(super) fn check_allowed(&self, name: &[u8]) -> io::Result<()> {
        match self.forbidden.lock().contains(name) {
            true => Err(io::Error::from_raw_os_error(libc::EACCES)),
            false => Ok(()),
        }
    }

    /// Sets how locks behave from now on.
    pub fn give_locks(&self, how: Locks) {
        *self.locks.lock() = how;
    }

    /// Makes failing `symlink` calls take effect from now on: only their answers are lost, as on a
    /// network filesystem.
    pub fn link_all_the_same(&self) {
        *self.done.lock() = Some(Call::Symlink);
    }

    /// Makes failing writes take effect from now on, except those that are cut short.
    pub fn write_all_the_same(&self) {
        *self.done.lock() = Some(Call::Write);
    }

    /// Delays each call of that kind by this duration from now on.
    pub fn slow_down(&self, call: Call, time: Duration) {
        *self.slow.lock() = Some((call, time));
    }

    /// Runs `act` before each call of that kind from now on, in place of an earlier action. This
    /// imitates a concurrent change at that moment.
    pub fn before(&self, call: Call, act: impl Fn() + Send + Sync + 'static) {
        *self.before.lock() = Some(Before { call, act: Arc::new(act) });
    }

    /// Makes a failing flush of a file lose the data that it was to flush, as on Linux: the bytes are
    /// visible as long as the kernel has memory for them, and no later flush writes them to the disk.
    /// For a store in memory; see
    /// [`MemStore::evict`](super::super::mem::MemStore::evict).
    pub fn lose_what_is_not_flushed(&self) {
        self.loses.store(true, Ordering::Relaxed);
    }

    pub(super) fn loses(&self) -> bool {
        self.loses.load(Ordering::Relaxed)
    }

    /// Makes a handle that is open for writing keep what it has read until it writes, as NFS does: only
    /// [`File::read_from_store`](super::super::File::read_from_store) shows what other handles write.
    pub fn keep_pages(&self) {
        self.keeps_pages.store(true, Ordering::Relaxed);
    }

    pub(super) fn keeps_pages(&self) -> bool {
        self.keeps_pages.load(Ordering::Relaxed)
    }

    /// Makes every handle from now on behave as on NFS, on a machine of its own. As long as no handle is
    /// open for writing, each machine may answer for a file by itself (the server has given it a
    /// delegation). A lock is then known to its machine alone, and no other one finds it.
    pub fn keep_locks(&self) {
        self.keeps_locks.store(true, Ordering::Relaxed);
    }

    /// Notes a handle that is open for writing, as long as the returned value exists.
    pub(super) fn note_writer(&self, ino: impl FnOnce() -> Option<u64>) -> Option<Arc<()>> {
        let ino = self.keeps_locks.load(Ordering::Relaxed).then(ino)??;
        let mut written = self.written.lock();
        let writer = written.get(&ino).and_then(Weak::upgrade).unwrap_or_default();
        written.insert(ino, Arc::downgrade(&writer));
        Some(writer)
    }

    /// Returns whether a lock on a file is known to the server.
    pub(super) fn shows_locks(&self, ino: impl FnOnce() -> Option<u64>) -> bool {
        let is_written =
            |ino| self.written.lock().get(&ino).is_some_and(|it| it.strong_count() > 0);
        !self.keeps_locks.load(Ordering::Relaxed) || ino().is_some_and(is_written)
    }

    /// Makes the store behave like sshfs, exFAT and others behind FUSE from now on:
    ///
    /// * a rename can neither exchange names nor leave a whiteout;
    /// * a file that lost its last name while it is open still has a link count of one;
    /// * a name that was made by `link` has another inode number than the file;
    /// * `mknod` fails and leaves an empty file;
    /// * times have whole seconds.
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

    /// Returns `stat`, changed if the store behaves like one behind FUSE. `name` is the entry's
    /// name, or `None` for an open object.
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

    /// Removes all faults and keeps counting.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// Returns how many such calls there were, including failed ones.
    pub fn count(&self, calls: Calls) -> u64 {
        self.state.lock().count(calls)
    }

    /// Returns how many calls were failed.
    pub fn failed(&self) -> u64 {
        self.state.lock().failed
    }

    /// Delays the call and runs its action, as planned. Then counts it and returns its fault, if
    /// any.
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

    /// Returns whether such calls are performed although they fail.
    pub(super) fn is_done_all_the_same(&self, call: Call) -> bool {
        *self.done.lock() == Some(call)
    }

    /// Calls [`FaultPlan::pass`], and `act` unless the call fails without taking effect.
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

    /// Counts the call and fails it if a fault is planned.
    pub(super) fn pass(&self, call: Call) -> io::Result<()> {
        match self.next(call) {
            Some(fault) => Err(io::Error::from_raw_os_error(fault.errno)),
            None => Ok(()),
        }
    }
}
