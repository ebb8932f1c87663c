//! Identity files: finding, reading and unlocking them.
//!
//! Rules that hold here
//! * An identity file is a name in an open directory ([`Place`]). It is read, locked and replaced
//!   through that directory, so no path is resolved a second time. The storage host cannot redirect
//!   a command with a symlink.
//! * Only a regular file is read, through one descriptor. A FIFO does not block.
//! * Symlinks are followed once, for a file that the user has named or keeps in the home
//!   directory, and never for a vault's own identity.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::cli::args::{Choice, PresentSecret};
use crate::cli::daemon::signals;
use crate::cli::display::{self, short_path};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, note, of_identity};
use crate::cli::secrets::age::AgeIdentities;
use crate::cli::secrets::source::{
    ATTEMPTS, Environment, Given, Opens, Prompt, SecretBytes, Source,
};
use crate::cli::secrets::{copies, kdf, keyring};
use crate::cli::terminal::progress::Busy;
use crate::cli::user::{directories, own_name};
use crate::crypto::Argon2Params;
use crate::format::identity::{MAX_LEN, SlotKind};
use crate::roster::{
    Identity, IdentityError, IdentityFile, NewSlot, PublicIdentity, RecoveryCode,
    RecoveryTextError, Secret,
};
use crate::store::os::OsDir;
use crate::store::{Access, Dir, Stat};
use crate::vault::IDENTITY_FILE;

/// A name in an open directory at which an identity file is expected.
#[derive(Clone)]
pub struct Place {
    /// The open directory.
    pub dir: Arc<dyn Dir>,
    /// The name in it.
    pub name: Vec<u8>,
    /// The path, for messages.
    pub path: PathBuf,
}

/// An identity file that was read. Nothing in it is authenticated before it is unlocked.
pub struct Locked {
    /// Its place.
    pub place: Place,
    /// Its contents.
    pub file: IdentityFile,
    /// Its attributes, from the descriptor that it was read from.
    pub stat: Stat,
    /// Whether a secret that does not open it is tried on its conflict copies.
    has_copies: bool,
    /// The vault's own identity, if this one opens it.
    pub linked: Option<Box<Locked>>,
}

/// The identities of an unlocked vault.
pub struct Unlocked {
    /// The one that opens the vault.
    pub identity: Identity,
    /// The identity of the person to whom the vault was handed over, if it was.
    pub person: Option<Identity>,
}

impl Place {
    /// Returns the place of the identity inside the vault at `path`, whose open directory is
    /// `store`.
    pub fn in_vault(store: &Arc<dyn Dir>, path: &Path) -> Place {
        Place { dir: store.clone(), name: IDENTITY_FILE.into(), path: path.join(IDENTITY_FILE) }
    }

    /// Resolves the path `given`. Symlinks are followed here and not later.
    ///
    /// # Errors
    /// Those of resolving the path; the file is not a regular file.
    pub fn named(given: &Path) -> Result<Place, Error> {
        let open = || -> io::Result<Place> {
            // Checked before the path is resolved: `/dev/fd/N` of a pipe has no name in any
            // directory.
            if !given.metadata()?.is_file() {
                return Err(not_a_file());
            }
            let path = given.canonicalize()?;
            let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(not_a_file());
            };
            Ok(Place {
                dir: OsDir::open(dir)?,
                name: name.as_encoded_bytes().into(),
                path: given.to_owned(),
            })
        };
        open().map_err(|source| Error::Secret {
            op: "read identity",
            path: given.to_owned(),
            source,
        })
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Those of reading; the file is not an identity.
    pub fn read(self) -> Result<Locked, Failure> {
        let read = self.bytes();
        self.locked(read)
    }

    /// Returns the contents of the file and its attributes, from one descriptor.
    pub(super) fn bytes(&self) -> io::Result<(Vec<u8>, Stat)> {
        let file = self.dir.open_file(&self.name, Access::Read)?;
        // One byte more than the longest file, so that a longer one is refused and not truncated.
        let mut bytes = vec![0; MAX_LEN + 1];
        let read = file.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok((bytes, file.stat()?))
    }

    fn locked(self, read: io::Result<(Vec<u8>, Stat)>) -> Result<Locked, Failure> {
        let (bytes, stat) = read.map_err(|error| {
            let source = if is_not_a_file(&error) { not_a_file() } else { error };
            Error::Secret { op: "read identity", path: self.path.clone(), source }
        })?;
        let file = IdentityFile::decode(&bytes).map_err(|error| of_identity(error, &self.path))?;
        Ok(Locked { place: self, file, stat, has_copies: false, linked: None })
    }
}

/// Returns whether an object was not opened because it is a symlink, a directory, a FIFO, a socket
/// or a device.
fn is_not_a_file(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENXIO | libc::EISDIR))
}

fn not_a_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
}

/// Reads the identity that opens the vault at `vault`, whose open directory is `store`.
///
/// # Errors
/// It does not exist, or it cannot be read.
pub fn find(choice: Choice<'_>, store: &Arc<dyn Dir>, vault: &Path) -> Result<Locked, Failure> {
    let none = || Failure::from(Error::NoOwnIdentity(vault.to_owned()));
    match choice {
        Choice::Own => own_or_copy(store, vault)?.ok_or_else(none),
        Choice::File(file) => {
            let file = read(file)?;
            let own = own_of(store, vault).unwrap_or_default();
            let linked = own.filter(|own| own.is_linked_to(&file)).map(Box::new);
            Ok(Locked { linked, ..file })
        }
        Choice::Usual => match (own_of(store, vault), users()) {
            (Ok(Some(own)), Some(users)) => match read(&users) {
                Ok(users) if own.is_linked_to(&users) => {
                    Ok(Locked { linked: Some(Box::new(own)), ..users })
                }
                // Also if the user's identity cannot be read.
                _ => Ok(own),
            },
            (Ok(None), Some(users)) => read(&users),
            _ => own_or_copy(store, vault)?.ok_or_else(none),
        },
    }
}

/// Reads the identity file at `path`.
///
/// # Errors
/// Those of [`Place::named`] and [`Place::read`].
pub fn read(path: &Path) -> Result<Locked, Failure> {
    Place::named(path)?.read()
}

/// Returns the path of the user's identity, if there is one.
pub fn users() -> Option<PathBuf> {
    directories::identity().ok().filter(|path| path.symlink_metadata().is_ok())
}

/// Returns the label of a slot that the identity with this public key opens.
pub fn link_label(public: &PublicIdentity) -> String {
    format!("opened by {}", public.fingerprint())
}

/// Reads the identity inside the vault at `vault`, whose open directory is `store`. Returns `None`
/// if there is none; a symlink or a FIFO of that name does not count.
///
/// # Errors
/// It cannot be read.
pub fn own_of(store: &Arc<dyn Dir>, vault: &Path) -> Result<Option<Locked>, Failure> {
    let own = Place::in_vault(store, vault);
    match own.bytes() {
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_not_a_file(&error) => Ok(None),
        read => own.locked(read).map(|own| Some(Locked { has_copies: true, ..own })),
    }
}

/// Does [`own_of`], but returns the first conflict copy of an identity that is missing or damaged.
fn own_or_copy(store: &Arc<dyn Dir>, vault: &Path) -> Result<Option<Locked>, Failure> {
    let own = own_of(store, vault);
    if matches!(own, Ok(Some(_))) {
        return own;
    }
    let place = Place::in_vault(store, vault);
    let Some(copy) = copies::instead_of(&place) else { return own };
    note(format_args!(
        "{} is missing or damaged, so its conflict copy {} is tried; if that is yours, rename it to {IDENTITY_FILE}",
        display::path(&place.path),
        display::path(&copy.path)
    ));
    copy.read().map(|copy| Some(Locked { has_copies: true, ..copy }))
}

/// Returns how a prompt names the identity file at `path`.
pub fn opens(path: &Path) -> Opens {
    match directories::identity() {
        Ok(own) if own == path => {
            Opens::YourIdentity(own_name::for_prompt().unwrap_or_else(|| short_path(path)))
        }
        _ => Opens::Identity(path.to_owned()),
    }
}

impl Locked {
    /// Gets the secret that unlocks the identity; a prompt names the identity as `opens`. The
    /// keyring and tokens may start threads, so they are used later, by [`Locked::unlock`].
    ///
    /// # Errors
    /// Those of [`Source::read`] and of [`kdf::allow`], before anything is stretched.
    pub fn ask(&self, present: &PresentSecret, opens: &Opens) -> Result<Asked, Failure> {
        let environment = Environment::of_process();
        let asked = |by| Asked { by, remember: present.remember.then(|| opens.clone()) };
        if let Some(files) = Source::choose_age(present, &environment, self.age_slots() > 0) {
            return Ok(asked(By::Age(AgeIdentities::read(&files)?)));
        }
        let by = match Source::choose_present(present, &environment) {
            Source::Terminal if keyring::is_offered() => By::Keyring(Prompt::new(opens.clone())),
            source => By::Secret(source.read(opens)?),
        };
        if matches!(by, By::Secret(Given::Passphrase { .. }) | By::Keyring(_)) {
            kdf::allow(&self.file, &self.place.path)?;
        }
        Ok(asked(by))
    }

    /// Unlocks it with the given secret; also returns the slot number. A secret that was typed is
    /// asked for again if it does not match, [`ATTEMPTS`] times in all.
    ///
    /// # Errors
    /// The secret opens no slot; a mistyped recovery code is reported as one; the passphrase cannot
    /// be remembered.
    pub fn unlock(&self, Asked { by, remember }: Asked) -> Result<(Identity, u16), Failure> {
        let mut given = match by {
            By::Secret(given) => given,
            By::Age(identities) => return self.unlock_by_age(&identities),
            By::Keyring(prompt) => match self.unlock_by_keyring(remember.is_some())? {
                Some(opened) => return Ok(opened),
                None => prompt.ask()?,
            },
        };
        let mut left = ATTEMPTS;
        loop {
            left -= 1;
            let prompt = given.prompt().filter(|_| left > 0);
            let kept = remember.as_ref().and_then(|opens| Some((opens, given.passphrase()?)));
            match (self.unlock_once(given), prompt) {
                (Ok(opened), _) => {
                    if let Some((opens, passphrase)) = kept {
                        opened.remember(&passphrase, opens)?;
                    }
                    return Ok((opened.identity, opened.slot));
                }
                (Err(failure), Some(prompt)) if failure.exit == Exit::WrongSecret => {
                    failure.print();
                    note(display::left(left));
                    given = prompt.ask()?;
                }
                (Err(failure), _) => return Err(failure),
            }
        }
    }

    /// Returns whether `other` opens this identity.
    pub fn is_linked_to(&self, other: &Locked) -> bool {
        let label = link_label(&other.file.public());
        self.file.slots().any(|slot| slot.kind == SlotKind::KeyFile && slot.label == label)
    }

    /// Does [`Locked::unlock`], and also unlocks the vault's own identity if this one opens it.
    ///
    /// # Errors
    /// Those of [`Locked::unlock`]; the link does not hold.
    pub fn unlock_vault(&self, asked: Asked) -> Result<Unlocked, Failure> {
        let (identity, _) = self.unlock(asked)?;
        match &self.linked {
            None => Ok(Unlocked { identity, person: None }),
            Some(own) => {
                let key = identity.link_to(&own.file.public());
                let opened = own.file.unlock(&Secret::KeyFile(key.to_vec().into()));
                let own = opened.map_err(|error| of_identity(error, &own.place.path))?;
                Ok(Unlocked { identity: own, person: Some(identity) })
            }
        }
    }

    /// Unlocks it with the passphrase that the keyring has. Returns `None` if the keyring fails,
    /// has none, or has one that does not match; `replaces` tells whether the caller then replaces
    /// it.
    fn unlock_by_keyring(&self, replaces: bool) -> Result<Option<(Identity, u16)>, Failure> {
        let passphrase = match keyring::passphrase(&self.file.public()) {
            Ok(Some(passphrase)) => passphrase,
            Ok(None) => return Ok(None),
            Err(error) => {
                note(error);
                return Ok(None);
            }
        };
        let given = Given::Passphrase { bytes: SecretBytes::new(passphrase), typed: None };
        match self.unlock_once(given) {
            Err(failure) if failure.exit == Exit::WrongSecret => {
                note(match replaces {
                    true => "the passphrase in the keyring does not match, and will be replaced",
                    false => {
                        "the passphrase in the keyring does not match; `kithfs passphrase remember` replaces it, and `kithfs passphrase forget` removes it"
                    }
                });
                Ok(None)
            }
            done => done.map(|opened| Some((opened.identity, opened.slot))),
        }
    }

    fn age_slots(&self) -> usize {
        self.file.slots().filter(|slot| slot.kind == SlotKind::Age).count()
    }

    /// Returns the identity without its conflict copies: a secret opens the file itself, or
    /// nothing.
    pub fn alone(self) -> Locked {
        Locked { has_copies: false, ..self }
    }

    /// Returns the conflict copies that are tried after the file.
    fn copies(&self) -> Vec<(Place, IdentityFile)> {
        if self.has_copies { copies::beside(&self.place, &self.file) } else { Vec::new() }
    }

    /// Decrypts the age slots one after the other until one of them unlocks the identity. If a slot
    /// fails, the next one is tried. Slots of conflict copies come last.
    fn unlock_by_age(&self, identities: &AgeIdentities) -> Result<(Identity, u16), Failure> {
        // Ctrl-C must work while a token waits for its owner.
        let _unblocked = signals::unblocked();
        let path = &self.place.path;
        let mut failed = match self.age_slots() {
            0 => of_identity(IdentityError::NoSuchKind("age recipient"), path),
            slots => Error::NoAgeSlotOpens { path: path.clone(), slots }.into(),
        };
        let mut tried = Vec::new();
        let mut open = |file: &IdentityFile| -> Result<Option<(Identity, u16)>, Failure> {
            for slot in file.slots().filter(|slot| slot.kind == SlotKind::Age) {
                if tried.iter().any(|before| before == slot.age_file) {
                    continue;
                }
                tried.push(slot.age_file.to_vec());
                match identities.open(slot.age_file) {
                    Ok(Some(secret)) => match file.unlock_with_slot(&secret) {
                        Ok(opened) => return Ok(Some(opened)),
                        Err(IdentityError::WrongSecret(_)) => {}
                        Err(error) => return Err(of_identity(error, path)),
                    },
                    Ok(None) => {}
                    Err(error) => failed = error.into(),
                }
            }
            Ok(None)
        };
        if let Some(opened) = open(&self.file)? {
            return Ok(opened);
        }
        for (place, copy) in self.copies() {
            if let Ok(Some(opened)) = open(&copy) {
                note_copy(&place);
                return Ok(opened);
            }
        }
        Err(failed)
    }

    fn unlock_once(&self, given: Given) -> Result<Opened, Failure> {
        let Candidates { secrets, mistyped } = candidates(given)?;
        let is_stretched = secrets.iter().any(|secret| matches!(secret, Secret::Passphrase(_)));
        let _busy = is_stretched.then(|| Busy::new("checking the passphrase"));
        let mut failure = None;
        for secret in &secrets {
            match Opened::by(&self.file, secret) {
                Ok(opened) => return Ok(opened),
                Err(error) => failure = Some(error),
            }
        }
        for (place, copy) in self.copies() {
            if let Some(opened) = secrets.iter().find_map(|secret| Opened::by(&copy, secret).ok()) {
                note_copy(&place);
                return Ok(opened);
            }
        }
        match mistyped {
            Some(mistyped) => Err(mistyped.into()),
            None => Err(of_identity(
                failure.expect("there is one candidate at least"),
                &self.place.path,
            )),
        }
    }
}

/// Notes that a secret opened a conflict copy and not the identity itself.
fn note_copy(place: &Place) {
    note(format_args!(
        "this opens {}, a conflict copy of the vault's identity: two machines changed the ways to unlock at the same time. Keep one of the two files, under the name {IDENTITY_FILE}",
        display::path(&place.path)
    ));
}

/// An identity that a secret opened.
struct Opened {
    identity: Identity,
    /// The number of the slot.
    slot: u16,
    /// Whether the slot is that of a passphrase.
    by_passphrase: bool,
}

impl Opened {
    fn by(file: &IdentityFile, secret: &Secret) -> Result<Opened, IdentityError> {
        let (identity, slot) = file.unlock_with_slot(secret)?;
        let kind = file.slots().find(|info| info.id == slot).map(|info| info.kind);
        let by_passphrase = matches!(kind, Some(SlotKind::Passphrase(_)));
        Ok(Opened { identity, slot, by_passphrase })
    }

    fn remember(&self, passphrase: &[u8], opens: &Opens) -> Result<(), Failure> {
        if !self.by_passphrase {
            return Err(Error::Usage(
                "only a passphrase is remembered, not a recovery code".into(),
            )
            .into());
        }
        Ok(keyring::remember(&self.identity.public(), passphrase, &opens.to_string())?)
    }
}

/// What unlocks an identity.
enum By {
    Secret(Given),
    Age(AgeIdentities),
    /// The passphrase in the keyring, or, if there is none that matches, the one typed at the
    /// prompt.
    Keyring(Prompt),
}

/// The secret that will unlock an identity, and whether it is stored in the keyring.
pub struct Asked {
    by: By,
    /// Whether the passphrase goes into the keyring, and how it is named there.
    remember: Option<Opens>,
}

/// A given secret, in each way in which it can be interpreted.
struct Candidates {
    secrets: Vec<Secret>,
    mistyped: Option<RecoveryTextError>,
}

fn candidates(given: Given) -> Result<Candidates, Failure> {
    let only = |secret| Candidates { secrets: vec![secret], mistyped: None };
    Ok(match given {
        Given::KeyFile(bytes) => only(Secret::KeyFile(bytes.into_inner())),
        Given::RecoveryCode(bytes) => only(Secret::RecoveryCode(recovery_code(&bytes)?)),
        Given::Passphrase { bytes, typed: None } => only(Secret::Passphrase(bytes.into_inner())),
        Given::Passphrase { bytes, typed: Some(_) } => {
            let code = recovery_code(&bytes);
            let passphrase = Secret::Passphrase(bytes.into_inner());
            match code {
                // A recovery code is fast to try, so it goes first.
                Ok(code) => Candidates {
                    secrets: vec![Secret::RecoveryCode(code), passphrase],
                    mistyped: None,
                },
                Err(error @ RecoveryTextError::Mistyped) => {
                    Candidates { secrets: vec![passphrase], mistyped: Some(error) }
                }
                Err(_) => only(passphrase),
            }
        }
    })
}

fn recovery_code(bytes: &SecretBytes) -> Result<RecoveryCode, RecoveryTextError> {
    let text = std::str::from_utf8(bytes.expose()).map_err(|_| RecoveryTextError::Character)?;
    RecoveryCode::parse(text)
}

/// Converts a given secret into the secret of a new slot.
pub fn new_secret(given: Given) -> Result<Secret, Failure> {
    Ok(match given {
        Given::Passphrase { bytes, .. } => Secret::Passphrase(bytes.into_inner()),
        Given::KeyFile(bytes) => Secret::KeyFile(bytes.into_inner()),
        Given::RecoveryCode(bytes) => Secret::RecoveryCode(recovery_code(&bytes)?),
    })
}

/// Returns a new slot with the current time.
pub fn new_slot<'a>(secret: &'a Secret, params: Argon2Params, label: &'a str) -> NewSlot<'a> {
    NewSlot { secret, params, label, created: now().try_into().unwrap_or(0) }
}

/// Returns the seconds since 1970.
pub fn now() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |secs| -secs),
    }
}
