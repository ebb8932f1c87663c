//! From failures to what a person reads: one line, a hint where there is one, an exit code.
//!
//! Rules that hold here
//! * This file and those below `report/` are the only place for advice.
//! * The line is `kithfs: <operation> <path>: <reason>`, the hint stands on a line of its own.

mod fuse;
mod identity;
mod vault;

pub use self::identity::of_identity;
pub use self::vault::in_vault;

use std::fmt::Display;
use std::io;

use super::error::Error;
use super::exit::Exit;

/// A command that failed, ready to be printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// How the process ends.
    pub exit: Exit,
    /// What failed and why.
    pub message: String,
    /// What can be done about it.
    pub hint: Option<String>,
    /// Nothing is printed: there is nobody who wants to know.
    pub is_silent: bool,
}

impl Failure {
    /// A failure without advice.
    pub fn new(exit: Exit, message: impl Display) -> Failure {
        Failure { exit, message: message.to_string(), hint: None, is_silent: false }
    }

    /// With advice.
    pub fn hint(self, hint: impl Display) -> Failure {
        Failure { hint: Some(hint.to_string()), ..self }
    }

    /// With another exit code.
    pub fn exit(self, exit: Exit) -> Failure {
        Failure { exit, ..self }
    }

    /// Writes it to stderr. A stderr that is closed is no reason to fail in another way.
    pub fn print(&self) {
        use std::io::Write;
        if self.is_silent {
            return;
        }
        let mut err = io::stderr().lock();
        let _ = writeln!(err, "kithfs: {}", self.message);
        if let Some(hint) = &self.hint {
            let _ = writeln!(err, "hint: {hint}");
        }
    }
}

/// Writes one line about one of many files to stderr, past a progress bar.
pub fn warn(message: impl Display) {
    eprintln!("kithfs: {message}");
}

/// Writes what is good to know to stderr.
pub fn note(message: impl Display) {
    eprintln!("note: {message}");
}

/// Code of a failed system call, where nothing more is known.
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
            Error::Usage(_) | Error::InitNotEmpty(_) => Exit::Usage,
            Error::EmptySecret(_)
            | Error::PassphrasesDiffer
            | Error::NoTerminal
            | Error::PassphraseCommand(_)
            | Error::WrongSecret { .. }
            | Error::NoOwnIdentity(_) => Exit::WrongSecret,
            Error::VaultMissing(_) => Exit::VaultMissing,
            Error::MountPoint { .. }
            | Error::MountPointNotEmpty(_)
            | Error::MountPointTaken(_)
            | Error::MountPointInVault { .. }
            | Error::VaultInMountPoint { .. } => Exit::MountPoint,
            Error::NoFuseDevice(_) | Error::NoFusermount | Error::NoUring(_) => Exit::NoFuse,
            Error::AlreadyMounted { .. } => Exit::InUse,
            Error::NoSuchSlot { .. } => Exit::NotFound,
            Error::WhichSlot { .. } | Error::NotAPassphraseSlot { .. } => Exit::Usage,
            Error::Io { source, .. } => exit_of_io(source),
            Error::Os { .. }
            | Error::NobodyReads
            | Error::DaemonEnded(_)
            | Error::LastSlot(_)
            | Error::NotVerified(_)
            | Error::SomeFailed { .. } => Exit::Failure,
        };
        let hint = hint(&error);
        let is_silent = matches!(error, Error::NobodyReads);
        Failure { exit, message: error.to_string(), hint, is_silent }
    }
}

fn hint(error: &Error) -> Option<String> {
    let text = match error {
        Error::Usage(_) => "`kithfs help` tells how each command is used".to_owned(),
        Error::InitNotEmpty(_) => "give a new or an empty directory; an existing vault is opened with `kithfs mount`".to_owned(),
        Error::NoTerminal => "use --passphrase-file, --passphrase-fd or --passphrase-command, or set KITHFS_PASSPHRASE_FILE".to_owned(),
        Error::WrongSecret { by_code: false, .. } => {
            "check caps lock and keyboard layout; the recovery code that `init` printed opens it as well".to_owned()
        }
        Error::WrongSecret { by_code: true, .. } => {
            "a recovery code belongs to one identity only; compare each group with the paper".to_owned()
        }
        Error::NoOwnIdentity(_) => "give the identity that owns it, or is a member of it, with --identity FILE".to_owned(),
        Error::VaultMissing(_) => {
            "check the path, and whether the disk that holds it is mounted; `kithfs init` makes a new vault".to_owned()
        }
        Error::MountPoint { path, source } if source.kind() == io::ErrorKind::NotFound => {
            format!("make it first: mkdir {}", super::display::path(path))
        }
        Error::MountPoint { source, .. } if source.raw_os_error() == Some(libc::ENOTCONN) => {
            "a daemon that died has left its mount there: kithfs umount --lazy MOUNTPOINT".to_owned()
        }
        Error::MountPoint { .. } => "the mount point must be a directory that you may enter and write to".to_owned(),
        Error::MountPointNotEmpty(_) => "choose an empty directory: what is in this one would be hidden".to_owned(),
        Error::MountPointTaken(_) => "`kithfs mounts` lists what is mounted; `kithfs umount` ends a mount".to_owned(),
        Error::MountPointInVault { .. } => "choose a directory outside of the vault".to_owned(),
        Error::VaultInMountPoint { .. } => "choose a mount point that does not hold the vault".to_owned(),
        Error::NoFuseDevice(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            "you may not use /dev/fuse: see its mode, and in a container pass the device in".to_owned()
        }
        Error::NoFuseDevice(_) => {
            "load the kernel module with `modprobe fuse`; in a container pass in --device /dev/fuse; `kithfs get` and `export` need no FUSE"
                .to_owned()
        }
        Error::NoFusermount => "install the package fuse3; `kithfs get` and `export` need no FUSE".to_owned(),
        Error::NoUring(_) => {
            "root can allow it: echo Y > /sys/module/fuse/parameters/enable_uring; `--transport auto` does without".to_owned()
        }
        Error::AlreadyMounted { mountpoint, .. } => {
            let place = super::display::path(mountpoint);
            format!("use the files in {place}, or unmount first: kithfs umount {place}")
        }
        Error::NoSuchSlot { .. } | Error::NotAPassphraseSlot { .. } => "`kithfs passphrase list` shows the slots".to_owned(),
        Error::WhichSlot { .. } => "name it with --slot; `kithfs passphrase list` shows the slots".to_owned(),
        Error::LastSlot(_) => "add another way in first: kithfs passphrase add".to_owned(),
        Error::SomeFailed { .. } => "the same command again goes on where it stopped".to_owned(),
        _ => return None,
    };
    Some(text)
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
        ] {
            let failure = Failure::from(error);
            assert_eq!(failure.exit.code(), code, "{}", failure.message);
            assert!(failure.hint.is_some(), "{}", failure.message);
        }
        assert_eq!(exit(Error::Io { op: "read", path: "/x".into(), source: missing() }), (Exit::NotFound, false));
    }

    #[test]
    fn a_message_names_operation_and_path_and_cannot_control_the_terminal() {
        let failure = Failure::from(Error::VaultMissing("/a\x1b[2J".into()));
        assert_eq!(failure.message, "open /a\\x1b[2J: there is no such vault");
        let failure = Failure::from(Error::AlreadyMounted { vault: "/v".into(), mountpoint: "/m".into(), pid: 7 });
        assert_eq!(failure.message, "open /v: it is mounted on /m by process 7");
        assert_eq!(failure.hint.unwrap(), "use the files in /m, or unmount first: kithfs umount /m");
    }
}
