//! Control files at a share's root with data for which the entry itself has no room: targets of
//! symbolic links, lists of attributes.
//!
//! Rules that hold here
//! * Such a file is named by its reference: random bytes, stored sealed at the entry. So link and
//!   rename need not change the file.
//! * It is durable before the reference is set. A mount removes it only if the reference could not
//!   be set, or once the change that drops the reference is durable.
//! * A daemon that removes an entry, or sets another list, does not know whether the reference
//!   exists elsewhere: in a conflict copy that was moved, or on a machine that was offline. So the
//!   file stays as residue until `fsck --prune` removes it. The exception is a file that this
//!   process created recently, so that not every one of many changes leaves a file.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use crate::crypto::Random;
use crate::store::Dir;
use crate::vault::error::Inner;

pub(crate) use crate::format::record::REFERENCE_LEN;

/// The store's attribute that contains the attributes of a file or directory, or the reference to
/// their list.
pub(crate) const ATTRIBUTES: &[u8] = b"user.kithfs";
/// The store's attribute that contains the access ACL of a file or directory.
pub(crate) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";

/// The random bytes that name a control file.
pub(crate) type Reference = [u8; REFERENCE_LEN];

/// Returns the name of the control file of a reference.
pub(crate) fn control_name(prefix: &[u8], reference: &[u8]) -> Vec<u8> {
    [prefix, hex::encode(reference).as_bytes()].concat()
}

/// Returns the reference in the name of a control file; `None` for any other name.
pub(crate) fn reference_of(prefix: &[u8], name: &[u8]) -> Option<Reference> {
    let mut reference = Reference::default();
    hex::decode_to_slice(name.strip_prefix(prefix)?, &mut reference).ok()?;
    // Upper case is decoded as well.
    (control_name(prefix, &reference) == name).then_some(reference)
}

/// How long a reference is young: so short that a copy of its entry has hardly spread.
const YOUNG: Duration = Duration::from_secs(5);
/// Maximum number of young references that are remembered; beyond it the oldest are dropped, and
/// their control files stay.
const YOUNG_MAX: usize = 1024;

/// References that this process created recently, with the time by this machine's clock. An
/// operation that may have copied a reference drops it.
pub(crate) struct Young(Mutex<LruCache<Reference, Instant>>);

impl Young {
    pub fn new() -> Self {
        Young(Mutex::new(LruCache::new(NonZeroUsize::new(YOUNG_MAX).expect("not zero"))))
    }

    pub fn add(&self, reference: Reference, now: Instant) {
        self.0.lock().put(reference, now);
    }

    pub fn is_young(&self, reference: &Reference, now: Instant) -> bool {
        self.0
            .lock()
            .peek(reference)
            .is_some_and(|made| now.saturating_duration_since(*made) < YOUNG)
    }

    /// Like [`Young::is_young`], and drops the reference.
    pub fn take(&self, reference: &Reference, now: Instant) -> bool {
        self.0.lock().pop(reference).is_some_and(|made| now.saturating_duration_since(made) < YOUNG)
    }

    /// Drops all references, because names change: an entry and its conflict copies need not be
    /// beside each other any more.
    pub fn forget_all(&self) {
        self.0.lock().clear();
    }
}

/// Returns a new reference.
pub(in crate::vault) fn new_reference(random: &dyn Random) -> Reference {
    let mut reference = Reference::default();
    random.fill(&mut reference);
    reference
}

/// Removes the control file of a reference, if it exists.
pub(in crate::vault) fn drop_overflow(
    root: &dyn Dir,
    prefix: &[u8],
    reference: &[u8],
) -> Inner<()> {
    match root.unlink(&control_name(prefix, reference)) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_young_for_a_while_and_until_it_is_taken() {
        let (young, begun) = (Young::new(), Instant::now());
        let reference = |n: usize| n.to_le_bytes().repeat(2).try_into().expect("16 bytes");
        (0..3).for_each(|n| young.add(reference(n), begun));
        assert!(!young.is_young(&reference(3), begun), "never seen");
        assert!(
            young.is_young(&reference(0), begun + YOUNG / 2)
                && young.take(&reference(0), begun + YOUNG / 2)
        );
        assert!(!young.take(&reference(0), begun + YOUNG / 2), "taken");
        assert!(
            !young.is_young(&reference(1), begun + YOUNG)
                && !young.take(&reference(1), begun + YOUNG),
            "some seconds later"
        );
        young.forget_all();
        assert!(!young.take(&reference(2), begun));
        (0..YOUNG_MAX + 1).for_each(|n| young.add(reference(n), begun));
        assert!(
            !young.take(&reference(0), begun) && young.take(&reference(1), begun),
            "of too many the oldest is forgotten"
        );
    }
}
