//! Who may do what, on a mount on which the kernel leaves that to us.
//!
//! With `default_permissions` the kernel decides, from attributes that it must ask for anew after each change in a directory: one request
//! more for each file that is made, renamed or removed. A mount that nobody but its user may enter does without.
//!
//! Rules that hold here
//! * The answers are Linux's (`generic_permission`, `setattr_prepare` and `xattr_permission`; acl(5) for lists), by owner, mode, ACL and the
//!   groups of the process. But user 0 passes whatever his capabilities are, and those of others count for nothing.
//! * What the kernel decides in either case is not decided here: suid, flags of the mount, attributes in `trusted.` and `security.`. Nor what
//!   is done through a handle: that was decided when it was opened. The kernel does not see that a directory is sticky, so its
//!   `fs.protected_symlinks`, `_regular` and `_fifos` do not hold.
//! * The kernel walks through names that it knows without asking. So it may keep names only where all who may enter are one user, and
//!   forgets them when that user may no longer search a directory.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::acl::{self, Acl};
use super::notify::Notifier;
use super::ops::{Attr, Errno, NodeId, OpenRequest, Operations, Result, SetAttr};
use super::privilege::Requester;
use super::request::Call;
use super::serve::{Permissions, ServeOptions};
use crate::backing::{Kind, SetTime, Timestamp};

/// Bits of a permission, as in a mode.
const READ: u32 = 4;
const WRITE: u32 = 2;
/// To execute a file, to search a directory.
const EXEC: u32 = 1;
/// To make, rename and remove entries of a directory.
const CHANGE: u32 = WRITE | EXEC;

/// In a mode: only the owner of an entry, or of the directory, takes it away.
const STICKY: u32 = 0o1000;

/// In the flags of OPEN: the file is to be run (`FMODE_EXEC` of the kernel).
const OPEN_TO_RUN: i32 = 0x20;
const EACCES: Errno = Errno::new(libc::EACCES);
const EPERM: Errno = Errno::new(libc::EPERM);

/// Seconds that may pass between the kernel's and our look at the clock.
const NOW_SECONDS: u64 = 10;

/// Directories of which it is remembered that they may be searched.
const REMEMBERED: usize = 64;

/// Lets calls pass, or says why not.
pub struct Gate {
    ops: Arc<dyn Operations>,
    kernel: Notifier,
    /// False where the kernel decides.
    decides: bool,
    /// Nobody changes modes but through us.
    remembers: bool,
    searchable: Mutex<Searchable>,
}

/// Directories that were found to be searchable, and by whom.
struct Searchable {
    /// Counts what may have changed an answer.
    changes: u64,
    known: [Option<(NodeId, u32, u32)>; REMEMBERED],
}

impl Gate {
    /// Decides on calls of `ops` where `options` say that it is for us to do; `kernel` is told of what it must forget.
    pub fn new(ops: Arc<dyn Operations>, options: &ServeOptions, kernel: Notifier) -> Gate {
        let decides = options.permissions == Permissions::Daemon;
        let searchable = Mutex::new(Searchable { changes: 0, known: [None; REMEMBERED] });
        Gate { ops, kernel, decides, remembers: !options.attr_ttl.is_zero(), searchable }
    }

    /// Whether `by` may do `call` to `node`.
    ///
    /// # Errors
    /// `EACCES` or `EPERM` where he may not; those of `getattr`.
    pub fn check(&self, by: Requester, node: NodeId, call: &Call<'_>) -> Result<()> {
        if !self.decides {
            return Ok(());
        }
        match *call {
            // Even user 0 runs nothing that nobody may run; what he opens to run, the kernel looks at itself.
            Call::Access { mask } if by.uid != 0 || mask as u32 & EXEC != 0 => return self.may(by, node, mask as u32 & (READ | CHANGE)),
            _ if by.uid == 0 => {}
            Call::Open { flags, .. } => return self.may(by, node, wanted_of(flags)),
            Call::Lookup { .. } => return self.may(by, node, EXEC),
            Call::OpenDir => return self.may(by, node, READ),
            Call::MkNod { .. } | Call::MkDir { .. } | Call::Symlink { .. } | Call::Create { .. } => return self.may(by, node, CHANGE),
            Call::Unlink { name } | Call::RmDir { name } => return self.may_take(by, node, name, false),
            Call::Rename { name, new_parent, new_name, flags } => {
                let moves = new_parent != node;
                self.may_take(by, node, name, moves)?;
                self.may_take(by, new_parent, new_name, moves && flags & libc::RENAME_EXCHANGE != 0)?;
            }
            Call::Link { node: linked, .. } => {
                self.may(by, node, CHANGE)?;
                let attr = self.ops.getattr(linked)?;
                // As with `fs.protected_hardlinks`, which distributions set.
                if by.uid != attr.uid && (attr.kind != Kind::File || !self.allows(by, &attr, READ | WRITE)?) {
                    return Err(EPERM);
                }
            }
            Call::SetAttr { ref set, opened } => return self.may_set(by, &self.ops.getattr(node)?, set, opened),
            Call::GetXattr { name, .. } if is_users(name) => return self.may(by, node, READ),
            Call::SetXattr { name, .. } | Call::RemoveXattr { name } if is_users(name) => {
                let attr = self.ops.getattr(node)?;
                if attr.kind == Kind::Dir && attr.perm & STICKY != 0 && by.uid != attr.uid {
                    return Err(EPERM);
                }
                return if self.allows(by, &attr, WRITE)? { Ok(()) } else { Err(EACCES) };
            }
            Call::SetXattr { name, .. } | Call::RemoveXattr { name } if acl::is_acl(name) => {
                return if self.ops.getattr(node)?.uid == by.uid { Ok(()) } else { Err(EPERM) };
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether a listing of `dir` may make its entries known to the kernel, which `by` would look up otherwise.
    pub fn may_know_entries(&self, by: Requester, dir: NodeId) -> bool {
        !self.decides || by.uid == 0 || self.may(by, dir, EXEC).is_ok()
    }

    /// Makes a file with `create`. One that exists was not asked about: the kernel looks the name up again and opens it.
    ///
    /// # Errors
    /// Those of `create`; `ESTALE` for a file that exists.
    pub fn creating<T>(&self, asked: OpenRequest, create: impl FnOnce(OpenRequest) -> Result<T>) -> Result<T> {
        if !self.decides || asked.exclusive {
            return create(asked);
        }
        create(OpenRequest { exclusive: true, ..asked }).map_err(|error| if error == Errno::EEXIST { Errno::ESTALE } else { error })
    }

    /// After a change of attributes that `by` made, and that left `attr`.
    pub fn changed(&self, by: Requester, set: &SetAttr, attr: &Attr) {
        if self.decides && (set.perm.is_some() || set.uid.is_some() || set.gid.is_some()) {
            self.forget(by, attr);
        }
    }

    /// After a change of the extended attribute `name` of `node`, which `by` made. An ACL is part of the mode, of which the kernel, which
    /// knows nothing of ACLs here, must be told.
    pub fn changed_xattr(&self, by: Requester, node: NodeId, name: &[u8]) {
        if !self.decides || !acl::is_acl(name) {
            return;
        }
        if let Ok(attr) = self.ops.getattr(node) {
            self.forget(by, &attr);
        }
        if let Err(error) = self.kernel.inval_inode(node, -1, 0) {
            tracing::warn!(%error, "the kernel may show a mode from before a change of an access control list");
        }
    }

    /// Forgets who may search, and has the kernel forget its names if `by` may no longer search this directory.
    fn forget(&self, by: Requester, attr: &Attr) {
        if attr.kind != Kind::Dir {
            return;
        }
        {
            let mut searchable = self.searchable.lock();
            searchable.changes += 1;
            searchable.known = [None; REMEMBERED];
        }
        if !self.allows(by, attr, EXEC).unwrap_or(false)
            && let Err(error) = self.kernel.forget_names()
        {
            tracing::debug!(%error, "the kernel goes on showing names that it knows in a directory that may no longer be searched");
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
        if !self.allows(by, &attr, want)? {
            return Err(EACCES);
        }
        // What hangs on the groups of the process says nothing of the next one.
        if self.remembers && want & EXEC != 0 && attr.kind == Kind::Dir && by.uid == attr.uid {
            let mut searchable = self.searchable.lock();
            if searchable.changes == changes {
                searchable.known[slot] = entry;
            }
        }
        Ok(())
    }

    fn allows(&self, by: Requester, attr: &Attr, want: u32) -> Result<bool> {
        if by.uid == 0 {
            return Ok(want & EXEC == 0 || attr.kind == Kind::Dir || attr.perm & 0o111 != 0);
        }
        let has = |bits: u32| bits & want == want;
        if by.uid == attr.uid {
            return Ok(has(attr.perm >> 6));
        }
        // With a list the bits of the group are its mask: where there are none, it gives nothing.
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
            Err(error) if error == Errno::new(libc::ENODATA) || error == Errno::EOPNOTSUPP => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether `by` may take the name `name` out of `parent`, or put another object in its place. `moves`: the object gets another parent,
    /// which for a directory is a change of its own `..`.
    fn may_take(&self, by: Requester, parent: NodeId, name: &[u8], moves: bool) -> Result<()> {
        let dir = self.ops.getattr(parent)?;
        if !self.allows(by, &dir, CHANGE)? {
            return Err(EACCES);
        }
        let is_sticky = dir.perm & STICKY != 0 && by.uid != dir.uid;
        if !is_sticky && !moves {
            return Ok(());
        }
        let attr = match self.ops.lookup(parent, name) {
            Ok(attr) => attr,
            Err(Errno::ENOENT) => return Ok(()), // that is for the operation to say
            Err(error) => return Err(error),
        };
        self.ops.forget(attr.node, 1);
        if is_sticky && by.uid != attr.uid {
            return Err(EPERM);
        }
        if moves && attr.kind == Kind::Dir && !self.allows(by, &attr, WRITE)? { Err(EACCES) } else { Ok(()) }
    }

    fn may_set(&self, by: Requester, attr: &Attr, set: &SetAttr, opened: bool) -> Result<()> {
        let owner = by.uid == attr.uid;
        let gives_away = set.uid.is_some_and(|uid| !owner || uid != attr.uid);
        let joins = set.gid.is_some_and(|gid| !owner || gid != attr.gid && !by.is_of(gid));
        // With a writeback cache the kernel keeps the time of modification of a file, and sends it alone in the name of whoever writes,
        // closes or renames it: through a handle, or as it is already. With `UTIME_NOW` that time comes as any other.
        let by_kernel = opened || set.size.is_some() || set.mtime == SetTime::At(attr.mtime);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let is_now = |time: Timestamp| time.secs.abs_diff(now as i64) <= NOW_SECONDS;
        let sets_times = match (set.atime, set.mtime) {
            (SetTime::At(_), _) => true,
            (SetTime::Omit, SetTime::At(_)) => attr.kind != Kind::File || !by_kernel,
            (SetTime::Now, SetTime::At(time)) => attr.kind != Kind::File || !is_now(time),
            // One of the two alone: `utimensat` wants the owner, for both it is enough to be allowed to write.
            (SetTime::Now, SetTime::Omit) | (SetTime::Omit, SetTime::Now) => set.size.is_none(),
            _ => false,
        };
        if gives_away || joins || (set.perm.is_some() || sets_times) && !owner {
            return Err(EPERM);
        }
        let touches = (set.atime == SetTime::Now || set.mtime == SetTime::Now) && !owner;
        let resizes = set.size.is_some() && !opened;
        if (touches || resizes) && !self.allows(by, attr, WRITE)? { Err(EACCES) } else { Ok(()) }
    }
}

/// What the flags of OPEN ask for.
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
