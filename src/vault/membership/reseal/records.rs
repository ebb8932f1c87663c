//! Data sealed as records: symbolic links, extended attributes, rename evidence, junctions.

use std::sync::Arc;

use super::names::keeping_time;
use super::pass::{Pass, Work};
use crate::crypto::Tag;
use crate::format::junction::{self, Junction};
use crate::format::record::{OVERFLOW, RecordKind, TARGET_MAX, epoch_of, link_record, link_text};
use crate::roster::Role;
use crate::store::{Dir, RenameMode, SetTime, Stat};
use crate::vault::core::Core;
use crate::vault::directory::junction::bound;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::namespace::symlink::{overflow_file, overhead};
use crate::vault::namespace::xattr::key_of;
use crate::vault::share::control_files::{read_control, read_referred, write_control};
use crate::vault::types::NodeId;

/// Maximum length in bytes of a junction.
const RECORD_MAX: usize = 8192;

impl Core {
    /// Seals a valid record again under the current epoch, with the same author.
    fn resealed(&self, kind: RecordKind, bound: &[u8], bytes: &[u8]) -> Inner<Vec<u8>> {
        let (plain, by) = self.keys.open_record_by(kind, bound, bytes)?;
        Ok(self.keys.seal_record_of(by.map(|by| by.author), kind, bound, &plain, &*self.random))
    }

    /// Replaces the symbolic link `stored` by one with another text and otherwise the same; returns
    /// its attributes.
    fn replace_link(&self, dir: &dyn Dir, stored: &[u8], stat: &Stat, text: &[u8]) -> Inner<Stat> {
        let temporary = self.temporary_name();
        dir.symlink(&temporary, text)?;
        let replaced = (|| {
            let made = dir.stat(&temporary)?;
            if (made.uid, made.gid) != (stat.uid, stat.gid) {
                dir.chown(&temporary, Some(stat.uid), Some(stat.gid))?;
            }
            let key = key_of(stat.kind);
            match dir.get_xattr(stored, key) {
                Ok(Some(blob)) => {
                    self.share_xattrs(&blob); // its other names keep it if the pass ends here
                    dir.set_xattr(&temporary, key, &blob)?
                }
                Ok(None) => {}
                Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP)) => {}
                Err(e) => return Err(e.into()),
            }
            dir.set_times(&temporary, SetTime::At(stat.atime), SetTime::At(stat.mtime))?;
            let made = dir.stat(&temporary)?;
            dir.rename(&temporary, dir, stored, RenameMode::Replace)?;
            Ok::<_, Fault>(made)
        })();
        if replaced.is_err() {
            let _ = dir.unlink(&temporary);
        }
        replaced
    }

    pub(in crate::vault) fn temporary_name(&self) -> Vec<u8> {
        let mut random = [0; 6];
        self.random.fill(&mut random);
        [b"+tmp-", hex::encode(random).as_bytes()].concat()
    }
}

impl Pass<'_> {
    /// Processes extended attributes.
    pub fn attributes(&mut self, node: NodeId) -> Inner<()> {
        match self.core.xattrs_epoch(node)? {
            Some(epoch) if self.is_old(epoch) => self.header(|pass| pass.core.reseal_xattrs(node)),
            _ => Ok(()),
        }
    }

    /// Processes rename evidence: a record of an older epoch gets one of the current epoch beside
    /// it. The old one stays, for a client that does not know the new epoch yet.
    pub fn evidence(&mut self) -> Inner<()> {
        let core = self.core;
        let mut old = Vec::new();
        core.each_evidence(|found| {
            let found = found?;
            if self.is_old(found.epoch) {
                old.push(found);
            }
            Ok(())
        })?;
        for found in old {
            if core.has_current_evidence(&found.moved)? {
                continue;
            }
            self.header(|_| {
                let record = core.keys.seal_moved(&found.moved, found.by.map(|by| by.author));
                core.write_evidence(&found.moved, &record)
            })?;
        }
        Ok(())
    }

    /// Processes a symbolic link: its text, and the long target if the text is a reference. The new
    /// link replaces the old one atomically.
    pub fn link(
        &mut self,
        node: NodeId,
        dir: &Arc<dyn Dir>,
        stored: &[u8],
        stat: &Stat,
    ) -> Inner<()> {
        self.attributes(node)?;
        let text = dir.readlink(stored)?;
        let (record, bound, start): (_, &[u8], &[u8]) = match text.split_first() {
            Some((&OVERFLOW, rest)) => (link_record(rest)?, b"+", &[OVERFLOW]),
            _ => (link_record(&text)?, b"", b""),
        };
        // A target is used only if its signature counts.
        self.core.keys.open_record(RecordKind::Symlink, bound, &record)?;
        if let Some(id) = self.core.overflow_id(&text)? {
            self.long_target(&id)?;
        }
        if !self.is_old(epoch_of(RecordKind::Symlink, &record)?) {
            return Ok(());
        }
        if self.work == Work::Count {
            self.found.headers += 1;
            return Ok(());
        }
        let _step = self.step()?;
        let core = self.core;
        let _names = core.namespace.names.write()?;
        let now = dir.stat(stored)?;
        if (now.dev, now.ino) != (stat.dev, stat.ino) {
            return Ok(()); // it was replaced meanwhile
        }
        keeping_time(&**dir, || {
            if let Some((first_dir, first)) = self.links.get(&(now.dev, now.ino)) {
                // Another name of a link that was already replaced: it becomes a hard link to that
                // one.
                let temporary = core.temporary_name();
                first_dir.link(first, &**dir, &temporary)?;
                return Ok(dir.rename(&temporary, &**dir, stored, RenameMode::Replace)?);
            }
            let sealed = link_text(&core.resealed(RecordKind::Symlink, bound, &record)?);
            let made = core.replace_link(&**dir, stored, &now, &[start, &sealed].concat())?;
            if now.nlink > 1 {
                self.links.insert((now.dev, now.ino), (dir.clone(), stored.to_vec()));
            }
            core.nodes.replaced(&now, &made);
            Ok(())
        })
    }

    /// Processes the target of a link that is too long for the link itself.
    fn long_target(&mut self, id: &[u8]) -> Inner<()> {
        let core = self.core;
        let read = || {
            read_referred(
                &*core.root,
                &overflow_file(id),
                overhead(core.keys.signed()) + TARGET_MAX,
            )
        };
        let Some(bytes) = read()? else {
            return Err(Fault::Corrupt(match id.try_into() {
                Ok(id) => Corruption::TargetMissing(id),
                Err(_) => Corruption::WrongReference,
            }));
        };
        if !self.is_old(epoch_of(RecordKind::LongSymlink, &bytes)?) {
            return Ok(());
        }
        self.header(|_| {
            let _names = core.namespace.names.write()?;
            let sealed = core.resealed(RecordKind::LongSymlink, id, &bytes)?;
            keeping_time(&*core.root, || {
                write_control(&*core.root, &*core.random, &overflow_file(id), &sealed)?;
                Ok(core.root.sync()?)
            })
        })
    }

    /// Processes a control file if it is a junction. Only admins can write one; for others it stays
    /// unchanged and is counted as remaining.
    pub fn junction(&mut self, node: NodeId, dir: &Arc<dyn Dir>, file: &[u8]) -> Inner<()> {
        let core = self.core;
        let Some(hash) = junction::hash_of(file) else { return Ok(()) };
        let Some(bytes) = read_control(&**dir, file, RECORD_MAX)? else { return Ok(()) };
        let folder = core.folder(node)?;
        let open =
            |tag: &Tag| core.keys.open_record_by(RecordKind::Junction, &bound(tag, &hash), &bytes);
        let tags = folder.junction_tags()?;
        let tag = *tags.iter().find(|tag| open(tag).is_ok()).unwrap_or(&folder.tag);
        let (plain, by) = open(&tag)?;
        let junction = Junction::decode(&plain)?;
        let new_hash = core.keys.place_hash(&tag, &junction.name);
        if hash == new_hash && !self.is_old(epoch_of(RecordKind::Junction, &bytes)?) {
            return Ok(());
        }
        if self.work != Work::Count && core.keys.signing.role() != Role::Admin {
            return Ok(());
        }
        self.header(|_| {
            let _names = core.namespace.names.write()?;
            // The junction in effect: after an interruption this may already be the new one.
            let Some(effective) = folder.junction(&junction.name)? else { return Ok(()) };
            let new_file = junction::file_name(&new_hash);
            let bound = bound(&tag, &new_hash);
            let there = read_control(&**dir, &new_file, RECORD_MAX)?;
            let is_done = |bytes: &Vec<u8>| {
                core.keys.open_record(RecordKind::Junction, &bound, bytes).is_ok()
                    && epoch_of(RecordKind::Junction, bytes)
                        .is_ok_and(|epoch| epoch == core.keys.current().number)
            };
            keeping_time(&**dir, || {
                if !there.as_ref().is_some_and(is_done) {
                    let author = by.map(|by| by.author);
                    let sealed = core.keys.seal_record_of(
                        author,
                        RecordKind::Junction,
                        &bound,
                        &effective.encode(),
                        &*core.random,
                    );
                    write_control(&**dir, &*core.random, &new_file, &sealed)?;
                    dir.sync()?;
                }
                if file != &new_file[..] {
                    dir.unlink(file)?;
                }
                Ok(())
            })
        })
    }
}
