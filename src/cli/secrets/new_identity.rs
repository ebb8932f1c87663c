//! Creating an identity: its file, with a slot for the given secret and one for a recovery code.
//!
//! Rule: the file counts only after it was read back from the disk and opened with the recovery
//! code.

use std::io::{self, IsTerminal, Read, Seek, Write};
use std::path::Path;

use crate::cli::args::KdfArgs;
use crate::cli::display::word;
use crate::cli::error::Error;
use crate::cli::local;
use crate::cli::local::replace::replace_in;
use crate::cli::report::{Failure, note, of_identity};
use crate::cli::secrets::identity;
use crate::cli::secrets::identity::Place;
use crate::cli::secrets::kdf;
use crate::cli::terminal::ask::confirm;
use crate::cli::terminal::progress::Busy;
use crate::cli::terminal::stdout::Out;
use crate::crypto::Suite;
use crate::roster::{Identity, IdentityFile, RecoveryCode, Secret};
use crate::vault::OsRandom;

/// An identity that was just created, its file and its recovery code.
pub struct NewIdentity {
    /// The identity itself.
    pub identity: Identity,
    file: IdentityFile,
    code: RecoveryCode,
    /// Whether its passphrase was typed at the terminal.
    was_typed: bool,
}

impl NewIdentity {
    /// Creates one that `secret` opens; `path` is its future path.
    ///
    /// # Errors
    /// The secret is not usable, or memory is not available.
    pub fn make(
        suite: Suite,
        secret: &Secret,
        kdf: &KdfArgs,
        path: &Path,
    ) -> Result<NewIdentity, Failure> {
        let failed = |error| of_identity(error, path);
        let busy = Busy::new("making a key of the passphrase");
        let owner = Identity::generate(&OsRandom);
        // Only a passphrase is stretched, so only then is a measurement worth a second.
        let params = if matches!(secret, Secret::Passphrase(_)) {
            kdf::choose(kdf)?
        } else {
            Default::default()
        };
        let mut file =
            IdentityFile::new(suite, &owner, &identity::new_slot(secret, params, ""), &OsRandom)
                .map_err(failed)?;
        let code = RecoveryCode::generate(&OsRandom);
        let recovery = Secret::RecoveryCode(RecoveryCode::parse(&code.text())?);
        file.add_slot(&owner, &identity::new_slot(&recovery, params, ""), &OsRandom)
            .map_err(failed)?;
        drop(busy);
        kdf::note_cost(&file);
        Ok(NewIdentity { identity: owner, file, code, was_typed: false })
    }

    /// Sets whether its passphrase was typed at the terminal. [`NewIdentity::print_code`] then asks
    /// there whether the recovery code was written down.
    pub fn typed(self, was_typed: bool) -> NewIdentity {
        NewIdentity { was_typed, ..self }
    }

    /// Writes the file, replacing the one at `place`.
    ///
    /// # Errors
    /// Those of writing it, and of opening the written file.
    pub fn write(&self, Place { dir, name, path }: &Place) -> Result<(), Failure> {
        replace_in(&**dir, name, path, &self.file.encode(), |written| self.check(written, path))
    }

    /// Writes the file unless one exists at `path`, which is checked atomically.
    ///
    /// # Errors
    /// Those of [`NewIdentity::write`], and [`Error::IdentityExists`].
    pub fn write_new(&self, path: &Path) -> Result<(), Failure> {
        let failed = |op| move |source| Error::Io { op, path: path.to_owned(), source };
        let dir = local::parent(path);
        let mut new = tempfile::Builder::new()
            .prefix(".kithfs-new-")
            .tempfile_in(dir)
            .map_err(local::unnamed)
            .map_err(failed("write beside"))?;
        new.write_all(&self.file.encode())
            .and_then(|()| new.as_file().sync_all())
            .map_err(failed("write beside"))?;
        let mut written = Vec::new();
        new.rewind().and_then(|()| new.read_to_end(&mut written)).map_err(failed("read back"))?;
        self.check(&written, path)?;
        new.persist_noclobber(path).map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => Error::IdentityExists(path.to_owned()),
            _ => failed("make")(error.error),
        })?;
        std::fs::File::open(dir)
            .and_then(|dir| dir.sync_all())
            .map_err(failed("sync the directory of"))?;
        Ok(())
    }

    fn check(&self, written: &[u8], path: &Path) -> Result<(), Failure> {
        let recovery = Secret::RecoveryCode(RecoveryCode::parse(&self.code.text())?);
        let opened = IdentityFile::decode(written).and_then(|file| file.unlock(&recovery));
        opened.map(drop).map_err(|error| of_identity(error, path))
    }

    /// Prints the recovery code to stdout; `of` names what it opens, and `path` is the identity
    /// file.
    ///
    /// # Errors
    /// [`Error::CodeUnread`].
    pub fn print_code(&self, of: &str, path: &Path) -> Result<(), Failure> {
        note(format_args!(
            "this recovery code opens {of} if the passphrase is lost. It is not shown again: write it down and keep it elsewhere"
        ));
        print_code(&self.code, path)?;
        if self.was_typed && io::stdout().is_terminal() {
            confirm_written(path)?;
        }
        Ok(())
    }
}

/// How many times the user is asked whether the recovery code was written down.
const REMINDERS: u32 = 3;

/// Asks, up to [`REMINDERS`] times, whether the recovery code was written down. The identity file
/// is complete whatever the answer is.
fn confirm_written(path: &Path) -> Result<(), Error> {
    for _ in 0..REMINDERS {
        match confirm("Have you written the recovery code down?", false) {
            Ok(()) => return Ok(()),
            Err(Error::Declined) => {}
            Err(error) => return Err(error),
        }
    }
    note(format_args!(
        "without it, a forgotten passphrase loses everything. Make another one at any time: kithfs passphrase add --new-recovery-code --identity {}",
        word(path)
    ));
    Ok(())
}

/// Prints a recovery code of the identity at `path`, which is already in its slot. Unlike
/// elsewhere, a closed stdout is a failure.
///
/// # Errors
/// [`Error::CodeUnread`].
pub fn print_code(code: &RecoveryCode, path: &Path) -> Result<(), Failure> {
    let mut out = Out::stdout();
    let printed = out.text(format_args!("{}\n", code.text().as_str())).and_then(|()| out.finish());
    printed.map_err(|error| {
        let source = match error {
            Error::Os { source, .. } => source,
            _ => io::ErrorKind::BrokenPipe.into(),
        };
        Error::CodeUnread { path: path.to_owned(), source }.into()
    })
}
