//! Copies the good parts of damaged files out of the vault.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::cli::error::Error;
use crate::cli::local::Object;
use crate::cli::report::{Failure, warn};
use crate::cli::vaults::open::Open;
use crate::vault::{CheckFault, CheckReport};

/// The salvaged file of one fault, by its number in the report.
pub(super) struct Salvaged {
    pub fault: usize,
    pub to: PathBuf,
}

/// Writes the good ranges of every readable damaged file below `dir`, at its plain path. Nothing is
/// overwritten. Returns the salvaged files, and whether these are all. If a file could not be
/// written to its end, it is removed and a message is printed.
pub(super) fn write(
    open: &Open,
    found: &CheckReport,
    dir: &Path,
) -> Result<(Vec<Salvaged>, bool), Error> {
    let (mut salvaged, mut is_complete) = (Vec::new(), true);
    let mut target = None;
    for (n, fault) in found.faults.iter().enumerate() {
        let Some(size) = fault.size.filter(|_| !fault.bad.is_empty()) else { continue };
        let target = match &mut target {
            Some(target) => target,
            none => none.insert(open.make_target("salvage to", dir)?),
        };
        let to = dir.join(std::ffi::OsStr::from_bytes(&fault.plain));
        match copy(open, fault, size, target, &to) {
            Ok(()) => salvaged.push(Salvaged { fault: n, to }),
            Err(failure) => {
                is_complete = false;
                warn(failure.message);
            }
        }
    }
    Ok((salvaged, is_complete))
}

/// Copies the good ranges of one file below `target`; `to` is the path for messages.
fn copy(
    open: &Open,
    fault: &CheckFault,
    size: u64,
    target: &Object,
    to: &Path,
) -> Result<(), Failure> {
    let io = |source| Error::Io { op: "salvage to", path: to.to_owned(), source };
    let made = target.create_below(&fault.plain).map_err(io)?;
    let file = made.file.file();
    let fill = || {
        file.set_len(size).map_err(io)?;
        // Kept separately: as a result of the closure, an error of the target would be reported as
        // one of the vault.
        let mut full = None;
        let read = open.vault.salvage(fault, &mut |at, bytes| {
            file.write_all_at(bytes, at).map_err(|error| {
                let kind = error.kind();
                full = Some(error);
                kind.into()
            })
        });
        match full {
            Some(source) => Err(io(source).into()),
            None => read.map_err(open.failed(&fault.plain)),
        }
    };
    // A partial file would be mistaken for a complete one.
    fill().inspect_err(|_| made.remove())
}
