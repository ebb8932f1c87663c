//! kithfs's own loop on `/dev/fuse`.
//!
//! Rules that hold here
//! * Beside the rings it receives what the kernel never sends over io_uring (FORGET, INTERRUPT), and
//!   every request if the kernel does not accept the rings.
//! * Without rings it serves mounts whose locks come to the daemon, in place of `fuser`. `fuser` 0.18
//!   does not tell locks of `flock` from those of `fcntl`, and answers INTERRUPT so that the kernel
//!   sends no more of them: a program that waits for a lock could not even be killed.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::fuse::dispatch::dispatcher::{Dispatcher, LockCall};
use crate::fuse::dispatch::reply::{Answer, Patience};
use crate::fuse::ops::Operations;
use crate::fuse::protocol::abi::{in_header, opcode};
use crate::fuse::protocol::init::{self, Terms};
use crate::fuse::protocol::request::{Call, Header};
use crate::fuse::protocol::wire::Device;
use crate::fuse::settings::ServeOptions;
use crate::fuse::transport::pool::Pool;

/// Room that the kernel requires beside the data of a WRITE.
const BESIDE: usize = 4096;
/// Minimum room for a request that the kernel accepts.
const LEAST: usize = 8192;

/// Reads requests into one buffer.
struct Reader {
    device: Device,
    buffer: Vec<u8>,
}

impl Reader {
    fn new(device: Device, max_write: u32) -> Reader {
        Reader { device, buffer: vec![0; (max_write as usize + BESIDE).max(LEAST)] }
    }

    /// Returns the next request and its body; `None` once unmounted.
    fn next(&mut self) -> io::Result<Option<(Header, &[u8])>> {
        use rustix::io::Errno as Os;
        let len = loop {
            match rustix::io::read(&self.device, &mut self.buffer) {
                Ok(len) => break len,
                // ENOENT: the request was withdrawn while it was read.
                Err(Os::INTR | Os::AGAIN | Os::NOENT) => {}
                Err(Os::NODEV) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        let message = &self.buffer[..len];
        let header = Header::read(message)
            .ok_or_else(|| io::Error::other("a request from the kernel is cut short"))?;
        Ok(Some((header, &message[in_header::LEN..])))
    }
}

/// Answers INIT. `uring` requests io_uring.
///
/// # Errors
/// Those of the device; the kernel's protocol is not supported; it is already unmounted.
pub fn shake_hands(device: &Device, options: &ServeOptions, uring: bool) -> io::Result<Terms> {
    let mut reader = Reader::new(device.clone(), options.max_write);
    let (header, body) =
        reader.next()?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
    if header.opcode != opcode::INIT {
        return Err(io::Error::other("the first request from the kernel is not INIT"));
    }
    match init::answer(body, options, uring) {
        Ok((terms, out)) => {
            device.reply(header.unique, &out)?;
            Ok(terms)
        }
        Err(error) => {
            device.refuse(header.unique, error)?;
            Err(io::Error::from_raw_os_error(error.get()))
        }
    }
}

/// A session without rings that is being served.
#[derive(Debug)]
pub struct Session {
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// Serves `ops` on `device` with kithfs's own threads.
///
/// # Errors
/// Those of [`shake_hands`]; a thread cannot be started.
pub fn start(
    device: &Device,
    ops: Arc<dyn Operations>,
    options: &ServeOptions,
) -> io::Result<Session> {
    let dispatcher = Arc::new(Dispatcher::new(ops, *options, device.clone(), true));
    let patient = Arc::new(Pool::patient()?);
    let terms = shake_hands(device, options, false)?;
    let mut session = Session { threads: Vec::new() };
    for _ in 0..options.threads.max(2) {
        let (device, dispatcher, patient) = (device.clone(), dispatcher.clone(), patient.clone());
        let run = move || serve(&device, &dispatcher, &patient, terms.max_write);
        session.threads.push(thread::Builder::new().name("kithfs-device".into()).spawn(run)?);
    }
    Ok(session)
}

impl Session {
    /// Waits until the filesystem is unmounted and all threads have ended.
    ///
    /// # Errors
    /// The first error that ended a thread.
    pub fn join(self) -> io::Result<()> {
        join(self.threads)
    }
}

/// Waits for the threads of a session.
///
/// # Errors
/// The first error that ended a thread.
pub fn join(threads: Vec<JoinHandle<io::Result<()>>>) -> io::Result<()> {
    let panicked = |_| Err(io::Error::other("a thread that served requests has panicked"));
    let ended: Vec<io::Result<()>> =
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect();
    ended.into_iter().collect()
}

/// Serves requests from the device until the filesystem is unmounted.
///
/// # Errors
/// Those of the device.
pub fn serve(
    device: &Device,
    dispatcher: &Arc<Dispatcher>,
    patient: &Pool,
    max_write: u32,
) -> io::Result<()> {
    let served = serve_all(device, dispatcher, patient, max_write);
    dispatcher.end_waits();
    served
}

/// Answers a call that may wait for other requests, which the calling thread serves meanwhile.
fn later(dispatcher: &Arc<Dispatcher>, patient: &Pool, header: Header, call: Call<'static>) {
    let dispatcher = dispatcher.clone();
    patient.run(move || {
        let mut out = Vec::new();
        let answer = dispatcher.answer(&header, &call, Patience::Some, &mut out);
        dispatcher.send(&header, answer, &out);
    });
}

fn serve_all(
    device: &Device,
    dispatcher: &Arc<Dispatcher>,
    patient: &Pool,
    max_write: u32,
) -> io::Result<()> {
    let mut reader = Reader::new(device.clone(), max_write);
    let mut out = Vec::new();
    while let Some((header, body)) = reader.next()? {
        match Call::from_body(header.opcode, body) {
            Ok(Call::Seek { handle, offset, whence }) => {
                later(dispatcher, patient, header, Call::Seek { handle, offset, whence });
            }
            Ok(Call::GetAttr { handle })
                if dispatcher.may_wait(header.opcode, handle.is_some()) =>
            {
                later(dispatcher, patient, header, Call::GetAttr { handle });
            }
            // The lock may have to wait for another program, or for other requests.
            Ok(Call::SetLk { handle, request, wait }) => {
                let device = device.clone();
                let call = LockCall { handle, request, wait };
                dispatcher.lock_later(&header, call, move |answer| {
                    // If the kernel does not take the answer, nothing has to be undone: the program
                    // was killed, and its locks end with its descriptors.
                    let _ = match answer.error {
                        None => device.reply(header.unique, &[]),
                        Some(error) => device.refuse(header.unique, error),
                    };
                });
            }
            Ok(call) => {
                let answer = dispatcher.answer(&header, &call, Patience::None, &mut out);
                if call.is_answered() {
                    dispatcher.send(&header, answer, &out);
                }
            }
            Err(_)
                if matches!(
                    header.opcode,
                    opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT
                ) => {}
            Err(error) => dispatcher.send(&header, Answer::refusal(error), &[]),
        }
    }
    Ok(())
}
