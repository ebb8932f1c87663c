//! The vault's lock: a kernel lock (`flock`) on the share's root directory.
//!
//! Rules that hold here
//! * A directory cannot be replaced by a sync tool, and a lock on it leaves no file behind. A crash
//!   frees the lock. The lock follows the directory when that is renamed.
//! * On stores where such a lock does not reach every machine, a lock on the file `+lock` is held
//!   too. Its bytes are constant; it is never rewritten and never removed, so a sync tool finds
//!   nothing to do with it.
//! * A server drops the locks of a machine that sleeps for long, or that it cannot reach. So after a
//!   pause the holder takes the lock by a new handle, or stops writing if another daemon has it.
//! * If another program removes the lock file, a daemon of another machine can open the vault. The
//!   holder polls for that. It takes the lock again, or stops writing if another daemon has it.
//! * Concurrent writers hold shared locks. The kernel's list of locks names the holders; nothing
//!   about them is written anywhere.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::store::{Dir, File, Lock};
use crate::vault::core::machine::host;
use crate::vault::durability::lease::awake;
use crate::vault::durability::lock_files::{is_there, lock_file};
use crate::vault::error::{Inner, LockHolder};

/// Name of the lock file.
pub(crate) const LOCK_FILE: &[u8] = b"+lock";

/// Clock ticks per second in `/proc/PID/stat`, on every architecture that kithfs runs on.
const TICKS: u64 = 100;

/// A held lock.
pub(crate) struct VaultLock {
    root: Arc<dyn Dir>,
    how: Lock,
    /// A handle of the root for the lock alone.
    _dir: Arc<dyn Dir>,
    /// The lock file, where the store needs one.
    file: Option<Arc<dyn File>>,
    /// When the lock was last known to be held, by [`awake`].
    looked: u64,
}

/// Milliseconds without a look at the lock after which the store may have dropped it. Servers wait
/// for at least half a minute. Not less than needed: an exclusive lock is given up for a moment to be
/// taken again, and another daemon may be faster.
const MAY_BE_LOST: u64 = 20_000;

/// How long an attempt to take the lock is retried if no holder is visible (another process may
/// hold it for a moment, in [`holders`]), and the poll interval.
const LOOKS_TAKE: Duration = Duration::from_secs(1);
const LOOKS_ASKED: Duration = Duration::from_millis(5);

/// Outcome of an attempt to take the lock.
pub(crate) enum Attempt {
    Held(VaultLock),
    /// Another process holds it, exclusively or shared.
    Taken(LockHolder, Lock),
}

/// The processes that have a vault open for writing.
#[derive(Default)]
pub(crate) struct Holders {
    /// The one that has it open exclusively.
    pub alone: Option<LockHolder>,
    /// Those that share it, the earliest first.
    pub shared: Vec<LockHolder>,
}

/// Takes the lock for this process, exclusively or shared.
pub(crate) fn take(root: &Arc<dyn Dir>, how: Lock) -> Inner<Attempt> {
    let begun = Instant::now();
    loop {
        if let Some(lock) = attempt(root, how)? {
            return Ok(Attempt::Held(lock));
        }
        let Holders { alone, shared } = listed(&**root);
        let alone = alone.map(|holder| (holder, Lock::Exclusive));
        let shared = shared.into_iter().next().map(|holder| (holder, Lock::Shared));
        match alone.or(shared) {
            Some((holder, held)) => return Ok(Attempt::Taken(holder, held)),
            None if begun.elapsed() < LOOKS_TAKE => std::thread::sleep(LOOKS_ASKED),
            None => {
                let is_shared = how == Lock::Exclusive && attempt(root, Lock::Shared)?.is_some();
                let held = if is_shared { Lock::Shared } else { Lock::Exclusive };
                return Ok(Attempt::Taken(unknown(), held));
            }
        }
    }
}

fn attempt(root: &Arc<dyn Dir>, how: Lock) -> Inner<Option<VaultLock>> {
    let looked = awake();
    let dir = root.reopen()?;
    let of_directory = match dir.try_lock(how) {
        Ok(false) => return Ok(None),
        Ok(true) => true,
        Err(e) if is_unsupported(&e) => false,
        Err(e) => return Err(e.into()),
    };
    let file = match of_directory && root.directory_locks_suffice() {
        true => None,
        false => match lock_constant(&**root, how)? {
            Some(file) => Some(file),
            None => return Ok(None),
        },
    };
    Ok(Some(VaultLock { root: root.clone(), how, _dir: dir, file, looked }))
}

/// Returns whether the error means that the store has no locks on directories.
fn is_unsupported(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().unwrap_or(0);
    [libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL, libc::ENOLCK, libc::EBADF].contains(&errno)
}

/// Locks the lock file; `None` if another process holds it.
fn lock_constant(root: &dyn Dir, how: Lock) -> Inner<Option<Arc<dyn File>>> {
    loop {
        let file = lock_file(root, LOCK_FILE, how)?;
        if !file.try_lock(how)? {
            return Ok(None);
        }
        // Another program may have removed the file between the open and the lock: then this lock
        // protects nothing.
        if is_there(root, LOCK_FILE, &*file)? {
            return Ok(Some(file));
        }
    }
}

/// Returns the processes that have the vault open for writing now.
pub(crate) fn holders(root: &Arc<dyn Dir>) -> Inner<Holders> {
    let mut holders = listed(&**root);
    if holders.alone.is_none() && holders.shared.is_empty() && !root.directory_locks_suffice() {
        // The holder may be on another machine, so the lock is taken for a moment. An opener that
        // meets that retries.
        let file = match crate::vault::durability::lock_files::open_to_lock(&**root, LOCK_FILE) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(holders),
            other => other?,
        };
        if !file.try_lock(Lock::Shared)? {
            holders.alone = Some(unknown());
        } else if matches!(file.try_lock(Lock::Exclusive), Ok(false)) {
            holders.shared.push(unknown());
        }
    }
    Ok(holders)
}

/// Returns whether any process holds the lock now, exclusively or shared.
pub(crate) fn is_held(root: &Arc<dyn Dir>) -> Inner<bool> {
    let Holders { alone, shared } = holders(root)?;
    Ok(alone.is_some() || !shared.is_empty())
}

/// Returns the holders that the kernel lists: processes of this machine.
fn listed(root: &dyn Dir) -> Holders {
    let locks = root.locks().unwrap_or_else(|error| {
        tracing::debug!("cannot list the holders of the vault's lock: {error}");
        Vec::new()
    });
    let mut holders = Holders::default();
    for (pid, how) in locks {
        let holder = LockHolder { host: host(), pid, since_unix: begun(pid).unwrap_or(0) };
        match how {
            Lock::Exclusive => holders.alone = Some(holder),
            Lock::Shared => holders.shared.push(holder),
        }
    }
    holders.shared.sort_by_key(|holder| (holder.since_unix, holder.pid));
    holders
}

/// Returns the holder for a process of another machine, or one that this process cannot see.
fn unknown() -> LockHolder {
    LockHolder { host: String::new(), pid: 0, since_unix: 0 }
}

/// Returns when a process began, in seconds since 1970.
fn begun(pid: u32) -> Option<i64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks: u64 = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs() as i64;
    Some(now - boot.tv_sec + (ticks / TICKS) as i64)
}

impl VaultLock {
    /// Creates and locks the lock file again if another program has removed it, and locks it again
    /// if the store may have dropped the lock since the last call. Returns true if the file was
    /// created, false if another daemon has the lock. Returns `None` if the lock is held as before,
    /// if it needs no file, or if the store does not tell.
    pub fn taken_anew(&mut self) -> Option<Inner<bool>> {
        let file = self.file.as_ref()?;
        let now = awake();
        match is_there(&*self.root, LOCK_FILE, &**file) {
            Ok(true) if now.saturating_sub(self.looked) > MAY_BE_LOST => {
                let locked = self.lock_again();
                if matches!(locked, Ok(true)) {
                    self.looked = now;
                    return None;
                }
                Some(locked)
            }
            Ok(true) => {
                self.looked = now;
                None
            }
            Ok(false) => Some(lock_constant(&*self.root, self.how).map(|locked| match locked {
                Some(file) => {
                    self.file = Some(file);
                    true
                }
                None => false,
            })),
            Err(_) => None,
        }
    }

    /// Notes that this daemon runs. Called after each part of the background's work, as only a pause
    /// counts, and not the time that the work takes. A longer pause stays to be looked at.
    pub fn note_running(&mut self) {
        let now = awake();
        if now.saturating_sub(self.looked) <= MAY_BE_LOST {
            self.looked = now;
        }
    }

    /// Locks the lock file by a new handle: the kernel may take a lock for held by the former one
    /// that the server has dropped. Returns false if another daemon has the lock.
    fn lock_again(&mut self) -> Inner<bool> {
        let file = lock_file(&*self.root, LOCK_FILE, self.how)?;
        if file.try_lock(self.how)? {
            self.file = Some(file);
            return Ok(true);
        }
        // An exclusive lock that is still held refuses the new one.
        self.file = Some(file.clone());
        let begun = Instant::now();
        while !file.try_lock(self.how)? {
            // Another process may hold it for a moment, in `holders`.
            if begun.elapsed() >= LOOKS_TAKE {
                return Ok(false);
            }
            std::thread::sleep(LOOKS_ASKED);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Span;
    use crate::store::fault::{FaultPlan, FaultStore, Locks};
    use crate::store::mem::MemStore;

    /// A store as a machine sees it that needs the lock file.
    fn by_access(store: &MemStore) -> Arc<dyn Dir> {
        let plan = FaultPlan::new();
        plan.give_locks(Locks::ByAccess);
        FaultStore::wrap(store.root(), plan)
    }

    /// A lock as its holder has it after a sleep in which the server has dropped it.
    fn dropped(store: &MemStore, how: Lock) -> VaultLock {
        let Attempt::Held(mut lock) = take(&by_access(store), how).unwrap() else { unreachable!() };
        let all = Span { first: 0, last: Span::END };
        lock.file.as_ref().unwrap().try_lock_span(None, all).unwrap();
        lock.looked -= MAY_BE_LOST + 1;
        lock
    }

    /// A server had dropped the vault's lock of a machine that slept, and an exclusive mount or
    /// `fsck --repair` had begun on another one. The first daemon went on writing.
    #[test]
    fn a_lock_that_the_server_dropped_is_noticed() {
        for (hers, his) in [
            (Lock::Shared, Lock::Exclusive),
            (Lock::Exclusive, Lock::Exclusive),
            (Lock::Exclusive, Lock::Shared),
        ] {
            let store = MemStore::new();
            let mut lock = dropped(&store, hers);
            let Attempt::Held(other) = take(&by_access(&store), his).unwrap() else {
                panic!("the lock was dropped")
            };
            assert!(matches!(lock.taken_anew(), Some(Ok(false))), "{hers:?} {his:?}");
            assert!(matches!(lock.taken_anew(), Some(Ok(false))), "it stays so");
            drop(other);
        }
    }

    /// Nobody has taken the lock meanwhile, or it was not dropped at all.
    #[test]
    fn a_lock_is_held_again_after_a_sleep() {
        for how in [Lock::Shared, Lock::Exclusive] {
            let store = MemStore::new();
            let mut lock = dropped(&store, how);
            for _ in 0..2 {
                assert!(lock.taken_anew().is_none());
                let other = take(&by_access(&store), Lock::Exclusive).unwrap();
                assert!(matches!(other, Attempt::Taken(..)), "{how:?}");
                lock.looked -= MAY_BE_LOST + 1;
            }
        }
    }

    /// A tick of the background that took longer than five seconds counted as a sleep: the exclusive
    /// lock was given up for a moment, in which another daemon could open the vault.
    #[test]
    fn a_lock_is_kept_while_the_background_works() {
        let store = MemStore::new();
        let taken = take(&by_access(&store), Lock::Exclusive).unwrap();
        let Attempt::Held(mut lock) = taken else { unreachable!() };
        let before = Arc::downgrade(lock.file.as_ref().unwrap());
        for _ in 0..3 {
            lock.looked -= MAY_BE_LOST * 2 / 3;
            lock.note_running();
            lock.looked -= MAY_BE_LOST * 2 / 3;
            assert!(lock.taken_anew().is_none());
            assert!(before.strong_count() > 0);
        }
        lock.looked -= MAY_BE_LOST + 1;
        lock.note_running();
        assert!(lock.taken_anew().is_none());
        assert_eq!(before.strong_count(), 0, "it has slept");
    }

    #[test]
    fn this_process_has_begun_before_now() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        let begun = begun(std::process::id()).unwrap();
        assert!(begun <= now + 1 && begun > now - 24 * 3600, "{begun} {now}");
        assert_eq!(super::begun(u32::MAX), None);
    }
}
