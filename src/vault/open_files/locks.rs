//! Locks on stored files, for vaults with concurrent writers: those of this program and those that
//! it passes on for programs.
//!
//! Rules that hold here
//! * All of them are locks on ranges of offsets, also those of `flock`, of which an NFS server
//!   makes a lock on a range. They say nothing about the bytes at these offsets.
//! * All ranges that ordinary programs use end below 2^31, or are open-ended. The metadata server
//!   of CephFS keeps 32 bits of the end of a lock that it merges with another one of the same
//!   owner. Beyond 2^31, such a lock covers too much or too little.
//! * The ranges are part of the format: SPEC.md, section 2.
//! * A lock of a program is a point of coherence. What programs of this daemon have written is
//!   committed before the lock is given back, and a read returns what is committed in the store. So
//!   the next owner sees it, in whichever mount.

use std::collections::HashSet;

use crate::store::{Lock, Span};
use crate::vault::core::Core;
use crate::vault::durability::writers::Writers;
use crate::vault::error::{Fault, Inner};
use crate::vault::file::OpenFile;
use crate::vault::file::guard::open_for_locks;
use crate::vault::file::program_locks::{Owner, owner_of};
use crate::vault::types::{Handle, LockRequest};

/// The locks that programs take with `flock`.
const WHOLE: Span = Span::one(1);
/// Locked shared by a daemon that has the file open for writing and takes the guard on demand.
pub(super) const ON_DEMAND: Span = Span::one(2);
/// The locks that programs take with `fcntl` are shifted by this: the offsets before are for
/// kithfs. Offsets that would be beyond the last one count as the last one.
const SHIFT: u64 = 16;

/// Returns the range in the store for the range of a request.
fn span_of(request: &LockRequest) -> Span {
    if request.whole {
        return WHOLE;
    }
    let shifted = |offset: u64| offset.saturating_add(SHIFT).min(Span::END);
    Span { first: shifted(request.span.first), last: shifted(request.span.last) }
}

/// Returns the range of a program for a range in the store.
fn shown(span: Span) -> Span {
    let first = span.first.saturating_sub(SHIFT);
    let last = if span.last >= Span::END { Span::END } else { span.last.saturating_sub(SHIFT) };
    Span { first, last }
}

impl Core {
    /// Takes, changes or removes a lock of a program, without waiting. Returns false if the lock of
    /// another owner prevents it, here or in another mount.
    pub fn lock(&self, handle: Handle, request: &LockRequest) -> Inner<bool> {
        let (open, _) = self.open.file_handle(handle)?;
        if self.mode.writers == Writers::Exclusive {
            return Err(Fault::Os(libc::ENOLCK)); // the kernel has these locks
        }
        let Some(lock) = request.lock else {
            self.publish(&open);
            self.unlock(&open, request)?;
            return Ok(true);
        };
        let key = owner_of(request);
        // The owner may give up a part of its locks by this: an exclusive lock becomes a shared
        // one, and flock(2) gives the former lock back first.
        let gives = request.whole || lock == Lock::Shared;
        if gives && open.locks.lock().owners.contains_key(&key) {
            self.publish(&open);
        }
        let mut locks = open.locks.lock();
        let span = span_of(request);
        if let Some(owner) = locks.owners.get_mut(&key) {
            let granted = owner.file.try_lock_span(Some(lock), span)?;
            if granted {
                owner.through.insert(handle);
            } else if request.whole {
                locks.owners.remove(&key); // flock(2): the former lock is lost
            }
            return Ok(granted);
        }
        let file = open_for_locks(&*open.file())?;
        if !file.try_lock_span(Some(lock), span)? {
            return Ok(false);
        }
        locks.owners.insert(key, Owner { file, through: HashSet::from([handle]) });
        Ok(true)
    }

    fn unlock(&self, open: &OpenFile, request: &LockRequest) -> Inner<()> {
        let mut locks = open.locks.lock();
        let everything = request.whole || request.span == Span { first: 0, last: Span::END };
        if everything {
            locks.owners.remove(&owner_of(request));
        } else if let Some(owner) = locks.owners.get(&owner_of(request)) {
            owner.file.try_lock_span(None, span_of(request))?;
        }
        Ok(())
    }

    /// Returns a lock that keeps a program from getting the requested one; `None` if there is none.
    pub fn find_lock(&self, handle: Handle, request: &LockRequest) -> Inner<Option<(Lock, Span)>> {
        let (open, _) = self.open.file_handle(handle)?;
        let Some(lock) = request.lock else { return Err(Fault::Os(libc::EINVAL)) };
        let own = open.locks.lock().owners.get(&owner_of(request)).map(|owner| owner.file.clone());
        let file = own.map_or_else(|| open_for_locks(&*open.file()), Ok)?;
        let found = file.find_lock(lock, span_of(request))?;
        Ok(found.map(|(lock, span)| (lock, shown(span))))
    }

    /// Returns the committed state of a file, as the hash of its header, if the kernel may have
    /// pages of an earlier one. The kernel drops such pages by itself if size or time of the file
    /// differ, which a program can prevent by setting the time.
    pub fn pages_to_drop(&self, handle: Handle) -> Option<[u8; 32]> {
        if self.mode.writers == Writers::Exclusive {
            return None;
        }
        let (open, _) = self.open.file_handle(handle).ok()?;
        let unknown = [0; 32]; // of no header
        let now = self.header_in(&*open.file()).map_or(unknown, |header| header.hash());
        (open.locks.lock().pages != Some(now)).then_some(now)
    }

    /// Notes that the kernel has dropped the pages of states before `older`.
    pub fn pages_dropped(&self, handle: Handle, older: [u8; 32]) {
        if let Ok((open, _)) = self.open.file_handle(handle) {
            open.locks.lock().pages = Some(older).filter(|older| *older != [0; 32]);
        }
    }

    /// Drops the `fcntl` locks of an owner on the file of a handle: a program that closes any
    /// descriptor of a file loses them.
    pub fn unlock_owner(&self, handle: Handle, owner: u64) {
        let Ok((open, _)) = self.open.file_handle(handle) else { return };
        if open.locks.lock().owners.contains_key(&(owner, false)) {
            self.publish(&open);
            open.locks.lock().owners.remove(&(owner, false));
        }
    }

    /// Drops the locks that were taken through a handle, which is being closed.
    pub fn unlock_handle(&self, open: &OpenFile, handle: Handle) {
        let ended = open.locks.lock().close(handle);
        if !ended.is_empty() {
            self.publish(open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vault::file::guard::GUARD;

    fn range_in_store(first: u64, last: u64) -> Span {
        let (owner, lock, whole) = (1, Some(Lock::Exclusive), false);
        span_of(&LockRequest { owner, lock, span: Span { first, last }, whole })
    }

    #[test]
    fn ranges_of_programs_are_beyond_those_of_daemons() {
        for (first, last) in [(0, 0), (5, 1 << 40), (7, Span::END), (1 << 62, 1 << 62)] {
            let span = range_in_store(first, last);
            assert!(span.first <= span.last && span.last <= Span::END);
            assert!([GUARD, WHOLE, ON_DEMAND].iter().all(|own| own.last < span.first));
            assert_eq!(shown(span), Span { first, last });
        }
        assert_eq!(range_in_store(Span::END - 1, Span::END), Span::one(Span::END));
        let span = Span { first: 0, last: Span::END };
        let whole = LockRequest { owner: 1, lock: Some(Lock::Shared), span, whole: true };
        assert_eq!(span_of(&whole), WHOLE);
    }

    /// Merges two locks of one owner as the metadata server of CephFS does (`adjust_locks` in
    /// `src/mds/flock.cc`): an end is an `int`, except for locks without an end.
    fn merged_by_ceph(one: Span, other: Span) -> Span {
        let first = one.first.min(other.first);
        let last = one.last.max(other.last);
        let is_open_ended = last == Span::END;
        Span { first, last: if is_open_ended { last } else { last as i32 as u64 } }
    }

    /// The ranges once began at 2^62, beyond all contents. On CephFS, a program that locked a
    /// record and then the whole file got a lock that also covered the guards of the file: writes
    /// of its daemon failed with EIO. A program that locked overlapping records lost a part of its
    /// lock, and a program in another mount could lock it.
    #[test]
    fn locks_that_cephfs_merges_cover_both_ranges() {
        let sqlite = 1 << 30; // the offsets that SQLite locks
        for (one, other) in [
            ((10_000, 10_000), (0, Span::END)),
            ((0, 7), (4, 11)),
            ((0, 7), (0, 7)),
            ((sqlite, sqlite), (sqlite, sqlite + 511)),
        ] {
            let [one, other] = [one, other].map(|(first, last)| range_in_store(first, last));
            let both = Span { first: one.first.min(other.first), last: one.last.max(other.last) };
            assert_eq!(merged_by_ceph(one, other), both);
        }
    }
}
