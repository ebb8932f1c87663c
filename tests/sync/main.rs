//! Several machines that have one vault mounted for writing, and a sync tool between them.
//!
//! `scripts/sync-simulator.sh` runs more of it by hand.

#[path = "../support/mod.rs"]
mod support;

mod generate;
mod play;
mod scenarios;
mod server;
mod shares;
mod shrink;
mod simulator;
mod syncthing;
mod system;
mod tool;
mod trace;
