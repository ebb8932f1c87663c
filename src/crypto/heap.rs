//! Dead copies of keys on the heap. A value that is moved to the heap is copied with its padding and
//! with the unused part of each enum, and so with whatever the stack held there before. No `drop`
//! reaches these bytes.
//!
//! Rule: a block that may hold a value with such bytes is overwritten when it is freed. The program's
//! allocator sees to that, so no type can be forgotten.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;

/// Largest block in bytes that is overwritten when it is freed. Larger ones are buffers for the
/// contents of files, and tables that have grown; overwriting those would cost more than it protects.
const LIMIT: usize = 64 << 10;

/// The system's allocator, which overwrites a block of up to 64 KiB when it is freed.
pub struct Wiping;

/// Overwrites a block of `len` bytes that is about to be freed, if `len` is at most `LIMIT`.
///
/// # Safety
/// `block` is valid for writes of `len` bytes, and nothing reads them any more.
unsafe fn wipe(block: *mut u8, len: usize) {
    if len <= LIMIT {
        // SAFETY: the caller promises that the bytes can be written.
        unsafe { block.write_bytes(0, len) };
        // The compiler cannot omit the write, because `black_box` uses the block.
        black_box(block);
    }
}

// SAFETY: each block comes from the system's allocator and is returned to it with its own layout. The
// additional code allocates nothing and does not unwind.
unsafe impl GlobalAlloc for Wiping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller gives the block back, which has the size of its layout.
        unsafe {
            wipe(block, layout.size());
            System.dealloc(block, layout);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.size() > LIMIT {
            // SAFETY: the caller's promise is passed on.
            return unsafe { System.realloc(block, layout, size) };
        }
        // The system's allocator would free the former block as it is.
        // SAFETY: the caller promises that `size` and the alignment make a layout. Both blocks are
        // valid for as many bytes as are copied, and do not overlap.
        unsafe {
            let grown = System.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !grown.is_null() {
                grown.copy_from_nonoverlapping(block, size.min(layout.size()));
                self.dealloc(block, layout);
            }
            grown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_up_to_the_limit_is_overwritten() {
        for (len, is_wiped) in [(0, true), (1, true), (LIMIT, true), (LIMIT + 1, false)] {
            let mut block = vec![7u8; len];
            // SAFETY: the block has `len` bytes.
            unsafe { wipe(block.as_mut_ptr(), len) };
            let expected = if is_wiped { 0 } else { 7 };
            assert!(block.iter().all(|byte| *byte == expected), "{len} bytes");
        }
    }

    #[test]
    fn a_block_keeps_its_bytes_when_it_grows_and_shrinks() {
        for (from, to) in
            [(1, 8), (8, 1), (LIMIT, LIMIT + 1), (LIMIT + 1, 3 * LIMIT), (2 * LIMIT, 1)]
        {
            let layout = Layout::from_size_align(from, 64).unwrap();
            // SAFETY: the layout is not empty; the block is written before it is read, within its
            // size, and is freed with its last layout.
            unsafe {
                let block = Wiping.alloc(layout);
                block.write_bytes(7, from);
                let block = Wiping.realloc(block, layout, to);
                assert_eq!(block.align_offset(64), 0);
                let kept = std::slice::from_raw_parts(block, from.min(to));
                assert!(kept.iter().all(|byte| *byte == 7), "{from} to {to} bytes");
                Wiping.dealloc(block, Layout::from_size_align(to, 64).unwrap());
            }
        }
    }
}
