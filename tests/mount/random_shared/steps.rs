//! The steps of a random session.

use std::fs;
use std::time::Instant;

use super::model::{Effect, Handle, Model, Node, OnDemand, parse};
use super::world::{SOON, World};
use crate::support::vaults::Seeded;

const LENGTHS: [u64; 8] = [1, 8, 10, 100, 4096, 5000, 20_000, 66_000];
const OFFSETS: [u64; 6] = [0, 3, 100, 4096, 10_000, 40_000];
const SIZES: [u64; 7] = [0, 8, 100, 4095, 4096, 16_384, 50_000];
const HANDLES_MAX: usize = 7;
const NODES_MAX: usize = 24;

/// A random session.
pub struct Session {
    world: World,
    model: Model,
    random: Seeded,
    /// A mount without an answer: its daemon is killed or stopped.
    away: Option<usize>,
    steps: u64,
    opened: u64,
    trace: Vec<String>,
}

/// Prints the steps if the session has failed.
impl Drop for Session {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.trace.join("\n"));
        }
    }
}

impl Session {
    pub fn new(seed: u64) -> Session {
        let mounts = 2 + (seed % 2) as usize;
        let mut session = Session {
            world: World::new(mounts, mounts + 1),
            model: Model::default(),
            random: Seeded::new(seed + 1),
            away: None,
            steps: 0,
            opened: 0,
            trace: vec![format!("KITHFS_SEED={seed}: {mounts} mounts")],
        };
        session.update(0, Effect::Nothing);
        session
    }

    fn note(&mut self, text: String) {
        self.trace.push(format!("{}: {text}", self.steps));
    }

    fn pick<T: Clone>(&self, of: &[T]) -> T {
        of[self.random.below(of.len() as u64) as usize].clone()
    }

    fn one_in(&self, n: u64) -> bool {
        self.random.below(n) == 0
    }

    /// Runs a command in a program and its twin, which must return the same. Returns whether that
    /// is "ok".
    fn both(&mut self, program: usize, command: &str, effect: Effect) -> bool {
        let mount = self.world.mount_of(program);
        let begun = Instant::now();
        let mut there = self.world.run(program, command);
        let opens = ["open", "store", "cut"].iter().any(|it| command.starts_with(it));
        // The kernel sends the last part of a close without waiting.
        while opens && there == "EBUSY" && begun.elapsed() < SOON {
            there = self.world.run(program, command);
        }
        self.note(format!("mount {mount}, program {program}: {command} -> {there}"));
        if there == "ESTALE" && self.may_refuse_a_lock(command) {
            return false;
        }
        let here = self.world.run_twin(program, command);
        assert_eq!(there, here, "mount {mount}: {command}");
        self.update(mount, if here == "ok" { effect } else { Effect::Nothing });
        here == "ok"
    }

    /// Returns whether a command takes a lock on a file without a name, in a store that cannot open
    /// such a file again (GlusterFS, and NFS if another client removed the name).
    fn may_refuse_a_lock(&self, command: &str) -> bool {
        let ["lock" | "flock", name, "sh" | "ex", ..] = command.split(' ').collect::<Vec<_>>()[..]
        else {
            return false;
        };
        let handle = self.model.handles.iter().find(|it| it.name == name);
        let is_named = |inode| self.model.tree.iter().any(|node| node.inode == inode);
        !self.world.reopens && handle.is_some_and(|it| !is_named(it.inode))
    }

    /// Takes the state of the twin.
    fn update(&mut self, mount: usize, effect: Effect) {
        let tree = parse(&self.world.tree(None));
        let mut nameless = Vec::new();
        for handle in self.model.handles.clone() {
            if !tree.iter().any(|node| node.inode == handle.inode) {
                let digest =
                    self.world.run_twin(handle.program, &format!("digest {}", handle.name));
                nameless.push((handle.inode, digest));
            }
        }
        self.model.update(mount, tree, nameless, effect);
    }

    fn program(&self) -> usize {
        self.pick(&self.world.programs())
    }

    fn text(&self) -> String {
        format!("{}.", self.random.below(1_000_000))
    }

    /// Returns the path of an existing entry of this kind (any, if empty), and now and then another
    /// one.
    fn old_path(&self, kind: &str) -> String {
        let is_wanted = |node: &&Node| kind.is_empty() || node.kind == kind;
        let all: Vec<String> =
            self.model.tree.iter().filter(is_wanted).map(|node| node.path.clone()).collect();
        if all.is_empty() || self.one_in(20) { self.new_path() } else { self.pick(&all) }
    }

    /// Returns a path in a directory that exists.
    fn new_path(&self) -> String {
        let name = self.pick(&["a", "b", "c", "d", "e"]);
        let dirs = self.model.tree.iter().filter(|it| it.kind == "dir").map(|it| it.path.clone());
        let dirs: Vec<String> = dirs.filter(|path| path.matches('/').count() < 3).collect();
        if dirs.is_empty() || self.one_in(3) {
            name.to_owned()
        } else {
            format!("{}/{name}", self.pick(&dirs))
        }
    }

    /// Returns whether the contents of a file depend on a daemon that is away.
    fn is_away(&self, inode: u64) -> bool {
        let Some(away) = self.away else { return false };
        self.model.files[&inode].dirty_in == Some(away) || self.model.writers(inode).contains(&away)
    }

    /// Makes a random change, and compares.
    pub fn step(&mut self) {
        self.steps += 1;
        match self.random.below(100) {
            0..12 => self.store(),
            12..46 => self.change_names(),
            46..58 => self.open(),
            58..90 => self.use_handle(),
            _ => self.close_one(),
        }
        let up = self.world.all_up();
        if self.steps.is_multiple_of(6) {
            self.compare(&up);
        } else {
            self.compare(&[self.pick(&up)]);
        }
        self.compare_handle();
    }

    /// Kills, stops or delays daemons, now and then.
    pub fn disturb(&mut self) {
        match self.random.below(1000) {
            0..30 => self.kill(),
            30..36 => self.stop(),
            36..50 => {
                let name = self.pick(&["+lease", "+lease", "+wanted", "+lock"]);
                let removed = self.world.remove_lock_file(name);
                self.note(format!("{name} is removed: {removed}"));
                self.compare(&self.world.all_up());
            }
            50..52 => self.hold_lease(),
            _ => {}
        }
    }

    fn kill(&mut self) {
        let mount = self.pick(&self.world.all_up());
        self.note(format!("the daemon of mount {mount} is killed"));
        let handles = self.model.handles.clone().into_iter();
        let gone: Vec<Handle> = handles.filter(|it| it.mount == mount).collect();
        self.world.kill(mount);
        self.model.handles.retain(|it| it.mount != mount);
        gone.iter().for_each(|handle| self.model.closed(handle));
        self.away = Some(mount);
        self.update(mount, Effect::Nothing);
        for _ in 0..self.random.below(5) {
            self.step();
        }
        self.away = None;
        self.note(format!("mount {mount} is mounted again"));
        self.world.mount(mount);
        self.adopt_what_is_left(mount);
        self.compare(&self.world.all_up());
    }

    /// After the daemon of `mount` was killed: gives the twin what is left of the changes that were
    /// not committed.
    fn adopt_what_is_left(&mut self, mount: usize) {
        for node in parse(&self.world.tree(Some(mount))) {
            let Some(twin) = self.model.node(&node.path).filter(|it| it.is_file()) else {
                continue;
            };
            let inode = twin.inode;
            let file = &self.model.files[&inode];
            if file.dirty_in != Some(mount) || file.lost {
                continue;
            }
            assert!(file.states.contains(&node.contents), "{node:?} after a kill: {file:?}");
            self.note(format!("{} is left as {}", node.path, node.contents));
            let left = fs::read(self.world.point(mount).join(&node.path)).unwrap();
            fs::write(self.world.twin().join(&node.path), left).unwrap();
            let file = self.model.files.get_mut(&inode).unwrap();
            (file.states, file.time) = (vec![node.contents], 0);
            file.all_committed();
        }
        for file in self.model.files.values_mut().filter(|it| it.dirty_in == Some(mount)) {
            (file.lost, file.dirty_in) = (true, None); // it has no name
        }
        self.update(mount, Effect::Nothing);
    }

    /// Lets a program of another mount open for writing, and close, each file that no program of
    /// `mount` has open for writing. The kernel sends the last part of a close without waiting, and
    /// a daemon that stops before it has received that keeps the file.
    fn await_closes(&mut self, mount: usize) {
        let mut programs = self.world.programs().into_iter();
        let Some(program) = programs.find(|it| self.world.mount_of(*it) != mount) else { return };
        let other = self.world.mount_of(program);
        let files = self.model.tree.clone().into_iter().filter(Node::is_file);
        for Node { path, inode, .. } in files {
            let is_in_use = self.model.writers(inode).contains(&mount);
            if !is_in_use
                && self.model.may_write(other, inode) == Some(true)
                && self.both(program, &format!("open closed {path} old"), Effect::Nothing)
            {
                self.both(program, "close closed", Effect::Nothing);
            }
        }
    }

    fn stop(&mut self) {
        let mount = self.pick(&self.world.all_up());
        self.await_closes(mount);
        self.note(format!("the daemon of mount {mount} is stopped"));
        self.world.stop(mount);
        self.away = Some(mount);
        for _ in 0..1 + self.random.below(6) {
            self.step();
        }
        self.away = None;
        self.world.resume();
        self.note(format!("the daemon of mount {mount} continues"));
        self.compare(&self.world.all_up());
    }

    fn hold_lease(&mut self) {
        self.note("another process has the lock of the lease".into());
        let program = self.program();
        let command = format!("mkdir {}", self.new_path());
        let mut there = String::new();
        self.world.hold_lease(|world| there = world.run(program, &command));
        self.note(format!("program {program}: {command} -> {there}"));
        let here = self.world.run_twin(program, &command);
        assert_eq!(there, here, "{command}");
        self.update(0, Effect::Nothing);
        self.compare(&self.world.all_up());
    }

    /// Opens, writes and closes a file, or sets its size.
    fn store(&mut self) {
        let program = self.program();
        let mount = self.world.mount_of(program);
        let path = self.old_path("file");
        let (offset, len) = (self.pick(&OFFSETS), self.pick(&LENGTHS));
        let Some(node) = self.model.node(&path).cloned() else {
            if self.model.tree.len() < NODES_MAX {
                self.both(program, &format!("store {path} new {offset} {len} x."), Effect::Nothing);
            }
            return;
        };
        if !node.is_file() || self.is_away(node.inode) {
            return;
        }
        let command = match self.random.below(4) {
            0 => format!("cut {path} {}", self.pick(&SIZES)),
            how => {
                let how = ["old", "app", "trunc"][how as usize - 1];
                format!("store {path} {how} {offset} {len} {}", self.text())
            }
        };
        let file = &self.model.files[&node.inode];
        let empties = command.contains("trunc") || command.ends_with(" 0");
        match self.model.may_write(mount, node.inode) {
            Some(false) => self.expect_busy(program, &command),
            // It is refused as long as another mount has changes.
            Some(true) if empties && file.dirty_in.is_some_and(|it| it != mount) => {}
            Some(true) => {
                let keeps =
                    command.starts_with("cut") && self.model.writers(node.inode).contains(&mount);
                let effect = if keeps { Effect::Changes } else { Effect::Rewrites };
                self.both(program, &command, effect(node.inode));
            }
            None => {}
        }
    }

    /// Runs a command that is refused because another mount has the file open for writing.
    fn expect_busy(&mut self, program: usize, command: &str) {
        if self.one_in(12) {
            let answer = self.world.run(program, command);
            self.note(format!("program {program}: {command} -> {answer}"));
            assert_eq!(answer, "EBUSY", "{command}");
        }
    }

    fn change_names(&mut self) {
        let program = self.program();
        let (old, new) = (self.old_path(""), self.new_path());
        let to = if self.one_in(2) { self.old_path("") } else { new.clone() };
        let is_full = self.model.tree.len() >= NODES_MAX;
        let number = self.random.below(1_000_000_000);
        let command = match self.random.below(20) {
            0..6 => format!("rename {old} {to}"),
            6 if self.world.exchanges => format!("swap {old} {to}"),
            7..9 if !is_full => format!("link {old} {new}"),
            9..12 => format!("unlink {old}"),
            12..15 if !is_full => format!("mkdir {new}"),
            15 => format!("rmdir {}", self.old_path("dir")),
            16 if !is_full => format!("symlink {new} target{number}"),
            17 => format!("chmod {old} {}", self.pick(&["600", "640", "700", "755"])),
            18 => format!("touch {old} {number}"),
            _ => format!("unlink {old}"),
        };
        let node = self.model.node(&old).cloned();
        let done = self.both(program, &command, Effect::Nothing);
        if let Some(node) = node
            && command.starts_with("touch")
            && done
            && let Some(file) = self.model.files.get_mut(&node.inode)
        {
            file.time = 0;
            file.set_time = file.dirty_in.is_none().then_some(number * 1_000_000_000);
        }
    }

    fn open(&mut self) {
        let program = self.program();
        let mount = self.world.mount_of(program);
        let path = self.old_path("file");
        let Some(node) = self.model.node(&path).filter(|it| it.is_file()).cloned() else { return };
        if self.model.handles.len() >= HANDLES_MAX || self.is_away(node.inode) {
            return;
        }
        let how = self.pick(&["r", "old", "old", "app", "trunc"]);
        let name = format!("h{}", self.opened);
        let command = format!("open {name} {path} {how}");
        let dirty_in = self.model.files[&node.inode].dirty_in;
        let may = how == "r" || {
            match self.model.may_write(mount, node.inode) {
                Some(false) => {
                    self.expect_busy(program, &command);
                    false
                }
                Some(true) => how != "trunc" || dirty_in.is_none_or(|it| it == mount),
                None => false,
            }
        };
        let effect = match how {
            "trunc" => Effect::Changes(node.inode),
            _ => Effect::Nothing,
        };
        if may && self.both(program, &command, effect) {
            self.opened += 1;
            let (inode, writes) = (node.inode, how != "r");
            let handle = Handle { program, mount, name, inode, writes, mapped: false };
            self.model.handles.push(handle);
        }
    }

    /// Returns a descriptor that can be used.
    fn handle(&self) -> Option<Handle> {
        let up = self.model.handles.iter().filter(|it| self.world.is_up(it.mount));
        let free: Vec<Handle> = up.filter(|it| !self.is_away(it.inode)).cloned().collect();
        (!free.is_empty()).then(|| self.pick(&free))
    }

    fn use_handle(&mut self) {
        let Some(handle) = self.handle() else { return };
        let (name, inode, program) = (&handle.name, handle.inode, handle.program);
        let (offset, len) = (self.pick(&OFFSETS), self.pick(&LENGTHS));
        let command = match self.random.below(20) {
            0..5 => format!("fill {name} {offset} {len} {}", self.text()),
            5 => format!("truncate {name} {}", self.pick(&SIZES)),
            6 if self.world.allocates => format!("allocate {name} {offset} {len}"),
            7 => format!("punch {name} {offset} {len}"),
            8..11 => {
                self.both(program, &format!("sync {name}"), Effect::Commits(inode));
                return;
            }
            11..13 if self.world.maps => return self.map(&handle),
            _ => return self.lock(&handle),
        };
        if handle.writes {
            self.both(program, &command, Effect::Changes(inode));
        }
    }

    fn lock(&mut self, handle: &Handle) {
        let (name, program) = (&handle.name, handle.program);
        let how = self.pick(&["sh", "ex", "un", "un"]);
        let is_range = self.one_in(2);
        let command = if is_range {
            format!("lock {name} {how} {} {}", self.pick(&OFFSETS), self.pick(&[0, 1, 100]))
        } else {
            format!("flock {name} {how}")
        };
        self.both(program, &command, Effect::Nothing);
        if how == "un" {
            self.unlocked(handle);
        } else if let Some(file) = self.model.files.get_mut(&handle.inode)
            && file.on_demand == OnDemand::No
            && self
                .model
                .handles
                .iter()
                .any(|it| it.inode == handle.inode && it.writes && it.mount == handle.mount)
        {
            file.on_demand = OnDemand::Maybe;
        }
    }

    /// A program in the mount of a descriptor has given a lock back.
    fn unlocked(&mut self, handle: &Handle) {
        let writes = self.model.writers(handle.inode).contains(&handle.mount);
        let Some(file) = self.model.files.get_mut(&handle.inode) else { return };
        if writes {
            file.on_demand = OnDemand::Yes;
        }
        if file.dirty_in == Some(handle.mount) {
            file.all_committed();
        }
    }

    /// Maps the beginning of a file, compares it, or writes to it under a lock.
    fn map(&mut self, handle: &Handle) {
        let (name, program, inode) = (&handle.name, handle.program, handle.inode);
        if !handle.writes || self.model.files[&inode].len() < 8 {
            return;
        }
        if !handle.mapped {
            if self.model.files[&inode].dirty_in.is_some_and(|it| it != handle.mount) {
                return; // the file may be shorter in this mount until that is committed
            }
            if self.both(program, &format!("map {name} 8"), Effect::Nothing) {
                self.model.handles.iter_mut().filter(|it| it.name == *name).for_each(|it| {
                    it.mapped = true;
                });
            }
        } else if self.one_in(2) {
            let file = &self.model.files[&inode];
            if file.lost || file.dirty_in.is_some_and(|it| it != handle.mount) {
                return;
            }
            let wanted = self.world.run_twin(program, &format!("peek {name} 8"));
            let begun = Instant::now();
            while self.world.run(program, &format!("peek {name} 8")) != wanted {
                assert!(begun.elapsed() < SOON, "the mapping of {name} does not show {wanted}");
            }
        } else if self.both(program, &format!("lock {name} ex 0 0"), Effect::Nothing) {
            let text = format!("put {name} {:08}", self.random.below(100_000_000));
            self.both(program, &text, Effect::Rewrites(inode));
            self.both(program, &format!("lock {name} un 0 0"), Effect::Nothing);
            self.unlocked(handle);
        }
    }

    fn close_one(&mut self) {
        if let Some(handle) = self.handle() {
            self.close(&handle);
        }
    }

    fn close(&mut self, handle: &Handle) {
        let (name, program) = (&handle.name, handle.program);
        if handle.mapped {
            self.both(program, &format!("unmap {name}"), Effect::Nothing);
        }
        // A close alone gives the locks back a little later.
        self.both(program, &format!("flock {name} un"), Effect::Nothing);
        self.unlocked(handle);
        let effect = if handle.writes { Effect::Commits(handle.inode) } else { Effect::Nothing };
        self.model.handles.retain(|it| it.name != handle.name);
        let closed = self.both(program, &format!("close {name}"), effect);
        assert!(closed);
        self.model.closed(handle);
        self.update(handle.mount, Effect::Nothing);
    }

    /// Closes everything, and compares the mounts for the last time.
    pub fn end(mut self) {
        for handle in self.model.handles.clone() {
            self.close(&handle);
        }
        self.compare(&self.world.all_up());
        self.world.check_the_vault();
    }
}

/// The comparisons.
impl Session {
    fn compare(&mut self, mounts: &[usize]) {
        let mut times: Vec<(u64, u64)> = Vec::new();
        for &mount in mounts {
            let there = parse(&self.world.tree(Some(mount)));
            let names = |nodes: &[Node]| nodes.iter().map(|it| it.path.clone()).collect::<Vec<_>>();
            assert_eq!(names(&there), names(&self.model.tree), "the names of mount {mount}");
            let here = self.model.tree.clone();
            for (there, here) in there.iter().zip(&here) {
                let values = |it: &Node| {
                    let links = if it.kind == "dir" { 0 } else { it.links };
                    (it.kind.clone(), it.mode.clone(), links)
                };
                assert_eq!(values(there), values(here), "{} in mount {mount}", here.path);
                if here.is_file() {
                    self.compare_file(mount, there, here, &mut times);
                } else {
                    assert_eq!(there.contents, here.contents, "{} in mount {mount}", here.path);
                }
            }
        }
    }

    fn compare_file(
        &mut self,
        mount: usize,
        there: &Node,
        here: &Node,
        times: &mut Vec<(u64, u64)>,
    ) {
        let is_away = self.is_away(here.inode);
        let file = self.model.files.get_mut(&here.inode).unwrap();
        if file.lost || is_away {
            return;
        }
        assert!(
            file.shows(mount, &there.contents),
            "{} is {} in mount {mount}, and should be one of {:?}",
            here.path,
            there.contents,
            file.states
        );
        if file.dirty_in.is_some() {
            return;
        }
        let len = file.len();
        assert_eq!(there.size, len, "the size of {} in mount {mount}", here.path);
        assert!(there.time >= file.time, "{} in mount {mount} became older", here.path);
        file.time = there.time;
        if let Some(time) = file.set_time {
            assert_eq!(there.time, time, "{} in mount {mount} has a time that was set", here.path);
        }
        match times.iter().find(|it| it.0 == here.inode) {
            Some((_, time)) => {
                assert_eq!(there.time, *time, "the time of {} in mount {mount}", here.path);
            }
            None => times.push((here.inode, there.time)),
        }
    }

    /// Reads through a descriptor.
    fn compare_handle(&mut self) {
        let Some(handle) = self.handle() else { return };
        let state = self.world.run(handle.program, &format!("digest {}", handle.name));
        let file = self.model.files.get_mut(&handle.inode).unwrap();
        assert!(
            file.shows(handle.mount, &state),
            "{handle:?} shows {state}, and should show one of {:?}",
            file.states
        );
    }
}
