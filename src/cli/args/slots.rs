//! The command line of the ways into an identity.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{KdfArgs, PresentSecret};

/// A heading of the help, see [`super`].
const NEW_SECRET: &str = "New secret";

/// `passphrase`
#[derive(Args, Debug)]
pub struct Passphrase {
    /// What to do.
    #[command(subcommand)]
    pub command: PassphraseCommand,
}

/// The commands of `passphrase`, and of `identity passphrase`.
#[derive(Debug, Subcommand)]
pub enum PassphraseCommand<Of: Args = SlotsOf> {
    /// Add a way in
    Add(PassphraseAdd<Of>),
    /// Replace a passphrase
    Change(PassphraseChange<Of>),
    /// Remove a way in
    Remove(PassphraseRemove<Of>),
    /// List the ways in
    List(PassphraseList<Of>),
}

/// Whose slots: those of a vault's own identity, or those of an identity file.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct SlotsOf {
    /// The vault whose own identity is meant
    pub vault: Option<PathBuf>,
    /// The identity file that is meant
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
}

/// Where the new passphrase comes from.
#[derive(Args, Debug, Default)]
pub struct NewSecret {
    /// Read the new passphrase from a file; default is a prompt at the terminal, twice
    #[arg(long, value_name = "FILE", group = "new_secret", help_heading = NEW_SECRET)]
    pub new_passphrase_file: Option<PathBuf>,
    /// Read the new passphrase from this file descriptor
    #[arg(long, value_name = "N", group = "new_secret", help_heading = NEW_SECRET, value_parser = clap::value_parser!(i32).range(0..))]
    pub new_passphrase_fd: Option<i32>,
    /// Run a command with `sh -c` and read the new passphrase from its output
    #[arg(long, value_name = "CMD", group = "new_secret", help_heading = NEW_SECRET)]
    pub new_passphrase_command: Option<OsString>,
}

/// `passphrase add`
#[derive(Args, Debug)]
pub struct PassphraseAdd<Of: Args = SlotsOf> {
    /// Whose.
    #[command(flatten)]
    pub of: Of,
    /// A secret that opens it now.
    #[command(flatten)]
    pub present: PresentSecret,
    /// The new one.
    #[command(flatten)]
    pub new: NewSecret,
    /// Add the contents of this file as a way in, instead of a passphrase
    #[arg(long, value_name = "FILE", group = "new_secret", help_heading = NEW_SECRET)]
    pub new_key_file: Option<PathBuf>,
    /// Add a new recovery code, which is printed once, instead of a passphrase
    #[arg(long, group = "new_secret", help_heading = NEW_SECRET)]
    pub new_recovery_code: bool,
    /// Its costs.
    #[command(flatten)]
    pub kdf: KdfArgs,
}

/// `passphrase change`
#[derive(Args, Debug)]
pub struct PassphraseChange<Of: Args = SlotsOf> {
    /// Whose.
    #[command(flatten)]
    pub of: Of,
    /// A secret that opens it now.
    #[command(flatten)]
    pub present: PresentSecret,
    /// The new one.
    #[command(flatten)]
    pub new: NewSecret,
    /// The slot to replace, as `list` numbers them; default is the passphrase that was given, or
    /// the only one that there is
    #[arg(long, value_name = "N")]
    pub slot: Option<u16>,
    /// Its costs.
    #[command(flatten)]
    pub kdf: KdfArgs,
}

/// `passphrase remove`
#[derive(Args, Debug)]
pub struct PassphraseRemove<Of: Args = SlotsOf> {
    /// Whose.
    #[command(flatten)]
    pub of: Of,
    /// A secret that opens it now.
    #[command(flatten)]
    pub present: PresentSecret,
    /// The slot, as `list` numbers them
    #[arg(long, value_name = "N")]
    pub slot: u16,
}

/// `passphrase list`
#[derive(Args, Debug)]
pub struct PassphraseList<Of: Args = SlotsOf> {
    /// Whose.
    #[command(flatten)]
    pub of: Of,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
