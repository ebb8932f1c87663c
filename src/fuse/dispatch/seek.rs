//! SEEK_DATA and SEEK_HOLE in a file that is open for writing, of which the kernel may have dirty
//! pages.
//!
//! LSEEK arrives before those pages are written back, and data that the daemon has not received
//! would be reported as a hole. So the kernel is told to invalidate its pages of the range that the
//! answer depends on, which makes it write back the dirty ones first
//! (`invalidate_inode_pages2_range`, `fuse_launder_folio`). Then the seek is repeated.
//!
//! Rules that hold here
//! * Only pages in holes are invalidated: clean pages of data stay in the page cache.
//! * No thread that other requests wait for does this: the call returns only after a WRITE of each
//!   dirty page. The kernel holds the inode lock during LSEEK, but none that WRITE or READ needs.
//!   There is only one LSEEK of an inode at a time.
//! * If the pages cannot be invalidated, LSEEK fails with `EINVAL`, as on a filesystem that does
//!   not support holes: programs then treat everything as data. No other answer has that effect,
//!   because only the kernel knows where the file ends. `ENOSYS` would make the kernel itself
//!   answer so, but for all files from then on. It is used only where LSEEK may not wait, because
//!   the program may already have been told about holes of the file.
//! * This is done only since Linux 6.16: earlier kernels treat a page in writeback as clean and
//!   written, and do not wait for it.

use std::ops::Range;
use std::sync::Arc;

use crate::fuse::kernel;
use crate::fuse::ops::{Errno, NodeId, Operations, Result, Sought};
use crate::fuse::protocol::notify::Notifier;
use crate::store::Seek;
use crate::vault::Handle;

/// Maximum number of attempts of one seek. Another attempt is needed if the hole that was found has
/// been filled meanwhile; the search then continues behind it.
const TIMES_MAX: usize = 64;

/// A seek.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The file.
    pub node: NodeId,
    /// Its handle.
    pub handle: Handle,
    /// The offset to start at.
    pub offset: u64,
    /// Data or a hole.
    pub what: Seek,
}

impl Question {
    /// Parses the arguments of lseek(2).
    ///
    /// # Errors
    /// `EINVAL` for another kind of seek, `ENXIO` for a negative offset.
    pub fn new(node: NodeId, handle: Handle, offset: i64, whence: i32) -> Result<Question> {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::new(libc::ENXIO))?;
        Ok(Question { node, handle, offset, what })
    }
}

/// Answers seeks.
#[derive(Clone)]
pub struct Seeker {
    ops: Arc<dyn Operations>,
    /// `None` if the kernel's pages cannot be requested.
    kernel: Option<Notifier>,
}

/// The result without the kernel's pages.
#[derive(Debug)]
pub enum Said {
    /// The answer.
    Answer(u64),
    /// It depends on pages of this range; [`Seeker::ask_kernel`] continues.
    Depends(Range<u64>),
}

impl Seeker {
    /// Returns a seeker that uses `ops`, and the kernel of `notifier` if that can write back its
    /// pages.
    pub fn new(ops: Arc<dyn Operations>, notifier: Notifier) -> Seeker {
        Seeker { ops, kernel: kernel::is_since(6, 16).then_some(notifier) }
    }

    /// Returns the result as far as it is known without the kernel's pages.
    ///
    /// # Errors
    /// Those of the operation; `EINVAL` if the kernel's pages are needed and cannot be requested.
    pub fn at_once(&self, question: &Question) -> Result<Said> {
        match self.ops.lseek(question.handle, question.offset, question.what, 0..0)? {
            Sought::At(at) => Ok(Said::Answer(at)),
            Sought::Unsent(range) if self.kernel.is_some() => Ok(Said::Depends(range)),
            Sought::Unsent(_) => Err(Errno::EINVAL),
        }
    }

    /// Makes the kernel write back its pages of `range`, and of further ranges that turn out to
    /// matter; then answers. Waits for the WRITE requests.
    ///
    /// # Errors
    /// Those of the operation; `EINVAL` if the kernel does not write them back, or if other writers
    /// fill the holes as they are found.
    pub fn ask_kernel(&self, question: &Question, mut range: Range<u64>) -> Result<u64> {
        let mut sent = 0..0;
        for _ in 0..TIMES_MAX {
            if !self.make_kernel_send(question.node, &range) {
                break;
            }
            sent = if range.start <= sent.end && sent.start <= range.end {
                sent.start.min(range.start)..sent.end.max(range.end)
            } else {
                range
            };
            match self.ops.lseek(question.handle, question.offset, question.what, sent.clone())? {
                Sought::At(at) => return Ok(at),
                Sought::Unsent(next) => range = next,
            }
        }
        Err(Errno::EINVAL)
    }

    fn make_kernel_send(&self, node: NodeId, range: &Range<u64>) -> bool {
        let Some(kernel) = &self.kernel else { return false };
        let from = i64::try_from(range.start).unwrap_or(i64::MAX);
        // A length of 0 means up to the end of the file, as the kernel knows it.
        let len = if range.end > i64::MAX as u64 {
            0
        } else {
            i64::try_from(range.end - range.start).unwrap_or(0)
        };
        match kernel.inval_inode(node, from, len) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "the kernel does not send its pages");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_data_and_holes_from_offset_zero_are_sought() {
        assert_eq!(Question::new(1, 2, 3, libc::SEEK_SET).unwrap_err(), Errno::EINVAL);
        assert_eq!(Question::new(1, 2, -1, libc::SEEK_DATA).unwrap_err(), Errno::new(libc::ENXIO));
        let question = Question::new(1, 2, 3, libc::SEEK_HOLE).unwrap();
        assert_eq!(
            (question.node, question.handle, question.offset, question.what),
            (1, 2, 3, Seek::Hole)
        );
    }
}
