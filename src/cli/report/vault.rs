//! Failures of the vault. Its errors name stored paths below the vault; this module adds the vault
//! and the plain path that the user gave.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::{Failure, exit_of_io, permission};
use crate::cli::daemon::registry::Registry;
use crate::cli::display::{Shown, path as shown, word};
use crate::cli::exit::Exit;
use crate::cli::local::os_str;
use crate::cli::vaults::paths;
use crate::roster::RosterError;
use crate::vault::{Contention, Error, LockHolder, NOT_A_WRITER, TOO_MANY_JOURNALS, UnreadJournal};

/// Describes a failure in the vault `vault`; `plain` is the path in it that the user gave.
pub fn in_vault(error: Error, vault: &Path, plain: Option<&[u8]>) -> Failure {
    // An error about the vault as a whole, or its root, has an empty path or a dot.
    let is_root = |stored: &Path| stored.as_os_str().is_empty() || stored.as_os_str() == ".";
    let place = |stored: &Path| {
        shown(&if is_root(stored) { vault.to_owned() } else { vault.join(stored) }).to_string()
    };
    let asked = |stored: &Path| match plain {
        Some(plain) if !plain.is_empty() => format!("{} ({})", Shown(plain), place(stored)),
        _ => place(stored),
    };
    match error {
        Error::Io { op, path, source } => {
            // For errors about a name the stored path is the parent's. The user gave the plain path
            // and does not know the stored one.
            let about_names = [libc::EEXIST, libc::ENOTEMPTY, libc::ENOENT, libc::ENOTDIR, libc::EISDIR];
            let is_about_names = source.raw_os_error().is_some_and(|errno| about_names.contains(&errno));
            let place = plain.filter(|_| is_about_names).map_or_else(|| asked(&path), |plain| Shown(plain).to_string());
            let failure = Failure::new(exit_of_io(&source), format_args!("{op} {place}: {source}"));
            if permission::is_refusal(&source) {
                let stored = if is_root(&path) { vault.to_owned() } else { vault.join(&path) };
                return permission::explain(failure, vault, &stored);
            }
            let hint = of_unread_journal(&source, &path, vault);
            Failure { hint: hint.or_else(|| about(op, source.raw_os_error(), vault, plain)), ..failure }
        }
        Error::Corrupt { op, path, what } => Failure::new(Exit::Corrupt, format_args!("{op} {}: {what}", asked(&path)))
            .hint(of_corruption(&what, &path, vault)),
        Error::NotAVault { path } => Failure::new(Exit::NotAVault, format_args!("open {}: this is not a kithfs vault", place(&path)))
            .hint("name the directory that `kithfs init` created; a sync may still be in progress"),
        Error::NewerVersion { path, found, known } => Failure::new(
            Exit::NewerVersion,
            format_args!("open {}: it needs a newer kithfs (format version {found}; this one knows {known})", place(&path)),
        )
        .hint("update kithfs on this machine"),
        Error::NoAccess { path } => Failure::new(Exit::WrongSecret, format_args!("open {}: this identity is not a member", place(&path)))
            .hint("name another identity with --identity FILE, or ask an admin to add this one"),
        Error::Members { op, source } => of_members(op, source, vault),
        Error::LeftWithin { left } => {
            let list = left.iter().map(|(path, why)| format!("{} ({})", asked(path), Shown(why.as_bytes()))).collect::<Vec<_>>().join(", ");
            Failure::new(Exit::Failure, format_args!("removed, but not from these nested shares: {list}"))
                .hint("make them accessible, then run the same command again")
        }
        Error::Untrusted { path, founder, .. } => Failure::new(
            Exit::NotTrusted,
            format_args!("open {}: nothing vouches for this share, made by {}", place(&path), founder.fingerprint()),
        )
        .hint("the storage host may have planted it: accept an invitation first (`kithfs accept`), or accept it unverified with --trust-on-first-use"),
        Error::MandatoryLocks { path } => Failure::new(
            Exit::Failure,
            format_args!("open {}: the store is on SMB, where a lock also keeps others from reading: it cannot be mounted as shared", place(&path)),
        )
        .hint(format_args!(
            "use it on one machine at a time: kithfs set --no-shared {}, and mount it without --shared",
            word(vault)
        )),
        Error::InUse { path, holder, between } => in_use(&place(&path), vault, &holder, between),
        Error::Os { op, errno } => {
            let source = std::io::Error::from_raw_os_error(errno);
            let path = plain.map_or_else(|| place(Path::new("")), |plain| Shown(plain).to_string());
            let failure = Failure::new(exit_of_io(&source), format_args!("{op} {path}: {source}"));
            match (op, errno) {
                ("share", libc::EEXIST) => failure.hint(
                    "an interrupted command left a folder of the same name with .before-share: rename one of the two, and run the same command again",
                ),
                ("share", libc::EINVAL) => failure.hint(
                    "a conflict copy of a folder, and a folder that contains a share, cannot become a share; rename a conflict copy in a mount first",
                ),
                ("share", libc::EBUSY) => failure.hint(
                    "close all files that are open for writing in the folder, in all mounts; then run the same command again, which continues where it stopped",
                ),
                (_, libc::ESHUTDOWN) => failure.hint(
                    "the vault was locked or unmounted meanwhile: open it and run the same command again, which continues where it stopped",
                ),
                _ => Failure { hint: about(op, Some(errno), vault, plain), ..failure },
            }
        }
        Error::Share { path, source } => Failure::new(Exit::Corrupt, format_args!("open {}: {source}", place(&path)))
            .hint("a file of the vault is missing, damaged or was tampered with; check whether a sync is complete"),
    }
}

/// Returns the directory in the store of the share at the stored path `path` of `vault`, and one beside
/// the vault for journals.
fn places_of_journals(path: &Path, vault: &Path) -> (PathBuf, OsString) {
    let mut aside = vault.as_os_str().to_owned();
    aside.push(".journals");
    (vault.join(path.strip_prefix(".").unwrap_or(path)).join(""), aside)
}

/// Returns the hint for a journal that the disk cannot read. `fsck` does not open the vault either.
fn of_unread_journal(source: &io::Error, path: &Path, vault: &Path) -> Option<String> {
    let journal = source.get_ref()?.downcast_ref::<UnreadJournal>()?;
    let why = "it may contain the last changes before a crash";
    if !journal.is_in_store {
        return Some(format!(
            "{why}, and is in the state directory of this machine: check that disk"
        ));
    }
    let (store, aside) = places_of_journals(path, vault);
    let (stored, aside) = (word(store.join(&journal.name)), word(aside));
    if journal.source.kind() == io::ErrorKind::PermissionDenied {
        return Some(format!(
            "{why}, by another user of this machine: mount the vault once as that user, or let root give you the journal: chown --reference={} {stored}",
            word(vault)
        ));
    }
    Some(format!(
        "{why}, perhaps of another member: check the disk, or bring the file back from another copy of the vault; otherwise move it away, and keep it: mkdir -p {aside} && mv -t {aside} {stored}"
    ))
}

/// Returns the hint for what is not valid at the stored path `path` of `vault`.
fn of_corruption(what: &str, path: &Path, vault: &Path) -> String {
    if what == TOO_MANY_JOURNALS {
        // `fsck` does not open it either.
        let (store, aside) = places_of_journals(path, vault);
        let (store, aside) = (word(store), word(aside));
        return format!(
            "the storage host may have copied them; while no machine has it open, move them away: mkdir {aside} && find {store} -maxdepth 1 -name '+journal-*' -exec mv -t {aside} {{}} +; keep them, because one may contain the last changes before a crash"
        );
    }
    if what == NOT_A_WRITER {
        return LATE_CHANGES.to_owned();
    }
    let vault = word(vault);
    format!("`kithfs fsck {vault}` lists all damage; restore the files from a backup")
}

/// Hint for an object whose signer has no right to write.
pub const LATE_CHANGES: &str = "a removed member may have changed it before the removal, and a sync tool has brought it later; to accept such changes, give them the right to write again (share add --role writer), and take it away once everything has arrived (share remove); else restore it from a backup";

/// Returns a hint for a failed call; `plain` is the path in the vault that the user gave.
fn about(op: &str, errno: Option<i32>, vault: &Path, plain: Option<&[u8]>) -> Option<String> {
    let path = plain.filter(|plain| !plain.is_empty());
    let vault = word(vault);
    let text = match (errno?, path) {
        (libc::ENOSPC | libc::EDQUOT, _) => {
            "free space on the vault's filesystem, and run the same command again".to_owned()
        }
        (libc::EROFS, _) => "the vault's filesystem is read-only".to_owned(),
        (libc::ENOENT, Some(path)) => {
            let parent = paths::split(path).map_or(&b""[..], |(parent, _)| parent);
            let place = if parent.is_empty() {
                String::new()
            } else {
                format!(" {}", word(os_str(parent)))
            };
            format!("`kithfs ls {vault}{place}` lists the folder")
        }
        (libc::ENOTDIR, Some(path)) if op == "export" => {
            format!("`kithfs get {vault} {}` copies a single file", word(os_str(path)))
        }
        (libc::EISDIR, Some(path)) => format!(
            "it is a directory: `kithfs ls {vault} {0}` lists it, `kithfs export` copies it",
            word(os_str(path))
        ),
        (libc::ENOTEMPTY, Some(_)) => {
            "`kithfs rm -r` removes a directory and its contents".to_owned()
        }
        (libc::ENAMETOOLONG, _) => "a name has at most 255 bytes".to_owned(),
        _ => return None,
    };
    Some(text)
}

/// Describes a failure that concerns the members of the share in `vault`.
fn of_members(op: &str, error: RosterError, vault: &Path) -> Failure {
    let failed = |exit| {
        Failure::new(
            exit,
            format_args!("{op} in {}: {}", shown(vault), Shown(error.to_string().as_bytes())),
        )
    };
    match &error {
        RosterError::OwnerOnly => failed(Exit::Usage)
            .hint("turn a folder into a share: kithfs share create VAULT/FOLDER; a whole vault can have members only if it was created with `init --signed`"),
        RosterError::NotAdmin => failed(Exit::ReadOnly).hint("`kithfs share list` shows the admins"),
        RosterError::NoSuchMember => failed(Exit::NotFound).hint("`kithfs share list` shows the members"),
        RosterError::AlreadyMember(_) => failed(Exit::Usage).hint("`kithfs share list` shows the members and their roles"),
        RosterError::NoFork => {
            failed(Exit::NotFound).hint("`kithfs share list` shows the heads; there is no fork to settle")
        }
        RosterError::Overtaken => failed(Exit::Failure).hint("run the same command again; `kithfs share list` shows the members now"),
        RosterError::UnopenedHead => failed(Exit::Corrupt)
            .hint("only an admin in each of the lists can settle the fork; if you are one, check whether a sync is complete"),
        RosterError::Forked(_) => failed(Exit::ReadOnly).hint(format_args!("settle it first: kithfs share settle {}", word(vault))),
        _ => failed(Exit::Failure),
    }
}

/// Describes that the vault's directory cannot be opened.
pub fn unopened(vault: &Path, source: std::io::Error) -> Failure {
    in_vault(Error::Io { op: "open vault", path: PathBuf::new(), source }, vault, None)
}

/// Describes that the vault `vault`, or the share at `place` in it, is in use. The hint is the one
/// command that helps, which depends on the holder and on how the vault is open there.
fn in_use(place: &str, vault: &Path, holder: &LockHolder, between: Contention) -> Failure {
    let LockHolder { host, pid, .. } = holder;
    let failure = |by: std::fmt::Arguments<'_>| {
        Failure::new(Exit::InUse, format_args!("open {place}: it is in use by {by}"))
    };
    let failure = match pid {
        0 => failure(format_args!("a process of another machine or container")),
        pid => failure(format_args!("process {pid} on {}", Shown(host.as_bytes()))),
    };
    // Only the user's own mounts are listed.
    let mounts = Registry::open().and_then(|registry| registry.live()).unwrap_or_default();
    if let Some(mount) = mounts.iter().find(|mount| *pid != 0 && mount.process.pid == *pid) {
        let point = word(&mount.mountpoint.0);
        return failure.hint(format_args!(
            "use the files in {point}, or unmount first: kithfs umount {point}"
        ));
    }
    if *pid != 0 && is_another_program(*pid) {
        return failure.hint(format_args!(
            "that is not kithfs, and holds a lock on the vault's directory: end process {pid}"
        ));
    }
    failure.hint(match between {
        Contention::Alone => "it must be unmounted there first: kithfs umount MOUNTPOINT".to_owned(),
        Contention::Holder => {
            "it was opened there for one process alone: unmount it there, with kithfs umount MOUNTPOINT, and mount it again".to_owned()
        }
        Contention::Unshared | Contention::Opener if vault.join("+synced").exists() => {
            "a synced vault has a copy on each machine; unmount this one there first: kithfs umount MOUNTPOINT".to_owned()
        }
        Contention::Unshared => format!(
            "to use it there and here at the same time: kithfs set --shared {}, and mount it again there and here; for a shared folder, its owner runs that for the vault that it is in",
            word(vault)
        ),
        Contention::Opener => format!(
            "it is shared there; to share it here too: kithfs set --shared {}",
            word(vault)
        ),
    })
}

/// Returns whether a process of this machine has another program's name. Anybody can choose the
/// name, so it decides only about a hint.
fn is_another_program(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/comm"))
        .is_ok_and(|name| !name.windows(6).any(|part| part == b"kithfs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(error: Error) -> Failure {
        in_vault(error, Path::new("/v"), None)
    }

    #[test]
    fn codes_of_vault_errors() {
        let path = std::path::PathBuf::new;
        let holder = LockHolder { host: "h".into(), pid: 42, since_unix: 0 };
        assert_eq!(failure(Error::NotAVault { path: path() }).exit.code(), 5);
        assert_eq!(
            failure(Error::NewerVersion { path: path(), found: 2, known: 1 }).exit.code(),
            6
        );
        let between = Contention::Unshared;
        let in_use = failure(Error::InUse { path: path(), holder, between });
        assert_eq!(in_use.exit.code(), 9);
        assert!(in_use.message.contains("process 42 on h"));
        assert_eq!(
            failure(Error::Corrupt { op: "read", path: "x".into(), what: "w".into() }).exit.code(),
            10
        );
        assert_eq!(failure(Error::Os { op: "write", errno: libc::EROFS }).exit.code(), 11);
        assert_eq!(failure(Error::Os { op: "find", errno: libc::ENOENT }).exit.code(), 12);
        assert_eq!(failure(Error::NoAccess { path: path() }).exit.code(), 3);
        let on_smb = failure(Error::MandatoryLocks { path: path() });
        assert_eq!(on_smb.exit.code(), 1);
        assert!(on_smb.hint.unwrap().contains("kithfs set --no-shared /v"));
    }

    /// The hint named `kithfs fsck`, which refuses such a vault too; then a command with a folder
    /// that the user had to choose and to make first.
    #[test]
    fn the_hint_for_too_many_journals_moves_them_away() {
        let what = TOO_MANY_JOURNALS.to_owned();
        let failure = failure(Error::Corrupt { op: "open", path: ".".into(), what });
        let hint = failure.hint.unwrap();
        let command = "mkdir /v.journals && find /v/ -maxdepth 1 -name '+journal-*' -exec mv -t /v.journals {} +";
        assert!(hint.contains(command), "{hint}");
        assert!(!hint.contains("kithfs fsck"), "{hint}");
    }

    /// A mount failed with "open /v: Input/output error", for a reason that only a trace of its calls
    /// showed.
    #[test]
    fn the_hint_for_an_unread_journal_moves_it_away() {
        let unread = |is_in_store, errno| {
            let source = io::Error::from_raw_os_error(errno);
            let name = "+journal-host-01".into();
            let source = io::Error::other(UnreadJournal { name, is_in_store, source });
            failure(Error::Io { op: "open", path: ".".into(), source })
        };
        let failure = unread(true, libc::EIO);
        assert!(failure.message.contains("+journal-host-01"), "{}", failure.message);
        let hint = failure.hint.unwrap();
        let command = "mkdir -p /v.journals && mv -t /v.journals /v/+journal-host-01";
        assert!(hint.contains(command), "{hint}");
        assert!(!unread(false, libc::EIO).hint.unwrap().contains("/v"));
        // Root has mounted the vault before a crash.
        let hint = unread(true, libc::EACCES).hint.unwrap();
        assert!(hint.contains("chown --reference=/v /v/+journal-host-01"), "{hint}");
    }

    #[test]
    fn the_plain_path_that_was_asked_for_is_named() {
        let message =
            in_vault(Error::Os { op: "find", errno: libc::ENOENT }, Path::new("/v"), Some(b"a/b"))
                .message;
        assert!(message.starts_with("find a/b: "), "{message}");
        let hint = |op, errno, plain: &[u8]| {
            in_vault(Error::Os { op, errno }, Path::new("/my v"), Some(plain)).hint
        };
        assert_eq!(
            hint("find", libc::ENOENT, b"a/b").unwrap(),
            "`kithfs ls '/my v' a` lists the folder"
        );
        assert_eq!(
            hint("find", libc::ENOENT, b"b").unwrap(),
            "`kithfs ls '/my v'` lists the folder"
        );
        assert_eq!(
            hint("export", libc::ENOTDIR, b"b").unwrap(),
            "`kithfs get '/my v' b` copies a single file"
        );
        assert_eq!(hint("find", libc::EINTR, b"b"), None);
        let corrupt = Error::Corrupt {
            op: "read",
            path: "xyz".into(),
            what: "cannot be authenticated".into(),
        };
        assert_eq!(
            in_vault(corrupt, Path::new("/v"), Some(b"a")).message,
            "read a (/v/xyz): cannot be authenticated"
        );
    }
}
