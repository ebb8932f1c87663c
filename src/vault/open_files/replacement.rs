//! New files for commits that replace the stored one: see
//! [`crate::vault::durability::replacement`].
//!
//! Rules that hold here
//! * The two files are exchanged, not renamed, and what comes out is looked at. If it is not the
//!   file that the commit is based on, another program has just put its version there: the files
//!   are exchanged back, and the commit goes on as without a replacement, which keeps both
//!   versions. The same if the header of that file has changed: another program has overwritten it.
//! * A file with several names in the store or in the table of nodes, or with a second node, is
//!   written in place; so is one whose owner or attributes cannot be copied.
//! * The name of the new file is one that Syncthing, Dropbox and Nextcloud do not synchronise.
//!   Syncthing also removes it, a day after a crash.
//! * The times of modification and change of the directory change, as with programs that save a
//!   file by renaming a new one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::store::{Dir, File, RenameMode, SetTime, Stat};
use crate::vault::core::Core;
use crate::vault::core::inodes::Link;
use crate::vault::core::overflow::{ACL_ACCESS, ATTRIBUTES};
use crate::vault::durability::replacement::{Beside, PREFIX, Replacement};
use crate::vault::error::Inner;
use crate::vault::file::OpenFile;

/// The name `link`, which leads to an open file.
pub(super) struct Place<'a> {
    pub core: &'a Core,
    pub link: &'a Link,
}

struct New<'a> {
    core: &'a Core,
    dir: Arc<dyn Dir>,
    stored: &'a [u8],
    /// The name beside it: of the new file, and after the exchange of the old one.
    beside: Vec<u8>,
    file: Arc<dyn File>,
    is_removed: bool,
}

impl Beside for Place<'_> {
    fn create(&self, open: &OpenFile) -> Option<Box<dyn Replacement + '_>> {
        let core = self.core;
        let old = open.file();
        let before = old.stat().ok()?;
        let is_alone = before.nlink == 1 && core.nodes.may_replace(open.node, &before);
        if !is_alone || core.open.no_exchange.load(Ordering::Relaxed) {
            return None;
        }
        let dir = core.dir(self.link.parent).ok()?;
        let beside = temporary_name(core);
        let file = dir.create_file(&beside, before.perm).ok()?;
        let stored = self.link.stored();
        let new = New { core, dir, stored, beside, file, is_removed: false };
        let made = new.file.stat().ok()?;
        if made.dev != before.dev || copy_attributes(&*old, &*new.file).is_err() {
            return None;
        }
        new.file.set_times(SetTime::At(before.atime), SetTime::Omit).ok()?;
        if !core.mode.access_times {
            new.file.keep_access_time();
        }
        Some(Box::new(new))
    }
}

impl Replacement for New<'_> {
    fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    fn put(&mut self, open: &OpenFile, base: Option<&[u8; 32]>) -> Option<bool> {
        let now = self.file.stat().ok()?;
        let late = open.replace_stored(|old| {
            // An attribute may have been set by the file's name since it was copied.
            let late = copy_attributes(old, &*self.file)?;
            self.core.nodes.replace(open.node, &now, || self.exchange(old, base))?;
            Ok::<_, io::Error>((late, self.file.clone(), (now.dev, now.ino)))
        });
        let late = late.inspect_err(|e| {
            if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)) {
                self.core.open.no_exchange.store(true, Ordering::Relaxed);
            }
        });
        let late = late.ok()?;
        self.remove();
        Some(late)
    }

    fn sync(&self) -> Inner<()> {
        Ok(self.dir.sync()?)
    }
}

impl New<'_> {
    /// Exchanges the files. Exchanges them back and fails if what comes out is not `old`, or `old`
    /// has another name or not the header `base`.
    fn exchange(&mut self, old: &dyn File, base: Option<&[u8; 32]>) -> io::Result<()> {
        let exchange =
            || self.dir.rename(&self.beside, &*self.dir, self.stored, RenameMode::Exchange);
        exchange()?;
        let header = |file| self.core.header_in(file).map(|header| header.hash());
        let has_header = base.is_none_or(|base| header(old).is_ok_and(|there| there == *base));
        let (old, came) = (old.stat_but_times()?, self.dir.stat(&self.beside));
        let is_old = match &came {
            Ok(came) => (came.dev, came.ino) == (old.dev, old.ino) && old.nlink == 1,
            Err(_) => old.nlink == 0, // a tool may have tidied up
        };
        if is_old && has_header {
            return Ok(());
        }
        exchange().inspect_err(|e| {
            self.is_removed = true;
            tracing::error!(
                "{e}: another program's version of a file keeps the name {}",
                self.beside.escape_ascii()
            );
        })?;
        Err(io::Error::from_raw_os_error(libc::ESTALE))
    }

    fn remove(&mut self) {
        if !std::mem::replace(&mut self.is_removed, true) {
            let _ = self.dir.unlink(&self.beside);
        }
    }
}

impl Drop for New<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns a name for a new file that sync tools leave alone.
fn temporary_name(core: &Core) -> Vec<u8> {
    let mut id = [0; 8];
    core.random.fill(&mut id);
    format!("{PREFIX}{:016x}.tmp", u64::from_be_bytes(id)).into_bytes()
}

/// Gives the second file the owner, mode, attributes and ACL of the first one. Returns whether they
/// were different; fails if this process may not set them.
fn copy_attributes(from: &dyn File, to: &dyn File) -> io::Result<bool> {
    let owner = |stat: &Stat| (stat.uid, stat.gid);
    let (before, mut now) = (from.stat()?, to.stat()?);
    let mut changed = false;
    if owner(&now) != owner(&before) {
        to.chown(Some(before.uid), Some(before.gid))?;
        changed = true;
    }
    for key in [ATTRIBUTES, ACL_ACCESS] {
        let get = |file: &dyn File| match file.get_xattr(key) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            other => other,
        };
        let value = get(from)?;
        if value == get(to)? {
            continue;
        }
        match value {
            Some(value) => to.set_xattr(key, &value)?,
            None => drop(to.remove_xattr(key)?),
        }
        changed = true;
    }
    if changed {
        now = to.stat()?; // a change of the owner or the ACL may have changed the mode
    }
    if now.perm != before.perm {
        to.chmod(before.perm)?;
        changed = true;
    }
    Ok(changed)
}
