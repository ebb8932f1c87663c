//! Copies from a local directory into a vault.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use super::super::files::Partial;
use super::{
    EntryError, SHORTER, Tally, attributes, call, local, path_of, same_attributes, same_contents,
    set_metadata,
};
use crate::cli::daemon::signals;
use crate::cli::display::Shown;
use crate::cli::local::{
    DataRanges, Descent, Id, Names, Object, RangeError, may_be_left_out, mtime,
};
use crate::cli::vaults::nodes::{BLOCK, Node, caller, is_partial, partial_name};
use crate::store::{Kind, RenameMode};
use crate::vault::{NodeId, SetAttr, SetXattr, Vault};

/// Returns the bytes of all readable files below a directory, without those of the vault at
/// `store`.
pub fn total(dir: &Object, store: &Object) -> std::io::Result<u64> {
    let store = store.id()?;
    let mut descent = Descent::new(dir.walk(b"")?);
    let mut levels = vec![dir.names()?];
    let mut bytes = 0;
    while let Some(left) = levels.last_mut() {
        let (Some(name), Ok(here)) = (left.next(), descent.here()) else {
            levels.pop();
            descent.leave();
            continue;
        };
        let Ok(Some(entry)) = here.entry(&name) else { continue };
        match entry.stat() {
            Ok(stat) if stat.is_file() => bytes += stat.len(),
            Ok(stat) if stat.is_dir() && entry.id()? != store && descent.enter(&name).is_ok() => {
                match descent.here().and_then(|here| here.names()) {
                    Ok(names) => levels.push(names),
                    Err(_) => descent.leave(),
                }
            }
            _ => {}
        }
    }
    Ok(bytes)
}

/// Copies the contents of the directory `source`, found at the path `shown`, into the directory
/// `target` of the vault at `store`.
pub fn run<'a>(
    vault: &'a Vault,
    store: &Object,
    source: Object,
    shown: &Path,
    target: Node<'a>,
    tally: Tally,
) -> Tally {
    let buffers = [vec![0; BLOCK], vec![0; BLOCK]];
    let is_root = rustix::process::geteuid().is_root();
    let mut import = Import {
        vault,
        store,
        shown,
        is_root,
        descent: Descent::new(source),
        tally,
        links: HashMap::new(),
        buffers,
    };
    let copied = import
        .tree(target)
        .and_then(|()| rustix::fs::syncfs(store).map_err(call("sync the vault")));
    if let Err(error) = copied {
        import.failed(None, &error);
    }
    import.tally
}

struct Import<'a, 'b> {
    vault: &'a Vault,
    store: &'b Object,
    shown: &'b Path,
    is_root: bool,
    descent: Descent,
    tally: Tally,
    /// The copies of files with several names, by device and inode of the source.
    links: HashMap<Id, Node<'a>>,
    buffers: [Vec<u8>; 2],
}

/// A directory whose entries are being copied.
struct Level<'a> {
    node: Node<'a>,
    /// Metadata of the source directory before the copy.
    stat: Metadata,
    left: Names,
}

/// A source entry that is not a directory; a regular file is open for reading.
struct Outside {
    object: Object,
    stat: Metadata,
}

fn kind(stat: &Metadata) -> Option<Kind> {
    Some(match stat.file_type() {
        kind if kind.is_file() => Kind::File,
        kind if kind.is_symlink() => Kind::Symlink,
        kind if kind.is_fifo() => Kind::Fifo,
        kind if kind.is_socket() => Kind::Socket,
        kind if kind.is_block_device() => Kind::BlockDevice,
        kind if kind.is_char_device() => Kind::CharDevice,
        _ => return None,
    })
}

impl<'a> Import<'a, '_> {
    /// Reports a failure for an entry of the current directory, or for the directory itself.
    fn failed(&mut self, name: Option<&[u8]>, error: &EntryError) {
        let path = path_of(self.shown.as_os_str().as_bytes(), &self.descent, name);
        self.tally.failed(Shown(&path), error);
    }

    /// Copies all entries of a tree. The depth is not limited by any path length, so the levels are
    /// in a list and not on the stack.
    fn tree(&mut self, target: Node<'a>) -> Result<(), EntryError> {
        let mut levels = vec![self.level(target)?];
        while let Some(level) = levels.last_mut() {
            if self.tally.has_stopped() {
                break;
            }
            let step =
                self.descent.here().map_err(local("find")).map(|here| (here, level.left.next()));
            let failed = match step {
                Ok((here, Some(name))) => {
                    if !is_partial(&name) {
                        match self.entry(&here, &name, level.node.id()) {
                            Ok(below) => levels.extend(below),
                            Err(error) => self.failed(Some(&name), &error),
                        }
                    }
                    continue;
                }
                Ok((here, None)) => self.metadata(&here, level.node.id(), &level.stat).err(),
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

    /// Lists the current directory, whose entries are to be copied into `node`.
    fn level(&mut self, node: Node<'a>) -> Result<Level<'a>, EntryError> {
        let here = self.descent.here().map_err(local("find"))?;
        Ok(Level {
            node,
            stat: here.stat().map_err(local("stat"))?,
            left: here.names().map_err(local("list"))?,
        })
    }

    fn metadata(&self, dir: &Object, target: NodeId, stat: &Metadata) -> Result<(), EntryError> {
        self.xattrs(dir, target)?;
        set_metadata(self.vault, target, stat)?;
        Ok(())
    }

    /// Copies an entry. A directory is entered, and its entries are copied later.
    fn entry(
        &mut self,
        dir: &Object,
        name: &[u8],
        parent: NodeId,
    ) -> Result<Option<Level<'a>>, EntryError> {
        let gone = || EntryError::Local("stat", std::io::Error::from_raw_os_error(libc::ENOENT));
        let found = dir.entry(name).map_err(local("stat"))?.ok_or_else(gone)?;
        let stat = found.stat().map_err(local("stat"))?;
        let there = Node::child(self.vault, parent, name)?;
        if stat.is_dir() {
            self.descent.enter(name).map_err(local("open"))?;
            let level = self.sub_directory(name, parent, there);
            if level.is_err() {
                self.descent.leave();
            }
            return level.map(Some);
        }
        if there.as_ref().is_some_and(Node::is_dir) {
            return Err(EntryError::Odd("the vault has a directory of this name"));
        }
        let object = if stat.is_file() { dir.read(name).map_err(local("open"))? } else { found };
        // Reads size and times before the contents. If the file changes meanwhile, the next run
        // copies it again.
        let outside = Outside { stat: object.stat().map_err(local("stat"))?, object };
        if outside.stat.is_file() != stat.is_file() {
            return Err(EntryError::Odd("it is no longer a regular file"));
        }
        self.leaf(&outside, name, parent, there)?;
        Ok(None)
    }

    /// Copies anything but a directory.
    fn leaf(
        &mut self,
        outside: &Outside,
        name: &[u8],
        parent: NodeId,
        there: Option<Node<'a>>,
    ) -> Result<(), EntryError> {
        let several = outside.stat.nlink() > 1;
        let inode = (outside.stat.dev(), outside.stat.ino());
        // The source may show different files under one inode number, and the copy may be changed
        // by now.
        let first = match self.links.remove(&inode).filter(|_| several) {
            Some(first) if self.is_copy(&first, outside)? => Some(first),
            _ => None,
        };
        let is_there = match &there {
            Some(node) if first.as_ref().is_none_or(|first| first.attr.ino == node.attr.ino) => {
                self.is_copy(node, outside)?
            }
            _ => false,
        };
        match &first {
            _ if is_there => {
                self.tally.skipped(if outside.stat.is_file() { outside.stat.len() } else { 0 })
            }
            Some(first) => {
                let link = |name: &[u8]| {
                    Ok(Node::counted(self.vault, self.vault.link(first.id(), parent, name)?))
                };
                drop(self.in_place_of(there, parent, name, link)?);
                self.tally.copied();
            }
            None => {
                self.copy(outside, name, parent, there)?;
                self.tally.copied();
            }
        }
        let first = match first {
            None if several => Node::child(self.vault, parent, name)?,
            first => first,
        };
        self.links.extend(first.map(|first| (inode, first)));
        Ok(())
    }

    fn sub_directory(
        &mut self,
        name: &[u8],
        parent: NodeId,
        there: Option<Node<'a>>,
    ) -> Result<Level<'a>, EntryError> {
        let here = self.descent.here().map_err(local("find"))?;
        if here.id().map_err(local("stat"))? == self.store.id().map_err(local("stat"))? {
            return Err(EntryError::Odd("it is the vault itself, which is skipped"));
        }
        let node = match there {
            Some(node) if node.is_dir() => node,
            Some(_) => return Err(EntryError::Odd("the vault has a file of this name")),
            // Private until it has its final mode.
            None => Node::counted(self.vault, self.vault.mkdir(&caller(), parent, name, 0o700)?),
        };
        self.level(node)
    }

    /// Creates an entry. If its name exists, a temporary name is used, so that the old entry stays
    /// if the store refuses the new one.
    fn in_place_of(
        &self,
        there: Option<Node<'a>>,
        parent: NodeId,
        name: &[u8],
        make: impl FnOnce(&[u8]) -> Result<Node<'a>, EntryError>,
    ) -> Result<Node<'a>, EntryError> {
        if there.is_none() {
            return make(name);
        }
        let partial = partial_name(name);
        match self.vault.unlink(parent, partial.as_bytes()) {
            Err(error) if error.errno() != libc::ENOENT => return Err(error.into()),
            _ => {}
        }
        let made = make(partial.as_bytes()).and_then(|node| {
            self.vault.rename(parent, partial.as_bytes(), parent, name, RenameMode::Replace)?;
            Ok(node)
        });
        made.inspect_err(|_| {
            let _ = self.vault.unlink(parent, partial.as_bytes());
        })
    }

    /// Returns whether a node is a copy of the source entry. An unreadable node is not.
    fn is_copy(&mut self, node: &Node<'_>, outside: &Outside) -> Result<bool, EntryError> {
        let (attr, stat) = (&node.attr, &outside.stat);
        if Some(attr.kind) != kind(stat) {
            return Ok(false);
        }
        match attr.kind {
            Kind::File => {}
            Kind::Symlink => {
                let text = outside.object.read_link().map_err(local("read link"))?;
                return Ok(self.vault.readlink(node.id()).is_ok_and(|there| there == text));
            }
            _ => return Ok(attr.rdev == stat.rdev()),
        }
        let same_owner = !self.is_root || (attr.uid, attr.gid) == (stat.uid(), stat.gid());
        let same_mode = attr.perm == stat.mode() & 0o7777;
        if attr.size != stat.len() || attr.mtime != mtime(stat) || !same_owner || !same_mode {
            return Ok(false);
        }
        match same_contents(self.vault, node.id(), outside.object.file(), &mut self.buffers) {
            Ok(true) => {}
            Ok(false) | Err(RangeError::Vault(_)) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let Ok(there) = attributes(self.vault, node.id()) else { return Ok(false) };
        Ok(same_attributes(&there, &outside.object.xattrs().map_err(local("read attributes"))?))
    }

    fn copy(
        &mut self,
        outside: &Outside,
        name: &[u8],
        parent: NodeId,
        there: Option<Node<'a>>,
    ) -> Result<(), EntryError> {
        let (object, stat) = (&outside.object, &outside.stat);
        if stat.is_file() {
            let partial = Partial::new(self.vault, parent, name)?;
            return match self.fill(object, &partial, stat) {
                Ok(()) => Ok(partial.complete(name)?),
                Err(error) => {
                    partial.discard();
                    Err(error)
                }
            };
        }
        let kind = kind(stat).ok_or(EntryError::Odd("its type is unknown"))?;
        let make = |name: &[u8]| {
            let node = if kind == Kind::Symlink {
                let text = object.read_link().map_err(local("read link"))?;
                Node::counted(self.vault, self.vault.symlink(&caller(), parent, name, &text)?)
            } else {
                let node = Node::counted(
                    self.vault,
                    self.vault.mknod(&caller(), parent, name, kind, 0o600, stat.rdev())?,
                );
                self.xattrs(object, node.id())?;
                node
            };
            set_metadata(self.vault, node.id(), stat)?;
            Ok(node)
        };
        drop(self.in_place_of(there, parent, name, make)?);
        Ok(())
    }

    fn fill(
        &mut self,
        file: &Object,
        partial: &Partial<'_>,
        stat: &Metadata,
    ) -> Result<(), EntryError> {
        let mut ranges = DataRanges::of_local(file.file(), stat.len());
        while let Some((mut offset, end)) = ranges.next_range()? {
            while offset < end {
                if signals::is_interrupted() {
                    return Err(EntryError::Interrupted);
                }
                let want = BLOCK.min(usize::try_from(end - offset).unwrap_or(BLOCK));
                let read = file
                    .file()
                    .read_at(&mut self.buffers[0][..want], offset)
                    .map_err(local("read"))?;
                if read == 0 {
                    return Err(EntryError::Odd(SHORTER));
                }
                self.vault.write(partial.file.handle(), offset, &self.buffers[0][..read], false)?;
                offset += read as u64;
                self.tally.bytes(read as u64);
            }
        }
        // If the file was truncated meanwhile, the missing range appeared as a hole, which would be
        // copied as zeros.
        if file.stat().map_err(local("stat"))?.len() < stat.len() {
            return Err(EntryError::Odd(SHORTER));
        }
        self.vault.setattr(
            partial.node.id(),
            &SetAttr { size: Some(stat.len()), ..SetAttr::default() },
        )?;
        self.metadata(file, partial.node.id(), stat)
    }

    fn xattrs(&self, object: &Object, node: NodeId) -> Result<(), EntryError> {
        for (name, value) in object.xattrs().map_err(local("read attributes"))? {
            match self.vault.set_xattr(node, &name, &value, SetXattr::Any) {
                Err(error) if !may_be_left_out(&name, error.errno()) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}
