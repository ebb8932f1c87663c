//! Plays a trace on a system and on plain directories, each with a sync tool of its own, and counts
//! what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::CWD;

use super::system::{Machine, System};
use super::tool::{self, Tool};
use super::trace::{Action, Durable, How, LINE, Op, PAGE, Step, ToolKind, Trace, page, record};

/// How long a mount may take to show what has arrived, if that must come about. It takes a second
/// or two, and much longer on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// How long the judgement waits for a mount to show everything. Torn files may remain, and then it
/// waits for the whole of this time.
const JUDGED_AFTER: Duration = Duration::from_secs(10);

/// The failures, by kind.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Records that the plain directory of a machine has and its mount does not show.
    pub lost: usize,
    /// Entries that a mount shows under a name that no program has used and nothing explains.
    pub nameless: usize,
    /// Entries of a store that its mount does not list.
    pub hidden: usize,
    /// Mounts, and changes of the share, that were refused.
    pub refused: usize,
    /// Checks that report faults, and tools that do not finish.
    pub faults: usize,
    /// Comparisons with the rollback database that raise an alarm.
    pub alarms: usize,
    /// Files with bytes that no program has written there.
    pub wrong: usize,
    /// Operations, flushes and unmounts that failed with EIO or the like, and files that cannot be
    /// read. Not counted: EIO of a torn copy, or while a key may be missing.
    pub io_errors: usize,
    /// Files that remain torn: a tool copied them during a write, and not again. Not counted if
    /// the plain directory has the same torn copy.
    pub torn: usize,
    /// Conflict copies of control files.
    pub control: usize,
    /// Expectations of a scenario that were not met.
    pub unmet: usize,
}

impl Counts {
    pub fn all(&self) -> [(&'static str, usize); 11] {
        [
            ("lost", self.lost),
            ("nameless", self.nameless),
            ("hidden", self.hidden),
            ("refused", self.refused),
            ("faults", self.faults),
            ("alarms", self.alarms),
            ("wrong bytes", self.wrong),
            ("io errors", self.io_errors),
            ("torn", self.torn),
            ("control copies", self.control),
            ("unmet", self.unmet),
        ]
    }

    pub fn is_zero(&self) -> bool {
        *self == Counts::default()
    }

    fn count(&mut self, name: &str) -> &mut usize {
        match name {
            "lost" => &mut self.lost,
            "nameless" => &mut self.nameless,
            "hidden" => &mut self.hidden,
            "refused" => &mut self.refused,
            "faults" => &mut self.faults,
            "alarms" => &mut self.alarms,
            "wrong bytes" => &mut self.wrong,
            "io errors" => &mut self.io_errors,
            "torn" => &mut self.torn,
            "control copies" => &mut self.control,
            "unmet" => &mut self.unmet,
            other => panic!("unknown count {other:?}"),
        }
    }

    pub fn add(&mut self, other: &Counts) {
        for (name, count) in other.all() {
            *self.count(name) += count;
        }
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self
            .all()
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        if parts.is_empty() { write!(f, "nothing") } else { write!(f, "{}", parts.join(", ")) }
    }
}

/// The result of a trace.
#[derive(Default)]
pub struct Outcome {
    pub counts: Counts,
    pub notes: Vec<String>,
    /// Operations of programs.
    pub operations: usize,
    /// The most records that a plain directory has at the end.
    pub records: usize,
    /// Operations that succeeded on one of the two systems only.
    pub differing: usize,
}

/// The machines of one system, and the files that programs have open on them.
pub struct Hosts {
    machines: Vec<Machine>,
    handles: BTreeMap<(usize, u32), File>,
}

/// The machines of one system, and the tool between them.
pub struct Side {
    pub hosts: Hosts,
    pub tool: Box<dyn Tool>,
}

impl Side {
    pub fn new(
        system: System,
        (machines, kind): (usize, ToolKind),
        template: &Path,
        dir: &Path,
    ) -> Side {
        let machines: Vec<Machine> =
            (0..machines).map(|number| Machine::new(system, number, template, dir)).collect();
        let stores = machines.iter().map(Machine::store).collect();
        let tool = tool::tool(kind, stores);
        Side { hosts: Hosts { machines, handles: BTreeMap::new() }, tool }
    }

    /// Returns the torn copies that a machine has now, by their paths in its store.
    fn torn(&self, machine: usize) -> BTreeSet<String> {
        self.tool.torn().among(&self.hosts.machines[machine].store())
    }

    /// Returns whether a machine lacks a manifest, or a slot block, that another one has. A file
    /// that arrives before its key cannot be opened until the key arrives (EIO).
    fn lacks_keys(&self, machine: usize) -> bool {
        let own = keys_in(&self.hosts.machines[machine].store());
        self.hosts.machines.iter().any(|other| !keys_in(&other.store()).is_subset(&own))
    }
}

/// Returns the names of the manifests and slot blocks in a store.
fn keys_in(store: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(store).expect("list the store").flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("+manifest-") || name.starts_with("+slots-"))
        .collect()
}

impl Hosts {
    pub fn point(&self, machine: usize) -> PathBuf {
        self.machines[machine].point()
    }

    /// Performs an operation of a program.
    ///
    /// # Errors
    /// Those of the program's system calls; `NotConnected` if the machine is off.
    pub fn run(&mut self, machine: usize, op: &Op) -> io::Result<()> {
        if !self.machines[machine].is_up() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let root = self.machines[machine].point();
        let at = |path: &str| root.join(path);
        let finish = |file: &File, durable: &Durable| match durable {
            Durable::No => Ok(()),
            Durable::Fsync => file.sync_all(),
        };
        match op {
            Op::Mkdir(path) => fs::create_dir(at(path)),
            Op::Append(path, number, durable) => {
                let mut file = OpenOptions::new().append(true).create(true).open(at(path))?;
                file.write_all(&record(*number))?;
                finish(&file, durable)
            }
            Op::Replace(path, number, durable) => {
                let mut file = File::create(at(path))?;
                file.write_all(&record(*number))?;
                finish(&file, durable)
            }
            Op::Page(path, nth, number, durable) => {
                let file =
                    OpenOptions::new().write(true).create(true).truncate(false).open(at(path))?;
                file.write_all_at(&page(*number), u64::from(*nth) * PAGE as u64)?;
                finish(&file, durable)
            }
            Op::Open(path, handle) => {
                let file = OpenOptions::new().append(true).read(true).open(at(path))?;
                self.handles.insert((machine, *handle), file);
                Ok(())
            }
            Op::Write(handle, number, durable) => {
                let missing = || io::Error::from(io::ErrorKind::NotFound);
                let mut file = self.handles.get(&(machine, *handle)).ok_or_else(missing)?;
                file.write_all(&record(*number))?;
                finish(file, durable)
            }
            Op::Close(handle) => {
                self.handles.remove(&(machine, *handle));
                Ok(())
            }
            // A rename of a directory that another program has moved fails with ESTALE as long as
            // the kernel has the directory at its old place (see docs/conformance.md). Like mv(1),
            // the program looks the name up before it tries again. On a busy machine it takes some
            // time until the daemon has notified the kernel.
            Op::Rename(from, to) => {
                let is_stale = |done: &io::Result<()>| {
                    done.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE))
                };
                let begun = Instant::now();
                loop {
                    let done = fs::rename(at(from), at(to));
                    if !is_stale(&done) || begun.elapsed() > RENAMES_TAKE {
                        return done;
                    }
                    let _ = fs::symlink_metadata(at(from));
                }
            }
            Op::Exchange(one, other) => {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                Ok(rustix::fs::renameat_with(CWD, at(one), CWD, at(other), flags)?)
            }
            Op::Unlink(path) => fs::remove_file(at(path)),
            Op::Rmdir(path) => fs::remove_dir(at(path)),
            Op::RemoveTree(path) => fs::remove_dir_all(at(path)),
            Op::Touch(path) => {
                OpenOptions::new().write(true).open(at(path))?.set_modified(SystemTime::now())
            }
            Op::Stat(path) => fs::symlink_metadata(at(path)).map(drop),
            Op::List(path) => fs::read_dir(at(path)).map(|entries| entries.for_each(drop)),
        }
    }

    pub fn close_all(&mut self, machine: usize) {
        self.handles.retain(|(of, _), _| *of != machine);
    }

    /// The records at a path and below it, as this machine sees them.
    fn records(&self, machine: usize, path: &str) -> BTreeSet<RecordId> {
        let mut view = View::default();
        view.read(&self.machines[machine].point().join(path), "");
        view.records
    }
}

/// Letter and number of a record: `R` for lines, `P` for a page.
pub type RecordId = (u8, u32);

/// What a machine shows.
#[derive(Default)]
struct View {
    records: BTreeSet<RecordId>,
    names: Vec<String>,
    wrong: Vec<String>,
    /// A record is there in part.
    has_parts: bool,
    /// Path, and why it cannot be read.
    failed: Vec<(String, String)>,
}

impl View {
    fn read(&mut self, path: &Path, shown: &str) {
        let Ok(meta) = fs::symlink_metadata(path) else { return };
        if !meta.is_dir() {
            match fs::read(path) {
                Ok(bytes) if self.take(&bytes) => {}
                Ok(_) => self.wrong.push(shown.to_owned()),
                Err(error) => self.failed.push((shown.to_owned(), error.to_string())),
            }
            return;
        }
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) => return self.failed.push((format!("{shown}/"), error.to_string())),
        };
        for entry in entries {
            match entry {
                Ok(entry) => {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    if tool::is_ignored(&name) {
                        continue;
                    }
                    let shown = format!("{shown}/{name}");
                    self.names.push(shown.clone());
                    if fs::symlink_metadata(entry.path()).is_err() {
                        let why = "listed, and cannot be looked up";
                        self.failed.push((shown.clone(), why.to_owned()));
                    }
                    self.read(&entry.path(), &shown);
                }
                Err(error) => self.failed.push((format!("{shown}/"), error.to_string())),
            }
        }
    }

    /// Takes the records of a file. Returns false if it has other bytes than lines of records,
    /// pages, and zeros. A record counts if each of its lines is there, a page if it has enough
    /// lines, which are all equal.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let mut lines: BTreeMap<RecordId, usize> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut known: BTreeMap<RecordId, Vec<u8>> = BTreeMap::new();
        for line in bytes.chunks(LINE) {
            if line.iter().all(|byte| *byte == 0) {
                continue;
            }
            let number = |range: std::ops::Range<usize>| -> Option<u32> {
                std::str::from_utf8(line.get(range)?).ok()?.parse().ok()
            };
            let Some(id) = number(1..7).map(|number| (line[0], number)) else { return false };
            let whole = known.entry(id).or_insert_with(|| match id.0 {
                b'P' => page(id.1),
                _ => record(id.1),
            });
            let nth = match id.0 {
                b'P' => 0,
                _ => number(8..13).unwrap_or(u32::MAX) as usize,
            };
            if whole.get(nth.saturating_mul(LINE)..).is_none_or(|rest| !rest.starts_with(line)) {
                return false;
            }
            let length = lines.entry(id).or_default();
            // A line of a record that is there twice does not replace another one.
            if id.0 == b'P' || line.len() < LINE || seen.insert((id, nth)) {
                *length += line.len();
            }
        }
        for (id, length) in lines {
            match length >= known[&id].len() {
                true => drop(self.records.insert(id)),
                false => self.has_parts = true,
            }
        }
        true
    }
}

/// Length of the mark ` (moved XXXXXXXX)`.
const MARK: usize = 17;

/// A trace that is being played.
pub struct Player {
    plain: Side,
    tested: Side,
    system: System,
    tool: ToolKind,
    /// Records whose write succeeded on the tested system.
    acknowledged: BTreeSet<RecordId>,
    /// Records whose write succeeded on the plain directory.
    written: BTreeSet<RecordId>,
    /// Records that some program has overwritten or removed.
    destroyed: BTreeSet<RecordId>,
    /// Records that are not durable yet, by machine.
    at_risk: BTreeMap<usize, BTreeSet<RecordId>>,
    /// Records that a kill may have lost.
    excused: BTreeSet<RecordId>,
    /// Whether both tools have taken the same changes so far.
    tools_agree: bool,
    /// Components of the paths that programs have used.
    used: BTreeSet<String>,
    /// The folder key has been changed.
    rekeyed: bool,
    /// The machine of a removed member.
    removed: Option<usize>,
    /// Records that it has written since.
    late: BTreeSet<RecordId>,
    outcome: Outcome,
}

/// Plays a trace. The stores are copies of the one in `template`. Before the judgement `spoil` is
/// called with the first machine's store.
pub fn play(
    trace: &Trace,
    system: System,
    template: &Path,
    dir: &Path,
    spoil: &dyn Fn(&Path),
) -> Outcome {
    let empty = dir.join("reference");
    fs::create_dir_all(&empty).expect("create a directory");
    super::system::create_store(System::Plain, &empty);
    let setup = (trace.machines, trace.tool);
    let mut player = Player {
        plain: Side::new(System::Plain, setup, &empty, &empty),
        tested: Side::new(system, setup, template, dir),
        system,
        tool: trace.tool,
        acknowledged: BTreeSet::new(),
        written: BTreeSet::new(),
        destroyed: BTreeSet::new(),
        at_risk: BTreeMap::new(),
        excused: BTreeSet::new(),
        tools_agree: true,
        used: BTreeSet::new(),
        rekeyed: false,
        removed: None,
        late: BTreeSet::new(),
        outcome: Outcome::default(),
    };
    if (0..trace.machines).all(|machine| player.mount(machine))
        && trace.steps.iter().all(|step| player.step(step))
    {
        player.end(trace, spoil);
    }
    player.outcome
}

/// How long a program repeats a rename of a directory that has just been moved.
const RENAMES_TAKE: Duration = Duration::from_secs(20);

const IO_ERRORS: [i32; 7] = [
    libc::EIO,
    libc::EROFS,
    libc::EUCLEAN,
    libc::EBADMSG,
    libc::ESTALE,
    libc::ENOTCONN,
    libc::ECONNABORTED,
];

impl Player {
    fn note(&mut self, note: String) {
        self.outcome.notes.push(note);
    }

    fn mount(&mut self, machine: usize) -> bool {
        match self.tested.hosts.machines[machine].mount() {
            Ok(()) => true,
            Err(message) => {
                self.outcome.counts.refused += 1;
                self.note(format!("machine {machine} was refused: {}", message.trim()));
                false
            }
        }
    }

    /// Performs one step. Returns false if the trace cannot continue.
    fn step(&mut self, step: &Step) -> bool {
        let machine = step.machine;
        match &step.action {
            Action::Program(op) => self.program(machine, op),
            Action::Sync(how) => self.sync(machine, how),
            Action::Kill => {
                self.kill(machine);
                return self.mount(machine);
            }
            Action::Leave => self.kill(machine),
            Action::Return if !self.tested.hosts.machines[machine].is_up() => {
                return self.mount(machine);
            }
            Action::Return => {}
            Action::Remount => {
                self.plain.hosts.close_all(machine);
                self.tested.hosts.close_all(machine);
                if let Err(message) = self.tested.hosts.machines[machine].unmount() {
                    self.outcome.counts.io_errors += 1;
                    self.note(format!("machine {machine} did not unmount: {message}"));
                }
                self.at_risk.remove(&machine);
                return self.mount(machine);
            }
            Action::Compare => self.compare(machine),
            Action::Flush => self.flush(machine),
            Action::Rekey(eager) => {
                let eager: &[&str] = if *eager { &["--eager"] } else { &[] };
                self.change_share(machine, &["rekey"], eager);
                self.rekeyed = true;
            }
            Action::Remove => {
                self.change_share(machine, &["remove"], &["Cem"]);
                (self.rekeyed, self.removed) = (true, Some(self.plain.hosts.machines.len() - 1));
            }
            Action::Sees(path, number) => {
                let number = *number;
                self.expect(step, machine, path, |found| {
                    found.is_some_and(|view| view.records.iter().any(|(_, each)| *each == number))
                });
            }
            Action::Gone(path) => self.expect(step, machine, path, |found| found.is_none()),
            Action::Keeps(_) => {}
        }
        true
    }

    /// Changes the members or the key of the share. `before` is put before the path of the mount, and
    /// `after` behind it.
    fn change_share(&mut self, machine: usize, before: &[&str], after: &[&str]) {
        if self.system != System::Kithfs || !self.tested.hosts.machines[machine].is_up() {
            return;
        }
        let point = self.tested.hosts.point(machine);
        let point = [point.to_str().expect("a path of ASCII")];
        let args = [before, &point, after].concat();
        let output = self.tested.hosts.machines[machine].share(&args);
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // A torn copy cannot be resealed. The rest was, and the command reports the failure.
            let torn = self.tested.torn(machine).len();
            if torn > 0 && said.contains(&format!("; {torn} invalid or unreadable, unchanged")) {
                return;
            }
            self.outcome.counts.refused += 1;
            self.note(format!("machine {machine}: share {}: {}", before[0], said.trim()));
        }
    }

    fn kill(&mut self, machine: usize) {
        self.plain.hosts.close_all(machine);
        self.tested.hosts.close_all(machine);
        self.tested.hosts.machines[machine].kill();
        self.excused.extend(self.at_risk.remove(&machine).unwrap_or_default());
    }

    fn program(&mut self, machine: usize, op: &Op) {
        if !self.tested.hosts.machines[machine].is_up() {
            return;
        }
        self.outcome.operations += 1;
        let (target, paths) = match op {
            Op::Replace(path, ..) | Op::Unlink(path) | Op::RemoveTree(path) => {
                (Some(path), vec![path])
            }
            Op::Rename(from, to) => (Some(to), vec![from, to]),
            Op::Page(path, ..) => (Some(path), vec![path]),
            Op::Mkdir(path) | Op::Append(path, ..) | Op::Open(path, _) => (None, vec![path]),
            _ => (None, Vec::new()),
        };
        for path in paths {
            self.used.extend(path.split('/').map(str::to_owned));
        }
        let mut doomed = BTreeSet::new();
        if let Some(path) = target {
            doomed = self.plain.hosts.records(machine, path);
            if !self.tools_agree {
                doomed.extend(self.tested.hosts.records(machine, path));
            }
        }
        let before = matches!(op, Op::Page(..)).then(|| doomed.clone());
        let plain = self.plain.hosts.run(machine, op);
        let tested = self.tested.hosts.run(machine, op);
        if let (Some(before), Some(path)) = (before, target) {
            let after = self.plain.hosts.records(machine, path);
            doomed = before.difference(&after).copied().collect();
        }
        if plain.is_ok() || tested.is_ok() {
            self.destroyed.extend(doomed);
        }
        if self.removed == Some(machine) {
            // This machine may know of its member's removal already.
            self.late.extend(record_of(op).map(|(id, _)| id));
            return next_tick();
        }
        if let (Ok(()), Some((id, _))) = (&plain, record_of(op)) {
            self.written.insert(id);
        }
        match (&plain, &tested) {
            (_, Ok(())) => self.acknowledge(machine, op),
            (_, Err(error))
                if error.raw_os_error().is_some_and(|e| IO_ERRORS.contains(&e))
                    && !(error.raw_os_error() == Some(libc::EIO)
                        && self.may_be_unreadable(machine, op)) =>
            {
                self.outcome.counts.io_errors += 1;
                self.note(format!("{machine} {op}: {error}"));
            }
            _ => {}
        }
        if plain.is_ok() != tested.is_ok() {
            self.outcome.differing += 1;
            if std::env::var_os("KITHFS_SYNC_VERBOSE").is_some() {
                self.note(format!("differs: {machine} {op}: plain {plain:?}, tested {tested:?}"));
            }
        }
        next_tick();
    }

    /// Returns whether the file of an operation may be one that cannot be opened: a torn copy, or one
    /// whose key is missing.
    fn may_be_unreadable(&self, machine: usize, op: &Op) -> bool {
        let is_open = matches!(op, Op::Write(..));
        !is_open && (self.tested.lacks_keys(machine) || !self.tested.torn(machine).is_empty())
    }

    fn acknowledge(&mut self, machine: usize, op: &Op) {
        let Some((id, durable)) = record_of(op) else { return };
        self.acknowledged.insert(id);
        if durable == Durable::No {
            self.at_risk.entry(machine).or_default().insert(id);
        }
    }

    fn flush(&mut self, machine: usize) {
        match self.tested.hosts.machines[machine].flush() {
            Ok(()) => {
                self.at_risk.remove(&machine);
            }
            Err(_) if self.removed == Some(machine) => {}
            Err(error) => {
                self.outcome.counts.io_errors += 1;
                self.note(format!("flush of machine {machine}: {error}"));
            }
        }
    }

    fn sync(&mut self, machine: usize, how: &How) {
        if !how.live {
            (0..self.tested.hosts.machines.len()).for_each(|each| self.flush(each));
        }
        self.tools_agree &= how.partial.is_none() && how.torn.is_none() && !how.live;
        let mut done = false;
        for Side { hosts, tool } in [&mut self.plain, &mut self.tested] {
            // The tool calls `between` for each changed file, if there is one. The operation must
            // happen exactly once on each side.
            let mut result = None;
            let mut between = || {
                if let (None, Some(torn)) = (&result, &how.torn) {
                    result = Some(hosts.run(torn.0, &torn.1));
                    let _ = hosts.machines[torn.0].flush();
                }
            };
            tool.sync(machine, how, &mut between);
            between();
            done = result.is_some_and(|result| result.is_ok());
        }
        if let (Some(torn), true) = (&how.torn, done) {
            self.acknowledge(torn.0, &torn.1);
        }
    }

    /// Checks that a live mount soon shows a file for which `holds` is true, with no wrong bytes.
    fn expect(
        &mut self,
        step: &Step,
        machine: usize,
        path: &str,
        holds: impl Fn(Option<View>) -> bool,
    ) {
        let look = |point: PathBuf| {
            let path = point.join(path);
            fs::read(&path).ok().map(|bytes| {
                let mut view = View::default();
                if !view.take(&bytes) {
                    view.wrong.push(path.display().to_string());
                }
                view
            })
        };
        // The plain directory must show it with Syncthing. Other tools have other rules, so with
        // them the expectation may not apply.
        if !holds(look(self.plain.hosts.machines[machine].point())) {
            assert!(
                self.tool != ToolKind::Syncthing,
                "the plain directory does not fulfil: {step}"
            );
            return;
        }
        let point = self.tested.hosts.machines[machine].point();
        let holds_there = || {
            let view = look(point.clone());
            view.as_ref().is_none_or(|view| view.wrong.is_empty()) && holds(view)
        };
        let limit = if self.system == System::Kithfs { SOON } else { self.patience() };
        if !within(limit, holds_there) {
            self.outcome.counts.unmet += 1;
            self.note(format!("did not become true: {step}"));
        }
    }

    /// Returns how long to wait for a mount to show what has arrived. Other systems may never show
    /// it, and each of their sessions would wait for the whole of that time.
    fn patience(&self) -> Duration {
        if self.system == System::Kithfs { JUDGED_AFTER } else { Duration::from_millis(2500) }
    }

    /// Lets the tools work until nothing changes any more.
    fn sync_until_equal(&mut self) {
        let how = How::default();
        for _ in 0..40 {
            let mut changes = 0;
            for machine in 0..self.tested.hosts.machines.len() {
                (0..self.tested.hosts.machines.len()).for_each(|each| self.flush(each));
                changes += self.plain.tool.sync(machine, &how, &mut || ());
                changes += self.tested.tool.sync(machine, &how, &mut || ());
            }
            if changes == 0 {
                return;
            }
        }
        self.outcome.counts.faults += 1;
        self.note("the tools do not come to an end".into());
    }

    fn end(&mut self, trace: &Trace, spoil: &dyn Fn(&Path)) {
        for machine in 0..trace.machines {
            if !self.tested.hosts.machines[machine].is_up() && !self.mount(machine) {
                return;
            }
        }
        self.plain.hosts.handles.clear();
        self.tested.hosts.handles.clear();
        self.sync_until_equal();
        spoil(&self.tested.hosts.machines[0].store());
        let keeps: BTreeSet<RecordId> = trace
            .steps
            .iter()
            .filter_map(|step| match step.action {
                Action::Keeps(number) => Some((b'R', number)),
                _ => None,
            })
            // After a partial sync, the directory in which to write may be missing. The two tools
            // deliver different parts, so a write can fail on one system only.
            .filter(|id| {
                self.acknowledged.contains(id) || self.tools_agree && self.written.contains(id)
            })
            .collect();
        let mut lost = BTreeSet::new();
        let judged: Vec<usize> =
            (0..trace.machines).filter(|machine| self.removed != Some(*machine)).collect();
        for machine in judged.iter().copied() {
            let lacking = self.judge_view(machine, &keeps);
            lost.extend(lacking);
        }
        self.outcome.counts.lost += lost.len();
        for machine in 0..trace.machines {
            self.judge_store(machine);
        }
        for machine in 0..trace.machines {
            if let Err(message) = self.tested.hosts.machines[machine].unmount()
                && self.removed != Some(machine)
            {
                self.outcome.counts.io_errors += 1;
                self.note(format!("machine {machine} did not unmount: {message}"));
            }
        }
        self.sync_until_equal();
        if self.system == System::Kithfs {
            judged.into_iter().for_each(|machine| self.judge_checks(machine));
        }
    }

    /// Compares what the mount of a machine shows with its plain directory. Returns what is lost.
    fn judge_view(&mut self, machine: usize, keeps: &BTreeSet<RecordId>) -> BTreeSet<RecordId> {
        let mut wanted = self.plain.hosts.records(machine, "");
        self.outcome.records = self.outcome.records.max(wanted.len());
        wanted.retain(|id| {
            self.acknowledged.contains(id)
                && !self.late.contains(id)
                && !self.excused.contains(id)
                && (self.tools_agree || !self.destroyed.contains(id))
        });
        wanted.extend(keeps);
        let point = self.tested.hosts.machines[machine].point();
        let store = self.tested.hosts.machines[machine].store();
        let has_members = self.system == System::Kithfs;
        let mut view = View::default();
        let mut hidden = 0;
        within(self.patience(), || {
            view = View::default();
            view.read(&point, "");
            view.failed.retain(|(path, _)| !(self.removed.is_some() && path.contains("/late-")));
            let stored = tool::scan(&store);
            let entries = stored
                .keys()
                .filter(|path| path.split('/').all(|name| !self.system.is_control(name)));
            hidden = entries.count().saturating_sub(view.names.len());
            wanted.is_subset(&view.records)
                && hidden == 0
                && view.names.iter().all(|path| self.is_explained(path, &view.names))
                && view.failed.is_empty()
                && view.wrong.is_empty()
                // The machine may not have noticed the removal that has just arrived.
                && (!has_members || view.records.is_disjoint(&self.late))
        });
        if has_members {
            for id in view.records.intersection(&self.late) {
                view.wrong.push(format!("a file of a removed member: {}", id.1));
            }
        }
        let lacking: BTreeSet<RecordId> = wanted.difference(&view.records).copied().collect();
        if !lacking.is_empty() {
            let names: Vec<String> = lacking
                .iter()
                .map(|(letter, number)| format!("{}{number}", char::from(*letter)))
                .collect();
            self.note(format!("machine {machine} does not show {}", names.join(" ")));
        }
        self.outcome.counts.hidden += hidden;
        if hidden > 0 {
            self.note(format!("machine {machine} does not list {hidden} entries of the store"));
        }
        self.outcome.counts.wrong += view.wrong.len();
        for path in &view.wrong {
            self.note(format!("machine {machine}: wrong bytes in {path}"));
        }
        self.judge_failed(machine, &view.failed);
        for path in &view.names {
            if !self.is_explained(path, &view.names) {
                self.outcome.counts.nameless += 1;
                self.note(format!("machine {machine}: no name: {path}"));
            }
        }
        lacking
    }

    /// Returns whether a name that is shown is explained. It is the name that a program has used,
    /// as it is or with a mark or a conflict suffix; or SPEC.md shows such an entry by its stored
    /// name.
    fn is_explained(&self, path: &str, all: &[String]) -> bool {
        let shown = tool::name_of(path);
        // The mark is right if another entry has the plain name. After a change of the folder key,
        // the plain name may also be free until the next mount: several entries claimed it, and a
        // program of this machine has taken it from one of them.
        if let Some(plain) = without_mark(path) {
            let is_taken = self.rekeyed || all.iter().any(|other| other == plain);
            return is_taken && self.is_explained(plain, all);
        }
        // An entry is shown by its stored name if the conflict suffix, or the mark, would make its
        // name longer than 255 bytes.
        if let Some(suffix) = shown.strip_prefix('=').and_then(|rest| rest.get(43..)) {
            let dir = &path[..path.len() - shown.len()];
            let is_taken = |name: &String| {
                name.len() + MARK > 255 && all.iter().any(|other| *other == format!("{dir}{name}"))
            };
            return (suffix.is_empty() && self.used.iter().any(is_taken))
                || is_conflict(suffix)
                    && self.used.iter().any(|name| name.len() + suffix.len() > 255);
        }
        self.used.contains(shown)
            || self.used.iter().any(|name| {
                let (stem, extension) = match name.rfind('.').filter(|at| *at > 0) {
                    Some(at) => name.split_at(at),
                    None => (&name[..], ""),
                };
                let rest = shown
                    .strip_prefix(&name[..])
                    .or_else(|| shown.strip_prefix(stem).filter(|rest| rest.ends_with(extension)));
                rest.is_some_and(is_conflict)
            })
    }

    /// Judges files that cannot be read. Those that are torn copies count as torn, unless the tool
    /// has left the same copy torn in the plain directory. No more files can be excused than the
    /// store has torn copies.
    fn judge_failed(&mut self, machine: usize, failed: &[(String, String)]) {
        let mut left = self.tested.torn(machine).len();
        let plain = self.plain.torn(machine);
        for (path, why) in failed {
            let note = format!("machine {machine}: {path}: {why}");
            if left == 0 || *why != io::Error::from_raw_os_error(libc::EIO).to_string() {
                self.outcome.counts.io_errors += 1;
                self.note(note);
                continue;
            }
            left -= 1;
            let path = path.trim_start_matches('/');
            // A copy that ends at the former length of a file that has grown is not torn.
            let is_torn_too = plain.contains(path)
                && fs::read(self.plain.hosts.point(machine).join(path)).is_ok_and(|bytes| {
                    let mut view = View::default();
                    !view.take(&bytes) || view.has_parts
                });
            if !is_torn_too {
                self.outcome.counts.torn += 1;
                self.note(format!("{note}: a torn copy; the plain directory has the whole file"));
            }
        }
    }

    fn judge_store(&mut self, machine: usize) {
        let store = self.tested.hosts.machines[machine].store();
        for path in tool::scan(&store).keys() {
            let name = tool::name_of(path);
            let copied = name.contains(".sync-conflict-") || name.contains("conflicted copy");
            if copied && self.system.is_control(name) && !name.starts_with("+identity") {
                self.outcome.counts.control += 1;
                self.note(format!("machine {machine}: a copy of a control file: {path}"));
            }
        }
    }

    fn judge_checks(&mut self, machine: usize) {
        // What a removed member has written since is a fault.
        if self.late.is_empty() {
            self.check(machine, "faults", &["fsck"]);
        }
        self.compare(machine);
    }

    /// Compares the vault with the rollback database.
    fn compare(&mut self, machine: usize) {
        self.check(machine, "alarms", &["rollback", "--settle", "0"]);
    }

    fn check(&mut self, machine: usize, kind: &str, args: &[&str]) {
        let output = self.tested.hosts.machines[machine].kithfs(args);
        if output.status.success() {
            return;
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        if kind == "faults" && names_torn_only(&said, &self.tested.torn(machine)) {
            return; // counted already
        }
        *self.outcome.counts.count(kind) += 1;
        self.note(format!("machine {machine}: {}: {}", args.join(" "), said.trim()));
    }
}

/// The record that an operation writes.
fn record_of(op: &Op) -> Option<(RecordId, Durable)> {
    match op {
        Op::Append(_, number, durable)
        | Op::Replace(_, number, durable)
        | Op::Write(_, number, durable) => Some(((b'R', *number), *durable)),
        Op::Page(_, _, number, durable) => Some(((b'P', *number), *durable)),
        _ => None,
    }
}

/// Returns whether a check that failed reports the files `torn`, by their paths in the store, and
/// nothing else.
fn names_torn_only(said: &str, torn: &BTreeSet<String>) -> bool {
    let stored =
        |line: &str| line.strip_suffix(')')?.rsplit_once(" (").map(|(_, it)| it.to_owned());
    let named: BTreeSet<String> =
        said.lines().filter_map(stored).filter(|it| torn.contains(it)).collect();
    let plural = if named.len() == 1 { "" } else { "s" };
    !named.is_empty() && said.contains(&format!(" verified; {} fault{plural}\n", named.len()))
}

fn is_conflict(suffix: &str) -> bool {
    [".sync-conflict-", " (conflict", "'s conflicted copy"].iter().any(|mark| suffix.contains(mark))
}

/// Returns the path without the mark ` (moved XXXXXXXX)` at its end, if it has this mark.
fn without_mark(path: &str) -> Option<&str> {
    let (plain, mark) = path.rsplit_once(" (moved ")?;
    let digits = mark.strip_suffix(')')?;
    (digits.len() == 8 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())).then_some(plain)
}

/// Calls `holds` until it returns true, or until `time` has passed.
pub fn within(time: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the clock that stamps files has moved, so that no two operations have one time.
fn next_tick() {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let before = now();
    while now() == before {
        std::thread::yield_now();
    }
}

const _: () = assert!(PAGE.is_multiple_of(LINE));

/// A line that was there twice made up for one that was missing, so a mount that mixed two versions
/// of a file was found to have lost nothing.
#[test]
fn a_record_counts_only_if_each_line_is_there() {
    let whole = record(7);
    let count = |bytes: &[u8]| {
        let mut view = View::default();
        assert!(view.take(bytes));
        (view.records.len(), view.has_parts)
    };
    assert_eq!(count(&whole), (1, false));
    let twice = [&whole[..LINE], &whole[..whole.len() - LINE]].concat();
    assert_eq!(twice.len(), whole.len());
    assert_eq!(count(&twice), (0, true));
    assert_eq!(count(&[&whole[..], &whole].concat()), (1, false));
    assert_eq!(count(&page(3)), (1, false));
    assert_eq!(count(&page(3)[LINE..]), (0, true));
    assert!(!View::default().take(&[&whole[..LINE], b"other bytes\n"].concat()));
}
