//! The check: reads and authenticates every byte of a vault, or of a sub-tree, and tells what is
//! wrong where, and what could be done.
//!
//! Rules that hold here
//! * Nothing is changed, neither in the store nor in the table of nodes: the check walks the store
//!   by its own handles.
//! * A directory whose record is lost is walked all the same, under the id that the headers of its
//!   files name, if names decode under it.
//! * Contents are authenticated on all cores; what is wrong with a file is told as ranges of plain
//!   bytes.
//! * A check of a share stops at the shares that are nested in it: they are entered, and checked,
//!   one after the other (see `nested`).
//! * A fault comes with the remedy that `repair` has for it. What is inside a directory is told
//!   before what moves the directory.

mod content;
pub(crate) mod hints;
mod unused;
mod walk;

use std::time::Duration;

use crate::vault::core::Core;
use crate::vault::error::Inner;
use crate::vault::fsck::report::{
    CheckFault, CheckProgress, CheckReport, NestedShares, Online, Progress,
};

/// Lets others have that time to write. In parts: where a whole machine stood still (a virtual one,
/// from which the host took its processors) a sleep that ended meanwhile was time that a writer did
/// not have.
fn pause(time: Duration) {
    const PARTS: u32 = 10;
    (0..PARTS).for_each(|_| std::thread::sleep(time / PARTS));
}

impl Core {
    /// Checks the entry of this share at the stored path `start` and everything below it. Nested
    /// shares are told and not entered.
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
            report.unused = self.unused(&walk.used)?;
        }
        (report.kept, report.faults) = walk.faults.into_iter().partition(CheckFault::is_kept);
        Ok((report, walk.shares))
    }

    /// As [`Core::check`], of a vault that another process may be writing to: a fault counts only
    /// if the object it is in has not changed for a while and the fault is still there.
    pub fn check_online(
        &self,
        start: &[u8],
        online: &Online,
        progress: Progress,
    ) -> Inner<(CheckReport, NestedShares)> {
        let (mut report, shares) = self.check(start, progress)?;
        report.unused = None; // whoever has the vault open may be about to refer to one
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
            // What they are in is compared over the whole pause: whoever writes to it does so
            // within that time.
            let before: Vec<_> = suspects.iter().map(|f| self.look(&f.cipher)).collect();
            pause(online.settle);
            let mut again: Vec<CheckFault> = Vec::new();
            for (suspect, before) in suspects.into_iter().zip(before) {
                let still = self.still(&suspect)?;
                if before != self.look(&suspect.cipher) {
                    // It changed: what is wrong now, if anything, has to stand still first.
                    again.extend(still);
                } else if let Some(fault) = still {
                    report.kept.push(fault);
                }
            }
            report.faults = again;
            // Certain faults wait beside the kept ones until the last round is over.
        }
        let found = std::mem::take(&mut report.kept);
        (report.kept, report.faults) = found.into_iter().partition(CheckFault::is_kept);
        Ok((report, shares))
    }

    /// The fault that is to be found now where `suspect` was found, if there still is one.
    fn still(&self, suspect: &CheckFault) -> Inner<Option<CheckFault>> {
        if suspect.what == walk::TOO_DEEP {
            return Ok(self.look(&suspect.cipher).map(|_| suspect.clone()));
        }
        let mut ignore = |_: &CheckProgress| {};
        let mut walk = walk::Walk::new(self, &mut ignore);
        match walk.single(&suspect.cipher) {
            Ok(()) => {}
            // It is gone, and so is what was wrong with it.
            Err(fault) if matches!(fault.errno(), libc::ENOENT | libc::ENOTDIR | libc::ESTALE) => {
                return Ok(None);
            }
            Err(fault) => return Err(fault),
        }
        Ok(walk.faults.into_iter().find(|f| f.cipher == suspect.cipher))
    }

    /// What the store says of the object at a stored path, to see whether it changes.
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

    /// The directory of the store in which the object at a stored path stands, and its name there;
    /// the root has an empty one.
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
