//! Parameters and results of the vault's operations: nodes, attributes, callers, handles.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::store::{Kind, Lock, SetTime, Span, Timestamp};

/// Number of a node of an open vault. The root is [`ROOT`]; a number is never reused while the
/// vault is open.
pub type NodeId = u64;

/// The node of the vault's root directory.
pub const ROOT: NodeId = 1;

/// Number of an open file or directory.
pub type Handle = u64;

/// The process that requests an operation: determines the owner of created objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// File mode creation mask: its bits are cleared in `perm` unless the directory has a default
    /// ACL.
    pub umask: u32,
}

/// Where data or a hole begins, if the caller's cache may have dirty data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought {
    /// At this offset.
    At(u64),
    /// Depends on the cache's dirty data in these bytes, which are otherwise a hole. An end of
    /// `u64::MAX` is the end of the file as the cache has it.
    Unsent(Range<u64>),
}

/// Attributes of a node, as for `stat`, in plain terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The node.
    pub node: NodeId,
    /// Inode number to show: usually that of the store.
    pub ino: u64,
    /// Type.
    pub kind: Kind,
    /// Permission bits with set-user-ID, set-group-ID and sticky.
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

/// Changes for `setattr`; `None` and [`SetTime::Omit`] keep the present value.
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
    /// Clears set-user-ID and (if group-executable) set-group-ID as a write by an ordinary user
    /// does.
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

impl SetAttr {
    /// Returns whether owner or group are set.
    pub(crate) fn changes_owner(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }

    /// Returns whether a time is set.
    pub(crate) fn changes_times(&self) -> bool {
        self.atime != SetTime::Omit || self.mtime != SetTime::Omit
    }
}

/// Flags for opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenFlags {
    /// Bytes will be read.
    pub read: bool,
    /// Bytes will be written.
    pub write: bool,
    /// Truncate to zero bytes first.
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
    /// Type, if it is known without a `stat`.
    pub kind: Option<Kind>,
    /// Cookie of the position after this entry.
    pub next: i64,
}

/// How `rename` treats an existing target.
pub use crate::store::RenameMode;

/// The state on which the decoding of a directory's names depends: while two values are equal,
/// equal stored names decode to equal names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamesReadWith {
    pub(crate) generation: u64,
    /// A hash of the tags that belong to the directory.
    pub(crate) tags: [u8; 32],
}

/// An open file or directory and what the kernel may do with its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Number for the operations on it.
    pub handle: Handle,
    /// The kernel's cached pages of this node are still valid.
    pub keep_cache: bool,
    /// If no other handle of the file is open: its authenticated size.
    pub alone: Option<u64>,
    /// The kernel sends each read and write of this handle and caches no writes, for one of these
    /// reasons: there is little room, so acknowledged writes could fail later; the ciphertext is
    /// empty, so reads and writes fail until the file is truncated; or the handle appends, and
    /// other daemons may append too.
    pub direct: bool,
}

/// How long the kernel may keep what it was told while other daemons have the vault open too, if it
/// is not told to drop it.
pub const LEASED: Duration = Duration::from_secs(4);

/// What [`Vault::caching`](crate::vault::Vault::caching) returns of a share that one daemon alone
/// has open: its kernel may always cache.
pub const ALONE: u64 = 1;

/// What the kernel must drop of a node.
#[derive(Clone, Debug)]
pub enum Forget {
    /// Its attributes: the kernel asks before the next write.
    Attributes,
    /// Its attributes, before the call returns.
    Known,
    /// Its attributes, before the call returns, and soon its pages, also dirty ones.
    Pages,
    /// All names of the mount, before the call returns.
    Names,
    /// A name in this directory.
    Name {
        /// The name.
        name: Box<[u8]>,
        /// Gets a message once it is dropped.
        done: SyncSender<()>,
    },
    /// Nothing more. Gets a message once everything before is dropped.
    Done(SyncSender<()>),
}

/// Effect of `fallocate` on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Reserves space.
    Allocate {
        /// The size does not change, even if the range goes beyond it.
        keep_size: bool,
    },
    /// Punches a hole; the size does not change.
    PunchHole,
    /// Writes zeros.
    ZeroRange {
        /// The size does not change, even if the range goes beyond it.
        keep_size: bool,
    },
}

/// A request of a program for a lock on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// Owner of the lock, as the kernel names it. An owner's locks do not exclude each other.
    pub owner: u64,
    /// The lock to take; `None` removes what the owner has of the range.
    pub lock: Option<Lock>,
    /// The range of a lock of `fcntl`.
    pub span: Span,
    /// A lock of `flock`, which is on the whole file and of another kind.
    pub whole: bool,
}

/// How `setxattr` treats an existing or a missing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Sets it in both cases.
    Any,
    /// Fails with `EEXIST` if it exists.
    Create,
    /// Fails with `ENODATA` if it does not exist.
    Replace,
}

/// Progress of the creation of a share, or of a pass over it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareProgress {
    /// Files done.
    pub files: u64,
    /// Bytes done.
    pub bytes: u64,
    /// Total number of files.
    pub files_total: u64,
    /// Total number of bytes.
    pub bytes_total: u64,
    /// Files and directories that were skipped for lack of permission.
    pub unread: u64,
}

/// Something in a vault that its user may want to know at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody else has added members to a share; their names.
    NewMembers(Vec<String>),
    /// The membership of a share was changed in two conflicting ways.
    Forked,
    /// This many files and directories are older than they were, gone, or cannot be compared.
    RolledBack(usize),
    /// There is no room for something that was written.
    Full,
}

/// Receives the events of a vault, from any thread.
#[derive(Clone, Default)]
pub struct Events(Option<Arc<dyn Fn(Event) + Send + Sync>>);

impl Events {
    /// Calls `receive` for each event. It must not use the vault.
    pub fn new(receive: impl Fn(Event) + Send + Sync + 'static) -> Events {
        Events(Some(Arc::new(receive)))
    }

    pub(in crate::vault) fn tell(&self, event: Event) {
        if let Some(receive) = &self.0 {
            receive(event);
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

/// When a program last used the vault. Background work gives way to programs.
#[derive(Clone, Debug)]
pub struct Usage(Arc<AtomicU64>);

impl Default for Usage {
    fn default() -> Usage {
        Usage(Arc::new(AtomicU64::new(millis(Usage::now()))))
    }
}

impl Usage {
    /// Resolution of the time of the last request.
    pub const GRAIN: Duration = Duration::from_millis(100);

    /// Records a request. All threads of a busy mount share the word, so it is written rarely.
    pub fn mark(&self) {
        let now = millis(Usage::now());
        if now.saturating_sub(self.0.load(Ordering::Relaxed)) >= Usage::GRAIN.as_millis() as u64 {
            self.0.store(now, Ordering::Relaxed);
        }
    }

    /// Returns the time since the last request, up to [`Usage::GRAIN`] too long.
    pub fn idle(&self) -> Duration {
        Usage::now().saturating_sub(self.last())
    }

    /// Returns the time of the last request, on the clock of [`Usage::now`].
    pub fn last(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }

    /// Returns the time since the machine was started, including suspension.
    pub fn now() -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_ends_the_idle_time() {
        let usage = Usage(Arc::new(AtomicU64::new(0)));
        assert_eq!(usage.last(), Duration::ZERO);
        let other = usage.clone();
        other.mark();
        let last = usage.last();
        assert!(last > Duration::ZERO && usage.idle() < Usage::now());
        usage.0.store(millis(Usage::now()) - 5000, Ordering::Relaxed);
        assert!(usage.idle() >= Duration::from_secs(5));
        usage.mark();
        assert!(usage.last() >= last, "the next request counts again");
    }
}
