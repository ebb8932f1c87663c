//! Errors of the command line itself. Their hints are in `report`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use crate::cli::display::{Shown, path as shown, size};
use crate::cli::user::ssh_voucher::VoucherError;
use crate::roster::{ContactError, InvitationError, PublicTextError};

/// Which names a vault can have.
pub const NAME_RULE: &str =
    "a name has at most 64 letters, digits, `-`, `_` and `.`, and begins with none of `-` and `.`";

/// Environment variable that allows any cost of a passphrase.
pub const ALLOW_COST_VARIABLE: &str = "KITHFS_ALLOW_KDF_COST";

/// A failure of the command line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// A call on a path failed.
    #[error("{op} {}: {source}", shown(path))]
    Io {
        /// Operation.
        op: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The source of a secret, or an identity file, cannot be read.
    #[error("{op} {}: {source}", shown(path))]
    Secret {
        /// Operation.
        op: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A call without a path failed.
    #[error("{op}: {source}")]
    Os {
        /// Operation.
        op: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The secret is empty.
    #[error("the {0} is empty")]
    EmptySecret(&'static str),
    /// The repeated passphrase differs from the first.
    #[error("the two passphrases differ")]
    PassphrasesDiffer,
    /// No secret was given, and there is no terminal for a prompt.
    #[error("no passphrase was given and there is no terminal for a prompt")]
    NoTerminal,
    /// The prompt program returned no passphrase.
    #[error("ask by the prompt program {}: {}", shown(path), Shown(why.as_bytes()))]
    PromptProgram {
        /// The program.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The passphrase command failed.
    #[error("run passphrase command: {0}")]
    PassphraseCommand(ExitStatus),
    /// Nothing exists at the vault's path.
    #[error("open {}: the vault does not exist", shown(.0))]
    VaultMissing(PathBuf),
    /// `init` on a directory with entries.
    #[error("init {}: the directory is not empty", shown(.0))]
    InitNotEmpty(PathBuf),
    /// The directory in which something is to be created does not exist.
    #[error("{op} {}: the directory above it does not exist", shown(path))]
    NoParent {
        /// Operation.
        op: &'static str,
        /// What was to be created.
        path: PathBuf,
    },
    /// The cost of a new passphrase was given, and the vault gets none.
    #[error("init: the vault will belong to the identity {}, so it gets no passphrase whose cost could be set", shown(.0))]
    KdfOfExisting(PathBuf),
    /// The share would belong to the vault's own identity, and the vault cannot be handed over now.
    #[error("share create in {}: the vault has an identity of its own, and members would not see yours", shown(.0))]
    NotHandedOver(PathBuf),
    /// The vault does not have an identity that could be handed over.
    #[error("adopt {}: the vault has no identity of its own", shown(.0))]
    NothingToAdopt(PathBuf),
    /// Shares in a signed vault cannot be handed over with it now.
    #[error("adopt {}: nothing was changed, because these shares in it cannot be handed over: {}", shown(vault), unseen.join(", "))]
    SharesUnseen {
        /// The vault.
        vault: PathBuf,
        /// Paths with the reason, to be printed.
        unseen: Vec<String>,
    },
    /// The mount point is not a directory, or cannot be created, examined or written to.
    #[error("mount on {}: {source}", shown(path))]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A guard was asked for a mount point that does not exist.
    #[error("guard {}: the directory does not exist", shown(.0))]
    GuardMissing(PathBuf),
    /// The mount point has entries.
    #[error("mount on {}: the directory is not empty", shown(.0))]
    MountPointNotEmpty(PathBuf),
    /// A vault is already mounted there.
    #[error("mount on {}: a vault is already mounted there", shown(.0))]
    MountPointTaken(PathBuf),
    /// The mount's daemon has died.
    #[error("mount on {}: the daemon of the existing mount has died", shown(.0))]
    MountPointDead(PathBuf),
    /// The mount point is the vault or is inside it.
    #[error("mount on {}: the mount point is inside the vault {}", shown(mountpoint), shown(vault))]
    MountPointInVault {
        /// The vault.
        vault: PathBuf,
        /// The mount point.
        mountpoint: PathBuf,
    },
    /// The vault is inside the mount point, which would hide it.
    #[error("mount on {}: the vault {} is inside the mount point", shown(mountpoint), shown(vault))]
    VaultInMountPoint {
        /// The vault.
        vault: PathBuf,
        /// The mount point.
        mountpoint: PathBuf,
    },
    /// The mount admits other users, and one of them can change owners and modes in the store.
    #[error("mount {}: with allow_other, {owner} could read all files in it", shown(vault))]
    ForeignStore {
        /// The vault.
        vault: PathBuf,
        /// The other user.
        owner: String,
    },
    /// The FUSE device cannot be opened.
    #[error("mount: /dev/fuse cannot be opened: {0}")]
    NoFuseDevice(io::Error),
    /// The system does not let ordinary users admit others to their mounts.
    #[error("mount with allow_other: /etc/fuse.conf does not permit it to ordinary users")]
    NoAllowOther,
    /// The mount helper for ordinary users is missing.
    #[error("mount: fusermount3 is not installed")]
    NoFusermount,
    /// The transport io_uring was requested and is not available.
    #[error("mount over io_uring: {0}")]
    NoUring(String),
    /// Nothing would announce an event that is to lock the vault.
    #[error("mount with --lock-on {event}: {why}")]
    LockOn {
        /// The event.
        event: &'static str,
        /// The cause.
        why: String,
    },
    /// The vault is already mounted.
    #[error("open {}: it is mounted on {} by process {pid}", shown(vault), shown(mountpoint))]
    AlreadyMounted {
        /// The vault.
        vault: PathBuf,
        /// The mount point.
        mountpoint: PathBuf,
        /// The daemon.
        pid: u32,
    },
    /// A vault that is to be marked as synced is marked as shared.
    #[error("mark {} as synced: it is marked as shared, which a vault cannot be at the same time", shown(.0))]
    SharedAlready(PathBuf),
    /// A vault that is to be marked as shared is marked as synced.
    #[error("mark {} as shared: it is marked as synced, so that each machine mounts a copy of its own", shown(.0))]
    SyncedAlready(PathBuf),
    /// The background process ended before the mount could be used.
    #[error("mount: the background process ended: {0}")]
    DaemonEnded(String),
    /// A file has no age identity that can be used.
    #[error("read age identity {}: {why}", shown(path))]
    AgeIdentity {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// A text is no age recipient. It is not quoted, as it may be a secret.
    #[error("age recipient: {0}")]
    AgeRecipient(String),
    /// Age or one of its plugins failed.
    #[error("{op}: {why}")]
    Age {
        /// Operation.
        op: &'static str,
        /// The cause.
        why: String,
    },
    /// The keyring of the session failed.
    #[error("the keyring of the session: {0}")]
    Keyring(String),
    /// An SSH key does not vouch for a contact's key.
    #[error("verify {name} by an SSH key: {source}")]
    Voucher {
        /// The contact.
        name: String,
        /// The cause.
        source: VoucherError,
    },
    /// No age identity opens a slot.
    #[error("unlock {}: the age identity opens none of its {slots} age slots", shown(path))]
    NoAgeSlotOpens {
        /// The identity file.
        path: PathBuf,
        /// Number of its age slots.
        slots: usize,
    },
    /// Only age slots would be left, and none of them was tried.
    #[error("remove slot {slot}: only age slots would be left, and none of them has been opened")]
    UntriedAgeSlots {
        /// The slot to remove.
        slot: u16,
    },
    /// The secret opens no slot.
    #[error("unlock {}: {}", shown(path), if *by_code { "the recovery code does not match" } else { "wrong passphrase or key file" })]
    WrongSecret {
        /// The identity.
        path: PathBuf,
        /// A recovery code was given.
        by_code: bool,
    },
    /// An unlock costs far more than kithfs would choose, and there is no terminal for a question.
    #[error(
        "unlock {}: one passphrase attempt takes {mib} MiB of memory and about {seconds} s; the file that sets this cost is not authenticated yet",
        shown(path)
    )]
    CostlyIdentity {
        /// The identity.
        path: PathBuf,
        /// The memory, in MiB.
        mib: u32,
        /// The time, in seconds.
        seconds: u64,
    },
    /// The vault has no identity of its own.
    #[error("unlock {}: the vault has no identity of its own", shown(.0))]
    NoOwnIdentity(PathBuf),
    /// No slot has this number.
    #[error("{}: slot {slot} does not exist", shown(path))]
    NoSuchSlot {
        /// The identity.
        path: PathBuf,
        /// The number.
        slot: u16,
    },
    /// Several slots could be the one to replace.
    #[error(
        "change passphrase of {}: there are {count} passphrases and none was selected",
        shown(path)
    )]
    WhichSlot {
        /// The identity.
        path: PathBuf,
        /// How many there are.
        count: usize,
    },
    /// The slot holds another kind of secret.
    #[error("change passphrase of {}: slot {slot} is not a passphrase but a {kind}", shown(path))]
    NotAPassphraseSlot {
        /// The identity.
        path: PathBuf,
        /// The number.
        slot: u16,
        /// The slot's kind.
        kind: &'static str,
    },
    /// The last slot cannot be removed.
    #[error("remove slot of {}: it is the last slot", shown(.0))]
    LastSlot(PathBuf),
    /// The new file does not open with the new secret. The old file is unchanged.
    #[error("write {}: the new file does not open with the new secret; nothing was changed", shown(.0))]
    NotVerified(PathBuf),
    /// Another command has changed the identity since it was read.
    #[error("identity {}: another command changed it at the same time; this command changed nothing", shown(.0))]
    IdentityChanged(PathBuf),
    /// There is no directory for this user's files.
    #[error("there is no home directory: neither HOME nor the XDG variables are set")]
    NoHome,
    /// Other users may write to a file of this user, such as one that decides which keys are
    /// trusted.
    #[error("read {}: other users may write to it", shown(.0))]
    WritableByOthers(PathBuf),
    /// The new file reads back differently. The old file is unchanged.
    #[error("write {}: the new file reads back differently; nothing was changed", shown(.0))]
    NotReadBack(PathBuf),
    /// The identity already exists.
    #[error("make identity {}: it already exists", shown(.0))]
    IdentityExists(PathBuf),
    /// The text is not a public key.
    #[error("read public key: {0}")]
    PublicKey(PublicTextError),
    /// The contacts file or one contact is invalid.
    #[error("contacts {}: {}", shown(path), Shown(source.to_string().as_bytes()))]
    Contacts {
        /// The contacts file.
        path: PathBuf,
        /// The cause.
        source: ContactError,
    },
    /// The file of named vaults is invalid.
    #[error("read {}: line {line}: {}", shown(path), Shown(what.as_bytes()))]
    NamedVaults {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The cause.
        what: String,
    },
    /// An option of a named vault is invalid.
    #[error("read {}: line {line}: [{name}] {}", shown(path), Shown(what.as_bytes()))]
    NamedVaultOption {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The name of the vault.
        name: String,
        /// The option.
        key: String,
        /// The cause.
        what: String,
    },
    /// A file in this user's configuration or state cannot be read.
    #[error("read {}: {what}", shown(path))]
    OwnFile {
        /// The file.
        path: PathBuf,
        /// The number of the invalid line, from 1, if there is one.
        line: Option<usize>,
        /// The cause.
        what: String,
        /// The kind of the error.
        kind: io::ErrorKind,
    },
    /// The file with this user's name cannot be used.
    #[error("read your name {}: {what}", shown(path))]
    OwnName {
        /// The file.
        path: PathBuf,
        /// The cause.
        what: String,
    },
    /// No vault has this name.
    #[error("there is no vault with the name {}", Shown(.0.as_bytes()))]
    NoSuchVault(String),
    /// A vault already has this name.
    #[error("add vault {}: a vault already has this name", Shown(.0.as_bytes()))]
    VaultNameTaken(String),
    /// The name cannot be used.
    #[error("add vault {}: {NAME_RULE}", Shown(.0.as_bytes()))]
    VaultName(String),
    /// No vault is mounted there.
    #[error("lock {}: no vault of yours is mounted there", shown(.0))]
    NotOpen(PathBuf),
    /// The record of a share's last known state cannot be read.
    #[error("read the record of a share {}: {what}", shown(path))]
    Memory {
        /// The file.
        path: PathBuf,
        /// The cause.
        what: String,
    },
    /// A question cannot be asked without a terminal.
    #[error("there is no terminal for the question: {}", Shown(.0.as_bytes()))]
    CannotAsk(String),
    /// The question was answered with no.
    #[error("nothing was done: the answer was not yes")]
    Declined,
    /// Another key was offered for a contact.
    #[error("contact {}: another key was offered under this name; it is CHANGED, and neither key is used", Shown(.0.as_bytes()))]
    KeyChanged(String),
    /// The given fingerprint is not that of the key.
    #[error("compare fingerprint of {}: the contact's key has {has}, not the fingerprint that was given", Shown(name.as_bytes()))]
    OtherFingerprint {
        /// The contact.
        name: String,
        /// The fingerprint of the key.
        has: String,
    },
    /// The contact's fingerprint has not been compared.
    #[error("contact {}: the fingerprint has not been compared", Shown(.0.as_bytes()))]
    ContactNotVerified(String),
    /// The path is inside a share, and the command needs the share's own folder.
    #[error(
        "share {}: it is no share of its own; it belongs to that of {}",
        shown(path),
        shown(vault)
    )]
    NotAShare {
        /// The path.
        path: PathBuf,
        /// The vault.
        vault: PathBuf,
    },
    /// No member has this name.
    #[error("share {}: there is no member {}", shown(path), Shown(name.as_bytes()))]
    NoSuchMember {
        /// The share.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// Several members have this name, or the member's key differs from the contact's.
    #[error("share {}: the name {} does not select one member: {}", shown(path), Shown(name.as_bytes()), keys.join(", "))]
    WhichMember {
        /// The share.
        path: PathBuf,
        /// The name.
        name: String,
        /// Fingerprints of the members of this name.
        keys: Vec<String>,
    },
    /// No head was selected.
    #[error("settle {}: there {} {} head{}: {}", shown(path), if heads.len() == 1 { "is" } else { "are" }, heads.len(), if heads.len() == 1 { "" } else { "s" }, heads.join(", "))]
    WhichHead {
        /// The share.
        path: PathBuf,
        /// The heads.
        heads: Vec<String>,
    },
    /// The head does not exist.
    #[error("settle {}: there is no head {}", shown(path), Shown(head.as_bytes()))]
    NoSuchHead {
        /// The share.
        path: PathBuf,
        /// The hash that was given.
        head: String,
    },
    /// The invitation is not valid for this user.
    #[error("accept {}: {source}", shown(path))]
    Invitation {
        /// Its file.
        path: PathBuf,
        /// The cause.
        source: InvitationError,
    },
    /// The inviting admin is a contact with two keys.
    #[error("accept {}: it is signed with a key of the contact {}, which is CHANGED", shown(path), Shown(name.as_bytes()))]
    InviterChanged {
        /// The invitation's file.
        path: PathBuf,
        /// The contact.
        name: String,
    },
    /// The reader of standard output has exited.
    #[error("the reader of standard output has exited")]
    NobodyReads,
    /// A new recovery code was stored but could not be printed.
    #[error("print the new recovery code of {}: {source}", shown(path))]
    CodeUnread {
        /// The identity file.
        path: PathBuf,
        /// The error of standard output.
        source: io::Error,
    },
    /// The disk that is written to is full.
    #[error("{op} {path}: no space is left on {}: {} more are needed, for {} that are left to copy", if *op == "import" { "the vault's disk" } else { "the target's disk" }, size(left.saturating_sub(*free).max(1)), size(*left))]
    Full {
        /// Operation.
        op: &'static str,
        /// The first entry for which there was no space, as shown.
        path: String,
        /// Bytes that are left to copy.
        left: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The user has interrupted a mount at its questions.
    #[error("mount: interrupted; nothing is mounted")]
    MountInterrupted,
    /// The user has interrupted a command that can be continued.
    #[error("{0}: interrupted")]
    Interrupted(&'static str),
    /// Some of many files failed; each was reported.
    #[error("{op}: {count} of the files failed")]
    SomeFailed {
        /// Operation.
        op: &'static str,
        /// How many.
        count: u64,
    },
}

impl Error {
    /// Adds the operation and the path to a failed call.
    pub fn io(op: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
        move |source| Error::Io { op, path: path.to_owned(), source }
    }
}
