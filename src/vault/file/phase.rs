//! The parts of an open file's state: what is committed and how safely, what is not committed yet,
//! and what the kernel knows.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::Instant;

use crate::format::journal::header_hash;
use crate::vault::error::Fault;

/// How the committed state of a file survives a crash, and so how the next commit is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The ciphertext is empty: the file was never committed, or was truncated by another program.
    /// Its contents are unknown, so reads and writes fail until a program truncates it, and a
    /// commit has nothing to do.
    Void,
    /// Nothing was committed since the file was created or its contents were discarded. Commits
    /// write in place. `replaces`: contents to which a durable header referred were discarded, so
    /// the last close flushes.
    Fresh { replaces: bool },
    /// As `Fresh`, with a first commit at `since`, which no flush has followed.
    Straight { since: Instant, replaces: bool },
    /// The committed header may survive a crash, so the places it refers to are overwritten only by
    /// way of a record.
    Durable,
    /// The removal of the file's last name is durable. No crash brings the file back, so commits
    /// write in place.
    Nameless,
}

impl Phase {
    /// Returns whether a flush has yet to make the committed state durable.
    pub fn is_unflushed(self) -> bool {
        !matches!(self, Phase::Durable | Phase::Nameless)
    }

    /// Returns whether the last close has to flush.
    pub fn replaces(self) -> bool {
        matches!(self, Phase::Fresh { replaces: true } | Phase::Straight { replaces: true, .. })
    }

    /// Returns the phase after a commit in place.
    pub fn after_commit_in_place(self) -> Phase {
        match self {
            Phase::Fresh { replaces } => Phase::Straight { since: Instant::now(), replaces },
            other => other,
        }
    }

    /// Returns the phase after a flush.
    pub fn after_flush(self) -> Phase {
        if self == Phase::Nameless { Phase::Nameless } else { Phase::Durable }
    }

    /// Returns the phase after the contents were discarded.
    pub fn after_discard(self) -> Phase {
        match self {
            Phase::Void => Phase::Fresh { replaces: false },
            Phase::Durable => Phase::Fresh { replaces: true },
            other => other,
        }
    }
}

/// The header in the store.
pub(crate) struct Committed {
    pub header: HeaderBytes,
    /// End of the bytes that the header seals: itself, in the small form with the data.
    pub end: u64,
    /// Length of the ciphertext that it implies.
    pub len: u64,
    /// The plain size that it contains.
    pub size: u64,
    /// A commit has begun to write the next header and has not ended: part of the new header may be
    /// in place.
    pub is_being_replaced: bool,
}

/// The bytes of a header.
pub(crate) struct HeaderBytes {
    bytes: Box<[u8]>,
    hash: OnceLock<[u8; 32]>,
}

impl HeaderBytes {
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Self {
        HeaderBytes { bytes: bytes.into(), hash: OnceLock::new() }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns their BLAKE3 hash, which is computed once. A comparison of the bytes is faster.
    pub fn hash(&self) -> [u8; 32] {
        *self.hash.get_or_init(|| header_hash(&self.bytes))
    }
}

impl PartialEq for HeaderBytes {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Committed {
    /// Notes that a commit begins to write the next header.
    pub fn begin_next(committed: &mut Option<Committed>) {
        if let Some(committed) = committed {
            committed.is_being_replaced = true;
        }
    }
}

/// Changes that the next commit writes.
#[derive(Clone, Copy)]
pub(crate) struct Changes {
    pub since: Instant,
    /// The contents have changed, so the next header names this identity as the author.
    pub rewritten: bool,
    /// The file was shortened, and the commit for it is in progress.
    pub cut: bool,
}

/// What the next commit writes besides the header, and frees.
#[derive(Clone, Default)]
pub(crate) struct Pending {
    /// Size of all pending segments.
    pub bytes: usize,
    /// Size of the pending segments that will be written to fresh places.
    pub riding: usize,
    /// The commit will free places to which the committed header refers.
    pub frees: bool,
    /// Chunks and their segments that become holes of the store with the commit, unless they are
    /// written again before it.
    pub punch: Vec<(u64, Range<usize>)>,
}

/// What may have changed since the last flush of the file.
#[derive(Clone, Copy, Default)]
pub(crate) struct Unflushed {
    /// Fresh bytes were written.
    pub data: bool,
    /// Name, mode or contents.
    pub inode: bool,
    /// A program has set the modification time. A record contains it as well.
    pub mtime: bool,
}

/// Bytes of the store beyond the end of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tail {
    /// There are none, except those that a commit in progress has written.
    #[default]
    Empty,
    /// The store has refused a write: unreferenced bytes may be stored there.
    Surplus,
    /// A record that failed may be in the journal all the same, and rely on places that count as
    /// fresh, as with [`Context::foreign_records`](super::Context::foreign_records).
    ReliedOn,
}

/// What the kernel knows of a file, where that can differ from its state.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelView {
    /// The end of the file according to the kernel, if the kernel may hold pages or a size that
    /// differ from this state. See `space.rs`.
    pub astray: Option<u64>,
    /// Dirty pages of the kernel were refused for lack of space: the errno, and the offset of the
    /// first of them. Pages before it may still arrive.
    pub refused: Option<(i32, u64)>,
    /// A write has lengthened the file since it was opened.
    pub grew: bool,
    /// A program has written without the page cache, so the kernel does not know the time of the
    /// write.
    pub lacks_time: bool,
    /// Second of the modification time that the file had when it was opened.
    pub opened_second: i64,
    /// When a truncation last reduced the size, or set it to 0.
    pub cut_at: Option<Instant>,
}

impl KernelView {
    /// Fails if pages before `end` were refused.
    pub fn check_refused(&self, end: u64) -> Result<(), Fault> {
        match self.refused {
            Some((errno, from)) if end > from => Err(Fault::Os(errno)),
            _ => Ok(()),
        }
    }
}
