//! From a local directory into a vault.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::super::files::Partial;
use super::{EntryError, Tally, local, set_metadata};
use crate::backing::Kind;
use crate::cli::display::path as shown;
use crate::cli::local::{self as outside, DataRanges};
use crate::cli::node::{BLOCK, Node, caller, is_partial};
use crate::cli::open::Open;
use crate::vault::{NodeId, SetAttr, SetXattr, Vault};

/// Bytes of all files below a directory, as far as they can be found out.
pub fn total(dir: &Path, vault: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(stat) if stat.is_file() => stat.len(),
        Ok(stat) if stat.is_dir() && entry.path() != vault => total(&entry.path(), vault),
        _ => 0,
    };
    entries.flatten().map(size).sum()
}

/// Copies what is in `dir` into the directory `target`.
pub fn run(open: &Open, dir: &Path, target: NodeId, tally: Tally) -> Tally {
    let mut import = Import { vault: &open.vault, vault_dir: &open.dir, tally, links: HashMap::new(), buffer: vec![0; BLOCK] };
    if let Err(error) = import.directory(dir, target) {
        import.tally.failed(shown(dir), &error);
    }
    import.tally
}

struct Import<'a> {
    vault: &'a Vault,
    vault_dir: &'a Path,
    tally: Tally,
    /// Files with several names that were copied already, by device and inode.
    links: HashMap<(u64, u64), Node<'a>>,
    buffer: Vec<u8>,
}

impl<'a> Import<'a> {
    /// Copies the entries of a directory, and then its metadata. The depth is bounded by the length that a path can have.
    fn directory(&mut self, dir: &Path, target: NodeId) -> Result<(), EntryError> {
        let stat = fs::metadata(dir).map_err(local("stat"))?;
        for entry in fs::read_dir(dir).map_err(local("list"))? {
            let entry = entry.map_err(local("list"))?;
            let (path, name) = (entry.path(), entry.file_name());
            if is_partial(name.as_bytes()) {
                continue;
            }
            if let Err(error) = self.entry(&path, &name, target) {
                self.tally.failed(shown(&path), &error);
            }
        }
        self.xattrs(dir, target)?;
        set_metadata(self.vault, target, &stat)?;
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &OsStr, parent: NodeId) -> Result<(), EntryError> {
        let stat = fs::symlink_metadata(path).map_err(local("stat"))?;
        let there = Node::child(self.vault, parent, name.as_bytes())?;
        if stat.is_dir() {
            return self.sub_directory(path, name, parent, there);
        }
        if there.as_ref().is_some_and(Node::is_dir) {
            return Err(EntryError::Odd("a directory of this name is in the vault"));
        }
        let several = stat.nlink() > 1;
        let inode = (stat.dev(), stat.ino());
        if several && let Some(first) = self.links.get(&inode) {
            let first = first.id();
            return self.another_name(first, name, parent, there);
        }
        if stat.is_file() {
            self.file(path, name, parent, there, &stat)?;
        } else if stat.is_symlink() {
            self.symlink(path, name, parent, there, &stat)?;
        } else {
            self.special(path, name, parent, there, &stat)?;
        }
        if several && let Some(node) = Node::child(self.vault, parent, name.as_bytes())? {
            self.links.insert(inode, node);
        }
        Ok(())
    }

    fn sub_directory(&mut self, path: &Path, name: &OsStr, parent: NodeId, there: Option<Node<'a>>) -> Result<(), EntryError> {
        if path.canonicalize().is_ok_and(|path| path == self.vault_dir) {
            return Err(EntryError::Odd("it is the vault itself, and is left out"));
        }
        let node = match there {
            Some(node) if node.is_dir() => node,
            Some(_) => return Err(EntryError::Odd("a file of this name is in the vault")),
            // for its owner alone until it has its own mode
            None => Node::counted(self.vault, self.vault.mkdir(&caller(), parent, name.as_bytes(), 0o700)?),
        };
        self.directory(path, node.id())
    }

    fn another_name(&mut self, first: NodeId, name: &OsStr, parent: NodeId, there: Option<Node<'a>>) -> Result<(), EntryError> {
        let ino = self.vault.getattr(first)?.ino;
        match there {
            Some(node) if node.attr.ino == ino => {
                self.tally.skipped(0);
                return Ok(());
            }
            Some(_) => self.vault.unlink(parent, name.as_bytes())?,
            None => {}
        }
        drop(Node::counted(self.vault, self.vault.link(first, parent, name.as_bytes())?));
        self.tally.copied();
        Ok(())
    }

    fn file(&mut self, path: &Path, name: &OsStr, parent: NodeId, there: Option<Node<'a>>, stat: &Metadata) -> Result<(), EntryError> {
        let same =
            |node: &Node<'_>| node.attr.kind == Kind::File && node.attr.size == stat.len() && node.attr.mtime == outside::mtime(stat);
        if there.as_ref().is_some_and(same) {
            self.tally.skipped(stat.len());
            return Ok(());
        }
        // a link that has taken the place of the file meanwhile is not followed, a FIFO is not waited for
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(flags).open(path).map_err(local("open"))?;
        // size and times that belong to what is read, so that a file which changes is copied anew by the next run
        let stat = file.metadata().map_err(local("stat"))?;
        if !stat.is_file() {
            return Err(EntryError::Odd("it is no longer a regular file"));
        }
        let partial = Partial::new(self.vault, parent, name.as_bytes())?;
        match self.fill(&file, path, &partial, &stat) {
            Ok(()) => partial.complete(name.as_bytes())?,
            Err(error) => {
                partial.discard();
                return Err(error);
            }
        }
        self.tally.copied();
        Ok(())
    }

    fn fill(&mut self, file: &File, path: &Path, partial: &Partial<'_>, stat: &Metadata) -> Result<(), EntryError> {
        let mut ranges = DataRanges::of_local(file, stat.len());
        while let Some((mut offset, end)) = ranges.next_range()? {
            while offset < end {
                let want = BLOCK.min(usize::try_from(end - offset).unwrap_or(BLOCK));
                let read = file.read_at(&mut self.buffer[..want], offset).map_err(local("read"))?;
                if read == 0 {
                    return Err(EntryError::Odd("it became shorter while it was read"));
                }
                self.vault.write(partial.file.handle(), offset, &self.buffer[..read], false)?;
                offset += read as u64;
                self.tally.bytes(read as u64);
            }
        }
        self.vault.setattr(partial.node.id(), &SetAttr { size: Some(stat.len()), ..SetAttr::default() })?;
        self.xattrs(path, partial.node.id())?;
        set_metadata(self.vault, partial.node.id(), stat)?;
        Ok(())
    }

    fn symlink(&mut self, path: &Path, name: &OsStr, parent: NodeId, there: Option<Node<'a>>, stat: &Metadata) -> Result<(), EntryError> {
        let target = fs::read_link(path).map_err(local("read link"))?;
        let target = target.as_os_str().as_bytes();
        if let Some(node) = there {
            if node.attr.kind == Kind::Symlink && self.vault.readlink(node.id())? == target {
                self.tally.skipped(0);
                return Ok(());
            }
            self.vault.unlink(parent, name.as_bytes())?;
        }
        let node = Node::counted(self.vault, self.vault.symlink(&caller(), parent, name.as_bytes(), target)?);
        set_metadata(self.vault, node.id(), stat)?;
        self.tally.copied();
        Ok(())
    }

    fn special(&mut self, path: &Path, name: &OsStr, parent: NodeId, there: Option<Node<'a>>, stat: &Metadata) -> Result<(), EntryError> {
        let kind = match stat.file_type() {
            kind if kind.is_fifo() => Kind::Fifo,
            kind if kind.is_socket() => Kind::Socket,
            kind if kind.is_block_device() => Kind::BlockDevice,
            kind if kind.is_char_device() => Kind::CharDevice,
            _ => return Err(EntryError::Odd("its type is not known")),
        };
        if let Some(node) = there {
            if node.attr.kind == kind && node.attr.rdev == stat.rdev() {
                self.tally.skipped(0);
                return Ok(());
            }
            self.vault.unlink(parent, name.as_bytes())?;
        }
        let node = Node::counted(self.vault, self.vault.mknod(&caller(), parent, name.as_bytes(), kind, 0o600, stat.rdev())?);
        self.xattrs(path, node.id())?;
        set_metadata(self.vault, node.id(), stat)?;
        self.tally.copied();
        Ok(())
    }

    fn xattrs(&self, path: &Path, node: NodeId) -> Result<(), EntryError> {
        for (name, value) in outside::xattrs(path).map_err(local("read attributes"))? {
            match self.vault.set_xattr(node, &name, &value, SetXattr::Any) {
                Err(error) if !outside::may_be_left_out(&name, error.errno()) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}
