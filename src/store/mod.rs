//! The ciphertext store: the operations that a vault needs on the directory that contains it.
//!
//! Rules that hold here
//! * Every name is one path component: no `/`, no NUL, not empty, not `.` or `..`. No call follows
//!   a symbolic link, so a hostile link in the store leads nowhere.
//! * Bytes are ciphertext. No implementation handles ciphers, plain names or plain sizes.
//! * Nothing is certain to be durable before [`File::sync_data`], [`File::sync_all`], [`Dir::sync`]
//!   or [`Dir::sync_store`] has returned `Ok`.
//!
//! The implementation is [`os`]: a directory of the operating system. The feature `test-doubles`,
//! which tests enable, adds two more. `mem` is in memory, with a durability model that can lose,
//! tear and reorder unsynced changes. `fault` wraps another store and makes selected calls fail.

#[cfg(any(test, feature = "test-doubles"))]
pub mod fault;
#[cfg(any(test, feature = "test-doubles"))]
pub mod mem;
pub mod os;

mod name;
mod path_handles;
mod replace;

#[cfg(test)]
mod conformance;

#[cfg(any(test, feature = "test-doubles"))]
pub use fault::Call;
pub use path_handles::PathHandles;
pub use replace::{ReplaceError, replace};

use std::io;
use std::sync::Arc;

/// A point in time in the kernel's form: seconds since the epoch (negative before 1970) and
/// nanoseconds, `0..1_000_000_000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Whole seconds since 1970-01-01 UTC, rounded towards minus infinity.
    pub secs: i64,
    /// Nanoseconds after `secs`.
    pub nanos: u32,
}

/// The argument of `utimensat` for one of the two times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// Leave the time unchanged.
    Omit,
    /// The store's current time.
    Now,
    /// This time.
    At(Timestamp),
}

/// The type of an object in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Block device.
    BlockDevice,
    /// Character device.
    CharDevice,
}

/// The result of `lstat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Device number of the store that holds the object.
    pub dev: u64,
    /// Inode number, unique within `dev` as long as the object lives.
    pub ino: u64,
    /// Birth time if the store has one: distinguishes a reused inode number from its previous use.
    pub btime: Option<Timestamp>,
    /// Type.
    pub kind: Kind,
    /// Permission bits with suid, sgid and sticky: `mode & 0o7777`.
    pub perm: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Length in bytes (of the ciphertext).
    pub size: u64,
    /// Blocks of 512 bytes that are allocated.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
}

/// One entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The stored name.
    pub name: Box<[u8]>,
    /// Inode number.
    pub ino: u64,
    /// Type, if the store reports it without a `stat`.
    pub kind: Option<Kind>,
    /// Cookie of the position *after* this entry; pass it to [`Dir::read`] to continue.
    pub next: i64,
}

/// Size of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Block size to which the counts refer (`f_frsize`).
    pub block_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks for an ordinary user.
    pub available: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name.
    pub name_max: u64,
}

/// How a rename treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it atomically.
    Replace,
    /// Fail with `EEXIST`. A store without such a rename looks the name up first: two concurrent
    /// callers can then both take the name, and one file is lost. So use it only for names that no
    /// other writer uses.
    NoReplace,
    /// Exchange the two atomically; `EINVAL` if the store has no such rename.
    Exchange,
    /// Replace it, and leave a character device 0:0 with the old name, in one atomic step; `EINVAL`
    /// if the store has no such rename. An overlay filesystem hides names with such devices.
    Whiteout,
}

/// How [`File::allocate`] changes the blocks of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Reserve blocks without changing the length.
    KeepSize,
    /// Turn whole blocks of the range into a hole, and zero the rest of it; the length stays.
    PunchHole,
}

/// Which data or hole [`File::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next data at or after the offset.
    Data,
    /// The next hole at or after the offset.
    Hole,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For reading.
    Read,
    /// For reading and writing.
    ReadWrite,
}

/// Kind of an advisory lock on a directory, a whole file or a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Any number of handles may hold it.
    Shared,
    /// Only one handle may hold it.
    Exclusive,
}

/// A range of offsets to lock, both ends included. The file need not be that long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first offset.
    pub first: u64,
    /// The last offset; at most [`Span::END`].
    pub last: u64,
}

impl Span {
    /// The last offset that can be locked.
    pub const END: u64 = i64::MAX as u64;

    /// Returns the range of one offset.
    pub const fn one(offset: u64) -> Span {
        Span { first: offset, last: offset }
    }
}

/// An open directory of the store. All names are single components relative to it.
///
/// Errors are those of the named system call; implementations other than [`os`] return the same
/// `errno` (`io::Error::from_raw_os_error`).
pub trait Dir: Send + Sync {
    /// Opens the sub-directory `name` (`ENOTDIR` or `ELOOP` if it is not one).
    fn open_dir(&self, name: &[u8]) -> io::Result<Arc<dyn Dir>>;
    /// Opens this same directory again (with an independent listing position).
    fn reopen(&self) -> io::Result<Arc<dyn Dir>>;
    /// Opens the regular file `name`. Any other type fails (`EISDIR`, `ELOOP`, `ENXIO`); a FIFO
    /// never blocks.
    fn open_file(&self, name: &[u8], access: Access) -> io::Result<Arc<dyn File>>;
    /// Like [`Dir::open_file`], with the attributes that the file had when it was opened.
    fn open_and_stat(&self, name: &[u8], access: Access) -> io::Result<(Arc<dyn File>, Stat)> {
        let file = self.open_file(name, access)?;
        let stat = file.stat()?;
        Ok((file, stat))
    }
    /// Creates the regular file `name` for reading and writing with exactly the permission bits
    /// `perm` (no umask), on a store that has permission bits; `EEXIST` if the name exists.
    fn create_file(&self, name: &[u8], perm: u32) -> io::Result<Arc<dyn File>>;
    /// Creates a directory with exactly the permission bits `perm`.
    fn mkdir(&self, name: &[u8], perm: u32) -> io::Result<()>;
    /// Creates a FIFO, socket or device with exactly the permission bits `perm`.
    fn mknod(&self, name: &[u8], kind: Kind, perm: u32, rdev: u64) -> io::Result<()>;
    /// Creates a symbolic link to `target`.
    fn symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()>;
    /// Returns the target of the symbolic link.
    fn readlink(&self, name: &[u8]) -> io::Result<Vec<u8>>;
    /// Makes `new_name` in `new_dir` another name of the object `name` (never follows a link).
    fn link(&self, name: &[u8], new_dir: &dyn Dir, new_name: &[u8]) -> io::Result<()>;
    /// Removes a name that is not a directory.
    fn unlink(&self, name: &[u8]) -> io::Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, name: &[u8]) -> io::Result<()>;
    /// Renames an entry. `EXDEV` if `new_dir` is in another store.
    fn rename(
        &self,
        name: &[u8],
        new_dir: &dyn Dir,
        new_name: &[u8],
        mode: RenameMode,
    ) -> io::Result<()>;
    /// `lstat` of an entry.
    fn stat(&self, name: &[u8]) -> io::Result<Stat>;
    /// `stat` of this directory itself.
    fn stat_self(&self) -> io::Result<Stat>;
    /// Sets the permission bits of an entry (`EOPNOTSUPP` for a symbolic link).
    fn chmod(&self, name: &[u8], perm: u32) -> io::Result<()>;
    /// Sets owner and group of an entry, each if given; never follows a link.
    fn chown(&self, name: &[u8], uid: Option<u32>, gid: Option<u32>) -> io::Result<()>;
    /// Sets the times of an entry; never follows a link.
    fn set_times(&self, name: &[u8], atime: SetTime, mtime: SetTime) -> io::Result<()>;
    /// Sets the permission bits of this directory itself.
    fn chmod_self(&self, perm: u32) -> io::Result<()>;
    /// Sets owner and group of this directory itself.
    fn chown_self(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()>;
    /// Sets the times of this directory itself.
    fn set_times_self(&self, atime: SetTime, mtime: SetTime) -> io::Result<()>;
    /// Returns an extended attribute of an entry; `Ok(None)` if there is none. Never follows a
    /// link.
    fn get_xattr(&self, name: &[u8], key: &[u8]) -> io::Result<Option<Vec<u8>>>;
    /// Sets an extended attribute of an entry, replacing its value.
    fn set_xattr(&self, name: &[u8], key: &[u8], value: &[u8]) -> io::Result<()>;
    /// Removes an extended attribute of an entry; `Ok(false)` if there was none.
    fn remove_xattr(&self, name: &[u8], key: &[u8]) -> io::Result<bool>;
    /// Returns an extended attribute of this directory itself.
    fn get_xattr_self(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>>;
    /// Sets an extended attribute of this directory itself.
    fn set_xattr_self(&self, key: &[u8], value: &[u8]) -> io::Result<()>;
    /// Removes an extended attribute of this directory itself.
    fn remove_xattr_self(&self, key: &[u8]) -> io::Result<bool>;
    /// Lists entries from the position `cookie` (0 is the beginning), without `.` and `..`: at most
    /// about `limit` bytes of names. An empty result is the end. A handle has one position, so
    /// concurrent callers are serialized.
    fn read(&self, cookie: i64, limit: usize) -> io::Result<Vec<DirEntry>>;
    /// Makes the entries of this directory durable (`fsync` of the directory).
    fn sync(&self) -> io::Result<()>;
    /// Makes all earlier writes to the store durable (`syncfs`).
    fn sync_store(&self) -> io::Result<()>;
    /// Returns free and used space.
    fn space(&self) -> io::Result<Space>;
    /// Returns whether the store is mounted read-only.
    fn is_read_only(&self) -> io::Result<bool>;
    /// Tries to take an advisory lock on the directory itself; `Ok(false)` if the lock of another
    /// handle prevents it. The lock is held until this handle is dropped.
    fn try_lock(&self, lock: Lock) -> io::Result<bool>;
    /// Returns the locks on this directory, each with the process id of its holder, as far as the
    /// kernel lists them: processes of other machines and containers are missing.
    fn locks(&self) -> io::Result<Vec<(u32, Lock)>>;
    /// Returns whether a lock on a directory excludes every process that can use the store. False
    /// for stores with several machines, and for stores of an unknown type.
    fn directory_locks_suffice(&self) -> bool;
    /// Returns whether a lock on a range of a file also keeps others from reading those bytes, so
    /// that concurrent openers would exclude each other's readers.
    fn has_mandatory_locks(&self) -> bool {
        false
    }
    /// Returns whether the store is mounted so that names and attributes can be stale for a while
    /// after another machine has changed them.
    fn shows_changes_late(&self) -> bool {
        false
    }
    /// Returns whether changes of this directory certainly get their time from this machine's
    /// clock.
    fn has_our_clock(&self) -> bool {
        false
    }
    /// For downcasts inside an implementation.
    fn as_any(&self) -> &dyn std::any::Any;
}

/// An open regular file of the store.
pub trait File: Send + Sync {
    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `buf` at `offset`.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bufs`, one after the other, at `offset` (`pwritev`).
    fn write_vectored_at(&self, bufs: &[&[u8]], offset: u64) -> io::Result<()>;
    /// Truncates or extends (sparsely) to `len` bytes.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves or punches blocks.
    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()>;
    /// Returns the offset of the next data or hole at or after `offset`. Fails with `ENXIO` at the
    /// end of the file and beyond, and if no data follows.
    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64>;
    /// Starts writeback of a range without waiting for it, so a later flush has less to do. It
    /// guarantees nothing, so there is no error if the store cannot do it.
    fn begin_flush(&self, _offset: u64, _len: u64) {}
    /// Makes contents and length durable (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;
    /// Makes contents and inode durable (`fsync`).
    fn sync_all(&self) -> io::Result<()>;
    /// `fstat`.
    fn stat(&self) -> io::Result<Stat>;
    /// [`File::stat`] without meaningful times of modification and change: cheaper, because reading
    /// those times has a cost (see `os/attr.rs`).
    fn stat_but_times(&self) -> io::Result<Stat> {
        self.stat()
    }
    /// Sets the permission bits.
    fn chmod(&self, perm: u32) -> io::Result<()>;
    /// Sets owner and group, each if given.
    fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()>;
    /// Sets the times.
    fn set_times(&self, atime: SetTime, mtime: SetTime) -> io::Result<()>;
    /// Returns an extended attribute; `Ok(None)` if there is none.
    fn get_xattr(&self, key: &[u8]) -> io::Result<Option<Vec<u8>>>;
    /// Sets an extended attribute.
    fn set_xattr(&self, key: &[u8], value: &[u8]) -> io::Result<()>;
    /// Removes an extended attribute; `Ok(false)` if there was none.
    fn remove_xattr(&self, key: &[u8]) -> io::Result<bool>;
    /// Stops reads through this handle from updating the access time, if the store permits it for a
    /// file of this user. Does nothing on a store without access times.
    fn keep_access_time(&self) {}
    /// Makes each read through this handle return what the store has, on a store whose driver may
    /// otherwise keep bytes of the file that another machine has changed since.
    ///
    /// # Errors
    /// Those of opening the file again.
    fn read_from_store(&self) -> io::Result<()> {
        Ok(())
    }
    /// Tries to take an advisory lock on the whole file; `Ok(false)` if the lock of another handle
    /// prevents it. The lock is held until this handle is dropped.
    fn try_lock(&self, lock: Lock) -> io::Result<bool>;
    /// Opens this same file again, with locks of its own, whether it still has a name or not.
    fn reopen(&self, access: Access) -> io::Result<Arc<dyn File>>;
    /// Sets the lock of this handle on a range of offsets: takes it, changes its kind, or with
    /// `None` removes it. The locks of this handle on other offsets stay. Returns `Ok(false)`, and
    /// changes nothing, if the lock of another handle prevents it. An exclusive lock needs a handle
    /// for writing (`EBADF`). Such locks and those of [`File::try_lock`] ignore each other, except
    /// on stores that make one kind of both, such as NFS.
    fn try_lock_span(&self, lock: Option<Lock>, span: Span) -> io::Result<bool>;
    /// Returns a lock of another handle that prevents this handle from locking the range.
    fn find_lock(&self, lock: Lock, span: Span) -> io::Result<Option<(Lock, Span)>>;
    /// For downcasts inside an implementation.
    fn as_any(&self) -> &dyn std::any::Any;
}
