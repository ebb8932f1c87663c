//! Failures of identities, their slots and recovery codes.

use std::path::Path;

use super::Failure;
use crate::cli::display::path as shown;
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::crypto::PasswordError;
use crate::format::error::FormatErrorKind;
use crate::roster::{IdentityError, RecoveryTextError};

/// Describes a failure with the identity at `path`.
pub fn of_identity(error: IdentityError, path: &Path) -> Failure {
    let named = |exit| Failure::new(exit, format_args!("identity {}: {error}", shown(path)));
    match error {
        IdentityError::Format(ref format) => match format.kind() {
            FormatErrorKind::Version(_) => {
                named(Exit::NewerVersion).hint("update kithfs on this machine")
            }
            _ => named(Exit::Corrupt)
                .hint("restore the file from a backup or from another machine's copy"),
        },
        IdentityError::PublicMismatch => {
            named(Exit::Corrupt).hint("restore the file from a backup")
        }
        IdentityError::WrongSecret(kind) => {
            Error::WrongSecret { path: path.to_owned(), by_code: kind == "recovery code" }.into()
        }
        IdentityError::NoSuchKind(_) => {
            named(Exit::WrongSecret).hint("`kithfs passphrase list` shows its slots")
        }
        IdentityError::NoSuchSlot(slot) => Error::NoSuchSlot { path: path.to_owned(), slot }.into(),
        IdentityError::LastSlot(_) => Error::LastSlot(path.to_owned()).into(),
        IdentityError::TooManySlots | IdentityError::TooMuchWork => {
            named(Exit::Failure).hint("remove an unused slot: kithfs passphrase remove")
        }
        IdentityError::ShortKeyFile { .. } => {
            named(Exit::Usage).hint("create one: head -c 64 /dev/urandom > FILE")
        }
        IdentityError::Password(error) => error.into(),
        _ => named(Exit::Failure),
    }
}

impl From<PasswordError> for Failure {
    fn from(error: PasswordError) -> Failure {
        match error {
            PasswordError::Memory(_) => Failure::new(Exit::Failure, error)
                .hint("free memory, or use a machine with more; --kdf-memory sets the cost of a new passphrase"),
            _ => Failure::new(Exit::Failure, error),
        }
    }
}

impl From<RecoveryTextError> for Failure {
    fn from(error: RecoveryTextError) -> Failure {
        Failure::new(Exit::WrongSecret, error)
            .hint("it has nine groups of four characters; compare each with your paper copy")
    }
}
