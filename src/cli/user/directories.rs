//! Directories of this user (XDG Base Directory Specification): identity and contacts are in the
//! configuration directory, records of shares in the state directory.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::cli::error::Error;

/// Chooses the directory from the environment.
fn base(
    variable: Option<OsString>,
    home: Option<OsString>,
    below_home: &str,
) -> Result<PathBuf, Error> {
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    // The specification says that a relative path in the variable is ignored.
    let dir = variable
        .and_then(absolute)
        .or_else(|| home.and_then(absolute).map(|home| home.join(below_home)));
    dir.map(|dir| dir.join("kithfs")).ok_or(Error::NoHome)
}

fn dir(variable: &str, below_home: &str) -> Result<PathBuf, Error> {
    base(std::env::var_os(variable), std::env::var_os("HOME"), below_home)
}

/// Returns the path of the identity file.
///
/// # Errors
/// No directory is set in the environment.
pub fn identity() -> Result<PathBuf, Error> {
    Ok(dir("XDG_CONFIG_HOME", ".config")?.join("identity"))
}

/// Returns the path of the file with the name that others see.
///
/// # Errors
/// No directory is set in the environment.
pub fn own_name() -> Result<PathBuf, Error> {
    Ok(dir("XDG_CONFIG_HOME", ".config")?.join("name"))
}

/// Returns the directory with the former identities of vaults that were handed over.
///
/// # Errors
/// No directory is set in the environment.
pub fn former_identities() -> Result<PathBuf, Error> {
    Ok(dir("XDG_CONFIG_HOME", ".config")?.join("former-identities"))
}

/// Returns the path of the contacts file.
///
/// # Errors
/// No directory is set in the environment.
pub fn contacts() -> Result<PathBuf, Error> {
    Ok(dir("XDG_CONFIG_HOME", ".config")?.join("contacts"))
}

/// Returns the path of the file of named vaults.
///
/// # Errors
/// No directory is set in the environment.
pub fn vaults() -> Result<PathBuf, Error> {
    Ok(dir("XDG_CONFIG_HOME", ".config")?.join("vaults.toml"))
}

/// Returns the state directory.
///
/// # Errors
/// No directory is set in the environment.
pub fn state() -> Result<PathBuf, Error> {
    dir("XDG_STATE_HOME", ".local/state")
}

/// Returns the directory with a record for each known share.
///
/// # Errors
/// No directory is set in the environment.
pub fn shares() -> Result<PathBuf, Error> {
    Ok(state()?.join("shares"))
}

/// Creates the parent directory of a file, with mode 0700, and the directories above it.
///
/// # Errors
/// Those of mkdir(2).
pub fn make_parent(path: &Path) -> Result<(), Error> {
    let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) else { return Ok(()) };
    let failed = |source| Error::Io { op: "make", path: dir.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)
}

/// Refuses a file of this user that another user could have written: contacts and share records
/// decide which keys are trusted, and a named vault may have a command that is run.
///
/// # Errors
/// It belongs to a user other than this one and root, or group or others may write to it.
pub fn check_private(path: &Path, metadata: &std::fs::Metadata) -> Result<(), Error> {
    if is_private(metadata.uid(), metadata.mode()) {
        Ok(())
    } else {
        Err(Error::WritableByOthers(path.to_owned()))
    }
}

/// Returns whether only this user and root can write to an object with this owner and mode.
pub fn is_private(owner: u32, mode: u32) -> bool {
    is_trusted(owner) && mode & 0o022 == 0
}

/// Returns whether `uid` is this user or root.
pub fn is_trusted(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw() || uid == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_wins_over_the_home_if_it_is_absolute() {
        let base = |variable: Option<&str>, home: Option<&str>| {
            base(variable.map(Into::into), home.map(Into::into), ".config")
        };
        assert_eq!(base(None, Some("/home/ann")).unwrap(), Path::new("/home/ann/.config/kithfs"));
        assert_eq!(base(Some("/c"), Some("/home/ann")).unwrap(), Path::new("/c/kithfs"));
        assert_eq!(
            base(Some("c"), Some("/home/ann")).unwrap(),
            Path::new("/home/ann/.config/kithfs")
        );
        assert_eq!(
            base(Some(""), Some("/home/ann")).unwrap(),
            Path::new("/home/ann/.config/kithfs")
        );
        assert!(matches!(base(None, None), Err(Error::NoHome)));
        assert!(matches!(base(None, Some("")), Err(Error::NoHome)));
    }

    #[test]
    fn what_others_may_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        let check = |mode| {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            check_private(file.path(), &file.path().metadata().unwrap())
        };
        assert!(check(0o600).is_ok() && check(0o644).is_ok());
        assert!(matches!(check(0o620), Err(Error::WritableByOthers(_))));
        assert!(matches!(check(0o602), Err(Error::WritableByOthers(_))));
    }
}
