//! What the journal knows of the files that have records in it, and of older journals.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use crate::format::journal::{JournalHead, JournalRecord, RECORDS_AT};
use crate::store::{Dir, File};

/// Device and inode number.
pub(super) type Inode = (u64, u64);

/// A journal that records are appended to.
pub(super) struct Running {
    pub(super) file: Arc<dyn File>,
    pub(super) dir: Arc<dyn Dir>,
    pub(super) name: Vec<u8>,
    pub(super) head: JournalHead,
    pub(super) capacity: u64,
    pub(super) generation: u64,
    /// Number of records of this generation.
    pub(super) sequence: u64,
    /// Offset of the next record.
    pub(super) tail: u64,
    /// Number of records at its beginning that were carried over.
    pub(super) carried: u64,
    /// Offset of the end of these records.
    pub(super) carried_end: u64,
}

impl Running {
    /// Begins a new generation: no record is valid any more.
    pub(super) fn begin_anew(&mut self) {
        (self.generation, self.sequence) = (self.generation + 1, 0);
        (self.tail, self.carried, self.carried_end) = (RECORDS_AT, 0, RECORDS_AT);
    }

    /// Returns the length in bytes of the records that were appended since. Carried records stay until
    /// their files can be written, whatever their length.
    pub(super) fn appended_len(&self) -> u64 {
        self.tail - self.carried_end
    }

    /// Returns whether another program has removed the file.
    pub(super) fn is_removed(&self) -> bool {
        self.file.stat_but_times().is_ok_and(|stat| stat.nlink == 0)
    }
}

impl Running {
    /// Ends appending to the journal; `acknowledged` as in [`Old`].
    pub(super) fn retire(self, acknowledged: u64) -> Old {
        let Running { file, dir, name, head, .. } = self;
        Old { file, dir, name, head, acknowledged }
    }
}

/// A journal that gets no more appends. It is removed as soon as its acknowledged records are
/// flushed or carried over.
pub(super) struct Old {
    /// Kept open, and so locked.
    pub(super) file: Arc<dyn File>,
    /// The directory that it is in.
    pub(super) dir: Arc<dyn Dir>,
    pub(super) name: Vec<u8>,
    pub(super) head: JournalHead,
    /// Records that were acknowledged, from the first one on, which
    /// [`Journal::load_broken`](super::Journal::load_broken) has to look for there.
    pub(super) acknowledged: u64,
}

/// A file with records that no checkpoint has flushed yet.
pub(super) struct Tracked {
    pub(super) file: Arc<dyn File>,
    /// Hash of the header that the last acknowledged record leaves.
    pub(super) last: Option<[u8; 32]>,
    /// Size of the records since the last flush of the file was begun.
    pub(super) unflushed: u64,
    /// When the first of these records was appended.
    pub(super) since: Instant,
}

impl Tracked {
    pub(super) fn new(file: Arc<dyn File>) -> Self {
        Tracked { file, last: None, unflushed: 0, since: Instant::now() }
    }

    /// Notes a record of `len` bytes.
    pub(super) fn add(&mut self, len: u64) {
        if self.unflushed == 0 {
            self.since = Instant::now();
        }
        self.unflushed += len;
    }
}

/// How a broken file was found.
pub(super) enum Origin {
    /// By a commit or a checkpoint.
    Open(Inode, Arc<dyn File>),
    /// By a replay. `None`: not the file at the path of its records, or that is unknown. It was renamed,
    /// is a conflict copy, or could not be looked at. Its records wait for the next replay.
    Closed(Option<Inode>),
}

/// A file whose records could not be applied or flushed.
pub(super) struct Broken {
    pub(super) origin: Origin,
    /// See [`Tracked::last`].
    pub(super) last: Option<[u8; 32]>,
    /// `None` until they are read from the journal.
    pub(super) records: Option<Vec<JournalRecord<'static>>>,
    /// The file is being truncated to nothing: its records are kept, unwritten, until that is done.
    pub(super) doomed: bool,
}

impl Broken {
    /// Returns whether two have the records of one journal, or of a copy of it.
    pub(super) fn has_same_records(&self, other: &Broken) -> bool {
        let of = |broken: &Broken| -> Vec<_> {
            let records = broken.records.iter().flatten();
            records.map(|r| (r.path.clone(), r.base, r.result)).collect()
        };
        of(self) == of(other)
    }

    pub(super) fn inode(&self) -> Option<Inode> {
        match self.origin {
            Origin::Open(inode, _) => Some(inode),
            Origin::Closed(inode) => inode,
        }
    }
}

/// A journal that a replay beside other daemons has left to them, because it could not look at a file.
pub(super) struct LeftBehind {
    pub(super) dir: Arc<dyn Dir>,
    pub(super) name: Vec<u8>,
    /// The hashes of the headers of its records.
    pub(super) headers: Vec<[u8; 32]>,
}

impl LeftBehind {
    /// Returns whether another daemon has replayed it since.
    fn is_gone(&self) -> bool {
        matches!(self.dir.stat(&self.name), Err(e) if e.raw_os_error() == Some(libc::ENOENT))
    }
}

pub(super) struct State {
    pub(super) running: Option<Running>,
    /// Numbers of records appended and records covered by a flush, over the journal's life.
    pub(super) appended: u64,
    pub(super) synced: u64,
    pub(super) syncing: bool,
    /// Records that are appended but not yet applied in place.
    pub(super) unapplied: usize,
    pub(super) unflushed: HashMap<Inode, Tracked>,
    /// Number of abandoned journals: tells a caller waiting for a flush that it will not come.
    pub(super) failures: u64,
    pub(super) broken: Vec<Broken>,
    pub(super) left_behind: Vec<LeftBehind>,
    pub(super) old: Vec<Old>,
    pub(super) last_append: Instant,
    /// Reused from record to record: see [`JournalRecord::seal`].
    pub(super) buffer: Vec<u8>,
    /// Inodes with a refused record in a journal that was not wiped or removed since. The record
    /// may be there all the same, and a replay may apply it.
    pub(super) doubtful: HashSet<Inode>,
    /// A checkpoint has failed: records of flushed files are still in the journal.
    pub(super) unclean: bool,
    /// A checkpoint is in progress or waits for its turn: no record is appended meanwhile.
    pub(super) draining: bool,
    /// A name on the way to a file may not be durable.
    pub(super) owes_names: bool,
}

impl State {
    /// Abandons the journal file after a failed flush; the callers waiting for it fail.
    pub(super) fn abandon(&mut self) {
        self.failures += 1;
        let unsynced = self.appended - self.synced;
        self.old.extend(self.running.take().map(|r| {
            let acknowledged = r.sequence.saturating_sub(unsynced);
            r.retire(acknowledged)
        }));
    }

    pub(super) fn is_broken(&self, inode: Inode) -> bool {
        self.broken.iter().any(|b| b.inode() == Some(inode))
    }

    /// Returns the hashes of the headers of files that a replay could not complete, wherever they are.
    pub(super) fn incomplete(&mut self) -> impl Iterator<Item = [u8; 32]> {
        self.left_behind.retain(|journal| !journal.is_gone());
        let closed = self.broken.iter().filter(|b| matches!(b.origin, Origin::Closed(_)));
        let records = closed.flat_map(|b| b.records.iter().flatten());
        let left = self.left_behind.iter().flat_map(|journal| journal.headers.iter().copied());
        records.flat_map(|record| [record.base, record.result]).chain(left)
    }

    pub(super) fn add_broken(&mut self, inode: Inode, tracked: Tracked) {
        if !self.is_broken(inode) {
            let Tracked { file, last, .. } = tracked;
            let origin = Origin::Open(inode, file);
            self.broken.push(Broken { origin, last, records: None, doomed: false });
        }
    }

    /// Notes that a record which leaves this header is acknowledged.
    pub(super) fn acknowledge(&mut self, inode: Inode, header: [u8; 32]) {
        let broken = self.broken.iter_mut().filter(|b| b.inode() == Some(inode));
        // A flush of the file may have failed while the record was flushed.
        let tracked = self.unflushed.get_mut(&inode).map(|tracked| &mut tracked.last);
        tracked
            .into_iter()
            .chain(broken.map(|b| &mut b.last))
            .for_each(|last| *last = Some(header));
    }
}
