//! Durability after a crash, a power cut, a full store and failures of the store.
//!
//! Only `crash` starts programs. The other tests keep their vaults in memory, so a child that was
//! just forked holds none of their locks.

#[path = "../support/mod.rs"]
mod support;

mod contract;
mod crash;
mod deferred;
mod failing_random;
mod failing_replays;
mod faults;
mod flush_ahead;
mod journal;
mod power_cut;
mod power_cut_random;
mod refused;
mod refused_model;
mod versions;
mod waiting_records;
