//! Maps names to entries: stored names, evidence of renames, junctions.

pub(super) mod census;
pub(super) mod evidence;
pub(super) mod folder;
pub(super) mod junction;
mod long_names;
pub(super) mod names;
