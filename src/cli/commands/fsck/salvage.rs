//! Copies the good parts of damaged files out of the vault.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::cli::error::Error;
use crate::cli::report::warn;
use crate::cli::vaults::open::Open;
use crate::vault::CheckReport;

/// The salvaged file of one fault, by its number in the report.
pub(super) struct Salvaged {
    pub fault: usize,
    pub to: PathBuf,
}

/// Writes the good ranges of every readable damaged file below `dir`, at its plain path. Nothing is
/// overwritten.
pub(super) fn write(open: &Open, found: &CheckReport, dir: &Path) -> Result<Vec<Salvaged>, Error> {
    let mut salvaged = Vec::new();
    let mut target = None;
    for (n, fault) in found.faults.iter().enumerate() {
        let Some(size) = fault.size.filter(|_| !fault.bad.is_empty()) else { continue };
        let target = match &mut target {
            Some(target) => target,
            none => none.insert(open.make_target("salvage to", dir)?),
        };
        let to = dir.join(std::ffi::OsStr::from_bytes(&fault.plain));
        let made = target
            .create_below(&fault.plain)
            .and_then(|made| made.file.file().set_len(size).map(|()| made));
        let made = match made {
            Ok(made) => made,
            Err(source) => {
                warn(Error::Io { op: "salvage to", path: to, source });
                continue;
            }
        };
        match open.vault.salvage(fault, &mut |at, bytes| made.file.file().write_all_at(bytes, at)) {
            Ok(()) => salvaged.push(Salvaged { fault: n, to }),
            Err(error) => warn(open.failed(&fault.plain)(error).message),
        }
    }
    Ok(salvaged)
}
