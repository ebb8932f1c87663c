//! The command line of sharing.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::OpenArgs;
use crate::roster;

/// `share`
#[derive(Args, Debug)]
pub struct Share {
    /// What to do.
    #[command(subcommand)]
    pub command: ShareCommand,
}

/// The commands of `share`.
#[derive(Debug, Subcommand)]
pub enum ShareCommand {
    /// Make a share of a folder of a vault
    ///
    /// The folder is made where it is missing. What it holds is encrypted anew; until that is done
    /// it stays what it is, and the command goes on where it was interrupted. In a mounted vault
    /// programs may read meanwhile; what is open for writing in the folder at the end makes the
    /// command fail.
    ///
    /// Where the store cannot exchange two directories in one step, as exFAT, NTFS, sshfs, NFS and
    /// SMB, a crash in the wrong moment leaves the folder, whole, under its name with .before-share
    /// behind it. The same command again puts it back and goes on; where the share is there already
    /// it removes the folder if the share has all of it, and else says that it is left.
    Create(ShareCreate),
    /// Add members, or give them a role that may do more
    ///
    /// They are contacts. A contact whose fingerprint nobody has compared is refused unless told
    /// so; one that is CHANGED always is.
    Add(ShareAdd),
    /// Remove members
    ///
    /// A new folder key is used from then on, which they do not get. What they have read they keep.
    Remove(ShareRemove),
    /// List the members, their roles and fingerprints
    List(ShareList),
    /// Show who changed the membership, when and how, every signature verified
    Log(ShareLog),
    /// Seal anew what is still under an older folder key
    ///
    /// Names, headers and small files, with --eager all contents. Where nothing is left under an
    /// older key, it begins with a new one. It goes on where it was interrupted.
    Rekey(ShareRekey),
    /// Choose one of two lists of members that exclude each other
    ///
    /// Without --keep it shows them.
    Settle(ShareSettle),
    /// Write an invitation for a member
    ///
    /// It tells him which share is meant, so that nobody can pass him another one. It holds no
    /// secret.
    Invite(ShareInvite),
}

/// What a member may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Role {
    /// Reads
    Reader,
    /// Reads and writes
    Writer,
    /// And changes who is a member
    Admin,
}

impl From<Role> for roster::Role {
    fn from(role: Role) -> roster::Role {
        match role {
            Role::Reader => roster::Role::Reader,
            Role::Writer => roster::Role::Writer,
            Role::Admin => roster::Role::Admin,
        }
    }
}

impl From<roster::Role> for Role {
    fn from(role: roster::Role) -> Role {
        match role {
            roster::Role::Reader => Role::Reader,
            roster::Role::Writer => Role::Writer,
            roster::Role::Admin => Role::Admin,
        }
    }
}

/// `share add`
#[derive(Args, Debug)]
pub struct ShareAdd {
    /// The secret, and whether to take an unverified contact.
    #[command(flatten)]
    pub open: OpenArgs,
    /// What they may do
    #[arg(long, value_enum)]
    pub role: Role,
    /// The vault, or where it is mounted
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Contacts
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// `share create`
#[derive(Args, Debug)]
pub struct ShareCreate {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Keep the admins of what the folder is in out of it
    #[arg(long)]
    pub isolated: bool,
    /// What its members see as your name
    #[arg(long, value_name = "NAME", default_value = "owner")]
    pub name: String,
    /// The vault, or where it is mounted, and the folder in it: VAULT/FOLDER
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

/// `share rekey`
#[derive(Args, Debug)]
pub struct ShareRekey {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Contents too
    #[arg(long)]
    pub eager: bool,
    /// Only tell what is left
    #[arg(long, conflicts_with = "eager")]
    pub status: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The vault, or where it is mounted, or the folder of a share in it
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

/// `share remove`
#[derive(Args, Debug)]
pub struct ShareRemove {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Seal all contents anew at once
    #[arg(long)]
    pub eager: bool,
    /// The vault, or where it is mounted
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Members, as `list` names them, or their fingerprints
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
    /// The vault or a path in it, or where it is mounted
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

/// `share log`
#[derive(Args, Debug)]
pub struct ShareLog {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The vault or a path in it, or where it is mounted
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

/// `share settle`
#[derive(Args, Debug)]
pub struct ShareSettle {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The head that stays: at least eight digits of its hash
    #[arg(long, value_name = "HASH")]
    pub keep: Option<String>,
    /// The vault, or where it is mounted
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

/// `share invite`
#[derive(Args, Debug)]
pub struct ShareInvite {
    /// The secret.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Where to write the invitation; `-` is stdout
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    pub output: PathBuf,
    /// The vault, or where it is mounted
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// A member, as `list` names him, or his fingerprint
    pub name: String,
}
