//! The filesystem without FUSE: nodes, open files, commit order, recovery, check.
//!
//! [`Vault`] is what the command line, the FUSE adapter, tests and fuzzers use. It works on nodes, counted as FUSE counts them, and on
//! handles; a few methods take paths.
//!
//! ```
//! use std::sync::Arc;
//! use kithfs::backing::mem::MemStore;
//! use kithfs::crypto::Suite;
//! use kithfs::sharing::Identity;
//! use kithfs::vault::{Caller, CreateOptions, OpenFlags, OpenOptions, OsRandom, ROOT, Vault};
//!
//! # fn main() -> Result<(), kithfs::vault::Error> {
//! let store = MemStore::new();
//! let owner = Identity::generate(&OsRandom);
//! Vault::create(&store.root(), &CreateOptions { suite: Suite::Aes256Gcm, chunk_log2: 18 }, &owner)?;
//!
//! let vault = Vault::open(store.root(), &owner, OpenOptions::default())?;
//! let caller = Caller { uid: 0, gid: 0, umask: 0o022 };
//! let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
//! let (_, file) = vault.create_file(&caller, ROOT, b"letter", 0o600, flags)?;
//! vault.write(file.handle, 0, b"dear Ann", false)?;
//! let mut text = [0; 8];
//! vault.read(file.handle, 0, &mut text)?;
//! assert_eq!(&text, b"dear Ann");
//! vault.release(file.handle)?;
//! vault.close()?;
//! # Ok(())
//! # }
//! ```

mod cache;
mod check;
mod commit;
mod copies;
mod core;
mod entries;
mod error;
mod file;
mod io;
mod journal;
mod junction;
mod keys;
mod known;
mod lock;
mod members;
mod memory;
mod mtime;
mod names;
mod nodes;
mod overflow;
mod path;
mod refresh;
mod repair;
mod reseal;
mod seal;
mod share;
mod shares;
mod sharing;
mod signed;
mod symlink;
mod together;
mod tree;
mod trust;
pub mod types;
mod walk;
mod xattr;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

pub use self::check::{CheckFault, CheckProgress, CheckReport, LOST_AND_FOUND, Online, REPAIR_RUN, Unused};
pub use self::error::{Error, LockHolder, Result};
pub use self::members::{LogEntry, LogKind, MemberChanges, Share, ShareInfo};
pub use self::memory::{Notice, NoticeKind, SETTLE, SurveyOptions};
pub use self::repair::{Outcome, Remedy, RepairReport, Repaired};
pub use self::reseal::Pending;
pub use self::share::{CreateOptions, CreateShare, IDENTITY_FILE};
pub use self::sharing::ShareProgress;
pub use self::trust::{Pins, Trust};
pub use self::types::*;
pub use crate::format::signature::Authorship;

use self::cache::BlockCache;
use self::core::{Core, Parts};
use self::error::Fault;
use self::journal::Journal;
use self::keys::ShareKeys;
use self::share::Vouched;
use self::shares::{Route, Shares};
use self::signed::Signing;
use crate::backing::{Dir, Kind, Seek, Space};
use crate::crypto::{Random, Suite};
use crate::format::layout::Layout;
use crate::sharing::{Identity, PublicIdentity, Role};

/// How long a change may wait in memory before it is committed.
const COMMIT_AFTER: Duration = Duration::from_secs(4);
/// How often the background thread looks.
const TICK: Duration = Duration::from_millis(500);
/// How long the journal rests before it is emptied.
const JOURNAL_IDLE: Duration = Duration::from_secs(1);

/// The kernel's randomness.
pub struct OsRandom;

impl Random for OsRandom {
    fn fill(&self, buf: &mut [u8]) {
        getrandom::fill(buf).expect("the kernel gives randomness");
    }
}

/// Who may have the vault open beside us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Nobody.
    Exclusive,
    /// Others who say the same, in other processes and on other machines that see each other's locks. See `docs/SHARED.md`.
    Shared,
    /// Not asked: for reading what may be changing.
    None,
}

/// How a vault is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Nothing is changed, not even by a recovery.
    pub read_only: bool,
    /// Reading a file changes its time of access, where the store's own mount has it so.
    pub access_times: bool,
    /// Who writes keeps the times of modification and sets them, as the kernel does with its writeback cache.
    pub caller_keeps_times: bool,
    /// Bytes that the caches may take, and as many again what was changed and is not committed (at least 1 MiB).
    pub cache_bytes: usize,
    /// Lock.
    pub lock: LockMode,
    /// Which shares are entered.
    pub trust: Trust,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            access_times: true,
            caller_keeps_times: false,
            cache_bytes: 64 << 20,
            lock: LockMode::Exclusive,
            trust: Trust::default(),
        }
    }
}

/// What can be said of a vault without a secret.
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
    /// Whether a parent's admins are kept out.
    pub isolated: bool,
    /// Who made it.
    pub founder: PublicIdentity,
    /// Whether it holds an identity of its own, to be unlocked by passphrase.
    pub has_identity: bool,
    /// Who has it open for writing alone.
    pub locked_by: Option<LockHolder>,
    /// Who have it open for writing together, those who came first first.
    pub shared_by: Vec<LockHolder>,
}

struct Background {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

struct Inside {
    shares: Arc<Shares>,
    background: Mutex<Background>,
    keeper: Mutex<Option<memory::Keeper>>,
}

/// An open vault. Clones are the same vault; the last one that goes away closes it.
#[derive(Clone)]
pub struct Vault {
    inside: Arc<Inside>,
}

fn background(shares: &Arc<Shares>) -> Background {
    let stop = Arc::new((Mutex::new(false), Condvar::new()));
    let (shares, signal) = (shares.clone(), stop.clone());
    let thread = std::thread::Builder::new()
        .name("kithfs-commit".into())
        .spawn(move || {
            let (stop, changed) = &*signal;
            let mut stopped = stop.lock();
            while !*stopped {
                changed.wait_for(&mut stopped, TICK);
                if *stopped {
                    break;
                }
                parking_lot::MutexGuard::unlocked(&mut stopped, || shares.cores().iter().for_each(|core| look_after(core, shares.trust())));
            }
        })
        .ok();
    Background { stop, thread }
}

/// Opens an entered share: takes the lock, replays what a crash left.
fn open_core(
    store: Arc<dyn Dir>,
    entered: &share::Entered,
    identity: Arc<Identity>,
    options: &OpenOptions,
    cache: Option<Arc<BlockCache>>,
    shown: &Path,
) -> Result<Core> {
    let at = |fault: Fault| fault.at("open", || shown.to_path_buf());
    let descriptor = &entered.descriptor;
    let layout = Layout::new(descriptor.chunk_log2, descriptor.signed).expect("the descriptor's chunk size was checked");
    let signing = Signing::new(identity.clone(), entered.rights());
    let keys = ShareKeys::new(descriptor.share_id(), descriptor.suite, layout, &entered.heads[0].keys, signing);
    for head in &entered.heads[1..] {
        keys.know(&head.keys);
    }
    // Who may not write has no key with which anybody would believe him.
    let read_only = options.read_only || !keys.signing.may_write() || store.is_read_only().map_err(|e| at(e.into()))?;
    let shared = options.lock == LockMode::Shared;
    let how = if shared { crate::backing::Lock::Shared } else { crate::backing::Lock::Exclusive };
    let lock = match options.lock {
        LockMode::Exclusive | LockMode::Shared if !read_only => match lock::take(&store, how, &OsRandom).map_err(at)? {
            lock::Attempt::Held(lock) => Some(lock),
            lock::Attempt::Taken(holder) => return Err(Error::InUse { path: shown.to_path_buf(), holder }),
        },
        _ => None,
    };
    let random: Arc<dyn Random> = Arc::new(OsRandom);
    let journal_key = identity.journal_key(&keys.share);
    let journal =
        Journal::new(store.clone(), keys.clone(), random.clone(), journal_key, lock::machine(&descriptor.share_id()), read_only, shared);
    if lock.is_some()
        && !shared
        && let Some(holder) = journal.in_use_elsewhere().map_err(at)?
    {
        return Err(Error::InUse { path: shown.to_path_buf(), holder });
    }
    if lock.is_some() || read_only {
        let replayed = journal.replay().map_err(at)?;
        if replayed > 0 {
            let how = if read_only { "shown as they were committed before a crash" } else { "brought up to date after a crash" };
            tracing::info!("journal: {replayed} files {how}");
        }
    } else if options.lock != LockMode::None && !journal.leftover().map_err(at)?.is_empty() {
        tracing::warn!("a journal of an interrupted mount is there; files in it show their state before it until a mount can write");
    }
    let cache = cache.unwrap_or_else(|| Arc::new(BlockCache::new(options.cache_bytes)));
    Core::new(Parts {
        root: store,
        keys,
        random,
        journal,
        cache,
        read_only,
        access_times: options.access_times,
        caller_keeps_times: options.caller_keeps_times,
        shared,
        lock,
        trust: options.trust.clone(),
    })
    .map_err(at)
}

/// What the background does for a share, twice a second.
fn look_after(core: &Core, trust: &Trust) {
    core.watch_lock();
    if core.keys.signed()
        && let Err(error) = core.refresh(trust)
    {
        tracing::error!("{error}");
    }
    core.commit_due(COMMIT_AFTER);
    core.journal.write_created();
    if let Err(fault) = core.journal.checkpoint_idle(JOURNAL_IDLE) {
        tracing::error!(errno = fault.errno(), "journal checkpoint failed");
    }
}

/// Commits all that a share holds, empties its journal and releases its lock. The first failure is told, the rest is done all the same.
fn close_core(core: &Core) -> Result<()> {
    close_core_after(core, |_| {})
}

/// [`close_core`], with `last` done before the lock goes.
fn close_core_after(core: &Core, last: impl FnOnce(&Core)) -> Result<()> {
    if core.closed.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    drop(core.passing.lock());
    let mut result = Ok(());
    let mut keep = |outcome: error::Inner<()>, node: NodeId| {
        if let (Err(fault), true) = (outcome, result.is_ok()) {
            result = Err(core.explain("commit", node, fault));
        }
    };
    if !core.read_only {
        let open: Vec<_> = core.files.lock().values().map(|s| s.file.clone()).collect();
        for file in open {
            if core.has_name(&file) {
                keep(core.commit(&file, commit::Durability::Ordered), file.node);
            }
        }
        keep(core.journal.close(), ROOT);
    }
    last(core);
    drop(core.lock.lock().take());
    result
}

impl Vault {
    /// Makes a vault in an empty directory, owned by `owner`.
    ///
    /// # Errors
    /// `ENOTEMPTY` where the directory holds anything but an identity file; whatever the store says.
    pub fn create(store: &Arc<dyn Dir>, options: &CreateOptions, owner: &Identity) -> Result<()> {
        share::create(store, options, owner, &OsRandom)
    }

    /// What is public of a vault.
    ///
    /// # Errors
    /// [`Error::NotAVault`], [`Error::NewerVersion`], [`Error::Corrupt`].
    pub fn describe(store: &Arc<dyn Dir>) -> Result<Description> {
        let descriptor = share::descriptor(&**store, &PathBuf::new())?;
        let at = |fault: Fault| fault.at("describe", PathBuf::new);
        Ok(Description {
            version: crate::format::share::VERSION,
            suite: descriptor.suite,
            chunk_size: descriptor.chunk_size(),
            share_id: descriptor.share_id(),
            signed: descriptor.signed,
            isolated: descriptor.isolated,
            founder: descriptor.founder,
            has_identity: store.stat(IDENTITY_FILE.as_bytes()).is_ok(),
            locked_by: lock::holder(store).map_err(at)?,
            shared_by: lock::sharers(&**store).map_err(at)?,
        })
    }

    /// Opens a vault: verifies its roster, opens the identity's slot, takes the lock, replays what a crash left.
    ///
    /// # Errors
    /// Those of [`Vault::describe`]; [`Error::NoAccess`], [`Error::InUse`], [`Error::Share`].
    pub fn open(store: Arc<dyn Dir>, identity: &Identity, options: OpenOptions) -> Result<Vault> {
        let identity = Arc::new(identity.duplicate());
        let seen = refresh::manifests(&*store).map_err(|fault| fault.at("open", PathBuf::new))?;
        let entered = share::enter(&*store, &identity, &options.trust, &Vouched::default(), &PathBuf::new())?;
        let core = open_core(store, &entered, identity.clone(), &options, None, &PathBuf::new())?;
        core.note_head(seen, entered.head());
        let shares = Arc::new(Shares::new(Arc::new(core), identity, options));
        let background = Mutex::new(background(&shares));
        Ok(Vault { inside: Arc::new(Inside { shares, background, keeper: Mutex::new(None) }) })
    }

    /// Makes a signed share with members in an empty directory, to be opened as a vault of its own.
    ///
    /// # Errors
    /// As [`Vault::create`]; a name or key that cannot be in a list of members.
    pub fn create_signed(store: &Arc<dyn Dir>, options: &CreateOptions, owner: &Identity, share: &CreateShare) -> Result<()> {
        share::create_signed(store, options, owner, share, &OsRandom)
    }

    /// Remembers from now on, in the database at `path`, what is seen and done here; the path belongs to this share alone. With `survey` the
    /// vault is compared with the memory in the background, and what is not as it was is logged. Gives how many things were noticed
    /// [`SETTLE`] ago or earlier, are not accepted, and are no removals that another client may have made. The memory is one of the vault's
    /// own share: what is in nested shares is remembered by who opens those alone.
    ///
    /// # Errors
    /// The database cannot be opened or made. The vault can be used without.
    pub fn remember(&self, path: &Path, survey: bool) -> Result<usize> {
        let (keeper, noticed) =
            memory::Keeper::start(&self.shares().root, path.to_owned(), survey).map_err(|f| f.at("open", || path.to_owned()))?;
        *self.inside.keeper.lock() = Some(keeper);
        Ok(noticed)
    }

    /// Lets the memory learn now what was done here since it did so last; else that happens in the background, and when the vault is closed.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn learn(&self) -> Result<()> {
        self.on_node("remember", ROOT, |core, _| core.memory.get().map_or(Ok(()), |memory| memory.learn_now(core)))
    }

    /// Compares the vault with the memory at `path`, now, and gives what is not as it was.
    ///
    /// # Errors
    /// The database cannot be opened.
    pub fn survey(&self, path: &Path, options: &SurveyOptions) -> Result<Vec<Notice>> {
        self.core().survey(path.to_owned(), options).map_err(|f| f.at("compare with", || path.to_owned()))
    }

    fn shares(&self) -> &Shares {
        &self.inside.shares
    }

    fn core(&self) -> &Core {
        &self.shares().root
    }

    /// Commits everything, empties the journal and releases the lock. What fails is reported once; a second call does nothing.
    ///
    /// # Errors
    /// The first failure; everything else is committed all the same.
    pub fn close(&self) -> Result<()> {
        self.inside.close()
    }

    /// Makes the journal before it is needed, so that a store that fills up later still takes overwrites of what is there. A vault that is
    /// not prepared makes its journal at the first commit that needs one, and so does every nested share.
    ///
    /// # Errors
    /// `ENOSPC` where there is no room for it even now; whatever else the store says. The vault works as before.
    pub fn prepare(&self) -> Result<()> {
        self.on_node("make a journal in", ROOT, |core, _| if core.read_only { Ok(()) } else { core.journal.reserve() })
    }

    /// Commits what has been waiting for at least `age`, as the background does twice a second.
    pub fn commit_due(&self, age: Duration) {
        for core in self.shares().cores() {
            core.commit_due(age);
            core.journal.write_created();
        }
    }

    /// What the identity may do in the vault's own share.
    pub fn role(&self) -> Role {
        self.core().keys.signing.role()
    }

    /// Looks for changes of the membership now, as the background does twice a second, and tells whether there were any.
    ///
    /// # Errors
    /// What kept the new roster from being taken over.
    pub fn refresh(&self) -> Result<bool> {
        let mut changed = false;
        for core in self.shares().cores().iter().filter(|core| core.keys.signed()) {
            changed |= core.refresh(self.shares().trust())?;
        }
        Ok(changed)
    }

    /// True where others may have it open for writing at the same time.
    pub fn is_shared(&self) -> bool {
        self.core().shared
    }

    /// True where nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.core().check_writable().is_err()
    }

    /// Bytes that changes of open files take in memory until they are committed.
    pub fn uncommitted_bytes(&self) -> usize {
        self.core().cache.changes.load(Ordering::Relaxed)
    }

    /// Files that a vault opened for reading only shows with what a journal of an interrupted mount holds for them: as they will be when
    /// somebody who may write opens the vault.
    pub fn replayed_in_memory(&self) -> usize {
        self.shares().cores().iter().map(|core| core.journal.overlaid()).sum()
    }

    /// Number of nodes that are known at the moment.
    pub fn node_count(&self) -> usize {
        self.shares().cores().iter().map(|core| core.nodes.len()).sum()
    }

    fn on_node<T>(&self, op: &'static str, node: NodeId, act: impl Fn(&Core, NodeId) -> error::Inner<T>) -> Result<T> {
        Ok(self.shares().run(op, node, act)?.0)
    }

    /// As [`Vault::on_node`], for what gives a node.
    fn attr_on(&self, op: &'static str, node: NodeId, act: impl Fn(&Core, NodeId) -> error::Inner<Attr>) -> Result<Attr> {
        let (attr, number) = self.shares().run(op, node, act)?;
        Ok(self.shares().attr(number, attr))
    }

    fn on_handle<T>(&self, op: &'static str, handle: Handle, act: impl FnOnce(&Core, Handle) -> error::Inner<T>) -> Result<T> {
        let route = self.shares().raw(handle).map_err(|_| Error::Os { op, errno: libc::EBADF })?;
        act(&route.core, route.local).map_err(|fault| {
            let local = match route.core.handle(route.local) {
                Ok(core::Open::File { file, .. }) => file.node,
                Ok(core::Open::Dir { node, .. }) => node,
                Err(_) => ROOT,
            };
            self.shares().explain(op, &Route { local, ..route }, fault)
        })
    }

    /// Two directories of one share; `EXDEV` where they are of two.
    fn in_one_share(&self, op: &'static str, a: NodeId, b: NodeId) -> Result<(Route, Route)> {
        let (a, b) = (self.shares().directory(op, a)?, self.shares().directory(op, b)?);
        if a.number == b.number { Ok((a, b)) } else { Err(Error::Os { op, errno: libc::EXDEV }) }
    }
}

impl Inside {
    fn close(&self) -> Result<()> {
        let thread = {
            let mut background = self.background.lock();
            *background.stop.0.lock() = true;
            background.stop.1.notify_all();
            background.thread.take()
        };
        if let Some(thread) = thread {
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
            result = result.and(close_core_after(&core, learn)); // every share is closed, whatever another one says
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

impl Vault {
    /// Finds `name` in a directory; counts one on its node.
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr> {
        self.attr_on("lookup", parent, |core, parent| core.lookup(parent, name))
    }

    /// Attributes of a node.
    pub fn getattr(&self, node: NodeId) -> Result<Attr> {
        self.attr_on("stat", node, |core, node| core.stat(node))
    }

    /// Changes attributes of a node.
    pub fn setattr(&self, node: NodeId, set: &SetAttr) -> Result<Attr> {
        self.attr_on("change attributes of", node, |core, node| core.setattr(node, set))
    }

    /// Target of a symbolic link.
    pub fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        self.on_node("readlink", node, |core, node| core.readlink(node))
    }

    /// Makes an empty file, a FIFO, a socket or a device; counts one.
    pub fn mknod(&self, caller: &Caller, parent: NodeId, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> Result<Attr> {
        self.attr_on("mknod", parent, |core, parent| {
            core.remember_name(parent, name);
            core.mknod(caller, parent, name, kind, perm, rdev)
        })
    }

    /// Makes a directory; counts one.
    pub fn mkdir(&self, caller: &Caller, parent: NodeId, name: &[u8], perm: u32) -> Result<Attr> {
        self.attr_on("mkdir", parent, |core, parent| {
            core.remember_name(parent, name);
            core.mkdir(caller, parent, name, perm)
        })
    }

    /// Makes a symbolic link; counts one.
    pub fn symlink(&self, caller: &Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.attr_on("symlink", parent, |core, parent| {
            core.remember_name(parent, name);
            core.symlink(caller, parent, name, target)
        })
    }

    /// Gives a node another name; counts one.
    pub fn link(&self, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Attr> {
        let to = self.shares().directory("link", new_parent)?;
        let of = self.shares().raw(node).map_err(|fault| self.shares().explain("link", &to, fault))?;
        if of.number != to.number {
            return Err(Error::Os { op: "link", errno: libc::EXDEV });
        }
        to.core.remember_name(to.local, new_name);
        let linked = to.core.link(of.local, to.local, new_name).map_err(|fault| self.shares().explain("link", &of, fault))?;
        Ok(self.shares().attr(to.number, linked))
    }

    /// Removes a name that is not a directory.
    pub fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        self.on_node("unlink", parent, |core, parent| {
            core.remember_name(parent, name);
            core.unlink(parent, name)
        })
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let route = self.shares().directory("rmdir", parent)?;
        // A share is not closed for nothing.
        route.core.check_writable().map_err(|fault| self.shares().explain("rmdir", &route, fault))?;
        if self.shares().has_nested()
            && let Ok(attr) = route.core.lookup(route.local, name)
        {
            // Where a share stands there, it is closed before its directory goes.
            let left = self.shares().leave(self.shares().outside(route.number, attr.node));
            route.core.nodes.forget(attr.node, 1);
            left?;
        }
        route.core.remember_name(route.local, name);
        route.core.rmdir(route.local, name).map_err(|fault| self.shares().explain("rmdir", &route, fault))
    }

    /// Renames an entry.
    pub fn rename(&self, parent: NodeId, name: &[u8], new_parent: NodeId, new_name: &[u8], mode: RenameMode) -> Result<()> {
        let (from, to) = self.in_one_share("rename", parent, new_parent)?;
        from.core.remember_name(from.local, name);
        from.core.remember_name(to.local, new_name);
        let renamed = from.core.rename(from.local, name, to.local, new_name, mode);
        renamed.map_err(|fault| self.shares().explain("rename", &from, fault))
    }

    /// Opens a regular file.
    pub fn open_file(&self, node: NodeId, flags: OpenFlags) -> Result<Opened> {
        let (opened, number) = self.shares().run("open", node, |core, node| core.open_file(node, flags))?;
        Ok(Opened { handle: Shares::outside_handle(number, opened.handle), ..opened })
    }

    /// Makes and opens a regular file; counts one. `EEXIST` where the name is taken.
    pub fn create_file(&self, caller: &Caller, parent: NodeId, name: &[u8], perm: u32, flags: OpenFlags) -> Result<(Attr, Opened)> {
        let created = self.shares().run("create in", parent, |core, parent| {
            core.remember_name(parent, name);
            core.create_file(caller, parent, name, perm, flags)
        });
        let ((attr, handle), number) = created?;
        let opened = Opened { handle: Shares::outside_handle(number, handle), keep_cache: true, resized: false };
        Ok((self.shares().attr(number, attr), opened))
    }

    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    pub fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.on_handle("read", handle, |core, handle| core.read(handle, offset, buf))
    }

    /// Writes all of `data`; at the end of the file where the handle was opened to append.
    pub fn write(&self, handle: Handle, offset: u64, data: &[u8], kill_suid_sgid: bool) -> Result<()> {
        self.on_handle("write", handle, |core, handle| core.write(handle, offset, data, kill_suid_sgid))
    }

    /// What close(2) of a descriptor is to report: a failure that happened since the file was opened.
    pub fn flush(&self, handle: Handle) -> Result<()> {
        self.on_handle("flush", handle, |core, handle| core.flush(handle))
    }

    /// Makes contents and attributes durable.
    pub fn fsync(&self, handle: Handle, data_only: bool) -> Result<()> {
        self.on_handle("fsync", handle, |core, handle| core.fsync(handle, data_only))
    }

    /// Closes a file; the last handle commits.
    pub fn release(&self, handle: Handle) -> Result<()> {
        self.on_handle("close", handle, |core, handle| core.release_handle(handle))
    }

    /// The next data or hole at or after `offset`.
    pub fn seek_data_hole(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        self.on_handle("seek in", handle, |core, handle| core.seek_data_hole(handle, offset, what))
    }

    /// As [`Vault::seek_data_hole`], where a cache above may hold back what programs have written. Of the range `sent` it holds nothing.
    pub fn seek_under_cache(&self, handle: Handle, offset: u64, what: Seek, sent: Range<u64>) -> Result<Sought> {
        self.on_handle("seek in", handle, |core, handle| core.seek_under_cache(handle, offset, what, &sent))
    }

    /// Reserves, punches or zeroes a range.
    pub fn fallocate(&self, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Result<()> {
        self.on_handle("fallocate", handle, |core, handle| core.fallocate(handle, offset, len, mode))
    }

    /// Copies a range between two open files, sealed anew under the keys of the second; gives the bytes copied.
    pub fn copy_range(&self, from: Handle, from_offset: u64, to: Handle, to_offset: u64, len: u64) -> Result<u64> {
        let from = self.shares().raw(from).map_err(|_| Error::Os { op: "copy", errno: libc::EBADF })?;
        self.on_handle("copy", to, |core, to| {
            if !std::ptr::eq(core, &*from.core) {
                return Err(Fault::Os(libc::EXDEV));
            }
            core.copy_range(from.local, from_offset, to, to_offset, len)
        })
    }

    /// Opens a directory for listing.
    pub fn open_dir(&self, node: NodeId) -> Result<Handle> {
        let (handle, number) = self.shares().run("open", node, |core, node| core.open_dir(node))?;
        Ok(Shares::outside_handle(number, handle))
    }

    /// Entries from position `cookie` on (0 is the beginning), without `.` and `..`; empty is the end.
    pub fn read_dir(&self, handle: Handle, cookie: i64, limit: usize) -> Result<Vec<Entry>> {
        self.on_handle("list", handle, |core, handle| core.read_dir(handle, cookie, limit))
    }

    /// What the names in an open directory are read with.
    pub fn names_read_with(&self, handle: Handle) -> Result<NamesReadWith> {
        self.on_handle("look at", handle, |core, handle| core.names_read_with(handle))
    }

    /// Whether changes of an open directory certainly bear the time of this machine's clock.
    pub fn has_our_clock(&self, handle: Handle) -> bool {
        self.on_handle("look at", handle, |core, handle| Ok(core.has_our_clock(handle))).unwrap_or(false)
    }

    /// Whether this handle has listed, or passed over, an entry whose name cannot be read as yet: what tells it may come without a change
    /// of the directory.
    pub fn has_unread_names(&self, handle: Handle) -> bool {
        self.on_handle("look at", handle, |core, handle| Ok(core.has_unread_names(handle))).unwrap_or(false)
    }

    /// Attributes of an entry of a listing; counts one.
    pub fn lookup_entry(&self, handle: Handle, entry: &Entry) -> Result<Attr> {
        let number = self.shares().raw(handle).map_or(0, |route| route.number);
        let attr = self.on_handle("lookup in", handle, |core, handle| core.lookup_entry(handle, entry))?;
        Ok(self.shares().attr(number, attr))
    }

    /// Makes the entries of a directory durable.
    pub fn sync_dir(&self, handle: Handle) -> Result<()> {
        self.on_handle("fsync", handle, |core, handle| core.sync_dir(handle))
    }

    /// Value of an extended attribute; `ENODATA` where there is none.
    pub fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.on_node("get attribute of", node, |core, node| core.get_xattr(node, name))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        self.on_node("set attribute of", node, |core, node| core.set_xattr(node, name, value, mode))
    }

    /// Names of the extended attributes, with their namespaces.
    pub fn list_xattr(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.on_node("list attributes of", node, |core, node| core.list_xattr(node))
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.on_node("remove attribute of", node, |core, node| core.remove_xattr(node, name))
    }

    /// Takes the set-group-id bit away, as a change of the ACL by somebody outside the group does.
    pub fn clear_sgid(&self, node: NodeId) -> Result<()> {
        self.on_node("change attributes of", node, |core, node| core.clear_sgid(node))
    }

    /// Clears suid and (where group-executable) sgid of an open file, as any change of its contents by an ordinary user does.
    pub fn clear_suid_sgid(&self, handle: Handle) -> Result<()> {
        self.on_handle("change attributes of", handle, |core, handle| core.clear_suid_sgid(handle))
    }

    /// Whose contents a regular file holds, and who vouches for them, as its committed header says; `None` in a share that is not signed.
    pub fn author(&self, node: NodeId) -> Result<Option<Authorship>> {
        self.on_node("read", node, |core, node| core.author(node))
    }

    /// Lets go of `count` lookups of a node.
    pub fn forget(&self, node: NodeId, count: u64) {
        if let Ok(route) = self.shares().raw(node) {
            route.core.nodes.forget(route.local, count);
        }
    }

    /// Gives the object behind a node a new node at its next lookup: for those who hold attributes of this one that turned out wrong.
    pub fn renew(&self, node: NodeId) {
        if let Ok(route) = self.shares().raw(node) {
            route.core.nodes.renew(route.local);
        }
    }

    /// Closes a directory.
    pub fn release_dir(&self, handle: Handle) {
        let _ = self.on_handle("close", handle, |core, handle| core.release_handle(handle));
    }

    /// The directory that a directory stands in; the root is its own.
    pub fn parent(&self, node: NodeId) -> NodeId {
        let parent = self.shares().raw(node).and_then(|route| {
            let link = route.core.nodes.link(route.local)?;
            Ok(self.shares().outside(route.number, link.parent))
        });
        parent.unwrap_or(ROOT)
    }

    /// Free and used space of the store.
    pub fn space(&self) -> Result<Space> {
        let space = self.core().root.space().map_err(|e| self.core().explain("measure", ROOT, e.into()))?;
        Ok(Space { name_max: crate::format::name::NAME_MAX as u64, ..space })
    }
}
