//! The directories with local changes, and those above them.
//!
//! Rules that hold here
//! * A directory is held once, however many are below it. A path for each directory would take
//!   memory that grows with the square of the depth.
//! * Users choose the depth, so nothing recurses.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::memory::{Memory, PlaceId};
use crate::crypto::Tag;
use crate::store::{Dir, PathHandles};
use crate::vault::core::Core;
use crate::vault::error::Inner;
use crate::vault::types::{NodeId, ROOT};

/// A directory, apart from the root.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) parent: PlaceId,
    pub(super) name: Box<[u8]>,
    pub(super) stored: Box<[u8]>,
    pub(super) tag: Tag,
}

/// A tree of directories.
#[derive(Clone, Default)]
pub(super) struct Places {
    places: HashMap<PlaceId, Place>,
    below: HashMap<PlaceId, HashSet<PlaceId>>,
}

impl Places {
    /// Returns the number of directories.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn contains(&self, id: &PlaceId) -> bool {
        self.places.contains_key(id)
    }

    /// Adds a directory whose parent is the root or was added before.
    pub(super) fn add(&mut self, id: PlaceId, place: Place) {
        self.below.entry(place.parent).or_default().insert(id);
        self.places.insert(id, place);
    }

    /// Keeps only these directories, and those above them.
    pub(super) fn keep<'a>(&mut self, ids: impl Iterator<Item = &'a PlaceId>) {
        let mut kept = HashSet::new();
        for id in ids {
            let mut at = *id;
            while let Some(place) = self.places.get(&at).filter(|_| kept.insert(at)) {
                at = place.parent;
            }
        }
        self.places.retain(|id, _| kept.contains(id));
        self.below.retain(|_, below| {
            below.retain(|id| kept.contains(id));
            !below.is_empty()
        });
    }

    /// Removes a directory and all below it. Returns them, parents first.
    pub(super) fn take(&mut self, top: &PlaceId) -> Vec<(PlaceId, Place)> {
        let Some(place) = self.places.remove(top) else { return Vec::new() };
        if let Some(beside) = self.below.get_mut(&place.parent) {
            beside.remove(top);
        }
        let mut taken = vec![(*top, place)];
        let mut next = 0;
        while let Some((id, _)) = taken.get(next) {
            let below = self.below.remove(id).unwrap_or_default();
            taken.extend(below.iter().filter_map(|id| self.places.remove_entry(id)));
            next += 1;
        }
        taken
    }

    /// Begins a walk over all directories, parents first.
    pub(super) fn walk<'a>(&'a self, root: PlaceId, dir: Arc<dyn Dir>) -> Walk<'a> {
        Walk {
            places: self,
            todo: vec![(0, root)],
            path: Vec::new(),
            handles: PathHandles::new(dir),
        }
    }
}

/// A walk over all directories. Those on the current path are held open, or some of them.
pub(super) struct Walk<'a> {
    places: &'a Places,
    /// Directories that are still to be visited, with their depths.
    todo: Vec<(usize, PlaceId)>,
    /// The current directory and those above it, without the root.
    path: Vec<&'a Place>,
    handles: PathHandles<Arc<dyn Dir>>,
}

impl<'a> Walk<'a> {
    /// Goes to the next directory.
    pub(super) fn next(&mut self) -> Option<PlaceId> {
        let (depth, id) = self.todo.pop()?;
        if let Some(place) = self.places.places.get(&id) {
            self.path.truncate(depth - 1);
            self.path.push(place);
            self.handles.cut(depth - 1);
        }
        self.todo
            .extend(self.places.below.get(&id).into_iter().flatten().map(|id| (depth + 1, *id)));
        Some(id)
    }

    /// Returns the current directory; `None` if it is the root.
    pub(super) fn place(&self) -> Option<&'a Place> {
        self.path.last().copied()
    }

    /// Returns the stored and the plain path of the current directory.
    pub(super) fn paths(&self) -> (Vec<u8>, Vec<u8>) {
        let path = |part: fn(&Place) -> &[u8]| {
            self.path.iter().map(|place| part(place)).collect::<Vec<_>>().join(&b'/')
        };
        (path(|place| &place.stored), path(|place| &place.name))
    }

    /// Opens the current directory.
    pub(super) fn open(&mut self) -> Inner<Arc<dyn Dir>> {
        loop {
            let (depth, dir) = self.handles.deepest();
            let Some(place) = self.path.get(depth) else { return Ok(dir.clone()) };
            let dir = dir.open_dir(&place.stored)?;
            self.handles.put(depth + 1, dir);
        }
    }
}

impl Memory {
    /// Adds a directory and those above it. Returns its place.
    pub(super) fn hold(
        &self,
        core: &Core,
        places: &mut Places,
        directory: NodeId,
    ) -> Inner<PlaceId> {
        let here = self.place_of(core, directory)?;
        let (mut at, mut id, mut new) = (directory, here, Vec::new());
        while at != ROOT && !places.contains(&id) {
            let link = core.nodes.link(at)?;
            let parent = link.parent;
            let above = self.place_of(core, parent)?;
            let tag = core.directory_tag(at)?;
            let (name, stored) = (link.name().into(), link.stored().into());
            new.push((id, Place { parent: above, name, stored, tag }));
            (at, id) = (parent, above);
        }
        new.into_iter().rev().for_each(|(id, place)| places.add(id, place));
        Ok(here)
    }
}
