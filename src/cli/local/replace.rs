//! Replaces a small, precious file as a whole, such as an identity file.
//!
//! Rule: the steps and their order are in [`crate::store::replace`].

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::cli::error::Error;
use crate::crypto::Random;
use crate::store::os::OsDir;
use crate::store::{self, Dir, ReplaceError};
use crate::vault::OsRandom;

/// Writes `contents` to `path` after `verify` has accepted what was read back from the disk. Owner
/// and mode stay those of the old file; a new one gets mode 0600.
///
/// # Errors
/// Those of the calls and of `verify`. The old file is then unchanged, unless only the last step
/// failed, the sync of the directory.
pub fn replace<E: From<Error>>(
    path: &Path,
    contents: &[u8],
    verify: impl FnOnce(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let failed = |op| move |source| Error::Io { op, path: path.to_owned(), source };
    // Symlinks are followed, so that the target is replaced and not the link.
    let target = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        other => other.map_err(failed("find"))?,
    };
    let dir = super::parent(&target);
    let name =
        target.file_name().ok_or_else(|| failed("write")(io::ErrorKind::InvalidInput.into()))?;
    let dir = OsDir::open(dir).map_err(failed("write beside"))?;
    replace_in(&*dir, name.as_bytes(), path, contents, verify)
}

/// Does [`replace`] for the file `name` in an open directory; `path` names it in messages. A
/// symlink of that name is replaced and not followed.
///
/// # Errors
/// Those of [`replace`].
pub fn replace_in<E: From<Error>>(
    dir: &dyn Dir,
    name: &[u8],
    path: &Path,
    contents: &[u8],
    verify: impl FnOnce(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut random = [0; 8];
    OsRandom.fill(&mut random);
    // Inside a vault, a leftover of a crash must have a name that fsck knows.
    let prefix = if name.starts_with(b"+") { "+tmp-" } else { ".kithfs-new-" };
    let temporary = format!("{prefix}{:016x}", u64::from_le_bytes(random));
    store::replace(dir, name, temporary.as_bytes(), contents, verify).map_err(|error| match error {
        ReplaceError::Store(op, source) => Error::Io { op, path: path.to_owned(), source }.into(),
        ReplaceError::Refused(error) => error,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_new_contents_take_the_place_and_the_mode_of_the_old() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("+identity");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        replace::<Error>(&file, b"new", |written| {
            assert_eq!(written, b"new");
            assert_eq!(
                fs::read(&file).unwrap(),
                b"old",
                "the old one is there while the new one is verified"
            );
            Ok(())
        })
        .unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing stays behind");
    }

    #[test]
    fn what_is_not_verified_does_not_take_the_place() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("identity");
        fs::write(&file, "old").unwrap();
        let error = replace(&file, b"new", |_| Err(Error::NotVerified(file.clone())));
        assert!(matches!(error, Err(Error::NotVerified(_))));
        assert_eq!(fs::read(&file).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing stays behind");
    }

    #[test]
    fn a_new_file_is_for_its_owner_alone_and_a_link_stays_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("real"), dir.path().join("link"));
        replace::<Error>(&file, b"1", |_| Ok(())).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink("real", &link).unwrap();
        replace::<Error>(&link, b"2", |_| Ok(())).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"2");
    }
}
