//! Threads for operations that may take long, so that the thread that received the request can
//! receive the next one.
//!
//! Rules that hold here
//! * The number of threads is fixed. The number of waiting jobs is bounded by the kernel: each job is
//!   a request that the kernel waits for.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Shared {
    /// Jobs, and whether there will be no more.
    waiting: Mutex<(VecDeque<Job>, bool)>,
    changed: Condvar,
}

/// A pool; dropping it waits until all jobs are done.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Creates a small pool for operations that wait until other requests are served. They must not
    /// occupy the threads that serve those requests.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn patient() -> io::Result<Pool> {
        const PATIENT: usize = 2;
        Pool::new(PATIENT)
    }

    /// Creates a pool with this number of threads.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(threads: usize) -> io::Result<Pool> {
        let mut pool = Pool { shared: Arc::default(), threads: Vec::new() };
        for _ in 0..threads.max(1) {
            let shared = pool.shared.clone();
            pool.threads.push(
                thread::Builder::new().name("kithfs-pool".into()).spawn(move || shared.work())?,
            );
        }
        Ok(pool)
    }

    /// Runs `job`, which must not panic, on one of the threads.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.shared.waiting.lock().0.push_back(Box::new(job));
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let mut waiting = self.waiting.lock();
            let job = loop {
                match waiting.0.pop_front() {
                    Some(job) => break job,
                    None if waiting.1 => return,
                    None => self.changed.wait(&mut waiting),
                }
            };
            drop(waiting);
            job();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.waiting.lock().1 = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the pool has panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn all_jobs_are_done_before_the_pool_ends() {
        let done = Arc::new(AtomicUsize::new(0));
        let pool = Pool::new(3).unwrap();
        for _ in 0..1000 {
            let done = done.clone();
            pool.run(move || {
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        drop(pool);
        assert_eq!(done.load(Ordering::SeqCst), 1000);
    }
}
