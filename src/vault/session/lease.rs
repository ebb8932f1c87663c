//! The thread that looks after the leases of the open shares.
//!
//! Rules that hold here
//! * The kernel waits for requests in progress before it drops pages, and those may need any lock.
//!   So this thread has none while it waits for the kernel.
//! * The pages of a file that is open for writing here stay: no other daemon can have committed to
//!   it. The kernel may be writing them at this moment, in a request that waits for the lease.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::nested::Shares;
use crate::vault::core::Core;
use crate::vault::core::lease::SIGNS;
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

/// Returns the files that programs have open, and whether for writing.
fn open_files(core: &Core) -> Vec<(NodeId, Arc<OpenFile>, bool)> {
    let files = core.open.files.lock();
    files.iter().map(|(node, it)| (*node, it.file.clone(), it.writers > 0)).collect()
}

/// Makes the kernel drop all that it has cached of a share, and waits for that.
fn forget(core: &Core) {
    core.have_forgotten(ROOT, Forget::Names);
    let written: HashSet<NodeId> = open_files(core)
        .into_iter()
        .filter(|(.., written)| *written)
        .map(|(node, ..)| node)
        .collect();
    for node in core.nodes.looked_up() {
        let is_written = written.contains(&node);
        core.have_forgotten(node, if is_written { Forget::Attributes } else { Forget::Contents });
    }
    wait(core);
}

/// Makes the kernel drop what it has cached of files that programs have open, and waits for that.
fn forget_open(core: &Core) {
    for (node, _, written) in open_files(core) {
        core.have_forgotten(node, if written { Forget::Attributes } else { Forget::Contents });
    }
    wait(core);
}

/// Waits until the kernel has dropped what it was told to drop.
fn wait(core: &Core) {
    let (done, is_done) = sync_channel(1);
    core.have_forgotten(ROOT, Forget::Done(done));
    // Disconnected at once if there is no kernel.
    while is_done.recv_timeout(SIGNS) == Err(RecvTimeoutError::Timeout) {
        core.lease.show_life();
    }
}

/// Makes the kernel drop the pages of open files that another daemon has committed to since the last
/// look.
fn compare(core: &Core, known: &mut Known) {
    let open = open_files(core);
    known.retain(|node, _| open.iter().any(|(it, ..)| it == node));
    for (node, file, written) in open {
        let Ok(hash) = core.header_in(&*file.file()) else { continue };
        // Also the first time: a page may have been read between the end of the lease and a commit.
        if known.insert(node, hash) != Some(hash) && !written {
            core.have_forgotten(node, Forget::Contents);
        }
    }
}
