//! The check, repair and salvage of a vault: its own share, and its nested shares.
//!
//! Rules that hold here
//! * A nested share is entered with full verification, as for any other use. If it cannot be
//!   entered, that is a fault of the vault.
//! * Faults in a nested share are reported by paths from the vault's root, and without a remedy. To
//!   repair that share, it has to be opened alone: its own `lost+found` is there.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::vault::Vault;
use crate::vault::core::Core;
use crate::vault::error::Error;
use crate::vault::error::{Fault, Inner, Result};
use crate::vault::fsck::prune::Keep;
use crate::vault::fsck::repair::RepairReport;
use crate::vault::fsck::report::{
    CheckFault, CheckProgress, CheckReport, NestedShares, Online, Progress, join,
};
use crate::vault::rollback::recall::Recall;
use crate::vault::types::{NodeId, ROOT};

/// Suffix of the description of a repairable fault in a nested share.
const ELSEWHERE: &str = "; it is in a nested share, which has to be opened alone to be repaired";

/// The function that checks one share, from a stored path on.
type CheckOne<'a> = &'a dyn Fn(&Core, &[u8], Progress) -> Inner<(CheckReport, NestedShares)>;

impl Vault {
    /// Authenticates everything at and below `start`, including nested shares. Nested shares of
    /// which this identity is not a member are reported as faults.
    ///
    /// # Errors
    /// `start` does not exist, or the vault cannot be walked at all. Faults of the vault are in the
    /// report.
    pub fn check(
        &self,
        start: &[u8],
        progress: &mut dyn FnMut(&CheckProgress),
    ) -> Result<CheckReport> {
        self.check_shares(start, progress, &|core, start, progress| core.check(start, progress))
    }

    /// Like [`Vault::check`], while another process has the vault open and may be writing: a fault
    /// counts only if its object has not changed for a while. Takes `online.settle` for each round
    /// with faults.
    ///
    /// # Errors
    /// As [`Vault::check`].
    pub fn check_online(
        &self,
        start: &[u8],
        online: &Online,
        progress: &mut dyn FnMut(&CheckProgress),
    ) -> Result<CheckReport> {
        self.check_shares(start, progress, &|core, start, progress| {
            core.check_online(start, online, progress)
        })
    }

    /// Compares files that a check has found empty with the rollback databases of this machine:
    /// residue of a crash becomes a fault if the machine has seen that file with contents. `memory`
    /// returns the path of the database of a share. The vault's own share is skipped if it was not
    /// compared with its database since an interrupted session.
    ///
    /// # Errors
    /// A database cannot be read.
    pub fn recall(
        &self,
        report: &mut CheckReport,
        memory: &dyn Fn(&[u8; 32]) -> Option<PathBuf>,
    ) -> Result<()> {
        let emptied = report.faults.iter_mut().filter(|fault| fault.emptied && fault.residue);
        let mut by_share: BTreeMap<[u8; 32], (Arc<Core>, Vec<&mut CheckFault>)> = BTreeMap::new();
        for fault in emptied {
            let (core, _) = self.shares().at_stored_path(&fault.cipher);
            by_share.entry(core.keys.share).or_insert((core, Vec::new())).1.push(fault);
        }
        for (share, (core, faults)) in by_share {
            let Some(path) = memory(&share) else { continue };
            let is_own = std::ptr::eq(&*core, self.core());
            if is_own && self.is_after_interruption() {
                continue;
            }
            let failed = |fault: Fault| fault.at("open", || path.clone());
            let Some(recall) = Recall::open(&core, &path).map_err(failed)? else { continue };
            for fault in faults {
                let (_, stored) = self.shares().at_stored_path(&fault.cipher);
                let stored: Vec<&[u8]> = stored.split(|b| *b == b'/').collect();
                let plain: Vec<&[u8]> = fault.plain.split(|b| *b == b'/').collect();
                let from = plain.len().saturating_sub(stored.len());
                let names: Vec<_> = plain[from..].iter().copied().zip(stored).collect();
                if recall.has_file(&names).map_err(failed)? {
                    fault.was_whole();
                }
            }
        }
        Ok(())
    }

    /// Applies the remedies of a check's faults, each if `decide` returns true. Objects that cannot
    /// be authenticated are moved to the directory `run` (its name begins with
    /// [`REPAIR_RUN`](crate::vault::REPAIR_RUN)) in `lost+found`. Nothing that holds a byte is
    /// deleted, and a crash at any moment is harmless. Faults in nested shares are skipped: such a
    /// share is repaired when it is opened alone. In a signed share nothing unverified is sealed or
    /// signed, so remedies that need that fail.
    ///
    /// # Errors
    /// The vault is open read-only. Failures of single remedies are in the report.
    pub fn repair(
        &self,
        faults: &[CheckFault],
        run: &[u8],
        decide: &mut dyn FnMut(&CheckFault) -> bool,
    ) -> Result<RepairReport> {
        self.core()
            .repair(faults, run, decide)
            .map_err(|fault| self.core().explain("repair", ROOT, fault))
    }

    /// Removes control files of the vault's own share to which, by [`Vault::check`], nothing refers.
    /// Each is removed once `keep` has taken its path and its bytes. Returns their number.
    ///
    /// # Errors
    /// The vault is open read-only, a path is not that of such a file, or `keep` fails. The files
    /// before the failure are removed.
    pub fn prune(&self, files: &[Vec<u8>], keep: Keep<'_>) -> Result<u64> {
        self.core().prune(files, keep).map_err(|fault| self.core().explain("prune", ROOT, fault))
    }

    /// Reads the good ranges of a damaged file, as found by a check, piece by piece with their
    /// offsets; also in a nested share that was entered.
    ///
    /// # Errors
    /// The file cannot be opened, or `take` fails.
    pub fn salvage(
        &self,
        fault: &CheckFault,
        take: &mut dyn FnMut(u64, &[u8]) -> std::io::Result<()>,
    ) -> Result<()> {
        let (core, cipher) = self.shares().at_stored_path(&fault.cipher);
        core.salvage(cipher, &fault.good(), take)
            .map_err(|fault| core.explain("salvage", ROOT, fault))
    }

    fn check_shares(
        &self,
        start: &[u8],
        progress: Progress,
        check: CheckOne,
    ) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        let mut left = vec![(start.to_vec(), None)];
        while let Some((plain, cipher)) = left.pop() {
            let part = self.resolve(&plain).and_then(|attr| {
                let part = self.check_share(attr.node, &report.seen, progress, check);
                if attr.node != ROOT {
                    self.forget(attr.node, 1);
                }
                part
            });
            match (part, cipher) {
                (Ok((part, nested)), _) => {
                    report.seen = report.seen.plus(&part.seen);
                    report.faults.extend(part.faults);
                    report.kept.extend(part.kept);
                    report.changing.extend(part.changing);
                    report.notes.extend(part.notes);
                    report.more.notes += part.more.notes;
                    report.strangers += part.strangers;
                    report.more.faults += part.more.faults;
                    report.more.residue += part.more.residue;
                    report.more.kept += part.more.kept;
                    if plain.is_empty() {
                        (report.unused, report.unlooked) = (part.unused, part.unlooked);
                        report.unused_files = part.unused_files;
                        report.lists_alone = part.lists_alone;
                    }
                    left.extend(nested.into_iter().map(|(plain, cipher)| (plain, Some(cipher))));
                }
                (Err(error), None) => return Err(error),
                (Err(error), Some(cipher)) => {
                    report.faults.push(CheckFault::new(&plain, &cipher, error.to_string(), None))
                }
            }
        }
        if !report.faults.is_empty() || !report.kept.is_empty() {
            report.unused = None;
            report.unused_files.clear();
        }
        Ok(report)
    }

    /// Checks the share that contains a node, or whose root it is, from the node on. Paths in the
    /// report begin at the vault's root.
    fn check_share(
        &self,
        node: NodeId,
        before: &CheckProgress,
        progress: Progress,
        check: CheckOne,
    ) -> Result<(CheckReport, NestedShares)> {
        self.shares().run("check", node, |core, local| match core.directory_tag(local) {
            Err(Fault::Boundary) => Err(Fault::Boundary),
            _ => Ok(()),
        })?;
        let route =
            self.shares().route(node).map_err(|fault| fault.at("check", Default::default))?;
        let gone = || Error::Os { op: "check", errno: libc::ENOENT };
        let start = route.core.nodes.stored_path(route.local).ok_or_else(gone)?;
        let mut so_far = |part: &CheckProgress| progress(&before.plus(part));
        let checked = check(&route.core, &start, &mut so_far);
        let (mut report, mut nested) =
            checked.map_err(|fault| self.shares().explain("check", &route, fault))?;
        if route.number == 0 {
            return Ok((report, nested));
        }
        let plain = self.shares().plain_path(route.number, ROOT).ok_or_else(gone)?;
        let cipher = self.shares().stored_path(route.number, ROOT).ok_or_else(gone)?;
        let below = |top: &[u8], path: &[u8]| {
            if path.is_empty() { top.to_vec() } else { join(top, path) }
        };
        for fault in report.faults.iter_mut().chain(&mut report.kept) {
            (fault.plain, fault.cipher) =
                (below(&plain, &fault.plain), below(&cipher, &fault.cipher));
            if fault.remedy.take().is_some() || std::mem::take(&mut fault.list_missing) {
                fault.what.push_str(ELSEWHERE);
            }
        }
        report.changing.iter_mut().for_each(|path| *path = below(&plain, path));
        report.notes.iter_mut().for_each(|note| note.plain = below(&plain, &note.plain));
        nested.iter_mut().for_each(|(p, c)| (*p, *c) = (below(&plain, p), below(&cipher, c)));
        Ok((report, nested))
    }
}
