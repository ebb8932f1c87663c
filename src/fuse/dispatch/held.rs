//! Dirty pages that the kernel holds back, on a store that has little room or has refused a write.
//!
//! With the writeback cache write(2) ends in the page cache. Before that the kernel needs the mode
//! of the file (`fuse_cache_write_iter`), and sends GETATTR if it has no valid attributes. So the
//! answer to GETATTR can make write(2) fail, and dirty pages can be written back before it. The
//! kernel discards the attributes reliably only if it is notified while GETATTR is in progress.
//!
//! Rules that hold here
//! * GETATTR through a descriptor precedes a write. It also precedes a read or a seek if the
//!   kernel's cached attributes have expired; these are then refused where a write would be.
//! * The kernel drops pages only after a WRITE of each dirty one. So a thread that serves no
//!   request waits for that. The exception is a thread that answers GETATTR and may wait
//!   ([`Patience`]); it holds no lock that WRITE or READ needs.
//! * That exception, which makes write(2) fail with the error of the store, is made only since
//!   Linux 6.16: earlier kernels do not wait for pages that are being written back.

use std::sync::{Arc, mpsc};
use std::{io, thread};

use crate::fuse::dispatch::reply::Patience;
use crate::fuse::kernel;
use crate::fuse::ops::{NodeId, Operations, Result};
use crate::fuse::protocol::notify::Notifier;
use crate::vault::{Forget, Handle};

/// Checks for errors before the kernel accepts a write.
#[derive(Clone)]
pub struct Held {
    ops: Arc<dyn Operations>,
    kernel: Notifier,
    waits_for_pages: bool,
}

impl Held {
    /// Creates a checker that uses `ops`, and makes `kernel` write back its pages.
    pub fn new(ops: Arc<dyn Operations>, kernel: Notifier) -> Held {
        Held { ops, kernel, waits_for_pages: kernel::is_since(6, 16) }
    }

    /// Checks the write that may follow a GETATTR through a descriptor. On a store that has little
    /// room or has refused a write, has the kernel write back its dirty pages before. If this
    /// thread must not wait for that, the kernel only drops the attributes, so the next write is
    /// checked too.
    ///
    /// # Errors
    /// The error with which the write is to fail.
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

/// Returns a function that makes `kernel` drop what it is called with. What need not be dropped
/// before the function returns is left to a thread, which ends when the function is dropped.
///
/// # Errors
/// The thread cannot be started.
pub fn forgetting(kernel: Notifier) -> io::Result<impl Fn(NodeId, Forget) + Send + Sync> {
    let (tell, told) = mpsc::channel();
    let at_once = kernel.clone();
    let names = kernel::is_since(6, 16);
    let run = move || {
        for (node, what) in told {
            let dropped = match &what {
                Forget::Attributes => kernel.inval_inode(node, -1, 0),
                Forget::Pages => kernel.inval_inode(node, 0, 0),
                Forget::Known | Forget::Names | Forget::Done(_) => Ok(()),
                Forget::Name { name, .. } => kernel.inval_entry(node, name),
            };
            if let Err(error) = dropped {
                tracing::debug!(%error, "the kernel does not forget");
            }
            if let Forget::Name { done, .. } | Forget::Done(done) = what {
                let _ = done.try_send(()); // the receiver may not wait any more
            }
        }
    };
    thread::Builder::new().name("kithfs-forget".into()).spawn(run)?;
    Ok(move |node, what| {
        // Without valid attributes the kernel sends GETATTR before the next write, even if the
        // pages are dropped later, and before the next read (AUTO_INVAL_DATA).
        let dropped = match what {
            Forget::Pages | Forget::Known => at_once.inval_inode(node, -1, 0),
            Forget::Names if names => at_once.forget_names(),
            _ => Ok(()),
        };
        if let Err(error) = dropped {
            tracing::debug!(%error, "the kernel does not forget at once");
        }
        if !matches!(what, Forget::Known | Forget::Names) {
            let _ = tell.send((node, what));
        }
    })
}
