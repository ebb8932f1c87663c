//! Notifications that make the kernel drop or replace cached data.
//!
//! Rules that hold here
//! * A notification is not sent from a thread that serves requests, nor under a lock that an
//!   operation takes. Before it returns, the kernel may wait for an operation in progress on the same
//!   directory or inode. The exceptions are
//!   * the attributes alone of an open inode, or of any inode by a thread that serves no request, and
//!     all names at once: for these the kernel takes no lock that an operation holds;
//!   * pages of a file that no program has open (see `prefetch`);
//!   * pages of a file for which GETATTR is being answered, on a thread that no other request waits
//!     for (see `held`).

use std::io;

use crate::fuse::ops::NodeId;
use crate::fuse::protocol::wire::{
    Device, NOTIFY_INC_EPOCH, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NOTIFY_STORE,
};

/// Sends notifications to the kernel. Cheap to clone; usable from any thread that serves no request.
#[derive(Clone, Debug)]
pub struct Notifier(Device);

impl Notifier {
    pub(in crate::fuse) fn new(device: Device) -> Notifier {
        Notifier(device)
    }

    /// Makes the kernel drop what it has cached about the entry `name` of `parent`. It is no error if
    /// nothing was cached.
    pub fn inval_entry(&self, parent: NodeId, name: &[u8]) -> io::Result<()> {
        let len = u32::try_from(name.len())
            .map_err(|_| io::Error::from_raw_os_error(libc::ENAMETOOLONG))?;
        self.send(
            NOTIFY_INVAL_ENTRY,
            &[&parent.to_ne_bytes(), &len.to_ne_bytes(), &0u32.to_ne_bytes(), name, &[0]],
        )
    }

    /// Makes the kernel drop the attributes of `node` and `len` bytes of its pages from `offset` on
    /// (0: to the end). With a negative `offset` only the attributes are dropped. With a writeback
    /// cache the kernel first writes back dirty pages of the range, and keeps its own size.
    pub fn inval_inode(&self, node: NodeId, offset: i64, len: i64) -> io::Result<()> {
        self.send(
            NOTIFY_INVAL_INODE,
            &[&node.to_ne_bytes(), &offset.to_ne_bytes(), &len.to_ne_bytes()],
        )
    }

    /// Stores `data` in the kernel's pages of `node`, from `offset` on. If the kernel's size of the
    /// file is smaller, it grows.
    pub(in crate::fuse) fn store(&self, node: NodeId, offset: u64, data: &[u8]) -> io::Result<()> {
        let len =
            u32::try_from(data.len()).map_err(|_| io::Error::from_raw_os_error(libc::EMSGSIZE))?;
        let header =
            [&node.to_ne_bytes()[..], &offset.to_ne_bytes(), &len.to_ne_bytes(), &[0; 4]].concat();
        self.0.notify(NOTIFY_STORE, &[&header, data])
    }

    /// Makes the kernel look up every cached name again before its next use. `EINVAL` before Linux
    /// 6.16.
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
