//! The arguments of fsck and of the rollback commands.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::{MemoryArgs, MemoryLimit, OpenArgs};

/// `fsck`
#[derive(Args, Debug)]
pub struct Fsck {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Whether and how much of the vault's state is recorded.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Repair the faults, with a question for each
    ///
    /// Replays the journal of a crash and clears its residue without a question. Restores lost
    /// names from authenticated copies in the vault. Moves data that cannot be authenticated to a
    /// new directory in `lost+found`, with a report. The vault must not be mounted.
    #[arg(long, conflicts_with = "online", group = "changes")]
    pub repair: bool,
    /// Remove control files to which nothing refers, with one question
    ///
    /// Lists of attributes, targets of links, long names, records of renames and lists of members
    /// are files of their own in the vault, which are only ever added: a sync tool may still
    /// deliver an entry that needs one. This removes those that this machine has found unused for
    /// some time (see --unused-for), by its own record and clock. They are kept in the state
    /// directory, and the command that puts them back is printed. Nothing is removed if the check
    /// finds a fault, or if entries are missing that this machine has seen. Sync all copies first,
    /// and use a complete copy, with no selective sync. The vault must not be mounted.
    #[arg(long, conflicts_with = "online", group = "changes")]
    pub prune: bool,
    /// With --prune: remove what earlier runs found unused this many days ago
    ///
    /// With 0, everything unused is removed at once.
    #[arg(long, value_name = "DAYS", requires = "prune", default_value_t = 30)]
    pub unused_for: u32,
    /// With --repair: remove attributes whose list is missing
    ///
    /// A list of attributes that is too long for the store is in a file of its own (`+attr-...`).
    /// If that file is missing, the attributes cannot be read or set. A sync may still deliver it,
    /// so a repair keeps the attributes unless this option is given. The reference to the list is
    /// kept in `lost+found`.
    #[arg(long, requires = "repair")]
    pub forget_missing_attributes: bool,
    /// Repair or remove without questions
    #[arg(short, long, requires = "changes", conflicts_with = "dry_run")]
    pub yes: bool,
    /// Change nothing, print what would be done
    #[arg(short = 'n', long, requires = "changes")]
    pub dry_run: bool,
    /// Write the good parts of damaged files to this directory, with holes for the bad bytes
    #[arg(long, value_name = "DIR")]
    pub salvage: Option<PathBuf>,
    /// Verify a vault while it is mounted
    ///
    /// A fault counts only if nothing about it has changed for some seconds. Files that change all
    /// the time are listed, and count as neither good nor bad.
    #[arg(long)]
    pub online: bool,
    /// The vault
    #[arg(value_name = "VAULT[/PATH]")]
    pub vault: PathBuf,
    /// Where to start; default is the root of the vault
    pub path: Option<OsString>,
}

/// `rollback`
#[derive(Args, Debug)]
pub struct Rollback {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The limit of the rollback database.
    #[command(flatten)]
    pub memory: MemoryLimit,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Record the notices of this run, and do not repeat them
    #[arg(long)]
    pub keep: bool,
    /// Copy the files with a notice, in their current state, to this directory
    #[arg(long, value_name = "DIR")]
    pub export: Option<PathBuf>,
    /// Seconds without a change in the vault before a notice counts, as a sync may be in progress
    #[arg(long, value_name = "SECONDS", default_value_t = crate::vault::SETTLE.as_secs())]
    pub settle: u64,
    /// The vault
    pub vault: PathBuf,
}

/// `accept-rollback`
#[derive(Args, Debug)]
pub struct AcceptRollback {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The limit of the rollback database.
    #[command(flatten)]
    pub memory: MemoryLimit,
    /// The vault
    #[arg(value_name = "VAULT[/PATH]")]
    pub vault: PathBuf,
    /// Files and directories in the vault; default is all of it
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
}
