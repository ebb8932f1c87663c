//! Dead copies of keys on the stack. Compilers copy values that are moved, and ciphers spill round
//! keys; no `drop` reaches these copies.
//!
//! Rule: each thread that computes with a key overwrites its stack when it ends. The types of keys
//! and most ciphers call `wipe_at_end`.

use std::hint::black_box;

/// Bytes of the stack that are overwritten at the end: several times what the deepest calls with
/// keys take, and an eighth of the default stack of a thread.
pub const DEPTH: usize = 256 << 10;

/// Overwrites the stack when it is dropped.
struct Wipes;

impl Drop for Wipes {
    fn drop(&mut self) {
        wipe::<DEPTH>();
    }
}

thread_local! {
    static AT_END: Wipes = const { Wipes };
}

/// Has this thread overwrite its stack when it ends.
pub(super) fn wipe_at_end() {
    // This fails only while the thread is ending, when the stack is being overwritten or was.
    let _ = AT_END.try_with(|_| ());
}

/// Overwrites `LEN` bytes of the stack below the caller, where calls that have returned left
/// values.
#[inline(never)]
pub fn wipe<const LEN: usize>() {
    // The compiler cannot omit the array, because `black_box` uses its address.
    black_box(&mut [0u8; LEN]);
}
