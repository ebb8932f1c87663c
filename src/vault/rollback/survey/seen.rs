//! What a comparison has seen of each file.
//!
//! Rules that hold here
//! * Memory is bounded, however many files there are: what is more goes to files without a name
//!   beside the database, in sorted runs. Runs of one size are merged, as in a log-structured merge
//!   tree, so that a lookup reads few of them.
//! * The runs are sealed like the database.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::rollback::blocks::Sealer;
use crate::vault::rollback::rows::{ID, Id};

/// Number of ids that are held in memory: about 6 MiB.
const RECENT_MAX: usize = 1 << 16;
/// Number of runs of one level that are merged into one of the next.
const FAN_IN: usize = 8;
/// Number of ids in a block of a run, and the length of each in bytes.
const BLOCK: usize = 1024;
const RECORD: usize = ID + 17;
const SEALED: &[u8] = b"seen";

/// How a file was seen in a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The highest version.
    pub version: u64,
    /// The highest version under a name at which the file is remembered, but no higher version of
    /// it; `None` if there is no such name.
    pub kept: Option<u64>,
}

impl Seen {
    fn with(self, other: Seen) -> Seen {
        Seen { version: self.version.max(other.version), kept: self.kept.max(other.kept) }
    }
}

/// All that was seen: files by their ids, directories by the hashes of their tags and of the tags
/// that they had before renames.
pub(super) struct AllSeen {
    recent: HashMap<Id, Seen>,
    runs: Vec<Run>,
    sealer: Arc<Sealer>,
    /// Directory for the runs.
    folder: PathBuf,
    recent_max: usize,
}

impl AllSeen {
    pub fn new(sealer: Arc<Sealer>, folder: PathBuf) -> AllSeen {
        let recent_max = RECENT_MAX;
        AllSeen { recent: HashMap::new(), runs: Vec::new(), sealer, folder, recent_max }
    }

    /// Adds what was seen under one name.
    pub fn add(&mut self, id: Id, seen: Seen) -> Inner<()> {
        if self.recent.len() >= self.recent_max && !self.recent.contains_key(&id) {
            self.spill()?;
        }
        match self.recent.entry(id) {
            Entry::Occupied(mut old) => *old.get_mut() = old.get().with(seen),
            Entry::Vacant(vacant) => drop(vacant.insert(seen)),
        }
        Ok(())
    }

    /// Returns what was seen under any name so far.
    pub fn get(&self, id: &Id) -> Inner<Option<Seen>> {
        let mut all = self.recent.get(id).copied();
        for run in &self.runs {
            if let Some(seen) = run.get(id, &self.sealer)? {
                all = Some(all.map_or(seen, |all| all.with(seen)));
            }
        }
        Ok(all)
    }

    /// Moves what is in memory to a run.
    fn spill(&mut self) -> Inner<()> {
        let mut sorted: Vec<(Id, Seen)> = self.recent.drain().collect();
        sorted.sort_unstable_by_key(|(id, _)| *id);
        let mut writer = self.writer(0)?;
        sorted.into_iter().try_for_each(|(id, seen)| writer.push(id, seen))?;
        let run = writer.finish()?;
        self.runs.push(run);
        while let Some(last) = self.runs.len().checked_sub(FAN_IN)
            && self.runs[last].level == self.runs[self.runs.len() - 1].level
        {
            let merged = self.merge(last)?;
            self.runs.truncate(last);
            self.runs.push(merged);
        }
        Ok(())
    }

    /// Merges the runs from `first` on.
    fn merge(&self, first: usize) -> Inner<Run> {
        let runs = &self.runs[first..];
        let mut inputs = runs.iter().map(Input::new).collect::<Vec<_>>();
        let mut writer = self.writer(runs[0].level + 1)?;
        loop {
            let mut lowest: Option<(Id, Seen)> = None;
            for input in &mut inputs {
                lowest = match (lowest, input.peek(&self.sealer)?) {
                    (None, next) => next,
                    (Some(low), Some(next)) if next.0 == low.0 => Some((low.0, low.1.with(next.1))),
                    (Some(low), Some(next)) if next.0 < low.0 => Some(next),
                    (low, _) => low,
                };
            }
            let Some((id, seen)) = lowest else { break };
            for input in &mut inputs {
                if input.peek(&self.sealer)?.is_some_and(|next| next.0 == id) {
                    input.at += 1;
                }
            }
            writer.push(id, seen)?;
        }
        writer.finish()
    }

    fn writer(&self, level: u32) -> Inner<Writer<'_>> {
        let file = BufWriter::new(tempfile::tempfile_in(&self.folder)?);
        let block = Vec::with_capacity(BLOCK * RECORD);
        Ok(Writer { file, level, firsts: Vec::new(), ends: vec![0], block, sealer: &self.sealer })
    }
}

/// Sorted ids in a file.
struct Run {
    file: File,
    /// 0 for what was in memory, one more for each merge.
    level: u32,
    /// The first id of each block.
    firsts: Vec<Id>,
    /// Where the blocks begin, and the last one ends.
    ends: Vec<u64>,
}

impl Run {
    fn get(&self, id: &Id, sealer: &Sealer) -> Inner<Option<Seen>> {
        let Some(n) = self.firsts.partition_point(|first| first <= id).checked_sub(1) else {
            return Ok(None);
        };
        let block = self.block(n, sealer)?;
        Ok(block.binary_search_by_key(id, |(id, _)| *id).ok().map(|at| block[at].1))
    }

    fn block(&self, n: usize, sealer: &Sealer) -> Inner<Vec<(Id, Seen)>> {
        let mut sealed = vec![0; (self.ends[n + 1] - self.ends[n]) as usize];
        self.file.read_exact_at(&mut sealed, self.ends[n])?;
        let plain = sealer.open(SEALED, &sealed);
        let plain = plain.ok_or(Fault::Corrupt(Corruption::Other("was changed while in use")))?;
        Ok(plain.chunks_exact(RECORD).map(decode).collect())
    }
}

/// Reads a run from its beginning.
struct Input<'a> {
    run: &'a Run,
    next_block: usize,
    block: Vec<(Id, Seen)>,
    at: usize,
}

impl<'a> Input<'a> {
    fn new(run: &'a Run) -> Input<'a> {
        Input { run, next_block: 0, block: Vec::new(), at: 0 }
    }

    fn peek(&mut self, sealer: &Sealer) -> Inner<Option<(Id, Seen)>> {
        if self.at == self.block.len() && self.next_block < self.run.firsts.len() {
            self.block = self.run.block(self.next_block, sealer)?;
            (self.next_block, self.at) = (self.next_block + 1, 0);
        }
        Ok(self.block.get(self.at).copied())
    }
}

struct Writer<'a> {
    file: BufWriter<File>,
    level: u32,
    firsts: Vec<Id>,
    ends: Vec<u64>,
    /// The block that is being filled.
    block: Vec<u8>,
    sealer: &'a Sealer,
}

impl Writer<'_> {
    /// Appends an id, which must be higher than the last one.
    fn push(&mut self, id: Id, seen: Seen) -> Inner<()> {
        if self.block.is_empty() {
            self.firsts.push(id);
        }
        self.block.extend_from_slice(&id);
        self.block.extend_from_slice(&seen.version.to_le_bytes());
        self.block.push(u8::from(seen.kept.is_some()));
        self.block.extend_from_slice(&seen.kept.unwrap_or(0).to_le_bytes());
        if self.block.len() == BLOCK * RECORD { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Inner<()> {
        let sealed = self.sealer.seal(SEALED, &self.block);
        self.file.write_all(&sealed)?;
        self.ends.push(self.ends[self.ends.len() - 1] + sealed.len() as u64);
        self.block.clear();
        Ok(())
    }

    fn finish(mut self) -> Inner<Run> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        let file = self.file.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        Ok(Run { file, level: self.level, firsts: self.firsts, ends: self.ends })
    }
}

fn decode(record: &[u8]) -> (Id, Seen) {
    let number = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("8 bytes"));
    let kept = (record[ID + 8] == 1).then(|| number(ID + 9));
    (record[..ID].try_into().expect("an id"), Seen { version: number(ID), kept })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::Random;
    use crate::vault::OsRandom;

    /// A comparison of a million files held 107 bytes in memory for each of them, and the daemon of
    /// a large vault grew by that.
    #[test]
    fn what_was_seen_takes_bounded_memory_and_is_found() {
        let folder = tempfile::tempdir().expect("a directory");
        let sealer = Arc::new(Sealer::for_tests());
        let mut all = AllSeen::new(sealer, folder.path().to_owned());
        all.recent_max = 100;
        let mut expected = HashMap::new();
        for n in 0..20_000_u64 {
            // Of three names in a row two belong to one file.
            let mut id = [0; ID];
            id[..8].copy_from_slice(
                &(n - n % 3 / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes(),
            );
            let seen = Seen { version: n % 7, kept: (n % 5 > 1).then_some(n % 5) };
            all.add(id, seen).expect("added");
            let old = expected.entry(id).or_insert(seen);
            *old = old.with(seen);
            assert!(all.recent.len() <= 100);
        }
        assert!(all.runs.len() < 4 * FAN_IN, "{} runs", all.runs.len());
        assert!(all.runs.iter().any(|run| run.level > 0 && run.firsts.len() > 1));
        for (id, seen) in &expected {
            assert_eq!(all.get(id).expect("read"), Some(*seen));
            let mut other = *id;
            OsRandom.fill(&mut other[8..]);
            if other != *id {
                assert_eq!(all.get(&other).expect("read"), None);
            }
        }
        assert_eq!(all.get(&[0xff; ID]).expect("read"), None);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a directory").count(), 0);
    }
}
