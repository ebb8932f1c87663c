//! Advisory locks (`flock`, and `fcntl` locks of an open file description), and their holders.
//!
//! Rules that hold here
//! * The kernel keeps a lock on a directory to itself on nearly every filesystem, also where it
//!   passes locks on files to a server or a driver (NFS, SMB, CephFS, FUSE). So such a lock is
//!   enough only for filesystems that are known to belong to one machine.
//! * Locks on ranges belong to the descriptor and its duplicates, not to the process as those of
//!   POSIX do. So two descriptors of one process exclude each other, and a close of one leaves the
//!   locks of the other.
//! * `/proc/locks` lists locks with their holders. It identifies the locked object by its inode
//!   number and the device of its mount.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{self, FlockOperation};
use rustix::io::{Errno, retry_on_intr};

use super::{mounts, sys};
use crate::store::{Lock, Span};

/// Filesystems (`statfs(2)`) that one machine's kernel runs alone and that have directories with
/// stable inodes while they are open: ext2 to ext4, XFS, Btrfs, tmpfs, overlay, F2FS, ZFS,
/// bcachefs, JFS, NILFS, FAT, exFAT, NTFS (of the kernel), UDF, ISO 9660, SquashFS, EROFS.
const OF_ONE_MACHINE: [u32; 17] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x794c_7630,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
    0x3153_464a,
    0x3434,
    0x4d44,
    0x2011_bab0,
    0x7366_746e,
    0x1501_3346,
    0x9660,
    0x7371_7368,
    0xe0f5_e1e2,
];

/// Filesystems (`statfs(2)`) of the kernel's SMB client: `CIFS_SUPER_MAGIC`, and the one of SMB 2 and
/// later.
pub(super) const SMB: [u32; 2] = [0xff53_4d42, 0xfe53_4d42];

/// Takes a lock without waiting; returns false if another handle's lock prevents it.
pub(super) fn try_lock(fd: BorrowedFd<'_>, lock: Lock) -> io::Result<bool> {
    let operation = match lock {
        Lock::Shared => FlockOperation::NonBlockingLockShared,
        Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    match retry_on_intr(|| fs::flock(fd, operation)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn kind(lock: Option<Lock>) -> libc::c_int {
    match lock {
        Some(Lock::Shared) => libc::F_RDLCK,
        Some(Lock::Exclusive) => libc::F_WRLCK,
        None => libc::F_UNLCK,
    }
}

/// Sets or removes a lock on a range without waiting; returns false if another handle's lock
/// prevents it.
pub(super) fn try_lock_span(
    fd: BorrowedFd<'_>,
    lock: Option<Lock>,
    span: Span,
) -> io::Result<bool> {
    match retry_on_intr(|| sys::set_lock(fd, kind(lock), span.first, span.last)) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns another handle's lock that prevents this lock.
pub(super) fn find(fd: BorrowedFd<'_>, lock: Lock, span: Span) -> io::Result<Option<(Lock, Span)>> {
    let found = retry_on_intr(|| sys::get_lock(fd, kind(Some(lock)), span.first, span.last))?;
    Ok(found.map(|(kind, first, last)| {
        let lock = if kind == libc::F_RDLCK { Lock::Shared } else { Lock::Exclusive };
        (lock, Span { first, last })
    }))
}

/// Returns whether a lock on this directory excludes every process that can use its filesystem.
pub(super) fn suffice(fd: BorrowedFd<'_>) -> bool {
    fs::fstatfs(fd).is_ok_and(|stat| OF_ONE_MACHINE.contains(&(stat.f_type as u32)))
}

/// Returns whether a lock on a range also keeps others from reading and writing the bytes there.
pub(super) fn are_mandatory(fd: BorrowedFd<'_>) -> bool {
    fs::fstatfs(fd).is_ok_and(|stat| are_mandatory_on(stat.f_type as u32))
}

/// Returns the same for a type of filesystem. Servers with POSIX extensions, whose locks are advisory,
/// have the same types, so they count as mandatory, too.
fn are_mandatory_on(filesystem: u32) -> bool {
    SMB.contains(&filesystem)
}

/// Returns the locks on the object of `fd`, each with the process id of its holder.
pub(super) fn held(fd: BorrowedFd<'_>) -> io::Result<Vec<(u32, Lock)>> {
    let ino = fs::fstat(fd)?.st_ino;
    let device = mounts::device(fd)?;
    let locks = std::fs::read_to_string("/proc/locks")?;
    Ok(locks.lines().filter_map(|line| lock(line, device, ino)).collect())
}

/// Returns holder and kind of a lock in a line of `/proc/locks`, if it is one on this object:
/// `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`. A line with `->` is a request that waits.
fn lock(line: &str, device: (u32, u32), ino: u64) -> Option<(u32, Lock)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, "FLOCK", _, how, pid, object, ..] = fields[..] else { return None };
    let mut object = object.split(':');
    let mut hex = || u32::from_str_radix(object.next()?, 16).ok();
    let at = (hex()?, hex()?);
    let how = match how {
        "WRITE" => Lock::Exclusive,
        "READ" => Lock::Shared,
        _ => return None,
    };
    let is_this = at == device && object.next()?.parse() == Ok(ino);
    is_this.then_some((pid.parse().ok()?, how))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On SMB, locks on ranges are mandatory locks of the server. So a mount with `--shared` would
    /// keep other machines from reading a file that it has open for writing.
    #[test]
    fn locks_of_smb_count_as_mandatory() {
        let (cifs, smb2) = (0xff53_4d42, 0xfe53_4d42);
        assert!(are_mandatory_on(cifs) && are_mandatory_on(smb2));
        let (nfs, ceph, fuse) = (0x6969, 0x00c3_6400, 0x6573_5546);
        assert!(![nfs, ceph, fuse].into_iter().any(are_mandatory_on));
        assert!(!OF_ONE_MACHINE.into_iter().any(are_mandatory_on));
        assert!(!SMB.iter().any(|smb| OF_ONE_MACHINE.contains(smb)));
    }

    #[test]
    fn a_line_of_the_kernels_list_names_the_holder() {
        let of = |line: &str| lock(line, (0xfe, 0), 5678);
        let held = "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF";
        assert_eq!(of(held), Some((1234, Lock::Exclusive)));
        assert_eq!(of(&held.replace("WRITE", "READ ")), Some((1234, Lock::Shared)));
        for other in [
            held.replace("5678", "5679"),
            held.replace("fe:00", "00:fe"),
            held.replace("FLOCK", "POSIX"),
            held.replace("1:", "1: ->"),
            String::new(),
        ] {
            assert_eq!(of(&other), None, "{other}");
        }
    }
}
