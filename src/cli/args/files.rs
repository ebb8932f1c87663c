//! The command line of what is done with files without a mount.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::OpenArgs;

/// `ls`
#[derive(Args, Debug)]
pub struct Ls {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Show mode, links, owner, size and time as well
    #[arg(short = 'l', long)]
    pub long: bool,
    /// The vault
    pub vault: PathBuf,
    /// The directory or file; default is the root of the vault
    pub path: Option<OsString>,
}

/// `cat`
#[derive(Args, Debug)]
pub struct Cat {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The vault
    pub vault: PathBuf,
    /// Files in the vault
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// `get`
#[derive(Args, Debug)]
pub struct Get {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The vault
    pub vault: PathBuf,
    /// A file in the vault
    pub path: OsString,
    /// Where to write it: a file, a directory, or `-` for stdout; default is its name in the
    /// current directory
    pub file: Option<PathBuf>,
}

/// `put`
#[derive(Args, Debug)]
pub struct Put {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The vault
    pub vault: PathBuf,
    /// The file to write in the vault, or a directory in it
    pub path: OsString,
    /// What to write: a file, or `-` for stdin
    #[arg(default_value = "-")]
    pub file: PathBuf,
}

/// `rm`
#[derive(Args, Debug)]
pub struct Rm {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Remove directories with all that is in them
    #[arg(short, long)]
    pub recursive: bool,
    /// Say nothing of paths that do not exist
    #[arg(short, long)]
    pub force: bool,
    /// The vault
    pub vault: PathBuf,
    /// Paths in the vault
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// `mkdir`
#[derive(Args, Debug)]
pub struct Mkdir {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Make missing parents as well, and say nothing of what is there
    #[arg(short, long)]
    pub parents: bool,
    /// The vault
    pub vault: PathBuf,
    /// Paths in the vault
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// `import`
#[derive(Args, Debug)]
pub struct Import {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The directory to copy
    pub dir: PathBuf,
    /// The vault, or a directory in it, which is made when missing
    #[arg(value_name = "VAULT[/PATH]")]
    pub target: PathBuf,
}

/// `export`
#[derive(Args, Debug)]
pub struct Export {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The vault, or a directory in it
    #[arg(value_name = "VAULT[/PATH]")]
    pub source: PathBuf,
    /// Keep set-user-id and set-group-id bits, and capabilities of files: whoever stores the vault
    /// can have set them
    #[arg(long)]
    pub suid: bool,
    /// Make device nodes: whoever stores the vault can have put them there
    #[arg(long)]
    pub dev: bool,
    /// The directory to copy to, which is made when missing
    pub dir: PathBuf,
}
