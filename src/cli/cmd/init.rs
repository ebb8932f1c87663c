//! `kithfs init`

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::backing::os::OsDir;
use crate::cli::args::{Cipher, Init};
use crate::cli::display::path as shown;
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::out::Out;
use crate::cli::replace::replace;
use crate::cli::report::{Failure, in_vault, note, of_identity};
use crate::cli::secret::{Environment, Source};
use crate::cli::{identity, kdf};
use crate::crypto::Suite;
use crate::crypto::suite::aes_in_hardware;
use crate::sharing::{Identity, IdentityFile, RecoveryCode, Secret};
use crate::vault::{CreateOptions, IDENTITY_FILE, OsRandom, Vault};

/// Makes a vault.
pub fn run(args: &Init) -> Result<Exit, Failure> {
    let is_new = check_empty(&args.vault)?;
    let suite = suite(args.cipher);
    let source = Source::choose(&args.secret, &Environment::of_process());
    let (owner, own) = match &args.identity {
        Some(path) => (identity::unlock(&identity::read(path)?, path, source.read(path)?)?.0, None),
        None => {
            let secret = identity::new_secret(source.read_new(&args.vault)?)?;
            let owner = Identity::generate(&OsRandom);
            let own = Own::make(&owner, suite, &secret, args)?;
            (owner, Some(own))
        }
    };
    // the directory comes last, so that a wrong passphrase leaves nothing behind
    let made = is_new.then(|| Made::new(&args.vault)).transpose()?;
    let failed = |source| Error::Io { op: "open", path: args.vault.clone(), source };
    let dir = args.vault.canonicalize().map_err(failed)?;
    let written = own.as_ref().map(|own| own.write(&dir)).transpose()?;
    let store = OsDir::open(&dir).map_err(failed)?;
    let options = CreateOptions { suite, chunk_log2: args.chunk_size };
    if let Err(error) = Vault::create(&store, &options, &owner) {
        if let Some(identity) = written {
            let _ = fs::remove_file(identity);
        }
        return Err(in_vault(error, &dir, None));
    }
    if let Some(made) = made {
        made.keep()?;
    }
    note(format_args!("made the vault {} ({}, chunks of {} bytes)", shown(&dir), suite.name(), 1 << args.chunk_size));
    if let Some(own) = own {
        note("this recovery code opens the vault when the passphrase is lost. It is not shown again: write it down, keep it elsewhere");
        let mut out = Out::stdout();
        out.text(format_args!("{}\n", own.code.text().as_str()))?;
        out.finish()?;
    }
    Ok(Exit::Ok)
}

/// The suite that was asked for, else the one that is fast and safe on this processor.
fn suite(cipher: Option<Cipher>) -> Suite {
    match cipher {
        Some(Cipher::Aes) => Suite::Aes256Gcm,
        Some(Cipher::Chacha) => Suite::ChaCha20Poly1305,
        None => Suite::preferred(aes_in_hardware()),
    }
}

/// True where the directory has to be made.
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

/// A directory that goes again, while it is empty, unless it is kept.
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
        // a parent that may be searched and written but not read cannot be synced
        match sync() {
            Err(source) if source.kind() != io::ErrorKind::PermissionDenied => Err(Error::Io { op: "sync", path: parent.into(), source }),
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

/// The vault's own identity and what opens it.
struct Own {
    file: IdentityFile,
    code: RecoveryCode,
}

impl Own {
    fn make(owner: &Identity, suite: Suite, secret: &Secret, args: &Init) -> Result<Own, Failure> {
        let failed = |error| of_identity(error, &args.vault.join(IDENTITY_FILE));
        // only a passphrase is stretched, so only then is it worth a second to measure
        let params = if matches!(secret, Secret::Passphrase(_)) { kdf::choose(&args.kdf)? } else { Default::default() };
        let mut file = IdentityFile::new(suite, owner, &identity::new_slot(secret, params), &OsRandom).map_err(failed)?;
        let code = RecoveryCode::generate(&OsRandom);
        let recovery = Secret::RecoveryCode(RecoveryCode::parse(&code.text())?);
        file.add_slot(owner, &identity::new_slot(&recovery, params), &OsRandom).map_err(failed)?;
        Ok(Own { file, code })
    }

    fn write(&self, vault: &Path) -> Result<PathBuf, Failure> {
        let path = vault.join(IDENTITY_FILE);
        let recovery = Secret::RecoveryCode(RecoveryCode::parse(&self.code.text())?);
        replace(&path, &self.file.encode(), |written| {
            let opened = IdentityFile::decode(written).and_then(|file| file.unlock(&recovery));
            opened.map(drop).map_err(|error| of_identity(error, &path))
        })?;
        Ok(path)
    }
}
