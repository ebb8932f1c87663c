//! Random traces, the invariants after each step and at the end, and the reduction of a trace that
//! fails.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::machine::{Control, History, Machine, Seen};
use super::names::{Directory, Stored};
use super::store::{Item, MACHINES, Path, Record};

const STEPS_OF_A_TRACE: usize = 40;

/// Suffixes of sync tools, one that no rule knows, and the form in which that one is shown.
const SUFFIXES: [&str; 6] = [
    ".sync-conflict-#",
    " (conflicted copy #)",
    " (#)",
    "-MACHINE#",
    "~odd#",
    " (conflict copy ~odd#)",
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Do {
    Create,
    Mkdir,
    Write,
    Remove,
    RemoveTree,
    Rename,
    RenameDirectory,
    RenameOver,
    Exchange,
    Rekey,
    Reseal,
    Remount,
    Sync,
    SyncRenames,
    SyncAll,
    HostMoves,
    HostCopies,
    HostRenames,
    HostReplays,
    HostWithholds,
}

const PROGRAMS: [Do; 24] = {
    use Do::*;
    [
        Create,
        Create,
        Create,
        Create,
        Mkdir,
        Mkdir,
        Mkdir,
        Write,
        Write,
        Remove,
        RemoveTree,
        Rename,
        Rename,
        RenameDirectory,
        RenameDirectory,
        RenameDirectory,
        RenameOver,
        Exchange,
        Rekey,
        Reseal,
        Remount,
        Sync,
        Sync,
        SyncRenames,
    ]
};

const HOST: [Do; 5] =
    [Do::HostMoves, Do::HostCopies, Do::HostRenames, Do::HostReplays, Do::HostWithholds];

/// One step. The numbers choose among the objects that exist at that moment, so a trace stays valid
/// when steps are left out.
#[derive(Clone, Copy, Debug)]
struct Step {
    what: Do,
    machine: usize,
    a: u32,
    b: u32,
    c: u32,
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x >> 32) as u32
    }

    fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit
    }
}

fn pick<T>(of: &[T], number: u32) -> Option<&T> {
    (!of.is_empty()).then(|| &of[number as usize % of.len()])
}

struct World {
    machines: Vec<Machine>,
    history: History,
    /// Whether the storage host has acted.
    attacked: bool,
    /// All names that the host has seen.
    seen_names: BTreeSet<Stored>,
    seen_control: BTreeSet<Control>,
    log: Vec<String>,
}

impl World {
    fn new() -> Self {
        Self {
            machines: (0..MACHINES).map(Machine::new).collect(),
            history: History::default(),
            attacked: false,
            seen_names: BTreeSet::new(),
            seen_control: BTreeSet::new(),
            log: Vec::new(),
        }
    }

    fn name(&self, all: &[Seen], number: u32) -> String {
        let fixed =
            ["a", "b", "c", "a", "b", "x", "x (1)", "x.sync-conflict-0", "x (conflict copy ~odd0)"];
        match number % 16 {
            n @ 0..9 => fixed[n as usize].to_owned(),
            9 | 10 => "L".repeat(250),
            11 => "M".repeat(120),
            // A name that another entry has now, with its mark or suffix, or its stored name.
            12 | 13 => pick(all, number / 16).map_or("a".to_owned(), |seen| seen.name.clone()),
            14 => pick(all, number / 16).map_or("b".to_owned(), |seen| seen.stored.name.clone()),
            _ => format!("x (moved {:02x})", number / 16 % 8),
        }
    }

    fn step(&mut self, step: Step) {
        let Step { what, machine, a, b, c } = step;
        let other = (machine + 1 + c as usize % (MACHINES - 1)) % MACHINES;
        let all = self.machines[machine].walk();
        let directories: Vec<Path> = std::iter::once(Path::new())
            .chain(all.iter().filter(|seen| seen.item == Item::Directory).map(Seen::path))
            .collect();
        let into = pick(&directories, b).expect("the root is one").clone();
        let name = self.name(&all, c);
        let text = format!(
            "{what:?} on {machine}, {other}: {:?} {:?} {into:?} {name:?}",
            shown(&all, a),
            shown(&all, b)
        );
        self.log.push(text);
        let history = &mut self.history;
        let this = &mut self.machines[machine];
        match what {
            Do::Create => this.create(history, &into, &name),
            Do::Mkdir if into.len() < 4 => this.mkdir(history, &into, &name),
            Do::Mkdir => {}
            Do::Rekey if history.epochs < 3 => this.rekey(history),
            Do::Rekey => {}
            Do::Remount => this.remount(),
            Do::Sync | Do::SyncRenames | Do::SyncAll => self.sync(step, other),
            Do::HostMoves
            | Do::HostCopies
            | Do::HostRenames
            | Do::HostReplays
            | Do::HostWithholds => {
                self.attack(step, &into);
            }
            _ => self.change(step, &all, &into, &name),
        }
    }

    /// A program acts on an entry.
    fn change(&mut self, step: Step, all: &[Seen], into: &Path, name: &str) {
        let Some(seen) = pick(all, step.a).cloned() else { return };
        let Some(second) = pick(all, step.b) else { return };
        let history = &mut self.history;
        let this = &mut self.machines[step.machine];
        match step.what {
            Do::Write => this.write(history, &seen),
            Do::Remove => {
                this.remove(history, &seen);
            }
            Do::RemoveTree => this.remove_tree(history, &seen),
            Do::Rename => this.rename(history, &seen, into, name),
            Do::RenameDirectory => {
                let directories: Vec<_> =
                    all.iter().filter(|seen| seen.item == Item::Directory).collect();
                let Some(seen) = pick(&directories, step.a) else { return };
                this.rename(history, seen, into, name);
            }
            Do::RenameOver => this.rename(history, &seen, &second.directory, &second.name),
            Do::Exchange => this.exchange(history, &seen, second),
            Do::Reseal => this.reseal(history, &seen),
            _ => unreachable!("{step:?}"),
        }
    }

    /// Delivers a part of one machine's changes to another machine.
    fn sync(&mut self, step: Step, other: usize) {
        let mut random = Random(u64::from(step.a));
        let suffix = SUFFIXES[step.b as usize % SUFFIXES.len()];
        let (from, to) = two(&mut self.machines, step.machine, other);
        let all = step.what == Do::SyncAll;
        for &control in &from.control {
            if all || random.below(3) == 0 {
                to.learn(control);
            }
        }
        if step.what == Do::SyncRenames {
            for (before, after) in &from.renames {
                to.store.deliver_rename(&from.store, before, after);
            }
        }
        let mut paths = from.store.paths();
        for at in (1..paths.len()).rev() {
            paths.swap(at, random.below(at + 1));
        }
        let share = 1 + random.below(3);
        for path in paths {
            if all || random.below(3) < share {
                to.store.deliver(&from.store, &path, suffix);
            }
        }
    }

    fn sync_completely(&mut self) {
        for round in 0..24 {
            for machine in 0..MACHINES {
                for c in 0..MACHINES as u32 - 1 {
                    self.step(Step { what: Do::SyncAll, machine, a: round, b: round + c, c });
                }
            }
            let first = &self.machines[0];
            let same = |machine: &Machine| {
                machine.store.same_as(&first.store) && machine.control == first.control
            };
            if self.machines.iter().all(same) {
                return;
            }
        }
        panic!("the tool does not come to an end");
    }

    /// Performs what the storage host can do with the names that it has seen.
    fn attack(&mut self, step: Step, into: &Path) {
        self.attacked = true;
        let this = &mut self.machines[step.machine];
        let paths: Vec<_> = this.store.everything().map(|(path, _)| path.clone()).collect();
        let Some(path) = pick(&paths, step.a) else { return };
        let mut to = into.clone();
        let mut name = (**path.last().expect("no root")).clone();
        let names: Vec<_> = self.seen_names.iter().collect();
        match step.what {
            Do::HostWithholds => {
                let controls: Vec<_> = this.control.iter().copied().collect();
                if let Some(&control @ (Control::Long(_) | Control::Moved { .. })) =
                    pick(&controls, step.a)
                {
                    this.forget(control);
                }
                return;
            }
            Do::HostReplays => {
                let controls: Vec<_> = self.seen_control.iter().copied().collect();
                if let Some(&control) = pick(&controls, step.a) {
                    this.learn(control);
                }
                name = (*pick(&names, step.c).expect("something was there")).clone();
                to = path[..path.len() - 1].to_vec();
            }
            Do::HostRenames if step.c.is_multiple_of(3) => {
                to = path[..path.len() - 1].to_vec();
                name.suffix += &SUFFIXES[step.c as usize % SUFFIXES.len()].replace('#', "7");
            }
            Do::HostRenames => {
                name = (*pick(&names, step.c).expect("something was there")).clone();
            }
            _ => {}
        }
        to.push(Rc::new(name));
        if this.store.get(&to).is_some() || to.starts_with(path) {
            return;
        }
        if step.what == Do::HostCopies {
            let item = this.store.get(path);
            this.store.set(to, item);
        } else {
            this.store.rename(path, &to);
        }
    }

    fn watch(&mut self) {
        for machine in &self.machines {
            self.seen_control.extend(&machine.control);
            for (path, _) in machine.store.everything() {
                self.seen_names.insert((**path.last().expect("no root")).clone());
            }
        }
    }

    /// Checks what holds at every moment.
    fn check(&self) {
        for (number, machine) in self.machines.iter().enumerate() {
            let mut hidden: BTreeSet<&Path> =
                machine.store.everything().map(|(path, _)| path).collect();
            for seen in machine.walk() {
                self.check_seen(machine, number, &seen);
                hidden.remove(&seen.path());
            }
            for path in hidden {
                let closed =
                    |stored: &Rc<Stored>| !machine.control.contains(&Control::Epoch(stored.epoch));
                assert!(path.iter().any(closed), "{number} does not show {path:?}");
            }
        }
    }

    fn check_seen(&self, machine: &Machine, number: usize, seen: &Seen) {
        let directory = machine.directory(&seen.directory);
        let found = directory.lookup(&seen.name);
        assert_eq!(found, Some(&*seen.stored), "{number}: {:?} leads elsewhere", seen.name);
        assert!(seen.name.len() <= 255);
        let is_plain = seen.name == Directory::<Machine>::plain(&seen.stored);
        if is_plain {
            let Stored { tag, name, .. } = &*seen.stored;
            let is_sealed = self.history.sealed.contains(&(*tag, name.clone()));
            assert!(is_sealed, "{number}: no program has made {seen:?}");
            assert!(
                self.history.has_moved(seen.stored.tag, directory.own),
                "{number}: {:?} passes for genuine",
                seen.name
            );
        }
    }

    /// Checks what holds once everything is delivered and each vault was reopened.
    fn check_end(&mut self) {
        self.sync_completely();
        self.machines.iter_mut().for_each(Machine::remount);
        self.check();
        let trees: Vec<_> = self.machines.iter().map(tree).collect();
        for tree in &trees[1..] {
            assert_eq!(*tree, trees[0], "two machines show other names");
        }
        if self.attacked {
            return;
        }
        let records: BTreeSet<Record> = trees[0]
            .iter()
            .filter_map(|(_, item)| match item {
                Item::File(record) => Some(*record),
                Item::Directory => None,
            })
            .collect();
        let missing: Vec<_> = (1..=self.history.records)
            .filter(|record| !records.contains(record) && !self.history.removed.contains(record))
            .collect();
        assert!(missing.is_empty(), "{missing:?} are lost");
        for seen in self.machines[0].walk() {
            let directory = self.machines[0].directory(&seen.directory);
            assert!(directory.is_explained(&seen.stored), "{:?} has no evidence", seen.name);
        }
    }
}

fn shown(all: &[Seen], number: u32) -> String {
    pick(all, number).map_or(String::new(), |seen| seen.name.clone())
}

/// Returns every path that is shown, with its contents.
fn tree(machine: &Machine) -> Vec<(Vec<String>, Item)> {
    let mut found: Vec<_> = Vec::new();
    let mut next = vec![(Path::new(), Vec::new())];
    while let Some((directory, names)) = next.pop() {
        for (name, stored) in machine.directory(&directory).list() {
            let mut path = directory.clone();
            path.push(Rc::new(stored.clone()));
            let mut names = names.clone();
            names.push(name);
            let item = machine.store.get(&path).expect("what was listed is there");
            if item == Item::Directory {
                next.push((path, names.clone()));
            }
            found.push((names, item));
        }
    }
    found
}

fn two(machines: &mut [Machine], one: usize, other: usize) -> (&Machine, &mut Machine) {
    let [one, other] = machines.get_disjoint_mut([one, other]).expect("two machines");
    (one, other)
}

fn random_trace(seed: u64, what: &[Do]) -> Vec<Step> {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let steps = 1 + random.below(2 * STEPS_OF_A_TRACE);
    (0..steps)
        .map(|_| Step {
            what: what[random.below(what.len())],
            machine: random.below(MACHINES),
            a: random.next(),
            b: random.next(),
            c: random.next(),
        })
        .collect()
}

/// Performs the steps of a trace. Returns the first problem.
fn run(trace: &[Step]) -> Result<(), String> {
    let mut world = World::new();
    let result = catch_unwind(AssertUnwindSafe(|| {
        for &step in trace {
            world.step(step);
            world.watch();
            world.check();
        }
        world.check_end();
    }));
    result.map_err(|error| {
        let text = error.downcast_ref::<String>().cloned();
        let text = text.or_else(|| error.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("{}\n{}", world.log.join("\n"), text.unwrap_or_default())
    })
}

/// Leaves steps out of a trace, and makes its numbers smaller, as long as it still fails.
fn reduce(mut trace: Vec<Step>, mut problem: String) -> String {
    let mut size = trace.len().div_ceil(2);
    loop {
        let before = trace.len();
        let mut at = 0;
        while at < trace.len() {
            let mut shorter = trace.clone();
            shorter.drain(at..(at + size).min(trace.len()));
            match run(&shorter) {
                Ok(()) => at += size,
                Err(text) => (trace, problem) = (shorter, text),
            }
        }
        if size == 1 && trace.len() == before {
            break;
        }
        size = size.div_ceil(2);
    }
    for at in 0..trace.len() {
        let numbers: [fn(&mut Step) -> &mut u32; 3] =
            [|step| &mut step.a, |step| &mut step.b, |step| &mut step.c];
        for number in numbers {
            for small in 0..16 {
                let mut simpler = trace.clone();
                *number(&mut simpler[at]) = small;
                if let Err(text) = run(&simpler) {
                    (trace, problem) = (simpler, text);
                    break;
                }
            }
        }
    }
    problem
}

fn run_random(what: &[Do]) {
    let steps = std::env::var("KITHFS_NAMING_STEPS")
        .map_or(40_000, |text| text.parse::<u64>().expect("a number of steps"));
    let traces = (steps / STEPS_OF_A_TRACE as u64).max(1);
    for seed in 0..traces {
        let trace = random_trace(seed, what);
        if let Err(problem) = run(&trace) {
            panic!("seed {seed}:\n{}", reduce(trace, problem));
        }
    }
}

/// Machines that only programs and a sync tool change.
#[test]
fn every_entry_is_shown_under_one_name_on_every_machine() {
    run_random(&PROGRAMS);
}

/// The storage host moves, copies and renames entries, restores removed names and evidence, and
/// withholds evidence and long names.
#[test]
fn no_entry_passes_for_genuine_where_nothing_explains_it() {
    run_random(&[&PROGRAMS[..], &HOST[..], &HOST[..]].concat());
}
