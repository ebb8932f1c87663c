//! One target under libFuzzer, which `KITHFS_FUZZ_TARGET` names. Built and started by
//! `scripts/fuzz.sh`.
//!
//! It builds with stable Rust: the script passes flags with which the compiler adds coverage
//! counters. Without a target the program prints a message and ends. Otherwise it writes the
//! target's seeds into the directory `KITHFS_FUZZ_CORPUS`, before libFuzzer reads that.
#![no_main]

mod memory;
mod targets;

use std::sync::OnceLock;

use targets::{ALL, Target};

static TARGET: OnceLock<&Target> = OnceLock::new();

fn begin() {
    let Ok(name) = std::env::var("KITHFS_FUZZ_TARGET") else {
        println!("no target: set KITHFS_FUZZ_TARGET, or use scripts/fuzz.sh");
        std::process::exit(0);
    };
    if name == "list" {
        ALL.iter().for_each(|target| println!("{}", target.name));
        std::process::exit(0);
    }
    let Some(target) = ALL.iter().find(|target| target.name == name) else {
        eprintln!("no target is called {name}");
        std::process::exit(2);
    };
    let seeds = (target.seeds)();
    if let Some(corpus) = std::env::var_os("KITHFS_FUZZ_CORPUS") {
        for (i, seed) in seeds.iter().enumerate() {
            std::fs::write(std::path::Path::new(&corpus).join(format!("seed-{i}")), seed)
                .expect("seed written to the corpus");
        }
    }
    assert!(TARGET.set(target).is_ok(), "begun once");
}

libfuzzer_sys::fuzz_target!(init: begin(), |data: &[u8]| {
    TARGET.get().expect("set at the beginning").run(data);
});
