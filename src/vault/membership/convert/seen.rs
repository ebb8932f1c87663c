//! The looks of a folder's objects when they were copied or compared, and whether they have changed
//! since.
//!
//! Rules that hold here
//! * Objects are identified by their place: inode numbers change on stores behind FUSE.
//! * If the store has whole seconds only, a time does not show a change within the second. Then the
//!   look includes the file's header, which every commit rewrites.

use std::collections::HashMap;

use crate::format::header::PUBLIC;
use crate::format::name::is_control;
use crate::store::{Access, Dir, Kind, Stat, Timestamp};
use crate::vault::error::Inner;
use crate::vault::share::control_files::entries;

/// State of an object of the store that shows whether it was changed.
#[derive(PartialEq, Eq)]
pub(super) struct Look {
    kind: Kind,
    perm: u32,
    owner: (u32, u32),
    size: u64,
    times: [Timestamp; 2],
    /// The plaintext part of a header: the file's id and a nonce, which is unique to each commit.
    beginning: Option<[u8; PUBLIC]>,
}

/// Objects that were copied or compared, by stored path relative to the folder.
pub(super) type Seen = HashMap<Vec<u8>, Look>;

impl Look {
    /// Returns the look of an open directory.
    pub fn of_dir(stat: &Stat) -> Look {
        let Stat { kind, perm, uid, gid, size, mtime, ctime, .. } = *stat;
        Look { kind, perm, owner: (uid, gid), size, times: [mtime, ctime], beginning: None }
    }

    /// Returns the look of a directory entry.
    pub fn of(dir: &dyn Dir, name: &[u8], stat: &Stat) -> Inner<Look> {
        let mut look = Look::of_dir(stat);
        if stat.kind == Kind::File && look.times.iter().all(|time| time.nanos == 0) {
            let mut beginning = [0; PUBLIC];
            dir.open_file(name, Access::Read)?.read_at(&mut beginning, 0)?;
            look.beginning = Some(beginning);
        }
        Ok(look)
    }
}

/// Returns the path of an entry of the directory at `path`.
pub(super) fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Returns whether everything in the store below `dir` looks as it did when it was copied or
/// compared. Takes no lock of the vault.
pub(super) fn unchanged(dir: &dyn Dir, seen: &Seen) -> Inner<bool> {
    Ok(count_unchanged(dir, b"", seen)?.is_some_and(|found| found == seen.len()))
}

/// Returns the number of objects in and below `dir`, including itself; `None` if one of them has
/// changed.
fn count_unchanged(dir: &dyn Dir, path: &[u8], seen: &Seen) -> Inner<Option<usize>> {
    if seen.get(path) != Some(&Look::of_dir(&dir.stat_self()?)) {
        return Ok(None);
    }
    let mut found = 1;
    for entry in entries(dir)? {
        let entry = entry?;
        if is_control(&entry.name) {
            continue;
        }
        let (stat, path) = (dir.stat(&entry.name)?, below(path, &entry.name));
        if stat.kind == Kind::Dir {
            match count_unchanged(&*dir.open_dir(&entry.name)?, &path, seen)? {
                Some(inside) => found += inside,
                None => return Ok(None),
            }
        } else if seen.get(&path) == Some(&Look::of(dir, &entry.name, &stat)?) {
            found += 1;
        } else {
            return Ok(None);
        }
    }
    Ok(Some(found))
}
