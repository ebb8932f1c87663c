//! The lifetime of an open share: lock, replay, background work, last commit.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::crypto::Random;
use crate::format::layout::Layout;
use crate::roster::Identity;
use crate::store::Dir;
use crate::vault::core::vault_lock;
use crate::vault::core::{Core, Mode, Parts};
use crate::vault::durability::commit::Durability;
use crate::vault::durability::journal::Journal;
use crate::vault::durability::writers::Writers;
use crate::vault::error::{Error, Fault, Inner, Result};
use crate::vault::file::block_cache::BlockCache;
use crate::vault::keyring::keys::ShareKeys;
use crate::vault::keyring::signing::Signing;
use crate::vault::session::options::{LockMode, OpenOptions, OsRandom};
use crate::vault::share::enter::Entered;
use crate::vault::types::{NodeId, ROOT};

/// Opens an entered share: takes the lock, replays the journals of a crash.
pub(in crate::vault) fn open_core(
    store: Arc<dyn Dir>,
    entered: &Entered,
    identity: Arc<Identity>,
    options: &OpenOptions,
    cache: Option<Arc<BlockCache>>,
    shown: &Path,
) -> Result<Core> {
    let at = |fault: Fault| fault.at("open", || shown.to_path_buf());
    let descriptor = &entered.descriptor;
    let layout = Layout::new(descriptor.chunk_log2, descriptor.signed)
        .expect("the descriptor's chunk size was checked");
    let signing = Signing::new(identity.clone(), entered.rights());
    let keys = ShareKeys::new(
        descriptor.share_id(),
        descriptor.suite,
        layout,
        descriptor.longest_name,
        &entered.heads[0].keys,
        signing,
    );
    for head in &entered.heads[1..] {
        keys.know(&head.keys);
    }
    // An identity without the right to write cannot make signatures that count.
    let read_only = options.read_only
        || !keys.signing.may_write()
        || store.is_read_only().map_err(|e| at(e.into()))?;
    let writers = match options.lock {
        LockMode::Shared => Writers::Concurrent,
        LockMode::Exclusive | LockMode::None => Writers::Exclusive,
    };
    let lock = match options.lock {
        LockMode::Exclusive | LockMode::Shared if !read_only => {
            match vault_lock::take(&store, writers.vault_lock(), &OsRandom).map_err(at)? {
                vault_lock::Attempt::Held(lock) => Some(lock),
                vault_lock::Attempt::Taken(holder) => {
                    return Err(Error::InUse { path: shown.to_path_buf(), holder });
                }
            }
        }
        _ => None,
    };
    let random: Arc<dyn Random> = Arc::new(OsRandom);
    let journal_key = identity.journal_key(&keys.share);
    let journal = Journal::new(
        store.clone(),
        keys.clone(),
        random.clone(),
        journal_key,
        vault_lock::machine(&descriptor.share_id()),
        read_only,
        writers,
    );
    if lock.is_some()
        && writers.leave_journals_only_by_crashes()
        && let Some(holder) = journal.in_use_elsewhere().map_err(at)?
    {
        return Err(Error::InUse { path: shown.to_path_buf(), holder });
    }
    if lock.is_some() || read_only {
        let replayed = journal.replay().map_err(at)?;
        if replayed > 0 {
            let how = if read_only {
                "shown as committed before a crash"
            } else {
                "brought up to date after a crash"
            };
            tracing::info!("journal: {replayed} files {how}");
        }
    } else if options.lock != LockMode::None && !journal.leftover().map_err(at)?.is_empty() {
        tracing::warn!(
            "there is a journal of an interrupted mount; its files show their earlier state until a mount can write"
        );
    }
    let cache = cache.unwrap_or_else(|| Arc::new(BlockCache::new(options.cache_bytes)));
    Core::new(Parts {
        root: store,
        keys,
        random,
        journal,
        cache,
        mode: Mode {
            read_only,
            access_times: options.access_times,
            caller_caches: options.caller_caches,
            writers,
            is_root_user: rustix::process::geteuid().is_root(),
        },
        lock,
        trust: options.trust.clone(),
    })
    .map_err(at)
}

/// Commits all changes of a share, empties its journal and releases its lock. Returns the first
/// failure; the rest is done all the same.
pub(in crate::vault) fn close_core(core: &Core) -> Result<()> {
    close_core_after(core, |_| {})
}

/// Like [`close_core`], with a call of `last` before the lock is released.
pub(in crate::vault) fn close_core_after(core: &Core, last: impl FnOnce(&Core)) -> Result<()> {
    if core.closed.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    drop(core.membership.passing.lock());
    let mut result = Ok(());
    let mut keep = |outcome: Inner<()>, node: NodeId| {
        if let (Err(fault), true) = (outcome, result.is_ok()) {
            result = Err(core.explain("commit", node, fault));
        }
    };
    if !core.mode.read_only {
        let open: Vec<_> = core.open.files.lock().values().map(|s| s.file.clone()).collect();
        for file in open {
            let mut state = file.state.write();
            if core.has_name(&file) {
                keep(core.commit_what_fits(&file, &mut state, Durability::Ordered), file.node);
            }
            // A program that still has it open, or writes at this moment, must not commit any more:
            // the lock is about to be released.
            state.latched.get_or_insert(libc::ESHUTDOWN);
            drop(state);
            core.note_surplus(&file);
        }
        keep(core.journal.close(), ROOT);
        core.namespace.trash.close();
    }
    last(core);
    drop(core.lock.lock().take());
    result
}
