//! The property `synced` of a share, and what a machine keeps of such a share outside of the store.
//!
//! A share with this property is in a folder that a sync tool keeps equal on several machines, each
//! of which has its own copy mounted.
//!
//! Rules that hold here
//! * The property is a control file at the share's root with constant bytes, so two machines that
//!   set it do not conflict. It is never unset: an "off" that arrives late would be unsafe. A
//!   machine that has seen it once keeps to it.
//! * With the property, operations cost more, and some findings of the rollback database are notes
//!   and not alarms if other clients have changed the share. Nothing relies on its absence.
//! * Journals of such a share are in a directory of this machine, one for each copy of the share: a
//!   sync tool must not carry them to another machine, where nobody could tell whether their owner
//!   lives. A copy is known by its path, and by the inode of its root once that path is gone.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::crypto::Random;
use crate::store::{Dir, Timestamp};
use crate::vault::error::{Fault, Inner};
use crate::vault::share::control_files::{exists, list, read_control, write_control};

/// Name of the control file.
pub(crate) const SYNCED_FILE: &[u8] = b"+synced";
/// Its bytes.
pub(crate) const SYNCED_TEXT: &[u8] = b"kithfs synced\n";
/// Folder of the state directory: a folder for each share, in it a folder for each copy.
const FOLDER: &[u8] = b"synced";
/// In the folder of a copy: where the copy is.
const PLACE: &[u8] = b"place";
/// Longest record of a place, in bytes.
const PLACE_MAX: usize = 16 << 10;
/// Prefix of the names of journals that could not be replayed as a whole.
pub(crate) const REFUSED: &[u8] = b"+refused-";

/// Returns whether a share has the property.
pub(crate) fn is_set(root: &dyn Dir) -> Inner<bool> {
    exists(root, SYNCED_FILE)
}

/// Sets the property; returns false if it was set before.
pub(crate) fn set(root: &dyn Dir, random: &dyn Random) -> Inner<bool> {
    if is_set(root)? {
        return Ok(false);
    }
    write_control(root, random, SYNCED_FILE, SYNCED_TEXT)?;
    root.sync()?;
    Ok(true)
}

/// Where this machine keeps its own records of a vault.
#[derive(Clone)]
pub struct Local {
    /// A directory of this user on this machine.
    pub state: Arc<dyn Dir>,
    /// The path of the vault's directory.
    pub path: PathBuf,
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Journals that a machine keeps and does not replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The folder that they are in, below the state directory.
    pub folder: PathBuf,
    /// The path of the copy of the share that they belong to.
    pub path: PathBuf,
    /// How many of them could not be replayed as a whole.
    pub refused: usize,
    /// How many wait for a copy that is not at its path any more.
    pub waiting: usize,
}

/// The folders of one copy of a share.
pub(crate) struct Folders {
    /// For new journals.
    pub own: Option<Arc<dyn Dir>>,
    /// Others in which journals of this copy were left.
    pub others: Vec<Arc<dyn Dir>>,
}

/// The root of a copy: its inode with the birth time, and its path.
#[derive(PartialEq)]
struct Place {
    inode: Option<(u64, Timestamp)>,
    path: PathBuf,
}

impl Place {
    fn of(root: &dyn Dir, path: PathBuf) -> Inner<Place> {
        let stat = root.stat_self()?;
        Ok(Place { inode: stat.btime.map(|born| (stat.ino, born)), path })
    }

    fn read(folder: &dyn Dir) -> Inner<Option<Place>> {
        use std::os::unix::ffi::OsStringExt;
        let Some(bytes) = read_control(folder, PLACE, PLACE_MAX)? else { return Ok(None) };
        let Some(end) = bytes.iter().position(|b| *b == b'\n') else { return Ok(None) };
        let numbers: Vec<i64> = String::from_utf8_lossy(&bytes[..end])
            .split(' ')
            .filter_map(|number| number.parse().ok())
            .collect();
        let inode = match numbers[..] {
            [ino, secs, nanos] => {
                Some((ino as u64, Timestamp { secs, nanos: u32::try_from(nanos).unwrap_or(0) }))
            }
            _ => None,
        };
        let path = std::ffi::OsString::from_vec(bytes[end + 1..].to_vec()).into();
        Ok(Some(Place { inode, path }))
    }

    fn write(&self, folder: &dyn Dir, random: &dyn Random) -> Inner<()> {
        let numbers = self.inode.map_or(String::new(), |(ino, born)| {
            format!("{} {} {}", ino as i64, born.secs, born.nanos)
        });
        let bytes = [numbers.as_bytes(), b"\n", self.path.as_os_str().as_encoded_bytes()].concat();
        write_control(folder, random, PLACE, &bytes)?;
        Ok(folder.sync()?)
    }

    /// Returns whether `recorded` is of the same copy.
    fn is(&self, recorded: &Place) -> bool {
        self.path == recorded.path
            || self.inode.is_some() && self.inode == recorded.inode && recorded.is_gone()
    }

    fn is_gone(&self) -> bool {
        matches!(self.path.symlink_metadata(), Err(e) if e.kind() == std::io::ErrorKind::NotFound)
    }
}

/// Warns that this machine's state directory cannot be used.
pub(crate) fn warn_unusable(fault: &Fault) {
    tracing::warn!(
        errno = fault.errno(),
        "the state directory cannot be used; the journal of this mount is in the vault, and a sync tool may carry it to other machines"
    );
}

/// Opens a directory; `None` if it does not exist.
pub(super) fn open(dir: &dyn Dir, name: &[u8]) -> Inner<Option<Arc<dyn Dir>>> {
    match dir.open_dir(name) {
        Ok(dir) => Ok(Some(dir)),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Opens a directory, and makes it durably if it does not exist.
pub(super) fn open_or_make(dir: &dyn Dir, name: &[u8]) -> Inner<Arc<dyn Dir>> {
    if let Some(there) = open(dir, name)? {
        return Ok(there);
    }
    match dir.mkdir(name, 0o700) {
        Err(e) if e.raw_os_error() != Some(libc::EEXIST) => return Err(e.into()),
        _ => {}
    }
    dir.sync()?;
    open(dir, name)?.ok_or(Fault::Os(libc::ENOENT))
}

impl Local {
    /// Returns the folder of a share, if this machine has seen that it is synced.
    fn share(&self, share: &[u8; 32]) -> Inner<Option<Arc<dyn Dir>>> {
        match open(&*self.state, FOLDER)? {
            Some(folder) => open(&*folder, hex::encode(share).as_bytes()),
            None => Ok(None),
        }
    }

    fn make_share(&self, share: &[u8; 32]) -> Inner<Arc<dyn Dir>> {
        let folder = open_or_make(&*self.state, FOLDER)?;
        open_or_make(&*folder, hex::encode(share).as_bytes())
    }

    /// Returns whether this machine has seen that a share is synced.
    pub(crate) fn remembers(&self, share: &[u8; 32]) -> Inner<bool> {
        Ok(self.share(share)?.is_some())
    }

    /// Remembers that a share is synced, and returns the folders of its copy at `path`, below the
    /// vault's directory. With `make` there is one for new journals, unless none can be made.
    ///
    /// # Errors
    /// Those of reading: the copy may have left journals that cannot be found now.
    pub(crate) fn folders(
        &self,
        share: &[u8; 32],
        root: &dyn Dir,
        path: &Path,
        make: bool,
        random: &dyn Random,
    ) -> Inner<Folders> {
        let is_root = path.as_os_str().is_empty();
        let here = Place::of(root, if is_root { self.path.clone() } else { self.path.join(path) })?;
        let folder = match self.share(share)? {
            Some(folder) => folder,
            None => match self.make_share(share) {
                Ok(folder) => folder,
                Err(fault) => {
                    warn_unusable(&fault);
                    return Ok(Folders { own: None, others: Vec::new() });
                }
            },
        };
        let mut others = Vec::new();
        for entry in list(&*folder)? {
            let there = open(&*folder, &entry.name).and_then(|copy| {
                copy.map(|it| Place::read(&*it).map(|place| (it, place))).transpose()
            });
            match there {
                Ok(Some((copy, Some(recorded)))) if here.is(&recorded) => {
                    others.push((copy, recorded));
                }
                Ok(_) => {}
                // Another program's file, or the folder of another user's copy.
                Err(fault)
                    if matches!(fault.errno(), libc::ENOTDIR | libc::EACCES | libc::EPERM) =>
                {
                    tracing::warn!(
                        errno = fault.errno(),
                        "an entry of the state directory is skipped"
                    );
                }
                Err(fault) => return Err(fault),
            }
        }
        let make_own = || {
            for (copy, recorded) in &others {
                if *recorded != here {
                    here.write(&**copy, random)?;
                }
            }
            if let Some((copy, _)) = others.last() {
                return Ok(copy.clone());
            }
            let mut id = [0; 8];
            random.fill(&mut id);
            let copy = open_or_make(&*folder, hex::encode(id).as_bytes())?;
            here.write(&*copy, random)?;
            Ok(copy)
        };
        let own = make.then(make_own).transpose().unwrap_or_else(|fault: Fault| {
            warn_unusable(&fault);
            None
        });
        if own.is_some() {
            others.pop();
        }
        Ok(Folders { own, others: others.into_iter().map(|(copy, _)| copy).collect() })
    }

    /// Returns the journals of a share that this machine keeps and does not replay by itself.
    pub fn kept(&self, share: &[u8; 32]) -> Vec<Kept> {
        let kept = || -> Inner<Vec<Kept>> {
            let mut all = Vec::new();
            let Some(folder) = self.share(share)? else { return Ok(all) };
            for entry in list(&*folder)? {
                let Some(copy) = open(&*folder, &entry.name)? else { continue };
                let Some(place) = Place::read(&*copy)? else { continue };
                let names = list(&*copy)?;
                let count =
                    |prefix: &[u8]| names.iter().filter(|e| e.name.starts_with(prefix)).count();
                let waits = place.path != self.path && place.is_gone();
                let (refused, waiting) =
                    (count(REFUSED), if waits { count(b"+journal-") } else { 0 });
                if refused + waiting > 0 {
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    let folder = Path::new("synced").join(hex::encode(share)).join(name);
                    all.push(Kept { folder, path: place.path, refused, waiting });
                }
            }
            Ok(all)
        };
        kept().unwrap_or_else(|fault| {
            tracing::warn!(errno = fault.errno(), "cannot list this machine's journals");
            Vec::new()
        })
    }
}
