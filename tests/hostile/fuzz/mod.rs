//! The fuzz targets as an ordinary test: the seeds of each target and a fixed number of mutated
//! inputs.
//!
//! `scripts/fuzz.sh` runs the same targets under a fuzzer that follows coverage. Here the inputs
//! are the same each time, unless `KITHFS_FUZZ_SEED=N` selects others. `KITHFS_FUZZ_RUNS=N` sets
//! their number.

pub mod memory;
mod mutate;
mod targets;

use mutate::{Dice, mutated};
use targets::{ALL, Target};

fn variable(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

/// Prints an input on which a target panicked.
struct Witness<'a>(&'a Target, &'a [u8]);

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("target {} failed on {}", self.0.name, hex::encode(self.1));
        }
    }
}

fn smoke(target: &Target) {
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{} has no seeds", target.name);
    for seed in &seeds {
        let _witness = Witness(target, seed);
        target.run(seed);
    }
    let runs = variable("KITHFS_FUZZ_RUNS", target.smoke_runs);
    let mut dice = Dice::new(variable("KITHFS_FUZZ_SEED", 1));
    for _ in 0..runs {
        let data = mutated(&seeds, &mut dice);
        let _witness = Witness(target, &data);
        target.run(&data);
    }
    println!("{}: {} seeds, {runs} mutated inputs", target.name, seeds.len());
}

#[test]
fn names_of_targets_are_unique() {
    for (i, target) in ALL.iter().enumerate() {
        assert!(ALL[..i].iter().all(|other| other.name != target.name), "{}", target.name);
    }
}

macro_rules! smoke_tests {
    ($($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                smoke(ALL.iter().find(|target| target.name == stringify!($name)).expect("a target of this name"));
            }
        )+

        #[test]
        fn every_target_has_a_smoke_test() {
            assert_eq!(ALL.iter().map(|target| target.name).collect::<Vec<_>>(), [$(stringify!($name)),+]);
        }
    };
}

smoke_tests! {
    hctr2_paths
    x25519_paths
    layout header_public table index_block stored_name journal_head
    share_descriptor invitation people_text manifest slot_block member_list identity_file public_key_text recovery_text
    header_sealed header_body record_sealed link_text xattrs evidence journal_sealed journal_body
    roster_bag roster_open
    signed_header junction_sealed junction inventory_list
    vault_aes vault_chacha vault_journal vault_path
}
