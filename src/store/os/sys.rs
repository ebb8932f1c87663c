//! System calls that `rustix` does not wrap or that older kernels lack, with their older
//! alternatives.
//!
//! Rules that hold here
//! * The caller has checked the names (a single component, or `.` for the directory itself).
//! * Neither the newer calls nor the older ones follow a symbolic link in the last component.
//! * Only `ENOSYS` means that a call is missing. The result is cached, so a missing call is tried
//!   once.

use std::ffi::{CStr, c_int, c_long};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::{Errno, Result};
use rustix::path::Arg;

/// Whether the running kernel has a call: yes until it has returned `ENOSYS`.
struct Call(AtomicBool);

static OPENAT2: Call = Call(AtomicBool::new(true));
static FCHMODAT2: Call = Call(AtomicBool::new(true));
static XATTRAT: Call = Call(AtomicBool::new(XATTRAT_NUMBERS_KNOWN));

impl Call {
    fn or_else<T>(
        &self,
        call: impl FnOnce() -> Result<T>,
        older: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self.0.load(Ordering::Relaxed) {
            match call() {
                Err(Errno::NOSYS) => self.0.store(false, Ordering::Relaxed),
                other => return other,
            }
        }
        older()
    }
}

/// Opens `name` in `dir` with close-on-exec; follows no link and never leaves `dir`.
pub(crate) fn open(dir: BorrowedFd<'_>, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    OPENAT2.or_else(
        || fs::openat2(dir, name, flags, mode, resolve),
        || fs::openat(dir, name, flags, mode),
    )
}

/// Opens an `O_PATH` descriptor of the object `name`, whatever its type and mode. A symbolic link
/// is opened, not followed.
pub(crate) fn open_path(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    open(dir, name, OFlags::PATH, Mode::empty())
}

/// Returns the path by which calls that reject an `O_PATH` descriptor reach its object.
pub(crate) fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Sets the permission bits of an entry; `EOPNOTSUPP` for a symbolic link.
pub(super) fn chmod(dir: BorrowedFd<'_>, name: &[u8], mode: Mode) -> Result<()> {
    FCHMODAT2.or_else(
        || {
            name.into_with_c_str(|name| {
                fchmodat2(dir.as_raw_fd(), name, mode, AtFlags::SYMLINK_NOFOLLOW)
            })
        },
        || chmod_by_proc(open_path(dir, name)?.as_fd(), mode),
    )
}

/// Sets the permission bits of the object of a descriptor, which may be an `O_PATH` one.
pub(crate) fn chmod_path(fd: BorrowedFd<'_>, mode: Mode) -> Result<()> {
    FCHMODAT2.or_else(
        || fchmodat2(fd.as_raw_fd(), c"", mode, AtFlags::EMPTY_PATH),
        || chmod_by_proc(fd, mode),
    )
}

/// Links the object of a descriptor, which may be an `O_PATH` one, to another name.
pub(crate) fn link(fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    match fs::linkat(fd, c"", dir, name, AtFlags::EMPTY_PATH) {
        // Kernels before 6.10 require a capability for the empty path.
        Err(Errno::NOENT) => fs::linkat(CWD, proc_path(fd), dir, name, AtFlags::SYMLINK_FOLLOW),
        other => other,
    }
}

fn chmod_by_proc(fd: BorrowedFd<'_>, mode: Mode) -> Result<()> {
    // Through /proc the kernel would set the mode of a link itself, on filesystems that allow it.
    if FileType::from_raw_mode(fs::fstat(fd)?.st_mode) == FileType::Symlink {
        return Err(Errno::OPNOTSUPP);
    }
    fs::chmodat(CWD, proc_path(fd), mode, AtFlags::empty())
}

/// Sets or removes the lock of an open file description on a range of offsets, without waiting.
/// `kind` is `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
pub(super) fn set_lock(fd: BorrowedFd<'_>, kind: c_int, first: u64, last: u64) -> Result<()> {
    lock_call(fd, libc::F_OFD_SETLK, &mut lock_of(kind, first, last))
}

/// Returns kind, first and last offset of a lock that prevents the given one; `None` if none does.
pub(super) fn get_lock(
    fd: BorrowedFd<'_>,
    kind: c_int,
    first: u64,
    last: u64,
) -> Result<Option<(c_int, u64, u64)>> {
    let mut lock = lock_of(kind, first, last);
    lock_call(fd, libc::F_OFD_GETLK, &mut lock)?;
    let first = lock.l_start as u64;
    Ok(match c_int::from(lock.l_type) {
        libc::F_UNLCK => None,
        kind if lock.l_len == 0 => Some((kind, first, i64::MAX as u64)),
        kind => Some((kind, first, first + lock.l_len as u64 - 1)),
    })
}

fn lock_of(kind: c_int, first: u64, last: u64) -> libc::flock64 {
    // SAFETY: the structure consists of numbers, for which zero is valid.
    let mut lock: libc::flock64 = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = first as _;
    // 0 means: up to the last possible offset.
    lock.l_len = if last >= i64::MAX as u64 { 0 } else { (last - first + 1) as _ };
    lock
}

fn lock_call(fd: BorrowedFd<'_>, command: c_int, lock: &mut libc::flock64) -> Result<()> {
    // SAFETY: the descriptor is open, and the kernel reads and writes one structure of this type.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(lock)) } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

/// Returns the value of an extended attribute of an entry.
pub(super) fn get_xattr(dir: BorrowedFd<'_>, name: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>> {
    XATTRAT.or_else(
        || {
            read_value(|buf| {
                with_names(name, key, |name, key| getxattrat(dir.as_raw_fd(), name, key, buf))
            })
        },
        || get_xattr_by_proc(open_path(dir, name)?.as_fd(), key),
    )
}

fn get_xattr_by_proc(fd: BorrowedFd<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
    let path = proc_path(fd);
    read_value(|buf| fs::getxattr(path.as_str(), key, buf))
}

/// Sets an extended attribute of an entry.
pub(super) fn set_xattr(dir: BorrowedFd<'_>, name: &[u8], key: &[u8], value: &[u8]) -> Result<()> {
    XATTRAT.or_else(
        || with_names(name, key, |name, key| setxattrat(dir.as_raw_fd(), name, key, value)),
        || fs::setxattr(proc_path(open_path(dir, name)?.as_fd()), key, value, XattrFlags::empty()),
    )
}

/// Removes an extended attribute of an entry; returns false if there was none.
pub(super) fn remove_xattr(dir: BorrowedFd<'_>, name: &[u8], key: &[u8]) -> Result<bool> {
    existed(XATTRAT.or_else(
        || with_names(name, key, |name, key| removexattrat(dir.as_raw_fd(), name, key)),
        || fs::removexattr(proc_path(open_path(dir, name)?.as_fd()), key),
    ))
}

/// Returns the value of an extended attribute of an open object.
pub(super) fn get_xattr_fd(fd: BorrowedFd<'_>, key: &[u8]) -> Result<Option<Vec<u8>>> {
    read_value(|buf| fs::fgetxattr(fd, key, buf))
}

/// Sets an extended attribute of an open object.
pub(super) fn set_xattr_fd(fd: BorrowedFd<'_>, key: &[u8], value: &[u8]) -> Result<()> {
    fs::fsetxattr(fd, key, value, XattrFlags::empty())
}

/// Removes an extended attribute of an open object; returns false if there was none.
pub(super) fn remove_xattr_fd(fd: BorrowedFd<'_>, key: &[u8]) -> Result<bool> {
    existed(fs::fremovexattr(fd, key))
}

/// Starts writeback of a file's dirty pages (`SYNC_FILE_RANGE_WRITE`) without waiting for it.
pub(super) fn begin_flush(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<()> {
    let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
        return Err(Errno::INVAL);
    };
    // SAFETY: the call takes numbers only, and the descriptor is borrowed.
    result(
        unsafe { libc::sync_file_range(fd.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE) }
            .into(),
    )
    .map(drop)
}

fn existed(removed: Result<()>) -> Result<bool> {
    match removed {
        Ok(()) => Ok(true),
        Err(Errno::NODATA) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Longest value that Linux allows (`XATTR_SIZE_MAX`).
const XATTR_SIZE_MAX: usize = 65536;

fn read_value(mut call: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Option<Vec<u8>>> {
    let mut value = vec![0; 512];
    loop {
        match call(&mut value) {
            Ok(len) => {
                value.truncate(len);
                return Ok(Some(value));
            }
            Err(Errno::NODATA) => return Ok(None),
            Err(Errno::RANGE) if value.len() < XATTR_SIZE_MAX => value.resize(XATTR_SIZE_MAX, 0),
            Err(error) => return Err(error),
        }
    }
}

fn with_names<T>(
    name: &[u8],
    key: &[u8],
    call: impl FnOnce(&CStr, &CStr) -> Result<T>,
) -> Result<T> {
    name.into_with_c_str(|name| key.into_with_c_str(|key| call(name, key)))
}

// The numbers of the calls that libc does not name yet. Since Linux 5.0 a new call has the same
// number on all of these architectures. On other architectures the older calls are used.
const XATTRAT_NUMBERS_KNOWN: bool = cfg!(any(
    all(target_arch = "x86_64", target_pointer_width = "64"),
    target_arch = "x86",
    target_arch = "aarch64",
    target_arch = "arm",
    target_arch = "riscv64",
    target_arch = "loongarch64",
    target_arch = "powerpc64",
    target_arch = "s390x"
));
const SETXATTRAT: c_long = 463;
const GETXATTRAT: c_long = 464;
const REMOVEXATTRAT: c_long = 466;
/// `fchmodat2` came with Linux 6.6. MIPS numbers begin at 4000, so there it is `ENOSYS`.
const FCHMODAT2_NUMBER: c_long = 452;

/// `struct xattr_args` of `linux/xattr.h`.
#[repr(C, align(8))]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

fn result(returned: c_long) -> Result<usize> {
    // The cast cannot lose anything: these calls return -1, 0 or a length of at most
    // XATTR_SIZE_MAX.
    if returned < 0 {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(returned as usize)
    }
}

fn fchmodat2(dir: RawFd, name: &CStr, mode: Mode, flags: AtFlags) -> Result<()> {
    // SAFETY: `name` is NUL-terminated and lives through the call, which writes to no memory of
    // ours.
    result(unsafe {
        libc::syscall(FCHMODAT2_NUMBER, dir, name.as_ptr(), mode.as_raw_mode(), flags.bits())
    })
    .map(drop)
}

/// Calls getxattrat or setxattrat, without following a symlink.
///
/// # Safety
/// `value` is the address of `size` bytes that the caller has borrowed, mutably for getxattrat.
unsafe fn xattrat(
    call: c_long,
    dir: RawFd,
    [name, key]: [&CStr; 2],
    value: u64,
    size: usize,
) -> Result<usize> {
    let size = u32::try_from(size).map_err(|_| Errno::TOOBIG)?;
    let args = XattrArgs { value, size, flags: 0 };
    let (flags, len) = (AtFlags::SYMLINK_NOFOLLOW.bits(), size_of::<XattrArgs>());
    // SAFETY: the strings are NUL-terminated and live through the call, which reads `args`; the
    // caller answers for the value.
    result(unsafe { libc::syscall(call, dir, name.as_ptr(), flags, key.as_ptr(), &args, len) })
}

fn getxattrat(dir: RawFd, name: &CStr, key: &CStr, value: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `len` bytes to `value`, which is borrowed mutably.
    unsafe { xattrat(GETXATTRAT, dir, [name, key], value.as_mut_ptr() as u64, value.len()) }
}

fn setxattrat(dir: RawFd, name: &CStr, key: &CStr, value: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads `len` bytes of `value` and writes to no memory of ours.
    unsafe { xattrat(SETXATTRAT, dir, [name, key], value.as_ptr() as u64, value.len()) }.map(drop)
}

fn removexattrat(dir: RawFd, name: &CStr, key: &CStr) -> Result<()> {
    let flags = AtFlags::SYMLINK_NOFOLLOW.bits();
    // SAFETY: the strings are NUL-terminated and live through the call, which writes to no memory
    // of ours.
    result(unsafe { libc::syscall(REMOVEXATTRAT, dir, name.as_ptr(), flags, key.as_ptr()) })
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"user.kithfs-test";

    fn dir() -> (tempfile::TempDir, OwnedFd) {
        let temp = tempfile::tempdir().unwrap();
        let fd = fs::open(temp.path(), OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap();
        std::fs::write(temp.path().join("file"), b"").unwrap();
        std::os::unix::fs::symlink("file", temp.path().join("link")).unwrap();
        (temp, fd)
    }

    #[test]
    fn a_missing_call_is_tried_once_then_replaced() {
        let call = Call(AtomicBool::new(true));
        assert_eq!(call.or_else(|| Err(Errno::ACCESS), || Ok(2)), Err(Errno::ACCESS));
        assert_eq!(call.or_else(|| Err(Errno::NOSYS), || Ok(2)), Ok(2));
        assert_eq!(call.or_else(|| unreachable!("asked again"), || Ok(3)), Ok(3));
    }

    // The test machine has the new calls, so the older ways are called directly.
    #[test]
    fn the_older_ways_do_the_same_and_follow_no_link() {
        let (_temp, dir) = dir();
        let dir = dir.as_fd();
        let file = open_path(dir, b"file").unwrap();
        let link = open_path(dir, b"link").unwrap();
        chmod_by_proc(file.as_fd(), Mode::from_raw_mode(0o640)).unwrap();
        assert_eq!(fs::fstat(&file).unwrap().st_mode & 0o7777, 0o640);
        assert_eq!(chmod_by_proc(link.as_fd(), Mode::from_raw_mode(0o600)), Err(Errno::OPNOTSUPP));
        assert_eq!(fs::fstat(&file).unwrap().st_mode & 0o7777, 0o640);

        fs::setxattr(proc_path(file.as_fd()), KEY, b"value", XattrFlags::empty()).unwrap();
        assert_eq!(get_xattr_by_proc(file.as_fd(), KEY).unwrap().as_deref(), Some(&b"value"[..]));
        assert_eq!(get_xattr(dir, b"file", KEY).unwrap().as_deref(), Some(&b"value"[..]));
        assert_eq!(get_xattr_by_proc(link.as_fd(), KEY).unwrap_or(None), None);
        assert_eq!(get_xattr(dir, b"link", KEY).unwrap_or(None), None);

        let older =
            |name: &str| fs::openat(dir, name, OFlags::RDONLY | OFlags::NOFOLLOW, Mode::empty());
        assert_eq!(older("link").unwrap_err(), Errno::LOOP);
        assert_eq!(open(dir, b"link", OFlags::RDONLY, Mode::empty()).unwrap_err(), Errno::LOOP);
    }

    #[test]
    fn a_flush_is_begun() {
        let (temp, _dir) = dir();
        let file =
            std::fs::File::options().read(true).write(true).open(temp.path().join("file")).unwrap();
        std::io::Write::write_all(&mut &file, &[7; 5000]).unwrap();
        assert_eq!(begin_flush(file.as_fd(), 100, 4096), Ok(()));
        assert_eq!(begin_flush(file.as_fd(), u64::MAX, 1), Err(Errno::INVAL));
    }

    #[test]
    fn a_value_longer_than_the_first_buffer_is_read_whole() {
        let (_temp, dir) = dir();
        let value = vec![7; 2000];
        set_xattr(dir.as_fd(), b"file", KEY, &value).unwrap();
        assert_eq!(get_xattr(dir.as_fd(), b"file", KEY).unwrap(), Some(value.clone()));
        let file = open(dir.as_fd(), b"file", OFlags::RDWR, Mode::empty()).unwrap();
        assert_eq!(get_xattr_fd(file.as_fd(), KEY).unwrap(), Some(value));
    }
}
