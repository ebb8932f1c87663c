//! What the kernel leaves to a filesystem of suid, sgid and ACLs under `FUSE_HANDLE_KILLPRIV_V2`, the same for every transport.

use super::notify::Notifier;
use super::ops::{NodeId, Operations, Result};
use super::wire::Device;

/// The extended attribute under which the kernel sets the ACL of an object.
const POSIX_ACL_ACCESS: &[u8] = b"system.posix_acl_access";

/// Who makes a request.
#[derive(Clone, Copy, Debug)]
pub struct Requester {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process, as the daemon sees it; 0 where it does not.
    pub pid: u32,
}

/// Does an operation that clears suid and sgid where `kill` says so. The kernel knows that it asked for it, and keeps the mode that it
/// has cached all the same; so it is told to ask again.
///
/// # Errors
/// Those of the operation.
pub fn killing<T>(ops: &dyn Operations, device: &Device, node: NodeId, kill: bool, operation: impl FnOnce() -> Result<T>) -> Result<T> {
    let had_bits = kill && ops.getattr(node)?.perm & 0o6000 != 0;
    let result = operation();
    if had_bits && let Err(error) = Notifier::new(device.clone()).inval_inode(node, -1, 0) {
        tracing::warn!(%error, "the kernel may show a mode from before a write");
    }
    result
}

/// Whether setting the extended attribute `name` takes sgid away: where it is the ACL, and who sets it stands outside the group. The
/// kernel says so only in an extension of the request (`FUSE_SETXATTR_EXT`), which `fuser` 0.18 cannot parse.
///
/// # Errors
/// Those of `getattr`.
pub fn kills_sgid(ops: &dyn Operations, node: NodeId, name: &[u8], by: Requester) -> Result<bool> {
    if name != POSIX_ACL_ACCESS || by.uid == 0 {
        return Ok(false);
    }
    let group = ops.getattr(node)?.gid;
    Ok(by.gid != group && !has_group(by.pid, group))
}

/// Whether `group` is a supplementary group of a process; false where that cannot be told (it is of another PID namespace, or gone).
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
