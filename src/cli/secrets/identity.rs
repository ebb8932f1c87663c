//! Identity files: where they are, and unlocking them with what was given.
//!
//! Rules that hold here
//! * An identity file is a name in an open directory ([`Place`]). It is read, locked and replaced
//!   through that directory, so that no path is resolved a second time: the storage host cannot
//!   turn a command to another file by a link.
//! * Only a regular file is read, through one descriptor. A FIFO does not block.
//! * Links are followed once, for a file that the user has named or keeps in the home, and never
//!   for a vault's own identity.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cli::error::Error;
use crate::cli::report::{Failure, of_identity};
use crate::cli::secrets::kdf;
use crate::cli::secrets::source::{Given, SecretBytes, Source};
use crate::cli::user::directories;
use crate::crypto::Argon2Params;
use crate::format::identity::MAX_LEN;
use crate::roster::{Identity, IdentityFile, NewSlot, RecoveryCode, RecoveryTextError, Secret};
use crate::store::os::OsDir;
use crate::store::{Access, Dir, Stat};
use crate::vault::IDENTITY_FILE;

/// A name in an open directory at which an identity file is expected.
#[derive(Clone)]
pub struct Place {
    /// The open directory.
    pub dir: Arc<dyn Dir>,
    /// The name in it.
    pub name: Vec<u8>,
    /// The path, for messages.
    pub path: PathBuf,
}

/// An identity file that was read. Nothing in it is proven before it is unlocked.
pub struct Locked {
    /// Where it is.
    pub place: Place,
    /// Its contents.
    pub file: IdentityFile,
    /// Its attributes, of the descriptor that it was read from.
    pub stat: Stat,
}

impl Place {
    /// The place of the own identity of the vault at `path`, whose directory `store` is open.
    pub fn in_vault(store: &Arc<dyn Dir>, path: &Path) -> Place {
        Place { dir: store.clone(), name: IDENTITY_FILE.into(), path: path.join(IDENTITY_FILE) }
    }

    /// The place that the path `given` leads to. Links are followed, here and not later.
    ///
    /// # Errors
    /// Those of resolving the path; what is there is no regular file.
    pub fn named(given: &Path) -> Result<Place, Error> {
        let open = || -> io::Result<Place> {
            // Also where the path is that of a descriptor, as of a pipe, which has no name in any
            // directory.
            if !given.metadata()?.is_file() {
                return Err(not_a_file());
            }
            let path = given.canonicalize()?;
            let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(not_a_file());
            };
            Ok(Place {
                dir: OsDir::open(dir)?,
                name: name.as_encoded_bytes().into(),
                path: given.to_owned(),
            })
        };
        open().map_err(|source| Error::Secret {
            op: "read identity",
            path: given.to_owned(),
            source,
        })
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Those of reading, and a file that is no identity.
    pub fn read(self) -> Result<Locked, Failure> {
        let read = self.bytes();
        self.locked(read)
    }

    /// The contents of the file and its attributes, from one descriptor.
    fn bytes(&self) -> io::Result<(Vec<u8>, Stat)> {
        let file = self.dir.open_file(&self.name, Access::Read)?;
        // one byte more than the longest file, so that a longer one is refused and not cut
        let mut bytes = vec![0; MAX_LEN + 1];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok((bytes, file.stat()?))
    }

    fn locked(self, read: io::Result<(Vec<u8>, Stat)>) -> Result<Locked, Failure> {
        let (bytes, stat) = read.map_err(|error| {
            let source = if is_not_a_file(&error) { not_a_file() } else { error };
            Error::Secret { op: "read identity", path: self.path.clone(), source }
        })?;
        let file = IdentityFile::decode(&bytes).map_err(|error| of_identity(error, &self.path))?;
        Ok(Locked { place: self, file, stat })
    }
}

/// Whether an object was not opened because it is a link, a directory, a FIFO, a socket or a
/// device.
fn is_not_a_file(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO | libc::EISDIR))
}

fn not_a_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")
}

/// Reads the identity that is meant: the given one, else the own one of the vault at `vault`, whose
/// directory `store` is open, else this user's.
///
/// # Errors
/// There is none of them, or it cannot be read.
pub fn find(given: Option<&Path>, store: &Arc<dyn Dir>, vault: &Path) -> Result<Locked, Failure> {
    if let Some(given) = given {
        return Place::named(given)?.read();
    }
    match own_of(store, vault)? {
        Some(own) => Ok(own),
        None => match directories::identity() {
            Ok(users) if users.symlink_metadata().is_ok() => Place::named(&users)?.read(),
            _ => Err(Error::NoOwnIdentity(vault.to_owned()).into()),
        },
    }
}

/// Reads the own identity of the vault at `vault`, whose directory `store` is open. `None` where it
/// has none; a link or a FIFO of that name is none.
///
/// # Errors
/// It cannot be read.
pub fn own_of(store: &Arc<dyn Dir>, vault: &Path) -> Result<Option<Locked>, Failure> {
    let own = Place::in_vault(store, vault);
    match own.bytes() {
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_not_a_file(&error) => Ok(None),
        read => own.locked(read).map(Some),
    }
}

impl Locked {
    /// Gets the secret that is to unlock it. `name` is what a person is asked by.
    ///
    /// # Errors
    /// Those of [`Source::read`] and of [`kdf::allow`], before anything is stretched.
    pub fn ask(&self, source: &Source, name: &Path) -> Result<Given, Failure> {
        let given = source.read(name)?;
        if matches!(given, Given::Passphrase { .. }) {
            kdf::allow(&self.file, &self.place.path)?;
        }
        Ok(given)
    }

    /// Unlocks it with what was given; says which slot it was.
    ///
    /// # Errors
    /// Nothing of it fits; what looks like a mistyped recovery code is called that.
    pub fn unlock(&self, given: Given) -> Result<(Identity, u16), Failure> {
        let Candidates { secrets, mistyped } = candidates(given)?;
        let mut failure = None;
        for secret in &secrets {
            match self.file.unlock_with_slot(secret) {
                Ok(opened) => return Ok(opened),
                Err(error) => failure = Some(error),
            }
        }
        match mistyped {
            Some(mistyped) => Err(mistyped.into()),
            None => Err(of_identity(
                failure.expect("there is one candidate at least"),
                &self.place.path,
            )),
        }
    }
}

/// What was given, in each way that it can be meant.
struct Candidates {
    secrets: Vec<Secret>,
    mistyped: Option<RecoveryTextError>,
}

fn candidates(given: Given) -> Result<Candidates, Failure> {
    let only = |secret| Candidates { secrets: vec![secret], mistyped: None };
    Ok(match given {
        Given::KeyFile(bytes) => only(Secret::KeyFile(bytes.into_inner())),
        Given::RecoveryCode(bytes) => only(Secret::RecoveryCode(recovery_code(&bytes)?)),
        Given::Passphrase { bytes, typed: false } => only(Secret::Passphrase(bytes.into_inner())),
        Given::Passphrase { bytes, typed: true } => {
            let code = recovery_code(&bytes);
            let passphrase = Secret::Passphrase(bytes.into_inner());
            match code {
                // a code takes no time to try, so it goes first
                Ok(code) => Candidates {
                    secrets: vec![Secret::RecoveryCode(code), passphrase],
                    mistyped: None,
                },
                Err(error @ RecoveryTextError::Mistyped) => {
                    Candidates { secrets: vec![passphrase], mistyped: Some(error) }
                }
                Err(_) => only(passphrase),
            }
        }
    })
}

fn recovery_code(bytes: &SecretBytes) -> Result<RecoveryCode, RecoveryTextError> {
    let text = std::str::from_utf8(bytes.expose()).map_err(|_| RecoveryTextError::Character)?;
    RecoveryCode::parse(text)
}

/// What was given for something new, as the lock of a slot.
pub fn new_secret(given: Given) -> Result<Secret, Failure> {
    Ok(match given {
        Given::Passphrase { bytes, .. } => Secret::Passphrase(bytes.into_inner()),
        Given::KeyFile(bytes) => Secret::KeyFile(bytes.into_inner()),
        Given::RecoveryCode(bytes) => Secret::RecoveryCode(recovery_code(&bytes)?),
    })
}

/// A slot to be made now.
pub fn new_slot(secret: &Secret, params: Argon2Params) -> NewSlot<'_> {
    NewSlot { secret, params, label: "", created: now().try_into().unwrap_or(0) }
}

/// Seconds since 1970.
pub fn now() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |secs| -secs),
    }
}
