//! The command line of people: identities, contacts, invitations.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::slots::PassphraseCommand;
use super::{KdfArgs, PassphraseArgs, PresentSecret};
use crate::cli::error::Error;
use crate::cli::user::directories;

/// `identity`
#[derive(Args, Debug)]
pub struct Identity {
    /// What to do.
    #[command(subcommand)]
    pub command: IdentityCommand,
}

/// The commands of `identity`.
#[derive(Debug, Subcommand)]
pub enum IdentityCommand {
    /// Make a new identity
    ///
    /// The recovery code is printed once, to stdout: it opens the identity when the passphrase is
    /// lost.
    New(IdentityNew),
    /// Show public key and fingerprint, and at a terminal a QR code of the key
    Show(IdentityShow),
    /// Print the public key alone
    Export(IdentityShow),
    /// The ways into the identity: passphrases, recovery codes, key files
    Passphrase(IdentityPassphrase),
}

/// The user's own identity file.
#[derive(Args, Debug, Default)]
pub struct OwnIdentity {
    /// The identity file; default is ~/.config/kithfs/identity
    ///
    /// With XDG_CONFIG_HOME set, kithfs/identity in that directory. The identity that lies in a
    /// vault is VAULT/+identity.
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
}

impl OwnIdentity {
    /// The file that is meant.
    ///
    /// # Errors
    /// There is no home directory.
    pub fn path(&self) -> Result<PathBuf, Error> {
        self.identity.clone().map_or_else(directories::identity, Ok)
    }
}

/// `identity new`
#[derive(Args, Debug)]
pub struct IdentityNew {
    /// Where to make it.
    #[command(flatten)]
    pub of: OwnIdentity,
    /// The passphrase or key file of the new identity.
    #[command(flatten)]
    pub secret: PassphraseArgs,
    /// Its costs.
    #[command(flatten)]
    pub kdf: KdfArgs,
}

/// `identity show`, `identity export`
#[derive(Args, Debug)]
pub struct IdentityShow {
    /// Which one.
    #[command(flatten)]
    pub of: OwnIdentity,
    /// Asked for only where the file lies in a vault.
    #[command(flatten)]
    pub secret: PresentSecret,
}

/// `identity passphrase`
#[derive(Args, Debug)]
pub struct IdentityPassphrase {
    /// What to do.
    #[command(subcommand)]
    pub command: PassphraseCommand<OwnIdentity>,
}

/// `contact`
#[derive(Args, Debug)]
pub struct Contact {
    /// What to do.
    #[command(subcommand)]
    pub command: ContactCommand,
}

/// The commands of `contact`.
#[derive(Debug, Subcommand)]
pub enum ContactCommand {
    /// Note whose public key is whose
    ///
    /// A name that has another key keeps it: the contact is CHANGED then, the command fails, and
    /// neither key is used until `contact verify` accepts the new one or `contact add` with the old
    /// one drops it.
    Add(ContactAdd),
    /// List the contacts
    List(ContactList),
    /// Note that a fingerprint was compared with its owner
    ///
    /// Compare it by a way on which nobody can pretend to be him: in person, or by voice. Of a
    /// contact that is CHANGED the new key is meant.
    Verify(ContactVerify),
    /// Forget a contact
    Remove(ContactRemove),
}

/// `contact add`
#[derive(Args, Debug)]
pub struct ContactAdd {
    /// What you call him or her
    pub name: String,
    /// The public key, a line that begins with kith1; `-` reads it from stdin
    pub key: String,
}

/// `contact list`
#[derive(Args, Debug)]
pub struct ContactList {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What answers a question about a fingerprint.
#[derive(Args, Debug, Default)]
pub struct Comparison {
    /// The fingerprint that the owner has told: it is compared here, and nothing is asked
    #[arg(long, value_name = "FINGERPRINT", conflicts_with = "yes")]
    pub fingerprint: Option<String>,
    /// Ask nothing: the fingerprints were compared and are the same
    #[arg(long)]
    pub yes: bool,
}

/// `contact verify`
#[derive(Args, Debug)]
pub struct ContactVerify {
    /// The answer.
    #[command(flatten)]
    pub comparison: Comparison,
    /// The contact
    pub name: String,
}

/// `contact remove`
#[derive(Args, Debug)]
pub struct ContactRemove {
    /// The contact
    pub name: String,
}

/// `accept`
#[derive(Args, Debug)]
pub struct Accept {
    /// Who accepts.
    #[command(flatten)]
    pub of: OwnIdentity,
    /// Asked for only where the identity lies in a vault.
    #[command(flatten)]
    pub secret: PresentSecret,
    /// The answer, where the one who invites is no verified contact.
    #[command(flatten)]
    pub comparison: Comparison,
    /// The invitation; `-` reads it from stdin
    pub file: PathBuf,
}
