//! The command line of fsck and of the memory of what was seen.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::OpenArgs;

/// `fsck`
#[derive(Args, Debug)]
pub struct Fsck {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Repair what is wrong, after a question for each
    ///
    /// Replays what a crash left, clears its residue without a question, writes lost directory
    /// records and long names anew where what is sealed in the vault tells them, and moves what
    /// cannot be authenticated to a new directory in `lost+found`, with a report. The vault must
    /// not be mounted.
    #[arg(long, conflicts_with = "online")]
    pub repair: bool,
    /// With --repair: take attributes away whose list is missing
    ///
    /// A list of attributes that is too long for the store stands in a file of its own
    /// (`+attr-...`). Where that is missing the attributes cannot be read or set; a sync tool may
    /// only be late with it, so that a repair leaves them as they are unless this is given. What
    /// refers to the list is kept in `lost+found`.
    #[arg(long, requires = "repair")]
    pub forget_missing_attributes: bool,
    /// Repair without questions
    #[arg(short, long, requires = "repair", conflicts_with = "dry_run")]
    pub yes: bool,
    /// Change nothing, say what would be done
    #[arg(short = 'n', long, requires = "repair")]
    pub dry_run: bool,
    /// Write what is good of damaged files to this directory, with holes where bytes are bad
    #[arg(long, value_name = "DIR")]
    pub salvage: Option<PathBuf>,
    /// Verify a vault that is mounted, beside the mount
    ///
    /// What is wrong counts only when nothing about it has changed for some seconds. Files that are
    /// written to all the time are named, and count as neither good nor bad.
    #[arg(long)]
    pub online: bool,
    /// The vault
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
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Keep in mind what is noticed now, and say no more of it
    #[arg(long)]
    pub keep: bool,
    /// Copy the files that are noticed, as they are now, to this directory
    #[arg(long, value_name = "DIR")]
    pub export: Option<PathBuf>,
    /// Seconds for which nothing in the vault may have changed before what is noticed counts: a
    /// sync tool may not have finished
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
    /// The vault
    pub vault: PathBuf,
    /// Files and directories in the vault; default is all of it
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
}
