//! The way of the check down a tree and up again.
//!
//! Rules that hold here
//! * Users choose the depth: nothing recurses, and only some of the directories on the way are held
//!   open. Others are opened again by their stored names.
//! * For each directory on the way the rest of one part of its listing is held. The storage host
//!   can make these parts full, so their sum is limited too.

use std::io;
use std::sync::Arc;
use std::vec;

use super::walk::{LISTED, Place, Walk};
use crate::crypto::Tag;
use crate::store::{Dir, DirEntry, PathHandles};
use crate::vault::core::DEPTH_MAX;
use crate::vault::fsck::remedy::{Action, Remedy};

/// Maximum number of entries that wait in the directories on the way.
const ENTRIES_MAX: usize = 1 << 18;
/// Maximum depth at which directories without a readable name are entered. The storage host can
/// make any number of them, and each is a fault with its whole path.
const FOREIGN_DEPTH_MAX: usize = 1024;
/// What is reported of a directory that is not entered.
pub(super) const TOO_DEEP: &str = "is nested too deep to be checked from here";

/// A directory that is to be entered.
pub(super) struct Inside {
    pub place: Place,
    /// Why its entry is a fault, if its name is unknown. Reported after the faults inside it.
    pub foreign: Option<&'static str>,
}

/// A directory on the way.
struct Level {
    tag: Tag,
    /// Length of its plain path, and of its stored one.
    lengths: (usize, usize),
    entries: vec::IntoIter<DirEntry>,
    /// Where the listing continues; `None` at its end.
    next: Option<i64>,
    foreign: Option<&'static str>,
}

impl Level {
    fn fill(&mut self, mut part: Vec<DirEntry>) {
        self.next = part.last().map(|entry| entry.next);
        part.sort_by(|a, b| a.name.cmp(&b.name));
        self.entries = part.into_iter();
    }
}

/// The way from the directory at which a check begins.
struct Way {
    levels: Vec<Level>,
    handles: PathHandles<Arc<dyn Dir>>,
    /// Number of entries that wait in all levels but the last.
    waiting: usize,
}

impl Way {
    fn push(&mut self, inside: &mut Inside) {
        if let Some(above) = self.levels.last() {
            self.waiting += above.entries.len();
            self.handles.put(self.levels.len(), inside.place.dir.clone());
        }
        let place = &mut inside.place;
        let mut level = Level {
            tag: place.tag,
            lengths: (place.plain.len(), place.cipher.len()),
            entries: Vec::new().into_iter(),
            next: None,
            foreign: inside.foreign,
        };
        level.fill(std::mem::take(&mut place.first));
        self.levels.push(level);
    }

    /// Returns from `here` to the directory above it, if there is one.
    fn pop(&mut self, here: &mut Place) -> io::Result<()> {
        self.levels.pop();
        let Some(above) = self.levels.last() else { return Ok(()) };
        self.waiting -= above.entries.len();
        (here.tag, here.first) = (above.tag, Vec::new());
        here.plain.truncate(above.lengths.0);
        here.cipher.truncate(above.lengths.1);
        self.handles.cut(self.levels.len() - 1);
        loop {
            let (depth, dir) = self.handles.deepest();
            let Some(below) = self.levels.get(depth + 1) else {
                here.dir = dir.clone();
                return Ok(());
            };
            let stored = &here.cipher[self.levels[depth].lengths.1..below.lengths.1];
            let dir = dir.open_dir(stored.strip_prefix(b"/").unwrap_or(stored))?;
            self.handles.put(depth + 1, dir);
        }
    }
}

impl Walk<'_> {
    /// Checks a directory and everything below it.
    pub(super) fn directory(&mut self, mut top: Inside) {
        let handles = PathHandles::new(top.place.dir.clone());
        let mut way = Way { levels: Vec::new(), handles, waiting: 0 };
        if !self.begin(&top, &way) {
            return;
        }
        way.push(&mut top);
        let mut here = top.place;
        while let Some(level) = way.levels.last_mut() {
            if let Some(DirEntry { name: stored, .. }) = level.entries.next() {
                let name = self.name_in(&here, &stored);
                let inside = self.entry(&here, &stored, name);
                if let Some(mut inside) = inside.filter(|inside| self.begin(inside, &way)) {
                    way.push(&mut inside);
                    here = inside.place;
                }
            } else if let Some(cookie) = level.next.take() {
                match here.dir.read(cookie, LISTED) {
                    Ok(part) => level.fill(part),
                    Err(e) => self.unlisted(&here, &e),
                }
            } else {
                self.end(&here, level.foreign);
                if let Err(e) = way.pop(&mut here) {
                    self.unlisted(&here, &e);
                    way.levels.last_mut().expect("what was left is above it").fill(Vec::new());
                }
            }
        }
    }

    /// Counts a directory, and reports one that is too deep. Returns whether it is to be entered.
    fn begin(&mut self, inside: &Inside, way: &Way) -> bool {
        let place = &inside.place;
        self.seen.dirs += 1;
        self.used.tags.insert(place.tag);
        (self.progress)(&self.seen);
        let depth_max = if inside.foreign.is_some() { FOREIGN_DEPTH_MAX } else { DEPTH_MAX };
        let is_too_deep = way.levels.len() >= depth_max || way.waiting >= ENTRIES_MAX;
        if is_too_deep && !self.single {
            self.used.unlooked += 1;
            self.fault(&place.plain, &place.cipher, TOO_DEEP, None);
        }
        if is_too_deep || self.single {
            self.end(place, inside.foreign);
            return false;
        }
        true
    }

    /// Reports a directory without a readable name, after everything in it.
    fn end(&mut self, place: &Place, foreign: Option<&'static str>) {
        let Some(what) = foreign else { return };
        self.flush();
        let (name, entries) = (b"unnamed directory".to_vec(), Some(place.tag));
        let remedy = Remedy(Action::Keep { name, entries });
        self.fault(&place.plain, &place.cipher, what, Some(remedy));
    }

    /// Reports a directory that cannot be listed to its end.
    fn unlisted(&mut self, place: &Place, error: &io::Error) {
        self.used.unlooked += 1;
        if error.kind() != io::ErrorKind::NotFound {
            self.fault(&place.plain, &place.cipher, error.to_string(), None);
        }
    }
}
