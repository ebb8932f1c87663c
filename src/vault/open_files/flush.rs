//! Background flushes of files that stay open.
//!
//! Rules that hold here
//! * A file that was never durable is committed straight in place, and a crash during that can
//!   leave it completely unreadable. That is acceptable for a copy of a second, but not for a
//!   recording of hours. So a file that stays open is made durable once, and its later commits go
//!   through the journal. A file whose path no record can name is not made durable: it could not be
//!   changed any more.
//! * Most data is flushed before the file is locked: neither its writers nor the commit of another
//!   file wait for a slow disk.
//! * With concurrent openers much data is flushed before the lease is taken to commit it: as long as
//!   one daemon has the lease, no other one changes anything.
//! * A failed flush is reported like any other: the file returns the error until it is closed. The
//!   kernel reports an error to only one of two concurrent flushes. So a commit or a checkpoint,
//!   which may be the other one, waits for this one after its own flush.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::vault::core::Core;
use crate::vault::error::Fault;
use crate::vault::file::phase::{Phase, Tail};
use crate::vault::file::{DIRTY_CHUNKS_MAX, FileState, OpenFile};
use crate::vault::open_files::TURN;
use crate::vault::open_files::handles::STREAM;

/// Bytes of changed chunks from which they are flushed before the lease is taken: fewer are flushed
/// by the commit alone, because a second flush costs more time than the first one saves.
const FLUSHED_FIRST: u64 = 1 << 20;

/// Work of the background thread for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// Fresh bytes wait for the flush of the next commit.
    Bytes,
    /// It has been committed without a flush for long enough.
    Durable,
}

impl FileState {
    fn flush_due(&self, age: Duration) -> Due {
        // In the middle of a refused commit the file is in no consistent state.
        let is_between = self.changes.is_some() && self.tail >= Tail::Surplus;
        match self.phase {
            _ if self.latched.is_some() => Due::Nothing,
            Phase::Straight { since, .. }
                if !is_between && self.committed.is_some() && since.elapsed() >= age * 2 =>
            {
                Due::Durable
            }
            Phase::Durable
                if self.unflushed.data
                    && self.changes.is_some_and(|c| c.since.elapsed() >= age / 4 * 3) =>
            {
                Due::Bytes
            }
            _ => Due::Nothing,
        }
    }
}

impl Core {
    /// Flushes every open file whose fresh bytes have waited for most of `age`, after which they
    /// are committed. Makes files durable that have been committed without a flush for twice `age`.
    pub fn flush_due(&self, age: Duration) {
        if self.mode.read_only || self.mode.writers.commit_durably() {
            return;
        }
        let files: Vec<_> =
            self.open.files.lock().values().map(|shared| shared.file.clone()).collect();
        for open in files {
            let due =
                open.state.try_read_for(TURN).map_or(Due::Nothing, |state| state.flush_due(age));
            if due == Due::Nothing || self.closed.load(Ordering::Acquire) || !self.has_name(&open) {
                continue;
            }
            if due == Due::Durable && self.nodes.has_long_path(open.node) {
                continue;
            }
            if let Err(fault) = self.flush_open(&open, due, age) {
                tracing::error!(path = %self.shown_path(open.node).display(), errno = fault.errno(), "deferred flush failed");
            }
        }
    }

    /// Flushes most of what the next commit of a file relies on, before the caller takes the lease
    /// for that commit. A failure stays with the file: the commit returns it.
    pub fn flush_before_lease(&self, open: &OpenFile) {
        let chunk = self.keys.layout.chunk();
        self.flush_unleased(open, |state| state.dirty.len() as u64 * chunk >= FLUSHED_FIRST);
    }

    /// Like [`Core::flush_before_lease`], before a write of `len` bytes that may fill the memory for
    /// changes, so that it commits. Small writes would cause many flushes.
    pub fn flush_before_write(&self, open: &OpenFile, len: usize) {
        if len >= STREAM {
            let more = len / self.keys.layout.chunk() as usize + 2;
            self.flush_unleased(open, |state| state.dirty.len() + more > DIRTY_CHUNKS_MAX);
        }
    }

    fn flush_unleased(&self, open: &OpenFile, is_much: impl Fn(&FileState) -> bool) {
        let is_due = |state: &FileState| {
            state.unflushed.data
                && state.changes.is_some()
                && state.latched.is_none()
                && is_much(state)
        };
        if self.lease.is_needed()
            && !self.mode.read_only
            && is_due(&open.state.read())
            && let Err(fault) = self.flush_open(open, Due::Bytes, Duration::ZERO)
        {
            tracing::error!(path = %self.shown_path(open.node).display(), errno = fault.errno(), "flush before a commit failed");
        }
    }

    fn flush_open(&self, open: &OpenFile, due: Due, age: Duration) -> Result<(), Fault> {
        // Twice if the rest is flushed with the file locked: more data arrives during the first
        // flush, which takes seconds.
        let times = if due == Due::Durable { 2 } else { 1 };
        let flush = || (0..times).try_for_each(|_| open.file().sync_data());
        if let Err(e) = self.journal.flush(open.inode(), &open.file(), flush) {
            let fault = Fault::from(e);
            open.state.write().latched.get_or_insert(fault.errno());
            return Err(fault);
        }
        if due == Due::Durable {
            let mut state = open.state.write();
            if state.flush_due(age) == Due::Durable {
                return self.make_durable(open, &mut state);
            }
        }
        Ok(())
    }
}
