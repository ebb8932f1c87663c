//! The sealed names of long-named entries, at the root of a share.
//!
//! Rules that hold here
//! * A sealed name proves itself by its hash, and has the same bytes on every machine.
//! * It is durable before its entry exists, and is never changed. It stays when the entry is
//!   removed, because a sync tool may deliver another one with the name.

use crate::format::name::{LONG_DIRECTORY, SEALED_MAX, StoredName, is_long, long_path};
use crate::vault::core::Core;
use crate::vault::directory::evidence::make_dir;
use crate::vault::error::{Fault, Inner};
use crate::vault::share::control_files::{is_missing, read_control, write_control};

impl Core {
    /// Returns the sealed name with this hash; `None` if it is missing or was changed.
    pub fn long_name(&self, hash: &[u8; 32]) -> Inner<Option<Vec<u8>>> {
        if let Some(sealed) = self.namespace.long_names.kept.lock().get(hash) {
            return Ok(Some(sealed.to_vec()));
        }
        let sealed = self.stored_long_name(hash)?;
        if let Some(sealed) = &sealed {
            self.namespace.long_names.keep(hash, sealed);
        }
        Ok(sealed)
    }

    /// Like [`Core::long_name`], but always reads the store.
    pub fn stored_long_name(&self, hash: &[u8; 32]) -> Inner<Option<Vec<u8>>> {
        let (group, file) = long_path(hash);
        let opened = self.root.open_dir(LONG_DIRECTORY).and_then(|all| all.open_dir(&group));
        let read = match opened {
            Err(e) if is_missing(&e) => None,
            other => match read_control(&*other?, &file, SEALED_MAX) {
                Err(Fault::Io(e)) if is_missing(&e) => None,
                other => other?,
            },
        };
        Ok(read.filter(|sealed| is_long(sealed, hash, self.keys.longest_name)))
    }

    /// Makes the sealed name of a long-named entry durable, before the entry is created.
    pub fn prepare(&self, stored: &StoredName) -> Inner<()> {
        let StoredName::Long { hash, sealed, .. } = stored else { return Ok(()) };
        // The same name written by another thread may be in the store before it is durable.
        let _writing = self.namespace.long_names.writing.lock();
        if self.stored_long_name(hash).is_ok_and(|there| there.is_some()) {
            return Ok(());
        }
        let (group, file) = long_path(hash);
        let all = make_dir(&self.root, LONG_DIRECTORY)?;
        let group = make_dir(&all, &group)?;
        write_control(&*group, &*self.random, &file, sealed)?;
        group.sync()?;
        self.namespace.long_names.keep(hash, sealed);
        Ok(())
    }
}
