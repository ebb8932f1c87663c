//! What the simulated sync tools have in common: how they look at a directory, and how they write a
//! file into it. They know whole files only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Timespec, Timestamps};

use super::trace::{How, Random, ToolKind};

/// A tool that keeps one directory of each machine equal.
pub trait Tool {
    /// Lets the tool of one machine work once. In a torn sync, `between` is called each time that
    /// the tool has read the first halves of some files. Returns how many changes were made
    /// anywhere.
    fn sync(&mut self, machine: usize, how: &How, between: &mut dyn FnMut()) -> usize;

    /// Returns the torn copies that this tool has made.
    fn torn(&self) -> &TornCopies;
}

/// The bytes of copies that were made of files while a program wrote to them, and that the files had
/// neither when half of them was read nor afterwards.
#[derive(Default)]
pub struct TornCopies(BTreeSet<Vec<u8>>);

impl TornCopies {
    /// Returns the files below `root` that are such copies.
    pub fn among(&self, root: &Path) -> BTreeSet<String> {
        if self.0.is_empty() {
            return BTreeSet::new();
        }
        let is_torn =
            |path: &String| fs::read(root.join(path)).is_ok_and(|it| self.0.contains(&it));
        scan(root)
            .into_iter()
            .filter(|(_, entry)| !entry.is_dir)
            .map(|(path, _)| path)
            .filter(is_torn)
            .collect()
    }
}

/// Creates the tool for these directories.
pub fn tool(kind: ToolKind, roots: Vec<PathBuf>) -> Box<dyn Tool> {
    match kind {
        ToolKind::Syncthing => Box::new(super::syncthing::Syncthing::new(roots)),
        ToolKind::Dropbox | ToolKind::Nextcloud => {
            Box::new(super::server::Server::new(kind, roots))
        }
    }
}

/// What a tool remembers of an entry, and compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub is_dir: bool,
    pub size: u64,
    /// Nanoseconds; 0 for a directory.
    pub mtime: i128,
    pub mode: u32,
    pub ino: u64,
}

impl Entry {
    /// Returns whether a tool treats both as the same version. Tools do not notice that a file was
    /// replaced by one of the same size and time.
    pub fn looks_like(&self, other: &Entry) -> bool {
        let of = |entry: &Entry| (entry.is_dir, entry.size, entry.mtime, entry.mode);
        of(self) == of(other)
    }
}

/// Returns whether the tools leave a name alone: temporary files, and the tools' own folders.
pub fn is_ignored(name: &str) -> bool {
    (name.starts_with(".syncthing.") && name.ends_with(".tmp"))
        || (name.starts_with('~') && name.ends_with(".tmp"))
        || name.starts_with(".dropbox.cache")
        || (name.starts_with('.') && name.contains(".~"))
        || name.starts_with(".fuse_hidden")
}

/// Returns everything in a directory, by path.
pub fn scan(root: &Path) -> BTreeMap<String, Entry> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![String::new()];
    while let Some(dir) = dirs.pop() {
        // The directory may have been removed meanwhile.
        let Ok(entries) = fs::read_dir(root.join(&dir)) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().into_string().expect("a name of ASCII");
            if is_ignored(&name) {
                continue;
            }
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            if let Some(entry) = look(root, &path) {
                if entry.is_dir {
                    dirs.push(path.clone());
                }
                found.insert(path, entry);
            }
        }
    }
    found
}

/// Looks at one entry.
pub fn look(root: &Path, path: &str) -> Option<Entry> {
    let meta = fs::symlink_metadata(root.join(path)).ok()?;
    let is_dir = meta.is_dir();
    let mtime = i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec());
    Some(Entry {
        is_dir,
        size: if is_dir { 0 } else { meta.len() },
        mtime: if is_dir { 0 } else { mtime },
        mode: meta.mode() & 0o7777,
        ino: meta.ino(),
    })
}

pub fn parent(path: &str) -> Option<&str> {
    path.rsplit_once('/').map(|(dir, _)| dir)
}

pub fn name_of(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// Puts `suffix` in front of the extension of the name, where tools put it.
pub fn with_suffix(path: &str, suffix: &str) -> String {
    let name = name_of(path);
    let dot = name.rfind('.').filter(|at| *at > 0).unwrap_or(name.len());
    let at = path.len() - name.len() + dot;
    format!("{}{suffix}{}", &path[..at], &path[at..])
}

/// The contents of files as a tool reads them: all at once, or in two halves.
pub struct Reading {
    files: BTreeMap<String, Half>,
}

/// A file of which a part was read.
struct Half {
    file: File,
    bytes: Vec<u8>,
    /// How many bytes are missing.
    rest: u64,
    /// What the file contained at that time, if it is read in two halves.
    before: Option<Vec<u8>>,
}

/// Returns what an open file contains, without moving its position.
fn contents(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

impl Reading {
    /// Opens the files and reads the first half of each, or all if not `torn`. The length is the
    /// one that the scan found, unless another file has taken the place since: no tool reads a file
    /// up to the length of another one.
    pub fn begin<'a>(
        root: &Path,
        files: impl Iterator<Item = (&'a String, &'a Entry)>,
        torn: bool,
    ) -> Reading {
        let mut reading = Reading { files: BTreeMap::new() };
        for (path, entry) in files {
            let Ok(mut file) = File::open(root.join(path)) else { continue };
            let Ok(now) = file.metadata() else { continue };
            let size = if now.ino() == entry.ino { entry.size } else { now.len() };
            let half = if torn { size / 2 } else { size };
            let mut bytes = Vec::new();
            if Read::by_ref(&mut file).take(half).read_to_end(&mut bytes).is_ok() {
                let before = if torn { contents(&file).ok() } else { None };
                let rest = size - half;
                reading.files.insert(path.clone(), Half { file, bytes, rest, before });
            }
        }
        reading
    }

    /// Reads the rest of each file, and adds the copies that are torn to `torn`.
    pub fn finish(self, torn: &mut TornCopies) -> BTreeMap<String, Vec<u8>> {
        let mut read = BTreeMap::new();
        for (path, Half { mut file, mut bytes, rest, before }) in self.files {
            if Read::by_ref(&mut file).take(rest).read_to_end(&mut bytes).is_ok() {
                if before.is_some_and(|before| before != bytes)
                    && contents(&file).is_ok_and(|after| after != bytes)
                {
                    torn.0.insert(bytes.clone());
                }
                read.insert(path, bytes);
            }
        }
        read
    }
}

/// Creates the directories above a path.
pub fn make_parents(root: &Path, path: &str) -> io::Result<()> {
    match parent(path) {
        Some(dir) => fs::create_dir_all(root.join(dir)),
        None => Ok(()),
    }
}

/// Writes a file as tools do: under a temporary name, with its mode and times, and renamed into its
/// place. Fails with `ResourceBusy` if the entry there does not look like `expected`.
pub fn write_file(
    kind: ToolKind,
    root: &Path,
    path: &str,
    bytes: &[u8],
    version: &Entry,
    expected: Option<&Entry>,
) -> io::Result<()> {
    make_parents(root, path)?;
    let temporary = temporary(kind, path);
    make_parents(root, &temporary)?;
    let temporary = root.join(temporary);
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.set_permissions(fs::Permissions::from_mode(version.mode))?;
    drop(file);
    let time = Timespec {
        tv_sec: version.mtime.div_euclid(1_000_000_000) as i64,
        tv_nsec: version.mtime.rem_euclid(1_000_000_000) as _,
    };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, &temporary, &times, rustix::fs::AtFlags::empty())?;
    let there = look(root, path);
    let unchanged = match (&there, expected) {
        (None, None) => true,
        (Some(there), Some(expected)) => there.looks_like(expected),
        _ => false,
    };
    let done = match unchanged {
        true => fs::rename(&temporary, root.join(path)),
        false => Err(io::ErrorKind::ResourceBusy.into()),
    };
    if done.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    done
}

fn temporary(kind: ToolKind, path: &str) -> String {
    let name = name_of(path);
    let hash =
        Random::new(path.bytes().fold(7, |sum, byte| sum.wrapping_mul(31) ^ u64::from(byte)))
            .next();
    let beside = |name: String| match parent(path) {
        Some(dir) => format!("{dir}/{name}"),
        None => name,
    };
    match kind {
        ToolKind::Syncthing if name.len() > 160 => beside(format!(".syncthing.{hash:016x}.tmp")),
        ToolKind::Syncthing => beside(format!(".syncthing.{name}.tmp")),
        ToolKind::Nextcloud => {
            beside(format!(".{}.~{:08x}", &name[..name.len().min(240)], hash as u32))
        }
        ToolKind::Dropbox => format!(".dropbox.cache/{hash:016x}"),
    }
}

/// The time of a conflict as the tools write it: one second later at each call.
#[derive(Default)]
pub struct Clock(u32);

impl Clock {
    /// Returns date and time of day, each without separators.
    pub fn tick(&mut self) -> (String, String) {
        self.0 += 1;
        let (hours, minutes, seconds) = (self.0 / 3600 % 24, self.0 / 60 % 60, self.0 % 60);
        ("20260101".into(), format!("{hours:02}{minutes:02}{seconds:02}"))
    }
}

/// Takes a part of the changes in random order, if the sync is a partial one.
pub fn choose<T>(mut changes: Vec<T>, how: &How) -> Vec<T> {
    if let Some(seed) = how.partial {
        let mut random = Random::new(seed);
        random.shuffle(&mut changes);
        let most = changes.len() + 1;
        changes.truncate(random.below(most));
    }
    changes
}
