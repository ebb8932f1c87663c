//! The arguments of commands for shares.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};

use super::{MemoryArgs, OpenArgs};
use crate::roster::Role;

/// The commands of `share`.
#[derive(Debug, Subcommand)]
pub enum ShareCommand {
    /// Turn a folder of a vault into a share
    ///
    /// The folder is created if missing. Its contents are encrypted again; until that is done, the
    /// folder stays as it is. An interrupted command continues when it is run again. In a mounted
    /// vault, programs may read during that time; the command fails if a file in the folder is open
    /// for writing at the end.
    ///
    /// Some stores cannot exchange two directories in one step: exFAT, NTFS, sshfs, NFS and SMB.
    /// There, a crash at the wrong moment leaves the complete folder under its name with
    /// .before-share appended. Running the same command again puts it back and continues. If the
    /// share already exists, the command removes the folder if the share has all of its contents,
    /// and otherwise reports it.
    Create(ShareCreate),
    /// Add members, or change their roles
    ///
    /// Members are contacts. A contact whose fingerprint has not been compared is refused without
    /// --trust-on-first-use. A contact that is CHANGED is always refused.
    Add(ShareAdd),
    /// Remove members
    ///
    /// A new folder key, which they do not get, is used from then on. They keep whatever they have
    /// already read.
    Remove(ShareRemove),
    /// List the members, their roles and fingerprints
    List(ShareList),
    /// Show the verified history of the membership
    Log(ShareLog),
    /// Reseal data that is still under an older folder key
    ///
    /// Reseals names, headers and small files, and with --eager all contents. If nothing is left
    /// under an older key, it begins a new one. An interrupted command continues when it is run
    /// again.
    Rekey(ShareRekey),
    /// Resolve a fork: choose one of two conflicting lists of members
    ///
    /// Without --keep, the command shows them.
    Settle(ShareSettle),
    /// Write an invitation for a member
    ///
    /// It identifies the share, so that nobody can pass them another one. It holds no secret.
    Invite(ShareInvite),
}

impl ValueEnum for Role {
    fn value_variants<'a>() -> &'a [Role] {
        &[Role::Reader, Role::Writer, Role::Admin]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(match self {
            Role::Reader => "Can read",
            Role::Writer => "Can read and write",
            Role::Admin => "Can also change the membership",
        }))
    }
}

/// `share add`
#[derive(Args, Debug)]
pub struct ShareAdd {
    /// The secret, and whether to accept an unverified contact.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Their role
    #[arg(long, value_enum)]
    pub role: Role,
    /// The share: a folder in a vault or in its mount
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Contacts; before them, the folder can be an argument of its own
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// `share create`
#[derive(Args, Debug)]
pub struct ShareCreate {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Whether and how much of the vault's state is recorded.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Keep the admins of the enclosing share out
    #[arg(long)]
    pub isolated: bool,
    /// Your name as the members see it; default is that of `kithfs identity name`
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The folder, in the vault or its mount: VAULT/FOLDER
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// A folder in it; `VAULT FOLDER` is the same as `VAULT/FOLDER`
    pub folder: Option<OsString>,
}

/// `share rekey`
#[derive(Args, Debug)]
pub struct ShareRekey {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Whether and how much of the vault's state is recorded.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Reseal all contents too
    #[arg(long)]
    pub eager: bool,
    /// Only show what is left
    #[arg(long, conflicts_with = "eager")]
    pub status: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The vault, its mount point, or the folder of a share in it
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// A folder in it; `VAULT FOLDER` is the same as `VAULT/FOLDER`
    pub folder: Option<OsString>,
}

/// `share remove`
#[derive(Args, Debug)]
pub struct ShareRemove {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Whether and how much of the vault's state is recorded.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Reseal all contents at once
    #[arg(long)]
    pub eager: bool,
    /// The share: a folder in a vault or in its mount
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Members, by their name in `list` or their fingerprint; before them, the folder can be an
    /// argument of its own
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// `share list`, `who-can-read`
#[derive(Args, Debug)]
pub struct ShareList {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The vault, its mount point, or a path in it
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// A folder in it; `VAULT FOLDER` is the same as `VAULT/FOLDER`
    pub folder: Option<OsString>,
}

/// `share log`
#[derive(Args, Debug)]
pub struct ShareLog {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The vault, its mount point, or a path in it
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// A folder in it; `VAULT FOLDER` is the same as `VAULT/FOLDER`
    pub folder: Option<OsString>,
}

/// `share settle`
#[derive(Args, Debug)]
pub struct ShareSettle {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The head to keep: at least eight digits of its hash
    #[arg(long, value_name = "HASH")]
    pub keep: Option<String>,
    /// The share: a folder in a vault or in its mount
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// A folder in it; `VAULT FOLDER` is the same as `VAULT/FOLDER`
    pub folder: Option<OsString>,
}

/// `share invite`
#[derive(Args, Debug)]
pub struct ShareInvite {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The file for the invitation; `-` is stdout
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub output: PathBuf,
    /// The share: a folder in a vault or in its mount
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// A member, by their name in `list` or their fingerprint; before it, the folder can be an
    /// argument of its own
    #[arg(required = true, num_args = 1..=2, value_name = "NAME")]
    pub names: Vec<String>,
}
