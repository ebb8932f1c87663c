//! `kithfs set`

use std::path::Path;

use crate::cli::args::Set;
use crate::cli::daemon::registry::Registry;
use crate::cli::display::path as shown;
use crate::cli::error::Error;
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, in_vault, note};
use crate::cli::vaults::open;
use crate::vault::Vault;

/// Sets properties of a vault, without a secret.
pub fn run(args: &Set) -> Result<Exit, Failure> {
    let found = open::find(&args.vault)?;
    let place = shown(&found.dir);
    let failed = |error| in_vault(error, &found.dir, None);
    let new = if args.synced {
        if found.description.shared {
            return Err(Error::SharedAlready(found.dir).into());
        }
        let new = Vault::set_synced(&found.store).map_err(failed)?;
        match new {
            true => {
                note(format_args!("{place} is marked as synced, for all machines that it reaches"))
            }
            false => note(format_args!("{place} was marked as synced before")),
        }
        new
    } else {
        if args.shared && found.description.synced {
            return Err(Error::SyncedAlready(found.dir).into());
        }
        let new = Vault::set_shared(&found.store, args.shared).map_err(failed)?;
        match (args.shared, new) {
            (true, true) => note(format_args!(
                "{place} is marked as shared: several users and machines can mount it at the same time"
            )),
            (true, false) => note(format_args!("{place} was marked as shared before")),
            (false, true) => note(format_args!("{place} is not marked as shared any more")),
            (false, false) => note(format_args!("{place} was not marked as shared")),
        }
        new
    };
    if new {
        ask_to_mount_again(&found.dir);
    }
    Ok(Exit::Ok)
}

/// Tells the user which mounts were made before a change of the vault's marks.
fn ask_to_mount_again(vault: &Path) {
    let mounts = Registry::open().and_then(|registry| registry.live()).unwrap_or_default();
    for mount in mounts.iter().filter(|entry| entry.vault.0 == vault) {
        note(format_args!(
            "unmount {} and mount it again: the present mount does not use the change",
            shown(&mount.mountpoint.0)
        ));
    }
}
