//! The loop on `/dev/fuse` beside the rings. It receives what the kernel never sends over io_uring
//! (FORGET, INTERRUPT), and every request if the kernel does not accept the rings.

use std::io;
use std::sync::Arc;

use crate::fuse::dispatch::dispatcher::Dispatcher;
use crate::fuse::dispatch::reply::{Answer, Patience};
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
    let mut reader = Reader::new(device.clone(), max_write);
    let mut out = Vec::new();
    while let Some((header, body)) = reader.next()? {
        match Call::from_body(header.opcode, body) {
            // It may wait for other requests, which these threads serve.
            Ok(Call::Seek { handle, offset, whence }) => {
                let dispatcher = dispatcher.clone();
                patient.run(move || {
                    let mut out = Vec::new();
                    let answer = dispatcher.answer(
                        &header,
                        &Call::Seek { handle, offset, whence },
                        Patience::Some,
                        &mut out,
                    );
                    dispatcher.send(&header, answer, &out);
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
