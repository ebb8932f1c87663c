//! What survives a crash, a power cut, a full store and a store that fails.
//!
//! Only `crash` starts programs; the other tests keep their vaults in memory, where a child that
//! was just forked holds nothing of them.

#[path = "../support/mod.rs"]
mod support;

mod contract;
mod crash;
mod deferred;
mod failing_random;
mod faults;
mod journal;
mod power_cut;
mod power_cut_random;
mod refused;
mod refused_model;
