//! Programs in several mounts count in the same files, while daemons are killed: what was
//! acknowledged is not lost.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::number;
use super::programs::Programs;
use super::world::World;
use crate::support::mounted::can_mount;
use crate::support::vaults::Seeded;

const FILES: usize = 3;
const MOUNTS: usize = 3;
/// Programs in each mount.
const PROGRAMS: usize = 2;

/// What the programs have reported.
#[derive(Default)]
struct Reports {
    /// The rounds that were acknowledged, by file.
    counted: HashMap<usize, HashSet<String>>,
    /// The number of rounds that failed, by error. They may have counted, or not.
    failed: HashMap<String, u64>,
}

impl Reports {
    /// Takes reports until `until`. A failure is an error unless a daemon is away, or was shortly
    /// before.
    fn take(&mut self, programs: &Programs, until: Instant, away: bool) {
        while let Some((mount, line)) = programs.report(until) {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["counted", file, _, round] => {
                    let rounds = self.counted.entry(file.parse().unwrap()).or_default();
                    assert!(rounds.insert(round.to_owned()), "{line} twice");
                }
                ["failed", errno, _] => {
                    *self.failed.entry(errno.to_owned()).or_default() += 1;
                    assert!(away, "mount {mount}: {line}, while all daemons run");
                }
                _ => panic!("{line}"),
            }
        }
    }

    fn total(&self) -> usize {
        self.counted.values().map(HashSet::len).sum()
    }

    /// Compares the files of a mount with what was acknowledged. Up to `unknown` rounds may have
    /// counted without an acknowledgement.
    fn check(&self, point: &Path, unknown: u64) {
        for file in 0..FILES {
            let counted = self.counted.get(&file).cloned().unwrap_or_default();
            let number = fs::read_to_string(point.join(format!("n{file}"))).unwrap();
            let number: u64 = number.parse().unwrap();
            let log = fs::read_to_string(point.join(format!("log{file}"))).unwrap();
            let log: Vec<&str> = log.lines().collect();
            let logged: HashSet<String> = log.iter().map(|it| (*it).to_owned()).collect();
            assert_eq!(log.len(), logged.len(), "log{file} has a line twice");
            let lost: Vec<_> = counted.difference(&logged).collect();
            assert!(lost.is_empty(), "log{file} has lost {lost:?}");
            let (least, most) = (counted.len() as u64, counted.len() as u64 + unknown);
            assert!((least..=most).contains(&number), "n{file}: {number}, not {least} to {most}");
            assert!(log.len() as u64 <= most, "log{file}: {}, not {least} to {most}", log.len());
        }
    }
}

fn session(seed: u64) {
    let random = Seeded::new(seed + 1);
    let mut world = World::new(MOUNTS, 0);
    for file in 0..FILES {
        fs::write(world.point(0).join(format!("n{file}")), "00000000").unwrap();
        fs::write(world.point(0).join(format!("log{file}")), "").unwrap();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mount/random_shared/counter.py");
    let mut programs = Programs::new(script);
    let begin = |world: &World, mount: usize, round: u64, programs: &mut Programs| {
        for each in 0..PROGRAMS {
            let name = format!("{mount}-{each}-{round}");
            let seed = seed * 1000 + round * 10 + each as u64;
            let maps = if world.maps { "" } else { "unmapped" };
            programs.start(world, mount, &[&name, &seed.to_string(), &FILES.to_string(), maps]);
        }
    };
    (0..MOUNTS).for_each(|mount| begin(&world, mount, 0, &mut programs));
    let mut reports = Reports::default();
    let mut unknown = 0;
    let after = |millis: u64| Instant::now() + Duration::from_millis(millis);
    for round in 1..=number("KITHFS_KILLS", 2) {
        reports.take(&programs, after(1200 + random.below(800)), round > 1);
        let mount = random.below(MOUNTS as u64) as usize;
        world.kill_daemon(mount);
        reports.take(&programs, after(random.below(700)), true);
        programs.end_those_of(mount);
        unknown += PROGRAMS as u64;
        world.detach(mount);
        world.mount(mount);
        begin(&world, mount, round, &mut programs);
    }
    reports.take(&programs, after(1500), true);
    // Now without a disturbance.
    let before = reports.total();
    reports.take(&programs, after(1500), false);
    assert!(reports.total() > before, "nothing is counted any more");
    unknown += programs.kill() as u64;
    reports.take(&programs, after(200), false);
    unknown += reports.failed.values().sum::<u64>();
    println!("{} rounds, failed: {:?}", reports.total(), reports.failed);
    (0..MOUNTS).for_each(|mount| reports.check(world.point(mount), unknown));
    world.check_the_vault();
}

#[test]
fn no_count_is_lost_when_a_daemon_is_killed() {
    if !can_mount() {
        return;
    }
    let begun = Instant::now();
    let first = number("KITHFS_SEED", 1);
    let seconds = Duration::from_secs(number("KITHFS_SECONDS", 0));
    for seed in first.. {
        if seed >= first + number("KITHFS_RUNS", 1) && begun.elapsed() >= seconds {
            return;
        }
        println!("KITHFS_SEED={seed}");
        session(seed);
    }
}
