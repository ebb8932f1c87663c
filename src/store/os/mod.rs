//! The ciphertext store in a directory of the operating system.
//!
//! Rules that hold here
//! * Only the vault's root is opened by a path. Everything else is one component relative to a
//!   directory's descriptor, opened below it and through no symbolic link (`openat2`; `openat` with
//!   `O_NOFOLLOW` on kernels before 5.6, which is as safe for a single component).
//! * Only regular files are opened as files: a FIFO, socket or device that an attacker placed in
//!   the store neither blocks nor acts.
//! * Modes are exact whatever the umask. A process that has called [`clear_umask`] saves a system
//!   call for each file.
//! * A mode that locks the owner out does not stop the store (see `os/grant.rs`).

mod attr;
mod file;
mod grant;
mod listing;
mod locks;
mod mounts;
pub(crate) mod sys;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawMode, RenameFlags, StatVfsMountFlags};
use rustix::io::{Errno, Result, retry_on_intr};

use self::file::OsFile;
use self::grant::{CHANGE_ENTRIES, Grants, steady};
use self::listing::Listing;
use super::{Access, Dir, DirEntry, File, Kind, Lock, RenameMode, SetTime, Space, Stat, name};

static UMASK_IS_CLEAR: AtomicBool = AtomicBool::new(false);

/// Sets the process's file mode creation mask to 0, permanently, and lets this module rely on it:
/// `create_file` and `mknod` then need no second system call to set exactly the requested
/// permission bits.
///
/// From then on the kernel applies a directory's default ACL (which replaces the umask); before,
/// the requested bits are set whatever such an ACL specifies.
pub fn clear_umask() {
    rustix::process::umask(Mode::empty());
    UMASK_IS_CLEAR.store(true, Ordering::Release);
}

/// An open directory.
pub struct OsDir {
    /// Opened for reading; with `O_PATH` if the process may search the directory, but may not read
    /// it and does not own it.
    fd: OwnedFd,
    listing: Mutex<Listing>,
    quirks: Quirks,
}

/// Filesystems (`statfs(2)`) that this machine's kernel runs itself, so their times come from its
/// clock: tmpfs, ext2 to ext4, XFS, Btrfs.
const LOCAL: [u32; 4] = [0x0102_1994, 0xef53, 0x5846_5342, 0x9123_683e];

/// The `statfs(2)` types of FAT and of the kernel's exFAT.
const FAT: u32 = 0x4d44;
const EXFAT: u32 = 0x2011_bab0;

/// The `statfs(2)` type of NFS.
const NFS: u32 = 0x6969;

/// How a store differs from most.
#[derive(Clone, Copy, Default)]
struct Quirks {
    /// `fsync` alone does not make its object durable; `syncfs` before it does. On FAT a file's
    /// length and location are in its directory entry, and the letters of a long name are beside
    /// that entry. `fsync` of a file writes the entry without the letters. If a file was renamed to
    /// a directory, `fsync` of that directory writes an entry of length 0.
    names_apart: bool,
    /// Birth times do not identify objects. That of a directory changes with each rename into it, as
    /// on exFAT (Linux 6.1); or a server that has none gives another time, as Samba does.
    births_move: bool,
    /// As long as a file is open for writing on this machine, the driver keeps its pages although
    /// another machine has changed the file, whatever the options of the mount: it takes the change
    /// for one of its own (`nfs_update_inode` in Linux). `O_DIRECT` reads from the server, and needs
    /// no alignment there.
    keeps_pages: bool,
}

impl Quirks {
    fn of(filesystem: u32) -> Quirks {
        Quirks {
            names_apart: filesystem == FAT,
            births_move: filesystem == EXFAT || locks::SMB.contains(&filesystem),
            keeps_pages: filesystem == NFS,
        }
    }

    /// Makes the object of `fd` durable with `sync`, which also flushes the disk's own cache.
    fn flush(self, fd: BorrowedFd<'_>, sync: impl Fn() -> Result<()>) -> Result<()> {
        if self.names_apart {
            retry_on_intr(|| fs::syncfs(fd))?;
        }
        retry_on_intr(sync)
    }

    fn stat(self, stat: Stat) -> Stat {
        Stat { btime: stat.btime.filter(|_| !self.births_move), ..stat }
    }
}

const FILE_FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOCTTY).union(OFlags::NONBLOCK);
const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const DIR_PATH_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl OsDir {
    /// Opens the root of a vault. Symbolic links in `path` are followed, here and nowhere else.
    ///
    /// # Errors
    /// Those of `open(2)` with `O_DIRECTORY`.
    pub fn open(path: &Path) -> io::Result<Arc<dyn Dir>> {
        let fd = match fs::open(path, DIR_FLAGS, Mode::empty()) {
            Err(Errno::ACCESS) => {
                Self::open_granted(fs::open(path, DIR_PATH_FLAGS, Mode::empty())?)?
            }
            other => other?,
        };
        let quirks = Quirks::of(fs::fstatfs(&fd)?.f_type as u32);
        Ok(Self::from_fd(fd, quirks))
    }

    fn from_fd(fd: OwnedFd, quirks: Quirks) -> Arc<dyn Dir> {
        Arc::new(OsDir { fd, listing: Mutex::default(), quirks })
    }

    /// Opens the directory of the descriptor `path` for reading, after granting its owner access.
    /// Returns `path` itself if access is still denied.
    fn open_granted(path: OwnedFd) -> Result<OwnedFd> {
        let grants = Grants::begin();
        let opened = {
            let _dir = grants.owner(path.as_fd(), 0o500)?;
            sys::open(path.as_fd(), b".", DIR_FLAGS, Mode::empty())
        };
        match opened {
            Err(Errno::ACCESS) => Ok(path),
            other => other,
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Runs `op` in this directory, and retries it as the owner if the mode forbids it.
    fn attempt<T>(&self, op: impl Fn() -> Result<T>) -> io::Result<T> {
        match retry_on_intr(&op) {
            Err(Errno::ACCESS) => self.granted(op),
            other => Ok(other?),
        }
    }

    /// Like [`OsDir::attempt`], for operations that read or set a mode.
    fn attempt_steady<T>(&self, op: impl Fn() -> Result<T>) -> io::Result<T> {
        let first = {
            let _steady = steady();
            retry_on_intr(&op)
        };
        match first {
            Err(Errno::ACCESS) => self.granted(op),
            other => Ok(other?),
        }
    }

    fn granted<T>(&self, op: impl Fn() -> Result<T>) -> io::Result<T> {
        let grants = Grants::begin();
        let _dir = grants.owner(self.fd(), CHANGE_ENTRIES)?;
        Ok(retry_on_intr(op)?)
    }

    /// Renames an entry that may be a directory without write permission for its owner. The kernel
    /// requires this permission to give a directory another parent.
    fn rename_closed(
        &self,
        name: &[u8],
        new_dir: &OsDir,
        new_name: &[u8],
        op: impl Fn() -> Result<()>,
    ) -> io::Result<()> {
        let grants = Grants::begin();
        let _this = grants.owner(self.fd(), CHANGE_ENTRIES)?;
        let _other = grants.owner(new_dir.fd(), CHANGE_ENTRIES)?;
        // after an exchange, both directories have another parent
        let moved = [sys::open_path(self.fd(), name), sys::open_path(new_dir.fd(), new_name)];
        let is_dir = |fd: &OwnedFd| {
            fs::fstat(fd)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
        };
        let moved: Vec<OwnedFd> = moved.into_iter().flatten().filter(is_dir).collect();
        let _moved = moved
            .iter()
            .map(|dir| grants.owner(dir.as_fd(), CHANGE_ENTRIES))
            .collect::<Result<Vec<_>>>()?;
        Ok(retry_on_intr(op)?)
    }

    /// [`RenameMode::NoReplace`] on a store that does not support it.
    fn rename_where_free(&self, name: &[u8], new_dir: &OsDir, new_name: &[u8]) -> io::Result<()> {
        match new_dir.stat(new_name) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                self.rename(name, new_dir, new_name, RenameMode::Replace)
            }
            Err(e) => Err(e),
            Ok(_) => Err(Errno::EXIST.into()),
        }
    }

    /// Like [`OsDir::attempt`], for operations that also need the bits `needed` of the entry
    /// `name`.
    fn attempt_entry<T>(
        &self,
        name: &[u8],
        needed: RawMode,
        op: impl Fn() -> Result<T>,
    ) -> io::Result<T> {
        match retry_on_intr(&op) {
            Err(Errno::ACCESS) => {
                let grants = Grants::begin();
                let _dir = grants.owner(self.fd(), CHANGE_ENTRIES)?;
                let entry = sys::open_path(self.fd(), name)?;
                let _entry = grants.owner(entry.as_fd(), needed)?;
                Ok(retry_on_intr(op)?)
            }
            other => Ok(other?),
        }
    }

    /// Like [`OsDir::attempt`], for operations that change two directories.
    fn attempt_both<T>(&self, other: &OsDir, op: impl Fn() -> Result<T>) -> io::Result<T> {
        match retry_on_intr(&op) {
            Err(Errno::ACCESS) => {
                let grants = Grants::begin();
                let _this = grants.owner(self.fd(), CHANGE_ENTRIES)?;
                let _other = grants.owner(other.fd(), CHANGE_ENTRIES)?;
                Ok(retry_on_intr(op)?)
            }
            result => Ok(result?),
        }
    }

    /// Like [`OsDir::attempt`], for operations that need the bits `needed` of this directory's own
    /// mode.
    fn attempt_self<T>(&self, needed: RawMode, op: impl Fn() -> Result<T>) -> io::Result<T> {
        match retry_on_intr(&op) {
            Err(Errno::ACCESS) => {
                let grants = Grants::begin();
                let _dir = grants.owner(self.fd(), needed)?;
                Ok(retry_on_intr(op)?)
            }
            // The descriptor is `O_PATH` because the process may neither read nor own the
            // directory.
            Err(Errno::BADF) => Err(Errno::ACCESS.into()),
            other => Ok(other?),
        }
    }

    /// Flushes the filesystem after a rename into this directory. Called on a store where a new name
    /// has no length and no contents until the file is written again: a power cut some seconds after
    /// the rename would lose data that was synced long before it. Errors are ignored here, because
    /// the later flush reports them too: this one uses its own descriptor.
    fn flush_renamed(&self) {
        if let Ok(fd) = sys::open(self.fd(), b".", DIR_FLAGS, Mode::empty()) {
            let _ = self.quirks.flush(fd.as_fd(), || fs::fsync(&fd));
        }
    }

    /// Sets exactly `perm` on a new file if the umask may have removed some of it.
    fn set_file_perm(file: BorrowedFd<'_>, perm: u32) -> Result<()> {
        if !UMASK_IS_CLEAR.load(Ordering::Acquire) && fs::fstat(file)?.st_mode & 0o7777 != perm {
            accept_fixed_perm(fs::fchmod(file, Mode::from_raw_mode(perm)))?;
        }
        Ok(())
    }

    /// Sets exactly `perm` on a new entry. `mkdir` drops suid and sgid, and a parent with sgid adds
    /// sgid.
    fn set_entry_perm(&self, name: &[u8], perm: u32) -> io::Result<()> {
        let is = self.stat(name)?.perm;
        let exact = if UMASK_IS_CLEAR.load(Ordering::Acquire) {
            (is & 0o777) | (perm & 0o7000)
        } else {
            perm
        };
        if is == exact {
            return Ok(());
        }
        self.attempt_steady(|| {
            accept_fixed_perm(sys::chmod(self.fd(), name, Mode::from_raw_mode(exact)))
        })
    }
}

/// If a new object's mode cannot be changed, the store has one owner and one mode for all objects,
/// as a USB stick's exFAT has; that mode is accepted.
fn accept_fixed_perm(chmod: Result<()>) -> Result<()> {
    match chmod {
        Err(Errno::PERM) => Ok(()),
        other => other,
    }
}

fn of_this_kind(dir: &dyn Dir) -> Result<&OsDir> {
    dir.as_any().downcast_ref().ok_or(Errno::XDEV)
}

impl Dir for OsDir {
    fn open_dir(&self, name: &[u8]) -> io::Result<Arc<dyn Dir>> {
        name::check(name)?;
        let fd = match retry_on_intr(|| sys::open(self.fd(), name, DIR_FLAGS, Mode::empty())) {
            Err(Errno::ACCESS) => {
                let path =
                    self.attempt(|| sys::open(self.fd(), name, DIR_PATH_FLAGS, Mode::empty()))?;
                Self::open_granted(path)?
            }
            other => other?,
        };
        Ok(Self::from_fd(fd, self.quirks))
    }

    fn reopen(&self) -> io::Result<Arc<dyn Dir>> {
        let fd = match retry_on_intr(|| sys::open(self.fd(), b".", DIR_FLAGS, Mode::empty())) {
            Err(Errno::ACCESS) => {
                Self::open_granted(rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)?)?
            }
            other => other?,
        };
        Ok(Self::from_fd(fd, self.quirks))
    }

    fn open_file(&self, name: &[u8], access: Access) -> io::Result<Arc<dyn File>> {
        Ok(self.open_and_stat(name, access)?.0)
    }

    fn open_and_stat(&self, name: &[u8], access: Access) -> io::Result<(Arc<dyn File>, Stat)> {
        name::check(name)?;
        let open = |mode, needed| {
            self.attempt_entry(name, needed, || {
                sys::open(self.fd(), name, mode | FILE_FLAGS, Mode::empty())
            })
        };
        let fd = match access {
            // A check, a survey or an export is not an access that the user made. Only owners may
            // set this flag.
            Access::Read => match open(OFlags::RDONLY | OFlags::NOATIME, 0o400) {
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => open(OFlags::RDONLY, 0o400)?,
                other => other?,
            },
            Access::ReadWrite => open(OFlags::RDWR, 0o600)?,
        };
        let stat = {
            let _steady = steady();
            self.quirks.stat(attr::stat_fd(fd.as_fd())?)
        };
        match stat.kind {
            Kind::File => Ok((Arc::new(OsFile::new(fd, self.quirks)), stat)),
            Kind::Dir => Err(Errno::ISDIR.into()),
            _ => Err(Errno::NXIO.into()),
        }
    }

    fn create_file(&self, name: &[u8], perm: u32) -> io::Result<Arc<dyn File>> {
        name::check(name)?;
        let perm = perm & 0o7777;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FILE_FLAGS;
        let fd = self.attempt(|| sys::open(self.fd(), name, flags, Mode::from_raw_mode(perm)))?;
        if let Err(error) = Self::set_file_perm(fd.as_fd(), perm) {
            self.unlink(name)?;
            return Err(error.into());
        }
        Ok(Arc::new(OsFile::new(fd, self.quirks)))
    }

    fn mkdir(&self, name: &[u8], perm: u32) -> io::Result<()> {
        name::check(name)?;
        let perm = perm & 0o7777;
        self.attempt(|| fs::mkdirat(self.fd(), name, Mode::from_raw_mode(perm)))?;
        self.set_entry_perm(name, perm).inspect_err(|_| drop(self.rmdir(name)))
    }

    fn mknod(&self, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> io::Result<()> {
        name::check(name)?;
        let perm = perm & 0o7777;
        let (file_type, rdev) = match kind {
            Kind::Fifo => (FileType::Fifo, 0),
            Kind::Socket => (FileType::Socket, 0),
            Kind::BlockDevice => (FileType::BlockDevice, rdev),
            Kind::CharDevice => (FileType::CharacterDevice, rdev),
            Kind::File | Kind::Dir | Kind::Symlink => return Err(Errno::INVAL.into()),
        };
        self.attempt(|| fs::mknodat(self.fd(), name, file_type, Mode::from_raw_mode(perm), rdev))?;
        if UMASK_IS_CLEAR.load(Ordering::Acquire) {
            return Ok(());
        }
        self.set_entry_perm(name, perm).inspect_err(|_| drop(self.unlink(name)))
    }

    fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        name::check(name)?;
        self.attempt(|| fs::symlinkat(target, self.fd(), name))
    }

    fn readlink(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        name::check(name)?;
        Ok(self.attempt(|| fs::readlinkat(self.fd(), name, Vec::new()))?.into_bytes())
    }

    fn link(&self, name: &[u8], new_dir: &dyn Dir, new_name: &[u8]) -> io::Result<()> {
        name::check(name)?;
        name::check(new_name)?;
        let new_dir = of_this_kind(new_dir)?;
        self.attempt_both(new_dir, || {
            fs::linkat(self.fd(), name, new_dir.fd(), new_name, AtFlags::empty())
        })
    }

    fn unlink(&self, name: &[u8]) -> io::Result<()> {
        name::check(name)?;
        self.attempt(|| fs::unlinkat(self.fd(), name, AtFlags::empty()))
    }

    fn rmdir(&self, name: &[u8]) -> io::Result<()> {
        name::check(name)?;
        self.attempt(|| fs::unlinkat(self.fd(), name, AtFlags::REMOVEDIR))
    }

    fn rename(
        &self,
        name: &[u8],
        new_dir: &dyn Dir,
        new_name: &[u8],
        mode: RenameMode,
    ) -> io::Result<()> {
        name::check(name)?;
        name::check(new_name)?;
        let new_dir = of_this_kind(new_dir)?;
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
            RenameMode::Whiteout => RenameFlags::WHITEOUT,
        };
        let op = || fs::renameat_with(self.fd(), name, new_dir.fd(), new_name, flags);
        let renamed = match self.attempt_both(new_dir, op) {
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                self.rename_closed(name, new_dir, new_name, op)
            }
            // NFS and most filesystems behind FUSE (exFAT, NTFS, sshfs) support no rename flags.
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL) && mode == RenameMode::NoReplace =>
            {
                self.rename_where_free(name, new_dir, new_name)
            }
            result => result,
        };
        if renamed.is_ok() && self.quirks.names_apart {
            new_dir.flush_renamed();
        }
        renamed
    }

    fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        name::check(name)?;
        self.attempt_steady(|| attr::stat(self.fd(), name)).map(|stat| self.quirks.stat(stat))
    }

    fn stat_self(&self) -> io::Result<Stat> {
        let _steady = steady();
        Ok(self.quirks.stat(attr::stat_fd(self.fd())?))
    }

    fn chmod(&self, name: &[u8], perm: u32) -> io::Result<()> {
        name::check(name)?;
        self.attempt_steady(|| sys::chmod(self.fd(), name, Mode::from_raw_mode(perm & 0o7777)))
    }

    fn chown(&self, name: &[u8], uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        name::check(name)?;
        let (uid, gid) = attr::owner(uid, gid)?;
        self.attempt_steady(|| fs::chownat(self.fd(), name, uid, gid, AtFlags::SYMLINK_NOFOLLOW))
    }

    fn set_times(&self, name: &[u8], atime: SetTime, mtime: SetTime) -> io::Result<()> {
        name::check(name)?;
        let times = attr::timestamps(atime, mtime)?;
        self.attempt(|| fs::utimensat(self.fd(), name, &times, AtFlags::SYMLINK_NOFOLLOW))
    }

    fn chmod_self(&self, perm: u32) -> io::Result<()> {
        let _steady = steady();
        Ok(sys::chmod_path(self.fd(), Mode::from_raw_mode(perm & 0o7777))?)
    }

    fn chown_self(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let (uid, gid) = attr::owner(uid, gid)?;
        let _steady = steady();
        Ok(fs::chownat(self.fd(), c"", uid, gid, AtFlags::EMPTY_PATH)?)
    }

    fn set_times_self(&self, atime: SetTime, mtime: SetTime) -> io::Result<()> {
        let times = attr::timestamps(atime, mtime)?;
        self.attempt_self(0o200, || fs::futimens(&self.fd, &times))
    }

    fn get_xattr(&self, name: &[u8], key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        name::check(name)?;
        self.attempt_entry(name, 0o400, || sys::get_xattr(self.fd(), name, key))
    }

    fn set_xattr(&self, name: &[u8], key: &[u8], value: &[u8]) -> io::Result<()> {
        name::check(name)?;
        self.attempt_entry(name, 0o200, || sys::set_xattr(self.fd(), name, key, value))
    }

    fn remove_xattr(&self, name: &[u8], key: &[u8]) -> io::Result<bool> {
        name::check(name)?;
        self.attempt_entry(name, 0o200, || sys::remove_xattr(self.fd(), name, key))
    }

    fn get_xattr_self(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.attempt_self(0o400, || sys::get_xattr_fd(self.fd(), key))
    }

    fn set_xattr_self(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.attempt_self(0o200, || sys::set_xattr_fd(self.fd(), key, value))
    }

    fn remove_xattr_self(&self, key: &[u8]) -> io::Result<bool> {
        self.attempt_self(0o200, || sys::remove_xattr_fd(self.fd(), key))
    }

    fn read(&self, cookie: i64, limit: usize) -> io::Result<Vec<DirEntry>> {
        match self.listing.lock().read(self.fd(), cookie, limit) {
            Err(Errno::BADF) => Err(Errno::ACCESS.into()),
            other => Ok(other?),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.attempt_self(0, || match self.quirks.flush(self.fd(), || fs::fsync(&self.fd)) {
            // Some network filesystems have no fsync of a directory; flushing the filesystem is the
            // alternative.
            Err(Errno::INVAL) => fs::syncfs(&self.fd),
            other => other,
        })
    }

    fn sync_store(&self) -> io::Result<()> {
        Ok(fs::syncfs(&self.fd)?)
    }

    fn space(&self) -> io::Result<Space> {
        let space = fs::fstatvfs(&self.fd)?;
        Ok(Space {
            block_size: space.f_frsize,
            blocks: space.f_blocks,
            free: space.f_bfree,
            available: space.f_bavail,
            files: space.f_files,
            files_free: space.f_ffree,
            name_max: space.f_namemax,
        })
    }

    fn is_read_only(&self) -> io::Result<bool> {
        Ok(fs::fstatvfs(&self.fd)?.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    fn try_lock(&self, lock: Lock) -> io::Result<bool> {
        locks::try_lock(self.fd(), lock)
    }

    fn locks(&self) -> io::Result<Vec<(u32, Lock)>> {
        locks::held(self.fd())
    }

    fn directory_locks_suffice(&self) -> bool {
        locks::suffice(self.fd())
    }

    fn shows_changes_late(&self) -> bool {
        self.quirks.keeps_pages
            && mounts::options(self.fd()).is_ok_and(|options| !mounts::asks_each_time(&options))
    }

    fn has_mandatory_locks(&self) -> bool {
        locks::are_mandatory(self.fd())
    }

    fn has_our_clock(&self) -> bool {
        fs::fstatfs(&self.fd).is_ok_and(|stat| LOCAL.contains(&(stat.f_type as u32)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests;
