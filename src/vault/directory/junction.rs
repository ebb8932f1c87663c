//! Junctions: the signed records that link a directory to its share.
//!
//! Rules that hold here
//! * A directory that holds a share's descriptor is never treated as an ordinary directory of the
//!   parent: names and contents written into it under the parent's keys would be readable for
//!   people who are not members.
//! * Neither is a directory at the place of a valid junction whose descriptor is missing, except
//!   while the share is being created. A share that this client has entered is not being created
//!   any more.
//! * Junctions are written by admins; one that cannot be opened, or whose signer is not an admin,
//!   is ignored.

use crate::format::junction::{Junction, file_name};
use crate::format::record::RecordKind;
use crate::roster::Role;
use crate::store::Dir;
use crate::vault::core::Core;
use crate::vault::directory::names::shown;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::keyring::keys::DirectoryId;
use crate::vault::share::control_files::{read_control, write_control};
use crate::vault::share::enter::DESCRIPTOR;

/// Maximum length in bytes of a junction record that is read.
const JUNCTION_MAX: usize = 1024;

impl Core {
    /// Rejects a directory that is, or should be, a nested share; [`Fault::Boundary`] if it is one.
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
            // The junction from before the share existed, restored together with the old folder,
            // would make this client write for other people.
            Some(junction)
                if !junction.coming || self.membership.trust.pin(&junction.share)?.is_some() =>
            {
                Err(Fault::Corrupt(Corruption::Other("is the place of a share that is missing")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the valid junction at a place.
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
                    tracing::error!("{}: a junction that belongs to another name", shown(&file))
                }
                Err(fault) => drop(fault.at("read", || shown(&file).into())),
            }
        }
        Ok(None)
    }

    /// Writes the junction of a place, durable before this returns.
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

    /// Removes the junctions of a place from which the share is gone.
    pub fn remove_junction(&self, parent: &dyn Dir, parent_id: &DirectoryId, name: &[u8]) {
        for hash in self.keys.place_hashes(parent_id, name) {
            match parent.unlink(&file_name(&hash)) {
                Err(e) if e.raw_os_error() != Some(libc::ENOENT) => {
                    tracing::warn!("a junction is left behind: {e}")
                }
                _ => {}
            }
        }
    }
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
