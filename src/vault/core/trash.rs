//! Directories that were removed: moved away under a control name, with the control files that they
//! hold, and deleted then.
//!
//! Rules that hold here
//! * Nothing but control files is deleted. What a sync tool has brought in the last moment keeps
//!   the directory, which fsck names.
//! * A store that comes through FUSE keeps a file that is removed while a program has it open under
//!   a hidden name, and so its directory. The directory is gone for programs, and is tried again
//!   until the vault is closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::crypto::Random;
use crate::format::name::is_control;
use crate::store::{Dir, Kind, RenameMode};
use crate::vault::error::{Fault, Inner};
use crate::vault::share::control_files::{entries, list};

/// Such names begin with this.
pub(crate) const TRASH: &[u8] = b"+trash-";
/// Directories that are tried again; each costs a handle. Of more than that the rest waits for
/// fsck.
const LEFT_MAX: usize = 256;
/// A directory that was brought up to be removed.
const BROUGHT: &str = "+removed-";
/// How long the store may take, when the vault is closed, to close what it keeps; and how often is
/// asked.
const CLOSING_TAKES: Duration = Duration::from_secs(1);
const CLOSING_ASKED: Duration = Duration::from_millis(5);

/// A directory, by its parent and its name there.
type Left = (Arc<dyn Dir>, Vec<u8>);

/// Directories that could not be deleted as yet.
#[derive(Default)]
pub(crate) struct Trash(Mutex<Vec<Left>>);

impl Trash {
    /// A name that nobody has, to move a directory away to.
    pub fn fresh_name(random: &dyn Random) -> Vec<u8> {
        let mut id = [0; 8];
        random.fill(&mut id);
        let hex: String = id.iter().map(|b| format!("{b:02x}")).collect();
        [TRASH, hex.as_bytes()].concat()
    }

    /// Deletes a directory that was moved away and holds only control files, now or later.
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

    /// Tries again what could not be deleted.
    pub fn retry(&self) {
        self.0.lock().retain(|(dir, trash)| empty(&**dir, trash).is_err());
    }

    /// The last time: what cannot be deleted now is residue that fsck reports.
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
        // With its parent, which was removed too.
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
        other => other?,
    };
    for entry in entries(&*inside)? {
        let entry = entry?;
        if entry.name.starts_with(TRASH) {
            remove_all(&*inside, &entry.name)?;
        } else if is_control(&entry.name) {
            inside.unlink(&entry.name)?;
        }
    }
    Ok::<_, Fault>(dir.rmdir(trash)?)
}

/// Removes a directory of the store with all that is in it. What is deeper is brought up to its top
/// first: whoever filled it could have made it deeper than our stack, and than there are handles.
pub(in crate::vault) fn remove_all(parent: &dyn Dir, name: &[u8]) -> Inner<()> {
    let top = parent.open_dir(name)?;
    let mut brought = 0u64;
    loop {
        let mut deeper = false;
        for entry in list(&*top)? {
            if top.stat(&entry.name)?.kind != Kind::Dir {
                top.unlink(&entry.name)?;
                continue;
            }
            let dir = top.open_dir(&entry.name)?;
            for inner in list(&*dir)? {
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
