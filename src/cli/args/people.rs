//! The arguments of commands for identities, contacts and invitations.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::slots::PassphraseCommand;
use super::{KdfArgs, PassphraseArgs, PresentSecret};
use crate::cli::error::Error;
use crate::cli::user::directories;

/// The commands of `identity`.
#[derive(Debug, Subcommand)]
pub enum IdentityCommand {
    /// Create a new identity
    ///
    /// The recovery code is printed once, to stdout. It opens the identity if the passphrase is
    /// lost.
    New(IdentityNew),
    /// Show public key and fingerprint, and on a terminal a QR code of the key
    Show(IdentityShow),
    /// Print only the public key
    Export(IdentityShow),
    /// Show or set the name that the members of your shares see
    ///
    /// It applies to shares that you create from then on; in existing ones, members see the name
    /// that you had.
    Name(IdentityName),
    /// Take over a vault that has an identity of its own
    ///
    /// Your identity opens the vault from then on, and the shares in it belong to you: members see
    /// your name and your fingerprint. The former passphrase and recovery code still open the vault
    /// with --own-identity, until you remove them: `kithfs passphrase list VAULT` shows their
    /// slots, `kithfs passphrase remove` removes one. If the vault was made with `init --signed`,
    /// its former identity no longer opens it; it is kept in ~/.config/kithfs/former-identities.
    Adopt(IdentityAdopt),
    /// Manage the slots of the identity: passphrases, recovery codes, key files
    #[command(subcommand)]
    Passphrase(PassphraseCommand<OwnIdentity>),
}

/// The user's own identity file.
#[derive(Args, Debug, Default)]
pub struct OwnIdentity {
    /// The identity file; default is ~/.config/kithfs/identity
    ///
    /// If XDG_CONFIG_HOME is set, the default is kithfs/identity in that directory. The identity
    /// inside a vault is VAULT/+identity.
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
}

impl OwnIdentity {
    /// Returns the path of the identity file.
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
    /// The file to create.
    #[command(flatten)]
    pub of: OwnIdentity,
    /// The passphrase or key file of the new identity.
    #[command(flatten)]
    pub secret: PassphraseArgs,
    /// The cost of guessing the passphrase.
    #[command(flatten)]
    pub kdf: KdfArgs,
    /// The name that the members of your shares see
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

/// `identity name`
#[derive(Args, Debug)]
pub struct IdentityName {
    /// The new name; without it, the present one is printed
    pub name: Option<String>,
}

/// `identity adopt`
#[derive(Args, Debug)]
pub struct IdentityAdopt {
    /// The identity that takes the vault over.
    #[command(flatten)]
    pub of: OwnIdentity,
    /// Read the passphrase of your identity from a file; default is KITHFS_PASSPHRASE_FILE, the
    /// keyring, or a prompt
    #[arg(long, value_name = "FILE")]
    pub identity_passphrase_file: Option<PathBuf>,
    /// A secret that opens the vault.
    #[command(flatten)]
    pub secret: PresentSecret,
    /// The vault
    pub vault: PathBuf,
}

/// `identity show`, `identity export`
#[derive(Args, Debug)]
pub struct IdentityShow {
    /// The identity.
    #[command(flatten)]
    pub of: OwnIdentity,
    /// Needed only for an identity inside a vault.
    #[command(flatten)]
    pub secret: PresentSecret,
}

/// The commands of `contact`.
#[derive(Debug, Subcommand)]
pub enum ContactCommand {
    /// Record the public key of a person
    ///
    /// A known name keeps its first key if another key is offered. The contact is then CHANGED, and
    /// the command fails. Neither key is used until `contact verify` accepts the new one or
    /// `contact add` with the old one drops it.
    Add(ContactAdd),
    /// List the contacts
    List(ContactList),
    /// Record that a fingerprint was compared with its owner
    ///
    /// Compare it over a channel on which nobody can impersonate them: in person, or by voice. For
    /// a contact that is CHANGED, this is the fingerprint of the new key.
    Verify(ContactVerify),
    /// Remove a contact
    Remove(ContactRemove),
}

/// `contact add`
#[derive(Args, Debug)]
pub struct ContactAdd {
    /// Your name for them
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

/// The answer to a question about a fingerprint.
#[derive(Args, Debug, Default)]
pub struct Comparison {
    /// The fingerprint as the owner reported it: it is compared, and no question is asked
    #[arg(long, value_name = "FINGERPRINT", conflicts_with = "yes")]
    pub fingerprint: Option<String>,
    /// Ask no question: the fingerprints were compared and match
    #[arg(long)]
    pub yes: bool,
}

/// `contact verify`
#[derive(Args, Debug)]
pub struct ContactVerify {
    /// The answer to the question about the fingerprint.
    #[command(flatten)]
    pub comparison: Comparison,
    /// Verify by an SSH key of theirs that you have known for long: a file with their public keys
    ///
    /// They sign their key with `kithfs identity export | ssh-keygen -Y sign -n kithfs -f KEY`.
    #[arg(long, value_name = "KEYS", requires = "signature", conflicts_with_all = ["fingerprint", "yes"])]
    pub ssh: Option<PathBuf>,
    /// The signature that they made; `-` reads it from stdin
    #[arg(long, value_name = "FILE", requires = "ssh")]
    pub signature: Option<PathBuf>,
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
    /// The identity that accepts.
    #[command(flatten)]
    pub of: OwnIdentity,
    /// Needed only for an identity inside a vault.
    #[command(flatten)]
    pub secret: PresentSecret,
    /// The answer to the question about the inviting admin's fingerprint.
    #[command(flatten)]
    pub comparison: Comparison,
    /// The invitation; `-` reads it from stdin
    pub file: PathBuf,
}
