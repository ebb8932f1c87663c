//! The repair: fixes faults that the check found if the correct state is known, and otherwise moves
//! the objects aside.
//!
//! Rules that hold here
//! * Nothing is deleted but files with an empty ciphertext, which contain nothing, and control
//!   files in directories whose removal was interrupted. Objects that cannot be authenticated are
//!   moved unchanged to a directory of this repair in `lost+found`, under an ordinary plain name:
//!   their good parts can be read there, and their ciphertext can be found.
//! * Each step is one rename, or one new file that is durable before what it replaces is removed. A
//!   crash leaves the state before or after the step, and the next repair continues.
//! * Sealed data is derived only from authenticated data: a header's hint, a record, names that
//!   decode.
//! * In a signed share that is not enough, because every reader can make such evidence: there
//!   nothing is sealed or signed for others.
//! * One share is repaired at a time, the one that was opened: faults in a nested share come
//!   without a remedy.

mod act;
mod salvage;

use crate::vault::core::Core;
use crate::vault::error::{Corruption, Fault, Inner};
use crate::vault::fsck::remedy::Remedy;
use crate::vault::fsck::report::CheckFault;

/// Outcome of one remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done; the plain path to which an object was moved, if any.
    Done(Option<Vec<u8>>),
    /// `decide` has refused it.
    Declined,
    /// There is no remedy.
    Nothing,
    /// It failed; nothing was lost.
    Failed(String),
}

/// A fault and the outcome of its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The fault.
    pub fault: CheckFault,
    /// The outcome of its remedy.
    pub outcome: Outcome,
}

/// Outcome of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Each fault with its outcome.
    pub repaired: Vec<Repaired>,
    /// Plain path of the directory in `lost+found`, if one was needed.
    pub kept_in: Option<Vec<u8>>,
}

impl Core {
    /// Applies the remedies of `faults` in their order, each if `decide` returns true. `run` is the
    /// name of the directory in `lost+found`.
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

    /// Checks that data may be sealed for all members based on the evidence that a repair has. In a
    /// signed share it may not: hints and names are sealed under a key that readers have, and other
    /// members trust what this client signs.
    fn may_seal(&self) -> Inner<()> {
        if self.keys.layout.signed() {
            Err(Fault::Corrupt(Corruption::Other("cannot be sealed again in a signed share")))
        } else {
            Ok(())
        }
    }
}
