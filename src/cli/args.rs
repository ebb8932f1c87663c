//! The command line as types. The spellings here are fixed: scripts rely on them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub mod people;
pub mod share;

use super::size;
use people::{Accept, Contact, Identity};
use share::{Share, ShareList};

/// An encrypted filesystem for people who share.
///
/// A vault is an ordinary directory of ciphertext. `kithfs mount` shows it as plain files; all other commands work without a mount.
#[derive(Debug, Parser)]
#[command(name = "kithfs", version, max_term_width = 100, after_long_help = super::exit::Exit::text_table())]
pub struct Cli {
    /// What is logged: to stderr in the foreground, to the journal or syslog by a mount in the background
    ///
    /// Names of files are logged at `debug` and `trace` only. Default: `info` for mount, `warn` for all else.
    #[arg(long, global = true, value_name = "LEVEL", value_enum)]
    pub log_level: Option<LogLevel>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Nothing
    Off,
    /// What failed
    Error,
    /// And what is odd
    Warn,
    /// And the course of things
    Info,
    /// And details, with names of files
    Debug,
    /// And each request
    Trace,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a new vault
    ///
    /// Makes the directory when it is missing, and refuses one that is not empty. The recovery code is printed once, to stdout: it opens the
    /// vault when the passphrase is lost, so keep it on paper and not beside the vault.
    Init(Init),
    /// Show a vault as plain files
    ///
    /// Goes to the background when the mount serves requests; a failure before that is reported and shows in the exit code. SIGTERM, SIGINT
    /// and SIGHUP unmount cleanly.
    Mount(Mount),
    /// End a mount, and wait until all is written
    #[command(visible_alias = "unmount")]
    Umount(Umount),
    /// The ways into an identity: passphrases, recovery codes, key files
    ///
    /// Each way is a slot. A new slot is verified before an old one goes, and the last one cannot be removed.
    Passphrase(Passphrase),
    /// Your identity: what others share folders with
    ///
    /// One file, by default ~/.config/kithfs/identity. Its public key is a line that begins with `kith1`; give that to others, and compare
    /// the fingerprint with them by another way than the key went.
    Identity(Identity),
    /// The people whose public keys you know
    ///
    /// A contact is `new` until its fingerprint was compared with its owner; then it is `verified`. Where a second key is offered under the
    /// same name it is `CHANGED`, and is not used until you decide.
    Contact(Contact),
    /// Accept an invitation to a share
    ///
    /// From then on a mount of the share is known to be the one that was meant, and an older state of its list of members is refused.
    Accept(Accept),
    /// Who is a member of a shared vault, and changing that
    Share(Share),
    /// Who has a key for a path in a vault
    WhoCanRead(ShareList),
    /// What can be said of a vault without a secret
    Info(Info),
    /// Verify every byte of a vault
    ///
    /// Prints plain path and cipher path of each fault, and which bytes of a file are bad. With --repair, puts right what can be known and
    /// moves what cannot be authenticated to `lost+found` in the vault; nothing is deleted. Exit code 0: no fault, or none is left; 20:
    /// faults found; 21: the check could not run.
    Fsck(Fsck),
    /// What in a vault is older than this machine has seen it, or gone
    ///
    /// Whoever stores a vault can give back what it was earlier. Each client remembers what it has seen, in $XDG_STATE_HOME/kithfs (or
    /// ~/.local/state/kithfs), and compares. Exit code 0: nothing; 22: something was noticed.
    Rollback(Rollback),
    /// Accept a vault, or parts of it, as it is now: after a backup was restored
    AcceptRollback(AcceptRollback),
    /// List a directory of a vault
    Ls(Ls),
    /// Write files of a vault to stdout
    Cat(Cat),
    /// Copy a file out of a vault
    Get(Get),
    /// Copy a file into a vault
    Put(Put),
    /// Remove files from a vault
    Rm(Rm),
    /// Make directories in a vault
    Mkdir(Mkdir),
    /// Copy a directory into a vault, with all metadata
    ///
    /// Can be broken off and run again: files that are there with the same size and time of modification are passed over.
    Import(Import),
    /// Copy a vault, or a directory of it, out, with all metadata
    ///
    /// Can be broken off and run again: files that are there with the same size and time of modification are passed over.
    Export(Export),
    /// From a plain path to the path of its ciphertext, and back
    Map(Map),
    /// What is mounted, since when, by which process
    Mounts(Mounts),
    /// How fast this processor and this disk are with kithfs
    ///
    /// Measures the ciphers, and a temporary vault beside the plain directory DIR, in which it is made and removed. Takes less than a
    /// minute and 300 MB of the disk.
    Bench(Bench),
    /// Print the completion script of a shell
    Completion(Completion),
    /// Write the manual pages into a directory
    Man(Man),
    /// List the exit codes, as a table in Markdown
    ExitCodes,
}

/// Where the passphrase comes from, when not from the terminal.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Secret")]
pub struct PassphraseArgs {
    /// Read the passphrase from a file (`-`: stdin); one newline at its end does not count
    ///
    /// Without any of these options: the file that the variable KITHFS_PASSPHRASE_FILE names, else the systemd credential
    /// `kithfs.passphrase`, else a prompt at the terminal.
    #[arg(long, value_name = "FILE", group = "secret")]
    pub passphrase_file: Option<PathBuf>,
    /// Read the passphrase from this file descriptor
    #[arg(long, value_name = "N", group = "secret", value_parser = clap::value_parser!(i32).range(0..))]
    pub passphrase_fd: Option<i32>,
    /// Run a command with `sh -c` and read the passphrase from its output
    #[arg(long, value_name = "CMD", group = "secret")]
    pub passphrase_command: Option<OsString>,
    /// Use the contents of a file instead of a passphrase
    #[arg(long, value_name = "FILE", group = "secret")]
    pub key_file: Option<PathBuf>,
}

/// A secret that opens something which exists.
#[derive(Args, Debug, Default)]
pub struct PresentSecret {
    /// Passphrase or key file.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
    /// Read a recovery code from a file (at a prompt it can be typed in place of the passphrase)
    #[arg(long, value_name = "FILE", group = "secret", help_heading = "Secret")]
    pub recovery_code_file: Option<PathBuf>,
}

/// How a vault is opened.
#[derive(Args, Debug, Default)]
pub struct OpenArgs {
    /// The secret.
    #[command(flatten)]
    pub secret: PresentSecret,
    /// Use this identity instead of the vault's own one
    #[arg(long, value_name = "FILE", help_heading = "Secret")]
    pub identity: Option<PathBuf>,
    /// Neither compare the vault with what was seen of it earlier nor remember what is seen now
    ///
    /// The variable KITHFS_NO_ROLLBACK_MEMORY=1 does the same.
    #[arg(long, env = "KITHFS_NO_ROLLBACK_MEMORY", hide_env = true, value_parser = clap::builder::FalseyValueParser::new())]
    pub no_rollback_memory: bool,
    /// Take the share, or the contact, as it is, though nothing vouches for it: no invitation, no earlier visit, no compared fingerprint
    #[arg(long)]
    pub trust_on_first_use: bool,
    /// Limit of the caches in memory
    #[arg(long, value_name = "SIZE", value_parser = size::parse_cache)]
    pub cache_size: Option<usize>,
}

/// The costs of guessing a passphrase.
#[derive(Args, Debug, Default)]
pub struct KdfArgs {
    /// Memory that one guess at the passphrase takes, in MiB; default 256, less only where memory is short
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(32..=4096))]
    pub kdf_memory: Option<u32>,
    /// Passes over that memory; default as many as take about one second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub kdf_passes: Option<u32>,
}

/// `init`
#[derive(Args, Debug)]
pub struct Init {
    /// The passphrase or key file of the new vault.
    #[command(flatten)]
    pub secret: PassphraseArgs,
    /// Its costs.
    #[command(flatten)]
    pub kdf: KdfArgs,
    /// Cipher of names, contents and records; default aes where the processor has it, else chacha
    #[arg(long, value_enum)]
    pub cipher: Option<Cipher>,
    /// Unit in which large files are sealed: a power of two from 4K to 4M
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size::parse_chunk_log2)]
    pub chunk_size: u8,
    /// Make this identity the owner, instead of a new one that lies in the vault
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// Sign every file, so that the vault can have members: readers, writers, admins
    #[arg(long)]
    pub signed: bool,
    /// What its members see as your name, with --signed
    #[arg(long, value_name = "NAME", default_value = "owner", requires = "signed")]
    pub name: String,
    /// The directory of ciphertext to make
    pub vault: PathBuf,
}

/// A family of ciphers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cipher {
    /// AES-256-GCM, under sub-keys as in XAES-256-GCM
    Aes,
    /// ChaCha20-Poly1305, under sub-keys as in XChaCha20
    Chacha,
}

/// `mount`
#[derive(Args, Debug)]
pub struct Mount {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Options of the mount, separated by commas
    ///
    /// ro, rw, allow_other, no_default_permissions, dev, nodev, suid, nosuid, exec, noexec, sync, async, dirsync, noatime, nodiratime,
    /// nonempty, shared, fsname=NAME, subtype=NAME, uid=N, gid=N, umask=OCTAL, uring, uring_memory=MIB. Device nodes and set-user-id bits do not work unless `dev` and
    /// `suid` are given. A comma in a value is written `\,`.
    #[arg(short = 'o', value_name = "OPT[,OPT...]")]
    pub options: Vec<String>,
    /// Allow no writes
    #[arg(long)]
    pub read_only: bool,
    /// Let others have the vault mounted for writing at the same time, who all say the same
    ///
    /// Each operation asks the store, nothing is cached, and one file is written by one of them at a time. The store must show each of them
    /// the locks of the others, as a local filesystem and NFS do; no sync tool does.
    #[arg(long)]
    pub shared: bool,
    /// How requests come from the kernel
    #[arg(long, value_name = "HOW", env = "KITHFS_TRANSPORT", value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// The vault
    pub vault: PathBuf,
    /// An empty directory
    pub mountpoint: PathBuf,
}

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// Over /dev/fuse; with `-o uring` over io_uring where the kernel offers it
    Auto,
    /// Over io_uring (experimental, Linux 6.14 and later); an error where that cannot be
    Uring,
    /// Over /dev/fuse, also with `-o uring`
    Dev,
}

/// `umount`
#[derive(Args, Debug)]
pub struct Umount {
    /// Take the mount away from sight at once, even when it is busy; it ends when its last file is closed
    ///
    /// The command then does not wait.
    #[arg(long)]
    pub lazy: bool,
    /// Where it is mounted
    pub mountpoint: PathBuf,
}

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
#[command(next_help_heading = "New secret")]
pub struct NewSecret {
    /// Read the new passphrase from a file; default is a prompt at the terminal, twice
    #[arg(long, value_name = "FILE", group = "new_secret")]
    pub new_passphrase_file: Option<PathBuf>,
    /// Read the new passphrase from this file descriptor
    #[arg(long, value_name = "N", group = "new_secret", value_parser = clap::value_parser!(i32).range(0..))]
    pub new_passphrase_fd: Option<i32>,
    /// Run a command with `sh -c` and read the new passphrase from its output
    #[arg(long, value_name = "CMD", group = "new_secret")]
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
    #[arg(long, value_name = "FILE", group = "new_secret", help_heading = "New secret")]
    pub new_key_file: Option<PathBuf>,
    /// Add a new recovery code, which is printed once, instead of a passphrase
    #[arg(long, group = "new_secret", help_heading = "New secret")]
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
    /// The slot to replace, as `list` numbers them; default is the passphrase that was given, or the only one that there is
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

/// `bench`
#[derive(Args, Debug)]
pub struct Bench {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Do little of each, in a few seconds: to see that it works, not to quote
    #[arg(long)]
    pub quick: bool,
    /// A directory on the disk that is to be measured
    #[arg(default_value = ".")]
    pub dir: PathBuf,
}

/// `info`
#[derive(Args, Debug)]
pub struct Info {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The vault
    pub vault: PathBuf,
}

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
    /// Replays what a crash left, writes lost directory records and long names anew where what is sealed in the vault tells them, and moves
    /// what cannot be authenticated to a new directory in `lost+found`, with a report. The vault must not be mounted.
    #[arg(long, conflicts_with = "online")]
    pub repair: bool,
    /// With --repair: take attributes away whose list is missing
    ///
    /// A list of attributes that is too long for the store stands in a file of its own (`+attr-...`). Where that is missing the attributes
    /// cannot be read or set; a sync tool may only be late with it, so that a repair leaves them as they are unless this is given. What
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
    /// What is wrong counts only when nothing about it has changed for some seconds. Files that are written to all the time are named, and
    /// count as neither good nor bad.
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
    /// Seconds for which nothing in the vault may have changed before what is noticed counts: a sync tool may not have finished
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
    /// Where to write it: a file, a directory, or `-` for stdout; default is its name in the current directory
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
    /// Keep set-user-id and set-group-id bits, and capabilities of files: whoever stores the vault can have set them
    #[arg(long)]
    pub suid: bool,
    /// Make device nodes: whoever stores the vault can have put them there
    #[arg(long)]
    pub dev: bool,
    /// The directory to copy to, which is made when missing
    pub dir: PathBuf,
}

/// `map`
#[derive(Args, Debug)]
pub struct Map {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// PATH is a path of ciphertext, relative to the vault; print the plain one
    #[arg(long)]
    pub reverse: bool,
    /// The vault
    pub vault: PathBuf,
    /// The path
    pub path: OsString,
}

/// `mounts`
#[derive(Args, Debug)]
pub struct Mounts {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `completion`
#[derive(Args, Debug)]
pub struct Completion {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// A shell that can be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// GNU Bash
    Bash,
    /// Z shell
    Zsh,
    /// Fish
    Fish,
}

/// `man`
#[derive(Args, Debug)]
pub struct Man {
    /// The directory, which is made when missing
    pub dir: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Command, clap::error::ErrorKind> {
        Cli::try_parse_from(line.split(' ')).map(|cli| cli.command).map_err(|error| error.kind())
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn each_spelling_of_the_manual_is_understood() {
        for line in [
            "kithfs init --passphrase-file F --cipher aes --chunk-size 64K --kdf-memory 256 --kdf-passes 3 V",
            "kithfs init --identity F --cipher chacha V",
            "kithfs mount --passphrase-file F --identity I -f -o ro,nodev -o fsname=x --read-only V M",
            "kithfs mount --foreground --cache-size 128M --log-level debug V M",
            "kithfs --log-level trace umount --lazy M",
            "kithfs passphrase add V",
            "kithfs passphrase add --identity F --new-key-file K",
            "kithfs passphrase add V --new-recovery-code --passphrase-file P",
            "kithfs passphrase change V --passphrase-file P --new-passphrase-file Q",
            "kithfs passphrase remove V --slot 2 --recovery-code-file R",
            "kithfs passphrase list --json V",
            "kithfs identity new --passphrase-file F --kdf-memory 32",
            "kithfs identity new --identity I",
            "kithfs identity show",
            "kithfs identity export --identity I",
            "kithfs identity passphrase add --new-recovery-code",
            "kithfs identity passphrase change --identity I --new-passphrase-file F",
            "kithfs identity passphrase remove --slot 2",
            "kithfs identity passphrase list --json",
            "kithfs init --signed --name Ann V",
            "kithfs mount --trust-on-first-use V M",
            "kithfs share add V Bob Cem --role reader --trust-on-first-use",
            "kithfs share remove M Bob",
            "kithfs share list V/a --json",
            "kithfs share log V",
            "kithfs share settle V --keep 01234567",
            "kithfs share invite V Bob -o F --passphrase-file P",
            "kithfs who-can-read V/a",
            "kithfs contact add Bob kith1x",
            "kithfs contact list --json",
            "kithfs contact verify Bob --fingerprint 0000-0000-0000-0000-0000",
            "kithfs contact verify Bob --yes",
            "kithfs contact remove Bob",
            "kithfs accept F --yes",
            "kithfs accept - --identity I --fingerprint 0000",
            "kithfs info --json V",
            "kithfs fsck --json V a/b",
            "kithfs fsck V",
            "kithfs fsck --repair --yes --salvage D V a",
            "kithfs fsck --repair -n --json V",
            "kithfs fsck --online V a",
            "kithfs fsck --repair --yes --forget-missing-attributes V",
            "kithfs rollback --json --keep --export D --settle 0 V",
            "kithfs accept-rollback V",
            "kithfs accept-rollback V a b",
            "kithfs mount --no-rollback-memory V M",
            "kithfs ls -l V a",
            "kithfs cat V a b",
            "kithfs get V a -",
            "kithfs put V a",
            "kithfs rm -r -f V a b",
            "kithfs mkdir -p V a",
            "kithfs import D V/a",
            "kithfs export V D",
            "kithfs map V a",
            "kithfs map --reverse V a",
            "kithfs mounts --json",
            "kithfs completion zsh",
            "kithfs man D",
            "kithfs exit-codes",
            "kithfs mount --passphrase-fd 3 V M",
            "kithfs mount --passphrase-command pass V M",
            "kithfs mount --key-file K V M",
        ] {
            assert!(parse(line).is_ok(), "{line}: {:?}", parse(line).err());
        }
    }

    #[test]
    fn one_secret_only() {
        use clap::error::ErrorKind::ArgumentConflict;
        for line in [
            "kithfs mount --passphrase-file F --key-file K V M",
            "kithfs mount --passphrase-fd 3 --passphrase-command C V M",
            "kithfs mount --passphrase-file F --recovery-code-file R V M",
            "kithfs passphrase add V --new-recovery-code --new-key-file K",
            "kithfs passphrase add V --new-passphrase-file K --new-key-file K",
            "kithfs passphrase list V --identity I",
            "kithfs fsck --repair --online V",
            "kithfs fsck --repair --yes --dry-run V",
        ] {
            assert_eq!(parse(line).err(), Some(ArgumentConflict), "{line}");
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_refused() {
        for line in [
            "kithfs init --chunk-size 3K V",
            "kithfs init --chunk-size 8M V",
            "kithfs init --kdf-memory 16 V",
            "kithfs init --kdf-memory 8192 V",
            "kithfs init --kdf-passes 0 V",
            "kithfs mount --cache-size 1 V M",
            "kithfs mount --passphrase-fd=-1 V M",
        ] {
            assert_eq!(parse(line).err(), Some(clap::error::ErrorKind::ValueValidation), "{line}");
        }
        assert!(parse("kithfs passphrase list").is_err(), "a vault or an identity is needed");
        assert!(parse("kithfs init").is_err());
        assert!(parse("kithfs cat V").is_err());
    }

    #[test]
    fn values_arrive() {
        let Ok(Command::Init(init)) = parse("kithfs init --chunk-size 1M --kdf-memory 64 V") else { panic!("init") };
        assert_eq!((init.chunk_size, init.kdf.kdf_memory, init.kdf.kdf_passes), (20, Some(64), None));
        let Ok(Command::Init(init)) = parse("kithfs init V") else { panic!("init") };
        assert_eq!((init.chunk_size, init.cipher), (18, None));
        let Ok(Command::Put(put)) = parse("kithfs put V a") else { panic!("put") };
        assert_eq!(put.file.as_os_str(), "-");
        let Ok(Command::Mount(mount)) = parse("kithfs mount V M -o a,b -o c") else { panic!("mount") };
        assert_eq!(mount.options, ["a,b", "c"]);
    }
}
