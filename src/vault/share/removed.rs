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
use crate::store::{Dir, Kind};
use crate::vault::error::{Fault, Inner};
use crate::vault::share::control_files::{entries, list, read_control, write_control};

/// Folder of the state directory: a folder for each share.
const FOLDER: &[u8] = b"removed";
/// In the folder of a share: the stored path that it had in the vault, and its control files.
const PLACE: &[u8] = b"place";
const FILES: &[u8] = b"files";
/// The control files that are kept, by their first letters: those of the keys, without which the rest
/// is useless, and then those of names and attributes.
const OF_KEYS: [&[u8]; 4] = [b"+share", b"+manifest-", b"+slots-", b"+inventory-"];
const OF_ENTRIES: [&[u8]; 4] = [b"+moved", b"+long", b"+link-", b"+attr-"];
/// Longest control file and stored path that are read, in bytes. The longest ones are inventories.
const LONGEST: usize = 64 << 20;
/// What is kept of one share at most: anybody who may write to the store can add control files.
const FILES_MAX: usize = 10_000;
const BYTES_MAX: usize = 256 << 20;
/// How deep directories of control files are.
const DEPTH: usize = 2;

/// What may still be copied.
struct Room {
    files: usize,
    bytes: usize,
}

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
        let files = open_or_make(&*folder, FILES)?;
        let mut room = Room { files: FILES_MAX, bytes: BYTES_MAX };
        copy(share, &files, random, &mut room, &OF_KEYS, 0)?;
        write_control(&*folder, random, PLACE, path)?;
        folder.sync()?;
        copy(share, &files, random, &mut room, &OF_ENTRIES, DEPTH)
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

/// Copies the control files in a directory whose names begin with one of `names`, and what is in
/// directories that are such files, to this depth.
fn copy(
    from: &dyn Dir,
    to: &Arc<dyn Dir>,
    random: &dyn Random,
    room: &mut Room,
    names: &[&[u8]],
    depth: usize,
) -> Inner<()> {
    for entry in entries(from)? {
        let name = entry?.name;
        if !names.iter().any(|begin| name.starts_with(begin)) {
            continue;
        }
        let kind = from.stat(&name)?.kind;
        if room.files == 0 {
            return Err(Fault::Os(libc::EFBIG));
        }
        room.files -= 1;
        if kind == Kind::Dir && depth > 0 {
            let inside = open_or_make(&**to, &name)?;
            copy(&*from.open_dir(&name)?, &inside, random, room, &[b""], depth - 1)?;
        }
        if kind == Kind::File
            && let Some(bytes) = read_control(from, &name, LONGEST.min(room.bytes))?
        {
            room.bytes -= bytes.len();
            write_control(&**to, random, &name, &bytes)?;
        }
    }
    Ok(to.sync()?)
}
