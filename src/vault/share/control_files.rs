//! Control files, and listings of the store's directories.

use std::sync::Arc;

use std::io;

use crate::crypto::Random;
use crate::store::{Access, Dir, DirEntry, RenameMode};
use crate::vault::error::{Corruption, Fault, Inner};

/// Returns whether a name leads to no object of the wanted kind: to nothing, a link, a directory in
/// place of a file, or the reverse. What is there was not created by this program, and counts as
/// missing. Other errors do not tell whether the object is there.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    use libc::{EISDIR, ELOOP, ENOENT, ENOTDIR, ENXIO};
    matches!(error.raw_os_error(), Some(ENOENT | ENOTDIR | ELOOP | EISDIR | ENXIO))
}

/// Returns whether this process lacks the permission to read what a name leads to. Its owner, or
/// the storage host, can take that away for good, so evidence and long names count as withheld
/// then.
pub(crate) fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// Reads a control file of at most `limit` bytes; `None` if it does not exist.
pub(crate) fn read_control(dir: &dyn Dir, name: &[u8], limit: usize) -> Inner<Option<Vec<u8>>> {
    let file = match dir.open_file(name, Access::Read) {
        Ok(file) => file,
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let size = file.stat()?.size;
    if size > limit as u64 {
        return Err(Fault::Corrupt(Corruption::ControlTooLarge));
    }
    let mut bytes = vec![0; size as usize];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

/// Returns whether a control file exists.
pub(crate) fn exists(dir: &dyn Dir, name: &[u8]) -> Inner<bool> {
    match dir.stat(name) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Like [`read_control`], for a file to which an entry refers. An object of another kind in its
/// place counts as a missing file, and is logged.
pub(crate) fn read_referred(dir: &dyn Dir, name: &[u8], limit: usize) -> Inner<Option<Vec<u8>>> {
    match read_control(dir, name, limit) {
        Err(Fault::Io(e)) if is_missing(&e) => {
            tracing::error!("{}: not a regular file, and so not read", name.escape_ascii());
            Ok(None)
        }
        read => read,
    }
}

/// Writes a control file under a temporary name, flushes it and renames it into place: it exists
/// completely or not at all.
pub(crate) fn write_control(
    dir: &dyn Dir,
    random: &dyn Random,
    name: &[u8],
    bytes: &[u8],
) -> Inner<()> {
    write_as(dir, random, name, bytes, RenameMode::Replace)
}

/// Like [`write_control`], but fails with `EEXIST` if the name is taken.
pub(crate) fn write_new(
    dir: &dyn Dir,
    random: &dyn Random,
    name: &[u8],
    bytes: &[u8],
) -> Inner<()> {
    write_as(dir, random, name, bytes, RenameMode::NoReplace)
}

fn write_as(
    dir: &dyn Dir,
    random: &dyn Random,
    name: &[u8],
    bytes: &[u8],
    mode: RenameMode,
) -> Inner<()> {
    let mut suffix = [0; 6];
    random.fill(&mut suffix);
    let temporary = [b"+tmp-", hex::encode(suffix).as_bytes()].concat();
    // Readable for others if the directory is: members of a share may be other users of the
    // machine. Control files contain no secrets.
    let file = dir.create_file(&temporary, 0o600 | dir.stat_self()?.perm & 0o044)?;
    let written = (|| {
        file.write_at(bytes, 0)?;
        file.sync_all()?;
        dir.rename(&temporary, dir, name, mode)
    })();
    if let Err(e) = written {
        let _ = dir.unlink(&temporary);
        return Err(e.into());
    }
    Ok(())
}

/// Size in bytes of one read of a directory's listing.
pub(crate) const LISTED: usize = 1 << 16;

/// The entries of a directory. Only those of the last read are in memory: the storage host controls
/// how many there are. Ends after an error.
pub(crate) struct Entries {
    dir: Option<Arc<dyn Dir>>,
    cookie: i64,
    read: std::vec::IntoIter<DirEntry>,
}

impl Iterator for Entries {
    type Item = Inner<DirEntry>;

    fn next(&mut self) -> Option<Inner<DirEntry>> {
        loop {
            if let Some(entry) = self.read.next() {
                self.cookie = entry.next;
                return Some(Ok(entry));
            }
            match self.dir.as_ref()?.read(self.cookie, LISTED) {
                Ok(read) if !read.is_empty() => self.read = read.into_iter(),
                ended => {
                    self.dir = None;
                    return ended.err().map(|e| Err(e.into()));
                }
            }
        }
    }
}

/// Iterates over a directory's entries.
pub(crate) fn entries(dir: &dyn Dir) -> Inner<Entries> {
    Ok(Entries { dir: Some(dir.reopen()?), cookie: 0, read: Vec::new().into_iter() })
}

/// Lists all of a directory's entries, for callers that change the directory meanwhile.
pub(crate) fn list(dir: &dyn Dir) -> Inner<Vec<DirEntry>> {
    entries(dir)?.collect()
}

/// Returns all entries of a directory; `None` if there are more than `max`.
pub(crate) fn list_at_most(dir: &dyn Dir, max: usize) -> Inner<Option<Vec<DirEntry>>> {
    let all: Vec<DirEntry> = entries(dir)?.take(max.saturating_add(1)).collect::<Inner<_>>()?;
    Ok((all.len() <= max).then_some(all))
}
