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
mod core;
mod entries;
mod error;
mod file;
mod io;
mod journal;
mod keys;
mod lock;
mod members;
mod names;
mod nodes;
mod path;
mod refresh;
mod share;
mod signed;
mod symlink;
mod tree;
mod trust;
pub mod types;
mod xattr;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

pub use self::check::{CheckFault, CheckProgress, CheckReport};
pub use self::error::{Error, LockHolder, Result};
pub use self::members::{LogEntry, MemberChanges, Share, ShareInfo};
pub use self::share::{CreateOptions, CreateShare, IDENTITY_FILE};
pub use self::trust::{Pins, Trust};
pub use self::types::*;
pub use crate::format::signature::Authorship;

use self::core::{Core, Parts};
use self::error::Fault;
use self::journal::Journal;
use self::keys::ShareKeys;
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
    /// Not asked: for reading what may be changing.
    None,
}

/// How a vault is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Nothing is changed, not even by a recovery.
    pub read_only: bool,
    /// Bytes that the caches may take.
    pub cache_bytes: usize,
    /// Lock.
    pub lock: LockMode,
    /// Which shares are entered.
    pub trust: Trust,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { read_only: false, cache_bytes: 64 << 20, lock: LockMode::Exclusive, trust: Trust::default() }
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
    /// Who has it open.
    pub locked_by: Option<LockHolder>,
}

struct Background {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

struct Inside {
    core: Arc<Core>,
    trust: Trust,
    background: Mutex<Background>,
}

/// An open vault. Clones are the same vault; the last one that goes away closes it.
#[derive(Clone)]
pub struct Vault {
    inside: Arc<Inside>,
}

fn background(core: &Arc<Core>, trust: &Trust) -> Background {
    let stop = Arc::new((Mutex::new(false), Condvar::new()));
    let (core, signal, trust) = (core.clone(), stop.clone(), trust.clone());
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
                parking_lot::MutexGuard::unlocked(&mut stopped, || {
                    if core.keys.signed()
                        && let Err(error) = core.refresh(&trust)
                    {
                        tracing::error!("{error}");
                    }
                    core.commit_due(COMMIT_AFTER);
                    if let Err(fault) = core.journal.checkpoint_idle(JOURNAL_IDLE) {
                        tracing::error!(errno = fault.errno(), "journal checkpoint failed");
                    }
                });
            }
        })
        .ok();
    Background { stop, thread }
}

/// Opens an entered share: takes the lock, replays what a crash left.
fn open_core(store: Arc<dyn Dir>, entered: &share::Entered, identity: Arc<Identity>, options: &OpenOptions) -> Result<Core> {
    let at = |fault: Fault| fault.at("open", PathBuf::new);
    let descriptor = &entered.descriptor;
    let layout = Layout::new(descriptor.chunk_log2, descriptor.signed).expect("the descriptor's chunk size was checked");
    let signing = Signing::new(identity.clone(), entered.rights());
    let keys = ShareKeys::new(descriptor.share_id(), descriptor.suite, layout, &entered.heads[0].keys, signing);
    for head in &entered.heads[1..] {
        keys.know(&head.keys);
    }
    // Who may not write has no key with which anybody would believe him.
    let read_only = options.read_only || !keys.signing.may_write() || store.is_read_only().map_err(|e| at(e.into()))?;
    let lock = match options.lock {
        LockMode::Exclusive if !read_only => match lock::take(&store).map_err(at)? {
            lock::Attempt::Held(lock) => Some(lock),
            lock::Attempt::Taken(holder) => return Err(Error::InUse { path: PathBuf::new(), holder }),
        },
        _ => None,
    };
    let random: Arc<dyn Random> = Arc::new(OsRandom);
    let journal_key = identity.journal_key(&keys.share);
    let journal = Journal::new(store.clone(), keys.clone(), random.clone(), journal_key, lock::host());
    if lock.is_some() {
        let replayed = journal.replay().map_err(at)?;
        if replayed > 0 {
            tracing::info!("journal: {replayed} files brought up to date after a crash");
        }
    } else if !journal.leftover().map_err(at)?.is_empty() {
        tracing::warn!("a journal of an interrupted mount is there; files in it show their state before it until a mount can write");
    }
    Core::new(Parts { root: store, keys, random, journal, cache_bytes: options.cache_bytes, read_only, lock }).map_err(at)
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
        })
    }

    /// Opens a vault: verifies its roster, opens the identity's slot, takes the lock, replays what a crash left.
    ///
    /// # Errors
    /// Those of [`Vault::describe`]; [`Error::NoAccess`], [`Error::InUse`], [`Error::Share`].
    pub fn open(store: Arc<dyn Dir>, identity: &Identity, options: OpenOptions) -> Result<Vault> {
        let identity = Arc::new(identity.duplicate());
        let entered = share::enter(&*store, &identity, &options.trust, None, &PathBuf::new())?;
        let core = Arc::new(open_core(store, &entered, identity, &options)?);
        core.refreshed().map_err(|fault| fault.at("open", PathBuf::new))?;
        let background = Mutex::new(background(&core, &options.trust));
        Ok(Vault { inside: Arc::new(Inside { core, trust: options.trust, background }) })
    }

    /// Makes a signed share with members in an empty directory, to be opened as a vault of its own.
    ///
    /// # Errors
    /// As [`Vault::create`]; a name or key that cannot be in a list of members.
    pub fn create_signed(store: &Arc<dyn Dir>, options: &CreateOptions, owner: &Identity, share: &CreateShare) -> Result<()> {
        share::create_signed(store, options, owner, share, &OsRandom)
    }

    fn core(&self) -> &Core {
        &self.inside.core
    }

    /// Commits everything, empties the journal and releases the lock. What fails is reported once; a second call does nothing.
    ///
    /// # Errors
    /// The first failure; everything else is committed all the same.
    pub fn close(&self) -> Result<()> {
        self.inside.close()
    }

    /// Commits what has been waiting for at least `age`.
    pub fn commit_due(&self, age: Duration) {
        self.core().commit_due(age);
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
        self.core().refresh(&self.inside.trust)
    }

    /// True where nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.core().check_writable().is_err()
    }

    /// Number of nodes that are known at the moment.
    pub fn node_count(&self) -> usize {
        self.core().nodes.len()
    }

    fn on_node<T>(&self, op: &'static str, node: NodeId, act: impl FnOnce(&Core) -> error::Inner<T>) -> Result<T> {
        act(self.core()).map_err(|fault| self.core().explain(op, node, fault))
    }

    fn on_handle<T>(&self, op: &'static str, handle: Handle, act: impl FnOnce(&Core) -> error::Inner<T>) -> Result<T> {
        act(self.core()).map_err(|fault| {
            let node = match self.core().handle(handle) {
                Ok(core::Open::File { file, .. }) => file.node,
                Ok(core::Open::Dir { node, .. }) => node,
                Err(_) => ROOT,
            };
            self.core().explain(op, node, fault)
        })
    }
}

impl Inside {
    fn close(&self) -> Result<()> {
        if self.core.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let thread = {
            let mut background = self.background.lock();
            *background.stop.0.lock() = true;
            background.stop.1.notify_all();
            background.thread.take()
        };
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        let mut result = Ok(());
        let mut keep = |outcome: error::Inner<()>, node: NodeId| {
            if let (Err(fault), true) = (outcome, result.is_ok()) {
                result = Err(self.core.explain("commit", node, fault));
            }
        };
        if !self.core.read_only {
            let open: Vec<_> = self.core.files.lock().values().map(|s| s.file.clone()).collect();
            for file in open {
                if self.core.has_name(&file) {
                    keep(self.core.commit(&file, commit::Durability::Ordered), file.node);
                }
            }
            keep(self.core.journal.close(), ROOT);
        }
        drop(self.core.lock.lock().take());
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
        self.on_node("lookup", parent, |core| core.lookup(parent, name))
    }

    /// Attributes of a node.
    pub fn getattr(&self, node: NodeId) -> Result<Attr> {
        self.on_node("stat", node, |core| core.stat(node))
    }

    /// Changes attributes of a node.
    pub fn setattr(&self, node: NodeId, set: &SetAttr) -> Result<Attr> {
        self.on_node("change attributes of", node, |core| core.setattr(node, set))
    }

    /// Target of a symbolic link.
    pub fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        self.on_node("readlink", node, |core| core.readlink(node))
    }

    /// Makes an empty file, a FIFO, a socket or a device; counts one.
    pub fn mknod(&self, caller: &Caller, parent: NodeId, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> Result<Attr> {
        self.on_node("mknod", parent, |core| core.mknod(caller, parent, name, kind, perm, rdev))
    }

    /// Makes a directory; counts one.
    pub fn mkdir(&self, caller: &Caller, parent: NodeId, name: &[u8], perm: u32) -> Result<Attr> {
        self.on_node("mkdir", parent, |core| core.mkdir(caller, parent, name, perm))
    }

    /// Makes a symbolic link; counts one.
    pub fn symlink(&self, caller: &Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.on_node("symlink", parent, |core| core.symlink(caller, parent, name, target))
    }

    /// Gives a node another name; counts one.
    pub fn link(&self, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Attr> {
        self.on_node("link", node, |core| core.link(node, new_parent, new_name))
    }

    /// Removes a name that is not a directory.
    pub fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        self.on_node("unlink", parent, |core| core.unlink(parent, name))
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        self.on_node("rmdir", parent, |core| core.rmdir(parent, name))
    }

    /// Renames an entry.
    pub fn rename(&self, parent: NodeId, name: &[u8], new_parent: NodeId, new_name: &[u8], mode: RenameMode) -> Result<()> {
        self.on_node("rename", parent, |core| core.rename(parent, name, new_parent, new_name, mode))
    }

    /// Opens a regular file.
    pub fn open_file(&self, node: NodeId, flags: OpenFlags) -> Result<Opened> {
        self.on_node("open", node, |core| core.open_file(node, flags))
    }

    /// Makes and opens a regular file; counts one. `EEXIST` where the name is taken.
    pub fn create_file(&self, caller: &Caller, parent: NodeId, name: &[u8], perm: u32, flags: OpenFlags) -> Result<(Attr, Opened)> {
        self.on_node("create in", parent, |core| {
            core.create_file(caller, parent, name, perm, flags)
                .map(|(attr, handle)| (attr, Opened { handle, keep_cache: true, resized: false }))
        })
    }

    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    pub fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.on_handle("read", handle, |core| core.read(handle, offset, buf))
    }

    /// Writes all of `data`; at the end of the file where the handle was opened to append.
    pub fn write(&self, handle: Handle, offset: u64, data: &[u8], kill_suid_sgid: bool) -> Result<()> {
        self.on_handle("write", handle, |core| core.write(handle, offset, data, kill_suid_sgid))
    }

    /// What close(2) of a descriptor is to report: a failure that happened since the file was opened.
    pub fn flush(&self, handle: Handle) -> Result<()> {
        self.on_handle("flush", handle, |core| core.flush(handle))
    }

    /// Makes contents and attributes durable.
    pub fn fsync(&self, handle: Handle, data_only: bool) -> Result<()> {
        self.on_handle("fsync", handle, |core| core.fsync(handle, data_only))
    }

    /// Closes a file; the last handle commits.
    pub fn release(&self, handle: Handle) -> Result<()> {
        self.on_handle("close", handle, |core| core.release_handle(handle))
    }

    /// The next data or hole at or after `offset`.
    pub fn seek_data_hole(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        self.on_handle("seek in", handle, |core| core.seek_data_hole(handle, offset, what))
    }

    /// Reserves, punches or zeroes a range.
    pub fn fallocate(&self, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Result<()> {
        self.on_handle("fallocate", handle, |core| core.fallocate(handle, offset, len, mode))
    }

    /// Copies a range between two open files, sealed anew under the keys of the second; gives the bytes copied.
    pub fn copy_range(&self, from: Handle, from_offset: u64, to: Handle, to_offset: u64, len: u64) -> Result<u64> {
        self.on_handle("copy", to, |core| core.copy_range(from, from_offset, to, to_offset, len))
    }

    /// Opens a directory for listing.
    pub fn open_dir(&self, node: NodeId) -> Result<Handle> {
        self.on_node("open", node, |core| core.open_dir(node))
    }

    /// Entries from position `cookie` on (0 is the beginning), without `.` and `..`; empty is the end.
    pub fn read_dir(&self, handle: Handle, cookie: i64, limit: usize) -> Result<Vec<Entry>> {
        self.on_handle("list", handle, |core| core.read_dir(handle, cookie, limit))
    }

    /// Attributes of an entry of a listing; counts one.
    pub fn lookup_entry(&self, handle: Handle, entry: &Entry) -> Result<Attr> {
        self.on_handle("lookup in", handle, |core| core.lookup_entry(handle, entry))
    }

    /// Makes the entries of a directory durable.
    pub fn sync_dir(&self, handle: Handle) -> Result<()> {
        self.on_handle("fsync", handle, |core| core.sync_dir(handle))
    }

    /// Value of an extended attribute; `ENODATA` where there is none.
    pub fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.on_node("get attribute of", node, |core| core.get_xattr(node, name))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        self.on_node("set attribute of", node, |core| core.set_xattr(node, name, value, mode))
    }

    /// Names of the extended attributes, with their namespaces.
    pub fn list_xattr(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.on_node("list attributes of", node, |core| core.list_xattr(node))
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.on_node("remove attribute of", node, |core| core.remove_xattr(node, name))
    }

    /// Whose contents a regular file holds, and who vouches for them, as its committed header says; `None` in a share that is not signed.
    pub fn author(&self, node: NodeId) -> Result<Option<Authorship>> {
        self.on_node("read", node, |core| core.author(node))
    }

    /// Finds the entry at `path` from the root, never following a link; counts one on its node.
    pub fn resolve(&self, path: &[u8]) -> Result<Attr> {
        self.on_node("find", ROOT, |core| core.resolve(path))
    }

    /// Stored path of a plain one, from the root; the last component need not be there.
    pub fn cipher_path(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.on_node("map", ROOT, |core| core.cipher_path(path))
    }

    /// Plain path of a stored one.
    pub fn plain_path(&self, cipher: &[u8]) -> Result<Vec<u8>> {
        self.on_node("map", ROOT, |core| core.plain_path(cipher))
    }

    /// Lets go of `count` lookups of a node.
    pub fn forget(&self, node: NodeId, count: u64) {
        self.core().nodes.forget(node, count);
    }

    /// Gives the object behind a node a new node at its next lookup: for those who hold attributes of this one that turned out wrong.
    pub fn renew(&self, node: NodeId) {
        self.core().nodes.renew(node);
    }

    /// Closes a directory.
    pub fn release_dir(&self, handle: Handle) {
        let _ = self.core().release_handle(handle);
    }

    /// The directory that a directory stands in; the root is its own.
    pub fn parent(&self, node: NodeId) -> NodeId {
        self.core().nodes.link(node).map_or(ROOT, |link| link.parent)
    }

    /// Free and used space of the store.
    pub fn space(&self) -> Result<Space> {
        let space = self.core().root.space().map_err(|e| self.core().explain("measure", ROOT, e.into()))?;
        Ok(Space { name_max: crate::format::name::NAME_MAX as u64, ..space })
    }

    /// Authenticates everything at `start` and below it.
    pub fn check(&self, start: &[u8], progress: &mut dyn FnMut(&CheckProgress)) -> Result<CheckReport> {
        self.on_node("check", ROOT, |core| {
            let node = core.resolve(start)?.node;
            let cipher = core.nodes.stored_path(node).unwrap_or_default();
            let report = core.check(node, start, &cipher, progress);
            core.nodes.forget(node, 1);
            report
        })
    }
}
