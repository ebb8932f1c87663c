//! FUSE over io_uring, Linux 6.14 and later: a second transport under [`Operations`].
//!
//! Rules that hold here
//! * There is one queue for each possible processor, and one thread for each queue ([`queue`]).
//!   Once all queues are registered, the kernel sends a request to the queue of the processor that
//!   it comes from. Until then, and always for FORGET and INTERRUPT, it uses the device
//!   (`device`).
//! * Every step that can fail is tried before the kernel is asked for io_uring: afterwards requests
//!   wait for the queues. If the kernel still refuses a queue, it continues over the device, and so
//!   does the daemon.
//! * Only [`memory`] and [`ring`] contain unsafe code.

pub mod cpus;
pub mod memory;
pub mod queue;
pub mod ring;

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use self::cpus::Cpus;
use self::queue::{Assignment, Common};
use crate::fuse::dispatch::dispatcher::Dispatcher;
use crate::fuse::ops::Operations;
use crate::fuse::protocol::wire::Device;
use crate::fuse::settings::ServeOptions;
use crate::fuse::transport::device;
use crate::fuse::transport::pool::Pool;

/// The kernel's module parameter, which root sets.
pub const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Returns the reason why io_uring cannot be used here; `None` if the kernel offers it.
pub fn why_not() -> Option<String> {
    match fs::read_to_string(SWITCH) {
        Ok(value) if value.trim() == "Y" => None,
        Ok(_) => Some(format!("{SWITCH} is N")),
        Err(_) => {
            Some("this kernel has no FUSE over io_uring (Linux 6.14 and later have)".to_owned())
        }
    }
}

type Thread = JoinHandle<io::Result<()>>;

/// Queues whose threads wait for the start signal.
struct Prepared {
    common: Arc<Common>,
    threads: Vec<Thread>,
    go: Vec<Sender<bool>>,
    ready: Receiver<io::Result<()>>,
}

/// A session that is being served.
#[derive(Debug)]
pub struct Session {
    threads: Vec<Thread>,
    over_io_uring: bool,
}

fn spawn(
    name: String,
    run: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<Thread> {
    thread::Builder::new().name(name).spawn(run)
}

impl Prepared {
    /// Starts the threads of all queues and waits until each has its ring and memory.
    fn make(common: Arc<Common>, plan: &cpus::Plan) -> io::Result<Prepared> {
        let (tell, ready) = mpsc::channel();
        let mut prepared = Prepared { common, threads: Vec::new(), go: Vec::new(), ready };
        for (number, &(entries, online)) in plan.queues.iter().enumerate() {
            let number = u16::try_from(number).map_err(|_| {
                io::Error::other("more processors than the protocol has numbers for")
            })?;
            let assignment = Assignment { number, entries, online, payload: plan.payload as usize };
            let (tell, (go, wait), common) =
                (tell.clone(), mpsc::channel(), prepared.common.clone());
            prepared.threads.push(spawn(format!("kithfs-queue-{number}"), move || {
                queue::run(common, &assignment, &tell, &wait)
            })?);
            prepared.go.push(go);
        }
        drop(tell);
        match prepared.heard() {
            Ok(()) => Ok(prepared),
            Err(error) => {
                // The threads that are ready give up as well.
                prepared.go.clear();
                prepared.threads.into_iter().for_each(|thread| drop(thread.join()));
                Err(error)
            }
        }
    }

    /// Waits until all threads have reported on their last step, and returns the first error.
    fn heard(&self) -> io::Result<()> {
        let ended = || Err(io::Error::other("the thread of a queue has ended"));
        let said: Vec<io::Result<()>> =
            self.threads.iter().map(|_| self.ready.recv().unwrap_or_else(|_| ended())).collect();
        said.into_iter().collect()
    }

    /// Tells the threads to register their queues, and waits until they have.
    fn register(&self) -> io::Result<()> {
        for go in &self.go {
            // A thread that has ended reports its error below.
            let _ = go.send(true);
        }
        self.heard()
    }
}

/// A session whose rings, memory and threads are there. The kernel has not been asked yet, so the
/// device can still be served in another way.
pub struct Ready {
    device: Device,
    dispatcher: Arc<Dispatcher>,
    patient: Arc<Pool>,
    options: ServeOptions,
    plan: cpus::Plan,
    prepared: Prepared,
}

/// Prepares to serve `ops` on `device` over io_uring.
///
/// # Errors
/// io_uring cannot be used here: the system forbids it, or there is too little memory for the
/// number of processors.
pub fn prepare(
    device: &Device,
    ops: Arc<dyn Operations>,
    options: &ServeOptions,
) -> io::Result<Ready> {
    if let Some(why) = why_not() {
        return Err(io::Error::other(why));
    }
    let plan = Cpus::read()?.plan(options.uring_memory, options.max_write).ok_or_else(|| {
        io::Error::other("uring_memory is too small for the number of processors")
    })?;
    let options = ServeOptions { max_write: options.max_write.min(plan.payload), ..*options };
    let dispatcher = Arc::new(Dispatcher::new(ops, options, device.clone(), true));
    let cores = thread::available_parallelism().map_or(2, usize::from);
    let pool = Arc::new(Pool::new((2 * cores).clamp(8, 16))?);
    let patient = Arc::new(Pool::patient()?);
    let common = Common {
        dispatcher: dispatcher.clone(),
        pool,
        patient: patient.clone(),
        device: device.clone(),
    };
    let prepared = Prepared::make(Arc::new(common), &plan)?;
    Ok(Ready { device: device.clone(), dispatcher, patient, options, plan, prepared })
}

impl Ready {
    /// Answers INIT and starts to serve. If the kernel refuses io_uring now, with `insist` it is an
    /// error; otherwise the device is used.
    ///
    /// # Errors
    /// With `insist`, the reason why io_uring cannot be used; those of the device.
    pub fn start(self, insist: bool) -> io::Result<Session> {
        let terms = device::shake_hands(&self.device, &self.options, true)?;
        let mut threads = Vec::new();
        // The device is read before the queues are registered: the registration may wait for
        // requests that come over the device.
        threads.push(self.read_device(terms.max_write)?);
        let registered = if terms.over_io_uring() {
            self.prepared.register()
        } else {
            Err(io::Error::other("the kernel did not offer FUSE over io_uring"))
        };
        let over_io_uring = registered.is_ok();
        match registered {
            Ok(()) => {
                let online = self.plan.queues.iter().filter(|(_, online)| *online);
                let entries: usize = online.map(|(entries, _)| entries).sum();
                tracing::debug!(
                    minor = terms.minor,
                    queues = self.plan.queues.len(),
                    memory = entries * self.plan.payload as usize,
                    "requests come over io_uring"
                );
            }
            Err(error) if insist => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "requests come over the device");
                for _ in 1..self.options.threads.max(2) {
                    threads.push(self.read_device(terms.max_write)?);
                }
            }
        }
        threads.extend(self.prepared.threads);
        Ok(Session { threads, over_io_uring })
    }

    fn read_device(&self, max_write: u32) -> io::Result<Thread> {
        let (device, dispatcher, patient) =
            (self.device.clone(), self.dispatcher.clone(), self.patient.clone());
        spawn("kithfs-device".into(), move || {
            device::serve(&device, &dispatcher, &patient, max_write)
        })
    }
}

impl Session {
    /// Returns whether requests come over io_uring.
    pub fn over_io_uring(&self) -> bool {
        self.over_io_uring
    }

    /// Waits until the filesystem is unmounted and all threads have ended.
    ///
    /// # Errors
    /// The first error that ended a thread.
    pub fn join(self) -> io::Result<()> {
        device::join(self.threads)
    }
}
