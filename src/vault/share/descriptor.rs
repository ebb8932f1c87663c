//! Conflict copies of a share's descriptor.
//!
//! Rules that hold here
//! * Two machines may make a share of one folder without knowing of each other. A sync tool then
//!   puts both into one directory. All of their files have different names, except the descriptor
//!   and the junction: of each, the tool keeps one and makes a conflict copy of the other, and the
//!   two that it keeps may belong to different shares.
//! * The junction decides, because an admin has signed it. A descriptor proves itself: the id of the
//!   share is its hash.

use std::sync::Arc;

use crate::crypto::Random;
use crate::format::share::{DESCRIPTOR_LEN, ShareDescriptor};
use crate::store::{Dir, RenameMode};
use crate::vault::error::{Fault, Inner};
use crate::vault::share::control_files::{entries, read_control, write_control};
use crate::vault::share::enter::DESCRIPTOR;

/// Maximum number of conflict copies that are read.
const COPIES_MAX: usize = 64;

fn read(store: &dyn Dir, name: &[u8]) -> Option<ShareDescriptor> {
    let bytes = read_control(store, name, DESCRIPTOR_LEN).ok()??;
    ShareDescriptor::decode(&bytes).ok()
}

/// Returns the conflict copy of the descriptor that is the one of this share, with its name; `None`
/// if the descriptor itself is.
pub(crate) fn copy_of(
    store: &dyn Dir,
    share: &[u8; 32],
) -> Inner<Option<(Box<[u8]>, ShareDescriptor)>> {
    let is_it = |descriptor: &ShareDescriptor| descriptor.share_id() == *share;
    if read(store, DESCRIPTOR).as_ref().is_some_and(is_it) {
        return Ok(None);
    }
    let mut left = COPIES_MAX;
    for entry in entries(store)? {
        let name = entry?.name;
        if !name.starts_with(DESCRIPTOR) || *name == *DESCRIPTOR {
            continue;
        }
        if let Some(found) = read(store, &name).filter(is_it) {
            return Ok(Some((name, found)));
        }
        left -= 1;
        if left == 0 {
            break;
        }
    }
    Ok(None)
}

/// Puts the conflict copy `copy` of the descriptor in its place, and keeps the other one under a
/// name that is as good as that of the copy.
pub(crate) fn put_in_place(store: &Arc<dyn Dir>, copy: &[u8], random: &dyn Random) -> Inner<()> {
    let other = read_control(&**store, DESCRIPTOR, DESCRIPTOR_LEN)?;
    let mut id = [0; 4];
    random.fill(&mut id);
    let kept = format!(" (conflict {})", hex::encode(id));
    let other = other.ok_or(Fault::Os(libc::ENOENT))?;
    write_control(&**store, random, &[DESCRIPTOR, kept.as_bytes()].concat(), &other)?;
    store.sync()?;
    store.rename(copy, &**store, DESCRIPTOR, RenameMode::Replace)?;
    Ok(store.sync()?)
}
