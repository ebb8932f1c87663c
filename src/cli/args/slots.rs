//! The arguments of commands for slots.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{KdfArgs, PassphraseArgs, PresentSecret};

/// A heading of the help. Each option names its own, see `SECRET`.
const NEW_SECRET: &str = "New secret";

/// The commands of `passphrase`, and of `identity passphrase`.
#[derive(Debug, Subcommand)]
pub enum PassphraseCommand<Of: Args = SlotsOf> {
    /// Add a slot
    Add(PassphraseAdd<Of>),
    /// Replace a passphrase
    Change(PassphraseChange<Of>),
    /// Remove a slot
    Remove(PassphraseRemove<Of>),
    /// List the slots
    List(PassphraseList<Of>),
    /// Store the passphrase in the keyring of your session
    ///
    /// Commands that unlock take it from there, before they ask. Every program that runs as you can
    /// ask the keyring while you are logged in.
    Remember(PassphraseRemember<Of>),
    /// Remove the passphrase from the keyring of your session
    Forget(PassphraseForget<Of>),
}

/// The identity to change: a vault's own one, or an identity file.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct SlotsOf {
    /// Use this vault's own identity
    pub vault: Option<PathBuf>,
    /// Use this identity file
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
    /// The identity.
    #[command(flatten)]
    pub of: Of,
    /// A secret that opens the identity.
    #[command(flatten)]
    pub present: PresentSecret,
    /// The new secret.
    #[command(flatten)]
    pub new: NewSecret,
    /// Add a slot for the contents of this file, instead of a passphrase
    #[arg(long, value_name = "FILE", group = "new_secret", help_heading = NEW_SECRET)]
    pub new_key_file: Option<PathBuf>,
    /// Add a slot for a new recovery code, which is printed once, instead of a passphrase
    #[arg(long, group = "new_secret", help_heading = NEW_SECRET)]
    pub new_recovery_code: bool,
    /// Add a slot for an age recipient, instead of a passphrase: `age1...`, or an SSH public key
    ///
    /// Hardware tokens are recipients through their age plugins. A slot can be added without its
    /// token; try it before you rely on it.
    #[arg(long, value_name = "RECIPIENT", group = "new_secret", help_heading = NEW_SECRET)]
    pub age: Option<String>,
    /// A label for the slot, shown by `list`; the storage host can read it
    #[arg(long, value_name = "TEXT", default_value = "", help_heading = NEW_SECRET)]
    pub label: String,
    /// The cost of guessing the passphrase.
    #[command(flatten)]
    pub kdf: KdfArgs,
}

/// `passphrase change`
#[derive(Args, Debug)]
pub struct PassphraseChange<Of: Args = SlotsOf> {
    /// The identity.
    #[command(flatten)]
    pub of: Of,
    /// A secret that opens the identity.
    #[command(flatten)]
    pub present: PresentSecret,
    /// The new secret.
    #[command(flatten)]
    pub new: NewSecret,
    /// The slot to replace, as numbered by `list`; default is the slot of the given passphrase, or
    /// the only passphrase
    #[arg(long, value_name = "N")]
    pub slot: Option<u16>,
    /// The cost of guessing the passphrase.
    #[command(flatten)]
    pub kdf: KdfArgs,
}

/// `passphrase remove`
#[derive(Args, Debug)]
pub struct PassphraseRemove<Of: Args = SlotsOf> {
    /// The identity.
    #[command(flatten)]
    pub of: Of,
    /// A secret that opens the identity.
    #[command(flatten)]
    pub present: PresentSecret,
    /// The slot, as numbered by `list`
    #[arg(long, value_name = "N")]
    pub slot: u16,
}

/// `passphrase remember`
#[derive(Args, Debug)]
pub struct PassphraseRemember<Of: Args = SlotsOf> {
    /// The identity.
    #[command(flatten)]
    pub of: Of,
    /// The passphrase to store.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// `passphrase forget`
#[derive(Args, Debug)]
pub struct PassphraseForget<Of: Args = SlotsOf> {
    /// The identity.
    #[command(flatten)]
    pub of: Of,
}

/// `passphrase list`
#[derive(Args, Debug)]
pub struct PassphraseList<Of: Args = SlotsOf> {
    /// The identity.
    #[command(flatten)]
    pub of: Of,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
