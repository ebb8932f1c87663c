//! Flushes of files, and writing again what a flush has lost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::state::{Inode, Running, Tracked};
use super::{FLUSH_AHEAD, Journal, LIMIT};
use crate::store::{File, Seek};
use crate::vault::error::{Fault, Inner};
use crate::vault::file::mtime::set_mtime;

impl Journal {
    /// Flushes the files whose records have waited for `age` or are large, so that the checkpoint,
    /// for which all commits wait, finds little left to flush. If the journal was half full, or a
    /// flush has failed, all files with records are flushed once more and the checkpoint follows.
    ///
    /// # Errors
    /// Those of the checkpoint. A file that cannot be flushed is noted like in a checkpoint.
    pub fn flush_ahead(&self, age: Duration) -> Inner<()> {
        let is_late =
            |tracked: &Tracked| tracked.unflushed >= FLUSH_AHEAD || tracked.since.elapsed() >= age;
        if self.flush_tracked(is_late) {
            // What was written during the first flush, which took longer than this one will.
            self.flush_tracked(|_| true);
            self.checkpoint_locked(&mut self.state.lock())?;
        }
        Ok(())
    }

    /// Flushes the files with records for which `is_late` is true, while commits continue. Returns
    /// whether a checkpoint is due.
    fn flush_tracked(&self, is_late: impl Fn(&Tracked) -> bool) -> bool {
        let mut state = self.state.lock();
        let is_long = |r: &Running| r.appended_len() > LIMIT / 2;
        let mut is_due = state.running.as_ref().is_some_and(is_long);
        let late = state.unflushed.iter_mut().filter(|(_, t)| t.unflushed > 0 && is_late(t));
        let late: Vec<_> = late
            .map(|(inode, tracked)| {
                tracked.unflushed = 0;
                (*inode, tracked.file.clone())
            })
            .collect();
        drop(state);
        for (inode, file) in late {
            if let Err(e) = self.flush(inode, &file, || file.sync_data()) {
                tracing::error!("a file of the journal could not be flushed: {e}");
                is_due = true;
            }
        }
        is_due
    }

    /// Flushes a file by `flush`. If that fails, everything written to it since, with a record or
    /// without, may be lost.
    pub fn flush(
        &self,
        inode: Inode,
        file: &Arc<dyn File>,
        flush: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let flushed = self.lost.flush(inode, file, flush);
        if flushed.is_err() {
            self.not_flushed(inode);
        }
        flushed
    }

    /// Like [`Journal::flush`], for a caller that needs to know of every loss: also waits for
    /// concurrent flushes, to which the kernel may have reported the error instead.
    pub fn flush_all(
        &self,
        inode: Inode,
        file: &Arc<dyn File>,
        flush: impl FnOnce() -> io::Result<()>,
    ) -> Inner<()> {
        let flushed = self.flush(inode, file, flush);
        self.lost.wait_for_flushes(inode);
        flushed?;
        if self.has_lost(inode) { Err(Fault::Os(libc::EIO)) } else { Ok(()) }
    }

    /// Returns whether a flush has reported that bytes of the file were lost.
    pub fn has_lost(&self, inode: Inode) -> bool {
        self.lost.files.lock().contains_key(&inode)
    }

    /// Writes again what can be read of a file whose flush has failed: no later flush would write
    /// the lost bytes to the disk, nor report them. The caller has excluded other commits to the
    /// file.
    pub fn write_lost(&self, inode: Inode, file: &Arc<dyn File>) -> Inner<()> {
        if !self.has_lost(inode) {
            return Ok(());
        }
        // This writes only what records contain, so the rest is written again below.
        self.checkpoint_for(Some(inode))?;
        // Removed first: a failure that is reported in the meantime counts.
        self.lost.forget(inode);
        let written = write_again(&**file);
        if written.is_err() {
            self.lost.note(inode, file);
        }
        written?;
        if self.has_lost(inode) { Err(Fault::Os(libc::EIO)) } else { Ok(()) }
    }

    /// Writes again what can be read of all files that are kept open, unless other daemons may
    /// write to them. There are no commits to any of them any more.
    pub(super) fn write_all_lost(&self) -> Inner<()> {
        let files = std::mem::take(&mut *self.lost.files.lock());
        if !self.writers.own_all_bytes() {
            return Ok(());
        }
        let written = files.into_values().flatten().map(|file| write_again(&*file));
        written.fold(Ok(()), Inner::and)
    }
}

fn write_again(file: &dyn File) -> Inner<()> {
    let stat = file.stat()?;
    let mut buf = vec![0; 1 << 20];
    let mut at = 0;
    while stat.nlink > 0 && at < stat.size {
        // Holes stay holes.
        at = match file.seek(Seek::Data, at) {
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => break,
            other => other?,
        };
        let until = file.seek(Seek::Hole, at)?.min(at + buf.len() as u64);
        let read = file.read_at(&mut buf[..(until - at) as usize], at)?;
        if read == 0 {
            break;
        }
        file.write_at(&buf[..read], at)?;
        at += read as u64;
    }
    set_mtime(file, stat.mtime)?;
    Ok(file.sync_all()?)
}
