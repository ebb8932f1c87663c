//! Files of which a flush has failed: the kernel tells once of bytes that it has lost, and what is
//! read of them may be in its memory alone.
//!
//! Rules that hold here
//! * What somebody commits on top of such bytes would be lost with them: before that they are
//!   written again, or nothing is committed.
//! * A file that nobody has open is kept open here, so that it can be written again when the vault
//!   is closed; not one without a name, which would keep its space, and no more of them than a
//!   process may well have open.
//! * Of several flushes of a file that are under way at the same time the kernel tells one. Each is
//!   entered here until what it was told is noted, and who has to know waits for that when his own
//!   is done.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::state::Inode;
use crate::store::File;

/// Files that are kept open at the most.
const OPEN_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Lost {
    pub(super) files: Mutex<HashMap<Inode, Option<Arc<dyn File>>>>,
    /// Of which a flush is under way, once for each.
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

    /// Does `flush` of a file, and notes what it has lost.
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

    /// Waits until no flush of the file is under way whose loss is not noted.
    pub fn wait_for_flushes(&self, inode: Inode) {
        let mut flushing = self.flushing.lock();
        while flushing.contains(&inode) {
            self.flushed.wait(&mut flushing);
        }
    }
}
