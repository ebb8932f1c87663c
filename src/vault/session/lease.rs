//! The thread that looks after the leases of the open shares.
//!
//! Rules that hold here
//! * This thread never waits for the kernel to drop pages. The kernel waits for requests in progress
//!   first, and all threads that could answer them may be waiting for the lease. It is enough that
//!   the attributes are dropped: the next read of cached pages asks for them, and drops the pages if
//!   the file has changed. The pages are dropped soon afterwards, for mappings.
//! * The pages of a file that is open for writing here stay: no other daemon can have committed to
//!   it. That is not so for a file whose guard is taken on demand. A lock that is granted on such a
//!   file waits by itself until the pages are dropped (`Waiters`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::nested::Shares;
use crate::vault::core::Core;
use crate::vault::core::open_table::Shared;
use crate::vault::file::OpenFile;
use crate::vault::types::{Forget, NodeId, ROOT};

/// How often a daemon looks whether another one wants its lease, where that costs no message to a
/// server.
const LOOKS: Duration = Duration::from_millis(25);
/// The same where it does.
const LOOKS_REMOTE: Duration = Duration::from_millis(100);
/// How often open files are compared with the store, for mappings, of which the kernel asks nothing.
const COMPARES: Duration = Duration::from_millis(500);
/// How often it is checked whether there are leases at all.
const IDLE: Duration = Duration::from_millis(500);

/// The committed state that was last seen of an open file: the hash of its header.
type Known = HashMap<NodeId, [u8; 32]>;

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
            if let Err(fault) = core.lease.look_after(|| forget(core), || forget_open(core)) {
                tracing::debug!(errno = fault.errno(), "the lease of a share cannot be used");
            }
            if compared.elapsed() >= COMPARES && !core.lease.may_cache() {
                compare(core, known.entry(Arc::as_ptr(core) as usize).or_default());
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

/// Returns the files that programs have open, and whether only this daemon can write to them.
fn open_files(core: &Core) -> Vec<(NodeId, Arc<OpenFile>, bool)> {
    let files = core.open.files.lock();
    let is_ours = |it: &Shared| it.writers > 0 && !it.file.is_on_demand();
    files.iter().map(|(node, it)| (*node, it.file.clone(), is_ours(it))).collect()
}

/// Makes the kernel drop all that it has cached of a share.
fn forget(core: &Core) {
    core.have_forgotten(ROOT, Forget::Names);
    let open = open_files(core).into_iter();
    let written: HashSet<NodeId> =
        open.filter(|(.., written)| *written).map(|(node, ..)| node).collect();
    for node in core.nodes.looked_up() {
        let is_written = written.contains(&node);
        core.have_forgotten(node, if is_written { Forget::Known } else { Forget::Pages });
    }
}

/// Makes the kernel drop what it has cached of files that programs have open.
fn forget_open(core: &Core) {
    for (node, _, written) in open_files(core) {
        core.have_forgotten(node, if written { Forget::Known } else { Forget::Pages });
    }
}

/// Makes the kernel drop the pages of open files that another daemon has committed to since the last
/// look.
fn compare(core: &Core, known: &mut Known) {
    let open = open_files(core);
    known.retain(|node, _| open.iter().any(|(it, ..)| it == node));
    for (node, file, written) in open {
        let Ok(hash) = core.header_in(&*file.file()).map(|header| header.hash()) else { continue };
        // Also the first time: a page may have been read between the end of the lease and a commit.
        if known.insert(node, hash) != Some(hash) && !written {
            core.have_forgotten(node, Forget::Pages);
        }
    }
}
