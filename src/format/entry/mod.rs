//! Directory entries: stored names, sealed records and junctions.

pub mod junction;
pub mod name;
pub mod record;
