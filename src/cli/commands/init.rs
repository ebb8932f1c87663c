//! `kithfs init`
//!
//! Rule: a long time may pass between the check for an empty directory and the first write, during
//! a passphrase prompt. A sync tool or another `init` may have created a vault by then, of which
//! nothing is replaced or removed.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::cli::args::{Cipher, Init};
use crate::cli::display::path as shown;
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, in_vault, note};
use crate::cli::secrets::identity::{self, Place};
use crate::cli::secrets::new_identity::NewIdentity;
use crate::cli::secrets::source::{Environment, Opens, Source};
use crate::crypto::Suite;
use crate::crypto::suite::aes_in_hardware;
use crate::roster::Identity;
use crate::store::os::OsDir;
use crate::vault::{CreateOptions, CreateShare, IDENTITY_FILE, Vault};

/// Creates a vault.
pub fn run(args: &Init) -> Result<Exit, Failure> {
    let is_new = check_empty(&args.vault)?;
    let suite = suite(args.cipher);
    let source = Source::choose(&args.secret, &Environment::of_process());
    let owner = match &args.identity {
        Some(path) => {
            let locked = Place::named(path)?.read()?;
            let given = locked.ask(&source, &identity::opens(path))?;
            Owner::Other(locked.unlock(given)?.0)
        }
        None => {
            let secret = identity::new_secret(source.read_new(&Opens::Vault(args.vault.clone()))?)?;
            Owner::Own(NewIdentity::make(
                suite,
                &secret,
                &args.kdf,
                &args.vault.join(IDENTITY_FILE),
            )?)
        }
    };
    // The directory comes last, so that a wrong passphrase leaves nothing behind.
    let made = is_new.then(|| Made::new(&args.vault)).transpose()?;
    let failed = |source| Error::Io { op: "open", path: args.vault.clone(), source };
    let dir = args.vault.canonicalize().map_err(failed)?;
    let store = OsDir::open(&dir).map_err(failed)?;
    let place = Place::in_vault(&store, &dir);
    if let Owner::Own(own) = &owner {
        claim(&place, &args.vault)?;
        if let Err(failure) = own.write(&place) {
            let _ = store.unlink(&place.name);
            return Err(failure);
        }
    }
    let options = CreateOptions { suite, chunk_log2: args.chunk_size };
    let share = CreateShare { name: args.name.clone(), ..CreateShare::default() };
    let created = match args.signed {
        true => Vault::create_signed(&store, &options, owner.identity(), &share),
        false => Vault::create(&store, &options, owner.identity()),
    };
    if let Err(error) = created {
        if matches!(owner, Owner::Own(_)) {
            let _ = store.unlink(&place.name);
        }
        return Err(in_vault(error, &dir, None));
    }
    if let Some(made) = made {
        made.keep()?;
    }
    note(format_args!(
        "created the vault {} ({}, chunks of {} bytes)",
        shown(&dir),
        suite.name(),
        1 << args.chunk_size
    ));
    if let Owner::Own(own) = owner {
        own.print_code("the vault", &place.path)?;
    }
    Ok(Exit::Ok)
}

/// Claims the name of the vault's identity, if it is free.
fn claim(place: &Place, vault: &Path) -> Result<(), Error> {
    match place.dir.create_file(&place.name, 0o600) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(Error::InitNotEmpty(vault.to_owned()))
        }
        Err(source) => Err(Error::Io { op: "make", path: place.path.clone(), source }),
    }
}

/// The owner of the new vault.
enum Owner {
    /// A new identity inside the vault.
    Own(NewIdentity),
    /// An existing identity.
    Other(Identity),
}

impl Owner {
    fn identity(&self) -> &Identity {
        match self {
            Owner::Own(own) => &own.identity,
            Owner::Other(identity) => identity,
        }
    }
}

/// Returns the requested suite, else the one that is fast and safe on this processor.
fn suite(cipher: Option<Cipher>) -> Suite {
    match cipher {
        Some(Cipher::Aes) => Suite::Aes256Gcm,
        Some(Cipher::Chacha) => Suite::ChaCha20Poly1305,
        None => Suite::preferred(aes_in_hardware()),
    }
}

/// Whether the directory was created.
fn check_empty(vault: &Path) -> Result<bool, Error> {
    let failed = |source| Error::Io { op: "init", path: vault.to_owned(), source };
    match fs::read_dir(vault) {
        Ok(mut entries) => match entries.next() {
            None => Ok(false),
            Some(_) => Err(Error::InitNotEmpty(vault.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(failed(error)),
    }
}

/// A new directory that is removed on drop, if it is empty and was not kept.
struct Made(Option<PathBuf>);

impl Made {
    fn new(vault: &Path) -> Result<Made, Error> {
        let failed = |source| Error::Io { op: "make", path: vault.to_owned(), source };
        DirBuilder::new().mode(0o700).create(vault).map_err(failed)?;
        Ok(Made(Some(vault.canonicalize().map_err(failed)?)))
    }

    /// Keeps it, and makes its name durable.
    fn keep(mut self) -> Result<(), Error> {
        let Some(path) = self.0.take() else { return Ok(()) };
        let parent = path.parent().unwrap_or(Path::new("/"));
        let sync = || fs::File::open(parent)?.sync_all();
        // A parent directory without read permission cannot be synced.
        match sync() {
            Err(source) if source.kind() != io::ErrorKind::PermissionDenied => {
                Err(Error::Io { op: "sync", path: parent.into(), source })
            }
            _ => Ok(()),
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_dir(path);
        }
    }
}
