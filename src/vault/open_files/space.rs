//! Writes that the store refuses, for lack of room or another reason, after the kernel has reported
//! success to the program.
//!
//! With the writeback cache write(2) returns before the daemon receives the bytes. If the store
//! refuses them later, the kernel has pages, and perhaps a size, that were never committed. It
//! reports the error to the next fsync or close, and continues to show them.
//!
//! Rules that hold here
//! * A file that has grown by more than the store accepts is committed as far as it fits, from its
//!   beginning: never less than was committed before. The program gets the error.
//! * Pages arrive in any order. From the first refused page on none is accepted; those before it
//!   still are.
//! * A file whose data was lost after the kernel had accepted it is *astray*: its open handles
//!   return the error, the kernel drops its pages, and the next open or lookup by name finds
//!   another node, which shows the committed contents.
//! * While there is little room, files are opened for writing so that the kernel caches no writes
//!   (`FOPEN_DIRECT_IO`). The places of tables and index blocks are then reserved before a write is
//!   acknowledged. For descriptors opened before that, see [`Core::before_write`].

use std::sync::atomic::Ordering;

use crate::format::layout::{DATA_START, SEGMENT, SMALL_MAX};
use crate::store::Allocate;
use crate::vault::core::Core;
use crate::vault::core::open_table::Open;
use crate::vault::durability::commit::Durability;
use crate::vault::error::{Fault, Inner, is_no_space};
use crate::vault::file::phase::Tail;
use crate::vault::file::{FileState, Load, OpenFile};
use crate::vault::types::{Forget, Handle, NodeId};

/// Free bytes below which cached descriptors of a file that has grown accept no write: more than
/// programs write with one call.
const ROOM_TO_GROW: u64 = 2 << 20;

impl Core {
    /// Returns whether the store has little room. When this begins, the kernel is told to ask
    /// before it accepts more data.
    pub fn is_low(&self) -> bool {
        if self.mode.read_only || !self.room.is_low(&*self.root, self.mode.is_root_user) {
            self.room.announced.store(false, Ordering::Relaxed);
            return false;
        }
        if !self.room.announced.swap(true, Ordering::Relaxed) {
            let written: Vec<NodeId> = self
                .open
                .files
                .lock()
                .iter()
                .filter(|(_, shared)| shared.writers > 0)
                .map(|(node, _)| *node)
                .collect();
            written.into_iter().for_each(|node| self.have_forgotten(node, Forget::Attributes));
        }
        true
    }

    /// Sets the function that is called, from any thread, as soon as the kernel must drop something
    /// of a node.
    pub fn tell_kernel(&self, tell: Box<dyn Fn(NodeId, Forget) + Send + Sync>) {
        let _ = self.room.kernel.set(tell);
    }

    /// Has the kernel drop `what` of a node.
    pub fn have_forgotten(&self, node: NodeId, what: Forget) {
        if let Some(tell) = self.room.kernel.get() {
            tell(node, what);
        }
    }

    /// Notes that this number of bytes was written.
    pub fn note_written(&self, bytes: usize) {
        self.room.take(bytes as u64);
    }

    /// Notes a refused write if the store has no room or is read-only.
    pub fn note_refusal(&self, fault: &Fault) {
        if is_no_space(fault.errno()) || fault.errno() == libc::EROFS {
            self.room.note_refusal();
        }
    }

    /// Allocates the places beyond the end of a file for bytes from `offset` to `end`: a write that
    /// does not fit is refused before any of it is done.
    pub fn reserve_growth(
        &self,
        open: &OpenFile,
        state: &FileState,
        offset: u64,
        end: u64,
    ) -> Inner<()> {
        let layout = &self.keys.layout;
        let (from, to) = (
            layout.cipher_len(offset.max(state.size)).max(DATA_START),
            layout.cipher_len(end.max(state.size)),
        );
        if from >= to {
            return Ok(());
        }
        match open.file().allocate(Allocate::KeepSize, from, to - from) {
            Err(e) if !matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                if self.may_be_cut(state) {
                    let _ = open.file().set_len(state.backing_len); // frees the partial allocation
                }
                Err(e.into())
            }
            _ => Ok(()),
        }
    }

    /// Allocates the places of the tables and index blocks that the next commit writes. Called
    /// while there is little room.
    pub fn reserve_tables(&self, open: &OpenFile, state: &mut FileState) -> Inner<()> {
        let layout = &self.keys.layout;
        while let Some(k) = state.dirty.range(state.reserved..).next().map(|(k, _)| *k) {
            // Index blocks are between the segments of the previous chunk and the table.
            let from =
                if k == 0 { DATA_START } else { layout.chunk_offset(k - 1) + layout.chunk() };
            match open.file().allocate(Allocate::KeepSize, from, layout.chunk_offset(k) - from) {
                Err(e) if !matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
                    return Err(e.into());
                }
                _ => state.reserved = k + 1,
            }
        }
        Ok(())
    }

    /// Reverts a file's growth beyond `size`, of which nothing was committed.
    pub fn take_back(&self, open: &OpenFile, state: &mut FileState, size: u64) -> Inner<()> {
        if size >= state.size {
            return Ok(());
        }
        let frees = state.pending.frees;
        state.shorten(&*open.file(), &self.context(), size)?;
        state.mark().cut = false;
        state.pending.frees = frees;
        state.reserved = state.reserved.min(state.chunks(&self.keys.layout));
        let len = self
            .keys
            .layout
            .cipher_len(size)
            .max(state.committed.as_ref().map_or(0, |committed| committed.len));
        if self.may_be_cut(state) && state.backing_len > len {
            open.file().set_len(len)?;
            state.backing_len = len;
        }
        Ok(())
    }

    /// Returns whether nothing relies on bytes beyond the committed end of a file.
    pub(super) fn may_be_cut(&self, state: &FileState) -> bool {
        self.journal.may_cut() && state.tail != Tail::ReliedOn
    }

    /// Commits a file for the last time: if there is no room for all of its growth, as much as
    /// fits, from its beginning. The rest is lost, and the error is returned all the same.
    pub fn commit_what_fits(
        &self,
        open: &OpenFile,
        state: &mut FileState,
        durability: Durability,
    ) -> Inner<()> {
        let Err(refused) = self.commit_state(open, state, durability) else { return Ok(()) };
        self.note_refusal(&refused);
        let floor = state.committed.as_ref().map_or(0, |committed| committed.size);
        let (was, mut step) = (state.size, SEGMENT as u64);
        let mut fits = false;
        while !fits
            && is_no_space(refused.errno())
            && state.latched.is_none()
            && state.size > floor
            && self.may_be_cut(state)
        {
            let mut size = state.size.saturating_sub(step) / SEGMENT as u64 * SEGMENT as u64;
            if size <= SMALL_MAX {
                // The first block, with the header, is allocated.
                size = size.min(DATA_START - self.keys.layout.header() as u64);
            }
            self.take_back(open, state, size.max(floor))?;
            fits = self.commit_state(open, state, durability).is_ok();
            step *= 2;
        }
        if state.size < was {
            let path = self.shown_path(open.node);
            tracing::error!(path = %path.display(), kept = state.size, of = was, "the end of a file was cut off because there is no room for it");
            state.latched.get_or_insert(refused.errno());
        }
        Err(refused)
    }

    /// Notes that the kernel caches contents of a file, up to `end`, that do not exist. The file
    /// must already return an error.
    fn lead_astray(&self, open: &OpenFile, state: &mut FileState, end: u64) {
        if self.mode.caller_caches {
            state.kernel.astray = Some(end.max(state.kernel.astray.unwrap_or(0)));
            open.astray.store(true, Ordering::Release);
            self.have_forgotten(open.node, Forget::Pages);
        }
    }

    /// Notes, if a commit has failed permanently, that the kernel caches data that will never be
    /// committed.
    pub fn note_lost(&self, open: &OpenFile, state: &mut FileState) {
        if state.is_lost() {
            self.lead_astray(open, state, state.size);
        }
    }

    /// Notes that a failed operation has changed the state of a file, but not the kernel's view of
    /// it: there its size is `was`.
    pub fn note_half_done(&self, open: &OpenFile, state: &mut FileState, was: u64, fault: &Fault) {
        if self.mode.caller_caches && state.size != was {
            state.latched.get_or_insert(fault.errno());
            self.lead_astray(open, state, was);
        }
    }

    /// Like [`Core::note_half_done`], for a file that need not be open.
    pub fn note_cut(&self, node: NodeId, was: u64, fault: &Fault) {
        let open = self.open.files.lock().get(&node).map(|shared| shared.file.clone());
        match open {
            Some(open) => self.note_half_done(&open, &mut open.state.write(), was, fault),
            None => self.note_stale(node),
        }
    }

    /// Notes that a file that is not open differs from the kernel's view: its next lookup gets
    /// another node.
    pub fn note_stale(&self, node: NodeId) {
        self.nodes.retire(node);
        self.have_forgotten(node, Forget::Attributes);
    }

    /// Notes that dirty pages of the kernel, of `offset..end`, were refused with `errno`: the
    /// kernel counts them as written. Returns true if they should be written again, because pages
    /// beyond them that had arrived earlier were cut off to make room.
    pub fn pages_refused(&self, handle: Handle, offset: u64, end: u64, errno: i32) -> bool {
        let Ok((open, _)) = self.open.file_handle(handle) else { return false };
        let mut state = open.state.write();
        let size = state.size;
        // Committed data and the bytes before the refused pages stay.
        let from = offset.max(state.committed.as_ref().map_or(0, |committed| committed.size));
        let (first, makes_room) =
            (state.kernel.refused.map_or(u64::MAX, |(_, first)| first), size > end);
        let until = if makes_room { from.max(end) } else { from };
        if is_no_space(errno)
            && state.latched.is_none()
            && self.take_back(&open, &mut state, from).is_ok()
        {
            state.kernel.refused = Some((errno, first.min(until)));
        } else {
            state.latched.get_or_insert(errno);
        }
        self.lead_astray(&open, &mut state, end.max(size));
        makes_room && state.latched.is_none() && end <= first
    }

    /// Leaves a file to its open handles, which return errors: a new open gets another node, with
    /// the stored state.
    pub fn leave_behind(&self, open: &OpenFile) {
        let mut state = open.state.write();
        if let Some((errno, _)) = state.kernel.refused
            && state.latched.is_none()
        {
            if self.has_name(open) {
                let _ = self.commit_what_fits(open, &mut state, Durability::Ordered);
            }
            state.latched.get_or_insert(errno);
        }
        drop(state);
        self.learn_size(open);
        self.nodes.retire(open.node);
    }

    /// Records the size that the store has of a file: the kernel repeats the lookup, and must then
    /// get the actual one.
    pub fn learn_size(&self, open: &OpenFile) {
        if !self.mode.caller_caches {
            return;
        }
        let _ = self.journal.repair(open.inode());
        if let Ok(stored) =
            OpenFile::load(open.node, open.file(), &self.context(), self.next_serial(), Load::Read)
        {
            self.note_size(&stored);
        }
    }

    /// Returns the error for a write that the kernel is about to accept; otherwise whether the
    /// kernel is to ask again before the next one, after it has sent the file's dirty pages.
    pub fn before_write(&self, handle: Handle) -> Inner<bool> {
        let Open::File { file: open, flags, direct } = self.open.handle(handle)? else {
            return Ok(false);
        };
        if !flags.write || direct || !self.mode.writers.know_all_opens() {
            return Ok(false); // the kernel caches no writes
        }
        let grows = {
            let state = open.state.read();
            state.check_latched()?;
            state.kernel.check_refused(u64::MAX)?;
            state.kernel.grew
        };
        if !self.is_low() {
            return Ok(false);
        }
        if grows && self.room.measure(&*self.root, self.mode.is_root_user) < ROOM_TO_GROW {
            return Err(Fault::Os(libc::ENOSPC));
        }
        Ok(true)
    }
}
