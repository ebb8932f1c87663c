//! What the dispatcher returns.

use crate::fuse::ops::{Errno, NodeId};
use crate::vault::Handle;

/// What an answer handed out, to be taken back where it did not reach the kernel.
#[derive(Debug, PartialEq, Eq)]
pub enum Undo {
    /// Nothing.
    Nothing,
    /// One lookup of each of these was counted.
    Nodes(Vec<NodeId>),
    /// One lookup was counted.
    Node(NodeId),
    /// A file was opened.
    File(Handle),
    /// A file was made and opened.
    Created(NodeId, Handle),
    /// A directory was opened.
    Dir(Handle),
}

/// The answer to a request, without its body.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// What the operation failed with; the body is empty then.
    pub error: Option<Errno>,
    /// What to take back where the kernel does not want it.
    pub undo: Undo,
}

impl Answer {
    /// A failure.
    pub fn refusal(error: Errno) -> Answer {
        Answer { error: Some(error), undo: Undo::Nothing }
    }
}

/// Whether an answer may wait until the kernel has had other requests served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It is given on a thread that those other requests may need.
    None,
    /// Nothing else waits for this thread.
    Some,
}
