//! Stores the contents of small files in the kernel's page cache before it requests them: a program
//! that opens such a file and reads it waits for one request less.
//!
//! Rules that hold here
//! * Contents are stored only during an OPEN for reading, of a file that is not open otherwise and
//!   whose cached pages the kernel is to drop. Until they are stored, no other OPEN of the file and
//!   no change of its length is served ([`Prefetch::turn`]). So no page of it can be dirty, in
//!   writeback, or locked by a process that waits for this daemon, and the kernel's size is the
//!   known one.
//! * Contents that cannot be read are not stored: the program's own read reports the error.
//! * This is done only since Linux 6.16, which clears the rest of a file's last page. It is not known
//!   whether earlier kernels do.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::fuse::kernel;
use crate::fuse::ops::{NodeId, OpenRequest, Opened, Operations};
use crate::fuse::protocol::notify::Notifier;
use crate::fuse::settings::ServeOptions;

/// The largest file that is prefetched, in bytes. A program that reads only the beginning of a file
/// pays for all of it.
pub const LARGEST: usize = 64 << 10;

/// Stores contents of files in the kernel's cache as they are opened.
pub struct Prefetch {
    ops: Arc<dyn Operations>,
    kernel: Option<Notifier>,
    /// Files that are being opened or whose length is being changed.
    busy: Mutex<HashSet<NodeId>>,
    left: Condvar,
}

/// The exclusive right to open a file, or to change its length; released on drop.
pub struct Turn<'a>(Option<(&'a Prefetch, NodeId)>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some((prefetch, node)) = self.0 {
            prefetch.busy.lock().remove(&node);
            prefetch.left.notify_all();
        }
    }
}

impl Prefetch {
    /// Reads with `ops` and stores with `kernel`. Does nothing if the kernel caches no pages, or is
    /// older than Linux 6.16.
    pub fn new(ops: Arc<dyn Operations>, options: &ServeOptions, kernel: Notifier) -> Prefetch {
        let keeps = !options.direct_io && !options.attr_ttl.is_zero() && kernel::is_since(6, 16);
        Prefetch {
            ops,
            kernel: keeps.then_some(kernel),
            busy: Mutex::default(),
            left: Condvar::new(),
        }
    }

    /// Waits until no other request opens `node` or changes its length.
    pub fn turn(&self, node: NodeId) -> Turn<'_> {
        if self.kernel.is_none() {
            return Turn(None);
        }
        let mut busy = self.busy.lock();
        while !busy.insert(node) {
            self.left.wait(&mut busy);
        }
        Turn(Some((self, node)))
    }

    /// Stores the contents of the file that was opened if it is small, and returns what to answer
    /// to the OPEN.
    pub fn give(&self, turn: &Turn<'_>, request: OpenRequest, opened: Opened) -> Opened {
        let (Some(kernel), Some((_, node))) = (&self.kernel, turn.0) else { return opened };
        let size = opened.alone.filter(|_| !opened.keep_cache).unwrap_or(0);
        if size == 0 || size > LARGEST as u64 || request.flags.write || request.flags.truncate {
            return opened;
        }
        let mut contents = vec![0; size as usize];
        let whole = self.ops.read(opened.handle, 0, &mut contents) == Ok(contents.len());
        let given = whole
            && kernel
                .store(node, 0, &contents)
                .inspect_err(|error| tracing::debug!(%error, "contents were not taken"))
                .is_ok();
        Opened { keep_cache: given, ..opened }
    }
}
