//! The operations of a mounted filesystem, free of any transport.
//!
//! Rules that hold here
//! * No type of a FUSE library appears: `fuser` is one transport over this trait, and FUSE over
//!   io_uring is another.
//! * Lookup counts: each [`Attr`] that `lookup`, `lookup_again`, `lookup_parent`, `lookup_entry`,
//!   `mknod`, `mkdir`, `symlink`, `link` or `create` returns adds one to the count of its node;
//!   `forget` subtracts. If a reply does not reach the kernel, the transport calls `forget` at
//!   once.
//! * Methods may be called from several threads at the same time and may block.

use std::io;
use std::ops::Range;

use crate::store::{Lock, Seek, Space, Span};
pub use crate::vault::{
    ALONE, Attr, Caller, Entry, Fallocate, Handle, LockRequest, NodeId, OpenFlags, Opened,
    RenameMode, SetAttr, SetXattr, Sought,
};

/// The error of an operation: a positive `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(i32);

impl Errno {
    /// Input/output error; also replaces a number that is no `errno`.
    pub const EIO: Errno = Errno(libc::EIO);
    /// No such entry.
    pub const ENOENT: Errno = Errno(libc::ENOENT);
    /// Not implemented: the kernel never sends such a request again.
    pub const ENOSYS: Errno = Errno(libc::ENOSYS);
    /// Not supported by this filesystem.
    pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    /// Malformed argument.
    pub const EINVAL: Errno = Errno(libc::EINVAL);
    /// The value does not fit the caller's buffer.
    pub const ERANGE: Errno = Errno(libc::ERANGE);
    /// The object is not the one that was looked up.
    pub const ESTALE: Errno = Errno(libc::ESTALE);
    /// The name is taken.
    pub const EEXIST: Errno = Errno(libc::EEXIST);

    /// Returns the `errno` with this number. Numbers that the kernel does not accept as an error
    /// (other than 1 to 4095) become [`Errno::EIO`].
    pub const fn new(number: i32) -> Errno {
        if number >= 1 && number < 4096 { Errno(number) } else { Errno::EIO }
    }

    /// Returns the positive number.
    pub fn get(self) -> i32 {
        self.0
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        error.raw_os_error().map_or(Errno::EIO, Errno::new)
    }
}

/// Result of an operation.
pub type Result<T> = std::result::Result<T, Errno>;

/// A directory that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedDir {
    /// The handle for later operations.
    pub handle: Handle,
    /// What the kernel may do with its listing.
    pub cache: DirCache,
}

/// What the kernel may do with the listing of a directory that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirCache {
    /// Drop what was kept, and keep nothing.
    No,
    /// Drop what was kept, and keep what is read now.
    Fill,
    /// Show what was kept.
    Keep,
}

/// How a file is opened, as the system call requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// The flags in plain terms.
    pub flags: OpenFlags,
    /// `O_EXCL`: a file that exists is an error of `create`.
    pub exclusive: bool,
    /// With `flags.truncate`: clear suid and sgid as a write by an ordinary user does.
    pub kill_suid_sgid: bool,
}

impl OpenRequest {
    /// Converts the flags of open(2). `privileged`: the caller may keep suid and sgid, as root may.
    pub fn from_flags(flags: i32, privileged: bool) -> OpenRequest {
        let access = flags & libc::O_ACCMODE;
        let truncate = flags & libc::O_TRUNC != 0;
        OpenRequest {
            flags: OpenFlags {
                read: access != libc::O_WRONLY,
                write: access != libc::O_RDONLY,
                truncate,
                append: flags & libc::O_APPEND != 0,
                sync: flags & libc::O_DSYNC != 0,
            },
            exclusive: flags & libc::O_EXCL != 0,
            kill_suid_sgid: truncate && !privileged,
        }
    }
}

/// Where in a file a copied range begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// The file.
    pub handle: Handle,
    /// The first byte.
    pub offset: u64,
}

/// Converts the flags of setxattr(2).
pub fn xattr_mode(flags: i32) -> Result<SetXattr> {
    match flags {
        0 => Ok(SetXattr::Any),
        libc::XATTR_CREATE => Ok(SetXattr::Create),
        libc::XATTR_REPLACE => Ok(SetXattr::Replace),
        _ => Err(Errno::EINVAL),
    }
}

/// Converts the mode of fallocate(2).
pub fn allocate_mode(mode: i32) -> Result<Fallocate> {
    const KEEP_AND_PUNCH: i32 = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE;
    const KEEP_AND_ZERO: i32 = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_ZERO_RANGE;
    match mode {
        0 => Ok(Fallocate::Allocate { keep_size: false }),
        libc::FALLOC_FL_KEEP_SIZE => Ok(Fallocate::Allocate { keep_size: true }),
        KEEP_AND_PUNCH => Ok(Fallocate::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(Fallocate::ZeroRange { keep_size: false }),
        KEEP_AND_ZERO => Ok(Fallocate::ZeroRange { keep_size: true }),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// Converts the flags of renameat2(2).
pub fn rename_mode(flags: u32) -> Result<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        libc::RENAME_WHITEOUT => Ok(RenameMode::Whiteout),
        _ => Err(Errno::EINVAL),
    }
}

/// The operations of a mounted filesystem. Names are single path components. The system call
/// fails with the error of its operation.
pub trait Operations: Send + Sync + 'static {
    /// Returns a number that stays the same as long as the kernel may cache replies about `node`;
    /// `None` if it may not; [`ALONE`] if no other daemon can change the node's share. A reply may
    /// be cached if the number has not changed since before the operation began.
    fn caching(&self, node: NodeId) -> Option<u64>;
    /// Returns the entry `name`; counts one lookup. `ENOENT` if there is none.
    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr>;
    /// Finds a node by its number alone, also if all its lookups were subtracted; counts one
    /// lookup. `ESTALE` if it cannot be found.
    fn lookup_again(&self, node: NodeId) -> Result<Attr>;
    /// Finds the parent of the directory `node`; counts one lookup. The root is its own parent.
    fn lookup_parent(&self, node: NodeId) -> Result<Attr>;
    /// Subtracts `count` lookups of `node`.
    fn forget(&self, node: NodeId, count: u64);
    /// Returns the attributes of a node.
    fn getattr(&self, node: NodeId) -> Result<Attr>;
    /// Changes the attributes that `set` contains, the size first; an error may leave some changed.
    /// `set.kill_suid_sgid` is ignored for a directory, which keeps these bits.
    fn setattr(&self, node: NodeId, set: &SetAttr) -> Result<Attr>;
    /// Clears sgid, whether the group may execute or not.
    fn clear_sgid(&self, node: NodeId) -> Result<()>;
    /// Returns the target of a symbolic link.
    fn readlink(&self, node: NodeId) -> Result<Vec<u8>>;
    /// Creates a file of any kind except directory and symbolic link; `mode` contains the type
    /// bits. Counts one lookup.
    fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Attr>;
    /// Creates a directory; counts one lookup.
    fn mkdir(&self, caller: &Caller, parent: NodeId, name: &[u8], perm: u32) -> Result<Attr>;
    /// Removes a name that is not a directory.
    fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()>;
    /// Creates a symbolic link; counts one lookup.
    fn symlink(&self, caller: &Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Attr>;
    /// Renames an entry.
    fn rename(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()>;
    /// Creates another name for `node`; counts one lookup.
    fn link(&self, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Attr>;
    /// Opens a file.
    fn open(&self, node: NodeId, request: OpenRequest) -> Result<Opened>;
    /// Creates and opens a file; counts one lookup. Without `request.exclusive` an existing file is
    /// opened instead.
    fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        request: OpenRequest,
    ) -> Result<(Attr, Opened)>;
    /// Reads into `buf`, and returns fewer bytes only at the end of the file. The former contents
    /// of `buf` are ignored. The handle may have been opened for writing only, because the kernel's
    /// writeback cache reads the rest of a page before it changes a part.
    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Writes all of `data`. `kill_suid_sgid`: clear suid first, and sgid if the group may execute.
    fn write(&self, handle: Handle, offset: u64, data: &[u8], kill_suid_sgid: bool) -> Result<()>;
    /// Does [`Operations::write`] with pages from the kernel's writeback cache. The kernel treats
    /// them as written even if this fails.
    fn write_pages(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_suid_sgid: bool,
    ) -> Result<()>;
    /// Checks a write before the kernel accepts it into its writeback cache. An error becomes that
    /// of write(2). If it returns true, the kernel first writes back its dirty pages of the file,
    /// and requests a check of the next write too.
    fn before_write(&self, handle: Handle) -> Result<bool>;
    /// Handles close(2) of one descriptor: the last chance to report an error of a write.
    fn flush(&self, handle: Handle) -> Result<()>;
    /// Takes, changes or removes a lock of a program, without waiting; returns false if the lock of
    /// another owner prevents it.
    fn lock(&self, handle: Handle, request: &LockRequest) -> Result<bool>;
    /// Returns the committed state of a file if the kernel may have pages of an earlier one.
    fn pages_to_drop(&self, handle: Handle) -> Option<[u8; 32]>;
    /// Notes that the kernel has dropped all pages of a file that are older than this state.
    fn pages_dropped(&self, handle: Handle, state: [u8; 32]);
    /// Returns a lock that prevents the requested one.
    fn find_lock(&self, handle: Handle, request: &LockRequest) -> Result<Option<(Lock, Span)>>;
    /// Removes all `fcntl` locks that `owner` has on the file of a handle.
    fn unlock_owner(&self, handle: Handle, owner: u64);
    /// Closes a handle after its last descriptor and mapping are gone. No program sees the error.
    fn release(&self, handle: Handle) -> Result<()>;
    /// Makes contents (and, unless `data_only`, the inode) durable.
    fn fsync(&self, handle: Handle, data_only: bool) -> Result<()>;
    /// Opens a directory.
    fn opendir(&self, node: NodeId) -> Result<OpenedDir>;
    /// Returns entries after the position `cookie` (0 is the beginning), without `.` and `..`: at
    /// most about `limit` bytes of names, but at least one entry if there is one. An empty result
    /// is the end.
    fn readdir(&self, handle: Handle, cookie: i64, limit: usize) -> Result<Vec<Entry>>;
    /// Returns the node of an entry that `readdir` has returned; counts one lookup. `None` if
    /// listing the entry should not make a node, because the directory is too large to keep all
    /// nodes.
    fn lookup_entry(&self, handle: Handle, entry: &Entry) -> Result<Option<Attr>>;
    /// Returns the parent of the directory `node`. The root is its own parent.
    fn parent(&self, node: NodeId) -> NodeId;
    /// Closes a directory.
    fn releasedir(&self, handle: Handle);
    /// Makes the entries of a directory durable.
    fn fsyncdir(&self, handle: Handle, data_only: bool) -> Result<()>;
    /// Returns free and used space.
    fn statfs(&self) -> Result<Space>;
    /// Sets an extended attribute. `kill_sgid`: also clears sgid, because the attribute is the
    /// access ACL and the caller is neither root nor in the file's group.
    fn setxattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
        kill_sgid: bool,
    ) -> Result<()>;
    /// Returns an extended attribute; `ENODATA` if there is none.
    fn getxattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>>;
    /// Returns the names of the extended attributes; those in `trusted.` only if `privileged`.
    fn listxattr(&self, node: NodeId, privileged: bool) -> Result<Vec<Vec<u8>>>;
    /// Removes an extended attribute; `ENODATA` if there is none.
    fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<()>;
    /// Changes the space of a range. `kill_suid_sgid` as for `write`.
    fn fallocate(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: Fallocate,
        kill_suid_sgid: bool,
    ) -> Result<()>;
    /// Returns the next data or hole at or after `offset`; `ENXIO` beyond the end. The kernel has
    /// written back its dirty pages of the range `sent`. If the answer depends on further ones,
    /// returns their range: the caller repeats the call once they are written back.
    fn lseek(&self, handle: Handle, offset: u64, what: Seek, sent: Range<u64>) -> Result<Sought>;
    /// Copies a range between two files and returns the number of bytes. `kill_suid_sgid` as for
    /// `write`, for the second file.
    fn copy_file_range(
        &self,
        from: FileRange,
        to: FileRange,
        len: u64,
        kill_suid_sgid: bool,
    ) -> Result<u64>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_no_errno_become_eio() {
        assert_eq!(Errno::new(0), Errno::EIO);
        assert_eq!(Errno::new(-2), Errno::EIO);
        assert_eq!(Errno::new(4096), Errno::EIO);
        assert_eq!(Errno::new(libc::EEXIST), Errno::EEXIST);
        assert_eq!(Errno::from(io::Error::from_raw_os_error(libc::ENOENT)), Errno::ENOENT);
        assert_eq!(Errno::from(io::Error::other("no number")), Errno::EIO);
    }

    #[test]
    fn flags_that_are_not_known_are_refused() {
        assert_eq!(rename_mode(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE), Err(Errno::EINVAL));
        assert_eq!(rename_mode(libc::RENAME_WHITEOUT), Ok(RenameMode::Whiteout));
        assert_eq!(rename_mode(libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE), Err(Errno::EINVAL));
        assert_eq!(allocate_mode(libc::FALLOC_FL_PUNCH_HOLE), Err(Errno::EOPNOTSUPP));
        assert_eq!(allocate_mode(libc::FALLOC_FL_COLLAPSE_RANGE), Err(Errno::EOPNOTSUPP));
        assert_eq!(xattr_mode(3), Err(Errno::EINVAL));
    }

    #[test]
    fn only_an_unprivileged_truncate_kills_suid() {
        assert!(OpenRequest::from_flags(libc::O_WRONLY | libc::O_TRUNC, false).kill_suid_sgid);
        assert!(!OpenRequest::from_flags(libc::O_WRONLY | libc::O_TRUNC, true).kill_suid_sgid);
        assert!(!OpenRequest::from_flags(libc::O_WRONLY, false).kill_suid_sgid);
        let both =
            OpenRequest::from_flags(libc::O_RDWR | libc::O_SYNC | libc::O_APPEND, false).flags;
        assert_eq!(
            both,
            OpenFlags { read: true, write: true, truncate: false, append: true, sync: true }
        );
    }
}
