//! Code that the test binaries share. Each of them includes this module once, in its `main.rs`.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod bus;
pub mod counting;
pub mod cuts;
pub mod forger;
pub mod holes;
pub mod locker;
pub mod members;
pub mod memfs;
pub mod mounted;
pub mod people;
pub mod raw;
pub mod terminal;
pub mod turn;
pub mod vaults;
