//! Random traces. While a trace is made, its steps are played on plain directories with the same
//! tool, so that most operations are about entries that exist.

use std::path::Path;

use super::play::Side;
use super::system::{System, create_store};
use super::tool::{self, Entry};
use super::trace::{Action, Durable, How, Op, Random, Step, ToolKind, Trace};

/// Which kinds of operations a trace contains.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Directories that are not empty are renamed and removed.
    pub directories: bool,
    /// Names of more than 98 bytes.
    pub long_names: bool,
    /// The tool works while writes are not flushed, stops in the middle, and reads torn files.
    pub rough: bool,
    /// Daemons are killed.
    pub kills: bool,
    /// Programs keep files open across syncs.
    pub handles: bool,
    /// Two machines change one file before a sync, and create the same names.
    pub conflicts: bool,
    /// In every fourth session each machine is that of another member of a share. The first machine
    /// is an admin's. It changes the folder key, and in some sessions it removes the last member.
    pub members: bool,
}

impl Profile {
    pub const ALL: Profile = Profile {
        directories: true,
        long_names: true,
        rough: true,
        kills: true,
        handles: true,
        conflicts: true,
        members: true,
    };
}

const LONG: [usize; 8] = [99, 130, 155, 160, 183, 200, 236, 255];

struct Generator {
    random: Random,
    profile: Profile,
    plain: Side,
    machines: usize,
    record: u32,
    handle: u32,
    open: Vec<(usize, u32)>,
    /// The machine of a removed member.
    removed: Option<usize>,
    steps: Vec<Step>,
}

/// Generates the trace of a seed, with about this many steps.
pub fn generate(seed: u64, steps: usize, tool: ToolKind, profile: &Profile, dir: &Path) -> Trace {
    let mut random = Random::new(seed);
    let members = profile.members && seed % 4 == 3;
    let machines = if random.chance(if members { 60 } else { 30 }) { 3 } else { 2 };
    let removal = (members && machines == 3 && random.chance(60)).then_some(steps * 2 / 3);
    create_store(System::Plain, dir);
    let mut generator = Generator {
        plain: Side::new(System::Plain, (machines, tool), dir, dir),
        random,
        profile: Profile { members, ..profile.clone() },
        machines,
        record: 0,
        handle: 0,
        open: Vec::new(),
        removed: None,
        steps: Vec::new(),
    };
    generator.begin();
    let mut turn = 0;
    while generator.steps.len() < steps {
        let machine = match generator.profile.conflicts {
            true => generator.random.below(machines),
            false => turn,
        };
        if generator.removed == Some(machine) {
            generator.write_late(machine);
            continue;
        }
        for _ in 0..=generator.random.below(4) {
            generator.program(machine);
        }
        if members && generator.random.chance(12) {
            let eager = generator.random.chance(40);
            generator.push(0, Action::Rekey(eager));
        }
        if generator.removed.is_none() && removal.is_some_and(|at| at <= generator.steps.len()) {
            generator.remove();
        }
        if generator.profile.conflicts {
            if generator.random.chance(40) {
                generator.sync();
            }
        } else {
            // In turns: everything goes everywhere before another machine writes.
            for each in (0..machines).chain(0..machines) {
                generator.push(each, Action::Sync(How::default()));
            }
            turn = generator.random.below(machines);
        }
        if generator.profile.kills && generator.random.chance(4) {
            let action = if generator.random.chance(50) { Action::Kill } else { Action::Remount };
            generator.close_all(machine);
            generator.push(machine, action);
        }
    }
    Trace { machines, members, tool, steps: generator.steps }
}

impl Generator {
    /// Gives all machines a tree to work with.
    fn begin(&mut self) {
        for path in ["a", "b", "a/c", "d"] {
            self.do_op(0, Op::Mkdir(path.into()));
        }
        for path in ["f", "a/f", "a/c/g", "b/h"] {
            let record = self.record();
            self.do_op(0, Op::Append(path.into(), record, Durable::Fsync));
        }
        for machine in 0..self.machines {
            self.push(machine, Action::Sync(How::default()));
        }
    }

    fn push(&mut self, machine: usize, action: Action) {
        match &action {
            Action::Program(op) => drop(self.plain.hosts.run(machine, op)),
            Action::Sync(how) => {
                let Side { hosts, tool } = &mut self.plain;
                let mut torn = how.torn.clone();
                tool.sync(machine, how, &mut || {
                    if let Some(torn) = torn.take() {
                        let _ = hosts.run(torn.0, &torn.1);
                    }
                });
                if let Some(torn) = torn {
                    let _ = hosts.run(torn.0, &torn.1);
                }
            }
            _ => {}
        }
        self.steps.push(Step { machine, action });
    }

    /// Removes the member of the last machine, after all of that machine's work has arrived.
    fn remove(&mut self) {
        let last = self.machines - 1;
        self.close_all(last);
        self.push(last, Action::Remount);
        for machine in (0..3).flat_map(|_| 0..=last) {
            self.push(machine, Action::Sync(How::default()));
        }
        self.push(0, Action::Remove);
        self.removed = Some(last);
    }

    /// Writes on the machine of a removed member. Once that machine knows of the removal, this
    /// fails.
    fn write_late(&mut self, machine: usize) {
        let record = self.record();
        self.do_op(machine, Op::Append(format!("late-{record}"), record, Durable::Fsync));
        if self.random.chance(60) {
            self.push(machine, Action::Sync(How::default()));
        }
    }

    fn close_all(&mut self, machine: usize) {
        self.plain.hosts.close_all(machine);
        self.open.retain(|(of, _)| *of != machine);
    }

    fn sync(&mut self) {
        let machine = self.random.below(self.machines);
        let mut how = How::default();
        if self.profile.rough {
            how.live = self.random.chance(30);
            if self.random.chance(30) {
                how.partial = Some(self.random.next() % 10_000);
            } else if self.random.chance(10) {
                let on = self.random.below(self.machines);
                if self.removed != Some(on)
                    && let Some(path) = self.existing(on, false)
                {
                    let record = self.record();
                    how.torn = Some(Box::new((on, Op::Append(path, record, Durable::Fsync))));
                }
            }
        }
        self.push(machine, Action::Sync(how));
    }

    fn record(&mut self) -> u32 {
        self.record += 1;
        self.record
    }

    fn durable(&mut self) -> Durable {
        if self.random.chance(50) { Durable::Fsync } else { Durable::No }
    }

    fn all(&self, machine: usize) -> Vec<(String, Entry)> {
        let is_copy = |path: &str| path.contains("conflict") || path.contains("late-");
        tool::scan(&self.plain.hosts.point(machine))
            .into_iter()
            .filter(|(path, _)| !is_copy(path))
            .collect()
    }

    /// Returns a random directory or file of the machine; no database, conflict copy or late file.
    fn existing(&mut self, machine: usize, is_dir: bool) -> Option<String> {
        let mut found = self.all(machine);
        found.retain(|(path, entry)| entry.is_dir == is_dir && !path.contains(".db"));
        match found.len() {
            0 => None,
            count => Some(found.swap_remove(self.random.below(count)).0),
        }
    }

    /// Returns a path whose directory exists. The entry may exist too.
    fn name(&mut self, machine: usize, is_dir: bool) -> String {
        let letters: &[char] = if is_dir { &['a', 'b', 'c', 'd'] } else { &['f', 'g', 'h'] };
        let letter = letters[self.random.below(letters.len())];
        let count = match self.profile.long_names && self.random.chance(20) {
            true => LONG[self.random.below(LONG.len())],
            false => 1,
        };
        let name = letter.to_string().repeat(count);
        let dir = if self.random.chance(75) { self.existing(machine, true) } else { None };
        match dir {
            Some(dir) if dir.split('/').count() < 3 => format!("{dir}/{name}"),
            _ => name,
        }
    }

    fn do_op(&mut self, machine: usize, op: Op) {
        self.push(machine, Action::Program(op));
    }

    fn program(&mut self, machine: usize) {
        let choice = self.random.below(100);
        match choice {
            0..10 => {
                let path = self.name(machine, true);
                self.do_op(machine, Op::Mkdir(path));
            }
            10..40 => {
                let path = match self.random.chance(50) {
                    true => Some(self.name(machine, false)),
                    false => self.existing(machine, false),
                };
                let Some(path) = path else { return };
                let (record, durable) = (self.record(), self.durable());
                self.do_op(machine, Op::Append(path, record, durable));
            }
            40..45 => {
                let Some(path) = self.existing(machine, false) else { return };
                let (record, durable) = (self.record(), self.durable());
                self.do_op(machine, Op::Replace(path, record, durable));
            }
            45..52 => self.save(machine),
            52..58 => self.database(machine),
            67 => self.exchange(machine),
            58..68 => self.rename(machine, false),
            68..76 if self.profile.directories => self.rename(machine, true),
            76..80 => {
                let Some(path) = self.existing(machine, false) else { return };
                self.do_op(machine, Op::Unlink(path));
            }
            80..83 if self.profile.directories => {
                let Some(path) = self.existing(machine, true) else { return };
                self.do_op(machine, Op::RemoveTree(path));
            }
            83..86 => {
                let Some(path) = self.existing(machine, true) else { return };
                self.do_op(machine, Op::Rmdir(path));
            }
            86..90 => {
                let is_dir = self.random.chance(50);
                let path = self.name(machine, is_dir);
                self.do_op(machine, Op::Stat(path));
            }
            90..92 => {
                let Some(path) = self.existing(machine, true) else { return };
                self.do_op(machine, Op::List(path));
            }
            92..100 if self.profile.handles => self.handle(machine),
            _ => {}
        }
    }

    /// Saves a file as editors do.
    fn save(&mut self, machine: usize) {
        let Some(path) = self.existing(machine, false) else { return };
        let new = match tool::parent(&path) {
            Some(dir) => format!("{dir}/new"),
            None => "new".into(),
        };
        let record = self.record();
        self.do_op(machine, Op::Append(new.clone(), record, Durable::Fsync));
        self.do_op(machine, Op::Rename(new, path));
    }

    /// Makes a transaction as SQLite does: the old page in a journal, the new one in place.
    fn database(&mut self, machine: usize) {
        let dir = if self.random.chance(50) { self.existing(machine, true) } else { None };
        let path = dir.map_or("x.db".into(), |dir| format!("{dir}/x.db"));
        let journal = format!("{path}-journal");
        let nth = self.random.below(6) as u32;
        let (before, after) = (self.record(), self.record());
        self.do_op(machine, Op::Page(journal.clone(), 0, before, Durable::Fsync));
        self.do_op(machine, Op::Page(path, nth, after, Durable::Fsync));
        self.do_op(machine, Op::Unlink(journal));
    }

    fn rename(&mut self, machine: usize, is_dir: bool) {
        let Some(from) = self.existing(machine, is_dir) else { return };
        let to = match (is_dir, self.random.chance(30)) {
            (false, true) => self.existing(machine, is_dir),
            _ => None,
        };
        let to = to.unwrap_or_else(|| self.name(machine, is_dir));
        if from != to {
            self.do_op(machine, Op::Rename(from, to));
        }
    }

    /// Exchanges the names of two files or directories in one step, or those of two files by three
    /// renames.
    fn exchange(&mut self, machine: usize) {
        let is_dir = self.profile.directories && self.random.chance(20);
        let (Some(one), Some(other)) =
            (self.existing(machine, is_dir), self.existing(machine, is_dir))
        else {
            return;
        };
        if one == other {
            return;
        }
        if is_dir || self.random.chance(50) {
            self.do_op(machine, Op::Exchange(one, other));
        } else {
            for (from, to) in [(&*one, "new"), (&*other, &*one), ("new", &*other)] {
                self.do_op(machine, Op::Rename(from.into(), to.into()));
            }
        }
    }

    fn handle(&mut self, machine: usize) {
        let held: Vec<u32> =
            self.open.iter().filter(|(of, _)| *of == machine).map(|(_, handle)| *handle).collect();
        if held.is_empty() || self.random.chance(25) {
            let Some(path) = self.existing(machine, false) else { return };
            self.handle += 1;
            let handle = self.handle;
            self.open.push((machine, handle));
            return self.do_op(machine, Op::Open(path, handle));
        }
        let handle = held[self.random.below(held.len())];
        if self.random.chance(70) {
            let (record, durable) = (self.record(), self.durable());
            self.do_op(machine, Op::Write(handle, record, durable));
        } else {
            self.open.retain(|each| *each != (machine, handle));
            self.do_op(machine, Op::Close(handle));
        }
    }
}
