//! The check: reads and authenticates every byte of a vault or of a sub-tree, and reports each
//! fault with its place and a possible remedy.
//!
//! Rules that hold here
//! * Nothing is changed, neither in the store nor in the node table: the check walks the store
//!   through handles of its own.
//! * A directory whose name cannot be read is walked all the same.
//! * Contents are authenticated on all cores; damage in a file is reported as ranges of plain
//!   bytes.
//! * A check of a share stops at nested shares: they are entered and checked one after the other
//!   (see `session/check.rs`).
//! * A fault comes with the remedy that `repair` has for it. Faults inside a directory are reported
//!   before one whose remedy moves the directory.

pub(crate) mod content;
mod descent;
pub(crate) mod hints;
mod unused;
mod walk;

use std::time::Duration;

use crate::vault::core::Core;
use crate::vault::error::Inner;
use crate::vault::fsck::report::{
    CheckFault, CheckProgress, CheckReport, NestedShares, Online, Progress,
};

/// Gives writers that much time. Sleeps in parts: if the whole machine was suspended (a virtual
/// machine without processors), one long sleep could end without a writer having run.
fn pause(time: Duration) {
    const PARTS: u32 = 10;
    (0..PARTS).for_each(|_| std::thread::sleep(time / PARTS));
}

impl Core {
    /// Checks the entry of this share at the stored path `start` and everything below it. Nested
    /// shares are returned, not entered.
    pub fn check(&self, start: &[u8], progress: Progress) -> Inner<(CheckReport, NestedShares)> {
        let mut walk = walk::Walk::new(self, progress);
        walk.from(start)?;
        let mut report = CheckReport {
            seen: walk.seen,
            unlooked: walk.used.unlooked,
            strangers: walk.strangers,
            more: walk.more,
            ..CheckReport::default()
        };
        if start.is_empty() && walk.faults.is_empty() && walk.used.unlooked == 0 {
            match self.unused(&walk.used)? {
                Ok(unused::Found { count, files }) => {
                    (report.unused, report.unused_files) = (Some(count), files);
                }
                Err(why) => report.lists_alone = matches!(why, unused::Unknown::ListsAlone),
            }
        }
        report.notes = walk.notes;
        (report.kept, report.faults) = walk.faults.into_iter().partition(CheckFault::is_kept);
        Ok((report, walk.shares))
    }

    /// Like [`Core::check`], for a vault that another process may be writing to: a fault counts
    /// only if its object has not changed for a while and the fault is still there.
    pub fn check_online(
        &self,
        start: &[u8],
        online: &Online,
        progress: Progress,
    ) -> Inner<(CheckReport, NestedShares)> {
        let (mut report, shares) = self.check(start, progress)?;
        report.unused_files.clear();
        report.unused = None; // the process that has the vault open may be about to refer to one
        for round in 0.. {
            let suspects = std::mem::take(&mut report.faults);
            if suspects.is_empty() {
                break;
            }
            if round >= online.tries {
                report.changing = suspects.into_iter().map(|f| f.plain).collect();
                report.changing.dedup();
                break;
            }
            // Objects with faults are compared over the whole pause: a live writer changes them
            // within that time.
            let before: Vec<_> = suspects.iter().map(|f| self.look(&f.cipher)).collect();
            pause(online.settle);
            let mut again: Vec<CheckFault> = Vec::new();
            for (suspect, before) in suspects.into_iter().zip(before) {
                let still = self.still(&suspect)?;
                if before != self.look(&suspect.cipher) {
                    // It changed: a fault that it has now must first outlast a pause.
                    again.extend(still);
                } else if let Some(fault) = still {
                    report.kept.push(fault);
                }
            }
            report.faults = again;
            // Confirmed faults are collected with the kept ones until the last round is over.
        }
        let found = std::mem::take(&mut report.kept);
        (report.kept, report.faults) = found.into_iter().partition(CheckFault::is_kept);
        Ok((report, shares))
    }

    /// Returns the fault that is found now at the path of `suspect`, if any.
    fn still(&self, suspect: &CheckFault) -> Inner<Option<CheckFault>> {
        if suspect.what == descent::TOO_DEEP {
            return Ok(self.look(&suspect.cipher).map(|_| suspect.clone()));
        }
        let mut ignore = |_: &CheckProgress| {};
        let mut walk = walk::Walk::new(self, &mut ignore);
        match walk.single(&suspect.cipher) {
            Ok(()) => {}
            // The object is gone, and its fault with it.
            Err(fault) if matches!(fault.errno(), libc::ENOENT | libc::ENOTDIR | libc::ESTALE) => {
                return Ok(None);
            }
            Err(fault) => return Err(fault),
        }
        Ok(walk.faults.into_iter().find(|f| f.cipher == suspect.cipher))
    }

    /// Returns what the store reports of the object at a stored path, to detect changes.
    fn look(&self, cipher: &[u8]) -> Option<[i128; 5]> {
        let (dir, name) = self.open_parent(cipher).ok()?;
        let stat = if name.is_empty() { dir.stat_self() } else { dir.stat(name) }.ok()?;
        let time = |t: crate::store::Timestamp| i128::from(t.secs) << 32 | i128::from(t.nanos);
        Some([
            stat.dev.into(),
            stat.ino.into(),
            stat.size.into(),
            time(stat.mtime),
            time(stat.ctime),
        ])
    }

    /// Returns the store's directory that contains the object at a stored path, and its name there;
    /// empty for the root.
    pub(crate) fn open_parent<'p>(
        &self,
        cipher: &'p [u8],
    ) -> Inner<(std::sync::Arc<dyn crate::store::Dir>, &'p [u8])> {
        let mut dir = self.root.clone();
        let mut rest = cipher;
        while let Some(at) = rest.iter().position(|b| *b == b'/') {
            dir = dir.open_dir(&rest[..at])?;
            rest = &rest[at + 1..];
        }
        Ok((dir, rest))
    }
}
