//! Junctions: the signed records that say which share stands in a directory.
//!
//! Rules that hold here
//! * A directory that holds a share's descriptor is never taken for an ordinary one of the parent:
//!   names and contents written into it under the parent's keys would be read by people who are no
//!   members.
//! * Neither is a directory to whose place a valid junction leads, when its descriptor is gone,
//!   except while the share is being made: which it is not any more once we have been in it.
//! * Junctions are made by admins; one that does not open, or is signed by somebody else, is as if
//!   it were not there.

use crate::format::junction::{Junction, file_name};
use crate::format::record::RecordKind;
use crate::roster::Role;
use crate::store::Dir;
use crate::vault::core::Core;
use crate::vault::directory::names::shown;
use crate::vault::error::{Fault, Inner};
use crate::vault::keyring::keys::DirectoryId;
use crate::vault::share::control_files::{read_control, write_control};
use crate::vault::share::enter::DESCRIPTOR;

/// Longest junction record that is read.
const JUNCTION_MAX: usize = 1024;

impl Core {
    /// Refuses a directory in which a share stands, or should stand: [`Fault::Boundary`] where one
    /// does.
    pub fn check_boundary(
        &self,
        dir: &dyn Dir,
        parent: &dyn Dir,
        parent_id: &DirectoryId,
        name: &[u8],
    ) -> Inner<()> {
        match dir.stat(DESCRIPTOR) {
            Ok(_) => return Err(Fault::Boundary),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            Err(e) => return Err(e.into()),
        }
        match self.junction(parent, parent_id, name)? {
            // The junction of before the share was there, put back with the folder of then, would
            // have us write for other people.
            Some(junction)
                if !junction.coming || self.membership.trust.pin(&junction.share)?.is_some() =>
            {
                Err(Fault::Corrupt("is the place of a share that is not there"))
            }
            _ => Ok(()),
        }
    }

    /// The valid junction at a place.
    pub fn junction(
        &self,
        parent: &dyn Dir,
        parent_id: &DirectoryId,
        name: &[u8],
    ) -> Inner<Option<Junction>> {
        for hash in self.keys.place_hashes(parent_id, name) {
            let file = file_name(&hash);
            let Some(bytes) = read_control(parent, &file, JUNCTION_MAX)? else { continue };
            let opened = self.keys.open_record(
                RecordKind::Junction,
                &[&parent_id[..], &hash].concat(),
                &bytes,
            );
            let junction = opened.and_then(|plain| Ok(Junction::decode(&plain)?));
            match junction {
                Ok(junction) if junction.name == name => return Ok(Some(junction)),
                Ok(_) => {
                    tracing::error!("{}: a junction of another name", shown(&file))
                }
                Err(fault) => drop(fault.at("read", || shown(&file).into())),
            }
        }
        Ok(None)
    }

    /// Makes the junction of a place, durable before this returns.
    pub fn write_junction(
        &self,
        parent: &dyn Dir,
        parent_id: &DirectoryId,
        junction: &Junction,
    ) -> Inner<()> {
        if self.keys.signing.role() != Role::Admin {
            return Err(Fault::Os(libc::EPERM));
        }
        let hash = self.keys.place_hash(parent_id, &junction.name);
        let bound = [&parent_id[..], &hash].concat();
        let sealed =
            self.keys.seal_record(RecordKind::Junction, &bound, &junction.encode(), &*self.random);
        write_control(parent, &*self.random, &file_name(&hash), &sealed)?;
        Ok(parent.sync()?)
    }

    /// Removes what leads to a place from which its share is gone.
    pub fn remove_junction(&self, parent: &dyn Dir, parent_id: &DirectoryId, name: &[u8]) {
        for hash in self.keys.place_hashes(parent_id, name) {
            match parent.unlink(&file_name(&hash)) {
                Err(e) if e.raw_os_error() != Some(libc::ENOENT) => {
                    tracing::warn!("a junction stays behind: {e}")
                }
                _ => {}
            }
        }
    }
}

/// Whether a share stands in the directory `stored`.
pub(crate) fn holds_share(dir: &dyn Dir, stored: &[u8]) -> Inner<bool> {
    match dir.open_dir(stored).and_then(|inside| inside.stat(DESCRIPTOR)) {
        Ok(_) => Ok(true),
        // What we may not look into we have not made a share of.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EACCES | libc::EPERM)) => {
            Ok(false)
        }
        Err(e) => Err(e.into()),
    }
}
