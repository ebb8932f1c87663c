//! Implements [`Operations`] for a vault: calls the vault and converts its results.
//!
//! Rules that hold here
//! * With the writeback cache the kernel sends READ for handles that were opened for writing only,
//!   and itself puts appended bytes at the end. So a file is always opened for reading too, and
//!   with that cache never for appending.
//! * `uid=`, `gid=` and `umask=` change what is shown, never what is stored.

mod listed;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;

use self::listed::{Listed, Look};
use crate::fuse::mount::options::View;
use crate::fuse::ops::{
    Attr, Caller, Entry, Errno, Fallocate, FileRange, NodeId, OpenRequest, Opened, OpenedDir,
    Operations, RenameMode, Result, SetAttr, SetXattr, Sought,
};
use crate::fuse::protocol::wire::kind_of_mode;
use crate::store::{Kind, Lock, Seek, Space, Span};
use crate::vault::{Error, Handle, LockRequest, OpenFlags, Usage, Vault};

/// The attribute that SELinux keeps a file's label in.
const SECURITY_LABEL: &[u8] = b"security.selinux";

/// A mounted vault.
pub struct VaultFs {
    vault: Vault,
    view: View,
    listed: Mutex<Listed>,
    usage: Usage,
    closing: Closing,
}

/// Makes the mount refuse all requests of programs, except writeback of data that they have written.
///
/// The kernel serves reads and writes from cached attributes and pages even after the connection has
/// ended. So between the invalidation of these and the end of the connection it must get no new ones.
#[derive(Clone, Default)]
pub struct Closing(Arc<AtomicBool>);

impl Closing {
    /// Refuses from now on.
    pub fn begin(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl VaultFs {
    /// Creates the operations for `vault`, with the owners and permission bits of `view`.
    pub fn new(vault: Vault, view: View) -> VaultFs {
        vault.let_nodes_linger();
        let (listed, closing) = Default::default();
        let usage = vault.usage();
        VaultFs { vault, view, listed, usage, closing }
    }

    /// Returns the record of when programs have used the mount.
    pub fn usage(&self) -> Usage {
        self.usage.clone()
    }

    /// Returns the switch that makes the mount refuse requests of programs.
    pub fn closing(&self) -> Closing {
        self.closing.clone()
    }

    /// Returns the vault, for a request of a program. `ENOTCONN` while the mount is taken away.
    fn used(&self) -> Result<&Vault> {
        if self.closing.0.load(Ordering::Acquire) {
            return Err(Errno::new(libc::ENOTCONN));
        }
        Ok(self.written())
    }

    /// Returns the vault, also while the mount is taken away, for data that a program has written.
    fn written(&self) -> &Vault {
        self.usage.mark();
        &self.vault
    }

    fn show(&self, mut attr: Attr) -> Attr {
        attr.uid = self.view.uid.unwrap_or(attr.uid);
        attr.gid = self.view.gid.unwrap_or(attr.gid);
        attr.perm &= !self.view.umask;
        attr
    }

    /// Returns the flags for the vault, by the first rule above. With concurrent writers the kernel
    /// has no writeback cache and does not know where a file ends, so `append` is passed on.
    fn flags(&self, request: &OpenRequest) -> OpenFlags {
        OpenFlags {
            read: true,
            append: request.flags.append && self.vault.is_shared(),
            ..request.flags
        }
    }

    /// Returns the changes of `set` that the vault makes. If `uid=` or `gid=` replace the owners that
    /// are shown, a change of owner is ignored and reported as done, as in FAT and NTFS mounts with
    /// `quiet`.
    fn settable(&self, node: NodeId, set: &SetAttr) -> Result<SetAttr> {
        let mut set = *set;
        if self.view.uid.is_some() {
            set.uid = None;
        }
        if self.view.gid.is_some() {
            set.gid = None;
        }
        let asked_by_chown = set.kill_suid_sgid && set.size.is_none();
        if asked_by_chown
            && (set.uid.is_none() && set.gid.is_none()
                || self.vault.getattr(node)?.kind == Kind::Dir)
        {
            set.kill_suid_sgid = false;
        }
        Ok(set)
    }

    /// Refuses ACLs in a mount with `uid=`, `gid=` or `umask=`: an ACL contains the real owners and
    /// bits.
    fn check_acl(&self, name: &[u8]) -> Result<()> {
        if name.starts_with(b"system.") && !self.view.is_plain() {
            Err(Errno::EOPNOTSUPP)
        } else {
            Ok(())
        }
    }

    /// Opens a file that was created between the kernel's LOOKUP and its CREATE.
    fn open_existing(
        &self,
        parent: NodeId,
        name: &[u8],
        request: OpenRequest,
    ) -> Result<(Attr, Opened)> {
        let attr = self.vault.lookup(parent, name)?;
        let opened = if attr.kind == Kind::File {
            Operations::open(self, attr.node, request)
        } else {
            Err(Errno::EEXIST)
        };
        match opened {
            Ok(opened) => Ok((
                self.show(if request.flags.truncate {
                    self.vault.getattr(attr.node)?
                } else {
                    attr
                }),
                opened,
            )),
            Err(error) => {
                self.vault.forget(attr.node, 1);
                Err(error)
            }
        }
    }
}

/// Defines operations that only pass their arguments on to the vault. `used` operations are refused
/// while the mount is taken away; so are `shown` ones, which return attributes as the view shows
/// them. `written` operations are not refused.
macro_rules! pass_on {
    ($($how:ident $method:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $method(&self, $($arg: $type),*) -> Result<$result> {
            pass_on!(@$how self, $method($($arg),*))
        }
    )*};
    (@used $fs:ident, $call:ident($($arg:ident),*)) => { Ok($fs.used()?.$call($($arg),*)?) };
    (@shown $fs:ident, $call:ident($($arg:ident),*)) => { Ok($fs.show($fs.used()?.$call($($arg),*)?)) };
    (@written $fs:ident, $call:ident($($arg:ident),*)) => { Ok($fs.written().$call($($arg),*)?) };
}

impl Operations for VaultFs {
    pass_on! {
        shown lookup(parent: NodeId, name: &[u8]) -> Attr;
        shown lookup_again(node: NodeId) -> Attr;
        shown lookup_parent(node: NodeId) -> Attr;
        shown getattr(node: NodeId) -> Attr;
        shown mkdir(caller: &Caller, parent: NodeId, name: &[u8], perm: u32) -> Attr;
        shown symlink(caller: &Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Attr;
        shown link(node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Attr;
        used clear_sgid(node: NodeId) -> ();
        used readlink(node: NodeId) -> Vec<u8>;
        used unlink(parent: NodeId, name: &[u8]) -> ();
        used rmdir(parent: NodeId, name: &[u8]) -> ();
        used rename(from: NodeId, name: &[u8], to: NodeId, new_name: &[u8], mode: RenameMode) -> ();
        used read(handle: Handle, offset: u64, buf: &mut [u8]) -> usize;
        used find_lock(handle: Handle, request: &LockRequest) -> Option<(Lock, Span)>;
        written write(handle: Handle, offset: u64, data: &[u8], kill_suid_sgid: bool) -> ();
        written before_write(handle: Handle) -> bool;
        written flush(handle: Handle) -> ();
        written release(handle: Handle) -> ();
        written fsync(handle: Handle, data_only: bool) -> ();
    }

    fn caching(&self, node: NodeId) -> Option<u64> {
        self.vault.caching(node)
    }

    fn forget(&self, node: NodeId, count: u64) {
        self.vault.forget(node, count);
    }

    fn setattr(&self, node: NodeId, set: &SetAttr) -> Result<Attr> {
        let set = self.settable(node, set)?;
        let attr = if set == SetAttr::default() {
            self.used()?.getattr(node)?
        } else {
            self.used()?.setattr(node, &set)?
        };
        Ok(self.show(attr))
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Attr> {
        let kind = kind_of_mode(mode)
            .filter(|kind| !matches!(kind, Kind::Dir | Kind::Symlink))
            .ok_or(Errno::EINVAL)?;
        Ok(self.show(self.used()?.mknod(caller, parent, name, kind, mode & 0o7777, rdev)?))
    }

    fn open(&self, node: NodeId, request: OpenRequest) -> Result<Opened> {
        let vault = self.used()?;
        let opened = vault.open_file(node, self.flags(&request))?;
        if request.kill_suid_sgid
            && let Err(error) =
                vault.setattr(node, &SetAttr { kill_suid_sgid: true, ..SetAttr::default() })
        {
            let _ = vault.release(opened.handle);
            return Err(error.into());
        }
        Ok(opened)
    }

    fn create(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        request: OpenRequest,
    ) -> Result<(Attr, Opened)> {
        match self.used()?.create_file(caller, parent, name, perm, self.flags(&request)) {
            Ok((attr, opened)) => Ok((self.show(attr), opened)),
            Err(error) if error.errno() == libc::EEXIST && !request.exclusive => {
                self.open_existing(parent, name, request)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn write_pages(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_suid_sgid: bool,
    ) -> Result<()> {
        let end = offset.saturating_add(data.len() as u64);
        loop {
            let written = self.written().write_pages(handle, offset, data, kill_suid_sgid);
            let Err(error) = written.map_err(Errno::from) else { return Ok(()) };
            if !self.vault.pages_refused(handle, offset, end, error.get()) {
                return Err(error);
            }
        }
    }

    fn lock(&self, handle: Handle, request: &LockRequest) -> Result<bool> {
        let vault = if request.lock.is_some() { self.used()? } else { self.written() };
        Ok(vault.lock(handle, request)?)
    }

    fn pages_to_drop(&self, handle: Handle) -> Option<[u8; 32]> {
        self.written().pages_to_drop(handle)
    }

    fn pages_dropped(&self, handle: Handle, state: [u8; 32]) {
        self.written().pages_dropped(handle, state);
    }

    fn unlock_owner(&self, handle: Handle, owner: u64) {
        self.written().unlock_owner(handle, owner);
    }

    fn opendir(&self, node: NodeId) -> Result<OpenedDir> {
        let vault = self.used()?;
        let handle = vault.open_dir(node)?;
        let with = vault.names_read_with(handle).ok();
        let by_clock = SystemTime::now(); // before the directory's attributes are read
        let attr = vault.getattr(node).ok();
        let look = attr.as_ref().zip(with).map(|(attr, with)| {
            let is_old = listed::is_old(attr, by_clock) && vault.has_our_clock(handle);
            Look { attr, with, is_old }
        });
        Ok(OpenedDir {
            handle,
            cache: self.listed.lock().opened(node, handle, look, Instant::now()),
        })
    }

    fn readdir(&self, handle: Handle, cookie: i64, limit: usize) -> Result<Vec<Entry>> {
        let vault = self.used()?;
        let entries = vault.read_dir(handle, cookie, limit);
        if vault.has_unread_names(handle) {
            self.listed.lock().unread(handle);
        }
        Ok(entries?)
    }

    fn lookup_entry(&self, handle: Handle, entry: &Entry) -> Result<Option<Attr>> {
        if !self.listed.lock().hand_out(handle) {
            return Ok(None);
        }
        Ok(Some(self.show(self.used()?.lookup_entry(handle, entry)?)))
    }

    fn parent(&self, node: NodeId) -> NodeId {
        self.vault.parent(node)
    }

    fn releasedir(&self, handle: Handle) {
        self.listed.lock().closed(handle);
        self.vault.release_dir(handle);
    }

    fn fsyncdir(&self, handle: Handle, _data_only: bool) -> Result<()> {
        Ok(self.used()?.sync_dir(handle)?)
    }

    fn statfs(&self) -> Result<Space> {
        Ok(self.vault.space()?)
    }

    fn setxattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: SetXattr,
        kill_sgid: bool,
    ) -> Result<()> {
        self.check_acl(name)?;
        self.used()?.set_xattr(node, name, value, mode)?;
        if kill_sgid {
            self.used()?.clear_sgid(node)?;
        }
        Ok(())
    }

    fn getxattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.check_acl(name)?;
        // A kernel with SELinux answers this itself. Without SELinux `ls -l` requests the label of
        // every file, until one request fails with EOPNOTSUPP. Then it stops doing so for the mount
        // (coreutils 9.1), which saves one request per file.
        let missing_label =
            |error: &Error| name == SECURITY_LABEL && error.errno() == libc::ENODATA;
        self.used()?.get_xattr(node, name).map_err(|error| {
            if missing_label(&error) { Errno::new(libc::EOPNOTSUPP) } else { error.into() }
        })
    }

    fn listxattr(&self, node: NodeId, privileged: bool) -> Result<Vec<Vec<u8>>> {
        let mut names = self.used()?.list_xattr(node)?;
        names.retain(|name| {
            (privileged || !name.starts_with(b"trusted.")) && self.check_acl(name).is_ok()
        });
        Ok(names)
    }

    fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.check_acl(name)?;
        Ok(self.used()?.remove_xattr(node, name)?)
    }

    fn fallocate(
        &self,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: Fallocate,
        kill_suid_sgid: bool,
    ) -> Result<()> {
        if kill_suid_sgid {
            self.used()?.clear_suid_sgid(handle)?;
        }
        Ok(self.used()?.fallocate(handle, offset, len, mode)?)
    }

    fn lseek(&self, handle: Handle, offset: u64, what: Seek, sent: Range<u64>) -> Result<Sought> {
        Ok(self.used()?.seek_under_cache(handle, offset, what, sent)?)
    }

    fn copy_file_range(
        &self,
        from: FileRange,
        to: FileRange,
        len: u64,
        kill_suid_sgid: bool,
    ) -> Result<u64> {
        if kill_suid_sgid {
            self.used()?.clear_suid_sgid(to.handle)?;
        }
        Ok(self.used()?.copy_range(from.handle, from.offset, to.handle, to.offset, len)?)
    }
}
