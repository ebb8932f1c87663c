//! Repair: what the check has found is put right where that can be known, and set aside where it
//! cannot.
//!
//! Rules that hold here
//! * Nothing is deleted but files without a byte of ciphertext, in which there is nothing. What
//!   cannot be authenticated is moved, as it is, to a directory of this repair in `lost+found`,
//!   under an ordinary name of the plain view: what of it is good can be read there, and its
//!   ciphertext be found.
//! * Each step is one rename, or one new control file that is durable before what it replaces goes;
//!   a crash leaves the state before it or after it, and the next repair goes on.
//! * What is sealed anew follows from something that was authenticated: a header's hint, a record,
//!   names that decode.
//! * In a signed share that is not enough, because every reader can make such evidence: there
//!   nothing is sealed or signed for others.
//! * One share is repaired at a time, the one that was opened: what is wrong in a nested one comes
//!   without a remedy.

mod act;
mod salvage;

use crate::vault::core::Core;
use crate::vault::error::{Fault, Inner};
use crate::vault::fsck::remedy::Remedy;
use crate::vault::fsck::report::CheckFault;

/// How one repair ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; the plain path to which something was moved, where it was.
    Done(Option<Vec<u8>>),
    /// Whoever was asked did not want it.
    Declined,
    /// There is no remedy.
    Nothing,
    /// It failed; nothing was lost.
    Failed(String),
}

/// A fault and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The fault.
    pub fault: CheckFault,
    /// What became of it.
    pub outcome: Outcome,
}

/// Outcome of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Each fault.
    pub repaired: Vec<Repaired>,
    /// Plain path of the directory in `lost+found`, where one was needed.
    pub kept_in: Option<Vec<u8>>,
}

impl Core {
    /// Does what the remedies of `faults` say, in their order, each where `decide` agrees. `run`
    /// names the directory in `lost+found`.
    pub fn repair(
        &self,
        faults: &[CheckFault],
        run: &[u8],
        decide: &mut dyn FnMut(&CheckFault) -> bool,
    ) -> Inner<RepairReport> {
        self.check_writable()?;
        let mut bench = act::Bench::new(self, run);
        let mut report = RepairReport::default();
        for fault in faults {
            let outcome = match &fault.remedy {
                None => Outcome::Nothing,
                Some(_) if !decide(fault) => Outcome::Declined,
                Some(Remedy(action)) => match bench.act(fault, action) {
                    Ok(kept) => Outcome::Done(kept),
                    Err(fault) => Outcome::Failed(crate::vault::fsck::report::describe(&fault)),
                },
            };
            report.repaired.push(Repaired { fault: fault.clone(), outcome });
        }
        report.kept_in = bench.finish()?;
        Ok(report)
    }

    /// Whether something may be sealed for everybody on the strength of what a repair knows. In a
    /// signed share it may not: hints and names are sealed under a key that readers have, and what
    /// this client signs is believed.
    fn may_seal(&self) -> Inner<()> {
        if self.keys.layout.signed() {
            Err(Fault::Corrupt("cannot be sealed anew in a signed share"))
        } else {
            Ok(())
        }
    }
}
