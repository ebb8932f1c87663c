//! Opening a vault for a command.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::cli::args::OpenArgs;
use crate::cli::daemon::registry::Registry;
use crate::cli::display::path as shown;
use crate::cli::error::Error;
use crate::cli::local::Object;
use crate::cli::report::{Failure, in_vault};
use crate::cli::secrets::identity::{self, Locked};
use crate::cli::secrets::source::{Environment, Given, Source};
use crate::cli::user::rollback_memory;
use crate::cli::user::share_memory::Shares;
use crate::store::Dir;
use crate::store::os::OsDir;
use crate::vault::{self, Description, LockMode, OpenOptions, Pins, Trust, Vault};

/// What a command does with a vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Reads.
    Read,
    /// Reads and writes.
    Write,
    /// Reads and writes, while others who say the same do so too.
    WriteShared,
    /// Reads, while others write who are in [`Purpose::WriteShared`].
    ReadShared,
    /// Reads, and adds control files at the most, while another process may have it open.
    Beside,
}

/// A vault that was found and is not yet unlocked.
pub struct Found {
    /// Its directory, absolute and without links.
    pub dir: PathBuf,
    /// Its store.
    pub store: Arc<dyn Dir>,
    /// What is public of it.
    pub description: Description,
    /// Reading files in it is to change their times of access.
    pub access_times: bool,
    /// The vault is for a mount with the kernel's writeback cache.
    pub kernel_caches: bool,
}

/// An open vault and where it lies.
pub struct Open {
    /// The vault.
    pub vault: Vault,
    /// Its directory.
    pub dir: PathBuf,
}

/// The directory of a vault, absolute and without links.
///
/// # Errors
/// It does not exist.
pub fn locate(given: &Path) -> Result<PathBuf, Error> {
    given.canonicalize().map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT) => Error::VaultMissing(given.to_owned()),
        _ => Error::Io { op: "open vault", path: given.to_owned(), source },
    })
}

/// Finds a vault and reads what is public of it.
///
/// # Errors
/// It does not exist, is none, or is of a newer version.
pub fn find(given: &Path) -> Result<Found, Failure> {
    let dir = locate(given)?;
    let store = match OsDir::open(&dir) {
        Ok(store) => store,
        Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => {
            return Err(in_vault(vault::Error::NotAVault { path: PathBuf::new() }, &dir, None));
        }
        Err(source) => return Err(Error::Io { op: "open vault", path: dir, source }.into()),
    };
    let description = Vault::describe(&store).map_err(|error| in_vault(error, &dir, None))?;
    Ok(Found { dir, store, description, access_times: true, kernel_caches: false })
}

impl Found {
    /// Refuses a vault that is mounted by this user, naming the place, where the vault itself could
    /// only name the process.
    ///
    /// # Errors
    /// It is mounted.
    pub fn refuse_mounted(&self) -> Result<(), Error> {
        // without a registry the vault's own lock still refuses
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

    /// Waits until a daemon that was unmounted from this vault has written what is left: umount(8)
    /// does not wait for it. Not for ever, for one that was unmounted lazily ends when the last
    /// program lets go.
    pub fn wait_for_last_daemon(&self) {
        const PATIENCE: Duration = Duration::from_secs(10);
        // what cannot be seen or does not end is refused by the vault's own lock
        for process in
            Registry::open().and_then(|registry| registry.writing(&self.dir)).unwrap_or_default()
        {
            let _ = process.wait_for_end(PATIENCE);
        }
    }

    /// Reads the identity that opens this vault, and asks for its secret.
    ///
    /// # Errors
    /// There is no identity, or the secret cannot be had.
    pub fn ask(&self, args: &OpenArgs) -> Result<(Locked, Given), Failure> {
        let locked = identity::find(args.identity.as_deref(), &self.store, &self.dir)?;
        // a vault's own identity is asked for by the vault's name
        let source = Source::choose_present(&args.secret, &Environment::of_process());
        let given = locked.ask(&source, args.identity.as_deref().unwrap_or(&self.dir))?;
        Ok((locked, given))
    }

    /// Unlocks the identity with `given` and opens the vault.
    ///
    /// # Errors
    /// The secret does not fit, or the vault cannot be opened.
    pub fn unlock(
        self,
        (locked, given): (Locked, Given),
        args: &OpenArgs,
        purpose: Purpose,
    ) -> Result<Open, Failure> {
        let (identity, _) = locked.unlock(given)?;
        let default = OpenOptions::default();
        // also for a vault of one owner: shares may be nested in it
        let pins = match Shares::of_user() {
            Ok(shares) => Some(Arc::new(shares) as Arc<dyn Pins>),
            Err(error) if self.description.signed => return Err(error.into()),
            Err(_) => None,
        };
        let trust = Trust { pins, first_use: args.trust_on_first_use };
        let options = OpenOptions {
            read_only: !matches!(purpose, Purpose::Write | Purpose::WriteShared),
            access_times: self.access_times,
            caller_caches: self.kernel_caches,
            cache_bytes: args.cache_size.unwrap_or(default.cache_bytes),
            lock: match purpose {
                Purpose::Beside => LockMode::None,
                Purpose::WriteShared | Purpose::ReadShared => LockMode::Shared,
                Purpose::Read | Purpose::Write => LockMode::Exclusive,
            },
            trust,
        };
        match Vault::open(self.store, &identity, options) {
            Ok(vault) => Ok(Open { vault, dir: self.dir }),
            Err(error) => Err(in_vault(error, &self.dir, None)),
        }
    }
}

/// Finds, unlocks and opens a vault.
///
/// # Errors
/// All that can be wrong on the way.
pub fn open(given: &Path, args: &OpenArgs, purpose: Purpose) -> Result<Open, Failure> {
    let found = find(given)?;
    if purpose != Purpose::Beside {
        found.refuse_mounted()?;
    }
    let secret = found.ask(args)?;
    let share = found.description.share_id;
    let open = found.unlock(secret, args, purpose)?;
    if purpose == Purpose::Write && !args.no_rollback_memory {
        rollback_memory::begin(&open.vault, &share, false);
    }
    Ok(open)
}

impl Open {
    /// A failure of this vault, about the plain path `plain`.
    pub fn failed<'a>(&'a self, plain: &'a [u8]) -> impl Fn(vault::Error) -> Failure + 'a {
        move |error| in_vault(error, &self.dir, Some(plain))
    }

    /// Refuses a place for plain files that lies in the vault: whoever stores it would read them.
    /// Called before anything is made there.
    ///
    /// # Errors
    /// It lies there, or what is there of its path cannot be looked at.
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

    /// Makes a directory for plain files where there is none, and opens it.
    ///
    /// # Errors
    /// It is in the vault (see [`Open::refuse_within`]), or cannot be made or opened.
    pub fn make_target(&self, op: &'static str, dir: &Path) -> Result<Object, Error> {
        self.refuse_within(op, dir)?;
        let failed = |source| Error::Io { op, path: dir.to_owned(), source };
        std::fs::create_dir_all(dir).map_err(failed)?;
        self.open_target(dir).map_err(failed)?.ok_or_else(|| self.within(op, dir))
    }

    /// Opens a directory for plain files; `None` for one that is in the vault, as
    /// [`Open::refuse_within`] would have found if nobody had exchanged anything for a link since.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open_target(&self, dir: &Path) -> std::io::Result<Option<Object>> {
        let target = Object::open_root(dir)?;
        let is_within = target.is_within(&Object::open_root(&self.dir)?)?;
        Ok((!is_within).then_some(target))
    }

    /// The error for a place for plain files that is in the vault.
    pub fn within(&self, op: &'static str, place: &Path) -> Error {
        Error::Usage(format!("{op} {}: it lies in the vault {}", shown(place), shown(&self.dir)))
    }

    /// Commits all and lets go of the vault. Every command that has written ends with it.
    ///
    /// # Errors
    /// Something could not be written.
    pub fn close(&self) -> Result<(), Failure> {
        self.vault.close().map_err(|error| in_vault(error, &self.dir, None))
    }
}
