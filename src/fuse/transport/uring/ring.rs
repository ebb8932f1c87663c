//! One io_uring with FUSE commands: a command passes memory to the kernel, which returns it with a
//! request in it.
//!
//! Rules that hold here
//! * A [`Slot`] whose memory is with the kernel is in `lent` and nowhere else; it is taken out when
//!   its command has completed.
//! * Only the thread that created the ring uses it. The kernel copies a request in the context of
//!   the thread that submitted the command, so that thread is woken.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::memory::{HEADERS, Slot};
use crate::fuse::protocol::abi::{self, URING_HEADER, put, ring_in_out, u64_at};
use crate::fuse::protocol::wire::Device;

/// Offsets of the commit id and the queue id in the area of a command (`struct
/// fuse_uring_cmd_req`).
const COMMIT_ID: usize = 8;
const QUEUE_ID: usize = 16;
/// User data that identifies the completion of the poll on `wake`.
const WOKEN: u64 = u64::MAX;

/// An event of the ring.
#[derive(Debug)]
pub enum Event {
    /// A request is in this slot.
    Request(Slot),
    /// The command of this slot has failed; its memory is no longer with the kernel.
    Failed(Slot, io::Error),
    /// The descriptor `wake` was written to.
    Woken,
}

/// A ring for one queue.
pub struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    queue: u16,
    device: Device,
    wake: OwnedFd,
    lent: Vec<Option<Slot>>,
}

impl Ring {
    /// Creates a ring for the queue with this number and so many entries. `wake` is an eventfd that
    /// another thread writes to.
    ///
    /// # Errors
    /// Those of io_uring_setup(2): `ENOSYS` or `EPERM` if the system has none or forbids it.
    pub fn new(queue: u16, entries: usize, device: Device, wake: OwnedFd) -> io::Result<Ring> {
        let len =
            u32::try_from(entries + 1).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .build(len.next_power_of_two())?;
        let mut ring =
            Ring { ring, queue, device, wake, lent: (0..entries).map(|_| None).collect() };
        ring.listen()?;
        Ok(ring)
    }

    /// Passes the memory of `slot` to the kernel for the first time.
    ///
    /// # Errors
    /// Those of io_uring_enter(2), if the ring is full.
    pub fn register(&mut self, mut slot: Slot) -> io::Result<()> {
        let iovecs = slot.iovecs();
        self.command(abi::URING_REGISTER, 0, Some(iovecs), slot)
    }

    /// Returns the memory of `slot` to the kernel, with a reply in it.
    ///
    /// # Errors
    /// Those of io_uring_enter(2), if the ring is full.
    pub fn commit(&mut self, mut slot: Slot) -> io::Result<()> {
        let id = u64_at(&slot.parts().0[2 * URING_HEADER..HEADERS], ring_in_out::commit_id);
        self.command(abi::URING_COMMIT_AND_FETCH, id, None, slot)
    }

    fn command(
        &mut self,
        operation: u32,
        commit_id: u64,
        iovecs: Option<u64>,
        slot: Slot,
    ) -> io::Result<()> {
        let mut command = [0; 80];
        put(&mut command, COMMIT_ID, &commit_id.to_ne_bytes());
        put(&mut command, QUEUE_ID, &self.queue.to_ne_bytes());
        let fd = types::Fd(self.device.as_fd().as_raw_fd());
        let mut entry = opcode::UringCmd80::new(fd, operation)
            .cmd(command)
            .addr(iovecs)
            .build()
            .user_data(slot.index() as u64);
        if iovecs.is_some() {
            entry = with_len(entry, 2);
        }
        let index = slot.index();
        self.lent[index] = Some(slot);
        self.push(&entry)
    }

    fn listen(&mut self) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(self.wake.as_raw_fd()), libc::POLLIN as u32)
            .build()
            .user_data(WOKEN);
        self.push(&poll.into())
    }

    fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        loop {
            // SAFETY: whatever the entry names stays valid until it completes: the descriptors are
            // open as long as `self`, and the memory belongs to a slot in `lent`, which keeps it.
            // `Drop` keeps that memory even if `self` is dropped earlier.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
        }
    }

    /// Submits the pushed commands to the kernel.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub fn submit(&mut self) -> io::Result<()> {
        self.enter(0)
    }

    /// Submits the pushed commands and waits for an event.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub fn wait(&mut self) -> io::Result<()> {
        self.enter(1)
    }

    fn enter(&mut self, want: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(want) {
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // Completions must be consumed first.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(()),
                result => return result.map(drop),
            }
        }
    }

    /// Returns whether [`Ring::next_event`] has an event.
    pub fn has_event(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Returns the next event that has already arrived.
    ///
    /// # Errors
    /// Those of the calls that poll `wake` again.
    pub fn next_event(&mut self) -> io::Result<Option<Event>> {
        let Some(completion) = self.ring.completion().next() else { return Ok(None) };
        if completion.user_data() == WOKEN {
            let mut count = [0; 8];
            rustix::io::retry_on_intr(|| rustix::io::read(&self.wake, &mut count))?;
            self.listen()?;
            return Ok(Some(Event::Woken));
        }
        let slot = usize::try_from(completion.user_data())
            .ok()
            .and_then(|index| self.lent.get_mut(index)?.take());
        let Some(slot) = slot else {
            return Err(io::Error::other("io_uring completed a command that was never submitted"));
        };
        Ok(Some(match completion.result() {
            error if error < 0 => Event::Failed(slot, io::Error::from_raw_os_error(-error)),
            _ => Event::Request(slot),
        }))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // While a command is in progress, the kernel may write to its memory until the ring is torn
        // down, and it does not report when that is. So the memory is leaked.
        self.lent.drain(..).flatten().for_each(mem::forget);
    }
}

/// Returns `entry` with the field `len`, for which the library has no setter on a command.
fn with_len(entry: squeue::Entry128, len: u32) -> squeue::Entry128 {
    const LEN: usize = 24;
    const WHOLE: usize = 128;
    // SAFETY: the type is `struct io_uring_sqe` of 128 bytes (the sizes are compared at compile
    // time), in which any bytes are a value; `len` has been a u32 at byte 24 since the first
    // version of io_uring.
    unsafe {
        let mut bytes = mem::transmute::<squeue::Entry128, [u8; WHOLE]>(entry);
        put(&mut bytes, LEN, &len.to_ne_bytes());
        mem::transmute::<[u8; WHOLE], squeue::Entry128>(bytes)
    }
}
