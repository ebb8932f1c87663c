//! How a filesystem is served, for every part that has to know.

use std::thread;
use std::time::Duration;

use crate::fuse::kernel;
use crate::vault::LEASED;

/// How long the kernel may cache that a name does not exist, in a vault that is not synced: short
/// enough for a person who waits for a file, and long enough that programs which look for many
/// missing names, such as compilers, do not notice it: 2,000 names that are looked for without a
/// pause cost one percent.
const MISSING: Duration = Duration::from_secs(10);

/// How long the kernel may cache anything of a synced vault. Another machine's change has to be
/// visible within two seconds.
const SYNCED: Duration = Duration::from_secs(1);

/// How requests arrive from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Over `/dev/fuse`.
    #[default]
    Dev,
    /// Over io_uring if the kernel offers it and root has enabled it, otherwise over `/dev/fuse`.
    Auto,
    /// Over io_uring; it is an error if the kernel does not offer it.
    Uring,
}

/// Whether the kernel or the daemon checks permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permissions {
    /// The kernel, if mounted with `default_permissions`. ACLs imply that option.
    #[default]
    Kernel,
    /// The daemon, in [`super::permission::access`]; the mount must be without
    /// `default_permissions`.
    Daemon,
}

/// How a filesystem is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Threads that serve requests; at least 2, since one may wait for what another must do.
    pub threads: usize,
    /// How long the kernel may cache which node a name refers to.
    pub entry_ttl: Duration,
    /// How long the kernel may cache attributes; zero also disables its cache of symbolic links.
    pub attr_ttl: Duration,
    /// How long the kernel may cache that a name does not exist; zero: not at all.
    pub negative_ttl: Duration,
    /// The kernel collects small writes in its page cache (writeback cache).
    pub writeback: bool,
    /// The kernel keeps no pages of files: each read and write of a program becomes a request.
    /// Shared mappings are then impossible.
    pub direct_io: bool,
    /// Locks of programs (`fcntl`, `flock`) come to the daemon; otherwise the kernel handles them,
    /// for this mount alone.
    pub locks: bool,
    /// Whether the kernel or the daemon checks permissions.
    pub permissions: Permissions,
    /// Objects have POSIX ACLs.
    pub acls: bool,
    /// Largest WRITE in bytes.
    pub max_write: u32,
    /// Largest readahead in bytes.
    pub max_readahead: u32,
    /// Background requests that the kernel may have in flight, such as readahead.
    pub max_background: u16,
    /// How requests arrive.
    pub transport: Transport,
    /// Over io_uring: the most memory for the data of requests in flight, in bytes.
    pub uring_memory: usize,
}

impl Default for ServeOptions {
    /// Returns the options for a vault without concurrent writers. Everything is cached for an
    /// hour, except that a name does not exist: a file may still be copied into the store.
    fn default() -> ServeOptions {
        const LONG: Duration = Duration::from_secs(3600);
        ServeOptions {
            threads: thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4)),
            entry_ttl: LONG,
            attr_ttl: LONG,
            negative_ttl: MISSING,
            writeback: true,
            direct_io: false,
            locks: false,
            permissions: Permissions::default(),
            acls: true,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 64,
            transport: Transport::default(),
            uring_memory: 64 << 20,
        }
    }
}

impl ServeOptions {
    /// Returns these options for a vault that a sync tool changes beneath the mount.
    pub fn synced(self) -> ServeOptions {
        ServeOptions {
            entry_ttl: self.entry_ttl.min(SYNCED),
            attr_ttl: self.attr_ttl.min(SYNCED),
            negative_ttl: self.negative_ttl.min(SYNCED),
            ..self
        }
    }

    /// Returns these options for a vault with concurrent writers, as long as this daemon has the
    /// lease.
    pub fn shared(self) -> ServeOptions {
        // Earlier kernels cannot drop all names without a lock that a waiting change may hold.
        let names = if kernel::is_since(6, 16) { LEASED } else { Duration::ZERO };
        ServeOptions {
            entry_ttl: self.entry_ttl.min(names),
            attr_ttl: self.attr_ttl.min(LEASED),
            negative_ttl: self.negative_ttl.min(names),
            writeback: false,
            locks: true,
            ..self
        }
    }

    /// Returns these options for an answer that the kernel must not cache.
    pub fn uncached(self) -> ServeOptions {
        ServeOptions {
            entry_ttl: Duration::ZERO,
            attr_ttl: Duration::ZERO,
            negative_ttl: Duration::ZERO,
            direct_io: true,
            ..self
        }
    }
}
