//! The pass that seals anew what a share holds under older epochs, so that a removed member's keys
//! open nothing that is there.
//!
//! Rules that hold here
//! * The pass keeps no record of how far it has come: what is sealed under the current epoch is
//!   done. Stopped anywhere it leaves a share that reads as before, and the next one goes on.
//! * Nothing is sealed anew, and so signed by us, that was not verified under the signature that it
//!   had; the author stays who he was.
//! * What is said to be left is counted afterwards, with the newest manifest looked for before and
//!   after the count: an epoch that began meanwhile is never passed over.
//! * Times of files and directories stay as they are.
//! * Long lists of attributes that were replaced stay under their old epoch: see `vault::overflow`.

mod content;
mod names;
pub(in crate::vault) mod pass;
mod records;

use self::pass::{Pass, Pending, Work};
use crate::vault::error::{Error, Fault, Inner, Result};
use crate::vault::membership::share::Share;
use crate::vault::session::vault::Vault;
use crate::vault::types::ROOT;
use crate::vault::types::ShareProgress;

/// How often what is left is counted anew, because a new epoch has begun, before the caller is told
/// that the share is busy.
const ROUNDS: usize = 8;

impl Vault {
    /// What of the share in which `path` stands is sealed under an older epoch. Shares nested in it
    /// have epochs of their own and are not looked at.
    ///
    /// # Errors
    /// As [`Vault::share_at`]; `EBUSY` where new epochs begin all the time; what the store says.
    pub fn pending(
        &self,
        path: &[u8],
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> Result<Pending> {
        self.share_at(path)?.pending(progress)
    }

    /// Seals names, headers and records of the share in which `path` stands anew under the current
    /// epoch, with `eager` contents too. Gives what is left. It may be stopped anywhere and called
    /// again, and the vault can be used meanwhile.
    ///
    /// # Errors
    /// `EROFS` where this client cannot write, `ESHUTDOWN` where the vault was closed meanwhile; as
    /// [`Vault::pending`].
    pub fn reseal(
        &self,
        path: &[u8],
        eager: bool,
        progress: &mut dyn FnMut(&ShareProgress),
    ) -> Result<Pending> {
        self.share_at(path)?.reseal(eager, progress)
    }
}

impl Share {
    /// See [`Vault::pending`].
    ///
    /// # Errors
    /// See there.
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

    /// See [`Vault::reseal`].
    ///
    /// # Errors
    /// See there.
    pub fn reseal(&self, eager: bool, progress: &mut dyn FnMut(&ShareProgress)) -> Result<Pending> {
        let before = self.pending(&mut |_| {})?;
        self.core.check_writable().map_err(|fault| self.at(fault))?;
        // In a signed share the count goes by what every reader can have changed; the pass does
        // not.
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
        if self.core.keys.signed() {
            self.core.refresh(self.vault.shares().trust()).map(drop)
        } else {
            Ok(())
        }
    }

    fn at(&self, fault: Fault) -> Error {
        fault.at("seal anew", || self.core.shown_path(ROOT))
    }
}
