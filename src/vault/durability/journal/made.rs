//! Newly created files, as they are noted until a record of them is no longer needed.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::state::Running;
use crate::format::journal::{JournalRecord, Patch, header_hash};
use crate::store::Timestamp;

/// A newly created file.
pub(super) struct Made {
    pub(super) path: Vec<u8>,
    pub(super) file_id: [u8; 32],
    pub(super) header: Box<[u8]>,
    pub(super) mtime: Timestamp,
    /// Sequence number among all files ever noted.
    pub(super) number: u64,
    pub(super) since: Instant,
    pub(super) written: bool,
}

#[derive(Default)]
pub(super) struct Files {
    pub(super) made: HashMap<[u8; 32], Made>,
    pub(super) by_path: HashMap<Vec<u8>, [u8; 32]>,
    /// Files whose record is no longer valid.
    pub(super) void: Vec<JournalRecord<'static>>,
    /// The paths in those records, until it is durable that they are void.
    pub(super) voided_paths: HashSet<Vec<u8>>,
    pub(super) noted: u64,
}

#[derive(Default)]
pub(super) struct Log {
    pub(super) running: Option<Running>,
    pub(super) failed: Option<Instant>,
}

/// All of them, and the journal that has their records.
#[derive(Default)]
pub(super) struct Created {
    /// Number of files that are noted or to be voided: lets most calls return at once.
    pub(super) count: AtomicUsize,
    pub(super) files: Mutex<Files>,
    pub(super) log: Mutex<Log>,
    pub(super) flushing: AtomicBool,
    /// A flush of the store has made the records superfluous.
    pub(super) superfluous: AtomicBool,
}

impl Files {
    pub(super) fn insert(&mut self, made: Made) {
        if let Some(before) = self.by_path.get(&made.path).copied() {
            self.remove(&before);
        }
        self.by_path.insert(made.path.clone(), made.file_id);
        self.made.insert(made.file_id, made);
    }

    /// Removes a file, and schedules its record, if it has one, to be voided.
    pub(super) fn remove(&mut self, file_id: &[u8; 32]) -> Option<Made> {
        let made = self.made.remove(file_id)?;
        self.by_path.remove(&made.path);
        if made.written {
            self.voided_paths.insert(made.path.clone());
            self.void.push(made.void());
        }
        Some(made)
    }

    pub(super) fn drop_until(&mut self, number: u64) {
        self.made.retain(|_, made| made.number > number);
        let made = &self.made;
        self.by_path.retain(|_, file_id| made.contains_key(file_id));
    }
}

impl Made {
    pub(super) fn record(&self) -> JournalRecord<'static> {
        JournalRecord {
            path: self.path.clone(),
            file_id: self.file_id,
            born: None,
            base: header_hash(b""),
            result: header_hash(&self.header),
            cipher_len: self.header.len() as u64,
            mtime: (self.mtime.secs, self.mtime.nanos),
            patches: vec![Patch { offset: 0, bytes: self.header.to_vec().into() }],
        }
    }

    pub(super) fn void(&self) -> JournalRecord<'static> {
        voided(self.record())
    }
}

/// Returns a later record that makes a creation record void.
pub(super) fn voided(record: JournalRecord<'static>) -> JournalRecord<'static> {
    JournalRecord { base: record.result, cipher_len: 0, patches: Vec::new(), ..record }
}

impl Created {
    pub(super) fn counted<T>(&self, act: impl FnOnce(&mut Files) -> T) -> T {
        let mut files = self.files.lock();
        let result = act(&mut files);
        self.count.store(files.made.len() + files.void.len(), Ordering::Release);
        result
    }

    pub(super) fn is_idle(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}
