//! The check: reads and authenticates every byte of a vault, or of a sub-tree, and tells what is
//! wrong where, and what could be done.
//!
//! Rules that hold here
//! * Nothing is changed, neither in the store nor in the table of nodes: the check walks the store
//!   by its own handles.
//! * A directory whose record is lost is walked all the same, under the id that the headers of its
//!   files name, if names decode under it.
//! * Contents are authenticated on all cores; what is wrong with a file is told as ranges of plain
//!   bytes.
//! * A check of a share stops at the shares that are nested in it: they are entered, and checked,
//!   one after the other (see `nested`).
//! * A fault comes with the remedy that `repair` has for it. What is inside a directory is told
//!   before what moves the directory.

mod content;
pub(crate) mod hints;
mod unused;
mod walk;

pub use unused::Unused;

use std::ops::Range;
use std::time::Duration;

use crate::vault::core::Core;
use crate::vault::error::{Fault, Inner};
use crate::vault::fsck::repair::{Action, Remedy};

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
    fn kind_of(&mut self, fault: &CheckFault) -> &mut u64 {
        match fault {
            fault if fault.is_kept() => &mut self.kept,
            CheckFault { residue: true, .. } => &mut self.residue,
            _ => &mut self.faults,
        }
    }
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

    fn is_kept(&self) -> bool {
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

/// Lets others have that time to write. In parts: where a whole machine stood still (a virtual one,
/// from which the host took its processors) a sleep that ended meanwhile was time that a writer did
/// not have.
fn pause(time: Duration) {
    const PARTS: u32 = 10;
    (0..PARTS).for_each(|_| std::thread::sleep(time / PARTS));
}

/// How the check calls back while it runs.
pub type Progress<'a> = &'a mut dyn FnMut(&CheckProgress);

/// Plain and stored paths, from the root of the share that was checked, of the shares nested in it.
pub(crate) type NestedShares = Vec<(Vec<u8>, Vec<u8>)>;

impl Core {
    /// Checks the entry of this share at the stored path `start` and everything below it. Nested
    /// shares are told and not entered.
    pub fn check(&self, start: &[u8], progress: Progress) -> Inner<(CheckReport, NestedShares)> {
        let mut walk = walk::Walk::new(self, progress);
        walk.from(start)?;
        let mut report = CheckReport {
            seen: walk.seen,
            unlooked: walk.used.unlooked,
            strangers: walk.strangers,
            more: walk.more,
            ..CheckReport::default()
        };
        if start.is_empty() && walk.faults.is_empty() && walk.used.unlooked == 0 {
            report.unused = self.unused(&walk.used)?;
        }
        (report.kept, report.faults) = walk.faults.into_iter().partition(CheckFault::is_kept);
        Ok((report, walk.shares))
    }

    /// As [`Core::check`], of a vault that another process may be writing to: a fault counts only
    /// if the object it is in has not changed for a while and the fault is still there.
    pub fn check_online(
        &self,
        start: &[u8],
        online: &Online,
        progress: Progress,
    ) -> Inner<(CheckReport, NestedShares)> {
        let (mut report, shares) = self.check(start, progress)?;
        report.unused = None; // whoever has the vault open may be about to refer to one
        for round in 0.. {
            let suspects = std::mem::take(&mut report.faults);
            if suspects.is_empty() {
                break;
            }
            if round >= online.tries {
                report.changing = suspects.into_iter().map(|f| f.plain).collect();
                report.changing.dedup();
                break;
            }
            // What they are in is compared over the whole pause: whoever writes to it does so
            // within that time.
            let before: Vec<_> = suspects.iter().map(|f| self.look(&f.cipher)).collect();
            pause(online.settle);
            let mut again: Vec<CheckFault> = Vec::new();
            for (suspect, before) in suspects.into_iter().zip(before) {
                let still = self.still(&suspect)?;
                if before != self.look(&suspect.cipher) {
                    // It changed: what is wrong now, if anything, has to stand still first.
                    again.extend(still);
                } else if let Some(fault) = still {
                    report.kept.push(fault);
                }
            }
            report.faults = again;
            // Certain faults wait beside the kept ones until the last round is over.
        }
        let found = std::mem::take(&mut report.kept);
        (report.kept, report.faults) = found.into_iter().partition(CheckFault::is_kept);
        Ok((report, shares))
    }

    /// The fault that is to be found now where `suspect` was found, if there still is one.
    fn still(&self, suspect: &CheckFault) -> Inner<Option<CheckFault>> {
        if suspect.what == walk::TOO_DEEP {
            return Ok(self.look(&suspect.cipher).map(|_| suspect.clone()));
        }
        let mut ignore = |_: &CheckProgress| {};
        let mut walk = walk::Walk::new(self, &mut ignore);
        match walk.single(&suspect.cipher) {
            Ok(()) => {}
            // It is gone, and so is what was wrong with it.
            Err(fault) if matches!(fault.errno(), libc::ENOENT | libc::ENOTDIR | libc::ESTALE) => {
                return Ok(None);
            }
            Err(fault) => return Err(fault),
        }
        Ok(walk.faults.into_iter().find(|f| f.cipher == suspect.cipher))
    }

    /// What the store says of the object at a stored path, to see whether it changes.
    fn look(&self, cipher: &[u8]) -> Option<[i128; 5]> {
        let (dir, name) = self.open_parent(cipher).ok()?;
        let stat = if name.is_empty() { dir.stat_self() } else { dir.stat(name) }.ok()?;
        let time = |t: crate::store::Timestamp| i128::from(t.secs) << 32 | i128::from(t.nanos);
        Some([
            stat.dev.into(),
            stat.ino.into(),
            stat.size.into(),
            time(stat.mtime),
            time(stat.ctime),
        ])
    }

    /// The directory of the store in which the object at a stored path stands, and its name there;
    /// the root has an empty one.
    pub(crate) fn open_parent<'p>(
        &self,
        cipher: &'p [u8],
    ) -> Inner<(std::sync::Arc<dyn crate::store::Dir>, &'p [u8])> {
        let mut dir = self.root.clone();
        let mut rest = cipher;
        while let Some(at) = rest.iter().position(|b| *b == b'/') {
            dir = dir.open_dir(&rest[..at])?;
            rest = &rest[at + 1..];
        }
        Ok((dir, rest))
    }
}
