//! Shares: rosters, members, keys of each epoch, nested shares, and attacks by members and by the
//! storage host.

#[path = "../support/mod.rs"]
mod support;

mod arriving;
mod attacks;
mod conversion;
mod growth;
mod membership;
mod nested;
mod rekey;
mod roster;
mod signed;
mod store;
mod while_writing;
