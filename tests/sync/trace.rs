//! A trace: what programs and the sync tool do on each machine, as a text with one step a line.
//!
//! ```text
//! machines 2
//! tool syncthing
//! 0 append a/f 1 fsync
//! 0 sync
//! 1 sync partial 77
//! ```
//!
//! In a path, `x{183}` is 183 times the letter before the brace. A record is a number; its bytes
//! follow from it (`record`). Any part of a trace is a trace: an operation that is not possible
//! fails on the plain directory too, and counts for nothing.

use std::fmt::{self, Display, Formatter};

/// One step of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The machine on which it happens.
    pub machine: usize,
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Program(Op),
    Sync(How),
    /// The daemon is killed, and the vault is mounted again.
    Kill,
    /// The vault is unmounted and mounted again.
    Remount,
    /// The vault is compared with the rollback database: on a busy machine a mount may end before its
    /// own comparison has.
    Compare,
    /// The daemon is killed, and the machine is off until `Return`.
    Leave,
    Return,
    /// Everything that programs have written is flushed.
    Flush,
    /// The folder key is changed, and with `true` everything is resealed.
    Rekey(bool),
    /// The member of the last machine is removed. What that machine writes from then on is late.
    Remove,
    /// Within two seconds the file of this name contains this record.
    Sees(String, u32),
    /// Within two seconds there is no file of this name.
    Gone(String),
    /// After the last sync the record is on every machine, under any name.
    Keeps(u32),
}

/// An operation of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Mkdir(String),
    /// Appends a record; creates the file if it is missing.
    Append(String, u32, Durable),
    /// Truncates the file, and writes a record.
    Replace(String, u32, Durable),
    /// Writes one page of a file in place, as a database does.
    Page(String, u32, u32, Durable),
    Open(String, u32),
    Write(u32, u32, Durable),
    Close(u32),
    Rename(String, String),
    /// Exchanges two names, in one step.
    Exchange(String, String),
    Unlink(String),
    Rmdir(String),
    RemoveTree(String),
    /// Changes the time of a file, and nothing else.
    Touch(String),
    /// Looks a name up, which may be missing.
    Stat(String),
    List(String),
}

/// Whether the program waits until its write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    No,
    Fsync,
}

/// How a sync tool works this time.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct How {
    /// The tool does not wait until the programs' writes are flushed.
    pub live: bool,
    /// The tool takes only a part of the changes, in random order. This is the seed.
    pub partial: Option<u64>,
    /// A program on this machine does this after the tool has read half of each file.
    pub torn: Option<Box<(usize, Op)>>,
}

/// The sync tools that are simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolKind {
    Syncthing,
    Dropbox,
    Nextcloud,
}

pub const TOOLS: [ToolKind; 3] = [ToolKind::Syncthing, ToolKind::Dropbox, ToolKind::Nextcloud];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub machines: usize,
    /// The vault is a share, and each machine belongs to another member.
    pub members: bool,
    pub tool: ToolKind,
    pub steps: Vec<Step>,
}

/// Returns the bytes of a record: one line, or many for some numbers, all of them different.
pub fn record(number: u32) -> Vec<u8> {
    let lines = match number % 50 {
        49 => 5000,
        7 | 21 | 35 => 100,
        _ => 1,
    };
    let mut bytes = Vec::with_capacity(lines * LINE);
    for line in 0..lines as u64 {
        let mut random = Random::new((u64::from(number) << 20) + line);
        let text = format!("R{number:06} {line:05} {:016x}{:016x}", random.next(), random.next());
        bytes.extend_from_slice(format!("{text:<63}\n").as_bytes());
    }
    bytes
}

pub const LINE: usize = 64;
pub const PAGE: usize = 4096;

/// Returns a page of a database, which repeats one line.
pub fn page(number: u32) -> Vec<u8> {
    let mut random = Random::new(u64::from(number) << 20);
    let line = format!("P{number:06} {:016x}{:016x}", random.next(), random.next());
    format!("{line:<63}\n").into_bytes().repeat(PAGE / LINE)
}

/// Splitmix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Returns true with a probability of `percent` in a hundred.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

impl ToolKind {
    pub fn name(self) -> &'static str {
        match self {
            ToolKind::Syncthing => "syncthing",
            ToolKind::Dropbox => "dropbox",
            ToolKind::Nextcloud => "nextcloud",
        }
    }

    pub fn named(name: &str) -> Option<ToolKind> {
        TOOLS.into_iter().find(|tool| tool.name() == name)
    }
}

/// Returns a path with its long runs of one letter shortened.
fn short(path: &str) -> String {
    let mut out = String::new();
    let mut letters = path.chars().peekable();
    while let Some(letter) = letters.next() {
        let mut run = 1;
        while letters.next_if_eq(&letter).is_some() {
            run += 1;
        }
        match run {
            1..=8 => out.extend(std::iter::repeat_n(letter, run)),
            _ => out.push_str(&format!("{letter}{{{run}}}")),
        }
    }
    out
}

fn long(path: &str) -> String {
    let mut out = String::new();
    let mut rest = path;
    while let Some(at) = rest.find('{') {
        let end = rest.find('}').expect("a closed brace");
        let run: usize = rest[at + 1..end].parse().expect("a number of letters");
        let letter = rest[..at].chars().last().expect("a letter before a brace");
        out.push_str(&rest[..at]);
        out.extend(std::iter::repeat_n(letter, run - 1));
        rest = &rest[end + 1..];
    }
    out + rest
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let synced = |durable: &Durable| match durable {
            Durable::No => "",
            Durable::Fsync => " fsync",
        };
        match self {
            Op::Mkdir(path) => write!(f, "mkdir {}", short(path)),
            Op::Append(path, record, durable) => {
                write!(f, "append {} {record}{}", short(path), synced(durable))
            }
            Op::Replace(path, record, durable) => {
                write!(f, "replace {} {record}{}", short(path), synced(durable))
            }
            Op::Page(path, at, record, durable) => {
                write!(f, "page {} {at} {record}{}", short(path), synced(durable))
            }
            Op::Open(path, handle) => write!(f, "open {} {handle}", short(path)),
            Op::Write(handle, record, durable) => {
                write!(f, "write {handle} {record}{}", synced(durable))
            }
            Op::Close(handle) => write!(f, "close {handle}"),
            Op::Rename(from, to) => write!(f, "rename {} {}", short(from), short(to)),
            Op::Exchange(one, other) => write!(f, "exchange {} {}", short(one), short(other)),
            Op::Unlink(path) => write!(f, "unlink {}", short(path)),
            Op::Rmdir(path) => write!(f, "rmdir {}", short(path)),
            Op::RemoveTree(path) => write!(f, "rmtree {}", short(path)),
            Op::Touch(path) => write!(f, "touch {}", short(path)),
            Op::Stat(path) => write!(f, "stat {}", short(path)),
            Op::List(path) => write!(f, "list {}", short(path)),
        }
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.machine)?;
        match &self.action {
            Action::Program(op) => write!(f, "{op}"),
            Action::Sync(how) => {
                write!(f, "sync{}", if how.live { " live" } else { "" })?;
                if let Some(seed) = how.partial {
                    write!(f, " partial {seed}")?;
                }
                match &how.torn {
                    Some(torn) => write!(f, " torn {} {}", torn.0, torn.1),
                    None => Ok(()),
                }
            }
            Action::Kill => write!(f, "kill"),
            Action::Remount => write!(f, "remount"),
            Action::Compare => write!(f, "compare"),
            Action::Leave => write!(f, "leave"),
            Action::Return => write!(f, "return"),
            Action::Flush => write!(f, "flush"),
            Action::Rekey(eager) => write!(f, "rekey{}", if *eager { " eager" } else { "" }),
            Action::Remove => write!(f, "remove"),
            Action::Sees(path, record) => write!(f, "sees {} {record}", short(path)),
            Action::Gone(path) => write!(f, "gone {}", short(path)),
            Action::Keeps(record) => write!(f, "keeps {record}"),
        }
    }
}

impl Display for Trace {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "machines {}\ntool {}", self.machines, self.tool.name())?;
        if self.members {
            writeln!(f, "members")?;
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

struct Words<'a>(std::str::SplitWhitespace<'a>, &'a str);

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Words<'a> {
        Words(line.split_whitespace(), line)
    }

    fn word(&mut self) -> &'a str {
        self.0.next().unwrap_or_else(|| panic!("a word is missing in {:?}", self.1))
    }

    fn path(&mut self) -> String {
        long(self.word())
    }

    fn number<T: std::str::FromStr>(&mut self) -> T {
        let word = self.word();
        word.parse().unwrap_or_else(|_| panic!("{word:?} is no number, in {:?}", self.1))
    }

    fn durable(&mut self) -> Durable {
        match self.0.next() {
            Some("fsync") => Durable::Fsync,
            None => Durable::No,
            Some(other) => panic!("{other:?} in {:?}", self.1),
        }
    }

    fn op(&mut self, verb: &str) -> Op {
        match verb {
            "mkdir" => Op::Mkdir(self.path()),
            "append" => Op::Append(self.path(), self.number(), self.durable()),
            "replace" => Op::Replace(self.path(), self.number(), self.durable()),
            "page" => Op::Page(self.path(), self.number(), self.number(), self.durable()),
            "open" => Op::Open(self.path(), self.number()),
            "write" => Op::Write(self.number(), self.number(), self.durable()),
            "close" => Op::Close(self.number()),
            "rename" => Op::Rename(self.path(), self.path()),
            "exchange" => Op::Exchange(self.path(), self.path()),
            "unlink" => Op::Unlink(self.path()),
            "rmdir" => Op::Rmdir(self.path()),
            "rmtree" => Op::RemoveTree(self.path()),
            "touch" => Op::Touch(self.path()),
            "stat" => Op::Stat(self.path()),
            "list" => Op::List(self.path()),
            other => panic!("unknown step {other:?} in {:?}", self.1),
        }
    }

    fn how(&mut self) -> How {
        let mut how = How::default();
        while let Some(word) = self.0.next() {
            match word {
                "live" => how.live = true,
                "partial" => how.partial = Some(self.number()),
                "torn" => {
                    let machine = self.number();
                    let verb = self.word();
                    how.torn = Some(Box::new((machine, self.op(verb))));
                }
                other => panic!("{other:?} in {:?}", self.1),
            }
        }
        how
    }

    fn step(&mut self) -> Step {
        let machine = self.number();
        let action = match self.word() {
            "sync" => Action::Sync(self.how()),
            "kill" => Action::Kill,
            "remount" => Action::Remount,
            "compare" => Action::Compare,
            "leave" => Action::Leave,
            "return" => Action::Return,
            "flush" => Action::Flush,
            "rekey" => Action::Rekey(self.0.next() == Some("eager")),
            "remove" => Action::Remove,
            "sees" => Action::Sees(self.path(), self.number()),
            "gone" => Action::Gone(self.path()),
            "keeps" => Action::Keeps(self.number()),
            verb => Action::Program(self.op(verb)),
        };
        Step { machine, action }
    }
}

impl Trace {
    /// Reads a trace. Empty lines and those that begin with `#` are comments.
    pub fn parse(text: &str) -> Trace {
        let mut trace =
            Trace { machines: 2, members: false, tool: ToolKind::Syncthing, steps: Vec::new() };
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = Words::of(line);
            if let Some(count) = line.strip_prefix("machines ") {
                trace.machines = count.parse().expect("a number of machines");
            } else if line == "members" {
                trace.members = true;
            } else if let Some(name) = line.strip_prefix("tool ") {
                trace.tool = ToolKind::named(name).expect("a known tool");
            } else {
                let step = words.step();
                assert!(words.0.next().is_none(), "too many words in {line:?}");
                assert!(step.machine < trace.machines, "no such machine in {line:?}");
                trace.steps.push(step);
            }
        }
        trace
    }
}
