//! The arguments of commands that work on files without a mount.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::{MemoryArgs, OpenArgs};

/// `ls`
#[derive(Args, Debug)]
pub struct Ls {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Also show mode, links, owner, size and time
    #[arg(short = 'l', long)]
    pub long: bool,
    /// The vault
    #[arg(value_name = "VAULT[/PATH]")]
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
    #[arg(value_name = "VAULT[/PATH]")]
    pub vault: PathBuf,
    /// Files in the vault
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// `get`
#[derive(Args, Debug)]
pub struct Get {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// The vault
    #[arg(value_name = "VAULT[/PATH]")]
    pub vault: PathBuf,
    /// A file in the vault
    pub path: Option<OsString>,
    /// Destination: a file, a directory, or `-` for stdout; default is the file's name in the
    /// current directory
    pub file: Option<PathBuf>,
}

/// `put`
#[derive(Args, Debug)]
pub struct Put {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Whether and how much of the vault's state is recorded.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// The vault
    #[arg(value_name = "VAULT[/PATH]")]
    pub vault: PathBuf,
    /// The file to write in the vault, or a directory to write it to
    pub path: Option<OsString>,
    /// Source: a file, or `-` for stdin, which is the default
    pub file: Option<PathBuf>,
}

/// `rm`
#[derive(Args, Debug)]
pub struct Rm {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Whether and how much of the vault's state is recorded.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Remove directories and their contents
    #[arg(short, long)]
    pub recursive: bool,
    /// Ignore paths that do not exist
    #[arg(short, long)]
    pub force: bool,
    /// The vault
    #[arg(value_name = "VAULT[/PATH]")]
    pub vault: PathBuf,
    /// Paths in the vault
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// `mkdir`
#[derive(Args, Debug)]
pub struct Mkdir {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Whether and how much of the vault's state is recorded.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Create missing parents, and accept directories that exist
    #[arg(short, long)]
    pub parents: bool,
    /// The vault
    #[arg(value_name = "VAULT[/PATH]")]
    pub vault: PathBuf,
    /// Paths in the vault
    #[arg(value_name = "PATH")]
    pub paths: Vec<OsString>,
}

/// `import`
#[derive(Args, Debug)]
pub struct Import {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Whether and how much of the vault's state is recorded.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// The directory to copy
    pub dir: PathBuf,
    /// The vault, or a directory in it, which is created if missing
    #[arg(value_name = "VAULT[/PATH]")]
    pub target: PathBuf,
    /// A directory in the vault
    pub path: Option<OsString>,
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
    /// Keep set-user-ID and set-group-ID bits and file capabilities, which the storage host can set
    #[arg(long)]
    pub suid: bool,
    /// Create device nodes, which the storage host can plant
    #[arg(long)]
    pub dev: bool,
    /// The directory to copy to, which is created if missing; before it, the directory in the vault
    /// can be an argument of its own
    #[arg(value_name = "DIR", num_args = 1..=2, required = true)]
    pub rest: Vec<PathBuf>,
}
