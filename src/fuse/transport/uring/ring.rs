//! One io_uring with the commands of FUSE: memory goes to the kernel, and comes back with a request
//! in it.
//!
//! Rules that hold here
//! * A [`Slot`] whose memory the kernel has is in `lent` and nowhere else; it comes out when its
//!   command has completed.
//! * The ring is used by the thread that made it alone. The kernel copies a request in the thread
//!   that submitted the command, so that is the thread that is woken.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::memory::{HEADERS, Slot};
use crate::fuse::protocol::abi::{self, URING_HEADER, put, ring_in_out, u64_at};
use crate::fuse::protocol::wire::Device;

/// Where in the area of a command the number of the commit and that of the queue stand (`struct
/// fuse_uring_cmd_req`).
const COMMIT_ID: usize = 8;
const QUEUE_ID: usize = 16;
/// What the completion of the poll on `wake` is known by.
const WOKEN: u64 = u64::MAX;

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// A request is in this slot.
    Request(Slot),
    /// The command of this slot has failed; the memory is ours again.
    Failed(Slot, io::Error),
    /// Somebody has written to the descriptor that is listened to.
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
    /// A ring for the queue with this number and so many entries. `wake` is an eventfd that another
    /// thread writes to.
    ///
    /// # Errors
    /// Those of io_uring_setup(2): `ENOSYS` or `EPERM` where the system has none or forbids it.
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

    /// Gives the memory of `slot` to the kernel for the first time.
    ///
    /// # Errors
    /// Those of io_uring_enter(2), where the ring is full.
    pub fn register(&mut self, mut slot: Slot) -> io::Result<()> {
        let iovecs = slot.iovecs();
        self.command(abi::URING_REGISTER, 0, Some(iovecs), slot)
    }

    /// Gives back the memory of `slot`, with an answer in it.
    ///
    /// # Errors
    /// Those of io_uring_enter(2), where the ring is full.
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
            // SAFETY: what the entry names stays valid until it completes: the descriptors are open
            // as long as `self`, and the memory belongs to a slot in `lent`, which keeps it. `Drop`
            // sees to it that it is kept even if `self` ends before.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.submit()?;
        }
    }

    /// Hands what was pushed to the kernel.
    ///
    /// # Errors
    /// Those of io_uring_enter(2).
    pub fn submit(&mut self) -> io::Result<()> {
        self.enter(0)
    }

    /// Hands over what was pushed and waits until there is an event.
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
                // Events must be taken first.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(()),
                result => return result.map(drop),
            }
        }
    }

    /// Whether [`Ring::next_event`] has one.
    pub fn has_event(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// The next event that is there already.
    ///
    /// # Errors
    /// Those of the calls by which `wake` is listened to again.
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
        // Where a command is under way still, the kernel may write to its memory until the ring is
        // torn down, and nobody says when that is. So the memory stays.
        self.lent.drain(..).flatten().for_each(mem::forget);
    }
}

/// `entry` with the field `len`, for which the library has no setter where it is a command.
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
