//! Turns errors into messages for people: one line, optional details, an optional hint and an exit
//! code.
//!
//! Rules that hold here
//! * Error types have no hints: this module and its children choose the hint. A command that knows
//!   more sets another one with [`Failure::hint()`].
//! * The message is `kithfs: <operation> <path>: <reason>`; the hint is on a line of its own.
//!   Each is one line, whatever it contains.

mod fuse;
mod identity;
mod permission;
mod vault;

pub use self::fuse::mounted_elsewhere;
pub use self::identity::of_identity;
pub use self::vault::{LATE_CHANGES, in_vault, unopened};

use std::fmt::Display;
use std::io;
use std::path::Path;

use crate::cli::display::{Line, word};
use crate::cli::error::{ALLOW_COST_VARIABLE, Error};
use crate::cli::exit::Exit;
use crate::cli::local::{os_str, parent};
use crate::cli::terminal::color::{ERROR, HINT, NOTE};
use crate::cli::user::ssh_voucher::{NAMESPACE, VoucherError};
use crate::cli::vaults::paths::split_vault;
use crate::roster::{ContactError, InvitationError};

/// A command that failed, ready to be printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit code of the process.
    pub exit: Exit,
    /// What failed and why.
    pub message: String,
    /// More details, one line each.
    pub details: Vec<String>,
    /// How to fix it.
    pub hint: Option<String>,
    /// Nothing is printed, as the reader of the output has exited.
    pub is_silent: bool,
}

impl Failure {
    /// Returns a failure without a hint.
    pub fn new(exit: Exit, message: impl Display) -> Failure {
        Failure {
            exit,
            message: message.to_string(),
            details: Vec::new(),
            hint: None,
            is_silent: false,
        }
    }

    /// Adds a hint.
    pub fn hint(self, hint: impl Display) -> Failure {
        Failure { hint: Some(hint.to_string()), ..self }
    }

    /// Replaces the exit code.
    pub fn exit(self, exit: Exit) -> Failure {
        Failure { exit, ..self }
    }

    /// Writes the failure to stderr. Errors of a closed stderr are ignored.
    pub fn print(&self) {
        use std::io::Write;
        if self.is_silent {
            return;
        }
        let mut err = anstream::stderr().lock();
        let _ = writeln!(err, "{ERROR}kithfs:{ERROR:#} {}", Line(&self.message));
        for detail in &self.details {
            let _ = writeln!(err, "  {}", Line(detail));
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(err, "{HINT}hint:{HINT:#} {}", Line(hint));
        }
    }
}

/// Writes a warning to stderr, such as the failure of one of many files.
pub fn warn(message: impl Display) {
    anstream::eprintln!("{ERROR}kithfs:{ERROR:#} {}", Line(&message.to_string()));
}

/// Writes a note to stderr.
pub fn note(message: impl Display) {
    anstream::eprintln!("{NOTE}note:{NOTE:#} {}", Line(&message.to_string()));
}

/// Returns the exit code for a failed system call.
fn exit_of_io(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::NotFound => Exit::NotFound,
        io::ErrorKind::ReadOnlyFilesystem => Exit::ReadOnly,
        _ => Exit::Failure,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let exit = match &error {
            Error::Usage(_)
            | Error::ForeignStore { .. }
            | Error::InitNotEmpty(_)
            | Error::NamedVaults { .. }
            | Error::NamedVaultOption { .. }
            | Error::VaultName(_)
            | Error::VaultNameTaken(_)
            | Error::KdfOfExisting(_)
            | Error::NotHandedOver(_)
            | Error::NothingToAdopt(_)
            | Error::PublicKey(_)
            | Error::AgeRecipient(_)
            | Error::IdentityExists(_)
            | Error::SharedAlready(_)
            | Error::SyncedAlready(_)
            | Error::NotAShare { .. }
            | Error::WhichHead { .. }
            | Error::WhichMember { .. }
            | Error::WhichSlot { .. }
            | Error::NotAPassphraseSlot { .. }
            | Error::CannotAsk(_) => Exit::Usage,
            Error::EmptySecret(_)
            | Error::PassphrasesDiffer
            | Error::NoTerminal
            | Error::PromptProgram { .. }
            | Error::PassphraseCommand(_)
            | Error::Secret { .. }
            | Error::WrongSecret { .. }
            | Error::AgeIdentity { .. }
            | Error::Age { .. }
            | Error::NoAgeSlotOpens { .. }
            | Error::NoOwnIdentity(_) => Exit::WrongSecret,
            Error::VaultMissing(_) => Exit::VaultMissing,
            Error::MountPoint { .. }
            | Error::GuardMissing(_)
            | Error::MountPointNotEmpty(_)
            | Error::MountPointTaken(_)
            | Error::MountPointDead(_)
            | Error::MountPointInVault { .. }
            | Error::VaultInMountPoint { .. } => Exit::MountPoint,
            Error::NoFuseDevice(_)
            | Error::NoFusermount
            | Error::NoAllowOther
            | Error::NoUring(_) => Exit::NoFuse,
            Error::AlreadyMounted { .. } => Exit::InUse,
            Error::NoSuchSlot { .. }
            | Error::NoSuchMember { .. }
            | Error::NoSuchHead { .. }
            | Error::NoSuchVault(_)
            | Error::NotOpen(_) => Exit::NotFound,
            // the path is outside the vault, so it is not "no such path in the vault"
            Error::Io { source, .. } => match exit_of_io(source) {
                Exit::NotFound => Exit::Failure,
                exit => exit,
            },
            Error::KeyChanged(_)
            | Error::ContactNotVerified(_)
            | Error::OtherFingerprint { .. }
            | Error::Voucher { .. }
            | Error::Invitation { .. }
            | Error::InviterChanged { .. }
            | Error::WritableByOthers(_)
            | Error::Declined => Exit::NotTrusted,
            Error::Contacts { source: ContactError::Unknown(_), .. } => Exit::NotFound,
            Error::Contacts { source: ContactError::BadName, .. } => Exit::Usage,
            Error::Contacts { source: ContactError::KeyOfOther(_), .. } => Exit::NotTrusted,
            Error::Contacts { source: ContactError::Newer, .. } => Exit::NewerVersion,
            Error::Interrupted(_) | Error::MountInterrupted => Exit::Interrupted,
            Error::Contacts { .. }
            | Error::Memory { .. }
            | Error::OwnFile { .. }
            | Error::OwnName { .. }
            | Error::NoHome
            | Error::NotReadBack(_)
            | Error::SharesUnseen { .. }
            | Error::Os { .. }
            | Error::NobodyReads
            | Error::CodeUnread { .. }
            | Error::DaemonEnded(_)
            | Error::LastSlot(_)
            | Error::UntriedAgeSlots { .. }
            | Error::Keyring(_)
            | Error::LockOn { .. }
            | Error::NotVerified(_)
            | Error::IdentityChanged(_)
            | Error::CostlyIdentity { .. }
            | Error::NoParent { .. }
            | Error::Full { .. }
            | Error::SomeFailed { .. } => Exit::Failure,
        };
        let hint = hint(&error);
        let is_silent = matches!(error, Error::NobodyReads);
        Failure { hint, is_silent, ..Failure::new(exit, error) }
    }
}

/// Splits a path into a vault and a path inside it, if it was given as one argument.
fn below_vault(path: &Path) -> Option<(String, String)> {
    let (vault, plain) = split_vault(path).ok()?;
    (!plain.is_empty()).then(|| (word(vault), word(os_str(&plain))))
}

fn hint(error: &Error) -> Option<String> {
    let text = match error {
        Error::Usage(_) => "`kithfs help` explains each command".to_owned(),
        Error::InitNotEmpty(_) => "give a new or an empty directory; an existing vault is opened with `kithfs mount`".to_owned(),
        Error::NoParent { path, .. } => {
            let parent = path.parent().unwrap_or(Path::new("/"));
            format!("create it first: mkdir -p {}", word(parent))
        }
        Error::KdfOfExisting(_) => {
            "leave out --kdf-memory and --kdf-passes; or give the vault an identity of its own: --own-identity".to_owned()
        }
        Error::NotHandedOver(vault) => {
            let vault = word(vault);
            format!("unmount it, then take it over: kithfs identity adopt {vault}; or keep the vault's own identity: --own-identity")
        }
        Error::NothingToAdopt(vault) => format!(
            "`kithfs info {}` shows its founder; an admin can add you: kithfs share add",
            word(vault)
        ),
        Error::SharesUnseen { .. } => {
            "wait until the sync tool has delivered them, or bring them back from a backup; then run the same command again".to_owned()
        }
        Error::NoTerminal => "use --passphrase-file, --passphrase-fd or --passphrase-command, or set KITHFS_PASSPHRASE_FILE, or KITHFS_PROMPT to a program that asks".to_owned(),
        Error::WrongSecret { by_code: false, .. } => {
            "check caps lock and keyboard layout; the recovery code that was printed when it was made also works".to_owned()
        }
        Error::WrongSecret { by_code: true, .. } => {
            "a recovery code belongs to one identity only; compare each group with your paper copy".to_owned()
        }
        Error::AgeIdentity { .. } => {
            "an age identity is the file of `age-keygen`, an SSH private key, or what an age plugin printed".to_owned()
        }
        Error::AgeRecipient(_) => {
            "a recipient begins with `age1`, as `age-keygen -y` and plugins print it, or is the line of an SSH public key".to_owned()
        }
        Error::Keyring(_) => {
            "a keyring is a service of the desktop's session, such as gnome-keyring or KWallet; everything else works without it".to_owned()
        }
        Error::Voucher { source: VoucherError::Line(_), .. } => {
            "give a file with their public keys alone, one a line as in a .pub file, without names and options".to_owned()
        }
        Error::Voucher { .. } => format!(
            "they sign their key with: kithfs identity export | ssh-keygen -Y sign -n {NAMESPACE} -f KEY"
        ),
        Error::NoAgeSlotOpens { .. } => {
            "`kithfs passphrase list` shows the slots; another way in, such as the passphrase, still works".to_owned()
        }
        Error::UntriedAgeSlots { .. } => {
            "open the identity with one of them for this command: --age-identity FILE".to_owned()
        }
        Error::CostlyIdentity { .. } => format!("if you chose that cost yourself, allow it: {}=1", ALLOW_COST_VARIABLE),
        Error::NoOwnIdentity(_) => "name the identity of an owner or member with --identity FILE".to_owned(),
        Error::Secret { op: "read identity", source, .. } if source.kind() == io::ErrorKind::NotFound => {
            "create one with `kithfs identity new`, or name yours with --identity FILE".to_owned()
        }
        Error::Secret { op: "read identity", path, source } if source.kind() == io::ErrorKind::PermissionDenied => {
            format!("if the file is yours: chmod u+r {}; or name yours with --identity FILE", word(path))
        }
        Error::Secret { op: "read identity", path, .. } => {
            format!("see what it is: ls -ld {}; or name yours with --identity FILE", word(path))
        }
        Error::VaultMissing(path) if let Some((vault, plain)) = below_vault(path) => {
            format!("{vault} is a vault; give the path inside it as a separate argument: {vault} {plain}")
        }
        Error::VaultMissing(_) => {
            "check the path, and whether its disk is mounted; `kithfs init` creates a new vault".to_owned()
        }
        Error::MountPoint { path, source } if source.kind() == io::ErrorKind::NotFound => {
            let parent = parent(path);
            if path.is_symlink() {
                "it is a symbolic link to nothing; choose another mount point".to_owned()
            } else if parent.is_dir() {
                "nothing can be created there; choose a directory of your own, such as ~/plain".to_owned()
            } else {
                format!("create its parent first: mkdir -p {}", word(parent))
            }
        }
        Error::MountPoint { path, source } if source.kind() == io::ErrorKind::PermissionDenied => {
            let place = word(path);
            format!("choose a directory of your own, such as ~/plain; or as root: mkdir {place}; chown {} {place}", rustix::process::geteuid().as_raw())
        }
        Error::GuardMissing(path) => {
            format!("mkdir {}; without --guard, a missing mount point is created and removed with the mount", word(path))
        }
        Error::MountPointDead(path) => {
            let place = word(path);
            format!("remove it with `kithfs umount {place}`, then mount again: the mount finds what was synced")
        }
        Error::MountPoint { source, .. } if source.kind() == io::ErrorKind::Other => "is /proc mounted?".to_owned(),
        Error::MountPoint { .. } => "the mount point must be a directory that you may enter and write to".to_owned(),
        Error::MountPointNotEmpty(_) => "choose an empty directory; the mount would hide the files in this one".to_owned(),
        Error::MountPointTaken(_) => "`kithfs mounts` lists what is mounted; `kithfs umount` ends a mount".to_owned(),
        Error::MountPointInVault { .. } => "choose a directory outside the vault".to_owned(),
        Error::VaultInMountPoint { .. } => "choose a mount point that does not contain the vault".to_owned(),
        Error::ForeignStore { .. } => {
            "make the vault's directory writable for root or yourself only; or, if you trust them with every file in it: -o allow_other,allow_foreign_store"
                .to_owned()
        }
        Error::NoFuseDevice(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            "you have no access to /dev/fuse: check its mode; in a container, pass the device in".to_owned()
        }
        Error::NoFuseDevice(_) => {
            "load the kernel module with `modprobe fuse`; in a container, add --device /dev/fuse; `kithfs get` and `export` need no FUSE"
                .to_owned()
        }
        Error::NoAllowOther => {
            "as root: echo user_allow_other >> /etc/fuse.conf; or mount without allow_other".to_owned()
        }
        Error::NoFusermount => "install the package fuse3; `kithfs get` and `export` need no FUSE".to_owned(),
        Error::NoUring(_) => {
            "root can enable it: echo Y > /sys/module/fuse/parameters/enable_uring; `--transport auto` works without it".to_owned()
        }
        Error::LockOn { event: "logout", .. } => {
            "`loginctl` lists your sessions; a mount of the system, such as one of /etc/fstab, can use --lock-on suspend".to_owned()
        }
        Error::LockOn { event: "screen", .. } => {
            "run it inside your desktop's session, where DBUS_SESSION_BUS_ADDRESS is set, or use --idle".to_owned()
        }
        Error::LockOn { .. } => {
            "this needs a system bus and logind: `systemctl start dbus systemd-logind`, or install elogind; without them, use --idle".to_owned()
        }
        Error::AlreadyMounted { mountpoint, .. } => {
            let place = word(mountpoint);
            format!("use the files in {place}, or unmount first: kithfs umount {place}")
        }
        Error::SharedAlready(vault) => {
            format!("kithfs set --no-shared {}", word(vault))
        }
        Error::SyncedAlready(vault) => format!(
            "mount the copy on each machine: kithfs mount {} MOUNTPOINT",
            word(vault)
        ),
        Error::NoSuchSlot { .. } | Error::NotAPassphraseSlot { .. } => "`kithfs passphrase list` shows the slots".to_owned(),
        Error::WhichSlot { .. } => "select it with --slot; `kithfs passphrase list` shows the slots".to_owned(),
        Error::LastSlot(_) => "add another passphrase first: kithfs passphrase add".to_owned(),
        Error::CodeUnread { path, .. } => {
            let file = word(path);
            format!("everything else succeeded and only that code is lost; create another: kithfs passphrase add --new-recovery-code --identity {file}")
        }
        Error::NoHome => "set HOME, or name the file with --identity if the command has that option".to_owned(),
        Error::WritableByOthers(path) => {
            format!("check that its contents are still yours, then: chmod go-w {}", word(path))
        }
        Error::IdentityExists(_) => "an identity is never replaced; choose another --identity FILE, or see this one with `kithfs identity show`".to_owned(),
        Error::PublicKey(_) => "a public key is one line that begins with kith1, as printed by `kithfs identity export`; `-` reads it from stdin".to_owned(),
        Error::CannotAsk(_) => "answer with --yes, or for a fingerprint with --fingerprint FINGERPRINT".to_owned(),
        Error::KeyChanged(name) => {
            let name = word(name);
            format!("ask {name} over another channel which fingerprint is right. If the new one: kithfs contact verify {name}; if the old one: add it again")
        }
        Error::ContactNotVerified(name) => format!(
            "compare it with its owner, then: kithfs contact verify {}; --trust-on-first-use accepts the key unverified",
            word(name)
        ),
        Error::NotAShare { .. } => "to change the whole vault, name the vault itself".to_owned(),
        Error::NoSuchMember { .. } => "`kithfs share list` shows the members".to_owned(),
        Error::IdentityChanged(_) => "run the same command again".to_owned(),
        Error::WhichMember { .. } => {
            "the key differs from the contact's, or there are several members: name each one by its fingerprint".to_owned()
        }
        Error::WhichHead { heads, .. } if heads.len() < 2 => "there is nothing to settle".to_owned(),
        Error::WhichHead { .. } => "select the head to keep with --keep; repeat additions and removals that were made only on the other one".to_owned(),
        Error::NoSuchHead { .. } => "without --keep the command shows the heads".to_owned(),
        Error::OtherFingerprint { .. } => {
            "the key may have been swapped in transit, or the fingerprint was misheard: ask the owner to send the key over another channel".to_owned()
        }
        Error::Invitation { source: InvitationError::OtherPerson, .. } => {
            "name the invited identity with --identity FILE; `kithfs identity show` shows yours".to_owned()
        }
        Error::Invitation { source: InvitationError::Format(_), .. } => "ask for the file again; it may have been changed in transit".to_owned(),
        Error::Invitation { .. } => "do not use this share; ask the inviting admin over another channel".to_owned(),
        Error::InviterChanged { name, .. } => {
            format!("find out which key is right, then: kithfs contact verify {}", word(name))
        }
        Error::Contacts { source: ContactError::Unknown(name), .. } => format!(
            "add their public key first: kithfs contact add {} kith1...; `kithfs contact list` shows your contacts",
            word(name)
        ),
        Error::Contacts { source: ContactError::KeyOfOther(_), .. } => {
            "one key belongs to one contact; if the other name is wrong, remove that contact first".to_owned()
        }
        Error::Contacts { source: ContactError::Newer, .. } => "update kithfs on this machine".to_owned(),
        Error::Contacts { source: ContactError::BadName, .. } => return None,
        Error::Contacts { path, source: ContactError::Line { line, .. } } => {
            format!("restore the file from a backup, or {}", edit(path, *line))
        }
        Error::Contacts { path, source: ContactError::LineEnd { line, is_crlf } } => {
            let file = word(path);
            if *is_crlf {
                format!("remove the CRs: sed -i 's/\\r$//' {file}")
            } else {
                format!("an editor may have cut it: compare it with a backup, or {}", edit(path, *line))
            }
        }
        Error::Contacts { path, .. } => {
            format!("restore the file from a backup, or {}", edit(path, 1))
        }
        Error::Memory { .. } => {
            "restore the file from a backup. Without it, an old list of members could be accepted: remove it only if you know that the share is current"
                .to_owned()
        }
        Error::Full { .. } => {
            "make room, and run the same command again: it continues where it stopped".to_owned()
        }
        Error::Interrupted(_) | Error::SomeFailed { .. } => "run the same command again; it continues where it stopped".to_owned(),
        Error::MountInterrupted => "run the same command again".to_owned(),
        Error::Io { op: "init", source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            "choose a directory in one of your own, such as ~/vault".to_owned()
        }
        Error::Io { op: "make identity", source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            "choose a file in a directory of your own: --identity FILE".to_owned()
        }
        Error::Io { op: "write" | "write invitation" | "export to" | "salvage to", path, source }
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            format!("you lack the permission to write there; show the permissions: ls -ld {}", word(parent(path)))
        }
        Error::Io { op: "write" | "write invitation", path, source }
            if source.kind() == io::ErrorKind::NotFound && !parent(path).exists() =>
        {
            format!("create its directory first: mkdir -p {}", word(parent(path)))
        }
        Error::NamedVaults { path, line, .. } => edit(path, *line),
        Error::NamedVaultOption { path, line, name, key, .. } => {
            format!("{}; or drop the option: kithfs vaults set {} --unset {}", edit(path, *line), word(name), word(key))
        }
        Error::OwnName { .. } => "choose it again: kithfs identity name NAME".to_owned(),
        Error::OwnFile { path, line: Some(line), .. } => edit(path, *line),
        Error::OwnFile { path, kind: io::ErrorKind::PermissionDenied, .. } => {
            format!("chmod u+r {}", word(path))
        }
        Error::OwnFile { path, .. } => {
            let file = word(path);
            format!("see what it is: ls -ld {file}; then move it away: mv {file} {file}.old")
        }
        Error::NoSuchVault(_) => "`kithfs vaults list` shows the names; `kithfs vaults add NAME VAULT MOUNTPOINT` adds one".to_owned(),
        Error::VaultNameTaken(name) => format!("change it: kithfs vaults set {}", word(name)),
        Error::NotOpen(_) => "`kithfs status` shows the open vaults".to_owned(),
        _ => return None,
    };
    Some(text)
}

/// Returns the hint that a line of a text file has to be corrected.
fn edit(path: &Path, line: usize) -> String {
    format!("correct the line: nano +{line} {}", word(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(error: Error) -> (Exit, bool) {
        let failure = Failure::from(error);
        (failure.exit, failure.hint.is_some())
    }

    #[test]
    fn each_named_failure_has_its_code_and_a_hint() {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        for (error, code) in [
            (Error::WrongSecret { path: "/v".into(), by_code: false }, 3),
            (Error::NoTerminal, 3),
            (Error::VaultMissing("/v".into()), 4),
            (Error::MountPointNotEmpty("/m".into()), 7),
            (Error::MountPoint { path: "/m".into(), source: missing() }, 7),
            (Error::MountPointInVault { vault: "/v".into(), mountpoint: "/v/m".into() }, 7),
            (Error::VaultInMountPoint { vault: "/m/v".into(), mountpoint: "/m".into() }, 7),
            (Error::NoFuseDevice(missing()), 8),
            (Error::NoFusermount, 8),
            (Error::NoUring("why".into()), 8),
            (Error::AlreadyMounted { vault: "/v".into(), mountpoint: "/m".into(), pid: 7 }, 9),
            (Error::SharedAlready("/v".into()), 2),
            (Error::SyncedAlready("/v".into()), 2),
            (Error::CannotAsk("is it so?".into()), 2),
            (Error::IdentityExists("/i".into()), 2),
            (
                Error::Contacts { path: "/c".into(), source: ContactError::Unknown("Bob".into()) },
                12,
            ),
            (Error::KeyChanged("Bob".into()), 14),
            (Error::OtherFingerprint { name: "Bob".into(), has: "0".into() }, 14),
            (Error::Invitation { path: "/i".into(), source: InvitationError::BadSignature }, 14),
            (Error::WritableByOthers("/c".into()), 14),
        ] {
            let failure = Failure::from(error);
            assert_eq!(failure.exit.code(), code, "{}", failure.message);
            assert!(failure.hint.is_some(), "{}", failure.message);
        }
        // A passphrase file, or a file to copy in, that is missing gave 12: "no such path in the
        // vault".
        assert_eq!(
            exit(Error::Io { op: "read", path: "/x".into(), source: missing() }),
            (Exit::Failure, false)
        );
        assert_eq!(
            exit(Error::Secret {
                op: "read passphrase file",
                path: "/x".into(),
                source: missing()
            })
            .0,
            Exit::WrongSecret
        );
    }

    #[test]
    fn a_message_names_operation_and_path_without_controls() {
        let failure = Failure::from(Error::VaultMissing("/a\x1b[2J".into()));
        assert_eq!(failure.message, "open /a\\x1b[2J: the vault does not exist");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("+share"), "").unwrap();
        let hint = Failure::from(Error::VaultMissing(dir.path().join("a b/c"))).hint.unwrap();
        assert!(
            hint.ends_with(&format!("a separate argument: {} 'a b/c'", dir.path().display())),
            "{hint}"
        );
        let failure = Failure::from(Error::AlreadyMounted {
            vault: "/v".into(),
            mountpoint: "/m".into(),
            pid: 7,
        });
        assert_eq!(failure.message, "open /v: it is mounted on /m by process 7");
        assert_eq!(
            failure.hint.unwrap(),
            "use the files in /m, or unmount first: kithfs umount /m"
        );
    }
}
