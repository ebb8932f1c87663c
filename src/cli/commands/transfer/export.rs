//! Copies from a vault into a local directory.
//!
//! Rules that hold here
//! * Nothing is written through a symlink or by path. Entries are created in directories that are
//!   held open, files under a temporary name.
//! * Privileges are copied only on request, as in a mount. Modes and types are the store's own,
//!   and the storage host can make a file set-user-ID or a device node.

use std::collections::HashMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::FileType;

use super::{
    Attributes, EntryError, SHORTER, Tally, attributes, call, local, path_of, same_attributes,
    same_contents,
};
use crate::cli::daemon::signals;
use crate::cli::display::Shown;
use crate::cli::local::{
    DataRanges, Descent, Id, Object, RangeError, is_plain_name, may_be_left_out, mtime,
};
use crate::cli::vaults::nodes::{BLOCK, Node, OpenFile, is_partial, names_and_more, partial_name};
use crate::cli::vaults::paths::{join, split};
use crate::store::Kind;
use crate::vault::{self, Attr, NodeId, Vault};

/// An attribute that grants privileges to its file.
const CAPABILITY: &[u8] = b"security.capability";

/// The privileges that are copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// Set-user-ID and set-group-ID bits, and file capabilities.
    pub suid: bool,
    /// Device nodes.
    pub dev: bool,
}

/// Copies the contents of the directory `source`, at the plain path `plain`, into `target`.
pub fn run<'a>(
    vault: &'a Vault,
    source: Node<'a>,
    plain: &[u8],
    target: Object,
    allowed: Allowed,
    tally: Tally,
) -> Tally {
    let is_root = rustix::process::geteuid().is_root();
    let buffers = [vec![0; BLOCK], vec![0; BLOCK]];
    let mut export = Export {
        vault,
        plain,
        tally,
        allowed,
        is_root,
        descent: Descent::new(target),
        links: HashMap::new(),
        buffers,
    };
    // After a successful export, names and contents are durable.
    let copied = export
        .tree(source)
        .and_then(|()| rustix::fs::syncfs(export.descent.root()).map_err(call("sync")));
    if let Err(error) = copied {
        export.failed(None, &error);
    }
    export.tally
}

struct Export<'a, 'b> {
    vault: &'a Vault,
    plain: &'b [u8],
    tally: Tally,
    allowed: Allowed,
    is_root: bool,
    /// The current directory of the target.
    descent: Descent,
    /// Copied files with several names, by inode.
    links: HashMap<u64, First>,
    buffers: [Vec<u8>; 2],
}

/// The first copied name of a file with several names.
struct First {
    path: Vec<u8>,
    id: Id,
}

/// A directory whose entries are being copied.
struct Level<'a> {
    node: Node<'a>,
    left: std::vec::IntoIter<Box<[u8]>>,
}

impl<'a> Export<'a, '_> {
    /// Reports a failure for an entry of the current directory, or for the directory itself.
    fn failed(&mut self, name: Option<&[u8]>, error: &EntryError) {
        let path = path_of(self.plain, &self.descent, name);
        self.tally.failed(Shown(if path.is_empty() { b"/" } else { &path }), error);
    }

    /// Copies all entries of a tree. The depth is not limited by any path length, so the levels are
    /// in a list and not on the stack.
    fn tree(&mut self, source: Node<'a>) -> Result<(), EntryError> {
        let mut levels = vec![self.level(source)?];
        while let Some(level) = levels.last_mut() {
            if self.tally.has_stopped() {
                break;
            }
            let step =
                self.descent.here().map_err(local("find")).map(|here| (here, level.left.next()));
            let failed = match step {
                Ok((here, Some(name))) => {
                    match self.entry(&here, &name, level.node.id()) {
                        Ok(below) => levels.extend(below),
                        Err(error) => self.failed(Some(&name), &error),
                    }
                    continue;
                }
                Ok((here, None)) => self.set_metadata(&level.node, &here).err(),
                Err(error) => Some(error),
            };
            if let Some(error) = failed {
                self.failed(None, &error);
            }
            levels.pop();
            self.descent.leave();
        }
        Ok(())
    }

    /// Lists a directory whose entries are to be copied into the current directory of the target.
    fn level(&mut self, node: Node<'a>) -> Result<Level<'a>, EntryError> {
        let (mut names, more) = names_and_more(self.vault, node.id())?;
        if more {
            let what = "has entries with unreadable names, which are not copied (`kithfs fsck` lists them)";
            self.failed(None, &EntryError::Odd(what));
        }
        names.retain(|name| !is_partial(name));
        Ok(Level { node, left: names.into_iter() })
    }

    /// Copies an entry. A directory is entered, and its entries are copied later.
    fn entry(
        &mut self,
        dir: &Object,
        name: &[u8],
        parent: NodeId,
    ) -> Result<Option<Level<'a>>, EntryError> {
        if !is_plain_name(name) {
            return Err(EntryError::Odd("its name is not valid outside the vault"));
        }
        // removed since it was listed
        let Some(node) = Node::child(self.vault, parent, name)? else { return Ok(None) };
        let there = match dir.entry(name).map_err(local("stat"))? {
            Some(object) => Some(There { stat: object.stat().map_err(local("stat"))?, object }),
            None => None,
        };
        let is_dir = there.as_ref().is_some_and(|there| there.stat.is_dir());
        if node.is_dir() {
            match there {
                None => dir.mkdir(name, 0o700).map_err(local("make directory"))?,
                Some(_) if is_dir => {}
                Some(_) => return Err(EntryError::Odd("the target has a file of this name")),
            }
            self.descent.enter(name).map_err(local("open"))?;
            let level = self.level(node);
            if level.is_err() {
                self.descent.leave();
            }
            return level.map(Some);
        }
        if is_dir {
            return Err(EntryError::Odd("the target has a directory of this name"));
        }
        self.leaf(&node, dir, name, there.as_ref())?;
        Ok(None)
    }

    /// Copies anything but a directory.
    fn leaf(
        &mut self,
        node: &Node<'_>,
        dir: &Object,
        name: &[u8],
        there: Option<&There>,
    ) -> Result<(), EntryError> {
        let several = node.attr.nlink > 1;
        // The store may show different files under one inode number, and the copy may be changed by
        // now.
        let first = match self.first(node.attr.ino).filter(|_| several) {
            Some((above, name, first)) if self.is_copy(node, &above, &name, &first)? => Some(first),
            _ => None,
        };
        let id = |there: &There| (there.stat.dev(), there.stat.ino());
        let is_there = match (there, &first) {
            (Some(there), Some(first)) => id(there) == id(first),
            (Some(there), None) => self.is_copy(node, dir, name, there)?,
            (None, _) => false,
        };
        match &first {
            _ if is_there => {
                self.tally.skipped(if node.attr.kind == Kind::File { node.attr.size } else { 0 })
            }
            Some(first) => {
                in_place_of(dir, name, |partial| {
                    first.object.link(dir, partial).map_err(local("link"))
                })?;
                self.tally.copied();
            }
            None => {
                in_place_of(dir, name, |partial| self.make(node, dir, partial))?;
                self.tally.copied();
            }
        }
        if several
            && first.is_none()
            && let Some(made) = dir.entry(name).map_err(local("stat"))?
        {
            let first = First {
                path: join(&self.descent.path(), name),
                id: made.id().map_err(local("stat"))?,
            };
            self.links.insert(node.attr.ino, first);
        }
        Ok(())
    }

    /// Returns the first copied name of a file, if it still belongs to the file: its directory, the
    /// name, and the file.
    fn first(&self, ino: u64) -> Option<(Object, Vec<u8>, There)> {
        let First { path, id } = self.links.get(&ino)?;
        let (above, name) = split(path)?;
        let above = self.descent.root().walk(above).ok()?;
        let object = above.entry(name).ok()??;
        let first = There { stat: object.stat().ok()?, object };
        (first.object.id().ok()? == *id).then(|| (above, name.to_vec(), first))
    }

    /// Returns whether the entry `name` of `dir`, found as `there`, is a copy of an inode. An
    /// unreadable entry is not.
    fn is_copy(
        &mut self,
        node: &Node<'_>,
        dir: &Object,
        name: &[u8],
        there: &There,
    ) -> Result<bool, EntryError> {
        let (attr, stat) = (&node.attr, &there.stat);
        match attr.kind {
            Kind::File => {}
            Kind::Symlink => {
                let text = self.vault.readlink(node.id())?;
                return Ok(
                    stat.is_symlink() && there.object.read_link().is_ok_and(|there| there == text)
                );
            }
            kind => {
                let same_kind = file_type(kind)
                    .is_some_and(|kind| kind.as_raw_mode() == stat.mode() & libc::S_IFMT);
                return Ok(same_kind && stat.rdev() == attr.rdev);
            }
        }
        let same_owner = !self.is_root || (attr.uid, attr.gid) == (stat.uid(), stat.gid());
        let same_mode = self.mode(attr) == stat.mode() & 0o7777;
        if !stat.is_file()
            || stat.len() != attr.size
            || mtime(stat) != attr.mtime
            || !same_owner
            || !same_mode
        {
            return Ok(false);
        }
        let Ok(file) = dir.read(name) else { return Ok(false) };
        if file.id().ok() != there.object.id().ok() {
            return Ok(false);
        }
        match same_contents(self.vault, node.id(), file.file(), &mut self.buffers) {
            Ok(true) => {}
            Ok(false) | Err(RangeError::Local(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(same_attributes(
            &self.attributes(node.id())?,
            &file.xattrs().map_err(local("read attributes"))?,
        ))
    }

    fn make(&mut self, node: &Node<'_>, dir: &Object, partial: &[u8]) -> Result<(), EntryError> {
        let replaced = || EntryError::Odd("it was replaced while it was created");
        let made = || -> Result<There, EntryError> {
            let object = dir.entry(partial).map_err(local("stat"))?.ok_or_else(replaced)?;
            Ok(There { stat: object.stat().map_err(local("stat"))?, object })
        };
        match node.attr.kind {
            Kind::File => self.file(node, dir, partial),
            Kind::Symlink => {
                let text = self.vault.readlink(node.id())?;
                dir.symlink(&text, partial).map_err(local("make link"))?;
                let There { object, stat } = made()?;
                if !stat.is_symlink()
                    || stat.nlink() != 1
                    || object.read_link().map_err(local("read link"))? != text
                {
                    return Err(replaced());
                }
                self.set_owner(&node.attr, &object)?;
                object.set_times(node.attr.atime, node.attr.mtime).map_err(local("set times"))
            }
            Kind::BlockDevice | Kind::CharDevice if !self.allowed.dev => {
                Err(EntryError::Odd("it is a device node, which is created only with --dev"))
            }
            kind => {
                let kind = file_type(kind).ok_or(EntryError::Odd("its type is unknown"))?;
                dir.mknod(partial, kind, node.attr.rdev).map_err(local("make"))?;
                let There { object, stat } = made()?;
                if stat.mode() & libc::S_IFMT != kind.as_raw_mode() || stat.nlink() != 1 {
                    return Err(replaced());
                }
                self.set_metadata(node, &object)
            }
        }
    }

    fn file(&mut self, node: &Node<'_>, dir: &Object, partial: &[u8]) -> Result<(), EntryError> {
        let opened = OpenFile::read(self.vault, node.id())?;
        // The size that the header authenticates, not the one that follows from the length of the
        // ciphertext.
        let attr = self.vault.getattr(node.id())?;
        let made = dir.create(partial, 0o600).map_err(local("make file"))?;
        let mut ranges = DataRanges::of_vault(self.vault, opened.handle(), attr.size);
        while let Some((mut offset, end)) = ranges.next_range()? {
            while offset < end {
                if signals::is_interrupted() {
                    return Err(EntryError::Interrupted);
                }
                let want = BLOCK.min(usize::try_from(end - offset).unwrap_or(BLOCK));
                let read =
                    self.vault.read(opened.handle(), offset, &mut self.buffers[0][..want])?;
                if read == 0 {
                    return Err(EntryError::Odd(SHORTER));
                }
                made.file()
                    .write_all_at(&self.buffers[0][..read], offset)
                    .map_err(local("write"))?;
                offset += read as u64;
                self.tally.bytes(read as u64);
            }
        }
        made.file().set_len(attr.size).map_err(local("set length"))?;
        opened.close()?;
        self.set_metadata_to(node.id(), &attr, &made)
    }

    /// Returns the mode of the copy. If the owner cannot be kept, set-user-ID bits would grant the
    /// rights of another user.
    fn mode(&self, attr: &Attr) -> u32 {
        if self.is_root && self.allowed.suid { attr.perm } else { attr.perm & !0o6000 }
    }

    fn set_metadata(&self, node: &Node<'_>, object: &Object) -> Result<(), EntryError> {
        self.set_metadata_to(node.id(), &node.attr, object)
    }

    /// Sets the metadata of anything but a symlink. The owner comes first, as its change clears
    /// capabilities and set-user-ID bits; the times come last.
    fn set_metadata_to(
        &self,
        node: NodeId,
        attr: &Attr,
        object: &Object,
    ) -> Result<(), EntryError> {
        self.set_owner(attr, object)?;
        for (name, value) in self.attributes(node)? {
            match object.set_xattr(&name, &value) {
                Err(error) if !may_be_left_out(&name, error.raw_os_error().unwrap_or(0)) => {
                    return Err(EntryError::Local("set attribute", error));
                }
                _ => {}
            }
        }
        object.set_mode(self.mode(attr)).map_err(local("set mode"))?;
        object.set_times(attr.atime, attr.mtime).map_err(local("set times"))
    }

    /// Sets the owner, which only root can do.
    fn set_owner(&self, attr: &Attr, object: &Object) -> Result<(), EntryError> {
        if self.is_root {
            object.set_owner(attr.uid, attr.gid).map_err(local("set owner"))
        } else {
            Ok(())
        }
    }

    /// Returns the attributes of the copy.
    fn attributes(&self, node: NodeId) -> vault::Result<Attributes> {
        let mut found = attributes(self.vault, node)?;
        found.retain(|(name, _)| name != CAPABILITY || self.allowed.suid);
        Ok(found)
    }
}

/// The existing entry at the target.
struct There {
    object: Object,
    stat: Metadata,
}

/// Creates a complete object under a temporary name and renames it to `name`. An existing object
/// stays if that fails.
fn in_place_of(
    dir: &Object,
    name: &[u8],
    make: impl FnOnce(&[u8]) -> Result<(), EntryError>,
) -> Result<(), EntryError> {
    let partial = partial_name(name).into_bytes();
    match dir.unlink(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(EntryError::Local("remove", error));
        }
        _ => {}
    }
    let made = make(&partial).and_then(|()| dir.rename(&partial, name).map_err(local("rename")));
    made.inspect_err(|_| {
        let _ = dir.unlink(&partial);
    })
}

/// Returns the type for mknod(2).
fn file_type(kind: Kind) -> Option<FileType> {
    match kind {
        Kind::Fifo => Some(FileType::Fifo),
        Kind::Socket => Some(FileType::Socket),
        Kind::BlockDevice => Some(FileType::BlockDevice),
        Kind::CharDevice => Some(FileType::CharacterDevice),
        Kind::File | Kind::Dir | Kind::Symlink => None,
    }
}
