//! `kithfs identity`
//!
//! Rule: the public key in a file is believed only if no one but this user could have written it.
//! An identity inside a vault is under the control of the storage host, which could insert its own
//! key to have folders shared with it. It is unlocked first, which proves its public key. The same
//! holds for a symlink to it and for a file that other users may write to.

use std::io::{IsTerminal, stdout};
use std::path::Path;

use qrcode::QrCode;
use qrcode::render::unicode::Dense1x2;

use super::{adopt, passphrase};
use crate::cli::args::PresentSecret;
use crate::cli::args::people::{IdentityCommand, IdentityName, IdentityNew, IdentityShow};
use crate::cli::display::{Shown, path as shown};
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::local;
use crate::cli::report::{Failure, note};
use crate::cli::secrets::identity::{self, Locked, Place};
use crate::cli::secrets::new_identity::NewIdentity;
use crate::cli::secrets::source::{Environment, Opens, Source};
use crate::cli::terminal::ask;
use crate::cli::terminal::stdout::Out;
use crate::cli::user::{directories, own_name};
use crate::crypto::Suite;
use crate::crypto::suite::aes_in_hardware;
use crate::roster::PublicIdentity;
use crate::vault::{DESCRIPTOR_FILE, IDENTITY_FILE};

/// Runs one of the commands.
pub fn run(command: &IdentityCommand) -> Result<Exit, Failure> {
    match command {
        IdentityCommand::New(args) => new(args),
        IdentityCommand::Show(args) => show(args),
        IdentityCommand::Export(args) => export(args),
        IdentityCommand::Name(args) => name(args),
        IdentityCommand::Adopt(args) => adopt::run(args),
        IdentityCommand::Passphrase(command) => passphrase::run(command),
    }
}

fn new(args: &IdentityNew) -> Result<Exit, Failure> {
    let path = args.of.path()?;
    // Checked before a passphrase is chosen; the call that creates the file checks again.
    if path.symlink_metadata().is_ok() {
        return Err(Error::IdentityExists(path).into());
    }
    let dir = local::parent(&path);
    local::check_can_make(dir).map_err(Error::io("make identity", &path))?;
    let source = Source::choose(&args.secret, &Environment::of_process());
    let name = new_name(args, &source)?;
    let opens = match (&name, identity::opens(&path)) {
        (Some(name), Opens::YourIdentity(_)) => Opens::YourIdentity(name.clone()),
        (_, opens) => opens,
    };
    let secret = identity::new_secret(source.read_new(&opens)?)?;
    let made = NewIdentity::make(Suite::preferred(aes_in_hardware()), &secret, &args.kdf, &path)?
        .typed(source == Source::Terminal);
    directories::make_parent(&path)?;
    made.write_new(&path)?;
    if let Some(name) = &name {
        own_name::choose(name)?;
    }
    note(format_args!(
        "created the identity {}, fingerprint {}",
        shown(&path),
        made.identity.public().fingerprint()
    ));
    if own_name::chosen()?.is_none() {
        note(format_args!(
            "members of your shares will see you as `{}`; choose a name: kithfs identity name NAME",
            own_name::NONE_CHOSEN
        ));
    }
    made.print_code("the identity", &path)?;
    note("others need your public key: kithfs identity export");
    Ok(Exit::Ok)
}

/// Returns the name to store with a new identity: the given one, else what is answered at the
/// terminal if none was chosen before.
fn new_name(args: &IdentityNew, source: &Source) -> Result<Option<String>, Error> {
    if let Some(name) = &args.name {
        own_name::check(name)?;
        own_name::check_place()?;
        return Ok(Some(name.clone()));
    }
    if *source != Source::Terminal || own_name::chosen()?.is_some() {
        return Ok(None);
    }
    let name = ask::line("Your name, as members of your shares see it: ")?;
    if name.is_empty() {
        return Ok(None);
    }
    own_name::check(&name)?;
    Ok(Some(name))
}

/// Shows or sets the name that others see.
fn name(args: &IdentityName) -> Result<Exit, Failure> {
    if let Some(name) = &args.name {
        own_name::choose(name)?;
        note(format_args!(
            "members of the shares that you create from now on see you as {}",
            Shown(name.as_bytes())
        ));
        return Ok(Exit::Ok);
    }
    match own_name::chosen()? {
        Some(name) => Out::print(|out| out.text(format_args!("{}\n", Shown(name.as_bytes())))),
        None => {
            note("you have chosen no name: kithfs identity name NAME");
            Ok(Exit::Ok)
        }
    }
}

/// Returns the public key of the identity at `path`, proven if others could have written it.
///
/// # Errors
/// It cannot be read, or cannot be unlocked although it has to be.
pub fn public(path: &Path, secret: &PresentSecret) -> Result<PublicIdentity, Failure> {
    let locked = Place::named(path)?.read()?;
    if is_ours_alone(&locked) {
        return Ok(locked.file.public());
    }
    let asked = locked.ask(secret, &identity::opens(path))?;
    Ok(locked.unlock(asked)?.0.public())
}

/// Returns whether only this user could have written the file, as far as its resolved path and its
/// mode show.
fn is_ours_alone(Locked { place: Place { dir, name, .. }, stat, .. }: &Locked) -> bool {
    let is_in_a_vault =
        name.as_slice() == IDENTITY_FILE.as_bytes() || dir.stat(DESCRIPTOR_FILE.as_bytes()).is_ok();
    !is_in_a_vault && directories::is_private(stat.uid, stat.perm)
}

fn show(args: &IdentityShow) -> Result<Exit, Failure> {
    let path = args.of.path()?;
    let public = public(&path, &args.secret)?;
    let mut out = Out::stdout();
    out.text(format_args!("identity     {}\n", shown(&path)))?;
    match own_name::chosen() {
        _ if args.of.identity.is_some() => {}
        Ok(Some(name)) => out.text(format_args!("name         {}\n", Shown(name.as_bytes())))?,
        Ok(None) => {}
        // The key is what the user has asked for.
        Err(error) => Failure::from(error).print(),
    }
    out.text(format_args!("public key   {public}\n"))?;
    out.text(format_args!("fingerprint  {}\n", public.fingerprint()))?;
    if stdout().is_terminal() {
        out.text(format_args!("\n{}\n", picture(&public)))?;
    }
    out.finish()?;
    Ok(Exit::Ok)
}

fn export(args: &IdentityShow) -> Result<Exit, Failure> {
    let public = public(&args.of.path()?, &args.secret)?;
    Out::print(|out| out.text(format_args!("{public}\n")))
}

/// Returns the key as a QR code of half blocks. Capitals take less space, and readers of keys
/// accept them.
fn picture(public: &PublicIdentity) -> String {
    let code = QrCode::new(public.to_string().to_uppercase())
        .expect("a key of 115 characters fits in a QR code");
    // For dark terminals: light modules are drawn.
    code.render::<Dense1x2>().dark_color(Dense1x2::Dark).light_color(Dense1x2::Light).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_is_square_and_fits_on_a_terminal() {
        let picture = picture(&PublicIdentity { sign: [0x11; 32], exchange: [0x22; 32] });
        let lines: Vec<&str> = picture.lines().collect();
        let width = lines[0].chars().count();
        assert!(lines.iter().all(|line| line.chars().count() == width), "{picture}");
        assert_eq!(width.div_ceil(2), lines.len(), "{picture}");
        assert!(width <= 80, "{width}");
    }
}
