//! Clearing of suid and sgid that the kernel leaves to the filesystem under
//! `FUSE_HANDLE_KILLPRIV_V2`, for every transport.

use crate::fuse::ops::{NodeId, Operations, Result, SetAttr};
use crate::fuse::permission::acl;
use crate::fuse::protocol::notify::Notifier;
use crate::fuse::protocol::wire::Device;
use crate::store::Kind;

/// The caller of a request.
#[derive(Clone, Copy, Debug)]
pub struct Requester {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process, as the daemon sees it; 0 if it does not.
    pub pid: u32,
}

impl Requester {
    /// Returns whether a group is the primary or a supplementary group of the caller.
    pub fn is_of(self, group: u32) -> bool {
        self.gid == group || has_group(self.pid, group)
    }

    /// Returns whether a file's group is none of the caller's groups. Always false for root.
    pub fn is_outside(self, group: u32) -> bool {
        self.uid != 0 && !self.is_of(group)
    }
}

/// Returns whether sgid is set without execution by the group, which once meant mandatory locks. The
/// operations do not clear such a bit, as `linux/fuse.h` requires.
fn has_bare_sgid(perm: u32) -> bool {
    perm & 0o2010 == 0o2000
}

/// Runs an operation that clears set-user-ID and set-group-ID bits if `by` lacks the privilege to
/// keep them. The operation itself does not clear a bare sgid. Linux (since 6.2) clears it too if the
/// caller is not in the group, so this function does that first. The kernel keeps the mode that it
/// has cached, so it is notified to request the mode again.
///
/// # Errors
/// Those of the operation.
pub fn killing<T>(
    ops: &dyn Operations,
    device: &Device,
    node: NodeId,
    by: Option<Requester>,
    operation: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let Some(by) = by else { return operation() };
    let attr = ops.getattr(node)?;
    if has_bare_sgid(attr.perm) && by.is_outside(attr.gid) {
        ops.clear_sgid(node)?;
    }
    let result = operation();
    if attr.perm & 0o6000 != 0
        && let Err(error) = Notifier::new(device.clone()).inval_inode(node, -1, 0)
    {
        tracing::warn!(%error, "the kernel may show a mode from before a write");
    }
    result
}

/// Clears a bare sgid, as in [`killing`], before a change of attributes that clears suid and sgid.
/// The answer to that change contains the new mode.
///
/// # Errors
/// Those of `getattr` and of the change.
pub fn before_setattr(
    ops: &dyn Operations,
    node: NodeId,
    set: &SetAttr,
    by: Requester,
) -> Result<()> {
    if set.kill_suid_sgid {
        let attr = ops.getattr(node)?;
        if attr.kind != Kind::Dir && has_bare_sgid(attr.perm) && by.is_outside(attr.gid) {
            ops.clear_sgid(node)?;
        }
    }
    Ok(())
}

/// Returns whether setting the extended attribute `name` clears sgid: if it is the ACL and the caller
/// is not in the file's group. The kernel reports this only in an extension of the request
/// (`FUSE_SETXATTR_EXT`), which `fuser` 0.18 cannot parse.
///
/// # Errors
/// Those of `getattr`.
pub fn kills_sgid(ops: &dyn Operations, node: NodeId, name: &[u8], by: Requester) -> Result<bool> {
    if name != acl::ACCESS || by.uid == 0 {
        return Ok(false);
    }
    Ok(by.is_outside(ops.getattr(node)?.gid))
}

/// Returns whether `group` is a supplementary group of a process; false if the process cannot be
/// seen, because it is in another PID namespace or has ended.
fn has_group(pid: u32, group: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_ascii_whitespace().any(|word| word.parse() == Ok(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_process_are_read_from_proc() {
        let groups = rustix::process::getgroups().unwrap();
        let me = std::process::id();
        assert!(groups.iter().all(|group| has_group(me, group.as_raw())));
        assert!(!has_group(me, 0x7fff_fff0));
        assert!(!has_group(0, 0));
    }
}
