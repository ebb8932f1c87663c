//! The contents of files: authenticated in parallel; damage is located to the segment.
//!
//! Rules that hold here
//! * A file is read in large pieces, several at a time. Only a damaged piece is read again, chunk
//!   by chunk and segment by segment.
//! * Holes are never read: the authenticated tree has a hash of zeros for them.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use crate::format::layout::{FANOUT, Layout, SEGMENT};
use crate::store::{File, Seek};
use crate::vault::core::Core;
use crate::vault::error::{Fault, Inner};
use crate::vault::file::OpenFile;

/// Plain bytes that one thread verifies at a time.
const PIECE: u64 = 4 << 20;
/// Plain bytes between two progress reports.
const BATCH: u64 = 64 << 20;

/// Size in bytes of one read in the search for a byte that is not zero.
const BLANK_PART: usize = 1 << 18;

/// Damage of a file's contents.
pub(crate) struct Damage {
    /// The first fault.
    pub what: Fault,
    pub bad: Vec<Range<u64>>,
}

/// A file to be verified.
pub(crate) struct Job {
    pub open: Arc<OpenFile>,
    pub size: u64,
    damage: Option<Damage>,
}

impl Job {
    pub fn new(open: Arc<OpenFile>) -> Job {
        let size = open.state.read().size;
        Job { open, size, damage: None }
    }

    /// Returns the damage found.
    pub fn into_damage(self) -> Option<Damage> {
        self.damage
    }

    fn add(&mut self, damage: Damage) {
        match &mut self.damage {
            None => self.damage = Some(damage),
            Some(before) => before.bad.extend(damage.bad),
        }
    }
}

/// Verifies all of `jobs`; calls `verified` with the number of further bytes that are good.
pub(crate) fn verify(core: &Core, jobs: &mut [Job], verified: &mut dyn FnMut(u64)) {
    let mut batch: Vec<(usize, Range<u64>)> = Vec::new();
    let mut waiting = 0;
    for i in 0..jobs.len() {
        if jobs[i].open.state.read().small.is_some() {
            // The contents are sealed with the header, which was already opened.
            verified(jobs[i].size);
            continue;
        }
        let mut at = 0;
        while at < jobs[i].size {
            // Skips a hole if the tree has one here; if the tree is damaged, the read reports it.
            let open = &jobs[i].open;
            match open.state.read().seek(&*open.file(), &core.context(), at, Seek::Data) {
                Ok(data) => at = data.max(at),
                Err(Fault::Os(libc::ENXIO)) => break,
                Err(_) => {}
            }
            let end = ((at / PIECE + 1) * PIECE).min(jobs[i].size);
            waiting += end - at;
            batch.push((i, at..end));
            at = end;
            if waiting >= BATCH {
                run(core, jobs, &mut batch, verified);
                waiting = 0;
            }
        }
    }
    run(core, jobs, &mut batch, verified);
    for job in jobs {
        if let Some(damage) = &mut job.damage {
            damage.bad = merge(std::mem::take(&mut damage.bad));
        }
    }
}

fn run(
    core: &Core,
    jobs: &mut [Job],
    batch: &mut Vec<(usize, Range<u64>)>,
    verified: &mut dyn FnMut(u64),
) {
    let shared: &[Job] = jobs;
    let longest =
        batch.iter().map(|(_, range)| (range.end - range.start) as usize).max().unwrap_or(0);
    let buffer = || zeroize::Zeroizing::new(vec![0; longest]);
    let one = |buf: &mut zeroize::Zeroizing<Vec<u8>>, (i, range): (usize, Range<u64>)| {
        let (bytes, damage) = piece(core, &shared[i].open, range, buf);
        (i, bytes, damage)
    };
    let results: Vec<(usize, u64, Option<Damage>)> = if batch.len() < 2 {
        let mut buf = buffer();
        batch.drain(..).map(|part| one(&mut buf, part)).collect()
    } else {
        batch.par_drain(..).map_init(buffer, one).collect()
    };
    let mut bytes = 0;
    for (i, good, damage) in results {
        bytes += good;
        if let Some(damage) = damage {
            jobs[i].add(damage);
        }
    }
    verified(bytes);
}

/// Verifies one range; returns the number of good bytes.
fn piece(core: &Core, open: &OpenFile, range: Range<u64>, buf: &mut [u8]) -> (u64, Option<Damage>) {
    let len = (range.end - range.start) as usize;
    match open.read(&core.context(), range.start, &mut buf[..len]) {
        Ok(read) => (read as u64, None),
        Err(what) => {
            let bad = merge(narrow(core, open, range.clone(), buf));
            let lost: u64 = bad.iter().map(|r| r.end - r.start).sum();
            // A fault that is gone on the second read was caused by a write in progress.
            (range.end - range.start - lost, (!bad.is_empty()).then_some(Damage { what, bad }))
        }
    }
}

/// Returns the parts of `range` that cannot be read.
fn narrow(core: &Core, open: &OpenFile, range: Range<u64>, buf: &mut [u8]) -> Vec<Range<u64>> {
    let layout = core.keys.layout;
    let mut bad = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let k = at / layout.chunk();
        let end = ((k + 1) * layout.chunk()).min(range.end);
        if let Some(lost) = lost_chunks(core, open, k) {
            let to = lost.end.saturating_mul(layout.chunk()).clamp(end, range.end);
            bad.push(at..to);
            at = to;
            continue;
        }
        while at < end {
            let to = ((at / SEGMENT as u64 + 1) * SEGMENT as u64).min(end);
            if open.read(&core.context(), at, &mut buf[..(to - at) as usize]).is_err() {
                bad.push(at..to);
            }
            at = to;
        }
    }
    bad
}

/// Returns the chunks around `k` that cannot be read because their table, or an index block above
/// them, cannot be authenticated.
fn lost_chunks(core: &Core, open: &OpenFile, k: u64) -> Option<Range<u64>> {
    let state = open.state.read();
    let context = core.context();
    let file = open.file();
    let tree = state.tree(&*file, &context);
    // From the top: a block is read by the hash in the block above it.
    for level in (1..=Layout::levels(tree.root.chunks)).rev() {
        let span = FANOUT.pow(level.into());
        if tree.block(level, k / span).is_err() {
            return Some(k / span * span..(k / span + 1).saturating_mul(span));
        }
    }
    match state.is_chunk_readable(&*open.file(), &context, k) {
        Ok(()) => None,
        Err(_) => Some(k..k + 1),
    }
}

fn merge(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|r| r.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Returns the length that the ciphertext should have, if the store has bytes beyond it.
pub(crate) fn surplus(core: &Core, open: &OpenFile) -> Inner<Option<u64>> {
    let state = open.state.read();
    let expected = core.keys.layout.cipher_len(state.size);
    Ok((state.changes.is_none() && open.file().stat()?.size > expected).then_some(expected))
}

/// Returns whether a file of the store has no byte but zeros. XFS keeps the length of a file whose
/// bytes a power cut has lost.
pub(crate) fn is_blank(file: &dyn File) -> Inner<bool> {
    let mut buf = vec![0; BLANK_PART];
    let mut at = 0;
    loop {
        // Holes are skipped: a sparse file can be of any length.
        at = match file.seek(Seek::Data, at) {
            Ok(data) => data,
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => return Ok(true),
            Err(e) => return Err(e.into()),
        };
        let read = file.read_at(&mut buf, at)?;
        if read == 0 {
            return Ok(true);
        }
        if buf[..read].iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        assert_eq!(merge(vec![8..12, 0..4, 4..6, 20..21, 11..13]), vec![0..6, 8..13, 20..21]);
        assert_eq!(merge(Vec::new()), Vec::<Range<u64>>::new());
    }
}
