//! How a filesystem is served, for every part that has to know.

use std::thread;
use std::time::Duration;

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Over `/dev/fuse`, by `fuser`.
    #[default]
    Dev,
    /// Over io_uring where the kernel offers it, else over `/dev/fuse`.
    PreferUring,
    /// Over io_uring; where that cannot be it is an error.
    Uring,
}

/// Who decides on what a caller may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permissions {
    /// The kernel, if it is mounted with `default_permissions`. ACLs imply those.
    #[default]
    Kernel,
    /// We do, in [`super::permission::access`]; it must be mounted without `default_permissions`.
    Daemon,
}

/// How a filesystem is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Threads that serve requests; at least 2, since one may wait for what another must do.
    pub threads: usize,
    /// How long the kernel may keep that a name means a node.
    pub entry_ttl: Duration,
    /// How long the kernel may keep attributes; zero also keeps it from caching symbolic links.
    pub attr_ttl: Duration,
    /// How long the kernel may keep that there is no such name; zero: not at all.
    pub negative_ttl: Duration,
    /// The kernel collects small writes in its page cache.
    pub writeback: bool,
    /// The kernel keeps no pages of files, and each read and write of a program comes to us.
    /// Mappings can then not be shared.
    pub direct_io: bool,
    /// Who decides on what a caller may do.
    pub permissions: Permissions,
    /// Objects have POSIX ACLs.
    pub acls: bool,
    /// Largest WRITE in bytes.
    pub max_write: u32,
    /// Largest readahead in bytes.
    pub max_readahead: u32,
    /// Requests that the kernel may have under way in the background, such as readahead.
    pub max_background: u16,
    /// How requests come.
    pub transport: Transport,
    /// Over io_uring: the most memory for the data of requests under way, in bytes.
    pub uring_memory: usize,
}

impl Default for ServeOptions {
    /// For a vault that nobody else changes: everything is cached for an hour.
    fn default() -> ServeOptions {
        const LONG: Duration = Duration::from_secs(3600);
        ServeOptions {
            threads: thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4)),
            entry_ttl: LONG,
            attr_ttl: LONG,
            negative_ttl: LONG,
            writeback: true,
            direct_io: false,
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
    /// For a vault that others change at the same time: the kernel asks each time.
    pub fn shared() -> ServeOptions {
        ServeOptions {
            entry_ttl: Duration::ZERO,
            attr_ttl: Duration::ZERO,
            negative_ttl: Duration::ZERO,
            writeback: false,
            direct_io: true,
            ..ServeOptions::default()
        }
    }
}
