//! What the kernel holds back of writes, where there may be no room for it or it was refused.
//!
//! Under the writeback cache write(2) ends in the kernel's pages. Before that the kernel wants to
//! know the mode of the file (`fuse_cache_write_iter`), and asks with GETATTR where it has
//! forgotten it: so write(2) can be made to fail, and what the kernel holds of the file can be had
//! first. It has forgotten the attributes for good where it is told to forget them while GETATTR is
//! under way.
//!
//! Rules that hold here
//! * GETATTR through a descriptor comes before a write. It also comes before a read or a seek when
//!   the kernel's time for attributes has run out, which are so refused where a write would be.
//! * Pages are dropped by a thread that serves no request: the kernel waits until WRITE was served
//!   for each that is dirty. While they are dropped for the answer to a GETATTR, that answer is
//!   under way, but no lock that WRITE or READ needs is held.
//! * Not before Linux 6.16 for pages of which the program is to know more: until then nothing waits
//!   for one that is on its way to us.

use std::sync::{Arc, mpsc};
use std::{io, thread};

use crate::fuse::dispatch::reply::Patience;
use crate::fuse::kernel;
use crate::fuse::ops::{NodeId, Operations, Result};
use crate::fuse::protocol::notify::Notifier;
use crate::vault::{Forget, Handle};

/// Asks before the kernel takes in a write.
#[derive(Clone)]
pub struct Held {
    ops: Arc<dyn Operations>,
    kernel: Notifier,
    waits_for_pages: bool,
}

impl Held {
    /// Asks `ops`, and has `kernel` send its pages.
    pub fn new(ops: Arc<dyn Operations>, kernel: Notifier) -> Held {
        Held { ops, kernel, waits_for_pages: kernel::is_since(6, 16) }
    }

    /// Answers what a GETATTR through a descriptor is about: whether the write behind it may come,
    /// after the kernel has sent what it holds already. Without patience that is left to the
    /// kernel.
    ///
    /// # Errors
    /// What the write is to fail with.
    pub fn before_write(&self, node: NodeId, handle: Handle, patience: Patience) -> Result<()> {
        if !self.ops.before_write(handle)? {
            return Ok(());
        }
        let sends = patience == Patience::Some && self.waits_for_pages;
        if let Err(error) = self.kernel.inval_inode(node, if sends { 0 } else { -1 }, 0) {
            tracing::debug!(%error, "the kernel does not send its pages");
        }
        if sends { self.ops.before_write(handle).map(|_| ()) } else { Ok(()) }
    }
}

/// Has `kernel` forget what it is told, on a thread of its own, which ends when what is returned is
/// dropped.
///
/// # Errors
/// The thread cannot be started.
pub fn forgetting(kernel: Notifier) -> io::Result<impl Fn(NodeId, Forget) + Send + Sync> {
    let (tell, told) = mpsc::channel();
    let at_once = kernel.clone();
    let run = move || {
        for (node, what) in told {
            let from = match what {
                Forget::Attributes => -1,
                Forget::Pages => 0,
            };
            if let Err(error) = kernel.inval_inode(node, from, 0) {
                tracing::debug!(%error, ?what, "the kernel does not forget");
            }
        }
    };
    thread::Builder::new().name("kithfs-forget".into()).spawn(run)?;
    Ok(move |node, what| {
        // Before the refusal is known: the next write asks, whenever the pages go. The file is
        // open.
        if what == Forget::Pages
            && let Err(error) = at_once.inval_inode(node, -1, 0)
        {
            tracing::debug!(%error, "the kernel does not forget attributes");
        }
        let _ = tell.send((node, what));
    })
}
