//! The thread that looks after the leases of the open shares.
//!
//! Rules that hold here
//! * This thread keeps the lease for at most [`PAGES_TAKE`] until the kernel has dropped pages. The
//!   kernel waits for requests in progress first, and all threads that could answer them may be
//!   waiting for the lease. It is enough that the attributes are dropped: the next read of cached
//!   pages asks for them, and drops the pages if the file has changed. The pages themselves are
//!   dropped for mappings.
//! * The kernel ignores attributes that it has asked for before a notification about the file
//!   arrives, and reads with the size that it knows. So a notification must not coincide with the
//!   first read after another daemon's commit: that read would return the new bytes up to the old
//!   size, or the old bytes. Therefore the pages of a file are dropped before the lease is given up.
//!   Later they are dropped only if the kernel has not asked for 0.4 s: when it asks, it drops them
//!   itself.
//! * The pages of a file that is open for writing here stay: no other daemon can have committed to
//!   it. That is not so for a file whose guard is taken on demand. A lock that is granted on such a
//!   file waits by itself until the pages are dropped (`Waiters`).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::nested::Shares;
use crate::vault::core::Core;
use crate::vault::core::open_table::OpenEntry;
use crate::vault::file::OpenFile;
use crate::vault::types::{Forget, NodeId, ROOT};

/// How often a daemon looks whether another one wants its lease, where that costs no message to a
/// server.
const LOOKS: Duration = Duration::from_millis(25);
/// The same where it does.
const LOOKS_REMOTE: Duration = Duration::from_millis(100);
/// How often open files are compared with the store, for mappings, of which the kernel asks nothing.
/// Pages are dropped at the second look, within the second that `docs/SHARED.md` promises.
const COMPARES: Duration = Duration::from_millis(400);
/// How long the lease is kept for the kernel to drop its pages. It cannot as long as threads that
/// wait for the lease keep reads from being answered.
const PAGES_TAKE: Duration = Duration::from_millis(200);
/// How often it is checked whether there are leases at all.
const IDLE: Duration = Duration::from_millis(500);

/// What was last seen of the open files of a share.
#[derive(Default)]
struct Known {
    files: HashMap<NodeId, Seen>,
    /// Nothing has to be compared: this daemon has the lease, and no pages are to be dropped.
    is_settled: bool,
}

/// What was last seen of an open file.
#[derive(Default)]
struct Seen {
    /// The committed state: the hash of its header.
    committed: Option<[u8; 32]>,
    /// The kernel may have pages of an earlier state, and drops them at the next look unless it has
    /// asked for the attributes by then.
    due: bool,
    /// How often the kernel has dropped pages because of attributes that it was sent.
    drops: u64,
}

/// Looks after the leases of all shares until `stop`.
pub(super) fn run(shares: &Shares, stop: &AtomicBool) {
    let mut known: HashMap<usize, Known> = HashMap::new();
    let mut compared = Instant::now();
    loop {
        let cores = shares.cores();
        let mut pause = IDLE;
        known.retain(|at, _| cores.iter().any(|core| Arc::as_ptr(core) as usize == *at));
        for core in cores.iter().filter(|core| core.lease.is_needed()) {
            let local = core.root.directory_locks_suffice();
            pause = pause.min(if local { LOOKS } else { LOOKS_REMOTE });
            let known = known.entry(Arc::as_ptr(core) as usize).or_default();
            let forgets = || {
                forget(core);
                known.is_settled = false;
            };
            if let Err(fault) = core.lease.look_after(forgets) {
                tracing::debug!(errno = fault.errno(), "the lease of a share cannot be used");
            }
            let caches = core.lease.may_cache();
            known.is_settled &= caches;
            if compared.elapsed() >= COMPARES && !known.is_settled {
                known.is_settled = !compare(core, &mut known.files) && caches;
            }
        }
        if compared.elapsed() >= COMPARES {
            compared = Instant::now();
        }
        std::thread::park_timeout(pause);
        if stop.load(Ordering::Acquire) {
            shares.cores().iter().for_each(|core| core.lease.look_no_more());
            return;
        }
    }
}

/// Returns the files that programs have open, each with whether only this daemon can write to it.
fn open_files(core: &Core) -> Vec<(NodeId, Arc<OpenFile>, bool)> {
    let files = core.open.files.lock();
    let is_ours = |it: &OpenEntry| it.writers > 0 && !it.file.is_on_demand();
    files.iter().map(|(node, it)| (*node, it.file.clone(), is_ours(it))).collect()
}

/// Makes the kernel drop what it has cached of a share, except the pages of files that only this
/// daemon can write to.
fn forget(core: &Core) {
    core.have_forgotten(ROOT, Forget::Names);
    let open = open_files(core).into_iter();
    let written: HashSet<NodeId> =
        open.filter(|(.., written)| *written).map(|(node, ..)| node).collect();
    for node in core.nodes.looked_up() {
        let is_written = written.contains(&node);
        core.have_forgotten(node, if is_written { Forget::Known } else { Forget::Pages });
    }
    let (done, is_done) = mpsc::sync_channel(1);
    core.have_forgotten(ROOT, Forget::Done(done));
    let _ = is_done.recv_timeout(PAGES_TAKE);
}

/// Makes the kernel drop the pages of open files that another daemon has committed to, and that the
/// kernel has not asked about since. Returns whether pages are still to be dropped.
fn compare(core: &Core, known: &mut HashMap<NodeId, Seen>) -> bool {
    let open = open_files(core);
    known.retain(|node, _| open.iter().any(|(it, ..)| it == node));
    for (node, file, written) in open {
        let Ok(hash) = core.header_in(&*file.file()).map(|header| header.hash()) else { continue };
        let seen = known.entry(node).or_default();
        // Also the first time: a page may have been read between the end of the lease and a commit.
        let is_new = seen.committed.replace(hash) != Some(hash);
        let (is_done, drops) = file.locks.lock().dropped(&hash);
        let asked = std::mem::replace(&mut seen.drops, drops) != drops;
        if written || is_done {
            seen.due = false;
        } else if seen.due && !asked {
            core.have_forgotten(node, Forget::Pages);
            seen.due = false;
        } else {
            seen.due |= is_new;
        }
    }
    known.values().any(|seen| seen.due)
}
