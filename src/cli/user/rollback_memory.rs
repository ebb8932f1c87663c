//! Where this machine remembers what it has seen of vaults.

use std::path::PathBuf;

use super::directories;
use crate::cli::display::hex;
use crate::cli::report::{note, warn};
use crate::vault::Vault;

/// The database of a share: below `$XDG_STATE_HOME/kithfs`, else `~/.local/state/kithfs`; `None`
/// where there is neither.
pub fn path(share: &[u8; 32]) -> Option<PathBuf> {
    Some(directories::state().ok()?.join("seen").join(format!("{}.redb", hex(share))))
}

/// Begins to remember a vault. Without a memory it works as well.
pub fn begin(vault: &Vault, share: &[u8; 32], survey: bool) {
    let Some(path) = path(share) else {
        return tracing::info!(
            "neither XDG_STATE_HOME nor HOME is set: nothing is remembered of the vault"
        );
    };
    match vault.remember(&path, survey) {
        Ok(0) => {}
        Ok(noticed) => note(format_args!(
            "{noticed} things in the vault are older than they were, or gone: see `kithfs rollback`"
        )),
        Err(error) => warn(format_args!("nothing is remembered of the vault: {error}")),
    }
}
