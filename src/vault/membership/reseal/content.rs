//! Files: their headers, and in an eager pass their contents, whole chunks at a time.
//!
//! Rules that hold here
//! * A file is processed through the table of open files, under its lock, in parts; the lock is
//!   released between commits. Programs read and write meanwhile, and after a crash each part is in
//!   its old or its new state.
//! * In a signed share an eager pass reads the tables themselves: a header's claim about the epochs
//!   of its chunks is not signed. A count relies on the header.
//! * The time of a file stays the same, except in a synced share: there the last commit moves it by
//!   two seconds. Without that, sync tools would never send the new bytes, and would keep a mixture
//!   that they have read during the pass.
//! * A file that is not durable yet is made durable first: partly sealed again in place, it could
//!   be lost in a crash that it would otherwise have survived.

use std::sync::Arc;

use super::pass::{Pass, Work};
use crate::format::header::PublicHeader;
use crate::format::layout::SMALL_MAX;
use crate::store::{Access, Dir, Stat};
use crate::vault::core::Core;
use crate::vault::durability::commit::Durability;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::file::OpenFile;
use crate::vault::types::{NodeId, OpenFlags};

/// The epochs in the header of a file.
struct Epochs {
    /// The header is sealed under an epoch that has ended.
    old: bool,
    /// The contents may belong to older epochs.
    contents: bool,
    small: Option<u16>,
}

impl Core {
    /// Returns the epochs in a file's header, which is verified.
    fn epochs(&self, bytes: &[u8]) -> Inner<Epochs> {
        let header = self.keys.open_header(bytes)?.header;
        Ok(self.epochs_of(&header.public, header.oldest_epoch))
    }

    fn epochs_of(&self, public: &PublicHeader, oldest: u32) -> Epochs {
        let current = self.keys.current();
        let old = (public.epoch, public.commitment) != (current.number, current.commitment);
        let contents = old || oldest != current.number || self.keys.numbered(oldest).count() != 1;
        Epochs { old, contents, small: public.small }
    }

    fn header_bytes(&self, file: &dyn crate::store::File) -> Inner<Vec<u8>> {
        let mut bytes = vec![0; self.keys.layout.header() + SMALL_MAX as usize];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(bytes)
    }
}

impl Pass<'_> {
    pub fn file(
        &mut self,
        node: NodeId,
        dir: &Arc<dyn Dir>,
        stored: &[u8],
        stat: &Stat,
    ) -> Inner<()> {
        let core = self.core;
        let open = core.open.files.lock().get(&node).map(|shared| shared.file.clone());
        let bytes = match &open {
            // Under the lock, so not in the middle of a commit.
            Some(open) => {
                let _state = open.state.read();
                core.header_bytes(&*open.file())?
            }
            None => {
                core.header_bytes(&*core.journal.overlay(dir.open_file(stored, Access::Read)?)?)?
            }
        };
        if bytes.is_empty() {
            return if open.is_some() {
                Ok(())
            } else {
                Err(Fault::Corrupt(Corruption::Other("is empty: it was never committed")))
            };
        }
        let epochs = core.epochs(&bytes)?;
        match self.work {
            Work::Count => self.count(node, &epochs, stat),
            Work::Eager if epochs.contents || self.has_older(node, &epochs)? => {
                self.reseal(node, dir, stored, stat)
            }
            _ if epochs.old => self.reseal(node, dir, stored, stat),
            _ => Ok(()),
        }
    }

    fn count(&mut self, node: NodeId, epochs: &Epochs, stat: &Stat) -> Inner<()> {
        self.found.headers += u64::from(epochs.old);
        let older = match epochs.small {
            Some(len) => {
                self.found.bytes_total += u64::from(len);
                if epochs.old { u64::from(len) } else { 0 }
            }
            None if epochs.contents => {
                let flags = OpenFlags { read: true, ..OpenFlags::default() };
                let open = self.core.acquire(node, flags)?;
                let counted = self.count_chunks(&open);
                self.core.release(&open, flags)?;
                let (older, total) = counted?;
                self.found.bytes_total += total;
                older
            }
            None => {
                self.found.bytes_total +=
                    self.core.keys.layout.plain_size(stat.size).min(stat.blocks * 512);
                0
            }
        };
        self.found.bytes += older;
        self.found.files += u64::from(older > 0);
        self.done.files += 1;
        (self.progress)(&self.done);
        Ok(())
    }

    /// Returns whether a file has chunks of older epochs that its header does not list: that part
    /// of the header is not signed, so every reader could have changed it.
    fn has_older(&self, node: NodeId, epochs: &Epochs) -> Inner<bool> {
        if !self.core.keys.signed() || epochs.small.is_some() || self.core.keys.older().is_empty() {
            return Ok(false);
        }
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let open = self.core.acquire(node, flags)?;
        let counted = self.count_chunks(&open);
        self.core.release(&open, flags)?;
        Ok(counted?.0 > 0)
    }

    /// Returns the numbers of bytes of older epochs, and of all epochs.
    fn count_chunks(&self, open: &OpenFile) -> Inner<(u64, u64)> {
        let context = self.core.context();
        let (mut older, mut total, mut k) = (0, 0, 0);
        loop {
            let state = open.state.read();
            if k >= state.chunks(&context.keys.layout) {
                return Ok((older, total));
            }
            let look = state.summary(&*open.file(), &context, k)?;
            total += look.bytes;
            older += if look.older { look.bytes } else { 0 };
            k = look.next;
        }
    }

    fn reseal(
        &mut self,
        node: NodeId,
        dir: &Arc<dyn Dir>,
        stored: &[u8],
        stat: &Stat,
    ) -> Inner<()> {
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let open = self.acquire(node, dir, stored, stat, flags)?;
        let sealed = self.reseal_open(&open);
        let step = self.step();
        let released = self.core.release(&open, flags);
        drop(step);
        let bytes = sealed?;
        released?;
        self.done.files += u64::from(bytes > 0);
        (self.progress)(&self.done);
        Ok(())
    }

    /// Opens a file for writing, even if its own mode forbids that to its owner.
    fn acquire(
        &self,
        node: NodeId,
        dir: &Arc<dyn Dir>,
        stored: &[u8],
        stat: &Stat,
        flags: OpenFlags,
    ) -> Inner<Arc<OpenFile>> {
        match dir.open_file(stored, Access::ReadWrite) {
            Ok(_) => return self.core.acquire(node, flags),
            Err(e) if e.raw_os_error() != Some(libc::EACCES) => return Err(e.into()),
            Err(_) => {}
        }
        if self.core.open.files.lock().contains_key(&node) {
            return Err(Fault::Os(libc::EACCES)); // open for reading only
        }
        dir.chmod(stored, stat.perm | 0o200)?;
        let open = self.core.acquire(node, flags);
        dir.chmod(stored, stat.perm)?;
        open
    }

    /// Returns how many bytes were sealed again.
    fn reseal_open(&mut self, open: &Arc<OpenFile>) -> Inner<u64> {
        let core = self.core;
        let context = core.context();
        let target = {
            let _step = self.step()?;
            let mut state = core.mode.writers.state_to_change(core, open)?;
            state.check_latched()?;
            if !core.has_name(open) {
                return Ok(0);
            }
            if state.changes.is_some() || state.phase.is_unflushed() {
                core.commit_state(open, &mut state, Durability::Synced)?;
            }
            core.keys.current().number
        };
        let (mut k, mut bytes) = (0, 0);
        loop {
            let step = self.step()?;
            let mut state = core.mode.writers.state_to_change(core, open)?;
            state.mtime.hold(&*open.file())?; // the contents do not change
            let chunks =
                if self.work == Work::Eager { state.chunks(&context.keys.layout) } else { 0 };
            let before = bytes;
            while k < chunks && !state.is_full() {
                let look = state.renew(&*open.file(), &context, k)?;
                bytes += if look.older { look.bytes } else { 0 };
                k = look.next;
            }
            let done = k >= chunks;
            if done && (self.work == Work::Eager || state.small.is_some()) {
                // Later writes were sealed under this epoch or a newer one.
                state.oldest_epoch = target;
                bytes += state.small.as_ref().map_or(0, |data| data.len() as u64);
            }
            if done && core.mode.synced {
                state.mtime.advance();
            }
            if done || bytes > before {
                state.mark();
                core.commit_state(open, &mut state, Durability::Ordered)?;
            }
            drop(state);
            drop(step);
            self.done.bytes += bytes - before;
            (self.progress)(&self.done);
            if done {
                return Ok(bytes);
            }
        }
    }
}
