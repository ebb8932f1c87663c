//! Removed directories: moved away under a control name, with their control files, and then
//! deleted.
//!
//! Rules that hold here
//! * Nothing but control files is deleted. Files delivered by a sync tool at the last moment keep
//!   the directory, which fsck reports.
//! * Stores behind FUSE or NFS keep a removed file under a hidden name as long as a program has it
//!   open, and with it the directory. For programs the directory is gone; its deletion is retried
//!   until the vault is closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::crypto::Random;
use crate::format::name::is_control;
use crate::store::{Dir, Kind, RenameMode};
use crate::vault::error::{Fault, Inner};
use crate::vault::share::control_files::entries;

/// Prefix of the names of directories that are being deleted.
pub(crate) const TRASH: &[u8] = b"+trash-";
/// Maximum number of directories whose deletion is retried; each costs a handle. Further ones are
/// left to fsck.
const LEFT_MAX: usize = 256;
/// Prefix of the names of directories that [`remove_all`] moves to the top.
const BROUGHT: &str = "+removed-";
/// How long closing the vault waits for the store to drop removed files, and the poll interval.
const CLOSING_TAKES: Duration = Duration::from_secs(1);
const CLOSING_ASKED: Duration = Duration::from_millis(5);

/// A directory, by its parent and its name there.
type Left = (Arc<dyn Dir>, Vec<u8>);

/// Directories that could not be deleted yet.
#[derive(Default)]
pub(crate) struct Trash(Mutex<Vec<Left>>);

impl Trash {
    /// Returns an unused name to which a directory can be moved away.
    pub fn fresh_name(random: &dyn Random) -> Vec<u8> {
        let mut id = [0; 8];
        random.fill(&mut id);
        [TRASH, hex::encode(id).as_bytes()].concat()
    }

    /// Deletes a directory that was moved away to the name `trash` in `dir`, now or later. It
    /// should hold only control files.
    pub fn empty(&self, dir: &Arc<dyn Dir>, trash: &[u8]) {
        let Err(fault) = empty(&**dir, trash) else { return };
        tracing::debug!(
            errno = fault.errno(),
            "removed directory {} is still there",
            String::from_utf8_lossy(trash)
        );
        let mut left = self.0.lock();
        if left.len() < LEFT_MAX {
            left.push((dir.clone(), trash.to_vec()));
        }
    }

    /// Retries the deletions that failed.
    pub fn retry(&self) {
        self.0.lock().retain(|(dir, trash)| empty(&**dir, trash).is_err());
    }

    /// Retries for the last time: directories that cannot be deleted now are residue that fsck
    /// reports.
    pub fn close(&self) {
        let end = Instant::now() + CLOSING_TAKES;
        self.retry();
        while !self.0.lock().is_empty() && Instant::now() < end {
            std::thread::sleep(CLOSING_ASKED);
            self.retry();
        }
        for (_, trash) in self.0.lock().drain(..) {
            tracing::warn!("removed directory left {} behind", String::from_utf8_lossy(&trash));
        }
    }
}

fn empty(dir: &dyn Dir, trash: &[u8]) -> Inner<()> {
    let inside = match dir.open_dir(trash) {
        // Removed with its parent.
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
        other => other?,
    };
    for entry in entries(&*inside)? {
        let entry = entry?;
        if !is_control(&entry.name) {
            continue;
        }
        // File servers leave directories in every directory (`@eaDir`).
        match inside.stat(&entry.name)?.kind {
            Kind::Dir => remove_all(&*inside, &entry.name)?,
            _ => inside.unlink(&entry.name)?,
        }
    }
    Ok::<_, Fault>(dir.rmdir(trash)?)
}

/// Removes a directory of the store with all its contents. Deeper directories are moved to its top
/// first, and no listing is in memory as a whole: a writer of the store could have made the tree
/// deeper than the stack or the number of handles allows, with any number of entries.
pub(in crate::vault) fn remove_all(parent: &dyn Dir, name: &[u8]) -> Inner<()> {
    let top = parent.open_dir(name)?;
    let mut brought = 0u64;
    loop {
        let mut deeper = false;
        for entry in entries(&*top)? {
            let entry = entry?;
            if top.stat(&entry.name)?.kind != Kind::Dir {
                top.unlink(&entry.name)?;
                continue;
            }
            let dir = top.open_dir(&entry.name)?;
            for inner in entries(&*dir)? {
                let inner = inner?;
                if dir.stat(&inner.name)?.kind != Kind::Dir {
                    dir.unlink(&inner.name)?;
                    continue;
                }
                deeper = true;
                // An interrupted call may have left such names.
                loop {
                    let free = format!("{BROUGHT}{brought}");
                    brought += 1;
                    match dir.rename(&inner.name, &*top, free.as_bytes(), RenameMode::NoReplace) {
                        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {}
                        other => break other?,
                    }
                }
            }
            top.rmdir(&entry.name)?;
        }
        if !deeper {
            return Ok(parent.rmdir(name)?);
        }
    }
}
