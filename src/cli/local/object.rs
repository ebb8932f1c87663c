//! Objects outside the vault, accessed by descriptor.
//!
//! Rules that hold here
//! * Only the root of a tree is opened by path. Everything below is one component relative to a
//!   directory's descriptor, without following symlinks, not even one that replaces a directory
//!   meanwhile.
//! * Metadata is read from descriptors and set on descriptors, never by name.

use std::fs::{File, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, XattrFlags, chownat, fgetxattr, flistxattr,
    fsetxattr, getxattr, listxattr, mkdirat, mknodat, readlinkat, renameat, setxattr, symlinkat,
    unlinkat, utimensat,
};
use rustix::io::Errno;

use super::{is_plain_name, os_str, set_times, sized, timestamps};
use crate::store::Timestamp;
use crate::store::os::sys;

/// Device and inode number of an object.
pub type Id = (u64, u64);

/// An object outside the vault, of any kind.
pub struct Object {
    file: File,
    /// The descriptor only designates the object (`O_PATH`).
    path_only: bool,
}

impl AsFd for Object {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Object {
    /// Opens the directory at `path`. Symlinks in the path are followed only here.
    ///
    /// # Errors
    /// Those of `open(2)` with `O_DIRECTORY`.
    pub fn open_root(path: &Path) -> io::Result<Object> {
        Object::open_dir(|flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()))
    }

    /// Opens the directory `name`.
    ///
    /// # Errors
    /// Those of `openat2(2)`: `ELOOP` for a symbolic link, `ENOTDIR` for anything else that is not
    /// a directory.
    pub fn dir(&self, name: &[u8]) -> io::Result<Object> {
        Object::open_dir(|flags| sys::open(self.as_fd(), name, flags, Mode::empty()))
    }

    /// Opens a directory for reading. If its mode forbids that, it is opened for searching and
    /// changing only.
    fn open_dir(open: impl Fn(OFlags) -> rustix::io::Result<OwnedFd>) -> io::Result<Object> {
        match open(OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::ACCESS) => {
                Ok(Object { file: open(OFlags::PATH | OFlags::DIRECTORY)?.into(), path_only: true })
            }
            opened => Ok(Object { file: opened?.into(), path_only: false }),
        }
    }

    /// Finds the entry `name` of any type, without blocking on a FIFO, using a device or following
    /// a symlink.
    ///
    /// # Errors
    /// Those of `openat2(2)`; a missing entry is `Ok(None)`.
    pub fn entry(&self, name: &[u8]) -> io::Result<Option<Object>> {
        match sys::open_path(self.as_fd(), name) {
            Err(Errno::NOENT) => Ok(None),
            found => Ok(Some(Object { file: found?.into(), path_only: true })),
        }
    }

    /// Opens the file `name` for reading, without blocking if a FIFO has replaced it. The caller
    /// checks the type.
    ///
    /// # Errors
    /// Those of `openat2(2)`.
    pub fn read(&self, name: &[u8]) -> io::Result<Object> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(Object {
            file: sys::open(self.as_fd(), name, flags, Mode::empty())?.into(),
            path_only: false,
        })
    }

    /// Creates the regular file `name` with the permission bits `mode` minus the umask.
    ///
    /// # Errors
    /// Those of `openat2(2)`; `EEXIST` if the name exists.
    pub fn create(&self, name: &[u8], mode: u32) -> io::Result<Object> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOCTTY;
        Ok(Object {
            file: sys::open(self.as_fd(), name, flags, Mode::from_raw_mode(mode))?.into(),
            path_only: false,
        })
    }

    /// Creates the directory `name` with the permission bits `mode` minus the umask.
    ///
    /// # Errors
    /// Those of `mkdirat(2)`.
    pub fn mkdir(&self, name: &[u8], mode: u32) -> io::Result<()> {
        Ok(mkdirat(self, os_str(name), Mode::from_raw_mode(mode))?)
    }

    /// Creates the symbolic link `name`.
    ///
    /// # Errors
    /// Those of `symlinkat(2)`.
    pub fn symlink(&self, target: &[u8], name: &[u8]) -> io::Result<()> {
        Ok(symlinkat(os_str(target), self, os_str(name))?)
    }

    /// Creates a FIFO, socket or device with mode 0600.
    ///
    /// # Errors
    /// Those of `mknodat(2)`.
    pub fn mknod(&self, name: &[u8], kind: FileType, rdev: u64) -> io::Result<()> {
        Ok(mknodat(self, os_str(name), kind, Mode::from_raw_mode(0o600), rdev)?)
    }

    /// Links this object as `name` in `dir`.
    ///
    /// # Errors
    /// Those of `linkat(2)`; `EEXIST` if the name exists.
    pub fn link(&self, dir: &Object, name: &[u8]) -> io::Result<()> {
        Ok(sys::link(self.as_fd(), dir.as_fd(), name)?)
    }

    /// Removes a name that is not a directory.
    ///
    /// # Errors
    /// Those of `unlinkat(2)`.
    pub fn unlink(&self, name: &[u8]) -> io::Result<()> {
        Ok(unlinkat(self, os_str(name), AtFlags::empty())?)
    }

    /// Renames within this directory, replacing `to`.
    ///
    /// # Errors
    /// Those of `renameat(2)`.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        Ok(renameat(self, os_str(from), self, os_str(to))?)
    }

    /// Lists this directory, without `.` and `..`.
    ///
    /// # Errors
    /// Those of `getdents64(2)`.
    pub fn names(&self) -> io::Result<Names> {
        let mut names = Names { text: Vec::new(), next: 0 };
        for entry in rustix::fs::Dir::read_from(self)? {
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                names.text.extend_from_slice(name.to_bytes_with_nul());
            }
        }
        names.text.shrink_to_fit();
        Ok(names)
    }

    /// Opens the directory at `path` below this one.
    ///
    /// # Errors
    /// As [`Object::dir`].
    pub fn walk(&self, path: &[u8]) -> io::Result<Object> {
        let mut dir = Object { file: self.file.try_clone()?, path_only: self.path_only };
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            dir = dir.dir(name)?;
        }
        Ok(dir)
    }

    /// Creates the regular file at `path` below this directory, and missing parent directories.
    /// Only the user may read them, because the contents are plaintext and may be private in the
    /// vault.
    ///
    /// # Errors
    /// Those of `openat2(2)` and `mkdirat(2)`; `EEXIST` if the file exists.
    pub fn create_below(&self, path: &[u8]) -> io::Result<Made> {
        let mut names = path.split(|&byte| byte == b'/');
        let (Some(name), true) =
            (names.next_back(), path.split(|&byte| byte == b'/').all(is_plain_name))
        else {
            return Err(Errno::INVAL.into());
        };
        let mut dir = self.walk(b"")?;
        for name in names {
            match dir.mkdir(name, 0o700) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            dir = dir.dir(name)?;
        }
        Ok(Made { file: dir.create(name, 0o600)?, dir, name: name.to_vec() })
    }

    /// Returns whether this directory is `other` or is below it.
    ///
    /// # Errors
    /// A parent directory cannot be examined.
    pub fn is_within(&self, other: &Object) -> io::Result<bool> {
        let other = other.id()?;
        let mut at = Object { file: self.file.try_clone()?, path_only: true };
        loop {
            let id = at.id()?;
            if id == other {
                return Ok(true);
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            at = Object {
                file: rustix::fs::openat(&at, c"..", flags, Mode::empty())?.into(),
                path_only: true,
            };
            if at.id()? == id {
                return Ok(false);
            }
        }
    }

    /// Returns the open file, for its contents.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Calls fstat(2).
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub fn stat(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Returns what identifies the object: device and inode number.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub fn id(&self) -> io::Result<Id> {
        let stat = self.stat()?;
        Ok((stat.dev(), stat.ino()))
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// Those of `readlinkat(2)`.
    pub fn read_link(&self) -> io::Result<Vec<u8>> {
        Ok(readlinkat(self, c"", Vec::new())?.into_bytes())
    }

    /// Returns the extended attributes; none if the filesystem does not support them.
    ///
    /// # Errors
    /// Those of `listxattr(2)` and `getxattr(2)`.
    pub fn xattrs(&self) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let path = self.path_only.then(|| sys::proc_path(self.as_fd()));
        let list = |buffer: &mut [u8]| match &path {
            Some(path) => listxattr(path.as_str(), buffer),
            None => flistxattr(self, buffer),
        };
        let get = |name: &[u8], buffer: &mut [u8]| match &path {
            Some(path) => getxattr(path.as_str(), os_str(name), buffer),
            None => fgetxattr(self, os_str(name), buffer),
        };
        let names = match sized(list) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            other => other?,
        };
        let mut found = Vec::new();
        for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            match sized(|buffer| get(name, buffer)) {
                Ok(value) => found.push((name.to_vec(), value)),
                // Removed since, or in a namespace that this user may list but not read.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Those of `setxattr(2)`.
    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        let flags = XattrFlags::empty();
        let set = match self.path_only {
            true => setxattr(sys::proc_path(self.as_fd()), os_str(name), value, flags),
            false => fsetxattr(self, os_str(name), value, flags),
        };
        Ok(set?)
    }

    /// Sets user and group.
    ///
    /// # Errors
    /// Those of `fchownat(2)`.
    pub fn set_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        // All ones mean "unchanged" to the kernel, and here too.
        let (uid, gid) = (
            (uid != u32::MAX).then(|| Uid::from_raw(uid)),
            (gid != u32::MAX).then(|| Gid::from_raw(gid)),
        );
        Ok(chownat(self, c"", uid, gid, AtFlags::EMPTY_PATH)?)
    }

    /// Sets the permission bits of anything but a symlink.
    ///
    /// # Errors
    /// Those of `fchmod(2)`.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        match self.path_only {
            true => Ok(sys::chmod_path(self.as_fd(), Mode::from_raw_mode(mode))?),
            false => self.file.set_permissions(Permissions::from_mode(mode)),
        }
    }

    /// Sets the times.
    ///
    /// # Errors
    /// Those of `utimensat(2)`.
    pub fn set_times(&self, atime: Timestamp, mtime: Timestamp) -> io::Result<()> {
        match self.path_only {
            // The path leads to the descriptor's own object, even if that is a symlink.
            true => Ok(utimensat(
                CWD,
                sys::proc_path(self.as_fd()),
                &timestamps(atime, mtime),
                AtFlags::empty(),
            )?),
            false => set_times(&self.file, atime, mtime),
        }
    }
}

/// A file that was created, and its directory.
pub struct Made {
    dir: Object,
    name: Vec<u8>,
    /// The file, open for reading and writing.
    pub file: Object,
}

impl Made {
    /// Removes the file if possible.
    pub fn remove(&self) {
        let _ = self.dir.unlink(&self.name);
    }
}

/// The names of a directory.
pub struct Names {
    /// Each name with a terminating NUL, to save memory: a directory may have a million.
    text: Vec<u8>,
    next: usize,
}

impl Iterator for Names {
    type Item = Box<[u8]>;

    fn next(&mut self) -> Option<Box<[u8]>> {
        let rest = &self.text[self.next..];
        let name = &rest[..rest.iter().position(|&byte| byte == 0)?];
        self.next += name.len() + 1;
        Some(name.into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn scene() -> (tempfile::TempDir, Object) {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("dir")).unwrap();
        fs::write(temp.path().join("file"), "text").unwrap();
        symlink("file", temp.path().join("link")).unwrap();
        symlink("dir", temp.path().join("link to dir")).unwrap();
        let root = Object::open_root(temp.path()).unwrap();
        (temp, root)
    }

    #[test]
    fn no_name_leads_through_a_link_or_out() {
        let (_temp, root) = scene();
        for name in [&b"link to dir"[..], b"file", b".."] {
            assert!(root.dir(name).is_err(), "{name:?}");
        }
        assert_eq!(root.read(b"link").err().unwrap().raw_os_error(), Some(libc::ELOOP));
        assert!(root.entry(b"link").unwrap().unwrap().stat().unwrap().is_symlink());
        assert!(root.entry(b"none").unwrap().is_none());
    }

    #[test]
    fn metadata_of_a_link_is_its_own() {
        let (temp, root) = scene();
        let before = fs::metadata(temp.path().join("file")).unwrap();
        let link = root.entry(b"link").unwrap().unwrap();
        assert_eq!(link.read_link().unwrap(), b"file");
        let at = Timestamp { secs: 1_000_000_000, nanos: 5 };
        link.set_times(at, at).unwrap();
        assert_eq!(
            super::super::mtime(&fs::symlink_metadata(temp.path().join("link")).unwrap()),
            at
        );
        if rustix::process::geteuid().is_root() {
            link.set_owner(7, 8).unwrap();
            assert_eq!(fs::symlink_metadata(temp.path().join("link")).unwrap().uid(), 7);
        }
        let after = fs::metadata(temp.path().join("file")).unwrap();
        assert_eq!((after.mtime(), after.uid()), (before.mtime(), before.uid()));
    }

    #[test]
    fn metadata_of_a_fifo_is_set_without_opening_it() {
        let (temp, root) = scene();
        root.mknod(b"fifo", FileType::Fifo, 0).unwrap();
        let fifo = root.entry(b"fifo").unwrap().unwrap();
        fifo.set_mode(0o640).unwrap();
        let at = Timestamp { secs: -7, nanos: 3 };
        fifo.set_times(at, at).unwrap();
        let stat = fs::metadata(temp.path().join("fifo")).unwrap();
        assert_eq!((stat.mode() & 0o7777, super::super::mtime(&stat)), (0o640, at));
        if rustix::process::geteuid().is_root() {
            fifo.set_xattr(b"trusted.kithfs-test", b"value").unwrap();
            assert_eq!(
                fifo.xattrs().unwrap(),
                [(b"trusted.kithfs-test".to_vec(), b"value".to_vec())]
            );
        }
    }

    #[test]
    fn a_file_is_made_below_its_root_alone() {
        let (temp, root) = scene();
        for path in [
            &b"../out"[..],
            b"link to dir/file",
            b"link to dir",
            b"dir/../file",
            b"",
            b"/file",
            b"file",
            b"dir",
        ] {
            assert!(root.create_below(path).is_err(), "{path:?}");
        }
        root.create_below(b"dir/new/file").unwrap();
        assert!(temp.path().join("dir/new/file").is_file());
        root.create_below(b"other").unwrap().remove();
        assert!(!temp.path().join("other").exists());
    }

    #[test]
    fn a_directory_is_found_below_those_above_it() {
        let (temp, root) = scene();
        let dir = root.dir(b"dir").unwrap();
        assert!(dir.is_within(&root).unwrap() && root.is_within(&root).unwrap());
        assert!(!root.is_within(&dir).unwrap());
        assert!(
            root.is_within(&Object::open_root(temp.path().parent().unwrap()).unwrap()).unwrap()
        );
    }

    #[test]
    fn all_names_are_listed() {
        let (_temp, root) = scene();
        let mut names: Vec<_> = root.names().unwrap().collect();
        names.sort();
        let expected: [&[u8]; 4] = [b"dir", b"file", b"link", b"link to dir"];
        assert!(names.iter().map(|name| &name[..]).eq(expected));
        assert_eq!(root.dir(b"dir").unwrap().names().unwrap().count(), 0);
    }
}
