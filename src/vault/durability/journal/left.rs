//! Journals that other daemons have left with records, and the files that were checked because of
//! them.
//!
//! Rules that hold here
//! * A daemon has records in its journal only during a commit, which it makes under the lease. So a
//!   daemon that has the lease knows that others with records have ended in a commit, or could not
//!   complete one. It looks for them anew for each file: a daemon that was stopped loses its lease, and
//!   may go on with its commit as long as it has the guard of its file.
//! * A file is checked once as long as these journals stay the same: a daemon that ends in a commit
//!   later leaves another journal, or another time of one.
//! * What was read of a file counts for the header that it was read with. That it was half written
//!   counts until its next change: a replay completes it without a new header.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::state::Inode;
use super::{Found, Journal};
use crate::format::journal::{JournalHead, RECORD_HEAD, RECORDS_AT, record_head};
use crate::store::{Access, File, Timestamp};
use crate::vault::error::{Fault, Inner, UnreadJournal};

/// Maximum number of files that are remembered; then it begins anew.
const CHECKED_MAX: usize = 1 << 16;
/// Number of journals that tell enough: the storage host could add any number.
const JOURNALS_MAX: usize = 256;

/// A journal with records: its name, and the time of its last change. The name is empty for all those
/// beyond [`JOURNALS_MAX`].
type WithRecords = (Vec<u8>, Timestamp);

/// What was seen of them.
#[derive(Default)]
pub(super) struct Left {
    journals: Vec<WithRecords>,
    /// Counts how often `journals` has changed.
    round: u64,
    checked: HashMap<Inode, Checked>,
}

/// What is known of a file.
enum Checked {
    /// All of it was read, with this hash of its header, and is authentic.
    Authentic([u8; 32]),
    /// It is not, at this time of its last change.
    HalfWritten([u8; 32], Timestamp),
    /// No part is half written, and its header is new since.
    Whole,
}

/// What a daemon that has ended may have left in a file.
pub(crate) enum Remains {
    Nothing,
    /// Nothing, but a record may fit the header.
    Record,
    /// A part that is half written.
    HalfWritten,
    /// The file has to be read; for [`Journal::note_read`], which journals there are, and the time of
    /// the file's last change.
    Unknown(u64, Timestamp),
}

impl Journal {
    /// Returns whether another identity has left a journal with records, which only that identity
    /// can read.
    pub fn others_have_records(&self) -> Inner<bool> {
        let others = |_: &[u8], head: &JournalHead| head.owner != Self::owner(&self.key, &head.id);
        Ok(!self.with_records(others)?.is_empty())
    }

    /// Returns whether a record may rely on bytes beyond the end of a file: one of another opener, or
    /// one that could not be applied.
    pub fn may_rely_on_surplus(&self) -> bool {
        !self.may_cut() || self.has_broken()
    }

    /// Returns what a daemon that has ended may have left in a file with this hash of its header. The
    /// caller has the lease and the guard.
    pub fn remains(&self, file: &dyn File, header: &[u8; 32]) -> Inner<Remains> {
        let journals = self.with_records(|name, _| {
            let state = self.state.lock();
            let old = state.old.iter().map(|old| &old.name);
            !state.running.iter().map(|running| &running.name).chain(old).any(|own| *own == name)
        })?;
        let mut left = self.left.lock();
        if left.journals != journals {
            let round = left.round + 1;
            *left = Left { journals, round, ..Left::default() };
        }
        if left.journals.is_empty() {
            return Ok(Remains::Nothing);
        }
        let stat = file.stat()?;
        let inode = (stat.dev, stat.ino);
        let remains = match left.checked.get(&inode) {
            Some(Checked::Whole) => Remains::Nothing,
            Some(Checked::Authentic(with)) if with == header => Remains::Record,
            Some(Checked::HalfWritten(with, at)) if with == header && *at == stat.mtime => {
                Remains::HalfWritten
            }
            _ => Remains::Unknown(left.round, stat.mtime),
        };
        // Of more journals nothing tells whether they have changed, so the file is read each time.
        if left.journals.iter().any(|(name, _)| name.is_empty()) {
            left.checked.remove(&inode);
        }
        Ok(remains)
    }

    /// Notes that all of a file was read, with this hash of its header, and is authentic or not.
    /// `round` and `at` are those of [`Remains::Unknown`].
    pub fn note_read(
        &self,
        inode: Inode,
        header: [u8; 32],
        is_authentic: bool,
        (round, at): (u64, Timestamp),
    ) {
        let mut left = self.left.lock();
        if left.round == round {
            let checked = match is_authentic {
                true => Checked::Authentic(header),
                false => Checked::HalfWritten(header, at),
            };
            left.note(inode, checked);
        }
    }

    /// Notes that a file in which nothing is half written has a new header.
    pub fn note_whole(&self, inode: Inode) {
        self.left.lock().note(inode, Checked::Whole);
    }

    /// Returns the journals of this share that `counts` and that have records or cannot be read.
    fn with_records(
        &self,
        counts: impl Fn(&[u8], &JournalHead) -> bool,
    ) -> Inner<Vec<WithRecords>> {
        let mut all = Vec::new();
        for (index, found) in self.leftover().enumerate() {
            let found = found?;
            if index == JOURNALS_MAX {
                all.push((Vec::new(), self.root.stat_self()?.mtime));
                break;
            }
            match self.time_of_records(&found, &counts) {
                Ok(time) => all.extend(time.map(|time| (found.name, time))),
                // Its daemon has closed the vault meanwhile, or has carried its records to another
                // journal, which was perhaps not listed.
                Err(fault) if matches!(fault.errno(), libc::ENOENT | libc::ESTALE) => {
                    all.push((found.name, Timestamp::default()));
                }
                Err(fault) => return Err(self.unread(&found, fault)),
            }
        }
        all.sort_unstable();
        Ok(all)
    }

    /// Adds to an error of the disk, or of permissions, the name of the journal that cannot be read.
    pub(super) fn unread(&self, Found { dir, name, .. }: &Found, fault: Fault) -> Fault {
        let is_of_file = |errno| matches!(errno, libc::EIO | libc::EACCES | libc::EPERM);
        match fault {
            Fault::Io(source) if source.raw_os_error().is_some_and(is_of_file) => {
                let name = String::from_utf8_lossy(name).into_owned();
                let is_in_store = Arc::ptr_eq(dir, &self.root);
                tracing::error!("journal {name}: {source}");
                Fault::Io(io::Error::other(UnreadJournal { name, is_in_store, source }))
            }
            other => other,
        }
    }

    /// Returns the time of the last change of a journal that `counts` and that has records or cannot
    /// be read.
    fn time_of_records(
        &self,
        Found { dir, name, .. }: &Found,
        counts: impl Fn(&[u8], &JournalHead) -> bool,
    ) -> Inner<Option<Timestamp>> {
        let file = match dir.open_file(name, Access::Read) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                return Ok(Some(dir.stat(name)?.mtime));
            }
            other => other?,
        };
        let (mut head, mut first) = (vec![0; RECORDS_AT as usize], [0; RECORD_HEAD]);
        let read = file.read_at(&mut head, 0)?;
        let has_records = JournalHead::decode(&head[..read])
            .is_ok_and(|head| head.share == self.keys.share && counts(name, &head))
            && file.read_at(&mut first, RECORDS_AT)? == RECORD_HEAD
            && record_head(&first).is_some_and(|(_, sequence, _)| sequence == 0);
        has_records.then(|| Ok(file.stat()?.mtime)).transpose()
    }
}

impl Left {
    fn note(&mut self, inode: Inode, what: Checked) {
        if self.checked.len() == CHECKED_MAX {
            self.checked.clear();
        }
        self.checked.insert(inode, what);
    }
}
