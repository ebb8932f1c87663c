//! Replies and notifications in the bytes of the FUSE protocol, and the device that takes them.
//!
//! Rules that hold here
//! * Structures are those of `include/uapi/linux/fuse.h`, version 7.31 and later, in the byte order
//!   of the machine.
//! * A reply is written to the open file description from which its request was read, because the
//!   kernel keeps the requests in flight per description. A duplicate made by dup(2) shares the
//!   description, one made by `FUSE_DEV_IOC_CLONE` does not.
//!
//! Why not the replies of `fuser` 0.18: its `FileAttr` has one number for both the node id and the
//! inode number that `stat` shows, so hard links would change their number once forgotten, `d_ino`
//! would not match `st_ino`, and a listing could not show an entry without handing out a node. It
//! also hides whether the kernel still wanted the reply, which is what lookup counts depend on.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::fuse::ops::{Attr, Errno};
use crate::store::{Kind, Lock, Span};
use crate::vault::ROOT;

/// Length of `struct fuse_out_header`.
pub const OUT_HEADER: usize = 16;
/// Length of `struct fuse_attr`.
pub const ATTR: usize = 88;
/// Length of `struct fuse_entry_out`.
pub const ENTRY_OUT: usize = 40 + ATTR;
/// Length of `struct fuse_dirent` before its name.
pub const DIRENT: usize = 24;

/// `FUSE_NOTIFY_INVAL_INODE`.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// `FUSE_NOTIFY_INVAL_ENTRY`.
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// `FUSE_NOTIFY_STORE`.
pub const NOTIFY_STORE: i32 = 4;
/// `FUSE_NOTIFY_INC_EPOCH`.
pub const NOTIFY_INC_EPOCH: i32 = 8;

/// Block size that `stat` shows: the size of a page of the kernel's cache.
const BLOCK_SIZE: u32 = 4096;

/// Returns the type bits of `st_mode`.
pub fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Dir => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
        Kind::BlockDevice => libc::S_IFBLK,
        Kind::CharDevice => libc::S_IFCHR,
    }
}

/// Returns the kind for the type bits of a mode. Without type bits it is a regular file, as in
/// mknod(2).
pub fn kind_of_mode(mode: u32) -> Option<Kind> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(Kind::File),
        libc::S_IFDIR => Some(Kind::Dir),
        libc::S_IFLNK => Some(Kind::Symlink),
        libc::S_IFIFO => Some(Kind::Fifo),
        libc::S_IFSOCK => Some(Kind::Socket),
        libc::S_IFBLK => Some(Kind::BlockDevice),
        libc::S_IFCHR => Some(Kind::CharDevice),
        _ => None,
    }
}

/// Appends `struct fuse_attr`.
fn put_attr(out: &mut Vec<u8>, attr: &Attr) {
    for number in [attr.ino, attr.size, attr.blocks] {
        out.extend_from_slice(&number.to_ne_bytes());
    }
    for time in [attr.atime, attr.mtime, attr.ctime] {
        out.extend_from_slice(&time.secs.to_ne_bytes());
    }
    for time in [attr.atime, attr.mtime, attr.ctime] {
        out.extend_from_slice(&time.nanos.to_ne_bytes());
    }
    // Major numbers have at most 12 bits and minor numbers 20. The C library and the kernel put both
    // into the low word.
    let rdev = attr.rdev as u32;
    let mode = type_bits(attr.kind) | (attr.perm & 0o7777);
    for number in [mode, attr.nlink, attr.uid, attr.gid, rdev, BLOCK_SIZE, 0] {
        out.extend_from_slice(&number.to_ne_bytes());
    }
}

/// Appends `struct fuse_entry_out`. Node numbers are never used twice in a mount; `generation` tells
/// one mount from another. That of the root is 0, which the kernel assumes.
pub fn put_entry(
    out: &mut Vec<u8>,
    attr: &Attr,
    generation: u32,
    entry_ttl: Duration,
    attr_ttl: Duration,
) {
    let generation = if attr.node == ROOT { 0 } else { u64::from(generation) };
    for number in [attr.node, generation, entry_ttl.as_secs(), attr_ttl.as_secs()] {
        out.extend_from_slice(&number.to_ne_bytes());
    }
    for number in [entry_ttl.subsec_nanos(), attr_ttl.subsec_nanos()] {
        out.extend_from_slice(&number.to_ne_bytes());
    }
    put_attr(out, attr);
}

/// Appends `struct fuse_lk_out`: the lock that is in the way, or that there is none. The process
/// that holds the lock is left out, because it may be on another machine.
pub fn put_lock(out: &mut Vec<u8>, found: Option<(Lock, Span)>) {
    let (kind, span) = match found {
        None => (libc::F_UNLCK, Span { first: 0, last: 0 }),
        Some((Lock::Shared, span)) => (libc::F_RDLCK, span),
        Some((Lock::Exclusive, span)) => (libc::F_WRLCK, span),
    };
    out.extend_from_slice(&span.first.to_ne_bytes());
    out.extend_from_slice(&span.last.to_ne_bytes());
    out.extend_from_slice(&(kind as u32).to_ne_bytes());
    out.extend_from_slice(&[0; 4]);
}

/// Appends a `struct fuse_entry_out` with node 0. In a reply to LOOKUP it means that the name does
/// not exist, which the kernel caches for `ttl`. In a listing it means that the kernel has to look
/// the entry up; it contains only `ino` and `mode`.
pub fn put_no_entry(out: &mut Vec<u8>, ino: u64, mode: u32, ttl: Duration) {
    let start = out.len();
    out.resize(start + ENTRY_OUT, 0);
    let entry = &mut out[start..];
    entry[16..24].copy_from_slice(&ttl.as_secs().to_ne_bytes());
    entry[32..36].copy_from_slice(&ttl.subsec_nanos().to_ne_bytes());
    entry[40..48].copy_from_slice(&ino.to_ne_bytes());
    entry[100..104].copy_from_slice(&mode.to_ne_bytes());
}

/// Appends `struct fuse_attr_out`.
pub fn put_attr_out(out: &mut Vec<u8>, attr: &Attr, ttl: Duration) {
    out.extend_from_slice(&ttl.as_secs().to_ne_bytes());
    out.extend_from_slice(&ttl.subsec_nanos().to_ne_bytes());
    out.extend_from_slice(&0u32.to_ne_bytes());
    put_attr(out, attr);
}

/// Appends `struct fuse_open_out`.
pub fn put_open(out: &mut Vec<u8>, handle: u64, flags: u32) {
    out.extend_from_slice(&handle.to_ne_bytes());
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&0u32.to_ne_bytes());
}

/// Returns the size in bytes of a directory entry with a name of this length.
pub fn dirent_len(name: usize) -> usize {
    (DIRENT + name).next_multiple_of(8)
}

/// Appends a `struct fuse_dirent` with its name and padding. `next` is the position after it.
pub fn put_dirent(out: &mut Vec<u8>, ino: u64, next: i64, mode: u32, name: &[u8]) {
    out.extend_from_slice(&ino.to_ne_bytes());
    out.extend_from_slice(&next.to_ne_bytes());
    out.extend_from_slice(&(name.len() as u32).to_ne_bytes());
    out.extend_from_slice(&(mode >> 12).to_ne_bytes());
    out.extend_from_slice(name);
    out.resize(out.len() + dirent_len(name.len()) - DIRENT - name.len(), 0);
}

/// An open file description of `/dev/fuse` that is shared with the transport.
#[derive(Clone, Debug)]
pub struct Device(Arc<OwnedFd>);

impl Device {
    /// Takes ownership of the descriptor.
    pub fn new(fd: OwnedFd) -> Device {
        Device(Arc::new(fd))
    }

    /// Answers the request `unique`. `ENOENT` means that the kernel no longer waits: the caller was
    /// killed.
    pub fn reply(&self, unique: u64, payload: &[u8]) -> io::Result<()> {
        self.send(0, unique, &[payload])
    }

    /// Answers the request `unique` with an error.
    pub fn refuse(&self, unique: u64, error: Errno) -> io::Result<()> {
        self.send(-error.get(), unique, &[])
    }

    /// Sends a notification.
    pub fn notify(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.send(code, 0, parts)
    }

    fn send(&self, error: i32, unique: u64, parts: &[&[u8]]) -> io::Result<()> {
        let len = OUT_HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
        let len = u32::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        let mut header = [0; OUT_HEADER];
        header[..4].copy_from_slice(&len.to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        let slices: SmallVec<[IoSlice<'_>; 4]> =
            std::iter::once(&header[..]).chain(parts.iter().copied()).map(IoSlice::new).collect();
        rustix::io::writev(&self.0, &slices)?; // the kernel accepts all of a message or nothing
        Ok(())
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Timestamp;

    fn attr() -> Attr {
        Attr {
            node: 77,
            ino: 0x1122_3344,
            kind: Kind::File,
            perm: 0o4755,
            nlink: 2,
            uid: 1000,
            gid: 100,
            rdev: 0,
            size: 5,
            blocks: 8,
            atime: Timestamp { secs: 1, nanos: 2 },
            mtime: Timestamp { secs: -2, nanos: 500_000_000 },
            ctime: Timestamp { secs: 3, nanos: 4 },
        }
    }

    #[test]
    fn structures_have_the_lengths_of_the_protocol() {
        let mut out = Vec::new();
        put_entry(&mut out, &attr(), 3, Duration::from_secs(1), Duration::ZERO);
        assert_eq!(out.len(), 128);
        put_open(&mut out, 1, 0);
        assert_eq!(out.len(), 144);
        out.clear();
        put_attr_out(&mut out, &attr(), Duration::ZERO);
        assert_eq!(out.len(), 104);
        for (name, len) in [(0, 24), (1, 32), (8, 32), (9, 40), (255, 280)] {
            out.clear();
            put_dirent(&mut out, 1, 2, libc::S_IFREG, &vec![b'n'; name]);
            assert_eq!((out.len(), dirent_len(name)), (len, len));
        }
    }

    #[test]
    fn node_and_inode_number_differ_and_old_times_are_whole() {
        let mut out = Vec::new();
        put_entry(&mut out, &attr(), 3, Duration::from_millis(1500), Duration::from_millis(2250));
        let u64_at =
            |at: usize| u64::from_ne_bytes(out[at..at + 8].try_into().expect("eight bytes"));
        let u32_at =
            |at: usize| u32::from_ne_bytes(out[at..at + 4].try_into().expect("four bytes"));
        assert_eq!((u64_at(0), u64_at(8), u64_at(40)), (77, 3, 0x1122_3344));
        assert_eq!((u64_at(16), u32_at(32)), (1, 500_000_000));
        assert_eq!((u64_at(24), u32_at(36)), (2, 250_000_000));
        assert_eq!((u64_at(72) as i64, u32_at(92)), (-2, 500_000_000));
        assert_eq!(u32_at(100), libc::S_IFREG | 0o4755);
    }

    #[test]
    fn an_entry_without_a_node_has_type_and_number() {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        put_entry(&mut with, &attr(), 3, Duration::from_secs(9), Duration::ZERO);
        put_no_entry(&mut without, attr().ino, libc::S_IFREG | 0o4755, Duration::from_secs(9));
        assert_eq!(without[..8], [0; 8]);
        assert_eq!(with[16..24], without[16..24]);
        assert_eq!(with[40..48], without[40..48]);
        assert_eq!(with[100..104], without[100..104]);
    }

    #[test]
    fn kinds_and_modes_agree() {
        for kind in [
            Kind::File,
            Kind::Dir,
            Kind::Symlink,
            Kind::Fifo,
            Kind::Socket,
            Kind::BlockDevice,
            Kind::CharDevice,
        ] {
            assert_eq!(kind_of_mode(type_bits(kind) | 0o644), Some(kind));
        }
        assert_eq!(kind_of_mode(0o644), Some(Kind::File));
        assert_eq!(kind_of_mode(libc::S_IFMT), None);
    }
}
