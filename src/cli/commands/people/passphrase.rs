//! `kithfs passphrase`
//!
//! Rule: a change of slots needs a secret that opens the identity, so that an unattended terminal
//! is not enough. The file is replaced only by one that was read back and opens with the new
//! secret. It must also still be the file that was read, or a concurrent command's change would be
//! lost.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use crate::cli::args::people::OwnIdentity;
use crate::cli::args::slots::{
    PassphraseAdd, PassphraseChange, PassphraseCommand, PassphraseForget, PassphraseList,
    PassphraseRemember, PassphraseRemove, SlotsOf,
};
use crate::cli::args::{KdfArgs, PresentSecret};
use crate::cli::display::{self, Shown, path as shown, utc};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::local::replace::replace_in;
use crate::cli::report::{Failure, note, of_identity, warn};
use crate::cli::secrets::identity::{self, Locked, Place};
use crate::cli::secrets::new_identity::print_code;
use crate::cli::secrets::source::{Opens, Source};
use crate::cli::secrets::{age, kdf, keyring};
use crate::cli::terminal::progress::Busy;
use crate::cli::terminal::stdout::Out;
use crate::cli::vaults::open;
use crate::crypto::Argon2Params;
use crate::format::identity::SlotKind;
use crate::roster::{Identity, IdentityFile, RecoveryCode, Secret};
use crate::store::{Access, File, Lock};
use crate::vault::OsRandom;

/// Timeout and poll interval of the wait for another command that is replacing the file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Runs one of the commands.
pub fn run<Of: Owner>(command: &PassphraseCommand<Of>) -> Result<Exit, Failure> {
    match command {
        PassphraseCommand::Add(args) => add(args),
        PassphraseCommand::Change(args) => change(args),
        PassphraseCommand::Remove(args) => remove(args),
        PassphraseCommand::List(args) => list(args),
        PassphraseCommand::Remember(args) => remember(args),
        PassphraseCommand::Forget(args) => forget(args),
    }
}

/// The identity whose slots are meant.
pub trait Owner: Args {
    /// Reads the identity file.
    ///
    /// # Errors
    /// It does not exist or cannot be read.
    fn read(&self) -> Result<Locked, Failure>;

    /// Returns what a prompt names: the vault for its own identity, else the identity at `path`.
    fn opens(&self, path: &Path) -> Opens;
}

impl Owner for SlotsOf {
    fn read(&self) -> Result<Locked, Failure> {
        match (&self.identity, &self.vault) {
            (Some(identity), _) => Place::named(identity)?.read(),
            (None, Some(vault)) => {
                let found = open::find(vault)?;
                // A slot of a conflict copy is not one of the file that is changed here.
                identity::own_of(&found.store, &found.dir)?.map(Locked::alone).ok_or_else(|| {
                    let none = Failure::from(Error::NoOwnIdentity(found.dir));
                    none.hint("it is opened with an identity outside it; for yours: kithfs identity passphrase")
                })
            }
            (None, None) => Err(Error::Usage("a vault or an identity is needed".into()).into()),
        }
    }

    fn opens(&self, path: &Path) -> Opens {
        self.vault.clone().map_or_else(|| identity::opens(path), Opens::Vault)
    }
}

impl Owner for OwnIdentity {
    fn read(&self) -> Result<Locked, Failure> {
        Place::named(&self.path()?)?.read()
    }

    fn opens(&self, path: &Path) -> Opens {
        identity::opens(path)
    }
}

/// An identity that was unlocked for a change.
struct Unlocked {
    place: Place,
    file: IdentityFile,
    identity: Identity,
    slot: u16,
    /// The file as it was read.
    before: Vec<u8>,
}

impl Unlocked {
    fn open(of: &impl Owner, present: &PresentSecret) -> Result<Unlocked, Failure> {
        let locked = of.read()?;
        let asked = locked.ask(present, &of.opens(&locked.place.path))?;
        let (identity, slot) = locked.unlock(asked)?;
        let Locked { place, file, .. } = locked;
        let before = file.encode();
        Ok(Unlocked { place, file, identity, slot, before })
    }

    fn path(&self) -> &Path {
        &self.place.path
    }

    /// Replaces the old file with the changed one, if that opens with `secret` and the old file is
    /// still the one that was read.
    fn write(&self, secret: Option<&Secret>) -> Result<(), Failure> {
        let _alone = self.alone();
        let Place { dir, name, path } = &self.place;
        replace_in(&**dir, name, path, &self.file.encode(), |written| {
            let file = IdentityFile::decode(written).map_err(|error| of_identity(error, path))?;
            let opens = secret.is_none_or(|secret| {
                file.unlock(secret)
                    .is_ok_and(|identity| identity.public() == self.identity.public())
            });
            if !opens {
                return Err(Failure::from(Error::NotVerified(path.clone())));
            }
            // The last step before the rename, as stretching the secret takes time.
            let is_as_before =
                self.place.clone().read().is_ok_and(|now| now.file.encode() == self.before);
            if is_as_before { Ok(()) } else { Err(Error::IdentityChanged(path.clone()).into()) }
        })?;
        kdf::note_cost(&self.file);
        Ok(())
    }

    /// Locks the file against replacement by other commands until the returned handle is dropped.
    /// Not every store supports locks, and anyone who may read the file may hold this one, so the
    /// wait is bounded; `None` without the lock.
    fn alone(&self) -> Option<Arc<dyn File>> {
        let Place { dir, name, .. } = &self.place;
        let end = Instant::now() + LOCK_TIMEOUT;
        while Instant::now() < end {
            // NFS grants such a lock only to a handle that is open for writing.
            let opened = dir.open_file(name, Access::ReadWrite);
            let file = opened.or_else(|_| dir.open_file(name, Access::Read)).ok()?;
            if !file.try_lock(Lock::Exclusive).ok()? {
                std::thread::sleep(LOCK_POLL);
                continue;
            }
            // Otherwise the former holder of the lock has replaced the file.
            let (locked, there) = (file.stat().ok()?, dir.stat(name).ok()?);
            if (locked.dev, locked.ino) == (there.dev, there.ino) {
                return Some(file);
            }
        }
        None
    }
}

fn params(secret: &Secret, args: &KdfArgs) -> Result<Argon2Params, Failure> {
    // Only a passphrase is stretched.
    if matches!(secret, Secret::Passphrase(_)) {
        kdf::choose(args)
    } else {
        Ok(Argon2Params::DEFAULT)
    }
}

fn add(args: &PassphraseAdd<impl Owner>) -> Result<Exit, Failure> {
    // The key file is read before the present secret is asked for, as it may be missing.
    let key_file = match &args.new_key_file {
        Some(file) => Some(Source::KeyFile(file.clone()).read_new(&Opens::Identity(file.clone()))?),
        None => None,
    };
    let mut unlocked = Unlocked::open(&args.of, &args.present)?;
    let opens = args.of.opens(unlocked.path());
    let mut code = None;
    let secret = if args.new_recovery_code {
        let code = code.insert(RecoveryCode::generate(&OsRandom));
        Secret::RecoveryCode(RecoveryCode::parse(&code.text())?)
    } else if let Some(recipient) = &args.age {
        age::wrap(recipient)?
    } else {
        let given = match key_file {
            Some(given) => given,
            None => Source::choose_new(&args.new).read_new(&opens)?,
        };
        identity::new_secret(given)?
    };
    let busy = Busy::new("making a key of the secret");
    let slot = identity::new_slot(&secret, params(&secret, &args.kdf)?, &args.label);
    let id = unlocked
        .file
        .add_slot(&unlocked.identity, &slot, &OsRandom)
        .map_err(|error| of_identity(error, unlocked.path()))?;
    unlocked.write(Some(&secret))?;
    drop(busy);
    note(format_args!("added slot {id} ({}) to {}", secret.kind_name(), shown(unlocked.path())));
    if args.age.is_some() {
        note(
            "try the new slot before you rely on it: use --age-identity FILE with any command that unlocks",
        );
    }
    if let Some(code) = code {
        note("this recovery code is not shown again: write it down and keep it elsewhere");
        print_code(&code, unlocked.path())?;
    }
    Ok(Exit::Ok)
}

fn change(args: &PassphraseChange<impl Owner>) -> Result<Exit, Failure> {
    let mut unlocked = Unlocked::open(&args.of, &args.present)?;
    let old = which(&unlocked, args.slot)?;
    let opens = args.of.opens(unlocked.path());
    let secret = identity::new_secret(Source::choose_new(&args.new).read_new(&opens)?)?;
    let busy = Busy::new("making a key of the passphrase");
    let label = unlocked.file.slots().find(|slot| slot.id == old).map_or("", |slot| slot.label);
    let label = label.to_owned();
    let slot = identity::new_slot(&secret, params(&secret, &args.kdf)?, &label);
    let changed = unlocked.file.change_passphrase(&unlocked.identity, old, &slot, &OsRandom);
    let id = changed.map_err(|error| of_identity(error, unlocked.path()))?;
    unlocked.write(Some(&secret))?;
    drop(busy);
    note(format_args!(
        "changed the passphrase of {}: slot {id} replaces slot {old}",
        shown(unlocked.path())
    ));
    update_keyring(&unlocked, Some(&secret), &opens);
    Ok(Exit::Ok)
}

/// Returns the slot to replace: the named one, that of the given passphrase, or that of the only
/// passphrase.
fn which(unlocked: &Unlocked, named: Option<u16>) -> Result<u16, Error> {
    let path = || unlocked.path().to_owned();
    let kind = |id| unlocked.file.slots().find(|slot| slot.id == id).map(|slot| slot.kind);
    if let Some(slot) = named {
        return match kind(slot) {
            Some(SlotKind::Passphrase(_)) => Ok(slot),
            Some(kind) => Err(Error::NotAPassphraseSlot { path: path(), slot, kind: kind.name() }),
            None => Err(Error::NoSuchSlot { path: path(), slot }),
        };
    }
    if matches!(kind(unlocked.slot), Some(SlotKind::Passphrase(_))) {
        return Ok(unlocked.slot);
    }
    let passphrases: Vec<u16> = unlocked
        .file
        .slots()
        .filter(|slot| matches!(slot.kind, SlotKind::Passphrase(_)))
        .map(|slot| slot.id)
        .collect();
    match passphrases[..] {
        [only] => Ok(only),
        _ => Err(Error::WhichSlot { path: path(), count: passphrases.len() }),
    }
}

fn remove(args: &PassphraseRemove<impl Owner>) -> Result<Exit, Failure> {
    let mut unlocked = Unlocked::open(&args.of, &args.present)?;
    // An age slot can be added without its token, so it may be one that nothing opens.
    let others = || unlocked.file.slots().filter(|slot| slot.id != args.slot);
    if unlocked.slot == args.slot
        && others().next().is_some()
        && others().all(|slot| slot.kind == SlotKind::Age)
    {
        return Err(Error::UntriedAgeSlots { slot: args.slot }.into());
    }
    unlocked.file.remove_slot(args.slot).map_err(|error| of_identity(error, unlocked.path()))?;
    unlocked.write(None)?;
    note(format_args!(
        "removed slot {} from {}; copies of the old file still open with it",
        args.slot,
        shown(unlocked.path())
    ));
    update_keyring(&unlocked, None, &args.of.opens(unlocked.path()));
    Ok(Exit::Ok)
}

/// Replaces the passphrase in the keyring with the new one if it opens no slot any more; without a
/// new one, removes it. The slots are changed already, so a failure is only reported.
fn update_keyring(unlocked: &Unlocked, new: Option<&Secret>, opens: &Opens) {
    let public = unlocked.identity.public();
    let stored = match keyring::stored(&public) {
        Ok(Some(stored)) => stored,
        Ok(None) => return,
        Err(error) => {
            return note(format_args!(
                "if an old passphrase of {opens} is in the keyring, it is still there: {error}"
            ));
        }
    };
    if unlocked.file.unlock(&Secret::Passphrase(stored)).is_ok() {
        return;
    }
    let done = match new {
        Some(Secret::Passphrase(new)) => keyring::remember(&public, new, &opens.to_string())
            .map(|()| "the keyring of your session has the new passphrase"),
        _ => keyring::forget(&public).map(|_| "the keyring of your session has no passphrase"),
    };
    match done {
        Ok(what) => note(format_args!("{what} of {opens}")),
        Err(error) => {
            warn(format_args!("an old passphrase of {opens} is still in the keyring: {error}"))
        }
    }
}

fn remember(args: &PassphraseRemember<impl Owner>) -> Result<Exit, Failure> {
    let locked = args.of.read()?;
    let present = PresentSecret {
        passphrase: args.passphrase.clone(),
        remember: true,
        ..PresentSecret::default()
    };
    if present.passphrase.key_file.is_some() {
        return Err(Error::Usage("only a passphrase is remembered, not a key file".into()).into());
    }
    let opens = args.of.opens(&locked.place.path);
    locked.unlock(locked.ask(&present, &opens)?)?;
    note(format_args!("the passphrase of {opens} is in the keyring of your session"));
    Ok(Exit::Ok)
}

fn forget(args: &PassphraseForget<impl Owner>) -> Result<Exit, Failure> {
    let locked = args.of.read()?;
    let opens = args.of.opens(&locked.place.path);
    if keyring::forget(&locked.file.public())? {
        note(format_args!("the passphrase of {opens} is no longer in the keyring of your session"));
    } else {
        note(format_args!("the keyring of your session has no passphrase of {opens}"));
    }
    Ok(Exit::Ok)
}

/// One slot. The names of the fields are stable.
#[derive(Serialize)]
struct Slot<'a> {
    slot: u16,
    kind: &'static str,
    label: &'a str,
    created: u64,
    memory_kib: Option<u32>,
    passes: Option<u32>,
    lanes: Option<u32>,
}

fn list(args: &PassphraseList<impl Owner>) -> Result<Exit, Failure> {
    let Locked { file, .. } = args.of.read()?;
    let slots: Vec<Slot<'_>> = file
        .slots()
        .map(|slot| {
            let params = match slot.kind {
                SlotKind::Passphrase(params) => Some(params),
                SlotKind::RecoveryCode | SlotKind::KeyFile | SlotKind::Age => None,
            };
            Slot {
                slot: slot.id,
                kind: slot.kind.name(),
                label: slot.label,
                created: slot.created,
                memory_kib: params.map(|params| params.memory_kib),
                passes: params.map(|params| params.passes),
                lanes: params.map(|params| params.lanes),
            }
        })
        .collect();
    Out::report(args.json, &slots, |out| {
        for Slot { slot, kind, label, created, memory_kib, passes, .. } in &slots {
            let created = utc(i64::try_from(*created).unwrap_or(i64::MAX));
            out.text(format_args!("{slot:>3}  {kind:<13}  {created}"))?;
            if let (Some(memory), Some(passes)) = (memory_kib, passes) {
                out.text(format_args!(
                    "  Argon2id, {} MiB, {}",
                    memory >> 10,
                    display::count(*passes, "pass")
                ))?;
            }
            if !label.is_empty() {
                out.text(format_args!("  {}", Shown(label.as_bytes())))?;
            }
            out.text(format_args!("\n"))?;
        }
        Ok(())
    })
}
