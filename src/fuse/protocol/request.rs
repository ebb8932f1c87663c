//! A request of the kernel, decoded: the same for `/dev/fuse`, where it comes in one piece, and for
//! io_uring, where it comes in three.
//!
//! Rules that hold here
//! * A request that is too short or malformed is refused as a whole; nothing is read beyond its
//!   end.
//! * Nothing is copied: names and data borrow from the buffer that the request came in.

use crate::fuse::ops::{Caller, Errno, FileRange, NodeId, Result, SetAttr};
use crate::fuse::permission::privilege::Requester;
use crate::fuse::protocol::abi::{self, fattr, opcode, u32_at, u64_at};
use crate::store::{Lock, SetTime, Span, Timestamp};
use crate::vault::{Handle, LockRequest};

/// The fields that every request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of the operation; 0 if the transport does not expose it.
    pub opcode: u32,
    /// Number of the request, which the answer repeats.
    pub unique: u64,
    /// The node of the request, if it has one.
    pub node: NodeId,
    /// User of the caller.
    pub uid: u32,
    /// Group of the caller.
    pub gid: u32,
    /// Process of the caller, as the daemon sees it; 0 if it does not.
    pub pid: u32,
}

impl Header {
    /// Parses the header at the beginning of `bytes`; `None` if there are too few.
    pub fn read(bytes: &[u8]) -> Option<Header> {
        use abi::in_header as at;
        (bytes.len() >= at::LEN).then(|| Header {
            opcode: u32_at(bytes, at::opcode),
            unique: u64_at(bytes, at::unique),
            node: u64_at(bytes, at::nodeid),
            uid: u32_at(bytes, at::uid),
            gid: u32_at(bytes, at::gid),
            pid: u32_at(bytes, at::pid),
        })
    }

    /// Returns the caller, with the umask of the request.
    pub fn caller(&self, umask: u32) -> Caller {
        Caller { uid: self.uid, gid: self.gid, umask: umask & 0o777 }
    }

    /// Returns the caller, for checks that depend on supplementary groups.
    pub fn requester(&self) -> Requester {
        Requester { uid: self.uid, gid: self.gid, pid: self.pid }
    }
}

/// A read of a file or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The open file or directory.
    pub handle: Handle,
    /// The offset in a file, or the position in a directory.
    pub offset: u64,
    /// Maximum number of bytes to return.
    pub size: usize,
}

/// The operation and its arguments. Names are single components without a zero byte.
///
/// * `BatchForget`: pairs of node and count, not parsed.
/// * `handle` of `GetAttr`: the file is named through a descriptor; `opened` of `SetAttr` likewise.
/// * `kill`: suid and sgid must be cleared. `held`: the data is from the kernel's writeback cache.
/// * `owner` of `Flush`: of the locks that the program loses by closing a descriptor.
/// * `wait` of `SetLk`: until the lock is granted.
/// * `Destroy` ends a filesystem on a block device, and is never sent to kithfs. `NotifyReply` answers
///   a notification that is never sent.
/// * `Unknown`: not supported. It is answered with `ENOSYS`, so the kernel does not send it again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the method of Operations of that name, with its arguments")]
pub enum Call<'a> {
    Lookup { name: &'a [u8] },
    Forget { count: u64 },
    BatchForget { pairs: &'a [u8] },
    GetAttr { handle: Option<Handle> },
    SetAttr { set: SetAttr, opened: bool },
    ReadLink,
    Symlink { name: &'a [u8], target: &'a [u8] },
    MkNod { name: &'a [u8], mode: u32, umask: u32, rdev: u32 },
    MkDir { name: &'a [u8], mode: u32, umask: u32 },
    Unlink { name: &'a [u8] },
    RmDir { name: &'a [u8] },
    Rename { name: &'a [u8], new_parent: NodeId, new_name: &'a [u8], flags: u32 },
    Link { node: NodeId, name: &'a [u8] },
    Open { flags: i32, kill: bool },
    Create { name: &'a [u8], mode: u32, umask: u32, flags: i32, kill: bool },
    Read(Range),
    Write { handle: Handle, offset: u64, data: &'a [u8], kill: bool, held: bool },
    StatFs,
    Release { handle: Handle },
    Fsync { handle: Handle, data_only: bool },
    SetXattr { name: &'a [u8], value: &'a [u8], flags: i32 },
    GetXattr { name: &'a [u8], size: usize },
    ListXattr { size: usize },
    RemoveXattr { name: &'a [u8] },
    Flush { handle: Handle, owner: u64 },
    GetLk { handle: Handle, request: LockRequest },
    SetLk { handle: Handle, request: LockRequest, wait: bool },
    OpenDir,
    ReadDir { range: Range, plus: bool },
    ReleaseDir { handle: Handle },
    FsyncDir { handle: Handle, data_only: bool },
    Access { mask: i32 },
    Interrupt { unique: u64 },
    Allocate { handle: Handle, offset: u64, len: u64, mode: i32 },
    Seek { handle: Handle, offset: i64, whence: i32 },
    Copy { from: FileRange, to_node: NodeId, to: FileRange, len: u64 },
    Destroy,
    NotifyReply,
    Unknown,
}

/// Returns the bytes up to the next zero byte, and those after it.
fn name(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(Errno::EINVAL)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

fn range(fixed: &[u8]) -> Range {
    use abi::read_in as at;
    Range {
        handle: u64_at(fixed, at::fh),
        offset: u64_at(fixed, at::offset),
        size: u32_at(fixed, at::size) as usize,
    }
}

fn lock_request(fixed: &[u8]) -> Result<(Handle, LockRequest)> {
    use abi::{file_lock, lk_in as at};
    let field = |field| u64_at(fixed, at::lk + field);
    let lock = match u32_at(fixed, at::lk + file_lock::r#type) as i32 {
        libc::F_RDLCK => Some(Lock::Shared),
        libc::F_WRLCK => Some(Lock::Exclusive),
        libc::F_UNLCK => None,
        _ => return Err(Errno::EINVAL),
    };
    let (first, last) = (field(file_lock::start), field(file_lock::end).min(Span::END));
    if first > last {
        return Err(Errno::EINVAL);
    }
    let request = LockRequest {
        owner: u64_at(fixed, at::owner),
        lock,
        span: Span { first, last },
        whole: u32_at(fixed, at::lk_flags) & abi::LK_FLOCK != 0,
    };
    Ok((u64_at(fixed, at::fh), request))
}

fn set_attr(fixed: &[u8]) -> Result<SetAttr> {
    use abi::setattr_in as at;
    let valid = u32_at(fixed, at::valid);
    let given = |bit: u32| valid & bit != 0;
    let time = |set: u32, now: u32, secs: usize, nanos: usize| {
        if !given(set) {
            return Ok(SetTime::Omit);
        }
        if given(now) {
            return Ok(SetTime::Now);
        }
        let nanos = u32_at(fixed, nanos);
        if nanos >= 1_000_000_000 {
            return Err(Errno::EINVAL);
        }
        Ok(SetTime::At(Timestamp { secs: u64_at(fixed, secs) as i64, nanos }))
    };
    let perm = given(fattr::MODE).then(|| u32_at(fixed, at::mode) & 0o7777);
    let uid = given(fattr::UID).then(|| u32_at(fixed, at::uid));
    let gid = given(fattr::GID).then(|| u32_at(fixed, at::gid));
    // The kernel sets this flag if a caller without CAP_FSETID truncates. A change of owner always
    // clears both bits, and the kernel leaves that to the daemon.
    let kill_suid_sgid =
        perm.is_none() && (given(fattr::KILL_SUIDGID) || uid.is_some() || gid.is_some());
    Ok(SetAttr {
        perm,
        uid,
        gid,
        size: given(fattr::SIZE).then(|| u64_at(fixed, at::size)),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, at::atime, at::atimensec)?,
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, at::mtime, at::mtimensec)?,
        kill_suid_sgid,
    })
}

impl<'a> Call<'a> {
    /// Decodes a request that came in one piece; `body` is the part after the header.
    ///
    /// # Errors
    /// `EINVAL` if it is too short or malformed.
    pub fn from_body(operation: u32, body: &'a [u8]) -> Result<Call<'a>> {
        let (fixed, rest) =
            body.split_at_checked(abi::fixed_len(operation)).ok_or(Errno::EINVAL)?;
        Call::decode(operation, fixed, rest)
    }

    /// Decodes a request from the operation's own structure `fixed`, and the names and data in `rest`.
    ///
    /// # Errors
    /// `EINVAL` if it is too short or malformed.
    pub fn decode(operation: u32, fixed: &[u8], rest: &'a [u8]) -> Result<Call<'a>> {
        if fixed.len() < abi::fixed_len(operation) {
            return Err(Errno::EINVAL);
        }
        let one = || name(rest).map(|(name, _)| name);
        let two = || -> Result<(&[u8], &[u8])> {
            let (first, rest) = name(rest)?;
            Ok((first, name(rest)?.0))
        };
        Ok(match operation {
            opcode::LOOKUP => Call::Lookup { name: one()? },
            opcode::FORGET => Call::Forget { count: u64_at(fixed, abi::forget_in::nlookup) },
            opcode::BATCH_FORGET => {
                let count = u32_at(fixed, abi::batch_forget_in::count) as usize;
                let len = count.checked_mul(abi::forget_one::LEN).ok_or(Errno::EINVAL)?;
                Call::BatchForget { pairs: rest.get(..len).ok_or(Errno::EINVAL)? }
            }
            opcode::GETATTR => {
                use abi::getattr_in as at;
                let through = u32_at(fixed, at::getattr_flags) & abi::GETATTR_FH != 0;
                Call::GetAttr { handle: through.then(|| u64_at(fixed, at::fh)) }
            }
            opcode::SETATTR => {
                let opened = u32_at(fixed, abi::setattr_in::valid) & fattr::FH != 0;
                Call::SetAttr { set: set_attr(fixed)?, opened }
            }
            opcode::READLINK => Call::ReadLink,
            opcode::SYMLINK => {
                let (name, target) = two()?;
                Call::Symlink { name, target }
            }
            opcode::MKNOD => {
                use abi::mknod_in as at;
                let [mode, umask, rdev] =
                    [at::mode, at::umask, at::rdev].map(|at| u32_at(fixed, at));
                Call::MkNod { name: one()?, mode, umask, rdev }
            }
            opcode::MKDIR => {
                use abi::mkdir_in as at;
                Call::MkDir {
                    name: one()?,
                    mode: u32_at(fixed, at::mode),
                    umask: u32_at(fixed, at::umask),
                }
            }
            opcode::UNLINK => Call::Unlink { name: one()? },
            opcode::RMDIR => Call::RmDir { name: one()? },
            opcode::RENAME => {
                let (name, new_name) = two()?;
                Call::Rename {
                    name,
                    new_parent: u64_at(fixed, abi::rename_in::newdir),
                    new_name,
                    flags: 0,
                }
            }
            opcode::RENAME2 => {
                use abi::rename2_in as at;
                let (name, new_name) = two()?;
                Call::Rename {
                    name,
                    new_parent: u64_at(fixed, at::newdir),
                    new_name,
                    flags: u32_at(fixed, at::flags),
                }
            }
            opcode::LINK => {
                Call::Link { node: u64_at(fixed, abi::link_in::oldnodeid), name: one()? }
            }
            opcode::OPEN => {
                use abi::open_in as at;
                let kill = u32_at(fixed, at::open_flags) & abi::OPEN_KILL_SUIDGID != 0;
                Call::Open { flags: u32_at(fixed, at::flags) as i32, kill }
            }
            opcode::CREATE => {
                use abi::create_in as at;
                let [flags, mode, umask, open] =
                    [at::flags, at::mode, at::umask, at::open_flags].map(|at| u32_at(fixed, at));
                Call::Create {
                    name: one()?,
                    mode,
                    umask,
                    flags: flags as i32,
                    kill: open & abi::OPEN_KILL_SUIDGID != 0,
                }
            }
            opcode::READ => Call::Read(range(fixed)),
            opcode::WRITE => {
                use abi::write_in as at;
                let data = rest.get(..u32_at(fixed, at::size) as usize).ok_or(Errno::EINVAL)?;
                let flag = |flag| u32_at(fixed, at::write_flags) & flag != 0;
                let (kill, held) = (flag(abi::WRITE_KILL_SUIDGID), flag(abi::WRITE_CACHE));
                Call::Write {
                    handle: u64_at(fixed, at::fh),
                    offset: u64_at(fixed, at::offset),
                    data,
                    kill,
                    held,
                }
            }
            opcode::STATFS => Call::StatFs,
            opcode::RELEASE => Call::Release { handle: u64_at(fixed, abi::release_in::fh) },
            opcode::RELEASEDIR => Call::ReleaseDir { handle: u64_at(fixed, abi::release_in::fh) },
            opcode::FSYNC | opcode::FSYNCDIR => {
                use abi::fsync_in as at;
                let handle = u64_at(fixed, at::fh);
                let data_only = u32_at(fixed, at::fsync_flags) & abi::FSYNC_FDATASYNC != 0;
                if operation == opcode::FSYNC {
                    Call::Fsync { handle, data_only }
                } else {
                    Call::FsyncDir { handle, data_only }
                }
            }
            opcode::SETXATTR => {
                let (name, rest) = name(rest)?;
                let value = rest.get(..u32_at(fixed, 0) as usize).ok_or(Errno::EINVAL)?;
                Call::SetXattr { name, value, flags: u32_at(fixed, 4) as i32 }
            }
            opcode::GETXATTR => Call::GetXattr {
                name: one()?,
                size: u32_at(fixed, abi::getxattr_in::size) as usize,
            },
            opcode::LISTXATTR => {
                Call::ListXattr { size: u32_at(fixed, abi::getxattr_in::size) as usize }
            }
            opcode::REMOVEXATTR => Call::RemoveXattr { name: one()? },
            opcode::FLUSH => Call::Flush {
                handle: u64_at(fixed, abi::flush_in::fh),
                owner: u64_at(fixed, abi::flush_in::lock_owner),
            },
            opcode::GETLK | opcode::SETLK | opcode::SETLKW => {
                let (handle, request) = lock_request(fixed)?;
                match operation {
                    opcode::GETLK => Call::GetLk { handle, request },
                    _ => Call::SetLk { handle, request, wait: operation == opcode::SETLKW },
                }
            }
            opcode::OPENDIR => Call::OpenDir,
            opcode::READDIR => Call::ReadDir { range: range(fixed), plus: false },
            opcode::READDIRPLUS => Call::ReadDir { range: range(fixed), plus: true },
            opcode::ACCESS => Call::Access { mask: u32_at(fixed, abi::access_in::mask) as i32 },
            opcode::INTERRUPT => {
                Call::Interrupt { unique: u64_at(fixed, abi::interrupt_in::unique) }
            }
            opcode::FALLOCATE => {
                use abi::fallocate_in as at;
                let [handle, offset, len] =
                    [at::fh, at::offset, at::length].map(|at| u64_at(fixed, at));
                Call::Allocate { handle, offset, len, mode: u32_at(fixed, at::mode) as i32 }
            }
            opcode::LSEEK => {
                use abi::lseek_in as at;
                let whence = u32_at(fixed, at::whence) as i32;
                Call::Seek {
                    handle: u64_at(fixed, at::fh),
                    offset: u64_at(fixed, at::offset) as i64,
                    whence,
                }
            }
            opcode::COPY_FILE_RANGE => {
                use abi::copy_in as at;
                let [from, from_offset, to, to_offset, len] =
                    [at::fh_in, at::off_in, at::fh_out, at::off_out, at::len]
                        .map(|at| u64_at(fixed, at));
                let range = |handle, offset| FileRange { handle, offset };
                Call::Copy {
                    from: range(from, from_offset),
                    to_node: u64_at(fixed, at::nodeid_out),
                    to: range(to, to_offset),
                    len,
                }
            }
            opcode::DESTROY => Call::Destroy,
            opcode::NOTIFY_REPLY => Call::NotifyReply,
            _ => Call::Unknown,
        })
    }

    /// Returns whether the kernel expects an answer.
    pub fn is_answered(&self) -> bool {
        !matches!(
            self,
            Call::Forget { .. }
                | Call::BatchForget { .. }
                | Call::Interrupt { .. }
                | Call::NotifyReply
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_end_where_they_should() {
        assert_eq!(Call::from_body(opcode::LOOKUP, b"name\0"), Ok(Call::Lookup { name: b"name" }));
        assert_eq!(Call::from_body(opcode::LOOKUP, b"name"), Err(Errno::EINVAL));
        assert_eq!(
            Call::from_body(opcode::SYMLINK, b"l\0to\0"),
            Ok(Call::Symlink { name: b"l", target: b"to" })
        );
        assert_eq!(Call::from_body(opcode::SYMLINK, b"l\0to"), Err(Errno::EINVAL));
        let rename = [&7u64.to_ne_bytes()[..], &2u32.to_ne_bytes(), &[0; 4], b"a\0b\0"].concat();
        let expected = Call::Rename { name: b"a", new_parent: 7, new_name: b"b", flags: 2 };
        assert_eq!(Call::from_body(opcode::RENAME2, &rename), Ok(expected));
    }

    #[test]
    fn sizes_that_are_not_there_are_refused() {
        let mut write = vec![0; abi::write_in::LEN + 3];
        abi::put(&mut write, abi::write_in::size, &4u32.to_ne_bytes());
        assert_eq!(Call::from_body(opcode::WRITE, &write), Err(Errno::EINVAL));
        write.push(9);
        assert_eq!(
            Call::from_body(opcode::WRITE, &write),
            Ok(Call::Write { handle: 0, offset: 0, data: &[0, 0, 0, 9], kill: false, held: false })
        );
        let forget = [&u32::MAX.to_ne_bytes()[..], &[0; 4], &[1; 32]].concat();
        assert_eq!(Call::from_body(opcode::BATCH_FORGET, &forget), Err(Errno::EINVAL));
        let set = [&5u32.to_ne_bytes()[..], &0u32.to_ne_bytes(), b"user.n\0valu"].concat();
        assert_eq!(Call::from_body(opcode::SETXATTR, &set), Err(Errno::EINVAL));
    }

    #[test]
    fn the_earliest_of_all_times_and_old_fractions_come_through() {
        use abi::setattr_in as at;
        let mut body = [0; at::LEN];
        abi::put(&mut body, at::valid, &(fattr::ATIME | fattr::MTIME).to_ne_bytes());
        abi::put(&mut body, at::atime, &i64::MIN.to_ne_bytes());
        abi::put(&mut body, at::mtime, &(-2i64).to_ne_bytes());
        abi::put(&mut body, at::mtimensec, &500_000_000u32.to_ne_bytes());
        let Ok(Call::SetAttr { set, .. }) = Call::from_body(opcode::SETATTR, &body) else {
            panic!("decodes")
        };
        assert_eq!(set.atime, SetTime::At(Timestamp { secs: i64::MIN, nanos: 0 }));
        assert_eq!(set.mtime, SetTime::At(Timestamp { secs: -2, nanos: 500_000_000 }));
        abi::put(&mut body, at::atimensec, &1_000_000_000u32.to_ne_bytes());
        assert_eq!(Call::from_body(opcode::SETATTR, &body), Err(Errno::EINVAL));
    }

    #[test]
    fn suid_goes_when_the_kernel_says_so_or_owners_change() {
        use abi::setattr_in as at;
        let kills = |valid: u32| {
            let mut body = [0; at::LEN];
            abi::put(&mut body, at::valid, &valid.to_ne_bytes());
            match Call::from_body(opcode::SETATTR, &body) {
                Ok(Call::SetAttr { set, .. }) => set.kill_suid_sgid,
                other => panic!("{other:?}"),
            }
        };
        assert!(!kills(fattr::SIZE));
        assert!(kills(fattr::SIZE | fattr::KILL_SUIDGID));
        assert!(kills(fattr::UID) && kills(fattr::GID));
        assert!(!kills(fattr::UID | fattr::MODE));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(operation in 0u32..60, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Call::from_body(operation, &body);
        }
    }
}
