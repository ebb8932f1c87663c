//! Flushes of files, and writing again what a flush has lost.

use std::io;
use std::sync::Arc;

use super::Journal;
use super::state::Inode;
use crate::store::{File, Seek};
use crate::vault::error::{Fault, Inner};
use crate::vault::file::mtime::set_mtime;

impl Journal {
    /// Flushes a file by `flush`. Where that fails, what its records have written may be lost, and
    /// what was written without one.
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

    /// [`Journal::flush`] by who has to know of everything that is lost: another flush, which may
    /// have been told instead, is waited for.
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

    /// Whether somebody was told that bytes of the file were lost.
    pub fn has_lost(&self, inode: Inode) -> bool {
        self.lost.files.lock().contains_key(&inode)
    }

    /// Writes again what can be read of a file of which a flush has failed: no other flush would
    /// bring it to the disk, and none would say so. The caller has seen to it that nobody else
    /// commits to the file.
    pub fn write_lost(&self, inode: Inode, file: &Arc<dyn File>) -> Inner<()> {
        if !self.has_lost(inode) {
            return Ok(());
        }
        // Nor does a checkpoint, which has nothing of it then.
        self.settle(Some(inode))?;
        // Taken out first: a failure that somebody is told of meanwhile counts.
        self.lost.forget(inode);
        let written = write_again(&**file);
        if written.is_err() {
            self.lost.note(inode, file);
        }
        written?;
        if self.has_lost(inode) { Err(Fault::Os(libc::EIO)) } else { Ok(()) }
    }

    /// [`Journal::write_lost`] of all files that are kept open. Nobody commits to any of them any
    /// more, and the journal is empty.
    pub(super) fn write_all_lost(&self) -> Inner<()> {
        let files = std::mem::take(&mut *self.lost.files.lock());
        files
            .into_values()
            .flatten()
            .filter(|_| !self.shared)
            .try_for_each(|file| write_again(&*file))
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
