//! Which long-named entries of a directory a sync tool has made conflict copies of: those have
//! their names from the same sidecar, so it stays when the entry goes.
//!
//! Rules that hold here
//! * One listing of a directory serves all who ask for a while, so that removing a directory of
//!   long names does not list it for each; of several directories too, since several are removed at
//!   the same time.
//! * No more than what was looked for is kept of a listing: a directory may be larger than memory.

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

/// How long a listing counts, at the least; a sync tool that makes a copy meanwhile may find its
/// long name gone.
const KNOWN: Duration = Duration::from_secs(2);
/// A listing counts for so many times as long as it took, so that a huge directory is not listed
/// all the time.
const TIMES: u32 = 10;
/// Directories that are remembered.
const DIRS_MAX: usize = 64;

/// A directory, by its node and its id: those who walk the store have no node of it.
pub(crate) type Which = (NodeId, DirectoryId);

struct Known {
    since: Instant,
    valid: Duration,
    of: HashSet<Box<[u8]>>,
}

/// See the module.
pub(crate) struct LongCopies(Mutex<LruCache<Which, Known>>);

impl LongCopies {
    pub fn new() -> Self {
        LongCopies(Mutex::new(LruCache::new(NonZeroUsize::new(DIRS_MAX).expect("not zero"))))
    }

    /// Whether `dir`, which is `which`, holds conflict copies of the long-named `entry`. With
    /// `anew` it is listed in any case.
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
