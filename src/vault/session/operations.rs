//! The filesystem operations on nodes and handles; each call goes to the share that contains its
//! node.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::format::name::NAME_MAX;
use crate::format::signature::Authorship;
use crate::store::{Dir, Kind, Lock, Seek, Space, Span};
use crate::vault::core::Core;
use crate::vault::core::open_table::Open;
use crate::vault::error::{Error, Fault, Result};
use crate::vault::session::nested::Shares;
use crate::vault::session::vault::Vault;
use crate::vault::types::*;

impl Vault {
    /// Finds `name` in a directory; adds one lookup to its node.
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attr> {
        self.attr_on("lookup", parent, |core, parent| core.lookup(parent, name))
    }

    /// Returns the attributes of a node.
    pub fn getattr(&self, node: NodeId) -> Result<Attr> {
        self.attr_on("stat", node, |core, node| core.stat(node))
    }

    /// Changes attributes of a node.
    pub fn setattr(&self, node: NodeId, set: &SetAttr) -> Result<Attr> {
        self.attr_on("change attributes of", node, |core, node| core.setattr(node, set))
    }

    /// Returns the target of a symbolic link.
    pub fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        self.on_node("readlink", node, |core, node| core.readlink(node))
    }

    /// Creates an empty file, a FIFO, a socket or a device; adds one lookup.
    pub fn mknod(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        kind: Kind,
        perm: u32,
        rdev: u64,
    ) -> Result<Attr> {
        self.attr_on("mknod", parent, |core, parent| {
            core.remember_name(parent, name);
            core.mknod(caller, parent, name, kind, perm, rdev)
        })
    }

    /// Creates a directory; adds one lookup.
    pub fn mkdir(&self, caller: &Caller, parent: NodeId, name: &[u8], perm: u32) -> Result<Attr> {
        self.attr_on("mkdir", parent, |core, parent| {
            core.remember_name(parent, name);
            core.mkdir(caller, parent, name, perm)
        })
    }

    /// Creates a symbolic link; adds one lookup.
    pub fn symlink(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Attr> {
        self.attr_on("symlink", parent, |core, parent| {
            core.remember_name(parent, name);
            core.symlink(caller, parent, name, target)
        })
    }

    /// Gives a node another name; adds one lookup.
    pub fn link(&self, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Attr> {
        let to = self.shares().directory("link", new_parent)?;
        let of =
            self.shares().raw(node).map_err(|fault| self.shares().explain("link", &to, fault))?;
        if of.number != to.number {
            return Err(Error::Os { op: "link", errno: libc::EXDEV });
        }
        to.core.remember_name(to.local, new_name);
        let linked = to
            .core
            .link(of.local, to.local, new_name)
            .map_err(|fault| self.shares().explain("link", &of, fault))?;
        Ok(self.shares().attr(to.number, linked))
    }

    /// Removes a name that is not a directory.
    pub fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        self.on_node("unlink", parent, |core, parent| {
            core.remember_name(parent, name);
            core.unlink(parent, name)
        })
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        let route = self.shares().directory("rmdir", parent)?;
        // Checked before a nested share is closed: otherwise it could be closed although its
        // directory cannot be removed.
        route
            .core
            .check_writable()
            .map_err(|fault| self.shares().explain("rmdir", &route, fault))?;
        if self.shares().has_nested()
            && let Ok(attr) = route.core.lookup(route.local, name)
        {
            // If it is a nested share, it is closed before its directory is removed.
            let left = self.shares().leave(self.shares().outside(route.number, attr.node));
            route.core.nodes.forget(attr.node, 1);
            left?;
        }
        self.shares().keep_removed(&route, name);
        route.core.remember_name(route.local, name);
        route
            .core
            .rmdir(route.local, name)
            .map_err(|fault| self.shares().explain("rmdir", &route, fault))
    }

    /// Renames an entry.
    pub fn rename(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let (from, to) = self.in_one_share("rename", parent, new_parent)?;
        from.core.remember_name(from.local, name);
        from.core.remember_name(to.local, new_name);
        let renamed = from.core.rename(from.local, name, to.local, new_name, mode);
        renamed.map_err(|fault| self.shares().explain("rename", &from, fault))
    }

    /// Opens a regular file.
    pub fn open_file(&self, node: NodeId, flags: OpenFlags) -> Result<Opened> {
        let (opened, number) =
            self.shares().run("open", node, |core, node| core.open_file(node, flags))?;
        Ok(Opened { handle: Shares::outside_handle(number, opened.handle), ..opened })
    }

    /// Creates and opens a regular file; adds one lookup. Fails with `EEXIST` if the name is taken.
    pub fn create_file(
        &self,
        caller: &Caller,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Opened)> {
        let created = self.shares().run("create in", parent, |core, parent| {
            core.remember_name(parent, name);
            let (attr, handle) = core.create_file(caller, parent, name, perm, flags)?;
            Ok((attr, handle, matches!(core.open.handle(handle)?, Open::File { direct: true, .. })))
        });
        let ((attr, handle, direct), number) = created?;
        let opened = Opened {
            handle: Shares::outside_handle(number, handle),
            keep_cache: true,
            alone: None,
            direct,
        };
        Ok((self.shares().attr(number, attr), opened))
    }

    /// Reads up to `buf.len()` bytes; fewer only at the end of the file.
    pub fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.on_handle("read", handle, |core, handle| core.read(handle, offset, buf))
    }

    /// Writes all of `data`; at the end of the file if the handle was opened to append.
    pub fn write(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_suid_sgid: bool,
    ) -> Result<()> {
        self.on_handle("write", handle, |core, handle| {
            core.write(handle, offset, data, kill_suid_sgid)
        })
    }

    /// Writes dirty pages of the caller's cache at `offset`, also if the handle was opened to append.
    pub fn write_pages(
        &self,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_suid_sgid: bool,
    ) -> Result<()> {
        self.on_handle("write", handle, |core, handle| {
            core.write_pages(handle, offset, data, kill_suid_sgid)
        })
    }

    /// Notes that dirty pages of the caller's cache, of `offset..end`, were refused with `errno`:
    /// the cache counts them as written. Returns whether they should be written again.
    pub fn pages_refused(&self, handle: Handle, offset: u64, end: u64, errno: i32) -> bool {
        self.shares()
            .raw(handle)
            .is_ok_and(|route| route.core.pages_refused(route.local, offset, end, errno))
    }

    /// Called before the caller's cache accepts more data for a file. Returns whether the cache
    /// should send its dirty data first.
    ///
    /// # Errors
    /// The error for the write: that of an earlier one, or `ENOSPC` if there is no more
    /// room.
    pub fn before_write(&self, handle: Handle) -> Result<bool> {
        self.on_handle("write", handle, |core, handle| core.before_write(handle))
    }

    /// Returns whether the store has little room. Files that are opened for writing now are not
    /// cached for writing.
    pub fn is_low(&self) -> bool {
        self.core().is_low()
    }

    /// Returns a number that stays the same as long as the kernel may cache what it is told about a
    /// node, or `None` if it may not: another daemon may change it at any moment. An answer may be
    /// cached only if the number was the same before its contents were read. It is [`ALONE`] if
    /// no other daemon has the node's share open.
    pub fn caching(&self, node: NodeId) -> Option<u64> {
        self.shares().route(node).ok()?.core.lease.generation()
    }

    /// Makes the vault call `tell`, from any thread, for each node of which the caller's cache must
    /// drop something.
    pub fn tell_cache(&self, tell: impl Fn(NodeId, Forget) + Send + Sync + 'static) {
        self.shares().tell_kernel(std::sync::Arc::new(tell));
    }

    /// Returns the error for close(2) of a descriptor: a failure that happened since the file was
    /// opened.
    pub fn flush(&self, handle: Handle) -> Result<()> {
        self.on_handle("flush", handle, |core, handle| core.flush(handle))
    }

    /// Takes, changes or removes a lock of a program on a file, without waiting, in a vault with
    /// concurrent writers. Returns false if the lock of another owner prevents it. What was written
    /// to the file is committed before a lock is removed.
    pub fn lock(&self, handle: Handle, request: &LockRequest) -> Result<bool> {
        self.on_handle("lock", handle, |core, handle| core.lock(handle, request))
    }

    /// Returns the committed state of a file if the caller's cache may have pages of an earlier one.
    /// Asked after a lock was granted.
    pub fn pages_to_drop(&self, handle: Handle) -> Option<[u8; 32]> {
        self.shares().raw(handle).ok().and_then(|route| route.core.pages_to_drop(route.local))
    }

    /// Notes that the caller's cache has dropped all pages of a file that are older than `older`.
    pub fn pages_dropped(&self, handle: Handle, older: [u8; 32]) {
        if let Ok(route) = self.shares().raw(handle) {
            route.core.pages_dropped(route.local, older);
        }
    }

    /// Returns a lock that prevents the requested one.
    pub fn find_lock(&self, handle: Handle, request: &LockRequest) -> Result<Option<(Lock, Span)>> {
        self.on_handle("lock", handle, |core, handle| core.find_lock(handle, request))
    }

    /// Removes all locks of `fcntl` that `owner` has on the file of a handle.
    pub fn unlock_owner(&self, handle: Handle, owner: u64) {
        let unlock = |core: &Core, handle| {
            core.unlock_owner(handle, owner);
            Ok(())
        };
        let _ = self.on_handle("unlock", handle, unlock); // a handle that is gone has no locks
    }

    /// Makes contents and attributes durable.
    pub fn fsync(&self, handle: Handle, data_only: bool) -> Result<()> {
        self.on_handle("fsync", handle, |core, handle| core.fsync(handle, data_only))
    }

    /// Closes a file; the last handle commits.
    pub fn release(&self, handle: Handle) -> Result<()> {
        self.on_handle("close", handle, |core, handle| core.release_handle(handle))
    }

    /// Returns the next data or hole at or after `offset`.
    pub fn seek_data_hole(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        self.on_handle("seek in", handle, |core, handle| core.seek_data_hole(handle, offset, what))
    }

    /// Like [`Vault::seek_data_hole`], if the caller's cache may have dirty data. It has none of
    /// the range `sent`.
    pub fn seek_under_cache(
        &self,
        handle: Handle,
        offset: u64,
        what: Seek,
        sent: Range<u64>,
    ) -> Result<Sought> {
        self.on_handle("seek in", handle, |core, handle| {
            core.seek_under_cache(handle, offset, what, &sent)
        })
    }

    /// Reserves, punches or zeroes a range.
    pub fn fallocate(&self, handle: Handle, offset: u64, len: u64, mode: Fallocate) -> Result<()> {
        self.on_handle("fallocate", handle, |core, handle| {
            core.fallocate(handle, offset, len, mode)
        })
    }

    /// Copies a range between two open files, sealed again under the keys of the second; returns
    /// the number of bytes copied.
    pub fn copy_range(
        &self,
        from: Handle,
        from_offset: u64,
        to: Handle,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        let from =
            self.shares().raw(from).map_err(|_| Error::Os { op: "copy", errno: libc::EBADF })?;
        self.on_handle("copy", to, |core, to| {
            if !std::ptr::eq(core, &*from.core) {
                return Err(Fault::Os(libc::EXDEV));
            }
            core.copy_range(from.local, from_offset, to, to_offset, len)
        })
    }

    /// Opens a directory for listing.
    pub fn open_dir(&self, node: NodeId) -> Result<Handle> {
        let (handle, number) = self.shares().run("open", node, |core, node| core.open_dir(node))?;
        Ok(Shares::outside_handle(number, handle))
    }

    /// Returns entries from position `cookie` on (0 is the beginning), without `.` and `..`; empty
    /// at the end.
    pub fn read_dir(&self, handle: Handle, cookie: i64, limit: usize) -> Result<Vec<Entry>> {
        self.on_handle("list", handle, |core, handle| core.read_dir(handle, cookie, limit))
    }

    /// Returns the state on which the decoding of names in an open directory depends.
    pub fn names_read_with(&self, handle: Handle) -> Result<NamesReadWith> {
        self.on_handle("look at", handle, |core, handle| core.names_read_with(handle))
    }

    /// Returns whether changes of an open directory certainly have the time of this machine's
    /// clock.
    pub fn has_our_clock(&self, handle: Handle) -> bool {
        self.on_handle("look at", handle, |core, handle| Ok(core.has_our_clock(handle)))
            .unwrap_or(false)
    }

    /// Returns whether this handle has listed an entry under its stored name because its long name
    /// is lost, or skipped one: it may get a name without a change of the directory.
    pub fn has_unread_names(&self, handle: Handle) -> bool {
        self.on_handle("look at", handle, |core, handle| Ok(core.has_unread_names(handle)))
            .unwrap_or(false)
    }

    /// Returns whether this handle has skipped an entry whose name looks like one of the vault's:
    /// the listing is incomplete.
    pub fn misses_entries(&self, handle: Handle) -> bool {
        self.on_handle("look at", handle, |core, handle| Ok(core.misses_entries(handle)))
            .unwrap_or(false)
    }

    /// Returns the attributes of an entry of a listing; adds one lookup.
    pub fn lookup_entry(&self, handle: Handle, entry: &Entry) -> Result<Attr> {
        let number = self.shares().raw(handle).map_or(0, |route| route.number);
        let attr =
            self.on_handle("lookup in", handle, |core, handle| core.lookup_entry(handle, entry))?;
        Ok(self.shares().attr(number, attr))
    }

    /// Makes the entries of a directory durable.
    pub fn sync_dir(&self, handle: Handle) -> Result<()> {
        self.on_handle("fsync", handle, |core, handle| core.sync_dir(handle))
    }

    /// Returns the value of an extended attribute; fails with `ENODATA` if there is none.
    pub fn get_xattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.on_node("get attribute of", node, |core, node| core.get_xattr(node, name))
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: SetXattr) -> Result<()> {
        self.on_node("set attribute of", node, |core, node| core.set_xattr(node, name, value, mode))
    }

    /// Returns the names of the extended attributes, with their namespaces.
    pub fn list_xattr(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        self.on_node("list attributes of", node, |core, node| core.list_xattr(node))
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.on_node("remove attribute of", node, |core, node| core.remove_xattr(node, name))
    }

    /// Clears the set-group-ID bit, as a change of the ACL by a user outside the group does.
    pub fn clear_sgid(&self, node: NodeId) -> Result<()> {
        self.on_node("change attributes of", node, |core, node| core.clear_sgid(node))
    }

    /// Clears set-user-ID and (if group-executable) set-group-ID of an open file, as any change of
    /// its contents by an ordinary user does.
    pub fn clear_suid_sgid(&self, handle: Handle) -> Result<()> {
        self.on_handle("change attributes of", handle, |core, handle| core.clear_suid_sgid(handle))
    }

    /// Returns author and signer of a regular file's contents by its committed header; `None` in an
    /// unsigned share.
    pub fn author(&self, node: NodeId) -> Result<Option<Authorship>> {
        self.on_node("read", node, |core, node| core.author(node))
    }

    /// Lets nodes linger whose lookups are dropped: [`Vault::lookup_again`] finds them. Their number
    /// is limited by [`OpenOptions::cache_bytes`](crate::vault::OpenOptions::cache_bytes).
    pub fn let_nodes_linger(&self) {
        self.shares().let_nodes_linger();
    }

    /// Drops `count` lookups of a node.
    pub fn forget(&self, node: NodeId, count: u64) {
        self.shares().forget(node, count);
    }

    /// Finds a node by its number, which an earlier lookup has returned; adds one lookup.
    ///
    /// # Errors
    /// `ESTALE` if none of its names leads to it any more, or if it does not linger any more.
    pub fn lookup_again(&self, node: NodeId) -> Result<Attr> {
        const OP: &str = "look up again";
        if node == ROOT {
            let attr = self.getattr(ROOT)?;
            self.core().nodes.root_seen();
            return Ok(attr);
        }
        let names = self.shares().names(node).map_err(|fault| fault.at(OP, PathBuf::new))?;
        for (parent, name) in names {
            match self.lookup(parent, &name) {
                Ok(attr) if attr.node == node => return Ok(attr),
                Ok(attr) => self.forget(attr.node, 1),
                Err(_) => {}
            }
        }
        Err(Error::Os { op: OP, errno: libc::ESTALE })
    }

    /// Finds the parent of a directory; adds one lookup to it. The root is its own parent.
    ///
    /// # Errors
    /// As [`Vault::lookup_again`].
    pub fn lookup_parent(&self, node: NodeId) -> Result<Attr> {
        if node == ROOT {
            return self.lookup_again(ROOT);
        }
        match self.shares().names(node) {
            Ok(names) => self.lookup_again(names[0].0),
            Err(fault) => Err(fault.at("look up the parent of", PathBuf::new)),
        }
    }

    /// Closes a directory.
    pub fn release_dir(&self, handle: Handle) {
        let _ = self.on_handle("close", handle, |core, handle| core.release_handle(handle));
    }

    /// Returns the parent of a directory; the root for itself, and for a directory without a name.
    pub fn parent(&self, node: NodeId) -> NodeId {
        let parent = self.shares().raw(node).and_then(|route| {
            let link = route.core.nodes.link(route.local)?;
            Ok(self.shares().outside(route.number, link.parent))
        });
        parent.unwrap_or(ROOT)
    }

    /// Returns the directory of the store, which stays open after the vault is closed.
    pub fn store(&self) -> Arc<dyn Dir> {
        self.core().root.clone()
    }

    /// Returns free and used space of the store.
    pub fn space(&self) -> Result<Space> {
        let space =
            self.core().root.space().map_err(|e| self.core().explain("measure", ROOT, e.into()))?;
        Ok(Space { name_max: NAME_MAX as u64, ..space })
    }
}
