//! What the records of one file make of it.
//!
//! Rules that hold here
//! * Records apply to a file whose header one of them knows, or whose header a crash has torn; to
//!   no other.
//! * Applying them again changes nothing, and says so.
//! * Where they are only shown, and not written, none is that was signed by somebody who may not
//!   write: see [`Journal::counts`].

use std::collections::BTreeMap;

use super::Journal;
use crate::format::journal::{JournalRecord, Patch, header_hash};
use crate::format::layout::SMALL_MAX;
use crate::store::{File, Timestamp};
use crate::vault::error::{Inner, is_no_space};
use crate::vault::file::mtime::set_mtime;

/// What a redo made of the records of one inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Brought up to date.
    Done,
    /// It was up to date, or has moved on.
    Nothing,
    /// It is not what they were made against.
    Refused,
}

impl Journal {
    /// Applies the records of one inode in order: all of those that follow from each other, where
    /// one of them knows the file's header. With `rewrite` a flush of it is known to have failed:
    /// the kernel's cache tells nothing of the disk.
    pub(super) fn redo(
        &self,
        file: &dyn File,
        records: &[&JournalRecord<'_>],
        rewrite: bool,
    ) -> Inner<Outcome> {
        let layout = self.keys.layout;
        let mut bytes = vec![0; layout.cipher_len(SMALL_MAX) as usize];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        let hash = (read >= layout.header()).then(|| header_hash(&bytes[..layout.header()]));
        let follows = |i: usize| records[i].base == records[i - 1].result;
        let known = match records
            .iter()
            .rposition(|r| hash.is_some_and(|hash| r.result == hash || r.base == hash))
        {
            Some(known) => known,
            None if self.keys.is_torn_header(&bytes, &records[0].file_id) => records.len() - 1,
            None => {
                return Ok(if self.is_newer(&bytes, records) {
                    Outcome::Nothing
                } else {
                    Outcome::Refused
                });
            }
        };
        let start = (1..=known).rev().find(|i| !follows(*i)).unwrap_or(0);
        let mut end = (known + 1..records.len()).find(|i| !follows(*i)).unwrap_or(records.len());
        while self.overlaid.is_some() && end > start && !self.counts(records[end - 1]) {
            end -= 1;
        }
        if end == start {
            return Ok(Outcome::Refused);
        }
        let last = records[end - 1];
        let mut changed = file.stat()?.size < last.cipher_len;
        let mut present = Vec::new();
        // Only what stays in the end: a redo of what is done already must find nothing to do, or a
        // replay that waits for that has no end.
        for (offset, bytes) in
            net_effect(records[start..end].iter().flat_map(|r| &r.patches), last.cipher_len)
        {
            present.resize(bytes.len(), 0);
            let is_there =
                file.read_at(&mut present, offset)? == present.len() && present == *bytes;
            if is_there && self.overlaid.is_some() {
                continue;
            }
            match file.write_at(bytes, offset) {
                // What reads as if it were there may be in the kernel's memory alone, after a flush
                // that failed in an earlier mount. A full copy-on-write store wants room even for
                // that; then it has to do.
                Err(e) if is_there && !rewrite && is_no_space(e.raw_os_error().unwrap_or(0)) => {}
                other => other?,
            }
            changed |= rewrite || !is_there;
        }
        let stat = file.stat()?;
        // Lengthened only: bytes on which a later record relies, perhaps in another journal, were
        // flushed before it.
        if changed && stat.size < last.cipher_len {
            file.set_len(last.cipher_len)?;
        }
        // The time can be lost where the contents are not: a store writes the inode when it likes.
        let mtime = Timestamp { secs: last.mtime.0, nanos: last.mtime.1 };
        if changed || stat.mtime != mtime {
            set_mtime(file, mtime)?;
        }
        file.sync_all()?;
        Ok(match (end < records.len(), changed) {
            (true, _) => Outcome::Refused,
            (false, true) => Outcome::Done,
            (false, false) => Outcome::Nothing,
        })
    }

    /// Cuts what stands beyond the end that an authentic header gives.
    pub(super) fn cut_residue(&self, file: &dyn File) -> Inner<()> {
        let layout = self.keys.layout;
        let mut bytes = vec![0; layout.cipher_len(SMALL_MAX) as usize];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        let header = self.keys.open_header(&bytes)?.header;
        let stat = file.stat()?;
        if stat.size > layout.cipher_len(header.size) {
            file.set_len(layout.cipher_len(header.size))?;
            set_mtime(file, stat.mtime)?;
        }
        Ok(())
    }

    /// Whether what a record leaves would be read by anybody: in a signed share its owner may have
    /// lost the right to write since. Who only reads is not shown it then in the place of what is
    /// there, which may be valid by an inventory.
    fn counts(&self, record: &JournalRecord<'_>) -> bool {
        let header = record.patches.iter().rfind(|p| p.offset == 0);
        !self.keys.signed()
            || header.is_some_and(|header| self.keys.open_header(&header.bytes).is_ok())
    }

    /// Whether the file is authentic and in a state that came after all of the records.
    fn is_newer(&self, bytes: &[u8], records: &[&JournalRecord<'_>]) -> bool {
        let version = |bytes: &[u8]| {
            let header = self.keys.open_header(bytes).ok()?.header;
            (header.public.file_id == records[0].file_id).then_some(header.version)
        };
        let recorded = records
            .iter()
            .filter_map(|r| version(&r.patches.iter().find(|p| p.offset == 0)?.bytes))
            .max();
        match (version(bytes), recorded) {
            (Some(there), Some(recorded)) => there > recorded,
            _ => false,
        }
    }
}

/// What `patches`, written one after the other to a file of `len` bytes in the end, leave of
/// themselves: pieces that do not overlap, those of the last patch last.
fn net_effect<'a>(
    patches: impl DoubleEndedIterator<Item = &'a Patch<'a>>,
    len: u64,
) -> Vec<(u64, &'a [u8])> {
    let mut covered: BTreeMap<u64, u64> = BTreeMap::new();
    let mut pieces = Vec::new();
    for patch in patches.rev() {
        let stop = (patch.offset + patch.bytes.len() as u64).min(len);
        let before = covered.range(..=patch.offset).next_back().map_or(0, |(_, to)| *to);
        let mut at = patch.offset.max(before);
        while at < stop {
            let next = covered.range(at..stop).next().map(|(from, to)| (*from, *to));
            let (gap, resume) = next.unwrap_or((stop, stop));
            if at < gap {
                covered.insert(at, gap);
                pieces.push((
                    at,
                    &patch.bytes[(at - patch.offset) as usize..(gap - patch.offset) as usize],
                ));
            }
            at = resume;
        }
    }
    pieces.reverse();
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_net_effect_is_that_of_all_patches_in_order(patches in proptest::collection::vec((0..40usize, 0..12usize), 0..12), len in 0..50usize) {
            let patch = |(i, (offset, n)): (usize, (usize, usize))| Patch { offset: offset as u64, bytes: vec![i as u8 + 1; n].into() };
            let patches: Vec<Patch> = patches.into_iter().enumerate().map(patch).collect();
            let write = |out: &mut [u8; 64], offset: u64, bytes: &[u8]| out[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            let (mut all, mut net) = ([0; 64], [0; 64]);
            patches.iter().for_each(|p| write(&mut all, p.offset, &p.bytes));
            all[len..].fill(0);
            let mut written = 0;
            for (offset, bytes) in net_effect(patches.iter(), len as u64) {
                write(&mut net, offset, bytes);
                written += bytes.len();
            }
            prop_assert_eq!(all, net);
            prop_assert_eq!(written, net.iter().filter(|b| **b != 0).count());
        }
    }
}
