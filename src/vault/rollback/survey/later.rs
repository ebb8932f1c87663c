//! Lists of what a comparison comes back to later: sub-directories, and deviations.
//!
//! Rules that hold here
//! * Memory is bounded, however long a list is: the storage host controls how long. All but its
//!   last part is in a file without a name beside the database.
//! * That file is sealed like the database.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::rollback::blocks::Sealer;
use crate::vault::rollback::rows::Take;

/// Bytes of memory that a part of a list takes. Up to two parts are in memory.
const PART: usize = 1 << 20;
const SEALED: &[u8] = b"later";

/// What can be in a list.
pub(super) trait Later: Sized {
    /// Returns the bytes of memory that it takes behind `before` in a list.
    fn weight(&self, before: Option<&Self>) -> usize;

    /// Appends its encoding. `before` is the one that is encoded before it.
    fn put(&self, before: Option<&Self>, out: &mut Vec<u8>);

    /// Takes what [`Later::put`] has appended.
    fn take(before: Option<&Self>, from: &mut Take<'_>) -> Option<Self>;
}

/// A list: the last is taken first, or the first one first.
pub(super) struct List<T> {
    /// The last ones.
    recent: Vec<T>,
    /// Their weight.
    weight: usize,
    /// The parts before them.
    file: Option<File>,
    /// Where these begin, and the last one ends.
    ends: Vec<u64>,
    sealer: Arc<Sealer>,
    /// Directory for the file.
    folder: PathBuf,
    part: usize,
    len: usize,
}

impl<T: Later> List<T> {
    pub fn new(sealer: Arc<Sealer>, folder: PathBuf) -> List<T> {
        let (recent, file, ends) = (Vec::new(), None, vec![0]);
        List { recent, weight: 0, file, ends, sealer, folder, part: PART, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends one.
    pub fn push(&mut self, one: T) -> Inner<()> {
        self.len += 1;
        self.weight += one.weight(self.recent.last());
        self.recent.push(one);
        if self.weight > 2 * self.part { self.spill() } else { Ok(()) }
    }

    /// Removes the last one.
    pub fn pop(&mut self) -> Inner<Option<T>> {
        if self.recent.is_empty()
            && let Some(last) = self.ends.len().checked_sub(2)
        {
            self.recent = self.read(last)?;
            self.weight = weight(&self.recent);
            self.ends.pop();
        }
        let Some(one) = self.recent.pop() else { return Ok(None) };
        self.len -= 1;
        self.weight = self.weight.saturating_sub(one.weight(self.recent.last()));
        Ok(Some(one))
    }

    /// Calls `act` with each, the first one first.
    pub fn drain(self, mut act: impl FnMut(T) -> Inner<()>) -> Inner<()> {
        for part in 0..self.ends.len() - 1 {
            self.read(part)?.into_iter().try_for_each(&mut act)?;
        }
        self.recent.into_iter().try_for_each(act)
    }

    /// Moves the first part of what is in memory to the file.
    fn spill(&mut self) -> Inner<()> {
        let (mut out, mut weight, mut count) = (Vec::new(), 0, 0);
        while weight < self.part && count < self.recent.len() {
            let before = count.checked_sub(1).map(|before| &self.recent[before]);
            weight += self.recent[count].weight(before);
            self.recent[count].put(before, &mut out);
            count += 1;
        }
        self.recent.drain(..count);
        self.weight = self::weight(&self.recent);
        let (sealed, at) = (self.sealer.seal(SEALED, &out), self.ends[self.ends.len() - 1]);
        if self.file.is_none() {
            self.file = Some(tempfile::tempfile_in(&self.folder)?);
        }
        self.file.as_ref().expect("set above").write_all_at(&sealed, at)?;
        self.ends.push(at + sealed.len() as u64);
        Ok(())
    }

    fn read(&self, part: usize) -> Inner<Vec<T>> {
        let mut sealed = vec![0; (self.ends[part + 1] - self.ends[part]) as usize];
        let file = self.file.as_ref().expect("a part is in it");
        file.read_exact_at(&mut sealed, self.ends[part])?;
        let changed = || Fault::Corrupt(Corruption::Other("was changed while in use"));
        let plain = self.sealer.open(SEALED, &sealed).ok_or_else(changed)?;
        let (mut from, mut all) = (Take(&plain), Vec::new());
        while !from.0.is_empty() {
            let one = T::take(all.last(), &mut from).ok_or_else(changed)?;
            all.push(one);
        }
        Ok(all)
    }
}

impl<const N: usize> Later for [u8; N] {
    fn weight(&self, _: Option<&Self>) -> usize {
        N
    }

    fn put(&self, _: Option<&Self>, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn take(_: Option<&Self>, from: &mut Take<'_>) -> Option<Self> {
        from.array()
    }
}

impl<A: Later, B: Later> Later for (A, B) {
    fn weight(&self, _: Option<&Self>) -> usize {
        self.0.weight(None) + self.1.weight(None)
    }

    fn put(&self, _: Option<&Self>, out: &mut Vec<u8>) {
        self.0.put(None, out);
        self.1.put(None, out);
    }

    fn take(_: Option<&Self>, from: &mut Take<'_>) -> Option<Self> {
        Some((A::take(None, from)?, B::take(None, from)?))
    }
}

fn weight<T: Later>(all: &[T]) -> usize {
    let before = std::iter::once(None).chain(all.iter().map(Some));
    all.iter().zip(before).map(|(one, before)| one.weight(before)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Later for u32 {
        fn weight(&self, _: Option<&Self>) -> usize {
            4
        }

        fn put(&self, before: Option<&Self>, out: &mut Vec<u8>) {
            out.extend_from_slice(&(self - before.unwrap_or(&0)).to_le_bytes());
        }

        fn take(before: Option<&Self>, from: &mut Take<'_>) -> Option<Self> {
            Some(before.unwrap_or(&0) + u32::from_le_bytes(from.array()?))
        }
    }

    fn list(folder: &tempfile::TempDir) -> List<u32> {
        let sealer = Arc::new(Sealer::for_tests());
        List { part: 400, ..List::new(sealer, folder.path().to_owned()) }
    }

    /// All sub-directories that were still to be read, and all deviations, were in memory: a
    /// storage host that added a million conflict copies of an old version made the daemon grow by
    /// 400 MB.
    #[test]
    fn a_list_of_any_length_takes_bounded_memory() {
        let folder = tempfile::tempdir().expect("a directory");
        let (mut last, mut first) = (list(&folder), list(&folder));
        let mut expected = Vec::new();
        for n in 0..20_000_u32 {
            last.push(n).expect("pushed");
            first.push(n).expect("pushed");
            expected.push(n);
            if n % 1000 > 300 {
                assert_eq!(last.pop().expect("read"), expected.pop());
            }
            assert!(last.recent.len() <= 201 && first.recent.len() <= 201);
        }
        assert!(first.ends.len() > 100 && last.ends.len() > 10);
        while let Some(n) = expected.pop() {
            assert_eq!(last.pop().expect("read"), Some(n));
        }
        assert_eq!(last.pop().expect("read"), None);
        let mut next = 0..20_000;
        first
            .drain(|n| {
                assert_eq!(next.next(), Some(n));
                Ok(())
            })
            .expect("read");
        assert_eq!(next.next(), None);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a directory").count(), 0);
    }
}
