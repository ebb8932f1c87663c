//! What the vault's operations take and give: nodes, attributes, callers, handles.

use std::ops::Range;

use crate::store::{Kind, SetTime, Timestamp};

/// Number of a node of an open vault. The root is [`ROOT`]; a number is never used again while the
/// vault is open.
pub type NodeId = u64;

/// The node of the vault's root directory.
pub const ROOT: NodeId = 1;

/// Number of an open file or directory.
pub type Handle = u64;

/// On whose behalf an operation is done: decides who owns what is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// File mode creation mask, `0o777`: taken from `perm` where the directory hands down no ACL.
    pub umask: u32,
}

/// Where data or a hole begins, as far as can be said under a cache that may hold back what
/// programs have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought {
    /// Here.
    At(u64),
    /// It hangs on what the cache holds of these bytes, which are a hole for all that is known. An
    /// end of `u64::MAX` is the end of the file, wherever the cache has that.
    Unsent(Range<u64>),
}

/// What `stat` says of a node, in plain terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The node.
    pub node: NodeId,
    /// Inode number to show (that of the store).
    pub ino: u64,
    /// Type.
    pub kind: Kind,
    /// Permission bits with suid, sgid and sticky.
    pub perm: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Plain size in bytes.
    pub size: u64,
    /// Blocks of 512 bytes that the ciphertext takes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
}

/// What `setattr` changes; `None` and [`SetTime::Omit`] leave a thing as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Plain size.
    pub size: Option<u64>,
    /// Last access.
    pub atime: SetTime,
    /// Last change of the contents.
    pub mtime: SetTime,
    /// Clear suid and (where group-executable) sgid as a write by an ordinary user does.
    pub kill_suid_sgid: bool,
}

impl Default for SetAttr {
    fn default() -> Self {
        SetAttr {
            perm: None,
            uid: None,
            gid: None,
            size: None,
            atime: SetTime::Omit,
            mtime: SetTime::Omit,
            kill_suid_sgid: false,
        }
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// Bytes will be read.
    pub read: bool,
    /// Bytes will be written.
    pub write: bool,
    /// Cut to zero bytes first.
    pub truncate: bool,
    /// Each write goes to the end.
    pub append: bool,
    /// Each write is durable when it returns (`O_SYNC`, `O_DSYNC`).
    pub sync: bool,
}

/// One entry of a directory listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Plain name.
    pub name: Box<[u8]>,
    /// Inode number to show.
    pub ino: u64,
    /// Type, where it is known without a `stat`.
    pub kind: Option<Kind>,
    /// Cookie of the position after this entry.
    pub next: i64,
}

/// How `rename` treats an existing target.
pub use crate::store::RenameMode;

/// What the names in a directory are read with: while two values are equal, the same stored names
/// are read as the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamesReadWith {
    pub(crate) generation: u64,
    pub(crate) directory: [u8; 32],
}

/// An open file or directory and what the kernel may do with its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Number for the operations on it.
    pub handle: Handle,
    /// Pages that the kernel has of this node are still right.
    pub keep_cache: bool,
    /// Where no other handle of the file is open: the size that its header authenticates.
    pub alone: Option<u64>,
    /// The kernel asks for each read and write of this handle and holds back nothing of what is
    /// written: there is little room, and it could not take back what it has acknowledged; or the
    /// ciphertext has no bytes, so that both fail until the file is truncated.
    pub direct: bool,
}

/// What the kernel is to forget of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forget {
    /// Its attributes: it asks before the next write.
    Attributes,
    /// Its pages, those that it has not sent as well, and its attributes.
    Pages,
}

/// What `fallocate` does with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Reserves space.
    Allocate {
        /// The size stays even where the range goes beyond it.
        keep_size: bool,
    },
    /// Makes a hole; the size stays.
    PunchHole,
    /// Makes zeros.
    ZeroRange {
        /// The size stays even where the range goes beyond it.
        keep_size: bool,
    },
}

/// How `setxattr` treats an attribute that is there, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Sets it in both cases.
    Any,
    /// Fails with `EEXIST` where it is there.
    Create,
    /// Fails with `ENODATA` where it is not.
    Replace,
}

/// How far the making of a share, or a pass over it, has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareProgress {
    /// Files that are done.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files in all.
    pub files_total: u64,
    /// Bytes in all.
    pub bytes_total: u64,
    /// Files and directories that could not be looked into for want of permission, and were passed
    /// over.
    pub unread: u64,
}
