//! Checks an open share, and repairs what it can.

pub(super) mod check;
pub(super) mod prune;
pub(super) mod remedy;
pub(super) mod repair;
pub(super) mod report;
