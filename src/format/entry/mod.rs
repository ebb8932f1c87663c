//! Directory entries: stored names, sealed records, junctions and rename evidence.

pub mod junction;
pub mod moved;
pub mod name;
pub mod record;
pub mod suffix;
pub mod text;
