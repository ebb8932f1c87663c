//! Serves a filesystem over the FUSE device or io_uring, until it is unmounted.
//!
//! Rules that hold here
//! * With [`Transport::Auto`] io_uring is used if it is available, and otherwise, without a message,
//!   the device: by `fuser`, or by kithfs's own loop if the locks of programs come to the daemon.
//! * `fuser` never mounts or unmounts: it gets the descriptor of a filesystem that is mounted
//!   already.
//! * All threads read from one descriptor. With clones (`FUSE_DEV_IOC_CLONE`) a reply would have to
//!   go to the clone from which its request was read, which `fuser` does not report. Clones would
//!   save only a spinlock.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use ::fuser::{BackgroundSession, Config, SessionACL};

use crate::fuse::ops::Operations;
use crate::fuse::protocol::notify::Notifier;
use crate::fuse::protocol::wire::Device;
use crate::fuse::settings::{ServeOptions, Transport};
use crate::fuse::transport::device;
use crate::fuse::transport::fuser::Adapter;
use crate::fuse::transport::uring;

/// A filesystem that is being served. Dropping the value stops nothing: the threads continue until
/// the filesystem is unmounted.
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
    /// By kithfs's own loop on the device.
    Own(device::Session),
    Uring(uring::Session),
}

/// Serves `ops` on the descriptor that [`mount`](crate::fuse::mount::mounted::mount) has returned.
/// Returns once kernel and daemon have agreed on the terms of the session: the mount is then usable.
pub fn serve(fd: OwnedFd, ops: Arc<dyn Operations>, options: &ServeOptions) -> io::Result<Serving> {
    let duplicate = fd.try_clone()?;
    let device = Device::new(fd);
    let insist = options.transport == Transport::Uring;
    if insist || options.transport == Transport::Auto {
        match uring::prepare(&device, ops.clone(), options) {
            Ok(ready) => {
                let session = Session::Uring(ready.start(insist)?);
                return Ok(Serving { session, device });
            }
            Err(error) if insist => return Err(error),
            Err(error) => tracing::debug!(%error, "requests come over the device"),
        }
    }
    if options.locks {
        let session = Session::Own(device::start(&device, ops, options)?);
        return Ok(Serving { session, device });
    }
    let lent = duplicate.as_raw_fd();
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
    // Each reply that Adapter forgets keeps a reference to fuser's descriptor. This forgets one in
    // any case, so fuser never closes the descriptor, and `join` can close it.
    mem::forget(session.notifier());
    Ok(Serving { session: Session::Dev { session, lent }, device })
}

impl Serving {
    /// Returns a notifier for this session.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(self.device.clone())
    }

    /// Returns whether requests come over io_uring.
    pub fn over_io_uring(&self) -> bool {
        matches!(&self.session, Session::Uring(session) if session.over_io_uring())
    }

    /// Waits until the filesystem is unmounted and every request is answered; the operations are
    /// dropped before it returns.
    pub fn join(self) -> io::Result<()> {
        match self.session {
            Session::Own(session) => session.join(),
            Session::Uring(session) => session.join(),
            Session::Dev { session, lent } => {
                let result = session.join();
                // After an error fuser may leave threads behind that still read from its descriptor.
                // The descriptor then stays open.
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
