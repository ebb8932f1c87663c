//! Attributes of entries, as programs see them.

use std::sync::Arc;

use crate::format::record;
use crate::store::{Dir, Kind, Stat};
use crate::vault::core::Core;
use crate::vault::core::inodes::Link;
use crate::vault::directory::folder::Folder;
use crate::vault::error::{Fault, Inner};
use crate::vault::namespace::symlink::overflow_text_len;
use crate::vault::types::{Attr, NodeId, ROOT};

impl Core {
    /// Returns the attributes of an object of the store as node `node`. Fails with `ESTALE` if the
    /// kernel caches another size or time of this node, or the node is retired.
    pub fn attr(&self, node: NodeId, stat: &Stat, dir: Option<(&dyn Dir, &[u8])>) -> Inner<Attr> {
        let mut attr = Attr {
            node,
            ino: self.nodes.number(node, stat),
            kind: stat.kind,
            perm: stat.perm,
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            rdev: stat.rdev,
            size: stat.size,
            blocks: stat.blocks,
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
        };
        match stat.kind {
            Kind::File => {
                let inode = (stat.dev, stat.ino);
                let open = self.open.files.lock().get(&node).map(|s| s.file.clone());
                if let Some((len, mtime)) = self.journal.overlaid_stat(inode) {
                    (attr.size, attr.mtime) = (self.shown_size(inode, len), mtime);
                } else {
                    attr.size = self.shown_size(inode, stat.size);
                }
                if let Some(open) = open {
                    // If it cannot be read now, the previous state is shown; a read reports the
                    // error.
                    let _ = self.mode.writers.adopt(self, &open);
                    let state = open.state.read();
                    attr.size = state.size;
                    if let Some(mtime) = self.mode.writers.time_to_show(&open, &state) {
                        attr.mtime = mtime;
                        attr.ctime = attr.ctime.max(mtime);
                    }
                    if let Some(committed) = &state.committed
                        && self.lease.is_needed()
                        && state.changes.is_none()
                    {
                        open.locks.lock().tell(committed.header.hash(), attr.size, attr.mtime);
                    }
                } else if self.mode.caller_caches
                    && !self.nodes.tell_size(node, attr.size, attr.mtime)?
                {
                    return Err(self.check_size(node, dir));
                }
            }
            Kind::Symlink => attr.size = self.symlink_size(stat, dir),
            _ => {}
        }
        Ok(attr)
    }

    /// Called if a reply would contain another size or time than the kernel caches: retires the
    /// node, unless the file is open by now or only the `stat` was from before a commit. Returns
    /// `ESTALE`, after which the caller repeats the lookup.
    fn check_size(&self, node: NodeId, place: Option<(&dyn Dir, &[u8])>) -> Fault {
        let files = self.open.files.lock();
        let told = || {
            let (dir, stored) = place?;
            let stat = dir.stat(stored).ok()?;
            let len =
                self.journal.overlaid_stat((stat.dev, stat.ino)).map_or(stat.size, |(len, _)| len);
            self.nodes.tell_size(node, self.shown_size((stat.dev, stat.ino), len), stat.mtime).ok()
        };
        if !files.contains_key(&node) && told() != Some(true) {
            self.nodes.retire(node);
        }
        Fault::Os(libc::ESTALE)
    }

    /// Returns the plain size of a link from the length of its text, or from the control file of a
    /// long target.
    fn symlink_size(&self, stat: &Stat, dir: Option<(&dyn Dir, &[u8])>) -> u64 {
        if stat.size == overflow_text_len(self.keys.signed())
            && let Some((dir, stored)) = dir
            && let Ok(target) = self.read_target(dir, stored)
        {
            return target.len() as u64;
        }
        record::link_target_len(stat.size, self.keys.signed())
    }

    /// Returns a name of a node. If the node has several names, forgets those that another program
    /// has removed in the store or given to another object.
    pub fn link_of(&self, node: NodeId) -> Inner<Link> {
        loop {
            let link = self.nodes.link(node)?;
            if !self.nodes.has_several_links(node) {
                return Ok(link);
            }
            let there = self.dir(link.parent).and_then(|dir| Ok(dir.stat(link.stored())?));
            match there {
                Ok(stat) if self.nodes.is(node, &stat) => return Ok(link),
                Err(fault) if !matches!(fault.errno(), libc::ENOENT | libc::ESTALE) => {
                    return Err(fault);
                }
                _ => self.nodes.drop_link(node, link.parent, link.stored()),
            }
        }
    }

    /// Returns a name by which a node can be changed; the caller has the lease. With concurrent
    /// openers, fails with `ESTALE` if the name leads to another object by now: a program may still
    /// use an object that another daemon has renamed, through a descriptor, and must not change what
    /// has the name now.
    pub fn link_to_change(&self, node: NodeId) -> Inner<Link> {
        let link = self.link_of(node)?;
        if node != ROOT
            && self.mode.writers.share_names()
            && !self.names(&link, |stat| self.nodes.is(node, stat))?
        {
            return Err(Fault::Os(libc::ESTALE));
        }
        Ok(link)
    }

    /// Returns a handle of a directory that is not found by its name.
    pub fn dir_without_name(&self, node: NodeId) -> Option<Arc<dyn Dir>> {
        self.known_dir(node).or_else(|| self.open.listed_dir(node))
    }

    /// Retires the node of a file that is not open if one of its names leads elsewhere in the store
    /// by now: another program has renamed the file. An open of the node would fail with `ESTALE`
    /// because of that name, and the kernel repeats a lookup only once. Returns whether it did.
    fn retire_renamed(&self, node: NodeId, stat: &Stat) -> bool {
        let is_renamed =
            stat.kind == Kind::File
                && self.nodes.has_more_names(node, stat.nlink)
                && self.nodes.links(node).iter().any(|link| {
                    matches!(self.names(link, |now| self.nodes.is(node, now)), Ok(false))
                });
        let files = self.open.files.lock();
        let retires = is_renamed && !files.contains_key(&node);
        if retires {
            self.nodes.retire(node);
        }
        retires
    }

    /// Returns the attributes of a node by one of its names; if it has none any more, by its open
    /// file or directory, or as they were when it lost its last name.
    pub fn stat(&self, node: NodeId) -> Inner<Attr> {
        if node == ROOT {
            return self.attr(node, &self.root.stat_self()?, None);
        }
        let place = self.link_of(node).and_then(|link| Ok((self.dir(link.parent)?, link)));
        match place {
            Ok((dir, link)) => {
                let is_retired = || self.mode.caller_caches && self.nodes.cached(node).is_err();
                let stat = match dir.stat(link.stored()) {
                    Ok(stat) if self.nodes.is(node, &stat) => stat,
                    // Another daemon, or another program in the store, may have renamed it.
                    other
                        if (other.is_ok() || is_gone(&other))
                            && self.nodes.kind(node)? == Kind::File =>
                    {
                        let open = self.open.files.lock().get(&node).map(|s| s.file.clone());
                        return match (open, other) {
                            (Some(open), _) => self.attr(node, &open.file().stat()?, None),
                            // The kernel repeats the lookup of a retired node's name.
                            (None, Err(e)) if !self.mode.writers.share_names() && !is_retired() => {
                                Err(e.into())
                            }
                            (None, _) => Err(Fault::Os(libc::ESTALE)),
                        };
                    }
                    other
                        if self.mode.writers.share_names()
                            && (other.is_ok() || is_gone(&other)) =>
                    {
                        return Err(Fault::Os(libc::ESTALE));
                    }
                    // Another directory has just taken its place; a program that is listing the
                    // former one continues with its own handle.
                    Ok(_) => {
                        return self.attr(
                            node,
                            &self
                                .open
                                .listed_dir(node)
                                .ok_or(Fault::Os(libc::ESTALE))?
                                .stat_self()?,
                            None,
                        );
                    }
                    Err(e) => return Err(e.into()),
                };
                match self.attr(node, &stat, Some((&*dir, link.stored()))) {
                    Err(Fault::Os(libc::ESTALE)) if stat.kind == Kind::File => {
                        self.attr(node, &dir.stat(link.stored())?, Some((&*dir, link.stored())))
                    }
                    other => other,
                }
            }
            // The object has no name any more, or another directory has taken the place of its
            // parent.
            Err(fault) => {
                let open = self.open.files.lock().get(&node).map(|s| s.file.clone());
                match open {
                    Some(open) => self.attr(node, &open.file().stat()?, None),
                    None if self.nodes.link(node).is_ok() => Err(fault),
                    None => match (self.dir_without_name(node), self.nodes.last_stat(node)) {
                        (Some(dir), _) => self.attr(node, &dir.stat_self()?, None),
                        (None, Some(last)) => self.attr(node, &last, None),
                        (None, None) => Err(fault),
                    },
                }
            }
        }
    }
}

impl Folder<'_> {
    pub(in crate::vault) fn seen(&self, stat: &Stat, stored: &[u8], name: &[u8]) -> Inner<Attr> {
        let mut stat = *stat;
        loop {
            let node = self.core.nodes.seen(&stat, self.link(stored, name));
            let attr = match self.core.retire_renamed(node, &stat) {
                true => Err(Fault::Os(libc::ESTALE)),
                false => self.core.attr(node, &stat, Some((&*self.dir, stored))),
            };
            match attr {
                // The node is retired, and the object gets a new one; or the file was committed
                // since the `stat`.
                Err(Fault::Os(libc::ESTALE)) if stat.kind == Kind::File => {
                    self.core.nodes.forget_unsent(node)
                }
                other => return other,
            }
            stat = self.dir.stat(stored)?;
        }
    }
}

fn is_gone<T>(result: &std::io::Result<T>) -> bool {
    matches!(result, Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)))
}
