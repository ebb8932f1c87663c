//! Where this user keeps what is his alone: identity and contacts below the configuration
//! directory, what was seen of shares below the state directory (XDG Base Directory Specification).

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::cli::error::Error;

/// What of the environment decides.
fn base(
    variable: Option<OsString>,
    home: Option<OsString>,
    below_home: &str,
) -> Result<PathBuf, Error> {
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    // a relative path in the variable does not count, says the specification
    let dir = variable
        .and_then(absolute)
        .or_else(|| home.and_then(absolute).map(|home| home.join(below_home)));
    dir.map(|dir| dir.join("kithfs")).ok_or(Error::NoHome)
}

fn dir(variable: &str, below_home: &str) -> Result<PathBuf, Error> {
    base(std::env::var_os(variable), std::env::var_os("HOME"), below_home)
}

/// The identity file.
///
/// # Errors
/// There is no home directory.
pub fn identity() -> Result<PathBuf, Error> {
    Ok(dir("XDG_CONFIG_HOME", ".config")?.join("identity"))
}

/// The list of contacts.
///
/// # Errors
/// There is no home directory.
pub fn contacts() -> Result<PathBuf, Error> {
    Ok(dir("XDG_CONFIG_HOME", ".config")?.join("contacts"))
}

/// The directory of what this user's programs leave for later ones.
///
/// # Errors
/// There is no home directory.
pub fn state() -> Result<PathBuf, Error> {
    dir("XDG_STATE_HOME", ".local/state")
}

/// The directory with a file for each share that was seen.
///
/// # Errors
/// There is no home directory.
pub fn shares() -> Result<PathBuf, Error> {
    Ok(state()?.join("shares"))
}

/// Makes the directory of a file, for its owner alone, with the directories above it.
///
/// # Errors
/// Those of the calls.
pub fn make_parent(path: &Path) -> Result<(), Error> {
    let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) else { return Ok(()) };
    let failed = |source| Error::Io { op: "make", path: dir.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)
}

/// Refuses a file of contacts or of shares that somebody else could have written: whoever writes
/// there decides whose key is whose.
///
/// # Errors
/// It belongs to another user than this one and root, or group or others may write to it.
pub fn check_private(path: &Path, metadata: &std::fs::Metadata) -> Result<(), Error> {
    if is_private(metadata.uid(), metadata.mode()) {
        Ok(())
    } else {
        Err(Error::WritableByOthers(path.to_owned()))
    }
}

/// Whether nobody but this user and root can write to an object with this owner and mode.
pub fn is_private(owner: u32, mode: u32) -> bool {
    is_trusted(owner) && mode & 0o022 == 0
}

/// Whether `uid` is this user or root.
pub fn is_trusted(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw() || uid == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_goes_before_the_home_and_counts_only_where_it_is_absolute() {
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
