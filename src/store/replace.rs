//! Atomic replacement of a small file whose loss would lose everything: an identity file, the pin
//! of a share.
//!
//! Rule: the old file stays until the new one is durable, was read back and verified, and has
//! replaced it by one rename. A crash at any point leaves the old one or the new one, and perhaps
//! the temporary file beside it.

use std::io;

use super::{Access, Dir, Kind, RenameMode};

/// Why a file was not replaced.
#[derive(Debug)]
pub enum ReplaceError<E> {
    /// A call failed: its purpose, and its error.
    Store(&'static str, io::Error),
    /// The caller rejected the contents that were read back.
    Refused(E),
}

/// Replaces the contents of the file `name` with `contents`, once `verify` has accepted the
/// contents that were read back. The mode stays that of the old file, and so do owner and group if
/// the process may set them; a new file gets mode 0600. `temporary` is a name in `dir` that nothing
/// else uses.
///
/// # Errors
/// Those of the calls and of `verify`. The old file is then still in place, unless only the last
/// step failed, the sync of the directory.
pub fn replace<E>(
    dir: &dyn Dir,
    name: &[u8],
    temporary: &[u8],
    contents: &[u8],
    verify: impl FnOnce(&[u8]) -> Result<(), E>,
) -> Result<(), ReplaceError<E>> {
    let failed = |op| move |source| ReplaceError::Store(op, source);
    let new = dir.create_file(temporary, 0o600).map_err(failed("write beside"))?;
    let prepared = (|| {
        if let Ok(old) = dir.stat(name)
            && old.kind == Kind::File
        {
            let is = new.stat().map_err(failed("keep owner and mode of"))?;
            if (is.uid, is.gid) != (old.uid, old.gid) {
                // An ordinary user who may write to the directory, but does not own the file,
                // becomes its owner.
                match new.chown(Some(old.uid), Some(old.gid)) {
                    Err(e) if !matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => {
                        return Err(failed("keep owner and mode of")(e));
                    }
                    _ => {}
                }
            }
            if new.stat().map_err(failed("keep owner and mode of"))?.perm != old.perm {
                new.chmod(old.perm).map_err(failed("keep owner and mode of"))?;
            }
        }
        new.write_at(contents, 0).and_then(|()| new.sync_all()).map_err(failed("write beside"))?;
        // The file is read by its name and to its end, as a reader will read it.
        let written = dir.open_file(temporary, Access::Read).and_then(|file| {
            let mut bytes = vec![0; file.stat()?.size as usize];
            let read = file.read_at(&mut bytes, 0)?;
            bytes.truncate(read);
            Ok(bytes)
        });
        verify(&written.map_err(failed("read back"))?).map_err(ReplaceError::Refused)?;
        dir.rename(temporary, dir, name, RenameMode::Replace).map_err(failed("replace"))
    })();
    if prepared.is_err() {
        let _ = dir.unlink(temporary);
    }
    prepared?;
    dir.sync().map_err(failed("sync the directory of"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::mem::MemStore;

    fn contents(dir: &dyn Dir, name: &[u8]) -> Option<Vec<u8>> {
        let file = dir.open_file(name, Access::Read).ok()?;
        let mut bytes = vec![0; file.stat().unwrap().size as usize];
        file.read_at(&mut bytes, 0).unwrap();
        Some(bytes)
    }

    fn with_old(store: &MemStore) {
        let file = store.root().create_file(b"file", 0o640).unwrap();
        file.write_at(b"old", 0).unwrap();
        file.sync_all().unwrap();
    }

    #[test]
    fn the_old_file_is_there_while_the_new_one_is_verified() {
        let store = MemStore::new();
        with_old(&store);
        let root = store.root();
        let verify = |written: &[u8]| {
            assert_eq!((written, contents(&*root, b"file")), (&b"new"[..], Some(b"old".to_vec())));
            Ok::<_, ()>(())
        };
        replace(&*root, b"file", b"beside", b"new", verify).unwrap();
        assert_eq!(
            (contents(&*root, b"file"), contents(&*root, b"beside")),
            (Some(b"new".to_vec()), None)
        );
        assert_eq!(root.stat(b"file").unwrap().perm, 0o640);
        assert!(matches!(
            replace(&*root, b"file", b"beside", b"bad", |_| Err("no")),
            Err(ReplaceError::Refused("no"))
        ));
        assert_eq!(
            (contents(&*root, b"file"), contents(&*root, b"beside")),
            (Some(b"new".to_vec()), None)
        );
    }
}
