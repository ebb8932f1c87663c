//! Random work in two and three mounts of one vault, compared with a plain directory.
//!
//! A *program* in a mount and its *twin* in a plain directory run the same commands: they change
//! names and contents, lock, map, and keep files open. The answers must be the same, and so must be
//! what all mounts show, except that changes of one mount that are not committed yet may be missing
//! in the others. Daemons are killed and stopped meanwhile, and their lock files are removed.
//!
//! `KITHFS_SEED` is the first seed, `KITHFS_RUNS` the number of sessions, `KITHFS_STEPS` the length
//! of each. With `KITHFS_SECONDS` new sessions begin until that time has passed. A failure prints its
//! seed and its steps. `KITHFS_STORES` names directories, separated by colons, that show one directory
//! of a network filesystem as its clients on several machines do: the vault is made there, and each
//! mount uses the next of them (`scripts/stores.sh cephfs`).

mod counters;
mod fsx;
mod model;
mod programs;
mod steps;
mod world;

use std::time::{Duration, Instant};

use self::steps::Session;
use crate::support::mounted::can_mount;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|it| it.parse().ok()).unwrap_or(default)
}

#[test]
fn random_work_in_several_mounts_is_that_of_one() {
    if !can_mount() {
        return;
    }
    let begun = Instant::now();
    let first = number("KITHFS_SEED", 1);
    let (runs, seconds) = (number("KITHFS_RUNS", 3), number("KITHFS_SECONDS", 0));
    for seed in first.. {
        let is_time = begun.elapsed() < Duration::from_secs(seconds);
        if seed >= first + runs && !is_time {
            println!("{} sessions", seed - first);
            return;
        }
        let mut session = Session::new(seed);
        for _ in 0..number("KITHFS_STEPS", 120) {
            session.step();
            session.disturb();
        }
        session.end();
    }
}
