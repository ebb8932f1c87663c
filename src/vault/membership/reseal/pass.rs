//! The walk through a share that counts data of older epochs, or seals it again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::MutexGuard;
use serde::{Deserialize, Serialize};

use super::names::Standing;
use crate::format::name::is_control;
use crate::store::{Dir, Kind};
use crate::vault::core::Core;
use crate::vault::directory::names::shown;
use crate::vault::error::{Fault, Inner};
use crate::vault::share::control_files::list;
use crate::vault::types::ShareProgress;
use crate::vault::types::{Attr, NodeId, ROOT};

/// The data of a share that is sealed under an older epoch than the current one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Files with contents of an older epoch.
    pub files: u64,
    /// Bytes of these contents, without holes.
    pub bytes: u64,
    /// Bytes of all contents for which the store has blocks.
    pub bytes_total: u64,
    /// Names of entries.
    pub names: u64,
    /// Headers of files, symbolic links, extended attributes, rename evidence, junctions.
    pub headers: u64,
    /// Names that cannot be sealed again because they also exist under a later epoch, or are those
    /// of a sync tool's conflict copies. They remain until a user renames or removes the entries.
    pub conflicts: u64,
    /// Objects that are invalid or could not be read. They are left as they are; the log names
    /// the first 100 of them.
    pub skipped: u64,
}

impl Pending {
    /// Returns whether a pass, including contents if `eager`, has nothing to do.
    pub fn is_done(&self, eager: bool) -> bool {
        self.names + self.headers == 0 && (!eager || self.bytes == 0)
    }
}

/// Maximum number of objects that a pass names in the log. Every reader can add any number of
/// invalid ones.
const LOGGED_MAX: u64 = 100;

/// The work of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Counts only.
    Count,
    /// Names, headers and records.
    Lazy,
    /// Contents too.
    Eager,
}

/// A directory of the store and a stored name in it.
pub(super) type Name = (Arc<dyn Dir>, Vec<u8>);

/// One pass through a share.
pub(super) struct Pass<'a> {
    pub core: &'a Core,
    pub work: Work,
    pub found: Pending,
    pub done: ShareProgress,
    pub progress: &'a mut dyn FnMut(&ShareProgress),
    /// Inodes with several names that were met.
    inodes: HashSet<(u64, u64)>,
    /// New symbolic links with several names, by their old inodes.
    pub links: HashMap<(u64, u64), Name>,
    /// Directories that were met and not entered yet; each holds one lookup. This is a list and not
    /// a recursion, because any member could make a tree that is deeper than the stack allows.
    todo: Vec<NodeId>,
}

impl<'a> Pass<'a> {
    pub fn new(
        core: &'a Core,
        work: Work,
        done: ShareProgress,
        progress: &'a mut dyn FnMut(&ShareProgress),
    ) -> Self {
        let (inodes, links, todo) = (HashSet::new(), HashMap::new(), Vec::new());
        Pass { core, work, found: Pending::default(), done, progress, inodes, links, todo }
    }

    pub fn run(&mut self) -> Inner<()> {
        let attributes = self.attributes(ROOT);
        self.tolerate(ROOT, b"", attributes)?;
        let evidence = self.evidence();
        self.tolerate(ROOT, b"", evidence)?;
        let done = self.directory(ROOT).and_then(|()| self.below());
        self.todo.drain(..).for_each(|node| self.core.nodes.forget(node, 1));
        if self.found.skipped > LOGGED_MAX {
            let more = self.found.skipped - LOGGED_MAX;
            tracing::warn!("{more} more objects are left as they are");
        }
        done
    }

    fn below(&mut self) -> Inner<()> {
        while let Some(node) = self.todo.pop() {
            let done = self.directory(node);
            let done = self.tolerate(node, b"", done);
            self.core.nodes.forget(node, 1); // the nodes below keep it
            done?;
        }
        Ok(())
    }

    /// Returns whether `epoch` is another one than the current epoch.
    pub fn is_old(&self, epoch: u32) -> bool {
        epoch != self.core.keys.current().number
    }

    /// Begins a step that makes a change; fails once the vault is closed.
    pub fn step(&self) -> Inner<MutexGuard<'a, ()>> {
        let core: &'a Core = self.core;
        let step = core.membership.passing.lock();
        core.check_open()?;
        Ok(step)
    }

    /// Counts an object of an older epoch, or runs `act`.
    pub fn header(&mut self, act: impl FnOnce(&Self) -> Inner<()>) -> Inner<()> {
        if self.work == Work::Count {
            self.found.headers += 1;
            return Ok(());
        }
        let _step = self.step()?;
        act(self)
    }

    /// Continues after an object that cannot be processed: it is invalid, not accessible, or
    /// removed by now.
    fn tolerate(&mut self, node: NodeId, stored: &[u8], outcome: Inner<()>) -> Inner<()> {
        let fault = match outcome {
            Ok(()) => return Ok(()),
            Err(fault) => fault,
        };
        match fault.errno() {
            libc::ENOENT | libc::ESTALE => return Ok(()),
            libc::ESHUTDOWN | libc::EROFS => return Err(fault),
            _ if matches!(fault, Fault::Corrupt(_) | Fault::Format(_) | Fault::Os(_)) => {}
            libc::EACCES | libc::EPERM => {}
            _ => return Err(fault),
        }
        self.found.skipped += 1;
        if self.found.skipped > LOGGED_MAX {
            return Ok(());
        }
        let path = self.core.shown_path(node).join(shown(stored));
        let error = fault.at("reseal", || path.clone());
        tracing::warn!("{}: left as it is: {error}", path.display());
        Ok(())
    }

    fn directory(&mut self, node: NodeId) -> Inner<()> {
        let dir = self.core.dir(node)?;
        for entry in list(&*dir)? {
            self.core.check_open()?;
            let done = if is_control(&entry.name) {
                self.junction(node, &dir, &entry.name)
            } else {
                self.entry(node, &dir, &entry.name)
            };
            self.tolerate(node, &entry.name, done)?;
        }
        Ok(())
    }

    fn entry(&mut self, node: NodeId, dir: &Arc<dyn Dir>, stored: &[u8]) -> Inner<()> {
        let folder = self.core.folder(node)?;
        let name = match folder.standing(stored)? {
            None => return Ok(()),
            Some(Standing::Current(name)) => name,
            Some(Standing::Conflict(name)) => {
                self.found.conflicts += 1;
                name
            }
            Some(Standing::Older(name, _)) if self.work == Work::Count => {
                self.found.names += 1;
                name
            }
            Some(Standing::Older(name, sealed)) => {
                let _step = self.step()?;
                self.core.remember_name(node, &name);
                self.core.reseal_name(node, stored, &name, &sealed)?
            }
        };
        let mut is_second_look = false;
        loop {
            let attr = self.core.lookup(node, &name)?;
            let outcome = self.object(node, dir, &attr);
            if let Ok(true) = outcome {
                self.todo.push(attr.node);
                return Ok(());
            }
            self.core.nodes.forget(attr.node, 1);
            // Another program has replaced the file by another version, which has a node of its
            // own.
            let is_stale = outcome.as_ref().is_err_and(|fault| fault.errno() == libc::ESTALE);
            if !is_stale || attr.kind != Kind::File || std::mem::replace(&mut is_second_look, true)
            {
                return outcome.map(drop);
            }
        }
    }

    /// Returns true for a directory that is to be entered.
    fn object(&mut self, parent: NodeId, dir: &Arc<dyn Dir>, attr: &Attr) -> Inner<bool> {
        let link = self.core.nodes.link(attr.node)?;
        let other = (link.parent != parent).then(|| self.core.dir(link.parent)).transpose()?;
        let dir = other.as_ref().unwrap_or(dir);
        let stat = dir.stat(link.stored())?;
        if attr.kind == Kind::Symlink {
            // Each name of a link is replaced separately.
            return self.link(attr.node, dir, link.stored(), &stat).map(|()| false);
        }
        if attr.kind == Kind::Dir {
            match self.core.directory_tag(attr.node) {
                Err(Fault::Boundary) => return Ok(false), // a nested share
                other => other?,
            };
            let attributes = self.attributes(attr.node);
            self.tolerate(attr.node, b"", attributes)?;
            return Ok(true);
        }
        if stat.nlink > 1 && self.inodes.contains(&(stat.dev, stat.ino)) {
            return Ok(false);
        }
        let attributes = self.attributes(attr.node);
        self.tolerate(parent, link.stored(), attributes)?;
        if attr.kind == Kind::File {
            self.file(attr.node, dir, link.stored(), &stat)?;
        }
        if stat.nlink > 1 {
            self.inodes.insert((stat.dev, stat.ino));
        }
        Ok(false)
    }
}
