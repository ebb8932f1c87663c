//! Random sessions. These environment variables choose what is played:
//!
//! * `KITHFS_SYNC_SYSTEM`: kithfs, gocryptfs or plain (which tests the simulator itself)
//! * `KITHFS_SYNC_SEEDS`: how many, or a range `from..to`
//! * `KITHFS_SYNC_OPS`: steps of each trace
//! * `KITHFS_SYNC_TOOL`: syncthing, dropbox, nextcloud; all in turns without it
//! * `KITHFS_SYNC_TRACE`: a file with a trace, which is played instead
//! * `KITHFS_SYNC_SCENARIOS`: play the scenarios with this in their name, or `all`, instead
//! * `KITHFS_SYNC_SHRINK`: a directory for the shrunken traces of failures
//! * `KITHFS_SYNC_KIND`: shrink failures of this kind only
//! * `KITHFS_SYNC_VERBOSE`: print also what differs without being a failure

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::generate::{Profile, generate};
use super::play::{Counts, Outcome, play};
use super::scenarios;
use super::shrink::shrink;
use super::system::{System, create_store, create_team};
use super::trace::{TOOLS, ToolKind, Trace};
use crate::support::mounted::can_mount;
use crate::support::turn;

/// A place in memory for stores, and a vault of which each session gets copies.
pub struct Place {
    dir: tempfile::TempDir,
    system: System,
    sessions: std::cell::Cell<usize>,
}

impl Place {
    /// Returns `None`, and prints why, where machines cannot be simulated.
    pub fn new(system: System) -> Option<Place> {
        if !can_mount() {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can give machines host names");
            return None;
        }
        let _turn = turn::take();
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new()
            .prefix("kithfs-sync-")
            .tempdir_in(parent)
            .expect("a temporary directory");
        create_store(system, dir.path());
        let team = dir.path().join("team");
        std::fs::create_dir(&team).expect("create a directory");
        match system {
            System::Kithfs => create_team(&team),
            _ => create_store(system, &team),
        }
        Some(Place { dir, system, sessions: std::cell::Cell::new(0) })
    }

    pub fn scratch(&self) -> PathBuf {
        self.sessions.set(self.sessions.get() + 1);
        let dir = self.dir.path().join(format!("session-{}", self.sessions.get()));
        std::fs::create_dir(&dir).expect("create a directory");
        dir
    }

    pub fn play(&self, trace: &Trace) -> Outcome {
        self.play_and_spoil(trace, &|_| ())
    }

    /// Plays a trace, and calls `spoil` with the first machine's store before the judgement. Other
    /// tests may have their turns between two traces.
    pub fn play_and_spoil(&self, trace: &Trace, spoil: &dyn Fn(&Path)) -> Outcome {
        let _turn = turn::take();
        let dir = self.scratch();
        let team = self.dir.path().join("team");
        let template = if trace.members { &team } else { self.dir.path() };
        let outcome = play(trace, self.system, template, &dir, spoil);
        let _ = std::fs::remove_dir_all(&dir);
        outcome
    }

    pub fn generate(&self, seed: u64, steps: usize, tool: ToolKind, profile: &Profile) -> Trace {
        let dir = self.scratch();
        let trace = generate(seed, steps, tool, profile, &dir);
        let _ = std::fs::remove_dir_all(&dir);
        trace
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(format!("KITHFS_SYNC_{name}")).ok().filter(|value| !value.is_empty())
}

fn system() -> System {
    match variable("SYSTEM").as_deref() {
        None | Some("kithfs") => System::Kithfs,
        Some("gocryptfs") => System::Gocryptfs,
        Some("plain") => System::Plain,
        Some(other) => panic!("unknown system {other:?}"),
    }
}

/// Returns the seeds and the number of steps from the variables, or else these.
fn amount(seeds: u64, steps: usize) -> (std::ops::Range<u64>, usize) {
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"));
    let seeds = match variable("SEEDS") {
        None => 0..seeds,
        Some(text) => match text.split_once("..") {
            Some((from, to)) => number(from)..number(to),
            None => 0..number(&text),
        },
    };
    (seeds, variable("OPS").map_or(steps, |text| number(&text) as usize))
}

/// Plays the traces of these seeds and returns what was counted. Prints each failure, and shrinks
/// it where that was asked for.
fn sessions(place: &Place, seeds: std::ops::Range<u64>, steps: usize, profile: &Profile) -> Counts {
    let only = variable("TOOL").map(|name| ToolKind::named(&name).expect("a known tool"));
    let began = Instant::now();
    let (mut all, mut failed, mut operations, mut records, mut differing) =
        (Counts::default(), 0, 0, 0, 0);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let tool = only.unwrap_or(TOOLS[(seed % 3) as usize]);
        let trace = place.generate(seed, steps, tool, profile);
        let outcome = place.play(&trace);
        all.add(&outcome.counts);
        operations += outcome.operations;
        records += outcome.records;
        differing += outcome.differing;
        if !outcome.counts.is_zero() {
            failed += 1;
            println!("seed {seed} ({}): {}", tool.name(), outcome.counts);
            outcome.notes.iter().for_each(|note| println!("    {}", note.replace('\n', "\n    ")));
            report(place, seed, &trace, &outcome.counts);
        }
    }
    println!(
        "{}: {count} sessions, {operations} operations, {records} records, {failed} sessions with a \
         failure, {:.0} s\n{}\ndiffering results of operations: {differing}",
        place.system.name(),
        began.elapsed().as_secs_f64(),
        all.all().map(|(name, count)| format!("{name} {count}")).join(", "),
    );
    all
}

/// For each kind of failure, writes a small part of the trace that fails in this way to the
/// directory for shrunken traces.
fn report(place: &Place, seed: u64, trace: &Trace, counts: &Counts) {
    let Some(dir) = variable("SHRINK") else { return };
    std::fs::create_dir_all(&dir).expect("create the directory for traces");
    let only = variable("KIND");
    let count = |counts: &Counts, kind: &str| {
        counts.all().iter().find(|(name, _)| *name == kind).map_or(0, |(_, count)| *count)
    };
    for (kind, _) in counts.all() {
        if count(counts, kind) == 0 || only.as_ref().is_some_and(|only| only != kind) {
            continue;
        }
        let small = shrink(trace, 150, |part| count(&place.play(part).counts, kind) > 0);
        let outcome = place.play(&small);
        let path = Path::new(&dir).join(format!("{}-seed-{seed}.trace", kind.replace(' ', "-")));
        let notes = outcome.notes.join("\n").replace('\n', "\n# ");
        std::fs::write(&path, format!("# seed {seed}: {}\n# {notes}\n{small}", outcome.counts))
            .expect("write the trace");
        println!("    shrunk to {} steps: {}", small.steps.len(), path.display());
    }
}

/// Plays the scenarios whose name contains the variable's value, and prints the state of each.
fn scenarios(place: &Place) {
    let wanted = variable("SCENARIOS").unwrap_or_default();
    for scenario in scenarios::ALL {
        if wanted != "all" && !scenario.name.contains(&wanted) {
            continue;
        }
        let failures = scenario.failures(place);
        let state = if failures.is_empty() { "holds" } else { "FAILS" };
        println!("{state}  {}", scenario.name);
        failures.iter().for_each(|failure| println!("    {}", failure.replace('\n', "\n    ")));
    }
}

#[test]
fn random_sessions_lose_nothing() {
    let Some(place) = Place::new(system()) else { return };
    if variable("SCENARIOS").is_some() {
        return scenarios(&place);
    }
    if let Some(path) = variable("TRACE") {
        let trace = Trace::parse(&std::fs::read_to_string(&path).expect("read the trace"));
        let outcome = place.play(&trace);
        outcome.notes.iter().for_each(|note| println!("{note}"));
        assert!(outcome.counts.is_zero(), "{path}: {}", outcome.counts);
        return;
    }
    let (seeds, steps) = amount(12, 40);
    let counts = sessions(&place, seeds, steps, &Profile::ALL);
    assert!(counts.is_zero(), "{counts}");
}

/// The machines work in turns, with a whole sync between two turns.
#[test]
fn machines_in_turns_lose_nothing() {
    let Some(place) = Place::new(System::Kithfs) else { return };
    let profile =
        Profile { conflicts: false, rough: false, kills: false, members: false, ..Profile::ALL };
    let counts = sessions(&place, 0..9, 40, &profile);
    assert!(counts.is_zero(), "{counts}");
}

/// Between a plain directory and another one nothing differs, whatever the tool does.
#[test]
fn plain_directories_lose_nothing() {
    let Some(place) = Place::new(System::Plain) else { return };
    let counts = sessions(&place, 0..30, 40, &Profile::ALL);
    assert!(counts.is_zero(), "{counts}");
}

/// A simulator that finds nothing could be one that compares nothing.
#[test]
fn a_planted_loss_is_counted() {
    let Some(place) = Place::new(System::Plain) else { return };
    let trace = Trace::parse("0 append f 1\n0 append g 7 fsync\n1 append g 2");
    let counts = |spoil: &dyn Fn(&Path)| place.play_and_spoil(&trace, spoil).counts;
    assert!(counts(&|_| ()).is_zero());
    let lost = counts(&|store| std::fs::remove_file(store.join("f")).unwrap());
    assert_eq!(lost, Counts { lost: 1, ..Counts::default() });
    let nameless = counts(&|store| {
        std::fs::rename(store.join("f"), store.join("7Zx0bJ")).unwrap();
    });
    assert_eq!(nameless, Counts { nameless: 1, ..Counts::default() });
    let wrong = counts(&|store| {
        let mut bytes = std::fs::read(store.join("f")).unwrap();
        bytes[20] ^= 1;
        std::fs::write(store.join("f"), bytes).unwrap();
    });
    assert_eq!(wrong, Counts { lost: 1, wrong: 1, ..Counts::default() });
}
