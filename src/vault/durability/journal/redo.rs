//! Applies the chain of redo records of one file.
//!
//! Rules that hold here
//! * Records apply only to a file whose header matches one of them, or is torn and has a part of the
//!   header that one of them leaves.
//! * Applying them again changes nothing. It is reported as no change, except by [`Apply::Again`],
//!   which writes all bytes again.
//! * Beside other daemons the new header is written and flushed before the rest. A redo that ends
//!   midway then leaves a file that only its own records match, and those that continue them. Under the
//!   former header, another daemon's record could match, or another daemon could rely on having read
//!   the file as whole.
//! * A record that continues those of an earlier journal was made for a file that was flushed as a
//!   whole. So there is never a file with its header, of which the earlier journal has to complete
//!   something.
//! * In a read-only vault, a record is not shown if its signer may no longer write: see
//!   [`Journal::counts`].

use std::collections::BTreeMap;

use super::turn::Apply;
use super::{Journal, birth};
use crate::format::header::NONCE_AT;
use crate::format::journal::{JournalRecord, Patch, header_hash};
use crate::format::layout::SMALL_MAX;
use crate::store::{File, Timestamp};
use crate::vault::error::{Fault, Inner, is_no_space};
use crate::vault::file::mtime::set_mtime;

/// Length of the parts in which a torn header is compared, from the nonce on. At least 8 bytes of each
/// are random or sealed.
const PART: usize = 16;

/// Outcome of a redo of the records of one inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The file was brought up to date.
    Done,
    /// The file was up to date.
    Nothing,
    /// The file is authentic, and in a later state than the records.
    Newer,
    /// The file is not the one the records were made against.
    Refused,
}

/// What a file is to a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// The one that it was made for, or a copy of that.
    Its,
    /// That is not certain: the chain tells no birth time, and relies on bytes that the file lacks.
    Perhaps,
    /// Another file in a former state: somebody has put a former version there.
    Former,
    /// A file in a later state.
    Newer,
    /// None of these.
    Other,
}

impl Journal {
    /// Applies a chain in order, if one of its records matches the file's header.
    ///
    /// # Errors
    /// Those of [`Journal::in_turn`].
    pub(super) fn redo(
        &self,
        file: &dyn File,
        records: &[&JournalRecord<'_>],
        when: Apply,
    ) -> Inner<Outcome> {
        self.in_turn(file, when, || {
            let bytes = self.beginning(file)?;
            if self.knows(&bytes, records) {
                self.write(file, records, when == Apply::Again)
            } else if self.is_newer(&bytes, records) {
                Ok(Outcome::Newer)
            } else {
                Ok(Outcome::Refused)
            }
        })
    }

    /// Writes a chain to a file that it matches. `rewrite`: also those bytes that are there already.
    fn write(
        &self,
        file: &dyn File,
        records: &[&JournalRecord<'_>],
        rewrite: bool,
    ) -> Inner<Outcome> {
        let mut end = records.len();
        while self.overlaid.is_some() && end > 0 && !self.counts(records[end - 1]) {
            end -= 1;
        }
        if end == 0 {
            return Ok(Outcome::Refused);
        }
        let last = records[end - 1];
        let mut changed = file.stat()?.size < last.cipher_len;
        // Only the net effect is written: a redo of applied records must find nothing to do, or a
        // replay that waits for that never ends.
        let mut pieces =
            net_effect(records[..end].iter().flat_map(|r| &r.patches), last.cipher_len);
        if self.is_beside_others() {
            let (header, rest): (Vec<_>, _) =
                pieces.into_iter().partition(|(offset, _)| *offset == 0);
            changed |= self.write_pieces(file, &header, rewrite)?;
            if !rest.is_empty() {
                file.sync_data()?;
                self.lease.show_life();
                // The flush may have lasted as long as the machine was suspended, and the lease be lost.
                if self.header_hash(file)? != Some(last.result) {
                    return Err(Fault::Os(libc::ESTALE));
                }
            }
            pieces = rest;
        }
        changed |= self.write_pieces(file, &pieces, rewrite)?;
        let stat = file.stat()?;
        // The file is only lengthened: bytes on which a later record relies, perhaps in another
        // journal, were flushed before it.
        if changed && stat.size < last.cipher_len {
            file.set_len(last.cipher_len)?;
        }
        // The time can be lost even if the contents are not: the store writes the inode when it
        // likes. But another daemon may have set it.
        let mtime = Timestamp { secs: last.mtime.0, nanos: last.mtime.1 };
        if changed || stat.mtime != mtime && !self.is_beside_others() {
            set_mtime(file, mtime)?;
        }
        file.sync_all()?;
        Ok(match (end < records.len(), changed) {
            (true, _) => Outcome::Refused,
            (false, true) => Outcome::Done,
            (false, false) => Outcome::Nothing,
        })
    }

    /// Writes pieces of a file. Returns whether one of them was not there, or all were to be
    /// rewritten.
    fn write_pieces(&self, file: &dyn File, pieces: &[(u64, &[u8])], rewrite: bool) -> Inner<bool> {
        let (mut changed, mut present) = (false, Vec::new());
        for (offset, bytes) in pieces {
            present.resize(bytes.len(), 0);
            let is_there =
                file.read_at(&mut present, *offset)? == present.len() && present == *bytes;
            if is_there && self.overlaid.is_some() {
                continue;
            }
            match file.write_at(bytes, *offset) {
                // After a flush that failed in an earlier mount, bytes that read as present may be
                // in the page cache alone, so they are written again. A full copy-on-write store
                // needs space even for that; then the bytes as read must do.
                Err(e) if is_there && !rewrite && is_no_space(e.raw_os_error().unwrap_or(0)) => {}
                other => other?,
            }
            changed |= rewrite || !is_there;
        }
        Ok(changed)
    }

    /// Returns the bytes of a file that can belong to its header.
    pub(super) fn beginning(&self, file: &dyn File) -> Inner<Vec<u8>> {
        let mut bytes = vec![0; self.keys.layout.cipher_len(SMALL_MAX) as usize];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Returns the hash of a file's header; `None` if the file is shorter.
    fn header_hash(&self, file: &dyn File) -> Inner<Option<[u8; 32]>> {
        let mut header = vec![0; self.keys.layout.header()];
        let read = file.read_at(&mut header, 0)?;
        Ok((read == header.len()).then(|| header_hash(&header)))
    }

    /// Returns whether a record matches a file with these first bytes. A header that a crash has torn
    /// matches a record whose header is in it in part: another daemon's commit can have torn it.
    fn knows(&self, bytes: &[u8], records: &[&JournalRecord<'_>]) -> bool {
        let Some(header) = bytes.get(..self.keys.layout.header()) else { return false };
        let hash = header_hash(header);
        let is_in_part = |r: &&JournalRecord<'_>| {
            let result = r.patches.iter().rfind(|patch| patch.offset == 0);
            result.is_some_and(|result| shares_a_part(header, &result.bytes))
        };
        records.iter().any(|r| r.result == hash || r.base == hash)
            || self.keys.is_torn_header(bytes, &records[0].file_id)
                && records.iter().any(is_in_part)
    }

    /// Returns what a file is to a chain.
    pub(super) fn fit(&self, file: &dyn File, records: &[&JournalRecord<'_>]) -> Inner<Fit> {
        let (bytes, born) = (self.beginning(file)?, records[0].born);
        if !self.knows(&bytes, records) {
            return Ok(if self.is_newer(&bytes, records) { Fit::Newer } else { Fit::Other });
        }
        let is_its = born.is_some() && born == birth(&file.stat_but_times()?);
        Ok(match is_its || self.is_begun(file, &bytes, records)? {
            true => Fit::Its,
            false if born.is_some() => Fit::Former,
            false if lacks_bytes(file, records)? => Fit::Perhaps,
            false => Fit::Its,
        })
    }

    /// Returns whether a file that the records match has a part of what they write: it is the file
    /// that they were made for, or a copy of it, and perhaps half written. The parts are those of
    /// segments, which are sealed anew for each record.
    fn is_begun(
        &self,
        file: &dyn File,
        bytes: &[u8],
        records: &[&JournalRecord<'_>],
    ) -> Inner<bool> {
        let layout = &self.keys.layout;
        let hash = header_hash(&bytes[..layout.header()]);
        let done = records.iter().rposition(|r| r.result == hash).map_or(0, |last| last + 1);
        if done == records.len() || self.keys.is_torn_header(bytes, &records[0].file_id) {
            return Ok(true);
        }
        let is_segment = |patch: &&Patch<'_>| {
            let plain = layout.plain_size(patch.offset + 1).checked_sub(1);
            plain.map(|at| layout.locate(at)).is_some_and(|(chunk, segment)| {
                layout.segment_offset(chunk, segment) == patch.offset
            })
        };
        let patches = records[done..].iter().flat_map(|record| &record.patches);
        for patch in patches.filter(is_segment) {
            let mut there = vec![0; patch.bytes.len()];
            let read = file.read_at(&mut there, patch.offset)?;
            let (there, parts) = (there[..read].chunks_exact(PART), patch.bytes.chunks_exact(PART));
            if there.zip(parts).any(|(there, part)| there == part) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Cuts the bytes beyond the end that an authentic header gives.
    pub(super) fn cut_residue(&self, file: &dyn File) -> Inner<()> {
        let layout = self.keys.layout;
        let bytes = self.beginning(file)?;
        let header = self.keys.open_header(&bytes)?.header;
        let stat = file.stat()?;
        if stat.size > layout.cipher_len(header.size) {
            file.set_len(layout.cipher_len(header.size))?;
            set_mtime(file, stat.mtime)?;
        }
        Ok(())
    }

    /// Returns whether a reader would accept the file that a record leaves. In a signed share, the
    /// record's owner may have lost the right to write since. A read-only vault must not show its
    /// record in place of the stored file, which may be valid by an inventory.
    fn counts(&self, record: &JournalRecord<'_>) -> bool {
        let header = record.patches.iter().rfind(|p| p.offset == 0);
        !self.keys.signed()
            || header.is_some_and(|header| self.keys.open_header(&header.bytes).is_ok())
    }

    /// Returns whether the file is authentic and in a state later than all of the records.
    pub(super) fn is_newer(&self, bytes: &[u8], records: &[&JournalRecord<'_>]) -> bool {
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

/// Returns whether a chain relies on bytes beyond the end of a file that it does not contain.
fn lacks_bytes(file: &dyn File, records: &[&JournalRecord<'_>]) -> Inner<bool> {
    let patches = records.iter().flat_map(|record| &record.patches);
    let mut places: Vec<_> = patches.map(|p| (p.offset, p.offset + p.bytes.len() as u64)).collect();
    places.sort_unstable();
    let mut end = file.stat()?.size;
    for (from, to) in places {
        if from <= end {
            end = end.max(to);
        }
    }
    Ok(records.last().is_some_and(|last| end < last.cipher_len))
}

/// Returns whether two headers agree in a part that differs in any two headers. A disk tears a header
/// at 512 bytes; a daemon or a store that dies may do so elsewhere.
fn shares_a_part(one: &[u8], other: &[u8]) -> bool {
    let parts = one[NONCE_AT..].chunks_exact(PART);
    parts.zip(other.get(NONCE_AT..).unwrap_or_default().chunks_exact(PART)).any(|(a, b)| a == b)
}

/// Returns the net effect of `patches`, written one after the other to a file whose final length is
/// `len` bytes: pieces that do not overlap, those of the last patch last.
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
