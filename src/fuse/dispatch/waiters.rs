//! Programs that wait for a lock, or for the kernel to drop pages that are older than their lock.
//!
//! Rules that hold here
//! * A program that waits occupies no thread that serves requests: the unlock that it waits for may
//!   need that thread. All programs that wait share one thread, which exists while there are any.
//! * The lock may be held in another mount, whose unlock nobody reports. So the thread asks again
//!   and again, at longer and longer intervals, and at once after each unlock in this mount.
//! * A program gets the answer about its lock once the kernel has dropped the pages that another
//!   mount has overwritten before. The kernel may need other requests for that, so that thread
//!   waits for it.
//! * A program that is interrupted gets `EINTR`, also if the kernel's INTERRUPT overtakes the request
//!   for the lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::fuse::dispatch::dispatcher::LockCall;
use crate::fuse::ops::{Errno, NodeId, Result};
use crate::fuse::protocol::request::Header;
use crate::vault::Handle;

/// First and longest interval between two attempts.
const SOON: Duration = Duration::from_millis(1);
const LATE: Duration = Duration::from_millis(50);

/// How many interrupts of unknown requests are remembered. Most are of requests that were answered
/// meanwhile.
const EARLY_MAX: usize = 64;

/// Called once with the result, from any thread.
pub type Reply = Box<dyn FnOnce(Result<()>) + Send>;

/// Programs that wait for a lock. Dropping this value ends their waits.
pub struct Waiters {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The operations that the thread calls. Neither may panic.
pub trait TryLock: Send + Sync {
    /// Tries to get a lock; returns whether it is granted.
    fn try_lock(&self, call: &LockCall) -> Result<bool>;
    /// Makes the kernel drop the pages of a file that are older than what is committed.
    fn drop_pages(&self, node: NodeId, handle: Handle);
}

/// A request, by its number, and its file.
#[derive(Clone, Copy)]
pub struct Request {
    pub unique: u64,
    pub node: NodeId,
}

impl From<&Header> for Request {
    fn from(header: &Header) -> Request {
        Request { unique: header.unique, node: header.node }
    }
}

struct Shared {
    locks: Box<dyn TryLock>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiter>,
    /// Interrupted requests that have not arrived.
    early: VecDeque<u64>,
    /// A lock was removed, or a program has begun to wait or was interrupted.
    poked: bool,
    running: bool,
    ended: bool,
}

struct Waiter {
    request: Request,
    call: LockCall,
    /// It has the lock, and waits for the pages to be dropped.
    granted: bool,
    interrupted: bool,
    reply: Reply,
}

impl State {
    /// Returns the error of a wait that has ended without a lock.
    fn over(&self) -> Errno {
        Errno::new(if self.ended { libc::ENOTCONN } else { libc::EINTR })
    }
}

impl Waiters {
    /// Returns waiters for the locks that `locks` grants.
    pub fn new(locks: Box<dyn TryLock>) -> Waiters {
        let shared = Shared { locks, state: Mutex::default(), changed: Condvar::new() };
        Waiters { shared: Arc::new(shared), thread: Mutex::default() }
    }

    /// Calls `reply` when the lock is granted and the pages are dropped, the program is
    /// interrupted, the session ends, or an error occurs. `granted`: the program has the lock, and
    /// waits for the pages.
    pub fn wait(&self, request: Request, call: LockCall, granted: bool, reply: Reply) {
        let mut thread = self.thread.lock();
        let mut state = self.shared.state.lock();
        let early = state.early.iter().position(|&early| early == request.unique);
        let is_early = early.is_some_and(|at| state.early.remove(at).is_some());
        if state.ended || is_early && !granted {
            let over = state.over();
            drop(state);
            return reply(Err(over));
        }
        state.waiting.push_back(Waiter { request, call, granted, interrupted: false, reply });
        state.poked = true;
        if state.running {
            self.shared.changed.notify_one();
            return;
        }
        let shared = self.shared.clone();
        let spawned =
            thread::Builder::new().name("kithfs-locks".into()).spawn(move || shared.run());
        match spawned {
            Ok(handle) => (*thread, state.running) = (Some(handle), true),
            Err(error) => {
                tracing::error!(%error, "cannot start a thread for programs that wait for locks");
                let waiter = state.waiting.pop_back();
                drop(state);
                waiter.into_iter().for_each(|it| (it.reply)(Err(Errno::new(libc::ENOLCK))));
            }
        }
    }

    /// Ends the wait of the request `unique`, which may not have arrived yet.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.shared.state.lock();
        match state.waiting.iter_mut().find(|waiter| waiter.request.unique == unique) {
            Some(waiter) => {
                waiter.interrupted = true;
                state.poked = true;
                self.shared.changed.notify_one();
            }
            None => {
                if state.early.len() == EARLY_MAX {
                    state.early.pop_front();
                }
                state.early.push_back(unique);
            }
        }
    }

    /// Makes the thread try again at once, because a lock may have been removed in this mount.
    pub fn poke(&self) {
        let mut state = self.shared.state.lock();
        if !state.waiting.is_empty() {
            state.poked = true;
            self.shared.changed.notify_one();
        }
    }

    /// Ends all waits, those that would begin later too: the session has ended.
    pub fn end(&self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_one();
    }
}

impl Drop for Waiters {
    fn drop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.get_mut().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread for locks has panicked");
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut pause = SOON;
        loop {
            let waiting: Vec<u64> = {
                let mut state = self.state.lock();
                if state.ended {
                    state.waiting.iter_mut().for_each(|waiter| waiter.interrupted = true);
                }
                state.poked = false;
                state.waiting.iter().map(|it| it.request.unique).collect()
            };
            waiting.into_iter().for_each(|unique| self.attempt(unique));
            let mut state = self.state.lock();
            if state.waiting.is_empty() {
                state.running = false;
                return;
            }
            if !state.poked && !state.ended {
                self.changed.wait_for(&mut state, pause);
            }
            pause = if state.poked { SOON } else { LATE.min(pause * 2) };
        }
    }

    /// Tries to get the lock for a request, and answers it if that succeeds or the wait is over.
    fn attempt(&self, unique: u64) {
        let find = |state: &State| state.waiting.iter().position(|it| it.request.unique == unique);
        let (call, node, granted, over) = {
            let state = self.state.lock();
            let Some(it) = find(&state).map(|at| &state.waiting[at]) else { return };
            let is_over = it.interrupted && !it.granted;
            (it.call, it.request.node, it.granted, is_over.then(|| state.over()))
        };
        let result = match over {
            Some(error) => Err(error),
            None if granted => Ok(()),
            None => match self.locks.try_lock(&call) {
                Ok(false) => return,
                other => other.map(|_| ()),
            },
        };
        if result.is_ok() {
            self.locks.drop_pages(node, call.handle);
        }
        let waiter = {
            let mut state = self.state.lock();
            find(&state).and_then(|at| state.waiting.remove(at))
        };
        if let Some(waiter) = waiter {
            (waiter.reply)(result);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::store::{Lock, Span};
    use crate::vault::LockRequest;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Waiters for a lock, whether the lock is free, and the number of attempts.
    fn waiters() -> (Waiters, Arc<AtomicBool>, Arc<AtomicUsize>) {
        let (free, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let locks = Locks { free: free.clone(), tries: tries.clone() };
        (Waiters::new(Box::new(locks)), free, tries)
    }

    struct Locks {
        free: Arc<AtomicBool>,
        tries: Arc<AtomicUsize>,
    }

    impl TryLock for Locks {
        fn try_lock(&self, _: &LockCall) -> Result<bool> {
            self.tries.fetch_add(1, Ordering::SeqCst);
            Ok(self.free.swap(false, Ordering::SeqCst))
        }

        fn drop_pages(&self, _: NodeId, _: Handle) {}
    }

    fn wait(waiters: &Waiters, unique: u64) -> Receiver<Result<()>> {
        let (tell, told) = channel();
        let span = Span { first: 0, last: Span::END };
        let request =
            LockRequest { owner: unique, lock: Some(Lock::Exclusive), span, whole: false };
        let call = LockCall { handle: 1, request, wait: true };
        let reply = Box::new(move |result| tell.send(result).unwrap());
        waiters.wait(Request { unique, node: 1 }, call, false, reply);
        told
    }

    #[test]
    fn one_waiter_gets_a_lock_that_becomes_free() {
        let (waiters, free, tries) = waiters();
        let told = [2, 4].map(|unique| wait(&waiters, unique));
        while tries.load(Ordering::SeqCst) < 10 {
            thread::yield_now();
        }
        assert!(told.iter().all(|told| told.try_recv().is_err()));
        free.store(true, Ordering::SeqCst);
        let granted = loop {
            if let Some(at) = told.iter().position(|told| told.try_recv().is_ok()) {
                break at;
            }
        };
        waiters.interrupt([2, 4][1 - granted]);
        let ended = told[1 - granted].recv_timeout(PATIENCE).unwrap();
        assert_eq!(ended, Err(Errno::new(libc::EINTR)));
        // The thread has ended or is about to. A later program is served by it or by another
        // thread.
        free.store(true, Ordering::SeqCst);
        assert_eq!(wait(&waiters, 6).recv_timeout(PATIENCE).unwrap(), Ok(()));
    }

    #[test]
    fn an_interrupt_may_overtake_its_request() {
        let (waiters, ..) = waiters();
        for unique in 0..100 {
            waiters.interrupt(2 * unique);
        }
        let early = wait(&waiters, 198).recv_timeout(PATIENCE).unwrap();
        assert_eq!(early, Err(Errno::new(libc::EINTR)));
        let forgotten = wait(&waiters, 0);
        waiters.end();
        let ended = forgotten.recv_timeout(PATIENCE).unwrap();
        assert_eq!(ended, Err(Errno::new(libc::ENOTCONN)));
        let late = wait(&waiters, 300).recv_timeout(PATIENCE).unwrap();
        assert_eq!(late, Err(Errno::new(libc::ENOTCONN)));
    }
}
