//! `kithfs init`
//!
//! Rule: a long time may pass between the check for an empty directory and the first write, during
//! a passphrase prompt. A sync tool or another `init` may have created a vault meanwhile. `init`
//! replaces and removes nothing of that vault.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::cli::args::{Cipher, Init, PresentSecret};
use crate::cli::display::{path as shown, word};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::local;
use crate::cli::report::{Failure, in_vault, note};
use crate::cli::secrets::identity::{self, Place};
use crate::cli::secrets::new_identity::NewIdentity;
use crate::cli::secrets::source::{Environment, Opens, Source};
use crate::cli::user::own_name;
use crate::cli::vaults::sync_folder;
use crate::crypto::Suite;
use crate::crypto::suite::aes_in_hardware;
use crate::roster::Identity;
use crate::store::os::OsDir;
use crate::vault::{CreateOptions, CreateShare, IDENTITY_FILE, Vault};

/// Creates a vault.
pub fn run(args: &Init) -> Result<Exit, Failure> {
    let is_new = check_empty(&args.vault)?;
    let name = own_name::or_chosen(args.name.as_deref())?;
    own_name::check(&name)?;
    let suite = suite(args.cipher);
    let (owner, opener) = owner(args, suite)?;
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
    let share = CreateShare { name, ..CreateShare::default() };
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
    if args.synced {
        Vault::set_synced(&store).map_err(|error| in_vault(error, &dir, None))?;
    }
    if args.shared {
        Vault::set_shared(&store, true).map_err(|error| in_vault(error, &dir, None))?;
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
    if args.signed && own_name::is_missing(args.name.as_deref())? {
        note(format_args!(
            "members of this vault see you as `{}`; choose a name for later ones: kithfs identity name NAME",
            own_name::NONE_CHOSEN
        ));
    }
    if !args.synced && !args.shared {
        sync_folder::hint(&dir);
    }
    match &owner {
        Owner::Own(own) => own.print_code("the vault", &place.path)?,
        Owner::Other(identity) => note(format_args!(
            "it belongs to {}, fingerprint {}",
            identity::opens(opener.as_deref().unwrap_or(&place.path)),
            identity.public().fingerprint()
        )),
    }
    note(format_args!("mount it: {}", mount_command(&args.vault, args.identity.as_deref())));
    Ok(Exit::Ok)
}

/// Returns the owner of the new vault, and its file if the identity existed before. The owner is
/// the identity that was named, else the user's if there is one, else a new one inside the vault.
fn owner(args: &Init, suite: Suite) -> Result<(Owner, Option<PathBuf>), Failure> {
    let existing = match &args.identity {
        Some(path) => Some(path.clone()),
        None if args.own_identity => None,
        None => identity::users(),
    };
    let Some(path) = existing else {
        if !args.age.age_identity.is_empty() {
            return Err(Error::Usage("--age-identity opens an existing identity: name that with --identity, or add a slot afterwards with `kithfs passphrase add --age`".into()).into());
        }
        let source = Source::choose(&args.secret, &Environment::of_process());
        let secret = identity::new_secret(source.read_new(&Opens::Vault(args.vault.clone()))?)?;
        let path = args.vault.join(IDENTITY_FILE);
        let made = NewIdentity::make(suite, &secret, &args.kdf, &path)?;
        return Ok((Owner::Own(made.typed(source == Source::Terminal)), None));
    };
    if args.kdf.kdf_memory.is_some() || args.kdf.kdf_passes.is_some() {
        return Err(Error::KdfOfExisting(path).into());
    }
    let locked = identity::read(&path)?;
    let present = PresentSecret {
        passphrase: args.secret.clone(),
        age: args.age.clone(),
        ..PresentSecret::default()
    };
    let asked = locked.ask(&present, &identity::opens(&path))?;
    Ok((Owner::Other(locked.unlock(asked)?.0), Some(path)))
}

/// Returns the command that mounts the new vault. The mount point is a directory beside the vault,
/// which `mount` creates if it is missing.
fn mount_command(vault: &Path, identity: Option<&Path>) -> String {
    let name = |suffix: &str| {
        let mut name = vault.file_name().unwrap_or_default().to_owned();
        name.push(suffix);
        name
    };
    let point = if vault.file_name() != Some("plain".as_ref()) {
        vault.with_file_name("plain")
    } else {
        vault.with_file_name(name(".plain"))
    };
    let is_free = !point.exists() || fs::read_dir(&point).is_ok_and(|mut dir| dir.next().is_none());
    let point = if is_free { point } else { vault.with_file_name(name(".plain")) };
    let identity =
        identity.map_or_else(String::new, |identity| format!("--identity {} ", word(identity)));
    format!("kithfs mount {identity}{} {}", word(vault), word(&point))
}

/// Claims the name of the vault's identity with an empty file.
///
/// # Errors
/// The name is taken ([`Error::InitNotEmpty`]), or the file cannot be created.
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

/// Checks that a vault can be created at `vault`, before a passphrase is asked for. Returns whether
/// the directory is missing.
fn check_empty(vault: &Path) -> Result<bool, Error> {
    let failed = |source| Error::Io { op: "init", path: vault.to_owned(), source };
    match fs::read_dir(vault) {
        Ok(mut entries) => match entries.next() {
            None => local::check_writable(vault).map_err(failed).map(|()| false),
            Some(_) => Err(Error::InitNotEmpty(vault.to_owned())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match local::check_writable(local::parent(vault)) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Err(Error::NoParent { op: "init", path: vault.to_owned() })
                }
                Err(error) => Err(failed(error)),
            }
        }
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
