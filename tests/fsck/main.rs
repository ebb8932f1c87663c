//! Checks and repairs: `kithfs fsck` as a user runs it, and the library beneath it.

#[path = "../support/mod.rs"]
mod support;

mod command;
mod prune;
mod repair;
