//! `kithfs set`

use crate::cli::args::Set;
use crate::cli::daemon::registry::Registry;
use crate::cli::display::path as shown;
use crate::cli::exit::Exit;
use crate::cli::report::{Failure, in_vault, note};
use crate::cli::vaults::open;
use crate::vault::Vault;

/// Sets properties of a vault, without a secret.
pub fn run(args: &Set) -> Result<Exit, Failure> {
    let found = open::find(&args.vault)?;
    let new = Vault::set_synced(&found.store).map_err(|error| in_vault(error, &found.dir, None))?;
    let place = shown(&found.dir);
    if new {
        note(format_args!("{place} is marked as synced, for all machines that it reaches"));
    } else {
        note(format_args!("{place} was marked as synced before"));
    }
    let mounts = Registry::open().and_then(|registry| registry.live()).unwrap_or_default();
    for mount in mounts.iter().filter(|entry| new && entry.vault.0 == found.dir) {
        note(format_args!(
            "unmount {} and mount it again: the present mount does not use the mark",
            shown(&mount.mountpoint.0)
        ));
    }
    Ok(Exit::Ok)
}
