//! A cache of what was read about names: evidence of renames, sealed long names, and the names that
//! a listing of a directory shows. A program that works in a directory needs them for many names.
//!
//! Rules that hold here
//! * The entry of a directory is valid as long as the directory's times show no change. They are
//!   not checked for [`TRUSTED`]; with concurrent openers they are checked each time.
//! * The number of entries is limited, because the storage host controls how many there could be.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::crypto::Tag;
use crate::format::suffix::Mark;
use crate::store::Timestamp;

/// How long an entry is valid without checking the store.
pub(crate) const TRUSTED: Duration = Duration::from_secs(1);
/// Two changes of a directory within this time may leave it with the same times: the clocks of
/// stores are coarse.
const GRANULARITY: Duration = Duration::from_secs(2);
/// Maximum number of directories whose evidence is kept.
pub(crate) const CLOSURES_MAX: usize = 1 << 10;
/// Maximum number of sealed names that are kept, of some hundred bytes each.
const LONG_NAMES_MAX: usize = 1 << 14;
/// Maximum number of directories that are kept.
const DIRS_MAX: NonZeroUsize = NonZeroUsize::new(16).expect("not zero");

/// The two times of a directory that show a change.
pub(crate) type Times = (Timestamp, Timestamp);

/// What took long to read is not read again for this many times as long: the storage host
/// can add files to it, and so change its times, at any moment.
const REST: u32 = 8;
/// Maximum number of unreadable control files that are logged.
const TOLD_MAX: usize = 1000;

/// How long what was read of a directory is valid.
#[derive(Clone)]
pub(crate) struct Freshness<T> {
    pub times: T,
    /// When these times were first seen, by this machine's clock: the store's clock may differ.
    first: Instant,
    pub read: Instant,
    /// How long the reading took.
    cost: Duration,
}

impl<T: PartialEq> Freshness<T> {
    /// Called with the times from before the reading, which began at `begun`.
    pub fn new(times: T, before: Option<&Self>, begun: Instant) -> Self {
        let now = Instant::now();
        let first = before.filter(|before| before.times == times).map_or(now, |b| b.first);
        Freshness { times, first, read: now, cost: now - begun }
    }

    /// Part of it was read at this time already.
    pub fn read_at(self, since: Option<Instant>) -> Self {
        Freshness { read: since.map_or(self.read, |since| since.min(self.read)), ..self }
    }

    /// The reading took this long.
    pub fn took(self, cost: Duration) -> Self {
        Freshness { cost, ..self }
    }

    /// Returns whether the reading took so long that it is not repeated yet, even if the directory
    /// has changed. Additions by other machines are then noticed later.
    pub fn rests(&self, shared: bool) -> bool {
        !shared && self.read.elapsed() < self.cost * REST
    }

    /// Returns whether it is valid without a look at the store.
    pub fn is_trusted(&self, shared: bool) -> bool {
        !shared && self.read.elapsed() < TRUSTED
    }

    /// Returns whether it is valid for these times.
    pub fn is_valid(&self, times: &T, shared: bool) -> bool {
        let has_aged = self.read.saturating_duration_since(self.first) >= GRANULARITY;
        self.times == *times && (has_aged || self.is_trusted(shared))
    }
}

/// The times of the directories of evidence, by their names; `None` for one that is not there.
pub(crate) type Asked = Vec<(Vec<u8>, Option<Times>)>;

/// What is known of one directory.
#[derive(Clone)]
pub(crate) struct Closure {
    pub tags: Arc<[Tag]>,
    /// The keys under which it was read.
    pub generation: u64,
    pub fresh: Arc<Freshness<Asked>>,
    /// Every record could be read.
    pub is_whole: bool,
}

/// What was read of the evidence of a share.
pub(crate) struct Evidence {
    pub closures: Mutex<LruCache<Tag, Closure>>,
    /// When the share was last seen to have none.
    pub none: Mutex<Option<Instant>>,
}

/// Control files that this process may not read: each is logged once.
#[derive(Default)]
pub(crate) struct Unreadable(Mutex<HashSet<Vec<u8>>>);

impl Unreadable {
    /// Logs a control file by its stored path from the share's root.
    pub fn tell(&self, path: &[&[u8]]) {
        let (path, mut told) = (path.join(&b'/'), self.0.lock());
        if told.len() < TOLD_MAX && !told.contains(&path) {
            tracing::warn!(
                "{}: no permission to read it; entries that need it are marked, or shown under their stored names",
                String::from_utf8_lossy(&path)
            );
            told.insert(path);
        }
    }
}

impl Default for Evidence {
    fn default() -> Self {
        Evidence { closures: Mutex::new(LruCache::unbounded()), none: Mutex::new(None) }
    }
}

/// The sealed long names that were read, by their hashes; and the lock for writing one.
pub(crate) struct LongNames {
    pub kept: Mutex<LruCache<[u8; 32], Box<[u8]>>>,
    pub writing: Mutex<()>,
}

impl Default for LongNames {
    fn default() -> Self {
        // A bounded one allocates all its memory at once.
        LongNames { kept: Mutex::new(LruCache::unbounded()), writing: Mutex::new(()) }
    }
}

impl LongNames {
    /// Keeps a sealed name.
    pub fn keep(&self, hash: &[u8; 32], sealed: &[u8]) {
        let mut kept = self.kept.lock();
        kept.put(*hash, sealed.into());
        while kept.len() > LONG_NAMES_MAX {
            kept.pop_lru();
        }
    }
}

/// What one listing of a directory shows of its names.
#[derive(Default)]
pub(crate) struct Census {
    /// Tags of the names.
    pub tags: HashSet<Tag>,
    /// Stored names, sorted, of the entries that may be shown with this mark.
    pub marks: HashMap<Mark, Vec<Box<[u8]>>>,
    /// Hashes of the places that have a junction.
    pub junctions: HashSet<[u8; 32]>,
}

/// A directory of the store, its tag, and the generation of the keys.
type Key = (u64, u64, Tag, u64);

/// A census, and when the directory was listed.
type Taken = (Freshness<Times>, Arc<Census>);

/// The directories that were listed.
pub(crate) struct Censuses(pub Mutex<LruCache<Key, Taken>>);

impl Default for Censuses {
    fn default() -> Self {
        Censuses(Mutex::new(LruCache::new(DIRS_MAX)))
    }
}
