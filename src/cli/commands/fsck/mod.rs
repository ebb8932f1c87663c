//! `kithfs fsck`
//!
//! Rules that hold here
//! * Damage is repaired only with consent: to each question, or with `--yes` to all. The residue
//!   of a crash is cleared without a question. `--dry-run` opens the vault read-only.
//! * A repair deletes nothing except files without a byte of ciphertext. Unreferenced files are
//!   counted, and removed by `--prune` alone.
//! * A file that is empty or holds only zeros is residue of a crash, unless this machine has seen
//!   it with contents.
//! * Good parts are salvaged before anything is moved, and nothing is moved if that fails. After a
//!   repair the check runs again, and its result decides the exit code.

mod prune;
mod report;
mod salvage;

use std::ffi::OsStr;
use std::io::{self, BufRead, IsTerminal};
use std::os::unix::ffi::OsStrExt;

use self::report::Report;
use crate::cli::args::check::Fsck;
use crate::cli::daemon::signals::end_at_interrupt;
use crate::cli::display::{Shown, count, path as shown, utc, word};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::local;
use crate::cli::report::{Failure, note, warn};
use crate::cli::secrets::identity;
use crate::cli::terminal::progress::Progress;
use crate::cli::user::rollback_memory;
use crate::cli::vaults::nodes;
use crate::cli::vaults::open::{Open, Purpose, kept_journals, open, removed_shares};
use crate::cli::vaults::paths;
use crate::vault::{
    CheckFault, CheckProgress, CheckReport, Online, OpenFlags, REPAIR_RUN, RepairReport,
};

/// Verifies a vault. A failure that prevents the check has an exit code of its own.
pub fn run(args: &Fsck) -> Result<Exit, Failure> {
    end_at_interrupt(
        "fsck",
        if args.prune {
            "what was removed is kept in the state directory; run the same command again"
        } else if args.repair {
            "what was repaired stays repaired; run the same command again for the rest"
        } else {
            "nothing was changed, and nothing is known of the rest; run the same command again"
        },
    )?;
    check(args).map_err(|failure| match failure.exit {
        Exit::Usage => failure,
        Exit::InUse if !args.repair && !args.prune => failure
            .hint(
                "verify it while mounted with --online; otherwise unmount it first: kithfs umount",
            )
            .exit(Exit::CouldNotCheck),
        _ => failure.exit(Exit::CouldNotCheck),
    })
}

fn check(args: &Fsck) -> Result<Exit, Failure> {
    let (vault, start) = paths::one(&args.vault, args.path.as_deref())?;
    if let Some(dir) = &args.salvage {
        local::check_can_make(dir).map_err(Error::io("salvage to", dir))?;
    }
    if args.prune && !start.is_empty() {
        return Err(
            Error::Usage("--prune looks at the whole vault, not at a path in it".into()).into()
        );
    }
    let changes = (args.repair || args.prune) && !args.dry_run;
    let purpose = match (changes, args.online) {
        (true, _) => Purpose::WriteAlone,
        (_, true) => Purpose::Beside,
        _ => Purpose::ReadAlone,
    };
    let mut open = open(&vault, &args.open, purpose)?;
    // A prune changes no entry. It compares the vault with the recorded state itself.
    if purpose == Purpose::WriteAlone && !args.prune {
        open = open.recording(&args.memory);
    }
    if let Some(dir) = &args.salvage {
        open.refuse_within("salvage to", dir)?;
    }
    let mut found = look(&open, &start, args.online)?;
    if args.forget_missing_attributes {
        found.faults.iter_mut().for_each(CheckFault::give_up_list);
    }
    let (salvaged, is_salvaged) = match &args.salvage {
        Some(dir) => salvage::write(&open, &found, dir)?,
        None => (Vec::new(), true),
    };
    let mut report = Report::new(&found, args.repair);
    report.journal(open.vault.replayed_in_memory());
    report.salvaged(&salvaged);
    if args.prune {
        report.pruned(prune::run(&open, &found, args)?);
    }
    if args.repair && changes && !found.faults.is_empty() {
        let answers = match args.yes {
            _ if !is_salvaged => {
                note(
                    "not all good parts could be salvaged, so damage is not repaired; run it again with room in another directory",
                );
                Answers::No
            }
            true => Answers::Yes,
            false if io::stdin().is_terminal() && io::stderr().is_terminal() => Answers::Asked,
            false => Answers::Unattended,
        };
        let done = repair(&open, &found, answers)?;
        report.repaired(&done);
        store_report(&open, &done, &report)?;
        // Restored files may show more faults, and moved files have other paths.
        let after =
            look(&open, if open.vault.resolve(&start).is_ok() { &start } else { b"" }, false)?;
        report.left(&after);
    }
    open.close()?;
    for kept in kept_journals(&open.dir, &open.share) {
        note(format_args!(
            "{} journals of this machine have changes that are not in the vault, in {}",
            kept.refused + kept.waiting,
            shown(&kept.folder)
        ));
    }
    tell_of_removed_shares(&open, &found);
    report.print(args.json)?;
    Ok(report.exit())
}

/// Tells how to read what another machine has changed in a share while this one has removed it.
fn tell_of_removed_shares(open: &Open, found: &CheckReport) {
    for removed in removed_shares(&open.dir) {
        let below = [&removed.path[..], b"/"].concat();
        let left = found.faults.iter().filter(|fault| fault.cipher.starts_with(&below)).count();
        if left > 0 {
            let from = word(open.dir.join(OsStr::from_bytes(&removed.path)));
            note(format_args!(
                "{} in the place of a share that was removed here, which another machine has changed; this machine has kept the keys. To read them: cp -r {from} removed-share && cp -rn {}/. removed-share && kithfs export removed-share DIR",
                count(left as u64, "entry"),
                word(&removed.folder)
            ));
        }
    }
}

fn look(open: &Open, start: &[u8], online: bool) -> Result<CheckReport, Failure> {
    let progress = Progress::new(None);
    let mut show = |seen: &CheckProgress| progress.set(seen.bytes, seen.files);
    let found = if online {
        open.vault.check_online(start, &Online::default(), &mut show)
    } else {
        open.vault.check(start, &mut show)
    };
    let mut found = found.map_err(open.failed(start))?;
    if let Err(error) = open.vault.recall(&mut found, &rollback_memory::path) {
        warn(format_args!("empty files are not compared with what this machine has seen: {error}"));
    }
    Ok(found)
}

/// The source of the answers to a repair's questions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answers {
    /// `--yes`.
    Yes,
    /// The user at the terminal.
    Asked,
    /// Nobody: damage is not repaired.
    Unattended,
    /// No to all: damage is not repaired.
    No,
}

fn repair(open: &Open, found: &CheckReport, answers: Answers) -> Result<RepairReport, Failure> {
    let run = [REPAIR_RUN, utc(identity::now()).replace([' ', ':'], "-").as_bytes()].concat();
    if answers == Answers::Unattended
        && found.faults.iter().any(|fault| !fault.residue && fault.remedy.is_some())
    {
        note("there is no terminal for questions, so damage is not repaired; --yes repairs it");
    }
    let (mut all, mut none) =
        (answers == Answers::Yes, matches!(answers, Answers::Unattended | Answers::No));
    let mut decide = |fault: &CheckFault| {
        if fault.residue {
            return true;
        }
        if all || none {
            return all;
        }
        let answer = ask(fault);
        all = answer == Some('a');
        none = answer.is_none() || answer == Some('q');
        matches!(answer, Some('y' | 'a'))
    };
    open.vault.repair(&found.faults, &run, &mut decide).map_err(open.failed(b""))
}

/// Returns the first letter of the answer to a question about one fault; `None` without an answer.
fn ask(fault: &CheckFault) -> Option<char> {
    let remedy = fault.remedy.as_ref().map_or("", |remedy| remedy.describe());
    eprint!(
        "{}: {}\n  {remedy}? [y]es, [n]o, [a]ll, [q]uit: ",
        Shown(&fault.plain),
        Shown(fault.what.as_bytes())
    );
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim().chars().next().unwrap_or('n').to_ascii_lowercase())
}

/// Writes the report beside the moved files.
fn store_report(open: &Open, done: &RepairReport, report: &Report) -> Result<(), Failure> {
    let Some(dir) = &done.kept_in else { return Ok(()) };
    let failed = open.failed(dir);
    let node = open.vault.resolve(dir).map_err(&failed)?.node;
    let caller = nodes::caller();
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    let made = open.vault.create_file(&caller, node, b"report.json", 0o600, flags);
    match made {
        Ok((attr, file)) => {
            let written = open.vault.write(file.handle, 0, &report.to_json(), false);
            let synced = written.and_then(|()| open.vault.fsync(file.handle, false));
            open.vault.release(file.handle).map_err(&failed)?;
            open.vault.forget(attr.node, 1);
            synced.map_err(&failed)?;
        }
        Err(error) => note(format_args!("cannot write the report in {}: {error}", Shown(dir))),
    }
    open.vault.forget(node, 1);
    Ok(())
}
