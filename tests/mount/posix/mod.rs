//! What programs expect of a local filesystem, on a real mount. Each test states the expected
//! results; if the rule is Linux's own and not obvious, the same is done on the filesystem below,
//! and both must behave the same.
//!
//! Root runs all tests, with other users by setpriv(1). `user.rs` tests the differences in a mount
//! of an ordinary user.

mod access;
mod attributes;
mod contents;
mod file_handles;
mod listing;
mod names;
mod permissions;
mod prefetch;
mod space;
mod stress;
mod uring_client;
mod user;

use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::support::holes;
use crate::support::mounted::{self, Mount, Scratch};

/// A mounted vault that every user may enter, and beside it a directory of the filesystem below.
struct Posix {
    scratch: Scratch,
    mount: Option<Mount>,
    options: &'static str,
}

const OPTIONS: &str = "allow_other,default_permissions,suid,dev";
/// The same with the daemon, instead of the kernel, deciding on access.
const DAEMON_DECIDES: &str = "allow_other,no_default_permissions,suid";

impl Posix {
    /// `None`, with a message, if it cannot be tested here.
    fn new() -> Option<Posix> {
        Posix::mounted_with(OPTIONS)
    }

    /// One mount in which the kernel decides on access, and one in which the daemon does; none if
    /// neither can be tested here.
    fn both() -> impl Iterator<Item = Posix> {
        [OPTIONS, DAEMON_DECIDES].into_iter().filter_map(Posix::mounted_with)
    }

    fn mounted_with(options: &'static str) -> Option<Posix> {
        if !mounted::can_mount() {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        let scratch = Scratch::new(&[]);
        std::fs::create_dir(scratch.path().join("below")).unwrap();
        for dir in [scratch.path().to_owned(), scratch.vault()] {
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mount = Some(scratch.mount(&["-o", options]));
        Some(Posix { scratch, mount, options })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.point().join(name)
    }

    fn below(&self) -> PathBuf {
        self.scratch.path().join("below")
    }

    /// Runs a script in the mount.
    fn shell(&self, script: &str) -> String {
        mounted::shell(&self.scratch.point(), script)
    }

    /// Runs a script in the mount and in the directory of the filesystem below, as root with umask
    /// 022; both must print the same.
    fn same_as_below(&self, script: &str) -> String {
        let script = format!("umask 022\n{PRELUDE}\n{script}");
        let (here, below) = (
            mounted::shell(&self.scratch.point(), &script),
            mounted::shell(&self.below(), &script),
        );
        assert_eq!(here, below, "{script}");
        here
    }

    fn remount(&mut self) {
        self.mount.take().expect("mounted").unmount();
        self.mount = Some(self.scratch.mount(&["-o", self.options]));
    }

    /// Unmounts and verifies everything.
    fn finish(mut self) {
        self.mount.take().expect("mounted").unmount();
        mounted::expect_code(self.scratch.kithfs("fsck").arg(self.scratch.vault()), 0);
    }
}

/// For scripts: `as USER GROUPS COMMAND...` runs a command as another user, `code COMMAND...`
/// prints the exit code of a command.
const PRELUDE: &str = r#"
as() { local user=$1 groups=$2; shift 2; setpriv --reuid "$user" --regid "$user" --groups "$groups" "$@"; }
code() { local status=0; "$@" >/dev/null 2>&1 || status=$?; echo "$status"; }
"#;

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Returns the errno of a call that returned -1; otherwise 0.
fn errno(returned: impl Into<i64>) -> i32 {
    if returned.into() == -1 { std::io::Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

fn seek(file: &std::fs::File, offset: i64, whence: i32) -> Result<i64, i32> {
    // SAFETY: a plain call on a descriptor that lives.
    let at = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    if at < 0 { Err(errno(at)) } else { Ok(at) }
}

fn fallocate(file: &std::fs::File, mode: i32, offset: i64, len: i64) -> i32 {
    // SAFETY: a plain call on a descriptor that lives.
    errno(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, len) })
}

/// Random numbers that depend only on the seed.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}
