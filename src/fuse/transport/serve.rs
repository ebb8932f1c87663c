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

use ::fuser::{BackgroundSession, Config, SessionACL};

use crate::fuse::ops::Operations;
use crate::fuse::protocol::notify::Notifier;
use crate::fuse::protocol::wire::Device;
use crate::fuse::settings::{ServeOptions, Transport};
use crate::fuse::transport::fuser::Adapter;
use crate::fuse::transport::uring;

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

/// Serves `ops` on the descriptor that [`mount`](crate::fuse::mount::mounted::mount) gave. Returns once the kernel
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
    // The kernel decides which users may access the mount at all (allow_other), so fuser's own
    // check admits every user.
    let session = ::fuser::Session::from_fd(
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
