//! Control files at a share's root that hold what the place of an entry has no room for: targets of links, lists of attributes.
//!
//! Rules that hold here
//! * Such a file is named by its reference, random bytes that stand, sealed, at the place itself: so link and rename need not touch it.
//! * It is durable before the reference is set, and goes after nothing on the disk can refer to it any more.

use super::core::Core;
use super::error::Inner;

/// Bytes of a reference.
pub(crate) const REFERENCE_LEN: usize = 16;

/// What names a control file.
pub(crate) type Reference = [u8; REFERENCE_LEN];

/// Name of the control file of a reference.
pub(crate) fn control_name(prefix: &[u8], reference: &[u8]) -> Vec<u8> {
    let hex: String = reference.iter().map(|b| format!("{b:02x}")).collect();
    [prefix, hex.as_bytes()].concat()
}

/// The reference that the name of a control file stands for.
pub(crate) fn reference_of(prefix: &[u8], name: &[u8]) -> Option<Reference> {
    let text = std::str::from_utf8(name.strip_prefix(prefix)?).ok()?;
    let mut reference = Reference::default();
    for (byte, at) in reference.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    (control_name(prefix, &reference) == name).then_some(reference)
}

impl Core {
    /// A new reference.
    pub(super) fn new_reference(&self) -> Reference {
        let mut reference = Reference::default();
        self.random.fill(&mut reference);
        reference
    }

    /// Removes the control file of a reference; that there is none is fine.
    pub(super) fn drop_overflow(&self, prefix: &[u8], reference: &[u8]) -> Inner<()> {
        match self.root.unlink(&control_name(prefix, reference)) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => Ok(other?),
        }
    }
}
