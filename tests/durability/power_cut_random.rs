//! Power cuts under random workloads: at every call that changes the store, in several ways each,
//! and again during the replay after the first cut.
//!
//! 25,000 cuts, or as many as `KITHFS_POWER_CUTS` sets; `KITHFS_POWER_CUT_SEED` changes the seed.
//! A failure is reduced to the shortest workload that still fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kithfs::store::mem::MemStore;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::support::cuts::{Cut, Promises, Session, chance, record, verify, verify_quickly};
use crate::support::vaults::{self, READ_WRITE, pattern};

const DEFAULT_CUTS: u64 = 25_000;
/// Power cuts that this test has verified.
static CUTS: AtomicU64 = AtomicU64::new(0);
/// Random ways in which each moment is cut, besides the harshest.
const WAYS: u64 = 5;
const NAMES: [&[u8]; 3] = [b"one", b"two", b"three"];

/// A step of a workload. Places are taken modulo the present size.
#[derive(Clone, Debug)]
enum Step {
    /// Write and fsync.
    Overwrite {
        file: usize,
        offset: usize,
        len: usize,
    },
    /// Append and fsync.
    Append {
        file: usize,
        len: usize,
    },
    /// Through a handle that stays open, without fsync.
    Write {
        file: usize,
        offset: usize,
        len: usize,
    },
    Fsync,
    Commit,
    /// The background's flushes, while files are open.
    Flush,
    Truncate {
        file: usize,
        size: usize,
    },
    Punch {
        file: usize,
        offset: usize,
        segments: usize,
    },
    RenameOver {
        from: usize,
        to: usize,
    },
    Remake {
        file: usize,
        len: usize,
    },
    /// Remove the name of an open file, by a rename over it or an unlink, and still write to it.
    Orphan {
        file: usize,
        by: Option<usize>,
        offset: usize,
        len: usize,
        sync: bool,
    },
    /// Remove the file, create it again, have the background flush it, and write to it again
    /// through a handle that stays open.
    StayOpen {
        file: usize,
        len: usize,
        offset: usize,
    },
    /// Write and fsync where a file of small chunks has index blocks of two levels, with a hole
    /// before it.
    Far {
        file: usize,
        offset: usize,
        len: usize,
    },
    /// Extend by a hole, or also punch everything from `zero` on.
    Extend {
        file: usize,
        size: usize,
        zero: Option<usize>,
    },
    Reopen,
}

/// Chunks of 4 KiB have a second level of index blocks from half a MiB on.
const FAR: usize = 500_000;

fn step() -> impl Strategy<Value = Step> {
    let (file, offset) = (0..NAMES.len(), 0..20_000usize);
    let size = prop_oneof![4 => 0..20_000usize, 1 => FAR..FAR + 60_000];
    let len = prop_oneof![1..200usize, 4000..4200usize, Just(4096), 5000..14_000usize];
    prop_oneof![
        6 => (file.clone(), offset.clone(), len.clone()).prop_map(|(file, offset, len)| Step::Overwrite { file, offset, len }),
        4 => (file.clone(), len.clone()).prop_map(|(file, len)| Step::Append { file, len }),
        5 => (file.clone(), offset.clone(), len.clone()).prop_map(|(file, offset, len)| Step::Write { file, offset, len }),
        3 => Just(Step::Fsync),
        2 => Just(Step::Commit),
        2 => Just(Step::Flush),
        3 => (file.clone(), size.clone()).prop_map(|(file, size)| Step::Truncate { file, size }),
        2 => (file.clone(), FAR..FAR + 60_000, len.clone()).prop_map(|(file, offset, len)| Step::Far { file, offset, len }),
        1 => (file.clone(), size, proptest::option::of(0..20_000usize)).prop_map(|(file, size, zero)| Step::Extend { file, size, zero }),
        2 => (file.clone(), offset, 1..4usize).prop_map(|(file, offset, segments)| Step::Punch { file, offset, segments }),
        1 => (file.clone(), file.clone()).prop_map(|(from, to)| Step::RenameOver { from, to }),
        1 => (file.clone(), len.clone()).prop_map(|(file, len)| Step::Remake { file, len }),
        2 => (file.clone(), proptest::option::of(file.clone()), 0..20_000usize, len, any::<bool>())
            .prop_map(|(file, by, offset, len, sync)| Step::Orphan { file, by: by.filter(|by| *by != file), offset, len, sync }),
        2 => (file, 0..20_000usize, 1..14_000usize).prop_map(|(file, offset, len)| Step::StayOpen { file, offset, len }),
        1 => Just(Step::Reopen),
    ]
}

fn run(s: &mut Session, store: &MemStore, steps: &[Step]) {
    for (n, name) in NAMES.iter().enumerate() {
        s.create(name, &pattern(n as u64, [300, 9000, 17_000][n]));
    }
    let mut open: Option<(u64, &[u8])> = None;
    for (step, seed) in steps.iter().zip(100..) {
        let len_of = |s: &Session, name: &[u8]| s.now.get(name).map_or(0, |b| b.len());
        match *step {
            Step::Overwrite { file, offset, len } => {
                let offset = offset % (len_of(s, NAMES[file]) + 1);
                s.overwrite(NAMES[file], offset, &pattern(seed, len));
            }
            Step::Append { file, len } => {
                s.overwrite(NAMES[file], len_of(s, NAMES[file]), &pattern(seed, len))
            }
            Step::Write { file, offset, len } => {
                if open.is_none_or(|(_, name)| name != NAMES[file]) {
                    close(s, &mut open);
                    open = Some((s.open(NAMES[file], READ_WRITE), NAMES[file]));
                }
                let (handle, name) = open.expect("opened above");
                s.write_on(handle, name, offset % (len_of(s, name) + 5000), &pattern(seed, len));
            }
            Step::Fsync => {
                if let Some((handle, name)) = open {
                    s.fsync(handle, name);
                }
            }
            Step::Commit => s.commit(),
            Step::Flush => s.flush(),
            Step::Far { file, offset, len } => {
                s.overwrite(NAMES[file], offset, &pattern(seed, len))
            }
            Step::Extend { file, size, zero } => {
                s.extend(NAMES[file], len_of(s, NAMES[file]).max(size).max(1), zero)
            }
            Step::Truncate { file, size } => s.truncate(NAMES[file], size),
            Step::Punch { file, offset, segments } => {
                let offset = offset % (len_of(s, NAMES[file]) + 1) / 4096 * 4096;
                s.punch(NAMES[file], offset, segments * 4096);
            }
            Step::RenameOver { from, to } if from != to => {
                close(s, &mut open);
                // A renamed name is created again at once, so that every name has a file.
                s.fsync_path(NAMES[from]);
                s.rename(NAMES[from], NAMES[to]);
                s.create(NAMES[from], &pattern(seed, 5000));
            }
            Step::RenameOver { .. } => {}
            Step::Remake { file, len } => {
                close(s, &mut open);
                s.unlink(NAMES[file]);
                s.create(NAMES[file], &pattern(seed, len));
            }
            Step::Orphan { file, by, offset, len, sync } => {
                if open.is_none_or(|(_, name)| name != NAMES[file]) {
                    close(s, &mut open);
                    open = Some((s.open(NAMES[file], READ_WRITE), NAMES[file]));
                }
                let (handle, name) = open.expect("opened above");
                let gone = match by {
                    Some(by) => {
                        s.fsync_path(NAMES[by]);
                        s.rename(NAMES[by], name);
                        NAMES[by]
                    }
                    None => {
                        s.unlink(name);
                        name
                    }
                };
                s.vault.write(handle, offset as u64, &pattern(seed, len), false).unwrap();
                if sync {
                    s.vault.fsync(handle, false).unwrap();
                } else {
                    s.commit();
                }
                s.vault.write(handle, offset as u64 / 2, &pattern(seed, len), false).unwrap();
                s.commit();
                close(s, &mut open);
                s.create(gone, &pattern(seed, 5000));
            }
            Step::StayOpen { file, offset, len } => {
                close(s, &mut open);
                let name = NAMES[file];
                s.unlink(name);
                s.may(name, Some(b""));
                s.may_break(name);
                let handle = s.open(name, READ_WRITE);
                s.write_on(handle, name, 0, &pattern(seed, len));
                s.commit();
                s.made_durable(name);
                s.write_on(handle, name, offset % (len + 1), &pattern(seed + 1000, len));
                s.commit();
                open = Some((handle, name));
            }
            Step::Reopen => {
                close(s, &mut open);
                s.reopen(store);
            }
        }
    }
    close(s, &mut open);
}

fn close(s: &mut Session, open: &mut Option<(u64, &[u8])>) {
    if let Some((handle, _)) = open.take() {
        s.vault.release(handle).unwrap();
    }
}

/// Verifies one power cut and counts it.
fn cut(
    verify: fn(&MemStore, &Promises, &str),
    crashed: &MemStore,
    promises: &Promises,
    what: &str,
) {
    CUTS.fetch_add(1, Ordering::Relaxed);
    verify(crashed, promises, what);
}

/// Cuts the power a second time, at every call of the replay that follows the first cut.
fn cut_the_replay(crashed: &MemStore, promises: &Promises, what: &str, seed: u64) {
    let moments: Arc<Mutex<Vec<MemStore>>> = Arc::default();
    {
        let (watched, moments) = (crashed.clone(), moments.clone());
        crashed.on_event(Box::new(move |_| moments.lock().unwrap().push(watched.snapshot())));
    }
    drop(vaults::open(crashed.root()).unwrap_or_else(|e| panic!("{what}: {e}")));
    crashed.on_event(Box::new(|_| {}));
    let moments = std::mem::take(&mut *moments.lock().unwrap());
    for (n, moment) in moments.iter().enumerate() {
        cut(
            verify_quickly,
            &moment.crash(&mut chance(seed + n as u64)),
            promises,
            &format!("{what}, and call {n} of its replay"),
        );
    }
}

fn cut_workload(chunk_log2: u8, steps: &[Step], wanted: u64) {
    let cuts = record(chunk_log2, |s, store| run(s, store, steps));
    for (n, Cut { what, store, promises, .. }) in cuts.iter().enumerate() {
        let n = n as u64;
        cut(verify_quickly, &store.crash(&mut |_| 0), promises, &format!("{what}, harsh"));
        for way in 0..WAYS {
            let seed = n * 1000 + way + 7;
            let what = format!("{what}, way {way}");
            match (n + way) % 16 {
                0 => cut(verify, &store.crash(&mut chance(seed)), promises, &what),
                8 => cut_the_replay(&store.crash(&mut chance(seed)), promises, &what, seed),
                _ => cut(verify_quickly, &store.crash(&mut chance(seed)), promises, &what),
            }
        }
        if CUTS.load(Ordering::Relaxed) >= wanted {
            return;
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number"))
    })
}

#[test]
fn nothing_durable_is_lost_by_a_cut_at_any_call() {
    let (wanted, seed) =
        (number("KITHFS_POWER_CUTS", DEFAULT_CUTS), number("KITHFS_POWER_CUT_SEED", 1));
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get() as u64);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut bytes = [0; 32];
                bytes[..8].copy_from_slice(&seed.to_le_bytes());
                bytes[8..16].copy_from_slice(&thread.to_le_bytes());
                let config = Config {
                    cases: u32::MAX,
                    failure_persistence: None,
                    max_shrink_iters: 300,
                    ..Config::default()
                };
                let mut runner = TestRunner::new_with_rng(
                    config,
                    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes),
                );
                let workload = (12..15u8, proptest::collection::vec(step(), 1..14));
                while CUTS.load(Ordering::Relaxed) < wanted {
                    let tree = workload.new_tree(&mut runner).expect("a workload");
                    let cut = |(chunk_log2, steps): (u8, Vec<Step>)| {
                        cut_workload(chunk_log2, &steps, wanted);
                        Ok(())
                    };
                    if let Err(e) = runner.run_one(tree, cut) {
                        panic!("{e}");
                    }
                }
            });
        }
    });
    let cuts = CUTS.load(Ordering::Relaxed);
    println!("{cuts} power cuts");
    assert!(cuts >= wanted);
}
