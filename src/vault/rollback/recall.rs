//! What the rollback database knows of files that are empty now.
//!
//! Rules that hold here
//! * A remembered state was durable. So a ciphertext that this machine has seen with a header, and
//!   that is empty or holds only zeros, was not left so by a crash, unless a session was
//!   interrupted since: that session may have begun the file anew.

use std::path::Path;

use super::database::Db;
use super::memory::Memory;
use super::survey::suspect::FILE;
use crate::vault::core::Core;
use crate::vault::core::vault_lock::is_held;
use crate::vault::error::{Fault, Inner};

/// What is remembered of the entries of one share.
pub(in crate::vault) struct Recall<'a> {
    core: &'a Core,
    memory: Memory,
    db: Db,
}

impl<'a> Recall<'a> {
    /// Opens the database at `path`. Returns `None` if it does not exist, or if a session was
    /// interrupted since the vault was last compared.
    pub fn open(core: &'a Core, path: &Path) -> Inner<Option<Recall<'a>>> {
        if !path.exists() {
            return Ok(None);
        }
        let memory = Memory::new(core, path.to_owned());
        let db = Db::open(path)?;
        let is_live = || Ok::<_, Fault>(core.lock.lock().is_none() && is_held(&core.root)?);
        let is_own = core.memory.get().is_some();
        if !is_own && db.session()?.is_some() && !is_live()? {
            return Ok(None);
        }
        Ok(Some(Recall { core, memory, db }))
    }

    /// Returns whether a file with a header was seen at a path; `names` are the plain and the
    /// stored names from the root of the share.
    pub fn has_file(&self, names: &[(&[u8], &[u8])]) -> Inner<bool> {
        let Some(((name, _), above)) = names.split_last() else { return Ok(false) };
        let mut place = self.memory.root_place(self.core);
        for (name, stored) in above {
            let Some(tag) = self.core.keys.tag_of(stored) else { return Ok(false) };
            place = self.memory.place(&place, name, &self.memory.directory_id(&tag));
        }
        let row = self.db.reader(&self.memory.sealer)?.row(&self.memory.key(&place, name))?;
        Ok(row.is_some_and(|row| row.kind == FILE))
    }
}
