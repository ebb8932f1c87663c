//! Control files to which nothing refers: lists of attributes and targets of links that were replaced or removed.
//!
//! Rules that hold here
//! * Nothing is known to be unused unless everything was looked at: each entry's attributes, without a fault anywhere, not even in what
//!   earlier repairs have put aside.
//! * What came a short while ago stays: a sync tool may bring a list before the file that refers to it. How long ago that was is told by
//!   the store's clock on both sides.
//! * Somebody who has a file open that lost its name may still refer to a list; so nothing is removed where a file is open.

use std::collections::HashSet;
use std::time::Duration;

use super::CheckReport;
use crate::backing::Timestamp;
use crate::vault::core::{Core, list};
use crate::vault::error::{Fault, Inner};
use crate::vault::overflow::Reference;
use crate::vault::{symlink, xattr};

/// How long a control file to which nothing refers should have been in the store before it is removed: a day.
pub const UNUSED_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// A control file of the share's root to which nothing refers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unused {
    pub(super) name: Box<[u8]>,
    /// Its length.
    pub bytes: u64,
}

/// What became of control files to which nothing refers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Files that were removed.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that stay because they came a short while ago.
    pub young: u64,
}

/// What the walk found to be referred to.
#[derive(Default)]
pub(super) struct Used {
    pub lists: HashSet<Reference>,
    pub targets: HashSet<Reference>,
    /// Entries of which nobody knows what they refer to.
    pub unlooked: u64,
}

/// Time between two times of the store; none if the clock was set back.
fn between(earlier: Timestamp, later: Timestamp) -> Duration {
    Duration::from_secs(later.secs.saturating_sub(earlier.secs).try_into().unwrap_or(0))
}

impl Core {
    /// The control files that are not among those that are `used`.
    pub(super) fn unused(&self, used: &Used) -> Inner<Vec<Unused>> {
        let is_unused = |name: &[u8]| match (xattr::overflow_reference(name), symlink::overflow_reference(name)) {
            (Some(list), _) => !used.lists.contains(&list),
            (_, Some(target)) => !used.targets.contains(&target),
            _ => false,
        };
        let mut unused = Vec::new();
        for entry in list(&*self.root)?.into_iter().filter(|entry| is_unused(&entry.name)) {
            match self.root.stat(&entry.name) {
                Ok(stat) => unused.push(Unused { name: entry.name, bytes: stat.size }),
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(unused)
    }

    /// Removes those of the control files that a check found to be unused which have been in the store for `age`.
    ///
    /// Fails with `EINVAL` where the check does not know, with `EBUSY` where a file is open.
    pub fn collect(&self, found: &CheckReport, age: Duration) -> Inner<Collected> {
        self.check_writable()?;
        let _names = self.names.write()?;
        let unused = found.unused.as_ref().ok_or(Fault::Os(libc::EINVAL))?;
        if !self.files.lock().is_empty() {
            return Err(Fault::Os(libc::EBUSY));
        }
        let mut collected = Collected::default();
        if unused.is_empty() {
            return Ok(collected);
        }
        let now = self.store_clock()?;
        for Unused { name, bytes } in unused {
            let removed = self.root.stat(name).and_then(|stat| {
                let is_old = between(stat.ctime, now) >= age;
                if is_old { self.root.unlink(name).map(|()| true) } else { Ok(false) }
            });
            match removed {
                Ok(true) => (collected.files, collected.bytes) = (collected.files + 1, collected.bytes + bytes),
                Ok(false) => collected.young += 1,
                Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.root.sync()?;
        Ok(collected)
    }

    /// The present time of the store's clock, by what it gives to a new file.
    fn store_clock(&self) -> Inner<Timestamp> {
        let name = self.temporary_name();
        let stat = self.root.create_file(&name, 0o600)?.stat();
        self.root.unlink(&name)?;
        Ok(stat?.ctime)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_the_future_is_young() {
        let at = |secs| Timestamp { secs, nanos: 999_999_999 };
        assert_eq!(between(at(10), at(10 + 86_400)), UNUSED_AGE);
        assert_eq!(between(at(10), at(9)), Duration::ZERO);
        assert_eq!(between(at(i64::MAX), at(i64::MIN)), Duration::ZERO);
        assert!(between(at(i64::MIN), at(i64::MAX)) > UNUSED_AGE);
    }
}
