//! Extended attributes: one sealed blob for each inode, in one attribute of the store. POSIX ACLs:
//! those of the store.
//!
//! Rules that hold here
//! * A list for which the store has no room (ext4 has about 4 KiB, others up to 64 KiB) is stored
//!   in a control file at the share's root. The store's attribute then contains a sealed reference
//!   to it. Each list has a reference of its own, so that it can be replaced atomically.
//! * The old file stays as residue (see `overflow`), unless this process wrote it recently. Such a
//!   file is removed once the attribute that no longer refers to it is on the disk. It stays if
//!   this process has renamed or linked an entry since, or if the entry has other names or a
//!   conflict copy beside it, which may have the same reference.
//! * Readers take no lock: if the file of a list is missing, the reference is read again, because
//!   it may have changed.
//! * `user.`, `trusted.` and `security.` attributes are sealed, name and value, in the one blob.
//!   The kernel checks access to them before it sends the request.
//! * The two ACLs are stored beside the mode, in plain text like it, as the store's own. So the
//!   store's kernel keeps mode and mask consistent and applies a directory's default ACL. On a
//!   store without ACLs, setting one fails, and getting one fails with `ENODATA`.

use std::sync::Arc;
use std::time::Instant;

use crate::format::name::without_suffix;
use crate::format::record::{
    OVERFLOW, OVERHEAD, RecordKind, XATTRS_LONG_MAX, XATTRS_MAX, Xattrs, epoch_of,
};
use crate::store::{Access, Dir, File, Kind, Stat};
use crate::vault::core::Core;
use crate::vault::core::overflow::{
    ACL_ACCESS, ATTRIBUTES, Reference, control_name, drop_overflow, new_reference, reference_of,
};
use crate::vault::directory::folder::Folder;
use crate::vault::durability::journal::Journal;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::file::OpenFile;
use crate::vault::share::control_files::{list_at_most, read_referred, write_control};
use crate::vault::types::{Caller, NodeId, ROOT, SetXattr};

/// The store's attribute that contains the blob of a symbolic link, FIFO, socket or device: these
/// cannot have `user.` attributes. Only root can use it.
const KEY_SPECIAL: &[u8] = b"trusted.kithfs";
/// Returns the store's attribute that contains the blob of an object of this kind.
pub(crate) fn key_of(kind: Kind) -> &'static [u8] {
    if matches!(kind, Kind::File | Kind::Dir) { ATTRIBUTES } else { KEY_SPECIAL }
}

/// Prefix of the name of a control file with attributes.
pub(crate) const OVERFLOW_FILE: &[u8] = b"+attr-";

/// Returns the reference in the name of a control file with attributes.
pub(crate) fn overflow_reference(name: &[u8]) -> Option<Reference> {
    reference_of(OVERFLOW_FILE, name)
}

/// Returns whether attributes with this fault are permanently damaged. For other faults, the store
/// may only have failed this once, or the key, the signer's rights, or the list itself may arrive
/// later.
pub(crate) fn is_lasting(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Format(_) | Fault::Corrupt(Corruption::ControlTooLarge | Corruption::WrongReference)
    )
}

/// Maximum number of reads of a list whose reference changes each time.
const TRIES: usize = 64;
/// Maximum number of directory entries that are searched for conflict copies. In a larger directory
/// every old list stays.
const LOOKED_MAX: usize = 1 << 16;

/// Maximum length in bytes of the name of an attribute.
const NAME_MAX: usize = 255;
/// The ACL that new objects in a directory inherit.
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

fn is_acl(name: &[u8]) -> bool {
    name == ACL_ACCESS || name == ACL_DEFAULT
}

fn check_name(name: &[u8]) -> Inner<()> {
    let known = [&b"user."[..], b"trusted.", b"security."]
        .iter()
        .any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
    if name.len() > NAME_MAX {
        return Err(Fault::Os(libc::ERANGE));
    }
    if known { Ok(()) } else { Err(Fault::Os(libc::EOPNOTSUPP)) }
}

/// Returns whether a sync tool's conflict copy of an entry may be beside it: a copy of the
/// attributes contains the same reference. True if the directory is too large or cannot be listed.
fn has_copies(dir: &dyn Dir, stored: &[u8]) -> bool {
    let is_copy = |name: &[u8]| name != stored && without_suffix(name) == without_suffix(stored);
    !matches!(list_at_most(dir, LOOKED_MAX), Ok(Some(all)) if !all.iter().any(|entry| is_copy(&entry.name)))
}

/// The way to access the attributes of a node.
enum Place {
    /// Through its own handle: an open file, or a directory that is the root or has lost its name.
    File(Arc<OpenFile>),
    Dir(Arc<dyn Dir>),
    /// Through its name in a directory.
    Entry(Arc<dyn Dir>, Box<[u8]>),
}

impl Place {
    /// Returns an attribute; `None` if there is none, or if the store has none of this kind here.
    fn get(&self, key: &[u8]) -> Inner<Option<Vec<u8>>> {
        let value = match self {
            Place::File(open) => open.file().get_xattr(key),
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
            Place::File(open) => open.with_stored(|file| file.set_xattr(key, value))?,
            Place::Dir(dir) => dir.set_xattr_self(key, value)?,
            Place::Entry(dir, stored) => dir.set_xattr(stored, key, value)?,
        }
        Ok(())
    }

    /// Returns false if there was none.
    fn remove(&self, key: &[u8]) -> Inner<bool> {
        Ok(match self {
            Place::File(open) => open.with_stored(|file| file.remove_xattr(key))?,
            Place::Dir(dir) => dir.remove_xattr_self(key)?,
            Place::Entry(dir, stored) => dir.remove_xattr(stored, key)?,
        })
    }

    /// Makes changes of attributes durable.
    fn sync(&self, root: &dyn Dir, journal: &Journal) -> Inner<()> {
        let flush = |file: &Arc<dyn File>, inode| journal.flush(inode, file, || file.sync_all());
        match self {
            Place::File(open) => flush(&open.file(), open.inode())?,
            Place::Dir(dir) => dir.sync()?,
            Place::Entry(dir, stored) => match dir.stat(stored)?.kind {
                Kind::File => {
                    let file = dir.open_file(stored, Access::Read)?;
                    let stat = file.stat_but_times()?;
                    flush(&file, (stat.dev, stat.ino))?;
                }
                Kind::Dir => dir.open_dir(stored)?.sync()?,
                // Other types cannot be opened for a flush of their own.
                _ => root.sync_store()?,
            },
        }
        Ok(())
    }

    fn stat(&self) -> Inner<Stat> {
        Ok(match self {
            Place::File(open) => open.file().stat()?,
            Place::Dir(dir) => dir.stat_self()?,
            Place::Entry(dir, stored) => dir.stat(stored)?,
        })
    }

    /// Clears the set-group-ID bit.
    fn clear_sgid(&self) -> Inner<()> {
        let perm = self.stat()?.perm;
        if perm & 0o2000 == 0 {
            return Ok(());
        }
        let perm = perm & !0o2000;
        match self {
            Place::File(open) => open.with_stored(|file| file.chmod(perm))?,
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
        if let Some(open) = self.open.files.lock().get(&node).map(|s| s.file.clone()) {
            return Ok(Place::File(open));
        }
        match self.link_to_change(node) {
            Ok(link) => {
                if self.nodes.kind(node)? == Kind::Dir {
                    self.directory_tag(node)?; // attributes of a nested share's root belong to that share: its keys, its writers
                }
                Ok(Place::Entry(self.dir(link.parent)?, link.stored().into()))
            }
            Err(fault) => self.dir_without_name(node).map(Place::Dir).ok_or(fault),
        }
    }

    fn xattr_key(&self, node: NodeId) -> Inner<&'static [u8]> {
        Ok(key_of(self.nodes.kind(node)?))
    }

    /// Returns the attributes of a node, empty if it has no blob, and the reference if they are in
    /// a control file.
    fn read_xattrs(&self, node: NodeId, place: &Place) -> Inner<(Xattrs, Option<Reference>)> {
        let key = self.xattr_key(node)?;
        self.read_list(&|| place.get(key))
    }

    /// Returns the list in the blob that `get` returns, or to which the blob refers; empty if there
    /// is none.
    pub fn read_list(
        &self,
        get: &dyn Fn() -> Inner<Option<Vec<u8>>>,
    ) -> Inner<(Xattrs, Option<Reference>)> {
        let mut blob = get()?;
        for _ in 0..TRIES {
            let Some(there) = &blob else { return Ok((Xattrs::default(), None)) };
            match self.open_xattrs(there) {
                Err(Fault::Corrupt(Corruption::ListMissing)) => {}
                other => return other,
            }
            let again = get()?;
            if again == blob {
                break;
            }
            blob = again;
        }
        Err(Fault::Corrupt(Corruption::ListMissing))
    }

    fn open_xattrs(&self, blob: &[u8]) -> Inner<(Xattrs, Option<Reference>)> {
        let Some(reference) = self.xattr_reference(blob)? else {
            return Ok((
                Xattrs::decode(&self.keys.open_record(RecordKind::Xattrs, b"", blob)?)?,
                None,
            ));
        };
        let bytes = read_referred(
            &*self.root,
            &control_name(OVERFLOW_FILE, &reference),
            OVERHEAD + XATTRS_LONG_MAX,
        )?;
        let bytes = bytes.ok_or(Fault::Corrupt(Corruption::ListMissing))?;
        Ok((
            Xattrs::decode(&self.keys.open_record(RecordKind::Xattrs, &reference, &bytes)?)?,
            Some(reference),
        ))
    }

    fn xattr_reference(&self, blob: &[u8]) -> Inner<Option<Reference>> {
        let Some((&OVERFLOW, record)) = blob.split_first() else { return Ok(None) };
        let reference = self.keys.open_record(RecordKind::Xattrs, b"+", record)?;
        match Reference::try_from(reference.as_slice()) {
            Ok(reference) => Ok(Some(reference)),
            Err(_) => Err(Fault::Corrupt(Corruption::WrongReference)),
        }
    }

    fn write_xattrs(&self, node: NodeId, place: &Place, attrs: &Xattrs) -> Inner<()> {
        let key = self.xattr_key(node)?;
        if attrs.0.is_empty() {
            place.remove(key)?;
        } else {
            self.set_xattrs(place, key, &attrs.encode())?;
        }
        self.inode_changed(node);
        Ok(())
    }

    /// Removes the previous list of a node, if nothing else can refer to it: see the module
    /// documentation. This takes long, so no lock is held; a concurrent change of names makes all
    /// lists old.
    fn drop_before(&self, node: NodeId, place: &Place, before: Option<Reference>) {
        if let Some(before) = before
            && self.namespace.young_lists.is_young(&before, Instant::now())
            && self.is_alone(node, place)
            && place.sync(&*self.root, &self.journal).is_ok()
            && self.namespace.young_lists.take(&before, Instant::now())
        {
            // The change is done; an old file that cannot be removed is residue.
            let _ = drop_overflow(&*self.root, OVERFLOW_FILE, &before);
        }
    }

    /// Returns whether the node has one name, without a conflict copy beside it.
    fn is_alone(&self, node: NodeId, place: &Place) -> bool {
        let has_one_name =
            || place.stat().is_ok_and(|stat| stat.kind == Kind::Dir || stat.nlink == 1);
        let has_copies = || match self.nodes.link(node) {
            Ok(link) => self.dir(link.parent).map_or(true, |dir| has_copies(&*dir, link.stored())),
            Err(_) => true,
        };
        node == ROOT || has_one_name() && !has_copies()
    }

    /// Seals a list and stores it inline or in a control file.
    fn set_xattrs(&self, place: &Place, key: &[u8], plain: &[u8]) -> Inner<()> {
        let seal = |bound: &[u8], plain: &[u8]| {
            self.keys.seal_record(RecordKind::Xattrs, bound, plain, &*self.random)
        };
        if plain.len() <= XATTRS_MAX {
            match place.set(key, &seal(b"", plain)) {
                Err(fault)
                    if [libc::ENOSPC, libc::E2BIG, libc::ERANGE].contains(&fault.errno()) => {}
                other => return other,
            }
        }
        if plain.len() > XATTRS_LONG_MAX {
            return Err(Fault::Os(libc::ENOSPC));
        }
        let reference = new_reference(&*self.random);
        write_control(
            &*self.root,
            &*self.random,
            &control_name(OVERFLOW_FILE, &reference),
            &seal(&reference, plain),
        )?;
        self.root.sync()?;
        let blob = [&[OVERFLOW], seal(b"+", &reference).as_slice()].concat();
        let set = place.set(key, &blob);
        // A store that reports a failure may have set it all the same.
        if set.is_err() && place.get(key).is_ok_and(|there| there.as_ref() != Some(&blob)) {
            let _ = drop_overflow(&*self.root, OVERFLOW_FILE, &reference);
        }
        if set.is_ok() {
            self.namespace.young_lists.add(reference, Instant::now());
        }
        set
    }

    /// Ensures that the list to which `blob` refers is not removed, before `blob` is copied to
    /// another inode.
    pub fn share_xattrs(&self, blob: &[u8]) {
        if let Ok(Some(reference)) = self.xattr_reference(blob) {
            self.namespace.young_lists.take(&reference, Instant::now());
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
        let names = self.lock_all_names()?;
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
        self.write_xattrs(node, &place, &attrs)?;
        drop(names);
        self.drop_before(node, &place, before);
        Ok(())
    }

    /// Returns the epoch under which the attributes of a node are sealed; `None` if it has none.
    pub fn xattrs_epoch(&self, node: NodeId) -> Inner<Option<u32>> {
        let blob = self.xattr_place(node)?.get(self.xattr_key(node)?)?;
        // A reference and its list are sealed under the same epoch.
        let record = |blob: &[u8]| blob.strip_prefix(&[OVERFLOW]).unwrap_or(blob).to_vec();
        Ok(blob.map(|blob| epoch_of(RecordKind::Xattrs, &record(&blob))).transpose()?)
    }

    /// Seals the attributes of a node again under the current epoch. A list under an older epoch
    /// stays as residue.
    pub fn reseal_xattrs(&self, node: NodeId) -> Inner<()> {
        let _names = self.namespace.names.write()?;
        let place = self.xattr_place(node)?;
        let attrs = self.read_xattrs(node, &place)?.0;
        if attrs.0.is_empty() { Ok(()) } else { self.write_xattrs(node, &place, &attrs) }
    }

    pub fn list_xattr(&self, node: NodeId) -> Inner<Vec<Vec<u8>>> {
        let place = self.xattr_place(node)?;
        let mut names: Vec<_> = self.read_xattrs(node, &place)?.0.0.into_keys().collect();
        for (acl, kinds) in [
            (ACL_ACCESS, &[Kind::File, Kind::Dir, Kind::Fifo, Kind::Socket][..]),
            (ACL_DEFAULT, &[Kind::Dir]),
        ] {
            if kinds.contains(&self.nodes.kind(node)?) && place.get(acl)?.is_some() {
                names.push(acl.to_vec());
            }
        }
        Ok(names)
    }

    pub fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Inner<()> {
        let names = self.lock_all_names()?;
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
        self.write_xattrs(node, &place, &attrs)?;
        drop(names);
        self.drop_before(node, &place, before);
        Ok(())
    }

    /// Clears the set-group-ID bit of a node, as a change of its ACL by a user outside its group
    /// does.
    pub fn clear_sgid(&self, node: NodeId) -> Inner<()> {
        self.check_writable()?;
        let _change = self.lease.change()?;
        self.xattr_place(node)?.clear_sgid()?;
        self.inode_changed(node);
        Ok(())
    }
}

impl Folder<'_> {
    /// Returns the permission bits of a new object here: a default ACL of the directory replaces
    /// the umask.
    pub fn masked(&self, caller: &Caller, perm: u32) -> u32 {
        let taken = caller.umask & 0o777 & perm;
        let hands_down = || matches!(self.dir().get_xattr_self(ACL_DEFAULT), Ok(Some(_)));
        if taken == 0 || hands_down() { perm } else { perm & !taken }
    }
}
