//! Copies the contents of a folder into the share that will take its place.
//!
//! Rules that hold here
//! * Everything is read through the folder's own share, and so verified, and sealed again by the
//!   new share.
//! * An entry from an earlier call stays only if it is identical to the byte. A file's time is set
//!   last, after its contents are durable.
//! * The look of each object is noted before it is read, so that later changes can be detected.

use std::collections::{HashMap, HashSet};

use super::compare::same_contents;
use super::entries::{DEPTH_MAX, Entries, PART, read_children};
use super::seen::{Look, Seen, below};
use crate::store::{Kind, Seek, SetTime};
use crate::vault::core::Core;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::types::ShareProgress;
use crate::vault::types::{Attr, Caller, NodeId, OpenFlags, SetAttr, SetXattr};

/// A copy of a folder into the share that will take its place.
pub(super) struct Copy<'a> {
    pub from: &'a Core,
    pub to: &'a Core,
    /// Nodes in the share for inodes with several names.
    pub links: HashMap<u64, NodeId>,
    /// Stored path, relative to the folder, of the directory that is being copied.
    pub at: Vec<u8>,
    pub seen: Seen,
    /// The looks noted in the previous round.
    pub before: Seen,
    pub done: ShareProgress,
    pub progress: &'a mut dyn FnMut(&ShareProgress),
}

/// Returns all entries of a directory whose names can be read.
fn children(core: &Core, node: NodeId) -> Inner<Entries> {
    Ok(read_children(core, node)?.0)
}

/// Returns all entries of a directory of the folder. Fails if a name cannot be read: an omitted
/// entry would be removed with the folder.
fn whole_children(core: &Core, node: NodeId) -> Inner<Entries> {
    let (entries, more) = read_children(core, node)?;
    if more {
        entries.iter().for_each(|(_, attr)| core.nodes.forget(attr.node, 1));
        return Err(Fault::Corrupt(Corruption::Other("holds entries whose names cannot be read")));
    }
    Ok(entries)
}

fn caller(attr: &Attr) -> Caller {
    Caller { uid: attr.uid, gid: attr.gid, umask: 0 }
}

impl Copy<'_> {
    pub fn count(&mut self, node: NodeId) -> Inner<()> {
        let mut left = vec![(node, 0)];
        while let Some((at, depth)) = left.pop() {
            if depth > DEPTH_MAX {
                left.push((at, depth));
                left.iter()
                    .filter(|(at, _)| *at != node)
                    .for_each(|(at, _)| self.from.nodes.forget(*at, 1));
                return Err(Fault::Os(libc::ELOOP));
            }
            let below = whole_children(self.from, at);
            if at != node {
                self.from.nodes.forget(at, 1); // the nodes below keep it
            }
            for (_, attr) in below? {
                match attr.kind {
                    Kind::Dir => {
                        left.push((attr.node, depth + 1));
                        continue;
                    }
                    Kind::File => {
                        self.done.files_total += 1;
                        self.done.bytes_total += attr.size;
                    }
                    _ => {}
                }
                self.from.nodes.forget(attr.node, 1);
            }
        }
        Ok(())
    }

    /// Makes the directory `to` of the share equal to the directory `from`.
    pub fn directory(&mut self, from: NodeId, to: NodeId) -> Inner<()> {
        // Noted before it is read, so that a later change shows.
        self.seen.insert(self.at.clone(), Look::of_dir(&self.from.dir(from)?.stat_self()?));
        let entries = whole_children(self.from, from)?;
        let names: HashSet<&[u8]> = entries.iter().map(|(name, _)| &name[..]).collect();
        for (name, attr) in children(self.to, to)? {
            if !names.contains(&name[..]) {
                self.remove(to, &name, &attr)?;
            }
            self.to.nodes.forget(attr.node, 1);
        }
        for (name, attr) in &entries {
            let copied = self.entry(from, to, name, attr);
            self.from.nodes.forget(attr.node, 1);
            copied?;
        }
        self.attributes(from, to, &self.from.stat(from)?)?;
        Ok(self.to.dir(to)?.sync()?)
    }

    fn remove(&self, parent: NodeId, name: &[u8], attr: &Attr) -> Inner<()> {
        if attr.kind != Kind::Dir {
            return self.to.unlink(parent, name);
        }
        for (name, child) in children(self.to, attr.node)? {
            self.remove(attr.node, &name, &child)?;
            self.to.nodes.forget(child.node, 1);
        }
        self.to.rmdir(parent, name)
    }

    fn symlink(
        &self,
        to_parent: NodeId,
        name: &[u8],
        attr: &Attr,
        there: Option<Attr>,
    ) -> Inner<Attr> {
        let target = self.from.readlink(attr.node)?;
        if let Some(there) = there {
            if self.to.readlink(there.node)? == target {
                return Ok(there);
            }
            self.to.nodes.forget(there.node, 1);
            self.to.unlink(to_parent, name)?;
        }
        self.to.symlink(&caller(attr), to_parent, name, &target)
    }

    fn entry(
        &mut self,
        from_parent: NodeId,
        to_parent: NodeId,
        name: &[u8],
        attr: &Attr,
    ) -> Inner<()> {
        self.from.check_open()?;
        let link = self.from.nodes.link_in(attr.node, from_parent, name)?;
        let path = below(&self.at, link.stored());
        let dir = self.from.dir(from_parent)?;
        let look = Look::of(&*dir, link.stored(), &dir.stat(link.stored())?)?;
        // Whether the file looks as it did when an earlier round copied it.
        let is_known = self.before.get(&path) == Some(&look);
        self.seen.insert(path.clone(), look);
        let mut there = match self.to.lookup(to_parent, name) {
            Ok(there) => Some(there),
            Err(fault) if fault.errno() == libc::ENOENT => None,
            Err(fault) => return Err(fault),
        };
        if let Some(other) = there.filter(|there| there.kind != attr.kind) {
            self.remove(to_parent, name, &other)?;
            self.to.nodes.forget(other.node, 1);
            there = None;
        }
        if attr.nlink > 1
            && attr.kind != Kind::Dir
            && let Some(&node) = self.links.get(&attr.ino)
        {
            if let Some(there) = there {
                self.to.nodes.forget(there.node, 1);
                if there.node == node {
                    return self.tell(attr, 0);
                }
                self.to.unlink(to_parent, name)?;
            }
            match self.to.link(node, to_parent, name) {
                Ok(linked) => {
                    self.to.nodes.forget(linked.node, 1);
                    return self.tell(attr, 0);
                }
                // A store without hard links that reports some all the same: each name becomes a
                // file of its own.
                Err(Fault::Os(libc::EOPNOTSUPP)) => there = None,
                Err(fault) => return Err(fault),
            }
        }
        let node = match attr.kind {
            Kind::Dir => {
                let made = there.map_or_else(
                    || self.to.mkdir(&caller(attr), to_parent, name, attr.perm | 0o700),
                    Ok,
                )?;
                let above = std::mem::replace(&mut self.at, path);
                self.directory(attr.node, made.node)?;
                self.at = above;
                made.node
            }
            Kind::File => self.file(to_parent, name, attr, there, is_known)?,
            Kind::Symlink => {
                let made = self.symlink(to_parent, name, attr, there)?;
                self.attributes(attr.node, made.node, attr)?;
                made.node
            }
            other => {
                let make =
                    || self.to.mknod(&caller(attr), to_parent, name, other, attr.perm, attr.rdev);
                let made = there.map_or_else(make, Ok)?;
                self.attributes(attr.node, made.node, attr)?;
                made.node
            }
        };
        if attr.nlink > 1 && attr.kind != Kind::Dir && !self.links.contains_key(&attr.ino) {
            self.links.insert(attr.ino, node); // keeps its lookup count until the end
        } else {
            self.to.nodes.forget(node, 1);
        }
        Ok(())
    }

    fn tell(&mut self, attr: &Attr, bytes: u64) -> Inner<()> {
        if attr.kind == Kind::File {
            self.done.files += 1;
            self.done.bytes += bytes;
            (self.progress)(&self.done);
        }
        Ok(())
    }

    fn file(
        &mut self,
        to_parent: NodeId,
        name: &[u8],
        attr: &Attr,
        there: Option<Attr>,
        is_known: bool,
    ) -> Inner<NodeId> {
        if let Some(there) = there
            && (there.size, there.mtime) == (attr.size, attr.mtime)
            && (is_known || same_contents((self.from, attr.node), (self.to, there.node))?)
        {
            self.tell(attr, attr.size)?;
            return Ok(there.node);
        }
        let flags = OpenFlags { read: true, write: true, truncate: true, ..OpenFlags::default() };
        let (node, to) = match there {
            Some(there) => (there.node, self.to.open_file(there.node, flags)?.handle),
            None => {
                let (made, handle) =
                    self.to.create_file(&caller(attr), to_parent, name, 0o600, flags)?;
                (made.node, handle)
            }
        };
        let copied = (|| {
            let from = self
                .from
                .open_file(attr.node, OpenFlags { read: true, ..OpenFlags::default() })?
                .handle;
            let copied = self.contents(from, to);
            self.from.release_handle(from)?;
            copied?;
            self.to.fsync(to, false)
        })();
        self.to.release_handle(to)?;
        copied?;
        self.attributes(attr.node, node, attr)?;
        self.done.files += 1;
        (self.progress)(&self.done);
        Ok(node)
    }

    fn contents(&mut self, from: u64, to: u64) -> Inner<()> {
        let mut buf = zeroize::Zeroizing::new(vec![0; PART]);
        let mut at = 0;
        loop {
            at = match self.from.seek_data_hole(from, at, Seek::Data) {
                Ok(data) => data,
                Err(Fault::Os(libc::ENXIO)) => break,
                Err(fault) => return Err(fault),
            };
            self.from.check_open()?;
            let read = self.from.read(from, at, &mut buf)?;
            if read == 0 {
                break;
            }
            self.to.write(to, at, &buf[..read], false)?;
            at += read as u64;
            self.done.bytes += read as u64;
            (self.progress)(&self.done);
        }
        let (file, _) = self.to.open.file_handle(to)?;
        let size = file.state.read().size;
        // Uses the size in the header. The size derived from the ciphertext's length is not
        // authenticated.
        let authentic = self.from.open.file_handle(from)?.0.state.read().size;
        if size < authentic {
            let node = file.node;
            self.to.setattr(node, &SetAttr { size: Some(authentic), ..SetAttr::default() })?;
        }
        Ok(())
    }

    /// Copies owner, mode and attributes, and the times last.
    fn attributes(&self, from: NodeId, to: NodeId, attr: &Attr) -> Inner<()> {
        let names = self.from.list_xattr(from)?;
        for name in self.to.list_xattr(to)?.into_iter().filter(|name| !names.contains(name)) {
            self.to.remove_xattr(to, &name)?;
        }
        for name in names {
            let value = self.from.get_xattr(from, &name)?;
            self.to.set_xattr(to, &name, &value, SetXattr::Any)?;
        }
        let now = self.to.stat(to)?;
        let owner = (now.uid, now.gid) != (attr.uid, attr.gid);
        let perm =
            (attr.kind != Kind::Symlink && (owner || now.perm != attr.perm)).then_some(attr.perm);
        let (uid, gid) = (owner.then_some(attr.uid), owner.then_some(attr.gid));
        self.to.setattr(to, &SetAttr { uid, gid, ..SetAttr::default() })?;
        self.to.setattr(to, &SetAttr { perm, ..SetAttr::default() })?;
        self.to.setattr(
            to,
            &SetAttr {
                atime: SetTime::At(attr.atime),
                mtime: SetTime::At(attr.mtime),
                ..SetAttr::default()
            },
        )?;
        Ok(())
    }
}
