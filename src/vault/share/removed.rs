//! The control files of shares that were removed from a synced vault by this machine.
//!
//! Rules that hold here
//! * While this machine removes a share, another one may change a file in it. A sync tool then keeps
//!   the file and deletes the control files, on all machines, and with them the only way to its key.
//!   So they are copied into the state directory first.
//! * Nothing is removed from there: only the user knows whether all machines were in touch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::synced::{Local, open, open_or_make};
use crate::crypto::Random;
use crate::format::name::is_of_others;
use crate::store::{Dir, Kind};
use crate::vault::error::Inner;
use crate::vault::share::control_files::{list, read_control, write_control};

/// Folder of the state directory: a folder for each share.
const FOLDER: &[u8] = b"removed";
/// In the folder of a share: the stored path that it had in the vault, and its control files.
const PLACE: &[u8] = b"place";
const FILES: &[u8] = b"files";
/// Control files that say nothing about keys, by their first letters.
const OTHERS: [&[u8]; 7] =
    [b"+lock", b"+lease", b"+wanted", b"+journal-", b"+created-", b"+tmp-", b"+trash-"];
/// Longest control file and stored path that are read, in bytes. The longest ones are inventories.
const LONGEST: usize = 64 << 20;

/// A share that this machine has removed from a vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedShare {
    /// Stored path that it had in the vault.
    pub path: Vec<u8>,
    /// The folder of its control files, below the state directory.
    pub folder: PathBuf,
}

impl Local {
    /// Copies the control files of a share, which had this stored path, into the state directory.
    pub(crate) fn keep_removed(
        &self,
        share: &dyn Dir,
        id: &[u8; 32],
        path: &[u8],
        random: &dyn Random,
    ) -> Inner<()> {
        let all = open_or_make(&*self.state, FOLDER)?;
        let folder = open_or_make(&*all, hex::encode(id).as_bytes())?;
        copy(share, &open_or_make(&*folder, FILES)?, random)?;
        write_control(&*folder, random, PLACE, path)?;
        Ok(folder.sync()?)
    }

    /// Returns the shares of which this machine keeps the control files.
    pub fn removed(&self) -> Vec<RemovedShare> {
        let removed = || -> Inner<Vec<RemovedShare>> {
            let mut removed = Vec::new();
            let Some(all) = open(&*self.state, FOLDER)? else { return Ok(removed) };
            for entry in list(&*all)? {
                let Some(folder) = open(&*all, &entry.name)? else { continue };
                let Some(path) = read_control(&*folder, PLACE, LONGEST)? else { continue };
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                let folder = Path::new("removed").join(name).join("files");
                removed.push(RemovedShare { path, folder });
            }
            Ok(removed)
        };
        removed().unwrap_or_else(|fault| {
            tracing::warn!(errno = fault.errno(), "cannot list the shares that were removed here");
            Vec::new()
        })
    }
}

/// Copies the control files in a directory, and everything in directories that are such files.
fn copy(from: &dyn Dir, to: &Arc<dyn Dir>, random: &dyn Random) -> Inner<()> {
    for entry in list(from)? {
        if is_of_others(&entry.name) || OTHERS.iter().any(|other| entry.name.starts_with(other)) {
            continue;
        }
        match from.stat(&entry.name)?.kind {
            Kind::Dir => {
                let inside = open_or_make(&**to, &entry.name)?;
                copy(&*from.open_dir(&entry.name)?, &inside, random)?;
            }
            Kind::File => {
                if let Some(bytes) = read_control(from, &entry.name, LONGEST)? {
                    write_control(&**to, random, &entry.name, &bytes)?;
                }
            }
            _ => {}
        }
    }
    Ok(to.sync()?)
}
