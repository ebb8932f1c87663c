//! Conversion between the kernel's attributes and those of the store.

use std::os::fd::BorrowedFd;

use rustix::fs::{
    AtFlags, FileType, Gid, Statx, StatxFlags, StatxTimestamp, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, Uid, makedev, statx,
};
use rustix::io::{Errno, Result};

use crate::store::{Kind, SetTime, Stat, Timestamp};

/// Converts a file type; `None` for one that Linux does not have.
pub(super) fn kind(file_type: FileType) -> Option<Kind> {
    Some(match file_type {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::CharacterDevice => Kind::CharDevice,
        FileType::Unknown => return None,
    })
}

/// `lstat` of an entry.
pub(super) fn stat(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Stat> {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    convert(&statx(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, mask)?)
}

/// `fstat`.
pub(super) fn stat_fd(fd: BorrowedFd<'_>) -> Result<Stat> {
    convert(&statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?)
}

/// `fstat` without the times of modification and change, which have no meaning in the result.
///
/// A filesystem with multigrain timestamps (ext4, XFS, Btrfs, tmpfs since Linux 6.13) notes when a
/// program reads a file's times. The file's next change then gets a time of its own, between the
/// ticks of the clock, and from then on no file of the machine gets an earlier one. So if the times
/// were read after each change, each write to a file in the mount would get a new time too, and
/// each fsync would cost a SETATTR.
pub(super) fn stat_fd_but_times(fd: BorrowedFd<'_>) -> Result<Stat> {
    let times = StatxFlags::MTIME.union(StatxFlags::CTIME);
    let mask = StatxFlags::BASIC_STATS.difference(times) | StatxFlags::BTIME;
    convert(&statx(fd, c"", AtFlags::EMPTY_PATH, mask)?)
}

fn convert(statx: &Statx) -> Result<Stat> {
    let mode = u32::from(statx.stx_mode);
    let has_btime = statx.stx_mask & StatxFlags::BTIME.bits() != 0;
    Ok(Stat {
        dev: makedev(statx.stx_dev_major, statx.stx_dev_minor),
        ino: statx.stx_ino,
        btime: has_btime.then(|| timestamp(&statx.stx_btime)),
        kind: kind(FileType::from_raw_mode(mode)).ok_or(Errno::IO)?,
        perm: mode & 0o7777,
        nlink: statx.stx_nlink,
        uid: statx.stx_uid,
        gid: statx.stx_gid,
        rdev: makedev(statx.stx_rdev_major, statx.stx_rdev_minor),
        size: statx.stx_size,
        blocks: statx.stx_blocks,
        atime: timestamp(&statx.stx_atime),
        mtime: timestamp(&statx.stx_mtime),
        ctime: timestamp(&statx.stx_ctime),
    })
}

fn timestamp(time: &StatxTimestamp) -> Timestamp {
    Timestamp { secs: time.tv_sec, nanos: time.tv_nsec }
}

/// Converts times for `utimensat`. Nanoseconds out of range are rejected here, because the kernel
/// treats two such values as commands.
pub(super) fn timestamps(atime: SetTime, mtime: SetTime) -> Result<Timestamps> {
    let convert = |time| match time {
        SetTime::Omit => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }),
        SetTime::Now => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }),
        SetTime::At(time) if time.nanos < 1_000_000_000 => {
            Ok(Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() })
        }
        SetTime::At(_) => Err(Errno::INVAL),
    };
    Ok(Timestamps { last_access: convert(atime)?, last_modification: convert(mtime)? })
}

/// Converts a user and group for `chown`. All ones mean "leave it" to the kernel, so that number is
/// rejected.
pub(super) fn owner(uid: Option<u32>, gid: Option<u32>) -> Result<(Option<Uid>, Option<Gid>)> {
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::INVAL);
    }
    Ok((uid.map(Uid::from_raw), gid.map(Gid::from_raw)))
}
