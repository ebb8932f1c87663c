//! What the kernel caches of a file.

/// What the kernel caches of a regular file that is not open: its size and, once it was open here,
/// the committed state its pages belong to.
///
/// With the writeback cache the kernel keeps the first size it was given for a node, whatever later
/// replies contain, and its pages stay when the file is closed. So an open through this node is
/// correct only if the store still has that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cached {
    size: u64,
    mark: u64,
}

impl Cached {
    /// Nothing: no reply has contained a size.
    pub const NOTHING: Cached = Cached { size: u64::MAX, mark: 0 };

    /// The kernel caches a size derived from the length of the ciphertext, and no page.
    pub fn size(size: u64) -> Cached {
        Cached { size, mark: 0 }
    }

    /// The kernel caches pages of the committed state with this header hash and this plain size.
    pub fn state(size: u64, header: &[u8; 32]) -> Cached {
        // Part of the hash is enough to distinguish two states, and there are many nodes.
        Cached { size, mark: u64::from_le_bytes(*header.first_chunk().expect("32 bytes")).max(1) }
    }

    /// Returns whether a file in the state `opened` can be opened beside the cached state.
    pub fn admits(&self, opened: &Cached) -> bool {
        *self == Cached::NOTHING
            || self.size == opened.size && (self.mark == 0 || self.mark == opened.mark)
    }

    /// Returns whether the cached pages, if there are any, are those of `opened`.
    pub fn has_pages_of(&self, opened: &Cached) -> bool {
        self.mark != 0 && self == opened
    }

    /// Returns whether both have the same size.
    pub fn has_size_of(&self, other: &Cached) -> bool {
        self.size == other.size
    }
}
