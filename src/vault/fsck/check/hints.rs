//! Finds the id of a directory whose record is lost or does not match.
//!
//! Rules that hold here
//! * Candidates come from sealed data: the hints in headers of files, the places in records of
//!   sub-directories, and the id derived from the place. A candidate counts only if names of the
//!   directory decode under it; each such name proves it (8 zero bytes).
//! * The result is a suggestion: the user who repairs decides.

use crate::format::header::{Header, Hint};
use crate::format::layout::SMALL_MAX;
use crate::format::name::{DIRECTORY_RECORD, is_control};
use crate::format::record::{DirectoryRecord, RecordKind};
use crate::store::{Access, Dir, DirEntry, Kind};
use crate::vault::core::Core;
use crate::vault::directory::folder::Folder;
use crate::vault::directory::names::Said;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::keyring::keys::DirectoryId;
use crate::vault::share::control_files::{entries, read_control};

/// Maximum number of files and sub-directories that are read for a hint.
const ASKED_MAX: usize = 256;

/// Returns the authenticated header of a file of the store; in a signed share its signature must
/// count.
pub(crate) fn header_of(core: &Core, file: &dyn crate::store::File) -> Inner<Header> {
    let layout = core.keys.layout;
    let mut bytes = vec![0; layout.header() + SMALL_MAX as usize];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    if read == 0 {
        return Err(Fault::Corrupt(Corruption::NeverCommitted));
    }
    Ok(core.keys.open_header(&bytes)?.header)
}

/// Returns the place that the header of a file records.
pub(crate) fn hint_of(core: &Core, dir: &dyn Dir, stored: &[u8]) -> Inner<Hint> {
    Ok(header_of(core, &*core.journal.overlay(dir.open_file(stored, Access::Read)?)?)?.hint)
}

/// Returns the record of a directory, whatever place it contains.
pub(crate) fn record_of(core: &Core, dir: &dyn Dir) -> Inner<Option<DirectoryRecord>> {
    let Some(bytes) = read_control(dir, DIRECTORY_RECORD, 4096)? else { return Ok(None) };
    Ok(Some(DirectoryRecord::decode(&core.keys.open_record(
        RecordKind::Directory,
        b"",
        &bytes,
    )?)?))
}

/// Returns the entries of a directory that are not control files, as far as the store can list
/// them.
fn named(dir: &dyn Dir) -> impl Iterator<Item = DirEntry> {
    entries(dir).into_iter().flatten().filter_map(Inner::ok).filter(|e| !is_control(&e.name))
}

/// Returns whether an entry decodes to a name. A long name that is lost proves nothing.
fn proves(folder: &Folder, entry: &DirEntry) -> bool {
    matches!(folder.read(&entry.name), Ok(Some(Said::Name(_))))
}

/// Returns whether any entry of a directory is a name under the id `id`; the listing begins with
/// `first`.
pub(crate) fn has_names_under(
    core: &Core,
    dir: &std::sync::Arc<dyn Dir>,
    id: &DirectoryId,
    first: &[DirEntry],
) -> bool {
    let folder = core.folder_at(dir.clone(), *id);
    first.iter().any(|e| !is_control(&e.name) && proves(&folder, e))
        || named(&**dir).any(|e| proves(&folder, &e))
}

/// Returns the id under which most of the entries decode, if any; `derived` is the id that follows
/// from the place.
pub(crate) fn find(
    core: &Core,
    dir: &std::sync::Arc<dyn Dir>,
    derived: Option<DirectoryId>,
) -> Option<DirectoryId> {
    let mut candidates: Vec<DirectoryId> = derived.into_iter().collect();
    let mut add = |id: DirectoryId| {
        if !candidates.contains(&id) {
            candidates.push(id);
        }
    };
    if let Ok(Some(record)) = record_of(core, &**dir) {
        add(record.id);
    }
    for entry in named(&**dir).take(ASKED_MAX) {
        let kind = entry.kind.or_else(|| dir.stat(&entry.name).ok().map(|s| s.kind));
        match kind {
            Some(Kind::File) => {
                if let Ok(hint) = hint_of(core, &**dir, &entry.name) {
                    add(hint.directory);
                }
            }
            Some(Kind::Dir) => {
                let record = dir
                    .open_dir(&entry.name)
                    .map_err(Fault::from)
                    .and_then(|inside| record_of(core, &*inside));
                if let Ok(Some(record)) = record {
                    add(record.place.parent);
                    add(record.previous.parent);
                }
            }
            _ => {}
        }
    }
    let proven = |id: &DirectoryId| {
        let folder = core.folder_at(dir.clone(), *id);
        named(&**dir).filter(|e| proves(&folder, e)).count()
    };
    let best = candidates.into_iter().map(|id| (proven(&id), id)).filter(|(proven, _)| *proven > 0);
    // Of two with the same number, the first one: that of the place.
    best.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, id)| id)
}
