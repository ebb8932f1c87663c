//! Plain text on the heap.

use std::fmt;
use std::hint::black_box;
use std::ops::{Deref, DerefMut};

use zeroize::{Zeroize, ZeroizeOnDrop};

/// Plain text, which is overwritten when it is dropped. `Zeroizing` overwrites one byte at a time,
/// which takes longer than sealing the same bytes; this type overwrites them with one `memset`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Plain(Vec<u8>);

impl Plain {
    /// Takes `bytes`; their whole allocation is overwritten on drop.
    pub fn new(bytes: Vec<u8>) -> Self {
        Plain(bytes)
    }
}

/// Overwrites the whole allocation, and leaves the vector filled with zeros.
fn overwrite(bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.resize(bytes.capacity(), 0);
    // The compiler cannot omit the write, because `black_box` uses the bytes.
    black_box(&mut **bytes);
}

impl Zeroize for Plain {
    fn zeroize(&mut self) {
        overwrite(&mut self.0);
        self.0.clear();
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.zeroize();
    }
}

impl ZeroizeOnDrop for Plain {}

impl Deref for Plain {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Plain {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl fmt::Debug for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plain").field("len", &self.0.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_allocation_is_overwritten() {
        let mut bytes = vec![7; 100];
        let (at, capacity) = (bytes.as_ptr(), bytes.capacity());
        bytes.truncate(10);
        overwrite(&mut bytes);
        assert_eq!((bytes.as_ptr(), bytes.len()), (at, capacity));
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}
