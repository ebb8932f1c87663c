//! The pass that seals again what a share holds under older epochs, whose keys removed members may
//! have.
//!
//! Rules that hold here
//! * The pass keeps no progress record: objects sealed under the current epoch are done.
//!   Interrupted anywhere, it leaves a share that reads as before, and the next pass continues.
//! * Nothing is sealed again, and so signed by this identity, unless it was verified under its old
//!   signature; the author stays the same.
//! * The remaining work is counted afterwards, with a look for the newest manifest before and after
//!   the count: an epoch that began meanwhile is never missed.
//! * Times of files and directories do not change, except that in a synced share the modification
//!   time of a file moves by two seconds whenever its header or contents are sealed again.
//! * Replaced long lists of attributes stay under their old epoch: see `vault::core::overflow`.

mod content;
mod names;
pub(in crate::vault) mod pass;
mod records;

use self::pass::{Pass, Pending, Work};
use crate::vault::error::{Error, Fault, Inner, Result};
use crate::vault::membership::share::Share;
use crate::vault::types::ROOT;
use crate::vault::types::ShareProgress;

/// Maximum number of counts of the remaining work, each repeated because a new epoch has begun.
/// Beyond it the call fails because the share is busy.
const ROUNDS: usize = 8;

impl Share {
    /// Counts the data of the share that is sealed under an older epoch. Nested shares have epochs of
    /// their own and are skipped.
    ///
    /// # Errors
    /// `EBUSY` if new epochs keep beginning; errors of the store.
    pub fn pending(&self, progress: &mut dyn FnMut(&ShareProgress)) -> Result<Pending> {
        for _ in 0..ROUNDS {
            self.look()?;
            let epoch = self.core.keys.current().commitment;
            let counted = self
                .pass(Work::Count, ShareProgress::default(), progress)
                .map_err(|fault| self.at(fault))?;
            self.look()?;
            if self.core.keys.current().commitment == epoch {
                return Ok(counted);
            }
        }
        Err(self.at(Fault::Os(libc::EBUSY)))
    }

    /// Seals names, headers and records of the share again under the current epoch, with `eager`
    /// contents too. Returns the remaining work. It may be interrupted anywhere and called again, and
    /// the vault can be used meanwhile.
    ///
    /// # Errors
    /// `EROFS` if this client cannot write, `ESHUTDOWN` if the vault was closed meanwhile; as
    /// [`Share::pending`].
    pub fn reseal(&self, eager: bool, progress: &mut dyn FnMut(&ShareProgress)) -> Result<Pending> {
        let before = self.pending(&mut |_| {})?;
        self.core.check_writable().map_err(|fault| self.at(fault))?;
        // In a signed share the count relies on data that every reader could have changed; the pass
        // does not.
        if before.is_done(eager) && !(eager && self.core.keys.signed()) {
            return Ok(before);
        }
        let total = ShareProgress {
            files_total: before.files,
            bytes_total: before.bytes,
            ..ShareProgress::default()
        };
        let work = if eager { Work::Eager } else { Work::Lazy };
        self.pass(work, total, progress).map_err(|fault| self.at(fault))?;
        self.pending(&mut |_| {})
    }

    fn pass(
        &self,
        work: Work,
        done: ShareProgress,
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> Inner<Pending> {
        let mut pass = Pass::new(&self.core, work, done, progress);
        pass.run()?;
        Ok(pass.found)
    }

    /// Looks for a newer manifest.
    fn look(&self) -> Result<()> {
        self.core.refresh(self.vault.shares().trust()).map(drop)
    }

    fn at(&self, fault: Fault) -> Error {
        fault.at("reseal", || self.core.shown_path(ROOT))
    }
}
