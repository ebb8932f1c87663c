//! `kithfs identity adopt`

use std::os::unix::ffi::OsStrExt;

use crate::cli::args::PassphraseArgs;
use crate::cli::args::people::IdentityAdopt;
use crate::cli::display::{path as shown, word};
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, note};
use crate::cli::secrets::identity;
use crate::cli::secrets::source::{Environment, Source};
use crate::cli::vaults::hand_over::HandOver;

/// Hands a vault over to the user's identity.
pub fn run(args: &IdentityAdopt) -> Result<Exit, Failure> {
    let person = args.of.path()?;
    let environment = Environment::of_process();
    let source = match &args.identity_passphrase_file {
        Some(file) => Source::File(file.clone()),
        None => Source::choose(&PassphraseArgs::default(), &environment),
    };
    let unlocked = HandOver::find(&args.vault, &person)?
        .run(&Source::choose_present(&args.secret, &environment), &source)?;
    note(format_args!("{} opens {} from now on", identity::opens(&person), shown(&args.vault)));
    if unlocked.person.is_some() {
        let vault = word(args.vault.as_os_str().as_bytes());
        note(format_args!(
            "the vault's former passphrase and recovery code still open it: `kithfs passphrase list {vault}` shows them, `kithfs passphrase remove` ends that"
        ));
    }
    Ok(Exit::Ok)
}
