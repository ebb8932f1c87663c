//! Records of shares: the last head that this user has seen, in one small file per share below the
//! state directory.
//!
//! Rules: a head is never replaced by a lower one, even if several processes of the user write at
//! the same time. A file that cannot be read is an error: without the record, an old list of
//! members could be accepted.

use std::io;
use std::path::PathBuf;

use crate::cli::error::Error;
use crate::cli::local::replace::replace;
use crate::cli::user::contacts::{lock, read_own};
use crate::cli::user::directories;
use crate::roster::pinned_share::MAX_LEN;
use crate::roster::{Pin, PinnedShare, Proof};
use crate::vault::Pins;

/// The records of the shares that this user has opened or was invited to.
#[derive(Debug, Clone)]
pub struct Shares {
    dir: PathBuf,
}

impl Shares {
    /// Returns the records of this user.
    ///
    /// # Errors
    /// No directory is set in the environment.
    pub fn of_user() -> Result<Shares, Error> {
        Ok(Shares { dir: directories::shares()? })
    }

    fn path(&self, share: &[u8; 32]) -> PathBuf {
        self.dir.join(PinnedShare::file_name(share))
    }

    /// Returns the record of a share.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, belongs to another share, or other users may write to
    /// it.
    pub fn get(&self, share: &[u8; 32]) -> Result<Option<PinnedShare>, Error> {
        let path = self.path(share);
        let Some(text) = read_own(&path, MAX_LEN)? else { return Ok(None) };
        let damaged = |what: String| Error::Memory { path: path.clone(), what };
        let memory = PinnedShare::parse(&text).map_err(|error| damaged(error.to_string()))?;
        if memory.share == *share {
            Ok(Some(memory))
        } else {
            Err(damaged("it belongs to another share".to_owned()))
        }
    }

    /// Adds the record of a share, or changes an existing one with `merge`. Returns the new record.
    ///
    /// # Errors
    /// Those of [`Shares::get`] and of writing.
    pub fn update(
        &self,
        new: PinnedShare,
        merge: impl FnOnce(&mut PinnedShare),
    ) -> Result<PinnedShare, Error> {
        let path = self.path(&new.share);
        directories::make_parent(&path)?;
        let _lock = lock(&self.dir.join("all"))?;
        let known = self.get(&new.share)?;
        let mut memory = known.unwrap_or(new);
        if known.is_some() {
            merge(&mut memory);
        }
        if known != Some(memory) {
            replace(&path, memory.to_text().as_bytes(), |written| {
                let read_back = std::str::from_utf8(written).ok().map(PinnedShare::parse);
                if read_back == Some(Ok(memory)) {
                    Ok(())
                } else {
                    Err(Error::NotReadBack(path.clone()))
                }
            })?;
        }
        Ok(memory)
    }
}

/// Converts the error to the type that the vault expects.
fn io_error(error: Error) -> io::Error {
    io::Error::other(error.to_string())
}

impl Pins for Shares {
    fn get(&self, share: &[u8; 32]) -> io::Result<Option<Pin>> {
        Ok(Shares::get(self, share).map_err(io_error)?.map(|memory| memory.head))
    }

    fn inviter(&self, share: &[u8; 32]) -> io::Result<Option<[u8; 32]>> {
        Ok(match Shares::get(self, share).map_err(io_error)?.map(|memory| memory.proof) {
            Some(Proof::Invitation(admin)) => Some(admin.sign),
            _ => None,
        })
    }

    fn put(&self, share: &[u8; 32], head: Pin) -> io::Result<()> {
        let visit = |known: &mut PinnedShare| {
            if known.advance(head) {
                known.proof = Proof::Visit;
            }
        };
        self.update(PinnedShare { share: *share, proof: Proof::Visit, head }, visit)
            .map(drop)
            .map_err(io_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(sequence: u32) -> PinnedShare {
        PinnedShare {
            share: [1; 32],
            proof: Proof::Visit,
            head: Pin { sequence, hash: [sequence as u8; 32] },
        }
    }

    fn shares() -> (tempfile::TempDir, Shares) {
        let dir = tempfile::tempdir().unwrap();
        let shares = Shares { dir: dir.path().join("state/shares") };
        (dir, shares)
    }

    #[test]
    fn the_highest_head_of_several_processes_stays() {
        let (_dir, shares) = shares();
        assert_eq!(shares.get(&[1; 32]).unwrap(), None);
        std::thread::scope(|scope| {
            for sequence in [3u32, 9, 5, 7, 2, 8, 4, 6] {
                let shares = shares.clone();
                scope.spawn(move || {
                    shares
                        .update(at(sequence), |known| {
                            let _ = known.advance(at(sequence).head);
                        })
                        .unwrap()
                });
            }
        });
        assert_eq!(shares.get(&[1; 32]).unwrap(), Some(at(9)));
    }

    #[test]
    fn a_damaged_memory_is_an_error_and_not_forgotten() {
        let (_dir, shares) = shares();
        shares.update(at(3), |_| {}).unwrap();
        let path = shares.path(&[1; 32]);
        for text in
            ["", "kithfs share memory 1\n", &PinnedShare { share: [2; 32], ..at(3) }.to_text()]
        {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(shares.get(&[1; 32]), Err(Error::Memory { .. })), "{text:?}");
            assert!(shares.update(at(9), |_| {}).is_err());
        }
    }
}
