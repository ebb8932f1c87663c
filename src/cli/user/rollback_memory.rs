//! The database in which this machine records the state of vaults, to detect rollbacks.

use std::path::PathBuf;

use super::directories;
use crate::cli::report::{note, warn};
use crate::vault::Vault;

/// Returns the path of a share's database in the state directory; `None` if there is no such
/// directory in the environment.
pub fn path(share: &[u8; 32]) -> Option<PathBuf> {
    Some(directories::state().ok()?.join("seen").join(format!("{}.redb", hex::encode(share))))
}

/// Starts recording the state of a vault, with a new limit of the database if one is given. With
/// `survey`, the vault is also compared with its recorded state, in the background. Alarms that
/// were recorded before are reported. A failure is reported and does not stop the command.
pub fn begin(vault: &Vault, share: &[u8; 32], survey: bool, limit: Option<u64>) {
    let Some(path) = path(share) else {
        return tracing::info!(
            "neither XDG_STATE_HOME nor HOME is set: the vault's state is not recorded"
        );
    };
    let limited = limit.map_or(Ok(()), |limit| Vault::limit_rollback_memory(&path, limit));
    match limited.and_then(|()| vault.remember(&path, survey)) {
        Ok(0) => {}
        Ok(noticed) => note(format_args!(
            "{noticed} files in the vault are older than before, or gone: see `kithfs rollback`"
        )),
        Err(error) => warn(format_args!("the vault's state is not recorded: {error}")),
    }
}
