//! Checks an open share, and repairs what it can.

pub(super) mod check;
pub(super) mod repair;
