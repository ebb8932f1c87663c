//! The thread of one queue: takes requests from its ring, and answers them or passes those that may
//! take long to the pool.
//!
//! Rules that hold here
//! * The thread is pinned to the processor that its requests come from. The whole gain comes from
//!   this: the caller and the thread need not wake each other across processors. The kernel takes
//!   the pin away when the processor goes offline, so a thread that finds itself elsewhere pins
//!   itself again.
//! * Operations that always wait for the disk go to the pool, also because the kernel may need this
//!   queue for the writeback that they wait for. An exception is a flush while recent flushes took
//!   no time, as on a store in memory or with a protected cache. Operations that only may wait run
//!   here until one was slow; then the next ones of their kind go to the pool until some were fast.
//! * LSEEK, and GETATTR through a descriptor, may have to wait until the kernel has written back
//!   pages, over this queue or another. So they have threads of their own and at most half of the
//!   entries. Beyond that they do not wait: the kernel is told to answer LSEEK by itself.
//! * A program that waits for a lock keeps an entry, too, but no thread. Beyond half of the entries
//!   it gets `ENOLCK` in place of the wait: the unlock that it waits for needs an entry. A lock that
//!   is not waited for may keep any entry but one.
//! * The reply to a request is submitted before the next request is processed.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::memory::{self, Slot};
use super::ring::{Event, Ring};
use crate::fuse::dispatch::dispatcher::{Dispatcher, LockCall};
use crate::fuse::dispatch::reply::{Answer, Patience, Undo};
use crate::fuse::ops::{Errno, Result};
use crate::fuse::protocol::abi::{self, URING_HEADER, opcode, put, ring_in_out, u32_at};
use crate::fuse::protocol::request::{Call, Header};
use crate::fuse::protocol::wire::{Device, OUT_HEADER};
use crate::fuse::transport::pool::Pool;

/// Reads and writes above this many bytes go to the pool: they are part of a stream, and several
/// streams are better spread over the processors.
const SMALL: u32 = 64 << 10;
/// An operation that takes longer than this counts as slow.
const SLOW: Duration = Duration::from_millis(1);
/// Number of operations of the same kind that go to the pool after a slow one. It is small because
/// the slow one may only have lacked the processor; on a slow store those in the pool are slow as
/// well, and restart the count.
const WARY: u8 = 4;
/// The same for flushes, from the start: most stores take milliseconds for one.
const WARY_OF_FLUSHES: u8 = 16;
/// Operation codes are counted separately up to this one.
const KINDS: usize = 64;

thread_local! {
    /// Buffer for the bodies of replies other than those of READ.
    static BODY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// State that the threads of all queues share.
pub struct Common {
    /// Serves requests.
    pub dispatcher: Arc<Dispatcher>,
    /// Runs operations that may take long.
    pub pool: Arc<Pool>,
    /// Runs operations that wait for other requests, including those in the pool.
    pub patient: Arc<Pool>,
    /// The session.
    pub device: Device,
}

/// The queue that a thread serves, and its resources.
pub struct Assignment {
    /// Number of the queue and of its processor.
    pub number: u16,
    /// Maximum number of concurrent requests.
    pub entries: usize,
    /// Whether the processor is online: the memory of an offline one is not touched.
    pub online: bool,
    /// Bytes for the names and data of each request.
    pub payload: usize,
}

/// A request that the pool has answered.
struct Answered {
    slot: Slot,
    undo: Undo,
    operation: u32,
    patient: bool,
    slow: bool,
}

/// Answered requests on their way from the pool to the queue's thread, and the descriptor that
/// wakes it.
struct Done {
    answered: Mutex<Vec<Answered>>,
    wake: OwnedFd,
}

impl Done {
    fn hand_over(&self, answered: Answered) {
        self.answered.lock().push(answered);
        if let Err(error) =
            rustix::io::retry_on_intr(|| rustix::io::write(&self.wake, &1u64.to_ne_bytes()))
        {
            tracing::error!(%error, "cannot wake the thread of a queue");
        }
    }
}

/// A queue that has its ring and memory and is not yet registered with the kernel.
pub struct Queue {
    common: Arc<Common>,
    ring: Ring,
    done: Arc<Done>,
    fresh: Vec<Slot>,
    /// Slots that are not lost.
    live: usize,
    /// Slots whose requests wait for other requests or for a lock. Their number is limited, so that
    /// the requests that they wait for find a free slot.
    patient: usize,
    patient_max: usize,
    /// By slot: how to undo its operation if the kernel does not accept the reply.
    undo: Vec<Undo>,
    /// By kind of operation: how many of the next ones go to the pool.
    wary: [u8; KINDS],
    /// Number of the queue and of its processor.
    number: u16,
}

/// Pins this thread to a processor. If that fails (the processor is offline, or pinning is not
/// permitted), the thread runs on another one.
fn pin(number: u16) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(number.into());
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::debug!(queue = number, %error, "a queue's thread is not pinned to its processor");
    }
}

impl Queue {
    /// Prepares a queue, in the thread that will serve it.
    ///
    /// # Errors
    /// There is not enough memory, or the system does not permit io_uring.
    pub fn prepare(common: Arc<Common>, assignment: &Assignment) -> io::Result<Queue> {
        use rustix::event::{EventfdFlags, eventfd};
        pin(assignment.number);
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let ring = Ring::new(
            assignment.number,
            assignment.entries,
            common.device.clone(),
            wake.try_clone()?,
        )?;
        let fresh = memory::slots(assignment.entries, assignment.payload, assignment.online)?;
        let live = fresh.len();
        let undo = fresh.iter().map(|_| Undo::Nothing).collect();
        let done = Arc::new(Done { answered: Mutex::default(), wake });
        let mut queue = Queue {
            common,
            ring,
            done,
            fresh,
            live,
            patient: 0,
            patient_max: live / 2,
            undo,
            wary: [0; KINDS],
            number: assignment.number,
        };
        [opcode::FSYNC, opcode::FSYNCDIR].into_iter().for_each(|flush| queue.be_wary(flush));
        Ok(queue)
    }

    /// Registers the queue with the kernel, which has agreed to io_uring before. Once the queues of
    /// all processors are registered, requests come over them.
    ///
    /// # Errors
    /// The kernel refuses; it then continues to send requests over the device.
    pub fn register(&mut self) -> io::Result<()> {
        for slot in std::mem::take(&mut self.fresh) {
            self.ring.register(slot)?;
        }
        self.ring.submit()?;
        // A refusal arrives at once; so may a request.
        let mut early = Vec::new();
        while let Some(event) = self.ring.next_event()? {
            match event {
                Event::Failed(slot, error) => {
                    self.live -= 1;
                    drop(slot);
                    return Err(error);
                }
                event => early.push(event),
            }
        }
        early.into_iter().try_for_each(|event| self.take(event))
    }

    /// Serves the queue until the filesystem is unmounted.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub fn serve(mut self) -> io::Result<()> {
        while self.live > 0 {
            self.ring.wait()?;
            while let Some(event) = self.ring.next_event()? {
                self.take(event)?;
                if self.ring.has_event() {
                    self.ring.submit()?;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> io::Result<()> {
        match event {
            Event::Request(slot) => {
                self.undo[slot.index()] = Undo::Nothing;
                self.request(slot)
            }
            Event::Woken => {
                let answered = std::mem::take(&mut *self.done.answered.lock());
                answered.into_iter().try_for_each(|answered| {
                    if answered.patient {
                        self.patient -= 1;
                    } else if answered.slow {
                        self.be_wary(answered.operation);
                    }
                    self.commit(answered.slot, answered.undo)
                })
            }
            Event::Failed(slot, error) => self.failed(slot, &error),
        }
    }

    fn request(&mut self, mut slot: Slot) -> io::Result<()> {
        if rustix::thread::sched_getcpu() != usize::from(self.number) {
            pin(self.number);
        }
        let (operation, size) = kind(&mut slot);
        let locks_max = match operation {
            opcode::SETLKW => self.patient_max,
            opcode::SETLK => self.patient_max * 2 - 1,
            _ => 0,
        };
        if self.patient < locks_max {
            self.lock(slot);
            return Ok(());
        }
        let may_wait = self.common.dispatcher.may_wait(operation, size > 0);
        let patient = may_wait && self.patient < self.patient_max;
        if patient || !may_wait && self.goes_to_pool(operation, size) {
            let (pool, patience) = if patient {
                (&self.common.patient, Patience::Some)
            } else {
                (&self.common.pool, Patience::None)
            };
            self.patient += usize::from(patient);
            // Not `common`, which owns the pool: the last reference must not be dropped by one of
            // the pool's threads.
            let (dispatcher, done) = (self.common.dispatcher.clone(), self.done.clone());
            pool.run(move || {
                let begun = Instant::now();
                let undo = answer(&dispatcher, &mut slot, patience);
                done.hand_over(Answered {
                    slot,
                    undo,
                    operation,
                    patient,
                    slow: begun.elapsed() > SLOW,
                });
            });
            return Ok(());
        }
        let begun = Instant::now();
        let undo = answer(&self.common.dispatcher, &mut slot, Patience::None);
        if begun.elapsed() > SLOW {
            self.be_wary(operation);
        }
        self.commit(slot, undo)
    }

    /// Serves SETLK or SETLKW in a slot that is kept until the lock can be answered for.
    fn lock(&mut self, mut slot: Slot) {
        let (header, call) = lock_in(&mut slot);
        let done = self.done.clone();
        self.patient += 1;
        let reply = move |answer: Answer| {
            let undo = put_answer(&mut slot, &header, answer, 0);
            let operation = opcode::SETLKW; // not used: the slot was kept
            done.hand_over(Answered { slot, undo, operation, patient: true, slow: false });
        };
        match call {
            Ok(call) => self.common.dispatcher.lock_later(&header, call, reply),
            Err(error) => reply(Answer::refusal(error)),
        }
    }

    fn be_wary(&mut self, operation: u32) {
        if let Some(wary) = self.wary.get_mut(operation as usize) {
            *wary = if matches!(operation, opcode::FSYNC | opcode::FSYNCDIR) {
                WARY_OF_FLUSHES
            } else {
                WARY
            };
        }
    }

    fn goes_to_pool(&mut self, operation: u32, size: u32) -> bool {
        let long = match operation {
            opcode::FALLOCATE | opcode::COPY_FILE_RANGE => true,
            opcode::READ | opcode::WRITE => size > SMALL,
            _ => false,
        };
        if long {
            return true;
        }
        match self.wary.get_mut(operation as usize) {
            Some(wary) if *wary > 0 => {
                *wary -= 1;
                true
            }
            _ => false,
        }
    }

    fn commit(&mut self, slot: Slot, undo: Undo) -> io::Result<()> {
        self.undo[slot.index()] = undo;
        self.ring.commit(slot)
    }

    /// Handles the failure of a command: at unmount all commands fail, and slots are lost until
    /// none is left.
    fn failed(&mut self, slot: Slot, error: &io::Error) -> io::Result<()> {
        const THE_END: [i32; 4] =
            [libc::ENOTCONN, libc::ENODEV, libc::ECONNABORTED, libc::ECANCELED];
        let undo = std::mem::replace(&mut self.undo[slot.index()], Undo::Nothing);
        let answered = undo != Undo::Nothing;
        self.common.dispatcher.undo(undo);
        if error.raw_os_error().is_some_and(|error| THE_END.contains(&error)) {
            self.live -= 1;
            return Ok(());
        }
        tracing::warn!(%error, answered, "the kernel did not take an answer over io_uring");
        self.live -= 1;
        if self.live == 0 {
            return Err(io::Error::other("all entries of a queue are lost"));
        }
        Ok(())
    }
}

/// Returns the kind of a request and the number of bytes that it reads or writes, which decide
/// where it runs. The number is also above 0 if the reply may need the kernel's dirty pages.
fn kind(slot: &mut Slot) -> (u32, u32) {
    let (headers, _) = slot.parts();
    let operation = Header::read(headers).map_or(0, |header| header.opcode);
    let size = match operation {
        opcode::READ => u32_at(&headers[URING_HEADER..], abi::read_in::size),
        opcode::WRITE => u32_at(&headers[URING_HEADER..], abi::write_in::size),
        opcode::GETATTR => {
            u32_at(&headers[URING_HEADER..], abi::getattr_in::getattr_flags) & abi::GETATTR_FH
        }
        _ => 0,
    };
    (operation, size)
}

/// Serves the request in `slot`, and replaces it by the reply.
fn answer(dispatcher: &Dispatcher, slot: &mut Slot, patience: Patience) -> Undo {
    let (headers, payload) = slot.parts();
    let (common, rest) = headers.split_at_mut(URING_HEADER);
    let (own, ring) = rest.split_at_mut(URING_HEADER);
    let header = Header::read(common).expect("the area is longer than a header");
    let came = (u32_at(ring, ring_in_out::payload_sz) as usize).min(payload.len());
    let fixed = &own[..abi::fixed_len(header.opcode)];
    let (answer, body_len) = match Call::decode(header.opcode, fixed, &payload[..came]) {
        Ok(Call::Read(range)) => {
            let size = range.size.min(payload.len());
            match dispatcher.read(range, &mut payload[..size]) {
                Ok(read) => (Answer { error: None, undo: Undo::Nothing }, read),
                Err(error) => (Answer::refusal(error), 0),
            }
        }
        Ok(call) => {
            let mut body = BODY.take();
            let answer = dispatcher.answer(&header, &call, patience, &mut body);
            let len = body.len();
            let answer = match payload.get_mut(..len) {
                Some(place) => {
                    place.copy_from_slice(&body);
                    (answer, len)
                }
                None => {
                    dispatcher.undo(answer.undo);
                    (Answer::refusal(Errno::EIO), 0)
                }
            };
            BODY.set(body);
            answer
        }
        Err(error) => (Answer::refusal(error), 0),
    };
    put_answer(slot, &header, answer, body_len)
}

/// Returns header and arguments of the SETLK or SETLKW in `slot`.
fn lock_in(slot: &mut Slot) -> (Header, Result<LockCall>) {
    let (headers, _) = slot.parts();
    let header = Header::read(headers).expect("the area is longer than a header");
    let own = &headers[URING_HEADER..][..abi::fixed_len(header.opcode)];
    let call = match Call::decode(header.opcode, own, &[]) {
        Ok(Call::SetLk { handle, request, wait }) => Ok(LockCall { handle, request, wait }),
        Ok(_) => Err(Errno::EIO),
        Err(error) => Err(error),
    };
    (header, call)
}

/// Replaces the request in `slot` by its reply, whose body is in place.
fn put_answer(slot: &mut Slot, header: &Header, answer: Answer, body_len: usize) -> Undo {
    let (headers, _) = slot.parts();
    let (common, rest) = headers.split_at_mut(URING_HEADER);
    let ring = &mut rest[URING_HEADER..];
    let len = (OUT_HEADER + body_len) as u32; // no payload is longer than a few MiB
    put(common, 0, &len.to_ne_bytes());
    put(common, 4, &(-answer.error.map_or(0, Errno::get)).to_ne_bytes());
    put(common, 8, &header.unique.to_ne_bytes());
    put(ring, ring_in_out::payload_sz, &(body_len as u32).to_ne_bytes());
    answer.undo
}

/// Serves a queue from its preparation to the unmount. `ready` receives the result of each of the
/// two steps; between them `go` decides whether the second one follows.
pub fn run(
    common: Arc<Common>,
    assignment: &Assignment,
    ready: &Sender<io::Result<()>>,
    go: &Receiver<bool>,
) -> io::Result<()> {
    // If the receiver is gone, the session was not started.
    let mut queue = match Queue::prepare(common, assignment) {
        Ok(queue) => queue,
        Err(error) => {
            let _ = ready.send(Err(error));
            return Ok(());
        }
    };
    if ready.send(Ok(())).is_err() || !go.recv().unwrap_or(false) {
        return Ok(());
    }
    let registered = queue.register();
    let failed = registered.is_err();
    let _ = ready.send(registered);
    if failed && queue.live == 0 {
        return Ok(());
    }
    queue.serve()
}
