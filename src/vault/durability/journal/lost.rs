//! Files whose flush has failed. The kernel reports lost writes only once, and later reads of such
//! a file may come from the page cache alone.
//!
//! Rules that hold here
//! * A commit on top of lost bytes would be lost with them. So the bytes are written again before a
//!   commit, or the commit fails.
//! * A file that no program has open is kept open here, so that it can be written again when the
//!   vault is closed. Unlinked files are not, because that would hold their space, and the number
//!   is limited by what a process can keep open.
//! * Of several concurrent flushes of a file, the kernel reports the error to one only. Each flush
//!   is registered here until its result is noted; a caller that needs every result waits for all
//!   of them after its own flush.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::state::Inode;
use crate::store::File;

/// Maximum number of files that are kept open.
const OPEN_MAX: usize = 64;

/// Files whose flush has failed, and the flushes in progress.
#[derive(Default)]
pub(super) struct Lost {
    pub(super) files: Mutex<HashMap<Inode, Option<Arc<dyn File>>>>,
    /// Inodes of the flushes in progress, one entry for each flush.
    flushing: Mutex<Vec<Inode>>,
    flushed: Condvar,
}

impl Lost {
    pub fn note(&self, inode: Inode, file: &Arc<dyn File>) {
        if file.stat_but_times().is_ok_and(|stat| stat.nlink == 0) {
            return;
        }
        let mut files = self.files.lock();
        let room = files.len() < OPEN_MAX;
        files.entry(inode).or_insert_with(|| room.then(|| file.clone()));
    }

    pub fn forget(&self, inode: Inode) {
        self.files.lock().remove(&inode);
    }

    /// Runs `flush` on a file, and notes a loss.
    pub fn flush(
        &self,
        inode: Inode,
        file: &Arc<dyn File>,
        flush: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.flushing.lock().push(inode);
        let flushed = flush().inspect_err(|_| self.note(inode, file));
        let mut flushing = self.flushing.lock();
        if let Some(at) = flushing.iter().position(|&of| of == inode) {
            flushing.swap_remove(at);
        }
        self.flushed.notify_all();
        flushed
    }

    /// Waits until no flush of the file is in progress whose result is not noted yet.
    pub fn wait_for_flushes(&self, inode: Inode) {
        let mut flushing = self.flushing.lock();
        while flushing.contains(&inode) {
            self.flushed.wait(&mut flushing);
        }
    }
}
