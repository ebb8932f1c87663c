//! From names to entries: stored names, the ids of directories, junctions, a walk over a tree.

pub(super) mod folder;
pub(super) mod junction;
pub(super) mod names;
