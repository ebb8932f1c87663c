//! Tracks which long-named entries of a directory have conflict copies by a sync tool. The copies
//! get their names from the same sidecar, so it stays when the entry is removed.
//!
//! Rules that hold here
//! * One listing of a directory serves all queries for a while, so that removing a directory of
//!   long names does not list it for each. Several directories are tracked, because several are
//!   removed at the same time.
//! * Only the relevant entries of a listing are kept: a directory may be larger than memory.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::format::name::LONG;
use crate::store::Dir;
use crate::vault::error::Inner;
use crate::vault::keyring::keys::DirectoryId;
use crate::vault::types::NodeId;

/// Minimum time for which a listing is valid. If a sync tool makes a copy within it, the copy may
/// lose its long name.
const KNOWN: Duration = Duration::from_secs(2);
/// A listing is valid for this multiple of the time it took, so that a huge directory is not listed
/// continuously.
const TIMES: u32 = 10;
/// Maximum number of directories that are tracked.
const DIRS_MAX: usize = 64;

/// A directory, by its node and its id: a walk of the store has no node of it.
pub(crate) type Which = (NodeId, DirectoryId);

struct Known {
    since: Instant,
    valid: Duration,
    of: HashSet<Box<[u8]>>,
}

/// The long-named entries that have conflict copies, by directory.
pub(crate) struct LongCopies(Mutex<LruCache<Which, Known>>);

impl LongCopies {
    pub fn new() -> Self {
        LongCopies(Mutex::new(LruCache::new(NonZeroUsize::new(DIRS_MAX).expect("not zero"))))
    }

    /// Returns whether `dir`, which is `which`, holds conflict copies of the long-named `entry`.
    /// With `anew` it is always listed.
    pub fn are_there(&self, which: Which, dir: &dyn Dir, entry: &[u8], anew: bool) -> Inner<bool> {
        if !anew
            && let Some(known) = self.0.lock().get(&which)
            && known.since.elapsed() < known.valid
        {
            return Ok(known.of.contains(entry));
        }
        let since = Instant::now();
        let (dir, mut cookie, mut of) = (dir.reopen()?, 0, HashSet::new());
        loop {
            let entries = dir.read(cookie, 1 << 16)?;
            let Some(last) = entries.last() else { break };
            cookie = last.next;
            let copies = entries
                .iter()
                .filter(|e| e.name.first() == Some(&LONG) && e.name.len() > entry.len());
            of.extend(copies.map(|e| Box::from(&e.name[..entry.len()])));
        }
        let found = of.contains(entry);
        self.0.lock().put(which, Known { since, valid: KNOWN.max(since.elapsed() * TIMES), of });
        Ok(found)
    }
}
