//! Extended attributes: one sealed blob for each inode, in one attribute of the store. POSIX ACLs: the store's own.
//!
//! Rules that hold here
//! * `user.`, `trusted.` and `security.` attributes are sealed, name and value, in the one blob. Who may touch which is the kernel's
//!   business before it asks us.
//! * The two ACLs stand beside the mode, in clear like it, as the store's own: so the store's kernel keeps mode and mask in step and hands
//!   a directory's default ACL down. A store without ACLs says so when one is set, and has none when one is asked for.

use std::sync::Arc;

use super::core::Core;
use super::entries::Folder;
use super::error::{Fault, Inner};
use super::file::OpenFile;
use super::types::{Caller, NodeId, ROOT, SetXattr};
use crate::backing::{Dir, Kind};
use crate::format::record::{OVERHEAD, RecordKind, XATTRS_MAX, Xattrs, epoch_of};

/// The store's attribute that holds the blob.
const KEY: &[u8] = b"user.kithfs";
/// The same for symbolic links, FIFOs, sockets and devices, which cannot have attributes of the other kind. Only root can use it.
const KEY_SPECIAL: &[u8] = b"trusted.kithfs";
/// The store's attribute that holds the blob of an object of this kind.
pub(crate) fn key_of(kind: Kind) -> &'static [u8] {
    if matches!(kind, Kind::File | Kind::Dir) { KEY } else { KEY_SPECIAL }
}

/// Longest name of an attribute.
const NAME_MAX: usize = 255;
/// The ACL of an object.
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The ACL that what is made in a directory begins with.
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

fn is_acl(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

fn check_name(name: &[u8]) -> Inner<()> {
    let known = [&b"user."[..], b"trusted.", b"security."].iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
    if name.len() > NAME_MAX {
        return Err(Fault::Os(libc::ERANGE));
    }
    if known { Ok(()) } else { Err(Fault::Os(libc::EOPNOTSUPP)) }
}

/// Where the attributes of a node are reached.
enum Place {
    /// By its own handle: an open file, or a directory that is the root or has lost its name.
    File(Arc<OpenFile>),
    Dir(Arc<dyn Dir>),
    /// By its name in a directory.
    Entry(Arc<dyn Dir>, Box<[u8]>),
}

impl Place {
    /// `None` where there is none, or where the store has no such attributes for this object.
    fn get(&self, key: &[u8]) -> Inner<Option<Vec<u8>>> {
        let value = match self {
            Place::File(open) => open.file.get_xattr(key),
            Place::Dir(dir) => dir.get_xattr_self(key),
            Place::Entry(dir, stored) => dir.get_xattr(stored, key),
        };
        match value {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP)) => Ok(None),
            other => Ok(other?),
        }
    }

    fn set(&self, key: &[u8], value: &[u8]) -> Inner<()> {
        match self {
            Place::File(open) => open.file.set_xattr(key, value)?,
            Place::Dir(dir) => dir.set_xattr_self(key, value)?,
            Place::Entry(dir, stored) => dir.set_xattr(stored, key, value)?,
        }
        Ok(())
    }

    /// False where there was none.
    fn remove(&self, key: &[u8]) -> Inner<bool> {
        Ok(match self {
            Place::File(open) => open.file.remove_xattr(key)?,
            Place::Dir(dir) => dir.remove_xattr_self(key)?,
            Place::Entry(dir, stored) => dir.remove_xattr(stored, key)?,
        })
    }

    /// Takes the set-group-id bit away.
    fn clear_sgid(&self) -> Inner<()> {
        let perm = match self {
            Place::File(open) => open.file.stat()?,
            Place::Dir(dir) => dir.stat_self()?,
            Place::Entry(dir, stored) => dir.stat(stored)?,
        }
        .perm;
        if perm & 0o2000 == 0 {
            return Ok(());
        }
        let perm = perm & !0o2000;
        match self {
            Place::File(open) => open.file.chmod(perm)?,
            Place::Dir(dir) => dir.chmod_self(perm)?,
            Place::Entry(dir, stored) => dir.chmod(stored, perm)?,
        }
        Ok(())
    }
}

impl Core {
    fn xattr_place(&self, node: NodeId) -> Inner<Place> {
        if node == ROOT {
            return Ok(Place::Dir(self.root.clone()));
        }
        if let Some(open) = self.files.lock().get(&node).map(|s| s.file.clone()) {
            return Ok(Place::File(open));
        }
        match self.nodes.link(node) {
            Ok(link) => {
                if self.nodes.kind(node)? == Kind::Dir {
                    self.directory_id(node)?; // those of a share's root are its own: sealed under its keys, changed by its writers
                }
                Ok(Place::Entry(self.dir(link.parent)?, link.stored))
            }
            Err(fault) => self.known_dir(node).map(Place::Dir).ok_or(fault),
        }
    }

    fn xattr_key(&self, node: NodeId) -> Inner<&'static [u8]> {
        Ok(key_of(self.nodes.kind(node)?))
    }

    fn read_xattrs(&self, node: NodeId, place: &Place) -> Inner<Option<Xattrs>> {
        match place.get(self.xattr_key(node)?)? {
            Some(blob) => Ok(Some(Xattrs::decode(&self.keys.open_record(RecordKind::Xattrs, b"", &blob)?)?)),
            None => Ok(None),
        }
    }

    fn write_xattrs(&self, node: NodeId, place: &Place, attrs: &Xattrs) -> Inner<()> {
        let key = self.xattr_key(node)?;
        if attrs.0.is_empty() {
            place.remove(key)?;
        } else {
            let plain = attrs.encode();
            if plain.len() > XATTRS_MAX {
                return Err(Fault::Os(libc::ENOSPC));
            }
            let blob = self.keys.seal_record(RecordKind::Xattrs, b"", &plain, &*self.random);
            debug_assert!(blob.len() <= XATTRS_MAX + OVERHEAD);
            place.set(key, &blob)?;
        }
        self.inode_changed(node);
        Ok(())
    }

    pub fn get_xattr(&self, node: NodeId, name: &[u8]) -> Inner<Vec<u8>> {
        let place = self.xattr_place(node)?;
        if is_acl(name) {
            return place.get(name)?.ok_or(Fault::Os(libc::ENODATA));
        }
        check_name(name)?;
        self.read_xattrs(node, &place)?.and_then(|mut attrs| attrs.0.remove(name)).ok_or(Fault::Os(libc::ENODATA))
    }

    pub fn set_xattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: SetXattr) -> Inner<()> {
        self.check_writable()?;
        let _names = self.names.write()?;
        let place = self.xattr_place(node)?;
        if is_acl(name) {
            place.set(name, value)?;
            self.inode_changed(node);
            return Ok(());
        }
        check_name(name)?;
        let mut attrs = self.read_xattrs(node, &place)?.unwrap_or_default();
        match (attrs.0.contains_key(name), mode) {
            (true, SetXattr::Create) => return Err(Fault::Os(libc::EEXIST)),
            (false, SetXattr::Replace) => return Err(Fault::Os(libc::ENODATA)),
            _ => {}
        }
        attrs.0.insert(name.to_vec(), value.to_vec());
        self.write_xattrs(node, &place, &attrs)
    }

    /// Epoch under which the attributes of a node are sealed; `None` where it has none.
    pub fn xattrs_epoch(&self, node: NodeId) -> Inner<Option<u32>> {
        let blob = self.xattr_place(node)?.get(self.xattr_key(node)?)?;
        Ok(blob.map(|blob| epoch_of(RecordKind::Xattrs, &blob)).transpose()?)
    }

    /// Seals the attributes of a node anew under the current epoch.
    pub fn reseal_xattrs(&self, node: NodeId) -> Inner<()> {
        let _names = self.names.write()?;
        let place = self.xattr_place(node)?;
        match self.read_xattrs(node, &place)? {
            Some(attrs) => self.write_xattrs(node, &place, &attrs),
            None => Ok(()),
        }
    }

    pub fn list_xattr(&self, node: NodeId) -> Inner<Vec<Vec<u8>>> {
        let place = self.xattr_place(node)?;
        let mut names = self.read_xattrs(node, &place)?.map_or(Vec::new(), |attrs| attrs.0.into_keys().collect());
        for (acl, kinds) in [(ACL_ACCESS, &[Kind::File, Kind::Dir, Kind::Fifo, Kind::Socket][..]), (ACL_DEFAULT, &[Kind::Dir])] {
            if kinds.contains(&self.nodes.kind(node)?) && place.get(acl)?.is_some() {
                names.push(acl.to_vec());
            }
        }
        Ok(names)
    }

    pub fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Inner<()> {
        self.check_writable()?;
        let _names = self.names.write()?;
        let place = self.xattr_place(node)?;
        if is_acl(name) {
            let was_there = place.remove(name)?;
            self.inode_changed(node);
            return if was_there { Ok(()) } else { Err(Fault::Os(libc::ENODATA)) };
        }
        check_name(name)?;
        let mut attrs = self.read_xattrs(node, &place)?.unwrap_or_default();
        if attrs.0.remove(name).is_none() {
            return Err(Fault::Os(libc::ENODATA));
        }
        self.write_xattrs(node, &place, &attrs)
    }

    /// Takes the set-group-id bit of a node away, as a change of its ACL by somebody outside its group does.
    pub fn clear_sgid(&self, node: NodeId) -> Inner<()> {
        self.check_writable()?;
        self.xattr_place(node)?.clear_sgid()?;
        self.inode_changed(node);
        Ok(())
    }
}

impl Folder<'_> {
    /// The permission bits with which something is made here: where the directory hands down an ACL, that takes the place of the umask.
    pub fn masked(&self, caller: &Caller, perm: u32) -> u32 {
        let taken = caller.umask & 0o777 & perm;
        let hands_down = || matches!(self.dir().get_xattr_self(ACL_DEFAULT), Ok(Some(_)));
        if taken == 0 || hands_down() { perm } else { perm & !taken }
    }
}
