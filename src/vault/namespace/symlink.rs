//! Symbolic links: the store's own links, whose text is the sealed target.
//!
//! A target whose record does not fit a link (more than 3,005 bytes, 2,877 in a signed share; less
//! if the store has shorter links) is stored in a control file at the share's root. The link's text
//! is then `+` and a sealed reference. The reference is random and bound to no place, so link(2)
//! and rename(2) need not change the file.

use crate::format::record::{
    OVERFLOW, OVERHEAD, RecordKind, TARGET_INLINE_MAX, TARGET_INLINE_MAX_SIGNED, TARGET_MAX,
    link_record, link_text,
};
use crate::format::signature::TRAILER_LEN;
use crate::store::{Dir, Kind};
use crate::vault::core::Core;
use crate::vault::core::overflow::{
    REFERENCE_LEN, Reference, control_name, drop_overflow, new_reference, reference_of,
};
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::share::control_files::{read_referred, write_control};
use crate::vault::types::NodeId;

pub(crate) const OVERFLOW_FILE: &[u8] = b"+link-";

/// Returns the length of the text of a link that overflows.
pub(crate) fn overflow_text_len(signed: bool) -> u64 {
    1 + ((overhead(signed) + REFERENCE_LEN) * 4).div_ceil(3) as u64
}

/// Returns the reference in the name of a control file.
pub(crate) fn overflow_reference(name: &[u8]) -> Option<Reference> {
    reference_of(OVERFLOW_FILE, name)
}

/// Returns by how many bytes the record of a target is longer than the target.
pub(in crate::vault) fn overhead(signed: bool) -> usize {
    OVERHEAD + if signed { TRAILER_LEN } else { 0 }
}

pub(in crate::vault) fn overflow_file(id: &[u8]) -> Vec<u8> {
    control_name(OVERFLOW_FILE, id)
}

impl Core {
    pub fn readlink(&self, node: NodeId) -> Inner<Vec<u8>> {
        if self.nodes.kind(node)? != Kind::Symlink {
            return Err(Fault::Os(libc::EINVAL));
        }
        let link = self.link_of(node)?;
        self.read_target(&*self.dir(link.parent)?, link.stored())
    }

    /// Returns the text of a link to `target`; writes the control file of a long one.
    pub fn seal_target(&self, target: &[u8]) -> Inner<Vec<u8>> {
        if target.is_empty() {
            return Err(Fault::Os(libc::ENOENT));
        }
        if target.len() > TARGET_MAX {
            return Err(Fault::Os(libc::ENAMETOOLONG));
        }
        if target.len()
            <= if self.keys.signed() { TARGET_INLINE_MAX_SIGNED } else { TARGET_INLINE_MAX }
        {
            return Ok(link_text(&self.keys.seal_record(
                RecordKind::Symlink,
                b"",
                target,
                &*self.random,
            )));
        }
        self.seal_aside(target)
    }

    /// Returns the text of a link whose target is in a control file, which is written here.
    pub fn seal_aside(&self, target: &[u8]) -> Inner<Vec<u8>> {
        let seal = |kind, bound: &[u8], plain: &[u8]| {
            self.keys.seal_record(kind, bound, plain, &*self.random)
        };
        let id = new_reference(&*self.random);
        write_control(
            &*self.root,
            &*self.random,
            &overflow_file(&id),
            &seal(RecordKind::LongSymlink, &id, target),
        )?;
        self.root.sync()?;
        let text = link_text(&seal(RecordKind::Symlink, b"+", &id));
        Ok([&[OVERFLOW], text.as_slice()].concat())
    }

    /// Returns the target of the link `stored`.
    pub fn read_target(&self, dir: &dyn Dir, stored: &[u8]) -> Inner<Vec<u8>> {
        Ok(self.read_link(dir, stored)?.0)
    }

    /// Returns the target of the link `stored`, and the reference if it is in a control file.
    pub fn read_link(&self, dir: &dyn Dir, stored: &[u8]) -> Inner<(Vec<u8>, Option<Reference>)> {
        let text = dir.readlink(stored)?;
        match self.overflow_id(&text)? {
            None => Ok((
                self.keys.open_record(RecordKind::Symlink, b"", &link_record(&text)?)?.to_vec(),
                None,
            )),
            Some(id) => {
                let bytes = read_referred(
                    &*self.root,
                    &overflow_file(&id),
                    overhead(self.keys.signed()) + TARGET_MAX,
                )?;
                let bytes = bytes.ok_or(Fault::Corrupt(Corruption::TargetMissing(id)))?;
                Ok((
                    self.keys.open_record(RecordKind::LongSymlink, &id, &bytes)?.to_vec(),
                    Some(id),
                ))
            }
        }
    }

    pub(in crate::vault) fn overflow_id(&self, text: &[u8]) -> Inner<Option<Reference>> {
        let Some((&OVERFLOW, rest)) = text.split_first() else { return Ok(None) };
        let id = self.keys.open_record(RecordKind::Symlink, b"+", &link_record(rest)?)?;
        match Reference::try_from(id.as_slice()) {
            Ok(id) => Ok(Some(id)),
            Err(_) => Err(Fault::Corrupt(Corruption::Other(
                "is a symbolic link with a reference of the wrong length",
            ))),
        }
    }

    /// Removes the control file of a link that could not be created.
    pub fn drop_target(&self, text: &[u8]) -> Inner<()> {
        if let Some(id) = self.overflow_id(text)? {
            drop_overflow(&*self.root, OVERFLOW_FILE, &id)?;
        }
        Ok(())
    }
}
