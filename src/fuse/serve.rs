//! Threads on the FUSE device or on io_uring, until the filesystem is unmounted.
//!
//! Rules that hold here
//! * `fuser` is the transport unless io_uring was asked for and is there.
//! * `fuser` never mounts or unmounts: it is handed the descriptor of a filesystem that is mounted
//!   already.
//! * All threads read from the one descriptor. Clones of it (`FUSE_DEV_IOC_CLONE`) would each want
//!   their replies back on themselves, and `fuser` does not tell on which clone a request came;
//!   what they save is a spinlock.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fuser::{BackgroundSession, Config, SessionACL};

use super::dev::Adapter;
use super::notify::Notifier;
use super::ops::Operations;
use super::uring;
use super::wire::Device;

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
    /// We do, in [`super::access`]; it must be mounted without `default_permissions`.
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

/// A filesystem that is being served. Dropping it changes nothing: the threads go on until the
/// filesystem is unmounted.
#[derive(Debug)]
pub struct Serving {
    session: Session,
    device: Device,
}

#[derive(Debug)]
enum Session {
    /// By `fuser`; `lent` is the descriptor that it reads from.
    Dev {
        session: BackgroundSession,
        lent: RawFd,
    },
    Uring(uring::Session),
}

/// Serves `ops` on the descriptor that [`mount`](super::mount::mount) gave. Returns once the kernel
/// and we have agreed on the terms of the session, so that the mount can be used.
pub fn serve(fd: OwnedFd, ops: Arc<dyn Operations>, options: &ServeOptions) -> io::Result<Serving> {
    let insist = options.transport == Transport::Uring;
    let over_io_uring = options.transport != Transport::Dev
        && match uring::why_not() {
            None => true,
            Some(why) if insist => return Err(io::Error::other(why)),
            Some(why) => {
                tracing::debug!(why, "requests come over the device");
                false
            }
        };
    if over_io_uring {
        let device = Device::new(fd);
        let session = Session::Uring(uring::start(&device, ops, options, insist)?);
        return Ok(Serving { session, device });
    }
    let duplicate = fd.try_clone()?;
    let lent = duplicate.as_raw_fd();
    let device = Device::new(fd);
    let mut config = Config::default();
    config.n_threads = Some(options.threads.max(2));
    // Who may use the mount at all is the kernel's business (allow_other), so fuser's own check
    // lets everybody through.
    let session = fuser::Session::from_fd(
        Adapter::new(ops, device.clone(), *options)?,
        duplicate,
        SessionACL::All,
        config,
    )?;
    let session = session.spawn()?;
    // The replies that Adapter forgets keep fuser's descriptor open for ever, unless there was
    // none. This makes it certain.
    mem::forget(session.notifier());
    Ok(Serving { session: Session::Dev { session, lent }, device })
}

impl Serving {
    /// Pushes changes out of the kernel's caches.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(self.device.clone())
    }

    /// Whether requests come over io_uring.
    pub fn over_io_uring(&self) -> bool {
        matches!(&self.session, Session::Uring(session) if session.over_io_uring())
    }

    /// Waits until the filesystem is unmounted and every request is answered; the operations are
    /// dropped before it returns.
    pub fn join(self) -> io::Result<()> {
        match self.session {
            Session::Uring(session) => session.join(),
            Session::Dev { session, lent } => {
                let result = session.join();
                // After an error fuser may have left threads behind that still read from its
                // descriptor; then it stays open.
                if result.is_ok() {
                    // SAFETY: `lent` is open and ours alone: the session that used it has ended
                    // with all its threads, and it cannot have been closed by fuser, which counts
                    // the reference that `serve` forgot.
                    drop(unsafe { OwnedFd::from_raw_fd(lent) });
                }
                result
            }
        }
    }
}
