//! What can go wrong on the command line itself. Advice is added in `report`, not here.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::cli::display::{Shown, path as shown};
use crate::roster::{ContactError, InvitationError, PublicTextError};

/// Variable that allows any cost of a passphrase.
pub const ALLOW_COST_VARIABLE: &str = "KITHFS_ALLOW_KDF_COST";

/// A failure of the command line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A call on a path failed.
    #[error("{op} {}: {source}", shown(path))]
    Io {
        /// Operation.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file or descriptor that a secret was to come from, or an identity, cannot be read.
    #[error("{op} {}: {source}", shown(path))]
    Secret {
        /// Operation.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A call without a path failed.
    #[error("{op}: {source}")]
    Os {
        /// Operation.
        op: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A secret of no bytes.
    #[error("the {0} is empty")]
    EmptySecret(&'static str),
    /// The second time was different from the first.
    #[error("the two passphrases differ")]
    PassphrasesDiffer,
    /// No secret was given, and nobody can be asked.
    #[error("no passphrase was given and there is no terminal to ask at")]
    NoTerminal,
    /// The command that should print the passphrase failed.
    #[error("run passphrase command: {0}")]
    PassphraseCommand(ExitStatus),
    /// There is nothing at the vault's path.
    #[error("open {}: there is no such vault", shown(.0))]
    VaultMissing(PathBuf),
    /// `init` on a directory with entries.
    #[error("init {}: the directory is not empty", shown(.0))]
    InitNotEmpty(PathBuf),
    /// The mount point does not exist or is no directory, or cannot be looked at.
    #[error("mount on {}: {source}", shown(path))]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The mount point has entries.
    #[error("mount on {}: the directory is not empty", shown(.0))]
    MountPointNotEmpty(PathBuf),
    /// A kithfs is mounted there.
    #[error("mount on {}: a kithfs is mounted there already", shown(.0))]
    MountPointTaken(PathBuf),
    /// A kithfs whose daemon has died.
    #[error("mount on {}: the daemon of the mount that is there has died", shown(.0))]
    MountPointDead(PathBuf),
    /// The mount point is the vault or lies in it.
    #[error("mount on {}: the mount point lies in the vault {}", shown(mountpoint), shown(vault))]
    MountPointInVault {
        /// The vault.
        vault: PathBuf,
        /// The mount point.
        mountpoint: PathBuf,
    },
    /// The vault lies in the mount point, which would hide it.
    #[error("mount on {}: the vault {} lies in the mount point", shown(mountpoint), shown(vault))]
    VaultInMountPoint {
        /// The vault.
        vault: PathBuf,
        /// The mount point.
        mountpoint: PathBuf,
    },
    /// Others may enter the mount, and one of them can change the owners and modes of what is
    /// stored.
    #[error("mount {}: with allow_other, {who} could read all files in it", shown(vault))]
    ForeignStore {
        /// The vault.
        vault: PathBuf,
        /// Who has the store.
        who: String,
    },
    /// There is no FUSE device.
    #[error("mount: /dev/fuse cannot be opened: {0}")]
    NoFuseDevice(io::Error),
    /// There is no helper for users.
    #[error("mount: fusermount3 is not installed")]
    NoFusermount,
    /// Requests cannot come over io_uring, as was insisted on.
    #[error("mount over io_uring: {0}")]
    NoUring(String),
    /// This vault is mounted.
    #[error("open {}: it is mounted on {} by process {pid}", shown(vault), shown(mountpoint))]
    AlreadyMounted {
        /// The vault.
        vault: PathBuf,
        /// Where.
        mountpoint: PathBuf,
        /// The daemon.
        pid: u32,
    },
    /// The background process ended before the mount could be used.
    #[error("mount: the background process ended: {0}")]
    DaemonEnded(String),
    /// There is no slot that the secret opens.
    #[error("unlock {}: {}", shown(path), if *by_code { "the recovery code does not fit" } else { "wrong passphrase or key file" })]
    WrongSecret {
        /// The identity.
        path: PathBuf,
        /// A recovery code was given.
        by_code: bool,
    },
    /// To try a passphrase costs far more than a new one is given, and nobody can be asked.
    #[error(
        "unlock {}: to try a passphrase takes {mib} MiB of memory and about {seconds} s, as the file says, which nothing proves",
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
    #[error("{}: there is no slot {slot}", shown(path))]
    NoSuchSlot {
        /// The identity.
        path: PathBuf,
        /// The number.
        slot: u16,
    },
    /// It is not clear which slot to replace.
    #[error(
        "change passphrase of {}: it is not clear which of {count} passphrases is to be replaced",
        shown(path)
    )]
    WhichSlot {
        /// The identity.
        path: PathBuf,
        /// How many there are.
        count: usize,
    },
    /// The slot is not a passphrase.
    #[error("change passphrase of {}: slot {slot} is not a passphrase but a {kind}", shown(path))]
    NotAPassphraseSlot {
        /// The identity.
        path: PathBuf,
        /// The number.
        slot: u16,
        /// What it is.
        kind: &'static str,
    },
    /// The last slot cannot go.
    #[error("remove slot of {}: it is the last one", shown(.0))]
    LastSlot(PathBuf),
    /// What was written does not read back as it should; the old file is in place.
    #[error("write {}: the new file does not open with the new secret; nothing was changed", shown(.0))]
    NotVerified(PathBuf),
    /// Another command has changed the identity since it was read.
    #[error("identity {}: another command has changed it meanwhile; nothing is changed by this one", shown(.0))]
    IdentityChanged(PathBuf),
    /// There is no place for this user's own files.
    #[error("there is no home directory: neither HOME nor the XDG variables are set")]
    NoHome,
    /// Others may write to a file that says whom to trust.
    #[error("read {}: others than its owner may write to it", shown(.0))]
    WritableByOthers(PathBuf),
    /// What was written does not read back; the old file is in place.
    #[error("write {}: it did not read back as it was written; nothing was changed", shown(.0))]
    NotReadBack(PathBuf),
    /// An identity is there already.
    #[error("make identity {}: there is one already", shown(.0))]
    IdentityExists(PathBuf),
    /// What was given is no public key.
    #[error("read public key: {0}")]
    PublicKey(PublicTextError),
    /// Something is wrong with the contacts or with one of them.
    #[error("contacts {}: {}", shown(path), Shown(source.to_string().as_bytes()))]
    Contacts {
        /// Their file.
        path: PathBuf,
        /// What.
        source: ContactError,
    },
    /// What is remembered of a share cannot be read.
    #[error("read what was seen of a share {}: {what}", shown(path))]
    Memory {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A question that nobody can be asked.
    #[error("there is no terminal to ask at: {}", Shown(.0.as_bytes()))]
    CannotAsk(String),
    /// The answer was no.
    #[error("nothing was done: the answer was not yes")]
    Declined,
    /// Another key was offered for a contact.
    #[error("contact {}: another key was offered under this name; it is CHANGED, and neither key is used", Shown(.0.as_bytes()))]
    KeyChanged(String),
    /// The fingerprint that the owner told is not that of the key.
    #[error("compare fingerprint of {}: the key that is here has {has}, which is not the one that was told", Shown(name.as_bytes()))]
    OtherFingerprint {
        /// Who.
        name: String,
        /// The fingerprint of the key.
        has: String,
    },
    /// Nobody has compared the fingerprint of a contact.
    #[error("contact {}: nobody has compared the fingerprint", Shown(.0.as_bytes()))]
    ContactNotVerified(String),
    /// The path is inside of a share, where the share's own folder is needed.
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
    /// Nobody of this name is a member.
    #[error("share {}: there is no member {}", shown(path), Shown(name.as_bytes()))]
    NoSuchMember {
        /// The share.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// The name is that of several members, or of one who has another key than the contact.
    #[error("share {}: which member is {} is not certain: {}", shown(path), Shown(name.as_bytes()), keys.join(", "))]
    WhichMember {
        /// The share.
        path: PathBuf,
        /// The name.
        name: String,
        /// Fingerprints of the members of this name.
        keys: Vec<String>,
    },
    /// Which head is to stay was not said.
    #[error("settle {}: there {} {} head{}: {}", shown(path), if heads.len() == 1 { "is" } else { "are" }, heads.len(), if heads.len() == 1 { "" } else { "s" }, heads.join(", "))]
    WhichHead {
        /// The share.
        path: PathBuf,
        /// The heads.
        heads: Vec<String>,
    },
    /// There is no such head.
    #[error("settle {}: there is no head {}", shown(path), Shown(head.as_bytes()))]
    NoSuchHead {
        /// The share.
        path: PathBuf,
        /// What was given.
        head: String,
    },
    /// An invitation that does not count.
    #[error("accept {}: {source}", shown(path))]
    Invitation {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: InvitationError,
    },
    /// The one who invites is a contact with two keys.
    #[error("accept {}: it is signed with a key of {}, who is CHANGED", shown(path), Shown(name.as_bytes()))]
    InviterChanged {
        /// The invitation's file.
        path: PathBuf,
        /// The contact.
        name: String,
    },
    /// Whoever read standard output has gone.
    #[error("nobody reads standard output any more")]
    NobodyReads,
    /// A new recovery code is in its slot, and nobody has read it.
    #[error("print the new recovery code of {}: {source}", shown(path))]
    CodeUnread {
        /// The identity file.
        path: PathBuf,
        /// What standard output said.
        source: io::Error,
    },
    /// Some of many files failed; each was reported.
    #[error("{op}: {count} of the files failed")]
    SomeFailed {
        /// Operation.
        op: &'static str,
        /// How many.
        count: u64,
    },
}
