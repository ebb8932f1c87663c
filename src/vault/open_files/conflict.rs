//! Changes to an open file that another program has replaced, overwritten or removed in the store.
//!
//! Rules that hold here
//! * A file is identified by its authenticated header, not by its inode. A file under its name with
//!   the header of the last commit is the same file; the open file continues there.
//! * Only changes that the store does not have yet are kept. A file that was removed is written
//!   back under its name. If another file has the name, the contents become a conflict copy beside
//!   it, unless both files have the same contents.
//! * The copy is complete and durable, with its name, before the commit succeeds. Open handles
//!   continue in the copy.
//! * A copy has one suffix: a suffix of the name is replaced. A name has a limited number of
//!   copies.
//! * Nothing is created in a directory that was moved: it may be outside the vault now, or in a
//!   place that no name leads to. A sync tool may have moved it under a key that has yet to arrive.
//!   Then the path of the file is followed again. If it leads to the same file, the open file
//!   continues there. Otherwise the copy is in the nearest directory of that path that exists.
//! * Nothing goes to another share: where one has taken the place of a directory on the path, the
//!   changes cannot be kept.
//! * A copy in another directory than the file's is readable for its owner alone: the directory may
//!   have kept others away from it.
//! * While no key can be used for writing, nothing is created, and the changes stay in memory.
//! * An inode is written through one open file. If a program opens the copy by its name for
//!   writing, the handles from before write no more: they have another node, and a state of their
//!   own. The node is listed under the copy's inode before the copy has contents.
//! * The lock of names is not taken, because a commit may not wait for it. Stored paths are locked,
//!   so no directory is renamed or removed meanwhile, and the copy's name is new.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use zeroize::Zeroizing;

use crate::format::name::without_suffix;
use crate::store::{Access, File, Kind, Seek, Stat};
use crate::vault::core::inodes::Link;
use crate::vault::core::overflow::{ACL_ACCESS, ATTRIBUTES};
use crate::vault::core::{Core, DEPTH_MAX};
use crate::vault::directory::names::Meaning;
use crate::vault::durability::commit::Durability;
use crate::vault::error::{Fault, Inner, is_no_descriptor, is_no_space};
use crate::vault::file::{FileState, Load, OpenFile};
use crate::vault::share::control_files::entries;
use crate::vault::types::{Forget, NodeId, ROOT};

/// Conflict copies that a name may have before further changes to its file are refused.
const COPIES_MAX: usize = 50;

/// Number of bytes that are copied or compared at a time.
const PART: usize = 1 << 20;

/// What another program has done to an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    /// The file at its place has another header.
    Overwrote,
    /// None of its names leads to it.
    Replaced,
}

impl Core {
    /// Keeps the changes of an open file that are not in the store and would be lost. Returns the
    /// name that leads to the file from now on. After a failure other than a lack of space, of
    /// descriptors or of a key, the file returns `EIO`.
    pub(super) fn keep_changes(
        &self,
        open: &OpenFile,
        state: &mut FileState,
        links: &[Link],
        what: Stranger,
    ) -> Inner<Link> {
        let waits = || self.keys.signing.waits();
        let kept = match waits() {
            false => self.kept(open, state, links),
            true => Err(Fault::Os(libc::EROFS)), // a copy could not be committed
        };
        if let Err(fault) = &kept
            && !is_no_space(fault.errno())
            && !is_no_descriptor(fault.errno())
            && !(fault.errno() == libc::EROFS && waits())
        {
            tracing::error!(
                path = %self.shown_path(open.node).display(),
                errno = fault.errno(),
                "another program has changed an open file in the store ({what:?}), and the writes since its last commit cannot be kept"
            );
            self.nodes.retire(open.node);
            state.latched = Some(libc::EIO);
            return Err(Fault::Os(libc::EIO));
        }
        kept
    }

    fn kept(&self, open: &OpenFile, state: &mut FileState, links: &[Link]) -> Inner<Link> {
        let mut place = None;
        for link in links.iter().rev() {
            if place.is_none() && self.is_in_place(link.parent)? {
                place = Some(link);
            }
        }
        let Some(link) = place else { return self.kept_elsewhere(open, state, links) };
        // The name leads to another file, to which no replay may apply the records of this one.
        self.journal.checkpoint_for(Some(open.inode()))?;
        let dir = self.dir(link.parent)?;
        let before = open.file().stat()?;
        match dir.stat(link.stored()) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                self.remember_name(link.parent, link.name());
                self.copy_to(open, state, link, &before)?;
                tracing::warn!(
                    path = %self.shown_path(open.node).display(),
                    "another program has removed a file in the store that was changed here; it is written back"
                );
                self.forget_name(link); // the kernel may remember that there is none
                Ok(link.clone())
            }
            Err(e) => Err(e.into()),
            Ok(there) if there.kind == Kind::File && self.adopt(open, state, link)? => {
                Ok(link.clone())
            }
            Ok(_) => {
                let copy = self.name_of_copy(link)?;
                self.remember_name(copy.parent, copy.name());
                self.copy_to(open, state, &copy, &before)?;
                tracing::warn!(
                    path = %self.shown_path(open.node).display(),
                    copy = %String::from_utf8_lossy(copy.stored()),
                    "another program has replaced a file in the store that was changed here; the changes are kept in a conflict copy"
                );
                self.has_new_name(open, &copy, links);
                Ok(copy)
            }
        }
    }

    /// Keeps the changes of a file none of whose directories is where it was.
    fn kept_elsewhere(
        &self,
        open: &OpenFile,
        state: &mut FileState,
        links: &[Link],
    ) -> Inner<Link> {
        let old = links.last().ok_or(Fault::Os(libc::ESTALE))?;
        self.journal.checkpoint_for(Some(open.inode()))?;
        self.look_for_keys();
        let left = (open.file(), state.committed.as_ref().map(|it| (it.header.hash(), it.len)));
        let may_cut = self.may_be_cut(state);
        let (parent, is_same_path) = self.present_directory(old.parent)?;
        let kept = self.kept_in(open, state, old, parent, is_same_path);
        if let Ok(link) = &kept {
            self.has_new_name(open, link, links);
            if let (file, Some((hash, len))) = left
                && may_cut
            {
                let _ = self.cut_behind(&*file, &hash, len);
            }
        }
        if parent != ROOT {
            self.nodes.forget(parent, 1);
        }
        kept
    }

    /// Keeps the changes of the file that had the name `old` in the directory `parent`, which has
    /// the path of the file's directory, or only a part of it.
    fn kept_in(
        &self,
        open: &OpenFile,
        state: &mut FileState,
        old: &Link,
        parent: NodeId,
        is_same_path: bool,
    ) -> Inner<Link> {
        let folder = self.folder(parent)?;
        if is_same_path
            && let Ok((stored, stat)) = folder.find(old.name())
            && stat.kind == Kind::File
        {
            let link = folder.link(&stored, old.name());
            if self.adopt(open, state, &link)? {
                return Ok(link);
            }
        }
        let plain = match self.read_name(old.stored())? {
            Some(Meaning::Name(sealed)) => sealed.plain,
            _ => old.name().to_vec(),
        };
        let stored = folder.encode(&plain)?;
        self.prepare(&stored)?;
        let copy = self.name_of_copy(&folder.link(stored.entry(), &plain))?;
        let mut before = open.file().stat()?;
        if !is_same_path {
            before.perm &= 0o700;
        }
        self.remember_name(copy.parent, copy.name());
        self.copy_to(open, state, &copy, &before)?;
        tracing::warn!(
            path = %self.shown_path(open.node).display(),
            copy = %self.path_in(parent, copy.stored()).unwrap_or_default().escape_ascii(),
            "another program has moved or removed the directory of a file that was changed here; the changes are kept in a conflict copy"
        );
        Ok(copy)
    }

    /// Cuts what was written behind the committed end `len` of a file that is left in a directory
    /// that moved, if it still has the committed header: a check would report those bytes.
    fn cut_behind(&self, file: &dyn File, header: &[u8; 32], len: u64) -> Inner<()> {
        if file.stat()?.size > len && self.header_in(file)?.hash() == *header {
            file.set_len(len)?;
        }
        Ok(())
    }

    /// Records that an open file has the name `link` from now on, and its former ones no more.
    fn has_new_name(&self, open: &OpenFile, link: &Link, former: &[Link]) {
        self.nodes.add_link(open.node, link.clone());
        let gone =
            former.iter().filter(|it| (it.parent, it.stored()) != (link.parent, link.stored()));
        gone.for_each(|it| self.nodes.drop_link(open.node, it.parent, it.stored()));
    }

    /// Returns the directory that has the path of a directory now, with one more lookup, and true;
    /// or the nearest one on that path that exists, and false. Fails if the path leads into another
    /// share, or may: its members are others than those of this one.
    fn present_directory(&self, directory: NodeId) -> Inner<(NodeId, bool)> {
        let (mut above, mut links) = (directory, Vec::new());
        while above != ROOT {
            let link = self.nodes.link(above)?; // there is none if a share has taken its place
            if links.len() >= DEPTH_MAX {
                return Err(Fault::Os(libc::ELOOP));
            }
            above = link.parent;
            links.push(link);
        }
        let mut at = ROOT;
        let release = |node| {
            if node != ROOT {
                self.nodes.forget(node, 1)
            }
        };
        while let Some(link) = links.pop() {
            match self.directory_in(at, link.name()) {
                Ok(below) => {
                    release(at); // the one below keeps it
                    at = below;
                }
                Err(fault) if matches!(fault.errno(), libc::ENOENT | libc::ENOTDIR) => {
                    return Ok((at, false));
                }
                Err(fault) => {
                    release(at);
                    return Err(fault);
                }
            }
        }
        Ok((at, true))
    }

    /// Returns the directory that has this name in another one, with one more lookup, if it is no
    /// share of its own.
    fn directory_in(&self, parent: NodeId, name: &[u8]) -> Inner<NodeId> {
        let folder = self.folder(parent)?;
        let found = folder.find(name);
        if found.as_ref().is_err_and(|fault| fault.errno() == libc::ENOENT)
            && folder.junction(name)?.is_some()
        {
            return Err(Fault::Boundary); // the share has yet to arrive
        }
        let (stored, stat) = found?;
        if stat.kind != Kind::Dir {
            return Err(Fault::Os(libc::ENOTDIR));
        }
        let node = self.nodes.seen(&stat, folder.link(&stored, name));
        self.directory_tag(node).map(|_| node).inspect_err(|_| self.nodes.forget(node, 1))
    }

    /// Makes the kernel look a name up again. Nothing waits for that.
    fn forget_name(&self, link: &Link) {
        let (done, _) = sync_channel(1);
        self.have_forgotten(link.parent, Forget::Name { name: link.name().into(), done });
    }

    /// Returns whether a directory, and each one above it, is where its name in the table of nodes
    /// says. The caller has locked paths.
    pub(super) fn is_in_place(&self, mut directory: u64) -> Inner<bool> {
        while directory != ROOT {
            let Ok(link) = self.nodes.link(directory) else { return Ok(false) };
            if !self.names(&link, |stat| self.nodes.is(directory, stat))? {
                // Another directory is there now.
                self.forget_dir(directory);
                return Ok(false);
            }
            directory = link.parent;
        }
        Ok(true)
    }

    /// Continues an open file in the file that its name `link` leads to, if that has the same
    /// header, or equal contents. Returns false otherwise.
    pub(super) fn adopt(&self, open: &OpenFile, state: &mut FileState, link: &Link) -> Inner<bool> {
        let dir = self.dir(link.parent)?;
        let Ok(file) = dir.open_file(link.stored(), Access::ReadWrite) else { return Ok(false) };
        let context = self.context();
        let loaded = OpenFile::load(open.node, file, &context, self.next_serial(), Load::Read);
        let Some(there) = loaded.ok().and_then(Arc::into_inner) else { return Ok(false) };
        let (file, inode) = (there.file(), there.inode());
        let mut theirs = there.state.into_inner();
        let is_echo =
            state.committed.as_ref().zip(theirs.committed.as_ref()).is_some_and(
                |(ours, theirs)| !ours.is_being_replaced && ours.header == theirs.header,
            );
        if is_echo && state.changes.is_some() {
            self.transfer(state, &*open.file(), &mut theirs, &*file)?;
        } else if !is_echo && !self.is_equal(state, &*open.file(), &theirs, &*file)? {
            return Ok(false);
        }
        // The program that has put it there may not have flushed it.
        file.sync_all()?;
        dir.sync()?;
        let now = file.stat()?;
        self.nodes.continue_in(open.node, &now);
        if self.nodes.is_open_beside(open.node, &now) {
            self.nodes.retire_as(open.node, &open.file().stat()?);
            return Ok(false);
        }
        continue_in(open, state, theirs, file, inode);
        tracing::info!(
            path = %self.shown_path(open.node).display(),
            "another program has replaced an open file in the store by the same contents"
        );
        Ok(true)
    }

    /// Applies the changes of `ours` to `theirs`, which has the state that `ours` was based on.
    fn transfer(
        &self,
        ours: &FileState,
        from: &dyn File,
        theirs: &mut FileState,
        to: &dyn File,
    ) -> Inner<()> {
        let context = self.context();
        let chunk = self.keys.layout.chunk();
        if ours.size < theirs.size {
            theirs.shorten(to, &context, ours.size)?;
        }
        let mut buf = Zeroizing::new(vec![0; chunk as usize]);
        let whole = ours.small.is_some().then_some(0);
        for k in whole.into_iter().chain(ours.dirty.keys().copied()) {
            let read = ours.read(from, &context, k * chunk, &mut buf)?;
            theirs.write(to, &context, k * chunk, &buf[..read])?;
        }
        if theirs.size < ours.size {
            theirs.extend(to, &context, ours.size)?;
        }
        theirs.mark();
        theirs.mtime = ours.mtime;
        Ok(())
    }

    /// Returns whether two files have the same contents; false if the second one cannot be read.
    fn is_equal(
        &self,
        ours: &FileState,
        our_file: &dyn File,
        theirs: &FileState,
        their_file: &dyn File,
    ) -> Inner<bool> {
        if ours.size != theirs.size {
            return Ok(false);
        }
        let context = self.context();
        let [mut one, mut other] = [(); 2].map(|()| Zeroizing::new(vec![0; PART]));
        let mut at = 0;
        while at < ours.size {
            let read = ours.read(our_file, &context, at, &mut one)?;
            if !theirs
                .read(their_file, &context, at, &mut other)
                .is_ok_and(|theirs| theirs == read && one[..read] == other[..read])
            {
                return Ok(false);
            }
            at += read as u64;
        }
        Ok(true)
    }

    /// Returns a new name for a conflict copy of the file that has the name `link`.
    fn name_of_copy(&self, link: &Link) -> Inner<Link> {
        let folder = self.folder(link.parent)?;
        let original = without_suffix(link.stored());
        let mut copies = 0;
        for entry in entries(folder.dir())? {
            let name = entry?.name;
            copies += usize::from(name.len() > original.len() && without_suffix(&name) == original);
        }
        if copies >= COPIES_MAX {
            return Err(Fault::Os(libc::EMLINK));
        }
        let mut id = [0; 4];
        self.random.fill(&mut id);
        let suffix = format!(" (conflict {:08x})", u32::from_be_bytes(id));
        let stored = [original, suffix.as_bytes()].concat();
        let name = folder.decode(&stored)?;
        Ok(Link::new(link.parent, &stored, name.as_deref().unwrap_or(&stored)))
    }

    /// Writes the contents of an open file to a new file with the name `link`, makes both durable,
    /// and continues the open file there.
    fn copy_to(
        &self,
        open: &OpenFile,
        state: &mut FileState,
        link: &Link,
        before: &Stat,
    ) -> Inner<()> {
        let folder = self.folder(link.parent)?;
        let dir = folder.dir();
        if let Ok(stored) = folder.encode(link.name())
            && stored.entry() == link.stored()
        {
            self.prepare(&stored)?; // the program may have removed more than the file
        }
        let file = dir.create_file(link.stored(), before.perm & 0o7777)?;
        let made = (|| {
            let stat = file.stat()?;
            // At once: a program that opens the copy by its name must find this file open.
            self.nodes.retire_as(open.node, &stat);
            self.copy_attributes(&*open.file(), &*file, before, &stat)?;
            let context = self.context();
            let copy = OpenFile::fresh(
                open.node,
                file.clone(),
                (stat.dev, stat.ino),
                &context,
                self.next_serial(),
                state.hint.clone(),
            );
            self.copy_contents(open, state, &copy)?;
            dir.sync()?;
            Ok(copy)
        })();
        let copy = made.inspect_err(|_: &Fault| {
            drop(dir.unlink(link.stored()));
            self.nodes.retire_as(open.node, before);
        })?;
        let inode = copy.inode();
        let copied = Arc::into_inner(copy).ok_or(Fault::Os(libc::EIO))?.state.into_inner();
        continue_in(open, state, copied, file, inode);
        Ok(())
    }

    fn copy_contents(&self, open: &OpenFile, state: &FileState, copy: &OpenFile) -> Inner<()> {
        let context = self.context();
        let (from, to) = (open.file(), copy.file());
        let mut made = copy.state.write();
        let no_path = || Ok(None);
        let mut buf = Zeroizing::new(vec![0; PART]);
        let mut at = 0;
        while at < state.size {
            at = match state.seek(&*from, &context, at, Seek::Data) {
                Err(Fault::Os(libc::ENXIO)) => break, // the rest is a hole
                found => found?,
            };
            let end = state.seek(&*from, &context, at, Seek::Hole)?;
            let len = end.saturating_sub(at).clamp(1, PART as u64) as usize;
            let read = state.read(&*from, &context, at, &mut buf[..len])?;
            made.write(&*to, &context, at, &buf[..read])?;
            at += read as u64;
            if made.is_full() || made.count(&context) {
                self.committer(&|| self.next_serial()).commit(
                    &mut made,
                    copy,
                    &no_path,
                    Durability::Ordered,
                )?;
            }
        }
        if made.size < state.size {
            made.extend(&*to, &context, state.size)?;
        }
        made.mtime = state.mtime;
        made.mtime.hold(&*from)?;
        self.committer(&|| self.next_serial()).commit(&mut made, copy, &no_path, Durability::Synced)
    }

    /// Copies mode, attributes and ACL to a new file, and the owner if this process is root's.
    fn copy_attributes(
        &self,
        from: &dyn File,
        to: &dyn File,
        before: &Stat,
        now: &Stat,
    ) -> Inner<()> {
        if self.mode.is_root_user && (now.uid, now.gid) != (before.uid, before.gid) {
            to.chown(Some(before.uid), Some(before.gid))?;
        }
        for key in [ATTRIBUTES, ACL_ACCESS] {
            match from.get_xattr(key) {
                Ok(Some(value)) => to.set_xattr(key, &value)?,
                Ok(None) => {}
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                Err(e) => return Err(e.into()),
            }
        }
        // Two entries have the reference to the list of attributes now.
        self.namespace.young_lists.forget_all();
        if to.stat()?.perm != before.perm {
            to.chmod(before.perm)?;
        }
        Ok(())
    }
}

/// Continues an open file in another file of the store, which has the state `stored`.
fn continue_in(
    open: &OpenFile,
    state: &mut FileState,
    stored: FileState,
    file: Arc<dyn File>,
    inode: (u64, u64),
) {
    let (kernel, hint) = (state.kernel, state.hint.clone());
    *state = stored;
    (state.kernel, state.hint) = (kernel, hint);
    open.continue_in(file, inode);
}
