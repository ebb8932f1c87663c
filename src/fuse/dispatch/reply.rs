//! What the dispatcher returns.

use crate::fuse::ops::{Errno, NodeId};
use crate::vault::Handle;

/// What an answer handed out. It is taken back if the answer does not reach the kernel.
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
    /// A file was created and opened.
    Created(NodeId, Handle),
    /// A directory was opened.
    Dir(Handle),
}

/// The answer to a request, without its body.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The error of the operation; the body is then empty.
    pub error: Option<Errno>,
    /// What to take back if the kernel does not take the answer.
    pub undo: Undo,
}

impl Answer {
    /// Returns a failure.
    pub fn refusal(error: Errno) -> Answer {
        Answer { error: Some(error), undo: Undo::Nothing }
    }
}

/// Whether an answer may wait until other requests of the kernel have been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// No: those other requests may need this thread.
    None,
    /// Yes: no other request waits for this thread.
    Some,
}
