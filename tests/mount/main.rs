//! Vaults on a real mount. The tests run one at a time (`support::turn`).
//!
//! `scripts/check-uring.sh` runs most of these modules over io_uring too.

#[path = "../support/mod.rs"]
mod support;

mod deep;
mod end_to_end;
mod fuse_adapter;
mod hanging;
mod helper;
mod hostile;
mod idle;
mod killed;
mod lock;
mod lock_on;
mod posix;
mod program_locks;
mod random_shared;
mod refused;
mod shared;
mod signed;
mod synced;
mod uring;
