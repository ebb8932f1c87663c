//! An open vault as its users see it: how it is described, opened and closed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use super::background::{self, Background};
use super::lifetime;
use super::nested::{Route, Shares};
use super::options::{OpenOptions, OsRandom};
use crate::crypto::{Suite, stack};
use crate::roster::{Identity, PublicIdentity, Role};
use crate::store::Dir;
use crate::vault::core::open_table::Open;
use crate::vault::core::{Core, vault_lock};
use crate::vault::error::{Error, Fault, Inner, LockHolder, Result};
use crate::vault::rollback::keeper::{self, Keeper};
use crate::vault::rollback::notice::{Notice, Omitted, SurveyOptions};
use crate::vault::share::enter::{self, CreateOptions, CreateShare, IDENTITY_FILE, Vouched};
use crate::vault::share::{seen, shared, synced};
use crate::vault::types::{Attr, Handle, NodeId, ROOT, Usage};

/// Information about a vault that needs no secret.
#[derive(Clone, Debug)]
pub struct Description {
    /// Format version.
    pub version: u16,
    /// Cipher suite.
    pub suite: Suite,
    /// Chunk size in bytes.
    pub chunk_size: u32,
    /// Id of the root share.
    pub share_id: [u8; 32],
    /// Whether files are signed.
    pub signed: bool,
    /// Whether the admins of the parent share are not made members.
    pub isolated: bool,
    /// Identity that created the share.
    pub founder: PublicIdentity,
    /// Whether it holds an identity of its own, protected by a passphrase.
    pub has_identity: bool,
    /// Whether it is marked as kept equal on several machines by a sync tool.
    pub synced: bool,
    /// Whether it is marked as used by several daemons at the same time.
    pub shared: bool,
    /// The process that has it open exclusively.
    pub locked_by: Option<LockHolder>,
    /// The processes that have it open for shared use, the earliest first.
    pub shared_by: Vec<LockHolder>,
}

/// Current use of a vault's files by programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Handles that may write.
    pub writers: usize,
    /// Writes since the vault was opened.
    pub writes: u64,
    /// Open files with changes that are not on the disk yet.
    pub unsynced: usize,
}

struct Inside {
    shares: Arc<Shares>,
    background: Mutex<Background>,
    keeper: Mutex<Option<Keeper>>,
}

/// An open vault. Clones are the same vault; dropping the last one closes it.
#[derive(Clone)]
pub struct Vault {
    inside: Arc<Inside>,
}

impl Vault {
    /// Creates a vault in an empty directory, owned by `owner`.
    ///
    /// # Errors
    /// `ENOTEMPTY` if the directory holds anything but an identity file; errors of the store.
    pub fn create(store: &Arc<dyn Dir>, options: &CreateOptions, owner: &Identity) -> Result<()> {
        enter::create(store, options, owner, &OsRandom)
    }

    /// Returns the public information of a vault.
    ///
    /// # Errors
    /// [`Error::NotAVault`], [`Error::NewerVersion`], [`Error::Corrupt`].
    pub fn describe(store: &Arc<dyn Dir>) -> Result<Description> {
        let descriptor = enter::descriptor(&**store, &PathBuf::new())?;
        let at = |fault: Fault| fault.at("describe", PathBuf::new);
        let holders = vault_lock::holders(store).map_err(at)?;
        Ok(Description {
            version: crate::format::share::VERSION,
            suite: descriptor.suite,
            chunk_size: descriptor.chunk_size(),
            share_id: descriptor.share_id(),
            signed: descriptor.signed,
            isolated: descriptor.isolated,
            founder: descriptor.founder,
            has_identity: store.stat(IDENTITY_FILE.as_bytes()).is_ok(),
            synced: synced::is_set(&**store).map_err(at)?,
            shared: shared::is_set(&**store).map_err(at)?,
            locked_by: holders.alone,
            shared_by: holders.shared,
        })
    }

    /// Opens a vault: verifies its roster, opens the identity's slot, takes the lock, replays the
    /// journals of a crash.
    ///
    /// # Errors
    /// Those of [`Vault::describe`]; [`Error::NoAccess`], [`Error::InUse`], [`Error::Share`].
    pub fn open(store: Arc<dyn Dir>, identity: &Identity, options: OpenOptions) -> Result<Vault> {
        let identity = Arc::new(identity.duplicate());
        let seen = seen::manifests(&*store).map_err(|fault| fault.at("open", PathBuf::new))?;
        let entered =
            enter::enter(&*store, &identity, &options.trust, &Vouched::default(), &PathBuf::new())?;
        let core = lifetime::open_core(
            store,
            &entered,
            identity.clone(),
            &options,
            None,
            &PathBuf::new(),
        )?;
        core.note_head(seen, &entered);
        let shares = Arc::new(Shares::new(Arc::new(core), identity, options));
        let background = Mutex::new(background::background(&shares));
        Ok(Vault { inside: Arc::new(Inside { shares, background, keeper: Mutex::new(None) }) })
    }

    /// Creates a signed share with members in an empty directory, to be opened as a vault of its
    /// own.
    ///
    /// # Errors
    /// As [`Vault::create`]; a name or key that is not valid in a list of members.
    pub fn create_signed(
        store: &Arc<dyn Dir>,
        options: &CreateOptions,
        owner: &Identity,
        share: &CreateShare,
    ) -> Result<()> {
        enter::create_signed(store, options, owner, share, &OsRandom)
    }

    /// Records the state of the vault and local changes, from now on, in the database at `path`,
    /// which belongs to this share alone. With `survey` the vault is compared with the database in
    /// the background, and differences are logged. Returns the number of alarms: notices that are at
    /// least [`SETTLE`](crate::vault::SETTLE) old and not accepted. Removals that another client may
    /// have made are not counted. The database covers the vault's own share: nested shares have
    /// databases when they are opened on their own.
    ///
    /// # Errors
    /// The database cannot be opened or created. The vault can be used without it.
    pub fn remember(&self, path: &Path, survey: bool) -> Result<usize> {
        let (keeper, noticed) = Keeper::start(&self.shares().root, path.to_owned(), survey)
            .map_err(|f| f.at("open", || path.to_owned()))?;
        *self.inside.keeper.lock() = Some(keeper);
        Ok(noticed)
    }

    /// Records pending local changes in the rollback database now; otherwise that happens in the
    /// background, and when the vault is closed.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn learn(&self) -> Result<()> {
        self.on_node("remember", ROOT, |core, _| {
            core.memory.get().map_or(Ok(()), |memory| memory.learn_now(core))
        })
    }

    /// Compares the vault with the rollback database at `path`, now, and returns the deviations.
    ///
    /// # Errors
    /// The database cannot be opened.
    pub fn survey(&self, path: &Path, options: &SurveyOptions) -> Result<Vec<Notice>> {
        self.core()
            .survey(path.to_owned(), options)
            .map_err(|f| f.at("compare with", || path.to_owned()))
    }

    /// Returns whether an earlier session was interrupted and the vault was not compared with the
    /// rollback database since. False without a rollback database.
    pub(in crate::vault) fn is_after_interruption(&self) -> bool {
        self.inside.keeper.lock().as_ref().is_some_and(Keeper::is_after_interruption)
    }

    pub(in crate::vault) fn shares(&self) -> &Shares {
        &self.inside.shares
    }

    pub(in crate::vault) fn core(&self) -> &Core {
        &self.shares().root
    }

    /// Commits everything, empties the journal and releases the lock. A failure is reported once; a
    /// second call does nothing.
    ///
    /// # Errors
    /// The first failure; everything else is committed all the same.
    pub fn close(&self) -> Result<()> {
        self.inside.close()
    }

    /// Creates the journal before it is needed, so that a store that fills up later still accepts
    /// overwrites of existing blocks. Otherwise the journal is created at the first commit that
    /// needs one, as in every nested share.
    ///
    /// # Errors
    /// `ENOSPC` if there is no room for it even now; other errors of the store. The vault works as
    /// before.
    pub fn prepare(&self) -> Result<()> {
        self.on_node("create a journal in", ROOT, |core, _| {
            if core.mode.read_only { Ok(()) } else { core.journal.reserve() }
        })
    }

    /// Commits changes that have waited for at least `age`, as the background does at each tick.
    pub fn commit_due(&self, age: Duration) {
        for core in self.shares().cores() {
            core.commit_due(age);
            core.journal.write_created();
        }
    }

    /// Makes files durable that stay open and have been committed without a flush for twice `age`,
    /// as the background does at each tick.
    pub fn flush_due(&self, age: Duration) {
        for core in self.shares().cores() {
            background::flush_ahead(&core, age);
            core.flush_due(age);
        }
    }

    /// Returns the role of the identity in the vault's own share.
    pub fn role(&self) -> Role {
        self.core().keys.signing.role()
    }

    /// Looks for changes of the membership now, as the background does at each tick, and returns
    /// whether there were any.
    ///
    /// # Errors
    /// The reason why the new roster cannot be adopted.
    pub fn refresh(&self) -> Result<bool> {
        let mut changed = false;
        for core in self.shares().cores() {
            changed |= core.refresh(self.shares().trust())?;
        }
        Ok(changed)
    }

    /// Returns whether other daemons may have the vault open for writing at the same time.
    pub fn is_shared(&self) -> bool {
        !self.core().mode.writers.know_all_opens()
    }

    /// Returns whether a sync tool keeps the vault equal on several machines.
    pub fn is_synced(&self) -> bool {
        self.core().mode.synced
    }

    /// Marks a vault as kept equal on several machines by a sync tool. The mark cannot be removed.
    /// Returns false if the vault was marked before. Needs no secret. A mount that exists already
    /// does not notice the mark.
    ///
    /// # Errors
    /// [`Error::NotAVault`]; `EINVAL` if it is marked as shared; those of the store.
    pub fn set_synced(store: &Arc<dyn Dir>) -> Result<bool> {
        enter::descriptor(&**store, &PathBuf::new())?;
        let at = |fault: Fault| fault.at("mark", PathBuf::new);
        if shared::is_set(&**store).map_err(at)? {
            return Err(Error::Os { op: "mark", errno: libc::EINVAL });
        }
        synced::set(&**store, &OsRandom).map_err(at)
    }

    /// Marks a vault as used by several daemons at the same time, or takes that mark away. Returns
    /// false if that was done before. Needs no secret. A mount that exists already does not notice
    /// the change.
    ///
    /// # Errors
    /// [`Error::NotAVault`]; `EINVAL` if a vault is to be marked that is marked as synced; those of
    /// the store.
    pub fn set_shared(store: &Arc<dyn Dir>, on: bool) -> Result<bool> {
        enter::descriptor(&**store, &PathBuf::new())?;
        let at = |fault: Fault| fault.at("mark", PathBuf::new);
        if on && synced::is_set(&**store).map_err(at)? {
            return Err(Error::Os { op: "mark", errno: libc::EINVAL });
        }
        shared::set(&**store, on, &OsRandom).map_err(at)
    }

    /// Returns whether nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.core().check_writable().is_err()
    }

    /// Returns the record of when programs have used the vault, which its caller keeps.
    pub fn usage(&self) -> Usage {
        self.core().usage.clone()
    }

    /// Returns the current use of files by programs.
    pub fn activity(&self) -> Activity {
        let mut activity = Activity::default();
        for core in self.shares().cores() {
            for shared in core.open.files.lock().values() {
                activity.writers += shared.writers;
                // A file that is in use at this moment has changes, or is about to.
                let is_synced = shared.file.state.try_read().is_some_and(|state| state.is_synced());
                activity.unsynced += usize::from(!is_synced);
            }
            activity.writes += core.open.writes.load(Ordering::Relaxed);
        }
        activity
    }

    /// Returns the nodes of all files that programs have open.
    pub fn open_nodes(&self) -> Vec<NodeId> {
        self.shares().open_nodes()
    }

    /// Returns how many of the open shares have two lists of members that exclude each other, or one
    /// that cannot be read. They are read-only until the user resolves that.
    pub fn forks(&self) -> usize {
        self.shares().cores().iter().filter(|core| core.keys.signing.is_forked()).count()
    }

    /// Returns the number of alarms in the rollback database at `path` that are due and not
    /// silenced; none if it does not exist. Needs no key.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn rollback_alarms(path: &Path) -> Result<usize> {
        keeper::alarms(path).map_err(|f| f.at("open", || path.to_owned()))
    }

    /// Limits the length in bytes of the rollback database at `path`, which is created if it does
    /// not exist. Entries that do not fit are not compared.
    ///
    /// # Errors
    /// The database cannot be opened or written.
    pub fn limit_rollback_memory(path: &Path, bytes: u64) -> Result<()> {
        keeper::set_limit(path, bytes).map_err(|f| f.at("open", || path.to_owned()))
    }

    /// Returns what the last comparison with the rollback database at `path` has omitted.
    ///
    /// # Errors
    /// The database cannot be opened.
    pub fn omitted_by_rollback_memory(path: &Path) -> Result<Omitted> {
        keeper::omitted(path).map_err(|f| f.at("open", || path.to_owned()))
    }

    /// Drops this handle, and returns whether it was the last one: the vault is then closed, and its
    /// keys are wiped from memory.
    pub fn is_last(self) -> bool {
        let is_last = Arc::into_inner(self.inside).is_some();
        stack::wipe::<{ stack::DEPTH }>();
        is_last
    }

    /// Returns the bytes of memory that uncommitted changes of open files take.
    pub fn uncommitted_bytes(&self) -> usize {
        self.core().cache.changes.load(Ordering::Relaxed)
    }

    /// Returns the number of files that a read-only vault shows with changes from the journal of an
    /// interrupted mount: in the state after the next opening for writing.
    pub fn replayed_in_memory(&self) -> usize {
        self.shares().cores().iter().map(|core| core.journal.overlaid()).sum()
    }

    /// Returns the number of nodes in the node tables.
    pub fn node_count(&self) -> usize {
        self.shares().cores().iter().map(|core| core.nodes.len()).sum()
    }

    pub(in crate::vault) fn on_node<T>(
        &self,
        op: &'static str,
        node: NodeId,
        act: impl Fn(&Core, NodeId) -> Inner<T>,
    ) -> Result<T> {
        Ok(self.shares().run(op, node, act)?.0)
    }

    /// Like [`Vault::on_node`], for operations that return a node.
    pub(in crate::vault) fn attr_on(
        &self,
        op: &'static str,
        node: NodeId,
        act: impl Fn(&Core, NodeId) -> Inner<Attr>,
    ) -> Result<Attr> {
        let (attr, number) = self.shares().run(op, node, act)?;
        Ok(self.shares().attr(number, attr))
    }

    pub(in crate::vault) fn on_handle<T>(
        &self,
        op: &'static str,
        handle: Handle,
        act: impl FnOnce(&Core, Handle) -> Inner<T>,
    ) -> Result<T> {
        let route = self.shares().raw(handle).map_err(|_| Error::Os { op, errno: libc::EBADF })?;
        act(&route.core, route.local).map_err(|fault| {
            let local = match route.core.open.handle(route.local) {
                Ok(Open::File { file, .. }) => file.node,
                Ok(Open::Dir { node, .. }) => node,
                Err(_) => ROOT,
            };
            self.shares().explain(op, &Route { local, ..route }, fault)
        })
    }

    /// Resolves two directories of one share; fails with `EXDEV` if their shares differ.
    pub(in crate::vault) fn in_one_share(
        &self,
        op: &'static str,
        a: NodeId,
        b: NodeId,
    ) -> Result<(Route, Route)> {
        let (a, b) = (self.shares().directory(op, a)?, self.shares().directory(op, b)?);
        if a.number == b.number { Ok((a, b)) } else { Err(Error::Os { op, errno: libc::EXDEV }) }
    }
}

impl Inside {
    fn close(&self) -> Result<()> {
        let threads = {
            let mut background = self.background.lock();
            background.stop.store(true, Ordering::Release);
            background.threads.iter().for_each(|thread| thread.thread().unpark());
            std::mem::take(&mut background.threads)
        };
        for thread in threads {
            let _ = thread.join();
        }
        let mut keeper = self.keeper.lock().take();
        if let Some(keeper) = &mut keeper {
            keeper.stop();
        }
        let mut result = Ok(());
        for core in self.shares.cores() {
            let learn = |core: &Core| {
                if std::ptr::eq(core, &*self.shares.root)
                    && let Some(keeper) = &keeper
                {
                    keeper.finish(core);
                }
            };
            result = result.and(lifetime::close_core_after(&core, learn)); // every share is closed, even if another one fails
        }
        result
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            tracing::error!("{e}");
        }
    }
}
