//! Commits that put a whole new file in place of the stored one.
//!
//! A sync tool may copy a file during a commit. In place, it can copy a part from before the commit
//! and a part from after it, and such a copy stays unreadable if it is renamed or becomes a
//! conflict copy. With a new file the tool has either version: the one that it has opened does not
//! change.
//!
//! Rules that hold here
//! * Only files of a synced vault up to [`REPLACED_MAX`] are replaced, because each commit writes
//!   the whole file.
//! * The new file is complete before it takes the place of the old one. It is also durable before
//!   that if the old one is, or if the caller waits for that. So no record is needed: a crash
//!   leaves the old file or the new one. The exchange is durable then before the commit ends: there
//!   is no record to complete it, and no later flush of the file makes it so.
//! * Until the exchange nothing of the stored file has changed. Whatever fails before it, the
//!   commit goes on in place: a full store or a directory without permission refuses no write that
//!   it accepted without this module.
//! * A file that is not durable and was never committed with contents is written in place: its
//!   header comes last, and the header before it refers to nothing that is overwritten.

use std::sync::Arc;

use super::commit::{Committer, Durability, Planned};
use crate::format::layout::SEGMENT;
use crate::store::File;
use crate::vault::error::Inner;
use crate::vault::file::phase::{Phase, Unflushed};
use crate::vault::file::{FileState, OpenFile};

/// Size in bytes up to which files are replaced: that of a chunk of the usual size. Larger files
/// are mostly written once, or are databases, and an `fsync` of 4 KiB must not write them as a
/// whole.
const REPLACED_MAX: u64 = 256 << 10;

/// Prefix of the names of new files that are not in place yet, and of old ones no longer in place.
/// Syncthing, Dropbox and Nextcloud do not synchronise such names.
pub(crate) const PREFIX: &str = "~syncthing~kithfs-";

/// Number of bytes that are copied at a time.
const PART: usize = 64 << 10;

/// The place of a stored file, beside which a new one can be created.
pub(crate) trait Beside {
    /// Creates an empty file with the attributes of the stored one. Returns `None` if the stored
    /// file can only be written in place.
    fn create(&self, open: &OpenFile) -> Option<Box<dyn Replacement + '_>>;
}

/// A new file, which is removed again unless it takes the place of the stored one.
pub(crate) trait Replacement {
    fn file(&self) -> &Arc<dyn File>;

    /// Exchanges the two files, continues the open file in the new one, and removes the old one.
    /// `base` is the hash of the old file's header, if that is known. Returns `None`, and has changed
    /// nothing, if that fails or another program has changed the place or the old file meanwhile;
    /// otherwise whether attributes had to be copied again.
    fn put(&mut self, open: &OpenFile, base: Option<&[u8; 32]>) -> Option<bool>;

    /// Makes the exchange durable.
    fn sync(&self) -> Inner<()>;
}

impl Committer<'_> {
    /// Commits by replacing the stored file. Returns false, and has changed nothing, if the commit
    /// has to be made in place.
    pub(super) fn replace(
        &self,
        state: &mut FileState,
        open: &OpenFile,
        planned: &Planned,
        durability: Durability,
        latches: &mut bool,
    ) -> Inner<bool> {
        let Some(mut new) = self.replacement(state, open, planned) else { return Ok(false) };
        let file = new.file().clone();
        let is_durable = state.phase == Phase::Durable || durability == Durability::Synced;
        let (old, backing_len) = (open.inode(), state.backing_len);
        let base = state.committed.as_ref().map(|committed| committed.header.hash());
        let placed = self.write_whole(state, open, &file, planned, is_durable);
        let Some(late) = placed.ok().and_then(|()| new.put(open, base.as_ref())) else {
            state.backing_len = backing_len;
            if let Some(committed) = &mut state.committed {
                committed.is_being_replaced = false;
            }
            return Ok(false);
        };
        self.journal.forget_repair(old); // the new file has all that could not be written there
        state.reserved = 0;
        if is_durable {
            if late {
                self.flush(|| file.sync_all(), open, latches)?;
            }
            *latches = true;
            new.sync()?;
            self.journal.created_is_durable(&state.file_id);
            state.phase = state.phase.after_flush();
            state.unflushed = Unflushed::default();
        } else {
            state.phase = state.phase.after_commit_in_place();
            state.unflushed = Unflushed { inode: true, ..Unflushed::default() };
        }
        Ok(true)
    }

    /// Creates the new file, if the stored one is to be replaced.
    fn replacement(
        &self,
        state: &FileState,
        open: &OpenFile,
        planned: &Planned,
    ) -> Option<Box<dyn Replacement + '_>> {
        let beside = self.beside?;
        let has_contents = match (&state.committed, state.phase) {
            (Some(committed), Phase::Durable) => !committed.is_being_replaced,
            (Some(committed), Phase::Straight { .. } | Phase::Fresh { .. }) => {
                committed.size > 0 && !committed.is_being_replaced
            }
            (None, phase) => phase.replaces() && state.backing_len > 0,
            (Some(_), Phase::Void | Phase::Nameless) => false,
        };
        let is_small = planned.cipher_len <= self.context.keys.layout.cipher_len(REPLACED_MAX);
        if !has_contents || !is_small || state.is_relied_on(&self.context) {
            return None;
        }
        // A part of it may be half written, and its records would not fit the new file.
        if let Some(committed) = &state.committed {
            self.journal.check_complete(&committed.header.hash()).ok()?;
        }
        // The journal's records of the file fit the old one only.
        self.journal.checkpoint_for(Some(open.inode())).ok()?;
        beside.create(open)
    }

    /// Writes everything that the next header refers to, and the header, to a new file.
    fn write_whole(
        &self,
        state: &mut FileState,
        open: &OpenFile,
        new: &Arc<dyn File>,
        planned: &Planned,
        is_durable: bool,
    ) -> Inner<()> {
        let stored = state.backing_len.min(planned.cipher_len);
        state.backing_len = match state.small {
            Some(_) => 0, // all is in the header
            None => copy(&*open.file(), &**new, stored)?,
        };
        self.straight(state, new, planned, &mut false)?;
        if is_durable {
            new.sync_all()?;
        }
        Ok(())
    }
}

/// Copies the first `len` bytes, except for blocks of zeros. Returns the length of the copy.
fn copy(from: &dyn File, to: &dyn File, len: u64) -> Inner<u64> {
    let mut buf = vec![0; PART];
    let (mut at, mut copied) = (0, 0);
    while at < len {
        let part = (len - at).min(PART as u64) as usize;
        let read = from.read_at(&mut buf[..part], at)?;
        if read == 0 {
            break;
        }
        for (n, block) in buf[..read].chunks(SEGMENT).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                let offset = at + (n * SEGMENT) as u64;
                to.write_at(block, offset)?;
                copied = offset + block.len() as u64;
            }
        }
        at += read as u64;
    }
    Ok(copied)
}
