//! The command line as types. The spellings are fixed, as scripts depend on them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub mod check;
pub mod files;
pub mod help;
pub mod named;
pub mod people;
pub mod share;
pub mod size;
pub mod slots;

use crate::cli::terminal::color::Color;
use crate::fuse::options::parse_idle;
use check::{AcceptRollback, Fsck, Rollback};
use files::{Cat, Export, Get, Import, Ls, Mkdir, Put, Rm};
use named::{Close, Lock, Open, Status, VaultsCommand};
use people::{Accept, ContactCommand, IdentityCommand};
use share::{ShareCommand, ShareList};
use slots::PassphraseCommand;

/// A heading of the help. Each option names its own, as `next_help_heading` of a group also applies
/// to everything after the group.
const SECRET: &str = "Secret";

/// An encrypted filesystem for people who share.
///
/// A vault is an ordinary directory of ciphertext. `kithfs mount` shows it as plain files; all
/// other commands work without a mount.
#[derive(Debug, Parser)]
#[command(name = "kithfs", version, max_term_width = 100)]
pub struct Cli {
    /// Log level; logs go to stderr in the foreground, to the journal or syslog in the background
    ///
    /// File names are logged at `debug` and `trace` only. Default: `info` for mount and open,
    /// `warn` for all other commands.
    #[arg(long, global = true, value_name = "LEVEL", value_enum, display_order = 900)]
    pub log_level: Option<LogLevel>,
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = Color::Auto, display_order = 901)]
    pub color: Color,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Nothing
    Off,
    /// Errors
    Error,
    /// Also warnings
    Warn,
    /// Also normal events
    Info,
    /// Also details, with file names
    Debug,
    /// Also each request
    Trace,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a new vault
    ///
    /// Creates the directory if it is missing, and refuses one that is not empty. If you have an
    /// identity (`kithfs identity new`), it opens the vault, with its own passphrase and recovery
    /// code. Otherwise the vault gets an identity of its own, and a recovery code that is printed
    /// once, to stdout: it opens the vault if the passphrase is lost. Keep it on paper, away from
    /// the vault.
    Init(Init),
    /// Show a vault as plain files
    ///
    /// Moves to the background once the mount serves requests. A failure before that is reported
    /// and sets the exit code. SIGTERM, SIGINT and SIGHUP unmount cleanly.
    Mount(Mount),
    /// Unmount a vault, and wait until everything is written
    ///
    /// A mount that programs still use stays; they are listed, with exit code 13.
    #[command(visible_alias = "unmount")]
    Umount(Umount),
    /// Open a named vault
    ///
    /// Mounts it with the mount point and the options that `vaults add` stored. An option on this
    /// command line replaces the stored one. A vault that is already open stays as it is.
    Open(Open),
    /// Close named vaults, and wait until everything is written
    ///
    /// A vault that programs still use stays open; they are listed, with exit code 13. `lock`
    /// closes it even then.
    Close(Close),
    /// Lock open vaults at once, even while programs use them
    ///
    /// Commits what was written, takes the mounts away and wipes the keys from memory. Programs
    /// that still have files open get errors; the log names these programs. `close` does nothing
    /// while there are such programs.
    Lock(Lock),
    /// Show all vaults: named or open, since when, how long unused, and what needs attention
    ///
    /// Exit code 0, whatever is shown. Conflict copies, forks and rollback alarms are counted; `map
    /// --reverse`, `share settle` and `rollback` show them. An option of a named vault that `open`
    /// would refuse is reported on stderr.
    Status(Status),
    /// Manage the names of vaults, with their mount points and options
    ///
    /// The list is the file ~/.config/kithfs/vaults.toml. It contains no secret.
    #[command(subcommand)]
    Vaults(VaultsCommand),
    /// Manage the slots of an identity: passphrases, recovery codes, key files
    ///
    /// Each slot opens the identity. A new slot is verified before an old one is removed, and the
    /// last one cannot be removed. A vault that your identity opens has no slots of its own: see
    /// `kithfs identity passphrase`.
    #[command(subcommand)]
    Passphrase(PassphraseCommand),
    /// Manage your identity, which others share folders with
    ///
    /// An identity is one file, by default ~/.config/kithfs/identity. Its public key is a line that
    /// begins with `kith1`. Give that line to others, and compare the fingerprint with them over
    /// another channel than the one that carried the key.
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// Manage the people whose public keys you know
    ///
    /// A contact is `new` until you compare its fingerprint with its owner; then it is `verified`.
    /// If a second key is offered under the same name, the contact is `CHANGED` and is not used
    /// until you decide.
    #[command(subcommand)]
    Contact(ContactCommand),
    /// Accept an invitation to a share
    ///
    /// Afterwards a mount of the share is known to be the intended one, and an older state of its
    /// list of members is refused.
    Accept(Accept),
    /// Show and change the members of a share
    #[command(subcommand)]
    Share(ShareCommand),
    /// List the members with a key for a path in a vault
    WhoCanRead(ShareList),
    /// Show the public facts of a vault, without a secret
    Info(Info),
    /// Set a property of a vault, for all its users and machines
    ///
    /// With --synced: the vault is in a folder that a sync tool keeps equal on several machines.
    /// Changes are then committed within a second, other machines' changes are visible within two,
    /// and journals stay on the machine. It cannot be unset.
    ///
    /// With --shared: the vault is in one store that several machines or users use at the same
    /// time. Each mount then opens it as `kithfs mount --shared` does, without the option.
    /// --no-shared unsets it.
    ///
    /// Needs no secret. A vault cannot have both properties. Present mounts do not use a change.
    Set(Set),
    /// Verify every byte of a vault
    ///
    /// Prints the plain path and cipher path of each fault, and which bytes of a file are bad. With
    /// --repair, restores what can be known and moves data that cannot be authenticated to
    /// `lost+found` in the vault; nothing is deleted. Exit code 0: no fault, or none is left; 20:
    /// faults found; 21: the check could not run, or not to its end; 23: no damage, but what a
    /// crash leaves behind.
    Fsck(Fsck),
    /// List files in a vault that are older than this machine has seen, or gone
    ///
    /// The storage host can restore an earlier state of a vault. Each client records the versions
    /// that it sees, in $XDG_STATE_HOME/kithfs (or ~/.local/state/kithfs), and compares. Exit code
    /// 0: nothing; 22: something was noticed.
    Rollback(Rollback),
    /// Accept a vault, or parts of it, in its current state, after a backup was restored
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
    /// Create directories in a vault
    Mkdir(Mkdir),
    /// Copy a directory into a vault, with all metadata
    ///
    /// Can be interrupted and run again: files that already exist with the same contents and
    /// metadata are skipped.
    Import(Import),
    /// Copy a vault, or a directory of it, out, with all metadata
    ///
    /// Can be interrupted and run again: files that already exist with the same contents and
    /// metadata are skipped.
    #[command(override_usage = "kithfs export [OPTIONS] <VAULT[/PATH]> [PATH] <DIR>")]
    Export(Export),
    /// Translate a plain path to the path of its ciphertext, or back
    Map(Map),
    /// List the mounts, with start time and process
    Mounts(Mounts),
    /// Measure the speed of kithfs on this processor and disk
    ///
    /// Measures the ciphers, and a temporary vault that is created in the directory DIR and removed
    /// afterwards. Takes less than a minute and 300 MB of disk space.
    Bench(Bench),
    /// Print the completion script of a shell
    Completion(Completion),
    /// Write the manual pages into a directory
    Man(Man),
    /// Print the exit codes as a Markdown table
    ExitCodes,
}

/// The source of the passphrase, if it is not the terminal.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct PassphraseArgs {
    /// Read the passphrase from a file (`-`: stdin); one newline at its end is ignored
    ///
    /// Without any of these options, the passphrase comes from the file in the variable
    /// KITHFS_PASSPHRASE_FILE, else from the systemd credential `kithfs.passphrase`, else from the
    /// keyring of the session if it was stored there, else from a prompt at the terminal, or from
    /// the program in the variable KITHFS_PROMPT if there is no terminal.
    #[arg(long, value_name = "FILE", group = "secret", help_heading = SECRET)]
    pub passphrase_file: Option<PathBuf>,
    /// Read the passphrase from this file descriptor
    #[arg(long, value_name = "N", group = "secret", help_heading = SECRET, value_parser = clap::value_parser!(i32).range(0..))]
    pub passphrase_fd: Option<i32>,
    /// Run a command with `sh -c` and read the passphrase from its output
    #[arg(long, value_name = "CMD", group = "secret", help_heading = SECRET)]
    pub passphrase_command: Option<OsString>,
    /// Use the contents of a file instead of a passphrase
    #[arg(long, value_name = "FILE", group = "secret", help_heading = SECRET)]
    pub key_file: Option<PathBuf>,
}

/// A secret that opens an existing identity.
#[derive(Args, Debug, Default)]
pub struct PresentSecret {
    /// Passphrase or key file.
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
    /// Read a recovery code from a file (at a prompt, it can be typed instead of the passphrase)
    #[arg(long, value_name = "FILE", group = "secret", help_heading = SECRET)]
    pub recovery_code_file: Option<PathBuf>,
    /// Age identities.
    #[command(flatten)]
    pub age: AgeArgs,
    /// Store the passphrase in the keyring of your session, once it has unlocked
    ///
    /// Later commands take it from there, before they ask. `kithfs passphrase forget` removes it.
    #[arg(long, help_heading = SECRET, conflicts_with_all = ["key_file", "recovery_code_file", "age_identity"])]
    pub remember: bool,
}

/// Age identities that open a slot.
#[derive(Args, Clone, Debug, Default)]
pub struct AgeArgs {
    /// Use this age identity: a file of age-keygen or of a plugin, or an SSH private key
    ///
    /// Can be repeated. The variable KITHFS_AGE_IDENTITY names one for all vaults; it is not used
    /// for an identity without an age slot.
    #[arg(long, value_name = "FILE", group = "secret", help_heading = SECRET)]
    pub age_identity: Vec<PathBuf>,
}

/// How much of a vault's state this machine records.
#[derive(Args, Debug, Default)]
pub struct MemoryLimit {
    /// Limit of the database in which this machine records the vault's state; kept for next time
    ///
    /// Files that do not fit are not compared; `kithfs rollback` reports how many. Each takes up to
    /// 100 bytes. Default is no limit.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_memory)]
    pub rollback_memory: Option<u64>,
}

/// Whether a command records the state of the vault that it changes, and how much of it.
#[derive(Args, Debug, Default)]
pub struct MemoryArgs {
    /// Neither compare the vault with its recorded state nor record its current state
    ///
    /// The variable KITHFS_NO_ROLLBACK_MEMORY=1 has the same effect.
    #[arg(long, env = "KITHFS_NO_ROLLBACK_MEMORY", hide_env = true, value_parser = clap::builder::FalseyValueParser::new())]
    pub no_rollback_memory: bool,
    /// The limit of the rollback database.
    #[command(flatten)]
    pub limit: MemoryLimit,
}

/// How a vault is opened.
#[derive(Args, Debug, Default)]
pub struct OpenArgs {
    /// The secret.
    #[command(flatten)]
    pub secret: PresentSecret,
    /// Use this identity; default is the vault's own one, else ~/.config/kithfs/identity
    #[arg(long, value_name = "FILE", help_heading = SECRET)]
    pub identity: Option<PathBuf>,
    /// Use the vault's own identity, even if the vault was handed over to yours
    #[arg(long, conflicts_with = "identity", help_heading = SECRET)]
    pub own_identity: bool,
    /// Accept a share without an invitation or an earlier visit, or a contact's key without a
    /// compared fingerprint
    #[arg(long)]
    pub trust_on_first_use: bool,
    /// Limit of the in-memory caches; default is 64M
    #[arg(long, value_name = "SIZE", value_parser = size::parse_cache)]
    pub cache_size: Option<usize>,
}

/// Which identity opens a vault.
#[derive(Clone, Copy, Debug)]
pub enum Choice<'a> {
    /// This file.
    File(&'a Path),
    /// The vault's own one, although it may have been handed over.
    Own,
    /// The vault's own one, unless it was handed over to the user; else the user's.
    Usual,
}

impl OpenArgs {
    /// Returns which identity opens the vault.
    pub fn choice(&self) -> Choice<'_> {
        match &self.identity {
            Some(file) => Choice::File(file),
            None if self.own_identity => Choice::Own,
            None => Choice::Usual,
        }
    }
}

/// The cost of guessing a passphrase.
#[derive(Args, Debug, Default)]
pub struct KdfArgs {
    /// Memory for one guess at the passphrase, in MiB; default 256, less only if memory is short
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(32..=4096))]
    pub kdf_memory: Option<u32>,
    /// Passes over that memory; default is what takes about one second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub kdf_passes: Option<u32>,
}

/// `init`
#[derive(Args, Debug)]
pub struct Init {
    /// The passphrase or key file of the new vault.
    #[command(flatten)]
    pub secret: PassphraseArgs,
    /// Age identities that open the owner's identity.
    #[command(flatten)]
    pub age: AgeArgs,
    /// The cost of guessing the passphrase.
    #[command(flatten)]
    pub kdf: KdfArgs,
    /// Cipher of names, contents and records; default is aes if the processor supports it, else
    /// chacha
    #[arg(long, value_enum)]
    pub cipher: Option<Cipher>,
    /// Chunk size of large files: a power of two from 4K to 4M
    #[arg(long, value_name = "SIZE", default_value = "256K", value_parser = size::parse_chunk_log2)]
    pub chunk_size: u8,
    /// Make this identity the owner; default is ~/.config/kithfs/identity, if it exists
    #[arg(long, value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// Make a new identity inside the vault the owner, with a passphrase of its own; default if you
    /// have no identity
    #[arg(long, conflicts_with = "identity")]
    pub own_identity: bool,
    /// Sign every file, so that the vault can have members: readers, writers and admins
    #[arg(long)]
    pub signed: bool,
    /// Your name as its members see it, with --signed; default is that of `kithfs identity name`
    #[arg(long, value_name = "NAME", requires = "signed")]
    pub name: Option<String>,
    /// A sync tool keeps the vault equal on several machines (see `kithfs help set`)
    #[arg(long)]
    pub synced: bool,
    /// Several machines or users use the vault at the same time (see `kithfs help set`)
    #[arg(long, conflicts_with = "synced")]
    pub shared: bool,
    /// The directory of ciphertext to create
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
    /// How it is mounted.
    #[command(flatten)]
    pub how: MountSettings,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// The vault
    pub vault: PathBuf,
    /// An empty directory; one that does not exist is created, and removed after the unmount
    pub mountpoint: PathBuf,
}

/// How a vault is mounted.
#[derive(Args, Debug)]
pub struct MountSettings {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// Whether and how much of the vault's state is recorded.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Mount options, separated by commas
    ///
    /// ro, rw, allow_other, allow_foreign_store, default_permissions, no_default_permissions, dev,
    /// nodev, suid, nosuid, exec, noexec, sync, async, dirsync, noatime, nodiratime, nonempty,
    /// shared, idle=TIME, fsname=NAME, subtype=NAME, uid=N, gid=N, umask=OCTAL, uring,
    /// uring_memory=MIB. Device nodes and set-user-ID bits work only with `dev` and `suid`. A comma
    /// in a value is written `\,`.
    ///
    /// The kernel checks permissions. The daemon does so instead in a mount by root without
    /// allow_other, and with no_default_permissions.
    ///
    /// allow_other is refused if the vault's directory belongs to, or can be written by, a user
    /// other than root and the one who mounts: that user could grant themselves access to any file
    /// in the vault. With allow_foreign_store it is allowed even then.
    #[arg(short = 'o', value_name = "OPT[,OPT...]")]
    pub options: Vec<String>,
    /// Unmount after this time without use: 10m, 1h30m, or a number of seconds
    ///
    /// A mount stays while a program has a file open or its working directory in it. Time during
    /// which the machine is suspended counts.
    #[arg(long, value_name = "TIME")]
    pub idle: Option<Idle>,
    /// Lock the vault at these events, even while programs use it: suspend,screen,logout
    ///
    /// suspend: before the machine sleeps; it waits until the vault is locked. screen: when the
    /// desktop locks the screen, or `loginctl lock-session` locks the session. logout: when the
    /// login session of the mount ends; if it was mounted outside of one, when your last session
    /// ends. Programs that have files open get errors, as with `kithfs lock`. The mount is refused
    /// if nothing on this machine would announce the event.
    #[arg(
        long,
        value_name = "EVENT[,EVENT...]",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub lock_on: Vec<LockEvent>,
    /// Show notifications on the desktop: off, on, or names
    ///
    /// They report a lock, an unmount after --idle, new members, conflicting changes of the
    /// members, a rollback alarm, and a full disk. A desktop shows notifications on a locked
    /// screen, so `on` names no vault and no person; `names` does.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Notify::Off, hide_possible_values = true)]
    pub notify: Notify,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Allow other machines or users to mount the vault for writing at the same time
    ///
    /// All of them must do so. After `kithfs set --shared` nobody needs the option. Only one mount
    /// writes to a file at a time, and nothing is cached while several of them work. Each mount
    /// must see the file locks of the others in the store: a local filesystem and NFS show them, a
    /// sync tool does not.
    #[arg(long)]
    pub shared: bool,
    /// Keep programs from writing to the mount point while nothing is mounted
    ///
    /// Root sets the immutable flag of the directory, other users set its mode to 0000. The guard
    /// stays until you remove it with `chattr -i` or `chmod 700`; it does not hinder a mount. The
    /// mount point must exist. One that does not exist needs no guard: without this option, it is
    /// created for the mount and removed after it.
    #[arg(long)]
    pub guard: bool,
    /// Transport of requests from the kernel
    ///
    /// Default: `auto`, and `dev` with `-o nouring`.
    #[arg(long, value_name = "HOW", env = "KITHFS_TRANSPORT", value_enum)]
    pub transport: Option<Transport>,
}

/// An event that locks a vault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LockEvent {
    /// The machine is about to sleep
    Suspend,
    /// The screen or the session is locked
    Screen,
    /// The login session ends
    Logout,
}

/// Whether the desktop shows notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Notify {
    /// None
    Off,
    /// Without names
    On,
    /// With the names of vaults and people
    Names,
}

/// The time without use after which a mount ends; `None` for never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idle(pub Option<Duration>);

impl FromStr for Idle {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Idle, Self::Err> {
        parse_idle(text).map(Idle)
    }
}

/// Transport of requests from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// io_uring where the kernel offers it and root has enabled it, otherwise /dev/fuse
    Auto,
    /// io_uring (Linux 6.14 and later); fails if it is not available
    Uring,
    /// /dev/fuse
    Dev,
}

/// `umount`
#[derive(Args, Debug)]
pub struct Umount {
    /// Detach the mount at once, even if it is busy; it ends when its last file is closed
    ///
    /// The command then does not wait for the daemon.
    #[arg(long)]
    pub lazy: bool,
    /// The mount point
    pub mountpoint: PathBuf,
}

/// `bench`
#[derive(Args, Debug)]
pub struct Bench {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Measure for a few seconds only: to see that it works, not to quote
    #[arg(long)]
    pub quick: bool,
    /// A directory on the disk to measure
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

/// `set`
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("property").required(true))]
pub struct Set {
    /// A sync tool keeps the vault equal on several machines
    #[arg(long, group = "property")]
    pub synced: bool,
    /// Several machines or users use the vault at the same time
    #[arg(long, group = "property")]
    pub shared: bool,
    /// One mount at a time uses the vault
    #[arg(long, group = "property")]
    pub no_shared: bool,
    /// The vault
    pub vault: PathBuf,
}

/// `map`
#[derive(Args, Debug)]
pub struct Map {
    /// The secret and the caches.
    #[command(flatten)]
    pub open: OpenArgs,
    /// PATH is a path of ciphertext, relative to the vault; print the plain path
    #[arg(long)]
    pub reverse: bool,
    /// The vault
    #[arg(value_name = "VAULT[/PATH]")]
    pub vault: PathBuf,
    /// The plain path; default is the root of the vault
    pub path: Option<OsString>,
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

/// A shell with completion.
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
    /// The directory, which is created if missing
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
    fn only_what_is_secret_stands_below_secret() {
        // A heading applied to all options after it: `kithfs help mount` showed `-o` and the vault
        // below "Secret", and the operands in alphabetical order.
        fn look(command: &clap::Command) {
            for arg in command.get_arguments().filter(|arg| arg.get_help_heading().is_some()) {
                let name = arg
                    .get_long()
                    .unwrap_or_else(|| panic!("{}: an operand has a heading", command.get_name()));
                let words = ["passphrase", "key-file", "recovery-code", "identity"];
                // `--remember` keeps the secret in the keyring; the others describe a new one.
                let whole = ["remember", "age", "label"];
                let about_secrets =
                    words.iter().any(|word| name.contains(word)) || whole.contains(&name);
                assert!(
                    about_secrets,
                    "{}: --{name} is below {:?}",
                    command.get_name(),
                    arg.get_help_heading()
                );
            }
            command.get_subcommands().for_each(look);
        }
        look(&Cli::command());
        let help =
            Cli::command().find_subcommand_mut("mount").unwrap().render_long_help().to_string();
        assert!(help.contains("Arguments:\n  <VAULT>"), "{help}");
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
            "kithfs cat V/a V/b",
            "kithfs get V/a b",
            "kithfs put V/a",
            "kithfs map V/a",
            "kithfs import D V/a",
            "kithfs import D V a",
            "kithfs export V D",
            "kithfs export V a D",
            "kithfs export --suid V/a D",
            "kithfs init --own-identity V",
            "kithfs identity new --name Ann",
            "kithfs identity name Ann",
            "kithfs identity adopt V --identity-passphrase-file F",
            "kithfs ls --own-identity V",
            "kithfs share create --own-identity V/a",
            "kithfs mount --guard V M",
            "kithfs mount --lock-on suspend,screen,logout V M",
            "kithfs vaults set N --lock-on suspend",
            "kithfs mount --notify names V M",
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
        let unknown = clap::error::ErrorKind::InvalidValue;
        assert_eq!(parse("kithfs mount --lock-on lunch V M").err(), Some(unknown));
        assert!(parse("kithfs passphrase list").is_err(), "a vault or an identity is needed");
        assert!(parse("kithfs init").is_err());
        assert!(parse("kithfs export V").is_err());
    }

    #[test]
    fn values_arrive() {
        let Ok(Command::Init(init)) = parse("kithfs init --chunk-size 1M --kdf-memory 64 V") else {
            panic!("init")
        };
        assert_eq!(
            (init.chunk_size, init.kdf.kdf_memory, init.kdf.kdf_passes),
            (20, Some(64), None)
        );
        let Ok(Command::Init(init)) = parse("kithfs init V") else { panic!("init") };
        assert_eq!((init.chunk_size, init.cipher), (18, None));
        let Ok(Command::Put(put)) = parse("kithfs put V a") else { panic!("put") };
        assert_eq!((put.path, put.file), (Some("a".into()), None));
        let Ok(Command::Mount(mount)) = parse("kithfs mount V M -o a,b -o c") else {
            panic!("mount")
        };
        assert_eq!(mount.how.options, ["a,b", "c"]);
    }
}
