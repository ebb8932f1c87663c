//! Extended attributes: one sealed blob for each inode, in one attribute of the store. POSIX ACLs: the store's own.
//!
//! Rules that hold here
//! * A list that the store has no room for (ext4 has about 4 KiB, others up to 64 KiB) stands in a control file at the share's root, and
//!   the store's attribute holds a sealed reference to it. Each list has a reference of its own, so that what refers to it can be
//!   replaced at once: the new file, the reference, and when that is on the disk the old file goes. It stays where a conflict
//!   copy stands beside the entry, which may have the same reference: residue is better than a list that is missing.
//! * `user.`, `trusted.` and `security.` attributes are sealed, name and value, in the one blob. Who may touch which is the kernel's
//!   business before it asks us.
//! * The two ACLs stand beside the mode, in clear like it, as the store's own: so the store's kernel keeps mode and mask in step and hands
//!   a directory's default ACL down. A store without ACLs says so when one is set, and has none when one is asked for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::core::{Core, list, read_control, write_control};
use super::entries::Folder;
use super::error::{Fault, Inner};
use super::file::OpenFile;
use super::overflow::{Reference, control_name, reference_of};
use super::types::{Caller, NodeId, ROOT, SetXattr};
use crate::backing::{Access, Dir, Kind};
use crate::format::name::without_suffix;
use crate::format::record::{OVERFLOW, OVERHEAD, RecordKind, XATTRS_LONG_MAX, XATTRS_MAX, Xattrs, epoch_of};

/// The store's attribute that holds the blob.
const KEY: &[u8] = b"user.kithfs";
/// The same for symbolic links, FIFOs, sockets and devices, which cannot have attributes of the other kind. Only root can use it.
const KEY_SPECIAL: &[u8] = b"trusted.kithfs";
/// The store's attribute that holds the blob of an object of this kind.
pub(crate) fn key_of(kind: Kind) -> &'static [u8] {
    if matches!(kind, Kind::File | Kind::Dir) { KEY } else { KEY_SPECIAL }
}

/// Beginning of the name of a control file with attributes.
pub(crate) const OVERFLOW_FILE: &[u8] = b"+attr-";

/// The reference that the name of a control file with attributes stands for.
pub(crate) fn overflow_reference(name: &[u8]) -> Option<Reference> {
    reference_of(OVERFLOW_FILE, name)
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

/// Whether another version of an entry stands beside it, as a sync tool makes them: with the attributes it has their reference, too.
pub(super) fn has_copies(dir: &dyn Dir, stored: &[u8]) -> bool {
    let is_copy = |name: &[u8]| name != stored && without_suffix(name) == without_suffix(stored);
    list(dir).map_or(true, |all| all.iter().any(|entry| is_copy(&entry.name)))
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

    /// Makes what was set durable.
    fn sync(&self, root: &dyn Dir) -> Inner<()> {
        match self {
            Place::File(open) => open.file.sync_all()?,
            Place::Dir(dir) => dir.sync()?,
            Place::Entry(dir, stored) => match dir.stat(stored)?.kind {
                Kind::File => dir.open_file(stored, Access::Read)?.sync_all()?,
                Kind::Dir => dir.open_dir(stored)?.sync()?,
                // Nothing else can be opened to be flushed alone.
                _ => root.sync_store()?,
            },
        }
        Ok(())
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

    /// The attributes of a node, none where it has no blob, and the reference where they stand in a control file.
    fn read_xattrs(&self, node: NodeId, place: &Place) -> Inner<(Xattrs, Option<Reference>)> {
        match place.get(self.xattr_key(node)?)? {
            Some(blob) => self.open_xattrs(&blob),
            None => Ok((Xattrs::default(), None)),
        }
    }

    /// What a blob holds, or refers to.
    pub fn open_xattrs(&self, blob: &[u8]) -> Inner<(Xattrs, Option<Reference>)> {
        let Some(reference) = self.xattr_reference(blob)? else {
            return Ok((Xattrs::decode(&self.keys.open_record(RecordKind::Xattrs, b"", blob)?)?, None));
        };
        let bytes = read_control(&*self.root, &control_name(OVERFLOW_FILE, &reference), OVERHEAD + XATTRS_LONG_MAX)?;
        let bytes = bytes.ok_or(Fault::Corrupt("has attributes whose control file is missing"))?;
        Ok((Xattrs::decode(&self.keys.open_record(RecordKind::Xattrs, &reference, &bytes)?)?, Some(reference)))
    }

    fn xattr_reference(&self, blob: &[u8]) -> Inner<Option<Reference>> {
        let Some((&OVERFLOW, record)) = blob.split_first() else { return Ok(None) };
        let reference = self.keys.open_record(RecordKind::Xattrs, b"+", record)?;
        match Reference::try_from(reference.as_slice()) {
            Ok(reference) => Ok(Some(reference)),
            Err(_) => Err(Fault::Corrupt("has a reference to attributes that is of the wrong length")),
        }
    }

    fn write_xattrs(&self, node: NodeId, place: &Place, attrs: &Xattrs, before: Option<Reference>) -> Inner<()> {
        let key = self.xattr_key(node)?;
        if attrs.0.is_empty() {
            place.remove(key)?;
        } else {
            self.set_xattrs(place, key, &attrs.encode())?;
        }
        self.inode_changed(node);
        // The change is made; an old file that cannot go yet is residue.
        if let Some(before) = before
            && !self.may_be_copied(node, place)
            && place.sync(&*self.root).is_ok()
        {
            let _ = self.drop_overflow(OVERFLOW_FILE, &before);
        }
        Ok(())
    }

    /// Whether a conflict copy may have the reference of this node too.
    fn may_be_copied(&self, node: NodeId, place: &Place) -> bool {
        match self.nodes.link(node) {
            Ok(link) => self.dir(link.parent).map_or(true, |dir| has_copies(&*dir, &link.stored)),
            Err(_) => matches!(place, Place::File(open) if open.copied.load(Ordering::Acquire)),
        }
    }

    /// Seals a list and puts it where there is room for it.
    fn set_xattrs(&self, place: &Place, key: &[u8], plain: &[u8]) -> Inner<()> {
        let seal = |bound: &[u8], plain: &[u8]| self.keys.seal_record(RecordKind::Xattrs, bound, plain, &*self.random);
        if plain.len() <= XATTRS_MAX {
            match place.set(key, &seal(b"", plain)) {
                Err(fault) if [libc::ENOSPC, libc::E2BIG, libc::ERANGE].contains(&fault.errno()) => {}
                other => return other,
            }
        }
        if plain.len() > XATTRS_LONG_MAX {
            return Err(Fault::Os(libc::ENOSPC));
        }
        let reference = self.new_reference();
        write_control(&*self.root, &*self.random, &control_name(OVERFLOW_FILE, &reference), &seal(&reference, plain))?;
        self.root.sync()?;
        let blob = [&[OVERFLOW], seal(b"+", &reference).as_slice()].concat();
        let set = place.set(key, &blob);
        // A store that reports a failure may have set it all the same.
        if set.is_err() && place.get(key).is_ok_and(|there| there.as_ref() != Some(&blob)) {
            let _ = self.drop_overflow(OVERFLOW_FILE, &reference);
        }
        set
    }

    /// Where the attributes of an entry stand that is about to lose its last name, if that is in a control file.
    pub fn long_xattrs(&self, dir: &dyn Dir, stored: &[u8], kind: Kind) -> Option<Reference> {
        self.xattr_reference(&dir.get_xattr(stored, key_of(kind)).ok()??).ok()?
    }

    /// Removes the attributes of what has lost its last name in `dir`, once that is on the disk. Where that fails they are residue; the name
    /// is gone all the same.
    pub fn drop_xattrs(&self, dir: &dyn Dir, reference: Option<Reference>) {
        if let Some(reference) = reference
            && dir.sync().is_ok()
        {
            let _ = self.drop_overflow(OVERFLOW_FILE, &reference);
        }
    }

    /// The same for a file without a name whose last handle was closed.
    pub fn drop_xattrs_of(&self, open: &OpenFile) {
        if !open.copied.load(Ordering::Acquire)
            && let Ok(Some(blob)) = open.file.get_xattr(KEY)
            && let Ok(Some(reference)) = self.xattr_reference(&blob)
            && self.root.sync_store().is_ok()
        {
            let _ = self.drop_overflow(OVERFLOW_FILE, &reference);
        }
    }

    pub fn get_xattr(&self, node: NodeId, name: &[u8]) -> Inner<Vec<u8>> {
        let place = self.xattr_place(node)?;
        if is_acl(name) {
            return place.get(name)?.ok_or(Fault::Os(libc::ENODATA));
        }
        check_name(name)?;
        self.read_xattrs(node, &place)?.0.0.remove(name).ok_or(Fault::Os(libc::ENODATA))
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
        let (mut attrs, before) = self.read_xattrs(node, &place)?;
        match (attrs.0.contains_key(name), mode) {
            (true, SetXattr::Create) => return Err(Fault::Os(libc::EEXIST)),
            (false, SetXattr::Replace) => return Err(Fault::Os(libc::ENODATA)),
            _ => {}
        }
        attrs.0.insert(name.to_vec(), value.to_vec());
        self.write_xattrs(node, &place, &attrs, before)
    }

    /// Epoch under which the attributes of a node are sealed; `None` where it has none.
    pub fn xattrs_epoch(&self, node: NodeId) -> Inner<Option<u32>> {
        let blob = self.xattr_place(node)?.get(self.xattr_key(node)?)?;
        // A reference and what it refers to are sealed together.
        let record = |blob: &[u8]| blob.strip_prefix(&[OVERFLOW]).unwrap_or(blob).to_vec();
        Ok(blob.map(|blob| epoch_of(RecordKind::Xattrs, &record(&blob))).transpose()?)
    }

    /// Seals the attributes of a node anew under the current epoch.
    pub fn reseal_xattrs(&self, node: NodeId) -> Inner<()> {
        let _names = self.names.write()?;
        let place = self.xattr_place(node)?;
        let (attrs, before) = self.read_xattrs(node, &place)?;
        if attrs.0.is_empty() { Ok(()) } else { self.write_xattrs(node, &place, &attrs, before) }
    }

    pub fn list_xattr(&self, node: NodeId) -> Inner<Vec<Vec<u8>>> {
        let place = self.xattr_place(node)?;
        let mut names: Vec<_> = self.read_xattrs(node, &place)?.0.0.into_keys().collect();
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
        let (mut attrs, before) = self.read_xattrs(node, &place)?;
        if attrs.0.remove(name).is_none() {
            return Err(Fault::Os(libc::ENODATA));
        }
        self.write_xattrs(node, &place, &attrs, before)
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
