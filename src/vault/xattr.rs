//! Extended attributes: one sealed blob for each inode, in one attribute of the store.

use super::core::Core;
use super::error::{Fault, Inner};
use super::types::{NodeId, ROOT, SetXattr};
use crate::format::record::{OVERHEAD, RecordKind, XATTRS_MAX, Xattrs};

/// The store's attribute that holds the blob.
const KEY: &[u8] = b"user.kithfs";
/// Longest name of an attribute.
const NAME_MAX: usize = 255;

fn check_name(name: &[u8]) -> Inner<()> {
    // POSIX ACLs would have to be the store's own; until they are, they are refused, never stored where nobody enforces them.
    let known = [&b"user."[..], b"trusted.", b"security."].iter().any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
    if name.len() > NAME_MAX {
        return Err(Fault::Os(libc::ERANGE));
    }
    if known { Ok(()) } else { Err(Fault::Os(libc::EOPNOTSUPP)) }
}

impl Core {
    fn read_xattrs(&self, node: NodeId) -> Inner<Option<Xattrs>> {
        if self.nodes.kind(node)? == crate::backing::Kind::Dir {
            self.directory_id(node)?; // the attributes of a share's root are sealed under its own keys
        }
        let open = self.files.lock().get(&node).map(|s| s.file.clone());
        let blob = match (self.nodes.link(node), open) {
            _ if node == ROOT => self.root.get_xattr_self(KEY),
            (_, Some(open)) => open.file.get_xattr(KEY),
            (Ok(link), None) => self.dir(link.parent)?.get_xattr(&link.stored, KEY),
            (Err(fault), None) => return Err(fault),
        };
        let blob = match blob {
            Ok(Some(blob)) => blob,
            Ok(None) => return Ok(None),
            // Links and special files have no attributes of this kind on most stores.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP)) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        Ok(Some(Xattrs::decode(&self.keys.open_record(RecordKind::Xattrs, b"", &blob)?)?))
    }

    fn write_xattrs(&self, node: NodeId, attrs: &Xattrs) -> Inner<()> {
        let open = self.files.lock().get(&node).map(|s| s.file.clone());
        let link = self.nodes.link(node);
        if attrs.0.is_empty() {
            match (link, &open) {
                _ if node == ROOT => self.root.remove_xattr_self(KEY)?,
                (_, Some(open)) => open.file.remove_xattr(KEY)?,
                (Ok(link), None) => self.dir(link.parent)?.remove_xattr(&link.stored, KEY)?,
                (Err(fault), None) => return Err(fault),
            };
        } else {
            let plain = attrs.encode();
            if plain.len() > XATTRS_MAX {
                return Err(Fault::Os(libc::ENOSPC));
            }
            let blob = self.keys.seal_record(RecordKind::Xattrs, b"", &plain, &*self.random);
            debug_assert!(blob.len() <= XATTRS_MAX + OVERHEAD);
            match (link, &open) {
                _ if node == ROOT => self.root.set_xattr_self(KEY, &blob)?,
                (_, Some(open)) => open.file.set_xattr(KEY, &blob)?,
                (Ok(link), None) => self.dir(link.parent)?.set_xattr(&link.stored, KEY, &blob)?,
                (Err(fault), None) => return Err(fault),
            }
        }
        if let Some(open) = open {
            open.state.write().needs_sync = true;
        }
        Ok(())
    }

    pub fn get_xattr(&self, node: NodeId, name: &[u8]) -> Inner<Vec<u8>> {
        check_name(name)?;
        self.read_xattrs(node)?.and_then(|mut attrs| attrs.0.remove(name)).ok_or(Fault::Os(libc::ENODATA))
    }

    pub fn set_xattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: SetXattr) -> Inner<()> {
        self.check_writable()?;
        check_name(name)?;
        let _names = self.names.write();
        let mut attrs = self.read_xattrs(node)?.unwrap_or_default();
        match (attrs.0.contains_key(name), mode) {
            (true, SetXattr::Create) => return Err(Fault::Os(libc::EEXIST)),
            (false, SetXattr::Replace) => return Err(Fault::Os(libc::ENODATA)),
            _ => {}
        }
        attrs.0.insert(name.to_vec(), value.to_vec());
        self.write_xattrs(node, &attrs)
    }

    pub fn list_xattr(&self, node: NodeId) -> Inner<Vec<Vec<u8>>> {
        Ok(self.read_xattrs(node)?.map_or(Vec::new(), |attrs| attrs.0.into_keys().collect()))
    }

    pub fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Inner<()> {
        self.check_writable()?;
        check_name(name)?;
        let _names = self.names.write();
        let mut attrs = self.read_xattrs(node)?.unwrap_or_default();
        if attrs.0.remove(name).is_none() {
            return Err(Fault::Os(libc::ENODATA));
        }
        self.write_xattrs(node, &attrs)
    }
}
