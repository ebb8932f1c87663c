//! Replacing a small file whose loss would be the loss of everything: the file with an identity's slots.
//!
//! Rule: the old file stays until the new one is on the disk, was read back and found good, and has taken its place by one rename.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::error::Error;

/// Writes `contents` in the place of `path`, once `verify` has found good what was read back from the disk. Owner and mode stay those of
/// the old file; a new one gets mode 0600.
///
/// # Errors
/// Those of the calls and of `verify`. The old file is then in place, unless only the last step failed, the sync of the directory.
pub fn replace<E: From<Error>>(path: &Path, contents: &[u8], verify: impl FnOnce(&[u8]) -> Result<(), E>) -> Result<(), E> {
    let failed = |op| move |source| Error::Io { op, path: path.to_owned(), source };
    // a link is followed, so that its target is replaced and not the link
    let target = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        other => other.map_err(failed("find"))?,
    };
    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // control files of a vault begin with `+`; a name with a dot is outside of what the vault reads
    let mut new = tempfile::Builder::new().prefix(".kithfs-new-").tempfile_in(dir).map_err(failed("write beside"))?;
    if let Ok(old) = fs::metadata(&target) {
        keep_owner(new.as_file(), &old).map_err(failed("keep owner and mode of"))?;
    }
    new.write_all(contents).and_then(|()| new.as_file().sync_all()).map_err(failed("write beside"))?;
    let mut written = Vec::new();
    File::open(new.path()).and_then(|mut file| file.read_to_end(&mut written)).map_err(failed("read back"))?;
    verify(&written)?;
    new.persist(&target).map_err(|error| failed("replace")(error.error))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("sync the directory of"))?;
    Ok(())
}

fn keep_owner(new: &File, old: &fs::Metadata) -> io::Result<()> {
    let is = new.metadata()?;
    if (is.uid(), is.gid()) != (old.uid(), old.gid()) {
        // an ordinary user who may write to the directory, but does not own the file, becomes its owner
        match std::os::unix::fs::fchown(new, Some(old.uid()), Some(old.gid())) {
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
            _ => {}
        }
    }
    new.set_permissions(old.permissions())
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
            assert_eq!(fs::read(&file).unwrap(), b"old", "the old one is there while the new one is verified");
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
