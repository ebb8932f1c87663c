//! What this user may not do in the store of a vault, and how its owner can change that.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::Failure;
use crate::cli::display::{path as shown, word};

/// Returns the first path at which this user lacks a permission, and which one: a directory above
/// `path` that they cannot search, else `path` itself or its nearest ancestor that exists.
fn missing(path: &Path) -> Option<(PathBuf, &'static str)> {
    let lacks = |path: &Path, access| {
        accessat(CWD, path, access, AtFlags::EACCESS) == Err(rustix::io::Errno::ACCESS)
    };
    let path = &followed(path);
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.reverse();
    for dir in above {
        if !dir.as_os_str().is_empty() && dir.is_dir() && lacks(dir, Access::EXEC_OK) {
            return Some((dir.to_owned(), "search"));
        }
    }
    let there = path.ancestors().find(|path| path.symlink_metadata().is_ok())?;
    let names = [
        (Access::EXEC_OK, "search", there.is_dir()),
        (Access::READ_OK, "read", true),
        (Access::WRITE_OK, "write", true),
    ];
    let (_, name, _) =
        names.into_iter().find(|(access, _, counts)| *counts && lacks(there, *access))?;
    Some((there.to_owned(), name))
}

/// Returns the path without symbolic links, as far as they can be followed: `canonicalize` fails
/// where a permission is missing.
fn followed(path: &Path) -> PathBuf {
    /// As many links as the kernel follows in one path.
    const LINKS_MAX: usize = 40;
    let mut path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for _ in 0..LINKS_MAX {
        let mut above: Vec<&Path> = path.ancestors().collect();
        above.reverse();
        let link = above.into_iter().find_map(|link| Some((link, link.read_link().ok()?)));
        let Some((link, target)) = link else { break };
        let rest = path.strip_prefix(link).expect("it is an ancestor");
        let parent = link.parent().unwrap_or(Path::new("/"));
        let next = parent.join(target);
        path = if rest.as_os_str().is_empty() { next } else { next.join(rest) };
    }
    path
}

/// Adds the missing permission at `path` to a failure with EACCES, and two ways by which the owner
/// of the `store` can grant it.
pub fn explain(failure: Failure, store: &Path, path: &Path) -> Failure {
    let Some((place, permission)) = missing(path) else { return failure };
    let owner = place.metadata().map_or_else(|_| "its owner".to_owned(), |stat| name(stat.uid()));
    let user = name(rustix::process::geteuid().as_raw());
    let dir = word(store);
    let details = vec![format!("{user} has no {permission} permission on {}", shown(&place))];
    let hint = format!(
        "{owner} can grant it, either to a group: chgrp -R GROUP {dir} && chmod -R g+rwX {dir} && find {dir} -type d -exec chmod g+s {{}} +, or by a default ACL: setfacl -R -m u:{user}:rwX,d:u:{user}:rwX {dir}"
    );
    Failure { details, ..failure }.hint(hint)
}

/// Returns whether a call was refused for lack of a permission.
pub fn is_refusal(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EACCES)
}

/// Returns the name of a user, or their number.
fn name(uid: u32) -> String {
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| uid.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn root_lacks_nothing_others_the_first_missing_permission() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        fs::create_dir(&store).unwrap();
        fs::write(store.join("file"), "").unwrap();
        fs::set_permissions(store.join("file"), fs::Permissions::from_mode(0o000)).unwrap();
        let found = missing(&store.join("file"));
        if rustix::process::geteuid().is_root() {
            return assert_eq!(found, None);
        }
        assert_eq!(found, Some((store.join("file"), "read")));
        fs::set_permissions(&store, fs::Permissions::from_mode(0o500)).unwrap();
        assert_eq!(missing(&store.join("new")), Some((store.clone(), "write")));
        fs::set_permissions(&store, fs::Permissions::from_mode(0o400)).unwrap();
        assert_eq!(missing(&store.join("file")), Some((store, "search")));
    }

    /// A link to a directory below one that cannot be searched was reported as unreadable itself.
    #[test]
    fn links_are_followed_as_far_as_possible() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("store/deep")).unwrap();
        symlink("store", root.join("link")).unwrap();
        symlink(root.join("link/deep"), root.join("far")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        assert_eq!(followed(&root.join("far/new")), root.join("store/deep/new"));
        assert_eq!(followed(&root.join("link")), root.join("store"));
        assert_eq!(followed(&root.join("none/new")), root.join("none/new"));
        assert_eq!(followed(&root.join("loop")), root.join("loop"));
    }

    #[test]
    fn users_are_named() {
        assert_eq!(name(0), "root");
        assert_eq!(name(4_000_000_000), "4000000000");
    }
}
