//! The numbers of the FUSE protocol that kithfs's own transports need: operations, flags, lengths
//! of structures.
//!
//! Rules that hold here
//! * Numbers and lengths are those of `include/uapi/linux/fuse.h`, version 7.42; a test compares
//!   them with the header of the system.
//! * Everything is read out of bytes by offset: no pointer, no cast, no unsafe code. All numbers
//!   are in the byte order of the machine.
//! * Each structure is described once, as the table of its fields.

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// The newest minor version that is known here: the one that brought io_uring.
pub const MINOR: u32 = 42;

/// Structures of the protocol: the length of each, and its fields as constants with their offsets.
macro_rules! layouts {
    ($($(#[$doc:meta])* $module:ident, $kernel:literal, { $($field:ident: $len:literal),+ })+) => {$(
        $(#[$doc])*
        #[allow(dead_code, missing_docs, reason = "a layout names every field; their meaning is the kernel's")]
        pub mod $module {
            layouts!(@at 0usize, $($field: $len,)+);
            /// Name, fields and lengths, to be compared with the kernel's header.
            #[cfg(test)]
            pub const TABLE: (&str, &[(&str, usize)]) = ($kernel, &[$((stringify!($field), $len)),+]);
        }
    )+};
    (@at $at:expr, $field:ident: $len:literal, $($rest:tt)*) => {
        #[allow(non_upper_case_globals, reason = "the names are the kernel's")]
        pub const $field: usize = $at;
        layouts!(@at $at + $len, $($rest)*);
    };
    (@at $at:expr,) => {
        /// Length in bytes.
        pub const LEN: usize = $at;
    };
}

layouts! {
    /// What each request begins with.
    in_header, "fuse_in_header", { len: 4, opcode: 4, unique: 8, nodeid: 8, uid: 4, gid: 4, pid: 4, total_extlen: 2, padding: 2 }
    /// INIT.
    init_in, "fuse_init_in", { major: 4, minor: 4, max_readahead: 4, flags: 4, flags2: 4, unused: 44 }
    /// The answer to INIT.
    init_out, "fuse_init_out",
    { major: 4, minor: 4, max_readahead: 4, flags: 4, max_background: 2, congestion_threshold: 2, max_write: 4, time_gran: 4,
      max_pages: 2, map_alignment: 2, flags2: 4, unused: 28 }
    /// FORGET.
    forget_in, "fuse_forget_in", { nlookup: 8 }
    /// BATCH_FORGET; `count` times [`forget_one`] follow.
    batch_forget_in, "fuse_batch_forget_in", { count: 4, dummy: 4 }
    /// One node of BATCH_FORGET.
    forget_one, "fuse_forget_one", { nodeid: 8, nlookup: 8 }
    /// GETATTR.
    getattr_in, "fuse_getattr_in", { getattr_flags: 4, dummy: 4, fh: 8 }
    /// SETATTR.
    setattr_in, "fuse_setattr_in",
    { valid: 4, padding: 4, fh: 8, size: 8, lock_owner: 8, atime: 8, mtime: 8, ctime: 8, atimensec: 4, mtimensec: 4, ctimensec: 4,
      mode: 4, unused4: 4, uid: 4, gid: 4, unused5: 4 }
    /// MKNOD; the name follows.
    mknod_in, "fuse_mknod_in", { mode: 4, rdev: 4, umask: 4, padding: 4 }
    /// MKDIR; the name follows.
    mkdir_in, "fuse_mkdir_in", { mode: 4, umask: 4 }
    /// RENAME; both names follow.
    rename_in, "fuse_rename_in", { newdir: 8 }
    /// RENAME2; both names follow.
    rename2_in, "fuse_rename2_in", { newdir: 8, flags: 4, padding: 4 }
    /// LINK; the name follows.
    link_in, "fuse_link_in", { oldnodeid: 8 }
    /// OPEN and OPENDIR.
    open_in, "fuse_open_in", { flags: 4, open_flags: 4 }
    /// CREATE; the name follows.
    create_in, "fuse_create_in", { flags: 4, mode: 4, umask: 4, open_flags: 4 }
    /// READ, READDIR and READDIRPLUS.
    read_in, "fuse_read_in", { fh: 8, offset: 8, size: 4, read_flags: 4, lock_owner: 8, flags: 4, padding: 4 }
    /// WRITE; the data follows.
    write_in, "fuse_write_in", { fh: 8, offset: 8, size: 4, write_flags: 4, lock_owner: 8, flags: 4, padding: 4 }
    /// RELEASE and RELEASEDIR.
    release_in, "fuse_release_in", { fh: 8, flags: 4, release_flags: 4, lock_owner: 8 }
    /// FLUSH.
    flush_in, "fuse_flush_in", { fh: 8, unused: 4, padding: 4, lock_owner: 8 }
    /// FSYNC and FSYNCDIR.
    fsync_in, "fuse_fsync_in", { fh: 8, fsync_flags: 4, padding: 4 }
    /// GETXATTR and LISTXATTR; GETXATTR's name follows.
    getxattr_in, "fuse_getxattr_in", { size: 4, padding: 4 }
    /// ACCESS.
    access_in, "fuse_access_in", { mask: 4, padding: 4 }
    /// INTERRUPT.
    interrupt_in, "fuse_interrupt_in", { unique: 8 }
    /// A lock on a range.
    file_lock, "fuse_file_lock", { start: 8, end: 8, r#type: 4, pid: 4 }
    /// GETLK, SETLK and SETLKW; `lk` is a [`file_lock`].
    lk_in, "fuse_lk_in", { fh: 8, owner: 8, lk: 24, lk_flags: 4, padding: 4 }
    /// FALLOCATE.
    fallocate_in, "fuse_fallocate_in", { fh: 8, offset: 8, length: 8, mode: 4, padding: 4 }
    /// LSEEK.
    lseek_in, "fuse_lseek_in", { fh: 8, offset: 8, whence: 4, padding: 4 }
    /// COPY_FILE_RANGE.
    copy_in, "fuse_copy_file_range_in", { fh_in: 8, off_in: 8, nodeid_out: 8, fh_out: 8, off_out: 8, len: 8, flags: 8 }
    /// The answer to STATFS.
    statfs_out, "fuse_kstatfs",
    { blocks: 8, bfree: 8, bavail: 8, files: 8, ffree: 8, bsize: 4, namelen: 4, frsize: 4, padding: 4, spare: 24 }
    /// Over io_uring: what goes with a request beside the structures of the protocol.
    ring_in_out, "fuse_uring_ent_in_out", { flags: 8, commit_id: 8, payload_sz: 4, padding: 4, reserved: 8 }
}

/// Length of SETXATTR's structure as long as `FUSE_SETXATTR_EXT` is not agreed on
/// (`FUSE_COMPAT_SETXATTR_IN_SIZE`): size, flags.
pub const SETXATTR_IN: usize = 8;

/// Operations.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
}

/// What INIT offers and asks for, as one number of 64 bits (`flags` and above it `flags2`).
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod init_flag {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// Bits of `setattr_in.valid`.
#[allow(missing_docs, reason = "the names are the kernel's")]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// In `open_in.open_flags`: the caller may not keep suid and sgid (with `O_TRUNC`).
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// In `write_in.write_flags`: the caller may not keep suid and sgid.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// In `write_in.write_flags`: pages that the kernel held back.
pub const WRITE_CACHE: u32 = 1 << 0;
/// In `lk_in.lk_flags`: a lock of flock(2).
pub const LK_FLOCK: u32 = 1 << 0;
/// In `getattr_in.getattr_flags`: asked through a descriptor.
pub const GETATTR_FH: u32 = 1 << 0;
/// In `fsync_in.fsync_flags`: contents only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// In the answer to OPEN: the kernel keeps the pages that it has; to OPENDIR: the listing.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// In the answer to OPENDIR: the kernel may keep the listing, and read one that it kept.
pub const FOPEN_CACHE_DIR: u32 = 1 << 3;
/// In `open_out.open_flags`: each read and write becomes a request, and the kernel keeps no pages.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;

/// Over io_uring: makes a buffer known; a request comes back in it.
pub const URING_REGISTER: u32 = 1;
/// Over io_uring: hands over an answer; the next request comes back.
pub const URING_COMMIT_AND_FETCH: u32 = 2;
/// Over io_uring: length of each of the two areas for headers, one for the common and one for the
/// operation's own.
pub const URING_HEADER: usize = 128;

/// Returns the length of the structure that follows the header of a request. Over io_uring this
/// structure is in a separate area.
pub fn fixed_len(operation: u32) -> usize {
    match operation {
        opcode::FORGET => forget_in::LEN,
        opcode::BATCH_FORGET => batch_forget_in::LEN,
        opcode::GETATTR => getattr_in::LEN,
        opcode::SETATTR => setattr_in::LEN,
        opcode::MKNOD => mknod_in::LEN,
        opcode::MKDIR => mkdir_in::LEN,
        opcode::RENAME => rename_in::LEN,
        opcode::RENAME2 => rename2_in::LEN,
        opcode::LINK => link_in::LEN,
        opcode::OPEN | opcode::OPENDIR => open_in::LEN,
        opcode::CREATE => create_in::LEN,
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => read_in::LEN,
        opcode::WRITE => write_in::LEN,
        opcode::RELEASE | opcode::RELEASEDIR => release_in::LEN,
        opcode::FLUSH => flush_in::LEN,
        opcode::FSYNC | opcode::FSYNCDIR => fsync_in::LEN,
        opcode::SETXATTR => SETXATTR_IN,
        opcode::GETXATTR | opcode::LISTXATTR => getxattr_in::LEN,
        opcode::ACCESS => access_in::LEN,
        opcode::INTERRUPT => interrupt_in::LEN,
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => lk_in::LEN,
        opcode::FALLOCATE => fallocate_in::LEN,
        opcode::LSEEK => lseek_in::LEN,
        opcode::COPY_FILE_RANGE => copy_in::LEN,
        _ => 0,
    }
}

/// Returns the four bytes at `at`. Like the other readers and writers here, it panics if `bytes` is
/// too short: callers check the length once before.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Returns the eight bytes at `at`.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Puts `bytes` at `at`.
pub fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests;
