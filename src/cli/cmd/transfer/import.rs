//! From a local directory into a vault.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::super::files::Partial;
use super::{EntryError, Tally, call, local, mark, may_be_unmarked, set_metadata};
use crate::backing::{Kind, RenameMode};
use crate::cli::display::path as shown;
use crate::cli::local::{self as outside, DataRanges};
use crate::cli::node::{BLOCK, Node, OpenFile, caller, is_partial, partial_name};
use crate::cli::open::Open;
use crate::vault::{NodeId, SetAttr, SetXattr, Vault};

/// Of a file that is being written while it is copied.
const SHORTER: &str = "it became shorter while it was read";

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

/// Copies what is in `dir` into the directory `target`. With `doubtful` what is there already is compared.
pub fn run(open: &Open, dir: &Path, target: NodeId, doubtful: bool, tally: Tally) -> Tally {
    let (vault, buffers) = (&open.vault, [vec![0; BLOCK], vec![0; BLOCK]]);
    let mut import = Import { vault, vault_dir: &open.dir, tally, links: HashMap::new(), buffers, doubtful };
    let copied = import.mark(target).and_then(|marked| {
        let stat = import.entries(dir, target)?;
        import.sync()?;
        if marked {
            match import.vault.unlink(target, mark().as_bytes()) {
                // by a sync tool: somebody else has come to the end of an import that had it before
                Err(error) if error.errno() == libc::ENOENT => {}
                removed => removed?,
            }
        }
        import.metadata(dir, target, &stat)
    });
    if let Err(error) = copied {
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
    buffers: [Vec<u8>; 2],
    /// An import was interrupted here, perhaps by a power cut: what it has left is not taken for done by its size and time.
    doubtful: bool,
}

impl<'a> Import<'a> {
    /// Notes, durably, that an import into `target` is under way. Tells whether that could be noted.
    fn mark(&mut self, target: NodeId) -> Result<bool, EntryError> {
        if self.is_marked(target)? {
            return Ok(true);
        }
        let (node, file) = match OpenFile::create(self.vault, target, mark().as_bytes()) {
            Err(error) if may_be_unmarked(Some(error.errno())) => return Ok(false),
            made => made?,
        };
        self.vault.fsync(file.handle(), false)?;
        file.close()?;
        drop(node);
        Ok(true)
    }

    fn is_marked(&mut self, target: NodeId) -> Result<bool, EntryError> {
        let is_marked = Node::child(self.vault, target, mark().as_bytes())?.is_some();
        self.doubtful |= is_marked;
        Ok(is_marked)
    }

    fn sync(&self) -> Result<(), EntryError> {
        let store = File::open(self.vault_dir).map_err(local("open the vault"))?;
        rustix::fs::syncfs(&store).map_err(call("sync the vault"))
    }

    /// Whether a file of the vault holds what the file outside does. What cannot be read of it does not.
    fn holds_the_same(&mut self, node: &Node<'_>, file: &File) -> Result<bool, EntryError> {
        let Ok(there) = OpenFile::read(self.vault, node.id()) else { return Ok(false) };
        let [left, right] = &mut self.buffers;
        let mut at = 0;
        loop {
            let Ok(read) = self.vault.read(there.handle(), at, left) else { return Ok(false) };
            // a read of a local file may give less than there is
            let mut filled = 0;
            while filled < right.len() {
                match file.read_at(&mut right[filled..], at + filled as u64).map_err(local("read"))? {
                    0 => break,
                    more => filled += more,
                }
            }
            if left[..read] != right[..filled] {
                return Ok(false);
            }
            if read == 0 {
                return Ok(true);
            }
            at += read as u64;
        }
    }

    /// Copies the entries of a directory, and then its metadata. The depth is bounded by the length that a path can have.
    fn directory(&mut self, dir: &Path, target: NodeId) -> Result<(), EntryError> {
        let stat = self.entries(dir, target)?;
        self.metadata(dir, target, &stat)
    }

    /// Copies the entries of a directory; gives what it was like before.
    fn entries(&mut self, dir: &Path, target: NodeId) -> Result<Metadata, EntryError> {
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
        Ok(stat)
    }

    fn metadata(&self, dir: &Path, target: NodeId, stat: &Metadata) -> Result<(), EntryError> {
        self.xattrs(dir, target)?;
        set_metadata(self.vault, target, stat)?;
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
        let around = self.doubtful;
        let copied = self.is_marked(node.id()).and_then(|_| self.directory(path, node.id()));
        self.doubtful = around;
        copied
    }

    fn another_name(&mut self, first: NodeId, name: &OsStr, parent: NodeId, there: Option<Node<'a>>) -> Result<(), EntryError> {
        let ino = self.vault.getattr(first)?.ino;
        match there {
            Some(node) if node.attr.ino == ino => self.tally.skipped(0),
            there => {
                let link = |name: &[u8]| Ok(Node::counted(self.vault, self.vault.link(first, parent, name)?));
                drop(self.in_place_of(there, parent, name.as_bytes(), link)?);
                self.tally.copied();
            }
        }
        Ok(())
    }

    /// Makes an entry: where there is one of its name, under another one, so that it stays if the store refuses the new one.
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

    fn file(&mut self, path: &Path, name: &OsStr, parent: NodeId, there: Option<Node<'a>>, stat: &Metadata) -> Result<(), EntryError> {
        let same =
            |node: &&Node<'_>| node.attr.kind == Kind::File && node.attr.size == stat.len() && node.attr.mtime == outside::mtime(stat);
        let known = there.as_ref().filter(same);
        if known.is_some() && !self.doubtful {
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
        if let Some(node) = known
            && self.holds_the_same(node, &file)?
        {
            self.tally.skipped(stat.len());
            return Ok(());
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
                let read = file.read_at(&mut self.buffers[0][..want], offset).map_err(local("read"))?;
                if read == 0 {
                    return Err(EntryError::Odd(SHORTER));
                }
                self.vault.write(partial.file.handle(), offset, &self.buffers[0][..read], false)?;
                offset += read as u64;
                self.tally.bytes(read as u64);
            }
        }
        // what lies behind an end that has moved shows as a hole, and a hole as zeros
        if file.metadata().map_err(local("stat"))?.len() < stat.len() {
            return Err(EntryError::Odd(SHORTER));
        }
        self.vault.setattr(partial.node.id(), &SetAttr { size: Some(stat.len()), ..SetAttr::default() })?;
        self.xattrs(path, partial.node.id())?;
        set_metadata(self.vault, partial.node.id(), stat)?;
        Ok(())
    }

    fn symlink(&mut self, path: &Path, name: &OsStr, parent: NodeId, there: Option<Node<'a>>, stat: &Metadata) -> Result<(), EntryError> {
        let target = fs::read_link(path).map_err(local("read link"))?;
        let target = target.as_os_str().as_bytes();
        if let Some(node) = &there
            && node.attr.kind == Kind::Symlink
            && self.vault.readlink(node.id())? == target
        {
            self.tally.skipped(0);
            return Ok(());
        }
        self.in_place_of(there, parent, name.as_bytes(), |name| {
            let node = Node::counted(self.vault, self.vault.symlink(&caller(), parent, name, target)?);
            set_metadata(self.vault, node.id(), stat)?;
            Ok(node)
        })?;
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
        if there.as_ref().is_some_and(|node| node.attr.kind == kind && node.attr.rdev == stat.rdev()) {
            self.tally.skipped(0);
            return Ok(());
        }
        self.in_place_of(there, parent, name.as_bytes(), |name| {
            let node = Node::counted(self.vault, self.vault.mknod(&caller(), parent, name, kind, 0o600, stat.rdev())?);
            self.xattrs(path, node.id())?;
            set_metadata(self.vault, node.id(), stat)?;
            Ok(node)
        })?;
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
