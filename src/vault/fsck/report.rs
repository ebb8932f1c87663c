//! What a check reports, and the parameters of a check beside a writer.

use std::ops::Range;
use std::time::Duration;

use serde::Serialize;

use crate::vault::error::Fault;
use crate::vault::fsck::remedy::{Action, Remedy};

/// Name of the directory in the root to which repairs move objects that cannot be authenticated.
pub const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Prefix of the names of the directories in it, one for each repair.
pub const REPAIR_RUN: &[u8] = b"repair-";

/// Progress of a check.
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
    /// Returns the sum of both.
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

/// A fault that the check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckFault {
    /// Plain path from the root, as far as it is known.
    pub plain: Vec<u8>,
    /// Stored path from the root.
    pub cipher: Vec<u8>,
    /// Description of the fault.
    pub what: String,
    /// Plain size of a file whose header is authentic.
    pub size: Option<u64>,
    /// Ranges of plain bytes that cannot be authenticated, in order; empty if all, or none, of the
    /// file's bytes can be read.
    pub bad: Vec<Range<u64>>,
    /// The remedy that a repair has for it.
    pub remedy: Option<Remedy>,
    /// The control file with the attributes is missing; a sync tool may still deliver it. See
    /// [`CheckFault::give_up_list`].
    pub list_missing: bool,
    /// Residue of a crash: no durable data is damaged by it, and its remedy loses nothing.
    pub residue: bool,
    /// The ciphertext has no byte, or none but zeros. A crash can leave a file like that if it was
    /// never durable, and the storage host can make any file so.
    pub emptied: bool,
}

/// Numbers of faults and notes that were counted and not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct More {
    /// Damage.
    pub faults: u64,
    /// Residue of crashes.
    pub residue: u64,
    /// Objects that earlier repairs moved to `lost+found`.
    pub kept: u64,
    /// Marked entries and conflict copies.
    #[serde(skip_serializing_if = "is_zero")]
    pub notes: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Why an entry has a note, which is no fault: all of the entry can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// It is shown with a mark: it is in another directory than its name says, without evidence of
    /// a rename, or another entry has its plain name.
    Marked,
    /// A sync tool's conflict copy.
    Copy,
    /// A conflict copy of the vault's own identity. Its path is the stored one.
    IdentityCopy,
}

/// An entry that the user may want to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckNote {
    /// Plain path from the root.
    pub plain: Vec<u8>,
    /// The reason.
    pub kind: NoteKind,
}

impl More {
    /// Returns the counter for the kind of `fault`.
    pub(super) fn kind_of(&mut self, fault: &CheckFault) -> &mut u64 {
        match fault {
            fault if fault.is_kept() => &mut self.kept,
            CheckFault { residue: true, .. } => &mut self.residue,
            _ => &mut self.faults,
        }
    }
}

/// Maximum number of listed paths of control files to which nothing refers.
pub const UNUSED_MAX: usize = 100_000;

/// Control files at the share's root to which nothing refers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unused {
    /// Number of files.
    pub files: u64,
    /// Their total length.
    pub bytes: u64,
}

/// Outcome of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Objects that were checked.
    pub seen: CheckProgress,
    /// Damage, and residue of crashes.
    pub faults: Vec<CheckFault>,
    /// Damage of objects that an earlier repair moved to `lost+found`; no longer faults of the
    /// vault.
    pub kept: Vec<CheckFault>,
    /// Marked entries and conflict copies.
    pub notes: Vec<CheckNote>,
    /// Numbers of further faults and notes: lists are bounded by 10,000 of each kind and 64 MiB of
    /// paths in a share.
    pub more: More,
    /// Plain paths that kept changing while they were read, so that their state is unknown. Only
    /// for a vault that another process has open.
    pub changing: Vec<Vec<u8>>,
    /// Control files of the vault's own share to which nothing refers: no fault. `None` if that is
    /// unknown: not the whole vault was checked, another process may have it open, there is a
    /// fault, or attributes could not be read. Also `None` if there are lists of attributes but no
    /// entry has any, as in a copy made without extended attributes.
    pub unused: Option<Unused>,
    /// `unused` is unknown because there are lists of attributes, and no entry has any.
    pub lists_alone: bool,
    /// Paths of the unused files from the share's root, at most [`UNUSED_MAX`].
    pub unused_files: Vec<Vec<u8>>,
    /// Number of entries of the vault's own share whose references are unknown: the store has no
    /// attributes, this process may not see them, or the entry vanished or could not be entered.
    pub unlooked: u64,
    /// Files and directories whose names belong to no vault, such as those of sync tools: ignored,
    /// and no fault.
    pub strangers: u64,
}

impl CheckFault {
    /// Returns a fault of an entry as a whole.
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
            emptied: false,
        }
    }

    /// Returns a fault for residue of a crash.
    pub(crate) fn residue(plain: &[u8], cipher: &[u8], what: &str, remedy: Action) -> CheckFault {
        CheckFault { residue: true, ..CheckFault::new(plain, cipher, what, Some(Remedy(remedy))) }
    }

    /// If the control file with the attributes is missing, sets the remedy that removes the
    /// reference, although a sync tool may still deliver the file.
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

    /// Makes this a fault of a file that this machine has seen with contents: those were durable, so
    /// no crash has emptied it.
    pub(crate) fn was_whole(&mut self) {
        self.residue = false;
        self.what.push_str("; this machine has seen it with contents that were durable");
        if let Some(Remedy(action)) = &mut self.remedy
            && let Action::Void { keep } = action
        {
            *action = (**keep).clone();
        }
    }

    /// Returns the ranges of plain bytes that are good, if the file can be opened.
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

/// Parameters of a check of a vault that another process may be writing to.
#[derive(Clone, Copy, Debug)]
pub struct Online {
    /// How long an object must be unchanged before a fault in it counts. A live writer commits
    /// within 5 seconds.
    pub settle: Duration,
    /// Maximum number of further checks of a changing file.
    pub tries: u32,
}

impl Default for Online {
    fn default() -> Self {
        Online { settle: Duration::from_secs(6), tries: 5 }
    }
}

/// Progress callback of a check.
pub type Progress<'a> = &'a mut dyn FnMut(&CheckProgress);

/// Plain and stored paths of the nested shares, from the root of the share that was checked.
pub(crate) type NestedShares = Vec<(Vec<u8>, Vec<u8>)>;
