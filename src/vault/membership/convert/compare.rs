//! Compares a share with the folder that it was made of.
//!
//! Rule: files count as equal only if both were read and verified. Times prove nothing, because any
//! program can set them.

use super::entries::{DEPTH_MAX, PART, read_children};
use super::seen::{Look, Seen, below};
use crate::store::Kind;
use crate::vault::core::Core;
use crate::vault::error::{Fault, Inner};
use crate::vault::types::{Attr, NodeId, OpenFlags};

/// A node of a share.
type At<'a> = (&'a Core, NodeId);

/// Returns whether two files hold the same bytes. If the second one cannot be read, because a crash
/// left it incomplete, they differ.
pub(super) fn same_contents(from: At, to: At) -> Inner<bool> {
    let read = OpenFlags { read: true, ..OpenFlags::default() };
    let a = from.0.open_file(from.1, read)?.handle;
    let compared = to.0.open_file(to.1, read).map(|opened| opened.handle).and_then(|b| {
        let (mut left, mut right) =
            (zeroize::Zeroizing::new(vec![0; PART]), zeroize::Zeroizing::new(vec![0; PART]));
        let mut at = 0;
        let same = loop {
            from.0.check_open()?;
            let (l, r) = (from.0.read(a, at, &mut left)?, to.0.read(b, at, &mut right));
            match r {
                Ok(r) if left[..l] != right[..r] => break false,
                Ok(_) if l == 0 => break true,
                Ok(_) => at += l as u64,
                Err(Fault::Corrupt(_) | Fault::Format(_)) => break false,
                Err(fault) => return Err(fault),
            }
        };
        to.0.release_handle(b)?;
        Ok(same)
    });
    from.0.release_handle(a)?;
    match compared {
        Err(Fault::Corrupt(_) | Fault::Format(_)) => Ok(false),
        other => other,
    }
}

/// Compares a directory tree with another one: names, contents, attributes, owners, modes and
/// times. Entries that only the second one has do not count. Notes what it compared.
pub(super) struct Compare<'a> {
    pub from: &'a Core,
    pub to: &'a Core,
    pub seen: Seen,
}

impl Compare<'_> {
    /// Returns whether the directory `to` has all that is below `from`, unchanged. `path` is the
    /// stored path of `from`, relative to the folder.
    pub fn directory(
        &mut self,
        from: NodeId,
        to: NodeId,
        path: &[u8],
        depth: usize,
    ) -> Inner<bool> {
        if depth > DEPTH_MAX {
            return Ok(false);
        }
        // Noted before the directory is read, so that a later change is noticed.
        self.seen.insert(path.to_vec(), Look::of_dir(&self.from.dir(from)?.stat_self()?));
        let (entries, more) = read_children(self.from, from)?;
        let mut same = !more;
        for (name, attr) in entries {
            same = same && self.entry((from, to), &name, &attr, path, depth)?;
            self.from.nodes.forget(attr.node, 1);
        }
        Ok(same)
    }

    fn entry(
        &mut self,
        (from, to): (NodeId, NodeId),
        name: &[u8],
        attr: &Attr,
        path: &[u8],
        depth: usize,
    ) -> Inner<bool> {
        self.from.check_open()?;
        let link = self.from.nodes.link_in(attr.node, from, name)?;
        let (dir, path) = (self.from.dir(from)?, below(path, link.stored()));
        self.seen.insert(path.clone(), Look::of(&*dir, link.stored(), &dir.stat(link.stored())?)?);
        let there = match self.to.lookup(to, name) {
            Ok(there) => there,
            Err(fault) if fault.errno() == libc::ENOENT => return Ok(false),
            Err(fault) => return Err(fault),
        };
        let same = self.same(attr, &there, &path, depth);
        self.to.nodes.forget(there.node, 1);
        same
    }

    fn same(&mut self, attr: &Attr, there: &Attr, path: &[u8], depth: usize) -> Inner<bool> {
        let shown = |attr: &Attr| (attr.kind, attr.perm, attr.uid, attr.gid, attr.mtime, attr.rdev);
        if shown(attr) != shown(there) || attr.kind != Kind::Dir && attr.size != there.size {
            return Ok(false);
        }
        for name in self.from.list_xattr(attr.node)? {
            match self.to.get_xattr(there.node, &name) {
                Ok(value) if value == self.from.get_xattr(attr.node, &name)? => {}
                Ok(_) | Err(Fault::Os(_)) => return Ok(false),
                Err(fault) => return Err(fault),
            }
        }
        match attr.kind {
            Kind::Dir => self.directory(attr.node, there.node, path, depth + 1),
            Kind::File => same_contents((self.from, attr.node), (self.to, there.node)),
            Kind::Symlink => Ok(self.from.readlink(attr.node)? == self.to.readlink(there.node)?),
            _ => Ok(true),
        }
    }
}
