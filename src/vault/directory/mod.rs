//! Maps names to entries: stored names, directory ids, junctions, tree walks.

pub(super) mod folder;
pub(super) mod junction;
pub(super) mod names;
