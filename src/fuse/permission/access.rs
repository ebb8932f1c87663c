//! Permission checks in a mount in which the kernel leaves them to the daemon.
//!
//! With `default_permissions` the kernel checks permissions itself, by attributes that it requests
//! again after each change in a directory: one more request for each file that is created, renamed
//! or removed. A mount by root that no other user may enter avoids that.
//!
//! Rules that hold here
//! * The results are those of Linux (`generic_permission`, `setattr_prepare` and
//!   `xattr_permission`; acl(5) for ACLs), by owner, mode, ACL and the groups of the process. The
//!   exceptions: user 0 always passes, and capabilities of other users do not count.
//! * Checks that the kernel makes in either case are not repeated here: suid, mount flags,
//!   attributes in `trusted.` and `security.`. Nor are operations on a handle checked: that was
//!   done at its open. The kernel does not see that a directory is sticky, so its
//!   `fs.protected_symlinks`, `_regular` and `_fifos` have no effect.
//! * For some operations the kernel sends no request: steps to `.` and `..`, opening FIFOs, sockets
//!   and devices, watching directories.
//! * The kernel walks through cached names without a request. So it may cache names only if a
//!   single user may enter the mount, and drops them when that user may no longer search a
//!   directory.
//! * The kernel unmounts whatever is mounted on a name that it drops, or whose lookup is refused.
//!   So by default the daemon checks only in a mount that user 0 alone may enter: there no lookup is
//!   refused.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::fuse::ops::{Attr, Errno, NodeId, OpenRequest, Operations, Result, SetAttr};
use crate::fuse::permission::acl::{self, Acl};
use crate::fuse::permission::privilege::Requester;
use crate::fuse::protocol::notify::Notifier;
use crate::fuse::protocol::request::Call;
use crate::fuse::settings::{Permissions, ServeOptions};
use crate::store::{Kind, SetTime, Timestamp};

/// Permission bits, as in a mode.
const READ: u32 = 4;
const WRITE: u32 = 2;
/// To execute a file, to search a directory.
const EXEC: u32 = 1;
/// To create, rename and remove entries of a directory.
const CHANGE: u32 = WRITE | EXEC;

/// Sticky bit of a directory: only the owner of an entry, or of the directory, can remove the
/// entry.
const STICKY: u32 = 0o1000;
const SGID: u32 = 0o2000;

/// Flag of OPEN: the file is opened for execution (`FMODE_EXEC` of the kernel).
const OPEN_TO_RUN: i32 = 0x20;
const EACCES: Errno = Errno::new(libc::EACCES);
const EPERM: Errno = Errno::new(libc::EPERM);

/// Maximum difference in seconds between the kernel's reading of the clock and the daemon's.
const NOW_SECONDS: u64 = 10;

/// Maximum number of directories that are remembered as searchable.
const REMEMBERED: usize = 64;

/// Checks the permission for calls.
pub struct Gate {
    ops: Arc<dyn Operations>,
    kernel: Notifier,
    /// False if the kernel checks permissions.
    decides: bool,
    /// Modes are changed only through this mount.
    remembers: bool,
    /// The kernel walks through cached names without a request.
    knows_names: bool,
    /// The kernel maintains the times of files, and sends them.
    keeps_times: bool,
    searchable: Mutex<Searchable>,
}

/// Directories that were found to be searchable, each with the user and group.
struct Searchable {
    /// Counts the changes that may invalidate a result.
    changes: u64,
    known: [Option<(NodeId, u32, u32)>; REMEMBERED],
}

impl Gate {
    /// Returns the checks for calls of `ops`, if `options` leave them to the daemon. `kernel` is
    /// notified of names and attributes that it must drop.
    pub fn new(ops: Arc<dyn Operations>, options: &ServeOptions, kernel: Notifier) -> Gate {
        let decides = options.permissions == Permissions::Daemon;
        let searchable = Mutex::new(Searchable { changes: 0, known: [None; REMEMBERED] });
        let (remembers, knows_names) = (!options.attr_ttl.is_zero(), !options.entry_ttl.is_zero());
        Gate {
            ops,
            kernel,
            decides,
            remembers,
            knows_names,
            keeps_times: options.writeback,
            searchable,
        }
    }

    /// Checks whether `by` may do `call` to `node`.
    ///
    /// # Errors
    /// `EACCES` or `EPERM` if not permitted; those of `getattr`.
    pub fn check(&self, by: Requester, node: NodeId, call: &Call<'_>) -> Result<()> {
        if !self.decides {
            return Ok(());
        }
        match *call {
            // Even user 0 cannot execute a file without any execute bit. At an open for execution
            // the kernel checks that itself.
            Call::Access { mask } if by.uid != 0 || mask as u32 & EXEC != 0 => {
                self.may(by, node, mask as u32 & (READ | CHANGE))
            }
            _ if by.uid == 0 => Ok(()),
            Call::Open { flags, .. } => self.may(by, node, wanted_of(flags)),
            // The kernel looks for a file handle, which only a privileged process may open.
            Call::Lookup { name: b"." | b".." } => Ok(()),
            Call::Lookup { .. } => self.may(by, node, EXEC),
            Call::OpenDir => self.may(by, node, READ),
            Call::MkNod { .. }
            | Call::MkDir { .. }
            | Call::Symlink { .. }
            | Call::Create { .. } => self.may(by, node, CHANGE),
            Call::Unlink { name } | Call::RmDir { name } => {
                self.may_take(by, node, name, false).map(drop)
            }
            Call::Rename { name, new_parent, new_name, flags } => {
                let moves = new_parent != node;
                let moved = self.may_take(by, node, name, moves)?;
                let back = self.may_take(
                    by,
                    new_parent,
                    new_name,
                    moves && flags & libc::RENAME_EXCHANGE != 0,
                )?;
                // A directory that gets another parent has its own `..` changed.
                let mut directories =
                    [moved, back].into_iter().flatten().filter(|attr| attr.kind == Kind::Dir);
                directories.try_for_each(|attr| self.must(by, &attr, WRITE, EACCES))
            }
            Call::Link { node: linked, .. } => {
                self.may(by, node, CHANGE)?;
                let attr = self.ops.getattr(linked)?;
                // As with `fs.protected_hardlinks`, which distributions set.
                match attr.kind {
                    _ if by.uid == attr.uid => Ok(()),
                    Kind::File => self.must(by, &attr, READ | WRITE, EPERM),
                    _ => Err(EPERM),
                }
            }
            Call::SetAttr { ref set, opened } => {
                self.may_set(by, &self.ops.getattr(node)?, set, opened)
            }
            Call::GetXattr { name, .. } if is_users(name) => self.may(by, node, READ),
            Call::SetXattr { name, .. } | Call::RemoveXattr { name } if is_users(name) => {
                let attr = self.ops.getattr(node)?;
                if attr.kind == Kind::Dir && attr.perm & STICKY != 0 && by.uid != attr.uid {
                    return Err(EPERM);
                }
                self.must(by, &attr, WRITE, EACCES)
            }
            Call::SetXattr { name, .. } | Call::RemoveXattr { name } if acl::is_acl(name) => {
                if self.ops.getattr(node)?.uid == by.uid { Ok(()) } else { Err(EPERM) }
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a listing of `dir` may include nodes for its entries: only if `by` could
    /// look them up.
    pub fn may_know_entries(&self, by: Requester, dir: NodeId) -> bool {
        !self.decides || by.uid == 0 || self.may(by, dir, EXEC).is_ok()
    }

    /// Creates a file with `create`. The permission for an existing file was not checked, so none
    /// is opened: after `ESTALE` the kernel looks the name up again and opens the file.
    ///
    /// # Errors
    /// Those of `create`; `ESTALE` if the file exists.
    pub fn creating<T>(
        &self,
        asked: OpenRequest,
        create: impl FnOnce(OpenRequest) -> Result<T>,
    ) -> Result<T> {
        if !self.decides || asked.exclusive {
            return create(asked);
        }
        create(OpenRequest { exclusive: true, ..asked })
            .map_err(|error| if error == Errno::EEXIST { Errno::ESTALE } else { error })
    }

    /// Returns `set` without the changes that `by` may not make: a user outside the object's group
    /// cannot set sgid. The kernel clears sgid as well when it checks permissions.
    ///
    /// # Errors
    /// Those of `getattr`.
    pub fn given(&self, by: Requester, node: NodeId, set: SetAttr) -> Result<SetAttr> {
        match set.perm {
            Some(perm)
                if self.decides
                    && perm & SGID != 0
                    && by.is_outside(self.ops.getattr(node)?.gid) =>
            {
                Ok(SetAttr { perm: Some(perm & !SGID), ..set })
            }
            _ => Ok(set),
        }
    }

    /// Updates the state after `by` changed the attributes of `node` or tried to: a failed change
    /// may be partly done.
    pub fn changed(&self, by: Requester, node: NodeId, set: &SetAttr, outcome: &Result<Attr>) {
        if !self.decides || set.perm.is_none() && set.uid.is_none() && set.gid.is_none() {
            return;
        }
        match outcome {
            Ok(attr) => self.forget(by, attr),
            Err(_) => self.forget_node(by, node),
        }
    }

    /// Updates the state after `by` changed the extended attribute `name` of `node` or tried to. An
    /// ACL is part of the mode; the kernel does not handle ACLs on this mount, so it must be
    /// notified.
    pub fn changed_xattr(&self, by: Requester, node: NodeId, name: &[u8]) {
        if !self.decides || !acl::is_acl(name) {
            return;
        }
        self.forget_node(by, node);
        if let Err(error) = self.kernel.inval_inode(node, -1, 0) {
            tracing::warn!(%error, "the kernel may show a mode from before a change of an access control list");
        }
    }

    fn forget_node(&self, by: Requester, node: NodeId) {
        match self.ops.getattr(node) {
            Ok(attr) => self.forget(by, &attr),
            Err(_) => self.forget_searchable(),
        }
    }

    fn forget_searchable(&self) {
        let mut searchable = self.searchable.lock();
        searchable.changes += 1;
        searchable.known = [None; REMEMBERED];
    }

    /// Forgets which directories are searchable, and makes the kernel drop its names if `by` may no
    /// longer search this directory.
    fn forget(&self, by: Requester, attr: &Attr) {
        if attr.kind != Kind::Dir {
            return;
        }
        self.forget_searchable();
        if self.knows_names
            && !self.allows(by, attr, EXEC).unwrap_or(false)
            && let Err(error) = self.kernel.forget_names()
        {
            tracing::debug!(%error, "the kernel continues to show cached names of a directory that may no longer be searched");
        }
    }

    fn may(&self, by: Requester, node: NodeId, want: u32) -> Result<()> {
        let slot = (node as usize) % REMEMBERED;
        let entry = Some((node, by.uid, by.gid));
        let changes = {
            let searchable = self.searchable.lock();
            if want == EXEC && searchable.known[slot] == entry {
                return Ok(());
            }
            searchable.changes
        };
        let attr = self.ops.getattr(node)?;
        self.must(by, &attr, want, EACCES)?;
        // A result that depends on the groups of one process is not valid for the next one.
        if self.remembers && want & EXEC != 0 && attr.kind == Kind::Dir && by.uid == attr.uid {
            let mut searchable = self.searchable.lock();
            if searchable.changes == changes {
                searchable.known[slot] = entry;
            }
        }
        Ok(())
    }

    fn must(&self, by: Requester, attr: &Attr, want: u32, refusal: Errno) -> Result<()> {
        if self.allows(by, attr, want)? { Ok(()) } else { Err(refusal) }
    }

    fn allows(&self, by: Requester, attr: &Attr, want: u32) -> Result<bool> {
        if by.uid == 0 {
            return Ok(want & EXEC == 0 || attr.kind == Kind::Dir || attr.perm & 0o111 != 0);
        }
        let has = |bits: u32| bits & want == want;
        if by.uid == attr.uid {
            return Ok(has(attr.perm >> 6));
        }
        // With an ACL the group bits are its mask: if none is set, the ACL grants nothing.
        if attr.perm & 0o070 != 0
            && let Some(acl) = self.acl(attr.node)?
        {
            return Ok(acl.allows(by.uid, attr.gid, |group| by.is_of(group), want));
        }
        let (group, other) = (attr.perm >> 3, attr.perm);
        Ok(match (has(group), has(other)) {
            (of_group, of_others) if of_group == of_others => of_group,
            (of_group, of_others) => {
                if by.is_of(attr.gid) {
                    of_group
                } else {
                    of_others
                }
            }
        })
    }

    fn acl(&self, node: NodeId) -> Result<Option<Acl>> {
        match self.ops.getxattr(node, acl::ACCESS) {
            Ok(value) => Acl::parse(&value).map(Some).ok_or(Errno::EIO),
            Err(error) if error == Errno::new(libc::ENODATA) || error == Errno::EOPNOTSUPP => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks whether `by` may remove the name `name` from `parent`, or replace its object. If it
    /// `moves` to another parent, the object is returned.
    fn may_take(
        &self,
        by: Requester,
        parent: NodeId,
        name: &[u8],
        moves: bool,
    ) -> Result<Option<Attr>> {
        let dir = self.ops.getattr(parent)?;
        self.must(by, &dir, CHANGE, EACCES)?;
        let is_sticky = dir.perm & STICKY != 0 && by.uid != dir.uid;
        if !is_sticky && !moves {
            return Ok(None);
        }
        let attr = match self.ops.lookup(parent, name) {
            Ok(attr) => attr,
            Err(Errno::ENOENT) => return Ok(None), // the operation reports that
            Err(error) => return Err(error),
        };
        self.ops.forget(attr.node, 1);
        if is_sticky && by.uid != attr.uid {
            return Err(EPERM);
        }
        Ok(moves.then_some(attr))
    }

    fn may_set(&self, by: Requester, attr: &Attr, set: &SetAttr, opened: bool) -> Result<()> {
        let owner = by.uid == attr.uid;
        let gives_away = set.uid.is_some_and(|uid| !owner || uid != attr.uid);
        let joins = set.gid.is_some_and(|gid| !owner || gid != attr.gid && !by.is_of(gid));
        // With a writeback cache the kernel maintains the modification time of a file. It sends
        // that time alone, on behalf of any process that writes, closes or renames the file:
        // through a handle, or unchanged. `UTIME_NOW` arrives as a time as well; the access time
        // shows which was requested.
        let kept = match set.mtime {
            SetTime::At(time) if self.keeps_times && attr.kind == Kind::File => Some(time),
            _ => None,
        };
        let touches =
            set.atime == SetTime::Now && (set.mtime == SetTime::Now || kept.is_some_and(is_now));
        let by_kernel = set.size.is_some() || kept.is_some_and(|time| opened || time == attr.mtime);
        let sets_times =
            !touches && (set.atime != SetTime::Omit || set.mtime != SetTime::Omit && !by_kernel);
        if gives_away || joins || (set.perm.is_some() || sets_times) && !owner {
            return Err(EPERM);
        }
        let resizes = set.size.is_some() && !opened;
        if touches && !owner || resizes { self.must(by, attr, WRITE, EACCES) } else { Ok(()) }
    }
}

/// Returns the permissions that the flags of OPEN require.
fn wanted_of(flags: i32) -> u32 {
    let access = match flags & libc::O_ACCMODE {
        libc::O_RDONLY if flags & OPEN_TO_RUN != 0 => EXEC,
        libc::O_RDONLY => READ,
        libc::O_WRONLY => WRITE,
        _ => READ | WRITE,
    };
    if flags & libc::O_TRUNC != 0 { access | WRITE } else { access }
}

fn is_users(name: &[u8]) -> bool {
    name.starts_with(b"user.")
}

/// Returns whether a time is the present, within the delay between the kernel's reading of the
/// clock and the daemon's.
fn is_now(time: Timestamp) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    time.secs.abs_diff(now as i64) <= NOW_SECONDS
}
