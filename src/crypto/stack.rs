//! Dead copies of keys on the stack. Compilers copy values that are moved, and ciphers spill round
//! keys; no `drop` reaches these copies.
//!
//! Rule: each thread that computes with a key overwrites its stack when it ends. The primitives
//! see to that, so no thread can be forgotten.

use std::hint::black_box;

/// Bytes of the stack that are overwritten at the end: several times what the deepest calls with
/// keys take, and an eighth of a thread's stack.
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
    // While the thread ends, it is about to happen anyway.
    let _ = AT_END.try_with(|_| ());
}

/// Overwrites `LEN` bytes of the stack below the caller: what calls that have returned left there.
#[inline(never)]
pub fn wipe<const LEN: usize>() {
    // As its address is used, it is written to.
    black_box(&mut [0u8; LEN]);
}
