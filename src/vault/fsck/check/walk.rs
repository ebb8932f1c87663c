//! The walk through a share: directories, and entries by their names; files are collected for the
//! verification of their contents.
//!
//! Rules that hold here
//! * The walk holds a directory of the store and its tag, not nodes; so it also reaches directories
//!   whose names cannot be read.
//! * A fault whose remedy moves a directory comes after the faults inside it; other faults of a
//!   directory come before those.
//! * Memory is bounded, because the storage host controls the number of entries and of faults. The
//!   walk holds a part of each listing, and at most [`FAULTS_MAX`] faults of each kind and
//!   [`PATHS_MAX`] bytes of paths.
//! * An entry that vanishes between the listing and its check was removed by another process: no
//!   fault.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::sync::Arc;

use super::content::Job;
use super::descent::Inside;
use super::hints;
use super::unused::Used;
use crate::crypto::Tag;
use crate::format::junction;
use crate::format::moved;
use crate::format::name::{
    LONG_DIRECTORY, Parts, is_control, is_of_others, long_hash, parse, without_suffix,
};
use crate::format::suffix::{mark_of, split_mark};
use crate::store::{Access, Dir, DirEntry, Kind, Stat};
use crate::vault::core::Core;
use crate::vault::core::trash::TRASH;
use crate::vault::directory::folder::Folder;
use crate::vault::directory::names::Meaning;
use crate::vault::durability::replacement;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::file::{Load, OpenFile};
use crate::vault::fsck::check::content;
use crate::vault::fsck::remedy::{Action, Remedy};
use crate::vault::fsck::report::{
    CheckFault, CheckNote, CheckProgress, More, NestedShares, NoteKind, Progress, describe, join,
};
use crate::vault::namespace::xattr;
use crate::vault::share::control_files::{entries, is_missing};
use crate::vault::share::descriptor::copy_of;
use crate::vault::share::enter::IDENTITY_FILE;
use crate::vault::types::ROOT;

/// A conflict copy has this name with a sync tool's suffix behind it.
const IDENTITY: &[u8] = IDENTITY_FILE.as_bytes();

/// Prefixes of the names of control files at the root of a share. The check reads only some of
/// them: targets of long links and long lists of attributes, with the entries that refer to them.
/// Others are verified when the share is opened.
const ROOT_CONTROLS: [&[u8]; 14] = [
    b"+share",
    b"+manifest-",
    b"+slots-",
    IDENTITY,
    b"+lock",
    b"+synced",
    b"+shared",
    b"+lease",
    b"+wanted",
    b"+journal-",
    b"+created-",
    b"+link-",
    b"+attr-",
    b"+inventory-",
];
/// An attribute that does not exist. Removing it shows whether this process can see attributes of
/// this kind.
const PROBE: &[u8] = b"trusted.kithfs-probe";
/// Maximum number of files open at a time, and of plain bytes and bytes of paths that wait for
/// verification.
const OPEN_MAX: usize = 128;
const WAITING_MAX: u64 = 64 << 20;
/// Size in bytes of one read of a directory's listing: the walk holds this much for each directory
/// it is in.
pub(super) const LISTED: usize = 16 << 10;
/// Maximum number of faults that are listed; the same for residue, and for objects kept by earlier
/// repairs.
const FAULTS_MAX: u64 = 10_000;
/// Maximum number of bytes of the paths that are listed: those of deep directories are long.
const PATHS_MAX: usize = 64 << 20;

/// Why bytes beyond the end of a file are left alone.
const NEEDED: &str = "a journal may need them, so they stay until it was replayed";

/// Why a damaged file is left alone.
const COMPLETED: &str = "a journal may complete it, so it stays until that was replayed";

/// What is reported of a directory with two shares.
const MADE_TWICE: &str = "was made a share by two machines: its descriptor is that of one share, and the other one is entered";

/// A directory on the walk.
pub(super) struct Place {
    pub dir: Arc<dyn Dir>,
    /// The directory's tag. If its name is unknown: the likely tag of its entries.
    pub tag: Tag,
    pub plain: Vec<u8>,
    pub cipher: Vec<u8>,
    /// The first part of the listing, until the directory is entered.
    pub first: Vec<DirEntry>,
}

/// A file whose contents are to be verified.
struct Waiting {
    plain: Vec<u8>,
    cipher: Vec<u8>,
    /// Fault to report if the contents are good.
    otherwise: Option<CheckFault>,
    /// Remedy if the contents are damaged.
    keep: Remedy,
}

/// A walk of the check through one share.
pub(super) struct Walk<'a> {
    core: &'a Core,
    pub seen: CheckProgress,
    pub faults: Vec<CheckFault>,
    /// Numbers of faults that are counted and not listed.
    pub more: More,
    /// Numbers of faults that are listed.
    told: More,
    /// Bytes of the paths that are listed.
    paths: usize,
    /// Entries that are marked or conflict copies.
    pub notes: Vec<CheckNote>,
    /// Shares that the walk met and did not enter.
    pub shares: NestedShares,
    pub(super) progress: Progress<'a>,
    jobs: Vec<Job>,
    waiting: Vec<Waiting>,
    bytes: u64,
    /// One entry is checked, without the entries in it.
    pub(super) single: bool,
    /// See [`CheckReport::strangers`](super::CheckReport::strangers).
    pub strangers: u64,
    /// Stored paths that remedies of this walk will use.
    claimed: HashSet<Vec<u8>>,
    /// References of the entries.
    pub used: Used,
    /// Whether this process can see attributes of links and special files.
    sees_special: OnceCell<bool>,
    /// Whether a journal may need bytes beyond the end of a file.
    keeps_surplus: OnceCell<bool>,
}

/// Returns `remedy` if the object is damaged. After a read error of the store, or without
/// permission, the object may be intact, so there is no remedy.
fn of_damage(fault: &Fault, remedy: Remedy) -> Option<Remedy> {
    matches!(fault, Fault::Format(_) | Fault::Corrupt(_)).then_some(remedy)
}

fn vanished(fault: &Fault) -> bool {
    matches!(fault, Fault::Io(e) if e.raw_os_error() == Some(libc::ENOENT))
}

impl<'a> Walk<'a> {
    pub fn new(core: &'a Core, progress: Progress<'a>) -> Walk<'a> {
        Walk {
            core,
            seen: CheckProgress::default(),
            faults: Vec::new(),
            more: More::default(),
            told: More::default(),
            paths: 0,
            notes: Vec::new(),
            shares: Vec::new(),
            progress,
            jobs: Vec::new(),
            waiting: Vec::new(),
            bytes: 0,
            single: false,
            strangers: 0,
            claimed: HashSet::new(),
            used: Used::default(),
            sees_special: OnceCell::new(),
            keeps_surplus: OnceCell::new(),
        }
    }

    pub(super) fn fault(
        &mut self,
        plain: &[u8],
        cipher: &[u8],
        what: impl Into<String>,
        remedy: Option<Remedy>,
    ) {
        self.tell(CheckFault::new(plain, cipher, what, remedy));
    }

    fn tell(&mut self, fault: CheckFault) {
        self.used = Used { unlooked: self.used.unlooked, ..Used::default() };
        if *self.told.kind_of(&fault) == FAULTS_MAX
            || !self.has_room(fault.plain.len() + fault.cipher.len())
        {
            *self.more.kind_of(&fault) += 1;
        } else {
            *self.told.kind_of(&fault) += 1;
            self.faults.push(fault);
        }
    }

    /// Returns whether there is room to list paths of that length; if so, counts them.
    fn has_room(&mut self, len: usize) -> bool {
        let sum = self.paths.saturating_add(len);
        let has_room = sum <= PATHS_MAX;
        if has_room {
            self.paths = sum;
        }
        has_room
    }

    /// Checks the entry at a stored path and everything below it.
    pub fn from(&mut self, cipher: &[u8]) -> Inner<()> {
        if cipher.is_empty() {
            self.root_attributes();
            let place = self.root()?;
            self.directory(Inside { place, foreign: None });
        } else {
            let (place, stored) = self.parent_of(cipher)?;
            self.entry_of(&place, &stored);
        }
        self.flush();
        Ok(())
    }

    /// Checks one entry by its stored path, without the contents of a directory.
    pub fn single(&mut self, cipher: &[u8]) -> Inner<()> {
        self.single = true;
        if cipher.is_empty() {
            self.root_attributes();
            let place = self.root()?;
            self.directory(Inside { place, foreign: None });
            return Ok(());
        }
        let (place, stored) = self.parent_of(cipher)?;
        place.dir.stat(&stored)?;
        self.entry_of(&place, &stored);
        self.flush();
        Ok(())
    }

    /// Checks the attributes of the root, which is no entry of any directory.
    fn root_attributes(&mut self) {
        let root = self.core.root.clone();
        self.attributes(&*root, b"", Kind::Dir, (b"", b""), b"root");
    }

    fn root(&self) -> Inner<Place> {
        let (dir, tag) = (self.core.root.reopen()?, self.core.keys.root_tag());
        let first = dir.read(0, LISTED)?;
        Ok(Place { dir, tag, plain: Vec::new(), cipher: Vec::new(), first })
    }

    fn parent_of(&mut self, cipher: &[u8]) -> Inner<(Place, Vec<u8>)> {
        let mut place = self.root()?;
        let mut parts = cipher.split(|b| *b == b'/').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return Ok((place, part.to_vec()));
            }
            let name = self.name_in(&place, part);
            place = self.enter(&place, part, name.as_deref())?;
        }
        Err(Fault::Os(libc::ENOENT))
    }

    fn entry_of(&mut self, place: &Place, stored: &[u8]) {
        let name = self.name_in(place, stored);
        if let Some(inside) = self.entry(place, stored, name) {
            self.directory(inside);
        }
    }

    /// Returns the plain name of an entry; `None` if it cannot be decoded.
    pub(super) fn name_in(&self, place: &Place, stored: &[u8]) -> Option<Vec<u8>> {
        self.folder(place).decode(stored).ok().flatten()
    }

    /// Opens a sub-directory. `name` is `None` if the entry's name is unknown. Fails with
    /// [`Fault::Boundary`] for a nested share.
    fn enter(&self, parent: &Place, stored: &[u8], name: Option<&[u8]>) -> Inner<Place> {
        let dir = parent.dir.open_dir(stored)?;
        let (plain, cipher) =
            (join(&parent.plain, name.unwrap_or(b"?")), join(&parent.cipher, stored));
        // Without the name, no junction for this place can be found. If the directory is a nested
        // share's, the names in it do not open with this share's keys.
        let folder = self.folder(parent);
        let place = folder.place_name(stored, name.unwrap_or(b""))?;
        folder.check_boundary(&*dir, place.as_deref())?;
        let first = dir.read(0, LISTED)?;
        let tag = match self.core.keys.tag_of(stored) {
            Some(tag) => tag,
            None => hints::likely_tag(self.core, &*dir).unwrap_or_default(),
        };
        Ok(Place { dir, tag, plain, cipher, first })
    }

    fn folder(&self, place: &Place) -> Folder<'a> {
        self.core.folder_at(place.dir.clone(), place.tag)
    }

    /// Checks an entry. Returns a directory that is to be entered.
    pub(super) fn entry(
        &mut self,
        place: &Place,
        stored: &[u8],
        name: Option<Vec<u8>>,
    ) -> Option<Inside> {
        let cipher = join(&place.cipher, stored);
        if is_control(stored) {
            self.control(place, stored, &cipher);
            return None;
        }
        let stat = match place.dir.stat(stored) {
            Ok(stat) => stat,
            Err(e) => {
                match e.raw_os_error() {
                    Some(libc::ENOENT) => self.used.unlooked += 1,
                    _ => self.fault(&place.plain, &cipher, e.to_string(), None),
                }
                return None;
            }
        };
        let name = match name {
            Some(name) => name,
            // Decodes again to learn the error: the store may have failed to read a long name.
            None => match self.folder(place).decode(stored) {
                Ok(Some(name)) => name,
                Err(Fault::Io(e)) => {
                    self.fault(&join(&place.plain, b"?"), &cipher, e.to_string(), None);
                    return None;
                }
                _ => return self.foreign(place, stored, &stat, &cipher),
            },
        };
        let plain = join(&place.plain, &name);
        self.note(stored, &name, &plain);
        if self.is_lost(stored) {
            let is_file = stat.kind == Kind::File;
            let known =
                is_file.then(|| hints::long_name_of(self.core, &*place.dir, stored)).flatten();
            let remedy = known.map(|sealed| Remedy(Action::LongName { sealed }));
            self.fault(&plain, &cipher, "has lost its long name", remedy);
        }
        let inside = (stat.kind == Kind::Dir).then(|| self.enter(place, stored, Some(&name)));
        if let Some(Err(Fault::Boundary)) = inside {
            // The nested share is checked when it is entered. So are its attributes, which are
            // sealed under its own keys.
            if let Some(copy) = self.right_descriptor(place, stored, &name) {
                let remedy = Remedy(Action::Descriptor { copy });
                self.fault(&plain, &cipher, MADE_TWICE, Some(remedy));
            }
            self.shares.push((plain, cipher));
            return None;
        }
        if !self.attributes(&*place.dir, stored, stat.kind, (&plain, &cipher), &name) {
            return None;
        }
        let keep = || Remedy(Action::Keep { name: name.clone(), entries: None });
        match stat.kind {
            Kind::Dir => match inside {
                Some(Ok(place)) => return Some(Inside { place, foreign: None }),
                Some(Err(fault)) if !vanished(&fault) => {
                    self.fault(&plain, &cipher, describe(&fault), None)
                }
                _ => self.used.unlooked += 1,
            },
            Kind::File => self.file(
                place,
                stored,
                &stat,
                Waiting { plain, cipher, otherwise: None, keep: keep() },
            ),
            Kind::Symlink => self.symlink(place, stored, (&plain, &cipher), keep()),
            _ => self.seen.others += 1,
        }
        (self.progress)(&self.seen);
        None
    }

    /// Returns the name of the conflict copy that is the descriptor of the share at an entry, if the
    /// descriptor there is another share's.
    fn right_descriptor(&self, place: &Place, stored: &[u8], name: &[u8]) -> Option<Box<[u8]>> {
        let folder = self.folder(place);
        let junction = folder.junction(&folder.place_name(stored, name).ok()??).ok()??;
        let share = place.dir.open_dir(stored).ok()?;
        Some(copy_of(&*share, &junction.share).ok()??.0)
    }

    fn symlink(&mut self, place: &Place, stored: &[u8], paths: (&[u8], &[u8]), keep: Remedy) {
        self.seen.symlinks += 1;
        match self.core.read_link(&*place.dir, stored) {
            Ok((_, reference)) => self.used.targets.extend(reference),
            Err(fault) if vanished(&fault) => self.used.unlooked += 1,
            Err(fault) => self.fault(paths.0, paths.1, describe(&fault), of_damage(&fault, keep)),
        }
    }

    /// Reads the attributes of an entry of `dir`, or of `dir` itself if `stored` is empty. `paths`
    /// are its plain and its stored path. Returns false if it has vanished.
    fn attributes(
        &mut self,
        dir: &dyn Dir,
        stored: &[u8],
        kind: Kind,
        paths: (&[u8], &[u8]),
        name: &[u8],
    ) -> bool {
        let key = xattr::key_of(kind);
        let get = || {
            Ok(if stored.is_empty() {
                dir.get_xattr_self(key)
            } else {
                dir.get_xattr(stored, key)
            }?)
        };
        // To a process that may not see attributes of this kind, the kernel reports that there are
        // none. Removing an absent attribute succeeds only with the permission to see them.
        let sees =
            || *self.sees_special.get_or_init(|| self.core.root.remove_xattr_self(PROBE).is_ok());
        match self.core.read_list(&get) {
            Ok((attrs, reference)) => {
                self.used.attributes |= !attrs.0.is_empty();
                self.used.lists.extend(reference);
                self.used.unlooked += u64::from(!matches!(kind, Kind::File | Kind::Dir) && !sees());
            }
            Err(fault) if vanished(&fault) => {
                self.used.unlooked += 1;
                return false;
            }
            // Not every store has attributes, and those of links and special files need root.
            Err(Fault::Io(e))
                if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP)) =>
            {
                self.used.unlooked += 1
            }
            // A sync tool may still deliver the list, so there is no remedy.
            Err(fault @ Fault::Corrupt(Corruption::ListMissing)) => {
                let fault = CheckFault::new(paths.0, paths.1, describe(&fault), None);
                self.tell(CheckFault { list_missing: true, ..fault });
            }
            Err(fault) => {
                let remedy = xattr::is_lasting(&fault)
                    .then(|| Remedy(Action::Attributes { name: name.to_vec() }));
                self.fault(paths.0, paths.1, describe(&fault), remedy);
            }
        }
        true
    }

    /// Returns whether an entry is shown under its stored name because its real name is unknown.
    fn is_lost(&self, stored: &[u8]) -> bool {
        matches!(self.core.read_name(stored), Ok(Some(Meaning::Lost)))
    }

    /// Notes what an entry refers to, and that it is marked or a conflict copy.
    fn note(&mut self, stored: &[u8], name: &[u8], plain: &[u8]) {
        if let Parts::Long { hash, .. } = parse(stored, self.core.keys.longest_name) {
            self.used.long_names.insert(hash);
        }
        let is_marked = split_mark(name).is_some_and(|(_, mark)| mark == mark_of(stored));
        let is_copy = without_suffix(stored) != stored;
        let kind = match (is_marked, is_copy) {
            (true, _) => NoteKind::Marked,
            (false, true) => NoteKind::Copy,
            (false, false) => return,
        };
        self.add_note(plain, kind);
    }

    fn add_note(&mut self, plain: &[u8], kind: NoteKind) {
        if (self.notes.len() as u64) < FAULTS_MAX && self.has_room(plain.len()) {
            self.notes.push(CheckNote { plain: plain.to_vec(), kind });
        } else {
            self.more.notes += 1;
        }
    }

    /// Handles an entry whose stored name no key of the share opens, or that has no name left.
    /// Returns a directory that is to be entered.
    fn foreign(
        &mut self,
        place: &Place,
        stored: &[u8],
        stat: &Stat,
        cipher: &[u8],
    ) -> Option<Inside> {
        let what = match self.core.read_name(stored) {
            Ok(Some(_)) => "is not shown: other entries have all of its names",
            _ => "has a name that was changed or made without the key",
        };
        let unknown = join(&place.plain, b"?");
        match stat.kind {
            Kind::File => {
                let hint = hints::hint_of(self.core, &*place.dir, stored)
                    .ok()
                    .filter(|h| !h.name.is_empty());
                let own = hint
                    .as_ref()
                    .filter(|hint| self.belongs(place, &hint.tag))
                    .and_then(|hint| self.free_name(place, &hint.name));
                let keep = |name| Action::Keep { name, entries: None };
                let remedy = match (own, hint) {
                    (Some(name), _) => Action::Name { directory: place.tag, name },
                    (_, Some(hint)) => keep(hint.name),
                    _ => keep(b"unnamed file".to_vec()),
                };
                let keep = Remedy(keep(b"unnamed file".to_vec()));
                let otherwise = Some(CheckFault::new(&unknown, cipher, what, Some(Remedy(remedy))));
                self.file(
                    place,
                    stored,
                    stat,
                    Waiting { plain: unknown, cipher: cipher.to_vec(), otherwise, keep },
                );
            }
            Kind::Dir => match self.enter(place, stored, None) {
                Ok(place) => return Some(Inside { place, foreign: Some(what) }),
                Err(fault) if vanished(&fault) => self.used.unlooked += 1,
                Err(Fault::Boundary) => {
                    self.fault(&unknown, cipher, "is a share whose name cannot be read", None)
                }
                Err(fault) => self.fault(&unknown, cipher, describe(&fault), None),
            },
            _ => {
                let name = if stat.kind == Kind::Symlink {
                    &b"unnamed link"[..]
                } else {
                    b"unnamed special file"
                };
                let keep = Action::Keep { name: name.to_vec(), entries: None };
                self.fault(&unknown, cipher, what, Some(Remedy(keep)));
            }
        }
        None
    }

    /// Returns whether entries with that tag belong to the directory, as its own or by evidence of a
    /// rename.
    fn belongs(&self, place: &Place, tag: &Tag) -> bool {
        *tag == place.tag || self.core.explained(&place.tag).is_ok_and(|all| all.contains(tag))
    }

    /// Returns `name` if no entry of the directory has it and no earlier remedy uses it.
    fn free_name(&mut self, place: &Place, name: &[u8]) -> Option<Vec<u8>> {
        let folder = self.folder(place);
        let stored = folder.encode(name).ok()?;
        let free = folder.exists(name).is_ok_and(|exists| !exists);
        let path = join(&place.cipher, stored.entry());
        (free && self.has_room(path.len()) && self.claimed.insert(path)).then(|| name.to_vec())
    }

    /// Checks a control file. Records are read with their objects.
    fn control(&mut self, place: &Place, name: &[u8], cipher: &[u8]) {
        let keep = |kept: &[u8]| Action::Keep { name: kept.to_vec(), entries: None };
        let is_root = place.cipher.is_empty();
        let is_replacement = name.starts_with(replacement::PREFIX.as_bytes());
        if is_replacement && place.dir.stat(name).is_err() {
            return; // a commit beside this check has removed it
        }
        if is_of_others(name) && !is_replacement {
            // May be an unfinished copy of a vault file by a sync tool.
            return self.strangers += 1;
        }
        let left_behind = |what, remedy| CheckFault::residue(&place.plain, cipher, what, remedy);
        let fault = |what, remedy: Option<Action>| {
            CheckFault::new(&place.plain, cipher, what, remedy.map(Remedy))
        };
        let found = if name.starts_with(junction::PREFIX) {
            return; // read with the directory that it leads to
        } else if name.starts_with(b"+moving-") {
            fault(
                "is a share whose creation was interrupted: creating it again continues, or removes what is left",
                None,
            )
        } else if name.starts_with(TRASH) {
            left_behind("was left behind by a crash", Action::Trash)
        } else if name.starts_with(b"+tmp-") {
            left_behind("was left behind by a crash", keep(b"unfinished control file"))
        } else if is_replacement {
            left_behind("was left behind by a crash in a commit", keep(b"version of a file"))
        } else if name.starts_with(b"+refused-") {
            fault(
                "is a journal with changes to files that did not match them when it was replayed",
                Some(keep(b"refused journal")),
            )
        } else if is_root && [LONG_DIRECTORY, moved::DIRECTORY].contains(&name) {
            return self.names_directory(place, name);
        } else if !is_root || !ROOT_CONTROLS.iter().any(|known| name.starts_with(known)) {
            // May belong to a later version: left in place, unless it is a file that was renamed to
            // such a name.
            if let Ok(stat) = place.dir.stat(name)
                && stat.kind == Kind::File
                && hints::hint_of(self.core, &*place.dir, name).is_ok()
            {
                self.foreign(place, name, &stat, cipher);
                return;
            }
            fault("is not a control file of this directory", None)
        } else {
            if name.starts_with(IDENTITY) && name != IDENTITY {
                self.add_note(name, NoteKind::IdentityCopy);
            }
            return;
        };
        self.tell(found);
    }

    /// Checks the sealed long names or the evidence of renames at the root.
    fn names_directory(&mut self, place: &Place, name: &[u8]) {
        let core = self.core;
        let is_long = name == LONG_DIRECTORY;
        if let Err(fault) = self.only_directories(place, name) {
            self.used.unlooked += 1;
            return self.fault(&place.plain, name, describe(&fault), None);
        }
        // Each fault is reported at once: the storage host can put any number of files there.
        let looked = core.each_file(name, |dir, group, file| {
            let is_valid = || {
                let dir = dir?;
                Ok::<_, Fault>(match long_hash(group, file) {
                    Some(hash) if is_long => core.stored_long_name(&hash)?.is_some(),
                    _ => !is_long && core.evidence_in(dir, file)?.is_some(),
                })
            };
            let wrong = match is_valid() {
                Ok(true) => return Ok(()),
                Ok(false) if is_of_others(file) => {
                    self.strangers += 1;
                    return Ok(());
                }
                Ok(false) => None,
                Err(fault) => Some(fault),
            };
            let mut cipher = join(name, group);
            if !file.is_empty() {
                cipher = join(&cipher, file);
            }
            let what = if is_long { "long name" } else { "rename evidence" };
            let keep = Action::Keep { name: what.into(), entries: None };
            self.tell(match wrong {
                None if file.starts_with(b"+tmp-") => {
                    CheckFault::residue(&place.plain, &cipher, "was left behind by a crash", keep)
                }
                None => {
                    let what =
                        format!("is no valid {what}: it was changed, or made without the key");
                    CheckFault::new(&place.plain, &cipher, what, Some(Remedy(keep)))
                }
                Some(fault) => CheckFault::new(&place.plain, &cipher, describe(&fault), None),
            });
            Ok(())
        });
        if let Err(fault) = looked {
            self.used.unlooked += 1;
            self.fault(&place.plain, name, describe(&fault), None);
        }
    }

    /// Reports each object that is in the place of the directory `name` at the root, or of a
    /// directory in it.
    fn only_directories(&mut self, place: &Place, name: &[u8]) -> Inner<()> {
        let mut report = |cipher: &[u8]| {
            let keep = Action::Keep { name: b"unnamed file".to_vec(), entries: None };
            let what = "is in the place of a directory";
            self.tell(CheckFault::new(&place.plain, cipher, what, Some(Remedy(keep))));
        };
        let all = match place.dir.open_dir(name) {
            Err(e) if is_missing(&e) => {
                report(name);
                return Ok(());
            }
            other => other?,
        };
        for entry in entries(&*all)? {
            let entry = entry?;
            let is_dir = match entry.kind {
                Some(kind) => kind == Kind::Dir,
                None => all.stat(&entry.name)?.kind == Kind::Dir,
            };
            if !is_dir && !is_of_others(&entry.name) {
                report(&join(name, &entry.name));
            }
        }
        Ok(())
    }

    /// Opens a file and queues its contents for [`Walk::flush`].
    fn file(&mut self, place: &Place, stored: &[u8], stat: &Stat, waiting: Waiting) {
        self.seen.files += 1;
        let opened = self.open(place, stored, stat);
        // A blank file is residue only if its name decodes (`otherwise` is none): a file of another
        // name was not created by this program.
        if let Err(Fault::Format(_) | Fault::Corrupt(Corruption::NeverCommitted)) = opened
            && waiting.otherwise.is_none()
            && self.is_blank(place, stored)
        {
            let what = match stat.size {
                0 => Corruption::NeverCommitted,
                _ => Corruption::Zeros,
            };
            return self.emptied(waiting, what);
        }
        match opened {
            Ok(open) => {
                let job = Job::new(open);
                self.bytes += job.size + (waiting.plain.len() + waiting.cipher.len()) as u64;
                self.jobs.push(job);
                self.waiting.push(waiting);
                if self.jobs.len() >= OPEN_MAX || self.bytes >= WAITING_MAX {
                    self.flush();
                }
            }
            Err(fault) if vanished(&fault) => self.used.unlooked += 1,
            Err(fault) => {
                self.tell(self.damaged(&waiting.plain, &waiting.cipher, &fault, waiting.keep))
            }
        }
    }

    /// Returns the fault of a file. There is no remedy while records wait for their files: this one may
    /// be half written, and whole once they are applied.
    fn damaged(&self, plain: &[u8], cipher: &[u8], what: &Fault, keep: Remedy) -> CheckFault {
        let remedy = of_damage(what, keep);
        match remedy.is_some() && self.core.journal.has_broken() {
            true => {
                CheckFault::new(plain, cipher, format!("{}; {COMPLETED}", describe(what)), None)
            }
            false => CheckFault::new(plain, cipher, describe(what), remedy),
        }
    }

    /// Returns whether the file in the store is empty or contains only zeros.
    fn is_blank(&self, place: &Place, stored: &[u8]) -> bool {
        let file = place.dir.open_file(stored, Access::Read).map_err(Fault::from);
        file.and_then(|file| content::is_blank(&*self.core.journal.overlay(file)?)).unwrap_or(false)
    }

    /// Reports an empty file, or one of zeros: a crash or the storage host has removed its bytes.
    fn emptied(&mut self, waiting: Waiting, what: Corruption) {
        let Waiting { plain, cipher, keep: Remedy(keep), .. } = waiting;
        let remedy = Action::Void { keep: Box::new(keep) };
        let fault = CheckFault::residue(&plain, &cipher, &what.to_string(), remedy);
        self.tell(CheckFault { emptied: true, ..fault });
    }

    /// Returns the open file, with any uncommitted changes, if a program has it open in this vault;
    /// otherwise opens it.
    fn open(&self, place: &Place, stored: &[u8], stat: &Stat) -> Inner<Arc<OpenFile>> {
        let node = self.core.nodes.find(stat);
        let open =
            node.and_then(|node| self.core.open.files.lock().get(&node).map(|s| s.file.clone()));
        match open {
            Some(open) => open.state.read().check_known().map(|()| open.clone()),
            None => {
                let file = self.core.journal.overlay(place.dir.open_file(stored, Access::Read)?)?;
                OpenFile::load(
                    node.unwrap_or(ROOT),
                    file,
                    &self.core.context(),
                    self.core.next_serial(),
                    Load::Read,
                )
            }
        }
    }

    /// Verifies the contents of the queued files.
    pub(super) fn flush(&mut self) {
        let mut jobs = std::mem::take(&mut self.jobs);
        self.bytes = 0;
        content::verify(self.core, &mut jobs, &mut |bytes| {
            self.seen.bytes += bytes;
            (self.progress)(&self.seen);
        });
        for (job, waiting) in jobs.into_iter().zip(std::mem::take(&mut self.waiting)) {
            let (open, size) = (job.open.clone(), job.size);
            let Waiting { plain, cipher, otherwise, keep } = waiting;
            if let Some(damage) = job.into_damage() {
                let fault = self.damaged(&plain, &cipher, &damage.what, keep);
                self.tell(CheckFault { size: Some(size), bad: damage.bad, ..fault });
                continue;
            }
            match content::surplus(self.core, &open) {
                Ok(None) => {}
                Ok(Some(length)) => self.surplus(&plain, &cipher, length),
                Err(fault) => self.fault(&plain, &cipher, describe(&fault), None),
            }
            otherwise.into_iter().for_each(|fault| self.tell(fault));
        }
    }

    /// Reports bytes beyond the end of a file. They stay while a record of a journal may rely on them:
    /// only the records tell to which files they belong.
    fn surplus(&mut self, plain: &[u8], cipher: &[u8], length: u64) {
        let journal = &self.core.journal;
        let is_needed = || {
            // A vault that is open to be read has not looked for the journals of others.
            journal.may_rely_on_surplus() || journal.others_have_records().unwrap_or(true)
        };
        let name = plain.rsplit(|b| *b == b'/').next().unwrap_or(plain).to_vec();
        let remedy = Action::Surplus { name, length };
        let what = "holds bytes beyond its end, which are not shown";
        self.tell(match *self.keeps_surplus.get_or_init(is_needed) {
            false => CheckFault::residue(plain, cipher, what, remedy),
            true => CheckFault {
                residue: true,
                ..CheckFault::new(plain, cipher, format!("{what}; {NEEDED}"), None)
            },
        });
    }
}
