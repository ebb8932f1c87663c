//! Junctions: the signed records that link a directory to its share.
//!
//! Rules that hold here
//! * A directory that holds a share's descriptor is never treated as an ordinary directory of the
//!   parent: names and contents written into it under the parent's keys would be readable for
//!   people who are not members.
//! * Neither is a directory without a descriptor at the place of a valid junction, except while the
//!   share is being created. A share that this client has entered is not being created any more.
//! * Junctions are written by admins; one that cannot be opened, or whose signer is not an admin,
//!   is ignored.

use crate::crypto::Tag;
use crate::format::junction::{Junction, file_name};
use crate::format::name::without_suffix;
use crate::format::record::RecordKind;
use crate::roster::Role;
use crate::store::Dir;
use crate::vault::core::Core;
use crate::vault::directory::folder::Folder;
use crate::vault::directory::names::shown;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::share::control_files::{exists, read_control, write_control};
use crate::vault::share::enter::DESCRIPTOR;
use crate::vault::types::NodeId;

/// Maximum length in bytes of a junction record that is read.
const JUNCTION_MAX: usize = 1024;

/// Returns what the record of a junction is bound to.
pub(in crate::vault) fn bound(directory: &Tag, hash: &[u8; 32]) -> Vec<u8> {
    [&directory[..], hash].concat()
}

impl Folder<'_> {
    /// Rejects a directory that is, or should be, a nested share; [`Fault::Boundary`] if it is one.
    /// `place` is the name of its place here, if it is at one.
    pub fn check_boundary(&self, dir: &dyn Dir, place: Option<&[u8]>) -> Inner<()> {
        if exists(dir, DESCRIPTOR)? {
            return Err(Fault::Boundary);
        }
        let Some(place) = place else { return Ok(()) };
        match self.junction(place)? {
            // The storage host may restore the former folder together with the junction from before
            // the share was in place: this client would then write there under the parent's keys.
            Some(junction)
                if !junction.coming
                    || self.core.membership.trust.pin(&junction.share)?.is_some() =>
            {
                Err(Fault::Corrupt(Corruption::Other("is the place of a share that is missing")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the valid junction at a place.
    pub fn junction(&self, name: &[u8]) -> Inner<Option<Junction>> {
        let keys = self.keys();
        for (tag, hash) in self.junction_places(name)? {
            let file = file_name(&hash);
            let Some(bytes) = read_control(&*self.dir, &file, JUNCTION_MAX)? else { continue };
            let opened = keys.open_record(RecordKind::Junction, &bound(&tag, &hash), &bytes);
            match opened.and_then(|plain| Ok(Junction::decode(&plain)?)) {
                Ok(junction) if junction.name == name => return Ok(Some(junction)),
                Ok(_) => {
                    tracing::error!("{}: a junction that belongs to another name", shown(&file))
                }
                Err(fault) => drop(fault.at("read", || shown(&file).into())),
            }
        }
        Ok(None)
    }

    /// Writes the junction of a place, durable before this returns.
    pub fn write_junction(&self, junction: &Junction) -> Inner<()> {
        let (keys, random) = (self.keys(), &*self.core.random);
        if keys.signing.role() != Role::Admin {
            return Err(Fault::Os(libc::EPERM));
        }
        let hash = keys.place_hash(&self.tag, &junction.name);
        let bound = bound(&self.tag, &hash);
        let sealed = keys.seal_record(RecordKind::Junction, &bound, &junction.encode(), random);
        write_control(&*self.dir, random, &file_name(&hash), &sealed)?;
        Ok(self.dir.sync()?)
    }

    /// Removes the junctions of a place from which the share is gone.
    pub fn remove_junction(&self, name: &[u8]) -> Inner<()> {
        for tag in self.junction_tags()? {
            for hash in self.keys().place_hashes(&tag, name) {
                match self.dir.unlink(&file_name(&hash)) {
                    Err(e) if e.raw_os_error() != Some(libc::ENOENT) => return Err(e.into()),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Core {
    /// Returns the valid junction that leads to a directory. There is none for a directory at no
    /// place of its parent, or below a conflict copy.
    pub fn junction_at(&self, node: NodeId) -> Inner<Option<Junction>> {
        let link = self.nodes.link(node)?;
        let parent = self.folder(link.parent)?;
        if self.nodes.stored_path(link.parent).is_none_or(|path| is_in_copy(&path)) {
            return Ok(None);
        }
        match parent.place_name(link.stored(), link.name())? {
            Some(place) => parent.junction(&place),
            None => Ok(None),
        }
    }
}

/// Returns whether a directory with this stored path is, or is below, a sync tool's conflict copy.
pub(in crate::vault) fn is_in_copy(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').any(|name| without_suffix(name) != name)
}

/// Returns whether the directory `stored` is a share.
pub(crate) fn holds_share(dir: &dyn Dir, stored: &[u8]) -> Inner<bool> {
    match dir.open_dir(stored).and_then(|inside| inside.stat(DESCRIPTOR)) {
        Ok(_) => Ok(true),
        // This client cannot have made a share of a directory that it may not read.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EACCES | libc::EPERM)) => {
            Ok(false)
        }
        Err(e) => Err(e.into()),
    }
}
