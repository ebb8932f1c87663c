//! Opening a vault for a command.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::cli::args::{MemoryArgs, OpenArgs};
use crate::cli::daemon::registry::Registry;
use crate::cli::display::path as shown;
use crate::cli::error::Error;
use crate::cli::local::Object;
use crate::cli::report::{Failure, in_vault, unopened};
use crate::cli::secrets::identity::{self, Asked, Locked, Place, Unlocked};
use crate::cli::secrets::source::Opens;
use crate::cli::user::share_memory::Shares;
use crate::cli::user::{directories, rollback_memory};
use crate::cli::vaults::sync_folder;
use crate::store::Dir;
use crate::store::os::OsDir;
use crate::vault::{
    self, Description, Events, Kept, Local, LockMode, OpenOptions, Person, Pins, RemovedShare,
    Trust, Vault,
};

/// What a command does with a vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Reads. In a vault that is marked as shared, beside concurrent writers.
    Read,
    /// Reads and writes. In a vault that is marked as shared, with concurrent writers.
    Write,
    /// Reads and writes, with concurrent writers.
    WriteShared,
    /// Reads, beside openers with [`Purpose::WriteShared`].
    ReadShared,
    /// Reads, with no concurrent writer.
    ReadAlone,
    /// Reads and writes, with no concurrent writer.
    WriteAlone,
    /// Reads, and at most adds control files, while another process may have the vault open.
    Beside,
}

/// A vault that was found and is still locked.
pub struct Found {
    /// Its directory, absolute and without symlinks.
    pub dir: PathBuf,
    /// Its store.
    pub store: Arc<dyn Dir>,
    /// Its public facts.
    pub description: Description,
    /// Whether reads update access times.
    pub access_times: bool,
    /// Whether the kernel's writeback cache is used.
    pub kernel_caches: bool,
    /// Receives what happens in the vault.
    pub events: Events,
}

/// An open vault and its directory.
pub struct Open {
    /// The vault.
    pub vault: Vault,
    /// Its directory.
    pub dir: PathBuf,
    /// The id of its share.
    pub share: [u8; 32],
}

/// Returns the directory of a vault, absolute and without symlinks.
///
/// # Errors
/// The directory does not exist.
pub fn locate(given: &Path) -> Result<PathBuf, Error> {
    given.canonicalize().map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT) => Error::VaultMissing(given.to_owned()),
        _ => Error::Io { op: "open vault", path: given.to_owned(), source },
    })
}

/// Finds a vault and reads its public facts.
///
/// # Errors
/// It does not exist, is not a vault, or has a newer version.
pub fn find(given: &Path) -> Result<Found, Failure> {
    let dir = match locate(given) {
        Err(Error::Io { source, .. }) => return Err(unopened(given, source)),
        found => found?,
    };
    let store = match OsDir::open(&dir) {
        Ok(store) => store,
        Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => {
            return Err(in_vault(vault::Error::NotAVault { path: PathBuf::new() }, &dir, None));
        }
        Err(source) => return Err(unopened(&dir, source)),
    };
    let description = Vault::describe(&store).map_err(|error| in_vault(error, &dir, None))?;
    Ok(Found {
        dir,
        store,
        description,
        access_times: true,
        kernel_caches: false,
        events: Events::default(),
    })
}

impl Found {
    /// Returns whether several daemons may have the vault open for writing: it is marked as shared,
    /// or a daemon has it open as shared now, and it is not synced.
    pub fn is_shared(&self) -> bool {
        let is_open_so = !self.description.shared_by.is_empty();
        (self.description.shared || is_open_so) && !self.description.synced
    }

    /// Returns whether this seems to be one of several copies of a share, which are neither marked
    /// as synced nor as shared.
    fn is_replicated(&self) -> bool {
        let is_known = self.description.synced || self.is_shared();
        self.description.signed && !is_known && sync_folder::tool(&self.dir).is_some()
    }

    /// Refuses a vault that this user has mounted. The message names the mount point; the vault
    /// itself could name only the process.
    ///
    /// # Errors
    /// The vault is mounted.
    pub fn refuse_mounted(&self) -> Result<(), Error> {
        // Without a registry, the vault's own lock still refuses.
        let entries = Registry::open().and_then(|registry| registry.live()).unwrap_or_default();
        match entries.into_iter().find(|entry| entry.vault.0 == self.dir && !entry.read_only) {
            Some(entry) => Err(Error::AlreadyMounted {
                vault: self.dir.clone(),
                mountpoint: entry.mountpoint.0,
                pid: entry.process.pid,
            }),
            None => Ok(()),
        }
    }

    /// Waits until a daemon that was unmounted from this vault has written everything, as umount(8)
    /// does not wait. The wait is bounded: a lazily unmounted daemon ends only when the last
    /// program releases it.
    pub fn wait_for_last_daemon(&self) {
        const PATIENCE: Duration = Duration::from_secs(10);
        // If a daemon is not listed or does not end, the vault's own lock still refuses this one.
        for process in
            Registry::open().and_then(|registry| registry.writing(&self.dir)).unwrap_or_default()
        {
            let _ = process.wait_for_end(PATIENCE);
        }
    }

    /// Reads the identity that opens this vault, and gets its secret.
    ///
    /// # Errors
    /// There is no identity, or the secret is not available.
    pub fn ask(&self, args: &OpenArgs) -> Result<(Locked, Asked), Failure> {
        let locked = identity::find(args.choice(), &self.store, &self.dir)?;
        // The prompt for a vault's own identity names the vault.
        let own = Place::in_vault(&self.store, &self.dir).path;
        let opens = match &locked.place.path {
            path if args.identity.is_none() && *path == own => Opens::Vault(self.dir.clone()),
            path => identity::opens(path),
        };
        let asked = locked.ask(&args.secret, &opens)?;
        Ok((locked, asked))
    }

    /// Unlocks the identity with the secret from [`Found::ask`], and opens the vault.
    ///
    /// # Errors
    /// The secret does not match, or the vault cannot be opened.
    pub fn unlock(
        self,
        (locked, asked): (Locked, Asked),
        args: &OpenArgs,
        purpose: Purpose,
    ) -> Result<Open, Failure> {
        self.open_with(locked.unlock_vault(asked)?, args, purpose)
    }

    /// Opens the vault with identities that were unlocked.
    ///
    /// # Errors
    /// The vault cannot be opened.
    pub fn open_with(
        self,
        Unlocked { identity, person }: Unlocked,
        args: &OpenArgs,
        purpose: Purpose,
    ) -> Result<Open, Failure> {
        let default = OpenOptions::default();
        // Also for a vault with one owner, as shares may be nested in it.
        let pins = match Shares::of_user() {
            Ok(shares) => Some(Arc::new(shares) as Arc<dyn Pins>),
            Err(error) if self.description.signed => return Err(error.into()),
            Err(_) => None,
        };
        let trust = Trust { pins, first_use: args.trust_on_first_use };
        let local = local(&self.dir, self.description.synced);
        let options = OpenOptions {
            local,
            read_only: !matches!(
                purpose,
                Purpose::Write | Purpose::WriteShared | Purpose::WriteAlone
            ),
            access_times: self.access_times,
            caller_caches: self.kernel_caches,
            cache_bytes: args.cache_size.unwrap_or(default.cache_bytes),
            lock: match purpose {
                Purpose::Beside => LockMode::None,
                Purpose::WriteShared | Purpose::ReadShared => LockMode::Shared,
                Purpose::ReadAlone | Purpose::WriteAlone => LockMode::Exclusive,
                Purpose::Read | Purpose::Write => LockMode::AsMarked,
            },
            in_sync_folder: self.is_replicated(),
            trust,
            person: person.map(|person| Person(Arc::new(person))),
            events: self.events,
            usage: default.usage,
        };
        match Vault::open(self.store, &identity, options) {
            Ok(vault) => Ok(Open { vault, dir: self.dir, share: self.description.share_id }),
            Err(error) => Err(in_vault(error, &self.dir, None)),
        }
    }
}

/// Returns where this machine keeps its own records of the vault in `dir`; `None` without a state
/// directory. With `make`, a missing state directory is created.
pub fn local(dir: &Path, make: bool) -> Option<Local> {
    let state = directories::state().ok()?;
    if make && let Err(error) = directories::make_parent(&state.join("synced")) {
        tracing::warn!("{error}");
    }
    match OsDir::open(&state) {
        Ok(state) => Some(Local { state, path: dir.to_owned() }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!("the state directory {} cannot be used: {error}", shown(&state));
            None
        }
    }
}

/// Returns the journals of a share that this machine keeps and does not replay by itself, with
/// absolute paths.
pub fn kept_journals(dir: &Path, share: &[u8; 32]) -> Vec<Kept> {
    let kept = local(dir, false).map(|local| local.kept(share)).unwrap_or_default();
    let state = directories::state().unwrap_or_default();
    kept.into_iter().map(|kept| Kept { folder: state.join(&kept.folder), ..kept }).collect()
}

/// Returns the shares that this machine has removed from synced vaults and whose control files it
/// keeps, with absolute paths.
pub fn removed_shares(dir: &Path) -> Vec<RemovedShare> {
    let removed = local(dir, false).map(|local| local.removed()).unwrap_or_default();
    let state = directories::state().unwrap_or_default();
    let absolute = |it: RemovedShare| RemovedShare { folder: state.join(&it.folder), ..it };
    removed.into_iter().map(absolute).collect()
}

/// Finds, unlocks and opens a vault.
///
/// # Errors
/// Those of each step.
pub fn open(given: &Path, args: &OpenArgs, purpose: Purpose) -> Result<Open, Failure> {
    let found = find(given)?;
    let alone = matches!(purpose, Purpose::ReadAlone | Purpose::WriteAlone);
    if purpose != Purpose::Beside && (alone || !found.is_shared()) {
        found.refuse_mounted()?;
    }
    let secret = found.ask(args)?;
    found.unlock(secret, args, purpose)
}

impl Open {
    /// Records what the command does from now on in the rollback database, and reports alarms that
    /// are recorded there, unless `args` switches that off.
    pub fn recording(self, args: &MemoryArgs) -> Open {
        if !args.no_rollback_memory {
            let limit = args.limit.rollback_memory;
            rollback_memory::begin(&self.vault, &self.share, false, limit);
        }
        self
    }

    /// Returns a function that describes a failure of this vault at the plain path `plain`.
    pub fn failed<'a>(&'a self, plain: &'a [u8]) -> impl Fn(vault::Error) -> Failure + 'a {
        move |error| in_vault(error, &self.dir, Some(plain))
    }

    /// Refuses a directory for plain files inside the vault, where the storage host could read
    /// them. Called before anything is created there.
    ///
    /// # Errors
    /// The directory is inside the vault, or its path cannot be examined.
    pub fn refuse_within(&self, op: &'static str, place: &Path) -> Result<(), Error> {
        let start = if place.is_absolute() { place.to_owned() } else { Path::new(".").join(place) };
        let there = start.ancestors().find_map(|path| match path.canonicalize() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            found => Some(found),
        });
        match there {
            Some(Ok(there)) if there.starts_with(&self.dir) => Err(self.within(op, place)),
            Some(Err(source)) => Err(Error::Io { op, path: place.to_owned(), source }),
            _ => Ok(()),
        }
    }

    /// Creates a directory for plain files if it is missing, and opens it.
    ///
    /// # Errors
    /// It is inside the vault (see [`Open::refuse_within`]), or cannot be created or opened.
    pub fn make_target(&self, op: &'static str, dir: &Path) -> Result<Object, Error> {
        self.refuse_within(op, dir)?;
        let failed = |source| Error::Io { op, path: dir.to_owned(), source };
        std::fs::create_dir_all(dir).map_err(failed)?;
        self.open_target(dir).map_err(failed)?.ok_or_else(|| self.within(op, dir))
    }

    /// Opens a directory for plain files; `None` if it is inside the vault. [`Open::refuse_within`]
    /// misses that if a directory was replaced with a symlink since.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_target(&self, dir: &Path) -> std::io::Result<Option<Object>> {
        let target = Object::open_root(dir)?;
        let is_within = target.is_within(&Object::open_root(&self.dir)?)?;
        Ok((!is_within).then_some(target))
    }

    /// Returns the error for a directory of plain files inside the vault.
    pub fn within(&self, op: &'static str, place: &Path) -> Error {
        Error::Usage(format!("{op} {}: it is inside the vault {}", shown(place), shown(&self.dir)))
    }

    /// Commits everything and closes the vault. Every command that has written calls this at its
    /// end.
    ///
    /// # Errors
    /// A write failed.
    pub fn close(&self) -> Result<(), Failure> {
        self.vault.close().map_err(|error| in_vault(error, &self.dir, None))
    }
}
