//! What a check reports: faults, progress, and how fast it may be.

use std::ops::Range;
use std::time::Duration;

use crate::vault::error::Fault;
use crate::vault::fsck::remedy::{Action, Remedy};

/// Name of the directory in the root to which repairs move what cannot be authenticated.
pub const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Beginning of the names of the directories in it, one for each repair.
pub const REPAIR_RUN: &[u8] = b"repair-";

/// What the check has seen so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckProgress {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// FIFOs, sockets, devices.
    pub others: u64,
    /// Plain bytes that were authenticated.
    pub bytes: u64,
}

impl CheckProgress {
    /// Both together.
    pub(in crate::vault) fn plus(&self, other: &Self) -> Self {
        CheckProgress {
            files: self.files + other.files,
            dirs: self.dirs + other.dirs,
            symlinks: self.symlinks + other.symlinks,
            others: self.others + other.others,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckFault {
    /// Plain path from the root, as far as it is known.
    pub plain: Vec<u8>,
    /// Stored path from the root.
    pub cipher: Vec<u8>,
    /// What.
    pub what: String,
    /// Plain size of a file whose header is authentic.
    pub size: Option<u64>,
    /// Ranges of plain bytes that cannot be authenticated, in order; empty where none, or all, of
    /// the file's bytes can be read.
    pub bad: Vec<Range<u64>>,
    /// What a repair would do about it.
    pub remedy: Option<Remedy>,
    /// The control file with its attributes is not there: a sync tool may still bring it. See
    /// [`CheckFault::give_up_list`].
    pub list_missing: bool,
    /// It is what a crash leaves behind, and nothing that was synced is damaged by it. Its remedy
    /// loses nothing.
    pub residue: bool,
}

/// What a check has found and only counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct More {
    /// Damage.
    pub faults: u64,
    /// What a crash has left behind.
    pub residue: u64,
    /// What earlier repairs have put to `lost+found`.
    pub kept: u64,
}

impl More {
    /// The count of those that are of the kind of `fault`.
    pub(super) fn kind_of(&mut self, fault: &CheckFault) -> &mut u64 {
        match fault {
            fault if fault.is_kept() => &mut self.kept,
            CheckFault { residue: true, .. } => &mut self.residue,
            _ => &mut self.faults,
        }
    }
}

/// Control files of the share's root to which nothing refers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unused {
    /// How many.
    pub files: u64,
    /// Their length in all.
    pub bytes: u64,
}

/// Outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// What was seen.
    pub seen: CheckProgress,
    /// What is wrong, and what a crash has left behind.
    pub faults: Vec<CheckFault>,
    /// What is wrong with what an earlier repair has put to `lost+found`: known, and no fault of
    /// the vault any more.
    pub kept: Vec<CheckFault>,
    /// What there is besides, of which only so much is told as memory is bounded for: 10,000 of
    /// each kind in a share.
    pub more: More,
    /// Plain paths that changed while they were read, again and again, so that nothing can be said
    /// of them. Only for a vault that somebody else has open.
    pub changing: Vec<Vec<u8>>,
    /// Control files of the vault's own share to which nothing refers: no fault. `None` where that
    /// is not known, because not the whole vault was checked, somebody else may have it open,
    /// something is wrong, attributes could not be looked at, or there are lists of attributes and
    /// no entry has any, as in a copy that was made without them.
    pub unused: Option<Unused>,
    /// Entries of the vault's own share whose attributes could not be looked at: the store has
    /// none, or this process may not see them.
    pub unlooked: u64,
    /// Files and directories that are of no vault by their names, such as those of sync tools:
    /// ignored, and no fault.
    pub strangers: u64,
}

impl CheckFault {
    /// A fault of an entry as a whole.
    pub(crate) fn new(
        plain: &[u8],
        cipher: &[u8],
        what: impl Into<String>,
        remedy: Option<Remedy>,
    ) -> CheckFault {
        CheckFault {
            plain: plain.to_vec(),
            cipher: cipher.to_vec(),
            what: what.into(),
            size: None,
            bad: Vec::new(),
            remedy,
            list_missing: false,
            residue: false,
        }
    }

    /// Something that a crash left behind.
    pub(crate) fn residue(plain: &[u8], cipher: &[u8], what: &str, remedy: Action) -> CheckFault {
        CheckFault { residue: true, ..CheckFault::new(plain, cipher, what, Some(Remedy(remedy))) }
    }

    /// Where the control file with the attributes is missing: has a repair take the reference away,
    /// although the file may only be late.
    pub fn give_up_list(&mut self) {
        if self.list_missing {
            let name = self
                .plain
                .rsplit(|b| *b == b'/')
                .next()
                .filter(|name| !name.is_empty())
                .unwrap_or(b"root");
            self.remedy = Some(Remedy(Action::Attributes { name: name.to_vec() }));
        }
    }

    /// Ranges of plain bytes that are good, where the file can be opened.
    pub fn good(&self) -> Vec<Range<u64>> {
        let Some(size) = self.size else { return Vec::new() };
        let (mut good, mut at) = (Vec::new(), 0);
        for bad in &self.bad {
            if at < bad.start {
                good.push(at..bad.start);
            }
            at = bad.end;
        }
        if at < size {
            good.push(at..size);
        }
        good
    }

    pub(super) fn is_kept(&self) -> bool {
        let mut parts = self.plain.split(|b| *b == b'/');
        parts.next() == Some(LOST_AND_FOUND)
            && parts.next().is_some_and(|run| run.starts_with(REPAIR_RUN))
            && parts.next().is_some()
    }
}

pub(crate) fn describe(fault: &Fault) -> String {
    match fault {
        Fault::Io(e) => e.to_string(),
        Fault::Format(e) => e.to_string(),
        Fault::Corrupt(what) => what.to_string(),
        Fault::Boundary => "is a share that cannot be entered".to_string(),
        Fault::Os(errno) => std::io::Error::from_raw_os_error(*errno).to_string(),
    }
}

pub(crate) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// What the check is told of a vault that somebody else may be writing to.
#[derive(Clone, Copy, Debug)]
pub struct Online {
    /// How long a file must have stood still before a fault in it counts. A writer that is alive
    /// commits within 5 seconds.
    pub settle: Duration,
    /// How often a file that changes is looked at again.
    pub tries: u32,
}

impl Default for Online {
    fn default() -> Self {
        Online { settle: Duration::from_secs(6), tries: 5 }
    }
}

/// How the check calls back while it runs.
pub type Progress<'a> = &'a mut dyn FnMut(&CheckProgress);

/// Plain and stored paths, from the root of the share that was checked, of the shares nested in it.
pub(crate) type NestedShares = Vec<(Vec<u8>, Vec<u8>)>;
