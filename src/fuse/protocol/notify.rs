//! Pushing changes out of the kernel's caches.
//!
//! Rules that hold here
//! * Never from a thread that serves requests, and never under a lock that an operation takes: the
//!   kernel may wait for an operation that is under way on the same directory or inode before it
//!   returns. Excepted are the attributes alone of an inode that is open, and all names at once:
//!   for those it takes no lock that an operation holds. And pages of a file that nobody has open:
//!   see `prefetch`; and those of a file of which GETATTR is answered, on a thread that nothing
//!   else waits for: see `held`.

use std::io;

use crate::fuse::ops::NodeId;
use crate::fuse::protocol::wire::{
    Device, NOTIFY_INC_EPOCH, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NOTIFY_STORE,
};

/// Tells the kernel what has changed beneath it. Cheap to clone; usable from any thread that serves
/// no request.
#[derive(Clone, Debug)]
pub struct Notifier(Device);

impl Notifier {
    pub(in crate::fuse) fn new(device: Device) -> Notifier {
        Notifier(device)
    }

    /// Forgets that `parent` has (or has not) an entry `name`. It is no error if the kernel did not
    /// know of it.
    pub fn inval_entry(&self, parent: NodeId, name: &[u8]) -> io::Result<()> {
        let len = u32::try_from(name.len())
            .map_err(|_| io::Error::from_raw_os_error(libc::ENAMETOOLONG))?;
        self.send(
            NOTIFY_INVAL_ENTRY,
            &[&parent.to_ne_bytes(), &len.to_ne_bytes(), &0u32.to_ne_bytes(), name, &[0]],
        )
    }

    /// Forgets the attributes of `node` and its pages from `offset` on (`len` 0: to the end); with
    /// a negative `offset` the attributes alone. Under the writeback cache the kernel writes dirty
    /// pages of the range first and keeps its own size.
    pub fn inval_inode(&self, node: NodeId, offset: i64, len: i64) -> io::Result<()> {
        self.send(
            NOTIFY_INVAL_INODE,
            &[&node.to_ne_bytes(), &offset.to_ne_bytes(), &len.to_ne_bytes()],
        )
    }

    /// Puts `data` into the pages of `node`, from `offset` on, and lengthens it where it ends
    /// before them.
    pub(in crate::fuse) fn store(&self, node: NodeId, offset: u64, data: &[u8]) -> io::Result<()> {
        let len =
            u32::try_from(data.len()).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        let header =
            [&node.to_ne_bytes()[..], &offset.to_ne_bytes(), &len.to_ne_bytes(), &[0; 4]].concat();
        self.0.notify(NOTIFY_STORE, &[&header, data])
    }

    /// Has every name looked up anew before it is used again. `EINVAL` before Linux 6.16.
    pub fn forget_names(&self) -> io::Result<()> {
        self.send(NOTIFY_INC_EPOCH, &[])
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> io::Result<()> {
        match self.0.notify(code, parts) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            result => result,
        }
    }
}
