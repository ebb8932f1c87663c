//! SEEK_DATA and SEEK_HOLE in a file that is open for writing, of which the kernel may have dirty
//! pages.
//!
//! LSEEK comes before those pages, and what we have not seen would be shown as a hole. So the
//! kernel is told to forget its pages of the range that the answer hangs on, which makes it send
//! the dirty ones among them first (`invalidate_inode_pages2_range`, `fuse_launder_folio`); then
//! the question is asked again.
//!
//! Rules that hold here
//! * Only what is a hole for us is asked for: pages of data that the kernel keeps for reading stay
//!   where they are.
//! * Never on a thread that other requests wait for: the kernel returns once WRITE was served for
//!   each of the pages. It holds the lock of the inode while LSEEK is under way, but none that
//!   WRITE or READ needs, and there is only one LSEEK of an inode at a time.
//! * Where it cannot be done the answer is `EINVAL`, as of a filesystem that knows nothing of
//!   holes: programs then take all for data. That cannot be said otherwise, for it is the kernel
//!   that knows where the file ends. `ENOSYS` would make it say so, but for all files from then on:
//!   it is kept for the one case in which a program may have been told about holes of the same file
//!   before.
//! * Not before Linux 6.16: until then a page that is on its way to us counts as clean and written,
//!   and nothing waits for it.

use std::ops::Range;
use std::sync::Arc;

use crate::fuse::kernel;
use crate::fuse::ops::{Errno, NodeId, Operations, Result, Sought};
use crate::fuse::protocol::notify::Notifier;
use crate::store::Seek;
use crate::vault::Handle;

/// How often one question is asked again. Each time a hole that was found has turned out to be
/// filled, so that it goes on behind it.
const TIMES_MAX: usize = 64;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// The file.
    pub node: NodeId,
    /// Its handle.
    pub handle: Handle,
    /// From where.
    pub offset: u64,
    /// For what.
    pub what: Seek,
}

impl Question {
    /// From the arguments of lseek(2).
    ///
    /// # Errors
    /// `EINVAL` where it is another kind of seeking, `ENXIO` before the beginning.
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

/// Answers questions.
#[derive(Clone)]
pub struct Seeker {
    ops: Arc<dyn Operations>,
    /// `None` where the kernel is not to be asked.
    kernel: Option<Notifier>,
}

/// What can be said at once.
#[derive(Debug)]
pub enum Said {
    /// The answer.
    Answer(u64),
    /// It hangs on pages of this range; [`Seeker::ask_kernel`] knows more.
    Depends(Range<u64>),
}

impl Seeker {
    /// Answers by `ops`, and by the kernel that `notifier` speaks to where that can say.
    pub fn new(ops: Arc<dyn Operations>, notifier: Notifier) -> Seeker {
        Seeker { ops, kernel: kernel::is_since(6, 16).then_some(notifier) }
    }

    /// What can be said without asking the kernel.
    ///
    /// # Errors
    /// Those of the operation; `EINVAL` where the kernel would have to be asked and cannot be.
    pub fn at_once(&self, question: &Question) -> Result<Said> {
        match self.ops.lseek(question.handle, question.offset, question.what, 0..0)? {
            Sought::At(at) => Ok(Said::Answer(at)),
            Sought::Unsent(range) if self.kernel.is_some() => Ok(Said::Depends(range)),
            Sought::Unsent(_) => Err(Errno::EINVAL),
        }
    }

    /// Asks the kernel for its pages of `range`, and of what else turns out to matter; then
    /// answers. Waits until WRITE was served.
    ///
    /// # Errors
    /// Those of the operation; `EINVAL` where the kernel does not send them, or others fill the
    /// holes as they are found.
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
        // 0 is the end of the file, wherever the kernel has it.
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
    fn only_data_and_holes_are_sought_and_nothing_before_the_beginning() {
        assert_eq!(Question::new(1, 2, 3, libc::SEEK_SET).unwrap_err(), Errno::EINVAL);
        assert_eq!(Question::new(1, 2, -1, libc::SEEK_DATA).unwrap_err(), Errno::new(libc::ENXIO));
        let question = Question::new(1, 2, 3, libc::SEEK_HOLE).unwrap();
        assert_eq!(
            (question.node, question.handle, question.offset, question.what),
            (1, 2, 3, Seek::Hole)
        );
    }
}
