//! The steps of a repair.
//!
//! Rules that hold here
//! * The destination is durable before an object is moved there, and the move is durable before the
//!   next step.
//! * Objects are found by their stored paths: a step that changes a path comes after all steps
//!   below it.

use std::sync::Arc;

use crate::crypto::Tag;
use crate::format::name::{Parts, StoredName, parse};
use crate::store::{Access, Dir, DirEntry, File, Kind, RenameMode, Seek, SetTime};
use crate::vault::core::Core;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::file::{Load, OpenFile};
use crate::vault::fsck::check::content::{self, is_blank};
use crate::vault::fsck::check::hints;
use crate::vault::fsck::remedy::Action;
use crate::vault::fsck::report::{CheckFault, LOST_AND_FOUND, join};
use crate::vault::namespace::xattr;
use crate::vault::share::control_files::entries;
use crate::vault::share::descriptor::put_in_place;
use crate::vault::types::{Caller, NodeId, OpenFlags, ROOT};

/// Maximum length in bytes of the part of a name that is used in `lost+found`.
const NAME_MAX: usize = 120;
/// Size in bytes of the pieces that are copied.
const PART: usize = 1 << 20;
/// Why a file is not cut.
const CHANGED: &str = "was changed since it was checked";

/// Returns the owner of the objects that a repair creates: the user of this process.
fn caller() -> Caller {
    Caller {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        umask: 0o077,
    }
}

/// Passes bytes, piece by piece, to the function that it receives.
type Fill<'f> = &'f mut dyn FnMut(&mut dyn FnMut(&[u8]) -> Inner<()>) -> Inner<()>;

/// The directory of one repair in `lost+found`.
struct Run {
    node: NodeId,
    dir: Arc<dyn Dir>,
    tag: Tag,
}

/// A repair in progress.
pub(super) struct Bench<'a> {
    core: &'a Core,
    name: Vec<u8>,
    run: Option<Run>,
}

fn is(e: &std::io::Error, errno: i32) -> bool {
    e.raw_os_error() == Some(errno)
}

impl<'a> Bench<'a> {
    pub fn new(core: &'a Core, name: &[u8]) -> Bench<'a> {
        Bench { core, name: name.to_vec(), run: None }
    }

    /// Makes everything durable; returns the plain path of the directory, if there is one.
    pub fn finish(self) -> Inner<Option<Vec<u8>>> {
        let Some(run) = self.run else { return Ok(None) };
        run.dir.sync()?;
        self.core.nodes.forget(run.node, 1);
        Ok(Some(join(LOST_AND_FOUND, &self.name)))
    }

    /// Runs one step; returns the plain path to which an object was moved, if any.
    pub fn act(&mut self, fault: &CheckFault, action: &Action) -> Inner<Option<Vec<u8>>> {
        match action {
            Action::LongName { sealed } => self.long_name(&fault.cipher, sealed),
            Action::Name { directory, name } => self.restore_name(&fault.cipher, directory, name),
            Action::Keep { name, entries } => self.keep(&fault.cipher, name, *entries),
            Action::Void { keep } => self.void(fault, keep),
            Action::Descriptor { copy } => {
                let (dir, stored) = self.core.open_parent(&fault.cipher)?;
                put_in_place(&dir.open_dir(stored)?, copy, &*self.core.random).map(|()| None)
            }
            Action::Trash => self.trash(&fault.cipher),
            Action::Attributes { name } => self.attributes(&fault.cipher, name, fault.list_missing),
            Action::Surplus { name, length } => self.surplus(&fault.cipher, name, *length),
        }
    }

    /// Returns the directory to which objects are moved, created and durable.
    fn run(&mut self) -> Inner<&Run> {
        if self.run.is_none() {
            let above = self.made(ROOT, LOST_AND_FOUND)?;
            self.core.root.sync()?;
            let node = self.made(above, &self.name.clone())?;
            self.core.dir(above)?.sync()?;
            self.core.nodes.forget(above, 1);
            self.run =
                Some(Run { node, dir: self.core.dir(node)?, tag: self.core.directory_tag(node)? });
        }
        Ok(self.run.as_ref().expect("made above"))
    }

    /// Returns an existing directory, or creates it.
    fn made(&self, parent: NodeId, name: &[u8]) -> Inner<NodeId> {
        match self.core.lookup(parent, name) {
            Ok(attr) if attr.kind == Kind::Dir => Ok(attr.node),
            Ok(attr) => {
                self.core.nodes.forget(attr.node, 1);
                Err(Fault::Os(libc::ENOTDIR))
            }
            Err(fault) if fault.errno() == libc::ENOENT => {
                Ok(self.core.mkdir(&caller(), parent, name, 0o700)?.node)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Returns a free name in the directory of this repair, close to `wanted`, with its stored
    /// form.
    fn free(&mut self, wanted: &[u8]) -> Inner<(Vec<u8>, Vec<u8>)> {
        let core = self.core;
        let run = self.run()?;
        let folder = core.folder_at(run.dir.clone(), run.tag);
        for n in 1.. {
            let mut name = wanted[..wanted.len().min(NAME_MAX)].to_vec();
            if n > 1 {
                name.extend_from_slice(format!(".{n}").as_bytes());
            }
            let stored: StoredName = folder.encode(&name)?;
            match run.dir.stat(stored.entry()) {
                Err(e) if is(&e, libc::ENOENT) => return Ok((name, stored.entry().to_vec())),
                Err(e) => return Err(e.into()),
                Ok(_) => {}
            }
        }
        Err(Fault::Os(libc::EEXIST))
    }

    fn kept(&self, name: &[u8]) -> Option<Vec<u8>> {
        Some(join(&join(LOST_AND_FOUND, &self.name), name))
    }

    /// Moves an object of `dir` to the directory of this repair.
    fn move_there(&mut self, dir: &dyn Dir, stored: &[u8], name: &[u8]) -> Inner<Option<Vec<u8>>> {
        let (name, entry) = self.free(name)?;
        let run = self.run()?;
        dir.rename(stored, &*run.dir, &entry, RenameMode::NoReplace)?;
        run.dir.sync()?;
        dir.sync()?;
        Ok(self.kept(&name))
    }

    fn keep(&mut self, cipher: &[u8], name: &[u8], entries: Option<Tag>) -> Inner<Option<Vec<u8>>> {
        let core = self.core;
        let (dir, stored) = core.open_parent(cipher)?;
        core.journal.checkpoint_for(None)?;
        let stat = dir.stat(stored)?;
        if stat.kind == Kind::Dir
            && let Some(tag) = entries
        {
            // By this evidence the entries belong to the directory at the new place too.
            core.may_seal()?;
            let (name, entry) = self.free(name)?;
            core.record_move(&tag, &core.keys.tag_of(&entry).ok_or(Fault::Os(libc::EINVAL))?)?;
            let run = self.run()?;
            dir.rename(stored, &*run.dir, &entry, RenameMode::NoReplace)?;
            run.dir.sync()?;
            dir.sync()?;
            return Ok(self.kept(&name));
        }
        let kept = self.move_there(&*dir, stored, name)?;
        self.forget(&stat);
        Ok(kept)
    }

    /// Retires the node of an object that was moved or removed without the node table.
    fn forget(&self, stat: &crate::store::Stat) {
        if let Some(node) = self.core.nodes.find(stat) {
            self.core.nodes.retire(node);
        }
    }

    fn long_name(&mut self, cipher: &[u8], sealed: &[u8]) -> Inner<Option<Vec<u8>>> {
        let stored = cipher.rsplit(|b| *b == b'/').next().unwrap_or(cipher);
        let Parts::Long { hash, .. } = parse(stored, self.core.keys.longest_name) else {
            return Err(Fault::Os(libc::EINVAL));
        };
        let name = StoredName::Long { entry: stored.to_vec(), hash, sealed: sealed.to_vec() };
        self.core.prepare(&name)?;
        Ok(None)
    }

    fn restore_name(
        &mut self,
        cipher: &[u8],
        directory: &Tag,
        name: &[u8],
    ) -> Inner<Option<Vec<u8>>> {
        let (dir, stored) = self.core.open_parent(cipher)?;
        let folder = self.core.folder_at(dir.clone(), *directory);
        let new = folder.encode(name)?;
        self.core.prepare(&new)?;
        self.core.journal.checkpoint_for(None)?;
        dir.rename(stored, &*dir, new.entry(), RenameMode::NoReplace)?;
        dir.sync()?;
        Ok(None)
    }

    fn void(&mut self, fault: &CheckFault, keep: &Action) -> Inner<Option<Vec<u8>>> {
        let (dir, stored) = self.core.open_parent(&fault.cipher)?;
        let stat = dir.stat(stored)?;
        let file = dir.open_file(stored, Access::Read)?;
        let attributes = match dir.get_xattr(stored, xattr::key_of(stat.kind)) {
            Err(e) if is(&e, libc::EOPNOTSUPP) => None,
            other => other?,
        };
        if !is_blank(&*file)? {
            return Ok(None);
        }
        if stat.size > 0 || file.read_at(&mut [0], 0)? > 0 || attributes.is_some() {
            return self.act(fault, keep);
        }
        dir.unlink(stored)?;
        dir.sync()?;
        self.forget(&stat);
        Ok(None)
    }

    fn trash(&mut self, cipher: &[u8]) -> Inner<Option<Vec<u8>>> {
        let (dir, stored) = self.core.open_parent(cipher)?;
        let inside = dir.open_dir(stored)?;
        let is_file = |entry: Inner<DirEntry>| {
            entry.is_ok_and(|e| inside.stat(&e.name).is_ok_and(|stat| stat.kind != Kind::Dir))
        };
        if Core::is_empty(&*inside)?.0 && entries(&*inside)?.all(is_file) {
            // Its removal was interrupted: it holds no entries.
            self.core.namespace.trash.empty(&dir, stored);
            dir.sync()?;
            return Ok(None);
        }
        self.keep(cipher, b"unnamed directory", hints::likely_tag(self.core, &*inside))
    }

    /// Creates a new file in the directory of this repair, filled by `fill`, durable. Its bytes
    /// have no verified author.
    fn copy(&mut self, name: &[u8], fill: Fill) -> Inner<Option<Vec<u8>>> {
        self.core.may_seal()?;
        let name = self.free(name)?.0;
        let core = self.core;
        let node = self.run()?.node;
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let (attr, handle) = core.create_file(&caller(), node, &name, 0o600, flags)?;
        let mut at = 0;
        let filled = fill(&mut |part| {
            core.write(handle, at, part, false)?;
            at += part.len() as u64;
            Ok(())
        });
        let synced = filled.and_then(|()| core.fsync(handle, false));
        let released = core.release_handle(handle);
        core.nodes.forget(attr.node, 1);
        synced?;
        released?;
        self.run()?.dir.sync()?;
        Ok(self.kept(&name))
    }

    /// Removes attributes that still cannot be read, permanently; with `list_missing`, also those
    /// whose list is missing.
    fn attributes(
        &mut self,
        cipher: &[u8],
        name: &[u8],
        list_missing: bool,
    ) -> Inner<Option<Vec<u8>>> {
        let (dir, stored) = self.core.open_parent(cipher)?;
        let key = xattr::key_of(if stored.is_empty() { Kind::Dir } else { dir.stat(stored)?.kind });
        let get = || {
            Ok(if stored.is_empty() {
                dir.get_xattr_self(key)
            } else {
                dir.get_xattr(stored, key)
            }?)
        };
        match self.core.read_list(&get) {
            Ok(_) => return Ok(None),
            Err(Fault::Corrupt(Corruption::ListMissing)) if list_missing => {}
            Err(fault) if xattr::is_lasting(&fault) => {}
            Err(fault) => return Err(fault),
        }
        let Some(blob) = get()? else { return Ok(None) };
        let name = [&name[..name.len().min(NAME_MAX)], b".attributes"].concat();
        let kept = self.copy(&name, &mut |write| write(&blob))?;
        if stored.is_empty() {
            dir.remove_xattr_self(key)?
        } else {
            dir.remove_xattr(stored, key)?
        };
        Ok(kept)
    }

    /// Copies the bytes beyond the end of a file, and cuts them off.
    fn surplus(&mut self, cipher: &[u8], name: &[u8], length: u64) -> Inner<Option<Vec<u8>>> {
        let core = self.core;
        let refuse = |why| Err(Fault::Corrupt(Corruption::Other(why)));
        if core.journal.may_rely_on_surplus() {
            return refuse("is left as it is: a journal may need these bytes");
        }
        let (dir, stored) = core.open_parent(cipher)?;
        let file: Arc<dyn File> = dir.open_file(stored, Access::ReadWrite)?;
        let (header, stat) = (core.header_in(&*file)?, file.stat()?);
        if stat.size <= length {
            return Ok(None);
        }
        let end = {
            let (context, serial) = (core.context(), core.next_serial());
            let open = OpenFile::load(ROOT, file.clone(), &context, serial, Load::Read)?;
            content::surplus(core, &open)?
        };
        if end != Some(length) {
            return refuse(CHANGED);
        }
        let name = [&name[..name.len().min(NAME_MAX)], b".surplus"].concat();
        let kept = self.copy(&name, &mut |write| {
            let mut buf = vec![0; PART];
            let mut at = length;
            while at < stat.size {
                // Holes are skipped: they have no data.
                at = match file.seek(Seek::Data, at) {
                    Ok(data) => data,
                    Err(e) if is(&e, libc::ENXIO) => break,
                    Err(e) => return Err(e.into()),
                };
                let end = file.seek(Seek::Hole, at)?.min(at + PART as u64);
                let read = file.read_at(&mut buf[..(end - at) as usize], at)?;
                if read == 0 {
                    break;
                }
                write(&buf[..read])?;
                at += read as u64;
            }
            Ok(())
        })?;
        if core.header_in(&*file)? != header || file.stat()?.size != stat.size {
            return refuse(CHANGED);
        }
        file.set_len(length)?;
        file.set_times(SetTime::Omit, SetTime::At(stat.mtime))?;
        file.sync_all()?;
        Ok(kept)
    }
}
