//! What a journal knows of its files.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use crate::format::journal::{JournalHead, JournalRecord};
use crate::store::File;

/// Device and inode number.
pub(super) type Inode = (u64, u64);

pub(super) struct Running {
    pub(super) file: Arc<dyn File>,
    pub(super) name: Vec<u8>,
    pub(super) head: JournalHead,
    pub(super) capacity: u64,
}

/// A journal to which nothing is appended any more. It goes as soon as what it has acknowledged is
/// flushed or carried.
pub(super) struct Old {
    /// Kept open, and so locked.
    pub(super) file: Arc<dyn File>,
    pub(super) name: Vec<u8>,
    pub(super) head: JournalHead,
    /// Records that were acknowledged, from the first one on, which [`Journal::load_broken`](super::Journal::load_broken) has to
    /// look for there.
    pub(super) acknowledged: u64,
}

/// A file with records that no checkpoint has flushed yet.
pub(super) struct Tracked {
    pub(super) file: Arc<dyn File>,
    pub(super) file_id: [u8; 32],
    /// The paths that the records name.
    pub(super) paths: Vec<Vec<u8>>,
}

/// A file whose records could not be applied or flushed.
pub(super) struct Broken {
    /// Unknown where not even a `stat` succeeded at a replay.
    pub(super) inode: Option<Inode>,
    /// Unknown where a replay found the records.
    pub(super) file: Option<Arc<dyn File>>,
    pub(super) file_id: [u8; 32],
    pub(super) paths: Vec<Vec<u8>>,
    /// `None` while they were not read from the journal yet.
    pub(super) records: Option<Vec<JournalRecord<'static>>>,
    /// The file is being truncated to nothing: its records are kept until that is done, and not
    /// written meanwhile.
    pub(super) doomed: bool,
}

pub(super) struct State {
    pub(super) running: Option<Running>,
    pub(super) generation: u64,
    pub(super) sequence: u64,
    pub(super) tail: u64,
    /// Records appended and records covered by a flush, counted over the journal's life.
    pub(super) appended: u64,
    pub(super) synced: u64,
    pub(super) syncing: bool,
    /// Appended but not yet applied in place.
    pub(super) unapplied: usize,
    pub(super) unflushed: HashMap<Inode, Tracked>,
    /// Counts abandoned journals, so that those who wait for a flush see that it will not come.
    pub(super) failures: u64,
    pub(super) broken: Vec<Broken>,
    /// Records at the beginning of the running journal that were carried there.
    pub(super) carried: u64,
    pub(super) old: Vec<Old>,
    pub(super) last_append: Instant,
    /// Kept from record to record: see [`JournalRecord::seal`].
    pub(super) buffer: Vec<u8>,
    /// Inodes with a record that was refused in a journal that was not wiped or removed since. It
    /// may be there all the same, and a replay write it.
    pub(super) doubtful: HashSet<Inode>,
    /// A checkpoint failed: records of files that were flushed are there still.
    pub(super) unclean: bool,
    /// A checkpoint is under way or waits for its turn: nothing is appended meanwhile.
    pub(super) draining: bool,
}

impl State {
    /// Lets go of the journal file after a failed flush; whoever waits for it fails.
    pub(super) fn abandon(&mut self) {
        self.failures += 1;
        let acknowledged = self.sequence.saturating_sub(self.appended - self.synced);
        self.old.extend(self.running.take().map(|r| Old {
            file: r.file,
            name: r.name,
            head: r.head,
            acknowledged,
        }));
    }

    pub(super) fn broken_at(&self, inode: Inode, path: Option<&[u8]>) -> Option<usize> {
        self.broken.iter().position(|b| {
            b.inode == Some(inode)
                || b.inode.is_none() && path.is_some_and(|p| b.paths.iter().any(|q| q == p))
        })
    }

    pub(super) fn add_broken(&mut self, inode: Inode, tracked: Tracked) {
        if self.broken_at(inode, None).is_none() {
            let Tracked { file, file_id, paths } = tracked;
            self.broken.push(Broken {
                inode: Some(inode),
                file: Some(file),
                file_id,
                paths,
                records: None,
                doomed: false,
            });
        }
    }
}
