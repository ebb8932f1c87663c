//! Handles: reading, writing, lengths and durability of open files.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::format::layout::SIZE_MAX;
use crate::store::{Allocate, Kind, Seek};
use crate::vault::core::Core;
use crate::vault::core::open_table::Open;
use crate::vault::durability::commit::Durability;
use crate::vault::error::{Fault, Inner, is_no_space};
use crate::vault::file::phase::Phase;
use crate::vault::file::seal::Ready;
use crate::vault::file::{FileState, OpenFile};
use crate::vault::types::{Fallocate, Handle, NodeId, OpenFlags, Opened, Sought};

/// Maximum number of bytes that `copy_range` holds in plain text.
const COPY_PART: usize = 1 << 20;

/// Ciphertext length in bytes beyond which an operation that lengthens a file also lengthens the
/// stored file at once: the store may not allow the length. At the commit the error would be too
/// late: the operation has succeeded, and no further commit could.
const LARGE: u64 = 1 << 40;

/// Size in bytes of the parts of a write, between which a due commit is made.
const WRITE_PART: usize = 1 << 20;

/// Size in bytes from which a write counts as part of a stream.
pub(super) const STREAM: usize = 128 << 10;

/// Bytes of a page. The kernel reads whole pages, also beyond the end of the file.
const PAGE: u64 = 4096;

/// Punched bytes of an open file from which a commit frees the space at once. Less waits for the
/// next commit: a commit costs a flush, which many small holes would each pay for.
const PUNCH_PENDING: u64 = 1 << 20;

impl Core {
    pub fn open_file(&self, node: NodeId, flags: OpenFlags) -> Inner<Opened> {
        match self.nodes.kind(node)? {
            Kind::File => {}
            Kind::Dir => return Err(Fault::Os(libc::EISDIR)),
            _ => return Err(Fault::Os(libc::ENXIO)),
        }
        if flags.write || flags.truncate {
            self.check_writable()?;
        }
        let flags = self.mode.writers.open_flags(flags);
        let file = self.acquire(node, flags)?;
        if flags.truncate {
            let truncated = self.truncate(&file, 0);
            if let Err(fault) = truncated {
                let _ = self.release(&file, flags);
                self.journal.keep_repair(file.inode());
                return Err(fault);
            }
        }
        let alone = self.open.files.lock().get(&node).is_some_and(|s| s.handles == 1);
        let cached = self.nodes.cached(node).ok();
        let keep_cache = !flags.truncate
            && if self.mode.writers.know_all_opens() {
                !alone
                    || cached
                        .zip(file.cached())
                        .is_some_and(|(cached, now)| cached.has_pages_of(&now))
            } else {
                // The end of the previous lease dropped the older pages. Before the kernel uses a
                // page read since, it compares size and time of the file.
                self.lease.generation().is_some() && !file.is_on_demand()
            };
        let (alone, void) = {
            let state = file.state.read();
            (alone.then_some(state.size), state.phase == Phase::Void)
        };
        if file.is_on_demand() {
            self.give_back(&file, &file.state.write());
        }
        let direct = void || self.is_direct(flags);
        let handle = self.open.put_handle(Open::File { file, flags, direct });
        Ok(Opened { handle, keep_cache, alone, direct })
    }

    /// Returns whether an open now must bypass the kernel's cache: there is little room, or other
    /// daemons append as well, so that the kernel does not know where appended data goes.
    pub fn is_direct(&self, flags: OpenFlags) -> bool {
        if !self.mode.writers.know_all_opens() {
            return flags.append;
        }
        flags.write && self.mode.caller_caches && self.is_low()
    }

    /// Remembers the authenticated size of a file whose ciphertext is longer than that size
    /// requires: the next lookup returns it. Returns whether lookups returned another size before.
    pub fn note_size(&self, open: &OpenFile) -> bool {
        let state = open.state.read();
        let is_new = state.changes.is_none()
            && self.shown_size(open.inode(), state.backing_len) != state.size;
        if is_new {
            self.open.sizes.lock().put(open.inode(), (state.backing_len, state.size));
        }
        is_new
    }

    pub fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Inner<usize> {
        let (file, _) = self.open.file_handle(handle)?;
        self.mode.writers.read(self, &file, offset, buf)
    }

    /// Reads a file that no other daemon writes.
    pub fn read_own(&self, file: &OpenFile, offset: u64, buf: &mut [u8]) -> Inner<usize> {
        let read = file.read(&self.context(), offset, buf)?;
        // The kernel may believe in a later end only if a whole page is missing.
        let pages_to = |len: usize| offset.saturating_add(len as u64).div_ceil(PAGE);
        let is_short = pages_to(read) < pages_to(buf.len());
        if is_short
            && self.mode.caller_caches
            && let Some(wait) = file.until_cut_is_known()
        {
            std::thread::sleep(wait);
            return file.read(&self.context(), offset, buf);
        }
        Ok(read)
    }

    /// Writes at `offset`, or at the end if the handle was opened to append.
    pub fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_suid_sgid: bool,
    ) -> Inner<()> {
        let appends = self.open.file_handle(handle).is_ok_and(|(_, flags)| flags.append);
        self.write_to(handle, (!appends).then_some(offset), data, kill_suid_sgid)
    }

    /// Writes pages of the caller's cache at `offset`. They may come from a mapping: the kernel
    /// writes them through any handle of the file, also through one that was opened to append.
    pub fn write_pages(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_suid_sgid: bool,
    ) -> Inner<()> {
        self.write_to(handle, Some(offset), data, kill_suid_sgid)
    }

    /// Writes at `offset`, or without one at the end.
    fn write_to(
        &self,
        handle: Handle,
        offset: Option<u64>,
        data: &[u8],
        kill_suid_sgid: bool,
    ) -> Inner<()> {
        let Open::File { file: open, flags, direct } = self.open.handle(handle)? else {
            return Err(Fault::Os(libc::EISDIR));
        };
        self.check_writable()?;
        self.open.writes.fetch_add(1, Ordering::Relaxed);
        let context = self.context();
        // The offset of appended data is not known before the file is locked.
        let (ahead, from) = offset.map_or((&[][..], 0), |offset| (data, offset));
        let at = |i: usize| from.saturating_add((i * WRITE_PART) as u64);
        let seal = |(i, part)| Ready::seal(&context, &open.file_id, at(i), part);
        let mut ready =
            ahead.chunks(WRITE_PART).enumerate().map(seal).collect::<Vec<Ready>>().into_iter();
        self.flush_before_write(&open, data.len());
        let low = self.is_low(); // before the file is locked: it locks the table of open files
        let mut state = self.mode.writers.state_to_change(self, &open)?;
        if kill_suid_sgid {
            kill_suid_sgid_bits(&open)?;
        }
        let mut offset = offset.unwrap_or(state.size);
        state.kernel.check_refused(offset.saturating_add(data.len() as u64))?;
        let size = state.size;
        self.make_room(&open, &mut state, offset.saturating_add(data.len() as u64))?;
        if low {
            self.reserve_growth(&open, &state, offset, offset.saturating_add(data.len() as u64))
                .inspect_err(|fault| self.note_refusal(fault))?;
        }
        // In parts, so that no commit, and no record of the journal, exceeds a limit.
        for part in data.chunks(WRITE_PART) {
            if state.is_full() || state.count(&self.context()) {
                // An earlier commit may have failed for lack of space: no more data is accepted
                // until one succeeds.
                self.commit_state(&open, &mut state, Durability::Ordered)?;
            }
            let ready = ready.next().unwrap_or_default();
            let written = state.write_ready(&*open.file(), &context, offset, part, ready);
            let vault_is_full = state.count(&context);
            let written = written
                .and_then(|()| if low { self.reserve_tables(&open, &mut state) } else { Ok(()) });
            if let Err(fault) = written {
                self.note_refusal(&fault);
                if is_no_space(fault.errno()) && state.latched.is_none() {
                    // A write that fails for lack of space leaves the file's length unchanged.
                    let shorter = self.take_back(&open, &mut state, size);
                    state.count(&context);
                    shorter?;
                }
                return Err(fault);
            }
            if state.is_full() || vault_is_full {
                self.commit_state(&open, &mut state, Durability::Ordered)?;
            }
            offset = offset.saturating_add(part.len() as u64);
        }
        if flags.sync {
            self.commit_state(&open, &mut state, Durability::Synced)?;
        }
        state.kernel.grew |= state.size > size;
        if direct {
            state.mtime.keep();
            state.kernel.lacks_time = true;
        }
        self.note_written(data.len());
        let streams = !state.phase.is_unflushed() && state.unflushed.data && data.len() >= STREAM;
        drop(state);
        if streams {
            // The next commit flushes these bytes first. It does not wait if the disk has them by
            // then.
            let from = self.keys.layout.cipher_len(offset - data.len() as u64);
            open.file().begin_flush(from, self.keys.layout.cipher_len(offset).saturating_sub(from));
        }
        Ok(())
    }

    pub fn flush(&self, handle: Handle) -> Inner<()> {
        let (open, flags) = self.open.file_handle(handle)?;
        if flags.write && !self.mode.read_only && self.is_shown(&open) {
            self.flush_before_lease(&open);
            let _change = self.lease.change()?;
            // A close is a program's last chance to get an error; errors of the final release are
            // not reported.
            let mut state = open.state.write();
            state.resolve_mtime();
            self.commit_state(&open, &mut state, Durability::Ordered)?;
            self.give_back(&open, &state);
            return state.kernel.check_refused(u64::MAX);
        }
        open.state.read().check_latched()
    }

    pub fn fsync(&self, handle: Handle, _data_only: bool) -> Inner<()> {
        let (open, _) = self.open.file_handle(handle)?;
        if self.mode.read_only {
            return Ok(());
        }
        self.flush_before_lease(&open);
        let _change = self.lease.change()?;
        let mut state = open.state.write();
        state.resolve_mtime();
        self.commit_state(&open, &mut state, Durability::Synced)?;
        self.give_back(&open, &state);
        state.kernel.check_refused(u64::MAX)
    }

    pub fn release_handle(&self, handle: Handle) -> Inner<()> {
        let removed = self.open.handles.write().remove(&handle);
        match removed {
            Some(Open::File { file, flags, .. }) => {
                if flags.write {
                    file.state.write().resolve_mtime();
                }
                self.unlock_handle(&file, handle);
                self.release(&file, flags)
            }
            Some(Open::Dir { node, .. }) => {
                self.nodes.closed(node);
                Ok(())
            }
            None => Err(Fault::Os(libc::EBADF)),
        }
    }

    /// Sets the size of an open file.
    pub fn truncate(&self, open: &Arc<OpenFile>, size: u64) -> Inner<()> {
        let writers = self.mode.writers;
        let mut state = if size == 0 {
            // A file that was opened to be emptied may stay open here until it can be committed.
            let give_up = |fault: &Fault| open.state.write().give_up_truncation(fault.errno());
            writers.state_to_empty(self, open).inspect_err(give_up)?
        } else {
            writers.state_to_change(self, open)?
        };
        let was = state.size;
        let truncated = self.truncate_state(open, &mut state, size);
        match &truncated {
            // An open that truncates loads the file as empty, so `was` is 0.
            Ok(()) if size < was || size == 0 => state.kernel.cut_at = Some(Instant::now()),
            Ok(()) => {}
            Err(fault) => self.note_half_done(open, &mut state, was, fault),
        }
        truncated
    }

    fn truncate_state(&self, open: &Arc<OpenFile>, state: &mut FileState, size: u64) -> Inner<()> {
        state.kernel.check_refused(u64::MAX)?;
        if size > SIZE_MAX {
            return Err(Fault::Os(libc::EFBIG));
        }
        if state.phase == Phase::Void {
            // The program gets a new file of this size, filled with zeros: see docs/DURABILITY.md.
            tracing::warn!(path = %self.shown_path(open.node).display(), size, "a file that was never committed was truncated: it is a new file now");
            if let Err(fault) = self.throw_away(open, state) {
                state.make_void();
                return Err(fault);
            }
        }
        state.check_latched()?;
        if size > state.size {
            self.make_room(open, state, size)?;
            return state.extend(&*open.file(), &self.context(), size);
        }
        if size == state.size && !(size == 0 && state.committed.is_none()) {
            state.touch();
            return Ok(());
        }
        if size == 0 {
            return self.throw_away(open, state);
        }
        let former = state.shorten(&*open.file(), &self.context(), size)?;
        let committed = self.commit_state(open, state, Durability::Ordered);
        if committed.is_err() && state.latched.is_none() {
            // Otherwise the next write would fill places to which the durable header refers, and
            // growth would restore old bytes.
            state.restore(&*open.file(), &self.context(), former);
        }
        committed
    }

    /// Discards the contents of an open file.
    fn throw_away(&self, open: &OpenFile, state: &mut FileState) -> Inner<()> {
        // The journal's records of the file are applied first: no replay may restore them.
        self.journal.checkpoint_for(Some(open.inode()))?;
        // No program is promised the old contents any more, so this commit needs no record. Their
        // space is free once it is done.
        state.discard(self.next_serial());
        self.commit_state(open, state, Durability::Ordered)?;
        self.journal.forget_repair(open.inode());
        Ok(())
    }

    /// Fails if a file cannot have this size. Beyond [`LARGE`] it lengthens the stored file to try
    /// that; no header refers to the new bytes.
    fn make_room(&self, open: &OpenFile, state: &mut FileState, size: u64) -> Inner<()> {
        if size > SIZE_MAX {
            return Err(Fault::Os(libc::EFBIG));
        }
        let len = self.keys.layout.cipher_len(size);
        if len > LARGE && len > state.backing_len {
            open.file().set_len(len)?;
            state.backing_len = len;
        }
        Ok(())
    }

    pub fn seek_data_hole(&self, handle: Handle, offset: u64, what: Seek) -> Inner<u64> {
        let (open, _) = self.open.file_handle(handle)?;
        self.mode.writers.adopt_whole(self, &open)?;
        open.state.read().seek(&*open.file(), &self.context(), offset, what)
    }

    pub fn seek_under_cache(
        &self,
        handle: Handle,
        offset: u64,
        what: Seek,
        sent: &Range<u64>,
    ) -> Inner<Sought> {
        let (open, _) = self.open.file_handle(handle)?;
        let has_writers = self.open.files.lock().get(&open.node).is_some_and(|s| s.writers > 0);
        if !self.mode.writers.know_all_opens() || !has_writers {
            return self.seek_data_hole(handle, offset, what).map(Sought::At);
        }
        let state = open.state.read();
        let seek = |from, what| match state.seek(&*open.file(), &self.context(), from, what) {
            Err(Fault::Os(libc::ENXIO)) => Ok(None),
            found => found.map(Some),
        };
        // The hole on which the reply depends; beyond the known end there may be uncommitted data
        // of the kernel.
        let hole = match what {
            Seek::Data => offset..seek(offset, Seek::Data)?.unwrap_or(u64::MAX),
            Seek::Hole => {
                let hole = seek(offset, Seek::Hole)?.unwrap_or(offset);
                hole..seek(hole, Seek::Data)?.unwrap_or(u64::MAX)
            }
        };
        let is_known = hole.is_empty() || sent.start <= hole.start && hole.end <= sent.end;
        if !is_known {
            return Ok(Sought::Unsent(hole));
        }
        match what {
            Seek::Data if hole.end < u64::MAX => Ok(Sought::At(hole.end)),
            Seek::Hole if offset < state.size => Ok(Sought::At(hole.start)),
            _ => Err(Fault::Os(libc::ENXIO)),
        }
    }

    pub fn fallocate(&self, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Inner<()> {
        self.check_writable()?;
        let (open, flags) = self.open.file_handle(handle)?;
        if !flags.write {
            return Err(Fault::Os(libc::EBADF));
        }
        if len == 0 {
            return Err(Fault::Os(libc::EINVAL));
        }
        let end =
            offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Fault::Os(libc::EFBIG))?;
        let mut state = self.mode.writers.state_to_change(self, &open)?;
        state.check_latched()?;
        state.kernel.check_refused(u64::MAX)?;
        let context = self.context();
        let lengthens = |keep_size: bool, state: &FileState| !keep_size && end > state.size;
        match mode {
            Fallocate::Allocate { keep_size } => {
                let layout = self.keys.layout;
                let (from, to) = (layout.cipher_len(offset.min(SIZE_MAX)), layout.cipher_len(end));
                open.file().allocate(Allocate::KeepSize, from, to - from)?;
                if lengthens(keep_size, &state) {
                    self.make_room(&open, &mut state, end)?;
                    state.extend(&*open.file(), &context, end)?;
                }
            }
            Fallocate::PunchHole => self.punch(&open, &mut state, offset, end)?,
            Fallocate::ZeroRange { keep_size } => {
                self.punch(&open, &mut state, offset, end)?;
                if lengthens(keep_size, &state) {
                    self.make_room(&open, &mut state, end)?;
                    state.extend(&*open.file(), &context, end)?;
                }
            }
        }
        state.unflushed.inode = true;
        if state.is_full() || state.punched() >= PUNCH_PENDING {
            self.commit_state(&open, &mut state, Durability::Ordered)?;
        }
        Ok(())
    }

    fn punch(
        &self,
        open: &OpenFile,
        state: &mut FileState,
        mut offset: u64,
        end: u64,
    ) -> Inner<()> {
        let end = end.min(state.size);
        loop {
            offset = state.punch(&*open.file(), &self.context(), offset, end)?;
            if offset >= end {
                return Ok(());
            }
            self.commit_state(open, state, Durability::Ordered)?;
        }
    }

    pub fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Inner<u64> {
        let mut buf = zeroize::Zeroizing::new(vec![0; COPY_PART.min(len as usize)]);
        let mut done = 0;
        while done < len {
            let part = (len - done).min(buf.len() as u64) as usize;
            let read = self.read(from, from_offset + done, &mut buf[..part])?;
            if read == 0 {
                break;
            }
            self.write(to, to_offset + done, &buf[..read], false)?;
            done += read as u64;
        }
        Ok(done)
    }

    pub fn clear_suid_sgid(&self, handle: Handle) -> Inner<()> {
        let _change = self.lease.change()?;
        kill_suid_sgid_bits(&self.open.file_handle(handle)?.0)
    }

    pub fn sync_dir(&self, handle: Handle) -> Inner<()> {
        let Open::Dir { dir, .. } = self.open.handle(handle)? else {
            return Err(Fault::Os(libc::ENOTDIR));
        };
        if self.mode.read_only {
            return Ok(());
        }
        Ok(dir.sync()?)
    }
}

/// Returns the permission bits without set-user-ID, and without set-group-ID if the group may
/// execute; `None` if nothing changes.
pub(in crate::vault) fn without_suid_sgid(perm: u32) -> Option<u32> {
    let mut new = perm & !0o4000;
    if perm & 0o010 != 0 {
        new &= !0o2000;
    }
    (new != perm).then_some(new)
}

pub(in crate::vault) fn kill_suid_sgid_bits(open: &OpenFile) -> Inner<()> {
    let cleared = open.with_stored(|file| {
        let perm = without_suid_sgid(file.stat()?.perm);
        perm.map(|perm| file.chmod(perm)).transpose()
    })?;
    if cleared.is_some() {
        open.inode_changed.store(true, std::sync::atomic::Ordering::Release);
    }
    Ok(())
}
