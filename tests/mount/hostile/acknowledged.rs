//! Programs write and flush, while another program restores older versions of the file in the
//! store, or takes it away. What was acknowledged is in the file, in a conflict copy, or in a
//! version that was taken away after it had been written there.
//!
//! The check is sound at every moment: a change of the store is one exchange or rename, and what it
//! has taken away is copied at once. Bytes that a commit writes to that object later are not in the
//! copy, and so must be elsewhere. The copy can be torn by a commit in progress; so the object itself
//! counts too, for bytes whose flush began before it was taken away. A file that is replaced in the
//! middle of a flush is the subject of `vault::strangers::a_file_replaced_during_its_commit_is_kept`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::*;

const BLOCK: usize = 4096;
const MARK: u64 = 0x6b69_7468_0000_0000;

/// Number of changes of the store in each run; `KITHFS_HOSTILE_STEPS` sets it by hand.
fn steps() -> usize {
    std::env::var("KITHFS_HOSTILE_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(60)
}

fn roll(dice: &mut u64, sides: u64) -> u64 {
    *dice ^= *dice << 13;
    *dice ^= *dice >> 7;
    *dice ^= *dice << 17;
    *dice % sides
}

/// Returns the contents of the block with this number, which no other block has.
fn block(number: u64) -> Vec<u8> {
    (MARK | number).to_le_bytes().repeat(BLOCK / 8)
}

/// Returns the numbers of the blocks that can be read from a file.
fn blocks_in(path: &Path) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    let Ok(file) = File::open(path) else { return found };
    let len = file.metadata().map_or(0, |stat| stat.len());
    let mut buf = vec![0; BLOCK];
    for number in 0..len.div_ceil(BLOCK as u64) {
        let read = file.read_exact_at(&mut buf, number * BLOCK as u64);
        if read.is_ok() && buf == block(number) {
            found.insert(number);
        }
    }
    found
}

/// One program: writes blocks by name, or through one descriptor for a while, and notes those of
/// which a flush was acknowledged, with the number of changes of the store before the flush began.
fn program(
    host: &Host,
    mut dice: u64,
    next: &AtomicU64,
    (changes, over): (&AtomicU64, &AtomicBool),
    acknowledged: &Mutex<BTreeMap<u64, u64>>,
) {
    while !over.load(Ordering::Acquire) {
        let names = fs::read_dir(host.scratch.point())
            .map_or(vec![], |names| names.flatten().map(|entry| entry.path()).collect::<Vec<_>>());
        let path = match roll(&mut dice, 3) {
            0 if !names.is_empty() => names[roll(&mut dice, names.len() as u64) as usize].clone(),
            _ => host.plain(),
        };
        let Ok(file) = File::options().read(true).write(true).open(path) else {
            std::thread::yield_now();
            continue;
        };
        'descriptor: for _ in 0..1 + roll(&mut dice, 6) {
            let mut written = Vec::new();
            for _ in 0..1 + roll(&mut dice, 3) {
                let number = next.fetch_add(1, Ordering::AcqRel);
                if file.write_all_at(&block(number), number * BLOCK as u64).is_err() {
                    break 'descriptor;
                }
                written.push(number);
                match roll(&mut dice, 4) {
                    0 => drop(file.try_clone().unwrap()), // a close commits too
                    1 => std::thread::sleep(Duration::from_micros(roll(&mut dice, 3000))),
                    _ => {}
                }
            }
            let at = changes.load(Ordering::Acquire);
            if file.sync_all().is_err() {
                break;
            }
            acknowledged.lock().unwrap().extend(written.into_iter().map(|number| (number, at)));
        }
    }
}

/// Restores an older version or takes the file away. Returns what it has taken away.
fn change(host: &Host, older: &[Vec<u8>], dice: &mut u64, step: usize) -> Option<Vec<u8>> {
    let aside = host.scratch.path().join(format!("aside-{step}"));
    if roll(dice, 4) == 0 {
        fs::rename(&host.stored, &aside).ok()?;
    } else {
        fs::write(&aside, &older[roll(dice, older.len() as u64) as usize]).unwrap();
        if renameat_with(CWD, &aside, CWD, &host.stored, RenameFlags::EXCHANGE).is_err() {
            let _ = fs::hard_link(&aside, &host.stored); // there was none
            fs::remove_file(&aside).unwrap();
            return None;
        }
    }
    fs::read(&aside).ok()
}

fn run(init: &[&str], seed: u64) {
    let host = Host::new(init, &pattern(100, 1));
    let mut older = vec![host.keep()];
    for len in [9_000, 40_000] {
        host.put(&pattern(len, len as u64));
        older.push(host.keep());
    }
    let mount = host.mount(&[]);
    let (next, changes, over) = (AtomicU64::new(1), AtomicU64::new(0), AtomicBool::new(false));
    let acknowledged = Mutex::new(BTreeMap::new());
    let mut taken = Vec::new();
    std::thread::scope(|scope| {
        let programs: Vec<_> = (1..4)
            .map(|n| {
                let (host, next, acknowledged) = (&host, &next, &acknowledged);
                let both = (&changes, &over);
                scope.spawn(move || program(host, seed * 31 + n, next, both, acknowledged))
            })
            .collect();
        let mut dice = seed * 97 + 7;
        for step in 0..steps() {
            std::thread::sleep(Duration::from_micros(500 + roll(&mut dice, 12_000)));
            changes.fetch_add(1, Ordering::AcqRel);
            taken.extend(change(&host, &older, &mut dice, step).map(|version| (step, version)));
        }
        over.store(true, Ordering::Release);
        programs.into_iter().for_each(|program| program.join().unwrap());
    });
    mount.unmount();
    let name = host.stored.file_name().unwrap().to_str().unwrap().to_owned();
    let stored = |n: usize| host.stored.with_file_name(format!("{name} ({n})"));
    for (step, version) in &taken {
        fs::write(stored(10_000 + step), version).unwrap();
        fs::rename(host.scratch.path().join(format!("aside-{step}")), stored(20_000 + step))
            .unwrap();
    }
    let mount = host.mount(&["--no-rollback-memory"]);
    let acknowledged = acknowledged.into_inner().unwrap();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(host.scratch.point()).unwrap() {
        let path = entry.unwrap().path();
        // The number of an object that was taken away.
        let taken = path.to_str().unwrap().split_once(" (2").and_then(|(_, end)| {
            end.strip_suffix(')').filter(|end| end.len() == 4)?.parse::<u64>().ok()
        });
        found.extend(blocks_in(&path).into_iter().filter(|number| {
            taken.is_none_or(|step| acknowledged.get(number).is_some_and(|at| *at <= step))
        }));
    }
    mount.unmount();
    let lost: Vec<&u64> = acknowledged.keys().filter(|number| !found.contains(number)).collect();
    println!(
        "seed {seed}, {init:?}: {} blocks acknowledged, {} versions taken away",
        acknowledged.len(),
        taken.len()
    );
    assert!(acknowledged.len() > 20, "seed {seed}: hardly anything was acknowledged");
    assert!(lost.is_empty(), "seed {seed}: acknowledged and not found: {lost:?}");
}

/// A close, or the background thread, committed to a file just while the sync tool replaced it: the
/// bytes went to an inode without a name, and a later `fsync` returned success. The same happened
/// if the tool took the file away again while it was written back. Flushed bytes were also lost if
/// one program wrote to a conflict copy by its name, and another one through an earlier descriptor.
#[test]
fn acknowledged_bytes_are_in_the_vault_or_were_taken_away() {
    if !can_mount() {
        return;
    }
    let base =
        std::env::var("KITHFS_HOSTILE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for (n, init) in [&[][..], &["--signed"]].into_iter().enumerate() {
        run(init, base + n as u64);
    }
}
