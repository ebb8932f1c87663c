//! Hostile bytes: the fuzz targets, a storage host that changes a vault, and members who write
//! without the right to.
//!
//! This binary counts the memory that each thread allocates (`fuzz::memory` is its allocator). No
//! test here starts a program.

#[path = "../support/mod.rs"]
mod support;

mod borrowed_signatures;
mod control_files;
mod deep_trees;
mod floods;
mod foreign_entries;
mod fuzz;
mod fuzz_findings;
mod laundering;
mod moved_entries;
mod readers;
mod removed_writers;
mod tamper;
