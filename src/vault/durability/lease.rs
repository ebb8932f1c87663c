//! The lease: which of several daemons may change a share at the moment, and whose kernel may cache
//! it.
//!
//! Rules that hold here
//! * The lease is a lock on a constant file of the share ([`LEASE_FILE`]). The daemon that holds it
//!   exclusively may change the share, and its kernel may cache. Daemons that hold it shared may
//!   cache. A daemon without it reads, and its kernel asks each time. So a daemon that changes
//!   anything knows that no other kernel caches.
//! * A daemon that needs the lease and finds it taken holds a shared lock on a second file
//!   ([`WANTED_FILE`]) while it waits. Holders look for such a lock several times a second, make
//!   their kernel drop what it has cached, and then release the lease.
//! * For a second after that the lease is contended for the daemon that has released it: that
//!   daemon holds the lease only during each change, and its kernel does not cache. Two daemons
//!   that both work then pay a lock for each change, and once a second the time until the other one
//!   looks.
//! * A lease that its daemon has not looked after for [`VALID`] is worth nothing: nothing is cached
//!   under it before the next look, and no change begins but by [`Lease::change_locked`]. The
//!   kernel forgets by itself, after [`LEASED`], what it was told until then. So the lease of a
//!   daemon that is stopped, and shows no sign of life to those that want it, is taken over after
//!   [`SILENT`], by removing the file. Only one daemon at a time does that, under a lock on a range
//!   of [`WANTED_FILE`]: another one could remove the file that the first has just locked.
//! * All locks are `fcntl` locks of an open file description: `flock` would give a shared lock up
//!   before it makes an exclusive one of it.
//! * Both are taken through handles that are open for writing, where that is allowed. As long as no
//!   machine has a file open for writing, an NFS server lets each machine answer for it by itself.
//!   No machine then learns of another one's shared lock.
//! * The members are changed under the lease, if a member loses rights, and the time of the lease
//!   file then changes. A daemon that takes the lease and finds another time than before looks for
//!   new manifests before it signs anything.
//! * As long as no thread looks after the lease, as when the vault is being opened or closed, it is
//!   held only during each change.
//! * No promise about contents depends on the lease. If a store loses it, kernels may show what
//!   they have cached for a few seconds, and each commit still checks what it builds on.
//! * A change takes the lease before any lock of the daemon (but see [`Lease::change_locked`]), and
//!   keeps it to its end. The thread that gives the lease up takes none of these locks, and does not
//!   wait for changes: it looks after other shares, too, and the last change in progress releases
//!   the lease.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::store::{Access, Dir, File, Lock, SetTime, Span, Stat, Timestamp};
use crate::vault::durability::lock_files::{is_there, lock_file};
use crate::vault::error::{Fault, Inner};
use crate::vault::types::ALONE;
#[cfg(doc)]
use crate::vault::types::LEASED;

/// Name of the file whose lock is the lease.
pub(crate) const LEASE_FILE: &[u8] = b"+lease";
/// Name of the file whose lock says that a daemon waits for the lease.
pub(crate) const WANTED_FILE: &[u8] = b"+wanted";

/// How long a lease is valid after each look.
const VALID: Duration = Duration::from_secs(2);
/// How long a daemon that waits for the lease must see no sign of life of its holder before it
/// takes the lease over: longer than [`VALID`] and [`LEASED`] together.
const SILENT: Duration = Duration::from_secs(7);
/// Interval of the signs of life of a holder that cannot give the lease up at once.
const SIGNS: Duration = Duration::from_millis(500);
/// How long a change waits for the lease before it fails with `EBUSY`.
const TAKES: Duration = Duration::from_secs(10);
/// How long a daemon counts the lease as contended after another one wanted it.
const CONTENDED: Duration = Duration::from_secs(1);
/// How long after the last change an exclusive lease becomes a shared one, with which other daemons
/// may cache too.
const UNCHANGED: Duration = Duration::from_secs(2);
/// How long after the last request a daemon tries to get a lease in order to cache.
const UNUSED: Duration = Duration::from_secs(2);
/// Intervals at which a waiting change tries again: the first, and the longest.
const FIRST_LOOK: Duration = Duration::from_micros(50);
const LOOKS: Duration = Duration::from_millis(2);
static NEXT_ID: AtomicU64 = AtomicU64::new(0);
/// The next generation of any lease: a number is never used twice.
static NEXT_GENERATION: AtomicU64 = AtomicU64::new(ALONE + 1);

thread_local! {
    /// The leases under which this thread is changing something.
    static CHANGING: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The lease of one share, as this daemon has it.
pub(crate) struct Lease {
    id: u64,
    /// `None` if this daemon alone has the share open.
    root: Option<Arc<dyn Dir>>,
    read_only: bool,
    state: Mutex<State>,
    /// The state has changed.
    turned: Condvar,
    /// One thread of this process at a time gets the lease.
    getting: Mutex<()>,
    /// 0 while the kernel may not cache, [`ALONE`] if this daemon alone has the share open;
    /// otherwise a number that was never used before.
    generation: AtomicU64,
    /// The kernel asked for something since the last look.
    used: AtomicBool,
    /// The time of the last look, in milliseconds since the machine was started, time asleep
    /// included; `u64::MAX` if no thread looks yet, or any more. Then the lease is kept only during
    /// each change.
    looked: AtomicU64,
    /// See [`Lease::sleeps`].
    slept: AtomicU64,
}

struct State {
    held: Option<(Lock, Arc<dyn File>)>,
    /// Changes in progress.
    changing: usize,
    /// The lease is being given up: no change begins but by [`Lease::change_locked`].
    closing: bool,
    /// A change waits until the shared lease is given up.
    surrender: bool,
    /// The kernel may have cached something since it last dropped everything.
    cached: bool,
    contended: Option<Instant>,
    changed: Instant,
    used: Instant,
    /// The last sign of life.
    shown: Instant,
    /// The file of the lease when it was taken last: inode number and time.
    taken: Option<(u64, Timestamp)>,
    /// Another daemon may have changed the members before the lease was taken.
    has_news: bool,
}

impl State {
    fn is_contended(&self) -> bool {
        self.contended.is_some_and(|since| since.elapsed() < CONTENDED)
    }

    /// Shows daemons that want the lease that this one is alive, and cannot give it up yet.
    fn show_life(&mut self) {
        self.shown = Instant::now();
        if let Some((_, file)) = &self.held {
            let _ = file.set_times(SetTime::Omit, SetTime::Now);
        }
    }

    /// Notes a lease that was just taken. Its time has changed if the members have: see
    /// [`Lease::show_life`].
    fn hold(&mut self, how: Lock, file: Arc<dyn File>, stat: &Stat) {
        let taken = (stat.ino, stat.mtime);
        self.has_news |= self.taken.replace(taken) != Some(taken);
        self.held = Some((how, file));
    }

    /// Releases the lease. `contended`: another daemon wants it.
    fn release(&mut self, contended: bool) {
        (self.held, self.closing, self.surrender) = (None, false, false);
        if contended {
            self.contended = Some(Instant::now());
        }
    }

    fn holds(&self, how: Lock) -> bool {
        self.held.as_ref().is_some_and(|(held, _)| *held == how)
    }
}

/// A change in progress: no other daemon changes the share, and no other kernel caches it.
#[must_use]
pub(crate) struct Change<'a>(Option<&'a Lease>);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.0 {
            lease.end_change();
        }
    }
}

impl Lease {
    /// Returns the lease of the share in `root`; without one, this daemon alone has it open.
    pub fn new(root: Option<Arc<dyn Dir>>, read_only: bool) -> Lease {
        let now = Instant::now();
        Lease {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            generation: AtomicU64::new(if root.is_none() { ALONE } else { 0 }),
            root,
            read_only,
            state: Mutex::new(State {
                held: None,
                changing: 0,
                closing: false,
                surrender: false,
                cached: false,
                contended: None,
                changed: now,
                used: now,
                shown: now,
                taken: None,
                has_news: false,
            }),
            turned: Condvar::new(),
            getting: Mutex::new(()),
            used: AtomicBool::new(false),
            looked: AtomicU64::new(u64::MAX),
            slept: AtomicU64::new(0),
        }
    }

    /// Returns whether other daemons may have the share open, so that the lease has to be looked
    /// after.
    pub fn is_needed(&self) -> bool {
        self.root.is_some()
    }

    /// Returns a number that stays the same as long as the kernel may cache what it is told; `None`
    /// if it may not cache now. What was read before a new generation began must not be cached.
    pub fn generation(&self) -> Option<u64> {
        if self.root.is_some() && !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        let now = self.generation.load(Ordering::Acquire);
        (now == ALONE || now > 0 && self.is_valid()).then_some(now)
    }

    /// Returns a number that grows each time that this daemon, or its machine, may have slept for
    /// more than [`VALID`]: a server may have dropped the locks that it had before. `None` until the
    /// next look tells whether it has slept just now: not equal to what is returned later.
    pub fn sleeps(&self) -> Option<u64> {
        // In this order: a sleep is counted before the lease is valid again.
        self.is_valid().then(|| self.slept.load(Ordering::Acquire))
    }

    /// Waits until this daemon may change the share. Until the change ends, further calls by the
    /// same thread return at once.
    ///
    /// # Errors
    /// `EBUSY` if another daemon does not release the lease; those of the store.
    pub fn change(&self) -> Inner<Change<'_>> {
        self.begin(false, TAKES)
    }

    /// Like [`Lease::change`], for a thread that has a lock of this daemon: a change that is in
    /// progress may need that lock, so this one begins although the lease is being given up.
    pub fn change_locked(&self) -> Inner<Change<'_>> {
        self.begin(true, TAKES)
    }

    /// Like [`Lease::change`], but fails with `EBUSY` if the lease cannot be taken at once.
    pub fn change_at_once(&self) -> Inner<Change<'_>> {
        self.begin(false, Duration::ZERO)
    }

    /// Begins a change. Waits for the lease for at most `takes`. `anyway`: begins even while the
    /// lease that this daemon has is being given up.
    fn begin(&self, anyway: bool, takes: Duration) -> Inner<Change<'_>> {
        let Some(root) = &self.root else { return Ok(Change(None)) };
        if CHANGING.with_borrow(|ids| ids.contains(&self.id)) {
            return Ok(Change(None));
        }
        if !self.join(anyway) {
            self.get(&**root, Instant::now() + takes)?;
        }
        CHANGING.with_borrow_mut(|ids| ids.push(self.id));
        Ok(Change(Some(self)))
    }

    /// Shows daemons that want the lease that this one, if it has the lease, is alive. A change of
    /// the members is shown to them in the same way: they look for it when they have the lease.
    pub fn show_life(&self) {
        self.state.lock().show_life();
    }

    /// Shows a sign of life if the last one is old. For a lease that no thread looks after.
    pub fn stay_alive(&self) {
        let mut state = self.state.lock();
        if state.shown.elapsed() >= SIGNS {
            state.show_life();
        }
    }

    /// Returns whether another daemon may have changed the members before this one took the lease.
    pub fn may_have_news(&self) -> bool {
        self.state.lock().has_news
    }

    /// Notes that the members are known as they were when this daemon took the lease.
    pub fn know_news(&self) {
        self.state.lock().has_news = false;
    }

    /// Fails with `EBUSY` if another daemon has taken the lease over. For a caller that has a change
    /// in progress, before it lets go of a lock that must not get to that daemon.
    pub fn check_not_taken_over(&self) -> Inner<()> {
        let held = self.state.lock().held.as_ref().map(|(_, file)| file.clone());
        match (&self.root, held) {
            (Some(root), Some(file)) if !is_there(&**root, LEASE_FILE, &*file)? => {
                Err(Fault::Os(libc::EBUSY))
            }
            _ => Ok(()),
        }
    }

    /// Begins a change if this daemon has an exclusive lease; unless `anyway`, only if the lease is
    /// valid and is not being given up.
    fn join(&self, anyway: bool) -> bool {
        let mut state = self.state.lock();
        let may = state.holds(Lock::Exclusive) && (anyway || !state.closing && self.is_valid());
        if may {
            state.changing += 1;
        }
        may
    }

    /// Gets the lease, and begins a change.
    fn get(&self, root: &dyn Dir, deadline: Instant) -> Inner<()> {
        let one = self.getting.try_lock_until(deadline).ok_or(Fault::Os(libc::EBUSY))?;
        if !self.surrender(deadline)? {
            self.take(root, deadline)?;
        }
        drop(one);
        Ok(())
    }

    /// Makes an exclusive lease of a shared one and begins a change, or waits until a lease that
    /// this daemon cannot change under is given up. Returns whether a change has begun.
    fn surrender(&self, deadline: Instant) -> Inner<bool> {
        let mut state = self.state.lock();
        loop {
            match state.held.take() {
                None => return Ok(false),
                // No thread gives a shared lease up any more.
                Some((Lock::Shared, _)) if self.looked.load(Ordering::Acquire) == u64::MAX => {
                    self.generation.store(0, Ordering::Release);
                    state.surrender = false; // no look does that either
                    return Ok(false);
                }
                Some(held) if state.closing || state.surrender || !self.is_valid() => {
                    state.held = Some(held);
                }
                Some((Lock::Exclusive, file)) => {
                    state.held = Some((Lock::Exclusive, file));
                    state.changing += 1;
                    return Ok(true);
                }
                Some((Lock::Shared, file)) => {
                    let alone = try_lock(&*file, Lock::Exclusive);
                    let how =
                        if matches!(alone, Ok(true)) { Lock::Exclusive } else { Lock::Shared };
                    state.held = Some((how, file));
                    state.surrender = how == Lock::Shared;
                    continue;
                }
            }
            if self.turned.wait_until(&mut state, deadline).timed_out() {
                return Err(Fault::Os(libc::EBUSY));
            }
        }
    }

    /// Takes the lease from the store, and begins a change.
    fn take(&self, root: &dyn Dir, deadline: Instant) -> Inner<()> {
        let (mut wanted, mut pause, mut seen) = (None, FIRST_LOOK, None);
        loop {
            let file = lock_file(root, LEASE_FILE, Lock::Exclusive)?;
            let is_ours = try_lock(&*file, Lock::Exclusive)? && is_there(root, LEASE_FILE, &*file)?;
            let (stat, now) = (file.stat()?, Instant::now());
            if is_ours {
                let mut state = self.state.lock();
                state.hold(Lock::Exclusive, file, &stat);
                state.changing += 1;
                return Ok(());
            }
            let sign = (stat.ino, stat.mtime);
            let (_, since) =
                *seen.insert(seen.filter(|(last, _)| *last == sign).unwrap_or((sign, now)));
            if since.elapsed() >= SILENT && take_over(root, &*file)? {
                continue;
            }
            drop(file);
            if wanted.is_none() && pause > FIRST_LOOK {
                // Opened so that others find even a shared lock on NFS.
                let file = lock_file(root, WANTED_FILE, Lock::Exclusive)?;
                wanted = file.try_lock_span(Some(Lock::Shared), WAITS)?.then_some(file);
            }
            if Instant::now() >= deadline {
                return Err(Fault::Os(libc::EBUSY));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOKS);
        }
    }

    fn end_change(&self) {
        CHANGING.with_borrow_mut(|ids| ids.retain(|id| *id != self.id));
        let mut state = self.state.lock();
        state.changing -= 1;
        state.changed = Instant::now();
        let is_kept = self.looked.load(Ordering::Acquire) != u64::MAX && !state.is_contended();
        if state.changing == 0 && state.closing {
            state.release(true);
        } else if state.changing == 0 && !is_kept && !state.cached && !self.may_cache() {
            state.held = None;
        }
        if state.changing == 0 {
            self.turned.notify_all();
        }
    }

    /// Returns whether the lease was looked after lately.
    fn is_valid(&self) -> bool {
        let looked = self.looked.load(Ordering::Acquire);
        looked == u64::MAX || awake().saturating_sub(looked) < VALID.as_millis() as u64
    }

    /// Returns whether the kernel may cache now.
    pub fn may_cache(&self) -> bool {
        self.generation.load(Ordering::Acquire) > 0
    }

    /// Looks after the lease: gives it up if another daemon wants it, and gets a shared one if the
    /// kernel could use it. `forget` makes the kernel ask before it uses anything that it has
    /// cached.
    ///
    /// # Errors
    /// Those of the store.
    pub fn look_after(&self, forget: impl FnMut()) -> Inner<()> {
        let Some(root) = &self.root else { return Ok(()) };
        // What is seen in a look was so when it began: the machine may sleep meanwhile.
        let (now, was_valid) = (awake(), self.is_valid());
        let looked = self.look_now(&**root, was_valid, forget);
        self.slept.fetch_add(u64::from(!was_valid), Ordering::AcqRel);
        let may_wait = !self.is_valid();
        self.looked.store(now, Ordering::Release);
        if may_wait {
            self.turned.notify_all();
        }
        looked
    }

    fn look_now(&self, root: &dyn Dir, was_valid: bool, mut forget: impl FnMut()) -> Inner<()> {
        let used = self.used.swap(false, Ordering::Relaxed);
        let mut state = self.state.lock();
        if used {
            state.used = Instant::now();
        }
        let Some((how, file)) = state.held.clone() else {
            let pays = state.used.elapsed() < UNUSED && !state.is_contended();
            drop(state);
            if pays && self.take_to_read(root)? {
                self.begin_caching();
            }
            return Ok(());
        };
        let surrender = state.surrender;
        let is_closing = state.closing;
        drop(state);
        if is_closing {
            self.stay_alive();
            return Ok(()); // the last of the changes in progress releases it
        }
        let is_ours = || -> Inner<bool> {
            Ok(was_valid && !is_wanted(root)? && is_there(root, LEASE_FILE, &*file)?)
        };
        let is_ours = is_ours();
        if surrender || !matches!(is_ours, Ok(true)) {
            self.give_up(&mut forget, !surrender);
            return is_ours.map(drop);
        }
        let state = self.state.lock();
        if how == Lock::Exclusive && state.changed.elapsed() >= UNCHANGED && state.changing == 0 {
            if !self.share(state) {
                self.give_up(&mut forget, true);
            }
        } else if !state.is_contended() && !self.may_cache() {
            drop(state);
            self.begin_caching();
        }
        Ok(())
    }

    /// Lets the kernel cache, if there still is a lease.
    fn begin_caching(&self) {
        let mut state = self.state.lock();
        if state.held.is_some() && !state.surrender && !state.closing {
            state.cached = true;
            let new = NEXT_GENERATION.fetch_add(1, Ordering::Relaxed);
            self.generation.store(new, Ordering::Release);
        }
    }

    /// Takes a shared lease if no daemon changes the share, and returns whether it did. A mount
    /// that writes nothing does not create the file.
    fn take_to_read(&self, root: &dyn Dir) -> Inner<bool> {
        let file = match self.read_only {
            // Opened so that the lock can become an exclusive one.
            false => lock_file(root, LEASE_FILE, Lock::Exclusive)?,
            true => match root.open_file(LEASE_FILE, Access::Read) {
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
                other => other?,
            },
        };
        if !try_lock(&*file, Lock::Shared)? || !is_there(root, LEASE_FILE, &*file)? {
            return Ok(false);
        }
        let stat = file.stat()?;
        let mut state = self.state.lock();
        let is_free = state.held.is_none();
        if is_free {
            state.hold(Lock::Shared, file, &stat);
        }
        Ok(is_free)
    }

    /// Makes a shared lease of an exclusive one, with which the kernel may go on caching. Returns
    /// false if another daemon was faster.
    fn share(&self, mut state: MutexGuard<'_, State>) -> bool {
        let Some((how, file)) = &mut state.held else { return true };
        let is_shared = matches!(try_lock(&**file, Lock::Shared), Ok(true));
        if is_shared {
            *how = Lock::Shared;
        }
        is_shared
    }

    /// Makes the kernel drop what it has cached, and releases the lease, or has the last change in
    /// progress release it. `contended`: another daemon wants it.
    fn give_up(&self, forget: &mut impl FnMut(), contended: bool) {
        let mut state = self.state.lock();
        self.generation.store(0, Ordering::Release);
        if state.cached {
            MutexGuard::unlocked(&mut state, forget);
            state.cached = false;
        }
        if state.changing > 0 {
            state.closing = true;
            return;
        }
        state.release(contended);
        self.turned.notify_all();
    }

    /// Called when no thread looks any more, because the share is about to be closed.
    pub fn look_no_more(&self) {
        self.slept.fetch_add(u64::from(!self.is_valid()), Ordering::AcqRel);
        self.looked.store(u64::MAX, Ordering::Release);
        self.turned.notify_all();
    }

    /// Releases the lease of a share that is being closed. The kernel has ended the mount, or drops
    /// what it has cached when it does.
    pub fn end(&self) {
        let mut state = self.state.lock();
        self.generation.store(if self.root.is_some() { 0 } else { ALONE }, Ordering::Release);
        state.release(false);
        self.turned.notify_all();
    }
}

/// Returns the time since the machine was started in milliseconds, time asleep included.
pub(crate) fn awake() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Removes the file of the lease, which `lease` was found to be, and whose holder gives no sign of
/// life. Returns false if another daemon does that now, or has done it.
fn take_over(root: &dyn Dir, lease: &dyn File) -> Inner<bool> {
    let wanted = lock_file(root, WANTED_FILE, Lock::Exclusive)?;
    // Kept until the file is removed.
    let is_alone = match wanted.try_lock_span(Some(Lock::Exclusive), TAKES_OVER) {
        // The file could not be opened for writing: a lease must not be kept for ever for that.
        Err(e) if e.raw_os_error() == Some(libc::EBADF) => true,
        other => other?,
    };
    let may =
        is_alone && is_there(root, WANTED_FILE, &*wanted)? && is_there(root, LEASE_FILE, lease)?;
    if may {
        tracing::warn!("another daemon gives no sign of life; its lease is taken over");
        root.unlink(LEASE_FILE)?;
    }
    Ok(may)
}

/// Returns whether a daemon waits for the lease.
fn is_wanted(root: &dyn Dir) -> Inner<bool> {
    match root.open_file(WANTED_FILE, Access::Read) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e.into()),
        Ok(file) => Ok(file.find_lock(Lock::Exclusive, WHOLE)?.is_some()),
    }
}

/// All offsets of a file.
const WHOLE: Span = Span { first: 0, last: Span::END };
/// The range of [`WANTED_FILE`] that each daemon that waits has locked shared.
const WAITS: Span = Span::one(0);
/// The range of [`WANTED_FILE`] that a daemon has locked exclusively while it takes the lease over.
const TAKES_OVER: Span = Span::one(1);

/// Sets the lock of a handle in one step: if that fails, it has the former lock.
fn try_lock(file: &dyn File, lock: Lock) -> Inner<bool> {
    match file.try_lock_span(Some(lock), WHOLE) {
        // The file could not be opened for writing. It counts as locked, so it is replaced after
        // [`SILENT`].
        Err(e) if e.raw_os_error() == Some(libc::EBADF) => Ok(false),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::store::Call;
    use crate::store::fault::{FaultPlan, FaultStore, Locks};
    use crate::store::mem::MemStore;

    /// Two daemons on one store, the first of which has let its kernel cache.
    fn two() -> (Lease, Lease) {
        two_on(MemStore::new().root())
    }

    fn two_on(store: Arc<dyn Dir>) -> (Lease, Lease) {
        let [one, two] = [(); 2].map(|()| Lease::new(Some(store.clone()), false));
        drop(one.change().unwrap());
        one.look_after(|| {}).unwrap();
        assert!(one.generation().is_some() && two.generation().is_none());
        (one, two)
    }

    #[test]
    fn a_change_waits_until_the_other_kernel_has_forgotten() {
        waits_until_the_other_kernel_has_forgotten(two());
    }

    /// On NFS no daemon learnt that another one waited for its lease: the server had both machines
    /// answer for `+wanted` by themselves. So each lease was taken over after seven seconds, and
    /// the former holder's kernel showed what it had cached for a tenth of a second more.
    #[test]
    fn a_lease_that_is_wanted_on_nfs_is_given_up() {
        let plan = FaultPlan::new();
        plan.give_locks(Locks::ByAccess);
        plan.keep_locks();
        let store = FaultStore::wrap(MemStore::new().root(), plan);
        drop(lock_file(&*store, WANTED_FILE, Lock::Shared).unwrap()); // its creator may write
        waits_until_the_other_kernel_has_forgotten(two_on(store));
    }

    fn waits_until_the_other_kernel_has_forgotten((one, two): (Lease, Lease)) {
        let (tell, told) = channel();
        thread::scope(|scope| {
            let changes = tell.clone();
            let two = &two;
            scope.spawn(move || {
                let _change = two.change().unwrap();
                changes.send("changes").unwrap();
            });
            while one.generation().is_some() {
                assert!(told.try_recv().is_err(), "it changes while the other caches");
                one.look_after(|| tell.send("forgets").unwrap()).unwrap();
            }
            assert_eq!(told.recv(), Ok("forgets"));
            assert_eq!(told.recv(), Ok("changes"));
        });
        // The first one does not try again at once, and the second one may cache.
        two.look_after(|| {}).unwrap();
        one.look_after(|| {}).unwrap();
        assert!(one.generation().is_none() && two.generation().is_some());
    }

    #[test]
    fn a_lease_that_is_not_looked_after_is_not_used() {
        let (one, _two) = two();
        let before = one.generation();
        one.looked.store(awake() - VALID.as_millis() as u64, Ordering::Release);
        assert!(one.generation().is_none() && !one.join(false));
        let mut forgotten = 0;
        one.look_after(|| forgotten += 1).unwrap();
        assert_eq!(forgotten, 1);
        assert!(one.generation().is_none());
        drop(one.change().unwrap());
        one.state.lock().contended = None;
        one.look_after(|| {}).unwrap();
        assert!(one.generation().is_some() && one.generation() != before);
    }

    /// A look that took long made the lease invalid for a moment. What a guard noted then counted one
    /// sleep more than before and after, and the next real sleep was not noticed.
    #[test]
    fn no_sleep_is_missed_after_a_slow_look() {
        let (one, _two) = two();
        let sleep = || one.looked.store(awake() - VALID.as_millis() as u64, Ordering::Release);
        let before = one.sleeps();
        sleep();
        let noted = one.sleeps();
        one.looked.store(awake(), Ordering::Release); // the slow look has ended
        assert_eq!(one.sleeps(), before);
        sleep();
        one.look_after(|| {}).unwrap();
        assert!(one.sleeps() != noted && one.sleeps() != before);
        assert!(before.is_some() && one.sleeps().is_some());
    }

    /// A daemon whose lease had been taken over let go of a file's guard to take it anew. The other
    /// daemon could take it in between, and what was written here was lost.
    #[test]
    fn a_lease_that_was_taken_over_is_noticed() {
        let store = MemStore::new().root();
        let (one, _two) = two_on(store.clone());
        let _change = one.change().unwrap();
        one.check_not_taken_over().unwrap();
        store.unlink(LEASE_FILE).unwrap();
        assert_eq!(one.check_not_taken_over().unwrap_err().errno(), libc::EBUSY);
        drop(lock_file(&*store, LEASE_FILE, Lock::Exclusive).unwrap());
        assert_eq!(one.check_not_taken_over().unwrap_err().errno(), libc::EBUSY);
    }

    /// `flock` gives the shared lock up first. A daemon whose kernel cached had no lock then.
    #[test]
    fn a_lease_that_stays_shared_is_not_lost() {
        let store = MemStore::new();
        let [one, two] = [(); 2].map(|()| Lease::new(Some(store.root()), false));
        for lease in [&one, &two] {
            lease.look_after(|| {}).unwrap();
            assert!(lease.state.lock().holds(Lock::Shared));
        }
        assert!(one.surrender(Instant::now()).is_err());
        two.end();
        let other = store.root().open_file(LEASE_FILE, Access::ReadWrite).unwrap();
        assert!(!try_lock(&*other, Lock::Exclusive).unwrap());
        one.give_up(&mut || {}, false);
        assert!(try_lock(&*other, Lock::Exclusive).unwrap());
    }

    /// A daemon that was being closed waited ten seconds for its own shared lease, because the
    /// thread had ended that gives it up. Then its last commit failed.
    #[test]
    fn a_shared_lease_is_given_up_while_closing() {
        let store = MemStore::new();
        let [one, two] = [(); 2].map(|()| Lease::new(Some(store.root()), false));
        for lease in [&one, &two] {
            lease.look_after(|| {}).unwrap();
        }
        assert!(one.surrender(Instant::now()).is_err());
        one.look_no_more();
        assert!(!one.surrender(Instant::now()).unwrap() && one.generation().is_none());
        assert!(!one.state.lock().surrender, "no later change waits for that");
        two.end();
        assert!(one.change().is_ok());
    }

    /// One thread looks after the leases of all shares. It waited until the changes in progress ended,
    /// such as a `share create` of minutes. Meanwhile the leases of the other shares expired: programs
    /// got EBUSY there, and other daemons took these leases over.
    #[test]
    fn a_look_does_not_wait_for_changes_in_progress() {
        let (one, two) = two();
        let change = one.change().unwrap();
        let (tell, told) = channel();
        let ends = AtomicBool::new(false);
        let (looked, is_kept) = thread::scope(|scope| {
            scope.spawn(|| drop(two.change().unwrap()));
            scope.spawn(|| {
                while !one.state.lock().closing && !ends.load(Ordering::Acquire) {
                    one.look_after(|| {}).unwrap();
                }
                one.look_after(|| {}).unwrap();
                tell.send(()).unwrap();
            });
            let looked = told.recv_timeout(Duration::from_secs(60));
            let is_kept = !one.join(false) && two.state.lock().held.is_none();
            drop(change);
            ends.store(true, Ordering::Release);
            (looked, is_kept)
        });
        assert!(looked.is_ok() && is_kept);
        // The first one may change again, for each change anew.
        drop(one.change().unwrap());
        assert!(one.state.lock().held.is_none());
    }

    /// A look at the store took longer than a lease is valid. A change that began meanwhile was not
    /// told that the lease was looked after again, and failed after ten seconds.
    #[test]
    fn a_change_waits_for_a_slow_look_only() {
        let (plan, slow) = (FaultPlan::new(), Arc::new(AtomicBool::new(false)));
        let lease = Lease::new(Some(FaultStore::wrap(MemStore::new().root(), plan.clone())), false);
        drop(lease.change().unwrap());
        lease.look_after(|| {}).unwrap();
        let is_slow = slow.clone();
        plan.before(Call::OpenFile, move || {
            while is_slow.load(Ordering::Acquire) {
                thread::yield_now();
            }
        });
        slow.store(true, Ordering::Release);
        thread::scope(|scope| {
            let look = scope.spawn(|| lease.look_after(|| {}));
            while lease.generation().is_some() {
                thread::yield_now();
            }
            let change = scope.spawn(|| lease.change().map(drop));
            while !lease.getting.is_locked() {
                thread::yield_now();
            }
            slow.store(false, Ordering::Release);
            look.join().unwrap().unwrap();
            lease.look_after(|| {}).unwrap();
            change.join().unwrap().unwrap();
        });
    }

    /// Waits, but not for long, until `is` is true.
    fn hope(is: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is() && begun.elapsed() < Duration::from_millis(500) {
            thread::yield_now();
        }
    }

    /// Two daemons had waited for the lease of a silent one. The second to remove its file removed
    /// the one that the first had just locked, and then both changed the share at the same time.
    #[test]
    fn a_silent_lease_is_taken_over_by_one_daemon() {
        let store = MemStore::new();
        let silent = lock_file(&*store.root(), LEASE_FILE, Lock::Exclusive).unwrap();
        assert!(try_lock(&*silent, Lock::Exclusive).unwrap());
        let [removing, inside, most] = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
        thread::scope(|scope| {
            for _ in 0..2 {
                let (plan, others) = (FaultPlan::new(), (removing.clone(), inside.clone()));
                plan.before(Call::Unlink, move || {
                    // The first one lets the other one take the lease, if that can.
                    if others.0.fetch_add(1, Ordering::AcqRel) == 0 {
                        hope(|| others.1.load(Ordering::Acquire) > 0);
                    }
                });
                let root = FaultStore::wrap(store.root(), plan);
                let (inside, most) = (&inside, &most);
                scope.spawn(move || {
                    let lease = Lease::new(Some(root), false);
                    let Ok(_change) = lease.change() else { return };
                    most.fetch_max(inside.fetch_add(1, Ordering::AcqRel) + 1, Ordering::AcqRel);
                    hope(|| inside.load(Ordering::Acquire) > 1);
                    inside.fetch_sub(1, Ordering::AcqRel);
                });
            }
        });
        assert_eq!(most.load(Ordering::Acquire), 1);
    }

    #[test]
    fn a_contended_lease_is_held_only_for_the_change() {
        let (one, two) = two();
        one.state.lock().contended = Some(Instant::now());
        one.give_up(&mut || {}, true);
        drop(one.change().unwrap());
        assert!(one.state.lock().held.is_none());
        assert!(two.change().is_ok());
    }
}
