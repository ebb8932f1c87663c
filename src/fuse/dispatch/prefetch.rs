//! Contents of small files for the kernel's page cache, before it asks for them: a program that
//! opens such a file and reads it then waits for one request less.
//!
//! Rules that hold here
//! * Only on the way of an OPEN for reading of a file that nobody has open, and of which the kernel
//!   is not to keep what it may have. Until they are given, no other OPEN of the file is done, and
//!   no change of its length ([`Prefetch::turn`]). So no page of it can be dirty or on its way to
//!   us, nor locked by who waits for us, and the kernel's size stays the one that we know.
//! * What cannot be read is not given: the program will ask, and get the error.
//! * Not before Linux 6.16: when the kernel began to clear the rest of a file's last page is not
//!   known to us, but there it does.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::fuse::kernel;
use crate::fuse::ops::{NodeId, OpenRequest, Opened, Operations};
use crate::fuse::protocol::notify::Notifier;
use crate::fuse::settings::ServeOptions;

/// The largest file that is given, in bytes. A program that looks at the beginning of a file alone
/// pays for all of it.
pub const LARGEST: usize = 64 << 10;

/// Gives the kernel contents of files that are opened.
pub struct Prefetch {
    ops: Arc<dyn Operations>,
    kernel: Option<Notifier>,
    /// Files that are being opened or get another length.
    busy: Mutex<HashSet<NodeId>>,
    left: Condvar,
}

/// The right to open a file, or to change its length, alone. Passes on when it is dropped.
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
    /// Reads by `ops` and gives to `kernel`, where that keeps pages at all.
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

    /// What the answer to an OPEN says, after the kernel was given the contents of a file for which
    /// that is worth it.
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
