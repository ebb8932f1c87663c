//! The lifetime of an open share: lock, replay, background work, last commit.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::crypto::Random;
use crate::format::layout::Layout;
use crate::roster::Identity;
use crate::store::{Dir, Lock};
use crate::vault::core::machine::{local_machine, machine};
use crate::vault::core::vault_lock::{self, Attempt, VaultLock};
use crate::vault::core::{Core, Mode, Parts};
use crate::vault::durability::commit::Durability;
use crate::vault::durability::journal::{Home, Journal};
use crate::vault::durability::writers::Writers;
use crate::vault::error::{Contention, Error, Fault, Inner, Result};
use crate::vault::file::block_cache::BlockCache;
use crate::vault::keyring::keys::ShareKeys;
use crate::vault::keyring::signing::Signing;
use crate::vault::session::options::{LockMode, OpenOptions, OsRandom};
use crate::vault::share::enter::Entered;
use crate::vault::share::{shared, synced};
use crate::vault::types::{NodeId, ROOT};

/// Opens an entered share: takes the lock, replays the journals of a crash.
pub(in crate::vault) fn open_core(
    store: Arc<dyn Dir>,
    entered: &Entered,
    identity: Arc<Identity>,
    options: &OpenOptions,
    parent: Option<&Core>,
    shown: &Path,
) -> Result<Core> {
    let at = |fault: Fault| fault.at("open", || shown.to_path_buf());
    let keys = keys_of(entered, &identity);
    // An identity without the right to write cannot make signatures that count.
    let read_only = options.read_only
        || !keys.signing.may_write()
        || store.is_read_only().map_err(|e| at(e.into()))?;
    let within_synced = parent.is_some_and(|parent| parent.mode.synced);
    let synced = synced_by(&*store, &keys.share, options, within_synced).map_err(at)?;
    let has_members = entered.has_other_members() && !options.in_sync_folder;
    let writers =
        writers(&*store, options.lock, synced.is_some(), has_members, parent).map_err(at)?;
    let lock = lock(&store, options.lock, writers, read_only, shown)?;
    let random: Arc<dyn Random> = Arc::new(OsRandom);
    if lock.is_some() {
        restore_marks(&*store, synced, writers, parent).map_err(at)?;
    }
    let synced = synced.is_some();
    let home = home(
        &store,
        &keys.share,
        options,
        shown,
        synced && writers.may_keep_journals_local(),
        read_only,
    )
    .map_err(at)?;
    let journal_key = identity.journal_key(&keys.share);
    let journal = Journal::new(
        store.clone(),
        home,
        keys.clone(),
        random.clone(),
        journal_key,
        read_only,
        writers,
    );
    if read_only || lock.is_some() {
        replay(&journal, read_only).map_err(at)?;
    }
    let own_cache = || Arc::new(BlockCache::new(options.cache_bytes));
    let cache = parent.map_or_else(own_cache, |parent| parent.cache.clone());
    Core::new(Parts {
        root: store,
        keys,
        random,
        journal,
        cache,
        mode: Mode {
            read_only,
            access_times: options.access_times,
            caller_caches: options.caller_caches && writers.know_all_opens(),
            writers,
            synced,
            is_root_user: rustix::process::geteuid().is_root(),
        },
        lock,
        trust: options.trust.clone(),
        events: options.events.clone(),
        usage: options.usage.clone(),
    })
    .map_err(at)
}

/// Returns the keys of all heads of an entered share, those of earlier epochs included.
fn keys_of(entered: &Entered, identity: &Arc<Identity>) -> Arc<ShareKeys> {
    let descriptor = &entered.descriptor;
    let layout = Layout::new(descriptor.chunk_log2, descriptor.signed)
        .expect("the descriptor's chunk size was checked");
    let signing = Signing::new(identity.clone(), entered.rights());
    let (share, suite) = (descriptor.share_id(), descriptor.suite);
    let longest = descriptor.longest_name;
    let keys = ShareKeys::new(share, suite, layout, longest, &entered.heads[0].keys, signing);
    entered.heads[1..].iter().for_each(|head| keys.know(&head.keys));
    keys
}

/// Takes the lock of a share. A reader needs none.
fn lock(
    store: &Arc<dyn Dir>,
    mode: LockMode,
    writers: Writers,
    read_only: bool,
    shown: &Path,
) -> Result<Option<VaultLock>> {
    if read_only || mode == LockMode::None {
        return Ok(None);
    }
    if writers == Writers::Concurrent && store.has_mandatory_locks() {
        return Err(Error::MandatoryLocks { path: shown.to_path_buf() });
    }
    let taken = vault_lock::take(store, writers.vault_lock());
    match taken.map_err(|fault| fault.at("open", || shown.to_path_buf()))? {
        Attempt::Held(lock) => Ok(Some(lock)),
        Attempt::Taken(holder, held) => {
            let is_marked = shared::is_set(&**store)
                .map_err(|fault| fault.at("open", || shown.to_path_buf()))?;
            let between = match (mode, writers.vault_lock(), held) {
                (LockMode::AsMarked, Lock::Shared, _) if !is_marked => Contention::Unshared,
                (_, Lock::Shared, _) => Contention::Holder,
                (LockMode::AsMarked, Lock::Exclusive, Lock::Exclusive) => Contention::Unshared,
                (LockMode::AsMarked, Lock::Exclusive, Lock::Shared) => Contention::Opener,
                _ => Contention::Alone,
            };
            Err(Error::InUse { path: shown.to_path_buf(), holder, between })
        }
    }
}

/// Replays the journals of a crash, or shows the files as if that were done.
fn replay(journal: &Journal, read_only: bool) -> Inner<()> {
    let replayed = journal.replay()?;
    if replayed > 0 {
        let how = if read_only {
            "shown as committed before a crash"
        } else {
            "brought up to date after a crash"
        };
        tracing::info!("journal: {replayed} files {how}");
    }
    Ok(())
}

/// Why a share counts as synced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Synced {
    /// It has the mark.
    Marked,
    /// This machine has seen the mark before.
    Remembered,
    /// It is inside a synced share.
    Within,
}

/// Returns why a share is synced; `None` if it is not.
fn synced_by(
    store: &dyn Dir,
    share: &[u8; 32],
    options: &OpenOptions,
    within_synced: bool,
) -> Inner<Option<Synced>> {
    if synced::is_set(store)? {
        return Ok(Some(Synced::Marked));
    }
    let remembered = match options.local.as_ref().map(|local| local.remembers(share)) {
        Some(Err(fault)) if matches!(fault.errno(), libc::EACCES | libc::EPERM) => None,
        other => other.transpose()?,
    };
    Ok(match remembered {
        Some(true) => Some(Synced::Remembered),
        _ if within_synced => Some(Synced::Within),
        _ => None,
    })
}

/// Decides which daemons may write to a share at the same time. With [`LockMode::AsMarked`] a
/// synced share has one writer, and a nested share follows its vault. A share that is opened on its
/// own has several if it is marked as shared. It needs no mark if it has other members who use this
/// store at any time, unless the store has mandatory locks. In the folder of a sync tool each member
/// has a store of their own.
fn writers(
    store: &dyn Dir,
    mode: LockMode,
    is_synced: bool,
    has_members_here: bool,
    parent: Option<&Core>,
) -> Inner<Writers> {
    let is_shared = match (mode, parent) {
        (LockMode::Exclusive | LockMode::None, _) => false,
        (LockMode::Shared, _) => true,
        (LockMode::AsMarked, _) if is_synced => false,
        (LockMode::AsMarked, Some(parent)) => parent.mode.writers == Writers::Concurrent,
        (LockMode::AsMarked, None) => {
            has_members_here && !store.has_mandatory_locks() || shared::is_set(store)?
        }
    };
    Ok(if is_shared { Writers::Concurrent } else { Writers::Exclusive })
}

/// Sets the marks that a share should have and lacks. A share that this machine remembers as synced
/// gets that mark again, with a warning unless it is inside a synced one: then it may never have
/// had the mark. A share inside one that is marked as shared gets that mark, for members who open
/// it alone.
fn restore_marks(
    store: &dyn Dir,
    synced: Option<Synced>,
    writers: Writers,
    parent: Option<&Core>,
) -> Inner<()> {
    if synced == Some(Synced::Remembered) {
        if !parent.is_some_and(|parent| parent.mode.synced) {
            tracing::warn!("the mark that this vault is synced was removed; it is created again");
        }
        synced::set(store, &OsRandom)?;
    }
    if let Some(parent) = parent
        && writers == Writers::Concurrent
        && shared::is_set(&*parent.root)?
    {
        shared::set(store, true, &OsRandom)?;
    }
    Ok(())
}

/// Returns where the journals of a share are. Those of a synced share are in the state directory of
/// this machine (`keeps`); if this user may not use that, or it takes no new ones, they are in the
/// share.
///
/// # Errors
/// Those of reading the state directory: the last mount may have left a journal in it.
fn home(
    store: &Arc<dyn Dir>,
    share: &[u8; 32],
    options: &OpenOptions,
    path: &Path,
    keeps: bool,
    read_only: bool,
) -> Inner<Home> {
    let mut home = Home {
        dir: store.clone(),
        others: Vec::new(),
        machine: local_machine(share),
        is_local: false,
        machine_in_store: machine(share),
    };
    let Some(local) = options.local.as_ref().filter(|_| keeps) else { return Ok(home) };
    match local.folders(share, &**store, path, !read_only, &OsRandom) {
        Ok(folders) => {
            home.is_local = folders.own.is_some();
            home.dir = folders.own.unwrap_or(home.dir);
            home.others = folders.others;
        }
        Err(fault) if matches!(fault.errno(), libc::EACCES | libc::EPERM) => {
            synced::warn_unusable(&fault);
        }
        Err(fault) => return Err(fault),
    }
    Ok(home)
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
    let is_changed = core.open.files.lock().values().any(|it| it.writers > 0 || it.handles == 0);
    let writes = is_changed || !core.mode.read_only && core.journal.has_broken();
    let change = writes.then(|| core.lease.change());
    // It is waited for once, and not for each file.
    let is_taken = matches!(&change, Some(Err(fault)) if fault.errno() == libc::EBUSY);
    let mut result = Ok(());
    let mut keep = |outcome: Inner<()>, node: NodeId| {
        if let (Err(fault), true) = (outcome, result.is_ok()) {
            result = Err(core.explain("commit", node, fault));
        }
    };
    if !core.mode.read_only {
        let open: Vec<_> = core.open.files.lock().values().map(|s| s.file.clone()).collect();
        for file in open {
            let again = is_taken.then(|| core.lease.change_at_once());
            let mut state = file.state.write();
            if core.has_name(&file) {
                let committed = match &again {
                    Some(Err(fault)) if state.changes.is_some() => Err(Fault::Os(fault.errno())),
                    _ => core.commit_what_fits(&file, &mut state, Durability::Ordered),
                };
                keep(committed, file.node);
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
    drop(change);
    core.lease.end();
    drop(core.lock.lock().take());
    result
}
