//! From a vault into a local directory.
//!
//! Rules that hold here
//! * Nothing is written through a link. A name is looked at without following, and files are made under a name of their own.
//! * What gives rights is made only where the user asks for it, as in a mount: modes and kinds are the store's own, and whoever stores the
//!   vault can have made a program set-user-id, or a device node of a file.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown, lchown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{EntryError, Tally, call, local, mark, may_be_unmarked};
use crate::backing::Kind;
use crate::cli::display::Shown;
use crate::cli::local::{self as outside, DataRanges, os_str};
use crate::cli::node::{BLOCK, Node, OpenFile, is_partial, is_plain_name, names_and_more, partial_name};
use crate::cli::paths::join;
use crate::vault::{Attr, NodeId, Vault};

/// What gives rights to its target.
const CAPABILITY: &[u8] = b"security.capability";

/// What is kept of that which gives rights.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// Set-user-id and set-group-id bits, and capabilities of files.
    pub suid: bool,
    /// Device nodes.
    pub dev: bool,
}

/// Copies what is in the directory `source`, at the plain path `plain`, into `dir`.
pub fn run(vault: &Vault, source: &Node<'_>, plain: &[u8], dir: &Path, allowed: Allowed, tally: Tally) -> Tally {
    let is_root = rustix::process::geteuid().is_root();
    let buffers = [vec![0; BLOCK], vec![0; BLOCK]];
    let mut export = Export { vault, tally, allowed, is_root, links: HashMap::new(), buffers, doubtful: false };
    let copied = export.mark(dir).and_then(|marked| {
        export.entries(source, plain, dir)?;
        // names and contents of an export that ended well are on the disk
        let open = File::open(dir).map_err(local("open"))?;
        rustix::fs::syncfs(&open).map_err(call("sync"))?;
        if marked {
            match fs::remove_file(dir.join(mark())) {
                // by another export to it, which has come to its end before
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(local("remove"))?,
            }
        }
        export.metadata(source, dir)
    });
    if let Err(error) = copied {
        export.tally.failed(Shown(plain), &error);
    }
    export.tally
}

fn is_marked(dir: &Path) -> bool {
    fs::symlink_metadata(dir.join(mark())).is_ok()
}

struct Export<'a> {
    vault: &'a Vault,
    tally: Tally,
    allowed: Allowed,
    is_root: bool,
    /// Files with several names that were copied already, by inode: where the first one is.
    links: HashMap<u64, PathBuf>,
    buffers: [Vec<u8>; 2],
    /// An export was interrupted here, perhaps by a power cut: what it has left is not taken for done by its size and time.
    doubtful: bool,
}

impl Export<'_> {
    /// Notes, durably, that an export to `dir` is under way. Tells whether that could be noted.
    fn mark(&mut self, dir: &Path) -> Result<bool, EntryError> {
        // one that is interrupted may have been to a directory above
        let place = dir.canonicalize().map_err(local("find"))?;
        self.doubtful = place.ancestors().any(is_marked);
        if is_marked(dir) {
            return Ok(true);
        }
        let file = match File::options().write(true).create_new(true).mode(0o600).open(dir.join(mark())) {
            Err(error) if may_be_unmarked(error.raw_os_error()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(true),
            made => made.map_err(local("make file"))?,
        };
        file.sync_all().map_err(local("sync"))?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(local("sync"))?;
        Ok(true)
    }

    /// Copies the entries of a directory, and then its metadata. The depth is bounded by the length that a local path can have.
    fn directory(&mut self, node: &Node<'_>, plain: &[u8], dir: &Path) -> Result<(), EntryError> {
        self.entries(node, plain, dir)?;
        self.metadata(node, dir)
    }

    fn entries(&mut self, node: &Node<'_>, plain: &[u8], dir: &Path) -> Result<(), EntryError> {
        let (names, more) = names_and_more(self.vault, node.id())?;
        if more {
            let shown = if plain.is_empty() { b"/" } else { plain };
            self.tally.failed(
                Shown(shown),
                &EntryError::Odd("holds entries whose names cannot be read, which are not copied (`kithfs fsck` names them)"),
            );
        }
        for name in names.iter().filter(|name| !is_partial(name)) {
            let plain = join(plain, name);
            if let Err(error) = self.entry(node.id(), name, &plain, dir) {
                self.tally.failed(Shown(&plain), &error);
            }
        }
        Ok(())
    }

    fn metadata(&self, node: &Node<'_>, dir: &Path) -> Result<(), EntryError> {
        self.xattrs(node.id(), dir)?;
        self.set_metadata(&node.attr, dir)
    }

    fn entry(&mut self, parent: NodeId, name: &[u8], plain: &[u8], dir: &Path) -> Result<(), EntryError> {
        if !is_plain_name(name) {
            return Err(EntryError::Odd("its name cannot stand outside of the vault"));
        }
        // removed since it was listed
        let Some(node) = Node::child(self.vault, parent, name)? else { return Ok(()) };
        let target = dir.join(os_str(name));
        let there = match fs::symlink_metadata(&target) {
            Ok(stat) => Some(stat),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(EntryError::Local("stat", error)),
        };
        if node.is_dir() {
            match there {
                None => DirBuilder::new().mode(0o700).create(&target).map_err(local("make directory"))?,
                Some(stat) if stat.is_dir() => {}
                Some(_) => return Err(EntryError::Odd("a file of this name is at the target")),
            }
            let around = self.doubtful;
            self.doubtful |= is_marked(&target);
            let copied = self.directory(&node, plain, &target);
            self.doubtful = around;
            return copied;
        }
        if there.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(EntryError::Odd("a directory of this name is at the target"));
        }
        let several = node.attr.nlink > 1;
        if several && let Some(first) = self.links.get(&node.attr.ino) {
            let first = first.clone();
            return self.another_name(&first, &target, there.as_ref());
        }
        if self.is_done(&node, &target, there.as_ref())? {
            self.tally.skipped(if node.attr.kind == Kind::File { node.attr.size } else { 0 });
        } else {
            in_place_of(&target, |partial| self.make(&node, partial))?;
            self.tally.copied();
        }
        if several {
            self.links.insert(node.attr.ino, target);
        }
        Ok(())
    }

    fn is_done(&mut self, node: &Node<'_>, target: &Path, there: Option<&fs::Metadata>) -> Result<bool, EntryError> {
        let Some(there) = there else { return Ok(false) };
        Ok(match node.attr.kind {
            Kind::File => {
                there.is_file()
                    && there.len() == node.attr.size
                    && outside::mtime(there) == node.attr.mtime
                    && (!self.doubtful || self.holds_the_same(node, target)?)
            }
            Kind::Symlink => {
                there.is_symlink()
                    && fs::read_link(target).map_err(local("read link"))?.as_os_str().as_bytes() == self.vault.readlink(node.id())?
            }
            kind => file_type(kind).is_some_and(|kind| kind.as_raw_mode() == there.mode() & libc::S_IFMT) && there.rdev() == node.attr.rdev,
        })
    }

    /// Whether a file outside holds what the one of the vault does. What cannot be read of it does not.
    fn holds_the_same(&mut self, node: &Node<'_>, target: &Path) -> Result<bool, EntryError> {
        // a link that has taken its place since is not followed, a FIFO not waited for
        let Ok(there) = File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(target) else { return Ok(false) };
        let opened = OpenFile::read(self.vault, node.id())?;
        let [left, right] = &mut self.buffers;
        let mut at = 0;
        loop {
            let read = self.vault.read(opened.handle(), at, left)?;
            if read == 0 {
                return Ok(there.metadata().map_err(local("stat"))?.len() == at);
            }
            if there.read_exact_at(&mut right[..read], at).is_err() || left[..read] != right[..read] {
                return Ok(false);
            }
            at += read as u64;
        }
    }

    fn another_name(&mut self, first: &Path, target: &Path, there: Option<&fs::Metadata>) -> Result<(), EntryError> {
        let stat = fs::symlink_metadata(first).map_err(local("stat"))?;
        match there {
            Some(there) if (there.dev(), there.ino()) == (stat.dev(), stat.ino()) => {
                self.tally.skipped(0);
                return Ok(());
            }
            Some(_) => in_place_of(target, |partial| fs::hard_link(first, partial).map_err(local("link")))?,
            None => fs::hard_link(first, target).map_err(local("link"))?,
        }
        self.tally.copied();
        Ok(())
    }

    fn make(&mut self, node: &Node<'_>, partial: &Path) -> Result<(), EntryError> {
        match node.attr.kind {
            Kind::File => return self.file(node, partial),
            Kind::Symlink => {
                let target = self.vault.readlink(node.id())?;
                symlink(os_str(&target), partial).map_err(local("make link"))?;
                if self.is_root {
                    lchown(partial, Some(node.attr.uid), Some(node.attr.gid)).map_err(local("set owner"))?;
                }
                return outside::set_times_of(partial, node.attr.atime, node.attr.mtime).map_err(local("set times"));
            }
            Kind::BlockDevice | Kind::CharDevice if !self.allowed.dev => {
                return Err(EntryError::Odd("a device node, which is made only with --dev"));
            }
            kind => {
                let kind = file_type(kind).ok_or(EntryError::Odd("its type is not known"))?;
                mknodat(CWD, partial, kind, Mode::from_raw_mode(0o600), node.attr.rdev).map_err(call("make"))?;
            }
        }
        self.xattrs(node.id(), partial)?;
        self.set_metadata(&node.attr, partial)
    }

    fn file(&mut self, node: &Node<'_>, partial: &Path) -> Result<(), EntryError> {
        let opened = OpenFile::read(self.vault, node.id())?;
        // the size that the header authenticates, not that which follows from the length of the ciphertext
        let attr = self.vault.getattr(node.id())?;
        let file = File::options().write(true).create_new(true).mode(0o600).open(partial).map_err(local("make file"))?;
        let mut ranges = DataRanges::of_vault(self.vault, opened.handle(), attr.size);
        while let Some((mut offset, end)) = ranges.next_range()? {
            while offset < end {
                let want = BLOCK.min(usize::try_from(end - offset).unwrap_or(BLOCK));
                let read = self.vault.read(opened.handle(), offset, &mut self.buffers[0][..want])?;
                if read == 0 {
                    return Err(EntryError::Odd("it became shorter while it was read"));
                }
                file.write_all_at(&self.buffers[0][..read], offset).map_err(local("write"))?;
                offset += read as u64;
                self.tally.bytes(read as u64);
            }
        }
        file.set_len(attr.size).map_err(local("set length"))?;
        opened.close()?;
        // a change of the owner takes the capabilities away
        if self.is_root {
            fchown(&file, Some(attr.uid), Some(attr.gid)).map_err(local("set owner"))?;
        }
        self.xattrs(node.id(), partial)?;
        file.set_permissions(Permissions::from_mode(self.mode(&attr))).map_err(local("set mode"))?;
        outside::set_times(&file, attr.atime, attr.mtime).map_err(local("set times"))
    }

    /// The mode to give. Where the owner cannot be kept, set-user-id bits would give the rights of another one.
    fn mode(&self, attr: &Attr) -> u32 {
        if self.is_root && self.allowed.suid { attr.perm } else { attr.perm & !0o6000 }
    }

    /// Sets owner (only root can), then mode (which a change of owner would cut), then times, of what is no link.
    fn set_metadata(&self, attr: &Attr, path: &Path) -> Result<(), EntryError> {
        if self.is_root {
            lchown(path, Some(attr.uid), Some(attr.gid)).map_err(local("set owner"))?;
        }
        fs::set_permissions(path, Permissions::from_mode(self.mode(attr))).map_err(local("set mode"))?;
        outside::set_times_of(path, attr.atime, attr.mtime).map_err(local("set times"))
    }

    fn xattrs(&self, node: NodeId, path: &Path) -> Result<(), EntryError> {
        for name in self.vault.list_xattr(node)? {
            if name == CAPABILITY && !self.allowed.suid {
                continue;
            }
            let value = match self.vault.get_xattr(node, &name) {
                Err(error) if error.errno() == libc::ENODATA => continue,
                other => other?,
            };
            match outside::set_xattr(path, &name, &value) {
                Err(error) if !outside::may_be_left_out(&name, error.raw_os_error().unwrap_or(0)) => {
                    return Err(EntryError::Local("set attribute", error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Makes an object under another name, complete, and gives it that of `target`. What stands there stays if that fails.
fn in_place_of(target: &Path, make: impl FnOnce(&Path) -> Result<(), EntryError>) -> Result<(), EntryError> {
    let name = target.file_name().expect("an entry has a name");
    let partial = target.with_file_name(partial_name(name.as_bytes()));
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(EntryError::Local("remove", error)),
        _ => {}
    }
    let made = make(&partial).and_then(|()| fs::rename(&partial, target).map_err(local("rename")));
    made.inspect_err(|_| {
        let _ = fs::remove_file(&partial);
    })
}

/// The type for mknod(2).
fn file_type(kind: Kind) -> Option<FileType> {
    match kind {
        Kind::Fifo => Some(FileType::Fifo),
        Kind::Socket => Some(FileType::Socket),
        Kind::BlockDevice => Some(FileType::BlockDevice),
        Kind::CharDevice => Some(FileType::CharacterDevice),
        Kind::File | Kind::Dir | Kind::Symlink => None,
    }
}
