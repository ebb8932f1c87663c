//! The memory for requests and replies: each entry of a queue has a block for headers and one for
//! names and data.
//!
//! Rules that hold here
//! * A [`Slot`] is the right to touch the memory of one entry. Code that hands the memory to the kernel
//!   gives the slot away with it ([`super::ring`]), so that no code reads or writes what the kernel
//!   may be writing.
//! * The memory lives as long as any slot of it.

use std::io;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use crate::fuse::protocol::abi::{URING_HEADER, ring_in_out};

/// Size of the headers that the kernel uses: the common one, the operation's own, and the ring's.
pub const HEADERS: usize = 2 * URING_HEADER + ring_in_out::LEN;
/// Offset in the block for headers of the two iovecs that point to both blocks.
const IOVECS: usize = 320;
/// Size of a block for headers in bytes.
const STRIDE: usize = 512;
/// Headers and iovecs fit into a block and do not overlap.
const _: () = assert!(
    HEADERS <= IOVECS
        && IOVECS + 2 * size_of::<libc::iovec>() <= STRIDE
        && IOVECS.is_multiple_of(align_of::<libc::iovec>())
);
const PAGE: usize = 4096;

/// A mapping of zeroed memory with a single owner.
#[derive(Debug)]
struct Area {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is of the process, not of a thread. Nothing is read or written through an
// `Area`; that takes a `Slot`.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the last slot that could reach into it is gone.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The memory of one entry.
#[derive(Debug)]
pub struct Slot {
    area: Arc<Area>,
    index: usize,
    payload_at: usize,
    payload_len: usize,
}

/// Allocates `entries` entries with `payload` bytes each for names and data. `touch` faults the
/// pages in, which would otherwise slow down the first use.
///
/// # Errors
/// Those of mmap(2).
pub fn slots(entries: usize, payload: usize, touch: bool) -> io::Result<Vec<Slot>> {
    let payload = payload.next_multiple_of(PAGE);
    let headers = (entries * STRIDE).next_multiple_of(PAGE);
    let len = headers + entries * payload;
    let populate = if touch { libc::MAP_POPULATE } else { 0 };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | populate;
    // SAFETY: a new mapping of anonymous memory at a place that the kernel chooses touches nothing
    // that exists.
    let start = unsafe {
        libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start =
        NonNull::new(start.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
    let area = Arc::new(Area { start, len });
    let slot = |index| Slot {
        area: area.clone(),
        index,
        payload_at: headers + index * payload,
        payload_len: payload,
    };
    Ok((0..entries).map(slot).collect())
}

impl Slot {
    /// Returns the index of the entry in its queue.
    pub fn index(&self) -> usize {
        self.index
    }

    fn headers_at(&self) -> NonNull<u8> {
        // SAFETY: `slots` made the mapping large enough for the blocks of all entries.
        unsafe { self.area.start.add(self.index * STRIDE) }
    }

    fn payload_at(&self) -> NonNull<u8> {
        // SAFETY: as above.
        unsafe { self.area.start.add(self.payload_at) }
    }

    /// Returns the block for headers and the block for names and data.
    pub fn parts(&mut self) -> (&mut [u8], &mut [u8]) {
        // SAFETY: both blocks are within the mapping, which was zeroed when it was created, and
        // overlap neither each other nor those of other entries. There is one slot for each entry,
        // borrowed mutably as long as the slices live. While the slot is here, the kernel has no
        // command that names this memory.
        unsafe {
            (
                slice::from_raw_parts_mut(self.headers_at().as_ptr(), HEADERS),
                slice::from_raw_parts_mut(self.payload_at().as_ptr(), self.payload_len),
            )
        }
    }

    /// Returns the address of the two iovecs that point to both blocks. They are valid as long as
    /// the memory.
    pub fn iovecs(&mut self) -> u64 {
        let named = [(self.headers_at(), HEADERS), (self.payload_at(), self.payload_len)];
        let iovecs =
            named.map(|(start, len)| libc::iovec { iov_base: start.as_ptr().cast(), iov_len: len });
        // SAFETY: the address is within the block of this slot, aligned (the mapping is, and
        // IOVECS), and beyond the bytes that `parts` returns.
        unsafe {
            let place = self.headers_at().add(IOVECS).cast::<[libc::iovec; 2]>();
            place.write(iovecs);
            place.as_ptr() as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_outlive_the_list() {
        let mut slots = slots(5, 9000, true).unwrap();
        for (index, slot) in slots.iter_mut().enumerate() {
            slot.iovecs();
            let (headers, payload) = slot.parts();
            assert_eq!((headers.len(), payload.len()), (288, 12288));
            assert!(headers.iter().chain(payload.iter()).all(|&byte| byte == 0));
            headers.fill(index as u8 + 1);
            payload.fill(index as u8 + 101);
        }
        let mut last = slots.pop().unwrap();
        for (index, slot) in slots.iter_mut().enumerate() {
            let (headers, payload) = slot.parts();
            assert!(
                headers.iter().all(|&byte| byte == index as u8 + 1)
                    && payload.iter().all(|&byte| byte == index as u8 + 101)
            );
        }
        drop(slots);
        assert!(last.parts().1.iter().all(|&byte| byte == 105));
    }
}
