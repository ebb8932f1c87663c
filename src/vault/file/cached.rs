//! What the kernel caches of a file.

/// What the kernel's cache holds of a regular file that nobody has open: its size and, once it was
/// open here, the committed state from which the pages are.
///
/// With the writeback cache the kernel keeps the first size that it was told of a node, whatever
/// later answers say, and its pages stay when the file is closed. So an open by way of this node is
/// right only where the store still has that state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cached {
    size: u64,
    mark: u64,
}

impl Cached {
    /// Nothing: no answer has told a size.
    pub const NOTHING: Cached = Cached { size: u64::MAX, mark: 0 };

    /// A size that follows from the length of the ciphertext. No page is cached.
    pub fn size(size: u64) -> Cached {
        Cached { size, mark: 0 }
    }

    /// The committed state with this header hash and this plain size.
    pub fn state(size: u64, header: &[u8; 32]) -> Cached {
        // A part of the hash is enough to tell two states apart, and there are many nodes.
        Cached { size, mark: u64::from_le_bytes(*header.first_chunk().expect("32 bytes")).max(1) }
    }

    /// Whether a file in the state `opened` can be opened beside what is cached.
    pub fn admits(&self, opened: &Cached) -> bool {
        *self == Cached::NOTHING
            || self.size == opened.size && (self.mark == 0 || self.mark == opened.mark)
    }

    /// Whether the cached pages, if there are any, are those of `opened`.
    pub fn has_pages_of(&self, opened: &Cached) -> bool {
        self.mark != 0 && self == opened
    }

    /// Whether an answer may tell `size`.
    pub fn agrees_with(&self, size: u64) -> bool {
        self.size == size
    }

    /// Whether both have one size.
    pub fn agrees_with_size_of(&self, other: &Cached) -> bool {
        self.size == other.size
    }
}
