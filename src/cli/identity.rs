//! Identity files: where they are, and unlocking them with what was given.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::Error;
use super::home;
use super::report::{Failure, of_identity};
use super::secret::{Given, SecretBytes};
use crate::crypto::Argon2Params;
use crate::format::identity::MAX_LEN;
use crate::sharing::{Identity, IdentityFile, NewSlot, RecoveryCode, RecoveryTextError, Secret};
use crate::vault::IDENTITY_FILE;

/// The file that is meant: the given one, else the vault's own, else this user's.
///
/// # Errors
/// There is none of them.
pub fn locate(identity: Option<&Path>, vault: &Path) -> Result<PathBuf, Error> {
    if let Some(identity) = identity {
        return Ok(identity.to_owned());
    }
    match own_of(vault) {
        Err(Error::NoOwnIdentity(_)) => {}
        found => return found,
    }
    match home::identity() {
        Ok(users) if users.symlink_metadata().is_ok() => Ok(users),
        _ => Err(Error::NoOwnIdentity(vault.to_owned())),
    }
}

/// The vault's own identity.
///
/// # Errors
/// It has none.
pub fn own_of(vault: &Path) -> Result<PathBuf, Error> {
    let own = vault.join(IDENTITY_FILE);
    match own.symlink_metadata() {
        Ok(found) if found.is_file() => Ok(own),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::Io { op: "find identity", path: own, source: error }),
        // whoever holds the storage must not turn us to another file by a link
        _ => Err(Error::NoOwnIdentity(vault.to_owned())),
    }
}

/// Reads an identity file. Nothing in it is proven before it is unlocked.
///
/// # Errors
/// Those of reading, and a file that is none.
pub fn read(path: &Path) -> Result<IdentityFile, Failure> {
    let failed = |source| Error::Secret { op: "read identity", path: path.to_owned(), source };
    let mut bytes = Vec::new();
    // one byte more than the longest file, so that a longer one is refused and not cut
    File::open(path).and_then(|file| file.take(MAX_LEN as u64 + 1).read_to_end(&mut bytes)).map_err(failed)?;
    IdentityFile::decode(&bytes).map_err(|error| of_identity(error, path))
}

/// Unlocks an identity with what was given; says which slot it was.
///
/// # Errors
/// Nothing of it fits; what looks like a mistyped recovery code is called that.
pub fn unlock(file: &IdentityFile, path: &Path, given: Given) -> Result<(Identity, u16), Failure> {
    let Candidates { secrets, mistyped } = candidates(given)?;
    let mut failure = None;
    for secret in &secrets {
        match file.unlock_with_slot(secret) {
            Ok(opened) => return Ok(opened),
            Err(error) => failure = Some(error),
        }
    }
    match mistyped {
        Some(mistyped) => Err(mistyped.into()),
        None => Err(of_identity(failure.expect("there is one candidate at least"), path)),
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
                Ok(code) => Candidates { secrets: vec![Secret::RecoveryCode(code), passphrase], mistyped: None },
                Err(error @ RecoveryTextError::Mistyped) => Candidates { secrets: vec![passphrase], mistyped: Some(error) },
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
