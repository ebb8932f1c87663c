//! The report of a check and a repair, for people and as JSON. The names of the fields are stable.

use std::ops::Range;
use std::path::PathBuf;

use serde::Serialize;

use super::salvage::Salvaged;
use crate::cli::display::{self, JsonPath, Shown};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, LATE_CHANGES, note};
use crate::cli::terminal::stdout::Out;
use crate::vault::{
    CheckFault, CheckNote, CheckReport, More, NOT_A_WRITER, NoteKind, Outcome, RepairReport, Unused,
};

#[derive(Serialize)]
pub(super) struct Report {
    clean: bool,
    files: u64,
    dirs: u64,
    symlinks: u64,
    others: u64,
    bytes: u64,
    faults: Vec<Fault>,
    /// Objects that earlier repairs have moved.
    kept: Vec<Fault>,
    /// Files that changed all the time.
    changing: Vec<JsonPath>,
    /// Entries that the user may want to look at; no faults.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<Note>,
    /// Number of files that were verified with journal records of an interrupted mount.
    #[serde(skip_serializing_if = "is_zero")]
    in_journal: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_in: Option<JsonPath>,
    /// Faults found by a second check after the repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<Vec<Fault>>,
    /// Unreferenced control files, if they could be counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    unused: Option<Unused>,
    /// The unreferenced control files that were removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pruned: Option<Pruned>,
    /// Number of entries whose attributes could not be examined.
    #[serde(skip_serializing_if = "is_zero")]
    unlooked: u64,
    /// Number of entries that are not part of the vault and were ignored.
    #[serde(skip_serializing_if = "is_zero")]
    strangers: u64,
    /// How many faults and notes were only counted: by the check after a repair, else by the only
    /// check.
    #[serde(skip_serializing_if = "Option::is_none")]
    more: Option<More>,
    #[serde(skip)]
    repairs: bool,
}

#[derive(Serialize)]
struct Note {
    plain: JsonPath,
    what: &'static str,
}

impl Note {
    fn of(found: &CheckNote) -> Note {
        let what = match found.kind {
            NoteKind::Marked => {
                "is marked: it is not where its name was created, or another entry has its name"
            }
            NoteKind::Copy => "is a sync tool's conflict copy",
            NoteKind::IdentityCopy => {
                "is a conflict copy of the vault's identity: the secrets of either open the vault; keep one of the two"
            }
        };
        Note { plain: JsonPath::from_bytes(&found.plain), what }
    }
}

/// Control files that were removed, and where they are kept.
#[derive(Serialize)]
pub(super) struct Pruned {
    files: u64,
    bytes: u64,
    kept_in: JsonPath,
}

impl Pruned {
    pub fn new(files: u64, bytes: u64, dir: PathBuf) -> Pruned {
        Pruned { files, bytes, kept_in: JsonPath(dir) }
    }
}

#[derive(Serialize)]
struct Fault {
    plain: JsonPath,
    cipher: JsonPath,
    what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// First byte and the byte after the last one, of each range.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bad: Vec<[u64; 2]>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    good: Vec<[u64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
    /// `done`, `declined`, `no remedy`, or `failed: ` and the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moved_to: Option<JsonPath>,
    #[serde(skip_serializing_if = "Option::is_none")]
    salvaged_to: Option<JsonPath>,
    /// The control file with its attributes is missing, and a sync may still deliver it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    list_missing: bool,
    /// Residue of a crash, not damage.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    residue: bool,
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

fn pairs(ranges: &[Range<u64>]) -> Vec<[u64; 2]> {
    ranges.iter().map(|r| [r.start, r.end]).collect()
}

impl Fault {
    fn of(fault: &CheckFault) -> Fault {
        Fault {
            plain: JsonPath::from_bytes(&fault.plain),
            cipher: JsonPath::from_bytes(&fault.cipher),
            what: fault.what.clone(),
            size: fault.size,
            bad: pairs(&fault.bad),
            good: pairs(&fault.good()),
            remedy: fault.remedy.as_ref().map(|remedy| remedy.describe()),
            outcome: None,
            moved_to: None,
            salvaged_to: None,
            list_missing: fault.list_missing,
            residue: fault.residue,
        }
    }

    fn print(&self, out: &mut Out, repairs: bool) -> Result<(), Error> {
        let bytes = |path: &JsonPath| path.0.as_os_str().as_encoded_bytes().to_vec();
        let (plain, cipher) = (bytes(&self.plain), bytes(&self.cipher));
        let class = if self.residue { "left by a crash: " } else { "" };
        out.text(format_args!(
            "{}: {class}{} ({})\n",
            Shown(or_root(&plain)),
            Shown(self.what.as_bytes()),
            Shown(or_root(&cipher))
        ))?;
        if let Some(size) = self.size
            && !self.bad.is_empty()
        {
            let ranges: Vec<String> =
                self.bad.iter().map(|[from, to]| format!("{from}-{}", to - 1)).collect();
            out.text(format_args!(
                "  bad: bytes {} of {size}; the rest is good\n",
                ranges.join(", ")
            ))?;
        }
        if let Some(to) = &self.salvaged_to {
            out.text(format_args!("  salvaged to {}\n", Shown(&bytes(to))))?;
        }
        self.print_outcome(out, repairs)?;
        if self.list_missing && self.remedy.is_none() {
            let advice = "a sync may still deliver it; fsck --repair --forget-missing-attributes removes the reference";
            out.text(format_args!("  hint: {advice}\n"))?;
        }
        if self.what == NOT_A_WRITER {
            out.text(format_args!("  hint: {LATE_CHANGES}\n"))?;
        }
        Ok(())
    }

    fn print_outcome(&self, out: &mut Out, repairs: bool) -> Result<(), Error> {
        match (&self.outcome, &self.moved_to) {
            (Some(outcome), Some(to)) => out.text(format_args!(
                "  {}: moved to {}\n",
                Shown(outcome.as_bytes()),
                Shown(to.0.as_os_str().as_encoded_bytes())
            )),
            (Some(outcome), None) => out.text(format_args!("  {}\n", Shown(outcome.as_bytes()))),
            (None, _) if repairs => out.text(format_args!(
                "  would: {}\n",
                self.remedy.unwrap_or("nothing, there is no remedy")
            )),
            _ => Ok(()),
        }
    }
}

impl Report {
    /// Returns the report of a check. With `repairs`, it also shows what a repair would do.
    pub fn new(found: &CheckReport, repairs: bool) -> Report {
        let CheckReport {
            seen,
            faults,
            kept,
            changing,
            notes,
            unused,
            unlooked,
            strangers,
            more,
            ..
        } = found;
        Report {
            clean: faults.is_empty(),
            files: seen.files,
            dirs: seen.dirs,
            symlinks: seen.symlinks,
            others: seen.others,
            bytes: seen.bytes,
            faults: faults.iter().map(Fault::of).collect(),
            kept: kept.iter().map(Fault::of).collect(),
            changing: changing.iter().map(|path| JsonPath::from_bytes(path)).collect(),
            notes: notes.iter().map(Note::of).collect(),
            in_journal: 0,
            kept_in: None,
            left: None,
            unused: *unused,
            pruned: None,
            unlooked: *unlooked,
            strangers: *strangers,
            more: (*more != More::default()).then_some(*more),
            repairs,
        }
    }

    /// Adds the unused control files that were removed.
    pub fn pruned(&mut self, pruned: Option<Pruned>) {
        if let (Some(unused), Some(pruned)) = (&mut self.unused, &pruned) {
            unused.files = unused.files.saturating_sub(pruned.files);
            unused.bytes = unused.bytes.saturating_sub(pruned.bytes);
        }
        self.pruned = pruned;
    }

    /// Adds the number of files that needed a journal.
    pub fn journal(&mut self, files: usize) {
        self.in_journal = files;
    }

    /// Adds the paths of salvaged files.
    pub fn salvaged(&mut self, salvaged: &[Salvaged]) {
        for Salvaged { fault, to } in salvaged {
            self.faults[*fault].salvaged_to = Some(JsonPath(to.clone()));
        }
    }

    /// Adds the outcome of each fault.
    pub fn repaired(&mut self, done: &RepairReport) {
        for (fault, repaired) in self.faults.iter_mut().zip(&done.repaired) {
            let (outcome, moved) = match &repaired.outcome {
                Outcome::Done(moved) => ("done".to_owned(), moved.as_ref()),
                Outcome::Declined => ("declined".to_owned(), None),
                Outcome::Nothing => ("no remedy".to_owned(), None),
                Outcome::Failed(why) => (format!("failed: {why}"), None),
            };
            fault.outcome = Some(outcome);
            fault.moved_to = moved.map(|path| JsonPath::from_bytes(path));
        }
        self.kept_in = done.kept_in.as_ref().map(|path| JsonPath::from_bytes(path));
    }

    /// Adds the result of the check after the repair.
    pub fn left(&mut self, after: &CheckReport) {
        self.clean = after.faults.is_empty();
        self.left = Some(after.faults.iter().map(Fault::of).collect());
        let Report { unused, unlooked, more, .. } = Report::new(after, false);
        (self.unused, self.unlooked, self.more) = (unused, unlooked, more);
    }

    /// Returns the exit code for the faults that are left after a repair, or without a repair for
    /// those that were found.
    pub fn exit(&self) -> Exit {
        let left = self.left.as_ref().unwrap_or(&self.faults);
        match left.iter().map(|fault| fault.residue).reduce(|all, residue| all && residue) {
            None => Exit::Ok,
            Some(true) => Exit::Residue,
            Some(false) => Exit::FaultsFound,
        }
    }

    /// Returns whether a repair would do anything.
    fn has_remedy(&self) -> bool {
        self.faults.iter().any(|fault| fault.remedy.is_some())
    }

    /// Returns the report as it is stored in the vault.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("a report has nothing that JSON does not know")
    }

    pub fn print(&self, json: bool) -> Result<(), Failure> {
        Out::report(json, self, |out| self.print_words(out))?;
        if !json {
            self.print_counts();
        }
        Ok(())
    }

    fn print_words(&self, out: &mut Out) -> Result<(), Error> {
        self.faults.iter().try_for_each(|fault| fault.print(out, self.repairs))?;
        for path in &self.changing {
            let path = path.0.as_os_str().as_encoded_bytes();
            out.text(format_args!(
                "{}: changes all the time, not verified\n",
                Shown(or_root(path))
            ))?;
        }
        for Note { plain, what } in &self.notes {
            let path = plain.0.as_os_str().as_encoded_bytes();
            out.text(format_args!("{}: {what}\n", Shown(path)))?;
        }
        if let Some(left) = self.left.as_ref().filter(|left| !left.is_empty()) {
            out.text(format_args!("left after the repair:\n"))?;
            left.iter().try_for_each(|fault| fault.print(out, false))?;
        }
        Ok(())
    }

    fn print_counts(&self) {
        let Report { files, dirs, symlinks, others, bytes, faults, .. } = self;
        let bytes = display::size(*bytes);
        let counts =
            [(*files, "file"), (*dirs, "directory"), (*symlinks, "link"), (*others, "other")];
        let counts = counts.map(|(number, one)| display::count(number, one)).join(", ");
        note(format_args!("{counts}, {bytes} verified; {}", told(faults)));
        if let Some(More { faults, residue, kept, notes }) = self.more {
            let all = faults + residue + kept + notes;
            note(format_args!(
                "{all} more of the same kinds were only counted; repair those above, then check again to list them"
            ));
        }
        if self.in_journal > 0 {
            note(format_args!(
                "{} files were verified with the journal of an interrupted mount; the next mount, or fsck --repair, replays it",
                self.in_journal
            ));
        }
        match &self.left {
            Some(left) => note(format_args!("after the repair: {}", told(left))),
            None if self.exit() == Exit::Residue && !self.repairs && self.has_remedy() => note(
                "clear the residue of a crash with `kithfs fsck --repair`, which asks no question",
            ),
            None => {}
        }
        // Objects that could not be moved are still in their places.
        let has_moved = self.faults.iter().any(|fault| fault.moved_to.is_some());
        if let Some(kept_in) = self.kept_in.as_ref().filter(|_| has_moved) {
            note(format_args!(
                "damaged data is kept in {}",
                Shown(kept_in.0.as_os_str().as_encoded_bytes())
            ));
        } else if !self.kept.is_empty() {
            note(format_args!(
                "earlier repairs have moved {} damaged things to lost+found",
                self.kept.len()
            ));
        }
        if let Some(Unused { files: files @ 1.., bytes }) = &self.unused {
            let bytes = display::size(*bytes);
            note(format_args!(
                "{files} control files ({bytes}) are not referenced; they are harmless, and another copy of the vault may need them"
            ));
        }
        if self.strangers > 0 {
            let entries = display::count(self.strangers, "entry");
            note(format_args!(
                "{entries} not part of the vault, such as those of a sync tool, were ignored"
            ));
        }
        if !self.changing.is_empty() {
            note(format_args!(
                "{} files changed all the time and were not verified",
                self.changing.len()
            ));
        }
    }
}

/// Describes the number of faults and of crash residue.
fn told(faults: &[Fault]) -> String {
    let residue = faults.iter().filter(|fault| fault.residue).count();
    let damage = display::count((faults.len() - residue) as u64, "fault");
    if residue == 0 {
        damage
    } else {
        format!("{damage}, {} left by a crash", display::count(residue as u64, "thing"))
    }
}

fn or_root(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"/" } else { path }
}
