//! The vault without FUSE: names, attributes, sizes, stores, concurrent openers, rollback.
//!
//! No test here starts a program: a child that was just forked would hold the locks of the vaults
//! and databases that other tests have open.

#[path = "../support/mod.rs"]
mod support;

mod attributes;
mod calls;
mod concurrent;
mod concurrent_deaths;
mod concurrent_model;
mod concurrent_overtaken;
mod concurrent_replays;
mod kernel_cache;
mod lease_taken;
mod lingering;
mod lock_model;
mod model;
mod names;
mod naming_model;
mod program_locks;
mod rollback;
mod shared_mark;
mod sizes;
mod stores;
mod strangers;
mod synced;
mod synced_names;
