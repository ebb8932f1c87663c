//! `kithfs identity adopt`

use crate::cli::args::people::IdentityAdopt;
use crate::cli::args::{PassphraseArgs, PresentSecret};
use crate::cli::display::{path as shown, word};
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, note};
use crate::cli::secrets::identity;
use crate::cli::vaults::hand_over::HandOver;

/// Hands a vault over to the user's identity.
pub fn run(args: &IdentityAdopt) -> Result<Exit, Failure> {
    let person = args.of.path()?;
    let passphrase = PassphraseArgs {
        passphrase_file: args.identity_passphrase_file.clone(),
        ..PassphraseArgs::default()
    };
    let secret = PresentSecret { passphrase, ..PresentSecret::default() };
    let unlocked = HandOver::find(&args.vault, &person)?.run(&args.secret, &secret)?;
    note(format_args!("{} opens {} from now on", identity::opens(&person), shown(&args.vault)));
    if unlocked.person.is_some() {
        let vault = word(&args.vault);
        note(format_args!(
            "the vault's former passphrase and recovery code still open it: `kithfs passphrase list {vault}` shows their slots, `kithfs passphrase remove` removes one"
        ));
    }
    Ok(Exit::Ok)
}
