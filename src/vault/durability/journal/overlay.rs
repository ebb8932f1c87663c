//! A file of the store with changes that stay in memory: in a vault that is open read-only, the
//! changes that a replay would have made.
//!
//! Rules that hold here
//! * Nothing reaches the store. Unchanged bytes are read from there at each call.
//! * Memory holds at most the bytes that the journals contain for the file.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::store::{Access, Allocate, File, Lock, Seek, SetTime, Span, Stat, Timestamp};

struct Changes {
    /// Non-overlapping pieces by their offsets.
    pieces: BTreeMap<u64, Box<[u8]>>,
    len: u64,
    /// Bytes of the store beyond this offset are cut off; they read as zeros if the file was
    /// lengthened again.
    kept: u64,
    mtime: Timestamp,
}

/// A file of the store with changes in memory.
pub(super) struct OverlayFile {
    below: Arc<dyn File>,
    changes: RwLock<Changes>,
}

fn read_only<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::EROFS))
}

impl OverlayFile {
    pub fn new(below: Arc<dyn File>, stat: &Stat) -> Self {
        let changes =
            Changes { pieces: BTreeMap::new(), len: stat.size, kept: stat.size, mtime: stat.mtime };
        OverlayFile { below, changes: RwLock::new(changes) }
    }

    /// Returns whether a replay would change the contents.
    pub fn is_changed(&self) -> bool {
        let changes = self.changes.read();
        !changes.pieces.is_empty() || self.below.stat().is_ok_and(|stat| stat.size != changes.len)
    }
}

impl Changes {
    /// Removes `from..to` from the pieces.
    fn clear(&mut self, from: u64, to: u64) {
        let first = self.pieces.range(..from).next_back().map_or(from, |(at, _)| *at);
        let touched: Vec<u64> = self.pieces.range(first..to).map(|(at, _)| *at).collect();
        for at in touched {
            let piece = self.pieces.remove(&at).expect("listed above");
            let end = at + piece.len() as u64;
            if at < from {
                self.pieces.insert(at, piece[..(from.min(end) - at) as usize].into());
            }
            if end > to {
                self.pieces.insert(to, piece[(to - at) as usize..].into());
            }
        }
    }
}

impl File for OverlayFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let changes = self.changes.read();
        let len = changes.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        let from_store = changes.kept.saturating_sub(offset).min(len as u64) as usize;
        let read =
            if from_store > 0 { self.below.read_at(&mut buf[..from_store], offset)? } else { 0 };
        buf[read..].fill(0);
        let end = offset + len as u64;
        let first = changes.pieces.range(..=offset).next_back().map_or(offset, |(at, _)| *at);
        for (at, piece) in changes.pieces.range(first..end.max(first)) {
            let (from, to) = (offset.max(*at), end.min(at + piece.len() as u64));
            if from < to {
                buf[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&piece[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(len)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let mut changes = self.changes.write();
        let end = offset + buf.len() as u64;
        if !buf.is_empty() {
            changes.clear(offset, end);
            changes.pieces.insert(offset, buf.into());
            changes.len = changes.len.max(end);
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()> {
        self.write_at(&bufs.concat(), offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut changes = self.changes.write();
        changes.clear(len, u64::MAX);
        changes.kept = changes.kept.min(len);
        changes.len = len;
        Ok(())
    }

    fn allocate(&self, _how: Allocate, _offset: u64, _len: u64) -> io::Result<()> {
        read_only()
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        if !self.is_changed() {
            return self.below.seek(what, offset);
        }
        // A changed file counts as data as a whole.
        match (what, self.changes.read().len) {
            (_, len) if offset >= len => Err(io::Error::from_raw_os_error(libc::ENXIO)),
            (Seek::Data, _) => Ok(offset),
            (Seek::Hole, len) => Ok(len),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn stat(&self) -> io::Result<Stat> {
        let changes = self.changes.read();
        Ok(Stat { size: changes.len, mtime: changes.mtime, ..self.below.stat()? })
    }

    fn chmod(&self, _perm: u32) -> io::Result<()> {
        read_only()
    }

    fn chown(&self, _uid: Option<u32>, _gid: Option<u32>) -> io::Result<()> {
        read_only()
    }

    fn set_times(&self, _atime: SetTime, mtime: SetTime) -> io::Result<()> {
        if let SetTime::At(mtime) = mtime {
            self.changes.write().mtime = mtime;
        }
        Ok(())
    }

    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.below.get_xattr(key)
    }

    fn set_xattr(&self, _key: &[u8], _value: &[u8]) -> io::Result<()> {
        read_only()
    }

    fn remove_xattr(&self, _key: &[u8]) -> io::Result<bool> {
        read_only()
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        self.below.try_lock(lock)
    }

    fn reopen(&self, access: Access) -> io::Result<Arc<dyn File>> {
        self.below.reopen(access)
    }

    fn try_lock_span(&self, lock: Option<Lock>, span: Span) -> io::Result<bool> {
        self.below.try_lock_span(lock, span)
    }

    fn find_lock(&self, lock: Lock, span: Span) -> io::Result<Option<(Lock, Span)>> {
        self.below.find_lock(lock, span)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::mem::MemStore;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_overlay_reads_like_a_file_with_the_same_changes(
            begin in 0..60usize,
            steps in proptest::collection::vec((any::<bool>(), 0..50u64, 0..20usize), 0..12),
            offset in 0..70u64,
            len in 0..70usize,
        ) {
            let store = MemStore::new();
            let (below, real) = (store.root().create_file(b"a", 0o600).unwrap(), store.root().create_file(b"b", 0o600).unwrap());
            for file in [&below, &real] {
                file.write_at(&vec![0xEE; begin], 0).unwrap();
            }
            let overlay = OverlayFile::new(below.clone(), &below.stat().unwrap());
            for (n, (cut, at, len)) in steps.into_iter().enumerate() {
                for file in [&overlay as &dyn File, &*real] {
                    if cut {
                        file.set_len(at).unwrap();
                    } else {
                        file.write_at(&vec![n as u8 + 1; len], at).unwrap();
                    }
                }
            }
            prop_assert_eq!(overlay.stat().unwrap().size, real.stat().unwrap().size);
            let (mut seen, mut wanted) = (vec![9; len], vec![9; len]);
            prop_assert_eq!(overlay.read_at(&mut seen, offset).unwrap(), real.read_at(&mut wanted, offset).unwrap());
            prop_assert_eq!(seen, wanted);
            // A check took a file for blank whose only data was in a journal.
            let mut all = vec![0; 200];
            let all_len = real.read_at(&mut all, 0).unwrap();
            let after = &all[(offset as usize).min(all_len)..all_len];
            let skipped = overlay.seek(Seek::Data, offset).map_or(after.len(), |data| (data - offset) as usize);
            prop_assert!(after[..skipped].iter().all(|byte| *byte == 0), "{} bytes are skipped", skipped);
            prop_assert_eq!(below.stat().unwrap().size, begin as u64);
        }
    }
}
