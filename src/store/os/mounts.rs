//! The mount to which a descriptor belongs, as `/proc/self/mountinfo` lists it.
//!
//! Rules that hold here
//! * The device of the mount is that of the filesystem. On Btrfs it differs from the device that
//!   `stat` returns.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Returns the line of `mountinfo` for the mount of a descriptor.
fn mount(fd: BorrowedFd<'_>) -> io::Result<String> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    line(&info, &mounts).map(str::to_owned).ok_or_else(unknown)
}

fn unknown() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no mount of this descriptor")
}

fn line<'a>(fdinfo: &str, mountinfo: &'a str) -> Option<&'a str> {
    let mount = fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    mountinfo.lines().find(|line| line.split(' ').next() == Some(mount))
}

/// Returns the device (major, minor) of the mount to which a descriptor belongs.
pub(super) fn device(fd: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    device_in(&mount(fd)?).ok_or_else(unknown)
}

fn device_in(line: &str) -> Option<(u32, u32)> {
    let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the filesystem's own options of the mount to which a descriptor belongs.
pub(super) fn options(fd: BorrowedFd<'_>) -> io::Result<String> {
    Ok(mount(fd)?.rsplit(' ').next().unwrap_or_default().to_owned())
}

/// Returns whether an NFS mount with these options asks the server for attributes and names each time:
/// with `noac` or `actimeo=0`.
pub(super) fn asks_each_time(options: &str) -> bool {
    let has = |wanted: &str| options.split(',').any(|option| option == wanted);
    has("noac") || has("acregmax=0") && has("acdirmax=0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_leads_to_its_mount() {
        let mounts =
            "21 1 0:20 / /proc rw - proc proc rw\n30 1 0:35 /@home /home rw - btrfs /dev/vda rw\n";
        let found = line("pos:\t0\nflags:\t0\nmnt_id:\t30\nino:\t256\n", mounts);
        assert_eq!(found.and_then(device_in), Some((0, 35)));
        assert_eq!(line("mnt_id:\t31\n", mounts), None);
    }

    /// With its usual options, NFS can show names as they were half a minute ago. A mount with
    /// `--shared` warns of that.
    #[test]
    fn an_nfs_mount_with_the_usual_options_is_late() {
        let usual = "rw,vers=4.2,rsize=262144,namlen=255,hard,proto=tcp,addr=10.99.0.1";
        assert!(!asks_each_time(usual));
        assert!(asks_each_time(&format!("{usual},noac")));
        let all = format!("{usual},acregmin=0,acregmax=0,acdirmin=0,acdirmax=0");
        assert!(asks_each_time(&all));
        assert!(!asks_each_time(&all.replace("acdirmax=0", "acdirmax=60")));
    }
}
