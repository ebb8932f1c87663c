//! A directory in which names are being worked on: from plain names to stored ones and back.
//!
//! Rules that hold here
//! * A long name's sidecar is durable before its entry is there, and goes after it.

use std::sync::Arc;

use super::control::{read_control, write_control};
use super::core::Core;
use super::error::{Fault, Inner};
use super::keys::{DirectoryId, ShareKeys};
use super::names::Older;
use super::nodes::Link;
use super::types::{Attr, NodeId, ROOT};
use crate::backing::{Dir, Kind, Stat};
use crate::format::name::{Decoded, LONG, NAME_MAX, StoredName, is_valid};
use crate::format::record::RecordKind;

/// Longest sidecar that is read.
const SIDECAR_MAX: usize = 4096;

fn check_name(name: &[u8]) -> Inner<()> {
    if name.len() > NAME_MAX {
        return Err(Fault::Os(libc::ENAMETOOLONG));
    }
    if !is_valid(name) {
        return Err(Fault::Os(libc::EINVAL));
    }
    Ok(())
}

/// A directory in which names are being worked on.
pub(crate) struct Folder<'a> {
    pub(super) core: &'a Core,
    pub(super) node: NodeId,
    pub(super) dir: Arc<dyn Dir>,
    pub(super) id: DirectoryId,
}

impl Folder<'_> {
    pub fn keys(&self) -> &ShareKeys {
        &self.core.keys
    }

    /// The directory of the store.
    pub fn dir(&self) -> &dyn Dir {
        &*self.dir
    }

    pub fn encode(&self, name: &[u8]) -> Inner<StoredName> {
        check_name(name)?;
        self.core.keys.names(&self.id).encode(name).ok_or(Fault::Os(libc::EINVAL))
    }

    /// The stored name under which `name` stands, with its `stat`.
    pub(super) fn find(&self, name: &[u8]) -> Inner<(Vec<u8>, Stat)> {
        let stored = self.encode(name)?;
        match self.dir.stat(stored.entry()) {
            Ok(stat) => return Ok((stored.entry().to_vec(), stat)),
            Err(e) if e.raw_os_error() != Some(libc::ENOENT) => return Err(e.into()),
            Err(_) => {}
        }
        // Sealed in an older epoch, a sync tool's conflict copy, or a long name whose sidecar is lost and which is listed by what is left.
        let mut candidates = self.core.keys.other_entries(&self.id, name);
        if name.first() == Some(&LONG) {
            candidates.push(name.to_vec());
        }
        for candidate in candidates {
            if let Ok(stat) = self.dir.stat(&candidate) {
                return Ok((candidate, stat));
            }
        }
        Err(Fault::Os(libc::ENOENT))
    }

    pub(super) fn exists(&self, name: &[u8]) -> Inner<bool> {
        match self.find(name) {
            Ok(_) => Ok(true),
            Err(fault) if fault.errno() == libc::ENOENT => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Whether the name is taken by an entry of an older epoch.
    pub(super) fn exists_older(&self, name: &[u8]) -> bool {
        self.core.keys.older_entries(&self.id, name).iter().any(|entry| self.dir.stat(entry).is_ok())
    }

    /// See [`NameCipher::place_name`](crate::format::name::NameCipher::place_name).
    pub(super) fn place_name<'n>(&self, stored: &[u8], name: &'n [u8]) -> &'n [u8] {
        self.core.keys.place_name(&self.id, stored, name)
    }

    pub(super) fn sidecar_bound(&self, hash: &[u8; 32]) -> Vec<u8> {
        [&self.id[..], hash].concat()
    }

    /// Makes a long name's sidecar durable, before its entry is made.
    pub fn prepare(&self, stored: &StoredName, name: &[u8]) -> Inner<()> {
        if let StoredName::Long { sidecar, hash, .. } = stored {
            if let Ok(Some(there)) = self.read_sidecar(sidecar, hash)
                && there == name
            {
                return Ok(());
            }
            let sealed = self.core.keys.seal_record(RecordKind::Name, &self.sidecar_bound(hash), name, &*self.core.random);
            write_control(&*self.dir, &*self.core.random, sidecar, &sealed)?;
            self.dir.sync()?;
        }
        Ok(())
    }

    pub(super) fn read_sidecar(&self, sidecar: &[u8], hash: &[u8; 32]) -> Inner<Option<Vec<u8>>> {
        let Some(bytes) = read_control(&*self.dir, sidecar, SIDECAR_MAX)? else { return Ok(None) };
        let name = self.core.keys.open_record(RecordKind::Name, &self.sidecar_bound(hash), &bytes)?.to_vec();
        if is_valid(&name) { Ok(Some(name)) } else { Err(Fault::Corrupt("has a sealed name that none can have")) }
    }

    /// Removes the sidecar of a long name whose entry is gone, unless a conflict copy of the entry has its name from it.
    pub(super) fn tidy(&self, stored: &[u8]) {
        let Decoded::Long { sidecar, suffix, .. } = self.core.keys.names(&self.id).decode(stored) else { return };
        let entry = &stored[..stored.len() - suffix.len()];
        let tidied = (|| {
            let is_copy = !suffix.is_empty();
            let has_copies = || self.core.long_copies.are_there((self.node, self.id), &*self.dir, entry, is_copy);
            if is_copy && self.dir.stat(entry).is_ok() || has_copies()? {
                return Ok(());
            }
            match self.dir.unlink(&sidecar) {
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                other => Ok::<_, Fault>(other?),
            }
        })();
        if let Err(fault) = tidied {
            // The entry is gone, as was asked; what is left is residue that a check names.
            tracing::warn!(errno = fault.errno(), "sidecar {} left behind", shown(&sidecar));
        }
    }

    /// Plain name of a stored one; `None` for control files and what is not a name of this directory.
    pub fn decode(&self, stored: &[u8]) -> Inner<Option<Vec<u8>>> {
        self.plain(stored, self.core.keys.names(&self.id).decode(stored))
    }

    /// [`Folder::decode`], once the cipher of the current epoch has said what `stored` is.
    pub(super) fn plain(&self, stored: &[u8], decoded: Decoded) -> Inner<Option<Vec<u8>>> {
        match decoded {
            Decoded::Plain(name) => Ok(Some(name)),
            Decoded::Control => Ok(None),
            Decoded::Foreign => Ok(self.core.keys.decode_older(&self.id, stored).map(|older| self.older_name(older))),
            Decoded::Long { sidecar, hash, suffix } => match self.read_sidecar(&sidecar, &hash) {
                Ok(Some(name)) => {
                    let older = if suffix.is_empty() { self.core.keys.older_long(&self.id, stored, &name) } else { None };
                    // A name that has no room for what tells it from the newer one stays as it is: it is not lost.
                    let beside = older.map(|older| self.older_name(older)).filter(|beside| beside.len() <= NAME_MAX);
                    let shown = [beside.unwrap_or(name), suffix].concat();
                    Ok(Some(if shown.len() <= NAME_MAX { shown } else { stored.to_vec() }))
                }
                // The name is lost or too long, the file is not: it shows under what is left of its name.
                Ok(None) => Ok(Some(stored.to_vec())),
                Err(Fault::Io(e)) => Err(Fault::Io(e)),
                Err(_) => Ok(Some(stored.to_vec())),
            },
        }
    }

    /// With a suffix where an entry of a newer epoch has the name.
    fn older_name(&self, older: Older) -> Vec<u8> {
        let taken = older.newer.iter().any(|entry| self.dir.stat(entry).is_ok());
        if taken { [older.name, older.suffix].concat() } else { older.name }
    }

    pub(super) fn link(&self, stored: &[u8], name: &[u8]) -> Link {
        Link { parent: self.node, stored: stored.into(), name: name.into() }
    }

    pub(super) fn seen(&self, stat: &Stat, stored: &[u8], name: &[u8]) -> Inner<Attr> {
        let node = self.core.nodes.seen(stat, self.link(stored, name));
        self.core.attr(node, stat, Some((&*self.dir, stored)))
    }

    /// Stored name of `name`, which need not be there.
    pub fn stored(&self, name: &[u8]) -> Inner<Vec<u8>> {
        match self.find(name) {
            Ok((stored, _)) => Ok(stored),
            Err(fault) if fault.errno() == libc::ENOENT => Ok(self.encode(name)?.entry().to_vec()),
            Err(fault) => Err(fault),
        }
    }
}

impl Core {
    /// A directory of the store whose id is known, for whoever walks the store without nodes: names can be encoded, decoded and prepared.
    pub fn folder_at(&self, dir: Arc<dyn Dir>, id: DirectoryId) -> Folder<'_> {
        Folder { core: self, node: ROOT, dir, id }
    }

    /// A directory, ready for its names.
    pub fn folder(&self, node: NodeId) -> Inner<Folder<'_>> {
        if self.nodes.kind(node)? != Kind::Dir {
            return Err(Fault::Os(libc::ENOTDIR));
        }
        let id = self.directory_id(node)?;
        Ok(Folder { core: self, node, dir: self.dir(node)?, id })
    }
}

/// A stored name for a log line: it is ASCII, unless it is not ours.
pub(crate) fn shown(stored: &[u8]) -> String {
    String::from_utf8_lossy(stored).into_owned()
}
