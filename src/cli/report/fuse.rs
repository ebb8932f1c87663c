//! Failures of mounting and unmounting.

use std::path::{Path, PathBuf};

use super::{Failure, exit_of_io};
use crate::cli::display::{Shown, path as shown};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::fuse::MountError;
use crate::fuse::mounts::Holder;
use crate::fuse::options::OptionError;

impl From<OptionError> for Failure {
    fn from(error: OptionError) -> Failure {
        Failure::new(Exit::Usage, error).hint("`kithfs help mount` lists the options")
    }
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Failure {
        match error {
            MountError::NoDevice(source) => Error::NoFuseDevice(source).into(),
            MountError::NoFusermount => Error::NoFusermount.into(),
            MountError::MountPoint { path, source } => Error::MountPoint { path, source }.into(),
            MountError::NotADirectory(path) => {
                Error::MountPoint { path, source: std::io::Error::from_raw_os_error(libc::ENOTDIR) }
                    .into()
            }
            MountError::NotEmpty(path) => Error::MountPointNotEmpty(path).into(),
            MountError::AlreadyMounted(path) => Error::MountPointTaken(path).into(),
            MountError::Fusermount { ref message, .. } if message.contains("user_allow_other") => {
                Failure::new(Exit::NoFuse, Shown(error.to_string().as_bytes()))
                    .hint("add the line user_allow_other to /etc/fuse.conf")
            }
            MountError::Fusermount { .. } => {
                Failure::new(Exit::NoFuse, Shown(error.to_string().as_bytes()))
            }
            MountError::NotMounted { path } => Failure::new(
                Exit::NotFound,
                format_args!("umount {}: nothing is mounted there", shown(&path)),
            )
            .hint("`kithfs mounts` lists the mounts"),
            MountError::NotOurs { path, fstype } => {
                let fstype = Shown(fstype.as_encoded_bytes());
                Failure::new(
                    Exit::NotFound,
                    format_args!(
                        "umount {}: the filesystem mounted there is not kithfs but {fstype}",
                        shown(&path)
                    ),
                )
                .hint("`kithfs mounts` lists the mounts")
            }
            MountError::Busy { path, holders } => busy(&shown(&path).to_string(), &holders),
            MountError::Mount { path, source } => {
                let message = format!("mount on {}: {source}", shown(&path));
                match source.raw_os_error() {
                    Some(libc::EPERM | libc::EACCES) => Failure::new(Exit::NoFuse, message).hint(
                        "root has no privilege to mount here; in a container, add --device /dev/fuse --cap-add SYS_ADMIN. `kithfs get` and `export` need no FUSE",
                    ),
                    _ => Failure::new(exit_of_io(&source), message),
                }
            }
            MountError::Io { op, path, source } => {
                let exit = exit_of_io(&source);
                let failure = Failure::new(exit, format_args!("{op} {}: {source}", shown(&path)));
                match source.raw_os_error() {
                    Some(libc::EPERM | libc::EACCES) => {
                        failure.hint("only root and the user that mounted it may do that")
                    }
                    _ => failure,
                }
            }
        }
    }
}

/// Lists the processes that keep a mount busy.
fn busy(mountpoint: &str, holders: &[Holder]) -> Failure {
    let hint = if holders.is_empty() && rustix::process::geteuid().is_root() {
        "no program is known to use it: perhaps another mount below it, a loop device on a file in it (see `losetup -a`), or a descriptor in transit between two programs. --lazy unmounts as soon as that ends"
    } else if holders.is_empty() {
        "processes of other users keep it busy; only root can list them. --lazy unmounts as soon as they release it"
    } else {
        "stop these processes or let them leave the directory; --lazy unmounts as soon as they release it"
    };
    Failure {
        details: lines(holders),
        ..Failure::new(Exit::Busy, format_args!("umount {mountpoint}: it is busy")).hint(hint)
    }
}

/// Describes a mount that was unmounted at its mount point but still exists at others or in other
/// mount namespaces, with its daemon `pid`.
pub fn mounted_elsewhere(
    mountpoint: &Path,
    pid: u32,
    places: &[PathBuf],
    holders: &[Holder],
) -> Failure {
    let failure = Failure::new(Exit::Busy, format_args!("umount {}: unmounted here, but still mounted elsewhere", shown(mountpoint)))
        .hint(format_args!("its daemon, process {pid}, writes everything and ends once the last of these mounts is gone"));
    let places = places.iter().map(|place| format!("mounted at {} as well", shown(place)));
    Failure { details: places.chain(lines(holders)).collect(), ..failure }
}

/// Returns a line for each process.
fn lines(holders: &[Holder]) -> Vec<String> {
    let line = |Holder { pid, name, by, path }: &Holder| {
        let path = path.as_ref().map_or_else(String::new, |path| format!(" {}", shown(path)));
        format!("process {pid} ({}): {by}{path}", Shown(name.as_bytes()))
    };
    holders.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_mount_lists_its_users() {
        let holders = vec![
            Holder {
                pid: 7,
                name: "sh".into(),
                by: "working directory",
                path: Some("/m/d".into()),
            },
            Holder { pid: 9, name: "x\x1b".into(), by: "open file", path: None },
        ];
        let failure = Failure::from(MountError::Busy { path: "/m".into(), holders });
        assert_eq!(failure.exit, Exit::Busy);
        assert_eq!(failure.message, "umount /m: it is busy");
        assert_eq!(
            failure.details,
            ["process 7 (sh): working directory /m/d", "process 9 (x\\x1b): open file"]
        );
    }

    #[test]
    fn codes_of_mount_errors() {
        let code = |error: MountError| Failure::from(error).exit.code();
        assert_eq!(code(MountError::NoDevice(std::io::ErrorKind::NotFound.into())), 8);
        assert_eq!(code(MountError::NoFusermount), 8);
        assert_eq!(code(MountError::NotEmpty("/m".into())), 7);
        assert_eq!(code(MountError::NotADirectory("/m".into())), 7);
        assert_eq!(code(MountError::NotMounted { path: "/m".into() }), 12);
        // In a container without CAP_SYS_ADMIN, root must not read that only root can do it.
        let refusal = || std::io::Error::from_raw_os_error(libc::EPERM);
        let refused = Failure::from(MountError::Mount { path: "/m".into(), source: refusal() });
        assert_eq!(refused.exit.code(), 8);
        assert!(refused.hint.unwrap().contains("SYS_ADMIN"));
        assert_eq!(code(MountError::Io { op: "unmount", path: "/m".into(), source: refusal() }), 1);
    }
}
