//! Arguments of the commands about named vaults, and of `status` and `lock`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};

use super::MountSettings;

/// Returns the names of this user's vaults, for completion.
fn names() -> Vec<CompletionCandidate> {
    // If the file cannot be read, no names are offered; the command reports the error.
    let known = crate::cli::user::named::load().unwrap_or_default();
    known.into_iter().map(|named| CompletionCandidate::new(named.name)).collect()
}

/// `open`
#[derive(Args, Debug)]
pub struct Open {
    /// Options for this time; they take precedence over those of the named vault.
    #[command(flatten)]
    pub how: MountSettings,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// The name of the vault
    #[arg(add = ArgValueCandidates::new(names))]
    pub name: String,
}

/// `close`
#[derive(Args, Debug)]
pub struct Close {
    /// Close all of your open vaults, named or not
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// Detach the mounts at once, even if they are busy, and do not wait
    #[arg(long)]
    pub lazy: bool,
    /// Names of vaults
    #[arg(value_name = "NAME", required_unless_present = "all", add = ArgValueCandidates::new(names))]
    pub names: Vec<String>,
}

/// `lock`
#[derive(Args, Debug)]
pub struct Lock {
    /// Names of vaults, or mount points; without any, all of your open vaults
    #[arg(value_name = "NAME", add = ArgValueCandidates::new(names))]
    pub names: Vec<OsString>,
}

/// `status`
#[derive(Args, Debug)]
pub struct Status {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Names of vaults; without any, all named and all open vaults
    #[arg(value_name = "NAME", add = ArgValueCandidates::new(names))]
    pub names: Vec<String>,
}

/// The commands about the list of named vaults.
#[derive(Debug, Subcommand)]
pub enum VaultsCommand {
    /// List the named vaults
    List(ListVaults),
    /// Give a vault a name, with its mount point and options
    Add(AddVault),
    /// Forget the name of a vault; the vault itself stays as it is
    Remove(RemoveVaults),
    /// Change the vault, the mount point or the options of a name
    Set(SetVault),
}

/// `vaults list`
#[derive(Args, Debug)]
pub struct ListVaults {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `vaults add`
#[derive(Args, Debug)]
pub struct AddVault {
    /// Options of `kithfs mount`.
    #[command(flatten)]
    pub how: MountSettings,
    /// The name: letters, digits, `-`, `_` and `.`
    pub name: String,
    /// The vault
    pub vault: PathBuf,
    /// The mount point
    pub mountpoint: PathBuf,
}

/// `vaults remove`
#[derive(Args, Debug)]
pub struct RemoveVaults {
    /// The names
    #[arg(value_name = "NAME", required = true, add = ArgValueCandidates::new(names))]
    pub names: Vec<String>,
}

/// `vaults set`
#[derive(Args, Debug)]
pub struct SetVault {
    /// Options of `kithfs mount`: those that are given are set, all others stay.
    #[command(flatten)]
    pub how: MountSettings,
    /// The new vault
    #[arg(long, value_name = "VAULT")]
    pub vault: Option<PathBuf>,
    /// The new mount point
    #[arg(long, value_name = "MOUNTPOINT")]
    pub mountpoint: Option<PathBuf>,
    /// Remove this option, such as `idle`
    #[arg(long, value_name = "OPTION")]
    pub unset: Vec<String>,
    /// The name
    #[arg(add = ArgValueCandidates::new(names))]
    pub name: String,
}
