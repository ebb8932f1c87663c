//! Programs in several mounts do to the same files what fsx does, while daemons are killed.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::number;
use super::programs::Programs;
use super::world::World;
use crate::support::mounted::can_mount;
use crate::support::vaults::Seeded;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mount/random_shared/fsx.py");
const MOUNTS: usize = 3;

/// What the programs have reported.
#[derive(Default)]
struct Reports {
    turns: u64,
    /// Opens and writes that were refused at first, because another mount had the file.
    busy: u64,
    /// Turns that failed while a daemon was away.
    failed: u64,
    /// How often a file was left as it was before the last operations.
    older: u64,
    /// The programs that have ended, or have compared everything.
    done: usize,
    /// What the mounts show at the end.
    contents: HashSet<String>,
    /// The names of the programs whose daemon was killed.
    killed: HashSet<String>,
}

impl Reports {
    /// Takes reports until `until`, or until `done` programs have ended.
    ///
    /// With `away`, a daemon is killed or was shortly before. The file that it was committing fails
    /// with EIO in the other mounts until its mount is there again. Changes that they had not
    /// committed then fail with ESTALE. Nothing else may fail, and only a killed daemon may lose
    /// what was not synced.
    fn take(&mut self, programs: &Programs, until: Instant, away: bool, done: usize) {
        while self.done < done
            && let Some((mount, line)) = programs.report(until)
        {
            let words: Vec<&str> = line.split([' ', ':']).collect();
            let is_killed = words.get(1).is_some_and(|it| self.killed.contains(*it))
                || words.get(2).is_some_and(|it| self.killed.contains(*it));
            match words[..] {
                ["turn", _] => self.turns += 1,
                ["busy", _] => self.busy += 1,
                ["ended", _] => self.done += 1,
                ["verified", contents] => {
                    self.contents.insert(contents.to_owned());
                    self.done += 1;
                }
                ["older", _] if is_killed => self.older += 1,
                ["lost", _] if is_killed => {}
                ["failed", ..] if is_killed => {}
                ["failed", "EIO" | "ESTALE", ..] if away => self.failed += 1,
                _ => panic!("mount {mount}: {line}"),
            }
        }
    }
}

fn create(world: &World, models: &Path) {
    let shared = ["small", "replaced", "in-place"].map(str::to_owned);
    fs::create_dir(models).unwrap();
    for name in shared.into_iter().chain((0..MOUNTS).map(|mount| format!("own-{mount}"))) {
        fs::write(world.point(0).join(&name), "").unwrap();
        fs::write(models.join(&name), "{\"owner\": \"\", \"size\": 0}\n").unwrap();
    }
}

fn session(seed: u64) {
    let random = Seeded::new(seed + 1);
    let mut world = World::new(MOUNTS, 0);
    let models = world.scratch.path().join("models");
    create(&world, &models);
    let synced = if number("KITHFS_SYNCED", 0) == 1 { "synced" } else { "" };
    let mapped = if world.maps { "" } else { "unmapped" };
    let allocated = if world.allocates { "" } else { "unallocated" };
    let mut programs = Programs::new(SCRIPT);
    let begin = |world: &World, mount: usize, round: u64, programs: &mut Programs| {
        let name = format!("{mount}-{round}");
        let seed = (seed * 1000 + round * 10 + mount as u64).to_string();
        let models = models.to_str().unwrap();
        programs.start(world, mount, &[&name, &seed, models, synced, mapped, allocated]);
        name
    };
    let mut names: Vec<String> =
        (0..MOUNTS).map(|mount| begin(&world, mount, 0, &mut programs)).collect();
    let mut reports = Reports::default();
    let after = |millis: u64| Instant::now() + Duration::from_millis(millis);
    for round in 1..=number("KITHFS_KILLS", 2) {
        reports.take(&programs, after(1200 + random.below(800)), false, MOUNTS);
        let mount = random.below(MOUNTS as u64) as usize;
        reports.killed.insert(names[mount].clone());
        world.kill_daemon(mount);
        reports.take(&programs, after(random.below(700)), true, MOUNTS);
        programs.end_those_of(mount);
        world.detach(mount);
        world.mount(mount);
        names[mount] = begin(&world, mount, round, &mut programs);
        // What failed before the mount was there again may be reported a little later.
        reports.take(&programs, after(500), true, MOUNTS);
    }
    let before = reports.turns;
    reports.take(&programs, after(1500), false, MOUNTS);
    let asked = programs.ask_to_end();
    reports.take(&programs, after(120_000), false, asked);
    assert_eq!(reports.done, asked, "a program does not end");
    assert!(reports.turns > before, "nothing is done any more");
    programs.wait();
    (0..MOUNTS).for_each(|mount| {
        programs.start(&world, mount, &["verify", "0", models.to_str().unwrap()]);
    });
    reports.take(&programs, after(60_000), false, asked + MOUNTS);
    programs.wait();
    assert_eq!(reports.done, asked + MOUNTS, "a file differs from its model at the end");
    assert_eq!(reports.contents.len(), 1, "the mounts differ");
    let Reports { turns, busy, failed, older, .. } = reports;
    println!("{turns} turns, {busy} busy, {failed} failed, {older} older than the last operation");
    world.check_the_vault();
}

/// In each of three mounts, a program changes a file of its own and, under locks, the same files as
/// the others: writes, mappings, truncations, holes and allocations. All that is read must be what
/// the programs have done, also after daemons were killed: then a file has one of the states since
/// the last `fsync`.
#[test]
fn fsx_in_several_mounts_agrees_with_models() {
    if !can_mount() {
        return;
    }
    let begun = Instant::now();
    let first = number("KITHFS_SEED", 1);
    let seconds = Duration::from_secs(number("KITHFS_SECONDS", 0));
    for seed in first.. {
        if seed >= first + number("KITHFS_RUNS", 1) && begun.elapsed() >= seconds {
            println!("{} sessions", seed - first);
            return;
        }
        println!("KITHFS_SEED={seed}");
        session(seed);
    }
}
